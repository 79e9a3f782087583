//! How far a group has read: what is committed, and commits whose record is not yet safe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::{Error, Result};
use crate::ids::{Offset, TopicName, TopicPartition};
use crate::limits::{
    GROUP_COMMITS_IN_FLIGHT_MAX, GROUP_METADATA_BYTES_MAX, GROUP_PARTITIONS_MAX, OFFSET_METADATA_BYTES_MAX,
};

/// The leader epoch of a commit that names none.
pub const NO_LEADER_EPOCH: i32 = -1;

/// Where a group goes on in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next record to read: all before it are done.
    pub offset: Offset,
    pub leader_epoch: i32,
    /// The committer's own note.
    pub metadata: Box<str>,
    /// Milliseconds since 1970.
    pub committed_ms: u64,
}

/// What a commit does to one partition: `None` forgets its offset.
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
    /// Partitions that had no committed offset when this was staged.
    fresh: usize,
    metadata_bytes: usize,
}

/// Invariant: `committed` is what a reader of the log up to the last position that is safe would find.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<TopicPartition, Committed>,
    /// Of all that is committed.
    metadata_bytes: usize,
    /// In the order of the log.
    staged: VecDeque<Staged>,
}

impl Offsets {
    pub(super) fn committed(&self) -> &BTreeMap<TopicPartition, Committed> {
        &self.committed
    }

    /// Whether none is committed or on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.staged.is_empty()
    }

    /// What a partition's offset is once all commits on their way are safe.
    pub(super) fn newest(&self, partition: &TopicPartition) -> Option<&Committed> {
        let staged = self.staged.iter().rev().flat_map(|staged| staged.changes.iter().rev());
        match staged.into_iter().find(|change| change.partition == *partition) {
            Some(change) => change.committed.as_ref(),
            None => self.committed.get(partition),
        }
    }

    /// Partitions of commits on their way.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = &TopicPartition> {
        self.staged.iter().flat_map(|staged| &staged.changes).map(|change| &change.partition)
    }

    /// Whether there is room for these changes beside those on their way.
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

    /// Partitions and bytes of metadata that these changes add.
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

    /// The log is safe up to and with this position.
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

    /// Partitions that have a committed offset, or will have one.
    fn partitions(&self) -> BTreeSet<&TopicPartition> {
        self.committed.keys().chain(self.on_their_way()).collect()
    }

    /// What the log has to be told for it to forget these partitions.
    pub(super) fn tombstones(&self, topic: Option<&TopicName>) -> Vec<Change> {
        let partitions = self.partitions().into_iter().filter(|p| topic.is_none_or(|topic| p.topic == *topic));
        partitions.map(|partition| Change { partition: partition.clone(), committed: None }).collect()
    }

    /// Forgets a topic at once: there is nothing any more that its offsets could mean.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        for staged in &mut self.staged {
            staged.changes.retain(|change| change.partition.topic != *topic);
        }
        for change in self.tombstones(Some(topic)) {
            self.apply(change);
        }
    }
}
