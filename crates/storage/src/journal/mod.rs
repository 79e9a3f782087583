//! Journal: an appended entry of any kind is durable once its position is synced.
//!
//! An append puts an entry into a queue and returns. A few threads take turns (`threads.rs`): one gathers all queued
//! entries, writes them as one block and syncs. The next one gathers the entries that were appended since, after that
//! sync or, if the block has a single entry, immediately. This way many small entries cost one sync, a single entry
//! delays no other, and there is no timer. Blocks are finished in the order of their positions.

pub mod block;
mod files;
mod gate;
pub(crate) mod parts;
pub mod recover;
pub(crate) mod salvage;
mod threads;
pub(crate) mod through;
mod write;

use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use bytes::Bytes;
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use block::EntryKind;
use block::{BODIES_BYTES_MAX, ENTRIES_MAX, FileHead, PAGE_BYTES, ROW_BYTES};
use files::{Files, JournalFile};
pub(crate) use gate::Gate;
use recover::Origin;
use threads::Turns;
use through::{PARTS_MAX, PLACES_MAX, Through};
use write::{Writer, Written};

use crate::disk::{Disk, Pages};
use crate::place::Place;
use crate::room::Room;

/// Minimum size of a file: room for a few blocks.
const FILE_BYTES_MIN: u64 = 16 * PAGE_BYTES;
/// Divisor of a file: the part that is not for records if no other file can be created; changes of the catalog continue
/// there.
const KEPT_PART: u64 = 2;
/// Divisor of a file: the part that is not even for records that were already admitted, if no other file can be
/// created.
const KEPT_FOR_CHANGES_PART: u64 = 4;
/// Divisor of a file: the part that has to be left for records before they are taken again, if no other file can be
/// created.
const LEFT_PART: u64 = 4;
/// Divisor of a file: the part that a block of several entries takes at most, and thus what may stay unused at a file's
/// end.
const BLOCK_PART: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub struct JournalSettings {
    /// Size of a file, a multiple of [`block::PAGE_BYTES`]; the largest entry takes less than a file.
    pub file_bytes: u64,
    /// Size of the first file of a new journal, for which the opening of the directory waits; at most `file_bytes`.
    pub first_file_bytes: u64,
    /// Maximum number of files. When all of them hold needed entries, appends wait for a checkpoint.
    pub files_max: usize,
    /// Maximum bytes in the queue. Above it, an append is refused.
    pub queue_bytes_max: usize,
    /// Maximum number of concurrent syncs, each with a thread.
    pub syncs_in_flight: usize,
    /// Bytes of one partition in one block from which they are written straight to the partition's segment. A separate
    /// sync then costs less than writing the data a second time later.
    pub through_bytes_min: usize,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            first_file_bytes: 8 << 20,
            files_max: 16,
            queue_bytes_max: 64 << 20,
            syncs_in_flight: 2,
            through_bytes_min: 128 << 10,
        }
    }
}

impl JournalSettings {
    pub(crate) fn threads(&self) -> usize {
        self.syncs_in_flight.max(1)
    }

    /// Limits the bytes of a file, rounded down to whole pages; a file has at least [`FILE_BYTES_MIN`].
    pub(crate) fn limit(&mut self, bytes: u64) {
        let bytes = (bytes / PAGE_BYTES * PAGE_BYTES).max(FILE_BYTES_MIN);
        self.file_bytes = self.file_bytes.min(bytes);
        self.first_file_bytes = self.first_file_bytes.min(bytes);
    }

    fn check(&self) -> Result<()> {
        let is_wrong = |bytes: &u64| !bytes.is_multiple_of(PAGE_BYTES) || *bytes < FILE_BYTES_MIN;
        match [self.file_bytes, self.first_file_bytes].into_iter().find(is_wrong) {
            None => Ok(()),
            Some(bytes) => Err(Error::invalid(format!(
                "a file of the journal has a multiple of {PAGE_BYTES} bytes, at least {FILE_BYTES_MIN}, not {bytes}"
            ))),
        }
    }
}

