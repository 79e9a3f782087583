//! Table of the backups that are being copied.

use std::sync::Arc;

use bytes::Bytes;
use engine::{Error, Result};
use parking_lot::Mutex;
use storage::Snapshot;

use crate::metrics::Counter;

/// Snapshots that clients copy. The store limits their number and their time.
#[derive(Default)]
pub(crate) struct Backups {
    open: Mutex<Vec<Open>>,
    pub(crate) begun: Counter,
    pub(crate) bytes: Counter,
}

struct Open {
    number: u64,
    copy: Arc<Copying>,
}

/// Snapshot with its encoded manifest.
pub(crate) struct Copying {
    pub(crate) snapshot: Snapshot,
    pub(crate) manifest: Bytes,
}

impl Backups {
    pub(crate) fn add(&self, number: u64, snapshot: Snapshot) {
        self.begun.add(1);
        let manifest = snapshot.manifest().encode();
        self.open.lock().push(Open { number, copy: Arc::new(Copying { snapshot, manifest }) });
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<Copying>> {
        let open = self.open.lock();
        let found = open.iter().find(|open| open.number == number).map(|open| open.copy.clone());
        found.ok_or_else(|| Error::not_found("the backup has ended: begin another one"))
    }

    pub(crate) fn end(&self, number: u64) {
        // Dropped after the lock is released: that may take a while.
        let ended = {
            let mut open = self.open.lock();
            open.iter().position(|open| open.number == number).map(|at| open.swap_remove(at))
        };
        drop(ended);
    }

    /// Ends backups from which nothing was read for too long.
    pub(crate) fn end_idle(&self) {
        self.open.lock().retain(|open| !open.copy.snapshot.is_over());
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }
}
