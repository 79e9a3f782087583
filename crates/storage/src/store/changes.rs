//! Changes of the catalog, in the order of the log. A deletion, a growth and new settings are applied when they are
//! committed; a creation, and ids of producers, when they are appended, so that records may follow immediately.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use engine::catalog::Change;
use engine::shard::ShardId;
use engine::{Error, Result};
use parking_lot::Mutex;

use crate::journal::{Entry, EntryKind, Owner};
use crate::partition::DiskPartition;
use crate::shared::Shared;
use crate::state::State;

/// The one owner of all changes of the catalog, so that the log reports them in their order.
pub(super) struct Changes {
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    pending: Mutex<Pending>,
    /// Held while committed changes are applied. Taken before all other locks.
    applying: Mutex<()>,
}

/// Changes that are appended and not committed yet, in the order of their marks.
#[derive(Default)]
struct Pending {
    last: u64,
    /// Topics whose creation is neither committed nor undone.
    creations: BTreeSet<u32>,
    changes: VecDeque<(u64, Change, Arc<dyn Owner>)>,
}

impl Changes {
    pub(super) fn new(shared: Arc<Shared>, state: Arc<Mutex<State>>) -> Self {
        Self { shared, state, pending: Mutex::default(), applying: Mutex::default() }
    }

    /// Appends a change. Its owner is notified when it is committed.
    pub(super) fn append(self: &Arc<Self>, change: Change, owner: Arc<dyn Owner>) -> Result<()> {
        let body = change.encode().into();
        let mut pending = self.pending.lock();
        let mark = pending.last + 1;
        let kind = EntryKind::Catalog;
        self.shared.append(Entry { kind, shard: ShardId::FIRST, stream: 0, body, owner: self.clone(), mark })?;
        pending.last = mark;
        if let Change::Create { id, .. } = &change {
            pending.creations.insert(*id);
        }
        pending.changes.push_back((mark, change, owner));
        Ok(())
    }

    /// Returns the topics whose deletion is appended and not committed yet.
    pub(super) fn deletions_due(&self) -> Vec<u32> {
        let pending = self.pending.lock();
        let deleted = |(_, change, _): &(u64, Change, Arc<dyn Owner>)| match change {
            Change::Delete { id } => Some(*id),
            _ => None,
        };
        pending.changes.iter().filter_map(deleted).collect()
    }

    /// Returns the topics whose creation is appended and not committed.
    pub(super) fn creations_due(&self) -> BTreeSet<u32> {
        self.pending.lock().creations.clone()
    }

    /// Gives up all changes that are not committed. Returns the partitions of topics that do not exist any more.
    pub(super) fn give_up(&self) -> Vec<Arc<DiskPartition>> {
        let _applying = self.applying.lock();
        let (changes, undone) = {
            let mut state = self.state.lock();
            let mut pending = self.pending.lock();
            let changes = std::mem::take(&mut pending.changes);
            (changes, state.undo(&std::mem::take(&mut pending.creations)))
        };
        let error = Error::not_leader("this node no longer leads, and the change was not committed", None);
        changes.iter().for_each(|(_, _, owner)| owner.failed(&error));
        undone
    }

    fn apply(&self, change: &Change) {
        match change {
            Change::Create { .. } | Change::Producers { .. } => {
                let mut state = self.state.lock();
                state.note_ids(change);
                if let Change::Create { id, .. } = change {
                    self.pending.lock().creations.remove(id);
                }
            }
            Change::Delete { .. } | Change::Grow { .. } | Change::Alter { .. } => {
                if let Err(error) = self.state.lock().apply_change(change) {
                    tracing::error!(%error, "cannot apply a change of a topic; a restart applies it");
                }
            }
        }
        if let Change::Delete { id } = change
            && !self.shared.has_front()
        {
            self.shared.deleted.lock().push(*id);
        }
    }
}

impl Owner for Changes {
    fn committed(&self, mark: u64) {
        let _applying = self.applying.lock();
        loop {
            let next = self.pending.lock().changes.pop_front_if(|(at, ..)| *at <= mark);
            let Some((_, change, owner)) = next else { return };
            self.apply(&change);
            owner.committed(0);
        }
    }

    fn failed(&self, error: &Error) {
        let changes = std::mem::take(&mut self.pending.lock().changes);
        changes.iter().for_each(|(_, _, owner)| owner.failed(error));
    }
}
