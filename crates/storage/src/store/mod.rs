//! Data directory: its lock, its contents, and its recovery after any kind of end.
//!
//! ```text
//! thalweg.lock            locked by the broker that uses the directory
//! queues.sqlite           topics in SQLite, if any exist
//! reserve                 disk space for a checkpoint and for the next start on a full disk
//! seal.key                key of the secrets in topics, if any exist
//! checkpoint              topics, segments, and the position from which the journal has to be read
//! journal/000000.journal  ...
//! topics/<id>/<partition>/<base offset>.log, .index
//! ```
//!
//! In the background one thread writes committed batches to segments. Another thread takes a checkpoint at intervals:
//! it syncs the segments, replaces the file, and lets the journal reuse its old files. A third thread compacts topics.

mod changes;
mod checkpoint;
pub mod manifest;
mod node;
mod opening;
mod seal_key;
pub mod snapshot;
mod waits;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::catalog::Change;
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use parking_lot::Mutex;

use changes::Changes;
use checkpoint::LastCheckpoint;
pub(crate) use opening::{read_checkpoint, refuse_leftovers, take_lock};
use waits::Waits;

use crate::disk::failed;
use crate::info::{CompactionSettings, CompactionStats};
use crate::journal::{JournalStats, Owner};
use crate::log::PartitionLog;
use crate::partition::{DiskPartition, FLUSH_BYTES};
use crate::shared::{GATE_FACTOR, Shared, StoreSettings, StoredTopic};
use crate::sqlite::{self, SqliteStats, SqliteStore};
use crate::state::State;

/// Interval at which the background threads check for work.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Delay before a failed checkpoint is retried.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Time after a checkpoint from which another one is due in a cluster, if it may release a full journal, or the files
/// of deleted topics.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// Interval between checks for partitions to compact, and the delay after an error.
const COMPACT_EVERY: Duration = Duration::from_secs(1);
const COMPACT_AGAIN: Duration = Duration::from_secs(60);
/// Unsynced bytes of a partition's segments that trigger a sync.
const SYNC_BYTES: u64 = 8 << 20;

/// Statistics for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    pub journal: JournalStats,
    pub tail_bytes: u64,
    pub unflushed_bytes: u64,
    pub flushed_bytes: u64,
    pub checkpoints: u64,
    pub checkpoint_nanos: u64,
    pub checkpoint_errors: u64,
    pub compaction: CompactionStats,
    pub compaction_errors: u64,
    /// `true` while records are refused because the disk is full. `disk_full` counts how often that began.
    pub is_disk_full: bool,
    pub disk_full: u64,
    /// Snapshots that are open, for which files stay.
    pub snapshots: u64,
    /// `true` if nothing is taken any more until a restart.
    pub is_broken: bool,
    /// Statistics of SQLite; `None` without topics in SQLite.
    pub sqlite: Option<SqliteStats>,
}

/// Work of the threads of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Writing and syncing a block of the journal.
    Journal,
    /// Sealing the last block of the journal, or writing the next one.
    Seal,
    /// Writing committed batches to segments.
    Segments,
    Checkpoint,
}

pub struct Store {
    directory: u64,
    settings: StoreSettings,
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    changes: Arc<Changes>,
    /// `true` if the checkpoint with which the directory was opened had the state of a log in front of the journal.
    had_state: bool,
    /// Held while a checkpoint is taken.
    checkpoint: Mutex<LastCheckpoint>,
    /// Time of the last [`Store::age_tails`].
    aged: Mutex<Instant>,
    /// Held while partitions are compacted: two turns would use the same file names. Maps partitions that could not be
    /// compacted to the time of their next attempt.
    compaction: Mutex<HashMap<u64, Instant>>,
    /// Topics in SQLite. Opened by the holder of `opening` when the first one is created or found.
    sqlite: OnceLock<Arc<SqliteStore>>,
    opening: Mutex<()>,
    on_room: Arc<OnRoom>,
    counts: Counts,
    clock: fn() -> u64,
    /// Held while the directory is in use.
    lock: Option<Box<dyn Send + Sync>>,
}

/// Callback that runs when there is room again, once it is set.
#[derive(Default)]
struct OnRoom(Mutex<Option<Arc<dyn Fn() + Send + Sync>>>);

impl OnRoom {
    fn set(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        *self.0.lock() = Some(tell);
    }

