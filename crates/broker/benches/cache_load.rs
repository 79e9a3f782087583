//! Benchmarks of caches within the process: cost of a get and a put, hit rate, and memory of a million entries.
//!
//! ```console
//! $ cargo bench -p thalweg-broker --bench cache_load
//! ```

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, Cache, Settings};
use engine::cache::{CacheSettings, Condition, Eviction, Found, Ttl};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 1_000_000;
/// Skew of the YCSB benchmark.
const ZIPF: f64 = 0.99;
const TRACE: usize = 4 << 20;
const TIME: Duration = Duration::from_secs(2);
const VALUE: [u8; 64] = [b'v'; 64];

/// Pseudorandom numbers that depend only on their seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns keys in the order of their requests, of which a few are requested often.
fn trace(keys: u64, seed: u64) -> Vec<[u8; 16]> {
    let mut sums = Vec::with_capacity(keys as usize);
    let mut sum = 0.0;
    for rank in 1..=keys {
        sum += (rank as f64).powf(-ZIPF);
        sums.push(sum);
    }
    let mut random = Random(seed);
    let one = |_| {
        let at = random.fraction() * sum;
        key(sums.partition_point(|sum| *sum < at) as u64)
    };
    (0..TRACE).map(one).collect()
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let digits = number.to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

fn bytes_of(found: Found<'_>) -> &[u8] {
    found.value.bytes().expect("no structure")
}

fn put(cache: &Cache, key: &[u8], value: &[u8]) {
    cache.put(key, value, Ttl::Default, Condition::Always).expect("room");
}

/// Returns millions of calls per second and thread.
fn rate(threads: usize, trace: &Arc<Vec<[u8; 16]>>, call: impl Fn(&[u8; 16]) + Sync) -> f64 {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let trace = trace.clone();
                let is_over = &is_over;
                let call = &call;
                scope.spawn(move || {
                    let mut at = thread * TRACE / threads;
                    let mut calls = 0u64;
                    let begin = Instant::now();
                    while !is_over.load(Ordering::Relaxed) {
                        for _ in 0..1024 {
                            call(&trace[at % TRACE]);
                            at += 1;
                        }
                        calls += 1024;
                    }
                    calls as f64 / begin.elapsed().as_secs_f64()
                })
            })
            .collect();
        std::thread::sleep(TIME);
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<f64>() / threads as f64 / 1e6
    })
}

fn speed(broker: &Broker) {
    let trace = Arc::new(trace(KEYS, 1));
    for (name, eviction) in [("nothing evicted", Eviction::None), ("s3-fifo", Eviction::S3Fifo)] {
        let settings = CacheSettings { eviction, ..CacheSettings::default() };
        let cache = broker.caches.create(eviction.name(), settings).expect("made");
        (0..KEYS).for_each(|number| put(&cache, &key(number), &VALUE));
        let found = |key: &[u8; 16]| {
            let mut copy = [0; 64];
            cache
                .get(key, |found| {
                    let value = found.map_or(&[][..], bytes_of);
                    copy[..value.len()].copy_from_slice(value);
                })
                .expect("free");
            black_box(&copy);
        };
        for threads in [1, 2] {
            let get = rate(threads, &trace, found);
            let put = rate(threads, &trace, |key| put(&cache, key, &VALUE));
            let longer = rate(threads, &trace, |key| {
                // The length is unchanged in one case of three, so that most values need other memory.
                let length = 48 + usize::from(key[15] % 3) * 8;
                put_of(&cache, key, length);
            });
            println!(
                "{name}, {threads} thread(s): get {get:.3}, put {put:.3}, of another length {longer:.3} M/s per thread"
            );
        }
        drop(broker.caches.delete(eviction.name()).expect("there"));
    }
}

/// Measures the same calls of `quick_cache`, which holds values of one size in its table.
fn speed_of_quick_cache() {
    let trace = Arc::new(trace(KEYS, 1));
    let cache = quick_cache::sync::Cache::<[u8; 16], [u8; 64]>::new(2 * KEYS as usize);
    (0..KEYS).for_each(|number| cache.insert(key(number), VALUE));
    for threads in [1, 2] {
        let get = rate(threads, &trace, |key| {
            black_box(cache.get(key));
        });
        let put = rate(threads, &trace, |key| cache.insert(*key, VALUE));
        println!("quick_cache, {threads} thread(s): get {get:.3}, put {put:.3} M/s per thread");
    }
}

