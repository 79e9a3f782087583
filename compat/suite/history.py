"""History of a program for `cargo xtask compat cluster`: what it sent, received and was told, one JSON object per line.

The events are described in xtask/src/compat/cluster/history.rs. The program ends its workload when its input ends,
settles what is in flight, reads everything back, and exits with 0.
"""

import json
import sys
import threading
import time
import traceback

# Items per second of a stream.
RATE = 50


class History:
    def __init__(self, version):
        self.path, *self.addresses = sys.argv[1:]
        self.file = open(self.path, "a")
        self.lock = threading.Lock()
        self.ending = threading.Event()
        threading.Thread(target=self.await_end, daemon=True).start()
        self.add(op="client", version=version)

    def await_end(self):
        sys.stdin.read()
        self.ending.set()

    def add(self, **event):
        line = json.dumps(event) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()

    def stream(self, name, **promises):
        self.add(op="stream", stream=name, **promises)

    def sent(self, stream, producer, number, ok=True):
        self.add(op="sent", stream=stream, producer=producer, number=number, outcome="ok" if ok else "unknown", at=now())

    def got(self, stream, reader, lane, id, item):
        """Notes a received item, of the form PRODUCER:NUMBER."""
        producer, number = item.rsplit(":", 1)
        self.add(op="got", stream=stream, reader=reader, lane=str(lane), id=str(id), producer=producer, number=int(number))

    def settled(self, stream, lane, id):
        self.add(op="settled", stream=stream, lane=str(lane), id=str(id), at=now())

    def committed(self, stream, lane, next):
        self.add(op="committed", stream=stream, lane=str(lane), next=next, at=now())

    def position(self, stream, lane, next):
        self.add(op="position", stream=stream, lane=str(lane), next=next)

    def error(self, stream, error):
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        self.add(op="error", stream=stream, error=text[:300])

    def run(self, *workloads):
        """Runs each workload in a thread. The program fails if one of them does."""
        failed = []

        def one(workload):
            try:
                workload()
            except BaseException:
                traceback.print_exc()
                failed.append(workload)
                # The other workloads end, and so does the program.
                self.ending.set()

        threads = [threading.Thread(target=one, args=[workload]) for workload in workloads]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            sys.stderr.flush()
            sys.exit(1)

    def numbers(self):
        """Numbers at the rate of a stream, until the workload ends."""
        number = 0
        while not self.ending.wait(1 / RATE):
            yield number
            number += 1


def now():
    return time.time_ns() // 1_000_000
