//! Caps and leases on one thread, against a naive model, and on several threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use std::{pin::pin, rc::Rc, thread};

use proptest::prelude::*;

use super::{Acquire, Cap, Lease, Permit};

/// Time that a test waits for an expected event: only a failure takes so long.
const FAILURE: Duration = Duration::from_secs(60);

/// Waker that counts its calls.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn rings(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn poll(self: &Arc<Self>, acquire: &mut Acquire) -> Poll<Option<Permit>> {
        pin!(acquire).poll(&mut Context::from_waker(&Waker::from(self.clone())))
    }
}

fn poll(acquire: &mut Acquire) -> Poll<Option<Permit>> {
    Arc::<Bell>::default().poll(acquire)
}

/// Asserts that everything was returned: nothing was lost and nothing created.
fn assert_whole(cap: &Arc<Cap>) {
    assert_eq!(cap.in_use(), 0);
    assert_eq!(cap.acquire(cap.max()).map(|all| all.amount()), Some(cap.max()));
}

#[test]
fn never_more_than_the_maximum_and_a_dropped_permit_comes_back() {
    let cap = Cap::new(2);
    let lease = cap.lease();
    let first = lease.acquire(1);
    let second = lease.acquire(1);
    assert!(first.is_some() && second.is_some());
    assert!(lease.acquire(1).is_none());
    assert_eq!((cap.in_use(), cap.refused()), (2, 1));
    drop(first);
    assert!(lease.acquire(1).is_some());
    drop((second, lease));
    assert_eq!(cap.refused(), 1, "a lease that is gone is remembered");
    assert_whole(&cap);
}

#[test]
fn a_permit_grows_and_shrinks() {
    let cap = Cap::with_block(100, 10);
    let mut permit = cap.lease().acquire(40).expect("there is room");
    assert!(permit.grow(60) && !permit.grow(1));
    assert_eq!((permit.amount(), cap.in_use()), (100, 100));
    permit.shrink(30);
    assert_eq!((permit.amount(), cap.in_use()), (70, 70));
    permit.shrink(1000);
    assert_eq!((permit.amount(), cap.in_use()), (0, 0));
    drop(permit);
    assert_whole(&cap);
}

#[test]
fn without_a_maximum_everything_is_counted_and_nothing_refused() {
    let cap = Cap::with_block(u64::MAX, u64::MAX);
    let one = cap.lease();
    let other = cap.lease();
    let permits = [one.acquire(1 << 40), other.acquire(1 << 50)];
    assert!(permits.iter().all(Option::is_some));
    assert_eq!((cap.in_use(), cap.refused()), ((1 << 40) + (1 << 50), 0));
}

#[test]
fn permits_kept_by_one_lease_are_available_to_another_after_a_tick() {
    let cap = Cap::new(100);
    let busy = cap.lease();
    let idle = cap.lease();
    drop(idle.acquire(1));
    assert!(busy.acquire(100).is_none(), "the idle one keeps a block");
    idle.give_back_if_short();
    let mut all = busy.acquire(100).expect("nobody else uses any");
    assert!(idle.acquire(1).is_none());
    all.shrink(1);
    let last = idle.acquire(1).expect("a release gives back at once");
    assert!(!all.grow(1));
    drop(last);
    assert!(all.grow(1));
}

#[test]
fn after_a_recall_leases_keep_something_again() {
    let cap = Cap::new(64);
    let busy = cap.lease();
    let idle = cap.lease();
    let leaving = cap.lease();
    let all = cap.acquire(64);
    assert!(busy.acquire(1).is_none());
    drop(all);
    idle.give_back_if_short();
    drop(leaving);
    assert!(busy.acquire(65).is_none(), "what can never be had recalls nothing");
    drop(busy.acquire(1));
    assert!(cap.acquire(64).is_none(), "something is kept");
}

