//! Tests of which waiters a change retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::cache::structures::{End, Kind, List, Score, Sorted};
use tokio::runtime::Handle;

use super::{Attempt, Cache, Waiting};
use crate::broker::Broker;
use crate::settings::Settings;

/// Clients that block on keys, and the number of attempts that were made for them.
struct Blocked {
    cache: Arc<Cache>,
    attempts: Arc<AtomicUsize>,
}

impl Blocked {
    fn new() -> (Arc<Broker>, Self) {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let cache = broker.caches.open("c").expect("made");
        (broker, Self { cache, attempts: Arc::default() })
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Waits as BLPOP does for a list at one of the keys.
    fn wait(&self, keys: &[&[u8]], others: &[&[u8]]) -> Arc<Waiting> {
        let attempts = self.attempts.clone();
        let attempt: Attempt = Box::new(move |locked, key| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let popped = locked.change::<List, _>(key, 0, |list| {
                let popped = list.pop(End::Front);
                (popped.is_some(), popped)
            });
            popped.ok().flatten().map(Into::into)
        });
        self.cache.lock(keys.iter().chain(others).copied()).wait(Some(Kind::List), keys, others, attempt).expect("room")
    }

    fn answer_of(&self, waiting: &Arc<Waiting>) -> Option<Vec<u8>> {
        self.cache.stop_waiting(waiting).map(|(answer, _)| answer.to_vec())
    }

    /// Adds a member to the sorted set of each key, in one step.
    fn add_members(&self, keys: &[&[u8]]) {
        let score = Score::new(1.0).expect("a number");
        let mut locked = self.cache.lock(keys.iter().copied());
        for key in keys {
            locked.change::<Sorted, _>(key, 1 << 10, |set| (true, set.set(b"m", score))).expect("room");
        }
        self.cache.serve(locked.finish().grown);
    }

    /// Adds an item to the list of each key, in one step.
    fn push(&self, keys: &[&[u8]]) {
        let mut locked = self.cache.lock(keys.iter().copied());
        for key in keys {
            locked.change::<List, _>(key, 1 << 10, |list| (true, list.push(End::Back, key))).expect("room");
        }
        self.cache.serve(locked.finish().grown);
    }
}

/// Returns this many keys.
fn keys(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("key {number}").into_bytes()).collect()
}

#[tokio::test]
async fn values_of_another_kind_retry_no_waiter() {
    let (_broker, blocked) = Blocked::new();
    let keys = keys(100);
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let waiting: Vec<_> = (0..20).map(|_| blocked.wait(&keys, &[])).collect();
    let (sets, lists) = keys.split_at(90);
    blocked.add_members(sets);
    // Until now, each of the 90 keys retried each of the 20 clients.
    assert_eq!(blocked.attempts(), 0);
    assert!(waiting.iter().all(|waiting| !waiting.is_over()));
    // Each of the ten lists serves one client, in the order of both.
    blocked.push(lists);
    assert_eq!(blocked.attempts(), lists.len());
    let answers: Vec<_> = waiting.iter().map(|waiting| blocked.answer_of(waiting)).collect();
    let expected: Vec<_> = lists.iter().map(|key| Some(key.to_vec())).chain(vec![None; 10]).collect();
    assert_eq!(answers, expected);
    assert_eq!(blocked.cache.waiting(), 0);
}

#[tokio::test]
async fn a_key_that_takes_another_kind_within_a_step_serves_those_who_wait_for_that() {
    let (_broker, blocked) = Blocked::new();
    let waiting = blocked.wait(&[b"k"], &[]);
    let score = Score::new(1.0).expect("a number");
    let mut locked = blocked.cache.lock_one(b"k");
    locked.change::<Sorted, _>(b"k", 1 << 10, |set| (true, set.set(b"m", score))).expect("room");
    assert!(locked.delete(b"k"));
    locked.change::<List, _>(b"k", 1 << 10, |list| (true, list.push(End::Back, b"item"))).expect("room");
    blocked.cache.serve(locked.finish().grown);
    assert_eq!(blocked.answer_of(&waiting).as_deref(), Some(&b"item"[..]));
}

#[tokio::test]
async fn a_key_that_an_attempt_only_accesses_does_not_retry_it() {
    let (_broker, blocked) = Blocked::new();
    // As BLMOVE waits, whose second key receives the item.
    let waiting: Vec<_> = (0..20).map(|_| blocked.wait(&[b"from"], &[b"to"])).collect();
    (0..10).for_each(|_| blocked.push(&[b"to"]));
    assert_eq!(blocked.attempts(), 0);
    blocked.push(&[b"from"]);
    assert_eq!(blocked.attempts(), 1);
    assert_eq!(blocked.answer_of(&waiting[0]).as_deref(), Some(&b"from"[..]));
    assert!(waiting[1..].iter().all(|waiting| blocked.answer_of(waiting).is_none()));
}
