//! The one API that every door calls. It owns the tasks, the timers and the clock, and no socket.

mod broker;
mod publish;
mod subscribe;
mod fetch;
mod topics;
mod partition;
mod subscriber;
mod lanes;
mod timers;
mod admission;
pub mod metrics;
mod settings;

pub use broker::Broker;
pub use fetch::Fetched;
pub use lanes::{LanePolicy, Lanes};
pub use metrics::Metrics;
pub use publish::{Published, Wakes};
pub use settings::Settings;
pub use subscribe::{Origin, SourceStart, Subscribe, Subscription, SubscriptionHandle};
pub use subscriber::Direct;
pub use topics::{PartitionStatus, TopicStatus};
