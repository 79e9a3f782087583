//! Reading partitions by offset or by time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::mesh::MeshMode;
use engine::{Error, ErrorKind, Isolation, Offset, PartitionId, RecordBatch, Result};
use storage::Read;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::acting;
use crate::core::Core;
use crate::partition::{Extent, PartitionCell};

/// Maximum bytes that a fetch returns from one partition, unless the first batch of the whole fetch is larger.
const FETCH_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes that a fetch returns from all its partitions, unless the first batch of the whole fetch is larger.
const FETCH_BYTES_TOTAL_MAX: usize = 32 << 20;
/// Partitions that a fetch reads before other tasks of its thread get their turn.
const PARTITIONS_PER_TURN: usize = 256;
/// Maximum time that a fetch waits, whatever limit it specifies. A reader that wants to wait longer repeats it.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(60);

/// Batches of one partition from an offset on, with the bounds of its log.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    pub start: Offset,
    pub end: Offset,
    /// Offset before which every record was committed or aborted: no open transaction wrote there.
    pub stable_end: Offset,
    /// Batches in order. The first one holds the offset, and may begin before it.
    pub batches: Vec<RecordBatch>,
    /// Aborted transactions with records among the batches, for a reader of committed records.
    pub aborted: Vec<AbortedTransaction>,
}

/// An aborted transaction, whose records must be ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: i64,
    pub first_offset: Offset,
}

/// Position of a reader in one partition.
#[derive(Clone, Copy, Debug)]
pub struct FetchFrom<'a> {
    pub topic: &'a str,
    pub partition: PartitionId,
    pub offset: Offset,
    /// Maximum bytes of the batches of this partition. Only the first batch of the whole fetch may exceed it.
    pub bytes_max: usize,
}

/// Limits on the size and the duration of a fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// Bytes for which the fetch waits. It returns earlier if its maximum is reached or a partition cannot be read.
    pub bytes_min: usize,
    /// Maximum bytes of the batches of all partitions together. Only the first batch of the whole fetch may exceed it.
    pub bytes_max: usize,
    pub wait: Duration,
    pub isolation: Isolation,
}

impl Fetched {
    fn of(extent: Extent, batches: Vec<RecordBatch>) -> Self {
        let Extent { start, end, stable_end, .. } = extent;
        Self { start, end, stable_end, batches, aborted: Vec::new() }
    }

    fn bytes(&self) -> usize {
        self.batches.iter().map(RecordBatch::len).sum()
    }

    /// Returns `true` if the log has more records after these batches.
    fn is_cut(&self, isolation: Isolation) -> bool {
        let end = match isolation {
            Isolation::Uncommitted => self.end,
            Isolation::Committed => self.stable_end,
        };
        self.batches.last().is_some_and(|last| last.next_offset() < end)
    }

    /// Removes the batches and leaves the bounds of the log, as if there were nothing to read.
    pub fn withhold(&mut self) {
        self.batches.clear();
        self.aborted.clear();
    }
}

type Cells = [Result<Arc<PartitionCell>>];

