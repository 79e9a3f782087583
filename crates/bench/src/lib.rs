//! A load generator on the public client only, and its reports.
//!
//! It runs in another process than the broker. A run that loses a record says so.

mod latency;
mod load;
mod pubsub;
mod report;
pub mod rpc;

pub use latency::Latencies;
pub use pubsub::{Mode, Pubsub, run};
pub use report::{Host, Percentiles, Report};
