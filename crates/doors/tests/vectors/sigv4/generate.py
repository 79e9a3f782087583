"""Writes botocore.jsonl and suite.jsonl, as README.md says."""

import calendar
import datetime
import json
import pathlib
import random
import sys
from unittest import mock
from urllib.parse import quote, urlsplit

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

HERE = pathlib.Path(__file__).parent
KEYS = {
    "AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "AKIAIOSFODNN7EXAMPLE": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "123456789012": "test",
}
HOSTS = ["http://localhost:9324", "https://sqs.eu-west-1.amazonaws.com", "http://127.0.0.1:80", "https://[::1]:8443"]
REGIONS = ["us-east-1", "eu-central-2", "cn-north-1", "us-gov-west-1"]
SEGMENTS = ["queue", "000000000000", "jobs.fifo", "a b", "ü€", "%", "..", ".", "", "a~b-c_d.e", "x+y", "@:;=,!$&'()*"]
NAMES = ["Action", "a", "A", "a-b", "Attribute.1.Name", "ü", "a b", "x+y", "z=", "~"]
VALUES = ["", "SendMessage", "a&b=c", "100%", "😀", "\r\n\t", "/slash/", "+", "~", "*"]
HEADERS = [
    ("Content-Type", ["application/x-amz-json-1.0", "application/x-www-form-urlencoded; charset=utf-8"]),
    ("X-Amz-Target", ["AmazonSQS.SendMessage", "AmazonSQS.ReceiveMessage"]),
    ("X-Custom", ["  two  spaces ", "a,b", "\tTab\t\tbed", "ALL Caps", "", '"quoted  text"']),
    ("amz-sdk-invocation-id", ["0f1f2f3f-0000-4000-8000-000000000000"]),
    ("User-Agent", ["Boto3/1.44 not signed"]),
    ("X-Amzn-Query-Mode", ["true"]),
]
BODIES = ["", "{}", '{"MessageBody":"h\u00e9llo \\u20ac"}', "Action=SendMessage&MessageBody=a+b%20c", "x" * 300, "\n"]


def random_request(chosen):
    path = "".join("/" + quote(part, safe="") for part in chosen.choices(SEGMENTS, k=chosen.randrange(5)))
    if chosen.random() < 0.3:
        path = "/"
    pairs = [(name, chosen.choice(VALUES)) for name in chosen.sample(NAMES, chosen.choice([0, 0, 1, 3, 6]))]
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
    headers = {name: chosen.choice(values) for name, values in HEADERS if chosen.random() < 0.4}
    return path, query, headers


def sent(request, at, key, region):
    """The request as it crosses the wire."""
    url = urlsplit(request.url)
    headers = [["Host", SigV4Auth(None, "", "").headers_to_sign(request)["host"]]]
    headers += [[name, value] for name, value in request.headers.items()]
    body = request.body or b""
    return {
        "method": request.method, "path": url.path, "query": url.query, "headers": headers, "body": body.decode(),
        "at": at, "access_key": key, "region": region,
    }


def by_botocore(number):
    chosen = random.Random(number)
    key, region = chosen.choice(list(KEYS)), chosen.choice(REGIONS)
    path, query, headers = random_request(chosen)
    at = chosen.randrange(1_500_000_000, 2_500_000_000)
    credentials = Credentials(key, KEYS[key], chosen.choice([None, None, "to/ken+=="]))
    url = chosen.choice(HOSTS) + path + ("?" + query if query else "")
    is_in_query = number % 3 == 0
    if is_in_query:
        signer = SigV4QueryAuth(credentials, "sqs", region, expires=chosen.choice([1, 60, 3600, 604_800]))
        request = AWSRequest(method="GET", url=url, headers=headers)
    else:
        signer = SigV4Auth(credentials, "sqs", region)
        if chosen.random() < 0.1:
            headers["Date"] = "is replaced"
        request = AWSRequest(method=chosen.choice(["POST", "GET", "PUT"]), url=url, headers=headers,
                             data=chosen.choice(BODIES).encode())
        if url.startswith("https") and chosen.random() < 0.3:
            request.context["payload_signing_enabled"] = False
    now = datetime.datetime.fromtimestamp(at, datetime.timezone.utc).replace(tzinfo=None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now):
        signer.add_auth(request)
    return {"name": f"botocore-{number}-{'query' if is_in_query else 'header'}", "service": "sqs",
            **sent(request, at, key, region)}


def by_suite(folder, form):
    file = folder / "context.json"
    if not file.exists():
        # Two that are older say neither whose they are nor when they were signed.
        return None
    context = json.loads(file.read_text())
    if not context["normalize"]:
        return None
    if context.get("omit_session_token") and form == "query":
        # Its token is put into the query after that was signed.
        return None
    head, _, body = (folder / f"{form}-signed-request.txt").read_text().partition("\n\n")
    first, *lines = head.split("\n")
    method, _, rest = first.partition(" ")
    path, _, query = rest.rpartition(" ")[0].partition("?")
    headers = []
    for line in lines:
        if line.startswith(" "):
            # A line that goes on, as a server reads it.
            headers[-1][1] += " " + line.strip()
        else:
            headers.append(line.split(":", 1))
    moment = datetime.datetime.strptime(context["timestamp"], "%Y-%m-%dT%H:%M:%SZ")
    return {
        "name": f"{folder.name}-{form}", "service": context["service"], "method": method, "path": path, "query": query,
        "headers": headers, "body": body.strip("\n"), "at": calendar.timegm(moment.timetuple()),
        "access_key": context["credentials"]["access_key_id"], "region": context["region"],
    }


def write(name, requests):
    lines = [json.dumps(request, ensure_ascii=False) + "\n" for request in requests if request]
    (HERE / name).write_text("".join(lines))
    print(f"{name}: {len(lines)} requests")


def main():
    suite = sorted(folder for folder in pathlib.Path(sys.argv[1]).iterdir() if folder.is_dir())
    write("botocore.jsonl", [by_botocore(number) for number in range(150)])
    write("suite.jsonl", [by_suite(folder, form) for folder in suite for form in ("header", "query")])


if __name__ == "__main__":
    main()
