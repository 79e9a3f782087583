"""Sends equal commands on streams to a Redis server and to Thalweg, and compares every reply, byte by byte.

    compare.py THALWEG [REDIS_SERVER] [--rounds N] [--seed N] [--data]

The program starts both servers on free ports of this machine, and stops them at the end. With --data Thalweg keeps its
topics on disk, and is killed and started again from time to time. Its replies must equal those of the Redis server,
which keeps running. Fields that cannot be equal are not compared: see MASKED.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

# Numbers about the storage of streams, and times.
MASKED = {b"radix-tree-keys", b"radix-tree-nodes", b"seen-time", b"idle"}


class Client:
    """One connection, which uses RESP2 by default."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=5)
        self.file = self.socket.makefile("rb")

    def send(self, *args):
        parts = [b"*%d\r\n" % len(args)]
        for arg in args:
            arg = arg if isinstance(arg, bytes) else str(arg).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(arg), arg))
        self.socket.sendall(b"".join(parts))

    def read(self):
        line = self.file.readline()
        assert line.endswith(b"\r\n"), f"cut short: {line!r}"
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-:_":
            return (kind, rest)
        length = int(rest)
        if length < 0:
            return (kind, None)
        if kind == b"$":
            text = self.file.read(length + 2)
            return (kind, text[:-2])
        count = 2 * length if kind == b"%" else length
        return (kind, [self.read() for _ in range(count)])

    def read_or_say(self):
        """Returns the reply, or a note that there is none, after which nothing else may be read."""
        try:
            return self.read()
        except TimeoutError:
            return (b"-", b"no reply in time")

    def call(self, *args):
        self.send(*args)
        return self.read()


def masked(answer):
    """Returns the reply without values that change over time."""
    kind, value = answer
    if kind not in b"*%~" or value is None:
        return answer
    items = [masked(item) for item in value]
    if items and items[0][0] == b"+" and items[0][1].endswith(b"Subcommands are:"):
        # Each server has its own descriptions of the commands.
        return (kind, items[:1])
    for at in range(0, len(items) - 1):
        if items[at][0] == b"$" and items[at][1] in MASKED and items[at + 1][0] == b":":
            items[at + 1] = (b":", b"masked")
    return (kind, items)


def without_times(answer):
    """Returns the reply without numbers that may be times or ages."""
    kind, value = answer
    if kind == b":" and value is not None and len(value) > 12:
        return (kind, b"time")
    if kind in b"*%~" and value is not None:
        items = [without_times(item) for item in value]
        # A pending entry: id, consumer, idle time, number of deliveries.
        if len(items) == 4 and [item[0] for item in items] == [b"$", b"$", b":", b":"]:
            items[2] = (b":", b"idle")
        return (kind, items)
    return (kind, value)