    fn tell(&self) {
        // Without the lock: the callback may take long.
        let tell = self.0.lock().clone();
        if let Some(tell) = tell {
            tell();
        }
    }
}

#[derive(Default)]
struct Counts {
    flushed_bytes: AtomicU64,
    checkpoints: AtomicU64,
    checkpoint_nanos: AtomicU64,
    checkpoint_errors: AtomicU64,
    /// Bytes that recovery would have had to read without the last checkpoint.
    checkpoint_at_bytes: AtomicU64,
    compaction: Mutex<CompactionStats>,
    compaction_errors: AtomicU64,
}

impl Store {
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// Returns the active compaction settings: the configured ones, unless [`Store::set_compaction`] changed them.
    pub fn compaction(&self) -> CompactionSettings {
        self.state.lock().compaction
    }

    /// Changes the rate of compaction and the retention of tombstones. A turn in progress keeps its settings.
    pub fn set_compaction(&self, bytes_per_s: u64, tombstone_retention_ms: u64) {
        let compaction = &mut self.state.lock().compaction;
        compaction.bytes_per_s = bytes_per_s;
        compaction.tombstone_retention_ms = tombstone_retention_ms;
    }

    /// Returns the size of the file system of the data directory, and the part of it that this process may still use,
    /// in bytes.
    pub fn volume_bytes(&self) -> std::io::Result<(u64, u64)> {
        self.shared.disk.volume(self.dir())
    }

    /// Returns the path of the data directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Returns the random number that identifies this directory for its whole life.
    pub fn directory(&self) -> u64 {
        self.directory
    }

    /// Returns the database of topics in SQLite; the first such topic creates it.
    fn sqlite(&self) -> Result<&Arc<SqliteStore>> {
        let _opening = self.opening.lock();
        if let Some(sqlite) = self.sqlite.get() {
            return Ok(sqlite);
        }
        let dir = &self.shared.dir;
        let (sqlite, _) = SqliteStore::open(&dir.join(sqlite::FILE_NAME), self.settings.sqlite, self.clock)?;
        self.shared.disk.sync_dir(dir).map_err(failed("sync", dir))?;
        let on_room = self.on_room.clone();
        sqlite.on_room(Box::new(move || on_room.tell()));
        Ok(self.sqlite.get_or_init(|| sqlite))
    }

    /// Returns the database if it holds this topic.
    fn sqlite_of(&self, id: u32) -> Option<&Arc<SqliteStore>> {
        self.sqlite.get().filter(|_| id & sqlite::ID_BIT != 0)
    }

