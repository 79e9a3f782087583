//! The API behind every door: topics, and the views over them. It owns the tasks, the timers and the clock.
//!
//! It refuses to open a socket, to parse a protocol and to decide what a log, a queue or a group is: doors do the first
//! two, and `engine` the last. Read it from the top: each layer uses those below it and knows none above.

// The table of contents: a broker, and what a change of a topic means for its views.
mod broker;
mod control;
mod backups;
mod copies;
mod access;
mod upkeep;

// Views over topics.
mod caches;
mod documents;
mod groups;
mod queues;
mod security;
mod streams;
mod transactions;

// The core: the paths of publish, subscribe and fetch.
mod core;
mod leading;
mod cluster;
mod sites;
mod arrivals;
mod publish;
mod fetch;
mod epochs;
mod subscribe;
mod permit;
mod limited;
mod joining;
mod topics;
mod changed_topics;
mod channels;
mod ordered;
mod state_log;
mod restored;
mod defaults;
mod producers;

// One partition, and what is delivered from it.
mod topic;
mod partition;
mod log;
mod leadership;
mod mesh;
mod retention;
mod view;
mod subscriber;
mod wakes;
mod commit;

// Limits, turns and budgets.
mod acting;
mod admission;
mod answers;
mod audit;
mod audit_log;
mod backup_table;
mod checking;
mod connection_limits;
mod disconnect;
mod holdings;
mod lanes;
mod logins;
mod open_connections;
mod peers;
mod quotas;
mod reader;
mod recent;
mod tenant_quotas;
mod suggestions;
mod turns;

// Settings, addresses, metrics and time.
mod clock;
mod doors;
pub mod metrics;
mod settings;
mod traces;

pub use acting::{Acting, ForClient, act_as, act_for, finish, for_client};
pub use answers::{Answers, FREE_BYTES, Held};
pub use audit::AuditSettings;
pub use backups::BegunBackup;
pub use broker::Broker;
pub use caches::{
    Attempt as CacheAttempt, Awaited, Cache, Caches, Cause, Finished, Keyed, Locked as LockedCache, Note, NoteListener,
    StreamMark, Taken, Waiting, Wanted, What,
};
pub use clock::Clock;
pub use commit::Commit;
pub use connection_limits::ConnectionLimits;
pub use core::Core;
pub use doors::{Door, Doors, Family};
pub use engine::Isolation;
pub use fetch::{AbortedTransaction, FetchFrom, FetchLimits, Fetched};
pub use groups::{
    Beat, ClassicInfo, Entered, GroupMember, GroupPartition, GroupStatus, GroupSummary, Groups, OffsetCommit, ResetTo,
    SHARE_IN_FLIGHT_MAX, ShareBeat, ShareGroupMember, ShareGroupStatus, ShareStart,
};
pub use holdings::{Hold, Holding};
pub use joining::COMPARED_PER_TURN;
pub use lanes::{LanePolicy, Lanes};
pub use leadership::{IN_SYNC_BYTES, Leadership, NodeInfo, Nodes, Removing};
pub use logins::LoginSource;
pub use mesh::{LiveTopic, Mesh, Operating};
pub use metrics::Metrics;
pub use open_connections::{ClientConnection, ConnectionTable, OpenConnections};
pub use peers::{Networks, PeerLimits};
pub use permit::Permit;
pub use producers::{ProducerIds, ReserveIds};
pub use publish::{Attempt, CommittingPublish, Published, WaitingPublish};
pub use queues::{
    AcquireFrom, AcquireLimits, Acquired, NewQueue, OutMessage, PEEK_MAX, Peeked, QueueCounts, QueuePosition,
    QueueStart, Queues, RECEIVE_MAX, Receive, Redrive, RedriveId, RedriveState, SEND_MAX, SeekTo, SendAnswers, Sent,
    Settlement,
};
pub use quotas::Usage;
pub use reader::Reader;
pub use security::{
    CertificateCheck, ClientCertificate, Identity, QuotaChange, Sasl, SaslStep, Security, SessionSecret, SigningKey,
    TOKEN_EXPIRED, Unwelcome, UserStatus, UserSummary, unknown_mechanism,
};
pub use settings::{ConfiguredUser, Issuer, SecuritySettings, Settings};
pub use streams::{
    LockedStream, NewEntryId, PendingEntry, Stream, StreamCounts, StreamGroup, StreamStatus, Streams, TrimTo,
};
pub use subscribe::{Origin, SourceStart, Subscribe, Subscription, SubscriptionHandle};
pub use subscriber::Direct;
pub use topic::{PartitionStatus, TopicOutline, TopicStatus};
pub use traces::{LeaseEnd, Place, Span, Step, Traces, TracingSettings};
pub use transactions::{TransactionSummary, Transactions};
pub use view::{Delivered, Receipt, Received};
pub use wakes::Wakes;
