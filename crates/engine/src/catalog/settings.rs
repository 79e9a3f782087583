//! Settings of a topic, validated as a whole.

use std::ops::RangeInclusive;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::limits::{BATCH_BYTES_MAX, PARTITIONS_MAX};
use crate::mesh::MeshMode;

/// Storage of a topic's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Storage {
    /// On disk if the broker has a data directory, else in memory. The broker decides when it creates the topic.
    #[default]
    Auto = 0,
    /// In memory: deleted by a restart.
    Memory = 1,
    /// On disk: survives a restart; a record is committed once it is on the disk.
    Disk = 2,
    /// In one SQLite database file, as durable as `Disk`. Users may open it with SQLite's own tools while the broker
    /// runs.
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

/// Allowed sizes in bytes of a segment of a topic, as in Kafka: smaller segments would be a great many files.
pub const SEGMENT_BYTES: RangeInclusive<u64> = 1 << 20..=i32::MAX as u64;

/// Minimum of a topic's largest batch size, in bytes: a batch header and a small record.
pub const BATCH_BYTES_MIN: u32 = 128;

/// Set of the settings that a topic overrides, out of those that may follow the broker's: see [`TopicSettings::or`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnSettings(u16);

impl OwnSettings {
    pub const NONE: Self = Self(0);
    pub const RETENTION_BYTES: Self = Self(1);
    pub const RETENTION_MS: Self = Self(1 << 1);
    pub const BATCH_BYTES_MAX: Self = Self(1 << 2);
    pub const ARRIVAL_TIMES: Self = Self(1 << 3);
    pub const COMPRESSION: Self = Self(1 << 4);
    pub const SEGMENT_BYTES: Self = Self(1 << 5);
    pub const SEGMENT_MS: Self = Self(1 << 6);
    pub const LAG_MS_MIN: Self = Self(1 << 7);
    pub const LAG_MS_MAX: Self = Self(1 << 8);
    pub const ALL: Self = Self((1 << 9) - 1);

    /// Returns `None` for bits that name no setting.
    pub fn from_bits(bits: u16) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn has(self, setting: Self) -> bool {
        self.0 & setting.0 == setting.0
    }

    #[must_use]
    pub fn with(self, setting: Self, is_own: bool) -> Self {
        if is_own { Self(self.0 | setting.0) } else { Self(self.0 & !setting.0) }
    }
}

/// Settings of one topic. For both kinds of retention, 0 means no limit and [`TopicSettings::DEFAULT`] means the
/// broker's setting. For partitions, [`TopicSettings::DEFAULT_PARTITIONS`] means the broker's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    pub partitions: u32,
    /// Maximum bytes that one partition keeps. The newest batch is never removed.
    pub retention_bytes: u64,
    /// Time in ms that a batch is kept after its arrival.
    pub retention_ms: u64,
    pub storage: Storage,
    /// `true` if only the newest record of each key is kept, and keys whose newest record has no value are deleted. On
    /// disk only.
    pub compact: bool,
    /// Maximum size of a published batch in bytes.
    pub batch_bytes_max: u32,
    /// `true` if records carry the time of their arrival in place of the time that their publisher set.
    pub arrival_times: bool,
    /// `true` if records are deleted once all queues over the topic have finished with them, and immediately if there
    /// is no queue.
    pub drop_consumed: bool,
    /// `true` if neither retention nor a lack of memory removes records that a queue over the topic has not
    /// acknowledged: publishing is refused instead.
    pub keeps_unacked: bool,
    /// Codec of batches in the log; `None` keeps the codec of each publisher.
    pub compression: Option<Codec>,
    /// Size in bytes at which a segment ends; 0 is the broker's setting. On disk only.
    pub segment_bytes: u64,
    /// Maximum difference in ms between the first and any other batch of a segment; 0 is no limit. On disk only.
    pub segment_ms: u64,
    /// Minimum age in ms at which a record is compacted, and maximum age at which it has to be compacted; 0 is no
    /// limit.
    pub compaction_lag_ms: (u64, u64),
    /// Relation of the topic to the mesh. It never follows the broker's settings, and is off for the broker's internal
    /// topics, inboxes and channels.
    pub mesh: MeshMode,
    /// Settings that the topic overrides; the others follow the broker's. With `None` the topic overrides the settings
    /// that differ from [`TopicSettings::of_broker`].
    pub own: Option<OwnSettings>,
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
            mesh: MeshMode::Off,
            own: None,
        }
    }
}

impl TopicSettings {
    pub const DEFAULT: u64 = u64::MAX;
    pub const DEFAULT_PARTITIONS: u32 = u32::MAX;

