//! What is said about a topic: its settings, checked as a whole.

use crate::error::{Error, Result};
use crate::limits::PARTITIONS_MAX;

/// The settings of one topic. Zero means "no limit of its own" for both kinds of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    pub partitions: u32,
    /// Bytes that one partition keeps. The newest batch always stays.
    pub retention_bytes: u64,
    /// How long a batch stays after it arrived.
    pub retention_ms: u64,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self { partitions: 1, retention_bytes: 64 << 20, retention_ms: 3_600_000 }
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
