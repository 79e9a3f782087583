//! Adding partitions to a topic that is in use.

use engine::{Error, Result, Start, TopicSettings};
use storage::MemoryLog;

use crate::broker::Broker;
use crate::log::Log;
use crate::topics::{Lasts, TopicStatus, refuse_internal, room_for};

impl Broker {
    /// Raises the number of a topic's partitions to `partitions`. The number cannot be lowered. Existing records stay
    /// where they are, so that the records of a key may be in two partitions afterwards. Succeeds if the topic already
    /// has this number.
    ///
    /// Subscribers of all partitions of the topic, or of a pattern that matches it, receive the new partitions from
    /// their first record on. For a topic on disk, the new partitions are durable when this completes.
    pub async fn grow_topic(&self, name: &str, partitions: u32) -> Result<TopicStatus> {
        let queues = self.hold_queues().await?;
        let (status, lasts) = self.grow(name, partitions)?;
        drop(queues);
        lasts.wait().await?;
        Ok(status)
    }

    fn grow(&self, name: &str, partitions: u32) -> Result<(TopicStatus, Lasts)> {
        refuse_internal(name)?;
        let _control = self.listeners.lock();
        let topic = self.topic(name)?;
        let has = topic.settings.partitions;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: an inbox has one partition")));
        }
        if partitions < has {
            return Err(Error::invalid(format!("topic {name} has {has} partitions: they can only grow")));
        }
        if partitions == has {
            return Ok((self.status_of(&topic), self.lasts(&topic)?));
        }
        TopicSettings { partitions, ..topic.settings }.validate()?;
        self.check_queues_grow(&topic.name, partitions)?;
        room_for(&self.topics.read(), 0, partitions - has)?;
        let (grown, lasts) = match (topic.stored_as, self.store()) {
            (Some(id), Some(store)) => {
                let (said, lasts) = Lasts::when_committed();
                (topic.grown(store.grow_topic(id, partitions, said)?.into_iter().map(Log::Disk)), lasts)
            }
            _ => {
                let logs = (has..partitions).map(|_| Log::Memory(MemoryLog::default()));
                (topic.grown(logs), Lasts::already())
            }
        };
        let [first, ..] = topic.partitions() else {
            return Err(self.no_such_topic(name));
        };
        // Each follower reads the first partition, too. No client can publish to the new partitions before they are
        // inserted.
        for subscriber in first.followers() {
            for cell in &grown.partitions()[has as usize..] {
                cell.join(&subscriber, &Start::Live, cell, subscriber.scope.group.as_deref())?;
            }
        }
        self.grow_queues(&grown, has as usize);
        self.topics.write().insert(grown.clone());
        self.groups().topics_changed();
        Ok((self.status_of(&grown), lasts))
    }
}
