#!/usr/bin/env python3
"""Writer of `cargo xtask compat mesh`: confluent-kafka's idempotent and transactional producers at site a."""

import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from checks import fail, same
from sites import FIELDS, serve, text

PARTITIONS = {"orders": 3, "entries": 1, "trimmed": 1, "prices": 1, "state": 1}
LIVE, COMPACTED = "prices", "state"
# Settings with which a topic is compacted within seconds, and its records, most of which have a newer one.
EAGER = {"max.compaction.lag.ms": "500", "segment.ms": "500"}
STATES, STATE_KEYS = 300, 7
# Records of the topic `trimmed` that are deleted: before it is copied, and later while its copy cannot be reached.
BEGIN, BEGIN_DELETED, LATER, LATER_DELETED = 20, 10, 50, 40
STEPS = 40
CALL_SECONDS = 10
COMPACTION_SECONDS = 60

here, _ = sys.argv[1:]
random.seed(int(os.environ["COMPAT_SEED"]))
SERVERS = {"bootstrap.servers": here}


class Writer:
    def __init__(self):
        self.number = 0
        # Values of each topic that were acknowledged, and whose transaction was committed, if there was one.
        self.kept = {topic: set() for topic in PARTITIONS}
        self.records = {}
        self.plain = kafka.Producer({**SERVERS, "enable.idempotence": True, "linger.ms": 2})
        self.transactional = None

    def begin_transactional(self):
        self.transactional = kafka.Producer({
            **SERVERS, "transactional.id": "compat-mesh", "linger.ms": 2, "metadata.recovery.strategy": "none"})
        repeat(self.transactional.init_transactions, CALL_SECONDS)

    def send(self, producer, topic, count, partitions=None):
        """Sends records of any shape to any partition. Returns their values."""
        sent, failed = [], []
        for at in range(count):
            value = f"{topic}:{self.number}:" + "x" * random.choice([0, 0, 10, 500])
            self.number += 1
            more = {}
            # Ids of Redis streams are timestamps, so theirs ascend.
            if topic == "orders" and random.random() < 0.3:
                more["timestamp"] = int(time.time() * 1000) - random.randrange(3_600_000)
            producer.produce(
                topic, value, random.choice([None, "", "k1", "k2"]),
                partition=partitions[at % len(partitions)] if partitions else random.randrange(PARTITIONS[topic]),
                headers=random.choice([[], [("trace", b"7")], [("a", b"1"), ("a", b"2"), ("none", None)]]),
                on_delivery=lambda error, message: failed.append(error) if error else None, **more)
            sent.append(value)
        same(producer.flush(100), 0, "the number of records without an outcome")
        same(failed, [], "errors")
        return sent

    def write(self, topic, count):
        self.kept[topic].update(self.send(self.plain, topic, count))

    def transaction(self, topics, is_kept):
        """Writes in a transaction that is committed or aborted. It is repeated with other records if it was aborted."""
        if self.transactional is None:
            self.begin_transactional()
        while True:
            sent = {}
            try:
                self.transactional.begin_transaction()
                for topic in topics:
                    # Every partition gets a record, and a marker.
                    partitions = list(range(PARTITIONS[topic]))
                    sent[topic] = self.send(self.transactional, topic, random.randint(3, 8), partitions)
                end = self.transactional.commit_transaction if is_kept else self.transactional.abort_transaction
                repeat(end, CALL_SECONDS, until=lambda error: not error.retriable())
                break
            except KafkaException as error:
                print(f"note a transaction is repeated: {error}", flush=True)
                if not error.args[0].txn_requires_abort():
                    raise
                repeat(self.transactional.abort_transaction, CALL_SECONDS, until=lambda error: not error.retriable())
        if is_kept:
            for topic, values in sent.items():
                self.kept[topic].update(values)

    def begin(self):
        """Has the log of a topic begin after its first records."""
        self.write("trimmed", BEGIN)
        delete_records("trimmed", BEGIN_DELETED)
        self.compact()

    def compact(self):
        """Has compaction leave holes in the log of a topic, and ends the compaction."""
        alter(COMPACTED, EAGER)
        begin, count = time.monotonic(), STATES
        while count > STATES // 2:
            if time.monotonic() > begin + COMPACTION_SECONDS:
                fail(f"{count} records are left in {COMPACTED} after {COMPACTION_SECONDS} s")
            for _ in range(10):
                for _ in range(STATES // 10):
                    # Keys that are rare have records between those that are removed.
                    key = f"k{self.number % STATE_KEYS}" if self.number % 20 else f"rare{self.number}"
                    self.plain.produce(COMPACTED, f"state:{self.number}", key)
                    self.number += 1
                same(self.plain.flush(100), 0, "the number of records without an outcome")
            time.sleep(0.6)
            count = len(read(COMPACTED))
        alter(COMPACTED, {name: None for name in EAGER})
        found = None
        while found != (found := len(read(COMPACTED))):
            time.sleep(0.6)

    def steady(self, path):
        topics = [topic for topic in PARTITIONS if topic != COMPACTED]
        # Subscribers of a live topic also receive records of aborted transactions, as those of one site do.
        mirrored = [topic for topic in topics if topic != LIVE]
        for step in range(STEPS):
            if step % 10 == 3:
                self.transaction(topics, is_kept=True)
            elif step % 10 == 6:
                self.transaction(random.sample(mirrored, 2), is_kept=False)
            else:
                self.write(random.choice(topics), random.randint(1, 12))
        for topic in topics:
            self.write(topic, 1)
        # The log ends with records that no client reads.
        self.transaction(mirrored, is_kept=False)
        self.save(path)

    def cut(self, seconds):
        """Writes without a pause, while sites are killed."""
        end, step = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            step += 1
            topics = ["orders", "entries"]
            if step % 5 == 0:
                self.transaction(topics, is_kept=step % 10 == 0)
            else:
                self.write(random.choice(topics), random.randint(1, 12))
        self.transaction(topics, is_kept=False)

    def trim(self):
        """Deletes records before they were copied."""
        first = next_offset("trimmed")
        self.write("trimmed", LATER)
        delete_records("trimmed", first + LATER_DELETED)

    def save(self, path):
        """Reads everything at site a, and writes it to a file, with what was read before and deleted since."""
        for topic in PARTITIONS:
            found = read(topic)
            for record in found:
                self.records[tuple(record[:3])] = record
            if topic not in ("trimmed", COMPACTED):
                read_values = [record[FIELDS.index("value")] for record in found]
                same(len(read_values), len(set(read_values)), f"the number of different values in {topic}")
                lost, more = self.kept[topic] - {*read_values}, {*read_values} - self.kept[topic]
                # Other programs publish to the live topic, too.
                if lost or (more and topic != LIVE):
                    fail(f"{topic} at site a lacks {sorted(lost)[:3]}, and has {sorted(more)[:3]}, which was aborted")
        with open(path, "w") as file:
            json.dump([dict(zip(FIELDS, record)) for _, record in sorted(self.records.items())], file)


def repeat(call, *args, until=lambda error: False):
    """Repeats a call that fails, until its error is final."""
    while True:
        try:
            return call(*args)
        except KafkaException as error:
            if until(error.args[0]):
                raise
            time.sleep(0.1)


def delete_records(topic, before):
    admin = AdminClient(SERVERS)
    for deleted in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        same(deleted.result(CALL_SECONDS).low_watermark, before, "the first offset")


def alter(topic, configs):
    """Changes settings of a topic; None restores a default."""
    kind = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    entries = [ConfigEntry(name, value, incremental_operation=kind[value is None]) for name, value in configs.items()]
    admin = AdminClient(SERVERS)
    for done in admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=entries)]).values():
        done.result(CALL_SECONDS)


def next_offset(topic):
    consumer = kafka.Consumer({**SERVERS, "group.id": "unused"})
    _, next = consumer.get_watermark_offsets(TopicPartition(topic, 0), CALL_SECONDS, cached=False)
    consumer.close()
    return next


def read(topic):
    consumer = kafka.Consumer({
        **SERVERS, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed", "fetch.wait.max.ms": 20})
    partitions = range(PARTITIONS[topic])
    consumer.assign([TopicPartition(topic, partition, kafka.OFFSET_BEGINNING) for partition in partitions])
    ended, records = set(), []
    while len(ended) < len(partitions):
        for message in consumer.consume(1000, 0.2):
            if not message.error():
                headers = [(name, text(value)) for name, value in message.headers() or []]
                records.append([
                    topic, message.partition(), message.offset(), text(message.key()), text(message.value()), headers,
                    message.timestamp()[1]])
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return records


writer = Writer()
serve(
    "writer", kafka.__version__, begin=writer.begin, steady=writer.steady, cut=writer.cut, trim=writer.trim,
    save=writer.save)
