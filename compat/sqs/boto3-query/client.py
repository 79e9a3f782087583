"""boto3 as it was when it spoke the Query protocol, whose answers are XML."""

import pathlib
import runpy

boto3 = pathlib.Path(__file__).resolve().parents[1] / "boto3/client.py"
runpy.run_path(str(boto3))["main"]("boto3-query")
