#!/usr/bin/env python3
"""Client boto3 under leader kills: a standard queue, and a FIFO queue with deduplication identities."""

import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from history import History

GROUPS = 5
VISIBILITY_SECONDS = 10
# Receives without a message after which a queue is empty; each waits for longer than a message stays invisible.
EMPTY_RECEIVES = 2

history = History(boto3.__version__)
sent_all = {stream: threading.Event() for stream in ("standard", "fifo")}


class Queue:
    """Queue through the library's own retries. After an error that they do not cover, another node continues."""

    def __init__(self, stream, name, **attributes):
        self.stream, self.node = stream, 0
        self.clients = [connect(address) for address in history.addresses]
        self.url = self.call("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"]

    def once(self, operation, **values):
        client = self.clients[self.node % len(self.clients)]
        try:
            return getattr(client, operation)(**values)
        except (BotoCoreError, ClientError) as error:
            history.error(self.stream, error)
            # https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html: connection errors and 5xx are
            # transient.
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            self.node += 1
            return None

    def call(self, operation, **values):
        while (answer := self.once(operation, **values)) is None:
            time.sleep(0.2)
        return answer


def connect(address):
    # The timeouts are AWS's advice for clients that fail over; the mode is the one that AWS recommends.
    config = Config(retries={"mode": "standard", "max_attempts": 3}, connect_timeout=5, read_timeout=30)
    return boto3.client(
        "sqs", endpoint_url=f"http://{address}", region_name="us-east-1", aws_access_key_id="a",
        aws_secret_access_key="b", config=config)


def send(stream, queue):
    for number in history.numbers():
        body = f"p:{number}"
        # The message is sent until it is acknowledged. In a FIFO queue, its identity makes that safe.
        more = {"MessageGroupId": f"g{number % GROUPS}", "MessageDeduplicationId": body} if stream == "fifo" else {}
        queue.call("send_message", QueueUrl=queue.url, MessageBody=body, **more)
        history.sent(stream, "p", number)
    sent_all[stream].set()


def receive(stream, queue):
    empty = 0
    while empty < EMPTY_RECEIVES:
        wait = VISIBILITY_SECONDS + 2 if sent_all[stream].is_set() else 1
        answer = queue.once(
            "receive_message", QueueUrl=queue.url, MaxNumberOfMessages=10, WaitTimeSeconds=wait, AttributeNames=["All"])
        messages = (answer or {}).get("Messages", [])
        empty = empty + 1 if sent_all[stream].is_set() and answer is not None and not messages else 0
        for message in messages:
            lane = message["Attributes"].get("MessageGroupId", "all")
            history.got(stream, "a", lane, message["MessageId"], message["Body"])
        for message in messages:
            lane = message["Attributes"].get("MessageGroupId", "all")
            if delete(queue, message["ReceiptHandle"]):
                history.settled(stream, lane, message["MessageId"])


def delete(queue, receipt):
    """Deletes a message. A deletion that fails is not repeated: the message arrives again."""
    try:
        return queue.once("delete_message", QueueUrl=queue.url, ReceiptHandle=receipt) is not None
    except ClientError as error:
        # The error that the API reference of DeleteMessage names for a receipt that has expired.
        if error.response["Error"]["Code"] != "InvalidParameterValue":
            raise
        return False


def main():
    visibility = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
    attributes = {"standard": visibility, "fifo": {**visibility, "FifoQueue": "true"}}
    names = {"standard": "failover", "fifo": "failover.fifo"}
    # Each thread has its own connections.
    queues = {stream: [Queue(stream, names[stream], **attributes[stream]) for _ in range(2)] for stream in names}
    history.stream("standard")
    history.stream("fifo", numbered=True, ordered=True)
    history.run(*[
        lambda stream=stream, of=of, queue=queue: of(stream, queue)
        for stream, both in queues.items() for of, queue in zip((send, receive), both)])


main()
