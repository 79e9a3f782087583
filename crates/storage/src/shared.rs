//! State that the store and its partitions share.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use engine::{Error, Result, TopicName, TopicSettings};
use parking_lot::Mutex;

use crate::background::Background;
use crate::disk::{Disk, Pages, failed};
use crate::info::{CompactionSettings, SqliteSettings};
use crate::journal::through::{Placed, Through};
use crate::journal::{Entry, Gate, Journal, JournalSettings};
use crate::log::PartitionLog;
use crate::partition::DiskPartition;
use crate::partition::scan::Epochs;
use crate::partition::segments::Uncached;
use crate::pins::Pins;
use crate::place::Place;
use crate::room::Room;
use crate::shard_log::ShardLog;

/// Factor over `unflushed_bytes_max` at which the journal waits for segments to be written.
pub(crate) const GATE_FACTOR: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub struct StoreSettings {
    pub journal: JournalSettings,
    pub segment_bytes: u64,
    /// Maximum bytes of the newest batches in memory, all partitions together.
    pub tail_bytes_max: u64,
    /// Time for which a batch stays in memory if there is room; a batch in a segment stays at most twice as long.
    /// Clients that follow a topic have read it by then, and for all others the system may have it cached.
    pub tail_time: Duration,
    /// Maximum committed bytes in no segment. Above it they are written immediately; above four times as many, the
    /// journal waits until they are fewer, and so do all publishers. If the disk is so small that it limits the
    /// reserve, this limit and that of the journal's queue are smaller in proportion.
    pub unflushed_bytes_max: u64,
    /// Bytes of one partition that are written to its segment past the system's cache if they are written together: the
    /// copy to new pages of the cache costs more than all else.
    pub uncached_bytes_min: usize,
    /// Bytes of the journal between two checkpoints, which recovery has to read.
    pub checkpoint_bytes: u64,
    /// Maximum time between two checkpoints.
    pub checkpoint_interval: Duration,
    pub compaction: CompactionSettings,
    pub sqlite: SqliteSettings,
    /// Bytes of the reserve for a full disk, limited to an eighth of the disk. As many bytes have to be free before
    /// records are taken again, and after a journal file was created ahead of its use.
    pub reserve_bytes: u64,
    /// Number of the directory if it is new; `None` for a random one. The ids of topics, which views have in their
    /// records, are made from it: a restored directory has the number of the original one.
    pub directory: Option<u64>,
    /// `true` if the store has threads for its work. Otherwise nothing is written but in [`crate::Store::turn`]: a
    /// simulation decides when.
    pub has_threads: bool,
}

impl StoreSettings {
    /// Limits the reserve to `bytes`, and in proportion what a start on a full disk writes into it: entries of the
    /// journal that are not in segments yet, or are queued.
    pub(crate) fn limit(&mut self, bytes: u64) {
        if bytes < self.reserve_bytes {
            let part = |of: u64| (u128::from(of) * u128::from(bytes) / u128::from(self.reserve_bytes)) as u64;
            let unflushed_bytes_max = part(self.unflushed_bytes_max);
            let queue_bytes_max = part(self.journal.queue_bytes_max as u64) as usize;
            self.unflushed_bytes_max = unflushed_bytes_max;
            self.journal.queue_bytes_max = queue_bytes_max;
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            journal: JournalSettings::default(),
            segment_bytes: 128 << 20,
            tail_bytes_max: 48 << 20,
            tail_time: Duration::from_secs(5),
            unflushed_bytes_max: 16 << 20,
            uncached_bytes_min: 128 << 10,
            checkpoint_bytes: 256 << 20,
            checkpoint_interval: Duration::from_secs(60),
            compaction: CompactionSettings::default(),
            sqlite: SqliteSettings::default(),
            reserve_bytes: 64 << 20,
            directory: None,
            has_threads: true,
        }
    }
}

/// Topic with its partitions in their order.
#[derive(Clone)]
pub struct StoredTopic {
    pub id: u32,
    pub name: TopicName,
    pub settings: TopicSettings,
    pub partitions: Vec<Arc<dyn PartitionLog>>,
}

/// State that the store and its partitions share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    /// Set when all contents of the journal are recovered.
    pub(crate) journal: OnceLock<Arc<Journal>>,
    /// Log to which everything is appended: the journal, or a log in front of it. Set after the journal.
    pub(crate) log: OnceLock<Arc<dyn ShardLog>>,
    pub(crate) tails: TailBytes,
    /// Maximum committed bytes in no segment; above it they have to be written immediately.
    pub(crate) unflushed_bytes_max: u64,
    /// Maximum bytes of all tails; above it they are trimmed immediately.
    pub(crate) tail_bytes_max: u64,
    /// Memory for what a flush writes past the system's cache.
    pub(crate) uncached: Mutex<Uncached>,
    /// Threads that are woken when that limit is exceeded.
    pub(crate) background: Arc<Background>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) room: Arc<Room>,
    /// Snapshots that may read files which are not needed otherwise.
    pub(crate) pins: Arc<Pins>,
    pub(crate) place: Arc<Place>,
    pub(crate) streams: Arc<Streams>,
    /// Leader epochs of the batches in segments.
    pub(crate) epochs: Epochs,
    /// Topics whose deletion is durable, and whose files still exist. Empty in a cluster, where a checkpoint has to
    /// precede: a restart may not know yet that the deletion is committed.
    pub(crate) deleted: Mutex<Vec<u32>>,
}

