//! Background work of a store, on threads with a low priority.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Priority of the threads: a tenth of the share of other threads if the CPU time does not suffice for all.
const NICE: i32 = 10;

#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    threads: Vec<JoinHandle<()>>,
    /// `true` if work for the threads cannot wait.
    is_urgent: bool,
    is_stopped: bool,
}

impl Background {
    /// Starts a thread that repeats `work`, then rests for the returned time. The thread ends when it is stopped, or
    /// when it alone still references `of`. With `heeds`, it resumes early when work is urgent.
    pub(crate) fn spawn<T: Send + Sync + 'static>(
        self: &Arc<Self>,
        name: &str,
        of: Weak<T>,
        heeds: bool,
        work: fn(&T) -> Duration,
    ) -> Result<()> {
        let background = self.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            stand_back();
            let work_once = || of.upgrade().map(|of| work(&of));
            while let Some(rest) = work_once()
                && background.waits(rest, heeds)
            {}
        });
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread for the storage: {error}"))
        })?;
        self.state.lock().threads.push(thread);
        Ok(())
    }

    /// Waits for `time`; returns `false` if the threads are stopped in the meantime.
    pub(crate) fn rests(&self, time: Duration) -> bool {
        self.waits(time, false)
    }

    fn waits(&self, time: Duration, heeds: bool) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !(state.is_stopped || heeds && state.is_urgent) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        if heeds {
            state.is_urgent = false;
        }
        !state.is_stopped
    }

    pub(crate) fn hurry(&self) {
        self.state.lock().is_urgent = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits until the threads have ended.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut self.state.lock().threads);
        for thread in threads {
            thread.join().unwrap_or_else(|_| tracing::error!("a storage thread panicked"));
        }
    }
}

/// Lowers the priority of the calling thread, so that publishers and readers come first.
fn stand_back() {
    if let Err(error) = setpriority_process(Some(gettid()), NICE) {
        tracing::debug!(%error, "cannot lower the priority of background work");
    }
}
