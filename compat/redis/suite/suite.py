"""Scenarios for all Redis clients, which run through drivers: see drivers.py.

A call in capitals is a command of Redis with its `args`, through the library's method for it, if any. The `value` of
its answer is the library's conversion of the reply. Text is bytes: each character is one byte. Calls in small letters
are features that each library implements in its own way:

    pipeline(commands)                   sends all commands together; a reply that is an error is {"error": message}
    transaction(commands)                MULTI, the commands, EXEC
    watched(keys, rival, commands)       WATCH, then the rival's command on another connection, then a transaction; its
                                         value is null if it was not executed
    scan(match, count)                   all keys, through the library's iteration
    connect(protocol, db, name)          opens a connection with these options for further calls
    subscribe(channels, patterns)        returns after the confirmation
    messages(count)                      waits for `count` messages: channel, payload, and the pattern or null
    reset()                              returns to the first connection
"""

import contextlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import drivers
from checks import fail, same, until
from drivers import Refused

PIPELINED = 1000
SCANNED = 1000
LARGE_BYTES = 1024 * 1024
# All byte values, and the bytes that end lines and strings.
BINARY = bytes(range(256)).decode("latin-1") + "\0\r\n$5\r\n"
# Timeout that does not elapse before the end of a scenario, even on a busy machine.
LONG_SECONDS = 600


class Session(drivers.Session):
    def __init__(self, drivers, driver, scenario):
        super().__init__(drivers, driver, scenario)
        self.keys = []
        self.stack.callback(self.clean)

    def other(self):
        other = super().other()
        other.keys = self.keys
        self.stack.callback(other.reset)
        return other

    def reset(self):
        if self.driver.process.poll() is None:
            self.call("reset")

    def clean(self):
        self.reset()
        if self.keys and self.driver.process.poll() is None:
            self.call("DEL", args=self.keys)

    def key(self, what="key"):
        """Returns a new key, which is deleted when the scenario ends."""
        self.keys.append(self.name(what))
        return self.keys[-1]

    def do(self, name, /, *args):
        return self.call(name, args=[text(arg) for arg in args])["value"]

    def ok(self, name, /, *args):
        """Checks that a command returns OK. A few libraries convert this status to `True`."""
        if self.do(name, *args) not in ("OK", True):
            fail(f"{name} did not answer OK")

    def refused(self, words, name, /, *args):
        try:
            answer = self.do(name, *args)
        except Refused as error:
            if words not in error.message:
                fail(f"{name} is refused with '{error.message}', not '{words}'")
            return
        fail(f"{name} answers {answer!r}, but should be refused: {words}")

    def pipeline(self, *commands):
        return self.call("pipeline", commands=texts(commands))["value"]

    def transaction(self, *commands):
        return self.call("transaction", commands=texts(commands))["value"]

    def watched(self, keys, rival, *commands):
        return self.call("watched", keys=keys, rival=rival and texts([rival])[0], commands=texts(commands))["value"]

    def connect(self, protocol=2, db=0, name=""):
        self.call("connect", protocol=protocol, db=db, name=name)

    def subscribe(self, channels=(), patterns=()):
        self.call("subscribe", channels=list(channels), patterns=list(patterns))

    def messages(self, count):
        return [tuple(each) for each in self.call("messages", count=count)["value"]]

    def id(self):
        return self.do("CLIENT", "ID")

    def blocked(self, id):
        """Waits until the connection is blocked."""
        flags = lambda: [fields(line)["flags"] for line in self.do("CLIENT", "LIST", "ID", id).splitlines()]
        until("the client is blocked", lambda: any("b" in each for each in flags()))


def text(arg):
    return arg if isinstance(arg, str) else str(arg)


def texts(commands):
    return [[text(arg) for arg in command] for command in commands]


def fields(line):
    return dict(field.split("=", 1) for field in line.split() if "=" in field)


def pairs(flat):
    return [tuple(flat[at : at + 2]) for at in range(0, len(flat), 2)]


def mapping(answer):
    """Returns a reply as a dict: from a map of RESP3 or the library, a list of pairs, or an alternating list."""
    is_paired = isinstance(answer, dict) or all(isinstance(each, list) for each in answer)
    return dict(answer if is_paired else pairs(answer))


def scores(answer):
    """Returns members with their scores, from an alternating list or a list of pairs."""
    is_flat = all(isinstance(each, str | int | float) for each in answer)
    return [(member, float(score)) for member, score in (pairs(answer) if is_flat else answer)]


