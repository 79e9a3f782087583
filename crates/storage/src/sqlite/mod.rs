//! Topics in one SQLite database, `queues.sqlite`, which users may open and query while the broker runs.
//!
//! An append puts an operation into a queue and returns. One thread gathers all queued operations, executes them in one
//! transaction and commits, which syncs; in the meantime the next operations gather. This way many small appends cost
//! one sync, a single append waits for no other, and there is no timer.

mod catalog;
mod partition;
mod positions;
mod read;
mod schema;
mod writer;

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use engine::{Error, ErrorKind, Offset, RecordBatch, Result, TopicName, TopicSettings};
use parking_lot::{Condvar, Mutex};

use crate::info::SqliteSettings;
use crate::journal::{Applies, Owner};
use crate::log::PartitionLog;
use crate::shared::StoredTopic;
use catalog::Catalog;
pub use partition::SqlitePartition;
use read::Readers;
pub use read::RowsRead;

/// Database file of a data directory.
pub const FILE_NAME: &str = "queues.sqlite";
/// Bit that is set in the ids of topics in the database; other ids count from 0.
pub(crate) const ID_BIT: u32 = 1 << 31;
/// Maximum number of operations of one transaction, and their maximum bytes.
const TRANSACTION_OPS_MAX: usize = 4096;
const TRANSACTION_BYTES_MAX: usize = 8 << 20;
/// Maximum number of entries of the list of batches in memory, including batches that were forgotten since.
const RECENT_ENTRIES_MAX: usize = 1 << 16;

/// Statistics for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqliteStats {
    pub operations: u64,
    pub commits: u64,
    pub commit_nanos: u64,
    pub queued_bytes: u64,
    pub recent_bytes: u64,
    pub forgotten_records: u64,
    /// `true` while another process locks the database, or the disk is full.
    pub is_held_up: bool,
}

/// Topics of one database.
pub struct SqliteStore {
    shared: Arc<Shared>,
    catalog: Arc<Mutex<Catalog>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the store, its partitions and its writer share.
struct Shared {
    path: PathBuf,
    settings: SqliteSettings,
    clock: fn() -> u64,
    queue: Mutex<Queue>,
    has_work: Condvar,
    /// Callback that runs when there is room again after an append was refused.
    on_room: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Error that ended the database. Invariant: a thread that finds it empty while holding the queue may append; the
    /// operations in the queue are notified when it is set.
    broken: OnceLock<Error>,
    /// Reason why nothing can be committed for now.
    trouble: Mutex<Option<Error>>,
    readers: Readers,
    /// Names of topics whose deletion is not durable yet.
    deleting: Mutex<HashSet<TopicName>>,
    /// Committed batches in memory, the oldest first: their partitions, and their end offsets.
    recent: Mutex<VecDeque<(Weak<SqlitePartition>, Offset)>>,
    /// Bytes of batches in memory.
    held: AtomicU64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    commits: AtomicU64,
    commit_nanos: AtomicU64,
    forgotten_records: AtomicU64,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Partitions with forgotten records, or whose producers have to be saved.
    dirty: Vec<Arc<SqlitePartition>>,
    bytes: usize,
    /// `true` if a caller was refused since there was room.
    is_missed: bool,
    is_stopped: bool,
}

/// Operation of a transaction.
struct Op {
    kind: OpKind,
    owner: Arc<dyn Owner>,
    /// Mark of the operation, which grows from operation to operation of one owner.
    mark: u64,
}

enum OpKind {
    Batch {
        partition: Arc<SqlitePartition>,
        batch: RecordBatch,
    },
    Start {
        partition: Arc<SqlitePartition>,
        start: Offset,
    },
    /// Creates a topic, with the rows of its partitions.
    Create {
        id: u32,
        name: TopicName,
        settings: TopicSettings,
        partitions: Vec<i64>,
    },
    /// Replaces the settings of a topic, and adds partitions after the existing ones.
    Alter {
        id: u32,
        settings: TopicSettings,
        partitions: Vec<i64>,
    },
    Delete {
        id: u32,
        name: TopicName,
        partitions: Vec<i64>,
    },
    Nothing,
}

/// Contents of one transaction.
struct Turn {
    ops: Vec<Op>,
    dirty: Vec<Arc<SqlitePartition>>,
}

impl OpKind {
    fn bytes(&self) -> usize {
        match self {
            Self::Batch { batch, .. } => batch.len(),
            _ => 0,
        }
    }
}

impl Shared {
    fn put(&self, op: Op) -> Result<()> {
        let mut queue = self.queue.lock();
        if let Some(broken) = self.broken.get() {
            return Err(broken.clone());
        }
        if queue.is_stopped {
            return Err(Error::new(ErrorKind::ShuttingDown, "the database is closed"));
        }
        queue.bytes += op.kind.bytes();
        queue.ops.push_back(op);
        let is_first = queue.ops.len() == 1;
        drop(queue);
        if is_first {
            self.has_work.notify_one();
        }
        Ok(())
    }

