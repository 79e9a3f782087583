//! What is said about a topic: its settings, checked as a whole.

use crate::error::{Error, Result};
use crate::limits::PARTITIONS_MAX;

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
}

impl Storage {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Memory, Self::Disk];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|storage| *storage as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

impl std::str::FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|storage| storage.name() == text);
        known.ok_or_else(|| Error::invalid(format!("storage is auto, memory or disk, not '{text}'")))
    }
}

/// The settings of one topic. Zero means "no limit of its own" for both kinds of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    pub partitions: u32,
    /// Bytes that one partition keeps. The newest batch always stays.
    pub retention_bytes: u64,
    /// How long a batch stays after it arrived.
    pub retention_ms: u64,
    pub storage: Storage,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self { partitions: 1, retention_bytes: 64 << 20, retention_ms: 3_600_000, storage: Storage::Auto }
    }
}

impl TopicSettings {
    pub fn validate(&self) -> Result<()> {
        if self.partitions == 0 || self.partitions > PARTITIONS_MAX {
            return Err(Error::invalid(format!(
                "a topic has 1 to {PARTITIONS_MAX} partitions, not {}",
                self.partitions
            )));
        }
        Ok(())
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
}
