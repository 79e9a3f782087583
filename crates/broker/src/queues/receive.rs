//! Delivery of messages to receivers: receive, acknowledge, extend the lease, return.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::limits::BATCH_BYTES_MAX;
use engine::queue::{
    Call, DELAY_MS_MAX, Entry, LEASE_TOTAL_MS_MAX, Lease, LeaseError, Queue, QueueDefinition, QueueId, QueueRecord,
};
use engine::{Error, ErrorKind, Offset, Record, RecordBatch, Result};
use tokio::time::Instant;

use super::definitions::is_saved;
use super::near::Bound;
use super::traced::Change;
use crate::clock::Clock;
use crate::commit::Commit;
use crate::fetch::FETCH_WAIT_MAX;
use crate::log::Log;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::topic::Topic;
use crate::traces::LeaseEnd;
use crate::view::{Delivered, Found, Origin, QueueCell, QueueView, Receipt, Received, Turn, carried_attempts};
use crate::wakes::Wakes;

/// Maximum number of messages that one call receives.
pub const RECEIVE_MAX: usize = 1000;
/// Bytes that a turn reads ahead from a file.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Number of messages that a receiver requests, and how long it waits for them.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub max: usize,
    /// Maximum bytes of the messages after the first, which is always included.
    pub bytes_max: usize,
    /// Duration of the lease; the queue's setting by default.
    pub lease_ms: Option<u64>,
    pub wait: Duration,
}

impl Default for Receive {
    fn default() -> Self {
        Self { max: 1, bytes_max: usize::MAX, lease_ms: None, wait: Duration::ZERO }
    }
}

/// Messages that a call has leased so far. If it is dropped, since the receiver disconnected, they return to the queue
/// as if they had not been delivered.
struct Answer<'a> {
    queues: &'a Queues,
    cell: &'a QueueCell,
    topic: &'a Topic,
    found: Vec<Received>,
    bytes: usize,
    bytes_max: usize,
}

impl Answer<'_> {
    fn is_full(&self, max: usize) -> bool {
        self.found.len() >= max || self.bytes >= self.bytes_max
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.found);
        left.sort_unstable_by_key(|message| (message.receipt.partition, message.receipt.offset));
        for of_partition in left.chunk_by(|a, b| a.receipt.partition == b.receipt.partition) {
            if let Ok(partition) = self.topic.partition(of_partition[0].receipt.partition) {
                let leases = of_partition.iter().map(Received::lease).collect();
                drop(Unread { queues: self.queues, cell: self.cell, partition: &partition, leases });
            }
        }
    }
}

/// Leases of messages that still have to be read. Unless they are taken out, they are reverted on drop.
struct Unread<'a> {
    queues: &'a Queues,
    cell: &'a QueueCell,
    partition: &'a Arc<PartitionCell>,
    leases: Vec<Lease>,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let back = |view: &mut QueueView, _: &crate::log::Log| {
            self.leases.iter().for_each(|lease| view.queue.untake(lease));
        };
        // A deleted partition has no leases to return.
        if let Err(error) = self.queues.change_view(self.partition, self.cell.id, back) {
            tracing::debug!(queue = %self.cell.definition().name, %error, "undelivered messages were not returned");
        }
        self.cell.wake();
    }
}

/// Answer for each message of a call, in the order of the call.
pub type Answers = Vec<std::result::Result<(), LeaseError>>;

impl Queues {
    /// Leases messages. If none is available, waits for the first, for at most the requested time.
    pub async fn receive(self: &Arc<Self>, queue: &str, receive: &Receive) -> Result<Vec<Received>> {
        check_most("lease_ms", receive.lease_ms, LEASE_TOTAL_MS_MAX)?;
        let bound = self.bound(queue).await?;
        if receive.wait.is_zero() {
            bound.cell.check_exists()?;
            let began_us = self.core.traces().now_us();
            let (found, _) = self.receive_now(&bound.cell, &bound.topic, receive).await?;
            self.note_received(&bound.cell, &found, receive, began_us);
            return Ok(found);
        }
        Box::pin(self.receive_waiting(&bound, receive)).await
    }

