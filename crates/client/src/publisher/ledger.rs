//! Ledger of a publisher: its gathered, sent and unsettled batches, over all partitions. It is bounded, and the
//! connection reports the answers to it. It holds no connection itself, and so keeps none alive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use engine::limits::PARTITIONS_MAX;
use engine::partitioner::{self, Sticky};
use engine::{DraftBatch, Error, PartitionId, Producer, Record, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use wire::Response;

use super::delivery::{Callback, Delivery, Receipt, of_record};
use super::lane::{Contents, Identity, Lane, Open, Outcome, Settled, Step};
use super::settings::{Partitioner, Settings};
use crate::link::{BatchTag, OnAck, unexpected};

/// Waiters of a batch.
pub(super) struct Owed {
    receipt: Arc<Receipt>,
    callbacks: Vec<(u32, Callback)>,
    /// `true` if the next flush reports its failure; otherwise, its waiter does.
    is_flushed: bool,
}

pub(super) struct Ledger {
    pub settings: Settings,
    state: Mutex<State>,
    /// Wakes the task, which sends what could not be sent immediately.
    pub has_more: Notify,
    /// Notifies the task of the first deadline to watch: [`Ledger::expire`].
    pub has_deadline: Notify,
    /// Notifies the waiters that the buffer has room again.
    room: Notify,
    /// Notifies the waiters that a batch was settled.
    settled: Notify,
}

struct State {
    /// Identity of new lanes.
    identity: Option<Identity>,
    /// Lanes, one for each known partition of the topic.
    lanes: Vec<Lane<Owed>>,
    /// Lanes that have something to send, each once.
    ready: VecDeque<usize>,
    is_ready: Vec<bool>,
    sticky: Sticky,
    /// Bytes of records without a key since the last change of their partition.
    sticky_bytes: usize,
    /// Bytes of all gathered or unsettled batches, over all lanes.
    held: usize,
    /// Unanswered batches, over all lanes.
    outstanding: usize,
    /// `true` if a caller waits for room.
    is_full: bool,
    /// `true` if a batch waits for an answer before it can be sent.
    is_held_up: bool,
    /// `true` if the task watches the first deadline.
    is_watched: bool,
    /// Error of the connection while the broker is unreachable.
    unreachable: Option<Error>,
    /// Error that all batches fail with after the ledger is closed.
    closed: Option<Error>,
    failed: Failed,
}

/// Failures since the last flush.
#[derive(Default)]
struct Failed {
    first: Option<Error>,
    batches: u64,
}

/// Outcome of an attempt to add a record.
pub(super) enum Gathered {
    Added {
        delivery: Delivery,
        wake: Wake,
    },
    /// The buffer has no room: [`Ledger::room`].
    Full,
}

/// Wake-up of the sender that an added record requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wake {
    No,
    /// The sender sends when the program is otherwise idle.
    Idle,
    /// The sender sends immediately, because a batch is full.
    Now,
}

/// Next action of the sender.
pub(super) enum Next {
    Send {
        batch: BatchTag,
        bytes: Bytes,
    },
    Seal {
        lane: usize,
        open: Open<Owed>,
        producer: Option<Producer>,
    },
    Identity {
        lane: usize,
    },
    /// No batch may be sent before an answer arrives, or before this time.
    Nothing {
        due: Option<Instant>,
    },
}

impl Ledger {
    pub fn new(settings: Settings, partitions: u32, identity: Option<Identity>, seed: u64) -> Self {
        let mut state = State {
            identity,
            lanes: Vec::new(),
            ready: VecDeque::new(),
            is_ready: Vec::new(),
            sticky: Sticky::new(seed),
            sticky_bytes: 0,
            held: 0,
            outstanding: 0,
            is_full: false,
            is_held_up: false,
            is_watched: false,
            unreachable: None,
            closed: None,
            failed: Failed::default(),
        };
        state.learn(partitions);
        Self {
            settings,
            state: Mutex::new(state),
            has_more: Notify::new(),
            has_deadline: Notify::new(),
            room: Notify::new(),
            settled: Notify::new(),
        }
    }

