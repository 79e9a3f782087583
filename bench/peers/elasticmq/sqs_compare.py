#!/usr/bin/env python3
"""Puts the same load on the SQS door of ElasticMQ and of Thalweg in turn, and prints the ratios.

Every run has its own server. The load is sqs-load: JSON over HTTP with keep-alive, from another process on the same
machine, with one request in flight on each connection. ElasticMQ is warmed up first, because a cold JVM is slow.
Each round runs each system once, and every other round runs them in reverse order. The result is the ratio within one
round; the table has the median of all rounds and their spread. Run install.sh first.
"""

import argparse
import atexit
import contextlib
import http.client
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

START_SECONDS = 120
# Maximum time of sqs-load beyond its own duration: one answer, and the deletion of the queue.
LOAD_SECONDS = 90
MODES = ["send", "cycle", "batch"]
CONNECTIONS = [1, 64, 1000]
WARM_UP_CONNECTIONS = 64
# Aims by figure: for the ratio of Thalweg to ElasticMQ, or for Thalweg alone.
AIMS = {"send-64.calls_per_s": (">=", 2.5), "cycle-64.messages_per_s": (">=", 2), "send-64.p99_us": ("<=", 1 / 3)}
AIMS_ALONE = {"send-64.server_cpu_us": 25, "first_send_ms": 50, "resident_start_mb": 30}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=list(SYSTEMS), default=["elasticmq", "thalweg"])
    add("--modes", nargs="+", choices=MODES, default=MODES,
        help="send; cycle: send, receive, delete; batch: cycle with ten messages per call")
    add("--connections", nargs="+", type=int, default=CONNECTIONS)
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=4, help="duration of each mode with each number of connections")
    add("--body-bytes", type=int, default=1024)
    add("--warm-up", type=float, default=40, help="seconds of load on ElasticMQ before the measurement")
    add("--thalweg", default=os.path.join(ROOT, "target/release/thalweg"), help="the program")
    add("--options", default="", help="more options for `thalweg serve`, as one argument")
    add("--dir", help="folder for data while a system runs; a temporary folder by default")
    add("--realtime", action="store_true", help="run all with `chrt -r 5`, so that other work has to wait")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    # Each server runs in its own folder.
    options.thalweg = os.path.abspath(options.thalweg)
    if options.rounds < 1 or options.seconds <= 0 or min(options.connections) < 1:
        parser.error("--rounds, --seconds and --connections must be above 0")
    if not os.access(os.path.join(HERE, "bin", "sqs-load"), os.X_OK):
        peer.fail("sqs-load is missing; run install.sh first")
    return options


def elasticmq(port, _options):
    return [os.path.join(HERE, "elasticmq.sh"), port]


def thalweg(port, options, storage=("--set", "retention_bytes=4GiB", "--set", "memory_max=8GiB")):
    return [options.thalweg, "serve", "--native", "off", "--http", "off", "--kafka", "off", "--pubsub", "off", "--redis", "off", "--sqs",
            f"127.0.0.1:{port}", *storage, *shlex.split(options.options)]


def thalweg_on_disk(port, options):
    return thalweg(port, options, storage=("--data", "data"))


def thalweg_sqlite(port, options):
    """Creates the queues of sqs-load on startup, because SQS cannot set the storage of a queue."""
    handle, path = tempfile.mkstemp(prefix="thalweg-sqlite-", suffix=".toml")
    atexit.register(os.unlink, path)
    with open(handle, "w") as file:
        for mode in options.modes:
            for connections in options.connections:
                file.write(f'[[queues]]\nname = "load-{mode}-{connections}"\nstorage = "sqlite"\n')
    return thalweg(port, options, storage=("--data", "data", "--config", path))


SYSTEMS = {"elasticmq": elasticmq, "thalweg": thalweg, "thalweg-disk": thalweg_on_disk, "thalweg-sqlite": thalweg_sqlite}


