"""Reads lines of "<name> <hex of a batch>" and decodes them with kafka-python.

Prints the records as JSON. Fails where a checksum is wrong, where the records are not those of the
file of that name, or where a file has no line.
"""

import json
import pathlib
import sys

from kafka.record.memory_records import MemoryRecords

from generate import describe


def decode(data):
    records = MemoryRecords(data)
    batch = records.next_batch()
    if batch is None or records.has_next() or batch.size_in_bytes != len(data):
        sys.exit("not exactly one batch")
    if not batch.validate_crc():
        sys.exit("wrong checksum")
    return [describe(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


def main():
    files = pathlib.Path(__file__).parent.glob("*.hex")
    missing = {path.stem: [json.loads(line) for line in path.read_text().splitlines()[:-1]] for path in files}
    for line in sys.stdin:
        name, data = line.split()
        records = decode(bytes.fromhex(data))
        for record in records:
            print(json.dumps(record))
        if records != missing.pop(name):
            sys.exit(f"{name}: other records than in its file")
    if missing:
        sys.exit(f"no line for {', '.join(sorted(missing))}")


main()
