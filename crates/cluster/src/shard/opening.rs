//! Opening of a node's directory: which rows of the journal belong to the log of the shard, and which of those are
//! committed.
//!
//! The first reading of the journal sees every save, and so knows at its end which entries are in the log and up to
//! which they are committed. In later readings the rows of committed entries pass, those of the entries after them are
//! held in memory, and all others are of no account: their write was cut short, or another leader has replaced them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use consensus::{Hard, Index, Log, Members, NodeId, Point, Settings};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use storage::{EntryKind, Found, Front, Journal, Origin, ShardLog};

use super::machine::{Begin, Machine};
use super::places::Places;
use super::save::{Base, SaveRow, SavedEntry, later};
use super::{Clock, Shard};
use crate::link::{Block, Row};
use crate::roster::{FORMAT, Roster, RosterChange};

/// How a node takes part in the shard.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub shard: ShardId,
    pub node: NodeId,
    /// `true` for the node that founds the cluster, whose directory may have been a single broker's.
    pub is_founder: bool,
}

/// Fate of the rows of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    Held(Index),
    Dropped,
}

/// Save of the journal, as the first reading found it.
struct ReadSave {
    /// Rows before it that belong to no save, and rows of it that are before the origin of the reading: one of both is
    /// 0.
    stray: u64,
    missing: u64,
    /// Block with the first of its rows, or with itself.
    block: Origin,
    /// Entries with their index and the number of their rows.
    entries: Vec<(Index, u16)>,
    fates: Vec<Fate>,
}

/// Reading of the journal at the opening of a node's directory.
pub struct Opening {
    part: Part,
    settings: Settings,
    /// Version of the log's rows that the program reads.
    format: u32,
    seed: u64,
    clock: Clock,
    has_thread: bool,
    log: Log,
    roster: Roster,
    /// Roster after the committed changes of the reading in progress.
    read_roster: Roster,
    saves: Vec<ReadSave>,
    /// The save that wrote each entry of the log, and the place of the entry in it.
    live: BTreeMap<Index, (usize, usize)>,
    /// Blocks with the rows since the last save.
    rows: VecDeque<Origin>,
    /// Number of the next save of the reading in progress, and of the next row before it.
    next: (usize, u64),
    /// Rows of entries that are not committed.
    held: BTreeMap<Index, Vec<Row>>,
    hard: Hard,
    commit: Index,
    started: Option<Arc<Shard>>,
}

impl Opening {
    pub fn new(part: Part, settings: Settings, seed: u64, clock: Clock) -> Self {
        Self {
            part,
            settings,
            format: FORMAT,
            seed,
            clock,
            has_thread: true,
            log: Log::of_joiner(),
            roster: Roster::default(),
            read_roster: Roster::default(),
            saves: Vec::new(),
            live: BTreeMap::new(),
            rows: VecDeque::new(),
            next: (0, 0),
            held: BTreeMap::new(),
            hard: Hard::default(),
            commit: 0,
            started: None,
        }
    }

    /// Reads the directory like a program that reads the log's rows up to a version.
    pub fn reads(self, format: u32) -> Self {
        Self { format, ..self }
    }

    /// Opens the shard without a thread: [`Shard::turn`] does its work.
    pub fn without_thread(self) -> Self {
        Self { has_thread: false, ..self }
    }

    /// Returns the shard, once the store is open.
    pub fn shard(&self) -> Option<Arc<Shard>> {
        self.started.clone()
    }

