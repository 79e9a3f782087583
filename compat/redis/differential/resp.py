"""RESP2 and RESP3 with exact replies: a reply keeps its type, so that two servers can be compared to the last byte.

A reply is a pair of its type's character and a value: bytes for `+`, `-`, `$`, `=`, `,` and `(`, a number for `:`, a
bool for `#`, a list of replies for `*`, `~` and `>`, a list of pairs of replies for `%`, None for `_`. `$` and `*` may
be null. The type `!` means that there was no reply; the value is the reason.
"""

import contextlib
import select
import socket

ANSWER_SECONDS = 5
NULL = ("_", None)


def encoded(command):
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"".join(parts)


class Connection:
    def __init__(self, address, protocol=2):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        if protocol == 3:
            self.do(b"HELLO", b"3")
        self.id = self.do(b"CLIENT", b"ID")[1]

    def send(self, *commands):
        # A failed send has no reply. Reading the reply then reports the error.
        with contextlib.suppress(OSError):
            self.socket.sendall(b"".join(map(encoded, commands)))

    def do(self, *command):
        self.send(command)
        return self.reply()

    def pipeline(self, commands):
        self.send(*commands)
        replies = []
        while len(replies) < len(commands) and not (replies and is_lost(replies[-1])):
            replies.append(self.reply())
        return replies

    def reply(self):
        try:
            return self.read()
        except (OSError, EOFError, ValueError) as error:
            return "!", f"{type(error).__name__}: {error}".encode()

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(f"the connection ended within {line!r}")
        kind, text = chr(line[0]), line[1:-2]
        if kind in "+-,(":
            return kind, text
        if kind == ":":
            return kind, int(text)
        if kind == "#":
            return kind, {b"t": True, b"f": False}[text]
        if kind == "_":
            return NULL
        if kind not in "$=*~>%":
            raise ValueError(f"no type of a reply: {line!r}")
        size = int(text)
        if size < 0:
            return kind, None
        if kind in "$=":
            data = self.file.read(size + 2)
            if data[size:] != b"\r\n":
                raise ValueError(f"{size} bytes do not end with the line, but with {data[size:]!r}")
            return kind, data[:size]
        if kind == "%":
            return kind, [(self.read(), self.read()) for _ in range(size)]
        return kind, [self.read() for _ in range(size)]

    def is_readable(self):
        """Returns `True` if bytes have arrived. All earlier replies must have been read."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self):
        self.file.close()
        self.socket.close()


def is_lost(reply):
    return reply[0] == "!"


def shown(reply):
    """Returns a readable form of a reply, without details of the protocol."""
    kind, value = reply
    if value is None:
        return {"$": "(nil)", "*": "(nil array)"}.get(kind, "(null)")
    if kind == "%":
        return "{" + ", ".join(f"{shown(key)}: {shown(each)}" for key, each in value) + "}"
    if kind in "*~>":
        brackets = {"*": "[]", "~": "{}", ">": "<>"}[kind]
        return brackets[0] + ", ".join(map(shown, value)) + brackets[1]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return f'"{text}"' if kind == "$" else f"{kind}{text}"