/// Receiver of the outcome of entries. It is called on the journal's threads, in the order of its own entries; the
/// owners of the entries of one write are called in any order.
pub trait Owner: Send + Sync {
    /// Reports that all of this owner's entries with marks up to this one are durable.
    fn committed(&self, mark: u64);
    /// Reports that nothing more will be committed.
    fn failed(&self, error: &Error);
}

/// Owner of one entry: applies what the entry says once it is committed, then notifies another owner.
pub(crate) struct Applies<F> {
    apply: F,
    owner: Arc<dyn Owner>,
}

impl<F: Fn() + Send + Sync + 'static> Applies<F> {
    pub(crate) fn first(apply: F, owner: Arc<dyn Owner>) -> Arc<dyn Owner> {
        Arc::new(Self { apply, owner })
    }
}

impl<F: Fn() + Send + Sync> Owner for Applies<F> {
    fn committed(&self, mark: u64) {
        (self.apply)();
        self.owner.committed(mark);
    }

    fn failed(&self, error: &Error) {
        self.owner.failed(error);
    }
}

/// Source of entries that are gathered only when the journal writes: its owner calls [`Journal::call`], and the thread
/// that writes next fetches them, so that they take no way over another thread.
pub trait Source: Send + Sync {
    /// Appends what is there with [`Journal::append`]. It runs on a thread of the journal before a block is gathered,
    /// at least once after each [`Journal::call`], and never twice at the same time. Blocks wait for it.
    fn fill(&self);
}

pub struct Entry {
    pub kind: EntryKind,
    /// Shard whose order the entry belongs to.
    pub shard: ShardId,
    pub stream: u64,
    pub body: Bytes,
    pub owner: Arc<dyn Owner>,
    /// Mark of the entry, which grows from entry to entry of one owner.
    pub mark: u64,
}

/// Statistics of the journal since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    pub entries: u64,
    /// Bytes of blocks, including heads and zeros.
    pub bytes: u64,
    /// Bytes of batches that were written straight to segments.
    pub through_bytes: u64,
    pub syncs: u64,
    pub sync_nanos: u64,
    pub queued_bytes: u64,
    pub files_in_use: u64,
    pub files_spare: u64,
    pub is_full: bool,
}

impl JournalStats {
    /// Returns the bytes that recovery has to read if no checkpoint is taken.
    pub(crate) fn bytes_to_read(&self) -> u64 {
        self.bytes + self.through_bytes
    }
}

pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    directory: u64,
    /// Size of every file but the first one.
    file_bytes: u64,
    queue_bytes_max: usize,
    through_bytes_min: usize,
    through: Arc<dyn Through>,
    gate: Arc<Gate>,
    place: Arc<Place>,
    /// Callback that runs when there is room again after an append was refused.
    on_room: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Source of more entries, if a log in front of the journal has set one.
    source: OnceLock<Arc<dyn Source>>,
    files: Files,
    queue: Mutex<Queue>,
    has_work: Condvar,
    /// Held by the thread whose turn it is to write.
    writer: Mutex<Writer>,
    finished: Mutex<Finished>,
    is_next: Condvar,
    /// Held while the owners of a block are notified.
    notifying: Mutex<()>,
    /// Position before which all is synced.
    synced: AtomicU64,
    /// Bytes of the current file that records may take if no other file is ready.
    left: AtomicU64,
    /// Bytes of the current file that records may take if no other file is ready and they were already admitted.
    left_for_admitted: AtomicU64,
    /// Bytes that have left the queue and are not yet counted in `left` as written to a file. Changed by the holder of
    /// the queue's lock, or by the writer.
    writing: AtomicU64,
    /// `true` if a record was refused because the disk has no space for a file.
    is_refused: AtomicBool,
    /// Error that ended the journal. Invariant: a thread that finds it empty while holding the queue may append; the
    /// entries in the queue are notified when it is set.
    broken: OnceLock<Error>,
    /// Number of threads that write blocks.
    running: AtomicUsize,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    entries: AtomicU64,
    bytes: AtomicU64,
    through_bytes: AtomicU64,
    syncs: AtomicU64,
    sync_nanos: AtomicU64,
}

