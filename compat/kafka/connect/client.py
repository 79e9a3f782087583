#!/usr/bin/env python3
"""Kafka Connect, standalone: copies a file to a topic and the topic to a file, and resumes after a restart."""

import contextlib
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suite"))

import jvm
import suite
from suite import same

TOOLS = "org.apache.kafka.tools"

WORKER = """
bootstrap.servers={address}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
listeners=http://127.0.0.1:0
plugin.discovery=service_load
consumer.heartbeat.interval.ms=500
"""
SOURCE = """
name=source-{name}
connector.class=org.apache.kafka.connect.file.FileStreamSourceConnector
tasks.max=1
file={folder}/in.txt
topic={topic}
"""
SINK = """
name=sink-{name}
connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
tasks.max=1
file={folder}/out.txt
topics={topic}
"""


class Connect(suite.Program):
    name, version = "connect", jvm.VERSION
    # A JVM takes seconds to start on a busy machine.
    seconds = 200


def lines(count, begin=0):
    # ASCII: after a restart the source counts characters as bytes.
    return [f"line {i}: one of many" for i in range(begin, begin + count)]


def file_to_file(c, n):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = []
        for file, text in {"worker": WORKER, "source": SOURCE, "sink": SINK}.items():
            path = folder / f"{file}.properties"
            path.write_text(text.format(address=c.address, folder=folder, topic=n(), name=n("connector")))
            files.append(path)
        arrived = lambda count: lambda _: (folder / "out.txt").exists() and len((folder / "out.txt").read_text().splitlines()) >= count
        append = lambda some: (folder / "in.txt").open("a").write("".join(f"{line}\n" for line in some))
        command = jvm.command("org.apache.kafka.connect.cli.ConnectStandalone", *files)
        append(lines(500))
        with contextlib.closing(jvm.Running(command)) as worker:
            worker.wait_for("the first lines", arrived(500))
            append(lines(500, 500))
            worker.wait_for("the later lines", arrived(1000))
        append(lines(100, 1000))
        with contextlib.closing(jvm.Running(command)) as worker:
            worker.wait_for("the lines after a restart", arrived(1100))
        same((folder / "out.txt").read_text().splitlines(), lines(1100), "the file at the end")
    options = ["--topic", n(), "--from-beginning", "--max-messages", 1100, "--timeout-ms", 20_000]
    found = jvm.run(f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", c.address, *options)
    same(found.splitlines(), lines(1100), "the topic")


suite.main(Connect, {"file_to_file": file_to_file})
