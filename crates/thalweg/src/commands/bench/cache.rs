//! `thalweg bench cache`: puts and gets of a cache, row by row.

use std::io::Write;

use ::bench::cache::{self, LADDER, Operation, Plan, Row};
use client::{CacheSettings, ClientSettings};
use thalweg::config::Config;

use super::{Data, addresses, config_flags, create_page, load_of_bench, this_program};
use crate::args::{BenchCache, CacheOperation, Global};
use crate::commands::client_settings;
use crate::commands::spawned::Spawned;
use crate::output::{FAILED, Failure, Result};

pub fn run(global: &Global, args: &BenchCache) -> Result {
    let config = load_of_bench(global)?;
    let mut page = args.html.as_deref().map(create_page).transpose()?;
    // Dropped after the broker. Dropping it removes the directory.
    let data = args.data.as_deref().map(Data::below);
    let spawned = match &global.server {
        Some(_) => None,
        None => Some(Spawned::start(&server_flags(global, &config, args.streams, data.as_ref()))?),
    };
    let server = spawned.as_ref().map_or(config.server_address(), |spawned| &spawned.native);
    let plan = Plan {
        addresses: addresses(args.transport, server)?,
        settings: ClientSettings {
            cache_conn_pool: args.connections,
            cache_streams_per_conn: args.streams,
            ..client_settings(&config)?
        },
        cache: format!("bench-{}", std::process::id()),
        cache_settings: CacheSettings { is_durable: args.durable, ..CacheSettings::default() },
        rows: rows(args),
        keys: args.keys,
        samples: args.samples,
        warm_up: args.warm_up,
        rounds: args.rounds,
        threads: args.threads,
        server_pid: spawned.as_ref().map(Spawned::pid).or(args.server_pid),
    };
    let report = cache::run(&plan, this_program())?;
    if let Some(file) = &mut page {
        file.write_all(report.page().render().as_bytes())?;
    }
    let mut out = std::io::stdout();
    if global.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{report}")?;
    }
    match report.faults().count() {
        0 => Ok(()),
        _ => Err(Failure::new(FAILED, report.verdict())),
    }
}

fn rows(args: &BenchCache) -> Vec<Row> {
    let operation = |operation: &CacheOperation| match operation {
        CacheOperation::Put => Operation::Put,
        CacheOperation::GetHit => Operation::GetHit,
        CacheOperation::GetMiss => Operation::GetMiss,
    };
    let operations: Vec<Operation> = args.operation.iter().map(operation).collect();
    let one = [args.concurrency];
    Row::all(&operations, &args.value_bytes, if args.ladder { &LADDER } else { &one })
}

/// Returns the flags of the broker. It serves all streams concurrently, unless the options of this command override
/// that.
fn server_flags(global: &Global, config: &Config, streams: usize, data: Option<&Data>) -> Vec<String> {
    let workers = config.broker().pub_workers_per_conn.max(streams);
    let data = data.map(|data| format!("data={}", data.path().display()));
    let set = [format!("pub_workers_per_conn={workers}")].into_iter().chain(data);
    set.flat_map(|pair| ["--set".to_owned(), pair]).chain(config_flags(global)).collect()
}
