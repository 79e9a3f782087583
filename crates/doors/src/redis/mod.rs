//! The Redis door: caches for clients that speak the Redis protocol, over TCP and TLS on one port. Its databases are
//! the caches `db0` to `db15`.

mod access;
mod channels;
mod clients;
mod categories;
mod codec;
mod command;
mod commands;
mod connection;
mod databases;
mod door;
mod errors;
mod events;
mod held;
mod latencies;
mod later;
mod long_double;
mod monitors;
mod names;
mod notices;
mod pause;
mod permissions;
mod rdb;
mod receiver;
mod refusals;
mod room;
mod rules;
mod scripts;
mod shard_channels;
mod slices;
mod stats;
mod tracking;
mod wait;
mod writer;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::metrics::{Collect, Exposition};
use engine::cache::CacheSettings;
use net::service::Timeouts;
use net::{Plaintext, Server, Service, ServiceSettings};

use channels::Channels;
use clients::Clients;
pub use codec::check_requests;
use codec::{REQUEST_BYTES_MAX, RedisProtocol};
use commands::work::Slices;
pub use commands::work::TRANSACTION_TIME_MAX;
use connection::DATABASES;
pub use connection::answers;
use door::{Door, Parts};
use events::Events;
pub use events::check_flags;
use monitors::Monitors;
pub use names::place_of;
use notices::Notices;
use pause::Pause;
pub(crate) use permissions::permissions;
pub use rdb::{FileEntries, FileEntry, check_value, has_equal_value, refusal};
use refusals::Refusals;
pub use rules::check_rules;
pub use scripts::check_data;
use scripts::{Scripts, restore_all};
use shard_channels::ShardChannels;
use stats::Stats;
use tracking::Tracking;

/// Version of Redis whose commands and replies this door implements.
const VERSION: &str = "7.0.15";
/// Maximum number of bytes of incomplete requests, over all connections together.
const REQUESTS_BYTES_MAX: u64 = 192 << 20;
/// Maximum number of reply bytes queued for one connection before its further requests wait.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Write timeout: a peer that reads none of its queued bytes for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a request. Only a blocking command takes longer than a moment, and it may block forever.
const WAIT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Settings of the Redis door.
pub struct Settings {
    /// Maximum duration of the handshake, and of the login if one is required.
    pub hello_timeout: Duration,
    /// `true` if peers on other machines may connect without TLS.
    pub allow_plain: bool,
    /// `true` if clients must log in with AUTH.
    pub is_login_required: bool,
    /// `true` if databases that are created by their first use are durable.
    pub is_durable: bool,
    /// Time limit of a transaction, after which its remaining commands are refused.
    pub transaction_time_max: Duration,
    /// Classes of keyspace events that are published, as `notify-keyspace-events` of Redis.
    pub keyspace_events: String,
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        Box::pin(async move { open(&self, opening) })
    }
}

fn open(settings: &Settings, opening: Opening<'_>) -> io::Result<Opened> {
    let Opening { broker, workers, sockets, connections, shutdown, tls, gate } = opening;
    let first_frame = if settings.is_login_required { settings.hello_timeout } else { WAIT_MAX };
    let service_settings = ServiceSettings {
        frame_bytes_max: REQUEST_BYTES_MAX,
        memory_bytes_max: REQUESTS_BYTES_MAX,
        outbox_bytes_max: OUTBOX_BYTES_MAX,
        waits_for_first_byte: true,
        timeouts: Timeouts {
            handshake: settings.hello_timeout,
            // A client may keep connections in a pool that it has not used yet.
            first_frame,
            write: WRITE_TIMEOUT,
            idle: None,
            handler: WAIT_MAX,
            ..Timeouts::default()
        },
        ..ServiceSettings::default()
    };
    let clients = Arc::new(Clients::default());
    let exposed = clients.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let events = Arc::new(Events::new(&broker));
    if let Err(why) = events.set(&settings.keyspace_events) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("redis_keyspace_events: {why}")));
    }
    let tracking = Arc::new(Tracking::new(&broker, clients.clone()));
    let notices = Arc::new(Notices::new(events.clone(), tracking.clone()));
    notices.update(&broker.caches);
    let monitors = Arc::new(Monitors::new(&broker));
    let exposed = monitors.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let exposed = tracking;
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let exposed = events;
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let channels = Arc::new(Channels::default());
    let exposed = channels.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let clock = broker.settings().clock;
    let stats = Arc::new(Stats::new(clock));
    let shard_channels = Arc::new(ShardChannels::default());
    let exposed = (stats.clone(), shard_channels.clone());
    if settings.is_durable {
        // A database that is first used through another door is as durable.
        let durable = CacheSettings { is_durable: true, ..CacheSettings::default() };
        (0..DATABASES).for_each(|number| broker.caches.reserve(format!("db{number}"), durable));
    }
    broker
        .register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.0.expose(out).and(exposed.1.expose(out)))));
    let refusals = Arc::new(Refusals::default());
    let exposed = refusals.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let slices = Arc::new(Slices::default());
    let exposed = slices.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    let scripts = Arc::new(Scripts::default());
    let exposed = scripts.clone();
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| exposed.expose(out))));
    tokio::spawn(restore_all(Arc::downgrade(&scripts), Arc::downgrade(&broker)));
    tokio::spawn(Stats::sample_all(Arc::downgrade(&stats), Arc::downgrade(&broker)));
    let doors = broker.doors().clone();
    let protocol = RedisProtocol::new(clients.clone(), Arc::new(Pause::new(clock)), doors, scripts.clone());
    let door = Door::new(Parts {
        broker,
        clients,
        channels,
        shard_channels,
        notices,
        monitors,
        stats: stats.clone(),
        refusals,
        changing_acl: Arc::default(),
        settings: Arc::default(),
        pause: protocol.pause.clone(),
        began_ms: clock.now_ms(),
        connections: connections.clone(),
        is_login_required: settings.is_login_required,
        began: Instant::now(),
        port: sockets.address().port(),
        is_durable: settings.is_durable,
        slices,
        transaction_time_max: settings.transaction_time_max,
        scripts,
    });
    let service = Service::new(protocol, door, service_settings).with_gate(gate);
    let telemetry = service.telemetry.clone();
    stats.show(telemetry.clone());
    let server = Server::start(service, workers, connections, shutdown);
    let plaintext = if settings.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback };
    let forward = server.serve_at(sockets, tls.server_config(&[])?, plaintext)?;
    Ok(Opened { address: sockets.address(), telemetry: Some(telemetry), forward })
}
