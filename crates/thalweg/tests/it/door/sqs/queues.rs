//! Queues: created, found, described, changed, tagged, purged, deleted.

use serde_json::{Value, json};

use super::client::{ARN, NOW, Sqs, each};
use crate::support::server::Server;

#[tokio::test]
async fn a_queue_is_created_once_and_described() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"DelaySeconds": "5"})).await;
    assert_eq!(sqs.create("q", json!({})).await, url);
    assert_eq!(sqs.create("q", json!({"DelaySeconds": "5"})).await, url);
    let other = sqs.call("CreateQueue", json!({"QueueName": "q", "Attributes": {"DelaySeconds": "6"}})).await;
    let text = "A queue already exists with the same name and a different value for attribute DelaySeconds";
    assert_eq!(other.error(), (400, "QueueAlreadyExists".into(), text.into()));
    assert_eq!(other.json()["__type"], "com.amazonaws.sqs#QueueNameExists");
    let found = sqs.call("GetQueueUrl", json!({"QueueName": "q"})).await.ok();
    assert_eq!(found["QueueUrl"], url);

    let all = sqs.call("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": ["All"]})).await.ok();
    let mut all = all["Attributes"].clone();
    let members = all.as_object_mut().expect("an object");
    for time in ["CreatedTimestamp", "LastModifiedTimestamp"] {
        let time = members.remove(time).expect("a time");
        assert!(time.as_str().and_then(|s| s.parse::<u64>().ok()).is_some_and(|s| s > 1_700_000_000), "{time}");
    }
    let expected = json!({
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "5",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": format!("{ARN}q"),
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    });
    assert_eq!(all, expected);
    let none = sqs.call("GetQueueAttributes", json!({"QueueUrl": url})).await;
    assert_eq!(none.body, "{}");
    let unknown = sqs.call("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": ["x"]})).await;
    assert_eq!(unknown.code(), "InvalidAttributeName");
}

#[tokio::test]
async fn names_are_those_of_the_service() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let create = async |name: &str, fifo: Option<&str>| {
        let attributes = fifo.map_or(json!({}), |fifo| json!({"FifoQueue": fifo}));
        sqs.call("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await
    };
    for (name, fifo) in
        [("a-b_C1", None), (&*"x".repeat(80), None), (&*format!("{}.fifo", "x".repeat(75)), Some("true"))]
    {
        create(name, fifo).await.ok();
    }
    let wrong = [
        ("a.b", None),
        ("a b", None),
        ("", None),
        (&*"x".repeat(81), None),
        ("a.fifo", None),
        (".fifo", Some("true")),
        ("a", Some("true")),
        (&*format!("{}.fifo", "x".repeat(76)), Some("true")),
    ];
    for (name, fifo) in wrong {
        let code = create(name, fifo).await.code();
        let expected = if name.is_empty() { "MissingParameter" } else { "InvalidParameterValue" };
        assert_eq!(code, expected, "{name}");
    }
    let missing = create("a.fifo", None).await.error().2;
    assert!(missing.contains("the attribute FifoQueue is missing"), "{missing}");
    // Flags are accepted in any case, as by AWS.
    for (name, flag) in [("b.fifo", "True"), ("c.fifo", "TRUE")] {
        create(name, Some(flag)).await.ok();
        let url = sqs.call("GetQueueUrl", json!({"QueueName": name})).await.ok()["QueueUrl"].clone();
        let url = url.as_str().expect("a URL");
        assert_eq!(sqs.attribute(url, "FifoQueue").await, "true");
        let set = json!({"ContentBasedDeduplication": "TRUE", "SqsManagedSseEnabled": "False"});
        sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": set})).await.ok();
        assert_eq!(sqs.attribute(url, "ContentBasedDeduplication").await, "true");
        assert_eq!(sqs.attribute(url, "SqsManagedSseEnabled").await, "false");
    }
    assert_eq!(create("standard", Some("false")).await.code(), "InvalidAttributeName");
}

