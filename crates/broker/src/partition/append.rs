//! Appending a batch: the one place where a partition grows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{DraftBatch, Error, ErrorKind, Offset, Placed, Result, TopicSettings};
use storage::MemoryLog;

use super::deliver::deliver;
use super::{PartitionCell, State, await_commit};
use crate::admission::LogBudget;
use crate::commit::Commit;
use crate::log::Log;
use crate::retention::{Retention, make_room, needed_from};
use crate::subscriber::Subscriber;
use crate::view::QueueView;
use crate::wakes::Wakes;

/// An append that has its offsets.
pub(crate) struct Appended {
    pub base_offset: Offset,
    pub receivers: usize,
    /// `true` if the batch was appended before: it was not delivered again.
    pub is_duplicate: bool,
    /// `true` if the records are on disk once `commit` is done; `false` in memory, and if the caller does not wait.
    pub is_on_disk: bool,
    pub commit: Commit,
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
    pub now_ms: u64,
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
            now_ms,
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
        if options.yields
            && let Err(member) = state.fanout.all_accept(|member| !member.handle.blocks(member.source, len))
        {
            return Err(Refused::Blocked(batch, Blocking::Subscriber(member.handle.clone())));
        }
        if let Some(base_offset) = state.sent_before(options).map_err(Refused::Failed)? {
            let commit = state.commit_of(base_offset + 1).map_err(Refused::Failed)?;
            let is_on_disk = matches!(state.log, Log::Disk(_));
            return Ok(Appended { base_offset, receivers: 0, is_duplicate: true, is_on_disk, commit });
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
                            is_on_disk: false,
                            commit: Commit::done(),
                        });
                    }
                };
                let needed_from = needed_from(options.retention, &mut state.queues, &state.holds);
                make_room(log, MemoryLog::cost(len), needed_from, options.retention, budget, options.now_ms)
                    .map_err(Refused::Failed)?;
                state.queues.iter_mut().for_each(|view| view.make_room(messages));
                state.order.replay(&batch);
                let base_offset = batch.base_offset();
                // No reader sees the state before the lock is released, and a batch with one owner needs no reference
                // count.
                let stable_end = state.order.stable_end();
                deliver(&mut state.fanout, &mut state.queues, &batch, stable_end, options.now_ms, wakes);
                log.append(batch, options.now_ms);
                let Retention { bytes, ms, .. } = options.retention;
                budget.release(log.trim(bytes, ms, needed_from, options.now_ms));
                self.wake_fetches();
                state.note_sent(options, base_offset);
                Ok(Appended { base_offset, receivers, is_duplicate: false, is_on_disk: false, commit: Commit::done() })
            }
            Log::Disk(log) => {
                if !options.is_admitted {
                    log.check_room().map_err(Refused::Failed)?;
                }
                match if options.yields { log.admit() } else { Ok(()) } {
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
                        if let Some(id) = &options.dedup {
                            state.dedup.insert(id.clone(), batch.base_offset(), options.now_ms);
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
                let commit = if options.awaits_commit {
                    await_commit(state.number, &mut state.uncommitted, base_offset + count, log.extent().end)
                } else {
                    Commit::done()
                };
                let receivers = if is_duplicate { 0 } else { receivers };
                let is_on_disk = options.awaits_commit;
                Ok(Appended { base_offset, receivers, is_duplicate, is_on_disk, commit })
            }
        }
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
}

impl State {
    /// Returns the offset of the batch that was sent recently with the same deduplication id.
    fn sent_before(&mut self, options: &AppendOptions) -> Result<Option<Offset>> {
        match &options.dedup {
            Some(id) => self.dedup.find(id, options.now_ms),
            None => Ok(None),
        }
    }

    fn note_sent(&mut self, options: &AppendOptions, offset: Offset) {
        if let Some(id) = &options.dedup {
            self.dedup.insert(id.clone(), offset, options.now_ms);
        }
    }
}
