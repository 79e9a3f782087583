//! HTTP listener: it accepts connections, distinguishes TLS from plaintext, refuses, and shuts down gracefully.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Aborted, abortable};
use hyper::body::Body;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::HttpSettings;
use super::activity::Timeouts;
use super::body::RequestBody;
use super::connection::{Connection, Listening, Version, serve_http1, serve_http2, version};
use super::forwarded::is_trusted;
use super::policy::{Policy, is_for_this_machine};
use super::rate::Rates;
use super::refusal::{Reason, Refusal};
use super::stats::HttpStats;
use super::wire::{LAST_WORDS, Wire, last_words};
use crate::accept::{Accepted, Acceptors};
use crate::forward::{Forward, Forwarded, Sniff, Sniffed, TLS_HANDSHAKE};
use crate::limits::{Cap, Phase};
use crate::tls::{PeerIdentity, Tls, log_refused};
use crate::{ConnectionPermit, Connections, Drain, OpenConnection, Shutdown, UnixPeer};

const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Maximum bytes that an HTTP/1 connection buffers in each direction, if heads need no more.
const HTTP1_BUFFER_BYTES: usize = 128 << 10;
/// Number of HTTP/1 headers for which there always is room.
const HTTP1_HEADERS: usize = 100;
/// Bytes of the method, the version and the line ends of a request line.
const REQUEST_LINE_REST_BYTES: usize = 1024;
/// Bytes that HTTP/2 counts for each header in addition to its name and value.
const HTTP2_HEADER_BYTES: usize = 32;
/// Bytes that one HTTP/2 stream buffers for sending.
const HTTP2_SEND_BUFFER_BYTES: usize = 64 << 10;
/// Interval of the pings to an HTTP/2 client, and the time that it has to answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of refused clients that receive an answer at the same time; the connections of others are just
/// closed.
const REFUSALS_MAX: u64 = 64;
/// Address that stands for the clients of a Unix socket, which come from this machine.
const UNIX_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Time that a listener waits longer than its connections.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

/// HTTP server without a listener.
pub struct HttpServer<S>(Arc<Shared<S>>);

/// State that all connections of a listener share.
pub(super) struct Shared<S> {
    pub settings: HttpSettings,
    pub service: S,
    pub policy: Policy,
    pub timeouts: Timeouts,
    pub rates: Option<Rates>,
    pub http1: http1::Builder,
    pub http2: http2::Builder<TokioExecutor>,
    pub began: Instant,
    headers: HeaderMap,
    https_only: Option<HeaderValue>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    refusals: Arc<Cap>,
    stats: Arc<HttpStats>,
    listening: Arc<Listening>,
    /// Shutdown of the connections.
    running: Shutdown,
}

impl<S> Shared<S> {
    /// Returns the value of the header that makes the browser of a request use only TLS.
    pub fn https_only(&self, connection: &Connection, head: &Parts) -> Option<HeaderValue> {
        self.https_only.clone().filter(|_| connection.is_tls && !is_for_this_machine(head))
    }

    /// Adds the headers of every answer, except those that the answer already has.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.entry(name).or_insert_with(|| value.clone());
        }
    }

    /// Returns the complete answer to a client whose connection no server handles any more.
    pub fn refusal_text(&self, refusal: &Refusal) -> Vec<u8> {
        let more: Vec<_> = self.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        refusal.text(self.settings.refusal_body, &more)
    }
}

