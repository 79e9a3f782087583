//! Service runtime for HTTP/1 and HTTP/2, with bounds on the bytes and the time that any client can use.
//!
//! An [`HttpServer`] takes a service that answers requests, and does the rest: TLS and plaintext on one port, limits
//! that are checked before a body is read, the client address behind trusted proxies, an access log, counters, and a
//! graceful shutdown. A service finds the client in the [`Caller`] in the extensions of a request. Requests and answers
//! are not boxed on their way.
//!
//! Decisions that depend only on a request's head are in `policy.rs` and `forwarded.rs`, which do no I/O.

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
mod unfinished;
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
    CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::service::Service;
use hyper::{Method, Request, Response};

pub use body::{Answer, BodyError, RequestBody};
pub use connection::{Caller, Connection};
pub use exchange::ACCESS_LOG;
pub use forwarded::{IpNetwork, NoNetwork, is_forwarded};
pub use policy::{foreign_page, is_followed_link, is_own_origin};
pub use refusal::{Reason, Refusal, RefusalBody, plain_text};
pub use server::HttpServer;
pub use stats::HttpStats;
pub use unfinished::Unfinished;

pub use crate::listen::Plaintext;
use crate::tls::Tls;
use crate::{Acceptor, Connections, Drain, Gate};
use activity::Timeouts;
use policy::{Limits, Policy};

/// Settings of a server. Each default is bounded.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Limit of the time until the head of a request is complete, including the handshake and the first byte; 10 s by
    /// default.
    pub header_timeout: Duration,
    /// Limit of the time for the next kilobyte of a body while it is being read, 30 s by default.
    pub body_timeout: Duration,
    /// Limit of the time that a connection stays open without a request, 60 s by default.
    pub idle_timeout: Duration,
    /// Limit of the time in which a client reads none of its waiting answers, 30 s by default.
    pub write_timeout: Duration,
    /// Age from which a connection accepts no more requests, even if it is busy; requests in progress are finished. No
    /// limit by default.
    pub age_max: Option<Duration>,
    /// Limit of the time that a connection takes to end once it has to, 10 s by default.
    pub drain_timeout: Duration,
    /// `true` if new connections are still served during the drain, so that a service can report it.
    pub answers_while_draining: bool,
    /// Hosts that are served, as `name`, `*.domain` or `name:port`. If empty, all hosts are served, unless the listener
    /// is local.
    pub hosts: Vec<String>,
    /// `true` if the listener is for this machine only: then the machine's own names are served, and in addition only
    /// `hosts`.
    pub is_local: bool,
    /// Origins whose web pages are allowed in addition to the server's own, `*` for any; `None` if the server offers no
    /// such list.
    pub origins: Option<Vec<String>>,
    /// Path of pages that links on web pages of any origin may open.
    pub pages: Option<&'static str>,
    /// Methods that are served; if empty, all.
    pub methods: Vec<Method>,
    /// Maximum bytes of a path with its query, 8 KiB by default.
    pub uri_bytes_max: usize,
    /// Maximum number of headers of a request, 100 by default.
    pub headers_count_max: usize,
    /// Maximum bytes of all header names and values of a request, plus four separator bytes per header; 32 KiB by
    /// default.
    pub header_bytes_max: usize,
    /// Maximum bytes of a request body, 4 MiB by default.
    pub body_bytes_max: u64,
    /// Proxies whose statements about the client of a request are trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Maximum requests per second of one client address, or of one /64 network of IPv6. A client may use up to one
    /// second's requests in a burst. No limit by default.
    pub requests_per_second: Option<NonZeroU32>,
    /// Maximum number of concurrent requests of one HTTP/2 connection, 128 by default.
    pub http2_streams_max: u32,
    /// Headers that restrict browsers; none by default.
    pub security_headers: SecurityHeaders,
    /// `true` if each request is logged, with the target [`ACCESS_LOG`].
    pub access_log: bool,
    /// Peers that may connect without TLS.
    pub plaintext: Plaintext,
    /// Check of plaintext connections for another protocol.
    pub first_bytes: FirstBytes,
    /// Function that renders the body of a refusal.
    pub refusal_body: RefusalBody,
    /// Account of memory for answers without a [`Charge`].
    pub ledger: Ledger,
    /// Check of the addresses of new connections.
    pub newcomers: Newcomers,
    /// Gate, if the service may have to stop answering at any moment.
    pub gate: Option<Arc<dyn Gate>>,
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
            pages: None,
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
            newcomers: Newcomers::default(),
            gate: None,
        }
    }
}

