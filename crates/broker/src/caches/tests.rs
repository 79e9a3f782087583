//! Tests of caches by the broker's own calls, from many threads.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use engine::cache::{ChangeKind, Condition, Eviction, Found, ScanCursor, Stored, Ttl, WatchFrom};
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::settings::Settings;

const WAIT: Duration = Duration::from_secs(20);

fn broker_with(settings: Settings) -> Arc<Broker> {
    Broker::start(settings, &[Handle::current()]).expect("it starts")
}

fn broker() -> Arc<Broker> {
    broker_with(Settings::default())
}

fn value(cache: &Cache, key: &str) -> Option<String> {
    let text = |found: Found<'_>| String::from_utf8_lossy(bytes_of(found)).into_owned();
    cache.get(key.as_bytes(), |found| found.map(text)).expect("free")
}

fn bytes_of<'a>(found: Found<'a>) -> &'a [u8] {
    found.value.bytes().expect("no structure")
}

fn put(cache: &Cache, key: &str, value: &str) -> u64 {
    match cache.put(key.as_bytes(), value.as_bytes(), Ttl::Default, Condition::Always).expect("room") {
        Stored::Done { version, .. } => version,
        Stored::Unmet { .. } => panic!("there is no condition"),
    }
}

/// State of a cache as a watcher knows it.
#[derive(Default)]
struct Mirror {
    from: WatchFrom,
    entries: BTreeMap<Bytes, Bytes>,
    seen: Vec<ChangeKind>,
    resets: usize,
}

impl Mirror {
    async fn look(&mut self, cache: &Cache, prefix: &str, count_max: usize, wait: Duration) {
        let watched = cache.watch(prefix.as_bytes(), self.from, count_max, 1 << 20, wait).await.expect("it is there");
        if watched.is_reset {
            self.resets += 1;
            self.entries.clear();
        }
        self.from = watched.next;
        for change in watched.changes {
            match &change.kind {
                ChangeKind::Put(value) => drop(self.entries.insert(change.key, value.clone())),
                ChangeKind::Changed(_) => {}
                ChangeKind::Flushed => self.entries.clear(),
                ChangeKind::Deleted | ChangeKind::Expired | ChangeKind::Evicted => {
                    self.entries.remove(&change.key);
                }
            }
            self.seen.push(change.kind);
        }
    }

    /// Reads all entries, and all changes up to now.
    async fn catch_up(&mut self, cache: &Cache, prefix: &str) {
        loop {
            let before = (self.from, self.seen.len());
            self.look(cache, prefix, 100, Duration::ZERO).await;
            if before == (self.from, self.seen.len()) {
                return;
            }
        }
    }
}

fn entries(cache: &Cache, prefix: &str) -> BTreeMap<Bytes, Bytes> {
    let mut entries = BTreeMap::new();
    let mut from = Some(ScanCursor::default());
    while let Some(cursor) = from {
        let scanned = cache.scan(prefix.as_bytes(), cursor, |found| {
            let is_new =
                entries.insert(Bytes::copy_from_slice(found.key), Bytes::copy_from_slice(bytes_of(found))).is_none();
            assert!(is_new, "nothing changes, so nothing comes twice");
            entries.len() % 7 != 0
        });
        from = scanned.expect("free");
    }
    entries
}

#[tokio::test]
async fn a_version_is_replaced_by_one_writer_only() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    let first = put(&cache, "key", "1");
    let second = cache.put(b"key", b"2", Ttl::Default, Condition::IfVersion(first)).expect("room");
    let Stored::Done { version, previous } = second else { panic!("{second:?}") };
    assert_eq!(previous, Some(first));
    let late = cache.put(b"key", b"3", Ttl::Default, Condition::IfVersion(first)).expect("room");
    assert_eq!(late, Stored::Unmet { current: Some(version) });
    assert_eq!(cache.delete(b"key", Condition::IfVersion(first)), Ok(Stored::Unmet { current: Some(version) }));
    assert_eq!(value(&cache, "key").as_deref(), Some("2"));
    assert!(matches!(cache.delete(b"key", Condition::IfVersion(version)), Ok(Stored::Done { .. })));
    // The same version is never used again.
    assert!(put(&cache, "key", "4") > version);
    // Nor is it in another cache of the same name.
    drop(broker.caches.delete("c").expect("it was there"));
    assert!(put(&broker.caches.open("c").expect("made"), "key", "5") > version);
    assert_eq!(value(&cache, "key"), None, "the old one is empty");
}

