//! Counters of this door, for `INFO`, `SLOWLOG` and `LATENCY HISTOGRAM`: commands, their durations, and errors.
//!
//! Each worker has cells that only its own thread writes, so that counting a command shares nothing with other threads.
//! Readers sum the cells of all workers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use broker::metrics::Exposition;
use broker::{Broker, Clock};
use net::telemetry::{Cell, Telemetry, Totals};
use parking_lot::Mutex;

use super::clients::Client;
use super::commands;
use super::latencies::Latencies;

/// Number of duration buckets: up to 1.024 us, and twice as long each; the last bucket has all longer ones.
const BUCKETS: usize = 28;
/// Maximum number of first words of errors that are counted separately. Others are counted together.
const ERRORS_MAX: usize = 128;
const OTHER_ERRORS: &str = "OTHER";
/// Maximum number of arguments in an entry of the slow log, and maximum bytes of each, as in Redis.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;
/// Maximum length of the slow log that can be set. Each entry takes at most 4 KiB.
pub(super) const SLOW_MAX: usize = 4096;
/// Interval at which rates are sampled, and number of samples of their mean.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
const SAMPLES: usize = 16;

/// Counters of one worker.
pub(super) struct Tally {
    commands: Box<[CommandCells]>,
    errors: Mutex<BTreeMap<Box<str>, u64>>,
}

#[derive(Default)]
struct CommandCells {
    ns: Cell,
    rejected: Cell,
    failed: Cell,
    by_duration: [Cell; BUCKETS],
}

/// Counters of one command over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) ns: u64,
    /// Number of calls that were refused before they began.
    pub(super) rejected: u64,
    /// Number of calls whose reply was an error.
    pub(super) failed: u64,
    by_duration: [u64; BUCKETS],
}

/// Entry of the slow log.
#[derive(Clone)]
pub(super) struct Slow {
    pub(super) id: u64,
    pub(super) at_s: u64,
    pub(super) us: u64,
    pub(super) args: Vec<Vec<u8>>,
    pub(super) address: String,
    pub(super) name: String,
}

pub(super) struct Stats {
    clock: Clock,
    tallies: Mutex<Vec<Option<Arc<Tally>>>>,
    telemetry: OnceLock<Arc<Telemetry>>,
    /// Counts before the last `CONFIG RESETSTAT`, which are subtracted.
    reset: Mutex<Baseline>,
    slow: Mutex<VecDeque<Slow>>,
    slow_count: AtomicU64,
    /// Threshold of the slow log in microseconds; below 0 no command is slow.
    slow_from_us: AtomicI64,
    slow_max: AtomicUsize,
    rates: Mutex<Rates>,
    /// Largest sampled memory of the caches, in bytes.
    memory_peak: AtomicU64,
    /// Samples of long commands, for `LATENCY`.
    pub(super) latencies: Latencies,
}

/// Values of the counters, which only grow, at the time of a reset.
#[derive(Clone, Default)]
pub(super) struct Baseline {
    commands: Vec<Counted>,
    errors: BTreeMap<Box<str>, u64>,
    pub(super) totals: Totals,
    /// Hits, misses, expired and evicted entries.
    pub(super) keyspace: [u64; 4],
    pub(super) refused: u64,
}

/// Rates of requests and bytes over the last samples.
#[derive(Default)]
struct Rates {
    last: Option<(Instant, Totals)>,
    /// Requests, bytes read and bytes written, per second.
    samples: VecDeque<[f64; 3]>,
}

impl Stats {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            tallies: Mutex::default(),
            telemetry: OnceLock::new(),
            reset: Mutex::default(),
            slow: Mutex::default(),
            slow_count: AtomicU64::new(0),
            slow_from_us: AtomicI64::new(10_000),
            slow_max: AtomicUsize::new(128),
            rates: Mutex::default(),
            memory_peak: AtomicU64::new(0),
            latencies: Latencies::default(),
        }
    }
}

impl Tally {
    fn new() -> Self {
        let commands = (0..commands::names().len()).map(|_| CommandCells::default()).collect();
        Self { commands, errors: Mutex::default() }
    }

