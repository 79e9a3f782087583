//! The audit: a record of each login, of refusals, and of each administrative act.
//!
//! A record is a JSON object: see `docs/guides/audit.md`. Records wait in a queue of limited length until they are
//! written, so an act does not wait for its record. A full queue loses records, and the next one has their number.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::{Error, ErrorKind};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::acting::Acting;
use crate::metrics::{Counter, Exposition};

/// Action of a login, whose failures are limited by address.
pub(crate) const LOGIN: &str = "login";
/// Maximum records that wait to be written.
const QUEUED_MAX: usize = 16_384;
/// Maximum characters of a name and of an error in a record.
const TEXT_CHARS_MAX: usize = 512;
/// Refused requests and failed acts of which records are made each second.
const REFUSALS_PER_SECOND: u32 = 20;

/// Settings of the audit.
#[derive(Clone, Debug, Default)]
pub struct AuditSettings {
    pub is_on: bool,
    /// File to which records are appended, in addition to the topic.
    pub file: Option<PathBuf>,
    /// Time for which the topic retains records; zero means forever.
    pub retention: Duration,
}

/// Records that wait to be written.
pub(crate) struct Audit {
    is_on: bool,
    state: Mutex<State>,
    added: Arc<Notify>,
    written: Counter,
    lost: Counter,
    unrecorded: Counter,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Record>,
    /// Records that were lost since the last one in the queue.
    lost: u64,
    /// Second since 1970 in which refusals are counted, and their number.
    refusals: (u64, u32),
    /// Refusals without a record since the last record of one.
    unrecorded: u64,
}

/// A record: its key, which is the name of the user, and its value.
pub(crate) struct Record {
    pub(crate) user: String,
    pub(crate) json: String,
}

impl Audit {
    pub(crate) fn new(settings: &AuditSettings) -> Self {
        Self {
            is_on: settings.is_on,
            state: Mutex::default(),
            added: Arc::default(),
            written: Counter::default(),
            lost: Counter::default(),
            unrecorded: Counter::default(),
        }
    }

    /// Queues a record of an event. If the queue is full, or refusals are too many, it is only counted.
    pub(crate) fn add(&self, event: &Event<'_>, now_ms: u64) {
        let mut state = self.state.lock();
        if event.is_limited() {
            let second = now_ms / 1000;
            let (counted_in, count) = &mut state.refusals;
            *count = if *counted_in == second { count.saturating_add(1) } else { 1 };
            *counted_in = second;
            if *count > REFUSALS_PER_SECOND {
                state.unrecorded += 1;
                return self.unrecorded.add(1);
            }
        }
        if state.queue.len() >= QUEUED_MAX {
            state.lost += 1;
            return self.lost.add(1);
        }
        let lost = std::mem::take(&mut state.lost);
        let unrecorded = if event.is_limited() { std::mem::take(&mut state.unrecorded) } else { 0 };
        state.queue.push_back(event.record(now_ms, lost, unrecorded));
        drop(state);
        self.added.notify_one();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Notified when a record was added, and when the audit ends.
    pub(crate) fn added(&self) -> &Arc<Notify> {
        &self.added
    }

    /// Removes the oldest records from the queue.
    pub(crate) fn take(&self, count_max: usize) -> Vec<Record> {
        let queue = &mut self.state.lock().queue;
        let count = queue.len().min(count_max);
        queue.drain(..count).collect()
    }

    /// Counts records that were written, or lost: the next record has the number of those.
    pub(crate) fn count(&self, records: usize, is_written: bool) {
        let records = records as u64;
        if is_written {
            return self.written.add(records);
        }
        self.lost.add(records);
        self.state.lock().lost += records;
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        out.gauge("thalweg_audit_queued", "Records of the audit to be written", self.state.lock().queue.len() as u64)?;
        out.counter("thalweg_audit_records", "Records of the audit that were written", self.written.get())?;
        out.counter("thalweg_audit_lost", "Records of the audit that were lost", self.lost.get())?;
        let help = "Refused requests without a record, since there are too many";
        out.counter("thalweg_audit_refusals_unrecorded", help, self.unrecorded.get())
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        // The task that writes ends.
        self.added.notify_one();
    }
}

/// How an act ended.
#[derive(Clone, Copy)]
pub(crate) enum Outcome<'a> {
    Done,
    Error(&'a Error),
    /// The client was disconnected before the end. The act may be complete.
    Unknown,
}

impl<'a> From<Option<&'a Error>> for Outcome<'a> {
    fn from(error: Option<&'a Error>) -> Self {
        error.map_or(Self::Done, Self::Error)
    }
}

