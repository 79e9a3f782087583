//! Driver of the AWS SDK for Rust: any call by its name in the service. `drivers.py` describes the lines.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::{BufRead, stdin};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry as ChangeEntry,
    DeleteMessageBatchRequestEntry as DeleteEntry, Message, MessageAttributeValue, MessageSystemAttributeNameForSends,
    MessageSystemAttributeValue, SendMessageBatchRequestEntry as SendEntry,
};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Map, Value, json};

/// Error that is not a response of the service.
type Broken = Box<dyn Error>;

/// Outcome of a call: a response, or the names and the text of a refusal.
enum Outcome {
    Ok(Value),
    Refused(Vec<String>, String),
    Missing,
}

/// Arguments of a call.
struct With(Value);

impl With {
    fn text(&self, name: &str) -> Option<String> {
        self.0[name].as_str().map(str::to_owned)
    }

    fn number(&self, name: &str) -> Option<i32> {
        self.0[name].as_i64().and_then(|n| i32::try_from(n).ok())
    }

    fn list<T>(&self, name: &str, each: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        self.0[name].as_array().map(|list| list.iter().filter_map(each).collect())
    }

    fn names<T: From<String>>(&self, name: &str) -> Option<Vec<T>> {
        self.list(name, |each| each.as_str().map(|text| T::from(text.to_owned())))
    }

    fn entries<T>(&self, each: impl Fn(With) -> Option<T>) -> Option<Vec<T>> {
        self.list("Entries", |entry| each(With(entry.clone())))
    }

    fn map<K: From<String> + Eq + std::hash::Hash, V>(
        &self,
        name: &str,
        each: impl Fn(&Value) -> Option<V>,
    ) -> Option<HashMap<K, V>> {
        let members = self.0[name].as_object()?;
        Some(members.iter().filter_map(|(key, value)| Some((K::from(key.clone()), each(value)?))).collect())
    }

    fn texts<K: From<String> + Eq + std::hash::Hash>(&self, name: &str) -> Option<HashMap<K, String>> {
        self.map(name, |value| value.as_str().map(str::to_owned))
    }

    fn attributes(&self) -> Option<HashMap<String, MessageAttributeValue>> {
        self.map("MessageAttributes", |value| {
            let value = With(value.clone());
            let bytes = value.text("BinaryValue").and_then(|text| BASE64_STANDARD.decode(text).ok());
            MessageAttributeValue::builder()
                .set_data_type(value.text("DataType"))
                .set_string_value(value.text("StringValue"))
                .set_binary_value(bytes.map(Blob::new))
                .build()
                .ok()
        })
    }

    fn system_attributes(&self) -> Option<HashMap<MessageSystemAttributeNameForSends, MessageSystemAttributeValue>> {
        let names: HashMap<String, Value> = self.map("MessageSystemAttributes", |value| Some(value.clone()))?;
        let one = |(name, value): (String, Value)| {
            let value = With(value);
            let built = MessageSystemAttributeValue::builder()
                .set_data_type(value.text("DataType"))
                .set_string_value(value.text("StringValue"))
                .build();
            Some((MessageSystemAttributeNameForSends::from(name.as_str()), built.ok()?))
        };
        Some(names.into_iter().filter_map(one).collect())
    }
}

/// Adds a member to a response, unless it is missing.
fn put(into: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        into.insert(name.to_owned(), value.into());
    }
}

macro_rules! object {
    ($($name:literal: $value:expr),* $(,)?) => {{
        let mut object = Map::new();
        $(put(&mut object, $name, $value);)*
        Value::Object(object)
    }};
}

