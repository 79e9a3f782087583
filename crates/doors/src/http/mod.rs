//! The HTTP door: REST, server-sent events and WebSockets, and what operation asks for.

mod codec;
mod errors;
mod map;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{HOST, ORIGIN};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use broker::Broker;
use broker::metrics::{Collect, Counter, Exposition};
use engine::{Error, ErrorKind};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use net::limits::Cap;
use net::{Acceptor, ConnectionPermit, Connections, Drain, Shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tower::ServiceExt;

use codec::BodyLimits;
use errors::{Failure, Result};

/// The description of the interface, which has every route of this door and no other.
const OPENAPI: &str = include_str!("../../openapi.json");
/// Bytes of request bodies that all connections together may have on their way.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// What a connection of HTTP/1 holds in each direction; the headers of a request have to fit in.
const HTTP1_BUFFER_BYTES: usize = 128 << 10;
/// Requests of one HTTP/2 connection side by side.
const HTTP2_STREAMS_MAX: u32 = 128;
/// How often an HTTP/2 client has to show that it is there, and how long it may take.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// How long a connection may take to end once the drain has begun.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a refused client may take to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Refused clients that are told why at once; any more are just closed.
const REFUSALS_MAX: u64 = 64;

/// How the door is set up.
pub struct Settings {
    pub address: SocketAddr,
    /// How long a connection may take for the headers of a request, and may wait for its next one.
    pub header_timeout: Duration,
    /// Bytes of one body, and of one frame of a WebSocket.
    pub body_bytes_max: usize,
    /// Whether a client that is not on this machine may speak without TLS.
    pub allow_plain: bool,
}

/// One method of one path.
struct Route {
    method: Method,
    path: &'static str,
    serve: fn(MethodFilter) -> MethodRouter<Arc<Http>>,
}

/// Everything that this door answers.
static ROUTES: [Route; 13] = [
    Route { method: Method::GET, path: "/", serve: |method| on(method, map::help) },
    Route { method: Method::GET, path: "/v1/topics", serve: |method| on(method, map::list_topics) },
    Route { method: Method::PUT, path: "/v1/topics/{topic}", serve: |method| on(method, map::create_topic) },
    Route { method: Method::GET, path: "/v1/topics/{topic}", serve: |method| on(method, map::describe_topic) },
    Route { method: Method::DELETE, path: "/v1/topics/{topic}", serve: |method| on(method, map::delete_topic) },
    Route { method: Method::POST, path: "/v1/topics/{topic}/records", serve: |method| on(method, map::publish) },
    Route { method: Method::GET, path: "/v1/topics/{topic}/records", serve: |method| on(method, map::fetch) },
    Route { method: Method::GET, path: "/v1/topics/{topic}/events", serve: |method| on(method, map::events) },
    Route { method: Method::GET, path: "/v1/topics/{topic}/ws", serve: |method| on(method, map::web_socket) },
    Route { method: Method::GET, path: "/v1/openapi.json", serve: |method| on(method, map::openapi) },
    Route { method: Method::GET, path: METRICS, serve: |method| on(method, map::metrics) },
    Route { method: Method::GET, path: HEALTHZ, serve: |method| on(method, map::healthy) },
    Route { method: Method::GET, path: READYZ, serve: |method| on(method, map::ready) },
];

const METRICS: &str = "/metrics";
const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";

/// Every method with its path, as the router knows them.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROUTES.iter().map(|route| (route.method.as_str(), route.path))
}

/// What all requests of the door share.
struct Http {
    broker: Arc<Broker>,
    bodies: BodyLimits,
    stats: Arc<Stats>,
    is_draining: AtomicBool,
}

/// What the door counts.
#[derive(Default)]
struct Stats {
    /// By the first digit of the status, from 1.
    requests: [Counter; 5],
    refused_connections: Counter,
    open: [AtomicUsize; 2],
}

/// What stays open for as long as its client does.
#[derive(Clone, Copy, Debug)]
enum StreamKind {
    Events,
    WebSocket,
}

