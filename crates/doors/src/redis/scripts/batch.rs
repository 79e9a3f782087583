//! Scripts that a connection has sent together. They go to a thread for scripts as one job, and their replies return
//! together: one switch of threads in each direction for all of them, and the next script finds what it needs in the
//! processor's cache. Each script is a step of its own.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::Commit;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::lanes::{Job, Lanes, Owner};
use crate::redis::codec::Answer;
use crate::redis::errors::{Done, Fail};

/// Maximum number of scripts of a batch, and of bytes of their arguments. A larger script is a batch on its own.
pub(super) const BATCH_SCRIPTS_MAX: usize = 64;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Time after which a batch leaves its thread to other scripts, once a script of it has ended.
const TURN_MAX: Duration = Duration::from_millis(5);
/// Time for which replies wait for those of later scripts of the batch; longer if the batch had to wait for a thread.
const SENT_AFTER: Duration = Duration::from_millis(5);
const SENT_AFTER_MAX: Duration = Duration::from_millis(80);

/// Script of a batch.
pub(in crate::redis) struct Unit {
    /// Runs the script. Its reply waits for the commit.
    pub(in crate::redis) work: Box<dyn FnOnce() -> Done<(Answer, Commit)> + Send>,
    /// Receives the reply. If it is dropped, the script had none: the door closes.
    pub(in crate::redis) reply: oneshot::Sender<Ended>,
    /// Size of the arguments in bytes.
    pub(in crate::redis) bytes: usize,
}

/// Script that has ended, or was refused.
pub(in crate::redis) struct Ended {
    pub(in crate::redis) done: Done<(Answer, Commit)>,
    /// Duration of the script, without the time in which it waited for a thread.
    pub(in crate::redis) took: Duration,
}

/// Scripts of a connection that are not queued yet.
#[derive(Default)]
pub(in crate::redis) struct Batch {
    owner: Owner,
    units: VecDeque<Unit>,
    bytes: usize,
}

impl Batch {
    /// Adds a script of this owner, the same for all scripts of a connection that it has sent together.
    pub(in crate::redis) fn push(&mut self, owner: Owner, unit: Unit) {
        self.owner = owner;
        self.bytes += unit.bytes;
        self.units.push_back(unit);
    }

    pub(in crate::redis) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Returns `true` if a script with a request of this size may follow another one.
    pub(in crate::redis) fn takes(&self, bytes: usize) -> bool {
        !self.units.is_empty() && self.units.len() < BATCH_SCRIPTS_MAX && self.bytes + bytes <= BATCH_BYTES_MAX
    }

    /// Queues the scripts. They all get an error if there is no room for them.
    pub(in crate::redis) fn begin(&mut self, lanes: &Arc<Lanes>) {
        if self.units.is_empty() {
            return;
        }
        let Self { owner, units, .. } = std::mem::take(self);
        let unsent = Arc::new(Unsent::default());
        if units.len() > 1 {
            tokio::spawn(send_in_time(Arc::downgrade(&unsent)));
        }
        if let Err((fail, job)) = lanes.add(owner, Job::Units(Units { units, unsent })) {
            job.refuse(&fail);
        }
    }
}

/// Queued scripts of a batch, and replies of others.
pub(super) struct Units {
    units: VecDeque<Unit>,
    unsent: Arc<Unsent>,
}

impl Units {
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Runs scripts until the end of the turn. Returns those that are left, and the replies.
    pub(super) fn turn(mut self) -> (Option<Self>, Arc<Unsent>) {
        let unsent = self.unsent.clone();
        unsent.state.lock().has_begun = true;
        let mut began = Instant::now();
        let until = began + TURN_MAX;
        while let Some(Unit { work, reply, .. }) = self.units.pop_front() {
            let done = guarded(work);
            let end = Instant::now();
            if let Some(done) = done {
                unsent.add(reply, Ended { done, took: end - began });
            }
            began = end;
            if began >= until {
                break;
            }
        }
        ((!self.units.is_empty()).then_some(self), unsent)
    }

