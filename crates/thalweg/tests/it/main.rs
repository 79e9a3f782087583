//! The whole product from outside: real processes, real sockets, on loopback.

mod raw;
mod reading;
mod server;

mod bad_input;
mod bystander;
mod command;
mod commands;
mod limits;
mod overflow;
mod proxy;
mod publishing;
mod requests;
mod resilience;
mod serve;
mod subscribing;
mod topics;
mod transports;
