//! End-to-end tests of the whole product: real processes and real sockets, on loopback.

extern crate thalweg_client as client;

mod support;

mod log;
mod group;
mod queue;
mod cache;
mod door;
mod cli;
mod server;
mod cluster;
mod mesh;
mod versions;