    /// Creates a topic. It is durable when `owner` is notified; its records never become durable before it.
    pub fn create_topic(&self, name: TopicName, settings: TopicSettings, owner: Arc<dyn Owner>) -> Result<StoredTopic> {
        if settings.storage == Storage::Sqlite {
            if self.has_front() {
                let message = "a cluster cannot have topics in SQLite: use the storage disk";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            return self.sqlite()?.create_topic(name, settings, owner);
        }
        if let Some(sqlite) = self.sqlite.get() {
            sqlite.check_free(&name)?;
        }
        let mut state = self.state.lock();
        let id = state.catalog.next_id;
        let change = Change::Create { id, name: name.clone(), settings };
        self.changes.append(change.clone(), owner)?;
        state.catalog.apply(&change);
        state.open_partitions(id);
        Ok(state.topic(id, name, settings))
    }

    /// Grows a topic to `partitions` partitions. They exist when `owner` is notified.
    pub fn grow_topic(&self, id: u32, partitions: u32, owner: Arc<dyn Owner>) -> Result<()> {
        match self.sqlite_of(id) {
            Some(sqlite) => sqlite.grow_topic(id, partitions, owner),
            None => self.changes.append(Change::Grow { id, partitions }, owner),
        }
    }

    /// Replaces the settings of a topic; its partitions and its storage stay. The settings apply when `owner` is
    /// notified.
    pub fn alter_topic(&self, id: u32, settings: TopicSettings, owner: Arc<dyn Owner>) -> Result<()> {
        match self.sqlite_of(id) {
            Some(sqlite) => sqlite.alter_topic(id, settings, owner),
            None => self.changes.append(Change::Alter { id, settings }, owner),
        }
    }

    /// Returns the partitions of a topic in their order.
    pub fn partitions(&self, id: u32) -> Result<Vec<Arc<dyn PartitionLog>>> {
        match self.sqlite_of(id) {
            Some(sqlite) => sqlite.partitions(id),
            None => self.state.lock().logs(id),
        }
    }

    /// Confirms a topic without a change. Its current state is durable when `owner` is notified.
    pub fn confirm_topic(&self, id: u32, partitions: u32, owner: Arc<dyn Owner>) -> Result<()> {
        if let Some(sqlite) = self.sqlite_of(id) {
            return sqlite.confirm_topic(owner);
        }
        self.changes.append(Change::Grow { id, partitions }, owner)
    }

    /// Deletes a topic. It is deleted when `owner` is notified. A background thread then removes the files immediately:
    /// a full disk gets space without a checkpoint, for which it may have none.
    pub fn delete_topic(&self, id: u32, owner: Arc<dyn Owner>) -> Result<()> {
        match self.sqlite_of(id) {
            Some(sqlite) => sqlite.delete_topic(id, owner),
            None => self.changes.append(Change::Delete { id }, owner),
        }
    }

    /// Reserves producer ids and returns the first. Blocks until the reservation is durable.
    pub fn reserve_producers(&self, count: u32) -> Result<i64> {
        let waits = Arc::new(Waits::default());
        let first = {
            let mut state = self.state.lock();
            let first = state.catalog.next_producer;
            let change = Change::Producers { next: first + i64::from(count) };
            self.changes.append(change.clone(), waits.clone())?;
            state.catalog.apply(&change);
            first
        };
        waits.wait()?;
        Ok(first)
    }

    /// Returns the topics in the directory, without those in SQLite.
    pub fn topics(&self) -> Vec<StoredTopic> {
        self.state.lock().topics()
    }

    /// Returns the reason why records are refused for lack of disk space, if they are.
    pub fn full(&self) -> Option<Error> {
        let is_full = |error: &Error| error.kind == ErrorKind::DiskFull;
        self.shared.room.why().or_else(|| self.admit().err().filter(is_full))
    }

    /// Refuses if too much data is queued for the journal already, or the disk is full.
    pub fn admit(&self) -> Result<()> {
        self.shared.room.check()?;
        self.shared.admit()
    }

    /// Sets the callback that runs when there is room again after a partition refused a caller. It replaces an earlier
    /// one.
    pub fn on_room(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        self.on_room.set(tell);
    }

    pub fn broken(&self) -> Option<Error> {
        self.shared.broken()
    }

    pub fn stats(&self) -> StoreStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreStats {
            journal: self.shared.journal.get().map(|journal| journal.stats()).unwrap_or_default(),
            tail_bytes: get(&self.shared.tails.held),
            unflushed_bytes: get(&self.shared.tails.unflushed),
            flushed_bytes: get(&self.counts.flushed_bytes),
            checkpoints: get(&self.counts.checkpoints),
            checkpoint_nanos: get(&self.counts.checkpoint_nanos),
            checkpoint_errors: get(&self.counts.checkpoint_errors),
            compaction: *self.counts.compaction.lock(),
            compaction_errors: get(&self.counts.compaction_errors),
            is_disk_full: self.full().is_some(),
            disk_full: self.shared.room.times_full(),
            snapshots: self.shared.pins.count() as u64,
            is_broken: self.broken().is_some(),
            sqlite: self.sqlite.get().map(|sqlite| sqlite.stats()),
        }
    }

    /// Writes pending data, takes a checkpoint and ends the threads. Nothing may be appended after it.
    pub fn stop(&self) -> Result<()> {
        let stopped = self.sqlite.get().map_or(Ok(()), |sqlite| sqlite.stop());
        self.stop_journal().and(stopped)
    }

    fn stop_journal(&self) -> Result<()> {
        self.shared.background.stop();
        self.shared.background.join();
        if let Some(journal) = self.shared.journal.get() {
            // Entries in the queue of the journal may need a file.
            if journal.stats().is_full
                && let Err(error) = self.checkpoint()
            {
                tracing::error!(%error, "cannot take a checkpoint; entries queued for the journal may be refused");
            }
            journal.stop();
        }
        self.broken().map_or_else(|| self.checkpoint(), Err)
    }

    /// Returns `true` if the journal has something to write.
    pub fn has_unwritten(&self) -> bool {
        self.shared.journal.get().is_some_and(|journal| journal.has_work())
    }

