//! Offsets that a transaction commits: checked when they are staged, written when the transaction is committed.

use std::collections::BTreeSet;

use engine::groups::{Change, Committer, GroupName};
use engine::transactions::StagedOffsets;
use engine::{Result, TopicPartition};

use super::log::append_offsets;
use super::{Arc, Cell, Groups, Outcome};
use crate::commit::Commit;
use crate::wakes::Wakes;

/// A group whose offsets a transaction may commit.
pub(crate) struct StagedGroup(Arc<Cell>);

fn changes(offsets: &StagedOffsets) -> Vec<Change> {
    let change = |(partition, committed): (&_, &_)| Change {
        partition: Clone::clone(partition),
        committed: Some(Clone::clone(committed)),
    };
    offsets.iter().map(change).collect()
}

impl Groups {
    pub(crate) async fn wait_for_groups(&self) -> Result<()> {
        self.restored().await.map(drop)
    }

    /// Returns the group whose offsets a transaction wants to commit.
    pub(crate) async fn staged_group(
        &self,
        name: &GroupName,
        committer: Option<&Committer>,
        offsets: &StagedOffsets,
    ) -> Outcome<StagedGroup> {
        let coordinator = self.restored().await?;
        self.check_offsets(&changes(offsets))?;
        let cell = match committer {
            Some(Committer::Member { who, .. }) => coordinator.find_for(name, who)?,
            Some(_) | None => coordinator.find_or_create(name, Some(self.core.peers()))?,
        };
        self.refresh(&cell).await?;
        Ok(StagedGroup(cell))
    }

    /// Checks that a transaction may commit these offsets of a group. A committer that names a member must be that
    /// member. The caller holds the lock of the transaction from here on: a member that later reads the partitions
    /// queries the transaction first.
    pub(crate) fn check_staged(
        &self,
        StagedGroup(cell): &StagedGroup,
        committer: Option<&Committer>,
        offsets: &StagedOffsets,
    ) -> Outcome {
        let changes = changes(offsets);
        let mut state = cell.state.lock();
        state.check(&cell.name)?;
        match committer {
            Some(committer) => state.group.check_commit(committer, &changes)?,
            None => state.group.check_offsets(&changes)?,
        }
        Ok(self.table.check_room(&state.group, &changes)?)
    }

    /// Writes offsets of a committed transaction. The decision has been made, so that nothing is refused. Offsets
    /// committed since the decision are kept, so that this may be repeated.
    pub(crate) fn commit_staged(
        &self,
        name: &GroupName,
        offsets: &StagedOffsets,
        wakes: &mut Wakes,
    ) -> Outcome<Option<Commit>> {
        if offsets.is_empty() {
            return Ok(None);
        }
        loop {
            let cell = self.table.find_or_create(name, None)?;
            let mut state = cell.state.lock();
            if state.is_gone {
                // The deleting task removes the group from the table immediately.
                drop(state);
                std::thread::yield_now();
                continue;
            }
            let mut changes = changes(offsets);
            changes.retain(|change| {
                let current = state.group.newest(&change.partition).map(|current| current.committed_ms);
                let own = change.committed.as_ref().map(|own| own.committed_ms);
                // Offsets of deleted topics are not kept.
                current < own && self.core.existing_topic(change.partition.topic.as_str()).is_some()
            });
            if changes.is_empty() {
                return Ok(None);
            }
            let records = changes
                .iter()
                .map(|change| super::OffsetsRecord::Offset { group: name.clone(), change: change.clone() });
            let appended = append_offsets(&self.core, name, records, wakes)?;
            state.group.stage(appended.position, changes);
            drop(state);
            return Ok(Some(Commit::later(async move { cell.commit_through(appended).await })));
        }
    }

    /// Returns the partitions of a group whose offsets are about to change: their commit is in the log but not durable
    /// yet.
    pub(crate) fn offsets_on_their_way(&self, name: &GroupName) -> BTreeSet<TopicPartition> {
        let Ok(cell) = self.table.find(name) else {
            return BTreeSet::new();
        };
        let state = cell.state.lock();
        state.group.on_their_way().cloned().collect()
    }
}
