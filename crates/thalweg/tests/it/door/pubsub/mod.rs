//! Pub/Sub door as seen by clients.

pub mod calls;
pub mod model;
pub mod push;
mod transforms;
