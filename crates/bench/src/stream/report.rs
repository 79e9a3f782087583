//! Report of a run of a stream, for programs.

use serde::{Deserialize, Serialize};

use super::timeline::{Point, Timeline};
use super::watch::Usage;
use super::{Faults, Length, Outcome, Placement, Plan};
use crate::latency::Latencies;
use crate::load::transport;
use crate::machine::{Host, LoadAverage, Program};
use crate::report::Percentiles;

/// Report of a run. `bench/peers` prints the same keys for other systems, as far as their tools provide them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamReport {
    pub system: String,
    pub mode: String,
    pub transport: String,
    pub records: u64,
    /// Bytes of each record; for the workload of the report, whose lengths differ by a few bytes, the average.
    pub record_bytes: f64,
    pub bytes: u64,
    pub partitions: u32,
    /// Storage of the topic, `memory` or `disk`.
    pub storage: String,
    /// Number of servers that store each record.
    pub replication: u32,
    /// Records in a batch; 0 if the client decides.
    pub batch: usize,
    pub in_flight: usize,
    pub acks: String,
    /// Time at which the consumer read: `together` with the producer, `after` it, or `none`.
    pub consumer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    pub produced: u64,
    pub consumed: u64,
    pub lost: u64,
    pub damaged: u64,
    pub repeated: u64,
    pub disordered: u64,
    /// Time from the first record to the last acknowledgement; `consumed_seconds` is the time from the beginning of the
    /// consumer to its last record.
    pub produced_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_seconds: Option<f64>,
    pub produced_per_s: f64,
    pub produced_mb_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_mb_per_s: Option<f64>,
    /// Highest rate. With one record in flight, as in the report, that of all records: bytes divided by latency. With
    /// more in flight, that of all steps of `charts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced_mb_per_s_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_mb_per_s_max: Option<f64>,
    /// Latency from the sending of a batch to its acknowledgement; with a rate from the due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer_us: Option<Percentiles>,
    /// Latency from the beginning of an attempt to read to its success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_us: Option<Percentiles>,
    /// Latency from the sending of a record to its receipt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_us: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_resident_bytes_start: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_resident_bytes_max: Option<u64>,
    /// Highest CPU usage in percent of one core, over a tenth of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_percent_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
    pub client_cpu_seconds: f64,
    #[serde(flatten)]
    pub host: Host,
    #[serde(flatten)]
    pub program: Program,
    pub load_average_before: LoadAverage,
    pub load_average_after: LoadAverage,
    /// Figures over the time of the run.
    pub charts: Charts,
}

/// Course of a run, and the distributions of its latencies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Charts {
    pub producer: Vec<Point>,
    pub consumer: Vec<Point>,
    pub e2e: Vec<Point>,
    /// Quantiles and microseconds.
    pub producer_curve: Vec<(f64, f64)>,
    pub consumer_curve: Vec<(f64, f64)>,
    pub e2e_curve: Vec<(f64, f64)>,
    pub server: Vec<Usage>,
}

