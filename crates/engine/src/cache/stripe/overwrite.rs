//! Changes of a part of a value. The rest of the value is not copied.

use super::{Condition, Expires, Key, Kind, Slot, Stored, Stripe, check_size, wrong_kind};
use crate::error::Result;

impl Stripe {
    /// Overwrites bytes of a value from position `at` on, and keeps its expiry time. A value that ends before `at` is
    /// extended with zeros; that of a missing key is empty. Fails like [`Stripe::put`], or if the value is a structure.
    pub fn overwrite(&mut self, key: Key<'_>, at: usize, bytes: &[u8], now_ms: impl Fn() -> u64) -> Result<Stored> {
        let end = at.saturating_add(bytes.len());
        check_size(key.bytes, end)?;
        let Some(place) = self.find(key, &now_ms) else {
            return self.put(key, &overwritten(&[], at, bytes), Expires::Kept, Condition::Always, now_ms);
        };
        let slot = &self.slots[place];
        if slot.kind != Kind::Bytes {
            return Err(wrong_kind(slot.kind, Kind::Bytes));
        }
        let (before, previous) = (slot.bytes(), self.version_of(slot));
        let more = end.saturating_sub(slot.value().len());
        if !self.has_room(more as u64) {
            let value = overwritten(self.slots[place].value(), at, bytes);
            return self.put(key, &value, Expires::Kept, Condition::Always, now_ms);
        }
        self.touch(place);
        self.slots[place].overwrite(at, bytes);
        if more > 0 {
            self.resized(place, before);
        }
        let version = self.changed(place);
        self.record_put(place);
        Ok(Stored::Done { version, previous: Some(previous) })
    }
}

impl Slot {
    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let at = usize::from(self.key_bytes) + at;
        let end = at + bytes.len();
        if end > self.block.len() {
            let mut block = std::mem::take(&mut self.block).into_vec();
            block.reserve_exact(end - block.len());
            block.resize(end, 0);
            self.block = block.into_boxed_slice();
        }
        self.block[at..end].copy_from_slice(bytes);
    }
}

fn overwritten(value: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let end = at + bytes.len();
    let mut overwritten = Vec::with_capacity(value.len().max(end));
    overwritten.extend_from_slice(value);
    overwritten.resize(value.len().max(end), 0);
    overwritten[at..end].copy_from_slice(bytes);
    overwritten
}
