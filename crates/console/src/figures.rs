//! Figures of a broker at several moments, and the rates between them.

use std::collections::VecDeque;

use crate::samples::{Buckets, Sample, Samples};

/// Interval between two figures of a history, in ms.
pub const SAMPLE_MS: u64 = 3000;
/// Maximum number of figures in a history: those of [`crate::plot::AGO_S`].
pub const HISTORY_MAX: usize = 101;

/// Figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub published_records: f64,
    pub published_bytes: f64,
    pub published_batches: f64,
    pub delivered_records: f64,
    pub delivered_bytes: f64,
    pub dropped_records: f64,
    pub publish_errors: f64,
    pub publish_lost: f64,
    pub accept_shed: f64,
    pub checkpoint_errors: f64,
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<f64>,
    pub started_s: Option<f64>,
    pub log_bytes: f64,
    pub log_bytes_max: f64,
    pub cache_bytes: f64,
    pub cache_bytes_max: f64,
    pub topics: f64,
    pub queues: f64,
    pub groups: f64,
    pub caches: f64,
    pub subscribers: f64,
    /// Share of the fullest lane that is used.
    pub lane_share: f64,
    /// Share of the file descriptors that are open.
    pub descriptor_share: f64,
    pub certificate_expiry_s: Option<f64>,
    /// Journal of a data directory; `None` in memory.
    pub journal: Option<Journal>,
    pub is_disk_full: bool,
    pub doors: Vec<Door>,
    pub(crate) publish: Buckets,
    pub(crate) delivery_wait: Buckets,
}

/// State of the journal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Journal {
    pub bytes: f64,
    pub syncs: f64,
    pub sync_seconds: f64,
    pub queued_bytes: f64,
    pub files: f64,
    pub is_full: bool,
    pub is_broken: bool,
}

/// Door with its address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Door {
    pub name: String,
    pub address: String,
    pub connections: f64,
    /// Requests since startup; `None` if the door does not count them.
    pub requests: Option<f64>,
}

/// Rates per second between two moments, and latencies in seconds in between.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub published_records: f64,
    pub published_bytes: f64,
    pub delivered_records: f64,
    pub delivered_bytes: f64,
    pub dropped_records: f64,
    pub publish_errors: f64,
    pub publish_p50: Option<f64>,
    pub publish_p99: Option<f64>,
    pub delivery_p50: Option<f64>,
    pub delivery_p99: Option<f64>,
    /// Share of one core.
    pub cpu_share: Option<f64>,
    pub journal_bytes: f64,
    /// Mean duration of a sync of the journal.
    pub sync_s: Option<f64>,
}

impl Figures {
    pub fn read(samples: &Samples, at_ms: u64) -> Self {
        let value = |name: &str| samples.value(name).unwrap_or_default();
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let fullest = samples.named("thalweg_lane_queued").map(|sample| sample.value).fold(0.0, f64::max);
        Self {
            at_ms,
            published_records: value("thalweg_published_records_total"),
            published_bytes: value("thalweg_published_bytes_total"),
            published_batches: value("thalweg_published_batches_total"),
            delivered_records: value("thalweg_delivered_records_total"),
            delivered_bytes: value("thalweg_delivered_bytes_total"),
            dropped_records: value("thalweg_dropped_records_total"),
            publish_errors: value("thalweg_publish_errors_total"),
            publish_lost: value("thalweg_publish_lost_total"),
            accept_shed: value("thalweg_accept_shed_total"),
            checkpoint_errors: value("thalweg_checkpoint_errors_total"),
            cpu_seconds: samples.value("process_cpu_seconds_total"),
            resident_bytes: samples.value("process_resident_memory_bytes"),
            started_s: samples.value("process_start_time_seconds"),
            log_bytes: value("thalweg_log_bytes"),
            log_bytes_max: value("thalweg_log_bytes_max"),
            cache_bytes: value("thalweg_cache_memory_bytes"),
            cache_bytes_max: value("thalweg_cache_memory_bytes_max"),
            topics: value("thalweg_topics"),
            queues: value("thalweg_queues"),
            groups: value("thalweg_groups"),
            caches: value("thalweg_caches"),
            subscribers: value("thalweg_subscribers"),
            lane_share: ratio(fullest, value("thalweg_lane_queue_depth")),
            descriptor_share: ratio(value("process_open_fds"), value("process_max_fds")),
            certificate_expiry_s: samples.value("thalweg_tls_certificate_expiry_timestamp_seconds"),
            journal: Journal::read(samples),
            is_disk_full: value("thalweg_disk_is_full") > 0.0,
            doors: doors(samples),
            publish: Buckets::read(samples, "thalweg_publish_seconds"),
            delivery_wait: Buckets::read(samples, "thalweg_delivery_wait_seconds"),
        }
    }

    pub fn connections(&self) -> f64 {
        self.doors.iter().map(|door| door.connections).sum()
    }
}

impl Journal {
    fn read(samples: &Samples) -> Option<Self> {
        let value = |name: &str| samples.value(name).unwrap_or_default();
        Some(Self {
            bytes: samples.value("thalweg_journal_bytes_total")?,
            syncs: value("thalweg_journal_syncs_total"),
            sync_seconds: value("thalweg_journal_sync_nanoseconds_total") / 1e9,
            queued_bytes: value("thalweg_journal_queued_bytes"),
            files: value("thalweg_journal_files"),
            is_full: value("thalweg_journal_is_full") > 0.0,
            is_broken: value("thalweg_journal_is_broken") > 0.0,
        })
    }
}

