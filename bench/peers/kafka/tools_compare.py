#!/usr/bin/env python3
"""Runs Kafka's own load tools against Kafka and against Thalweg in turn, and prints the ratios.

Every run has its own server with its own data directory. By default, Kafka acknowledges from the page cache; Thalweg
acknowledges records that are durable on disk. Each round runs each system once, and every other round runs them in
reverse order. The result is the ratio within one round; the table has the median of all rounds and their spread.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import run
from run import HERE, peer, tool

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
START_SECONDS = 60
# Figures: key, label, better direction, and the desired ratio of Thalweg to Kafka.
FIGURES = [
    ("first_produce_ms", "start to first produce, ms", "low", 1 / 50),
    ("100b.produced_per_s", "ProducerPerformance 100 B, records/s", "high", 1.5),
    ("100b.consumed_per_s", "ConsumerPerformance 100 B, records/s", "high", 1.5),
    ("1kb.produced_per_s", "ProducerPerformance 1 KB, records/s", "high", 1.5),
    ("1kb.consumed_per_s", "ConsumerPerformance 1 KB, records/s", "high", 1.5),
    ("e2e.mean_us", "EndToEndLatency 1 KB, mean us", "low", 0.5),
    ("e2e.p50_us", "EndToEndLatency 1 KB, p50 us (whole ms)", "low", 0.5),
    ("e2e.p99_us", "EndToEndLatency 1 KB, p99 us (whole ms)", "low", 0.5),
    ("returned_p50_us", "RoundTrip.java 1 KB, end to end p50 us", "low", 0.5),
    ("returned_p99_us", "RoundTrip.java 1 KB, end to end p99 us", "low", 0.5),
    ("acknowledged_p50_us", "RoundTrip.java 1 KB, acknowledged p50 us", "low", None),
    ("acknowledged_p99_us", "RoundTrip.java 1 KB, acknowledged p99 us", "low", None),
    ("resident_mb", "resident memory after the runs, MB", "low", 1 / 8),
    ("resident_max_mb", "maximum resident memory, MB", "low", None),
    ("cpu_s_per_gb_produced", "server CPU s per GB produced (1 KB)", "low", None),
    ("cpu_s_per_gb_consumed", "server CPU s per GB consumed (1 KB)", "low", None),
]
# One record with the value "first", as a batch of the current format.
FIRST_BATCH = bytes.fromhex(
    "00000000000000000000003d00000000023b3bbbfc00000000000000000000000000000000000000000000ffff"
    "ffffffffffffffffffffffff0000000116000000010a666972737400"
)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--records", type=int, default=1_000_000, help="records of ProducerPerformance and ConsumerPerformance")
    add("--latency-records", type=int, default=10_000, help="records of EndToEndLatency and RoundTrip.java")
    add("--thalweg", default=os.path.join(ROOT, "target/release/thalweg"), help="the program")
    add("--systems", nargs="+", choices=list(SYSTEMS), default=["kafka", "thalweg"])
    add("--dir", help="folder for data while a system runs; a temporary folder by default")
    add("--json", metavar="FILE", help="write all figures to this file")
    return parser.parse_args()


@contextlib.contextmanager
def kafka(folder, _options):
    data = os.path.join(folder, "broker")
    begin = time.monotonic()
    started = subprocess.run([os.path.join(HERE, "start.sh"), data], stdout=subprocess.PIPE, text=True)
    if started.returncode != 0:
        peer.fail("Kafka does not start")
    try:
        with open(os.path.join(data, "pid")) as file:
            yield int(file.read()), int(started.stdout.split()[-1]), begin
    finally:
        subprocess.run([os.path.join(HERE, "stop.sh"), data])


@contextlib.contextmanager
def thalweg(folder, options, storage=("--data", "data")):
    [port] = peer.free_ports(1)
    begin = time.monotonic()
    command = [options.thalweg, "serve", "--native", "off", "--http", "off", "--kafka", f"127.0.0.1:{port}",
               "--pubsub", "off", "--redis", "off", "--sqs", "off", *storage]
    with open(os.path.join(folder, "log"), "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield server.pid, port, begin
    finally:
        peer.stop(server)


def thalweg_in_memory(folder, options):
    """Runs without a disk, so that only the costs of the tools and of the protocol remain."""
    return thalweg(folder, options, storage=("--set", "retention_bytes=4GiB", "--set", "memory_max=8GiB"))


SYSTEMS = {"kafka": kafka, "thalweg": thalweg, "thalweg-memory": thalweg_in_memory}


def ask(connection, key, version, body):
    """Sends one request without a client name. Returns its answer without the head."""
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    answer = connection.makefile("rb")
    return answer.read(struct.unpack(">i", answer.read(4))[0])[4:]


def first_produce(port, begin):
    """Returns the milliseconds from the start of a server until it has acknowledged a record in a new topic."""
    topic = struct.pack(">h", 5) + b"first"
    data = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + topic + struct.pack(">iii", 1, 0, len(FIRST_BATCH))
    while time.monotonic() - begin < START_SECONDS:
        with contextlib.suppress(OSError, struct.error):
            with socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS) as connection:
                # A Metadata request that creates the topic.
                ask(connection, 3, 4, struct.pack(">i", 1) + topic + b"\x01")
                answer = ask(connection, 0, 3, data + FIRST_BATCH)
                code = struct.unpack(">h", answer[19:21])[0]
                if code == 0:
                    return (time.monotonic() - begin) * 1000
        time.sleep(0.001)
    peer.fail("no record was acknowledged")


def load(watch_pid, server, name, records, record_bytes):
    """Runs ProducerPerformance and ConsumerPerformance with their default settings."""
    run.TOPIC = f"perf-{name}"
    tool("TopicCommand", "--create", "--topic", run.TOPIC, "--partitions", 1, "--bootstrap-server", server)
    before = peer.cpu_seconds(watch_pid)
    out = tool(
        "ProducerPerformance", "--topic", run.TOPIC, "--num-records", records, "--record-size", record_bytes,
        "--throughput", -1, "--bootstrap-server", server, "--command-property", "acks=all",
    )
    produced = run.found(run.PRODUCED, out, "ProducerPerformance")
    between = peer.cpu_seconds(watch_pid)
    options = SimpleNamespace(records=records, warm_up=0, record_bytes=record_bytes)
    consumed = run.consume(options, server)
    if consumed["lost"]:
        peer.fail(f"{consumed['lost']} records were lost")
    after = peer.cpu_seconds(watch_pid)
    gigabytes = records * record_bytes / 1e9
    return {
        f"{name}.produced_per_s": float(produced["per_s"]),
        f"{name}.consumed_per_s": consumed["consumed_per_s"],
        "cpu_s_per_gb_produced": (between - before) / gigabytes,
        "cpu_s_per_gb_consumed": (after - between) / gigabytes,
    }


def round_trip(server, records):
    """Measures the latency of EndToEndLatency in microseconds instead of whole milliseconds, after a warm-up."""
    tool("TopicCommand", "--create", "--topic", "round-trip", "--partitions", 1, "--bootstrap-server", server)
    program = os.path.join(HERE, "RoundTrip.java")
    command = [os.path.join(HERE, "java.sh"), program, server, "round-trip", str(records), "1024", str(records)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        peer.fail(f"RoundTrip.java ended with {done.returncode}: {done.stdout}{done.stderr}")
    figures = {}
    for line in done.stdout.splitlines():
        what, *numbers = line.split()
        figures.update({f"{what}_{name}_us": float(us) for name, us in zip(numbers[::2], numbers[1::2])})
    return figures


def measure(system, options):
    with tempfile.TemporaryDirectory(prefix=f"{system}-", dir=options.dir) as folder:
        with SYSTEMS[system](folder, options) as (pid, port, begin):
            figures = {"first_produce_ms": first_produce(port, begin)}
            watch = peer.Watch(pid)
            server = f"127.0.0.1:{port}"
            figures.update(load(pid, server, "100b", options.records, 100))
            figures.update(load(pid, server, "1kb", options.records, 1000))
            run.TOPIC = "latency"
            tool("TopicCommand", "--create", "--topic", run.TOPIC, "--partitions", 1, "--bootstrap-server", server)
            latency = run.end_to_end(
                SimpleNamespace(records=options.latency_records, acks="all", record_bytes=1024), server)["e2e_us"]
            figures.update({f"e2e.{name}_us": latency[name] for name in ("mean", "p50", "p99", "p999")})
            figures.update(round_trip(server, options.latency_records))
            figures["resident_mb"] = peer.resident_bytes(pid) / 1e6
            figures["resident_max_mb"] = watch.figures()["server_resident_bytes_max"] / 1e6
            return figures


def table(rounds):
    systems = [system for system in SYSTEMS if system in rounds[0]]
    print(f"{'':44} " + " ".join(f"{system:>14}" for system in systems) + f" {'ratio':>8}  spread          aim")
    for key, label, better, aim in FIGURES:
        median = {system: statistics.median(one[system][key] for one in rounds) for system in rounds[0]}
        cells = " ".join(f"{median[system]:14.1f}" for system in systems)
        line = f"{label:44} {cells}"
        if {"kafka", "thalweg"} <= median.keys():
            ratios = sorted(one["thalweg"][key] / one["kafka"][key] for one in rounds if one["kafka"][key])
            if ratios:
                ratio = statistics.median(ratios)
                line += f" {ratio:8.3f}  {ratios[0]:.3f} to {ratios[-1]:.3f}"
                if aim:
                    reached = ratio >= aim if better == "high" else ratio <= aim
                    line += f"  {'>=' if better == 'high' else '<='} {aim:.3g} {'reached' if reached else 'MISSED'}"
        print(line)


def main():
    options = read_arguments()
    peer.end_with_parent()
    rounds, before = [], os.getloadavg()
    for number in range(options.rounds):
        order = options.systems if number % 2 == 0 else options.systems[::-1]
        rounds.append({system: measure(system, options) for system in order})
        print(f"round {number + 1} of {options.rounds}: {json.dumps(rounds[-1])}", file=sys.stderr)
    table(rounds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rounds": rounds, **peer.machine(), "load_average_before": before,
                       "load_average_after": os.getloadavg(), "command": " ".join(sys.argv)}, file, indent=1)


if __name__ == "__main__":
    main()
