//! Tables of a run: the six tables of the report from which the first workload comes.

use std::fmt;

use super::StreamReport;
use crate::report::{Percentiles, rate};
use crate::table::{NOT_KNOWN, Table, fixed};

const THIS_RUN: &str = "this run";

impl StreamReport {
    pub fn tables(&self) -> [Table; 6] {
        let sent = Rate {
            bytes: Some(self.bytes),
            max: self.produced_mb_per_s_max,
            mean: Some(self.produced_mb_per_s),
            records: Some(self.produced_per_s),
        };
        let read = Rate {
            bytes: self.consumed_per_s.map(|_| self.bytes),
            max: self.consumed_mb_per_s_max,
            mean: self.consumed_mb_per_s,
            records: self.consumed_per_s,
        };
        [
            sent.table("Producer throughput"),
            read.table("Consumer throughput"),
            latency("Producer latency, ms", self.producer_us),
            latency("Consumer latency, ms", self.consumer_us),
            latency("End-to-end latency, ms", self.e2e_us),
            self.usage(),
        ]
    }

    fn usage(&self) -> Table {
        let looks = &self.charts.server;
        let seconds = looks.last().zip(looks.first()).map(|(last, first)| last.at_s - first.at_s);
        let mean = self.server_cpu_seconds.zip(seconds).map(|(cpu, seconds)| cpu / seconds.max(1e-9) * 100.0);
        let gigabytes = self.bytes as f64 / 1e9;
        let rows = vec![(
            THIS_RUN,
            vec![
                fixed(self.memory_growth_mb(), 1),
                fixed(self.server_resident_bytes_max.map(|bytes| bytes as f64 / 1e6), 1),
                fixed(self.server_cpu_percent_max, 0),
                fixed(mean, 0),
                fixed(self.server_cpu_seconds.map(|seconds| seconds / gigabytes), 2),
            ],
        )];
        let columns = vec!["growth MB", "max MB", "max CPU %", "mean %", "CPU s/GB"];
        Table { title: "Memory and CPU", columns, rows }
    }

    /// Returns the explanations of the tables.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.rate_per_s.is_some() {
            notes.push("open loop: latencies are measured from the time a record was due".to_owned());
        } else if self.in_flight > 1 {
            notes.push("closed loop with many in flight: latencies show how long the queue is".to_owned());
        }
        let max = if self.is_one_in_flight() {
            "the bytes of a record divided by its latency, the highest of all records"
        } else {
            "the highest of the time steps in the charts"
        };
        notes.push(format!("max MB/s: {max}; mean: all bytes divided by the time of the run"));
        notes.push(
            "consumer latency: from the beginning of a read attempt to its success, including the wait for the producer"
                .to_owned(),
        );
        notes
    }
}

struct Rate {
    bytes: Option<u64>,
    max: Option<f64>,
    mean: Option<f64>,
    records: Option<f64>,
}

impl Rate {
    fn table(&self, title: &'static str) -> Table {
        let count = |bytes: Option<u64>| bytes.map_or(NOT_KNOWN.to_owned(), |bytes| bytes.to_string());
        let records = self.records.map_or(NOT_KNOWN.to_owned(), rate);
        let this = (THIS_RUN, vec![count(self.bytes), fixed(self.max, 2), fixed(self.mean, 2), records]);
        let columns = vec!["bytes", "max MB/s", "mean MB/s", "records"];
        Table { title, columns, rows: vec![this] }
    }
}

fn latency(title: &'static str, found: Option<Percentiles>) -> Table {
    let ms = |value: fn(&Percentiles) -> f64| fixed(found.as_ref().map(|found| value(found) / 1000.0), 3);
    let this = vec![ms(|p| p.mean), ms(|p| p.p50), ms(|p| p.p90), ms(|p| p.p99), ms(|p| p.p999), ms(|p| p.max)];
    let columns = vec!["average", "p50", "p90", "p99", "p99.9", "max"];
    Table { title, columns, rows: vec![(THIS_RUN, this)] }
}

impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.shape())?;
        writeln!(
            f,
            "on {} x {}, Linux {}, commit {}, load average {:.2} before, {:.2} after",
            self.host.cores,
            self.host.cpu,
            self.host.kernel,
            self.program.commit,
            self.load_average_before.0[0],
            self.load_average_after.0[0]
        )?;
        for table in self.tables() {
            write!(f, "\n{table}")?;
        }
        writeln!(f)?;
        for note in self.notes() {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "{}", self.verdict())
    }
}

impl StreamReport {
    /// Returns a one-line summary of the workload.
    pub fn shape(&self) -> String {
        let batch = match self.batch {
            0 => "batches sized by the client".to_owned(),
            batch => format!("{batch} in a batch, {} in flight", self.in_flight),
        };
        let rate = self.rate_per_s.map_or(String::new(), |per_s| format!(", {} requested", rate(per_s)));
        format!(
            "{} {} over {}: {} records of {:.0} B, {} {} {}, {batch}, acks {}, consumer {}{rate}",
            self.system,
            self.mode,
            self.transport,
            self.records,
            self.record_bytes,
            self.partitions,
            if self.partitions == 1 { "partition" } else { "partitions" },
            if self.storage == "disk" { "on disk" } else { "in memory" },
            self.acks,
            self.consumer
        )
    }

    /// Returns the verdict on the validity of the run.
    pub fn verdict(&self) -> String {
        match self.consumed_seconds {
            _ if self.faults().any() => format!(
                "this run is incomplete and its rates are not valid: {} records lost, {} damaged, {} repeated, {} late",
                self.lost, self.damaged, self.repeated, self.disordered
            ),
            Some(_) => format!("all {} records arrived exactly once, in order, with their bytes", self.consumed),
            None => format!("all {} records were acknowledged; no consumer read them", self.produced),
        }
    }
}
