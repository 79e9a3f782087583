#!/usr/bin/env python3
"""Puts Google's Go client, with publish and streaming pull, on Google's emulator and on Thalweg in turn.

Every run has its own server, with all data in memory, and the client in another process on the same machine. The
results are the CPU time of the server for each message, and the ratio within one round. Run install.sh first.
"""

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

EMULATOR = "/usr/lib/google-cloud-sdk/platform/pubsub-emulator/bin/cloud-pubsub-emulator"
START_SECONDS = 60
LOAD_SECONDS = 400
# Aim: CPU microseconds of the server per received message.
AIM_CPU_US = 15


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=list(SYSTEMS), default=["emulator", "thalweg"])
    add("--rounds", type=int, default=3)
    add("--messages", type=int, default=200_000)
    add("--body-bytes", type=int, default=1024)
    add("--warm-up", type=int, default=100_000, help="messages to the emulator before the measurement")
    add("--thalweg", default=os.path.join(ROOT, "target/release/thalweg"), help="the program")
    add("--options", default="", help="more options for `thalweg serve`, as one argument")
    add("--json", metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    options.thalweg = os.path.abspath(options.thalweg)
    if not os.access(os.path.join(HERE, "bin", "pubsub-load"), os.X_OK):
        peer.fail("pubsub-load is missing; run install.sh first")
    return options


def emulator(port, _options):
    return [EMULATOR, "--host=127.0.0.1", f"--port={port}"]


def thalweg(port, options, storage=("--set", "retention_bytes=4GiB", "--set", "memory_max=8GiB")):
    return [options.thalweg, "serve", "--native", "off", "--http", "off", "--kafka", "off", "--redis", "off", "--sqs", "off", "--pubsub",
            f"127.0.0.1:{port}", *storage, *shlex.split(options.options)]


def thalweg_on_disk(port, options):
    return thalweg(port, options, storage=("--data", "data"))


SYSTEMS = {"emulator": emulator, "thalweg": thalweg, "thalweg-disk": thalweg_on_disk}


def listens(server, port, log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.01)
    with open(log) as lines:
        peer.fail(f"{shlex.join(server.args)} did not become ready: {lines.read()[-2000:]}")


def serving(port):
    """Returns the process that listens on a port: a script starts the emulator as its child."""
    with open("/proc/net/tcp") as lines:
        rows = [line.split() for line in lines][1:]
    inodes = {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == "0A"}
    with open("/proc/net/tcp6") as lines:
        rows = [line.split() for line in lines][1:]
    inodes |= {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == "0A"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(f"socket:[{inode}]" in links for inode in inodes):
            return int(pid)
    peer.fail(f"no process listens on port {port}")


def load(options, port, pid, messages):
    command = [os.path.join(HERE, "bin", "pubsub-load"), "-messages", messages, "-body-bytes", options.body_bytes, "-pid", pid]
    env = os.environ | {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}"}
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, timeout=LOAD_SECONDS, env=env)
    if done.returncode != 0:
        peer.fail(f"pubsub-load ended with {done.returncode}")
    return json.loads(done.stdout)


def measure(system, options):
    [port] = peer.free_ports(1)
    with tempfile.TemporaryDirectory(prefix=f"{system}-") as folder:
        log = os.path.join(folder, "log")
        with open(log, "wb") as lines:
            server = subprocess.Popen(list(map(str, SYSTEMS[system](port, options))), stdout=lines, stderr=lines,
                                      stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
        try:
            listens(server, port, log)
            pid = serving(port)
            if system == "emulator" and options.warm_up > 0:
                load(options, port, pid, options.warm_up)
            report = load(options, port, pid, options.messages)
            figures = {f"{half}.{name}": value for half in ("publish", "receive") for name, value in report[half].items()}
            return figures | {"duplicates": report["duplicates"], "resident_mb": peer.resident_bytes(pid) / 1e6}
        finally:
            if system == "emulator":
                os.killpg(server.pid, 15)
            peer.stop(server)


def main():
    options = read_arguments()
    peer.end_with_parent()
    rounds, load_before = [], os.getloadavg()
    for turn in range(options.rounds):
        figures = {}
        for system in options.systems if turn % 2 == 0 else options.systems[::-1]:
            print(f"round {turn + 1} of {options.rounds}: {system}", file=sys.stderr)
            figures[system] = measure(system, options)
        rounds.append(figures)
    about = peer.machine()
    print(f"{options.rounds} rounds of {options.messages} messages of {options.body_bytes} B; {about['cpu']}, {about['cores']} CPUs,"
          f" Linux {about['kernel']}, load average {load_before[0]:.2f} before")
    print(f"{'':24}" + "".join(f"{system:>16}" for system in options.systems) + f"{'ratio':>10}")
    for figure in rounds[0][options.systems[0]]:
        medians = [statistics.median(one[system][figure] for one in rounds) for system in options.systems]
        line = f"{figure:24}" + "".join(f"{median:16.1f}" for median in medians)
        if len(medians) > 1 and medians[0]:
            ratios = sorted(one[options.systems[1]][figure] / one[options.systems[0]][figure] for one in rounds)
            line += f"{statistics.median(ratios):10.3g}  {ratios[0]:.3g} to {ratios[-1]:.3g}"
        if figure == "receive.server_cpu_us":
            line += f"  {AIM_CPU_US} at most: {'reached' if medians[-1] <= AIM_CPU_US else 'MISSED'}"
        print(line)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "rounds": rounds}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
