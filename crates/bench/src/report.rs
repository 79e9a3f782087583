//! Report of a run, for people and for programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::html::{Axis, Line, Plot, Section, Stroke};
use crate::machine::Host;
use crate::table::{Table, fixed};

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub system: String,
    pub command: String,
    /// Commit from which the program was built; empty for programs of other systems.
    #[serde(default)]
    pub commit: String,
    pub host: Host,
    pub mode: String,
    pub transport: String,
    pub payload_bytes: usize,
    pub batch: usize,
    pub publishers: usize,
    pub fanout: usize,
    pub published: u64,
    pub delivered: u64,
    /// Records that were published and did not arrive, or arrived out of order.
    pub lost: u64,
    pub seconds: f64,
    pub published_per_s: f64,
    pub delivered_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Latency from publish (open loop: from the due time) to the subscriber, one sample per batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_us: Option<Percentiles>,
    /// Latency from publish to its acknowledgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_us: Option<Percentiles>,
    pub client_cpu_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
    /// CPU time of both sides per delivery; per publish if there are no subscribers.
    pub cpu_us_per_message: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_resident_bytes: Option<u64>,
}

pub(crate) fn rate(per_s: f64) -> String {
    if per_s >= 1e6 { format!("{:.2} M/s", per_s / 1e6) } else { format!("{:.1} k/s", per_s / 1e3) }
}

impl Report {
    /// Returns a one-line summary of the run.
    pub fn shape(&self) -> String {
        format!(
            "{} {} over {}: {} B, {} in a batch, {} publishers, fanout {}",
            self.system,
            self.mode,
            self.transport,
            self.payload_bytes,
            if self.batch == 0 { "as many as fit".to_owned() } else { self.batch.to_string() },
            self.publishers,
            self.fanout
        )
    }

    /// Returns a note on the meaning of latencies if records were sent as fast as they were accepted.
    fn saturation(&self) -> Option<&'static str> {
        let is_full = self.mode == "throughput" && self.rate_per_s.is_none();
        is_full.then_some("at saturation: latencies are those of full queues; --rate N measures them at a rate")
    }

    /// Returns the section of the run for a page.
    pub fn section(&self) -> Section {
        let latencies = [("delivery", self.delivery_us), ("acknowledgement", self.ack_us)];
        let known = || latencies.into_iter().filter_map(|(name, found)| Some((name, found?)));
        let ms = |us: f64| fixed(Some(us / 1000.0), 3);
        let row = |(name, p): (&'static str, Percentiles)| {
            (name, [p.mean, p.p50, p.p90, p.p99, p.p999, p.max].map(ms).to_vec())
        };
        let columns = vec!["average", "p50", "p90", "p99", "p99.9", "max"];
        let line = |((name, p), stroke): ((&str, Percentiles), Stroke)| {
            let points = vec![(0.5, p.p50), (0.9, p.p90), (0.99, p.p99), (0.999, p.p999)];
            Line { name: name.to_owned(), stroke, points }
        };
        let lines = known().zip([Stroke::First, Stroke::Second]).map(line).collect();
        let title = "Latency by percentile".to_owned();
        let mut tiles = vec![(rate(self.published_per_s), "published".to_owned())];
        if self.delivered > 0 {
            tiles.push((rate(self.delivered_per_s), "delivered".to_owned()));
        }
        tiles.push((format!("{:.2} µs", self.cpu_us_per_message), "CPU per message, both sides".to_owned()));
        let memory = self.server_resident_bytes.map(|bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        tiles.extend(memory.map(|memory| (memory, "server memory".to_owned())));
        let notes = self.saturation().map(str::to_owned).into_iter().collect();
        let verdict = match self.lost {
            0 => format!("{} published, {} delivered, none lost", self.published, self.delivered),
            lost => format!("THIS RUN LOST {lost} RECORDS: its rates are not valid"),
        };
        Section {
            title: self.mode.clone(),
            shape: self.shape(),
            is_whole: self.lost == 0,
            verdict,
            tiles,
            plots: vec![vec![Plot { title, x: Axis::Quantile, y: Axis::Latency, lines, is_filled: false }]],
            tables: vec![Table { title: "Latency, ms", columns, rows: known().map(row).collect() }],
            notes,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.shape())?;
        let Host { cores, cpu, kernel } = &self.host;
        let commit = if self.commit.is_empty() { String::new() } else { format!(", commit {}", self.commit) };
        writeln!(f, "  on {cores} x {cpu}, Linux {kernel}{commit}")?;
        let megabytes = self.delivered_per_s * self.payload_bytes as f64 / 1e6;
        writeln!(
            f,
            "  published {:>9} ({}), delivered {:>9} ({}, {megabytes:.0} MB/s), lost {}, in {:.2} s",
            self.published,
            rate(self.published_per_s),
            self.delivered,
            rate(self.delivered_per_s),
            self.lost,
            self.seconds
        )?;
        let server = self.server_cpu_seconds.map_or("unknown".to_owned(), |s| format!("{s:.2} s"));
        writeln!(
            f,
            "  CPU client {:.2} s, server {server}: {:.2} us a message",
            self.client_cpu_seconds, self.cpu_us_per_message
        )?;
        if let Some(bytes) = self.server_resident_bytes {
            writeln!(f, "  server memory {:.1} MiB", bytes as f64 / f64::from(1 << 20))?;
        }
        for (name, latencies) in [("delivery", self.delivery_us), ("ack", self.ack_us)] {
            if let Some(p) = latencies {
                writeln!(
                    f,
                    "  {name:<8} ms: p50 {:.3}  p90 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}  (mean {:.3}, {} samples)",
                    p.p50 / 1000.0,
                    p.p90 / 1000.0,
                    p.p99 / 1000.0,
                    p.p999 / 1000.0,
                    p.max / 1000.0,
                    p.mean / 1000.0,
                    p.count
                )?;
            }
        }
        if let Some(words) = self.saturation() {
            writeln!(f, "  {words}")?;
        }
        if let Some(asked) = self.rate_per_s {
            writeln!(f, "  open loop at {}: latencies are measured from the time a record was due", rate(asked))?;
        }
        if self.lost > 0 {
            writeln!(f, "  THIS RUN LOST RECORDS: its rates are not valid")?;
        }
        Ok(())
    }
}
