//! A partition: its order, its log and its subscribers behind one lock that is held briefly.
//!
//! In memory, a batch is readable as soon as it has its offsets. On disk, it is readable when the journal has synced
//! it: no reader sees it before, and a publisher that requested a commit waits until then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use engine::producers::{Aborted, ProducerStatus};
use engine::queue::{Dedup, QueueId};
use engine::{
    DraftBatch, Error, ErrorKind, Fanout, Offset, Partition, PartitionId, Placed, RecordBatch, Result, Start, TopicName,
};
use parking_lot::Mutex;
use storage::{DiskExtent, MemoryLog, Owner};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

use crate::admission::LogBudget;
use crate::log::{Log, Read};
use crate::publish::Wakes;
use crate::queues::{LogEnds, QueueView};
use crate::retention::{Retention, make_room, needed_from};
use crate::subscriber::Subscriber;
use crate::timers;
use crate::topics::Lasts;

pub(crate) struct PartitionCell {
    pub topic: TopicName,
    pub id: PartitionId,
    state: Mutex<State>,
    /// Fetches that wait for the next append, and their number.
    appended: Notify,
    awaiting: AtomicUsize,
    /// `true` if a subscriber has ended and must leave the fanout: it receives no further batch and no share of a
    /// group.
    has_ended_member: AtomicBool,
}

type Uncommitted = VecDeque<(Offset, oneshot::Sender<Result<()>>)>;

/// State behind the lock. Invariant: every live source of the fanout was offered exactly the batches that became
/// readable since it joined.
struct State {
    order: Partition,
    log: Log,
    fanout: Fanout<Arc<Subscriber>>,
    queues: Vec<QueueView>,
    /// Deduplication ids that were sent to queues recently.
    dedup: Dedup,
    /// Snapshots of queues, each with the lowest offset that it may still need.
    holds: Vec<(Box<str>, Offset)>,
    /// Waiters for the commit of all records before an offset, ordered by offset.
    uncommitted: Uncommitted,
    is_deleted: bool,
}

/// An append that has its offsets.
pub(crate) struct Appended {
    pub base_offset: Offset,
    pub receivers: usize,
    /// `true` if the batch was appended before: it was not delivered again.
    pub is_duplicate: bool,
    pub commit: Commit,
}

/// Commit of an append: reached, or awaited.
pub(crate) enum Commit {
    /// There is nothing to wait for: the batch is in memory, and its topic is not on disk.
    InMemory,
    /// The caller did not request to wait for the commit.
    Unasked,
    /// The batch is on disk.
    Reached,
    /// The receiver is notified when the batch is on disk.
    Awaited(oneshot::Receiver<Result<()>>),
}

impl Commit {
    pub(crate) fn is_reached(&self) -> bool {
        matches!(self, Self::Reached)
    }
}

/// Waiter for the next append; it is counted as long as this value lives.
pub(crate) struct NextAppend<'a> {
    awaiting: &'a AtomicUsize,
    notified: Pin<Box<Notified<'a>>>,
}

impl Future for NextAppend<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.notified.as_mut().poll(context)
    }
}

impl Drop for NextAppend<'_> {
    fn drop(&mut self) {
        self.awaiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reason for which an append did not happen.
pub(crate) enum Refused {
    /// A subscriber or the journal has no room. The batch is returned.
    Blocked(DraftBatch, Blocking),
    Failed(Error),
}

/// Cause for which a batch has to wait.
pub(crate) enum Blocking {
    /// A subscriber whose overflow policy is to block.
    Subscriber(Arc<Subscriber>),
    /// The queue of the journal is full.
    Journal(Error),
}

/// Bounds of a partition's log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: Offset,
    pub end: Offset,
    /// Offset before which every record was committed or aborted: no open transaction wrote there.
    pub stable_end: Offset,
    pub bytes: u64,
    pub subscribers: usize,
}

