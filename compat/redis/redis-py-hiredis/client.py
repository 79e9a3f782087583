"""Driver of redis-py with the parser of hiredis, which is written in C."""

import pathlib
import runpy

import hiredis

plain = pathlib.Path(__file__).resolve().parents[1] / "redis-py/client.py"
runpy.run_path(str(plain))["main"]("redis-py-hiredis", f"hiredis-{hiredis.__version__}")
