"""Scenarios for all SQS clients, which run through drivers: see drivers.py.

Calls and their values have the names of the service.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import re
import struct
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import drivers
from checks import fail, same, skip, until
from drivers import Refused

# Codes of the shapes whose code is not their name. All shapes of the service have a name and a code.
CODES = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
}
# Shapes for which SDKs have no class.
UNTYPED = {"InvalidParameterValueException", "MissingRequiredParameterException"}
KIB = 1024
# Timeout that does not elapse before the end of a scenario, even on a busy machine.
LONG_SECONDS = 600
WAIT_SECONDS = 20


def env(address):
    return {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        # A refused call is not retried.
        "AWS_MAX_ATTEMPTS": "1",
        # Suppresses the warnings about the end of Node's support.
        "NODE_NO_WARNINGS": "1",
    }


class Session(drivers.Session):
    def queue(self, what="q", tags=None, **attributes):
        """Creates a queue and returns its URL. Its attributes select FIFO."""
        return self.create(self.queue_name(what, attributes), tags=tags, **attributes)

    def queue_name(self, what="q", attributes=()):
        return self.name(what)[:70] + (".fifo" if "FifoQueue" in attributes else "")

    def fifo(self, what="q", **attributes):
        return self.queue(what, FifoQueue="true", **attributes)

    def create(self, name, tags=None, **attributes):
        values = {"Attributes": attributes} if attributes else {}
        return self.call("CreateQueue", QueueName=name, **values, **({"tags": tags} if tags else {}))["QueueUrl"]

    def send(self, url, body="body", **values):
        return self.call("SendMessage", QueueUrl=url, MessageBody=body, **values)

    def send_all(self, url, bodies, **values):
        for chunk in batches(bodies):
            entries = [{"Id": str(i), "MessageBody": body} | values for i, body in enumerate(chunk)]
            same(len(self.call("SendMessageBatch", QueueUrl=url, Entries=entries)["Successful"]), len(chunk), "sent")

    def receive(self, url, count=10, wait=0, **values):
        """Returns the messages of one call."""
        answer = self.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count, WaitTimeSeconds=wait, **values)
        return answer.get("Messages") or []

    def get(self, url, count, **values):
        """Receives until `count` messages have arrived, with as many calls as necessary."""
        found = []
        until(
            f"{count} messages",
            lambda: found.extend(self.receive(url, min(10, count - len(found)), 1, **values)) or len(found) >= count,
        )
        return found

    def one(self, url, **values):
        return self.get(url, 1, **values)[0]

    def delete(self, url, *messages):
        for chunk in batches(messages):
            entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(chunk)]
            answer = self.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
            same(answer.get("Failed") or [], [], "the messages that were not deleted")

    def give_back(self, url, message, seconds=0):
        self.call(
            "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
        )

    def attributes(self, url, *names):
        return self.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names) or ["All"]).get("Attributes") or {}

    def arn(self, url):
        return self.attributes(url, "QueueArn")["QueueArn"]

    def counts(self, url):
        """Returns the numbers of visible, in-flight and delayed messages."""
        names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
        found = self.attributes(url, *names)
        return [int(found[name]) for name in names]

    def settled(self, url, *counts):
        until(f"{counts} visible, in flight and delayed", lambda: self.counts(url) == list(counts))

    def refused(self, shape, name, /, **values):
        """Checks that a call fails with the code or the shape of the error, and with the SDK's class for it."""
        try:
            self.call(name, **values)
        except Refused as error:
            names = {name.rpartition("#")[2].removesuffix("Exception") for name in error.names}
            code = CODES.get(shape, f"AWS.SimpleQueueService.{shape}").removesuffix("Exception")
            shape = shape.removesuffix("Exception")
            if not names & {shape, code}:
                fail(f"refused with {error}, not {shape}")
            if f"{shape}Exception" not in UNTYPED and shape not in names and self.about["name"] not in CODE_ONLY:
                fail(f"refused with {error}, which is not of the class {shape}")
            return error
        fail(f"{name} was not refused, but should be: {shape}")


# Clients that print only the code of an error.
CODE_ONLY = {"aws-cli"}


def zeros(c):
    if c.about["name"] == "aws-sdk-go":
        skip("the library does not send a zero")


def batches(entries):
    entries = list(entries)
    return [entries[at : at + 10] for at in range(0, len(entries), 10)]


def bodies(messages):
    return [message["Body"] for message in messages]


def b64(data):
    return base64.b64encode(data).decode()


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def md5_of(attributes):
    """Returns the MD5 as documented by the service: of name, type, kind and value, in the order of the names."""
    sized = lambda data: struct.pack(">I", len(data)) + data
    out = b""
    for name, value in sorted(attributes.items()):
        is_binary = "BinaryValue" in value
        data = base64.b64decode(value["BinaryValue"]) if is_binary else value["StringValue"].encode()
        out += sized(name.encode()) + sized(value["DataType"].encode()) + (b"\x02" if is_binary else b"\x01") + sized(data)
    return hashlib.md5(out).hexdigest()


def numbered(count, tag="body"):
    return [f"{tag}-{i}" for i in range(count)]


SCENARIOS = {}


def scenario(run):
    SCENARIOS[run.__name__] = run
    return run


# Queues


@scenario
def create_delete(c):
    name = c.queue_name()
    url = c.create(name)
    same(url.rsplit("/", 1)[-1], name, "the end of the URL")
    same(c.call("GetQueueUrl", QueueName=name)["QueueUrl"], url, "the URL")
    same(c.call("ListQueues", QueueNamePrefix=name)["QueueUrls"], [url], "the list")
    c.call("DeleteQueue", QueueUrl=url)
    same(c.call("ListQueues", QueueNamePrefix=name).get("QueueUrls") or [], [], "the list")
    c.refused("QueueDoesNotExist", "GetQueueUrl", QueueName=name)


