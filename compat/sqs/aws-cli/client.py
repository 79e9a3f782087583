"""Driver of the AWS CLI: each call is a command line, in this process, because the CLI takes a second to start."""

import base64
import contextlib
import io
import json
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import awscli
from awscli.clidriver import create_clidriver
from botocore import xform_name

import driver


class CommandError(Exception):
    def __init__(self, said):
        super().__init__(said)
        self.names = re.findall(r"An error occurred \(([^)]*)\)", said)


def text_of(value):
    """Decodes the bytes in a call to text. The CLI reads bytes as text, and prints them in base64."""
    if isinstance(value, list):
        return [text_of(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: decoded(v) if k == "BinaryValue" else text_of(v) for k, v in value.items()}


def decoded(data):
    try:
        return base64.b64decode(data).decode()
    except UnicodeDecodeError as error:
        raise driver.Missing("its JSON has no way for bytes that are no text") from error


def call(operation, values):
    command = [
        "sqs", xform_name(operation, "-"), "--endpoint-url", os.environ["AWS_ENDPOINT_URL"], "--output", "json",
        "--no-cli-pager" if awscli.__version__.startswith("2") else "--no-paginate",
        "--cli-input-json", json.dumps(text_of(values)),
    ]
    out, err = io.StringIO(), io.StringIO()
    out.buffer = out
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = create_clidriver().main(command)
    if code != 0:
        raise CommandError(err.getvalue().strip() or out.getvalue())
    return json.loads(out.getvalue() or "{}")


driver.main("aws-cli", awscli.__version__, call)