impl Core {
    /// Returns batches from an offset on. At the end of the log, waits up to `wait` for the next append.
    pub async fn fetch(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Fetched> {
        self.check_read_of_records(topic)?;
        let from = FetchFrom { topic, partition, offset, bytes_max };
        let limits = FetchLimits { bytes_min: 1, bytes_max, wait, isolation: Isolation::Uncommitted };
        let fetched = self.fetch_many(&[from], limits).await.pop();
        fetched.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "a fetch of one partition has no answer")))
    }

    /// Returns the batches from an offset on if they are in memory, or none at the end of the log. Returns `None` if
    /// they are in a file.
    pub fn fetch_from_memory(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        bytes_max: usize,
    ) -> Result<Option<Fetched>> {
        self.check_read_of_records(topic)?;
        self.check_read(topic)?;
        let cell = self.fetched(topic, partition)?;
        let began_us = self.traces().now_us();
        let (extent, read) = cell.begin_read(offset, bytes_max.min(FETCH_BYTES_MAX))?;
        Ok(match read {
            Read::Batches(batches) => {
                self.trace_fetch(&cell, &batches, offset, began_us);
                Some(Fetched::of(extent, batches))
            }
            Read::Cold(_) => None,
        })
    }

    /// Returns a partition from which a client fetches.
    fn fetched(&self, topic: &str, partition: PartitionId) -> Result<Arc<PartitionCell>> {
        let topic = self.topic(topic)?;
        let cell = topic.partition(partition)?;
        if topic.settings.mesh == MeshMode::Live {
            cell.note_fetch();
        }
        Ok(cell)
    }

    /// Returns batches of many partitions, in the order of `from`. If they have fewer than `bytes_min` bytes, waits for
    /// more on all of them together. The caller must have checked that the reader may read these topics.
    pub async fn fetch_many(&self, from: &[FetchFrom<'_>], limits: FetchLimits) -> Vec<Result<Fetched>> {
        let (cells, found, began_us) = self.find_many(from, limits).await;
        if began_us.is_some() {
            for ((cell, from), found) in cells.iter().zip(from).zip(&found) {
                if let (Ok(cell), Ok(found)) = (cell, found) {
                    self.trace_fetch(cell, &found.batches, from.offset, began_us);
                }
            }
        }
        found
    }

    /// Notes the delivery of these batches from an offset on, if their records are traced.
    fn trace_fetch(&self, cell: &PartitionCell, batches: &[RecordBatch], from: Offset, began_us: Option<u64>) {
        if let Some(began_us) = began_us {
            let door = acting::door();
            batches.iter().for_each(|batch| self.traces().delivered(cell.source(), batch, from, door, began_us));
        }
    }

    /// Returns the partitions and what was found there, and when the last read began, if records are traced.
    async fn find_many(
        &self,
        from: &[FetchFrom<'_>],
        limits: FetchLimits,
    ) -> (Vec<Result<Arc<PartitionCell>>>, Vec<Result<Fetched>>, Option<u64>) {
        let cell = |from: &FetchFrom<'_>| {
            self.check_read(from.topic)?;
            self.fetched(from.topic, from.partition)
        };
        let mut cells = Vec::with_capacity(from.len());
        for from in from.chunks(PARTITIONS_PER_TURN) {
            cells.extend(from.iter().map(cell));
            let_others_run(cells.len()).await;
        }
        let mut began_us = self.traces().now_us();
        let all = read_all(&cells, from, &limits).await;
        if limits.wait.is_zero() || all.is_enough(&limits) {
            return (cells, all.found, began_us);
        }
        let deadline = tokio::time::Instant::now() + limits.wait.min(FETCH_WAIT_MAX);
        loop {
            let mut appended: Vec<_> = cells.iter().flatten().map(|cell| cell.appended()).collect();
            began_us = self.traces().now_us();
            let all = read_all(&cells, from, &limits).await;
            if all.is_enough(&limits) || tokio::time::timeout_at(deadline, any(&mut appended)).await.is_err() {
                drop(appended);
                return (cells, all.found, began_us);
            }
        }
    }

    /// Returns the offset of the first batch that has a record at or after this time, in ms since 1970. May read a
    /// file.
    pub fn offset_for_time(&self, topic: &str, partition: PartitionId, timestamp_ms: i64) -> Result<Offset> {
        self.topic(topic)?.partition(partition)?.offset_for_time(timestamp_ms)
    }

    /// Returns the offset and the time of the first record at or after this time; `None` if no such record exists.
    pub async fn find_time(
        &self,
        topic: &str,
        partition: PartitionId,
        timestamp_ms: i64,
    ) -> Result<Option<(Offset, i64)>> {
        let cell = self.topic(topic)?.partition(partition)?;
        let of_batch = cell.clone();
        let mut offset = aside(move || of_batch.offset_for_time(timestamp_ms)).await?;
        loop {
            let (_, batches) = cell.read(offset, 1).await?;
            let Some(last) = batches.last() else {
                return Ok(None);
            };
            offset = last.next_offset();
            // The semaphore is never closed.
            let turn = self.searches().acquire().await;
            let found = aside(move || first_at(&batches, timestamp_ms)).await?;
            drop(turn);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Returns the offset and the time of the first record that has the largest time in the partition.
    pub async fn find_max_time(&self, topic: &str, partition: PartitionId) -> Result<Option<(Offset, i64)>> {
        let cell = self.topic(topic)?.partition(partition)?;
        // The semaphore is never closed.
        let turn = self.searches().acquire().await;
        let max_ms = aside(move || {
            // A record at or after `from` exists, none at or after `until`: the two meet at the largest time.
            let mut from = i128::from(i64::MIN);
            let mut until = i128::from(i64::MAX) + 1;
            while until - from > 1 {
                let between = (from + until).div_euclid(2);
                if cell.offset_for_time(between as i64)? < cell.extent().end { from = between } else { until = between }
            }
            Ok(from as i64)
        })
        .await?;
        drop(turn);
        self.find_time(topic, partition, max_ms).await
    }
}

/// Runs work that may block on another thread, so that other tasks of this thread continue.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, format!("the read was interrupted ({e}): retry"))))
}

/// Runs work as [`aside`] does when it has its turn. As a separate task it takes and returns the turn, even if the
/// caller is not polled any more, as one whose client does not read.
pub(crate) async fn aside_in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut task = JoinSet::new();
    task.spawn(async move {
        // The semaphore is never closed.
        let turn = turns.acquire().await.ok();
        aside(move || {
            let _turn = turn;
            work()
        })
        .await
    });
    let ended = || Err(Error::new(ErrorKind::ShuttingDown, "the broker is shutting down"));
    task.join_next().await.and_then(std::result::Result::ok).unwrap_or_else(ended)
}

