//! Decoding of requests and encoding of responses: query strings, bodies, and records as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use broker::{Answers, Held, Identity, Published, TopicStatus};
use bytes::{Bytes, BytesMut};
use engine::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use engine::{Error, ErrorKind, Offset, PartitionId, Record, RecordView, SettingsChange, TopicSettings};
use http_body_util::BodyExt;
use net::http::Charge;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Peer;
use super::errors::{ErrorBody, Failure, Result};
use super::names::Names;

/// Maximum time in which a client must send the body of a request.
const BODY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Name in the path of a request as the broker has it: of a topic, or a pattern, or of a group, a queue or a cache.
pub(super) struct Topic(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Topic {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(topic)) => Ok(Self(Names::from_request_parts(parts, state).await?.inner(&topic))),
            Err(rejection) => Err(Error::invalid(format!("the topic in the path: {rejection}")).into()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let caller = parts.extensions.get::<net::http::Caller>();
        let identity = parts.extensions.get::<Arc<Identity>>();
        let peer = caller.zip(identity).map(|(caller, identity)| Self::of(caller, identity.clone()));
        peer.ok_or_else(|| Error::new(ErrorKind::Internal, "a request has no connection").into())
    }
}

/// Number of items in one response to a list of topics, queues, groups, caches or entries: default and maximum.
const LIST_COUNT_DEFAULT: usize = 100;
const LIST_COUNT_MAX: usize = 1000;

/// Parameters of a request, each of which is known and occurs once.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(uri: &Uri, known: &[&str]) -> Result<Self> {
        let axum::extract::Query(given) = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|rejection| Error::invalid(format!("the query string: {rejection}")))?;
        for (i, (name, _)) in given.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Error::invalid(format!("unknown parameter '{name}'; known here: {known}")).into());
            }
            if given[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid(format!("parameter '{name}' is given twice")).into());
            }
        }
        Ok(Self(given))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>> {
        self.text(name).map(|text| parse(name, text)).transpose()
    }

    /// Returns the parameter `max`: the maximum number of items in a response, at most `most`.
    pub fn max(&self, default: usize, most: usize) -> Result<usize> {
        match self.get("max")?.unwrap_or(default) {
            0 => Err(Error::invalid("max: at least 1").into()),
            given => Ok(given.min(most)),
        }
    }

    /// Returns the parameter `max` of a list.
    pub fn list_count(&self) -> Result<usize> {
        self.max(LIST_COUNT_DEFAULT, LIST_COUNT_MAX)
    }
}

/// Parses the value of the parameter with this name.
pub(super) fn parse<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|why| Error::invalid(format!("{name}: '{text}' is not valid here: {why}")).into())
}

/// Kind of a body, as given by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// Single record, whose value is the body.
    Value,
    /// Records, each on its own line.
    Lines,
    Json,
}

impl BodyKind {
    /// Returns the kind of a body with records to publish.
    pub fn of_records(headers: &HeaderMap) -> Result<Self> {
        match essence(headers)?.as_str() {
            "" | "application/octet-stream" | "text/plain" => Ok(Self::Value),
            // Content type that `curl -d` sends for any body. The body is not parsed as a form.
            "application/x-www-form-urlencoded" => Ok(Self::Value),
            "application/x-ndjson" => Ok(Self::Lines),
            "application/json" => Ok(Self::Json),
            other => Err(wrong_type(
                other,
                "application/octet-stream or text/plain (one record), application/x-ndjson (one record per line) or \
                 application/json",
            )),
        }
    }
}

/// Refuses a body with a content type other than JSON.
pub(super) fn expect_json(headers: &HeaderMap) -> Result<()> {
    match essence(headers)?.as_str() {
        "" | "application/json" => Ok(()),
        other => Err(wrong_type(other, "application/json")),
    }
}

/// Refuses a body that is not the form of a page.
pub(super) fn expect_form(headers: &HeaderMap) -> Result<()> {
    match essence(headers)?.as_str() {
        "application/x-www-form-urlencoded" => Ok(()),
        other => Err(wrong_type(other, "application/x-www-form-urlencoded")),
    }
}

