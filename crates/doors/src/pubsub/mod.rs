//! The door of Google Pub/Sub's clients.

pub mod push;
pub mod schema;
