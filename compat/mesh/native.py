#!/usr/bin/env python3
"""Command `thalweg subscribe` at two sites: subscriptions to copies, without and with a consumer group."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

from checks import fail, until
from sites import Seen, command, expected, in_background, native, of_topics, serve

TOPICS = ["orders", "trimmed", "state"]
seen, grouped = Seen(), Seen()


def reader(seen, *args):
    process = subprocess.Popen(native("subscribe", *args, "-O", "json"), stdout=subprocess.PIPE, text=True)

    def work():
        for line in process.stdout:
            record = json.loads(line)
            seen.add(
                (record["topic"], record["partition"]),
                (record["offset"], record["key"], record["value"], record["timestamp_ms"]))
        fail(f"thalweg subscribe {args} ended with {process.wait()}")

    return work


def ready():
    for topic in TOPICS:
        in_background(reader(seen, f"a.{topic}", "--from", "earliest"))
        in_background(reader(grouped, f"a.{topic}", "--consumer-group", "native"))


def wanted(path):
    # The output has one header of each name only.
    lanes = of_topics(expected(path), *TOPICS)
    return {lane: [(at, key, value, time) for at, key, value, _, time in items] for lane, items in lanes.items()}


def steady(path):
    seen.check(wanted(path))
    grouped.check(wanted(path))


def cut(path):
    seen.check(wanted(path))
    # Offsets are committed every second: what was printed after the last commit is printed again.
    grouped.check(wanted(path), once=False)


def refused():
    try:
        command("publish", "a.orders", "at-b")
    except AssertionError as error:
        print(f"note {str(error).strip()}", flush=True)
        if "thalweg topic alter a.orders --mesh off" not in str(error):
            raise
    else:
        fail("publish was not refused")


def writable():
    command("publish", "a.orders", "native at b", "--partition", "2")
    for each in (seen, grouped):
        until("the record", lambda: each.lanes()["a.orders", 2][-1][2] == "native at b")


serve("native", command("--version").split()[-1], ready=ready, steady=steady, cut=cut, refused=refused, writable=writable)