    /// Adds a record to the growing batch of its partition.
    pub fn gather(&self, record: &Record, callback: &mut Option<Callback>) -> Result<Gathered> {
        // This time is used only if the record has no timestamp.
        let now_ms = if record.timestamp_ms == 0 { now_ms() } else { 0 };
        let mut state = self.state.lock();
        if state.has_no_room(&self.settings) {
            return Ok(Gathered::Full);
        }
        let delivery = |owed: &Owed, index| Delivery { receipt: owed.receipt.clone(), index };
        let (delivery, wake) = self.put(&mut state, record, now_ms, callback, delivery)?;
        Ok(Gathered::Added { delivery, wake })
    }

    /// Adds records in their order, until there is no room, a batch is full or a record cannot be added. Returns the
    /// number of added records, and the wake-up that they require.
    pub fn gather_all(&self, records: &[Record]) -> (usize, Wake, Result<()>) {
        let now_ms = now_ms();
        let mut wake = Wake::No;
        let mut state = self.state.lock();
        for (added, record) in records.iter().enumerate() {
            if wake == Wake::Now || state.has_no_room(&self.settings) {
                return (added, wake, Ok(()));
            }
            match self.put(&mut state, record, now_ms, &mut None, |_, _| ()) {
                Ok(((), woken)) => wake = wake.max(woken),
                Err(error) => return (added, wake, Err(error)),
            }
        }
        (records.len(), wake, Ok(()))
    }

    /// Adds a record without checking for room. `tell` receives the waiters of its batch, and its index there.
    fn put<T>(
        &self,
        state: &mut State,
        record: &Record,
        now_ms: i64,
        callback: &mut Option<Callback>,
        tell: impl FnOnce(&Owed, u32) -> T,
    ) -> Result<(T, Wake)> {
        let at = state.partition_of(record, &self.settings)?;
        let lane = &mut state.lanes[at];
        let (index, bytes) = match add(lane, record, now_ms, callback, &self.settings) {
            // The record may be too large only for the remaining room in this batch.
            Err(_) if lane.gathering.is_some() => {
                lane.close_gathering();
                add(lane, record, now_ms, callback, &self.settings)?
            }
            added => added?,
        };
        let open = lane.gathering.as_ref().expect("invariant: it has the record");
        let told = tell(&open.owed, index);
        let mut wake = if index == 0 { Wake::Idle } else { Wake::No };
        if open.held >= self.settings.batch_bytes {
            lane.close_gathering();
            wake = Wake::Now;
        }
        state.held += bytes;
        if state.lanes.len() > 1 {
            state.turn_sticky(record.key.is_none(), bytes, &self.settings);
        }
        if index == 0 {
            state.set_ready(at);
            if state.watch() {
                self.has_deadline.notify_one();
            }
        }
        Ok((told, wake))
    }

    /// Appends a batch to the batches of its partition; returns it as the error if there is no room. The next flush
    /// reports its failure if `is_flushed`.
    pub fn add_batch(&self, at: usize, contents: Contents, is_flushed: bool) -> Result<Delivery, Contents> {
        let mut state = self.state.lock();
        if state.has_no_room(&self.settings) {
            return Err(contents);
        }
        let open = begin(contents, is_flushed, &self.settings);
        let receipt = open.owed.receipt.clone();
        state.held += open.held;
        state.lanes[at].push(open);
        state.set_ready(at);
        if state.watch() {
            self.has_deadline.notify_one();
        }
        Ok(Delivery { receipt, index: 0 })
    }

    /// Returns the lane of records that are published together, which is that of the first record.
    pub fn lane_of(&self, first: &Record, bytes: usize) -> Result<usize> {
        let mut state = self.state.lock();
        let at = state.partition_of(first, &self.settings)?;
        state.turn_sticky(first.key.is_none(), bytes, &self.settings);
        Ok(at)
    }

    /// Returns the lane of a batch for this partition, or for any.
    pub fn lane_of_batch(&self, partition: Option<PartitionId>, batch: &DraftBatch) -> Result<usize> {
        if let Some(partition) = partition {
            return self.state.lock().lane(partition, &self.settings);
        }
        let key = batch.first_key().map(Bytes::copy_from_slice);
        self.lane_of(&Record { key, ..Record::default() }, batch.len())
    }