#[tokio::test]
async fn requests_for_a_missing_queue_are_refused_as_such() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    sqs.call("DeleteQueue", json!({"QueueUrl": url})).await.ok();
    let missing = sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "x"})).await;
    let name = "AWS.SimpleQueueService.NonExistentQueue".to_owned();
    assert_eq!(missing.error(), (400, name.clone(), "The specified queue does not exist.".into()));
    assert_eq!(missing.json()["__type"], "com.amazonaws.sqs#QueueDoesNotExist");
    assert_eq!(missing.header("x-amzn-query-error"), format!("{name};Sender"));
    for action in ["DeleteQueue", "PurgeQueue", "ReceiveMessage", "ListQueueTags", "GetQueueAttributes"] {
        assert_eq!(sqs.call(action, json!({"QueueUrl": url})).await.code(), name, "{action}");
    }
    assert_eq!(sqs.call("GetQueueUrl", json!({"QueueName": "q"})).await.code(), name);
    let nowhere = sqs.call("PurgeQueue", json!({"QueueUrl": "http://x/y/z/w/v"})).await;
    assert_eq!(nowhere.code(), "InvalidAddress");
    assert_eq!(sqs.create("q", json!({})).await, url, "the name is free again");
    assert!(sqs.receive(&url, 10, NOW).await.is_empty());
}

#[tokio::test]
async fn a_cooldown_is_kept_where_it_is_asked_for() {
    let server = Server::with(&["sqs_cooldown_s=60"]);
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    sqs.send_body(&url, "x").await;
    let purge = async || sqs.call("PurgeQueue", json!({"QueueUrl": url})).await;
    purge().await.ok();
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
    let text = "Only one PurgeQueue operation on q is allowed every 60 seconds.";
    assert_eq!(purge().await.error(), (403, "AWS.SimpleQueueService.PurgeQueueInProgress".into(), text.into()));
    sqs.call("DeleteQueue", json!({"QueueUrl": url})).await.ok();
    let again = sqs.call("CreateQueue", json!({"QueueName": "q"})).await;
    assert_eq!(again.code(), "AWS.SimpleQueueService.QueueDeletedRecently");
}

#[tokio::test]
async fn queues_are_listed_by_prefix_and_page() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    assert_eq!(sqs.call("ListQueues", json!({})).await.body, "{}");
    let mut urls = Vec::new();
    for name in ["a1", "a2", "a3", "a4", "b1"] {
        urls.push(sqs.create(name, json!({})).await);
    }
    let list = async |request: Value| sqs.call("ListQueues", request).await.ok();
    assert_eq!(list(json!({})).await, json!({"QueueUrls": urls}));
    assert_eq!(list(json!({"QueueNamePrefix": "b"})).await, json!({"QueueUrls": urls[4..]}));
    let mut found = Vec::new();
    let mut token = Value::Null;
    let mut pages = 0;
    loop {
        let mut page = list(json!({"QueueNamePrefix": "a", "MaxResults": 2, "NextToken": token})).await;
        found.extend(page["QueueUrls"].as_array().expect("a list").clone());
        pages += 1;
        token = page["NextToken"].take();
        if token.is_null() {
            break;
        }
    }
    assert_eq!((Value::from(found), pages), (json!(urls[..4]), 2));
    for wrong in [json!({"MaxResults": 0}), json!({"MaxResults": 1001}), json!({"NextToken": "%"})] {
        assert_eq!(sqs.call("ListQueues", wrong).await.code(), "InvalidParameterValue");
    }
}