def entries(answer):
    """Returns the entries of a stream, in order. The fields of a deleted entry are null."""
    return [(id, None if values is None else mapping(values)) for id, values in answer]


def streams(answer):
    """Returns the entries from a read of streams, by key."""
    found = answer.items() if isinstance(answer, dict) else answer
    return {key: entries(one) for key, one in found}


def error_of(answer):
    if not isinstance(answer, dict) or "error" not in answer:
        fail(f"{answer!r} is not an error")
    return answer["error"]


SCENARIOS = {}


def scenario(run):
    SCENARIOS[run.__name__] = run
    return run


# Connections


@scenario
def ping_echo(c):
    if c.do("PING") not in ("PONG", True):
        fail("no PONG")
    same(c.do("ECHO", "hello world"), "hello world", "the echo")


@scenario
def pipelining(c):
    key, list_ = c.key(), c.key("list")
    commands = [["INCR", key] if at % 2 else ["RPUSH", list_, at] for at in range(PIPELINED)]
    answers = c.pipeline(*commands)
    same(answers, [at // 2 + 1 for at in range(PIPELINED)], "the answers, in order")
    answers = c.pipeline(["SET", key, "x"], ["INCR", key], ["GET", key])
    same(answers[0] in ("OK", True), True, "the first of three")
    same("not an integer" in error_of(answers[1]), True, "the second is refused alone")
    same(answers[2], "x", "the third")


@scenario
def binary(c):
    key = c.key(BINARY)
    field = BINARY[::-1]
    c.ok("SET", key + BINARY, BINARY)
    c.keys.append(key + BINARY)
    same(c.do("GET", key + BINARY), BINARY, "the value")
    same(c.do("STRLEN", key + BINARY), len(BINARY), "its length")
    hash_ = c.key("hash")
    same(c.do("HSET", hash_, field, BINARY), 1, "new fields")
    same(c.do("HKEYS", hash_), [field], "the name of the field")
    same(c.do("HGET", hash_, field), BINARY, "the field")


@scenario
def large_value(c):
    key = c.key()
    value = (BINARY * (LARGE_BYTES // len(BINARY) + 1))[:LARGE_BYTES]
    c.ok("SET", key, value)
    same(c.do("STRLEN", key), LARGE_BYTES, "its length")
    same(c.do("GET", key), value, "the value")
    same(c.do("GETRANGE", key, -10, -1), value[-10:], "its end")


@scenario
def databases(c):
    key = c.key()
    c.ok("SET", key, "zero")
    other = c.other()
    other.connect(db=7)
    same(other.do("GET", key), None, "the key of another database")
    other.ok("SET", key, "seven")
    same(c.do("GET", key), "zero", "the key of the first one")
    same(other.do("DEL", key), 1, "the keys removed from the other database")
    same(c.do("GET", key), "zero", "the key of the first one, still")
    c.refused("out of range", "COPY", key, key, "DB", 99)


@scenario
def connection_name(c):
    name = c.name("client")
    other = c.other()
    other.connect(name=name)
    same(other.do("CLIENT", "GETNAME"), name, "the name")
    listed = [fields(line) for line in c.do("CLIENT", "LIST").splitlines()]
    same([each["id"] for each in listed if each["name"] == name], [str(other.id())], "the connections with the name")


@scenario
def reconnect(c):
    key = c.key()
    c.ok("SET", key, "still there")
    other = c.other()
    other.call("reconnects")
    other.connect()
    id = other.id()
    same(c.do("CLIENT", "KILL", "ID", id), 1, "killed")

    def again():
        with contextlib.suppress(Refused):
            return other.do("GET", key)

    same(until("the client is connected again", again), "still there", "the value")
    same(other.id() != id, True, "presence of another connection")


@scenario
def resp3(c):
    hash_, set_, sorted_ = c.key("hash"), c.key("set"), c.key("sorted")
    c.connect(protocol=3)
    hello = c.do("CLIENT", "LIST", "ID", c.id())
    same(fields(hello)["resp"], "3", "the protocol")
    c.do("HSET", hash_, "a", "1", "b", "2")
    same(mapping(c.do("HGETALL", hash_)), {"a": "1", "b": "2"}, "a map")
    c.do("SADD", set_, "x", "y")
    same(sorted(c.do("SMEMBERS", set_)), ["x", "y"], "a set")
    c.do("ZADD", sorted_, "1.5", "m")
    same(float(c.do("ZSCORE", sorted_, "m")), 1.5, "a double")
    same(scores(c.do("ZRANGE", sorted_, 0, -1, "WITHSCORES")), [("m", 1.5)], "pairs")
    same(c.do("GET", c.key("none")), None, "a null")
    c.refused("WRONGTYPE", "GET", hash_)


# Strings


@scenario
def basics(c):
    key, other = c.key(), c.key()
    c.ok("SET", key, "one")
    same(c.do("GET", key), "one", "the value")
    same(c.do("GET", other), None, "no value")
    same(c.do("SET", key, "two", "NX"), None, "SET NX of an existing key")
    same(c.do("SET", other, "two", "XX"), None, "SET XX of a missing key")
    same(c.do("SET", key, "two", "GET"), "one", "the old value")
    same(c.do("APPEND", key, "!"), 4, "the length")
    same(c.do("GETDEL", key), "two!", "the removed value")
    same(c.do("EXISTS", key), 0, "the number of existing keys")
    c.ok("MSET", key, "1", other, "")
    same(c.do("MGET", key, c.name("none"), other), ["1", None, ""], "three values")
    same(c.do("SETRANGE", key, 3, "x"), 4, "the length")
    same(c.do("GET", key), "1\0\0x", "the value with zero bytes between")
    same(c.do("TYPE", key), "string", "the type")
    c.ok("RENAME", key, other)
    same(c.do("EXISTS", key, other), 1, "the number of existing keys")
    same(c.do("DEL", key, other), 1, "the number of deleted keys")


@scenario
def counters(c):
    key = c.key()
    same(c.do("INCR", key), 1, "one")
    same(c.do("INCRBY", key, 41), 42, "more")
    same(c.do("DECR", key), 41, "one less")
    same(c.do("DECRBY", key, 50), -9, "less")
    same(float(c.do("INCRBYFLOAT", key, "0.5")), -8.5, "a half more")
    c.ok("SET", key, 2**63 - 1)
    c.refused("overflow", "INCR", key)
    same(c.do("GET", key), str(2**63 - 1), "the unchanged value")


@scenario
def bits(c):
    one, two, out = c.key(), c.key(), c.key()
    same(c.do("SETBIT", one, 7, 1), 0, "the old bit")
    same(c.do("GETBIT", one, 7), 1, "the new bit")
    c.ok("SET", two, "\xff\x0f")
    same(c.do("BITCOUNT", two), 12, "the number of bits")
    same(c.do("BITPOS", two, 0), 8, "the first 0")
    same(c.do("BITOP", "XOR", out, one, two), 2, "the length")
    same(c.do("GET", out), "\xfe\x0f", "the XOR of both")
    same(c.do("BITFIELD", out, "SET", "u8", 0, 3, "INCRBY", "u4", 4, 1, "GET", "i8", 8), [254, 4, 15], "fields")


# Keys


@scenario
def expiry(c):
    key = c.key()
    c.ok("SET", key, "x")
    same(c.do("TTL", key), -1, "the missing time")
    same(c.do("EXPIRE", key, 100), 1, "a time is set")
    same(0 < c.do("TTL", key) <= 100, True, "the remaining seconds")
    same(0 < c.do("PTTL", key) <= 100_000, True, "the remaining milliseconds")
    same(c.do("PERSIST", key), 1, "the removal of the time")
    same(c.do("TTL", key), -1, "the removed time")
    same(c.do("TTL", c.name("none")), -2, "no key")
    c.ok("SET", key, "x", "PX", 20)
    until("the key expires", lambda: c.do("GET", key) is None)
    c.ok("SET", key, "x", "EX", LONG_SECONDS)
    c.ok("SET", key, "y", "KEEPTTL")
    same(c.do("TTL", key) > 0, True, "the kept time")
    same(c.do("GETEX", key, "PERSIST"), "y", "the value")
    same(c.do("PEXPIREAT", key, 1), 1, "a time in the past")
    same(c.do("EXISTS", key), 0, "the number of existing keys")


@scenario
def scan(c):
    prefix = c.name("scan")
    keys = [f"{prefix}:{at}" for at in range(SCANNED)]
    c.keys += keys
    c.ok("MSET", *(word for key in keys for word in (key, "x")))
    found = c.call("scan", match=f"{prefix}:*", count=100)["value"]
    same(sorted(set(found)), sorted(keys), "the keys")
    found = c.call("scan", match=f"{prefix}:99?", count=100)["value"]
    same(sorted(set(found)), [f"{prefix}:{at}" for at in range(990, 1000)], "the keys of a pattern")


@scenario
def sort_copy(c):
    list_, out, weight = c.key("list"), c.key("out"), c.name("weight")
    c.do("RPUSH", list_, "3", "1", "10", "2")
    same(c.do("SORT", list_), ["1", "2", "3", "10"], "the order of numbers")
    same(c.do("SORT", list_, "ALPHA", "DESC", "LIMIT", 0, 2), ["3", "2"], "the order of texts")
    for each, weighs in [("1", 4), ("2", 3), ("3", 2), ("10", 1)]:
        c.keys.append(f"{weight}:{each}")
        c.ok("SET", f"{weight}:{each}", weighs)
    found = c.do("SORT", list_, "BY", f"{weight}:*", "GET", f"{weight}:*", "GET", "#")
    same(found[:4], ["1", "10", "2", "3"], "the order by other keys")
    same(c.do("SORT", list_, "STORE", out), 4, "stored")
    same(c.do("LRANGE", out, 0, -1), ["1", "2", "3", "10"], "the stored value")
    same(c.do("COPY", out, list_), 0, "a copy over an existing key")
    same(c.do("COPY", out, list_, "REPLACE"), 1, "a copy")
    same(c.do("OBJECT", "ENCODING", list_) in ("listpack", "quicklist"), True, "a name of an encoding")


# Hashes, lists, sets and sorted sets


@scenario
def hashes(c):
    key = c.key()
    same(c.do("HSET", key, "a", "1", "b", "2"), 2, "new fields")
    same(c.do("HSET", key, "a", "3"), 0, "new fields")
    same(c.do("HGET", key, "a"), "3", "a field")
    same(c.do("HMGET", key, "a", "none", "b"), ["3", None, "2"], "three fields")
    same(mapping(c.do("HGETALL", key)), {"a": "3", "b": "2"}, "all fields")
    same(c.do("HINCRBY", key, "a", 4), 7, "more")
    same(float(c.do("HINCRBYFLOAT", key, "b", "0.25")), 2.25, "a part more")
    same(c.do("HSETNX", key, "a", "x"), 0, "HSETNX of an existing field")
    same(sorted(c.do("HKEYS", key)), ["a", "b"], "the names")
    same(sorted(c.do("HVALS", key)), ["2.25", "7"], "the values")
    same(c.do("HDEL", key, "a", "none"), 1, "removed")
    same(c.do("HEXISTS", key, "a"), 0, "the number of existing fields")
    same(c.do("HLEN", key), 1, "the number of fields")


@scenario
def lists(c):
    key, other = c.key(), c.key()
    same(c.do("RPUSH", key, "b", "c"), 2, "the length")
    same(c.do("LPUSH", key, "a"), 3, "the length")
    same(c.do("LRANGE", key, 0, -1), ["a", "b", "c"], "all elements")
    same(c.do("LINSERT", key, "BEFORE", "c", "x"), 4, "the length")
    same(c.do("LINDEX", key, -2), "x", "the last but one")
    c.ok("LSET", key, 0, "A")
    same(c.do("LPOS", key, "c"), 3, "the position")
    same(c.do("LREM", key, 0, "x"), 1, "removed")
    same(c.do("LMOVE", key, other, "LEFT", "RIGHT"), "A", "moved")
    same(c.do("LPOP", key, 5), ["b", "c"], "the remaining elements")
    same(c.do("LPOP", key), None, "nothing")
    same(c.do("RPOP", other), "A", "the moved one")
    same(c.do("EXISTS", key, other), 0, "the number of existing lists")
    c.do("RPUSH", key, "1", "2", "3", "4")
    c.ok("LTRIM", key, 1, -2)
    same(c.do("LRANGE", key, 0, -1), ["2", "3"], "the remaining elements")


@scenario
def blocking_pop(c):
    empty, key = c.key(), c.key()
    other = c.other()
    id = other.id()
    with c.meanwhile(lambda _: other.do("BLPOP", empty, key, LONG_SECONDS)) as popped:
        c.blocked(id)
        same(c.do("RPUSH", key, "x", "y"), 2, "the length")
        same(list(popped.result(drivers.CALL_SECONDS)), [key, "x"], "the popped element")
    same(c.do("LRANGE", key, 0, -1), ["y"], "the remaining element")
    same(list(other.do("BRPOP", key, 0)), [key, "y"], "the popped element")


@scenario
def blocking_pop_times_out(c):
    same(c.do("BLPOP", c.key(), "0.1"), None, "no element")
    same(c.do("BLMOVE", c.key(), c.key(), "LEFT", "LEFT", "0.1"), None, "nothing to move")
    same(c.do("PING") in ("PONG", True), True, "the use of the connection after it")


@scenario
def sets(c):
    one, two, out = c.key(), c.key(), c.key()
    same(c.do("SADD", one, "a", "b", "c", "a"), 3, "new members")
    same(c.do("SADD", two, "b", "c", "d"), 3, "new members")
    same(sorted(c.do("SMEMBERS", one)), ["a", "b", "c"], "all members")
    same(c.do("SISMEMBER", one, "a"), 1, "membership")
    same([int(each) for each in c.do("SMISMEMBER", one, "a", "x")], [1, 0], "the membership of two")
    same(sorted(c.do("SINTER", one, two)), ["b", "c"], "the intersection")
    same(sorted(c.do("SUNION", one, two)), ["a", "b", "c", "d"], "the union")
    same(sorted(c.do("SDIFF", one, two)), ["a"], "the difference")
    same(c.do("SINTERSTORE", out, one, two), 2, "stored")
    same(c.do("SINTERCARD", 2, one, two, "LIMIT", 1), 1, "counted to a limit")
    same(c.do("SMOVE", one, two, "a"), 1, "moved")
    same(c.do("SREM", one, "b", "x"), 1, "removed")
    same(c.do("SCARD", one), 1, "the number of members")
    same(c.do("SPOP", one), "c", "the last one")
    same(c.do("EXISTS", one), 0, "the number of existing sets")


@scenario
def sorted_sets(c):
    key, other, out = c.key(), c.key(), c.key()
    same(c.do("ZADD", key, 1, "a", 2, "b", "3.5", "c"), 3, "new members")
    same(c.do("ZADD", key, "XX", "CH", "GT", 5, "a", 1, "b"), 1, "changed")
    same(scores(c.do("ZRANGE", key, 0, -1, "WITHSCORES")), [("b", 2), ("c", 3.5), ("a", 5)], "the members in order")
    same(c.do("ZRANGE", key, "+inf", "(2", "BYSCORE", "REV", "LIMIT", 0, 1), ["a"], "the members by score, from the end")
    same(c.do("ZRANGEBYSCORE", key, "-inf", "(5"), ["b", "c"], "the members below a score")
    same(c.do("ZRANK", key, "c"), 1, "its rank")
    same(c.do("ZRANK", key, "none"), None, "the rank of a missing member")
    same(float(c.do("ZINCRBY", key, "0.5", "c")), 4, "more")
    same(float(c.do("ZSCORE", key, "c")), 4, "its score")
    same(c.do("ZCOUNT", key, 2, 4), 2, "counted")
    c.do("ZADD", other, 10, "a", 10, "z")
    same(c.do("ZINTERSTORE", out, 2, key, other, "WEIGHTS", 2, 1), 1, "stored")
    same(scores(c.do("ZRANGE", out, 0, -1, "WITHSCORES")), [("a", 20)], "the stored value")
    same(c.do("ZUNIONSTORE", out, 2, key, other, "AGGREGATE", "MAX"), 4, "stored")
    same(scores(c.do("ZPOPMAX", out, 1)), [("z", 10)], "the highest")
    same(c.do("ZREM", key, "a", "x"), 1, "removed")
    same(c.do("ZCARD", key), 2, "the number of members")
    lex = c.key("lex")
    c.do("ZADD", lex, 0, "a", 0, "b", 0, "c")
    same(c.do("ZRANGEBYLEX", lex, "[b", "+"), ["b", "c"], "the members by name")
    same(c.do("ZREMRANGEBYLEX", lex, "-", "(c"), 2, "the number of members removed by name")


@scenario
def blocking_sorted_pop(c):
    key = c.key()
    other = c.other()
    id = other.id()
    with c.meanwhile(lambda _: other.do("BZPOPMIN", key, LONG_SECONDS)) as popped:
        c.blocked(id)
        c.do("ZADD", key, 2, "late", 1, "early")
        found, member, score = popped.result(drivers.CALL_SECONDS)
        same((found, member, float(score)), (key, "early", 1), "the popped element")
    same(other.do("BZPOPMAX", c.key(), "0.1"), None, "nothing")


# Transactions


@scenario
def transaction(c):
    key, hash_ = c.key(), c.key("hash")
    answers = c.transaction(["SET", key, 1], ["INCR", key], ["HSET", hash_, "a", "1"], ["GET", key])
    same(answers[0] in ("OK", True), True, "the first answer")
    same(answers[1:], [2, 1, "2"], "the other answers")
    answers = c.transaction(["INCR", hash_], ["INCR", key])
    same("WRONGTYPE" in error_of(answers[0]), True, "an error inside of the transaction")
    same(answers[1], 3, "the reply after the error")


@scenario
def transaction_refused(c):
    key = c.key()
    try:
        c.transaction(["SET", key, "x"], ["SET", key])
    except Refused as error:
        if not any(words in error.message for words in ("wrong number", "EXECABORT", "previous errors")):
            fail(f"refused with '{error.message}'")
    else:
        fail("EXEC succeeded although a command had no value")
    same(c.do("GET", key), None, "the value that was not set")
    same(c.do("PING") in ("PONG", True), True, "the use of the connection after it")


@scenario
def watch(c):
    key = c.key()
    c.ok("SET", key, "1")
    same(c.watched([key], None, ["INCR", key], ["GET", key]), [2, "2"], "the result without a change")
    same(c.watched([key], ["GET", key], ["INCR", key]), [3], "the result after a read")


@scenario
def watch_conflict(c):
    key, other = c.key(), c.key()
    c.ok("SET", key, "1")
    same(c.watched([key], ["SET", key, "rival"], ["SET", key, "mine"]), None, "the result after a change")
    same(c.do("GET", key), "rival", "the value")
    same(c.watched([other], ["SET", other, "rival"], ["SET", other, "mine"]), None, "the result after the creation of the key")
    same(c.watched([key, other], ["DEL", key], ["SET", other, "mine"]), None, "the result after the deletion of one key")
    same(c.do("GET", other), "rival", "the value of the other key")


# Channels


@scenario
def pubsub(c):
    channel, second = c.name("channel"), c.name("channel")
    same(c.do("PUBLISH", channel, "nobody"), 0, "the receivers without a subscriber")
    other = c.other()
    other.subscribe(channels=[channel, second])
    same(mapping(c.do("PUBSUB", "NUMSUB", channel)), {channel: 1}, "the numbers of subscribers")
    for payload in ["one", BINARY, ""]:
        same(c.do("PUBLISH", channel, payload), 1, "receivers")
    same(c.do("PUBLISH", second, "two"), 1, "receivers")
    expected = [(channel, "one", None), (channel, BINARY, None), (channel, "", None), (second, "two", None)]
    same(other.messages(4), expected, "the messages")
    # https://redis.io/docs/latest/develop/interact/pubsub/: Pub/Sub has no relation to the key space.
    same(c.do("EXISTS", channel, second), 0, "the number of keys named like channels")


@scenario
def pubsub_pattern(c):
    prefix = c.name("news")
    patterns = [f"{prefix}.*", f"{prefix}.[bc]?"]
    other = c.other()
    other.subscribe(patterns=patterns)
    same(c.do("PUBLISH", f"{prefix}.art", "x"), 1, "receivers")
    same(other.messages(1), [(f"{prefix}.art", "x", patterns[0])], "the message of one pattern")
    same(c.do("PUBLISH", f"{prefix}.cd", "y"), 2, "receivers")
    same(sorted(other.messages(2)), [(f"{prefix}.cd", "y", pattern) for pattern in patterns], "the messages of two patterns")
    same(c.do("PUBLISH", f"{prefix}x", "z"), 0, "receivers")


@scenario
def pubsub_both(c):
    channel = c.name("channel")
    other = c.other()
    other.subscribe(channels=[channel], patterns=[f"{channel}*"])
    same(c.do("PUBLISH", channel, "x"), 2, "receivers")
    found = sorted(other.messages(2), key=str)
    same(found, [(channel, "x", f"{channel}*"), (channel, "x", None)], "the messages of the pattern and the channel")


# Streams


@scenario
def stream_entries(c):
    key = c.key()
    same(c.do("XADD", key, "1-1", "a", "1", "b", BINARY), "1-1", "the id")
    same(c.do("XADD", key, "1-*", "a", "2"), "1-2", "the next id")
    same(c.do("XADD", key, "5-0", "a", "3"), "5-0", "a later id")
    c.refused("equal or smaller", "XADD", key, "5-0", "a", "4")
    same(c.do("XLEN", key), 3, "the number of entries")
    everything = [("1-1", {"a": "1", "b": BINARY}), ("1-2", {"a": "2"}), ("5-0", {"a": "3"})]
    same(entries(c.do("XRANGE", key, "-", "+")), everything, "all entries")
    same(entries(c.do("XRANGE", key, "(1-1", "+", "COUNT", 1)), everything[1:2], "one entry")
    same(entries(c.do("XREVRANGE", key, "+", "-", "COUNT", 1)), everything[2:], "the last one")
    same(streams(c.do("XREAD", "COUNT", 10, "STREAMS", key, "1-1")), {key: everything[1:]}, "the entries after the first")
    same(c.do("XDEL", key, "1-2", "9-9"), 1, "removed")
    same(c.do("XTRIM", key, "MAXLEN", 1), 1, "the number of trimmed entries")
    same(entries(c.do("XRANGE", key, "-", "+")), everything[2:], "the remaining entries")


@scenario
def stream_group(c):
    key = c.key()
    c.ok("XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    c.refused("BUSYGROUP", "XGROUP", "CREATE", key, "g", "$")
    c.refused("NOGROUP", "XREADGROUP", "GROUP", "none", "a", "STREAMS", key, ">")
    for at in range(1, 5):
        c.do("XADD", key, f"{at}-0", "n", at)
    read = lambda who, *options: streams(c.do("XREADGROUP", "GROUP", "g", who, "COUNT", *options))
    same(read("a", 2, "STREAMS", key, ">"), {key: [("1-0", {"n": "1"}), ("2-0", {"n": "2"})]}, "the entries of the first consumer")
    same(read("b", 9, "STREAMS", key, ">"), {key: [("3-0", {"n": "3"}), ("4-0", {"n": "4"})]}, "the entries of the second consumer")
    same(c.do("XACK", key, "g", "1-0", "9-9"), 1, "acknowledged")
    same(read("a", 9, "STREAMS", key, "0-0"), {key: [("2-0", {"n": "2"})]}, "the pending entries of the first consumer")
    summary = c.do("XPENDING", key, "g")
    count, low, high, consumers = summary if isinstance(summary, list) else summary.values()
    found = sorted(tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in consumers)
    same((count, low, high), (3, "2-0", "4-0"), "the pending entries")
    same([(name, int(each)) for name, each in found], [("a", 1), ("b", 2)], "the consumers with pending entries")
    same(entries(c.do("XCLAIM", key, "g", "a", 0, "3-0")), [("3-0", {"n": "3"})], "the claimed entries")
    cursor, claimed = c.do("XAUTOCLAIM", key, "g", "c", 0, "0-0", "COUNT", 2)[:2]
    same((cursor, entries(claimed)), ("4-0", [("2-0", {"n": "2"}), ("3-0", {"n": "3"})]), "the first two entries")
    same(c.do("XGROUP", "DESTROY", key, "g"), 1, "removed")


@scenario
def stream_block(c):
    key = c.key()
    c.ok("XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    other = c.other()
    id = other.id()
    block = ["BLOCK", LONG_SECONDS * 1000]
    with c.meanwhile(lambda _: other.do("XREADGROUP", "GROUP", "g", "a", *block, "STREAMS", key, ">")) as read:
        c.blocked(id)
        c.do("XADD", key, "7-0", "n", "7")
        same(streams(read.result(drivers.CALL_SECONDS)), {key: [("7-0", {"n": "7"})]}, "the entry of the blocked read")
    with c.meanwhile(lambda _: other.do("XREAD", *block, "STREAMS", key, "$")) as read:
        c.blocked(id)
        c.do("XADD", key, "8-0", "n", "8")
        same(streams(read.result(drivers.CALL_SECONDS)), {key: [("8-0", {"n": "8"})]}, "the entry of the blocked read")
    same(c.do("XREAD", "BLOCK", 50, "STREAMS", key, "$") or None, None, "the result of the timeout")


@scenario
def stream_is_key(c):
    """Checks that the commands on keys also work on streams."""
    key, other, copied = c.key("stream"), c.key("renamed"), c.key("copied")
    c.do("XADD", key, "1-1", "a", "1")
    c.ok("XGROUP", "CREATE", key, "g", "0")
    same(c.do("TYPE", key), "stream", "its type")
    same(c.do("EXISTS", key), 1, "the number of existing keys")
    same(set(c.call("scan", match=f"{key}*", count=100)["value"]), {key}, "the result of the scan")
    same(c.do("EXPIRE", key, LONG_SECONDS) in (1, True), True, "the setting of a time")
    same(0 < c.do("TTL", key) <= LONG_SECONDS, True, "the time")
    for command in (["GET", key], ["LPUSH", key, "x"], ["SADD", key, "x"], ["HSET", key, "f", "x"]):
        c.refused("WRONGTYPE", *command)
    c.ok("RENAME", key, other)
    same(c.do("COPY", other, copied) in (1, True), True, "a copy")
    same((c.do("EXISTS", key), c.do("XLEN", key)), (0, 0), "the existence and the length after the deletion")
    for each in (other, copied):
        same(entries(c.do("XRANGE", each, "-", "+")), [("1-1", {"a": "1"})], "its entries")
        c.refused("BUSYGROUP", "XGROUP", "CREATE", each, "g", "0")
    c.ok("SET", other, "x")
    c.refused("WRONGTYPE", "XADD", other, "2-1", "a", "1")
    same(c.do("DEL", other, copied), 2, "removed")
    same((c.do("EXISTS", copied), c.do("XLEN", copied)), (0, 0), "the existence and the length after the deletion")


@scenario
def stream_transaction(c):
    key = c.key()
    answers = c.transaction(["XADD", key, "1-1", "a", "1"], ["XADD", key, "1-2", "a", "2"], ["XLEN", key])
    same(answers, ["1-1", "1-2", 2], "the replies")
    answers = c.transaction(["DEL", key], ["EXISTS", key], ["XADD", key, "1-1", "a", "3"], ["XLEN", key])
    same(answers, [1, 0, "1-1", 1], "the replies for a new stream of this name")
    same(entries(c.do("XRANGE", key, "-", "+")), [("1-1", {"a": "3"})], "its entries")
    rival = ["XADD", key, "2-1", "a", "1"]
    same(c.watched([key], rival, ["XADD", key, "3-1", "a", "1"]), None, "the result after a new entry")
    same(c.watched([key], ["XLEN", key], ["XADD", key, "3-1", "a", "1"]), ["3-1"], "the result after a read")


# Errors


@scenario
def tools(c):
    """Checks the commands that tools send on startup, and invalid filters, users and numbers."""
    other = c.other()
    c.refused("syntax error", "CLIENT", "KILL", "SKIPME", "foo")
    c.refused("No such user", "CLIENT", "KILL", "USER", c.name("nobody"))
    same(other.do("ECHO", "here"), "here", "the echo of a connection that was not killed")
    c.refused("invalid username-password pair", "AUTH", c.name("nobody"), "x")
    same(c.do("ACL", "WHOAMI"), "default", "the user")
    line = next(fields(line) for line in c.do("CLIENT", "LIST").splitlines() if f"id={c.id()} " in line)
    missing = {"cmd", "qbuf", "argv-mem", "obl", "oll", "omem", "tot-mem", "user", "redir", "resp"} - set(line)
    same(missing, set(), "the missing fields of CLIENT LIST")
    # Programs that run at the same time count on the scripts that they have loaded.
    c.refused("only support SYNC|ASYNC option", "SCRIPT", "FLUSH", "x")
    c.ok("FUNCTION", "FLUSH")
    c.refused("Unknown option", "CONFIG", "SET", "no-such-parameter", 1)
    c.refused("cluster support disabled", "READONLY")
    sorted_ = c.key("sorted")
    c.do("ZADD", sorted_, 1, "a", 2, "b")
    same(c.do("SORT", sorted_, "BY", "nosort", "DESC"), ["b", "a"], "the reverse order without sorting")
    c.refused("not a valid float", "ZADD", sorted_, "1e400", "c")
    same(c.do("OBJECT", "IDLETIME", sorted_) < 60, True, "a short idle time")


@scenario
def errors(c):
    key = c.key()
    c.do("RPUSH", key, "x")
    c.refused("WRONGTYPE Operation against a key holding the wrong kind of value", "GET", key)
    c.refused("wrong number of arguments for 'get' command", "GET")
    c.refused("unknown command", "NOSUCHCOMMAND", "x")
    c.refused("syntax error", "SET", c.name("none"), "x", "NX", "XX")
    c.refused("value is not an integer or out of range", "EXPIRE", key, "soon")
    c.refused("no such key", "RENAME", c.name("none"), key)
    c.refused("index out of range", "LSET", key, 5, "x")
    same(c.do("LRANGE", key, 0, -1), ["x"], "the unchanged value")


if __name__ == "__main__":
    drivers.main(SCENARIOS, Session, lambda address: {"COMPAT_REDIS": address, "NODE_NO_WARNINGS": "1"})
