//! Delivery of messages in the batches that contain them, each identified by its offset, for the members of share
//! groups.
//!
//! A receiver holds each message under a lease, as everywhere else. The broker does not decode the records for this.

use std::sync::Arc;
use std::time::Duration;

use engine::producers::AbortedIndex;
use engine::queue::{Lease, LeaseError, Look, Queue, QueueName};
use engine::{ErrorKind, Isolation, Offset, PartitionId, RecordBatch, Result};
use tokio::time::Instant;

use crate::fetch::{FETCH_WAIT_MAX, any};
use crate::log::Log;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::{QueueCell, QueueView};

/// Maximum number of bytes that are read together; a larger batch is read alone.
const READ_BYTES_MAX: usize = 4 << 20;

/// Partition of a queue from which messages are acquired.
#[derive(Clone, Debug)]
pub struct AcquireFrom {
    pub queue: QueueName,
    pub partition: PartitionId,
}

/// Limits and terms of one call that acquires messages.
#[derive(Clone, Copy, Debug)]
pub struct AcquireLimits {
    /// Maximum number of records of all partitions together. `bytes_max` is their maximum number of bytes, which only
    /// the first batch of the answer may exceed.
    pub records_max: usize,
    pub bytes_max: usize,
    pub wait: Duration,
    pub lease_ms: u64,
    /// Maximum number of deliveries of a message before it is dropped; 0 for no limit.
    pub attempts_max: u32,
    /// Maximum number of concurrent leases in each partition.
    pub in_flight_max: usize,
    pub isolation: Isolation,
}

/// Messages of one partition. Unless they are [kept](Self::keep), they return to the queue as if they had not been
/// delivered.
#[derive(Default)]
pub struct Acquired {
    /// Batches that contain the messages. They may also contain messages that the receiver has not leased.
    pub batches: Vec<RecordBatch>,
    held: Option<Held>,
}

/// Leases that are reverted on drop, unless they are taken out.
struct Held {
    queues: Arc<Queues>,
    place: Place,
    leases: Vec<Lease>,
    lease_ms: u64,
    /// Time at which the call began, in microseconds since 1970, if messages may be traced.
    began_us: Option<u64>,
}

/// A queue, and a partition of its topic.
#[derive(Clone)]
struct Place {
    cell: Arc<QueueCell>,
    topic: Arc<Topic>,
    partition: Arc<PartitionCell>,
}

/// Decision about a message that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    Done,
    /// The message is redelivered, or dropped if it has no attempt left.
    Back,
    /// The lease ends this number of ms from now.
    Held(u64),
}

/// Position of a queue in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    pub partition: PartitionId,
    /// Offset before which all messages are finished.
    pub start: Offset,
    /// Number of messages from `start` on that are not finished.
    pub undone: u64,
}

impl Acquired {
    /// Returns the leases in the order of their offsets.
    pub fn leases(&self) -> &[Lease] {
        self.held.as_ref().map_or(&[], |held| &held.leases)
    }

    /// Returns the leases, which the receiver keeps until they expire or are settled.
    pub fn keep(&mut self) -> Vec<Lease> {
        let Some(mut held) = self.held.take() else { return Vec::new() };
        if let Some(began_us) = held.began_us {
            let Place { cell, partition, .. } = &held.place;
            let times = (began_us, held.lease_ms);
            held.queues.trace_acquired(cell, partition, &self.batches, &held.leases, times);
        }
        std::mem::take(&mut held.leases)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let back = |view: &mut QueueView, _: &Log| self.leases.iter().for_each(|lease| view.queue.untake(lease));
        // A partition that was deleted has nothing to return.
        if let Err(error) = self.queues.change_view(&self.place.partition, self.place.cell.id, back) {
            tracing::debug!(%error, "undelivered messages were not returned");
        }
        self.place.cell.returned.notify_waiters();
    }
}

