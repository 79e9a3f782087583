#!/usr/bin/env python3
"""Kafka's own tools, with the command lines of an operator. Each call starts a JVM."""

import contextlib
import json
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import jvm
import suite
from suite import same

TOOLS = "org.apache.kafka.tools"


class Tools(suite.Program):
    name, version = "tools", jvm.VERSION
    # A JVM takes seconds to start on a busy machine.
    seconds = 200

    def tool(self, name, *arguments, **options):
        name = name if name.startswith("kafka.") else f"{TOOLS}.{name}"
        return jvm.run(name, "--bootstrap-server", self.address, *arguments, **options)

    def topics(self, *arguments, **options):
        return self.tool("TopicCommand", *arguments, **options)

    def create(self, topic, partitions=1, *arguments):
        said = self.topics("--create", "--topic", topic, "--partitions", partitions, "--replication-factor", 1, *arguments)
        says(said, f"Created topic {topic}.")

    def produce(self, topic, lines, *arguments):
        self.tool("ConsoleProducer", "--topic", topic, *arguments, stdin="".join(f"{line}\n" for line in lines))

    def consume(self, topic, count, *arguments):
        limits = ["--max-messages", count, "--timeout-ms", 20_000]
        return self.tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", *limits, *arguments).splitlines()

    def groups(self, *arguments, **options):
        return self.tool("consumer.group.ConsumerGroupCommand", *arguments, **options)


def says(said, *words):
    for word in words:
        if not re.search(word, said):
            suite.fail(f"{word!r} is not in {said!r}")


def numbered(count, begin=0):
    return [f"value-{i}" for i in range(begin, begin + count)]


def console(c, n):
    c.create(n())
    lines = ["a:1\tkey-1\tone", "b:2,c:3\tkey-2\ttwo", "d:4\tkey-3\tNULL"]
    parse = [f"{name}=true" for name in ("parse.key", "parse.headers")] + ["null.marker=NULL"]
    c.produce(n(), lines, *[word for each in parse for word in ("--reader-property", each)])
    show = [f"print.{name}=true" for name in ("key", "headers", "partition", "offset")]
    found = c.consume(n(), 3, *[word for each in show for word in ("--formatter-property", each)])
    expected = ["Partition:0\tOffset:0\ta:1\tkey-1\tone", "Partition:0\tOffset:1\tb:2,c:3\tkey-2\ttwo"]
    same(found[:2], expected, "the records read")
    same(found[2].endswith("key-3\tnull"), True, f"the record without a value, {found[2]!r}")


def codec(name):
    def scenario(c, n):
        c.produce(n(), numbered(500), "--compression-codec", name)
        same(c.consume(n(), 500), numbered(500), "the records read")

    return scenario


def topic_command(c, n):
    c.create(n(), 2, "--config", "retention.ms=3600000")
    says(c.topics("--list"), re.escape(n()))
    said = c.topics("--describe", "--topic", n())
    says(said, r"PartitionCount: 2\b", r"ReplicationFactor: 1\b", r"retention\.ms=3600000", r"Partition: 1\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+")
    c.topics("--alter", "--topic", n(), "--partitions", 4)
    suite.until("the topic has four partitions", lambda: "PartitionCount: 4" in c.topics("--describe", "--topic", n()))
    says(c.topics("--create", "--topic", n(), fails=True), "already exists")
    c.topics("--delete", "--topic", n())
    suite.until("the topic is deleted", lambda: n() not in c.topics("--list").split())
    says(c.topics("--describe", "--topic", n(), fails=True), "does not exist")


def config_command(c, n):
    c.create(n())
    config = lambda *arguments, **options: c.tool("kafka.admin.ConfigCommand", "--entity-type", "topics", "--entity-name", n(), *arguments, **options)
    config("--alter", "--add-config", "retention.ms=7200000,cleanup.policy=[compact,delete]")
    suite.until("the settings are altered", lambda: "retention.ms=7200000" in config("--describe"))
    says(config("--describe"), "cleanup.policy=compact,delete")
    config("--alter", "--delete-config", "retention.ms")
    suite.until("retention.ms is deleted", lambda: "retention.ms" not in config("--describe"))
    says(config("--describe", "--all"), r"retention\.ms=", r"cleanup\.policy=compact")
    config("--alter", "--add-config", "compression.type=zstd,segment.ms=60000,segment.bytes=2097152,min.compaction.lag.ms=1000,max.compaction.lag.ms=2000")
    suite.until("other settings are altered", lambda: "max.compaction.lag.ms=2000" in config("--describe"))
    says(config("--describe"), "compression.type=zstd", "segment.ms=60000", "segment.bytes=2097152", "min.compaction.lag.ms=1000")
    says(config("--alter", "--add-config", "retention.ms=soon", fails=True), "InvalidConfigurationException|Invalid value")


