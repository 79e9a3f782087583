//! Default settings of topics: the configured ones, and the changes made since startup.

use engine::ids::is_internal;
use engine::{Result, SettingsChange, Storage, TopicSettings};
use parking_lot::RwLock;

use crate::broker::Broker;
use crate::settings::Settings;
use crate::topics::{Lasts, Topic};

/// Maximum topics altered in one hold of the lock, for which creations of topics wait.
const TOPICS_AT_A_TIME: usize = 64;

/// Defaults that topics follow.
pub(crate) struct Defaults {
    /// Configured defaults of topics in memory, and of topics on disk.
    configured: [TopicSettings; 2],
    effective: RwLock<[TopicSettings; 2]>,
    /// Held by the task that changes the defaults.
    turn: tokio::sync::Mutex<()>,
}

impl Defaults {
    pub(crate) fn new(settings: &Settings) -> Self {
        let configured = [settings.topic_defaults, settings.disk_topic_defaults];
        Self { configured, effective: RwLock::new(configured), turn: tokio::sync::Mutex::default() }
    }

    /// Marks the settings that differ from the defaults as the topic's own, for a topic stored by a version without
    /// such marks.
    pub(crate) fn adopt(&self, mut settings: TopicSettings) -> TopicSettings {
        let of = &self.configured[index(settings.storage)];
        settings.own = settings.own.or_else(|| Some(settings.differences(of)));
        settings
    }
}

fn index(storage: Storage) -> usize {
    usize::from(matches!(storage, Storage::Disk | Storage::Sqlite))
}

impl Broker {
    /// Returns the current defaults of topics with this storage.
    pub fn topic_defaults(&self, storage: Storage) -> TopicSettings {
        self.defaults().effective.read()[index(storage)]
    }

    /// Returns the configured defaults of topics with this storage.
    pub fn configured_topic_defaults(&self, storage: Storage) -> TopicSettings {
        self.defaults().configured[index(storage)]
    }

    /// Acquires the exclusive right to change the defaults, for a caller whose change depends on the current ones.
    pub async fn defaults_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.defaults().turn.lock().await
    }

    /// Replaces the previous change of the configured defaults with `change`, and alters all topics that follow them.
    /// For topics on disk, the alteration is durable when this completes. The next call repairs what a failed one left
    /// undone.
    pub async fn set_topic_defaults(&self, change: &SettingsChange) -> Result<()> {
        let effective = self.check_topic_defaults(change)?;
        {
            let _control = self.listeners.lock();
            *self.defaults().effective.write() = effective;
        }
        let topics = self.topics.read().values().map(|topic| topic.name.clone()).collect::<Vec<_>>();
        let mut all_last = Vec::new();
        for names in topics.chunks(TOPICS_AT_A_TIME) {
            {
                let _control = self.listeners.lock();
                for name in names {
                    // The topic may have been deleted in the meantime.
                    let Ok(topic) = self.topic(name.as_str()) else { continue };
                    all_last.extend(self.follow(&topic)?);
                }
            }
            tokio::task::yield_now().await;
        }
        for lasts in all_last {
            lasts.wait().await?;
        }
        Ok(())
    }

    /// Returns the defaults that [`Broker::set_topic_defaults`] would set, or the error with which it would refuse the
    /// change.
    pub fn check_topic_defaults(&self, change: &SettingsChange) -> Result<[TopicSettings; 2]> {
        let effective = self.defaults().configured.map(|configured| change.of(&configured));
        effective.iter().try_for_each(TopicSettings::validate)?;
        Ok(effective)
    }

    /// Alters a topic that differs from its defaults. A topic whose own settings conflict with them is left unchanged.
    fn follow(&self, topic: &Topic) -> Result<Option<Lasts>> {
        let settings = topic.settings;
        if settings.own.is_none() || is_internal(topic.name.as_str()) || topic.name.is_inbox() {
            return Ok(None);
        }
        let followed = settings.or(&self.topic_defaults(settings.storage));
        if followed == settings || followed.validate().is_err() {
            return Ok(None);
        }
        self.alter_locked(topic.name.as_str(), SettingsChange::default()).map(|(_, lasts)| Some(lasts))
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    /// Corresponds to Kafka's dynamic broker settings: a topic without its own value follows them; a topic with its
    /// own, equal value does not.
    #[tokio::test]
    async fn topics_follow_the_broker_where_they_have_nothing_of_their_own() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let of_broker = TopicSettings::of_broker();
        let own = TopicSettings { retention_ms: 3_600_000, ..of_broker };
        for (name, settings) in [("follows", of_broker), ("own", own)] {
            broker.create_topic(name, settings).await.expect("created");
        }
        let ms = |name: &str| broker.outline_topic(name).expect("there").settings.retention_ms;
        let change = SettingsChange { retention_ms: Some(7), ..SettingsChange::default() };
        broker.set_topic_defaults(&change).await.expect("changed");
        broker.create_topic("later", of_broker).await.expect("created");
        assert_eq!(["follows", "own", "later"].map(ms), [7, 3_600_000, 7]);
        // The topic is the same, although its settings have another origin.
        broker.create_topic("follows", of_broker).await.expect("the same");
        broker.set_topic_defaults(&SettingsChange::default()).await.expect("changed");
        assert_eq!(["follows", "own", "later"].map(ms), [3_600_000; 3]);
        let wrong = SettingsChange { batch_bytes_max: Some(1), ..SettingsChange::default() };
        assert!(broker.set_topic_defaults(&wrong).await.is_err());
    }

    #[tokio::test]
    async fn queues_keep_what_they_need_of_their_topics() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let name = engine::queue::QueueName::parse("jobs").expect("a name");
        broker.create_queue(crate::NewQueue::new(name)).await.expect("created");
        let before = broker.outline_topic("jobs").expect("there").settings;
        let change = SettingsChange { retention_ms: Some(7), batch_bytes_max: Some(4096), ..SettingsChange::default() };
        broker.set_topic_defaults(&change).await.expect("changed");
        assert_eq!(broker.outline_topic("jobs").expect("there").settings, before);
    }
}
