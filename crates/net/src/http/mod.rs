//! A service runtime for HTTP/1 and HTTP/2: whatever a client does, it is bounded in bytes and in time.
//!
//! An [`HttpServer`] takes a service that answers requests, and does the rest: TLS and plaintext on one
//! port, limits that are checked before a body is read, the client behind trusted proxies, an access
//! log, counts, and an end in order. A service finds out who asks by the [`Caller`] in the extensions of
//! a request. Nothing of a request or an answer is boxed on the way.
//!
//! What is decided by a head alone is in `policy.rs` and `forwarded.rs`, which do no I/O.

mod activity;
mod body;
mod connection;
mod exchange;
mod forwarded;
mod policy;
mod rate;
mod refusal;
mod server;
mod stats;
mod wire;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use hyper::body::Body;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::service::Service;
use hyper::{Method, Request, Response};

pub use body::{Answer, BodyError, RequestBody};
pub use connection::{Caller, Connection};
pub use exchange::ACCESS_LOG;
pub use forwarded::{IpNetwork, NoNetwork};
pub use policy::is_own_origin;
pub use refusal::{Reason, Refusal, RefusalBody, plain_text};
pub use server::HttpServer;
pub use stats::HttpStats;

pub use crate::listen::Plaintext;
use crate::tls::Tls;
use crate::{Acceptor, Connections, Drain};
use activity::Timeouts;
use policy::{Limits, Policy};

/// What a server is set to. Each default is bounded.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// How long a connection may take for the head of a request, its handshake and first byte included.
    pub header_timeout: Duration,
    /// How long the client may take for the next kilobyte of a body, while that is being read.
    pub body_timeout: Duration,
    /// How long a connection stays open without a request.
    pub idle_timeout: Duration,
    /// How long a client may take to read on in its answers.
    pub write_timeout: Duration,
    /// When a connection takes no more requests, however busy it is; those that are begun are finished.
    pub age_max: Option<Duration>,
    /// How long a connection may take to end once it has to.
    pub drain_timeout: Duration,
    /// Whether new connections are still served during the drain, so that a service can tell them about it.
    pub answers_while_draining: bool,
    /// Hosts that are served, as `name`, `*.domain` or `name:port`; empty: any, unless the listener is local.
    pub hosts: Vec<String>,
    /// Whether the listener is for this machine alone: then its own names are served, and besides only `hosts`.
    pub is_local: bool,
    /// Origins whose web pages are let in besides the server's own, `*` for any; `None` where there can be none.
    pub origins: Option<Vec<String>>,
    /// Methods that are served; empty: any.
    pub methods: Vec<Method>,
    /// Bytes of a path with its query.
    pub uri_bytes_max: usize,
    pub headers_count_max: usize,
    /// Bytes of all names and values of a request, with the four that separate each from the next.
    pub header_bytes_max: usize,
    pub body_bytes_max: u64,
    /// Who is believed when it says for whom it forwards a request.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Requests of one client address, or one /64 of IPv6, which may save up those of a second.
    pub requests_per_second: Option<NonZeroU32>,
    /// Requests of one HTTP/2 connection side by side.
    pub http2_streams_max: u32,
    pub security_headers: SecurityHeaders,
    /// Whether each request is logged, with the target [`ACCESS_LOG`].
    pub access_log: bool,
    /// From where plaintext is taken.
    pub plaintext: Plaintext,
    /// Whether a plaintext connection is of another protocol.
    pub first_bytes: FirstBytes,
    /// How a refusal is worded.
    pub refusal_body: RefusalBody,
    /// Accounts for answers that were made without a [`Charge`].
    pub ledger: Ledger,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            age_max: None,
            drain_timeout: Duration::from_secs(10),
            answers_while_draining: false,
            hosts: Vec::new(),
            is_local: false,
            origins: None,
            methods: Vec::new(),
            uri_bytes_max: 8 << 10,
            headers_count_max: 100,
            header_bytes_max: 32 << 10,
            body_bytes_max: 4 << 20,
            trusted_proxies: Vec::new(),
            requests_per_second: None,
            http2_streams_max: 128,
            security_headers: SecurityHeaders::default(),
            access_log: false,
            plaintext: Plaintext::FromLoopback,
            first_bytes: FirstBytes::default(),
            refusal_body: plain_text,
            ledger: Ledger::default(),
        }
    }
}