@scenario
def create_again(c):
    name = c.queue_name()
    url = c.create(name, VisibilityTimeout="41")
    same(c.create(name, VisibilityTimeout="41"), url, "the URL with the same attributes")
    same(c.create(name), url, "the URL without attributes")
    c.refused("QueueNameExists", "CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "42"})
    same(c.attributes(url, "VisibilityTimeout"), {"VisibilityTimeout": "41"}, "the attributes")


@scenario
def list_pages(c):
    prefix = c.name("list")[:60]
    urls = sorted(c.create(f"{prefix}-{i}") for i in range(5))
    found, token = [], {}
    for pages in itertools.count(1):
        page = c.call("ListQueues", QueueNamePrefix=prefix, MaxResults=2, **token)
        found += page.get("QueueUrls") or []
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    same(sorted(found), urls, "all pages")
    same(pages, 3, "the number of pages")


@scenario
def names_refused(c):
    for name in ["a b", "x" * 81, "dots.are.not", "slash/ed"]:
        c.refused("InvalidParameterValueException", "CreateQueue", QueueName=name)


@scenario
def queue_missing(c):
    url = c.queue()
    url = url.rsplit("/", 1)[0] + "/" + c.queue_name("none")
    entry = {"Id": "1", "ReceiptHandle": "x"}
    for name, values in [
        ("SendMessage", {"MessageBody": "x"}),
        ("ReceiveMessage", {}),
        ("GetQueueAttributes", {"AttributeNames": ["All"]}),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "1"}}),
        ("PurgeQueue", {}),
        ("ListQueueTags", {}),
        ("SendMessageBatch", {"Entries": [{"Id": "1", "MessageBody": "x"}]}),
        ("DeleteMessageBatch", {"Entries": [entry]}),
        ("ListDeadLetterSourceQueues", {}),
    ]:
        c.refused("QueueDoesNotExist", name, QueueUrl=url, **values)


@scenario
def flags_in_any_case(c):
    name = c.name("flags")[:70] + ".fifo"
    url = c.create(name, FifoQueue="True", ContentBasedDeduplication="TRUE")
    found = c.attributes(url)
    same((found["FifoQueue"], found["ContentBasedDeduplication"]), ("true", "true"), "the flags")
    same(c.create(name, FifoQueue="true", ContentBasedDeduplication="true"), url, "the URL with other spellings")


@scenario
def attributes_default(c):
    before = int(time.time()) - 2
    url = c.queue()
    found = c.attributes(url)
    expected = {
        "VisibilityTimeout": "30", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0",
        "MessageRetentionPeriod": "345600", "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0", "ApproximateNumberOfMessagesDelayed": "0",
    }
    same({name: found.get(name) for name in expected}, expected, "the attributes")
    same(found["QueueArn"].split(":")[:4], ["arn", "aws", "sqs", "us-east-1"], "the start of its ARN")
    same(found["QueueArn"].rsplit(":", 1)[-1], url.rsplit("/", 1)[-1], "the end of its ARN")
    for name in ("CreatedTimestamp", "LastModifiedTimestamp"):
        same(before <= int(found[name]) <= time.time() + 2, True, f"the closeness of {name} {found[name]} to the current time")
    for name in ("Policy", "RedrivePolicy", "FifoQueue", "ContentBasedDeduplication"):
        same(name in found, False, f"presence of {name}")


@scenario
def attributes_1_mib(c):
    same(c.attributes(c.queue(), "MaximumMessageSize"), {"MaximumMessageSize": str(KIB * KIB)}, "the largest message")


@scenario
def attributes_set(c):
    wanted = {
        "VisibilityTimeout": "77", "DelaySeconds": "3", "ReceiveMessageWaitTimeSeconds": "4",
        "MessageRetentionPeriod": "3600", "MaximumMessageSize": "2048",
    }
    url = c.queue(**wanted)
    same(c.attributes(url, *wanted), wanted, "the attributes of the creation")
    other = {"VisibilityTimeout": "0", "DelaySeconds": "900", "MessageRetentionPeriod": "1209600"}
    c.call("SetQueueAttributes", QueueUrl=url, Attributes=other)
    same(c.attributes(url, *wanted), wanted | other, "the changed attributes")
    same(c.attributes(url, "DelaySeconds"), {"DelaySeconds": "900"}, "one")


@scenario
def attributes_names_refused(c):
    url = c.queue()
    c.refused("InvalidAttributeName", "SetQueueAttributes", QueueUrl=url, Attributes={"Nonsense": "1"})
    c.refused("InvalidAttributeName", "GetQueueAttributes", QueueUrl=url, AttributeNames=["Nonsense"])


@scenario
def attributes_values_refused(c):
    url = c.queue()
    for name, value in [
        ("VisibilityTimeout", "43201"), ("VisibilityTimeout", "-1"), ("VisibilityTimeout", "ten"), ("DelaySeconds", "901"),
        ("ReceiveMessageWaitTimeSeconds", "21"), ("MessageRetentionPeriod", "59"), ("MaximumMessageSize", "1023"),
        ("Policy", "{"),
    ]:
        c.refused("InvalidAttributeValue", "SetQueueAttributes", QueueUrl=url, Attributes={name: value})
    same(c.attributes(url, "VisibilityTimeout"), {"VisibilityTimeout": "30"}, "the attributes")


@scenario
def tags(c):
    url = c.queue(tags={"team": "water", "größe": "naïve"})
    listed = lambda: c.call("ListQueueTags", QueueUrl=url).get("Tags") or {}
    same(listed(), {"team": "water", "größe": "naïve"}, "the tags of the creation")
    c.call("TagQueue", QueueUrl=url, Tags={"team": "river", "empty": ""})
    same(listed(), {"team": "river", "größe": "naïve", "empty": ""}, "the changed tags")
    c.call("UntagQueue", QueueUrl=url, TagKeys=["größe", "empty", "team", "none"])
    same(listed(), {}, "the remaining tags")


@scenario
def tags_empty_refused(c):
    url = c.queue()
    c.refused("MissingRequiredParameterException", "TagQueue", QueueUrl=url, Tags={})
    # Clients with the Query protocol write nothing for an empty list.
    c.refused("InvalidParameterValueException", "UntagQueue", QueueUrl=url, TagKeys=[""])


@scenario
def permissions_of_owners_refused(c):
    url = c.queue()
    for action in ["CreateQueue", "SetQueueAttributes", "TagQueue"]:
        add = {"Label": "sharing", "AWSAccountIds": ["111111111111"], "Actions": [action]}
        c.refused("InvalidParameterValueException", "AddPermission", QueueUrl=url, **add)


