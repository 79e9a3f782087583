//! State of the consensus in the journal and in checkpoints.
//!
//! The journal has a row of the kind save after the rows of the entries that it describes. Rows that no save follows do
//! not count: the write was cut short. All integers are big-endian, and a position is a term and an index (8 each):
//!
//! | bytes | field of a save |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | flags: 1 the log is replaced by a point, 2 term and vote |
//! | | the position and the members of the point, as in a frame, and the cluster's nodes ([`Roster`]) at it |
//! | 8, 8 | term, and the node that it voted for; 0 for none |
//! | 8 | index up to which the log is committed |
//! | 8, 4 | index of the first entry, and number of entries |
//! | 8, 1 | of each entry: term and kind, as in a frame; a block has its bytes (4) and the number of its rows (2) |
//!
//! A checkpoint has the point that its partitions include, term and vote, the committed index, and the cluster's nodes
//! ([`Roster`]).

use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Body, Change, Entry, Hard, Index, Members, NodeId, Point, Position};
use engine::{Error, Result};

use crate::link::fields::Fields;
use crate::link::part::{nodes, position, put_nodes, put_position, put_steps, step};
use crate::roster::Roster;

const VERSION: u8 = 1;
const INSTALL: u8 = 1;
const HARD: u8 = 2;
const EMPTY: u8 = 0;
const BLOCK: u8 = 1;
const MEMBERS: u8 = 2;

/// Entry of a save, and the number of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedEntry {
    pub entry: Entry,
    pub rows: u16,
}

/// Row of the journal that describes the rows before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SaveRow {
    /// State of a leader that replaces the log and all that this node had.
    pub install: Option<(Point, Roster)>,
    pub hard: Option<Hard>,
    pub commit: Index,
    pub entries: Vec<SavedEntry>,
}

impl SaveRow {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.put_u8(flag(self.install.is_some(), INSTALL) | flag(self.hard.is_some(), HARD));
        if let Some((point, roster)) = &self.install {
            put_point(&mut out, point);
            roster.put(&mut out);
        }
        self.hard.iter().for_each(|hard| put_hard(&mut out, *hard));
        out.put_u64(self.commit);
        out.put_u64(self.entries.first().map_or(0, |saved| saved.entry.position.index));
        out.put_u32(self.entries.len() as u32);
        for SavedEntry { entry, rows } in &self.entries {
            out.put_u64(entry.position.term);
            match &entry.body {
                Body::Empty => out.put_u8(EMPTY),
                Body::Block(bytes) => {
                    out.put_u8(BLOCK);
                    out.put_u32(bytes.get());
                    out.put_u16(*rows);
                }
                Body::Members(Change { steps }) => {
                    out.put_u8(MEMBERS);
                    put_steps(&mut out, steps);
                }
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut fields = Fields(bytes);
        check_version(fields.u8()?)?;
        let flags = fields.flags(INSTALL | HARD)?;
        let install = if flags & INSTALL != 0 { Some((point(&mut fields)?, Roster::get(&mut fields)?)) } else { None };
        let hard = if flags & HARD != 0 { Some(hard(&mut fields)?) } else { None };
        let commit = fields.u64()?;
        let mut index = fields.u64()?;
        let count = fields.u32()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let term = fields.u64()?;
            let (body, rows) = match fields.u8()? {
                EMPTY => (Body::Empty, 0),
                BLOCK => {
                    let bytes = NonZeroU32::new(fields.u32()?);
                    (Body::Block(bytes.ok_or_else(|| Error::malformed("a block has no bytes"))?), fields.u16()?)
                }
                MEMBERS => (Body::Members(Change { steps: fields.list(step)? }), 0),
                code => return Err(Error::malformed(format!("the kind {code} of an entry is unknown"))),
            };
            entries.push(SavedEntry { entry: Entry { position: Position { term, index }, body }, rows });
            index = index.checked_add(1).ok_or_else(|| Error::malformed("an entry has no index"))?;
        }
        fields.end()?;
        Ok(Self { install, hard, commit, entries })
    }
}

/// State of the consensus that belongs to a checkpoint: the partitions include the log up to its point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    pub point: Point,
    pub hard: Hard,
    pub commit: Index,
    pub roster: Roster,
}

