//! Edits of structures: single changes, recorded on request so that they can be replayed.
//!
//! An edit is its number, followed by its fields. All integers are big-endian. A byte string is prefixed with its
//! length (4 bytes).
//!
//! | Of a list | | Of a hash | | Of a set | | Of a sorted set | |
//! |---|---|---|---|---|---|---|---|
//! | 1 push | end (1), item | 1 set | field, value | 1 add | member | 1 set | score (f64), member |
//! | 2 pop | end (1) | 2 remove | field | 2 remove | member | 2 remove | member |
//! | 3 set | place (u64), item | | | | | | |
//! | 4 insert | place (u64), item | | | | | | |
//! | 5 keep | from, to (u64 each) | | | | | | |
//! | 6 remove | end (1), how many (u64), item | | | | | | |

use std::ops::{Deref, Range};

use bytes::BufMut;

use super::{End, Hash, Kind, List, Score, Set, Sorted, Structure};
use crate::error::{Error, Result};
use crate::fields::{Fields, put_long};

const PUSH: u8 = 1;
const POP: u8 = 2;
const SET_PLACE: u8 = 3;
const INSERT: u8 = 4;
const KEEP: u8 = 5;
const REMOVE_ITEM: u8 = 6;
/// Edit of a hash, set or sorted set that sets a field or a member.
const SET: u8 = 1;
const REMOVE: u8 = 2;

/// Structure that is being changed. Its edits can be replayed.
pub struct Edit<'a, T> {
    part: &'a mut T,
    /// Buffer for the edits, if they are recorded.
    edits: Option<&'a mut Vec<u8>>,
}

impl<'a, T> Edit<'a, T> {
    pub(in crate::cache) fn new(part: &'a mut T, edits: Option<&'a mut Vec<u8>>) -> Self {
        Self { part, edits }
    }

    fn note(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(edits) = &mut self.edits {
            write(edits);
        }
    }
}

impl<T> Deref for Edit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.part
    }
}

impl Edit<'_, List> {
    pub fn push(&mut self, end: End, item: &[u8]) {
        self.part.push(end, item);
        self.note(|out| put_push(out, end, item));
    }

    pub fn pop(&mut self, end: End) -> Option<Box<[u8]>> {
        let item = self.part.pop(end)?;
        self.note(|out| out.put_slice(&[POP, end_code(end)]));
        Some(item)
    }

    /// Replaces the item at a place. A place outside the list is ignored.
    pub fn set(&mut self, place: usize, item: &[u8]) {
        self.part.set(place, item);
        self.note(|out| put_placed(out, SET_PLACE, place, item));
    }

    /// Inserts an item before the item at this place, or at the end.
    pub fn insert(&mut self, place: usize, item: &[u8]) {
        self.part.insert(place, item);
        self.note(|out| put_placed(out, INSERT, place, item));
    }

    /// Removes all items outside these places.
    pub fn keep(&mut self, range: Range<usize>) {
        self.part.keep(range.clone());
        self.note(|out| {
            out.put_u8(KEEP);
            out.put_u64(range.start as u64);
            out.put_u64(range.end as u64);
        });
    }

    /// Removes up to `max` items that equal `item`, starting from the front or the back, or all of them if `max` is 0.
    /// Returns their number.
    pub fn remove(&mut self, item: &[u8], from: End, max: usize) -> usize {
        let removed = self.part.remove(item, from, max);
        if removed > 0 {
            self.note(|out| {
                out.put_slice(&[REMOVE_ITEM, end_code(from)]);
                out.put_u64(max as u64);
                put_long(out, item);
            });
        }
        removed
    }
}

impl Edit<'_, Hash> {
    /// Sets a field. Returns `true` if the field is new.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.note(|out| put_field(out, field, value));
        self.part.set(field, value)
    }

    pub fn remove(&mut self, field: &[u8]) -> Option<Box<[u8]>> {
        let value = self.part.remove(field)?;
        self.note(|out| put_one(out, REMOVE, field));
        Some(value)
    }
}

impl Edit<'_, Set> {
    /// Adds a member. Returns `true` if the member is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        let is_new = self.part.add(member);
        if is_new {
            self.note(|out| put_one(out, SET, member));
        }
        is_new
    }

    /// Removes a member. Returns `true` if the member existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let existed = self.part.remove(member);
        if existed {
            self.note(|out| put_one(out, REMOVE, member));
        }
        existed
    }
}

impl Edit<'_, Sorted> {
    /// Sets the score of a member. Returns the previous score.
    pub fn set(&mut self, member: &[u8], score: Score) -> Option<Score> {
        let before = self.part.set(member, score);
        if before != Some(score) {
            self.note(|out| put_score(out, member, score));
        }
        before
    }

    /// Removes a member. Returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<Score> {
        let before = self.part.remove(member)?;
        self.note(|out| put_one(out, REMOVE, member));
        Some(before)
    }
}

