"""Dramatiq with Redis as broker and results, whose every step is a script."""

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from work import ADDRESS, NAME, note, twice

broker = RedisBroker(url=f"redis://{ADDRESS}/0", namespace=f"{NAME}-dramatiq")
broker.add_middleware(Results(backend=RedisBackend(url=f"redis://{ADDRESS}/0", namespace=f"{NAME}-results")))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def add(a, b):
    return a + b


@dramatiq.actor(max_retries=3, min_backoff=100, max_backoff=300)
def retried(key):
    twice(key)


@dramatiq.actor
def timed(key):
    note(key, time.time())
