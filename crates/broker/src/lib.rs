//! The one API that every door calls. The broker owns the tasks, the timers and the clock, but no socket.

mod admission;
mod alteration;
mod answers;
mod broker;
mod caches;
mod channels;
mod checking;
mod connection_limits;
mod defaults;
mod doors;
mod fetch;
mod groups;
mod growth;
mod internal;
mod joining;
mod lanes;
mod log;
mod logins;
pub mod metrics;
mod partition;
mod peers;
mod producers;
mod publish;
mod queues;
mod retention;
mod security;
mod settings;
mod streams;
mod subscribe;
mod subscriber;
mod timers;
mod topics;
mod transactions;

pub use answers::{Answers, FREE_BYTES, Held};
pub use broker::Broker;
pub use caches::{
    Attempt as CacheAttempt, Cache, CacheCommit, Finished, Keyed, Locked as LockedCache, StreamMark, Taken, Waiting,
};
pub use connection_limits::ConnectionLimits;
pub use doors::{Door, Doors};
pub use engine::Isolation;
pub use fetch::{AbortedTransaction, FetchFrom, FetchLimits, Fetched};
pub use groups::{
    Beat, ClassicInfo, Entered, GroupMember, GroupPartition, GroupStatus, GroupSummary, OffsetCommit, ResetTo,
    SHARE_IN_FLIGHT_MAX, ShareBeat, ShareGroupMember, ShareGroupStatus, ShareStart,
};
pub use lanes::{LanePolicy, Lanes};
pub use logins::LoginSource;
pub use metrics::Metrics;
pub use peers::{ForPeer, Networks, PeerLimits, for_peer, set_peer};
pub use producers::{ProducerIds, ReserveIds};
pub use publish::{Attempt, CommittingPublish, Published, WaitingPublish, Wakes};
pub use queues::{
    AcquireFrom, AcquireLimits, Acquired, NewQueue, OutMessage, PEEK_MAX, Peeked, QueueCounts, QueuePosition,
    QueueStart, RECEIVE_MAX, Receipt, Receive, Received, Redrive, RedriveId, RedriveState, SEND_MAX, SeekTo, Sent,
    Settlement,
};
pub use security::{ConfiguredUser, SecuritySettings, UserStatus};
pub use settings::Settings;
pub use streams::{LockedStream, NewEntryId, Saved, Stream, TrimTo};
pub use subscribe::{Origin, SourceStart, Subscribe, Subscription, SubscriptionHandle};
pub use subscriber::Direct;
pub use timers::now_ms;
pub use topics::{PartitionStatus, TopicOutline, TopicStatus};
pub use transactions::TransactionSummary;