impl<S, B> HttpServer<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Creates a server. With `tls`, the same port serves TLS, and plaintext as far as the settings allow it.
    pub fn new(
        settings: HttpSettings,
        tls: Option<&Tls>,
        connections: Arc<Connections>,
        service: S,
    ) -> io::Result<Self> {
        let tls = tls.map(|tls| tls.server_config(&ALPN)).transpose()?.map(TlsAcceptor::from);
        Ok(Self(Arc::new(Shared {
            service,
            policy: settings.policy(),
            timeouts: settings.timeouts(),
            rates: settings.requests_per_second.map(Rates::new),
            http1: http1_builder(&settings),
            http2: http2_builder(&settings),
            began: Instant::now(),
            headers: settings.security_headers.headers(),
            https_only: settings.security_headers.https_only(),
            tls,
            connections,
            refusals: Cap::new(REFUSALS_MAX),
            stats: Arc::default(),
            listening: Arc::new(Listening { gate: settings.gate.clone(), ..Listening::default() }),
            running: Shutdown::default(),
            settings,
        })))
    }

    /// Returns the counters of this server.
    pub fn stats(&self) -> Arc<HttpStats> {
        self.0.stats.clone()
    }

    /// Accepts and serves until the drain begins, and then until the connections have ended or are cut. A connection of
    /// a Unix socket has no TLS.
    pub async fn serve(self, acceptors: impl Into<Acceptors>, mut drain: Drain) {
        let shared = self.0;
        let mut acceptor = acceptors.into();
        loop {
            tokio::select! {
                accepted = acceptor.accept() => shared.take(accepted, shared.running.drain()),
                () = drain.next(false) => break,
            }
        }
        shared.listening.is_draining.store(true, Ordering::Relaxed);
        let mut acceptor = shared.settings.answers_while_draining.then_some(acceptor);
        // Connections that arrive now end when this function returns.
        let late = Shutdown::default();
        let mut is_cut = false;
        let done = shared.running.run(shared.settings.drain_timeout + DRAIN_MARGIN);
        tokio::pin!(done);
        loop {
            let accepted = async {
                match &mut acceptor {
                    Some(acceptor) => acceptor.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = accepted => shared.take(accepted, late.drain()),
                () = drain.next(true), if !is_cut => {
                    is_cut = true;
                    acceptor = None;
                    shared.running.abort();
                    late.abort();
                }
                are_done = &mut done => {
                    if !are_done.is_clean() && !is_cut {
                        tracing::warn!("HTTP connections did not end in time");
                    }
                    return;
                }
            }
        }
    }

    /// Returns the function that serves forwarded connections as the listener serves its own, until the drain begins.
    /// Must be called on the runtime that is to serve them.
    pub fn forward(&self) -> Forward {
        let shared = Arc::downgrade(&self.0);
        let runtime = tokio::runtime::Handle::current();
        Arc::new(move |forwarded| {
            if let Some(shared) = shared.upgrade() {
                let _entered = runtime.enter();
                shared.take_forwarded(forwarded);
            }
        })
    }

    /// Serves one stream that is not a TCP socket, such as a pipe in memory, without TLS.
    pub async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: SocketAddr,
        drain: Drain,
    ) {
        let permit = match self.0.connections.admit(None) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(%peer, "refused a connection: {refused}");
                self.0.stats.add_refused(Reason::Connections);
                return;
            }
        };
        let connection = self.0.connection(peer, drain, permit);
        let entry = connection.entry().clone();
        let shared = self.0.clone();
        let (served, stop) = abortable(async move {
            match shared.begin_plain(stream, connection).await {
                Some((Version::Http1, wire)) => Box::pin(serve_http1(shared, wire)).await,
                Some((Version::Http2, wire)) => Box::pin(serve_http2(shared, wire)).await,
                None => {}
            }
        });
        entry.stop_by(Phase::Serving, move || stop.abort());
        drop(entry);
        if let Err(Aborted) = served.await {
            tracing::debug!("a stream was cut off");
        }
    }
}

