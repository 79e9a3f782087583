//! Doors of the broker: one folder per protocol, all with the same structure: `mod.rs` serves, `codec.rs` decodes
//! requests and encodes responses, `map.rs` maps requests to calls of the broker, and `errors.rs` maps kinds of errors
//! to the terms of the protocol. The terms of a foreign protocol are used only inside its folder.

#[cfg(any(feature = "redis", feature = "sqs"))]
mod fields;
pub mod http;
pub mod kafka;
mod ledger;
pub mod native;
#[cfg(feature = "pubsub")]
pub mod pubsub;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqs")]
pub mod sqs;
mod strangers;
