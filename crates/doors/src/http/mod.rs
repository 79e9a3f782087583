//! The HTTP door: REST, server-sent events and WebSockets, and endpoints for operation.

mod access;
mod audit;
mod bounded;
mod caches;
mod cluster;
mod codec;
mod connections;
mod console;
mod cors;
mod errors;
mod groups;
mod map;
mod mesh;
pub mod mesh_json;
mod metrics;
mod names;
mod page;
mod queues;
mod reading;
mod routes;
mod security;
mod sessions;
mod stream;
mod trace;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use broker::metrics::{Collect, Exposition};
use broker::{Acting, Answers, Broker, Doors, FREE_BYTES, Identity};
use bytes::Bytes;
use engine::{Error, ErrorKind};
use futures_util::TryFutureExt;
use hyper::body::Body as _;
use hyper::service::service_fn;
use net::crowd::Crowd;
use net::http::{
    Caller, Charge, Connection, HttpServer, HttpSettings, HttpStats, IpNetwork, Ledger, Plaintext, Reason, Refusal,
    RequestBody, SecurityHeaders,
};
use net::tls::Tls;
use net::{Connections, Drain, Forward, Gate as NetGate, Sockets};
use tokio::sync::Semaphore;
use tower::ServiceExt;

pub use ::console::pages::settings::Setting as ShownSetting;
use access::Gate;
pub(crate) use access::permissions;
use codec::BodyLimits;
use errors::{Failure, Result};
use metrics::MetricsPages;
use routes::{ROUTES, Route};

use crate::{ledger, strangers, throttle};

/// OpenAPI description, which contains all routes of this door and no others.
const OPENAPI: &str = include_str!("../../openapi.json");
/// Number of seconds for which a browser that came by TLS uses only TLS (RFC 6797). A week: it is renewed by each
/// answer, so it covers people who come back every few days. It is not longer, because browsers apply it to every port
/// of the host name (section 8.3): other servers there without TLS, and the door after its TLS was turned off, cannot
/// be reached by name until it ends.
const HTTPS_ONLY_S: u32 = 7 * 24 * 3600;
/// Maximum number of bytes of request bodies in flight, over all connections together.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// Maximum size of a path with its query, and of all headers.
const URI_BYTES_MAX: usize = 64 << 10;
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Write timeout: maximum time until a client reads more of its response, or of its events.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time until a connection is closed once the drain has begun.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Settings of the HTTP door.
pub struct Settings {
    /// Maximum time in which a connection must send the headers of a request, and maximum time between requests.
    pub header_timeout: Duration,
    /// Maximum size of one body, and of one frame of a WebSocket.
    pub body_bytes_max: usize,
    /// `true` if clients on other machines may connect without TLS.
    pub allow_plain: bool,
    pub is_login_required: bool,
    /// TLS settings. If set, clients may also use TLS, on the same port.
    pub tls: Option<Arc<Tls>>,
    /// Host names that are served; if empty, any. On a loopback address, only the names of this machine and these are
    /// served.
    pub hosts: Vec<String>,
    /// Origins whose pages may use the door, in addition to its own origin; `*` is any, for requests without a login
    /// that do not administer the broker.
    pub cors_origins: Vec<String>,
    /// Networks of proxies whose headers about the forwarded client are trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// `true` if each request is logged.
    pub access_log: bool,
    /// `true` if browsers are served the console.
    pub has_console: bool,
    /// Settings of the broker, as the console shows them: without secrets.
    pub shown_settings: Vec<ShownSetting>,
    /// Project of Google Pub/Sub whose schemas have no project in the broker's names.
    #[cfg(feature = "pubsub")]
    pub pubsub_project: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(5),
            body_bytes_max: 4 << 20,
            allow_plain: false,
            is_login_required: false,
            tls: None,
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            access_log: false,
            has_console: true,
            shown_settings: Vec::new(),
            #[cfg(feature = "pubsub")]
            pubsub_project: "thalweg".to_owned(),
        }
    }
}

