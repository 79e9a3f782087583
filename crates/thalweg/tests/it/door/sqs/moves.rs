//! Dead letters: redrive to the dead-letter queue, and move tasks back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::client::{ARN, Sqs, each};
use crate::support::server::{Server, until};

fn policy(target: &str, receives: u32) -> Value {
    let policy = json!({"deadLetterTargetArn": format!("{ARN}{target}"), "maxReceiveCount": receives});
    json!({"RedrivePolicy": policy.to_string()})
}

/// Creates a queue with one message in its dead-letter queue.
async fn with_dead_letter(sqs: &Sqs, body: &str) -> (String, String) {
    let dead = sqs.create("dead", json!({})).await;
    let mut attributes = policy("dead", 1);
    attributes["VisibilityTimeout"] = "0".into();
    let url = sqs.create("q", attributes).await;
    let attributes = json!({"n": {"DataType": "Number", "StringValue": "1"}});
    let request = json!({"QueueUrl": url, "MessageBody": body, "MessageAttributes": attributes});
    sqs.call("SendMessage", request).await.ok();
    sqs.receive(&url, 1, 5).await;
    until("it is dead", async || {
        assert!(sqs.receive(&url, 1, 0).await.is_empty());
        sqs.counts(&dead).await[0] == "1"
    })
    .await;
    (url, dead)
}

#[tokio::test]
async fn a_message_that_was_received_too_often_is_a_dead_letter() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let (url, dead) = with_dead_letter(&sqs, "x").await;
    let all = json!({"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 5});
    let got = sqs.receive_with(&dead, all).await.swap_remove(0);
    assert_eq!(
        (&got["Body"], &got["Attributes"]["DeadLetterQueueSourceArn"]),
        (&json!("x"), &json!(format!("{ARN}q")))
    );
    assert_eq!(got["MessageAttributes"], json!({"n": {"DataType": "Number", "StringValue": "1"}}));
    let sources = sqs.call("ListDeadLetterSourceQueues", json!({"QueueUrl": dead})).await.ok();
    assert_eq!(sources, json!({"queueUrls": [url]}));
    assert_eq!(sqs.call("ListDeadLetterSourceQueues", json!({"QueueUrl": url})).await.body, "{}");
    let shown = sqs.attribute(&url, "RedrivePolicy").await;
    assert_eq!(shown, policy("dead", 1)["RedrivePolicy"]);
}

#[tokio::test]
async fn dead_letters_go_where_they_are_allowed() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let create = async |name: &str, attributes: Value| {
        sqs.call("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await
    };
    let missing = create("q", policy("nothing", 1)).await.error();
    assert!(
        missing.1 == "InvalidParameterValue" && missing.2.ends_with("Dead letter target does not exist."),
        "{missing:?}"
    );
    create("closed", json!({"RedriveAllowPolicy": "{\"redrivePermission\":\"denyAll\"}"})).await.ok();
    let by_queue = json!({"redrivePermission": "byQueue", "sourceQueueArns": [format!("{ARN}a")]}).to_string();
    create("for-a", json!({"RedriveAllowPolicy": by_queue})).await.ok();
    assert!(create("a", policy("closed", 1)).await.error().2.contains("RedriveAllowPolicy"));
    assert!(create("b", policy("for-a", 1)).await.error().2.contains("RedriveAllowPolicy"));
    create("a", policy("for-a", 1)).await.ok();
}

#[tokio::test]
async fn dead_letters_are_moved_back() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let (url, dead) = with_dead_letter(&sqs, "x").await;
    let before = sqs.receive_with(&dead, json!({"VisibilityTimeout": 0})).await;
    let start = async |request: Value| sqs.call("StartMessageMoveTask", request).await;
    let source = format!("{ARN}dead");
    let not_dead = start(json!({"SourceArn": format!("{ARN}q")})).await;
    let text = "Source queue must be configured as a Dead Letter Queue.";
    assert_eq!(not_dead.error(), (400, "InvalidParameterValue".into(), text.into()));
    let missing = start(json!({"SourceArn": format!("{ARN}nothing")})).await;
    let text = "The resource that you specified for the SourceArn parameter doesn't exist.";
    assert_eq!(missing.error(), (404, "ResourceNotFoundException".into(), text.into()));
    assert!(start(json!({"SourceArn": "x"})).await.error().2.starts_with("You must use this format"));
    for rate in [0, 501] {
        let request = json!({"SourceArn": source, "MaxNumberOfMessagesPerSecond": rate});
        assert_eq!(start(request).await.code(), "InvalidParameterValue");
    }
    let handle = start(json!({"SourceArn": source})).await.ok()["TaskHandle"].clone();
    let list = async || {
        let request = json!({"SourceArn": source, "MaxResults": 10});
        sqs.call("ListMessageMoveTasks", request).await.ok()["Results"].as_array().cloned().unwrap_or_default()
    };
    until("the move", async || each(&list().await, "Status") == ["COMPLETED"]).await;
    let task = list().await.swap_remove(0);
    assert_eq!((&task["SourceArn"], &task["ApproximateNumberOfMessagesMoved"]), (&json!(source), &json!(1)));
    assert!(task["TaskHandle"].is_null() && task["StartedTimestamp"].is_u64(), "{task}");
    let back = sqs.receive_with(&url, json!({"VisibilityTimeout": 30, "WaitTimeSeconds": 5})).await;
    assert_eq!((each(&back, "Body"), each(&back, "MessageId")), (vec!["x"], each(&before, "MessageId")));
    assert_eq!(sqs.counts(&dead).await, ["0", "0", "0"]);
    let cancel = async |handle: Value| sqs.call("CancelMessageMoveTask", json!({"TaskHandle": handle})).await;
    assert_eq!(cancel(handle).await.code(), "InvalidParameterValue");
    assert_eq!(cancel(json!("x")).await.code(), "InvalidParameterValue");
}