    /// Returns settings that all follow the broker's.
    pub fn of_broker() -> Self {
        Self {
            partitions: Self::DEFAULT_PARTITIONS,
            retention_bytes: Self::DEFAULT,
            retention_ms: Self::DEFAULT,
            ..Self::default()
        }
    }

    /// Returns settings that keep records on disk for a week, whatever their size.
    pub fn on_disk() -> Self {
        Self { retention_bytes: 0, retention_ms: 7 * 24 * 3_600_000, storage: Storage::Disk, ..Self::default() }
    }

    /// Returns the settings with the broker's values for those that the topic does not override. A topic that is only
    /// compacted has no retention by default: its newest records may be old.
    pub fn or(self, defaults: &Self) -> Self {
        let mut own = self.own.unwrap_or_else(|| self.differences(&Self::of_broker()));
        let only_compacts = self.compact && self.retention_bytes == 0 && self.retention_ms == 0;
        let mut retention = |bit, value, default| match value {
            Self::DEFAULT => {
                own = own.with(bit, false);
                if self.compact { 0 } else { default }
            }
            value if own.has(bit) || only_compacts => value,
            _ => default,
        };
        let retention_bytes = retention(OwnSettings::RETENTION_BYTES, self.retention_bytes, defaults.retention_bytes);
        let retention_ms = retention(OwnSettings::RETENTION_MS, self.retention_ms, defaults.retention_ms);
        let of = |bit| if own.has(bit) { &self } else { defaults };
        Self {
            partitions: match self.partitions {
                Self::DEFAULT_PARTITIONS => defaults.partitions,
                partitions => partitions,
            },
            retention_bytes,
            retention_ms,
            batch_bytes_max: of(OwnSettings::BATCH_BYTES_MAX).batch_bytes_max,
            arrival_times: of(OwnSettings::ARRIVAL_TIMES).arrival_times,
            compression: of(OwnSettings::COMPRESSION).compression,
            segment_bytes: of(OwnSettings::SEGMENT_BYTES).segment_bytes,
            segment_ms: of(OwnSettings::SEGMENT_MS).segment_ms,
            compaction_lag_ms: (
                of(OwnSettings::LAG_MS_MIN).compaction_lag_ms.0,
                of(OwnSettings::LAG_MS_MAX).compaction_lag_ms.1,
            ),
            own: Some(own),
            ..self
        }
    }

    /// Returns the settings that differ between the two, out of those that may follow the broker's.
    pub fn differences(&self, other: &Self) -> OwnSettings {
        OwnSettings::NONE
            .with(OwnSettings::RETENTION_BYTES, self.retention_bytes != other.retention_bytes)
            .with(OwnSettings::RETENTION_MS, self.retention_ms != other.retention_ms)
            .with(OwnSettings::BATCH_BYTES_MAX, self.batch_bytes_max != other.batch_bytes_max)
            .with(OwnSettings::ARRIVAL_TIMES, self.arrival_times != other.arrival_times)
            .with(OwnSettings::COMPRESSION, self.compression != other.compression)
            .with(OwnSettings::SEGMENT_BYTES, self.segment_bytes != other.segment_bytes)
            .with(OwnSettings::SEGMENT_MS, self.segment_ms != other.segment_ms)
            .with(OwnSettings::LAG_MS_MIN, self.compaction_lag_ms.0 != other.compaction_lag_ms.0)
            .with(OwnSettings::LAG_MS_MAX, self.compaction_lag_ms.1 != other.compaction_lag_ms.1)
    }

    /// Returns `true` if all settings have equal values, regardless of which of them the topic overrides.
    pub fn is_as(&self, other: &Self) -> bool {
        Self { own: None, ..*self } == Self { own: None, ..*other }
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
        if self.mesh.is_offered() && self.storage == Storage::Memory {
            return Err(Error::invalid(
                "a topic in memory is not copied by other sites, since it does not survive a restart: use storage \
                 disk, with a broker that was started with --data DIR",
            ));
        }
        Ok(())
    }
}

/// Change of the settings of a topic. `None` keeps a setting. A retention may be [`TopicSettings::DEFAULT`].
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
    pub mesh: Option<MeshMode>,
    /// Settings that the topic overrides after the change. `None` keeps the present ones and adds those that the change
    /// names.
    pub own: Option<OwnSettings>,
}

