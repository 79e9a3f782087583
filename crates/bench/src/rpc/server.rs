//! Server of the benchmark: answers every request with the same bytes, on the public service runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::quic::{self, Windows};
use net::service::{Timeouts, layer};
use net::shutdown::Ended;
use net::telemetry::{Telemetry, Totals};
use net::tls::Identity;
use net::{Address, ConnectionLimits, Connections, Listener, Plaintext, Server, Service, ServiceSettings};
use net::{Shutdown, Workers};
use serde::{Deserialize, Serialize};

use super::{ALPN, HEAD_BYTES, Rpc};
use crate::process::CpuTime;
use crate::report::rate;

/// Limits of a QUIC connection. Less data is in flight than fits into the usual buffer of a UDP socket.
pub(super) const WINDOWS: Windows = Windows {
    connection_receive: 4 << 20,
    stream_receive: 4 << 20,
    send: 4 << 20,
    bidirectional_streams: 16,
    unidirectional_streams: 0,
};

const BODY_BYTES_MAX: usize = 16 << 20;
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Listening address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP address; port 0 selects a free one.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Short form for clients: the port, or the path.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{}", address.port()),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub place: Place,
    /// `true` if TCP connections use TLS only.
    pub is_tls: bool,
    /// `true` if the server also listens for QUIC on the same port.
    pub is_quic: bool,
    /// PEM files of a certificate and its key; without them a certificate is generated if one is needed.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Number of threads that serve.
    pub threads: usize,
    pub response_bytes: usize,
    pub connections: ConnectionLimits,
    pub service: ServiceSettings,
    /// `true` if the number of requests in flight is shown.
    pub shows_in_flight: bool,
    /// Maximum time to finish pending requests when stopped.
    pub shutdown_timeout: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            place: Place::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7878)),
            is_tls: false,
            is_quic: false,
            certificate: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            response_bytes: 64,
            connections: ConnectionLimits::default(),
            service: ServiceSettings {
                frame_bytes_max: HEAD_BYTES + BODY_BYTES_MAX,
                body_bytes_max: BODY_BYTES_MAX as u64,
                // A client without a request waits for others to connect, or for its turn in a schedule.
                timeouts: Timeouts { first_frame: IDLE_TIMEOUT, idle: Some(IDLE_TIMEOUT), ..Timeouts::default() },
                ..ServiceSettings::default()
            },
            shows_in_flight: false,
            shutdown_timeout: Duration::from_secs(3),
        }
    }
}

/// Running server.
pub struct RpcServer {
    settings: ServerSettings,
    place: Place,
    /// Dropped last: this ends the threads.
    workers: Arc<Workers>,
    telemetry: Arc<Telemetry>,
    connections: Arc<Connections>,
    shutdown: Shutdown,
    /// CPU time of the startup, which is excluded from the costs of the service.
    began: Option<CpuTime>,
}

impl RpcServer {
    /// Starts to serve. Must be called in a runtime: its thread accepts connections, and the workers do the rest.
    pub fn start(settings: ServerSettings) -> io::Result<Self> {
        let workers = Arc::new(Workers::start(settings.threads)?);
        // Leaked intentionally: copies of the response then need no reference counting.
        let body = Bytes::from_static(vec![b'a'; settings.response_bytes].leak());
        let handler = layer::from_fn::<Rpc, _>(move |_request: &[u8]| body.clone());
        let service = Service::new(Rpc, handler, settings.service);
        let telemetry = service.telemetry.clone();
        let connections = Connections::new(settings.connections);
        let shutdown = Shutdown::default();
        let server = Server::start(service, &workers, connections.clone(), &shutdown);
        let place = listen(&settings, &server, &workers)?;
        Ok(Self { settings, place, workers, telemetry, connections, shutdown, began: CpuTime::own() })
    }

    /// Returns the listening address, with the actual port.
    pub fn place(&self) -> &Place {
        &self.place
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            totals: self.telemetry.totals(),
            durations: self.telemetry.durations().buckets.into_iter().collect(),
            shows_bytes: self.telemetry.settings.bytes,
            shows_in_flight: self.settings.shows_in_flight,
        }
    }

    /// Finishes pending requests, and returns the final counts.
    pub async fn stop(self) -> Served {
        let ended = self.shutdown.run(self.settings.shutdown_timeout).await;
        let cost = CpuTime::own().unwrap_or_default().since(self.began.unwrap_or_default());
        self.served(ended, cost)
    }

    fn served(&self, ended: Ended, cost: CpuTime) -> Served {
        let Snapshot { totals, durations, shows_bytes, shows_in_flight, .. } = self.snapshot();
        Served {
            server: "thalweg".to_owned(),
            threads: self.workers.len(),
            requests: totals.requests_completed,
            user_seconds: cost.user.as_secs_f64(),
            sys_seconds: cost.system.as_secs_f64(),
            connections: totals.connections_opened,
            connections_refused: self.connections.refused(),
            requests_refused: totals.requests_refused,
            timeouts: totals.timeouts,
            faults: totals.faults,
            panics: totals.panics,
            cut_off: ended.aborted,
            bytes_read: shows_bytes.then_some(totals.bytes_read),
            bytes_written: shows_bytes.then_some(totals.bytes_written),
            requests_in_flight: shows_in_flight.then_some(totals.requests_in_flight()),
            duration_us_p50: quantile_us(&durations, 0.5),
            duration_us_p99: quantile_us(&durations, 0.99),
        }
    }
}

