//! Histories of the programs: what each client sent, received and was told, one JSON object per line.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::run::Outcome;

/// Event in the order in which the program saw it. `at` is a time in milliseconds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Event {
    Client {
        version: String,
    },
    /// Declares a stream of items, and the promises that its protocol makes.
    Stream {
        stream: String,
        #[serde(flatten)]
        promises: Promises,
    },
    /// Item that was sent, with the answer. Its producer numbers the items in the order in which it sends them.
    Sent {
        stream: String,
        producer: String,
        number: u64,
        outcome: Told,
        at: u64,
    },
    /// Item that arrived from a partition, a key or a group (`lane`). Each stored copy has another `id` there.
    Got {
        stream: String,
        reader: String,
        lane: String,
        id: String,
        producer: String,
        number: u64,
    },
    /// Confirmed deletion or acknowledgement of a received item, which must not arrive again.
    Settled {
        stream: String,
        lane: String,
        id: String,
        at: u64,
    },
    /// Confirmed commit of a consumer group: the next offset to read.
    Committed {
        stream: String,
        lane: String,
        next: u64,
        at: u64,
    },
    /// Committed offset that the broker reports at the end.
    Position {
        stream: String,
        lane: String,
        next: u64,
    },
    /// Request that takes an item, whose answer was lost: the protocol has no way to ask for it again.
    Taken {
        stream: String,
    },
    /// Write of a number to a register, with the answer. One client writes to it, in ascending order.
    Wrote {
        stream: String,
        lane: String,
        number: u64,
        outcome: Told,
        at: u64,
    },
    /// Number that was read from a register; 0 if it was empty.
    Read {
        stream: String,
        lane: String,
        number: u64,
    },
    /// Increment of a counter with its result, or without an answer. One client adds to it.
    Added {
        stream: String,
        lane: String,
        value: Option<u64>,
        at: u64,
    },
    /// Value that was read from a counter.
    Counted {
        stream: String,
        lane: String,
        value: u64,
    },
    /// Error that the library reported to the program.
    Error {
        stream: String,
        error: String,
    },
}

/// Answer to a request that changes something.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    Ok,
    Unknown,
}

/// Promises of a protocol for the items of a stream.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Promises {
    /// Requests have numbers or identities, so that none is stored twice.
    pub numbered: bool,
    /// Items of one producer keep their order in each lane.
    pub ordered: bool,
    /// Everything is read back at the end by the reader `final`; otherwise any received item counts.
    pub log: bool,
    /// Stream whose items all become one item of this stream each.
    pub from: Option<String>,
}

impl Event {
    pub fn stream(&self) -> Option<&str> {
        match self {
            Self::Client { .. } => None,
            Self::Stream { stream, .. }
            | Self::Sent { stream, .. }
            | Self::Got { stream, .. }
            | Self::Settled { stream, .. }
            | Self::Committed { stream, .. }
            | Self::Position { stream, .. }
            | Self::Taken { stream }
            | Self::Wrote { stream, .. }
            | Self::Read { stream, .. }
            | Self::Added { stream, .. }
            | Self::Counted { stream, .. }
            | Self::Error { stream, .. } => Some(stream),
        }
    }

    /// Returns the time of an acknowledgement.
    pub fn acknowledged(&self) -> Option<u64> {
        match self {
            Self::Sent { outcome: Told::Ok, at, .. }
            | Self::Wrote { outcome: Told::Ok, at, .. }
            | Self::Added { value: Some(_), at, .. }
            | Self::Settled { at, .. }
            | Self::Committed { at, .. } => Some(*at),
            _ => None,
        }
    }
}

/// History that a program is writing.
pub struct History {
    path: PathBuf,
    read: u64,
    /// Beginning of a line that is not complete yet.
    rest: Vec<u8>,
    pub events: Vec<Event>,
}

impl History {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), read: 0, rest: Vec::new(), events: Vec::new() }
    }

    /// Reads the lines that were added.
    pub fn refresh(&mut self) -> Outcome {
        let named = |e: std::io::Error| format!("{}: {e}", self.path.display());
        // The program has not begun yet.
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.read)).map_err(named)?;
        self.read += file.read_to_end(&mut self.rest).map_err(named)? as u64;
        let complete = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.rest[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event = serde_json::from_slice(line);
            let shown = || String::from_utf8_lossy(line).into_owned();
            self.events.push(event.map_err(|e| format!("{}: {e} in {}", self.path.display(), shown()))?);
        }
        self.rest.drain(..complete);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_when_they_are_complete() {
        let path = std::env::temp_dir().join(format!("thalweg-history-{}", std::process::id()));
        let mut history = History::new(&path);
        history.refresh().expect("not there yet");
        let stream = r#"{"op":"stream","stream":"a","numbered":true,"from":"b"}"#;
        let sent = r#"{"op":"sent","stream":"a","producer":"p","number":1,"outcome":"ok","at":7}"#;
        std::fs::write(&path, format!("{stream}\n{}", &sent[..20])).expect("written");
        history.refresh().expect("one line");
        let promises = Promises { numbered: true, from: Some("b".into()), ..Promises::default() };
        assert_eq!(history.events, [Event::Stream { stream: "a".into(), promises }]);
        std::fs::write(&path, format!("{stream}\n{sent}\n")).expect("written");
        history.refresh().expect("two lines");
        assert_eq!(history.events[1].acknowledged(), Some(7));
        std::fs::write(&path, format!("{stream}\n{sent}\n{{}}\n")).expect("written");
        assert!(history.refresh().is_err());
        std::fs::remove_file(&path).expect("removed");
    }
}
