//! Messages between the nodes of a shard, and their form in the engine.

use std::collections::BTreeSet;

use bytes::Bytes;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry as RaftEntry, EntryType, Message as RaftMessage,
    MessageType, Snapshot, SnapshotMetadata,
};

use crate::values::{Body, Change, Entry, Index, Members, NodeId, Point, Position, ReadTicket, Step, Term, Time};

/// Message of one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub from: NodeId,
    pub to: NodeId,
    /// Term of the sender; in a question before an election, the one that would follow.
    pub term: Term,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Entries that follow one at `prev`, in order. The records of blocks accompany the message.
    Append {
        prev: Position,
        commit: Index,
        entries: Vec<Entry>,
    },
    /// The log agrees up to `index`, and that is on disk. If it does not agree at `index`, `hint` is where it may.
    Appended {
        index: Index,
        commit: Index,
        hint: Option<Position>,
    },
    /// Question for a vote. With `is_pre` nothing is decided yet.
    Vote {
        is_pre: bool,
        is_transfer: bool,
        last: Position,
        commit: Position,
    },
    Voted {
        is_pre: bool,
        is_granted: bool,
        commit: Position,
    },
    /// Heartbeat of the leader. The answer repeats `sent` and `read`.
    Beat {
        commit: Index,
        sent: Time,
        read: Option<ReadTicket>,
    },
    BeatAnswer {
        commit: Index,
        sent: Time,
        read: Option<ReadTicket>,
    },
    /// The state up to a point, which replaces the log of the receiver. The receiver must have it before it takes the
    /// message.
    Install(Point),
    /// The receiver should lead now.
    Lead,
}

/// Content of a vote's context in a transfer; the engine's.
const CAMPAIGN_TRANSFER: &[u8] = b"CampaignTransfer";
/// Data of an entry with a block: an entry without data begins a leadership.
const BLOCK: &[u8] = b"b";

