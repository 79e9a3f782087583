//! Doors of the broker: one folder per protocol, all with the same structure: `mod.rs` serves, `codec.rs` decodes
//! requests and encodes responses, `map.rs` maps requests to calls of the broker, and `errors.rs` maps kinds of errors
//! to the terms of the protocol. Redis has `commands/`, with a table of all commands, in place of `map.rs`. The
//! terms of a foreign protocol are used only inside its folder.
//!
//! A door refuses to keep state that another door would need, to decide what the broker decides, and to use another
//! door. [`Door`] is the one way to open one.

mod door;

// One folder per protocol.
pub mod native;
pub mod http;
pub mod kafka;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "pubsub")]
pub mod pubsub;

// Shared by doors.
#[cfg(any(feature = "redis", feature = "sqs"))]
mod encoded;
mod fields;
mod ledger;
mod login;
mod strangers;
mod throttle;
pub mod permissions;

pub use door::{Door, Opened, Opening};

/// Headers in which clients of a door send trace contexts, in addition to those of W3C Trace Context.
#[cfg(feature = "sqs")]
pub const TRACE_CARRIERS: &[engine::trace::Carrier] = &[sqs::TRACE_CARRIER];
#[cfg(not(feature = "sqs"))]
pub const TRACE_CARRIERS: &[engine::trace::Carrier] = &[];
