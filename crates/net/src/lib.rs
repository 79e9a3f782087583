//! Service runtime that is independent of the other crates: listeners, permits, TLS, HTTP, outboxes, workers, shutdown.
//!
//! Except for HTTP it knows no protocol. It accepts connections, keeps them within limits, reads bytes without holding
//! a buffer per idle connection, and writes chunks without copying them.

#![warn(missing_docs)]

pub mod accept;
mod heavy;
#[cfg(feature = "http")]
pub mod http;
pub mod limits;
pub mod listen;
mod names;
pub mod outbox;
pub mod quic;
pub mod read;
pub mod service;
pub mod workers;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod wheel;

pub use accept::Acceptor;
pub use limits::{ConnectionLimits, ConnectionPermit, Connections};
pub use listen::{Address, Listener, Plaintext};
pub use outbox::Outbox;
pub use service::{Server, Service, ServiceSettings};
pub use shutdown::{Drain, Shutdown};
pub use workers::Workers;