#[tokio::test]
async fn counters_keep_their_time_and_threads_lose_nothing() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    let first = cache.add(b"hits", 5, Ttl::For(60_000)).expect("a number");
    let second = cache.add(b"hits", -7, Ttl::For(1_000_000)).expect("a number");
    assert_eq!((first.value, second.value, second.expires_ms), (5, -2, first.expires_ms));
    put(&cache, "text", "abc");
    assert_eq!(cache.add(b"text", 1, Ttl::Default).expect_err("no number").kind, ErrorKind::Invalid);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    cache.add(b"sum", 1, Ttl::Never).expect("a number");
                }
            });
        }
    });
    assert_eq!(value(&cache, "sum").as_deref(), Some("40000"));
}

#[tokio::test]
async fn entries_expire_to_the_millisecond_and_watchers_are_notified() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    let mut mirror = Mirror::default();
    mirror.catch_up(&cache, "").await;
    let until = crate::Clock::SYSTEM.now_ms() + 40;
    cache.put(b"soon", b"1", Ttl::Until(until), Condition::Always).expect("room");
    cache.put(b"later", b"1", Ttl::For(3_600_000), Condition::Always).expect("room");
    while crate::Clock::SYSTEM.now_ms() < until {
        // The entry may expire between the two reads.
        assert!(value(&cache, "soon").is_some() || crate::Clock::SYSTEM.now_ms() >= until);
    }
    assert_eq!(value(&cache, "soon"), None);
    while !mirror.seen.contains(&ChangeKind::Expired) {
        mirror.look(&cache, "", 100, WAIT).await;
    }
    assert_eq!(mirror.entries.len(), 1);
    // No client reads this one: the broker finds it.
    cache.put(b"alone", b"1", Ttl::For(1), Condition::Always).expect("room");
    while mirror.seen.iter().filter(|kind| **kind == ChangeKind::Expired).count() < 2 {
        mirror.look(&cache, "", 100, WAIT).await;
    }
    assert_eq!(cache.status().stats.entries, 1);
    assert!(cache.touch(b"later", Ttl::Never).expect("a time"));
    assert!(!cache.touch(b"alone", Ttl::Never).expect("a time"));
    assert_eq!(cache.peek(b"later", |found| found.map(|found| found.expires_ms)), Ok(Some(None)));
    for ttl in [Ttl::For(0), Ttl::For(u64::MAX)] {
        assert_eq!(cache.put(b"k", b"", ttl, Condition::Always).expect_err("no time").kind, ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn a_watcher_sees_a_value_that_expires_while_it_is_put() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    let mut mirror = Mirror::default();
    mirror.catch_up(&cache, "").await;
    cache.put(b"key", b"brief", Ttl::Until(1), Condition::Always).expect("room");
    while !mirror.seen.contains(&ChangeKind::Expired) {
        mirror.look(&cache, "", 100, WAIT).await;
    }
    assert_eq!(mirror.seen, [ChangeKind::Put("brief".into()), ChangeKind::Expired]);
}

#[tokio::test]
async fn a_watcher_sees_all_entries_and_all_changes() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    for number in 0..500 {
        put(&cache, &format!("a{number}"), "old");
        put(&cache, &format!("b{number}"), "old");
    }
    let mut mirror = Mirror::default();
    // An entry changes in the middle of a scan.
    mirror.look(&cache, "a", 100, WAIT).await;
    assert!(matches!(mirror.from, WatchFrom::Scan { .. }));
    for number in (0..500).step_by(3) {
        put(&cache, &format!("a{number}"), "new");
    }
    for number in (1..500).step_by(3) {
        cache.delete(format!("a{number}").as_bytes(), Condition::Always).expect("free");
    }
    mirror.catch_up(&cache, "a").await;
    assert_eq!(mirror.entries, entries(&cache, "a"));
    assert_eq!(mirror.entries.len(), 333);
    // A watcher is woken only by changes of keys that it watches.
    let waits = mirror.look(&cache, "a", 100, WAIT);
    let changes = async {
        put(&cache, "b0", "other");
        tokio::task::yield_now().await;
        put(&cache, "a2", "woken");
    };
    tokio::join!(waits, changes);
    assert_eq!(mirror.seen.last(), Some(&ChangeKind::Put("woken".into())));
    drop(cache.flush().expect("free"));
    put(&cache, "a1", "after");
    mirror.catch_up(&cache, "a").await;
    assert_eq!(mirror.entries, BTreeMap::from([("a1".into(), "after".into())]));
    assert_eq!(mirror.resets, 0);
}

