//! Load generators and their reports: for a broker, through the public client only, and for the service runtime alone.
//!
//! A load runs in another process than its server. This crate refuses to look inside a broker, and to report a run as a
//! success that lost a record or an answer.

// Loads.
mod load;
mod pubsub;
pub mod stream;
pub mod cache;
pub mod rpc;

// Measurements.
mod latency;
mod process;
mod machine;
mod alarm;

// Networks.
pub mod wan;

// Reports.
mod report;
mod table;
pub mod html;

pub use alarm::Alarm;
pub use latency::Latencies;
pub use machine::{Host, LoadAverage, Program};
pub use process::{CpuTime, resident_bytes};
pub use pubsub::{Mode, Pubsub, run};
pub use report::{Percentiles, Report};
pub use table::Table;
