//! A message on its way to a receiver and back: received, acknowledged, held longer, returned.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::limits::BATCH_BYTES_MAX;
use engine::queue::{
    Call, DELAY_MS_MAX, Entry, LEASE_TOTAL_MS_MAX, Lease, LeaseError, Message, MessageId, Queue, QueueDefinition,
    QueueId, QueueRecord, header,
};
use engine::{Error, ErrorKind, Offset, PartitionId, Record, RecordBatch, Result, TopicId};
use tokio::time::Instant;

use super::definitions::is_saved;
use super::near::Bound;
use super::view::{Found, Turn, carried_attempts};
use super::{QueueCell, QueueView};
use crate::broker::Broker;
use crate::fetch::FETCH_WAIT_MAX;
use crate::internal::Appended;
use crate::partition::PartitionCell;
use crate::publish::Wakes;
use crate::timers::now_ms;
use crate::topics::Topic;

/// Messages that one call receives at most.
pub const RECEIVE_MAX: usize = 1000;
/// Bytes that a turn reads ahead of a file.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// How much a receiver wants, and how long it waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub max: usize,
    /// Beyond the first message.
    pub bytes_max: usize,
    /// How long it has the messages; as the queue is set where it does not say.
    pub lease_ms: Option<u64>,
    pub wait: Duration,
}

impl Default for Receive {
    fn default() -> Self {
        Self { max: 1, bytes_max: usize::MAX, lease_ms: None, wait: Duration::ZERO }
    }
}

/// What a receiver answers with: the message, and under which lease it had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub partition: PartitionId,
    pub offset: Offset,
    pub lease: u64,
}

/// A message that a receiver has now.
#[derive(Clone, Debug)]
pub struct Received {
    pub receipt: Receipt,
    pub id: MessageId,
    pub message: Message,
    pub sent_ms: u64,
    /// How often it was given out, this time included.
    pub attempts: u32,
    pub first_received_ms: u64,
}

/// What a receiver gets, so far. What it does not get after all, because it went away, is as if it never had.
struct Answer<'a> {
    broker: &'a Broker,
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
                drop(Unread { broker: self.broker, cell: self.cell, partition: &partition, leases });
            }
        }
    }
}

/// Leases of messages that are still to be read. They end as if they had not been, if nobody takes them out.
struct Unread<'a> {
    broker: &'a Broker,
    cell: &'a QueueCell,
    partition: &'a Arc<PartitionCell>,
    leases: Vec<Lease>,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let back = |view: &mut QueueView, _: &mut crate::log::Log| {
            self.leases.iter().for_each(|lease| view.queue.untake(lease));
        };
        // Of a partition that is gone there is nothing to give back.
        if let Err(error) = self.broker.change_view(self.partition, self.cell.id, back) {
            tracing::debug!(queue = %self.cell.definition().name, %error, "undelivered messages were not returned");
        }
        self.cell.wake();
    }
}

/// An answer for each message that a call is about, in its order.
pub type Answers = Vec<std::result::Result<(), LeaseError>>;

impl Broker {
    /// Leases messages. Where there are none it waits for the first, as long as it may.
    pub async fn receive(self: &Arc<Self>, queue: &str, receive: &Receive) -> Result<Vec<Received>> {
        check_most("lease_ms", receive.lease_ms, LEASE_TOTAL_MS_MAX)?;
        let bound = self.bound_queue(queue).await?;
        if receive.wait.is_zero() {
            bound.cell.check_there()?;
            let (found, _) = self.receive_now(&bound.cell, &bound.topic, receive).await?;
            self.note_received(&bound.cell, &found);
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
            cell.check_there()?;
            // All that anybody was woken for so far is there to be seen.
            cell.unseen_ms.store(0, Ordering::SeqCst);
            let outcome = self.receive_now(cell, topic, receive).await;
            // Where as many are in flight as may be, others would find nothing either.
            waiting.has_looked = !matches!(&outcome, Err(error) if error.kind != ErrorKind::Busy);
            let (found, next_due_ms) = outcome?;
            if !found.is_empty() || Instant::now() >= deadline {
                drop(waiting);
                self.note_received(cell, &found);
                return Ok(found);
            }
            wait(cell, news, deadline, next_due_ms).await;
        }
    }

    /// Messages go back as if they had not been received: there was no room to show them.
    pub async fn untake(&self, queue: &str, received: Vec<Received>) -> Result<()> {
        let bound = self.bound_queue(queue).await?;
        drop(Answer { broker: self, cell: &bound.cell, topic: &bound.topic, found: received, bytes: 0, bytes_max: 0 });
        Ok(())
    }

    fn note_received(&self, cell: &QueueCell, found: &[Received]) {
        if !found.is_empty() {
            self.queues_there().counts.received.add(found.len() as u64);
            // There may be more: whoever was not woken for this is, for that.
            cell.wake();
        }
    }

