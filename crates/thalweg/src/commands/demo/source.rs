//! Sources of the records of the demonstration, and their publication through a pipe.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::digest::{Digest, Lines};
use crate::args::Demo;
use crate::output::{FAILED, Failure, Result, USAGE, note};

/// File in which `scripts/fetch-data.sh` stores the flights.
pub(super) const FLIGHTS: &str = "data/flights.jsonl";
/// Weather of Seattle: a line of column names, then 1,461 days.
const WEATHER: &str = include_str!("../../../data/seattle-weather.csv");
/// Size of a piece that is written into the pipe, in bytes.
const PIECE_BYTES: usize = 64 << 10;

pub(super) struct Source {
    /// Description of the records, for people.
    pub title: String,
    /// Origin of the records.
    pub origin: String,
    pub topic: String,
    /// Size including the line feeds, if it is known in advance.
    pub bytes: Option<u64>,
    reader: Box<dyn Read + Send>,
}

impl Source {
    pub(super) fn choose(args: &Demo) -> Result<Self> {
        match &args.file {
            _ if args.stdin => Ok(Self::stdin()),
            Some(path) => Self::file(path, "records"),
            None if Path::new(FLIGHTS).is_file() => {
                let source = Self::file(Path::new(FLIGHTS), "flights in the United States")?;
                Ok(Self { topic: "flights".to_owned(), ..source })
            }
            None => Ok(Self::weather()),
        }
    }

    fn stdin() -> Self {
        if io::stdin().is_terminal() {
            note("type records, one per line, and end with Ctrl-D");
        }
        Self {
            title: "records".to_owned(),
            origin: "the standard input".to_owned(),
            topic: "records".to_owned(),
            bytes: None,
            reader: Box::new(io::stdin()),
        }
    }

    fn file(path: &Path, title: &str) -> Result<Self> {
        let shown = path.display();
        let refuse = |why: &dyn std::fmt::Display| {
            Failure::new(USAGE, format!("cannot read {shown}: {why}; name a file with one record per line"))
        };
        let file = File::open(path).map_err(|error| refuse(&error))?;
        let metadata = file.metadata().map_err(|error| refuse(&error))?;
        if metadata.is_dir() {
            return Err(refuse(&"it is a directory"));
        }
        Ok(Self {
            title: title.to_owned(),
            origin: shown.to_string(),
            topic: topic_of(path),
            bytes: metadata.is_file().then_some(metadata.len()),
            reader: Box::new(file),
        })
    }

    fn weather() -> Self {
        // The line with the column names is not a record.
        let rows = WEATHER.split_once('\n').map_or(WEATHER, |(_, rows)| rows);
        Self {
            title: "days of weather in Seattle".to_owned(),
            origin: "the program itself".to_owned(),
            topic: "weather".to_owned(),
            bytes: Some(rows.len() as u64),
            reader: Box::new(rows.as_bytes()),
        }
    }

    /// Runs `thalweg publish` and writes all records into its standard input. Returns the digest of the written
    /// records, and the time when the last of them was acknowledged.
    pub(super) fn publish(self, server: &str) -> Result<(Digest, Instant)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--json", "publish", &self.topic, "--server", server])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let digest = match pour(self.reader, &mut child) {
            Ok(digest) => digest,
            Err(error) => {
                // The child may have ended by itself in the meantime.
                child.kill().unwrap_or_default();
                child.wait()?;
                return Err(Failure::new(FAILED, format!("cannot read {}: {error}", self.origin)));
            }
        };
        let output = child.wait_with_output()?;
        let end = Instant::now();
        let published = published(&output)?;
        if published != digest.records {
            return Err(Failure::new(
                FAILED,
                format!("`thalweg publish` reports {published} records; {} were written to its pipe", digest.records),
            ));
        }
        Ok((digest, end))
    }
}

/// Writes all records to the child. Returns only read errors: if the child stops reading, its own message explains why.
fn pour(mut reader: Box<dyn Read + Send>, child: &mut Child) -> io::Result<Digest> {
    let mut lines = Lines::default();
    let mut piece = vec![0; PIECE_BYTES];
    // Dropped at the end, which tells the child that no more records follow.
    let Some(mut pipe) = child.stdin.take() else {
        return Ok(lines.finish());
    };
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(lines.finish()),
            Ok(n) => {
                lines.feed(&piece[..n]);
                if pipe.write_all(&piece[..n]).is_err() {
                    return Ok(lines.finish());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the number of records that `thalweg publish` reports as published.
fn published(output: &Output) -> Result<u64> {
    if output.status.signal().is_some() {
        // Ctrl-C reaches both processes.
        return Err(Failure::new(FAILED, "`thalweg publish` was stopped"));
    }
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.trim().trim_start_matches("thalweg: ");
        return Err(Failure::new(FAILED, format!("`thalweg publish` ended with {}: {words}", output.status)));
    }
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    Ok(answer["published"].as_u64().unwrap_or_default())
}

/// Returns a topic name made from the file name: without leading `-` and `_`, and with at most 100 characters. `-`
/// replaces all characters that a topic name must not contain.
fn topic_of(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let name: String = stem.chars().map(kept).take(100).collect();
    match name.trim_start_matches(['-', '_']) {
        "" => "records".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_named_like_files() {
        for (path, topic) in [
            ("data/flights.jsonl", "flights"),
            ("/tmp/My file (2).csv", "My-file--2-"),
            ("_inbox.log", "inbox"),
            ("???", "records"),
            ("/", "records"),
        ] {
            assert_eq!(topic_of(Path::new(path)), topic, "{path}");
        }
    }

    #[test]
    fn the_weather_is_whole() {
        let mut lines = Lines::default();
        lines.feed(WEATHER.as_bytes());
        assert_eq!(lines.finish().records, 1462);
        assert!(WEATHER.starts_with("date,") && WEATHER.ends_with("2015-12-31,0.0,5.6,-2.1,3.5,sun\n"));
    }
}