/// Context of an append, apart from the batch.
pub(crate) struct AppendContext<'a> {
    pub budget: &'a LogBudget,
    /// `true` if the append completes only when the batch is on disk, for a topic on disk.
    pub awaits_commit: bool,
    /// `true` if the batch is returned when the journal's queue is full or a subscriber blocks. The broker's own
    /// batches are few and do not yield.
    pub yields: bool,
    /// `true` if room on the disk was checked before: the batch records what has already happened.
    pub is_admitted: bool,
    pub retention: Retention,
    /// Deduplication id of the batch.
    pub dedup: Option<&'a Arc<[u8]>>,
    /// Offset that the batch must get. It is refused as out of sequence if another producer was faster.
    pub at: Option<Offset>,
    pub now_ms: u64,
}

impl PartitionCell {
    pub(crate) fn new(topic: TopicName, id: PartitionId, log: Log) -> Self {
        let order = match &log {
            Log::Memory(_) => Partition::default(),
            Log::Disk(log) => Partition::resume(log.end(), log.producers()),
        };
        let state = State {
            order,
            log,
            fanout: Fanout::default(),
            queues: Vec::new(),
            dedup: Dedup::default(),
            holds: Vec::new(),
            uncommitted: VecDeque::new(),
            is_deleted: false,
        };
        Self {
            topic,
            id,
            state: Mutex::new(state),
            appended: Notify::new(),
            awaiting: AtomicUsize::new(0),
            has_ended_member: AtomicBool::new(false),
        }
    }

    /// Assigns offsets to the batch and appends it. A partition grows nowhere else. Subscribers that must be woken are
    /// added to `wakes`.
    pub(crate) fn append(
        self: &Arc<Self>,
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
        if context.yields
            && let Err(member) = state.fanout.all_accept(|member| !member.handle.blocks(member.source, len))
        {
            return Err(Refused::Blocked(batch, Blocking::Subscriber(member.handle.clone())));
        }
        if let Some(base_offset) = state.sent_before(context).map_err(Refused::Failed)? {
            let commit = state.commit_of(base_offset + 1).map_err(Refused::Failed)?;
            return Ok(Appended { base_offset, receivers: 0, is_duplicate: true, commit });
        }
        if let Some(at) = context.at
            && at != state.order.end()
        {
            let message = format!(
                "the next offset is {}, not {at}: another producer has published in the meantime",
                state.order.end()
            );
            return Err(Refused::Failed(Error::new(ErrorKind::OutOfSequence, message)));
        }
        let (count, log_bytes) = (u64::from(batch.count()), state.log.extent().bytes);
        // A marker is not a message, and without it its transaction would stay open.
        let messages = if batch.is_control() { 0 } else { count };
        let refuse = |view: &QueueView| view.refuse(messages, len as u64, log_bytes);
        let refusal = state.queues.iter().filter(|_| messages > 0).find_map(refuse);
        if let Some(full) = refusal {
            return Err(Refused::Failed(full));
        }
        let receivers = state.fanout.receivers();
        match &mut state.log {
            Log::Memory(log) => {
                let batch = match state.order.place(batch).map_err(Refused::Failed)? {
                    Placed::New(batch) => batch,
                    Placed::Duplicate { base_offset } => {
                        return Ok(Appended {
                            base_offset,
                            receivers: 0,
                            is_duplicate: true,
                            commit: Commit::InMemory,
                        });
                    }
                };
                let needed_from = needed_from(context.retention, &mut state.queues, &state.holds);
                make_room(log, MemoryLog::cost(len), needed_from, context).map_err(Refused::Failed)?;
                state.queues.iter_mut().for_each(|view| view.make_room(messages));
                state.order.replay(&batch);
                let base_offset = batch.base_offset();
                // No reader sees the state before the lock is released, and a batch with one owner needs no reference
                // count.
                let stable_end = state.order.stable_end();
                deliver(&mut state.fanout, &mut state.queues, &batch, stable_end, context.now_ms, wakes);
                log.append(batch, context.now_ms);
                let Retention { bytes, ms, .. } = context.retention;
                context.budget.release(log.trim(bytes, ms, needed_from, context.now_ms));
                self.wake_fetches();
                state.note_sent(context, base_offset);
                Ok(Appended { base_offset, receivers, is_duplicate: false, commit: Commit::InMemory })
            }
            Log::Disk(log) => {
                if !context.is_admitted {
                    log.check_room().map_err(Refused::Failed)?;
                }
                match if context.yields { log.admit() } else { Ok(()) } {
                    // Other publishes free room in the journal soon; on a full disk, records have to be deleted first.
                    Err(full) if full.kind != ErrorKind::DiskFull => {
                        return Err(Refused::Blocked(batch, Blocking::Journal(full)));
                    }
                    admitted => admitted.map_err(Refused::Failed)?,
                }
                let (base_offset, is_duplicate) = match state.order.place(batch).map_err(Refused::Failed)? {
                    Placed::New(batch) => {
                        log.append(batch.clone(), self.clone()).map_err(Refused::Failed)?;
                        state.queues.iter_mut().for_each(|view| view.make_room(messages));
                        state.order.replay(&batch);
                        if let Some(id) = context.dedup {
                            state.dedup.insert(id.clone(), batch.base_offset(), context.now_ms);
                        }
                        (batch.base_offset(), false)
                    }
                    Placed::Duplicate { base_offset } => (base_offset, true),
                };
                if is_duplicate
                    && base_offset + count > log.extent().end
                    && let Some(broken) = log.broken()
                {
                    // The batch was accepted, but no notification about its commit will follow.
                    return Err(Refused::Failed(broken));
                }
                let commit = match context.awaits_commit {
                    true => await_commit(&mut state.uncommitted, base_offset + count, log.extent().end),
                    false => Commit::Unasked,
                };
                let receivers = if is_duplicate { 0 } else { receivers };
                Ok(Appended { base_offset, receivers, is_duplicate, commit })
            }
        }
    }

