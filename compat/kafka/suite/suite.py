"""Scenarios for all Python clients of Kafka, and the output of their programs.

The program of a client derives from `Client` and calls `main`. It leaves out the methods that its library does not
support, or raises `Skip` in them.
"""

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections import namedtuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

from checks import WAIT_SECONDS, Skip, fail, same, short, skip, until

# Time without records after which no more are expected.
QUIET_SECONDS = 0.4
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
START_MS = 1_700_000_000_000

# `headers` is a list of pairs, `timestamp` is in milliseconds. The client sets fields that are None in a sent record.
Record = namedtuple("Record", "key value headers timestamp partition offset", defaults=[None, None, [], None, 0, None])


class Refused(Exception):
    """Error response of the broker, with the protocol's name of the error."""

    # Names for the classes of Python libraries that the rule below does not convert.
    NAMES = {
        "InvalidTopicError": "INVALID_TOPIC_EXCEPTION",
        "MessageSizeTooLargeError": "MESSAGE_TOO_LARGE",
        "ProducerFenced": "PRODUCER_FENCED",
        "AuthenticationFailedError": "SASL_AUTHENTICATION_FAILED",
        "InvalidConfigurationError": "INVALID_CONFIG",
    }

    @classmethod
    def of_class(cls, name):
        words = "".join("_" + c if c.isupper() else c.upper() for c in name.removesuffix("Error")).strip("_")
        return cls(cls.NAMES.get(name, words))


def refused(name, call):
    """Checks that the call fails with one of the errors in `name`, which are separated by `|`."""
    try:
        call()
    except Refused as error:
        if str(error) not in name.split("|"):
            fail(f"refused with {error}, not {name}")
    else:
        fail(f"not refused, though it should be {name}")


def missing(self, *_, **__):
    raise Skip("the library has no such call")


class Program:
    """Program with its own scenarios."""

    name = version = None
    # Time limit of one scenario.
    seconds = 90
    excused = {}

    def __init__(self, address):
        self.address = address


class Client(Program):
    """Features of a library. Methods about a topic have its name as first argument; partitions are numbers."""

    # Cooperative assignor of a group's members, by its name in the protocol.
    cooperative = None
    # `False` if the library does not return the text of a committed offset.
    has_metadata = True

    def __init__(self, address, security=None):
        """Keeps the arguments. `security` has `mechanism`, `user`, `password` and, for TLS, the CA file `ca`."""
        self.address, self.security = address, security

    # `excused` has the scenarios in which the library also fails with Apache Kafka, each with the known cause.
    # The library's error for a wrong password.
    denied = "SASL_AUTHENTICATION_FAILED"

    # `True` if a fenced producer takes no further action after a refused send.
    zombie_sends = True

    def can_send(self, record):
        """Returns `True` if the library can send the record."""
        return True

    def close(self):
        """Closes the connections that stay open between calls."""

    login = missing  # () connects as the user of `security`
    # -> offsets, in the order of the records. One producer sends all of them, with several requests in flight.
    produce = missing  # (topic, records, codec="none", idempotent=False, max_bytes=2_000_000)
    # -> at least `count` records, and more until none has arrived for a moment
    read = missing  # (topic, count, partition=0, start="earliest", committed=False)
    # -> `count` records of all partitions, by one consumer whose fetches return at most `bytes_max` bytes
    read_bounded = missing  # (topic, partitions, count, bytes_max)
    offsets = missing  # (topic, partition) -> (first, next)
    offset_at = missing  # (topic, partition, timestamp) -> offset or None
    member = missing  # (topic, group, strategy="range", instance=None, protocol="classic") -> Member
    # -> a member with server-side assignment, which subscribes to `topic` and to the names in `others`
    member_of = missing  # (topic, group, others) -> Member
    transaction = missing  # (id) -> Transaction
    unknown = missing  # (topic) requests a topic that no client creates
    create_topic = missing  # (topic, partitions=1, configs={})
    delete_topic = missing  # (topic)
    topics = missing  # () -> {topic: partitions}
    add_partitions = missing  # (topic, total)
    configs = missing  # (topic) -> {name: value}
    set_config = missing  # (topic, name, value), with None for the default; does not change other settings
    set_broker_config = missing  # (name, value) of the broker, with None for the default
    delete_records = missing  # (topic, partition, before) -> first offset
    groups = missing  # () -> names
    describe_group = missing  # (group) -> (state, {client id: partitions})
    group_offsets = missing  # (group, topic) -> {partition: offset}
    set_group_offset = missing  # (group, topic, partition, offset)
    delete_group_offset = missing  # (group, topic, partition)
    delete_group = missing  # (group)
    cluster = missing  # () -> (cluster id, [node ids], controller id)
    log_bytes = missing  # (topic) -> bytes


