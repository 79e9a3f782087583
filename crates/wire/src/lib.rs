//! Native protocol as values: frames, requests, answers, pushes, and the negotiation of a version.
//!
//! The layout of every byte is documented in `docs/reference/protocol.md`, with examples in `tests/vectors`.
//!
//! This crate refuses to:
//!
//! - open sockets, read clocks or start tasks: bytes go in and values come out
//! - decide anything about topics, queues or caches: `thalweg-engine` has their rules and their limits
//! - reserve memory for an announced length: it reserves for the bytes that arrived, or up to a small constant
//! - ignore what it does not know: unknown kinds, flags, codes and bytes after the last field are errors
//!
//! The modules below are in the order in which to read them.

#![warn(missing_docs)]

// Frames: a header, a body, and an assembler that finds them in a stream of bytes.
pub mod frame;

// The kinds of frames.
pub mod kind;

// The version and the features, which both sides agree on first.
pub mod negotiate;

// The nodes of a cluster, which a hello may name.
pub mod cluster;

// Fields: integers, strings, lists, options.
mod field;

// Values of several fields that several bodies contain.
mod values;

// Consumer groups: bodies of requests and answers.
pub mod groups;

// Queues: bodies of requests and answers.
pub mod queues;

// Caches: bodies of requests and answers.
pub mod caches;

// Users and access control lists: bodies of requests and answers.
pub mod security;

// The nodes of a cluster: bodies of requests and answers.
pub mod nodes;

// The mesh of sites: bodies of requests and answers.
pub mod mesh;

// Backups: bodies of requests and answers.
pub mod backups;

// Open connections of clients: bodies of requests and answers.
pub mod connections;

// All requests.
pub mod request;

// All answers and pushes.
pub mod response;

pub use backups::{BackupRequest, BackupResponse};
pub use caches::{CacheRequest, CacheResponse};
pub use cluster::{Cluster, ClusterNode};
pub use connections::{ConnectionRequest, ConnectionResponse};
pub use frame::{Assembler, Frame, Header};
pub use groups::{GroupRequest, GroupResponse};
pub use mesh::{MeshRequest, MeshResponse};
pub use negotiate::{Features, VERSION};
pub use nodes::{ClusterRequest, ClusterResponse};
pub use queues::{QueueRequest, QueueResponse};
pub use request::{Request, Subscribe};
pub use response::{HelloOk, Level, PartitionInfo, Published, Push, Response, SourceInfo, TopicInfo};
pub use security::{AccessKeyInfo, QuotaChange, SecurityRequest, SecurityResponse, TokenInfo, UserInfo};
