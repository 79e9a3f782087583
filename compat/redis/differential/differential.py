#!/usr/bin/env python3
"""Sends equal random commands to two servers, and compares the replies, with their types and the texts of errors.

    differential.py A B [--seed N] [--commands N] [--strict] [--without COMMAND..]

BOTH SERVERS ARE EMPTIED. Commands are in histories. Histories begin with empty servers, in RESP2 and RESP3 alternately,
and end with a comparison of all keys. A scene is a sequence of steps on several connections that block, watch and
subscribe. On a difference the program prints the shortest history that it can find, and exits with 1.
"""

import argparse
import collections
import random
import re
import sys
import time

import events
from commands import ANY, FORMS, SWAPS, Commands, is_unsorted, parsed
from resp import ANSWER_SECONDS, NULL, Connection, is_lost, shown

HISTORY_COMMANDS = 2000
BATCH_COMMANDS = 200
TRANSACTION_CHANCE = 0.02
SWAP_CHANCE = 0.001
# Part of the scenes with watched keys that exchange the databases.
WATCHED_SWAP_CHANCE = 0.2
# Commands of histories with scripts, as a part of all others, and the part of their commands that are scripts.
SCRIPTS_PART, SCRIPT_CHANCE = 0.2, 0.5
# Part of the items between scripts that are about libraries of functions.
FUNCTIONS_CHANCE = 0.25
SHORTEN_SECONDS = 60
# Permitted difference of times to live: the two servers are queried one after the other.
TTL_SECONDS = 3
DATABASES = (0, 1)
# Uses both databases before its first change, as a script of the broker has to.
WITHOUT_STREAMS = b"""
for db = 0, 1 do redis.call('SELECT', db) redis.call('DBSIZE') end
for db = 0, 1 do
    redis.call('SELECT', db)
    for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('TYPE', key).ok == 'stream' then redis.call('DEL', key) end
    end
end
"""
# Keys that a client tracks.
TRACKED = [key.encode("latin-1") for key in ANY]
PUSHER = 3
UNBLOCKED = "-", b"UNBLOCKED client unblocked via CLIENT UNBLOCK"

Deviation = collections.namedtuple("Deviation", "name reason allows")
Difference = collections.namedtuple("Difference", "what replies")


ENCODINGS = [{b"int", b"embstr", b"raw"}, {b"listpack", b"hashtable", b"intset"}, {b"listpack", b"skiplist"}]


def encodings(a, b):
    return a[0] == b[0] == "$" and any({a[1], b[1]} <= same for same in ENCODINGS)


def scanned_scores(a, b):
    """Returns True for a whole score of ZSCAN with all digits, as in a listpack, and with an exponent, as in a skiplist."""
    if not a[0] == b[0] == "score" or None in (a[1], b[1]):
        return False
    value = float(a[1])
    return value.is_integer() and {a[1], b[1]} == {b"%d" % int(value), b"%.17g" % value}


def trimmed_reads(a, b):
    """Returns True for streams without entries, and a client that is still blocked."""
    streams = {"%": lambda value: value, "*": lambda value: [pair for _, pair in value]}.get(a[0], lambda _: [])(a[1])
    has_none = bool(streams) and all(len(pair) == 2 and pair[1] == ("*", []) for pair in streams)
    return has_none and b[0] == "*" and b[1][:1] == [("+", b"was blocked")]


# Permitted differences, with the reasons. Each use is counted. With --strict no difference is permitted.
DEVIATIONS = [
    Deviation("encoding", "the encoding depends on earlier values in Redis, elsewhere on the current value", encodings),
    Deviation("digits of a scanned score", "they depend on the encoding", scanned_scores),
    Deviation("answers without entries", "a blocked XREAD has one in Redis if its entries were trimmed", trimmed_reads),
]
# Commands that are never sent, with the reasons. `commands.is_certain` excludes those that depend on the time.
NOT_ASKED = {
    "SPOP of some members": "the removed members are random; SPOP of all members is sent",
    "OBJECT IDLETIME and REFCOUNT, MEMORY, INFO, DEBUG, TIME": "they describe the server itself",
    "XADD with * alone": "the ids depend on the server's clock",
    "XTRIM with ~ of long streams": "a limit in bytes also ends nodes of Redis",
    "XSETID": "Redis before 7.2 accepts an id below that of a deleted entry (#11444); compared in `streams/compare.py`",
    "ranges by name over scores that differ": "they have no meaning, and Redis walks a list that is not in that order",
    "SWAPDB while a client is blocked": "the order in which several keys are served is random",
    "SWAPDB of streams": "the broker refuses it, as it names the topic of a stream after its database",
    "invalidations by SWAPDB": "the broker invalidates all keys, Redis leaves values of the other database",
    "SORT by equal weights with LIMIT or STORE": "any order is valid",
    "BITFIELD .. SAT with the lowest numbers": "Redis stores the highest one, as its difference to them overflows",
    "long names of streams and settings": "a stream is a topic; the error for a setting shows the beginning of its name",
}
UNORDERED = {b"SMEMBERS", b"SINTER", b"SUNION", b"SDIFF", b"HKEYS", b"HVALS", b"KEYS", b"SPOP"}
RANDOM = {b"SRANDMEMBER", b"HRANDFIELD", b"ZRANDMEMBER", b"RANDOMKEY"}
TIMES = {b"TTL": TTL_SECONDS, b"EXPIRETIME": TTL_SECONDS}
TIMES |= {b"PTTL": TTL_SECONDS * 1000, b"PEXPIRETIME": TTL_SECONDS * 1000}
# Fields of XINFO with times, or about the storage of the entries.
OWN_FIELDS = {b"radix-tree-keys", b"radix-tree-nodes", b"idle", b"inactive"}
# Commands whose first argument is not a key.
KEYLESS = {b"SELECT", b"SWAPDB", b"PING", b"ECHO", b"KEYS", b"SCAN", b"CLIENT", b"MULTI", b"EXEC", b"DISCARD"}


