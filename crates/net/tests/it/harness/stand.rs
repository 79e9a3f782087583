//! Server with any listener, and peers that connect to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use net::limits::{Cap, ConnectionLimits, Connections};
use net::quic::{self, Windows};
use net::service::{Service, ServiceSettings, Timeouts};
use net::shutdown::Ended;
use net::telemetry::{Telemetry, Totals};
use net::tls::{Tls, TlsSettings};
use net::{Address, Forwarded, Gate, Listener, Plaintext, Server, Shutdown, Sockets, Workers};
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::handler::Scripted;
use super::{Framed, PATIENCE, Peer, World, until, within};
use crate::certificates::{Authority, Folder};

/// Kind of listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Tcp,
    Tls,
    Unix,
    Quic,
    Pipe,
}

const HOST: &str = "server.example";
const ALPN: &[u8] = b"framed";
pub const WINDOWS: Windows = Windows {
    connection_receive: 1 << 20,
    stream_receive: 256 << 10,
    send: 1 << 20,
    bidirectional_streams: 64,
    unidirectional_streams: 4,
};
/// Address that forwarded clients have connected to.
pub const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 200)), 9000);
/// Capacity of a pipe in bytes.
const PIPE_BYTES: usize = 64 << 10;

/// Returns settings under which nothing times out.
pub fn patient() -> ServiceSettings {
    let timeouts = Timeouts {
        handshake: PATIENCE,
        first_frame: PATIENCE,
        read: PATIENCE,
        write: PATIENCE,
        idle: None,
        handler: PATIENCE,
        last_words: Duration::from_secs(5),
    };
    ServiceSettings { timeouts, ..ServiceSettings::default() }
}

pub fn impatient(change: impl FnOnce(&mut Timeouts)) -> ServiceSettings {
    let mut settings = patient();
    change(&mut settings.timeouts);
    settings
}

/// Server under test, with access to its counters and limits.
pub struct Fixture {
    pub is_in_order: bool,
    pub world: Arc<World>,
    pub telemetry: Arc<Telemetry>,
    pub requests: Arc<Cap>,
    pub bodies: Arc<Cap>,
    pub memory: Arc<Cap>,
    pub connections: Arc<Connections>,
    pub shutdown: Shutdown,
    pub server: Server,
    pub workers: Arc<Workers>,
    authority: Authority,
    tls: Arc<Tls>,
    sockets: TempDir,
    addresses: parking_lot::Mutex<Vec<(Way, Address)>>,
}

/// Configuration of a fixture.
pub struct Plan {
    pub is_in_order: bool,
    pub settings: ServiceSettings,
    pub limits: ConnectionLimits,
    pub workers: usize,
    pub gate: Option<Arc<dyn Gate>>,
}

impl Default for Plan {
    fn default() -> Self {
        let limits = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::default() };
        Self { is_in_order: true, settings: patient(), limits, workers: 2, gate: None }
    }
}

impl Fixture {
    /// Builds a fixture with answers in the order of requests.
    pub fn in_order(settings: ServiceSettings) -> Self {
        Self::build(Plan { settings, ..Plan::default() })
    }

    /// Builds a fixture with answers in the order of completion.
    pub fn out_of_order(settings: ServiceSettings) -> Self {
        Self::build(Plan { is_in_order: false, settings, ..Plan::default() })
    }

    pub fn both(settings: ServiceSettings) -> [Self; 2] {
        [Self::in_order(settings), Self::out_of_order(settings)]
    }

    pub fn build(plan: Plan) -> Self {
        let world = Arc::new(World::default());
        let workers = Arc::new(Workers::start(plan.workers).expect("threads"));
        let connections = Connections::new(plan.limits);
        let shutdown = Shutdown::default();
        let handler = Scripted(world.clone());
        macro_rules! start {
            ($in_order:literal) => {{
                let service = Service::new(Framed::<$in_order>, handler, plan.settings).with_gate(plan.gate);
                let caps = (service.requests.clone(), service.bodies.clone(), service.memory.clone());
                let telemetry = service.telemetry.clone();
                (Server::start(service, &workers, connections.clone(), &shutdown), caps, telemetry)
            }};
        }
        let (server, (requests, bodies, memory), telemetry) =
            if plan.is_in_order { start!(true) } else { start!(false) };
        let authority = Authority::new();
        let folder = Folder::new();
        let identities = vec![folder.identity("own", &authority.server(HOST))];
        let tls = Tls::new(TlsSettings { identities, refuse_unknown_names: false, client_auth: None }).expect("TLS");
        Self {
            is_in_order: plan.is_in_order,
            world,
            telemetry,
            requests,
            bodies,
            memory,
            connections,
            shutdown,
            server,
            workers,
            authority,
            tls,
            sockets: tempfile::tempdir().expect("a temporary folder"),
            addresses: parking_lot::Mutex::default(),
        }
    }

