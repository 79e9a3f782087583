//! Pub/Sub door as seen by clients.

pub mod calls;
mod model;
pub mod push;
mod transforms;
