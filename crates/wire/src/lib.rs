//! The native protocol as values, without sockets: frames, requests, responses, negotiation.
//!
//! The byte layout of everything here is documented in `docs/reference/protocol.md`.

pub mod caches;
mod field;
pub mod frame;
pub mod groups;
pub mod kind;
pub mod negotiate;
pub mod queues;
pub mod request;
pub mod response;
pub mod security;
mod values;

pub use caches::{CacheRequest, CacheResponse};
pub use frame::{Assembler, Frame, Header};
pub use groups::{GroupRequest, GroupResponse};
pub use negotiate::{Features, VERSION};
pub use queues::{QueueRequest, QueueResponse};
pub use request::{Request, Subscribe};
pub use response::{HelloOk, Level, PartitionInfo, Published, Push, Response, SourceInfo, TopicInfo};
pub use security::{SecurityRequest, SecurityResponse, UserInfo};
