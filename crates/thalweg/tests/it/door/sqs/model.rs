//! Every request in the service model of Amazon's SDKs, with members that are missing, of another type or out of range.
//! `cargo xtask sqs-model` writes the model.

use serde_json::{Value, json};

use super::client::{ARN, Answer, Sqs};
use crate::support::server::Server;

const MODEL: &str = include_str!("model.json");

/// Required members whose absence has an error other than the usual one.
const MISSED: [(&str, &str); 1] = [("Entries", "AWS.SimpleQueueService.EmptyBatchRequest")];

/// Invalid values, and their errors.
const OUT_OF_RANGE: &[(&str, &str, &[&str], &str)] = &[
    ("SendMessage", "DelaySeconds", &["-1", "901"], "InvalidParameterValue"),
    ("SendMessage", "MessageBody", &["\"\\u0001\""], "InvalidMessageContents"),
    ("SendMessage", "MessageBody", &["\"\""], "MissingParameter"),
    ("SendMessage", "MessageGroupId", &["\"\"", "\"a b\""], "InvalidParameterValue"),
    ("SendMessage", "MessageDeduplicationId", &["\"\"", "\"x\""], "InvalidParameterValue"),
    (
        "SendMessage",
        "MessageAttributes",
        &["{\"AWS.x\":{\"DataType\":\"String\",\"StringValue\":\"x\"}}"],
        "InvalidParameterValue",
    ),
    ("SendMessage", "MessageAttributes", &["{\"x\":{}}", "{\"x\":{\"DataType\":\"String\"}}"], "InvalidParameterValue"),
    (
        "SendMessage",
        "MessageSystemAttributes",
        &["{\"x\":{\"DataType\":\"String\",\"StringValue\":\"x\"}}"],
        "InvalidParameterValue",
    ),
    ("ReceiveMessage", "MaxNumberOfMessages", &["0", "11", "-1"], "InvalidParameterValue"),
    ("ReceiveMessage", "WaitTimeSeconds", &["-1", "21", "9223372036854775807"], "InvalidParameterValue"),
    ("ReceiveMessage", "VisibilityTimeout", &["-1", "43201"], "InvalidParameterValue"),
    ("ReceiveMessage", "AttributeNames", &["[\"x\"]"], "InvalidAttributeName"),
    ("ReceiveMessage", "MessageSystemAttributeNames", &["[\"x\"]"], "InvalidAttributeName"),
    ("ReceiveMessage", "ReceiveRequestAttemptId", &["\"\"", "\"x\""], "InvalidParameterValue"),
    ("ChangeMessageVisibility", "VisibilityTimeout", &["-1", "43201"], "InvalidParameterValue"),
    ("ChangeMessageVisibility", "ReceiptHandle", &["\"x\""], "ReceiptHandleIsInvalid"),
    ("DeleteMessage", "ReceiptHandle", &["\"x\""], "ReceiptHandleIsInvalid"),
    ("CreateQueue", "QueueName", &["\"a b\"", "\"a.fifo\""], "InvalidParameterValue"),
    ("CreateQueue", "Attributes", &["{\"x\":\"y\"}", "{\"All\":\"y\"}"], "InvalidAttributeName"),
    ("CreateQueue", "Attributes", &["{\"DelaySeconds\":\"901\"}"], "InvalidAttributeValue"),
    ("SetQueueAttributes", "Attributes", &["{\"x\":\"y\"}", "{\"QueueArn\":\"y\"}"], "InvalidAttributeName"),
    (
        "SetQueueAttributes",
        "Attributes",
        &["{\"Policy\":\"x\"}", "{\"MaximumMessageSize\":\"1\"}"],
        "InvalidAttributeValue",
    ),
    (
        "SetQueueAttributes",
        "Attributes",
        &["{\"RedrivePolicy\":\"x\"}", "{\"RedriveAllowPolicy\":\"x\"}"],
        "InvalidParameterValue",
    ),
    ("GetQueueAttributes", "AttributeNames", &["[\"x\"]"], "InvalidAttributeName"),
    ("GetQueueUrl", "QueueName", &["\"nothing\"", "\"a b\""], "AWS.SimpleQueueService.NonExistentQueue"),
    (
        "GetQueueUrl",
        "QueueOwnerAWSAccountId",
        &["\"x\"", "\"999999999999\""],
        "AWS.SimpleQueueService.NonExistentQueue",
    ),
    ("ListQueues", "MaxResults", &["0", "1001"], "InvalidParameterValue"),
    ("ListQueues", "NextToken", &["\"%\""], "InvalidParameterValue"),
    ("ListDeadLetterSourceQueues", "MaxResults", &["0", "1001"], "InvalidParameterValue"),
    ("ListDeadLetterSourceQueues", "NextToken", &["\"%\""], "InvalidParameterValue"),
    ("TagQueue", "Tags", &["{\"\":\"x\"}", "{\"aws:x\":\"x\"}"], "InvalidParameterValue"),
    ("AddPermission", "Label", &["\"a b\""], "InvalidParameterValue"),
    ("AddPermission", "AWSAccountIds", &["[\"x\"]"], "InvalidParameterValue"),
    ("AddPermission", "Actions", &["[\"x\"]"], "InvalidParameterValue"),
    ("RemovePermission", "Label", &["\"nothing\""], "InvalidParameterValue"),
    ("StartMessageMoveTask", "MaxNumberOfMessagesPerSecond", &["0", "501"], "InvalidParameterValue"),
    ("StartMessageMoveTask", "SourceArn", &["\"x\""], "InvalidParameterValue"),
    (
        "StartMessageMoveTask",
        "SourceArn",
        &["\"arn:aws:sqs:us-east-1:000000000000:nothing\""],
        "ResourceNotFoundException",
    ),
    (
        "StartMessageMoveTask",
        "DestinationArn",
        &["\"arn:aws:sqs:us-east-1:000000000000:nothing\""],
        "ResourceNotFoundException",
    ),
    ("ListMessageMoveTasks", "MaxResults", &["0", "11"], "InvalidParameterValue"),
    ("ListMessageMoveTasks", "SourceArn", &["\"x\""], "InvalidParameterValue"),
    ("CancelMessageMoveTask", "TaskHandle", &["\"x\""], "InvalidParameterValue"),
];