impl Message {
    /// Converts a message of the engine. Returns `None` for one that stays within a node.
    pub(crate) fn from_engine(message: RaftMessage) -> Option<Self> {
        let RaftMessage { from, to, term, index, log_term, commit, commit_term, reject, .. } = message;
        let commit_position = Position { term: commit_term, index: commit };
        let kind = match message.msg_type {
            MessageType::MsgAppend => Kind::Append {
                prev: Position { term: log_term, index },
                commit,
                entries: message.entries.into_iter().map(from_engine).collect::<Option<_>>()?,
            },
            MessageType::MsgAppendResponse => {
                let hint = reject.then_some(Position { term: log_term, index: message.reject_hint });
                Kind::Appended { index, commit, hint }
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => Kind::Vote {
                is_pre: message.msg_type == MessageType::MsgRequestPreVote,
                is_transfer: message.context == CAMPAIGN_TRANSFER,
                last: Position { term: log_term, index },
                commit: commit_position,
            },
            MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => Kind::Voted {
                is_pre: message.msg_type == MessageType::MsgRequestPreVoteResponse,
                is_granted: !reject,
                commit: commit_position,
            },
            MessageType::MsgHeartbeat => Kind::Beat { commit, sent: 0, read: ticket_of(&message.context) },
            MessageType::MsgHeartbeatResponse => {
                Kind::BeatAnswer { commit, sent: 0, read: ticket_of(&message.context) }
            }
            MessageType::MsgSnapshot => Kind::Install(point(message.snapshot.metadata)),
            MessageType::MsgTimeoutNow => Kind::Lead,
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgPropose
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgTransferLeader
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp => return None,
        };
        Some(Self { from, to, term, kind })
    }

    pub(crate) fn into_engine(self) -> RaftMessage {
        let Self { from, to, term, kind } = self;
        let message = |msg_type| RaftMessage { msg_type, from, to, term, ..RaftMessage::default() };
        match kind {
            Kind::Append { prev, commit, entries } => RaftMessage {
                log_term: prev.term,
                index: prev.index,
                commit,
                entries: entries.into_iter().map(to_engine).collect(),
                ..message(MessageType::MsgAppend)
            },
            Kind::Appended { index, commit, hint } => {
                let Position { term: log_term, index: reject_hint } = hint.unwrap_or_default();
                let reject = hint.is_some();
                RaftMessage { index, commit, reject, reject_hint, log_term, ..message(MessageType::MsgAppendResponse) }
            }
            Kind::Vote { is_pre, is_transfer, last, commit } => RaftMessage {
                index: last.index,
                log_term: last.term,
                commit: commit.index,
                commit_term: commit.term,
                context: Bytes::from_static(if is_transfer { CAMPAIGN_TRANSFER } else { b"" }),
                ..message(if is_pre { MessageType::MsgRequestPreVote } else { MessageType::MsgRequestVote })
            },
            Kind::Voted { is_pre, is_granted, commit } => RaftMessage {
                reject: !is_granted,
                commit: commit.index,
                commit_term: commit.term,
                ..message(if is_pre {
                    MessageType::MsgRequestPreVoteResponse
                } else {
                    MessageType::MsgRequestVoteResponse
                })
            },
            Kind::Beat { commit, read, .. } => {
                RaftMessage { commit, context: context_of(read), ..message(MessageType::MsgHeartbeat) }
            }
            Kind::BeatAnswer { commit, read, .. } => {
                RaftMessage { commit, context: context_of(read), ..message(MessageType::MsgHeartbeatResponse) }
            }
            Kind::Install(point) => {
                let Point { position: Position { term, index }, members } = point;
                let metadata = SnapshotMetadata { conf_state: conf_state(&members), index, term };
                let snapshot = Snapshot { metadata, ..Snapshot::default() };
                RaftMessage { snapshot, ..message(MessageType::MsgSnapshot) }
            }
            Kind::Lead => message(MessageType::MsgTimeoutNow),
        }
    }

    /// Adds the message to a list. An append whose entries have more bytes together becomes several, each of which
    /// follows the one before: the engine merges messages, whatever the size of their entries is.
    pub(crate) fn push_split(self, bytes_max: u64, messages: &mut Vec<Self>) {
        let Self { from, to, term, kind } = self;
        let Kind::Append { mut prev, commit, entries } = kind else {
            return messages.push(Self { from, to, term, kind });
        };
        let mut rest = entries.into_iter().peekable();
        loop {
            let mut bytes = 0;
            let mut entries = Vec::with_capacity(rest.len());
            while let Some(entry) = rest.next_if(|entry| bytes == 0 || bytes + bytes_of(entry) <= bytes_max) {
                bytes += bytes_of(&entry);
                entries.push(entry);
            }
            let last = entries.last().map(|entry| entry.position);
            messages.push(Self { from, to, term, kind: Kind::Append { prev, commit, entries } });
            match last {
                Some(last) if rest.len() > 0 => prev = last,
                _ => return,
            }
        }
    }

    /// Returns `true` if the parts of the message fit together. A message that does not comes from no correct node.
    pub(crate) fn is_consistent(&self) -> bool {
        match &self.kind {
            Kind::Append { prev, entries, .. } => {
                let mut before = *prev;
                entries.iter().all(|Entry { position, .. }| {
                    let is_next = before.index.checked_add(1) == Some(position.index) && before.term <= position.term;
                    before = *position;
                    is_next && position.term <= self.term
                })
            }
            Kind::Install(point) => point.position.index > 0 && point.position.term <= self.term,
            _ => true,
        }
    }
}

fn ticket_of(context: &[u8]) -> Option<ReadTicket> {
    context.try_into().ok().map(ReadTicket::from_be_bytes)
}

fn context_of(ticket: Option<ReadTicket>) -> Bytes {
    ticket.map_or_else(Bytes::new, |ticket| Bytes::copy_from_slice(&ticket_context(ticket)))
}

/// Returns the context by which the engine knows a read.
pub(crate) fn ticket_context(ticket: ReadTicket) -> [u8; 8] {
    ticket.to_be_bytes()
}

/// Returns the read that a context names.
pub(crate) fn ticket(context: &[u8]) -> Option<ReadTicket> {
    ticket_of(context)
}

/// Bytes of an entry beside its records.
const ENTRY_HEAD_BYTES: usize = 12;

/// Returns the bytes that an entry adds to a message.
pub(crate) fn size(entry: &RaftEntry) -> u64 {
    u64::from(entry.body_bytes) + (entry.data.len() + ENTRY_HEAD_BYTES) as u64
}

/// Returns the bytes that an entry adds to a message, without those of a change of members, which are few.
fn bytes_of(entry: &Entry) -> u64 {
    let records = match entry.body {
        Body::Block(bytes) => bytes.get(),
        Body::Empty | Body::Members(_) => 0,
    };
    u64::from(records) + ENTRY_HEAD_BYTES as u64
}

/// Returns an entry that the leader appends; the engine sets its position.
pub(crate) fn proposed(body: Body) -> RaftEntry {
    to_engine(Entry { position: Position::default(), body })
}

pub(crate) fn to_engine(entry: Entry) -> RaftEntry {
    let Entry { position: Position { term, index }, body } = entry;
    let entry = RaftEntry { term, index, ..RaftEntry::default() };
    match body {
        Body::Empty => entry,
        Body::Block(bytes) => RaftEntry { data: Bytes::from_static(BLOCK), body_bytes: bytes.get(), ..entry },
        Body::Members(change) => RaftEntry {
            entry_type: EntryType::EntryConfChangeV2,
            data: Bytes::from(conf_change(&change).encode()),
            ..entry
        },
    }
}

/// Converts an entry of the engine; returns `None` for one that no node of this product creates.
pub(crate) fn from_engine(entry: RaftEntry) -> Option<Entry> {
    let position = Position { term: entry.term, index: entry.index };
    let body = match entry.entry_type {
        EntryType::EntryNormal => std::num::NonZeroU32::new(entry.body_bytes).map_or(Body::Empty, Body::Block),
        EntryType::EntryConfChangeV2 => Body::Members(change_of(&ConfChangeV2::decode(&entry.data)?)),
        EntryType::EntryConfChange => return None,
    };
    Some(Entry { position, body })
}

pub(crate) fn conf_change(change: &Change) -> ConfChangeV2 {
    let single = |step: &Step| {
        let (change_type, node_id) = match *step {
            Step::AddVoter(node) => (ConfChangeType::AddNode, node),
            Step::AddLearner(node) => (ConfChangeType::AddLearnerNode, node),
            Step::Remove(node) => (ConfChangeType::RemoveNode, node),
        };
        ConfChangeSingle { change_type, node_id }
    };
    ConfChangeV2 { changes: change.steps.iter().map(single).collect(), ..ConfChangeV2::default() }
}

fn change_of(change: &ConfChangeV2) -> Change {
    let step = |single: &ConfChangeSingle| match single.change_type {
        ConfChangeType::AddNode => Step::AddVoter(single.node_id),
        ConfChangeType::AddLearnerNode => Step::AddLearner(single.node_id),
        ConfChangeType::RemoveNode => Step::Remove(single.node_id),
    };
    Change { steps: change.changes.iter().map(step).collect() }
}

pub(crate) fn conf_state(members: &Members) -> ConfState {
    let list = |set: &BTreeSet<NodeId>| set.iter().copied().collect();
    ConfState {
        voters: list(&members.voters),
        learners: list(&members.learners),
        voters_outgoing: list(&members.outgoing),
        learners_next: list(&members.learners_next),
        auto_leave: members.leaves_joint,
    }
}

pub(crate) fn members(state: ConfState) -> Members {
    let set = |list: Vec<NodeId>| list.into_iter().collect();
    Members {
        voters: set(state.voters),
        learners: set(state.learners),
        outgoing: set(state.voters_outgoing),
        learners_next: set(state.learners_next),
        leaves_joint: state.auto_leave,
    }
}

pub(crate) fn point(metadata: SnapshotMetadata) -> Point {
    let SnapshotMetadata { conf_state, index, term } = metadata;
    Point { position: Position { term, index }, members: members(conf_state) }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn position(term: Term, index: Index) -> Position {
        Position { term, index }
    }

    #[test]
    fn a_large_append_becomes_several_that_follow_each_other() {
        let block = |index, bytes| Entry {
            position: position(3, index),
            body: NonZeroU32::new(bytes).map_or(Body::Empty, Body::Block),
        };
        // The third is larger than a message alone.
        let entries = [(5, 400), (6, 400), (7, 5000), (8, 0), (9, 900), (10, 100)].map(|(at, bytes)| block(at, bytes));
        let append = |prev, entries: &[Entry]| Message {
            from: 1,
            to: 2,
            term: 3,
            kind: Kind::Append { prev, commit: 4, entries: entries.to_vec() },
        };
        let mut messages = Vec::new();
        append(position(2, 4), &entries).push_split(1000, &mut messages);
        let parts = [(position(2, 4), 0..2), (position(3, 6), 2..3), (position(3, 7), 3..5), (position(3, 9), 5..6)];
        assert_eq!(messages, parts.map(|(prev, part)| append(prev, &entries[part])));
        // Without entries it still says what is committed.
        for whole in [append(position(2, 4), &[]), append(position(2, 4), &entries[..2])] {
            messages.clear();
            whole.clone().push_split(1000, &mut messages);
            assert_eq!(messages, [whole]);
        }
    }

    fn kinds() -> Vec<Kind> {
        let members = Members { learners: [4].into(), ..Members::of_voters([1, 2, 3]) };
        let joint =
            Members { outgoing: [1, 5].into(), learners_next: [5].into(), leaves_joint: true, ..members.clone() };
        let change = Change { steps: vec![Step::AddVoter(1), Step::AddLearner(u64::MAX), Step::Remove(7)] };
        let entries =
            [Body::Empty, Body::Block(NonZeroU32::MIN), Body::Members(change), Body::Members(Change::default())];
        let entry = |(at, body)| Entry { position: position(3, 10 + at), body };
        let mut kinds = vec![
            Kind::Append { prev: position(2, 9), commit: 8, entries: (0_u64..).zip(entries).map(entry).collect() },
            Kind::Append { prev: position(0, 0), commit: 0, entries: Vec::new() },
            Kind::Appended { index: 7, commit: 6, hint: None },
            Kind::Appended { index: 7, commit: 6, hint: Some(position(1, 0)) },
            Kind::Install(Point { position: position(3, 9), members }),
            Kind::Install(Point { position: position(3, 9), members: joint }),
            Kind::Lead,
        ];
        for flag in [false, true] {
            for is_pre in [false, true] {
                let (last, commit) = (position(2, 9), position(2, 8));
                kinds.push(Kind::Vote { is_pre, is_transfer: flag, last, commit });
                kinds.push(Kind::Voted { is_pre, is_granted: flag, commit });
            }
            let read = flag.then_some(77);
            kinds.push(Kind::Beat { commit: 5, sent: 0, read });
            kinds.push(Kind::BeatAnswer { commit: 5, sent: 0, read });
        }
        kinds
    }

    #[test]
    fn messages_stay_equal_in_the_engine_and_back() {
        for kind in kinds() {
            let message = Message { from: 1, to: 2, term: 3, kind };
            assert!(message.is_consistent(), "{message:?}");
            assert_eq!(Message::from_engine(message.clone().into_engine()), Some(message));
        }
    }

    #[test]
    fn messages_of_a_node_to_itself_are_never_sent() {
        for msg_type in [
            MessageType::MsgHup,
            MessageType::MsgBeat,
            MessageType::MsgPropose,
            MessageType::MsgUnreachable,
            MessageType::MsgSnapStatus,
            MessageType::MsgCheckQuorum,
            MessageType::MsgTransferLeader,
            MessageType::MsgReadIndex,
            MessageType::MsgReadIndexResp,
        ] {
            assert_eq!(Message::from_engine(RaftMessage { msg_type, ..RaftMessage::default() }), None);
        }
    }

    #[test]
    fn entries_that_do_not_follow_each_other_are_noticed() {
        let append = |prev, positions: &[Position]| {
            let entry = |at: &Position| Entry { position: *at, body: Body::Empty };
            let entries = positions.iter().map(entry).collect();
            Message { from: 1, to: 2, term: 3, kind: Kind::Append { prev, commit: 0, entries } }.is_consistent()
        };
        assert!(append(position(1, 1), &[position(1, 2), position(3, 3)]));
        assert!(!append(position(1, 1), &[position(1, 3)]), "a gap");
        assert!(!append(position(2, 1), &[position(1, 2)]), "an older term");
        assert!(!append(position(1, 1), &[position(4, 2)]), "a term after the leader's");
        assert!(!append(position(1, u64::MAX), &[position(1, 0)]));
        let install = |position| Kind::Install(Point { position, members: Members::of_voters([1]) });
        assert!(!Message { from: 1, to: 2, term: 3, kind: install(position(0, 0)) }.is_consistent());
    }
}
