//! Changing the settings of a topic that is in use, and applying these settings to a batch.

use engine::{DraftBatch, Error, Result, SettingsChange};

use crate::broker::Broker;
use crate::timers::now_ms;
use crate::topics::{Lasts, Topic, TopicStatus, refuse_internal};

/// Minimum limit for the decompressed bytes of a batch, in any topic. Kafka's clients limit uncompressed batches to
/// this size (`max.request.size`), so that a topic for small batches still accepts theirs.
const EXPANDED_BYTES_MIN: usize = 1 << 20;

impl Broker {
    /// Changes settings of a topic. They apply to batches published after it, to the next sweep of retention and to the
    /// next compaction. For a topic on disk, the change is durable when this completes.
    pub async fn alter_topic(&self, name: &str, change: SettingsChange) -> Result<TopicStatus> {
        let (status, lasts) = self.alter(name, change)?;
        lasts.wait().await?;
        Ok(status)
    }

    /// Returns the settings that [`Broker::alter_topic`] would set, or the error with which it would refuse the change.
    pub fn check_alteration(&self, name: &str, change: SettingsChange) -> Result<engine::TopicSettings> {
        refuse_internal(name)?;
        let topic = self.topic(name)?;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: the settings of an inbox cannot be changed")));
        }
        let settings = change.of(&topic.settings).or(&self.topic_defaults(topic.settings.storage));
        settings.validate()?;
        Ok(settings)
    }

    fn alter(&self, name: &str, change: SettingsChange) -> Result<(TopicStatus, Lasts)> {
        let _control = self.listeners.lock();
        self.alter_locked(name, change)
    }

    /// Alters a topic for a caller that holds the lock of the listeners.
    pub(crate) fn alter_locked(&self, name: &str, change: SettingsChange) -> Result<(TopicStatus, Lasts)> {
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
    /// Returns the maximum bytes of the records of a batch after decompression.
    pub(crate) fn expanded_max(&self, expansion: usize) -> usize {
        (self.settings.batch_bytes_max as usize * expansion).max(EXPANDED_BYTES_MIN)
    }

    /// Applies the settings of the topic to a batch, or refuses the batch. Records are parsed only if the topic is
    /// compacted. After decompression, they may have `expansion` times the bytes of the topic's largest batch.
    pub(crate) fn admit(&self, batch: &mut DraftBatch, expansion: usize) -> Result<()> {
        let (name, settings) = (&self.name, &self.settings);
        let check_len = |batch: &DraftBatch| match batch.len() <= settings.batch_bytes_max as usize {
            true => Ok(()),
            false => Err(Error::too_large(format!(
                "topic {name} accepts batches of at most {} bytes, this one has {}",
                settings.batch_bytes_max,
                batch.len()
            ))),
        };
        check_len(batch)?;
        let expanded_max = self.expanded_max(expansion);
        if !batch.expands_within(expanded_max) {
            return Err(Error::too_large(format!(
                "topic {name} accepts batches whose records have at most {expanded_max} bytes after decompression, \
                 and those of this batch of {} bytes have more: send smaller batches, or raise record_expansion_max",
                batch.len()
            )));
        }
        if settings.compact && !batch.has_all_keys()? {
            return Err(Error::invalid(format!(
                "topic {name} is compacted and needs a key in every record: a record of this batch has no key"
            )));
        }
        if let Some(codec) = settings.compression {
            batch.recompress(codec)?;
            // As in Kafka, the limit also applies to the recompressed batch.
            check_len(batch)?;
        }
        if settings.arrival_times {
            batch.set_arrival(now_ms() as i64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::{Acks, BatchBuilder, Codec, ErrorKind, TopicSettings};
    use tokio::runtime::Handle;

    use super::*;
    use crate::{FetchFrom, FetchLimits, Isolation, Settings, Wakes};

    fn batch(codec: Codec, bytes: usize) -> DraftBatch {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(&vec![b'x'; bytes]), &[]).expect("it fits");
        builder.finish_with(codec, None).expect("a record")
    }

    async fn codecs(broker: &Broker) -> Vec<Codec> {
        let from = FetchFrom { topic: "t", partition: 0, offset: 0, bytes_max: 1 << 20 };
        let wait = std::time::Duration::ZERO;
        let limits = FetchLimits { bytes_min: 0, bytes_max: 1 << 20, wait, isolation: Isolation::Uncommitted };
        let fetched = broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
        fetched.batches.iter().map(|batch| batch.codec().expect("known")).collect()
    }

    /// Kafka refuses a batch that is too large with MESSAGE_TOO_LARGE (`max.message.bytes`); its producer then splits
    /// the batch (`Sender.completeBatch`).
    #[tokio::test]
    async fn a_small_batch_that_stands_for_much_is_refused_by_the_limit_of_its_topic() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let settings = TopicSettings { batch_bytes_max: 2 << 20, ..TopicSettings::of_broker() };
        broker.create_topic("t", settings).await.expect("created");
        for codec in Codec::ALL {
            let publish = async |bytes| {
                let batch = batch(codec, bytes);
                broker.publish("t", Some(0), Acks::Default, batch, &mut Wakes::default()).await.map(drop)
            };
            publish((2 << 20) - 200).await.expect("it fits");
            let refused = publish(2 << 20).await.expect_err("too large");
            assert_eq!(refused.kind, ErrorKind::TooLarge, "{refused}");
            assert!(codec == Codec::None || refused.message.contains("record_expansion_max"), "{refused}");
        }
    }

    /// Corresponds to Kafka's `compression.type` of a topic.
    #[tokio::test]
    async fn a_topic_keeps_batches_as_it_is_set_to_compress_them() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        broker.create_topic("t", TopicSettings::of_broker()).await.expect("created");
        for compression in [None, Some(Codec::Zstd), Some(Codec::None), Some(Codec::Lz4)] {
            let change = SettingsChange { compression: Some(compression), ..SettingsChange::default() };
            broker.alter_topic("t", change).await.expect("altered");
            let batch = batch(Codec::Gzip, 5000);
            broker.publish("t", Some(0), Acks::Default, batch, &mut Wakes::default()).await.expect("published");
        }
        assert_eq!(codecs(&broker).await, [Codec::Gzip, Codec::Zstd, Codec::None, Codec::Lz4]);
        // The limit also applies to the recompressed batch.
        let compression = Some(Some(Codec::None));
        let change = SettingsChange { compression, batch_bytes_max: Some(4096), ..SettingsChange::default() };
        broker.alter_topic("t", change).await.expect("altered");
        let large = broker.publish("t", Some(0), Acks::Default, batch(Codec::Gzip, 5000), &mut Wakes::default()).await;
        assert_eq!(large.expect_err("too large").kind, ErrorKind::TooLarge);
    }
}