impl<S, B> Shared<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn connection(&self, peer: SocketAddr, drain: Drain, permit: ConnectionPermit) -> Connection {
        Connection::new(peer, self.stats.clone(), self.listening.clone(), drain, permit)
    }

    /// Serves a new connection in a separate task once its protocol is known, or refuses it.
    fn take(self: &Arc<Self>, accepted: Accepted, drain: Drain) {
        match accepted {
            Accepted::Tcp(socket, peer) => self.take_tcp(socket, peer, drain),
            Accepted::Unix(socket, process) => self.take_unix(socket, process, drain),
        }
    }

    fn take_forwarded(self: &Arc<Self>, Forwarded { stream, peer, owner, .. }: Forwarded) {
        let drain = self.running.drain();
        if drain.has_begun() {
            tracing::debug!(%peer, "a forwarded connection comes too late");
        } else if owner {
            self.take_unix(stream, UnixPeer::OWNER, drain);
        } else {
            self.take_tcp(Sniffed::from(stream), peer, drain);
        }
    }

    fn take_unix<T>(self: &Arc<Self>, socket: T, process: UnixPeer, drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = self.clone();
        let permit = match self.connections.admit(None) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!("refused a connection of this machine: {refused}");
                let refusal = too_many(&refused);
                tokio::spawn(async move { shared.refuse_unix(socket, refusal).await });
                return;
            }
        };
        let mut connection = self.connection(UNIX_ADDRESS, drain, permit);
        connection.process = Some(process);
        run(&connection.entry().clone(), Phase::Opening, async move {
            if let Some((version, wire)) = shared.begin_plain(socket, connection).await {
                shared.spawn(version, wire);
            }
        });
    }

    fn take_tcp<T>(self: &Arc<Self>, socket: T, peer: SocketAddr, drain: Drain)
    where
        T: Sniff + AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = self.clone();
        let is_plain_allowed = self.settings.plaintext.is_allowed(peer.ip());
        if !is_plain_allowed && self.tls.is_none() {
            tokio::spawn(async move { shared.refuse_plaintext(socket, peer).await });
            return;
        }
        // A proxy connects for many clients, and needs more than the share of one.
        let is_proxy = is_trusted(peer.ip(), &self.settings.trusted_proxies);
        let permit = match self.connections.admit_from((!is_proxy).then_some(peer.ip()), Some(peer)) {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(%peer, "refused a connection: {refused}");
                let refusal = too_many(&refused);
                tokio::spawn(async move { shared.refuse(socket, refusal).await });
                return;
            }
        };
        if let Some(reason) = self.settings.newcomers.refuse(peer.ip()).filter(|_| !is_proxy) {
            let refusal = Refusal::new(Reason::Rate, reason);
            tokio::spawn(async move {
                shared.refuse(socket, refusal).await;
                drop(permit);
            });
            return;
        }
        let connection = self.connection(peer, drain, permit);
        let entry = connection.entry().clone();
        run(&entry, Phase::Opening, async move { shared.begin(socket, connection, is_plain_allowed).await });
    }

    /// Detects the protocol of a connection, and passes it to a task that only serves that protocol.
    async fn begin<T>(self: Arc<Self>, mut socket: T, mut connection: Connection, is_plain_allowed: bool)
    where
        T: Sniff + AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let first = match &self.tls {
            Some(_) => self.in_time(&connection, is_tls(&mut socket)).await,
            None => Some(Ok(false)),
        };
        match first {
            Some(Ok(true)) => {
                if let Some((version, stream)) = self.shake_hands(socket, &mut connection).await {
                    self.spawn(version, Wire::new(stream, Bytes::new(), Arc::new(connection)));
                }
            }
            Some(Ok(false)) if is_plain_allowed => {
                if let Some((version, wire)) = self.begin_plain(socket, connection).await {
                    self.spawn(version, wire);
                }
            }
            Some(Ok(false)) => Box::pin(self.refuse_plaintext(socket, connection.peer)).await,
            Some(Err(error)) => {
                tracing::debug!(connection = connection.id, %error, "connection lost before its first byte")
            }
            None => {}
        }
    }

    async fn shake_hands<T>(&self, socket: T, connection: &mut Connection) -> Option<(Version, Box<TlsStream<T>>)>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = Box::pin(self.tls.as_ref()?.accept(socket));
        let stream = match self.in_time(connection, handshake).await {
            Some(Ok(stream)) => stream,
            failed => {
                if let Some(Err(error)) = failed {
                    tracing::debug!(connection = connection.id, %error, "TLS handshake failed");
                    log_refused(connection.peer, &error);
                }
                self.stats.add_failed_handshake();
                return None;
            }
        };
        let session = stream.get_ref().1;
        connection.is_tls = true;
        connection.identity = PeerIdentity::of_certificates(session.peer_certificates());
        let version = if session.alpn_protocol() == Some(ALPN[0]) { Version::Http2 } else { Version::Http1 };
        // Boxed, because it is large and moved several times.
        Some((version, Box::new(stream)))
    }

    /// Returns `None` if the connection ends before its version is known.
    async fn begin_plain<T>(&self, mut stream: T, connection: Connection) -> Option<(Version, Wire<T>)>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match self.in_time(&connection, version(&mut stream)).await? {
            Ok(begun) => {
                let (version, first) = begun?;
                if version == Version::Http1
                    && let Some(answer) = self.settings.first_bytes.answer(&first)
                {
                    self.stats.add_refused(Reason::Malformed);
                    last_words(stream, &answer, LAST_WORDS).await;
                    return None;
                }
                Some((version, Wire::new(stream, first, Arc::new(connection))))
            }
            Err(error) => {
                tracing::debug!(connection = connection.id, %error, "connection lost before its first byte");
                None
            }
        }
    }

    fn spawn<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(self: Arc<Self>, version: Version, wire: Wire<T>) {
        let entry = wire.connection.entry().clone();
        match version {
            Version::Http1 => run(&entry, Phase::Serving, serve_http1(self, wire)),
            Version::Http2 => run(&entry, Phase::Serving, serve_http2(self, wire)),
        }
    }

    /// Returns the result of `work`, if it completes within the header timeout and before the drain begins.
    async fn in_time<T>(&self, connection: &Connection, work: impl Future<Output = T>) -> Option<T> {
        let in_time = tokio::time::timeout(self.settings.header_timeout, work);
        match connection.drain().or_begun(in_time).await {
            Some(Ok(done)) => Some(done),
            Some(Err(elapsed)) => {
                tracing::debug!(connection = connection.id, %elapsed, "no request arrived in time");
                None
            }
            None => None,
        }
    }

    async fn refuse_plaintext(&self, socket: impl Sniff + AsyncRead + AsyncWrite + Send + Unpin, peer: SocketAddr) {
        tracing::warn!(%peer, "refused a connection without TLS");
        let message = match &self.tls {
            Some(_) => "this port requires TLS: use https://",
            None => "a connection from another machine needs TLS",
        };
        self.refuse(socket, Refusal::new(Reason::Plaintext, message)).await;
    }

    /// Sends a client the reason why it is not served, unless it speaks TLS or too many clients are being refused.
    async fn refuse(&self, mut socket: impl Sniff + AsyncRead + AsyncWrite + Send + Unpin, refusal: Refusal) {
        self.stats.add_refused(refusal.reason);
        let Some(_permit) = self.refusals.acquire(1) else {
            return;
        };
        if self.tls.is_some() {
            let first = tokio::time::timeout(LAST_WORDS, is_tls(&mut socket)).await;
            if !matches!(first, Ok(Ok(false))) {
                return;
            }
        }
        last_words(socket, &self.refusal_text(&refusal), LAST_WORDS).await;
    }

    /// Sends a client of a Unix socket, which has no TLS, the reason why it is not served.
    async fn refuse_unix(&self, socket: impl AsyncRead + AsyncWrite + Send + Unpin, refusal: Refusal) {
        self.stats.add_refused(refusal.reason);
        if let Some(_permit) = self.refusals.acquire(1) {
            last_words(socket, &self.refusal_text(&refusal), LAST_WORDS).await;
        }
    }
}

