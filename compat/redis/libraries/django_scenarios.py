"""Scenarios of the project in django_app.py."""

import asyncio
import json
import multiprocessing
import sys

import django_app
from asgiref.testing import ApplicationCommunicator
from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from checks import fail, same, until
from django.core.cache import cache, caches
from django_app import CAPACITY, EXPIRY_SECONDS, NAME, ROOM, Chat, PublishedChat
from django_redis import get_redis_connection

SECONDS = 20
LOCKERS, TURNS = 4, 25


class Browser(ApplicationCommunicator):
    """A browser with a web socket to a consumer."""

    def __init__(self, consumer):
        super().__init__(consumer.as_asgi(), {"type": "websocket", "path": "/chat"})

    async def connect(self):
        await self.send_input({"type": "websocket.connect"})
        same((await self.receive_output(SECONDS))["type"], "websocket.accept", "the reply")

    async def say(self, text):
        await self.send_input({"type": "websocket.receive", "text": json.dumps({"text": text})})

    async def texts(self, count):
        return [json.loads((await self.receive_output(SECONDS))["text"])["text"] for _ in range(count)]

    async def leave(self):
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(SECONDS)


async def chat(consumer, layer):
    browsers = [Browser(consumer) for _ in range(3)]
    for browser in browsers:
        await browser.connect()
    if layer == "pubsub":
        # The layer does not wait for the confirmation of its SUBSCRIBE. Until then, the server may handle what another
        # connection publishes first.
        until("the room is subscribed", lambda: get_redis_connection("default").pubsub_channels(f"{NAME}-pubsub*{ROOM}"))
    told = [f"text {at}" for at in range(20)]
    for text in told:
        await browsers[0].say(text)
    for browser in browsers:
        same(await browser.texts(len(told)), told, "the texts of a browser")
    await browsers[0].leave()
    process = await asyncio.create_subprocess_exec(sys.executable, django_app.__file__, layer, "from", "outside")
    same(await process.wait(), 0, "the exit code of another process")
    for browser in browsers[1:]:
        same(await browser.texts(2), ["from", "outside"], "the texts from another process")
        same(await browser.receive_nothing(0.05), True, "that nothing follows")
        await browser.leave()


async def worker(layer):
    """Checks a channel that a worker reads while others send to it."""
    work = asyncio.ensure_future(receive(layer, "thumbnails", 60))
    for at in range(60):
        await layer.send("thumbnails", {"type": "make", "at": at})
    same(await asyncio.wait_for(work, SECONDS), list(range(60)), "the messages of the worker")


async def receive(layer, channel, count):
    return [(await layer.receive(channel))["at"] for _ in range(count)]


async def limits(layer):
    channel = await layer.new_channel()
    for at in range(CAPACITY):
        await layer.send(channel, {"type": "x", "at": at})
    try:
        await layer.send(channel, {"type": "x"})
        fail("a full channel accepted a message")
    except ChannelFull:
        pass
    # A group passes over a full channel.
    await layer.group_add("g", channel)
    await layer.group_send("g", {"type": "x", "at": "too many"})
    same(await receive(layer, channel, CAPACITY), list(range(CAPACITY)), "the messages")
    await layer.group_send("g", {"type": "x", "at": "one more"})
    same((await layer.receive(channel))["at"], "one more", "the message after that")
    await layer.send(channel, {"type": "x", "at": "forgotten"})
    await asyncio.sleep(EXPIRY_SECONDS + 0.2)
    await layer.send(channel, {"type": "x", "at": "later"})
    same((await layer.receive(channel))["at"], "later", "the message after one that expired")


async def layers():
    await chat(Chat, "default")
    await chat(PublishedChat, "pubsub")
    await worker(get_channel_layer())
    await limits(get_channel_layer("small"))
    for alias in ("default", "pubsub", "small"):
        await get_channel_layer(alias).flush()


def channels_redis():
    asyncio.run(layers())


def add_locked():
    for _ in range(TURNS):
        with cache.lock("lock", timeout=30, sleep=0.002):
            # Nothing but the lock keeps two processes from reading the same number.
            cache.set("number", cache.get("number", 0) + 1)


def refused(what, error, run):
    try:
        run()
    except Exception as found:
        same(type(found).__name__, error, "the error")
        return
    fail(what)


def django_redis():
    processes = [multiprocessing.Process(target=add_locked) for _ in range(LOCKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    same(cache.get("number"), LOCKERS * TURNS, "the number")
    held = cache.lock("held", timeout=30)
    same(held.acquire(blocking=False), True, "a free lock")
    same(cache.lock("held").acquire(blocking=False), False, "a held lock")
    cache.set("held", "of another client")
    refused("the lock of another client was released", "LockNotOwnedError", held.release)

    cache.set("user", {"name": "Ada", "tags": {1, 2}}, timeout=0.3)
    same(cache.get("user"), {"name": "Ada", "tags": {1, 2}}, "the object")
    same((cache.add("user", 1), cache.add("new", 1, timeout=None)), (False, True), "additions")
    same((cache.ttl("new"), cache.ttl("none"), 0 < cache.pttl("user") <= 300), (None, 0, True), "the remaining times")
    until("the object expires", lambda: cache.get("user") is None)
    same((cache.touch("new", 60), cache.ttl("new") > 50, cache.persist("new")), (True, True, True), "a longer time")
    same((cache.incr("new", 41), cache.decr("new")), (42, 41), "counters")
    cache.set("new", 2**63 - 1)
    same(cache.incr("new"), 2**63, "a counter of more than 64 bits")
    refused("a missing key was incremented", "ValueError", lambda: cache.incr("none"))
    same(cache.get_or_set("lazy", lambda: "made", 60), "made", "a value that is made")
    same((cache.incr_version("lazy"), cache.get("lazy"), cache.get("lazy", version=2)), (2, None, "made"), "versions")
    cache.set_many({f"item:{at}": at for at in range(50)}, timeout=60)
    same(cache.get_many(["item:1", "item:49", "item:50"]), {"item:1": 1, "item:49": 49}, "some of many")
    same(sorted(cache.iter_keys("item:4?")), [f"item:{at}" for at in range(40, 50)], "the keys of a pattern")
    same((cache.delete_pattern("item:4*"), len(cache.keys("item:*"))), (11, 39), "the deletion of a pattern")
    same((cache.delete_many(["item:1", "item:2"]), "item:1" in cache), (2, False), "the deletion of several keys")
    same((cache.sadd("set", "a", ("b", 1)), cache.smembers("set")), (2, {"a", ("b", 1)}), "a set of objects")
    compressed = caches["compressed"]
    compressed.set("text", {"text": "long " * 1000}, timeout=60)
    same(compressed.get("text"), {"text": "long " * 1000}, "the compressed object")
    raw = get_redis_connection("compressed")
    same(raw.strlen(compressed.make_key("text")) < 500, True, "its compression")
    same(cache.delete_pattern("*") > 40, True, "the deletion of everything")
