//! Parts of a frame: a message of the consensus of one shard, with the rows of its entries.
//!
//! A part is: shard (2), kind (1), term (8), and by kind, where a position is a term and an index (8 each):
//!
//! | kind | | fields |
//! |---|---|---|
//! | 1 | append | position before the entries, commit (8), number of entries (4), entries, bodies of all rows |
//! | 2 | appended | index (8), commit (8), flag 1: a position follows |
//! | 3 | vote | flags: 1 nothing is decided yet, 2 a transfer; last position, committed position |
//! | 4 | voted | flags: 1 as above, 2 granted; committed position |
//! | 5 | beat | commit (8), time of sending (8), flag 1: the number of a read (8) follows |
//! | 6 | answer to a beat | the same |
//! | 7 | install | position, voters, learners, outgoing voters, next learners, flag 1: leaves by itself |
//! | 8 | lead | |
//!
//! An entry is its term (8) and its kind (1): 0 empty; 1 a block, with the number of its rows (2) and of each row its
//! kind (1), checksum (4), stream (8) and bytes (4); 2 a change, with a list of steps, each a kind (1) and a node (8).
//! A list is the number of its entries (2) and the entries; nodes are in ascending order, each once.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Body, Change, Entry, Kind, Members, Message, NodeId, Point, Position, Step};
use engine::shard::ShardId;
use engine::{Error, Result};
use storage::EntryKind;

use super::fields::Fields;

const APPEND: u8 = 1;
const APPENDED: u8 = 2;
const VOTE: u8 = 3;
const VOTED: u8 = 4;
const BEAT: u8 = 5;
const BEAT_ANSWER: u8 = 6;
const INSTALL: u8 = 7;
const LEAD: u8 = 8;

const EMPTY: u8 = 0;
const BLOCK: u8 = 1;
const MEMBERS: u8 = 2;

const ADD_VOTER: u8 = 0;
const ADD_LEARNER: u8 = 1;
const REMOVE: u8 = 2;

/// Bytes of a row beside its body: for the journal it is a row of a block's table.
const ROW_HEAD_BYTES: u32 = 17;

/// Bytes of a part before the fields of its kind.
const PART_HEAD_BYTES: usize = 11;
/// Bytes of an append before its entries.
const APPEND_HEAD_BYTES: usize = POSITION_BYTES + 8 + 4;
const POSITION_BYTES: usize = 16;

/// Row of the journal: one entry of a partition or of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub kind: EntryKind,
    pub stream: u64,
    /// CRC-32C of the body.
    pub crc: u32,
    pub body: Bytes,
}

impl Row {
    pub fn new(kind: EntryKind, stream: u64, body: Bytes) -> Self {
        Self { kind, stream, crc: crc_fast::crc32_iscsi(&body), body }
    }
}

/// Content of one entry of a shard's log: rows in their order, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    rows: Vec<Row>,
}

impl Block {
    /// Creates a block; returns `None` if there are no rows, or more or larger ones than a block can have.
    pub fn new(rows: Vec<Row>) -> Option<Self> {
        let is_small = u16::try_from(rows.len()).is_ok() && size_of_rows(&rows).is_some();
        (is_small && !rows.is_empty()).then_some(Self { rows })
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the size that the entry of the block has in the log.
    pub fn size(&self) -> NonZeroU32 {
        size_of_rows(&self.rows).and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
    }
}

fn size_of_rows(rows: &[Row]) -> Option<u32> {
    rows.iter().try_fold(0_u32, |size, row| {
        let bytes = u32::try_from(row.body.len()).ok()?;
        size.checked_add(bytes)?.checked_add(ROW_HEAD_BYTES)
    })
}

/// Message about one shard. `blocks` are those of its entries that have one, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub shard: ShardId,
    pub message: Message,
    pub blocks: Vec<Block>,
}

impl Part {
    /// Drops the entries of an append. What is left tells the position before them, and how much is committed.
    pub fn drop_entries(&mut self) {
        self.blocks.clear();
        if let Kind::Append { entries, .. } = &mut self.message.kind {
            entries.clear();
        }
    }