    /// Waits until there is room in the buffer.
    pub async fn room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if !self.state.lock().has_no_room(&self.settings) {
                return;
            }
            room.await;
        }
    }

    /// Returns the next action.
    pub fn next(&self, now: Instant) -> Next {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.outstanding >= self.settings.batches_in_flight_max {
            state.is_held_up = true;
            return Next::Nothing { due: None };
        }
        // A caller that waits for room also waits for lingering batches.
        let linger = if state.is_full { Duration::ZERO } else { self.settings.linger };
        let mut earliest: Option<Instant> = None;
        for _ in 0..state.ready.len() {
            let Some(at) = state.ready.pop_front() else {
                break;
            };
            let step = state.lanes[at].step(now, linger);
            if let Step::Rest = step {
                state.is_ready[at] = false;
                continue;
            }
            state.ready.push_back(at);
            match step {
                Step::Rest => {}
                Step::Wait(until) => {
                    state.is_held_up = true;
                    earliest = earliest.into_iter().chain(until).min();
                }
                Step::Identity => return Next::Identity { lane: at },
                Step::Send { number, bytes } => {
                    state.outstanding += 1;
                    return Next::Send { batch: BatchTag { lane: at as u32, number }, bytes };
                }
                Step::Seal { open, producer } => return Next::Seal { lane: at, open, producer },
            }
        }
        Next::Nothing { due: earliest }
    }

    /// Closes a batch of [`Next::Seal`]. Returns the bytes to send.
    pub fn seal(&self, lane: usize, open: Open<Owed>, producer: Option<Producer>) -> (BatchTag, Bytes) {
        let before = open.held;
        let (sealed, spare) = open.seal(self.settings.codec, producer);
        let bytes = sealed.bytes.clone();
        let mut state = self.state.lock();
        state.held = state.held + sealed.held - before;
        state.outstanding += 1;
        state.lanes[lane].spare = spare;
        let number = state.lanes[lane].sent(sealed);
        // While the batch was being closed, no lane held it.
        if state.watch() {
            self.has_deadline.notify_one();
        }
        if let Some(error) = state.closed.clone() {
            let settled = state.lanes[lane].abandon(&error);
            self.finish(state, settled);
        }
        (BatchTag { lane: lane as u32, number }, bytes)
    }

    /// Closes a batch that will not be answered; `send` returns an error if it could not be sent.
    pub fn seal_unanswered(&self, lane: usize, open: Open<Owed>, send: impl FnOnce(Bytes) -> Result<()>) {
        let before = open.held;
        let (sealed, spare) = open.seal(self.settings.codec, None);
        let outcome = send(sealed.bytes.clone()).map(|()| None);
        let mut state = self.state.lock();
        state.held = state.held + sealed.held - before;
        state.lanes[lane].spare = spare;
        let settled = state.lanes[lane].sent_unanswered(sealed, outcome);
        self.finish(state, Some(settled));
    }

    /// Records that the connection broke before this batch was sent.
    pub fn not_sent(&self, batch: BatchTag) {
        let mut state = self.state.lock();
        state.outstanding -= 1;
        state.lanes[batch.lane as usize].not_sent(batch.number);
        state.set_ready(batch.lane as usize);
    }

    /// Sets a new identity of a lane.
    pub fn identify(&self, lane: usize, identity: Identity) {
        let mut state = self.state.lock();
        let settled = state.lanes[lane].identify(identity);
        state.set_ready(lane);
        self.finish(state, settled);
    }

    /// Raises the known number of partitions of the topic, which never shrinks.
    pub fn learn(&self, partitions: u32) {
        self.state.lock().learn(partitions);
    }

    /// Records that the broker cannot be reached, or with `None` that it can be reached again.
    pub fn set_unreachable(&self, error: Option<Error>) {
        self.state.lock().unreachable = error;
    }

    /// Returns `true` if there is a batch to send.
    pub fn has_work(&self) -> bool {
        let mut state = self.state.lock();
        let State { ready, is_ready, lanes, .. } = &mut *state;
        ready.retain(|at| {
            is_ready[*at] = lanes[*at].has_unsent();
            is_ready[*at]
        });
        !ready.is_empty()
    }

    /// Fails batches whose deadline has passed, and returns the next deadline; `None` while no batch waits.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let mut all = Vec::new();
        let mut earliest: Option<Instant> = None;
        let State { lanes, unreachable, .. } = &mut *state;
        for lane in lanes {
            let (settled, next) = lane.expire(now, self.settings.delivery_timeout, unreachable.as_ref());
            all.extend(settled);
            earliest = earliest.into_iter().chain(next).min();
        }
        state.is_watched = earliest.is_some();
        // Batches that they held up may be sendable now.
        state.is_held_up |= !all.is_empty();
        self.finish(state, all);
        earliest
    }

    /// Fails all batches that are not in flight.
    pub fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        let all: Vec<Settled<Owed>> = state.lanes.iter_mut().flat_map(|lane| lane.fail_unsent(error)).collect();
        self.finish(state, all);
    }

    /// Settles all batches, because the publisher was dropped.
    pub fn close(&self, error: &Error) {
        let mut state = self.state.lock();
        state.closed = Some(error.clone());
        let all: Vec<Settled<Owed>> = state.lanes.iter_mut().flat_map(|lane| lane.abandon(error)).collect();
        self.finish(state, all);
    }

    /// Closes the growing batches. Returns the end of each lane, the number after that of its last batch.
    pub fn close_gathering(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        state.lanes.iter_mut().for_each(Lane::close_gathering);
        state.lanes.iter().map(Lane::end).collect()
    }

    /// Waits until all batches below these ends are settled. Returns the failures since the last flush.
    pub async fn flushed(&self, ends: &[u64]) -> Result<()> {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.lanes.iter().zip(ends).all(|(lane, end)| lane.settled_to() >= *end) {
                    return std::mem::take(&mut state.failed).into_result();
                }
            }
            settled.await;
        }
    }

    /// Notifies the waiters after the lock is released.
    fn finish(&self, mut state: MutexGuard<'_, State>, all: impl IntoIterator<Item = Settled<Owed>>) {
        let mut owed: Vec<(Owed, Outcome)> = Vec::new();
        let mut one = None;
        for settled in all {
            state.held -= settled.held;
            let Some(settled_owed) = settled.owed else {
                continue;
            };
            if let (Err(error), true) = (&settled.outcome, settled_owed.is_flushed) {
                state.failed.batches += 1;
                state.failed.first.get_or_insert_with(|| error.clone());
            }
            match one {
                None => one = Some((settled_owed, settled.outcome)),
                Some(_) => owed.push((settled_owed, settled.outcome)),
            }
        }
        let has_room = state.is_full && state.held <= self.settings.buffer_bytes / 4 * 3;
        if has_room {
            state.is_full = false;
        }
        let wakes = std::mem::take(&mut state.is_held_up);
        drop(state);
        if wakes {
            self.has_more.notify_one();
        }
        if has_room {
            self.room.notify_waiters();
        }
        for (owed, outcome) in one.into_iter().chain(owed) {
            for (index, callback) in owed.callbacks {
                callback(of_record(&outcome, index));
            }
            owed.receipt.settle(outcome);
        }
        self.settled.notify_waiters();
    }
}