    /// Does a piece of work that a thread would do, for a store without threads. Returns `false` if there is none of it
    /// now.
    pub fn turn(&self, work: Work) -> Result<bool> {
        match work {
            Work::Journal | Work::Seal => {
                Ok(self.shared.journal.get().is_some_and(|journal| journal.turn(work == Work::Seal)))
            }
            Work::Segments => {
                let (bytes, failed) = self.flush();
                self.set_gate(failed > 0);
                self.trim_tails();
                Ok(bytes > 0)
            }
            Work::Checkpoint => self.checkpoint().map(|()| true),
        }
    }

    /// Writes pending batches to segments once. Returns the delay until the next call.
    fn flush_if_due(&self) -> Duration {
        if self.check_place().is_err() {
            return LOOK_EVERY;
        }
        let unflushed = || self.shared.tails.unflushed.load(Ordering::Relaxed);
        let mut is_failing = false;
        while unflushed() > self.settings.unflushed_bytes_max / 2 && !self.shared.background.is_stopped() {
            let (bytes, failed) = self.flush();
            is_failing = failed > 0;
            if bytes == 0 {
                break;
            }
            self.set_gate(is_failing);
            self.trim_tails();
        }
        self.set_gate(is_failing);
        self.trim_tails();
        if self.aged.lock().elapsed() >= self.settings.tail_time {
            self.age_tails();
        }
        LOOK_EVERY
    }

    /// Has the journal wait if segments are too far behind. If partitions cannot be written, waiting does not help:
    /// they take nothing more, and the others continue.
    fn set_gate(&self, is_failing: bool) {
        let unflushed = self.shared.tails.unflushed.load(Ordering::Relaxed);
        self.shared.gate.set_shut(unflushed > GATE_FACTOR * self.settings.unflushed_bytes_max && !is_failing);
    }

    /// Fails if the data directory was removed or replaced: nothing is written or removed by path from then on.
    fn check_place(&self) -> Result<()> {
        self.shared.journal.get().map_or(Ok(()), |journal| journal.check_place())
    }

    /// Takes a checkpoint if one is due. Returns the delay until the next call.
    fn checkpoint_if_due(&self) -> Duration {
        if self.check_place().is_err() {
            return LOOK_EVERY;
        }
        self.remove_deleted();
        self.look_whether_stuck();
        self.look_for_room();
        let last = self.checkpoint.lock().clone();
        let since = self.journal_bytes_since_checkpoint();
        let is_full = || self.shared.journal.get().is_some_and(|journal| journal.stats().is_full);
        let is_due = since > 0
            && (since > self.settings.checkpoint_bytes
                || last.at.elapsed() > self.settings.checkpoint_interval
                || last.is_failed
                || is_full())
            || (self.has_front() && last.at.elapsed() > SETTLE_AFTER && (is_full() || self.may_remove_doomed()));
        let is_too_soon = last.is_failed && last.at.elapsed() < TRY_AGAIN;
        if is_due
            && !is_too_soon
            && self.broken().is_none()
            && let Err(error) = self.checkpoint()
        {
            tracing::error!(%error, "cannot take a checkpoint; the journal keeps all entries since the last one; \
                                     retrying");
        }
        if is_due && !self.shared.room.is_full() {
            self.keep_reserve();
        }
        LOOK_EVERY
    }

    /// Compacts partitions once. Returns the delay until the next call.
    fn compact_if_due(&self) -> Duration {
        // Compaction needs disk space before it frees any.
        if self.check_place().is_err() || self.broken().is_some() || self.shared.room.is_full() {
            return COMPACT_EVERY;
        }
        if let Err(error) = self.compact()
            && error.kind != ErrorKind::ShuttingDown
        {
            tracing::error!(%error, "cannot compact a partition; retrying");
        }
        COMPACT_EVERY
    }