    async fn receive_waiting(self: &Arc<Self>, bound: &Bound, receive: &Receive) -> Result<Vec<Received>> {
        let Bound { cell, topic, .. } = bound;
        let deadline = Instant::now() + receive.wait.min(FETCH_WAIT_MAX);
        let mut waiting = Waiting::begin(cell);
        loop {
            let news = cell.news.notified();
            tokio::pin!(news);
            waiting.has_looked = false;
            news.as_mut().enable();
            cell.check_exists()?;
            // Every message for which a receiver was woken so far can be found from here on.
            cell.unseen_ms.store(0, Ordering::SeqCst);
            let began_us = self.core.traces().now_us();
            let outcome = self.receive_now(cell, topic, receive).await;
            // If the limit of messages in flight is reached, other receivers would find nothing either.
            waiting.has_looked = !matches!(&outcome, Err(error) if error.kind != ErrorKind::Busy);
            let (found, next_due_ms) = outcome?;
            if !found.is_empty() || Instant::now() >= deadline {
                drop(waiting);
                self.note_received(cell, &found, receive, began_us);
                return Ok(found);
            }
            wait(cell, news, deadline, next_due_ms, self.core.settings().clock).await;
        }
    }

    /// Reads messages again that a receiver holds; `None` if one of them no longer exists.
    pub async fn read_again(&self, queue: &str, delivered: &[Delivered]) -> Result<Option<Vec<Received>>> {
        let bound = self.bound(queue).await?;
        let Bound { cell, topic, .. } = &*bound;
        let mut found = Vec::with_capacity(delivered.len());
        for one in delivered {
            let partition = topic.partition(one.receipt.partition)?;
            let Some(record) = self.read_record(cell.id, &partition, one.receipt.offset).await? else {
                return Ok(None);
            };
            found.push(Origin { topic: topic.id, partition: partition.id }.received(one.lease(), record));
        }
        Ok(Some(found))
    }

    /// Returns messages to the queue as if they had not been received, for a caller that had no room to deliver them.
    pub async fn untake(&self, queue: &str, received: Vec<Received>) -> Result<()> {
        let bound = self.bound(queue).await?;
        if let Some(began_us) = self.core.traces().now_us() {
            let back = received.iter().map(|received| (received.receipt, Change::Ends(LeaseEnd::Returned)));
            self.trace_changes(&bound.cell, back, &vec![Ok(()); received.len()], began_us);
        }
        drop(Answer { queues: self, cell: &bound.cell, topic: &bound.topic, found: received, bytes: 0, bytes_max: 0 });
        Ok(())
    }

    fn note_received(&self, cell: &QueueCell, found: &[Received], receive: &Receive, began_us: Option<u64>) {
        if !found.is_empty() {
            if let Some(began_us) = began_us {
                self.trace_received(cell, found, receive.lease_ms, began_us);
            }
            self.events.received.add(found.len() as u64);
            // There may be more messages: a receiver that was not woken for them is woken now.
            cell.wake();
        }
    }