fn listen(settings: &ServerSettings, server: &Server, workers: &Workers) -> io::Result<Place> {
    let at = match &settings.place {
        Place::Unix(path) => {
            server.listen(Listener::unix(path)?)?;
            return Ok(settings.place.clone());
        }
        Place::Tcp(at) => *at,
    };
    let identity = match &settings.certificate {
        _ if !settings.is_tls && !settings.is_quic => None,
        Some((certificate, key)) => Some(Identity::from_pem(certificate, key)?),
        None => Some(Identity::self_signed(vec!["localhost".to_owned(), at.ip().to_string()])?),
    };
    let mut listener = Listener::tcp(at)?;
    if let (true, Some(identity)) = (settings.is_tls, &identity) {
        listener = listener.with_tls(identity.server_config(&[])?, Plaintext::Refused);
    }
    let Address::Tcp(at) = server.listen(listener)? else {
        return Err(io::Error::other("a TCP listener requires a TCP address"));
    };
    if let (true, Some(identity)) = (settings.is_quic, &identity) {
        let config = quic::server_config(identity.server_config(&[ALPN])?)?;
        server.listen(Listener::quic(at, config, WINDOWS, workers.len(), workers)?)?;
    }
    Ok(Place::Tcp(at))
}

/// Counters of a server so far. `Display` shows the counts, and [`Snapshot::since`] the rates.
pub struct Snapshot {
    at: Instant,
    totals: Totals,
    /// Number of requests by the upper bound of their duration, in nanoseconds.
    durations: BTreeMap<u64, u64>,
    shows_bytes: bool,
    shows_in_flight: bool,
}

impl Snapshot {
    /// Returns the changes since an earlier snapshot, in one line.
    pub fn since(&self, earlier: &Self) -> String {
        let seconds = (self.at - earlier.at).as_secs_f64().max(f64::MIN_POSITIVE);
        let now = &self.totals;
        let then = &earlier.totals;
        let done = now.requests_completed - then.requests_completed;
        let mut line = format!(
            "requests {} ({}), connections {} of {}",
            now.requests_completed,
            rate(done as f64 / seconds),
            now.connections(),
            now.connections_opened
        );
        if self.shows_in_flight {
            line += &format!(", in flight {}", now.requests_in_flight());
        }
        if self.shows_bytes {
            let megabytes = |now: u64, then: u64| (now - then) as f64 / seconds / 1e6;
            let read = megabytes(now.bytes_read, then.bytes_read);
            let written = megabytes(now.bytes_written, then.bytes_written);
            line += &format!(", read {read:.1} MB/s, written {written:.1} MB/s");
        }
        let count = |(bound, n): (&u64, &u64)| (*bound, n - earlier.durations.get(bound).unwrap_or(&0));
        let durations = self.durations.iter().map(count).collect();
        if let (Some(p50), Some(p99)) = (quantile_us(&durations, 0.5), quantile_us(&durations, 0.99)) {
            line += &format!(", took p50 {p50:.1} us, p99 {p99:.1} us");
        }
        let rare = [
            ("refused", now.requests_refused),
            ("timeouts", now.timeouts),
            ("faults", now.faults),
            ("panics", now.panics),
        ];
        for (name, count) in rare.into_iter().filter(|(_, count)| *count > 0) {
            line += &format!(", {name} {count}");
        }
        line
    }
}

/// Returns the upper bound of the bucket that contains this quantile.
fn quantile_us(durations: &BTreeMap<u64, u64>, part: f64) -> Option<f64> {
    let total: u64 = durations.values().sum();
    let rank = (total as f64 * part) as u64;
    let mut below = 0;
    durations.iter().find_map(|(bound, count)| {
        below += count;
        (below > rank).then_some(*bound as f64 / 1e3)
    })
}

/// Final counts of a server when it is stopped, as it prints them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    pub server: String,
    pub threads: usize,
    pub requests: u64,
    /// CPU time of the process in user mode, in seconds since the server began to listen.
    pub user_seconds: f64,
    /// CPU time of the process in the kernel, in seconds since the server began to listen.
    pub sys_seconds: f64,
    /// Connections that were opened.
    pub connections: u64,
    pub connections_refused: u64,
    pub requests_refused: u64,
    pub timeouts: u64,
    pub faults: u64,
    pub panics: u64,
    /// Connections that were closed because they were not finished in time.
    pub cut_off: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_read: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_written: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_in_flight: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us_p50: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us_p99: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at: Instant, totals: Totals, durations: &[(u64, u64)]) -> Snapshot {
        let durations = durations.iter().copied().collect();
        Snapshot { at, totals, durations, shows_bytes: true, shows_in_flight: true }
    }

    #[test]
    fn a_snapshot_contains_counts_and_rates_per_second() {
        let at = Instant::now();
        let then =
            Totals { requests_started: 1000, requests_completed: 1000, bytes_read: 5_000_000, ..Totals::default() };
        let now = Totals {
            requests_started: 21_002,
            requests_completed: 21_000,
            connections_opened: 5,
            connections_closed: 1,
            bytes_read: 25_000_000,
            faults: 3,
            ..Totals::default()
        };
        let earlier = snapshot(at, then, &[(1000, 900)]);
        let later = snapshot(at + Duration::from_secs(2), now, &[(1000, 901), (2000, 99), (4000, 1)]);
        assert_eq!(
            later.since(&earlier),
            "requests 21000 (10.0 k/s), connections 4 of 5, in flight 2, read 10.0 MB/s, written 0.0 MB/s, \
             took p50 2.0 us, p99 2.0 us, faults 3"
        );
    }
}