impl Queues {
    /// Leases messages of many partitions, in their order. If no message is available, waits for the first.
    pub async fn acquire(self: &Arc<Self>, from: &[AcquireFrom], limits: &AcquireLimits) -> Vec<Result<Acquired>> {
        let mut places = Vec::with_capacity(from.len());
        for from in from {
            places.push(self.place(&from.queue, from.partition).await);
        }
        let deadline = Instant::now() + limits.wait.min(FETCH_WAIT_MAX);
        loop {
            let existing = || places.iter().flatten();
            let mut appended: Vec<_> = existing().map(|place| place.partition.appended()).collect();
            let mut returned: Vec<_> = existing().map(|place| Box::pin(place.cell.returned.notified())).collect();
            returned.iter_mut().for_each(|returned| {
                returned.as_mut().enable();
            });
            let (found, due_ms) = self.acquire_now(&places, limits).await;
            let is_over = |found: &Result<Acquired>| found.as_ref().map_or(true, |found| !found.leases().is_empty());
            if found.iter().any(is_over) || Instant::now() >= deadline {
                return found;
            }
            let due =
                due_ms.map(|due_ms| Instant::now() + Duration::from_millis(due_ms.saturating_sub(self.core.now_ms())));
            // The end of the wait is detected above.
            tokio::select! {
                () = any(&mut appended) => {}
                () = any(&mut returned) => {}
                () = tokio::time::sleep_until(due.map_or(deadline, |due| due.min(deadline))) => {}
            }
        }
    }

    async fn place(&self, queue: &QueueName, partition: PartitionId) -> Result<Place> {
        let (cell, topic) = self.any_cell(queue.as_str()).await?;
        let partition = topic.partition(partition)?;
        Ok(Place { cell, topic, partition })
    }

    /// Returns the messages that are available now, and when more may become available without an append.
    async fn acquire_now(
        self: &Arc<Self>,
        places: &[Result<Place>],
        limits: &AcquireLimits,
    ) -> (Vec<Result<Acquired>>, Option<u64>) {
        let mut room = Room { bytes: limits.bytes_max, is_first: true };
        let mut records = limits.records_max;
        let mut due_ms = None;
        let mut found = Vec::with_capacity(places.len());
        for place in places {
            let limits = AcquireLimits { records_max: records, ..*limits };
            let acquired = match place {
                Ok(_) if records == 0 || room.is_full() => Ok(Acquired::default()),
                Ok(place) => self.acquire_one(place, &limits, &mut room, &mut due_ms).await,
                Err(error) => Err(error.clone()),
            };
            if let Ok(acquired) = &acquired {
                records -= acquired.leases().len();
            }
            found.push(acquired);
        }
        (found, due_ms)
    }

    async fn acquire_one(
        self: &Arc<Self>,
        place: &Place,
        limits: &AcquireLimits,
        room: &mut Room,
        due_ms: &mut Option<u64>,
    ) -> Result<Acquired> {
        let Place { cell, partition, .. } = place;
        let began_us = self.core.traces().now_us();
        let lease_ms = limits.lease_ms;
        loop {
            let until = match limits.isolation {
                Isolation::Committed => partition.extent().stable_end,
                Isolation::Uncommitted => Offset::MAX,
            };
            let now = self.core.now_ms();
            let ((taken, unseen, due), saved) = self.change_view(partition, cell.id, |view, log| {
                view.queue.trim(log.extent().start);
                let leased = view.queue.counts(now).leased as usize;
                let max = limits.records_max.min(limits.in_flight_max.saturating_sub(leased));
                let taken = view.queue.take_before(until, now, max, limits.lease_ms, |_| Look::Message(None));
                (taken, view.unseen(log), view.queue.next_due_ms())
            })?;
            drop(saved);
            *due_ms = [*due_ms, due].into_iter().flatten().min();
            let is_idle = taken.leases.is_empty();
            let leases = taken.leases.into_vec();
            let held = Held { queues: self.clone(), place: place.clone(), leases, lease_ms, began_us };
            let (acquired, done) = self.read_held(held, limits, room).await?;
            if !acquired.leases().is_empty() {
                self.events.received.add(acquired.leases().len() as u64);
                return Ok(acquired);
            }
            if is_idle && unseen.is_some() {
                self.look_through(cell, partition).await?;
            } else if room.is_full() || done == 0 && !taken.is_cut {
                return Ok(acquired);
            }
            // Many records that are no messages of this queue: let other tasks run in between.
            tokio::task::yield_now().await;
        }
    }