#[test]
fn waiters_are_served_in_turn_and_a_large_request_is_not_overtaken() {
    let cap = Cap::new(10);
    let lease = cap.lease();
    let mut held: Vec<_> = (0..10).map(|_| lease.acquire(1)).collect();
    let bell = Arc::<Bell>::default();
    let mut large = lease.acquire_in_turn(3);
    let mut small = lease.acquire_in_turn(1);
    assert!(bell.poll(&mut large).is_pending() && poll(&mut small).is_pending());
    held.truncate(8);
    assert!(poll(&mut small).is_pending() && lease.acquire(1).is_none() && cap.acquire(1).is_none());
    assert_eq!((bell.rings(), cap.in_use()), (0, 8));
    held.truncate(7);
    assert_eq!((bell.rings(), cap.in_use()), (1, 10));
    assert!(poll(&mut small).is_pending());
    let Poll::Ready(Some(permit)) = bell.poll(&mut large) else { panic!("it was granted") };
    assert_eq!((permit.amount(), cap.in_use()), (3, 10));
    drop(permit);
    assert!(matches!(poll(&mut small), Poll::Ready(Some(_))));
    drop((held, lease, large, small));
    assert_whole(&cap);
}

#[test]
fn a_cancelled_waiter_leaves_no_trace() {
    let cap = Cap::new(10);
    let lease = cap.lease();
    let most = lease.acquire(8).expect("there is room");
    let bell = Arc::<Bell>::default();
    let mut large = lease.acquire_in_turn(5);
    let mut small = lease.acquire_in_turn(2);
    assert!(poll(&mut large).is_pending() && bell.poll(&mut small).is_pending());
    drop(large);
    assert_eq!((bell.rings(), cap.in_use()), (1, 10), "who stood behind it is served");
    drop(small);
    assert_eq!(cap.in_use(), 8, "what was granted goes back unseen");
    drop((most, lease));
    assert_whole(&cap);
}

#[test]
fn a_waiter_is_woken_by_the_waker_of_its_last_poll() {
    let lease = Cap::new(1).lease();
    let held = lease.acquire(1);
    let old = Arc::<Bell>::default();
    let new = Arc::<Bell>::default();
    let mut acquire = lease.acquire_in_turn(1);
    assert!(old.poll(&mut acquire).is_pending() && new.poll(&mut acquire).is_pending());
    drop(held);
    assert_eq!((old.rings(), new.rings()), (0, 1));
}

