//! Nodes of the cluster: their addresses, their versions, and the tokens by which they came. It is part of the shard's
//! state: every node has it from the log, and it changes only by rows that are committed.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Members, NodeId};
use engine::cache::record::SWAP_FORMAT;
use engine::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::link::fields::Fields;

/// Maximum number of nodes that a cluster remembers, those that left included.
pub const NODES_MAX: usize = 1000;
/// Maximum number of used tokens that are remembered; a token is forgotten when it has expired.
pub const TOKENS_MAX: usize = 1000;
/// Maximum number of doors of a node, and maximum bytes of an address or a version.
const DOORS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 255;

/// Version of the log's rows that this program writes and reads:
///
/// | version | adds |
/// |---|---|
/// | 1 | everything from the beginning |
/// | 2 | rows that raise the version of the log |
/// | 3 | records of caches that exchange their entries |
///
/// The leader raises the version of the log ([`Roster::format`]) to the highest one that all nodes can read. A row that
/// a later version adds is written only then. From then on, programs that cannot read it are refused.
pub const FORMAT: u32 = 3;

const _: () = assert!(FORMAT >= SWAP_FORMAT, "a leader writes such records when all nodes read this version");

/// Flag in the number of nodes: the version of the log follows.
const HAS_FORMAT: u32 = 1 << 31;

const ADMIT: u8 = 1;
const DESCRIBE: u8 = 2;
const REMOVE: u8 = 3;
const RAISE: u8 = 4;

/// A node as the others know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Address of its cluster port, `host:port`.
    pub address: String,
    /// Version of its program.
    pub program: String,
    /// Highest version of the log's rows that it can read.
    pub format: u32,
    /// Addresses at which clients reach its doors, by the door's key.
    pub doors: BTreeMap<String, String>,
    /// `true` once it has left: its number is never given again.
    pub is_removed: bool,
}

/// The nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    pub nodes: BTreeMap<NodeId, Member>,
    /// Used tokens, and the time until which each would be valid, in ms since 1970.
    pub tokens: BTreeMap<u128, u64>,
    /// Version of the rows that the log may have, if it is not 1.
    raised: Option<NonZeroU32>,
}

/// Change of the nodes, the body of a row of the kind cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterChange {
    /// A new node comes with a token. `now_ms`: the leader's clock, by which expired tokens are forgotten.
    Admit { node: NodeId, address: String, token: u128, expires_ms: u64, now_ms: u64 },
    /// A node says what it is.
    Describe { node: NodeId, member: Member },
    /// A node has left.
    Remove { node: NodeId },
    /// The log may have rows of this version.
    Raise { format: u32 },
}

impl Roster {
    /// Returns the number for the next node: no node ever had it.
    pub fn next_node(&self) -> NodeId {
        self.nodes.last_key_value().map_or(1, |(node, _)| node + 1)
    }

    /// Returns the nodes that were removed and are not among the members of the shard any more. Until then, the vote of
    /// a node that leaves may be needed for that.
    pub fn gone(&self, members: &Members) -> BTreeSet<NodeId> {
        let is_gone = |(node, member): &(&NodeId, &Member)| member.is_removed && !members.contains(**node);
        self.nodes.iter().filter(is_gone).map(|(node, _)| *node).collect()
    }

    /// Returns the version of rows that every node can read; 0 while one of them has not said which it can.
    pub fn common_format(&self) -> u32 {
        self.nodes.values().filter(|member| !member.is_removed).map(|member| member.format).min().unwrap_or(0)
    }

    /// Returns the version of the rows that the log may have.
    pub fn format(&self) -> u32 {
        self.raised.map_or(1, NonZeroU32::get)
    }

    /// Returns the roster of a log with a version, and without nodes.
    pub(crate) fn raised_to(format: u32) -> Self {
        let mut roster = Self::default();
        roster.apply(&RosterChange::Raise { format });
        roster
    }

    /// Fails if the log may have rows that a program cannot read, which reads rows up to a version.
    pub fn check_format(&self, format: u32) -> Result<()> {
        let needed = self.format();
        if needed <= format {
            return Ok(());
        }
        Err(too_old(format!("it reads format {format} of the cluster's log, which has format {needed}")))
    }

