//! Table of the share groups that have members.

use std::collections::BTreeMap;

use engine::TopicName;
use engine::groups::{GroupName, Now, ShareGroup};
use parking_lot::Mutex;

use super::catalog::Topics;
use crate::core::Core;

/// All share groups that have members; the others are known by their documents.
#[derive(Default)]
pub(super) struct ShareGroups(pub(super) Mutex<BTreeMap<GroupName, ShareGroup>>);

impl ShareGroups {
    pub(super) fn has(&self, name: &GroupName) -> bool {
        self.0.lock().contains_key(name)
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.0.lock().values().filter_map(ShareGroup::next_deadline_ms).min()
    }

    /// Returns the number of groups that have members, and the number of these members.
    pub(super) fn counts(&self) -> (usize, usize) {
        let groups = self.0.lock();
        (groups.len(), groups.values().map(ShareGroup::len).sum())
    }

    /// Forgets a deleted topic: a later topic of the same name is a different one.
    pub(super) fn forget_topic(&self, topic: &TopicName) {
        self.0.lock().values_mut().for_each(|group| group.forget_topic(topic));
    }

    /// Removes members whose session has expired. Returns their number.
    pub(super) fn expire(&self, core: &Core, now: Now) -> u64 {
        let mut count = 0;
        self.0.lock().retain(|name, group| {
            group.refresh(&Topics(core));
            for member in group.expire(now) {
                tracing::info!(group = %name, %member, "a member was removed from its share group");
                count += 1;
            }
            !group.is_empty()
        });
        count
    }
}