    /// Returns the address of the listener, which is opened on the first call.
    pub fn address(&self, way: Way) -> Address {
        let mut addresses = self.addresses.lock();
        if let Some((_, address)) = addresses.iter().find(|(bound, _)| *bound == way) {
            return address.clone();
        }
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = || self.tls.server_config(&[ALPN]).expect("a configuration");
        let listener = match way {
            Way::Tcp => Listener::tcp(free),
            Way::Tls => Listener::tcp(free).map(|tcp| tcp.with_tls(config(), Plaintext::Refused)),
            Way::Unix => Listener::unix(&self.socket_path()),
            Way::Quic => {
                let config = quic::server_config(config()).expect("a configuration");
                Listener::quic(free, config, WINDOWS, 1, &self.workers)
            }
            Way::Pipe => panic!("a pipe has no address"),
        };
        let address = self.server.listen(listener.expect("bound")).expect("an address");
        addresses.push((way, address.clone()));
        address
    }

    /// Serves at sockets that are bound.
    pub fn listen_over(&self, sockets: &Sockets, way: Way) {
        let config = || self.tls.server_config(&[ALPN]).expect("a configuration");
        let listener = match way {
            Way::Tcp => sockets.tcp().expect("a listener"),
            Way::Tls => sockets.tcp().expect("a listener").with_tls(config(), Plaintext::Refused),
            Way::Unix => sockets.unix().expect("a listener").expect("a Unix socket"),
            Way::Quic => {
                let config = quic::server_config(config()).expect("a configuration");
                sockets.quic(config, WINDOWS, &self.workers).expect("a listener").expect("UDP sockets")
            }
            Way::Pipe => panic!("a pipe has no socket"),
        };
        let address = self.server.listen(listener).expect("an address");
        self.addresses.lock().push((way, address));
    }

    /// Opens another TLS listener; peers that `plaintext` allows may connect without TLS.
    pub fn listen_tls(&self, plaintext: Plaintext) -> SocketAddr {
        let tcp = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
        let config = self.tls.server_config(&[ALPN]).expect("a configuration");
        match self.server.listen(tcp.with_tls(config, plaintext)).expect("an address") {
            Address::Tcp(address) => address,
            other => panic!("no TCP: {other}"),
        }
    }

    /// Returns the first packet of a QUIC client.
    pub async fn first_quic_packet(&self) -> Vec<u8> {
        let trap = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let (endpoint, config) = self.quic_client().expect("a client");
        let at = trap.local_addr().expect("an address");
        let _connecting = endpoint.connect_with(config, at, HOST).expect("begun");
        let mut packet = vec![0; 65_536];
        let (len, _) = within("a packet", trap.recv_from(&mut packet)).await.expect("received");
        packet.truncate(len);
        packet
    }

