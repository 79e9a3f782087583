//! Tests of what other callers do while a long step holds stripes: none of them waits for it on its thread.

use bytes::Bytes;
use engine::ErrorKind;
use engine::cache::operations::OperationId;
use engine::cache::structures::Kind;
use engine::cache::{Condition, Eviction, Expires, ScanCursor, Ttl, WatchFrom};
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::settings::Settings;

/// Time limit that only a caller reaches that waits for the long step.
const PATIENCE: Duration = Duration::from_secs(60);

fn broker() -> Arc<Broker> {
    Broker::start(Settings { cache_bytes_max: 1 << 20, ..Settings::default() }, &[Handle::current()])
        .expect("it starts")
}

/// Runs work on another thread, which the long step of this thread must not block.
async fn beside<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(send.send(work())));
    let done = tokio::time::timeout(PATIENCE, receive).await;
    done.unwrap_or_else(|_| panic!("{what} waits for the long step")).expect("it has ended")
}

/// Returns a key of another stripe.
fn other_stripe(cache: &Cache, key: &[u8]) -> Vec<u8> {
    let stripe = |key: &[u8]| cache.stripe_of(cache.key(key));
    (0..).map(|at: u32| at.to_string().into_bytes()).find(|other| stripe(other) != stripe(key)).expect("there are many")
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_and_watches_are_refused_and_other_caches_are_served() {
    let broker = broker();
    let cache = broker.caches.open("held").expect("new");
    let mut long = cache.lock([&b"key"[..]]);
    long.put(b"key", b"1", Expires::Never, Condition::Always).expect("room");
    long.announce();
    let (of, held) = (broker.clone(), cache.clone());
    let refused = beside("delete", move || of.caches.delete("held").err().map(|error| error.kind)).await;
    assert_eq!(refused, Some(ErrorKind::Busy));
    let runtime = Handle::current();
    let watched = beside("watch", move || {
        let watched = runtime.block_on(held.watch(b"", WatchFrom::Snapshot, 10, 100, Duration::ZERO));
        watched.err().map(|error| error.kind)
    });
    assert_eq!(watched.await, Some(ErrorKind::Busy));
    // Changes that come after the check of a door, and the commit of a change before.
    let held = cache.clone();
    let put = move || held.put(b"key", b"2", Ttl::Default, Condition::Always).err().map(|error| error.kind);
    assert_eq!(beside("put", put).await, Some(ErrorKind::Busy));
    let held = cache.clone();
    let touched = beside("touch", move || held.touch(b"key", Ttl::Never).err().map(|error| error.kind));
    assert_eq!(touched.await, Some(ErrorKind::Busy));
    let held = cache.clone();
    let operation = OperationId { client: 1, sequence: 1 };
    let added = move || held.add_once(b"key", 1, Ttl::Default, operation).err().map(|error| error.kind);
    assert_eq!(beside("add_once", added).await, Some(ErrorKind::Busy));
    // A read must not wait either.
    let held = cache.clone();
    let read = move || {
        let stripe = held.stripe_of(held.key(b"key")) as u64;
        let scanned = held.scan(b"", ScanCursor(stripe << 32), |_| true);
        [
            held.get(b"key", |_| ()).err(),
            held.peek(b"key", |_| ()).err(),
            held.delete(b"key", Condition::Always).err(),
            held.flush().err(),
            scanned.err(),
        ]
        .map(|error| error.map(|error| error.kind))
    };
    assert_eq!(beside("get, peek, delete, flush and scan", read).await, [Some(ErrorKind::Busy); 5]);
    let held = cache.clone();
    beside("commit_of", move || drop(held.commit_of(b"key"))).await;
    let of = broker.clone();
    beside("another cache", move || drop(of.caches.open("other").expect("new"))).await;
    drop(long);
    broker.caches.delete("held").expect("free again").wait().await.expect("deleted");
    assert!(cache.is_deleted());
    assert_eq!(cache.peek(b"key", |found| found.is_none()), Ok(true));
    assert!(broker.caches.find("held").is_err());
    let again = broker.caches.open("held").expect("new");
    assert!(again.id() > cache.id(), "versions are counted on");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_found_in_the_other_stripes() {
    let broker = broker();
    let settings = CacheSettings { eviction: Eviction::S3Fifo, bytes_max: Some(64 << 10), ..CacheSettings::default() };
    let cache = broker.caches.create("small", settings).expect("new");
    let value = [b'x'; 512];
    let put = |cache: &Cache, at: u32| cache.put(at.to_string().as_bytes(), &value, Ttl::Default, Condition::Always);
    (0..500).for_each(|at| assert!(put(&cache, at).is_ok()));
    let key = b"0".to_vec();
    let other = other_stripe(&cache, &key);
    let mut long = cache.lock([&key[..]]);
    long.announce();
    let of = cache.clone();
    let stored = beside("put", move || {
        (0..200).map(|_| of.put(&other, &[b'y'; 4096], Ttl::Default, Condition::Always).is_ok()).collect::<Vec<_>>()
    });
    assert_eq!(stored.await, [true; 200]);
    drop(long);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_other_key_is_held_is_served_by_the_end_of_the_long_step() {
    for is_dropped in [false, true] {
        let broker = broker();
        let cache = broker.caches.open("c").expect("new");
        let free = other_stripe(&cache, b"held");
        let attempt: Attempt = Box::new(|locked, key| locked.peek(key).map(|_| Bytes::from_static(b"served")));
        let keys = [&free[..], b"held"];
        let waiting = cache.lock(keys).wait(Some(Kind::Bytes), &keys, &[], attempt).expect("room");
        let mut long = cache.lock([&b"held"[..]]);
        long.announce();
        let (of, key) = (cache.clone(), free.clone());
        beside("a push", move || {
            let mut locked = of.lock_one(&key);
            locked.put_owned(&key, engine::cache::Owned::Bytes((*b"x").into()), None).expect("room");
            of.serve(locked.finish().grown);
        })
        .await;
        assert!(!waiting.is_over(), "its keys are not all free");
        if is_dropped {
            // As by a panic: the broker notices later.
            drop(long);
        } else {
            cache.serve(long.finish().grown);
        }
        tokio::time::timeout(PATIENCE, waiting.answered()).await.expect("served");
        assert_eq!(cache.stop_waiting(&waiting).map(|(answer, _)| answer).as_deref(), Some(&b"served"[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_without_watchers_stops_to_record_once_its_keys_are_free() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("new");
    cache.watch(b"", WatchFrom::Snapshot, 10, 100, Duration::ZERO).await.expect("watched");
    assert!(cache.changes.is_watched());
    tokio::time::advance(Duration::from_secs(61)).await;
    let held = cache.clone();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, is_released) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        let mut long = held.lock([&b"key"[..]]);
        long.announce();
        locked.send(()).expect("received");
        // Until the sender is dropped, also by a failure of the test.
        let _released = is_released.recv();
    });
    is_locked.recv().expect("locked");
    cache.forget_unwatched();
    assert!(cache.changes.is_watched(), "the changes of the long step are recorded");
    drop(release);
    holder.join().expect("no panic");
    cache.forget_unwatched();
    assert!(!cache.changes.is_watched());
}

/// A thread that waits keeps its place behind the steps that came before, although each of them is long.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_between_two_long_steps_that_follow_each_other() {
    let cache = broker().caches.open("c").expect("new");
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let long_steps: Vec<_> = (0..2)
        .map(|_| {
            let (cache, is_over) = (cache.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let mut long = cache.lock([&b"key"[..]]);
                    long.announce();
                    std::thread::sleep(Duration::from_millis(5));
                }
            })
        })
        .collect();
    while !cache.is_held(b"key") {
        tokio::task::yield_now().await;
    }
    let has_locked = move || (0..20).any(|_| cache.lock_unless_held(Some([&b"key"[..]])).is_some());
    let has_locked = beside("lock_unless_held", has_locked).await;
    is_over.store(true, Ordering::SeqCst);
    long_steps.into_iter().for_each(|step| step.join().expect("it does not panic"));
    assert!(has_locked, "the long steps have passed it by each time");
}