/// Runs the task that serves a connection in this phase. Cutting the connection off drops the task, with all that it
/// holds.
fn run(entry: &OpenConnection, phase: Phase, task: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(task).abort_handle();
    entry.stop_by(phase, move || task.abort());
}

fn too_many(refused: &impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Connections, format!("this server refuses the connection: {refused}"))
}

/// Returns `true` if the first byte begins a TLS handshake.
async fn is_tls(socket: &mut impl Sniff) -> io::Result<bool> {
    Ok(socket.first().await? == Some(TLS_HANDSHAKE))
}

/// Returns the maximum bytes of a head that are read.
fn head_bytes_max(settings: &HttpSettings) -> usize {
    settings.uri_bytes_max + settings.header_bytes_max + REQUEST_LINE_REST_BYTES
}

fn http1_builder(settings: &HttpSettings) -> http1::Builder {
    let head_bytes_max = head_bytes_max(settings);
    let mut http1 = http1::Builder::new();
    // The connection itself enforces the time limit of heads, including that of the first byte.
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_header_size(head_bytes_max)
        .max_buf_size(head_bytes_max.max(HTTP1_BUFFER_BYTES));
    // A higher limit costs memory for each request.
    if settings.headers_count_max > HTTP1_HEADERS {
        http1.max_headers(settings.headers_count_max);
    }
    http1
}

fn http2_builder(settings: &HttpSettings) -> http2::Builder<TokioExecutor> {
    let head_bytes_max = head_bytes_max(settings) + HTTP2_HEADER_BYTES * settings.headers_count_max;
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HTTP2_PING_INTERVAL))
        .keep_alive_timeout(HTTP2_PING_INTERVAL)
        .max_concurrent_streams(settings.http2_streams_max)
        .max_send_buf_size(HTTP2_SEND_BUFFER_BYTES)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
    http2
}
