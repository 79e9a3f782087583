//! Scripts that run now: which other clients can see and kill.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use broker::Cache;
use engine::security::TenantName;

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
    /// Tenant whose client runs the script.
    pub(in crate::redis) tenant: Option<TenantName>,
    /// Time at which the load of a library is ended.
    until: Option<Instant>,
    /// One of the three below. Whichever of the first change and the kill comes first wins, so it changes once.
    stage: AtomicU8,
}

/// The script has changed nothing, and may be killed.
const READING: u8 = 0;
/// The script has changed data, and runs to its end.
const WRITING: u8 = 1;
/// The script was killed, and changes nothing.
const KILLED_NOW: u8 = 2;

impl Running {
    pub(in crate::redis) fn new(
        name: Vec<u8>,
        is_function: bool,
        command: Vec<Box<[u8]>>,
        caches: Vec<Arc<Cache>>,
        tenant: Option<TenantName>,
    ) -> Self {
        let (began, stage) = (Instant::now(), AtomicU8::new(READING));
        Self { name, is_function, command, began, caches, tenant, until: None, stage }
    }

    /// Creates the load of a library, which other clients do not see.
    pub(super) fn load(time_max: Duration) -> Self {
        let until = Instant::now().checked_add(time_max);
        Self { until, ..Self::new(Vec::new(), true, Vec::new(), Vec::new(), None) }
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
        self.reach(WRITING)
    }

    pub(in crate::redis) fn is_killed(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == KILLED_NOW
    }

    /// Returns `true` if the script has changed data.
    pub(in crate::redis) fn has_written(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == WRITING
    }

    /// Ends the script. Returns `false` if it has changed data.
    pub(in crate::redis) fn kill(&self) -> bool {
        self.reach(KILLED_NOW)
    }

    /// Moves a script that only reads to this stage. Returns `true` if it is there now.
    fn reach(&self, stage: u8) -> bool {
        match self.stage.compare_exchange(READING, stage, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(current) => current == stage,
        }
    }

    /// Returns why the script must end, if it must.
    pub(super) fn ended_by(&self) -> Option<&'static str> {
        if self.is_killed() {
            return Some(KILLED);
        }
        self.until.is_some_and(|until| Instant::now() >= until).then_some(TIMED_OUT)
    }
}

/// Message of the error that ends a script.
pub(super) const KILLED: &str = "Script killed by user with SCRIPT KILL...";
/// Message of the error that ends the load of a library.
const TIMED_OUT: &str = "FUNCTION LOAD timeout";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_killed_or_writes_and_both_sides_agree() {
        for _ in 0..2000 {
            let running = Arc::new(Running::new(Vec::new(), false, Vec::new(), Vec::new(), None));
            let barrier = Arc::new(std::sync::Barrier::new(2));
            let script = std::thread::spawn({
                let (running, barrier) = (running.clone(), barrier.clone());
                move || {
                    barrier.wait();
                    running.note_write()
                }
            });
            barrier.wait();
            let is_killed = running.kill();
            let may_write = script.join().expect("it does not panic");
            assert_eq!(is_killed, !may_write, "SCRIPT KILL and the script disagree");
            assert_eq!(is_killed, running.is_killed());
        }
    }
}
