//! Appending a batch: the one place where a partition grows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::mesh::Groups;
use engine::{DraftBatch, Error, ErrorKind, Offset, Placed, RecordBatch, Result, TopicSettings};

use super::deliver::deliver;
use super::{PartitionCell, State, await_commit};
use crate::admission::{LogBudget, LogPermit};
use crate::commit::Commit;
use crate::retention::{Retention, needed_from};
use crate::subscriber::Subscriber;
use crate::view::QueueView;
use crate::wakes::Wakes;

/// Maximum difference in ms between the clocks of two leaders for which the arrival times of the later one wait.
const AHEAD_MS_MAX: i64 = 60_000;

/// A batch that was appended: its offsets, and when it is durable.
pub(crate) struct AppendedBatch {
    pub base_offset: Offset,
    pub receivers: usize,
    /// `true` if the batch was appended before: it was not delivered again.
    pub is_duplicate: bool,
    /// `true` if the records are on disk once `commit` is done; `false` in memory, and if the caller does not wait.
    pub is_on_disk: bool,
    /// Timestamp of the records, if the topic sets timestamps on arrival.
    pub arrival_ms: Option<i64>,
    pub commit: Commit,
    /// The batch, if its records may be traced and it was not appended before.
    pub kept: Option<Kept>,
}

/// A batch that was appended.
pub(crate) struct Kept {
    pub batch: RecordBatch,
    /// `true` if the batch is durable only some time after its append.
    pub is_durable_later: bool,
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

/// Options of one append.
#[derive(Clone)]
pub(crate) struct AppendOptions {
    /// Number of partitions of the topic, which the publisher receives.
    pub partitions: u32,
    pub retention: Retention,
    /// `true` if the append is complete only when the batch is on disk, for a topic on disk.
    pub awaits_commit: bool,
    /// `true` if the batch is returned when the journal has much to write, or a subscriber blocks. The broker's own
    /// batches are few and are not returned.
    pub yields: bool,
    /// `true` if room on the disk was checked before: what the batch records has already happened.
    pub is_admitted: bool,
    /// Timestamp of the records, if the topic sets timestamps on arrival.
    pub arrival_ms: Option<i64>,
    /// Deduplication id: identifies the batch if it is sent again.
    pub dedup: Option<Arc<[u8]>>,
    /// Required offset of the batch. The batch is refused as out of sequence if another producer was faster.
    pub at: Option<Offset>,
    /// Queue groups that get the batch.
    pub groups: Groups,
    pub now_ms: u64,
    /// Time at which the request of the client began, in microseconds since 1970, if records may be traced.
    pub traced_since_us: Option<u64>,
}

impl AppendOptions {
    /// Returns the options of a publish to a topic with these settings.
    pub(crate) fn of(settings: &TopicSettings, awaits_commit: bool, now_ms: u64) -> Self {
        Self {
            partitions: settings.partitions,
            retention: Retention::of(settings),
            awaits_commit,
            yields: true,
            is_admitted: false,
            arrival_ms: None,
            dedup: None,
            at: None,
            groups: Groups::All,
            now_ms,
            traced_since_us: None,
        }
    }

    /// Returns the options of a batch of the broker itself, which waits for nothing but the disk.
    pub(crate) fn own(settings: &TopicSettings, now_ms: u64) -> Self {
        Self { yields: false, ..Self::of(settings, true, now_ms) }
    }

