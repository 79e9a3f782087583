//! The topic of offsets: the durable state of groups is appended to it, and restored from it on startup.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::groups::{Group, GroupName, Now, OffsetsRecord};
use engine::{Result, TopicName};

use super::{Cell, GroupTable, Groups};
use crate::commit::Appended;
use crate::core::Core;
use crate::state_log::StateLog;
use crate::wakes::Wakes;

/// Offsets and state of groups.
pub(super) const OFFSETS: StateLog<OffsetsRecord> = StateLog::new();

/// Appends records of a group, in this order. A caller that holds the group's lock during the call excludes other
/// records of the group in between.
pub(super) fn append_offsets(
    core: &Core,
    group: &GroupName,
    records: impl IntoIterator<Item = OffsetsRecord>,
    wakes: &mut Wakes,
) -> Result<Appended> {
    OFFSETS.append(core, core.shards().home_of_name(group.as_str().as_bytes()), records, wakes)
}

/// Returns all groups as recorded.
pub(super) async fn read_groups(core: &Core, now: Now) -> Result<HashMap<GroupName, Group>> {
    let mut groups = HashMap::new();
    let each = |record, _| {
        restore(&mut groups, record, now);
        Ok(())
    };
    OFFSETS.fold(core, each).await?;
    Ok(groups)
}

fn restore(groups: &mut HashMap<GroupName, Group>, record: OffsetsRecord, now: Now) {
    let name = record.group().clone();
    if matches!(record, OffsetsRecord::Group { saved: None, .. }) {
        // The group was deleted, with all its offsets.
        groups.remove(&name);
        return;
    }
    if record.value().is_none() && !groups.contains_key(&name) {
        return;
    }
    let group = groups.entry(name.clone()).or_insert_with(|| Group::new(name, now));
    match record {
        OffsetsRecord::Offset { change, .. } => group.restore_offset(change),
        OffsetsRecord::Group { saved, .. } => saved.into_iter().for_each(|saved| group.restore(saved)),
    }
}

impl Groups {
    /// Waits until the groups have been restored to their state before the broker stopped.
    pub(super) async fn restored(&self) -> Result<&GroupTable> {
        let coordinator = &self.table;
        coordinator.restored.ensure(|| self.restore()).await?;
        Ok(coordinator)
    }

    /// Forgets all groups, as a restart does: the next call restores them from their log, and members join again.
    pub(crate) async fn forget(&self) {
        let table = &self.table;
        let forgetting = table.restored.forgetting().await;
        let cells = {
            let mut groups = table.groups.write();
            forgetting.begin();
            std::mem::take(&mut *groups)
        };
        for cell in cells.into_values() {
            let mut state = cell.state.lock();
            table.mark_gone(&mut state);
            state.is_forgotten = true;
            drop(state);
            cell.news.notify_waiters();
        }
        table.shares.clear();
    }

    async fn restore(&self) -> Result<()> {
        let coordinator = &self.table;
        let groups = read_groups(&self.core, coordinator.now()).await?;
        let mut offsets = 0;
        let mut cells = HashMap::new();
        for (name, mut group) in groups {
            self.forget_lost_topics(&mut group);
            offsets += group.committed().len();
            group.committed().values().for_each(|committed| coordinator.note_commit_ms(committed.committed_ms));
            cells.insert(name, Arc::new(Cell::new(group, &coordinator.offsets)));
        }
        if !cells.is_empty() {
            tracing::info!(groups = cells.len(), offsets, "consumer groups restored");
        }
        coordinator.offsets.store(offsets, Ordering::Relaxed);
        *coordinator.groups.write() = cells;
        Ok(())
    }

    /// Removes offsets of topics that are in memory or no longer exist: a topic in memory is empty after a restart.
    fn forget_lost_topics(&self, group: &mut Group) {
        let topics: BTreeSet<TopicName> = group.committed().keys().map(|partition| partition.topic.clone()).collect();
        let is_stored =
            |topic: &TopicName| self.core.topic(topic.as_str()).is_ok_and(|topic| topic.stored_as.is_some());
        for topic in topics.into_iter().filter(|topic| !is_stored(topic)) {
            self.table.forget_offsets(&self.core, group, &topic, &mut Wakes::default());
        }
    }
}
