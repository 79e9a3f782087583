//! Queues over a partition, whose views live behind its lock.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use engine::queue::{Dedup, QueueId};
use engine::{Error, Offset, Result};

use super::{Extent, PartitionCell, State};
use crate::log::Log;
use crate::view::{LogEnds, QueueView};

/// Returns the name under which a partition holds the records of a forgotten queue. No snapshot has such a name.
fn hold_of(id: QueueId) -> String {
    format!("\0queue {id:x}")
}

/// Number of views up to which one is searched for, which is faster than looking its place up.
const SEARCHED_MAX: usize = 8;

/// Views of the queues over a partition, in no order.
///
/// Invariant: `places` has the place of each view in `all`.
#[derive(Default)]
pub(super) struct Views {
    all: Vec<QueueView>,
    places: HashMap<QueueId, usize, foldhash::fast::RandomState>,
}

impl Views {
    /// Adds a view. Replaces one of the same queue.
    fn insert(&mut self, view: QueueView) {
        self.remove(view.cell.id);
        self.places.insert(view.cell.id, self.all.len());
        self.all.push(view);
    }

    fn remove(&mut self, id: QueueId) -> Option<QueueView> {
        let at = self.places.remove(&id)?;
        let view = self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.places.insert(moved.cell.id, at);
        }
        Some(view)
    }

    fn get_mut(&mut self, id: QueueId) -> Option<&mut QueueView> {
        if self.all.len() <= SEARCHED_MAX {
            return self.all.iter_mut().find(|view| view.cell.id == id);
        }
        let at = *self.places.get(&id)?;
        Some(&mut self.all[at])
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Deref for Views {
    type Target = [QueueView];

    fn deref(&self) -> &[QueueView] {
        &self.all
    }
}

impl DerefMut for Views {
    fn deref_mut(&mut self) -> &mut [QueueView] {
        &mut self.all
    }
}

impl PartitionCell {
    /// Adds a queue, which starts with the current ends of the log.
    pub(crate) fn attach_view(&self, mut view: QueueView) {
        let mut state = self.state.lock();
        let Extent { end, stable_end, .. } = state.extent();
        let markers_end = state.order.producers().markers_end();
        view.begin(LogEnds { end, stable_end, markers_end });
        state.release(&hold_of(view.cell.id));
        // An earlier view of this queue may remain if its start was aborted.
        state.queues.insert(view);
    }

    /// Detaches a queue whose state is forgotten. The records that it needs are kept until it is attached again.
    pub(crate) fn forget_view(&self, id: QueueId) {
        let mut state = self.state.lock();
        if let Some(mut view) = state.queues.remove(id) {
            let queue = &mut view.queue;
            let floor = if queue.settings().keeps_acked { 0 } else { queue.floor() };
            state.hold(&hold_of(id), floor);
        }
    }

    pub(crate) fn detach_view(&self, id: QueueId) -> Option<QueueView> {
        self.state.lock().queues.remove(id)
    }

    /// Calls `work` with a queue's view and the log.
    pub(crate) fn with_view<T>(&self, id: QueueId, work: impl FnOnce(&mut QueueView, &Log) -> T) -> Result<T> {
        self.work_on(&mut self.state.lock(), id, work)
    }

    /// Calls `work` as [`Self::with_view`] does, then removes the messages in `done` as [`Self::drop_consumed`] does,
    /// under the same lock. For messages that may be acknowledged by `work` and need no record of that. Returns the
    /// result of `work` and the bytes of memory that became free.
    pub(crate) fn with_view_of_consumed<T>(
        &self,
        id: QueueId,
        work: impl FnOnce(&mut QueueView, &Log) -> T,
        done: impl IntoIterator<Item = Offset>,
    ) -> Result<(T, usize)> {
        let mut state = self.state.lock();
        let outcome = self.work_on(&mut state, id, work)?;
        Ok((outcome, state.drop_consumed(done).1))
    }

    fn work_on<T>(&self, state: &mut State, id: QueueId, work: impl FnOnce(&mut QueueView, &Log) -> T) -> Result<T> {
        if let Some(view) = state.queues.get_mut(id) {
            return Ok(work(view, &state.log));
        }
        if state.is_held(&hold_of(id)) {
            return Err(Error::busy(format!("the queues over topic {} are being restored: try again", self.topic)));
        }
        Err(Error::not_found(format!("the queue no longer reads topic {}", self.topic)))
    }

    pub(crate) fn restore_dedup(&self, dedup: Dedup) {
        self.state.lock().dedup = dedup;
    }

    /// Forgets the deduplication ids of messages before this offset: they may be sent again.
    pub(crate) fn forget_sent(&self, before: Offset) {
        self.state.lock().dedup.forget_before(before);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::queue::{Queue, QueueDefinition, QueueName, QueueSettings};
    use engine::{TopicId, TopicName};

    use super::*;
    use crate::clock::Clock;
    use crate::view::QueueCell;

    fn view(id: QueueId) -> QueueView {
        let definition = QueueDefinition {
            id,
            name: QueueName::parse(&format!("q{id}")).expect("a name"),
            topic: TopicName::parse("t").expect("a name"),
            topic_id: TopicId::new(1, 1),
            owns_topic: false,
            created_ms: 0,
            altered_ms: 0,
            settings: QueueSettings::default(),
            notes: Default::default(),
        };
        let queue = Queue::new(QueueSettings::default(), 0, 0, false);
        QueueView::new(QueueCell::new(definition, Clock::SYSTEM), queue, false)
    }

    /// Each view is found at its place, however many others were removed before.
    #[test]
    fn views_are_looked_up_by_their_queues() {
        let mut views = Views::default();
        (0..100).for_each(|id| views.insert(view(id)));
        let again = view(7);
        let cell = again.cell.clone();
        views.insert(again);
        assert_eq!(views.len(), 100);
        assert!(views.get_mut(7).is_some_and(|view| Arc::ptr_eq(&view.cell, &cell)), "the newer one of a queue");
        for id in (0..100).filter(|id| id % 3 != 0) {
            assert_eq!(views.remove(id).map(|view| view.cell.id), Some(id));
            assert!(views.remove(id).is_none());
        }
        assert_eq!(views.places.len(), views.len());
        for id in 0..100 {
            let found = views.get_mut(id).map(|view| view.cell.id);
            assert_eq!(found, (id % 3 == 0).then_some(id));
        }
        (0..97).for_each(|id| drop(views.remove(id)));
        assert_eq!(views.get_mut(99).map(|view| view.cell.id), Some(99), "one of few is searched for");
    }
}
