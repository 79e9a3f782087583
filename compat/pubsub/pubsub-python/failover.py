#!/usr/bin/env python3
"""Client google-cloud-pubsub under leader kills: a publisher and a streaming pull, without and with ordering keys."""

import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import grpc
from google import pubsub_v1 as generated
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError, RetryError
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from history import History

KEYS = 5
PROJECT = "projects/failover"
# Leases of the library. By default they take a minute, after which messages that were in flight arrive again.
LEASE_SECONDS = 10
# Time without a message after which a subscription is empty: longer than a lease.
QUIET_SECONDS = 25

history = History(generated.__version__)
# gRPC's syntax for several addresses of one name: it connects to the first one that answers. Without an authority, it
# would send all of them as the host, which no server of HTTP/2 has to accept.
TARGET, OPTIONS = "ipv4:" + ",".join(history.addresses), [("grpc.default_authority", "localhost")]
sent_all = {stream: threading.Event() for stream in ("plain", "ordered")}


def publisher_client(ordered):
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=ordered)
    channel = grpc.insecure_channel(TARGET, OPTIONS)
    return pubsub_v1.PublisherClient(publisher_options=options, transport=PublisherGrpcTransport(channel=channel))


def subscriber_client():
    channel = grpc.insecure_channel(TARGET, OPTIONS)
    return pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def publish(stream):
    publisher, topic = publisher_client(stream == "ordered"), f"{PROJECT}/topics/{stream}"
    # An error ends the messages of its key. A new producer has other items, as these may arrive later.
    lives, lock, flying = [0] * KEYS, threading.Lock(), []

    def told(future, key, name, number):
        error = future.exception()
        history.sent(stream, name, number, ok=error is None)
        if error is None:
            return
        history.error(stream, error)
        if stream == "ordered":
            with lock:
                # The first error of a life; the messages after it fail with it.
                if name == f"p{key}-{lives[key]}":
                    lives[key] += 1
                    # https://cloud.google.com/pubsub/docs/publisher#retry_ordering
                    publisher.resume_publish(topic, f"k{key}")

    for number in history.numbers():
        key = number % KEYS
        with lock:
            name = f"p{key}-{lives[key]}"
        ordering = {"ordering_key": f"k{key}"} if stream == "ordered" else {}
        future = publisher.publish(topic, f"{name}:{number}".encode(), **ordering)
        future.add_done_callback(lambda future, key=key, name=name, number=number: told(future, key, name, number))
        flying = [each for each in flying if not each.done()] + [future]
    for future in flying:
        try:
            future.result(120)
        except (GoogleAPICallError, RetryError, RuntimeError):
            pass
    sent_all[stream].set()


def pull(stream):
    arrived = threading.Event()

    def callback(message):
        arrived.set()
        history.got(stream, "a", message.ordering_key or "all", message.message_id, message.data.decode())
        message.ack()

    subscriber, flow = subscriber_client(), pubsub_v1.types.FlowControl(max_duration_per_lease_extension=LEASE_SECONDS)
    while True:
        # The library opens its stream again by itself after errors that it documents as retriable.
        future = subscriber.subscribe(f"{PROJECT}/subscriptions/{stream}", callback, flow)
        while not future.done():
            is_last = sent_all[stream].is_set()
            arrived.clear()
            if not arrived.wait(QUIET_SECONDS) and is_last:
                future.cancel()
                future.result()
                return
        history.error(stream, future.exception() or "the stream ended")


def main():
    publisher, subscriber = publisher_client(False), subscriber_client()
    for stream in sent_all:
        topic, subscription = f"{PROJECT}/topics/{stream}", f"{PROJECT}/subscriptions/{stream}"
        try:
            publisher.create_topic(name=topic)
        except AlreadyExists as error:
            # The answer to an earlier attempt of the library was lost.
            history.error(stream, error)
        subscriber.create_subscription(request={
            "name": subscription, "topic": topic, "ack_deadline_seconds": LEASE_SECONDS, "enable_message_ordering": stream == "ordered"})
    history.stream("plain")
    history.stream("ordered", ordered=True)
    history.run(*[lambda stream=stream, of=of: of(stream) for stream in sent_all for of in (publish, pull)])


main()