/// Returns the content type without its parameters.
fn essence(headers: &HeaderMap) -> Result<String> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(String::new());
    };
    let text = value.to_str().map_err(|error| Error::invalid(format!("the content type: {error}")))?;
    Ok(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn wrong_type(given: &str, known: &str) -> Failure {
    let message = format!("the content type '{given}' is not supported; use {known} (curl: -H 'content-type: ..')");
    Failure::with_status(Error::new(ErrorKind::Unsupported, message), StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Limits of the bodies of requests.
pub(super) struct BodyLimits {
    /// Maximum size of one body in bytes.
    pub bytes_max: usize,
    /// Bytes available to all bodies that are being read or processed.
    pub all: Arc<Semaphore>,
    /// Turns for decoding large bodies.
    pub answers: Answers,
}

/// A body, with the permit for its bytes.
pub(super) struct WholeBody {
    pub bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Reads a whole body, within the limits of size and time.
pub(super) async fn read_body(body: Body, limits: &BodyLimits) -> Result<WholeBody> {
    if body.size_hint().lower() > limits.bytes_max as u64 {
        return Err(body_too_large(limits));
    }
    match tokio::time::timeout(BODY_WAIT_MAX, read_frames(body, limits)).await {
        Ok(read) => read,
        Err(elapsed) => {
            let error = Error::new(ErrorKind::Timeout, format!("the body did not arrive in time ({elapsed})"));
            Err(Failure::with_status(error, StatusCode::REQUEST_TIMEOUT))
        }
    }
}

async fn read_frames(mut body: Body, limits: &BodyLimits) -> Result<WholeBody> {
    let mut permit: Option<OwnedSemaphorePermit> = None;
    // A body in one piece is not copied.
    let mut first = Bytes::new();
    let mut gathered = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::malformed(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else {
            // Trailers are ignored.
            continue;
        };
        if first.len() + gathered.len() + data.len() > limits.bytes_max {
            return Err(body_too_large(limits));
        }
        let right = u32::try_from(data.len()).ok().and_then(|n| limits.all.clone().try_acquire_many_owned(n).ok());
        let right =
            right.ok_or_else(|| Error::busy("too many bytes of request bodies are in flight: try again later"))?;
        match &mut permit {
            Some(permit) => permit.merge(right),
            None => permit = Some(right),
        }
        if first.is_empty() && gathered.is_empty() {
            first = data;
        } else {
            gathered.extend_from_slice(&std::mem::take(&mut first));
            gathered.extend_from_slice(&data);
        }
    }
    let bytes = if gathered.is_empty() { first } else { gathered.freeze() };
    Ok(WholeBody { bytes, _permit: permit })
}

fn body_too_large(limits: &BodyLimits) -> Failure {
    let message = format!("a body has at most {} bytes (key http_body_max_bytes)", limits.bytes_max);
    Error::too_large(message).into()
}

/// Encoding of the bytes of a record in JSON: its key, its value and the values of its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    #[default]
    Utf8,
    Base64,
}

impl Encoding {
    /// Returns the encoding for all parts: UTF-8 if all of them are text, otherwise base64.
    pub fn of<T: AsRef<[u8]>>(mut parts: impl Iterator<Item = T>) -> Self {
        if parts.all(|part| std::str::from_utf8(part.as_ref()).is_ok()) { Self::Utf8 } else { Self::Base64 }
    }

    pub fn decode(self, what: &str, text: String) -> engine::Result<Bytes> {
        match self {
            Self::Utf8 => Ok(text.into()),
            Self::Base64 => BASE64
                .decode(&text)
                .map(Bytes::from)
                .map_err(|error| Error::malformed(format!("the {what} is not base64: {error}"))),
        }
    }

    pub fn encode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes),
            Self::Base64 => BASE64.encode(bytes).into(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordsIn {
    records: Vec<RecordIn>,
}

/// A record as a client sends it. The value is required, but may be null: in a topic that keeps the latest record of
/// each key, a record without a value deletes its key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordIn {
    #[serde(default)]
    key: Option<String>,
    #[serde(deserialize_with = "nullable")]
    value: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, Option<String>>,
    #[serde(default)]
    encoding: Encoding,
}

/// Deserializes a field that may be null. Unlike for a plain `Option`, a missing field is an error.
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

impl RecordIn {
    pub fn decode(self) -> engine::Result<Record> {
        let Self { key, value, headers, encoding } = self;
        let headers = headers.into_iter().map(|(name, value)| {
            let value = value.map(|text| encoding.decode("header", text)).transpose()?;
            Ok((Bytes::from(name), value))
        });
        Ok(Record {
            key: key.map(|text| encoding.decode("key", text)).transpose()?,
            value: value.map(|text| encoding.decode("value", text)).transpose()?,
            headers: headers.collect::<engine::Result<_>>()?,
            ..Record::default()
        })
    }
}

/// Returns the lines of a body that are not blank, without their line ends.
pub(super) fn lines(body: &Bytes) -> impl Iterator<Item = Bytes> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    lines.map(|line| body.slice_ref(line.strip_suffix(b"\r").unwrap_or(line)))
}

/// Refuses more lines than a batch holds, before they are converted to records.
fn check_lines(body: &Bytes, key_bytes: usize) -> Result<()> {
    let count = lines(body).count();
    if count > BATCH_RECORDS_MAX {
        return Err(Error::too_large(format!("a batch has at most {BATCH_RECORDS_MAX} records, not {count}")).into());
    }
    if count.saturating_mul(key_bytes) > BATCH_BYTES_MAX {
        let message = format!(
            "a batch has at most {BATCH_BYTES_MAX} bytes, and {count} records with a key of {key_bytes} bytes have more"
        );
        return Err(Error::too_large(message).into());
    }
    Ok(())
}

/// Decodes the records of a publish. `key` is the key of all records of a body that cannot contain keys; they share its
/// bytes.
pub(super) fn parse_records(kind: BodyKind, body: &Bytes, key: Option<&str>) -> Result<Vec<Record>> {
    let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let record = |value: Bytes| Record { key: key.clone(), value: Some(value), ..Record::default() };
    let records: Vec<Record> = match kind {
        _ if body.is_empty() => return Err(empty("record", "{\"records\":[{\"value\":\"\"}]}")),
        BodyKind::Value => vec![record(body.clone())],
        BodyKind::Lines => {
            check_lines(body, key.as_ref().map_or(0, Bytes::len))?;
            lines(body).map(record).collect()
        }
        BodyKind::Json => {
            if key.is_some() {
                return Err(Error::invalid("key: with application/json each record contains its key").into());
            }
            let RecordsIn { records } = parse_json(body).map_err(|failure| records_expected(body, failure))?;
            let numbered = records.into_iter().enumerate().map(|(i, record)| {
                record.decode().map_err(|error| error.map_message(|why| format!("record {i}: {why}")))
            });
            numbered.collect::<engine::Result<_>>()?
        }
    };
    if records.is_empty() {
        return Err(Error::invalid("the body contains no record").into());
    }
    Ok(records)
}

/// Returns the error for an empty body, which is usually a mistake. It names the JSON for an intended empty body.
pub(super) fn empty(one: &str, json: &str) -> Failure {
    let message = format!(
        "the body is empty, but it must contain the {one}: send some bytes (curl -d 'text' or --data-binary @file); \
         for an empty {one} send JSON: {json}"
    );
    Error::invalid(message).into()
}

/// Improves the error for a JSON body without a list of records, which is most likely meant as one record.
fn records_expected(body: &Bytes, failure: Failure) -> Failure {
    // Nothing is built of the body: its values may take a hundred times its size.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    let has_none = match serde_json::from_slice::<AnyRecords>(body) {
        Ok(AnyRecords { records }) if is_object => records.is_none(),
        Ok(_) | Err(_) => !is_object && serde_json::from_slice::<IgnoredAny>(body).is_ok(),
    };
    if !has_none {
        return failure;
    }
    let message = "application/json is {\"records\":[{\"key\":..,\"value\":\"..\"}]}, and this body has no records; to \
                   publish the body itself as one record, send it with another content type (curl -H 'content-type: \
                   text/plain'), or one record per line as application/x-ndjson";
    Error::malformed(message).into()
}

/// An object of which only the presence of records matters.
#[derive(Deserialize)]
struct AnyRecords {
    #[serde(default, deserialize_with = "present")]
    records: Option<IgnoredAny>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IgnoredAny>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(Some)
}

pub(super) fn parse_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        // Reported for a word that begins like `true`, `false` or `null` but differs.
        let words = error.to_string().replace("expected ident", "not a JSON value, or a word without quotes,");
        Error::malformed(format!("the JSON: {words}")).into()
    })
}

