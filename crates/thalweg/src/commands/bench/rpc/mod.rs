//! `thalweg bench rpc`: requests and responses over the service runtime, with the server and the load in two processes.

mod both;
mod child;
mod floor;
mod profile;

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ::bench::LoadAverage;
use ::bench::rpc::{HEAD_BYTES, LoadReport, Place, Plan, RpcServer, Secure, ServerSettings, Target, Trust};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::idle::raise_file_limit;
use super::this_program;
use crate::args::{self, BenchRpc, Global, RpcHalf, RpcLoad, RpcServe, RpcShape};
use crate::block_on;
use crate::output::{FAILED, Failure, Result, USAGE, note};
use profile::Start;

/// Interval at which a server prints its statistics.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);
/// Maximum size of the requests of one pipeline, in bytes.
const BATCH_BYTES_MAX: usize = 256 << 20;

pub fn run(global: &Global, args: BenchRpc) -> Result {
    if global.server.is_some() || !global.set.is_empty() {
        let why =
            "bench rpc runs without a broker: leave --server and --set out, and name a server as PORT or host:port";
        return Err(Failure::new(USAGE, why));
    }
    match args.half {
        Some(RpcHalf::Serve(args)) => serve(&args),
        Some(RpcHalf::Load(args)) => load(global, &args),
        None => both::run(global, &args.both),
    }
}

/// Returns the start settings of a server, from its profile and the options that override it, with notes on the
/// profile.
fn start(
    args: &args::RpcServer,
    bind: Option<SocketAddr>,
    response_bytes: Option<usize>,
) -> Result<(Start, Vec<String>)> {
    let mut start = Start::default();
    let notes = named_profile(args).map_or(Ok(Vec::new()), |path| start.read(path))?;
    let settings = &mut start.settings;
    if let Some(bind) = bind {
        settings.place = Place::Tcp(bind);
    }
    if let Some(path) = &args.unix {
        settings.place = Place::Unix(path.clone());
    }
    settings.is_tls |= args.tls || (args.tls_cert.is_some() && !args.quic);
    settings.is_quic |= args.quic;
    settings.certificate = args.tls_cert.clone().zip(args.tls_key.clone());
    settings.threads = args.server_threads.unwrap_or(settings.threads);
    settings.response_bytes = response_bytes.unwrap_or(settings.response_bytes);
    settings.service.telemetry.bytes &= !args.no_byte_metrics;
    settings.service.telemetry.durations |= args.durations;
    settings.shows_in_flight |= args.in_flight;
    start.check().map_err(|why| Failure::new(USAGE, why))?;
    Ok((start, notes))
}

/// Returns the profile, if the command line names one. The variable of the global option is ignored: it names the
/// configuration of a broker.
fn named_profile(args: &args::RpcServer) -> Option<&Path> {
    let mut words = std::env::args_os();
    let is_named = words.any(|word| word == "--config" || word.as_encoded_bytes().starts_with(b"--config="));
    args.profile.as_deref().filter(|_| is_named)
}

fn serve(args: &RpcServe) -> Result {
    let (start, notes) = start(&args.server, args.bind, args.response_bytes)?;
    if start.is_low_memory {
        keep_little_memory()?;
    }
    notes.iter().for_each(|text| note(text));
    raise_file_limit();
    block_on(serve_until_stopped(start.settings))
}

/// Replaces this process with a new one of this program, if its allocator would keep free memory. The allocator reads
/// its environment variables only once, on startup.
fn keep_little_memory() -> Result {
    let variables = [("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_ARENA_EAGER_COMMIT", "0")];
    let missing: Vec<_> = variables.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let error = Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).envs(missing).exec();
    Err(Failure::new(FAILED, format!("low_memory: cannot restart: {error}")))
}

