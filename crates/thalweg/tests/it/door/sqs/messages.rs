//! Messages of standard queues: sent, received, extended, deleted.

use std::time::Instant;

use serde_json::{Value, json};

use super::client::{ARN, NOW, SOON, Sqs, each};
use crate::support::server::{Server, until};

#[tokio::test]
async fn a_message_is_sent_received_and_deleted() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    assert_eq!(url, format!("http://{}/000000000000/q", server.sqs));
    let body = "<a>&\"\r\n\t\u{e4}\u{1f600}";
    let sent = sqs.send_body(&url, body).await;
    assert_eq!(sent["MD5OfMessageBody"], md5(body));
    assert_eq!(sent.as_object().expect("an object").len(), 2, "{sent}");
    let got = sqs.receive(&url, 10, 5).await;
    let message = got[0].as_object().expect("an object");
    let mut members: Vec<&str> = message.keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, ["Body", "MD5OfBody", "MessageId", "ReceiptHandle"]);
    assert_eq!((&message["Body"], &message["MessageId"]), (&Value::from(body), &sent["MessageId"]));
    assert_eq!(message["MD5OfBody"], sent["MD5OfMessageBody"]);
    assert_eq!(sqs.counts(&url).await, ["0", "1", "0"]);
    assert!(sqs.receive(&url, 10, NOW).await.is_empty(), "another receiver holds it");
    for _ in 0..2 {
        assert_eq!(sqs.delete(&url, &got[0]).await.ok(), json!({}), "it may be deleted twice");
    }
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
    assert_eq!(sqs.call("ReceiveMessage", json!({"QueueUrl": url})).await.body, "{}", "no list where there is nothing");
}

fn md5(text: &str) -> String {
    let output = crate::support::command::run(
        std::process::Command::new("md5sum").stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()),
        text.as_bytes(),
    );
    output.ok()[..32].to_owned()
}

#[tokio::test]
async fn attributes_come_back_as_far_as_they_are_asked_for() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let attributes = json!({
        "Foo": {"DataType": "String", "StringValue": "Bar"},
        "Foo.n": {"DataType": "Number.int", "StringValue": "12345678901234567890"},
        "b": {"DataType": "Binary", "BinaryValue": "AP8="},
        "text": {"DataType": "Binary.a,b=c", "BinaryValue": "dGV4dA=="},
    });
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let trace = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": trace}});
    let request = json!({"QueueUrl": url, "MessageBody": "x", "MessageAttributes": attributes,
        "MessageSystemAttributes": trace, "MessageGroupId": "tenant"});
    let sent = sqs.call("SendMessage", request).await.ok();
    assert_eq!(sent["MD5OfMessageAttributes"].as_str().map(str::len), Some(32));
    assert_eq!(sent["MD5OfMessageSystemAttributes"], "5ae4d5d7636402d80f4eb6d213245a88");
    let receive = async |mut request: Value| {
        request["VisibilityTimeout"] = 0.into();
        sqs.receive_with(&url, request).await.swap_remove(0)
    };
    let plain = receive(json!({})).await;
    assert!(plain["Attributes"].is_null() && plain["MessageAttributes"].is_null(), "{plain}");
    for all in ["All", ".*"] {
        let message = receive(json!({"MessageAttributeNames": [all]})).await;
        assert_eq!(message["MessageAttributes"], attributes);
        assert_eq!(message["MD5OfMessageAttributes"], sent["MD5OfMessageAttributes"]);
    }
    let message = receive(json!({"MessageAttributeNames": ["Foo.*", "nothing"]})).await;
    assert_eq!(message["MessageAttributes"].as_object().map(serde_json::Map::len), Some(2));
    assert_ne!(message["MD5OfMessageAttributes"], sent["MD5OfMessageAttributes"], "a sum of what is there");
    let message = receive(json!({"MessageAttributeNames": ["Foo"], "MessageSystemAttributeNames": ["All"]})).await;
    assert_eq!(message["MD5OfMessageAttributes"], "ae7155c6026991b6d54b11589678bf9c");
    let system = &message["Attributes"];
    assert_eq!((&system["SenderId"], &system["MessageGroupId"]), (&json!("000000000000"), &json!("tenant")));
    assert_eq!(system["AWSTraceHeader"], trace["AWSTraceHeader"]["StringValue"]);
    assert_eq!(system["ApproximateReceiveCount"], "5");
    let time = |name: &str| system[name].as_str().and_then(|ms| ms.parse::<u64>().ok()).expect("a time");
    assert!(time("SentTimestamp") <= time("ApproximateFirstReceiveTimestamp"));
    assert!(system["SequenceNumber"].is_null() && system["MessageDeduplicationId"].is_null(), "{system}");
    let message = receive(json!({"AttributeNames": ["SenderId"]})).await;
    assert_eq!(message["Attributes"], json!({"SenderId": "000000000000"}));
    let unknown = sqs.call("ReceiveMessage", json!({"QueueUrl": url, "AttributeNames": ["Nonsense"]})).await;
    assert_eq!(unknown.error(), (400, "InvalidAttributeName".into(), "Unknown Attribute Nonsense.".into()));
}