    /// Returns the size of the part in a frame.
    pub fn encoded_bytes(&self) -> usize {
        PART_HEAD_BYTES
            + match &self.message.kind {
                Kind::Append { entries, .. } => APPEND_HEAD_BYTES + entries.iter().map(entry_bytes).sum::<usize>(),
                Kind::Appended { hint, .. } => 17 + hint.map_or(0, |_position| POSITION_BYTES),
                Kind::Vote { .. } => 1 + 2 * POSITION_BYTES,
                Kind::Voted { .. } => 1 + POSITION_BYTES,
                Kind::Beat { read, .. } | Kind::BeatAnswer { read, .. } => 17 + read.map_or(0, |_ticket| 8),
                Kind::Install(Point { members, .. }) => {
                    let Members { voters, learners, outgoing, learners_next, .. } = members;
                    let nodes = [voters, learners, outgoing, learners_next].map(BTreeSet::len).iter().sum::<usize>();
                    POSITION_BYTES + 4 * 2 + 8 * nodes + 1
                }
                Kind::Lead => 0,
            }
    }
}

/// Returns the size of an entry in a frame, with the bodies of its rows.
fn entry_bytes(entry: &Entry) -> usize {
    9 + match &entry.body {
        Body::Empty => 0,
        Body::Block(size) => 2 + size.get() as usize,
        Body::Members(Change { steps }) => 2 + 9 * steps.len(),
    }
}

pub(super) fn encode(parts: &[Part]) -> Vec<Bytes> {
    let mut chunks = Chunks::default();
    parts.iter().for_each(|part| chunks.put(part));
    chunks.end()
}

/// Bytes in chunks: what is written field by field, and bodies that are shared.
#[derive(Default)]
struct Chunks {
    done: Vec<Bytes>,
    open: BytesMut,
}

impl Chunks {
    fn put(&mut self, part: &Part) {
        let Part { shard, message, blocks } = part;
        let out = &mut self.open;
        out.put_u16(shard.number());
        out.put_u8(code_of(&message.kind));
        out.put_u64(message.term);
        match &message.kind {
            Kind::Append { prev, commit, entries } => {
                put_position(out, *prev);
                out.put_u64(*commit);
                out.put_u32(entries.len() as u32);
                let mut of_entries = blocks.iter();
                for entry in entries {
                    put_entry(out, entry, &mut of_entries);
                }
                blocks.iter().flat_map(Block::rows).for_each(|row| self.share(&row.body));
            }
            Kind::Appended { index, commit, hint } => {
                out.put_u64(*index);
                out.put_u64(*commit);
                out.put_u8(u8::from(hint.is_some()));
                hint.iter().for_each(|hint| put_position(out, *hint));
            }
            Kind::Vote { is_pre, is_transfer, last, commit } => {
                out.put_u8(u8::from(*is_pre) | u8::from(*is_transfer) << 1);
                put_position(out, *last);
                put_position(out, *commit);
            }
            Kind::Voted { is_pre, is_granted, commit } => {
                out.put_u8(u8::from(*is_pre) | u8::from(*is_granted) << 1);
                put_position(out, *commit);
            }
            Kind::Beat { commit, sent, read } | Kind::BeatAnswer { commit, sent, read } => {
                out.put_u64(*commit);
                out.put_u64(*sent);
                out.put_u8(u8::from(read.is_some()));
                read.iter().for_each(|read| out.put_u64(*read));
            }
            Kind::Install(Point { position, members }) => {
                put_position(out, *position);
                let Members { voters, learners, outgoing, learners_next, leaves_joint } = members;
                [voters, learners, outgoing, learners_next].into_iter().for_each(|nodes| put_nodes(out, nodes));
                out.put_u8(u8::from(*leaves_joint));
            }
            Kind::Lead => {}
        }
    }

    fn share(&mut self, body: &Bytes) {
        if !self.open.is_empty() {
            self.done.push(self.open.split().freeze());
        }
        self.done.push(body.clone());
    }

    fn end(mut self) -> Vec<Bytes> {
        if !self.open.is_empty() {
            self.done.push(self.open.freeze());
        }
        self.done
    }
}