    pub(crate) fn extent(&self) -> Extent {
        let state = self.state.lock();
        Extent { subscribers: state.fanout.members().count(), ..state.extent() }
    }

    /// Returns an error if the journal's queue is so full that one more append would have to wait.
    pub(crate) fn admit(&self) -> Result<()> {
        let log = match &self.state.lock().log {
            Log::Memory(_) => return Ok(()),
            Log::Disk(log) => log.clone(),
        };
        log.admit()
    }

    /// Returns an error while appended batches could not be written to their place, however few are pending.
    pub(crate) fn check_room(&self) -> Result<()> {
        match &self.state.lock().log {
            Log::Memory(_) => Ok(()),
            Log::Disk(log) => log.check_room(),
        }
    }

    /// Removes the records that retention no longer covers. Returns the bytes of memory that became free.
    pub(crate) fn trim(self: &Arc<Self>, retention: Retention, now_ms: u64) -> usize {
        let (disk, needed_from) = {
            let state = &mut *self.state.lock();
            let needed_from = needed_from(retention, &mut state.queues, &state.holds);
            match &mut state.log {
                Log::Memory(log) => {
                    let freed = log.trim(retention.bytes, retention.ms, needed_from, now_ms);
                    state.order.forget_aborted(log.start());
                    return freed;
                }
                Log::Disk(log) => {
                    state.order.forget_aborted(log.forget_aborted());
                    (log.clone(), needed_from)
                }
            }
        };
        let start = disk.retain(retention.bytes, retention.ms, now_ms).map(|start| start.min(needed_from));
        if let Some(start) = start.filter(|start| *start > disk.extent().start)
            && let Err(error) = disk.set_start(start, self.clone())
        {
            tracing::debug!(topic = %self.topic, partition = self.id, %error, "retention has to wait");
        }
        0
    }

