//! One partition at work: its order, its log and its subscribers behind one lock that is held briefly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{DraftBatch, Error, Fanout, Offset, Partition, PartitionId, RecordBatch, Result, Start, TopicName};
use parking_lot::Mutex;
use storage::MemoryLog;
use tokio::sync::Notify;

use crate::admission::LogBudget;
use crate::publish::Wakes;
use crate::subscriber::Subscriber;

pub(crate) struct PartitionCell {
    pub topic: TopicName,
    pub id: PartitionId,
    state: Mutex<State>,
    /// Fetches that wait for the next append.
    appended: Notify,
    /// A subscriber has ended: it gets nothing more, and no share of a group.
    has_ended_member: AtomicBool,
}

/// Invariant: the log ends where the order does, and every live source of the fanout was offered
/// exactly the batches that were appended since it joined.
#[derive(Default)]
struct State {
    order: Partition,
    log: MemoryLog,
    fanout: Fanout<Arc<Subscriber>>,
    is_deleted: bool,
}

/// An append that has its place.
pub(crate) struct Appended {
    pub base_offset: Offset,
    pub receivers: usize,
}

/// Why an append did not happen.
pub(crate) enum Refused {
    /// This subscriber has no room and its policy is to block. The batch comes back.
    Blocked(DraftBatch, Arc<Subscriber>),
    Failed(Error),
}

/// The bounds of a partition's log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: Offset,
    pub end: Offset,
    pub bytes: usize,
    pub subscribers: usize,
}

/// What an append needs to know beside the batch.
pub(crate) struct AppendContext<'a> {
    pub budget: &'a LogBudget,
    pub retention_bytes: u64,
    pub retention_ms: u64,
    pub now_ms: u64,
}

impl PartitionCell {
    pub(crate) fn new(topic: TopicName, id: PartitionId) -> Self {
        Self { topic, id, state: Mutex::default(), appended: Notify::new(), has_ended_member: AtomicBool::new(false) }
    }

