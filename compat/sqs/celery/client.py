#!/usr/bin/env python3
"""Celery with its SQS transport. A worker in a separate process runs tasks: client.py HOST:PORT [SCENARIO..]"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "suite"))

from celery import Celery, __version__

from checks import fail, same, until

ENV = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
}


def app(address, queue, results):
    """Returns the application of the worker and of the sending program."""
    host, port = address.split(":")
    app = Celery("compat", broker=f"sqs://test:test@{host}:{port}//", backend=f"file://{results}")
    app.conf.update(
        task_default_queue=queue, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False,
        task_acks_late=True, worker_prefetch_multiplier=1,
        broker_transport_options={
            "region": "us-east-1", "is_secure": False, "visibility_timeout": 600, "wait_time_seconds": 1,
            "polling_interval": 0.1,
        },
    )

    @app.task(name="add")
    def add(a, b):
        return a + b

    @app.task(name="twice", bind=True, max_retries=3)
    def twice(self, text):
        """Fails in the first attempt, and requests a retry after one second."""
        if self.request.retries == 0:
            raise self.retry(countdown=1)
        return f"{text} after {self.request.retries}"

    @app.task(name="wrong")
    def wrong():
        raise ValueError("as it should")

    return app


class Running:
    """Queue with its worker and its sending program."""

    def __init__(self, address, name):
        self.folder = tempfile.TemporaryDirectory()
        self.queue = f"celery-{name.replace('_', '-')}-{os.getpid()}"
        self.app = app(address, self.queue, self.folder.name)
        self.env = {"COMPAT_CELERY": f"{address} {self.queue} {self.folder.name}", "PYTHONPATH": str(HERE)}
        self.worker = None

    def start(self):
        command = [sys.executable, "-m", "celery", "-A", "worker", "worker", "--concurrency=2", "--loglevel=INFO"]
        self.worker = subprocess.Popen(
            command, cwd=HERE, env=os.environ | ENV | self.env, stdin=subprocess.DEVNULL, stdout=sys.stderr,
            stderr=sys.stderr,
        )

    def send(self, task, *arguments, **options):
        return self.app.send_task(task, arguments, **options)

    def close(self):
        if self.worker:
            self.worker.terminate()
            self.worker.wait()
        self.folder.cleanup()


def done(result):
    until("the task has an end", result.ready)
    return result.get(timeout=1)


def tasks(r):
    r.start()
    results = [r.send("add", i, i) for i in range(20)]
    same([done(result) for result in results], [2 * i for i in range(20)], "the results")


def tasks_before_worker(r):
    results = [r.send("add", i, 1) for i in range(3)]
    r.start()
    same([done(result) for result in results], [1, 2, 3], "the results")


def retry(r):
    r.start()
    same(done(r.send("twice", "text")), "text after 1", "the result")


def countdown(r):
    r.start()
    begin = time.monotonic()
    same(done(r.send("add", 1, 2, countdown=2)), 3, "the result")
    same(time.monotonic() - begin > 1.9, True, "a result after the countdown")


def failing(r):
    r.start()
    result = r.send("wrong")
    try:
        done(result)
    except ValueError as error:
        same(str(error), "as it should", "the error")
    else:
        fail("the task did not fail")
    same(done(r.send("add", 1, 1)), 2, "a task after it")


SCENARIOS = {
    "celery_tasks": tasks, "celery_tasks_before_worker": tasks_before_worker, "celery_retry": retry,
    "celery_countdown": countdown, "celery_task_fails": failing,
}


def attempt(address, name):
    begin = time.monotonic()
    try:
        with contextlib.closing(Running(address, name)) as running:
            SCENARIOS[name](running)
        return f"ok {name} ({time.monotonic() - begin:.1f} s)"
    except Exception as error:
        traceback.print_exc()
        return f"FAILED {name}: {type(error).__name__}: {' '.join(str(error).split())}"


def main():
    os.environ.update(ENV)
    address, *wanted = sys.argv[1:]
    print(f"client celery {__version__}", flush=True)
    failed = False
    for name in wanted or SCENARIOS:
        line = attempt(address, name)
        print(line, flush=True)
        failed |= line.startswith("FAILED")
    sys.exit(failed)


if __name__ == "__main__":
    main()
