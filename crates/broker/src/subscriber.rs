//! A subscriber: its feed, and the exclusive right to drain it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::limits::PARTITIONS_TOTAL_MAX;
use engine::{
    Delivery, Error, ErrorKind, Fanout, Feed, Offer, Offset, Overflow, PartitionId, RecordBatch, SourceId, TopicName,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::doors::Door;
use crate::holdings::Hold;
use crate::lanes::LaneLoad;
use crate::metrics::Metrics;
use crate::partition::PartitionCell;
use crate::permit::Permit;
use crate::reader::Reader;
use crate::settings::Settings;
use crate::traces::Traces;
use crate::turns::JOINED_AT_ONCE;

/// A connection that takes deliveries on the publisher's own thread, without waking a task.
pub trait Direct: Send + Sync {
    fn has_room(&self) -> bool;
    /// Takes the deliveries, in order, and empties the list. `source` returns the topic and the partition of a source.
    fn deliver(&self, deliveries: &mut Vec<Delivery>, source: &dyn Fn(SourceId) -> (TopicName, PartitionId));
    /// Sends the deliveries that were taken.
    fn flush(&self);
}

/// Scope of a subscription.
pub(crate) struct Scope {
    /// `true` for subscriptions of patterns and channels: they outlive the topics that they read, and also receive
    /// batches published to names without a topic.
    pub is_channel: bool,
    /// `true` if the door resolves the source of each delivery, so that a new source may reuse the place of a removed
    /// one.
    pub reuses_sources: bool,
    /// `true` if the subscription reads all partitions of a topic, including those added later.
    pub is_whole: bool,
    pub reader: Reader,
    /// Door of the client, for traces.
    pub door: Option<Door>,
    /// Queue group of the subscription.
    pub group: Option<String>,
    pub permit: Permit,
    /// Count for the quotas of the client, until the subscription is closed.
    pub hold: Mutex<Option<Hold>>,
}

pub(crate) struct Subscriber {
    pub id: u64,
    pub scope: Scope,
    overflow: Overflow,
    state: Mutex<State>,
    /// Notified when the drain has work to do.
    ready: Notify,
    direct: Option<Box<dyn Direct>>,
    lane: Arc<LaneLoad>,
    lane_queue_depth: usize,
    metrics: Arc<Metrics>,
    traces: Arc<Traces>,
    settings: Arc<Settings>,
    /// Copy of `State::ended`, readable without the lock.
    has_ended: AtomicBool,
    /// `true` once the subscriber leaves its partitions.
    is_leaving: AtomicBool,
}

struct State {
    feed: Feed,
    sources: Vec<Arc<PartitionCell>>,
    /// Holder of deliveries that are taken and not yet handed over: no other thread may take more.
    taker: Option<Taker>,
    ended: Option<Error>,
    /// Time at which the queue last became non-empty, if timings are enabled.
    waiting_since: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    /// The drain on its lane.
    Drain,
    /// A publisher's thread.
    Publisher,
}

/// Next step of a drain.
pub(crate) enum Next {
    Deliveries,
    /// History has to be read first.
    Behind(Arc<PartitionCell>, SourceId, Offset),
    Wait,
    Ended(Error),
}

impl Subscriber {
    pub(crate) fn new(
        id: u64,
        scope: Scope,
        feed: Feed,
        direct: Option<Box<dyn Direct>>,
        lane: Arc<LaneLoad>,
        settings: &Arc<Settings>,
        (metrics, traces): (&Arc<Metrics>, &Arc<Traces>),
    ) -> Self {
        lane.subscribers.fetch_add(1, Ordering::Relaxed);
        if !scope.reader.is_mesh() {
            metrics.subscribers.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            id,
            scope,
            overflow: feed.overflow(),
            state: Mutex::new(State { feed, sources: Vec::new(), taker: None, ended: None, waiting_since: None }),
            ready: Notify::new(),
            direct,
            lane,
            lane_queue_depth: settings.lane_queue_depth,
            metrics: metrics.clone(),
            traces: traces.clone(),
            settings: settings.clone(),
            has_ended: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
        }
    }

    /// Stops counting the subscription for the quotas of its client.
    pub(crate) fn release_hold(&self) {
        let released = self.scope.hold.lock().take();
        drop(released);
    }

    /// Keeps publishers from handing over deliveries before the drain has begun.
    pub(crate) fn hold_back(&self) {
        self.state.lock().taker = Some(Taker::Drain);
    }

    /// Adds a partition, unless the subscriber reads it already. `fanout` holds the readers of the partition, under the
    /// partition's lock.
    pub(crate) fn add_source(
        self: &Arc<Self>,
        cell: &Arc<PartitionCell>,
        fanout: &Fanout<Arc<Self>>,
        next: Offset,
        is_live: bool,
    ) -> Option<SourceId> {
        let mut state = self.state.lock();
        let reads_already = fanout.has(self.id, self.scope.group.as_deref());
        if state.ended.is_some() || reads_already {
            return None;
        }
        // While deliveries are being handed over, their sources must keep their names.
        if self.scope.reuses_sources
            && is_live
            && state.taker.is_none()
            && let Some(source) = state.feed.reuse_source(next)
        {
            state.sources[source as usize] = cell.clone();
            return Some(source);
        }
        if state.sources.len() >= PARTITIONS_TOTAL_MAX {
            // Only a pattern reaches this limit, over a long time: the sources of deleted topics stay in the list.
            self.end_locked(
                &mut state,
                Error::busy("the subscription has read from too many partitions; subscribe again"),
            );
            return None;
        }
        state.sources.push(cell.clone());
        Some(state.feed.add_source(next, is_live))
    }

    /// Removes the source of a deleted partition. A subscription of the topic ends; one of a pattern or a channel
    /// continues without it.
    pub(crate) fn lose_source(&self, source: SourceId, error: Error) {
        self.state.lock().feed.remove_source(source);
        if !self.scope.is_channel {
            self.end(error);
        }
    }

    /// Closes the source of a channel whose log ended at `end`. The subscription continues without it.
    pub(crate) fn close_source(&self, source: SourceId, end: Offset) {
        let mut state = self.state.lock();
        let dropped = state.feed.dropped_records();
        state.feed.close_source(source, end);
        self.metrics.dropped_records.add(state.feed.dropped_records() - dropped);
        drop(state);
        self.ready.notify_one();
    }

    /// Returns the number of partitions that the subscriber reads.
    pub(crate) fn source_count(&self) -> usize {
        self.state.lock().feed.source_count()
    }

    /// Returns the partitions of at most `max` sources, starting at source `from`. Removed sources are left out.
    /// Returns `None` if there are no more sources.
    pub(crate) fn sources(&self, from: usize, max: usize) -> Option<Vec<Arc<PartitionCell>>> {
        let state = self.state.lock();
        let sources = state.sources.get(from..).filter(|sources| !sources.is_empty())?;
        let feed = &state.feed;
        let sources = sources.iter().take(max).enumerate();
        Some(sources.filter(|(at, _)| feed.is_source((from + at) as SourceId)).map(|(_, cell)| cell.clone()).collect())
    }

    /// Returns the names of the topics and channels that are read, each once.
    pub(crate) fn topic_names(&self) -> BTreeSet<TopicName> {
        self.state.lock().sources.iter().map(|cell| cell.topic.clone()).collect()
    }

    /// Returns the topic and the partition of a source.
    pub(crate) fn source_name(&self, source: SourceId) -> (TopicName, PartitionId) {
        let state = self.state.lock();
        let cell = &state.sources[source as usize];
        (cell.topic.clone(), cell.id)
    }

    /// Returns `true` if a publisher has to wait for this subscriber.
    pub(crate) fn blocks(&self, source: SourceId, bytes: usize) -> bool {
        self.overflow == Overflow::Block
            && !self.has_ended.load(Ordering::Relaxed)
            && (self.is_lane_full() || self.state.lock().feed.blocks(source, bytes))
    }

    /// Returns `true` if a publisher that knows only the partition has to wait for this subscriber.
    pub(crate) fn is_blocking(&self, cell: &Arc<PartitionCell>, bytes: usize) -> bool {
        if self.overflow != Overflow::Block {
            return false;
        }
        let source = self.state.lock().sources.iter().position(|source| Arc::ptr_eq(source, cell));
        source.is_some_and(|source| self.blocks(source as SourceId, bytes))
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.state.lock().feed.has_room(bytes)
    }

    fn is_lane_full(&self) -> bool {
        self.lane.queued.load(Ordering::Relaxed) >= self.lane_queue_depth
    }

    /// Completes when batches leave the lane: a blocked publisher may retry.
    pub(crate) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        self.lane.room.notified()
    }

    /// Offers an append. Returns `true` if the subscriber has to be woken.
    pub(crate) fn offer(&self, source: SourceId, batch: &RecordBatch) -> bool {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return false;
        }
        let queued_before = state.feed.queued_batches();
        let offer = state.feed.offer(source, batch);
        let queued = state.feed.queued_batches();
        self.count_queued(queued_before, queued);
        match offer {
            Offer::Queued { first } => {
                self.lane.enqueued.add(1);
                self.metrics.queue_high_water.fetch_max(queued as u64, Ordering::Relaxed);
                if first && self.settings.timings {
                    state.waiting_since = Some(Instant::now());
                }
                first
            }
            Offer::Dropped { records } => {
                self.lane.dropped.add(records);
                self.metrics.dropped_records.add(records);
                self.metrics.slow_subscribers.add(1);
                false
            }
            Offer::Behind => false,
            Offer::FellBehind => {
                self.metrics.slow_subscribers.add(1);
                true
            }
            Offer::Disconnect => {
                self.metrics.slow_subscribers.add(1);
                self.end_locked(
                    &mut state,
                    Error::new(
                        ErrorKind::SlowSubscriber,
                        format!(
                            "the queue of {queued} batches was full; read faster or choose another overflow policy"
                        ),
                    ),
                );
                true
            }
        }
    }

    /// Wakes the drain, or does its work on this thread if the connection allows it.
    pub(crate) fn wake(&self) {
        match &self.direct {
            Some(direct) => self.drain_direct(&**direct),
            None => self.ready.notify_one(),
        }
    }

    /// Sends the deliveries that [`Subscriber::wake`] handed over.
    pub(crate) fn flush(&self) {
        if let Some(direct) = &self.direct {
            direct.flush();
        }
    }

    fn drain_direct(&self, direct: &dyn Direct) {
        let mut deliveries = Vec::new();
        let mut state = self.state.lock();
        loop {
            if state.taker.is_some() {
                // The holder of the deliveries checks again after it has handed them over.
                return;
            }
            if state.ended.is_some() || !state.feed.is_ready() || !direct.has_room() {
                break;
            }
            self.take(&mut state, &mut deliveries);
            state.taker = Some(Taker::Publisher);
            drop(state);
            direct.deliver(&mut deliveries, &|source| self.source_name(source));
            state = self.state.lock();
            state.taker = None;
        }
        if state.feed.queued_batches() > 0 || state.feed.has_behind() || state.ended.is_some() {
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Takes the next deliveries for the drain, or returns the next step. Deliveries taken before are regarded as
    /// handed over.
    pub(crate) fn next(&self, out: &mut Vec<Delivery>) -> Next {
        let mut state = self.state.lock();
        match state.taker {
            // The publisher wakes this drain if it leaves anything.
            Some(Taker::Publisher) => return Next::Wait,
            Some(Taker::Drain) | None => state.taker = None,
        }
        if state.feed.is_ready() {
            self.take(&mut state, out);
            state.taker = Some(Taker::Drain);
            return Next::Deliveries;
        }
        if let Some(error) = &state.ended {
            return Next::Ended(error.clone());
        }
        match state.feed.behind() {
            Some((source, from)) if state.feed.has_credit() => {
                Next::Behind(state.sources[source as usize].clone(), source, from)
            }
            _ => Next::Wait,
        }
    }

    /// Takes more queued deliveries, for a drain that already holds some.
    pub(crate) fn take_more(&self, out: &mut Vec<Delivery>) {
        let mut state = self.state.lock();
        if state.feed.is_ready() {
            self.take(&mut state, out);
        }
    }

    pub(crate) fn ready(&self) -> tokio::sync::futures::Notified<'_> {
        self.ready.notified()
    }

    fn take(&self, state: &mut State, out: &mut Vec<Delivery>) {
        let had = out.len();
        let queued_before = state.feed.queued_batches();
        state.feed.take(self.settings.event_batch_max_events, self.settings.event_batch_max_bytes, out);
        let queued = state.feed.queued_batches();
        self.count_queued(queued_before, queued);
        let mut batches = 0u64;
        let mut records = 0u64;
        let mut bytes = 0u64;
        for delivery in &out[had..] {
            match delivery {
                Delivery::Batch { batch, .. } => {
                    batches += 1;
                    records += u64::from(batch.count());
                    bytes += batch.len() as u64;
                }
                Delivery::Gap { .. } => {}
            }
        }
        self.metrics.delivered_batches.add(batches);
        self.metrics.delivered_records.add(records);
        self.metrics.delivered_bytes.add(bytes);
        if self.traces.is_on() {
            self.trace(state, &out[had..]);
        }
        if let Some(since) = state.waiting_since.take() {
            self.metrics.delivery_wait_seconds.record(since.elapsed());
            if queued > 0 {
                state.waiting_since = Some(Instant::now());
            }
        }
    }

    /// Notes the delivery of traced records, which is a moment: when the connection takes them.
    fn trace(&self, state: &State, deliveries: &[Delivery]) {
        if self.scope.reader.is_mesh() {
            return;
        }
        let Some(now_us) = self.traces.now_us() else { return };
        for delivery in deliveries {
            if let Delivery::Batch { source, batch, .. } = delivery {
                let source = state.sources[*source as usize].source();
                self.traces.delivered(source, batch, 0, self.scope.door, now_us);
            }
        }
    }

    fn count_queued(&self, before: usize, after: usize) {
        if after > before {
            let queued = self.lane.queued.fetch_add(after - before, Ordering::Relaxed) + after - before;
            self.lane.queued_high_water.fetch_max(queued as u64, Ordering::Relaxed);
        } else if before > after {
            self.lane.queued.fetch_sub(before - after, Ordering::Relaxed);
            self.lane.room.notify_waiters();
        }
    }

    pub(crate) fn backfill(&self, source: SourceId, batches: Vec<RecordBatch>) {
        let mut state = self.state.lock();
        let queued = state.feed.queued_batches();
        let dropped = state.feed.dropped_records();
        state.feed.backfill(source, batches);
        self.count_queued(queued, state.feed.queued_batches());
        self.metrics.dropped_records.add(state.feed.dropped_records() - dropped);
    }

    pub(crate) fn catch_up(&self, source: SourceId, end: Offset) {
        let mut state = self.state.lock();
        let dropped = state.feed.dropped_records();
        state.feed.catch_up(source, end);
        self.metrics.dropped_records.add(state.feed.dropped_records() - dropped);
    }

    pub(crate) fn add_credit(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.feed.add_credit(bytes);
        drop(state);
        self.ready.notify_one();
    }

    pub(crate) fn end(&self, error: Error) {
        self.end_locked(&mut self.state.lock(), error);
    }

    fn end_locked(&self, state: &mut State, error: Error) {
        // The partitions of a subscriber are visited once, not once for each of them that is deleted.
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(error);
        self.has_ended.store(true, Ordering::Release);
        // A subscriber with many sources leaves them when it is closed, which is soon enough. A member of a group
        // leaves now, because batches assigned to it in the meantime would be lost.
        if state.sources.len() <= JOINED_AT_ONCE || self.scope.group.is_some() {
            state.sources.iter().for_each(|cell| cell.note_ended_member());
        }
        self.lane.room.notify_waiters();
        self.ready.notify_one();
    }

    /// Returns `true` for the first caller, which removes the subscriber from its partitions.
    pub(crate) fn begins_to_leave(&self) -> bool {
        !self.is_leaving.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let queued = self.state.get_mut().feed.queued_batches();
        self.lane.queued.fetch_sub(queued, Ordering::Relaxed);
        self.lane.room.notify_waiters();
        self.lane.subscribers.fetch_sub(1, Ordering::Relaxed);
        if !self.scope.reader.is_mesh() {
            self.metrics.subscribers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
