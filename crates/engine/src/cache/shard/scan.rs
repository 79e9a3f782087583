//! Entries found without their keys.

use super::{Cursor, Found, Shard};

impl Shard {
    /// A key that is there, whichever: another one for each number.
    pub fn any_key(&self, number: u64, now_ms: u64) -> Option<&[u8]> {
        let end = u64::from(self.slots.end());
        (0..end).map(|step| ((number + step) % end) as u32).find_map(|at| {
            let slot = &self.slots[at];
            let is_there = slot.state.is_taken() && self.expires_ms(slot).is_none_or(|expires_ms| expires_ms > now_ms);
            is_there.then(|| slot.key())
        })
    }

    /// Entries from a place on, in no order that means anything: each that is there all the time comes once. It looks
    /// at so many places at most, and ends early where `each` says so. Where to go on, until all were seen.
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

    /// How many places a scan looks at in all.
    pub fn places(&self) -> u32 {
        self.slots.end()
    }
}
