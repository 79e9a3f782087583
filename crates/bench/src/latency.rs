//! Histogram of all latencies of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Percentiles;

/// Points of a curve for each further nine of its quantiles.
const CURVE_STEPS: u32 = 4;

/// Histogram of latencies from 1 ns to an hour, to three digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Self(histogram.unwrap_or_else(|e| unreachable!("invariant: the bounds are valid: {e}")))
    }
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        self.record_many(latency, 1);
    }

    /// Records the same latency `count` times.
    pub fn record_many(&mut self, latency: Duration, count: u64) {
        self.0.saturating_record_n(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1), count);
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).unwrap_or_else(|e| unreachable!("invariant: all have the same bounds: {e}"));
    }

    pub fn len(&self) -> u64 {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns quantiles with their latencies in microseconds, with increasing resolution towards the slowest.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        // Each decade of the remaining part has four steps: 0, 0.44, 0.68, 0.82, 0.9, 0.944 and so on.
        let decades = (self.0.len() as f64).log10().floor().clamp(1.0, 7.0) as u32;
        let quantiles = (0..=decades * CURVE_STEPS).map(|i| 1.0 - 10f64.powf(-f64::from(i) / f64::from(CURVE_STEPS)));
        quantiles.map(|q| (q, self.0.value_at_quantile(q) as f64 / 1000.0)).collect()
    }

    pub fn percentiles(&self) -> Option<Percentiles> {
        let us = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        (!self.0.is_empty()).then(|| Percentiles {
            count: self.0.len(),
            mean: self.0.mean() / 1000.0,
            p50: us(0.5),
            p90: us(0.9),
            p95: us(0.95),
            p99: us(0.99),
            p999: us(0.999),
            max: self.0.max() as f64 / 1000.0,
        })
    }
}
