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

The script needs only the standard library.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(HERE, "peers"))

import peer  # noqa: E402

NODES = 3
DOORS = ["native", "http", "kafka", "pubsub", "redis", "sqs"]
START_SECONDS = 60
FLOOR_SECONDS = 2

LATENCY = [("producer_us.p50", "acknowledgement, p50 us"), ("producer_us.p99", "acknowledgement, p99 us")]
RATE = [("produced_per_s", "produced/s")]
PUT = ["cache", "--durable", "--operation", "put", "--value-bytes", "256", "--transport", "tcp"]

# By name: arguments of the load, clients and records at once of the floor, and the compared figures.
SCENARIOS = {
    "one-in-flight": {
        "load": ["stream", "--records", "10000", "--record-bytes", "1036", "--batch", "1", "--in-flight", "1",
                 "--consumer", "none", "--storage", "disk"],
        "floor": [1, 1, 1036], "figures": LATENCY,
    },
    "1m-1kb": {
        "load": ["stream", "--records", "1000000", "--record-bytes", "1024", "--batch", "64", "--in-flight", "16",
                 "--consumer", "none", "--storage", "disk"],
        "floor": [16, 64, 1024], "figures": RATE + LATENCY,
    },
    "cache-put": {
        "load": [*PUT, "--connections", "1", "--concurrency", "1", "--samples", "5000"],
        "floor": [1, 1, 300], "figures": LATENCY,
    },
    "cache-put-64": {
        "load": [*PUT, "--connections", "64", "--concurrency", "64", "--samples", "100000"],
        "floor": [64, 1, 300], "figures": RATE + LATENCY,
    },
}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=["one", "alone", "before", "floor"], default=["alone", "floor"])
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


