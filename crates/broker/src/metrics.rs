//! Counters, gauges and histograms that cost a few nanoseconds, and their exposition to Prometheus.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Cells of a counter that each belong to one thread, which adds without synchronization. Later threads share the
/// remaining cells.
const OWN_CELLS: usize = 8;
const CELLS: usize = 2 * OWN_CELLS;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the number of this thread, which no other thread ever has.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[repr(align(64))]
#[derive(Default)]
struct Padded(AtomicU64);

/// Monotonic counter. Each of the first threads adds to its own cache line.
#[derive(Default)]
pub struct Counter([Padded; CELLS]);

impl Counter {
    pub fn add(&self, n: u64) {
        match thread_number() {
            own @ 0..OWN_CELLS => {
                let Padded(cell) = &self.0[own];
                cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
            }
            shared => _ = self.0[OWN_CELLS + shared % OWN_CELLS].0.fetch_add(n, Ordering::Relaxed),
        }
    }

    pub fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).sum()
    }
}

/// Buckets up to 2^36 ns (69 s), four per power of two: at most 19 % off.
const BUCKETS: usize = 36 * 4;
/// Powers of two for which Prometheus receives a bucket: from 1 us to 17 s.
const SHOWN_POWERS: std::ops::RangeInclusive<u32> = 10..=34;

/// Histogram of durations, in buckets of relative width.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(4);
        let power = ns.ilog2();
        let quarter = (ns >> (power - 2)) & 3;
        let bucket = ((power as usize) * 4 + quarter as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the cumulative counts up to each shown bound in seconds, the total count, and the sum in seconds.
    fn shown(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut total = 0;
        let mut bounds = Vec::new();
        for (i, bucket) in self.buckets.iter().enumerate() {
            total += bucket.load(Ordering::Relaxed);
            let power = (i / 4) as u32 + 1;
            if i % 4 == 3 && SHOWN_POWERS.contains(&power) {
                bounds.push(((1u64 << power) as f64 / 1e9, total));
            }
        }
        (bounds, total, self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

/// Metrics of a broker. Lanes and topics have separate ones.
#[derive(Default)]
pub struct Metrics {
    pub published_batches: Counter,
    pub published_records: Counter,
    pub published_bytes: Counter,
    pub publish_errors: Counter,
    /// Batches that a producer sent again although they were accepted before.
    pub publish_duplicates: Counter,
    /// Failed publishes without acknowledgement: the client received no error.
    pub publish_lost: Counter,
    /// Publishes that had to wait: for a subscriber whose policy is to block, for the journal, or for a check of the
    /// batch.
    pub publish_waits: Counter,
    pub delivered_batches: Counter,
    pub delivered_records: Counter,
    pub delivered_bytes: Counter,
    /// Records that a subscriber misses because its queue was full or retention removed them.
    pub dropped_records: Counter,
    /// Times that a subscriber's queue overflowed.
    pub slow_subscribers: Counter,
    pub subscribers: AtomicUsize,
    /// Maximum number of batches that were queued for one subscriber.
    pub queue_high_water: AtomicU64,
    /// Time from the call of publish to the place in the log, or to the commit if the publish waits for it.
    pub publish_seconds: Histogram,
    /// Time from the log to the subscriber's connection.
    pub delivery_wait_seconds: Histogram,
}

/// Writer of metrics, each with its help text.
pub struct Exposition<'a>(pub DescriptorEncoder<'a>);

impl Exposition<'_> {
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value as i64).encode(encoder)
    }

    pub fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    pub fn counter_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes a counter with a label: one row per value of the label.
    pub fn counters(&mut self, name: &str, help: &str, label: &str, rows: &[(String, u64)]) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, n) in rows {
            let labels = [(label, value.as_str())];
            ConstCounter::new(*n).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge with a label: one row per value of the label.
    pub fn gauges(&mut self, name: &str, help: &str, label: &str, rows: &[(String, u64)]) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (value, n) in rows {
            let labels = [(label, value.as_str())];
            ConstGauge::new(*n as i64).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge of 1 for each row, which is identified by its labels.
    pub fn facts<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: &[[String; N]],
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for row in rows {
            let labels: [(&str, &str); N] = std::array::from_fn(|at| (labels[at], row[at].as_str()));
            ConstGauge::new(1).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let (bounds, count, sum) = histogram.shown();
        // The encoder expects the count of each single bucket.
        let mut before = 0;
        let mut buckets: Vec<(f64, u64)> =
            bounds.into_iter().map(|(bound, total)| (bound, total - std::mem::replace(&mut before, total))).collect();
        buckets.push((f64::INFINITY, count - before));
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<prometheus_client::encoding::NoLabelSet>(sum, count, &buckets, None)
    }
}

/// Collector that calls a function.
pub struct Collect<F>(pub F);

impl<F> fmt::Debug for Collect<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collect")
    }
}

