//! Topics and publishing. Properties that the broker does not have are stored in a document.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Bound;

use broker::{Broker, OutMessage};
use bytes::Bytes;
use engine::ids::is_internal;
use engine::queue::header;
use engine::{ErrorKind, SettingsChange, TopicSettings};
use prost::Message as _;

use super::errors::{Failure, Result};
use super::map::{Ask, Door};
use super::masks::distinct;
use super::names::{Kind, Name, parse_project};
use super::pages::{NAMES_PER_TURN, Page, Wanted, names_of_page, page, page_of_names, page_size};
use super::proto::{
    DeleteTopicRequest, GetTopicRequest, ListTopicSnapshotsRequest, ListTopicSnapshotsResponse,
    ListTopicSubscriptionsRequest, ListTopicSubscriptionsResponse, ListTopicsRequest, ListTopicsResponse,
    PublishRequest, PublishResponse, PubsubMessage, Topic, UpdateTopicRequest,
};
use super::times::{Bounds, DAY_MS, MINUTE_MS, duration_ms};
use super::{schemas, snapshots, trace, transforms};

const DOCUMENT: &str = "pubsub.topic";
const RETENTION: Bounds = Bounds { min_ms: 10 * MINUTE_MS, max_ms: 31 * DAY_MS };
/// Retention of a topic without a `message_retention_duration`: the default of Google's subscriptions. Google's service
/// would keep only unacknowledged messages; here other doors read the log, too.
const RETENTION_MS_DEFAULT: u64 = 7 * DAY_MS;

const MESSAGES_MAX: usize = 1000;
/// Maximum bytes of the messages of one request, and of one message.
pub(super) const PUBLISH_BYTES_MAX: usize = 10_000_000;
const ATTRIBUTES_MAX: usize = 100;
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 1024;
const ORDERING_KEY_BYTES_MAX: usize = 1024;

const LABELS_MAX: usize = 64;
const LABEL_CHARS_MAX: usize = 63;

fn missing() -> Failure {
    Failure::not_found("Topic not found")
}

impl Door {
    /// Returns a topic with its properties. A topic that another door created has default properties.
    pub(super) async fn topic(&self, name: &Name) -> Result<Topic> {
        let inner = self.names.inner(name);
        if !self.broker.has_topic(&inner) {
            return Err(missing());
        }
        self.topic_document(name, &inner).await
    }

    async fn topic_document(&self, name: &Name, inner: &str) -> Result<Topic> {
        let document = self.broker.documents.get(DOCUMENT, inner).await?.unwrap_or_default();
        let topic = Topic::decode(document).map_err(|error| {
            Failure::new(
                super::errors::Code::DataLoss,
                format!("the stored definition of topic {name} cannot be read: {error}"),
            )
        })?;
        Ok(Topic { name: name.to_string(), ..topic })
    }

    async fn keep_topic(&self, inner: &str, topic: &Topic) -> Result<()> {
        let document = Topic { name: String::new(), ..topic.clone() }.encode_to_vec();
        Ok(self.broker.documents.put(DOCUMENT, inner, Some(document.into())).await?)
    }

    /// Checks a new topic, and sets the defaults.
    async fn checked_topic(&self, mut topic: Topic) -> Result<Topic> {
        check_labels(&topic.labels)?;
        if let Some(duration) = &topic.message_retention_duration {
            let kept_ms = duration_ms(duration);
            if !kept_ms.is_some_and(|kept_ms| RETENTION.has(kept_ms)) {
                return Err(Failure::invalid("message_retention_duration out of bounds"));
            }
        }
        if let Some(settings) = &topic.schema_settings {
            schemas::check_settings(self, settings).await?;
        }
        if topic.ingestion_data_source_settings.is_some() {
            return Err(Failure::new(
                super::errors::Code::Unimplemented,
                "ingestion from other services is not supported",
            ));
        }
        transforms::check(self, &topic.message_transforms).await?;
        topic.tags = BTreeMap::new();
        topic.satisfies_pzs = false;
        topic.state = 0;
        Ok(topic)
    }
}

/// Returns the retention of the log in ms and bytes. A requested duration is a minimum, so there is no limit of bytes
/// with it. Unacknowledged messages stay for as long as their subscription specifies.
fn retention(topic: &Topic) -> (u64, u64) {
    match topic.message_retention_duration.as_ref().and_then(duration_ms) {
        Some(kept_ms) => (kept_ms, 0),
        None => (RETENTION_MS_DEFAULT, TopicSettings::DEFAULT),
    }
}

