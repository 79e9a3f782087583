#!/usr/bin/env python3
"""Puts the same load on redis-server and on Thalweg's Redis door in turn, and prints the ratios.

The load is redis-benchmark, of the same package as redis-server. Every run has its own server. Each round runs each
system once, and every other round runs them in reverse order. The result is the ratio within one round; the table has
the median of all rounds and their spread.
"""

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)

import peer  # noqa: E402
from redis_servers import ROOT, SYSTEMS, running, show  # noqa: E402

LOAD_SECONDS = 600
TESTS = "set,get,incr,lpush,rpop,hset,zadd"
# Settings by name: pinned to one core each or not, and the number of requests in flight on each connection.
SETTINGS = {
    "one-core-1": {"is_pinned": True, "pipeline": 1},
    "one-core-16": {"is_pinned": True, "pipeline": 16},
    "all-cores-1": {"is_pinned": False, "pipeline": 1, "times": 5},
    "all-cores-16": {"is_pinned": False, "pipeline": 16, "times": 6},
    "durable-1": {"is_pinned": False, "pipeline": 1, "is_durable": True, "connections": 64, "tests": "set", "times": 5},
    "scripts-1": {"pipeline": 1, "has_scripts": True},
    "scripts-16": {"pipeline": 16, "has_scripts": True},
}
# A rate limiter with a sliding window, and a script that only reads its key.
SCRIPTS = {
    "limiter": """
        redis.call('zremrangebyscore', KEYS[1], '-inf', ARGV[1] - 1000)
        local count = redis.call('zcard', KEYS[1])
        if count < tonumber(ARGV[2]) then
          redis.call('zadd', KEYS[1], ARGV[1], ARGV[1])
          redis.call('pexpire', KEYS[1], 1000)
          return 1
        end
        return 0
    """,
    "get_script": "return redis.call('get', KEYS[1])",
}
SCRIPT_ARGUMENTS = {"limiter": ["1000", "10"], "get_script": []}
SCRIPT_REQUESTS = {1: 150_000, 16: 600_000}
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


def load(options, system, setting):
    """Returns requests per second and the latencies of each test."""
    pipeline, tests = setting["pipeline"], setting.get("tests", options.tests)
    requests = DURABLE_REQUESTS if setting.get("is_durable") else REQUESTS[pipeline]
    requests = int(requests * setting.get("times", 1) * options.part)
    call = ["redis-benchmark", "-h", "127.0.0.1", "-t", tests, "-P", str(pipeline), "--csv"]
    call += ["-c", str(setting.get("connections", options.connections)), "-n", str(requests)]
    call = ["taskset", "-c", "1", *call] if setting.get("is_pinned") else [*call, "--threads", "2"]
    with running(options.thalweg, system, setting) as (port, pid):
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


def scripts(options, system, setting):
    """Returns requests per second, and the server's CPU time per request, of each script and of a plain GET."""
    pipeline = setting["pipeline"]
    requests = int(SCRIPT_REQUESTS[pipeline] * options.part)
    figures = {}
    with running(options.thalweg, system, setting) as (port, pid):
        call = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-c", str(options.connections), "-P", str(pipeline)]
        call += ["-n", str(requests), "-r", "10000", "--csv"]
        commands = {"get": ["GET", "key:__rand_int__"]}
        for name, text in SCRIPTS.items():
            loaded = subprocess.run(["redis-cli", "-p", str(port), "SCRIPT", "LOAD", text], capture_output=True, text=True)
            commands[name] = ["EVALSHA", loaded.stdout.strip(), "1", "key:{" + name + "}:__rand_int__", *SCRIPT_ARGUMENTS[name]]
        for name, command in commands.items():
            cpu = peer.cpu_seconds(pid)
            told = subprocess.run([*call, *command], capture_output=True, text=True, timeout=LOAD_SECONDS)
            cpu = peer.cpu_seconds(pid) - cpu
            rows = list(csv.reader(io.StringIO(told.stdout)))
            if told.returncode != 0 or len(rows) != 2:
                peer.fail(f"{system}: redis-benchmark failed: {told.stdout} {told.stderr}")
            # The name of the row is the command, which may have commas.
            figures[f"{name}.rps"] = float(rows[1][rows[0].index("rps")])
            figures[f"{name}.cpu_us"] = cpu * 1e6 / requests
    return figures


def memory(options, system):
    """Returns the memory that a million entries add to the process."""
    with running(options.thalweg, system) as (port, pid):
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
    if name == "memory":
        return memory(options, system)
    setting = SETTINGS[name]
    return scripts(options, system, setting) if setting.get("has_scripts") else load(options, system, setting)


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
