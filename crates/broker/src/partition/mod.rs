//! A partition: its order, its log and its subscribers behind one lock that is held briefly.
//!
//! In memory, a batch is readable as soon as it has its offsets. On disk, it is readable when the journal has synced
//! it: no reader sees it before, and a publisher that requested a commit waits until then.

mod append;
mod deliver;
mod members;
mod producers;
mod read;
mod retain;
mod views;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use engine::mesh::Groups;
use engine::queue::Dedup;
use engine::{Error, Fanout, Offset, Partition, PartitionId, Result, TopicId, TopicName};
use parking_lot::Mutex;
use storage::LogExtent;
use tokio::sync::{Notify, oneshot};

use crate::clock::Clock;
use crate::commit::{Commit, LogNumber};
use crate::leadership::Epoch;
use crate::log::Log;
use crate::subscriber::Subscriber;
use crate::traces::{AtCommit, Source};
use crate::view::Views;

pub(crate) use append::{AppendOptions, Blocking, Kept, Refused};

pub(crate) struct PartitionCell {
    pub topic: TopicName,
    pub topic_id: TopicId,
    pub id: PartitionId,
    state: Mutex<State>,
    /// Fetches that wait for the next append, and their number.
    appended: Notify,
    awaiting: AtomicUsize,
    /// `true` if a client has fetched from a live topic since [`PartitionCell::was_fetched`] was last called.
    is_fetched: AtomicBool,
    /// `true` if a subscriber has ended and must leave the fanout: it receives no further batch and no share of a
    /// group.
    has_ended_member: AtomicBool,
}

type Uncommitted = VecDeque<(Offset, oneshot::Sender<Result<()>>)>;
/// Queue groups that get batches of other sites, with the offsets of the batches, in their order.
type ChosenGroups = VecDeque<(Offset, Groups)>;

/// State behind the lock. Invariant: every live source of the fanout was offered exactly the batches that became
/// readable since it joined.
struct State {
    clock: Clock,
    order: Partition,
    log: Log,
    fanout: Fanout<Arc<Subscriber>>,
    /// Number of subscriptions in `fanout` that are of the mesh: no client of this site reads by them.
    mesh_readers: usize,
    /// Number of those that only decide where records are taken. The others take them to readers.
    routers: usize,
    queues: Views,
    /// Deduplication ids that were sent to queues recently.
    dedup: Dedup,
    /// Snapshots of queues in the order of their names, each with the lowest offset that it may still need. The
    /// partitions of a topic share the names.
    holds: Vec<(Arc<str>, Offset)>,
    /// Waiters for the commit of all records before an offset, ordered by offset.
    uncommitted: Uncommitted,
    /// Spans that are finished with the commit of all records before an offset, ordered by offset.
    traced: Vec<(Offset, AtCommit)>,
    /// Groups of the batches that are not committed yet, without those that all groups get.
    chosen_groups: ChosenGroups,
    number: LogNumber,
    is_deleted: bool,
    /// Time before which no record arrives: that of the newest one of earlier leaders.
    arrives_from_ms: i64,
    /// Reason why the partition takes no changes any more: the leadership of its broker has ended.
    refused: Option<Box<Error>>,
    /// Reason why nothing more is committed.
    failed: Option<Box<Error>>,
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

impl PartitionCell {
    pub(crate) fn new((topic, topic_id): (TopicName, TopicId), id: PartitionId, log: Log, epoch: Epoch) -> Self {
        let (end, producers) = log.resume();
        let Epoch { clock, epoch } = epoch;
        let order = Partition::resume(end, producers).led_in(epoch);
        let state = State {
            clock,
            order,
            log,
            fanout: Fanout::default(),
            mesh_readers: 0,
            routers: 0,
            queues: Views::default(),
            dedup: Dedup::default(),
            holds: Vec::new(),
            uncommitted: VecDeque::new(),
            traced: Vec::new(),
            chosen_groups: VecDeque::new(),
            number: LogNumber::next(),
            is_deleted: false,
            arrives_from_ms: i64::MIN,
            refused: None,
            failed: None,
        };
        Self {
            topic,
            topic_id,
            id,
            state: Mutex::new(state),
            appended: Notify::new(),
            awaiting: AtomicUsize::new(0),
            is_fetched: AtomicBool::new(false),
            has_ended_member: AtomicBool::new(false),
        }
    }

    /// Returns the partition as the origin of records that may be traced.
    pub(crate) fn source(&self) -> Source<'_> {
        Source { topic: &self.topic, topic_id: self.topic_id, partition: self.id }
    }

    pub(crate) fn extent(&self) -> Extent {
        let state = self.state.lock();
        Extent { subscribers: state.fanout.members().count() - state.mesh_readers, ..state.extent() }
    }

