//! Kafka door: serves Kafka's clients and tools over TCP and TLS on one port.

mod access;
mod acls;
mod admin;
mod caller;
mod cluster;
mod codec;
mod configs;
mod connection;
mod errors;
mod fetch;
mod groups;
mod log;
mod map;
pub mod messages;
mod outcome;
mod parse;
mod produce;
mod quotas;
mod replicas;
mod security;
mod share;
mod tenants;
mod topics;
mod transactions;
mod write;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use broker::metrics::{Collect, Exposition};
use net::service::Timeouts;
use net::{Plaintext, Server, Service, ServiceSettings};

pub(crate) use access::permissions;
pub use codec::check_request;
use codec::{FRAME_BYTES_MAX, KafkaProtocol, LENGTH_BYTES};
pub use configs::restore_settings;
use connection::KafkaHandler;
use fetch::FetchBudget;
use share::ShareSessions;

/// Maximum number of unanswered requests per connection, such as batches that are still being written to disk.
const REQUESTS_PER_CONNECTION_MAX: usize = 1024;
/// Maximum bytes of incomplete requests, and of requests that block the rest of their connection, over all connections.
const FRAMES_BYTES_MAX: u64 = 192 << 20;
/// Maximum bytes of records that were fetched but not yet written to the client, over all connections.
const FETCHED_BYTES_MAX: usize = 1 << 30;
/// Maximum bytes of queued responses of a connection; above it the connection is not read.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Idle time after which a connection is closed. Kafka's default (`connections.max.idle.ms`): clients expect idle
/// connections to be closed after it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time without the peer reading any of its queued responses; after it the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time of a request; longer than a member of a group may wait for the other members.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3660);

/// Settings of the door.
pub struct Settings {
    /// Address that is advertised to clients; `None`: the address that they connected to.
    pub advertised: Option<(String, u16)>,
    /// Maximum time of a connection for its handshake, its login and its first request.
    pub hello_timeout: Duration,
    /// `true` if peers on other machines may connect without TLS.
    pub allow_plain: bool,
    /// `true` if clients have to log in by SASL.
    pub is_login_required: bool,
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        Box::pin(async move { open(&self, opening) })
    }
}

fn open(settings: &Settings, opening: Opening<'_>) -> io::Result<Opened> {
    let Opening { broker, workers, sockets, connections, shutdown, tls, gate } = opening;
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
    let protocol = KafkaProtocol { doors: broker.doors().clone(), answers: broker.answers().clone() };
    let handler = KafkaHandler {
        broker,
        advertised: settings.advertised.clone(),
        budget,
        shares,
        is_login_required: settings.is_login_required,
    };
    let service = Service::new(protocol, handler, service_settings).with_gate(gate);
    let telemetry = service.telemetry.clone();
    let server = Server::start(service, workers, connections, shutdown);
    let plaintext = if settings.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback };
    let forward = server.serve_at(sockets, tls.server_config(&[])?, plaintext)?;
    Ok(Opened { address: sockets.address(), telemetry: Some(telemetry), forward })
}