    /// Records the duration of a command.
    pub(super) fn record(&self, number: usize, duration: Duration) {
        if let Some(cells) = self.commands.get(number) {
            let ns = duration.as_nanos() as u64;
            cells.ns.add(ns);
            let bucket = (ns >> 10).checked_ilog2().map_or(0, |power| power as usize + 1);
            cells.by_duration[bucket.min(BUCKETS - 1)].add(1);
        }
    }

    /// Counts a command that was refused before it began.
    pub(super) fn reject(&self, number: Option<usize>, answer: &[u8]) {
        if let Some(cells) = number.and_then(|number| self.commands.get(number)) {
            cells.rejected.add(1);
        }
        self.note_error(answer);
    }

    /// Counts a command whose reply is an error.
    pub(super) fn fail(&self, number: usize, answer: &[u8]) {
        if let Some(cells) = self.commands.get(number) {
            cells.failed.add(1);
        }
        self.note_error(answer);
    }

    #[cold]
    fn note_error(&self, answer: &[u8]) {
        let word = answer.strip_prefix(b"-").unwrap_or(answer);
        let word = word.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')).next().unwrap_or_default();
        let word = String::from_utf8_lossy(word);
        let mut errors = self.errors.lock();
        let is_known = errors.contains_key(&*word) || errors.len() < ERRORS_MAX;
        *errors.entry(Box::from(if is_known { &*word } else { OTHER_ERRORS })).or_default() += 1;
    }
}

impl Counted {
    pub(super) fn calls(&self) -> u64 {
        self.by_duration.iter().sum()
    }

    fn add(&mut self, cells: &CommandCells) {
        self.ns += cells.ns.get();
        self.rejected += cells.rejected.get();
        self.failed += cells.failed.get();
        self.by_duration.iter_mut().zip(&cells.by_duration).for_each(|(sum, cell)| *sum += cell.get());
    }

    fn without(mut self, before: &Self) -> Self {
        self.ns -= before.ns;
        self.rejected -= before.rejected;
        self.failed -= before.failed;
        self.by_duration.iter_mut().zip(&before.by_duration).for_each(|(sum, before)| *sum -= before);
        self
    }

    /// Returns the cumulative number of calls up to each bound in microseconds, for each bucket that has calls.
    pub(super) fn histogram(&self) -> Vec<(u64, u64)> {
        let mut sum = 0;
        let grown = self.by_duration.iter().enumerate().filter(|(_, count)| **count > 0);
        grown
            .map(|(bucket, count)| {
                sum += count;
                // The highest value that the histograms of Redis do not distinguish from the bound.
                let bound_ns = 1024u64 << bucket;
                ((bound_ns + bound_ns / 128 - 1) / 1000, sum)
            })
            .collect()
    }
}

impl Stats {
    /// Returns the cells of a worker.
    pub(super) fn tally(&self, worker: usize) -> Arc<Tally> {
        let mut tallies = self.tallies.lock();
        if tallies.len() <= worker {
            tallies.resize(worker + 1, None);
        }
        tallies[worker].get_or_insert_with(|| Arc::new(Tally::new())).clone()
    }

    pub(super) fn show(&self, telemetry: Arc<Telemetry>) {
        // There is one service, which calls this once.
        self.telemetry.set(telemetry).unwrap_or_default();
    }

    fn all(&self) -> Vec<Counted> {
        let mut all = vec![Counted::default(); commands::names().len()];
        for tally in self.tallies.lock().iter().flatten() {
            all.iter_mut().zip(&tally.commands).for_each(|(sum, cells)| sum.add(cells));
        }
        all
    }

    fn all_errors(&self) -> BTreeMap<Box<str>, u64> {
        let mut all = BTreeMap::new();
        for tally in self.tallies.lock().iter().flatten() {
            tally.errors.lock().iter().for_each(|(word, count)| *all.entry(word.clone()).or_default() += count);
        }
        all
    }

