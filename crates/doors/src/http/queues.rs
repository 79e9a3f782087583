//! Queues over HTTP: their settings, sending and receiving of messages, and changes of leases.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use broker::{
    Broker, FREE_BYTES, Held, Identity, NewQueue, OutMessage, QueueStart, Receipt, Receive, Received, Redrive,
    RedriveState, SEND_MAX, SeekTo, Sent,
};
use bytes::Bytes;
use engine::queue::{
    LeaseError, Message, MessageId, Phase, QueueDefinition, QueueName, QueueSettings, SettingValue, header,
};
use engine::security::ResourceKind;
use engine::{Error, ErrorKind, Offset, PartitionId, TopicName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bounded::{Few, Named};
use super::codec::{self, BodyKind, Encoding, Query, Topic};
use super::errors::{Failure, Result};
use super::map::ROOM_WAIT;
use super::names::Names;
use super::page::{json_bytes, json_bytes_max};
use super::trace::RequestTrace;
use super::{Http, Peer};

/// Maximum bytes of messages in one response. The first message may be larger.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Number of messages that a peek reads together.
const PEEK_TOGETHER: usize = 16;
const PEEK_COUNT_DEFAULT: usize = 10;
/// Number of queues that a list describes before other tasks of the thread get their turn.
const DESCRIBED_TOGETHER: usize = 16;
/// Setting of a queue with the topic to which its failed messages are published.
const DEAD_LETTER: &str = "dead_letter";

pub(super) async fn list(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["prefix", "after", "max"])?;
    let count_max = query.list_count()?;
    let text = |name| names.beginning(query.text(name).unwrap_or_default());
    let is_shown = |queue: &str| http.broker.is_shown(&identity, ResourceKind::Queue, queue);
    let (definitions, is_last) = http.broker.queues.list(&text("prefix"), &text("after"), count_max, is_shown).await?;
    let queues = all_shown(&http.broker, &names, &definitions).await?;
    Ok(codec::json(StatusCode::OK, &json!({ "queues": queues, "is_last": is_last })))
}

/// Describes queues. Other tasks of the thread run in between.
async fn all_shown(broker: &Broker, names: &Names, definitions: &[Arc<QueueDefinition>]) -> Result<Vec<Value>> {
    let mut queues = Vec::with_capacity(definitions.len());
    for definition in definitions {
        queues.push(shown(broker, names, definition).await?);
        if queues.len() % DESCRIBED_TOGETHER == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(queues)
}

pub(super) async fn create(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    Topic(queue): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let given = codec::optional_json(&http.bodies, request).await?.map_or_else(Vec::new, |Named(given)| given);
    let mut new = NewQueue::new(QueueName::parse(&queue)?);
    for (name, value) in given {
        let text = || value.as_str().ok_or_else(|| Error::invalid(format!("{name} is a text, not {value}")));
        match name.as_str() {
            "topic" => new.topic = Some(TopicName::parse(&names.inner(text()?))?),
            "storage" => new.storage = text()?.parse()?,
            "start" => {
                new.start = match text()? {
                    "earliest" => QueueStart::Earliest,
                    "live" => QueueStart::Live,
                    other => return Err(Error::invalid(format!("start is earliest or live, not '{other}'")).into()),
                }
            }
            setting => set(&mut new.settings, &names, setting, &value)?,
        }
    }
    let topic = new.topic.as_ref().map(TopicName::as_str);
    http.broker.authorize_queue_creation(&identity, &queue, topic).await?;
    let dead_letter = new.settings.dead_letter.as_ref().map_or("", TopicName::as_str);
    http.broker.authorize_dead_letters(&identity, dead_letter).await?;
    let existed = http.broker.queues.get(&queue).await.is_ok();
    let definition = http.broker.queues.create(new).await?;
    let code = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok(codec::json(code, &shown(&http.broker, &names, &definition).await?))
}

pub(super) async fn alter(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    Topic(queue): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let Named(wanted) = codec::whole_json(&http.bodies, request).await?;
    if wanted.is_empty() {
        return Err(
            Error::invalid("name at least one setting to change: lease_ms, attempts_max, dead_letter, ...").into()
        );
    }
    let dead_letter = wanted.iter().rev().find(|(name, _)| name == DEAD_LETTER);
    let dead_letter = names.inner(dead_letter.and_then(|(_, topic)| topic.as_str()).unwrap_or_default());
    http.broker.authorize_dead_letters(&identity, &dead_letter).await?;
    let change = |definition: &mut QueueDefinition| {
        wanted.iter().try_for_each(|(name, value)| set(&mut definition.settings, &names, name, value))
    };
    let definition = http.broker.queues.alter(&queue, change).await?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker, &names, &definition).await?))
}

