//! How much commands may look at while they hold the locks of their shards, and how what is more is done in slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broker::metrics::Exposition;
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Step;
use super::combine::Combination;
use crate::redis::errors::{Done, Fail};
use crate::redis::writer::Writer;

/// Members, keys and items that a command looks at in one step, about a millisecond. Commands that look at more are
/// done in slices, if they can be.
const STEP_MAX: u64 = 4096;
/// The same of one slice, after which other connections of the thread have their turn.
const SLICE_UNITS: u64 = 4096;
/// Members times keys of a command that is done in slices.
const COMMAND_MAX: u64 = 1 << 24;
/// The same of all commands of a transaction, which is one step however long it takes.
const TRANSACTION_MAX: u64 = 1 << 18;
/// Time that a transaction may take before the rest of its commands is refused: no other client is served in the
/// meantime by its thread.
pub const TRANSACTION_TIME_MAX: Duration = Duration::from_secs(2);
/// Sliced commands up to this size do not wait for larger ones.
const SHORT_MAX: u64 = 1 << 17;

/// What a step has left to be done without its locks.
pub(in crate::redis) enum Sliced {
    Combine(Combination),
    /// `KEYS`, with its pattern.
    Keys(Box<[u8]>),
}

/// Commands that are done in slices: one short one and one long one at a time, so that all others have most of the
/// time of each thread however many there are. The rest waits in the order in which they came, each with a connection
/// that does nothing else.
pub(in crate::redis) struct Slices {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    /// Commands that were begun in slices.
    begun: AtomicU64,
    /// Commands that wait for their turn or are being done.
    waiting: AtomicU64,
}

impl Default for Slices {
    fn default() -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Self { short: one(), long: one(), begun: AtomicU64::new(0), waiting: AtomicU64::new(0) }
    }
}

/// A turn of a command that is done in slices. The next one's turn comes when it is dropped.
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
    /// Waits for the turn of a command that looks at so much.
    pub(in crate::redis) async fn turn(self: Arc<Self>, units: u64) -> Turn {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let lane = if units <= SHORT_MAX { &self.short } else { &self.long };
        let acquire = lane.clone().acquire_owned();
        let mut turn = Turn { slices: self, _permit: None };
        // The lanes are never closed.
        turn._permit = acquire.await.ok();
        turn
    }

    pub(in crate::redis) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.counter("thalweg_redis_sliced", "Commands over many members or keys that ran in slices", get(&self.begun))?;
        out.gauge("thalweg_redis_slices_waiting", "Commands in slices that wait or run", get(&self.waiting))
    }
}

/// How work is spread: in slices, or all at once because it is little.
pub(in crate::redis) struct Pace {
    is_sliced: bool,
    left: u64,
}

impl Pace {
    pub(in crate::redis) fn sliced() -> Self {
        Self { is_sliced: true, left: SLICE_UNITS }
    }

    /// For what was admitted as one step.
    pub(super) fn at_once() -> Self {
        Self { is_sliced: false, left: 0 }
    }

    /// Notes that so much was looked at, and lets others have their turn when a slice is over.
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

/// Completes what is done at once, and so never waits.
pub(super) fn at_once<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("invariant: what is not sliced does not wait")
}

impl Step<'_, '_> {
    /// Whether so much may be looked at in this step. If not it is to be done in slices; what is too much even for that
    /// is refused.
    pub(super) fn admits(&mut self, units: u64, what: &str) -> Done<bool> {
        if !self.may_slice {
            return self.admits_beside(units).map(|()| true);
        }
        if units > COMMAND_MAX {
            return Err(Fail::new(format!(
                "ERR the command looks at {units} {what}, members times keys; at most {COMMAND_MAX} are allowed: \
                 combine fewer keys at once, and keep results of parts with the command that ends in STORE"
            )));
        }
        Ok(units <= STEP_MAX)
    }

    /// Refuses a command that looks at more than `max` and cannot be done in slices.
    pub(super) fn admits_up_to(&mut self, units: u64, max: u64, what: &str) -> Done {
        if units > max {
            return Err(Fail::new(format!(
                "ERR the command looks at {units} {what}; at most {max} are allowed: ask for less at once"
            )));
        }
        if self.may_slice { Ok(()) } else { self.admits_beside(units) }
    }

    /// The same for a command in a transaction.
    fn admits_beside(&mut self, units: u64) -> Done {
        // Each counts for something, however little there is to look at.
        let looked = self.out.looked.saturating_add(units.max(16));
        if looked > TRANSACTION_MAX {
            return Err(Fail::new(format!(
                "ERR the commands of a transaction look at no more than {TRANSACTION_MAX} members, keys and items \
                 together, and with this one it were {looked}: do it outside of the transaction"
            )));
        }
        self.out.looked = looked;
        Ok(())
    }
}

/// The time that a transaction has.
pub(super) struct TransactionTime {
    began: Instant,
    max: Duration,
}

impl TransactionTime {
    pub(super) fn begin(max: Duration) -> Self {
        Self { began: Instant::now(), max }
    }

    /// Whether it is over at this moment. Then the command that were next is refused.
    pub(super) fn refuses(&self, now: Instant, out: &mut Writer) -> bool {
        let is_over = now.duration_since(self.began) >= self.max;
        if is_over {
            let ms = self.max.as_millis();
            out.error(&Fail::new(format!(
                "ERR the transaction takes more than {ms} ms: this command of it was not done. Use several transactions"
            )));
        }
        is_over
    }
}