    /// Returns the size of the log in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().log.extent().bytes
    }

    /// Deletes the partition: later reads and appends fail. Returns the subscribers and the bytes that became free.
    pub(crate) fn delete(&self) -> (Fanout<Arc<Subscriber>>, usize) {
        let mut state = self.state.lock();
        state.is_deleted = true;
        let freed = state.log.memory_bytes();
        state.log = Log::in_memory();
        state.queues.clear();
        let fanout = std::mem::take(&mut state.fanout);
        (state.mesh_readers, state.routers) = (0, 0);
        let uncommitted = std::mem::take(&mut state.uncommitted);
        let traced = std::mem::take(&mut state.traced);
        drop(state);
        traced.into_iter().for_each(|(_, finish)| finish(Some(&self.gone())));
        for (_, committed) in uncommitted {
            // A caller that no longer waits needs no result.
            committed.send(Err(self.gone())).unwrap_or_default();
        }
        self.appended.notify_waiters();
        (fanout, freed)
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

    /// Calls `finish` when all records before `end`, which were accepted, are committed, or once it is known that they
    /// will not be. The thread that commits calls it, before any reader sees the records.
    pub(crate) fn at_commit(&self, end: Offset, finish: AtCommit) {
        let mut state = self.state.lock();
        let error = if state.is_deleted {
            Some(self.gone())
        } else if end <= state.log.extent().end {
            None
        } else {
            match state.failed.as_deref().cloned().or_else(|| state.log.broken()) {
                None => {
                    let at = state.traced.partition_point(|(other, _)| *other <= end);
                    state.traced.insert(at, (end, finish));
                    return;
                }
                error => error,
            }
        };
        drop(state);
        finish(error.as_ref());
    }

    /// Refuses all changes from here on with this error. What was accepted before keeps its outcome.
    pub(crate) fn refuse_changes(&self, error: &Error) {
        self.state.lock().refused = Some(Box::new(error.clone()));
    }

    pub(super) fn gone(&self) -> Error {
        Error::not_found(format!("topic {} was deleted", self.topic))
    }
}

impl State {
    /// Fails if the partition takes no changes any more.
    #[inline]
    pub(super) fn check_changes(&self) -> Result<()> {
        self.refused.as_ref().map_or(Ok(()), |error| Err(error.as_ref().clone()))
    }

    /// Returns the commit of all records before this offset, which were accepted already.
    pub(super) fn commit_of(&mut self, end: Offset) -> Result<Commit> {
        if self.is_deleted {
            return Ok(Commit::done());
        }
        let committed = self.log.extent().end;
        if end > committed
            && let Some(broken) = self.failed.as_deref().cloned().or_else(|| self.log.broken())
        {
            // No notification about the commit will follow.
            return Err(broken);
        }
        Ok(await_commit(self.number, &mut self.uncommitted, end, committed))
    }

    pub(super) fn extent(&self) -> Extent {
        let LogExtent { start, end, bytes } = self.log.extent();
        // The order includes markers that are not committed yet.
        let stable_end = self.log.stable_end().clamp(start, end);
        Extent { start, end, stable_end, bytes, subscribers: 0 }
    }
}

/// Waits until all records before `end` are committed, unless they already are.
pub(super) fn await_commit(log: LogNumber, waiting: &mut Uncommitted, end: Offset, committed: Offset) -> Commit {
    if end <= committed {
        return Commit::done();
    }
    let (sender, commit) = Commit::sync(log, end);
    // Only a duplicate may be ordered before another waiter.
    let at = waiting.partition_point(|(other, _)| *other <= end);
    waiting.insert(at, (end, sender));
    commit
}

#[cfg(test)]
mod tests {
    use engine::{BatchBuilder, Placed};
    use storage::Owner;

    use super::*;

    /// Returns a partition whose log has not committed its only record.
    fn with_a_record_on_its_way() -> PartitionCell {
        let topic = TopicName::parse("t").expect("a name");
        let cell = PartitionCell::new(
            (topic, TopicId::new(1, 1)),
            0,
            Log::in_memory(),
            Epoch { clock: Clock::SYSTEM, epoch: 1 },
        );
        let mut batch = BatchBuilder::new();
        batch.push(1, None, Some(b"value"), &[]).expect("a small record");
        let batch = batch.finish().expect("a record");
        let mut state = cell.state.lock();
        let Ok(Placed::New(batch)) = state.order.place(batch) else { panic!("it is new") };
        state.order.replay(&batch);
        drop(state);
        cell
    }

    /// A queue asks about its earlier changes when a connection ends, which may be after the leadership.
    #[tokio::test]
    async fn a_wait_for_a_log_that_commits_nothing_more_ends_whenever_it_began() {
        let cell = with_a_record_on_its_way();
        let before = cell.settled().expect("it was accepted");
        assert!(!before.is_done());
        cell.failed(&Error::not_leader("another node leads", None));
        assert!(before.wait().await.is_err());
        assert!(cell.settled().is_err(), "nobody would end this wait");
        assert!(cell.settled_until(0).expect("nothing to wait for").is_done());
    }
}
