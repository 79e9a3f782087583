//! `thalweg bench`: the load generator, with a broker in another process if no server is named.

mod cache;
mod compare;
mod idle;
mod rpc;
mod stream;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::bench::html::Page;
use ::bench::{LoadAverage, Mode, Program, Pubsub, Report};
use client::{Addresses, ClientSettings};
use thalweg::config::Config;

use crate::args::{Bench, BenchMode, BenchPubsub, BenchRate, Global, Transport};
use crate::commands::client_settings;
use crate::commands::spawned::Spawned;
use crate::output::{FAILED, Failure, LOST, Result};
use crate::{load, load_without_context};

/// Allocator that `main.rs` sets.
const ALLOCATOR: &str = "mimalloc";
/// Default rate of a throughput run in records per second, and its duration.
const DEFAULT_RATE: f64 = 5000.0;
const DEFAULT_SECONDS: f64 = 10.0;
/// Default number of records of all other runs.
const DEFAULT_COUNT: u64 = 100_000;
/// Time that a subscriber waits for the next record before it counts the rest as lost.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(global: &Global, command: Bench) -> Result {
    match command {
        Bench::Pubsub(args) => pubsub(global, &args),
        Bench::Stream(args) => stream::run(global, &args),
        Bench::Cache(args) => cache::run(global, &args),
        Bench::Compare(args) => compare::run(&args, global.json),
        Bench::Idle(args) => idle::run(&args, global.json),
        Bench::Rpc(args) => rpc::run(global, *args),
    }
}

/// Loads the configuration of a benchmark. A broker that it starts has no use for a context.
fn load_of_bench(global: &Global) -> Result<Config> {
    if global.server.is_some() { load(global, Vec::new()) } else { load_without_context(global, Vec::new()) }
}

fn pubsub(global: &Global, args: &BenchPubsub) -> Result {
    let config = load_of_bench(global)?;
    let spawned = match &global.server {
        Some(_) => None,
        // The broker gets the configuration of this process.
        None => Some(Spawned::start(&config_flags(global))?),
    };
    let server = spawned.as_ref().map_or(config.server_address(), |spawned| &spawned.native);
    let mut page = args.html.as_deref().map(create_page).transpose()?;
    let load_before = LoadAverage::now();
    let mut reports = Vec::new();
    for _ in 0..args.runs.max(1) {
        let report = measure(args, server, &config)?;
        if let Some(path) = &args.report {
            append(path, &report)?;
        }
        reports.push(report);
    }
    let has_lost = reports.iter().any(|report| report.lost > 0);
    reports.sort_by(|a, b| a.delivered_per_s.total_cmp(&b.delivered_per_s));
    let median = &reports[reports.len() / 2];
    if let Some(file) = &mut page {
        let load = [load_before, LoadAverage::now()];
        let mut page = Page::new("thalweg bench pubsub", &median.host, &this_program(), load);
        page.sections.push(median.section());
        file.write_all(page.render().as_bytes())?;
    }
    let mut out = std::io::stdout();
    if global.json {
        writeln!(out, "{}", serde_json::to_string(median)?)?;
    } else {
        write!(out, "{median}")?;
        if let ([first, .., last], true) = (&reports[..], reports.len() > 1) {
            writeln!(
                out,
                "  median of {} runs, {:.0} to {:.0} delivered/s",
                reports.len(),
                first.delivered_per_s,
                last.delivered_per_s
            )?;
        }
    }
    if has_lost {
        return Err(Failure::new(LOST, "records were lost: the rates of this run are not valid"));
    }
    Ok(())
}

/// Returns the flags with which another process of this program reads the same configuration.
fn config_flags(global: &Global) -> Vec<String> {
    // The load is lossless: a publisher waits for a subscriber as long as a subscriber waits for a record.
    let wait = format!("publish_queue_wait_timeout_ms={}", PATIENCE.as_millis());
    let pairs = std::iter::once(&wait).chain(&global.set);
    let mut flags: Vec<String> = pairs.flat_map(|pair| ["--set".to_owned(), pair.clone()]).collect();
    if let Some(path) = &global.config {
        flags.extend(["--config".to_owned(), path.display().to_string()]);
    }
    flags
}

/// Runs one measurement against a running broker.
pub(super) fn measure(args: &BenchPubsub, server: &str, config: &Config) -> Result<Report> {
    let is_quiet = args.mode == BenchMode::Publish;
    let scenario = Pubsub {
        addresses: addresses(args.transport, server)?,
        settings: ClientSettings {
            pub_conn_pool: args.pub_conns,
            pub_streams_per_conn: args.pub_streams,
            ..client_settings(config)?
        },
        mode: match args.mode {
            BenchMode::Throughput => Mode::Throughput,
            BenchMode::Publish => Mode::Publish,
            BenchMode::Ack => Mode::Ack,
            BenchMode::EndToEnd => Mode::EndToEnd,
        },
        payload_bytes: args.payload,
        batch: args.batch,
        count: args.count.unwrap_or_else(|| default_count(args)),
        publishers: args.pub_conns * args.pub_streams,
        fanout: if is_quiet { 0 } else { args.fanout },
        acks: if args.mode == BenchMode::EndToEnd { client::Acks::None } else { args.acks },
        overflow: args.overflow,
        rate: rate_of(args),
        patience: PATIENCE,
        topic: format!("bench-{}", std::process::id()),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        commit: thalweg::COMMIT.to_owned(),
    };
    let mut runtime = match args.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    Ok(runtime.enable_all().build()?.block_on(::bench::run(&scenario))?)
}

/// Returns the rate of a run. A throughput run without a rate uses one that any machine sustains: at saturation, the
/// latency shows only the length of the queues.
fn rate_of(args: &BenchPubsub) -> Option<f64> {
    match (args.rate, args.mode) {
        (Some(BenchRate::PerSecond(rate)), _) => Some(rate),
        (None, BenchMode::Throughput) => Some(DEFAULT_RATE),
        (Some(BenchRate::Max), _) | (None, _) => None,
    }
}

fn default_count(args: &BenchPubsub) -> u64 {
    match (args.rate, args.mode) {
        (None, BenchMode::Throughput) => (DEFAULT_RATE * DEFAULT_SECONDS) as u64,
        _ => DEFAULT_COUNT,
    }
}

/// Creates the page before the measurement, so that a path that cannot be written fails early.
fn create_page(path: &Path) -> Result<File> {
    File::create(path).map_err(|e| Failure::new(FAILED, format!("{}: {e}", path.display())))
}

fn this_program() -> Program {
    Program::this(&format!("thalweg {}", thalweg::VERSION), thalweg::COMMIT, ALLOCATOR)
}

/// Returns the addresses of a server, or of the nodes of a cluster, for the measured transport.
fn addresses(transport: Transport, server: &str) -> Result<Addresses> {
    if server.starts_with("unix:") {
        return Ok(Addresses::parse(server)?);
    }
    let scheme = match transport {
        Transport::Quic => "quic",
        Transport::Tcp => "tcp",
    };
    let hosts: Vec<&str> = server.split(',').map(|part| part.rsplit("://").next().unwrap_or(part)).collect();
    Ok(Addresses::parse(&format!("{scheme}://{}", hosts.join(",")))?)
}

fn append(path: &Path, report: &Report) -> Result {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{}", serde_json::to_string(report)?)?)
}

/// Data directory for one run, which is deleted after it.
struct Data(PathBuf);

impl Data {
    fn below(dir: &Path) -> Self {
        Self(dir.join(format!("thalweg-bench-{}", std::process::id())))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