    /// Removes the records before an offset, or all records for `Offset::MAX`. Returns the new start of the log, the
    /// bytes of memory that became free, and when the change is durable.
    pub(crate) fn delete_records(&self, before: Offset) -> Result<(Offset, usize, Lasts)> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let extent = state.log.extent();
        let before = if before == Offset::MAX { extent.end } else { before };
        if before > extent.end {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("offset {before} is not in the log, which has {} to {}", extent.start, extent.end),
            ));
        }
        let start = before.max(extent.start);
        match &mut state.log {
            Log::Memory(log) => Ok((start, log.set_start(start), Lasts::already())),
            Log::Disk(log) => {
                let (said, lasts) = Lasts::when_committed();
                log.set_start(start, said)?;
                Ok((start, 0, lasts))
            }
        }
    }

    /// Adds a subscriber that begins at `start`. Returns its source, its first offset and the end of the log; `None` if
    /// the subscriber has ended or reads the partition already. No append can happen between the choice of the offset
    /// and the joining.
    pub(crate) fn join(
        &self,
        subscriber: &Arc<Subscriber>,
        start: &Start,
        cell: &Arc<PartitionCell>,
        group: Option<&str>,
    ) -> Result<Option<(engine::SourceId, Offset, Offset)>> {
        let at_time = match start {
            Start::Time(timestamp_ms) => self.offset_for_time(*timestamp_ms)?,
            _ => 0,
        };
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let log = state.log.extent();
        let end = log.end;
        let wanted = match start {
            Start::Live => end,
            Start::Earliest => log.start,
            Start::Offset(offset) => *offset,
            Start::Time(_) => at_time,
            Start::Offsets(offsets) => match offsets.iter().find(|(id, _)| *id == self.id) {
                None => end,
                // The offset is from another log, which this one has replaced: all records are new.
                Some((_, offset)) if *offset > end => log.start,
                Some((_, offset)) => *offset,
            },
        };
        let from = wanted.clamp(log.start, end);
        let Some(source) = subscriber.add_source(cell, &state.fanout, wanted.min(end), wanted >= end) else {
            return Ok(None);
        };
        state.fanout.join(engine::fanout::Member { handle: subscriber.clone(), source }, group);
        Ok(Some((source, from, end)))
    }

    /// Returns the subscribers of this partition that read all partitions of its topic, including those added later.
    pub(crate) fn followers(&self) -> Vec<Arc<Subscriber>> {
        let state = self.state.lock();
        let members = state.fanout.members().map(|member| &member.handle);
        members.filter(|subscriber| subscriber.scope.is_whole).cloned().collect()
    }

    /// Notes that a subscriber of this partition has ended; it leaves the fanout before the next append.
    pub(crate) fn note_ended_member(&self) {
        self.has_ended_member.store(true, Ordering::Release);
    }

    pub(crate) fn leave(&self, subscriber: &Arc<Subscriber>) {
        self.state.lock().fanout.leave(|handle| Arc::ptr_eq(handle, subscriber));
    }

    /// Reads history for a source that is behind, or makes it live if it has reached the end of the log.
    pub(crate) async fn backfill(&self, subscriber: &Subscriber, source: engine::SourceId, from: Offset) {
        loop {
            let (start, read) = {
                let state = self.state.lock();
                let log = state.log.extent();
                match state.log.read(from.max(log.start), engine::limits::BACKFILL_BYTES) {
                    // Only a deleted partition ends before an offset that it assigned; it has nothing to read.
                    Err(error) if error.kind == ErrorKind::OutOfRange => (log.start, Read::Batches(Vec::new())),
                    Err(error) => return subscriber.end(error),
                    Ok(read) => (log.start, read),
                }
            };
            return match read.batches().await {
                Ok(batches) if batches.is_empty() => {
                    // No append can happen between this check of the end and the source being live.
                    let state = self.state.lock();
                    let log = state.log.extent();
                    if from.max(log.start) >= log.end {
                        subscriber.catch_up(source, log.end);
                    }
                }
                Ok(batches) => subscriber.backfill(source, batches),
                // Retention removed these batches during the read: the next round reads what follows and reports the
                // gap.
                Err(error) if error.kind == ErrorKind::OutOfRange && self.extent().start > start.max(from) => continue,
                Err(error) => subscriber.end(error),
            };
        }
    }

    /// Returns the batches from an offset on, and the bounds of the log.
    pub(crate) async fn read(&self, from: Offset, bytes_max: usize) -> Result<(Extent, Vec<RecordBatch>)> {
        let (extent, read) = {
            let state = self.state.lock();
            if state.is_deleted {
                return Err(self.gone());
            }
            (state.extent(), state.log.read(from, bytes_max)?)
        };
        Ok((extent, read.batches().await?))
    }

    /// Returns the batches from an offset up to the stable end of the log, and the aborted transactions among them.
    pub(crate) async fn read_committed(
        &self,
        from: Offset,
        bytes_max: usize,
    ) -> Result<(Extent, Vec<RecordBatch>, Vec<Aborted>)> {
        let (extent, read, mut aborted) = {
            let state = self.state.lock();
            if state.is_deleted {
                return Err(self.gone());
            }
            let extent = state.extent();
            state.log.check_served()?;
            let read = match from >= extent.stable_end && from <= extent.end {
                true => Read::Batches(Vec::new()),
                false => state.log.read(from, bytes_max)?,
            };
            let aborted = match &state.log {
                Log::Memory(_) => state.order.aborted(from, extent.stable_end),
                Log::Disk(log) => log.aborted(from, extent.stable_end),
            };
            (extent, read, aborted)
        };
        let mut batches = read.batches().await?;
        batches.retain(|batch| batch.base_offset() < extent.stable_end);
        // A marker may be removed once its records are: a transaction without records must not be reported.
        Aborted::retain_among(&mut aborted, &batches);
        Ok((extent, batches, aborted))
    }

    /// Allows a producer's transaction to write to this partition. Called by the transaction coordinator.
    pub(crate) fn begin(&self, id: i64, epoch: i16) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        state.log.check_served()?;
        if let Log::Disk(log) = &state.log
            && !log.takes_transactions()
        {
            let message = format!("topic {} is stored in SQLite, which does not support transactions", self.topic);
            return Err(Error::new(ErrorKind::Unsupported, format!("{message}; use storage disk")));
        }
        state.order.begin(id, epoch)
    }

    /// Refuses further batches of a producer's transaction. Returns the timestamp of the marker if the transaction
    /// needs one.
    pub(crate) fn close(&self, id: i64) -> Result<Option<i64>> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Ok(None);
        }
        state.log.check_served()?;
        Ok(state.order.close(id))
    }

    pub(crate) fn producers(&self) -> Vec<ProducerStatus> {
        self.state.lock().order.producers().status()
    }

    /// Returns the offset of the first batch that has a record at or after this time. May block on a file.
    pub(crate) fn offset_for_time(&self, timestamp_ms: i64) -> Result<Offset> {
        let disk = match &self.state.lock().log {
            Log::Memory(log) => return Ok(log.offset_for_time(timestamp_ms)),
            Log::Disk(log) => log.clone(),
        };
        disk.offset_for_time(timestamp_ms)
    }

    /// Returns a future that completes with the next append or deletion after this call.
    pub(crate) fn appended(&self) -> NextAppend<'_> {
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        let mut next = NextAppend { awaiting: &self.awaiting, notified: Box::pin(self.appended.notified()) };
        next.notified.as_mut().enable();
        next
    }

    /// Wakes the waiting fetches. Must be called with the lock held: a fetch that read before this append was counted
    /// before it read; any other fetch finds the new batch.
    fn wake_fetches(&self) {
        if self.awaiting.load(Ordering::Relaxed) > 0 {
            self.appended.notify_waiters();
        }
    }

    /// Deletes the partition: later reads and appends fail. Returns the subscribers and the bytes that became free.
    pub(crate) fn delete(&self) -> (Vec<(Arc<Subscriber>, engine::SourceId)>, usize) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let freed = match &state.log {
            Log::Memory(log) => log.bytes(),
            Log::Disk(_) => 0,
        };
        state.log = Log::Memory(MemoryLog::default());
        state.queues.clear();
        let (fanout, uncommitted) = (std::mem::take(&mut state.fanout), std::mem::take(&mut state.uncommitted));
        drop(state);
        for (_, committed) in uncommitted {
            // A caller that no longer waits needs no result.
            committed.send(Err(self.gone())).unwrap_or_default();
        }
        self.appended.notify_waiters();
        (fanout.members().map(|member| (member.handle.clone(), member.source)).collect(), freed)
    }

    /// Adds a queue, which starts with the current ends of the log.
    pub(crate) fn attach_view(&self, mut view: QueueView) {
        let mut state = self.state.lock();
        // An earlier view of this queue may remain if its start was aborted.
        state.queues.retain(|there| there.cell.id != view.cell.id);
        let (Extent { end, stable_end, .. }, markers_end) = (state.extent(), state.order.producers().markers_end());
        view.begin(LogEnds { end, stable_end, markers_end });
        state.queues.push(view);
    }

    pub(crate) fn detach_view(&self, id: QueueId) -> Option<QueueView> {
        let mut state = self.state.lock();
        let at = state.queues.iter().position(|view| view.cell.id == id)?;
        Some(state.queues.swap_remove(at))
    }

    /// Calls `work` with a queue's view and the log.
    pub(crate) fn with_view<T>(&self, id: QueueId, work: impl FnOnce(&mut QueueView, &mut Log) -> T) -> Result<T> {
        self.work_on(&mut self.state.lock(), id, work)
    }

    /// Calls `work` as [`Self::with_view`] does, then removes the messages in `done` as [`Self::drop_consumed`] does,
    /// under the same lock. For messages that may be acknowledged by `work` and need no record of that. Returns the
    /// result of `work` and the bytes of memory that became free.
    pub(crate) fn with_view_of_consumed<T>(
        &self,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &mut Log) -> T,
        done: impl IntoIterator<Item = Offset>,
    ) -> Result<(T, usize)> {
        let mut state = self.state.lock();
        let outcome = self.work_on(&mut state, id, work)?;
        Ok((outcome, state.drop_consumed(done).1))
    }

    fn work_on<T>(
        &self,
        state: &mut State,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &mut Log) -> T,
    ) -> Result<T> {
        let view = state.queues.iter_mut().find(|view| view.cell.id == id);
        match view {
            Some(view) => Ok(work(view, &mut state.log)),
            None => Err(Error::not_found(format!("the queue no longer reads topic {}", self.topic))),
        }
    }

    /// Returns the commit of all records accepted so far.
    pub(crate) fn settled(&self) -> Result<Commit> {
        let mut state = self.state.lock();
        let end = state.order.end();
        state.commit_of(end)
    }

    /// Returns the commit of all records before `end`, which were accepted already.
    pub(crate) fn settled_until(&self, end: Offset) -> Result<Commit> {
        self.state.lock().commit_of(end)
    }

    /// Keeps the records from `floor` on for a snapshot of this name, even if all queues have acknowledged them.
    pub(crate) fn hold(&self, name: &str, floor: Offset) {
        self.state.lock().holds.push((name.into(), floor));
    }

    pub(crate) fn let_go(&self, name: &str) {
        self.state.lock().holds.retain(|(held, _)| &**held != name);
    }

    pub(crate) fn restore_dedup(&self, dedup: Dedup) {
        self.state.lock().dedup = dedup;
    }

    /// Forgets the deduplication ids of messages before this offset: they may be sent again.
    pub(crate) fn forget_sent(&self, before: Offset) {
        self.state.lock().dedup.forget_before(before);
    }

    /// Removes records that all queues have acknowledged, including those in `done`, whose acknowledgement must be
    /// durable. Returns the bytes of memory that became free.
    pub(crate) fn drop_consumed(&self, done: impl IntoIterator<Item = Offset>) -> usize {
        self.state.lock().drop_consumed(done).1
    }

    /// Removes all records before the first one that any queue still needs. Each new start of a log on disk is an entry
    /// of the journal, so only the sweep writes it. Returns the bytes of memory that became free.
    pub(crate) fn sweep_consumed(self: &Arc<Self>) -> usize {
        let mut state = self.state.lock();
        let (start, freed) = state.drop_consumed([]);
        if let Log::Disk(log) = &state.log
            && start > log.extent().start
            && let Err(error) = log.set_start(start, self.clone())
        {
            tracing::debug!(topic = %self.topic, partition = self.id, %error, "what is consumed has to wait");
        }
        freed
    }

    fn gone(&self) -> Error {
        Error::not_found(format!("topic {} was deleted", self.topic))
    }
}