# Member: poll() -> records after a moment at most; assignment() -> set of partitions; commit({partition: (offset, text)});
# committed(partition) -> (offset, text); close().
# Transaction: begin(); send(topic, records), which waits for them; send_offsets(member, topic, {partition: offset});
# commit(); abort(); close().


class Names:
    """Names of topics and groups that no other run uses."""

    def __init__(self, client, scenario):
        self.prefix = f"{client.name}.{scenario}.{os.getpid()}.{time.time_ns() % 10**9}"

    def __call__(self, what="topic"):
        return f"{self.prefix}.{what}"


def plain(records):
    return [(r.key, r.value) for r in records]


def numbered(count, begin=0, partition=0, tag="value"):
    return [Record(f"key-{i % 7}".encode(), f"{tag}-{i}".encode(), partition=partition) for i in range(begin, begin + count)]


def create(c, topic, partitions=1, configs={}):
    c.create_topic(topic, partitions, configs)
    # The response may arrive before all parts of a broker know the topic.
    until("the topic is listed", lambda: c.topics().get(topic) == partitions)


def codec(name):
    def scenario(c, n):
        create(c, n())
        text = b"the same words again and again "
        records = [Record(b"k%d" % i, b"%d " % i + text * 20, [("n", b"%d" % i)]) for i in range(200)]
        same(c.produce(n(), records, codec=name), list(range(200)), "the offsets")
        found = c.read(n(), 200)
        same(plain(found), plain(records), "the records read")
        same([r.headers for r in found], [r.headers for r in records], "their headers")

    return scenario


def headers(c, n):
    create(c, n())
    sent = [
        [("a", b"1"), ("b", b"2")],
        [("same", b"first"), ("same", b"second"), ("same", b"first")],
        [("null", None)],
        [("empty", b""), ("binary", bytes(range(256)))],
        [("größe", "naïve".encode())],
        [],
    ]
    sent = [r for r in (Record(b"k", b"v%d" % i, h) for i, h in enumerate(sent)) if c.can_send(r)]
    c.produce(n(), sent)
    same([r.headers for r in c.read(n(), len(sent))], [r.headers for r in sent], "the headers")


def nulls(c, n):
    create(c, n())
    sent = [Record(None, b"no key"), Record(b"no value", None), Record(None, None), Record(b"", b""), Record(bytes(range(256)), b"\0")]
    sent = [r for r in sent if c.can_send(r)]
    c.produce(n(), sent)
    same(plain(c.read(n(), len(sent))), plain(sent), "the records read")


def timestamps(c, n):
    create(c, n())
    sent = [Record(b"k", b"v", [], at) for at in (START_MS, START_MS + 1, START_MS - 86_400_000, START_MS + 5)]
    c.produce(n(), sent)
    same([r.timestamp for r in c.read(n(), len(sent))], [r.timestamp for r in sent], "the timestamps")


def large_record(c, n):
    create(c, n())
    sent = [Record(b"k%d" % i, bytes((i + j * j) % 251 for j in range(1000)) * 1000) for i in range(3)]
    c.produce(n(), sent)
    if plain(c.read(n(), 3)) != plain(sent):
        fail("the value read differs from the sent one")


