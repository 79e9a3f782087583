//! The buffers that the connections of one thread take turns with.

use std::cell::Cell;
use std::time::Instant;

use super::out::Out;

/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// An output buffer that grew beyond this is not kept.
const OUT_KEPT_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Scratch {
    read: Vec<u8>,
    pub(super) out: Out,
    /// Counted since the last write.
    pub(super) batch: Batch,
}

/// What is counted once for all frames of a turn.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) started: u64,
    pub(super) completed: u64,
    pub(super) messages: u64,
    pub(super) bytes_read: u64,
    /// Of the completed ones, those that were answered in this turn, and when it began if that is measured.
    pub(super) answered_at_once: u64,
    pub(super) began: Option<Instant>,
}

impl Scratch {
    /// The read buffer, with the output beside it.
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

/// Lends the thread's buffers to one turn of one connection. Should a turn run inside another, there are new ones.
pub(super) fn with<T>(turn: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut lent = Lent(SCRATCH.take());
    turn(lent.0.get_or_insert_default())
}

/// What a turn has for its time. A turn that ends in a panic gives it back too, with what it counted.
struct Lent(Option<Box<Scratch>>);

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(mut scratch) = self.0.take() {
            scratch.out.recycle(OUT_KEPT_BYTES);
            SCRATCH.set(Some(scratch));
        }
    }
}
