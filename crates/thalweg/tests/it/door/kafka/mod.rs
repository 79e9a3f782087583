//! Kafka door as seen by clients. The codec of the messages is not the broker's.

mod admin;
pub mod groups;
mod produce_fetch;
pub mod raw;
pub mod security;
mod share;
mod topics;
mod transactions;
mod wrong;
