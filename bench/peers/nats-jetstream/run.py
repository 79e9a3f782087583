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
    add("--dir", help="folder for the server's data while it runs; a temporary folder by default")
    options, load = parser.parse_known_args()
    # If a flag is repeated, the last one takes effect.
    options.load = MODES[options.mode] + load
    return options


def start(options, folder):
    """Starts a server on a free port, and waits until it accepts. Returns its process and its port."""
    config = os.path.join(folder, "nats.conf")
    sync = "sync_interval: always" if options.sync == "always" else ""
    with open(config, "w") as file:
        # Port -1 selects a free port, which the server writes to a file.
        file.write(f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
                   f'jetstream {{\n  store_dir: "{folder}/data"\n  {sync}\n}}\n')
    server = os.path.join(HERE, "..", "nats", "bin", "nats-server")
    if not os.access(server, os.X_OK):
        peer.fail("nats-server is missing; run install.sh first")
    with open(os.path.join(folder, "log"), "w") as log:
        process = subprocess.Popen([server, "-c", config], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            ports = [name for name in os.listdir(folder) if name.endswith(".ports")]
            for name in ports:
                with open(os.path.join(folder, name)) as file:
                    found = re.search(r"nats://127\.0\.0\.1:(\d+)", file.read())
                if found:
                    return process, int(found[1])
        time.sleep(0.01)
    peer.stop(process)
    with open(os.path.join(folder, "log")) as log:
        peer.fail(f"nats-server does not start: {log.read()}")


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="jetstream-", dir=options.dir) as folder:
        server, port = start(options, folder)
        try:
            watch = peer.Watch(server.pid)
            command = [os.path.join(HERE, "bin", "jetstream-load"), "-url", f"nats://127.0.0.1:{port}", *options.load]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if server.poll() is not None:
                peer.fail("nats-server ended during the run")
            figures = watch.figures()
        finally:
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
