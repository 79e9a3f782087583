//! Tests of caches that exchange their contents: what their users see, and that a restart finds each entry in its
//! cache, wherever a kill or a dump comes in between.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use engine::cache::operations::OperationId;
use engine::cache::structures::Kind;
use engine::cache::{Condition, Eviction, Expires, ScanCursor, Stored, Stripe, Ttl, WatchFrom, Watched};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::settings::Settings;

/// Only reached on failure.
const PATIENCE: Duration = Duration::from_secs(60);
const DURABLE: CacheSettings =
    CacheSettings { bytes_max: None, eviction: Eviction::None, ttl_ms: None, is_durable: true };
/// Size of the files of the journal, and one that has room for any step of these tests.
const JOURNAL_BYTES: u64 = 1 << 20;
const LARGE_JOURNAL_BYTES: u64 = 32 << 20;

fn in_memory() -> Arc<Broker> {
    Broker::start(Settings::default(), &[Handle::current()]).expect("it starts")
}

async fn on_disk(dir: &Path) -> Arc<Broker> {
    on_disk_with(dir, JOURNAL_BYTES).await
}

async fn on_disk_with(dir: &Path, journal_bytes: u64) -> Arc<Broker> {
    let broker = open(dir, journal_bytes).expect("opens");
    broker.caches.restore().await.expect("restored");
    broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
    broker
}

fn open(dir: &Path, journal_bytes: u64) -> Result<Arc<Broker>> {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, reserve_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = journal_bytes;
    let begin = Instant::now();
    loop {
        match Store::open(Arc::new(RealDisk), dir, settings, crate::Clock::SYSTEM.read(), &mut |_| {}) {
            // A sweep that runs when a broker is dropped holds the directory until it has finished.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => return Broker::start_with(Settings::default(), &[Handle::current()], Some(opened?)),
        }
    }
}

/// Returns a broker over the state that a process leaves if it is killed now. A copy during which the journal continued
/// in another file, or the log was truncated, is not such a state, and is repeated.
async fn after_kill(dir: &Path, of: &Broker) -> (TempDir, Arc<Broker>) {
    after_kill_with(dir, of, JOURNAL_BYTES).await
}

