"""The scenarios of Redis, which every client goes through by its driver: see drivers.py.

A call in capitals is a command of Redis with its `args`, through the method that the library has for it, if any; the
`value` of its answer is what the library makes of it. Text is bytes: each character is one of them. Calls in small
letters are what libraries do in ways of their own:

    pipeline(commands)                   all at once; an answer that is an error is {"error": message}
    transaction(commands)                MULTI, these, EXEC
    watched(keys, rival, commands)       WATCH, then the rival's command on another connection, then a transaction; its
                                         value is null if it was not carried out
    scan(match, count)                   all keys, as the library goes through them
    connect(protocol, db, name)          a connection with these options, which further calls go through
    subscribe(channels, patterns)        returns when it is confirmed
    messages(count)                      waits for so many: channel, payload, and the pattern or null
    reset()                              back to the connection of the beginning
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
# Every byte that there is, and what ends lines and strings.
BINARY = bytes(range(256)).decode("latin-1") + "\0\r\n$5\r\n"
# Long enough for a busy machine to do what has to be done before it ends, where that matters.
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
        """A new one, which is removed when the scenario ends."""
        self.keys.append(self.name(what))
        return self.keys[-1]

    def do(self, name, /, *args):
        return self.call(name, args=[text(arg) for arg in args])["value"]

    def ok(self, name, /, *args):
        """A few libraries make a truth of the status."""
        if self.do(name, *args) not in ("OK", True):
            fail(f"{name} did not answer OK")

    def refused(self, words, name, /, *args):
        try:
            answer = self.do(name, *args)
        except Refused as error:
            if words not in error.message:
                fail(f"{name} is refused with '{error.message}', not '{words}'")
            return
        fail(f"{name} answers {answer!r}, though it should be refused: {words}")

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
        """Waits until this connection waits."""
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
    """A map in RESP3 and to most libraries; else a list of pairs, or one in which keys and values alternate."""
    is_paired = isinstance(answer, dict) or all(isinstance(each, list) for each in answer)
    return dict(answer if is_paired else pairs(answer))


def scores(answer):
    """Members with their scores, which are beside each other or in pairs."""
    is_flat = all(isinstance(each, str | int | float) for each in answer)
    return [(member, float(score)) for member, score in (pairs(answer) if is_flat else answer)]


def entries(answer):
    """Entries of a stream, in order; of one that was deleted the fields are null."""
    return [(id, None if values is None else mapping(values)) for id, values in answer]


def streams(answer):
    """What a read of streams gets, by key."""
    found = answer.items() if isinstance(answer, dict) else answer
    return {key: entries(one) for key, one in found}


def error_of(answer):
    if not isinstance(answer, dict) or "error" not in answer:
        fail(f"{answer!r} is no error")
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
    same(other.do("DEL", key), 1, "what was removed of the other")
    same(c.do("GET", key), "zero", "the key of the first one, still")
    c.refused("out of range", "COPY", key, key, "DB", 99)


@scenario
def connection_name(c):
    name = c.name("client")
    other = c.other()
    other.connect(name=name)
    same(other.do("CLIENT", "GETNAME"), name, "the name")
    listed = [fields(line) for line in c.do("CLIENT", "LIST").splitlines()]
    same([each["id"] for each in listed if each["name"] == name], [str(other.id())], "those of the name")


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

    same(until("it is connected again", again), "still there", "the value")
    same(other.id() != id, True, "it is another connection")


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
    same(c.do("SET", key, "two", "NX"), None, "only a new one")
    same(c.do("SET", other, "two", "XX"), None, "only an old one")
    same(c.do("SET", key, "two", "GET"), "one", "what it was")
    same(c.do("APPEND", key, "!"), 4, "the length")
    same(c.do("GETDEL", key), "two!", "what is removed")
    same(c.do("EXISTS", key), 0, "whether it is there")
    c.ok("MSET", key, "1", other, "")
    same(c.do("MGET", key, c.name("none"), other), ["1", None, ""], "three of them")
    same(c.do("SETRANGE", key, 3, "x"), 4, "the length")
    same(c.do("GET", key), "1\0\0x", "what is between")
    same(c.do("TYPE", key), "string", "the type")
    c.ok("RENAME", key, other)
    same(c.do("EXISTS", key, other), 1, "how many are there")
    same(c.do("DEL", key, other), 1, "how many are removed")


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
    same(c.do("GET", key), str(2**63 - 1), "what did not change")


@scenario
def bits(c):
    one, two, out = c.key(), c.key(), c.key()
    same(c.do("SETBIT", one, 7, 1), 0, "what it was")
    same(c.do("GETBIT", one, 7), 1, "what it is")
    c.ok("SET", two, "\xff\x0f")
    same(c.do("BITCOUNT", two), 12, "how many")
    same(c.do("BITPOS", two, 0), 8, "the first 0")
    same(c.do("BITOP", "XOR", out, one, two), 2, "the length")
    same(c.do("GET", out), "\xfe\x0f", "both")
    same(c.do("BITFIELD", out, "SET", "u8", 0, 3, "INCRBY", "u4", 4, 1, "GET", "i8", 8), [254, 4, 15], "fields")


# Keys


@scenario
def expiry(c):
    key = c.key()
    c.ok("SET", key, "x")
    same(c.do("TTL", key), -1, "no time")
    same(c.do("EXPIRE", key, 100), 1, "a time is set")
    same(0 < c.do("TTL", key) <= 100, True, "seconds that are left")
    same(0 < c.do("PTTL", key) <= 100_000, True, "milliseconds that are left")
    same(c.do("PERSIST", key), 1, "the time is taken away")
    same(c.do("TTL", key), -1, "no time again")
    same(c.do("TTL", c.name("none")), -2, "no key")
    c.ok("SET", key, "x", "PX", 20)
    until("it expires", lambda: c.do("GET", key) is None)
    c.ok("SET", key, "x", "EX", LONG_SECONDS)
    c.ok("SET", key, "y", "KEEPTTL")
    same(c.do("TTL", key) > 0, True, "a time that is kept")
    same(c.do("GETEX", key, "PERSIST"), "y", "the value")
    same(c.do("PEXPIREAT", key, 1), 1, "a time that is over")
    same(c.do("EXISTS", key), 0, "whether it is there")


@scenario
def scan(c):
    prefix = c.name("scan")
    keys = [f"{prefix}:{at}" for at in range(SCANNED)]
    c.keys += keys
    c.ok("MSET", *(word for key in keys for word in (key, "x")))
    found = c.call("scan", match=f"{prefix}:*", count=100)["value"]
    same(sorted(set(found)), sorted(keys), "the keys")
    found = c.call("scan", match=f"{prefix}:99?", count=100)["value"]
    same(sorted(set(found)), [f"{prefix}:{at}" for at in range(990, 1000)], "those of a pattern")


@scenario
def sort_copy(c):
    list_, out, weight = c.key("list"), c.key("out"), c.name("weight")
    c.do("RPUSH", list_, "3", "1", "10", "2")
    same(c.do("SORT", list_), ["1", "2", "3", "10"], "as numbers")
    same(c.do("SORT", list_, "ALPHA", "DESC", "LIMIT", 0, 2), ["3", "2"], "as text")
    for each, weighs in [("1", 4), ("2", 3), ("3", 2), ("10", 1)]:
        c.keys.append(f"{weight}:{each}")
        c.ok("SET", f"{weight}:{each}", weighs)
    found = c.do("SORT", list_, "BY", f"{weight}:*", "GET", f"{weight}:*", "GET", "#")
    same(found[:4], ["1", "10", "2", "3"], "by others")
    same(c.do("SORT", list_, "STORE", out), 4, "stored")
    same(c.do("LRANGE", out, 0, -1), ["1", "2", "3", "10"], "what is stored")
    same(c.do("COPY", out, list_), 0, "no copy over another")
    same(c.do("COPY", out, list_, "REPLACE"), 1, "a copy")
    same(c.do("OBJECT", "ENCODING", list_) in ("listpack", "quicklist"), True, "a name of an encoding")


# Values of parts


@scenario
def hashes(c):
    key = c.key()
    same(c.do("HSET", key, "a", "1", "b", "2"), 2, "new fields")
    same(c.do("HSET", key, "a", "3"), 0, "new fields")
    same(c.do("HGET", key, "a"), "3", "a field")
    same(c.do("HMGET", key, "a", "none", "b"), ["3", None, "2"], "three of them")
    same(mapping(c.do("HGETALL", key)), {"a": "3", "b": "2"}, "all of them")
    same(c.do("HINCRBY", key, "a", 4), 7, "more")
    same(float(c.do("HINCRBYFLOAT", key, "b", "0.25")), 2.25, "a part more")
    same(c.do("HSETNX", key, "a", "x"), 0, "not over another")
    same(sorted(c.do("HKEYS", key)), ["a", "b"], "the names")
    same(sorted(c.do("HVALS", key)), ["2.25", "7"], "the values")
    same(c.do("HDEL", key, "a", "none"), 1, "removed")
    same(c.do("HEXISTS", key, "a"), 0, "whether it is there")
    same(c.do("HLEN", key), 1, "how many")


@scenario
def lists(c):
    key, other = c.key(), c.key()
    same(c.do("RPUSH", key, "b", "c"), 2, "the length")
    same(c.do("LPUSH", key, "a"), 3, "the length")
    same(c.do("LRANGE", key, 0, -1), ["a", "b", "c"], "all of it")
    same(c.do("LINSERT", key, "BEFORE", "c", "x"), 4, "the length")
    same(c.do("LINDEX", key, -2), "x", "the last but one")
    c.ok("LSET", key, 0, "A")
    same(c.do("LPOS", key, "c"), 3, "where it is")
    same(c.do("LREM", key, 0, "x"), 1, "removed")
    same(c.do("LMOVE", key, other, "LEFT", "RIGHT"), "A", "moved")
    same(c.do("LPOP", key, 5), ["b", "c"], "what there is")
    same(c.do("LPOP", key), None, "nothing")
    same(c.do("RPOP", other), "A", "the moved one")
    same(c.do("EXISTS", key, other), 0, "empty ones")
    c.do("RPUSH", key, "1", "2", "3", "4")
    c.ok("LTRIM", key, 1, -2)
    same(c.do("LRANGE", key, 0, -1), ["2", "3"], "what is left")


@scenario
def blocking_pop(c):
    empty, key = c.key(), c.key()
    other = c.other()
    id = other.id()
    with c.meanwhile(lambda _: other.do("BLPOP", empty, key, LONG_SECONDS)) as popped:
        c.blocked(id)
        same(c.do("RPUSH", key, "x", "y"), 2, "the length")
        same(list(popped.result(drivers.CALL_SECONDS)), [key, "x"], "what is popped")
    same(c.do("LRANGE", key, 0, -1), ["y"], "what is left")
    same(list(other.do("BRPOP", key, 0)), [key, "y"], "what was there")


@scenario
def blocking_pop_times_out(c):
    same(c.do("BLPOP", c.key(), "0.1"), None, "no element")
    same(c.do("BLMOVE", c.key(), c.key(), "LEFT", "LEFT", "0.1"), None, "nothing to move")
    same(c.do("PING") in ("PONG", True), True, "it goes on")


@scenario
def sets(c):
    one, two, out = c.key(), c.key(), c.key()
    same(c.do("SADD", one, "a", "b", "c", "a"), 3, "new members")
    same(c.do("SADD", two, "b", "c", "d"), 3, "new members")
    same(sorted(c.do("SMEMBERS", one)), ["a", "b", "c"], "all members")
    same(c.do("SISMEMBER", one, "a"), 1, "whether it is one")
    same([int(each) for each in c.do("SMISMEMBER", one, "a", "x")], [1, 0], "which are")
    same(sorted(c.do("SINTER", one, two)), ["b", "c"], "of both")
    same(sorted(c.do("SUNION", one, two)), ["a", "b", "c", "d"], "of any")
    same(sorted(c.do("SDIFF", one, two)), ["a"], "of one alone")
    same(c.do("SINTERSTORE", out, one, two), 2, "stored")
    same(c.do("SINTERCARD", 2, one, two, "LIMIT", 1), 1, "counted to a limit")
    same(c.do("SMOVE", one, two, "a"), 1, "moved")
    same(c.do("SREM", one, "b", "x"), 1, "removed")
    same(c.do("SCARD", one), 1, "how many")
    same(c.do("SPOP", one), "c", "the last one")
    same(c.do("EXISTS", one), 0, "an empty one")


@scenario
def sorted_sets(c):
    key, other, out = c.key(), c.key(), c.key()
    same(c.do("ZADD", key, 1, "a", 2, "b", "3.5", "c"), 3, "new members")
    same(c.do("ZADD", key, "XX", "CH", "GT", 5, "a", 1, "b"), 1, "changed")
    same(scores(c.do("ZRANGE", key, 0, -1, "WITHSCORES")), [("b", 2), ("c", 3.5), ("a", 5)], "in order")
    same(c.do("ZRANGE", key, "+inf", "(2", "BYSCORE", "REV", "LIMIT", 0, 1), ["a"], "by score, from the end")
    same(c.do("ZRANGEBYSCORE", key, "-inf", "(5"), ["b", "c"], "below a score")
    same(c.do("ZRANK", key, "c"), 1, "its place")
    same(c.do("ZRANK", key, "none"), None, "no place")
    same(float(c.do("ZINCRBY", key, "0.5", "c")), 4, "more")
    same(float(c.do("ZSCORE", key, "c")), 4, "its score")
    same(c.do("ZCOUNT", key, 2, 4), 2, "counted")
    c.do("ZADD", other, 10, "a", 10, "z")
    same(c.do("ZINTERSTORE", out, 2, key, other, "WEIGHTS", 2, 1), 1, "stored")
    same(scores(c.do("ZRANGE", out, 0, -1, "WITHSCORES")), [("a", 20)], "what is stored")
    same(c.do("ZUNIONSTORE", out, 2, key, other, "AGGREGATE", "MAX"), 4, "stored")
    same(scores(c.do("ZPOPMAX", out, 1)), [("z", 10)], "the highest")
    same(c.do("ZREM", key, "a", "x"), 1, "removed")
    same(c.do("ZCARD", key), 2, "how many")
    lex = c.key("lex")
    c.do("ZADD", lex, 0, "a", 0, "b", 0, "c")
    same(c.do("ZRANGEBYLEX", lex, "[b", "+"), ["b", "c"], "by name")
    same(c.do("ZREMRANGEBYLEX", lex, "-", "(c"), 2, "removed by name")


@scenario
def blocking_sorted_pop(c):
    key = c.key()
    other = c.other()
    id = other.id()
    with c.meanwhile(lambda _: other.do("BZPOPMIN", key, LONG_SECONDS)) as popped:
        c.blocked(id)
        c.do("ZADD", key, 2, "late", 1, "early")
        found, member, score = popped.result(drivers.CALL_SECONDS)
        same((found, member, float(score)), (key, "early", 1), "what is popped")
    same(other.do("BZPOPMAX", c.key(), "0.1"), None, "nothing")


# Transactions


@scenario
def transaction(c):
    key, hash_ = c.key(), c.key("hash")
    answers = c.transaction(["SET", key, 1], ["INCR", key], ["HSET", hash_, "a", "1"], ["GET", key])
    same(answers[0] in ("OK", True), True, "the first answer")
    same(answers[1:], [2, 1, "2"], "the other answers")
    answers = c.transaction(["INCR", hash_], ["INCR", key])
    same("WRONGTYPE" in error_of(answers[0]), True, "an error inside")
    same(answers[1], 3, "what is behind it")


@scenario
def transaction_refused(c):
    key = c.key()
    try:
        c.transaction(["SET", key, "x"], ["SET", key])
    except Refused as error:
        if not any(words in error.message for words in ("wrong number", "EXECABORT", "previous errors")):
            fail(f"refused with '{error.message}'")
    else:
        fail("it was carried out though a command had no value")
    same(c.do("GET", key), None, "what was not set")
    same(c.do("PING") in ("PONG", True), True, "it goes on")


@scenario
def watch(c):
    key = c.key()
    c.ok("SET", key, "1")
    same(c.watched([key], None, ["INCR", key], ["GET", key]), [2, "2"], "nobody changed it")
    same(c.watched([key], ["GET", key], ["INCR", key]), [3], "somebody read it")


@scenario
def watch_conflict(c):
    key, other = c.key(), c.key()
    c.ok("SET", key, "1")
    same(c.watched([key], ["SET", key, "rival"], ["SET", key, "mine"]), None, "somebody changed it")
    same(c.do("GET", key), "rival", "the value")
    same(c.watched([other], ["SET", other, "rival"], ["SET", other, "mine"]), None, "somebody made it")
    same(c.watched([key, other], ["DEL", key], ["SET", other, "mine"]), None, "somebody removed one of them")
    same(c.do("GET", other), "rival", "the value of the other")


# Channels


@scenario
def pubsub(c):
    channel, second = c.name("channel"), c.name("channel")
    same(c.do("PUBLISH", channel, "nobody"), 0, "nobody listens")
    other = c.other()
    other.subscribe(channels=[channel, second])
    same(mapping(c.do("PUBSUB", "NUMSUB", channel)), {channel: 1}, "who listens")
    for payload in ["one", BINARY, ""]:
        same(c.do("PUBLISH", channel, payload), 1, "receivers")
    same(c.do("PUBLISH", second, "two"), 1, "receivers")
    expected = [(channel, "one", None), (channel, BINARY, None), (channel, "", None), (second, "two", None)]
    same(other.messages(4), expected, "the messages")
    # https://redis.io/docs/latest/develop/interact/pubsub/: Pub/Sub has no relation to the key space.
    same(c.do("EXISTS", channel, second), 0, "a channel is no key")


@scenario
def pubsub_pattern(c):
    prefix = c.name("news")
    patterns = [f"{prefix}.*", f"{prefix}.[bc]?"]
    other = c.other()
    other.subscribe(patterns=patterns)
    same(c.do("PUBLISH", f"{prefix}.art", "x"), 1, "receivers")
    same(other.messages(1), [(f"{prefix}.art", "x", patterns[0])], "by one pattern")
    same(c.do("PUBLISH", f"{prefix}.cd", "y"), 2, "receivers")
    same(sorted(other.messages(2)), [(f"{prefix}.cd", "y", pattern) for pattern in patterns], "by two patterns")
    same(c.do("PUBLISH", f"{prefix}x", "z"), 0, "receivers")


@scenario
def pubsub_both(c):
    channel = c.name("channel")
    other = c.other()
    other.subscribe(channels=[channel], patterns=[f"{channel}*"])
    same(c.do("PUBLISH", channel, "x"), 2, "receivers")
    found = sorted(other.messages(2), key=str)
    same(found, [(channel, "x", f"{channel}*"), (channel, "x", None)], "by pattern and by name")


# Streams


@scenario
def stream_entries(c):
    key = c.key()
    same(c.do("XADD", key, "1-1", "a", "1", "b", BINARY), "1-1", "the id")
    same(c.do("XADD", key, "1-*", "a", "2"), "1-2", "the next id")
    same(c.do("XADD", key, "5-0", "a", "3"), "5-0", "a later id")
    c.refused("equal or smaller", "XADD", key, "5-0", "a", "4")
    same(c.do("XLEN", key), 3, "how many")
    everything = [("1-1", {"a": "1", "b": BINARY}), ("1-2", {"a": "2"}), ("5-0", {"a": "3"})]
    same(entries(c.do("XRANGE", key, "-", "+")), everything, "all of them")
    same(entries(c.do("XRANGE", key, "(1-1", "+", "COUNT", 1)), everything[1:2], "one of them")
    same(entries(c.do("XREVRANGE", key, "+", "-", "COUNT", 1)), everything[2:], "the last one")
    same(streams(c.do("XREAD", "COUNT", 10, "STREAMS", key, "1-1")), {key: everything[1:]}, "what is behind the first")
    same(c.do("XDEL", key, "1-2", "9-9"), 1, "removed")
    same(c.do("XTRIM", key, "MAXLEN", 1), 1, "cut off")
    same(entries(c.do("XRANGE", key, "-", "+")), everything[2:], "what is left")


@scenario
def stream_group(c):
    key = c.key()
    c.ok("XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    c.refused("BUSYGROUP", "XGROUP", "CREATE", key, "g", "$")
    c.refused("NOGROUP", "XREADGROUP", "GROUP", "none", "a", "STREAMS", key, ">")
    for at in range(1, 5):
        c.do("XADD", key, f"{at}-0", "n", at)
    read = lambda who, *options: streams(c.do("XREADGROUP", "GROUP", "g", who, "COUNT", *options))
    same(read("a", 2, "STREAMS", key, ">"), {key: [("1-0", {"n": "1"}), ("2-0", {"n": "2"})]}, "of the first")
    same(read("b", 9, "STREAMS", key, ">"), {key: [("3-0", {"n": "3"}), ("4-0", {"n": "4"})]}, "of the second")
    same(c.do("XACK", key, "g", "1-0", "9-9"), 1, "acknowledged")
    same(read("a", 9, "STREAMS", key, "0-0"), {key: [("2-0", {"n": "2"})]}, "what the first still has")
    summary = c.do("XPENDING", key, "g")
    count, low, high, consumers = summary if isinstance(summary, list) else summary.values()
    found = sorted(tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in consumers)
    same((count, low, high), (3, "2-0", "4-0"), "what is not acknowledged")
    same([(name, int(each)) for name, each in found], [("a", 1), ("b", 2)], "who has it")
    same(entries(c.do("XCLAIM", key, "g", "a", 0, "3-0")), [("3-0", {"n": "3"})], "what is taken over")
    cursor, claimed = c.do("XAUTOCLAIM", key, "g", "c", 0, "0-0", "COUNT", 2)[:2]
    same((cursor, entries(claimed)), ("4-0", [("2-0", {"n": "2"}), ("3-0", {"n": "3"})]), "the first two")
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
        same(streams(read.result(drivers.CALL_SECONDS)), {key: [("7-0", {"n": "7"})]}, "what was waited for")
    with c.meanwhile(lambda _: other.do("XREAD", *block, "STREAMS", key, "$")) as read:
        c.blocked(id)
        c.do("XADD", key, "8-0", "n", "8")
        same(streams(read.result(drivers.CALL_SECONDS)), {key: [("8-0", {"n": "8"})]}, "what was waited for")
    same(c.do("XREAD", "BLOCK", 50, "STREAMS", key, "$") or None, None, "nothing comes")


@scenario
def stream_is_key(c):
    """Commands on keys do not ask whether a key is a stream."""
    key, other, copied = c.key("stream"), c.key("renamed"), c.key("copied")
    c.do("XADD", key, "1-1", "a", "1")
    c.ok("XGROUP", "CREATE", key, "g", "0")
    same(c.do("TYPE", key), "stream", "its type")
    same(c.do("EXISTS", key), 1, "it is there")
    same(set(c.call("scan", match=f"{key}*", count=100)["value"]), {key}, "it is found")
    same(c.do("EXPIRE", key, LONG_SECONDS) in (1, True), True, "it has a time")
    same(0 < c.do("TTL", key) <= LONG_SECONDS, True, "the time")
    for command in (["GET", key], ["LPUSH", key, "x"], ["SADD", key, "x"], ["HSET", key, "f", "x"]):
        c.refused("WRONGTYPE", *command)
    c.ok("RENAME", key, other)
    same(c.do("COPY", other, copied) in (1, True), True, "a copy")
    same((c.do("EXISTS", key), c.do("XLEN", key)), (0, 0), "nothing is left")
    for each in (other, copied):
        same(entries(c.do("XRANGE", each, "-", "+")), [("1-1", {"a": "1"})], "its entries")
        c.refused("BUSYGROUP", "XGROUP", "CREATE", each, "g", "0")
    c.ok("SET", other, "x")
    c.refused("WRONGTYPE", "XADD", other, "2-1", "a", "1")
    same(c.do("DEL", other, copied), 2, "removed")
    same((c.do("EXISTS", copied), c.do("XLEN", copied)), (0, 0), "nothing is left")


@scenario
def stream_transaction(c):
    key = c.key()
    answers = c.transaction(["XADD", key, "1-1", "a", "1"], ["XADD", key, "1-2", "a", "2"], ["XLEN", key])
    same(answers, ["1-1", "1-2", 2], "what was done")
    answers = c.transaction(["DEL", key], ["EXISTS", key], ["XADD", key, "1-1", "a", "3"], ["XLEN", key])
    same(answers, [1, 0, "1-1", 1], "another one of the same name")
    same(entries(c.do("XRANGE", key, "-", "+")), [("1-1", {"a": "3"})], "its entries")
    rival = ["XADD", key, "2-1", "a", "1"]
    same(c.watched([key], rival, ["XADD", key, "3-1", "a", "1"]), None, "somebody added an entry")
    same(c.watched([key], ["XLEN", key], ["XADD", key, "3-1", "a", "1"]), ["3-1"], "somebody looked at it")


# Errors


@scenario
def tools(c):
    """What tools ask for before they start, and filters, users and numbers that mean nothing."""
    other = c.other()
    c.refused("syntax error", "CLIENT", "KILL", "SKIPME", "foo")
    c.refused("No such user", "CLIENT", "KILL", "USER", c.name("nobody"))
    same(other.do("ECHO", "here"), "here", "a connection that nobody killed")
    c.refused("invalid username-password pair", "AUTH", c.name("nobody"), "x")
    same(c.do("ACL", "WHOAMI"), "default", "the user")
    line = next(fields(line) for line in c.do("CLIENT", "LIST").splitlines() if f"id={c.id()} " in line)
    missing = {"cmd", "qbuf", "argv-mem", "obl", "oll", "omem", "tot-mem", "user", "redir", "resp"} - set(line)
    same(missing, set(), "fields that CLIENT LIST does not have")
    c.ok("SCRIPT", "FLUSH")
    c.ok("FUNCTION", "FLUSH")
    c.refused("Unknown option", "CONFIG", "SET", "no-such-parameter", 1)
    c.refused("cluster support disabled", "READONLY")
    sorted_ = c.key("sorted")
    c.do("ZADD", sorted_, 1, "a", 2, "b")
    same(c.do("SORT", sorted_, "BY", "nosort", "DESC"), ["b", "a"], "what is sorted backwards by nothing")
    c.refused("not a valid float", "ZADD", sorted_, "1e400", "c")
    same(c.do("OBJECT", "IDLETIME", sorted_) < 60, True, "a key that was used just now")


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
    same(c.do("LRANGE", key, 0, -1), ["x"], "what did not change")


if __name__ == "__main__":
    drivers.main(SCENARIOS, Session, lambda address: {"COMPAT_REDIS": address, "NODE_NO_WARNINGS": "1"})
