//! `thalweg bench rpc`: requests and responses over the service runtime, the server and the load in two processes.

use std::io::{self, Write};
use std::time::Duration;

use ::bench::rpc::{Place, RpcServer, ServerSettings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::idle::raise_file_limit;
use crate::args::{self, BenchRpc, RpcHalf, RpcServe};
use crate::block_on;
use crate::output::{FAILED, Failure, Result, note};

/// How often a server says what it has done.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);

pub fn run(args: BenchRpc) -> Result {
    match args.half {
        RpcHalf::Serve(args) => serve(&args),
    }
}

/// The settings of a server that is started with these arguments.
fn server_settings(args: &args::RpcServer) -> ServerSettings {
    let mut settings = ServerSettings::default();
    if let Some(path) = &args.unix {
        settings.place = Place::Unix(path.clone());
    }
    settings.is_tls = args.tls || (args.tls_cert.is_some() && !args.quic);
    settings.is_quic = args.quic;
    settings.certificate = args.tls_cert.clone().zip(args.tls_key.clone());
    if let Some(threads) = args.server_threads {
        settings.shards = threads;
    }
    if args.no_byte_metrics {
        settings.service.telemetry.bytes = false;
    }
    settings.service.telemetry.durations |= args.durations;
    settings.shows_in_flight |= args.in_flight;
    settings
}

fn serve(args: &RpcServe) -> Result {
    let mut settings = server_settings(&args.server);
    if let Some(bind) = args.bind {
        settings.place = Place::Tcp(bind);
    }
    if let Some(bytes) = args.response_bytes {
        settings.response_bytes = bytes;
    }
    raise_file_limit();
    block_on(serve_until_stopped(settings))
}

async fn serve_until_stopped(settings: ServerSettings) -> Result {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let place = settings.place.clone();
    let server = RpcServer::start(settings).map_err(|error| {
        let at = if let Place::Tcp(address) = place { address.to_string() } else { place.to_string() };
        Failure::new(FAILED, format!("cannot serve at {at}: {error}"))
    })?;
    // Whoever started this may only want the port.
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

/// A line for whoever reads the output of a server, at once.
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
