//! Batches whose records have to be decompressed, or compressed, before they are taken: that is done on threads that
//! serve no connection, so that a few bytes which stand for millions hold up only the client that sent them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Codec, DraftBatch, Error, ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::metrics::Exposition;
use crate::topics::Topic;

/// Bytes that the thread of a connection compresses itself: some 100 us.
const COMPRESSED_AT_ONCE: usize = 16 << 10;

/// The turns of those who look into batches: one at a time, so that most of the processor is left to connections, and
/// the memory is that of one batch. The rest waits in the order in which it came, each with a connection that publishes
/// nothing else, no longer than a publish may wait.
pub(crate) struct Checking {
    turns: Arc<Semaphore>,
    /// Batches that are looked into or wait for their turn.
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
    /// Whether a batch has to be decompressed or compressed to be admitted. What comes of few bytes is not known
    /// before.
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
    /// Admits a batch to a topic, elsewhere.
    pub(crate) async fn admit(
        &self,
        topic: &Arc<Topic>,
        mut batch: DraftBatch,
        expansion: usize,
        deadline: Instant,
    ) -> Result<DraftBatch> {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let _pending = Pending(&self.pending);
        // It is never closed.
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
