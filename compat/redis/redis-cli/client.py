"""Driver of redis-cli: any command, typed into one continuous process."""

import os
import pathlib
import queue
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import driver

HOST, PORT = os.environ["COMPAT_REDIS"].rsplit(":", 1)
CALL = ["redis-cli", "-h", HOST, "-p", PORT, "--no-raw"]
ITEM = re.compile(r" *(\d+)([)~#]) ")
NUMBER = re.compile(r"\((?:integer|double)\) (.*)")
WORDS = {"(nil)": None, "(true)": True, "(false)": False, "(empty array)": [], "(empty set)": [], "(empty hash)": {}}
# Duration that redis-cli prints after a reply that took half a second or more.
TOOK = re.compile(r"\(\d+\.\d\ds\)")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")
ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b"}


class Refused(Exception):
    pass


def quoted(text):
    """Returns a word in the quotation that redis-cli reads."""
    plain = lambda c: c if " " <= c <= "~" and c not in '"\\' else f"\\x{ord(c):02x}"
    return '"' + "".join(map(plain, text)) + '"'


def unquoted(text):
    plain = lambda found: chr(int(found[1][1:], 16)) if len(found[1]) == 3 else ESCAPED.get(found[1], found[1])
    return ESCAPE.sub(plain, text)


class Answers:
    """Parser for the output of redis-cli for terminals: a reply is one line, or one line per numbered item, which is
    indented for each list that contains the item."""

    def __init__(self, lines):
        self.lines, self.at = lines, 0

    def one(self, column=0):
        text = self.lines[self.at][column:]
        if found := ITEM.match(text):
            return self.items(column, found[2])
        self.at += 1
        if text in WORDS:
            return WORDS[text]
        if found := NUMBER.fullmatch(text):
            return float(found[1]) if "double" in text else int(found[1])
        if text.startswith("(error) "):
            return Refused(text.removeprefix("(error) "))
        found = STRING.fullmatch(text)
        return unquoted(found[1]) if found else text

    def items(self, column, kind):
        found = []
        while self.at < len(self.lines) and (item := ITEM.match(self.lines[self.at], column)):
            if int(item[1]) != len(found) + 1:
                break
            if kind == "#":
                found.append(self.pair(item.end()))
            else:
                found.append(self.one(item.end()))
        return dict(found) if kind == "#" else found

    def pair(self, column):
        line = self.lines[self.at]
        key = STRING.match(line, column)
        begin = key.end() + len(" => ")
        # The further lines of a value are indented to the column of the key.
        if ITEM.match(line, begin):
            self.lines[self.at] = " " * column + line[begin:]
            return unquoted(key[1]), self.one(column)
        return unquoted(key[1]), self.one(begin)


class Cli:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [*CALL, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="latin-1", bufsize=1
        )
        self.lines, self.count = queue.Queue(), 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def write(self, commands):
        self.process.stdin.write("".join(" ".join(map(quoted, command)) + "\n" for command in commands))
        self.process.stdin.flush()

    def line(self):
        line = self.lines.get()
        if line is None:
            raise EOFError("redis-cli ended")
        return line

    def run(self, commands):
        """Runs commands, and returns their replies. An ECHO after them marks the end."""
        self.count += 1
        mark = f"end-{os.getpid()}-{self.count}"
        self.write([*commands, ["ECHO", mark]])
        lines = []
        while (line := self.line()) != f'"{mark}"':
            if not TOOK.fullmatch(line):
                lines.append(line)
        answers = Answers(lines)
        found = []
        while answers.at < len(lines):
            # redis-cli prints additional words, and an empty line after some replies.
            found.append(answers.one())
        return found

    def do(self, command):
        answer = self.run([command])
        # Text of several lines, such as that of CLIENT LIST, is not quoted.
        answer = answer[0] if len(answer) == 1 else "\n".join(map(str, answer))
        if isinstance(answer, Refused):
            raise answer
        return answer

    def transaction(self, commands):
        *_, answers = found = self.run([["MULTI"], *commands, ["EXEC"]])
        for each in found:
            if isinstance(each, Refused):
                raise each
        return answers

    def close(self):
        self.process.kill()
        self.process.wait()


class Client:
    def __init__(self):
        self.first = Cli()
        self.cli, self.listener = self.first, None

    def command(self, name, args):
        return self.cli.do([name, *args])

    def pipeline(self, commands):
        raise driver.Missing("redis-cli waits for each answer")

    def transaction(self, commands):
        return shown(self.cli.transaction(commands))

    def watched(self, keys, rival, commands):
        self.cli.do(["WATCH", *keys])
        if rival:
            other = Cli()
            other.do(rival)
            other.close()
        return shown(self.cli.transaction(commands))

    def scan(self, match, count):
        call = [*CALL, "--scan", "--pattern", match]
        found = subprocess.run(call, stdout=subprocess.PIPE, encoding="latin-1", check=True).stdout.splitlines()
        return [unquoted(STRING.fullmatch(each)[1]) for each in found]

    def connect(self, protocol, db, name):
        self.cli = Cli("-n", str(db), *(["-3"] if protocol == 3 else []))
        if name:
            self.cli.do(["CLIENT", "SETNAME", name])

    def reconnects(self):
        pass

    def subscribe(self, channels, patterns):
        if channels and patterns:
            raise driver.Missing("redis-cli listens to channels or to patterns")
        self.listener = Cli()
        command = ["SUBSCRIBE", *channels] if channels else ["PSUBSCRIBE", *patterns]
        self.listener.write([command])
        for _ in range(len(command) - 1):
            self.pushed()

    def pushed(self):
        """Reads one message or one confirmation."""
        lines = []
        while True:
            line = self.listener.line()
            if ITEM.match(line):
                lines.append(line)
            first = lines and Answers(lines[:1]).one()[0]
            if first and len(lines) == (4 if first == "pmessage" else 3):
                return Answers(lines).one()

    def messages(self, count):
        messages = [self.pushed() for _ in range(count)]
        return [[each[-2], each[-1], each[1] if each[0] == "pmessage" else None] for each in messages]

    def reset(self):
        if self.cli is not self.first:
            self.cli.close()
            self.cli = self.first
        if self.listener:
            self.listener.close()
            self.listener = None


def shown(answers):
    if answers is None:
        return None
    return [{"error": str(each)} if isinstance(each, Refused) else each for each in answers]


def main():
    version = subprocess.run(["redis-cli", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    client = Client()

    def call(name, values):
        if name.isupper():
            return {"value": client.command(name, values["args"])}
        return {"value": getattr(client, name)(**values)}

    driver.main("redis-cli", version, call)


main()
