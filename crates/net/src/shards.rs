//! Shards: one thread with one runtime per core. A connection stays on its shard, so that its state needs no locks.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::sync::{Notify, mpsc, watch};

use crate::heavy::HeavyTurns;
use crate::wheel::{Key, Wheel};

/// Step of a shard's clock. A timeout is up to one step late.
const TICK: Duration = Duration::from_millis(10);
/// Number of ticks without a reader after which a clock stops until it is read again.
const QUIET_TICKS: u32 = 10;

/// Function that runs on a shard's own thread.
type Job = Box<dyn FnOnce(&Rc<Shard>) + Send>;

/// Shards of a process. Dropping this value stops them.
pub struct Shards {
    shards: Vec<Remote>,
    stop: watch::Sender<bool>,
}

/// Shard from the point of view of other threads.
struct Remote {
    handle: Handle,
    jobs: mpsc::UnboundedSender<Job>,
    load: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    fn start(index: usize, stopped: watch::Receiver<bool>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (started, starting) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || {
            // A local runtime stays on the thread that has created it.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    if started.send(Ok(runtime.handle().clone())).is_ok() {
                        runtime.block_on(run(Rc::new(Shard::new(index)), queue, stopped));
                        runtime.shutdown_background();
                    }
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let handle = starting.recv().map_err(io::Error::other)??;
        Ok(Self { handle, jobs, load: Arc::default(), thread: Some(thread) })
    }
}

impl Shards {
    /// Starts this number of shards, at least one. Fails if a thread or its runtime cannot be created.
    pub fn start(count: usize) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let shards = (0..count.max(1)).map(|index| Remote::start(index, stopped.clone())).collect::<io::Result<_>>()?;
        Ok(Self { shards, stop })
    }

    /// Returns the number of shards, at least one.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns `false`, because there is at least one shard.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the runtime handle of a shard; the index wraps around.
    pub fn handle(&self, shard: usize) -> &Handle {
        &self.shards[shard % self.shards.len()].handle
    }

    /// Returns the runtime handles of all shards.
    pub fn handles(&self) -> Vec<Handle> {
        self.shards.iter().map(|shard| shard.handle.clone()).collect()
    }

    /// Runs `job` on the shard's thread, where it may spawn local tasks. The queue is unbounded: a caller that sends
    /// many jobs has to limit them, for example with a permit in each.
    pub fn run(&self, shard: usize, job: impl FnOnce(&Rc<Shard>) + Send + 'static) {
        if self.shards[shard].jobs.send(Box::new(job)).is_err() {
            tracing::debug!(shard, "the shard has stopped");
        }
    }

    /// Returns the number of connections of each shard.
    pub fn loads(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.load.load(Ordering::Relaxed)).collect()
    }

    /// Takes a place on the shard with the fewest connections.
    pub fn place(&self) -> Place {
        let shard =
            (0..self.shards.len()).min_by_key(|i| self.shards[*i].load.load(Ordering::Relaxed)).unwrap_or_default();
        self.place_on(shard)
    }

    /// Takes a place on this shard.
    pub fn place_on(&self, shard: usize) -> Place {
        self.places(shard).place()
    }

    /// Returns the places of one shard, for code on that shard, which must not hold the last reference to the shards.
    pub fn places(&self, shard: usize) -> Places {
        Places { shard, load: self.shards[shard].load.clone() }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for shard in &mut self.shards {
            let Some(thread) = shard.thread.take() else {
                continue;
            };
            // If a task of a shard drops the last reference, that shard ends after the task.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a shard ended with a panic");
            }
        }
    }
}

/// Connection counter of one shard.
#[derive(Clone)]
pub struct Places {
    shard: usize,
    load: Arc<AtomicUsize>,
}

impl Places {
    /// Takes a place on the shard.
    pub fn place(&self) -> Place {
        self.load.fetch_add(1, Ordering::Relaxed);
        Place { shard: self.shard, load: self.load.clone() }
    }
}

/// Place of a connection on a shard. Dropping it frees the place.
pub struct Place {
    /// Index of the shard.
    pub shard: usize,
    load: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn run(shard: Rc<Shard>, mut jobs: mpsc::UnboundedReceiver<Job>, mut stopped: watch::Receiver<bool>) {
    tokio::task::spawn_local(run_clock(shard.clone()));
    tokio::task::spawn_local(HeavyTurns::run(shard.clone()));
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => job(&shard),
                None => return,
            },
            // An error means that the owner was dropped, which is a stop too.
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}

/// State that the tasks of one shard share: a coarse clock and the deadlines of all connections.
///
/// The clock runs only while it is being read, so that an idle shard sleeps.
pub struct Shard {
    index: usize,
    began: Instant,
    /// Ticks since `began`. Correct while the clock runs.
    now: Cell<u64>,
    is_running: Cell<bool>,
    /// `true` if the clock was read since its last step.
    is_watched: Cell<bool>,
    /// Starts the clock, or notifies it of an earlier deadline.
    changed: Notify,
    timers: RefCell<Wheel<Waker>>,
    chores: RefCell<Vec<Chore>>,
    pub(crate) heavy: HeavyTurns,
}

/// Function that runs at each tick while the clock runs. Its argument is `true` at the last tick before the clock
/// stops. It is removed when it returns `false`.
type Chore = Box<dyn Fn(bool) -> bool>;

