//! Messages without an attempt left: moved to the dead letters, and back again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::queue::{Lease, Message, header};
use engine::{Acks, DraftBatch, Error, ErrorKind, Record, Result};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::Receive;
use super::redrives::{Redrive, RedriveId, RedriveState, Running};
use crate::commit::Commit;
use crate::partition::PartitionCell;
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::{QueueCell, Received};
use crate::wakes::Wakes;

/// Delay before a failed move of a message to the dead letters is retried.
const AGAIN_MS: u64 = 5_000;
/// Maximum number of messages that are read together before they are moved.
const READ_AT_ONCE: usize = 64;
/// Maximum time that a receiver waits for the move of messages to the dead letters.
const BURIAL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Duration of the lease on a message that is being moved back.
const MOVING_LEASE_MS: u64 = 60_000;
/// Maximum number of messages that are moved back together.
const MOVED_TOGETHER: usize = 10;
/// Maximum number of moves that are remembered. At most [`REDRIVES_RUNNING_MAX`] of them run concurrently.
const REDRIVES_MAX: usize = 1024;
const REDRIVES_RUNNING_MAX: usize = 64;
/// Maximum number of messages per second of one move, which is also the default.
pub const REDRIVE_RATE_MAX: u32 = 500;

/// A move of messages to the dead letters, which continues even if this is dropped.
#[must_use]
pub(super) struct Burial(Option<JoinHandle<()>>);

impl Burial {
    /// Waits until receivers of the dead letters find the messages there, for at most [`BURIAL_WAIT_MAX`]: the topic of
    /// the dead letters may have subscribers that hold up its publishers.
    pub(super) async fn over(self) {
        let Some(task) = self.0 else {
            return;
        };
        match tokio::time::timeout(BURIAL_WAIT_MAX, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "messages could not be moved to the dead letters"),
            Err(_) => tracing::warn!("messages are still being moved to the dead letters"),
        }
    }
}

impl Queues {
    /// Moves messages that have no attempt left to the dead letters of their queue. The move continues if no caller
    /// waits for it: the messages are leased to the broker until it has finished.
    pub(super) fn bury(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        topic: &Arc<Topic>,
        partition: &Arc<PartitionCell>,
        mut dead: Vec<Lease>,
    ) -> Burial {
        if dead.is_empty() {
            return Burial(None);
        }
        let queues = self.clone();
        let cell = cell.clone();
        let topic = topic.clone();
        let partition = partition.clone();
        Burial(Some(tokio::spawn(async move {
            let queue = cell.definition().name.clone();
            let mut buried = Vec::with_capacity(dead.len());
            // In their order, and several at a time: a batch is read from its beginning for an offset that was passed.
            dead.sort_unstable_by_key(|lease| lease.offset);
            let mut read = VecDeque::new();
            for (at, lease) in dead.iter().enumerate() {
                // Others may wait for the partition.
                tokio::task::yield_now().await;
                if read.is_empty() {
                    let next = dead[at..].iter().take(READ_AT_ONCE).map(|lease| lease.offset);
                    read.extend(queues.read_records(cell.id, &partition, next).await);
                }
                let record = read.pop_front().unwrap_or(Ok(None));
                match queues.bury_one(&cell, &topic, &partition, lease, record).await {
                    Ok(saved) => buried.push((lease.offset, saved)),
                    Err(error) => {
                        let offset = lease.offset;
                        tracing::warn!(%queue, offset, %error, "it could not be moved to the dead letters");
                        let kept = queues.change_view(&partition, cell.id, |view, _| {
                            view.queue.keep_dead(lease.offset, queues.core.now_ms(), AGAIN_MS);
                        });
                        if let Err(error) = kept {
                            tracing::debug!(%queue, %error, "the topic was deleted in the meantime");
                        }
                    }
                }
                // Other messages of its group can be delivered now.
                cell.wake_for_change();
            }
            for (offset, saved) in buried {
                let outcome = match saved {
                    Some(saved) => saved.wait().await,
                    None => Ok(()),
                };
                match outcome {
                    Ok(()) => queues.drop_consumed(&topic, &partition, [offset]),
                    Err(error) => tracing::warn!(%queue, offset, %error, "the move to the dead letters may not be \
                                                                          durable"),
                }
            }
        })))
    }