#[tokio::test]
async fn a_move_is_cancelled() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let dead = sqs.create("dead", json!({})).await;
    sqs.create("q", policy("dead", 1)).await;
    sqs.create("elsewhere", json!({})).await;
    for body in ["1", "2", "3", "4", "5"] {
        sqs.send_body(&dead, body).await;
    }
    let source = format!("{ARN}dead");
    let start =
        json!({"SourceArn": source, "DestinationArn": format!("{ARN}elsewhere"), "MaxNumberOfMessagesPerSecond": 1});
    let handle = sqs.call("StartMessageMoveTask", start.clone()).await.ok()["TaskHandle"].clone();
    // Base64 of JSON with the task and its source (StartMessageMoveTask, Amazon SQS API Reference).
    let json: Value =
        serde_json::from_slice(&BASE64.decode(handle.as_str().expect("text")).expect("base64")).expect("JSON");
    let parts: Vec<usize> = json["taskId"].as_str().expect("text").split('-').map(str::len).collect();
    assert_eq!((parts, &json["sourceArn"]), (vec![8, 4, 4, 4, 12], &json!(source)));
    let other =
        BASE64.encode(json!({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05dd", "sourceArn": source}).to_string());
    let unknown = sqs.call("CancelMessageMoveTask", json!({"TaskHandle": other})).await;
    assert_eq!(unknown.error(), (404, "ResourceNotFoundException".into(), "Task does not exist.".into()));
    let twice = sqs.call("StartMessageMoveTask", start).await.error();
    assert!(twice.2.starts_with("There is already a task running."), "{twice:?}");
    let cancelled = sqs.call("CancelMessageMoveTask", json!({"TaskHandle": handle})).await.ok();
    let moved = cancelled["ApproximateNumberOfMessagesMoved"].as_u64().expect("a number");
    assert!(moved < 5, "{cancelled}");
    until("the end", async || {
        let tasks = sqs.call("ListMessageMoveTasks", json!({"SourceArn": source})).await.ok();
        let task = &tasks["Results"][0];
        assert_eq!(task["DestinationArn"], format!("{ARN}elsewhere"));
        task["Status"] == "CANCELLED"
    })
    .await;
}

/// "ApproximateReceiveCount" continues in the dead-letter queue, and a client whose receipt is refused because the
/// message left its queue finds it there.
#[tokio::test]
async fn a_dead_letter_is_available_immediately_with_all_its_receives_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let server = Server::with(&[&data]);
    let sqs = Sqs::of(&server);
    let end = sqs.create("end", json!({})).await;
    let mut attributes = policy("end", 1);
    attributes["VisibilityTimeout"] = "0".into();
    let dead = sqs.create("dead", attributes).await;
    let mut attributes = policy("dead", 2);
    attributes["VisibilityTimeout"] = "0".into();
    let url = sqs.create("q", attributes).await;
    let receive = async |url: &str| {
        let got = sqs.receive_with(url, json!({"AttributeNames": ["All"], "MaxNumberOfMessages": 10})).await;
        let counts = got.iter().map(|message| message["Attributes"]["ApproximateReceiveCount"].clone());
        counts.collect::<Vec<_>>()
    };
    for _ in 0..20 {
        sqs.send_body(&url, "x").await;
        assert_eq!((receive(&url).await, receive(&url).await), (vec![json!("1")], vec![json!("2")]));
        assert_eq!((receive(&url).await, receive(&dead).await), (vec![], vec![json!("3")]));
        assert_eq!((receive(&dead).await, receive(&end).await), (vec![], vec![json!("4")]));
        sqs.call("PurgeQueue", json!({"QueueUrl": end})).await.ok();
    }
    // Released for the last time, it moves there without another receive.
    sqs.send_body(&url, "x").await;
    assert_eq!(receive(&url).await, [json!("1")]);
    let got = sqs.receive_with(&url, json!({"VisibilityTimeout": 60})).await;
    let handle = &got[0]["ReceiptHandle"];
    let request = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0});
    sqs.call("ChangeMessageVisibility", request).await.ok();
    assert_eq!(receive(&dead).await, [json!("3")]);
}
