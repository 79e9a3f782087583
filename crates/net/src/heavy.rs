//! Fairness among the connections of a shard: turns that take long wait in line and share a part of the thread's time,
//! so that a light request waits for one of them at most, however many connections send heavy ones.
//!
//! A turn cannot be interrupted, so its connection is judged by its turns before and by how much it has just read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use crate::shards::Shard;

/// A turn that takes this long is heavy.
const HEAVY: Duration = Duration::from_micros(100);
/// Weight that a heavy turn adds to its connection. Each light turn removes 1.
const HEAVY_WEIGHT: u8 = 4;
/// The next turn of a connection is taken for heavy above this: after two heavy turns. The first one was measured by
/// the clock alone, and another thread may have had the processor.
const SUSPECT_WEIGHT: u8 = 4;
const WEIGHT_MAX: u8 = 16;
/// Bytes of requests in one read that are taken for a heavy turn.
const HEAVY_READ_BYTES: usize = 4 << 10;
/// Weight that [`HEAVY_READ_BYTES`] add: in line, it counts more than the turns before.
const READ_WEIGHT: u8 = WEIGHT_MAX;
/// A connection whose last turns, at least this many, were light may read more without being taken for heavy.
const TRUSTED_TURNS: u8 = 32;
/// The time that heavy turns take together before all other connections of the thread have theirs.
const STINT: Duration = Duration::from_millis(1);

/// The heavy turns of one shard.
#[derive(Default)]
pub struct HeavyTurns {
    /// Time that heavy turns have taken since the line was last opened.
    spent: Cell<Duration>,
    is_closed: Cell<bool>,
    closed: Notify,
    /// At most one entry for each connection.
    line: RefCell<BTreeMap<Ticket, Waker>>,
    /// The one that was woken last: its turn comes whatever closes the line in the meantime.
    called: Cell<Option<Ticket>>,
    next_number: Cell<u64>,
}

/// A place in the line: the lightest first, and of equal weight the first that came.
type Ticket = (u8, u64);

impl HeavyTurns {
    /// Opens the line again each time that the other connections have had their turn.
    pub(crate) async fn run(shard: Rc<Shard>) {
        let heavy = &shard.heavy;
        loop {
            heavy.closed.notified().await;
            // The runtime polls sockets and timers, and runs whatever that wakes, before it comes back here.
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

/// The turns of one connection: how long they took, and its place in the line. Dropping it leaves the line.
pub struct Turns {
    shard: Rc<Shard>,
    ticket: Option<Ticket>,
    /// This turn is taken for a heavy one: the first in line waits for its end.
    is_called: bool,
    /// How heavy the last turns were.
    weight: u8,
    /// Turns since the last heavy one, up to [`TRUSTED_TURNS`].
    light_turns: u8,
}

impl Turns {
    pub fn new(shard: Rc<Shard>) -> Self {
        Self { shard, ticket: None, is_called: false, weight: 0, light_turns: 0 }
    }

    /// Whether the connection waits in line: nothing of it is handled until its task is woken.
    pub fn waits(&mut self, cx: &Context<'_>) -> bool {
        if self.ticket.is_none() {
            return false;
        }
        self.stand_in_line(cx, 0)
    }

    /// Sends the connection to the end of the line if its turn is likely to be heavy and others come first. Returns
    /// whether it waits.
    pub fn begin(&mut self, cx: &Context<'_>, read_bytes: usize) -> bool {
        let is_small = read_bytes < HEAVY_READ_BYTES || self.light_turns >= TRUSTED_TURNS;
        let read_weight = if is_small { 0 } else { READ_WEIGHT };
        if self.weight + read_weight <= SUSPECT_WEIGHT || self.is_called {
            return false;
        }
        self.stand_in_line(cx, read_weight)
    }

    fn stand_in_line(&mut self, cx: &Context<'_>, read_weight: u8) -> bool {
        let heavy = &self.shard.heavy;
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
            (self.ticket, self.is_called) = (None, true);
            return false;
        }
        line.entry(ticket).and_modify(|waker| waker.clone_from(cx.waker())).or_insert_with(|| cx.waker().clone());
        true
    }

    /// Begins to measure a turn.
    #[inline]
    pub fn clock(&self) -> Clock {
        Clock { at: Instant::now(), cpu: (self.weight > 0 || self.is_called).then(thread_time) }
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
        (self.weight, self.light_turns) = match is_heavy {
            true => ((self.weight + HEAVY_WEIGHT).min(WEIGHT_MAX), 0),
            false => (self.weight.saturating_sub(1), (self.light_turns + 1).min(TRUSTED_TURNS)),
        };
        if std::mem::take(&mut self.is_called) || is_heavy {
            self.shard.heavy.spend(took);
        }
    }
}

/// When a turn began. A connection with heavy turns is also measured by the time that its thread had the processor,
/// which takes a system call.
pub struct Clock {
    at: Instant,
    cpu: Option<Duration>,
}

/// The time for which this thread has had a processor.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Drop for Turns {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shard.heavy.line.borrow_mut().remove(&ticket);
        }
        if self.ticket.is_some() || self.is_called {
            self.shard.heavy.spend(Duration::ZERO);
        }
    }
}