#[derive(Default)]
struct Queue {
    entries: std::collections::VecDeque<Entry>,
    bytes: usize,
    /// `true` if a caller was refused since there was room.
    is_missed: bool,
    /// `true` if the source has to be called before the next block.
    is_called: bool,
    is_stopped: bool,
    turns: Turns,
}

struct Finished {
    /// Number of the next block that may notify its owners.
    turn: u64,
    /// Origin from which reading would begin if no finished entry were needed any more.
    origin: Origin,
    /// `true` if a block could not be made durable: no block after it is committed.
    is_over: bool,
}

impl Journal {
    /// Continues in a new file after the end that recovery found. If no entry of the old files leads to it, the caller
    /// has to take a checkpoint before anything is appended.
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        directory: u64,
        settings: JournalSettings,
        tail: recover::Tail,
        gate: Arc<Gate>,
        (room, place, through): (Arc<Room>, Arc<Place>, Arc<dyn Through>),
    ) -> Result<Self> {
        settings.check()?;
        let files = Files::new(disk, dir, &settings, room);
        files.adopt(&tail.in_use, &tail.others, tail.number)?;
        let last = tail.leads_from.and_then(|lead| Some((files.last_used()?, lead)));
        // The first file is created here, later ones ahead of their use.
        files.prepare_first()?;
        let start = tail.in_use.last().map_or(0, |(_, head)| head.end());
        let (file, head) = files.take(directory, start).ok_or_else(stopped)?;
        file.write(&mut [IoSlice::new(&head.encode())], 0)?;
        file.sync(0)?;
        let previous_end = match last {
            Some(((last, last_head), lead)) => write::lead(&last, &last_head, lead, (head.number, file.slot))?,
            None => start + PAGE_BYTES,
        };
        let writer = Writer {
            file,
            head,
            at: PAGE_BYTES,
            previous_end,
            turn: 0,
            is_sealed: true,
            buf: Vec::new(),
            pages: Pages::default(),
            through_end: 0,
        };
        let origin = origin(&writer.head, &writer.file, PAGE_BYTES);
        let shared = Arc::new(Shared {
            directory,
            file_bytes: settings.file_bytes,
            queue_bytes_max: settings.queue_bytes_max,
            through_bytes_min: settings.through_bytes_min,
            through,
            gate,
            place,
            on_room: OnceLock::new(),
            source: OnceLock::new(),
            files,
            queue: Mutex::default(),
            has_work: Condvar::new(),
            synced: AtomicU64::new(origin.position),
            left: AtomicU64::new(left(&writer.head, PAGE_BYTES, KEPT_PART)),
            left_for_admitted: AtomicU64::new(left(&writer.head, PAGE_BYTES, KEPT_FOR_CHANGES_PART)),
            writing: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            finished: Mutex::new(Finished { turn: 0, origin, is_over: false }),
            writer: Mutex::new(writer),
            is_next: Condvar::new(),
            notifying: Mutex::default(),
            broken: OnceLock::new(),
            running: AtomicUsize::new(0),
            counts: Counts::default(),
        });
        Ok(Self { shared, threads: Mutex::default() })
    }

    /// Starts the threads that write, sync, and create files ahead of their use. Without them, [`Journal::turn`] does
    /// their work.
    pub(crate) fn start_threads(&self, settings: &JournalSettings) -> Result<()> {
        let mut threads = self.threads.lock();
        let mut spawn = |name: String, run: Box<dyn FnOnce(&Shared) + Send>| -> Result<()> {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(name).spawn(move || run(&shared));
            threads.push(thread.map_err(|error| {
                Error::new(ErrorKind::Internal, format!("cannot start a thread for the journal: {error}"))
            })?);
            Ok(())
        };
        self.shared.running.store(settings.threads(), Ordering::Release);
        for i in 0..settings.threads() {
            spawn(format!("journal-{i}"), Box::new(move |shared| shared.run(i)))?;
        }
        spawn("journal-files".into(), Box::new(Shared::prepare_files))
    }

    /// Returns `true` if there is something to write.
    pub(crate) fn has_work(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.is_called || !queue.entries.is_empty()
    }

    /// Does the work of the threads once, for a journal without any: creates the files that are wanted, then writes and
    /// syncs one block of queued entries, or `seals` the last one if there are none. Returns `false` if there is
    /// nothing to write, or if it cannot be written before a checkpoint or before segments are written.
    pub(crate) fn turn(&self, seals: bool) -> bool {
        let files = &self.shared.files;
        while files.prepare_one().is_ok_and(|is_made| is_made) {}
        if self.shared.gate.is_shut() {
            return false;
        }
        let mut writer = self.shared.writer.lock();
        // Without another file, only what fits into the present one, with its head, its end and a page for each.
        let has_next = files.counts().1 > 0;
        let fits = if has_next { u64::MAX } else { (writer.head.bytes - writer.at).saturating_sub(4 * PAGE_BYTES) };
        let entries = self.shared.gather(fits);
        let may_seal = seals && !writer.is_sealed && !self.has_work() && self.broken().is_none();
        if entries.is_empty() && !may_seal {
            return false;
        }
        let written = self.shared.write(&mut writer, entries, 0);
        self.shared.writing.store(0, Ordering::Relaxed);
        drop(writer);
        self.shared.finish(written, 0);
        true
    }

    /// Queues an entry after all others. Its owner is notified when it is durable.
    pub fn append(&self, entry: Entry) -> Result<()> {
        self.append_all([entry])
    }

    /// Queues entries after all others, all of them or none. No block is gathered in between: those that fit into one
    /// are written and synced together.
    pub fn append_all(&self, entries: impl IntoIterator<Item = Entry>) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        if let Some(broken) = self.broken() {
            return Err(broken);
        }
        if queue.is_stopped {
            return Err(stopped());
        }
        let (count, bytes) = (queue.entries.len(), queue.bytes);
        for entry in entries {
            if let Err(refused) = self.check(&entry, queue.bytes) {
                queue.entries.truncate(count);
                queue.bytes = bytes;
                drop(queue);
                return Err(refused.unwrap_or_else(|| self.no_room()));
            }
            queue.bytes += entry.body.len();
            queue.entries.push_back(entry);
        }
        let is_first = count == 0 && !queue.entries.is_empty();
        let is_awaited = is_first && queue.turns.is_free();
        drop(queue);
        if is_awaited {
            self.shared.has_work.notify_one();
        }
        Ok(())
    }

    /// Checks an entry that is to follow `queued` bytes. No error means that there is no room.
    fn check(&self, entry: &Entry, queued: usize) -> Result<(), Option<Error>> {
        let largest = self.shared.file_bytes - 5 * PAGE_BYTES;
        if entry.body.len() as u64 > largest {
            return Err(Some(Error::too_large(format!("an entry of the journal has at most {largest} bytes"))));
        }
        let is_stuck = entry.kind == EntryKind::Batch && self.shared.files.is_stuck();
        let left = || self.shared.left_for_admitted.load(Ordering::Relaxed);
        if is_stuck && (queued + entry.body.len()) as u64 >= left() {
            return Err(None);
        }
        Ok(())
    }

    /// Sets the source of more entries, once. The journal keeps it, so it refers to the journal weakly.
    pub fn set_source(&self, source: Arc<dyn Source>) {
        if self.shared.source.set(source).is_err() {
            tracing::error!("the source of entries for the journal is set already");
        }
    }

    /// Has the source called before the next block. Fails if the journal takes nothing more: then it may not be called
    /// any more, and what is in it has to be given up by its owner.
    pub fn call(&self) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        if let Some(broken) = self.broken() {
            return Err(broken);
        }
        if queue.is_stopped {
            return Err(stopped());
        }
        let is_first = !std::mem::replace(&mut queue.is_called, true);
        let is_awaited = is_first && queue.turns.is_free();
        drop(queue);
        if is_awaited {
            self.shared.has_work.notify_one();
        }
        Ok(())
    }

    /// Refuses if too much data is queued already. Callers that may append several entries together call it once: they
    /// can exceed the limit by these entries, never by more.
    pub fn admit(&self) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        let queued = queue.bytes;
        // No more is taken than fits into existing files: only the attempt shows whether another can be created.
        if queued < self.shared.queue_bytes_max && self.shared.has_left(queued) {
            return Ok(());
        }
        queue.is_missed = true;
        drop(queue);
        Err(match self.shared.files.trouble() {
            Some(_) => self.no_room(),
            None => Error::busy(format!("{queued} bytes are already queued for the disk; try again later")),
        })
    }

    fn no_room(&self) -> Error {
        let trouble = self.shared.files.trouble();
        let is_full = trouble.as_ref().is_some_and(|trouble| trouble.kind == ErrorKind::DiskFull);
        self.shared.is_refused.fetch_or(is_full, Ordering::Relaxed);
        let kind = if is_full { ErrorKind::DiskFull } else { ErrorKind::Busy };
        let why = trouble.map_or_else(String::new, |trouble| format!(": {}", trouble.message));
        Error::new(kind, format!("the journal has no room for more records{why}"))
    }

    /// Returns `true` if a record was refused for lack of disk space for a file since the last call.
    pub(crate) fn take_refused(&self) -> bool {
        self.shared.is_refused.swap(false, Ordering::Relaxed)
    }

    /// Returns an error if there is almost no room for records: the current file is at its end, and the disk has no
    /// space for another.
    pub(crate) fn stuck(&self) -> Option<Error> {
        let is_at_end = || !self.shared.has_left((self.shared.file_bytes / LEFT_PART) as usize);
        (self.shared.files.is_stuck() && is_at_end()).then(|| self.no_room())
    }

    /// Sets a callback that runs whenever half of the queue is free again, or a file is ready, after [`Journal::admit`]
    /// refused a caller.
    pub fn on_room(&self, tell: Box<dyn Fn() + Send + Sync>) {
        if self.shared.on_room.set(tell).is_err() {
            tracing::error!("the callback for room in the journal is set already");
        }
    }

    /// Returns the position before which all entries are durable.
    pub fn synced(&self) -> u64 {
        self.shared.synced.load(Ordering::Acquire)
    }

    /// Calls `look` between the notifications of two blocks: see [`ShardLog::still`](crate::ShardLog::still).
    pub(crate) fn still(&self, look: &mut dyn FnMut()) {
        let _notifying = self.shared.notifying.lock();
        look();
    }

    /// Returns the origin for a reader that has all entries whose owners were notified that they are durable.
    pub fn origin(&self) -> Origin {
        self.shared.finished.lock().origin
    }

    /// Removes ready, empty files to free disk space, except for those that admitted entries need. Returns `true` if
    /// any was removed.
    pub(crate) fn give_up_spares(&self) -> bool {
        // The lock prevents new admissions in the meantime.
        let queue = self.shared.queue.lock();
        let waiting = queue.bytes as u64 + self.shared.writing.load(Ordering::Relaxed);
        self.shared.files.give_up_spares(waiting.saturating_sub(self.shared.left.load(Ordering::Relaxed)))
    }

    /// Releases entries before this position, which are no longer needed.
    pub(crate) fn release(&self, position: u64) {
        self.shared.files.release(position);
        self.shared.notify_room();
    }

    /// Fails if the data directory is no longer at its path; the journal then takes nothing more.
    pub(crate) fn check_place(&self) -> Result<()> {
        self.shared.place.check().inspect_err(|error| self.shared.break_off(error))
    }

    /// Returns the reason why nothing can be appended any more.
    pub fn broken(&self) -> Option<Error> {
        self.shared.broken.get().cloned()
    }

    /// Returns the bytes that the journal can hold.
    pub fn capacity(&self) -> u64 {
        self.shared.files.capacity()
    }

    pub fn stats(&self) -> JournalStats {
        let counts = &self.shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (in_use, spare) = self.shared.files.counts();
        JournalStats {
            entries: get(&counts.entries),
            bytes: get(&counts.bytes),
            through_bytes: get(&counts.through_bytes),
            syncs: get(&counts.syncs),
            sync_nanos: get(&counts.sync_nanos),
            queued_bytes: self.shared.queue.lock().bytes as u64,
            files_in_use: in_use as u64,
            files_spare: spare as u64,
            is_full: self.shared.files.is_full(),
        }
    }

    /// Writes and syncs queued entries, and ends the threads. Entries that need a file that cannot be created are
    /// refused.
    pub fn stop(&self) {
        self.shared.gate.end();
        self.shared.queue.lock().is_stopped = true;
        self.shared.has_work.notify_all();
        self.shared.files.close();
        let mut threads = self.threads.lock();
        // The thread that creates files ends last: the others may wait for a file.
        let files = threads.pop();
        for thread in threads.drain(..) {
            thread.join().unwrap_or_else(|_| tracing::error!("a journal thread panicked"));
        }
        self.shared.files.stop();
        if let Some(files) = files {
            files.join().unwrap_or_else(|_| tracing::error!("a journal thread panicked"));
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the journal is closed")
}

fn no_file() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the journal has no file for its last entries")
}

