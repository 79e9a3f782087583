//! The broker as a whole: startup, security, limits, failures, and telemetry.

mod serve;
mod transports;
mod certificates;
mod logins;
mod secrets;
pub mod limits;
mod peers;
mod hardening_memory;
mod resilience;
mod telemetry;
mod traces;
mod fixture;
mod cut;
mod moving_leader;
mod cluster_demo;
