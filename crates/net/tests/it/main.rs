//! Tests of the runtime from outside, as a program would use it.

// Two examples have a module in common, and both are modules here.
#![allow(clippy::duplicate_mod)]

mod bodies;
mod certificates;
mod counts;
mod examples;
mod fairness;
mod faults;
mod forwarded;
mod gates;
mod harness;
mod http;
mod http_cut;
mod http_server;
mod http_time;
mod limits;
mod pushes;
mod service;
mod shutdown;
mod sockets;
mod timeouts;
mod tls;
