//! `thalweg bench stream`: one producer, one consumer, in the terms of a published report.

use std::path::Path;

use std::io::Write;

use ::bench::stream::{self, Consumer, Length, Plan, StreamReport};
use client::{Storage, TopicSettings};
use indicatif::ProgressBar;
use thalweg::config::Config;

use super::{Data, PATIENCE, addresses, config_flags, create_page, load_of_bench, this_program};
use crate::args::{BenchStream, Global, StreamConsumer, StreamMode};
use crate::commands::client_settings;
use crate::commands::spawned::Spawned;
use crate::output::{FAILED, Failure, LOST, Result};

/// Number of records in the published report, which the first workload repeats.
const REPORTED_RECORDS: u64 = 10_000;

/// Workload of a mode, which options may override.
struct Workload {
    name: &'static str,
    records: u64,
    length: Length,
    batch: usize,
    in_flight: usize,
}

impl StreamMode {
    fn workload(self) -> Workload {
        match self {
            Self::OneInFlight => Workload {
                name: "one-in-flight",
                records: REPORTED_RECORDS,
                length: Length::AsReported,
                batch: 1,
                in_flight: 1,
            },
            Self::Pipelined => Workload { name: "pipelined", batch: 64, in_flight: 16, ..Self::OneInFlight.workload() },
            Self::Million => {
                Workload { name: "1m-1kb", records: 1_000_000, length: Length::Fixed(1024), batch: 64, in_flight: 16 }
            }
            Self::Small => {
                Workload { name: "3m-100b", records: 3_000_000, length: Length::Fixed(100), batch: 512, in_flight: 16 }
            }
        }
    }
}

pub fn run(global: &Global, args: &BenchStream) -> Result {
    let config = load_of_bench(global)?;
    let mut file = args.html.as_deref().map(create_page).transpose()?;
    let mut out = std::io::stdout();
    let mut reports = Vec::new();
    for mode in &args.mode {
        let progress = ProgressBar::new_spinner().with_message(format!("{} runs", mode.workload().name));
        progress.enable_steady_tick(std::time::Duration::from_millis(100));
        let report = measure(global, &config, args, mode.workload())?;
        progress.finish_and_clear();
        if global.json {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
        } else {
            write!(out, "{}{report}", if reports.is_empty() { "" } else { "\n" })?;
        }
        reports.push(report);
    }
    if let (Some(file), Some(page)) = (&mut file, stream::page(&reports)) {
        file.write_all(page.render().as_bytes())?;
    }
    match reports.iter().find(|report| report.faults().any()) {
        Some(report) => {
            let faults = report.faults();
            let code = if faults.damaged + faults.repeated + faults.disordered > 0 { FAILED } else { LOST };
            Err(Failure::new(code, report.verdict()))
        }
        None => Ok(()),
    }
}

/// Measures one workload, with a separate broker unless a server is named.
fn measure(global: &Global, config: &Config, args: &BenchStream, workload: Workload) -> Result<StreamReport> {
    let mut plan = Plan {
        mode: workload.name.to_owned(),
        addresses: addresses(args.transport, config.server_address())?,
        settings: client_settings(config)?,
        topic: format!("bench-stream-{}", std::process::id()),
        // A consumer reads the log at its own pace, so all records are kept until the end.
        topic_settings: TopicSettings {
            partitions: args.partitions,
            retention_bytes: 0,
            retention_ms: 0,
            storage: args.storage,
            ..TopicSettings::default()
        },
        records: args.records.unwrap_or(workload.records),
        length: args.record_bytes.map_or(workload.length, Length::Fixed),
        batch: args.batch.unwrap_or(workload.batch),
        in_flight: args.in_flight.unwrap_or(workload.in_flight),
        acks: args.acks,
        rate: args.rate,
        consumer: match args.consumer {
            StreamConsumer::Together => Consumer::Together,
            StreamConsumer::After => Consumer::After,
            StreamConsumer::None => Consumer::Absent,
        },
        patience: PATIENCE,
        server_pid: args.server_pid,
    };
    let data = args.data.as_deref().map(Data::below);
    let spawned = match &global.server {
        Some(_) => None,
        None => Some(Spawned::start(&server_flags(global, &plan, data.as_ref().map(Data::path)))?),
    };
    if let Some(spawned) = &spawned {
        plan.addresses = addresses(args.transport, &spawned.native)?;
        plan.server_pid = Some(spawned.pid());
    }
    Ok(stream::run(&plan, this_program())?)
}

/// Returns the flags of the broker. A log in memory has room for the whole run, unless the options of this command set
/// its size.
fn server_flags(global: &Global, plan: &Plan, data: Option<&Path>) -> Vec<String> {
    let is_in_memory = data.is_none() || plan.topic_settings.storage == Storage::Memory;
    let room = is_in_memory.then(|| format!("memory_max={}", (plan.log_bytes() + (64 << 20)).max(1 << 30)));
    let data = data.map(|data| format!("data={}", data.display()));
    let set = room.into_iter().chain(data).flat_map(|pair| ["--set".to_owned(), pair]);
    set.chain(config_flags(global)).collect()
}
