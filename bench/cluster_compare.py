#!/usr/bin/env python3
"""Puts the same load on a cluster of three nodes and on other systems in turn, and prints the ratios.

Every run has its own servers: three processes on this machine. Each round runs each system once, and every other round
runs them in reverse order. The result is the ratio of the cluster to another system within one round; the table has
the median of all rounds and their spread. The systems:

  cluster   three nodes of Thalweg: acknowledged when a majority has synced
  one       a cluster of one node
  alone     a broker without a cluster
  before    a broker without a cluster, by the program that --before names
  floor     bench/floor/bin/replicate: the same writes and syncs without a protocol
  kafka, jetstream, jetstream-sync, etcd
            other systems on three nodes, from the folders of bench/peers; each has an install.sh

The script needs only the standard library.
"""

import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(HERE, "peers"))

import peer  # noqa: E402
import rounds  # noqa: E402
import servers  # noqa: E402

NODES = 3
FLOOR_SECONDS = 2

LATENCY = [("producer_us.p50", "acknowledgement, p50 us"), ("producer_us.p99", "acknowledgement, p99 us")]
RATE = [("produced_per_s", "produced/s")]
PUT = ["cache", "--durable", "--operation", "put", "--value-bytes", "256", "--transport", "tcp"]

# Systems that are Thalweg, or the limit of the machine; they run in every scenario.
OWN = ["one", "alone", "before", "floor"]
# Folders of bench/peers.
PEERS = {"kafka": "kafka", "jetstream": "nats-jetstream", "jetstream-sync": "nats-jetstream", "etcd": "etcd"}
# JetStream syncs each record by itself: more would take minutes.
SYNC_RECORDS = 20_000

# By name: arguments of the load, which is `thalweg bench` or sqs-load of peers/elasticmq; clients and records at once of
# the floor; the compared figures; for the peers that have the same scenario, the arguments of their run.py. The latency
# of Kafka's tools has whole milliseconds and includes a consumer, so that only its rate is compared.
SCENARIOS = {
    "one-in-flight": {
        "load": ["stream", "--records", "10000", "--record-bytes", "1036", "--batch", "1", "--in-flight", "1",
                 "--consumer", "none", "--storage", "disk"],
        "floor": [1, 1, 1036], "figures": LATENCY,
        "peers": {
            "jetstream": ["--mode", "one-in-flight", "-consumer", "none"],
            "jetstream-sync": ["--mode", "one-in-flight", "--sync", "always", "-consumer", "none"],
        },
    },
    "1m-1kb": {
        "load": ["stream", "--records", "1000000", "--record-bytes", "1024", "--batch", "64", "--in-flight", "16",
                 "--consumer", "none", "--storage", "disk"],
        "floor": [16, 64, 1024], "figures": RATE + LATENCY,
        "peers": {
            "kafka": ["--mode", "1m-1kb", "--consumer", "none"],
            "jetstream": ["--mode", "1m-1kb", "-consumer", "none"],
            "jetstream-sync": ["--mode", "1m-1kb", "--sync", "always", "-consumer", "none", "-records", SYNC_RECORDS],
        },
    },
    "cache-put": {
        "load": [*PUT, "--connections", "1", "--concurrency", "1", "--samples", "5000"],
        "floor": [1, 1, 300], "figures": LATENCY,
        "peers": {"etcd": ["-clients", 1, "-puts", 5000, "-value-bytes", 256]},
    },
    "cache-put-64": {
        "load": [*PUT, "--connections", "64", "--concurrency", "64", "--samples", "100000"],
        "floor": [64, 1, 300], "figures": RATE + LATENCY,
        "peers": {"etcd": ["-clients", 64, "-puts", 100_000, "-value-bytes", 256]},
    },
    "sqs-send-64": {
        "sqs": ["-mode", "send", "-connections", 64, "-body-bytes", 1024, "-seconds", 5],
        "floor": [64, 1, 1100], "figures": RATE + LATENCY, "peers": {},
    },
}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=[*OWN, *PEERS], default=["alone", "floor"])
    add("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    add("--rounds", type=int, default=3)
    add("--thalweg", default="target/release/thalweg", help="the program; relative to the checkout")
    add("--before", help="an earlier version of the program, for the system `before`")
    add("--dir", help="folder for data while a system runs, on the disk to measure; a temporary folder by default")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if ("before" in options.systems) != bool(options.before):
        parser.error("the system `before` needs --before, and the other way round")
    options.thalweg = os.path.join(ROOT, options.thalweg)
    return options


def report_of(command):
    """Runs a load, and returns its report; those of a cache and of SQS get the names of a stream's figures."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        peer.fail(f"{' '.join(words)} ended with {done.returncode}")
    report = rounds.last_json(done.stdout, words[0])
    for row in report.pop("rows", []):
        report |= {"produced_per_s": row["operations_per_s"], "producer_us": row["latency_us"]}
    if "messages_per_s" in report:
        report |= {"produced_per_s": report["messages_per_s"], "producer_us": report["latency_us"]["all"]}
    return report


def run(options, system, scenario):
    with tempfile.TemporaryDirectory(prefix="cluster-compare-", dir=options.dir) as folder:
        if system == "floor":
            command = [os.path.join(HERE, "floor", "bin", "replicate"), NODES, *scenario["floor"], FLOOR_SECONDS, folder]
            return report_of(command)
        if system in PEERS:
            script = os.path.join(HERE, "peers", PEERS[system], "run.py")
            return report_of([script, "--nodes", NODES, "--dir", folder, *scenario["peers"][system]])
        nodes = servers.Thalweg(folder, options.before if system == "before" else options.thalweg)
        try:
            if system in ("alone", "before"):
                nodes.serve("alone")
            else:
                nodes.start_cluster(NODES if system == "cluster" else 1)
            if "sqs" in scenario:
                load = os.path.join(HERE, "peers", "elasticmq", "bin", "sqs-load")
                return report_of([load, "-address", nodes.address("sqs"), *scenario["sqs"]])
            return report_of([nodes.program, "bench", *scenario["load"], "--json", "--server", nodes.address("native")])
        finally:
            nodes.stop()


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before, table, runs = os.getloadavg(), [], []
    for name in options.scenarios:
        scenario = SCENARIOS[name]
        systems = ["cluster", *(system for system in options.systems if system in OWN or system in scenario["peers"])]
        found = rounds.alternate(name, systems, options.rounds, lambda system: run(options, system, scenario))
        table += rounds.rows(name, scenario["figures"], found)
        runs.append({"scenario": name, "rounds": found})
    rounds.finish("cluster", f"{options.rounds} rounds, each with every system in turn", options, load_before, table, runs)


if __name__ == "__main__":
    main()