#[tokio::test]
async fn accounts_and_regions_have_queues_of_their_own() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let signed = |account: &str, region: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential={account}/20261122/{region}/sqs/aws4_request, SignedHeaders=host, Signature=0"
        )
    };
    let homes = [("AKIDEXAMPLE", "us-east-1"), ("111111111111", "us-east-1"), ("AKIDEXAMPLE", "eu-west-1")];
    let accounts = ["000000000000", "111111111111", "000000000000"];
    for (i, (key, region)) in homes.iter().enumerate() {
        let authorization = signed(key, region);
        let headers = [("authorization", &*authorization)];
        let call = async |action: &str, body: Value| sqs.call_with(action, body, &headers).await.ok();
        let url = call("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
        call("SendMessage", json!({"QueueUrl": url, "MessageBody": i.to_string()})).await;
        assert_eq!(call("ListQueues", json!({})).await, json!({"QueueUrls": [url]}));
        let request = json!({"QueueUrl": "q", "AttributeNames": ["QueueArn"]});
        let arn = call("GetQueueAttributes", request).await["Attributes"]["QueueArn"].clone();
        assert_eq!(arn, format!("arn:aws:sqs:{region}:{}:q", accounts[i]));
        // The URL contains the account, so that no signature is needed for it.
        let got = sqs.receive(url.as_str().expect("text"), 10, 5).await;
        assert_eq!(each(&got, "Body"), [i.to_string()]);
    }
    let owner = json!({"QueueName": "q", "QueueOwnerAWSAccountId": "111111111111"});
    let url = sqs.call("GetQueueUrl", owner).await.ok();
    assert_eq!(url["QueueUrl"], format!("http://{}/111111111111/q", server.sqs));
}

#[tokio::test]
async fn attributes_are_changed_or_nothing_is() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let set = async |attributes: Value| {
        sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": attributes})).await
    };
    set(json!({"VisibilityTimeout": "60", "Policy": "{\"Statement\":[]}"})).await.ok();
    assert_eq!(sqs.attribute(&url, "VisibilityTimeout").await, "60");
    let wrong = set(json!({"VisibilityTimeout": "90", "DelaySeconds": "901"})).await;
    let text = "Invalid value for the parameter DelaySeconds.";
    assert_eq!(wrong.error(), (400, "InvalidAttributeValue".into(), text.into()));
    assert_eq!(sqs.attribute(&url, "VisibilityTimeout").await, "60");
    assert_eq!(set(json!({"FifoQueue": "true"})).await.error().2, "Unknown Attribute FifoQueue.");
    set(json!({"Policy": ""})).await.ok();
    assert_eq!(sqs.attribute(&url, "Policy").await, Value::Null);
    let fifo = sqs.create_fifo("q.fifo", json!({})).await;
    let request = json!({"QueueUrl": fifo, "Attributes": {"FifoQueue": "false"}});
    let text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.";
    assert_eq!(sqs.call("SetQueueAttributes", request).await.error().2, text);
}