/// The permit that an answer holds until its last byte was written: a service puts it into the extensions of its
/// answer.
#[derive(Clone)]
pub struct Charge {
    _held: Arc<dyn Send + Sync>,
}

impl Charge {
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Arc::new(held) }
    }
}

/// Takes memory for answers of known length whose service did not: a permit for so many bytes for an address, or `None`
/// where there is no room. Then the client is told to come again ([`Reason::Memory`]).
#[derive(Clone, Default)]
pub struct Ledger(Option<Arc<TakeBytes>>);

type TakeBytes = dyn Fn(IpAddr, usize) -> Option<Charge> + Send + Sync;

impl Ledger {
    pub fn new(take: impl Fn(IpAddr, usize) -> Option<Charge> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// `Ok(None)` where nobody accounts for anything.
    fn take(&self, client: IpAddr, bytes: usize) -> Result<Option<Charge>, NoRoom> {
        self.0.as_ref().map(|take| take(client, bytes).ok_or(NoRoom)).transpose()
    }
}

/// There is no memory for an answer.
struct NoRoom;

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Ledger(..)" } else { "Ledger(none)" })
    }
}

/// Looks at the first bytes of a plaintext connection. If they are not of HTTP, it may give an answer, which is sent
/// before the connection is closed.
#[derive(Clone, Default)]
pub struct FirstBytes(Option<Arc<AnswerFirstBytes>>);

type AnswerFirstBytes = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

impl FirstBytes {
    pub fn new(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(answer)))
    }

    fn answer(&self, first: &[u8]) -> Option<Vec<u8>> {
        self.0.as_ref()?(first)
    }
}

impl fmt::Debug for FirstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "FirstBytes(..)" } else { "FirstBytes(none)" })
    }
}

impl HttpSettings {
    fn policy(&self) -> Policy {
        let limits = Limits {
            uri_bytes_max: self.uri_bytes_max,
            headers_count_max: self.headers_count_max,
            header_bytes_max: self.header_bytes_max,
            body_bytes_max: self.body_bytes_max,
        };
        Policy::new(&self.hosts, self.is_local, self.origins.clone(), &self.methods, limits)
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts {
            header: self.header_timeout,
            idle: self.idle_timeout,
            write: self.write_timeout,
            age: self.age_max,
            drain: self.drain_timeout,
        }
    }
}

/// Headers by which a browser does less with an answer. An answer that has one of them keeps its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecurityHeaders {
    #[default]
    None,
    /// For what is no page: its type is not guessed, nothing in it runs, and no page shows it in a frame.
    ForData {
        /// For so many seconds a browser comes with TLS only.
        https_only_s: Option<u32>,
    },
}

impl SecurityHeaders {
    fn headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Self::ForData { https_only_s } = self {
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
            let policy = "default-src 'none'; frame-ancestors 'none'";
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
            let age = https_only_s.and_then(|seconds| HeaderValue::try_from(format!("max-age={seconds}")).ok());
            if let Some(age) = age {
                headers.insert(STRICT_TRANSPORT_SECURITY, age);
            }
        }
        headers
    }
}

/// Serves until the drain begins and the connections are done or cut. To see counts, use [`HttpServer`].
pub async fn serve<S, B>(
    acceptor: Acceptor,
    settings: HttpSettings,
    tls: Option<&Tls>,
    connections: Arc<Connections>,
    drain: Drain,
    service: S,
) -> io::Result<()>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    HttpServer::new(settings, tls, connections, service)?.serve(acceptor, drain).await;
    Ok(())
}
