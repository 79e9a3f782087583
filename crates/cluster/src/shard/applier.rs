//! The thread of a shard, which applies what other leaders have committed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use super::Shard;

/// Pause of a node that follows after it has applied what is committed: it takes many small entries at a time, and its
/// processor is free for the next ones. An elected node serves at most this much later.
const APPLY_PAUSE: Duration = Duration::from_millis(5);

/// Thread that applies committed entries of other leaders.
#[derive(Default)]
pub(super) struct Applier {
    has_work: Mutex<bool>,
    changed: Condvar,
    is_stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Applier {
    pub fn wake(&self) {
        *self.has_work.lock() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut has_work = self.has_work.lock();
        while !*has_work {
            self.changed.wait(&mut has_work);
        }
        *has_work = false;
    }

    /// Ends the thread, unless it calls this itself.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that applies entries ended with a panic");
        }
    }
}

impl Shard {
    pub(super) fn start_applier(self: &Arc<Self>) -> Result<()> {
        let (weak, applier) = (Arc::downgrade(self), self.applier.clone());
        let run = move || Self::run_applier(&weak, &applier);
        let thread = std::thread::Builder::new().name("shard-apply".into()).spawn(run);
        *self.applier.thread.lock() = Some(thread.map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread for the cluster: {error}"))
        })?);
        Ok(())
    }

    /// Returns `true` if there is work for the shard's thread.
    pub fn has_work(&self) -> bool {
        *self.applier.has_work.lock()
    }

    /// Does the work of the shard's thread, for a shard without one: applies what other leaders have committed.
    pub fn turn(&self) {
        *self.applier.has_work.lock() = false;
        self.apply_all();
    }

    fn apply_all(&self) {
        match self.failed() {
            Some(error) => self.give_up(&error),
            None if self.store.get().is_some() => self.settle(true),
            None => {}
        }
    }

    fn run_applier(weak: &Weak<Self>, applier: &Applier) {
        while !applier.is_stopped.load(Ordering::Acquire) {
            let Some(shard) = weak.upgrade() else { return };
            shard.apply_all();
            let pause = if shard.led.load(Ordering::Acquire) == 0 { APPLY_PAUSE } else { Duration::ZERO };
            // The shard ends when nobody else has it.
            drop(shard);
            std::thread::sleep(pause);
            applier.wait();
        }
    }
}
