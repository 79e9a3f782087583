//! The disk of a node: blocks of rows in the order in which they were written, of which a crash keeps the first.

use std::collections::BTreeMap;

use consensus::{Entry, Hard, Index, Log, Point, Position, Save, Term};

use super::bugs::Bug;

/// Content of a block, which accompanies its entry.
pub type Content = u64;

/// State of a shard, as a digest of the log that it includes.
pub type Digest = u64;

#[derive(Clone, Debug)]
pub enum Row {
    Install(Point, Digest),
    Hard(Hard),
    Entry(Entry, Content),
    /// Index that is known to be committed.
    Commit(Index),
}

/// Blocks, and the state that a checkpoint keeps of those before.
#[derive(Clone, Debug)]
pub struct Disk {
    first: Log,
    checkpoint: Option<(Point, Digest)>,
    blocks: Vec<Vec<Row>>,
    /// Blocks that no crash can take.
    synced: usize,
    /// Terms of the entries that no crash can take.
    durable: Durable,
}

/// State that a node reads when it starts.
pub struct Recovered {
    pub log: Log,
    pub digest: Digest,
    pub contents: BTreeMap<Position, Content>,
}

impl Disk {
    /// Creates a disk with the log that a node is created with.
    pub fn new(first: Log) -> Self {
        let durable = Durable { base: first.base().position.index, terms: Vec::new() };
        Self { first, checkpoint: None, blocks: Vec::new(), synced: 0, durable }
    }

    /// Writes a save as a block, and returns the number of blocks that have to be synced for it.
    pub fn write(
        &mut self,
        save: &Save,
        digest: Option<Digest>,
        content: impl Fn(Position) -> Content,
        bug: Option<Bug>,
    ) -> usize {
        let mut rows = Vec::new();
        if let Some(point) = &save.install {
            rows.push(Row::Install(point.clone(), digest.unwrap_or_default()));
        }
        if let Some(hard) = save.hard {
            match bug {
                Some(Bug::ForgetsTerm) => {}
                Some(Bug::ForgetsVote) => rows.push(Row::Hard(Hard { vote: None, ..hard })),
                _ => rows.push(Row::Hard(hard)),
            }
        }
        rows.extend(save.entries.iter().map(|entry| Row::Entry(entry.clone(), content(entry.position))));
        if bug == Some(Bug::LosesLastEntry) && save.entries.len() > 1 {
            rows.pop();
        }
        if bug == Some(Bug::WritesBackwards) {
            rows.reverse();
        }
        if bug != Some(Bug::ForgetsCommit) {
            rows.push(Row::Commit(save.commit));
        }
        self.blocks.push(rows);
        self.blocks.len()
    }

    /// Notes that the first blocks are on the medium.
    pub fn sync(&mut self, blocks: usize) {
        for row in self.blocks[self.synced.min(blocks)..blocks].iter().flatten() {
            self.durable.add(row);
        }
        self.synced = self.synced.max(blocks);
    }

    /// Loses blocks that were not synced, but keeps the first `kept(..)` of them.
    pub fn crash(&mut self, kept: impl FnOnce(u64) -> u64) {
        let unsynced = self.blocks.len() - self.synced;
        let kept = kept(unsynced as u64 + 1) as usize;
        self.blocks.truncate(self.synced + kept);
        // What was not lost is read from the medium from now on.
        self.sync(self.blocks.len());
    }

    pub fn checkpoint(&mut self, point: Point, digest: Digest) {
        self.checkpoint = Some((point, digest));
    }

    /// Returns `true` if no crash can take the entry.
    pub fn has(&self, position: Position) -> bool {
        self.durable.has(position)
    }

    pub fn recover(&self, bug: Option<Bug>) -> Recovered {
        let mut log = self.first.clone();
        let mut digest = 0;
        if let Some((point, known)) = &self.checkpoint {
            let mut point = point.clone();
            if bug == Some(Bug::ForgetsMembers) {
                point.members = self.first.base().members;
            }
            let hard = log.hard();
            log = Log::from_point(point);
            log.set_hard(hard);
            digest = *known;
        }
        let mut contents = BTreeMap::new();
        for row in self.blocks.iter().flatten() {
            match row {
                Row::Install(point, state) if point.position.index > log.base().position.index => {
                    let hard = log.hard();
                    log = Log::from_point(point.clone());
                    log.set_hard(hard);
                    digest = *state;
                }
                Row::Install(..) => {}
                Row::Hard(hard) => log.set_hard(*hard),
                Row::Entry(entry, content) => {
                    let is_old = entry.position.index <= log.last().index;
                    if bug == Some(Bug::KeepsReplacedEntries) && is_old {
                        continue;
                    }
                    contents.insert(entry.position, *content);
                    log.push(entry.clone());
                }
                Row::Commit(commit) => log.set_commit(*commit),
            }
        }
        if bug == Some(Bug::CommitsWhatItHas) {
            log.set_commit(log.last().index);
        }
        Recovered { log, digest, contents }
    }

    /// Loses everything.
    pub fn lose(&mut self) {
        *self = Self::new(Log::of_joiner());
    }
}

/// Entries that no crash can take, by their terms.
#[derive(Clone, Debug)]
struct Durable {
    base: Index,
    terms: Vec<Term>,
}

impl Durable {
    fn add(&mut self, row: &Row) {
        match row {
            Row::Install(point, _) if point.position.index > self.base => {
                *self = Self { base: point.position.index, terms: Vec::new() };
            }
            Row::Entry(entry, _) if entry.position.index > self.base => {
                self.terms.truncate((entry.position.index - self.base - 1) as usize);
                self.terms.push(entry.position.term);
            }
            Row::Entry(..) => self.terms.clear(),
            Row::Install(..) | Row::Hard(_) | Row::Commit(_) => {}
        }
    }

    fn has(&self, position: Position) -> bool {
        match position.index.checked_sub(self.base + 1) {
            None => true,
            Some(at) => self.terms.get(at as usize) == Some(&position.term),
        }
    }
}
