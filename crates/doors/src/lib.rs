//! One folder for each protocol that reaches the broker, all built alike: `mod.rs` serves, `codec.rs`
//! turns bytes into requests, `map.rs` turns requests into calls of the broker, `errors.rs` turns
//! kinds of error into what the protocol calls them. A foreign word stays inside its door.

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