pub(super) async fn describe(
    State(http): State<Arc<Http>>,
    Topic(queue): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let definition = http.broker.queues.get(&queue).await?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker, &names, &definition).await?))
}

pub(super) async fn delete(State(http): State<Arc<Http>>, Topic(queue): Topic, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.queues.delete(&queue).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets a setting. The value must have the JSON type that the setting is shown with; `null` clears a text.
fn set(settings: &mut QueueSettings, names: &Names, name: &str, value: &Value) -> engine::Result<()> {
    let known = settings.named().into_iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let text = match (known, value) {
        (Some(SettingValue::Count(_)), Value::Number(count)) => count.to_string(),
        (Some(SettingValue::Flag(_)), Value::Bool(flag)) => flag.to_string(),
        (Some(SettingValue::Text(_)), Value::String(topic)) if name == DEAD_LETTER => names.inner(topic),
        (Some(SettingValue::Text(_)), Value::String(text)) => text.clone(),
        (Some(SettingValue::Text(_)), Value::Null) => String::new(),
        // The error of the call below names the known settings.
        (None, _) => String::new(),
        (Some(_), _) => return Err(Error::invalid(format!("{name}: {value} is not valid here"))),
    };
    settings.set(name, &text)
}

async fn shown(broker: &Broker, names: &Names, definition: &QueueDefinition) -> Result<Value> {
    let counts = match broker.queues.counts(definition.name.as_str()).await {
        Ok(counts) => json!({
            "visible": counts.visible,
            "in_flight": counts.in_flight,
            "delayed": counts.delayed,
            "bytes": counts.bytes,
            "oldest_ms": counts.oldest_ms,
            "noisy_groups": counts.noisy_groups,
        }),
        // The topic of the queue was deleted, or the queue cannot begin again over a new one yet.
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Busy) => Value::Null,
        Err(error) => return Err(error.into()),
    };
    let setting = |(name, value): (&str, SettingValue)| {
        let value = match value {
            SettingValue::Count(count) => json!(count),
            SettingValue::Flag(flag) => json!(flag),
            SettingValue::Text(topic) if name == DEAD_LETTER => {
                json!(Some(names.outer(&topic)).filter(|topic| !topic.is_empty()))
            }
            SettingValue::Text(text) => json!(Some(text).filter(|text| !text.is_empty())),
        };
        (name.to_owned(), value)
    };
    Ok(json!({
        "queue": names.outer(definition.name.as_str()),
        "topic": names.outer(definition.topic.as_str()),
        "owns_topic": definition.owns_topic,
        "created_ms": definition.created_ms,
        "altered_ms": definition.altered_ms,
        "settings": definition.settings.named().into_iter().map(setting).collect::<Map<_, _>>(),
        "counts": counts,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagesIn {
    messages: Few<MessageIn, SEND_MAX>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageIn {
    body: String,
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    dedup: Option<String>,
    #[serde(default)]
    delay_ms: Option<u64>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    encoding: Encoding,
}

/// Decoded message, which shares the bytes of the request if possible.
struct Draft {
    body: Bytes,
    group: Option<Bytes>,
    dedup: Option<String>,
    delay_ms: Option<u64>,
    headers: Vec<(String, Bytes)>,
}

impl MessageIn {
    fn decode(self) -> engine::Result<Draft> {
        let Self { body, group, dedup, delay_ms, headers, encoding } = self;
        let header = |(name, value): (String, String)| {
            if name.starts_with(header::PREFIX) {
                let message = format!("header {name}: names that begin with thalweg. are reserved for the broker");
                return Err(Error::invalid(message));
            }
            Ok((name, encoding.decode("header", value)?))
        };
        Ok(Draft {
            body: encoding.decode("body", body)?,
            group: group.map(|group| encoding.decode("group", group)).transpose()?,
            dedup,
            delay_ms,
            headers: headers.into_iter().map(header).collect::<engine::Result<_>>()?,
        })
    }
}

pub(super) async fn send(State(http): State<Arc<Http>>, Topic(queue): Topic, request: Request) -> Result<Response> {
    let query = Query::parse(request.uri(), &["group", "dedup", "delay_ms"])?;
    let kind = BodyKind::of_records(request.headers())?;
    let trace = RequestTrace::of(request.headers());
    let body = codec::read_body(request.into_body(), &http.bodies).await?;
    let decode = || drafts(kind, &body.bytes, &query);
    let mut drafts = http.broker.answers().work(body.bytes.len(), decode).await?;
    if let Some(trace) = trace {
        drafts.iter_mut().for_each(|draft| trace.add_to_message(&mut draft.headers));
    }
    let sent = send_drafts(&http.broker, &queue, &drafts).await?;
    Ok(codec::json(StatusCode::OK, &json!({ "messages": sent })))
}

/// Decodes the messages of a body. The parameters apply to each of them.
fn drafts(kind: BodyKind, body: &Bytes, query: &Query) -> Result<Vec<Draft>> {
    let group = query.text("group").map(|group| Bytes::copy_from_slice(group.as_bytes()));
    let dedup = query.text("dedup");
    let delay_ms = query.get("delay_ms")?;
    let draft = |body: Bytes| {
        let group = group.clone();
        let dedup = dedup.map(str::to_owned);
        Draft { body, group, dedup, delay_ms, headers: Vec::new() }
    };
    match kind {
        _ if body.is_empty() => Err(codec::empty("message", "{\"messages\":[{\"body\":\"\"}]}")),
        BodyKind::Value => Ok(vec![draft(body.clone())]),
        BodyKind::Lines => {
            let count = codec::lines(body).count();
            check_count(count)?;
            if dedup.is_some() && count > 1 {
                let message = format!(
                    "dedup is the id of one message, and the body has {count} lines: send application/json, in which \
                     each message has its own id"
                );
                return Err(Error::invalid(message).into());
            }
            Ok(codec::lines(body).map(draft).collect())
        }
        BodyKind::Json => {
            if ["group", "dedup", "delay_ms"].iter().any(|name| query.text(name).is_some()) {
                return Err(Error::invalid(
                    "with application/json, each message contains its group, dedup and delay_ms",
                )
                .into());
            }
            decode_messages(body)
        }
    }
}

/// Refuses a number of messages that the broker would refuse, before memory is used for them.
fn check_count(messages: usize) -> engine::Result<()> {
    match messages {
        1..=SEND_MAX => Ok(()),
        _ => Err(Error::invalid(format!("a request sends 1 to {SEND_MAX} messages, not {messages}"))),
    }
}

fn decode_messages(body: &Bytes) -> Result<Vec<Draft>> {
    let MessagesIn { messages: Few { first, count } } = codec::parse_json(body)?;
    check_count(count)?;
    let numbered = first
        .into_iter()
        .enumerate()
        .map(|(i, message)| message.decode().map_err(|error| error.map_message(|why| format!("message {i}: {why}"))));
    Ok(numbered.collect::<engine::Result<_>>()?)
}

/// Sends messages and returns their results. If none was accepted, the first error is returned.
async fn send_drafts(broker: &Broker, queue: &str, drafts: &[Draft]) -> Result<Vec<Value>> {
    let headers: Vec<Vec<(&str, &[u8])>> = drafts
        .iter()
        .map(|draft| draft.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect())
        .collect();
    let out = drafts.iter().zip(&headers).map(|(draft, headers)| OutMessage {
        body: &draft.body,
        group: draft.group.as_deref(),
        dedup: draft.dedup.as_deref(),
        headers,
        delay_ms: draft.delay_ms,
    });
    let sent = broker.queues.send(queue, &out.collect::<Vec<_>>()).await?;
    if !sent.iter().any(engine::Result::is_ok)
        && let Some(Err(error)) = sent.first()
    {
        return Err(error.clone().into());
    }
    let one = |sent: engine::Result<Sent>| match sent {
        Ok(Sent { id, partition, offset, is_duplicate }) => {
            json!({ "id": id.to_string(), "partition": partition, "offset": offset, "is_duplicate": is_duplicate })
        }
        Err(error) => json!(Failure::from(error).body()),
    };
    Ok(sent.into_iter().map(one).collect())
}

/// A message as a client receives it.
#[derive(Serialize)]
struct MessageOut<'a> {
    id: String,
    partition: PartitionId,
    offset: Offset,
    sent_ms: u64,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_received_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_ms: Option<u64>,
    /// Queue whose dead letter the message is.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    group: Option<Cow<'a, str>>,
    headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// Body; null if the record has no value.
    body: Option<Cow<'a, str>>,
    encoding: Encoding,
}

impl<'a> MessageOut<'a> {
    fn new(id: MessageId, partition: PartitionId, message: &'a Message, attempts: u32, names: &Names) -> Self {
        let values = message.headers().map(|(_, value)| value);
        let encoding = Encoding::of([Some(message.body()), message.group()].into_iter().flatten().chain(values));
        let header = |(name, value): (&'a Bytes, &'a Bytes)| (String::from_utf8_lossy(name), encoding.encode(value));
        Self {
            id: id.to_string(),
            partition,
            offset: message.offset(),
            sent_ms: message.sent_ms(),
            attempts,
            receipt: None,
            first_received_ms: None,
            phase: None,
            due_ms: None,
            source: message.header(header::SOURCE).map(|source| names.outer(source)),
            group: message.group().map(|group| encoding.encode(group)),
            headers: message.headers().map(header).collect(),
            body: message.record().value.as_ref().map(|value| encoding.encode(value)),
            encoding,
        }
    }
}

pub(super) async fn receive(
    State(http): State<Arc<Http>>,
    Topic(queue): Topic,
    names: Names,
    peer: Peer,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["max", "wait_ms", "lease_ms"])?;
    let max = query.max(1, broker::RECEIVE_MAX)?;
    let wanted = Receive {
        max,
        bytes_max: ANSWER_BYTES_MAX,
        lease_ms: query.get("lease_ms")?,
        wait: Duration::from_millis(query.get("wait_ms")?.unwrap_or_default()),
    };
    let definition = http.broker.queues.get(&queue).await?;
    let answers = http.broker.answers();
    let address = Some(peer.address);
    answers.wait_for_turn(address, ROOM_WAIT).await?;
    let received = wait_for_messages(&http.broker, &queue, &wanted, peer).await?;
    let stored = received.iter().map(|one| one.message.bytes()).sum();
    let held = match answers.work(stored, || answer_bytes_max(&received)).await {
        ..=FREE_BYTES => None,
        bytes => match answers.take(address, bytes, ROOM_WAIT).await {
            Ok(held) => Some(held),
            Err(error) => {
                http.broker.queues.untake(&queue, received).await?;
                return Err(error.into());
            }
        },
    };
    let show_all = || -> engine::Result<Vec<MessageOut<'_>>> {
        let mut messages = Vec::with_capacity(received.len());
        for one in &received {
            let receipt = http.broker.queues.seal(&definition, &one.receipt)?;
            messages.push(MessageOut {
                receipt: Some(receipt),
                first_received_ms: Some(one.first_received_ms),
                ..MessageOut::new(one.id, one.receipt.partition, &one.message, one.attempts, &names)
            });
        }
        Ok(messages)
    };
    let messages = answers.work(stored, show_all).await?;
    let lease_ms = wanted.lease_ms.unwrap_or(definition.settings.lease_ms);
    let bytes = held.as_ref().map_or(0, Held::bytes);
    let mut body = answers.work(bytes, || codec::to_json(&ReceivedOut { lease_ms, messages })).await;
    body.shrink_to_fit();
    let held = held.map(|mut held| {
        held.shrink(body.len());
        held
    });
    Ok(codec::charged("application/json", body, held))
}

#[derive(Serialize)]
struct ReceivedOut<'a> {
    lease_ms: u64,
    messages: Vec<MessageOut<'a>>,
}

/// Returns the maximum size of a response with these messages: values as text or base64, and JSON.
fn answer_bytes_max(received: &[Received]) -> usize {
    let of = |one: &Received| {
        let bytes = one.message.bytes();
        // Most messages are small. For these the exact number of escaped bytes does not matter.
        match json_bytes_max(bytes, 1) {
            most @ ..=FREE_BYTES => most,
            _ => {
                let body = one.message.body();
                let encoding = Encoding::of([body].into_iter());
                let rest = bytes.saturating_sub(body.len());
                bytes.div_ceil(3) * 4 + json_bytes(encoding, body).max(bytes.div_ceil(3) * 4) + json_bytes_max(rest, 1)
            }
        }
    };
    received.iter().map(of).sum()
}

/// Waits for messages as long as the client requests, but not beyond the beginning of the drain.
async fn wait_for_messages(
    broker: &Arc<Broker>,
    queue: &str,
    wanted: &Receive,
    mut peer: Peer,
) -> engine::Result<Vec<Received>> {
    tokio::select! {
        received = broker.receive(&peer.identity, queue, wanted) => received,
        () = peer.drain.begun() => broker.queues.receive(queue, &Receive { wait: Duration::ZERO, ..*wanted }).await,
    }
}

/// Receipts of a request.
type Receipts = Few<String, { broker::RECEIVE_MAX }>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcksIn {
    receipts: Receipts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NacksIn {
    receipts: Receipts,
    #[serde(default)]
    delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtensionsIn {
    receipts: Receipts,
    lease_ms: u64,
}

pub(super) async fn ack(State(http): State<Arc<Http>>, Topic(queue): Topic, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let AcksIn { receipts } = codec::whole_json(&http.bodies, request).await?;
    let broker = &http.broker;
    let name = &queue;
    settle(broker, name, receipts, async |receipts| broker.queues.ack(name, &receipts).await).await
}

pub(super) async fn nack(State(http): State<Arc<Http>>, Topic(queue): Topic, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let NacksIn { receipts, delay_ms } = codec::whole_json(&http.bodies, request).await?;
    let broker = &http.broker;
    let name = &queue;
    settle(broker, name, receipts, async |receipts| {
        let leases: Vec<_> = receipts.into_iter().map(|receipt| (receipt, delay_ms)).collect();
        broker.queues.nack(name, &leases).await
    })
    .await
}

pub(super) async fn extend(State(http): State<Arc<Http>>, Topic(queue): Topic, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let ExtensionsIn { receipts, lease_ms } = codec::whole_json(&http.bodies, request).await?;
    let broker = &http.broker;
    let name = &queue;
    settle(broker, name, receipts, async |receipts| {
        let leases: Vec<_> = receipts.into_iter().map(|receipt| (receipt, lease_ms)).collect();
        broker.queues.extend(name, &leases).await
    })
    .await
}

/// Applies `change` to the leases whose receipts are valid for this queue. Returns the number of changed leases, and
/// the reasons for the others.
async fn settle(
    broker: &Broker,
    queue: &str,
    receipts: Receipts,
    change: impl AsyncFnOnce(Vec<Receipt>) -> engine::Result<Vec<Result<(), LeaseError>>>,
) -> Result<Response> {
    let Few { first: texts, count } = receipts;
    if !(1..=broker::RECEIVE_MAX).contains(&count) {
        let message = format!("receipts: 1 to {} at a time, not {count}", broker::RECEIVE_MAX);
        return Err(Error::invalid(message).into());
    }
    let definition = broker.queues.get(queue).await?;
    let receipts: Vec<Option<Receipt>> =
        texts.iter().map(|text| broker.queues.unseal(&definition, text).ok()).collect();
    let mut answers = change(receipts.iter().flatten().copied().collect()).await?.into_iter();
    let mut done = 0;
    let mut refused = Vec::new();
    for (text, receipt) in texts.iter().zip(receipts) {
        let why = match receipt.and_then(|_| answers.next()) {
            Some(Ok(())) => {
                done += 1;
                continue;
            }
            Some(Err(LeaseError::Gone)) => "gone",
            Some(Err(LeaseError::Expired)) => "expired",
            Some(Err(LeaseError::NotLeased)) => "not_leased",
            Some(Err(LeaseError::TooLong)) => "too_long",
            None => "invalid",
        };
        refused.push(json!({ "receipt": text, "reason": why }));
    }
    Ok(codec::json(StatusCode::OK, &json!({ "done": done, "refused": refused })))
}

pub(super) async fn peek(
    State(http): State<Arc<Http>>,
    Topic(queue): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let mut after = query.text("after").map(parse_place).transpose()?;
    let max = query.max(PEEK_COUNT_DEFAULT, broker::PEEK_MAX)?;
    let mut body = b"{\"messages\":[".to_vec();
    let mut count = 0;
    while count < max && body.len() < ANSWER_BYTES_MAX {
        let found = http.broker.queues.peek(&queue, after, PEEK_TOGETHER.min(max - count)).await?;
        if found.is_empty() {
            break;
        }
        for peeked in &found {
            if body.len() >= ANSWER_BYTES_MAX {
                break;
            }
            let phase = phase_name(peeked.phase);
            let message = MessageOut::new(peeked.id, peeked.partition, &peeked.message, peeked.attempts, &names);
            if count > 0 {
                body.push(b',');
            }
            codec::write_json(&mut body, &MessageOut { phase: Some(phase), due_ms: peeked.due_ms, ..message });
            after = Some((peeked.partition, peeked.message.offset()));
            count += 1;
        }
    }
    let next = after.map(|(partition, offset)| format!("{partition}:{offset}")).filter(|_| count > 0);
    body.extend_from_slice(format!("],\"next\":{}}}", json!(next)).as_bytes());
    Ok(codec::bytes(StatusCode::OK, "application/json", body))
}

pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Leased => "leased",
        Phase::Delayed => "delayed",
        Phase::Waiting => "waiting",
    }
}

fn parse_place(text: &str) -> Result<(PartitionId, Offset)> {
    let place = text.split_once(':').and_then(|(p, offset)| Some((p.parse().ok()?, offset.parse().ok()?)));
    place.ok_or_else(|| Error::invalid(format!("after: '{text}' is not <partition>:<offset>")).into())
}

pub(super) async fn purge(State(http): State<Arc<Http>>, Topic(queue): Topic, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let purged = http.broker.queues.purge(&queue).await?;
    Ok(codec::json(StatusCode::OK, &json!({ "purged": purged })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeekIn {
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    timestamp_ms: Option<i64>,
}

pub(super) async fn seek(State(http): State<Arc<Http>>, Topic(queue): Topic, request: Request) -> Result<StatusCode> {
    Query::parse(request.uri(), &[])?;
    let given: SeekIn = codec::whole_json(&http.bodies, request).await?;
    let to = match (given.to.as_deref(), given.timestamp_ms) {
        (Some("earliest"), None) => SeekTo::Earliest,
        (Some("end"), None) => SeekTo::End,
        (None, Some(timestamp_ms)) => SeekTo::Time(timestamp_ms),
        _ => return Err(Error::invalid("set to (earliest or end) or timestamp_ms").into()),
    };
    http.broker.queues.seek(&queue, to).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedriveIn {
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    rate: Option<u32>,
}

pub(super) async fn start_redrive(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    Topic(queue): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let RedriveIn { to, rate } = codec::optional_json(&http.bodies, request).await?.unwrap_or_default();
    let to = to.map(|to| names.inner(&to));
    http.broker.authorize_redrive(&identity, &queue, to.as_deref()).await?;
    let redrive = http.broker.queues.start_redrive(&queue, to.as_deref(), rate).await?;
    let begun = http.broker.queues.redrives(&queue).into_iter().find(|begun| begun.id == redrive);
    let begun =
        begun.ok_or_else(|| Error::new(ErrorKind::Internal, "a move of messages was started and cannot be found"))?;
    Ok(codec::json(StatusCode::ACCEPTED, &shown_redrive(&begun, &names)))
}

pub(super) async fn list_redrives(
    State(http): State<Arc<Http>>,
    Topic(queue): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    http.broker.queues.get(&queue).await?;
    let redrives: Vec<Value> =
        http.broker.queues.redrives(&queue).iter().map(|redrive| shown_redrive(redrive, &names)).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "redrives": redrives })))
}

pub(super) async fn cancel_redrive(
    State(http): State<Arc<Http>>,
    Path((queue, redrive)): Path<(String, String)>,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let queue = names.inner(&queue);
    let id = codec::parse("redrive", &redrive)?;
    if !http.broker.queues.redrives(&queue).iter().any(|of_queue| of_queue.id == id) {
        return Err(Error::not_found(format!("queue {queue} has no move of messages {id}")).into());
    }
    Ok(codec::json(StatusCode::OK, &shown_redrive(&http.broker.queues.cancel_redrive(id)?, &names)))
}

pub(super) fn redrive_state(redrive: &Redrive) -> &'static str {
    match redrive.state {
        RedriveState::Running => "running",
        RedriveState::Completed => "completed",
        RedriveState::Cancelling => "cancelling",
        RedriveState::Cancelled => "cancelled",
        RedriveState::Failed => "failed",
    }
}

