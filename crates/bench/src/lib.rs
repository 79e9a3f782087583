//! Load generators and their reports: for a broker, through the public client only, and for the service runtime alone.
//!
//! A load runs in another process than its server. A run that loses a record or an answer reports that.

mod alarm;
pub mod cache;
pub mod html;
mod latency;
mod load;
mod machine;
mod process;
mod pubsub;
mod report;
pub mod rpc;
pub mod stream;
mod table;

pub use latency::Latencies;
pub use machine::{LoadAverage, Program};
pub use process::{CpuTime, resident_bytes};
pub use pubsub::{Mode, Pubsub, run};
pub use report::{Host, Percentiles, Report};
pub use table::Table;
