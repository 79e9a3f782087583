//! The messages. A field of 0, `false` or no bytes is not set, as in protocol buffers.

use bytes::Bytes;
use protobuf::{Message as Encoded, ProtobufError, ProtobufResult};

/// Defines the accessors that `raft` calls: to read, to change, to replace and to take a field.
macro_rules! accessors {
    ($name:ident {
        $($(read $read:ident)? $(edit $edit:ident)? $(set $set:ident)? $(take $take:ident)?: $field:ident: $type:ty),+
        $(,)?
    }) => {
        impl $name {
            $(
                $(
                    #[inline]
                    pub fn $read(&self) -> &$type {
                        &self.$field
                    }
                )?
                $(
                    #[inline]
                    pub fn $edit(&mut self) -> &mut $type {
                        &mut self.$field
                    }
                )?
                $(
                    #[inline]
                    pub fn $set(&mut self, value: $type) {
                        self.$field = value;
                    }
                )?
                $(
                    #[inline]
                    pub fn $take(&mut self) -> $type {
                        std::mem::take(&mut self.$field)
                    }
                )?
            )+
        }
    };
}

/// Defines the accessors of a field that is copied.
macro_rules! copied {
    ($name:ident { $($get:ident $(set $set:ident)?: $field:ident: $type:ty),+ $(,)? }) => {
        impl $name {
            $(
                #[inline]
                pub fn $get(&self) -> $type {
                    self.$field
                }
                $(
                    #[inline]
                    pub fn $set(&mut self, value: $type) {
                        self.$field = value;
                    }
                )?
            )+
        }
    };
}

/// Meaning of an entry's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryType {
    #[default]
    EntryNormal = 0,
    /// A [`ConfChange`].
    EntryConfChange = 1,
    /// A [`ConfChangeV2`].
    EntryConfChangeV2 = 2,
}

/// Entry of the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    pub entry_type: EntryType,
    pub term: u64,
    pub index: u64,
    /// Empty in the entry with which a leader begins its term.
    pub data: Bytes,
    pub context: Bytes,
    /// Bytes for which the entry stands and which are kept elsewhere; they count in the size of messages. The published
    /// crate does not have it.
    pub body_bytes: u32,
}

copied!(Entry {
    get_entry_type set set_entry_type: entry_type: EntryType,
    get_index set set_index: index: u64,
    get_term: term: u64,
});
accessors!(Entry { take take_data: data: Bytes });

impl Entry {
    #[inline]
    pub fn get_data(&self) -> &[u8] {
        &self.data
    }
}

/// Bytes that an entry adds to a message beside its data.
const ENTRY_HEAD_BYTES: u32 = 12;

impl Encoded for Entry {
    fn compute_size(&self) -> u32 {
        let own = u32::try_from(self.data.len() + self.context.len()).unwrap_or(u32::MAX);
        own.saturating_add(ENTRY_HEAD_BYTES).saturating_add(self.body_bytes)
    }

    fn write_to_bytes(&self) -> ProtobufResult<Vec<u8>> {
        Err(ProtobufError::NotEncoded)
    }

    fn merge_from_bytes(&mut self, _: &[u8]) -> ProtobufResult<()> {
        Err(ProtobufError::NotEncoded)
    }
}

/// Members of a group. While a change passes through a joint configuration, both majorities decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// Voters of the configuration that a joint one leaves.
    pub voters_outgoing: Vec<u64>,
    /// Voters of the outgoing configuration that become learners.
    pub learners_next: Vec<u64>,
    /// `true` if the engine leaves the joint configuration by itself.
    pub auto_leave: bool,
}

accessors!(ConfState {
    read get_voters edit mut_voters set set_voters: voters: Vec<u64>,
    read get_learners edit mut_learners set set_learners: learners: Vec<u64>,
    read get_voters_outgoing set set_voters_outgoing: voters_outgoing: Vec<u64>,
    read get_learners_next set set_learners_next: learners_next: Vec<u64>,
});

/// Position of a snapshot, and the members at that position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotMetadata {
    pub conf_state: ConfState,
    pub index: u64,
    pub term: u64,
}

accessors!(SnapshotMetadata {
    read get_conf_state edit mut_conf_state set set_conf_state take take_conf_state: conf_state: ConfState,
});
copied!(SnapshotMetadata { get_index: index: u64, get_term: term: u64 });

/// State that replaces the log before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub data: Bytes,
    pub metadata: SnapshotMetadata,
}

accessors!(Snapshot {
    read get_metadata edit mut_metadata set set_metadata take take_metadata: metadata: SnapshotMetadata,
});

impl Snapshot {
    pub fn is_empty(&self) -> bool {
        self.metadata.index == 0
    }
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MessageType {
    #[default]
    MsgHup,
    MsgBeat,
    MsgPropose,
    MsgAppend,
    MsgAppendResponse,
    MsgRequestVote,
    MsgRequestVoteResponse,
    MsgSnapshot,
    MsgHeartbeat,
    MsgHeartbeatResponse,
    MsgUnreachable,
    MsgSnapStatus,
    MsgCheckQuorum,
    MsgTransferLeader,
    MsgTimeoutNow,
    MsgReadIndex,
    MsgReadIndexResp,
    MsgRequestPreVote,
    MsgRequestPreVoteResponse,
}

/// Message between nodes, or of a node to itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub msg_type: MessageType,
    pub to: u64,
    pub from: u64,
    pub term: u64,
    /// Term of the entry at `index`; in a rejection, of the one at `reject_hint`.
    pub log_term: u64,
    pub index: u64,
    pub entries: Vec<Entry>,
    pub commit: u64,
    pub commit_term: u64,
    pub snapshot: Snapshot,
    pub request_snapshot: u64,
    pub reject: bool,
    pub reject_hint: u64,
    pub context: Bytes,
    pub deprecated_priority: u64,
    pub priority: i64,
}

copied!(Message {
    get_msg_type set set_msg_type: msg_type: MessageType,
    get_index set set_index: index: u64,
    get_commit set set_commit: commit: u64,
});
accessors!(Message {
    read get_entries edit mut_entries set set_entries take take_entries: entries: Vec<Entry>,
    read get_snapshot set set_snapshot take take_snapshot: snapshot: Snapshot,
    take take_context: context: Bytes,
});

/// State of a node that has to survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

copied!(HardState { get_commit set set_commit: commit: u64 });

/// Way in which a change of members passes from one configuration to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConfChangeTransition {
    /// Directly if one member changes, else like `Implicit`.
    #[default]
    Auto = 0,
    /// By a joint configuration, which the engine leaves by itself.
    Implicit = 1,
    /// By a joint configuration, which a further change leaves.
    Explicit = 2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConfChangeType {
    #[default]
    AddNode = 0,
    RemoveNode = 1,
    AddLearnerNode = 2,
}

/// Change of one member, in the older form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChange {
    pub change_type: ConfChangeType,
    pub node_id: u64,
    pub context: Bytes,
    pub id: u64,
}

/// Step of a change of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChangeSingle {
    pub change_type: ConfChangeType,
    pub node_id: u64,
}

copied!(ConfChangeSingle { get_change_type set set_change_type: change_type: ConfChangeType });

/// Change of any number of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChangeV2 {
    pub transition: ConfChangeTransition,
    pub changes: Vec<ConfChangeSingle>,
    pub context: Bytes,
}

accessors!(ConfChangeV2 { edit mut_changes set set_changes: changes: Vec<ConfChangeSingle> });
