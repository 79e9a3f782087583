//! Opening of a data directory, alone or as that of a node of a cluster.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::changes::Changes;
use super::checkpoint::LastCheckpoint;
use super::waits::Waits;
use super::{Counts, Store};
use crate::checkpoint::{Checkpoint, NotACheckpoint, VERSION, ends};
use crate::disk::{Disk, LOCK_NAME, damaged, failed, make_dir, other_version, read_whole};
use crate::journal::Journal;
use crate::journal::recover::{self, Progress, Recovery, Tail};
use crate::journal::through::Through;
use crate::partition::scan::Epochs;
use crate::room::DISK_PART;
use crate::shard_log::Front;
use crate::shared::{StoreSettings, StoredTopic};
use crate::sqlite::{self, SqliteStore};
use crate::state::{State, of_a_node};

/// Directory that is recovered.
struct Directory<'d> {
    disk: &'d Arc<dyn Disk>,
    dir: &'d Path,
    settings: StoreSettings,
    clock: fn() -> u64,
    refused: &'d [(u64, Error)],
}

impl Store {
    /// Opens a data directory, or creates one, and recovers its contents.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: StoreSettings,
        clock: fn() -> u64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Arc<Self>, Vec<StoredTopic>)> {
        Self::open_except(disk, dir, settings, clock, &[], None, progress)
    }

    /// Opens the data directory of a node of a cluster, or makes a node of the directory of a single broker: `front` is
    /// the log in front of the journal. Nothing is committed before that log says so, and segments have only what is
    /// committed: large batches go through the journal like all others. A directory with damage is not opened.
    pub fn open_front(
        disk: Arc<dyn Disk>,
        dir: &Path,
        mut settings: StoreSettings,
        clock: fn() -> u64,
        front: &mut dyn Front,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Arc<Self>, Vec<StoredTopic>)> {
        settings.journal.through_bytes_min = usize::MAX;
        Self::open_except(disk, dir, settings, clock, &[], Some(front), progress)
    }

    /// Opens a data directory without serving the partitions in `refused`: their entries in the journal are put aside.
    /// On a full disk it tries again with the space of the reserve.
    pub(crate) fn open_except(
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: StoreSettings,
        clock: fn() -> u64,
        refused: &[(u64, Error)],
        mut front: Option<&mut dyn Front>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Arc<Self>, Vec<StoredTopic>)> {
        make_dir(&*disk, dir).map_err(failed("make", dir))?;
        let lock = take_lock(&*disk, dir)?;
        let mut settings = settings;
        let (disk_bytes, _) = disk.volume(dir).map_err(failed("check", dir))?;
        settings.journal.limit(disk_bytes / DISK_PART);
        settings.limit(disk_bytes / DISK_PART);
        if let Err(error) = disk.make_private(dir, &ENTRIES) {
            tracing::warn!(
                %error,
                "other users of this machine can read the data directory: remove their permissions with chmod -R go="
            );
        }
        if front.is_some() {
            refuse_sqlite(&*disk, dir)?;
        }
        let mut bring_back = |is_full| {
            let front: Option<&mut dyn Front> = match &mut front {
                Some(front) => Some(&mut **front),
                None => None,
            };
            let place = Directory { disk: &disk, dir, settings, clock, refused };
            Self::bring_back(&place, front, is_full, progress)
        };
        let (mut store, mut topics) = match bring_back(false) {
            Err(error) if error.kind == ErrorKind::DiskFull => {
                tracing::warn!(%error, "the disk is full: starting with the reserved space");
                bring_back(true).inspect(|(store, _)| store.shared.room.note(&error))?
            }
            opened => opened?,
        };
        store.lock = Some(lock);
        let store = Arc::new(store);
        store.open_sqlite(&mut topics)?;
        store.keep_reserve();
        if settings.has_threads {
            store.start_threads()?;
        }
        Ok((store, topics))
    }

    fn start_threads(self: &Arc<Self>) -> Result<()> {
        let background = &self.shared.background;
        background.spawn("segments", Arc::downgrade(self), true, Self::flush_if_due)?;
        background.spawn("checkpoints", Arc::downgrade(self), false, Self::checkpoint_if_due)?;
        background.spawn("compaction", Arc::downgrade(self), false, Self::compact_if_due)
    }

    /// Recovers a directory whose lock is held. `is_full`: releases all disk space that can be released.
    fn bring_back(
        directory: &Directory<'_>,
        mut front: Option<&mut dyn Front>,
        is_full: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Vec<StoredTopic>)> {
        let Directory { disk, dir, settings, clock, refused } = *directory;
        let journal_dir = dir.join("journal");
        make_dir(&**disk, &journal_dir).map_err(failed("make", &journal_dir))?;
        let found = read_checkpoint(&**disk, &dir.join("checkpoint"));
        let is_of_node = !matches!(&found, Ok(Some(Checkpoint { state: None, .. })));
        let is_unfit = is_of_node && front.is_some();
        let unfit = |error: Error| if is_unfit { unfit(error) } else { error };
        let found = found.map_err(unfit)?;
        let mut state =
            State::new(disk.clone(), dir, settings, if front.is_some() { Epochs::Terms } else { Epochs::Zero });
        if is_full {
            state.shared.room.release();
        }
        if let Some(front) = &mut front {
            let kept = found.as_ref().and_then(|found| found.state.as_deref());
            front.adopt(kept.unwrap_or_default())?;
        }
        let had_state = found.as_ref().is_some_and(|found| found.state.is_some());
        let (directory, tail) = match found {
            None => {
                refuse_leftovers(&**disk, dir, &journal_dir).map_err(unfit)?;
                sync_ancestors(&**disk, dir);
                // A new hasher has a random key.
                (settings.directory.unwrap_or_else(|| RandomState::new().hash_one(clock())), Tail::of_new())
            }
            Some(Checkpoint { state: Some(_), .. }) if front.is_none() => return Err(of_a_node()),
            Some(Checkpoint { directory, origin, catalog, .. }) => {
                state.adopt(catalog);
                state.refuse(refused);
                let mut recovery = Recovery::open(disk, dir, directory, origin, ends(&state.catalog)).map_err(unfit)?;
                if is_full {
                    recovery.give_up_blank(&**disk, settings.journal.file_bytes);
                }
                let passing: Option<&mut dyn Front> = match &mut front {
                    Some(front) => Some(&mut **front),
                    None => None,
                };
                let end = state.bring_back(&recovery, origin, passing, clock, is_full, progress).map_err(unfit)?;
                (directory, recovery.into_tail(end, front.is_some()))
            }
        };
        let shared = state.shared.clone();
        let gate = shared.gate.clone();
        let kept = (shared.room.clone(), shared.place.clone(), shared.streams.clone() as Arc<dyn Through>);
        let journal = Journal::start(disk.clone(), &journal_dir, directory, settings.journal, tail, gate, kept)?;
        if settings.has_threads {
            journal.start_threads(&settings.journal)?;
        }
        let journal = shared.journal.get_or_init(|| Arc::new(journal)).clone();
        let topics = state.topics();
        let shared = state.shared.clone();
        let state = Arc::new(Mutex::new(state));
        let store = Self {
            directory,
            settings,
            changes: Arc::new(Changes::new(shared.clone(), state.clone())),
            shared,
            state,
            had_state,
            checkpoint: Mutex::new(LastCheckpoint { at: Instant::now(), is_failed: false, written: None }),
            aged: Mutex::new(Instant::now()),
            compaction: Mutex::default(),
            sqlite: OnceLock::new(),
            opening: Mutex::default(),
            on_room: Arc::default(),
            counts: Counts::default(),
            clock,
            lock: None,
        };
        let on_room = || -> Box<dyn Fn() + Send + Sync> {
            let on_room = store.on_room.clone();
            Box::new(move || on_room.tell())
        };
        journal.on_room(on_room());
        let log = match front {
            Some(front) => front.start(journal)?,
            None => journal,
        };
        log.on_room(on_room());
        store.shared.log.get_or_init(|| log);
        // From here on the directory can be recovered. After a failed sync, recovered data may have come from the
        // system's memory only: now it is on the disk, independent of the journal.
        store.checkpoint()?;
        Ok((store, topics))
    }

    /// Adds the topics in SQLite, if any exist.
    fn open_sqlite(&self, topics: &mut Vec<StoredTopic>) -> Result<()> {
        let disk = &self.shared.disk;
        let dir = &self.shared.dir;
        let names = disk.list(dir).map_err(failed("list", dir))?;
        if !names.iter().any(|name| name == sqlite::FILE_NAME) {
            return Ok(());
        }
        let (sqlite, found) = SqliteStore::open(&dir.join(sqlite::FILE_NAME), self.settings.sqlite, self.clock)?;
        let on_room = self.on_room.clone();
        sqlite.on_room(Box::new(move || on_room.tell()));
        self.sqlite.get_or_init(|| sqlite);
        // The journal does not create a name before its deletion from the database is durable. So this topic was
        // deleted here and created there before a power cut.
        for topic in &found {
            while let Some(at) = topics.iter().position(|other| other.name == topic.name) {
                self.delete_topic(topics.remove(at).id, Arc::new(Waits::default()))?;
            }
        }
        topics.extend(found);
        Ok(())
    }
}