    /// Applies a change. Applying it again has no effect.
    pub fn apply(&mut self, change: &RosterChange) {
        match change {
            RosterChange::Admit { node, address, token, expires_ms, now_ms } => {
                let member = Member { address: address.clone(), ..Member::default() };
                self.nodes.entry(*node).or_insert(member);
                self.tokens.retain(|_, expires| *expires >= *now_ms);
                if self.tokens.len() < TOKENS_MAX {
                    self.tokens.insert(*token, *expires_ms);
                }
            }
            RosterChange::Describe { node, member } => {
                let known = self.nodes.entry(*node).or_default();
                if !known.is_removed {
                    *known = member.clone();
                }
            }
            RosterChange::Remove { node } => {
                if let Some(member) = self.nodes.get_mut(node) {
                    member.is_removed = true;
                }
            }
            RosterChange::Raise { format } => {
                self.raised = NonZeroU32::new(self.format().max(*format)).filter(|format| format.get() > 1);
            }
        }
    }

    pub(crate) fn put(&self, out: &mut BytesMut) {
        let flag = if self.raised.is_some() { HAS_FORMAT } else { 0 };
        out.put_u32(self.nodes.len() as u32 | flag);
        self.raised.iter().for_each(|format| out.put_u32(format.get()));
        for (node, member) in &self.nodes {
            out.put_u64(*node);
            put_member(out, member);
        }
        out.put_u32(self.tokens.len() as u32);
        for (token, expires_ms) in &self.tokens {
            out.put_u128(*token);
            out.put_u64(*expires_ms);
        }
    }

    pub(crate) fn get(fields: &mut Fields) -> Result<Self> {
        let count = fields.u32()?;
        let raised = if count & HAS_FORMAT == 0 { None } else { Some(fields.u32()?) };
        let raised = raised.map(|format| NonZeroU32::new(format).filter(|format| format.get() > 1));
        let raised = raised.map(|format| format.ok_or_else(|| Error::malformed("a log has no format"))).transpose()?;
        let nodes = (0..count & !HAS_FORMAT).map(|_| Ok((fields.u64()?, member(fields)?))).collect::<Result<_>>()?;
        let tokens = fields.long_list(|fields| Ok((fields.u128()?, fields.u64()?)))?;
        Ok(Self { nodes, tokens: tokens.into_iter().collect(), raised })
    }

    /// Encodes the nodes, for a node that takes the state of another.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut fields = Fields(bytes);
        let roster = Self::get(&mut fields)?;
        fields.end()?;
        Ok(roster)
    }
}

impl RosterChange {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Admit { node, address, token, expires_ms, now_ms } => {
                out.put_u8(ADMIT);
                out.put_u64(*node);
                put_text(&mut out, address);
                out.put_u128(*token);
                out.put_u64(*expires_ms);
                out.put_u64(*now_ms);
            }
            Self::Describe { node, member } => {
                out.put_u8(DESCRIBE);
                out.put_u64(*node);
                put_member(&mut out, member);
            }
            Self::Remove { node } => {
                out.put_u8(REMOVE);
                out.put_u64(*node);
            }
            Self::Raise { format } => {
                out.put_u8(RAISE);
                out.put_u32(*format);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut fields = Fields(bytes);
        let change = match fields.u8()? {
            ADMIT => Self::Admit {
                node: fields.u64()?,
                address: fields.text(TEXT_BYTES_MAX)?,
                token: fields.u128()?,
                expires_ms: fields.u64()?,
                now_ms: fields.u64()?,
            },
            DESCRIBE => Self::Describe { node: fields.u64()?, member: member(&mut fields)? },
            REMOVE => Self::Remove { node: fields.u64()? },
            RAISE => Self::Raise { format: fields.u32()? },
            code => return Err(too_old(format!("the kind {code} of a change of nodes is unknown"))),
        };
        fields.end()?;
        Ok(change)
    }
}

/// Returns the error of a program that cannot read the log.
fn too_old(why: String) -> Error {
    let message =
        format!("this program is too old for the cluster ({why}): install the version that its other nodes have");
    Error::new(ErrorKind::Unsupported, message)
}

fn put_member(out: &mut BytesMut, member: &Member) {
    let Member { address, program, format, doors, is_removed } = member;
    put_text(out, address);
    put_text(out, program);
    out.put_u32(*format);
    let doors: Vec<_> = doors.iter().take(DOORS_MAX).collect();
    out.put_u16(doors.len() as u16);
    for (door, address) in doors {
        put_text(out, door);
        put_text(out, address);
    }
    out.put_u8(u8::from(*is_removed));
}