#[test]
fn a_waker_that_gives_a_permit_back_itself_loses_nothing() {
    thread_local!(static HELD: Cell<Option<Permit>> = const { Cell::new(None) });
    struct GivesBack;
    impl Wake for GivesBack {
        fn wake(self: Arc<Self>) {
            HELD.take();
        }
    }
    let cap = Cap::new(2);
    let lease = cap.lease();
    let first = lease.acquire(1);
    HELD.set(lease.acquire(1));
    let mut acquire = lease.acquire_in_turn(1);
    let waker = Waker::from(Arc::new(GivesBack));
    assert!(pin!(&mut acquire).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(first);
    drop((acquire, lease));
    assert_whole(&cap);
}

#[test]
fn a_request_that_cannot_be_served_is_refused_without_a_wait() {
    let cap = Cap::new(10);
    let lease = cap.lease();
    assert!(matches!(poll(&mut lease.acquire_in_turn(11)), Poll::Ready(None)));
    let all = lease.acquire(10);
    let mut queue: Vec<_> = (0..1024).map(|_| lease.acquire_in_turn(1)).collect();
    assert!(queue.iter_mut().all(|acquire| poll(acquire).is_pending()));
    assert!(matches!(poll(&mut lease.acquire_in_turn(1)), Poll::Ready(None)), "too many wait");
    assert_eq!(cap.refused(), 2);
    drop((all, queue, lease));
    assert_whole(&cap);
}

#[tokio::test]
async fn a_wait_ends_with_its_time_or_with_a_permit() {
    let cap = Cap::new(1);
    let lease = cap.lease();
    let first = lease.acquire_within(1, Duration::ZERO).await.expect("there at once");
    assert!(lease.acquire_within(1, Duration::from_millis(1)).await.is_none());
    assert_eq!(cap.refused(), 1);
    let give_back = async {
        tokio::task::yield_now().await;
        drop(first);
    };
    let (second, ()) = tokio::join!(lease.acquire_within(1, FAILURE), give_back);
    assert!(second.is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { lease: usize, amount: u64 },
    AcquireShared { amount: u64 },
    Wait { lease: usize, amount: u64 },
    PollAll,
    Grow { i: usize, amount: u64 },
    Shrink { i: usize, amount: u64 },
    Drop { i: usize },
    GiveUp { i: usize },
    Tick { lease: usize },
}

fn step(amount_max: u64) -> impl Strategy<Value = Step> {
    let lease = 0..3usize;
    let amount = 0..=amount_max;
    let i = 0..100usize;
    prop_oneof![
        4 => (lease.clone(), amount.clone()).prop_map(|(lease, amount)| Step::Acquire { lease, amount }),
        1 => amount.clone().prop_map(|amount| Step::AcquireShared { amount }),
        2 => (lease.clone(), amount.clone()).prop_map(|(lease, amount)| Step::Wait { lease, amount }),
        2 => Just(Step::PollAll),
        1 => (i.clone(), amount.clone()).prop_map(|(i, amount)| Step::Grow { i, amount }),
        1 => (i.clone(), amount).prop_map(|(i, amount)| Step::Shrink { i, amount }),
        4 => i.clone().prop_map(|i| Step::Drop { i }),
        1 => i.prop_map(|i| Step::GiveUp { i }),
        1 => lease.prop_map(|lease| Step::Tick { lease }),
    ]
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 4 } else { 512 };
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    /// The model is one number: the amount that is held. A refusal is right if the request would exceed the maximum.
    /// Another refusal is allowed only because of amounts that other leases keep or others wait for, and not after all
    /// leases have ticked.
    #[test]
    fn agrees_with_a_sum(max in 1..300u64, block in 1..40u64, steps in prop::collection::vec(step(60), 1..120)) {
        let cap = Cap::with_block(max, block);
        let leases: Vec<Rc<Lease>> = (0..3).map(|_| cap.lease()).collect();
        let mut permits = Vec::new();
        let mut shared = Vec::new();
        let mut waiting = Vec::new();
        let tick_all = || leases.iter().for_each(|lease| lease.give_back_if_short());
        for step in steps {
            let before = cap.in_use();
            match step {
                Step::Acquire { lease, amount } => match leases[lease].acquire(amount) {
                    Some(permit) => permits.push(permit),
                    None if waiting.is_empty() => {
                        tick_all();
                        let again = leases[lease].acquire(amount);
                        prop_assert_eq!(again.is_some(), before + amount <= max);
                        permits.extend(again);
                    }
                    None => {}
                }
                Step::AcquireShared { amount } => shared.extend(cap.acquire(amount)),
                Step::Wait { lease, amount } => {
                    let mut acquire = leases[lease].acquire_in_turn(amount);
                    match poll(&mut acquire) {
                        Poll::Ready(Some(permit)) => permits.push(permit),
                        Poll::Ready(None) => prop_assert!(amount > max),
                        Poll::Pending => waiting.push((amount, acquire)),
                    }
                }
                Step::PollAll => {
                    tick_all();
                    // Grants are at the front: the rest of the queue is as long as possible.
                    let is_first = Cell::new(true);
                    waiting.retain_mut(|(_, acquire)| match poll(acquire) {
                        Poll::Ready(permit) => {
                            assert!(is_first.get());
                            permits.extend(permit);
                            false
                        }
                        Poll::Pending => {
                            is_first.set(false);
                            true
                        }
                    });
                    if let Some((amount, _)) = waiting.first() {
                        prop_assert!(cap.in_use() + amount > max, "the first would fit");
                    }
                }
                Step::Grow { i, amount } if i < permits.len() => {
                    let is_grown = permits[i].grow(amount);
                    prop_assert!(!is_grown || before + amount <= max);
                }
                Step::Shrink { i, amount } if i < permits.len() => permits[i].shrink(amount),
                Step::Drop { i } if i < permits.len() => drop(permits.swap_remove(i)),
                Step::Drop { .. } => drop(shared.pop()),
                Step::GiveUp { i } if i < waiting.len() => drop(waiting.remove(i)),
                Step::Tick { lease } => leases[lease].give_back_if_short(),
                _ => {}
            }
            let held: u64 = permits.iter().map(Permit::amount).sum();
            let held = held + shared.iter().map(|permit| permit.amount()).sum::<u64>();
            prop_assert!(held <= max);
            // Granted amounts that are not collected yet are in use as well.
            prop_assert!(cap.in_use() == held || (!waiting.is_empty() && cap.in_use() > held));
        }
        drop((permits, shared, waiting, leases));
        assert_whole(&cap);
    }
}

/// Adds to a sum that must never exceed a maximum, until it is dropped.
struct Witness<'a> {
    sum: &'a AtomicU64,
    amount: u64,
}

impl<'a> Witness<'a> {
    fn new(sum: &'a AtomicU64, amount: u64, max: u64) -> Self {
        assert!(sum.fetch_add(amount, Ordering::SeqCst) + amount <= max, "more is held than the maximum");
        Self { sum, amount }
    }
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.amount, Ordering::SeqCst);
    }
}

