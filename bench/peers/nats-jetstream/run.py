#!/usr/bin/env python3
"""Runs jetstream-load against a separate nats-server and prints one line of JSON.

The keys are those of `thalweg bench stream --json`. Arguments that are not listed are passed to jetstream-load.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402

START_SECONDS = 20
# Options of jetstream-load. Without "after" the consumer reads while the producer writes.
MODES = {
    "one-in-flight": ["-records", "10000", "-record-bytes", "1036"],
    "paced": ["-records", "10000", "-record-bytes", "1036", "-rate", "1000", "-in-flight", "1024", "-consumer", "none"],
    "pipelined": ["-records", "10000", "-record-bytes", "1036", "-in-flight", "1024"],
    "1m-1kb": ["-records", "1000000", "-record-bytes", "1024", "-in-flight", "1024", "-consumer", "after"],
    "follow-1kb": ["-records", "1000000", "-record-bytes", "1024", "-in-flight", "1024"],
    "3m-100b": ["-records", "3000000", "-record-bytes", "100", "-in-flight", "8192", "-consumer", "after"],
}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mode", choices=MODES, default="one-in-flight")
    add("--sync", choices=["default", "always"], default="default",
        help="always syncs before it acknowledges; by default the server syncs every two minutes")
    add("--nodes", type=int, default=1, help="number of servers; each has a replica of the stream")
    add("--dir", help="folder for the server's data while it runs; a temporary folder by default")
    options, load = parser.parse_known_args()
    # If a flag is repeated, the last one takes effect.
    options.load = MODES[options.mode] + load
    return options


def start(options, folder):
    """Starts the servers on free ports, and waits until all accept. Returns their processes and ports."""
    program = os.path.join(HERE, "..", "nats", "bin", "nats-server")
    if not os.access(program, os.X_OK):
        peer.fail("nats-server is missing; run install.sh first")
    routes = peer.free_ports(options.nodes)
    folders = [os.path.join(folder, f"n{node}") for node in range(1, options.nodes + 1)]
    processes = []
    for own, route in zip(folders, routes):
        os.mkdir(own)
        config = os.path.join(own, "nats.conf")
        with open(config, "w") as file:
            file.write(settings(options, own, route, routes))
        with open(os.path.join(own, "log"), "w") as log:
            processes.append(subprocess.Popen([program, "-c", config], stdout=log, stderr=log, stdin=subprocess.DEVNULL))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        ports = [port_of(own) for own in folders]
        if all(ports) and all(is_ready(own) for own in folders):
            return processes, ports
        time.sleep(0.01)
    for process in processes:
        peer.stop(process)
    for own in folders:
        with open(os.path.join(own, "log")) as log:
            print(log.read(), file=sys.stderr)
    peer.fail("nats-server does not start")


def settings(options, folder, route, routes):
    sync = "sync_interval: always" if options.sync == "always" else ""
    others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes if port != route)
    name = os.path.basename(folder)
    cluster = f'cluster {{\n  name: bench\n  listen: "127.0.0.1:{route}"\n  routes: [{others}]\n}}\n' if others else ""
    # Port -1 selects a free port, which the server writes to a file.
    return (f'server_name: {name}\nlisten: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n{cluster}'
            f'jetstream {{\n  store_dir: "{folder}/data"\n  {sync}\n}}\n')


def port_of(folder):
    """Returns the port of the server in a folder, once it has one."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".ports"):
                with open(os.path.join(folder, name)) as file:
                    found = re.search(r'"nats":\s*\[\s*"nats://127\.0\.0\.1:(\d+)', file.read())
                    if found:
                        return int(found[1])
    return None


def is_ready(folder):
    """Returns True if the server, one of a cluster, knows who leads."""
    with open(os.path.join(folder, "log")) as log:
        text = log.read()
    is_clustered = "Starting JetStream cluster" in text
    return not is_clustered or "JetStream cluster new metadata leader" in text or "JetStream cluster no metadata" in text


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="jetstream-", dir=options.dir) as folder:
        servers, ports = start(options, folder)
        try:
            # Of a cluster, the first server's.
            watch = peer.Watch(servers[0].pid)
            url = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
            replicas = ["-replicas", str(options.nodes)]
            command = [os.path.join(HERE, "bin", "jetstream-load"), "-url", url, *replicas, *options.load]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if any(server.poll() is not None for server in servers):
                peer.fail("nats-server ended during the run")
            figures = watch.figures()
        finally:
            for server in servers:
                peer.stop(server)
    if not done.stdout:
        sys.exit(done.returncode or 1)
    report = {
        **json.loads(done.stdout),
        "mode": options.mode,
        "acks": "synced" if options.sync == "always" else "written",
        **figures,
        **peer.machine(),
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
        "command": " ".join(sys.argv),
    }
    if options.sync == "always":
        report["system"] = "jetstream-sync"
    print(json.dumps(report))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
