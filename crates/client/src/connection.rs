//! Connection to the broker: one stream over TCP, many over QUIC.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::security::{ClientExchange, Mechanism, UserName};
use engine::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use net::quic::{self, Windows};
use net::tls::trust::{Fault, Refusal};
use parking_lot::Mutex;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use wire::frame::BODY_BYTES_MAX;
use wire::{Assembler, Frame, HelloOk, Push, Request, Response};

use crate::address::Address;
use crate::link::{Incoming, Link, disconnected, unexpected};
use crate::probe::{self, Found};
use crate::settings::{ClientSettings, LinkChange, Secret};
use crate::tls;

/// Maximum number of streams that a broker may open on one connection: one for each subscription.
const STREAMS_FROM_BROKER_MAX: u32 = 16_384;
/// Mechanism of the client's logins. The broker hashes nothing for it.
const MECHANISM: Mechanism = Mechanism::Sha256;
/// Mechanism of a login with the token of the administrator: [`MECHANISM`] with the token as the password.
const TOKEN: &str = "TOKEN";
/// Mechanism of a login with a token (RFC 7628).
const BEARER: &str = "OAUTHBEARER";
/// Random bytes of a login.
const NONCE_BYTES: usize = 18;
/// Hint to the user if a program other than a native door listens there.
const NO_ANSWER: &str = "the server there accepts connections but does not answer in Thalweg's native protocol: use \
                         the address of the native door, which `thalweg serve` prints";

pub(crate) struct Connection {
    /// Stream that sent the hello; over TCP the only one.
    pub control: Arc<Link>,
    pub hello: HelloOk,
    /// `true` if nobody on the way can read what is sent.
    pub is_private: bool,
    /// Streams for publishing.
    pub publish: Vec<Arc<Link>>,
    subscription_ids: AtomicU32,
    quic: Option<Quic>,
}

struct Quic {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    /// Subscriptions whose stream has not arrived yet.
    expected: Arc<Mutex<HashMap<u32, oneshot::Sender<EventStream>>>>,
}

/// Stream of one subscription over QUIC, which its subscription reads by itself.
pub(crate) struct EventStream {
    receive: quinn::RecvStream,
    assembler: Assembler,
    frames: Vec<Frame>,
}

/// Source of a subscription's deliveries.
pub(crate) enum Events {
    Shared(Arc<crate::link::Inbox>),
    Expected(oneshot::Receiver<EventStream>),
    Own(Box<EventStream>),
}

/// Properties that all connections of a pool share.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Number of streams for requests, in addition to that of the hello. A TCP connection always is one stream.
    pub streams: usize,
    /// Maximum bytes in flight to this client on the connection, and in `stream_receive` on each of its streams.
    pub connection_receive: u64,
    pub stream_receive: u64,
}

/// State that the connections of one client share.
pub(crate) struct Dialer {
    pub address: Address,
    pub settings: ClientSettings,
    /// `true` if the observer was notified of a loss.
    is_lost: AtomicBool,
}

impl Dialer {
    pub(crate) fn new(address: Address, settings: ClientSettings) -> Self {
        Self { address, settings, is_lost: AtomicBool::new(false) }
    }

    /// Records that a connection that was open could not be restored immediately.
    pub(crate) fn lost(&self, error: &Error) {
        if !self.is_lost.swap(true, Ordering::Relaxed)
            && let Some(observer) = &self.settings.observer
        {
            observer.call(LinkChange::Lost(error));
        }
    }

    /// Records that a connection is open.
    fn restored(&self) {
        if self.is_lost.load(Ordering::Relaxed)
            && self.is_lost.swap(false, Ordering::Relaxed)
            && let Some(observer) = &self.settings.observer
        {
            observer.call(LinkChange::Restored);
        }
    }

    /// Connects and exchanges the hello, within the connect timeout.
    pub(crate) async fn connect(&self, shape: Shape) -> Result<Connection> {
        let timeout = self.settings.connect_timeout;
        let hint = Mutex::new(None);
        let connected = tokio::time::timeout(timeout, Box::pin(self.connect_now(shape, &hint))).await;
        let connected = connected.unwrap_or_else(|_elapsed| Err(self.late(&hint)));
        connected.inspect(|_| self.restored())
    }

    /// Returns the error of an address that does not answer in time.
    fn late(&self, hint: &Mutex<Option<String>>) -> Error {
        let hint = hint.lock().take().unwrap_or_else(|| "is `thalweg serve` running there?".to_owned());
        let timeout_ms = self.settings.connect_timeout.as_millis();
        disconnected(&format!("no connection to {} within {timeout_ms} ms; {hint}", self.address))
    }

