//! Sending, receiving and deleting of messages.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use broker::{FREE_BYTES, OutMessage, Receipt, Receive, Received};
use bytes::Bytes;
use engine::ErrorKind;
use engine::queue::{LeaseError, Message, MessageId, header};
use engine::security::Operation;

use super::address::Place;
use super::attributes::{self, VISIBILITY_S_MAX, WAIT_S_MAX};
use super::check::{self, Outgoing, TRACE, check_batch, check_send_batch, fifo_id};
use super::codec::{Answer, Sent, Shown, ShownAttribute, sequence_number};
use super::digest;
use super::errors::{Failure, INVALID_ATTRIBUTE_NAME, INVALID_RECEIPT, OVER_LIMIT, Result, THROTTLED};
use super::map::{Found, RequestContext, Sqs};
use super::model::{
    Action, DeleteMessage, DeleteMessageBatch, Int, List, ReceiptEntry, ReceiveMessage, SendEntry, SendMessage,
    SendMessageBatch, Text, required, required_text,
};
use super::names::Names;
use crate::fields;

/// Maximum number of messages in one response.
const RECEIVE_MAX: i64 = 10;
/// Maximum bytes of message bodies in one response. The first one may be larger.
const RECEIVE_BYTES_MAX: usize = 11 << 20;

/// Maximum time that a response waits for memory.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of additional bytes of an escaped byte: `&quot;`.
const ESCAPE_BYTES_MAX: usize = 5;
/// Number of bytes per message in a response in addition to its contents: ids, digests and a receipt.
const MESSAGE_REST_BYTES: usize = 1024;

/// Maximum bytes of the recorded types of a message. Those of ten attributes with the longest names take 20 KiB; longer
/// ones, which another door can write, are ignored.
const TYPES_BYTES_MAX: usize = 64 << 10;

/// System attributes that a receiver may request.
const SYSTEM: [&str; 9] = [
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    TRACE,
    "DeadLetterQueueSourceArn",
];

/// Selection of the system attributes and attributes that are returned.
pub(super) struct View<'t> {
    system: Vec<&'t str>,
    attributes: Selection<'t>,
}

impl<'t> View<'t> {
    fn new(system: Vec<&'t str>, attributes: impl IntoIterator<Item = &'t str>) -> Self {
        Self { system, attributes: Selection::new(attributes) }
    }

    /// Selects everything.
    pub fn all() -> Self {
        Self::new(vec!["All"], ["All"])
    }

    fn has_system(&self, name: &str) -> bool {
        self.system.iter().any(|wanted| *wanted == "All" || *wanted == name)
    }
}

/// Selection of attributes by their names and by prefixes. An attribute is looked up: a record of another door may have
/// any number of headers.
#[derive(Default)]
struct Selection<'t> {
    has_all: bool,
    names: HashSet<&'t str>,
    /// Sorted prefixes, none of which begins with another.
    prefixes: Vec<&'t str>,
}

impl<'t> Selection<'t> {
    fn new(wanted: impl IntoIterator<Item = &'t str>) -> Self {
        let mut selection = Self::default();
        for wanted in wanted {
            match wanted.strip_suffix(".*") {
                Some(prefix) => selection.prefixes.push(prefix),
                None if matches!(wanted, "All" | "*") => selection.has_all = true,
                None => drop(selection.names.insert(wanted)),
            }
        }
        selection.prefixes.sort_unstable();
        selection.prefixes.dedup_by(|longer, shorter| longer.starts_with(*shorter));
        selection
    }

    fn is_empty(&self) -> bool {
        !self.has_all && self.names.is_empty() && self.prefixes.is_empty()
    }

    /// Returns `true` if an attribute is selected by its name or by a prefix.
    fn has(&self, name: &str) -> bool {
        // A prefix of the name is the greatest prefix that is not after it: any between them would begin with it.
        let until = self.prefixes.partition_point(|prefix| *prefix <= name);
        self.has_all
            || self.names.contains(name)
            || until.checked_sub(1).is_some_and(|at| name.starts_with(self.prefixes[at]))
    }
}

/// Attribute with the encoding of a body that is not the value of the message as text. It is always returned, since the
/// body cannot be understood without it.
const ENCODING: &str = "thalweg.encoding";

