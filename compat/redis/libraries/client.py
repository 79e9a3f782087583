#!/usr/bin/env python3
"""Libraries that are built on Redis, as their users write them: client.py HOST:PORT [SCENARIO..]

- `lock`: redis-py's `Lock`: many processes add to a number that only the lock protects.
- `rq`, `celery`, `huey`, `dramatiq`: jobs with results, retries and delays, by the library's own worker.
- `django_redis`, `channels_redis`: caches, locks and chat rooms of a Django project.
"""

import contextlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
import traceback
import uuid
from importlib import metadata

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "suite"))
ADDRESS = sys.argv[1] if len(sys.argv) > 1 else sys.exit(f"usage: {sys.argv[0]} HOST:PORT [SCENARIO..]")
NAME = f"lib-{uuid.uuid4().hex[:8]}"
os.environ |= {"COMPAT_ADDRESS": ADDRESS, "COMPAT_NAME": NAME, "PYTHONPATH": str(HERE)}

from checks import same, until

import work

BIN = pathlib.Path(sys.executable).parent
LOCKERS, TURNS = 6, 40


@contextlib.contextmanager
def worker(*command):
    """Runs the worker of a library."""
    with subprocess.Popen([str(each) for each in command], cwd=HERE, stdout=sys.stderr) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def done(key):
    return [value.decode() for value in work.client().lrange(f"{NAME}:done:{key}", 0, -1)]


def add_locked(turns):
    redis = work.client()
    for _ in range(turns):
        with redis.lock(f"{NAME}:lock", timeout=30, sleep=0.002):
            # Nothing but the lock keeps two processes from reading the same number.
            redis.set(f"{NAME}:number", int(redis.get(f"{NAME}:number") or 0) + 1)


