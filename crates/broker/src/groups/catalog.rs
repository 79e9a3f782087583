//! The topics of the broker, as groups see them.

use engine::groups::Catalog;
use engine::{Pattern, TopicName};

use crate::core::Core;

/// View of the broker's topics for groups.
pub(super) struct Topics<'a>(pub(super) &'a Core);

impl Catalog for Topics<'_> {
    fn version(&self) -> u64 {
        self.0.catalog_version()
    }

    fn matching(&self, pattern: &Pattern) -> Vec<(TopicName, u32)> {
        match pattern {
            Pattern::Topic(name) => {
                let found = self.0.existing_topic(name.as_str());
                found.map(|topic| (name.clone(), topic.partitions().len() as u32)).into_iter().collect()
            }
            Pattern::Wildcard(_) | Pattern::Rule(_) => {
                let found = self.0.topics_matching(pattern).into_iter();
                found.map(|topic| (topic.name.clone(), topic.partitions().len() as u32)).collect()
            }
        }
    }
}
