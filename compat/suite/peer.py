#!/usr/bin/env python3
"""Starts another server of the same protocol, to prove a suite against it.

    peer.py [--until-eof] DIR COMMAND..     starts the server on a free port, which is `{port}` in the command, until
                                            SIGTERM or until the input ends

DIR must not exist yet; the server's data and its log are in it. When the server is ready, DIR/ready.json has its
address as `open`. With `--and-empty` before DIR a second server starts, with its address as `empty`, for a client that
needs a separate server.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

READY_SECONDS = 120
LOOK_SECONDS = 0.1
ANSWER_SECONDS = 2


def end_with_input():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def answers(port):
    """Returns `True` if a server answers on the port. A response to a request of another protocol suffices."""
    with socket.socket() as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(1) is not None
        except ConnectionResetError:
            return True
        except OSError:
            return False


def start(directory, command):
    """Starts a server on a free port, and returns its process and its port."""
    directory.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [word.replace("{port}", str(port)).replace("{dir}", str(directory)) for word in command]
    with open(directory / "log", "w") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return server, port


def wait(directory, server, port):
    end = time.monotonic() + READY_SECONDS
    while not answers(port):
        if server.poll() is not None or time.monotonic() > end:
            sys.exit(f"the server did not start:\n{(directory / 'log').read_text()}")
        time.sleep(LOOK_SECONDS)


def main():
    arguments = sys.argv[1:]
    if arguments[0] == "--until-eof":
        arguments.pop(0)
        threading.Thread(target=end_with_input, daemon=True).start()
    has_empty = arguments[0] == "--and-empty"
    directory, *command = arguments[has_empty:]
    directory = pathlib.Path(directory).resolve()
    folders = {"open": directory} | ({"empty": directory / "empty"} if has_empty else {})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers = {}
    try:
        for name, folder in folders.items():
            servers[name] = start(folder, command)
            wait(folder, *servers[name])
        part = directory / "ready.part"
        part.write_text(json.dumps({name: f"127.0.0.1:{port}" for name, (_, port) in servers.items()}))
        part.rename(directory / "ready.json")
        servers["open"][0].wait()
    finally:
        for server, _ in servers.values():
            # A script may have started the server itself.
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


main()