/// Refuses a directory with topics in SQLite: their records are not in the log of the cluster.
fn refuse_sqlite(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let names = disk.list(dir).map_err(failed("list", dir))?;
    if !names.iter().any(|name| name == sqlite::FILE_NAME) {
        return Ok(());
    }
    let message = format!(
        "{} exists, but a cluster cannot have topics in SQLite: copy their records into topics on disk before, and \
         remove the file",
        dir.join(sqlite::FILE_NAME).display()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Explains the error of a directory of a node that is damaged.
fn unfit(error: Error) -> Error {
    if error.kind != ErrorKind::Corrupt {
        return error;
    }
    error.map_message(|message| {
        format!(
            "{message}. This node may have lost what it acknowledged to the others, so it must not come back under \
             its number: remove it from the cluster, and replace it by a node with an empty directory and a new number"
        )
    })
}

/// Names of all entries that the store creates in a data directory.
const ENTRIES: [&str; 11] = [
    "thalweg.lock",
    "reserve",
    "seal.key",
    "seal.new",
    "checkpoint",
    "checkpoint.new",
    "journal",
    "topics",
    "queues.sqlite",
    "queues.sqlite-wal",
    "queues.sqlite-shm",
];

/// Makes the names of the directories above a new data directory durable. A process that was killed may have created
/// them without that. Directories that may not be read are left out.
fn sync_ancestors(disk: &dyn Disk, dir: &Path) {
    for above in dir.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        if let Err(error) = disk.sync_dir(above) {
            tracing::debug!(path = %above.display(), %error, "cannot sync a directory above the data directory");
        }
    }
}

pub(crate) fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Send + Sync>> {
    let path = dir.join(LOCK_NAME);
    disk.lock(&path).map_err(failed("lock", &path))?.ok_or_else(|| {
        let dir = dir.display();
        Error::new(ErrorKind::Denied, format!("{dir} is in use by another process; its id is in thalweg.lock"))
    })
}

pub(crate) fn read_checkpoint(disk: &dyn Disk, path: &Path) -> Result<Option<Checkpoint>> {
    let Some(bytes) = read_whole(disk, path).map_err(failed("read", path))? else {
        return Ok(None);
    };
    Checkpoint::decode(&bytes).map(Some).map_err(|error| match error {
        NotACheckpoint::Damaged(at, what) => damaged(path, at, what),
        NotACheckpoint::Version(version) => other_version(path, version, VERSION),
    })
}

/// Fails if a directory without a checkpoint has data: its checkpoint was lost. A new directory has no data.
pub(crate) fn refuse_leftovers(disk: &dyn Disk, dir: &Path, journal_dir: &Path) -> Result<()> {
    let topics = dir.join("topics");
    let has_topics = match disk.list(&topics) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        names => !names.map_err(failed("list", &topics))?.is_empty(),
    };
    let written = recover::any_written(disk, journal_dir)?;
    if !has_topics && written.is_none() {
        return Ok(());
    }
    let left = written.unwrap_or(topics);
    Err(damaged(&dir.join("checkpoint"), 0, format!("the file is missing, but {} exists", left.display())))
}
