//! Threads for scripts that may take any time. A thread that serves connections never runs such a script, so that it
//! delays no client of any door that does not use the same keys.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt::Result as Written;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use broker::Cache;
use broker::metrics::Exposition;
use engine::security::TenantName;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

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

/// Work of a thread. It returns the function that hands over the result.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce() + Send> + Send>;
/// Tenant whose scripts these are; `None` for the scripts of all clients without a tenant.
type Owner = Option<TenantName>;

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
    /// Scripts that a thread takes next. Each has its place in `begun`.
    ready: VecDeque<(Owner, Job)>,
    /// Scripts that wait until others have ended.
    waiting: VecDeque<(Owner, Job)>,
    /// Number of scripts of each owner that run or are ready.
    begun: HashMap<Owner, usize>,
    /// Sum of `begun`.
    begun_count: usize,
    threads: usize,
    /// Threads that wait for a script. The one that came last takes the next script, as it has the most of what scripts
    /// use in its processor's cache.
    idle: Vec<Arc<Condvar>>,
    is_closed: bool,
}

impl Queue {
    /// Returns `true` if a script of this owner may begin.
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

    /// Notes the end of a script, and makes the next one ready that may begin now.
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
            Box::new(move || drop(send.send(result))) as Box<dyn FnOnce() + Send>
        };
        self.add(owner, Box::new(job))?;
        Ok(receive)
    }

    fn add(self: &Arc<Self>, owner: Owner, job: Job) -> Done {
        let mut queue = self.state.lock();
        if queue.is_closed {
            return Err(CLOSED);
        }
        let of_owner = || queue.waiting.iter().filter(|(other, _)| *other == owner).count();
        let is_full = queue.waiting.len() == QUEUE_MAX;
        if is_full || owner.is_some() && queue.waiting.len() >= QUEUE_OF_TENANT_MAX && of_owner() >= QUEUE_OF_TENANT_MAX
        {
            let count = if is_full { QUEUE_MAX } else { QUEUE_OF_TENANT_MAX };
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Fail::new(format!(
                "BUSY {count} scripts are waiting for a thread: try again later, or end a script with SCRIPT KILL"
            )));
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        if !queue.may_begin(&owner) {
            queue.waiting.push_back((owner, job));
            return Ok(());
        }
        queue.begin(owner, job);
        let woken = queue.idle.pop();
        if woken.is_none() && queue.threads < LANES_ALL_MAX {
            let lanes = self.clone();
            let number = queue.threads;
            let started =
                std::thread::Builder::new().name(format!("script-{number}")).stack_size(STACK_BYTES).spawn(move || {
                    LANE.set(number);
                    lanes.serve();
                });
            match started {
                Ok(_thread) => queue.threads += 1,
                Err(error) if queue.threads == 0 => {
                    if let Some((owner, _job)) = queue.ready.pop_back() {
                        queue.end(&owner);
                    }
                    return Err(Fail::new(format!("ERR no thread for scripts could be started: {error}")));
                }
                // The other threads run the job.
                Err(_) => {}
            }
        }
        drop(queue);
        if let Some(woken) = woken {
            woken.notify_one();
        }
        Ok(())
    }

    /// Runs jobs until the door closes.
    fn serve(&self) {
        let has_job = Arc::new(Condvar::new());
        let mut queue = self.state.lock();
        loop {
            let place = queue.idle.iter().position(|idle| Arc::ptr_eq(idle, &has_job));
            if let Some((owner, job)) = queue.ready.pop_front() {
                if let Some(place) = place {
                    queue.idle.remove(place);
                }
                drop(queue);
                // A panic must not end the thread, which others count on. Its caller sees that the job has no result.
                let done = std::panic::catch_unwind(AssertUnwindSafe(job));
                queue = self.state.lock();
                queue.end(&owner);
                if queue.ready.is_empty() && !queue.is_closed {
                    // As soon as it has the result, a client may send its next script. This thread takes it, whose
                    // caches and state of Lua are warm.
                    queue.idle.push(has_job.clone());
                }
                MutexGuard::unlocked(&mut queue, || {
                    let handed = done.and_then(|hand_over| std::panic::catch_unwind(AssertUnwindSafe(hand_over)));
                    if handed.is_err() {
                        broker::act_for(None);
                        tracing::error!("a script of a Redis client has ended with a panic");
                    }
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

    /// Ends the threads once they have run what is queued. Running scripts are ended.
    pub(super) fn close(&self) {
        let jobs = {
            let mut queue = self.state.lock();
            queue.is_closed = true;
            for idle in queue.idle.drain(..) {
                idle.notify_one();
            }
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
            (queue.ready.len() + queue.waiting.len(), queue.threads)
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