#[tokio::test]
async fn a_long_poll_ends_with_the_message_or_in_its_time() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"ReceiveMessageWaitTimeSeconds": "20"})).await;
    let poll = {
        let url = url.clone();
        tokio::spawn(async move {
            let begin = Instant::now();
            (sqs.receive_with(&url, json!({})).await, begin.elapsed())
        })
    };
    // The connection is counted once the broker has started the poll.
    let _ = &url;
    let http = server.client("tcp").await;
    let began = "thalweg_sqs_connections ";
    until("the poll", async || {
        http.stats().await.expect("metrics").lines().any(|line| line.strip_prefix(began) == Some("1"))
    })
    .await;
    sqs.send_body(&url, "news").await;
    let (messages, took) = poll.await.expect("no panic");
    assert_eq!(each(&messages, "Body"), ["news"]);
    assert!(took < SOON, "{took:?}");
    let begin = Instant::now();
    assert!(sqs.receive(&url, 1, 1).await.is_empty());
    assert!(begin.elapsed().as_millis() >= 1000);
    assert!(sqs.receive(&url, 1, NOW).await.is_empty(), "a call decides over its queue");
    assert!(begin.elapsed() < SOON);
}

#[tokio::test]
async fn a_batch_may_go_well_in_part() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"MaximumMessageSize": "1024"})).await;
    let entries = json!([
        {"Id": "good", "MessageBody": "a"},
        {"Id": "long", "MessageBody": "x".repeat(1025)},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "char", "MessageBody": "\u{1}"},
        {"Id": "late", "MessageBody": "c", "DelaySeconds": 901},
        {"Id": "well", "MessageBody": "b", "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}}},
    ]);
    let sent = sqs.call("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await.ok();
    let list = |name: &str| sent[name].as_array().expect("a list").clone();
    assert_eq!(each(&list("Successful"), "Id"), ["good", "well"]);
    assert_eq!(each(&list("Failed"), "Id"), ["long", "empty", "char", "late"]);
    let codes = ["InvalidParameterValue", "MissingParameter", "InvalidMessageContents", "InvalidParameterValue"];
    assert_eq!(each(&list("Failed"), "Code"), codes);
    let reason = "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.";
    assert_eq!((&list("Failed")[0]["Message"], &list("Failed")[0]["SenderFault"]), (&json!(reason), &json!(true)));
    let got = sqs.receive(&url, 10, 5).await;
    assert_eq!(each(&got, "Body"), ["a", "b"]);
    let entries = json!([
        {"Id": "1", "ReceiptHandle": got[0]["ReceiptHandle"], "VisibilityTimeout": 60},
        {"Id": "2", "ReceiptHandle": "nonsense", "VisibilityTimeout": 60},
        {"Id": "3", "ReceiptHandle": got[1]["ReceiptHandle"], "VisibilityTimeout": 43_201},
        {"Id": "4", "ReceiptHandle": got[1]["ReceiptHandle"], "VisibilityTimeout": 0},
    ]);
    let changed = sqs.call("ChangeMessageVisibilityBatch", json!({"QueueUrl": url, "Entries": entries})).await.ok();
    assert_eq!(each(changed["Successful"].as_array().expect("a list"), "Id"), ["1", "4"]);
    assert_eq!(
        each(changed["Failed"].as_array().expect("a list"), "Code"),
        ["ReceiptHandleIsInvalid", "InvalidParameterValue"]
    );
    let again = sqs.receive(&url, 10, 5).await;
    assert_eq!(each(&again, "Body"), ["b"]);
    let entries = json!([
        {"Id": "1", "ReceiptHandle": got[0]["ReceiptHandle"]},
        {"Id": "2", "ReceiptHandle": "nonsense"},
        {"Id": "3", "ReceiptHandle": again[0]["ReceiptHandle"]},
    ]);
    let deleted = sqs.call("DeleteMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await.ok();
    assert_eq!(deleted["Successful"], json!([{"Id": "1"}, {"Id": "3"}]));
    assert_eq!(each(deleted["Failed"].as_array().expect("a list"), "Id"), ["2"]);
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
}

#[tokio::test]
async fn a_batch_that_cannot_be_is_refused_as_a_whole() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let code = async |action: &str, entries: Value| {
        let answer = sqs.call(action, json!({"QueueUrl": url, "Entries": entries})).await;
        answer.code().rsplit('.').next().expect("a name").to_owned()
    };
    let entry = |id: String| json!({"Id": id, "MessageBody": "x", "ReceiptHandle": "x", "VisibilityTimeout": 1});
    for action in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        assert_eq!(code(action, json!([])).await, "EmptyBatchRequest");
        let many: Vec<Value> = (0..11).map(|i| entry(i.to_string())).collect();
        assert_eq!(code(action, many.into()).await, "TooManyEntriesInBatchRequest");
        assert_eq!(code(action, json!([entry("a".into()), entry("a".into())])).await, "BatchEntryIdsNotDistinct");
        assert_eq!(code(action, json!([entry("a b".into())])).await, "InvalidBatchEntryId");
    }
    let half = "x".repeat((1 << 19) + 1);
    let entries = json!([{"Id": "a", "MessageBody": half}, {"Id": "b", "MessageBody": half}]);
    assert_eq!(code("SendMessageBatch", entries).await, "BatchRequestTooLong");
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
}