impl SettingsChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings after the change.
    pub fn of(&self, settings: &TopicSettings) -> TopicSettings {
        TopicSettings {
            own: self.own.or_else(|| settings.own.map(|own| self.owned(own))),
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
            mesh: self.mesh.unwrap_or(settings.mesh),
            ..*settings
        }
    }

    /// Returns the overridden settings after the change: adds the settings that the change names, and removes a
    /// retention that is set to [`TopicSettings::DEFAULT`].
    fn owned(&self, own: OwnSettings) -> OwnSettings {
        let is_set = |value: Option<u64>, own: OwnSettings, bit| match value {
            Some(value) => own.with(bit, value != TopicSettings::DEFAULT),
            None => own,
        };
        let own = is_set(self.retention_bytes, own, OwnSettings::RETENTION_BYTES);
        let own = is_set(self.retention_ms, own, OwnSettings::RETENTION_MS);
        let named = [
            (OwnSettings::BATCH_BYTES_MAX, self.batch_bytes_max.is_some()),
            (OwnSettings::ARRIVAL_TIMES, self.arrival_times.is_some()),
            (OwnSettings::COMPRESSION, self.compression.is_some()),
            (OwnSettings::SEGMENT_BYTES, self.segment_bytes.is_some()),
            (OwnSettings::SEGMENT_MS, self.segment_ms.is_some()),
            (OwnSettings::LAG_MS_MIN, self.compaction_lag_ms.is_some()),
            (OwnSettings::LAG_MS_MAX, self.compaction_lag_ms.is_some()),
        ];
        named.into_iter().filter(|(_, is_named)| *is_named).fold(own, |own, (bit, _)| own.with(bit, true))
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
    fn only_topics_on_disk_can_be_compacted() {
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
    fn settings_that_are_not_a_topics_own_follow_the_broker() {
        let hour = TopicSettings { retention_ms: 5, ..TopicSettings::default() };
        let day = 24 * 3_600_000;
        let later = TopicSettings { retention_ms: day, batch_bytes_max: 4096, ..hour };
        let follows = TopicSettings::of_broker().or(&hour);
        assert_eq!((follows.retention_ms, follows.own), (5, Some(OwnSettings::NONE)));
        assert_eq!((follows.or(&later).retention_ms, follows.or(&later).batch_bytes_max), (day, 4096));
        // A topic that overrides a setting with the broker's value keeps that value.
        let own = TopicSettings { retention_ms: 5, ..TopicSettings::of_broker() }.or(&hour);
        assert_eq!((own.retention_ms, own.or(&later).retention_ms), (5, 5));
        let named = SettingsChange { retention_ms: Some(5), ..SettingsChange::default() }.of(&follows);
        assert_eq!(named.or(&later).retention_ms, 5);
        let given_back = SettingsChange { retention_ms: Some(TopicSettings::DEFAULT), ..Default::default() }.of(&own);
        assert_eq!((given_back.or(&hour).retention_ms, given_back.or(&hour).or(&later).retention_ms), (5, day));
        // A topic that is only compacted keeps its newest records.
        let compacted = TopicSettings { compact: true, ..TopicSettings::of_broker() }.or(&hour);
        assert_eq!((compacted.retention_ms, compacted.or(&later).retention_ms), (0, 0));
        let both = TopicSettings { retention_ms: 5, own: Some(OwnSettings::NONE), ..compacted };
        assert_eq!(both.or(&later).retention_ms, day);
    }

    #[test]
    fn a_change_keeps_omitted_settings() {
        let settings = TopicSettings { partitions: 3, storage: Storage::Disk, ..TopicSettings::default() };
        assert_eq!(SettingsChange::default().of(&settings), settings);
        let change = SettingsChange { retention_ms: Some(5), compact: Some(true), ..SettingsChange::default() };
        assert_eq!(change.of(&settings), TopicSettings { retention_ms: 5, compact: true, ..settings });
    }

    #[test]
    fn topics_of_any_storage_can_be_in_the_mesh() {
        let live = SettingsChange { mesh: Some(MeshMode::Live), ..SettingsChange::default() };
        assert!(!live.is_empty());
        for storage in Storage::ALL {
            let off = TopicSettings { storage, ..TopicSettings::default() };
            let settings = live.of(&off);
            assert_eq!((off.mesh, settings), (MeshMode::Off, TopicSettings { mesh: MeshMode::Live, ..off }));
            assert_eq!(settings.validate(), Ok(()), "{storage:?}");
            assert!(!settings.is_as(&off));
            // The topic keeps its mode, whatever the broker's settings and other changes of the topic are.
            assert_eq!(settings.or(&TopicSettings::default()).mesh, MeshMode::Live);
            assert_eq!(off.or(&settings).mesh, MeshMode::Off);
            assert_eq!(SettingsChange::default().of(&settings).mesh, MeshMode::Live);
        }
    }
}