async fn after_kill_with(dir: &Path, of: &Broker, journal_bytes: u64) -> (TempDir, Arc<Broker>) {
    let begin = Instant::now();
    let log = log_of(of);
    let cuts = || (log.dumps.load(Ordering::SeqCst), log.topic.partitions()[0].extent().start);
    loop {
        let before = cuts();
        let left = TempDir::new().expect("a folder");
        copy(dir, left.path());
        if cuts() != before && begin.elapsed() < PATIENCE {
            continue;
        }
        match open(left.path(), journal_bytes) {
            Err(error) if error.kind == ErrorKind::Corrupt && begin.elapsed() < PATIENCE => continue,
            opened => {
                let broker = opened.expect("opens");
                broker.caches.restore().await.expect("restored");
                return (left, broker);
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            // The file may be deleted by now.
            drop(std::fs::copy(entry.path(), to));
        }
    }
}

fn log_of(broker: &Broker) -> Arc<CacheLog> {
    broker.caches.log.read().clone().expect("it is open")
}

type Contents = BTreeMap<Vec<u8>, (Vec<u8>, u64, Option<u64>)>;

fn contents(cache: &Cache) -> Contents {
    let mut all = BTreeMap::new();
    let mut from = Some(ScanCursor::default());
    while let Some(cursor) = from {
        let scanned = cache.scan(b"", cursor, |found| {
            let mut value = Vec::new();
            Stripe::dump(found, &mut value);
            all.insert(found.key.to_vec(), (value, found.version, found.expires_ms)).is_none()
        });
        from = scanned.expect("free");
    }
    all
}

fn keys(cache: &Cache) -> Vec<String> {
    contents(cache).into_keys().map(|key| String::from_utf8_lossy(&key).into_owned()).collect()
}

fn contents_of<const COUNT: usize>(broker: &Broker, names: [&str; COUNT]) -> [Contents; COUNT] {
    names.map(|name| match broker.caches.find(name) {
        Ok(cache) => contents(&cache),
        Err(error) => panic!("{name}: {error}"),
    })
}

fn put(cache: &Cache, key: &str, value: &str) -> u64 {
    match cache.put(key.as_bytes(), value.as_bytes(), Ttl::Default, Condition::Always).expect("room") {
        Stored::Done { version, .. } => version,
        Stored::Unmet { .. } => panic!("there is no condition"),
    }
}

fn put_in(locked: &mut Locked<'_>, key: &str, value: &[u8]) {
    locked.put(key.as_bytes(), value, Expires::Never, Condition::Always).expect("room");
}

/// Exchanges the contents of two caches, and serves their blocked clients.
fn swap(one: &Cache, other: &Cache) -> Result<Commit> {
    let mut locked = vec![one.lock_all(), other.lock_all()];
    let [first, second] = &mut locked[..] else { panic!("two") };
    first.swap(second)?;
    let mut finished = Locked::finish_all(locked).into_iter();
    let both = [one, other].map(|cache| (cache, finished.next().expect("one for each")));
    Ok(Commit::all(both.into_iter().map(|(cache, finished)| {
        cache.serve(finished.grown);
        finished.commit
    })))
}

#[tokio::test]
async fn each_cache_has_the_entries_of_the_other_under_its_own_name_and_budget() {
    let broker = in_memory();
    let [a, b] = ["a", "b"].map(|name| broker.caches.open(name).expect("made"));
    for number in 0..500 {
        put(&a, &format!("key {number}"), &"x".repeat(number));
    }
    put(&b, "key 0", "of b");
    let before = [contents(&a), contents(&b)];
    let budgets = [a.budget.taken(), b.budget.taken()];
    let all = broker.caches.bytes();
    swap(&a, &b).expect("equal settings").wait().await.expect("in memory");
    let after = [contents(&b), contents(&a)];
    for (before, after) in before.iter().zip(&after) {
        assert!(before.keys().eq(after.keys()));
    }
    assert_eq!([b.budget.taken(), a.budget.taken()], budgets);
    assert_eq!(broker.caches.bytes(), all);
    assert_eq!((a.status().stats.entries, b.status().stats.entries), (1, 500));
    assert_eq!((a.name().as_str(), b.name().as_str()), ("a", "b"));
    // No version of before is one of after, in either cache.
    let newest = before.iter().flat_map(Contents::values).map(|(_, version, _)| *version).max().expect("entries");
    assert!(after.iter().flat_map(Contents::values).all(|(_, version, _)| *version > newest));
    let (_, known, _) = before[0][&b"key 0"[..]];
    let late = a.put(b"key 0", b"x", Ttl::Default, Condition::IfVersion(known)).expect("room");
    assert!(matches!(late, Stored::Unmet { .. }));
    assert!(put(&a, "key 0", "new") > after[1][&b"key 0"[..]].1);
    // What is deleted afterwards frees the bytes of the cache that has them.
    drop(b.flush().expect("free"));
    drop(a.flush().expect("free"));
    broker.caches.delete("a").expect("it exists").wait().await.expect("deleted");
    broker.caches.delete("b").expect("it exists").wait().await.expect("deleted");
}

#[tokio::test]
async fn caches_that_may_not_have_the_entries_of_the_other_are_refused_and_keep_theirs() {
    let broker = in_memory();
    let a = broker.caches.open("a").expect("made");
    let small = CacheSettings { bytes_max: Some(1 << 20), ..CacheSettings::default() };
    let b = broker.caches.create("b", small).expect("made");
    put(&a, "of a", "1");
    put(&b, "of b", "1");
    let refused = swap(&a, &b).map(drop).expect_err("the settings differ");
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("'a' and 'b'") && refused.message.contains("delete one"), "{refused}");
    assert_eq!((keys(&a), keys(&b)), (vec!["of a".to_owned()], vec!["of b".to_owned()]));
    let c = broker.caches.open("c").expect("made");
    put(&c, "of c", "1");
    drop(broker.caches.delete("c").expect("it exists"));
    let refused = swap(&a, &c).map(drop).expect_err("it was deleted");
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert_eq!(keys(&a), ["of a"], "nothing is moved to where no client finds it");
}