    /// Returns the messages that are available now, and when more may become available without an append.
    async fn receive_now(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        topic: &Arc<Topic>,
        receive: &Receive,
    ) -> Result<(Vec<Received>, Option<u64>)> {
        let max = receive.max.clamp(1, RECEIVE_MAX);
        let partitions = topic.partitions();
        let first = match partitions.len() {
            1 => 0,
            _ => cell.turn.fetch_add(1, Ordering::Relaxed) as usize,
        };
        let found = Vec::new();
        let bytes_max = receive.bytes_max;
        let mut answer = Answer { queues: self, cell, topic, found, bytes: 0, bytes_max };
        let mut next_due_ms = None;
        for i in 0..partitions.len() {
            let partition = &partitions[(first + i) % partitions.len()];
            let origin = Origin { topic: topic.id, partition: partition.id };
            let mut call = Call::default();
            loop {
                let now = self.core.now_ms();
                let left = max - answer.found.len();
                let mut due = None;
                let mut has_unseen = false;
                let mut dead = Vec::new();
                let changed = self.change_view(partition, cell.id, |view, log| {
                    let mut turn = view.take(log, origin, &mut call, now, left, receive.lease_ms);
                    has_unseen = view.has_unseen();
                    due = view.queue.next_due_ms();
                    dead = std::mem::take(&mut turn.dead);
                    turn
                });
                // There may be other messages after the dead ones. The dead ones have to be moved here, even if their
                // change could not be persisted: no other task moves them.
                let has_dead = !dead.is_empty();
                let buried = self.bury(cell, topic, partition, dead);
                let (turn, saved) = changed?;
                drop(saved);
                next_due_ms = [next_due_ms, due].into_iter().flatten().min();
                let mut is_over = turn.given.is_empty() && turn.unread.is_empty() && !has_dead;
                if turn.is_full && is_over && answer.found.is_empty() && partitions.len() == 1 {
                    return Err(in_flight_full(&cell.definition()));
                }
                let cold = turn.cold;
                let is_cut = turn.is_cut;
                let given = if turn.unread.is_empty() {
                    turn.given
                } else {
                    Box::pin(self.read_given(cell, origin, partition, turn)).await?
                };
                let is_idle = given.is_empty();
                self.fill(cell, partition, given, &mut answer);
                // A client that sees that a message is no longer here must find it among the dead letters.
                buried.over().await;
                if answer.is_full(max) {
                    break;
                }
                if let Some(offset) = cold {
                    Box::pin(self.read_ahead(cell.id, partition, offset)).await?;
                } else if is_over && has_unseen {
                    Box::pin(self.look_through(cell, partition)).await?;
                } else {
                    is_over &= !is_cut;
                    if is_over {
                        break;
                    }
                    if is_idle {
                        // Many records that are no messages of this queue: let other tasks run in between.
                        tokio::task::yield_now().await;
                    }
                }
            }
            if answer.is_full(max) {
                break;
            }
        }
        Ok((std::mem::take(&mut answer.found), next_due_ms))
    }

    /// Returns the records of leased messages, including those that have to be read from files.
    async fn read_given(
        &self,
        cell: &QueueCell,
        origin: Origin,
        partition: &Arc<PartitionCell>,
        turn: Turn,
    ) -> Result<Vec<Received>> {
        let Turn { mut given, unread, .. } = turn;
        let Some(first) = unread.iter().map(|lease| lease.offset).min() else {
            return Ok(given);
        };
        let leases = given.iter().map(Received::lease).chain(unread.iter().copied()).collect();
        let mut held = Unread { queues: self, cell, partition, leases };
        // The next turn begins at the end of this one.
        self.read_ahead(cell.id, partition, first).await?;
        for lease in &unread {
            match self.read_record(cell.id, partition, lease.offset).await? {
                Some(record) => {
                    let mut lease = *lease;
                    if carried_attempts(&record).is_some() {
                        drop(self.change_view(partition, cell.id, |view, _| view.carry(&mut lease, &record))?);
                    }
                    given.push(origin.received(lease, record));
                }
                None => drop(self.end_leases(cell, partition, &[(lease.offset, lease.lease)], self.core.now_ms())?),
            }
        }
        held.leases.clear();
        // In the order of delivery, which differs from the order of the log if groups have turns.
        given.sort_unstable_by_key(|given| given.receipt.lease);
        Ok(given)
    }

