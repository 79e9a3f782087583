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
LATE_SECONDS = 1


class Tracker:
    """A client that tracks all keys, and what it is told."""

    def __init__(self, address, mode, keys):
        self.connection, self.marks, self.mode = Connection(address, 3), 0, MODES[mode % len(MODES)]
        self.connection.do(b"CLIENT", b"TRACKING", b"ON", *self.mode)
        self.reads = []
        for at, key in enumerate(keys):
            if at % 2 and self.mode in ((b"OPTIN",), (b"OPTOUT",)):
                self.reads.append((b"CLIENT", b"CACHING", b"yes" if self.mode == (b"OPTIN",) else b"no"))
            self.reads.append((b"EXISTS", key))

    def told(self, reads):
        """Returns the keys that were invalidated since the last call, and then sends commands that read. Each key is
        invalidated once after it was read, and a server decides how many changes it broadcasts together."""
        self.marks += 1
        mark = b"mark-%d" % self.marks
        self.connection.send(*reads, (b"PING", mark))
        found = set()
        while (reply := self.connection.reply()) != ("$", mark):
            if is_lost(reply):
                return {reply[1]}
            if reply[0] == ">":
                _, (kind, keys) = reply[1]
                found |= {key for _, key in keys} if kind == "*" else {None}
        return found

    def close(self):
        self.connection.close()


def invalidated(trackers, ignored):
    """Returns the invalidated keys of both clients, without some. They may arrive a moment after the reply of the
    command."""
    found = [tracker.told(tracker.reads) - ignored for tracker in trackers]
    end = time.monotonic() + LATE_SECONDS
    while found[0] != found[1] and time.monotonic() < end:
        time.sleep(0.01)
        found = [one | tracker.told(()) - ignored for one, tracker in zip(found, trackers)]
    return found
