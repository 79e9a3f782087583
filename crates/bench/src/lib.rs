//! Load generators and their reports: of a broker, on the public client only, and of the service runtime alone.
//!
//! They run in another process than what they load. A run that loses a record or an answer says so.

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