# Comparison of replies


def order(reply):
    return repr(reply)


def paired(value):
    return [("*", value[at : at + 2]) for at in range(0, len(value), 2)]


def without_own(reply):
    """Returns a map of XINFO, which is a list in RESP2, without the fields that differ between servers."""
    kind, value = reply
    if kind == "%":
        return kind, [pair for pair in value if pair[0][1] not in OWN_FIELDS]
    if kind == "*" and value and value[0][0] == "*":
        return kind, [without_own(each) for each in value]
    if kind == "*" and value and value[0][0] == "%":
        return kind, [without_own(each) for each in value]
    if kind == "*" and value:
        return kind, [each for pair in paired(value) if pair[1][0][1] not in OWN_FIELDS for each in pair[1]]
    return reply


def deeply_sorted(reply):
    """Returns a reply without any order, as libraries and functions have none."""
    kind, value = reply
    if kind == "%":
        value = [("*", list(pair)) for pair in value]
    if kind in "*~%" and value:
        return kind, sorted(map(deeply_sorted, value), key=order)
    return reply


def essence(command, reply):
    """Returns a reply without its irrelevant parts: the order of unordered types, random choices, and elapsed time."""
    try:
        return meaning(command, reply)
    except (ValueError, TypeError, IndexError):
        # The reply does not have the shape of the command's replies, which is a difference as well.
        return reply


def meaning(command, reply):
    kind, value = reply
    name = command[0].upper()
    if name == b"FUNCTION" and kind in "-!" and value.startswith(b"ERR Function ") and value.endswith(b" already exists"):
        # Of several functions that exist, any may be named.
        return kind, b"ERR Function already exists"
    if kind in "-+!" or value is None:
        return reply
    if kind == "$" and value.startswith(b"HYLL"):
        # Redis stores the estimate when it is read.
        return kind, value[:8] + value[16:]
    if name in UNORDERED and kind in "*~":
        return kind, sorted(value, key=order)
    if name == b"HGETALL":
        return kind, sorted(value if kind == "%" else paired(value), key=order)
    if name in (b"SCAN", b"SSCAN", b"HSCAN", b"ZSCAN"):
        cursor, found = value
        found = found[1] if name in (b"SCAN", b"SSCAN") else paired(found[1])
        if name == b"ZSCAN":
            found = [("*", [pair[0], ("score", pair[1][1])]) for _, pair in found]
        # A scan from another cursor, or one that is incomplete, may return any keys.
        is_whole = command[1 if name == b"SCAN" else 2] == b"0" and cursor == ("$", b"0")
        return kind, [cursor, ("*", sorted(found, key=order))] if is_whole else []
    if name in RANDOM:
        return kind, len(value) if kind in "*~%" else "one"
    if name in TIMES and kind == ":" and value > 0:
        return "time", (value, TIMES[name])
    is_by = name in (b"SORT", b"SORT_RO") and any(word.upper() == b"BY" for word in command) and kind == "*"
    if is_by and not is_unsorted([word.decode("latin-1") for word in command]):
        return kind, sorted(value, key=order)
    if name == b"XINFO":
        return without_own(reply)
    if name == b"XPENDING" and kind == "*" and len(command) > 3:
        return kind, [("*", [part for at, part in enumerate(each[1]) if at != 2]) for each in value]
    if name == b"FUNCTION" and kind in "*~%" and command[1].upper() == b"LIST":
        return deeply_sorted(reply)
    if name == b"PUBSUB" and kind == "*" and command[1].upper() == b"CHANNELS":
        return kind, sorted(value, key=order)
    return reply


class Transaction:
    """Commands that are queued on one connection. The reply of EXEC has the replies of all."""

    def __init__(self):
        self.queued = None

    def essence(self, command, reply):
        name = command[0].upper()
        if self.queued is not None and reply == ("+", b"QUEUED"):
            self.queued.append(command)
        elif name == b"MULTI" and reply[0] == "+":
            self.queued = []
        elif name == b"DISCARD" and reply[0] == "+":
            self.queued = None
        elif name == b"EXEC" and not reply[1:] == (b"ERR wrong number of arguments for 'exec' command",):
            queued, self.queued = self.queued or [], None
            if reply[0] == "*" and reply[1] is not None and len(reply[1]) == len(queued):
                return "*", [essence(*each) for each in zip(queued, reply[1])]
        return essence(command, reply)


