//! Server: workers, a broker and its doors, wired from top to bottom.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::metrics::{Collect, Exposition};
use broker::{Broker, ClientCertificate, Door};
use doors::{Opened, Opening};
use mesh::Site;
use net::telemetry::Telemetry;
use net::tls::ClientAuth;
use net::{ConnectionLimits, Connections, Drain, Forward, Gate, Shutdown, Sockets, Workers};
use storage::journal::recover::Progress;
use storage::{RealDisk, Store, StoreSettings, StoredTopic};

use crate::admin_token::AdminTokenFile;
use crate::admission;
use crate::config::Config;
use crate::connections::Table;
use crate::door_table::{Common, row};
use crate::issuer;
use crate::otlp::{self, OtlpSettings};
use crate::ports;
use crate::process::{Process, Starting};
use crate::restore::restore;

/// Interval between checks of the certificate files. A check costs one system call per file.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(5);
/// Interval at which they are checked if clients have certificates, which end with their revocation.
const CLIENT_CERTIFICATES_EVERY: Duration = Duration::from_millis(500);
/// Interval between log lines on the progress of a long recovery.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Settings of the server itself, in addition to those of its broker.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Maximum number of open connections at each door.
    pub connections_max: usize,
    /// Maximum number of connections from one address at each door.
    pub connections_per_peer_max: usize,
    /// Maximum number of connections from one address of another machine at each door.
    pub connections_per_remote_peer_max: usize,
    /// Time limit for the handshake of a connection, including its login if required.
    pub hello_timeout: Duration,
    /// Time limit for finishing pending work at shutdown.
    pub shutdown_timeout: Duration,
    /// Certificate file and private key file.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Admission of clients by their certificates.
    pub client_auth: Option<ClientAuth>,
    /// `true` if other machines may connect without TLS.
    pub allow_plain: bool,
}

/// Running server, with all its doors, inside the program that started it.
///
/// Tests start a server on free ports and point the clients of their program at it:
///
/// ```no_run
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use thalweg::config::Config;
/// use thalweg::{Door, Server};
///
/// let server = Server::start(&Config::builder().free_ports().build()?).await?;
/// let kafka = server.address(Door::Kafka).expect("the door is open");
/// println!("bootstrap.servers={kafka}");
/// server.shut_down().await;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    /// Broker that the doors share, for operations that clients do not offer.
    pub broker: Arc<Broker>,
    process: Arc<Process>,
    shutdown: Shutdown,
    shutdown_timeout: Duration,
    /// Functions that serve connections which another process has accepted, by the number of the door.
    forwards: BTreeMap<u8, Forward>,
    gate: Option<Arc<dyn Gate>>,
    admin_token: Option<AdminTokenFile>,
    mesh: Arc<Site>,
}

impl Server {
    /// Starts the server. Returns once every door accepts connections.
    pub async fn start(config: &Config) -> io::Result<Self> {
        let starting = Starting::new(config)?;
        let broker = start_broker(config, starting.workers())?;
        restore(config, &broker).await?;
        Self::open(config, Arc::new(starting.bind(config).await?), broker, None).await
    }

    /// Opens the doors of a process for a broker that is restored. `gate`: permission to answer, if the broker may lose
    /// it at any moment.
    pub(crate) async fn open(
        config: &Config,
        process: Arc<Process>,
        broker: Arc<Broker>,
        gate: Option<Arc<dyn Gate>>,
    ) -> io::Result<Self> {
        let settings = config.server();
        let mesh = Site::new(&broker, config.mesh().map_err(io::Error::other)?);
        broker.set_mesh(mesh.clone()).map_err(io::Error::other)?;
        let mut server = Self {
            broker,
            process,
            shutdown: Shutdown::default(),
            shutdown_timeout: settings.shutdown_timeout,
            forwards: BTreeMap::new(),
            gate,
            admin_token: None,
            mesh,
        };
        let every = if settings.client_auth.is_some() { CLIENT_CERTIFICATES_EVERY } else { CERTIFICATES_EVERY };
        tokio::spawn(server.process.tls.clone().watch(every, server.drain()));
        server.check_certificates();
        server.register_certificate_metrics();
        if let Some((_, source)) = config.issuer().map_err(io::Error::other)? {
            issuer::read_file(&source, &server.broker)?;
            tokio::spawn(issuer::follow(source, server.broker.clone(), server.drain()));
        }
        if let Some((endpoint, every)) = config.otlp() {
            let otlp = OtlpSettings::parse(endpoint, every)?;
            tokio::spawn(otlp::run(otlp, server.broker.clone(), server.drain()));
            if server.broker.traces().is_on() {
                let otlp = OtlpSettings::parse_for_traces(endpoint, every)?;
                tokio::spawn(otlp::traces::run(otlp, server.broker.clone(), server.drain()));
            }
        }
        server.open_doors(config, &settings).await?;
        server.resume_mesh();
        admission::register(config, &server);
        if server.gate.is_none() {
            server.write_admin_token(config);
        }
        Ok(server)
    }

