//! What is said about a topic: its settings, checked as a whole.

use std::ops::RangeInclusive;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::limits::{BATCH_BYTES_MAX, PARTITIONS_MAX};

/// Where a topic's records are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Storage {
    /// On disk where the broker has a data directory, else in memory. The broker decides when it creates the topic.
    #[default]
    Auto = 0,
    /// Gone after a restart.
    Memory = 1,
    /// Kept, and committed only when it is on the disk.
    Disk = 2,
    /// The same, in one database file that users may open with SQLite's own tools while the broker runs.
    Sqlite = 3,
}

impl Storage {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Memory, Self::Disk, Self::Sqlite];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|storage| *storage as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Sqlite => "sqlite",
        }
    }
}

impl std::str::FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|storage| storage.name() == text);
        known.ok_or_else(|| Error::invalid(format!("storage is auto, memory, disk or sqlite, not '{text}'")))
    }
}

/// Bytes of a segment that a topic may ask for, as Kafka has them: smaller ones would be a great many files.
pub const SEGMENT_BYTES: RangeInclusive<u64> = 1 << 20..=i32::MAX as u64;

/// What a topic may ask of a batch at the least: its own head, and a small record.
pub const BATCH_BYTES_MIN: u32 = 128;

/// The settings of one topic. For both kinds of retention zero means no limit, and [`TopicSettings::DEFAULT`] what
/// the broker is set to; so it does for partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    pub partitions: u32,
    /// Bytes that one partition keeps. The newest batch always stays.
    pub retention_bytes: u64,
    /// How long a batch stays after it arrived.
    pub retention_ms: u64,
    pub storage: Storage,
    /// Of each key only the newest record stays, and a key whose newest record has no value goes. On disk only.
    pub compact: bool,
    /// What a batch that is published may have at most.
    pub batch_bytes_max: u32,
    /// Records carry the time at which they arrived, in place of the one that their publisher gave them.
    pub arrival_times: bool,
    /// Records go once all queues over the topic are done with them, and at once where there is none.
    pub drop_consumed: bool,
    /// Retention removes no record that a queue over the topic has not acknowledged, and neither does a lack of memory:
    /// publishing is refused instead.
    pub keeps_unacked: bool,
    /// What batches are compressed with in the log; `None` for what each publisher compressed them with.
    pub compression: Option<Codec>,
    /// Bytes after which a file of the log ends; 0 is as the broker is set. On disk only.
    pub segment_bytes: u64,
    /// How much newer than its first batch a batch may be in one file of the log, in ms; 0 is no limit. On disk only.
    pub segment_ms: u64,
    /// The age in ms at which a record is compacted at the earliest, and at which compaction has to come; 0 is no
    /// limit.
    pub compaction_lag_ms: (u64, u64),
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            partitions: 1,
            retention_bytes: 64 << 20,
            retention_ms: 3_600_000,
            storage: Storage::Auto,
            compact: false,
            batch_bytes_max: BATCH_BYTES_MAX as u32,
            arrival_times: false,
            drop_consumed: false,
            keeps_unacked: false,
            compression: None,
            segment_bytes: 0,
            segment_ms: 0,
            compaction_lag_ms: (0, 0),
        }
    }
}

impl TopicSettings {
    pub const DEFAULT: u64 = u64::MAX;
    pub const DEFAULT_PARTITIONS: u32 = u32::MAX;

    /// All as the broker is set.
    pub fn of_broker() -> Self {
        Self {
            partitions: Self::DEFAULT_PARTITIONS,
            retention_bytes: Self::DEFAULT,
            retention_ms: Self::DEFAULT,
            ..Self::default()
        }
    }

    /// Kept for a week, whatever it takes.
    pub fn on_disk() -> Self {
        Self { retention_bytes: 0, retention_ms: 7 * 24 * 3_600_000, storage: Storage::Disk, ..Self::default() }
    }