#[tokio::test]
async fn the_largest_message_goes_and_one_more_byte_does_not() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    for body in ["\"".repeat(1 << 20), "\u{fffd}".repeat((1 << 20) / 3)] {
        sqs.send_body(&url, &body).await;
        let got = sqs.receive(&url, 1, 5).await;
        assert!(got[0]["Body"] == body.as_str());
        sqs.delete(&url, &got[0]).await.ok();
    }
    let body = "x".repeat((1 << 20) + 1);
    let refused = sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    let message = "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.";
    assert_eq!(refused.error(), (400, "InvalidParameterValue".into(), message.into()));
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.SendMessage")];
    let huge = sqs.send("POST", "/", &headers, "x".repeat(5 << 20)).await;
    assert_eq!(huge.status, 413);
}

#[tokio::test]
async fn a_received_message_returns_after_its_visibility_timeout() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"VisibilityTimeout": "1"})).await;
    sqs.send_body(&url, "x").await;
    let first = sqs.receive(&url, 1, 5).await.swap_remove(0);
    let second = sqs.receive(&url, 1, 20).await.swap_remove(0);
    assert_eq!(first["MessageId"], second["MessageId"]);
    assert_ne!(first["ReceiptHandle"], second["ReceiptHandle"]);
    let change = async |message: &Value, seconds: i64| {
        let request = json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds});
        sqs.call("ChangeMessageVisibility", request).await
    };
    change(&second, 43_000).await.ok();
    assert_eq!(sqs.counts(&url).await, ["0", "1", "0"]);
    for wrong in [-1, 43_201] {
        let text = format!(
            "Value {wrong} for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer \
             between 0 and 43200."
        );
        assert_eq!(change(&second, wrong).await.error(), (400, "InvalidParameterValue".into(), text));
    }
    change(&second, 0).await.ok();
    assert_eq!(sqs.counts(&url).await, ["1", "0", "0"]);
    assert_eq!(sqs.delete(&url, &first).await.ok(), json!({}), "an old receipt of a standard queue deletes");
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
    assert_eq!(change(&second, 10).await.code(), "InvalidParameterValue");
}

