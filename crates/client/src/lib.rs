//! The Rust client of a Thalweg broker: publishing, subscriptions, requests and replies, queues and caches, over QUIC,
//! TCP or a pipe inside one process.
//!
//! ```no_run
//! # async fn example() -> Result<(), thalweg_client::Error> {
//! use thalweg_client::{Client, Missing, Record, Start};
//!
//! let client = Client::connect("127.0.0.1:7400").await?;
//! // Reading creates no topic by itself.
//! let orders = client.subscribe("orders").start(Start::Earliest).missing(Missing::Create);
//! let mut orders = orders.open().await?;
//! client.publish("orders", Record::new("one coffee").with_key("table-7")).await?;
//! let message = orders.next().await?;
//! assert_eq!(message.record.value(), b"one coffee");
//! # Ok(())
//! # }
//! ```
//!
//! Units are in the names: `_bytes`, `_ms`. Every error has a kind, which tells whether a retry can succeed.
//!
//! This crate refuses to decide what the broker decides, to retry what could take effect twice, and to hold more than
//! its settings allow.
//!
//! A new version may add fields to the structs of this crate and kinds to its errors. Build settings with
//! `..Default::default()`, and match kinds with a last arm for all others, so that your program still compiles.

#![warn(missing_docs)]

// The client, and what its calls share.
mod client;
mod settings;

// Publishing and subscribing.
mod publisher;
mod subscription;
mod request;
mod replies;

// Views.
mod queue;
mod consumer;
mod groups;
mod cache;
mod cache_calls;
mod near;

// Administration.
mod topics;
mod users;
mod nodes;
mod sites;
mod backups;
mod connections;

// The session: connections that are kept, and calls that are sent again.
mod session;
mod operations;
mod repeat;
mod pool;
mod backoff;

// One connection: the addresses, and the order in which to try them.
mod address;
mod addresses;
mod book;
mod dialer;
mod attempt;
mod connection;
mod link;
mod watchdog;
mod probe;
mod tls;

pub use address::{Address, Pipes};
pub use addresses::Addresses;
pub use cache::{Cache, CacheWatch, Changes};
pub use client::Client;
pub use consumer::{Consumer, ConsumerBuilder, ConsumerEvent};
pub use engine::cache::{
    Added, CacheSettings, CacheStatus, Change, ChangeKind, Condition, Eviction, ScanCursor, Stored, Ttl, WatchFrom,
};
pub use engine::cluster::{self, ClusterStatus, JoinToken, NodeStatus};
pub use engine::groups::{Assignor, GroupState, MemberState};
pub use engine::mesh::{
    self, CopyStatus, Invitation, LinkState, MeshMode, MeshStatus, MeshTopic, SiteName, SiteStatus,
};
pub use engine::security;
pub use engine::{
    Acks, BatchBuilder, Codec, DraftBatch, Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Record,
    RecordBatch, RecordView, Records, Result, RetryClass, SettingsChange, Start, Storage, TopicName, TopicPartition,
    TopicSettings,
};
pub use near::{NearSettings, NearStats};
pub use publisher::{ChoosePartition, Delivered, Delivery, Partitioner, Publisher, PublisherBuilder};
pub use queue::{Outcome, Queue, Receive, Received, WorkReport, Worker};
pub use settings::{ClientSettings, LinkChange, LinkObserver, Login};
pub use subscription::{Batch, Event, Message, Subscription, SubscriptionBuilder};
pub use wire::backups::{BackupBegun, SealKey};
pub use wire::caches::{Entry, Value};
pub use wire::cluster::{Cluster, ClusterNode};
pub use wire::connections::{ConnectionInfo, ConnectionPage};
pub use wire::groups::{CommittedOffset, GroupInfo, GroupPartition, GroupSummary, MemberInfo, OffsetReset};
pub use wire::queues::{
    LeaseAnswer, MessageInfo, MessagePhase, NewQueue, OutMessage, PeekedMessage, QueueCounts, QueueInfo,
    ReceivedMessage, RedriveInfo, RedriveState, Sent,
};
pub use wire::response::{Level, PartitionInfo, Published, SourceInfo, TopicInfo};
pub use wire::security::{AccessKeyInfo, QuotaChange, TokenInfo, UserInfo};
