"""Runs classes of Kafka's jars for other programs. pom.xml lists the jars, which are in target/compat/jars."""

import pathlib
import queue
import signal
import subprocess
import threading
import time

import suite

HERE = pathlib.Path(__file__).resolve().parent
JARS = HERE.parents[2] / "target/compat/jars"
VERSION = next((jar.stem.removeprefix("kafka-clients-") for jar in JARS.glob("kafka-clients-*.jar")), "not installed")
TOOL_SECONDS = 100


def command(name, *arguments):
    # The tools run for a second: the first tier of the compiler is enough for them.
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={HERE}/log4j2.xml"]
    return ["java", *options, "-cp", f"{JARS}/*", name, *map(str, arguments)]


def run(name, *arguments, stdin="", fails=False):
    """Runs a class and returns its output. With `fails` it may fail, and the result includes its error output."""
    done = subprocess.run(
        command(name, *arguments), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TOOL_SECONDS
    )
    said = done.stdout + done.stderr
    if fails:
        return said
    if done.returncode != 0:
        suite.fail(f"{name.rpartition('.')[2]} ended with {done.returncode}: {said[-1500:]}")
    return done.stdout


class Running:
    """Process whose output lines are read while it runs."""

    def __init__(self, arguments, **options):
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
        self.lines, self.seen = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def wait_for(self, what, holds):
        """Waits until `holds` is true of the lines so far."""
        end = time.monotonic() + suite.WAIT_SECONDS
        while True:
            while not self.lines.empty():
                self.seen.append(self.lines.get())
            if answer := holds(self.seen):
                return answer
            if time.monotonic() > end or (self.process.poll() is not None and self.lines.empty()):
                suite.fail(f"not within {suite.WAIT_SECONDS} s: {what}; its last lines: {self.seen[-5:]}")
            time.sleep(0.02)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


