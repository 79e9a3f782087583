"""Shared code of the programs of this folder: sampling of a server while a load runs, and facts of the machine.

It needs only Linux and the standard library.
"""

import contextlib
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

LOOK_SECONDS = 0.02
# In a shorter window, the ticks of the system's clock become visible.
CPU_WINDOW_SECONDS = 0.1
STOP_SECONDS = 20
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def free_ports(count):
    """Returns ports that are currently free. If another process takes one first, the server reports it."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answers(port, asked, answer):
    """Returns True if a server on this machine gives an answer that begins like this."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
        one.sendall(asked)
        return one.recv(len(answer)) == answer
    return False


def await_answer(server, port, asked, answer, seconds):
    """Waits until a server on this machine gives this answer. Returns False if it does not within this time."""
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        if answers(port, asked, answer):
            return True
        time.sleep(LOOK_SECONDS)
    return False


def end_with_parent():
    """Makes SIGTERM and SIGHUP run the `finally` blocks and `atexit` functions. Call it once."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))


def cpu_seconds(pid):
    """Returns user and system time so far. The name of the command may contain spaces."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0


class Watch:
    """Samples a process every few milliseconds until `figures` is called."""

    def __init__(self, pid):
        self.pid = pid
        self.looks = [self.look()]
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def look(self):
        return time.monotonic(), resident_bytes(self.pid), cpu_seconds(self.pid)

    def run(self):
        with contextlib.suppress(OSError):
            while not self.stopped.wait(LOOK_SECONDS):
                self.looks.append(self.look())

    def figures(self):
        self.stopped.set()
        self.thread.join()
        with contextlib.suppress(OSError):
            self.looks.append(self.look())
        percent, first = 0.0, 0
        for at, _, cpu in self.looks:
            while self.looks[first + 1][0] <= at - CPU_WINDOW_SECONDS:
                first += 1
            then, _, cpu_then = self.looks[first]
            if at - then >= CPU_WINDOW_SECONDS:
                percent = max(percent, (cpu - cpu_then) / (at - then) * 100)
        return {
            "server_resident_bytes_start": self.looks[0][1],
            "server_resident_bytes_max": max(bytes for _, bytes, _ in self.looks),
            "server_cpu_percent_max": percent,
            "server_cpu_seconds": self.looks[-1][2] - self.looks[0][2],
        }


def stop(process):
    """Ends a process that this program started, by force if necessary."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()


def children_cpu_seconds():
    """Returns the CPU time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine():
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