fn code_of(kind: &Kind) -> u8 {
    match kind {
        Kind::Append { .. } => APPEND,
        Kind::Appended { .. } => APPENDED,
        Kind::Vote { .. } => VOTE,
        Kind::Voted { .. } => VOTED,
        Kind::Beat { .. } => BEAT,
        Kind::BeatAnswer { .. } => BEAT_ANSWER,
        Kind::Install(_) => INSTALL,
        Kind::Lead => LEAD,
    }
}

pub(crate) fn put_position(out: &mut BytesMut, position: Position) {
    out.put_u64(position.term);
    out.put_u64(position.index);
}

pub(crate) fn put_nodes(out: &mut BytesMut, nodes: &BTreeSet<NodeId>) {
    out.put_u16(nodes.len() as u16);
    nodes.iter().for_each(|node| out.put_u64(*node));
}

fn put_entry<'b>(out: &mut BytesMut, entry: &Entry, blocks: &mut impl Iterator<Item = &'b Block>) {
    out.put_u64(entry.position.term);
    match &entry.body {
        Body::Empty => out.put_u8(EMPTY),
        Body::Block(_) => {
            out.put_u8(BLOCK);
            let rows = blocks.next().map_or(&[][..], Block::rows);
            out.put_u16(rows.len() as u16);
            for row in rows {
                out.put_u8(row.kind as u8);
                out.put_u32(row.crc);
                out.put_u64(row.stream);
                out.put_u32(row.body.len() as u32);
            }
        }
        Body::Members(Change { steps }) => {
            out.put_u8(MEMBERS);
            put_steps(out, steps);
        }
    }
}

pub(crate) fn put_steps(out: &mut BytesMut, steps: &[Step]) {
    out.put_u16(steps.len() as u16);
    for step in steps {
        let (code, node) = match *step {
            Step::AddVoter(node) => (ADD_VOTER, node),
            Step::AddLearner(node) => (ADD_LEARNER, node),
            Step::Remove(node) => (REMOVE, node),
        };
        out.put_u8(code);
        out.put_u64(node);
    }
}

pub(super) fn decode(mut fields: Fields, from: NodeId, to: NodeId) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    while !fields.is_empty() {
        parts.push(part(&mut fields, from, to)?);
    }
    Ok(parts)
}

fn part(fields: &mut Fields, from: NodeId, to: NodeId) -> Result<Part> {
    let shard = ShardId::new(fields.u16()?);
    let code = fields.u8()?;
    let term = fields.u64()?;
    let mut blocks = Vec::new();
    let kind = match code {
        APPEND => {
            let prev = position(fields)?;
            let commit = fields.u64()?;
            let entries = entries(fields, prev, &mut blocks)?;
            Kind::Append { prev, commit, entries }
        }
        APPENDED => {
            let (index, commit) = (fields.u64()?, fields.u64()?);
            let hint = if fields.flags(1)? == 1 { Some(position(fields)?) } else { None };
            Kind::Appended { index, commit, hint }
        }
        VOTE => {
            let flags = fields.flags(3)?;
            let (is_pre, is_transfer) = (flags & 1 != 0, flags & 2 != 0);
            Kind::Vote { is_pre, is_transfer, last: position(fields)?, commit: position(fields)? }
        }
        VOTED => {
            let flags = fields.flags(3)?;
            Kind::Voted { is_pre: flags & 1 != 0, is_granted: flags & 2 != 0, commit: position(fields)? }
        }
        BEAT | BEAT_ANSWER => {
            let (commit, sent) = (fields.u64()?, fields.u64()?);
            let read = if fields.flags(1)? == 1 { Some(fields.u64()?) } else { None };
            if code == BEAT { Kind::Beat { commit, sent, read } } else { Kind::BeatAnswer { commit, sent, read } }
        }
        INSTALL => {
            let position = position(fields)?;
            let mut nodes = || nodes(fields);
            let (voters, learners, outgoing, learners_next) = (nodes()?, nodes()?, nodes()?, nodes()?);
            let leaves_joint = fields.flags(1)? == 1;
            Kind::Install(Point {
                position,
                members: Members { voters, learners, outgoing, learners_next, leaves_joint },
            })
        }
        LEAD => Kind::Lead,
        code => return Err(Error::malformed(format!("the kind {code} of a part is unknown"))),
    };
    Ok(Part { shard, message: Message { from, to, term, kind }, blocks })
}