/// Returns the body of a message as text that SQS allows, and its encoding unless it is simply the value of the
/// message: `base64` for a value that is not such text, `headers` for a record without a value, as a JSON object.
fn body_of(message: &Message) -> (Bytes, Option<&'static str>) {
    let body = message.body();
    if message.record().value.is_none() && message.headers().next().is_some() {
        let headers = message.headers().map(|(name, value)| (&name[..], Some(&value[..])));
        return (fields::to_json(headers).into(), Some("headers"));
    }
    if std::str::from_utf8(body).is_ok_and(check::has_valid_chars) {
        (body.clone(), None)
    } else {
        (BASE64.encode(body).into(), Some("base64"))
    }
}

/// Queue of a message, and the names by which its receiver knows others.
#[derive(Clone, Copy)]
pub(super) struct Origin<'o> {
    pub place: &'o Place,
    pub names: Names<'o>,
}

/// Properties of a message that its sender did not set.
pub(super) struct Known {
    pub id: MessageId,
    /// Number of receives in this queue.
    pub attempts: u32,
    pub first_received_ms: Option<u64>,
}

impl Sqs {
    pub async fn send(&self, context: &RequestContext<'_>, mut request: SendMessage<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url.take()).await?;
        let entry = SendEntry::from(request);
        let outgoing = check::check(&entry, found.rules(false))?;
        let mut sent = self.send_all(context, &found, &[outgoing]).await?;
        sent.pop().expect("invariant: each message has an answer").map(Answer::Sent)
    }

    pub async fn send_batch(&self, context: &RequestContext<'_>, request: SendMessageBatch<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let List(entries) = request.entries.unwrap_or_default();
        check_batch("SendMessageBatchRequestEntry", &entries, |entry| entry.id.as_ref().map(Text::as_str))?;
        let rules = found.rules(true);
        check_send_batch(&entries, rules)?;
        let checked: Vec<_> = entries.iter().map(|entry| check::check(entry, rules)).collect();
        let mut good = Vec::with_capacity(checked.len());
        let outcomes: Vec<Result<()>> =
            checked.into_iter().map(|one| one.map(|outgoing| good.push(outgoing))).collect();
        let sent = if good.is_empty() { Vec::new() } else { self.send_all(context, &found, &good).await? };
        let mut sent = sent.into_iter();
        let results = entries.iter().zip(outcomes).map(|(entry, outcome)| {
            let id = entry.id.as_ref().map_or("", Text::as_str).to_owned();
            let sent = outcome.and_then(|()| sent.next().expect("invariant: each message has an answer"));
            (id, sent)
        });
        Ok(Answer::SentBatch(results.collect()))
    }

