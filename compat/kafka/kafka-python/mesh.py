#!/usr/bin/env python3
"""Client kafka-python at two sites: a consumer group that reads copies, and a producer that may not write to them."""

import logging
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import kafka
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from checks import same, until
from sites import Seen, as_item, difference, expected, in_background, of_topics, quickly, serve, text

logging.disable()
TOPICS = ["orders", "trimmed", "state"]
GROUP = "kafka-python"
# Time without an assignment after which another consumer joins the group.
IDLE_SECONDS = 5
KINDS = {"plain": {"enable_idempotence": False}, "idempotent": {"enable_idempotence": True}}
LANES = [("a.orders", 0), ("a.orders", 1), ("a.orders", 2), ("a.trimmed", 0), ("a.state", 0)]

near, far = sys.argv[1:]
seen = Seen()
assigned = set()
committed_next = {}
producers = {}


def item(record):
    headers = [(name, text(value)) for name, value in record.headers]
    return (record.topic, record.partition), as_item(
        record.offset, text(record.key), text(record.value), headers, record.timestamp)


def connect():
    return kafka.KafkaConsumer(
        *(f"a.{topic}" for topic in TOPICS), bootstrap_servers=far, group_id=GROUP, enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed")


def consume():
    global assigned
    consumer, idle_since = connect(), time.monotonic()
    while True:
        try:
            polled = consumer.poll(1000)
            at = {}
            for partition, records in polled.items():
                for record in records:
                    seen.add(*item(record))
                at[partition] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
            if at:
                consumer.commit(at)
                committed_next.update({(of.topic, of.partition): each.offset for of, each in at.items()})
        except KafkaError:
            seen.note_error()
        assigned = consumer.assignment()
        idle_since = time.monotonic() if assigned else idle_since
        if time.monotonic() > idle_since + IDLE_SECONDS:
            # The library drops the answer to a SyncGroup that arrives just when a poll times out, and does not join
            # again.
            consumer.close(autocommit=False)
            consumer, idle_since = connect(), time.monotonic()


def ready():
    in_background(consume)
    until("an assignment of all partitions", lambda: len(assigned) == len(LANES))


def check(path):
    wanted = of_topics(expected(path), *TOPICS)
    seen.check(wanted, once=seen.unsure == 0)
    difference(read_back(wanted), wanted)
    until("the commits", lambda: committed_next == {lane: items[-1][0] + 1 for lane, items in wanted.items()})


def read_back(wanted):
    other = kafka.KafkaConsumer(
        bootstrap_servers=far, enable_auto_commit=False, auto_offset_reset="earliest", consumer_timeout_ms=2000)
    other.assign([TopicPartition(*lane) for lane in LANES])
    other.seek_to_beginning()
    found = {}
    for record in other:
        lane, each = item(record)
        found.setdefault(lane, []).append(each)
        if found == wanted:
            break
    other.close()
    return found


def send(producer, count=1):
    sent = [producer.send("a.orders", f"at-b:{at}".encode(), partition=1) for at in range(count)]
    return [each.get(30).offset for each in sent]


def refused():
    for kind, settings in KINDS.items():
        producers[kind] = producer = kafka.KafkaProducer(bootstrap_servers=far, **settings)
        error = quickly(f"produce ({kind})", lambda: send(producer), KafkaError)
        same((type(error).__name__, error.retriable), ("InvalidRecordError", False), "the error")


def writable():
    for kind, producer in producers.items():
        # An idempotent producer of the library repeats its first error for ever, also with Apache Kafka.
        if kind == "idempotent":
            producer = kafka.KafkaProducer(bootstrap_servers=far, **KINDS[kind])
        first = send(producer, 3)[0]
        arrived = lambda: [item[2] for item in seen.lanes()["a.orders", 1] if first <= item[0] < first + 3]
        until(f"the records in the group ({kind})", lambda: arrived() == [f"at-b:{at}" for at in range(3)])


serve(GROUP, kafka.__version__, ready=ready, steady=check, cut=check, refused=refused, writable=writable)
