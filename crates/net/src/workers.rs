//! Workers: one thread with one runtime per core. A connection stays on its worker, so that its state needs no locks.

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
use crate::sweeps::Sweeps;
use crate::wheel::{Key, Wheel};

/// Step of a worker's clock. A timeout is up to one step late.
const TICK: Duration = Duration::from_millis(10);
/// Number of ticks without a reader after which a clock stops until it is read again.
const QUIET_TICKS: u32 = 10;

/// Function that runs on a worker's own thread.
type Job = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Workers of a process. Dropping this value stops them.
pub struct Workers {
    workers: Vec<Remote>,
    stop: watch::Sender<bool>,
}

/// Worker from the point of view of other threads.
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
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            // A local runtime stays on the thread that has created it.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    if started.send(Ok(runtime.handle().clone())).is_ok() {
                        runtime.block_on(run(Rc::new(Worker::new(index)), queue, stopped));
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

impl Workers {
    /// Starts this number of workers, at least one. Fails if a thread or its runtime cannot be created.
    pub fn start(count: usize) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let workers =
            (0..count.max(1)).map(|index| Remote::start(index, stopped.clone())).collect::<io::Result<_>>()?;
        Ok(Self { workers, stop })
    }

    /// Returns the number of workers, at least one.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns `false`, because there is at least one worker.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Returns the runtime handle of a worker; the index wraps around.
    pub fn handle(&self, worker: usize) -> &Handle {
        &self.workers[worker % self.workers.len()].handle
    }

    /// Returns the runtime handles of all workers.
    pub fn handles(&self) -> Vec<Handle> {
        self.workers.iter().map(|worker| worker.handle.clone()).collect()
    }

    /// Runs `job` on the worker's thread, where it may spawn local tasks. The queue is unbounded: a caller that sends
    /// many jobs has to limit them, for example with a permit in each.
    pub fn run(&self, worker: usize, job: impl FnOnce(&Rc<Worker>) + Send + 'static) {
        if self.workers[worker].jobs.send(Box::new(job)).is_err() {
            tracing::debug!(worker, "the worker has stopped");
        }
    }

    /// Returns the number of connections of each worker.
    pub fn loads(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.load.load(Ordering::Relaxed)).collect()
    }

    /// Takes a place on the worker with the fewest connections.
    pub fn place(&self) -> Place {
        let worker =
            (0..self.workers.len()).min_by_key(|i| self.workers[*i].load.load(Ordering::Relaxed)).unwrap_or_default();
        self.place_on(worker)
    }

    /// Takes a place on this worker.
    pub fn place_on(&self, worker: usize) -> Place {
        self.places(worker).place()
    }

    /// Returns the places of one worker, for code on that worker. That code must not hold the last reference to
    /// the workers.
    pub fn places(&self, worker: usize) -> Places {
        Places { worker, load: self.workers[worker].load.clone() }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for worker in &mut self.workers {
            let Some(thread) = worker.thread.take() else {
                continue;
            };
            // If a task of a worker drops the last reference, that worker ends after the task.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker ended with a panic");
            }
        }
    }
}

/// Connection counter of one worker.
#[derive(Clone)]
pub struct Places {
    worker: usize,
    load: Arc<AtomicUsize>,
}

impl Places {
    /// Takes a place on the worker.
    pub fn place(&self) -> Place {
        self.load.fetch_add(1, Ordering::Relaxed);
        Place { worker: self.worker, load: self.load.clone() }
    }
}

/// Place of a connection on a worker. Dropping it frees the place.
pub struct Place {
    /// Index of the worker.
    pub worker: usize,
    load: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn run(worker: Rc<Worker>, mut jobs: mpsc::UnboundedReceiver<Job>, mut stopped: watch::Receiver<bool>) {
    tokio::task::spawn_local(run_clock(worker.clone()));
    tokio::task::spawn_local(HeavyTurns::run(worker.clone()));
    tokio::task::spawn_local(Sweeps::run(worker.clone()));
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => job(&worker),
                None => return,
            },
            // An error means that the owner was dropped, which is a stop too.
            _ = stopped.wait_for(|stop| *stop) => return,
        }
    }
}

/// State that the tasks of one worker share: a coarse clock and the deadlines of all connections.
///
/// The clock runs only while it is being read, so that an idle worker sleeps.
pub struct Worker {
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
    pub(crate) sweeps: Sweeps,
}

/// Function that runs at each tick while the clock runs. Its argument is `true` at the last tick before the clock
/// stops. It is removed when it returns `false`.
type Chore = Box<dyn Fn(bool) -> bool>;

impl Worker {
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
            sweeps: Sweeps::default(),
        }
    }

    /// Returns the index of the worker.
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

/// Deadline of one task on the wheel of its worker. When it has passed, the task is woken and checks which of its
/// deadlines is due.
pub struct Timer {
    worker: Rc<Worker>,
    entry: Option<(Key, u64)>,
}

impl Timer {
    /// Creates a timer without a deadline.
    pub fn new(worker: Rc<Worker>) -> Self {
        Self { worker, entry: None }
    }

    /// Wakes the task of `cx` at this tick at the latest.
    pub fn set(&mut self, due: u64, cx: &Context<'_>) {
        let mut timers = self.worker.timers.borrow_mut();
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
        if !self.worker.is_running.get() {
            self.worker.changed.notify_one();
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
            self.worker.timers.borrow_mut().remove(key);
        }
    }
}

/// Advances the wheel: in steps while the clock is being read, otherwise only when a deadline is due.
async fn run_clock(worker: Rc<Worker>) {
    let mut quiet_ticks = 0;
    loop {
        if worker.is_running.get() {
            tokio::time::sleep(TICK).await;
        } else {
            let due = worker.timers.borrow().next_due();
            let changed = worker.changed.notified();
            match due {
                None => changed.await,
                Some(due) => {
                    let at = worker.began + TICK * u32::try_from(due).unwrap_or(u32::MAX);
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        () = changed => {}
                    }
                }
            }
        }
        let now = worker.read();
        worker.now.set(now);
        let mut fired = Vec::new();
        worker.timers.borrow_mut().advance(now, |waker| fired.push(waker.clone()));
        fired.into_iter().for_each(Waker::wake);
        quiet_ticks = if worker.is_watched.replace(false) { 0 } else { quiet_ticks + 1 };
        worker.is_running.set(quiet_ticks < QUIET_TICKS);
        worker.chores.borrow_mut().retain(|chore| chore(quiet_ticks >= QUIET_TICKS));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    #[test]
    fn workers_end_when_one_of_them_drops_the_last_handle() {
        let workers = Arc::new(Workers::start(2).expect("threads"));
        let (ended, end) = channel::<()>();
        for worker in 0..2 {
            let ended = ended.clone();
            // Dropped with the task when the thread ends.
            let task = async move {
                std::future::pending::<()>().await;
                drop(ended);
            };
            workers.run(worker, move |_| drop(tokio::task::spawn_local(task)));
        }
        drop(ended);
        let handle = workers.clone();
        let (dropped, is_last) = channel::<()>();
        workers.run(0, move |_| {
            is_last.recv().expect("a word");
            drop(handle);
        });
        drop(workers);
        dropped.send(()).expect("heard");
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
    }
}