#[tokio::test]
async fn streams_stay_where_they_are_and_a_deleted_one_is_no_obstacle() {
    let broker = in_memory();
    let [a, b] = ["a", "b"].map(|name| broker.caches.open(name).expect("made"));
    put(&a, "of a", "1");
    let mut locked = b.lock_one(b"s");
    drop(locked.add_stream(b"s", "a_topic").expect("new"));
    locked.finish().commit.wait().await.expect("in memory");
    for (one, other) in [(&a, &b), (&b, &a)] {
        let refused = swap(one, other).map(drop).expect_err("one has a stream");
        assert_eq!(refused.kind, ErrorKind::Unsupported);
        assert!(refused.message.contains("'b'") && refused.message.contains("stream 's'"), "{refused}");
    }
    assert_eq!((keys(&a), keys(&b)), (vec!["of a".to_owned()], vec!["s".to_owned()]));
    // Its key may still be an entry, as another door has deleted the topic.
    broker.delete_topic("a_topic").await.expect("deleted");
    swap(&a, &b).expect("no stream any more").wait().await.expect("in memory");
    assert_eq!((keys(&a), keys(&b)), (Vec::<String>::new(), vec!["of a".to_owned()]));
}

async fn watch(cache: &Cache, from: WatchFrom, wait: Duration) -> Watched {
    let watched = tokio::time::timeout(PATIENCE, cache.watch(b"", from, 1000, 1 << 20, wait)).await;
    watched.expect("it is notified").expect("it exists")
}

#[tokio::test]
async fn watchers_begin_again_with_the_entries_that_the_cache_has_now() {
    let broker = in_memory();
    let [a, b] = ["a", "b"].map(|name| broker.caches.open(name).expect("made"));
    put(&a, "of a", "1");
    put(&b, "of b", "1");
    let mut from = WatchFrom::Snapshot;
    while !matches!(from, WatchFrom::Changes { .. }) {
        from = watch(&a, from, Duration::ZERO).await.next;
    }
    put(&a, "unread", "1");
    let before = from;
    let waiting = async {
        // The change before is read first, so that the next call waits.
        from = watch(&a, from, Duration::ZERO).await.next;
        watch(&a, from, PATIENCE).await
    };
    let swapping = async {
        tokio::task::yield_now().await;
        swap(&a, &b).expect("equal settings").wait().await.expect("in memory");
    };
    let (watched, ()) = tokio::join!(waiting, swapping);
    assert!(watched.is_reset);
    let found: Vec<&[u8]> = watched.changes.iter().map(|change| &*change.key).collect();
    assert_eq!(found, [b"of b"]);
    // A watcher that has not read the last changes before the exchange, and one in the middle of a scan.
    for from in [before, WatchFrom::Scan { cursor: ScanCursor::default(), position: a.id() }] {
        let watched = watch(&a, from, Duration::ZERO).await;
        assert!(watched.is_reset && watched.changes.iter().all(|change| change.key != "unread"), "{watched:?}");
    }
    assert_eq!(broker.caches.common.watched_bytes.load(Ordering::Relaxed), 0);
    put(&a, "later", "1");
    assert!(broker.caches.common.watched_bytes.load(Ordering::Relaxed) > 0, "it is still watched");
}

