//! Doors as seen by clients of each protocol, by clients at the wrong door, and by peers that violate the protocol.

pub mod kafka;
pub mod redis;
pub mod sqs;
pub mod pubsub;
pub mod web;
mod console;
mod console_login;
pub mod access;
mod access_keys;
mod administration;
mod audit;
mod bad_input;
mod jwt;
mod permissions;
mod policies;
mod certificates;
mod connections;
mod quotas;
mod quotas_of_counts;
mod strangers;
mod tenants;
mod tokens;
mod unix;