    fn quic_client(&self) -> std::io::Result<(quinn::Endpoint, quinn::ClientConfig)> {
        let socket = quic::bind_socket((Ipv4Addr::LOCALHOST, 0).into(), false)?;
        let endpoint = quinn::Endpoint::new(quic::endpoint_config()?, None, socket, Arc::new(quinn::TokioRuntime))?;
        let config = self.authority.client(&[ALPN], None);
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).expect("TLS 1.3");
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(quic::transport(WINDOWS, (Ipv4Addr::LOCALHOST, 0).into()));
        Ok((endpoint, config))
    }

    pub fn socket_path(&self) -> PathBuf {
        self.sockets.path().join("socket")
    }

    pub fn socket_address(&self, way: Way) -> SocketAddr {
        match self.address(way) {
            Address::Tcp(address) | Address::Quic(address) => address,
            other => panic!("{other} is no network"),
        }
    }

    pub async fn dial(&self, way: Way) -> Peer {
        self.try_dial(way).await.expect("connected")
    }

    /// Opens a connection that ends with a reset, if the transport has resets; a Unix socket has one if bytes were not
    /// read.
    pub async fn dial_abrupt(&self, way: Way) -> Peer {
        self.connect(way, true).await.expect("connected")
    }

    pub async fn try_dial(&self, way: Way) -> std::io::Result<Peer> {
        self.connect(way, false).await
    }

    async fn connect(&self, way: Way, is_abrupt: bool) -> std::io::Result<Peer> {
        let tcp = async |way| {
            let socket = TcpStream::connect(self.socket_address(way)).await?;
            socket.set_nodelay(true)?;
            if is_abrupt {
                SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
            }
            std::io::Result::Ok(socket)
        };
        let connect = async {
            match way {
                // Closing the halves one by one would close the connection gracefully before the reset.
                Way::Tcp if is_abrupt => Ok(Peer::of(tcp(way).await?)),
                Way::Tcp => {
                    let (input, output) = tcp(way).await?.into_split();
                    Ok(Peer::new(input, output))
                }
                Way::Tls => {
                    let connector = TlsConnector::from(self.authority.client(&[ALPN], None));
                    let name = ServerName::try_from(HOST).expect("a name");
                    Ok(Peer::of(connector.connect(name, tcp(way).await?).await?))
                }
                Way::Unix => {
                    let Address::Unix(path) = self.address(way) else { panic!("no path") };
                    let socket = UnixStream::connect(path).await?;
                    if is_abrupt {
                        return Ok(Peer::of(socket));
                    }
                    let (input, output) = socket.into_split();
                    Ok(Peer::new(input, output))
                }
                Way::Quic => {
                    let (quic, endpoint) = self.quic().await?;
                    let (output, input) = quic.open_bi().await?;
                    Ok(Peer { quic: Some((quic, endpoint)), ..Peer::new(input, output) })
                }
                Way::Pipe => {
                    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                    self.server.serve_pipe(theirs);
                    Ok(Peer::of(ours))
                }
            }
        };
        within("connecting", connect).await
    }

    /// Forwards a connection of a client with this address, and returns the side of the client.
    pub fn forward(&self, peer: SocketAddr, plaintext: Plaintext, owner: bool) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let forwarded = Forwarded { stream: Box::new(theirs), peer, local: Some(LOCAL), owner };
        let config = self.tls.server_config(&[ALPN]).expect("a configuration");
        self.server.serve_forwarded(forwarded, config, plaintext);
        ours
    }

    /// Begins TLS over a connection.
    pub async fn tls_over(&self, stream: DuplexStream) -> std::io::Result<Peer> {
        let connector = TlsConnector::from(self.authority.client(&[ALPN], None));
        let name = ServerName::try_from(HOST).expect("a name");
        Ok(Peer::of(within("a handshake", connector.connect(name, stream)).await?))
    }

    /// Opens a QUIC connection without streams.
    pub async fn quic(&self) -> std::io::Result<(quinn::Connection, quinn::Endpoint)> {
        self.quic_at(self.socket_address(Way::Quic)).await
    }

    /// Returns the settings of a QUIC listener.
    pub fn quic_config(&self) -> quinn::ServerConfig {
        quic::server_config(self.tls.server_config(&[ALPN]).expect("a configuration")).expect("a configuration")
    }

    pub async fn quic_at(&self, at: SocketAddr) -> std::io::Result<(quinn::Connection, quinn::Endpoint)> {
        let (endpoint, config) = self.quic_client()?;
        let quic = endpoint.connect_with(config, at, HOST).map_err(std::io::Error::other)?.await?;
        Ok((quic, endpoint))
    }

    pub fn totals(&self) -> Totals {
        self.telemetry.totals()
    }

    /// Waits until the server has read this number of bytes.
    pub async fn has_read(&self, bytes: u64) {
        until("the server reads", || self.totals().bytes_read >= bytes).await;
    }

    /// Waits until all connections are closed, and checks that nothing is left of them.
    pub async fn assert_all_released(&self) -> Totals {
        let places = || self.workers.loads().iter().sum::<usize>();
        until("all are closed", || self.connections.open() + self.totals().connections() as usize + places() == 0)
            .await;
        let totals = self.totals();
        assert_eq!(totals.requests_started, totals.requests_completed, "{totals:?}");
        assert_eq!(totals.connections_opened, totals.connections_closed, "{totals:?}");
        let in_use = (self.requests.in_use(), self.bodies.in_use(), self.memory.in_use());
        assert_eq!(in_use, (0, 0, 0), "requests, bodies and memory in use");
        totals
    }

    /// Shuts the server down within the given deadline.
    pub async fn end(&self, deadline: Duration) -> Ended {
        within("the shutdown", self.shutdown.run(deadline)).await
    }
}