    /// Gives the batch its offsets, keeps it and offers it to every receiver: the one place where a
    /// partition grows. Subscribers that have to be told are added to `wakes`.
    pub(crate) fn append(
        &self,
        batch: DraftBatch,
        context: &AppendContext<'_>,
        wakes: &mut Wakes,
    ) -> Result<Appended, Refused> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.is_deleted {
            return Err(Refused::Failed(self.gone()));
        }
        if self.has_ended_member.load(Ordering::Relaxed) && self.has_ended_member.swap(false, Ordering::AcqRel) {
            state.fanout.leave(|subscriber| subscriber.has_ended());
        }
        let len = batch.len();
        if let Err(member) = state.fanout.all_accept(|member| !member.handle.blocks(member.source, len)) {
            return Err(Refused::Blocked(batch, member.handle.clone()));
        }
        let cost = MemoryLog::cost(len);
        let permit = match context.budget.acquire(cost) {
            Some(permit) => permit,
            None => {
                // All logs are full: this one gives up its own history before it is refused.
                let keep = state.log.bytes().saturating_sub(cost).max(1);
                context.budget.release(state.log.trim(keep as u64, 0, context.now_ms));
                context.budget.acquire(cost).ok_or_else(|| Refused::Failed(out_of_memory(context.budget)))?
            }
        };
        let batch = state.order.append(batch);
        state.log.append(batch.clone(), context.now_ms);
        permit.spend();
        context.budget.release(state.log.trim(context.retention_bytes, context.retention_ms, context.now_ms));
        let receivers = state.fanout.receivers();
        state.fanout.deliver(
            |member| member.handle.has_room(len),
            |member| {
                if member.handle.offer(member.source, &batch) {
                    wakes.add(&member.handle);
                }
            },
        );
        self.appended.notify_waiters();
        Ok(Appended { base_offset: batch.base_offset(), receivers })
    }

    pub(crate) fn extent(&self) -> Extent {
        let state = self.state.lock();
        Extent {
            start: state.log.start(),
            end: state.log.end(),
            bytes: state.log.bytes(),
            subscribers: state.fanout.members().count(),
        }
    }

    pub(crate) fn trim(&self, retention_bytes: u64, retention_ms: u64, now_ms: u64) -> usize {
        self.state.lock().log.trim(retention_bytes, retention_ms, now_ms)
    }

    /// Adds a subscriber that begins at `start`, and says where that is and where the log ends. No
    /// append can come between the choice of the offset and the joining.
    pub(crate) fn join(
        &self,
        subscriber: &Arc<Subscriber>,
        start: &Start,
        cell: &Arc<PartitionCell>,
        group: Option<&str>,
    ) -> Result<Option<(Offset, Offset)>> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let end = state.log.end();
        let wanted = match start {
            Start::Live => end,
            Start::Earliest => state.log.start(),
            Start::Offset(offset) => *offset,
            Start::Time(timestamp_ms) => state.log.offset_for_time(*timestamp_ms),
            Start::Offsets(offsets) => match offsets.iter().find(|(id, _)| *id == self.id) {
                None => end,
                // Read from another log, which this one has replaced: all of it is new.
                Some((_, offset)) if *offset > end => state.log.start(),
                Some((_, offset)) => *offset,
            },
        };
        let from = wanted.clamp(state.log.start(), end);
        let Some(source) = subscriber.add_source(cell, wanted.min(end), wanted >= end) else {
            return Ok(None);
        };
        state.fanout.join(engine::fanout::Member { handle: subscriber.clone(), source }, group);
        Ok(Some((from, end)))
    }

    /// Subscribers of this partition that read all partitions of its topic, those included that are yet to come.
    pub(crate) fn followers(&self) -> Vec<Arc<Subscriber>> {
        let state = self.state.lock();
        let members = state.fanout.members().map(|member| &member.handle);
        members.filter(|subscriber| subscriber.scope.is_whole).cloned().collect()
    }

    /// A subscriber of this partition has ended; it leaves before the next append.
    pub(crate) fn note_ended_member(&self) {
        self.has_ended_member.store(true, Ordering::Release);
    }

    pub(crate) fn leave(&self, subscriber: &Arc<Subscriber>) {
        self.state.lock().fanout.leave(|handle| Arc::ptr_eq(handle, subscriber));
    }

    /// Reads history for a source that is behind, or makes it live where the log ends.
    pub(crate) fn backfill(&self, subscriber: &Subscriber, source: engine::SourceId, from: Offset) {
        let state = self.state.lock();
        // Only a deleted partition has an end before an offset that it gave, and nothing to read.
        let batches = state.log.read(from.max(state.log.start()), engine::limits::BACKFILL_BYTES).unwrap_or_default();
        if batches.is_empty() {
            subscriber.catch_up(source, state.log.end());
        } else {
            drop(state);
            subscriber.backfill(source, batches);
        }
    }

    /// Batches from an offset on, with the log's bounds.
    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Result<(Extent, Vec<RecordBatch>)> {
        let state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let batches = state.log.read(from, bytes_max)?;
        let extent =
            Extent { start: state.log.start(), end: state.log.end(), bytes: state.log.bytes(), subscribers: 0 };
        Ok((extent, batches))
    }

    pub(crate) fn offset_for_time(&self, timestamp_ms: i64) -> Offset {
        self.state.lock().log.offset_for_time(timestamp_ms)
    }

    /// Completes with the next append or deletion after it was first polled.
    pub(crate) fn appended(&self) -> tokio::sync::futures::Notified<'_> {
        self.appended.notified()
    }

    /// Nothing is taken or read here any more. Returns the subscribers and the bytes that became free.
    pub(crate) fn delete(&self) -> (Vec<(Arc<Subscriber>, engine::SourceId)>, usize) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let freed = state.log.bytes();
        state.log = MemoryLog::default();
        let fanout = std::mem::take(&mut state.fanout);
        drop(state);
        self.appended.notify_waiters();
        (fanout.members().map(|member| (member.handle.clone(), member.source)).collect(), freed)
    }

    fn gone(&self) -> Error {
        Error::not_found(format!("topic {} was deleted", self.topic))
    }
}

fn out_of_memory(budget: &LogBudget) -> Error {
    Error::busy(format!(
        "the logs in memory hold {} of {} bytes; raise memory_max or lower retention_bytes",
        budget.used(),
        budget.max()
    ))
}
