//! What went: whoever saw that a key had nothing can tell whether it had something meanwhile.

/// Keys share so many counts. That another one went is told as if it were the key itself, which is seldom.
const PLACES: usize = 1024;

/// Counts of entries that went, from the first time on that somebody asks.
#[derive(Debug, Default)]
pub(super) struct Gone(Option<Box<[u32; PLACES]>>);

impl Gone {
    /// How many of the keys that share its count went. Another number than before means that this one may have.
    pub(super) fn count(&mut self, mark: u32) -> u32 {
        self.0.get_or_insert_with(|| Box::new([0; PLACES]))[place(mark)]
    }

    pub(super) fn note(&mut self, mark: u32) {
        if let Some(counts) = &mut self.0 {
            let count = &mut counts[place(mark)];
            *count = count.wrapping_add(1);
        }
    }

    /// What was noted last was nothing.
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
