//! One connection: which version of HTTP it speaks, how long it may take for what, and how it ends.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::Instant;

use super::activity::{Activity, Overdue, Phase, Timeouts};
use super::body::RequestBody;
use super::exchange::exchange;
use super::refusal::{Reason, Refusal};
use super::server::Shared;
use super::stats::HttpStats;
use super::wire::Wire;
use crate::tls::PeerIdentity;
use crate::{ConnectionPermit, Drain};

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection. While it is held, it counts as open and holds up the drain.
pub struct Connection {
    /// Of all connections of its listener, from 1.
    pub id: u64,
    pub peer: SocketAddr,
    pub is_tls: bool,
    /// Who the client has shown to be, if it was asked for a certificate.
    pub identity: Option<PeerIdentity>,
    pub(super) activity: Activity,
    pub(super) stats: Arc<HttpStats>,
    is_listener_draining: Arc<AtomicBool>,
    drain: Drain,
    _permit: ConnectionPermit,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        peer: SocketAddr,
        stats: Arc<HttpStats>,
        is_listener_draining: Arc<AtomicBool>,
        drain: Drain,
        permit: ConnectionPermit,
    ) -> Self {
        stats.add_connection();
        Self {
            id,
            peer,
            is_tls: false,
            identity: None,
            activity: Activity::default(),
            stats,
            is_listener_draining,
            drain,
            _permit: permit,
        }
    }

    /// Whether the listener is going away, so that nothing new should be begun. A connection that came
    /// since then has a drain of its own, which has not begun.
    pub fn is_listener_draining(&self) -> bool {
        self.is_listener_draining.load(Ordering::Relaxed)
    }

    /// What tells when the connection has to end.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }
}

/// Who makes a request; in the extensions of each.
#[derive(Clone)]
pub struct Caller {
    pub connection: Arc<Connection>,
    /// The client's address, behind proxies that are trusted.
    pub address: IpAddr,
    /// Whether the client speaks TLS, to this server or to a proxy that is trusted.
    pub is_secure: bool,
}

/// The version of HTTP on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// Reads until it is clear which version it is. `None` where the stream ends first.
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

/// What a server of either version can do.
trait Serving: Future<Output = hyper::Result<()>> {
    /// Takes no more requests and finishes those that are begun.
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

/// How serving a connection came to its end.
#[derive(Debug)]
enum End {
    Served,
    /// The head of a request did not come in time.
    NoHead,
    /// It was cut.
    Cut,
}

/// Serves a connection of HTTP/1 to its end. This future is what an idle connection costs, so that what is
/// rare is boxed in it.
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
        let (shared, connection) = (shared.clone(), connection.clone());
        service_fn(move |request| exchange(shared.clone(), connection.clone(), request))
    };
    let mut http = shared.http1.serve_connection(TokioIo::new(wire), service).with_upgrades();
    let end = drive(Pin::new(&mut http), &connection, &shared.timeouts).await;
    // `None` where the connection speaks something else by now.
    if let Some(parts) = http.into_parts() {
        Box::pin(end_http1(&shared, parts.io.into_inner(), end)).await;
    }
}

/// Serves a connection of HTTP/2 to its end.
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
        let (shared, connection) = (shared.clone(), connection.clone());
        service_fn(move |request| exchange(shared.clone(), connection.clone(), request))
    };
    let http = pin!(shared.http2.serve_connection(TokioIo::new(wire), service));
    drive(http, &connection, &shared.timeouts).await;
}

/// Runs a connection until it ends or something on it is overdue.
async fn drive<C: Serving>(mut http: Pin<&mut C>, connection: &Connection, timeouts: &Timeouts) -> End {
    let id = connection.id;
    let mut drain = connection.drain();
    let mut begun = pin!(drain.begun());
    let (mut phase, mut is_draining) = (Phase::Open, false);
    loop {
        tokio::select! {
            biased;
            served = http.as_mut() => {
                if let Err(error) = &served {
                    tracing::debug!(connection = id, %error, "connection closed");
                }
                return End::Served;
            }
            () = begun.as_mut(), if !is_draining => {
                is_draining = true;
                phase = Phase::Closing { until: Some(Instant::now() + timeouts.drain) };
                http.as_mut().close();
            }
            what = connection.activity.overdue(timeouts, phase) => match what {
                Overdue::Head => {
                    tracing::debug!(connection = id, "no request in time");
                    return End::NoHead;
                }
                Overdue::Read => {
                    tracing::debug!(connection = id, "the client does not read its answers");
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

/// What is still to be said to a client of HTTP/1, and to be read from it.
async fn end_http1<S, T: AsyncRead + AsyncWrite + Unpin>(shared: &Shared<S>, wire: Wire<T>, end: End) {
    let connection = wire.connection.clone();
    let refusal = match (end, wire.refused()) {
        (End::Served, Some(StatusCode::URI_TOO_LONG)) => shared.policy.uri_too_long(),
        (End::Served, Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)) => shared.policy.headers_too_large(),
        (End::Served, Some(_)) => Refusal::new(Reason::Malformed, "this is no request that can be read"),
        (End::NoHead, _) if connection.activity.has_begun_head() => {
            Refusal::new(Reason::HeaderTimeout, "the head of the request did not come in time")
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
