//! Attempt to connect to one address: the transport, the hello and the login.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::security::{ClientExchange, Mechanism, UserName};
use engine::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use net::quic::{self, Windows};
use net::tls::trust::{Fault, Refusal};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use wire::{HelloOk, Request, Response};

use crate::address::Address;
use crate::book::Book;
use crate::connection::{Connection, Shape};
use crate::link::{Link, disconnected, unexpected};
use crate::probe::{self, Found};
use crate::settings::{ClientSettings, Secret};
use crate::tls;
use crate::watchdog::{self, Leader, Others};

/// Mechanism of the client's logins. The broker hashes nothing for it.
const MECHANISM: Mechanism = Mechanism::Sha256;
/// Mechanism of a login with the token of the administrator: [`MECHANISM`] with the token as the password.
const TOKEN: &str = "TOKEN";
/// Mechanism of a login with a token (RFC 7628).
const BEARER: &str = "OAUTHBEARER";
/// Random bytes of a login.
const NONCE_BYTES: usize = 18;
/// Maximum number of attempts to be relayed by a node that has no leader.
const RELAY_TRIES_MAX: u32 = 10;
/// Pause between these attempts.
const RELAY_PAUSE: Duration = Duration::from_millis(200);
/// Time without traffic after which the peer of an idle TCP connection is probed, with the interval and the number of
/// probes: a machine that vanished is noticed after 6 s, as over QUIC.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(3);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_TRIES: u32 = 3;
/// Maximum number of streams that a broker may open on one connection: one for each subscription.
const STREAMS_FROM_BROKER_MAX: u32 = 16_384;
/// Hint to the user if a program other than a native door listens there.
const NO_ANSWER: &str = "the server there accepts connections but does not answer in Thalweg's native protocol: use \
                         the address of the native door, which `thalweg serve` prints";

/// Attempt to connect to one of a broker's addresses.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub address: &'a Address,
    pub settings: &'a ClientSettings,
    /// Address book that learns from the answer.
    pub book: &'a Arc<Book>,
}

/// Broker that an attempt accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Any,
    /// Only a node of a cluster; the client does not log in at any other.
    Cluster,
}

