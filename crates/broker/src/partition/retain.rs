//! Records that leave a partition: by retention, on request, and once all queues have acknowledged them.

use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, Result};
use storage::Commits;

use super::{PartitionCell, State};
use crate::commit::Commit;
use crate::retention::{Retention, needed_from};

impl PartitionCell {
    /// Removes the records that retention no longer covers. Returns the bytes of memory that became free.
    pub(crate) fn trim(self: &Arc<Self>, retention: Retention, now_ms: u64) -> usize {
        let Retention { bytes, ms, .. } = retention;
        let (log, needed) = {
            let state = &mut *self.state.lock();
            state.order.forget_aborted(state.log.forget_aborted());
            (state.log.shared(), needed_from(retention, &mut state.queues, &state.holds))
        };
        // A shared log may read a file, so the lock is not held.
        let planned = log.map(|log| log.retain(bytes, ms, needed, now_ms));
        let state = &mut *self.state.lock();
        // A queue or a snapshot may need more by now.
        let needed = needed_from(retention, &mut state.queues, &state.holds);
        let start = match planned {
            Some(start) => start.map(|start| start.min(needed)),
            None => state.log.retain_now(bytes, ms, needed, now_ms),
        };
        let Some(start) = start.filter(|start| *start > state.log.extent().start) else {
            return 0;
        };
        state.delete_before(start, self).unwrap_or_else(|error| {
            tracing::debug!(topic = %self.topic, partition = self.id, %error, "retention is delayed");
            0
        })
    }

    /// Removes the records before an offset, or all records for `Offset::MAX`. Returns the new start of the log, the
    /// bytes of memory that became free, and when the change is durable.
    pub(crate) fn delete_records(&self, before: Offset) -> Result<(Offset, usize, Commit)> {
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(self.gone());
        }
        state.check_changes()?;
        let extent = state.log.extent();
        let before = if before == Offset::MAX { extent.end } else { before };
        if before > extent.end {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("offset {before} is not in the log, which has {} to {}", extent.start, extent.end),
            ));
        }
        let start = before.max(extent.start);
        let before = state.log.memory_bytes();
        let (entry, durable) = Commit::of_entry();
        let commit = match state.log.set_start(start, || entry)? {
            Commits::Now => Commit::done(),
            Commits::Later => durable,
        };
        Ok((start, before - state.log.memory_bytes(), commit))
    }

    /// Keeps the records from `floor` on for a snapshot of this name, even if all queues have acknowledged them.
    pub(crate) fn hold(&self, name: &Arc<str>, floor: Offset) {
        self.state.lock().hold(name, floor);
    }

    pub(crate) fn let_go(&self, name: &str) {
        self.state.lock().release(name);
    }

    /// Removes records that all queues have acknowledged, including those in `done`, whose acknowledgement must be
    /// durable. Returns the bytes of memory that became free.
    pub(crate) fn drop_consumed(&self, done: impl IntoIterator<Item = Offset>) -> usize {
        self.state.lock().drop_consumed(done).1
    }

    /// Removes all records before the first one that any queue still needs. Each new start of a log on disk is an entry
    /// of the journal, so only the sweep writes it. Returns the bytes of memory that became free.
    pub(crate) fn sweep_consumed(self: &Arc<Self>) -> usize {
        let mut state = self.state.lock();
        let (start, freed) = state.drop_consumed([]);
        if start > state.log.extent().start
            && let Err(error) = state.delete_before(start, self)
        {
            tracing::debug!(
                topic = %self.topic,
                partition = self.id,
                %error,
                "the deletion of acknowledged records is delayed"
            );
        }
        freed
    }
}

impl State {
    /// Deletes the records before `start`. Returns the bytes of memory that became free.
    pub(super) fn delete_before(&mut self, start: Offset, cell: &Arc<PartitionCell>) -> Result<usize> {
        self.check_changes()?;
        let before = self.log.memory_bytes();
        self.log.set_start(start, || cell.clone())?;
        Ok(before - self.log.memory_bytes())
    }

    pub(super) fn hold(&mut self, name: &Arc<str>, floor: Offset) {
        match self.place_of_hold(name) {
            Ok(at) => self.holds[at].1 = floor,
            Err(at) => self.holds.insert(at, (name.clone(), floor)),
        }
    }

    pub(super) fn release(&mut self, name: &str) {
        if let Ok(at) = self.place_of_hold(name) {
            self.holds.remove(at);
        }
    }

    /// Returns the place of a hold, or the place where it belongs.
    fn place_of_hold(&self, name: &str) -> std::result::Result<usize, usize> {
        self.holds.binary_search_by(|(held, _)| (**held).cmp(name))
    }

    pub(super) fn is_held(&self, name: &str) -> bool {
        self.place_of_hold(name).is_ok()
    }

    /// Removes what all queues have acknowledged: the records before the first one that any queue needs, and those in
    /// `done`. A durable log deletes only the records in `done` here. Returns the start of the needed records, and the
    /// bytes of memory that became free.
    pub(super) fn drop_consumed(&mut self, done: impl IntoIterator<Item = Offset>) -> (Offset, usize) {
        if self.queues.iter().any(|view| view.queue.settings().keeps_acked) {
            return (0, 0);
        }
        let end = self.log.extent().end;
        // After a restart, the recent deduplication ids are restored from a log that survives it.
        let known = if self.log.is_durable() { self.dedup.oldest(self.clock.now_ms()) } else { None };
        let held = self.holds.iter().map(|(_, floor)| *floor).chain(known).min().unwrap_or(end);
        let floor = self.queues.iter_mut().map(|view| view.queue.floor()).min().unwrap_or(end).min(held);
        let Self { log, queues, .. } = self;
        let is_done = |offset: &Offset| queues.iter().all(|view| view.queue.is_done(*offset));
        let behind = done.into_iter().filter(|offset| (floor..held).contains(offset)).filter(is_done);
        let before = log.memory_bytes();
        log.forget_before(floor);
        behind.for_each(|offset| log.forget(offset));
        let freed = before - log.memory_bytes();
        (floor.min(end), freed)
    }
}

#[cfg(test)]
mod tests {
    use engine::queue::QueueName;
    use engine::{TopicName, TopicSettings};
    use tokio::runtime::Handle;

    use super::*;
    use crate::broker::Broker;
    use crate::queues::NewQueue;
    use crate::settings::Settings;

    /// A snapshot takes little memory for each of its partitions, and is found among others without a search.
    #[tokio::test]
    async fn partitions_share_the_names_of_snapshots() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
        broker.create_topic("t", settings).await.expect("created");
        let topic = Some(TopicName::parse("t").expect("a name"));
        let queue = NewQueue { topic, ..NewQueue::new(QueueName::parse("q").expect("a name")) };
        broker.queues.create(queue).await.expect("created");
        for name in ["b", "c", "a"] {
            broker.queues.create_snapshot(name, "q", u64::MAX).await.expect("created");
        }
        let topic = broker.existing_topic("t").expect("exists");
        let [first, second] = topic.partitions() else {
            panic!("two partitions");
        };
        let names = |cell: &PartitionCell| {
            let state = cell.state.lock();
            state.holds.iter().map(|(name, _)| (name.to_string(), name.as_ptr())).collect::<Vec<_>>()
        };
        assert_eq!(names(first), names(second), "each name is in memory once");
        let of_first = names(first);
        assert!(of_first.is_sorted() && of_first.len() == 3, "{of_first:?}");
        broker.queues.delete_snapshot("b").await.expect("deleted");
        let left = names(second).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(left, ["a", "c"]);
    }
}