    async fn send_all(
        &self,
        context: &RequestContext<'_>,
        found: &Found,
        messages: &[Outgoing<'_>],
    ) -> Result<Vec<Result<Sent>>> {
        let types: Vec<String> = messages.iter().map(types_of).collect();
        let headers: Vec<Vec<(&str, &[u8])>> =
            messages.iter().zip(&types).map(|(message, types)| headers_of(context, message, types)).collect();
        let out: Vec<OutMessage<'_>> = messages
            .iter()
            .zip(&headers)
            .map(|(message, headers)| OutMessage {
                body: message.body.as_bytes(),
                group: message.group.map(str::as_bytes),
                dedup: message.dedup.as_deref(),
                headers,
                delay_ms: message.delay_ms,
            })
            .collect();
        let sent = self.broker.queues.send(found.name(), &out).await?;
        let answers = sent.into_iter().zip(messages).map(|(sent, message)| {
            let sent = sent?;
            let mut attributes = message.attributes.clone();
            Ok(Sent {
                id: sent.id.to_string(),
                body_md5: digest::of_body(message.body.as_bytes()),
                attributes_md5: digest::of_attributes(&mut attributes),
                system_attributes_md5: message.system_attributes_md5,
                sequence: found.place.is_fifo().then_some(sent.offset),
            })
        });
        Ok(answers.collect())
    }

    pub async fn receive(&self, context: &RequestContext<'_>, request: ReceiveMessage<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let view = view_of(&request)?;
        let max = match request.max_number_of_messages {
            None => 1,
            Some(Int(max)) if (1..=RECEIVE_MAX).contains(&max) => max as usize,
            Some(Int(max)) => {
                return Err(Failure::value("MaxNumberOfMessages", max, "Must be between 1 and 10, if provided."));
            }
        };
        let within = |name: &str, given: &Option<Int>, most: u64, reason: &str| {
            let check = |Int(value): Int| match u64::try_from(value) {
                Ok(value) if value <= most => Ok(value),
                _ => Err(Failure::value(name, value, reason)),
            };
            given.map(check).transpose()
        };
        let reason = "Must be >= 0 and <= 20, if provided.";
        let wait_s = within("WaitTimeSeconds", &request.wait_time_seconds, WAIT_S_MAX, reason)?;
        let reason = "Must be >= 0 and <= 43200, if provided.";
        let lease_s = within("VisibilityTimeout", &request.visibility_timeout, VISIBILITY_S_MAX, reason)?;
        let attempt = fifo_id("ReceiveRequestAttemptId", &request.receive_request_attempt_id)?;
        if let (Some(id), false) = (attempt, found.place.is_fifo()) {
            let reason = "The request includes a parameter that is not valid for this queue type.";
            return Err(Failure::value("ReceiveRequestAttemptId", id, reason));
        }
        let receive = Receive {
            max,
            bytes_max: RECEIVE_BYTES_MAX,
            lease_ms: lease_s.map(|seconds| seconds * 1000),
            wait: Duration::from_secs(wait_s.unwrap_or_else(|| attributes::wait_s(&found.definition.notes))),
        };
        let answers = self.broker.answers();
        answers.wait_for_turn(Some(context.address), ROOM_WAIT).await.map_err(throttled)?;
        let messages = match attempt {
            None => self.take(context, &found, &receive).await?,
            Some(id) => self.take_again(context, &found, &receive, id).await?,
        };
        let stored = messages.iter().map(|received| received.message.bytes()).sum();
        let shown_bytes = || messages.iter().map(|received| shown_bytes_max(&received.message)).sum();
        let bytes = answers.work(stored, shown_bytes).await;
        if bytes > FREE_BYTES {
            match answers.take(Some(context.address), bytes, ROOM_WAIT).await {
                Ok(held) => *context.held.lock() = Some(held),
                Err(error) => {
                    self.broker.queues.untake(found.name(), messages).await?;
                    return Err(throttled(error));
                }
            }
        }
        let show = |received: &Received| {
            let receipt = self.broker.queues.seal(&found.definition, &received.receipt)?;
            let known = Known {
                id: received.id,
                attempts: received.attempts,
                first_received_ms: Some(received.first_received_ms),
            };
            let origin = Origin { place: &found.place, names: self.names(context) };
            Ok(self.show(origin, &view, &received.message, &known, receipt))
        };
        let shown = answers.work(stored, || messages.iter().map(show).collect::<Result<_>>()).await?;
        Ok(Answer::Messages(shown))
    }

    /// Waits for messages as long as the client requests, but not beyond the beginning of the drain.
    async fn take(&self, context: &RequestContext<'_>, found: &Found, receive: &Receive) -> Result<Vec<Received>> {
        let mut drain = context.drain.clone();
        // The broker checks all but the account.
        let check = || std::future::ready(self.check_account(context, Operation::Read, Some(&found.place)));
        let waits = !receive.wait.is_zero();
        let receive = self.broker.receive(&context.identity, found.name(), receive);
        let taken = tokio::select! {
            biased;
            taken = self.broker.security.while_permitted(check, receive) => taken?,
            () = drain.begun(), if waits => return Ok(Vec::new()),
        };
        match taken {
            // For a FIFO queue the service does not report this limit.
            Err(error) if error.kind == ErrorKind::Busy && found.place.is_fifo() => Ok(Vec::new()),
            Err(error) if error.kind == ErrorKind::Busy => Err(Failure::new(&OVER_LIMIT, error.message)),
            taken => Ok(taken?),
        }
    }

    /// Returns the messages of the last attempt with this id if the receiver still holds all of them; otherwise
    /// receives.
    async fn take_again(
        &self,
        context: &RequestContext<'_>,
        found: &Found,
        receive: &Receive,
        id: &str,
    ) -> Result<Vec<Received>> {
        let key = (found.definition.id, id.to_owned());
        let before = self.attempts.lock().get(&key, Instant::now());
        if let Some(before) = before {
            let lease_ms = receive.lease_ms.unwrap_or(found.definition.settings.lease_ms);
            let leases: Vec<(Receipt, u64)> = before.iter().map(|held| (held.receipt, lease_ms)).collect();
            let extended = self.broker.queues.extend(found.name(), &leases).await?;
            if extended.iter().all(Result::is_ok)
                && let Some(messages) = self.broker.queues.read_again(found.name(), &before).await?
            {
                return Ok(messages);
            }
            self.attempts.lock().remove(&key);
        }
        let taken = self.take(context, found, receive).await?;
        if !taken.is_empty() {
            let delivered = taken.iter().map(Received::delivered).collect();
            self.attempts.lock().insert(key, delivered, Instant::now());
        }
        Ok(taken)
    }

    /// Converts a message to the form that a client receives.
    pub fn show(
        &self,
        origin: Origin<'_>,
        view: &View<'_>,
        message: &Message,
        known: &Known,
        receipt: String,
    ) -> Shown {
        let Origin { place, names } = origin;
        let mut system = Vec::new();
        let mut add = |name: &'static str, value: &mut dyn FnMut() -> Option<String>| {
            if view.has_system(name) {
                system.extend(value().map(|value| (name, value)));
            }
        };
        let of_header = |name: &str| message.header(name).map(str::to_owned);
        let is_fifo = place.is_fifo();
        // The count of the service continues in the dead-letter queue.
        let before = message.header(header::RECEIVED).and_then(|received| received.parse().ok()).unwrap_or(0u32);
        let attempts = before.saturating_add(known.attempts);
        add("SenderId", &mut || Some(of_header(header::SENDER).unwrap_or_else(|| place.home.account.clone())));
        add("SentTimestamp", &mut || Some(message.sent_ms().to_string()));
        add("ApproximateReceiveCount", &mut || Some(attempts.to_string()));
        add("ApproximateFirstReceiveTimestamp", &mut || known.first_received_ms.map(|ms| ms.to_string()));
        add("SequenceNumber", &mut || is_fifo.then(|| sequence_number(message.offset())));
        add("MessageDeduplicationId", &mut || of_header(header::DEDUP));
        add("MessageGroupId", &mut || message.group().map(|group| String::from_utf8_lossy(group).into_owned()));
        add(TRACE, &mut || of_header(header::TRACE));
        add("DeadLetterQueueSourceArn", &mut || Some(names.outer(message.header(header::SOURCE)?)?.arn()));
        let mut shown: Vec<ShownAttribute> = Vec::new();
        if !view.attributes.is_empty() {
            let types = message.header(header::TYPES).filter(|types| types.len() <= TYPES_BYTES_MAX);
            let types = types_in(types.unwrap_or_default());
            // Other doors allow several headers with the same name. The first one is shown.
            let mut names: HashSet<&Bytes> = HashSet::new();
            for (name, value) in message.headers() {
                let Some(text) = std::str::from_utf8(name).ok().filter(|name| view.attributes.has(name)) else {
                    continue;
                };
                if !names.insert(name) {
                    continue;
                }
                let data_type = match types.get(text) {
                    Some(data_type) => unescaped(data_type).into_owned(),
                    None if std::str::from_utf8(value).is_ok() => "String".to_owned(),
                    None => "Binary".to_owned(),
                };
                shown.push(ShownAttribute { name: name.clone(), data_type, value: value.clone() });
            }
        }
        let (body, encoding) = body_of(message);
        if let Some(encoding) = encoding {
            shown.retain(|attribute| attribute.name != ENCODING);
            let name = Bytes::from_static(ENCODING.as_bytes());
            let data_type = "String".to_owned();
            shown.push(ShownAttribute { name, data_type, value: Bytes::from_static(encoding.as_bytes()) });
        }
        Shown { id: known.id.to_string(), receipt, body, system, attributes: shown }
    }

