//! Connection: its HTTP version, its time limits, and how it ends.

use std::any::Any;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::activity::{Activity, Overdue, Phase, Timeouts};
use super::body::RequestBody;
use super::exchange::exchange;
use super::refusal::{Reason, Refusal};
use super::server::Shared;
use super::stats::HttpStats;
use super::unfinished::Unfinished;
use super::wire::Wire;
use crate::gate::expect_open;
use crate::tls::PeerIdentity;
use crate::{ConnectionPermit, Drain, Gate, OpenConnection, UnixPeer};

/// First bytes of an HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Connection of a client. While it is held, it counts as open and delays the drain.
pub struct Connection {
    /// Number of the connection, as in the table of open ones.
    pub id: u64,
    /// Address of the peer, which may be a proxy.
    pub peer: SocketAddr,
    /// `true` if the connection itself uses TLS.
    pub is_tls: bool,
    /// Identity that the client has proved, if it presented a certificate.
    pub identity: Option<PeerIdentity>,
    /// Process at the other end, if the connection is one of a Unix socket.
    pub process: Option<UnixPeer>,
    pub(super) activity: Activity,
    pub(super) stats: Arc<HttpStats>,
    listener: Arc<Listening>,
    drain: Drain,
    permit: ConnectionPermit,
    /// Bytes of its unfinished message, once the connection has switched to a protocol with messages.
    pub(super) unfinished: OnceLock<Unfinished>,
    /// Value that the service keeps with the connection. It is dropped with it.
    pub attachment: Mutex<Option<Box<dyn Any + Send>>>,
}

/// State of a listener, from the point of view of its connections.
#[derive(Default)]
pub(super) struct Listening {
    pub is_draining: AtomicBool,
    pub gate: Option<Arc<dyn Gate>>,
}

impl Connection {
    pub(super) fn new(
        peer: SocketAddr,
        stats: Arc<HttpStats>,
        listener: Arc<Listening>,
        drain: Drain,
        permit: ConnectionPermit,
    ) -> Self {
        stats.add_connection();
        Self {
            id: permit.entry().id,
            peer,
            is_tls: false,
            identity: None,
            process: None,
            activity: Activity::default(),
            stats,
            listener,
            drain,
            permit,
            unfinished: OnceLock::new(),
            attachment: Mutex::default(),
        }
    }

    /// Returns the entry of the connection in the table of open ones.
    pub fn entry(&self) -> &Arc<OpenConnection> {
        self.permit.entry()
    }

    /// Returns `true` if the listener is shutting down, so that no new work should begin. A connection that was
    /// accepted after that has a separate drain, which has not begun.
    pub fn is_listener_draining(&self) -> bool {
        self.listener.is_draining.load(Ordering::Relaxed)
    }

    /// Fails if the service may no longer answer.
    pub(super) fn expect_open(&self) -> io::Result<()> {
        expect_open(self.listener.gate.as_ref())
    }

    /// Counts the bytes of unfinished messages from now on, within a budget that connections share. Beyond it, reading
    /// fails. The caller reports whole messages.
    pub fn limit_unfinished(&self, budget: &Arc<Semaphore>) -> &Unfinished {
        self.unfinished.get_or_init(|| Unfinished::new(budget.clone()))
    }

    /// Returns the guard that reports when the connection has to end.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }
}

/// Origin of a request, in the extensions of each request.
#[derive(Clone)]
pub struct Caller {
    /// Connection that the request arrived on.
    pub connection: Arc<Connection>,
    /// Address of the client, determined through trusted proxies.
    pub address: IpAddr,
    /// `true` if the connection is that of a trusted proxy, whose certificate says nothing about the client.
    pub is_proxied: bool,
    /// `true` if the client uses TLS, to this server or to a trusted proxy.
    pub is_secure: bool,
}

/// HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// Reads until the version is certain. Returns `None` if the stream ends before that.
pub(super) async fn version(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(Version, Bytes)>> {
    let mut first = [0; PREFACE.len()];
    let mut n = 0;
    loop {
        let read = stream.read(&mut first[n..]).await?;
        n += read;
        let version = match () {
            () if first[..n] != PREFACE[..n] => Version::Http1,
            () if n == PREFACE.len() => Version::Http2,
            () if read == 0 => return Ok(None),
            () => continue,
        };
        return Ok(Some((version, Bytes::copy_from_slice(&first[..n]))));
    }
}

/// Common operations of the servers of both versions.
trait Serving: Future<Output = hyper::Result<()>> {
    /// Accepts no more requests, and finishes those in progress.
    fn close(self: Pin<&mut Self>);
}

impl<I, B, S> Serving for http1::UpgradeableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    I: Read + Write + Unpin + Send + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, B, S, E> Serving for http2::Connection<I, S, E>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    I: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Reason why serving a connection ended.
#[derive(Debug)]
enum End {
    Served,
    /// The head of a request did not arrive in time.
    NoHead,
    /// The connection was cut.
    Cut,
}

/// Serves an HTTP/1 connection to its end. An idle connection costs the size of this future, so rare parts are boxed.
pub(super) async fn serve_http1<S, B, T>(shared: Arc<Shared<S>>, wire: Wire<T>)
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let connection = wire.connection.clone();
    let service = {
        let shared = shared.clone();
        let connection = connection.clone();
        service_fn(move |request| exchange(shared.clone(), connection.clone(), request))
    };
    let mut http = shared.http1.serve_connection(TokioIo::new(wire), service).with_upgrades();
    let end = drive(Pin::new(&mut http), &connection, &shared.timeouts).await;
    // `None` if the connection has switched to another protocol.
    if let Some(parts) = http.into_parts() {
        Box::pin(end_http1(&shared, parts.io.into_inner(), end)).await;
    }
}

/// Serves an HTTP/2 connection to its end.
pub(super) async fn serve_http2<S, B, T>(shared: Arc<Shared<S>>, wire: Wire<T>)
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let connection = wire.connection.clone();
    connection.activity.set_http2();
    let service = {
        let shared = shared.clone();
        let connection = connection.clone();
        service_fn(move |request| exchange(shared.clone(), connection.clone(), request))
    };
    let http = pin!(shared.http2.serve_connection(TokioIo::new(wire), service));
    drive(http, &connection, &shared.timeouts).await;
}

/// Runs a connection until it ends or an event on it is overdue.
async fn drive<C: Serving>(mut http: Pin<&mut C>, connection: &Connection, timeouts: &Timeouts) -> End {
    let id = connection.id;
    let mut drain = connection.drain();
    let mut phase = Phase::Open;
    let mut is_draining = false;
    loop {
        tokio::select! {
            biased;
            served = http.as_mut() => {
                if let Err(error) = &served {
                    tracing::debug!(connection = id, %error, "connection closed");
                }
                return End::Served;
            }
            () = drain.next(is_draining) => {
                if is_draining {
                    tracing::debug!(connection = id, "the connection is cut off by the shutdown");
                    return End::Cut;
                }
                is_draining = true;
                phase = Phase::Closing { until: Some(Instant::now() + timeouts.drain) };
                http.as_mut().close();
            }
            what = connection.activity.overdue(timeouts, phase) => match what {
                Overdue::Head => {
                    tracing::debug!(connection = id, "no request arrived in time");
                    return End::NoHead;
                }
                Overdue::Read => {
                    tracing::debug!(connection = id, "the client does not read its responses");
                    connection.stats.add_stalled();
                    return End::Cut;
                }
                Overdue::Idle => {
                    phase = Phase::Closing { until: Some(Instant::now() + timeouts.drain) };
                    http.as_mut().close();
                }
                Overdue::Age => {
                    phase = Phase::Closing { until: None };
                    http.as_mut().close();
                }
                Overdue::End => {
                    tracing::debug!(connection = id, "the connection did not end in time");
                    connection.stats.add_overdue();
                    return End::Cut;
                }
            },
        }
    }
}

/// Sends the final answer to an HTTP/1 client, and reads what it still sends.
async fn end_http1<S, T: AsyncRead + AsyncWrite + Unpin>(shared: &Shared<S>, wire: Wire<T>, end: End) {
    let connection = wire.connection.clone();
    if connection.expect_open().is_err() {
        return;
    }
    let refusal = match (end, wire.refused()) {
        (End::Served, Some(StatusCode::URI_TOO_LONG)) => shared.policy.uri_too_long(),
        (End::Served, Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)) => shared.policy.headers_too_large(),
        (End::Served, Some(_)) => Refusal::new(Reason::Malformed, "this is not a valid HTTP request"),
        (End::NoHead, _) if connection.activity.has_begun_head() => {
            Refusal::new(Reason::HeaderTimeout, "the head of the request did not arrive in time")
        }
        (End::Served, None) if connection.activity.has_unread_body() => {
            wire.close_with(&[]).await;
            return;
        }
        _ => return,
    };
    connection.stats.add_refused(refusal.reason);
    connection.stats.add_answer(refusal.reason.status());
    wire.close_with(&shared.refusal_text(&refusal)).await;
}
