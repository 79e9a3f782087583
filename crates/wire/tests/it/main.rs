//! What can be tested from outside of the crate.

mod queues;
mod security;
mod vectors;