    /// Ends everything at once: nothing more is answered, and nothing of the broker is left soon after.
    pub(crate) async fn cut(self) {
        self.mesh.stop();
        let broker = self.broker.clone();
        let stopped = tokio::task::spawn_blocking(move || broker.stop()).await;
        if let Err(error) = stopped.map_err(io::Error::other).and_then(|stopped| stopped.map_err(io::Error::other)) {
            tracing::debug!(%error, "a broker was cut off");
        }
        self.shutdown.abort();
        self.shutdown.run(Duration::ZERO).await;
    }

    /// Returns the functions that serve connections which another process has accepted, by the number of the door.
    pub(crate) fn forwards(&self) -> &BTreeMap<u8, Forward> {
        &self.forwards
    }

    /// Returns the token with which the command line administers the broker, if it needs one.
    pub(crate) fn admin_token(&self, config: &Config) -> io::Result<Option<&str>> {
        if !config.is_login_required() && !config.bool("authorization") {
            return Ok(None);
        }
        self.broker.security.admin_token().map(Some).map_err(io::Error::other)
    }

    /// Writes the token with which the command line on this machine administers the broker, if it needs one.
    fn write_admin_token(&mut self, config: &Config) {
        let Some(native) = self.address(Door::Native) else { return };
        let created = match self.admin_token(config) {
            Ok(None) => return,
            Ok(Some(token)) => AdminTokenFile::create(native, token, &[]),
            Err(error) => Err(error),
        };
        match created {
            Ok(file) => self.admin_token = Some(file),
            Err(error) => tracing::warn!(
                %error,
                "cannot write the administrator's token: the command line on this machine has to log in as a user"
            ),
        }
    }

    /// Opens every door over its sockets. The doors know the addresses of all of them before the first one opens:
    /// pushed messages must not reach any door.
    async fn open_doors(&mut self, config: &Config, settings: &ServerSettings) -> io::Result<()> {
        let process = self.process.clone();
        let sockets = process.sockets();
        for (door, sockets) in &sockets {
            self.broker.doors().opened(*door, sockets.address());
        }
        for (door, sockets) in &sockets {
            let opened = self.open_door(*door, sockets, config, settings).await;
            let forward = opened.map_err(|error| ports::at(*door, sockets.address(), &error))?;
            self.forwards.insert(*door as u8, forward);
        }
        Ok(())
    }

    async fn open_door(
        &self,
        door: Door,
        sockets: &Sockets,
        config: &Config,
        settings: &ServerSettings,
    ) -> io::Result<Forward> {
        let common = Common::new(config, Some(self.process.tls.clone()));
        let closed = (row(door).settings)(config, common).map_err(io::Error::other)?;
        let opened = closed.open(Opening {
            broker: self.broker.clone(),
            workers: self.process.workers(),
            sockets,
            connections: self.connections(door, settings),
            shutdown: &self.shutdown,
            tls: &self.process.tls,
            gate: self.gate.clone(),
        });
        let Opened { telemetry, forward, .. } = opened.await?;
        if let Some(telemetry) = telemetry {
            self.show(door.key(), telemetry);
        }
        Ok(forward)
    }

    /// Returns the bound address of a door; `None` if it is off.
    pub fn address(&self, door: Door) -> Option<SocketAddr> {
        self.broker.doors().address(door)
    }