#[tokio::test]
async fn a_watcher_too_far_behind_begins_again() {
    let broker = broker();
    let cache = broker.caches.open("c").expect("made");
    let mut mirror = Mirror::default();
    put(&cache, "gone", "1");
    mirror.catch_up(&cache, "").await;
    cache.delete(b"gone", Condition::Always).expect("free");
    for number in 0..70_000 {
        put(&cache, &format!("{}", number % 100), "x");
    }
    let kept = || broker.caches.common.watched_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!(kept() > 65_536 * 96 && kept() < 65_537 * 110, "{}", kept());
    mirror.catch_up(&cache, "").await;
    assert_eq!((mirror.resets, mirror.entries.len()), (1, 100));
    // A position from before, or one that never existed.
    for position in [0, 1, u64::MAX] {
        mirror.from = WatchFrom::Changes { position };
        mirror.look(&cache, "", 1000, WAIT).await;
        assert_eq!(mirror.entries.len(), 100);
    }
    assert_eq!(mirror.resets, 4);
    drop(broker.caches.delete("c").expect("it is there"));
    let over = cache.watch(b"", mirror.from, 1, 1, WAIT).await;
    assert_eq!(over.expect_err("deleted").kind, ErrorKind::NotFound);
    mirror.look(&broker.caches.open("c").expect("made"), "", 1000, WAIT).await;
    assert_eq!((mirror.resets, mirror.entries.len()), (5, 0));
    // The recorded changes of the deleted cache are dropped with it, once the task that removes expired entries has
    // released it.
    drop(cache);
    let is_gone = async {
        while kept() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAIT, is_gone).await.expect("it goes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_converges_to_the_entries_under_concurrent_changes() {
    let settings = CacheSettings { bytes_max: Some(200_000), eviction: Eviction::S3Fifo, ..CacheSettings::default() };
    let broker = broker();
    let cache = broker.caches.create("c", settings).expect("made");
    let writers: Vec<_> = (0..4u64)
        .map(|thread| {
            let cache = cache.clone();
            tokio::task::spawn_blocking(move || {
                let mut state = thread + 1;
                for step in 0..20_000u64 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = format!("key {}", (state >> 33) % 3000);
                    let what = (state >> 20) % 100;
                    match what {
                        0..60 => drop(cache.put(key.as_bytes(), &[b'v'; 40], Ttl::Default, Condition::Always)),
                        60..80 => drop(cache.put(key.as_bytes(), &step.to_be_bytes(), Ttl::For(3), Condition::Always)),
                        80..99 => drop(cache.delete(key.as_bytes(), Condition::Always)),
                        _ if step % 50 == 0 => drop(cache.flush()),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    let mut mirror = Mirror::default();
    for writer in writers {
        while !writer.is_finished() {
            mirror.look(&cache, "", 1000, Duration::from_millis(5)).await;
        }
        writer.await.expect("it wrote");
    }
    // The remaining entries expire.
    while entries(&cache, "").values().any(|value| value.len() == 8) {
        mirror.look(&cache, "", 1000, Duration::from_millis(5)).await;
    }
    loop {
        mirror.catch_up(&cache, "").await;
        if mirror.entries == entries(&cache, "") {
            break;
        }
        // The watcher is notified of an expired entry once the broker has found it.
        assert!(mirror.entries.len() as u64 >= cache.status().stats.entries);
        mirror.look(&cache, "", 1000, WAIT).await;
    }
    let stats = cache.status().stats;
    assert!(stats.evicted > 0 && stats.expired > 0 && stats.bytes <= 200_000, "{stats:?}");
}

#[tokio::test]
async fn a_small_cache_uses_its_capacity_regardless_of_the_stripes() {
    let broker = broker_with(Settings { cache_bytes_max: 1 << 20, ..Settings::default() });
    for eviction in Eviction::ALL {
        let settings = CacheSettings { bytes_max: Some(100_000), eviction, ..CacheSettings::default() };
        let cache = broker.caches.create(eviction.name(), settings).expect("made");
        let stored = (0..2000)
            .filter(|number| {
                cache.put(format!("{number}").as_bytes(), &[0; 400], Ttl::Default, Condition::Always).is_ok()
            })
            .count();
        let status = cache.status();
        assert!(status.stats.bytes <= 100_000 && status.stats.bytes > 60_000, "{status:?}");
        match eviction {
            Eviction::None => assert_eq!(status.stats.entries, stored as u64),
            Eviction::S3Fifo | Eviction::TtlFirst => assert_eq!(stored, 2000),
        }
        // One entry almost as large as the cache.
        let large = cache.put(b"large", &[1; 90_000], Ttl::Default, Condition::Always);
        match eviction {
            Eviction::None => assert_eq!(large.expect_err("full").kind, ErrorKind::Busy),
            Eviction::S3Fifo | Eviction::TtlFirst => {
                large.expect("room was made");
                assert_eq!(cache.get(b"large", |found| found.map(|found| bytes_of(found).len())), Ok(Some(90_000)));
            }
        }
    }
    // All caches together are limited, too.
    let cache = broker.caches.open("more").expect("made");
    let full = (0..)
        .find_map(|number: u32| cache.put(&number.to_be_bytes(), &[0; 1000], Ttl::Default, Condition::Always).err());
    let full = full.expect("there is an end");
    assert_eq!(full.kind, ErrorKind::Busy);
    assert!(full.message.contains("'more'"), "{full}");
    drop(cache.flush().expect("free"));
    put(&cache, "k", "room again");
    drop(broker.caches.delete("more").expect("it is there"));
}

#[tokio::test]
async fn caches_are_made_described_and_deleted() {
    let broker = broker();
    let settings =
        CacheSettings { bytes_max: Some(1000), eviction: Eviction::S3Fifo, ttl_ms: Some(60_000), is_durable: false };
    broker.caches.create("b", settings).expect("made");
    broker.caches.create("b", settings).expect("it is as good");
    let other = broker.caches.create("b", CacheSettings::default());
    assert_eq!(other.err().map(|error| error.kind), Some(ErrorKind::AlreadyExists));
    broker.caches.open("a").expect("made on the way");
    let names = |(caches, is_last): (Vec<CacheStatus>, bool)| {
        (caches.iter().map(|cache| cache.name.to_string()).collect::<Vec<_>>(), is_last)
    };
    assert_eq!(names(broker.caches.list("", 10, |_| true)), (vec!["a".to_owned(), "b".to_owned()], true));
    assert_eq!(names(broker.caches.list("", 1, |_| true)), (vec!["a".to_owned()], false));
    assert_eq!(names(broker.caches.list("a", 1, |_| true)), (vec!["b".to_owned()], true));
    let cache = broker.caches.open("b").expect("there");
    put(&cache, "k", "v");
    let expires_ms = cache.peek(b"k", |found| found.and_then(|found| found.expires_ms)).expect("free");
    let left = expires_ms.expect("a time") - crate::Clock::SYSTEM.now_ms();
    assert!((1..=60_000).contains(&left));
    assert_eq!(broker.caches.describe("b").expect("there").stats.entries, 1);
    for name in ["", "a b", "..", &"x".repeat(250)] {
        assert_eq!(broker.caches.open(name).err().map(|error| error.kind), Some(ErrorKind::Invalid), "{name}");
    }
    for settings in [
        CacheSettings { bytes_max: Some(0), ..settings },
        CacheSettings { ttl_ms: Some(0), ..settings },
        CacheSettings { ttl_ms: Some(u64::MAX), ..settings },
    ] {
        assert_eq!(broker.caches.create("c", settings).err().map(|error| error.kind), Some(ErrorKind::Invalid));
    }
    assert_eq!(broker.caches.delete("c").expect_err("not there").kind, ErrorKind::NotFound);
    for number in 0..CACHES_MAX - 2 {
        broker.caches.open(&format!("n{number}")).expect("made");
    }
    assert_eq!(broker.caches.open("one-more").err().map(|error| error.kind), Some(ErrorKind::Busy));
    let text = broker.stats().expect("metrics");
    assert!(text.contains("thalweg_cache_entries{cache=\"b\"} 1"), "{text}");
    let strict = broker_with(Settings { auto_create_topics: false, ..Settings::default() });
    assert_eq!(strict.caches.open("c").err().map(|error| error.kind), Some(ErrorKind::NotFound));
}

#[tokio::test]
async fn a_wait_for_a_key_ends_with_its_cache() {
    let broker = broker();
    let cache = broker.caches.create("c", CacheSettings::default()).expect("made");
    let wait = || cache.lock([&b"k"[..]]).wait(None, &[b"k"], &[], Box::new(|_, _| None)).expect("room");
    let before = wait();
    assert!(!before.is_over() && cache.waiting() == 1);
    drop(broker.caches.delete("c").expect("deleted"));
    before.answered().await;
    assert_eq!(cache.stop_waiting(&before).map(|(answer, _)| answer), None);
    // A client that starts to wait after the deletion, without knowing of it.
    let after = wait();
    after.answered().await;
    assert!(cache.stop_waiting(&after).is_none() && cache.waiting() == 0);
}

#[tokio::test]
async fn waiters_of_a_cache_wait_for_a_limited_number_of_keys() {
    let broker = broker();
    let cache = broker.caches.create("c", CacheSettings::default()).expect("made");
    let keys: Vec<Vec<u8>> = (0..1 << 12).map(|number: u32| number.to_be_bytes().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let wait = || cache.lock(keys.iter().copied()).wait(None, &keys, &[], Box::new(|_, _| None));
    let mut waiting: Vec<_> = (0..1 << 8).map(|_| wait().expect("room")).collect();
    let refused = wait().err().expect("2^20 keys are waited for");
    assert!(refused.is_throttled() && refused.message.contains("1048576"), "{refused}");
    let last = waiting.pop().expect("one");
    cache.stop_waiting(&last);
    waiting.push(wait().expect("its room"));
    waiting.iter().for_each(|waiting| drop(cache.stop_waiting(waiting)));
    assert_eq!(cache.waiting(), 0);
}

#[tokio::test]
async fn room_that_a_step_needs_is_made_before_it() {
    let broker = broker();
    let settings = CacheSettings { bytes_max: Some(1 << 20), eviction: Eviction::S3Fifo, ..CacheSettings::default() };
    let cache = broker.caches.create("c", settings).expect("made");
    for number in 0..20_000 {
        put(&cache, &number.to_string(), &"v".repeat(100));
    }
    let free = || (1u64 << 20) - cache.status().stats.bytes;
    cache.make_room(64 << 10);
    assert!(free() >= 64 << 10, "{} bytes are free", free());
    let entries = cache.status().stats.entries;
    cache.make_room(32 << 10);
    assert_eq!(cache.status().stats.entries, entries, "there was room");
}

/// A watcher is not woken for each of many changes of other keys, and still sees those of its own.
#[tokio::test(start_paused = true)]
async fn a_watcher_is_rarely_woken_for_changes_of_other_keys() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("c").expect("new");
    let watched = cache.watch(b"mine", WatchFrom::Snapshot, 10, 1 << 20, Duration::ZERO).await.expect("watched");
    let polls = Arc::new(AtomicUsize::new(0));
    let watcher = tokio::spawn({
        let (cache, polls) = (cache.clone(), polls.clone());
        async move {
            let mut watch = Box::pin(cache.watch(b"mine", watched.next, 10, 1 << 20, Duration::from_secs(60)));
            let counted = std::future::poll_fn(|context| {
                polls.fetch_add(1, Ordering::Relaxed);
                watch.as_mut().poll(context)
            });
            counted.await.expect("watched").changes.len()
        }
    });
    for number in 0..1000 {
        put(&cache, &format!("other{number}"), "1");
        tokio::task::yield_now().await;
    }
    assert!(polls.load(Ordering::Relaxed) < 20, "{polls:?}");
    put(&cache, "mine", "1");
    assert_eq!(watcher.await.expect("it ends"), 1);
}
