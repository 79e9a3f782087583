//! Offsets that a transaction commits: checked when they are staged, written when the transaction is committed.

use std::collections::BTreeSet;

use engine::groups::{Change, Committer, GroupName, OFFSETS_TOPIC};
use engine::transactions::StagedOffsets;
use engine::{Result, TopicPartition};

use super::{Arc, Broker, Cell, Outcome, no_such_group};
use crate::internal::Appended;
use crate::publish::Wakes;

/// A group whose offsets a transaction may commit.
pub(crate) struct StagedGroup(Arc<Cell>);

/// Offsets of a committed transaction that have been appended to the log of their group.
#[must_use]
pub(crate) struct StagedCommit {
    cell: Arc<Cell>,
    appended: Appended,
}

impl StagedCommit {
    /// Waits until the offsets are durable, and then makes them take effect.
    pub(crate) async fn finish(self) -> Result<()> {
        self.cell.commit_through(self.appended).await
    }
}

fn changes(offsets: &StagedOffsets) -> Vec<Change> {
    let change = |(partition, committed): (&_, &_)| Change {
        partition: Clone::clone(partition),
        committed: Some(Clone::clone(committed)),
    };
    offsets.iter().map(change).collect()
}

impl Broker {
    pub(crate) async fn wait_for_groups(&self) -> Result<()> {
        self.restored_groups().await.map(drop)
    }

    /// Returns the group whose offsets a transaction wants to commit.
    pub(crate) async fn staged_group(
        &self,
        name: &GroupName,
        committer: Option<&Committer>,
        offsets: &StagedOffsets,
    ) -> Outcome<StagedGroup> {
        let coordinator = self.restored_groups().await?;
        self.check_offsets(&changes(offsets))?;
        Ok(StagedGroup(match committer {
            Some(Committer::Member { who, .. }) => coordinator.find_for(name, who)?,
            Some(_) | None => coordinator.find_or_create(name, Some(self.peers()))?,
        }))
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
        if state.is_gone {
            return Err(no_such_group(&cell.name));
        }
        match committer {
            Some(committer) => state.group.check_commit(committer, &changes)?,
            None => state.group.check_offsets(&changes)?,
        }
        Ok(self.groups().check_room(&state.group, &changes)?)
    }

    /// Writes offsets of a committed transaction. The decision has been made, so that nothing is refused. Offsets
    /// committed since the decision are kept, so that this may be repeated.
    pub(crate) fn commit_staged(
        &self,
        name: &GroupName,
        offsets: &StagedOffsets,
        wakes: &mut Wakes,
    ) -> Outcome<Option<StagedCommit>> {
        if offsets.is_empty() {
            return Ok(None);
        }
        let topic = self.internal_topic(OFFSETS_TOPIC)?;
        loop {
            let cell = self.groups().find_or_create(name, None)?;
            let mut state = cell.state.lock();
            if state.is_gone {
                // The deleting task removes the group from the table immediately.
                drop(state);
                std::thread::yield_now();
                continue;
            }
            let mut changes = changes(offsets);
            changes.retain(|change| {
                let there = state.group.newest(&change.partition).map(|there| there.committed_ms);
                let own = change.committed.as_ref().map(|own| own.committed_ms);
                // Offsets of deleted topics are not kept.
                there < own && self.topic(change.partition.topic.as_str()).is_ok()
            });
            if changes.is_empty() {
                return Ok(None);
            }
            let records = changes
                .iter()
                .map(|change| super::OffsetsRecord::Offset { group: name.clone(), change: change.clone() });
            let appended = self.append_offsets(&topic, name, records, wakes)?;
            state.group.stage(appended.position, changes);
            drop(state);
            return Ok(Some(StagedCommit { cell, appended }));
        }
    }

    /// Returns the partitions of a group whose offsets are about to change: their commit is in the log but not durable
    /// yet.
    pub(crate) fn offsets_on_their_way(&self, name: &GroupName) -> BTreeSet<TopicPartition> {
        let Ok(cell) = self.groups().find(name) else {
            return BTreeSet::new();
        };
        let state = cell.state.lock();
        state.group.on_their_way().cloned().collect()
    }
}
