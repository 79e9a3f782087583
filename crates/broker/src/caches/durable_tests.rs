//! Tests of durable caches through kills and restarts: every acknowledged change survives, and no other entry appears.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use engine::cache::operations::OperationId;
use engine::cache::structures::{Edit, End, Hash, List, Score, Set, Sorted};
use engine::cache::{Condition, Eviction, Expires, Found, Owned, ScanCursor, Stored, Stripe, Ttl};
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

async fn on_disk(dir: &Path) -> Arc<Broker> {
    on_disk_with(dir, 1 << 20).await
}

async fn on_disk_with(dir: &Path, journal_bytes: u64) -> Arc<Broker> {
    let broker = open(dir, journal_bytes).expect("opens");
    broker.caches.restore().await.expect("restored");
    broker
}

/// Opens a broker over the state that another one leaves if it is killed now. Copying takes time: a copy during which
/// the journal continued in another file is not a state that a kill leaves, and is repeated.
async fn after_kill(dir: &Path, journal_bytes: u64) -> (TempDir, Arc<Broker>) {
    let begin = Instant::now();
    loop {
        let left = killed(dir);
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

fn open(dir: &Path, journal_bytes: u64) -> Result<Arc<Broker>> {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, reserve_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = journal_bytes;
    let begin = Instant::now();
    loop {
        match Store::open(Arc::new(RealDisk), dir, settings, crate::Clock::SYSTEM.read(), &mut |_| {}) {
            // A sweep that runs when a broker is dropped holds the directory until it has finished.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => {
                return Broker::start_with(Settings::default(), &[Handle::current()], Some(opened?));
            }
        }
    }
}

/// Copies the directory in the state that a process leaves if it is killed now.
fn killed(dir: &Path) -> TempDir {
    let left = TempDir::new().expect("a folder");
    copy(dir, left.path());
    left
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

/// Returns the log of durable caches.
fn log_of(broker: &Broker) -> Arc<CacheLog> {
    broker.caches.log.read().clone().expect("it is open")
}

/// Returns the contents of a cache in a form that can be compared.
fn contents(cache: &Cache) -> BTreeMap<Vec<u8>, (String, u64, Option<u64>)> {
    let mut all = BTreeMap::new();
    let mut from = Some(ScanCursor::default());
    while let Some(cursor) = from {
        let scanned = cache.scan(b"", cursor, |found| {
            let mut value = Vec::new();
            Stripe::dump(found, &mut value);
            let shown = format!("{} bytes: {}", value.len(), value[..value.len().min(200)].escape_ascii());
            all.insert(found.key.to_vec(), (shown, found.version, found.expires_ms)).is_none()
        });
        from = scanned.expect("free");
    }
    all
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

async fn put(cache: &Cache, key: &[u8], value: &[u8]) -> u64 {
    let stored = cache.put(key, value, Ttl::Default, Condition::Always).expect("room");
    cache.commit_of(key).wait().await.expect("durable");
    let Stored::Done { version, .. } = stored else { panic!("{stored:?}") };
    version
}

/// Makes one change of any kind, which is not durable yet.
fn change(cache: &Cache, dice: &mut Dice) {
    let key = format!("key {}", dice.roll(12));
    let key = key.as_bytes();
    let until = Ttl::Until(crate::Clock::SYSTEM.now_ms() + 100_000 + dice.roll(1000));
    match dice.roll(12) {
        0 | 1 => drop(cache.put(key, &dice.0.to_be_bytes(), Ttl::Default, Condition::Always)),
        2 => drop(cache.put(key, &vec![b'x'; dice.roll(5000) as usize], until, Condition::IfAbsent)),
        3 => drop(cache.delete(key, Condition::IfPresent)),
        4 => drop(cache.add(b"count", dice.roll(9) as i64, until)),
        5 => drop(cache.touch(key, if dice.roll(2) == 0 { until } else { Ttl::Never })),
        6 => drop(cache.lock([key]).change(key, 0, |list: &mut Edit<'_, List>| {
            list.push(if dice.roll(2) == 0 { End::Front } else { End::Back }, b"item");
            (true, ())
        })),
        7 => drop(cache.lock([key]).change(key, 0, |list: &mut Edit<'_, List>| (list.pop(End::Back).is_some(), ()))),
        8 => drop(cache.lock([key]).change(key, 0, |hash: &mut Edit<'_, Hash>| {
            hash.set(&dice.roll(5).to_be_bytes(), b"value");
            (true, ())
        })),
        9 => drop(cache.lock([key]).change(key, 0, |set: &mut Edit<'_, Set>| (set.add(&[dice.roll(9) as u8]), ()))),
        10 => drop(cache.lock([key]).change(key, 0, |sorted: &mut Edit<'_, Sorted>| {
            let score = Score::new(dice.roll(50) as f64).expect("a number");
            (sorted.set(&[dice.roll(9) as u8], score) != Some(score), ())
        })),
        _ if dice.roll(20) == 0 => drop(cache.flush()),
        _ => {
            // Two keys change places in one step.
            let a = &b"left"[..];
            let b = &b"right"[..];
            let mut locked = cache.lock([a, b]);
            let number = dice.0.to_string();
            locked.put(a, number.as_bytes(), Expires::Never, Condition::Always).expect("room");
            locked.put(b, number.as_bytes(), Expires::Never, Condition::Always).expect("room");
            drop(locked.finish());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_time_keeps_acknowledged_changes_and_a_prefix_of_the_later_ones() {
    for seed in 0..4 {
        let dir = TempDir::new().expect("a folder");
        let mut dice = Dice(seed);
        let mut broker = on_disk(dir.path()).await;
        broker.caches.create("c", DURABLE).expect("made");
        for round in 0..12 {
            let cache = broker.caches.open("c").expect("there");
            for _ in 0..dice.roll(40) {
                change(&cache, &mut dice);
            }
            cache.settled().wait().await.expect("durable");
            let acknowledged = contents(&cache);
            // Later changes may or may not survive, from the first one on and without a gap.
            let mut states = vec![acknowledged];
            for _ in 0..dice.roll(6) {
                change(&cache, &mut dice);
                states.push(contents(&cache));
            }
            let left = killed(dir.path());
            let again = on_disk(left.path()).await;
            let restored = contents(&again.caches.open("c").expect("there"));
            assert!(states.contains(&restored), "seed {seed}, round {round}: {restored:?} is none of {states:?}");
            match dice.roll(5) {
                2 => {
                    broker.forget_views().await.expect("restored");
                    assert!(cache.is_deleted(), "it has to be opened again");
                    let found = contents(&broker.caches.open("c").expect("there"));
                    assert_eq!(Some(&found), states.last(), "what is forgotten is restored whole");
                }
                0 => {
                    drop(cache);
                    broker.stop().expect("stops");
                    drop(broker);
                    broker = on_disk(dir.path()).await;
                    let found = contents(&broker.caches.open("c").expect("there"));
                    assert_eq!(Some(&found), states.last(), "a broker that is stopped loses nothing");
                }
                1 => broker.caches.dump(&log_of(&broker)).await.expect("dumped"),
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_others_change_it_a_dump_loses_nothing_wherever_it_is_cut_off() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let cache = broker.caches.create("c", DURABLE).expect("made");
    for number in 0..3000u32 {
        cache.put(&number.to_be_bytes(), &[b'v'; 100], Ttl::Default, Condition::Always).expect("room");
    }
    for seed in 0..6 {
        let writer = cache.clone();
        let dumper = broker.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut dice = Dice(seed);
            (0..2000).for_each(|_| change(&writer, &mut dice));
        });
        let dumping = tokio::spawn(async move {
            let log = log_of(&dumper);
            dumper.caches.dump(&log).await
        });
        let (_left, cut_off) = after_kill(dir.path(), 1 << 20).await;
        writing.await.expect("no panic");
        dumping.await.expect("no panic").expect("dumped");
        cache.settled().wait().await.expect("durable");
        let left = killed(dir.path());
        let again = on_disk(left.path()).await;
        assert_eq!(contents(&again.caches.open("c").expect("there")), contents(&cache), "seed {seed}");
        let found = contents(&cut_off.caches.open("c").expect("there"));
        let flushed = contents(&cache).len() < 3000;
        assert!(flushed || (0..3000u32).all(|number| found.contains_key(&number.to_be_bytes()[..])), "seed {seed}");
        let both = [&b"left"[..], b"right"].map(|key| found.get(key).map(|(value, ..)| value.contains("left")));
        assert_eq!(both[0].is_some(), both[1].is_some(), "a step is whole");
    }
}

/// Clients that count go on while the caches are forgotten again and again. What was acknowledged is there, and nothing
/// else; a change that is made too late fails.
#[tokio::test(flavor = "multi_thread")]
async fn caches_are_forgotten_while_others_change_them_and_nothing_is_lost() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    broker.caches.create("c", DURABLE).expect("made");
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let counting = (0..3).map(|client| {
        let broker = broker.clone();
        let is_over = is_over.clone();
        tokio::spawn(async move {
            let key = format!("count {client}");
            let mut acknowledged = 0;
            let mut tried = 0;
            while !is_over.load(Ordering::Relaxed) {
                // While they are restored, there is no cache of this name.
                let Ok(cache) = broker.caches.find("c") else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                if cache.admit().is_err() {
                    continue;
                }
                tried += 1;
                let added = cache.add(key.as_bytes(), 1, Ttl::Default);
                if added.is_ok() && cache.commit_of(key.as_bytes()).wait().await.is_ok() {
                    acknowledged += 1;
                }
            }
            (key, acknowledged, tried)
        })
    });
    let counting: Vec<_> = counting.collect();
    for round in 0..25 {
        tokio::time::sleep(Duration::from_millis(4)).await;
        if round % 5 == 4 {
            let dumping = broker.clone();
            let log = log_of(&broker);
            let dump = tokio::spawn(async move { dumping.caches.dump(&log).await });
            broker.forget_views().await.expect("restored");
            // A dump that was overtaken fails, and deletes nothing.
            drop(dump.await.expect("no panic"));
        } else {
            broker.forget_views().await.expect("restored");
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let mut counts = Vec::new();
    for client in counting {
        counts.push(client.await.expect("no panic"));
    }
    let check = |broker: &Arc<Broker>| {
        for (key, acknowledged, tried) in &counts {
            let cache = broker.caches.find("c").expect("there");
            let value = cache.get(key.as_bytes(), |found| {
                found.map_or(0, |found| {
                    String::from_utf8_lossy(found.value.bytes().expect("text")).parse().expect("a number")
                })
            });
            let value = value.expect("free");
            assert!(
                (*acknowledged..=*tried).contains(&value) && *acknowledged > 0,
                "{value}: {acknowledged} of {tried}"
            );
        }
    };
    check(&broker);
    let left = killed(dir.path());
    check(&on_disk(left.path()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_bounded_by_the_size_of_the_entries() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let cache = broker.caches.create("c", DURABLE).expect("made");
    let log = log_of(&broker);
    // Ten times the minimum size of the log.
    for number in 0..2600u64 {
        let key = (number % 7).to_be_bytes();
        cache.put(&key, &vec![b'v'; 64 << 10], Ttl::Default, Condition::Always).expect("room");
        if number % 16 == 0 {
            cache.settled().wait().await.expect("durable");
        }
    }
    cache.settled().wait().await.expect("durable");
    let begin = Instant::now();
    while log.bytes.load(Ordering::Relaxed) > 17 << 20 {
        assert!(begin.elapsed() < PATIENCE, "{} bytes are left", log.bytes.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(log.dumps.load(Ordering::Relaxed) > 0);
    // The files of deleted records go with the next checkpoint.
    broker.store().expect("it is on disk").checkpoint().expect("a checkpoint");
    let extent = log.topic.partitions()[0].extent();
    assert!(extent.start > 0 && extent.bytes < 40 << 20, "{extent:?}");
    let left = killed(dir.path());
    let again = on_disk(left.path()).await;
    assert_eq!(contents(&again.caches.open("c").expect("there")), contents(&cache));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_larger_than_a_batch_happens_as_a_whole_or_not() {
    // Each part is one write.
    const JOURNAL: u64 = 16 << 20;
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk_with(dir.path(), JOURNAL).await;
    let cache = broker.caches.create("c", DURABLE).expect("made");
    let keys: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number]).collect();
    let mut locked = cache.lock_all();
    for key in &keys {
        locked.put(key, &vec![b'v'; 1 << 20], Expires::Never, Condition::Always).expect("room");
    }
    let commit = locked.finish().commit;
    for _ in 0..5 {
        let (_left, again) = after_kill(dir.path(), JOURNAL).await;
        let count = contents(&again.caches.open("c").expect("there")).len();
        assert!(count == 0 || count == 20, "{count} of 20");
    }
    commit.wait().await.expect("durable");
    let (_left, again) = after_kill(dir.path(), JOURNAL).await;
    assert_eq!(contents(&again.caches.open("c").expect("there")), contents(&cache));
    assert_eq!(contents(&cache).len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_settings_and_times_survive_a_restart_and_deleted_entries_stay_deleted() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let settings = CacheSettings { bytes_max: Some(2 << 20), eviction: Eviction::S3Fifo, ttl_ms: Some(50), ..DURABLE };
    let small = broker.caches.create("small", settings).expect("made");
    let cache = broker.caches.create("c", DURABLE).expect("made");
    let gone = broker.caches.create("gone", DURABLE).expect("made");
    put(&gone, b"k", b"v").await;
    broker.caches.delete("gone").expect("there").wait().await.expect("durable");
    put(&gone, b"k", b"nobody sees it").await;
    let memory = broker.caches.open("memory").expect("made");
    memory.put(b"k", b"v", Ttl::Never, Condition::Always).expect("room");
    let version = put(&cache, b"k", b"v").await;
    cache.delete(b"k", Condition::Always).expect("free");
    for number in 0..3000u64 {
        small.put(&number.to_be_bytes(), &[0; 1000], Ttl::Never, Condition::Always).expect("room");
    }
    small.put(b"short", b"", Ttl::Default, Condition::Always).expect("room");
    assert!(small.status().stats.evicted > 500);
    small.settled().wait().await.expect("durable");
    tokio::time::sleep(Duration::from_millis(60)).await;
    let before = contents(&small);
    assert!(!before.contains_key(&b"short"[..]));
    let left = killed(dir.path());
    let broker = on_disk(left.path()).await;
    let names: Vec<_> = broker.caches.list("", 10, |_| true).0.iter().map(|status| status.name.to_string()).collect();
    assert_eq!(names, ["c", "small"]);
    let small = broker.caches.create("small", settings).expect("there with these settings");
    assert_eq!(contents(&small), before);
    assert_eq!(small.status().settings, settings);
    let cache = broker.caches.open("c").expect("there");
    assert_eq!(contents(&cache).len(), 0);
    assert!(put(&cache, b"k", b"v").await > version);
    let stats = broker.stats().expect("written");
    assert!(stats.contains(&format!("thalweg_cache_restored_entries {}", before.len())), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_over_several_caches_are_one_step() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let caches = ["a", "b"].map(|name| broker.caches.create(name, DURABLE).expect("made"));
    for round in 0..20u64 {
        let mut all: Vec<_> = caches.iter().map(|cache| cache.lock([&b"k"[..]])).collect();
        for locked in &mut all {
            locked.put(b"k", &round.to_be_bytes(), Expires::Never, Condition::Always).expect("room");
        }
        let commits: Vec<_> = Locked::finish_all(all).into_iter().map(|finished| finished.commit).collect();
        let left = killed(dir.path());
        for commit in commits {
            commit.wait().await.expect("durable");
        }
        let again = on_disk(left.path()).await;
        let of = |name: &str| {
            contents(&again.caches.open(name).expect("there")).values().next().map(|(_, version, _)| *version)
        };
        let exists = |name: &str| of(name).is_some();
        assert_eq!(exists("a"), exists("b"));
    }
    let whole = Owned::Bytes(b"w".to_vec().into());
    let mut locked = caches[0].lock_all();
    locked.flush();
    locked.put_owned(b"after", whole, None).expect("room");
    locked.finish().commit.wait().await.expect("durable");
    let left = killed(dir.path());
    let again = on_disk(left.path()).await;
    assert_eq!(contents(&again.caches.open("a").expect("there")), contents(&caches[0]));
    assert_eq!(contents(&caches[0]).len(), 1);
}

#[tokio::test]
async fn a_durable_cache_needs_a_data_directory() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let refused = broker.caches.create("c", DURABLE).map(drop).expect_err("nothing is durable in memory");
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("--data"), "{refused}");
    assert!(broker.caches.open("c").is_ok_and(|cache| cache.settled().is_done()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_value_is_durable_once_its_commit_is() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let cache = broker.caches.create("c", DURABLE).expect("made");
    put(&cache, b"calm", b"1").await;
    assert!(cache.commit_of(b"calm").is_done());
    let mut seen_unsettled = 0;
    for number in 0..200u64 {
        let key = number.to_be_bytes();
        cache.put(&key, b"v", Ttl::Default, Condition::Always).expect("room");
        let mut locked = cache.lock([&key[..]]);
        assert!(locked.peek(&key).is_some());
        let read = locked.finish().commit;
        seen_unsettled += u32::from(!read.is_done());
        read.wait().await.expect("durable");
        assert!(cache.commit_of(&key).is_done());
        let left = (number % 50 == 0).then(|| killed(dir.path()));
        if let Some(left) = left {
            let again = on_disk(left.path()).await;
            assert!(contents(&again.caches.open("c").expect("there")).contains_key(&key[..]));
        }
    }
    assert!(seen_unsettled > 0, "no read met a change on its way");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_comes_again_is_done_once_also_after_a_kill() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path()).await;
    let cache = broker.caches.create("c", DURABLE).expect("made");
    let id = |sequence| OperationId { client: 77, sequence };
    let add_durably = async |cache: &Cache, sequence| {
        let added = cache.add_once(b"n", 1, Ttl::Never, id(sequence)).expect("a number");
        cache.commit_of(b"n").wait().await.expect("durable");
        added
    };
    let mut killed_before = 0;
    for sequence in 0..200 {
        let added = cache.add_once(b"n", 1, Ttl::Never, id(sequence)).expect("a number");
        let commit = cache.commit_of(b"n");
        if sequence % 10 == 0 {
            let left = killed(dir.path());
            if sequence % 50 == 0 {
                broker.caches.dump(&log_of(&broker)).await.expect("dumped");
            }
            let again = on_disk(left.path()).await;
            let restored = again.caches.open("c").expect("there");
            let is_it = |found: Option<Found<'_>>| found.is_some_and(|found| found.version == added.version);
            let was_done = restored.get(b"n", is_it).expect("free");
            let after = add_durably(&restored, sequence).await;
            assert_eq!(after.value, added.value, "once, whether or not it was written before the kill");
            assert!(!was_done || after == added);
            killed_before += u32::from(!was_done);
            assert_eq!(add_durably(&restored, sequence).await, after);
        }
        commit.wait().await.expect("durable");
        assert_eq!(add_durably(&cache, sequence).await, added);
    }
    println!("{killed_before} were not written when the broker was killed");
    let left = killed(dir.path());
    let again = on_disk(left.path()).await.caches.open("c").expect("there");
    assert_eq!(add_durably(&again, 199).await.value, 200);
    let old = again.add_once(b"n", 1, Ttl::Never, id(3)).map_err(|error| error.kind);
    assert_eq!(old, Err(ErrorKind::OutOfRange));
    let kind = again.delete_once(b"n", Condition::Always, id(199)).map_err(|error| error.kind);
    assert_eq!(kind, Err(ErrorKind::Invalid), "it was another operation");
}

#[tokio::test]
async fn the_first_answer_counts_also_where_nothing_was_done() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("c").expect("made");
    let id = |sequence| OperationId { client: 5, sequence };
    let put = |sequence, condition| cache.put_once(b"k", b"v", Ttl::Default, condition, id(sequence)).expect("room");
    assert_eq!(put(1, Condition::IfPresent), Stored::Unmet { current: None });
    let done = put(2, Condition::IfAbsent);
    assert!(matches!(done, Stored::Done { previous: None, .. }));
    // The condition would be met now, but the client was told that it was not.
    assert_eq!(put(1, Condition::IfPresent), Stored::Unmet { current: None });
    assert_eq!(put(2, Condition::IfAbsent), done);
    let deleted = cache.delete_once(b"k", Condition::IfPresent, id(3)).expect("it is there");
    put(4, Condition::IfAbsent);
    assert_eq!(cache.delete_once(b"k", Condition::IfPresent, id(3)), Ok(deleted));
    assert_eq!(cache.get(b"k", |found| found.is_some()), Ok(true));
    let timed = cache.add_once(b"n", 2, Ttl::For(60_000), id(5)).expect("a number");
    assert!(timed.expires_ms.is_some());
    assert_eq!(cache.add_once(b"n", 2, Ttl::Never, id(6)).map(|added| added.expires_ms), Ok(timed.expires_ms));
}
