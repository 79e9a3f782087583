"""Writes a .hex file for each of the batches below, encoded by kafka-python."""

import json
import pathlib
import struct
from unittest import mock

from kafka.record.memory_records import MemoryRecordsBuilder

NOW = 1_700_000_000_000
LARGEST = 2**63 - 1
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
NOBODY = (-1, -1, -1)


def record(timestamp_ms, key, value, *headers):
    return timestamp_ms, key, value, list(headers)


ALIKE = [record(NOW + i, b"key-%d" % (i % 3), b"a value like the others", ("h", b"x")) for i in range(50)]

# Name, base offset, records, and for some their codec and their producer: its id, its epoch, a sequence.
BATCHES = [
    ("one_value", 0, [record(NOW, None, b"hello")]),
    ("keys", 0, [record(NOW, b"a", b"1"), record(NOW + 1, b"b", b"2"), record(NOW + 70, b"a", b"3")]),
    ("nulls_and_empties", 0, [record(NOW, key, value) for key in (None, b"") for value in (None, b"")]),
    (
        "headers",
        0,
        [
            record(NOW, b"k", b"v", ("content-type", b"text/plain"), ("null", None), ("empty", b"")),
            record(NOW, None, b"none"),
            record(NOW, None, None, ("twice", b"1"), ("twice", b"2"), ("", b""), ("größe", b"\xff\x00")),
        ],
    ),
    ("many_headers", 0, [record(NOW, None, b"v", *((f"h{i}", bytes([i])) for i in range(70)))]),
    (
        "timestamps",
        0,
        [record(NOW + d, None, b"t") for d in (0, 63, 64, -1, -64, -65, 2**31, -(2**31), -NOW, 1 - 2 * NOW)],
    ),
    ("timestamps_before_1970", 0, [record(time, None, b"t") for time in (-5, -10, -1)]),
    ("largest_timestamp", 0, [record(time, None, b"t") for time in (0, LARGEST, 1)]),
    ("every_byte", 0, [record(NOW, bytes(range(256)), bytes(reversed(range(256))))]),
    ("lengths", 0, [record(NOW, b"k" * n, b"v" * n, ("h" * n, b"x" * n)) for n in (1, 63, 64, 127, 128)]),
    ("long_value", 0, [record(NOW, None, b"v" * 8200)]),
    ("many_records", 0, [record(NOW + i, None, b"%d" % i) for i in range(70)]),
    ("base_offset", 2**40 + 5, [record(NOW, None, b"v"), record(NOW, None, b"w")]),
    *((codec, 9, ALIKE, codec) for codec in CODECS[1:]),
    ("snappy_blocks", 0, [record(NOW, None, b"v" * 35_000)], "snappy"),
    ("producer", 7, ALIKE[:3], "none", (2**40 + 3, 2, 41)),
    ("producer_at_the_ends", 0, [record(NOW, None, b"v")], "none", (2**63 - 1, 2**15 - 1, 2**31 - 1)),
    ("producer_zstd", 7, ALIKE, "zstd", (0, 0, 0)),
]


def encode(base_offset, records, codec="none", producer=NOBODY):
    producer_id, producer_epoch, base_sequence = producer
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=CODECS.index(codec),
        batch_size=1 << 20,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    for timestamp_ms, key, value, headers in records:
        assert builder.append(timestamp_ms, key, value, headers) is not None, "the batch is full"
    # gzip writes the time.
    with mock.patch("gzip.time.time", lambda: 0):
        builder.close()
    batch = bytearray(builder.buffer())
    # A broker does this to a batch when it assigns offsets.
    struct.pack_into(">q", batch, 0, base_offset)
    return bytes(batch)


def hex_or_null(data):
    return None if data is None else data.hex()


def describe(offset, timestamp_ms, key, value, headers):
    """A record as it stands in the files."""
    return {
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": hex_or_null(key),
        "value": hex_or_null(value),
        "headers": [[name.encode().hex(), hex_or_null(value)] for name, value in headers],
    }


def describe_batch(codec="none", producer=NOBODY):
    """Returns the description of a batch for the first line of its file."""
    return {"codec": codec, "producer": None if producer == NOBODY else list(producer)}


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    for name, base_offset, records, *rest in BATCHES:
        lines = [json.dumps(describe(base_offset + i, *fields)) for i, fields in enumerate(records)]
        if rest:
            lines.insert(0, json.dumps(describe_batch(*rest)))
        lines.append(encode(base_offset, records, *rest).hex())
        (folder / f"{name}.hex").write_text("\n".join(lines) + "\n")
