//! Notes of a step about the keys that it changes, in the order of the changes.

use engine::cache::Found;
use engine::cache::structures::Kind;

use crate::caches::cache::{Cache, Locked};
use crate::caches::notes::{Cause, Note, What};

/// Maximum number of notes that a step keeps. Those of a step with more are passed on while it runs.
const NOTES_MAX: usize = 1024;

impl Cache {
    /// Returns `true` if notes about changes are wanted.
    #[inline]
    pub fn is_noted(&self) -> bool {
        self.changes.notes.are_wanted()
    }
}

impl Locked<'_> {
    /// Returns `true` if notes of this step are wanted.
    #[inline]
    pub fn is_noted(&self) -> bool {
        self.notes.is_some()
    }

    /// Sets the cause of the following changes.
    pub fn set_cause(&mut self, cause: Cause) {
        self.cause = cause;
        self.hides_misses = false;
    }

    /// Takes no notes of missing keys until the cause is set again: the operation has looked its keys up already.
    pub fn hide_misses(&mut self) {
        self.hides_misses = true;
    }

    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Takes a note of a change that only the door knows, such as one of a stream.
    pub fn report(&mut self, key: &[u8], operation: &'static str) {
        let before = self.cause;
        self.cause.operation = operation;
        self.note(key, What::Reported);
        self.cause = before;
    }

    /// Makes changes of which no notes are taken.
    pub fn unnoted<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let notes = self.notes.take();
        let result = change(self);
        self.notes = notes;
        result
    }

    /// Returns the type of a key's value, without counting as a use or a lookup.
    pub fn kind(&mut self, key: &[u8]) -> Option<Kind> {
        self.look(key).map(|found| found.value.kind())
    }

    /// Returns the entry of a key, of which no note is taken if it is missing.
    pub(super) fn look(&mut self, key: &[u8]) -> Option<Found<'_>> {
        self.note_read(key);
        let (stripe, key, time) = self.stripe(key);
        stripe.peek(key, || time.now_ms())
    }

    /// Takes a note of a change.
    #[inline]
    pub(super) fn note(&mut self, key: &[u8], what: What) {
        if self.notes.is_some() {
            self.push_note(key, what);
        }
    }

    #[inline]
    pub(super) fn note_missed(&mut self, key: &[u8]) {
        if self.notes.is_some() {
            self.push_missed(key);
        }
    }

    /// Returns `true` if notes are wanted and the key has no value yet.
    #[inline]
    pub(super) fn is_noted_new(&mut self, key: &[u8]) -> bool {
        self.notes.is_some() && self.look(key).is_none()
    }

    /// Takes notes of what an operation has done to a structure.
    pub(super) fn note_change(&mut self, key: &[u8], is_new: bool, is_changed: bool) {
        let exists = self.look(key).is_some();
        if is_changed {
            self.push_note(key, What::Changed { is_new });
            if !exists {
                self.push_note(key, What::Deleted);
            }
        } else if exists {
            self.push_note(key, What::Kept);
        }
    }

    #[cold]
    fn push_missed(&mut self, key: &[u8]) {
        if !self.hides_misses && self.cache.changes.notes.are_misses_wanted() && self.look(key).is_none() {
            self.push_note(key, What::Missed);
        }
    }

    #[cold]
    fn push_note(&mut self, key: &[u8], what: What) {
        let cause = self.cause;
        // Another stripe's entries have no order in relation to this key.
        if self.notes.is_some() && what != What::Flushed {
            let cache = self.cache;
            let (stripe, ..) = self.stripe(key);
            cache.changes.follow(stripe);
            let mut removed = std::mem::take(&mut stripe.notes);
            self.notes.iter_mut().for_each(|notes| notes.append(&mut removed));
        } else {
            self.gather_removed();
        }
        let Some(notes) = &mut self.notes else {
            return;
        };
        notes.push(Note { key: key.into(), what, cause });
        // The stripes are still locked, so the order of the changes remains.
        if notes.len() >= NOTES_MAX {
            self.tell_all_notes();
        }
    }

    /// Takes notes of the entries of all locked stripes that expired or were evicted until now.
    fn gather_removed(&mut self) {
        let Some(notes) = &mut self.notes else {
            return;
        };
        for (_, stripe) in &mut self.stripes {
            self.cache.changes.follow(stripe);
            notes.append(&mut stripe.notes);
        }
    }

    /// Passes the notes on before the stripes are released.
    #[inline]
    pub(super) fn tell_notes(&mut self) {
        if self.notes.is_some() {
            self.tell_all_notes();
        }
    }

    #[cold]
    fn tell_all_notes(&mut self) {
        self.gather_removed();
        let notes = self.notes.as_mut().map(std::mem::take).unwrap_or_default();
        self.cache.changes.notes.tell(&self.cache.name, &notes);
    }
}