/// Reads a set of nodes, in ascending order.
pub(crate) fn nodes(fields: &mut Fields) -> Result<BTreeSet<NodeId>> {
    let nodes = fields.list(Fields::u64)?;
    if !nodes.is_sorted_by(|a, b| a < b) {
        return Err(Error::malformed("the nodes of a set are not in order"));
    }
    Ok(nodes.into_iter().collect())
}

pub(crate) fn position(fields: &mut Fields) -> Result<Position> {
    Ok(Position { term: fields.u64()?, index: fields.u64()? })
}

/// Row whose body has not been read yet.
struct RowHead {
    kind: EntryKind,
    crc: u32,
    stream: u64,
    bytes: u32,
}

/// Entry whose bodies have not been read yet.
enum EntryHead {
    Empty,
    Block(Vec<RowHead>),
    Members(Change),
}

fn entries(fields: &mut Fields, prev: Position, blocks: &mut Vec<Block>) -> Result<Vec<Entry>> {
    let heads = fields.long_list(|fields| Ok((fields.u64()?, entry_head(fields)?)))?;
    let mut entries = Vec::with_capacity(heads.len());
    let mut index = prev.index;
    for (term, head) in heads {
        index = index.checked_add(1).ok_or_else(|| Error::malformed("an entry has no index"))?;
        let body = match head {
            EntryHead::Empty => Body::Empty,
            EntryHead::Members(change) => Body::Members(change),
            EntryHead::Block(rows) => {
                let block = block(fields, rows)?;
                let size = block.size();
                blocks.push(block);
                Body::Block(size)
            }
        };
        entries.push(Entry { position: Position { term, index }, body });
    }
    Ok(entries)
}

fn entry_head(fields: &mut Fields) -> Result<EntryHead> {
    match fields.u8()? {
        EMPTY => Ok(EntryHead::Empty),
        BLOCK => fields.list(row_head).map(EntryHead::Block),
        MEMBERS => fields.list(step).map(|steps| EntryHead::Members(Change { steps })),
        code => Err(Error::malformed(format!("the kind {code} of an entry is unknown"))),
    }
}

fn row_head(fields: &mut Fields) -> Result<RowHead> {
    let code = fields.u8()?;
    let kind = EntryKind::from_code(code).filter(|kind| is_replicated(*kind));
    let kind = kind.ok_or_else(|| Error::malformed(format!("the kind {code} of a row is not sent to other nodes")))?;
    Ok(RowHead { kind, crc: fields.u32()?, stream: fields.u64()?, bytes: fields.u32()? })
}

/// Returns `true` for what belongs to the log of a shard, and not to one node's files.
fn is_replicated(kind: EntryKind) -> bool {
    match kind {
        EntryKind::Batch | EntryKind::Catalog | EntryKind::Start | EntryKind::View | EntryKind::Cluster => true,
        EntryKind::Next | EntryKind::Segment | EntryKind::Save => false,
    }
}

pub(crate) fn step(fields: &mut Fields) -> Result<Step> {
    let (code, node) = (fields.u8()?, fields.u64()?);
    match code {
        ADD_VOTER => Ok(Step::AddVoter(node)),
        ADD_LEARNER => Ok(Step::AddLearner(node)),
        REMOVE => Ok(Step::Remove(node)),
        code => Err(Error::malformed(format!("the kind {code} of a step is unknown"))),
    }
}

fn block(fields: &mut Fields, heads: Vec<RowHead>) -> Result<Block> {
    let mut rows = Vec::with_capacity(heads.len());
    for RowHead { kind, crc, stream, bytes } in heads {
        let body = fields.bytes(bytes as usize)?;
        if crc_fast::crc32_iscsi(&body) != crc {
            return Err(Error::malformed("a row was damaged on its way"));
        }
        rows.push(Row { kind, stream, crc, body });
    }
    Block::new(rows).ok_or_else(|| Error::malformed("a block has no rows"))
}
