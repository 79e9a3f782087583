//! Samples of a broker's metrics, and the difference between two samples.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use console::samples::{Buckets, Samples};
use serde_json::{Map, Value, json};

use super::items::{Items, List, Rows};

/// Metrics at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    at: Instant,
    at_ms: u64,
    counters: Counters,
    connections: f64,
    subscribers: f64,
    topics: f64,
    log_bytes: f64,
    log_bytes_max: f64,
    lane_queue_depth: f64,
    lanes: Vec<LaneLook>,
    publish: Buckets,
    delivery_wait: Buckets,
    resident_bytes: Option<f64>,
    items: Items,
}

/// Counters, which only increase while a broker runs.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    published_records: f64,
    published_bytes: f64,
    delivered_records: f64,
    delivered_bytes: f64,
    dropped_records: f64,
    slow_subscribers: f64,
    publish_errors: f64,
    /// CPU time; `None` if the system does not report it.
    cpu_seconds: Option<f64>,
}

#[derive(Clone, Debug)]
struct LaneLook {
    name: String,
    subscribers: f64,
    queued: f64,
    high_water: f64,
    enqueued: f64,
    dropped: f64,
}

impl Look {
    /// Creates a sample. Returns `None` if there are no metrics.
    pub(super) fn new(samples: &Samples, items: Items, at: Instant) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let value = |name: &str| samples.value(name).unwrap_or_default();
        Some(Self {
            at,
            at_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            counters: Counters {
                published_records: value("thalweg_published_records_total"),
                published_bytes: value("thalweg_published_bytes_total"),
                delivered_records: value("thalweg_delivered_records_total"),
                delivered_bytes: value("thalweg_delivered_bytes_total"),
                dropped_records: value("thalweg_dropped_records_total"),
                slow_subscribers: value("thalweg_slow_subscribers_total"),
                publish_errors: value("thalweg_publish_errors_total"),
                cpu_seconds: samples.value("process_cpu_seconds_total"),
            },
            connections: samples.sum("thalweg_", "_connections"),
            subscribers: value("thalweg_subscribers"),
            topics: value("thalweg_topics"),
            log_bytes: value("thalweg_log_bytes"),
            log_bytes_max: value("thalweg_log_bytes_max"),
            lane_queue_depth: value("thalweg_lane_queue_depth"),
            lanes: lanes(samples),
            publish: Buckets::read(samples, "thalweg_publish_seconds"),
            delivery_wait: Buckets::read(samples, "thalweg_delivery_wait_seconds"),
            resident_bytes: samples.value("process_resident_memory_bytes"),
            items,
        })
    }
}

fn lanes(samples: &Samples) -> Vec<LaneLook> {
    let of = |metric: &str, lane: &str| {
        let found = samples.by_label(metric, "lane").find(|(name, _)| *name == lane).map(|(_, value)| value);
        found.unwrap_or_default()
    };
    let names = samples.by_label("thalweg_lane_queued", "lane");
    names
        .map(|(name, queued)| LaneLook {
            name: name.to_owned(),
            subscribers: of("thalweg_lane_subscribers", name),
            queued,
            high_water: of("thalweg_lane_queued_high_water", name),
            enqueued: of("thalweg_lane_enqueued_total", name),
            dropped: of("thalweg_lane_dropped_total", name),
        })
        .collect()
}

/// Latencies in seconds; `None` without observations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latency {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub name: String,
    pub subscribers: f64,
    pub queued: f64,
    pub high_water: f64,
    pub enqueued_per_s: f64,
    pub dropped_per_s: f64,
}

/// View for the screen: the later of two samples, and the rates per second between them.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub at_ms: u64,
    pub published_per_s: f64,
    pub published_bytes_per_s: f64,
    pub delivered_per_s: f64,
    pub delivered_bytes_per_s: f64,
    pub dropped_per_s: f64,
    pub dropped: f64,
    pub slow_per_s: f64,
    pub slow: f64,
    /// Refused publishes.
    pub errors_per_s: f64,
    pub errors: f64,
    pub connections: f64,
    pub subscribers: f64,
    pub topics: f64,
    pub log_bytes: f64,
    pub log_bytes_max: f64,
    /// Number of batches in the fullest lane, and the capacity of a lane.
    pub queued: f64,
    pub queued_max: f64,
    pub lanes: Vec<Lane>,
    pub publish: Latency,
    pub delivery_wait: Latency,
    /// Share of one core.
    pub cpu_share: Option<f64>,
    pub resident_bytes: Option<f64>,
    /// Lists in their order; the list of lanes is empty.
    pub lists: Vec<Rows>,
    items: Items,
}