#[tokio::test]
async fn clients_blocked_on_a_key_are_served_with_what_is_there_now() {
    let broker = in_memory();
    let [a, b] = ["a", "b"].map(|name| broker.caches.open(name).expect("made"));
    let attempt = || -> Attempt { Box::new(|locked, key| locked.delete(key).then(|| Bytes::from_static(b"served"))) };
    let wait =
        |cache: &Cache, key: &[u8]| cache.lock([key]).wait(Some(Kind::Bytes), &[key], &[], attempt()).expect("room");
    let [in_a, in_b, other] = [wait(&a, b"k"), wait(&b, b"k"), wait(&a, b"none")];
    put(&b, "k", "1");
    swap(&a, &b).expect("equal settings").wait().await.expect("in memory");
    tokio::time::timeout(PATIENCE, in_a.answered()).await.expect("served");
    assert!(!in_b.is_over() && !other.is_over());
    assert_eq!((keys(&a).len(), keys(&b).len()), (0, 0));
    put(&a, "k", "2");
    swap(&b, &a).expect("equal settings").wait().await.expect("in memory");
    tokio::time::timeout(PATIENCE, in_b.answered()).await.expect("served");
    for (cache, waiting) in [(&a, in_a), (&b, in_b)] {
        assert_eq!(cache.stop_waiting(&waiting).map(|(answer, _)| answer).as_deref(), Some(&b"served"[..]));
    }
    assert_eq!(a.stop_waiting(&other).map(|(answer, _)| answer), None);
}

