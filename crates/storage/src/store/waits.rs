//! Owner that blocks a thread until a change of the catalog is durable.

use std::time::Duration;

use engine::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::journal::Owner;

/// Maximum time that a thread blocks for the journal.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Blocks until the journal reports the outcome of an entry.
#[derive(Default)]
pub(super) struct Waits {
    outcome: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Waits {
    pub(super) fn wait(&self) -> Result<()> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            if self.changed.wait_for(&mut outcome, WAIT_MAX).timed_out() && outcome.is_none() {
                return Err(Error::busy("the journal takes too long; is the disk full?"));
            }
        }
    }

    fn set(&self, outcome: Result<()>) {
        *self.outcome.lock() = Some(outcome);
        self.changed.notify_all();
    }
}

impl Owner for Waits {
    fn committed(&self, _mark: u64) {
        self.set(Ok(()));
    }

    fn failed(&self, error: &Error) {
        self.set(Err(error.clone()));
    }
}