impl OnAck for Ledger {
    fn answered(&self, batch: BatchTag, answer: Result<Response>) {
        let answer = answer.and_then(|response| match response {
            Response::Published(published) => Ok(published),
            other => Err(unexpected(&other)),
        });
        let partitions = answer.as_ref().map_or(0, |published| published.partitions);
        let mut state = self.state.lock();
        state.learn(partitions);
        self.settle(state, batch, |lane| lane.answered(batch.number, answer, Instant::now()));
    }

    fn lost(&self, batch: BatchTag, error: &Error) {
        self.settle(self.state.lock(), batch, |lane| lane.lost(batch.number, error, Instant::now()));
    }
}

impl Ledger {
    fn settle(
        &self,
        mut state: MutexGuard<'_, State>,
        batch: BatchTag,
        take: impl FnOnce(&mut Lane<Owed>) -> Option<Settled<Owed>>,
    ) {
        let at = batch.lane as usize;
        state.outstanding -= 1;
        let settled = take(&mut state.lanes[at]);
        if settled.is_none() {
            // The batch is sent again.
            state.set_ready(at);
            state.is_held_up = true;
        }
        self.finish(state, settled);
    }
}

impl State {
    fn learn(&mut self, partitions: u32) {
        while self.lanes.len() < partitions.min(PARTITIONS_MAX) as usize {
            self.lanes.push(Lane::new(self.identity));
            self.is_ready.push(false);
        }
    }

