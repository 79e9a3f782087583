"""Celery with Redis as broker and as backend, with late acknowledgements."""

import time

from celery import Celery

from work import ADDRESS, NAME, note

app = Celery("compat", broker=f"redis://{ADDRESS}/0", backend=f"redis://{ADDRESS}/0")
app.conf.update(
    task_default_queue=f"{NAME}-celery", broker_connection_retry_on_startup=True, worker_hijack_root_logger=False,
    task_acks_late=True, worker_prefetch_multiplier=1,
)


@app.task(name="add")
def add(a, b):
    return a + b


@app.task(name="retried", bind=True, max_retries=3)
def retried(self, text):
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return f"{text} after {self.request.retries}"


@app.task(name="timed")
def timed(key):
    note(key, time.time())


@app.task(name="total")
def total(numbers):
    return sum(numbers)
