"""Servers of the comparisons of this folder, and the table of their figures."""

import contextlib
import os
import statistics
import subprocess
import tempfile

import peer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
START_SECONDS = 30


def redis(_program, port, folder, setting):
    durable = ["--appendonly", "yes", "--appendfsync", "always"] if setting.get("is_durable") else ["--appendonly", "no"]
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, *durable]


def thalweg(program, port, folder, setting):
    durable = ["--data", os.path.join(folder, "data"), "--set", "redis_durable=true"] if setting.get("is_durable") else []
    doors = [word for door in ("http", "kafka", "pubsub", "sqs") for word in (f"--{door}", "off")]
    return [program, "serve", "--set", "log=warn", "--native", "off", *doors, "--redis", f"127.0.0.1:{port}", *durable]


SYSTEMS = {"redis": redis, "thalweg": thalweg}


@contextlib.contextmanager
def running(program, system, setting=None):
    """Starts a server of a system, and yields its port and its process once it answers. `program` is that of Thalweg."""
    setting = setting or {}
    [port] = peer.free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        pinned = ["taskset", "-c", "0"] if setting.get("is_pinned") else []
        call = [*pinned, *SYSTEMS[system](program, port, folder, setting)]
        server = subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            if not peer.await_answer(server, port, b"PING\r\n", b"+PONG\r\n", START_SECONDS):
                peer.fail(f"{system} did not start: {' '.join(call)}")
            yield port, server.pid
        finally:
            server.terminate()
            server.wait(peer.STOP_SECONDS)


def show(name, rounds):
    print(f"\n{name}, {len(rounds)} rounds\n")
    print(f"| {'figure':<14} | {'redis':>12} | {'thalweg':>12} | ratio | spread |\n|---|---|---|---|---|")
    for figure in rounds[0]["redis"]:
        of = {system: [one[system][figure] for one in rounds] for system in SYSTEMS}
        ratios = [ours / theirs for ours, theirs in zip(of["thalweg"], of["redis"]) if theirs]
        if ratios:
            medians = [statistics.median(of[system]) for system in SYSTEMS]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            row = f"| {figure:<14} | {medians[0]:>12,.2f} | {medians[1]:>12,.2f} | {statistics.median(ratios):.2f} | {spread} |"
            print(row, flush=True)