impl<F> Collector for Collect<F>
where
    F: Fn(&mut Exposition<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Exposition(encoder))
    }
}

/// Returns the metrics of one collector in the format of Prometheus (OpenMetrics 1.0).
pub fn to_text(collector: Box<dyn Collector>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(collector);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Metrics {
    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let load = |n: &AtomicUsize| n.load(Ordering::Relaxed) as u64;
        out.counter("thalweg_published_batches", "Record batches accepted", self.published_batches.get())?;
        out.counter("thalweg_published_records", "Records accepted", self.published_records.get())?;
        out.counter("thalweg_published_bytes", "Bytes of accepted batches", self.published_bytes.get())?;
        out.counter(
            "thalweg_publish_duplicates",
            "Batches sent again that were already in the log",
            self.publish_duplicates.get(),
        )?;
        out.counter("thalweg_publish_errors", "Refused publishes", self.publish_errors.get())?;
        out.counter("thalweg_publish_lost", "Failed publishes with acks = none", self.publish_lost.get())?;
        out.counter(
            "thalweg_publish_waits",
            "Publishes that had to wait: for a subscriber, a check or the disk",
            self.publish_waits.get(),
        )?;
        out.counter(
            "thalweg_delivered_batches",
            "Record batches delivered to connections",
            self.delivered_batches.get(),
        )?;
        out.counter("thalweg_delivered_records", "Records delivered to connections", self.delivered_records.get())?;
        out.counter(
            "thalweg_delivered_bytes",
            "Bytes of batches delivered to connections",
            self.delivered_bytes.get(),
        )?;
        out.counter("thalweg_dropped_records", "Records that a subscription misses", self.dropped_records.get())?;
        out.counter(
            "thalweg_slow_subscribers",
            "Appends that found the queue of a subscription full",
            self.slow_subscribers.get(),
        )?;
        out.gauge("thalweg_subscribers", "Open subscriptions", load(&self.subscribers))?;
        out.gauge(
            "thalweg_subscriber_queue_high_water",
            "Maximum number of batches queued for one subscription so far",
            self.queue_high_water.load(Ordering::Relaxed),
        )?;
        out.histogram("thalweg_publish_seconds", "Duration of successful publishes", &self.publish_seconds)?;
        out.histogram(
            "thalweg_delivery_wait_seconds",
            "How long a subscription's queue was not empty before batches were taken from it",
            &self.delivery_wait_seconds,
        )
    }
}