    /// Returns the commands that were ever called or refused, by name.
    pub(super) fn commands(&self) -> BTreeMap<&'static str, Counted> {
        let reset = self.reset.lock();
        let none = Counted::default();
        let since = |(number, counted): (usize, Counted)| counted.without(reset.commands.get(number).unwrap_or(&none));
        let all = self.all().into_iter().enumerate().map(since);
        let named = commands::names().iter().map(String::as_str).zip(all);
        named.filter(|(_, counted)| *counted != none).collect()
    }

    pub(super) fn errors(&self) -> BTreeMap<Box<str>, u64> {
        let reset = self.reset.lock();
        let mut errors = self.all_errors();
        errors.iter_mut().for_each(|(word, count)| *count -= reset.errors.get(word).copied().unwrap_or_default());
        errors.retain(|_, count| *count > 0);
        errors
    }

    /// Returns the connections, requests and bytes since the door opened.
    pub(super) fn totals(&self) -> Totals {
        self.telemetry.get().map(|telemetry| telemetry.totals()).unwrap_or_default()
    }

    pub(super) fn baseline(&self) -> Baseline {
        self.reset.lock().clone()
    }

    /// Resets the counters.
    pub(super) fn reset(&self, keyspace: [u64; 4], refused: u64) {
        let baseline =
            Baseline { commands: self.all(), errors: self.all_errors(), totals: self.totals(), keyspace, refused };
        *self.reset.lock() = baseline;
        *self.rates.lock() = Rates::default();
        self.memory_peak.store(0, Ordering::Relaxed);
    }

    /// Returns the requests, bytes read and bytes written per second, over the last samples.
    pub(super) fn rates(&self) -> [f64; 3] {
        let rates = self.rates.lock();
        let mean = |at: usize| rates.samples.iter().map(|sample| sample[at]).sum::<f64>() / SAMPLES as f64;
        [mean(0), mean(1), mean(2)]
    }

    /// Returns the largest known memory of the caches in bytes, including `now_bytes`.
    pub(super) fn memory_peak(&self, now_bytes: u64) -> u64 {
        self.memory_peak.fetch_max(now_bytes, Ordering::Relaxed).max(now_bytes)
    }

    fn sample(&self, at: Instant, totals: Totals) {
        let mut rates = self.rates.lock();
        if let Some((before, old)) = rates.last {
            let seconds = at.duration_since(before).as_secs_f64().max(0.001);
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
            let sample = [
                rate(totals.requests_completed, old.requests_completed),
                rate(totals.bytes_read, old.bytes_read),
                rate(totals.bytes_written, old.bytes_written),
            ];
            if rates.samples.len() == SAMPLES {
                rates.samples.pop_front();
            }
            rates.samples.push_back(sample);
        }
        rates.last = Some((at, totals));
    }

    /// Samples rates and memory while the door is open.
    pub(super) async fn sample_all(stats: Weak<Self>, broker: Weak<Broker>) {
        let mut interval = tokio::time::interval(SAMPLE_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let (Some(stats), Some(broker)) = (stats.upgrade(), broker.upgrade()) else {
                return;
            };
            stats.memory_peak(broker.caches.bytes());
            stats.sample(Instant::now(), stats.totals());
        }
    }

    /// Records the duration of a command that took long enough for a sample.
    #[inline]
    pub(super) fn note_latency(&self, number: usize, duration: Duration) {
        if self.latencies.is_sample(duration) {
            self.latencies.note(number, duration, self.clock.now_ms() / 1000);
        }
    }

    /// Returns `true` if a command of this duration belongs in the slow log.
    #[inline]
    pub(super) fn is_slow(&self, duration: Duration) -> bool {
        let from_us = self.slow_from_us.load(Ordering::Relaxed);
        from_us >= 0 && duration.as_micros() >= from_us as u128
    }

    pub(super) fn slow_limits(&self) -> (i64, usize) {
        (self.slow_from_us.load(Ordering::Relaxed), self.slow_max.load(Ordering::Relaxed))
    }

    pub(super) fn set_slow_from_us(&self, us: i64) {
        self.slow_from_us.store(us, Ordering::Relaxed);
    }

    pub(super) fn set_slow_max(&self, max: usize) {
        self.slow_max.store(max.min(SLOW_MAX), Ordering::Relaxed);
    }

    /// Adds a command to the slow log. Passwords are redacted.
    #[cold]
    pub(super) fn note_slow(&self, client: &Client, args: &[&[u8]], duration: Duration) {
        let is_secret = matches!(args[0].to_ascii_uppercase().as_slice(), b"AUTH" | b"HELLO" | b"ACL");
        let kept = if args.len() > SLOW_ARGS_MAX { SLOW_ARGS_MAX - 1 } else { args.len() };
        let shown = |(at, arg): (usize, &&[u8])| match arg.len() {
            _ if is_secret && at > 0 => b"(redacted)".to_vec(),
            length if length > SLOW_ARG_BYTES_MAX => {
                let more = format!("... ({} more bytes)", length - SLOW_ARG_BYTES_MAX);
                [&arg[..SLOW_ARG_BYTES_MAX], more.as_bytes()].concat()
            }
            _ => arg.to_vec(),
        };
        let mut args_shown: Vec<_> = args[..kept].iter().enumerate().map(shown).collect();
        if kept < args.len() {
            args_shown.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
        }
        let slow = Slow {
            id: self.slow_count.fetch_add(1, Ordering::Relaxed),
            at_s: self.clock.now_ms() / 1000,
            us: duration.as_micros() as u64,
            args: args_shown,
            address: client.address.clone(),
            name: client.about.lock().name.clone(),
        };
        let mut log = self.slow.lock();
        log.push_front(slow);
        log.truncate(self.slow_max.load(Ordering::Relaxed));
    }

    /// Returns at most `count` entries, newest first.
    pub(super) fn slow(&self, count: usize) -> Vec<Slow> {
        self.slow.lock().iter().take(count).cloned().collect()
    }

    pub(super) fn slow_len(&self) -> usize {
        self.slow.lock().len()
    }

    pub(super) fn forget_slow(&self) {
        self.slow.lock().clear();
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let mut calls = 0;
        let mut failed = 0;
        let mut rejected = 0;
        for counted in self.all() {
            calls += counted.calls();
            failed += counted.failed;
            rejected += counted.rejected;
        }
        out.counter("thalweg_redis_commands", "Executed commands of Redis clients", calls)?;
        out.counter("thalweg_redis_failed_commands", "Commands answered with an error", failed)?;
        out.counter("thalweg_redis_rejected_commands", "Commands refused before execution", rejected)?;
        let slow = self.slow_count.load(Ordering::Relaxed);
        out.counter("thalweg_redis_slow_commands", "Commands recorded in the slow log so far", slow)?;
        out.gauge("thalweg_redis_slow_log_entries", "Entries of the slow log", self.slow_len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_workers_add_up_and_begin_again_after_a_reset() {
        let stats = Stats::new(Clock::SYSTEM);
        let get = commands::find(b"GET").expect("a command").number_of(&[b"GET", b"k"]);
        let one = stats.tally(0);
        let other = stats.tally(3);
        one.record(get, Duration::from_micros(3));
        other.record(get, Duration::from_micros(100));
        other.fail(get, b"-WRONGTYPE Operation against\r\n");
        one.reject(Some(get), b"-ERR wrong number\r\n");
        let counted = stats.commands()["get"];
        assert_eq!((counted.calls(), counted.ns, counted.failed, counted.rejected), (2, 103_000, 1, 1));
        // Bounds as in LATENCY HISTOGRAM of Redis 7.0.
        assert_eq!(counted.histogram(), [(4, 1), (132, 2)]);
        assert_eq!(stats.errors().into_iter().collect::<Vec<_>>(), [("ERR".into(), 1), ("WRONGTYPE".into(), 1)]);
        stats.reset([0; 4], 0);
        assert!(stats.commands().is_empty() && stats.errors().is_empty());
        one.record(get, Duration::from_micros(1));
        assert_eq!(stats.commands()["get"].calls(), 1);
    }

    #[test]
    fn kinds_of_errors_are_bounded() {
        let tally = Tally::new();
        (0..1000).for_each(|at| tally.fail(0, format!("-E{at} x\r\n").as_bytes()));
        let errors = tally.errors.lock();
        assert_eq!((errors.len(), errors[OTHER_ERRORS]), (ERRORS_MAX + 1, 1000 - ERRORS_MAX as u64));
    }

    #[test]
    fn rates_are_means_of_the_last_samples() {
        let stats = Stats::new(Clock::SYSTEM);
        let begin = Instant::now();
        for at in 0..=20u32 {
            let totals = Totals { requests_completed: u64::from(at) * 50, ..Totals::default() };
            stats.sample(begin + SAMPLE_EVERY * at, totals);
        }
        assert!((stats.rates()[0] - 500.0).abs() < 0.1, "{:?}", stats.rates());
    }
}
