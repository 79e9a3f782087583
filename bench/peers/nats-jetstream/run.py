#!/usr/bin/env python3
"""Runs jetstream-load against a separate nats-server and prints one line of JSON.

The keys are those of `thalweg bench stream --json`. Arguments that are not listed are passed to jetstream-load.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import peer  # noqa: E402
import servers  # noqa: E402

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


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="jetstream-", dir=options.dir) as folder:
        started = servers.Servers(folder)
        try:
            urls = servers.start_jetstream(started, options.nodes, options.sync)
            # Of a cluster, the first server's.
            watch = peer.Watch(started.processes["n1"].pid)
            replicas = ["-replicas", str(options.nodes)]
            command = [os.path.join(HERE, "bin", "jetstream-load"), "-url", ",".join(urls), *replicas, *options.load]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if not started.are_running():
                peer.fail("nats-server ended during the run")
            figures = watch.figures()
        finally:
            started.stop()
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