    /// Adds the counters of a service to the broker's metrics.
    fn show(&self, door: &'static str, telemetry: Arc<Telemetry>) {
        self.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
            let totals = telemetry.totals();
            let name = |what: &str| format!("thalweg_{door}_{what}");
            out.counter(&name("requests"), "Requests started", totals.requests_started)?;
            out.counter(&name("requests_completed"), "Requests answered", totals.requests_completed)?;
            out.counter(&name("requests_refused"), "Requests refused at a limit", totals.requests_refused)?;
            out.counter(
                &name("turns_waited"),
                "Heavy turns that waited for those of other connections",
                totals.turns_waited,
            )?;
            out.counter(&name("messages"), "Requests without a response", totals.messages)?;
            out.counter(&name("read_bytes"), "Bytes read from connections", totals.bytes_read)?;
            out.counter(&name("written_bytes"), "Bytes written to connections", totals.bytes_written)?;
            out.counter(&name("faults"), "Connections closed because of the data they sent", totals.faults)?;
            out.counter(&name("timeouts"), "Connections and requests that exceeded a timeout", totals.timeouts)?;
            out.counter(&name("panics"), "Connections closed by a defect of the broker", totals.panics)
        })));
    }

    /// Creates the connection limits of a door, and adds its connections to the metrics.
    fn connections(&self, of: Door, settings: &ServerSettings) -> Arc<Connections> {
        let door = of.key();
        let connections = Connections::new(ConnectionLimits {
            per_peer_max: settings.connections_per_peer_max,
            per_remote_peer_max: settings.connections_per_remote_peer_max,
            ..ConnectionLimits::up_to(settings.connections_max)
        });
        self.broker.open_connections().open(Arc::new(Table { door: of, connections: connections.clone() }));
        let shown = connections.clone();
        let limited = connections.clone();
        let configured = (settings.connections_max as u64, settings.connections_per_peer_max as u64);
        self.broker.connection_limits().open(configured, move |all, per_peer| {
            let size = |count| usize::try_from(count).unwrap_or(usize::MAX);
            limited.set_max(size(all), size(per_peer));
        });
        self.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
            let name = |what: &str| format!("thalweg_{door}_connections{what}");
            out.gauge(&name(""), "Open connections", shown.open() as u64)?;
            out.gauge(&name("_max"), "Maximum number of open connections", shown.max() as u64)?;
            out.counter(&name("_refused"), "Connections refused at a limit", shown.refused())?;
            let by_limit = shown.refused_by_limit().map(|(limit, count)| (limit.to_owned(), count));
            out.counters(&name("_refused_by_limit"), "Connections refused, by limit", "limit", &by_limit)
        })));
        connections
    }

    /// Links the site of the broker with the others of its mesh, if it is in one.
    fn resume_mesh(&self) {
        let (mesh, mut drain) = (self.mesh.clone(), self.drain());
        tokio::spawn(async move { drain.or_begun(mesh.resume()).await });
    }

    /// Returns the bound address at which other sites of the mesh reach this one; `None` if it is in no mesh, or only
    /// dials out.
    pub fn mesh_address(&self) -> Option<SocketAddr> {
        self.mesh.address()
    }

    /// Returns a guard, which the shutdown of this server waits for.
    pub fn drain(&self) -> Drain {
        self.shutdown.drain()
    }

    /// Reads the certificate files again, even if they are unchanged.
    pub fn reload_certificates(&self) {
        self.process.reload_certificates();
    }

    /// Ends what clients do whose certificates are no longer accepted.
    fn check_certificates(&self) {
        let tls = self.process.tls.clone();
        let is_admitted = move |of: &ClientCertificate| tls.admits(of.chain.iter().map(AsRef::as_ref));
        self.broker.security.set_certificate_check(Box::new(is_admitted));
        let security = Arc::downgrade(&self.broker.security);
        self.process.tls.observe_clients(move || {
            if let Some(security) = security.upgrade() {
                security.certificates_changed();
            }
        });
    }

    fn register_certificate_metrics(&self) {
        let tls = self.process.tls.clone();
        self.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
            let expiry = tls.expires_at().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            out.counter("thalweg_tls_reloads", "Activations of new certificates", tls.reloads())?;
            out.counter("thalweg_tls_reload_errors", "Certificate files that could not be used", tls.failed_reloads())?;
            out.gauge(
                "thalweg_tls_certificate_expiry_timestamp_seconds",
                "Expiry time of the active certificate, in seconds since 1970",
                expiry,
            )
        })));
    }

    /// Adds the state of the process and its listeners to the broker's metrics.
    pub fn register_process_metrics(&self) {
        let workers = Arc::downgrade(self.process.workers());
        began_s();
        let collect = move |out: &mut Exposition<'_>| expose_process(&workers, out);
        self.broker.register(Box::new(Collect(collect)));
    }

    /// Finishes requests in flight, within the deadline. Returns `false` if some were cut off, or if the broker did not
    /// stop cleanly.
    pub async fn shut_down(self) -> bool {
        self.process.close_sockets();
        self.mesh.stop();
        let ended = self.shutdown.run(self.shutdown_timeout).await;
        let broker = self.broker.clone();
        let stopped = tokio::task::spawn_blocking(move || broker.stop()).await;
        let is_safe = stopped.map_err(io::Error::other).and_then(|stopped| stopped.map_err(io::Error::other));
        if let Err(error) = &is_safe {
            tracing::error!(%error, "the data directory was not closed cleanly; the journal has all data");
        }
        ended.is_clean() && is_safe.is_ok()
    }
}

/// Returns the time of the first call, at the start of the server, in seconds since 1970.
fn began_s() -> f64 {
    static BEGAN: OnceLock<f64> = OnceLock::new();
    *BEGAN.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()))
}

