//! Views of the queues over one partition.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use engine::queue::QueueId;

use super::queue::QueueView;

/// Number of views up to which one is searched for, which is faster than looking its place up.
const SEARCHED_MAX: usize = 8;

/// Views of the queues over a partition, in no order.
///
/// Invariant: `places` has the place of each view in `all`.
#[derive(Default)]
pub(crate) struct Views {
    all: Vec<QueueView>,
    places: HashMap<QueueId, usize, foldhash::fast::RandomState>,
}

impl Views {
    /// Adds a view. Replaces one of the same queue.
    pub(crate) fn insert(&mut self, view: QueueView) {
        self.remove(view.cell.id);
        self.places.insert(view.cell.id, self.all.len());
        self.all.push(view);
    }

    pub(crate) fn remove(&mut self, id: QueueId) -> Option<QueueView> {
        let at = self.places.remove(&id)?;
        let view = self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.places.insert(moved.cell.id, at);
        }
        Some(view)
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> Option<&mut QueueView> {
        if self.all.len() <= SEARCHED_MAX {
            return self.all.iter_mut().find(|view| view.cell.id == id);
        }
        let at = *self.places.get(&id)?;
        Some(&mut self.all[at])
    }

    pub(crate) fn clear(&mut self) {
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
        QueueView::new(QueueCell::new(definition, Clock::SYSTEM, &Arc::default()), queue, false)
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
