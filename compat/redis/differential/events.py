"""Keyspace events and invalidations of a server: clients that receive them, and their comparison for each key."""

import collections
import re
import time

from resp import Connection, is_lost

# All classes. New keys and lookups that find nothing have letters of their own.
FLAGS = b"AKEnm"
CHANNEL = re.compile(rb"__key(space|event)@(\d+)__:(.*)", re.DOTALL)


class Events:
    def __init__(self, address):
        self.connection, self.marks = Connection(address), 0
        self.connection.do(b"CONFIG", b"SET", b"notify-keyspace-events", FLAGS)
        self.connection.do(b"PSUBSCRIBE", b"__key*@*__:*")

    def heard(self):
        """Returns the events of each key since the last call, in their order: by the channels of keys and of events."""
        self.marks += 1
        mark = b"mark-%d" % self.marks
        self.connection.send((b"PING", mark))
        found = collections.defaultdict(list)
        while (reply := self.connection.reply()) != ("*", [("$", b"pong"), ("$", mark)]):
            if is_lost(reply):
                return {"lost": [reply[1]]}
            _, (_, (_, pattern), (_, channel), (_, message)) = reply
            kind, db, name = CHANNEL.fullmatch(channel).groups()
            key, event = (name, message) if kind == b"space" else (message, name)
            found[kind, int(db), key].append(event)
        return dict(found)

    def close(self):
        self.connection.close()


def difference(a, b):
    """Returns a name and the events of the first key whose events differ, or `None`."""
    for name in sorted({**a, **b}, key=repr):
        if a.get(name) != b.get(name):
            kind, db, key = name if len(name) == 3 else ("", "", b"")
            what = f"events of key {key!r} of database {db} by the channels of {kind}"
            return what, [("*", [("+", event) for event in each.get(name, [])]) for each in (a, b)]
    return None


# In turns: the modes of the tracking client.
MODES = [(), (b"NOLOOP",), (b"BCAST",), (b"BCAST", b"PREFIX", b"s", b"PREFIX", b"h"), (b"OPTIN",), (b"OPTOUT",)]
LAST_SECONDS = 20
LOST = b"the connection was lost"


class Tracker:
    """A client that tracks all keys, and what it is told."""

    def __init__(self, address, mode, keys):
        self.connection, self.marks, self.mode = Connection(address, 3), 0, MODES[mode % len(MODES)]
        self.changer = Connection(address)
        self.connection.do(b"CLIENT", b"TRACKING", b"ON", *self.mode)
        self.reads = []
        for at, key in enumerate(keys):
            if at % 2 and self.mode in ((b"OPTIN",), (b"OPTOUT",)):
                self.reads.append((b"CLIENT", b"CACHING", b"yes" if self.mode == (b"OPTIN",) else b"no"))
            self.reads.append((b"EXISTS", key))

    def told(self):
        """Returns the keys that were invalidated since the last call, and reads all keys again. Each key is invalidated
        once after it was read, and a server decides how many changes it broadcasts together, and when. They come in the
        order of the changes, so a key that is changed last shows their end."""
        self.marks += 1
        last = b"s-last-%d" % self.marks
        caching = [(b"CLIENT", b"CACHING", b"yes")] if self.mode == (b"OPTIN",) else []
        found = self.pushed([*self.reads, *caching, (b"EXISTS", last)])
        self.changer.pipeline([(b"SET", last, b""), (b"DEL", last)])
        end = time.monotonic() + LAST_SECONDS
        while not found & {last, LOST}:
            if time.monotonic() > end:
                return found | {b"the last change was not told"}
            found |= self.pushed([])
        return {key for key in found if key is None or not key.startswith(b"s-last-")}

    def pushed(self, commands):
        """Executes commands, and returns the keys of the invalidations before the replies and between them."""
        self.connection.send(*commands, (b"PING", b"mark"))
        found = set()
        while (reply := self.connection.reply()) != ("$", b"mark"):
            if is_lost(reply):
                return found | {LOST}
            if reply[0] == ">":
                _, (kind, keys) = reply[1]
                found |= {key for _, key in keys} if kind == "*" else {None}
        return found

    def close(self):
        self.connection.close()
        self.changer.close()


def invalidated(trackers, ignored):
    """Returns the invalidated keys of both clients, without some."""
    return [tracker.told() - ignored for tracker in trackers]
