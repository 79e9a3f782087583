//! `thalweg queue export` and `import`: a queue with all its messages as lines of JSON.
//!
//! The first line describes the queue. Each other line is an unacknowledged message, in the order of its partition:
//!
//! | Member of the first line | |
//! |---|---|
//! | thalweg_queue | 1, the version of this format |
//! | queue, topic, owns_topic, settings, notes | as in `thalweg queue stats --json` |
//!
//! | Member of a message | |
//! |---|---|
//! | id, sent_ms, attempts | unchanged; attempts include the current lease of a message |
//! | due_ms | end of the delay in ms since 1970, if the message is delayed |
//! | group | the group, if the message has one |
//! | headers | a list of names and values |
//! | body, encoding | `utf8`, or `base64` if body, group or a header is not text |
//!
//! Messages that are too large for an answer of the native protocol are left out; the command reports them, and fails.

use std::io::Write;
use std::path::Path;

use client::{Client, MessagePhase, NewQueue, OutMessage, PeekedMessage, Queue, Storage};
use engine::queue::header;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::AsyncBufReadExt;

use super::message::Encoding;
use super::{all_sent, input, print, settings_to_json};
use crate::commands::time::now_ms;
use crate::commands::units;
use crate::output::{FAILED, Failure, Result};

/// Version of the export format.
const VERSION: u32 = 1;
/// Number of messages that are read, or sent, together.
const TOGETHER: usize = 1000;
/// Headers that have a separate member.
const OWN_MEMBERS: [&str; 4] = [header::ID, header::SENT, header::ATTEMPTS, header::DUE];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueLine {
    thalweg_queue: u32,
    queue: String,
    topic: String,
    owns_topic: bool,
    settings: Map<String, Value>,
    notes: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageLine {
    id: String,
    sent_ms: u64,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    headers: Vec<(String, String)>,
    body: String,
    encoding: String,
}

pub async fn export(out: &mut impl Write, queue: &Queue) -> Result {
    let info = queue.describe().await?;
    let settings = match settings_to_json(&info.settings) {
        Value::Object(settings) => settings,
        _ => Map::new(),
    };
    let notes = info.notes.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    let head = QueueLine {
        thalweg_queue: VERSION,
        queue: info.queue,
        topic: info.topic,
        owns_topic: info.owns_topic,
        settings,
        notes,
    };
    let mut out = std::io::BufWriter::new(out);
    writeln!(out, "{}", serde_json::to_string(&head)?)?;
    let mut after = None;
    let mut left_out = Vec::new();
    loop {
        let page = queue.peek(after, TOGETHER as u32).await?;
        let Some(last) = page.last() else {
            break;
        };
        after = Some((last.message.partition, last.message.offset));
        for peeked in &page {
            let message = &peeked.message;
            match message.left_out_bytes() {
                None => writeln!(out, "{}", serde_json::to_string(&MessageLine::of(peeked))?)?,
                Some(_) => left_out.push((message.partition, message.offset)),
            }
        }
    }
    out.flush()?;
    let Some((partition, offset)) = left_out.first() else {
        return Ok(());
    };
    let message = format!(
        "{} not in the export, because of the size: the first is at offset {offset} of partition {partition}; receive \
         large messages over HTTP",
        match left_out.len() {
            1 => "1 message is".to_owned(),
            count => format!("{count} messages are"),
        }
    );
    Err(Failure::new(FAILED, message))
}

impl MessageLine {
    fn of(peeked: &PeekedMessage) -> Self {
        let message = &peeked.message;
        let encoding = Encoding::of(message);
        let kept = message.headers.iter().filter(|(name, _)| !OWN_MEMBERS.contains(&name.as_str()));
        // Attempts that an imported message carries in a header take effect with its first delivery.
        let brought = message.headers.iter().find(|(name, _)| message.attempts == 0 && name == header::ATTEMPTS);
        let brought = brought.and_then(|(_, attempts)| std::str::from_utf8(attempts).ok()?.parse().ok());
        Self {
            id: message.id.clone(),
            sent_ms: message.sent_ms,
            attempts: brought.unwrap_or(message.attempts),
            due_ms: peeked.due_ms.filter(|_| peeked.phase == MessagePhase::Delayed),
            group: message.group.as_ref().map(|group| encoding.encode(group)),
            headers: kept.map(|(name, value)| (name.clone(), encoding.encode(value))).collect(),
            body: encoding.encode(&message.body),
            encoding: encoding.name().to_owned(),
        }
    }

    fn message(self, now_ms: u64) -> std::result::Result<OutMessage, String> {
        let encoding = Encoding::from_name(&self.encoding)
            .ok_or_else(|| format!("the encoding is utf8 or base64, not '{}'", self.encoding))?;
        let own = [
            (header::ID, Some(self.id)),
            (header::SENT, Some(self.sent_ms.to_string())),
            (header::ATTEMPTS, (self.attempts > 0).then(|| self.attempts.to_string())),
        ];
        let mut message = OutMessage {
            body: encoding.decode(self.body)?,
            group: self.group.map(|group| encoding.decode(group)).transpose()?,
            dedup: None,
            // A delay that has passed becomes 0, so that the message does not get the delay of the queue again.
            delay_ms: Some(self.due_ms.map_or(0, |due_ms| due_ms.saturating_sub(now_ms))),
            headers: Vec::with_capacity(self.headers.len() + own.len()),
        };
        for (name, value) in self.headers {
            if OWN_MEMBERS.contains(&name.as_str()) {
                return Err(format!("header {name} has its own member"));
            }
            message = message.with_header(name, encoding.decode(value)?);
        }
        for (name, value) in own.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            message = message.with_header(name, value);
        }
        Ok(message)
    }
}

