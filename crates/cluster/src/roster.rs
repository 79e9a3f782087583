//! Nodes of the cluster: their addresses, their versions, and the tokens by which they came. It is part of the shard's
//! state: every node has it from the log, and it changes only by rows that are committed.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use consensus::NodeId;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::link::fields::Fields;

/// Maximum number of nodes that a cluster remembers, those that left included.
pub const NODES_MAX: usize = 1000;
/// Maximum number of used tokens that are remembered; a token is forgotten when it has expired.
pub const TOKENS_MAX: usize = 1000;
/// Maximum number of doors of a node, and maximum bytes of an address or a version.
const DOORS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 255;

const ADMIT: u8 = 1;
const DESCRIBE: u8 = 2;
const REMOVE: u8 = 3;

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
}

impl Roster {
    /// Returns the number for the next node: no node ever had it.
    pub fn next_node(&self) -> NodeId {
        self.nodes.last_key_value().map_or(1, |(node, _)| node + 1)
    }

    /// Returns the version of rows that every node can read.
    pub fn format(&self) -> u32 {
        self.nodes.values().filter(|member| !member.is_removed).map(|member| member.format).min().unwrap_or(0)
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
        }
    }

    pub(crate) fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.nodes.len() as u32);
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
        let nodes = fields.long_list(|fields| Ok((fields.u64()?, member(fields)?)))?;
        let tokens = fields.long_list(|fields| Ok((fields.u128()?, fields.u64()?)))?;
        Ok(Self { nodes: nodes.into_iter().collect(), tokens: tokens.into_iter().collect() })
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
            code => return Err(Error::malformed(format!("the kind {code} of a change of nodes is unknown"))),
        };
        fields.end()?;
        Ok(change)
    }
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
