//! `thalweg serve`: run a broker until a signal stops it.

mod stop;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::Door;
use cluster::identity::Identity;
use serde_json::json;
use thalweg::admission::{self, Admission};
use thalweg::config::Config;
use thalweg::{NodeServer, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Global, Serve};
use crate::load_without_context;
use crate::output::{FAILED, Failure, Result, USAGE};
use stop::Stop;

/// Number of threads in addition to the workers: for HTTP and all background work.
const BACKGROUND_THREADS: usize = 2;

pub fn run(global: &Global, args: &Serve) -> Result {
    let mut flags = Vec::new();
    flags.extend(args.profile.clone().map(|profile| ("profile", profile)));
    flags.extend(args.addresses.iter().map(|(door, address)| (door.key(), address.clone())));
    flags.extend(args.data.as_ref().map(|data| ("data", data.to_string_lossy().into_owned())));
    if args.insecure {
        flags.push(("insecure", "true".to_owned()));
    }
    let config = load_without_context(global, flags)?;
    start_log(&config)?;
    count_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(BACKGROUND_THREADS)
        .thread_name("background")
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(&config, args.ready_file.as_deref(), global.json));
    runtime.shutdown_background();
    result
}

async fn serve(config: &Config, ready_file: Option<&Path>, is_json: bool) -> Result {
    let mut stop = Stop::watch(config.server().shutdown_timeout)?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let server = Running::start(config).await?;
    if is_json {
        // As for the banner: a closed output must not prevent serving.
        writeln!(io::stdout(), "{}", ready(&server)).unwrap_or_default();
    } else {
        banner(config, &server);
    }
    if let Some(path) = ready_file {
        write_ready(path, &server)?;
    }
    // Without a terminal, a hangup signals that the certificates were renewed.
    let has_terminal = io::stdin().is_terminal();
    loop {
        tokio::select! {
            () = stop.asked() => break,
            () = server.until_removed() => break,
            Some(()) = hang_up.recv(), if !has_terminal => {
                tokio::task::block_in_place(|| server.reload_certificates());
            }
        }
    }
    let removed = server.removed(config);
    tracing::info!("shutting down; send a second signal to stop immediately");
    if server.shut_down().await {
        tracing::info!("stopped");
        removed.iter().for_each(|text| tracing::warn!("{text}"));
        return Ok(());
    }
    Err(Failure::new(FAILED, "stopped before everything was finished"))
}

/// A broker alone, or a node of a cluster.
enum Running {
    Alone(Box<Server>),
    Node(Box<NodeServer>),
}

impl Running {
    /// Starts a node if the data directory is one of a cluster, otherwise a broker alone.
    async fn start(config: &Config) -> Result<Self> {
        if let Some(data) = config.data()
            && let Some(identity) = Identity::load(&data)?
        {
            return Ok(Self::Node(Box::new(NodeServer::start(config, &data, identity).await?)));
        }
        for key in ["cluster", "cluster_status"] {
            if config.address(key)?.is_some() {
                let message = format!(
                    "{key} is set, but the data directory is not one of a node: run `thalweg cluster init` or `thalweg \
                     cluster join` first"
                );
                return Err(Failure::new(USAGE, message));
            }
        }
        let server = Server::start(config).await?;
        server.register_process_metrics();
        Ok(Self::Alone(Box::new(server)))
    }

    fn address(&self, door: Door) -> Option<SocketAddr> {
        match self {
            Self::Alone(server) => server.address(door),
            Self::Node(server) => server.address(door),
        }
    }

    /// Waits until the cluster has removed this node; for ever if the broker is none.
    async fn until_removed(&self) {
        match self {
            Self::Alone(_) => std::future::pending().await,
            Self::Node(server) => server.until_removed().await,
        }
    }

    /// Returns what to do if the cluster has removed this node.
    fn removed(&self, config: &Config) -> Option<String> {
        match self {
            Self::Node(server) if server.node().is_removed() => {
                Some(thalweg::removed(&config.data()?, server.node().identity()))
            }
            _ => None,
        }
    }

    fn reload_certificates(&self) {
        match self {
            Self::Alone(server) => server.reload_certificates(),
            Self::Node(server) => server.reload_certificates(),
        }
    }

    async fn shut_down(self) -> bool {
        match self {
            Self::Alone(server) => server.shut_down().await,
            Self::Node(server) => server.shut_down().await,
        }
    }
}

