"""Runs scenarios through a client in any language, by a driver.

A driver is a program around one client. It prints one line with its `name` and `version`. Then it answers each input
line with one line. All lines are JSON:

    {"call": NAME, "with": {..}}     {"ok": {..}} or {"error": {"names": [..], "message": ".."}} or {"missing": "why"}

`names` are all names by which a program could recognize the error: its code, and the class of the library. Bytes are in
base64. A driver handles one call at a time. A scenario that needs two concurrent calls uses two drivers.
"""

import concurrent.futures
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback

from checks import Skip, fail

# The longest call that blocks intentionally takes 20 seconds.
CALL_SECONDS = 60
# Several scenarios run at the same time, because most of them wait most of the time.
AT_ONCE = int(os.environ.get("COMPAT_AT_ONCE", "4"))


class Refused(Exception):
    """Error response to a call."""

    def __init__(self, names, message):
        super().__init__(f"{'|'.join(names)}: {message}")
        self.names, self.message = set(names), message


class Driver:
    def __init__(self, command, env):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ | env
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.about = self.answer()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self):
        try:
            line = self.lines.get(timeout=CALL_SECONDS)
        except queue.Empty:
            self.close()
            fail(f"the library did not answer within {CALL_SECONDS} s")
        if line is None:
            fail(f"the driver ended with {self.process.wait()}")
        return json.loads(line)

    def call(self, name, values):
        self.process.stdin.write(json.dumps({"call": name, "with": values}) + "\n")
        answer = self.answer()
        if "missing" in answer:
            raise Skip(answer["missing"])
        if "error" in answer:
            raise Refused(answer["error"]["names"], answer["error"]["message"])
        return answer["ok"]

    def close(self):
        self.process.kill()
        self.process.wait()


class Drivers:
    """Pool of drivers of one kind. A driver that did not answer is not used again."""

    def __init__(self, command, env):
        self.command, self.env, self.idle = command, env, []

    @contextlib.contextmanager
    def one(self):
        try:
            driver = self.idle.pop()
        except IndexError:
            driver = Driver(self.command, self.env)
        try:
            yield driver
        finally:
            if driver.process.poll() is None:
                self.idle.append(driver)

    def close(self):
        for driver in self.idle:
            driver.close()


class Session:
    """Context of a scenario: one driver, names that no other run uses, and more drivers for concurrent calls."""

    numbers = itertools.count(1)

    def __init__(self, drivers, driver, scenario):
        self.drivers, self.driver, self.scenario = drivers, driver, scenario
        self.about, self.called = driver.about, set()
        self.stack = contextlib.ExitStack()

    def name(self, what="q"):
        return f"{what}-{self.scenario.replace('_', '-')}-{os.getpid()}-{next(self.numbers)}"

    def call(self, name, /, **values):
        answer = self.driver.call(name, values)
        self.called.add(name)
        return answer

    def other(self):
        """Returns a session with a separate driver, until the scenario ends."""
        other = type(self)(self.drivers, self.stack.enter_context(self.drivers.one()), self.scenario)
        other.called = self.called
        return other

    @contextlib.contextmanager
    def meanwhile(self, does):
        """Runs `does` with another driver concurrently, and yields the future of its result."""
        other = self.other()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            yield pool.submit(does, other)


def main(scenarios, session=Session, env=None):
    """Runs scenarios from the command line: PROGRAM DRIVER.. -- HOST:PORT [SCENARIO..]

    `scenarios` are functions of a session. `env` maps the address to the environment variables of a driver. Before each
    scenario that passes, a line lists the successful calls of the service: `calls SCENARIO CALL..`.
    """
    try:
        split = sys.argv.index("--")
        command, address, wanted = sys.argv[1:split], sys.argv[split + 1], sys.argv[split + 2 :] or list(scenarios)
        chosen = [(name, scenarios[name]) for name in wanted]
    except (ValueError, IndexError, KeyError):
        sys.exit(f"usage: {sys.argv[0]} DRIVER.. -- HOST:PORT [SCENARIO..], of {' '.join(scenarios)}")
    drivers = Drivers(command, env(address) if env else {})
    with drivers.one() as first:
        print(f"client {first.about['name']} {first.about['version']}", flush=True)
    failed = False
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for line in pool.map(lambda each: attempt(drivers, session, *each), chosen):
            print(line, flush=True)
            failed |= line.startswith("FAILED")
    drivers.close()
    sys.stdout.flush()
    # Threads of a library that hang must not keep this process alive.
    os._exit(failed)


def attempt(drivers, session, name, scenario):
    begin = time.monotonic()
    try:
        with drivers.one() as driver:
            subject = session(drivers, driver, name)
            with subject.stack:
                try:
                    scenario(subject)
                except Skip as why:
                    return f"skipped {name}: {why}"
        called = "".join(f" {call}" for call in sorted(subject.called) if call[0].isupper())
        return f"calls {name}{called}\nok {name} ({time.monotonic() - begin:.1f} s)"
    except Exception as error:
        if os.environ.get("COMPAT_TRACE"):
            traceback.print_exc()
        why = " ".join(str(error).split())[:600]
        return f"FAILED {name}: {why if isinstance(error, AssertionError) else f'{type(error).__name__}: {why}'}"
