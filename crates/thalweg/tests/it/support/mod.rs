//! Helpers of the tests: the broker in a separate process, the program, peers, and checks.

pub mod server;
pub mod ports;
pub mod command;
pub mod reading;
pub mod raw;
pub mod proxy;
pub mod bystander;
pub mod access;
pub mod cluster;
#[path = "../../../../net/tests/it/certificates.rs"]
#[expect(dead_code, reason = "the tests of the runtime need more of it")]
pub mod certificates;
pub mod tunnel;
pub mod collector;
