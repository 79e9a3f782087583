//! The clock, and delays shorter than the ticks of the runtime's timers.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// Resolution to which the runtime's timers round up; shorter delays use a dedicated thread.
const RUNTIME_TICK: Duration = Duration::from_millis(2);

/// Source of the time of day. Time spans are measured with the runtime's clock instead, which never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    read_ms: fn() -> u64,
    /// Reads the time in microseconds, for a clock that has them.
    read_us: Option<fn() -> u64>,
}

impl Clock {
    /// The clock of the operating system.
    pub const SYSTEM: Self = Self { read_ms: system_ms, read_us: Some(system_us) };

    /// Returns a clock that reads the time with this function, in milliseconds since 1970.
    pub const fn reading(read_ms: fn() -> u64) -> Self {
        Self { read_ms, read_us: None }
    }

    /// Returns the current time, in milliseconds since 1970.
    pub fn now_ms(self) -> u64 {
        (self.read_ms)()
    }

    /// Returns the current time, in microseconds since 1970. A clock that counts milliseconds has no finer time.
    pub fn now_us(self) -> u64 {
        self.read_us.map_or_else(|| self.now_ms() * 1000, |read_us| read_us())
    }

    /// Returns the function with which the clock is read, in milliseconds since 1970.
    pub fn read(self) -> fn() -> u64 {
        self.read_ms
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::SYSTEM
    }
}

/// The time of one step: the clock is read when the step first needs it, and not again.
pub(crate) struct StepTime {
    clock: Clock,
    now_ms: Cell<Option<u64>>,
}

impl StepTime {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, now_ms: Cell::new(None) }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.get().unwrap_or_else(|| {
            let now_ms = self.clock.now_ms();
            self.now_ms.set(Some(now_ms));
            now_ms
        })
    }
}

fn system_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

fn system_ms() -> u64 {
    system_us() / 1000
}

/// Waits for `duration`, with a precision of a few tens of microseconds.
pub async fn delay(duration: Duration) {
    if duration >= RUNTIME_TICK {
        tokio::time::sleep(duration).await;
        return;
    }
    let (wake, woken) = oneshot::channel();
    short_delays().add(Instant::now() + duration, wake);
    // The thread only ends with the process; an error could only mean that, and is a wake-up too.
    woken.await.unwrap_or_default();
}

/// Queue of a thread that sleeps until the next of many short delays has elapsed.
#[derive(Default)]
struct ShortDelays {
    queue: Mutex<BinaryHeap<Reverse<Due>>>,
    changed: Condvar,
}

struct Due {
    at: Instant,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

fn short_delays() -> &'static ShortDelays {
    static SHORT_DELAYS: OnceLock<Arc<ShortDelays>> = OnceLock::new();
    SHORT_DELAYS.get_or_init(|| {
        let delays = Arc::new(ShortDelays::default());
        let thread = delays.clone();
        std::thread::Builder::new()
            .name("short-delays".into())
            .spawn(move || thread.run())
            .expect("invariant: the process may start a thread");
        delays
    })
}

impl ShortDelays {
    /// Adds a delay. The queue is bounded by the number of subscribers: each lane turn of one waits for at most one
    /// delay.
    fn add(&self, at: Instant, wake: oneshot::Sender<()>) {
        let mut queue = self.queue.lock();
        let is_first = queue.peek().is_none_or(|Reverse(due)| at < due.at);
        queue.push(Reverse(Due { at, wake }));
        if is_first {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            let Some(Reverse(due)) = queue.peek() else {
                self.changed.wait(&mut queue);
                continue;
            };
            let at = due.at;
            if at > Instant::now() {
                self.changed.wait_until(&mut queue, at);
                continue;
            }
            if let Some(Reverse(due)) = queue.pop() {
                // A waiter that has left need not be woken.
                due.wake.send(()).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_delay_is_never_shorter_than_asked() {
        let begin = Instant::now();
        let delays = [300u64, 100, 200].map(|us| async move {
            delay(Duration::from_micros(us)).await;
            assert!(begin.elapsed() >= Duration::from_micros(us));
        });
        futures_util::future::join_all(delays).await;
    }
}