def many_in_order(c, n):
    create(c, n())
    sent = numbered(10_000)
    same(c.produce(n(), sent), list(range(10_000)), "the offsets")
    same(plain(c.read(n(), 10_000)), plain(sent), "the records read")


def idempotent(c, n):
    create(c, n())
    sent = numbered(2000)
    same(c.produce(n(), sent, idempotent=True), list(range(2000)), "the offsets")
    same(plain(c.read(n(), 2000)), plain(sent), "the records read")


def from_offset(c, n):
    create(c, n(), 2)
    c.produce(n(), numbered(5, partition=0, tag="other"))
    sent = numbered(50, partition=1)
    c.produce(n(), sent)
    # Offset 17 is in the middle of a batch.
    for start in (0, 17, 49):
        found = c.read(n(), 50 - start, partition=1, start=start)
        same([(r.offset, r.value) for r in found], [(i, sent[i].value) for i in range(start, 50)], f"from {start}")


def fetch_bounded(c, n):
    """Fetches from several partitions with more bytes than one response may contain, and batches of different sizes.
    Libraries that reserve `fetch.max.bytes` close a connection whose responses are larger."""
    create(c, n(), 6)
    records = [numbered(1, tag=f"{partition} " + "x" * 180_000 * (1 + partition % 2), partition=partition)[0]
               for partition in range(6) for _ in range(12)]
    # Each record is a separate batch.
    for turn in range(12):
        c.produce(n(), records[turn::12])
    found = c.read_bounded(n(), 6, len(records), 1_000_000)
    by_partition = lambda all: sorted((r.partition, len(r.value)) for r in all)
    same(by_partition(found), by_partition(records), "the sizes by partition")


def earliest_latest(c, n):
    create(c, n())
    c.produce(n(), numbered(5))
    same(c.offsets(n(), 0), (0, 5), "first and next offset")
    same(plain(c.read(n(), 5, start="earliest")), plain(numbered(5)), "from the earliest")
    same(c.read(n(), 0, start="latest"), [], "from the latest")


def from_time(c, n):
    create(c, n())
    sent = [Record(b"k", b"%d" % i, [], START_MS + 1000 * i) for i in range(20)]
    c.produce(n(), sent)
    same(c.offset_at(n(), 0, START_MS - 5), 0, "the offset before all records")
    same(c.offset_at(n(), 0, START_MS + 7000), 7, "the offset at a record's time")
    same(c.offset_at(n(), 0, START_MS + 7001), 8, "the offset between two records")
    same(c.offset_at(n(), 0, START_MS + 60_000), None, "the offset after all records")
    same(plain(c.read(n(), 12, start=c.offset_at(n(), 0, START_MS + 7001))), plain(sent[8:]), "the records read")


def drain(members, count, what):
    """Polls members until they have `count` records and no more arrive. Each commits its records."""
    found, last = [], time.monotonic()
    end = last + WAIT_SECONDS
    while (len(found) < count or time.monotonic() < last + QUIET_SECONDS) and time.monotonic() < end:
        for member in members:
            if records := member.poll():
                found += records
                last = time.monotonic()
                member.commit({p: (1 + max(r.offset for r in records if r.partition == p), "") for p in {r.partition for r in records}})
    if len(found) != count:
        fail(f"{what}: {len(found)} records, not {count}")
    return found


def settled(members, partitions, what):
    """Polls members until each has some of the partitions, and each partition has one member."""

    def shared():
        drained = [record for member in members for record in member.poll()]
        same(drained, [], "the unexpected records")
        parts = [member.assignment() for member in members]
        return all(parts) and sorted(p for part in parts for p in part) == list(range(partitions)) and parts

    return until(what, shared)