    pub(super) fn refuse(self, fail: &Fail) {
        for unit in self.units {
            // A client that has disconnected receives no reply.
            drop(unit.reply.send(Ended { done: Err(fail.clone()), took: Duration::ZERO }));
        }
    }
}

/// Runs a job. A panic must not end the thread, which others count on: its caller sees that the job has no result.
pub(super) fn guarded<T>(job: impl FnOnce() -> T) -> Option<T> {
    let done = std::panic::catch_unwind(AssertUnwindSafe(job));
    if done.is_err() {
        broker::act_for(None);
        tracing::error!("a script of a Redis client has ended with a panic");
    }
    done.ok()
}

/// Replies of a batch that are sent together.
#[derive(Default)]
pub(super) struct Unsent {
    state: Mutex<Sending>,
}

#[derive(Default)]
struct Sending {
    /// `true` once the batch has a thread.
    has_begun: bool,
    /// `true` once each reply is sent as soon as it exists, because a script takes long.
    is_immediate: bool,
    ended: Vec<(oneshot::Sender<Ended>, Ended)>,
}

impl Unsent {
    fn add(&self, reply: oneshot::Sender<Ended>, ended: Ended) {
        let mut state = self.state.lock();
        state.ended.push((reply, ended));
        if state.is_immediate {
            drop(state);
            self.send();
        }
    }

    /// Sends all replies.
    pub(super) fn send(&self) {
        let ended = std::mem::take(&mut self.state.lock().ended);
        for (reply, ended) in ended {
            // A client that has disconnected receives no reply.
            drop(reply.send(ended));
        }
    }

    /// Sends the replies that exist. If there are none while the batch runs, a script takes long: then later ones are
    /// sent as soon as they exist. Returns the time after which this is called again.
    fn send_in_time(&self, after: Duration) -> Option<Duration> {
        {
            let mut state = self.state.lock();
            if !state.has_begun {
                return Some((2 * after).min(SENT_AFTER_MAX));
            }
            if state.ended.is_empty() {
                state.is_immediate = true;
                return None;
            }
        }
        self.send();
        Some(SENT_AFTER)
    }
}