    /// Adds messages to an answer until it is full. The others return to the queue as if they had not been delivered.
    fn fill(
        &self,
        cell: &QueueCell,
        partition: &Arc<PartitionCell>,
        mut given: Vec<Received>,
        answer: &mut Answer<'_>,
    ) {
        let oldest_ms = if cell.owns_topic {
            0
        } else {
            self.core.now_ms().saturating_sub(cell.definition().settings.retention_ms)
        };
        let mut back = Vec::new();
        let mut expired = Vec::new();
        let mut has_any = !answer.found.is_empty();
        given.retain(|received| {
            if (received.message.record().timestamp_ms.max(0) as u64) < oldest_ms {
                expired.push((received.receipt.offset, received.receipt.lease));
                return false;
            }
            let len = received.message.bytes();
            if has_any && answer.bytes + len > answer.bytes_max {
                answer.bytes = answer.bytes_max;
                back.push(received.lease());
                return false;
            }
            answer.bytes += len;
            has_any = true;
            true
        });
        if answer.found.is_empty() {
            answer.found = given
        } else {
            answer.found.append(&mut given)
        }
        if !back.is_empty() || !expired.is_empty() {
            let now = self.core.now_ms();
            // A partition that was deleted has nothing to return.
            let changed = self.change_view(partition, cell.id, |view, _| {
                back.iter().for_each(|lease| view.queue.untake(lease));
                for (offset, lease) in expired {
                    // No other caller can end a lease that was created just now.
                    view.queue.ack(offset, lease, now).unwrap_or_default();
                }
            });
            if let Err(error) = changed {
                tracing::debug!(queue = %cell.definition().name, %error, "undelivered messages were not returned");
            }
        }
    }

