//! Bytes of an unfinished message on a connection that has switched to another protocol, such as WebSocket.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of an unfinished message that need no permit.
const FREE_BYTES: usize = 64 << 10;

/// Counter of the bytes that arrived since the last whole message, with the permit for those beyond 64 KiB. Without
/// it, the connection can no longer be read.
pub struct Unfinished {
    budget: Arc<Semaphore>,
    bytes: AtomicUsize,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Unfinished {
    pub(super) fn new(budget: Arc<Semaphore>) -> Self {
        Self { budget, bytes: AtomicUsize::new(0), held: Mutex::default() }
    }

    /// Counts bytes that have arrived. Fails if there is no permit for them.
    pub(super) fn add(&self, bytes: usize) -> io::Result<()> {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= FREE_BYTES {
            return Ok(());
        }
        let many = u32::try_from(bytes).unwrap_or(u32::MAX);
        let permit = self.budget.clone().try_acquire_many_owned(many).map_err(|error| {
            io::Error::other(format!("too many bytes of unfinished messages are in memory: try again later ({error})"))
        })?;
        let mut held = self.held.lock();
        match &mut *held {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
        Ok(())
    }

    /// Subtracts a whole message that arrived between parts of another one.
    pub fn subtract(&self, bytes: usize) {
        // The task that reads the connection is the only one that counts.
        self.bytes.store(self.bytes().saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Returns the permit: the message is complete.
    pub fn finish(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.held.lock().take();
    }

    /// Returns the bytes that arrived since the last whole message.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_share_a_budget_until_they_are_complete() {
        let budget = Arc::new(Semaphore::new(100_000));
        let [a, b] = [(); 2].map(|()| Unfinished::new(budget.clone()));
        a.add(FREE_BYTES).expect("free");
        assert_eq!(budget.available_permits(), 100_000);
        a.add(60_000).expect("a permit");
        b.add(FREE_BYTES).expect("free");
        b.add(40_000).expect("a permit");
        assert_eq!((budget.available_permits(), b.bytes()), (0, FREE_BYTES + 40_000));
        assert!(b.add(1).is_err(), "there is no permit");
        a.finish();
        assert_eq!((budget.available_permits(), a.bytes()), (60_000, 0));
        b.add(1).expect("a permit");
        b.subtract(2);
        assert_eq!(b.bytes(), FREE_BYTES + 40_000);
        b.subtract(usize::MAX);
        assert_eq!((budget.available_permits(), b.bytes()), (59_999, 0));
        drop(b);
        assert_eq!(budget.available_permits(), 100_000);
    }
}
