#!/usr/bin/env python3
"""Measures the rate at which a topic is copied to another site, against durable publishing at one broker.

Two brokers on loopback are two sites of a mesh. In each round, `thalweg publish` writes records of 1 KiB, each
acknowledged when it is on disk: to a topic that is not copied; to one that is copied meanwhile; and to one while the
other site is stopped, which then catches up. Every rate is in records per second.

    python3 bench/mesh_copies.py target/release/thalweg --records 300000 --rounds 3
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

VALUE = "x" * 1024


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Site:
    """A broker with a data directory."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        self.native, self.http, self.mesh = free_port(), free_port(), free_port()
        self.start()

    def start(self):
        doors = [f"--{door}=off" for door in ("kafka", "redis", "sqs", "pubsub")]
        at = [f"--native=127.0.0.1:{self.native}", f"--http=127.0.0.1:{self.http}"]
        command = [self.program, "serve", f"--data={self.folder}", *at, *doors]
        command += [f"--set=mesh=127.0.0.1:{self.mesh}", "--set=log=warn"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.get("/v1/topics")
                return
            except urllib.error.URLError:
                time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}") as answer:
            return json.load(answer)

    def run(self, *arguments, text=None):
        command = [self.program, f"--server=tcp://127.0.0.1:{self.native}", *arguments]
        return subprocess.run(command, check=True, input=text, text=True, stdout=subprocess.PIPE).stdout

    def end(self, topic):
        """Returns the end of a topic, 0 if it does not exist."""
        try:
            return self.get(f"/v1/topics/{topic}")["partitions"][0]["end_offset"]
        except urllib.error.HTTPError:
            return 0

    def until_end(self, topic, end):
        while self.end(topic) < end:
            time.sleep(0.01)

    def publish(self, topic, records):
        """Publishes records, and returns their rate."""
        begin = time.monotonic()
        self.run("publish", topic, VALUE, f"--count={records}", "--acks=committed")
        return records / (time.monotonic() - begin)


def mirror(origin, other, topic):
    origin.run("topic", "create", topic, "--mesh=source")
    other.run("topic", "create", topic, "--mesh=mirror")


def measure(origin, other, round_, records):
    origin.run("topic", "create", f"plain{round_}")
    alone = origin.publish(f"plain{round_}", records)

    mirror(origin, other, f"during{round_}")
    origin.publish(f"during{round_}", 1)
    other.until_end(f"origin.during{round_}", 1)
    begin = time.monotonic()
    origin.publish(f"during{round_}", records)
    other.until_end(f"origin.during{round_}", records + 1)
    during = records / (time.monotonic() - begin)

    mirror(origin, other, f"after{round_}")
    other.stop()
    origin.publish(f"after{round_}", records)
    other.start()
    other.until_end(f"origin.after{round_}", 1)
    begin, first = time.monotonic(), other.end(f"origin.after{round_}")
    other.until_end(f"origin.after{round_}", records)
    after = (records - first) / (time.monotonic() - begin)
    return {"alone": alone, "during": during, "after": after}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=".")
    sites = []
    try:
        origin = Site(arguments.program, f"{folder}/origin")
        sites.append(origin)
        other = Site(arguments.program, f"{folder}/other")
        sites.append(other)
        origin.run("mesh", "init", "origin")
        other.run("mesh", "join", "--site", "other", text=origin.run("mesh", "invite"))
        rounds = []
        for round_ in range(arguments.rounds):
            rates = measure(origin, other, round_, arguments.records)
            rounds.append(rates)
            ratios = {f"{name}_ratio": round(rates[name] / rates["alone"], 3) for name in ("during", "after")}
            print(json.dumps({name: round(rate) for name, rate in rates.items()} | ratios), flush=True)
        for name in ("during", "after"):
            print(name, "median ratio", round(statistics.median(of[name] / of["alone"] for of in rounds), 3))
    finally:
        for site in sites:
            site.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
