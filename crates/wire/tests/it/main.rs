//! What can be tested from outside of the crate.

mod security;
mod vectors;