fn message(message: &Message) -> Value {
    let attributes = message.attributes().map(|attributes| {
        attributes.iter().map(|(name, value)| (name.as_str().to_owned(), json!(value))).collect::<Map<_, _>>()
    });
    let own = message.message_attributes().map(|attributes| {
        let one = |(name, value): (&String, &MessageAttributeValue)| {
            let value = object! {
                "DataType": Some(value.data_type()),
                "StringValue": value.string_value(),
                "BinaryValue": value.binary_value().map(|bytes| BASE64_STANDARD.encode(bytes)),
            };
            (name.clone(), value)
        };
        attributes.iter().map(one).collect::<Map<_, _>>()
    });
    object! {
        "MessageId": message.message_id(), "ReceiptHandle": message.receipt_handle(), "Body": message.body(),
        "MD5OfBody": message.md5_of_body(), "MD5OfMessageAttributes": message.md5_of_message_attributes(),
        "Attributes": attributes, "MessageAttributes": own,
    }
}

fn failed(entries: &[BatchResultErrorEntry]) -> Value {
    let one = |entry: &BatchResultErrorEntry| {
        object! {
            "Id": Some(entry.id()), "Code": Some(entry.code()), "Message": entry.message(),
            "SenderFault": Some(entry.sender_fault()),
        }
    };
    entries.iter().map(one).collect()
}

fn ids<'a>(ids: impl Iterator<Item = &'a str>) -> Value {
    ids.map(|id| json!({ "Id": id })).collect()
}

/// Returns the error code of the response and the name of the library's variant, with which its `Debug` output begins.
fn refused<E: ProvideErrorMetadata + std::fmt::Debug + Error + 'static, R: std::fmt::Debug + 'static>(
    error: SdkError<E, R>,
) -> Outcome {
    let text = DisplayErrorContext(&error).to_string();
    let SdkError::ServiceError(service) = &error else { return Outcome::Refused(Vec::new(), text) };
    let variant: String = format!("{:?}", service.err()).chars().take_while(|c| c.is_alphanumeric()).collect();
    Outcome::Refused([service.err().code().map(str::to_owned), Some(variant)].into_iter().flatten().collect(), text)
}

/// Sends a call, and converts the result to an outcome.
macro_rules! answer {
    ($call:expr, |$done:ident| $value:expr) => {
        match $call.send().await {
            Ok($done) => Outcome::Ok($value),
            Err(error) => refused(error),
        }
    };
    ($call:expr) => {
        answer!($call, |_done| json!({}))
    };
}

async fn queues(c: &Client, name: &str, w: &With) -> Outcome {
    let url = w.text("QueueUrl");
    match name {
        "CreateQueue" => answer!(
            c.create_queue()
                .set_queue_name(w.text("QueueName"))
                .set_attributes(w.map("Attributes", |v| v.as_str().map(str::to_owned)).map(named))
                .set_tags(w.texts("tags")),
            |done| object! {"QueueUrl": done.queue_url()}
        ),
        "DeleteQueue" => answer!(c.delete_queue().set_queue_url(url)),
        "PurgeQueue" => answer!(c.purge_queue().set_queue_url(url)),
        "GetQueueUrl" => answer!(c.get_queue_url().set_queue_name(w.text("QueueName")), |done| {
            object! {"QueueUrl": done.queue_url()}
        }),
        "ListQueues" => answer!(
            c.list_queues()
                .set_queue_name_prefix(w.text("QueueNamePrefix"))
                .set_max_results(w.number("MaxResults"))
                .set_next_token(w.text("NextToken")),
            |done| object! {"QueueUrls": Some(done.queue_urls().to_vec()), "NextToken": done.next_token()}
        ),
        "GetQueueAttributes" => answer!(
            c.get_queue_attributes()
                .set_queue_url(url)
                .set_attribute_names(w.list("AttributeNames", |v| v.as_str().map(Into::into))),
            |done| {
                let found = done.attributes().into_iter().flatten();
                json!({"Attributes": found.map(|(k, v)| (k.as_str().to_owned(), json!(v))).collect::<Map<_, _>>()})
            }
        ),
        "SetQueueAttributes" => answer!(
            c.set_queue_attributes()
                .set_queue_url(url)
                .set_attributes(w.map("Attributes", |v| v.as_str().map(str::to_owned)).map(named))
        ),
        "ListQueueTags" => answer!(c.list_queue_tags().set_queue_url(url), |done| json!({"Tags": done.tags()})),
        "TagQueue" => answer!(c.tag_queue().set_queue_url(url).set_tags(w.texts("Tags"))),
        "UntagQueue" => answer!(c.untag_queue().set_queue_url(url).set_tag_keys(w.names("TagKeys"))),
        "AddPermission" => answer!(
            c.add_permission()
                .set_queue_url(url)
                .set_label(w.text("Label"))
                .set_aws_account_ids(w.names("AWSAccountIds"))
                .set_actions(w.names("Actions"))
        ),
        "RemovePermission" => answer!(c.remove_permission().set_queue_url(url).set_label(w.text("Label"))),
        _ => moves(c, name, w).await,
    }
}