#[tokio::test]
async fn tags_and_permissions_are_kept() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let created = json!({"QueueName": "q", "tags": {"a": "1", "b": ""}});
    let url = sqs.call("CreateQueue", created).await.ok()["QueueUrl"].as_str().expect("a URL").to_owned();
    let tags = async || sqs.call("ListQueueTags", json!({"QueueUrl": url})).await;
    assert_eq!(tags().await.ok(), json!({"Tags": {"a": "1", "b": ""}}));
    sqs.call("TagQueue", json!({"QueueUrl": url, "Tags": {"b": "2", "c": "\u{e4}=,"}})).await.ok();
    sqs.call("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["a", "nothing"]})).await.ok();
    assert_eq!(tags().await.ok(), json!({"Tags": {"b": "2", "c": "\u{e4}=,"}}));
    sqs.call("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["b", "c"]})).await.ok();
    assert_eq!(tags().await.body, "{}");

    let add = async |label: &str, action: &str| {
        let request = json!({"QueueUrl": url, "Label": label, "Actions": [action],
            "AWSAccountIds": ["111111111111", "222222222222"]});
        sqs.call("AddPermission", request).await
    };
    add("crossaccount", "ReceiveMessage").await.ok();
    let policy = sqs.attribute(&url, "Policy").await;
    let policy: Value = serde_json::from_str(policy.as_str().expect("text")).expect("JSON");
    let statement = json!({
        "Sid": "crossaccount",
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]},
        "Action": "SQS:ReceiveMessage",
        "Resource": format!("{ARN}q"),
    });
    let expected = json!({"Version": "2008-10-17", "Id": format!("{ARN}q/SQSDefaultPolicy"), "Statement": [statement]});
    assert_eq!(policy, expected);
    let text = "Value crossaccount for parameter Label is invalid. Reason: Already exists.";
    assert_eq!(add("crossaccount", "SendMessage").await.error(), (400, "InvalidParameterValue".into(), text.into()));
    assert!(add("other", "Nonsense").await.error().2.contains("SQS:Nonsense"));
    // "Cross-account permissions don't apply to the following actions" (AddPermission, Amazon SQS API Reference).
    for owners in ["CreateQueue", "TagQueue", "StartMessageMoveTask", "ListQueues"] {
        let reason = "Reason: Only the queue owner is allowed to invoke this action.";
        let text = format!("Value SQS:{owners} for parameter ActionName is invalid. {reason}");
        assert_eq!(add("other", owners).await.error(), (400, "InvalidParameterValue".into(), text));
    }
    let empty = async |action: &str, more: Value| {
        let mut request = json!({"QueueUrl": url});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        sqs.call(action, request).await.error()
    };
    let text = "The request must contain the parameter Tags.";
    assert_eq!(empty("TagQueue", json!({"Tags": {}})).await, (400, "MissingParameter".into(), text.into()));
    let text = "Tag keys must be between 1 and 128 characters in length.";
    let refused = (400, "InvalidParameterValue".to_owned(), text.to_owned());
    assert_eq!(empty("UntagQueue", json!({"TagKeys": []})).await, refused);
    assert_eq!(empty("UntagQueue", json!({"TagKeys": [""]})).await, refused);
    let nobody = empty("AddPermission", json!({"Label": "x", "AWSAccountIds": [], "Actions": ["*"]})).await;
    assert_eq!(nobody.2, "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.");
    let remove = async |label: &str| sqs.call("RemovePermission", json!({"QueueUrl": url, "Label": label})).await;
    let text = "Value other for parameter Label is invalid. Reason: can't find label.";
    assert_eq!(remove("other").await.error().2, text);
    remove("crossaccount").await.ok();
    assert_eq!(sqs.attribute(&url, "Policy").await, Value::Null);
}

#[tokio::test]
async fn queues_and_their_notes_outlive_the_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let mut server = Server::with(&[&data]);
    let sqs = Sqs::of(&server);
    let attributes = json!({"ContentBasedDeduplication": "true", "VisibilityTimeout": "77"});
    let url = sqs.create_fifo("q.fifo", attributes).await;
    sqs.call("TagQueue", json!({"QueueUrl": url, "Tags": {"team": "a"}})).await.ok();
    let send = async |body: &str| {
        let request = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g"});
        sqs.call("SendMessage", request).await.ok()
    };
    let first = send("1").await;
    send("2").await;
    let got = sqs.receive(&url, 1, 5).await;
    sqs.delete(&url, &got[0]).await.ok();
    server.crash_and_restart();
    assert_eq!(send("1").await["MessageId"], first["MessageId"], "it is known that this was sent");
    assert_eq!(sqs.attribute(&url, "VisibilityTimeout").await, "77");
    assert_eq!(sqs.call("ListQueueTags", json!({"QueueUrl": url})).await.ok(), json!({"Tags": {"team": "a"}}));
    assert_eq!(sqs.counts(&url).await, ["1", "0", "0"], "what is deleted does not come back");
    let got = sqs.receive(&url, 10, 5).await;
    assert_eq!(each(&got, "Body"), ["2"]);
    assert_eq!(sqs.delete(&url, &got[0]).await.ok(), json!({}));
    server.crash_and_restart();
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
}
