//! Threads for scripts that may take any time. A thread that serves connections never runs such a script, so that it
//! delays no client of any door that does not use the same keys.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt::Result as Written;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use broker::Cache;
use broker::metrics::Exposition;
use engine::security::TenantName;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use super::batch::{Units, guarded};
use super::running::Running;
use crate::redis::errors::{Done, Fail, fixed};

/// Number of threads for all scripts. They are started when they are needed.
pub(in crate::redis) const LANES_MAX: usize = 4;
/// Maximum number of these threads that the scripts of one tenant have at a time.
const LANES_OF_TENANT_MAX: usize = 2;
/// Maximum number of threads. Those above [`LANES_MAX`] run scripts of tenants and clients without a tenant of which no
/// other script runs, so that endless scripts of others do not keep them from running.
const LANES_ALL_MAX: usize = 32;
/// Size in bytes of the stack of a thread: for the 200 C functions of Lua that may be nested, which have buffers of
/// 8 KiB, and for a decoder of nested data on top of them.
const STACK_BYTES: usize = 16 << 20;
/// Maximum number of scripts that wait for a thread, and of those of one tenant.
const QUEUE_MAX: usize = 4096;
const QUEUE_OF_TENANT_MAX: usize = 1024;

/// Error for a script that comes, or waits, while the door closes.
pub(in crate::redis) const CLOSED: Fail = fixed("TRYAGAIN the server is shutting down: connect again");

/// Guard of a script that runs.
pub(in crate::redis) struct Entered {
    lanes: Arc<Lanes>,
    running: Arc<Running>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut running = self.lanes.running.lock();
        running.retain(|other| !Arc::ptr_eq(other, &self.running));
        self.lanes.running_count.store(running.len(), Ordering::Release);
        drop(running);
        self.lanes.has_ended.notify_waiters();
    }
}

/// Hands over results. Called once the job counts as ended, since a client may send its next script as soon as it has
/// a result.
pub(super) type HandOver = Box<dyn FnOnce() + Send>;

/// Work of a thread.
pub(super) enum Job {
    /// Work other than scripts of a connection.
    One(Box<dyn FnOnce() -> HandOver + Send>),
    Units(Units),
}

impl Job {
    /// Returns the number of its scripts.
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Units(units) => units.len(),
        }
    }

    /// Runs until its turn is over. Returns the job that is left, and the hand-over of the results that exist.
    fn turn(self) -> (Option<Self>, Option<HandOver>) {
        match self {
            Self::One(work) => (None, guarded(work)),
            Self::Units(units) => {
                let (left, unsent) = units.turn();
                (left.map(Self::Units), Some(Box::new(move || unsent.send())))
            }
        }
    }

    /// Ends it with an error.
    pub(super) fn refuse(self, fail: &Fail) {
        match self {
            Self::One(work) => drop(work),
            Self::Units(units) => units.refuse(fail),
        }
    }
}

/// Tenant whose scripts these are; `None` for the scripts of all clients without a tenant.
pub(super) type Owner = Option<TenantName>;

/// Queue of scripts, which the threads run in the order of their arrival, as far as the shares of their owners allow.
#[derive(Default)]
pub(in crate::redis) struct Lanes {
    state: Mutex<Queue>,
    running: Mutex<Vec<Arc<Running>>>,
    /// Number of running scripts.
    running_count: AtomicUsize,
    has_ended: Notify,
    begun: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Jobs that a thread takes next. Each has its place in `begun`.
    ready: VecDeque<(Owner, Job)>,
    /// Jobs that wait until others have ended.
    waiting: VecDeque<(Owner, Job)>,
    /// Number of the scripts of `waiting`.
    waiting_count: usize,
    /// Number of jobs of each owner that run or are ready.
    begun: HashMap<Owner, usize>,
    /// Sum of `begun`.
    begun_count: usize,
    threads: usize,
    /// Threads that wait for a job. The one that came last takes the next job, as it has the most of what scripts use
    /// in its processor's cache.
    idle: Vec<Arc<Condvar>>,
    is_closed: bool,
}

impl Queue {
    /// Returns `true` if a job of this owner may begin.
    fn may_begin(&self, owner: &Owner) -> bool {
        let of_owner = self.begun.get(owner).copied().unwrap_or_default();
        let share = if owner.is_some() { LANES_OF_TENANT_MAX } else { LANES_MAX };
        of_owner == 0 && self.begun_count < LANES_ALL_MAX || of_owner < share && self.begun_count < LANES_MAX
    }

    fn begin(&mut self, owner: Owner, job: Job) {
        *self.begun.entry(owner.clone()).or_default() += 1;
        self.begun_count += 1;
        self.ready.push_back((owner, job));
    }

