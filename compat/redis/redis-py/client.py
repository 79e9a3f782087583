"""Driver of redis-py: any command, with the library's conversion of the reply."""

import contextlib
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import redis

import driver

HOST, PORT = os.environ["COMPAT_REDIS"].rsplit(":", 1)
# Methods for commands whose replies have a special shape. Their arguments are the words after the command's name.
METHODS = {
    "HSET": lambda r, key, *fields: r.hset(key, items=list(fields)),
    "SADD": lambda r, key, *members: r.sadd(key, *members),
    "SMEMBERS": lambda r, key: r.smembers(key),
    "HGETALL": lambda r, key: r.hgetall(key),
    "BLPOP": lambda r, *keys: r.blpop(keys[:-1], float(keys[-1])),
    "BZPOPMIN": lambda r, *keys: r.bzpopmin(keys[:-1], float(keys[-1])),
    "ZPOPMAX": lambda r, key, count: r.zpopmax(key, int(count)),
    "XADD": lambda r, key, id, *fields: r.xadd(key, dict(zip(fields[::2], fields[1::2])), id),
    "XACK": lambda r, key, group, *ids: r.xack(key, group, *ids),
    "XPENDING": lambda r, key, group: r.xpending(key, group),
}


def latin(value):
    return value.encode("latin-1") if isinstance(value, str) else value


def plain(value):
    """Converts a value to types of JSON. Bytes become text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Exception):
        return {"error": str(value)}
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    return value


def written(name, answer):
    """Joins the lines that the library parses, because the suite parses them itself."""
    if name == "CLIENT" and isinstance(answer, list):
        return "\n".join(" ".join(f"{key}={value}" for key, value in each.items()) for each in answer)
    return answer


def connection(protocol=2, db=0, name=None):
    return redis.Redis(HOST, int(PORT), db=db, protocol=protocol, client_name=name or None)


def words(name, args):
    """Returns the words of a command. The library finds the conversion for a subcommand by both words."""
    return [f"{name} {args[0]}", *args[1:]] if name in ("CLIENT", "XGROUP", "OBJECT", "PUBSUB") else [name, *args]


def options(name, args):
    return {"get": True} if name == "SET" and "GET" in args else {}


def filled(pipeline, commands):
    for command in commands:
        pipeline.execute_command(*map(latin, command))
    return pipeline


class Client:
    def __init__(self):
        self.first = self.redis = connection()
        self.listener = None

    def command(self, name, args):
        latins = list(map(latin, args))
        if method := METHODS.get(name):
            with contextlib.suppress(TypeError):
                return method(self.redis, *latins)
        return self.redis.execute_command(*map(latin, words(name, args)), **options(name, args))

    def pipeline(self, commands):
        return filled(self.redis.pipeline(transaction=False), commands).execute(raise_on_error=False)

    def transaction(self, commands):
        return filled(self.redis.pipeline(), commands).execute(raise_on_error=False)

    def watched(self, keys, rival, commands):
        with self.redis.pipeline() as pipeline:
            pipeline.watch(*map(latin, keys))
            if rival:
                connection().execute_command(*map(latin, rival))
            pipeline.multi()
            try:
                return filled(pipeline, commands).execute()
            except redis.WatchError:
                return None

    def scan(self, match, count):
        return list(self.redis.scan_iter(latin(match), count))

    def connect(self, protocol, db, name):
        self.redis = connection(protocol, db, name)

    def reconnects(self):
        pass

    def subscribe(self, channels, patterns):
        self.listener = self.redis.pubsub()
        if channels:
            self.listener.subscribe(*channels)
        if patterns:
            self.listener.psubscribe(*patterns)
        for _ in channels + patterns:
            self.listener.get_message(timeout=None)

    def messages(self, count):
        found = [self.listener.get_message(ignore_subscribe_messages=True, timeout=None) for _ in range(count)]
        return [[each["channel"], each["data"], each["pattern"]] for each in found]

    def reset(self):
        if self.redis is not self.first:
            self.redis.close()
            self.redis = self.first
        if self.listener:
            self.listener.close()
            self.listener = None


def main(name, version=redis.__version__):
    client = Client()

    def call(name, values):
        if name.isupper():
            return {"value": plain(written(name, client.command(name, values["args"])))}
        return {"value": plain(getattr(client, name)(**values))}

    driver.main(name, version, call)


if __name__ == "__main__":
    main("redis-py")