    pub async fn delete(&self, context: &RequestContext<'_>, request: DeleteMessage<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let handle = required_text("ReceiptHandle", &request.receipt_handle)?;
        let receipt = self.receipt(&found, handle)?;
        let answers = self.broker.queues.ack(found.name(), &[receipt]).await?;
        for answer in answers {
            deleted(answer, handle)?;
        }
        Ok(Answer::Nothing)
    }

    pub async fn delete_batch(&self, context: &RequestContext<'_>, request: DeleteMessageBatch<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let List(entries) = request.entries.unwrap_or_default();
        let handles = handles("DeleteMessageBatchRequestEntry", &entries)?;
        let receipts: Vec<Result<Receipt>> = handles.iter().map(|handle| self.receipt(&found, handle)).collect();
        let good: Vec<Receipt> = receipts.iter().filter_map(|receipt| receipt.as_ref().ok().copied()).collect();
        let mut answers = self.broker.queues.ack(found.name(), &good).await?.into_iter();
        let results = entries.iter().zip(handles).zip(receipts).map(|((entry, handle), receipt)| {
            let id = entry.id.as_ref().map_or("", Text::as_str).to_owned();
            let result =
                receipt.and_then(|_| deleted(answers.next().expect("invariant: each receipt has an answer"), handle));
            (id, result)
        });
        Ok(Answer::DoneBatch(Action::DeleteMessageBatch, results.collect()))
    }