    fn has_no_room(&mut self, settings: &Settings) -> bool {
        if self.held >= settings.buffer_bytes {
            self.is_full = true;
        }
        self.is_full
    }

    fn set_ready(&mut self, at: usize) {
        if !std::mem::replace(&mut self.is_ready[at], true) {
            self.ready.push_back(at);
        }
    }

    /// Returns `true` if the task has to be notified of a deadline to watch.
    fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    fn lane(&self, partition: PartitionId, settings: &Settings) -> Result<usize> {
        if (partition as usize) < self.lanes.len() {
            return Ok(partition as usize);
        }
        Err(Error::no_partition(&settings.topic, self.lanes.len(), partition.into()))
    }

    fn partition_of(&self, record: &Record, settings: &Settings) -> Result<usize> {
        let partitions = self.lanes.len() as u32;
        if let Some(partition) = settings.partition {
            return self.lane(partition, settings);
        }
        if partitions == 1 {
            return Ok(0);
        }
        if let Partitioner::Custom(choose) = &settings.partitioner {
            return self.lane(choose(record, partitions), settings);
        }
        Ok(match &record.key {
            Some(key) if !settings.partitioner.ignores_keys() => partitioner::for_key(key, partitions) as usize,
            _ => self.sticky.current(partitions) as usize,
        })
    }

    /// Moves records without a key to another partition once a batch of them has gathered.
    fn turn_sticky(&mut self, is_keyless: bool, bytes: usize, settings: &Settings) {
        if !is_keyless && !settings.partitioner.ignores_keys() {
            return;
        }
        self.sticky_bytes += bytes;
        if self.sticky_bytes >= settings.batch_bytes {
            self.sticky_bytes = 0;
            self.sticky.advance(self.lanes.len() as u32);
        }
    }
}

impl Failed {
    fn into_result(self) -> Result<()> {
        match self.first {
            None => Ok(()),
            Some(mut error) => {
                if self.batches > 1 {
                    error.message = format!("{} batches failed; the first: {}", self.batches, error.message);
                }
                Err(error)
            }
        }
    }
}

/// Adds a record to the growing batch of a lane. Returns its index there, and the growth of the batch in bytes.
fn add(
    lane: &mut Lane<Owed>,
    record: &Record,
    now_ms: i64,
    callback: &mut Option<Callback>,
    settings: &Settings,
) -> Result<(u32, usize)> {
    if let Some(Open { contents: Contents::Records(builder), owed, held, .. }) = &mut lane.gathering {
        builder.push_record(record, now_ms)?;
        let index = builder.count() - 1;
        owed.callbacks.extend(callback.take().map(|callback| (index, callback)));
        let before = std::mem::replace(held, builder.len());
        return Ok((index, *held - before));
    }
    let mut builder = lane.spare.take().unwrap_or_default();
    builder.push_record(record, now_ms)?;
    let mut open = begin(Contents::Records(builder), true, settings);
    open.owed.callbacks.extend(callback.take().map(|callback| (0, callback)));
    let held = open.held;
    lane.gathering = Some(open);
    Ok((0, held))
}

fn begin(contents: Contents, is_flushed: bool, settings: &Settings) -> Open<Owed> {
    let opened = Instant::now();
    let held = contents.len();
    let owed = Owed { receipt: Arc::default(), callbacks: Vec::new(), is_flushed };
    Open { contents, owed, opened, deadline: opened + settings.delivery_timeout, held }
}

/// Returns the current time in ms since 1970.
pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
