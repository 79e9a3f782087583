"""Reads lines of "<name> <hex of a batch>" and decodes them with kafka-python.

Prints the records as JSON. Fails where a checksum is wrong, where the records, their codec or their producer
are not those of the file of that name, or where a file has no line.
"""

import json
import pathlib
import sys

from kafka.record.memory_records import MemoryRecords

from generate import CODECS, describe, describe_batch


def decode(data):
    records = MemoryRecords(data)
    batch = records.next_batch()
    if batch is None or records.has_next() or batch.size_in_bytes != len(data):
        sys.exit("not exactly one batch")
    if not batch.validate_crc():
        sys.exit("wrong checksum")
    codec = CODECS[batch.compression_type]
    about = describe_batch(codec, (batch.producer_id, batch.producer_epoch, batch.base_sequence))
    return about, [describe(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


def read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    return lines.pop(0) if "codec" in lines[0] else describe_batch(), lines


def main():
    files = pathlib.Path(__file__).parent.glob("*.hex")
    missing = {path.stem: read(path) for path in files}
    for line in sys.stdin:
        name, data = line.split()
        about, records = decode(bytes.fromhex(data))
        for record in records:
            print(json.dumps(record))
        if (about, records) != missing.pop(name):
            sys.exit(f"{name}: not what is in its file, but {about}")
    if missing:
        sys.exit(f"no line for {', '.join(sorted(missing))}")


main()
