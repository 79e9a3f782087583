//! The messages of the crate `raft` as plain structs.
//!
//! The published crate generates them from protocol buffers and needs their compiler to build. `raft` uses only fields
//! and accessors, so this crate replaces it (`[patch.crates-io]`). Names, fields and the meaning of each follow
//! `eraftpb.proto` of `raft-proto` 0.7.0; the accessors are those that `raft` 0.7.0 calls.

mod change;
pub mod eraftpb;

use std::collections::BTreeSet;

pub use change::ConfChangeI;
use eraftpb::{ConfChangeSingle, ConfChangeType, ConfState};

/// Names that users of `raft` import together.
pub mod prelude {
    pub use crate::eraftpb::{
        ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType,
        HardState, Message, MessageType, Snapshot, SnapshotMetadata,
    };
}

/// Conversions that users of `raft` import.
pub mod util {
    use crate::eraftpb::ConfState;

    impl<V, L> From<(V, L)> for ConfState
    where
        V: IntoIterator<Item = u64>,
        L: IntoIterator<Item = u64>,
    {
        fn from((voters, learners): (V, L)) -> Self {
            let (voters, learners) = (voters.into_iter().collect(), learners.into_iter().collect());
            Self { voters, learners, ..Self::default() }
        }
    }
}

/// Creates one step of a change of members.
pub fn new_conf_change_single(node_id: u64, change_type: ConfChangeType) -> ConfChangeSingle {
    ConfChangeSingle { change_type, node_id }
}

/// Returns `true` if two configurations have the same members, in any order.
#[must_use]
pub fn conf_state_eq(a: &ConfState, b: &ConfState) -> bool {
    fn sets(state: &ConfState) -> [BTreeSet<u64>; 4] {
        [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next]
            .map(|members| members.iter().copied().collect())
    }
    a == b || (a.auto_leave == b.auto_leave && sets(a) == sets(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_members_has_no_meaning() {
        let state = |voters: &[u64], learners: &[u64]| ConfState::from((voters.to_vec(), learners.to_vec()));
        assert!(conf_state_eq(&state(&[1, 2, 3], &[4]), &state(&[3, 1, 2], &[4])));
        assert!(!conf_state_eq(&state(&[1, 2, 3], &[4]), &state(&[1, 2], &[4])));
        assert!(!conf_state_eq(&state(&[1, 2], &[3]), &state(&[1, 2, 3], &[])));
        let joint = ConfState { auto_leave: true, ..state(&[1], &[]) };
        assert!(!conf_state_eq(&joint, &state(&[1], &[])));
    }
}