/// Writes the metrics of the process.
pub(crate) fn expose_process(workers: &Weak<Workers>, out: &mut Exposition<'_>) -> fmt::Result {
    let accept = net::accept::stats();
    out.counter(
        "thalweg_accepted_connections",
        "TCP connections accepted from the system",
        accept.accepted.load(Ordering::Relaxed),
    )?;
    out.counter("thalweg_accept_errors", "Failed accept calls", accept.failed.load(Ordering::Relaxed))?;
    out.counter(
        "thalweg_accept_shed",
        "Connections closed because no file descriptor was left",
        accept.shed.load(Ordering::Relaxed),
    )?;
    out.gauge(
        "thalweg_outbox_bytes_high_water",
        "Maximum number of unsent bytes of one connection so far",
        net::outbox::bytes_high_water(),
    )?;
    if let Some(workers) = workers.upgrade() {
        let rows: Vec<_> = workers.loads().into_iter().enumerate().map(|(i, n)| (i.to_string(), n as u64)).collect();
        out.gauges("thalweg_worker_connections", "Connections of each worker thread", "worker", &rows)?;
    }
    let build = [[crate::VERSION.to_owned(), crate::COMMIT.to_owned()]];
    out.facts("thalweg_build", "Version and commit of this program", ["version", "commit"], &build)?;
    out.gauge_f64("process_start_time_seconds", "Start time of the server, in seconds since 1970", began_s())?;
    if let Some(usage) = process_usage() {
        out.gauge("process_resident_memory_bytes", "Resident memory", usage.resident_bytes)?;
        out.counter_f64("process_cpu_seconds", "CPU time, user and system", usage.cpu_seconds)?;
        out.gauge("process_open_fds", "Open file descriptors", usage.open_files)?;
        out.gauge("process_max_fds", "Maximum number of open file descriptors", usage.files_max.min(i64::MAX as u64))?;
    }
    Ok(())
}

/// Starts a broker with its data directory, if it has one. The contents of the directory are recovered first.
pub(crate) fn start_broker(config: &Config, workers: &Workers) -> io::Result<Arc<Broker>> {
    let settings = config.broker();
    let open = |data: PathBuf| open_data(&data, config.store(), settings.clock);
    let stored = config.data().map(open).transpose().map_err(io::Error::other)?;
    Broker::start_with(settings, &workers.handles(), stored).map_err(io::Error::other)
}

fn open_data(
    data: &Path,
    settings: StoreSettings,
    clock: broker::Clock,
) -> engine::Result<(Arc<Store>, Vec<StoredTopic>)> {
    opened(data, |progress| Store::open(Arc::new(RealDisk), data, settings, clock.read(), progress))
}

/// Opens a data directory, and reports the progress of a long recovery.
pub(crate) fn opened(
    data: &Path,
    open: impl FnOnce(&mut dyn FnMut(Progress)) -> engine::Result<(Arc<Store>, Vec<StoredTopic>)>,
) -> engine::Result<(Arc<Store>, Vec<StoredTopic>)> {
    if data.is_file() {
        return Err(engine::Error::invalid(format!("data = {}: this is a file; name a directory", data.display())));
    }
    let begin = Instant::now();
    let mut reported = begin;
    let mut read = 0;
    let mut progress = |progress: Progress| {
        read = progress.bytes;
        if reported.elapsed() >= PROGRESS_EVERY {
            reported = Instant::now();
            let read_mib = progress.bytes >> 20;
            let of_mib = progress.bytes_max >> 20;
            tracing::info!(read_mib, of_mib, "restoring the data of the journal");
        }
    };
    let opened = open(&mut progress);
    let opened = opened.map_err(|error| match error.kind {
        // The configured name is wrong, not the broker.
        engine::ErrorKind::Internal if !data.is_dir() => engine::Error::invalid(format!(
            "data = {}: {}; name a directory that can be created",
            data.display(),
            error.message
        )),
        _ => error,
    })?;
    let topics = opened.1.len();
    let took_ms = begin.elapsed().as_millis() as u64;
    tracing::info!(data = %data.display(), topics, journal_bytes = read, took_ms, "opened");
    Ok(opened)
}

/// Resources that the process uses now.
pub struct Usage {
    /// Bytes of memory that are resident.
    pub resident_bytes: u64,
    /// Processor time in seconds, of all threads since the start.
    pub cpu_seconds: f64,
    /// Number of open file descriptors.
    pub open_files: u64,
    /// Maximum number of open file descriptors.
    pub files_max: u64,
}

/// Reads the resource usage of this process on Linux. Returns `None` on other systems.
pub fn process_usage() -> Option<Usage> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Usage {
        resident_bytes: pages * rustix::param::page_size() as u64,
        cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        open_files: std::fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        files_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
    })
}
