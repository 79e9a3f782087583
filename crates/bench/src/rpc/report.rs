//! Report of a load, with all conditions that have to match in a comparison.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::load::{Outcome, Plan};
use super::server::Served;
use super::worker::ANSWERS_A_SAMPLE;
use crate::machine::{Host, LoadAverage, Program, cpus_allowed, governor};
use crate::process::CpuTime;
use crate::report::rate;

/// Report of a run. `bench/floor/compare.py` reads these keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// Answers that were received within the window.
    pub requests: u64,
    pub seconds: f64,
    pub rps: f64,
    pub errors: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
    /// Number of answers that were timed: one in `timed_one_in`.
    pub timed: u64,
    pub timed_one_in: u64,
    pub client_cpu_us_per_request: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_request: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_user_us_per_request: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_sys_us_per_request: Option<f64>,
    /// Requested rate in requests per second; without it the loop is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Open loop: requests that were due. `late` counts those of them that were answered only after the window; the
    /// remaining fields are the delays with which requests were sent, which are part of their latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_late_p99_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_late_max_us: Option<f64>,
    /// Transport. This field and all following ones have to be equal in a comparison.
    pub transport: String,
    pub is_tls: bool,
    /// Contents of one write: `batch`, or `request`.
    pub writes: String,
    pub connections: usize,
    pub pipeline: usize,
    pub payload_bytes: usize,
    pub response_bytes: usize,
    pub warm_up_seconds: f64,
    pub client_threads: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpus: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_threads: Option<usize>,
    #[serde(flatten)]
    pub host: Host,
    pub governor: String,
    #[serde(flatten)]
    pub program: Program,
    pub load_average_before: LoadAverage,
    pub load_average_after: LoadAverage,
    /// Final report of the server, if this run has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Served>,
}

impl LoadReport {
    pub fn new(plan: &Plan, outcome: &Outcome, program: Program, load_average_before: LoadAverage) -> Self {
        let seconds = plan.duration.as_secs_f64();
        let a_request = |seconds: f64| seconds * 1e6 / outcome.requests.max(1) as f64;
        let server =
            |part: fn(CpuTime) -> std::time::Duration| outcome.server_cpu.map(|cpu| a_request(part(cpu).as_secs_f64()));
        let latency = outcome.latencies.percentiles().unwrap_or_default();
        let lag = outcome.lags.percentiles();
        let transport = plan.target.transport();
        Self {
            requests: outcome.requests,
            seconds,
            rps: outcome.requests as f64 / seconds,
            errors: outcome.errors,
            p50_us: latency.p50,
            p90_us: latency.p90,
            p99_us: latency.p99,
            p99_9_us: latency.p999,
            max_us: latency.max,
            mean_us: latency.mean,
            timed: latency.count,
            timed_one_in: if plan.rate.is_some() { 1 } else { ANSWERS_A_SAMPLE },
            client_cpu_us_per_request: a_request(outcome.client_cpu.as_secs_f64()),
            server_cpu_us_per_request: server(CpuTime::total),
            server_user_us_per_request: server(|cpu| cpu.user),
            server_sys_us_per_request: server(|cpu| cpu.system),
            rate: plan.rate,
            due: plan.rate.map(|_| outcome.due),
            late: plan.rate.map(|_| outcome.late),
            sent_late_p99_us: lag.map(|lag| lag.p99),
            sent_late_max_us: lag.map(|lag| lag.max),
            transport: transport.to_owned(),
            is_tls: matches!(transport, "tls" | "quic"),
            writes: if plan.is_one_write_per_request { "request" } else { "batch" }.to_owned(),
            connections: plan.connections,
            pipeline: plan.pipeline,
            payload_bytes: plan.payload_bytes,
            response_bytes: plan.response_bytes,
            warm_up_seconds: plan.warm_up.as_secs_f64(),
            client_threads: plan.threads.clamp(1, plan.connections.max(1)),
            client_cpus: cpus_allowed(),
            server_threads: None,
            host: Host::here(),
            governor: governor(),
            program,
            load_average_before,
            load_average_after: LoadAverage::now(),
            server: None,
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<22}{value}");
        row("requests", format!("{} in {} s: {}", self.requests, self.seconds, rate(self.rps)))?;
        row("errors", self.errors.to_string())?;
        row(
            "latency us",
            format!(
                "p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}  (mean {:.1})",
                self.p50_us, self.p90_us, self.p99_us, self.p99_9_us, self.max_us, self.mean_us
            ),
        )?;
        match (self.rate, self.due, self.late) {
            (Some(per_s), Some(due), Some(late)) => {
                let lag = |us: Option<f64>| us.unwrap_or_default();
                row("loop", format!("open, {}: latency from the due time; every answer is timed", rate(per_s)))?;
                row("due", format!("{due}, {late} of them answered only after the window"))?;
                row(
                    "sent late us",
                    format!("p99 {:.1}  max {:.1}", lag(self.sent_late_p99_us), lag(self.sent_late_max_us)),
                )?;
            }
            _ => row(
                "loop",
                format!("closed: latency shows how long the queue is; one answer in {} is timed", self.timed_one_in),
            )?,
        }
        row("client CPU us/request", format!("{:.3}", self.client_cpu_us_per_request))?;
        if let (Some(all), Some(user), Some(system)) =
            (self.server_cpu_us_per_request, self.server_user_us_per_request, self.server_sys_us_per_request)
        {
            row("server CPU us/request", format!("{all:.3}: user {user:.3}, system {system:.3}"))?;
        }
        row(
            "shape",
            format!(
                "{} connections x {}, {} bytes in, {} out, {}",
                self.connections,
                self.pipeline,
                self.payload_bytes,
                self.response_bytes,
                if self.writes == "batch" { "one write per batch" } else { "one write per request" }
            ),
        )?;
        let server = self.server_threads.map_or("unknown".to_owned(), |threads| threads.to_string());
        row("transport", self.transport.clone())?;
        row("threads", format!("server {server}, client {}", self.client_threads))?;
        row("client", format!("{}, {}", self.program.client, self.program.allocator))?;
        row("commit", self.program.commit.clone())?;
        row(
            "machine",
            format!("{} x {}, Linux {}, governor {}", self.host.cores, self.host.cpu, self.host.kernel, self.governor),
        )?;
        let before = self.load_average_before.0[0];
        let after = self.load_average_after.0[0];
        row("load average", format!("{before:.2} before, {after:.2} after"))?;
        row("command", self.program.command.clone())
    }
}