fn named<K: for<'a> From<&'a str> + Eq + std::hash::Hash>(texts: HashMap<String, String>) -> HashMap<K, String> {
    texts.into_iter().map(|(name, value)| (K::from(name.as_str()), value)).collect()
}

async fn moves(c: &Client, name: &str, w: &With) -> Outcome {
    match name {
        "ListDeadLetterSourceQueues" => answer!(
            c.list_dead_letter_source_queues().set_queue_url(w.text("QueueUrl")),
            |done| json!({"queueUrls": done.queue_urls()})
        ),
        "StartMessageMoveTask" => answer!(
            c.start_message_move_task()
                .set_source_arn(w.text("SourceArn"))
                .set_destination_arn(w.text("DestinationArn"))
                .set_max_number_of_messages_per_second(w.number("MaxNumberOfMessagesPerSecond")),
            |done| object! {"TaskHandle": done.task_handle()}
        ),
        "CancelMessageMoveTask" => answer!(
            c.cancel_message_move_task().set_task_handle(w.text("TaskHandle")),
            |done| json!({"ApproximateNumberOfMessagesMoved": done.approximate_number_of_messages_moved()})
        ),
        "ListMessageMoveTasks" => {
            answer!(c.list_message_move_tasks().set_source_arn(w.text("SourceArn")), |done| {
                let tasks = done.results().iter().map(|task| {
                    object! {
                        "TaskHandle": task.task_handle(), "Status": task.status(), "SourceArn": task.source_arn(),
                        "DestinationArn": task.destination_arn(),
                        "ApproximateNumberOfMessagesMoved": Some(task.approximate_number_of_messages_moved()),
                    }
                });
                json!({"Results": tasks.collect::<Vec<_>>()})
            })
        }
        _ => Outcome::Missing,
    }
}

async fn messages(c: &Client, name: &str, w: &With) -> Outcome {
    let url = w.text("QueueUrl");
    match name {
        "SendMessage" => answer!(
            c.send_message()
                .set_queue_url(url)
                .set_message_body(w.text("MessageBody"))
                .set_delay_seconds(w.number("DelaySeconds"))
                .set_message_attributes(w.attributes())
                .set_message_system_attributes(w.system_attributes())
                .set_message_group_id(w.text("MessageGroupId"))
                .set_message_deduplication_id(w.text("MessageDeduplicationId")),
            |done| object! {
                "MessageId": done.message_id(), "SequenceNumber": done.sequence_number(),
                "MD5OfMessageBody": done.md5_of_message_body(),
                "MD5OfMessageAttributes": done.md5_of_message_attributes(),
                "MD5OfMessageSystemAttributes": done.md5_of_message_system_attributes(),
            }
        ),
        "ReceiveMessage" => answer!(
            c.receive_message()
                .set_queue_url(url)
                .set_max_number_of_messages(w.number("MaxNumberOfMessages"))
                .set_wait_time_seconds(w.number("WaitTimeSeconds"))
                .set_visibility_timeout(w.number("VisibilityTimeout"))
                .set_receive_request_attempt_id(w.text("ReceiveRequestAttemptId"))
                .set_message_attribute_names(w.names("MessageAttributeNames"))
                .set_message_system_attribute_names(
                    w.list("MessageSystemAttributeNames", |v| v.as_str().map(Into::into))
                        .or_else(|| w.list("AttributeNames", |v| v.as_str().map(Into::into)))
                ),
            |done| json!({"Messages": done.messages().iter().map(message).collect::<Vec<_>>()})
        ),
        "DeleteMessage" => {
            answer!(c.delete_message().set_queue_url(url).set_receipt_handle(w.text("ReceiptHandle")))
        }
        "ChangeMessageVisibility" => answer!(
            c.change_message_visibility()
                .set_queue_url(url)
                .set_receipt_handle(w.text("ReceiptHandle"))
                .set_visibility_timeout(w.number("VisibilityTimeout"))
        ),
        _ => batches(c, name, w).await,
    }
}