class Nodes:
    """Brokers of Thalweg, each a process."""

    def __init__(self, program, folder):
        self.program, self.folder, self.processes, self.native = program, folder, [], []

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            peer.fail(f"{' '.join(map(str, arguments))} ended with {done.returncode}")
        return done.stdout

    def serve(self, name, *arguments):
        ready, data = os.path.join(self.folder, f"{name}.ready"), os.path.join(self.folder, name)
        ports = peer.free_ports(len(DOORS))
        doors = [word for door, port in zip(DOORS, ports) for word in (f"--{door}", f"127.0.0.1:{port}")]
        with open(os.path.join(self.folder, f"{name}.log"), "w") as log:
            process = subprocess.Popen(
                [self.program, "serve", "--data", data, "--ready-file", ready, *doors, *arguments],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
            )
        self.processes.append(process)
        self.native.append(f"127.0.0.1:{ports[0]}")
        self.until(lambda: os.path.exists(ready), f"{name} is not ready")

    def until(self, is_true, why):
        end = time.monotonic() + START_SECONDS
        while not is_true():
            if time.monotonic() > end or any(process.poll() is not None for process in self.processes):
                logs = [name for name in os.listdir(self.folder) if name.endswith(".log")]
                texts = [open(os.path.join(self.folder, name)).read()[-2000:] for name in logs]
                peer.fail(f"{why}: {texts}")
            time.sleep(peer.LOOK_SECONDS)

    def start_alone(self):
        self.serve("alone")

    def start_cluster(self, count):
        ports = peer.free_ports(count)
        first = os.path.join(self.folder, "n1")
        for node, port in enumerate(ports, 1):
            status = ["--set", f"cluster_status=127.0.0.1:{peer.free_ports(1)[0]}"]
            data, at = os.path.join(self.folder, f"n{node}"), f"127.0.0.1:{port}"
            if node == 1:
                self.call("cluster", "init", "--data", data, "--advertise", at)
            else:
                token = self.call("cluster", "token", "--data", first).strip()
                self.call("cluster", "join", token, "--data", data, "--advertise", at)
            self.serve(f"n{node}", *status)
        self.until(lambda: self.voters() == count, "the nodes do not vote")

    def status(self):
        command = [self.program, "--json", "--server", ",".join(self.native), "cluster", "status"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        with contextlib.suppress(ValueError):
            return json.loads(done.stdout)
        return {"leader": None, "nodes": []}

    def voters(self):
        return sum(node["is_voter"] for node in self.status()["nodes"])

    def address(self):
        """Returns the native door to measure: that of the node that leads, as clients find it by themselves."""
        status = self.status() if len(self.native) > 1 else {"nodes": []}
        for node in status["nodes"]:
            if node["is_leader"]:
                return node["doors"]["native"]
        return self.native[0]

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def last_json(text, of):
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            report = json.loads(line)
            report.pop("charts", None)
            for row in report.pop("rows", []):
                # Names of the cache's load.
                report |= {"produced_per_s": row["operations_per_s"], "producer_us": row["latency_us"]}
            return report
    peer.fail(f"{of} printed no JSON")


def run(options, system, scenario):
    with tempfile.TemporaryDirectory(prefix="cluster-compare-", dir=options.dir) as folder:
        if system == "floor":
            command = [os.path.join(HERE, "floor", "bin", "replicate"), NODES, *scenario["floor"], FLOOR_SECONDS, folder]
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
            return last_json(done.stdout, "replicate")
        nodes = Nodes(options.before if system == "before" else options.thalweg, folder)
        try:
            if system in ("alone", "before"):
                nodes.start_alone()
            else:
                nodes.start_cluster(NODES if system == "cluster" else 1)
            command = [nodes.program, "bench", *scenario["load"], "--json", "--server", nodes.address()]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                peer.fail(f"{' '.join(command)} ended with {done.returncode}")
            return last_json(done.stdout, "the load")
        finally:
            nodes.stop()


def figure(report, path):
    for key in path.split("."):
        report = (report or {}).get(key)
    return report


def rows(name, rounds):
    found = []
    for system in [system for system in rounds if system != "cluster"]:
        for path, title in SCENARIOS[name]["figures"]:
            pairs = [(figure(ours, path), figure(theirs, path)) for ours, theirs in zip(rounds["cluster"], rounds[system])]
            if not all(ours and theirs for ours, theirs in pairs):
                continue
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            found.append({
                "scenario": name, "figure": title, "system": system,
                "cluster": statistics.median(ours for ours, _ in pairs),
                "theirs": statistics.median(theirs for _, theirs in pairs),
                "ratio": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
            })
    return found


def print_table(table):
    print(f"{'scenario':14} {'figure':24} {'system':15} {'cluster':>12} {'system':>12}  {'cluster / system':^26}")
    print(f"{'':14} {'':24} {'':15} {'median':>12} {'median':>12}  {'min':>8} {'median':>8} {'max':>8}")
    for row in table:
        ratio = row["ratio"]
        print(f"{row['scenario']:14} {row['figure']:24} {row['system']:15} {row['cluster']:12.1f}"
              f" {row['theirs']:12.1f}  {ratio['min']:8.3g} {ratio['median']:8.3g} {ratio['max']:8.3g}")


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before, table, reports = os.getloadavg(), [], []
    for name in options.scenarios:
        systems = ["cluster", *options.systems]
        rounds = {system: [] for system in systems}
        for turn in range(options.rounds):
            for system in systems if turn % 2 == 0 else reversed(systems):
                print(f"{name}, round {turn + 1} of {options.rounds}: {system}", file=sys.stderr)
                rounds[system].append(run(options, system, SCENARIOS[name]))
        table += rows(name, rounds)
        reports.append({"scenario": name, "rounds": rounds})
    about = peer.machine()
    commit = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True)
    about["commit"] = commit.stdout.strip()
    about["load_average"] = {"before": load_before, "after": os.getloadavg()}
    print(f"{options.rounds} rounds, each with every system in turn")
    print(f"{about['cpu']}, {about['cores']} CPUs, Linux {about['kernel']}, commit {about['commit']},"
          f" load average {load_before[0]:.2f} before, {about['load_average']['after'][0]:.2f} after")
    print_table(table)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "table": table, "runs": reports}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
