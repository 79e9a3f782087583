//! Access control at the SQS door. A refusal has AWS's code AccessDenied with status 403
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html>).

use client::security::{Acl, Operation, Pattern, PatternKind, Principal, ResourceKind, RoleName, UserName};
use serde_json::{Value, json};

use super::client::{ARN, NOW, Sqs};
use crate::support::command;
use crate::support::server::Server;

/// Every action, with a request about the queue `q`.
fn calls(url: &str, dead: &str, receipt: &str) -> Vec<(&'static str, Value)> {
    let arn = |name: &str| format!("{ARN}{name}");
    let entry = json!([{"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 1}]);
    vec![
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "evil"})),
        ("SendMessageBatch", json!({"QueueUrl": url, "Entries": [{"Id": "a", "MessageBody": "evil"}]})),
        ("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": NOW})),
        ("ChangeMessageVisibility", json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": 1})),
        ("ChangeMessageVisibilityBatch", json!({"QueueUrl": url, "Entries": entry})),
        ("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": receipt})),
        ("DeleteMessageBatch", json!({"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": receipt}]})),
        ("CreateQueue", json!({"QueueName": "new"})),
        ("GetQueueUrl", json!({"QueueName": "q"})),
        ("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": ["All"]})),
        ("ListDeadLetterSourceQueues", json!({"QueueUrl": url})),
        ("ListQueueTags", json!({"QueueUrl": url})),
        ("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "5"}})),
        ("TagQueue", json!({"QueueUrl": url, "Tags": {"a": "b"}})),
        ("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["a"]})),
        (
            "AddPermission",
            json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["000000000000"], "Actions": ["SendMessage"]}),
        ),
        ("RemovePermission", json!({"QueueUrl": url, "Label": "l"})),
        ("StartMessageMoveTask", json!({"SourceArn": arn("dead")})),
        ("StartMessageMoveTask", json!({"SourceArn": arn("dead"), "DestinationArn": arn("q")})),
        ("ListMessageMoveTasks", json!({"SourceArn": arn("dead")})),
        ("CancelMessageMoveTask", json!({"TaskHandle": "e30="})),
        ("PurgeQueue", json!({"QueueUrl": url})),
        ("DeleteQueue", json!({"QueueUrl": dead})),
    ]
}

#[tokio::test]
async fn every_action_requires_its_permission() {
    let server = Server::with(&["authorization=true", "sqs=127.0.0.1:0"]);
    let admin = server.client("tcp").await;
    let anonymous = UserName::parse("ANONYMOUS").expect("a name");
    let role = RoleName::parse("admin").expect("a name");
    let sqs = Sqs::of(&server);
    admin.set_member(anonymous.clone(), role.clone(), true).await.expect("a member");
    let dead = sqs.create("dead", json!({})).await;
    let policy = json!({"deadLetterTargetArn": format!("{ARN}dead"), "maxReceiveCount": 9}).to_string();
    let url = sqs.create("q", json!({"RedrivePolicy": policy})).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "kept"})).await.ok();
    let received = sqs.call("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": NOW})).await.ok();
    let receipt = received["Messages"][0]["ReceiptHandle"].as_str().expect("a receipt").to_owned();
    admin.set_member(anonymous.clone(), role.clone(), false).await.expect("not a member");

    for (action, body) in calls(&url, &dead, &receipt) {
        let refused = sqs.call(action, body).await;
        assert_eq!((refused.status, refused.code()), (403, "AccessDenied".into()), "{action}");
    }
    assert_eq!(sqs.call("ListQueues", json!({})).await.ok()["QueueUrls"], Value::Null, "it shows what it may");
    let peek = format!("/_aws/sqs/messages?QueueUrl={url}");
    assert_eq!(sqs.send("GET", &peek, &[("accept", "application/json")], "").await.status, 403);
    let about = command::on(&server, ["queue", "stats", "q", "--json"]).json();
    assert_eq!(about["counts"]["in_flight"], 1, "nothing has changed: {about}");

    admin.set_member(anonymous, role, true).await.expect("a member");
    for (action, body) in calls(&url, &dead, &receipt) {
        let answer = sqs.call(action, body).await;
        assert!(answer.status == 200 || answer.code() != "AccessDenied", "{action}: {answer:?}");
    }
}

/// A queue over a topic of others needs the permission for the topic, too.
#[tokio::test]
async fn a_queue_over_a_topic_requires_both_permissions() {
    let server = Server::with(&["authorization=true", "sqs=127.0.0.1:0"]);
    let admin = server.client("tcp").await;
    command::on(&server, ["topic", "create", "orders"]).ok();
    command::on(&server, ["queue", "create", "billing", "--topic", "orders"]).ok();
    let sqs = Sqs::of(&server);
    let receive = json!({"QueueUrl": format!("http://{}/000000000000/billing", server.sqs), "WaitTimeSeconds": NOW});
    for (kind, name, wanted) in [(ResourceKind::Queue, "billing", 403), (ResourceKind::Topic, "orders", 200)] {
        let acl = Acl {
            pattern: Pattern { kind, name: name.to_owned(), matching: PatternKind::Literal },
            principal: Principal::Everyone,
            host: "127.0.0.1".to_owned(),
            operation: Operation::Read,
            is_allowed: true,
        };
        admin.create_acls(vec![acl]).await.expect("added");
        assert_eq!(sqs.call("ReceiveMessage", receive.clone()).await.status, wanted, "{kind:?}");
    }
}