async fn batches(c: &Client, name: &str, w: &With) -> Outcome {
    let url = w.text("QueueUrl");
    match name {
        "SendMessageBatch" => answer!(
            c.send_message_batch().set_queue_url(url).set_entries(w.entries(|e| {
                let entry = SendEntry::builder()
                    .set_id(e.text("Id"))
                    .set_message_body(e.text("MessageBody"))
                    .set_delay_seconds(e.number("DelaySeconds"))
                    .set_message_attributes(e.attributes())
                    .set_message_group_id(e.text("MessageGroupId"))
                    .set_message_deduplication_id(e.text("MessageDeduplicationId"));
                entry.build().ok()
            })),
            |done| {
                let sent = done.successful().iter().map(|entry| {
                    object! {
                        "Id": Some(entry.id()), "MessageId": Some(entry.message_id()),
                        "MD5OfMessageBody": Some(entry.md5_of_message_body()),
                        "MD5OfMessageAttributes": entry.md5_of_message_attributes(),
                        "SequenceNumber": entry.sequence_number(),
                    }
                });
                json!({"Successful": sent.collect::<Vec<_>>(), "Failed": failed(done.failed())})
            }
        ),
        "DeleteMessageBatch" => answer!(
            c.delete_message_batch().set_queue_url(url).set_entries(w.entries(|e| {
                DeleteEntry::builder().set_id(e.text("Id")).set_receipt_handle(e.text("ReceiptHandle")).build().ok()
            })),
            |done| json!({
                "Successful": ids(done.successful().iter().map(|entry| entry.id())), "Failed": failed(done.failed()),
            })
        ),
        "ChangeMessageVisibilityBatch" => answer!(
            c.change_message_visibility_batch().set_queue_url(url).set_entries(w.entries(|e| {
                let entry = ChangeEntry::builder()
                    .set_id(e.text("Id"))
                    .set_receipt_handle(e.text("ReceiptHandle"))
                    .set_visibility_timeout(e.number("VisibilityTimeout"));
                entry.build().ok()
            })),
            |done| json!({
                "Successful": ids(done.successful().iter().map(|entry| entry.id())), "Failed": failed(done.failed()),
            })
        ),
        _ => queues(c, name, w).await,
    }
}

fn main() -> Result<(), Broken> {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(env::var("AWS_ENDPOINT_URL")?)
        .region(Region::new(env::var("AWS_REGION")?))
        .credentials_provider(Credentials::new(
            env::var("AWS_ACCESS_KEY_ID")?,
            env::var("AWS_SECRET_ACCESS_KEY")?,
            None,
            None,
            "environment",
        ))
        // A refused call is not retried.
        .retry_config(RetryConfig::disabled())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    let client = Client::from_conf(config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}", json!({"name": "aws-sdk-rust", "version": aws_sdk_sqs::meta::PKG_VERSION}));
    for line in stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?)?;
        let name = asked["call"].as_str().unwrap_or_default();
        let with = With(asked["with"].clone());
        let answer = match runtime.block_on(messages(&client, name, &with)) {
            Outcome::Ok(value) => json!({ "ok": value }),
            Outcome::Refused(names, text) => json!({"error": {"names": names, "message": text}}),
            Outcome::Missing => json!({"missing": format!("the library has no {name}")}),
        };
        println!("{answer}");
    }
    Ok(())
}
