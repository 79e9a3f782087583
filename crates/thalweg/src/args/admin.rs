//! What is said about topics on the command line: how long records stay, and what is taken.

use clap::{Args, ValueEnum};
use client::{SettingsChange, TopicSettings};
use thalweg::config::parse_bytes;

use crate::commands::time::parse_duration;
use crate::output::{Failure, Result, USAGE};

/// Settings that a topic gets when it is created, and that may be changed later.
#[derive(Args, Default)]
pub struct TopicOptions {
    /// Bytes that a partition keeps, as 64MiB; 0 is no limit, `default` what the broker is set to
    #[arg(long)]
    pub retention_bytes: Option<String>,
    /// How long a batch stays, as 90s, 5m, 2h or 7d; 0s is no limit, `default` what the broker is set to
    #[arg(long, value_name = "TIME", conflicts_with = "retention_ms")]
    pub retention: Option<String>,
    /// The same in ms
    #[arg(long)]
    pub retention_ms: Option<u64>,
    /// The largest batch that is taken, as 1MiB; `default` for as large as the broker takes any
    #[arg(long, value_name = "BYTES")]
    pub batch_bytes_max: Option<String>,
    /// Whose clock records go by: their publisher's, or the broker's when they arrive
    #[arg(long, value_enum)]
    pub timestamps: Option<Timestamps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    Publisher,
    Arrival,
}

impl TopicOptions {
    pub fn change(&self) -> Result<SettingsChange> {
        let bytes = |option: &str, text: &Option<String>, default: u64| match text.as_deref() {
            None => Ok(None),
            Some("default") => Ok(Some(default)),
            Some(text) => parse_bytes(text).map(Some).map_err(|e| Failure::new(USAGE, format!("{option}: {e}"))),
        };
        let retention_ms = match self.retention.as_deref() {
            None => self.retention_ms,
            Some("default") => Some(TopicSettings::DEFAULT),
            Some(text) => {
                let wrong = || Failure::new(USAGE, format!("--retention {text}: write 90s, 5m, 2h or 7d, or default"));
                Some(parse_duration(text).ok_or_else(wrong)?.as_millis() as u64)
            }
        };
        let largest = u64::from(TopicSettings::default().batch_bytes_max);
        let batch_bytes_max = bytes("--batch-bytes-max", &self.batch_bytes_max, largest)?;
        Ok(SettingsChange {
            retention_bytes: bytes("--retention-bytes", &self.retention_bytes, TopicSettings::DEFAULT)?,
            retention_ms,
            compact: None,
            // The broker says what is too large.
            batch_bytes_max: batch_bytes_max.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            arrival_times: self.timestamps.map(|timestamps| timestamps == Timestamps::Arrival),
        })
    }
}