    fn wait(&mut self, owner: Owner, job: Job) {
        self.waiting_count += job.len();
        self.waiting.push_back((owner, job));
    }

    /// Notes the end of a turn, and makes the next job ready that may begin now.
    fn end(&mut self, owner: &Owner) {
        if let Some(count) = self.begun.get_mut(owner) {
            *count -= 1;
            self.begun_count -= 1;
            if *count == 0 {
                self.begun.remove(owner);
            }
        }
        if let Some(at) = self.waiting.iter().position(|(owner, _)| self.may_begin(owner))
            && let Some((owner, job)) = self.waiting.remove(at)
        {
            self.waiting_count -= job.len();
            self.begin(owner, job);
        }
    }
}

thread_local! {
    /// Number of the thread for scripts.
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of this thread for scripts.
pub(super) fn lane() -> usize {
    LANE.get()
}

impl Lanes {
    /// Runs work of an owner on one of the threads. Returns the receiver of its result; it fails if the work ends with
    /// a panic, or if the door closes before.
    pub(in crate::redis) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        owner: Owner,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Done<oneshot::Receiver<T>> {
        let (send, receive) = oneshot::channel();
        let job = move || {
            let result = work();
            // A client that has disconnected receives no result.
            Box::new(move || drop(send.send(result))) as HandOver
        };
        self.add(owner, Job::One(Box::new(job))).map_err(|(fail, _job)| fail)?;
        Ok(receive)
    }

    /// Queues a job of an owner. Returns it if it cannot run.
    pub(super) fn add(self: &Arc<Self>, owner: Owner, job: Job) -> Result<(), (Fail, Job)> {
        let count = job.len();
        let mut queue = self.state.lock();
        if queue.is_closed {
            return Err((CLOSED, job));
        }
        let of_owner = || {
            let jobs = queue.waiting.iter().filter(|(other, _)| *other == owner);
            jobs.map(|(_, job)| job.len()).sum::<usize>()
        };
        let is_full = queue.waiting_count + count > QUEUE_MAX;
        let is_too_much = |of: usize| of + count > QUEUE_OF_TENANT_MAX;
        let is_full_of_owner = || owner.is_some() && is_too_much(queue.waiting_count) && is_too_much(of_owner());
        if is_full || is_full_of_owner() {
            let max = if is_full { QUEUE_MAX } else { QUEUE_OF_TENANT_MAX };
            self.refused.fetch_add(count as u64, Ordering::Relaxed);
            let fail = Fail::new(format!(
                "BUSY {max} scripts are waiting for a thread: try again later, or end a script with SCRIPT KILL"
            ));
            return Err((fail, job));
        }
        self.begun.fetch_add(count as u64, Ordering::Relaxed);
        if !queue.may_begin(&owner) {
            queue.wait(owner, job);
            return Ok(());
        }
        queue.begin(owner, job);
        let woken = match self.thread_for_next(&mut queue) {
            Ok(woken) => woken,
            Err(error) if queue.threads == 0 => {
                let Some((owner, job)) = queue.ready.pop_back() else {
                    return Ok(());
                };
                queue.end(&owner);
                return Err((Fail::new(format!("ERR no thread for scripts could be started: {error}")), job));
            }
            // The other threads run the job.
            Err(_) => None,
        };
        drop(queue);
        if let Some(woken) = woken {
            woken.notify_one();
        }
        Ok(())
    }

    /// Returns an idle thread for a job that is ready, to be woken, or starts one if there is none.
    fn thread_for_next(self: &Arc<Self>, queue: &mut Queue) -> std::io::Result<Option<Arc<Condvar>>> {
        let idle = queue.idle.pop();
        if idle.is_none() && queue.threads < LANES_ALL_MAX {
            let lanes = self.clone();
            let number = queue.threads;
            let serve = move || {
                LANE.set(number);
                lanes.serve();
            };
            std::thread::Builder::new().name(format!("script-{number}")).stack_size(STACK_BYTES).spawn(serve)?;
            queue.threads += 1;
        }
        Ok(idle)
    }

    /// Runs jobs until the door closes.
    fn serve(self: &Arc<Self>) {
        let has_job = Arc::new(Condvar::new());
        let mut queue = self.state.lock();
        loop {
            let place = queue.idle.iter().position(|idle| Arc::ptr_eq(idle, &has_job));
            if let Some((owner, job)) = queue.ready.pop_front() {
                if let Some(place) = place {
                    queue.idle.remove(place);
                }
                drop(queue);
                let (left, hand_over) = job.turn();
                queue = self.state.lock();
                let (left, woken) = self.end_turn(&mut queue, owner, left);
                if queue.ready.is_empty() && !queue.is_closed {
                    // As soon as it has the result, a client may send its next script. This thread takes it, whose
                    // caches and state of Lua are warm.
                    queue.idle.push(has_job.clone());
                }
                MutexGuard::unlocked(&mut queue, || {
                    if let Some(woken) = woken {
                        woken.notify_one();
                    }
                    drop(left);
                    guarded(|| hand_over.map(|hand_over| hand_over()));
                });
            } else if queue.is_closed {
                return;
            } else {
                if place.is_none() {
                    queue.idle.push(has_job.clone());
                }
                has_job.wait(&mut queue);
            }
        }
    }

    /// Notes the end of a turn, and queues what is left of its job. Returns that if the door has closed, and a thread
    /// to be woken for the next job.
    fn end_turn(
        self: &Arc<Self>,
        queue: &mut Queue,
        owner: Owner,
        left: Option<Job>,
    ) -> (Option<Job>, Option<Arc<Condvar>>) {
        queue.end(&owner);
        if queue.is_closed {
            return (left, None);
        }
        if let Some(left) = left {
            // It had its place in the queue, so it is not refused.
            if queue.may_begin(&owner) {
                queue.begin(owner, left);
            } else {
                queue.wait(owner, left);
            }
        }
        // Others must not wait for the one that this thread takes.
        let woken = if queue.ready.len() > 1 { self.thread_for_next(queue) } else { Ok(None) };
        let woken = woken.unwrap_or_else(|error| {
            tracing::warn!(%error, "no further thread for scripts could be started");
            None
        });
        (None, woken)
    }

    /// Ends the threads once they have run what is queued. Running scripts are ended.
    pub(super) fn close(&self) {
        let jobs = {
            let mut queue = self.state.lock();
            queue.is_closed = true;
            for idle in queue.idle.drain(..) {
                idle.notify_one();
            }
            queue.waiting_count = 0;
            (std::mem::take(&mut queue.ready), std::mem::take(&mut queue.waiting))
        };
        drop(jobs);
        for running in self.running.lock().iter() {
            // A script that has changed data runs to its end.
            let _is_ended = running.kill();
        }
    }

    /// Shows a script to other clients until the guard is dropped.
    pub(in crate::redis) fn enter(self: &Arc<Self>, running: &Arc<Running>) -> Entered {
        let mut all = self.running.lock();
        all.push(running.clone());
        self.running_count.store(all.len(), Ordering::Release);
        drop(all);
        Entered { lanes: self.clone(), running: running.clone() }
    }

    #[inline]
    pub(in crate::redis) fn is_any_running(&self) -> bool {
        self.running_count.load(Ordering::Acquire) != 0
    }

    /// Waits until a script has ended.
    pub(super) async fn ended(&self, running: &Arc<Running>) {
        loop {
            let ended = self.has_ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.running.lock().iter().any(|other| Arc::ptr_eq(other, running)) {
                return;
            }
            ended.await;
        }
    }

    /// Returns the scripts that run now.
    pub(in crate::redis) fn running(&self) -> Vec<Arc<Running>> {
        self.running.lock().clone()
    }

    /// Returns the script that holds keys of a cache and has run for the longest time.
    pub(super) fn holder(&self, cache: &Cache) -> Option<Arc<Running>> {
        let holds = |running: &&Arc<Running>| running.caches.iter().any(|held| held.id() == cache.id());
        self.running.lock().iter().filter(holds).min_by_key(|running| running.began).cloned()
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> Written {
        let (waiting, threads) = {
            let queue = self.state.lock();
            let ready = queue.ready.iter().map(|(_, job)| job.len()).sum::<usize>();
            (ready + queue.waiting_count, queue.threads)
        };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        out.counter("thalweg_redis_scripts_queued", "Scripts that ran on a thread for scripts", get(&self.begun))?;
        out.counter("thalweg_redis_scripts_refused", "Scripts for which the queue was full", get(&self.refused))?;
        out.gauge("thalweg_redis_scripts_waiting", "Scripts that wait for a thread", waiting as u64)?;
        out.gauge(
            "thalweg_redis_scripts_running",
            "Scripts that run on such a thread",
            self.running.lock().len() as u64,
        )?;
        out.gauge("thalweg_redis_script_threads", "Threads for scripts", threads as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_and_a_closed_door_are_told_apart() {
        let lanes = Arc::new(Lanes::default());
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let waits = || {
            let gate = gate.clone();
            move || drop(gate.lock())
        };
        let mut refused = None;
        for _ in 0..QUEUE_MAX + LANES_MAX + 1 {
            refused = lanes.run(None, waits()).err().or(refused);
        }
        let refused = refused.expect("more than fit");
        let text = String::from_utf8_lossy(&refused.text);
        assert!(text.starts_with("BUSY 4096 scripts are waiting for a thread"), "{text}");
        assert_eq!(lanes.refused.load(Ordering::Relaxed), 1);
        lanes.close();
        assert_eq!(lanes.run(None, waits()).err(), Some(CLOSED));
        assert_eq!(lanes.refused.load(Ordering::Relaxed), 1, "the queue was not full");
        drop(closed);
    }

    #[test]
    fn a_tenant_has_a_share_of_the_threads_and_leaves_one_for_each_other() {
        let lanes = Arc::new(Lanes::default());
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let (begins, begun) = std::sync::mpsc::channel();
        let run = |owner: &Owner| {
            let (gate, begins, of) = (gate.clone(), begins.clone(), owner.clone());
            let job = move || {
                begins.send(of).expect("received");
                drop(gate.lock());
            };
            lanes.run(owner.clone(), job)
        };
        let tenant = |name: &str| Some(TenantName::parse(name).expect("valid"));
        let next = || begun.recv_timeout(std::time::Duration::from_secs(60)).expect("a script begins");
        let (a, b) = (tenant("a"), tenant("b"));
        (0..10).for_each(|_| drop(run(&a).expect("room")));
        assert_eq!([next(), next()], [a.clone(), a.clone()]);
        // The others have all other threads, and one more if these are taken.
        (0..3).for_each(|_| drop(run(&None).expect("room")));
        assert_eq!([next(), next()], [None, None]);
        run(&b).expect("room");
        assert_eq!(next(), b);
        assert!(begun.try_recv().is_err(), "no owner has more than its share");
        let mut refused = None;
        for _ in 0..QUEUE_OF_TENANT_MAX {
            refused = run(&a).err().or(refused);
        }
        assert!(refused.expect("a share of the queue").text.starts_with(b"BUSY 1024 scripts are waiting"));
        run(&b).expect("its own share");
        drop(closed);
        let waiting = 1 + QUEUE_OF_TENANT_MAX + 1;
        let later: Vec<Owner> = (0..waiting).map(|_| next()).collect();
        assert_eq!(later.iter().filter(|owner| **owner == b).count(), 1);
        assert_eq!(later.iter().filter(|owner| owner.is_none()).count(), 1);
    }

    #[test]
    fn scripts_of_one_client_after_another_run_on_one_thread() {
        let lanes = Arc::new(Lanes::default());
        let run = || lanes.run(None, || std::thread::current().id()).expect("room").blocking_recv().expect("a result");
        let first = run();
        for number in 0..1000 {
            assert_eq!(run(), first, "script {number}");
        }
        assert_eq!(lanes.state.lock().threads, 1);
        lanes.close();
    }

    #[test]
    fn no_job_is_forgotten_while_threads_hand_over_results() {
        let lanes = Arc::new(Lanes::default());
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let lanes = lanes.clone();
                std::thread::spawn(move || {
                    for number in 0..2000 {
                        let sent = (client, number);
                        let result = lanes.run(None, move || sent).expect("room").blocking_recv();
                        assert_eq!(result, Ok(sent));
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
        let queue = lanes.state.lock();
        assert_eq!((queue.begun_count, queue.ready.len(), queue.waiting.len()), (0, 0, 0));
        assert!(queue.idle.len() <= queue.threads, "a thread waits once");
    }

    #[test]
    fn a_panic_ends_only_its_job() {
        /// Result whose drop fails.
        struct Faulty;
        impl Drop for Faulty {
            fn drop(&mut self) {
                panic!("a fault");
            }
        }
        let lanes = Arc::new(Lanes::default());
        let panics = lanes.run(None, || assert_eq!(1, 2, "a fault")).expect("room");
        panics.blocking_recv().expect_err("it has no result");
        let (release, is_released) = std::sync::mpsc::channel::<()>();
        let faulty = lanes.run(None, move || {
            assert!(is_released.recv().is_err(), "nothing is sent");
            Faulty
        });
        drop(faulty.expect("room"));
        drop(release);
        // If the fault ended the thread of the second job, the door would wait for a thread that has ended.
        while lanes.state.lock().begun_count > 0 {
            std::thread::yield_now();
        }
        let threads = lanes.state.lock().threads;
        for _ in 0..100 {
            assert_eq!(lanes.run(None, || 7).expect("room").blocking_recv(), Ok(7));
        }
        assert_eq!(lanes.state.lock().threads, threads);
    }
}