/// Reads and decodes the JSON body of a request. A large one is decoded without blocking a thread of connections.
pub(super) async fn whole_json<T: for<'de> Deserialize<'de>>(bodies: &BodyLimits, request: Request) -> Result<T> {
    let (head, body) = request.into_parts();
    let body = read_body(body, bodies).await?;
    expect_json(&head.headers)?;
    bodies.answers.work(body.bytes.len(), || parse_json(&body.bytes)).await
}

/// Reads and decodes the JSON body of a request, if it has a body.
pub(super) async fn optional_json<T: for<'de> Deserialize<'de>>(
    bodies: &BodyLimits,
    request: Request,
) -> Result<Option<T>> {
    let (head, body) = request.into_parts();
    let body = read_body(body, bodies).await?;
    if body.bytes.is_empty() {
        return Ok(None);
    }
    expect_json(&head.headers)?;
    bodies.answers.work(body.bytes.len(), || parse_json(&body.bytes)).await.map(Some)
}

/// Text frame that a WebSocket client sends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FrameIn {
    pub publish: RecordIn,
}

/// Settings of a topic; omitted ones have their default.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsIn {
    partitions: Option<u32>,
    retention_bytes: Option<u64>,
    retention_ms: Option<u64>,
    storage: Option<String>,
    compact: Option<bool>,
    batch_bytes_max: Option<u32>,
    arrival_times: Option<bool>,
    mesh: Option<String>,
}