#[tokio::test]
async fn answers_to_operations_stay_with_the_cache_that_gave_them() {
    let broker = in_memory();
    let [a, b] = ["a", "b"].map(|name| broker.caches.open(name).expect("made"));
    let id = OperationId { client: 7, sequence: 1 };
    let first = a.add_once(b"n", 1, Ttl::Never, id).expect("a number");
    swap(&a, &b).expect("equal settings").wait().await.expect("in memory");
    assert_eq!(a.add_once(b"n", 1, Ttl::Never, id), Ok(first), "it was executed");
    assert_eq!(b.add_once(b"n", 1, Ttl::Never, id).map(|added| added.value), Ok(2), "this one was not");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_precedes_and_follows_an_exchange_in_one_step_survives_a_kill_in_its_order() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk_with(dir.path(), LARGE_JOURNAL_BYTES).await;
    let caches = NAMES.map(|name| broker.caches.create(name, DURABLE).expect("made"));
    // Small steps, and one that is written in parts.
    for bytes in [1, 3 << 20] {
        let value = vec![b'v'; bytes];
        let mut locked: Vec<_> = caches.iter().map(|cache| cache.lock_all()).collect();
        let [a, b, c] = &mut locked[..] else { panic!("three") };
        for (name, locked) in NAMES.iter().zip([&mut *a, &mut *b, &mut *c]) {
            put_in(locked, name, &value);
            put_in(locked, "k", name.as_bytes());
        }
        a.swap(b).expect("equal settings");
        put_in(a, "first in a", b"1");
        assert!(b.delete(b"k"));
        // A chain, whose order does not follow that of the caches.
        c.swap(a).expect("equal settings");
        put_in(a, "second in a", b"1");
        b.flush();
        put_in(b, "after the flush", b"1");
        b.swap(c).expect("equal settings");
        put_in(c, "last in c", &value);
        let commits: Vec<_> = Locked::finish_all(locked).into_iter().map(|finished| finished.commit).collect();
        for commit in commits {
            commit.wait().await.expect("durable");
        }
        let of = |cache: &Cache, key: &str| cache.peek(key.as_bytes(), |found| found.is_some()).expect("free");
        assert!(of(&caches[0], "c") && of(&caches[0], "second in a"));
        assert!(of(&caches[1], "b") && of(&caches[1], "first in a"));
        assert!(of(&caches[2], "after the flush") && of(&caches[2], "last in c"));
        let expected = contents_of(&broker, NAMES);
        let (left, again) = after_kill_with(dir.path(), &broker, LARGE_JOURNAL_BYTES).await;
        assert_eq!(contents_of(&again, NAMES), expected);
        // The next change has a version of its own.
        let newest = expected.iter().flat_map(Contents::values).map(|(_, version, _)| *version).max();
        let cache = again.caches.find("b").expect("it exists");
        assert!(Some(put(&cache, "k", "later")) > newest);
        // A dump is another way to the same state.
        again.caches.dump(&log_of(&again)).await.expect("dumped");
        let expected = contents_of(&again, NAMES);
        again.stop().expect("stops");
        drop((cache, again));
        let again = on_disk_with(left.path(), LARGE_JOURNAL_BYTES).await;
        assert_eq!(contents_of(&again, NAMES), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_is_durable_before_anyone_reads_what_it_moved() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let [a, b] = ["a", "b"].map(|name| broker.caches.create(name, DURABLE).expect("made"));
    put(&a, "k", "of a");
    a.settled().wait().await.expect("durable");
    let mut seen_unsettled = 0;
    for round in 0..40 {
        let swapped = swap(&a, &b).expect("equal settings");
        let cache = if round % 2 == 0 { &b } else { &a };
        let mut locked = cache.lock_one(b"k");
        assert!(locked.peek(b"k").is_some());
        let read = locked.finish().commit;
        seen_unsettled += u32::from(!read.is_done());
        read.wait().await.expect("durable");
        assert!(cache.commit_of(b"k").is_done());
        if round % 10 == 0 {
            let (_left, again) = after_kill(dir.path(), &broker).await;
            assert!(contents_of(&again, ["a", "b"])[(round + 1) % 2].contains_key(&b"k"[..]), "round {round}");
        }
        swapped.wait().await.expect("durable");
    }
    assert!(seen_unsettled > 0, "no read met an exchange in flight");
}

/// Fills caches with `count` entries each, whose keys name the cache.
fn fill(broker: &Broker, names: &[&str], count: u32) -> Vec<Arc<Cache>> {
    let caches: Vec<_> = names.iter().map(|name| broker.caches.create(name, DURABLE).expect("made")).collect();
    for (name, cache) in names.iter().zip(&caches) {
        (0..count).for_each(|number| {
            put(cache, &format!("{name}{number}"), &"v".repeat(100));
        });
    }
    caches
}

/// The dump is polled step by step, so that the exchange comes after each number of its pieces.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_loses_nothing_if_the_caches_exchange_their_contents_at_any_of_its_pieces() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    for before in (0..220).step_by(11) {
        let dir = TempDir::new().expect("a folder");
        let broker = on_disk(dir.path()).await;
        let caches = fill(&broker, &NAMES, 400);
        let log = log_of(&broker);
        {
            let mut dumping = pin!(broker.caches.dump(&log));
            let mut polls = 0;
            let begin = Instant::now();
            let dumped = loop {
                let polled = std::future::poll_fn(|context| Poll::Ready(dumping.as_mut().poll(context))).await;
                if let Poll::Ready(done) = polled {
                    break done;
                }
                polls += 1;
                if polls == before || polls == before + 40 {
                    let [a, b, c] = &caches[..] else { panic!("three") };
                    put(a, "before", "1");
                    drop(swap(a, b).expect("equal settings"));
                    assert!(matches!(a.delete(b"b7", Condition::Always), Ok(Stored::Done { .. })));
                    put(b, "after", "1");
                    drop(swap(c, a).expect("equal settings"));
                }
                assert!(begin.elapsed() < PATIENCE, "the dump does not end");
                tokio::task::yield_now().await;
            };
            dumped.expect("dumped");
        }
        broker.caches.settled().wait().await.expect("durable");
        assert!(log.topic.partitions()[0].extent().start > 0, "the log was truncated");
        let expected = contents_of(&broker, NAMES);
        assert!(expected.iter().map(BTreeMap::len).sum::<usize>() >= 1198);
        let (_left, again) = after_kill(dir.path(), &broker).await;
        assert_eq!(contents_of(&again, NAMES), expected, "after {before} polls");
    }
}