#[tokio::test]
async fn a_delayed_message_comes_late() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({"DelaySeconds": "900"})).await;
    sqs.send_body(&url, "as the queue").await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "soon", "DelaySeconds": 1})).await.ok();
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "now", "DelaySeconds": 0})).await.ok();
    assert_eq!(each(&sqs.receive(&url, 10, NOW).await, "Body"), ["now"]);
    assert_eq!(sqs.counts(&url).await, ["0", "1", "2"]);
    assert_eq!(each(&sqs.receive(&url, 10, 20).await, "Body"), ["soon"]);
    assert_eq!(sqs.counts(&url).await, ["0", "2", "1"]);
}

#[tokio::test]
async fn a_receipt_is_for_its_queue_and_nobody_makes_one_up() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let other = sqs.create("other", json!({})).await;
    sqs.send_body(&url, "x").await;
    let message = sqs.receive(&url, 1, 5).await.swap_remove(0);
    let handle = message["ReceiptHandle"].as_str().expect("text");
    let mut forged = handle.to_owned();
    forged.replace_range(5..6, if &forged[5..6] == "A" { "B" } else { "A" });
    let delete = async |url: &str, handle: &str| {
        sqs.call("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": handle})).await.error()
    };
    for (url, handle) in [(&other, handle), (&url, &forged), (&url, "x"), (&url, &"A".repeat(10_000))] {
        let text = format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
        assert_eq!(delete(url, handle).await, (404, "ReceiptHandleIsInvalid".into(), text));
    }
    assert_eq!(delete(&url, "").await.1, "MissingParameter");
    assert_eq!(sqs.counts(&url).await, ["0", "1", "0"]);
}

/// Messages that are sent with SQS are readable through every other door, and the reverse.
#[tokio::test]
async fn a_queue_is_a_topic_to_other_doors() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let client = server.client("tcp").await;
    let url = sqs.create("shared", json!({})).await;
    let record = client::Record::new("from elsewhere").with_header("colour", "blue");
    client.publish("shared", record).await.expect("published");
    let got = sqs.receive_with(&url, json!({"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5})).await;
    assert_eq!(got[0]["Body"], "from elsewhere");
    assert_eq!(got[0]["MessageAttributes"], json!({"colour": {"DataType": "String", "StringValue": "blue"}}));
}

/// A message whose lease expires immediately is received by the next call, and not twice by the same one.
#[tokio::test]
async fn one_call_receives_each_message_once_with_any_visibility_timeout() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let dead = sqs.create("dead", json!({})).await;
    let redrive = json!({"deadLetterTargetArn": format!("{ARN}dead"), "maxReceiveCount": 2}).to_string();
    let of_call = sqs.create("call", json!({"RedrivePolicy": redrive})).await;
    let of_queue = sqs.create("queue", json!({"RedrivePolicy": redrive, "VisibilityTimeout": "0"})).await;
    for (url, request) in [
        (&of_call, json!({"MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "WaitTimeSeconds": 1})),
        (&of_queue, json!({"MaxNumberOfMessages": 10})),
    ] {
        for body in ["a", "b", "c"] {
            sqs.send_body(url, body).await;
        }
        for _ in 0..2 {
            assert_eq!(each(&sqs.receive_with(url, request.clone()).await, "Body"), ["a", "b", "c"]);
            assert_eq!(sqs.counts(url).await, ["3", "0", "0"]);
        }
        assert_eq!(sqs.counts(&dead).await, ["0", "0", "0"]);
        sqs.call("PurgeQueue", json!({"QueueUrl": url})).await.ok();
    }
}
