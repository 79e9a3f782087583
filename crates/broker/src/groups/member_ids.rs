//! Ids that the broker gives to members of classic groups.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Result;
use engine::groups::MemberId;
use engine::limits::GROUP_NAME_BYTES_MAX;

/// Maximum characters of the client's name in the id of a member.
const CLIENT_CHARS_MAX: usize = 100;

/// Generator of unique, unpredictable ids of members.
#[derive(Default)]
pub(super) struct MemberIds {
    /// Random key of this broker.
    key: RandomState,
    given: AtomicU64,
}

impl MemberIds {
    pub(super) fn next(&self, client: &str) -> Result<MemberId> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let client: String = client.chars().filter(|c| !c.is_control()).take(CLIENT_CHARS_MAX).collect();
        let client = &client[..client.floor_char_boundary(GROUP_NAME_BYTES_MAX - 64)];
        MemberId::parse(&format!("{client}-{:016x}-{number:x}", self.key.hash_one(number)))
    }
}