impl State {
    /// Returns the commit of all records before this offset, which were accepted already.
    fn commit_of(&mut self, end: Offset) -> Result<Commit> {
        let Log::Disk(log) = &self.log else {
            return Ok(Commit::InMemory);
        };
        let committed = log.extent().end;
        if end > committed
            && let Some(broken) = log.broken()
        {
            // No notification about the commit will follow.
            return Err(broken);
        }
        Ok(await_commit(&mut self.uncommitted, end, committed))
    }

    /// Removes what all queues have acknowledged: the records before the first one that any queue needs, and those in
    /// `done`. On disk, only the records in `done` are forgotten here. Returns the start of the needed records, and the
    /// bytes of memory that became free.
    fn drop_consumed(&mut self, done: impl IntoIterator<Item = Offset>) -> (Offset, usize) {
        if self.queues.iter().any(|view| view.queue.settings().keeps_acked) {
            return (0, 0);
        }
        let (end, known) = match &self.log {
            Log::Memory(log) => (log.end(), None),
            // After a restart, the recent deduplication ids are restored from the log.
            Log::Disk(log) => (log.extent().end, self.dedup.oldest(timers::now_ms())),
        };
        let held = self.holds.iter().map(|(_, floor)| *floor).chain(known).min().unwrap_or(end);
        let floor = self.queues.iter_mut().map(|view| view.queue.floor()).min().unwrap_or(end).min(held);
        let is_done = |offset: &Offset| self.queues.iter().all(|view| view.queue.is_done(*offset));
        let behind = done.into_iter().filter(|offset| (floor..held).contains(offset)).filter(is_done);
        let freed = match &mut self.log {
            Log::Memory(log) => log.set_start(floor) + behind.map(|offset| log.forget(offset)).sum::<usize>(),
            Log::Disk(log) => {
                behind.for_each(|offset| log.forget(offset));
                0
            }
        };
        (floor.min(end), freed)
    }