impl StreamReport {
    pub(super) fn new(
        plan: &Plan,
        placement: Placement,
        outcome: &Outcome,
        program: Program,
        load_average_before: LoadAverage,
    ) -> Self {
        let produced = &outcome.produced;
        let consumed = outcome.consumed.as_ref();
        let bytes = plan.length.total(plan.records);
        let faults = consumed.map_or_else(Faults::default, |consumed| consumed.faults);
        let produced_seconds = produced.elapsed.as_secs_f64();
        let consumed_seconds = consumed.map(|consumed| consumed.elapsed.as_secs_f64());
        let a_second = |n: u64, seconds: f64| n as f64 / seconds.max(1e-9);
        let megabytes = |bytes_per_s: f64| bytes_per_s / 1e6;
        let read = consumed.zip(consumed_seconds);
        // The time that records stayed in the log before the consumer started is not a transfer latency.
        let e2e = consumed.filter(|_| plan.consumer == super::Consumer::Together);
        let charts = Charts {
            producer: produced.timeline.points(),
            consumer: consumed.map_or_else(Vec::new, |consumed| consumed.timeline.points()),
            e2e: e2e.map_or_else(Vec::new, |consumed| Timeline::points(&consumed.e2e_timeline)),
            producer_curve: produced.latencies.curve(),
            consumer_curve: consumed.map_or_else(Vec::new, |consumed| consumed.latencies.curve()),
            e2e_curve: e2e.map_or_else(Vec::new, |consumed| Latencies::curve(&consumed.e2e)),
            server: outcome.usage.clone(),
        };
        let max = |of_a_batch: f64, steps: &[Point]| {
            let highest = if plan.is_one_in_flight() {
                Some(megabytes(of_a_batch))
            } else {
                steps.iter().map(|step| step.mb_per_s).reduce(f64::max)
            };
            highest.filter(|mb_per_s| *mb_per_s > 0.0)
        };
        let resident = |usage: &Usage| usage.resident_bytes;
        Self {
            system: "thalweg".to_owned(),
            mode: plan.mode.clone(),
            transport: transport(&plan.addresses),
            records: plan.records,
            record_bytes: match plan.length {
                Length::Fixed(bytes) => bytes as f64,
                Length::AsReported => bytes as f64 / plan.records.max(1) as f64,
            },
            bytes,
            partitions: plan.topic_settings.partitions,
            storage: placement.storage.name().to_owned(),
            replication: placement.replication,
            batch: plan.batch,
            in_flight: plan.in_flight,
            acks: plan.acks.name().to_owned(),
            consumer: plan.consumer.name().to_owned(),
            rate_per_s: plan.rate,
            produced: produced.records,
            consumed: consumed.map_or(0, |consumed| consumed.records),
            lost: faults.lost,
            damaged: faults.damaged,
            repeated: faults.repeated,
            disordered: faults.disordered,
            produced_seconds,
            consumed_seconds,
            produced_per_s: a_second(produced.records, produced_seconds),
            produced_mb_per_s: megabytes(a_second(produced.bytes, produced_seconds)),
            consumed_per_s: read.map(|(consumed, seconds)| a_second(consumed.records, seconds)),
            consumed_mb_per_s: read.map(|(consumed, seconds)| megabytes(a_second(consumed.bytes, seconds))),
            produced_mb_per_s_max: max(produced.bytes_per_s_max, &charts.producer),
            consumed_mb_per_s_max: consumed.and_then(|found| max(found.bytes_per_s_max, &charts.consumer)),
            producer_us: produced.latencies.percentiles(),
            consumer_us: consumed.and_then(|consumed| consumed.latencies.percentiles()),
            e2e_us: e2e.and_then(|consumed| consumed.e2e.percentiles()),
            server_resident_bytes_start: outcome.usage.first().map(resident),
            server_resident_bytes_max: outcome.usage.iter().map(resident).max(),
            server_cpu_percent_max: outcome.usage.iter().filter_map(|usage| usage.cpu_percent).reduce(f64::max),
            server_cpu_seconds: outcome.server_cpu.map(|cpu| cpu.as_secs_f64()),
            client_cpu_seconds: outcome.client_cpu_seconds,
            host: Host::here(),
            program,
            load_average_before,
            load_average_after: LoadAverage::now(),
            charts,
        }
    }

    /// Returns the failures of delivery.
    pub fn faults(&self) -> Faults {
        let Self { lost, damaged, repeated, disordered, .. } = *self;
        Faults { lost, damaged, repeated, disordered }
    }

    pub(super) fn is_one_in_flight(&self) -> bool {
        self.batch == 1 && self.in_flight == 1
    }

    /// Returns the growth of the server's memory over the run, in megabytes.
    pub fn memory_growth_mb(&self) -> Option<f64> {
        let start = self.server_resident_bytes_start?;
        let max = self.server_resident_bytes_max?;
        Some(max.saturating_sub(start) as f64 / 1e6)
    }
}