def group(strategy="range", protocol="classic"):
    def scenario(c, n):
        strategy_name = c.cooperative if strategy == "cooperative-sticky" else strategy
        if strategy_name is None:
            raise Skip("the library has no cooperative assignor")
        partitions, each = 4, 10
        create(c, n(), partitions)

        def produce(round):
            sent = [r for p in range(partitions) for r in numbered(each, partition=p, tag=f"round-{round}-{p}")]
            c.produce(n(), sent)
            return sorted((r.partition, r.value) for r in sent)

        def got(members, round):
            return sorted((r.partition, r.value) for r in drain(members, partitions * each, f"round {round}"))

        join = lambda: c.member(n(), n("group"), strategy=strategy_name, protocol=protocol)
        with contextlib.closing(join()) as first:
            sent = produce(0)
            same(got([first], 0), sent, "the records of one member")
            same(first.assignment(), set(range(partitions)), "the partitions of one member")
            second = join()
            try:
                settled([first, second], partitions, "both members have partitions")
                sent = produce(1)
                same(got([first, second], 1), sent, "the records of two members")
            finally:
                second.close()
            settled([first], partitions, "the remaining member has all partitions")
            sent = produce(2)
            same(got([first], 2), sent, "the records of the remaining member")

    return scenario


def group_illegal_name(c, n):
    """Checks that invalid topic names in a subscription are treated as missing topics, which have no partitions."""
    create(c, n())
    c.produce(n(), numbered(20))
    member = c.member_of(n(), n("group"), ["not a name", ".."])
    same(plain(drain([member], 20, "the records of the member")), plain(numbered(20)), "the records of the member")
    same(member.assignment(), {0}, "the partitions of the member")
    member.close()


def group_static(c, n):
    create(c, n(), 4)
    join = lambda instance: c.member(n(), n("group"), instance=instance)
    with contextlib.closing(join("one")) as first:
        second = join("two")
        try:
            before = settled([first, second], 4, "both members have partitions")
        finally:
            second.close()
        with contextlib.closing(join("two")) as again:

            def back():
                first.poll(), again.poll()
                same(first.assignment(), before[0], "the partitions of the other member")
                return again.assignment()

            same(until("the returning member has partitions", back), before[1], "the partitions of the returning member")
            c.produce(n(), [r for p in range(4) for r in numbered(5, partition=p)])
            drain([first, again], 20, "the records after the member returned")


def commit_resume(c, n):
    create(c, n())
    sent = numbered(10)
    c.produce(n(), sent)
    text = "four of ten, café"
    with contextlib.closing(c.member(n(), n("group"))) as member:
        same(plain(until("records", member.poll))[:1], plain(sent[:1]), "the first record")
        member.commit({0: (4, text)})
        offset, found = member.committed(0)
        same((offset, found if c.has_metadata else text), (4, text), "the committed offset")
    with contextlib.closing(c.member(n(), n("group"))) as member:
        same(plain(drain([member], 6, "the rest")), plain(sent[4:]), "the records after the committed offset")
        same(member.committed(0)[0], 10, "the last committed offset")


def admin_topics(c, n):
    create(c, n(), 2)
    same(c.topics().get(n()), 2, "partitions")
    refused("TOPIC_ALREADY_EXISTS", lambda: c.create_topic(n(), 2))
    refused("INVALID_TOPIC_EXCEPTION", lambda: c.create_topic("not a name!", 1))
    c.add_partitions(n(), 5)
    until("the topic has five partitions", lambda: c.topics().get(n()) == 5)
    c.produce(n(), numbered(3, partition=4))
    same(plain(c.read(n(), 3, partition=4)), plain(numbered(3)), "the records of a new partition")
    refused("INVALID_PARTITIONS", lambda: c.add_partitions(n(), 3))
    c.delete_topic(n())
    until("the topic is deleted", lambda: n() not in c.topics())
    refused("UNKNOWN_TOPIC_OR_PARTITION", lambda: c.delete_topic(n()))