impl View {
    /// Returns the view between two samples, or `None` if they are not from the same run of a broker, because a counter
    /// decreased.
    pub(super) fn between(before: &Look, now: &Look) -> Option<Self> {
        let seconds = now.at.saturating_duration_since(before.at).max(Duration::from_millis(1)).as_secs_f64();
        let was = &before.counters;
        let is = &now.counters;
        let rate = |was: f64, is: f64| (is >= was).then_some((is - was) / seconds);
        let latency = |was: &Buckets, is: &Buckets| {
            let new = is.since(was).unwrap_or_default();
            Latency { p50: new.quantile(0.5), p99: new.quantile(0.99) }
        };
        Some(Self {
            at_ms: now.at_ms,
            published_per_s: rate(was.published_records, is.published_records)?,
            published_bytes_per_s: rate(was.published_bytes, is.published_bytes)?,
            delivered_per_s: rate(was.delivered_records, is.delivered_records)?,
            delivered_bytes_per_s: rate(was.delivered_bytes, is.delivered_bytes)?,
            dropped_per_s: rate(was.dropped_records, is.dropped_records)?,
            dropped: is.dropped_records,
            slow_per_s: rate(was.slow_subscribers, is.slow_subscribers)?,
            slow: is.slow_subscribers,
            errors_per_s: rate(was.publish_errors, is.publish_errors)?,
            errors: is.publish_errors,
            connections: now.connections,
            subscribers: now.subscribers,
            topics: now.topics,
            log_bytes: now.log_bytes,
            log_bytes_max: now.log_bytes_max,
            queued: now.lanes.iter().map(|lane| lane.queued).fold(0.0, f64::max),
            queued_max: now.lane_queue_depth,
            lanes: now.lanes.iter().map(|lane| lane_between(&before.lanes, lane, seconds)).collect(),
            publish: latency(&before.publish, &now.publish),
            delivery_wait: latency(&before.delivery_wait, &now.delivery_wait),
            cpu_share: match (was.cpu_seconds, is.cpu_seconds) {
                (Some(was), Some(is)) => Some(rate(was, is)?),
                _ => None,
            },
            resident_bytes: now.resident_bytes,
            lists: List::ALL.map(|list| now.items.rows(list, &before.items, seconds, now.at_ms)).to_vec(),
            items: now.items.clone(),
        })
    }

    /// Returns `true` if a list is of use with this broker.
    pub(super) fn has(&self, list: List) -> bool {
        self.items.has(list)
    }