fn first_at(batches: &[RecordBatch], timestamp_ms: i64) -> Result<Option<(Offset, i64)>> {
    for batch in batches.iter().filter(|batch| batch.max_timestamp_ms() >= timestamp_ms) {
        for record in &batch.records()? {
            let record = record?;
            if record.timestamp_ms >= timestamp_ms {
                return Ok(Some((record.offset, record.timestamp_ms)));
            }
        }
    }
    Ok(None)
}

/// Results of all partitions, in the order of the request.
struct FoundAll {
    found: Vec<Result<Fetched>>,
    bytes: usize,
    /// `true` if a batch was left out because the response had no room for it.
    is_full: bool,
}

impl FoundAll {
    fn is_enough(&self, limits: &FetchLimits) -> bool {
        let wanted = limits.bytes_min.min(limits.bytes_max).min(FETCH_BYTES_TOTAL_MAX);
        self.bytes >= wanted || self.is_full || self.found.iter().any(Result::is_err)
    }
}

/// Reads the batches that are available now. The very first batch is returned whatever its size, so that every reader
/// advances; after it no batch exceeds a limit. Once the bytes are used up, the remaining partitions return only the
/// bounds of their logs.
async fn read_all(cells: &Cells, from: &[FetchFrom<'_>], limits: &FetchLimits) -> FoundAll {
    let mut left = limits.bytes_max.min(FETCH_BYTES_TOTAL_MAX);
    let mut all = FoundAll { found: Vec::with_capacity(cells.len()), bytes: 0, is_full: false };
    for (cell, from) in cells.iter().zip(from) {
        let is_first = all.bytes == 0;
        let bytes_max = from.bytes_max.min(FETCH_BYTES_MAX).min(left);
        let mut fetched = match cell {
            Ok(cell) if bytes_max > 0 || is_first => read(cell, from.offset, bytes_max, limits.isolation).await,
            Ok(cell) => Ok(Fetched::of(cell.extent(), Vec::new())),
            Err(error) => Err(error.clone()),
        };
        if let Ok(fetched) = &mut fetched {
            // A read returns at least one batch, and no further batch beyond the limit.
            if !is_first && fetched.bytes() > bytes_max {
                // Batches of other partitions are hardly smaller: each would be read from a file and dropped.
                left = if fetched.bytes() > left { 0 } else { left };
                fetched.withhold();
                all.is_full = true;
            } else if bytes_max == left || bytes_max < from.bytes_max {
                // The limit of a partition is the reader's own; the other limits are those of the response.
                all.is_full |= fetched.is_cut(limits.isolation);
            }
            all.bytes += fetched.bytes();
            left = left.saturating_sub(fetched.bytes());
        }
        all.found.push(fetched);
        let_others_run(all.found.len()).await;
    }
    all
}

/// Lets other tasks of the thread run after each [`PARTITIONS_PER_TURN`] partitions.
async fn let_others_run(done: usize) {
    if done.is_multiple_of(PARTITIONS_PER_TURN) {
        tokio::task::yield_now().await;
    }
}

async fn read(cell: &PartitionCell, offset: Offset, bytes_max: usize, isolation: Isolation) -> Result<Fetched> {
    match isolation {
        Isolation::Uncommitted => {
            cell.read(offset, bytes_max).await.map(|(extent, batches)| Fetched::of(extent, batches))
        }
        Isolation::Committed => {
            let (extent, batches, aborted) = cell.read_committed(offset, bytes_max).await?;
            let aborted = aborted.into_iter();
            let aborted = aborted.map(|it| AbortedTransaction { producer_id: it.producer, first_offset: it.first });
            Ok(Fetched { aborted: aborted.collect(), ..Fetched::of(extent, batches) })
        }
    }
}

/// Waits until one of the events completes.
pub(crate) async fn any(events: &mut [impl Future<Output = ()> + Unpin]) {
    std::future::poll_fn(|context| {
        if events.iter_mut().any(|event| Pin::new(event).poll(context).is_ready()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_turn_does_not_wait_for_a_caller_that_is_not_polled_any_more() {
        static TURNS: Semaphore = Semaphore::const_new(1);
        let call = |number| aside_in_turn(&TURNS, move || Ok(number));
        let (mut first, mut second) = (Box::pin(call(1)), Box::pin(call(2)));
        for caller in [&mut first, &mut second] {
            assert!(caller.now_or_never().is_none());
        }
        let third = tokio::time::timeout(Duration::from_secs(60), call(3)).await;
        assert_eq!(third.expect("the second one has returned its turn"), Ok(3));
        drop((first, second));
    }
}