/// Returns a request of each operation with valid values of all members.
fn whole(operation: &str, url: &str, receipt: &str, task: &str) -> Value {
    let text = |text: &str| json!({"DataType": "String", "StringValue": text});
    let message = json!({
        "QueueUrl": url, "MessageBody": "x", "DelaySeconds": 0, "MessageAttributes": {"a": text("b")},
        "MessageSystemAttributes": {"AWSTraceHeader": text("c")}, "MessageGroupId": "g",
    });
    let held = json!({"Id": "a", "QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": 60});
    let mut entry = message.clone();
    entry["Id"] = "a".into();
    match operation {
        "SendMessage" => message,
        "SendMessageBatch" => json!({"QueueUrl": url, "Entries": [entry]}),
        "ReceiveMessage" => json!({
            "QueueUrl": url, "AttributeNames": ["All"], "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"], "MaxNumberOfMessages": 1, "VisibilityTimeout": 0, "WaitTimeSeconds": 0,
        }),
        "DeleteMessage" | "ChangeMessageVisibility" => held,
        "DeleteMessageBatch" | "ChangeMessageVisibilityBatch" => json!({"QueueUrl": url, "Entries": [held]}),
        "CreateQueue" => json!({"QueueName": "q", "Attributes": {}, "tags": {}}),
        "GetQueueUrl" => json!({"QueueName": "q", "QueueOwnerAWSAccountId": "000000000000"}),
        "ListQueues" => json!({"QueueNamePrefix": "q", "MaxResults": 1, "NextToken": ""}),
        "ListDeadLetterSourceQueues" => json!({"QueueUrl": url, "MaxResults": 1, "NextToken": ""}),
        "GetQueueAttributes" => json!({"QueueUrl": url, "AttributeNames": ["All"]}),
        "SetQueueAttributes" => json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "0"}}),
        "TagQueue" => json!({"QueueUrl": url, "Tags": {"a": "b"}}),
        "UntagQueue" => json!({"QueueUrl": url, "TagKeys": ["a"]}),
        "AddPermission" => {
            json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["000000000000"], "Actions": ["*"]})
        }
        "RemovePermission" => json!({"QueueUrl": url, "Label": "l"}),
        "StartMessageMoveTask" => json!({
            "SourceArn": format!("{ARN}dead"), "DestinationArn": format!("{ARN}q"), "MaxNumberOfMessagesPerSecond": 1,
        }),
        "CancelMessageMoveTask" => json!({"TaskHandle": task}),
        "ListMessageMoveTasks" => json!({"SourceArn": format!("{ARN}dead"), "MaxResults": 1}),
        "PurgeQueue" | "ListQueueTags" | "DeleteQueue" => json!({"QueueUrl": url}),
        other => panic!("the model has {other}, and this test does not: write a request of it"),
    }
}

/// Returns values of other types than that of the model.
fn of_another_type(kind: &str) -> Vec<Value> {
    match kind {
        "string" => vec![json!(5), json!(true), json!([]), json!({})],
        "integer" | "long" => vec![json!("5"), json!("x"), json!(true), json!([]), json!({})],
        "list" => vec![json!("x"), json!(5), json!({}), json!([5]), json!([[]])],
        "map" => vec![json!("x"), json!(5), json!([]), json!({"x": 5})],
        other => panic!("the model has a type {other}, and this test does not"),
    }
}

