//! The Kafka door: what Kafka's clients and tools speak, over TCP and TLS on one port.

mod access;
mod acls;
mod admin;
mod codec;
mod configs;
mod connection;
mod errors;
mod fetch;
mod groups;
mod log;
mod map;
pub mod messages;
mod parse;
mod produce;
mod replicas;
mod security;
mod share;
mod topics;
mod transactions;
mod write;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use broker::metrics::{Collect, Exposition};
use net::service::Timeouts;
use net::telemetry::Telemetry;
use net::tls::Tls;
use net::{Address, Connections, Listener, Plaintext, Server, Service, ServiceSettings, Shards, Shutdown};

pub use codec::check_request;
use codec::{FRAME_BYTES_MAX, KafkaProtocol, LENGTH_BYTES};
pub use configs::restore_settings;
use connection::KafkaHandler;
use fetch::FetchBudget;
use share::ShareSessions;

/// Requests of one connection that may wait for their answers: batches that are on their way to the disk.
const REQUESTS_PER_CONNECTION_MAX: usize = 1024;
/// Bytes of requests that are not whole yet or beside which nothing else is handled, of all connections together.
const FRAMES_BYTES_MAX: u64 = 1 << 30;
/// Bytes of records that were fetched and not yet written to who asked, of all connections together.
const FETCHED_BYTES_MAX: usize = 1 << 30;
/// Bytes of answers that wait for one connection before it is no longer read.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Kafka's own (`connections.max.idle.ms`): clients know that a connection may be gone after it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a peer may take to read anything of what waits for it before it counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than a member of a group may wait for the others.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3660);

/// How the door is set up.
pub struct Settings {
    pub address: SocketAddr,
    /// Where clients are told to connect; `None`: where they did.
    pub advertised: Option<(String, u16)>,
    /// How long a connection may take for its handshake, its login and its first request.
    pub hello_timeout: Duration,
    /// Whether a peer that is not on this machine may speak without TLS.
    pub allow_plain: bool,
    /// Whether clients have to log in, by SASL.
    pub is_login_required: bool,
}

/// Serves until the drain begins. Returns the bound address, and what the service counts.
pub fn open(
    settings: &Settings,
    broker: Arc<Broker>,
    shards: &Arc<Shards>,
    connections: Arc<Connections>,
    shutdown: &Shutdown,
    tls: &Tls,
) -> io::Result<(SocketAddr, Arc<Telemetry>)> {
    let service_settings = ServiceSettings {
        requests_per_connection_max: REQUESTS_PER_CONNECTION_MAX,
        frame_bytes_max: LENGTH_BYTES + FRAME_BYTES_MAX,
        memory_bytes_max: FRAMES_BYTES_MAX,
        outbox_bytes_max: OUTBOX_BYTES_MAX,
        timeouts: Timeouts {
            handshake: settings.hello_timeout,
            first_frame: settings.hello_timeout,
            write: WRITE_TIMEOUT,
            idle: Some(IDLE_TIMEOUT),
            handler: REQUEST_TIMEOUT,
            ..Timeouts::default()
        },
        ..ServiceSettings::default()
    };
    let budget = FetchBudget::new(FETCHED_BYTES_MAX);
    let exposed = budget.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let shares = Arc::new(ShareSessions::default());
    let exposed = shares.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let protocol = KafkaProtocol { doors: broker.doors().clone() };
    let handler = KafkaHandler {
        broker,
        advertised: settings.advertised.clone(),
        budget,
        shares,
        is_login_required: settings.is_login_required,
    };
    let service = Service::new(protocol, handler, service_settings);
    let telemetry = service.telemetry.clone();
    let server = Server::start(service, shards, connections, shutdown);
    let plaintext = if settings.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback };
    let listener = Listener::tcp(settings.address)?.with_tls(tls.server_config(&[])?, plaintext);
    match server.listen(listener)? {
        Address::Tcp(address) => Ok((address, telemetry)),
        _ => Err(io::Error::other("the listener has no TCP address")),
    }
}
