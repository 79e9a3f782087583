//! Subscribers of a partition: joining, leaving, and reading the log to catch up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{ErrorKind, Offset, Result, Start};
use storage::Read;

use super::{PartitionCell, State};
use crate::log::batches_of;
use crate::reader::Reader;
use crate::subscriber::Subscriber;

impl PartitionCell {
    /// Adds a subscriber that begins at `start`. Returns its source, its first offset and the end of the log; `None` if
    /// the subscriber has ended or reads the partition already. No append can happen between the choice of the offset
    /// and the joining.
    pub(crate) fn join(
        &self,
        subscriber: &Arc<Subscriber>,
        start: &Start,
        cell: &Arc<PartitionCell>,
        group: Option<&str>,
    ) -> Result<Option<(engine::SourceId, Offset, Offset)>> {
        let at_time = match start {
            Start::Time(timestamp_ms) => self.offset_for_time(*timestamp_ms)?,
            _ => 0,
        };
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        let log = state.log.extent();
        let end = log.end;
        let wanted = match start {
            Start::Live => end,
            Start::Earliest => log.start,
            Start::Offset(offset) => *offset,
            Start::Time(_) => at_time,
            Start::Offsets(offsets) => match offsets.iter().find(|(id, _)| *id == self.id) {
                None => end,
                // The offset is from another log, which this one has replaced: all records are new.
                Some((_, offset)) if *offset > end => log.start,
                Some((_, offset)) => *offset,
            },
        };
        let from = wanted.clamp(log.start, end);
        let Some(source) = subscriber.add_source(cell, &state.fanout, wanted.min(end), wanted >= end) else {
            return Ok(None);
        };
        state.mesh_readers += usize::from(subscriber.scope.reader.is_mesh());
        state.routers += usize::from(subscriber.scope.reader == Reader::Router);
        state.fanout.join(subscriber.id, engine::fanout::Member { handle: subscriber.clone(), source }, group);
        Ok(Some((source, from, end)))
    }

    /// Returns the subscribers of this partition that read all partitions of its topic, including those added later.
    pub(crate) fn followers(&self) -> Vec<Arc<Subscriber>> {
        let state = self.state.lock();
        let members = state.fanout.members().map(|member| &member.handle);
        members.filter(|subscriber| subscriber.scope.is_whole).cloned().collect()
    }

    /// Notes that a client has fetched from this partition, whose topic is live.
    pub(crate) fn note_fetch(&self) {
        self.is_fetched.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a fetch waits here, or a client has fetched since the last call.
    pub(crate) fn was_fetched(&self) -> bool {
        self.is_fetched.swap(false, Ordering::Relaxed) || self.awaiting.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if a queue reads this partition, or a subscription of a client that is in no queue group.
    pub(crate) fn is_read(&self) -> bool {
        let state = self.state.lock();
        !state.queues.is_empty() || state.fanout.plain_members().any(|member| is_of_client(&member.handle))
    }

    /// Adds the names of the queue groups that read this partition.
    pub(crate) fn add_groups(&self, names: &mut BTreeSet<Box<str>>) {
        let state = self.state.lock();
        for (name, mut members) in state.fanout.groups() {
            if !names.contains(name) && members.any(|member| is_of_client(&member.handle)) {
                names.insert(name.into());
            }
        }
    }

    /// Notes that a subscriber of this partition has ended; it leaves the fanout before the next append.
    pub(crate) fn note_ended_member(&self) {
        self.has_ended_member.store(true, Ordering::Release);
    }

    pub(crate) fn leave(&self, subscriber: &Arc<Subscriber>) {
        self.state.lock().leave(subscriber);
    }

    /// Reads history for a source that is behind, or makes it live if it has reached the end of the log.
    pub(crate) async fn backfill(&self, subscriber: &Subscriber, source: engine::SourceId, from: Offset) {
        loop {
            let (start, read) = {
                let state = self.state.lock();
                let log = state.log.extent();
                match state.log.read(from.max(log.start), engine::limits::BACKFILL_BYTES) {
                    // A new start of the log was committed in the meantime.
                    Err(error) if error.kind == ErrorKind::OutOfRange && state.log.extent().start > log.start => {
                        continue;
                    }
                    // Only a deleted partition ends before an offset that it assigned; it has nothing to read.
                    Err(error) if error.kind == ErrorKind::OutOfRange => (log.start, Read::Batches(Vec::new())),
                    Err(error) => return subscriber.end(error),
                    Ok(read) => (log.start, read),
                }
            };
            return match batches_of(read).await {
                Ok(batches) if batches.is_empty() => {
                    // No append can happen between this check of the end and the source being live.
                    let state = self.state.lock();
                    let log = state.log.extent();
                    if from.max(log.start) >= log.end {
                        subscriber.catch_up(source, log.end);
                    }
                }
                Ok(batches) => subscriber.backfill(source, batches),
                // Retention removed these batches during the read: the next round reads what follows and reports the
                // gap.
                Err(error) if error.kind == ErrorKind::OutOfRange && self.extent().start > start.max(from) => continue,
                Err(error) => subscriber.end(error),
            };
        }
    }
}

impl State {
    fn leave(&mut self, subscriber: &Subscriber) {
        if self.fanout.leave(subscriber.id, subscriber.scope.group.as_deref()).is_some() {
            self.mesh_readers -= usize::from(subscriber.scope.reader.is_mesh());
            self.routers -= usize::from(subscriber.scope.reader == Reader::Router);
        }
    }

    /// Removes the subscribers that have ended.
    pub(super) fn remove_ended(&mut self) {
        self.fanout.remove_all(|subscriber| subscriber.has_ended());
        let count = |is_counted: fn(Reader) -> bool| {
            self.fanout.members().filter(|member| is_counted(member.handle.scope.reader)).count()
        };
        (self.mesh_readers, self.routers) = (count(Reader::is_mesh), count(|reader| reader == Reader::Router));
    }
}

fn is_of_client(subscriber: &Subscriber) -> bool {
    !subscriber.scope.reader.is_mesh() && !subscriber.has_ended()
}

#[cfg(test)]
mod tests {
    use engine::TopicSettings;
    use tokio::runtime::Handle;

    use super::*;
    use crate::broker::Broker;
    use crate::settings::Settings;

    /// A subscriber that ends has its partitions remove it, however many of them tell it that it ends.
    #[tokio::test]
    async fn an_ended_subscriber_visits_its_partitions_once() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        let settings = TopicSettings { partitions: 100, ..TopicSettings::default() };
        broker.create_topic("t", settings).await.expect("created");
        let subscription = broker.subscribe(crate::subscribe::tests::live("t")).await.expect("subscribed");
        let topic = broker.existing_topic("t").expect("exists");
        let noted = || {
            let take = |cell: &Arc<PartitionCell>| cell.has_ended_member.swap(false, Ordering::AcqRel);
            topic.partitions().iter().filter(|cell| take(cell)).count()
        };
        let subscriber = &subscription.subscriber;
        subscriber.lose_source(0, engine::Error::not_found("deleted"));
        assert_eq!(noted(), 100);
        (1..100).for_each(|source| subscriber.lose_source(source, engine::Error::not_found("deleted")));
        assert_eq!(noted(), 0);
    }
}