    /// Compacts partitions for which it is worthwhile. A partition that fails does not prevent the others.
    pub fn compact(&self) -> Result<CompactionStats> {
        let mut again = self.compaction.lock();
        again.retain(|_, at| *at > Instant::now());
        let mut partitions = self.compacted_partitions();
        partitions.retain(|(partition, _)| !again.contains_key(&partition.stream()));
        let mut total = CompactionStats::default();
        let mut outcome = Ok(());
        let mut needs_checkpoint = false;
        let mut put_off = |partition: &DiskPartition, error: Error| {
            if error.kind != ErrorKind::ShuttingDown {
                self.counts.compaction_errors.fetch_add(1, Ordering::Relaxed);
                again.insert(partition.stream(), Instant::now() + COMPACT_AGAIN);
            }
            outcome = Err(error);
        };
        for (partition, settings) in &partitions {
            match partition.prepare_compaction(settings, (self.clock)()) {
                Ok(changed) => needs_checkpoint |= changed,
                Err(error) => put_off(partition, error),
            }
        }
        if needs_checkpoint {
            self.checkpoint()?;
        }
        for (partition, settings) in &partitions {
            match partition.compact(settings, (self.clock)(), &|time| self.shared.background.rests(time)) {
                Ok(stats) => total += stats.unwrap_or_default(),
                Err(error) => put_off(partition, error),
            }
        }
        // Replaced segments take disk space until a checkpoint, and return after a crash.
        let checkpointed = if total.turns > 0 { self.checkpoint() } else { Ok(()) };
        *self.counts.compaction.lock() += total;
        checkpointed?;
        outcome.map(|()| total)
    }

    fn compacted_partitions(&self) -> Vec<(Arc<DiskPartition>, CompactionSettings)> {
        self.state.lock().compacted()
    }

    /// Returns `true` if a log in front of the journal decides what is committed.
    fn has_front(&self) -> bool {
        self.shared.has_front()
    }

    fn may_remove_doomed(&self) -> bool {
        !self.state.lock().doomed.is_empty() && !self.keeps_files()
    }

    /// Returns `true` while a snapshot may still read files that are not needed otherwise.
    fn keeps_files(&self) -> bool {
        self.shared.pins.keep_files(self.shared.room.is_full())
    }

    fn journal_bytes_since_checkpoint(&self) -> u64 {
        let bytes = self.shared.journal.get().map_or(0, |journal| journal.stats().bytes_to_read());
        bytes.saturating_sub(self.counts.checkpoint_at_bytes.load(Ordering::Relaxed))
    }

    fn all_partitions(&self) -> Vec<(u64, Arc<DiskPartition>)> {
        self.state.lock().partitions.iter().map(|(stream, partition)| (*stream, partition.clone())).collect()
    }

    /// Writes a part of each partition's pending batches. Returns their bytes, and the number of partitions that could
    /// not be written.
    fn flush(&self) -> (u64, usize) {
        let mut flushed = 0;
        let mut failed = 0;
        for (_, partition) in self.all_partitions() {
            let trouble = partition.trouble();
            let flushed_now = partition.flush(FLUSH_BYTES, (self.clock)());
            match flushed_now.and_then(|bytes| partition.sync_ahead(SYNC_BYTES).map(|()| bytes)) {
                Ok(bytes) => flushed += bytes,
                // Other partitions may be on another disk, or undamaged.
                Err(error) => {
                    failed += 1;
                    if trouble.as_ref() != Some(&error) {
                        tracing::error!(%error, "cannot write to a segment; retrying");
                    }
                }
            }
        }
        self.counts.flushed_bytes.fetch_add(flushed, Ordering::Relaxed);
        (flushed, failed)
    }

    /// Frees memory of batches that are in segments if tails exceed their limit, a share of it from each partition.
    fn trim_tails(&self) {
        let held = self.shared.tails.held.load(Ordering::Relaxed);
        if held <= self.settings.tail_bytes_max {
            return;
        }
        let mut missing = held - self.settings.tail_bytes_max * 3 / 4;
        let partitions = self.all_partitions();
        let share = missing / partitions.len().max(1) as u64 + 1;
        for share in [share, missing] {
            for (_, partition) in &partitions {
                missing -= partition.trim_tail(share.min(missing)).min(missing);
                if missing == 0 {
                    return;
                }
            }
        }
    }

    /// Frees memory of batches that are in segments and were already in memory at the previous call. Returns the number
    /// of freed bytes.
    pub fn age_tails(&self) -> u64 {
        let mut aged = self.aged.lock();
        *aged = Instant::now();
        match self.shared.tails.held.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.all_partitions().iter().map(|(_, partition)| partition.age_tail()).sum(),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.background.stop();
        if let Some(journal) = self.shared.journal.get() {
            journal.stop();
        }
    }
}
