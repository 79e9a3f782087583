//! Every interleaving of a few threads that use one cap: `RUSTFLAGS="--cfg net_loom" cargo test --release -p
//! thalweg-net --test loom --target-dir target/loom`.
//!
//! The library is built with the model's own lock and atomics, so nothing else of it runs in such a build.

#![cfg(net_loom)]

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use net::limits::{Acquire, Cap, Lease};

/// Amount that is held at a moment, outside of the model: it adds no interleavings.
#[derive(Default)]
struct Sum(std::sync::atomic::AtomicU64);

impl Sum {
    /// Holds `amount` for as long as `work` takes, and never more than `max` together with others.
    fn hold(&self, amount: u64, max: u64, work: impl FnOnce()) {
        let before = self.0.fetch_add(amount, Ordering::SeqCst);
        assert!(before + amount <= max, "{before} and {amount} are held of {max}");
        work();
        self.0.fetch_sub(amount, Ordering::SeqCst);
    }
}

fn poll_once(acquire: &mut Acquire) -> Poll<bool> {
    Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())).map(|permit| permit.is_some())
}

/// Starts another thread with its own lease.
fn with_lease(cap: &Arc<Cap>, work: impl FnOnce(Rc<Lease>) + Send + 'static) -> thread::JoinHandle<()> {
    let cap = cap.clone();
    thread::spawn(move || work(cap.lease()))
}

/// Ticks, and is otherwise idle, until `is_over`.
fn tick_until(is_over: &AtomicBool, lease: &Lease) {
    while !is_over.load(Ordering::Acquire) {
        lease.give_back_if_short();
        thread::yield_now();
    }
}

fn assert_whole(cap: &Arc<Cap>) {
    assert_eq!(cap.in_use(), 0);
    assert_eq!(cap.acquire(cap.max()).map(|all| all.amount()), Some(cap.max()));
}

#[test]
fn two_leases_and_the_cap_never_grant_more_than_the_maximum() {
    loom::model(|| {
        let cap = Cap::new(2);
        let sum = Arc::<Sum>::default();
        let use_twice = |sum: Arc<Sum>| {
            move |lease: Rc<Lease>| {
                for _ in 0..2 {
                    if let Some(permit) = lease.acquire(1) {
                        sum.hold(1, 2, thread::yield_now);
                        drop(permit);
                    }
                }
            }
        };
        let other = with_lease(&cap, use_twice(sum.clone()));
        use_twice(sum.clone())(cap.lease());
        if let Some(permit) = cap.acquire(2) {
            sum.hold(2, 2, thread::yield_now);
            drop(permit);
        }
        other.join().expect("no panic");
        assert_whole(&cap);
    });
}

#[test]
fn after_a_refusal_an_idle_lease_returns_its_permits() {
    loom::model(|| {
        let cap = Cap::new(3);
        let is_over = Arc::new(AtomicBool::new(false));
        let other = with_lease(&cap, {
            let is_over = is_over.clone();
            move |lease| {
                drop(lease.acquire(1));
                tick_until(&is_over, &lease);
            }
        });
        let lease = cap.lease();
        while lease.acquire(3).is_none() {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Release);
        other.join().expect("no panic");
    });
}

#[test]
fn a_waiter_is_woken_by_a_release_or_a_tick() {
    loom::model(|| {
        let cap = Cap::new(2);
        let is_over = Arc::new(AtomicBool::new(false));
        let other = with_lease(&cap, {
            let is_over = is_over.clone();
            move |lease| {
                drop(lease.acquire(1));
                tick_until(&is_over, &lease);
            }
        });
        let lease = cap.lease();
        assert!(block_on(lease.acquire_in_turn(2)).is_some());
        is_over.store(true, Ordering::Release);
        other.join().expect("no panic");
        drop(lease);
        assert_whole(&cap);
    });
}

#[test]
fn two_waiters_both_get_released_permits() {
    // Three threads have too many interleavings: only those with few preemptions are checked.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let cap = Cap::new(2);
        let sum = Arc::<Sum>::default();
        let held = cap.acquire(1);
        let third = thread::spawn(move || drop(held));
        let other = with_lease(&cap, {
            let sum = sum.clone();
            move |lease| {
                let permit = block_on(lease.acquire_in_turn(2)).expect("its turn comes");
                sum.hold(2, 2, thread::yield_now);
                drop(permit);
            }
        });
        let lease = cap.lease();
        let permit = block_on(lease.acquire_in_turn(1)).expect("its turn comes");
        sum.hold(1, 2, thread::yield_now);
        drop((permit, lease));
        other.join().expect("no panic");
        third.join().expect("no panic");
        assert_whole(&cap);
    });
}

#[test]
fn a_waiter_that_gives_up_while_it_is_granted_loses_nothing() {
    loom::model(|| {
        let cap = Cap::new(2);
        let held = cap.acquire(2);
        let other = thread::spawn(move || drop(held));
        let lease = cap.lease();
        let mut gives_up = lease.acquire_in_turn(2);
        let mut stays = lease.acquire_in_turn(1);
        let first = poll_once(&mut gives_up);
        let second = poll_once(&mut stays);
        assert!(first.is_pending() || first == Poll::Ready(true));
        assert!(second.is_pending() || second == Poll::Ready(true));
        drop(gives_up);
        other.join().expect("no panic");
        if second.is_pending() {
            assert_eq!(poll_once(&mut stays), Poll::Ready(true));
        }
        drop((stays, lease));
        assert_whole(&cap);
    });
}