impl Settings {
    fn runtime(&self, address: SocketAddr, doors: &Arc<Doors>, ledger: Ledger) -> HttpSettings {
        HttpSettings {
            ledger,
            header_timeout: self.header_timeout,
            idle_timeout: self.header_timeout,
            write_timeout: WRITE_TIMEOUT,
            drain_timeout: CLOSE_WAIT_MAX,
            // Probes are still answered while connections end.
            answers_while_draining: true,
            hosts: self.hosts.clone(),
            is_local: address.ip().is_loopback(),
            origins: Some(self.cors_origins.clone()),
            pages: Some(console::START),
            uri_bytes_max: URI_BYTES_MAX,
            header_bytes_max: HEADER_BYTES_MAX,
            body_bytes_max: self.body_bytes_max as u64,
            trusted_proxies: self.trusted_proxies.clone(),
            security_headers: SecurityHeaders::ForData { https_only_s: Some(HTTPS_ONLY_S) },
            access_log: self.access_log,
            plaintext: if self.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback },
            first_bytes: strangers::at_http_door(doors.clone(), broker::Door::Http),
            refusal_body,
            ..HttpSettings::default()
        }
    }
}

const METRICS: &str = "/metrics";
const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";

/// Returns each method with its path, as the router has them.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROUTES.iter().map(|route| (route.method.as_str(), route.path))
}

/// State that all requests of the door share.
struct Http {
    broker: Arc<Broker>,
    is_login_required: bool,
    has_console: bool,
    /// Origins whose pages may use the door; `*` is any.
    cors_origins: Vec<String>,
    shown_settings: Vec<ShownSetting>,
    #[cfg(feature = "pubsub")]
    pubsub_project: String,
    bodies: BodyLimits,
    open: Arc<OpenStreams>,
    /// Streams that take turns at their records.
    crowd: Arc<Crowd>,
    metrics: MetricsPages,
    /// Figures for the console.
    measured: console::Measured,
}

/// Number of open streams of each kind.
type OpenStreams = [AtomicUsize; 2];

/// Kind of a response that stays open until the client disconnects.
#[derive(Clone, Copy, Debug)]
enum StreamKind {
    Events,
    WebSocket,
}

/// An open stream, which is counted until it is dropped.
struct Open {
    streams: Arc<OpenStreams>,
    kind: StreamKind,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.streams[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connection of a request. Streams that continue after the response hold it.
#[derive(Clone)]
struct Peer {
    id: u64,
    is_secure: bool,
    drain: Drain,
    connection: Arc<Connection>,
    /// Address of the client, as reported by trusted proxies.
    address: IpAddr,
    /// On whose behalf the client acts.
    identity: Arc<Identity>,
}

impl Peer {
    fn of(caller: &Caller, identity: Arc<Identity>) -> Self {
        let connection = caller.connection.clone();
        let is_secure = caller.is_secure;
        let address = caller.address;
        Self { id: connection.id, is_secure, drain: connection.drain(), connection, address, identity }
    }
}

impl Http {
    fn new(settings: &Settings, broker: Arc<Broker>) -> Arc<Self> {
        let all = Arc::new(Semaphore::new(BODIES_BYTES_MAX.max(settings.body_bytes_max)));
        let bodies = BodyLimits { bytes_max: settings.body_bytes_max, all, answers: broker.answers().clone() };
        let crowd = Crowd::start();
        Arc::new(Self {
            broker,
            is_login_required: settings.is_login_required,
            has_console: settings.has_console,
            cors_origins: settings.cors_origins.clone(),
            shown_settings: settings.shown_settings.clone(),
            #[cfg(feature = "pubsub")]
            pubsub_project: settings.pubsub_project.clone(),
            bodies,
            open: Arc::default(),
            crowd,
            metrics: MetricsPages::default(),
            measured: console::Measured::default(),
        })
    }

    /// Returns `true` if browsers log in at the console, which a cookie continues.
    fn has_sessions(&self) -> bool {
        self.is_login_required && self.has_console
    }

    fn open(&self, kind: StreamKind) -> Open {
        self.open[kind as usize].fetch_add(1, Ordering::Relaxed);
        Open { streams: self.open.clone(), kind }
    }

    /// Registers the counters of the door in the metrics of the broker.
    fn register(&self, stats: Arc<HttpStats>) {
        let open = self.open.clone();
        let crowd = self.crowd.clone();
        self.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| expose(&stats, &open, &crowd, out))));
    }
}