async fn serve_until_stopped(settings: ServerSettings) -> Result {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let place = settings.place.clone();
    let server = RpcServer::start(settings).map_err(|error| {
        let at = if let Place::Tcp(address) = place { address.to_string() } else { place.to_string() };
        Failure::new(FAILED, format!("cannot serve at {at}: {error}"))
    })?;
    // The process that started this one may need only the port.
    say(&format!("listening {}", server.place()))?;
    let mut earlier = server.snapshot();
    let mut every = tokio::time::interval_at(tokio::time::Instant::now() + SNAPSHOT_EVERY, SNAPSHOT_EVERY);
    loop {
        tokio::select! {
            () = stop(&mut terminate, &mut interrupt) => break,
            _ = every.tick() => {
                let now = server.snapshot();
                note(&now.since(&earlier));
                earlier = now;
            }
        }
    }
    let served = tokio::select! {
        served = server.stop() => served,
        () = stop(&mut terminate, &mut interrupt) => {
            return Err(Failure::new(FAILED, "stopped before everything was finished"));
        }
    };
    say(&serde_json::to_string(&served)?)
}

/// Prints a line and flushes it, for the reader of the server's output.
fn say(line: &str) -> Result {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

async fn stop(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn load(global: &Global, args: &RpcLoad) -> Result {
    let plan = plan(target(global, args)?, &args.shape, args.response_bytes)?;
    let report = measure(&plan, None)?;
    let mut out = io::stdout();
    if global.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{report}")?;
    }
    check(&report)
}

/// Returns the server that the arguments name.
fn target(global: &Global, args: &RpcLoad) -> Result<Target> {
    if let Some(path) = &args.unix {
        return Ok(Target::Unix(path.clone()));
    }
    let place = if args.place.contains(':') { args.place.clone() } else { format!("127.0.0.1:{}", args.place) };
    let wrong = |why: String| Failure::new(USAGE, format!("{place}: {why}; write a port, or host:port"));
    let address = place.to_socket_addrs().map_err(|e| wrong(e.to_string()))?.next();
    let address = address.ok_or_else(|| wrong("the name does not resolve to an address".to_owned()))?;
    if !args.tls && !args.quic {
        return Ok(Target::Tcp(address));
    }
    let trust = match (&global.ca_file, args.tls_insecure) {
        (Some(path), _) => Trust::File(path.into()),
        (None, true) => Trust::Anyone,
        (None, false) => {
            let why = "no trusted certificate: name a --ca-file, or use --tls-insecure to accept any certificate";
            return Err(Failure::new(USAGE, why));
        }
    };
    let host = place.rsplit_once(':').map_or("", |(host, _)| host);
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let secure = Secure { address, name, trust };
    Ok(if args.quic { Target::Quic(secure) } else { Target::Tls(secure) })
}

fn plan(target: Target, shape: &RpcShape, response_bytes: usize) -> Result<Plan> {
    if shape.duration_secs == 0.0 {
        return Err(Failure::new(USAGE, "--duration-secs 0 measures nothing"));
    }
    let batch_bytes = shape.payload_bytes.saturating_add(HEAD_BYTES).saturating_mul(shape.pipeline);
    if batch_bytes > BATCH_BYTES_MAX {
        let why = format!("--pipeline times --payload-bytes is {batch_bytes} bytes, more than {BATCH_BYTES_MAX}");
        return Err(Failure::new(USAGE, why));
    }
    Ok(Plan {
        target,
        connections: shape.connections,
        pipeline: shape.pipeline,
        payload_bytes: shape.payload_bytes,
        response_bytes,
        duration: Duration::from_secs_f64(shape.duration_secs),
        warm_up: Duration::from_secs_f64(shape.warm_up_secs),
        threads: shape.threads,
        rate: shape.rate,
        is_one_write_per_request: shape.one_write_per_request,
    })
}

/// Runs a load. Its errors are printed here and counted in the report.
fn measure(plan: &Plan, server: Option<u32>) -> Result<LoadReport> {
    raise_file_limit();
    let before = LoadAverage::now();
    let outcome = ::bench::rpc::run(plan, server).map_err(|e| Failure::new(FAILED, e.to_string()))?;
    outcome.told.iter().for_each(|why| note(why));
    Ok(LoadReport::new(plan, &outcome, this_program(), before))
}

/// Fails if the run had errors, regardless of its other results.
fn check(report: &LoadReport) -> Result {
    if report.errors > 0 {
        return Err(Failure::new(FAILED, format!("{} connections broke or missed answers", report.errors)));
    }
    if report.requests == 0 {
        return Err(Failure::new(FAILED, "no request was answered"));
    }
    Ok(())
}
