//! Contents of a queue: counts, inspection of messages without a lease, purge and seek.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::queue::{Counts, DedupRule, Message, MessageId, Phase};
use engine::{Error, ErrorKind, Offset, PartitionId, Result};

use super::acquire::read;
use super::check_users;
use super::document_table::DOCUMENTS_BYTES_MAX;
use crate::metrics::Exposition;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::view::{Oldest, QueueCell};

/// Maximum number of messages that one peek returns.
pub const PEEK_MAX: usize = 1000;

/// Number of records whose states a peek reads under one lock, before other tasks run.
const PEEKED_TOGETHER: usize = 256;

/// Exact number of messages of a queue in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub visible: u64,
    pub in_flight: u64,
    pub delayed: u64,
    /// Bytes of the log of the queue's topic.
    pub bytes: u64,
    /// Arrival time of the oldest unfinished message, ms since 1970, if there is one.
    pub oldest_ms: Option<u64>,
    pub noisy_groups: u64,
}

/// A message with its state in a queue.
#[derive(Clone, Debug)]
pub struct Peeked {
    pub partition: PartitionId,
    pub id: MessageId,
    pub message: Message,
    /// State of the message: [`Phase::Waiting`] also if it was never delivered.
    pub phase: Phase,
    pub attempts: u32,
    /// Time of the first delivery, if the message was delivered.
    pub first_received_ms: Option<u64>,
    /// Time at which the lease or the delay ends.
    pub due_ms: Option<u64>,
}

/// Sums over all queues.
#[derive(Default)]
struct Sums {
    visible: u64,
    in_flight: u64,
    delayed: u64,
    skipped_ranges: u64,
    waiting: u64,
    oldest_s: u64,
}

/// Partitions of a queue that are counted before other tasks of the thread get their turn.
const PARTITIONS_PER_TURN: usize = 64;

/// Position to which a queue is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Oldest message that the topic still has.
    Earliest,
    /// Next message that is sent: all existing ones are skipped.
    End,
    /// First message sent at or after this time, ms since 1970.
    Time(i64),
}

impl Queues {
    pub async fn counts(&self, queue: &str) -> Result<QueueCounts> {
        let (cell, topic) = self.cell(queue).await?;
        let now = self.core.now_ms();
        let mut sum = QueueCounts::default();
        for (done, partition) in topic.partitions().iter().enumerate() {
            if done % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
            self.look_through(&cell, partition).await?;
            let ((counts, noisy, bytes, oldest), _) = self.change_view(partition, cell.id, |view, log| {
                // Messages that retention has deleted are not counted.
                view.queue.trim(log.extent().start);
                let Counts { visible, leased, delayed } = view.queue.counts(now);
                let oldest = if visible + leased + delayed == 0 { None } else { Some(view.oldest(log)) };
                ((visible, leased, delayed), view.queue.noisy_groups(), log.extent().bytes, oldest)
            })?;
            sum.visible += counts.0;
            sum.in_flight += counts.1;
            sum.delayed += counts.2;
            sum.bytes += bytes;
            sum.noisy_groups += noisy as u64;
            let oldest_ms = match oldest {
                Some(Oldest::InFile(offset)) => oldest_in_file(&cell, partition, offset).await?,
                Some(Oldest::Arrived(arrival_ms)) => Some(arrival_ms),
                None => None,
            };
            sum.oldest_ms = [sum.oldest_ms, oldest_ms].into_iter().flatten().min();
        }
        Ok(sum)
    }