    /// Connects and exchanges the hello. `hint` receives advice for the user in case nothing answers in time.
    async fn connect_now(&self, shape: Shape, hint: &Mutex<Option<String>>) -> Result<Connection> {
        match &self.address {
            Address::Tcp { .. } => {
                let socket = self.socket().await?;
                let is_private = socket.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
                self.over(Link::over_socket(socket), is_private, hint).await
            }
            Address::Tls { .. } => {
                let socket = self.socket().await?;
                let is_loopback = socket.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
                let (config, refusal) = tls::client_config(&self.settings, is_loopback)?;
                let name = rustls::pki_types::ServerName::try_from(self.address.host().to_owned()).map_err(|e| {
                    Error::invalid(format!("'{}' is not a valid name for TLS: {e}", self.address.host()))
                })?;
                let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
                let stream = stream.map_err(|e| self.refused(&refusal).unwrap_or_else(|| self.no_tls(&e)))?;
                let (input, output) = tokio::io::split(stream);
                self.over(Link::over_stream(input, output), true, hint).await
            }
            Address::Unix { path } => {
                let socket = UnixStream::connect(path).await.map_err(|e| self.no_socket(&e))?;
                self.over(Link::over_unix(socket), true, hint).await
            }
            Address::Pipe(pipes) => {
                let (input, output) = tokio::io::split(pipes());
                self.over(Link::over_stream(input, output), true, hint).await
            }
            Address::Quic { .. } => self.over_quic(shape, hint).await,
        }
    }

    async fn socket(&self) -> Result<TcpStream> {
        let address = self.address.resolve().await?;
        let socket = TcpStream::connect(address).await.map_err(|e| self.unreachable(&e))?;
        socket.set_nodelay(true).map_err(|e| self.unreachable(&e))?;
        Ok(socket)
    }

