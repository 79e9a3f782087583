//! The audit over HTTP: its records, the newest first.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use broker::Broker;
use engine::ids::AUDIT_TOPIC;
use engine::{Error, ErrorKind, Offset};
use serde_json::{Value, json};

use super::codec::{self, Query};
use super::errors::Result;
use super::map::ROOM_WAIT;
use super::reading::{Place, read};
use super::{Http, Peer};

/// Number of records that are read at a time, from older offsets to newer ones.
const WINDOW: u64 = 512;
/// Number of windows that one request reads: a search for a rare record continues on the next page.
const WINDOWS_MAX: usize = 32;
/// Size of a record in JSON, for the memory of a response.
const RECORD_BYTES: usize = 2048;

/// Records that are wanted.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub user: Option<&'a str>,
    pub action: Option<&'a str>,
    /// Text that the record contains.
    pub text: Option<&'a str>,
    /// `true` if only acts that were refused or failed are wanted.
    pub refused: bool,
    /// Offset before which the records are; `None` for the end of the log.
    pub before: Option<Offset>,
}

impl Wanted<'_> {
    fn means(&self, value: &[u8]) -> Option<Value> {
        // Most records are passed over without being parsed.
        if self.text.is_some_and(|text| !contains(value, text.as_bytes())) {
            return None;
        }
        let record: Value = serde_json::from_slice(value).ok()?;
        let is = |field: &str, wanted: Option<&str>| wanted.is_none_or(|wanted| record[field].as_str() == Some(wanted));
        let is_meant = is("user", self.user)
            && is("action", self.action)
            && (!self.refused || record["outcome"].as_str() != Some("ok"));
        is_meant.then_some(record)
    }
}

fn contains(value: &[u8], text: &[u8]) -> bool {
    text.is_empty() || value.windows(text.len()).any(|part| part == text)
}

/// Page of the audit.
pub(super) struct Found {
    /// Records with their offsets, the newest first.
    pub records: Vec<(Offset, Value)>,
    /// Offset before which the next page begins; `None` if no record is older.
    pub next: Option<Offset>,
}

/// Returns up to `count_max` records, the newest first. Fails if the audit has no records.
pub(super) async fn newest(broker: &Broker, address: IpAddr, wanted: &Wanted<'_>, count_max: usize) -> Result<Found> {
    let extent = broker.describe_partition(AUDIT_TOPIC, 0).map_err(|error| match error.kind {
        ErrorKind::NotFound => Error::not_found(
            "the audit has no record: it is on if the broker has audit = on, auth = required or authorization = true",
        ),
        _ => error,
    })?;
    let mut before = wanted.before.unwrap_or(extent.end).clamp(extent.start, extent.end);
    let mut records = Vec::new();
    for _ in 0..WINDOWS_MAX {
        if before == extent.start || records.len() >= count_max {
            break;
        }
        let from = before.saturating_sub(WINDOW).max(extent.start);
        let mut window = Vec::new();
        let place = Place { topic: AUDIT_TOPIC, partition: 0, from };
        let (_, trouble) = read(broker, address, &place, |view| {
            if view.offset >= before {
                return ControlFlow::Break(());
            }
            window.extend(view.value.and_then(|value| wanted.means(value)).map(|record| (view.offset, record)));
            ControlFlow::Continue(())
        })
        .await;
        if let Some(failure) = trouble {
            return Err(failure);
        }
        records.extend(window.into_iter().rev());
        before = from;
    }
    if records.len() > count_max {
        records.truncate(count_max);
        before = records.last().map_or(before, |(offset, _)| *offset);
    }
    Ok(Found { records, next: (before > extent.start).then_some(before) })
}

pub(super) async fn list(State(http): State<Arc<Http>>, peer: Peer, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["user", "action", "text", "refused", "before", "max"])?;
    let wanted = Wanted {
        user: query.text("user"),
        action: query.text("action"),
        text: query.text("text"),
        refused: query.get("refused")?.unwrap_or_default(),
        before: query.get("before")?,
    };
    let count_max = query.list_count()?;
    let held = http.broker.answers().take(Some(peer.address), 2 * count_max * RECORD_BYTES, ROOM_WAIT).await?;
    let Found { records, next } = newest(&http.broker, peer.address, &wanted, count_max).await?;
    let shown = |(offset, mut record): (Offset, Value)| {
        record["offset"] = offset.into();
        record
    };
    let records: Vec<Value> = records.into_iter().map(shown).collect();
    let body = codec::to_json(&json!({ "records": records, "next_before": next }));
    Ok(codec::charged("application/json", body, Some(held)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_meant_by_its_user_its_text_and_its_outcome() {
        let value = br#"{"user":"ann","action":"delete topic","name":"orders","outcome":"denied"}"#;
        let means = |wanted: &Wanted<'_>| wanted.means(value).is_some();
        assert!(means(&Wanted::default()));
        assert!(means(&Wanted { user: Some("ann"), text: Some("orders"), refused: true, ..Wanted::default() }));
        assert!(!means(&Wanted { user: Some("an"), ..Wanted::default() }));
        assert!(!means(&Wanted { text: Some("orderz"), ..Wanted::default() }));
        assert!(!means(&Wanted { action: Some("create topic"), ..Wanted::default() }));
        assert!(Wanted::default().means(b"{").is_none());
    }
}
