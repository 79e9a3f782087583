//! The whole product from outside: real processes, real sockets, on loopback.

mod server;
mod raw;

mod transports;