impl SettingsIn {
    pub fn over(&self, defaults: TopicSettings) -> engine::Result<TopicSettings> {
        Ok(TopicSettings {
            partitions: self.partitions.unwrap_or(defaults.partitions),
            retention_bytes: self.retention_bytes.unwrap_or(defaults.retention_bytes),
            retention_ms: self.retention_ms.unwrap_or(defaults.retention_ms),
            storage: self.storage.as_deref().map(str::parse).transpose()?.unwrap_or(defaults.storage),
            compact: self.compact.unwrap_or(defaults.compact),
            batch_bytes_max: self.batch_bytes_max.unwrap_or(defaults.batch_bytes_max),
            arrival_times: self.arrival_times.unwrap_or(defaults.arrival_times),
            mesh: self.mesh.as_deref().map(str::parse).transpose()?.unwrap_or(defaults.mesh),
            ..TopicSettings::default()
        })
    }
}

/// Changes of a topic.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AlterIn {
    /// New total number of partitions.
    pub partitions: Option<u32>,
    retention_bytes: Option<u64>,
    retention_ms: Option<u64>,
    compact: Option<bool>,
    batch_bytes_max: Option<u32>,
    arrival_times: Option<bool>,
    mesh: Option<String>,
}

impl AlterIn {
    /// Returns the changes other than the number of partitions.
    pub fn settings(&self) -> engine::Result<SettingsChange> {
        let Self { retention_bytes, retention_ms, compact, batch_bytes_max, arrival_times, .. } = *self;
        let change = SettingsChange { retention_bytes, retention_ms, compact, ..SettingsChange::default() };
        let mesh = self.mesh.as_deref().map(str::parse).transpose()?;
        Ok(SettingsChange { batch_bytes_max, arrival_times, mesh, ..change })
    }
}

