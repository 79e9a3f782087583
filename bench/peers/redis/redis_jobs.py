#!/usr/bin/env python3
"""Measures what job libraries do per second on redis-server and on Thalweg's Redis door in turn.

The jobs do nothing. Each round runs each library once on each system, with a server of its own; every other round runs
the systems in reverse order. The result is the ratio within one round; the table has the median of all rounds.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)

import peer  # noqa: E402
import redis_servers  # noqa: E402

JOBS = os.path.join(HERE, "jobs")
TOOLS = os.path.join(redis_servers.ROOT, "target", "bench", "redis-jobs")
VERSIONS = {"celery": "5.7.0", "redis": "8.1.0", "packaging": "25.0", "bullmq": "6.7.0", "ioredis": "6.0.0"}
COUNTS = {"celery": 4000, "sidekiq": 20_000, "bullmq": 10_000}
WORK_SECONDS = 300


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--libraries", nargs="+", choices=list(COUNTS), default=list(COUNTS))
    add("--rounds", type=int, default=3)
    add("--thalweg", default=os.path.join(redis_servers.ROOT, "target/release/thalweg"), help="the program")
    options = parser.parse_args()
    options.thalweg = os.path.abspath(options.thalweg)
    needed = {"sidekiq": ["ruby", "sidekiq"], "bullmq": ["node", "npm"]}
    programs = ["redis-server", *(program for library in options.libraries for program in needed.get(library, []))]
    for program in programs:
        if not shutil.which(program):
            peer.fail(f"{program} is missing: apt-get install redis-server ruby-sidekiq nodejs npm")
    return options


def install(library):
    """Installs what a library needs, once."""
    os.makedirs(TOOLS, exist_ok=True)
    python = os.path.join(TOOLS, "python")
    if library == "celery" and not os.path.exists(os.path.join(python, "bin", "celery")):
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
        packages = [f"{name}=={VERSIONS[name]}" for name in ("celery", "redis", "packaging")]
        subprocess.run([os.path.join(python, "bin", "pip"), "install", "-q", *packages], check=True)
    if library == "bullmq" and not os.path.exists(os.path.join(TOOLS, "node_modules", "bullmq")):
        packages = [f"{name}@{VERSIONS[name]}" for name in ("bullmq", "ioredis")]
        call = ["npm", "install", "--silent", "--prefix", TOOLS, *packages]
        subprocess.run(call, check=True)


def calls(library):
    """Returns the calls that add and run the jobs of a library."""
    python = os.path.join(TOOLS, "python", "bin")
    worker = ["-A", "celery_jobs", "worker", "-P", "solo", "-l", "ERROR"]
    return {
        "celery": [[f"{python}/python", "celery_jobs.py"], [f"{python}/celery", *worker]],
        "sidekiq": [["ruby", "sidekiq_jobs.rb", "add"], ["sidekiq", "-r", "./sidekiq_jobs.rb", "-c", "10"]],
        "bullmq": [["node", "bullmq_jobs.js"]],
    }[library]


def measure(options, library, system):
    """Returns the jobs per second that were added, and those that were worked on."""
    figures = {}
    with redis_servers.running(options.thalweg, system) as (port, _):
        more = {"JOBS_ADDRESS": f"127.0.0.1:{port}", "JOBS_COUNT": str(COUNTS[library])}
        more["NODE_PATH"] = os.path.join(TOOLS, "node_modules")
        for call in calls(library):
            told = subprocess.run(
                call, cwd=JOBS, env={**os.environ, **more}, capture_output=True, text=True, timeout=WORK_SECONDS
            )
            for line in told.stdout.splitlines():
                name, _, value = line.partition(" ")
                if name in ("added", "worked"):
                    figures[f"{library}.{name}"] = float(value)
    if len(figures) != 2:
        peer.fail(f"{system}: {library} has not done its jobs: {told.stdout} {told.stderr}")
    return figures


def main():
    options = read_arguments()
    peer.end_with_parent()
    rounds = []
    for library in options.libraries:
        install(library)
    for number in range(options.rounds):
        systems = list(redis_servers.SYSTEMS) if number % 2 == 0 else list(reversed(redis_servers.SYSTEMS))
        one = {system: {} for system in systems}
        for library in options.libraries:
            for system in systems:
                one[system].update(measure(options, library, system))
        rounds.append(one)
    redis_servers.show("jobs per second", rounds)


main()