fn member(fields: &mut Fields) -> Result<Member> {
    let text = |fields: &mut Fields| fields.text(TEXT_BYTES_MAX);
    Ok(Member {
        address: text(fields)?,
        program: text(fields)?,
        format: fields.u32()?,
        doors: fields.list(|fields| Ok((text(fields)?, text(fields)?)))?.into_iter().collect(),
        is_removed: fields.flags(1)? == 1,
    })
}

/// Writes a text; one that is too long is cut.
fn put_text(out: &mut BytesMut, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.put_u16(text.len() as u16);
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Vec<RosterChange> {
        let doors = [("kafka".to_owned(), "b:9092".to_owned())].into();
        let member = Member { address: "b:7402".into(), program: "1.2".into(), format: 1, doors, is_removed: false };
        let admit = |node, token, now_ms| RosterChange::Admit {
            node,
            address: format!("{node}:7402"),
            token,
            expires_ms: now_ms + 100,
            now_ms,
        };
        vec![
            RosterChange::Describe { node: 1, member: member.clone() },
            admit(2, 7, 1000),
            RosterChange::Describe { node: 2, member },
            admit(3, 8, 2000),
            RosterChange::Remove { node: 2 },
            RosterChange::Raise { format: 7 },
        ]
    }

    #[test]
    fn a_change_is_read_as_it_was_written_or_not_at_all() {
        for change in changes() {
            let bytes = change.encode();
            assert_eq!(RosterChange::decode(bytes.clone()), Ok(change));
            for at in 0..bytes.len() {
                assert!(RosterChange::decode(bytes.slice(..at)).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_log_is_raised_when_all_nodes_that_are_left_can_read_it() {
        let mut roster = Roster::default();
        let describe = |node, format| RosterChange::Describe { node, member: Member { format, ..Member::default() } };
        assert_eq!((roster.format(), roster.common_format()), (1, 0));
        let before = roster.encode();
        [describe(1, 3), describe(2, 2)].iter().for_each(|change| roster.apply(change));
        assert_eq!((roster.format(), roster.common_format()), (1, 2));
        let admit = RosterChange::Admit { node: 3, address: "c:1".into(), token: 1, expires_ms: 9, now_ms: 1 };
        roster.apply(&admit);
        assert_eq!(roster.common_format(), 0, "it has not said what it can");
        [describe(3, 3), RosterChange::Remove { node: 2 }].iter().for_each(|change| roster.apply(change));
        assert_eq!(roster.common_format(), 3);
        roster.apply(&RosterChange::Raise { format: 3 });
        roster.apply(&RosterChange::Raise { format: 2 });
        assert_eq!(roster.format(), 3, "it never falls");
        assert_eq!(roster.check_format(3), Ok(()));
        let old = roster.check_format(2).expect_err("too old");
        assert_eq!(old.kind, ErrorKind::Unsupported);
        assert!(old.message.contains("reads format 2 of the cluster's log, which has format 3"), "{old}");
        assert_eq!(Roster::decode(roster.encode()), Ok(roster));
        // Programs of format 1 read what has not been raised.
        assert_eq!(before[..4], [0; 4]);
    }

    #[test]
    fn a_change_of_a_later_version_names_the_remedy() {
        let error = RosterChange::decode(Bytes::from_static(&[99])).expect_err("unknown");
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.contains("install the version"), "{error}");
    }

    #[test]
    fn a_number_is_given_once_and_a_token_is_remembered_until_it_expires() {
        let mut roster = Roster::default();
        for (i, change) in changes().iter().enumerate() {
            roster.apply(change);
            let before = roster.clone();
            roster.apply(change);
            assert_eq!(roster, before, "change {i}");
            assert_eq!(Roster::decode(roster.encode()), Ok(roster.clone()));
        }
        assert_eq!(roster.next_node(), 4);
        assert!(roster.nodes[&2].is_removed);
        assert_eq!(roster.tokens.keys().copied().collect::<Vec<_>>(), [8], "token 7 has expired");
        roster.apply(&RosterChange::Describe { node: 2, member: Member::default() });
        assert!(roster.nodes[&2].is_removed, "a node that left does not come back");
    }
}
