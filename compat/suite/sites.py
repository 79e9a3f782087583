"""Programs of `cargo xtask compat mesh`: a client that reads at site b what was written at site a.

The arguments of a program are the addresses of its door at both sites. COMPAT_THALWEG is the path of `thalweg`, and
COMPAT_SERVER the native address of site b. A program executes each line of its input, which is a command with
arguments, prints the result as a scenario, and then `done COMMAND`. It skips commands that it does not have.

Files of expected records are JSON: a list of records at site a, each with the topic, partition, offset, key, value,
headers and timestamp.
"""

import json
import os
import subprocess
import sys
import threading
import time
import traceback

from checks import Skip, fail, short

# Time in which everything that was written at one site arrives at the other one, also after a restart.
ARRIVAL_SECONDS = 60
# Time without another item after which no more are expected.
QUIET_SECONDS = 0.3
# Time in which a client fails that does not repeat a refused request.
REFUSAL_SECONDS = 5
FIELDS = ["topic", "partition", "offset", "key", "value", "headers", "timestamp"]


class Seen:
    """Items that a client received, in their order, with the lane that is ordered: a partition, or a channel."""

    def __init__(self):
        self.lock, self.items, self.unsure = threading.Lock(), [], 0

    def add(self, lane, item):
        with self.lock:
            self.items.append((lane, item))

    def note_error(self):
        """Notes that requests may have failed, after which a client may receive items again."""
        with self.lock:
            self.unsure += 1

    def lanes(self):
        with self.lock:
            found = {}
            for lane, item in self.items:
                found.setdefault(lane, []).append(item)
        return found

    def check(self, expected, ordered=True, once=True):
        """Waits for exactly these items in each lane. Without `once`, repetitions are ignored."""
        def found():
            lanes = self.lanes()
            if not once:
                lanes = {lane: list(dict.fromkeys(items)) for lane, items in lanes.items()}
            return lanes if ordered else {lane: sorted(items) for lane, items in lanes.items()}

        expected = expected if ordered else {lane: sorted(items) for lane, items in expected.items()}
        end = time.monotonic() + ARRIVAL_SECONDS
        while found() != expected and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(QUIET_SECONDS)
        difference(found(), expected)


def difference(found, expected):
    """Fails with the first difference of two dictionaries of lists."""
    for lane in sorted({*found, *expected}, key=str):
        got, wanted = found.get(lane, []), expected.get(lane, [])
        if got == wanted:
            continue
        lost, more = [each for each in wanted if each not in got], [each for each in got if each not in wanted]
        twice = len(got) - len(set(got))
        at = next((at for at, (one, other) in enumerate(zip(got, wanted)) if one != other), min(len(got), len(wanted)))
        fail(
            f"{lane}: {len(got)} items instead of {len(wanted)}; missing {short(lost[:3])} ({len(lost)}), unexpected "
            f"{short(more[:3])} ({len(more)}), {twice} repeated; the first difference is at {at}: {short(got[at:at + 1])}")


def expected(path):
    """Expected records of a file, in the order of their offsets, with topics of site a."""
    with open(path) as file:
        return [tuple(record[field] for field in FIELDS) for record in json.load(file)]


def of_topics(records, *topics):
    """Records of these topics of site a as they are at site b, in the order of their offsets for each partition."""
    lanes = {}
    for topic, partition, *record in sorted(records, key=lambda record: record[:3]):
        if topic in topics:
            lanes.setdefault((f"a.{topic}", partition), []).append(as_item(*record))
    return lanes


def as_item(offset, key, value, headers, timestamp):
    """Record as an item that can be compared: texts, and headers as pairs."""
    return offset, key, value, tuple((name, text) for name, text in headers), timestamp


def text(data):
    return None if data is None else data.decode()


def values(records, *topics):
    """Values of the records of these topics, in the order of their offsets for each partition."""
    return {lane: [item[2] for item in items] for lane, items in of_topics(records, *topics).items()}


def quickly(what, call, refusals):
    """Checks that a call fails with an error of these classes, without repetitions for a long time. Returns it."""
    begin = time.monotonic()
    try:
        answer = call()
    except refusals as error:
        elapsed = time.monotonic() - begin
        print(f"note {what}: {type(error).__name__} after {elapsed:.1f} s: {short(str(error))}", flush=True)
        if elapsed > REFUSAL_SECONDS:
            fail(f"{what} failed only after {elapsed:.1f} s: {error}")
        return error
    fail(f"{what} was not refused, but answered {short(answer)}")


def native(*args):
    """Command line of `thalweg` at site b."""
    return [os.environ["COMPAT_THALWEG"], "--server", os.environ["COMPAT_SERVER"], *args]


def command(*args):
    """Runs `thalweg` at site b, and returns its output."""
    done = subprocess.run(native(*args), capture_output=True, text=True)
    if done.returncode:
        fail(f"thalweg {' '.join(args)}: {done.stderr}")
    return done.stdout


def in_background(work):
    """Runs `work` in a thread until the program ends. An error ends the program, which the command notices."""

    def run():
        try:
            work()
        except BaseException:
            traceback.print_exc()
            print("FAILED reader: its thread ended, see the log", flush=True)

    threading.Thread(target=run, daemon=True).start()


def serve(name, version, **commands):
    print(f"client {name} {version}", flush=True)
    for line in sys.stdin:
        word, *args = line.split()
        if word in commands:
            begin = time.monotonic()
            try:
                commands[word](*args)
                print(f"ok {word} ({time.monotonic() - begin:.1f} s)", flush=True)
            except Skip as why:
                print(f"skipped {word}: {why}", flush=True)
            except BaseException as error:
                traceback.print_exc()
                why = " ".join(f"{type(error).__name__}: {error}".split()).removeprefix("AssertionError: ")
                print(f"FAILED {word}: {why}", flush=True)
        print(f"done {word}", flush=True)