struct Walk {
    sqs: Sqs,
    url: String,
    receipt: String,
    task: String,
}

impl Walk {
    async fn begin(server: &Server) -> Self {
        let sqs = Sqs::of(server);
        let url = sqs.create("q", json!({})).await;
        let dead = sqs.create("dead", json!({})).await;
        let policy = json!({"deadLetterTargetArn": format!("{ARN}dead"), "maxReceiveCount": 1000}).to_string();
        sqs.create("source", json!({"RedrivePolicy": policy})).await;
        sqs.send_body(&dead, "keeps the task busy").await;
        sqs.send_body(&url, "x").await;
        let receipt = sqs.receive(&url, 1, 5).await[0]["ReceiptHandle"].as_str().expect("text").to_owned();
        Self { sqs, url, receipt, task: String::new() }
    }

    fn whole(&self, operation: &str) -> Value {
        whole(operation, &self.url, &self.receipt, &self.task)
    }

    /// Tests every member of a structure as missing and of another type; `request` puts the structure into a request.
    async fn walk(&self, operation: &str, known: &Value, whole: &Value, request: &(dyn Fn(Value) -> Value + Sync)) {
        for (member, kind) in known["members"].as_object().expect("members") {
            let is_required = known["required"].as_array().expect("a list").contains(&json!(member));
            if is_required {
                let mut without = whole.clone();
                without.as_object_mut().expect("an object").remove(member);
                let answer = self.sqs.call(operation, request(without)).await;
                // An entry of a batch may fail on its own.
                let code = if answer.status >= 400 { answer.code() } else { failed(&answer) };
                let missed = MISSED.iter().find(|(name, _)| name == member);
                assert_eq!(code, missed.map_or("MissingParameter", |(_, code)| code), "{operation} without {member}");
            }
            let kind = if kind.is_object() { "list" } else { kind.as_str().expect("a type") };
            for wrong in of_another_type(kind) {
                let mut with = whole.clone();
                with[member] = wrong.clone();
                let answer = self.sqs.call(operation, request(with)).await;
                assert!(answer.status == 400, "{operation} with {member} = {wrong}: {answer:?}");
                assert_eq!(
                    answer.json()["__type"],
                    "com.amazon.coral.service#SerializationException",
                    "{operation} {member}"
                );
            }
        }
    }
}

/// Returns the code of the only failure of a batch.
fn failed(answer: &Answer) -> String {
    answer.json()["Failed"][0]["Code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn every_request_of_the_model_is_checked() {
    let server = Server::start();
    let mut walk = Walk::begin(&server).await;
    let model: Value = serde_json::from_str(MODEL).expect("JSON");
    let operations = model["operations"].as_object().expect("operations");
    assert_eq!(operations.len(), 23);
    for (name, known) in operations {
        walk.walk(name, known, &walk.whole(name), &|body| body).await;
        let entry = known["members"]["Entries"]["list"].clone();
        if entry.is_object() {
            let whole = walk.whole(name);
            let request = |entry| json!({"QueueUrl": whole["QueueUrl"], "Entries": [entry]});
            walk.walk(name, &entry, &whole["Entries"][0], &request).await;
        }
    }
    for (operation, member, values, code) in OUT_OF_RANGE {
        for value in *values {
            let mut request = walk.whole(operation);
            request[*member] = serde_json::from_str(value).expect("JSON");
            let answer = walk.sqs.call(operation, request).await;
            assert!(answer.status >= 400, "{operation} with {member} = {value}: {answer:?}");
            assert_eq!(answer.code(), *code, "{operation} with {member} = {value}");
        }
    }
    // With valid members all operations succeed; those that delete something come last.
    let last = ["DeleteMessage", "PurgeQueue", "DeleteQueue"];
    let first = ["AddPermission", "StartMessageMoveTask"];
    let rest = operations.keys().map(String::as_str).filter(|name| !first.contains(name) && !last.contains(name));
    let rest: Vec<&str> = rest.filter(|name| *name != "DeleteMessageBatch").collect();
    for name in first.into_iter().chain(rest).chain(["DeleteMessageBatch"]).chain(last) {
        let answer = walk.sqs.call(name, walk.whole(name)).await;
        if name == "CancelMessageMoveTask" {
            // It may have finished already.
            assert!(answer.status == 200 || answer.code() == "InvalidParameterValue", "{answer:?}");
            continue;
        }
        let done = answer.ok();
        assert!(done["Failed"].is_null(), "{name}: {done}");
        if name == "StartMessageMoveTask" {
            walk.task = done["TaskHandle"].as_str().expect("a handle").to_owned();
        }
    }
}
