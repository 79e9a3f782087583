#!/usr/bin/env python3
"""Client confluent-kafka under leader kills: an idempotent producer, a consumer group, and transactions."""

import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from history import History

PARTITIONS = 3
# Keys of a producer: several for each partition.
KEYS = 8
# Time of one call, after which its error says that it may be repeated.
CALL_SECONDS = 10
LOG = {"log": True, "numbered": True, "ordered": True}

history = History(kafka.__version__)
SERVERS = {"bootstrap.servers": ",".join(history.addresses)}
produced = {stream: threading.Event() for stream in ("idempotent", "tx-in")}


def topic(stream):
    return f"confluent-kafka-{stream}"


def note(stream):
    return {"error_cb": lambda error: history.error(stream, error)}


def repeat(stream, call, *args, until=lambda error: False, **kwargs):
    """Repeats a call that fails, as https://docs.confluent.io/platform/current/clients/librdkafka says of retriable errors."""
    while True:
        try:
            return call(*args, **kwargs)
        except KafkaException as error:
            history.error(stream, error)
            if until(error.args[0]):
                raise
            time.sleep(0.2)


def produce(stream):
    numbers, life = history.numbers(), 0
    while produce_until_fatal(stream, f"p{life}", numbers):
        life += 1
    produced[stream].set()


def produce_until_fatal(stream, name, numbers):
    """Returns whether another producer has to continue: a fatal error ends one, as librdkafka's INTRODUCTION.md says."""
    producer = kafka.Producer({**SERVERS, **note(stream), "enable.idempotence": True, "linger.ms": 5})
    fatal = threading.Event()

    def told(number):
        def note(error, message):
            history.sent(stream, name, number, ok=error is None)
            if error is not None:
                history.error(stream, error)
                fatal.set()
        return note

    for number in numbers:
        producer.poll(0)
        if fatal.is_set():
            producer.flush(60)
            return True
        producer.produce(topic(stream), f"{name}:{number}", f"k{number % KEYS}", on_delivery=told(number))
    assert producer.flush(120) == 0, "records without an outcome"
    return False


def end_offsets(consumer, of):
    partitions = [TopicPartition(of, partition) for partition in range(PARTITIONS)]
    return [repeat("group", consumer.get_watermark_offsets, each, CALL_SECONDS, cached=False)[1] for each in partitions]


def consume():
    """Member of a group that commits after each batch."""
    of = topic("idempotent")
    consumer = kafka.Consumer({
        **SERVERS, **note("group"), "group.id": "confluent-kafka", "enable.auto.commit": False,
        "auto.offset.reset": "earliest"})
    consumer.subscribe([of])
    done, ends = [0] * PARTITIONS, None
    while ends is None or any(at < end for at, end in zip(done, ends)):
        if ends is None and produced["idempotent"].is_set():
            ends = end_offsets(consumer, of)
        offsets = {}
        for message in consumer.consume(100, 0.1):
            if message.error():
                history.error("group", message.error())
                continue
            history.got("group", "group", message.partition(), message.offset(), message.value().decode())
            offsets[message.partition()] = message.offset() + 1
        at = [TopicPartition(of, partition, next) for partition, next in offsets.items()]
        if not at:
            continue
        try:
            committed = consumer.commit(offsets=at, asynchronous=False)
        except KafkaException as error:
            # The partitions may have been assigned again: the next batch commits.
            history.error("group", error)
            continue
        for each in committed:
            if each.error is None:
                history.committed("group", each.partition, each.offset)
                done[each.partition] = each.offset
    consumer.close()
    other = kafka.Consumer({**SERVERS, "group.id": "confluent-kafka", "enable.auto.commit": False})
    partitions = [TopicPartition(of, partition) for partition in range(PARTITIONS)]
    for each in repeat("group", other.committed, partitions, CALL_SECONDS):
        history.position("group", each.partition, max(each.offset, 0))
    other.close()


