//! Service runtime that is independent of the other crates: listeners, permits, TLS, HTTP, outboxes, workers, shutdown.
//!
//! It accepts connections, keeps them within limits, reads bytes without holding a buffer per idle connection, and
//! writes chunks without copying them.
//!
//! This crate refuses to know a protocol other than HTTP, to know a topic or any other thing of the broker, and to hold
//! anything without a bound. Read it from the top.

#![warn(missing_docs)]

// Typed services: most programs need only this.
pub mod service;
#[cfg(feature = "http")]
pub mod http;

// A connection's way in.
pub mod listen;
pub mod accept;
mod sockets;
mod forward;
pub mod limits;
pub mod tls;
pub mod quic;
mod names;

// A connection's life on its worker.
pub mod workers;
mod heavy;
pub mod crowd;
pub mod read;
mod sweeps;
pub mod outbox;
pub mod wheel;

// The end, and what was counted.
mod gate;
pub mod shutdown;
pub mod telemetry;

pub use accept::{Accepted, Acceptor, Acceptors, UnixAcceptor, UnixPeer};
pub use forward::{Forward, Forwarded, Pipe};
pub use gate::Gate;
pub use limits::{ConnectionLimits, ConnectionPermit, Connections, OpenConnection};
pub use listen::{Address, Listener, Plaintext, UnixSocket};
pub use outbox::Outbox;
pub use service::{Server, Service, ServiceSettings};
pub use shutdown::{Drain, Shutdown};
pub use sockets::{Ports, Sockets};
pub use workers::Workers;
