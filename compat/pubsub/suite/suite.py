"""Scenarios for all Google Pub/Sub clients, which run through drivers: see drivers.py.

Calls have the names of the service, and values in the JSON of its messages. The result of a list has all pages, as
`items`. These calls use the library's publisher and subscriber, which a driver without a library lacks:

    publish {topic, messages, ordered}             {messageIds}    through the publisher, which batches
    open {subscription, max_messages}              {stream}        a subscriber that holds at most `max_messages`
    take {stream, count, wait_ms}                  {messages}      at most `count` messages, each with a `handle`
    settle {stream, handle, how}                   {result}        ack, nack, ack_confirmed, nack_confirmed
    close {stream}
"""

import base64
import contextlib
import http.server
import json
import pathlib
import queue
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import drivers
from checks import fail, same, until
from drivers import Refused

PROJECT = "compat-project"
# Time without messages after which no more are expected.
QUIET_MS = 1000
WAIT_MS = 20_000
# Libraries set a deadline of one minute for their streams, independent of the subscription's deadline.
LEASE_SECONDS = 150
MIB = 1024 * 1024


def env(address):
    return {"PUBSUB_EMULATOR_HOST": address, "PUBSUB_PROJECT_ID": PROJECT, "GOOGLE_CLOUD_PROJECT": PROJECT,
            "GOOGLE_APPLICATION_CREDENTIALS": "", "NODE_NO_WARNINGS": "1"}


class Session(drivers.Session):
    project = f"projects/{PROJECT}"

    def topic_name(self, what="topic"):
        return f"{self.project}/topics/{self.name(what)}"

    def subscription_name(self, what="sub"):
        return f"{self.project}/subscriptions/{self.name(what)}"

    def topic(self, what="topic", **settings):
        return self.call("CreateTopic", name=self.topic_name(what), **settings)["name"]

    def subscription(self, topic, what="sub", **settings):
        """Creates a subscription with a deadline of ten minutes, so that a message is redelivered only on request."""
        settings = {"ackDeadlineSeconds": 600} | settings
        return self.call("CreateSubscription", name=self.subscription_name(what), topic=topic, **settings)["name"]

    def both(self, **settings):
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    def publish(self, topic, *messages):
        """Publishes messages in one call, and returns their ids."""
        return self.call("Publish", topic=topic, messages=list(messages))["messageIds"]

    def pull(self, subscription, count=100):
        """Returns the messages of one call."""
        return self.call("Pull", subscription=subscription, maxMessages=count).get("receivedMessages") or []

    def get(self, subscription, count):
        """Pulls until `count` messages have arrived, with as many calls as necessary."""
        found = []
        until(
            f"{count} messages",
            lambda: len(found) >= count or found.extend(self.pull(subscription, count - len(found))) or len(found) >= count,
        )
        return found

    def nothing(self, subscription):
        """Returns the texts of the messages that are available immediately, which should be none."""
        found = self.call("Pull", subscription=subscription, maxMessages=100, returnImmediately=True)
        return texts(found.get("receivedMessages") or [])

    def ack(self, subscription, *received):
        self.call("Acknowledge", subscription=subscription, ackIds=[m["ackId"] for m in received])

    def deadline(self, subscription, seconds, *received):
        ids = [m["ackId"] for m in received]
        self.call("ModifyAckDeadline", subscription=subscription, ackIds=ids, ackDeadlineSeconds=seconds)

    def refused(self, names, name, /, **values):
        try:
            self.call(name, **values)
        except Refused as error:
            if not error.names & set(names.split("|")):
                fail(f"refused with {error}, not {names}")
            return
        fail(f"{name} was not refused, but should be: {names}")

    @contextlib.contextmanager
    def open(self, subscription, **settings):
        stream = Stream(self, self.call("open", subscription=subscription, **settings)["stream"])
        self.called.add("StreamingPull")
        try:
            yield stream
        finally:
            stream.close()


class Stream:
    def __init__(self, session, name):
        self.session, self.name, self.is_open = session, name, True

    def take(self, count, wait_ms=WAIT_MS):
        """Takes at most `count` messages that arrive within `wait_ms`."""
        return self.session.call("take", stream=self.name, count=count, wait_ms=wait_ms)["messages"]

    def more(self):
        return texts(self.take(1, QUIET_MS))

    def settle(self, message, how="ack"):
        return self.session.call("settle", stream=self.name, handle=message["handle"], how=how).get("result")

    def close(self):
        if self.is_open:
            self.is_open = False
            self.session.call("close", stream=self.name)


def b64(data):
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def message(text, key=None, **attributes):
    return {"data": b64(text)} | ({"orderingKey": key} if key else {}) | ({"attributes": attributes} if attributes else {})


def numbered(count, tag="message", key=None):
    return [message(f"{tag}-{i}", key) for i in range(count)]


def texts(received):
    """Returns the texts of pulled messages, or of messages from a stream."""
    return [base64.b64decode(m.get("message", m).get("data", "")).decode() for m in received]


