"""Driver of REST without a library: each call of the service is a request with JSON, by the mapping of its API."""

import json
import os
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "suite"))

import driver

ADDRESS = os.environ["PUBSUB_EMULATOR_HOST"]
LIMIT_SECONDS = 50
# Methods and paths of the calls. Names in braces are replaced by values. The other values are the body, or the query of
# a request without a body. `topic.name` is a member of a member.
CALLS = {
    "CreateTopic": "PUT {name}", "UpdateTopic": "PATCH {topic.name}", "Publish": "POST {topic}:publish",
    "GetTopic": "GET {topic}", "ListTopics": "GET {project}/topics", "DeleteTopic": "DELETE {topic}",
    "ListTopicSubscriptions": "GET {topic}/subscriptions", "ListTopicSnapshots": "GET {topic}/snapshots",
    "DetachSubscription": "POST {subscription}:detach",
    "CreateSubscription": "PUT {name}", "GetSubscription": "GET {subscription}",
    "UpdateSubscription": "PATCH {subscription.name}", "ListSubscriptions": "GET {project}/subscriptions",
    "DeleteSubscription": "DELETE {subscription}", "ModifyAckDeadline": "POST {subscription}:modifyAckDeadline",
    "Acknowledge": "POST {subscription}:acknowledge", "Pull": "POST {subscription}:pull",
    "ModifyPushConfig": "POST {subscription}:modifyPushConfig", "Seek": "POST {subscription}:seek",
    "GetSnapshot": "GET {snapshot}", "ListSnapshots": "GET {project}/snapshots", "CreateSnapshot": "PUT {name}",
    "UpdateSnapshot": "PATCH {snapshot.name}", "DeleteSnapshot": "DELETE {snapshot}",
    "CreateSchema": "POST {parent}/schemas", "GetSchema": "GET {name}", "ListSchemas": "GET {parent}/schemas",
    "ListSchemaRevisions": "GET {name}:listRevisions", "CommitSchema": "POST {name}:commit",
    "RollbackSchema": "POST {name}:rollback", "DeleteSchemaRevision": "DELETE {name}:deleteRevision",
    "DeleteSchema": "DELETE {name}", "ValidateSchema": "POST {parent}/schemas:validate",
    "ValidateMessage": "POST {parent}/schemas:validateMessage",
    "SetIamPolicy": "POST {resource}:setIamPolicy", "GetIamPolicy": "GET {resource}:getIamPolicy",
    "TestIamPermissions": "POST {resource}:testIamPermissions",
}


class Refused(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        error = json.loads(text)["error"]
        if error["code"] != status:
            raise ValueError(f"the status is {status}, and in the body {error['code']}")
        self.names = [error["status"]]


def call(name, values):
    if name not in CALLS:
        raise driver.Missing("there are no streams in REST")
    method, path = CALLS[name].split(" ")
    values = dict(values)
    begin, end = path.index("{"), path.index("}")
    *outer, inner = path[begin + 1 : end].split(".")
    resource = values[outer[0]][inner] if outer else values.pop(inner)
    path = f"/v1/{urllib.parse.quote(resource)}{path[end + 1:]}"
    if name == "CreateSchema":
        return request(method, path, values["schema"], {"schemaId": values["schemaId"]})
    if name.startswith("List"):
        return pages(method, path, values)
    if method in ("GET", "DELETE"):
        return request(method, path, None, values)
    return request(method, path, values)


def pages(method, path, values):
    items, token = [], {}
    while True:
        page = request(method, path, None, values | token)
        items += next((each for each in page.values() if isinstance(each, list)), [])
        if not page.get("nextPageToken"):
            return {"items": items}
        token = {"pageToken": page["nextPageToken"]}


def request(method, path, body=None, query=None):
    url = f"http://{ADDRESS}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT_SECONDS) as answer:
            return json.loads(answer.read() or "{}")
    except urllib.error.HTTPError as error:
        raise Refused(error.code, error.read().decode()) from error


driver.main("pubsub-rest", "v1", call)
