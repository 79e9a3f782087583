"""Tasks of Celery that do nothing: `celery_jobs.py HOST:PORT COUNT` adds them, a worker of this module runs them."""

import os
import signal
import sys
import time

from celery import Celery

ADDRESS = os.environ["JOBS_ADDRESS"]
COUNT = int(os.environ["JOBS_COUNT"])

app = Celery("celery_jobs", broker=f"redis://{ADDRESS}/0")
app.conf.task_ignore_result = True
app.conf.worker_redirect_stdouts = False
done = {"count": 0, "began": 0.0}


@app.task
def nothing():
    if done["count"] == 0:
        done["began"] = time.monotonic()
    done["count"] += 1
    if done["count"] == COUNT:
        print(f"worked {COUNT / (time.monotonic() - done['began']):.1f}", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.modules["celery_jobs"] = sys.modules["__main__"]
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        began = time.monotonic()
        for _ in range(COUNT):
            app.send_task("celery_jobs.nothing", producer=producer)
        print(f"added {COUNT / (time.monotonic() - began):.1f}", flush=True)