    /// Reads the batches of leased messages. Acknowledges leases without a message, whose number is also returned, and
    /// returns messages for which there is no room to the queue.
    async fn read_held(&self, mut held: Held, limits: &AcquireLimits, room: &mut Room) -> Result<(Acquired, usize)> {
        held.leases.sort_unstable_by_key(|lease| lease.offset);
        let partition = held.place.partition.clone();
        let mut batches = Vec::new();
        let mut kept = Vec::new();
        let mut done = Vec::new();
        let mut left = &held.leases[..];
        'partition: while let Some(first) = left.first().filter(|_| !room.is_full()) {
            let (_, found, aborted) = match read(&partition, first.offset, room.bytes, limits.isolation).await {
                // Retention removed it in the meantime.
                Err(error) if error.kind == ErrorKind::OutOfRange => {
                    done.extend_from_slice(left);
                    left = &[];
                    break;
                }
                found => found?,
            };
            if found.is_empty() {
                break;
            }
            for batch in found {
                let (absent, others) = left.split_at(left.partition_point(|lease| lease.offset < batch.base_offset()));
                done.extend_from_slice(absent);
                left = others;
                let count = left.partition_point(|lease| lease.offset < batch.next_offset());
                let is_void = batch.is_control() || batch.count() == 0 || aborted.has(&batch);
                if count > 0 && !is_void && !room.takes(batch.len()) {
                    // Batches of other partitions are hardly smaller: their messages would be leased and read only to
                    // be returned.
                    if batches.is_empty() {
                        room.close();
                    }
                    break 'partition;
                }
                let (within, others) = left.split_at(count);
                left = others;
                let is_over = |lease: &Lease| limits.attempts_max > 0 && lease.attempts > limits.attempts_max;
                let before = kept.len();
                for lease in within {
                    if is_void || is_over(lease) { done.push(*lease) } else { kept.push(*lease) }
                }
                if kept.len() > before {
                    room.use_up(batch.len());
                    batches.push(batch);
                }
            }
        }
        if !done.is_empty() || !left.is_empty() {
            let now = self.core.now_ms();
            let ((), saved) = self.change_view(&partition, held.place.cell.id, |view, _| {
                // No other caller can end a lease that was created just now.
                done.iter().for_each(|lease| _ = view.queue.ack(lease.offset, lease.lease, now));
                left.iter().for_each(|lease| view.queue.untake(lease));
            })?;
            drop(saved);
            self.drop_consumed(&held.place.topic, &partition, done.iter().map(|lease| lease.offset));
        }
        held.leases = kept;
        Ok((Acquired { batches, held: Some(held) }, done.len()))
    }

    /// Settles messages of one partition that were acquired under these leases: either all of them or, if a lease is no
    /// longer held or would become too long, none. Messages that the log no longer has are finished, whatever their
    /// settlement. Durable when the call returns.
    pub async fn settle(
        &self,
        from: &AcquireFrom,
        settlements: &[(Offset, u64, Settlement)],
        attempts_max: u32,
    ) -> Result<std::result::Result<(), LeaseError>> {
        let began_us = self.core.traces().now_us();
        let Place { cell, topic, partition } = self.place(&from.queue, from.partition).await?;
        let now = self.core.now_ms();
        let (settled, saved) = self.change_view(&partition, cell.id, |view, log| {
            let queue = &mut view.queue;
            let start = log.extent().start;
            queue.trim(start);
            let present = || settlements.iter().filter(|(offset, ..)| *offset >= start);
            let attempts = present().map(|(offset, lease, how)| match how {
                Settlement::Held(lease_ms) if !Queue::may_extend(*lease, now, *lease_ms) => Err(LeaseError::TooLong),
                _ => queue.held(*offset, *lease, now).ok_or(LeaseError::Expired),
            });
            let attempts = attempts.collect::<std::result::Result<Vec<u32>, LeaseError>>()?;
            for ((offset, lease, how), attempts) in present().zip(attempts) {
                let is_last = attempts_max > 0 && attempts >= attempts_max;
                match how {
                    Settlement::Back if !is_last => queue.nack(*offset, *lease, now, Some(0))?,
                    Settlement::Done | Settlement::Back => drop(queue.ack(*offset, *lease, now)?),
                    Settlement::Held(lease_ms) => queue.extend(*offset, *lease, now, *lease_ms)?,
                }
            }
            Ok(())
        })?;
        cell.returned.notify_waiters();
        if settled.is_ok() {
            let count = |is: fn(&Settlement) -> bool| settlements.iter().filter(|(.., how)| is(how)).count() as u64;
            let counts = &self.events;
            counts.acked.add(count(|how| *how == Settlement::Done));
            counts.returned.add(count(|how| *how == Settlement::Back));
        }
        if let Some(saved) = saved {
            saved.wait().await?;
        }
        self.drop_consumed(&topic, &partition, settlements.iter().map(|(offset, ..)| *offset));
        if let (Some(began_us), Ok(())) = (began_us, &settled) {
            self.trace_settled(&cell, &partition, settlements, began_us);
        }
        Ok(settled)
    }

    /// Returns messages to the queue whose receiver disconnected, and may never have seen them: those still held return
    /// as if they had not been delivered.
    pub async fn release_acquired(&self, from: &AcquireFrom, leases: &[(Offset, u64)]) -> Result<()> {
        let Place { cell, partition, .. } = self.place(&from.queue, from.partition).await?;
        let now = self.core.now_ms();
        let ((), saved) = self.change_view(&partition, cell.id, |view, _| {
            for (offset, lease) in leases {
                if let Some(attempts) = view.queue.held(*offset, *lease, now) {
                    view.queue.untake(&Lease { offset: *offset, lease: *lease, attempts, first_ms: 0 });
                }
            }
        })?;
        drop(saved);
        if let Some(began_us) = self.core.traces().now_us() {
            let back: Vec<_> = leases.iter().map(|(offset, lease)| (*offset, *lease, Settlement::Back)).collect();
            self.trace_settled(&cell, &partition, &back, began_us);
        }
        cell.returned.notify_waiters();
        Ok(())
    }

    /// Removes the leases that are no longer held.
    pub async fn held(&self, from: &AcquireFrom, leases: &mut Vec<(Offset, u64)>) -> Result<()> {
        let Place { cell, partition, .. } = self.place(&from.queue, from.partition).await?;
        let now = self.core.now_ms();
        partition.with_view(cell.id, |view, _| {
            leases.retain(|(offset, lease)| view.queue.held(*offset, *lease, now).is_some());
        })
    }

    /// Returns the position of a queue in each partition.
    pub async fn positions(&self, queue: &QueueName) -> Result<Vec<QueuePosition>> {
        let (cell, topic) = self.any_cell(queue.as_str()).await?;
        let mut positions = Vec::with_capacity(topic.partitions().len());
        for partition in topic.partitions() {
            self.look_through(&cell, partition).await?;
            positions.push(partition.with_view(cell.id, |view, log| {
                view.queue.trim(log.extent().start);
                QueuePosition { partition: partition.id, start: view.queue.floor(), undone: view.queue.undone() }
            })?);
        }
        Ok(positions)
    }

    /// Moves a queue to another offset in one partition. The move is durable when this returns.
    pub async fn seek_partition(&self, from: &AcquireFrom, to: Offset) -> Result<()> {
        let Place { cell, partition, .. } = self.place(&from.queue, from.partition).await?;
        let ((), saved) = self.change_view(&partition, cell.id, |view, log| {
            let extent = log.extent();
            view.seek(to.clamp(extent.start, extent.end));
        })?;
        self.look_through(&cell, &partition).await?;
        if let Some(saved) = saved {
            saved.wait().await?;
        }
        cell.returned.notify_waiters();
        Ok(())
    }
}