def lock():
    redis = work.client()
    processes = [multiprocessing.Process(target=add_locked, args=(TURNS,)) for _ in range(LOCKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    same(int(redis.get(f"{NAME}:number")), LOCKERS * TURNS)
    held = redis.lock(f"{NAME}:other", timeout=30)
    same(held.acquire(blocking=False), True)
    same(redis.lock(f"{NAME}:other", timeout=30).acquire(blocking=False), False)
    same(held.extend(60), True)
    same(redis.pttl(f"{NAME}:other") > 60_000, True)
    same(held.reacquire(), True)
    redis.set(f"{NAME}:other", "of another client")
    try:
        held.release()
        raise AssertionError("the lock of another client was released")
    except Exception as error:
        same(type(error).__name__, "LockNotOwnedError")


def rq():
    from datetime import timedelta

    from rq import Queue, Retry

    queue = Queue(f"{NAME}-rq", connection=work.client())
    with worker(BIN / "rq", "worker", "--with-scheduler", "-u", f"redis://{ADDRESS}", f"{NAME}-rq"):
        jobs = [queue.enqueue(work.add, at, at) for at in range(20)]
        until("all jobs", lambda: all(job.get_status(refresh=True) == "finished" for job in jobs))
        same([job.return_value() for job in jobs], [2 * at for at in range(20)])
        retried = queue.enqueue(work.twice, "rq", retry=Retry(max=2))
        until("the retry", lambda: retried.get_status(refresh=True) == "finished")
        first = queue.enqueue(work.add, 1, 2)
        second = queue.enqueue(work.add, 3, 4, depends_on=first)
        later = queue.enqueue_in(timedelta(seconds=1), work.add, 5, 6)
        until("what depends on it", lambda: second.get_status(refresh=True) == "finished")
        until("the scheduled job", lambda: later.get_status(refresh=True) == "finished")


def celery():
    from celery import chord
    from celery_app import add, retried, timed, total

    command = [BIN / "celery", "-A", "celery_app", "worker", "-P", "threads", "-c", "4", "--loglevel", "WARNING"]
    with worker(*command, "--without-gossip", "--without-mingle"):
        same([add.delay(at, at).get(timeout=90) for at in range(10)], [2 * at for at in range(10)])
        same(retried.delay("text").get(timeout=90), "text after 2")
        begin = time.time()
        timed.apply_async(("celery-eta",), countdown=2)
        until("the task with an ETA", lambda: done("celery-eta"))
        same(float(done("celery-eta")[0]) - begin >= 2, True)
        group_of = chord([add.s(at, at) for at in range(5)])(total.s())
        same(group_of.get(timeout=90), 20)


def huey():
    from huey_app import add, locked, retried, timed

    consumer = [BIN / "huey_consumer", "huey_app.huey", "-w", "4", "-d", "0.05"]
    if not consumer[0].exists():
        consumer[0] = BIN / "huey_consumer.py"
    with worker(*consumer):
        results = [add(at, at) for at in range(20)]
        same([result.get(blocking=True, timeout=60) for result in results], [2 * at for at in range(20)])
        retried("huey")
        until("the retry", lambda: done("huey") == ["done"])
        begin = time.time()
        timed.schedule(("huey-eta",), delay=2)
        until("the delayed task", lambda: done("huey-eta"))
        same(float(done("huey-eta")[0]) - begin >= 1, True)
        for _ in range(4):
            locked("huey-lock")
        until("a task under the lock", lambda: "end" in done("huey-lock"))
        same(done("huey-lock")[:2], ["begin", "end"])


def dramatiq():
    from dramatiq_app import add, retried, timed

    with worker(BIN / "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "4"):
        messages = [add.send(at, at) for at in range(50)]
        same([message.get_result(block=True, timeout=60_000) for message in messages], [2 * at for at in range(50)])
        retried.send("dramatiq")
        until("the retry", lambda: done("dramatiq") == ["done"])
        begin = time.time()
        timed.send_with_options(args=("dramatiq-eta",), delay=2000)
        until("the delayed message", lambda: done("dramatiq-eta"))
        same(float(done("dramatiq-eta")[0]) - begin >= 2, True)


def django_redis():
    import django_scenarios

    django_scenarios.django_redis()


def channels_redis():
    import django_scenarios

    django_scenarios.channels_redis()


SCENARIOS = {each.__name__: each for each in (lock, rq, celery, huey, dramatiq, django_redis, channels_redis)}
# Packages with the code of the scenarios, and what each runs.
PACKAGES = {
    "lock": ("redis", "the lock under contention, its extension, foreign owners"),
    "rq": ("rq", "results, retries, dependencies, scheduled jobs"),
    "celery": ("celery", "results, retries, times of execution, a chord, late acknowledgements"),
    "huey": ("huey", "results, retries, delayed tasks, a lock"),
    "dramatiq": ("dramatiq", "results, retries, delayed messages"),
    "django_redis": ("django-redis", "locks under contention, expiring objects, counters, versions, patterns, compression"),
    "channels_redis": ("channels-redis", "chat rooms over both layers, a worker, full channels, expired messages"),
}


def run(name):
    package, what = PACKAGES[name]
    print(f"library {name} {metadata.version(package)}: {what}", flush=True)
    begin = time.monotonic()
    try:
        SCENARIOS[name]()
    except Exception as error:  # a scenario that fails must not end the others
        if os.environ.get("COMPAT_TRACE"):
            traceback.print_exc()
        print(f"FAILED {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        return False
    finally:
        redis = work.client()
        for key in redis.scan_iter(f"*{NAME}*", count=1000):
            redis.delete(key)
    print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)
    return True


def main():
    print(f"client libraries redis-py-{metadata.version('redis')}", flush=True)
    wanted = sys.argv[2:] or list(SCENARIOS)
    if unknown := [name for name in wanted if name not in SCENARIOS]:
        sys.exit(f"there is no scenario {unknown[0]}: choose from {' '.join(SCENARIOS)}")
    # Evaluated to the end, so that a failure does not hide the others.
    sys.exit(not all([run(name) for name in wanted]))


if __name__ == "__main__":
    main()
