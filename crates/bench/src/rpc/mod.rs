//! Requests and responses over the service runtime itself: what it costs beside the bare system.
//!
//! The server and the load are two processes. Both speak the reference frames of `protocol`, so that each can be
//! run against the other end of another system.

mod arrivals;
mod dial;
mod load;
mod protocol;
mod report;
mod requester;
mod server;
mod worker;

pub use dial::{Secure, Target, Trust};
pub use load::{Outcome, Plan, run};
pub use protocol::{END, ERROR, HEAD_BYTES, Head, OPCODE, Rpc, START};
pub use report::LoadReport;
pub use server::{Place, RpcServer, Served, ServerSettings, Snapshot};

/// What both ends name when they agree on a protocol in the handshake of QUIC.
const ALPN: &[u8] = b"thalweg-rpc";
