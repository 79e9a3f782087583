//! Reference measurements: the C programs of `bench/floor`, measured in turn with our own.

use std::path::Path;
use std::process::{Command, Stdio};

use ::bench::rpc::{LoadReport, Place, Plan, ServerSettings};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use serde_json::{Value, json};

use super::both::target;
use super::child::{Server, last_json};
use super::{check, measure};
use crate::output::{FAILED, Failure, Result, USAGE};

/// Rows of the comparison. The middle one separates the effect of the load from that of the server.
const NAMES: [&str; 3] = ["floor: C server, C load", "C server, this load", "thalweg server, this load"];

/// Figures that are compared.
#[derive(Clone, Copy)]
struct Figures {
    rps: f64,
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the server per request, in microseconds.
    user_us: f64,
    sys_us: f64,
    /// CPU time of the load per request, in microseconds.
    client_us: f64,
}

pub struct Floor<'a> {
    folder: &'a Path,
    settings: &'a ServerSettings,
    plan: &'a Plan,
    /// Rows of each round.
    rounds: Vec<[Figures; NAMES.len()]>,
}

impl<'a> Floor<'a> {
    /// Finds the programs in this folder.
    pub fn find(folder: &'a Path, settings: &'a ServerSettings, plan: &'a Plan) -> Result<Self> {
        if settings.is_tls {
            let why = "--floor does not use TLS: it cannot be compared with this profile, which does";
            return Err(Failure::new(USAGE, why));
        }
        for program in ["bin/echo_server", "bin/load"] {
            if !folder.join(program).exists() {
                let place = folder.join(program);
                let folder = folder.display();
                let why = format!("{} is missing; build it with: make -C {folder}", place.display());
                return Err(Failure::new(USAGE, why));
            }
        }
        Ok(Self { folder, settings, plan, rounds: Vec::new() })
    }

    /// Runs every row once. Every other round runs in reverse order, because the speed of a machine drifts.
    pub fn round(&mut self, ours: impl Fn() -> Result<LoadReport>) -> Result<LoadReport> {
        let (floor, mixed, report);
        if self.rounds.len().is_multiple_of(2) {
            floor = self.run_c()?;
            mixed = self.run_mixed()?;
            report = ours()?;
        } else {
            report = ours()?;
            mixed = self.run_mixed()?;
            floor = self.run_c()?;
        }
        self.rounds.push([floor, mixed, Figures::of_report(&report)]);
        Ok(report)
    }

    fn unix(&self) -> Option<&Path> {
        match &self.settings.place {
            Place::Unix(path) => Some(path),
            Place::Tcp(_) => None,
        }
    }

    fn start_server(&self) -> Result<Server> {
        let mut command = Command::new(self.folder.join("bin/echo_server"));
        match self.unix() {
            Some(path) => command.arg("--unix").arg(path),
            None => command.arg("0"),
        };
        command.args([self.settings.threads, self.settings.response_bytes].map(|n| n.to_string()));
        Server::start(command)
    }

    /// Measures the C server with the C load.
    fn run_c(&self) -> Result<Figures> {
        let server = self.start_server()?;
        let plan = self.plan;
        let mut load = Command::new(self.folder.join("bin/load"));
        match self.unix() {
            Some(path) => load.arg("--unix").arg(path),
            None => load.arg(server.place()),
        };
        load.args([plan.connections, plan.pipeline, plan.payload_bytes].map(|n| n.to_string()));
        load.arg(plan.duration.as_secs_f64().to_string());
        load.args([plan.threads.clamp(1, plan.connections), plan.response_bytes].map(|n| n.to_string()));
        let output = load.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let served = server.stop()?;
        match last_json(&String::from_utf8_lossy(&output.stdout)) {
            Some(found) if output.status.success() => Ok(Figures::of_json(&found, &served)),
            _ => Err(Failure::new(FAILED, format!("the C load ended with {}", output.status))),
        }
    }

    /// Measures the C server with our load.
    fn run_mixed(&self) -> Result<Figures> {
        let server = self.start_server()?;
        let target = target(None, self.settings, server.place())?;
        let report = measure(&Plan { target, ..self.plan.clone() }, Some(server.pid()))?;
        server.stop()?;
        check(&report)?;
        Ok(Figures::of_report(&report))
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        (0..NAMES.len()).map(|i| {
            let of = |value: fn(&Figures) -> f64| median(self.rounds.iter().map(|round| value(&round[i])).collect());
            let mut ratios: Vec<f64> = self.rounds.iter().map(|round| round[i].rps / round[0].rps).collect();
            ratios.sort_by(f64::total_cmp);
            let median = Figures {
                rps: of(|f| f.rps),
                p50_us: of(|f| f.p50_us),
                p99_us: of(|f| f.p99_us),
                user_us: of(|f| f.user_us),
                sys_us: of(|f| f.sys_us),
                client_us: of(|f| f.client_us),
            };
            Row { name: NAMES[i], median, ratios }
        })
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header([
            "",
            "k requests/s",
            "ratio min",
            "median",
            "max",
            "server CPU us: user",
            "system",
            "load CPU us",
            "p50 us",
            "p99 us",
        ]);
        table.add_rows(self.rows().map(|row| row.cells()));
        table
    }

    pub fn to_json(&self) -> Value {
        self.rows().map(|row| row.to_json()).collect()
    }
}

impl Figures {
    fn of_report(report: &LoadReport) -> Self {
        Self {
            rps: report.rps,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            user_us: report.server_user_us_per_request.unwrap_or(f64::NAN),
            sys_us: report.server_sys_us_per_request.unwrap_or(f64::NAN),
            client_us: report.client_cpu_us_per_request,
        }
    }

    /// Reads the results of a load, and the CPU time that its server reports.
    fn of_json(load: &Value, served: &Value) -> Self {
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let a_request = |key: &str| number(&served[key]) * 1e6 / number(&served["requests"]).max(1.0);
        Self {
            rps: number(&load["rps"]),
            p50_us: number(&load["p50_us"]),
            p99_us: number(&load["p99_us"]),
            user_us: a_request("user_seconds"),
            sys_us: a_request("sys_seconds"),
            client_us: number(&load["client_cpu_us_per_request"]),
        }
    }
}

/// Row over all rounds: the medians, and the ratios to the C programs in the same round, sorted.
struct Row {
    name: &'static str,
    median: Figures,
    ratios: Vec<f64>,
}

impl Row {
    /// Returns the smallest, the median and the largest ratio.
    fn ratio(&self) -> [f64; 3] {
        [0, self.ratios.len() / 2, self.ratios.len() - 1].map(|at| self.ratios[at])
    }

    fn cells(&self) -> Vec<String> {
        let Figures { rps, p50_us, p99_us, user_us, sys_us, client_us } = self.median;
        let [least, middle, most] = self.ratio();
        let mut cells = vec![self.name.to_owned(), format!("{:.1}", rps / 1e3)];
        cells.extend([least, middle, most, user_us, sys_us, client_us].map(|n| format!("{n:.3}")));
        cells.extend([p50_us, p99_us].map(|n| format!("{n:.1}")));
        cells
    }

    fn to_json(&self) -> Value {
        let Figures { rps, p50_us, p99_us, user_us, sys_us, client_us } = self.median;
        let [least, middle, most] = self.ratio();
        json!({
            "name": self.name,
            "rps": rps,
            "ratio": { "min": least, "median": middle, "max": most },
            "p50_us": p50_us,
            "p99_us": p99_us,
            "server_user_us_per_request": user_us,
            "server_sys_us_per_request": sys_us,
            "client_cpu_us_per_request": client_us,
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