    async fn bury_one(
        &self,
        cell: &QueueCell,
        topic: &Topic,
        partition: &Arc<PartitionCell>,
        lease: &Lease,
        record: Result<Option<Record>>,
    ) -> Result<Option<Commit>> {
        let definition = cell.definition();
        let Some(to) = definition.settings.dead_letter.clone() else {
            return Err(Error::not_found("the queue no longer has a dead-letter topic"));
        };
        if let Some(record) = record? {
            let message = Message::from(record);
            let source = definition.name.as_str();
            self.move_message(topic, partition, &message, to.as_str(), Some((source, lease.attempts))).await?;
            self.events.dead.add(1);
        }
        self.end_leases(cell, partition, &[(lease.offset, lease.lease)], self.core.now_ms())
    }

    /// Publishes a message to another topic with its id and time. `source` is the queue that it leaves, with the
    /// attempts there.
    async fn move_message(
        &self,
        topic: &Topic,
        partition: &PartitionCell,
        message: &Message,
        to: &str,
        source: Option<(&str, u32)>,
    ) -> Result<()> {
        // The topic must exist already: one that is created automatically would have no owner.
        self.core.topic(to)?;
        let id = message.id(topic.id, partition.id).to_string();
        let sent = message.sent_ms().to_string();
        let attempts = source.map(|(_, attempts)| attempts.to_string());
        let before = message.header(header::RECEIVED).and_then(|received| received.parse().ok()).unwrap_or(0u32);
        // Of fixed length, so that a message that is moved repeatedly does not grow.
        let received = source.map(|(_, attempts)| format!("{:010}", before.saturating_add(attempts)));
        let own = [
            header::DUE,
            header::ID,
            header::SENT,
            header::SOURCE,
            header::DELIVERIES,
            header::RECEIVED,
            header::ATTEMPTS,
        ];
        let kept = message.record().headers.iter().filter(|(name, _)| !own.iter().any(|own| name == own.as_bytes()));
        let mut headers: Vec<(&[u8], Option<&[u8]>)> =
            kept.map(|(name, value)| (&name[..], value.as_deref())).collect();
        headers.push((header::ID.as_bytes(), Some(id.as_bytes())));
        headers.push((header::SENT.as_bytes(), Some(sent.as_bytes())));
        if let (Some((source, _)), Some(attempts), Some(received)) = (source, &attempts, &received) {
            headers.push((header::RECEIVED.as_bytes(), Some(received.as_bytes())));
            headers.push((header::SOURCE.as_bytes(), Some(source.as_bytes())));
            headers.push((header::DELIVERIES.as_bytes(), Some(attempts.as_bytes())));
        }
        let group = message.group().map(|group| &group[..]);
        let batch = DraftBatch::of_one(self.core.now_ms() as i64, group, Some(message.body()), &headers)?;
        self.core.publish(to, None, Acks::Committed, batch, &mut Wakes::default()).await.map(drop)
    }