/// Sends the replies of scripts that have ended if a later script of their batch takes long.
async fn send_in_time(unsent: Weak<Unsent>) {
    let mut next = Some(SENT_AFTER);
    while let Some(after) = next {
        tokio::time::sleep(after).await;
        next = unsent.upgrade().and_then(|unsent| unsent.send_in_time(after));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use engine::security::TenantName;

    use super::*;
    use crate::redis::scripts::lanes::{CLOSED, LANES_MAX};

    type Receiver = oneshot::Receiver<Ended>;

    fn push(batch: &mut Batch, work: impl FnOnce() + Send + 'static) -> Receiver {
        let (reply, receive) = oneshot::channel();
        let work = Box::new(move || {
            work();
            Ok((Answer::Nothing, Commit::default()))
        });
        batch.push(None, Unit { work, reply, bytes: 10 });
        receive
    }

    #[tokio::test]
    async fn a_batch_leaves_its_thread_to_others_after_its_turn() {
        let lanes = Arc::new(Lanes::default());
        let ran = Arc::new([const { AtomicUsize::new(0) }; LANES_MAX]);
        let mut replies = Vec::new();
        for number in 0..LANES_MAX {
            let mut batch = Batch::default();
            while batch.is_empty() || batch.takes(10) {
                let ran = ran.clone();
                replies.push(push(&mut batch, move || {
                    std::thread::sleep(TURN_MAX);
                    ran[number].fetch_add(1, Ordering::SeqCst);
                }));
            }
            batch.begin(&lanes);
        }
        assert_eq!(replies.len(), LANES_MAX * BATCH_SCRIPTS_MAX);
        let (send, receive) = mpsc::channel();
        let work = {
            let ran = ran.clone();
            move || send.send(ran.each_ref().map(|ran| ran.load(Ordering::SeqCst))).expect("received")
        };
        lanes.run(None, work).map(drop).expect("room");
        let ran_before = receive.recv_timeout(Duration::from_secs(60)).expect("it runs");
        assert!(ran_before.iter().all(|ran| *ran < BATCH_SCRIPTS_MAX), "it waited for a batch: {ran_before:?}");
        for reply in replies {
            assert!(reply.await.expect("it has run").done.is_ok());
        }
        assert!(ran.iter().all(|ran| ran.load(Ordering::SeqCst) == BATCH_SCRIPTS_MAX));
    }

    #[tokio::test]
    async fn a_panic_ends_one_script_of_a_batch() {
        let lanes = Arc::new(Lanes::default());
        let mut batch = Batch::default();
        let replies = [push(&mut batch, || {}), push(&mut batch, || panic!("told to panic")), push(&mut batch, || {})];
        batch.begin(&lanes);
        let [first, second, third] = replies;
        assert!(first.await.is_ok_and(|ended| ended.done.is_ok()));
        assert!(second.await.is_err());
        assert!(third.await.is_ok_and(|ended| ended.done.is_ok()));
    }

    #[tokio::test]
    async fn replies_are_sent_while_a_later_script_runs() {
        let lanes = Arc::new(Lanes::default());
        let mut batch = Batch::default();
        let (release, is_released) = mpsc::channel::<()>();
        let first = push(&mut batch, || {});
        let second = push(&mut batch, move || assert!(is_released.recv().is_err(), "nothing is sent"));
        batch.begin(&lanes);
        let first = tokio::time::timeout(Duration::from_secs(60), first).await.expect("in time").expect("it has run");
        assert!(first.done.is_ok());
        drop(release);
        assert!(second.await.is_ok_and(|ended| ended.done.is_ok()));
    }

    #[tokio::test]
    async fn all_scripts_of_a_batch_are_refused_by_a_full_queue_and_by_a_closed_door() {
        let lanes = Arc::new(Lanes::default());
        let owner = Some(TenantName::parse("a").expect("valid"));
        let (release, is_released) = mpsc::channel::<()>();
        let is_released = Arc::new(Mutex::new(is_released));
        let run = || {
            let is_released = is_released.clone();
            let waits = move || assert!(is_released.lock().recv().is_err(), "nothing is sent");
            lanes.run(owner.clone(), waits).map(drop)
        };
        let room = std::iter::repeat_with(run).take_while(Result::is_ok).count();
        assert!(room > 1, "{room}");
        let refused = |fails: &Fail| fails.text.starts_with(b"BUSY 1024 scripts are waiting for a thread");
        let mut batch = Batch::default();
        let replies = [push(&mut batch, || {}), push(&mut batch, || {})];
        batch.owner = owner;
        batch.begin(&lanes);
        for reply in replies {
            assert!(reply.await.is_ok_and(|ended| ended.done.is_err_and(|fail| refused(&fail))));
        }
        lanes.close();
        let mut batch = Batch::default();
        let reply = push(&mut batch, || {});
        batch.begin(&lanes);
        assert!(reply.await.is_ok_and(|ended| ended.done.is_err_and(|fail| fail == CLOSED)));
        drop(release);
    }

    #[test]
    fn a_batch_is_bounded_by_its_scripts_and_their_bytes() {
        let mut batch = Batch::default();
        assert!(!batch.takes(0), "the first script begins a batch");
        drop(push(&mut batch, || {}));
        assert!(batch.takes(BATCH_BYTES_MAX - 10) && !batch.takes(BATCH_BYTES_MAX - 9));
        (1..BATCH_SCRIPTS_MAX).for_each(|_| drop(push(&mut batch, || {})));
        assert!(!batch.takes(0));
    }
}