/// An open stream, counted until it is dropped.
struct Open {
    stats: Arc<Stats>,
    kind: StreamKind,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stats.open[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection that a request came on. Whoever goes on after the answer holds it.
#[derive(Clone)]
struct Peer {
    id: u64,
    drain: Drain,
    _permit: Arc<ConnectionPermit>,
}

impl Http {
    fn new(settings: &Settings, broker: Arc<Broker>) -> Arc<Self> {
        let all = Arc::new(Semaphore::new(BODIES_BYTES_MAX.max(settings.body_bytes_max)));
        let http = Self {
            broker,
            bodies: BodyLimits { bytes_max: settings.body_bytes_max, all },
            stats: Arc::default(),
            is_draining: AtomicBool::new(false),
        };
        let stats = http.stats.clone();
        http.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| stats.expose(out))));
        Arc::new(http)
    }

    fn open(&self, kind: StreamKind) -> Open {
        self.stats.open[kind as usize].fetch_add(1, Ordering::Relaxed);
        Open { stats: self.stats.clone(), kind }
    }

    /// Refuses new work once the drain has begun.
    fn expect_open(&self) -> Result<()> {
        if self.is_draining.load(Ordering::Relaxed) {
            let message = "the broker is shutting down; ask another one, or this one a little later";
            return Err(Error::new(ErrorKind::ShuttingDown, message).into());
        }
        Ok(())
    }

    fn admit(&self, request: &Request) -> Result<()> {
        expect_same_origin(request)?;
        match request.uri().path() {
            METRICS | HEALTHZ | READYZ => Ok(()),
            _ => self.expect_open(),
        }
    }
}

impl Stats {
    fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let requests: Vec<(String, u64)> =
            (1..).zip(&self.requests).map(|(class, count)| (format!("{class}xx"), count.get())).collect();
        out.counters("thalweg_http_requests", "Requests answered over HTTP", "status", &requests)?;
        let open = |kind: StreamKind| self.open[kind as usize].load(Ordering::Relaxed) as u64;
        out.gauges(
            "thalweg_http_streams",
            "Streams that are open over HTTP",
            "kind",
            &[("events".into(), open(StreamKind::Events)), ("websocket".into(), open(StreamKind::WebSocket))],
        )?;
        out.counter(
            "thalweg_http_answered_refusals",
            "Connections that were refused at the limit or for speaking without TLS",
            self.refused_connections.get(),
        )
    }
}

/// Refuses what a page of another site makes a browser send: that page must not publish or listen
/// here just because the browser can reach the broker.
fn expect_same_origin(request: &Request) -> Result<()> {
    let Some(origin) = request.headers().get(ORIGIN) else {
        return Ok(());
    };
    let host = request.headers().get(HOST).map(|host| host.as_bytes());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str().as_bytes()));
    let origin = origin.as_bytes();
    let site = origin.windows(3).position(|part| part == b"://").map(|at| &origin[at + 3..]);
    match (site, host) {
        (Some(site), Some(host)) if site.eq_ignore_ascii_case(host) => Ok(()),
        _ => {
            let message = "a page of another origin may not use this broker; behind a proxy, pass on the header Host";
            Err(Error::new(ErrorKind::Denied, message).into())
        }
    }
}

/// Every request comes in through here, and every answer goes out.
async fn gate(State(http): State<Arc<Http>>, request: Request, next: Next) -> Response {
    let response = match http.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    let class = usize::from(response.status().as_u16() / 100);
    if let Some(count) = http.stats.requests.get(class.wrapping_sub(1)) {
        count.add(1);
    }
    response
}

fn router(http: Arc<Http>) -> Router {
    let mut router = Router::new();
    for Route { method, path, serve } in &ROUTES {
        let filter = MethodFilter::try_from(method.clone()).expect("invariant: the table has standard methods only");
        router = router.route(path, serve(filter));
    }
    router
        .fallback(map::no_such_path)
        .method_not_allowed_fallback(map::no_such_method)
        .layer(from_fn_with_state(http.clone(), gate))
        .with_state(http)
}

/// Opens the door. It serves until the drain begins. The address is the bound one.
pub async fn open(
    settings: &Settings,
    broker: Arc<Broker>,
    connections: Arc<Connections>,
    drain: Drain,
) -> io::Result<SocketAddr> {
    let acceptor = Acceptor::bind(settings.address)?;
    let address = acceptor.local_addr()?;
    let http = Http::new(settings, broker);
    let door = Arc::new(Door {
        router: router(http.clone()),
        http,
        builder: builder(settings.header_timeout),
        header_timeout: settings.header_timeout,
        allow_plain: settings.allow_plain,
        connections,
        refusals: Cap::new(REFUSALS_MAX),
        connection_ids: AtomicU64::new(1),
    });
    tokio::spawn(door.run(acceptor, drain));
    Ok(address)
}

