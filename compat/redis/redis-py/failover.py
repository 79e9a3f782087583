#!/usr/bin/env python3
"""Client redis-py under leader kills: keys, counters, a stream with a group, and lists as queues."""

import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ClusterDownError, ConnectionError, TimeoutError, TryAgainError
from redis.retry import Retry

from history import History

KEYS = 4
# Errors after which a command may or may not have been executed, and which a later attempt does not have.
PASSING = (ConnectionError, TimeoutError)
# Errors of a node without a leader (CLUSTERDOWN) and of a broker that begins (LOADING, TRYAGAIN): nothing was executed.
REFUSED = (ClusterDownError, BusyLoadingError, TryAgainError)
# Time of a blocking command at the server, which is shorter than the time that the library waits for an answer.
BLOCK_SECONDS = 1

history = History(redis.__version__)
ended = {stream: threading.Event() for stream in ("list", "stream", "pop")}


class Lost(Exception):
    """Error after which a command may have been executed."""


class Node:
    """Client of one node after the other. `retries` is the number of the library's own attempts, by default three."""

    def __init__(self, stream, retries=None):
        self.stream, self.node = stream, 0
        retry = {} if retries is None else {"retry": Retry(NoBackoff(), retries)}
        addresses = [address.rsplit(":", 1) for address in history.addresses]
        self.clients = [redis.Redis(host, int(port), decode_responses=True, **retry) for host, port in addresses]

    def once(self, command, *args, **kwargs):
        """Calls a command. Raises Lost if it may have been executed without an answer."""
        while True:
            client = self.clients[self.node % len(self.clients)]
            try:
                return getattr(client, command)(*args, **kwargs)
            except (*REFUSED, *PASSING) as error:
                history.error(self.stream, error)
                self.node += 1
                time.sleep(0.1)
                if not isinstance(error, REFUSED):
                    raise Lost(str(error)) from error

    def until_answered(self, command, *args, **kwargs):
        """Repeats a command for which a second execution changes nothing, or is counted as a copy."""
        while True:
            try:
                return self.once(command, *args, **kwargs)
            except Lost:
                pass


def registers():
    """SET and GET of ascending numbers."""
    node = Node("set")
    for number in history.numbers():
        key = f"set:{number % KEYS}"
        try:
            node.once("set", key, number + 1)
            outcome = "ok"
        except Lost:
            outcome = "unknown"
        history.add(op="wrote", stream="set", lane=key, number=number + 1, outcome=outcome, at=now())
        read(node, key)
    for key in range(KEYS):
        read(node, f"set:{key}")


def read(node, key):
    history.add(op="read", stream="set", lane=key, number=int(node.until_answered("get", key) or 0))


def counters():
    """INCR, without the library's repetitions: each of them may count again."""
    node = Node("incr", retries=0)
    for number in history.numbers():
        key = f"incr:{number % KEYS}"
        try:
            value = node.once("incr", key)
        except Lost:
            value = None
        history.add(op="added", stream="incr", lane=key, value=value, at=now())
    for key in range(KEYS):
        key = f"incr:{key}"
        history.add(op="counted", stream="incr", lane=key, value=int(node.until_answered("get", key) or 0))


def now():
    return time.time_ns() // 1_000_000


def send(stream, *command):
    """Adds numbered items, each until it is acknowledged: an item whose answer was lost may be there twice."""
    node = Node(stream)
    for number in history.numbers():
        name, *args = command
        item = f"p:{number}"
        node.until_answered(name, *args, {"item": item} if name == "xadd" else item)
        history.sent(stream, "p", number)
    ended[stream].set()


def consume():
    """Consumer of a stream's group, which acknowledges each entry and reads its pending ones again after an error."""
    # A repetition of the library would hide that entries of a lost answer are pending.
    node, key, group = Node("stream", retries=0), "stream", "readers"
    after, empty = "0", 0
    while empty < 3:
        last = ended["stream"].is_set()
        try:
            answer = node.once("xreadgroup", group, "c", {key: after}, 10, block=BLOCK_SECONDS * 1000)
            entries = entries_of(answer)
            for id, fields in entries:
                history.got("stream", "group", key, id, fields["item"])
            for id, _ in entries:
                # 0: the delivery was not durable when the leader was killed, and the entry is delivered again.
                if node.once("xack", key, group, id) == 1:
                    history.settled("stream", key, id)
        except Lost:
            after, empty = "0", 0
            continue
        if after == "0" and not entries:
            after = ">"
        elif last:
            empty = empty + 1 if not entries else 0
    pending = node.until_answered("xpending", key, group)["pending"]
    assert pending == 0, f"{pending} acknowledged entries are pending"
    for id, fields in node.until_answered("xrange", key):
        history.got("stream", "final", key, id, fields["item"])


def entries_of(answer):
    """Entries of the only stream of an answer, which is a dictionary with some protocols and a list with others."""
    if not answer:
        return []
    streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    found = []
    for entries in streams:
        found += entries[0] if entries and isinstance(entries[0], list) else entries
    return found


def move():
    """Reliable queue of Redis's documentation: BLMOVE to a list of items in work, and LREM when one is done."""
    # A repetition of the library would hide that the item of a lost answer is in work.
    node, empty = Node("list", retries=0), 0
    while empty < 3:
        last = ended["list"].is_set()
        try:
            item = node.once("blmove", "list", "work", BLOCK_SECONDS, "RIGHT", "LEFT")
        except Lost:
            # It may have been moved: everything in work is done again.
            for item in node.until_answered("lrange", "work", 0, -1)[::-1]:
                done(node, item)
            continue
        empty = empty + 1 if last and item is None else 0
        if item is not None:
            done(node, item)


def done(node, item):
    history.got("list", "a", "list", item, item)
    node.until_answered("lrem", "work", 1, item)


def pop():
    """BRPOP, without the library's repetitions: an item whose answer was lost is gone, as with Redis."""
    node, empty = Node("pop", retries=0), 0
    while empty < 3:
        last = ended["pop"].is_set()
        try:
            found = node.once("brpop", ["pop"], BLOCK_SECONDS)
        except Lost:
            history.add(op="taken", stream="pop")
            continue
        empty = empty + 1 if last and found is None else 0
        if found is not None:
            history.got("pop", "a", "pop", found[1], found[1])


def main():
    Node("stream").until_answered("xgroup_create", "stream", "readers", "0", mkstream=True)
    history.stream("set")
    history.stream("incr")
    history.stream("stream", log=True, ordered=True)
    history.stream("list", ordered=True)
    history.stream("pop", ordered=True)
    history.run(
        registers, counters, lambda: send("stream", "xadd", "stream"), consume, lambda: send("list", "lpush", "list"), move,
        lambda: send("pop", "lpush", "pop"), pop)


main()
