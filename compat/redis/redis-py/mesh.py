#!/usr/bin/env python3
"""Client redis-py at two sites: subscribers of a live topic and of copies, and readers of streams that are copies."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import redis
from redis.exceptions import BusyLoadingError, ConnectionError, ResponseError, TimeoutError, TryAgainError

from checks import same, until
from sites import Seen, expected, in_background, quickly, serve, values

PASSING = (ConnectionError, TimeoutError, BusyLoadingError, TryAgainError)
GROUP = "redis-py"
PUBLISHED = 20
# A live topic of site a that site b does not have. Messages that are repeated until they arrive are not compared.
ONLY_NEAR, AGAIN = "alerts:eu", "again"

near, far = sys.argv[1:]
messages, patterns, alerts, alert_patterns, entries, delivered, trimmed, state = (Seen() for _ in range(8))


def client(address):
    host, port = address.rsplit(":", 1)
    return redis.Redis(host, int(port), decode_responses=True)


def subscribed(seen, call, *channels):
    """Connects a subscriber, and returns its loop, once the server has confirmed the channels."""
    subscriber = client(far).pubsub()
    getattr(subscriber, call)(*channels)
    until("a confirmation", lambda: subscriber.get_message(timeout=1))

    def work():
        while True:
            try:
                for message in subscriber.listen():
                    if message["type"] in ("message", "pmessage") and message["data"] != "warm":
                        seen.add(message["channel"], message["data"])
            except PASSING:
                # The library subscribes again, and what was published in the meantime is lost, as with Redis.
                time.sleep(0.1)

    return work


def read_stream(seen, key):
    """Returns a loop that reads a stream after the last entry."""

    def work():
        connection, last = client(far), "0"
        while True:
            try:
                for last, fields in found(connection.xread({key: last}, 100, block=500)):
                    seen.add(key, fields.get("value"))
            except PASSING:
                time.sleep(0.1)

    return work


def read_group():
    connection, after, acked = client(far), "0", set()
    while True:
        try:
            answer = found(connection.xreadgroup(GROUP, "c", {"a.entries": after}, 100, block=500))
            for id, fields in answer:
                if id not in acked:
                    delivered.add("a.entries", fields.get("value"))
                    acked.add(id)
                connection.xack("a.entries", GROUP, id)
            after = ">" if not answer else after
        except PASSING:
            after = "0"
            time.sleep(0.1)


def found(answer):
    """Entries of the only stream of an answer, which is a dictionary with some protocols and a list with others."""
    if not answer:
        return []
    streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    listed = []
    for each in streams:
        listed += each[0] if each and isinstance(each[0], list) else each
    return listed


def ready():
    client(far).xgroup_create("a.entries", GROUP, "0")
    for work in (
            subscribed(messages, "subscribe", "prices", "a.entries"), subscribed(patterns, "psubscribe", "*.entries", "pri*"),
            subscribed(alerts, "subscribe", ONLY_NEAR), subscribed(alert_patterns, "psubscribe", "alert*:e?"),
            read_stream(entries, "a.entries"), read_stream(trimmed, "a.trimmed"),
            read_stream(state, "a.state"), read_group):
        in_background(work)


def bodies(path, *topics):
    return {copy: each for (copy, _), each in values(expected(path), *topics).items()}


def steady(path):
    both = bodies(path, "prices", "entries")
    both["prices"] = [body for body in both.pop("a.prices") if body != "warm"]
    messages.check(both)
    patterns.check(both)
    streams(path)


def streams(path):
    for seen in (entries, delivered):
        seen.check(bodies(path, "entries"))
    trimmed.check(bodies(path, "trimmed"))
    state.check(bodies(path, "state"))
    connection = client(far)
    until("no pending entry", lambda: connection.xpending("a.entries", GROUP)["pending"] == 0)
    for key, wanted in bodies(path, "entries", "trimmed", "state").items():
        same([fields.get("value") for _, fields in connection.xrange(key)], wanted, f"the entries of {key}")
        same(connection.xlen(key), len(wanted), f"the length of {key}")


def live():
    """Publishes at site a, and reads at site b."""
    publisher, begin = client(near), len(messages.lanes()["prices"])
    sent = [f"published:{number}" for number in range(PUBLISHED)]
    for body in sent:
        publisher.publish("prices", body)
    for seen in (messages, patterns):
        until("the messages", lambda: len(seen.lanes()["prices"]) >= begin + PUBLISHED)
        same(seen.lanes()["prices"][begin:], sent, "the messages")

    def heard(seen):
        return [body for body in seen.lanes().get(ONLY_NEAR, []) if body != AGAIN]

    def is_known():
        publisher.publish(ONLY_NEAR, AGAIN)
        return all(ONLY_NEAR in seen.lanes() for seen in (alerts, alert_patterns))

    until("the first messages of a topic that only site a has", is_known)
    for body in sent:
        publisher.publish(ONLY_NEAR, body)
    for seen in (alerts, alert_patterns):
        until("the messages of a topic that only site a has", lambda: len(heard(seen)) >= PUBLISHED)
        same(heard(seen), sent, "the messages of a topic that only site a has")


def refused():
    connection = client(far)
    quickly("PUBLISH", lambda: connection.publish("a.entries", "at-b"), ResponseError)
    quickly("XADD", lambda: connection.xadd("a.entries", {"value": "at-b"}), ResponseError)


def writable():
    client(far).xadd("a.entries", {"value": "redis at b"})
    for seen in (entries, delivered):
        until("the entry", lambda: seen.lanes()["a.entries"][-1] == "redis at b")


serve(
    "redis-py", redis.__version__, ready=ready, steady=steady, live=live, cut=streams, refused=refused, writable=writable)