fn expose(stats: &HttpStats, open: &OpenStreams, crowd: &Crowd, out: &mut Exposition<'_>) -> std::fmt::Result {
    let requests: Vec<(String, u64)> =
        (1..).zip(stats.requests()).map(|(class, count)| (format!("{class}xx"), count)).collect();
    out.counters("thalweg_http_requests", "Answered HTTP requests", "status", &requests)?;
    let open = |kind: StreamKind| open[kind as usize].load(Ordering::Relaxed) as u64;
    out.gauges(
        "thalweg_http_streams",
        "Open HTTP streams",
        "kind",
        &[("events".into(), open(StreamKind::Events)), ("websocket".into(), open(StreamKind::WebSocket))],
    )?;
    out.gauge("thalweg_http_streams_waiting", "Streams that wait for their turn to write", crowd.waiting() as u64)?;
    out.counter(
        "thalweg_http_answered_refusals",
        "Connections refused at the limit or for lack of TLS, with an answer",
        stats.refused(Reason::Connections) + stats.refused(Reason::Plaintext),
    )?;
    let refused: Vec<(String, u64)> =
        Reason::ALL.iter().map(|reason| (reason.name().to_owned(), stats.refused(*reason))).collect();
    out.counters("thalweg_http_refused", "Requests and connections refused by the door", "reason", &refused)?;
    let cut = [("stalled".to_owned(), stats.stalled()), ("overdue".to_owned(), stats.overdue())];
    out.counters("thalweg_http_cut", "Connections that were disconnected", "reason", &cut)?;
    let (read, written) = stats.bytes();
    out.counter("thalweg_http_read_bytes", "Bytes received over HTTP", read)?;
    out.counter("thalweg_http_written_bytes", "Bytes sent over HTTP", written)?;
    out.counter(
        "thalweg_http_failed_handshakes",
        "TLS handshakes that failed or took too long",
        stats.failed_handshakes(),
    )
}

fn admit(request: &Request) -> Result<()> {
    match (request.uri().path(), request.extensions().get::<Caller>()) {
        (METRICS | HEALTHZ | READYZ, _) | (_, None) => Ok(()),
        (_, Some(caller)) => expect_open(&caller.connection),
    }
}

/// Middleware through which every request passes.
async fn gate(request: Request, next: Next) -> Response {
    let origin = cors::foreign_origin(&request);
    if let Some(answer) = origin.as_ref().and_then(|origin| cors::preflight(&request, origin)) {
        return answer;
    }
    let response = match admit(&request) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    match origin {
        Some(origin) => cors::allow(response, origin),
        None => response,
    }
}

/// Refuses new requests once the drain has begun.
fn expect_open(connection: &Connection) -> Result<()> {
    if connection.is_listener_draining() {
        let message = "the broker is shutting down; use another one, or try again later";
        return Err(Error::new(ErrorKind::ShuttingDown, message).into());
    }
    Ok(())
}

