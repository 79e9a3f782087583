//! Latency and volume over the time of a run, in bounded memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of steps. When a run needs more, each two are merged.
const STEPS_MAX: usize = 256;
const FIRST_STEP: Duration = Duration::from_millis(10);
/// Buckets per octave of a latency, so that the error is at most 6 %.
const BUCKETS_AN_OCTAVE: usize = 8;
/// Upper bound of the first bucket, which contains all shorter latencies.
const SHORTEST_NS: u64 = 1 << SHORTEST_LOG2;
const SHORTEST_LOG2: u32 = 10;
/// Number of buckets, up to 69 seconds.
const BUCKETS: usize = 26 * BUCKETS_AN_OCTAVE;

/// Equal steps of time, each with the distribution of its samples.
pub struct Timeline {
    step: Duration,
    steps: Vec<Step>,
}

#[derive(Clone)]
struct Step {
    count: u64,
    bytes: u64,
    max_ns: u64,
    buckets: [u32; BUCKETS],
}

/// Step for reports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Middle of the step, in seconds since the beginning of the run.
    pub at_s: f64,
    pub mb_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { step: FIRST_STEP, steps: Vec::new() }
    }
}

impl Timeline {
    /// Records `count` samples of `bytes` in total, which ended `at` after the beginning of the run.
    pub fn record(&mut self, at: Duration, latency: Duration, count: u64, bytes: u64) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        while nanos(at) / nanos(self.step) >= STEPS_MAX as u64 {
            self.halve();
        }
        let place = (nanos(at) / nanos(self.step)) as usize;
        if place >= self.steps.len() {
            self.steps.resize(place + 1, Step::EMPTY);
        }
        let step = &mut self.steps[place];
        step.count += count;
        step.bytes += bytes;
        step.max_ns = step.max_ns.max(nanos(latency));
        let bucket = &mut step.buckets[bucket_of(nanos(latency))];
        *bucket = bucket.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Returns the steps that have samples.
    pub fn points(&self) -> Vec<Point> {
        let seconds = self.step.as_secs_f64();
        let came = self.steps.iter().enumerate().filter(|(_, step)| step.count > 0);
        came.map(|(place, step)| Point {
            at_s: (place as f64 + 0.5) * seconds,
            mb_per_s: step.bytes as f64 / 1e6 / seconds,
            p50_us: step.quantile_ns(0.5) as f64 / 1e3,
            p99_us: step.quantile_ns(0.99) as f64 / 1e3,
            max_us: step.max_ns as f64 / 1e3,
        })
        .collect()
    }

    fn halve(&mut self) {
        self.step *= 2;
        self.steps = self
            .steps
            .chunks(2)
            .map(|two| {
                let mut sum = two[0].clone();
                if let Some(other) = two.get(1) {
                    sum.add(other);
                }
                sum
            })
            .collect();
    }
}

impl Step {
    const EMPTY: Self = Self { count: 0, bytes: 0, max_ns: 0, buckets: [0; BUCKETS] };

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.max_ns = self.max_ns.max(other.max_ns);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    fn quantile_ns(&self, quantile: f64) -> u64 {
        let total: u64 = self.buckets.iter().map(|n| u64::from(*n)).sum();
        let rank = ((total as f64 * quantile).ceil() as u64).max(1);
        let mut passed = 0;
        let bucket = self.buckets.iter().position(|n| {
            passed += u64::from(*n);
            passed >= rank
        });
        bucket.map_or(0, middle_ns).min(self.max_ns)
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SHORTEST_NS {
        return 0;
    }
    let octave = ns.ilog2();
    let within = (ns >> (octave - 3)) as usize % BUCKETS_AN_OCTAVE;
    (((octave - SHORTEST_LOG2) as usize) * BUCKETS_AN_OCTAVE + within).min(BUCKETS - 1)
}

fn middle_ns(bucket: usize) -> u64 {
    let octave = (bucket / BUCKETS_AN_OCTAVE) as u32 + SHORTEST_LOG2;
    let width = 1 << (octave - 3);
    (BUCKETS_AN_OCTAVE + bucket % BUCKETS_AN_OCTAVE) as u64 * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_six_percent_off_at_most() {
        for ns in (0..40_000u64).map(|i| 1024 + i * i * 40) {
            let off = middle_ns(bucket_of(ns)) as f64 / ns as f64;
            assert!((0.94..=1.0625).contains(&off), "{ns}: {off}");
        }
    }

    #[test]
    fn a_long_run_keeps_its_sums_in_few_steps() {
        let mut timeline = Timeline::default();
        let each = Duration::from_micros(700);
        for i in 0..100_000u32 {
            timeline.record(each * i, Duration::from_micros(50 + u64::from(i % 100)), 1, 1000);
        }
        let points = timeline.points();
        assert!(points.len() > STEPS_MAX / 2 && points.len() <= STEPS_MAX, "{}", points.len());
        let seconds = timeline.step.as_secs_f64();
        let megabytes: f64 = points.iter().map(|point| point.mb_per_s * seconds).sum();
        assert!((megabytes - 100.0).abs() < 0.001, "{megabytes}");
        for point in &points {
            assert!((94.0..106.0).contains(&point.p50_us) && (140.0..150.0).contains(&point.max_us), "{point:?}");
        }
    }
}
