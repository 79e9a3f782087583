//! Buffers that the connections of one thread share.

use std::cell::Cell;
use std::time::Instant;

use super::out::Out;

/// Maximum bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Capacity above which an output buffer is not kept.
const OUT_KEPT_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Scratch {
    read: Vec<u8>,
    pub(super) out: Out,
    /// Counts since the last write.
    pub(super) batch: Batch,
}

/// Counts of a turn, which are added to the counters once for all its frames.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) started: u64,
    pub(super) completed: u64,
    pub(super) messages: u64,
    pub(super) bytes_read: u64,
    /// Number of completed requests that were answered in this turn, and the time at which it began if durations are
    /// measured.
    pub(super) answered_at_once: u64,
    pub(super) began: Option<Instant>,
}

impl Scratch {
    /// Returns the read buffer, together with the output and the counts.
    pub(super) fn split(&mut self, bytes: usize) -> (&mut [u8], &mut Out, &mut Batch) {
        if self.read.len() < bytes.max(READ_BYTES) {
            self.read.resize(bytes.max(READ_BYTES), 0);
        }
        (&mut self.read, &mut self.out, &mut self.batch)
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Lends the thread's buffers to one turn of one connection. A turn that runs inside another gets new ones.
pub(super) fn with<T>(turn: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut lent = Lent(SCRATCH.take());
    turn(lent.0.get_or_insert_default())
}

/// Buffers of a turn. They are returned even if the turn ends in a panic, with its counts.
struct Lent(Option<Box<Scratch>>);

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(mut scratch) = self.0.take() {
            scratch.out.recycle(OUT_KEPT_BYTES);
            SCRATCH.set(Some(scratch));
        }
    }
}
