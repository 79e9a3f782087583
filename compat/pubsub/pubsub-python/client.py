"""Driver of google-cloud-pubsub: any call by its name in the service, the publisher and the subscriber."""

import base64
import itertools
import json
import os
import pathlib
import queue
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import grpc
from google import pubsub_v1 as generated
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.iam.v1 import iam_policy_pb2
from google.protobuf import json_format
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport

import driver

LIMIT_SECONDS = 50
# Request types of calls. The type of all other calls is their name with `Request`.
REQUESTS = {"CreateTopic": "Topic", "CreateSubscription": "Subscription"}


def named(error):
    """Adds Google's name of a status to an error."""
    if isinstance(error, GoogleAPICallError) and error.grpc_status_code:
        error.names = [error.grpc_status_code.name]
    if isinstance(error, AcknowledgeError):
        error.names = [error.error_code.name]
    return error


def snake(name):
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def plain(message):
    if message is None:
        return {}
    if hasattr(message, "DESCRIPTOR"):
        return json_format.MessageToDict(message)
    return json_format.MessageToDict(type(message).pb(message))


def request(name, values):
    if name.endswith(("IamPolicy", "IamPermissions")):
        return json_format.ParseDict(values, getattr(iam_policy_pb2, f"{name}Request")())
    return getattr(generated, REQUESTS.get(name, f"{name}Request")).from_json(json.dumps(values))


class Client:
    def __init__(self):
        self.publisher, self.subscriber, self.ordered = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient(), None
        # The client of this service is the only one that ignores the variable for an emulator.
        channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        self.schemas = generated.SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))
        self.streams = {}

    def call(self, name, values):
        try:
            own = getattr(self, f"on_{name}", None)
            return own(**values) if own else self.unary(name, values)
        except Exception as error:
            raise named(error)

    def unary(self, name, values):
        owners = [
            (self.publisher, generated.PublisherClient), (self.subscriber, generated.SubscriberClient),
            (self.schemas, generated.SchemaServiceClient),
        ]
        for owner, kind in owners:
            if method := getattr(kind, snake(name), None):
                done = method(owner, request=request(name, values), retry=None, timeout=LIMIT_SECONDS)
                if name.startswith("List"):
                    return {"items": [each if isinstance(each, str) else plain(each) for each in done]}
                return plain(done)
        raise driver.Missing(f"the library has no {name}")

    def on_publish(self, topic, messages, ordered=False):
        publisher = self.publisher
        if ordered:
            options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
            self.ordered = self.ordered or pubsub_v1.PublisherClient(publisher_options=options)
            publisher = self.ordered
        futures = [
            publisher.publish(
                topic, base64.b64decode(m.get("data", "")), ordering_key=m.get("orderingKey", ""), **m.get("attributes", {})
            )
            for m in messages
        ]
        return {"messageIds": [future.result(LIMIT_SECONDS) for future in futures]}

    def on_open(self, subscription, max_messages=1000):
        stream, name = Stream(), str(len(self.streams))
        flow = pubsub_v1.types.FlowControl(max_messages=max_messages)
        stream.future = self.subscriber.subscribe(subscription, stream.arrived.put, flow_control=flow)
        self.streams[name] = stream
        return {"stream": name}

    def on_take(self, stream, count, wait_ms):
        stream, end, found = self.streams[stream], time.monotonic() + wait_ms / 1000, []
        while len(found) < count:
            try:
                message = stream.arrived.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                break
            handle = str(next(stream.handles))
            stream.held[handle] = message
            one = {
                "handle": handle, "data": base64.b64encode(message.data).decode(), "attributes": dict(message.attributes),
                "messageId": message.message_id, "orderingKey": message.ordering_key,
            }
            if message.delivery_attempt:
                one["deliveryAttempt"] = message.delivery_attempt
            found.append(one)
        if stream.future.done() and not found:
            stream.future.result(0)
        return {"messages": found}

    def on_settle(self, stream, handle, how):
        stream = self.streams[stream]
        message = stream.held.pop(handle)
        if how in ("ack", "nack"):
            getattr(message, how)()
            return {}
        method = {"ack_confirmed": message.ack_with_response, "nack_confirmed": message.nack_with_response}[how]
        return {"result": method().result(LIMIT_SECONDS).name}

    def on_close(self, stream):
        stream = self.streams[stream]
        stream.future.cancel()
        # An error that ended the stream was reported earlier.
        stream.future.exception(LIMIT_SECONDS)
        return {}


class Stream:
    """Subscriber, with its arrived messages that are not taken, and its taken messages that are not settled."""

    def __init__(self):
        self.arrived, self.held, self.handles, self.future = queue.Queue(), {}, itertools.count(), None


driver.main("pubsub-python", generated.__version__, Client().call)