    /// With the defaults where nothing is said. A compacted topic has no retention by default: its newest records
    /// may be old.
    pub fn or(self, defaults: &Self) -> Self {
        let or = |value, default| match value {
            Self::DEFAULT if self.compact => 0,
            Self::DEFAULT => default,
            value => value,
        };
        Self {
            partitions: match self.partitions {
                Self::DEFAULT_PARTITIONS => defaults.partitions,
                partitions => partitions,
            },
            retention_bytes: or(self.retention_bytes, defaults.retention_bytes),
            retention_ms: or(self.retention_ms, defaults.retention_ms),
            ..self
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.partitions == 0 || self.partitions > PARTITIONS_MAX {
            return Err(Error::invalid(format!(
                "a topic has 1 to {PARTITIONS_MAX} partitions, not {}",
                self.partitions
            )));
        }
        if self.batch_bytes_max < BATCH_BYTES_MIN || self.batch_bytes_max as usize > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a batch has at most {BATCH_BYTES_MIN} to {BATCH_BYTES_MAX} bytes, not {}",
                self.batch_bytes_max
            )));
        }
        if self.segment_bytes != 0 && !SEGMENT_BYTES.contains(&self.segment_bytes) {
            return Err(Error::invalid(format!(
                "a segment has {} to {} bytes, not {}",
                SEGMENT_BYTES.start(),
                SEGMENT_BYTES.end(),
                self.segment_bytes
            )));
        }
        let (least, most) = self.compaction_lag_ms;
        if most != 0 && least > most {
            return Err(Error::invalid(format!(
                "records are compacted at the earliest after {least} ms and at the latest after {most} ms: the first \
                 has to be at most the second"
            )));
        }
        if self.compact && matches!(self.storage, Storage::Memory | Storage::Sqlite) {
            return Err(Error::invalid(format!(
                "a topic with storage {} is not compacted: use storage disk, with a broker that was started with \
                 --data DIR",
                self.storage.name()
            )));
        }
        Ok(())
    }
}

/// What is to be different about a topic. `None` stays as it is. A retention may be [`TopicSettings::DEFAULT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    pub retention_bytes: Option<u64>,
    pub retention_ms: Option<u64>,
    pub compact: Option<bool>,
    pub batch_bytes_max: Option<u32>,
    pub arrival_times: Option<bool>,
    pub drop_consumed: Option<bool>,
    pub keeps_unacked: Option<bool>,
    pub compression: Option<Option<Codec>>,
    pub segment_bytes: Option<u64>,
    pub segment_ms: Option<u64>,
    pub compaction_lag_ms: Option<(u64, u64)>,
}

impl SettingsChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The settings with the change made.
    pub fn of(&self, settings: &TopicSettings) -> TopicSettings {
        TopicSettings {
            retention_bytes: self.retention_bytes.unwrap_or(settings.retention_bytes),
            retention_ms: self.retention_ms.unwrap_or(settings.retention_ms),
            compact: self.compact.unwrap_or(settings.compact),
            batch_bytes_max: self.batch_bytes_max.unwrap_or(settings.batch_bytes_max),
            arrival_times: self.arrival_times.unwrap_or(settings.arrival_times),
            drop_consumed: self.drop_consumed.unwrap_or(settings.drop_consumed),
            keeps_unacked: self.keeps_unacked.unwrap_or(settings.keeps_unacked),
            compression: self.compression.unwrap_or(settings.compression),
            segment_bytes: self.segment_bytes.unwrap_or(settings.segment_bytes),
            segment_ms: self.segment_ms.unwrap_or(settings.segment_ms),
            compaction_lag_ms: self.compaction_lag_ms.unwrap_or(settings.compaction_lag_ms),
            ..*settings
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_bounded() {
        assert!(TopicSettings::default().validate().is_ok());
        for partitions in [0, PARTITIONS_MAX + 1] {
            assert!(TopicSettings { partitions, ..TopicSettings::default() }.validate().is_err());
        }
    }

    #[test]
    fn only_what_is_on_disk_is_compacted() {
        for storage in Storage::ALL {
            let settings = TopicSettings { storage, compact: true, ..TopicSettings::default() };
            assert_eq!(settings.validate().is_ok(), matches!(storage, Storage::Auto | Storage::Disk), "{storage:?}");
            assert_eq!(storage.name().parse(), Ok(storage));
            assert_eq!(Storage::from_code(storage as u8), Some(storage));
        }
    }

    #[test]
    fn batches_are_bounded() {
        for batch_bytes_max in [0, BATCH_BYTES_MIN - 1, BATCH_BYTES_MAX as u32 + 1] {
            assert!(TopicSettings { batch_bytes_max, ..TopicSettings::default() }.validate().is_err());
        }
    }

    #[test]
    fn segments_and_the_lag_of_compaction_are_bounded() {
        let of =
            |segment_bytes, compaction_lag_ms| TopicSettings { segment_bytes, compaction_lag_ms, ..Default::default() };
        for fine in [of(0, (5, 0)), of(1 << 20, (0, 5)), of(i32::MAX as u64, (5, 5))] {
            assert_eq!(fine.validate(), Ok(()));
        }
        for wrong in [of((1 << 20) - 1, (0, 0)), of(1 << 31, (0, 0)), of(0, (6, 5))] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let settings = TopicSettings { partitions: 3, storage: Storage::Disk, ..TopicSettings::default() };
        assert_eq!(SettingsChange::default().of(&settings), settings);
        let change = SettingsChange { retention_ms: Some(5), compact: Some(true), ..SettingsChange::default() };
        assert_eq!(change.of(&settings), TopicSettings { retention_ms: 5, compact: true, ..settings });
    }
}
