"""Driver of boto3: any call by its name in the service."""

import base64
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import boto3
from botocore import xform_name
from botocore.exceptions import ClientError

import driver



def bytes_of(value):
    """Decodes the bytes in the values of a call, which are in base64."""
    if isinstance(value, list):
        return [bytes_of(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: base64.b64decode(v) if k == "BinaryValue" else bytes_of(v) for k, v in value.items()}


def plain(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k != "ResponseMetadata"}
    return value if isinstance(value, int | float | bool | None) else str(value)


def main(name):
    client = boto3.client("sqs")

    def call(operation, values):
        try:
            return plain(getattr(client, xform_name(operation))(**bytes_of(values)))
        except ClientError as error:
            error.names = [error.response["Error"]["Code"]]
            raise

    driver.main(name, boto3.__version__, call)


if __name__ == "__main__":
    main("boto3")