    /// Returns the options of a batch that records what has already happened. The caller must have called
    /// [`PartitionCell::admit`] before it acted, and does not wait for the disk.
    pub(crate) fn own_admitted(settings: &TopicSettings, now_ms: u64) -> Self {
        Self { yields: false, is_admitted: true, ..Self::of(settings, false, now_ms) }
    }
}

impl PartitionCell {
    /// Assigns offsets to the batch and appends it. A partition grows nowhere else. Subscribers that must be woken are
    /// added to `wakes`.
    pub(crate) fn append(
        self: &Arc<Self>,
        batch: DraftBatch,
        options: &AppendOptions,
        budget: &LogBudget,
        wakes: &mut Wakes,
    ) -> Result<AppendedBatch, Refused> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.is_deleted {
            return Err(Refused::Failed(self.gone()));
        }
        state.check_changes().map_err(Refused::Failed)?;
        if self.has_ended_member.load(Ordering::Relaxed) && self.has_ended_member.swap(false, Ordering::AcqRel) {
            state.remove_ended();
        }
        let len = batch.len();
        if options.yields
            && let Err(member) = state
                .fanout
                .all_accept(|group| options.groups.contains(group), |member| !member.handle.blocks(member.source, len))
        {
            return Err(Refused::Blocked(batch, Blocking::Subscriber(member.handle.clone())));
        }
        if let Some(base_offset) = state.sent_before(options).map_err(Refused::Failed)? {
            let commit = state.commit_of(base_offset + 1).map_err(Refused::Failed)?;
            let is_on_disk = state.log.is_durable();
            return Ok(AppendedBatch {
                base_offset,
                receivers: 0,
                is_duplicate: true,
                is_on_disk,
                arrival_ms: None,
                commit,
                kept: None,
            });
        }
        if let Some(at) = options.at
            && at != state.order.end()
        {
            let message = format!(
                "the next offset is {}, not {at}: another producer has published in the meantime",
                state.order.end()
            );
            return Err(Refused::Failed(Error::new(ErrorKind::OutOfSequence, message)));
        }
        let count = u64::from(batch.count());
        let log_bytes = state.log.extent().bytes;
        // A marker is not a message, and without it its transaction would stay open.
        let messages = if batch.is_control() { 0 } else { count };
        let refuse = |view: &QueueView| view.refuse(messages, len as u64, log_bytes);
        let refusal = state.queues.iter().filter(|_| messages > 0).find_map(refuse);
        if let Some(full) = refusal {
            return Err(Refused::Failed(full));
        }
        if !options.is_admitted {
            state.log.check_room().map_err(Refused::Failed)?;
        }
        match if options.yields { state.log.admit() } else { Ok(()) } {
            // Other publishes free room in the journal soon; on a full disk, records have to be deleted first.
            Err(full) if full.kind != ErrorKind::DiskFull => {
                return Err(Refused::Blocked(batch, Blocking::Journal(full)));
            }
            admitted => admitted.map_err(Refused::Failed)?,
        }
        let is_on_disk = options.awaits_commit && state.log.is_durable();
        let (batch, arrival_ms) = state.arrive(batch, options);
        let batch = match state.order.place(batch).map_err(Refused::Failed)? {
            Placed::New(batch) => batch,
            Placed::Duplicate { base_offset } => {
                let commit = state.commit_of(base_offset + count).map_err(Refused::Failed)?;
                let commit = if options.awaits_commit { commit } else { Commit::done() };
                return Ok(AppendedBatch {
                    base_offset,
                    receivers: 0,
                    is_duplicate: true,
                    is_on_disk,
                    arrival_ms: None,
                    commit,
                    kept: None,
                });
            }
        };
        let receivers = state.fanout.receivers() - state.routers;
        let base_offset = batch.base_offset();
        let needed_from = needed_from(options.retention, &mut state.queues, &state.holds);
        let room = state.room_for(len, needed_from, options, self, budget).map_err(Refused::Failed)?;
        let commits_now = !state.log.is_durable();
        if !commits_now {
            state.log.append(batch.clone(), options.now_ms, || self.clone()).map_err(Refused::Failed)?;
        }
        room.spend();
        let kept = options.traced_since_us.map(|_| Kept { batch: batch.clone(), is_durable_later: !commits_now });
        state.queues.iter_mut().for_each(|view| view.make_room(messages));
        state.order.replay(&batch);
        state.note_sent(options, base_offset);
        if commits_now {
            // Nothing refuses it, and no reader sees the state before the lock is released. A batch with one owner
            // needs no reference count.
            let stable_end = state.order.stable_end();
            let (fanout, queues) = (&mut state.fanout, &mut state.queues);
            deliver(fanout, queues, &batch, &options.groups, stable_end, options.now_ms, wakes);
            state.log.append(batch, options.now_ms, || self.clone()).map_err(Refused::Failed)?;
            let Retention { bytes, ms, .. } = options.retention;
            if let Some(start) = state.log.retain_now(bytes, ms, needed_from, options.now_ms) {
                // It only fails behind the end of the log.
                budget.release(state.delete_before(start, self).unwrap_or_default());
            }
            self.wake_fetches();
        }
        if !commits_now && options.groups != Groups::All {
            state.chosen_groups.push_back((base_offset, options.groups.clone()));
        }
        let commit = if options.awaits_commit && !commits_now {
            await_commit(state.number, &mut state.uncommitted, base_offset + count, state.log.extent().end)
        } else {
            Commit::done()
        };
        Ok(AppendedBatch { base_offset, receivers, is_duplicate: false, is_on_disk, arrival_ms, commit, kept })
    }

