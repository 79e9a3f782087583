//! Table of the share groups that have members.

use std::collections::BTreeMap;

use engine::TopicName;
use engine::groups::{GroupName, Now, ShareGroup};
use parking_lot::Mutex;
use tokio::task::yield_now;

use super::catalog::Topics;

/// Groups that are updated before other tasks get their turn.
const GROUPS_PER_TURN: usize = 16;

/// All share groups that have members; the others are known by their documents.
#[derive(Default)]
pub(super) struct ShareGroups {
    pub(super) groups: Mutex<BTreeMap<GroupName, ShareGroup>>,
    /// Held while a plan of one of them runs.
    pub(super) planning: tokio::sync::Mutex<()>,
}

impl ShareGroups {
    pub(super) fn has(&self, name: &GroupName) -> bool {
        self.groups.lock().contains_key(name)
    }

    pub(super) fn clear(&self) {
        self.groups.lock().clear();
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.groups.lock().values().filter_map(ShareGroup::next_deadline_ms).min()
    }

    /// Returns the number of groups that have members, and the number of these members.
    pub(super) fn counts(&self) -> (usize, usize) {
        let groups = self.groups.lock();
        (groups.len(), groups.values().map(ShareGroup::len).sum())
    }

    pub(super) fn is_due(&self, name: &GroupName) -> bool {
        self.groups.lock().get(name).is_some_and(ShareGroup::is_due)
    }

    /// Returns the groups whose targets are due.
    pub(super) fn due(&self) -> Vec<GroupName> {
        let groups = self.groups.lock();
        groups.iter().filter(|(_, group)| group.is_due()).map(|(name, _)| name.clone()).collect()
    }

    /// Forgets a deleted topic: a later topic of the same name is a different one. Returns `true` if a group is due
    /// then.
    pub(super) fn forget_topic(&self, topic: &TopicName) -> bool {
        let mut groups = self.groups.lock();
        groups.values_mut().for_each(|group| group.forget_topic(topic));
        groups.values().any(ShareGroup::is_due)
    }

    /// Updates groups whose topics have changed, and removes members whose session has expired. Returns the number of
    /// these members, and whether a group is due.
    pub(super) async fn expire(&self, topics: Topics<'_>, now: Now) -> (u64, bool) {
        let is_over = |group: &ShareGroup| group.next_deadline_ms().is_some_and(|at| at <= now.steady_ms);
        let names: Vec<GroupName> = {
            let groups = self.groups.lock();
            let changes = groups.iter().filter(|(_, group)| is_over(group) || group.is_outdated(&topics));
            changes.map(|(name, _)| name.clone()).collect()
        };
        let mut count = 0;
        let mut is_due = false;
        for names in names.chunks(GROUPS_PER_TURN) {
            for name in names {
                let mut groups = self.groups.lock();
                let Some(group) = groups.get_mut(name) else { continue };
                group.refresh(&topics);
                for member in group.expire(now) {
                    tracing::info!(group = %name, %member, "a member was removed from its share group");
                    count += 1;
                }
                is_due |= group.is_due();
                if group.is_empty() {
                    groups.remove(name);
                }
            }
            yield_now().await;
        }
        (count, is_due)
    }
}
