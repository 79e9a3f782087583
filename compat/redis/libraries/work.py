"""Tasks of the libraries, as an application defines them. The address is in the variable COMPAT_ADDRESS."""

import os

from redis import Redis

ADDRESS = os.environ["COMPAT_ADDRESS"]
NAME = os.environ.get("COMPAT_NAME", "compat")


def client():
    host, port = ADDRESS.rsplit(":", 1)
    return Redis(host, int(port))


def note(name, value):
    """Appends to the list that the scenario reads."""
    client().rpush(f"{NAME}:done:{name}", value)


def add(a, b):
    return a + b


def twice(key):
    """Fails at its first attempt."""
    if client().incr(f"{NAME}:attempts:{key}") == 1:
        raise ValueError("as it should")
    note(key, "done")
    return "second"
