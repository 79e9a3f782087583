//! Histories: what clients did and saw, as JSON lines. Times are microseconds of the machine's monotonic clock, which
//! the clients in Python read too.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;

/// Time in microseconds.
pub type Micros = u64;

/// Reads the monotonic clock.
pub fn now() -> Micros {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
}

/// Knowledge of a client about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was executed and is durable.
    Ok,
    /// It may have been executed, or may still be.
    Unknown,
    /// It was refused.
    Refused,
}

/// Event of a log. A record is named by its producer and its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum LogEvent {
    Sent {
        producer: String,
        number: u64,
        partition: u32,
        offset: Option<u64>,
        outcome: Outcome,
        begin: Micros,
        end: Micros,
    },
    /// Record that a reader received. The reader `final` has read all partitions from their beginning to their end.
    Read { reader: String, partition: u32, offset: u64, producer: String, number: u64 },
}

/// Operation on a counter that only `Add` changes, each time by 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum CounterEvent {
    /// The value is that after the addition; `None` if the outcome is unknown.
    Add {
        key: String,
        begin: Micros,
        end: Micros,
        value: Option<u64>,
    },
    Get {
        key: String,
        begin: Micros,
        end: Micros,
        value: u64,
    },
}

/// Event of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum QueueEvent {
    Sent { id: u64, outcome: Outcome, begin: Micros, end: Micros },
    Given { id: u64, begin: Micros, end: Micros },
    Acked { id: u64, outcome: Outcome, begin: Micros, end: Micros },
}

/// Event of the committed offset of a partition in a group, which one client commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum GroupEvent {
    Committed { partition: u32, offset: u64, outcome: Outcome, begin: Micros, end: Micros },
    Fetched { partition: u32, offset: u64, begin: Micros, end: Micros },
}

/// File of events that several clients write.
pub struct History<E> {
    file: Mutex<BufWriter<File>>,
    events: std::marker::PhantomData<fn(E)>,
}

impl<E: Serialize> History<E> {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file: Mutex::new(BufWriter::new(file)), events: std::marker::PhantomData })
    }

    /// Adds an event. A history that cannot be written proves nothing, so that is the end of the run.
    pub fn add(&self, event: &E) {
        let line = serde_json::to_string(event).expect("invariant: events are JSON");
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        writeln!(file, "{line}").expect("invariant: the history has a disk with room");
    }

    pub fn flush(&self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner).flush()
    }
}

/// Reads the events of a file; none if it does not exist. A client that was killed may have left half a line at its
/// end.
pub fn read<E: DeserializeOwned>(path: &Path) -> io::Result<Vec<E>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut events = Vec::new();
    let mut lines = BufReader::new(file).lines().peekable();
    while let Some(line) = lines.next() {
        match serde_json::from_str(&line?) {
            Ok(event) => events.push(event),
            Err(_) if lines.peek().is_none() => {}
            Err(error) => return Err(io::Error::other(format!("{}: {error}", path.display()))),
        }
    }
    Ok(events)
}