def ask(connection, action, body):
    """Returns the answer to one call if it succeeded."""
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    connection.request("POST", "/", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    return json.loads(text) if answer.status == 200 else None


def first_send(server, port, log, begin):
    """Returns the milliseconds from the start of a server until it has accepted a message into a new queue."""
    while time.monotonic() - begin < START_SECONDS:
        if server.poll() is not None:
            with open(log) as lines:
                peer.fail(f"{shlex.join(server.args)} ended with {server.returncode}: {lines.read()[-2000:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)) as connection:
                queue = ask(connection, "CreateQueue", {"QueueName": "first"})
                if queue and ask(connection, "SendMessage", {**queue, "MessageBody": "first"}):
                    return (time.monotonic() - begin) * 1000
        time.sleep(0.001)
    peer.fail(f"{shlex.join(server.args)} accepted no message in {START_SECONDS} s")


def load(options, server, port, mode, connections, seconds):
    command = [*realtime(options), os.path.join(HERE, "bin", "sqs-load"), "-address", f"127.0.0.1:{port}", "-mode", mode,
               "-connections", connections, "-seconds", seconds, "-body-bytes", options.body_bytes, "-pid", server.pid]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, timeout=seconds + LOAD_SECONDS)
    if done.returncode != 0:
        peer.fail(f"{mode} with {connections} connections ended with {done.returncode}")
    return json.loads(done.stdout)


def realtime(options):
    return ["chrt", "-r", "5"] if options.realtime else []


def measure(system, options):
    """Returns all figures of one server by their names, and the reports of sqs-load."""
    [port] = peer.free_ports(1)
    with tempfile.TemporaryDirectory(prefix=f"{system}-", dir=options.dir) as folder:
        log = os.path.join(folder, "log")
        command = [*realtime(options), *map(str, SYSTEMS[system](port, options))]
        begin = time.monotonic()
        with open(log, "wb") as lines:
            server = subprocess.Popen(command, stdout=lines, stderr=lines, stdin=subprocess.DEVNULL, cwd=folder)
        try:
            figures = {"first_send_ms": first_send(server, port, log, begin)}
            figures["resident_start_mb"] = peer.resident_bytes(server.pid) / 1e6
            if system == "elasticmq" and options.warm_up > 0:
                for mode in options.modes:
                    load(options, server, port, mode, WARM_UP_CONNECTIONS, options.warm_up / len(options.modes))
            reports = []
            for mode in options.modes:
                for connections in options.connections:
                    report = load(options, server, port, mode, connections, options.seconds)
                    reports.append(report)
                    figures.update(figures_of(report))
            figures["resident_mb"] = peer.resident_bytes(server.pid) / 1e6
            figures["resident_max_mb"] = max(report["server_resident_bytes_max"] for report in reports) / 1e6
            return figures, reports
        finally:
            peer.stop(server)


def figures_of(report):
    name = f"{report['mode']}-{report['connections']}"
    found = {
        f"{name}.calls_per_s": report["calls_per_s"],
        f"{name}.messages_per_s": report["messages_per_s"],
        f"{name}.server_cpu_us": report["server_cpu_us_per_call"],
        f"{name}.client_cpu_us": report["client_cpu_us_per_call"],
    }
    # Latency of one call; the report of sqs-load has the latency of a whole cycle.
    if "all" in report["latency_us"]:
        found.update({f"{name}.{rank}_us": report["latency_us"]["all"][rank] for rank in ("p50", "p99")})
    return found


def rows(rounds, systems):
    """Returns a row for each figure: medians by system, and the ratio of the first Thalweg system to ElasticMQ."""
    ours = next((system for system in systems if system != "elasticmq"), None)
    found = []
    for figure in rounds[0][systems[0]]:
        values = {system: [one[system].get(figure) for one in rounds] for system in systems}
        if any(None in some for some in values.values()):
            continue
        row = {"figure": figure, "median": {system: statistics.median(some) for system, some in values.items()}}
        if ours and "elasticmq" in systems and all(values["elasticmq"]):
            ratios = sorted(one / theirs for one, theirs in zip(values[ours], values["elasticmq"]))
            row["ratio"] = {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]}
            if figure in AIMS:
                sign, aim = AIMS[figure]
                is_reached = row["ratio"]["median"] >= aim if sign == ">=" else row["ratio"]["median"] <= aim
                row["aim"] = f"{sign} {aim:.3g} {'reached' if is_reached else 'MISSED'}"
        if ours and figure in AIMS_ALONE:
            is_reached = row["median"][ours] <= AIMS_ALONE[figure]
            row["aim"] = f"{AIMS_ALONE[figure]} at most {'reached' if is_reached else 'MISSED'}"
        found.append(row)
    return found


def print_table(table, systems):
    print(f"{'':26} " + " ".join(f"{system:>13}" for system in systems) + f" {'ratio':>8}  {'spread':18} aim")
    for row in table:
        line = f"{row['figure']:26} " + " ".join(f"{row['median'][system]:13.1f}" for system in systems)
        ratio = row.get("ratio")
        line += f" {ratio['median']:8.3g}  {ratio['min']:.3g} to {ratio['max']:.3g}".ljust(29) if ratio else " " * 29
        print(f"{line} {row.get('aim', '')}".rstrip())


def main():
    options = read_arguments()
    peer.end_with_parent()
    systems = list(dict.fromkeys(options.systems))
    load_before, rounds, reports = os.getloadavg(), [], []
    for turn in range(options.rounds):
        figures = {}
        for system in systems if turn % 2 == 0 else systems[::-1]:
            print(f"round {turn + 1} of {options.rounds}: {system}", file=sys.stderr)
            figures[system], runs = measure(system, options)
            reports.append({"round": turn + 1, "system": system, "figures": figures[system], "runs": runs})
        rounds.append(figures)
    about = {**peer.machine(), "load_average_before": load_before, "load_average_after": os.getloadavg()}
    table = rows(rounds, systems)
    print(f"{options.rounds} rounds, {options.seconds:g} s each, {options.body_bytes} B;"
          f" {about['cpu']}, {about['cores']} CPUs, Linux {about['kernel']},"
          f" load average {load_before[0]:.2f} before, {about['load_average_after'][0]:.2f} after")
    print_table(table, systems)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "table": table, "runs": reports}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
