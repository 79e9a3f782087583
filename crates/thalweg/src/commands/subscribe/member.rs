//! `thalweg subscribe --consumer-group`: a member of a group that commits the offsets of printed records.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use client::{Client, Consumer, ConsumerEvent, Offset, PartitionId, Start, TopicName, TopicPartition};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{Ended, Printer};
use crate::args::{End, Subscribe};
use crate::output::{Result, remark};

/// Interval between commits.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// Prints records until a bound is reached or a signal arrives, then leaves the group.
pub(super) async fn print(
    client: &Client,
    group: &str,
    args: &Subscribe,
    start: Option<Start>,
    printer: &mut Printer,
    address: &str,
) -> Result<(), Ended> {
    // The first of these signals stops reading; the offsets of printed records are then committed.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    // Only printed records may be committed, so this program commits explicitly.
    let mut builder = client.consumer(group).topic(&args.topic).missing(args.missing()).auto_commit(None);
    if let Some(start) = start {
        builder = builder.start(start);
    }
    if let Some(instance) = &args.instance_id {
        builder = builder.instance(instance);
    }
    if let Some(timeout_ms) = args.session_timeout_ms {
        builder = builder.session_timeout(Duration::from_millis(timeout_ms));
    }
    let consumer = builder.open().await?;
    remark(&super::waiting_as(&format!("{} in consumer group {group}", args.topic), args, address));
    let mut member = Member { consumer, printed: BTreeMap::new(), unread: BTreeSet::new(), end: args.end };
    let read = member.read(printer, stop).await;
    let left = member.consumer.close().await;
    read.and(left.map_err(Ended::from))
}

struct Member {
    consumer: Consumer,
    /// Next offsets of the partitions with records printed since the last commit.
    printed: BTreeMap<TopicPartition, Offset>,
    /// Partitions that are assigned to this member and not read to their end.
    unread: BTreeSet<TopicPartition>,
    end: Option<End>,
}

impl Member {
    async fn read(&mut self, printer: &mut Printer, stop: impl Future<Output = ()>) -> Result<(), Ended> {
        printer.head()?;
        let mut commits = tokio::time::interval(COMMIT_EVERY);
        commits.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        while printer.left > 0 && !self.is_done() {
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = commits.tick() => self.try_commit(printer).await?,
                event = self.consumer.next_event() => self.take(event?, printer).await?,
                // Buffered output is written before waiting.
                () = std::future::ready(()), if printer.is_unflushed() => printer.out.flush()?,
            }
        }
        self.commit(printer).await
    }

    /// Returns `true` if all assigned partitions are read to their end. A member without partitions is not finished.
    fn is_done(&self) -> bool {
        self.end.is_some() && self.unread.is_empty() && !self.consumer.assignment().is_empty()
    }

    async fn take(&mut self, event: ConsumerEvent, printer: &mut Printer) -> Result<(), Ended> {
        match event {
            ConsumerEvent::Batch(batch) => {
                let at = at_of(&batch.topic, batch.partition)?;
                if let Some(next) = printer.batch(&batch)? {
                    self.printed.insert(at.clone(), next);
                }
                self.pass(&at, batch.batch.next_offset());
            }
            ConsumerEvent::Gap { topic, partition, from, to } => {
                printer.gap(&topic, partition, from, to)?;
                self.pass(&at_of(&topic, partition)?, to);
            }
            ConsumerEvent::End { topic, partition, .. } if self.end == Some(End::Now) => {
                self.unread.remove(&at_of(&topic, partition)?);
            }
            ConsumerEvent::Assigned(gained) => self.unread.extend(gained),
            ConsumerEvent::Revoked(revoked) => {
                self.try_commit(printer).await?;
                revoked.iter().for_each(|at| self.forget(at));
            }
            ConsumerEvent::Lost(lost) => {
                lost.iter().for_each(|at| self.forget(at));
                printer
                    .note("the broker removed this member from its group; uncommitted records will be redelivered")?;
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: &TopicPartition, next: Offset) {
        if matches!(self.end, Some(End::At(end)) if next >= end) {
            self.unread.remove(at);
        }
    }

    fn forget(&mut self, at: &TopicPartition) {
        self.unread.remove(at);
        self.printed.remove(at);
    }

    /// Tries to commit. A failed commit is repeated with the next one.
    async fn try_commit(&mut self, printer: &mut Printer) -> io::Result<()> {
        match self.commit(printer).await {
            Ok(()) => Ok(()),
            Err(Ended::Output(error)) => Err(error),
            Err(Ended::Broker(error)) => printer.note(&format!("not committed yet: {error}")),
        }
    }

    async fn commit(&mut self, printer: &mut Printer) -> Result<(), Ended> {
        printer.out.flush()?;
        if !self.printed.is_empty() {
            let offsets = self.printed.iter().map(|(at, next)| (at.clone(), *next, String::new()));
            self.consumer.commit_offsets(&offsets.collect::<Vec<_>>()).await?;
            self.printed.clear();
        }
        Ok(())
    }
}

fn at_of(topic: &str, partition: PartitionId) -> client::Result<TopicPartition> {
    Ok(TopicPartition { topic: TopicName::parse(topic)?, partition })
}