/// A dump has defined one of the two caches again when they exchange their contents, or none.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_between_two_definitions_of_a_dump_loses_nothing() {
    const NAMES: [&str; 2] = ["a", "b"];
    for defined in 0..=2 {
        for is_reversed in [false, true] {
            let dir = TempDir::new().expect("a folder");
            let broker = on_disk(dir.path()).await;
            let caches = fill(&broker, &NAMES, 100);
            let log = log_of(&broker);
            let (begin, bytes) = log.begin_dump();
            let define = |cache: &Cache| {
                let Durable { number, .. } = cache.durable.as_ref().expect("it is durable");
                log.append_cache(*number, Some(&cache.definition()));
            };
            caches.iter().take(defined).for_each(|cache| define(cache));
            put(&caches[0], "before", "1");
            assert!(matches!(caches[0].delete(b"a7", Condition::Always), Ok(Stored::Done { .. })));
            let (one, other) = if is_reversed { (&caches[1], &caches[0]) } else { (&caches[0], &caches[1]) };
            drop(swap(one, other).expect("equal settings"));
            put(&caches[0], "after", "1");
            caches.iter().skip(defined).for_each(|cache| define(cache));
            let mut ahead = 0;
            for contents in broker.caches.contents(&log).await {
                broker.caches.dump_contents(&log, contents, &mut ahead).await.expect("dumped");
            }
            log.settled().wait().await.expect("durable");
            log.cut(begin, bytes).await.expect("truncated");
            let expected = contents_of(&broker, NAMES);
            let (_left, again) = after_kill(dir.path(), &broker).await;
            assert_eq!(contents_of(&again, NAMES), expected, "{defined} defined, {is_reversed}");
        }
    }
}

/// Entries are exchanged, changed and dumped concurrently, and the broker is killed in the middle: each entry is in
/// exactly one cache.
#[tokio::test(flavor = "multi_thread")]
async fn no_entry_is_lost_or_doubled_by_exchanges_during_a_dump_that_is_cut_off() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    const COUNT: u32 = 700;
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let caches = fill(&broker, &NAMES, COUNT);
    broker.caches.settled().wait().await.expect("durable");
    for seed in 0..6usize {
        let swapped = caches.clone();
        let swapping = tokio::task::spawn_blocking(move || {
            for round in 0..60 {
                let one = (seed + round) % 3;
                // Always in the order of their numbers, as every caller does that locks more than one cache.
                let (one, other) = (one.min((one + 1) % 3), one.max((one + 1) % 3));
                drop(swap(&swapped[one], &swapped[other]).expect("equal settings"));
                put(&swapped[round % 3], "written", &round.to_string());
            }
        });
        let dumper = broker.clone();
        let dumping = tokio::spawn(async move {
            let log = log_of(&dumper);
            dumper.caches.dump(&log).await
        });
        let (_left, cut_off) = after_kill(dir.path(), &broker).await;
        swapping.await.expect("no panic");
        dumping.await.expect("no panic").expect("dumped");
        broker.caches.settled().wait().await.expect("durable");
        let (_after, again) = after_kill(dir.path(), &broker).await;
        assert_eq!(contents_of(&again, NAMES), contents_of(&broker, NAMES), "seed {seed}");
        for broker in [&cut_off, &again] {
            let all = contents_of(broker, NAMES);
            for contents in &all {
                let first = contents.keys().find(|key| *key != b"written").expect("entries")[0];
                let count = contents.keys().filter(|key| *key != b"written").filter(|key| key[0] == first).count();
                assert_eq!(count, COUNT as usize, "seed {seed}: contents are moved as a whole");
            }
            let total: usize = all.iter().flat_map(Contents::keys).filter(|key| *key != b"written").count();
            assert_eq!(total, 3 * COUNT as usize, "seed {seed}");
        }
    }
}
