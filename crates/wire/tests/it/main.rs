//! What can be tested from outside of the crate.

mod caches;
mod queues;
mod security;
mod vectors;
