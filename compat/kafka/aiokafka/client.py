#!/usr/bin/env python3
"""Client aiokafka: asyncio. The event loop has a separate thread, so that the scenarios are as for other libraries."""

import asyncio
import logging
import pathlib
import ssl
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import aiokafka
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

import suite
from suite import Record, Refused

logging.disable()
LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def waits(method):
    """Converts a coroutine to a blocking function, and the library's errors to the protocol's names."""

    def call(*args, **kwargs):
        async def within():
            return await asyncio.wait_for(method(*args, **kwargs), suite.WAIT_SECONDS)

        try:
            return asyncio.run_coroutine_threadsafe(within(), LOOP).result()
        except errors.KafkaError as error:
            raise Refused.of_class(type(error).__name__) from error

    return call


def refuse(code):
    if code:
        raise errors.for_code(code)()


def records_of(batches):
    return [
        Record(r.key, r.value, list(r.headers), r.timestamp, r.partition, r.offset) for rs in batches.values() for r in rs
    ]


async def deliver(producer, topic, records):
    sent = [await producer.send(topic, r.value, r.key, r.partition, r.timestamp, r.headers) for r in records]
    await producer.flush()
    return [(await each).offset for each in sent]


class Member:
    def __init__(self, client, topic, group, strategy="range", instance=None, protocol="classic"):
        if protocol != "classic":
            raise suite.Skip("the library has no server-side groups")
        self.topic = topic
        self.options = dict(
            group_id=group, client_id=group, group_instance_id=instance, enable_auto_commit=False, auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor], heartbeat_interval_ms=500, **client.options,
        )
        self.start()

    @waits
    async def start(self):
        self.consumer = aiokafka.AIOKafkaConsumer(self.topic, **self.options)
        await self.consumer.start()

    @waits
    async def poll(self):
        return records_of(await self.consumer.getmany(timeout_ms=100))

    @waits
    async def assignment(self):
        return {each.partition for each in self.consumer.assignment()}

    @waits
    async def commit(self, offsets):
        await self.consumer.commit({TopicPartition(self.topic, p): at for p, at in offsets.items()})

    @waits
    async def committed(self, partition):
        return await self.consumer.committed(TopicPartition(self.topic, partition)), None

    @waits
    async def close(self):
        await self.consumer.stop()


class Transaction:
    def __init__(self, client, name):
        self.start(client, name)

    @waits
    async def start(self, client, name):
        self.producer = aiokafka.AIOKafkaProducer(transactional_id=name, **client.options)
        await self.producer.start()

    @waits
    async def begin(self):
        await self.producer.begin_transaction()

    @waits
    async def send(self, topic, records):
        await deliver(self.producer, topic, records)

    @waits
    async def send_offsets(self, member, topic, offsets):
        at = {TopicPartition(topic, p): offset for p, offset in offsets.items()}
        await self.producer.send_offsets_to_transaction(at, member.options["group_id"])

    @waits
    async def commit(self):
        await self.producer.commit_transaction()

    @waits
    async def abort(self):
        await self.producer.abort_transaction()

    @waits
    async def close(self):
        await self.producer.stop()


class Admin:
    """Administration client for one call."""

    def __init__(self, client):
        self.client = AIOKafkaAdminClient(**client.options)

    async def __aenter__(self):
        await self.client.start()
        return self.client

    async def __aexit__(self, *_):
        await self.client.close()


