#!/usr/bin/env python3
"""Measures the cost of access control at the Redis door: the same load on a broker without it and on one with it.

The broker uses core 0 and `redis-benchmark` core 1, with 16 requests in flight on each of 50 connections. In each
round each broker is started alone, in changing order, and a ratio is within one round. A topic exists in both, so
that keys could be streams. The script needs Linux, Python 3 and redis-tools.

    bench/access_compare.py target/release/thalweg --rounds 9
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import peer  # noqa: E402

START_SECONDS = 10
REQUESTS = 2_000_000
KEYS = 100_000
VALUE_BYTES = 64
TESTS = ("set", "get")
USER, PASSWORD = "bob", "secret"
LOCKED = ("auth=required", "authorization=true", f"users={USER}:{PASSWORD}")


class Broker:
    """A broker on core 0, with or without access control."""

    def __init__(self, program, settings):
        self.program = program
        self.redis, self.native = peer.free_ports(2)
        doors = [f"redis=127.0.0.1:{self.redis}", f"native=127.0.0.1:{self.native}"]
        doors += [f"{door}=off" for door in ("http", "kafka", "sqs", "pubsub")]
        sets = [part for pair in [*doors, "threads=1", *settings] for part in ("--set", pair)]
        self.log = tempfile.TemporaryFile()
        command = ["taskset", "-c", "0", program, "serve", *sets]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        answer = b"-NOAUTH" if settings else b"+PONG"
        if not peer.await_answer(self.process, self.redis, b"PING\r\n", answer, START_SECONDS):
            peer.fail("the broker does not answer")

    def run(self, *command):
        subprocess.run([self.program, "-s", f"tcp://127.0.0.1:{self.native}", *command], check=True, capture_output=True)

    def rate(self, test, login):
        """Returns the requests per second of one run."""
        command = ["taskset", "-c", "1", "redis-benchmark", "-p", str(self.redis), "-t", test, "-n", str(REQUESTS)]
        command += ["-P", "16", "-c", "50", "-d", str(VALUE_BYTES), "-r", str(KEYS), "-q", *login]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rates = re.findall(r"([\d.]+) requests per second", output)
        return float(rates[-1]) if rates else peer.fail(f"redis-benchmark says: {output}")

    def stop(self):
        peer.stop(self.process)


def measure(program, is_locked):
    """Returns the rates of all tests of a broker that is started for them."""
    broker = Broker(program, LOCKED if is_locked else ())
    try:
        broker.run("topic", "create", "orders")
        login = []
        if is_locked:
            broker.run("acl", "add", f"User:{USER}", "read,write", "cache", "db0/", "--prefix")
            login = ["--user", USER, "-a", PASSWORD]
        return {test: broker.rate(test, login) for test in TESTS}
    finally:
        broker.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program thalweg, in release mode")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    peer.end_with_parent()
    rounds = []
    for number in range(args.rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        rounds.append({is_locked: measure(args.program, is_locked) for is_locked in order})
    print(f"{peer.machine()['cpu']}, medians of {args.rounds} rounds")
    for test in TESTS:
        opened, locked = (statistics.median(each[is_locked][test] for each in rounds) for is_locked in (False, True))
        ratios = sorted(each[True][test] / each[False][test] for each in rounds)
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"{test}: {opened:.0f}/s without, {locked:.0f}/s with, ratio {statistics.median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