/// Remaining bytes of one answer.
struct Room {
    bytes: usize,
    /// `true` until the answer has a batch: the first one may exceed the remaining bytes.
    is_first: bool,
}

impl Room {
    fn is_full(&self) -> bool {
        self.bytes == 0 && !self.is_first
    }

    fn takes(&self, bytes: usize) -> bool {
        self.is_first || bytes <= self.bytes
    }

    fn use_up(&mut self, bytes: usize) {
        *self = Self { bytes: self.bytes.saturating_sub(bytes), is_first: false };
    }

    /// Prevents further batches in the answer.
    fn close(&mut self) {
        *self = Self { bytes: 0, is_first: false };
    }
}

/// Returns batches from an offset on, the end of the log for this reader, and which of the batches were aborted.
pub(super) async fn read(
    partition: &PartitionCell,
    from: Offset,
    bytes_max: usize,
    isolation: Isolation,
) -> Result<(Offset, Vec<RecordBatch>, AbortedIndex)> {
    let bytes_max = bytes_max.min(READ_BYTES_MAX);
    match isolation {
        Isolation::Uncommitted => {
            let (extent, batches) = partition.read(from, bytes_max).await?;
            Ok((extent.end, batches, AbortedIndex::default()))
        }
        Isolation::Committed => {
            let (extent, batches, aborted) = partition.read_committed(from, bytes_max).await?;
            Ok((extent.stable_end, batches, AbortedIndex::new(aborted)))
        }
    }
}
