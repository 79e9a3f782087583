//! Fairness among the connections of a worker: turns that take long wait in line and share a part of the thread's time,
//! so that a light request waits for one of them at most, however many connections send heavy ones.
//!
//! A turn cannot be interrupted, so its connection is judged by its previous turns and by the number of bytes it has
//! just read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use crate::workers::Worker;

/// Duration from which a turn is heavy.
const HEAVY: Duration = Duration::from_micros(100);
/// Weight that a heavy turn adds to its connection. Each light turn removes 1.
const HEAVY_WEIGHT: u8 = 4;
/// Weight above which the next turn of a connection is assumed to be heavy: after two heavy turns. The first one was
/// measured by wall-clock time only, and another thread may have had the processor.
const SUSPECT_WEIGHT: u8 = 4;
const WEIGHT_MAX: u8 = 16;
/// Bytes of requests in one read that are assumed to cause a heavy turn.
const HEAVY_READ_BYTES: usize = 4 << 10;
/// Weight that [`HEAVY_READ_BYTES`] add. In the line, it outweighs the previous turns.
const READ_WEIGHT: u8 = WEIGHT_MAX;
/// Number of consecutive light turns after which a connection may read more without being assumed heavy.
const TRUSTED_TURNS: u8 = 32;
/// Total duration of heavy turns after which all other connections of the thread get their turn.
const STINT: Duration = Duration::from_millis(1);

/// Heavy turns of one worker.
#[derive(Default)]
pub struct HeavyTurns {
    /// Time that heavy turns have taken since the line was last opened.
    spent: Cell<Duration>,
    is_closed: Cell<bool>,
    closed: Notify,
    /// At most one entry for each connection.
    line: RefCell<BTreeMap<Ticket, Waker>>,
    /// Ticket that was woken last: it gets its turn even if the line closes in the meantime.
    called: Cell<Option<Ticket>>,
    next_number: Cell<u64>,
}

/// Place in the line, ordered by weight and then by arrival.
type Ticket = (u8, u64);

impl HeavyTurns {
    /// Opens the line again each time that the other connections have had their turn.
    pub(crate) async fn run(worker: Rc<Worker>) {
        let heavy = &worker.heavy;
        loop {
            heavy.closed.notified().await;
            // The runtime polls sockets and timers, and runs the tasks that these wake, before it returns here.
            tokio::task::yield_now().await;
            heavy.spent.set(Duration::ZERO);
            heavy.is_closed.set(false);
            heavy.wake_next();
        }
    }

    fn wake_next(&self) {
        if let Some((ticket, waker)) = self.line.borrow().first_key_value() {
            self.called.set(Some(*ticket));
            waker.wake_by_ref();
        }
    }

    fn spend(&self, took: Duration) {
        self.spent.set(self.spent.get() + took);
        if self.is_closed.get() {
            return;
        }
        if self.spent.get() < STINT {
            self.wake_next();
        } else {
            self.is_closed.set(true);
            self.closed.notify_one();
        }
    }
}

/// Turns of one connection: their durations, and the place in the line. Dropping it leaves the line.
pub struct Turns {
    worker: Rc<Worker>,
    ticket: Option<Ticket>,
    /// `true` if this turn is assumed to be heavy: the first in line waits for its end.
    is_called: bool,
    /// Weight of the last turns.
    weight: u8,
    /// Turns since the last heavy one, up to [`TRUSTED_TURNS`].
    light_turns: u8,
}

impl Turns {
    /// Creates the turns of a new connection, which is assumed to be light.
    pub fn new(worker: Rc<Worker>) -> Self {
        Self { worker, ticket: None, is_called: false, weight: 0, light_turns: 0 }
    }

    /// Returns `true` if the connection waits in line: none of its frames is handled until its task is woken.
    pub fn waits(&mut self, cx: &Context<'_>) -> bool {
        if self.ticket.is_none() {
            return false;
        }
        self.stand_in_line(cx, 0)
    }

    /// Sends the connection to the end of the line if its turn is likely to be heavy and others come first. Returns
    /// `true` if it waits.
    pub fn begin(&mut self, cx: &Context<'_>, read_bytes: usize) -> bool {
        let is_small = read_bytes < HEAVY_READ_BYTES || self.light_turns >= TRUSTED_TURNS;
        let read_weight = if is_small { 0 } else { READ_WEIGHT };
        if self.weight + read_weight <= SUSPECT_WEIGHT || self.is_called {
            return false;
        }
        self.stand_in_line(cx, read_weight)
    }

    fn stand_in_line(&mut self, cx: &Context<'_>, read_weight: u8) -> bool {
        let heavy = &self.worker.heavy;
        let mut line = heavy.line.borrow_mut();
        let ticket = *self.ticket.get_or_insert_with(|| {
            let number = heavy.next_number.replace(heavy.next_number.get() + 1);
            (self.weight + read_weight, number)
        });
        let is_called = heavy.called.get() == Some(ticket);
        // Invariant: while the line is open its first one has been woken, so nothing is put before that.
        let is_first = || line.first_key_value().is_none_or(|(first, _)| ticket <= *first);
        if is_called || (!heavy.is_closed.get() && is_first()) {
            if is_called {
                heavy.called.set(None);
            }
            line.remove(&ticket);
            self.ticket = None;
            self.is_called = true;
            return false;
        }
        line.entry(ticket).and_modify(|waker| waker.clone_from(cx.waker())).or_insert_with(|| cx.waker().clone());
        true
    }

    /// Starts to measure a turn.
    #[inline]
    pub fn clock(&self) -> Clock {
        Clock { at: Instant::now(), cpu: (self.weight > 0 || self.is_called).then(thread_time) }
    }

    /// Returns `true` if a recent turn was heavy.
    #[inline]
    pub fn are_suspect(&self) -> bool {
        self.weight > 0
    }

    /// Ends the turn that the clock has measured.
    #[inline]
    pub fn end(&mut self, clock: &Clock) {
        let mut took = clock.at.elapsed();
        let mut is_heavy = took >= HEAVY;
        if let (true, Some(began)) = (is_heavy, clock.cpu) {
            took = thread_time().saturating_sub(began);
            is_heavy = took >= HEAVY;
        }
        (self.weight, self.light_turns) = if is_heavy {
            ((self.weight + HEAVY_WEIGHT).min(WEIGHT_MAX), 0)
        } else {
            (self.weight.saturating_sub(1), (self.light_turns + 1).min(TRUSTED_TURNS))
        };
        if std::mem::take(&mut self.is_called) || is_heavy {
            self.worker.heavy.spend(took);
        }
    }
}

/// Start of a turn. For a connection with heavy turns, the processor time of its thread is measured too, which takes a
/// system call.
pub struct Clock {
    at: Instant,
    cpu: Option<Duration>,
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Drop for Turns {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.worker.heavy.line.borrow_mut().remove(&ticket);
        }
        if self.ticket.is_some() || self.is_called {
            self.worker.heavy.spend(Duration::ZERO);
        }
    }
}