/// Event of the audit.
pub(crate) struct Event<'a> {
    pub(crate) acting: Acting,
    /// Act, such as `delete topic`; `None` for a refused request.
    pub(crate) action: Option<&'a str>,
    /// Object of the act, or the refused request.
    pub(crate) name: &'a str,
    pub(crate) outcome: Outcome<'a>,
}

impl Event<'_> {
    /// Returns `true` for an event that a client can cause at will: records of too many would displace all others.
    fn is_limited(&self) -> bool {
        self.action != Some(LOGIN) && !matches!(self.outcome, Outcome::Done | Outcome::Unknown)
    }

    pub(crate) fn record(&self, now_ms: u64, lost: u64, unrecorded: u64) -> Record {
        let text = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
        let Acting { door, address, user } = &self.acting;
        let outcome = match self.outcome {
            Outcome::Done => "ok",
            Outcome::Error(error) if error.kind == ErrorKind::Denied => "denied",
            Outcome::Error(_) => "failed",
            Outcome::Unknown => "unknown",
        };
        let mut json = json!({
            "time_ms": now_ms,
            "user": user.as_str(),
            "address": address.map(|address| address.to_canonical().to_string()),
            "door": door.key(),
            "action": self.action.unwrap_or("request"),
            "name": text(self.name),
            "outcome": outcome,
        });
        if let Outcome::Error(error) = self.outcome {
            json["error"] = text(&error.message).into();
        }
        for (name, count) in [("lost_before", lost), ("refusals_before", unrecorded)] {
            if count > 0 {
                json[name] = count.into();
            }
        }
        Record { user: user.as_str().to_owned(), json: json.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::doors::Door;

    fn audit() -> Audit {
        Audit::new(&AuditSettings { is_on: true, ..AuditSettings::default() })
    }

    fn acting() -> Acting {
        Acting::anonymous(Door::Kafka, Some([192, 0, 2, 1].into()))
    }

    fn event(action: Option<&'static str>) -> Event<'static> {
        Event { acting: acting(), action, name: "orders", outcome: Outcome::Done }
    }

    fn taken(audit: &Audit) -> Vec<Value> {
        audit.take(usize::MAX).iter().map(|record| serde_json::from_str(&record.json).expect("JSON")).collect()
    }

    #[test]
    fn a_record_names_client_act_and_outcome() {
        let audit = audit();
        let long = "n".repeat(2 * TEXT_CHARS_MAX);
        let denied = Error::new(ErrorKind::Denied, "no");
        let outcome = Outcome::Error(&denied);
        audit.add(&Event { acting: acting(), action: Some("delete topic"), name: &long, outcome }, 5);
        audit.add(&event(Some("create topic")), 6);
        let [first, second] = <[Value; 2]>::try_from(taken(&audit)).expect("two");
        assert_eq!(
            first,
            json!({
                "time_ms": 5, "user": "ANONYMOUS", "address": "192.0.2.1", "door": "kafka", "action": "delete topic",
                "name": "n".repeat(TEXT_CHARS_MAX), "outcome": "denied", "error": "no",
            })
        );
        assert_eq!((&second["outcome"], &second["error"]), (&json!("ok"), &Value::Null));
        let off = Audit::new(&AuditSettings::default());
        assert!(!off.is_on());
    }

    #[test]
    fn a_full_queue_and_a_flood_of_refusals_are_counted() {
        let audit = audit();
        let denied = Error::new(ErrorKind::Denied, "no");
        let refused = || Event { outcome: Outcome::Error(&denied), ..event(None) };
        for _ in 0..=QUEUED_MAX + 1 {
            audit.add(&event(Some("delete topic")), 1000);
        }
        assert_eq!((taken(&audit).len(), audit.lost.get()), (QUEUED_MAX, 2));
        audit.add(&event(Some("delete topic")), 1000);
        assert_eq!(taken(&audit)[0]["lost_before"], 2);
        for now_ms in [1999, 2000, 2999] {
            for _ in 0..REFUSALS_PER_SECOND {
                audit.add(&refused(), now_ms);
            }
        }
        let records = taken(&audit);
        assert_eq!(
            (records.len() as u32, audit.unrecorded.get() as u32),
            (2 * REFUSALS_PER_SECOND, REFUSALS_PER_SECOND)
        );
        audit.add(&refused(), 3000);
        assert_eq!(taken(&audit)[0]["refusals_before"], REFUSALS_PER_SECOND);
    }
}