/// Returns the body for a refusal of the runtime, in the form of any other error of this door.
fn refusal_body(refusal: &Refusal) -> (HeaderValue, Bytes) {
    let kind = match refusal.reason {
        Reason::Malformed => ErrorKind::Malformed,
        Reason::Plaintext | Reason::Host | Reason::Origin => ErrorKind::Denied,
        Reason::Method => ErrorKind::Unsupported,
        Reason::HeaderTimeout | Reason::BodyTimeout => ErrorKind::Timeout,
        Reason::BodySize | Reason::UriSize | Reason::HeaderSize => ErrorKind::TooLarge,
        Reason::Rate | Reason::Connections | Reason::Memory => ErrorKind::Busy,
        Reason::Service => ErrorKind::Internal,
    };
    let key = if refusal.reason == Reason::BodySize { " (key http_body_max_bytes)" } else { "" };
    let error = match refusal.reason {
        Reason::Rate => Error::throttled(refusal.message.clone(), 0),
        _ => Error::new(kind, format!("{}{key}", refusal.message)),
    };
    (HeaderValue::from_static("application/json"), codec::to_json(&Failure::from(error).body()).into())
}

fn router(http: Arc<Http>) -> Router {
    let mut router = Router::new();
    let checked = |Route { method, needs, serve, .. }: &Route| {
        let filter = MethodFilter::try_from(method.clone()).expect("invariant: the table has standard methods only");
        let gate = Gate { http: http.clone(), needs: *needs };
        serve(filter).layer(from_fn_with_state(gate, access::check))
    };
    for route in &ROUTES {
        router = router.route(route.path, checked(route));
    }
    for route in console::ROUTES.iter().filter(|_| http.has_console) {
        let as_page = from_fn_with_state(http.clone(), console::as_page);
        router = router.route(route.path, checked(route).layer(as_page));
    }
    router
        .fallback(map::no_such_path)
        .method_not_allowed_fallback(map::no_such_method)
        .layer(from_fn(gate))
        .with_state(http)
}

/// Charges the response to a request that changed something. It may overdraw the budget of all responses, because a
/// client that receives a refusal repeats its request. Beyond that the client receives an error, which states that the
/// request was executed.
fn charged_change(mut answer: Response, answers: &Answers, address: Option<IpAddr>) -> Response {
    let bytes = answer.body().size_hint().exact().unwrap_or(0) as usize;
    if bytes <= FREE_BYTES || answer.extensions().get::<Charge>().is_some() {
        return answer;
    }
    let Some(held) = answers.try_overdraw(address, bytes) else {
        let mut error = answers.refuse();
        error.message = format!("the request was executed, but there is no memory for its response: {}", error.message);
        return Failure::half_done(error).into_response();
    };
    answer.extensions_mut().insert(Charge::new(held));
    answer
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        let Opening { broker, sockets, connections, shutdown, gate, .. } = opening;
        Box::pin(async move {
            let forward = open(&self, broker, sockets, connections, shutdown.drain(), gate)?;
            Ok(Opened { address: sockets.address(), telemetry: None, forward })
        })
    }
}

fn open(
    settings: &Settings,
    broker: Arc<Broker>,
    sockets: &Sockets,
    limit: Arc<Connections>,
    drain: Drain,
    gate: Option<Arc<dyn NetGate>>,
) -> io::Result<Forward> {
    let acceptors = sockets.acceptors()?;
    let newcomers = throttle::newcomers(&broker, broker::Door::Http);
    let runtime = HttpSettings {
        newcomers,
        gate,
        ..settings.runtime(sockets.address(), broker.doors(), ledger::of_answers(&broker))
    };
    let http = Http::new(settings, broker);
    let router = router(http.clone());
    let answers = http.broker.answers().clone();
    let service = service_fn(move |request: hyper::Request<RequestBody>| {
        let address = request.extensions().get::<Caller>().map(|caller| caller.address);
        let is_change = !request.method().is_safe();
        let answers = answers.clone();
        let client = Acting::anonymous(broker::Door::Http, address);
        let answered = broker::for_client(client, router.clone().oneshot(request.map(Body::new)));
        answered.map_ok(move |answer| if is_change { charged_change(answer, &answers, address) } else { answer })
    });
    let server = HttpServer::new(runtime, settings.tls.as_deref(), limit, service)?;
    http.register(server.stats());
    let forward = server.forward();
    tokio::spawn(server.serve(acceptors, drain));
    Ok(forward)
}