@scenario
def permissions(c):
    url = c.queue()
    add = {"Label": "sharing", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage", "ReceiveMessage"]}
    c.call("AddPermission", QueueUrl=url, **add)
    [statement] = json.loads(c.attributes(url, "Policy")["Policy"])["Statement"]
    same(statement["Sid"], "sharing", "its label")
    same(statement["Effect"], "Allow", "its effect")
    same("111111111111" in json.dumps(statement["Principal"]), True, "presence of the account")
    actions = {action.rpartition(":")[2] for action in statement["Action"]}
    same(actions, {"SendMessage", "ReceiveMessage"}, "the actions")
    c.refused("InvalidParameterValueException", "AddPermission", QueueUrl=url, **add)
    c.call("RemovePermission", QueueUrl=url, Label="sharing")
    c.refused("InvalidParameterValueException", "RemovePermission", QueueUrl=url, Label="sharing")


@scenario
def policy(c):
    url = c.queue()
    allow = {"Version": "2012-10-17", "Statement": [{
        "Sid": "all", "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": c.arn(url),
    }]}
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": json.dumps(allow)})
    same(json.loads(c.attributes(url, "Policy")["Policy"]), allow, "the policy")
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": ""})
    same("Policy" in c.attributes(url), False, "presence of a policy")


# Messages


@scenario
def send_receive_delete(c):
    url = c.queue()
    sent = c.send(url, "hello wörld")
    same(sent["MD5OfMessageBody"], md5("hello wörld"), "the MD5 of the sent message")
    found = c.one(url)
    same((found["Body"], found["MessageId"]), ("hello wörld", sent["MessageId"]), "the message")
    same(found["MD5OfBody"], md5("hello wörld"), "its MD5")
    same(c.receive(url), [], "the visible messages during the lease")
    c.call("DeleteMessage", QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    # A second deletion is not an error.
    c.call("DeleteMessage", QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    c.settled(url, 0, 0, 0)


@scenario
def bodies_as_sent(c):
    url = c.queue()
    sent = [
        "<a href=\"x\">&amp; 'quoted'</a>", " both ends ", "\t\n", "a\r\nb\rc", "{\"json\": [1, null]}", "😀 𝄞 ﷽ 日本",
        "a=b&c=d+e%20f;g", "back\\slash \\u0041", "\u007f\u0085\u2028", "]]>",
    ]
    for body in sent:
        same(c.send(url, body)["MD5OfMessageBody"], md5(body), f"the MD5 of {body!r}")
    found = c.get(url, len(sent))
    same(sorted(bodies(found)), sorted(sent), "the received messages")
    same([m["MD5OfBody"] for m in found], [md5(m["Body"]) for m in found], "the MD5s")


@scenario
def characters_refused(c):
    url = c.queue()
    for body in ["\x00", "a\x0bb", "\x1f", "\ufffe"]:
        c.refused("InvalidMessageContents", "SendMessage", QueueUrl=url, MessageBody=body)


@scenario
def body_256_kib(c):
    url, body = c.queue(), "0123456789abcdef" * 16 * KIB
    c.send(url, body)
    same(md5(c.one(url)["Body"]), md5(body), "the MD5 of the received message")


@scenario
def body_1_mib(c):
    url, body = c.queue(), "0123456789abcdef" * 64 * KIB
    c.send(url, body)
    same(md5(c.one(url)["Body"]), md5(body), "the MD5 of the received message")
    c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody=body + "x")


@scenario
def body_too_long(c):
    url = c.queue(MaximumMessageSize="1024")
    c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x" * 1025)
    attribute = {"StringValue": "x" * 1000, "DataType": "String"}
    c.refused(
        "InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x" * 100, MessageAttributes={"a": attribute}
    )
    c.send(url, "x" * 1024)
    same(len(c.one(url)["Body"]), 1024, "its length")


@scenario
def body_empty_refused(c):
    c.refused("MissingRequiredParameterException", "SendMessage", QueueUrl=c.queue(), MessageBody="")


ATTRIBUTES = {
    "plain": {"StringValue": "größer & <kleiner>", "DataType": "String"},
    "number": {"StringValue": "-12.50", "DataType": "Number"},
    "text.custom": {"StringValue": "x", "DataType": "String.url"},
    "number.custom": {"StringValue": "7", "DataType": "Number.int"},
    "image": {"BinaryValue": b64(b"GIF89a"), "DataType": "Binary.gif"},
}


@scenario
def message_attributes(c):
    url = c.queue()
    sent = c.send(url, MessageAttributes=ATTRIBUTES)
    same(sent["MD5OfMessageAttributes"], md5_of(ATTRIBUTES), "the MD5 of the sent message")
    found = c.one(url, MessageAttributeNames=["All"])
    same(found["MessageAttributes"], ATTRIBUTES, "the attributes")
    same(found["MD5OfMessageAttributes"], md5_of(ATTRIBUTES), "their MD5")


@scenario
def message_attributes_of_all_bytes(c):
    url, attributes = c.queue(), {"binary": {"BinaryValue": b64(bytes(range(256))), "DataType": "Binary"}}
    same(c.send(url, MessageAttributes=attributes)["MD5OfMessageAttributes"], md5_of(attributes), "the MD5 of the sent message")
    same(c.one(url, MessageAttributeNames=["All"])["MessageAttributes"], attributes, "the attributes")


@scenario
def message_attributes_by_name(c):
    url = c.queue(VisibilityTimeout="0")
    c.send(url, MessageAttributes=ATTRIBUTES)
    for asked, expected in [
        (None, set()), (["plain"], {"plain"}), (["text.*"], {"text.custom"}),
        (["number", "image", "none"], {"number", "image"}), ([".*"], set(ATTRIBUTES)), (["none"], set()),
    ]:
        found = c.one(url, **({"MessageAttributeNames": asked} if asked else {}))
        expected = {name: ATTRIBUTES[name] for name in expected}
        same(found.get("MessageAttributes") or {}, expected, f"attributes for {asked}")
        same(found.get("MD5OfMessageAttributes"), md5_of(expected) if expected else None, f"their MD5 for {asked}")


@scenario
def message_attributes_by_asterisk(c):
    url = c.queue()
    c.send(url, MessageAttributes=ATTRIBUTES)
    same(c.one(url, MessageAttributeNames=["*"])["MessageAttributes"], ATTRIBUTES, "all attributes")


@scenario
def message_attributes_refused(c):
    url = c.queue()
    text = lambda value, kind="String": {"StringValue": value, "DataType": kind}
    for attributes in [
        {"empty": text("")}, {"AWS.reserved": text("x")}, {"a b": text("x")}, {"number": text("ten", "Number")},
        {"kind": text("x", "Text")}, {f"n{i}": text("x") for i in range(11)}, {".begin": text("x")}, {"x" * 257: text("x")},
    ]:
        c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    c.settled(url, 0, 0, 0)


@scenario
def system_attributes(c):
    url = c.queue(VisibilityTimeout="0")
    before = time.time() * 1000 - 2000
    c.send(url)
    for count in (1, 2):
        found = c.one(url, AttributeNames=["All"])["Attributes"]
        same(found["ApproximateReceiveCount"], str(count), "the number of receives")
        sent, first = int(found["SentTimestamp"]), int(found["ApproximateFirstReceiveTimestamp"])
        same(before <= sent <= first <= time.time() * 1000 + 2000, True, f"the order of {sent} and {first}")
        same("SenderId" in found, True, "presence of a sender")
    found = c.one(url, AttributeNames=["SentTimestamp"])
    same(set(found["Attributes"]), {"SentTimestamp"}, "the requested attributes")
    same("Attributes" in c.one(url) and bool(c.one(url)["Attributes"]), False, "presence of attributes that were not requested")


@scenario
def system_attributes_new_name(c):
    url = c.queue()
    if c.about["name"] == "boto3-query":
        skip("the library is older than MessageSystemAttributeNames")
    c.send(url)
    same(set(c.one(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])["Attributes"]), {"ApproximateReceiveCount"})


@scenario
def trace_header(c):
    url = c.queue()
    trace = {"AWSTraceHeader": {"StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793", "DataType": "String"}}
    sent = c.send(url, MessageSystemAttributes=trace)
    same(sent.get("MD5OfMessageSystemAttributes"), md5_of(trace), "its MD5")
    found = c.one(url, AttributeNames=["AWSTraceHeader"])["Attributes"]
    same(found, {"AWSTraceHeader": trace["AWSTraceHeader"]["StringValue"]}, "the header")


@scenario
def batch(c):
    url = c.queue()
    entries = [
        {"Id": f"id-{i}", "MessageBody": f"body-{i}", "MessageAttributes": {"n": {"StringValue": str(i), "DataType": "Number"}}}
        for i in range(10)
    ]
    answer = c.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    same(answer.get("Failed") or [], [], "the failed entries")
    sent = {each["Id"]: each for each in answer["Successful"]}
    for entry in entries:
        done = sent[entry["Id"]]
        same(done["MD5OfMessageBody"], md5(entry["MessageBody"]), "an MD5")
        same(done["MD5OfMessageAttributes"], md5_of(entry["MessageAttributes"]), "an MD5 of attributes")
    found = c.get(url, 10, MessageAttributeNames=["All"])
    same({m["MessageId"] for m in found}, {each["MessageId"] for each in sent.values()}, "the ids")
    same({(m["Body"], m["MessageAttributes"]["n"]["StringValue"]) for m in found},
         {(f"body-{i}", str(i)) for i in range(10)}, "the received messages")
    change = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 0} for i, m in enumerate(found)]
    same(len(c.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=change)["Successful"]), 10, "the number of changed messages")
    c.delete(url, *c.get(url, 10))
    c.settled(url, 0, 0, 0)


