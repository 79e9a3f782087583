#!/usr/bin/env python3
"""Puts the same load on redis-server and on Thalweg's Redis door in turn, and prints the ratios.

The load is redis-benchmark, of the same package as redis-server. Every run has its own server. Each round runs each
system once, and every other round runs them in reverse order. The result is the ratio within one round; the table has
the median of all rounds and their spread.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

START_SECONDS = 30
LOAD_SECONDS = 600
TESTS = "set,get,incr,lpush,rpop,hset,zadd"
# Settings by name: pinned to one core each or not, and the number of requests in flight on each connection.
SETTINGS = {
    "one-core-1": {"is_pinned": True, "pipeline": 1},
    "one-core-16": {"is_pinned": True, "pipeline": 16},
    "all-cores-1": {"is_pinned": False, "pipeline": 1, "times": 5},
    "all-cores-16": {"is_pinned": False, "pipeline": 16, "times": 6},
    "durable-1": {"is_pinned": False, "pipeline": 1, "is_durable": True, "connections": 64, "tests": "set", "times": 5},
}
# With several threads redis-benchmark checks the time only every 250 ms: `times` multiplies the requests for that.
REQUESTS = {1: 300_000, 16: 2_000_000}
DURABLE_REQUESTS = 100_000
# Entries whose memory is measured: a key of 16 bytes, a value of 64.
ENTRIES = 1_000_000
VALUE = "v" * 64


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--settings", nargs="+", choices=[*SETTINGS, "memory"], default=[*SETTINGS, "memory"])
    add("--rounds", type=int, default=5)
    add("--connections", type=int, default=50)
    add("--tests", default=TESTS)
    add("--part", type=float, default=1.0, help="factor for the number of requests")
    add("--thalweg", default=os.path.join(ROOT, "target/release/thalweg"), help="the program")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    options.thalweg = os.path.abspath(options.thalweg)
    for program in ("redis-server", "redis-benchmark", "redis-cli"):
        if not shutil.which(program):
            peer.fail(f"{program} is missing: apt-get install redis-server redis-tools")
    if options.rounds < 1:
        parser.error("--rounds must be above 0")
    return options


def redis(options, port, folder, setting):
    durable = ["--appendonly", "yes", "--appendfsync", "always"] if setting.get("is_durable") else ["--appendonly", "no"]
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, *durable]


def thalweg(options, port, folder, setting):
    durable = ["--data", os.path.join(folder, "data"), "--set", "redis_durable=true"] if setting.get("is_durable") else []
    doors = [word for door in ("http", "kafka", "pubsub", "sqs") for word in (f"--{door}", "off")]
    return [options.thalweg, "serve", "--set", "log=warn", "--native", "off", *doors, "--redis", f"127.0.0.1:{port}", *durable]


SYSTEMS = {"redis": redis, "thalweg": thalweg}


@contextlib.contextmanager
def running(options, system, setting):
    """Starts a server, and yields its port and its process once it answers."""
    [port] = peer.free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        pinned = ["taskset", "-c", "0"] if setting.get("is_pinned") else []
        call = [*pinned, *SYSTEMS[system](options, port, folder, setting)]
        server = subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            if not peer.await_answer(server, port, b"PING\r\n", b"+PONG\r\n", START_SECONDS):
                peer.fail(f"{system} did not start: {' '.join(call)}")
            yield port, server.pid
        finally:
            server.terminate()
            server.wait(peer.STOP_SECONDS)


def load(options, system, setting):
    """Returns requests per second and the latencies of each test."""
    pipeline, tests = setting["pipeline"], setting.get("tests", options.tests)
    requests = DURABLE_REQUESTS if setting.get("is_durable") else REQUESTS[pipeline]
    requests = int(requests * setting.get("times", 1) * options.part)
    call = ["redis-benchmark", "-h", "127.0.0.1", "-t", tests, "-P", str(pipeline), "--csv"]
    call += ["-c", str(setting.get("connections", options.connections)), "-n", str(requests)]
    call = ["taskset", "-c", "1", *call] if setting.get("is_pinned") else [*call, "--threads", "2"]
    with running(options, system, setting) as (port, pid):
        cpu = peer.cpu_seconds(pid)
        told = subprocess.run([*call, "-p", str(port)], capture_output=True, text=True, timeout=LOAD_SECONDS)
        cpu = peer.cpu_seconds(pid) - cpu
    if told.returncode != 0 or "rror" in told.stdout:
        peer.fail(f"{system}: redis-benchmark failed: {told.stdout} {told.stderr}")
    rows = list(csv.DictReader(io.StringIO(told.stdout)))
    figures = {}
    for row in rows:
        name = row["test"].split()[0].lower()
        figures[f"{name}.rps"] = float(row["rps"])
        figures[f"{name}.p50_ms"] = float(row["p50_latency_ms"])
        figures[f"{name}.p99_ms"] = float(row["p99_latency_ms"])
    figures["server_cpu_us"] = cpu * 1e6 / (requests * max(1, len(rows)))
    return figures


def memory(options, system):
    """Returns the memory that a million entries add to the process."""
    with running(options, system, {}) as (port, pid):
        before = peer.resident_bytes(pid)
        with subprocess.Popen(["redis-cli", "-p", str(port), "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cli:
            for number in range(ENTRIES):
                cli.stdin.write(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$64\r\n%s\r\n" % (number, VALUE.encode()))
            told = cli.communicate()[0].decode()
        if "errors: 0" not in told:
            peer.fail(f"{system}: {told}")
        time.sleep(1)
        return {"resident_mb": (peer.resident_bytes(pid) - before) / 1e6}


def measure(options, name, system):
    return memory(options, system) if name == "memory" else load(options, system, SETTINGS[name])


def show(name, rounds):
    print(f"\n{name}, {len(rounds)} rounds\n")
    print(f"| {'figure':<14} | {'redis':>12} | {'thalweg':>12} | ratio | spread |\n|---|---|---|---|---|")
    for figure in rounds[0]["redis"]:
        of = {system: [one[system][figure] for one in rounds] for system in SYSTEMS}
        ratios = [ours / theirs for ours, theirs in zip(of["thalweg"], of["redis"]) if theirs]
        if ratios:
            medians = [statistics.median(of[system]) for system in SYSTEMS]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            row = f"| {figure:<14} | {medians[0]:>12,.2f} | {medians[1]:>12,.2f} | {statistics.median(ratios):.2f} | {spread} |"
            print(row, flush=True)


def main():
    options = read_arguments()
    peer.end_with_parent()
    found = {}
    for name in options.settings:
        found[name] = []
        for number in range(options.rounds):
            order = list(SYSTEMS) if number % 2 == 0 else list(reversed(SYSTEMS))
            found[name].append({system: measure(options, name, system) for system in order})
        show(name, found[name])
    if options.json:
        with open(options.json, "w") as out:
            json.dump(found, out, indent=1)


main()