    /// Exchanges the hello and logs in. `is_private` is `true` if nobody on the way can read what is sent.
    async fn over(&self, link: Arc<Link>, is_private: bool, hint: &Mutex<Option<String>>) -> Result<Connection> {
        *hint.lock() = Some(NO_ANSWER.to_owned());
        let hello = link.hello(&self.settings.name, self.settings.connect_timeout).await;
        let hello = hello.map_err(|error| self.not_greeted(error, hint))?;
        self.log_in(&link, is_private).await?;
        Ok(Connection {
            publish: vec![link.clone()],
            control: link,
            hello,
            is_private,
            subscription_ids: AtomicU32::new(1),
            quic: None,
        })
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
            return Err(Box::pin(async { self.no_quic(peer, probe::look_at_tcp(peer).await, hint).await }).await);
        }
        let (config, refusal) = tls::client_config(&self.settings, peer.ip().is_loopback())?;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("TLS is not usable for QUIC: {e}")))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(quic::transport(self.windows(shape), peer));
        let endpoint = self.endpoint(peer)?;
        let connecting = endpoint.connect_with(config, peer, self.address.host()).map_err(|e| self.unreachable(&e))?;
        let connection = tokio::select! {
            biased;
            connection = connecting => connection,
            error = self.probe(peer, hint) => return Err(error),
        };
        let connection = connection.map_err(|e| self.refused(&refusal).unwrap_or_else(|| self.unreachable(&e)))?;
        let open = || async {
            let (send, receive) = connection.open_bi().await.map_err(|e| self.unreachable(&e))?;
            Ok::<_, Error>(Link::over_quic(send, receive))
        };
        let control = open().await?;
        let hello = control.hello(&self.settings.name, self.settings.connect_timeout).await;
        let hello = hello.map_err(|error| self.not_greeted(error, hint))?;
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
        let expected = Arc::default();
        tokio::spawn(route_streams(connection.clone(), Arc::clone(&expected)));
        Ok(Connection {
            control,
            hello,
            is_private: true,
            publish,
            subscription_ids: AtomicU32::new(1),
            quic: Some(Quic { endpoint, connection, expected }),
        })
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
    fn probe<'a>(&'a self, peer: SocketAddr, hint: &'a Mutex<Option<String>>) -> BoxFuture<'a, Error> {
        Box::pin(async move { self.no_quic(peer, probe::look(peer).await, hint).await })
    }

    /// Uses TCP to find the reason why QUIC does not answer. Returns once it is certain that QUIC never will.
    async fn no_quic(&self, peer: SocketAddr, found: Found, hint: &Mutex<Option<String>>) -> Error {
        let (socket, is_alone) = match found {
            Found::Nothing => {
                let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                return self.unreachable(&refused);
            }
            Found::TcpAlone(socket) => (socket, true),
            Found::Tcp(socket) => (socket, false),
        };
        let scheme = if peer.ip().is_loopback() { "tcp" } else { "tls" };
        let way = format!("TCP works there and UDP does not; use {scheme}://{}:{}", self.address.host(), peer.port());
        *hint.lock() = Some(if is_alone { NO_ANSWER.to_owned() } else { way.clone() });
        let link = Probing(Link::over_socket(socket));
        match link.0.hello(&self.settings.name, self.settings.connect_timeout).await {
            Err(error) if is_stranger(&error) => self.not_greeted(error, hint),
            // No byte over TCP either: not a broker.
            Err(error) if error.kind == ErrorKind::Timeout => std::future::pending().await,
            // A broker, which may accept only TLS from other machines.
            _ if is_alone => disconnected(&format!("QUIC does not reach a broker at {}: {way}", self.address)),
            _ => std::future::pending().await,
        }
    }

    /// Returns the error of a hello that was refused or not answered.
    fn not_greeted(&self, error: Error, hint: &Mutex<Option<String>>) -> Error {
        match (error.kind, &self.address) {
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

/// Link of a probe, which is closed on drop.
struct Probing(Arc<Link>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Returns `true` if the answer to a hello does not come from a native door.
fn is_stranger(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Malformed | ErrorKind::TooLarge)
}

impl Connection {
    /// Returns `true` if any of its streams is closed: they end together, and a remaining one is of no use alone.
    pub(crate) fn is_closed(&self) -> bool {
        self.control.is_closed() || self.publish.iter().any(|link| link.is_closed())
    }

    /// Closes the connection and waits until the close was sent to the broker.
    pub(crate) async fn close(&self) {
        self.control.close();
        if let Some(quic) = &self.quic {
            quic.connection.close(0u32.into(), b"done");
            quic.endpoint.wait_idle().await;
        }
    }

    pub(crate) fn next_subscription(&self) -> u32 {
        self.subscription_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Prepares to receive the events of a subscription. Must be called before the subscription is requested.
    pub(crate) fn expect_events(&self, subscription: u32) -> Result<Events> {
        match &self.quic {
            None => Ok(Events::Shared(self.control.open_inbox(subscription)?)),
            Some(quic) => {
                let (sender, receiver) = oneshot::channel();
                quic.expected.lock().insert(subscription, sender);
                Ok(Events::Expected(receiver))
            }
        }
    }

    pub(crate) fn forget_events(&self, subscription: u32) {
        match &self.quic {
            None => self.control.close_inbox(subscription),
            Some(quic) => drop(quic.expected.lock().remove(&subscription)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.control.close();
        for link in &self.publish {
            link.close();
        }
        if let Some(quic) = &self.quic {
            quic.connection.close(0u32.into(), b"done");
        }
    }
}

impl Events {
    pub(crate) async fn next(&mut self) -> Result<Push> {
        loop {
            match self {
                Self::Shared(inbox) => return inbox.next().await,
                Self::Own(stream) => return stream.next().await,
                Self::Expected(stream) => {
                    let stream = stream.await.map_err(|e| disconnected(&format!("the connection was closed: {e}")))?;
                    *self = Self::Own(Box::new(stream));
                }
            }
        }
    }
}

impl EventStream {
    async fn next(&mut self) -> Result<Push> {
        // Frames are kept newest first, so that the next one is at the end.
        while self.frames.is_empty() {
            self.read().await?;
        }
        let frame = self.frames.pop().ok_or_else(|| disconnected("the stream ended"))?;
        Push::decode(frame)
    }

    async fn read(&mut self) -> Result<()> {
        let mut incoming = Incoming { assembler: &mut self.assembler, frames: &mut self.frames };
        let read = net::read::read(&mut self.receive, &mut incoming).await;
        self.frames.reverse();
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(disconnected("the broker closed the stream")),
            Err(net::read::ReadError::Io(error)) => Err(disconnected(&format!("the connection broke: {error}"))),
            Err(net::read::ReadError::Refused(error)) => Err(error),
        }
    }
}

/// Routes each stream that the broker opens to the subscription that its first frame names.
async fn route_streams(
    connection: quinn::Connection,
    expected: Arc<Mutex<HashMap<u32, oneshot::Sender<EventStream>>>>,
) {
    while let Ok(receive) = connection.accept_uni().await {
        let expected = expected.clone();
        tokio::spawn(async move {
            let mut stream = EventStream { receive, assembler: Assembler::new(BODY_BYTES_MAX), frames: Vec::new() };
            while stream.frames.is_empty() {
                if stream.read().await.is_err() {
                    return;
                }
            }
            let id = stream.frames.last().and_then(|frame| frame.body.first_chunk().copied().map(u32::from_be_bytes));
            if let Some(sender) = id.and_then(|id| expected.lock().remove(&id)) {
                // A subscription that was dropped in the meantime drops its stream too.
                drop(sender.send(stream));
            }
        });
    }
    expected.lock().clear();
}