    /// What there is now, and when there may be more without an append.
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
        let (found, bytes_max) = (Vec::new(), receive.bytes_max);
        let mut answer = Answer { broker: self, cell, topic, found, bytes: 0, bytes_max };
        let mut next_due_ms = None;
        for i in 0..partitions.len() {
            let partition = &partitions[(first + i) % partitions.len()];
            let origin = Origin { topic: topic.id, partition: partition.id };
            let mut call = Call::default();
            loop {
                let now = now_ms();
                let left = max - answer.found.len();
                let (mut due, mut has_unseen, mut dead) = (None, false, Vec::new());
                let changed = self.change_view(partition, cell.id, |view, log| {
                    let mut turn = view.take(log, origin, &mut call, now, left, receive.lease_ms);
                    has_unseen = view.has_unseen();
                    due = view.queue.next_due_ms();
                    dead = std::mem::take(&mut turn.dead);
                    turn
                });
                // With the dead out of the way there may be others. Nobody else moves them, whether or not it could be
                // written down.
                let has_dead = !dead.is_empty();
                let buried = self.bury(cell, topic, partition, dead);
                let (turn, saved) = changed?;
                drop(saved);
                next_due_ms = [next_due_ms, due].into_iter().flatten().min();
                let mut is_over = turn.given.is_empty() && turn.unread.is_empty() && !has_dead;
                if turn.is_full && is_over && answer.found.is_empty() && partitions.len() == 1 {
                    return Err(in_flight_full(&cell.definition()));
                }
                let (cold, is_cut) = (turn.cold, turn.is_cut);
                let given = match turn.unread.is_empty() {
                    true => turn.given,
                    false => Box::pin(self.read_given(cell, origin, partition, turn)).await?,
                };
                let is_idle = given.is_empty();
                self.fill(cell, partition, given, &mut answer);
                // Who is told that a message is not here any more finds it among the dead letters.
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
                        // Much that is for nobody: others are let in between.
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

    /// The records of what was given out, those of files too.
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
        let mut held = Unread { broker: self, cell, partition, leases };
        // The next turn begins where this one ends.
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
                None => drop(self.end_leases(cell, partition, &[(lease.offset, lease.lease)], now_ms())?),
            }
        }
        held.leases.clear();
        // In the order in which they were given out, which is not that of the log where groups have their turns.
        given.sort_unstable_by_key(|given| given.receipt.lease);
        Ok(given)
    }

    /// Adds messages to an answer, as many as it has room for. The others go back unseen.
    fn fill(
        &self,
        cell: &QueueCell,
        partition: &Arc<PartitionCell>,
        mut given: Vec<Received>,
        answer: &mut Answer<'_>,
    ) {
        let oldest_ms = match cell.owns_topic {
            true => 0,
            false => now_ms().saturating_sub(cell.definition().settings.retention_ms),
        };
        let (mut back, mut expired) = (Vec::new(), Vec::new());
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
        match answer.found.is_empty() {
            true => answer.found = given,
            false => answer.found.append(&mut given),
        }
        if !back.is_empty() || !expired.is_empty() {
            let now = now_ms();
            // Of a partition that is gone there is nothing to give back.
            let changed = self.change_view(partition, cell.id, |view, _| {
                back.iter().for_each(|lease| view.queue.untake(lease));
                for (offset, lease) in expired {
                    // Nobody else can end a lease that was given out just now.
                    view.queue.ack(offset, lease, now).unwrap_or_default();
                }
            });
            if let Err(error) = changed {
                tracing::debug!(queue = %cell.definition().name, %error, "undelivered messages were not returned");
            }
        }
    }

    /// A message that was given out before, wherever it is.
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
                // One that nobody can read, as a publisher may send it, holds no messages.
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
            // Retention took it meanwhile.
            Err(error) if error.kind == ErrorKind::OutOfRange => {
                partition.with_view(id, |view, log| view.queue.trim(log.extent().start))
            }
            Err(error) => Err(error),
        }
    }

    /// Messages are done with. It lasts when this is over.
    pub async fn ack(self: &Arc<Self>, queue: &str, receipts: &[Receipt]) -> Result<Answers> {
        let now = now_ms();
        let answers = self
            .change_leases(queue, receipts, now, |queue, receipt| {
                queue.ack(receipt.offset, receipt.lease, now).map(drop)
            })
            .await?;
        self.queues_there().counts.acked.add(answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        Ok(answers)
    }

    /// Leases end so long from now; at once where that is 0.
    pub async fn extend(self: &Arc<Self>, queue: &str, leases: &[(Receipt, u64)]) -> Result<Answers> {
        let now = now_ms();
        self.change_leases(queue, leases, now, |queue, (receipt, lease_ms)| {
            queue.extend(receipt.offset, receipt.lease, now, *lease_ms)
        })
        .await
    }

    /// The same, and a lease that has expired runs again if nobody was given its message since, whatever the queue asks
    /// of leases.
    pub async fn extend_expired(self: &Arc<Self>, queue: &str, leases: &[(Receipt, u64)]) -> Result<Answers> {
        let now = now_ms();
        let answers = self
            .change_leases(queue, leases, now, |queue, (receipt, lease_ms)| {
                queue.renew(receipt.offset, receipt.lease, now, *lease_ms)
            })
            .await?;
        let returned = leases.iter().zip(&answers).filter(|((_, lease_ms), answer)| *lease_ms == 0 && answer.is_ok());
        self.queues_there().counts.returned.add(returned.count() as u64);
        Ok(answers)
    }

    /// Messages go back to the queue, for others after a delay: as the queue is set where none is named.
    pub async fn nack(self: &Arc<Self>, queue: &str, leases: &[(Receipt, Option<u64>)]) -> Result<Answers> {
        leases.iter().try_for_each(|(_, delay_ms)| check_most("delay_ms", *delay_ms, DELAY_MS_MAX))?;
        let now = now_ms();
        let answers = self
            .change_leases(queue, leases, now, |queue, (receipt, delay_ms)| {
                queue.nack(receipt.offset, receipt.lease, now, *delay_ms)
            })
            .await?;
        self.queues_there().counts.returned.add(answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        Ok(answers)
    }

    /// Whoever had these messages is gone: what nobody else has meanwhile goes back at once. Returns how many did.
    pub async fn release(self: &Arc<Self>, queue: &str, receipts: &[Receipt]) -> Result<usize> {
        let now = now_ms();
        let released = |is_released| if is_released { Ok(()) } else { Err(LeaseError::NotLeased) };
        let answers = self
            .change_leases(queue, receipts, now, |queue, receipt| {
                released(queue.release(receipt.offset, receipt.lease, now))
            })
            .await?;
        let count = answers.iter().filter(|answer| answer.is_ok()).count();
        self.queues_there().counts.returned.add(count as u64);
        Ok(count)
    }

    /// Does something to leases, those of one partition together, and waits until it lasts. What came back and has no
    /// attempt left goes to the dead letters.
    async fn change_leases<L: Leased>(
        self: &Arc<Self>,
        queue: &str,
        leases: &[L],
        now_ms: u64,
        mut change: impl FnMut(&mut Queue, &L) -> std::result::Result<(), LeaseError>,
    ) -> Result<Answers> {
        let bound = self.bound_queue(queue).await?;
        let (cell, topic) = (&bound.cell, &bound.topic);
        let mut answers = vec![Err(LeaseError::Gone); leases.len()];
        let (mut saved_of, mut buried) = (Vec::new(), Vec::new());
        let places = by_partition(leases);
        let receipt = |place: &usize| leases[*place].receipt();
        for of_partition in places.chunk_by(|a, b| receipt(a).partition == receipt(b).partition) {
            // A receipt of a partition that is not there is of a topic that was deleted.
            let Some(partition) = topic.partitions().get(receipt(&of_partition[0]).partition as usize) else {
                continue;
            };
            let mut dead = Vec::new();
            let work = |view: &mut QueueView, _: &mut crate::log::Log| {
                for place in of_partition {
                    answers[*place] = change(&mut view.queue, &leases[*place]);
                    dead.extend(view.queue.take_dead(receipt(place).offset, now_ms));
                }
            };
            let done = of_partition.iter().map(|place| receipt(place).offset);
            let changed = match is_saved(topic) {
                false => self.change_unsaved(topic, partition, cell.id, work, done.clone()).map(|()| None),
                // What is so already may have become so just now.
                true => self.change_view(partition, cell.id, work).and_then(|((), saved)| match saved {
                    Some(saved) => Ok(Some(saved)),
                    None => self.settled_queue_records(cell.id, partition.id).map(Some),
                }),
            };
            // Nobody else moves them, whether or not it could be written down.
            buried.push(self.bury(cell, topic, partition, dead));
            if let Some(saved) = changed? {
                saved_of.push((partition, done, saved));
            }
        }
        // Before it is waited for: whoever does not wait for the answer changes nothing about it.
        cell.wake_for_change();
        for (partition, done, saved) in saved_of {
            saved.lasts().await?;
            self.drop_consumed(topic, partition, done);
        }
        for one in buried {
            one.over().await;
        }
        Ok(answers)
    }

    /// Does something to a view of which nothing is written down, after which messages may be done with.
    fn change_unsaved(
        &self,
        topic: &Topic,
        partition: &PartitionCell,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &mut crate::log::Log),
        done: impl IntoIterator<Item = Offset>,
    ) -> Result<()> {
        if !topic.settings.drop_consumed {
            return partition.with_view(id, work);
        }
        let ((), freed) = partition.with_view_of_consumed(id, work, done)?;
        self.log_budget().release(freed);
        Ok(())
    }

    /// The broker's own leases end: their messages are done with.
    pub(super) fn end_leases(
        &self,
        cell: &QueueCell,
        partition: &Arc<PartitionCell>,
        leases: &[(Offset, u64)],
        now_ms: u64,
    ) -> Result<Option<Appended>> {
        let ((), saved) = self.change_view(partition, cell.id, |view, _| {
            for (offset, lease) in leases {
                // A lease that was purged meanwhile has ended as well.
                view.queue.ack(*offset, *lease, now_ms).unwrap_or_default();
            }
        })?;
        Ok(saved)
    }

    /// Does something to a view, and writes down what it changed, before anybody else does something to it.
    pub(super) fn change_view<T>(
        &self,
        partition: &Arc<PartitionCell>,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &mut crate::log::Log) -> T,
    ) -> Result<(T, Option<Appended>)> {
        partition.with_view(id, |view, log| {
            let done = work(view, log);
            let (changes, next) = (view.queue.take_changes(), view.queue.next());
            if !view.is_saved || (changes.is_empty() && view.saved_next == Some(next)) {
                return Ok((done, None));
            }
            // A crash may leave only the first part. Entries count for as much as the cursor behind them; a cursor
            // that goes back must not come after what was forgotten for it.
            let is_back = view.saved_next.is_some_and(|saved| next < saved);
            let cursor = || view.cursor_record(partition.id);
            let entry = |(offset, entry): &(Offset, Option<Entry>)| QueueRecord::Entry {
                queue: id,
                partition: partition.id,
                offset: *offset,
                entry: *entry,
            };
            let (before, after) = (is_back.then(cursor), (!is_back).then(cursor));
            let records = before.into_iter().chain(changes.iter().map(entry)).chain(after);
            // What waits for the topic of queues are only consumers of it, and those may be woken later.
            match self.append_queue_records(id, partition.id, records, &mut Wakes::default()) {
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

/// A lease that a call is about.
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

/// The places of the leases of a call, those of one partition together.
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

/// Where messages are that are given out together.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    topic: TopicId,
    partition: PartitionId,
}

impl Origin {
    pub(super) fn received(&self, lease: Lease, record: Record) -> Received {
        let message = Message::from(record);
        Received {
            receipt: Receipt { partition: self.partition, offset: lease.offset, lease: lease.lease },
            id: message.id(self.topic, self.partition),
            sent_ms: message.sent_ms(),
            message,
            attempts: lease.attempts,
            first_received_ms: lease.first_ms,
        }
    }
}

impl Received {
    fn lease(&self) -> Lease {
        let Receipt { offset, lease, .. } = self.receipt;
        Lease { offset, lease, attempts: self.attempts, first_ms: self.first_received_ms }
    }

    /// The queue whose dead letter it is.
    pub fn source(&self) -> Option<&str> {
        self.message.header(header::SOURCE)
    }
}

fn in_flight_full(definition: &QueueDefinition) -> Error {
    Error::busy(format!(
        "queue {} has {} messages in flight, which is the limit: acknowledge some, or raise in_flight_max",
        definition.name, definition.settings.in_flight_max
    ))
}

/// One more who waits, until it is dropped.
struct Waiting<'a> {
    cell: &'a QueueCell,
    /// It has seen what there was when it was woken, if it was.
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
        // What it was woken for is for another: a message that it did not look for, or to keep the time. Only who goes
        // away wakes others for that: of those who look and wait again, each would wake the next for ever.
        if !self.has_looked || !self.cell.has_timekeeper.load(Ordering::SeqCst) {
            self.cell.wake();
        }
    }
}

/// The one who wakes up when a lease or a delay ends, for all who wait.
struct Timekeeper<'a>(&'a QueueCell);

impl<'a> Timekeeper<'a> {
    fn become_one(cell: &'a QueueCell, due_ms: u64) -> Option<Self> {
        let is_first = cell.has_timekeeper.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_first {
            cell.keeper_due_ms.store(due_ms, Ordering::SeqCst);
        } else if due_ms < cell.keeper_due_ms.load(Ordering::SeqCst) {
            // It looked before there was this to wait for.
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
) {
    let Some(_keeper) = Timekeeper::become_one(cell, next_due_ms.unwrap_or(u64::MAX)) else {
        drop(tokio::time::timeout_at(deadline, news).await);
        return;
    };
    let due = next_due_ms.map(|due_ms| Instant::now() + Duration::from_millis(due_ms.saturating_sub(now_ms())));
    let until = due.map_or(deadline, |due| due.min(deadline));
    tokio::select! {
        () = news => {}
        () = cell.earlier.notified() => {}
        () = tokio::time::sleep_until(until) => {}
    }
}
