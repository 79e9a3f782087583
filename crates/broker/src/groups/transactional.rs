//! Offsets that a transaction commits: checked when they are staged, written when the transaction is committed.

use engine::Result;
use engine::groups::{Change, Committer, GroupName};
use engine::transactions::StagedOffsets;

use super::log::Appended;
use super::{Arc, Broker, Cell, Outcome};
use crate::publish::Wakes;

/// Offsets of a committed transaction that have their place in the log of their group.
#[must_use]
pub(crate) struct StagedCommit {
    cell: Arc<Cell>,
    appended: Appended,
}

impl StagedCommit {
    /// Lets them count, once the log is safe for it.
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

    /// Whether a transaction may commit these offsets of a group. Who says which member it is has to be that member.
    pub(crate) async fn check_staged(
        &self,
        name: &GroupName,
        committer: Option<&Committer>,
        offsets: &StagedOffsets,
    ) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let changes = changes(offsets);
        self.check_offsets(&changes)?;
        let cell = match committer {
            Some(Committer::Member { who, .. }) => coordinator.find_for(name, who)?,
            Some(_) | None => coordinator.find_or_create(name)?,
        };
        let checked = self.change(&cell, false, |group| {
            match committer {
                Some(committer) => group.check_commit(committer, &changes)?,
                None => group.check_offsets(&changes)?,
            }
            coordinator.check_room(group, &changes)?;
            Outcome::Ok(())
        });
        checked.await?
    }

    /// Writes offsets of a committed transaction. It was decided that they count: nothing is refused. Where it is done
    /// again, what was committed since that decision stays.
    pub(crate) fn commit_staged(
        &self,
        name: &GroupName,
        offsets: &StagedOffsets,
        is_again: bool,
        wakes: &mut Wakes,
    ) -> Outcome<Option<StagedCommit>> {
        let topic = self.offsets_topic()?;
        loop {
            let cell = self.groups().find_or_create(name)?;
            let mut state = cell.state.lock();
            if state.is_gone {
                // Whoever deleted it takes it off the list at once.
                drop(state);
                std::thread::yield_now();
                continue;
            }
            let mut changes = changes(offsets);
            changes.retain(|change| {
                let there = state.group.committed().get(&change.partition).map(|there| there.committed_ms);
                let own = change.committed.as_ref().map(|own| own.committed_ms);
                let is_newer = is_again && there > own;
                // Of a topic that is gone nothing is kept.
                !is_newer && self.topic(change.partition.topic.as_str()).is_ok()
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
}