impl Base {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        put_point(&mut out, &self.point);
        put_hard(&mut out, self.hard);
        out.put_u64(self.commit);
        self.roster.put(&mut out);
        out.freeze()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(Bytes::copy_from_slice(bytes));
        check_version(fields.u8()?)?;
        let base = Self {
            point: point(&mut fields)?,
            hard: hard(&mut fields)?,
            commit: fields.u64()?,
            roster: Roster::get(&mut fields)?,
        };
        fields.end()?;
        Ok(base)
    }
}

fn check_version(version: u8) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(Error::malformed(format!("the state of the cluster has version {version}, this program reads {VERSION}")))
}

fn put_point(out: &mut BytesMut, Point { position, members }: &Point) {
    put_position(out, *position);
    let Members { voters, learners, outgoing, learners_next, leaves_joint } = members;
    [voters, learners, outgoing, learners_next].into_iter().for_each(|nodes| put_nodes(out, nodes));
    out.put_u8(u8::from(*leaves_joint));
}

fn point(fields: &mut Fields) -> Result<Point> {
    let position = position(fields)?;
    let mut nodes = || nodes(fields);
    let (voters, learners, outgoing, learners_next) = (nodes()?, nodes()?, nodes()?, nodes()?);
    let leaves_joint = fields.flags(1)? == 1;
    Ok(Point { position, members: Members { voters, learners, outgoing, learners_next, leaves_joint } })
}

fn put_hard(out: &mut BytesMut, Hard { term, vote }: Hard) {
    out.put_u64(term);
    out.put_u64(vote.unwrap_or(0));
}

fn hard(fields: &mut Fields) -> Result<Hard> {
    let term = fields.u64()?;
    let vote: NodeId = fields.u64()?;
    Ok(Hard { term, vote: Some(vote).filter(|vote| *vote != 0) })
}

/// Returns the later of two states of a node: of the greater term, or of the same term with a vote.
pub(super) fn later(a: Hard, b: Hard) -> Hard {
    if (b.term, b.vote.is_some()) >= (a.term, a.vote.is_some()) { b } else { a }
}

#[cfg(test)]
mod tests {
    use consensus::Step;

    use super::*;

    fn row() -> SaveRow {
        let entry = |term, index, body| Entry { position: Position { term, index }, body };
        let block = Body::Block(NonZeroU32::new(77).expect("not 0"));
        let change = Change { steps: vec![Step::AddVoter(3), Step::Remove(2)] };
        let members = Members { learners: [7].into(), ..Members::of_voters([1, 2]) };
        SaveRow {
            install: Some((Point { position: Position { term: 3, index: 9 }, members }, Roster::default())),
            hard: Some(Hard { term: 5, vote: Some(2) }),
            commit: 9,
            entries: vec![
                SavedEntry { entry: entry(3, 10, Body::Empty), rows: 0 },
                SavedEntry { entry: entry(3, 11, block), rows: 4096 },
                SavedEntry { entry: entry(5, 12, Body::Members(change)), rows: 0 },
            ],
        }
    }

    #[test]
    fn a_save_is_read_as_it_was_written_or_not_at_all() {
        for row in [row(), SaveRow::default(), SaveRow { install: None, ..row() }, SaveRow { hard: None, ..row() }] {
            let bytes = row.encode();
            assert_eq!(SaveRow::decode(bytes.clone()), Ok(row));
            for at in 0..bytes.len() {
                assert!(SaveRow::decode(bytes.slice(..at)).is_err(), "cut at {at}");
            }
            assert!(SaveRow::decode([&bytes[..], &[0]].concat().into()).is_err());
        }
    }

    #[test]
    fn a_base_is_read_as_it_was_written_or_not_at_all() {
        let row = row();
        let roster = Roster::default();
        let base = Base { point: row.install.clone().expect("a point").0, hard: Hard::default(), commit: 9, roster };
        let bytes = base.encode();
        assert_eq!(Base::decode(&bytes), Ok(base));
        for at in 0..bytes.len() {
            assert!(Base::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_vote_is_never_forgotten_within_its_term() {
        let voted = Hard { term: 3, vote: Some(1) };
        assert_eq!(later(voted, Hard { term: 3, vote: None }), voted);
        assert_eq!(later(Hard { term: 3, vote: None }, voted), voted);
        assert_eq!(later(voted, Hard { term: 4, vote: None }).term, 4);
        assert_eq!(later(Hard { term: 4, vote: None }, voted).term, 4);
    }
}
