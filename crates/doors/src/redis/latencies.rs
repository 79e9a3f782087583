//! Latency events (`LATENCY`): the durations of commands that took at least `latency-monitor-threshold`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::categories::commands_of;
use super::commands;

/// Maximum number of samples of an event; a newer one displaces the oldest. There is one per second.
const SAMPLES_MAX: usize = 160;
/// Number of columns of a graph, and of its rows without labels.
const COLUMNS: usize = 80;
const ROWS: usize = 4;

/// Commands that Redis calls fast, by their numbers: each takes a time that is independent of the amount of data.
static FAST: LazyLock<Vec<bool>> = LazyLock::new(|| {
    let fast: Vec<&str> = commands_of("fast").into_iter().flatten().collect();
    commands::names().iter().map(|name| fast.contains(&name.as_str())).collect()
});

/// Samples of both events: `command` and `fast-command`.
#[derive(Default)]
pub(super) struct Latencies {
    /// Minimum duration of a sample in ms; 0 samples nothing.
    threshold_ms: AtomicU64,
    events: Mutex<BTreeMap<&'static str, Series>>,
}

/// Samples of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Series {
    /// Times in seconds since 1970 and durations in ms: the longest of each second, in the order of time.
    pub(super) samples: VecDeque<(u64, u64)>,
    /// The longest duration of all samples so far.
    pub(super) max_ms: u64,
}

impl Latencies {
    pub(super) fn set_threshold_ms(&self, ms: u64) {
        self.threshold_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns `true` if a command that took this long is a sample.
    #[inline]
    pub(super) fn is_sample(&self, duration: Duration) -> bool {
        let threshold_ms = self.threshold_ms.load(Ordering::Relaxed);
        threshold_ms > 0 && duration >= Duration::from_millis(threshold_ms)
    }

    /// Records the duration of the command with this number.
    #[cold]
    pub(super) fn note(&self, number: usize, duration: Duration, now_s: u64) {
        let is_fast = FAST.get(number).is_some_and(|is_fast| *is_fast);
        let event = if is_fast { "fast-command" } else { "command" };
        self.events.lock().entry(event).or_default().add(now_s, duration.as_millis() as u64);
    }

    /// Returns all events with their samples.
    pub(super) fn all(&self) -> BTreeMap<&'static str, Series> {
        self.events.lock().clone()
    }

    /// Returns the samples of an event.
    pub(super) fn of(&self, event: &[u8]) -> Option<(&'static str, Series)> {
        let events = self.events.lock();
        let found = events.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(event));
        found.map(|(name, series)| (*name, series.clone()))
    }

    /// Removes the samples of these events, or of all, and returns the number of events.
    pub(super) fn reset(&self, wanted: &[&[u8]]) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        let is_wanted = |name: &str| wanted.iter().any(|event| event.eq_ignore_ascii_case(name.as_bytes()));
        events.retain(|name, _| !wanted.is_empty() && !is_wanted(name));
        before - events.len()
    }

    /// Returns a report for people.
    pub(super) fn report(&self) -> String {
        let threshold_ms = self.threshold_ms.load(Ordering::Relaxed);
        if threshold_ms == 0 {
            return "Latencies are not sampled: CONFIG SET latency-monitor-threshold MS samples commands that take at \
                    least MS milliseconds.\n"
                .to_owned();
        }
        let events = self.all();
        if events.is_empty() {
            return format!("No command took {threshold_ms} ms or more.\n");
        }
        let mut report = String::new();
        for (name, series) in &events {
            let sum: u64 = series.samples.iter().map(|(_, ms)| ms).sum();
            let mean = sum / series.samples.len().max(1) as u64;
            let written = writeln!(
                report,
                "{name}: {} seconds with a command of {threshold_ms} ms or more, {mean} ms on average, at most {} ms.",
                series.samples.len(),
                series.max_ms
            );
            debug_assert!(written.is_ok(), "a string takes all that is written to it");
        }
        report.push_str("SLOWLOG GET shows slow commands, and LATENCY HISTOGRAM the latencies of each command.\n");
        report
    }
}

impl Series {
    fn add(&mut self, now_s: u64, ms: u64) {
        self.max_ms = self.max_ms.max(ms);
        match self.samples.back_mut() {
            // As in Redis, each second has its longest sample.
            Some((at_s, before)) if *at_s == now_s => *before = (*before).max(ms),
            _ => {
                if self.samples.len() == SAMPLES_MAX {
                    self.samples.pop_front();
                }
                self.samples.push_back((now_s, ms));
            }
        }
    }

