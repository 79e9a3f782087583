#!/usr/bin/env python3
"""Runs etcd-load against a separate cluster of etcd and prints one line of JSON.

The keys are those of `thalweg bench stream --json`. Arguments that are not listed are passed to etcd-load.
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


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--nodes", type=int, default=1, help="number of servers; a majority syncs a put before it is acknowledged")
    add("--dir", help="folder for the servers' data while they run; a temporary folder by default")
    options, options.load = parser.parse_known_args()
    return options


def main():
    options = read_arguments()
    peer.end_with_parent()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="etcd-", dir=options.dir) as folder:
        started = servers.Servers(folder)
        try:
            urls = servers.start_etcd(started, options.nodes)
            command = [os.path.join(HERE, "bin", "etcd-load"), "-endpoints", ",".join(urls), *options.load]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if not started.are_running():
                peer.fail("etcd ended during the run")
        finally:
            started.stop()
    if done.returncode != 0:
        sys.exit(done.returncode)
    print(json.dumps({
        **json.loads(done.stdout),
        "nodes": options.nodes,
        **peer.machine(),
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
        "command": " ".join(sys.argv),
    }))


if __name__ == "__main__":
    main()
