//! Report of a load of a cache.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Faults, Measured, Operation, Plan, Row};
use crate::html::{Page, Section};
use crate::load::transport;
use crate::machine::{Host, LoadAverage, Program};
use crate::report::Percentiles;
use crate::table::{NOT_KNOWN, Table, fixed};

/// Results of all rows, with all conditions that have to match in a comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheReport {
    pub system: String,
    pub transport: String,
    pub is_durable: bool,
    pub connections: usize,
    /// Streams of each connection.
    pub streams: usize,
    pub keys: usize,
    /// Operations of a row that are measured; `warm_up` operations precede them.
    pub samples: usize,
    pub warm_up: usize,
    pub rounds: usize,
    pub client_threads: usize,
    /// Rows in the order of the plan. After a lost answer, rows that were not started are missing.
    pub rows: Vec<RowReport>,
    #[serde(flatten)]
    pub host: Host,
    #[serde(flatten)]
    pub program: Program,
    pub load_average_before: LoadAverage,
    pub load_average_after: LoadAverage,
}

/// Result of a row, from the round with the median rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowReport {
    pub operation: Operation,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<usize>,
    /// Operations in flight.
    pub concurrency: usize,
    /// Operations that were measured and correctly answered.
    pub operations: u64,
    pub seconds: f64,
    pub operations_per_s: f64,
    /// Rate of the slowest round; `operations_per_s_max` is that of the fastest.
    pub operations_per_s_min: f64,
    pub operations_per_s_max: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Percentiles>,
    pub client_cpu_us_per_operation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_operation: Option<f64>,
    /// Errors of all rounds, including those of operations that were not measured.
    pub errors: u64,
    pub faults: Faults,
}

impl RowReport {
    /// Creates the report of a row; `None` if it was not started.
    fn new(row: &Row, rounds: &[Measured]) -> Option<Self> {
        let mut by_rate: Vec<&Measured> = rounds.iter().collect();
        by_rate.sort_by(|a, b| a.per_s().total_cmp(&b.per_s()));
        let median = by_rate.get(by_rate.len() / 2)?;
        let mut faults = Faults::default();
        rounds.iter().for_each(|one| faults.add(&one.faults));
        let operations = median.latencies.len();
        let an_operation = |seconds: f64| seconds * 1e6 / operations.max(1) as f64;
        Some(Self {
            operation: row.operation,
            value_bytes: row.value_bytes,
            concurrency: row.concurrency,
            operations,
            seconds: median.elapsed.as_secs_f64(),
            operations_per_s: median.per_s(),
            operations_per_s_min: by_rate.first()?.per_s(),
            operations_per_s_max: by_rate.last()?.per_s(),
            latency_us: median.latencies.percentiles(),
            client_cpu_us_per_operation: an_operation(median.client_cpu_seconds),
            server_cpu_us_per_operation: median.server_cpu.map(|cpu| an_operation(cpu.as_secs_f64())),
            errors: faults.count(),
            faults,
        })
    }

    fn cells(&self, has_rounds: bool) -> Vec<String> {
        let of_latency = |value: fn(&Percentiles) -> f64| fixed(self.latency_us.as_ref().map(value), 1);
        let mut cells = vec![
            self.value_bytes.map_or(NOT_KNOWN.to_owned(), |bytes| bytes.to_string()),
            self.concurrency.to_string(),
            fixed(Some(self.operations_per_s), 0),
            of_latency(|p| p.p50),
            of_latency(|p| p.p95),
            of_latency(|p| p.p99),
            of_latency(|p| p.p999),
            of_latency(|p| p.max),
            fixed(Some(self.client_cpu_us_per_operation), 2),
            fixed(self.server_cpu_us_per_operation, 2),
            self.errors.to_string(),
        ];
        if has_rounds {
            cells.push(format!("{:.0} to {:.0}", self.operations_per_s_min, self.operations_per_s_max));
        }
        cells
    }
}

impl CacheReport {
    pub(super) fn new(
        plan: &Plan,
        measured: &[Vec<Measured>],
        program: Program,
        load_average_before: LoadAverage,
    ) -> Self {
        let transport = transport(&plan.addresses);
        Self {
            system: "thalweg".to_owned(),
            is_durable: plan.cache_settings.is_durable,
            connections: plan.settings.cache_conn_pool,
            // Over TCP a connection is one stream.
            streams: if transport == "quic" { plan.settings.cache_streams_per_conn } else { 1 },
            keys: plan.keys,
            samples: plan.samples,
            warm_up: plan.warm_up,
            rounds: plan.rounds.max(1),
            client_threads: plan.threads.max(1),
            rows: plan.rows.iter().zip(measured).filter_map(|(row, rounds)| RowReport::new(row, rounds)).collect(),
            host: Host::here(),
            program,
            load_average_before,
            load_average_after: LoadAverage::now(),
            transport,
        }
    }

    /// Returns the failures of all rows.
    pub fn faults(&self) -> Faults {
        let mut all = Faults::default();
        self.rows.iter().for_each(|row| all.add(&row.faults));
        all
    }

    /// Returns a one-line summary of the load.
    pub fn shape(&self) -> String {
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("medians of {rounds} rounds"),
        };
        format!(
            "{} {}cache over {}: {} connections x {} streams, {} keys, {} samples a row after {} of warm-up, {rounds}, \
             threads of the load: {}",
            self.system,
            if self.is_durable { "durable " } else { "" },
            self.transport,
            self.connections,
            self.streams,
            self.keys,
            self.samples,
            self.warm_up,
            self.client_threads
        )
    }

    /// Returns the verdict on the validity of the figures.
    pub fn verdict(&self) -> String {
        let Faults { refused, lost, wrong, first } = self.faults();
        match first {
            None => "every operation was answered correctly".to_owned(),
            Some(first) => format!(
                "this run is incomplete: {refused} operations refused, {lost} without an answer, {wrong} answered \
                 wrongly; the first: {first}"
            ),
        }
    }

    pub fn table(&self) -> Table {
        let mut columns = vec!["value B", "in flight", "operations/s", "p50", "p95", "p99", "p99.9", "max"];
        columns.extend(["CPU us client", "CPU us server", "errors"]);
        let has_rounds = self.rounds > 1;
        if has_rounds {
            columns.push("operations/s of all rounds");
        }
        let rows = self.rows.iter().map(|row| (row.operation.name(), row.cells(has_rounds))).collect();
        Table { title: "Latency and CPU an operation, us", columns, rows }
    }

    pub fn page(&self) -> Page {
        let load = [self.load_average_before, self.load_average_after];
        let mut page = Page::new("thalweg bench cache", &self.host, &self.program, load);
        page.sections.push(Section {
            title: "Operations of a cache".to_owned(),
            shape: self.shape(),
            is_whole: self.faults().count() == 0,
            verdict: self.verdict(),
            tables: vec![self.table()],
            ..Section::default()
        });
        page
    }
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.shape())?;
        writeln!(
            f,
            "on {} x {}, Linux {}, commit {}, {}, load average {:.2} before, {:.2} after",
            self.host.cores,
            self.host.cpu,
            self.host.kernel,
            self.program.commit,
            self.program.allocator,
            self.load_average_before.0[0],
            self.load_average_after.0[0]
        )?;
        writeln!(f, "{}\n", self.program.command)?;
        writeln!(f, "{}", self.table())?;
        writeln!(f, "{}", self.verdict())
    }
}
