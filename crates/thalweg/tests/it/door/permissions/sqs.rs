//! The actions of SQS. A refusal has AWS's code AccessDenied with status 403
//! (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html>).

use serde_json::{Value, json};

use super::super::access_keys::{create, sign};
use super::super::sqs::client::{ARN, NOW, Sqs};
use super::{Answer, Example, Site};

/// Request of an action in AWS JSON, or the path of a GET.
enum Sent {
    Action(&'static str, Value),
    Get(String),
}

type Action = Example<Sent>;

fn action(name: &'static str, body: Value) -> Action {
    Example::new(name, Sent::Action(name, body))
}

fn url(queue: &str) -> String {
    format!("http://localhost/000000000000/{queue}")
}

fn arn(queue: &str) -> String {
    format!("{ARN}{queue}")
}

/// Returns the actions about messages, of a queue that owns its topic and of one that does not.
fn of_messages(receipt: &str) -> Vec<Action> {
    let both = |name, mut body: Value| {
        body["QueueUrl"] = url("q").into();
        let own = action(name, body.clone());
        body["QueueUrl"] = url("over").into();
        let over = action(name, body).when("if the queue does not own it");
        [own, over.on("the queue", "over").on("its topic", "base")]
    };
    let entry = json!([{"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 1}]);
    let all = [
        both("SendMessage", json!({"MessageBody": "evil"})),
        both("SendMessageBatch", json!({"Entries": [{"Id": "a", "MessageBody": "evil"}]})),
        both("ReceiveMessage", json!({"WaitTimeSeconds": NOW})),
        both("ChangeMessageVisibility", json!({"ReceiptHandle": receipt, "VisibilityTimeout": 1})),
        both("ChangeMessageVisibilityBatch", json!({"Entries": entry})),
        both("DeleteMessage", json!({"ReceiptHandle": receipt})),
        both("DeleteMessageBatch", json!({"Entries": [{"Id": "a", "ReceiptHandle": receipt}]})),
    ];
    let peek = |queue: &str| {
        let path = format!("/_aws/sqs/messages/us-east-1/000000000000/{queue}");
        Example::new("GET /_aws/sqs/messages", Sent::Get(path))
    };
    let over = peek("over").when("if the queue does not own it").on("the queue", "over").on("its topic", "base");
    all.into_iter().flatten().chain([peek("q"), over]).collect()
}

fn of_queues() -> Vec<Action> {
    let free = "if it sets one that no queue owns";
    let owned = "if it sets the topic of a queue";
    let is_over = "if it is over another topic, or over one with its name that exists";
    let about = |name, mut body: Value| {
        body["QueueUrl"] = url("q").into();
        action(name, body)
    };
    let dead = |queue: &str| json!({"deadLetterTargetArn": arn(queue), "maxReceiveCount": 9}).to_string();
    let policed = |queue: &str| json!({"RedrivePolicy": dead(queue)});
    let new = |body: Value| action("CreateQueue", body).on("the queue", "fresh");
    let permission = json!({"Label": "l", "AWSAccountIds": ["000000000000"], "Actions": ["SetQueueAttributes"]});
    vec![
        new(json!({"QueueName": "fresh"})),
        new(json!({"QueueName": "fresh", "Attributes": policed("t")})).when(free),
        new(json!({"QueueName": "fresh", "Attributes": policed("dead")}))
            .when(owned)
            .on("the dead-letter queue", "dead"),
        action("CreateQueue", json!({"QueueName": "gone"}))
            .when(is_over)
            .on("the queue", "gone")
            .on("the topic that it is over", "gone"),
        about("SetQueueAttributes", json!({"Attributes": policed("t")})).when(free),
        about("SetQueueAttributes", json!({"Attributes": policed("dead")}))
            .when(owned)
            .on("the dead-letter queue", "dead"),
        action("GetQueueUrl", json!({"QueueName": "q"})),
        action("ListQueues", json!({})).showing("/q\""),
        about("GetQueueAttributes", json!({"AttributeNames": ["All"]})),
        about("ListDeadLetterSourceQueues", json!({})),
        about("ListQueueTags", json!({})),
        about("TagQueue", json!({"Tags": {"a": "b"}})),
        about("UntagQueue", json!({"TagKeys": ["a"]})),
        about("AddPermission", permission),
        about("RemovePermission", json!({"Label": "l"})),
        about("PurgeQueue", json!({})),
        action("DeleteQueue", json!({"QueueUrl": url("gone-queue")})).on("the queue", "gone-queue"),
        action("ListMessageMoveTasks", json!({"SourceArn": arn("q")})),
        action("CancelMessageMoveTask", json!({"TaskHandle": "e30="})),
        action("StartMessageMoveTask", json!({"SourceArn": arn("dead"), "DestinationArn": arn("q")}))
            .when("if it names one")
            .on("the queue", "dead")
            .on("the destination", "q"),
        action("StartMessageMoveTask", json!({"SourceArn": arn("dead"), "DestinationArn": arn("over")}))
            .when("if it names one")
            .when("if the destination does not own it")
            .on("the queue", "dead")
            .on("the destination", "over")
            .on("its topic", "base"),
        action("StartMessageMoveTask", json!({"SourceArn": arn("over")}))
            .when("if the queue does not own it")
            .when("if it names no destination")
            .on("the queue", "over")
            .on("its topic", "base"),
    ]
}

#[tokio::test]
async fn every_action_of_sqs_requires_what_its_row_says() {
    let site = Site::open(&["sqs=127.0.0.1:0"]).await;
    let sqs = Sqs::of(&site.server);
    let key = create(&site.server, "bob", &[]);
    let send = async |has_login: bool, sent: &Sent| {
        let (method, path, target, body) = match sent {
            Sent::Action(name, body) => ("POST", "/", Some(format!("AmazonSQS.{name}")), body.to_string()),
            Sent::Get(path) => ("GET", &**path, None, String::new()),
        };
        let (time, signed) = sign(&key, method, path, target.as_deref(), &body);
        let mut headers = vec![("host", "localhost"), ("content-type", "application/x-amz-json-1.0")];
        headers.extend(target.as_deref().map(|target| ("x-amz-target", target)));
        if has_login {
            headers.extend([("x-amz-date", &*time), ("authorization", &*signed)]);
        }
        let answer = sqs.send(method, path, &headers, body).await;
        let text = format!("{answer:?}");
        match answer.status {
            403 if text.contains("MissingAuthenticationToken") => Answer::NoLogin(text),
            403 if text.contains("AccessDenied") => Answer::Refused(text),
            _ => Answer::Passed(answer.body),
        }
    };
    let receive = Sent::Action("ReceiveMessage", json!({"QueueUrl": url("q"), "WaitTimeSeconds": NOW}));
    site.admin.queue("q").send(client::OutMessage::new("kept")).await.expect("sent");
    site.grant(&["read queue q".to_owned()]).await;
    let Answer::Passed(received) = send(true, &receive).await else { panic!("it may read") };
    let received: Value = serde_json::from_str(&received).expect("JSON");
    let receipt = received["Messages"][0]["ReceiptHandle"].as_str().expect("a receipt").to_owned();
    let examples: Vec<Action> = of_messages(&receipt).into_iter().chain(of_queues()).collect();
    site.walk("sqs", &examples, async || {}, send).await;
}
