"""Driver of hiredis: any command, through the program of client.c, which has one connection."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import driver

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "target/compat/hiredis"


class Refused(Exception):
    pass


class Connection:
    def __init__(self):
        host, port = os.environ["COMPAT_REDIS"].rsplit(":", 1)
        self.process = subprocess.Popen(
            [PROGRAM, host, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.version = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the connection was lost")
        return json.loads(line)

    def write(self, word, command=()):
        hexadecimal = (f" x{each.encode('latin-1').hex()}" for each in command)
        self.process.stdin.write(f"{word}{''.join(hexadecimal)}\n")

    def do(self, command):
        self.write("do", command)
        return raised(self.read())

    def pipeline(self, commands):
        for command in commands:
            self.write("append", command)
        found = []
        for _ in commands:
            self.write("reply")
            found.append(self.read())
        return found

    def transaction(self, commands):
        *queued, answers = self.pipeline([["MULTI"], *commands, ["EXEC"]])
        for each in queued:
            raised(each)
        return raised(answers)

    def close(self):
        self.process.kill()
        self.process.wait()


def raised(answer):
    if isinstance(answer, dict):
        raise Refused(answer["error"])
    return answer


class Client:
    def __init__(self):
        self.first = self.connection = Connection()
        self.listener = None

    def pipeline(self, commands):
        return self.connection.pipeline(commands)

    def transaction(self, commands):
        return self.connection.transaction(commands)

    def watched(self, keys, rival, commands):
        self.connection.do(["WATCH", *keys])
        if rival:
            other = Connection()
            other.do(rival)
            other.close()
        return self.connection.transaction(commands)

    def scan(self, match, count):
        found, cursor = [], None
        while cursor != "0":
            cursor, keys = self.connection.do(["SCAN", cursor or "0", "MATCH", match, "COUNT", str(count)])
            found += keys
        return found

    def connect(self, protocol, db, name):
        if protocol == 3:
            raise driver.Missing("hiredis 0.14, which Debian 12 has, knows no RESP3")
        self.connection = Connection()
        self.connection.do(["SELECT", str(db)])
        if name:
            self.connection.do(["CLIENT", "SETNAME", name])

    def reconnects(self):
        raise driver.Missing("hiredis leaves it to the program")

    def subscribe(self, channels, patterns):
        self.listener = Connection()
        for command in (["SUBSCRIBE", *channels], ["PSUBSCRIBE", *patterns]):
            if command[1:]:
                self.listener.do(command)
                for _ in command[2:]:
                    self.pushed()

    def pushed(self):
        self.listener.write("reply")
        return self.listener.read()

    def messages(self, count):
        messages = [self.pushed() for _ in range(count)]
        return [[each[-2], each[-1], each[1] if each[0] == "pmessage" else None] for each in messages]

    def reset(self):
        if self.connection is not self.first:
            self.connection.close()
            self.connection = self.first
        if self.listener:
            self.listener.close()
            self.listener = None


def main():
    client = Client()

    def call(name, values):
        if name.isupper():
            return {"value": client.connection.do([name, *values["args"]])}
        return {"value": getattr(client, name)(**values)}

    driver.main("hiredis", client.first.version, call)


main()