#[test]
fn threads_together_never_exceed_a_cap_and_lose_nothing() {
    let rounds = if cfg!(miri) { 60 } else { 30_000 };
    for (max, block) in [(1, 1), (10, 64), (1000, 64), (1 << 30, 1 << 20)] {
        let cap = Cap::with_block(max, block);
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let cap = &cap;
                let sum = &sum;
                scope.spawn(move || {
                    let lease = cap.lease();
                    // Held pairs are replaced in turn; the witness is dropped before its permit.
                    let mut held: [Option<(Witness<'_>, Permit)>; 4] = Default::default();
                    let mut random = thread + 1;
                    for _ in 0..rounds {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let amount = 1 + (random >> 40) % max.div_ceil(6);
                        let place = &mut held[(random >> 33) as usize % 4];
                        *place = None;
                        *place = lease.acquire(amount).map(|permit| (Witness::new(sum, amount, max), permit));
                        if random >> 60 == 0 {
                            let shared = cap.acquire(amount);
                            drop(shared.as_ref().map(|_| Witness::new(sum, amount, max)));
                            lease.give_back_if_short();
                        }
                        assert!(cap.in_use() <= max);
                    }
                });
            }
        });
        assert_whole(&cap);
    }
}

#[test]
fn nobody_waits_for_ever_while_threads_give_back() {
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    let cap = Cap::new(7);
    let sum = AtomicU64::new(0);
    let end = Instant::now() + FAILURE;
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let cap = &cap;
            let sum = &sum;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
                let lease = cap.lease();
                runtime.block_on(async {
                    for round in 0..rounds {
                        // The whole amount from time to time: small requests must not starve it.
                        let amount = if (round + thread) % 5 == 0 { 7 } else { 1 + round % 3 };
                        let left = end.saturating_duration_since(Instant::now());
                        let permit = lease.acquire_within(amount, left).await.expect("its turn comes");
                        let witness = Witness::new(sum, amount, 7);
                        // From time to time a permit is held while other tasks of the thread run.
                        if round % 7 == 0 {
                            tokio::task::yield_now().await;
                        }
                        drop((witness, permit));
                    }
                });
            });
        }
    });
    assert_whole(&cap);
}

#[test]
fn a_small_cap_is_used_by_one_thread_alone_once_the_other_has_ticked() {
    let cap = Cap::new(10);
    let (to_other, ticks) = mpsc::channel();
    let is_ready = AtomicBool::new(false);
    thread::scope(|scope| {
        let cap = &cap;
        let is_ready = &is_ready;
        scope.spawn(move || {
            let lease = cap.lease();
            drop(lease.acquire(1));
            is_ready.store(true, Ordering::Release);
            // The lease stays alive and is idle except for its ticks.
            while ticks.recv_timeout(FAILURE).is_ok() {
                lease.give_back_if_short();
            }
        });
        let lease = cap.lease();
        while !is_ready.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let mut held = Vec::new();
        let end = Instant::now() + FAILURE;
        while held.len() < 10 {
            assert!(Instant::now() < end, "{} of 10", held.len());
            match lease.acquire(1) {
                Some(permit) => held.push(permit),
                None => to_other.send(()).expect("the other lives"),
            }
        }
        drop(to_other);
    });
}

/// A sleeping thread delays no other: if it did, a cap that was short for a moment would stay short.
#[test]
fn a_paused_lease_delays_no_other_and_keeps_nothing() {
    let cap = Cap::new(100);
    let awake = cap.lease();
    let asleep = cap.lease();
    let held = asleep.acquire(1).expect("a permit");
    asleep.tick(true);
    let most: Vec<_> = (0..99).map(|_| awake.acquire(1).expect("all that the other does not hold")).collect();
    assert!(awake.acquire(1).is_none());
    drop(most);
    awake.tick(false);
    assert!(!awake.is_short(), "the one asleep has nothing to give back");
    drop(held);
    // A lease that returns something is awake, and may keep some until its next tick.
    asleep.tick(true);
    let all = awake.acquire(100).expect("what was given back after the pause, too");
    assert!(asleep.acquire(1).is_none());
    drop(all);
    asleep.tick(false);
    awake.tick(false);
    assert!(asleep.acquire(100).is_some());
    assert_eq!((cap.in_use(), cap.max()), (0, 100));
}
