//! The runtime from outside, as a program would use it.

mod bodies;
mod certificates;
mod counts;
mod fairness;
mod faults;
mod harness;
mod http;
mod http_server;
mod http_time;
mod limits;
mod pushes;
mod service;
mod shutdown;
mod sockets;
mod timeouts;
mod tls;