    /// Returns the receipt in a receipt handle.
    pub fn receipt(&self, found: &Found, handle: &str) -> Result<Receipt> {
        self.broker.queues.unseal(&found.definition, handle).map_err(|error| match error.kind {
            ErrorKind::Invalid => {
                let message = format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
                Failure::new(&INVALID_RECEIPT, message)
            }
            _ => error.into(),
        })
    }
}

/// Returns the maximum number of bytes that a message takes in a response, escaped in XML or encoded in base64.
fn shown_bytes_max(message: &Message) -> usize {
    let body = message.body();
    let is_escaped = |byte: &&u8| matches!(byte, b'"' | b'\\' | b'&' | b'<' | b'>' | b'\'' | 0..0x20);
    let escaped = body.iter().filter(is_escaped).count();
    let rest = message.bytes().saturating_sub(body.len());
    // A body that is not text exists in base64, too, before it is copied into the response.
    let shown = (body.len() + ESCAPE_BYTES_MAX * escaped).max(if std::str::from_utf8(body).is_ok() {
        0
    } else {
        3 * body.len()
    });
    shown + (1 + ESCAPE_BYTES_MAX) * rest + MESSAGE_REST_BYTES
}

/// Converts an error. Clients with the retry rules of the SDKs retry after the code for throttling.
fn throttled(error: engine::Error) -> Failure {
    match error.kind {
        ErrorKind::Busy => Failure::new(&THROTTLED, error.message),
        _ => error.into(),
    }
}

/// Converts the result of a deletion. Deleting a message that is already deleted succeeds.
fn deleted(answer: Result<(), LeaseError>, handle: &str) -> Result<()> {
    match answer {
        Ok(()) | Err(LeaseError::Gone) => Ok(()),
        Err(LeaseError::Expired | LeaseError::NotLeased | LeaseError::TooLong) => {
            Err(Failure::value("ReceiptHandle", handle, "The receipt handle has expired."))
        }
    }
}

/// Returns the receipt handles of a batch, after validation of its entries.
pub(super) fn handles<'t>(name: &str, entries: &'t [ReceiptEntry<'_>]) -> Result<Vec<&'t str>> {
    check_batch(name, entries, |entry| entry.id.as_ref().map(Text::as_str))?;
    let handle = |(i, entry): (usize, &'t ReceiptEntry<'_>)| {
        required(&format!("{name}.{}.ReceiptHandle", i + 1), &entry.receipt_handle).map(Text::as_str)
    };
    entries.iter().enumerate().map(handle).collect()
}

/// Returns the selection of attributes in a request.
fn view_of<'t>(request: &'t ReceiveMessage<'_>) -> Result<View<'t>> {
    let names = |list: &'t Option<List<Text<'_>>>| -> Vec<&'t str> {
        list.iter().flat_map(|List(names)| names.iter().map(Text::as_str)).collect()
    };
    let system = names(&request.message_system_attribute_names);
    let old = names(&request.attribute_names);
    let is_known = |name: &str| name == "All" || SYSTEM.contains(&name) || attributes::NAMES.contains(&name);
    if let Some(unknown) = system.iter().chain(&old).find(|name| !is_known(name)) {
        return Err(Failure::new(&INVALID_ATTRIBUTE_NAME, format!("Unknown Attribute {unknown}.")));
    }
    let system = if system.is_empty() { old } else { system };
    Ok(View::new(system, names(&request.message_attribute_names)))
}