def admin_configs(c, n):
    create(c, n(), 1, {"retention.ms": "3600000", "cleanup.policy": "delete"})
    default = c.configs(n())["retention.bytes"]
    same(c.configs(n())["retention.ms"], "3600000", "retention.ms")
    c.set_config(n(), "retention.bytes", "123456789")
    until("retention.bytes is set", lambda: c.configs(n())["retention.bytes"] == "123456789")
    same(c.configs(n())["retention.ms"], "3600000", "retention.ms afterwards")
    c.set_config(n(), "retention.bytes", None)
    until("retention.bytes has its default", lambda: c.configs(n())["retention.bytes"] == default)
    refused("INVALID_CONFIG", lambda: c.set_config(n(), "retention.ms", "soon"))


def admin_broker_configs(c, n):
    create(c, n())
    c.set_broker_config("log.roll.ms", None)
    default = c.configs(n())["segment.ms"]
    c.set_broker_config("log.roll.ms", "7654321")
    until("the topic follows", lambda: c.configs(n())["segment.ms"] == "7654321")
    c.set_broker_config("log.roll.ms", None)
    until("segment.ms has its default", lambda: c.configs(n())["segment.ms"] == default)
    refused("INVALID_REQUEST", lambda: c.set_broker_config("num.partitions", "3"))
    refused("INVALID_REQUEST|INVALID_CONFIG", lambda: c.set_broker_config("log.roll.ms", "soon"))


def admin_delete_records(c, n):
    create(c, n())
    c.produce(n(), numbered(10))
    same(c.delete_records(n(), 0, 4), 4, "the first offset")
    same(c.offsets(n(), 0), (4, 10), "first and next offset")
    same([(r.offset, r.value) for r in c.read(n(), 6)], [(i, b"value-%d" % i) for i in range(4, 10)], "the records read")
    refused("OFFSET_OUT_OF_RANGE", lambda: c.delete_records(n(), 0, 11))


def admin_groups(c, n):
    create(c, n(), 2)
    c.produce(n(), numbered(5, partition=0) + numbered(5, partition=1))
    with contextlib.closing(c.member(n(), n("group"))) as member:
        drain([member], 10, "records")
        same(n("group") in c.groups(), True, "presence of the group in the list")
        state, members = c.describe_group(n("group"))
        same((state.lower(), list(members.values())), ("stable", [{0, 1}]), "state and assignments")
    until("the group is empty", lambda: c.describe_group(n("group"))[0].lower() == "empty")
    same(c.group_offsets(n("group"), n()), {0: 5, 1: 5}, "the group's offsets")
    for step in (admin_group_offsets, admin_group_offset_delete):
        with contextlib.suppress(Skip):
            step(c, n)
    c.delete_group(n("group"))
    until("the group is deleted", lambda: n("group") not in c.groups())
    refused("GROUP_ID_NOT_FOUND", lambda: c.delete_group(n("group")))


def admin_group_offsets(c, n):
    c.set_group_offset(n("group"), n(), 0, 2)
    same(c.group_offsets(n("group"), n()), {0: 2, 1: 5}, "the group's offsets after one was set")


def admin_group_offset_delete(c, n):
    c.delete_group_offset(n("group"), n(), 1)
    same(list(c.group_offsets(n("group"), n())), [0], "partitions with offsets after one was deleted")


def admin_cluster(c, n):
    cluster, nodes, controller = c.cluster()
    if not cluster or controller not in nodes:
        fail(f"cluster {cluster!r}, controller {controller} of {nodes}")


def admin_log_dirs(c, n):
    create(c, n())
    c.produce(n(), numbered(100))
    if c.log_bytes(n()) < 100:
        fail(f"{c.log_bytes(n())} bytes")