impl Shard {
    fn new(index: usize) -> Self {
        Self {
            index,
            began: Instant::now(),
            now: Cell::new(0),
            is_running: Cell::new(false),
            is_watched: Cell::new(false),
            changed: Notify::new(),
            timers: RefCell::default(),
            chores: RefCell::default(),
            heavy: HeavyTurns::default(),
        }
    }

    /// Returns the index of the shard.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the time in ticks, at most one tick old.
    pub fn now(&self) -> u64 {
        self.is_watched.set(true);
        if !self.is_running.get() {
            self.now.set(self.read());
            self.is_running.set(true);
            self.changed.notify_one();
        }
        self.now.get()
    }

    /// Returns a number of ticks that elapses only after `duration` has passed.
    pub fn ticks(duration: Duration) -> u64 {
        let ticks = duration.as_nanos().div_ceil(TICK.as_nanos());
        u64::try_from(ticks).map_or(u64::MAX / 2, |ticks| ticks.min(u64::MAX / 2) + 1)
    }

    fn read(&self) -> u64 {
        (self.began.elapsed().as_nanos() / TICK.as_nanos()) as u64
    }

    /// Runs a function at each tick while the clock runs, which it does until some ticks after all connections have
    /// become idle. Its argument is `true` if the clock stops after this tick. It is removed when it returns `false`.
    pub fn at_each_tick(&self, chore: impl Fn(bool) -> bool + 'static) {
        self.chores.borrow_mut().push(Box::new(chore));
    }

    /// Returns the result of `work`, or `None` if it takes longer than `duration`.
    pub async fn within<T>(self: &Rc<Self>, duration: Duration, work: impl Future<Output = T>) -> Option<T> {
        let due = self.now() + Self::ticks(duration);
        let mut work = pin!(work);
        let mut timer = Timer::new(self.clone());
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.now() >= due => Poll::Ready(None),
            Poll::Pending => {
                timer.set(due, cx);
                Poll::Pending
            }
        })
        .await
    }

    /// Wakes every task that has a timer.
    pub fn wake_all(&self) {
        self.timers.borrow().values().for_each(Waker::wake_by_ref);
    }
}

/// Deadline of one task on the wheel of its shard. When it has passed, the task is woken and checks which of its
/// deadlines is due.
pub struct Timer {
    shard: Rc<Shard>,
    entry: Option<(Key, u64)>,
}

impl Timer {
    /// Creates a timer without a deadline.
    pub fn new(shard: Rc<Shard>) -> Self {
        Self { shard, entry: None }
    }

    /// Wakes the task of `cx` at this tick at the latest.
    pub fn set(&mut self, due: u64, cx: &Context<'_>) {
        let mut timers = self.shard.timers.borrow_mut();
        let key = match self.entry {
            Some((_, at)) if at == due => return,
            Some((key, _)) => {
                timers.set(key, due);
                if let Some(waker) = timers.value_mut(key) {
                    waker.clone_from(cx.waker());
                }
                key
            }
            None => timers.insert(due, cx.waker().clone()),
        };
        self.entry = Some((key, due));
        if !self.shard.is_running.get() {
            self.shard.changed.notify_one();
        }
    }

    /// Returns the tick at which the task will be woken.
    pub fn due(&self) -> Option<u64> {
        self.entry.map(|(_, due)| due)
    }

    /// Returns `true` if the timer has fired, and so has to be set again.
    pub fn has_fired(&self, now: u64) -> bool {
        self.entry.is_some_and(|(_, due)| due <= now)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some((key, _)) = self.entry {
            self.shard.timers.borrow_mut().remove(key);
        }
    }
}

/// Advances the wheel: in steps while the clock is being read, otherwise only when a deadline is due.
async fn run_clock(shard: Rc<Shard>) {
    let mut quiet_ticks = 0;
    loop {
        if shard.is_running.get() {
            tokio::time::sleep(TICK).await;
        } else {
            let due = shard.timers.borrow().next_due();
            let changed = shard.changed.notified();
            match due {
                None => changed.await,
                Some(due) => {
                    let at = shard.began + TICK * u32::try_from(due).unwrap_or(u32::MAX);
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        () = changed => {}
                    }
                }
            }
        }
        let now = shard.read();
        shard.now.set(now);
        let mut fired = Vec::new();
        shard.timers.borrow_mut().advance(now, |waker| fired.push(waker.clone()));
        fired.into_iter().for_each(Waker::wake);
        quiet_ticks = if shard.is_watched.replace(false) { 0 } else { quiet_ticks + 1 };
        shard.is_running.set(quiet_ticks < QUIET_TICKS);
        shard.chores.borrow_mut().retain(|chore| chore(quiet_ticks >= QUIET_TICKS));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    #[test]
    fn shards_whose_last_handle_is_on_one_of_them_end() {
        let shards = Arc::new(Shards::start(2).expect("threads"));
        let (ended, end) = channel::<()>();
        for shard in 0..2 {
            let ended = ended.clone();
            // Dropped with the task when the thread ends.
            let task = async move {
                std::future::pending::<()>().await;
                drop(ended);
            };
            shards.run(shard, move |_| drop(tokio::task::spawn_local(task)));
        }
        drop(ended);
        let (handle, (dropped, is_last)) = (shards.clone(), channel::<()>());
        shards.run(0, move |_| {
            is_last.recv().expect("a word");
            drop(handle);
        });
        drop(shards);
        dropped.send(()).expect("heard");
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
    }
}
