#!/usr/bin/env python3
"""Client confluent-kafka: librdkafka from Python."""

import contextlib
import functools
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin

import suite
from suite import Record, Refused

NAMES = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "UNKNOWN_TOPIC_OR_PARTITION",
    KafkaError.MSG_SIZE_TOO_LARGE: "MESSAGE_TOO_LARGE",
    KafkaError._FENCED: "PRODUCER_FENCED",
    KafkaError._AUTHENTICATION: "SASL_AUTHENTICATION_FAILED",
    KafkaError.TOPIC_EXCEPTION: "INVALID_TOPIC_EXCEPTION",
}
PRESENT = {"earliest": kafka.OFFSET_BEGINNING, "latest": kafka.OFFSET_END}


def named(error):
    return Refused(NAMES.get(error.code(), error.name()))


def calls(method):
    """Converts the library's errors to the protocol's names."""

    def call(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except KafkaException as error:
            raise named(error.args[0]) from error

    return call


def record(message):
    if message.error():
        raise named(message.error())
    timestamp = message.timestamp()[1]
    return Record(message.key(), message.value(), message.headers() or [], timestamp, message.partition(), message.offset())


@calls
def deliver(producer, topic, records):
    reports = []
    note = lambda error, message: reports.append(error or message.offset())
    for r in records:
        producer.produce(
            topic, r.value, r.key, r.partition, on_delivery=note, timestamp=r.timestamp or 0, headers=r.headers)
        producer.poll(0)
    suite.same(producer.flush(suite.WAIT_SECONDS), 0, "the number of records without a report")
    for report in reports:
        if isinstance(report, KafkaError):
            raise named(report)
    return reports


class Member:
    def __init__(self, client, topic, group, strategy="range", instance=None, protocol="classic", others=()):
        options = {
            "group.id": group, "client.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "group.protocol": protocol, **({"group.instance.id": instance} if instance else {}),
        }
        if protocol == "classic":
            options |= {"partition.assignment.strategy": strategy, "session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
        self.topic = topic
        self.consumer = kafka.Consumer(client.options(**options))
        self.consumer.subscribe([topic, *others])

    def poll(self):
        return [record(message) for message in self.consumer.consume(500, 0.1)]

    def assignment(self):
        return {each.partition for each in self.consumer.assignment()}

    @calls
    def commit(self, offsets):
        at = [TopicPartition(self.topic, p, offset, metadata=text) for p, (offset, text) in offsets.items()]
        self.consumer.commit(offsets=at, asynchronous=False)

    @calls
    def committed(self, partition):
        found = self.consumer.committed([TopicPartition(self.topic, partition)], suite.WAIT_SECONDS)[0]
        return found.offset, found.metadata

    def close(self):
        self.consumer.close()


class Transaction:
    @calls
    def __init__(self, client, name):
        self.producer = kafka.Producer(client.options(**{"transactional.id": name}))
        self.producer.init_transactions(suite.WAIT_SECONDS)

    @calls
    def begin(self):
        self.producer.begin_transaction()

    def send(self, topic, records):
        deliver(self.producer, topic, records)

    @calls
    def send_offsets(self, member, topic, offsets):
        at = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
        self.producer.send_offsets_to_transaction(at, member.consumer.consumer_group_metadata(), suite.WAIT_SECONDS)

    @calls
    def commit(self):
        self.producer.commit_transaction(suite.WAIT_SECONDS)

    @calls
    def abort(self):
        self.producer.abort_transaction(suite.WAIT_SECONDS)

    def close(self):
        # A fenced producer reports the fencing again.
        with contextlib.suppress(KafkaException), warnings.catch_warnings(action="ignore"):
            self.producer.close()


class Client(suite.Client):
    name, version = "confluent-kafka", kafka.__version__
    cooperative = "cooperative-sticky"


    def options(self, **options):
        options |= {"bootstrap.servers": self.address, "log_level": 0}
        if self.security:
            options |= {
                "security.protocol": "SASL_SSL" if "ca" in self.security else "SASL_PLAINTEXT",
                "sasl.mechanism": self.security["mechanism"],
                "sasl.username": self.security["user"], "sasl.password": self.security["password"],
            }
            if "ca" in self.security:
                options["ssl.ca.location"] = self.security["ca"]
        return options

    def produce(self, topic, records, codec="none", idempotent=False, max_bytes=2_000_000):
        options = {"compression.type": codec, "linger.ms": 5, "message.max.bytes": max_bytes, "enable.idempotence": idempotent}
        return deliver(kafka.Producer(self.options(**options)), topic, records)

    def read(self, topic, count, partition=0, start="earliest", committed=False):
        consumer = kafka.Consumer(self.options(**{
            "group.id": "none", "enable.auto.commit": False, "check.crcs": True, "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }))
        consumer.assign([TopicPartition(topic, partition, PRESENT.get(start, start))])
        found = []

        def is_at_end():
            messages = consumer.consume(1000, 0.1)
            ends = [m for m in messages if m.error() and m.error().code() == KafkaError._PARTITION_EOF]
            found.extend(m for m in messages if m not in ends)
            return ends and len(found) >= count

        suite.until(f"{count} records", is_at_end)
        consumer.close()
        return [record(message) for message in found]

    def read_bounded(self, topic, partitions, count, bytes_max):
        failures = []
        consumer = kafka.Consumer(self.options(**{
            "group.id": "none", "enable.auto.commit": False, "message.max.bytes": bytes_max // 2,
            # A larger response closes the connection, and the library repeats the request.
            "fetch.max.bytes": bytes_max, "receive.message.max.bytes": bytes_max + 1024,
            "max.partition.fetch.bytes": bytes_max, "error_cb": failures.append,
        }))
        consumer.assign([TopicPartition(topic, partition, kafka.OFFSET_BEGINNING) for partition in range(partitions)])
        found = []

        def has_all():
            found.extend(record(message) for message in consumer.consume(1000, 0.1))
            suite.same([str(failure) for failure in failures], [], "the library's connection errors")
            return len(found) >= count

        suite.until(f"{count} records", has_all)
        consumer.close()
        return found

    def consumer(self):
        return kafka.Consumer(self.options(**{"group.id": "none", "enable.auto.commit": False}))

    @calls
    def offsets(self, topic, partition):
        return self.consumer().get_watermark_offsets(TopicPartition(topic, partition), suite.WAIT_SECONDS, cached=False)

    @calls
    def offset_at(self, topic, partition, timestamp):
        found = self.consumer().offsets_for_times([TopicPartition(topic, partition, timestamp)], suite.WAIT_SECONDS)[0].offset
        return found if found >= 0 else None

    def member(self, *args, **kwargs):
        return Member(self, *args, **kwargs)

    def member_of(self, topic, group, others):
        return Member(self, topic, group, protocol="consumer", others=others)

    def transaction(self, name):
        return Transaction(self, name)

    def unknown(self, topic):
        consumer = self.consumer()
        consumer.subscribe([topic])
        record(suite.until("an answer", lambda: consumer.poll(0.2)))

    @functools.cached_property
    def admin(self):
        return admin.AdminClient(self.options())

    @calls
    def login(self):
        failures = []
        client = admin.AdminClient(self.options(error_cb=failures.append))
        try:
            client.list_topics(timeout=3)
        except KafkaException:
            client.poll(0)
            raise named(next(f for f in failures if f.code() == KafkaError._AUTHENTICATION)) from None

    @calls
    def create_topic(self, topic, partitions=1, configs={}):
        self.admin.create_topics([admin.NewTopic(topic, partitions, 1, config=configs)])[topic].result()

    @calls
    def delete_topic(self, topic):
        self.admin.delete_topics([topic])[topic].result()

    @calls
    def topics(self):
        return {name: len(topic.partitions) for name, topic in self.admin.list_topics(timeout=suite.WAIT_SECONDS).topics.items()}

    @calls
    def add_partitions(self, topic, total):
        self.admin.create_partitions([admin.NewPartitions(topic, total)])[topic].result()

    @calls
    def configs(self, topic):
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
        return {name: entry.value for name, entry in self.admin.describe_configs([resource])[resource].result().items()}

    @calls
    def set_config(self, topic, name, value):
        kind = admin.AlterConfigOpType.DELETE if value is None else admin.AlterConfigOpType.SET
        entry = admin.ConfigEntry(name, value, incremental_operation=kind)
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    @calls
    def set_broker_config(self, name, value):
        kind = admin.AlterConfigOpType.DELETE if value is None else admin.AlterConfigOpType.SET
        entry = admin.ConfigEntry(name, value, incremental_operation=kind)
        # The library has no name for the resource of all brokers.
        node = str(next(iter(self.admin.list_topics(timeout=suite.WAIT_SECONDS).brokers)))
        resource = admin.ConfigResource(admin.ResourceType.BROKER, node, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    @calls
    def delete_records(self, topic, partition, before):
        at = TopicPartition(topic, partition, before)
        return self.admin.delete_records([at])[at].result().low_watermark

    @calls
    def groups(self):
        return [group.group_id for group in self.admin.list_consumer_groups().result().valid]

    @calls
    def describe_group(self, group):
        found = self.admin.describe_consumer_groups([group])[group].result()
        members = {m.client_id: {each.partition for each in m.assignment.topic_partitions} for m in found.members}
        return found.state.name, members

    @calls
    def group_offsets(self, group, topic):
        request = kafka.ConsumerGroupTopicPartitions(group)
        found = self.admin.list_consumer_group_offsets([request])[group].result()
        return {each.partition: each.offset for each in found.topic_partitions if each.topic == topic and each.offset >= 0}

    @calls
    def set_group_offset(self, group, topic, partition, offset):
        request = kafka.ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        self.admin.alter_consumer_group_offsets([request])[group].result()

    @calls
    def delete_group(self, group):
        self.admin.delete_consumer_groups([group])[group].result()

    @calls
    def cluster(self):
        found = self.admin.describe_cluster().result()
        return found.cluster_id, [node.id for node in found.nodes], found.controller.id


suite.main(Client)