/// Writes the metrics of the data directory.
pub(crate) fn expose_store(out: &mut Exposition<'_>, stats: &storage::StoreStats) -> fmt::Result {
    let journal = &stats.journal;
    out.counter("thalweg_journal_entries", "Entries written to the journal", journal.entries)?;
    out.counter("thalweg_journal_bytes", "Bytes written to the journal", journal.bytes)?;
    out.counter("thalweg_journal_syncs", "Syncs of the journal", journal.syncs)?;
    out.counter("thalweg_journal_sync_nanoseconds", "Time spent in syncs of the journal", journal.sync_nanos)?;
    out.gauge("thalweg_journal_queued_bytes", "Bytes queued for the journal", journal.queued_bytes)?;
    out.gauge("thalweg_journal_files", "Journal files with entries that no checkpoint covers", journal.files_in_use)?;
    out.gauge("thalweg_journal_files_spare", "Journal files that are ready to be written", journal.files_spare)?;
    out.gauge(
        "thalweg_journal_is_full",
        "1 if publishes wait for a checkpoint or for disk space",
        u64::from(journal.is_full),
    )?;
    out.gauge("thalweg_tail_bytes", "Bytes of the newest batches in memory, of topics on disk", stats.tail_bytes)?;
    out.gauge("thalweg_unflushed_bytes", "Committed bytes that are not in a segment yet", stats.unflushed_bytes)?;
    let through = journal.through_bytes;
    out.counter("thalweg_segment_bytes_written", "Bytes written to segments", stats.flushed_bytes + through)?;
    out.counter("thalweg_through_bytes_written", "Bytes written to segments instead of the journal", through)?;
    out.counter("thalweg_checkpoints", "Checkpoints taken", stats.checkpoints)?;
    out.counter("thalweg_checkpoint_errors", "Failed checkpoints", stats.checkpoint_errors)?;
    out.counter("thalweg_checkpoint_nanoseconds", "Time spent on checkpoints", stats.checkpoint_nanos)?;
    let is_disk_full = u64::from(stats.is_disk_full);
    let is_broken = u64::from(stats.is_broken);
    out.gauge("thalweg_disk_is_full", "1 if records are refused because the disk is full", is_disk_full)?;
    out.counter("thalweg_disk_full", "Times that the disk became full", stats.disk_full)?;
    out.gauge("thalweg_journal_is_broken", "1 if all writes are refused until a restart", is_broken)?;
    let compaction = &stats.compaction;
    out.counter("thalweg_compactions", "Compactions of partitions", compaction.turns)?;
    out.counter("thalweg_compaction_errors", "Failed compactions", stats.compaction_errors)?;
    out.counter("thalweg_compaction_bytes_read", "Bytes read by compaction", compaction.read_bytes)?;
    out.counter("thalweg_compaction_bytes_written", "Bytes written back by compaction", compaction.written_bytes)?;
    out.counter("thalweg_compaction_records_removed", "Records removed by compaction", compaction.records_removed)?;
    stats.sqlite.map_or(Ok(()), |sqlite| expose_sqlite(out, &sqlite))
}

/// Writes the metrics of the database for topics in SQLite, if it exists.
fn expose_sqlite(out: &mut Exposition<'_>, stats: &storage::SqliteStats) -> fmt::Result {
    out.counter(
        "thalweg_sqlite_operations",
        "Batches and changes of topics written to the database",
        stats.operations,
    )?;
    out.counter("thalweg_sqlite_commits", "Transactions committed to the database", stats.commits)?;
    out.counter("thalweg_sqlite_commit_nanoseconds", "Time spent in transactions of the database", stats.commit_nanos)?;
    out.gauge("thalweg_sqlite_queued_bytes", "Bytes queued for the database", stats.queued_bytes)?;
    out.gauge("thalweg_sqlite_recent_bytes", "Bytes of the newest batches in memory", stats.recent_bytes)?;
    out.counter(
        "thalweg_sqlite_forgotten_records",
        "Records removed because every reader has finished with them",
        stats.forgotten_records,
    )?;
    let is_held_up = u64::from(stats.is_held_up);
    out.gauge(
        "thalweg_sqlite_is_held_up",
        "1 if publishes wait because another process locks the database or the disk is full",
        is_held_up,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_where_durations_belong() {
        let histogram = Histogram::default();
        for us in [1u64, 10, 10, 100_000] {
            histogram.record(Duration::from_micros(us));
        }
        histogram.record(Duration::from_secs(1000));
        let (bounds, count, sum) = histogram.shown();
        assert_eq!(count, 5);
        assert!(sum > 1000.0);
        let below = |seconds: f64| bounds.iter().rfind(|(bound, _)| *bound <= seconds).map(|(_, n)| *n);
        assert_eq!(below(20e-6), Some(3));
        assert_eq!(below(0.2), Some(4));
    }

    #[test]
    fn a_counter_sums_its_threads() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..3 * CELLS {
                scope.spawn(|| (0..3).for_each(|_| counter.add(1)));
            }
        });
        assert_eq!(counter.get(), 9 * CELLS as u64);
    }
}
