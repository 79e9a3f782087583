//! Requests and responses over the service runtime alone: its cost in comparison with the bare system.
//!
//! The server and the load are two processes. Both use the reference frames of `protocol`, so that each can be run
//! against the other end of another system.

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

/// Protocol name that both ends negotiate in the QUIC handshake.
const ALPN: &[u8] = b"thalweg-rpc";