    /// Returns the records of messages that were delivered before, in the order of their offsets.
    pub(super) async fn read_records(
        &self,
        id: QueueId,
        partition: &Arc<PartitionCell>,
        offsets: impl Iterator<Item = Offset>,
    ) -> Vec<Result<Option<Record>>> {
        let offsets: Vec<Offset> = offsets.collect();
        let find = |view: &mut QueueView, log: &Log| -> Vec<Found> {
            offsets.iter().map(|offset| view.find(log, *offset)).collect()
        };
        let found = match partition.with_view(id, find) {
            Ok(found) => found,
            Err(error) => return offsets.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut records = Vec::with_capacity(found.len());
        for (offset, found) in offsets.into_iter().zip(found) {
            records.push(match found {
                Found::Record(record) => Ok(Some(record)),
                Found::Absent => Ok(None),
                Found::Cold => self.read_record(id, partition, offset).await,
            });
        }
        records
    }

    /// Returns the record of a message that was delivered before, from memory or from a file.
    pub(super) async fn read_record(
        &self,
        id: QueueId,
        partition: &Arc<PartitionCell>,
        offset: Offset,
    ) -> Result<Option<Record>> {
        let found = partition.with_view(id, |view, log| view.find(log, offset))?;
        match found {
            Found::Record(record) => Ok(Some(record)),
            Found::Absent => Ok(None),
            Found::Cold => {
                let (_, batches) = match partition.read(offset, 1).await {
                    Err(error) if error.kind == ErrorKind::OutOfRange => return Ok(None),
                    read => read?,
                };
                let batch = batches.into_iter().find(|batch| batch.next_offset() > offset);
                // A batch that cannot be decoded, as a publisher may send it, holds no messages.
                Ok(batch.and_then(|batch| batch.records_from(offset).ok()).and_then(|mut records| records.find(offset)))
            }
        }
    }

    async fn read_ahead(&self, id: QueueId, partition: &Arc<PartitionCell>, offset: Offset) -> Result<()> {
        let bytes = READ_AHEAD_BYTES.min(BATCH_BYTES_MAX);
        match partition.read(offset, bytes).await {
            Ok((extent, batches)) => {
                let until = batches.last().map_or(extent.end, RecordBatch::next_offset);
                partition.with_view(id, |view, _| view.set_window(offset, batches, until))
            }
            // Retention removed it in the meantime.
            Err(error) if error.kind == ErrorKind::OutOfRange => {
                partition.with_view(id, |view, log| view.queue.trim(log.extent().start))
            }
            Err(error) => Err(error),
        }
    }

    /// Acknowledges messages. Returns when the acknowledgement is durable.
    pub async fn ack(self: &Arc<Self>, queue: &str, receipts: &[Receipt]) -> Result<Answers> {
        let now = self.core.now_ms();
        let answers = self
            .change_leases(
                queue,
                receipts,
                now,
                |_| Change::Ends(LeaseEnd::Acked),
                |queue, receipt| queue.ack(receipt.offset, receipt.lease, now).map(drop),
            )
            .await?;
        self.events.acked.add(answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        Ok(answers)
    }

    /// Changes the remaining time of leases, in ms from now; 0 ends a lease immediately.
    pub async fn extend(self: &Arc<Self>, queue: &str, leases: &[(Receipt, u64)]) -> Result<Answers> {
        let now = self.core.now_ms();
        let change = |(_, lease_ms): &(Receipt, u64)| Change::Extends(*lease_ms);
        self.change_leases(queue, leases, now, change, |queue, (receipt, lease_ms)| {
            queue.extend(receipt.offset, receipt.lease, now, *lease_ms)
        })
        .await
    }

    /// Extends leases, and renews expired ones whose messages were not delivered since, even if the queue does not
    /// allow that in [`extend`](Self::extend).
    pub async fn extend_expired(self: &Arc<Self>, queue: &str, leases: &[(Receipt, u64)]) -> Result<Answers> {
        let now = self.core.now_ms();
        let change = |(_, lease_ms): &(Receipt, u64)| Change::Extends(*lease_ms);
        let answers = self
            .change_leases(queue, leases, now, change, |queue, (receipt, lease_ms)| {
                queue.renew(receipt.offset, receipt.lease, now, *lease_ms)
            })
            .await?;
        let returned = leases.iter().zip(&answers).filter(|((_, lease_ms), answer)| *lease_ms == 0 && answer.is_ok());
        self.events.returned.add(returned.count() as u64);
        Ok(answers)
    }

    /// Returns messages to the queue, to be redelivered after a delay: the queue's setting by default.
    pub async fn nack(self: &Arc<Self>, queue: &str, leases: &[(Receipt, Option<u64>)]) -> Result<Answers> {
        leases.iter().try_for_each(|(_, delay_ms)| check_most("delay_ms", *delay_ms, DELAY_MS_MAX))?;
        let now = self.core.now_ms();
        let answers = self
            .change_leases(
                queue,
                leases,
                now,
                |_| Change::Ends(LeaseEnd::Returned),
                |queue, (receipt, delay_ms)| queue.nack(receipt.offset, receipt.lease, now, *delay_ms),
            )
            .await?;
        self.events.returned.add(answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        Ok(answers)
    }

    /// Releases messages of a receiver that disconnected: they return to the queue immediately, unless another receiver
    /// leased them in the meantime. Returns their number.
    pub async fn release(self: &Arc<Self>, queue: &str, receipts: &[Receipt]) -> Result<usize> {
        let now = self.core.now_ms();
        let released = |is_released| if is_released { Ok(()) } else { Err(LeaseError::NotLeased) };
        let answers = self
            .change_leases(
                queue,
                receipts,
                now,
                |_| Change::Ends(LeaseEnd::Returned),
                |queue, receipt| released(queue.release(receipt.offset, receipt.lease, now)),
            )
            .await?;
        let count = answers.iter().filter(|answer| answer.is_ok()).count();
        self.events.returned.add(count as u64);
        Ok(count)
    }

    /// Applies a change to leases, partition by partition, and waits until it is durable. Returned messages without an
    /// attempt left are moved to the dead letters. `traced` returns what the change means for the span of the lease.
    async fn change_leases<L: Leased>(
        self: &Arc<Self>,
        queue: &str,
        leases: &[L],
        now_ms: u64,
        traced: impl Fn(&L) -> Change,
        mut change: impl FnMut(&mut Queue, &L) -> std::result::Result<(), LeaseError>,
    ) -> Result<Answers> {
        let began_us = self.core.traces().now_us();
        let bound = self.bound(queue).await?;
        let cell = &bound.cell;
        let topic = &bound.topic;
        let mut answers = vec![Err(LeaseError::Gone); leases.len()];
        let mut saved_of = Vec::new();
        let mut buried = Vec::new();
        let places = by_partition(leases);
        let receipt = |place: &usize| leases[*place].receipt();
        for of_partition in places.chunk_by(|a, b| receipt(a).partition == receipt(b).partition) {
            // A receipt of a partition that does not exist belongs to a topic that was deleted.
            let Some(partition) = topic.partitions().get(receipt(&of_partition[0]).partition as usize) else {
                continue;
            };
            let mut dead = Vec::new();
            let work = |view: &mut QueueView, _: &crate::log::Log| {
                for place in of_partition {
                    answers[*place] = change(&mut view.queue, &leases[*place]);
                    dead.extend(view.queue.take_dead(receipt(place).offset, now_ms));
                }
            };
            let done = of_partition.iter().map(|place| receipt(place).offset);
            let changed = if is_saved(topic) {
                // If nothing changed, the state may have been changed just now and may not be durable yet.
                self.change_view(partition, cell.id, work).and_then(|((), saved)| match saved {
                    Some(saved) => Ok(Some(saved)),
                    None => self.settled_records(cell, partition.id).map(Some),
                })
            } else {
                self.change_unsaved(topic, partition, cell.id, work, done.clone()).map(|()| None)
            };
            // No other task moves them, even if the change could not be persisted.
            if !dead.is_empty() {
                buried.push(self.bury(cell, topic, partition, dead));
            }
            if let Some(saved) = changed? {
                saved_of.push((partition, done, saved));
            }
        }
        // Before waiting: a caller that does not wait for the answer does not affect the change.
        cell.wake_for_change();
        for (partition, done, saved) in saved_of {
            saved.wait().await?;
            self.drop_consumed(topic, partition, done);
        }
        for one in buried {
            one.over().await;
        }
        if let Some(began_us) = began_us {
            let changes = leases.iter().map(|lease| (*lease.receipt(), traced(lease)));
            self.trace_changes(cell, changes, &answers, began_us);
        }
        Ok(answers)
    }

    /// Changes a view that is not persisted; afterwards messages may be finished and removed.
    fn change_unsaved(
        &self,
        topic: &Topic,
        partition: &PartitionCell,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &crate::log::Log),
        done: impl IntoIterator<Item = Offset>,
    ) -> Result<()> {
        if !topic.settings.drop_consumed {
            return partition.with_view(id, work);
        }
        let ((), freed) = partition.with_view_of_consumed(id, work, done)?;
        self.core.log_budget().release(freed);
        Ok(())
    }

    /// Ends leases of the broker itself: their messages are acknowledged.
    pub(super) fn end_leases(
        &self,
        cell: &QueueCell,
        partition: &Arc<PartitionCell>,
        leases: &[(Offset, u64)],
        now_ms: u64,
    ) -> Result<Option<Commit>> {
        let ((), saved) = self.change_view(partition, cell.id, |view, _| {
            for (offset, lease) in leases {
                // A lease that was purged in the meantime has ended as well.
                view.queue.ack(*offset, *lease, now_ms).unwrap_or_default();
            }
        })?;
        Ok(saved)
    }

    /// Changes a view and persists the change, before any other change of the view.
    pub(super) fn change_view<T>(
        &self,
        partition: &Arc<PartitionCell>,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &crate::log::Log) -> T,
    ) -> Result<(T, Option<Commit>)> {
        partition.with_view(id, |view, log| {
            let done = work(view, log);
            let changes = view.queue.take_changes();
            let next = view.queue.next();
            if !view.is_saved || (changes.is_empty() && view.saved_next == Some(next)) {
                return Ok((done, None));
            }
            // A crash may leave only the first part. Entries are valid whatever cursor follows them; a cursor that
            // moves back must precede the entries that were forgotten for it.
            let is_back = view.saved_next.is_some_and(|saved| next < saved);
            let cursor = || view.cursor_record(partition.id);
            let entry = |(offset, entry): &(Offset, Option<Entry>)| QueueRecord::Entry {
                queue: id,
                partition: partition.id,
                offset: *offset,
                entry: *entry,
            };
            let before = is_back.then(cursor);
            let after = (!is_back).then(cursor);
            let records = before.into_iter().chain(changes.iter().map(entry)).chain(after);
            // Only consumers wait for the topic of queues, and those may be woken later.
            match self.append_records(&view.cell, partition.id, records, &mut Wakes::default()) {
                Ok(saved) => {
                    view.saved_next = Some(next);
                    Ok((done, Some(saved)))
                }
                Err(error) => {
                    view.queue.keep_changes(changes.iter().map(|(offset, _)| *offset));
                    Err(error)
                }
            }
        })?
    }
}

/// An element of a call that concerns a lease.
trait Leased {
    fn receipt(&self) -> &Receipt;
}

impl Leased for Receipt {
    fn receipt(&self) -> &Receipt {
        self
    }
}

impl<T> Leased for (Receipt, T) {
    fn receipt(&self) -> &Receipt {
        &self.0
    }
}

/// Returns the indices of the leases of a call, grouped by partition.
fn by_partition(leases: &[impl Leased]) -> Cow<'static, [usize]> {
    match leases {
        [_] => Cow::Borrowed(&[0]),
        _ => {
            let mut places: Vec<usize> = (0..leases.len()).collect();
            places.sort_by_key(|place| leases[*place].receipt().partition);
            Cow::Owned(places)
        }
    }
}

