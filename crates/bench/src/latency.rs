//! Latencies, kept whole.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Percentiles;

/// From 1 ns to an hour, to three digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Self(histogram.unwrap_or_else(|e| unreachable!("invariant: the bounds are valid: {e}")))
    }
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).unwrap_or_else(|e| unreachable!("invariant: all have the same bounds: {e}"));
    }

    pub fn percentiles(&self) -> Option<Percentiles> {
        let us = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        (!self.0.is_empty()).then(|| Percentiles {
            count: self.0.len(),
            mean: self.0.mean() / 1000.0,
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            max: self.0.max() as f64 / 1000.0,
        })
    }
}
