//! FIFO queues: order within groups, deduplication, and repeated receive attempts.

use serde_json::{Value, json};

use super::client::{NOW, Sqs, each};
use crate::support::server::{Server, until};

async fn send(sqs: &Sqs, url: &str, group: &str, body: &str) -> Value {
    let request = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": group});
    sqs.call("SendMessage", request).await.ok()
}

#[tokio::test]
async fn a_group_is_with_one_receiver_and_in_order() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    let mut sequence = Vec::new();
    for (group, body) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")] {
        let sent = send(&sqs, &url, group, body).await;
        let number = sent["SequenceNumber"].as_str().expect("a number").to_owned();
        assert_eq!(number.len(), 20);
        sequence.push(number);
    }
    assert!(sequence.is_sorted_by(|a, b| a < b), "{sequence:?}");
    let first = sqs.receive_with(&url, json!({"MaxNumberOfMessages": 2, "AttributeNames": ["All"]})).await;
    assert_eq!(each(&first, "Body"), ["a1", "a2"]);
    let system = &first[0]["Attributes"];
    assert_eq!((&system["MessageGroupId"], &system["SequenceNumber"]), (&json!("a"), &json!(sequence[0])));
    assert_eq!(system["MessageDeduplicationId"].as_str().map(str::len), Some(64));
    assert_eq!(each(&sqs.receive(&url, 10, NOW).await, "Body"), ["b1"], "the group is taken");
    sqs.delete(&url, &first[0]).await.ok();
    assert!(sqs.receive(&url, 10, NOW).await.is_empty(), "it still is");
    sqs.delete(&url, &first[1]).await.ok();
    assert_eq!(each(&sqs.receive(&url, 10, NOW).await, "Body"), ["a3"]);
}

#[tokio::test]
async fn the_same_message_is_taken_once() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    let first = send(&sqs, &url, "a", "same").await;
    assert_eq!(send(&sqs, &url, "b", "same").await, first, "told again, whatever the group");
    let got = sqs.receive(&url, 10, 5).await;
    sqs.delete(&url, &got[0]).await.ok();
    assert_eq!(send(&sqs, &url, "a", "same").await["MessageId"], first["MessageId"], "also when it is gone");
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
    let own = json!({"QueueUrl": url, "MessageBody": "same", "MessageGroupId": "a", "MessageDeduplicationId": "own"});
    sqs.call("SendMessage", own).await.ok();
    assert_eq!(sqs.counts(&url).await, ["1", "0", "0"]);

    let by_group = json!({"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"});
    let url = sqs.create_fifo("groups.fifo", by_group).await;
    for group in ["a", "b", "a"] {
        let request =
            json!({"QueueUrl": url, "MessageBody": "x", "MessageGroupId": group, "MessageDeduplicationId": "d"});
        sqs.call("SendMessage", request).await.ok();
    }
    assert_eq!(sqs.counts(&url).await, ["2", "0", "0"]);
}

#[tokio::test]
async fn a_fifo_queue_asks_for_more_than_a_standard_one() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({})).await;
    let send = async |more: Value| {
        let mut request = json!({"QueueUrl": url, "MessageBody": "x"});
        let members = request.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        sqs.call("SendMessage", request).await
    };
    let missing = send(json!({"MessageDeduplicationId": "d"})).await;
    let text = "The request must contain the parameter MessageGroupId.";
    assert_eq!(missing.error(), (400, "MissingParameter".into(), text.into()));
    assert_eq!(missing.json()["__type"], "com.amazon.coral.service#MissingRequiredParameterException");
    let text =
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly";
    assert_eq!(send(json!({"MessageGroupId": "g"})).await.error(), (400, "InvalidParameterValue".into(), text.into()));
    let delayed = send(json!({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 2})).await;
    assert_eq!(delayed.code(), "InvalidParameterValue");
    send(json!({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 0})).await.ok();
    let entries = json!([{"Id": "1", "MessageBody": "x", "MessageDeduplicationId": "d"}]);
    let batch = sqs.call("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await;
    let text = "The request must contain the parameter MessageGroupId.";
    assert_eq!(batch.error(), (400, "InvalidParameterValue".into(), text.into()));
}

#[tokio::test]
async fn a_receipt_ends_with_its_lease() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    send(&sqs, &url, "g", "x").await;
    let first = sqs.receive_with(&url, json!({"VisibilityTimeout": 1})).await.swap_remove(0);
    let second = sqs.receive(&url, 1, 20).await.swap_remove(0);
    let handle = first["ReceiptHandle"].as_str().expect("text");
    let text =
        format!("Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.");
    assert_eq!(sqs.delete(&url, &first).await.error(), (400, "InvalidParameterValue".into(), text));
    sqs.delete(&url, &second).await.ok();
    assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
}

#[tokio::test]
async fn an_attempt_to_receive_is_told_again() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    for body in ["1", "2", "3"] {
        send(&sqs, &url, "g", body).await;
    }
    let attempt = json!({"MaxNumberOfMessages": 2, "ReceiveRequestAttemptId": "try"});
    let first = sqs.receive_with(&url, attempt.clone()).await;
    assert_eq!(each(&first, "Body"), ["1", "2"]);
    assert_eq!(sqs.receive_with(&url, attempt.clone()).await, first);
    let other = json!({"MaxNumberOfMessages": 2, "ReceiveRequestAttemptId": "another"});
    assert!(sqs.receive_with(&url, other).await.is_empty());
    sqs.delete(&url, &first[0]).await.ok();
    assert!(sqs.receive_with(&url, attempt).await.is_empty(), "they are not all there any more");
    let standard = sqs.create("q", json!({})).await;
    let refused = sqs.call("ReceiveMessage", json!({"QueueUrl": standard, "ReceiveRequestAttemptId": "x"})).await;
    assert_eq!(refused.code(), "InvalidParameterValue");
}

