"""Load test: ten thousand clients that block on lists, and a million keys that expire together.

The replies of the server are checked. Durations are only printed, on standard error.
"""

import os
import resource
import select
import socket
import sys
import time

WAITING = 10_000
LEAVING = 100
KEYS = 1_000_000
DATABASE = 9
PIECE = 1_000
ANSWER_SECONDS = 60
# Descriptors in addition to the blocked sockets: standard streams, files of the program, and connections for queries.
DESCRIPTORS = 100


def encoded(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Connection:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        self.socket.sendall(encoded(*words))

    def do(self, *words):
        self.send(*words)
        return self.reply()

    def reply(self):
        line = self.file.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(text.decode())
        if kind == b"$":
            return None if text == b"-1" else self.file.read(int(text) + 2)[:-2]
        if kind == b"*":
            return None if text == b"-1" else [self.reply() for _ in range(int(text))]
        if kind not in (b"+", b":"):
            raise RuntimeError(f"no reply: {line!r}")
        return int(text) if kind == b":" else text

    def close(self):
        self.file.close()
        self.socket.close()


def eventually(what, holds):
    end = time.monotonic() + ANSWER_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"after {ANSWER_SECONDS} s not yet: {what}")
        time.sleep(0.1)


def blocked(asker, name):
    """Returns how many clients of this name are blocked. Other programs may have blocked clients, too."""
    clients = [line.split() for line in asker.do("CLIENT", "LIST").decode().splitlines()]
    return sum(f"name={name}" in fields and "flags=b" in fields for fields in clients)


def blocked_pops(address):
    """Blocks half of the clients on separate keys, the others on one key. Some disconnect; the rest get one value each."""
    # A server that was started with the limits of this process has as many descriptors.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    asker = Connection(address)
    served = int((asker.do("CONFIG", "GET", "maxclients") or [b"", files])[1])
    count = min(WAITING, min(files, served) - DESCRIPTORS)
    name = f"pressure-{os.getpid()}"
    waiting = [Connection(address) for _ in range(count)]
    for number, connection in enumerate(waiting):
        connection.do("CLIENT", "SETNAME", name)
        connection.send("BLPOP", f"{name}-{number}" if number % 2 else name, 0)
    eventually("all clients are blocked", lambda: blocked(asker, name) == count)
    for number in range(0, 2 * LEAVING, 2):
        waiting[number].close()
    eventually("the disconnected clients are not blocked", lambda: blocked(asker, name) == count - LEAVING)
    begin = time.monotonic()
    of_one = count // 2 - LEAVING
    for number in range(1, count, 2):
        asker.send("RPUSH", f"{name}-{number}", number)
    for number in range(of_one):
        asker.send("RPUSH", name, f"shared {number}")
    for _ in range(1, count, 2):
        asker.reply()
    for _ in range(of_one):
        asker.reply()
    shared = set()
    for number, connection in enumerate(waiting):
        if number % 2 == 0 and number < 2 * LEAVING:
            continue
        key, value = connection.reply()
        if number % 2:
            assert (key, value) == (f"{name}-{number}".encode(), str(number).encode()), (number, key, value)
        else:
            assert key == name.encode() and value not in shared, (number, key, value)
            shared.add(value)
    told = time.monotonic() - begin
    assert shared == {f"shared {number}".encode() for number in range(of_one)}
    assert asker.do("EXISTS", name) == 0
    eventually("no client is blocked", lambda: blocked(asker, name) == 0)
    idle, _, _ = select.select([connection.socket for connection in waiting[1:1000:2]], [], [], 0)
    assert not idle, "a client received a second reply"
    for connection in waiting:
        connection.close()
    return f"{count} clients blocked, {count - LEAVING} were served within {told:.2f} s"


def expiring_at_once(address):
    """Checks that no key exists after its expiration time or expires before it, and measures GET in the meantime."""
    loader = Connection(address)
    loader.do("SELECT", DATABASE)
    assert loader.do("DBSIZE") == 0, f"database {DATABASE} is in use"
    at_ms = int(time.time() * 1000) + 600_000
    for first in range(0, KEYS, PIECE):
        sets = (encoded("SET", f"key:{number:012}", "v" * 16, "PXAT", at_ms) for number in range(first, first + PIECE))
        loader.socket.sendall(b"".join(sets))
        for _ in range(PIECE):
            loader.reply()
    assert loader.do("DBSIZE") == KEYS
    # All keys get one expiration time, which is near.
    at_ms = int(time.time() * 1000) + 60_000
    for first in range(0, KEYS, PIECE):
        words = (encoded("PEXPIREAT", f"key:{number:012}", at_ms) for number in range(first, first + PIECE))
        loader.socket.sendall(b"".join(words))
        assert all(loader.reply() == 1 for _ in range(PIECE))
    assert time.time() * 1000 < at_ms, "setting the expiration times took longer than the times"
    slowest, gets = 0.0, 0
    while time.time() * 1000 < at_ms - 200:
        time.sleep(0.01)
    looked = time.monotonic()
    while True:
        asked_ms, begin = time.time() * 1000, time.monotonic()
        found = loader.do("GET", f"key:{gets * 7919 % KEYS:012}")
        slowest, gets = max(slowest, time.monotonic() - begin), gets + 1
        # This program and the server share one clock. In the millisecond of the expiration the key may exist or not.
        assert found is None or asked_ms < at_ms + 1, "a key existed after its expiration time"
        assert found is not None or time.time() * 1000 >= at_ms, "a key expired before its expiration time"
        if time.monotonic() - looked > 0.05:
            looked = time.monotonic()
            if loader.do("DBSIZE") == 0:
                break
            assert time.time() * 1000 < at_ms + ANSWER_SECONDS * 1000, "some keys do not expire"
    gone = time.time() - at_ms / 1000
    loader.close()
    return f"{KEYS} expired within {gone:.2f} s; the slowest of {gets} GETs in the meantime took {slowest * 1000:.2f} ms"


SCENARIOS = {"blocked_pops": blocked_pops, "expiring_at_once": expiring_at_once}


def main():
    """Runs the scenarios that the command line names, by default all: HOST:PORT [SCENARIO..]"""
    address, *wanted = sys.argv[1:]
    if unknown := set(wanted) - set(SCENARIOS):
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT [{' '.join(SCENARIOS)}], not {' '.join(unknown)}")
    print("client pressure 1", flush=True)
    has_failed = False
    for name in wanted or SCENARIOS:
        begin = time.monotonic()
        try:
            print(f"{name}: {SCENARIOS[name](address)}", file=sys.stderr, flush=True)
            print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except (AssertionError, OSError, RuntimeError, ValueError) as error:
            has_failed = True
            print(f"FAILED {name}: {type(error).__name__} {error}", flush=True)
    sys.exit(has_failed)


main()