    /// Returns the single numbers with their names.
    fn fields(&self) -> Vec<(&'static str, Option<f64>)> {
        let us = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e6);
        vec![
            ("at_ms", Some(self.at_ms as f64)),
            ("published_per_s", Some(self.published_per_s)),
            ("published_bytes_per_s", Some(self.published_bytes_per_s)),
            ("delivered_per_s", Some(self.delivered_per_s)),
            ("delivered_bytes_per_s", Some(self.delivered_bytes_per_s)),
            ("dropped_per_s", Some(self.dropped_per_s)),
            ("slow_subscribers_per_s", Some(self.slow_per_s)),
            ("publish_errors_per_s", Some(self.errors_per_s)),
            ("connections", Some(self.connections)),
            ("subscribers", Some(self.subscribers)),
            ("topics", Some(self.topics)),
            ("queued", Some(self.queued)),
            ("queued_max", Some(self.queued_max)),
            ("log_bytes", Some(self.log_bytes)),
            ("log_bytes_max", Some(self.log_bytes_max)),
            ("publish_p50_us", us(self.publish.p50)),
            ("publish_p99_us", us(self.publish.p99)),
            ("delivery_wait_p50_us", us(self.delivery_wait.p50)),
            ("delivery_wait_p99_us", us(self.delivery_wait.p99)),
            ("cpu_percent", self.cpu_share.map(|share| share * 100.0)),
            ("resident_bytes", self.resident_bytes),
        ]
    }

    /// Returns one line of `name=number`, for scripts; `-` stands for a missing number.
    pub(super) fn to_line(&self) -> String {
        let words = self.fields().into_iter().map(|(name, value)| match value {
            Some(value) => format!("{name}={}", to_number(value)),
            None => format!("{name}=-"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn to_json(&self) -> Value {
        let number = |value: Option<f64>| value.map_or(Value::Null, to_number);
        let mut object: Map<String, Value> =
            self.fields().into_iter().map(|(name, value)| (name.to_owned(), number(value))).collect();
        let lane = |lane: &Lane| {
            json!({
                "lane": lane.name,
                "subscribers": to_number(lane.subscribers),
                "queued": to_number(lane.queued),
                "queued_high_water": to_number(lane.high_water),
                "enqueued_per_s": to_number(lane.enqueued_per_s),
                "dropped_per_s": to_number(lane.dropped_per_s),
            })
        };
        object.insert("lanes".to_owned(), self.lanes.iter().map(lane).collect());
        object.insert("items".to_owned(), self.items.to_json());
        Value::Object(object)
    }
}

/// Rounds a number to a tenth, and writes it without a decimal point if it is whole.
fn to_number(value: f64) -> Value {
    let value = (value * 10.0).round() / 10.0;
    if value.fract() == 0.0 && value.abs() < 9e15 { json!(value as i64) } else { json!(value) }
}

fn lane_between(before: &[LaneLook], now: &LaneLook, seconds: f64) -> Lane {
    let was = before.iter().find(|lane| lane.name == now.name);
    let rate = |was: Option<f64>, is: f64| (is - was.unwrap_or_default()).max(0.0) / seconds;
    Lane {
        name: now.name.clone(),
        subscribers: now.subscribers,
        queued: now.queued,
        high_water: now.high_water,
        enqueued_per_s: rate(was.map(|lane| lane.enqueued), now.enqueued),
        dropped_per_s: rate(was.map(|lane| lane.dropped), now.dropped),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::items::tests::items;
    use super::*;

    /// Returns the metrics of a broker after `seconds` seconds of a steady load.
    pub(crate) fn exposition(seconds: u64) -> String {
        let mut text = String::from("# TYPE thalweg_published_records counter\n");
        let counters = [
            ("thalweg_published_records", 1000),
            ("thalweg_published_bytes", 4_000_000),
            ("thalweg_delivered_records", 10_000),
            ("thalweg_delivered_bytes", 40_000_000),
            ("thalweg_dropped_records", 5),
            ("thalweg_slow_subscribers", 1),
        ];
        for (name, rate) in counters {
            text.push_str(&format!("{name}_total {}\n", rate * seconds));
        }
        text.push_str(&format!("process_cpu_seconds_total {}\n", seconds as f64 * 0.5));
        for (name, value) in [
            ("thalweg_native_connections", 12),
            ("thalweg_http_connections", 2),
            ("thalweg_subscribers", 10),
            ("thalweg_topics", 3),
            ("thalweg_log_bytes", 64 << 20),
            ("thalweg_log_bytes_max", 1 << 30),
            ("thalweg_lane_queue_depth", 8192),
            ("process_resident_memory_bytes", 100 << 20),
        ] {
            text.push_str(&format!("{name} {value}\n"));
        }
        for lane in 0..4 {
            text.push_str(&format!("thalweg_lane_subscribers{{lane=\"{lane}\"}} {}\n", lane + 1));
            text.push_str(&format!("thalweg_lane_queued{{lane=\"{lane}\"}} {}\n", lane * 100));
            text.push_str(&format!("thalweg_lane_queued_high_water{{lane=\"{lane}\"}} 4096\n"));
            text.push_str(&format!("thalweg_lane_enqueued_total{{lane=\"{lane}\"}} {}\n", 2500 * seconds));
            text.push_str(&format!("thalweg_lane_dropped_total{{lane=\"{lane}\"}} {}\n", lane * seconds));
        }
        for (le, share) in [("0.000008192", 500), ("0.000016384", 990), ("+Inf", 1000)] {
            text.push_str(&format!("thalweg_publish_seconds_bucket{{le=\"{le}\"}} {}\n", share * seconds));
        }
        text
    }

    pub(crate) fn looks(seconds: &[u64]) -> Vec<Look> {
        looks_of(seconds, items)
    }

    pub(crate) fn looks_of(seconds: &[u64], items: fn(u64) -> Items) -> Vec<Look> {
        let begin = Instant::now();
        let look = |s: &u64| {
            let samples = Samples::parse(&exposition(*s));
            Look::new(&samples, items(*s * 1000), begin + Duration::from_secs(*s)).expect("metrics")
        };
        seconds.iter().map(look).collect()
    }

    #[test]
    fn rates_are_of_the_time_between_the_looks() {
        let looks = looks(&[10, 12]);
        let view = View::between(&looks[0], &looks[1]).expect("one life");
        assert_eq!(view.published_per_s, 1000.0);
        assert_eq!(view.delivered_bytes_per_s, 40e6);
        assert_eq!((view.dropped_per_s, view.dropped), (5.0, 60.0));
        assert_eq!(view.connections, 14.0);
        assert_eq!((view.queued, view.queued_max), (300.0, 8192.0));
        assert_eq!((view.lanes[3].enqueued_per_s, view.lanes[3].dropped_per_s), (2500.0, 3.0));
        assert_eq!(view.publish.p50, Some(0.000_008_192));
        assert_eq!(view.delivery_wait, Latency::default());
        assert_eq!(view.cpu_share, Some(0.5));
    }

    #[test]
    fn a_restarted_broker_has_no_rates_yet() {
        let looks = looks(&[10, 2]);
        assert!(View::between(&looks[0], &looks[1]).is_none());
        assert!(Look::new(&Samples::parse("no metrics"), Items::default(), Instant::now()).is_none());
    }

    #[test]
    fn lines_and_objects_have_the_same_numbers() {
        let looks = looks(&[10, 12]);
        let view = View::between(&looks[0], &looks[1]).expect("one life");
        let line = view.to_line();
        assert!(line.contains(" published_per_s=1000 ") && line.contains(" delivery_wait_p50_us=- "), "{line}");
        assert!(line.contains(" publish_p50_us=8.2 "), "{line}");
        let object = view.to_json();
        assert_eq!(object["published_per_s"], 1000);
        assert_eq!(object["delivery_wait_p50_us"], Value::Null);
        assert_eq!(object["lanes"][1]["queued"], 100);
        assert_eq!(object["items"]["topics"][1]["records"], 12_000);
        assert_eq!(object["items"]["doors"][0]["connections"], 3);
    }
}