/// Result of one published batch.
#[derive(Serialize)]
pub(super) struct ResultOut {
    partition: PartitionId,
    base_offset: Offset,
    count: u32,
    level: &'static str,
    #[serde(skip)]
    receivers: u32,
}

impl ResultOut {
    pub fn new(published: Published, count: u32) -> Self {
        let Published { partition, base_offset, receivers, is_committed, .. } = published;
        let level = if is_committed { "committed" } else { "accepted" };
        Self { partition, base_offset, count, level, receivers }
    }
}

/// Response to a publish.
#[derive(Serialize)]
pub(super) struct PublishedOut {
    results: Vec<ResultOut>,
    /// Number of receivers of all batches.
    receivers: u64,
}

impl PublishedOut {
    pub fn new(results: Vec<ResultOut>) -> Self {
        let receivers = results.iter().map(|result| u64::from(result.receivers)).sum();
        Self { results, receivers }
    }
}

/// Frames that a WebSocket client receives in addition to records.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FrameOut<'a> {
    Published(PublishedOut),
    Gap(&'a GapOut<'a>),
}

/// A record as a client receives it.
#[derive(Serialize)]
pub(super) struct RecordOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    pub partition: PartitionId,
    pub offset: Offset,
    timestamp_ms: i64,
    key: Option<Cow<'a, str>>,
    value: Option<Cow<'a, str>>,
    /// Headers; if several have the same name, the last one is used.
    headers: BTreeMap<Cow<'a, str>, Option<Cow<'a, str>>>,
    encoding: Encoding,
}

impl<'a> RecordOut<'a> {
    pub fn new(topic: Option<&'a str>, partition: PartitionId, view: &RecordView<'a>) -> Self {
        let values = view.headers().map(|(_, value)| value);
        let encoding = Encoding::of([view.key, view.value].into_iter().chain(values).flatten());
        let header = |(name, value): (&'a [u8], Option<&'a [u8]>)| {
            (String::from_utf8_lossy(name), value.map(|value| encoding.encode(value)))
        };
        Self {
            topic,
            partition,
            offset: view.offset,
            timestamp_ms: view.timestamp_ms,
            key: view.key.map(|key| encoding.encode(key)),
            value: view.value.map(|value| encoding.encode(value)),
            headers: view.headers().map(header).collect(),
            encoding,
        }
    }
}

/// Records that a subscriber does not receive: from `from` up to, but not including, `to`.
#[derive(Serialize)]
pub(super) struct GapOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<&'a str>,
    pub partition: PartitionId,
    pub from: Offset,
    pub to: Offset,
    /// Reason, unless it is overflow or retention.
    #[serde(flatten)]
    pub why: Option<ErrorBody<'a>>,
}

#[derive(Serialize)]
pub(super) struct TopicOut<'a> {
    topic: &'a str,
    id: String,
    settings: SettingsOut,
    /// Queue that owns the topic.
    owner: Option<&'a str>,
    partitions: Vec<PartitionOut>,
}

#[derive(Serialize)]
struct SettingsOut {
    partitions: u32,
    retention_bytes: u64,
    retention_ms: u64,
    storage: &'static str,
    compact: bool,
    batch_bytes_max: u32,
    arrival_times: bool,
    mesh: &'static str,
    drop_acknowledged: bool,
    keep_unacknowledged: bool,
}

#[derive(Serialize)]
struct PartitionOut {
    partition: PartitionId,
    start_offset: Offset,
    end_offset: Offset,
    bytes: u64,
    subscribers: usize,
}

/// Start of a partition after records were deleted.
#[derive(Serialize)]
pub(super) struct DeletedOut {
    pub partition: PartitionId,
    pub start_offset: Offset,
}

#[derive(Serialize)]
pub(super) struct TopicsOut<'a> {
    pub topics: Vec<TopicOut<'a>>,
    pub is_last: bool,
}

