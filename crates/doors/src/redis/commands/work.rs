//! Limits of the work that commands do while they hold the locks of their stripes, and the execution of larger commands
//! in slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broker::metrics::Exposition;
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::combine::Combination;
use super::geo::Search;
use crate::redis::command::Step;
use crate::redis::errors::{Done, Fail};
use crate::redis::writer::Writer;

/// Maximum number of members, keys and items that a command visits in one step, about a millisecond. Commands that
/// visit more run in slices, if they can.
const STEP_MAX: u64 = 4096;
/// Number of members, keys and items in one slice, after which other connections of the thread run.
const SLICE_UNITS: u64 = 4096;
/// Maximum number of members times keys of a command that runs in slices.
const COMMAND_MAX: u64 = 1 << 24;
/// Maximum number of members, keys and items for all commands of a transaction, which is one step of any duration.
const TRANSACTION_MAX: u64 = 1 << 18;
/// Time limit of a transaction, after which its remaining commands are refused. Its thread serves no other client in
/// the meantime.
pub const TRANSACTION_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum size of sliced commands that do not wait for larger ones.
const SHORT_MAX: u64 = 1 << 17;

/// Work that a step has left for slices, which run without its locks.
pub(in crate::redis) enum Sliced {
    Combine(Combination),
    Search(Search),
    /// `KEYS`, with its pattern.
    Keys(Box<[u8]>),
}

/// Scheduler of commands that run in slices: one short and one long command at a time, so that all other commands have
/// most of the time of each thread, regardless of the number of such commands. The others wait in the order of their
/// arrival, each with a connection that does nothing else.
pub(in crate::redis) struct Slices {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    /// Number of commands that have begun in slices.
    begun: AtomicU64,
    /// Number of commands that wait for their turn or run.
    waiting: AtomicU64,
}

impl Default for Slices {
    fn default() -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Self { short: one(), long: one(), begun: AtomicU64::new(0), waiting: AtomicU64::new(0) }
    }
}

/// Turn of a command that runs in slices. Dropping it begins the turn of the next one.
pub(in crate::redis) struct Turn {
    slices: Arc<Slices>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.slices.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slices {
    /// Waits for the turn of a command that visits this many members or keys.
    pub(in crate::redis) async fn turn(self: Arc<Self>, units: u64) -> Turn {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let lane = if units <= SHORT_MAX { &self.short } else { &self.long };
        let acquire = lane.clone().acquire_owned();
        let mut turn = Turn { slices: self, _permit: None };
        // The semaphores are never closed.
        turn._permit = acquire.await.ok();
        turn
    }

    pub(in crate::redis) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.counter("thalweg_redis_sliced", "Commands over many members or keys that ran in slices", get(&self.begun))?;
        out.gauge("thalweg_redis_slices_waiting", "Commands in slices that wait or run", get(&self.waiting))
    }
}

/// Pace of work: in slices, or immediately because there is little.
pub(in crate::redis) struct Pace {
    is_sliced: bool,
    left: u64,
}

impl Pace {
    pub(in crate::redis) fn sliced() -> Self {
        Self { is_sliced: true, left: SLICE_UNITS }
    }

    /// Returns the pace of work that was admitted as one step.
    pub(super) fn at_once() -> Self {
        Self { is_sliced: false, left: 0 }
    }

    /// Records visited units, and yields to other connections at the end of a slice.
    #[inline]
    pub(in crate::redis) async fn spend(&mut self, units: u64) {
        if self.is_sliced {
            match self.left.checked_sub(units) {
                Some(left) => self.left = left,
                None => {
                    self.left = SLICE_UNITS;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Completes work that is not sliced, and so never waits.
pub(super) fn at_once<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("invariant: what is not sliced does not wait")
}

impl Step<'_, '_> {
    /// Returns `true` if the units may be visited in this step, and `false` if they must be visited in slices. Fails if
    /// they are too many even for slices.
    pub(super) fn admits(&mut self, units: u64, what: &str) -> Done<bool> {
        if !self.may_slice {
            return self.admits_beside(units).map(|()| true);
        }
        if units > COMMAND_MAX {
            return Err(Fail::new(format!(
                "ERR the command reads {units} {what}, members times keys; at most {COMMAND_MAX} are allowed: combine \
                 fewer keys at a time, and store partial results with the command that ends in STORE"
            )));
        }
        Ok(units <= STEP_MAX)
    }

    /// Refuses a command that visits more than `max` units and cannot run in slices.
    pub(super) fn admits_up_to(&mut self, units: u64, max: u64, what: &str) -> Done {
        if units > max {
            return Err(Fail::new(format!(
                "ERR the command reads {units} {what}; at most {max} are allowed: request fewer at a time"
            )));
        }
        if self.may_slice { Ok(()) } else { self.admits_beside(units) }
    }

    /// Refuses a command in a transaction if the transaction would visit too many units in total.
    fn admits_beside(&mut self, units: u64) -> Done {
        // Each command has a minimum cost, even if it visits little.
        let looked = self.out.looked.saturating_add(units.max(16));
        if looked > TRANSACTION_MAX {
            return Err(Fail::new(format!(
                "ERR the commands of a transaction read at most {TRANSACTION_MAX} members, keys and items together, \
                 and with this one they read {looked}: send it outside of the transaction"
            )));
        }
        self.out.looked = looked;
        Ok(())
    }
}

/// Time limit of a transaction.
pub(super) struct TransactionTime {
    began: Instant,
    max: Duration,
}

impl TransactionTime {
    pub(super) fn begin(max: Duration) -> Self {
        Self { began: Instant::now(), max }
    }

    /// Returns `true` and writes the error for the next command if the time limit has been reached.
    pub(super) fn refuses(&self, now: Instant, out: &mut Writer) -> bool {
        let is_over = now.duration_since(self.began) >= self.max;
        if is_over {
            let ms = self.max.as_millis();
            out.error(&Fail::new(format!(
                "ERR the transaction takes more than {ms} ms: this command was not executed. Use several transactions"
            )));
        }
        is_over
    }
}
