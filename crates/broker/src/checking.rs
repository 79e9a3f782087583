//! Checks of batches whose records must be decompressed, or compressed, before they are accepted. They run on threads
//! that serve no connection, so that a few bytes that expand to millions hold up only the client that sent them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Codec, DraftBatch, Error, ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::metrics::Exposition;
use crate::topics::Topic;

/// Maximum bytes that the thread of a connection compresses itself: about 100 us.
const COMPRESSED_AT_ONCE: usize = 16 << 10;

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
