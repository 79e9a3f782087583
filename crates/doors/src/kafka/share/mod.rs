//! Share groups: members (`members`), delivery and acknowledgement of messages (`fetch`, `acknowledge`), sessions
//! (`sessions`), and offsets (`offsets`).

mod acknowledge;
mod fetch;
mod members;
mod offsets;
mod sessions;

pub(super) use acknowledge::acknowledge;
pub(super) use fetch::{ShareFetched, fetch};
pub(super) use members::{describe, heartbeat, states};
pub(super) use offsets::{alter_offsets, delete_offsets, describe_offsets};
pub(super) use sessions::{ShareConnection, ShareSessions};

use engine::TopicId;

use super::messages::Uuid;

/// Keys of the APIs.
const SHARE_GROUP_HEARTBEAT: i16 = 76;
const SHARE_GROUP_DESCRIBE: i16 = 77;
pub(super) const SHARE_FETCH: i16 = 78;
const SHARE_ACKNOWLEDGE: i16 = 79;
const DESCRIBE_SHARE_GROUP_OFFSETS: i16 = 90;
const ALTER_SHARE_GROUP_OFFSETS: i16 = 91;
const DELETE_SHARE_GROUP_OFFSETS: i16 = 92;

fn topic_id(id: Uuid) -> TopicId {
    TopicId::from_bytes(id.0.to_be_bytes())
}

fn uuid(id: TopicId) -> Uuid {
    Uuid(u128::from_be_bytes(id.to_bytes()))
}
