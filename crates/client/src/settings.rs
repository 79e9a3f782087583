//! Settings of a client. The defaults are those of the `balanced` profile.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::security::UserName;
use engine::{Error, Result};
use zeroize::Zeroizing;

use crate::address::Address;

/// Settings of a client: sizes of its connection pools, flow control windows and timeouts.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Number of connections for publishing, 4 by default.
    pub pub_conn_pool: usize,
    /// Publish streams per publish connection, 2 by default. A TCP connection always is one stream.
    pub pub_streams_per_conn: usize,
    /// Number of connections for subscriptions, 8 by default.
    pub event_conn_pool: usize,
    /// Number of connections for caches, 8 by default.
    pub cache_conn_pool: usize,
    /// Streams per cache connection, 4 by default. A TCP connection always is one stream.
    pub cache_streams_per_conn: usize,
    /// Maximum bytes in flight to this client on one connection for subscriptions, 256 MiB by default.
    pub event_conn_recv_window: u64,
    /// Maximum bytes in flight to one subscription, 64 MiB by default. This is also its credit.
    pub event_stream_recv_window: u64,
    /// Maximum bytes of answers in flight to this client on one cache connection, 256 MiB by default.
    pub cache_conn_recv_window: u64,
    /// Maximum bytes of answers in flight to this client on one stream of a cache connection, 64 MiB by default.
    pub cache_stream_recv_window: u64,
    /// Maximum bytes in flight to the broker on one connection, 256 MiB by default.
    pub event_send_window: u64,
    /// Size at which a publisher sends the records that it has gathered, 16 KiB by default. It sends them earlier when
    /// it is otherwise idle.
    pub publish_chunk_bytes: usize,
    /// Maximum number of unacknowledged batches of one publisher, 256 by default.
    pub publishes_in_flight_max: usize,
    /// Maximum duration of one connection attempt, 5 s by default. With several addresses, it applies to each; the next
    /// one is tried after 1 s without an answer.
    pub connect_timeout: Duration,
    /// Maximum duration of a request with all its attempts, 30 s by default.
    pub request_timeout: Duration,
    /// PEM file of the trusted certificates. `None` trusts the system's certificates, and any certificate on the
    /// loopback interface.
    pub ca_file: Option<PathBuf>,
    /// PEM files with the certificate chain and the private key with which this client logs in over TLS and QUIC.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Credential with which the client logs in; `None` sends no login. A password does not leave this process.
    pub login: Option<Login>,
    /// Name of this client, which it reports to the broker; `rust` by default.
    pub name: String,
    /// Function that is notified of lost and restored connections.
    pub observer: Option<LinkObserver>,
}

/// Credential of a client. Its secret is not shown when the value is printed, and is cleared from memory when it is
/// dropped.
#[derive(Clone)]
pub struct Login(pub(crate) Arc<Secret>);

pub(crate) enum Secret {
    Password {
        user: UserName,
        password: Zeroizing<String>,
    },
    /// Token of the administrator of a broker on this machine. If the broker does not know it, the client goes on
    /// without a login.
    Administrator(Zeroizing<String>),
    Token(Zeroizing<String>),
}

impl Login {
    /// Creates a login with a password, which must not be empty.
    pub fn new(user: &str, password: impl Into<String>) -> Result<Self> {
        let password = Zeroizing::new(password.into());
        if password.is_empty() {
            return Err(Error::invalid("the password of a login must not be empty"));
        }
        Ok(Self(Arc::new(Secret::Password { user: UserName::parse(user)?, password })))
    }

    /// Creates a login with a token. The token itself is sent, so the client refuses to send it without TLS to another
    /// machine.
    pub fn token(token: impl Into<String>) -> Result<Self> {
        let token = Zeroizing::new(token.into());
        if token.is_empty() || token.chars().any(|char| char.is_whitespace() || char.is_control()) {
            return Err(Error::invalid("the token of a login must not be empty, nor contain spaces"));
        }
        Ok(Self(Arc::new(Secret::Token(token))))
    }

    /// Creates the login of an administrator, with the token that a broker has written to a file of its user.
    pub fn administrator(token: impl Into<String>) -> Result<Self> {
        let token = Zeroizing::new(token.into());
        if token.is_empty() {
            return Err(Error::invalid("the token of a login must not be empty"));
        }
        Ok(Self(Arc::new(Secret::Administrator(token))))
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Secret::Password { user, .. } => write!(f, "Login({user})"),
            Secret::Token(_) => f.write_str("Login(token)"),
            Secret::Administrator(_) => f.write_str("Login(administrator)"),
        }
    }
}

/// Change of the connections to a broker.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LinkChange<'a> {
    /// A connection broke, and the first attempt to restore it failed for this reason. More attempts follow.
    Lost(&'a Error),
    /// A connection was restored after [`LinkChange::Lost`].
    Restored,
    /// A connection leads to another address than the one before it: to another node of the cluster.
    Moved(&'a Address),
}

/// Function that is called once when connections are lost, once when they are restored, and when they move to another
/// node. The connecting task calls it, so it should only forward the notification.
#[derive(Clone)]
pub struct LinkObserver(Arc<dyn Fn(LinkChange<'_>) + Send + Sync>);

impl LinkObserver {
    /// Creates an observer from a function, which must not block.
    pub fn new(observe: impl Fn(LinkChange<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn call(&self, change: LinkChange<'_>) {
        (self.0)(change);
    }
}

impl fmt::Debug for LinkObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkObserver")
    }
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            pub_conn_pool: 4,
            pub_streams_per_conn: 2,
            event_conn_pool: 8,
            cache_conn_pool: 8,
            cache_streams_per_conn: 4,
            event_conn_recv_window: 256 << 20,
            event_stream_recv_window: 64 << 20,
            cache_conn_recv_window: 256 << 20,
            cache_stream_recv_window: 64 << 20,
            event_send_window: 256 << 20,
            publish_chunk_bytes: 16_384,
            publishes_in_flight_max: 256,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            ca_file: None,
            identity: None,
            login: None,
            name: "rust".to_owned(),
            observer: None,
        }
    }
}
