//! Pub/Sub door as seen by clients.

mod calls;
mod model;
pub mod push;
mod transforms;
