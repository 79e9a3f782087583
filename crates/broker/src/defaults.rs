//! Default settings of topics: the configured ones, and the changes made since startup.

use engine::{Result, SettingsChange, Storage, TopicSettings};
use parking_lot::RwLock;

use crate::settings::Settings;

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

    /// Returns the settings that topics of this storage follow.
    pub(crate) fn effective(&self, storage: Storage) -> TopicSettings {
        self.effective.read()[index(storage)]
    }

    /// Returns the settings of the configuration for topics of this storage.
    pub(crate) fn configured(&self, storage: Storage) -> TopicSettings {
        self.configured[index(storage)]
    }

    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Returns what a change of the configured settings leads to, or why it is refused.
    pub(crate) fn check(&self, change: &SettingsChange) -> Result<[TopicSettings; 2]> {
        let effective = self.configured.map(|configured| change.of(&configured));
        effective.iter().try_for_each(TopicSettings::validate)?;
        Ok(effective)
    }

    pub(crate) fn set(&self, effective: [TopicSettings; 2]) {
        *self.effective.write() = effective;
    }
}

fn index(storage: Storage) -> usize {
    usize::from(matches!(storage, Storage::Disk | Storage::Sqlite))
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::broker::Broker;

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
    async fn queues_keep_the_settings_of_their_topics() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let name = engine::queue::QueueName::parse("jobs").expect("a name");
        broker.queues.create(crate::NewQueue::new(name)).await.expect("created");
        let before = broker.outline_topic("jobs").expect("there").settings;
        let change = SettingsChange { retention_ms: Some(7), batch_bytes_max: Some(4096), ..SettingsChange::default() };
        broker.set_topic_defaults(&change).await.expect("changed");
        assert_eq!(broker.outline_topic("jobs").expect("there").settings, before);
    }
}
