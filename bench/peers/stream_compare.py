#!/usr/bin/env python3
"""Runs `thalweg bench stream` and the same work on other systems in turn, and prints the ratios.

Every run has its own server, started for it. Each round runs each system once, and every other round runs them in
reverse order. The result is the ratio of Thalweg to a peer within one round, because the speed of a host drifts from
minute to minute; the table has the median of all rounds and their spread. The script needs only the standard library.
"""

import argparse
import os
import shlex
import subprocess
import tempfile

import peer
import rounds

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

RATES = [("produced_per_s", "produced/s"), ("consumed_per_s", "consumed/s")]
END_TO_END = [("e2e_us.mean", "end to end, mean us"), ("e2e_us.p50", "end to end, p50 us"),
              ("e2e_us.p99", "end to end, p99 us")]
PRODUCER = [("producer_us.p50", "acknowledgement, p50 us"), ("producer_us.p99", "acknowledgement, p99 us")]
MEMORY = [("server_resident_bytes_max", "server memory, MB")]

# By name: number of records, bytes of each, records in a batch of Thalweg, and the compared figures. The programs of
# the peers use the same names for these modes.
SCENARIOS = {
    "one-in-flight": {"records": 10_000, "bytes": 1036, "batch": 1, "figures": END_TO_END + PRODUCER + MEMORY},
    "paced": {"records": 10_000, "bytes": 1036, "batch": 1, "figures": PRODUCER + MEMORY},
    "1m-1kb": {"records": 1_000_000, "bytes": 1024, "batch": 64, "figures": RATES + MEMORY},
    "follow-1kb": {"records": 1_000_000, "bytes": 1024, "batch": 64, "figures": RATES + MEMORY},
    "3m-100b": {"records": 3_000_000, "bytes": 100, "batch": 512, "figures": RATES + MEMORY},
}
RATE_PER_S = 1000
IN_FLIGHT = 16
FLOOR_SECONDS = 2
SYSTEMS = ["kafka", "jetstream", "jetstream-sync", "floor"]
# One sync per record: a thousandth of a run takes as long as a whole run of another system.
SYNC_RECORDS_MAX = 20_000


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, default=["kafka", "jetstream"],
        help="systems to compare with Thalweg; floor is bench/floor/bin/group_commit, which only acknowledges")
    add("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    add("--rounds", type=int, default=5)
    add("--scale", type=float, default=1, help="factor for the numbers of records: 0.01 for a trial")
    add("--storage", choices=["disk", "memory"], default="disk",
        help="storage of Thalweg and JetStream; Kafka supports files only")
    add("--thalweg", default="target/release/thalweg", help="the program; relative to the checkout")
    add("--options", default="", help="more options for `thalweg bench stream`, as one argument")
    add("--dir", help="folder for data while a system runs, on the disk to measure; a temporary folder by default")
    add("--realtime", action="store_true", help="run all with `chrt -r 5`, so that other work has to wait")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if options.rounds < 1 or options.scale <= 0:
        parser.error("--rounds must be at least 1 and --scale above 0")
    options.thalweg = os.path.join(ROOT, options.thalweg)
    return options


def commands(options, name):
    """Returns the command of each system for a scenario, by the name of the system. Thalweg is the first."""
    scenario = SCENARIOS[name]
    records = max(int(scenario["records"] * options.scale), 100)
    size = ["--record-bytes", scenario["bytes"]]
    shape = ["--batch", scenario["batch"], "--in-flight", 1 if name == "one-in-flight" else IN_FLIGHT]
    consumer = {"one-in-flight": "together", "follow-1kb": "together", "paced": "none"}.get(name, "after")
    rate = ["--rate", RATE_PER_S] if name == "paced" else []
    folder = ["--dir", options.dir] if options.dir else []
    # Each run has its own folder.
    storage = ["--storage", options.storage, *(["--data", "."] if options.storage == "disk" else [])]
    found = {
        "thalweg": [options.thalweg, "bench", "stream", "--json", "--records", records, *size, *shape, *storage,
                    "--consumer", consumer, *rate, *shlex.split(options.options)],
    }
    if "kafka" in options.systems:
        found["kafka"] = [os.path.join(HERE, "kafka", "run.py"), "--mode", name, "--records", records, *size, *folder]
    jetstream = [os.path.join(HERE, "nats-jetstream", "run.py"), "--mode", name, *folder]
    if "jetstream" in options.systems:
        memory = ["-storage", "memory"] if options.storage == "memory" else []
        found["jetstream"] = [*jetstream, "-records", records, *memory]
    if "jetstream-sync" in options.systems:
        found["jetstream-sync"] = [*jetstream, "--sync", "always", "-records", min(records, SYNC_RECORDS_MAX)]
    if "floor" in options.systems and name != "paced":
        clients, in_flight = (1, 1) if name == "one-in-flight" else (IN_FLIGHT, scenario["batch"])
        found["floor"] = [os.path.join(ROOT, "bench", "floor", "bin", "group_commit"), clients, in_flight,
                          scenario["bytes"], FLOOR_SECONDS]
    return found


def run(options, command):
    prefix = ["chrt", "-r", "5"] if options.realtime else []
    words = [*prefix, *map(str, command)]
    with tempfile.TemporaryDirectory(prefix="stream-compare-", dir=options.dir) as folder:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder)
        try:
            out, _ = process.communicate()
        finally:
            peer.stop(process)
    if process.returncode != 0:
        peer.fail(f"{shlex.join(words)} ended with {process.returncode}")
    return rounds.last_json(out, shlex.join(words))


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before, table, runs = os.getloadavg(), [], []
    for name in options.scenarios:
        to_run = commands(options, name)
        found = rounds.alternate(name, list(to_run), options.rounds, lambda system: run(options, to_run[system]))
        table += rounds.rows(name, SCENARIOS[name]["figures"], found)
        runs.append({"scenario": name, "rounds": found})
    note = (f"{options.rounds} rounds, each with every system in turn, Thalweg's topics in {options.storage},"
            f" records x {options.scale:g}{', real time' if options.realtime else ''}")
    rounds.finish("thalweg", note, options, load_before, table, runs)


if __name__ == "__main__":
    main()
