//! Topics that get more partitions while they are in use.

use std::sync::Arc;

use engine::{Error, Result, Start, TopicSettings};

use crate::broker::Broker;
use crate::topics::{TopicStatus, no_such_topic, room_for};

impl Broker {
    /// Gives a topic so many partitions in all. They only grow: records stay where they are, and keys that come to
    /// other partitions from then on would not find back. Having as many already is fine.
    ///
    /// Whoever reads all of the topic, or a pattern that it matches, gets the new partitions from their first record.
    pub fn grow_topic(&self, name: &str, partitions: u32) -> Result<TopicStatus> {
        let _control = self.patterns.lock();
        let topic = self.topic(name)?;
        let has = topic.settings.partitions;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: an inbox has one partition")));
        }
        if partitions < has {
            return Err(Error::invalid(format!("topic {name} has {has} partitions: they can only grow")));
        }
        if partitions == has {
            return Ok(topic.status());
        }
        TopicSettings { partitions, ..topic.settings }.validate()?;
        room_for(&self.topics.read(), 0, partitions - has)?;
        let grown = Arc::new(topic.grown(partitions));
        let [first, ..] = topic.partitions() else {
            return Err(no_such_topic(name));
        };
        // Each of them reads the first partition, too. Nobody can publish to the new ones before they are there.
        for subscriber in first.followers() {
            for cell in &grown.partitions()[has as usize..] {
                cell.join(&subscriber, &Start::Live, cell, subscriber.scope.group.as_deref())?;
            }
        }
        self.topics.write().insert(topic.name.clone(), grown.clone());
        Ok(grown.status())
    }
}