    /// Returns the offset of the next record, after all that were accepted.
    pub(crate) fn next_offset(&self) -> Offset {
        self.state.lock().order.end()
    }

    /// Lets no later record arrive before this time.
    pub(crate) fn arrive_from(&self, arrival_ms: i64) {
        let mut state = self.state.lock();
        state.arrives_from_ms = state.arrives_from_ms.max(arrival_ms);
    }

    /// Returns an error if the journal's queue is so full that one more append would have to wait.
    pub(crate) fn admit(&self) -> Result<()> {
        let log = self.state.lock().log.shared();
        log.map_or(Ok(()), |log| log.admit())
    }

    /// Returns an error while appended batches could not be written to their place, however few are pending.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.state.lock().log.check_room()
    }
}

impl State {
    /// Acquires the memory that a batch of `len` bytes takes in the log. If the budget is used up, the log drops its
    /// own history before the batch is refused.
    fn room_for<'a>(
        &mut self,
        len: usize,
        needed_from: Offset,
        options: &AppendOptions,
        cell: &Arc<PartitionCell>,
        budget: &'a LogBudget,
    ) -> Result<LogPermit<'a>> {
        let cost = self.log.memory_cost(len);
        if let Some(permit) = budget.acquire(cost) {
            return Ok(permit);
        }
        let keep = self.log.memory_bytes().saturating_sub(cost).max(1) as u64;
        if !options.retention.drop_consumed
            && let Some(start) = self.log.retain_now(keep, 0, needed_from, options.now_ms)
        {
            budget.release(self.delete_before(start, cell)?);
        }
        let out_of_memory = || {
            Error::busy(format!(
                "the logs in memory hold {} of {} bytes; raise memory_max or lower retention_bytes",
                budget.used(),
                budget.max()
            ))
        };
        budget.acquire(cost).ok_or_else(out_of_memory)
    }

    /// Returns the offset of the batch that was sent recently with the same deduplication id.
    fn sent_before(&mut self, options: &AppendOptions) -> Result<Option<Offset>> {
        match &options.dedup {
            Some(id) => self.dedup.find(id, options.now_ms),
            None => Ok(None),
        }
    }

    /// Returns the batch with its arrival time, if the topic sets one: the clock's, or that of the newest record if an
    /// earlier leader's clock was ahead. A clock that was far ahead was wrong, and is not followed.
    fn arrive(&self, mut batch: DraftBatch, options: &AppendOptions) -> (DraftBatch, Option<i64>) {
        let from_ms = self.arrives_from_ms;
        let is_early = |at_ms: &i64| *at_ms < from_ms && from_ms <= at_ms.saturating_add(AHEAD_MS_MAX);
        match options.arrival_ms {
            Some(at_ms) if is_early(&at_ms) && !batch.is_control() => {
                batch.set_arrival(from_ms);
                (batch, Some(from_ms))
            }
            arrival_ms => (batch, arrival_ms),
        }
    }

    fn note_sent(&mut self, options: &AppendOptions, offset: Offset) {
        if let Some(id) = &options.dedup {
            self.dedup.insert(id.clone(), offset, options.now_ms);
        }
    }
}
