#!/usr/bin/env python3
"""Client confluent-kafka at two sites: a consumer group that reads copies, and a producer that may not write to them."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from checks import fail, same, until
from sites import REFUSAL_SECONDS, Seen, as_item, difference, expected, in_background, of_topics, serve, text

TOPICS = ["orders", "trimmed", "state"]
COPIES = [f"a.{topic}" for topic in TOPICS]
GROUP = "confluent-kafka"
CALL_SECONDS = 10

near, far = sys.argv[1:]
SERVERS = {"bootstrap.servers": far}
seen = Seen()
producers = {
    "plain": kafka.Producer(SERVERS), "idempotent": kafka.Producer({**SERVERS, "enable.idempotence": True}),
    "transactional": kafka.Producer({**SERVERS, "transactional.id": "at-b"})}
consumer = kafka.Consumer({
    **SERVERS, "group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "isolation.level": "read_committed"})


def item(message):
    headers = [(name, text(value)) for name, value in message.headers() or []]
    record = message.offset(), text(message.key()), text(message.value()), headers, message.timestamp()[1]
    return (message.topic(), message.partition()), as_item(*record)


def consume():
    while True:
        at = {}
        for message in consumer.consume(50, 0.1):
            if message.error():
                seen.note_error()
                continue
            lane, record = item(message)
            seen.add(lane, record)
            at[lane] = record[0] + 1
        if at:
            try:
                consumer.commit(offsets=[TopicPartition(*lane, next) for lane, next in at.items()], asynchronous=False)
            except KafkaException:
                # Partitions may be assigned again: the next batch commits.
                seen.note_error()


def ready():
    assigned = []
    consumer.subscribe(COPIES, on_assign=lambda _, partitions: assigned.extend(partitions))
    in_background(consume)
    until("an assignment of all partitions", lambda: len(assigned) == 5)


def steady(path):
    seen.check(of_topics(expected(path), *TOPICS))
    difference(read_back(), of_topics(expected(path), *TOPICS))
    committed(path)


def cut(path):
    wanted = of_topics(expected(path), *TOPICS)
    seen.check(wanted, once=seen.unsure == 0)
    difference(read_back(), wanted)
    committed(path)


def committed(path):
    """Checks that the group has committed the offset after the last record of each partition, at site b only."""
    wanted = {lane: items[-1][0] + 1 for lane, items in of_topics(expected(path), *TOPICS).items()}
    other = kafka.Consumer({**SERVERS, "group.id": GROUP, "enable.auto.commit": False})
    at = [TopicPartition(*lane) for lane in wanted]
    until("the commits", lambda: [each.offset for each in other.committed(at, CALL_SECONDS)] == [*wanted.values()])
    other.close()
    other = kafka.Consumer({"bootstrap.servers": near, "group.id": GROUP})
    offsets = {each.offset for each in other.committed([TopicPartition("orders", p) for p in range(3)], CALL_SECONDS)}
    same(offsets, {kafka.OFFSET_INVALID}, "the committed offsets at site a")
    other.close()


def read_back():
    other = kafka.Consumer({
        **SERVERS, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True,
        "auto.offset.reset": "earliest"})
    lanes = [("a.orders", 0), ("a.orders", 1), ("a.orders", 2), ("a.trimmed", 0), ("a.state", 0)]
    other.assign([TopicPartition(*lane, kafka.OFFSET_BEGINNING) for lane in lanes])
    ended, found = set(), {}
    while len(ended) < len(lanes):
        for message in other.consume(1000, 0.2):
            if not message.error():
                lane, record = item(message)
                found.setdefault(lane, []).append(record)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
            else:
                fail(f"an error of a consumer: {message.error()}")
    other.close()
    return found


def send(producer, count=1):
    """Sends records to a copy. Returns the time, and the error and the offset of each record."""
    results = []
    begin = time.monotonic()
    for at in range(count):
        producer.produce(
            "a.orders", f"at-b:{at}", partition=0, on_delivery=lambda error, message: results.append((error, message.offset())))
    producer.flush(30)
    elapsed = time.monotonic() - begin
    return elapsed, results


def refused():
    for kind, producer in producers.items():
        is_transactional = kind == "transactional"
        if is_transactional:
            producer.init_transactions(CALL_SECONDS)
            producer.begin_transaction()
        elapsed, results = send(producer)
        same(len(results), 1, f"the number of results of a producer ({kind})")
        error = results[0][0]
        print(f"note produce ({kind}): {error} after {elapsed:.1f} s", flush=True)
        if error is None or elapsed > REFUSAL_SECONDS:
            fail(f"a producer ({kind}) got {error} after {elapsed:.1f} s")
        same(error.name(), "INVALID_RECORD", f"the error of a producer ({kind})")
        same((error.retriable(), error.fatal()), (False, False), "whether the error is retriable, and fatal")
        if is_transactional:
            try:
                producer.commit_transaction(CALL_SECONDS)
            except KafkaException as error:
                same(error.args[0].txn_requires_abort(), True, "whether the transaction has to be aborted")
            else:
                fail("a transaction with a refused record was committed")
            producer.abort_transaction(CALL_SECONDS)


def writable():
    """Writes with the producers that were refused."""
    for kind, producer in producers.items():
        if kind == "transactional":
            results = transaction(producer)
        else:
            _, results = send(producer, 3)
        same([error for error, _ in results], [None] * 3, f"the errors of a producer ({kind})")
        first = results[0][1]
        arrived = lambda: [item[2] for item in seen.lanes()["a.orders", 0] if first <= item[0] < first + 3]
        until(f"the records in the group ({kind})", lambda: arrived() == [f"at-b:{at}" for at in range(3)])


def transaction(producer):
    """Commits a transaction. Returns the results of its records."""
    while True:
        producer.begin_transaction()
        _, results = send(producer, 3)
        try:
            producer.commit_transaction(CALL_SECONDS)
            return results
        except KafkaException as error:
            # The first transaction after a refused record fails in the library ("skipped sequence numbers"), also with
            # Apache Kafka, and has to be aborted.
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(CALL_SECONDS)


serve(
    GROUP, kafka.__version__, ready=ready, steady=steady, cut=cut, refused=refused, writable=writable)
