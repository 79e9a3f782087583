//! Counters of removed entries. A reader that found a key absent can tell later whether the key had an entry in the
//! meantime.

/// Number of counters, which the keys share by their hashes. The removal of another key with the same counter looks
/// like a removal of this key, which is rare.
const PLACES: usize = 1024;

/// Counters of removed entries, allocated by the first call of [`Gone::count`].
#[derive(Debug, Default)]
pub(super) struct Gone(Option<Box<[u32; PLACES]>>);

impl Gone {
    /// Returns the number of removals among the keys that share this counter. A number that differs from an earlier one
    /// means that this key may have been removed.
    pub(super) fn count(&mut self, mark: u32) -> u32 {
        self.0.get_or_insert_with(|| Box::new([0; PLACES]))[place(mark)]
    }

    /// Returns `true` if any number was requested, so that removals are counted.
    pub(super) fn is_counting(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn note(&mut self, mark: u32) {
        if let Some(counts) = &mut self.0 {
            let count = &mut counts[place(mark)];
            *count = count.wrapping_add(1);
        }
    }

    /// Reverts the last [`Gone::note`] of a key.
    pub(super) fn forget(&mut self, mark: u32) {
        if let Some(counts) = &mut self.0 {
            let count = &mut counts[place(mark)];
            *count = count.wrapping_sub(1);
        }
    }
}

fn place(mark: u32) -> usize {
    mark as usize % PLACES
}
