#!/usr/bin/env python3
"""Client kafka-python: pure Python, with one thread."""

import functools
import logging
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import kafka
from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

import suite
from suite import Record, Refused

logging.disable()
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


def named(error):
    return Refused.of_class(error if isinstance(error, str) else type(error).__name__)


def calls(method):
    """Converts the library's errors to the protocol's names."""

    def call(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except errors.KafkaError as error:
            raise named(error) from error

    return call


def record(r):
    return Record(r.key, r.value, list(r.headers), r.timestamp, r.partition, r.offset)


def deliver(producer, topic, records):
    futures = [
        producer.send(topic, r.value, r.key, r.headers, r.partition, r.timestamp) for r in records
    ]
    producer.flush(suite.WAIT_SECONDS)
    return [future.get(suite.WAIT_SECONDS).offset for future in futures]


class Member:
    def __init__(self, client, topic, group, strategy="range", instance=None, protocol="classic"):
        if protocol != "classic":
            raise suite.Skip("the library has no server-side groups")
        self.topic = topic
        self.consumer = kafka.KafkaConsumer(
            topic, group_id=group, client_id=group, group_instance_id=instance, enable_auto_commit=False,
            auto_offset_reset="earliest", partition_assignment_strategy=[ASSIGNORS[strategy]],
            session_timeout_ms=10_000, heartbeat_interval_ms=500, **client.options,
        )

    def poll(self):
        # The library loses a join that ends just when a poll times out. It then requests metadata, and joins again,
        # after 100 ms.
        return [record(r) for records in self.consumer.poll(300).values() for r in records]

    def assignment(self):
        return {each.partition for each in self.consumer.assignment()}

    @calls
    def commit(self, offsets):
        at = {TopicPartition(self.topic, p): OffsetAndMetadata(offset, text, -1) for p, (offset, text) in offsets.items()}
        self.consumer.commit(at)

    @calls
    def committed(self, partition):
        found = self.consumer.committed(TopicPartition(self.topic, partition), metadata=True)
        return found and (found.offset, found.metadata)

    def close(self):
        self.consumer.close(autocommit=False)


class Transaction:
    @calls
    def __init__(self, client, name):
        self.producer = kafka.KafkaProducer(transactional_id=name, **client.options)
        self.producer.init_transactions()

    @calls
    def begin(self):
        self.producer.begin_transaction()

    @calls
    def send(self, topic, records):
        deliver(self.producer, topic, records)

    @calls
    def send_offsets(self, member, topic, offsets):
        at = {TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        self.producer.send_offsets_to_transaction(at, member.consumer.group_metadata())

    @calls
    def commit(self):
        self.producer.commit_transaction()

    @calls
    def abort(self):
        self.producer.abort_transaction()

    def close(self):
        self.producer.close(timeout=1)


class Client(suite.Client):
    name, version = "kafka-python", kafka.__version__
    cooperative = "cooperative-sticky"
    excused = {"group_cooperative": "after a rebalance it does not fetch the partitions that it has kept"}
    denied = "KAFKA_TIMEOUT"
    # The library requests an epoch without sending its current one, which fences the successor.
    zombie_sends = False

    def can_send(self, record):
        return (record.key, record.value) != (None, None) and all(value is not None for _, value in record.headers)

    @property
    def options(self):
        options = {"bootstrap_servers": self.address}
        if self.security:
            options |= {
                "security_protocol": "SASL_SSL" if "ca" in self.security else "SASL_PLAINTEXT",
                "sasl_mechanism": self.security["mechanism"],
                "sasl_plain_username": self.security["user"], "sasl_plain_password": self.security["password"],
                "ssl_cafile": self.security.get("ca"),
            }
        return options

    @calls
    def produce(self, topic, records, codec="none", idempotent=False, max_bytes=2_000_000):
        producer = kafka.KafkaProducer(
            compression_type=None if codec == "none" else codec, enable_idempotence=idempotent, acks="all", linger_ms=5,
            max_request_size=max_bytes, **self.options,
        )
        try:
            return deliver(producer, topic, records)
        finally:
            producer.close(timeout=suite.WAIT_SECONDS)

    def consumer(self, **options):
        return kafka.KafkaConsumer(group_id=None, **options, **self.options)

    @calls
    def read(self, topic, count, partition=0, start="earliest", committed=False):
        consumer = self.consumer(isolation_level="read_committed" if committed else "read_uncommitted")
        at = TopicPartition(topic, partition)
        consumer.assign([at])
        if start == "earliest":
            consumer.seek_to_beginning(at)
        elif start == "latest":
            consumer.seek_to_end(at)
        else:
            consumer.seek(at, start)
        found = []
        more = lambda ms: found.extend(r for records in consumer.poll(ms).values() for r in records)
        suite.until(f"{count} records", lambda: more(200) or len(found) >= count)
        more(1000 * suite.QUIET_SECONDS)
        consumer.close()
        return [record(r) for r in found]

    def read_bounded(self, topic, partitions, count, bytes_max):
        consumer = self.consumer(fetch_max_bytes=bytes_max)
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        consumer.seek_to_beginning()
        found = []
        more = lambda: found.extend(r for records in consumer.poll(200).values() for r in records)
        suite.until(f"{count} records", lambda: more() or len(found) >= count)
        consumer.close()
        return [record(r) for r in found]

    @calls
    def offsets(self, topic, partition):
        at = TopicPartition(topic, partition)
        consumer = self.consumer()
        return consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]

    @calls
    def offset_at(self, topic, partition, timestamp):
        at = TopicPartition(topic, partition)
        found = self.consumer().offsets_for_times({at: timestamp})[at]
        return found and found.offset

    def member(self, *args, **kwargs):
        return Member(self, *args, **kwargs)

    def transaction(self, name):
        return Transaction(self, name)

    @functools.cached_property
    def admin(self):
        return kafka.KafkaAdminClient(**self.options)

    def unknown(self, topic):
        for described in self.admin.describe_topics([topic]):
            if described["error_code"]:
                raise named(errors.for_code(described["error_code"])())

    @calls
    def login(self):
        kafka.KafkaAdminClient(bootstrap_timeout_ms=5000, **self.options)

    @calls
    def create_topic(self, topic, partitions=1, configs={}):
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        self.admin.create_topics({topic: wanted}, wait_for_metadata=True)

    @calls
    def delete_topic(self, topic):
        self.admin.delete_topics([topic])

    @calls
    def topics(self):
        return {topic["name"]: len(topic["partitions"]) for topic in self.admin.describe_topics()}

    @calls
    def add_partitions(self, topic, total):
        self.admin.create_partitions({topic: total})

    @calls
    def configs(self, topic):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    @calls
    def set_config(self, topic, name, value):
        change = {name: ("DELETE", None) if value is None else ("SET", value)}
        done = self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, change)])["topic"][topic]
        if done != "OK":
            raise Refused("INVALID_CONFIG" if "InvalidConfig" in done else done)

    @calls
    def delete_records(self, topic, partition, before):
        at = TopicPartition(topic, partition)
        return self.admin.delete_records({at: before})[at]["low_watermark"]

    @calls
    def groups(self):
        return [group["group_id"] for group in self.admin.list_groups()]

    @calls
    def describe_group(self, group):
        found = self.admin.describe_groups([group])[group]
        members = {}
        for member in found["members"]:
            parts = member["member_assignment"]["assigned_partitions"]
            members[member["client_id"]] = {p for topic in parts for p in topic["partitions"]}
        return found["group_state"], members

    @calls
    def group_offsets(self, group, topic):
        found = self.admin.list_group_offsets(group)[group]
        return {at.partition: offset.offset for at, offset in found.items() if at.topic == topic}

    @calls
    def set_group_offset(self, group, topic, partition, offset):
        at = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        suite.same(list(self.admin.alter_group_offsets(group, at).values()), [errors.NoError], "the answer")

    @calls
    def delete_group_offset(self, group, topic, partition):
        done = self.admin.delete_group_offsets(group, [TopicPartition(topic, partition)])
        suite.same(list(done.values()), [errors.NoError], "the answer")

    @calls
    def delete_group(self, group):
        done = self.admin.delete_groups([group])[group]
        if done != "OK":
            raise named(done)

    @calls
    def cluster(self):
        found = self.admin.describe_cluster()
        return found["cluster_id"], [broker["broker_id"] for broker in found["brokers"]], found["controller_id"]

    @calls
    def log_bytes(self, topic):
        dirs = [directory for broker in self.admin.describe_log_dirs([topic]) for directory in broker["log_dirs"]]
        return sum(p["partition_size"] for d in dirs for t in d["topics"] for p in t["partitions"])

    def close(self):
        if "admin" in vars(self):
            self.admin.close()


suite.main(Client)
