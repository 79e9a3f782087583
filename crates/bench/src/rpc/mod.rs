//! Requests and responses over the service runtime itself: what it costs beside the bare system.

mod protocol;

pub use protocol::{END, ERROR, HEAD_BYTES, Head, OPCODE, Rpc, START};
