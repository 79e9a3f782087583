//! Notes that doors keep with a queue, such as its tags and its policy, bounded in bytes.

use std::collections::BTreeMap;

use engine::{Error, Result};

use super::Queues;

type Notes = BTreeMap<String, String>;

/// Bytes that doors store with a queue and that are not counted.
const FREE_NOTES_BYTES: usize = 2 << 10;

/// Maximum number of bytes that doors may store with all queues, beyond [`FREE_NOTES_BYTES`] of each.
const ALL_NOTES_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes that doors may store with one queue.
const NOTES_BYTES_MAX: usize = 64 << 10;

impl Queues {
    /// Refuses the notes of a door for a queue, such as tags and policies, if there is no room for them. `before` are
    /// the notes that they replace.
    pub(super) fn check_notes(&self, notes: &Notes, before: &Notes) -> Result<()> {
        let bytes = size_of_notes(notes);
        let before = size_of_notes(before);
        if bytes > NOTES_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the tags and policies of a queue have at most {NOTES_BYTES_MAX} bytes"
            )));
        }
        // Most queues have few notes, and then those of other queues are not counted.
        if bytes <= FREE_NOTES_BYTES.max(before) {
            return Ok(());
        }
        let beyond = |bytes: usize| bytes.saturating_sub(FREE_NOTES_BYTES);
        let all = self.by_name.read();
        let used: usize = all.values().map(|cell| beyond(size_of_notes(&cell.definition().notes))).sum();
        if used + beyond(bytes) - beyond(before) <= ALL_NOTES_BYTES_MAX {
            Ok(())
        } else {
            Err(Error::busy(format!(
                "the tags and policies of all queues have {used} of {ALL_NOTES_BYTES_MAX} bytes beyond \
             {FREE_NOTES_BYTES} bytes of each queue: remove some first"
            )))
        }
    }
}

fn size_of_notes(notes: &Notes) -> usize {
    notes.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
}