fn shown_redrive(redrive: &Redrive, names: &Names) -> Value {
    json!({
        "redrive": redrive.id,
        "from": names.outer(redrive.from.as_str()),
        "to": redrive.to.as_ref().map(|to| names.outer(to.as_str())),
        "rate": redrive.rate,
        "started_ms": redrive.started_ms,
        "state": redrive_state(redrive),
        "moved": redrive.moved,
        "to_move": redrive.to_move,
        "failure": redrive.failure,
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn parsed(kind: BodyKind, body: Vec<u8>, query: &str) -> Result<Vec<Draft>, String> {
        let uri: Uri = format!("/{query}").parse().expect("a URI");
        let query = Query::parse(&uri, &["group", "dedup", "delay_ms"]).map_err(|failure| failure.error.message)?;
        drafts(kind, &body.into(), &query).map_err(|failure| failure.error.message)
    }

    /// The queues of a page are described in slices, however few partitions each of them has.
    #[tokio::test]
    async fn other_requests_are_served_while_queues_are_listed() {
        let here = tokio::runtime::Handle::current();
        let broker = Broker::start(broker::Settings::default(), &[here]).expect("starts");
        let mut definitions = Vec::new();
        for i in 0..100 {
            let name = QueueName::parse(&format!("q{i}")).expect("a name");
            definitions.push(broker.queues.create(NewQueue::new(name)).await.expect("created"));
        }
        let names = Names::default();
        let mut all = std::pin::pin!(all_shown(&broker, &names, &definitions));
        let mut pauses = 0;
        let shown = loop {
            match (&mut all).now_or_never() {
                Some(Ok(shown)) => break shown,
                Some(Err(_)) => panic!("they exist"),
                None => pauses += 1,
            }
        };
        assert_eq!((shown.len(), pauses), (100, 100 / DESCRIBED_TOGETHER));
    }

    #[test]
    fn messages_of_lines_share_their_group() {
        let drafts = parsed(BodyKind::Lines, b"a\r\n\nb\n".to_vec(), "?group=g&delay_ms=7").expect("two messages");
        let said: Vec<_> = drafts.iter().map(|draft| (&draft.body[..], draft.delay_ms)).collect();
        assert_eq!(said, [(&b"a"[..], Some(7)), (b"b", Some(7))]);
        let groups: Vec<&Bytes> = drafts.iter().filter_map(|draft| draft.group.as_ref()).collect();
        assert_eq!((groups.len(), &groups[0][..]), (2, &b"g"[..]));
        assert_eq!(groups[0].as_ptr(), groups[1].as_ptr());
    }

    #[test]
    fn too_many_messages_are_counted_and_nothing_else() {
        let many = SEND_MAX + 2;
        let told = Err(format!("a request sends 1 to {SEND_MAX} messages, not {many}"));
        assert_eq!(parsed(BodyKind::Lines, b"x\n".repeat(many), "").map(drop), told);
        let json = |last: &str| format!("{{\"messages\":[{}{last}]}}", "{\"body\":\"\"},".repeat(many - 1));
        assert_eq!(parsed(BodyKind::Json, json("{\"body\":\"\"}").into(), "").map(drop), told);
        assert_eq!(parsed(BodyKind::Json, json("\"not even a message\"").into(), "").map(drop), told);
        let most = format!("{{\"messages\":[{}]}}", vec!["{\"body\":\"\"}"; SEND_MAX].join(","));
        assert_eq!(parsed(BodyKind::Json, most.into(), "").map(|drafts| drafts.len()), Ok(SEND_MAX));
    }

    #[test]
    fn a_deduplication_id_is_for_one_message() {
        assert_eq!(parsed(BodyKind::Lines, b"a\n\n".to_vec(), "?dedup=d").map(|drafts| drafts.len()), Ok(1));
        let told = parsed(BodyKind::Lines, b"a\nb".to_vec(), "?dedup=d").map(drop).expect_err("two messages");
        assert!(told.contains("the body has 2 lines: send application/json"), "{told}");
    }
}
