"""Clients with one socket each, for measurements in which a library would be the slower part: Kafka's protocol, the
native protocol, and signed SQS requests over HTTP.

They build the bytes of a request once and send them again and again. They need only the standard library.
"""

import base64
import datetime
import hashlib
import hmac
import json
import os
import socket
import struct

PATIENCE_SECONDS = 60
PRODUCE, METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 3, 17, 18, 36
# Versions whose messages have fields of a fixed form only.
VERSIONS = {PRODUCE: 7, METADATA: 1, SASL_HANDSHAKE: 1, API_VERSIONS: 0, SASL_AUTHENTICATE: 1}
HELLO, PUBLISH, LOGIN, NATIVE_ERROR = 0x01, 0x02, 0x27, 0xFF
ANY_PARTITION, ACCEPTED = 0xFFFFFFFF, 1
SQS_ACCOUNT, SQS_REGION = "000000000000", "us-east-1"


class Refused(Exception):
    """An answer that is an error, or a closed connection."""


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC32C = crc32c_table()


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def varint(number):
    """Returns a number in the zigzag encoding of records."""
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def record_batch(values):
    """Returns a record batch of version 2, with a record for each value."""
    records = b""
    for offset, value in enumerate(values):
        body = b"\0" + varint(0) + varint(offset) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    now_ms = 1_700_000_000_000
    rest = struct.pack(">hiqqqhii", 0, len(values) - 1, now_ms, now_ms, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, len(rest) + 9, 0, 2, crc32c(rest)) + rest


def text16(text):
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


class Wire:
    """A socket from which exact numbers of bytes are read."""

    def __init__(self, port, tls=None):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.pending = b""

    def read(self, count):
        while len(self.pending) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise Refused("the broker closed the connection")
            self.pending += more
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def send(self, data):
        self.socket.sendall(data)

    def close(self):
        self.socket.close()


class Kafka(Wire):
    """A connection that speaks Kafka's protocol."""

    def request(self, key, body):
        head = struct.pack(">hhi", key, VERSIONS[key], 0) + text16("bench")
        return struct.pack(">i", len(head) + len(body)) + head + body

    def answer(self):
        """Returns the body of the next answer, without its correlation id."""
        (length,) = struct.unpack(">i", self.read(4))
        return self.read(length)[4:]

    def call(self, key, body):
        self.send(self.request(key, body))
        return self.answer()

    def authenticate(self, message):
        answer = self.call(SASL_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        (code,) = struct.unpack_from(">h", answer)
        if code:
            raise Refused(f"the login failed with code {code}")
        (text,) = struct.unpack_from(">h", answer, 2)
        at = 4 + max(text, 0)
        (length,) = struct.unpack_from(">i", answer, at)
        return answer[at + 4 : at + 4 + length]

    def handshake(self, mechanism):
        (code,) = struct.unpack_from(">h", self.call(SASL_HANDSHAKE, text16(mechanism)))
        if code:
            raise Refused(f"{mechanism} is refused with code {code}")

    def log_in_plain(self, user, password):
        self.handshake("PLAIN")
        self.authenticate(f"\0{user}\0{password}".encode())

    def log_in_token(self, token):
        self.handshake("OAUTHBEARER")
        self.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())

    def log_in_scram(self, user, password, salted):
        """Logs in by SCRAM-SHA-256. `salted` keeps the hash of the password, as clients do between connections."""
        self.handshake("SCRAM-SHA-256")
        nonce = base64.b64encode(os.urandom(18)).decode()
        bare = f"n={user},r={nonce}"
        first = self.authenticate(f"n,,{bare}".encode()).decode()
        parts = dict(part.split("=", 1) for part in first.split(","))
        key = (parts["s"], parts["i"])
        if key not in salted:
            salt = base64.b64decode(parts["s"])
            salted[key] = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, int(parts["i"]))
        client_key = hmac.digest(salted[key], b"Client Key", "sha256")
        last = f"c=biws,r={parts['r']}"
        signed = f"{bare},{first},{last}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        answer = self.authenticate(f"{last},p={base64.b64encode(proof).decode()}".encode())
        wanted = hmac.digest(hmac.digest(salted[key], b"Server Key", "sha256"), signed, "sha256")
        if answer != b"v=" + base64.b64encode(wanted):
            raise Refused("the broker does not know the password")

    def check_logged_in(self):
        """Sends a request that a broker answers only after a login."""
        self.call(METADATA, struct.pack(">i", 0))

    def publish_request(self, topic, batch):
        data = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + text16(topic)
        return self.request(PRODUCE, data + struct.pack(">iii", 1, 0, len(batch)) + batch)

    def published(self, topic):
        """Reads the answer to a publish."""
        (code,) = struct.unpack_from(">h", self.answer(), 4 + 2 + len(topic.encode()) + 4 + 4)
        if code:
            raise Refused(f"a publish failed with code {code}")


class Native(Wire):
    """A connection that speaks the native protocol (docs/reference/protocol.md)."""

    def request(self, kind, body):
        return struct.pack(">IBBHI", len(body), kind, 0, 0, 1) + body

    def answer(self):
        length, kind, _, _, _ = struct.unpack(">IBBHI", self.read(12))
        body = self.read(length)
        if kind == NATIVE_ERROR:
            raise Refused(f"the broker answers with an error: {body[:200]!r}")
        return body

    def log_in_plain(self, user, password):
        self.send(self.request(HELLO, b"THLW" + struct.pack(">HQQ", 1, 0, 0) + text16("bench")))
        self.answer()
        self.send(self.request(LOGIN, text16("PLAIN") + f"\0{user}\0{password}".encode()))
        if self.answer()[:1] != b"\x01":
            raise Refused("the login is not complete")

    def publish_request(self, topic, batch):
        return self.request(PUBLISH, text16(topic) + struct.pack(">IB", ANY_PARTITION, ACCEPTED) + batch)

    def published(self, _topic):
        self.answer()


class Sqs(Wire):
    """An HTTP connection with signed requests of SQS."""

    def __init__(self, port):
        super().__init__(port)
        self.port = port

    def publish_request(self, queue, body, key):
        """Returns a SendMessage, signed with Signature Version 4 by a key and its secret. It is valid for a while."""
        access_key, secret = key
        url = f"http://localhost:{self.port}/{SQS_ACCOUNT}/{queue}"
        content = json.dumps({"QueueUrl": url, "MessageBody": body}).encode()
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/{SQS_REGION}/sqs/aws4_request"
        headers = {"host": f"localhost:{self.port}", "x-amz-date": now, "x-amz-target": "AmazonSQS.SendMessage"}
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(content).hexdigest()}"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signing = f"AWS4{secret}".encode()
        for part in (now[:8], SQS_REGION, "sqs", "aws4_request"):
            signing = hmac.digest(signing, part.encode(), "sha256")
        signature = hmac.new(signing, text.encode(), "sha256").hexdigest()
        credential = f"Credential={access_key}/{scope}"
        login = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        head = {**headers, "authorization": login, "content-type": "application/x-amz-json-1.0",
                "content-length": str(len(content))}
        return ("POST / HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in head.items()) + "\r\n").encode() + content

    def status(self):
        """Reads an answer, and returns its status with its body."""
        while b"\r\n\r\n" not in self.pending:
            more = self.socket.recv(1 << 16)
            if not more:
                raise Refused("the broker closed the connection")
            self.pending += more
        head, _, self.pending = self.pending.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return int(head.split(b" ", 2)[1]), self.read(length)

    def published(self, _queue):
        status, body = self.status()
        if status != 200:
            raise Refused(f"{status}: {body[:300]!r}")