def group_command(c, n):
    c.create(n())
    c.produce(n(), numbered(10))
    same(c.consume(n(), 6, "--group", n("group")), numbered(6), "the records of a group")
    says(c.groups("--list"), re.escape(n("group")))
    said = c.groups("--describe", "--group", n("group"))
    says(said, rf"{re.escape(n('group'))}\s+{re.escape(n())}\s+0\s+6\s+10\s+4")
    says(c.groups("--describe", "--group", n("group"), "--state"), r"Empty\s+0")
    reset = ["--reset-offsets", "--group", n("group"), "--topic", n(), "--execute"]
    says(c.groups(*reset, "--to-offset", 2), rf"{re.escape(n())}\s+0\s+2")
    same(c.consume(n(), 8, "--group", n("group")), numbered(8, 2), "the records after a reset")
    c.groups(*reset, "--to-earliest")
    says(c.groups("--describe", "--group", n("group")), r"\s0\s+0\s+10\s+10")
    says(c.groups("--delete-offsets", "--group", n("group"), "--topic", n()), "Successful")
    says(c.groups("--delete", "--group", n("group")), "successful")
    same(n("group") in c.groups("--list").split(), False, "presence of the group in the list")


def share_command(c, n):
    c.create(n())
    group = n("group")
    config = lambda *arguments: c.tool("kafka.admin.ConfigCommand", "--entity-type", "groups", "--entity-name", group, *arguments)
    config("--alter", "--add-config", "share.auto.offset.reset=earliest,share.record.lock.duration.ms=20000")
    suite.until("the group is set", lambda: "share.auto.offset.reset=earliest" in config("--describe"))
    c.produce(n(), numbered(10))
    limits = ["--max-messages", 10, "--timeout-ms", 20_000]
    found = c.tool("consumer.ConsoleShareConsumer", "--topic", n(), "--group", group, *limits).splitlines()
    same(found, numbered(10), "the records of a share group")
    shares = lambda *arguments, **options: c.tool("consumer.group.ShareGroupCommand", *arguments, **options)
    says(shares("--list"), re.escape(group))
    says(c.tool("GroupsCommand", "--list", "--group-type", "share"), rf"{re.escape(group)}\s+Share\s+share")
    suite.until("the group is empty", lambda: re.search(r"Empty\s+0", shares("--describe", "--group", group, "--state")))
    row = lambda: shares("--describe", "--group", group)
    says(row(), rf"{re.escape(group)}\s+{re.escape(n())}\s+0\s")
    says(shares("--reset-offsets", "--group", group, "--topic", n(), "--to-earliest", "--execute"), rf"{re.escape(n())}\s+0\s+0")
    suite.until("all records are to be delivered again", lambda: re.search(rf"{re.escape(n())}\s+0\s+0\s+10", row()))
    says(shares("--delete-offsets", "--group", group, "--topic", n()), re.escape(n()))
    says(shares("--delete", "--group", group), "successful")
    same(group in shares("--list").split(), False, "presence of the group in the list")
    # Setting the start offset of a missing group creates the group.
    early = n("early")
    says(shares("--reset-offsets", "--group", early, "--topic", n(), "--to-earliest", "--execute"), rf"{re.escape(n())}\s+0\s+0")
    says(shares("--describe", "--group", early), rf"{re.escape(early)}\s+{re.escape(n())}\s+0\s+0\s+10")


def group_members(protocol):
    def scenario(c, n):
        c.create(n(), 2)
        options = ["--group-id", n("group"), "--topic", n(), "--group-protocol", protocol]
        command = jvm.command(f"{TOOLS}.VerifiableConsumer", "--bootstrap-server", c.address, *options)
        join = lambda: contextlib.closing(jvm.Running(command))
        has = lambda count: lambda seen: partitions(seen) == count
        with join() as first:
            first.wait_for("one member has both partitions", has(2))
            with join() as second:
                second.wait_for("the second member has one partition", has(1))
                first.wait_for("the first member has one partition", has(1))
                suite.until("both members are described with their partitions", lambda: both_described(c, n))
            first.wait_for("the first member has both partitions again", has(2))

    return scenario


