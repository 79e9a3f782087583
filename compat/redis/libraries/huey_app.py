"""Huey with its default storage, which uses scripts for its schedule."""

import time

from huey import RedisHuey

from work import ADDRESS, NAME, note, twice

host, port = ADDRESS.rsplit(":", 1)
huey = RedisHuey(f"{NAME}-huey", host=host, port=int(port))


@huey.task()
def add(a, b):
    return a + b


@huey.task(retries=2, retry_delay=1)
def retried(key):
    return twice(key)


@huey.task()
def timed(key):
    note(key, time.time())


@huey.task()
@huey.lock_task("one-at-a-time")
def locked(key):
    note(key, "begin")
    time.sleep(0.3)
    note(key, "end")