/// Permit that an answer holds until its last byte is written. A service puts it into the extensions of its answer.
#[derive(Clone)]
pub struct Charge {
    _held: Arc<dyn Send + Sync>,
}

impl Charge {
    /// Creates a charge that holds a value, typically a permit, until the answer is written.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Arc::new(held) }
    }
}

/// Function that provides memory for answers of known length without a [`Charge`]: given an address and a number of
/// bytes it returns a permit, or `None` if there is no room. Then the client is asked to try again later
/// ([`Reason::Memory`]).
#[derive(Clone, Default)]
pub struct Ledger(Option<Arc<TakeBytes>>);

type TakeBytes = dyn Fn(IpAddr, usize) -> Option<Charge> + Send + Sync;

impl Ledger {
    /// Creates a ledger from the function that provides the permits.
    pub fn new(take: impl Fn(IpAddr, usize) -> Option<Charge> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Returns a permit for `bytes` bytes, or `Ok(None)` if there is no account.
    fn take(&self, client: IpAddr, bytes: usize) -> Result<Option<Charge>, NoRoom> {
        self.0.as_ref().map(|take| take(client, bytes).ok_or(NoRoom)).transpose()
    }
}

/// Error if there is no memory for an answer.
struct NoRoom;

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Ledger(..)" } else { "Ledger(none)" })
    }
}

/// Function that checks the first bytes of a plaintext connection. If they are not HTTP, it may return an answer, which
/// is sent before the connection is closed.
#[derive(Clone, Default)]
pub struct FirstBytes(Option<Arc<AnswerFirstBytes>>);

type AnswerFirstBytes = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

impl FirstBytes {
    /// Creates a check from a function that returns the answer, or `None` to continue with HTTP.
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

/// Function that checks the address of a new connection, and may return the reason for which it is refused: its address
/// opens too many ([`Reason::Rate`]). Proxies that are trusted, and clients of this machine over a Unix socket, are not
/// checked.
#[derive(Clone, Default)]
pub struct Newcomers(Option<Arc<CheckNewcomer>>);

type CheckNewcomer = dyn Fn(IpAddr) -> Option<String> + Send + Sync;

impl Newcomers {
    /// Creates a check from the function that returns the reason for a refusal.
    pub fn new(refuse: impl Fn(IpAddr) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(refuse)))
    }

    fn refuse(&self, address: IpAddr) -> Option<String> {
        self.0.as_ref()?(address)
    }
}

impl fmt::Debug for Newcomers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Newcomers(..)" } else { "Newcomers(all)" })
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
        let policy = Policy::new(&self.hosts, self.is_local, self.origins.clone(), &self.methods, limits);
        policy.with_pages(self.pages)
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

/// Headers that restrict a browser's use of an answer. A header that the answer already has is not replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecurityHeaders {
    /// No additional headers.
    #[default]
    None,
    /// Headers for answers that are not pages: browsers do not guess the content type, run nothing in them, and show
    /// them in no frame.
    ForData {
        /// Number of seconds for which a browser that came by TLS uses only TLS for this host; `None` for no such
        /// header. Answers without TLS never have it (RFC 6797, section 7.2), and neither have those to requests for
        /// `localhost`: a browser would apply it to the servers on all ports of its own machine.
        https_only_s: Option<u32>,
    },
}

impl SecurityHeaders {
    fn headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Self::ForData { .. } = self {
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
            let policy = "default-src 'none'; frame-ancestors 'none'";
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
        }
        headers
    }

    /// Returns the value of the header that makes browsers use only TLS.
    fn https_only(self) -> Option<HeaderValue> {
        match self {
            Self::ForData { https_only_s: Some(seconds) } => HeaderValue::try_from(format!("max-age={seconds}")).ok(),
            Self::ForData { https_only_s: None } | Self::None => None,
        }
    }
}

/// Serves until the drain begins and the connections have ended or are cut. To read counters, use [`HttpServer`].
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