impl Shared {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, settings: &StoreSettings, epochs: Epochs) -> Self {
        Self {
            room: Arc::new(Room::new(disk.clone(), dir, settings.reserve_bytes, settings.journal.file_bytes)),
            pins: Arc::default(),
            place: Arc::new(Place::new(disk.clone(), dir)),
            disk,
            dir: dir.to_path_buf(),
            journal: OnceLock::new(),
            log: OnceLock::new(),
            tails: TailBytes::default(),
            unflushed_bytes_max: settings.unflushed_bytes_max,
            tail_bytes_max: settings.tail_bytes_max,
            uncached: Mutex::new(Uncached::new(settings.uncached_bytes_min)),
            background: Arc::default(),
            gate: Arc::default(),
            streams: Arc::default(),
            epochs,
            deleted: Mutex::default(),
        }
    }

    /// Counts `bytes` more as held by tails.
    pub(crate) fn held(&self, bytes: u64) {
        let before = self.tails.held.fetch_add(bytes, Ordering::Relaxed);
        if before <= self.tail_bytes_max && before + bytes > self.tail_bytes_max {
            self.background.hurry();
        }
    }

    /// Counts `bytes` more as committed and in no segment.
    pub(crate) fn committed(&self, bytes: u64) {
        let before = self.tails.unflushed.fetch_add(bytes, Ordering::Relaxed);
        if before <= self.unflushed_bytes_max && before + bytes > self.unflushed_bytes_max {
            self.background.hurry();
        }
        if before + bytes > GATE_FACTOR * self.unflushed_bytes_max {
            self.gate.set_shut(true);
            self.background.hurry();
        }
    }

    pub(crate) fn append(&self, entry: Entry) -> Result<()> {
        let log = self.log.get().ok_or_else(|| Error::busy("the journal is not open yet"))?;
        log.append(entry)
    }

    /// Returns `true` if a log in front of the journal decides what is committed.
    pub(crate) fn has_front(&self) -> bool {
        self.log.get().is_some_and(|log| !log.is_local())
    }

    /// Refuses if too much data is queued for the log already.
    pub(crate) fn admit(&self) -> Result<()> {
        self.log.get().map_or(Ok(()), |log| log.admit())
    }

    /// Returns the reason why nothing can be appended to the log any more.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.log.get().and_then(|log| log.broken())
    }

    pub(crate) fn topic_dir(&self, id: u32) -> PathBuf {
        self.dir.join("topics").join(id.to_string())
    }

    pub(crate) fn remove_topic(&self, id: u32) -> Result<()> {
        let path = self.topic_dir(id);
        match self.disk.remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }
}

/// Open partitions by the stream that they have in the journal.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<u64, Weak<DiskPartition>>>);

impl Streams {
    pub(crate) fn add(&self, partition: &Arc<DiskPartition>) {
        self.0.lock().insert(partition.stream(), Arc::downgrade(partition));
    }

    pub(crate) fn remove(&self, stream: u64) {
        self.0.lock().remove(&stream);
    }
}

impl Through for Streams {
    fn write(&self, stream: u64, to: u64, thread: usize, pages: &mut Pages) -> Option<Box<dyn Placed>> {
        let partition = self.0.lock().get(&stream).and_then(Weak::upgrade)?;
        partition.write_through(to, thread, pages)
    }
}

/// Memory of the tails of all partitions.
#[derive(Debug, Default)]
pub(crate) struct TailBytes {
    /// Bytes in tails; `unflushed` counts those of them that are committed and in no segment yet.
    pub(crate) held: AtomicU64,
    pub(crate) unflushed: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unflushed_and_queued_bytes_are_limited_to_the_reserve() {
        let mut settings = StoreSettings::default();
        for reserve in [u64::MAX, settings.reserve_bytes, 20 << 20, 1 << 20, 0] {
            let before = settings;
            settings.limit(reserve);
            assert!(GATE_FACTOR * settings.unflushed_bytes_max <= reserve.min(before.reserve_bytes));
            assert!(settings.journal.queue_bytes_max as u64 <= reserve.min(before.reserve_bytes));
            settings = before;
        }
    }
}