class Servers:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.TemporaryDirectory()
        self.processes = []
        port = free_port()
        self.redis = ("127.0.0.1", port)
        log = open(os.path.join(self.folder.name, "redis.log"), "wb")
        command = [options.redis, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", self.folder.name]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.port = free_port()
        self.thalweg = ("127.0.0.1", self.port)
        self.start_thalweg()
        await_port(self.redis)

    def start_thalweg(self):
        ready = os.path.join(self.folder.name, "ready")
        if os.path.exists(ready):
            os.remove(ready)
        log = open(os.path.join(self.folder.name, "thalweg.log"), "ab")
        command = [self.options.thalweg, "serve", "--native", "127.0.0.1:0", "--http", "off", "--kafka", "off"]
        command += ["--pubsub", "off", "--sqs", "off", "--redis", f"127.0.0.1:{self.port}", "--ready-file", ready]
        if self.options.data:
            command += ["--data", os.path.join(self.folder.name, "data")]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while not os.path.exists(ready):
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(open(log.name).read())
            time.sleep(0.02)
        assert json.load(open(ready))["redis"]

    def kill_thalweg(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        for process in [*self.processes, self.process]:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def await_port(address):
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class Comparison:
    def __init__(self, servers):
        self.servers = servers
        self.count = 0
        self.differences = []
        self.version = 2
        self.connect()

    def connect(self):
        self.clients = [Client(self.servers.redis), Client(self.servers.thalweg)]
        for client in self.clients:
            client.call("HELLO", self.version)

    def speak(self, version):
        self.version = version
        for client in self.clients:
            client.call("HELLO", version)

    def restart(self):
        self.servers.kill_thalweg()
        self.servers.start_thalweg()
        self.connect()

    def same(self, *args):
        """Sends a command to both servers, and records a difference of the replies."""
        answers = [without_times(masked(client.call(*args))) for client in self.clients]
        self.count += 1
        if answers[0] != answers[1]:
            self.differences.append((self.version, args, *answers))
        return answers[0]


SCRIPT = """
XADD s
XADD s *
XADD s * f
XADD s * f v g
XADD s 0-0 f v
XADD s x f v
XADD s 5-x f v
XADD s -1-1 f v
XADD s NOMKSTREAM 1-1 f v
XLEN s
XADD s 1-1 f v
XADD s 1-1 f v
XADD s 1-0 f v
XADD s 1-* f v
XADD s 1-* value v
XADD s 0-* f v
XADD s 2 key k value v a 1
XADD s 2-1 value v key k
XADD s 3-1 a 1 value v
XADD s 3-2 thalweg.entry 9-9 a 1
XADD s 4-1 a 1 a 2 a 3
XADD s NOMKSTREAM 5-1 f v
XADD s 18446744073709551616-1 f v
XADD s MAXLEN x 6-1 f v
XADD s MAXLEN -1 6-1 f v
XADD s MAXLEN 5 MINID 6 6-1 f v
XADD s MAXLEN 5 LIMIT 6 6-1 f v
XADD s LIMIT 6 6-1 f v
XADD s MAXLEN ~ 5 LIMIT -1 6-1 f v
XLEN s
XLEN none
XRANGE s - +
XREVRANGE s + -
XRANGE s 2 2
XRANGE s (2 2
XRANGE s 2 (2-1
XRANGE s (1-1 (3-2
XRANGE s 3 +
XRANGE s - + COUNT 2
XRANGE s - + COUNT 0
XRANGE s - + COUNT -1
XRANGE s - + COUNT x
XRANGE s - + COUNT
XRANGE s - + MORE 1
XRANGE s + -
XRANGE none - +
XRANGE none x +
XRANGE s x +
XRANGE s (- +
XRANGE s - (+
XRANGE s - (0-0
XRANGE s (18446744073709551615-18446744073709551615 +
XREVRANGE s 3 1 COUNT 2
XREVRANGE s (3-1 (1-1
XREVRANGE s + - COUNT 1
XREVRANGE none + -
XREAD STREAMS s 0
XREAD COUNT 2 STREAMS s 0-0
XREAD COUNT 0 STREAMS s 3
XREAD COUNT -5 STREAMS s 3
XREAD COUNT x STREAMS s 3
XREAD STREAMS s $
XREAD STREAMS s none 3 0
XREAD STREAMS none s 0 3
XREAD STREAMS none 0
XREAD STREAMS s
XREAD STREAMS s none 0
XREAD STREAMS
XREAD COUNT 1 s 0
XREAD BLOCK x STREAMS s 0
XREAD BLOCK -1 STREAMS s 0
XREAD BLOCK 10 STREAMS s $
XREAD BLOCK 10 STREAMS s 3
XREAD BLOCK 10 STREAMS none s $ $
XREAD STREAMS s >
XREAD STREAMS s +
XREAD STREAMS s x
XREAD GROUP g c STREAMS s 0
XREAD NOACK STREAMS s 0
XINFO STREAM s
XINFO STREAM s FULL
XINFO STREAM s FULL COUNT 1
XINFO STREAM s FULL COUNT 0
XINFO STREAM s FULL COUNT
XINFO STREAM s MORE
XINFO STREAM none
XINFO GROUPS none
XINFO GROUPS s
XINFO CONSUMERS none g
XINFO CONSUMERS s g
XINFO NOTHING s
XINFO STREAM
XINFO HELP
XDEL s 2-0 2-0 9-9
XDEL s x
XDEL none x
XDEL none 1-1
XRANGE s - +
XINFO STREAM s
XDEL s 1-1
XDEL s 1-2
XINFO STREAM s
XDEL s 5-1
XINFO STREAM s
XADD s 5-1 f v
XADD s 5-2 f v
XTRIM s
XTRIM s MAXLEN
XTRIM s MAXLEN x
XTRIM s MAXLEN -5
XTRIM s LIMIT 5
XTRIM s MAXLEN 3 LIMIT 1
XTRIM s MAXLEN 3 MORE
XTRIM s MAXLEN 3
XTRIM s MINID 4
XTRIM s MINID = 4-1
XTRIM none MAXLEN 3
XRANGE s - +
XINFO STREAM s
XADD s MAXLEN 2 6-1 f v
XADD s MAXLEN = 2 6-2 f v
XADD s MINID 6-2 6-3 f v
XINFO STREAM s
XTRIM s MAXLEN 0
XINFO STREAM s
XADD s 6-3 f v
XSETID s 5-1
XSETID s 7-1
XSETID s 6-9
XADD s 6-5 f v
XADD s 8-1 f v
XSETID s 7-9
XSETID s x
XSETID none 1-1
XSETID s 9-1 ENTRIESADDED 0
XSETID s 9-1 ENTRIESADDED -1
XSETID s 9-1 ENTRIESADDED 50 MAXDELETEDID 10-1
XSETID s 9-1 ENTRIESADDED 50 MAXDELETEDID 8-0
XSETID s 9-1 MORE
XINFO STREAM s
XADD s 18446744073709551615-18446744073709551614 f v
XADD s * f v
XADD s * f v
XADD s 18446744073709551615-* f v
XRANGE s 18446744073709551615 +
XREAD STREAMS s 18446744073709551615-18446744073709551615
SET k v
XADD k * f v
XADD k 0-0 f v
XLEN k
XRANGE k - +
XREAD STREAMS k 0
XDEL k 1-1
XTRIM k MAXLEN 1
XGROUP CREATE k g 0
XINFO STREAM k
XACK k g 1-1
XPENDING k g
XGROUP
XGROUP HELP
XGROUP NOTHING
XGROUP CREATE
XGROUP CREATE none g
XGROUP CREATE none g 0
XGROUP CREATE none g x MKSTREAM
XGROUP CREATE t g x MKSTREAM
XGROUP SETID none g 0
XGROUP DESTROY none g
XGROUP CREATECONSUMER none g c
XGROUP DELCONSUMER none g c
XGROUP CREATE t g $ MKSTREAM
XGROUP CREATE t g $ MKSTREAM
XGROUP CREATE t h 0 ENTRIESREAD -2
XGROUP CREATE t h 0 ENTRIESREAD x
XGROUP CREATE t h 0 ENTRIESREAD
XGROUP CREATE t h 0 MORE
XGROUP CREATE t h 0 ENTRIESREAD 3
XGROUP SETID t nobody 0
XGROUP CREATECONSUMER t nobody c
XGROUP DELCONSUMER t nobody c
XINFO GROUPS t
XLEN t
XINFO STREAM t
XREADGROUP GROUP g c STREAMS t >
XINFO CONSUMERS t g
XREADGROUP GROUP g c STREAMS t 0
XINFO CONSUMERS t g
XADD t 1-1 f 1
XADD t 1-2 f 2
XADD t 1-3 f 3
XADD t 1-4 f 4
XADD t 1-5 f 5
XREADGROUP GROUP g c STREAMS none >
XREADGROUP GROUP nobody c STREAMS t >
XREADGROUP GROUP g c STREAMS t $
XREADGROUP GROUP g c STREAMS t
XREADGROUP GROUP g c STREAMS t x
XREADGROUP GROUP g c COUNT 1
XREADGROUP COUNT 1 BLOCK 1 STREAMS t >
XREADGROUP GROUP g c COUNT 2 STREAMS t >
XINFO GROUPS t
XREADGROUP GROUP g c COUNT 1 NOACK STREAMS t >
XREADGROUP GROUP g d COUNT 1 STREAMS t >
XREADGROUP GROUP g d BLOCK 10 STREAMS t >
XREADGROUP GROUP g d BLOCK 10 STREAMS t >
XREADGROUP GROUP g c STREAMS t 0
XREADGROUP GROUP g c COUNT 1 STREAMS t 0
XREADGROUP GROUP g c STREAMS t 1-1
XREADGROUP GROUP g e STREAMS t 0
XINFO GROUPS t
XINFO CONSUMERS t g
XPENDING t g
XPENDING t h
XPENDING t nobody
XPENDING none g
XPENDING t g - +
XPENDING t g - + 10
XPENDING t g - + 2
XPENDING t g - + 0
XPENDING t g - + -1
XPENDING t g - + x
XPENDING t g (1-1 + 10
XPENDING t g - (1-5 10
XPENDING t g x + 10
XPENDING t g - + 10 c
XPENDING t g - + 10 nobody
XPENDING t g IDLE 100000 - + 10
XPENDING t g IDLE 0 - + 10 d
XPENDING t g IDLE x - + 10
XPENDING t g IDLE 0 - +
XACK t g 1-1 1-1 9-9
XACK t g x
XACK t nobody 1-2
XACK none g 1-2
XACK t g
XPENDING t g
XINFO STREAM t FULL
XCLAIM t g e 0 1-2
XCLAIM t g e 0 1-2 1-3 1-4 JUSTID
XCLAIM t g e 0 1-3 FORCE
XCLAIM t g e 0 1-1 FORCE JUSTID
XCLAIM t g e 100000 1-2
XCLAIM t g e 0 1-2 RETRYCOUNT 7
XCLAIM t g e 0 1-2 IDLE 50000 JUSTID
XCLAIM t g e 40000 1-2 TIME 1 JUSTID
XCLAIM t g f 0 9-9 FORCE
XCLAIM t g f 0 x
XCLAIM t g f x 1-2
XCLAIM t g f 0 1-2 MORE
XCLAIM t g f 0 1-2 IDLE x
XCLAIM t g f 0 1-2 LASTID 1-9
XCLAIM t nobody f 0 1-2
XCLAIM none g f 0 1-2
XPENDING t g - + 10
XINFO GROUPS t
XINFO CONSUMERS t g
XAUTOCLAIM t g a 0 -
XAUTOCLAIM t g a 0 0 COUNT 1
XAUTOCLAIM t g a 0 1-3 COUNT 2 JUSTID
XAUTOCLAIM t g a 0 (1-3 COUNT 2 JUSTID
XAUTOCLAIM t g a 100000 -
XAUTOCLAIM t g a 0 - COUNT 0
XAUTOCLAIM t g a 0 - COUNT x
XAUTOCLAIM t g a x -
XAUTOCLAIM t g a 0 x
XAUTOCLAIM t g a 0 - MORE
XAUTOCLAIM t nobody a 0 -
XAUTOCLAIM none g a 0 -
XPENDING t g - + 10
XDEL t 1-3
XREADGROUP GROUP g a STREAMS t 0
XAUTOCLAIM t g b 0 - COUNT 2
XDEL t 1-4
XCLAIM t g b 0 1-4 1-5
XPENDING t g - + 10
XGROUP SETID t g 0
XINFO GROUPS t
XREADGROUP GROUP g c STREAMS t >
XPENDING t g - + 10
XGROUP SETID t g $
XGROUP SETID t g 1-2 ENTRIESREAD 2
XINFO GROUPS t
XGROUP CREATECONSUMER t g c
XGROUP CREATECONSUMER t g new
XGROUP DELCONSUMER t g c
XGROUP DELCONSUMER t g c
XPENDING t g
XINFO CONSUMERS t g
XINFO STREAM t FULL
XGROUP DESTROY t g
XGROUP DESTROY t g
XINFO GROUPS t
XREADGROUP GROUP g c STREAMS t >
XREADGROUP GROUP h c STREAMS t t > 0
TYPE t
EXISTS t
"""


def scripted(comparison):
    for version in (2, 3):
        comparison.speak(version)
        for line in SCRIPT.strip().splitlines():
            # Each version has separate streams.
            words = [f"{word}{version}" if word in ("s", "t", "k") else word for word in line.split(" ")]
            comparison.same(*words)


def waiting(comparison):
    """Compares the replies of blocked readers on both servers."""
    for version in (2, 3):
        comparison.speak(version)
        waiters = []
        for address in (comparison.servers.redis, comparison.servers.thalweg):
            client = Client(address)
            client.call("HELLO", version)
            waiters.append(client)

        def both(wait, *then):
            for waiter in waiters:
                waiter.send(*wait)
            time.sleep(0.2)
            for words in then:
                comparison.same(*words)
            answers = [without_times(masked(waiter.read_or_say())) for waiter in waiters]
            comparison.count += 1
            if answers[0] != answers[1]:
                comparison.differences.append((version, wait, *answers))

        w = f"w{version}"
        both(("XREAD", "BLOCK", 5000, "STREAMS", w, "$"), ("XADD", w, "1-1", "f", "v"))
        both(("XREAD", "BLOCK", 0, "STREAMS", w, f"{w}b", "$", "0"), ("XADD", f"{w}b", "1-1", "f", "v"))
        comparison.same("XGROUP", "CREATE", w, "g", "$")
        both(("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", w, ">"), ("XADD", w, "2-1", "f", "v"))
        both(("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", w, ">"), ("XGROUP", "DESTROY", w, "g"))
        comparison.same("XGROUP", "CREATE", w, "g", "$")
        both(("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", w, ">"), ("DEL", w))
        comparison.same("XLEN", w)


class Random:
    """Random commands on few streams, groups and ids, so that they conflict."""

    def __init__(self, dice):
        self.dice = dice
        self.next_ms = {}

    def id(self, top):
        return f"{self.dice.randint(1, max(top, 1))}-{self.dice.randint(0, 2)}"

    def command(self):
        dice = self.dice
        stream = dice.choice(["r1", "r2", "r:3"])
        top = self.next_ms.get(stream, 1)
        group, consumer = dice.choice("gh"), dice.choice("abc")
        bound = lambda sign: dice.choice([sign, self.id(top), "(" + self.id(top), str(dice.randint(1, top))])
        other = dice.choice(["r1", "r2", "r:3", "r4"])
        kind = dice.randint(0, 26)
        if kind <= 6:
            self.next_ms[stream] = top = top + dice.randint(0, 1)
            trim = dice.choice([[]] * 6 + [["MAXLEN", dice.randint(0, 30)], ["MINID", self.id(top)]])
            fields = [dice.choice(["key", "value", "f", "g"]) for _ in range(dice.randint(1, 3))]
            pairs = [part for number, field in enumerate(fields) for part in (field, number)]
            return ["XADD", stream, *trim, dice.choice([f"{top}-*", f"{top}-{dice.randint(0, 9)}"]), *pairs]
        count = dice.choice([[], ["COUNT", dice.randint(0, 5)]])
        return {
            7: lambda: ["XRANGE", stream, bound("-"), bound("+"), *count],
            8: lambda: ["XREVRANGE", stream, bound("+"), bound("-"), *count],
            9: lambda: ["XREAD", *count, "STREAMS", stream, "r2", self.id(top), "0"],
            10: lambda: ["XDEL", stream, self.id(top), self.id(top)],
            11: lambda: ["XTRIM", stream, "MAXLEN", dice.randint(0, 40)],
            12: lambda: ["XLEN", stream],
            13: lambda: ["XINFO", "STREAM", stream],
            14: lambda: ["XGROUP", "CREATE", stream, group, dice.choice(["0", "$", self.id(top)]), "MKSTREAM"],
            15: lambda: ["XREADGROUP", "GROUP", group, consumer, *count, "STREAMS", stream, ">"],
            16: lambda: ["XREADGROUP", "GROUP", group, consumer, *count, "STREAMS", stream, dice.choice(["0", ">"])],
            17: lambda: ["XACK", stream, group, self.id(top), self.id(top)],
            18: lambda: ["XPENDING", stream, group, "-", "+", 10, *dice.choice([[], [consumer]])],
            19: lambda: ["XCLAIM", stream, group, consumer, 0, self.id(top), *dice.choice([[], ["FORCE"], ["JUSTID"]])],
            20: lambda: ["XAUTOCLAIM", stream, group, consumer, 0, bound("-"), "COUNT", dice.randint(1, 5)],
            21: lambda: ["XINFO", "GROUPS", stream],
            22: lambda: dice.choice([
                ["XGROUP", "DELCONSUMER", stream, group, consumer],
                ["XGROUP", "CREATECONSUMER", stream, group, consumer],
                ["XGROUP", "SETID", stream, group, self.id(top)],
                ["XPENDING", stream, group],
                ["XSETID", stream, f"{top + 1}-0"],
                ["XGROUP", "DESTROY", stream, group] if dice.random() < 0.2 else ["XLEN", stream],
            ]),
            23: lambda: ["XINFO", "STREAM", stream, "FULL"],
            24: lambda: dice.choice([["EXISTS", stream, other], ["TYPE", other], ["DBSIZE"], ["EXPIRETIME", stream]]),
            25: lambda: dice.choice([["EXPIREAT", stream, 4102444800 + number] for number in (0, 9)] + [["PERSIST", stream]]),
            26: lambda: dice.choice([
                ["RENAME", stream, other],
                ["RENAMENX", stream, other],
                ["COPY", stream, other, "REPLACE"],
                ["COPY", stream, other],
                ["DEL", stream] if dice.random() < 0.3 else ["EXISTS", stream],
            ]),
        }[kind]()


def by_chance(comparison, rounds, seed, restarts):
    dice = random.Random(seed)
    commands = Random(dice)
    for number in range(rounds):
        if number % 200 == 0:
            comparison.speak(dice.choice([2, 3]))
        if restarts and number % 400 == 399:
            comparison.restart()
        if dice.random() < 0.05:
            comparison.same("MULTI")
            # Replies that contain times are compared outside of transactions.
            some = [commands.command() for _ in range(dice.randint(0, 4))]
            for command in some:
                comparison.same(*command if command[0] not in ("XPENDING", "XINFO") else ("PING",))
            comparison.same("EXEC")
        else:
            comparison.same(*commands.command())
        if len(comparison.differences) > 20:
            return


def large(comparison, seed, restarts):
    """Compares commands on a long stream, in which the servers have to search for entries."""
    dice = random.Random(seed)
    for client in comparison.clients:
        for number in range(4000):
            client.send("XADD", "large", f"{number // 3 + 1}-{number % 3 + 1}", "f", number)
            if number % 100 == 99:
                for _ in range(100):
                    client.read()
    comparison.same("XTRIM", "large", "MAXLEN", "~", 3950)
    comparison.same("XTRIM", "large", "MAXLEN", "~", 3850)
    comparison.same("XTRIM", "large", "MINID", "~", "250")
    comparison.same("XTRIM", "large", "MAXLEN", "~", 100, "LIMIT", 250)
    comparison.same("XGROUP", "CREATE", "large", "g", "0")
    for number in range(1000):
        if restarts and number % 250 == 249:
            comparison.restart()
        at = lambda: f"{dice.randint(1, 1400)}-{dice.randint(0, 4)}"
        one, other = at(), at()
        count = ["COUNT", dice.randint(1, 300)]
        comparison.same(*dice.choice([
            ["XRANGE", "large", one, other, *count],
            ["XREVRANGE", "large", one, other, *count],
            ["XREVRANGE", "large", "+", one, *count],
            ["XREAD", *count, "STREAMS", "large", one],
            ["XDEL", "large", *[at() for _ in range(20)]],
            ["XLEN", "large"],
            ["XINFO", "STREAM", "large"],
            ["XREADGROUP", "GROUP", "g", "c", "COUNT", dice.randint(1, 20), "STREAMS", "large", ">"],
            ["XCLAIM", "large", "g", "d", 0, one, other],
            ["XAUTOCLAIM", "large", "g", "e", 0, one],
            ["XADD", "large", f"{1400 + number}-1", "f", number],
            ["XTRIM", "large", "MAXLEN", max(0, 3000 - 4 * number)] if dice.random() < 0.2 else ["XLEN", "large"],
            ["XTRIM", "large", "MINID", one] if dice.random() < 0.05 else ["XLEN", "large"],
        ]))
    comparison.same("XINFO", "STREAM", "large", "FULL", "COUNT", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("thalweg")
    parser.add_argument("redis", nargs="?", default="redis-server")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", action="store_true")
    options = parser.parse_args()
    servers = Servers(options)
    try:
        comparison = Comparison(servers)
        scripted(comparison)
        waiting(comparison)
        large(comparison, options.seed, options.data)
        by_chance(comparison, options.rounds, options.seed, options.data)
    finally:
        servers.stop()
    for version, args, redis, thalweg in comparison.differences:
        print(f"RESP{version} {' '.join(map(str, args))}\n  redis   {redis}\n  thalweg {thalweg}")
    print(f"{comparison.count} replies compared, {len(comparison.differences)} differ")
    sys.exit(1 if comparison.differences else 0)


if __name__ == "__main__":
    main()