@scenario
def batch_partly_fails(c):
    url = c.queue()
    entries = [{"Id": "good", "MessageBody": "x"}, {"Id": "bad", "MessageBody": "x", "DelaySeconds": 901}]
    answer = c.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    same([each["Id"] for each in answer["Successful"]], ["good"], "the sent entries")
    [failed] = answer["Failed"]
    same((failed["Id"], failed["SenderFault"]), ("bad", True), "the failed entries")
    same(failed["Code"].removesuffix("Exception"), "InvalidParameterValue", "its code")


@scenario
def batch_delete_partly_fails(c):
    url = c.queue()
    c.send(url)
    receipts = {"good": c.one(url)["ReceiptHandle"], "bad": "nonsense"}
    entries = [{"Id": name, "ReceiptHandle": receipt} for name, receipt in receipts.items()]
    answer = c.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    same([each["Id"] for each in answer.get("Successful") or []], ["good"], "the deleted entries")
    [failed] = answer["Failed"]
    same((failed["Id"], failed["Code"], failed["SenderFault"]), ("bad", "ReceiptHandleIsInvalid", True), "the failed entries")
    c.settled(url, 0, 0, 0)


@scenario
def batch_refused(c):
    url = c.queue()
    entry = lambda name, body="x": {"Id": name, "MessageBody": body}
    for shape, entries in [
        ("EmptyBatchRequest", []),
        ("TooManyEntriesInBatchRequest", [entry(str(i)) for i in range(11)]),
        ("BatchEntryIdsNotDistinct", [entry("a"), entry("a")]),
        ("InvalidBatchEntryId", [entry("a b")]),
        ("InvalidBatchEntryId", [entry("x" * 81)]),
    ]:
        c.refused(shape, "SendMessageBatch", QueueUrl=url, Entries=entries)
    c.settled(url, 0, 0, 0)


@scenario
def batch_too_long(c):
    url = c.queue()
    entries = [{"Id": str(i), "MessageBody": "x" * 150_000} for i in range(8)]
    c.refused("BatchRequestTooLong", "SendMessageBatch", QueueUrl=url, Entries=entries)
    c.settled(url, 0, 0, 0)


@scenario
def many(c):
    url, sent = c.queue(VisibilityTimeout=str(LONG_SECONDS)), numbered(200)
    c.send_all(url, sent)
    found = []
    while len(found) < len(sent):
        some = c.get(url, min(10, len(sent) - len(found)))
        c.delete(url, *some)
        found += bodies(some)
    same(sorted(found), sorted(sent), "the received messages")
    c.settled(url, 0, 0, 0)


@scenario
def counts(c):
    url = c.queue(VisibilityTimeout=str(LONG_SECONDS))
    c.send_all(url, numbered(5))
    c.send(url, DelaySeconds=900)
    c.settled(url, 5, 0, 1)
    found = c.get(url, 2)
    c.settled(url, 3, 2, 1)
    c.delete(url, found[0])
    c.give_back(url, found[1])
    c.settled(url, 4, 0, 1)


