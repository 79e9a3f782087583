"""Keyspace events of a server: a subscriber to all of them, and their comparison for each key."""

import collections
import re

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