def transform():
    """Reads a topic, writes its records to another one, and commits both in transactions."""
    source, ends = topic("tx-in"), None
    consumer = kafka.Consumer({
        **SERVERS, **note("tx-out"), "group.id": "confluent-kafka-tx", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe([source])
    producer, done = transactional(), [0] * PARTITIONS
    while ends is None or any(at < end for at, end in zip(done, ends)):
        if ends is None and produced["tx-in"].is_set():
            ends = end_offsets(consumer, source)
        messages = [message for message in consumer.consume(20, 0.2)]
        for message in messages:
            if message.error():
                history.error("tx-out", message.error())
        messages = [message for message in messages if not message.error()]
        if not messages:
            continue
        try:
            at = transaction(producer, consumer, messages)
            for each in at:
                done[each.partition] = each.offset
        except KafkaException as error:
            history.error("tx-out", error)
            if error.args[0].txn_requires_abort():
                try:
                    repeat("tx-out", producer.abort_transaction, CALL_SECONDS, until=lambda error: not error.retriable())
                except KafkaException:
                    producer = transactional()
            else:
                # Any other error is fatal for this producer.
                producer = transactional()
            rewind(consumer)
    consumer.close()


def transactional():
    # https://github.com/confluentinc/librdkafka/issues/5511: without the setting, send_offsets_to_transaction may wait
    # forever once all connections were broken at the same time, as they are when the node that leads is killed.
    producer = kafka.Producer({
        **SERVERS, **note("tx-out"), "transactional.id": "confluent-kafka", "metadata.recovery.strategy": "none"})
    repeat("tx-out", producer.init_transactions, CALL_SECONDS)
    return producer


def transaction(producer, consumer, messages):
    def retried(call, *args):
        # librdkafka's documentation of the transactional producer: repeat a call whose error is retriable.
        repeat("tx-out", call, *args, until=lambda error: not error.retriable())

    producer.begin_transaction()
    items, offsets = [], {}
    for message in messages:
        items.append(message.value().decode())
        offsets[message.partition()] = message.offset() + 1
        producer.produce(topic("tx-out"), message.value(), message.key())
        producer.poll(0)
    at = [TopicPartition(message.topic(), partition, next) for partition, next in offsets.items()]
    retried(producer.send_offsets_to_transaction, at, consumer.consumer_group_metadata(), CALL_SECONDS)
    ok = False
    try:
        retried(producer.commit_transaction, CALL_SECONDS)
        ok = True
    finally:
        for item in items:
            name, number = item.rsplit(":", 1)
            history.sent("tx-out", name, int(number), ok)
    return at


def rewind(consumer):
    """Continues after the committed offsets."""
    assigned = consumer.assignment()
    if not assigned:
        return
    for each in repeat("tx-out", consumer.committed, assigned, CALL_SECONDS):
        each.offset = each.offset if each.offset >= 0 else kafka.OFFSET_BEGINNING
        try:
            consumer.seek(each)
        except KafkaException as error:
            # The partition is being assigned again, which also continues after the committed offset.
            history.error("tx-out", error)


def read_back(stream, *streams):
    consumer = kafka.Consumer({
        **SERVERS, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True,
        "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic(stream), partition, kafka.OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    ended = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(1000, 0.2):
            if not message.error():
                for each in (stream, *streams):
                    history.got(each, "final", message.partition(), message.offset(), message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()


def main():
    admin = AdminClient(SERVERS)
    topics = [topic(stream) for stream in ("idempotent", "tx-in", "tx-out")]
    for created in admin.create_topics([NewTopic(each, PARTITIONS, 3) for each in topics]).values():
        created.result()
    history.stream("idempotent", **LOG)
    history.stream("group", log=True, numbered=True, **{"from": "idempotent"})
    history.stream("tx-in", **LOG)
    history.stream("tx-out", **LOG, **{"from": "tx-in"})
    history.run(lambda: produce("idempotent"), consume, lambda: produce("tx-in"), transform)
    read_back("idempotent", "group")
    read_back("tx-in")
    read_back("tx-out")


main()
