//! The Kafka door as a client meets it. Its messages are written and read by a codec that is not the broker's.

mod produce_fetch;
pub mod raw;
mod topics;
mod wrong;
