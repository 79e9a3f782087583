"""Driver of an old boto3, which uses the Query protocol with responses in XML."""

import pathlib
import runpy

boto3 = pathlib.Path(__file__).resolve().parents[1] / "boto3/client.py"
runpy.run_path(str(boto3))["main"]("boto3-query")