pub(super) async fn create(ask: Ask, topic: Topic) -> Result<Topic> {
    let door = &ask.door;
    let name = Name::parse(Kind::Topic, &topic.name)?;
    let inner = door.names.inner(&name);
    let topic = door.checked_topic(topic).await?;
    if door.broker.has_topic(&inner) {
        return Err(Failure::exists("Topic already exists"));
    }
    let (retention_ms, retention_bytes) = retention(&topic);
    let settings = TopicSettings { retention_ms, retention_bytes, keeps_unacked: true, ..TopicSettings::of_broker() };
    door.broker.create_topic(&inner, settings).await?;
    if let Err(failure) = door.keep_topic(&inner, &topic).await {
        door.broker.delete_topic(&inner).await?;
        return Err(failure);
    }
    Ok(topic)
}

pub(super) async fn get(ask: Ask, request: GetTopicRequest) -> Result<Topic> {
    ask.door.topic(&Name::parse(Kind::Topic, &request.topic)?).await
}

pub(super) async fn update(ask: Ask, request: UpdateTopicRequest) -> Result<Topic> {
    let given = request.topic.ok_or_else(|| Failure::invalid("Invalid [topics] name: (name=)"))?;
    let name = Name::parse(Kind::Topic, &given.name)?;
    let paths = distinct(request.update_mask);
    if paths.is_empty() {
        let message = "The update_mask in the UpdateTopicRequest must be set, and must contain a non-empty paths list.";
        return Err(Failure::invalid(message));
    }
    let mut topic = ask.door.topic(&name).await?;
    for path in &paths {
        match path.as_str() {
            "labels" => topic.labels = given.labels.clone(),
            "message_storage_policy" => topic.message_storage_policy = given.message_storage_policy.clone(),
            "kms_key_name" => topic.kms_key_name = given.kms_key_name.clone(),
            "schema_settings" => topic.schema_settings = given.schema_settings.clone(),
            "message_retention_duration" => topic.message_retention_duration = given.message_retention_duration,
            "ingestion_data_source_settings" => {
                topic.ingestion_data_source_settings = given.ingestion_data_source_settings.clone();
            }
            "message_transforms" => topic.message_transforms = given.message_transforms.clone(),
            other => match other.split_once('.') {
                Some(("schema_settings", field)) => {
                    let given = given.schema_settings.as_ref();
                    let settings = topic.schema_settings.get_or_insert_default();
                    match field {
                        "schema" => settings.schema = given.map(|given| given.schema.clone()).unwrap_or_default(),
                        "encoding" => settings.encoding = given.map_or(0, |given| given.encoding),
                        "first_revision_id" => {
                            settings.first_revision_id =
                                given.map(|given| given.first_revision_id.clone()).unwrap_or_default();
                        }
                        "last_revision_id" => {
                            settings.last_revision_id =
                                given.map(|given| given.last_revision_id.clone()).unwrap_or_default();
                        }
                        _ => return Err(unknown_path(other)),
                    }
                }
                _ => return Err(unknown_path(other)),
            },
        }
    }
    let topic = ask.door.checked_topic(topic).await?;
    let inner = ask.door.names.inner(&name);
    if paths.iter().any(|path| path == "message_retention_duration") {
        let (retention_ms, retention_bytes) = retention(&topic);
        let change = SettingsChange {
            retention_ms: Some(retention_ms),
            retention_bytes: Some(retention_bytes),
            drop_consumed: Some(false),
            keeps_unacked: Some(true),
            ..SettingsChange::default()
        };
        ask.door.broker.alter_topic(&inner, change).await?;
    }
    ask.door.keep_topic(&inner, &topic).await?;
    Ok(topic)
}

fn unknown_path(path: &str) -> Failure {
    Failure::invalid(format!(
        "Invalid update_mask provided in the UpdateTopicRequest: {path} is not a known Topic field. Note that field \
         paths must be of the form 'schema_settings' rather than 'schemaSettings'."
    ))
}

pub(super) async fn list(ask: Ask, request: ListTopicsRequest) -> Result<ListTopicsResponse> {
    let door = &ask.door;
    let project = parse_project(&request.project)?;
    let shows = |inner: &str| !is_internal(inner) && ask.shows(Kind::Topic, inner);
    let next = |from| ready(Ok(names_from(&door.broker, from)));
    let wanted = Wanted { project, size: page_size(request.page_size)?, token: &request.page_token };
    let Page { items: names, next_page_token } = names_of_page(&door.names, Kind::Topic, wanted, shows, next).await?;
    let mut topics = Vec::with_capacity(names.len());
    for name in names {
        topics.push(door.topic_document(&name, &door.names.inner(&name)).await?);
    }
    Ok(ListTopicsResponse { topics, next_page_token })
}

/// Returns the next names of topics in their order; none after the last.
fn names_from(broker: &Broker, from: Bound<String>) -> Vec<String> {
    let from = from.as_ref().map(String::as_str);
    let outlines = broker.outline_topics_from(from, NAMES_PER_TURN).into_iter();
    outlines.map(|outline| outline.name.to_string()).collect()
}

