//! Reading partitions by offset or by time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::{Error, ErrorKind, Isolation, Offset, PartitionId, RecordBatch, Result};

use crate::broker::Broker;
use crate::partition::{Extent, PartitionCell};

/// Bytes that one fetch returns of a partition at most, unless its first batch is larger and the first of all.
const FETCH_BYTES_MAX: usize = 4 << 20;
/// Bytes that one fetch returns of all its partitions, unless the first batch of all is larger.
const FETCH_BYTES_TOTAL_MAX: usize = 32 << 20;
/// How long a fetch waits at most, whatever it asks for: who would like to wait longer comes again.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(60);
/// Threads that take records apart to find a time: what is compressed may come to a great deal more.
pub(crate) const SEARCHING_THREADS: usize = 2;

/// What is in one partition from an offset on.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    pub start: Offset,
    pub end: Offset,
    /// All before it is decided: no transaction that is still open wrote there.
    pub stable_end: Offset,
    /// The first batch holds the offset, and may begin before it.
    pub batches: Vec<RecordBatch>,
    /// Transactions whose records among the batches never happened, for a reader who asked for what is committed.
    pub aborted: Vec<AbortedTransaction>,
}

/// A transaction of which nothing shall be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: i64,
    pub first_offset: Offset,
}

/// Where a reader goes on in one partition.
#[derive(Clone, Copy, Debug)]
pub struct FetchFrom<'a> {
    pub topic: &'a str,
    pub partition: PartitionId,
    pub offset: Offset,
    /// The limit for the batches of this partition. Only the first batch of the whole answer may exceed it.
    pub bytes_max: usize,
}

/// How much a fetch returns, and when.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// It waits until there is so much, or as much as it may return, or a partition cannot be read.
    pub bytes_min: usize,
    /// The limit for the batches of all partitions together. Only the first batch of all may exceed it.
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

    /// Whether there is more behind these batches.
    fn is_cut(&self, isolation: Isolation) -> bool {
        let end = match isolation {
            Isolation::Uncommitted => self.end,
            Isolation::Committed => self.stable_end,
        };
        self.batches.last().is_some_and(|last| last.next_offset() < end)
    }

    /// Only says where the log is, as if there were nothing to read.
    pub fn withhold(&mut self) {
        self.batches.clear();
        self.aborted.clear();
    }
}

type Cells = [Result<Arc<PartitionCell>>];

impl Broker {
    /// Batches from an offset on. At the end of the log it waits up to `wait` for the next append.
    pub async fn fetch(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Fetched> {
        self.check_nameless_read(topic)?;
        let from = FetchFrom { topic, partition, offset, bytes_max };
        let limits = FetchLimits { bytes_min: 1, bytes_max, wait, isolation: Isolation::Uncommitted };
        let fetched = self.fetch_many(&[from], limits).await.pop();
        fetched.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "a fetch of one partition has no answer")))
    }

    /// The same for many partitions, in their order. Where little is there it waits for more, on all of them at once.
    /// The caller has checked that the reader may read these topics.
    pub async fn fetch_many(&self, from: &[FetchFrom<'_>], limits: FetchLimits) -> Vec<Result<Fetched>> {
        let cell = |from: &FetchFrom<'_>| {
            self.check_read(from.topic)?;
            self.topic(from.topic)?.partition(from.partition)
        };
        let cells: Vec<_> = from.iter().map(cell).collect();
        let all = read_all(&cells, from, &limits).await;
        if limits.wait.is_zero() || all.is_enough(&limits) {
            return all.found;
        }
        let deadline = tokio::time::Instant::now() + limits.wait.min(FETCH_WAIT_MAX);
        loop {
            let mut appended: Vec<_> = cells.iter().flatten().map(|cell| cell.appended()).collect();
            let all = read_all(&cells, from, &limits).await;
            if all.is_enough(&limits) || tokio::time::timeout_at(deadline, any(&mut appended)).await.is_err() {
                return all.found;
            }
        }
    }

    /// The offset of the first batch that has a record at or after this time, ms since 1970. It may read a file.
    pub fn offset_for_time(&self, topic: &str, partition: PartitionId, timestamp_ms: i64) -> Result<Offset> {
        self.topic(topic)?.partition(partition)?.offset_for_time(timestamp_ms)
    }

    /// The first record at or after this time, with its own time. `None` where there is none.
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
            // It is closed never.
            let turn = self.searches().acquire().await;
            let found = aside(move || first_at(&batches, timestamp_ms)).await?;
            drop(turn);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// The first of the records with the largest time of all, with that time.
    pub async fn find_max_time(&self, topic: &str, partition: PartitionId) -> Result<Option<(Offset, i64)>> {
        let cell = self.topic(topic)?.partition(partition)?;
        // It is closed never.
        let turn = self.searches().acquire().await;
        let max_ms = aside(move || {
            // At `from` there is a record as late or later, at `until` there is none: they meet at the largest time.
            let (mut from, mut until) = (i128::from(i64::MIN), i128::from(i64::MAX) + 1);
            while until - from > 1 {
                let between = (from + until).div_euclid(2);
                match cell.offset_for_time(between as i64)? < cell.extent().end {
                    true => from = between,
                    false => until = between,
                }
            }
            Ok(from as i64)
        })
        .await?;
        drop(turn);
        self.find_time(topic, partition, max_ms).await
    }
}

/// Does what may take long, and lets other tasks of this thread go on.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, format!("a read ended without an answer: {e}"))))
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

/// The answers of all partitions, in their order.
struct FoundAll {
    found: Vec<Result<Fetched>>,
    bytes: usize,
    /// Some batch is left out because there was no room for it in this answer.
    is_full: bool,
}

impl FoundAll {
    fn is_enough(&self, limits: &FetchLimits) -> bool {
        let wanted = limits.bytes_min.min(limits.bytes_max).min(FETCH_BYTES_TOTAL_MAX);
        self.bytes >= wanted || self.is_full || self.found.iter().any(Result::is_err)
    }
}

/// What is there now. The first batch of all is returned whatever its size, so that every reader advances; after it no
/// batch exceeds a limit. Once the bytes are used up, the partitions that follow only say how long they are.
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
            // A read returns at least one batch, and no more than the limit after it.
            if !is_first && fetched.bytes() > bytes_max {
                // What other partitions have is hardly smaller: each would be read from a file and dropped.
                left = if fetched.bytes() > left { 0 } else { left };
                fetched.withhold();
                all.is_full = true;
            } else if bytes_max == left || bytes_max < from.bytes_max {
                // The limit of a partition is the reader's own wish; the others are those of the answer.
                all.is_full |= fetched.is_cut(limits.isolation);
            }
            all.bytes += fetched.bytes();
            left = left.saturating_sub(fetched.bytes());
        }
        all.found.push(fetched);
    }
    all
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

/// Waits for one of many.
pub(crate) async fn any(events: &mut [impl Future<Output = ()> + Unpin]) {
    std::future::poll_fn(|context| match events.iter_mut().any(|event| Pin::new(event).poll(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await
}
