//! Checks of batches whose records must be decompressed, or compressed, before they are accepted. They run on threads
//! that serve no connection, so that a few bytes that expand to millions hold up only the client that sent them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Codec, DraftBatch, Error, ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::metrics::Exposition;
use crate::topic::Topic;

/// Maximum bytes that the thread of a connection compresses itself: about 100 us.
const COMPRESSED_AT_ONCE: usize = 16 << 10;

/// Minimum limit for the decompressed bytes of a batch, in any topic. Kafka's clients limit uncompressed batches to
/// this size (`max.request.size`), so that a topic for small batches still accepts theirs.
const EXPANDED_BYTES_MIN: usize = 1 << 20;

/// Turns of the checks: one batch at a time, so that most of the CPU is left to connections and memory is needed for
/// one batch only. Further batches wait in order of arrival, for at most the time that a publish may wait. Each holds
/// up a connection, which publishes nothing else in the meantime.
pub(crate) struct Checking {
    turns: Arc<Semaphore>,
    /// Batches that are being checked or wait for their turn.
    pending: AtomicUsize,
}

impl Default for Checking {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(1)), pending: AtomicUsize::new(0) }
    }
}

struct Pending<'c>(&'c AtomicUsize);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
        let name = &self.name;
        let settings = &self.settings;
        let check_len = |batch: &DraftBatch| {
            if batch.len() <= settings.batch_bytes_max as usize {
                Ok(())
            } else {
                Err(Error::too_large(format!(
                    "topic {name} accepts batches of at most {} bytes, this one has {}",
                    settings.batch_bytes_max,
                    batch.len()
                )))
            }
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
            batch.set_arrival(self.epoch.clock.now_ms() as i64);
        }
        Ok(())
    }

    /// Returns `true` if a batch must be decompressed or compressed before it can be admitted. The decompressed size of
    /// a small batch is not known in advance.
    pub(crate) fn admits_slowly(&self, batch: &DraftBatch, expansion: usize) -> bool {
        let Ok(codec) = batch.codec() else {
            return false;
        };
        let is_compressed = codec != Codec::None;
        let changes_codec = self.settings.compression.is_some_and(|wanted| wanted != codec);
        is_compressed && (self.settings.compact || changes_codec || batch.has_to_count(self.expanded_max(expansion)))
            || changes_codec && batch.len() > COMPRESSED_AT_ONCE
    }
}

impl Checking {
    /// Admits a batch to a topic, on a thread that serves no connection.
    pub(crate) async fn admit(
        &self,
        topic: &Arc<Topic>,
        mut batch: DraftBatch,
        expansion: usize,
        deadline: Instant,
    ) -> Result<DraftBatch> {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let _pending = Pending(&self.pending);
        // The semaphore is never closed.
        let turn = timeout_at(deadline, self.turns.clone().acquire_owned()).await.map_err(|elapsed| {
            Error::busy(format!(
                "topic {} checks compressed batches one after the other, and this one has waited too long \
                 ({elapsed}): try again later",
                topic.name
            ))
        })?;
        let topic = topic.clone();
        let admitted = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            topic.admit(&mut batch, expansion).map(|()| batch)
        });
        admitted.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::ShuttingDown, format!("the batch was not checked: {error}")))
        })
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        out.gauge(
            "thalweg_batches_checking",
            "Compressed batches that are being checked before they are accepted, or wait for it",
            self.pending.load(Ordering::Relaxed) as u64,
        )
    }
}

#[cfg(test)]
mod tests {
    use engine::{Acks, BatchBuilder, SettingsChange, TopicSettings};
    use tokio::runtime::Handle;

    use super::*;
    use crate::broker::Broker;
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
