//! Offsets of a group: those that are committed, and commits whose record is not durable yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::{Error, Result};
use crate::ids::{Offset, TopicName, TopicPartition};
use crate::limits::{
    GROUP_COMMITS_IN_FLIGHT_MAX, GROUP_METADATA_BYTES_MAX, GROUP_PARTITIONS_MAX, OFFSET_METADATA_BYTES_MAX,
};

/// Leader epoch of a commit that specifies none.
pub const NO_LEADER_EPOCH: i32 = -1;

/// Position from which a group resumes in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Offset of the next record to read: all records before it were processed.
    pub offset: Offset,
    pub leader_epoch: i32,
    /// Metadata that the committer attached.
    pub metadata: Box<str>,
    /// Milliseconds since 1970.
    pub committed_ms: u64,
}

/// Change of one partition by a commit: `None` deletes its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub partition: TopicPartition,
    pub committed: Option<Committed>,
}

/// Changes whose record has its place in the log.
#[derive(Debug)]
struct Staged {
    position: Offset,
    changes: Vec<Change>,
    /// Number of partitions that had no committed offset when this was staged.
    fresh: usize,
    metadata_bytes: usize,
}

/// Invariant: `committed` is the state that a reader of the log up to the last durable position would restore.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<TopicPartition, Committed>,
    /// Total size of the metadata of all committed offsets.
    metadata_bytes: usize,
    /// Commits in flight, in the order of the log.
    staged: VecDeque<Staged>,
}

impl Offsets {
    pub(super) fn committed(&self) -> &BTreeMap<TopicPartition, Committed> {
        &self.committed
    }

    /// Returns `true` if no offset is committed or in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.staged.is_empty()
    }

    /// Returns the offset that a partition will have once all commits in flight are durable.
    pub(super) fn newest(&self, partition: &TopicPartition) -> Option<&Committed> {
        let staged = self.staged.iter().rev().flat_map(|staged| staged.changes.iter().rev());
        match staged.into_iter().find(|change| change.partition == *partition) {
            Some(change) => change.committed.as_ref(),
            None => self.committed.get(partition),
        }
    }

    /// Returns the partitions of commits in flight.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = &TopicPartition> {
        self.staged.iter().flat_map(|staged| &staged.changes).map(|change| &change.partition)
    }

    /// Checks that there is room for these changes in addition to those in flight.
    pub(super) fn check(&self, changes: &[Change]) -> Result<()> {
        if self.staged.len() >= GROUP_COMMITS_IN_FLIGHT_MAX {
            return Err(Error::busy(format!(
                "{GROUP_COMMITS_IN_FLIGHT_MAX} commits of this group are in flight: try again later"
            )));
        }
        let is_too_long = |change: &&Change| {
            change.committed.as_ref().is_some_and(|committed| committed.metadata.len() > OFFSET_METADATA_BYTES_MAX)
        };
        if let Some(change) = changes.iter().find(is_too_long) {
            let partition = &change.partition;
            return Err(Error::too_large(format!(
                "the metadata of an offset has at most {OFFSET_METADATA_BYTES_MAX} bytes; that of {partition} has more"
            )));
        }
        let (mut fresh, mut metadata_bytes) = self.growth(changes);
        for staged in &self.staged {
            fresh += staged.fresh;
            metadata_bytes += staged.metadata_bytes;
        }
        if fresh > 0 && self.committed.len() + fresh > GROUP_PARTITIONS_MAX {
            return Err(Error::too_large(format!(
                "a group has committed offsets of at most {GROUP_PARTITIONS_MAX} partitions"
            )));
        }
        if metadata_bytes > 0 && self.metadata_bytes + metadata_bytes > GROUP_METADATA_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the metadata of all offsets of a group has at most {GROUP_METADATA_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }

    /// Returns the number of partitions and of bytes of metadata that these changes add.
    fn growth(&self, changes: &[Change]) -> (usize, usize) {
        let fresh = changes
            .iter()
            .filter(|change| change.committed.is_some() && !self.committed.contains_key(&change.partition))
            .count();
        let after: usize =
            changes.iter().filter_map(|change| change.committed.as_ref()).map(|c| c.metadata.len()).sum();
        let known = changes.iter().filter_map(|change| self.committed.get(&change.partition));
        let before: usize = known.map(|committed| committed.metadata.len()).sum();
        (fresh, after.saturating_sub(before))
    }

    pub(super) fn stage(&mut self, position: Offset, changes: Vec<Change>) {
        debug_assert!(self.staged.back().is_none_or(|last| last.position < position), "invariant: in log order");
        let (fresh, metadata_bytes) = self.growth(&changes);
        self.staged.push_back(Staged { position, changes, fresh, metadata_bytes });
    }

    /// Applies all changes up to and including this position, which are now durable in the log.
    pub(super) fn commit_through(&mut self, position: Offset) {
        while self.staged.front().is_some_and(|staged| staged.position <= position)
            && let Some(staged) = self.staged.pop_front()
        {
            staged.changes.into_iter().for_each(|change| self.apply(change));
        }
    }

    pub(super) fn apply(&mut self, change: Change) {
        let before = match change.committed {
            Some(committed) => {
                self.metadata_bytes += committed.metadata.len();
                self.committed.insert(change.partition, committed)
            }
            None => self.committed.remove(&change.partition),
        };
        self.metadata_bytes -= before.map_or(0, |before| before.metadata.len());
    }

    /// Returns the partitions that have a committed offset, or will have one.
    fn partitions(&self) -> BTreeSet<&TopicPartition> {
        self.committed.keys().chain(self.on_their_way()).collect()
    }

    /// Returns the changes that delete the offsets of a topic, or of all topics, from the log.
    pub(super) fn tombstones(&self, topic: Option<&TopicName>) -> Vec<Change> {
        let partitions = self.partitions().into_iter().filter(|p| topic.is_none_or(|topic| p.topic == *topic));
        partitions.map(|partition| Change { partition: partition.clone(), committed: None }).collect()
    }

    /// Forgets the offsets of a deleted topic immediately, since they have no meaning any more.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        for staged in &mut self.staged {
            staged.changes.retain(|change| change.partition.topic != *topic);
        }
        for change in self.tombstones(Some(topic)) {
            self.apply(change);
        }
    }
}