class Client(suite.Client):
    name, version = "aiokafka", aiokafka.__version__
    has_metadata = False
    denied = "KAFKA_CONNECTION"

    def can_send(self, record):
        return (record.key, record.value) != (None, None)

    @property
    def options(self):
        options = {"bootstrap_servers": self.address}
        if self.security:
            options |= {
                "security_protocol": "SASL_SSL" if "ca" in self.security else "SASL_PLAINTEXT",
                "sasl_mechanism": self.security["mechanism"],
                "sasl_plain_username": self.security["user"], "sasl_plain_password": self.security["password"],
            }
            if "ca" in self.security:
                options["ssl_context"] = ssl.create_default_context(cafile=self.security["ca"])
        return options

    @waits
    async def produce(self, topic, records, codec="none", idempotent=False, max_bytes=2_000_000):
        producer = aiokafka.AIOKafkaProducer(
            compression_type=None if codec == "none" else codec, enable_idempotence=idempotent, acks="all", linger_ms=5,
            max_request_size=max_bytes, **self.options,
        )
        await producer.start()
        try:
            return await deliver(producer, topic, records)
        finally:
            await producer.stop()

    @waits
    async def read(self, topic, count, partition=0, start="earliest", committed=False):
        consumer = aiokafka.AIOKafkaConsumer(
            isolation_level="read_committed" if committed else "read_uncommitted", **self.options
        )
        at = TopicPartition(topic, partition)
        await consumer.start()
        try:
            consumer.assign([at])
            if start == "earliest":
                await consumer.seek_to_beginning(at)
            elif start == "latest":
                await consumer.seek_to_end(at)
            else:
                consumer.seek(at, start)
            found = []
            while len(found) < count:
                found += records_of(await consumer.getmany(timeout_ms=200))
            return found + records_of(await consumer.getmany(timeout_ms=int(1000 * suite.QUIET_SECONDS)))
        finally:
            await consumer.stop()

    async def ask(self, question):
        consumer = aiokafka.AIOKafkaConsumer(**self.options)
        await consumer.start()
        try:
            return await question(consumer)
        finally:
            await consumer.stop()

    @waits
    async def offsets(self, topic, partition):
        at = TopicPartition(topic, partition)
        begin = await self.ask(lambda consumer: consumer.beginning_offsets([at]))
        return begin[at], (await self.ask(lambda consumer: consumer.end_offsets([at])))[at]

    @waits
    async def offset_at(self, topic, partition, timestamp):
        at = TopicPartition(topic, partition)
        found = (await self.ask(lambda consumer: consumer.offsets_for_times({at: timestamp})))[at]
        return found and found.offset

    def member(self, *args, **kwargs):
        return Member(self, *args, **kwargs)

    def transaction(self, name):
        return Transaction(self, name)

    @waits
    async def login(self):
        async with Admin(self):
            pass

    @waits
    async def create_topic(self, topic, partitions=1, configs={}):
        async with Admin(self) as admin:
            done = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
            refuse(done.topic_errors[0][1])

    @waits
    async def delete_topic(self, topic):
        async with Admin(self) as admin:
            refuse((await admin.delete_topics([topic])).topic_error_codes[0][1])

    @waits
    async def topics(self):
        async with Admin(self) as admin:
            return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}

    @waits
    async def add_partitions(self, topic, total):
        async with Admin(self) as admin:
            await admin.create_partitions({topic: NewPartitions(total)})

    @waits
    async def configs(self, topic):
        async with Admin(self) as admin:
            (found,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            code, _, _, _, entries = found.resources[0]
            refuse(code)
            return {name: value for name, value, *_ in entries}

    @waits
    async def set_config(self, topic, name, value):
        # The library only has the call that replaces all settings: the others have to be sent again.
        async with Admin(self) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (found,) = await admin.describe_configs([resource])
            configs = {e[0]: e[1] for e in found.resources[0][4] if e[3] == 1} | {name: value}
            configs = {name: value for name, value in configs.items() if value is not None}
            (done,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
            refuse(done.resources[0][0])

    @waits
    async def delete_records(self, topic, partition, before):
        async with Admin(self) as admin:
            at = TopicPartition(topic, partition)
            return (await admin.delete_records({at: RecordsToDelete(before)}))[at]

    @waits
    async def groups(self):
        async with Admin(self) as admin:
            return [group[0] for group in await admin.list_consumer_groups()]

    @waits
    async def cluster(self):
        async with Admin(self) as admin:
            found = await admin.describe_cluster()
            return found["cluster_id"], [broker["node_id"] for broker in found["brokers"]], found["controller_id"]


suite.main(Client)
