//! `thalweg bench compare`: measurements of this system and another one in turn, on this machine, and their ratios.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use thalweg::config::Config;

use super::measure;
use crate::args::{BenchCompare, BenchMode, BenchPubsub, BenchRate, Peer, Transport};
use crate::commands::spawned::Spawned;
use crate::output::{FAILED, Failure, LOST, Result};

/// Workload that both systems are measured with.
struct Scenario {
    name: &'static str,
    mode: BenchMode,
    payload: usize,
    count: u64,
    fanout: usize,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "publish to 1 subscriber, 100 B",
        mode: BenchMode::Throughput,
        payload: 100,
        count: 4_000_000,
        fanout: 1,
    },
    Scenario {
        name: "publish to 10 subscribers, 256 B",
        mode: BenchMode::Throughput,
        payload: 256,
        count: 500_000,
        fanout: 10,
    },
    Scenario { name: "publish only, 100 B", mode: BenchMode::Publish, payload: 100, count: 8_000_000, fanout: 0 },
    Scenario { name: "one in flight, 100 B", mode: BenchMode::EndToEnd, payload: 100, count: 20_000, fanout: 1 },
    Scenario { name: "one in flight, 1 KiB", mode: BenchMode::EndToEnd, payload: 1024, count: 20_000, fanout: 1 },
];

/// Result of one run of one system: a rate, or two latencies in microseconds.
#[derive(Clone, Copy)]
enum Found {
    Rate { per_s: f64, cpu_us: f64 },
    Latency { p50: f64, p99: f64 },
}

pub fn run(args: &BenchCompare, is_json: bool) -> Result {
    let Peer::Nats = args.peer;
    let folder = args.peers.join("nats");
    install(&folder)?;
    let progress = ProgressBar::new((SCENARIOS.len() * args.rounds * 2) as u64);
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "Scenario",
        "Figure",
        "Thalweg",
        "NATS",
        "Ratio",
        "Spread of the ratio",
    ]);
    let mut rows = Vec::new();
    for scenario in &SCENARIOS {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..args.rounds.max(1) {
            ours.push(run_ours(scenario)?);
            progress.inc(1);
            theirs.push(run_nats(&folder, scenario)?);
            progress.inc(1);
        }
        for row in compare(scenario.name, &ours, &theirs) {
            table.add_row(row.cells());
            rows.push(row.to_json());
        }
    }
    progress.finish_and_clear();
    let mut out = std::io::stdout();
    if is_json {
        writeln!(out, "{}", json!({ "host": ::bench::Host::here(), "rounds": args.rounds, "rows": rows }))?;
    } else {
        writeln!(out, "{table}")?;
        writeln!(
            out,
            "Medians of {} rounds, both systems in turn in each; the ratio is that of each round.",
            args.rounds
        )?;
    }
    Ok(())
}

fn install(folder: &Path) -> Result {
    let script = folder.join("install.sh");
    if !script.is_file() {
        let message = format!(
            "{} does not exist; run this in a checkout of the sources, or name the scripts with --peers",
            script.display()
        );
        return Err(Failure::new(FAILED, message));
    }
    let status = Command::new("bash").arg(&script).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(
            FAILED,
            format!("{} failed ({status}): its requirements are printed above", script.display()),
        )),
        Err(e) => Err(Failure::new(FAILED, format!("cannot run {} with bash: {e}", script.display()))),
    }
}

fn run_ours(scenario: &Scenario) -> Result<Found> {
    let server = Spawned::start(&[])?;
    let args = BenchPubsub {
        mode: scenario.mode,
        transport: Transport::Tcp,
        payload: scenario.payload,
        // Records are published one by one, as on the other system.
        batch: 0,
        count: Some(scenario.count),
        pub_conns: 1,
        pub_streams: 1,
        fanout: scenario.fanout,
        acks: client::Acks::None,
        overflow: client::Overflow::Block,
        rate: Some(BenchRate::Max),
        threads: 1,
        runs: 1,
        report: None,
        html: None,
    };
    let report = measure(&args, &server.native, &Config::defaults())?;
    if report.lost > 0 {
        return Err(Failure::new(LOST, format!("{}: {} records were lost", scenario.name, report.lost)));
    }
    Ok(match report.delivery_us {
        Some(p) if scenario.mode == BenchMode::EndToEnd => Found::Latency { p50: p.p50, p99: p.p99 },
        _ => Found::Rate {
            per_s: if scenario.fanout == 0 { report.published_per_s } else { report.delivered_per_s },
            cpu_us: report.cpu_us_per_message,
        },
    })
}