    /// Returns unfinished messages after a position, with their states, without leasing them.
    pub async fn peek(&self, queue: &str, after: Option<(PartitionId, Offset)>, max: usize) -> Result<Vec<Peeked>> {
        let (cell, topic) = self.cell(queue).await?;
        let max = max.clamp(1, PEEK_MAX);
        let mut found = Vec::new();
        for partition in topic.partitions().iter().filter(|cell| after.is_none_or(|(at, _)| cell.id >= at)) {
            // Expired leases and delays are applied first, since they only end when the queue is accessed.
            self.look_through(&cell, partition).await?;
            let now = self.core.now_ms();
            let (floor, start, isolation) = partition.with_view(cell.id, |view, log| {
                view.queue.expire(now);
                (view.queue.floor(), log.extent().start, view.isolation())
            })?;
            let mut at = floor.max(start);
            if let Some((_, offset)) = after.filter(|(id, _)| *id == partition.id) {
                at = at.max(offset.saturating_add(1));
            }
            while found.len() < max {
                let (_, batches, aborted) = match read(partition, at, 1 << 20, isolation).await {
                    Err(error) if error.kind == ErrorKind::OutOfRange => break,
                    read => read?,
                };
                let Some(last) = batches.last() else {
                    break;
                };
                let end = last.next_offset();
                for batch in batches.iter().filter(|batch| !aborted.has(batch)) {
                    // A batch that cannot be decoded, as a publisher may send it, holds no messages.
                    let Ok(records) = batch.records_from(at) else {
                        continue;
                    };
                    let mut views = records.iter().map_while(Result::ok);
                    loop {
                        let together: Vec<_> = views.by_ref().take(PEEKED_TOGETHER.min(max - found.len())).collect();
                        if together.is_empty() {
                            break;
                        }
                        let states: Vec<_> = partition.with_view(cell.id, |queue, _| {
                            let queue = &queue.queue;
                            let state = |offset| {
                                let is_message = !queue.is_done(offset) && !queue.is_void(offset);
                                is_message.then(|| queue.entry(offset).copied())
                            };
                            together.iter().map(|view| state(view.offset)).collect()
                        })?;
                        for (view, state) in together.iter().zip(states) {
                            let Some(entry) = state else {
                                continue;
                            };
                            let message = Message::from(records.own(view));
                            found.push(Peeked {
                                partition: partition.id,
                                id: message.id(topic.id, partition.id),
                                message,
                                phase: entry.map_or(Phase::Waiting, |entry| entry.phase),
                                attempts: entry.map_or(0, |entry| entry.attempts),
                                first_received_ms: entry.map(|entry| entry.first_ms).filter(|first_ms| *first_ms > 0),
                                due_ms: entry.filter(|entry| entry.phase != Phase::Waiting).map(|entry| entry.due_ms),
                            });
                        }
                        if found.len() == max {
                            return Ok(found);
                        }
                        tokio::task::yield_now().await;
                    }
                }
                at = end;
            }
        }
        Ok(found)
    }

    /// Discards all messages of a queue, including leased ones. They may be sent again: earlier deduplication ids are
    /// no longer valid. Returns the number of messages. The purge is durable when this returns.
    pub async fn purge(&self, queue: &str) -> Result<u64> {
        let act = async {
            let counts = self.counts(queue).await?;
            let (cell, topic) = self.cell(queue).await?;
            let mut saved = Vec::new();
            for partition in topic.partitions() {
                let (to, one) = self.change_view(partition, cell.id, |view, log| {
                    let to = log.extent().end;
                    view.purge(to);
                    to
                })?;
                saved.extend(one);
                if cell.definition().settings.dedup != DedupRule::Off {
                    partition.forget_sent(to);
                }
                cell.wake_for_change();
                self.look_through(&cell, partition).await?;
                self.drop_consumed(&topic, partition, []);
            }
            for one in saved {
                one.wait().await?;
            }
            cell.wake_for_change();
            Ok(counts.visible + counts.in_flight + counts.delayed)
        };
        self.core.audited("purge queue", queue, act).await
    }

    /// Moves a queue to another position: messages before it are finished, messages after it are as if they had never
    /// been delivered.
    pub async fn seek(&self, queue: &str, to: SeekTo) -> Result<()> {
        let act = async {
            check_users(queue)?;
            self.seek_any(queue, to).await
        };
        self.core.audited("seek queue", queue, act).await
    }

    pub(crate) async fn seek_any(&self, queue: &str, to: SeekTo) -> Result<()> {
        let (cell, topic) = self.any_cell(queue).await?;
        let mut saved = Vec::new();
        for partition in topic.partitions() {
            let at_time = match to {
                SeekTo::Time(at_ms) => Some(self.offset_at(partition, at_ms).await?),
                SeekTo::Earliest | SeekTo::End => None,
            };
            let ((), one) = self.change_view(partition, cell.id, |view, log| {
                let extent = log.extent();
                let to = match to {
                    SeekTo::Earliest => extent.start,
                    SeekTo::End => extent.end,
                    SeekTo::Time(_) => at_time.unwrap_or(extent.end).clamp(extent.start, extent.end),
                };
                view.seek(to);
            })?;
            saved.extend(one);
            cell.wake_for_change();
            self.look_through(&cell, partition).await?;
            self.drop_consumed(&topic, partition, []);
        }
        for one in saved {
            one.wait().await?;
        }
        cell.wake_for_change();
        Ok(())
    }

