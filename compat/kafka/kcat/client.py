#!/usr/bin/env python3
"""Client kcat: librdkafka from a shell."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import jvm
import suite
from suite import same


def output(*arguments, stdin=b"", fails=False):
    done = subprocess.run(["kcat", *map(str, arguments)], input=stdin, capture_output=True, timeout=60)
    if (done.returncode != 0) != fails:
        suite.fail(f"kcat ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return done.stderr.decode() if fails else done.stdout


class Kcat(suite.Program):
    name = "kcat"
    version = re.search(r"Version ([\d.]+).*librdkafka ([\d.]+)", subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout)
    version = "{}-librdkafka-{}".format(*version.groups())

    why = "the library's last message has a nonce that is not the server's, which a broker refuses that looks (mended in librdkafka 2.6)"
    excused = dict.fromkeys(["sasl_scram_256", "sasl_scram_512", "tls_scram_256", "tls_scram_512"], why)

    def produce(self, topic, records, *arguments, **options):
        """Sends `records`, which are pairs of text, and returns the output of kcat."""
        lines = "".join(f"{key}|{value}\n" for key, value in records).encode()
        return output("-P", "-b", self.address, "-t", topic, "-p", 0, "-K|", *arguments, stdin=lines, **options)

    def read(self, topic, *arguments, start="beginning", partition=0, format="%k|%s"):
        read = output("-C", "-q", "-b", self.address, "-t", topic, "-p", partition, "-o", start, "-e", "-f", format + r"\n", *arguments)
        return [tuple(line.split("|")) for line in read.decode().splitlines()]


def numbered(count, begin=0, tag="value"):
    return [(f"key-{i % 7}", f"{tag}-{i}") for i in range(begin, begin + count)]


def codec(name):
    def scenario(c, n):
        records = [(f"k{i}", "the same words again and again " * 20 + str(i)) for i in range(200)]
        c.produce(n(), records, "-z", name)
        same(c.read(n()), records, "the records read")

    return scenario


def headers(c, n):
    c.produce(n(), [("k", "v")], "-H", "a=1", "-H", "same=first", "-H", "same=second", "-H", "empty=", "-H", "größe=naïve")
    same(c.read(n(), format="%h"), [("a=1,same=first,same=second,empty=,größe=naïve",)], "the headers")


def nulls(c, n):
    c.produce(n(), [("no value", ""), ("", "no key")], "-Z")
    c.produce(n(), [("empty value", ""), ("", "empty key")])
    same(c.read(n(), format="%K|%S"), [("8", "-1"), ("-1", "6"), ("11", "0"), ("0", "9")], "the lengths of keys and values")


def large_record(c, n):
    value = "0123456789" * 100_000
    c.produce(n(), [("k", value)], "-X", "message.max.bytes=2000000")
    same(c.read(n()) == [("k", value)], True, "equality with the sent value")


def many_in_order(c, n):
    c.produce(n(), numbered(10_000))
    same(c.read(n()), numbered(10_000), "the records read")


def from_offset(c, n):
    c.produce(n(), numbered(50))
    same(c.read(n(), start=17, format="%o|%s"), [(str(i), f"value-{i}") for i in range(17, 50)], "from an offset")
    same(c.read(n(), start=-3), numbered(3, 47), "the last three records")
    same(c.read(n(), "-c", 5), numbered(5), "the first five records")


def from_time(c, n):
    c.produce(n(), numbered(5))
    times = [int(line[0]) for line in c.read(n(), format="%T")]
    ask = lambda at: output("-Q", "-b", c.address, "-t", f"{n()}:0:{at}").decode().split()[-1]
    same(ask(times[0]), "0", "the offset of the first time")
    same(ask(times[-1] + 60_000), "-1", "the offset after all")
    same(ask(-2), "0", "the first offset")
    same(ask(-1), "5", "the next offset")
    same(c.read(n(), start=f"s@{times[0]}"), numbered(5), "from a time")


def latest(c, n):
    c.produce(n(), numbered(5))
    same(c.read(n(), start="end"), [], "from the end")


def group(strategy):
    """Makes a scenario with one partition of each of two topics, because kcat creates topics by sending to them."""

    def scenario(c, n):
        topics = [n("a"), n("b")]
        for topic in topics:
            c.produce(topic, numbered(10, tag="first"))
        arguments = ["kcat", "-u", "-b", c.address, "-G", n("group"), "-f", r"record %t %s\n", "-X", f"partition.assignment.strategy={strategy}"]
        arguments += ["-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=500", *topics]
        join = lambda: contextlib.closing(jvm.Running(arguments))
        records = lambda seen: [line for line in seen if line.startswith("record")]
        expected = lambda tag: sorted(f"record {topic} {value}" for topic in topics for _, value in numbered(10, tag=tag))
        assigned = lambda seen: any(re.search(r": assigned:|incremental assignment of [1-9]", line) for line in seen)
        with join() as first:
            found = first.wait_for("all records", lambda seen: len(records(seen)) == 20 and records(seen))
            same(sorted(found), expected("first"), "the records of one member")
            del first.seen[:]
            with join() as second:
                second.wait_for("the second member has a partition", assigned)
                first.wait_for("the first member has rebalanced", lambda seen: any("rebalanced" in line for line in seen))
                for topic in topics:
                    c.produce(topic, numbered(10, tag="second"))
                both = lambda _: len(records(first.seen) + records(second.seen)) >= 20
                first.wait_for("the first member's share", lambda seen: len(records(seen)) == 10)
                second.wait_for("the second member's share", lambda seen: len(records(seen)) == 10)
                same(both(None) and sorted(records(first.seen) + records(second.seen)), expected("second"), "the records of two members")
            del first.seen[:]
            first.wait_for("the first member has all", assigned)
            for topic in topics:
                c.produce(topic, numbered(10, tag="third"))
            found = first.wait_for("all records", lambda seen: len(records(seen)) >= 20 and records(seen))
            same(sorted(found), expected("third"), "the records of the remaining member")
        c.produce(topics[0], [("k", "last")])
        with join() as later:
            found = later.wait_for("the rest", lambda seen: records(seen))
            same(found, [f"record {topics[0]} last"], "the first records of a later member")

    return scenario


def metadata(c, n):
    c.produce(n(), numbered(1))
    found = json.loads(output("-L", "-J", "-b", c.address, "-t", n()))
    same([topic["topic"] for topic in found["topics"]], [n()], "the topics")
    same([broker["name"] for broker in found["brokers"]], [c.address], "the brokers")


def idempotent(c, n):
    c.produce(n(), numbered(2000), "-X", "enable.idempotence=true")
    same(c.read(n()), numbered(2000), "the records read")


def transaction(c, n):
    c.produce(n(), numbered(10), "-X", f"transactional.id={n('id')}")
    c.produce(n(), numbered(5, 10), "-X", f"transactional.id={n('id')}")
    for isolation in ("read_committed", "read_uncommitted"):
        same(c.read(n(), "-X", f"isolation.level={isolation}"), numbered(15), "the records read")


def unknown_topic(c, n):
    said = output("-C", "-b", c.address, "-t", n(), "-e", "-X", "allow.auto.create.topics=false", fails=True)
    same("Unknown topic or partition" in said, True, f"presence of the error in {said!r}")


def too_large(c, n):
    # Larger than the default limit of a topic. The topics that kcat creates have no settings.
    said = c.produce(n(), [("k", "0123456789" * 1_200_000)], "-X", "message.max.bytes=20000000", fails=True)
    same("Message size too large" in said, True, f"presence of the error in {said!r}")
    c.produce(n(), numbered(3))
    same(c.read(n()), numbered(3), "the records read")


def sasl(mechanism, tls):
    def scenario(c, n):
        variable = "COMPAT_SASL_TLS" if tls else "COMPAT_SASL"
        address = os.environ.get(variable) or suite.skip(f"{variable} is not set")
        protocol = ["-X", "security.protocol=" + ("sasl_ssl" if tls else "sasl_plaintext")]
        if tls:
            protocol += ["-X", "ssl.ca.location=" + os.environ["COMPAT_CA"]]
        user = ["-X", f"sasl.mechanism={mechanism}", "-X", "sasl.username=" + os.environ["COMPAT_USER"]]
        known = [*protocol, *user, "-X", "sasl.password=" + os.environ["COMPAT_PASSWORD"]]
        Kcat(address).produce(n(), numbered(3), *known)
        same(Kcat(address).read(n(), *known), numbered(3), "the records read")
        said = output("-L", "-b", address, *protocol, *user, "-X", "sasl.password=wrong", "-m", 3, fails=True)
        same("Authentication" in said or "authentication" in said, True, f"presence of the error in {said!r}")

    return scenario


SCENARIOS = {
    # kcat creates all topics by producing.
    **{f"codec_{name}": codec(name) for name in suite.CODECS},
    "headers": headers,
    "nulls": nulls,
    "large_record": large_record,
    "many_in_order": many_in_order,
    "from_offset": from_offset,
    "from_time": from_time,
    "earliest_latest": latest,
    "group_eager": group("roundrobin"),
    "group_cooperative": group("cooperative-sticky"),
    "admin_cluster": metadata,
    "idempotent": idempotent,
    "transaction_commit_abort": transaction,
    "unknown_topic": unknown_topic,
    "too_large": too_large,
    "sasl_plain": sasl("PLAIN", False),
    "sasl_scram_256": sasl("SCRAM-SHA-256", False),
    "sasl_scram_512": sasl("SCRAM-SHA-512", False),
    "tls_plain": sasl("PLAIN", True),
    "tls_scram_256": sasl("SCRAM-SHA-256", True),
    "tls_scram_512": sasl("SCRAM-SHA-512", True),
}

suite.main(Kcat, SCENARIOS)