fn run_nats(folder: &Path, scenario: &Scenario) -> Result<Found> {
    let mode = match scenario.mode {
        BenchMode::Throughput => "fanout",
        BenchMode::Publish => "publish",
        BenchMode::EndToEnd | BenchMode::Ack => "latency",
    };
    let output = Command::new("bash")
        .arg(folder.join("run.sh"))
        .args(["-mode", mode, "-size", &scenario.payload.to_string(), "-count", &scenario.count.to_string()])
        .args(["-subs", &scenario.fanout.max(1).to_string(), "-pubs", "1"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Failure::new(FAILED, format!("{}: the other system ended with {}", scenario.name, output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().map(serde_json::from_str::<Value>);
    let (Some(load), Some(server)) = (lines.next().transpose()?, lines.next().transpose()?) else {
        return Err(Failure::new(FAILED, format!("{}: the other system reported nothing: {text}", scenario.name)));
    };
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    if mode == "latency" {
        return Ok(Found::Latency { p50: number(&load["latency_us"]["p50"]), p99: number(&load["latency_us"]["p99"]) });
    }
    let per_s = number(&load[if scenario.fanout == 0 { "published_per_s" } else { "delivered_per_s" }]);
    let messages = scenario.count as f64 * scenario.fanout.max(1) as f64;
    let cpu = number(&load["client_cpu_seconds"]) + number(&server["server_cpu_seconds"]);
    Ok(Found::Rate { per_s, cpu_us: cpu * 1e6 / messages })
}

/// Figure of one scenario, for both systems.
struct Row {
    scenario: &'static str,
    figure: &'static str,
    ours: f64,
    theirs: f64,
    /// Ratios of all rounds, sorted.
    ratios: Vec<f64>,
}

fn compare(scenario: &'static str, ours: &[Found], theirs: &[Found]) -> Vec<Row> {
    let row = |figure, value: &dyn Fn(&Found) -> Option<f64>| -> Option<Row> {
        let ours: Vec<f64> = ours.iter().map(value).collect::<Option<_>>()?;
        let theirs: Vec<f64> = theirs.iter().map(value).collect::<Option<_>>()?;
        let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        Some(Row { scenario, figure, ours: median(ours), theirs: median(theirs), ratios })
    };
    let rate = |found: &Found| if let Found::Rate { per_s, .. } = found { Some(*per_s) } else { None };
    let cpu = |found: &Found| if let Found::Rate { cpu_us, .. } = found { Some(*cpu_us) } else { None };
    let p50 = |found: &Found| if let Found::Latency { p50, .. } = found { Some(*p50) } else { None };
    let p99 = |found: &Found| if let Found::Latency { p99, .. } = found { Some(*p99) } else { None };
    type Figure<'a> = (&'static str, &'a dyn Fn(&Found) -> Option<f64>);
    let rows: [Figure<'_>; 4] = [("messages/s", &rate), ("CPU us/message", &cpu), ("p50 us", &p50), ("p99 us", &p99)];
    rows.into_iter().filter_map(|(figure, value)| row(figure, value)).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let show = |n: f64| if n >= 1000.0 { format!("{n:.0}") } else { format!("{n:.2}") };
        let (Some(low), Some(high)) = (self.ratios.first(), self.ratios.last()) else {
            return Default::default();
        };
        [
            self.scenario.to_owned(),
            self.figure.to_owned(),
            show(self.ours),
            show(self.theirs),
            format!("{:.2}", self.ratios[self.ratios.len() / 2]),
            format!("{low:.2} to {high:.2}"),
        ]
    }

    fn to_json(&self) -> Value {
        json!({
            "scenario": self.scenario, "figure": self.figure, "thalweg": self.ours, "peer": self.theirs,
            "ratio": self.ratios[self.ratios.len() / 2], "ratios": self.ratios,
        })
    }
}
