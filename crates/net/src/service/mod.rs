//! Typed protocols: received bytes become a request, and a handler answers it. Everything between the two (limits,
//! timeouts, order, back-pressure, shutdown, counters) is shared by all protocols.
//!
//! ```text
//! transport ─► scratch ─► Protocol::decode ─► Handler::call ─► Protocol::encode ─► one write
//!                                                   └► pending, until the answer is ready ─┘
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
pub use protocol::{Decoded, Fault, FaultKind, Handler, Held, Never, Order, Protocol, Reply, Spent, Standing};
pub use server::Server;

use crate::Gate;
use crate::limits::{Cap, Lease};
use crate::outbox::Total;
use crate::telemetry::{Cells, Telemetry, TelemetrySettings};
use crate::workers::Worker;

/// Time limits of peers and handlers.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Limit of the TLS or QUIC handshake, 10 s by default.
    pub handshake: Duration,
    /// Limit from the open connection to its first complete frame, and to everything that the handler needs first; 10 s
    /// by default.
    pub first_frame: Duration,
    /// Limit of each later frame from its first byte to its last, with an allowance for large frames; 30 s by default.
    pub read: Duration,
    /// Limit of the time in which the peer accepts none of its waiting bytes, 30 s by default.
    pub write: Duration,
    /// Limit of the time without any activity, 120 s by default; `None` for protocols whose peers may be silent
    /// forever. A dead peer is then detected by the keep-alive of its transport.
    pub idle: Option<Duration>,
    /// Limit of a request that is not answered immediately, 60 s by default.
    pub handler: Duration,
    /// Time that the peer has to read the last answers before the connection is closed, 1 s by default.
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

/// Limits of a service, except for those of its connections.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSettings {
    /// Maximum number of requests in flight, 65,536 by default. Beyond it requests are refused as busy.
    pub requests_in_flight_max: u64,
    /// Maximum number of unanswered requests per stream of frames, and of incomplete bodies; 1024 each by default.
    pub requests_per_connection_max: usize,
    /// Maximum number of bodies that arrive in pieces at the same time, 8192 by default. Beyond it requests are refused
    /// as busy.
    pub streamed_bodies_max: u64,
    /// Maximum bytes of a frame, 16 MiB by default. A larger one closes its stream.
    pub frame_bytes_max: usize,
    /// Maximum bytes of a body that arrives in pieces, 16 MiB by default. A larger one closes its stream.
    pub body_bytes_max: u64,
    /// Maximum bytes of incomplete frames and bodies, over all connections; 512 MiB by default.
    pub memory_bytes_max: u64,
    /// Maximum wait of a frame for that memory, 5 s by default; zero refuses it immediately.
    pub memory_wait: Duration,
    /// Bytes that wait to be written to one connection before no more of its frames are handled, 1 MiB by default.
    pub outbox_bytes_max: usize,
    /// `true` if the first byte, which tells TLS from plaintext, may take as long as the first frame. Otherwise it may
    /// take as long as a handshake.
    pub waits_for_first_byte: bool,
    /// Time limits of peers and handlers.
    pub timeouts: Timeouts,
    /// Switches of the measurements that cost time.
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

/// Maximum pause between two pieces of a large frame while others wait for memory. It is shorter than their default
/// wait.
const PACE_WAIT: Duration = Duration::from_secs(2);
/// Block size of a lease of memory.
const MEMORY_BLOCK_BYTES: u64 = 1 << 20;

/// Protocol and handler with their limits. A [`Server`] runs it.
pub struct Service<P, H> {
    protocol: P,
    handler: H,
    /// Limits and timeouts.
    pub settings: ServiceSettings,
    /// Requests in flight, over all workers.
    pub requests: Arc<Cap>,
    /// Bodies that arrive in pieces, over all workers.
    pub bodies: Arc<Cap>,
    /// Bytes of incomplete frames and bodies, over all workers.
    pub memory: Arc<Cap>,
    /// Counters of the service, over all workers.
    pub telemetry: Arc<Telemetry>,
    gate: Option<Arc<dyn Gate>>,
    outboxes: Total,
}

impl<P: Protocol + Clone + Send + Sync, H: Handler<P> + Clone + Send + Sync> Service<P, H> {
    /// Creates a service. Each worker receives a clone of the protocol and of the handler.
    pub fn new(protocol: P, handler: H, settings: ServiceSettings) -> Self {
        Self {
            protocol,
            handler,
            settings,
            requests: Cap::new(settings.requests_in_flight_max),
            bodies: Cap::new(settings.streamed_bodies_max),
            memory: Cap::with_block(settings.memory_bytes_max, MEMORY_BLOCK_BYTES),
            telemetry: Telemetry::new(settings.telemetry),
            gate: None,
            outboxes: Total::default(),
        }
    }

    /// Adds a gate, if there is one: the service may then have to stop answering at any moment.
    pub fn with_gate(self, gate: Option<Arc<dyn Gate>>) -> Self {
        Self { gate, ..self }
    }

    /// Creates the instance of the service for one worker.
    fn live(&self, worker: &Rc<Worker>) -> Live<P, H> {
        let leases = [&self.requests, &self.bodies, &self.memory].map(Cap::lease);
        for lease in &leases {
            let lease = Rc::downgrade(lease);
            worker.at_each_tick(move |is_last| lease.upgrade().inspect(|lease| lease.tick(is_last)).is_some());
        }
        let [requests, bodies, memory] = leases;
        Live {
            protocol: self.protocol.clone(),
            handler: self.handler.clone(),
            worker: worker.clone(),
            settings: self.settings,
            ticks: Ticks::new(&self.settings.timeouts, self.settings.memory_wait),
            requests,
            bodies,
            memory,
            cells: self.telemetry.cells(),
            gate: self.gate.clone(),
            outboxes: self.outboxes.clone(),
            counts_bytes: self.settings.telemetry.bytes,
            measures_durations: self.settings.telemetry.durations,
            phase: Cell::new(Phase::Serving),
        }
    }
}

/// Instance of a service on one worker.
struct Live<P, H> {
    protocol: P,
    handler: H,
    worker: Rc<Worker>,
    settings: ServiceSettings,
    ticks: Ticks,
    requests: Rc<Lease>,
    bodies: Rc<Lease>,
    memory: Rc<Lease>,
    cells: Arc<Cells>,
    gate: Option<Arc<dyn Gate>>,
    outboxes: Total,
    counts_bytes: bool,
    measures_durations: bool,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Requests in progress are finished.
    Draining,
    /// Remaining connections are cut off.
    Aborting,
}

/// Timeouts in ticks of the worker's clock.
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
            first_frame: Worker::ticks(timeouts.first_frame),
            read: Worker::ticks(timeouts.read),
            write: Worker::ticks(timeouts.write),
            idle: timeouts.idle.map_or(u64::MAX, Worker::ticks),
            handler: Worker::ticks(timeouts.handler),
            last_words: Worker::ticks(timeouts.last_words),
            memory_wait: Worker::ticks(memory_wait),
            pace: Worker::ticks(PACE_WAIT),
        }
    }
}

/// Wraps a later answer that is a single response.
pub fn once<F: Future>(response: F) -> futures_util::stream::Once<F> {
    futures_util::stream::once(response)
}

/// Type of the later answers of a handler that has none.
pub type NoLater<R> = futures_util::stream::Pending<R>;
