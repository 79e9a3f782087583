//! The Kafka door as a client meets it. Its messages are written and read by a codec that is not the broker's.

mod admin;
mod groups;
mod produce_fetch;
pub mod raw;
pub mod security;
mod share;
mod topics;
mod transactions;
mod wrong;