def both_described(c, n):
    said = c.groups("--describe", "--group", n("group"), "--members", "--verbose")
    rows = [line for line in said.splitlines() if line.startswith(n("group"))]
    return len(rows) == 2 and all(n() in row for row in rows)


def partitions(seen):
    """Returns the number of partitions of a VerifiableConsumer, from its events."""
    held = set()
    for event in events(seen):
        its = {p["partition"] for p in event.get("partitions", [])}
        if event["name"] == "partitions_assigned":
            held |= its
        elif event["name"] == "partitions_revoked":
            held -= its
    return len(held)


def events(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


def verifiable(c, n):
    c.create(n())
    sent = events(c.tool("VerifiableProducer", "--topic", n(), "--max-messages", 3000, "--repeating-keys", 5).splitlines())
    acked = [event for event in sent if event["name"] == "producer_send_success"]
    same([(event["value"], event["offset"]) for event in acked], [(str(i), i) for i in range(3000)], "the acknowledged records")
    options = ["--topic", n(), "--group-id", n("group"), "--max-messages", 3000, "--verbose"]
    got = events(c.tool("VerifiableConsumer", *options).splitlines())
    records = [(event["value"], event["key"], event["offset"]) for event in got if event["name"] == "record_data"]
    same(records, [(str(i), str(i % 5), i) for i in range(3000)], "the records read")
    committed = [event for event in got if event["name"] == "offsets_committed"]
    same((committed[-1]["success"], committed[-1]["offsets"][0]["offset"]), (True, 3000), "the last commit")


def performance(c, n):
    c.create(n())
    said = c.tool(
        "ProducerPerformance", "--topic", n(), "--num-records", 20_000, "--record-size", 1000, "--throughput", -1,
        "--command-property", "acks=all", "compression.type=lz4",
    )
    says(said, r"20000 records sent, [\d.]+ records/sec")
    said = c.tool("ConsumerPerformance", "--topic", n(), "--num-records", 20_000, "--hide-header", "--group", n("group"))
    same(said.split(", ")[4], "20000", "the number of consumed records")


def transactional_performance(c, n):
    c.create(n())
    said = c.tool(
        "ProducerPerformance", "--topic", n(), "--num-records", 20_000, "--record-size", 100, "--throughput", -1,
        "--transactional-id", n("id"), "--transaction-duration-ms", 100,
    )
    says(said, r"20000 records sent")
    committed = ["--isolation-level", "read_committed"]
    same(len(c.consume(n(), 20_000, *committed)), 20_000, "the number of committed records")


def end_to_end_latency(c, n):
    c.create(n())
    said = c.tool("EndToEndLatency", "--topic", n(), "--num-records", 200, "--producer-acks", "all", "--record-size", 200)
    says(said, r"Avg latency: [\d.]+ ms", r"Percentiles: 50th = \d+, 99th = \d+")


def get_offsets(c, n):
    c.create(n(), 2)
    c.produce(n(), numbered(7), "--reader-property", "parse.key=false")
    ends = lambda at: c.tool("GetOffsetShell", "--topic", n(), "--time", at).split()
    same(sum(int(line.rpartition(":")[2]) for line in ends(-1)), 7, "the sum of the next offsets")
    same(ends("earliest"), [f"{n()}:0:0", f"{n()}:1:0"], "the first offsets")


def delete_records(c, n):
    c.create(n())
    c.produce(n(), numbered(10))
    wanted = {"version": 1, "partitions": [{"topic": n(), "partition": 0, "offset": 4}]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(wanted, file)
        file.flush()
        says(c.tool("DeleteRecordsCommand", "--offset-json-file", file.name), r"low_watermark: 4")
    same(c.consume(n(), 6), numbered(6, 4), "the records read")


def acls(c, n):
    acl = lambda *arguments: c.tool("AclCommand", *arguments)
    resource = ["--topic", n()]
    acl("--add", "--allow-principal", "User:bob", "--operation", "Read", *resource)
    acl("--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "All", *resource)
    suite.until("both ACLs are listed", lambda: {"User:bob", "User:eve"} <= set(re.findall(r"User:\w+", acl("--list", *resource))))
    says(acl("--list", *resource), "principal=User:eve, host=10.0.0.1, operation=ALL, permissionType=DENY")
    acl("--remove", "--force", "--allow-principal", "User:bob", "--operation", "Read", *resource)
    suite.until("the ACL of bob is deleted", lambda: "User:bob" not in acl("--list", *resource))
    acl("--remove", "--force", *resource)
    suite.until("all ACLs are deleted", lambda: "User:eve" not in acl("--list", *resource))


def scram_users(c, n):
    user = n("user")
    config = lambda *arguments: c.tool("kafka.admin.ConfigCommand", "--entity-type", "users", "--entity-name", user, *arguments)
    config("--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    suite.until("the credential is described", lambda: "SCRAM-SHA-256=iterations=4096" in config("--describe"))
    config("--alter", "--delete-config", "SCRAM-SHA-256")
    suite.until("the credential is deleted", lambda: "SCRAM-SHA-256" not in config("--describe"))


def transactions(c, n):
    c.create(n())
    c.tool(
        "ProducerPerformance", "--topic", n(), "--num-records", 10, "--record-size", 100, "--throughput", -1,
        "--transactional-id", n("id"), "--transaction-duration-ms", 1000,
    )
    says(c.tool("TransactionsCommand", "list"), re.escape(n("id")))
    says(c.tool("TransactionsCommand", "describe", "--transactional-id", n("id")), r"CompleteCommit|Complete")
    says(c.tool("TransactionsCommand", "describe-producers", "--topic", n(), "--partition", 0), r"ProducerId\s+ProducerEpoch")
    c.tool("TransactionsCommand", "find-hanging", "--topic", n())


def cluster(c, n):
    says(c.tool("BrokerApiVersionsCommand"), r"Produce\(0\): \d+ to \d+", r"Fetch\(1\): \d+ to \d+", r"ApiVersions\(18\): 0 to \d")
    said = jvm.run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", c.address)
    says(said, r"Cluster ID: \S+")


def log_dirs(c, n):
    c.create(n())
    c.produce(n(), numbered(100))
    said = c.tool("LogDirsCommand", "--describe", "--topic-list", n())
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    parts = [p for broker in found["brokers"] for d in broker["logDirs"] for p in d["partitions"]]
    same([p["partition"] for p in parts], [f"{n()}-0"], "the partitions")
    same(parts[0]["size"] >= 100, True, f"the result of {parts[0]['size']} >= 100 bytes")


def leaders_and_replicas(c, n):
    """Checks that requests for the current leader and replicas succeed, and that unknown nodes are refused."""
    c.create(n(), 2)
    said = c.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", n(), "--partition", 0)
    says(said, rf"Valid replica already elected for partitions.*{re.escape(n())}-0")
    says(c.tool("LeaderElectionCommand", "--election-type", "unclean", "--all-topic-partitions"), "^$")
    says(c.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", n(), "--partition", 7, fails=True), "UnknownTopicOrPartition")
    quorum = lambda kind: c.tool("MetadataQuorumCommand", "describe", kind)
    says(quorum("--status"), r"LeaderId:\s+\d+", r"HighWatermark:\s+\d+", r"MaxFollowerLag:\s+0\b")
    says(quorum("--replication"), r"Leader")
    node = re.search(r"LeaderId:\s+(\d+)", quorum("--status"))[1]

    def reassign(replicas, *arguments, **options):
        partitions = [{"topic": n(), "partition": 0, "replicas": replicas}]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": partitions}, file)
            file.flush()
            return c.tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", file.name, *arguments, **options)

    says(reassign([int(node)], "--execute"), "Successfully started partition reassignment")
    says(reassign([int(node)], "--verify", "--preserve-throttles"), rf"Reassignment of partition {re.escape(n())}-0 is completed")
    says(reassign([int(node) + 76], "--execute", fails=True), "Unknown broker id|InvalidReplicaAssignment|no such broker")
    says(c.tool("reassign.ReassignPartitionsCommand", "--list"), "No partition reassignments found")


SCENARIOS = {
    "console": console,
    **{f"codec_{name}": codec(name) for name in suite.CODECS},
    "topic_command": topic_command,
    "config_command": config_command,
    "group_command": group_command,
    "share_command": share_command,
    "group_eager": group_members("classic"),
    "group_server_side": group_members("consumer"),
    "verifiable": verifiable,
    "performance": performance,
    "transactional_performance": transactional_performance,
    "end_to_end_latency": end_to_end_latency,
    "get_offsets": get_offsets,
    "delete_records": delete_records,
    "acls": acls,
    "scram_users": scram_users,
    "transactions": transactions,
    "cluster": cluster,
    "log_dirs": log_dirs,
    "leaders_and_replicas": leaders_and_replicas,
}

suite.main(Tools, SCENARIOS)
