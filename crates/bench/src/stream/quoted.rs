//! Figures that others have published, beside which those of a run are printed. Nothing here was measured by this
//! project, and the machines differ: they say where the bar was put, not who is faster.

/// Where the figures come from, in the order in which tables refer to them.
pub const SOURCES: [&str; 2] = [
    "T. J. Telan, First look at Fluvio's Performance in Development, 2021-07-18: Fluvio 0.8.5, 3 SPUs, replication 3, \
     on one AWS i3.4xlarge (16 vCPU, 122 GiB, NVMe). https://www.fluvio.io/blog/2021/07/fluvio-perf-dev-first-look",
    "StreamNative, Benchmarking Pulsar and Kafka, 2020-11-09, figures 7 to 9, read off charts by [1]: maximum \
     throughput, 1 partition, replication on three machines. \
     https://streamnative.io/en/blog/tech/2020-11-09-benchmark-pulsar-kafka-performance-report",
];

/// A latency in milliseconds. The average is not known of all.
pub struct QuotedLatency {
    pub name: &'static str,
    pub average: Option<f64>,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
}

/// A maximum rate in megabytes a second.
pub struct QuotedRate {
    pub name: &'static str,
    pub bytes: Option<u64>,
    pub mb_per_s_max: f64,
}

/// How tables name the system of the report.
pub const FLUVIO: &str = "Fluvio 0.8.5 [1]";

/// Records of its workload.
pub const REPORTED_RECORDS: u64 = 10_000;

pub const PRODUCER_RATE: [QuotedRate; 3] = [
    QuotedRate { name: FLUVIO, bytes: Some(10_358_890), mb_per_s_max: 1.50 },
    QuotedRate { name: "Kafka, ack-1 [2]", bytes: None, mb_per_s_max: 230.0 },
    QuotedRate { name: "Pulsar, ack-1 [2]", bytes: None, mb_per_s_max: 300.0 },
];

pub const CONSUMER_RATE: [QuotedRate; 1] = [QuotedRate { name: FLUVIO, bytes: Some(10_358_890), mb_per_s_max: 4.75 }];

pub const PRODUCER_LATENCY: [QuotedLatency; 3] = [
    QuotedLatency { name: FLUVIO, average: Some(1.20), p50: 1.26, p90: 1.57, p99: 1.89, p999: 7.14 },
    QuotedLatency { name: "Kafka, ack-1 [2]", average: None, p50: 136.0, p90: 141.0, p99: 155.0, p999: 191.0 },
    QuotedLatency { name: "Pulsar, ack-1 [2]", average: None, p50: 8.0, p90: 10.0, p99: 11.0, p999: 22.0 },
];

pub const CONSUMER_LATENCY: [QuotedLatency; 1] =
    [QuotedLatency { name: FLUVIO, average: Some(11.37), p50: 11.47, p90: 11.80, p99: 12.12, p999: 21.50 }];

pub const E2E_LATENCY: [QuotedLatency; 3] = [
    QuotedLatency { name: FLUVIO, average: Some(11.99), p50: 12.12, p90: 12.39, p99: 12.91, p999: 18.87 },
    QuotedLatency { name: "Kafka, ack-1 [2]", average: None, p50: 171.0, p90: 177.0, p99: 203.0, p999: 227.0 },
    QuotedLatency { name: "Pulsar, ack-1 [2]", average: None, p50: 40.0, p90: 41.0, p99: 43.0, p999: 57.0 },
];

/// Of Fluvio, by the first source: the growth of memory, megabytes, and the use of CPU, percent of one core.
pub const MEMORY_MB_MAX: f64 = 21.0;
pub const CPU_PERCENT_MAX: f64 = 315.0;