class Judge:
    def __init__(self, is_strict):
        self.deviations = [] if is_strict else DEVIATIONS
        self.allowed = collections.Counter()

    def differ(self, a, b):
        if is_lost(a) or is_lost(b):
            return True
        if a == b:
            return False
        if a[0] == b[0] == "time":
            return abs(a[1][0] - b[1][0]) > a[1][1]
        if a[0] == b[0] and isinstance(a[1], list) and isinstance(b[1], list) and len(a[1]) == len(b[1]):
            parts = lambda one: [part for each in one for part in each] if a[0] == "%" else one
            return any(map(self.differ, parts(a[1]), parts(b[1])))
        for deviation in self.deviations:
            if deviation.allows(a, b):
                self.allowed[deviation.name] += 1
                return False
        return True


# Two servers


class Side:
    """Connections to one of the servers: numbered ones, and one for control."""

    def __init__(self, address, protocol, mode):
        self.address, self.protocol = address, protocol
        self.control = Connection(address)
        self.control.do(b"FLUSHALL")
        self.control.do(b"FUNCTION", b"FLUSH")
        # Frequency at which redis-server checks for elapsed timeouts: otherwise each command that times out takes 100
        # ms. Another server need not know the setting.
        self.control.do(b"CONFIG", b"SET", b"hz", b"500")
        self.connections, self.transactions = {}, collections.defaultdict(Transaction)
        self.events = events.Events(address)
        self.tracker = events.Tracker(address, mode, TRACKED)
        self.marks = 0

    def connection(self, number):
        if number not in self.connections:
            self.connections[number] = Connection(self.address, self.protocol)
        return self.connections[number]

    def essences(self, number, commands):
        replies = self.connection(number).pipeline(commands)
        return list(zip(map(self.transactions[number].essence, commands, replies), replies))

    def is_blocked(self, id):
        lines = self.control.do(b"CLIENT", b"LIST")[1].decode("latin-1").splitlines()
        fields = next((line.split() for line in lines if line.startswith(f"id={id} ")), [])
        return any(field.startswith("flags=") and "b" in field for field in fields)

    def settled(self, number):
        """Waits until the connection has a reply or is blocked. Returns `True` if it has a reply."""
        connection = self.connection(number)
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            if connection.is_readable():
                return True
            if self.is_blocked(connection.id) and not connection.is_readable():
                return False
        raise TimeoutError(f"{self.address}: a client neither waits nor has an answer")

    def step(self, kind, number, command):
        """Executes a step, and returns the result to compare."""
        connection = self.connection(number)
        if kind == "do":
            return self.essences(number, [command])[0]
        if kind == "send":
            connection.send(command)
        elif kind == "block":
            connection.send(command)
            self.settled(number)
        elif kind == "answer":
            if not self.settled(number):
                # The command selects the way: with an error, or as if the timeout had elapsed.
                was_blocked = self.control.do(b"CLIENT", b"UNBLOCK", str(connection.id).encode(), *command)[1] == 1
                reply = connection.reply()
                # A served client may count as blocked until its reply is sent. It has its own reply then, but an
                # unblocked client has null or the error for UNBLOCK.
                if was_blocked and (reply[1] is None or reply == UNBLOCKED):
                    reply = "*", [("+", b"was blocked"), reply]
            else:
                reply = connection.reply()
            return reply, reply
        else:
            return self.heard(connection)
        return NULL, NULL

    def heard(self, connection):
        """Returns the pushed messages up to the reply of a PING. The messages of several patterns are in any order."""
        self.marks += 1
        mark = b"mark-%d" % self.marks
        connection.send((b"PING", mark))
        found = []
        while (reply := connection.reply()) not in (("$", mark), ("*", [("$", b"pong"), ("$", mark)])):
            if is_lost(reply):
                return reply, reply
            found.append(reply)
        found = "*", sorted(found, key=order)
        return found, found

    def dump(self):
        """Returns each key with its type, the presence of an expiration time, and its contents."""
        found = {}
        for db in DATABASES:
            self.control.do(b"SELECT", b"%d" % db)
            keys = self.control.do(b"KEYS", b"*")
            if is_lost(keys):
                raise ConnectionError(f"{self.address}: {shown(keys)}")
            keys = [key for _, key in keys[1]]
            types = self.control.pipeline([(b"TYPE", key) for key in keys])
            for key, (_, type) in zip(keys, types):
                has_time = self.control.do(b"PTTL", key)[1] > 0
                found[db, key] = "*", [("+", type), ("#", has_time), ("*", self.value(key, type))]
        self.control.do(b"SELECT", b"0")
        return found

    def value(self, key, type):
        commands = {
            b"string": [(b"GET", key)],
            b"list": [(b"LRANGE", key, b"0", b"-1")],
            b"set": [(b"SMEMBERS", key)],
            b"hash": [(b"HGETALL", key)],
            b"zset": [(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")],
            b"stream": [(b"XRANGE", key, b"-", b"+"), (b"XINFO", b"STREAM", key), (b"XINFO", b"GROUPS", key)],
        }.get(type, [])
        replies = self.control.pipeline(commands)
        if type == b"stream" and replies[-1][0] == "*":
            for _, fields in replies[-1][1]:
                group = fields[1][1]
                more = [(b"XPENDING", key, group, b"-", b"+", b"1000"), (b"XINFO", b"CONSUMERS", key, group)]
                commands, replies = commands + more, replies + self.control.pipeline(more)
        return [essence(*each) for each in zip(commands, replies)]

    def close(self):
        self.control.do(b"CONFIG", b"SET", b"notify-keyspace-events", b"")
        for connection in [self.control, self.events, self.tracker, *self.connections.values()]:
            connection.close()


class Run:
    """Run of one history on both servers, which are emptied first. An item is a list of commands of one connection, or
    a scene, which is a tuple of steps: (kind, connection, command)."""

    def __init__(self, addresses, protocol, judge, mode):
        self.sides = [Side(address, protocol, mode) for address in addresses]
        self.judge = judge

    def differ(self, what, a, b):
        if self.judge.differ(a[0], b[0]):
            return Difference(what, (a[1], b[1]))

    def items(self, items):
        """Returns the index of the first item with different replies, and the difference, or `None`."""
        batch = []
        for at, item in enumerate(items):
            if isinstance(item, list):
                batch += [(at, command) for command in item]
            if batch and (isinstance(item, tuple) or len(batch) >= BATCH_COMMANDS or at == len(items) - 1):
                if found := self.commands(batch):
                    return found
                batch = []
            if isinstance(item, tuple) and (found := self.scene(item)):
                return at, found
        return None

    def commands(self, batch):
        commands = [command for _, command in batch]
        for side in self.sides:
            side.connection(0)
        for (at, command), a, b in zip(batch, *(side.essences(0, commands) for side in self.sides)):
            if found := self.differ(line(0, command), a, b):
                return at, found
        return (batch[-1][0], found) if (found := self.events(commands)) else None

    def scene(self, steps):
        for kind, number, command in steps:
            a, b = (side.step(kind, number, command) for side in self.sides)
            if found := self.differ(line(number, command, kind), a, b):
                return found
        return self.events([command for _, _, command in steps])

    def events(self, commands):
        if found := events.difference(*(side.events.heard() for side in self.sides)):
            return Difference(*found)
        # In Redis, PFCOUNT stores the estimate, which is a change of the key.
        counted = {word for command in commands if command[:1] and command[0].upper() == b"PFCOUNT" for word in command}
        told = events.invalidated([side.tracker for side in self.sides], counted)
        has_swapped = any(command[:1] and command[0].upper() == b"SWAPDB" for command in commands)
        if told[0] != told[1] and not has_swapped:
            replies = [("*", [("$", key) for key in sorted(keys, key=repr)]) for keys in told]
            return Difference(f"invalidations of a client that tracks {self.sides[0].tracker.mode}", replies)
        return None

    def keys(self):
        dumps = [side.dump() for side in self.sides]
        for db, key in sorted(set().union(*dumps)):
            a, b = (dump.get((db, key), NULL) for dump in dumps)
            if self.judge.differ(a, b):
                return Difference(f"key {quoted(key)} of database {db}", (a, b))
        return self.moved(sorted(key for db, key in dumps[0] if db == 0))

    def moved(self, keys):
        """Moves each value to the other server with DUMP and RESTORE, and compares it there. Streams have no payload."""
        for here, there in (self.sides, self.sides[::-1]):
            types = here.control.pipeline([(b"TYPE", key) for key in keys])
            for key, (_, type) in zip(keys, types):
                if type in (b"none", b"stream"):
                    continue
                payload = here.control.do(b"DUMP", key)
                restored = there.control.do(b"RESTORE", b"moved", b"0", payload[1], b"REPLACE")
                before, after = ("*", here.value(key, type)), ("*", there.value(b"moved", type))
                if restored != ("+", b"OK") or self.judge.differ(before, after):
                    what = f"key {quoted(key)} moved from {here.address}: {shown(payload)} {shown(restored)}"
                    return Difference(what, (before, after))
        return None

    def libraries(self):
        """Moves the libraries of each server to the other with DUMP and RESTORE, and compares them there."""
        listed = b"FUNCTION", b"LIST", b"WITHCODE"
        for here, there in (self.sides, self.sides[::-1]):
            payload = here.control.do(b"FUNCTION", b"DUMP")
            if payload[0] == "-":
                continue
            restored = there.control.do(b"FUNCTION", b"RESTORE", payload[1], b"FLUSH")
            before, after = (essence(listed, side.control.do(*listed)) for side in (here, there))
            if restored != ("+", b"OK") or self.judge.differ(before, after):
                what = f"libraries moved from {here.address}: {shown(payload)} {shown(restored)}"
                return Difference(what, (before, after))
        return None

    def close(self):
        for side in self.sides:
            side.close()


# Histories


def latin(command):
    return tuple(word.encode("latin-1") for word in command)


# For each family of keys: the commands that block on them, and those that run concurrently.
BLOCKING = [
    (
        "l",
        [
            "BLPOP {<l>} 100", "BRPOP {<l>} 0", "BLMOVE <l> <l> (LEFT|RIGHT) (LEFT|RIGHT) 100",
            "BRPOPLPUSH <l> <l> 100", "BLMPOP 100 2 <l> <l> (LEFT|RIGHT) [COUNT 2]",
        ],
        [
            "RPUSH <l> {<m>}", "LPUSH <l> {<m>}", "RPUSH <l> {<m>}", "LMOVE <l> <l> LEFT RIGHT", "RENAME <l> <l>",
            "COPY <l> <l> REPLACE", "SORT <l> ALPHA STORE <l>", "DEL <l>", "SET <l> <v>", "RPUSHX <l> <m>", "LPOP <l>",
        ],
    ),
    (
        "z",
        ["BZPOPMIN {<z>} 100", "BZPOPMAX {<z>} 0", "BZMPOP 100 2 <z> <z> (MIN|MAX) [COUNT 2]"],
        [
            "ZADD <z> {1 <m>}", "ZADD <z> {2 <m>}", "ZADD <z> XX 1 <m>", "ZINCRBY <z> 1 <m>",
            "ZUNIONSTORE <z> 2 <z> <z>", "RENAME <z> <z>", "DEL <z>", "SET <z> <v>", "ZRANGESTORE <z> <z> 0 -1",
            "ZREM <z> <m>",
        ],
    ),
    (
        "x",
        [
            "XREAD [COUNT 2] BLOCK 100000 STREAMS <x> $", "XREAD BLOCK 0 STREAMS <x> <x> $ 5",
            "XREAD BLOCK 100000 STREAMS <x> <id>", "XREADGROUP GROUP <g> <c> [COUNT 1] BLOCK 100000 STREAMS <x> \\>",
        ],
        [
            "XADD <x> <new> {<f> <v>}", "XADD <x> <new> <f> <v>", "XADD <x> <new> <f> <v>", "DEL <x>", "SET <x> <v>",
            "XGROUP CREATE <x> <g> $ MKSTREAM", "XGROUP DESTROY <x> <g>", "RENAME <x> <x>", "XTRIM <x> MAXLEN 0",
        ],
    ),
]
# None is a key, as a stream is also a topic, to which a channel of its name publishes.
CHANNELS = [b"c1", b"c2", b"news.a", b"other"]
PATTERNS = [b"c?", b"*", b"news.*", b"[c]1"]


# Commands that are in no script: their replies depend on chance, on the time, or on the order of sets and maps.
NOT_IN_SCRIPTS = UNORDERED | RANDOM | set(TIMES) | {
    b"CLIENT", b"HGETALL", b"HSCAN", b"OBJECT", b"PUBSUB", b"SCAN", b"SORT", b"SORT_RO", b"SSCAN", b"XINFO", b"XPENDING",
    b"ZSCAN",
    # Maps, whose order in a table of Lua has no meaning.
    b"LCS", b"XREAD", b"XREADGROUP",
    # The broker allows this only outside of scripts, and other databases only before the first change.
    b"FLUSHALL", b"SELECT", b"SWAPDB", b"MOVE", b"COPY",
    # Redis stores the estimate, and therefore refuses this in scripts that only read.
    b"PFCOUNT",
}
# Commands that are not sent between scripts: some of their replies depend on the order of a set.
UNCERTAIN = {b"SORT", b"SORT_RO", b"LPOS"}
TOOLS = {form.split()[0].encode() for form in FORMS["tools"]}


# What histories with libraries choose from.
LIBRARY_NAMES, FUNCTION_NAMES = (b"Lib1", b"lib2", b"lib3"), (b"f", b"g", b"F", b"h_1", b"none")
REGISTERED = ("f", "g", "h_1")
FLAGS = ("no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys", "NO-WRITES", "unknown")
BODIES = (
    "return {#keys, #args, keys[1], args[1]}", "return redis.call('get', keys[1])", "return redis.call('set', keys[1], args[1])",
    "return redis.pcall('incr', keys[1])", "return KEYS[1]", "foo = 1", "error('boom')", "return {err = 'My error'}",
    "return {ok = 'fine'}", "return redis.error_reply('bad')", "return redis.call('nosuch')", "return type(redis.register_function)",
    "redis.setresp(3) return type(redis.call('get', keys[1]))", "local t = {} for at = 1, #args do t[at] = args[at] .. '!' end return t",
    "return tostring(pcall(redis.call, 'lpush', keys[1], 'x'))", "return redis.call('fcall', 'f', 0)", "return unpack(args)",
    "return string.format('%d', #keys)", "return {double = 3.5}", "",
)
OTHER_LINES = (
    "x = 1", "redis.call('get', 's1')", "local x = string.rep('x', 2)", "redis.register_function()", "redis.register_function('a')",
    "redis.register_function({}, 1)", "redis.register_function{}", "redis.register_function('a-b', function() end)", "syntax error",
    "redis.register_function{function_name = 'a', callback = 1}", "return 1", "local y = nil + 1", "redis.log(redis.LOG_DEBUG, 'x')",
    "redis.x = 1", "redis.log(1)", "local function helper() return 1 end", "redis.register_function(1, function() return 1 end)",
)


def quoted_in_lua(word):
    return '"' + "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:03}" for byte in word) + '"'


class Histories:
    def __init__(self, seed, without=()):
        self.commands, self.random = Commands(seed, without), random.Random(seed + 1)
        self.has_functions = "FUNCTION" not in without

    def of(self, forms):
        wanted = list(filter(self.commands.is_wanted, forms))
        return latin(self.commands.words(parsed(self.random.choice(wanted)))) if wanted else (b"PING",)

    def item(self):
        if self.random.random() < TRANSACTION_CHANCE:
            return self.transaction()
        if self.may_swap() and self.random.random() < SWAP_CHANCE:
            return [self.without_streams(), *(self.of(SWAPS) for _ in range(self.random.randint(1, 2)))]
        return [latin(self.commands.one())]

    def may_swap(self):
        return not {"SWAPDB", "EVAL"} & self.commands.without

    def without_streams(self):
        return b"EVAL", WITHOUT_STREAMS, b"0"

    def some(self, least, most):
        return [latin(self.commands.one()) for _ in range(self.random.randint(least, most))]

    def script(self):
        """Returns a script of a few commands, in one of the shapes in which scripts use their replies."""
        pick, commands = self.random, []
        while not commands:
            some = self.some(1, 4)
            commands = [each for each in some if each[0].upper() not in NOT_IN_SCRIPTS | TOOLS]
        calls = [f"redis.{pick.choice(('call', 'pcall', 'pcall'))}({', '.join(map(quoted_in_lua, each))})" for each in commands]
        text = pick.choice(("", "", "redis.setresp(3) ", "#!lua\n", "#!lua flags=no-writes\n"))
        shape = pick.randrange(4)
        if shape == 0:
            text += " ".join(f"local r{at} = {call}" for at, call in enumerate(calls)) + f" return r{len(calls) - 1}"
        elif shape == 1:
            text += "return {" + ", ".join(calls) + "}"
        elif shape == 2:
            text += f"local out = {{}} for at = 1, 2 do out[#out + 1] = {calls[0]} end return out"
        else:
            text += f"local ok, found = pcall(function() return {calls[0]} end) return {{tostring(ok), type(found), found}}"
        keys = sorted({word for each in commands for word in each if is_key(word)}) if pick.random() < 0.7 else []
        return pick.choice((b"EVAL", b"EVAL", b"EVAL_RO")), text.encode(), str(len(keys)).encode(), *keys

    def functions(self):
        """Yields commands about libraries of functions, many of them invalid, and calls of their functions."""
        pick = self.random
        if pick.random() < 0.5:
            yield (b"FUNCTION", b"LOAD", *pick.choice(((), (), (b"REPLACE",), (b"x",))), self.library())
        for _ in range(pick.randint(1, 3)):
            kind = pick.random()
            if kind < 0.7:
                keys = pick.choices((b"s1", b"h1", b"l1", b"none"), k=pick.randint(0, 2))
                count = pick.choice((str(len(keys)).encode(),) * 8 + (b"9", b"-1", b"x", b"01"))
                args = pick.choices((b"a", b"5", b""), k=pick.randint(0, 2))
                yield pick.choice((b"FCALL", b"FCALL", b"FCALL_RO")), pick.choice(FUNCTION_NAMES), count, *keys, *args
            elif kind < 0.8:
                yield b"FUNCTION", pick.choice((b"DELETE", b"DELETE", b"LOAD")), pick.choice(LIBRARY_NAMES)
            elif kind < 0.9:
                yield b"FUNCTION", b"LIST", *pick.choice(((), (b"WITHCODE",), (b"LIBRARYNAME", b"L*"), (b"LIBRARYNAME",)))
            elif kind < 0.95:
                yield b"FUNCTION", b"STATS"
            else:
                yield b"FUNCTION", b"FLUSH", *pick.choice(((), (b"SYNC",), (b"ASYNC",), (b"x",), (b"SYNC", b"x")))

    def library(self):
        """Returns the text of a library."""
        pick, lines = self.random, []
        header = pick.choice((b"#!lua name=%s",) * 12 + (b"#!LUA NAME=%s", b"#!lua 'name=%s'", b"#!js name=%s", b"#!lua name=%s name=b",
                                                          b"#!lua name=%s x=y", b"#!lua name=a-%s", b"#!lua name='%s", b"name=%s"))
        header = (header % pick.choice(LIBRARY_NAMES)).decode()
        for _ in range(pick.randint(0, 3)):
            name, body = pick.choice(REGISTERED), pick.choice(BODIES)
            callback = f"function(keys, args) {body} end"
            flags = ", ".join(f"'{flag}'" for flag in pick.sample(FLAGS, pick.choice((0, 1, 1, 2))))
            more = pick.choice((f", flags = {{{flags}}}", f", flags = {{{flags}}}, description = 'some text'", "", ", other = 1"))
            lines += [pick.choice((f"redis.register_function('{name}', {callback})",
                                   f"redis.register_function{{function_name = '{name}', callback = {callback}{more}}}"))]
        lines += pick.choices(OTHER_LINES, k=pick.choice((0, 0, 0, 0, 1)))
        pick.shuffle(lines)
        return "\n".join([header, *lines, ""]).encode()

    def keys(self):
        return latin(self.random.choices(["s1", "h1", "l1", "e1", "z1", "x1", "none"], k=self.random.randint(1, 3)))

    def transaction(self):
        watch = [(b"WATCH", *self.keys())] if self.random.random() < 0.3 else []
        end = self.random.choice([(b"EXEC",)] * 5 + [(b"DISCARD",), (b"EXEC", b"x")])
        item = [*watch, *self.some(0, 1), (b"MULTI",), *self.some(0, 4), end]
        # No transaction and no WATCH may stay open, whatever the result.
        return [*item, (b"DISCARD",), (b"UNWATCH",)]

    def scene(self):
        return tuple(self.random.choice((self.blocking, self.blocking, self.watching, self.listening))())

    def blocking(self):
        pick = self.random
        scenes = [scene for scene in BLOCKING if scene[0] != "x" or "XADD" not in self.commands.without]
        prefix, poppers, pushers = pick.choice(scenes)
        if pick.random() < 0.8:
            yield "do", PUSHER, latin(["DEL", *(f"{prefix}{at}" for at in (1, 2, 3))])
        if prefix == "x":
            for key in ("x1", "x2"):
                yield "do", PUSHER, latin(["XGROUP", "CREATE", key, "g1", "$", "MKSTREAM"])
        waiting = range(1, pick.randint(2, PUSHER))
        for number in waiting:
            yield "block", number, self.of(poppers)
        is_transaction = pick.random() < 0.3
        if is_transaction:
            yield "do", PUSHER, (b"MULTI",)
        for _ in range(pick.randint(1, 4)):
            yield "do", PUSHER, self.of(pushers)
        if is_transaction:
            yield "do", PUSHER, (b"EXEC",)
        for number in waiting:
            yield "answer", number, pick.choice([(), (b"TIMEOUT",), (b"ERROR",)])

    def watching(self):
        yield "do", 1, (b"WATCH", *self.keys())
        if self.random.random() < 0.1:
            yield "do", 1, (b"UNWATCH",)
        for command in self.some(0, 2):
            yield "do", 2, command
        if self.may_swap() and self.random.random() < WATCHED_SWAP_CHANCE:
            yield "do", 2, self.without_streams()
            yield "do", 2, self.of(SWAPS)
        yield "do", 1, (b"MULTI",)
        for command in self.some(0, 3):
            yield "do", 1, command
        for command in self.some(0, 1):
            yield "do", 2, command
        yield "do", 1, self.random.choice([(b"EXEC",)] * 5 + [(b"DISCARD",)])

    def listening(self):
        pick = self.random
        channels, patterns = pick.choices(CHANNELS, k=2), pick.choices(PATTERNS, k=pick.randint(1, 2))
        yield "send", 1, (b"SUBSCRIBE", *channels)
        yield "heard", 1, ()
        yield "send", 1, (b"PSUBSCRIBE", *patterns)
        yield "heard", 1, ()
        for at in range(pick.randint(1, 4)):
            yield "do", 2, (b"PUBLISH", pick.choice(CHANNELS), b"message %d" % at)
            yield "heard", 1, ()
        yield "do", 2, (b"PUBSUB", b"NUMSUB", *channels)
        yield "do", 2, (b"PUBSUB", b"NUMPAT")
        yield "do", 2, (b"PUBSUB", b"CHANNELS", *pick.choice([(), (b"c*",)]))
        yield "send", 1, (b"GET", b"s1")
        yield "heard", 1, ()
        yield "send", 1, (b"UNSUBSCRIBE", *channels, b"none")
        yield "heard", 1, ()
        yield "send", 1, (b"PUNSUBSCRIBE", *patterns)
        yield "heard", 1, ()

    def scripts(self, count):
        """Returns `count` items of which many are scripts, on keys that other commands set."""
        def item():
            if self.has_functions and self.random.random() < FUNCTIONS_CHANCE:
                return list(self.functions())
            while self.random.random() >= SCRIPT_CHANCE:
                if (command := latin(self.commands.one()))[0].upper() not in UNCERTAIN:
                    return [command]
            return [self.script()]

        return [item() for _ in range(count)], count

    def one(self, count):
        """Returns items with about `count` commands."""
        items, done = [], 0
        while done < count:
            for _ in range(BATCH_COMMANDS):
                items.append(self.item())
                done += len(items[-1])
            items.append(self.scene())
            done += len(items[-1])
        return items, done


# Reports of differences


def commands_of(item):
    return item if isinstance(item, list) else [command for _, _, command in item if command]


def keys_of(item):
    """Returns the words that may be keys, except those within scripts. The positions of keys are unknown, so that all words are candidates."""
    keyed = (command for command in commands_of(item) if command[0].upper() not in KEYLESS)
    return {word for command in keyed for word in command[1:] if is_key(word)}


def is_key(word):
    return re.fullmatch(rb"[shlezxy][123]|none", word) is not None


def related(items):
    """Returns the items that share keys with the last item, directly or through other items."""
    keys, found = keys_of(items[-1]), [items[-1]]
    for item in reversed(items[:-1]):
        own = keys_of(item)
        if own & keys or not own:
            keys |= own
            found.append(item)
    return found[::-1]


def shortened(items, fails, seconds=SHORTEN_SECONDS):
    """Removes items in halves, quarters and so on, if the rest still fails, for at most `seconds`."""
    end = time.monotonic() + seconds
    if len(near := related(items)) < len(items) and fails(near):
        items = near
    size = max(1, len(items) // 2)
    while time.monotonic() < end:
        at, before = 0, len(items)
        while at < len(items) and time.monotonic() < end:
            rest = items[:at] + items[at + size :]
            if rest and fails(rest):
                items = rest
            else:
                at += size
        if size == 1 and len(items) == before:
            break
        size = max(1, size // 2)
    return items


def quoted(word):
    text = word.decode("latin-1")
    if re.fullmatch(r"[!#-&(-~]+", text):
        return text
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'


def line(number, command, kind="do"):
    return f"[{number}] {'' if kind == 'do' else kind + ' '}{' '.join(map(quoted, command))}".rstrip()


def lines(item):
    if isinstance(item, list):
        return [line(0, command) for command in item]
    return [line(number, command, kind) for kind, number, command in item]


def carried_out(addresses, protocol, judge, items, mode):
    """Runs a history, and returns the items up to the first difference and the difference, or `None`."""
    run = Run(addresses, protocol, judge, mode)
    try:
        if found := run.items(items):
            return items[: found[0] + 1], found[1]
        if found := run.keys() or run.libraries():
            return items, found
        return None
    finally:
        run.close()


def tell(addresses, protocol, is_strict, mode, items, difference):
    latest = difference

    def fails(some):
        nonlocal latest
        try:
            # Differences that are permitted while shortening are not counted.
            found = carried_out(addresses, protocol, Judge(is_strict), some, mode)
        except OSError:
            # A server that has ended cannot repeat the failure.
            return False
        latest = found[1] if found else latest
        return found is not None

    items = shortened(items, fails)
    count = sum(len(lines(item)) for item in items)
    print(f"DIFFERENCE in RESP{protocol}, after {count} commands ([connection] command):")
    for item in items:
        print("\n".join(f"    {each}" for each in lines(item)))
    print(f"at: {latest.what}")
    for address, reply in zip(addresses, latest.replies):
        print(f"    {address}: {shown(reply)}")


def compare(addresses, seed, commands, is_strict=False, without=()):
    """Returns `True` if there was no difference. Prints a difference."""
    begin = time.monotonic()
    histories, judge, done, protocol = Histories(seed, without), Judge(is_strict), 0, 2
    mode = seed
    scripts = 0 if "EVAL" in histories.commands.without else int(commands * SCRIPTS_PART)
    while done < commands + scripts:
        if done < commands:
            items, count = histories.one(min(HISTORY_COMMANDS, commands - done))
        else:
            items, count = histories.scripts(min(HISTORY_COMMANDS, commands + scripts - done))
        try:
            found = carried_out(addresses, protocol, judge, items, mode)
        except OSError as error:
            print(f"seed {seed}: a server has disconnected after {done} commands of other histories: {error}")
            return False
        if found:
            print(f"seed {seed}: a difference after {done} commands of other histories")
            tell(addresses, protocol, is_strict, mode, *found)
            return False
        done, protocol, mode = done + count, 5 - protocol, mode + 1
    allowed = "".join(f", {name} {count} times" for name, count in judge.allowed.items())
    print(f"no difference: {done} commands, seed {seed}, {time.monotonic() - begin:.1f} s{allowed}")
    return True


def main():
    arguments = argparse.ArgumentParser(description="Compares two servers of the Redis protocol. Both servers are emptied.")
    arguments.add_argument("addresses", nargs=2, metavar="HOST:PORT")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--commands", type=int, default=100_000)
    arguments.add_argument("--strict", action="store_true", help="permit no known deviation")
    arguments.add_argument("--without", nargs="+", default=[], metavar="COMMAND", help="do not send these commands")
    given = arguments.parse_args()
    sys.exit(not compare(given.addresses, given.seed, given.commands, given.strict, given.without))


if __name__ == "__main__":
    main()