impl<'a> TopicOut<'a> {
    pub fn new(status: &'a TopicStatus, names: &Names) -> Self {
        let settings = status.settings;
        let extents = (0..).zip(&status.partitions).map(|(partition, extent)| PartitionOut {
            partition,
            start_offset: extent.start,
            end_offset: extent.end,
            bytes: extent.bytes,
            subscribers: extent.subscribers,
        });
        Self {
            topic: names.outer(status.name.as_str()),
            id: status.id.to_string(),
            settings: SettingsOut {
                partitions: settings.partitions,
                retention_bytes: settings.retention_bytes,
                retention_ms: settings.retention_ms,
                storage: settings.storage.name(),
                compact: settings.compact,
                batch_bytes_max: settings.batch_bytes_max,
                arrival_times: settings.arrival_times,
                mesh: settings.mesh.name(),
                drop_acknowledged: settings.drop_consumed,
                keep_unacknowledged: settings.keeps_unacked,
            },
            owner: status.owner.as_ref().map(|owner| names.outer(owner.as_str())),
            partitions: extents.collect(),
        }
    }
}

/// Returns a response with a JSON body.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    bytes(status, "application/json", to_json(body))
}

/// Returns a response that holds its memory until it is written.
pub(super) fn charged(content_type: &'static str, body: Vec<u8>, held: Option<Held>) -> Response {
    let mut response = bytes(StatusCode::OK, content_type, body);
    if let Some(held) = held {
        response.extensions_mut().insert(Charge::new(held));
    }
    response
}

pub(super) fn bytes(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    write_json(&mut out, value);
    out
}

pub(super) fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("invariant: texts, numbers and maps of texts have a JSON form");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of a body that is no list of records are not built to find that out.
    #[test]
    fn a_body_without_records_is_told_apart() {
        let message = |body: &str| {
            let refused = parse_records(BodyKind::Json, &Bytes::copy_from_slice(body.as_bytes()), None);
            refused.map(drop).map_err(|failure| failure.error.message)
        };
        let expected = |body: &str| message(body).is_err_and(|why| why.contains("this body has no records"));
        for body in ["{}", r#" {"value":"x"}"#, "[]", "[1]", "[0,0]", "7", "null", r#""records""#] {
            assert!(expected(body), "{body}: {:?}", message(body));
        }
        for body in [r#"{"records":null}"#, r#"{"records":7}"#, r#"{"records":[{}]}"#, r#"{"a":"#, "[0,", "x", "{} {}"]
        {
            assert!(message(body).is_err() && !expected(body), "{body}: {:?}", message(body));
        }
    }

    #[test]
    fn lines_share_their_key_and_are_counted_before_they_are_records() {
        let lines = |body: Vec<u8>, key: Option<&str>| parse_records(BodyKind::Lines, &body.into(), key);
        let records = lines(b"a\r\n \n\nb".to_vec(), Some("key")).expect("two records");
        let values: Vec<_> = records.iter().map(|record| record.value.as_deref()).collect();
        assert_eq!(values, [Some(&b"a"[..]), Some(b"b")]);
        let keys: Vec<&Bytes> = records.iter().filter_map(|record| record.key.as_ref()).collect();
        assert_eq!((keys.len(), &keys[0][..]), (2, &b"key"[..]));
        assert_eq!(keys[0].as_ptr(), keys[1].as_ptr());

        let refused = |body: Vec<u8>, key: Option<&str>| lines(body, key).map(drop).map_err(|f| f.error.message);
        let told = format!("a batch has at most {BATCH_RECORDS_MAX} records, not {}", BATCH_RECORDS_MAX + 1);
        assert_eq!(refused(b"x\n".repeat(BATCH_RECORDS_MAX + 1), None), Err(told));
        let key = "k".repeat(BATCH_BYTES_MAX / 2);
        assert_eq!(refused(b"x\n".repeat(2), Some(&key)), Ok(()));
        let told = refused(b"x\n".repeat(3), Some(&key)).expect_err("too many");
        assert!(told.contains(&format!("3 records with a key of {} bytes", key.len())), "{told}");
    }
}