    async fn offset_at(&self, partition: &Arc<PartitionCell>, at_ms: i64) -> Result<Offset> {
        let partition = partition.clone();
        tokio::task::spawn_blocking(move || partition.offset_for_time(at_ms)).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a time could not be looked up: {error}")))
        })
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let counts = &self.events;
        out.gauge("thalweg_queues", "Queues", self.by_name.read().len() as u64)?;
        out.gauge(
            "thalweg_queue_partitions",
            "Partitions of all queues, each counted for each queue, at most 262,144",
            self.views.load(Ordering::Relaxed) as u64,
        )?;
        let documents = self.documents.read().bytes() as u64;
        out.gauge("thalweg_definition_bytes", "Bytes of policies, schemas and other definitions", documents)?;
        out.gauge("thalweg_definition_bytes_max", "Maximum of thalweg_definition_bytes", DOCUMENTS_BYTES_MAX as u64)?;
        out.counter("thalweg_queue_sent", "Messages sent to queues", counts.sent.get())?;
        out.counter(
            "thalweg_queue_duplicates",
            "Messages not accepted because they were sent before",
            counts.duplicates.get(),
        )?;
        out.counter("thalweg_queue_refused", "Messages refused by queues", counts.refused.get())?;
        out.counter("thalweg_queue_received", "Messages delivered to receivers", counts.received.get())?;
        out.counter("thalweg_queue_acknowledged", "Messages acknowledged by receivers", counts.acked.get())?;
        out.counter("thalweg_queue_returned", "Messages returned by receivers", counts.returned.get())?;
        out.counter("thalweg_queue_dead", "Messages moved to dead-letter topics", counts.dead.get())?;
        let sum = self.counts_of_all();
        out.gauge("thalweg_queue_visible", "Messages that can be received", sum.visible)?;
        out.gauge("thalweg_queue_in_flight", "Messages leased to receivers", sum.in_flight)?;
        out.gauge("thalweg_queue_delayed", "Messages whose delay has not ended", sum.delayed)?;
        out.gauge(
            "thalweg_queue_skipped_ranges",
            "Ranges of offsets without a message that queues keep, at most 65,536 per partition of a queue",
            sum.skipped_ranges,
        )?;
        out.gauge("thalweg_queue_waiting_receivers", "Receivers that wait for a message", sum.waiting)?;
        out.gauge(
            "thalweg_queue_oldest_age_seconds",
            "Age of the oldest unacknowledged message in memory",
            sum.oldest_s,
        )
    }

    /// Returns sums over all queues, as of the last access to each: expired leases and delays are not applied for this.
    fn counts_of_all(&self) -> Sums {
        let mut sums = Sums::default();
        let now = self.core.now_ms();
        let cells: Vec<Arc<QueueCell>> = self.by_name.read().values().cloned().collect();
        for cell in cells {
            sums.waiting += cell.waiting.load(Ordering::Relaxed) as u64;
            let Some(topic) = self.core.existing_topic(cell.definition().topic.as_str()) else {
                continue;
            };
            for partition in topic.partitions() {
                let seen = partition.with_view(cell.id, |view, log| {
                    let counts = view.queue.counts_kept();
                    let has_any = counts != Counts::default();
                    (counts, has_any.then(|| view.oldest(log)), view.queue.skipped_ranges())
                });
                // A topic that was deleted just now has nothing to count.
                let Ok((counts, oldest, skipped_ranges)) = seen else {
                    continue;
                };
                sums.visible += counts.visible;
                sums.in_flight += counts.leased;
                sums.delayed += counts.delayed;
                sums.skipped_ranges += skipped_ranges as u64;
                let age_s = match oldest {
                    Some(Oldest::Arrived(arrival_ms)) => now.saturating_sub(arrival_ms) / 1000,
                    // Metrics do not read files.
                    Some(Oldest::InFile(_)) | None => 0,
                };
                sums.oldest_s = sums.oldest_s.max(age_s);
            }
        }
        sums
    }
}

/// Reads the arrival time of the oldest unfinished message from a file; `None` if it has just been deleted.
async fn oldest_in_file(cell: &QueueCell, partition: &PartitionCell, offset: Offset) -> Result<Option<u64>> {
    let batches = match partition.read(offset, 1).await {
        Ok((_, batches)) => batches,
        Err(error) if error.kind == ErrorKind::OutOfRange => Vec::new(),
        Err(error) => return Err(error),
    };
    let Some(batch) = batches.first() else { return Ok(None) };
    partition.with_view(cell.id, |view, _| Some(view.note_oldest(offset, batch)))
}