impl Attempt<'_> {
    /// Connects, exchanges the hello and logs in, within the connect timeout.
    pub(crate) async fn connect(&self, shape: Shape) -> Result<Connection> {
        let timeout = self.settings.connect_timeout;
        let hint = Mutex::new(None);
        let connected = tokio::time::timeout(timeout, Box::pin(self.connect_now(shape, &hint))).await;
        connected.unwrap_or_else(|_elapsed| Err(self.late(&hint)))
    }

    /// Returns the error of an address that does not answer in time.
    fn late(&self, hint: &Mutex<Option<String>>) -> Error {
        let hint = hint.lock().take().unwrap_or_else(|| "is `thalweg serve` running there?".to_owned());
        let timeout_ms = self.settings.connect_timeout.as_millis();
        disconnected(&format!("no connection to {} within {timeout_ms} ms; {hint}", self.address))
    }

    /// Connects and exchanges the hello. `hint` receives advice for the user in case nothing answers in time.
    async fn connect_now(&self, shape: Shape, hint: &Mutex<Option<String>>) -> Result<Connection> {
        match self.address {
            Address::Tcp { .. } => {
                let socket = self.socket().await?;
                let peer = socket.peer_addr().map_err(|e| self.unreachable(&e))?;
                let connection =
                    self.over(Link::over_socket(socket), peer.ip().is_loopback(), Wanted::Any, hint).await?;
                self.watch(&connection, peer);
                Ok(connection)
            }
            Address::Tls { .. } => self.over_tls(Wanted::Any, hint).await,
            Address::Unix { path } => {
                let socket = UnixStream::connect(path).await.map_err(|e| self.no_socket(&e))?;
                self.over(Link::over_unix(socket), true, Wanted::Any, hint).await
            }
            Address::Pipe(pipes) => {
                let (input, output) = tokio::io::split(pipes());
                self.over(Link::over_stream(input, output), true, Wanted::Any, hint).await
            }
            Address::Quic { .. } => self.over_quic(shape, hint).await,
        }
    }

    async fn over_tls(&self, wanted: Wanted, hint: &Mutex<Option<String>>) -> Result<Connection> {
        let (link, peer) = self.tls_link().await?;
        let connection = self.over(link, true, wanted, hint).await?;
        self.watch(&connection, peer);
        Ok(connection)
    }

    async fn tls_link(&self) -> Result<(Arc<Link>, SocketAddr)> {
        let socket = self.socket().await?;
        let peer = socket.peer_addr().map_err(|e| self.unreachable(&e))?;
        let (config, refusal) = tls::client_config(self.settings, peer.ip().is_loopback())?;
        let name = rustls::pki_types::ServerName::try_from(self.address.host().to_owned())
            .map_err(|e| Error::invalid(format!("'{}' is not a valid name for TLS: {e}", self.address.host())))?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
        let stream = stream.map_err(|e| self.refused(&refusal).unwrap_or_else(|| self.no_tls(&e)))?;
        let (input, output) = tokio::io::split(stream);
        Ok((Link::over_stream(input, output), peer))
    }

    /// Watches a connection over TCP if its node can be replaced by another one.
    fn watch(&self, connection: &Connection, peer: SocketAddr) {
        if self.book.is_of_cluster() {
            let leader = connection.hello.cluster.as_ref().map(Leader::of);
            let others = Others::new(self.address, leader, self.settings, self.book);
            watchdog::watch(&connection.control, peer, others);
        }
    }

    /// Asks the node at this address which one leads: a hello over a connection of its own, without a login. Only TCP
    /// and TLS are asked.
    pub(crate) async fn ask_for_leader(&self) -> Option<Leader> {
        let link = match self.address {
            Address::Tcp { .. } => Link::over_socket(self.socket().await.ok()?),
            Address::Tls { .. } => self.tls_link().await.ok()?.0,
            Address::Unix { .. } | Address::Pipe(_) | Address::Quic { .. } => return None,
        };
        let _closing = Closing(Some(link.clone()));
        let hello = self.greet(&link, &Mutex::new(None)).await.ok()?;
        hello.cluster.as_ref().map(Leader::of)
    }

    async fn socket(&self) -> Result<TcpStream> {
        let address = self.address.resolve().await?;
        let socket = TcpStream::connect(address).await.map_err(|e| self.unreachable(&e))?;
        socket.set_nodelay(true).map_err(|e| self.unreachable(&e))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
        if let Err(error) = SockRef::from(&socket).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES)) {
            tracing::debug!(%error, "a socket sends no keepalives");
        }
        Ok(socket)
    }

    /// Exchanges the hello and logs in. `is_private` is `true` if nobody on the way can read what is sent.
    async fn over(
        &self,
        link: Arc<Link>,
        is_private: bool,
        wanted: Wanted,
        hint: &Mutex<Option<String>>,
    ) -> Result<Connection> {
        *hint.lock() = Some(NO_ANSWER.to_owned());
        let closing = Closing(Some(link.clone()));
        let hello = self.greet(&link, hint).await?;
        if wanted == Wanted::Cluster && hello.cluster.is_none() {
            return Err(Error::not_found("the broker is not a node of a cluster"));
        }
        self.log_in(&link, is_private).await?;
        closing.keep();
        Ok(Connection::over_link(link, hello, is_private, self.address))
    }

    /// Exchanges the hello.
    async fn greet(&self, link: &Link, hint: &Mutex<Option<String>>) -> Result<HelloOk> {
        let hello = link.hello(&self.settings.name, self.settings.connect_timeout).await;
        let hello = hello.map_err(|error| self.not_greeted(error, hint))?;
        link.know(self.book);
        self.book.answered(self.address, &hello);
        Ok(hello)
    }

    /// Logs in, if the settings have a login.
    async fn log_in(&self, link: &Link, is_private: bool) -> Result<()> {
        match self.settings.login.as_ref().map(|login| &*login.0) {
            None => Ok(()),
            Some(Secret::Password { user, password }) => {
                self.log_in_with(link, MECHANISM.name(), user, password).await?
            }
            Some(Secret::Token(token)) => {
                if !is_private {
                    return Err(Error::invalid(
                        "a token is sent to another machine only over TLS: use quic:// or tls://",
                    ));
                }
                let message = format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", token.as_str());
                self.send_login(link, BEARER, message.into_bytes(), true).await.map(drop)
            }
            Some(Secret::Administrator(token)) => {
                match self.log_in_with(link, TOKEN, &UserName::administrator(), token).await? {
                    Err(error) if error.kind == ErrorKind::Denied => Ok(()),
                    outcome => outcome,
                }
            }
        }
    }

    /// Logs in by SCRAM: the broker proves that it knows the password, and does not get it. Returns what the broker
    /// answered; fails if it cannot prove that it knows the password.
    async fn log_in_with(&self, link: &Link, mechanism: &str, user: &UserName, password: &str) -> Result<Result<()>> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {e}")))?;
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let (exchange, first) = ClientExchange::begin(MECHANISM, user, password, &nonce);
        let challenge = match self.send_login(link, mechanism, first, false).await {
            Ok(challenge) => challenge,
            Err(error) => return Ok(Err(error)),
        };
        let proved = tokio::task::spawn_blocking(move || exchange.prove(&challenge)).await;
        let (wanted, last) = proved.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a password could not be hashed: {error}")))
        })?;
        match self.send_login(link, mechanism, last, true).await {
            Ok(proof) => wanted.check(&proof).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn send_login(&self, link: &Link, mechanism: &str, message: Vec<u8>, is_last: bool) -> Result<Vec<u8>> {
        let login = Request::Login { mechanism: mechanism.to_owned(), message };
        match link.request(&login, self.settings.connect_timeout).await? {
            Response::Login { is_done, message } if is_done == is_last => Ok(message),
            other => Err(unexpected(&other)),
        }
    }

    async fn over_quic(&self, shape: Shape, hint: &Mutex<Option<String>>) -> Result<Connection> {
        let peer = self.address.resolve().await?;
        // The first use of TLS takes tens of milliseconds: an unused port is detected before it.
        if probe::is_free_here(peer) {
            return Box::pin(async { self.no_quic(peer, probe::look_at_tcp(peer).await, hint).await }).await;
        }
        let (config, refusal) = tls::client_config(self.settings, peer.ip().is_loopback())?;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("TLS is not usable for QUIC: {e}")))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(quic::transport(self.windows(shape), peer));
        let endpoint = self.endpoint(peer)?;
        let connecting = endpoint.connect_with(config, peer, self.address.host()).map_err(|e| self.unreachable(&e))?;
        let connection = tokio::select! {
            biased;
            connection = connecting => connection,
            found = self.probe(peer, hint) => return found,
        };
        let connection = connection.map_err(|e| self.refused(&refusal).unwrap_or_else(|| self.unreachable(&e)))?;
        let closing = ClosingQuic(Some(connection.clone()));
        let open = || async {
            let (send, receive) = connection.open_bi().await.map_err(|e| self.unreachable(&e))?;
            let link = Link::over_quic(send, receive);
            link.know(self.book);
            Ok::<_, Error>(link)
        };
        let control = open().await?;
        let hello = self.greet(&control, hint).await?;
        self.log_in(&control, true).await?;
        let mut publish = Vec::new();
        for _ in 0..shape.streams {
            // A broker serves a limited number of streams at a time (`pub_workers_per_conn`). Additional streams would
            // wait forever; the publishers share the existing ones.
            match open().now_or_never() {
                Some(link) => publish.push(link?),
                None => break,
            }
        }
        closing.keep();
        Ok(Connection::over_quic(control, publish, hello, endpoint, connection, self.address))
    }

    fn windows(&self, shape: Shape) -> Windows {
        Windows {
            connection_receive: shape.connection_receive,
            stream_receive: shape.stream_receive,
            send: self.settings.event_send_window,
            // The broker opens no bidirectional streams.
            bidirectional_streams: 0,
            unidirectional_streams: STREAMS_FROM_BROKER_MAX,
        }
    }

    /// Creates a UDP socket for one connection. Each connection has its own: the kernel drops packets that overflow a
    /// socket's buffer, and a burst to one subscriber must not cost another its packets.
    fn endpoint(&self, peer: SocketAddr) -> Result<quinn::Endpoint> {
        let local: SocketAddr = match (peer.is_ipv6(), peer.ip().is_loopback()) {
            (false, true) => (Ipv4Addr::LOCALHOST, 0).into(),
            (false, false) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            (true, true) => (Ipv6Addr::LOCALHOST, 0).into(),
            (true, false) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let made = quic::bind_socket(local, false).and_then(|socket| {
            quinn::Endpoint::new(quic::endpoint_config()?, None, socket, Arc::new(quinn::TokioRuntime))
        });
        made.map_err(|e| self.unreachable(&e))
    }

    /// Returns the error of a broker whose certificate was refused, if that is the cause.
    fn refused(&self, refusal: &Refusal) -> Option<Error> {
        let fault = refusal.take()?;
        let host = self.address.host();
        let hint = match fault {
            Fault::UnknownIssuer => "trust it, or its issuer, with --ca-file (ca_file)",
            Fault::OtherHost { .. } => "connect to a name that it has, or give the broker one that has this name",
            _ => "give the broker another one (tls_cert, tls_key)",
        };
        let port = self.address.port();
        Some(disconnected(&format!(
            "the broker at {} is not trusted: {fault}; {hint}; a broker that runs with --insecure also accepts \
             connections without TLS, at tcp://{host}:{port}",
            self.address
        )))
    }

    /// Searches for the reason while QUIC does not answer. Boxed, because most connections are established before it
    /// matters.
    fn probe<'b>(&'b self, peer: SocketAddr, hint: &'b Mutex<Option<String>>) -> BoxFuture<'b, Result<Connection>> {
        Box::pin(async move { self.no_quic(peer, probe::look(peer).await, hint).await })
    }

    /// Uses TCP to find the reason why QUIC does not answer. Returns once it is certain that QUIC never will: with a
    /// connection that a node of a cluster relays to its leader, or else with the error.
    async fn no_quic(&self, peer: SocketAddr, found: Found, hint: &Mutex<Option<String>>) -> Result<Connection> {
        let (socket, is_alone) = match found {
            Found::Nothing => {
                let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                return Err(self.unreachable(&refused));
            }
            Found::TcpAlone(socket) => (socket, true),
            Found::Tcp(socket) => (socket, false),
        };
        let scheme = if peer.ip().is_loopback() { "tcp" } else { "tls" };
        let way = format!("TCP works there and UDP does not; use {scheme}://{}:{}", self.address.host(), peer.port());
        *hint.lock() = Some(if is_alone { NO_ANSWER.to_owned() } else { way.clone() });
        let link = Link::over_socket(socket);
        let closing = Closing(Some(link.clone()));
        match link.hello(&self.settings.name, self.settings.connect_timeout).await {
            Err(error) if is_stranger(&error) => return Err(self.not_greeted(error, hint)),
            // No byte over TCP either: not a broker.
            Err(error) if error.kind == ErrorKind::Timeout => std::future::pending().await,
            // A broker, which may accept only TLS from other machines.
            _ => drop(closing),
        }
        match self.relayed().await {
            Ok(connection) => Ok(connection),
            Err(error) if error.kind == ErrorKind::Denied => Err(error),
            Err(_) if is_alone => {
                Err(disconnected(&format!("QUIC does not reach a broker at {}: {way}", self.address)))
            }
            Err(_) => std::future::pending().await,
        }
    }

    /// Connects over TLS to a node of a cluster that does not answer over QUIC, because it relays to the leader. TLS
    /// over TCP checks the same certificates. A node without a leader closes the connection; it is tried again.
    async fn relayed(&self) -> Result<Connection> {
        let address = Address::Tls { host: self.address.host().to_owned(), port: self.address.port() };
        let over_tls = Attempt { address: &address, settings: self.settings, book: self.book };
        let hint = Mutex::new(None);
        let mut tries = 1;
        loop {
            match over_tls.over_tls(Wanted::Cluster, &hint).await {
                Ok(mut connection) => {
                    connection.address = self.address.clone();
                    // The nodes are reachable over QUIC once they lead.
                    self.book.answered(self.address, &connection.hello);
                    return Ok(connection);
                }
                Err(error) if error.kind == ErrorKind::Disconnected && tries < RELAY_TRIES_MAX => {
                    tokio::time::sleep(RELAY_PAUSE).await;
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the error of a hello that was refused or not answered.
    fn not_greeted(&self, error: Error, hint: &Mutex<Option<String>>) -> Error {
        match (error.kind, self.address) {
            _ if is_stranger(&error) => disconnected(&format!("no native door at {}: {}", self.address, error.message)),
            (ErrorKind::Timeout, _) => self.late(hint),
            (ErrorKind::Disconnected, Address::Unix { .. }) => disconnected(&format!(
                "no native door answers at {}: {}; use the path of the key native_unix",
                self.address, error.message
            )),
            (ErrorKind::Disconnected, Address::Tcp { .. }) => disconnected(&format!(
                "no native door answers at {}: {}; a broker with a certificate requires TLS from other machines: use \
                 quic:// or tls://",
                self.address, error.message
            )),
            _ => error,
        }
    }

    /// Returns the error of a TLS handshake that failed for a reason other than the certificate.
    fn no_tls(&self, error: &std::io::Error) -> Error {
        use rustls::{AlertDescription, Error as Tls};
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Tls>());
        match cause {
            Some(Tls::AlertReceived(AlertDescription::NoApplicationProtocol) | Tls::InvalidMessage(_)) => {
                disconnected(&format!("no native door at {}: {NO_ANSWER}", self.address))
            }
            _ => self.unreachable(error),
        }
    }

    /// Returns the error of a Unix socket to which no connection can be opened.
    fn no_socket(&self, error: &std::io::Error) -> Error {
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return self.unreachable(error);
        }
        disconnected(&format!(
            "cannot connect to {}: {error}; by default only the user of the broker may: run this as that user, or \
             start the broker with unix_mode = 0660 (its group) or 0666 (every user), in a folder that they can enter",
            self.address
        ))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Error {
        disconnected(&format!("cannot reach a broker at {}: {error}; is `thalweg serve` running there?", self.address))
    }
}

/// Closes a link on drop, unless it is kept: the task that reads it would keep it open.
struct Closing(Option<Arc<Link>>);

impl Closing {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            link.close();
        }
    }
}

/// Closes a QUIC connection on drop, unless it is kept.
struct ClosingQuic(Option<quinn::Connection>);

impl ClosingQuic {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for ClosingQuic {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close(0u32.into(), b"done");
        }
    }
}

/// Returns `true` if the answer to a hello does not come from a native door.
fn is_stranger(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Malformed | ErrorKind::TooLarge)
}