    fn put_dirty(&self, partition: Arc<SqlitePartition>) {
        let mut queue = self.queue.lock();
        if self.broken.get().is_none() && !queue.is_stopped {
            queue.dirty.push(partition);
            drop(queue);
            self.has_work.notify_one();
        }
    }

    fn admit(&self) -> Result<()> {
        if let Some(trouble) = self.trouble.lock().clone() {
            self.queue.lock().is_missed = true;
            return Err(trouble);
        }
        let mut queue = self.queue.lock();
        let queued = queue.bytes;
        if queued < self.settings.queue_bytes_max {
            return Ok(());
        }
        queue.is_missed = true;
        Err(Error::busy(format!("{queued} bytes are already queued for the database; try again later")))
    }

    /// Takes queued operations, at most one transaction of them. Empty if the queue is empty and `waits` is `false`;
    /// `None` if the database is stopped.
    fn gather(&self, waits: bool) -> Option<Turn> {
        let mut queue = self.queue.lock();
        while queue.ops.is_empty() && queue.dirty.is_empty() {
            if queue.is_stopped {
                return None;
            }
            if !waits {
                break;
            }
            self.has_work.wait(&mut queue);
        }
        let mut count = 0;
        let mut bytes = 0;
        for op in queue.ops.iter().take(TRANSACTION_OPS_MAX) {
            if count > 0 && bytes + op.kind.bytes() > TRANSACTION_BYTES_MAX {
                break;
            }
            count += 1;
            bytes += op.kind.bytes();
        }
        queue.bytes -= bytes;
        let ops = queue.ops.drain(..count).collect();
        let dirty = std::mem::take(&mut queue.dirty);
        self.notify_room(queue);
        Some(Turn { ops, dirty })
    }

    fn notify_room(&self, mut queue: parking_lot::MutexGuard<'_, Queue>) {
        let has_room = queue.is_missed && queue.bytes < self.settings.queue_bytes_max / 2;
        queue.is_missed &= !has_room;
        drop(queue);
        if let (true, Some(tell)) = (has_room, self.on_room.get()) {
            tell();
        }
    }

    /// Takes nothing more, and notifies all waiting owners.
    fn break_off(&self, error: &Error, ops: Vec<Op>) {
        let path = self.path.display();
        let message = format!(
            "{}; {path} accepts no more records, because they might be lost. Restart the broker when the cause is \
             fixed",
            error.message
        );
        let broken = Error::new(error.kind, message);
        tracing::error!(error = %broken, "the database failed");
        let left = {
            let mut queue = self.queue.lock();
            self.broken.get_or_init(|| broken.clone());
            queue.bytes = 0;
            queue.dirty.clear();
            std::mem::take(&mut queue.ops)
        };
        for op in ops.into_iter().chain(left) {
            op.owner.failed(&broken);
        }
        self.deleting.lock().clear();
    }

