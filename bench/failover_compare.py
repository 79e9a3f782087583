#!/usr/bin/env python3
"""Ends the server that leads, again and again, on three nodes of Thalweg and of other systems, and prints the stalls.

A client appends records one at a time. A stall is the longest time between two acknowledgements around an end. The
server starts again, and the next one ends when all replicas are complete. At last all acknowledged records must be
there. The systems:

  thalweg   through the Kafka door, with the same client as Kafka
  kafka, jetstream, jetstream-sync, etcd
            from the folders of bench/peers; each has an install.sh

The script needs only the standard library, and bench/peers/failover/install.sh.
"""

import argparse
import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(HERE, "peers"))

import peer  # noqa: E402
import servers  # noqa: E402

NODES = 3
SYSTEMS = ["thalweg", "kafka", "jetstream", "jetstream-sync", "etcd"]
# Seconds: of load before an end and after the next acknowledgement, and for everything that has to happen.
SETTLE_SECONDS = 2
LIMIT_SECONDS = 60


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    add("--ends", type=int, default=10, help="number of ends of each system")
    add("--signal", choices=["kill", "term"], default="kill", help="kill for a crash, term for a rolling restart")
    add("--thalweg", default="target/release/thalweg", help="the program; relative to the checkout")
    add("--dir", help="folder for data while a system runs, on the disk to measure; a temporary folder by default")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    if options.ends < 1:
        parser.error("--ends must be at least 1")
    options.thalweg = os.path.join(ROOT, options.thalweg)
    return options


def start(options, system, folder):
    """Returns the servers, the protocol of the load, and the addresses for clients by the name of the server."""
    if system == "thalweg":
        started = servers.Thalweg(folder, options.thalweg)
        started.start_cluster(NODES)
        return started, "kafka", {name: doors["kafka"] for name, doors in started.doors.items()}
    started = servers.Servers(folder)
    if system == "kafka":
        addresses = servers.start_kafka(started, NODES)
    elif system == "etcd":
        addresses = servers.start_etcd(started, NODES)
    else:
        addresses = servers.start_jetstream(started, NODES, "always" if system == "jetstream-sync" else "default")
    return started, system.removesuffix("-sync"), dict(zip(started.processes, addresses))


class Load:
    """The program failover-load, with the times of its acknowledgements."""

    def __init__(self, protocol, addresses):
        command = [os.path.join(HERE, "peers", "failover", "bin", "failover-load"), protocol, ",".join(addresses)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.acknowledged, self.answers = [], queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            word, _, rest = line.rstrip().partition(" ")
            if word == "ack":
                self.acknowledged.append(int(rest) / 1e6)
            else:
                self.answers.put(rest)
        self.answers.put(None)

    def answer(self):
        with contextlib.suppress(queue.Empty):
            if (answer := self.answers.get(timeout=LIMIT_SECONDS)) is not None:
                return answer
        peer.fail("failover-load does not answer")

    def ask(self, question):
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self.answer()

    def until(self, is_true, why):
        end = time.monotonic() + LIMIT_SECONDS
        while not is_true():
            if time.monotonic() > end:
                peer.fail(why)
            time.sleep(peer.LOOK_SECONDS)

    def stall(self, ended):
        """Returns the longest time between two acknowledgements, of those around an end and shortly after it."""
        around = [at for at in self.acknowledged if at > ended - SETTLE_SECONDS]
        return max(later - earlier for earlier, later in zip(around, around[1:]))

    def result(self):
        self.process.stdin.close()
        return json.loads(self.answer())


def run(options, system):
    """Returns the stalls and the result of the load."""
    with tempfile.TemporaryDirectory(prefix="failover-compare-", dir=options.dir) as folder:
        started, protocol, addresses = start(options, system, folder)
        names = {address: name for name, address in addresses.items()} | {name: name for name in addresses}
        load = None
        try:
            load = Load(protocol, addresses.values())
            stalls = []
            for end in range(1, options.ends + 1):
                load.until(lambda: load.ask("whole") == "true", f"{system}: a replica is not complete")
                time.sleep(SETTLE_SECONDS)
                name = names[load.ask("leader")]
                ended = time.time()
                started.end(name, options.signal)
                load.until(lambda: load.acknowledged[-1] > ended + peer.LOOK_SECONDS, f"{system}: no acknowledgement")
                time.sleep(SETTLE_SECONDS)
                stalls.append(load.stall(ended))
                print(f"{system}, end {end} of {options.ends}: {name}, {stalls[-1]:.3f} s", file=sys.stderr)
                started.spawn(name)
            return {"stalls_s": stalls, **load.result()}
        finally:
            if load:
                load.process.kill()
            started.stop()


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    reports = {system: run(options, system) for system in options.systems}
    about = {**peer.machine(), "load_average": {"before": load_before, "after": os.getloadavg()}}
    print(f"{about['cpu']}, {about['cores']} CPUs, Linux {about['kernel']}, load average {load_before[0]:.2f} before")
    print(f"{'system':15} {'ends':>5} {'stall p50':>10} {'max':>8} {'acked':>8} {'lost':>6} {'twice':>6} {'failed':>7}")
    for system, report in reports.items():
        stalls = report["stalls_s"]
        print(f"{system:15} {len(stalls):5} {statistics.median(stalls):8.3f} s {max(stalls):6.3f} s"
              f" {report['acknowledged']:8} {report['lost']:6} {report['twice']:6} {report['failed_tries']:7}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "systems": reports}, file, indent=1)
            file.write("\n")
    if lost := [system for system, report in reports.items() if report["lost"]]:
        peer.fail(f"acknowledged records were lost: {', '.join(lost)}")


if __name__ == "__main__":
    main()
