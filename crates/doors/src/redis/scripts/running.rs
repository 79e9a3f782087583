//! Scripts that run now: which other clients can see and kill.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use broker::Cache;

use crate::redis::command::{Command, Does, Keys, Named};

/// A script that runs on a thread for scripts.
pub(in crate::redis) struct Running {
    /// Name of the script or function.
    pub(in crate::redis) name: Vec<u8>,
    pub(in crate::redis) is_function: bool,
    /// Command that the client sent, for `FUNCTION STATS`.
    pub(in crate::redis) command: Vec<Box<[u8]>>,
    pub(in crate::redis) began: Instant,
    /// Caches that the script has locked keys of.
    pub(in crate::redis) caches: Vec<Arc<Cache>>,
    is_killed: AtomicBool,
    has_written: AtomicBool,
}

impl Running {
    pub(in crate::redis) fn new(
        name: Vec<u8>,
        is_function: bool,
        command: Vec<Box<[u8]>>,
        caches: Vec<Arc<Cache>>,
    ) -> Self {
        let (is_killed, has_written) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { name, is_function, command, began: Instant::now(), caches, is_killed, has_written }
    }

    /// Returns `true` if the script has run for this long and holds something that the command wants in one of these
    /// caches.
    pub(super) fn holds(&self, min: Duration, command: &Command, args: &[&[u8]], of: impl Fn(&Cache) -> bool) -> bool {
        if self.began.elapsed() < min {
            return false;
        }
        let is_wanted = |cache: &Cache| match command.keys(args) {
            _ if matches!(command.does, Does::Script(_)) || command.name == "EXEC" => cache.is_any_held(),
            _ if command.flushes() || matches!(command.keys, Keys::All) => cache.is_any_held(),
            Named::These(keys) => keys.iter().any(|key| cache.is_held(key)),
            Named::All => cache.is_any_held(),
        };
        self.caches.iter().any(|cache| of(cache) && is_wanted(cache))
    }

    /// Notes that the script changes data, so that it can no longer be killed. Returns `false` if it was killed before.
    pub(super) fn note_write(&self) -> bool {
        self.has_written.store(true, Ordering::SeqCst);
        !self.is_killed()
    }

    pub(in crate::redis) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::SeqCst)
    }

    pub(in crate::redis) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Ends the script. Returns `false` if it has changed data.
    pub(in crate::redis) fn kill(&self) -> bool {
        self.is_killed.store(true, Ordering::SeqCst);
        // A script that writes after this sees that it is killed.
        if self.has_written() {
            self.is_killed.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Returns why the script must end, if it must.
    pub(super) fn ended_by(&self) -> Option<&'static str> {
        self.is_killed().then_some(KILLED)
    }
}

/// Message of the error that ends a script.
pub(super) const KILLED: &str = "Script killed by user with SCRIPT KILL...";
