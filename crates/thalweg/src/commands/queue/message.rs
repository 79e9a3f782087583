//! Messages in text and JSON output.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use client::{MessageInfo, Queue, ReceivedMessage};
use serde_json::{Map, Value, json};

use crate::output::{Result, note};

/// Encoding of the bytes of a message in JSON: its body, its group and the values of its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Utf8,
    Base64,
}

impl Encoding {
    /// Selects UTF-8 if all parts of the message are text.
    pub fn of(message: &MessageInfo) -> Self {
        let values = message.headers.iter().map(|(_, value)| value);
        let mut parts = [Some(&message.body), message.group.as_ref()].into_iter().flatten().chain(values);
        if parts.all(|part| std::str::from_utf8(part).is_ok()) { Self::Utf8 } else { Self::Base64 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Base64 => "base64",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Utf8, Self::Base64].into_iter().find(|encoding| encoding.name() == name)
    }

    pub fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Base64 => BASE64.encode(bytes),
        }
    }

    pub fn decode(self, text: String) -> std::result::Result<Bytes, String> {
        match self {
            Self::Utf8 => Ok(text.into()),
            Self::Base64 => BASE64.decode(&text).map(Bytes::from).map_err(|e| format!("this is not base64: {e}")),
        }
    }
}

fn to_json(message: &MessageInfo) -> Map<String, Value> {
    let encoding = Encoding::of(message);
    let headers: Map<String, Value> =
        message.sender_headers().map(|(name, value)| (name.to_owned(), json!(encoding.encode(value)))).collect();
    let shown = [
        ("id", json!(message.id)),
        ("partition", json!(message.partition)),
        ("offset", json!(message.offset)),
        ("sent_ms", json!(message.sent_ms)),
        ("attempts", json!(message.attempts)),
        ("source", json!(message.source())),
        ("group", json!(message.group.as_ref().map(|group| encoding.encode(group)))),
        ("headers", json!(headers)),
        ("body", json!(encoding.encode(&message.body))),
        ("encoding", json!(encoding.name())),
    ];
    shown.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub fn received_to_json(received: &ReceivedMessage) -> Value {
    let mut shown = to_json(&received.message);
    shown.insert("receipt".to_owned(), json!(received.receipt));
    shown.insert("first_received_ms".to_owned(), json!(received.first_received_ms));
    shown.into()
}

/// Prints messages of a queue without leasing them.
pub async fn peek(out: &mut impl Write, queue: &Queue, max: u32, is_json: bool) -> Result {
    let mut left = max;
    let mut after = None;
    while left > 0 {
        let page = queue.peek(after, left).await?;
        let Some(last) = page.last() else {
            break;
        };
        after = Some((last.message.partition, last.message.offset));
        left = left.saturating_sub(page.len() as u32);
        for peeked in &page {
            let left_out_bytes = peeked.message.left_out_bytes();
            if let Some(bytes) = left_out_bytes {
                note(&format!("message {} has {bytes} bytes, which are too many to show", peeked.message.id));
            }
            if is_json {
                let mut shown = to_json(&peeked.message);
                shown.insert("phase".to_owned(), json!(peeked.phase.name()));
                shown.insert("due_ms".to_owned(), json!(peeked.due_ms));
                shown.extend(left_out_bytes.map(|bytes| ("left_out_bytes".to_owned(), json!(bytes))));
                writeln!(out, "{}", Value::Object(shown))?;
            } else {
                write!(out, "{}\t{}\t{}\t", peeked.message.id, peeked.phase.name(), peeked.message.attempts)?;
                out.write_all(&peeked.message.body)?;
                writeln!(out)?;
            }
        }
    }
    Ok(())
}