def transaction_commit_abort(c, n):
    create(c, n())
    with contextlib.closing(c.transaction(n("id"))) as transaction:
        for round, finish in enumerate([transaction.commit, transaction.abort, transaction.commit]):
            transaction.begin()
            transaction.send(n(), numbered(3, tag=f"round-{round}"))
            if round == 2:
                committed = plain(numbered(3, tag="round-0"))
                same(plain(c.read(n(), 3, committed=True)), committed, "the committed records during a transaction")
            finish()
    rounds = [numbered(3, tag=f"round-{round}") for round in range(3)]
    until("the last transaction is committed", lambda: len(c.read(n(), 0, committed=True)) == 6)
    same(plain(c.read(n(), 6, committed=True)), plain(rounds[0] + rounds[2]), "the committed records")
    same(plain(c.read(n(), 9)), plain(sum(rounds, [])), "the records of all transactions")


def transaction_transform(c, n):
    create(c, n("in"))
    create(c, n("out"))
    c.produce(n("in"), numbered(6))
    doubled = lambda records: [Record(r.key, r.value * 2) for r in records]
    with contextlib.closing(c.transaction(n("id"))) as transaction, contextlib.closing(c.member(n("in"), n("group"))) as member:
        found = []
        until("all records", lambda: found.extend(member.poll()) or len(found) == 6)
        for begin, end, finish in [(0, 4, transaction.commit), (4, 6, transaction.abort)]:
            transaction.begin()
            transaction.send(n("out"), doubled(found[begin:end]))
            transaction.send_offsets(member, n("in"), {0: end})
            finish()
            # The offset is visible after the coordinator has written the result of the transaction.
            until("the offset is committed", lambda: (member.committed(0) or [None])[0] == 4)
    same(plain(c.read(n("out"), 4, committed=True)), plain(doubled(numbered(4))), "the committed records")
    with contextlib.closing(c.member(n("in"), n("group"))) as member:
        same(plain(drain([member], 2, "the rest")), plain(numbered(2, 4)), "the records of a new member")


def transaction_fenced(c, n):
    create(c, n())
    with contextlib.closing(c.transaction(n("id"))) as zombie:
        zombie.begin()
        zombie.send(n(), numbered(2, tag="zombie"))
        with contextlib.closing(c.transaction(n("id"))) as successor:
            successor.begin()
            successor.send(n(), numbered(2, tag="successor"))

            def go_on():
                if c.zombie_sends:
                    zombie.send(n(), numbered(1, tag="late"))
                zombie.commit()

            refused("PRODUCER_FENCED|INVALID_PRODUCER_EPOCH", go_on)
            successor.commit()
    until("the successor's records are committed", lambda: len(c.read(n(), 0, committed=True)) == 2)
    same(plain(c.read(n(), 2, committed=True)), plain(numbered(2, tag="successor")), "the committed records")


def auto_create(c, n):
    same(c.produce(n(), numbered(3)), [0, 1, 2], "the offsets")
    same(plain(c.read(n(), 3)), plain(numbered(3)), "the records read")


def unknown_topic(c, n):
    refused("UNKNOWN_TOPIC_OR_PARTITION", lambda: c.unknown(n()))
    same(n() in c.topics(), False, "presence of the topic in the list")


def too_large(c, n):
    create(c, n(), 1, {"max.message.bytes": "20000"})
    refused("MESSAGE_TOO_LARGE", lambda: c.produce(n(), [Record(b"k", bytes(50_000))]))
    same(c.produce(n(), numbered(3)), [0, 1, 2], "the offsets of others")
    same(plain(c.read(n(), 3)), plain(numbered(3)), "the records read")


def sasl(mechanism, tls):
    def scenario(c, n):
        variable = "COMPAT_SASL_TLS" if tls else "COMPAT_SASL"
        address = os.environ.get(variable) or skip(f"{variable} is not set")
        security = {"mechanism": mechanism, "user": os.environ["COMPAT_USER"], "password": os.environ["COMPAT_PASSWORD"]}
        if tls:
            security["ca"] = os.environ["COMPAT_CA"]
        known = type(c)(address, security)
        try:
            create(known, n())
            known.produce(n(), numbered(3))
            same(plain(known.read(n(), 3)), plain(numbered(3)), "the records read")
        finally:
            known.close()
        stranger = type(c)(address, security | {"password": "wrong"})
        try:
            refused(stranger.denied, stranger.login)
        finally:
            stranger.close()

    return scenario


