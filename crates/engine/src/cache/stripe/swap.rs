//! Exchange of all entries of two stripes.

use super::Stripe;
use crate::ids::TopicId;

impl Stripe {
    /// Exchanges all entries with another stripe, whose cache has the same settings and chooses stripes by the same
    /// hashes. What belongs to the cache remains: counters, effects, and removals that were not reported yet.
    ///
    /// All entries of both have `version` from then on. It must be above all versions of both: a version that a caller
    /// knows must not be that of the other cache's value. The number of steps does not depend on the number of entries,
    /// unless a caller of [`Stripe::gone`] has found keys absent.
    pub fn swap(&mut self, other: &mut Self, version: u64, now_ms: u64) {
        self.note_swapped(other, now_ms);
        other.note_swapped(self, now_ms);
        std::mem::swap(&mut self.table, &mut other.table);
        std::mem::swap(&mut self.slots, &mut other.slots);
        std::mem::swap(&mut self.structures, &mut other.structures);
        std::mem::swap(&mut self.expiry, &mut other.expiry);
        std::mem::swap(&mut self.order, &mut other.order);
        std::mem::swap(&mut self.streams, &mut other.streams);
        self.share.swap(&mut other.share);
        for stripe in [self, other] {
            stripe.floor = stripe.floor.max(version);
            stripe.count_from(version);
        }
    }

    /// Counts a removal of each key that has an entry here or is about to get one: it was absent for a moment, or is no
    /// longer. An expired entry of the other stripe changes nothing for a reader that found its key absent.
    fn note_swapped(&mut self, other: &Self, now_ms: u64) {
        if !self.gone.is_counting() {
            return;
        }
        for at in &self.table {
            self.gone.note(self.slots[*at].hash);
        }
        for at in &other.table {
            let slot = &other.slots[*at];
            if other.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms) {
                self.gone.note(slot.hash);
            }
        }
    }

    /// Returns the key and the topic of a stream, if any key is one.
    pub fn any_stream(&self) -> Option<(&[u8], TopicId)> {
        if self.streams == 0 {
            return None;
        }
        self.table.iter().find_map(|at| Some((self.slots[*at].key(), self.stream_at(*at)?)))
    }
}