fn put_of(cache: &Cache, key: &[u8], length: usize) {
    let is_long = |found: Option<Found<'_>>| found.is_some_and(|found| bytes_of(found).len() == length);
    let is_longer = cache.peek(key, is_long).expect("free");
    put(cache, key, &VALUE[..length - if is_longer { 8 } else { 0 }]);
}

/// Replays the same trace on a Thalweg cache and on `quick_cache`, each with room for the same number of entries.
fn hits(broker: &Broker) {
    for part in [100, 20, 5] {
        let trace = trace(KEYS, 7);
        let room = KEYS as usize / part;
        let per_entry = 16 + 64 + 74;
        let settings = CacheSettings {
            bytes_max: Some((room * per_entry) as u64),
            eviction: Eviction::S3Fifo,
            ..CacheSettings::default()
        };
        let ours = broker.caches.create("hits", settings).expect("made");
        let theirs = quick_cache::sync::Cache::<[u8; 16], [u8; 64]>::new(room);
        let mut our_hits = 0;
        let mut their_hits = 0;
        for key in &trace {
            if ours.get(key, |found| found.is_some()).expect("free") {
                our_hits += 1
            } else {
                put(&ours, key, &VALUE)
            }
            if theirs.get(key).is_some() { their_hits += 1 } else { theirs.insert(*key, VALUE) }
        }
        let ratio = |hits: usize| 100.0 * hits as f64 / trace.len() as f64;
        println!(
            "room for {room} of {KEYS}: {:.2} % hits with {} entries, quick_cache {:.2} % with {}",
            ratio(our_hits),
            ours.status().stats.entries,
            ratio(their_hits),
            theirs.len()
        );
        drop(broker.caches.delete("hits").expect("there"));
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

/// Measures the memory left over from values of other lengths: each entry is replaced ten times, with 8 to 200 bytes,
/// and in the end every second entry is deleted.
fn fragmentation(cache: &Cache, before: u64) {
    let mut random = Random(3);
    let long = [b'v'; 200];
    for _ in 0..10 {
        (0..KEYS).for_each(|number| put(cache, &key(number), &long[..8 + (random.next() % 193) as usize]));
    }
    let ratio = || (resident() - before) as f64 / cache.status().stats.bytes as f64;
    let full = ratio();
    for number in (0..KEYS).step_by(2) {
        cache.delete(&key(number), Condition::Always).expect("free");
    }
    // The allocator returns pages a moment later.
    std::thread::sleep(Duration::from_secs(1));
    println!(
        "after ten rounds of values from 8 to 200 bytes: resident {full:.2} times the counted bytes; of half: {:.2}",
        ratio()
    );
    (0..KEYS).for_each(|number| put(cache, &key(number), &VALUE));
}

fn memory(broker: &Broker) {
    let cache = broker.caches.open("memory").expect("made");
    let before = resident();
    (0..KEYS).for_each(|number| put(&cache, &key(number), &VALUE));
    let taken = resident() - before;
    let counted = cache.status().stats.bytes;
    println!(
        "{KEYS} entries of 16 + 64 bytes: {:.1} MB resident, {:.1} MB counted",
        taken as f64 / 1e6,
        counted as f64 / 1e6
    );
    fragmentation(&cache, before);
    // A million entries that expire at the same time: measures how long another client waits in the meantime.
    let until = broker::Clock::SYSTEM.now_ms() + 3000;
    (0..KEYS).for_each(|number| {
        cache.put(&key(number), &VALUE, Ttl::Until(until), Condition::Always).expect("room");
    });
    cache.put(b"stays", b"", Ttl::Never, Condition::Always).expect("room");
    let mut slowest = Duration::ZERO;
    while cache.status().stats.entries > 1 {
        let mut last = Instant::now();
        for _ in 0..100 {
            black_box(cache.get(b"stays", |found| found.is_some()).expect("free"));
            slowest = slowest.max(last.elapsed());
            last = Instant::now();
        }
    }
    println!("while a million expired at the same time, the slowest get took {:.2} ms", slowest.as_secs_f64() * 1e3);
    drop(broker.caches.delete("memory").expect("there"));
}

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let settings = Settings { cache_bytes_max: 4 << 30, ..Settings::default() };
    let broker = Broker::start(settings, &[runtime.handle().clone()]).expect("it starts");
    let which = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let runs = |name: &str| which.as_deref().is_none_or(|which| which == name);
    if runs("memory") {
        memory(&broker);
    }
    if runs("speed") {
        speed(&broker);
        speed_of_quick_cache();
    }
    if runs("hits") {
        hits(&broker);
    }
}
