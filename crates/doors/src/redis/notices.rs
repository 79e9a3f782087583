//! Listener of the notes about changed keys, for keyspace events and for tracking clients.

use std::sync::Arc;

use broker::{Caches, Note, NoteListener, Wanted};
use engine::cache::CacheName;
use parking_lot::Mutex;

use super::events::Events;
use super::tracking::Tracking;

/// Users of the notes.
pub(super) struct Notices {
    pub(super) events: Arc<Events>,
    pub(super) tracking: Arc<Tracking>,
    /// Notes that were requested last. Held while notes are switched on and off.
    switch: Mutex<Wanted>,
}

impl Notices {
    pub(super) fn new(events: Arc<Events>, tracking: Arc<Tracking>) -> Self {
        Self { events, tracking, switch: Mutex::new(Wanted::Nothing) }
    }

    /// Requests the notes that are wanted now, after that has changed.
    pub(super) fn update(self: &Arc<Self>, caches: &Caches) {
        let mut requested = self.switch.lock();
        let of_events = self.events.wanted();
        let wanted = match of_events {
            Wanted::Nothing if self.tracking.is_on() => Wanted::Changes,
            wanted => wanted,
        };
        // Each switch visits all caches, and clients begin and end to track all the time.
        if *requested == wanted {
            return;
        }
        *requested = wanted;
        let listener = (wanted != Wanted::Nothing).then(|| self.clone() as Arc<dyn NoteListener>);
        caches.note(wanted, listener);
    }
}

impl NoteListener for Notices {
    fn listen(&self, cache: &CacheName, notes: &[Note]) {
        if self.tracking.is_on() {
            self.tracking.listen(cache, notes);
        }
        self.events.listen(cache, notes);
    }
}
