//! Access control at the SQS door. A refusal has AWS's code AccessDenied with status 403
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html>).

use client::security::{Acl, Operation, Pattern, PatternKind, Principal, ResourceKind};
use serde_json::json;

use super::client::{NOW, Sqs};
use crate::support::command;
use crate::support::server::Server;

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