pub async fn import(
    out: &mut impl Write,
    client: &Client,
    name: Option<&str>,
    storage: Storage,
    file: Option<&Path>,
    is_json: bool,
) -> Result {
    let mut lines = input(file)?.lines();
    let wrong = |number: u64, why: &dyn std::fmt::Display| Failure::new(FAILED, format!("line {number}: {why}"));
    let Some(first) = lines.next_line().await? else {
        return Err(wrong(1, &"the input is empty; `thalweg queue export` writes its format"));
    };
    let head: QueueLine = serde_json::from_str(&first).map_err(|e| wrong(1, &units::json_fault(&e)))?;
    if head.thalweg_queue != VERSION {
        return Err(wrong(1, &format!("version {} of this format is unknown", head.thalweg_queue)));
    }
    let queue = name.unwrap_or(&head.queue);
    let text = |(name, value): (String, Value)| match value {
        Value::Null => (name, String::new()),
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    };
    let new = NewQueue {
        topic: if head.owns_topic { String::new() } else { head.topic.clone() },
        is_live: !head.owns_topic,
        storage: if head.owns_topic { storage } else { Storage::Auto },
        settings: head.settings.into_iter().map(text).collect(),
        notes: head.notes.into_iter().map(text).collect(),
        ..NewQueue::new(queue)
    };
    client.create_queue(new).await?;
    let queue = client.queue(queue);
    let mut messages = Vec::new();
    let mut sent = 0;
    let mut number = 1;
    loop {
        let line = lines.next_line().await?;
        if let Some(line) = &line {
            number += 1;
            let line: MessageLine = serde_json::from_str(line).map_err(|e| wrong(number, &units::json_fault(&e)))?;
            messages.push(line.message(now_ms()).map_err(|why| wrong(number, &why))?);
        }
        if messages.len() >= TOGETHER || line.is_none() {
            let together = std::mem::take(&mut messages);
            if !together.is_empty() {
                sent += all_sent(queue.send_moved(together).await, sent)?;
            }
        }
        if line.is_none() {
            break;
        }
    }
    let json = serde_json::json!({ "queue": queue.name(), "imported": sent });
    print(out, is_json, &json, &format!("queue {} has {sent} more messages", queue.name()))
}