    /// Draws the samples with characters, as `latency.c` and `sparkline.c` of Redis do.
    pub(super) fn graph(&self, event: &str, now_s: u64) -> String {
        let low = self.samples.iter().map(|(_, ms)| *ms).min().unwrap_or_default();
        let high = self.samples.iter().map(|(_, ms)| *ms).max().unwrap_or_default();
        let mut graph = format!("{event} - high {high} ms, low {low} ms (all time high {} ms)\n", self.max_ms);
        graph.extend(std::iter::repeat_n('-', COLUMNS));
        graph.push('\n');
        let samples: Vec<(u64, String)> =
            self.samples.iter().map(|(at_s, ms)| (*ms, age(now_s.saturating_sub(*at_s)))).collect();
        for (number, part) in samples.chunks(COLUMNS).enumerate() {
            if number > 0 {
                graph.push('\n');
            }
            draw(&mut graph, part, low, high);
        }
        graph
    }
}

/// Returns the time since a sample as its label.
fn age(s: u64) -> String {
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..86400 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86400),
    }
}

/// Draws samples with their labels below them.
fn draw(graph: &mut String, samples: &[(u64, String)], low: u64, high: u64) {
    let tops = ['_', 'o', '#'];
    let steps = tops.len() * ROWS;
    let range = (high - low).max(1);
    for row in 0..ROWS {
        let base = (ROWS - row - 1) * tops.len();
        graph.extend(samples.iter().map(|(ms, _)| {
            let step = (((ms - low) as usize * steps) / range as usize).min(steps - 1);
            match step.checked_sub(base) {
                Some(at) => tops.get(at).copied().unwrap_or('|'),
                None => ' ',
            }
        }));
        graph.push('\n');
    }
    graph.extend(std::iter::repeat_n(' ', samples.len()));
    graph.push('\n');
    let longest = samples.iter().map(|(_, label)| label.len()).max().unwrap_or_default();
    for at in 0..longest {
        graph.extend(samples.iter().map(|(_, label)| label.as_bytes().get(at).map_or(' ', |byte| char::from(*byte))));
        graph.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_second_has_its_longest_sample_and_old_ones_are_displaced() {
        let latencies = Latencies::default();
        assert!(!latencies.is_sample(ms(1000)));
        latencies.set_threshold_ms(10);
        assert!(latencies.is_sample(ms(10)) && !latencies.is_sample(ms(9)));
        let number = commands::find(b"KEYS").expect("a command").number_of(&[b"KEYS"]);
        for (at_s, duration) in [(5, 20), (5, 30), (5, 25), (6, 11)] {
            latencies.note(number, ms(duration), at_s);
        }
        let (name, series) = latencies.of(b"COMMAND").expect("samples");
        assert_eq!((name, Vec::from(series.samples), series.max_ms), ("command", vec![(5, 30), (6, 11)], 30));
        for at_s in 100..100 + 2 * SAMPLES_MAX as u64 {
            latencies.note(number, ms(12), at_s);
        }
        let (_, series) = latencies.of(b"command").expect("samples");
        assert_eq!((series.samples.len(), series.max_ms), (SAMPLES_MAX, 30));
        latencies.note(commands::find(b"GET").expect("a command").number_of(&[b"GET"]), ms(15), 1);
        assert_eq!(latencies.all().into_keys().collect::<Vec<_>>(), ["command", "fast-command"]);
        assert_eq!(
            (latencies.reset(&[b"none", b"fast-command"]), latencies.reset(&[]), latencies.reset(&[])),
            (1, 1, 0)
        );
    }

    /// Output of redis-server 7.0.15 for these samples, of `DEBUG SLEEP`, one second after the last.
    #[test]
    fn graphs_are_drawn_as_redis_draws_them() {
        let mut series = Series::default();
        [(55, 100), (57, 1250), (59, 400), (60, 130)].iter().for_each(|(at_s, ms)| series.add(*at_s, *ms));
        let lines = [
            "command - high 1250 ms, low 100 ms (all time high 1250 ms)",
            "--------------------------------------------------------------------------------",
            " #  ",
            " |  ",
            " |_ ",
            "_||_",
            "    ",
            "6421",
            "ssss",
            "",
        ];
        assert_eq!(series.graph("command", 61), lines.join("\n"));
    }
}