    fn note_save(&mut self, row: SaveRow, block: Origin) -> Result<()> {
        let SaveRow { install, hard, commit, entries } = row;
        let needed: u64 = entries.iter().map(|saved| u64::from(saved.rows)).sum();
        let rows = std::mem::take(&mut self.rows);
        let found = rows.len() as u64;
        let (stray, missing) = (found.saturating_sub(needed), needed.saturating_sub(found));
        if missing > 0 && !self.saves.is_empty() {
            return Err(lost("rows of an entry are missing"));
        }
        let block = rows.get(stray as usize).copied().unwrap_or(block);
        if let Some((point, roster)) = install {
            self.log = Log::from_point(point);
            self.roster = roster;
            self.live.clear();
        }
        self.hard = hard.map_or(self.hard, |hard| later(self.hard, hard));
        let at = self.saves.len();
        let mut found = Vec::with_capacity(entries.len());
        for (i, SavedEntry { entry, rows }) in entries.into_iter().enumerate() {
            let index = entry.position.index;
            self.live.split_off(&index);
            self.live.insert(index, (at, i));
            found.push((index, rows));
            self.log.push(entry);
        }
        self.commit = self.commit.max(commit);
        let fates = vec![Fate::Dropped; found.len()];
        self.saves.push(ReadSave { stray, missing, block, entries: found, fates });
        Ok(())
    }

    /// Ends the first reading: decides about the rows of every entry.
    fn decide(&mut self) {
        self.log.set_hard(self.hard);
        self.log.set_commit(self.commit);
        let commit = self.log.commit();
        for (index, (save, entry)) in &self.live {
            self.saves[*save].fates[*entry] = if *index <= commit { Fate::Passes } else { Fate::Held(*index) };
        }
    }

    /// Checks that the rows before the origin of the journal belong to entries that the checkpoint includes.
    fn check_missing(&self) -> Result<()> {
        let base = self.log.base().position.index;
        let Some(first) = self.saves.first() else { return Ok(()) };
        let mut before = 0;
        for ((index, rows), fate) in first.entries.iter().zip(&first.fates) {
            if before < first.missing && *rows > 0 && *fate != Fate::Dropped && *index > base {
                return Err(lost("the journal begins after rows that are needed"));
            }
            before += u64::from(*rows);
        }
        Ok(())
    }

    /// Returns the last entry of the log, and the block from which the journal is needed for those that are not
    /// committed.
    fn needed_from(&self) -> Option<(Index, Origin)> {
        let (_, (save, _)) = self.live.range(self.log.commit() + 1..).min_by_key(|(_, (save, _))| *save)?;
        Some((self.log.last().index, self.saves.get(*save)?.block))
    }

    /// Returns what happens to the next row of the reading in progress.
    fn fate(&mut self) -> Fate {
        let (save, row) = self.next;
        self.next.1 += 1;
        // Rows after the last save were cut short.
        let Some(found) = self.saves.get(save) else {
            return Fate::Dropped;
        };
        let Some(mut at) = (row + found.missing).checked_sub(found.stray) else {
            return Fate::Dropped;
        };
        for ((_, rows), fate) in found.entries.iter().zip(&found.fates) {
            match at.checked_sub(u64::from(*rows)) {
                Some(left) => at = left,
                None => return *fate,
            }
        }
        Fate::Dropped
    }
}

impl Front for Opening {
    fn adopt(&mut self, state: &[u8]) -> Result<()> {
        if state.is_empty() {
            if self.part.is_founder {
                let members = Members::of_voters([self.part.node]);
                self.log = Log::of_founder(members);
                self.hard = self.log.hard();
            }
            return Ok(());
        }
        let Base { point, hard, commit, roster } = Base::decode(state)?;
        roster.check_format(self.format)?;
        (self.saves, self.live, self.rows) = Default::default();
        self.log = Log::from_point(point);
        self.hard = hard;
        self.commit = commit;
        self.roster = roster.clone();
        self.read_roster = roster;
        Ok(())
    }

    fn note(&mut self, found: &Found<'_>) -> Result<()> {
        if found.kind != EntryKind::Save {
            self.rows.push_back(found.block);
            return Ok(());
        }
        let body = found.body.as_ref().map_err(|error| lost(&error.message))?;
        self.note_save(SaveRow::decode(Bytes::copy_from_slice(body))?, found.block)
    }