fn builder(header_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HTTP1_BUFFER_BYTES)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HTTP2_PING_INTERVAL))
        .keep_alive_timeout(HTTP2_PING_INTERVAL)
        .max_concurrent_streams(HTTP2_STREAMS_MAX);
    builder
}

/// What all connections of the door share.
struct Door {
    http: Arc<Http>,
    router: Router,
    builder: Builder<TokioExecutor>,
    header_timeout: Duration,
    allow_plain: bool,
    connections: Arc<Connections>,
    refusals: Arc<Cap>,
    connection_ids: AtomicU64,
}

impl Door {
    async fn run(self: Arc<Self>, mut acceptor: Acceptor, mut drain: Drain) {
        let connections = Shutdown::default();
        loop {
            tokio::select! {
                (socket, address) = acceptor.accept() => self.take(socket, address, connections.drain()),
                () = drain.begun() => break,
            }
        }
        self.http.is_draining.store(true, Ordering::Relaxed);
        // While connections end, probes are still answered; those connections end with this function.
        let probes = Shutdown::default();
        let done = connections.run(2 * CLOSE_WAIT_MAX);
        tokio::pin!(done);
        loop {
            tokio::select! {
                (socket, address) = acceptor.accept() => self.take(socket, address, probes.drain()),
                are_done = &mut done => {
                    if !are_done {
                        tracing::warn!("connections of the HTTP door did not end in time");
                    }
                    return;
                }
            }
        }
    }

    /// Serves a new connection in a task of its own, or refuses it.
    fn take(self: &Arc<Self>, socket: TcpStream, address: SocketAddr, drain: Drain) {
        if !self.allow_plain && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(peer = %address, "refused a connection without TLS from another machine");
            let message = "this broker takes no connections without TLS from another machine";
            self.refuse(socket, Error::new(ErrorKind::Denied, message));
            return;
        }
        let permit = match self.connections.admit(Some(address.ip())) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(peer = %address, "refused a connection: {refused}");
                self.refuse(socket, Error::busy(format!("this broker refuses the connection: {refused}")));
                return;
            }
        };
        let id = self.connection_ids.fetch_add(1, Ordering::Relaxed);
        let peer = Peer { id, drain, _permit: Arc::new(permit) };
        let door = self.clone();
        tokio::spawn(async move { door.serve(socket, peer).await });
    }

    async fn serve(&self, socket: TcpStream, peer: Peer) {
        let (id, mut drain) = (peer.id, peer.drain.clone());
        let has_asked = AtomicBool::new(false);
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            has_asked.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(peer.clone());
            self.router.clone().oneshot(request.map(Body::new))
        });
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(socket), service);
        tokio::pin!(connection);
        // The server's own timer only runs once it knows the version of the protocol.
        let silence = async {
            tokio::time::sleep(self.header_timeout).await;
            if has_asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = silence => {
                tracing::debug!(connection = id, "no request in time");
                return;
            }
            () = drain.begun() => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(CLOSE_WAIT_MAX, connection).await {
                    Ok(served) => served,
                    Err(elapsed) => Err(elapsed.into()),
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(connection = id, error, "connection closed");
        }
    }

    fn refuse(&self, socket: TcpStream, error: Error) {
        self.http.stats.refused_connections.add(1);
        let Some(permit) = self.refusals.acquire(1) else {
            return;
        };
        tokio::spawn(async move {
            let _permit = permit;
            if tokio::time::timeout(LAST_WORDS, say_why(socket, error)).await.is_err() {
                tracing::debug!("a refused client did not read why");
            }
        });
    }
}

/// Answers without reading the request. What the client sends meanwhile is read all the same, since
/// closing with unread bytes would take the answer away from it.
async fn say_why(mut socket: TcpStream, error: Error) -> io::Result<()> {
    let failure = Failure::from(error);
    let body = codec::to_json(&failure.body());
    let answer = failure.into_response();
    let mut text = format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", answer.status(), body.len());
    for (name, value) in answer.headers() {
        text += &format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()));
    }
    socket.write_all(text.as_bytes()).await?;
    socket.write_all(b"\r\n").await?;
    socket.write_all(&body).await?;
    socket.shutdown().await?;
    let mut scratch = [0; 1024];
    while socket.read(&mut scratch).await? > 0 {}
    Ok(())
}
