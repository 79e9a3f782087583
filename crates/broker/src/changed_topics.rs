//! Version of the catalog, and the names of the topics that have changed last.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::TopicName;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Names that are kept. A view that is further behind compares all topics again.
const NAMES_MAX: usize = 4096;

/// Topics that were created, grown or deleted last.
pub(crate) struct ChangedTopics {
    /// From 1 on startup; it rises with every change.
    version: AtomicU64,
    recent: Mutex<Recent>,
    /// Notified of every change of a topic that is not hidden.
    pub(crate) notify: Arc<Notify>,
}

#[derive(Default)]
struct Recent {
    /// Names with their versions, in ascending order. Hidden topics are left out: no view compares them.
    names: VecDeque<(u64, TopicName)>,
    /// Version of the newest name that is not kept any more.
    forgotten: u64,
}

impl Default for ChangedTopics {
    fn default() -> Self {
        Self { version: AtomicU64::new(1), recent: Mutex::default(), notify: Arc::default() }
    }
}

impl ChangedTopics {
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes a change of a topic that is already visible in the table of topics.
    pub(crate) fn note(&self, name: &TopicName) {
        if name.is_hidden() {
            self.version.fetch_add(1, Ordering::AcqRel);
            return;
        }
        {
            let mut recent = self.recent.lock();
            if recent.names.len() == NAMES_MAX
                && let Some((version, _)) = recent.names.pop_front()
            {
                recent.forgotten = version;
            }
            // Under the lock, so that a reader of this version finds the name.
            let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
            recent.names.push_back((version, name.clone()));
        }
        self.notify.notify_one();
    }

    /// Returns the names of the topics that have changed since a version, each once, or `None` if that was too long
    /// ago.
    pub(crate) fn since(&self, version: u64) -> Option<Vec<TopicName>> {
        let recent = self.recent.lock();
        if version < recent.forgotten {
            return None;
        }
        let from = recent.names.partition_point(|(of, _)| *of <= version);
        let mut names: Vec<TopicName> = recent.names.range(from..).map(|(_, name)| name.clone()).collect();
        drop(recent);
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(number: usize) -> TopicName {
        TopicName::parse(&format!("t{number}")).expect("a name")
    }

    #[test]
    fn names_are_known_as_long_as_there_is_room() {
        let changed = ChangedTopics::default();
        assert_eq!((changed.version(), changed.since(1)), (1, Some(vec![])));
        changed.note(&topic(1));
        changed.note(&TopicName::parse("_queues").expect("a name"));
        changed.note(&topic(2));
        changed.note(&topic(1));
        assert_eq!(changed.version(), 5);
        assert_eq!(changed.since(1), Some(vec![topic(1), topic(2)]));
        assert_eq!(changed.since(2), Some(vec![topic(1), topic(2)]));
        assert_eq!(changed.since(4), Some(vec![topic(1)]));
        assert_eq!(changed.since(5), Some(vec![]));
        (3..NAMES_MAX).for_each(|number| changed.note(&topic(number)));
        assert_eq!(changed.since(1).map(|names| names.len()), Some(NAMES_MAX - 1));
        changed.note(&topic(NAMES_MAX));
        // The first name is forgotten.
        assert_eq!(changed.since(1), None);
        assert_eq!(changed.since(2).map(|names| names.len()), Some(NAMES_MAX));
        assert_eq!(changed.recent.lock().names.len(), NAMES_MAX);
    }
}
