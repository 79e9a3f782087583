#!/usr/bin/env python3
"""Client boto3 at two sites: queues over copies, and messages that may not be sent to them."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from checks import fail, same, until
from sites import Seen, command, expected, in_background, quickly, serve, values

TOPICS = ["orders", "trimmed", "state"]

near, far = sys.argv[1:]
seen = Seen()


def connect():
    config = Config(retries={"mode": "standard", "max_attempts": 3}, connect_timeout=5, read_timeout=30)
    return boto3.client(
        "sqs", endpoint_url=f"http://{far}", region_name="us-east-1", aws_access_key_id="a",
        aws_secret_access_key="b", config=config)


def queue(topic):
    return f"boto3-{topic}"


def receive(topic):
    client = connect()
    url = client.get_queue_url(QueueName=queue(topic))["QueueUrl"]

    def work():
        while True:
            try:
                answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                for message in answer.get("Messages", []):
                    seen.add(topic, message["Body"])
                    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            except (BotoCoreError, ClientError):
                # The site is killed: a message whose deletion had no answer may arrive again.
                seen.note_error()
                time.sleep(0.2)

    return work


def ready():
    for topic in TOPICS:
        command("queue", "create", queue(topic), "--topic", f"a.{topic}", "--lease", "5s")
        in_background(receive(topic))


def check(path):
    wanted = {}
    for (copy, _), bodies in values(expected(path), *TOPICS).items():
        wanted.setdefault(copy.removeprefix("a."), []).extend(bodies)
    seen.check(wanted, ordered=False, once=seen.unsure == 0)
    client = connect()
    for topic in TOPICS:
        url = client.get_queue_url(QueueName=queue(topic))["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        left = lambda: client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        until(f"no message left in {queue(topic)}", lambda: {*left().values()} == {"0"})


def refused():
    client = connect()
    url = client.get_queue_url(QueueName=queue("orders"))["QueueUrl"]
    error = quickly("SendMessage", lambda: client.send_message(QueueUrl=url, MessageBody="at-b"), ClientError)
    of = error.response
    status, retries = of["ResponseMetadata"]["HTTPStatusCode"], of["ResponseMetadata"]["RetryAttempts"]
    print(f"note SendMessage: {status} {of['Error']['Code']}, {retries} retries", flush=True)
    same((status, retries), (400, 0), "the status and the number of retries")
    entries = [{"Id": "0", "MessageBody": "at-b"}]
    try:
        answer = client.send_message_batch(QueueUrl=url, Entries=entries)
        print(f"note SendMessageBatch: {answer.get('Failed')}", flush=True)
        same([each["SenderFault"] for each in answer.get("Failed", [])], [True], "whether the entry is at fault")
    except ClientError as error:
        print(f"note SendMessageBatch: {error}", flush=True)
        same(error.response["ResponseMetadata"]["HTTPStatusCode"], 400, "the status of a batch")


def writable():
    client = connect()
    url = client.get_queue_url(QueueName=queue("orders"))["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="boto3 at b")
    until("the message", lambda: "boto3 at b" in seen.lanes()["orders"])


serve("boto3", boto3.__version__, ready=ready, steady=check, cut=check, refused=refused, writable=writable)
