#!/usr/bin/env python3
"""Runs Kafka's own load tools against a separate broker and prints one line of JSON.

The keys are those of `thalweg bench stream --json`, as far as the tools report them. Times that the tools report in
whole milliseconds are converted to microseconds, with the same precision.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

# Number of records, and bytes of each. One in flight uses EndToEndLatency, the others ProducerPerformance. In the mode
# follow-1kb, ConsumerPerformance reads while it writes.
MODES = {
    "one-in-flight": (10_000, 1036),
    "paced": (10_000, 1036),
    "pipelined": (10_000, 1036),
    "1m-1kb": (1_000_000, 1024),
    "follow-1kb": (1_000_000, 1024),
    "3m-100b": (3_000_000, 100),
}
TOPIC = "bench"
# Milliseconds between two reports of ConsumerPerformance, and those that it waits for the first record.
REPORT_MS = 100
FIRST_RECORD_MS = 60_000
PRODUCED = re.compile(
    r"^(?P<records>\d+) (?P<steady>steady state )?records sent, (?P<per_s>[\d.]+) records/sec .*?"
    r"(?P<mean>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, "
    r"(?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th",
    re.MULTILINE,
)
END_TO_END = re.compile(
    r"Avg latency: (?P<mean>[\d.]+) ms\s+Percentiles: 50th = (?P<p50>\d+), 99th = (?P<p99>\d+), 99\.9th = (?P<p999>\d+)"
)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mode", choices=MODES, default="one-in-flight")
    add("--records", type=int, help="number of records, instead of that of the mode")
    add("--record-bytes", type=int)
    add("--partitions", type=int, default=1)
    add("--acks", default="all")
    add("--rate", type=float, default=1000, help="records per second in the mode paced")
    add("--consumer", choices=["after", "none"], default="after", help="in the modes that send as fast as possible")
    add("--batch-bytes", type=int, default=262_144, help="batch.size, in the modes that send as fast as possible")
    add("--linger-ms", type=int, default=5, help="linger.ms, in the modes that send as fast as possible")
    add("--warm-up", type=int, help="records sent first, not counted; a tenth by default, 0 with one in flight")
    add("--nodes", type=int, default=1, help="number of brokers; each has a replica, a majority acknowledges")
    add("--dir", help="folder for the broker's data while it runs; a temporary folder by default")
    options = parser.parse_args()
    records, record_bytes = MODES[options.mode]
    options.records = options.records or records
    options.record_bytes = options.record_bytes or record_bytes
    if options.warm_up is None:
        options.warm_up = options.records // 10
    if options.mode == "one-in-flight":
        # EndToEndLatency contains producer and consumer, and has no warm-up.
        options.consumer, options.warm_up = "together", 0
    elif options.mode == "follow-1kb":
        options.consumer = "together"
    elif options.mode == "paced":
        options.consumer = "none"
    return options


def start_tool(name, *arguments):
    command = [os.path.join(HERE, "java.sh"), f"org.apache.kafka.tools.{name}", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process):
    out, errors = process.communicate()
    if process.returncode != 0:
        peer.fail(f"{' '.join(process.args)} ended with {process.returncode}: {out}{errors}")
    return out


def tool(name, *arguments):
    return output(start_tool(name, *arguments))


def found(pattern, text, name):
    matches = list(pattern.finditer(text))
    if not matches:
        peer.fail(f"{name} printed an unexpected result: {text}")
    return matches[-1].groupdict()


def microseconds(figures, *names):
    return {name: float(figures[name]) * 1000 for name in names}


def produce(options, server):
    if options.mode == "paced":
        # Each record is sent immediately and alone.
        rate, properties = options.rate, ["linger.ms=0"]
    else:
        rate, properties = -1, [f"batch.size={options.batch_bytes}", f"linger.ms={options.linger_ms}"]
    warm_up = ["--warmup-records", options.warm_up] if options.warm_up else []
    begin = time.monotonic()
    out = tool(
        "ProducerPerformance", "--topic", TOPIC, "--num-records", options.records + options.warm_up, *warm_up,
        "--record-size", options.record_bytes, "--throughput", rate, "--bootstrap-server", server,
        "--command-property", f"acks={options.acks}", *properties,
    )
    figures = found(PRODUCED, out, "ProducerPerformance")
    per_s = float(figures["per_s"])
    return {
        "produced": int(figures["records"]),
        # Includes the start of the JVM, which the rate does not.
        "produced_tool_seconds": time.monotonic() - begin,
        "produced_seconds": int(figures["records"]) / per_s,
        "produced_per_s": per_s,
        "produced_mb_per_s": per_s * options.record_bytes / 1e6,
        "producer_us": {
            "count": int(figures["records"]),
            **microseconds(figures, "mean", "p50", "p95", "p99", "p999", "max"),
        },
    }


def consume(options, server):
    count = options.records + options.warm_up
    out = tool(
        "ConsumerPerformance", "--topic", TOPIC, "--num-records", count, "--bootstrap-server", server, "--hide-header"
    )
    row = [cell.strip() for cell in out.strip().splitlines()[-1].split(",")]
    if len(row) != 10:
        peer.fail(f"ConsumerPerformance printed an unexpected result: {out}")
    consumed, with_join_per_s, fetch_ms, per_s = int(row[4]), float(row[5]), float(row[7]), float(row[9])
    return {
        "consumed": min(consumed, options.records),
        # A fetch may return more than the requested records; the records of the warm-up are read as well.
        "lost": max(count - consumed, 0),
        # Without the time to join a group, which the tool reports separately.
        "consumed_seconds": fetch_ms / 1000,
        "consumed_per_s": per_s,
        "consumed_mb_per_s": per_s * options.record_bytes / 1e6,
        "consumed_with_join_per_s": with_join_per_s,
    }


@contextlib.contextmanager
def following(options, server):
    """Runs a consumer alongside. Yields a dictionary that has its figures after the block."""
    count = options.records + options.warm_up
    consumer = start_tool(
        "ConsumerPerformance", "--topic", TOPIC, "--num-records", count, "--bootstrap-server", server, "--hide-header",
        "--show-detailed-stats", "--reporting-interval", REPORT_MS, "--timeout", FIRST_RECORD_MS,
    )
    figures = {}
    try:
        await_member(server, consumer)
        yield figures
        figures.update(followed(options, output(consumer)))
    finally:
        peer.stop(consumer)


def await_member(server, consumer):
    """Waits until the consumer has joined its group, so that it misses no time of the producer."""
    while "perf-consumer" not in (groups := tool("consumer.group.ConsumerGroupCommand", "--list", "--bootstrap-server", server)):
        if consumer.poll() is not None:
            peer.fail(f"ConsumerPerformance ended with {consumer.returncode}; groups: {groups}")


def followed(options, out):
    """Returns the figures of a consumer without the records of the warm-up, from its reports over time."""
    reports = []
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        with contextlib.suppress(ValueError, IndexError):
            reports.append((datetime.datetime.strptime(cells[0], "%Y-%m-%d %H:%M:%S:%f"), int(cells[4])))
    counted = [report for report in reports if report[1] >= options.warm_up]
    if len(counted) < 2:
        peer.fail(f"ConsumerPerformance printed too few reports: {out}")
    (begin, first), (end, last) = counted[0], counted[-1]
    seconds = (end - begin).total_seconds()
    per_s = (last - first) / seconds
    # The last report comes before the last records; without them the program ends with a warning.
    is_whole = "Exiting before consuming" not in out
    lost = 0 if is_whole else max(options.records + options.warm_up - last, 0)
    return {
        "consumed": options.records - lost,
        "lost": lost,
        "consumed_seconds": seconds,
        "consumed_per_s": per_s,
        "consumed_mb_per_s": per_s * options.record_bytes / 1e6,
    }


def end_to_end(options, server):
    out = tool(
        "EndToEndLatency", "--bootstrap-server", server, "--topic", TOPIC, "--num-records", options.records,
        "--producer-acks", options.acks, "--record-size", options.record_bytes,
    )
    figures = found(END_TO_END, out, "EndToEndLatency")
    mean = float(figures["mean"])
    return {
        "produced": options.records,
        "consumed": options.records,
        "lost": 0,
        "produced_per_s": 1000 / mean,
        "e2e_us": {"count": options.records, **microseconds(figures, "mean", "p50", "p99", "p999")},
    }


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=options.dir) as folder:
        data = os.path.join(folder, "broker")
        start = [os.path.join(HERE, "start.sh"), data, str(options.nodes)]
        started = subprocess.run(start, stdout=subprocess.PIPE, text=True)
        if started.returncode != 0:
            peer.fail("the broker does not start")
        try:
            server = ",".join(f"127.0.0.1:{port}" for port in started.stdout.split()[-1].split(","))
            tool("TopicCommand", "--create", "--topic", TOPIC, "--partitions", options.partitions,
                 "--bootstrap-server", server)
            # Of a cluster, the first broker's.
            with open(os.path.join(data, *(["1"] if options.nodes > 1 else []), "pid")) as file:
                watch = peer.Watch(int(file.read()))
            client_before = peer.children_cpu_seconds()
            if options.mode == "one-in-flight":
                figures = end_to_end(options, server)
            elif options.consumer == "together":
                with following(options, server) as consumed:
                    figures = produce(options, server)
                figures.update(consumed)
            else:
                figures = produce(options, server)
                if options.consumer == "after":
                    figures.update(consume(options, server))
            client_cpu = peer.children_cpu_seconds() - client_before
            figures.update(watch.figures())
        finally:
            subprocess.run([os.path.join(HERE, "stop.sh"), data])
    report = {
        "system": "kafka",
        "mode": options.mode,
        "transport": "tcp",
        "records": options.records,
        "record_bytes": options.record_bytes,
        "bytes": options.records * options.record_bytes,
        "partitions": options.partitions,
        "replication": options.nodes,
        "acks": options.acks,
        "consumer": options.consumer,
        **({"rate_per_s": options.rate} if options.mode == "paced" else {}),
        **figures,
        "client_cpu_seconds": client_cpu,
        **peer.machine(),
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
        "command": " ".join(sys.argv),
    }
    print(json.dumps(report))
    if report.get("lost", 0) > 0:
        peer.fail(f"{report['lost']} records were lost")


if __name__ == "__main__":
    main()
