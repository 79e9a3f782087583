//! Tests that need only the public API of the crate.

mod backups;
mod caches;
mod connections;
mod queues;
mod security;
mod nodes;
mod mesh;
mod vectors;
