//! The topics of the broker, as groups see them.

use engine::TopicName;
use engine::groups::Catalog;

use crate::core::Core;

/// View of the broker's topics for groups.
#[derive(Clone, Copy)]
pub(super) struct Topics<'a> {
    pub(super) core: &'a Core,
    /// Generation of the permissions, read before any topic is compared with a rule.
    pub(super) permissions: u64,
}

impl Catalog for Topics<'_> {
    fn version(&self) -> u64 {
        self.core.catalog_version()
    }

    fn permissions(&self) -> u64 {
        self.permissions
    }

    fn changed_since(&self, version: u64) -> Option<Vec<TopicName>> {
        self.core.changed_topics.since(version)
    }

    fn count(&self) -> usize {
        self.core.topic_count()
    }

    fn partitions(&self, topic: &TopicName) -> Option<u32> {
        if topic.is_hidden() {
            return None;
        }
        self.core.find_topic(topic.as_str()).map(|(_, partitions)| partitions)
    }

    fn topics(&self) -> Vec<(TopicName, u32)> {
        let topics = self.core.topics.read();
        let shown = topics.values().filter(|topic| !topic.name.is_hidden());
        shown.map(|topic| (topic.name.clone(), topic.partitions().len() as u32)).collect()
    }
}