SCENARIOS = {
    **{f"codec_{name}": codec(name) for name in CODECS},
    "headers": headers,
    "nulls": nulls,
    "timestamps": timestamps,
    "large_record": large_record,
    "many_in_order": many_in_order,
    "from_offset": from_offset,
    "from_time": from_time,
    "fetch_bounded": fetch_bounded,
    "earliest_latest": earliest_latest,
    "group_eager": group("range"),
    "group_cooperative": group("cooperative-sticky"),
    "group_illegal_name": group_illegal_name,
    "group_static": group_static,
    "group_server_side": group(protocol="consumer"),
    "commit_resume": commit_resume,
    "admin_topics": admin_topics,
    "admin_configs": admin_configs,
    "admin_broker_configs": admin_broker_configs,
    "admin_delete_records": admin_delete_records,
    "admin_groups": admin_groups,
    "admin_cluster": admin_cluster,
    "admin_log_dirs": admin_log_dirs,
    "idempotent": idempotent,
    "transaction_commit_abort": transaction_commit_abort,
    "transaction_transform": transaction_transform,
    "transaction_fenced": transaction_fenced,
    "auto_create": auto_create,
    "unknown_topic": unknown_topic,
    "too_large": too_large,
    "sasl_plain": sasl("PLAIN", False),
    "sasl_scram_256": sasl("SCRAM-SHA-256", False),
    "sasl_scram_512": sasl("SCRAM-SHA-512", False),
    "tls_plain": sasl("PLAIN", True),
    "tls_scram_256": sasl("SCRAM-SHA-256", True),
    "tls_scram_512": sasl("SCRAM-SHA-512", True),
}


def run(name, version, scenarios, subject):
    """Runs the scenarios that the command line names, by default all: PROGRAM HOST:PORT [SCENARIO..]"""
    if len(sys.argv) < 2 or any(wanted not in scenarios for wanted in sys.argv[2:]):
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT [SCENARIO..], of {' '.join(scenarios)}")
    print(f"client {name} {version}", flush=True)
    failed = False
    for wanted in sys.argv[2:] or scenarios:
        failed |= not attempt(wanted, scenarios[wanted], subject)
    # Threads of a library that hang must not keep this process alive.
    sys.stdout.flush()
    os._exit(failed)


def attempt(name, scenario, subject):
    def expired(*_):
        raise TimeoutError(f"not within {subject.seconds} s")

    def stuck():
        print(f"FAILED {name}: stuck in the library for more than {subject.seconds} s", flush=True)
        os._exit(1)

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(subject.seconds)
    watchdog = threading.Timer(1.3 * subject.seconds, stuck)
    watchdog.daemon = True
    watchdog.start()
    begin = time.monotonic()
    try:
        if name in subject.excused:
            raise Skip(subject.excused[name])
        scenario(subject, Names(subject, name))
        line = f"ok {name} ({time.monotonic() - begin:.1f} s)"
    except Skip as why:
        line = f"skipped {name}: {why}"
    except Exception as error:
        if os.environ.get("COMPAT_TRACE"):
            traceback.print_exc()
        why = " ".join(str(error).split())
        line = f"FAILED {name}: {why if isinstance(error, AssertionError) else f'{type(error).__name__}: {why}'}"
    finally:
        signal.alarm(0)
        watchdog.cancel()
    print(line, flush=True)
    return not line.startswith("FAILED")


def main(client_class, scenarios=SCENARIOS):
    """Runs scenarios with a client. `client_class` is constructed with the address."""
    subject = client_class(sys.argv[1]) if len(sys.argv) > 1 else None
    run(client_class.name, client_class.version, scenarios, subject)
