"""Runs the differential test with a server that may be emptied and the redis-server of this machine."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from differential import compare

COMMANDS, SEED = 20_000, 1
READY_SECONDS = 30
PEER = pathlib.Path(__file__).resolve().parents[2] / "suite/peer.py"
SERVER = ["redis-server", "--bind", "127.0.0.1", "--port", "{port}", "--save", "", "--appendonly", "no"]
SERVER += ["--dir", "{dir}"]


@contextlib.contextmanager
def redis_server():
    """Starts a redis-server that orders text by its bytes, yields its address, and stops it."""
    with tempfile.TemporaryDirectory() as folder:
        server = pathlib.Path(folder) / "server"
        call = [sys.executable, PEER, "--until-eof", server, *SERVER]
        with subprocess.Popen(call, stdin=subprocess.PIPE, env=os.environ | {"LC_ALL": "C"}) as peer:
            end = time.monotonic() + READY_SECONDS
            while not (server / "ready.json").exists():
                if peer.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.02)
            yield json.loads((server / "ready.json").read_text())["open"]
            peer.stdin.close()


def scenario(name, commands):
    if not (address := os.environ.get("COMPAT_EMPTY")):
        return f"skipped {name}: no server is named that may be emptied"
    if not shutil.which("redis-server"):
        return f"skipped {name}: redis-server is missing: apt-get install redis-server"
    begin, told = time.monotonic(), io.StringIO()
    with redis_server() as peer, contextlib.redirect_stdout(told):
        is_same = compare([peer, address], SEED, commands)
    print(told.getvalue(), file=sys.stderr, flush=True)
    if is_same:
        return f"ok {name} ({time.monotonic() - begin:.1f} s)"
    return f"FAILED {name}: {' '.join(told.getvalue().split())[-600:]}"


def main():
    """Runs the scenario: HOST:PORT [SCENARIO..]. The address is unused, because other clients use that server."""
    wanted = sys.argv[2:] or ["random_commands"]
    if wanted != ["random_commands"]:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT [random_commands]")
    version = "none"
    if shutil.which("redis-server"):
        version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        version = version.split("v=")[1].split()[0]
    print(f"client differential {version}", flush=True)
    line = scenario("random_commands", COMMANDS)
    print(line, flush=True)
    sys.exit(line.startswith("FAILED"))


main()