pub(super) async fn list_subscriptions(
    ask: Ask,
    request: ListTopicSubscriptionsRequest,
) -> Result<ListTopicSubscriptionsResponse> {
    let door = &ask.door;
    let name = Name::parse(Kind::Topic, &request.topic)?;
    door.topic(&name).await?;
    let queues = door.broker.queues.over(&door.names.inner(&name)).await?;
    let shown = |inner: &str| {
        let is_shown = ask.shows(Kind::Subscription, inner);
        is_shown.then(|| door.names.outer(Kind::Subscription, inner).to_string())
    };
    let names = queues.iter().map(|queue| shown(queue.name.as_str()));
    let Page { items, next_page_token } = page_of_names(names, request.page_size, &request.page_token).await?;
    Ok(ListTopicSubscriptionsResponse { subscriptions: items, next_page_token })
}

pub(super) async fn list_snapshots(ask: Ask, request: ListTopicSnapshotsRequest) -> Result<ListTopicSnapshotsResponse> {
    let name = Name::parse(Kind::Topic, &request.topic)?;
    ask.door.topic(&name).await?;
    let snapshots = snapshots::over(&ask.door, &name).await?;
    let inner = |name: &str| Name::parse(Kind::Snapshot, name).ok().map(|name| ask.door.names.inner(&name));
    let is_shown = |name: &String| inner(name).is_some_and(|inner| ask.shows(Kind::Snapshot, &inner));
    let names = snapshots.into_iter().map(|snapshot| snapshot.name).filter(is_shown);
    let Page { items, next_page_token } = page(names, String::clone, request.page_size, &request.page_token)?;
    Ok(ListTopicSnapshotsResponse { snapshots: items, next_page_token })
}

/// Deletes a topic. Its subscriptions remain, and show that their topic was deleted.
pub(super) async fn delete(ask: Ask, request: DeleteTopicRequest) -> Result<()> {
    let door = &ask.door;
    let name = Name::parse(Kind::Topic, &request.topic)?;
    let inner = door.names.inner(&name);
    if !door.broker.has_topic(&inner) {
        return Err(missing());
    }
    door.leave_topic(&inner).await?;
    match door.broker.delete_topic(&inner).await {
        Err(error) if error.kind == ErrorKind::NotFound => return Err(missing()),
        deleted => deleted?,
    }
    door.broker.documents.put(DOCUMENT, &inner, None).await?;
    super::policies::forget(door, &name).await
}

pub(super) async fn publish(ask: Ask, request: PublishRequest) -> Result<PublishResponse> {
    let door = &ask.door;
    let name = Name::parse(Kind::Topic, &request.topic)?;
    check_messages(&request.messages)?;
    let topic = door.topic(&name).await?;
    // Transforms are applied first: the schema describes the contents of the topic.
    let has_transforms = topic.message_transforms.iter().any(|transform| !transform.disabled);
    let published = transforms::publish(door, topic.message_transforms, request.messages).await?;
    let is_published: Vec<bool> = published.iter().map(Option::is_some).collect();
    let mut messages: Vec<PubsubMessage> = published.into_iter().flatten().collect();
    if has_transforms && !messages.is_empty() {
        check_messages(&messages).map_err(invalid_output)?;
    }
    schemas::check_messages(door, topic.schema_settings.as_ref(), &mut messages).await?;
    let mut sent = send(door, &door.names.inner(&name), &messages).await?.into_iter().peekable();
    let id_of = |is_published: bool| sent.next_if(|_| is_published).map_or_else(new_id, Ok);
    let message_ids = is_published.into_iter().map(id_of).collect::<Result<_>>()?;
    Ok(PublishResponse { message_ids })
}

/// Adds to a failure that it is that of the messages that transforms returned.
pub(super) fn invalid_output(failure: Failure) -> Failure {
    Failure { message: format!("the output of message_transforms is not valid: {}", failure.message), ..failure }
}

/// Returns an id for a filtered message: its publisher must not notice the filter.
fn new_id() -> Result<String> {
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).map_err(|error| {
        Failure::new(super::errors::Code::Unavailable, format!("cannot get random numbers from the system: {error}"))
    })?;
    let bits = u128::from_be_bytes(random) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// Publishes messages to a topic and returns their ids.
