//! Toy log of a cluster in front of the journal: one node that decides late, and at the request of a test, which of its
//! entries are committed. Each entry is a row and a save row with its index; an entry replaces those from its index on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::shard::ShardId;
use engine::{Error, ErrorKind};
use parking_lot::{Condvar, Mutex};
use storage::{Entry, EntryKind, Found, Front, Journal, Kept, Origin, Owner, ShardLog, Store};

use crate::workload::PATIENCE;

/// Row of an entry as a follower receives it.
pub type Sent = (EntryKind, u64, Bytes);

/// Time without progress after which a journal on a disk without power gets no file any more.
const WITHOUT_POWER: Duration = Duration::from_millis(300);

pub struct Toy {
    journal: Arc<Journal>,
    log: Mutex<Log>,
    synced: Arc<Synced>,
    is_off: Box<dyn Fn() -> bool + Send + Sync>,
    keeps: bool,
    kept: Mutex<u64>,
}

#[derive(Default)]
struct Log {
    /// Entries that are not committed.
    open: VecDeque<Open>,
    /// Index up to which all is committed and applied.
    committed: u64,
    /// Number of rows that were appended to the journal.
    rows: u64,
}

struct Open {
    sent: Sent,
    owner: Option<(Arc<dyn Owner>, u64)>,
    /// Origin from which the journal has it.
    origin: Origin,
}

/// Owner of all rows in the journal; their marks are their numbers, from 1.
#[derive(Default)]
struct Synced {
    state: Mutex<SyncedState>,
    changed: Condvar,
}

#[derive(Default)]
struct SyncedState {
    rows: u64,
    failed: Option<Error>,
}

impl Owner for Synced {
    fn committed(&self, mark: u64) {
        self.state.lock().rows = mark;
        self.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        self.state.lock().failed = Some(error.clone());
        self.changed.notify_all();
    }
}

impl ShardLog for Toy {
    fn append(&self, entry: Entry) -> Result<(), Error> {
        let mut log = self.log.lock();
        let sent = (entry.kind, entry.stream, entry.body);
        self.push(&mut log, sent, Some((entry.owner, entry.mark)))
    }

    fn admit(&self) -> Result<(), Error> {
        self.journal.admit()
    }

    fn broken(&self) -> Option<Error> {
        self.journal.broken()
    }

    fn still(&self, look: &mut dyn FnMut()) {
        let _log = self.log.lock();
        look();
    }

    fn keep(&self) -> Option<Kept> {
        if !self.keeps {
            return None;
        }
        let log = self.log.lock();
        let state = Bytes::copy_from_slice(&log.committed.to_le_bytes());
        Some(Kept { state, origin: log.open.front().map(|open| open.origin) })
    }

    fn kept(&self, kept: &Kept) {
        *self.kept.lock() = number(&kept.state, 0);
    }
}

impl Toy {
    fn push(&self, log: &mut Log, sent: Sent, owner: Option<(Arc<dyn Owner>, u64)>) -> Result<(), Error> {
        let origin = self.journal.origin();
        let index = log.committed + log.open.len() as u64 + 1;
        let (kind, stream, body) = sent.clone();
        self.row(log, kind, stream, body)?;
        self.save(log, index)?;
        log.open.push_back(Open { sent, owner, origin });
        Ok(())
    }

    fn save(&self, log: &mut Log, index: u64) -> Result<(), Error> {
        let body = [index.to_le_bytes(), log.committed.to_le_bytes()].concat();
        self.row(log, EntryKind::Save, 0, body.into())
    }

    fn row(&self, log: &mut Log, kind: EntryKind, stream: u64, body: Bytes) -> Result<(), Error> {
        let owner = self.synced.clone();
        self.journal.append(Entry { kind, shard: ShardId::FIRST, stream, body, owner, mark: log.rows + 1 })?;
        log.rows += 1;
        Ok(())
    }

    /// Waits until all rows are synced on this disk.
    pub fn wait_synced(&self) -> Result<(), Error> {
        let rows = self.log.lock().rows;
        let mut state = self.synced.state.lock();
        let begin = Instant::now();
        while state.rows < rows {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            let is_late = self.synced.changed.wait_for(&mut state, WITHOUT_POWER).timed_out();
            if is_late && (self.is_off)() {
                return Err(Error::new(ErrorKind::Internal, "the power is off"));
            }
            assert!(begin.elapsed() < PATIENCE, "they are not synced");
        }
        Ok(())
    }

    /// Index in the state of the last checkpoint.
    pub fn kept_index(&self) -> u64 {
        *self.kept.lock()
    }

