#!/usr/bin/env python3
"""Measures sets, gets and memory of memcached on this machine, next to the figures of Redis and Thalweg.

The load is memcaslap, of libmemcached: 50 connections with one request each, keys of 16 bytes and values of 64. It
differs from the load of redis_compare.py, so its rates are listed separately, not in the same table. The memory is the
amount that a million entries of those sizes add to the resident memory of the process, as in redis_compare.py.
"""

import argparse
import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

START_SECONDS = 10
ENTRIES = 1_000_000
KEY_BYTES = 16
VALUE_BYTES = 64
MEMORY_MB = 2048


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--connections", type=int, default=50)
    add("--seconds", type=int, default=5, help="duration of each load")
    options = parser.parse_args()
    options.load = shutil.which("memcaslap") or shutil.which("memaslap")
    if not shutil.which("memcached") or not options.load:
        peer.fail("memcached or memcaslap is missing: apt-get install memcached libmemcached-tools")
    return options


@contextlib.contextmanager
def running(threads, core=None):
    [port] = peer.free_ports(1)
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    call = [*pinned, "memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", str(MEMORY_MB), "-t", str(threads)]
    server = subprocess.Popen([*call, "-u", "nobody"])
    try:
        if not peer.await_answer(server, port, b"version\r\n", b"VERSION ", START_SECONDS):
            peer.fail("memcached did not start")
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(peer.STOP_SECONDS)


def load(options, is_pinned, gets):
    """Returns operations per second; `gets` is the share of gets."""
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as shape, running(1 if is_pinned else 2, 0 if is_pinned else None) as (port, _):
        shape.write(f"key\n{KEY_BYTES} {KEY_BYTES} 1\nvalue\n{VALUE_BYTES} {VALUE_BYTES} 1\ncmd\n0 {1 - gets}\n1 {gets}\n")
        shape.flush()
        pinned = ["taskset", "-c", "1"] if is_pinned else []
        call = [*pinned, options.load, "-s", f"127.0.0.1:{port}", "-c", str(options.connections), "-T", "1" if is_pinned else "2"]
        call += ["-t", f"{options.seconds}s", "-F", shape.name]
        told = subprocess.run(call, capture_output=True, text=True, timeout=60 + options.seconds)
    rate = re.search(r"TPS: (\d+)", told.stdout)
    if not rate:
        peer.fail(f"memcaslap failed: {told.stdout} {told.stderr}")
    return int(rate.group(1))


def memory():
    with running(1) as (port, pid), socket.create_connection(("127.0.0.1", port)) as one:
        before = peer.resident_bytes(pid)
        for number in range(ENTRIES):
            if number % 1000 == 0 and number > 0:
                one.sendall(b"".join(piece))
            if number % 1000 == 0:
                piece = []
            piece.append(b"set key:%012d 0 0 %d noreply\r\n%s\r\n" % (number, VALUE_BYTES, b"v" * VALUE_BYTES))
        one.sendall(b"".join(piece) + b"get key:%012d\r\n" % (ENTRIES - 1))
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += one.recv(4096)
        if not answer.startswith(b"VALUE"):
            peer.fail("memcached does not have the last entry that was set")
        return (peer.resident_bytes(pid) - before) / 1e6


def main():
    options = read_arguments()
    peer.end_with_parent()
    rows = {
        "set, one core, operations/s": lambda: load(options, True, 0),
        "get (with a set in ten), one core, operations/s": lambda: load(options, True, 0.9),
        "set, all cores, operations/s": lambda: load(options, False, 0),
        "get (with a set in ten), all cores, operations/s": lambda: load(options, False, 0.9),
        "memory of a million entries, MB": memory,
    }
    print(f"memcached, {options.rounds} rounds\n\n| figure | median | spread |\n|---|---|---|")
    for name, measure in rows.items():
        found = [measure() for _ in range(options.rounds)]
        print(f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} to {max(found):,.0f} |", flush=True)


main()