    /// Returns the offset of the batch that was sent recently with the same deduplication id.
    fn sent_before(&mut self, context: &AppendContext<'_>) -> Result<Option<Offset>> {
        match context.dedup {
            Some(id) => self.dedup.find(id, context.now_ms),
            None => Ok(None),
        }
    }

    fn note_sent(&mut self, context: &AppendContext<'_>, offset: Offset) {
        if let Some(id) = context.dedup {
            self.dedup.insert(id.clone(), offset, context.now_ms);
        }
    }

    fn extent(&self) -> Extent {
        let DiskExtent { start, end, bytes } = self.log.extent();
        let stable_end = match &self.log {
            Log::Memory(_) => self.order.stable_end(),
            // The order includes markers that are not on disk yet.
            Log::Disk(log) => log.stable_end(),
        };
        let stable_end = stable_end.clamp(start, end);
        Extent { start, end, stable_end, bytes, subscribers: 0 }
    }
}

impl Owner for PartitionCell {
    /// Makes the batches that the journal has synced readable.
    fn committed(&self, mark: Offset) {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock();
        let state = &mut *state;
        let Log::Disk(log) = &state.log else {
            return;
        };
        let now_ms = if state.queues.is_empty() { 0 } else { timers::now_ms() };
        let batches = log.commit(mark);
        let stable_end = if state.queues.is_empty() { 0 } else { log.stable_end() };
        for batch in batches {
            deliver(&mut state.fanout, &mut state.queues, &batch, stable_end, now_ms, &mut wakes);
        }
        while let Some((_, committed)) = state.uncommitted.pop_front_if(|(end, _)| *end <= mark) {
            committed.send(Ok(())).unwrap_or_default();
        }
        self.wake_fetches();
    }

    fn failed(&self, error: &Error) {
        for (_, committed) in self.state.lock().uncommitted.drain(..) {
            committed.send(Err(error.clone())).unwrap_or_default();
        }
    }
}

fn deliver(
    fanout: &mut Fanout<Arc<Subscriber>>,
    queues: &mut [QueueView],
    batch: &RecordBatch,
    stable_end: Offset,
    now_ms: u64,
    wakes: &mut Wakes,
) {
    for view in queues {
        view.arrive(batch, stable_end, now_ms);
        wakes.add_queue(&view.cell);
    }
    let len = batch.len();
    fanout.deliver(
        |member| member.handle.has_room(len),
        |member| {
            if member.handle.offer(member.source, batch) {
                wakes.add(&member.handle);
            }
        },
    );
}

/// Waits until all records before `end` are committed, unless they already are.
fn await_commit(waiting: &mut Uncommitted, end: Offset, committed: Offset) -> Commit {
    if end <= committed {
        return Commit::Reached;
    }
    let (said, heard) = oneshot::channel();
    // Only a duplicate may be ordered before another waiter.
    let at = waiting.partition_point(|(other, _)| *other <= end);
    waiting.insert(at, (end, said));
    Commit::Awaited(heard)
}