/// Returns the bytes of a file that records may still take if no other file can be created.
fn left(head: &FileHead, at: u64, kept_part: u64) -> u64 {
    head.bytes.saturating_sub(at + head.bytes / kept_part)
}

fn origin(head: &FileHead, file: &JournalFile, at: u64) -> Origin {
    Origin { position: head.position + at, number: head.number, slot: file.slot }
}

impl Shared {
    /// Returns `true` if `bytes` queued bytes, the bytes that are being written, and at least one more fit into the
    /// part of the current file that is for records and into the files that are ready.
    fn has_left(&self, bytes: usize) -> bool {
        let waiting = bytes as u64 + self.writing.load(Ordering::Relaxed);
        waiting < self.left.load(Ordering::Relaxed) + self.files.spare_bytes()
    }

    /// Runs the callback of refused callers if there is room again.
    fn notify_room(&self) {
        {
            let mut queue = self.queue.lock();
            let has_room = queue.bytes < self.queue_bytes_max / 2 && self.has_left(queue.bytes);
            if !queue.is_missed || !has_room {
                return;
            }
            queue.is_missed = false;
        }
        if let Some(tell) = self.on_room.get() {
            tell();
        }
    }

    /// Takes queued entries, at most one block of them and at most these bytes. Nothing if there are none, if the first
    /// one does not fit, or if the journal is broken.
    fn gather(&self, fits: u64) -> Vec<Entry> {
        let mut queue = self.queue.lock();
        let mut is_filled = false;
        // Callers in the meantime do not delay a block that has entries: the next one calls the source again. If there
        // is none, because the journal is broken, the source learns it now.
        let is_last = || self.broken.get().is_some();
        while queue.is_called && (!is_filled || queue.entries.is_empty() || is_last()) {
            queue.is_called = false;
            is_filled = true;
            MutexGuard::unlocked(&mut queue, || self.source.get().iter().for_each(|source| source.fill()));
        }
        let fits_in = |first: &Entry| (first.body.len() + ROW_BYTES) as u64 <= fits;
        if self.broken.get().is_some() || !queue.entries.front().is_some_and(fits_in) {
            return Vec::new();
        }
        let room = BODIES_BYTES_MAX.min((self.file_bytes / BLOCK_PART).min(fits) as usize);
        let mut count = 0;
        let mut bytes = 0;
        for entry in queue.entries.iter().take(ENTRIES_MAX - PLACES_MAX * PARTS_MAX) {
            if count > 0 && bytes + entry.body.len() + count * ROW_BYTES > room {
                break;
            }
            count += 1;
            bytes += entry.body.len();
        }
        queue.bytes -= bytes;
        self.writing.store(bytes as u64, Ordering::Relaxed);
        let has_room = queue.is_missed && queue.bytes < self.queue_bytes_max / 2;
        queue.is_missed &= !has_room;
        let entries = queue.entries.drain(..count).collect();
        drop(queue);
        if let (true, Some(tell)) = (has_room, self.on_room.get()) {
            tell();
        }
        entries
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Syncs a block and, when all blocks before it are finished, notifies its owners.
    fn finish(&self, mut written: Written, thread: usize) {
        if !written.is_synced {
            self.sync(&mut written, thread);
        }
        {
            let mut finished = self.finished.lock();
            while finished.turn != written.turn && !finished.is_over {
                self.is_next.wait(&mut finished);
            }
            if written.failed.is_some() || finished.is_over {
                finished.is_over = true;
                drop(finished);
                return self.give_up(written.entries);
            }
        }
        // Other blocks wait for this turn: owners are notified in order, without the lock that other callers need.
        self.synced.store(written.origin.position, Ordering::Release);
        {
            let _notifying = self.notifying.lock();
            notify_owners(written.entries, |owner, mark| owner.committed(mark));
        }
        let mut finished = self.finished.lock();
        finished.turn += 1;
        finished.origin = written.origin;
        self.is_next.notify_all();
    }

    /// Takes nothing more after this error. Earlier synced entries are still committed. After one failed sync it is
    /// unknown which of the other entries are on the disk.
    fn break_off(&self, error: &Error) {
        self.broken.get_or_init(|| {
            let message = format!(
                "{}; the journal accepts no more records, because they might be lost. Restart the broker when the \
                 disk works again",
                error.message
            );
            tracing::error!("{message}");
            Error::new(ErrorKind::Internal, message)
        });
        let _queue = self.queue.lock();
        self.has_work.notify_all();
    }

    /// Ends the journal: nothing is committed from now on, and all waiting owners are notified.
    fn give_up(&self, entries: Vec<Entry>) {
        self.is_next.notify_all();
        let error = self.broken.get().cloned().unwrap_or_else(stopped);
        let waiting: Vec<Entry> = {
            let mut queue = self.queue.lock();
            queue.bytes = 0;
            queue.entries.drain(..).collect()
        };
        notify_owners(entries, |owner, _| owner.failed(&error));
        notify_owners(waiting, |owner, _| owner.failed(&error));
        // Callers that wait for room are notified that there will be none.
        if let Some(tell) = self.on_room.get() {
            tell();
        }
    }
}

/// Notifies each owner once, with the highest of its marks.
fn notify_owners(mut entries: Vec<Entry>, notify: impl Fn(&Arc<dyn Owner>, u64)) {
    let key = |entry: &Entry| Arc::as_ptr(&entry.owner).cast::<()>() as usize;
    if entries.windows(2).any(|pair| key(&pair[0]) != key(&pair[1])) {
        entries.sort_unstable_by_key(key);
    }
    for of_one in entries.chunk_by(|a, b| key(a) == key(b)) {
        let mark = of_one.iter().map(|entry| entry.mark).max().unwrap_or_default();
        notify(&of_one[0].owner, mark);
    }
}