    /// Commits the next entries once they are on the disk, and adds their rows to `committed`.
    pub fn commit(&self, store: &Store, count: usize, committed: &mut Vec<Sent>) -> Result<(), Error> {
        self.wait_synced()?;
        for _ in 0..count {
            let next = self.log.lock().open.front().map(|open| (open.sent.clone(), open.owner.clone()));
            let Some((sent, owner)) = next else { break };
            match owner {
                Some((owner, mark)) => owner.committed(mark),
                None => store.apply(sent.0, sent.1, sent.2.clone())?,
            }
            committed.push(sent);
            let mut log = self.log.lock();
            log.open.pop_front();
            log.committed += 1;
        }
        self.save(&mut self.log.lock(), 0)
    }

    /// Gives up what is not committed, as a leader does that is replaced.
    pub fn give_up(&self) {
        let open = std::mem::take(&mut self.log.lock().open);
        let error = Error::not_leader("another node leads", None);
        open.iter().filter_map(|open| open.owner.as_ref()).for_each(|(owner, _)| owner.failed(&error));
    }

    /// Adds an entry of another leader.
    pub fn follow(&self, sent: Sent) -> Result<(), Error> {
        self.push(&mut self.log.lock(), sent, None)
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Opening of a directory behind a [`Toy`].
pub struct Opening {
    /// `true` if entries that are not committed are appended to the journal again, not only kept where they are.
    appends_again: bool,
    /// `false` if checkpoints are those of a single broker.
    pub keeps: bool,
    /// `true` if the journal is that of a single broker.
    pub passes_all: bool,
    is_off: Box<dyn Fn() -> bool + Send + Sync>,
    /// Index in the checkpoint, and according to the journal.
    pub kept: u64,
    pub committed: u64,
    entries: BTreeMap<u64, Noted>,
    /// Row that no save row has followed yet.
    last: Option<Noted>,
    rows: u64,
    passing: BTreeSet<u64>,
    pub toy: Option<Arc<Toy>>,
}

struct Noted {
    row: u64,
    sent: Sent,
    origin: Origin,
}

impl Opening {
    pub fn new(appends_again: bool, is_off: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            appends_again,
            keeps: true,
            passes_all: false,
            is_off: Box::new(is_off),
            kept: 0,
            committed: 0,
            entries: BTreeMap::new(),
            last: None,
            rows: 0,
            passing: BTreeSet::new(),
            toy: None,
        }
    }

    /// Returns the entries that are not committed as far as this node knows.
    pub fn open(&self) -> Vec<Sent> {
        self.entries.range(self.committed + 1..).map(|(_, noted)| noted.sent.clone()).collect()
    }
}

impl Front for Opening {
    fn adopt(&mut self, state: &[u8]) -> Result<(), Error> {
        self.kept = if state.is_empty() { 0 } else { number(state, 0) };
        self.committed = self.kept;
        (self.last, self.rows) = (None, 0);
        self.entries.clear();
        Ok(())
    }

    fn note(&mut self, found: &Found<'_>) -> Result<(), Error> {
        self.rows += 1;
        let body = found.body.clone()?;
        match found.kind {
            EntryKind::Save => {
                let index = number(body, 0);
                if let Some(noted) = self.last.take().filter(|_| index > 0) {
                    self.entries.split_off(&index);
                    self.entries.insert(index, noted);
                }
                self.committed = self.committed.max(number(body, 8));
            }
            kind => {
                let sent = (kind, found.stream, Bytes::copy_from_slice(body));
                self.last = Some(Noted { row: self.rows, sent, origin: found.block });
            }
        }
        Ok(())
    }

    fn rewind(&mut self) {
        self.rows = 0;
        self.passing = self.entries.range(..=self.committed).map(|(_, noted)| noted.row).collect();
    }

    fn passes(&mut self, found: &Found<'_>) -> Result<bool, Error> {
        self.rows += 1;
        let passes = self.passes_all || self.passing.contains(&self.rows);
        assert!(!(passes && found.kind == EntryKind::Save), "the rows come in the same order");
        Ok(passes)
    }

    fn start(&mut self, journal: Arc<Journal>) -> Result<Arc<dyn ShardLog>, Error> {
        let is_off = std::mem::replace(&mut self.is_off, Box::new(|| false));
        let log = Mutex::new(Log { committed: self.committed, ..Log::default() });
        let toy =
            Arc::new(Toy { journal, log, synced: Arc::default(), is_off, keeps: self.keeps, kept: Mutex::default() });
        for noted in self.entries.range(self.committed + 1..).map(|(_, noted)| noted) {
            let mut log = toy.log.lock();
            let (sent, origin) = (noted.sent.clone(), noted.origin);
            if self.appends_again {
                toy.push(&mut log, sent, None)?;
                continue;
            }
            log.open.push_back(Open { sent, owner: None, origin });
        }
        toy.wait_synced()?;
        self.toy = Some(toy.clone());
        Ok(toy)
    }
}