async fn send(door: &Door, inner: &str, messages: &[PubsubMessage]) -> Result<Vec<String>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let headers: Vec<Vec<(&str, &[u8])>> = messages
        .iter()
        .map(|message| {
            let own = message.attributes.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
            own.chain(trace::added(|name| message.attributes.get(name).map(String::as_str))).collect()
        })
        .collect();
    let messages: Vec<OutMessage<'_>> = messages
        .iter()
        .zip(&headers)
        .map(|(message, headers)| OutMessage {
            body: &message.data,
            group: Some(message.ordering_key.as_bytes()).filter(|key| !key.is_empty()),
            headers,
            ..OutMessage::default()
        })
        .collect();
    let sent = door.broker.queues.send_to_topic(inner, &messages).await?;
    Ok(sent.iter().map(|sent| sent.id.to_string()).collect())
}

pub(super) fn too_large(what: &str, given: usize, max: usize) -> Failure {
    Failure::invalid(format!(
        "The value for {what} is too large. You passed {given} in the request, but the maximum value is {max}."
    ))
}

fn check_messages(messages: &[PubsubMessage]) -> Result<()> {
    if messages.is_empty() {
        return Err(Failure::invalid("No messages to publish"));
    }
    if messages.len() > MESSAGES_MAX {
        return Err(too_large("message_count", messages.len(), MESSAGES_MAX));
    }
    let bytes: usize = messages.iter().map(prost::Message::encoded_len).sum();
    if bytes > PUBLISH_BYTES_MAX {
        return Err(too_large("request_size", bytes, PUBLISH_BYTES_MAX));
    }
    messages.iter().try_for_each(check_message)
}

fn check_message(message: &PubsubMessage) -> Result<()> {
    check_size(message)?;
    let is_reserved =
        |key: &&String| key.starts_with("goog") && !trace::is_of_library(key) || key.starts_with(header::PREFIX);
    match message.attributes.keys().find(is_reserved) {
        Some(key) => Err(Failure::invalid(format!("Invalid attribute key: (key={key})"))),
        None => Ok(()),
    }
}

/// Checks that a message is not empty and does not exceed the limits.
pub(super) fn check_size(message: &PubsubMessage) -> Result<()> {
    if message.data.is_empty() && message.attributes.is_empty() {
        return Err(Failure::invalid("Some messages are empty"));
    }
    if message.encoded_len() > PUBLISH_BYTES_MAX {
        return Err(too_large("message_size", message.encoded_len(), PUBLISH_BYTES_MAX));
    }
    if message.attributes.len() > ATTRIBUTES_MAX {
        return Err(too_large("attribute_count", message.attributes.len(), ATTRIBUTES_MAX));
    }
    for (key, value) in &message.attributes {
        if key.len() > KEY_BYTES_MAX {
            return Err(too_large("attribute_key_size", key.len(), KEY_BYTES_MAX));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(too_large("attribute_value_size", value.len(), VALUE_BYTES_MAX));
        }
        if key.is_empty() {
            return Err(Failure::invalid(format!("Invalid attribute key: (key={key})")));
        }
    }
    if message.ordering_key.len() > ORDERING_KEY_BYTES_MAX {
        return Err(too_large("ordering_key_size", message.ordering_key.len(), ORDERING_KEY_BYTES_MAX));
    }
    Ok(())
}

/// Checks labels: at most 64, of lowercase letters, digits, `_` and `-`; keys begin with a letter.
pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    if labels.len() > LABELS_MAX {
        return Err(too_large("label_count", labels.len(), LABELS_MAX));
    }
    let is_char = |c: char| {
        c.is_lowercase() || c.is_numeric() || c == '_' || c == '-' || (c.is_alphabetic() && !c.is_uppercase())
    };
    let is_part = |text: &str| text.chars().count() <= LABEL_CHARS_MAX && text.chars().all(is_char);
    for (key, value) in labels {
        if key.is_empty() || !is_part(key) || !key.starts_with(|c: char| c.is_alphabetic()) {
            return Err(Failure::invalid(format!("Invalid label key: (key={key})")));
        }
        if !is_part(value) {
            return Err(Failure::invalid(format!("Invalid label value: (key={key}, value={value})")));
        }
    }
    Ok(())
}

/// Returns a received message in the form that is sent to a subscriber.
pub(super) fn received(received: &broker::Received) -> PubsubMessage {
    let message = &received.message;
    let mut attributes = message.headers().map(|(name, value)| (text(name), text(value))).collect();
    trace::show(&mut attributes);
    PubsubMessage {
        data: message.body().clone(),
        attributes,
        message_id: received.id.to_string(),
        publish_time: Some(super::times::timestamp(received.sent_ms)),
        ordering_key: message.group().map(text).unwrap_or_default(),
    }
}

/// Converts bytes to a string; bytes that are not UTF-8 are encoded in base64.
fn text(bytes: &Bytes) -> String {
    use base64::Engine;
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => base64::engine::general_purpose::STANDARD.encode(bytes),
    }
}

#[cfg(test)]
#[path = "topics_tests.rs"]
mod tests;