def stamp(seconds):
    """Returns the time `seconds` from now, in the form of JSON."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


SCENARIOS = {}


def scenario(run):
    SCENARIOS[run.__name__] = run
    return run


# Topics


@scenario
def topics(c):
    name = c.topic_name()
    same(c.call("CreateTopic", name=name, labels={"team": "water"})["name"], name, "its name")
    same(c.call("GetTopic", topic=name).get("labels"), {"team": "water"}, "its labels")
    c.refused("ALREADY_EXISTS", "CreateTopic", name=name)
    listed = lambda: name in [each["name"] for each in c.call("ListTopics", project=c.project)["items"]]
    same(listed(), True, "presence in the list")
    c.call("DeleteTopic", topic=name)
    same(listed(), False, "presence in the list after the deletion")
    for call in ("GetTopic", "DeleteTopic"):
        c.refused("NOT_FOUND", call, topic=name)
    c.refused("NOT_FOUND", "Publish", topic=name, messages=[message("x")])


@scenario
def names_refused(c):
    for name in ["ab", "1abc", "goog-mine", "a" * 256, "has space"]:
        c.refused("INVALID_ARGUMENT", "CreateTopic", name=f"{c.project}/topics/{name}")
    topic = c.topic()
    for name in ["ab", "goog-mine", "has space"]:
        c.refused("INVALID_ARGUMENT", "CreateSubscription", name=f"{c.project}/subscriptions/{name}", topic=topic)


@scenario
def names_taken(c):
    name = c.topic("a.b_c~d+e%25-F")
    same(c.call("GetTopic", topic=name)["name"], name, "its name")
    subscription = c.subscription(name, "a.b_c~d+e%25-F")
    same(c.call("GetSubscription", subscription=subscription)["name"], subscription, "the other's name")


@scenario
def topic_labels(c):
    name = c.topic(labels={"a": "1"})
    change = {"name": name, "labels": {"b": "2"}, "messageRetentionDuration": "3600s"}
    c.call("UpdateTopic", topic=change, updateMask="labels")
    found = c.call("GetTopic", topic=name)
    same((found.get("labels"), found.get("messageRetentionDuration")), ({"b": "2"}, None), "labels and retention")


@scenario
def topic_retention(c):
    name = c.topic(labels={"a": "1"})
    change = {"name": name, "messageRetentionDuration": "3600s"}
    c.call("UpdateTopic", topic=change, updateMask="messageRetentionDuration")
    found = c.call("GetTopic", topic=name)
    same((found["messageRetentionDuration"], found["labels"]), ("3600s", {"a": "1"}), "retention and labels")


@scenario
def topic_update_refused(c):
    name = c.topic()
    c.refused("INVALID_ARGUMENT", "UpdateTopic", topic={"name": name}, updateMask="nonsense")
    change = {"name": c.topic_name(), "messageRetentionDuration": "3600s"}
    c.refused("NOT_FOUND", "UpdateTopic", topic=change, updateMask="messageRetentionDuration")


@scenario
def list_pages(c):
    names = sorted(c.topic() for _ in range(5))
    found = [each["name"] for each in c.call("ListTopics", project=c.project, pageSize=2)["items"]]
    same([name for name in sorted(found) if name in names], names, "topics")
    subscriptions = sorted(c.subscription(names[0]) for _ in range(5))
    same(sorted(c.call("ListTopicSubscriptions", topic=names[0], pageSize=2)["items"]), subscriptions, "subscriptions")


# Subscriptions


@scenario
def subscriptions(c):
    topic, name = c.topic(), c.subscription_name()
    c.call("CreateSubscription", name=name, topic=topic)
    found = c.call("GetSubscription", subscription=name)
    same((found["topic"], found["ackDeadlineSeconds"]), (topic, 10), "topic and deadline")
    same(found["messageRetentionDuration"], "604800s", "its retention")
    c.refused("ALREADY_EXISTS", "CreateSubscription", name=name, topic=topic)
    c.refused("NOT_FOUND", "CreateSubscription", name=c.subscription_name(), topic=c.topic_name())
    listed = [each["name"] for each in c.call("ListSubscriptions", project=c.project)["items"]]
    same(name in listed, True, "presence in the list")
    same(c.call("ListTopicSubscriptions", topic=topic)["items"], [name], "the topic's")
    c.call("DeleteSubscription", subscription=name)
    for call in ("GetSubscription", "DeleteSubscription"):
        c.refused("NOT_FOUND", call, subscription=name)
    c.refused("NOT_FOUND", "Pull", subscription=name, maxMessages=1)


@scenario
def subscription_of_deleted_topic(c):
    topic, name = c.both()
    c.publish(topic, message("before"))
    c.call("DeleteTopic", topic=topic)
    same(c.call("GetSubscription", subscription=name)["topic"], "_deleted-topic_", "its topic")
    same(texts(c.get(name, 1)), ["before"], "the messages of the deleted topic")


@scenario
def subscription_refused(c):
    topic = c.topic()
    for settings in [
        {"ackDeadlineSeconds": 9}, {"ackDeadlineSeconds": 601}, {"messageRetentionDuration": "60s"},
        {"messageRetentionDuration": "2764800s"},
    ]:
        c.refused("INVALID_ARGUMENT", "CreateSubscription", name=c.subscription_name(), topic=topic, **settings)


@scenario
def subscription_policies_refused(c):
    topic = c.topic()
    for settings in [
        {"deadLetterPolicy": {"deadLetterTopic": topic, "maxDeliveryAttempts": 4}},
        {"retryPolicy": {"minimumBackoff": "601s"}}, {"expirationPolicy": {"ttl": "3600s"}},
    ]:
        c.refused("INVALID_ARGUMENT|OUT_OF_RANGE", "CreateSubscription", name=c.subscription_name(), topic=topic, **settings)


@scenario
def subscription_update(c):
    _, name = c.both(ackDeadlineSeconds=20, labels={"a": "1"})
    change = {"name": name, "ackDeadlineSeconds": 77, "labels": {"b": "2"}}
    c.call("UpdateSubscription", subscription=change, updateMask="ackDeadlineSeconds")
    found = c.call("GetSubscription", subscription=name)
    same((found["ackDeadlineSeconds"], found["labels"]), (77, {"a": "1"}), "deadline and labels")
    for mask in ("nonsense", "topic", "filter"):
        c.refused("INVALID_ARGUMENT", "UpdateSubscription", subscription=change, updateMask=mask)


@scenario
def subscription_labels(c):
    _, name = c.both(ackDeadlineSeconds=20, labels={"a": "1"})
    c.call("UpdateSubscription", subscription={"name": name, "labels": {"b": "2"}}, updateMask="labels")
    found = c.call("GetSubscription", subscription=name)
    same((found["ackDeadlineSeconds"], found["labels"]), (20, {"b": "2"}), "deadline and labels")


@scenario
def subscription_settings(c):
    topic, dead = c.topic(), c.topic("dead")
    settings = {
        "messageRetentionDuration": "1200s", "retainAckedMessages": True, "enableMessageOrdering": True,
        "expirationPolicy": {"ttl": "172800s"}, "filter": "attributes:a", "labels": {"a": "1"},
        "deadLetterPolicy": {"deadLetterTopic": dead, "maxDeliveryAttempts": 7},
        "retryPolicy": {"minimumBackoff": "5s", "maximumBackoff": "300s"},
    }
    name = c.subscription(topic, **settings)
    found = c.call("GetSubscription", subscription=name)
    same({key: found.get(key) for key in settings}, settings, "its settings")


@scenario
def detach(c):
    topic, name = c.both()
    c.call("DetachSubscription", subscription=name)
    same(c.call("GetSubscription", subscription=name).get("detached"), True, "the flag detached")
    same(c.call("ListTopicSubscriptions", topic=topic)["items"], [], "the topic's")
    c.refused("FAILED_PRECONDITION", "Pull", subscription=name, maxMessages=1)


# Messages


@scenario
def publish_pull_ack(c):
    topic, name = c.both()
    before = datetime.now(timezone.utc) - timedelta(seconds=2)
    sent = [
        {"data": b64(bytes(range(256))), "attributes": {"größe": "naïve", "empty": "", "b": "<&>"}}, message("wörld"),
        {"attributes": {"only": "attributes"}},
    ]
    ids = c.publish(topic, *sent)
    same(len(set(ids)), 3, "the number of distinct ids")
    found = {m["message"]["messageId"]: m for m in c.get(name, 3)}
    for i, one in zip(ids, sent):
        got = found[i]["message"]
        same((got.get("data", ""), got.get("attributes") or {}), (one.get("data", ""), one.get("attributes", {})), "a message")
        at = datetime.fromisoformat(got["publishTime"].replace("Z", "+00:00")[:26].split("+")[0].rstrip("Z") + "+00:00")
        same(before <= at <= datetime.now(timezone.utc) + timedelta(seconds=2), True, f"the closeness of {at} to the current time")
    c.ack(name, *found.values())
    same(c.nothing(name), [], "the remaining messages")


@scenario
def publish_refused(c):
    topic = c.topic()
    c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=[{}])
    c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=[])


@scenario
def publish_limits(c):
    topic = c.topic()
    for one in [
        {"data": b64("x"), "attributes": {f"n{i}": "x" for i in range(101)}}, {"data": b64("x"), "attributes": {"k" * 257: "x"}},
        {"data": b64("x"), "attributes": {"k": "x" * 1025}}, {"data": b64("x"), "orderingKey": "k" * 1025},
    ]:
        c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=[one])
    c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=numbered(1001))


@scenario
def publish_thousand(c):
    topic, name = c.both()
    same(len(set(c.publish(topic, *numbered(1000)))), 1000, "the number of distinct ids")
    same(sorted(texts(c.get(name, 1000))), sorted(texts(numbered(1000))), "the received messages")


@scenario
def pull_3_mib(c):
    topic, name = c.both()
    data = b64(bytes(i * (i // 1000) % 251 for i in range(3 * MIB)))
    c.publish(topic, {"data": data})
    same(c.get(name, 1)[0]["message"]["data"] == data, True, "equality with the sent message")


@scenario
def publish_9_mib(c):
    """Publishes 9 MiB without a pull, because libraries accept only 4 MiB from an emulator."""
    same(len(c.publish(c.topic(), {"data": b64(bytes(9 * MIB))})), 1, "the number of ids")


@scenario
def fan_out(c):
    topic = c.topic()
    names = [c.subscription(topic) for _ in range(3)]
    c.publish(topic, *numbered(10))
    for name in names:
        found = c.get(name, 10)
        same(sorted(texts(found)), texts(numbered(10)), "the messages of one subscription")
        c.ack(name, *found)
    late = c.subscription(topic)
    c.publish(topic, message("late"))
    same(texts(c.get(late, 1)), ["late"], "the messages of the late subscription")


@scenario
def pull_empty(c):
    _, name = c.both()
    same(c.nothing(name), [], "the available messages")


@scenario
def pull_waits(c):
    topic, name = c.both()
    with c.meanwhile(lambda other: other.get(name, 1)) as waits:
        c.publish(topic, message("awaited"))
    same(texts(waits.result()), ["awaited"], "the messages of the waiting call")


@scenario
def given_back(c):
    topic, name = c.both()
    c.publish(topic, message("again"))
    first = c.get(name, 1)
    same(c.nothing(name), [], "the available messages during the lease")
    c.deadline(name, 0, *first)
    again = c.get(name, 1)
    same(again[0]["message"]["messageId"], first[0]["message"]["messageId"], "its id")
    c.ack(name, *again)
    same(c.nothing(name), [], "the remaining messages")


@scenario
def deadline_passes(c):
    topic, name = c.both(ackDeadlineSeconds=10)
    c.publish(topic, message("again"))
    c.deadline(name, 1, *c.get(name, 1))
    same(texts(c.get(name, 1)), ["again"], "the messages after the deadline")


@scenario
def deadline_refused(c):
    topic, name = c.both()
    c.publish(topic, message("x"))
    ids = [m["ackId"] for m in c.get(name, 1)]
    for seconds in (601, -1):
        c.refused("INVALID_ARGUMENT", "ModifyAckDeadline", subscription=name, ackIds=ids, ackDeadlineSeconds=seconds)
    c.refused("INVALID_ARGUMENT", "Acknowledge", subscription=name, ackIds=[])
    c.refused("INVALID_ARGUMENT", "Pull", subscription=name, maxMessages=0)


@scenario
def late_ack(c):
    """Checks that without exactly-once delivery a late or repeated acknowledgement is not an error."""
    topic, name = c.both()
    c.publish(topic, message("x"))
    found = c.get(name, 1)
    c.deadline(name, 0, *found)
    c.ack(name, *found)
    c.ack(name, *found)


# Streams


@scenario
def stream(c):
    topic, name = c.both()
    sent = numbered(500)
    same(len(set(c.call("publish", topic=topic, messages=sent)["messageIds"])), 500, "the number of distinct ids")
    found = []
    with c.open(name) as stream:
        while len(found) < len(sent):
            some = stream.take(100)
            same(some != [], True, f"the arrival of more than {len(found)} messages")
            for one in some:
                stream.settle(one)
            found += texts(some)
    same(sorted(found), sorted(texts(sent)), "the received messages")
    until("all are acknowledged", lambda: c.nothing(name) == [])


@scenario
def stream_attributes(c):
    topic, name = c.both()
    [sent] = c.call("publish", topic=topic, messages=[message("x", größe="naïve", empty="")])["messageIds"]
    with c.open(name) as stream:
        [found] = stream.take(1)
        same((found["messageId"], found["attributes"]), (sent, {"größe": "naïve", "empty": ""}), "id and attributes")
        stream.settle(found)


@scenario
def stream_waits(c):
    topic, name = c.both()
    with c.open(name) as stream:
        for text in ("one", "two"):
            c.publish(topic, message(text))
            [found] = stream.take(1)
            same(texts([found]), [text], "the received message")
            stream.settle(found)


@scenario
def stream_flow_control(c):
    topic, name = c.both()
    c.publish(topic, *numbered(20))
    with c.open(name, max_messages=5) as stream:
        held = stream.take(5)
        same(len(held), 5, "the number of received messages")
        same(stream.more(), [], "the messages beyond the limit")
        found = texts(held)
        while held:
            # The Python library resumes reading when it holds less than 0.8 of its limit.
            for _ in held[-2:]:
                stream.settle(held.pop())
            taken = stream.take(min(2, 20 - len(found))) if len(found) < 20 else []
            held += taken
            found += texts(taken)
    same(sorted(found), sorted(texts(numbered(20))), "the received messages")


@scenario
def stream_nack(c):
    topic, name = c.both()
    c.publish(topic, message("again"))
    with c.open(name) as stream:
        [first] = stream.take(1)
        stream.settle(first, "nack")
        [again] = stream.take(1)
        same(again["messageId"], first["messageId"], "its id")
        stream.settle(again)
        same(stream.more(), [], "the further messages")


@scenario
def stream_shared(c):
    """Checks that two streams of one subscription share its messages."""
    topic, name = c.both()
    other = c.other()
    with c.open(name, max_messages=10) as one, other.open(name, max_messages=10) as two:
        c.publish(topic, *numbered(100))
        found = []

        def more():
            for stream in (one, two):
                some = stream.take(10, 100)
                for each in some:
                    stream.settle(each)
                found.extend(texts(some))
            return len(found) >= 100

        until("100 messages", more)
        same(sorted(found), sorted(texts(numbered(100))), "the messages of both streams")


@scenario
def stream_lost(c):
    """Checks that messages of a disconnected subscriber are redelivered to another after the deadline."""
    topic, name = c.both(ackDeadlineSeconds=10)
    c.publish(topic, message("held"))
    gone = c.other()
    stream = Stream(gone, gone.call("open", subscription=name)["stream"])
    same(len(stream.take(1)), 1, "the number of received messages")
    gone.driver.close()
    with c.open(name) as stream:
        [found] = until("the message is redelivered", lambda: stream.take(1, WAIT_MS), LEASE_SECONDS)
        same(texts([found]), ["held"], "the redelivered message")
        stream.settle(found)


@scenario
def stream_missing(c):
    with c.other().open(c.subscription_name()) as stream:
        try:
            stream.take(1, 5000)
        except Refused as error:
            same("NOT_FOUND" in error.names, True, f"presence of NOT_FOUND in {error}")
        else:
            fail("the stream of a missing subscription was not refused")


# Order


@scenario
def ordering(c):
    topic, name = c.both(enableMessageOrdering=True)
    keys = [f"key-{i}" for i in range(5)]
    sent = [one for i in range(20) for one in (message(f"{key}-{i}", key) for key in keys)]
    c.call("publish", topic=topic, messages=sent, ordered=True)
    found = []
    with c.open(name) as stream:
        while len(found) < len(sent):
            some = stream.take(1)
            same(some != [], True, f"the arrival of more than {len(found)} messages")
            stream.settle(some[0])
            found += some
    for key in keys:
        of_key = [m for m in found if m["orderingKey"] == key]
        same(texts(of_key), [f"{key}-{i}" for i in range(20)], f"the messages of {key}")


@scenario
def ordering_given_back(c):
    """Checks that all later messages of a key are redelivered after a redelivered message."""
    topic, name = c.both(enableMessageOrdering=True)
    c.call("publish", topic=topic, messages=numbered(5, key="k"), ordered=True)
    with c.open(name) as stream:
        [first] = stream.take(1)
        stream.settle(first, "nack")
        found = []
        # Messages that were already in flight may arrive before.
        while some := stream.take(1, 5 * QUIET_MS if set(found) >= set(texts(numbered(5))) else WAIT_MS):
            stream.settle(some[0])
            found += texts(some)
        same(set(found), set(texts(numbered(5))), "the received messages")
        behind = found[len(found) - found[::-1].index("message-0") - 1 :]
        same(behind, sorted(behind), "the messages after the last redelivery")


@scenario
def ordering_pull(c):
    topic, name = c.both(enableMessageOrdering=True)
    c.publish(topic, *numbered(3, "a", "a"), *numbered(2, "b", "b"))
    found = c.get(name, 5)
    for key in "ab":
        of_key = [m for m in found if m["message"]["orderingKey"] == key]
        same(texts(of_key), texts(numbered(len(of_key), key)), f"the messages of {key}")
        c.ack(name, *of_key)
    same(c.nothing(name), [], "the remaining messages")


# Exactly once


@scenario
def exactly_once(c):
    topic, name = c.both(enableExactlyOnceDelivery=True, ackDeadlineSeconds=60)
    same(c.call("GetSubscription", subscription=name).get("enableExactlyOnceDelivery"), True, "the flag for exactly-once delivery")
    c.publish(topic, *numbered(10))
    with c.open(name) as stream:
        found = []
        while len(found) < 10:
            [one] = stream.take(1)
            same(stream.settle(one, "ack_confirmed"), "SUCCESS", "the result of an acknowledgement")
            found += texts([one])
        same(sorted(found), texts(numbered(10)), "the received messages")
        same(stream.more(), [], "the further messages")


@scenario
def exactly_once_refused(c):
    topic, name = c.both(enableExactlyOnceDelivery=True)
    c.publish(topic, message("x"))
    first = c.get(name, 1)
    c.deadline(name, 0, *first)
    again = c.get(name, 1)
    same(again[0]["ackId"] == first[0]["ackId"], False, "equality of the ids of both deliveries")
    c.refused("FAILED_PRECONDITION|INVALID_ARGUMENT", "Acknowledge", subscription=name, ackIds=[first[0]["ackId"]])
    c.ack(name, *again)
    c.refused("FAILED_PRECONDITION|INVALID_ARGUMENT", "Acknowledge", subscription=name, ackIds=[again[0]["ackId"]])


# Filters


FILTERED = [{}, {"lang": "en"}, {"lang": "de"}, {"lang": "de", "region": "north-1"}, {"region": "south"}, {"a b": "x"}]


def filtered(text, *expected):
    def run(c):
        topic = c.topic()
        name = c.subscription(topic, filter=text)
        same(c.call("GetSubscription", subscription=name)["filter"], text, "its filter")
        c.publish(topic, *(message(str(i), **each) for i, each in enumerate(FILTERED)))
        same(sorted(texts(c.get(name, len(expected)))), [str(i) for i in expected], f"the messages that match {text}")
        same(c.nothing(name), [], "the further messages")

    return run


SCENARIOS |= {
    "filter_has": filtered("attributes:lang", 1, 2, 3),
    "filter_equals": filtered('attributes.lang = "de"', 2, 3),
    "filter_differs": filtered('attributes.lang != "de"', 0, 1, 4, 5),
    "filter_prefix": filtered('hasPrefix(attributes.region, "north")', 3),
    "filter_and_not": filtered('attributes:lang AND NOT attributes.region = "north-1" AND -attributes.lang = "en"', 2),
    "filter_or": filtered('(attributes.lang = "en" OR attributes:region) AND NOT hasPrefix(attributes.region, "so")', 1, 3),
    "filter_quoted": filtered('attributes:"a b"', 5),
}


@scenario
def filter_refused(c):
    topic = c.topic()
    for text in [
        "nonsense", "attributes.a", 'attributes.a = b', 'attributes.a = "b" AND attributes:c OR attributes:d',
        'attributes.a == "b"', "(attributes:a", 'data = "x"', "attributes:" + "a" * 257,
    ]:
        c.refused("INVALID_ARGUMENT", "CreateSubscription", name=c.subscription_name(), topic=topic, filter=text)


# Dead letters and retries


@scenario
def dead_letter(c):
    topic, dead = c.topic(), c.topic("dead")
    letters = c.subscription(dead)
    name = c.subscription(topic, deadLetterPolicy={"deadLetterTopic": dead, "maxDeliveryAttempts": 5})
    c.publish(topic, message("poison", kind="bad"))
    for attempt in range(1, 6):
        [found] = c.get(name, 1)
        same(found.get("deliveryAttempt"), attempt, "the attempt")
        c.deadline(name, 0, found)
    [found] = c.get(letters, 1)
    same(texts([found]), ["poison"], "the dead letter")
    attributes = found["message"]["attributes"]
    same(attributes["kind"], "bad", "its own attribute")
    same(attributes["CloudPubSubDeadLetterSourceSubscription"], name.rsplit("/", 1)[-1], "the source subscription")
    same(attributes["CloudPubSubDeadLetterSourceDeliveryCount"], "5", "the number of deliveries")
    same(c.nothing(name), [], "the remaining messages")


@scenario
def delivery_attempt_of_streams(c):
    topic, dead = c.topic(), c.topic("dead")
    name = c.subscription(topic, deadLetterPolicy={"deadLetterTopic": dead, "maxDeliveryAttempts": 10})
    c.publish(topic, message("x"))
    with c.open(name) as stream:
        for attempt in (1, 2, 3):
            [found] = stream.take(1)
            same(found.get("deliveryAttempt"), attempt, "the attempt")
            stream.settle(found, "nack" if attempt < 3 else "ack")


@scenario
def retry_policy(c):
    topic = c.topic()
    name = c.subscription(topic, retryPolicy={"minimumBackoff": "2s", "maximumBackoff": "3s"})
    c.publish(topic, message("x"))
    first = c.get(name, 1)
    begin = time.monotonic()
    c.deadline(name, 0, *first)
    c.get(name, 1)
    same(time.monotonic() - begin > 1.5, True, "a redelivery after the minimum backoff")


# Seek


@scenario
def seek_time(c):
    topic, name = c.both(retainAckedMessages=True)
    c.publish(topic, *numbered(3))
    c.ack(name, *c.get(name, 3))
    same(c.nothing(name), [], "the available messages")
    c.call("Seek", subscription=name, time=stamp(-3600))
    found = c.get(name, 3)
    same(sorted(texts(found)), texts(numbered(3)), "the redelivered messages")
    c.call("Seek", subscription=name, time=stamp(3600))
    until("no message is available", lambda: c.nothing(name) == [])


@scenario
def snapshot(c):
    topic, name = c.both()
    c.publish(topic, *numbered(4))
    found = c.get(name, 4)
    c.ack(name, *(m for m in found if texts([m]) == ["message-0"]))
    snapshot = f"{c.project}/snapshots/{c.name('snapshot')}"
    made = c.call("CreateSnapshot", name=snapshot, subscription=name)
    same((made["name"], made["topic"]), (snapshot, topic), "name and topic")
    c.refused("ALREADY_EXISTS", "CreateSnapshot", name=snapshot, subscription=name)
    c.ack(name, *(m for m in found if texts([m]) != ["message-0"]))
    c.call("Seek", subscription=name, snapshot=snapshot)
    same(sorted(texts(c.get(name, 3))), ["message-1", "message-2", "message-3"], "the redelivered messages")
    listed = lambda: snapshot in [each["name"] for each in c.call("ListSnapshots", project=c.project)["items"]]
    same((listed(), c.call("ListTopicSnapshots", topic=topic)["items"]), (True, [snapshot]), "the lists")
    c.call("DeleteSnapshot", snapshot=snapshot)
    same(listed(), False, "presence in the list after the deletion")
    c.refused("NOT_FOUND", "Seek", subscription=name, snapshot=snapshot)


@scenario
def snapshot_labels(c):
    _, name = c.both()
    snapshot = f"{c.project}/snapshots/{c.name('snapshot')}"
    c.call("CreateSnapshot", name=snapshot, subscription=name, labels={"a": "1"})
    c.call("UpdateSnapshot", snapshot={"name": snapshot, "labels": {"b": "2"}}, updateMask="labels")
    same(c.call("GetSnapshot", snapshot=snapshot)["labels"], {"b": "2"}, "its labels")
    c.call("DeleteSnapshot", snapshot=snapshot)


# Push


class Endpoint:
    """Endpoint for pushed messages. It answers with the given statuses, then with 204."""

    def __init__(self, *statuses):
        self.requests, waiting = queue.Queue(), list(statuses)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):
                body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
                handler.send_response(waiting.pop(0) if waiting else 204)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                self.requests.put((handler.headers, body))

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/push"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def next(self):
        try:
            return self.requests.get(timeout=WAIT_MS / 1000)
        except queue.Empty:
            fail("nothing was pushed")


@scenario
def push(c):
    with Endpoint() as endpoint:
        topic = c.topic()
        name = c.subscription(topic, pushConfig={"pushEndpoint": endpoint.url})
        [sent] = c.publish(topic, message("pushed", kind="good"))
        headers, body = endpoint.next()
        found = json.loads(body)
        same(found["subscription"], name, "the subscription")
        same(found["message"]["messageId"], sent, "the id")
        same((found["message"]["data"], found["message"]["attributes"]), (b64("pushed"), {"kind": "good"}), "the message")
        same(headers["Content-Type"].split(";")[0], "application/json", "the type")


@scenario
def push_again(c):
    with Endpoint(500, 429) as endpoint:
        topic = c.topic()
        c.subscription(topic, pushConfig={"pushEndpoint": endpoint.url})
        c.publish(topic, message("pushed"))
        same(len({json.loads(endpoint.next()[1])["message"]["messageId"] for _ in range(3)}), 1, "the number of distinct messages")


@scenario
def push_unwrapped(c):
    with Endpoint() as endpoint:
        topic = c.topic()
        c.subscription(topic, pushConfig={"pushEndpoint": endpoint.url, "noWrapper": {"writeMetadata": True}})
        c.publish(topic, message("as it is", kind="good"))
        headers, body = endpoint.next()
        same(body, b"as it is", "the body")
        found = {name.lower(): value for name, value in headers.items()}
        same(found.get("x-goog-pubsub-subscription-name", "").split("/")[0], "projects", "the subscription's header")
        same(found.get("kind"), "good", "the attribute's header")


@scenario
def push_to_pull(c):
    with Endpoint() as endpoint:
        topic, name = c.both()
        c.call("ModifyPushConfig", subscription=name, pushConfig={"pushEndpoint": endpoint.url})
        c.publish(topic, message("pushed"))
        same(json.loads(endpoint.next()[1])["message"]["data"], b64("pushed"), "the pushed message")
        c.call("ModifyPushConfig", subscription=name, pushConfig={})
        c.publish(topic, message("pulled"))
        same(texts(c.get(name, 1)), ["pulled"], "the pulled messages")


@scenario
def push_refused(c):
    topic = c.topic()
    for url in ["nonsense", "ftp://127.0.0.1/x"]:
        push = {"pushEndpoint": url}
        c.refused("INVALID_ARGUMENT", "CreateSubscription", name=c.subscription_name(), topic=topic, pushConfig=push)


# Schemas


AVRO = json.dumps({"type": "record", "name": "Reading", "fields": [
    {"name": "place", "type": "string"}, {"name": "height", "type": "int"},
]})
AVRO_MORE = json.dumps({"type": "record", "name": "Reading", "fields": [
    {"name": "place", "type": "string"}, {"name": "height", "type": "int"}, {"name": "by", "type": "string", "default": ""},
]})
PROTO = 'syntax = "proto3"; message Reading { string place = 1; int32 height = 2; }'
GOOD, BAD = b64('{"place": "Rhein", "height": 3}'), b64('{"place": 7}')


def schema(c, definition=AVRO, kind="AVRO"):
    return c.call("CreateSchema", parent=c.project, schemaId=c.name("schema"),
                  schema={"name": "", "type": kind, "definition": definition})["name"]


@scenario
def schemas(c):
    name = schema(c)
    found = c.call("GetSchema", name=name, view="FULL")
    same((found["type"], found["definition"]), ("AVRO", AVRO), "type and definition")
    listed = lambda: name in [each["name"] for each in c.call("ListSchemas", parent=c.project)["items"]]
    same(listed(), True, "presence in the list")
    c.call("ValidateSchema", parent=c.project, schema={"type": "AVRO", "definition": AVRO})
    again = {"parent": c.project, "schemaId": name.rsplit("/", 1)[-1], "schema": {"type": "AVRO", "definition": AVRO}}
    c.refused("ALREADY_EXISTS", "CreateSchema", **again)
    c.call("DeleteSchema", name=name)
    same(listed(), False, "presence in the list after the deletion")
    c.refused("NOT_FOUND", "GetSchema", name=name)


def schema_refused(kind, *definitions):
    def run(c):
        for definition in definitions:
            one = {"type": kind, "definition": definition}
            c.refused("INVALID_ARGUMENT", "ValidateSchema", parent=c.project, schema=one)
            c.refused("INVALID_ARGUMENT", "CreateSchema", parent=c.project, schemaId=c.name("schema"), schema=one)

    return run


def schema_messages(kind, definition, binary):
    """Makes a scenario that validates messages in JSON and binary, with a stored schema and with one in the request."""

    def run(c):
        kept, own = {"name": schema(c, definition, kind)}, {"schema": {"type": kind, "definition": definition}}
        for which in (kept, own):
            for encoding, good, bad in (("JSON", GOOD, BAD), ("BINARY", b64(binary), b64(binary[:4]))):
                validate = {"parent": c.project, "encoding": encoding} | which
                c.call("ValidateMessage", message=good, **validate)
                c.refused("INVALID_ARGUMENT", "ValidateMessage", message=bad, **validate)

    return run


# The binary messages encode a reading of Rhein at 3.
SCENARIOS |= {
    "schema_avro_refused": schema_refused("AVRO", "{", '{"type": "record"}'),
    "schema_protobuf_refused": schema_refused("PROTOCOL_BUFFER", "message {"),
    "schema_avro_messages": schema_messages("AVRO", AVRO, b"\x0aRhein\x06"),
    "schema_protobuf_messages": schema_messages("PROTOCOL_BUFFER", PROTO, b"\x0a\x05Rhein\x10\x03"),
}


@scenario
def schema_of_topic(c):
    topic = c.topic(schemaSettings={"schema": schema(c), "encoding": "JSON"})
    name = c.subscription(topic)
    c.publish(topic, {"data": GOOD})
    c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=[{"data": BAD}])
    [found] = c.get(name, 1)
    same(found["message"]["attributes"]["googclient_schemaencoding"], "JSON", "the attribute with the encoding")
    c.refused("NOT_FOUND", "CreateTopic", name=c.topic_name(),
              schemaSettings={"schema": f"{c.project}/schemas/{c.name('none')}", "encoding": "JSON"})


@scenario
def schema_revisions(c):
    name = schema(c)
    first = c.call("GetSchema", name=name)["revisionId"]
    commit = {"name": name, "type": "AVRO", "definition": AVRO_MORE}
    second = c.call("CommitSchema", name=name, schema=commit)["revisionId"]
    same(first == second, False, "equality of the revisions")
    same(c.call("GetSchema", name=f"{name}@{first}", view="FULL")["definition"], AVRO, "the first")
    same(c.call("GetSchema", name=name, view="FULL")["definition"], AVRO_MORE, "the newest")
    same_text = c.call("CommitSchema", name=name, schema=commit)["revisionId"]
    same(same_text in (first, second), False, "presence of the repeated commit among the old revisions")
    c.call("DeleteSchemaRevision", name=f"{name}@{same_text}")
    listed = [each["revisionId"] for each in c.call("ListSchemaRevisions", name=name)["items"]]
    same(sorted(listed), sorted([first, second]), "the revisions")
    back = c.call("RollbackSchema", name=name, revisionId=first)["revisionId"]
    same(back in (first, second), False, "presence of the rollback among the old revisions")
    same(c.call("GetSchema", name=name, view="FULL")["definition"], AVRO, "the newest after the rollback")
    c.call("DeleteSchemaRevision", name=f"{name}@{second}")
    c.refused("NOT_FOUND", "GetSchema", name=f"{name}@{second}")


# Functions


def udf(name, code):
    return {"javascriptUdf": {"functionName": name, "code": code}}


def enabled(transforms):
    """Returns the enabled functions. The library for Node also returns the fields `enabled` and `disabled` if they are unset."""
    return [{"javascriptUdf": each["javascriptUdf"]} for each in transforms if not each.get("disabled")]


@scenario
def topic_transforms(c):
    code = """function f(message, metadata) {
        if (message.data === "drop") return null;
        if (message.data === "bad") throw new Error("bad");
        message.attributes["seen"] = "yes";
        return {data: message.data.toUpperCase(), attributes: message.attributes};
    }"""
    topic, name = c.both()
    change = {"name": topic, "messageTransforms": [udf("f", code)]}
    c.call("UpdateTopic", topic=change, updateMask="messageTransforms")
    same(enabled(c.call("GetTopic", topic=topic)["messageTransforms"]), [udf("f", code)], "the transforms")
    ids = c.publish(topic, message("a", kind="x"), message("drop"))
    same(len(set(ids)), 2, "ids")
    [found] = c.get(name, 1)
    same((texts([found]), found["message"]["attributes"]), (["A"], {"kind": "x", "seen": "yes"}), "the published message")
    c.refused("INVALID_ARGUMENT", "Publish", topic=topic, messages=[message("b"), message("bad")])
    same(c.nothing(name), [], "the further messages")
    c.refused("INVALID_ARGUMENT", "CreateTopic", name=c.topic_name(), messageTransforms=[udf("f", "function g(")])


@scenario
def subscription_transforms(c):
    code = """function f(message, metadata) {
        if (message.data === "drop") return null;
        return {data: message.data + " " + metadata.message_id};
    }"""
    topic, plain = c.both()
    name = c.subscription(topic, "changed", messageTransforms=[udf("f", code)])
    same(enabled(c.call("GetSubscription", subscription=name)["messageTransforms"]), [udf("f", code)], "the transforms")
    [kept, _] = c.publish(topic, message("a", kind="x"), message("drop"))
    found = c.get(name, 1)
    same((texts(found), found[0]["message"].get("attributes") or {}), ([f"a {kept}"], {}), "the delivered messages")
    c.ack(name, *found)
    same(c.nothing(name), [], "the further messages")
    same(sorted(texts(c.get(plain, 2))), ["a", "drop"], "the messages of another subscription")


# Permissions


@scenario
def iam(c):
    topic, name = c.both()
    for resource, role in [(topic, "roles/pubsub.publisher"), (name, "roles/pubsub.subscriber")]:
        policy = {"bindings": [{"role": role, "members": ["user:alice@example.com"]}]}
        c.call("SetIamPolicy", resource=resource, policy=policy)
        [found] = c.call("GetIamPolicy", resource=resource)["bindings"]
        same({key: value for key, value in found.items() if value}, policy["bindings"][0], "the policy")
    found = c.call("TestIamPermissions", resource=topic, permissions=["pubsub.topics.publish"])
    same(found.get("permissions"), ["pubsub.topics.publish"], "the granted permissions")


if __name__ == "__main__":
    drivers.main(SCENARIOS, Session, env)