impl Structure {
    /// Returns an empty structure, or `None` for bytes and streams.
    pub(in crate::cache) fn empty(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Bytes | Kind::Stream => None,
            Kind::List => Some(Self::List(List::default())),
            Kind::Hash => Some(Self::Hash(Hash::default())),
            Kind::Set => Some(Self::Set(Set::default())),
            Kind::Sorted => Some(Self::Sorted(Sorted::default())),
        }
    }

    /// Returns the edits that create this structure from an empty one.
    pub(in crate::cache) fn dumped(&self) -> Vec<u8> {
        let mut edits = Vec::with_capacity(self.bytes() as usize);
        self.dump(&mut edits);
        edits
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            Self::List(list) => list.range(0..list.len()).for_each(|item| put_push(out, End::Back, item)),
            Self::Hash(hash) => hash.iter().for_each(|(field, value)| put_field(out, field, value)),
            Self::Set(set) => set.iter().for_each(|member| put_one(out, SET, member)),
            Self::Stream(_) => {}
            // In the order of the places, as scans depend on it.
            Self::Sorted(sorted) => {
                (0..sorted.len()).map_while(|place| sorted.at(place)).for_each(|(member, score)| {
                    put_score(out, member, score);
                });
            }
        }
    }

    /// Replays edits on the structure. Fails if an edit is malformed.
    pub(in crate::cache) fn redo(&mut self, edits: &[u8]) -> Result<()> {
        let mut fields = Fields(edits);
        while !fields.0.is_empty() {
            match self {
                Self::List(list) => redo_list(list, &mut fields)?,
                Self::Hash(hash) => match fields.u8()? {
                    SET => drop(hash.set(fields.long()?, fields.long()?)),
                    REMOVE => drop(hash.remove(fields.long()?)),
                    other => return Err(unknown(other)),
                },
                Self::Set(set) => match fields.u8()? {
                    SET => drop(set.add(fields.long()?)),
                    REMOVE => drop(set.remove(fields.long()?)),
                    other => return Err(unknown(other)),
                },
                Self::Stream(_) => return Err(Error::malformed("a stream has no edits")),
                Self::Sorted(sorted) => match fields.u8()? {
                    SET => {
                        let score = Score::new(f64::from_bits(fields.u64()?));
                        let score = score.ok_or_else(|| Error::malformed("a score is not a number"))?;
                        sorted.set(fields.long()?, score);
                    }
                    REMOVE => drop(sorted.remove(fields.long()?)),
                    other => return Err(unknown(other)),
                },
            }
        }
        Ok(())
    }
}

fn redo_list(list: &mut List, fields: &mut Fields<'_>) -> Result<()> {
    match fields.u8()? {
        PUSH => list.push(end(fields)?, fields.long()?),
        POP => drop(list.pop(end(fields)?)),
        SET_PLACE => list.set(fields.u64()? as usize, fields.long()?),
        INSERT => list.insert(fields.u64()? as usize, fields.long()?),
        KEEP => list.keep(fields.u64()? as usize..fields.u64()? as usize),
        REMOVE_ITEM => {
            let from = end(fields)?;
            let max = fields.u64()? as usize;
            list.remove(fields.long()?, from, max);
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

fn end_code(end: End) -> u8 {
    u8::from(end == End::Back)
}

fn end(fields: &mut Fields<'_>) -> Result<End> {
    Ok(if fields.flag()? { End::Back } else { End::Front })
}

fn put_push(out: &mut Vec<u8>, end: End, item: &[u8]) {
    out.put_slice(&[PUSH, end_code(end)]);
    put_long(out, item);
}

fn put_placed(out: &mut Vec<u8>, edit: u8, place: usize, item: &[u8]) {
    out.put_u8(edit);
    out.put_u64(place as u64);
    put_long(out, item);
}

fn put_field(out: &mut Vec<u8>, field: &[u8], value: &[u8]) {
    out.put_u8(SET);
    put_long(out, field);
    put_long(out, value);
}

fn put_score(out: &mut Vec<u8>, member: &[u8], score: Score) {
    out.put_u8(SET);
    out.put_u64(score.get().to_bits());
    put_long(out, member);
}

fn put_one(out: &mut Vec<u8>, edit: u8, member: &[u8]) {
    out.put_u8(edit);
    put_long(out, member);
}

fn unknown(edit: u8) -> Error {
    Error::malformed(format!("unknown edit {edit} of a structure"))
}