    /// Adds the batches of these operations, which are in rows, to the list of recent ones. The oldest of all leave the
    /// memory if there are too many.
    fn keep_recent(&self, ops: &[Op]) {
        let mut recent = self.recent.lock();
        for op in ops {
            if let OpKind::Batch { partition, batch } = &op.kind {
                recent.push_back((Arc::downgrade(partition), batch.next_offset()));
            }
        }
        while self.held.load(Ordering::Relaxed) > self.settings.recent_bytes_max || recent.len() > RECENT_ENTRIES_MAX {
            let Some((partition, to)) = recent.pop_front() else {
                break;
            };
            let freed = partition.upgrade().map_or(0, |partition| partition.trim_recent(to));
            self.held.fetch_sub(freed, Ordering::Relaxed);
        }
    }
}

impl SqliteStore {
    /// Opens a database, or creates one, and recovers its contents. No other process may write to it in the meantime.
    pub fn open(path: &Path, settings: SqliteSettings, clock: fn() -> u64) -> Result<(Arc<Self>, Vec<StoredTopic>)> {
        let connection = schema::open_writer(path, settings.pages_max)?;
        let shared = Arc::new(Shared {
            path: path.to_path_buf(),
            settings,
            clock,
            queue: Mutex::default(),
            has_work: Condvar::new(),
            on_room: OnceLock::new(),
            broken: OnceLock::new(),
            trouble: Mutex::default(),
            readers: Readers::new(path.to_path_buf(), settings.readers_max.max(1)),
            deleting: Mutex::default(),
            recent: Mutex::default(),
            held: AtomicU64::new(0),
            counts: Counts::default(),
        });
        let (catalog, writer) = catalog::load(connection, &shared)?;
        let topics = catalog.topics();
        let name = "sqlite".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || writer.run()).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread for the database: {error}"))
        })?;
        let store = Self { shared, catalog: Arc::new(Mutex::new(catalog)), thread: Mutex::new(Some(thread)) };
        Ok((Arc::new(store), topics))
    }

    /// Creates a topic. It is durable when `owner` is notified; its records never become durable before it.
    pub fn create_topic(&self, name: TopicName, settings: TopicSettings, owner: Arc<dyn Owner>) -> Result<StoredTopic> {
        self.check_free(&name)?;
        let mut catalog = self.catalog.lock();
        let id = catalog.next_id();
        let partitions = catalog.take_rows(settings.partitions);
        let kind = OpKind::Create { id, name: name.clone(), settings, partitions: partitions.clone() };
        self.shared.put(Op { kind, owner, mark: 0 })?;
        Ok(catalog.add(id, name, settings, partitions, &self.shared))
    }

    /// Returns the number of topics.
    pub(crate) fn topic_count(&self) -> usize {
        self.catalog.lock().topics().len()
    }

    /// Refuses a name whose previous topic may return after a crash.
    pub(crate) fn check_free(&self, name: &TopicName) -> Result<()> {
        if self.shared.deleting.lock().contains(name) {
            return Err(Error::busy(format!("topic {name} is being deleted; try again")));
        }
        Ok(())
    }

    /// Grows a topic to `count` partitions. They exist when `owner` is notified.
    pub fn grow_topic(&self, id: u32, count: u32, owner: Arc<dyn Owner>) -> Result<()> {
        let mut catalog = self.catalog.lock();
        let due = catalog.settings_due(id & !ID_BIT)?;
        let rows = catalog.take_rows(count.saturating_sub(due.partitions));
        let settings = TopicSettings { partitions: due.partitions.max(count), ..due };
        self.change(&mut catalog, id & !ID_BIT, settings, rows, owner)
    }

    /// Replaces the settings of a topic; its partitions and its storage stay. The settings apply when `owner` is
    /// notified.
    pub fn alter_topic(&self, id: u32, settings: TopicSettings, owner: Arc<dyn Owner>) -> Result<()> {
        let mut catalog = self.catalog.lock();
        let TopicSettings { partitions, storage, .. } = catalog.settings_due(id & !ID_BIT)?;
        let settings = TopicSettings { partitions, storage, ..settings };
        self.change(&mut catalog, id & !ID_BIT, settings, Vec::new(), owner)
    }

    /// Queues a change under the lock of the catalog: the next one builds on it.
    fn change(
        &self,
        catalog: &mut Catalog,
        id: u32,
        settings: TopicSettings,
        partitions: Vec<i64>,
        owner: Arc<dyn Owner>,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let rows = partitions.clone();
        let changed = self.catalog.clone();
        let owner = Applies::first(move || changed.lock().change(id, settings, &rows, &shared), owner);
        self.shared.put(Op { kind: OpKind::Alter { id, settings, partitions }, owner, mark: 0 })?;
        catalog.set_due(id, settings);
        Ok(())
    }

    /// Returns the partitions of a topic in their order.
    pub fn partitions(&self, id: u32) -> Result<Vec<Arc<dyn PartitionLog>>> {
        self.catalog.lock().partitions(id & !ID_BIT)
    }

    /// Confirms earlier operations without a change. They are durable when `owner` is notified.
    pub fn confirm_topic(&self, owner: Arc<dyn Owner>) -> Result<()> {
        self.shared.put(Op { kind: OpKind::Nothing, owner, mark: 0 })
    }

    /// Deletes a topic. It is deleted when `owner` is notified; the writer then removes its rows, some per transaction.
    pub fn delete_topic(&self, id: u32, owner: Arc<dyn Owner>) -> Result<()> {
        let id = id & !ID_BIT;
        let (name, partitions) = self.catalog.lock().place(id)?;
        let catalog = self.catalog.clone();
        let owner = Applies::first(move || catalog.lock().remove(id), owner);
        self.shared.deleting.lock().insert(name.clone());
        let put = self.shared.put(Op { kind: OpKind::Delete { id, name: name.clone(), partitions }, owner, mark: 0 });
        if put.is_err() {
            self.shared.deleting.lock().remove(&name);
        }
        put
    }

    /// Refuses if too much data is queued already.
    pub fn admit(&self) -> Result<()> {
        self.shared.admit()
    }

    /// Sets a callback that runs whenever there is room again after [`SqliteStore::admit`] refused a caller.
    pub fn on_room(&self, tell: Box<dyn Fn() + Send + Sync>) {
        if self.shared.on_room.set(tell).is_err() {
            tracing::error!("the callback for room in the database is set already");
        }
    }

    /// Returns the reason why nothing can be appended any more.
    pub fn broken(&self) -> Option<Error> {
        self.shared.broken.get().cloned()
    }

    pub fn stats(&self) -> SqliteStats {
        let counts = &self.shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SqliteStats {
            operations: get(&counts.operations),
            commits: get(&counts.commits),
            commit_nanos: get(&counts.commit_nanos),
            queued_bytes: self.shared.queue.lock().bytes as u64,
            recent_bytes: get(&self.shared.held),
            forgotten_records: get(&counts.forgotten_records),
            is_held_up: self.shared.trouble.lock().is_some(),
        }
    }

    /// Writes queued operations and closes the database. If another process locks it for too long, they are refused.
    pub fn stop(&self) -> Result<()> {
        self.shared.queue.lock().is_stopped = true;
        self.shared.has_work.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            thread.join().unwrap_or_else(|_| tracing::error!("the thread of the database panicked"));
        }
        self.shared.readers.close();
        self.broken().map_or(Ok(()), Err)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::debug!(%error, "the database was not closed cleanly");
        }
    }
}
