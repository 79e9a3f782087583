//! The Kafka door.

pub mod messages;
