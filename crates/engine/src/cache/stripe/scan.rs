//! Scans, which find entries without their keys.

use super::{Cursor, Found, Stripe};

impl Stripe {
    /// Returns the first key at or after slot `number` modulo the number of slots whose entry has not expired.
    pub fn any_key(&self, number: u64, now_ms: u64) -> Option<&[u8]> {
        let end = u64::from(self.slots.end());
        (0..end).map(|step| ((number + step) % end) as u32).find_map(|at| {
            let slot = &self.slots[at];
            let is_there = slot.state.is_taken() && self.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms);
            is_there.then(|| slot.key())
        })
    }

    /// Calls `each` for entries from a position on, in no particular order. An entry that exists during the whole scan
    /// is visited exactly once. A call checks at most `places_max` slots, and ends early if `each` returns `false`.
    /// Returns the position from which to continue, or `None` at the end.
    pub fn scan(
        &self,
        from: Cursor,
        places_max: u32,
        now_ms: u64,
        mut each: impl FnMut(Found<'_>) -> bool,
    ) -> Option<Cursor> {
        let end = self.slots.end();
        let until = from.0.saturating_add(places_max).min(end);
        for at in from.0..until {
            let slot = &self.slots[at];
            let is_there = slot.state.is_taken() && self.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms);
            if is_there && !each(self.found(at)) {
                return Some(Cursor(at + 1));
            }
        }
        (until < end).then_some(Cursor(until))
    }

    /// Returns the number of slots that a whole scan checks.
    pub fn places(&self) -> u32 {
        self.slots.end()
    }
}
