//! A service runtime that anyone can use without the rest: listeners, permits, TLS, HTTP, outboxes, shards, shutdown.
//!
//! It knows nothing of the protocol above it, save for HTTP: it accepts connections, keeps them within limits, reads
//! bytes without owning buffers while nothing comes, and writes chunks without copying them.

pub mod accept;
#[cfg(feature = "http")]
pub mod http;
pub mod limit;
mod names;
pub mod outbox;
pub mod quic;
pub mod read;
pub mod shards;
pub mod shutdown;
pub mod tls;

pub use accept::Acceptor;
pub use limit::{ConnectionLimit, ConnectionPermit};
pub use outbox::Outbox;
pub use shards::Shards;
pub use shutdown::{Drain, Shutdown};
