"""Shared code of the scripts that run several systems by turns: rounds, the ratios within a round, and their table.

It needs only the standard library.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys

import peer

HERE = os.path.dirname(os.path.abspath(__file__))


def last_json(text, source):
    """Returns the last line of the output that is JSON, without the figures over time, which are for pages."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            report = json.loads(line)
            report.pop("charts", None)
            return report
    peer.fail(f"{source} printed no JSON")


def alternate(name, systems, count, run):
    """Returns the reports of each system: `run(system)` of all in each round, in reverse order in every other round."""
    rounds = {system: [] for system in systems}
    for turn in range(count):
        for system in systems if turn % 2 == 0 else reversed(systems):
            print(f"{name}, round {turn + 1} of {count}: {system}", file=sys.stderr)
            rounds[system].append(run(system))
    return rounds


def figure(report, path):
    for key in path.split("."):
        report = (report or {}).get(key)
    return report


def rows(name, figures, rounds):
    """Returns a row for each figure and each system that reports it, compared with the first system.

    A figure is the path of a value in a report, and its title.
    """
    found = []
    own, *others = rounds
    for system in others:
        for path, title in figures:
            pairs = [(figure(ours, path), figure(theirs, path)) for ours, theirs in zip(rounds[own], rounds[system])]
            # A tool that reports whole milliseconds may report 0.
            if not all(ours and theirs for ours, theirs in pairs):
                continue
            unit = 1e6 if path.endswith("bytes_max") else 1
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            found.append({
                "scenario": name, "figure": title, "system": system,
                own: statistics.median(ours for ours, _ in pairs) / unit,
                "theirs": statistics.median(theirs for _, theirs in pairs) / unit,
                "ratio": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
            })
    return found


def print_table(own, table):
    def show(value):
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"

    print(f"{'scenario':14} {'figure':24} {'system':15} {own:>12} {'system':>12}  {own + ' / system':^26}")
    print(f"{'':14} {'':24} {'':15} {'median':>12} {'median':>12}  {'min':>8} {'median':>8} {'max':>8}")
    for row in table:
        ratio = row["ratio"]
        print(f"{row['scenario']:14} {row['figure']:24} {row['system']:15} {show(row[own]):>12}"
              f" {show(row['theirs']):>12}  {ratio['min']:8.3g} {ratio['median']:8.3g} {ratio['max']:8.3g}")


def finish(own, note, options, load_before, table, runs):
    """Prints the table and the machine, and writes everything to the file of the option --json."""
    about = peer.machine()
    commit = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True)
    about["commit"] = commit.stdout.strip()
    about["load_average"] = {"before": load_before, "after": os.getloadavg()}
    print(note)
    print(f"{about['cpu']}, {about['cores']} CPUs, Linux {about['kernel']}, commit {about['commit']},"
          f" load average {load_before[0]:.2f} before, {about['load_average']['after'][0]:.2f} after")
    print_table(own, table)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "options": vars(options), "table": table, "runs": runs}, file, indent=1)
            file.write("\n")
