//! Subscribers whose permission to read may end: those of limited clients, and of users that may be deleted.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::subscriber::Subscriber;

/// Subscribers whose permission to read may end. They are asked again when permissions change.
#[derive(Default)]
pub(crate) struct Limited(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    subscribers: Vec<Weak<Subscriber>>,
    /// Number of subscribers at which those that have ended are removed.
    swept_at: usize,
}

impl Limited {
    /// Smallest number of subscribers at which those that have ended are removed.
    const SWEPT_MIN: usize = 64;

    /// Adds a subscriber if it is limited.
    pub(crate) fn note(&self, subscriber: &Arc<Subscriber>) {
        if !subscriber.scope.permit.is_limited() {
            return;
        }
        let mut noted = self.0.lock();
        if noted.subscribers.len() >= noted.swept_at {
            noted.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
            noted.swept_at = (2 * noted.subscribers.len()).max(Self::SWEPT_MIN);
        }
        noted.subscribers.push(Arc::downgrade(subscriber));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Subscriber>> {
        self.0.lock().subscribers.iter().filter_map(Weak::upgrade).collect()
    }
}
