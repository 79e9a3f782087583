//! Typed protocols: what a peer says becomes a request, a handler answers it, and everything between the two
//! (limits, timeouts, order, back-pressure, shutdown, counts) is the same for all of them.
//!
//! ```text
//! transport ─► scratch ─► Protocol::decode ─► Handler::call ─► Protocol::encode ─► one write
//!                                                   └► pending, until the answer is there ─┘
//! ```

mod bodies;
mod body;
mod connection;
mod input;
pub mod layer;
mod out;
mod peer;
mod pending;
mod protocol;
mod rest;
mod scratch;
mod server;
mod transport;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use body::Body;
pub use input::Input;
pub use out::Out;
pub use peer::{Peer, Transport};
pub use protocol::{Decoded, Fault, FaultKind, Handler, Held, Never, Order, Protocol, Reply, Standing};
pub use server::Server;

use crate::limits::{Cap, Lease};
use crate::shards::Shard;
use crate::telemetry::{Cells, Telemetry, TelemetrySettings};

/// How long a peer and a handler may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the TLS or QUIC handshake.
    pub handshake: Duration,
    /// From the open connection to its first whole frame, and to all that a handler wants to have heard first.
    pub first_frame: Duration,
    /// For each later frame from its first byte to its last, with more for large ones.
    pub read: Duration,
    /// Without the peer taking anything of what waits for it.
    pub write: Duration,
    /// With nothing to do; `None` for protocols whose peers may be silent for ever. A dead peer is found out by
    /// the keep-alive of its transport.
    pub idle: Option<Duration>,
    /// For a request that is not answered at once.
    pub handler: Duration,
    /// For reading the last answers before the connection is closed.
    pub last_words: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            first_frame: Duration::from_secs(10),
            read: Duration::from_secs(30),
            write: Duration::from_secs(30),
            idle: Some(Duration::from_secs(120)),
            handler: Duration::from_secs(60),
            last_words: Duration::from_secs(1),
        }
    }
}

/// What a service is bounded by, beside its connections.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSettings {
    pub requests_in_flight_max: u64,
    /// Requests of one stream of frames that may wait for their answers, and as many that wait for their bodies.
    pub requests_per_connection_max: usize,
    /// Bodies that come in piece by piece at once.
    pub streamed_bodies_max: u64,
    pub frame_bytes_max: usize,
    pub body_bytes_max: u64,
    /// Bytes of frames and bodies that are not whole, of all connections together.
    pub memory_bytes_max: u64,
    /// How long a frame may wait for that memory.
    pub memory_wait: Duration,
    /// Bytes that may wait to be written to one connection.
    pub outbox_bytes_max: usize,
    /// Whether a peer has as long for its first byte as for its first frame, where that tells whether it speaks TLS.
    /// Otherwise it has the time of a handshake.
    pub waits_for_first_byte: bool,
    pub timeouts: Timeouts,
    pub telemetry: TelemetrySettings,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            requests_in_flight_max: 65_536,
            requests_per_connection_max: 1024,
            streamed_bodies_max: 8192,
            frame_bytes_max: 16 << 20,
            body_bytes_max: 16 << 20,
            memory_bytes_max: 512 << 20,
            memory_wait: Duration::from_secs(5),
            outbox_bytes_max: 1 << 20,
            waits_for_first_byte: false,
            timeouts: Timeouts::default(),
            telemetry: TelemetrySettings::default(),
        }
    }
}

/// How long a large frame has for its next piece while others wait for memory: less than they wait by default.
const PACE_WAIT: Duration = Duration::from_secs(2);
/// What a lease of memory takes at once.
const MEMORY_BLOCK_BYTES: u64 = 1 << 20;

/// A protocol, a handler and what bounds them. A [`Server`] runs it.
pub struct Service<P, H> {
    protocol: P,
    handler: H,
    pub settings: ServiceSettings,
    pub requests: Arc<Cap>,
    pub bodies: Arc<Cap>,
    pub memory: Arc<Cap>,
    pub telemetry: Arc<Telemetry>,
}

impl<P: Protocol + Clone + Send + Sync, H: Handler<P> + Clone + Send + Sync> Service<P, H> {
    /// Each shard gets a clone of both.
    pub fn new(protocol: P, handler: H, settings: ServiceSettings) -> Self {
        Self {
            protocol,
            handler,
            settings,
            requests: Cap::new(settings.requests_in_flight_max),
            bodies: Cap::new(settings.streamed_bodies_max),
            memory: Cap::with_block(settings.memory_bytes_max, MEMORY_BLOCK_BYTES),
            telemetry: Telemetry::new(settings.telemetry),
        }
    }

    /// The service on one shard.
    fn live(&self, shard: &Rc<Shard>) -> Live<P, H> {
        let leases = [&self.requests, &self.bodies, &self.memory].map(Cap::lease);
        for lease in &leases {
            let lease = Rc::downgrade(lease);
            shard.at_each_tick(move |is_last| lease.upgrade().inspect(|lease| lease.tick(is_last)).is_some());
        }
        let [requests, bodies, memory] = leases;
        Live {
            protocol: self.protocol.clone(),
            handler: self.handler.clone(),
            shard: shard.clone(),
            settings: self.settings,
            ticks: Ticks::new(&self.settings.timeouts, self.settings.memory_wait),
            requests,
            bodies,
            memory,
            cells: self.telemetry.cells(),
            counts_bytes: self.settings.telemetry.bytes,
            measures_durations: self.settings.telemetry.durations,
            phase: Cell::new(Phase::Serving),
        }
    }
}

/// A service on one shard.
struct Live<P, H> {
    protocol: P,
    handler: H,
    shard: Rc<Shard>,
    settings: ServiceSettings,
    ticks: Ticks,
    requests: Rc<Lease>,
    bodies: Rc<Lease>,
    memory: Rc<Lease>,
    cells: Arc<Cells>,
    counts_bytes: bool,
    measures_durations: bool,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// What is begun is finished.
    Draining,
    /// What is left is cut off.
    Aborting,
}

/// The timeouts in ticks of the shard's clock.
struct Ticks {
    first_frame: u64,
    read: u64,
    write: u64,
    idle: u64,
    handler: u64,
    last_words: u64,
    memory_wait: u64,
    pace: u64,
}

impl Ticks {
    fn new(timeouts: &Timeouts, memory_wait: Duration) -> Self {
        Self {
            first_frame: Shard::ticks(timeouts.first_frame),
            read: Shard::ticks(timeouts.read),
            write: Shard::ticks(timeouts.write),
            idle: timeouts.idle.map_or(u64::MAX, Shard::ticks),
            handler: Shard::ticks(timeouts.handler),
            last_words: Shard::ticks(timeouts.last_words),
            memory_wait: Shard::ticks(memory_wait),
            pace: Shard::ticks(PACE_WAIT),
        }
    }
}

/// A later answer that is one response.
pub fn once<F: Future>(response: F) -> futures_util::stream::Once<F> {
    futures_util::stream::once(response)
}

/// Later answers of a handler that has none.
pub type NoLater<R> = futures_util::stream::Pending<R>;
