//! Restoring all groups from the topic of offsets, and forgetting them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::groups::Group;
use engine::{Result, TopicName};

use super::log::read_groups;
use super::{Cell, GroupTable, Groups};
use crate::wakes::Wakes;

impl Groups {
    /// Waits until the groups have been restored to their state before the broker stopped.
    pub(super) async fn restored(&self) -> Result<&GroupTable> {
        let coordinator = &self.table;
        coordinator.restored.ensure(|| self.restore()).await?;
        Ok(coordinator)
    }

    /// Restores all groups. To be called when clients can connect: the sessions of members begin, which could otherwise
    /// end before a heartbeat can arrive.
    pub async fn open(&self) -> Result<()> {
        self.restored().await.map(drop)
    }

    /// Forgets all groups, as a restart does: the next call restores them from their log.
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
        let groups = read_groups(&self.core, || coordinator.now()).await?;
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
        cells.values().for_each(|cell| coordinator.recount(cell));
        *coordinator.groups.write() = cells;
        // The sessions of restored members may end.
        coordinator.changed.notify_one();
        Ok(())
    }

    /// Removes offsets of topics that are in memory or no longer exist: a topic in memory is empty after a restart.
    /// Members release their partitions of such topics.
    fn forget_lost_topics(&self, group: &mut Group) {
        let is_stored =
            |topic: &TopicName| self.core.existing_topic(topic.as_str()).is_some_and(|topic| topic.stored_as.is_some());
        for topic in group.known_topics().into_iter().filter(|topic| !is_stored(topic)) {
            self.table.forget_offsets(&self.core, group, &topic, &mut Wakes::default());
        }
    }
}