/// Returns the doors of a broker with their connections and requests so far.
pub fn doors(samples: &Samples) -> Vec<Door> {
    let of = |sample: &Sample| {
        let name = sample.label("door").to_owned();
        // HTTP doors count requests by the status of the answer, and Redis counts commands.
        let total = |metric: String| samples.named(&metric).map(|sample| sample.value).reduce(|sum, value| sum + value);
        let requests =
            total(format!("thalweg_{name}_requests_total")).or_else(|| total(format!("thalweg_{name}_commands_total")));
        let connections = samples.value(&format!("thalweg_{name}_connections")).unwrap_or_default();
        Door { address: sample.label("address").to_owned(), connections, requests, name }
    };
    samples.named("thalweg_door").map(of).collect()
}

impl Rates {
    /// Returns the rates between two moments. A counter that decreased, after a restart, has the rate 0.
    pub fn between(before: &Figures, now: &Figures) -> Self {
        let seconds = (now.at_ms.saturating_sub(before.at_ms).max(1)) as f64 / 1000.0;
        let rate = |of: fn(&Figures) -> f64| (of(now) - of(before)).max(0.0) / seconds;
        let quantile = |of: fn(&Figures) -> &Buckets, share| of(now).since(of(before))?.quantile(share);
        let journals = before.journal.zip(now.journal);
        Self {
            published_records: rate(|figures| figures.published_records),
            published_bytes: rate(|figures| figures.published_bytes),
            delivered_records: rate(|figures| figures.delivered_records),
            delivered_bytes: rate(|figures| figures.delivered_bytes),
            dropped_records: rate(|figures| figures.dropped_records),
            publish_errors: rate(|figures| figures.publish_errors),
            publish_p50: quantile(|figures| &figures.publish, 0.5),
            publish_p99: quantile(|figures| &figures.publish, 0.99),
            delivery_p50: quantile(|figures| &figures.delivery_wait, 0.5),
            delivery_p99: quantile(|figures| &figures.delivery_wait, 0.99),
            cpu_share: before.cpu_seconds.zip(now.cpu_seconds).map(|(was, is)| (is - was).max(0.0) / seconds),
            journal_bytes: journals.map_or(0.0, |(was, is)| (is.bytes - was.bytes).max(0.0) / seconds),
            sync_s: journals.and_then(|(was, is)| {
                (is.syncs > was.syncs).then(|| (is.sync_seconds - was.sync_seconds) / (is.syncs - was.syncs))
            }),
        }
    }
}

/// Newest figures, the oldest first; at most [`HISTORY_MAX`].
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<Figures>);

impl History {
    /// Adds figures, and drops the oldest beyond the maximum.
    pub fn push(&mut self, figures: Figures) {
        if self.0.len() == HISTORY_MAX {
            self.0.pop_front();
        }
        self.0.push_back(figures);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn first(&self) -> Option<&Figures> {
        self.0.front()
    }

    pub fn last(&self) -> Option<&Figures> {
        self.0.back()
    }

    /// Returns the rates up to the newest figures.
    pub fn rates(&self) -> Option<Rates> {
        self.series().last().map(|(_, rates)| rates)
    }

    /// Returns the figures after the first one, each with the rates since those before it.
    pub fn series(&self) -> impl Iterator<Item = (&Figures, Rates)> {
        self.0.iter().zip(self.0.iter().skip(1)).map(|(before, now)| (now, Rates::between(before, now)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the figures of a broker after `seconds` seconds of a steady load.
    pub(crate) fn figures(seconds: u64) -> Figures {
        let text = format!(
            "thalweg_published_records_total {}\nthalweg_delivered_bytes_total {}\nprocess_cpu_seconds_total {}\n\
             thalweg_journal_bytes_total {}\nthalweg_journal_syncs_total {}\n\
             thalweg_journal_sync_nanoseconds_total {}\n\
             thalweg_door{{door=\"http\",address=\"127.0.0.1:7401\"}} 1\nthalweg_http_connections 3\n\
             thalweg_http_requests_total{{status=\"2xx\"}} 7\nthalweg_http_requests_total{{status=\"4xx\"}} 5\n\
             thalweg_publish_seconds_bucket{{le=\"0.001\"}} {}\nthalweg_publish_seconds_bucket{{le=\"+Inf\"}} {}\n",
            1000 * seconds,
            4000 * seconds,
            seconds as f64 / 2.0,
            10 * seconds,
            2 * seconds,
            2_000_000 * seconds,
            9 * seconds,
            9 * seconds,
        );
        Figures::read(&Samples::parse(&text), seconds * 1000)
    }

    #[test]
    fn rates_are_of_the_time_between_two_figures() {
        let rates = Rates::between(&figures(10), &figures(13));
        assert_eq!((rates.published_records, rates.delivered_bytes), (1000.0, 4000.0));
        assert_eq!((rates.cpu_share, rates.publish_p50), (Some(0.5), Some(0.0005)));
        assert_eq!((rates.journal_bytes, rates.sync_s.map(|s| (s * 1e6).round())), (10.0, Some(1000.0)));
        let restarted = Rates::between(&figures(13), &figures(10));
        assert_eq!((restarted.published_records, restarted.publish_p50, restarted.sync_s), (0.0, None, None));
    }

    #[test]
    fn a_history_is_bounded_and_keeps_the_newest() {
        let mut history = History::default();
        assert_eq!(history.rates(), None);
        (0..HISTORY_MAX as u64 + 5).for_each(|second| history.push(figures(second)));
        assert_eq!(history.series().count(), HISTORY_MAX - 1);
        assert_eq!(history.first().map(|figures| figures.at_ms), Some(5000));
        assert_eq!(history.rates().map(|rates| rates.published_records), Some(1000.0));
    }

    #[test]
    fn doors_count_requests_of_every_status() {
        let doors = figures(1).doors;
        assert_eq!((doors[0].name.as_str(), doors[0].connections, doors[0].requests), ("http", 3.0, Some(12.0)));
    }
}
