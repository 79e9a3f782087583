#!/usr/bin/env python3
"""Client google-cloud-pubsub at two sites: a subscription to a copy, and messages that may not be published to it."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

near, far = sys.argv[1:]
os.environ["PUBSUB_EMULATOR_HOST"] = far

from google import pubsub_v1 as generated
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud import pubsub_v1

from checks import same, until
from sites import Seen, expected, in_background, quickly, serve, values

PROJECT = "projects/thalweg"
TOPICS = ["orders", "trimmed"]
# Leases of the library. By default they take a minute, after which messages that were in flight arrive again.
LEASE_SECONDS = 10
seen = Seen()
publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()


def is_early(body):
    """Whether a record may have been copied before the subscription was created, which begins after such records."""
    return body.startswith("trimmed:") and int(body.split(":")[1]) < 20


def pull(topic):
    def callback(message):
        body = message.data.decode()
        if not is_early(body):
            seen.add(topic, body)
        message.ack()

    flow = pubsub_v1.types.FlowControl(max_duration_per_lease_extension=LEASE_SECONDS)

    def work():
        while True:
            # The library opens its stream again by itself after errors that it documents as retriable.
            future = subscriber.subscribe(f"{PROJECT}/subscriptions/{topic}", callback, flow)
            try:
                future.result()
            except Exception as error:
                print(f"note a stream ended: {error}", flush=True)

    return work


def ready():
    for topic in TOPICS:
        subscriber.create_subscription(request={
            "name": f"{PROJECT}/subscriptions/{topic}", "topic": f"{PROJECT}/topics/a.{topic}",
            "ack_deadline_seconds": LEASE_SECONDS})
        in_background(pull(topic))


def wanted(path):
    lanes = {}
    for (copy, _), bodies in values(expected(path), *TOPICS).items():
        lanes.setdefault(copy.removeprefix("a."), []).extend(body for body in bodies if not is_early(body))
    return lanes


def steady(path):
    check(path, once=True)


def cut(path):
    # Acknowledgements have no answer: those of a site that was killed may be lost.
    check(path, once=False)


def check(path, once):
    seen.check(wanted(path), ordered=False, once=once)


def refused():
    quickly(
        "Publish", lambda: publisher.publish(f"{PROJECT}/topics/a.orders", b"at-b").result(30),
        (GoogleAPICallError, RetryError))


def writable():
    publisher.publish(f"{PROJECT}/topics/a.orders", b"pubsub-python at b").result(30)
    until("the message", lambda: "pubsub-python at b" in seen.lanes()["orders"])


serve("pubsub-python", generated.__version__, ready=ready, steady=steady, cut=cut, refused=refused, writable=writable)