/// Prints the addresses for a person who starts a broker. A full or closed standard output must not prevent serving.
fn banner(config: &Config, server: &Running) {
    let mut out = io::stdout();
    let mut line = |text: &str| writeln!(out, "{text}").unwrap_or_default();
    let is_plain_allowed = config.server().allow_plain;
    let scheme = |address: SocketAddr| if address.ip().is_loopback() || is_plain_allowed { "http" } else { "https" };
    let shown = |door: Door, address: SocketAddr| match door.scheme() {
        Some("http") => format!("{}://{address}/", scheme(address)),
        _ => format!("{address}  {}", door.transports()),
    };
    line(&format!("thalweg {} ({} profile)", thalweg::VERSION, config.profile()));
    let doors = Admission::of_all(config, |door| server.address(door));
    let width = doors.iter().map(|of| shown(of.door, of.address).len()).max().unwrap_or_default();
    for of in &doors {
        let (key, address) = (of.door.key(), shown(of.door, of.address));
        line(&format!("  {key:<7} {address:<width$}  TLS {}, login: {}", of.tls(), of.login()));
        if let Some(path) = &of.unix {
            line(&format!("          unix:{}", path.display()));
        }
    }
    if let Running::Node(node) = server {
        let identity = node.node().identity();
        let (own, cluster) = (identity.node(), identity.cluster());
        line(&format!("  node    {own} of the cluster {cluster:032x}, for other nodes at {}", identity.advertise()));
        if let Some(address) = node.status_address() {
            line(&format!("  status  http://{address}/readyz for this node alone, and /metrics"));
        }
    }
    // The address was checked when the configuration was read.
    if let Ok(Some(address)) = config.address("mesh") {
        line(&format!("  mesh    {address}  UDP, for other sites; see thalweg mesh status"));
    }
    match config.data() {
        Some(data) => line(&format!("  data    {}", data.display())),
        None => line("  data    in memory only: a restart loses all data"),
    }
    line(&match config.server().identity {
        Some((certificate, _)) => format!("  tls     certificate of {}", certificate.display()),
        None => "  tls     generated certificate; set tls_cert and tls_key for one that clients can verify".to_owned(),
    });
    for exempt in admission::exemptions(&doors) {
        line(&format!("  exempt  {exempt}"));
    }
    line("Stop with Ctrl-C.");
}

/// Returns the process id and the addresses as JSON, for programs.
fn ready(server: &Running) -> serde_json::Value {
    let address = |door: Door| (door.key().to_owned(), json!(server.address(door).map(|address| address.to_string())));
    let pid = ("pid".to_owned(), json!(std::process::id()));
    std::iter::once(pid).chain(Door::ALL.into_iter().map(address)).collect()
}

/// Writes the ready file completely or not at all, so that no reader sees a part of it.
fn write_ready(path: &Path, server: &Running) -> Result {
    let partial = path.with_extension("partial");
    let wrap = |e: io::Error| Failure::new(FAILED, format!("cannot write the ready file {}: {e}", path.display()));
    std::fs::write(&partial, ready(server).to_string()).map_err(wrap)?;
    std::fs::rename(&partial, path).map_err(wrap)
}

pub fn start_log(config: &Config) -> Result {
    let (filter, is_json) = config.log();
    let targets = log_targets(filter)
        .map_err(|e| Failure::new(USAGE, format!("log = {filter}: {e}; write a level, or target=level,...")))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written must not stop the broker.
        .log_internal_errors(false);
    let lines = if is_json { lines.json().boxed() } else { lines.boxed() };
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    Ok(())
}

/// Parses the filter of the log: levels, and targets with levels.
fn log_targets(filter: &str) -> Result<Targets, String> {
    let parts: Vec<&str> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    for part in &parts {
        let (target, level) = part.split_once('=').unwrap_or(("", part));
        // The parser takes no level for errors only.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(format!("'{level}' is not a level (error, warn, info, debug, trace or off)"));
        }
        if !is_name(target) {
            return Err(format!("'{target}' is not a target"));
        }
    }
    parts.join(",").parse().map_err(|e: ParseError| e.to_string())
}

/// Writes panics to the log of the broker. A panic ends its task, but not the broker.
fn count_panics() {
    static IS_PANICKING: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|info| {
        // Logging may panic, too.
        if !IS_PANICKING.swap(true, Ordering::Relaxed) {
            tracing::error!(panic = %info, "a task ended with a panic; this is a defect, please report it");
            IS_PANICKING.store(false, Ordering::Relaxed);
        }
    }));
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_log_is_filtered_by_level_and_target() {
        let takes = |filter: &str, target: &str, level: Level| {
            log_targets(filter).map(|targets| targets.would_enable(target, &level)).map_err(|_| ())
        };
        assert_eq!(takes("info", "net::access", Level::INFO), Ok(true));
        assert_eq!(takes("info", "net::access", Level::DEBUG), Ok(false));
        assert_eq!(takes("info, net=debug,", "net::access", Level::DEBUG), Ok(true));
        assert_eq!(takes("info,broker=debug", "net::access", Level::DEBUG), Ok(false));
        assert_eq!(takes("off", "net::access", Level::ERROR), Ok(false));
        for refused in ["loud", "net=loud", "net=", "=", "[span]=debug", "net[{peer}]=debug", "net debug", "net"] {
            assert_eq!(takes(refused, "net", Level::INFO), Err(()), "{refused}");
        }
    }
}