/// Returns the headers of a message: its attributes and its other properties.
fn headers_of<'t>(context: &'t RequestContext<'_>, message: &Outgoing<'t>, types: &'t str) -> Vec<(&'t str, &'t [u8])> {
    let mut headers: Vec<(&str, &[u8])> = Vec::with_capacity(message.attributes.len() + 3);
    headers.extend(message.attributes.iter().map(|attribute| (attribute.name, attribute.value)));
    if !types.is_empty() {
        headers.push((header::TYPES, types.as_bytes()));
    }
    headers.push((header::SENDER, context.home.account.as_bytes()));
    if let Some(trace) = message.trace.or(context.trace) {
        headers.push((header::TRACE, trace.as_bytes()));
    }
    headers
}

/// Returns the types of the attributes that cannot be derived from their values.
fn types_of(message: &Outgoing<'_>) -> String {
    let mut types = String::new();
    for attribute in &message.attributes {
        let is_text = std::str::from_utf8(attribute.value).is_ok();
        if attribute.data_type != if is_text { "String" } else { "Binary" } {
            let separator = if types.is_empty() { "" } else { "," };
            types.extend([separator, &escaped(attribute.name), "=", &escaped(attribute.data_type)]);
        }
    }
    types
}

/// Returns the recorded types of attributes, still escaped, by the names of the attributes. The first type of a name is
/// valid.
fn types_in(types: &str) -> HashMap<Cow<'_, str>, &str> {
    let mut found = HashMap::new();
    for (name, data_type) in types.split(',').filter_map(|pair| pair.split_once('=')) {
        found.entry(unescaped(name)).or_insert(data_type);
    }
    found
}

fn escaped(text: &str) -> Cow<'_, str> {
    if text.contains([',', '=', '%']) {
        text.replace('%', "%25").replace(',', "%2C").replace('=', "%3D").into()
    } else {
        text.into()
    }
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if text.contains('%') {
        text.replace("%2C", ",").replace("%3D", "=").replace("%25", "%").into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_restored_with_any_characters() {
        for (name, data_type) in [("a", "Number"), ("a", "String.a,b=c%2C"), ("ä", "Binary.gif%")] {
            let types = format!("x=Number,{}={}", escaped(name), escaped(data_type));
            assert_eq!(types_in(&types).get(name).map(|found| unescaped(found)).as_deref(), Some(data_type));
        }
        assert_eq!((types_in("").len(), types_in("a").len(), types_in("b=Number").get("a")), (0, 0, None));
        assert_eq!(types_in("a=Number,b=x,a=Binary").get("a"), Some(&"Number"));
    }

    #[test]
    fn attributes_are_asked_for_by_name_or_by_how_it_begins() {
        let asked = |wanted: &[&'static str]| {
            let selection = Selection::new(wanted.iter().copied());
            ["Foo", "Foo.Bar", "foo", "Help.Me"].map(|name| selection.has(name))
        };
        assert_eq!(asked(&[]), [false; 4]);
        assert_eq!((asked(&["All"]), asked(&[".*"]), asked(&["*"])), ([true; 4], [true; 4], [true; 4]));
        assert_eq!(asked(&["Foo.*"]), [true, true, false, false]);
        assert_eq!(asked(&["foo", "Help.*"]), [false, false, true, true]);
        assert_eq!(asked(&["Fo"]), [false; 4]);
        // Those before and after the prefix do not hide it, nor do longer ones.
        assert_eq!(asked(&["Foo.Bar.*", "Foo.A.*", "Foo.*", "Foo.Z.*", "G.*"]), [true, true, false, false]);
        let many: Vec<String> = (0..1000).map(|i| format!("Foo.{i}.*")).collect();
        let selection = Selection::new(many.iter().map(String::as_str).chain(["Foo.*"]));
        assert_eq!(selection.prefixes, ["Foo"], "a prefix that begins with another is not compared");
    }
}
