#!/usr/bin/env python3
"""Compares servers of the reference frames with the floor of the same minute.

In each round each server runs alone, on a separate CPU from the load. Every other round runs the servers in
reverse order. The first server is the floor: the result is the ratio to it within one round, because the
speed of a host drifts from minute to minute. The script needs only the standard library.
"""

import argparse
import contextlib
import glob
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START_SECONDS = 10
STOP_SECONDS = 5
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
LISTENING = "0A"  # a state in /proc/net/tcp

# Processes that were started and have not been waited for.
children = []


def read_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""A server prints the line `listening PORT` or `listening PATH` on its standard output when it is ready,
and exits on SIGTERM. If it then prints a line of JSON with requests, user_seconds and sys_seconds, its CPU time is
taken from these; otherwise from /proc. {response} in a COMMAND is replaced by the number of --response. A COMMAND is
not a shell line.

In the COMMAND of --load, {place} (PORT or --unix PATH), {port}, {connections}, {pipeline}, {payload}, {seconds},
{threads} and {response} are replaced. It prints a line of JSON with requests, rps, p50_us, p99_us and errors.""",
    )
    add = parser.add_argument
    named = "the first one is the floor"
    add("--server", dest="servers", action="append", required=True, metavar="NAME=COMMAND", help=named)
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2)
    add("--connections", type=int, default=64)
    add("--pipeline", type=int, default=8, help="requests in flight on each connection")
    add("--payload", type=int, default=256, help="bytes of the body of a request")
    add("--response", type=int, default=64, help="bytes of the body of an answer")
    add("--load-threads", type=int, default=1)
    add("--load", metavar="COMMAND", help="load to run instead of bin/load")
    add("--server-cpus", default="0", help="as for taskset -c")
    add("--load-cpus", default="1")
    add("--realtime", action="store_true", help="run both with `chrt -r 5`, so that other work has to wait")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    options.servers = [split_server(parser, text) for text in options.servers]
    if len({name for name, _ in options.servers}) < len(options.servers):
        parser.error("two servers have the same name")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    load = os.path.join(HERE, "bin", "load")
    if options.load is None and not os.access(load, os.X_OK):
        parser.error("bin/load is missing; run make -C bench/floor first")
    options.load = options.load or (
        shlex.quote(load) + " {place} {connections} {pipeline} {payload} {seconds} {threads} {response}"
    )
    if options.realtime and subprocess.run(["chrt", "-r", "5", "true"], capture_output=True).returncode != 0:
        warn("chrt -r 5 is not permitted here: running without it")
        options.realtime = False
    return options


def split_server(parser, text):
    name, equals, command = text.partition("=")
    if not (name and equals and command.strip()):
        parser.error(f"{text} is not NAME=COMMAND")
    return name, command


def warn(text):
    print(f"compare: warning: {text}", file=sys.stderr)


def fail(text):
    print(f"compare: {text}", file=sys.stderr)
    sys.exit(1)


def pinned(options, cpus, command):
    """The wrapper commands exec the next one, so the started process is the program itself."""
    priority = ["chrt", "-r", "5"] if options.realtime else []
    return ["taskset", "-c", cpus, *priority, *shlex.split(command)]


class Child:
    """A process of this script. Its output goes to a file, so that it never waits for a reader."""

    def __init__(self, command):
        self.name = shlex.join(command)
        self.output = tempfile.TemporaryFile()
        try:
            # A separate session: Ctrl-C reaches this script alone, and processes that a child starts end with it.
            self.process = subprocess.Popen(command, stdout=self.output, start_new_session=True)
        except OSError as error:
            fail(f"{self.name}: {error}")
        self.pid = self.process.pid
        children.append(self)

    def said(self):
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), size, 0).decode(errors="replace")

    def has_ended(self):
        return self.process.poll() is not None

    def wait(self, seconds=None):
        """Returns the status of a child that ends by itself in time, otherwise None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode

    def stop(self):
        """Ends a child and the processes that it has started."""
        if not self.has_ended():
            self.process.terminate()
            if self.wait(STOP_SECONDS) is None:
                warn(f"{self.name} did not end within {STOP_SECONDS} s of SIGTERM")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        children.remove(self)


def listening_place(child):
    """Returns the port or path that a server prints; other lines are skipped."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for line in child.said().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 2 and words[0] == "listening":
                return words[1]
        if child.has_ended():
            fail(f"{child.name} ended before it was listening")
        time.sleep(0.01)
    fail(f"{child.name} was not listening after {START_SECONDS} s")


def listeners(port):
    """Returns the inodes of all TCP sockets that listen on a port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as lines:
            for fields in map(str.split, lines):
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def warn_of_orphans(child, port):
    """Warns about a leftover server with SO_REUSEPORT, which would silently receive a part of the load."""
    own = set()
    for link in glob.glob(f"/proc/{child.pid}/fd/*"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(link))
    strangers = [inode for inode in listeners(port) if f"socket:[{inode}]" not in own]
    if strangers:
        warn(f"{len(strangers)} more sockets listen on port {port} in another process: the figures are wrong")