    fn rewind(&mut self) {
        self.decide();
        self.next = (0, 0);
        self.held.clear();
        self.read_roster = self.roster.clone();
    }

    fn passes(&mut self, found: &Found<'_>) -> Result<bool> {
        if found.kind == EntryKind::Save {
            self.next = (self.next.0 + 1, 0);
            return Ok(false);
        }
        let fate = self.fate();
        if fate == Fate::Dropped {
            return Ok(false);
        }
        let body = found.body.as_ref().map_err(|error| lost(&error.message))?;
        match fate {
            Fate::Held(index) => {
                let row = Row::new(found.kind, found.stream, Bytes::copy_from_slice(body));
                self.held.entry(index).or_default().push(row);
                Ok(false)
            }
            _ if found.kind == EntryKind::Cluster => {
                self.read_roster.apply(&RosterChange::decode(Bytes::copy_from_slice(body))?);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    fn start(&mut self, journal: Arc<Journal>) -> Result<Arc<dyn ShardLog>> {
        self.decide();
        self.check_missing()?;
        self.read_roster.check_format(self.format)?;
        let log = self.log.clone();
        let needed_from = self.needed_from();
        let settled = log.commit();
        let after = settled + 1..=log.last().index;
        let mut held = std::mem::take(&mut self.held);
        let blocks = after.map(|index| held.remove(&index).and_then(Block::new)).collect();
        let unsettled = needed_from.map(|(last, _)| last);
        let begin = Begin { log, settled, blocks, roster: self.read_roster.clone(), unsettled };
        let part = (self.part.shard, self.part.node);
        let machine = Machine::start(part, begin, self.settings.clone(), self.seed, (self.clock)());
        let machine = machine.map_err(|refused| {
            Error::new(ErrorKind::Internal, format!("the consensus of the cluster does not start: {refused:?}"))
        })?;
        let places = Places::read(needed_from.map(|(_, origin)| origin));
        let shard = Shard::start((part.0, part.1, self.format), self.has_thread, machine, places, journal, self.clock)?;
        self.started = Some(shard.clone());
        Ok(shard)
    }
}

/// Returns the error of a node that lost a part of what it has acknowledged.
fn lost(what: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "this node may have lost records that it has acknowledged ({what}), so it must not take part in the \
             cluster under its number again. Replace it: move its data directory away, run `thalweg cluster replace` \
             on another node, and let this one join again"
        ),
    )
}

/// State of the consensus in a checkpoint, for people.
#[derive(Clone, Debug)]
pub struct Summary {
    pub point: Point,
    pub hard: Hard,
    pub roster: Roster,
}

impl Summary {
    pub fn read(state: &[u8]) -> Result<Self> {
        let Base { point, hard, roster, .. } = Base::decode(state)?;
        Ok(Self { point, hard, roster })
    }
}

/// Rows that are queued, in their order.
pub(super) type Rows = VecDeque<storage::Entry>;

#[cfg(test)]
mod tests {
    use consensus::Position;

    use super::*;

    #[test]
    fn a_state_that_was_fetched_has_the_nodes_of_the_cluster() {
        let part = Part { shard: ShardId::FIRST, node: 3, is_founder: false };
        let mut opening = Opening::new(part, crate::node::consensus_settings(), 1, || 0);
        opening.adopt(&[]).expect("a new directory");
        let mut roster = Roster::default();
        for node in 1..=3 {
            roster.apply(&RosterChange::Describe { node, member: Default::default() });
        }
        let point = Point { position: Position { term: 2, index: 9 }, members: Members::of_voters(1..=3) };
        let row = SaveRow { install: Some((point, roster.clone())), ..SaveRow::default() };
        let row = SaveRow::decode(row.encode()).expect("as written");
        opening.note_save(row, Origin::default()).expect("no row is missing");
        opening.rewind();
        assert_eq!(opening.read_roster, roster);
    }
}