    /// Starts a move of the messages of a queue to another queue, or each to the queue that it came from.
    pub async fn start_redrive(self: &Arc<Self>, from: &str, to: Option<&str>, rate: Option<u32>) -> Result<RedriveId> {
        let act = async {
            let counts = self.counts(from).await?;
            if let Some(to) = to {
                self.get(to).await?;
            }
            let redrives = &self.redrives;
            let running = {
                let mut all = redrives.all.lock();
                let of = |running: &Arc<Running>| running.shown.lock().state == RedriveState::Running;
                if all.iter().any(|running| running.shown.lock().from == from && of(running)) {
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!("messages of {from} are already being moved"),
                    ));
                }
                if all.iter().filter(|running| of(running)).count() >= REDRIVES_RUNNING_MAX {
                    return Err(Error::busy(format!(
                        "messages of {REDRIVES_RUNNING_MAX} queues are being moved, which is the limit: wait until one \
                         move is finished"
                    )));
                }
                while all.len() >= REDRIVES_MAX {
                    all.pop_front();
                }
                let shown = Redrive {
                    id: redrives.ids.fetch_add(1, Ordering::Relaxed) + (self.core.instance() & 0xffff_ffff_0000),
                    from: from.to_owned(),
                    to: to.map(str::to_owned),
                    rate,
                    started_ms: self.core.now_ms(),
                    state: RedriveState::Running,
                    moved: 0,
                    to_move: counts.visible,
                    failure: None,
                };
                let running = Arc::new(Running { shown: Mutex::new(shown), is_cancelled: AtomicBool::new(false) });
                all.push_back(running.clone());
                running
            };
            let id = running.shown.lock().id;
            let queues = self.clone();
            tokio::spawn(async move {
                let outcome = queues.redrive(&running).await;
                let mut shown = running.shown.lock();
                shown.state = match &outcome {
                    Ok(()) if running.is_cancelled.load(Ordering::Relaxed) => RedriveState::Cancelled,
                    Ok(()) => RedriveState::Completed,
                    Err(_) => RedriveState::Failed,
                };
                shown.failure = outcome.err().map(|error| error.message);
            });
            Ok(id)
        };
        self.core.audited("start redrive", from, act).await
    }

    async fn redrive(self: &Arc<Self>, running: &Running) -> Result<()> {
        let Redrive { from, to, rate, to_move, .. } = running.shown.lock().clone();
        let rate = rate.unwrap_or(REDRIVE_RATE_MAX).clamp(1, REDRIVE_RATE_MAX);
        let together = MOVED_TOGETHER.min(rate as usize);
        let mut interval = tokio::time::interval(Duration::from_secs(1) * together as u32 / rate);
        let mut left = to_move;
        while left > 0 && !running.is_cancelled.load(Ordering::Relaxed) {
            interval.tick().await;
            let max = together.min(left as usize);
            let receive = Receive { max, lease_ms: Some(MOVING_LEASE_MS), ..Receive::default() };
            let messages = self.receive(&from, &receive).await?;
            if messages.is_empty() {
                return Ok(());
            }
            let (cell, topic) = self.cell(&from).await?;
            for message in &messages {
                self.move_back(&topic, message, to.as_deref()).await?;
                self.ack(cell.definition().name.as_str(), &[message.receipt]).await?;
                running.shown.lock().moved += 1;
            }
            left = left.saturating_sub(messages.len() as u64);
        }
        Ok(())
    }

    async fn move_back(&self, topic: &Topic, message: &Received, to: Option<&str>) -> Result<()> {
        let to = match to.or(message.source()) {
            Some(to) => self.get(to).await?.topic.clone(),
            None => {
                return Err(Error::invalid(
                    "a message does not contain the name of its original queue: name a target queue",
                ));
            }
        };
        let partition = topic.partition(message.receipt.partition)?;
        self.move_message(topic, &partition, &message.message, to.as_str(), None).await
    }

    /// Returns the moves of messages out of a queue, running and finished, the newest first.
    pub fn redrives(&self, from: &str) -> Vec<Redrive> {
        let all = self.redrives.all.lock();
        let of = all.iter().rev().map(|running| running.shown.lock().clone());
        of.filter(|shown| shown.from == from).collect()
    }

    /// Cancels a move. Returns its state, with the number of messages moved so far.
    pub fn cancel_redrive(&self, id: RedriveId) -> Result<Redrive> {
        let cancelled = self.stop_redrive(id);
        let from = cancelled.as_ref().map_or("", |redrive| &redrive.from);
        self.core.record_act("cancel redrive", from, cancelled.as_ref().err());
        cancelled
    }

    /// Cancels all moves, because the broker ends: they would keep its queues. Each ends within a second.
    pub(crate) fn stop_redrives(&self) {
        self.redrives.all.lock().iter().for_each(|running| running.is_cancelled.store(true, Ordering::Relaxed));
    }

    fn stop_redrive(&self, id: RedriveId) -> Result<Redrive> {
        let all = self.redrives.all.lock();
        let found = all.iter().find(|running| running.shown.lock().id == id);
        let running = found.ok_or_else(|| Error::not_found("there is no such move of messages"))?;
        let mut shown = running.shown.lock();
        if shown.state != RedriveState::Running {
            return Err(Error::invalid("only a move of messages that is running can be cancelled"));
        }
        running.is_cancelled.store(true, Ordering::Relaxed);
        shown.state = RedriveState::Cancelling;
        Ok(shown.clone())
    }
}