fn check_most(what: &str, given: Option<u64>, most: u64) -> Result<()> {
    match given.filter(|given| *given > most) {
        Some(given) => Err(Error::invalid(format!("{what} is at most {most}, not {given}"))),
        None => Ok(()),
    }
}

fn in_flight_full(definition: &QueueDefinition) -> Error {
    Error::busy(format!(
        "queue {} has {} messages in flight, which is the limit: acknowledge some, or raise in_flight_max",
        definition.name, definition.settings.in_flight_max
    ))
}

/// Counts one waiting receiver until it is dropped.
struct Waiting<'a> {
    cell: &'a QueueCell,
    /// `true` if the receiver has checked the queue since it was woken, if it was.
    has_looked: bool,
}

impl<'a> Waiting<'a> {
    fn begin(cell: &'a QueueCell) -> Self {
        cell.waiting.fetch_add(1, Ordering::SeqCst);
        Self { cell, has_looked: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.cell.waiting.fetch_sub(1, Ordering::SeqCst);
        // The wake-up is passed on to another receiver: there may be a message that this one did not check for, or the
        // time has to be kept. Only a receiver that stops waiting passes it on: if receivers that check and wait again
        // did so, each would wake the next forever.
        if !self.has_looked || !self.cell.has_timekeeper.load(Ordering::SeqCst) {
            self.cell.wake();
        }
    }
}

/// The receiver that wakes up when a lease or a delay ends, for all waiting receivers.
struct Timekeeper<'a>(&'a QueueCell);