/// "SQS first attempts to return as many messages with the same message group ID as possible" (Amazon SQS Developer
/// Guide, "FIFO queue delivery logic"), and the order of groups as recorded of AWS in LocalStack's
/// `test_fifo_receive_message_group_id_ordering` and `test_fifo_receive_message_with_zero_visibility_timeout`.
#[tokio::test]
async fn one_group_fills_a_batch_and_then_goes_behind_the_others() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    for body in ["a1", "b1", "b2", "c1", "a2"] {
        send(&sqs, &url, &body[..1], body).await;
    }
    let take = async |max: u64| {
        let got = sqs.receive_with(&url, json!({"MaxNumberOfMessages": max, "VisibilityTimeout": 0})).await;
        each(&got, "Body").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(take(3).await, ["a1", "a2", "b1"]);
    assert_eq!(take(10).await, ["c1", "a1", "a2", "b1", "b2"]);
    let first = sqs.receive(&url, 1, NOW).await;
    assert_eq!(each(&first, "Body"), ["c1"]);
    sqs.delete(&url, &first[0]).await.ok();
    send(&sqs, &url, "c", "c2").await;
    assert_eq!(take(10).await, ["a1", "a2", "b1", "b2", "c2"]);
}

/// Behavior of AWS as recorded in LocalStack's `test_fifo_message_group_visibility_after_terminate_visibility_timeout`
/// and `test_fifo_group_visibility_extends_with_change_message_visibility`.
#[tokio::test]
async fn a_message_that_is_visible_again_waits_only_for_earlier_ones_of_its_group() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    for body in ["a1", "a2", "a3", "b1"] {
        send(&sqs, &url, &body[..1], body).await;
    }
    let got = sqs.receive(&url, 2, NOW).await;
    assert_eq!(each(&got, "Body"), ["a1", "a2"]);
    let give_back = async |message: &Value| {
        let handle = &message["ReceiptHandle"];
        let request = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0});
        sqs.call("ChangeMessageVisibility", request).await.ok();
    };
    give_back(&got[0]).await;
    let again = sqs.receive(&url, 10, NOW).await;
    assert_eq!(each(&again, "Body"), ["b1", "a1"], "the second is still in flight");
    give_back(&got[1]).await;
    assert!(sqs.receive(&url, 10, NOW).await.is_empty(), "the first is");
}

/// "PurgeQueue" also empties the deduplication cache: recorded from AWS in LocalStack's
/// `test_purge_queue_clears_fifo_deduplication_cache`.
#[tokio::test]
async fn purged_messages_can_be_sent_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let mut server = Server::with(&[&data]);
    let sqs = Sqs::of(&server);
    let url = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    for _ in 0..2 {
        let first = send(&sqs, &url, "g", "x").await;
        assert_eq!(send(&sqs, &url, "g", "x").await["MessageId"], first["MessageId"]);
        assert_eq!(sqs.counts(&url).await, ["1", "0", "0"]);
        sqs.call("PurgeQueue", json!({"QueueUrl": url})).await.ok();
        assert_eq!(sqs.counts(&url).await, ["0", "0", "0"]);
    }
    server.crash_and_restart();
    send(&sqs, &url, "g", "x").await;
    assert_eq!(each(&sqs.receive(&url, 10, 5).await, "Body"), ["x"]);
}

/// Heartbeat of a slow consumer: "ChangeMessageVisibility" of an expired receipt extends the lease as long as the
/// message was not received since, recorded from AWS in LocalStack's
/// `test_change_message_visibility_after_visibility_timeout_expiration`.
#[tokio::test]
async fn a_receipt_that_has_expired_extends_its_lease_until_another_receives_the_message() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let short = json!({"ContentBasedDeduplication": "true", "VisibilityTimeout": "1"});
    let fifo = sqs.create_fifo("q.fifo", short).await;
    let standard = sqs.create("q", json!({"VisibilityTimeout": "1"})).await;
    send(&sqs, &fifo, "g", "x").await;
    sqs.send_body(&standard, "x").await;
    for url in [&fifo, &standard] {
        let extend = async |message: &Value| {
            let handle = &message["ReceiptHandle"];
            let request = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 600});
            sqs.call("ChangeMessageVisibility", request).await
        };
        let first = sqs.receive(url, 1, 5).await.swap_remove(0);
        until("its end", async || sqs.counts(url).await == ["1", "0", "0"]).await;
        extend(&first).await.ok();
        assert_eq!(sqs.counts(url).await, ["0", "1", "0"], "{url}");
        let entries = json!([{"Id": "1", "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 1}]);
        let batch = json!({"QueueUrl": url, "Entries": entries});
        sqs.call("ChangeMessageVisibilityBatch", batch).await.ok();
        let second = sqs.receive(url, 1, 20).await.swap_remove(0);
        assert_eq!(second["MessageId"], first["MessageId"]);
        let change = async |seconds: u64| {
            let handle = &first["ReceiptHandle"];
            let request = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": seconds});
            sqs.call("ChangeMessageVisibility", request).await.code()
        };
        extend(&second).await.ok();
        assert_eq!(
            (change(600).await, change(0).await),
            ("InvalidParameterValue".into(), "InvalidParameterValue".into())
        );
        assert_eq!(sqs.counts(url).await, ["0", "1", "0"], "{url}: the other still has it");
        extend(&second).await.ok();
        sqs.delete(url, &second).await.ok();
    }
}