@scenario
def receive_refused(c):
    url = c.queue()
    for values in [{"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}, {"WaitTimeSeconds": -1}, {"VisibilityTimeout": 43201}]:
        c.refused("InvalidParameterValueException", "ReceiveMessage", QueueUrl=url, **values)


@scenario
def receive_none_refused(c):
    zeros(c)
    c.refused("InvalidParameterValueException", "ReceiveMessage", QueueUrl=c.queue(), MaxNumberOfMessages=0)


# Waiting


@scenario
def long_poll(c):
    url = c.queue()
    with c.meanwhile(lambda other: other.receive(url, 1, WAIT_SECONDS)) as waits:
        c.send(url)
    same(bodies(waits.result()), ["body"], "the messages of the waiting call")


@scenario
def long_poll_of_queue(c):
    url = c.queue(ReceiveMessageWaitTimeSeconds=str(WAIT_SECONDS))
    receive = lambda other: other.call("ReceiveMessage", QueueUrl=url).get("Messages") or []
    with c.meanwhile(receive) as waits:
        c.send(url)
    same(bodies(waits.result()), ["body"], "the messages of the waiting call")


@scenario
def long_poll_ends(c):
    url, begin = c.queue(), time.monotonic()
    same(c.receive(url, 1, 1), [], "the received messages")
    same(time.monotonic() - begin > 0.9, True, "a wait of one second")


@scenario
def visibility(c):
    url = c.queue(VisibilityTimeout=str(LONG_SECONDS))
    c.send(url)
    found = c.one(url)
    c.give_back(url, found, LONG_SECONDS)
    same(c.receive(url), [], "the visible messages")
    c.give_back(url, found)
    again = c.one(url, AttributeNames=["ApproximateReceiveCount"])
    same((again["MessageId"], again["Attributes"]["ApproximateReceiveCount"]), (found["MessageId"], "2"), "the message again")
    c.delete(url, again)
    c.settled(url, 0, 0, 0)


@scenario
def visibility_none(c):
    """Checks that a call returns each message once, although its lease ends immediately."""
    zeros(c)
    url = c.queue()
    c.send_all(url, numbered(3))
    for count in ("1", "2"):
        found = c.get(url, 3, VisibilityTimeout=0, AttributeNames=["ApproximateReceiveCount"])
        same(sorted(bodies(found)), numbered(3), "the messages of one call")
        same({m["Attributes"]["ApproximateReceiveCount"] for m in found}, {count}, "the number of receives")


@scenario
def visibility_extended_after_its_end(c):
    """Extends an expired lease, as a slow consumer does, before another receiver gets the message."""
    for queue in (c.queue, c.fifo):
        url = queue(VisibilityTimeout="1")
        c.send(url, **(group("a", "d") if queue == c.fifo else {}))
        found = c.one(url)
        c.settled(url, 1, 0, 0)
        c.give_back(url, found, LONG_SECONDS)
        c.settled(url, 0, 1, 0)
        c.delete(url, found)
        c.settled(url, 0, 0, 0)


@scenario
def visibility_of_another_receiver(c):
    """Checks that an old receipt neither extends nor returns a message that another receiver holds."""
    url = c.queue(VisibilityTimeout="1")
    c.send(url)
    first = c.one(url)
    c.one(url, VisibilityTimeout=LONG_SECONDS)
    values = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 9}
    c.refused("InvalidParameterValueException", "ChangeMessageVisibility", **values)
    c.settled(url, 0, 1, 0)


@scenario
def visibility_ends(c):
    url = c.queue(VisibilityTimeout="1")
    c.send(url, "of the queue")
    found = c.one(url)
    same(c.one(url)["MessageId"], found["MessageId"], "the redelivered message")
    c.delete(url, c.one(url, VisibilityTimeout=LONG_SECONDS))
    c.settled(url, 0, 0, 0)
    c.send(url, "of the call")
    found = c.one(url, VisibilityTimeout=LONG_SECONDS)
    same(c.receive(url, 10, 2), [], "the visible messages after the queue's timeout")
    c.give_back(url, found, 1)
    same(c.one(url)["MessageId"], found["MessageId"], "the redelivered message")


@scenario
def old_receipts(c):
    url = c.queue()
    c.send(url)
    first = c.one(url, VisibilityTimeout=1)
    c.one(url)
    c.call("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    c.settled(url, 0, 0, 0)


@scenario
def receipts_refused(c):
    url = c.queue()
    c.refused("ReceiptHandleIsInvalid", "DeleteMessage", QueueUrl=url, ReceiptHandle="nonsense")
    c.refused(
        "ReceiptHandleIsInvalid", "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle="nonsense", VisibilityTimeout=1
    )


@scenario
def visibility_refused(c):
    url = c.queue()
    c.send(url)
    found = c.one(url)["ReceiptHandle"]
    change = lambda shape, seconds: c.refused(
        shape, "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=found, VisibilityTimeout=seconds
    )
    change("InvalidParameterValueException", 43201)
    c.call("DeleteMessage", QueueUrl=url, ReceiptHandle=found)
    change("InvalidParameterValueException", 10)


@scenario
def visibility_not_in_flight(c):
    url = c.queue()
    c.send(url)
    found = c.one(url)
    c.give_back(url, found)
    c.settled(url, 1, 0, 0)
    c.refused(
        "MessageNotInflight", "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=found["ReceiptHandle"], VisibilityTimeout=9
    )


@scenario
def delay(c):
    url = c.queue(DelaySeconds="900")
    c.send(url, "later")
    c.send(url, "soon", DelaySeconds=1)
    same(bodies(c.get(url, 1)), ["soon"], "the received messages")
    same(c.counts(url), [0, 1, 1], "visible, in flight and delayed")
    c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=901)


@scenario
def delay_none(c):
    zeros(c)
    url = c.queue(DelaySeconds="900")
    c.send(url, "now", DelaySeconds=0)
    same(bodies(c.get(url, 1)), ["now"], "the received messages")


@scenario
def purge(c):
    url = c.queue(VisibilityTimeout=str(LONG_SECONDS))
    c.send_all(url, numbered(10))
    c.get(url, 3)
    c.send(url, DelaySeconds=900)
    c.call("PurgeQueue", QueueUrl=url)
    c.settled(url, 0, 0, 0)
    c.send(url, "after")
    same(bodies(c.get(url, 1)), ["after"], "the received messages")


@scenario
def purge_again_refused(c):
    url = c.queue()
    c.call("PurgeQueue", QueueUrl=url)
    c.refused("PurgeQueueInProgress", "PurgeQueue", QueueUrl=url)


# FIFO


def group(name, dedup=None):
    return {"MessageGroupId": name} | ({"MessageDeduplicationId": dedup} if dedup else {})


@scenario
def fifo_order(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    numbers = []
    for i in range(6):
        for name in "ab":
            numbers.append(c.send(url, f"{name}-{i}", **group(name))["SequenceNumber"])
    same(numbers, sorted(numbers), "the sequence numbers")
    same({len(number) for number in numbers}, {20}, "their lengths")
    found = []
    while len(found) < 12:
        # Later messages of a group wait for the messages in flight.
        some = c.get(url, 1, AttributeNames=["All"]) + c.receive(url, AttributeNames=["All"])
        c.delete(url, *some)
        found += some
    for name in "ab":
        of_group = [m for m in found if m["Attributes"]["MessageGroupId"] == name]
        same(bodies(of_group), numbered(6, name), f"group {name}")
        same([m["Attributes"]["SequenceNumber"] for m in of_group], numbers["ab".index(name) :: 2], "its numbers")


@scenario
def fifo_group_waits(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    for body in ["a-0", "a-1", "b-0"]:
        c.send(url, body, **group(body[0]))
    [first] = c.receive(url, 1)
    same(first["Body"], "a-0", "the first")
    same(bodies(c.get(url, 1)), ["b-0"], "the messages while one of a group is in flight")
    same(c.receive(url), [], "the further messages")
    c.delete(url, first)
    same(bodies(c.get(url, 1)), ["a-1"], "the messages after its deletion")


@scenario
def fifo_groups_in_turn(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    for body in ["a-0", "b-0", "a-1", "c-0", "b-1"]:
        c.send(url, body, **group(body[0]))
    first = c.receive(url, 2)
    same(bodies(first), ["a-0", "a-1"], "all of the first group")
    for message in first:
        c.give_back(url, message)
    same(bodies(c.receive(url)), ["b-0", "b-1", "c-0", "a-0", "a-1"], "the first group after the others")


@scenario
def fifo_later_in_flight(c):
    """Checks that a visible message does not wait for a later one of its group, and that the later one waits."""
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    for body in numbered(3):
        c.send(url, body, **group("a"))
    first, second = c.receive(url, 2)
    c.give_back(url, first)
    same(bodies(c.receive(url)), ["body-0"], "the returned message")
    c.give_back(url, second)
    same(c.receive(url), [], "the messages while the first is in flight")


@scenario
def fifo_purge(c):
    url = c.fifo(ContentBasedDeduplication="true")
    c.send(url, "one", **group("a"))
    c.call("PurgeQueue", QueueUrl=url)
    c.send(url, "one", **group("a"))
    same(bodies(c.get(url, 1)), ["one"], "the messages after the purge")


@scenario
def fifo_given_back(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    for body in numbered(3):
        c.send(url, body, **group("a"))
    [first] = c.receive(url, 1)
    c.give_back(url, first)
    same(bodies(c.get(url, 3)), numbered(3), "the redelivered messages")


@scenario
def fifo_receipt_expires(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout="1")
    c.send(url, **group("a"))
    first = c.one(url)
    c.one(url, VisibilityTimeout=LONG_SECONDS)
    c.refused("InvalidParameterValueException", "DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])


@scenario
def fifo_dedup(c):
    url = c.fifo()
    first = c.send(url, "one", **group("a", "same"))
    same(c.send(url, "two", **group("a", "same"))["MessageId"], first["MessageId"], "the id of the second")
    same(c.send(url, "two", **group("b", "same"))["MessageId"], first["MessageId"], "the id in another group")
    c.send(url, "three", **group("a", "other"))
    found = c.get(url, 2, AttributeNames=["All"])
    same(bodies(found), ["one", "three"], "the received messages")
    same(found[0]["Attributes"]["MessageDeduplicationId"], "same", "its id")
    c.delete(url, *found)
    # The id stays after the message is deleted.
    same(c.send(url, "one", **group("a", "same"))["MessageId"], first["MessageId"], "the id after it was deleted")
    c.settled(url, 0, 0, 0)


@scenario
def fifo_dedup_by_content(c):
    url = c.fifo(ContentBasedDeduplication="true")
    first = c.send(url, "same", **group("a"))
    text = {"a": {"StringValue": "attributes do not count", "DataType": "String"}}
    same(c.send(url, "same", MessageAttributes=text, **group("a"))["MessageId"], first["MessageId"], "the id of the second")
    c.send(url, "same", **group("a", "its-own"))
    found = c.get(url, 2, AttributeNames=["All"])
    same(found[0]["Attributes"]["MessageDeduplicationId"], hashlib.sha256(b"same").hexdigest(), "the id by content")
    same(found[1]["Attributes"]["MessageDeduplicationId"], "its-own", "the other's id")


@scenario
def fifo_dedup_scope(c):
    url = c.fifo(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    c.send(url, "a", **group("a", "same"))
    c.send(url, "b", **group("b", "same"))
    c.send(url, "again", **group("b", "same"))
    same(sorted(bodies(c.get(url, 2))), ["a", "b"], "the received messages")
    c.settled(url, 0, 2, 0)


@scenario
def fifo_batch(c):
    url = c.fifo()
    entries = [{"Id": str(i), "MessageBody": str(i)} | group("a", f"d{i}") for i in range(10)]
    answer = c.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    numbers = [each["SequenceNumber"] for each in sorted(answer["Successful"], key=lambda each: int(each["Id"]))]
    same(numbers, sorted(numbers), "the sequence numbers")
    same(bodies(c.get(url, 10)), [str(i) for i in range(10)], "the received messages")


@scenario
def fifo_refused(c):
    url = c.fifo()
    c.refused("MissingRequiredParameterException", "SendMessage", QueueUrl=url, MessageBody="x")
    c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x", **group("a"))
    c.refused("InvalidParameterValueException", "SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=5, **group("a", "b"))
    c.settled(url, 0, 0, 0)


@scenario
def fifo_names_refused(c):
    name = c.queue_name()
    c.refused("InvalidParameterValueException", "CreateQueue", QueueName=name, Attributes={"FifoQueue": "true"})
    c.refused("InvalidParameterValueException", "CreateQueue", QueueName=f"{name}.fifo")


@scenario
def fifo_attributes_refused(c):
    url = c.queue()
    c.refused("InvalidAttributeName", "SetQueueAttributes", QueueUrl=url, Attributes={"ContentBasedDeduplication": "true"})
    c.refused("InvalidAttributeValue", "SetQueueAttributes", QueueUrl=c.fifo(), Attributes={"FifoQueue": "false"})


@scenario
def fifo_receive_attempt(c):
    url = c.fifo(ContentBasedDeduplication="true", VisibilityTimeout=str(LONG_SECONDS))
    for body in numbered(4):
        c.send(url, body, **group("a"))
    first = c.receive(url, 2, ReceiveRequestAttemptId="once")
    again = c.receive(url, 2, ReceiveRequestAttemptId="once")
    same(bodies(again), bodies(first), "the messages of the repeated attempt")
    same(bodies(first), numbered(2), "the messages of the first attempt")
    same(c.receive(url, 2, ReceiveRequestAttemptId="twice"), [], "the messages of another attempt while the group is in flight")


@scenario
def fair_groups(c):
    url = c.queue(VisibilityTimeout=str(LONG_SECONDS))
    c.send(url, "grouped", MessageGroupId="tenant")
    c.send(url, "plain")
    found = {m["Body"]: m.get("Attributes") or {} for m in c.get(url, 2, AttributeNames=["All"])}
    same(found["grouped"]["MessageGroupId"], "tenant", "its group")
    same("MessageGroupId" in found["plain"], False, "presence of a group in the other message")


# Dead letters


def with_dead(c, attempts=1, **attributes):
    """Creates a queue and its dead-letter queue, both FIFO or both standard."""
    kind = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if "FifoQueue" in attributes else {}
    dead = c.queue("dead", **kind)
    redrive = {"deadLetterTargetArn": c.arn(dead), "maxReceiveCount": attempts}
    return c.queue(VisibilityTimeout="0", RedrivePolicy=json.dumps(redrive), **(attributes | kind)), dead


@scenario
def dead_letter(c):
    url, dead = with_dead(c, 2)
    sent = c.send(url, "poison", MessageAttributes=ATTRIBUTES)
    for count in ("1", "2"):
        same(c.one(url, AttributeNames=["All"])["Attributes"]["ApproximateReceiveCount"], count, "the number of receives")
    same(c.receive(url), [], "the messages after the last attempt")
    # The dead letter is available as soon as the source no longer returns the message.
    [found] = c.receive(dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    same((found["Body"], found["MessageId"]), ("poison", sent["MessageId"]), "the dead letter")
    same(found["Attributes"]["ApproximateReceiveCount"], "3", "the number of all receives")
    same(found["MessageAttributes"], ATTRIBUTES, "its attributes")
    c.settled(url, 0, 0, 0)


@scenario
def dead_letter_source(c):
    url, dead = with_dead(c)
    c.send(url, "poison")
    c.one(url)
    c.receive(url)
    found = c.one(dead, AttributeNames=["All"])["Attributes"]
    same(found.get("DeadLetterQueueSourceArn"), c.arn(url), "the source queue")
    answer = c.call("ListDeadLetterSourceQueues", QueueUrl=dead)
    # The service has two names for a list of URLs. The library for Go has only one.
    same(answer.get("queueUrls") or answer.get("QueueUrls"), [url], "the list")


@scenario
def dead_letter_fifo(c):
    url, dead = with_dead(c, FifoQueue="true")
    for body in numbered(3):
        c.send(url, body, **group("a"))
    same(bodies(c.receive(url, 1)), ["body-0"], "the first")
    same(bodies(c.receive(url, 1)), ["body-1"], "the second, once the first is dead")
    found = c.one(dead, AttributeNames=["All"])
    same((found["Body"], found["Attributes"]["MessageGroupId"]), ("body-0", "a"), "the dead letter")


@scenario
def dead_letter_attributes(c):
    url, dead = with_dead(c, 3)
    found = json.loads(c.attributes(url, "RedrivePolicy")["RedrivePolicy"])
    same((found["deadLetterTargetArn"], int(found["maxReceiveCount"])), (c.arn(dead), 3), "the policy")
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [c.arn(url)]}
    c.call("SetQueueAttributes", QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(allow)})
    same(json.loads(c.attributes(dead, "RedriveAllowPolicy")["RedriveAllowPolicy"]), allow, "the policy for sources")
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    same("RedrivePolicy" in c.attributes(url), False, "presence of the policy")


@scenario
def dead_letter_refused(c):
    url, arn = c.queue(), c.arn(c.queue("dead"))
    for redrive in [
        {"deadLetterTargetArn": arn, "maxReceiveCount": 0}, {"deadLetterTargetArn": arn, "maxReceiveCount": 1001},
        {"deadLetterTargetArn": arn}, {"maxReceiveCount": 3},
    ]:
        values = {"QueueUrl": url, "Attributes": {"RedrivePolicy": json.dumps(redrive)}}
        c.refused("InvalidParameterValueException", "SetQueueAttributes", **values)


def dead_letters(c, count):
    url, dead = with_dead(c)
    c.send_all(url, numbered(count))
    seen = []
    until("all messages are received once", lambda: seen.extend(c.receive(url)) or len(seen) >= count)
    until("all messages are dead letters", lambda: c.receive(url) == [] and c.counts(dead)[0] == count)
    return url, dead


@scenario
def move_task(c):
    url, dead = dead_letters(c, 5)
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": str(LONG_SECONDS)})
    c.call("StartMessageMoveTask", SourceArn=c.arn(dead))
    tasks = lambda: c.call("ListMessageMoveTasks", SourceArn=c.arn(dead))["Results"]
    until("the task is completed", lambda: tasks()[0]["Status"] == "COMPLETED")
    [task] = tasks()
    same((task["SourceArn"], task["ApproximateNumberOfMessagesMoved"]), (c.arn(dead), 5), "the task")
    same(sorted(bodies(c.get(url, 5))), numbered(5), "the moved messages")
    c.settled(dead, 0, 0, 0)


@scenario
def move_task_elsewhere(c):
    _, dead = dead_letters(c, 3)
    other = c.queue("other")
    c.call("StartMessageMoveTask", SourceArn=c.arn(dead), DestinationArn=c.arn(other), MaxNumberOfMessagesPerSecond=500)
    same(sorted(bodies(c.get(other, 3))), numbered(3), "the received messages")


@scenario
def move_task_cancel(c):
    _, dead = dead_letters(c, 20)
    arn = c.arn(dead)
    handle = c.call("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    task = json.loads(base64.b64decode(handle))
    same((re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", task["taskId"]) is not None, task["sourceArn"]), (True, arn), "the handle")
    moved = c.call("CancelMessageMoveTask", TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    same(moved < 20, True, f"the result of {moved} < 20 moved messages")
    tasks = lambda: c.call("ListMessageMoveTasks", SourceArn=arn)["Results"]
    until("the task is cancelled", lambda: tasks()[0]["Status"] == "CANCELLED")


@scenario
def move_task_refused(c):
    arn = c.arn(c.queue())
    c.refused("InvalidParameterValueException", "StartMessageMoveTask", SourceArn=arn)
    c.refused("ResourceNotFoundException", "StartMessageMoveTask", SourceArn=arn.rsplit(":", 1)[0] + ":" + c.name("none"))


# Signatures


@contextlib.contextmanager
def signed(c, key=None, secret=None):
    """Yields a session at the server that verifies signatures, with the given keys or by default the valid ones."""
    address = os.environ.get("COMPAT_SIGNED") or skip("COMPAT_SIGNED is not set")
    keys = {
        "AWS_ACCESS_KEY_ID": key or os.environ["COMPAT_USER"], "AWS_SECRET_ACCESS_KEY": secret or os.environ["COMPAT_PASSWORD"],
    }
    own = drivers.Drivers(c.drivers.command, env(address) | keys)
    try:
        with own.one() as driver:
            yield Session(own, driver, c.scenario)
    finally:
        own.close()


@scenario
def signature(c):
    with signed(c) as known:
        url = known.queue()
        known.send(url, "wörld & <more>", MessageAttributes=ATTRIBUTES)
        same(known.one(url)["Body"], "wörld & <more>", "the received messages")


@scenario
def signature_refused(c):
    for key, secret, code in [(None, "wrong", "SignatureDoesNotMatch"), ("nobody", None, "InvalidClientTokenId")]:
        with signed(c, key, secret) as stranger:
            try:
                stranger.call("ListQueues")
            except Refused as error:
                same(any(name.endswith(code) for name in error.names), True, f"presence of {code} in {error}")
            else:
                fail(f"the call was not refused, but should be: {code}")


# Requests without a library


XML = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def by_hand(c, url, **values):
    """Sends a request of the Query protocol without a library, and returns the status and the XML."""
    at = c.drivers.env["AWS_ENDPOINT_URL"] + urllib.parse.urlsplit(url).path
    credential = "test/20260101/us-east-1/sqs/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=none"}
    data = urllib.parse.urlencode({"Version": "2012-11-05"} | values).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(at, data, headers), timeout=WAIT_SECONDS) as answer:
            return answer.status, xml.etree.ElementTree.fromstring(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, xml.etree.ElementTree.fromstring(error.read())


@scenario
def query_by_hand(c):
    """Checks that both protocols reach one queue, and that the queue's URL accepts requests of the Query protocol."""
    url, body = c.queue(), "<a> & 'b'\r\n"
    status, answer = by_hand(c, url, Action="SendMessage", MessageBody=body)
    same((status, answer.tag), (200, f"{XML}SendMessageResponse"), "status and answer")
    same(answer.findtext(f".//{XML}MD5OfMessageBody"), md5(body), "the MD5")
    found = c.one(url, VisibilityTimeout=1)
    same((found["Body"], found["MessageId"]), (body, answer.findtext(f".//{XML}MessageId")), "the message of the library")
    wait = {"Action": "ReceiveMessage", "WaitTimeSeconds": "5", "AttributeName.1": "All"}
    status, answer = by_hand(c, url, **wait)
    same((status, answer.findtext(f".//{XML}Body")), (200, body), "status and body")
    names = [each.text for each in answer.iter(f"{XML}Name")]
    same("ApproximateReceiveCount" in names, True, f"presence of the count in {names}")


@scenario
def query_by_hand_refused(c):
    status, answer = by_hand(c, "/", Action="GetQueueUrl", QueueName=c.queue_name("none"))
    plain = {each.tag.removeprefix(XML): each.text for each in answer.iter()}
    same((status, plain["Code"], plain["Type"]), (400, "AWS.SimpleQueueService.NonExistentQueue", "Sender"), "the error")
    same(answer.tag, f"{XML}ErrorResponse", "the answer")


def fetch_json(c, path, accept="application/json", **values):
    at = c.drivers.env["AWS_ENDPOINT_URL"] + path + "?" + urllib.parse.urlencode(values)
    request = urllib.request.Request(at, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@scenario
def query_in_json(c):
    """Checks that a query that accepts JSON gets the form that is documented for the integrations of API Gateway."""
    url = c.queue()
    path = urllib.parse.urlsplit(url).path
    answer = fetch_json(c, path, Action="GetQueueAttributes", **{"AttributeName.1": "QueueArn"})
    listed = {"Attributes": [{"Name": "QueueArn", "Value": c.arn(url)}]}
    same((answer[0], answer[1]["GetQueueAttributesResponse"]["GetQueueAttributesResult"]), (200, listed), "the attributes")
    status, answer = fetch_json(c, path, Action="ListQueues")
    same((status, answer["Error"]["Code"]), (400, "InvalidAction"), "the error")


@scenario
def peek(c):
    """Reads messages through LocalStack's endpoint, without receiving them."""
    url = c.queue()
    c.send_all(url, numbered(2))
    status, answer = fetch_json(c, "/_aws/sqs/messages", QueueUrl=url)
    found = answer["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]
    same((status, sorted(m["Body"] for m in found)), (200, numbered(2)), "the messages")
    same(c.counts(url), [2, 0, 0], "visible, in flight and delayed")
    status, answer = fetch_json(c, "/_aws/sqs/messages", QueueUrl=url + "-none")
    same((status, answer["ErrorResponse"]["Error"]["Code"]), (404, CODES["QueueDoesNotExist"]), "the error")


@scenario
def queue_of_another_host(c):
    """Checks that the URL of another host is refused, although a queue with its path exists here."""
    url = urllib.parse.urlsplit(c.queue())._replace(netloc="queues.example.com:80").geturl()
    status, answer = by_hand(c, "/", Action="GetQueueAttributes", QueueUrl=url)
    same((status, answer.findtext(f".//{XML}Code")), (404, "InvalidAddress"), "the error")


# Typical programs


@scenario
def workers(c):
    """Runs four receivers until all messages are processed, each once. Every fifth message is returned once."""
    url, count = c.queue(VisibilityTimeout=str(LONG_SECONDS)), 60
    done, given_back, lock = [], set(), threading.Lock()

    def work(worker):
        while len(done) < count:
            for message in worker.receive(url, 3, 1):
                with lock:
                    is_first = int(message["Body"]) % 5 == 0 and message["Body"] not in given_back
                    given_back.add(message["Body"]) if is_first else done.append(message["Body"])
                if is_first:
                    worker.give_back(url, message)
                else:
                    worker.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    with c.meanwhile(work) as one, c.meanwhile(work) as two:
        c.send_all(url, [str(i) for i in range(count)])
        work(c)
        one.result(), two.result()
    same(sorted(map(int, done)), list(range(count)), "the processed messages")
    c.settled(url, 0, 0, 0)


if __name__ == "__main__":
    drivers.main(SCENARIOS, Session, env)
