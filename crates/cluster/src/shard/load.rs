//! Sizes of a shard: everything in it that grows, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Shard;

/// Sizes of everything in a shard that grows, and counts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of the log in memory, for nodes that are a little behind, or not applied yet.
    pub held_bytes: u64,
    /// Bytes of records that wait for a majority.
    pub waiting_bytes: u64,
    /// Bytes of records that are in no entry yet.
    pub queued_bytes: u64,
    /// Entries of the log in memory.
    pub log_entries: u64,
    /// Writes to the journal that are not synced yet.
    pub saving: u64,
    /// Messages of leaders that were dropped because this node had no room; they are sent again.
    pub put_off: u64,
    /// Publishes that were refused because too much waits for other nodes.
    pub refused: u64,
}

/// Progress of the present or the last catch-up of this node.
#[derive(Debug, Default)]
pub struct Progress {
    /// Offsets that are missing, and those that have been fetched.
    pub wanted: AtomicU64,
    pub fetched: AtomicU64,
    /// Bytes that have been fetched since the start.
    pub bytes: AtomicU64,
}

/// Counts since the start.
#[derive(Default)]
pub(super) struct Counts {
    pub put_off: AtomicU64,
    pub refused: AtomicU64,
}

impl Shard {
    /// Returns the sizes of everything that grows, and counts.
    pub fn load(&self) -> Load {
        let (held_bytes, (log_entries, saving)) = {
            let machine = self.machine.lock();
            (machine.held_bytes(), machine.counts())
        };
        Load {
            held_bytes,
            waiting_bytes: self.in_flight.load(Ordering::Relaxed),
            queued_bytes: self.queue.lock().bytes,
            log_entries,
            saving,
            put_off: self.counts.put_off.load(Ordering::Relaxed),
            refused: self.counts.refused.load(Ordering::Relaxed),
        }
    }

    /// Returns the progress of the present or the last catch-up.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
}