impl<'a> Timekeeper<'a> {
    fn become_one(cell: &'a QueueCell, due_ms: u64) -> Option<Self> {
        let is_first = cell.has_timekeeper.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_first {
            cell.keeper_due_ms.store(due_ms, Ordering::SeqCst);
        } else if due_ms < cell.keeper_due_ms.load(Ordering::SeqCst) {
            // The timekeeper checked before this time was known.
            cell.earlier.notify_one();
        }
        is_first.then(|| Self(cell))
    }
}

impl Drop for Timekeeper<'_> {
    fn drop(&mut self) {
        self.0.keeper_due_ms.store(u64::MAX, Ordering::SeqCst);
        self.0.has_timekeeper.store(false, Ordering::SeqCst);
    }
}

/// Returns when there may be a message, or at the deadline.
async fn wait(
    cell: &QueueCell,
    news: std::pin::Pin<&mut tokio::sync::futures::Notified<'_>>,
    deadline: Instant,
    next_due_ms: Option<u64>,
    clock: Clock,
) {
    let Some(_keeper) = Timekeeper::become_one(cell, next_due_ms.unwrap_or(u64::MAX)) else {
        drop(tokio::time::timeout_at(deadline, news).await);
        return;
    };
    let due = next_due_ms.map(|due_ms| Instant::now() + Duration::from_millis(due_ms.saturating_sub(clock.now_ms())));
    let until = due.map_or(deadline, |due| due.min(deadline));
    tokio::select! {
        () = news => {}
        () = cell.earlier.notified() => {}
        () = tokio::time::sleep_until(until) => {}
    }
}