def cpu_seconds(pid):
    """Returns user and system time so far, in steps of 10 ms. The name of the command may contain spaces."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) / TICKS_A_SECOND, int(fields[12]) / TICKS_A_SECOND


def last_json(text):
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                return value
    return None


def run_load(options, place):
    is_port = place.isdigit()
    values = {
        "place": place if is_port else f"--unix {shlex.quote(place)}",
        "port": place,
        "connections": options.connections,
        "pipeline": options.pipeline,
        "payload": options.payload,
        "seconds": options.seconds,
        "threads": options.load_threads,
        "response": options.response,
    }
    child = Child(pinned(options, options.load_cpus, fill(options.load, values)))
    status = child.wait()
    child.stop()
    result = last_json(child.said())
    if status != 0 or result is None:
        fail(f"{child.name} failed with status {status}: {child.said()}")
    return result


def fill(command, values):
    for name, value in values.items():
        command = command.replace("{" + name + "}", str(value))
    return command


def measure(options, command):
    server = Child(pinned(options, options.server_cpus, fill(command, {"response": options.response})))
    place = listening_place(server)
    if place.isdigit():
        warn_of_orphans(server, int(place))
    before = cpu_seconds(server.pid)
    load = run_load(options, place)
    if server.has_ended():
        fail(f"{server.name} ended under load")
    after = cpu_seconds(server.pid)
    server.stop()
    own = last_json(server.said())
    if own is not None and {"requests", "user_seconds", "sys_seconds"} <= own.keys():
        requests, user, system = own["requests"], own["user_seconds"], own["sys_seconds"]
    else:
        requests, user, system = load["requests"], after[0] - before[0], after[1] - before[1]
    return {
        "rps": load["rps"],
        "p50_us": load["p50_us"],
        "p99_us": load["p99_us"],
        "user_us_per_request": user * 1e6 / max(1, requests),
        "sys_us_per_request": system * 1e6 / max(1, requests),
        "server": own,
        "load": load,
    }


def summarize(name, rounds, floor_rounds):
    ratios = [one["rps"] / floor["rps"] for one, floor in zip(rounds, floor_rounds)]
    middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0] if key not in ("server", "load")}
    ratio = {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)}
    return {"name": name, "median": middle, "ratio": ratio, "rounds": rounds}


def print_table(summaries):
    width = max(len("server"), *(len(one["name"]) for one in summaries))
    print(f"{'server':{width}}  {'krps':>8}  {'ratio to floor':^20}  {'CPU us/request':^15}  {'latency us':^17}")
    print(
        f"{'':{width}}  {'median':>8}  {'min':>6} {'median':>6} {'max':>6}"
        f"  {'user':>7} {'sys':>7}  {'p50':>8} {'p99':>8}"
    )
    for one in summaries:
        middle, ratio = one["median"], one["ratio"]
        print(
            f"{one['name']:{width}}  {middle['rps'] / 1e3:8.1f}"
            f"  {ratio['min']:6.3f} {ratio['median']:6.3f} {ratio['max']:6.3f}"
            f"  {middle['user_us_per_request']:7.3f} {middle['sys_us_per_request']:7.3f}"
            f"  {middle['p50_us']:8.1f} {middle['p99_us']:8.1f}"
        )


def machine():
    model = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    commit = subprocess.run(
        ["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    return {"kernel": platform.release(), "cpu": model, "cpus": os.cpu_count(), "commit": commit}


def main():
    options = read_arguments()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    rounds = {name: [] for name, _ in options.servers}
    load_before = os.getloadavg()
    try:
        for turn in range(options.rounds):
            for name, command in options.servers if turn % 2 == 0 else reversed(options.servers):
                rounds[name].append(measure(options, command))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for child in list(children):
            child.stop()

    about = machine()
    about["load_average"] = {"before": load_before, "after": os.getloadavg()}
    print(
        f"{options.rounds} rounds of {options.seconds:g} s, {options.connections} connections x {options.pipeline},"
        f" {options.payload} bytes in, {options.response} out, CPU {options.server_cpus} serves"
        f"{', real time' if options.realtime else ''}"
    )
    print(
        f"{about['cpu']}, {about['cpus']} CPUs, Linux {about['kernel']}, commit {about['commit']},"
        f" load average {load_before[0]:.2f} before, {about['load_average']['after'][0]:.2f} after"
    )
    floor_rounds = rounds[options.servers[0][0]]
    summaries = [summarize(name, rounds[name], floor_rounds) for name, _ in options.servers]
    print_table(summaries)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "servers": summaries}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
