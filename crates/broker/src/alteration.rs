//! Topics whose settings change while they are in use, and what their settings ask of a batch.

use engine::{DraftBatch, Error, Result, SettingsChange};

use crate::broker::Broker;
use crate::timers::now_ms;
use crate::topics::{Lasts, Topic, TopicStatus, refuse_internal};

impl Broker {
    /// Changes settings of a topic. What is published after it is taken by the new ones, and the next sweep of
    /// retention and the next compaction go by them. Of a topic on disk they last when this is over.
    pub async fn alter_topic(&self, name: &str, change: SettingsChange) -> Result<TopicStatus> {
        let (status, lasts) = self.alter(name, change)?;
        lasts.wait().await?;
        Ok(status)
    }

    /// Whether [`Broker::alter_topic`] would be refused, and the settings that it would lead to.
    pub fn check_alteration(&self, name: &str, change: SettingsChange) -> Result<engine::TopicSettings> {
        refuse_internal(name)?;
        let topic = self.topic(name)?;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: the settings of an inbox do not change")));
        }
        let settings = change.of(&topic.settings).or(self.topic_defaults(topic.settings.storage));
        settings.validate()?;
        Ok(settings)
    }

    fn alter(&self, name: &str, change: SettingsChange) -> Result<(TopicStatus, Lasts)> {
        let _control = self.listeners.lock();
        let settings = self.check_alteration(name, change)?;
        let topic = self.topic(name)?;
        if settings == topic.settings {
            return Ok((self.status_of(&topic), self.lasts(&topic)?));
        }
        let mut lasts = Lasts::already();
        if let (Some(id), Some(store)) = (topic.stored_as, self.store()) {
            let (said, hears) = Lasts::when_committed();
            store.alter_topic(id, settings, said)?;
            lasts = hears;
        }
        let altered = topic.altered(settings);
        self.topics.write().insert(altered.clone());
        Ok((self.status_of(&altered), lasts))
    }
}

impl Topic {
    /// Makes a batch what the settings ask for, or refuses it. Its records are looked at only where keys matter.
    pub(crate) fn admit(&self, batch: &mut DraftBatch) -> Result<()> {
        let (name, settings) = (&self.name, &self.settings);
        if batch.len() > settings.batch_bytes_max as usize {
            return Err(Error::too_large(format!(
                "topic {name} takes batches of up to {} bytes, this one has {}",
                settings.batch_bytes_max,
                batch.len()
            )));
        }
        if settings.compact && !batch.has_all_keys()? {
            return Err(Error::invalid(format!(
                "topic {name} keeps the newest record of each key, and a record of this batch has no key"
            )));
        }
        if settings.arrival_times {
            batch.set_arrival(now_ms() as i64);
        }
        Ok(())
    }
}
