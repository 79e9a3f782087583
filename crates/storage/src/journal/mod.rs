//! The journal: what was appended lasts once its position is synced, whatever it is about.
//!
//! Whoever appends puts an entry into a queue and goes on. A few threads take turns: one gathers all that waits,
//! writes it as one block and syncs; meanwhile another gathers what came since. So many small entries cost one
//! sync, a lone one waits for nobody, and there is no timer. Blocks are finished in the order of their positions.

pub mod block;
mod files;
pub mod recover;

use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

pub use block::EntryKind;
use block::{BODIES_BYTES_MAX, BlockHead, ENTRIES_MAX, FileHead, PAGE_BYTES, Row, checksum};
use files::{Files, JournalFile};
use recover::Origin;

use crate::disk::{Disk, failed};

/// When nothing came for so long, what was synced last is sealed.
const REST: Duration = Duration::from_millis(20);
/// How often a file that could not be made is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct JournalSettings {
    pub file_bytes: u64,
    /// Files at once. When all hold what is needed, appends wait for a checkpoint.
    pub files_max: usize,
    /// Bytes that wait to be written. With more, an append is refused.
    pub queue_bytes_max: usize,
    /// Syncs at once, each with a thread.
    pub syncs_in_flight: usize,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { file_bytes: 64 << 20, files_max: 16, queue_bytes_max: 64 << 20, syncs_in_flight: 2 }
    }
}

/// Who hears what became of an entry. Called on the journal's threads, in the order of entries.
pub trait Owner: Send + Sync {
    /// All of its entries with marks up to this one last from now on.
    fn committed(&self, mark: u64);
    /// Nothing more will be committed.
    fn failed(&self, error: &Error);
}

pub struct Entry {
    pub kind: EntryKind,
    pub stream: u64,
    pub body: Bytes,
    pub owner: Arc<dyn Owner>,
    /// Grows from entry to entry of one owner.
    pub mark: u64,
}

/// Holds the journal up while what it has committed cannot be written to its place fast enough: publishers then wait
/// for their acknowledgements, and send less.
#[derive(Default)]
pub(crate) struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn set_shut(&self, is_shut: bool) {
        *self.is_shut.lock() = is_shut;
        if !is_shut {
            self.opened.notify_all();
        }
    }

    fn pass(&self) {
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
    }
}

/// What the journal has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    pub entries: u64,
    /// Bytes of blocks, heads and zeros included.
    pub bytes: u64,
    pub syncs: u64,
    pub sync_nanos: u64,
    pub queued_bytes: u64,
    pub files_in_use: u64,
    pub files_spare: u64,
    pub is_full: bool,
}

pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    directory: u64,
    file_bytes: u64,
    queue_bytes_max: usize,
    gate: Arc<Gate>,
    /// Told when there is room again after somebody was refused.
    on_room: OnceLock<Box<dyn Fn() + Send + Sync>>,
    files: Files,
    queue: Mutex<Queue>,
    has_work: Condvar,
    /// Held by the thread whose turn it is to gather and write.
    writer: Mutex<Writer>,
    finished: Mutex<Finished>,
    is_next: Condvar,
    /// All before it is synced, and its owners know.
    synced: AtomicU64,
    broken: OnceLock<Error>,
    is_broken: AtomicBool,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    entries: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    sync_nanos: AtomicU64,
}

#[derive(Default)]
struct Queue {
    entries: std::collections::VecDeque<Entry>,
    bytes: usize,
    /// Somebody was refused since there was room.
    is_missed: bool,
    is_stopped: bool,
}

struct Writer {
    file: Arc<JournalFile>,
    head: FileHead,
    /// Where the next block goes, in the file and in the journal.
    at: u64,
    previous_end: u64,
    turn: u64,
    /// Nothing was written since the last seal.
    is_sealed: bool,
    buf: Vec<u8>,
}

struct Finished {
    turn: u64,
    /// Where reading would begin if all that is finished were not needed any more.
    origin: Origin,
}

/// A block that is written and has to be synced.
struct Written {
    file: Arc<JournalFile>,
    entries: Vec<Entry>,
    origin: Origin,
    turn: u64,
}

impl Journal {
    /// Goes on where recovery found the end.
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        directory: u64,
        settings: JournalSettings,
        tail: recover::Tail,
        gate: Arc<Gate>,
    ) -> Result<Self> {
        assert!(settings.file_bytes > block::BODIES_BYTES_MAX as u64 / 64, "invariant: a file holds some blocks");
        let files = Files::new(disk, dir, settings.file_bytes, settings.files_max);
        files.adopt(tail.in_use, tail.spare, tail.number);
        // The first file is made here, later ones ahead of their use.
        if files.counts().1 == 0 {
            files.prepare()?;
        }
        let start = tail.end.next_multiple_of(settings.file_bytes);
        let (file, head) = files.take(directory, start).ok_or_else(stopped)?;
        file.file.write_at(&mut [IoSlice::new(&head.encode())], 0).map_err(failed("write", &file.path))?;
        file.file.sync().map_err(failed("sync", &file.path))?;
        if let Some(last) = &tail.last {
            // Behind the last entry, over whatever a crash left there: nothing of that is ever read again.
            let at = tail.end - last.head.position;
            let next = next_block(&last.head, tail.end, tail.end, tail.end, (head.number, file.slot));
            last.file.file.write_at(&mut [IoSlice::new(&next)], at).map_err(failed("write", &last.file.path))?;
            last.file.file.sync().map_err(failed("sync", &last.file.path))?;
        }
        let previous_end = if tail.last.is_some() { tail.end + PAGE_BYTES } else { tail.end };
        let writer = Writer { file, head, at: PAGE_BYTES, previous_end, turn: 0, is_sealed: true, buf: Vec::new() };
        let shared = Arc::new(Shared {
            directory,
            file_bytes: settings.file_bytes,
            queue_bytes_max: settings.queue_bytes_max,
            gate,
            on_room: OnceLock::new(),
            files,
            queue: Mutex::default(),
            has_work: Condvar::new(),
            synced: AtomicU64::new(head.position + PAGE_BYTES),
            finished: Mutex::new(Finished { turn: 0, origin: origin(&writer.head, &writer.file, PAGE_BYTES) }),
            writer: Mutex::new(writer),
            is_next: Condvar::new(),
            broken: OnceLock::new(),
            is_broken: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let mut threads = Vec::new();
        let mut spawn = |name: String, run: fn(&Shared)| -> Result<()> {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(name).spawn(move || run(&shared));
            threads.push(thread.map_err(|error| {
                Error::new(ErrorKind::Internal, format!("cannot start a thread for the journal: {error}"))
            })?);
            Ok(())
        };
        for i in 0..settings.syncs_in_flight.max(1) {
            spawn(format!("journal-{i}"), Shared::run)?;
        }
        spawn("journal-files".into(), Shared::prepare_files)?;
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Puts an entry behind all others. Its owner hears when it lasts.
    pub fn append(&self, entry: Entry) -> Result<()> {
        if self.shared.is_broken.load(Ordering::Acquire) {
            return Err(self.broken().unwrap_or_else(stopped));
        }
        debug_assert!(entry.body.len() as u64 + 3 * PAGE_BYTES < self.shared.file_bytes, "invariant: it fits a file");
        let mut queue = self.shared.queue.lock();
        if queue.is_stopped {
            return Err(stopped());
        }
        queue.bytes += entry.body.len();
        queue.entries.push_back(entry);
        let is_first = queue.entries.len() == 1;
        drop(queue);
        if is_first {
            self.shared.has_work.notify_one();
        }
        Ok(())
    }

    /// Refuses where too much waits already. Callers that may append several entries at once ask once: they can
    /// overshoot by what they append, never by more.
    pub fn admit(&self) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        let queued = queue.bytes;
        if queued < self.shared.queue_bytes_max {
            return Ok(());
        }
        queue.is_missed = true;
        drop(queue);
        Err(match self.shared.files.trouble() {
            Some(trouble) => Error::busy(format!("the journal has no room for more: {}", trouble.message)),
            None => Error::busy(format!("{queued} bytes wait for the disk already; try again later")),
        })
    }

    /// `tell` is called whenever half of the queue is free again after [`Journal::admit`] refused somebody.
    pub fn on_room(&self, tell: Box<dyn Fn() + Send + Sync>) {
        if self.shared.on_room.set(tell).is_err() {
            tracing::error!("somebody else is told already when the journal has room");
        }
    }

    /// All before this position lasts, and its owners know.
    pub fn synced(&self) -> u64 {
        self.shared.synced.load(Ordering::Acquire)
    }

    /// Where reading has to begin for whoever has all that is committed.
    pub(crate) fn origin(&self) -> Origin {
        self.shared.finished.lock().origin
    }

    /// Nothing before this position is needed any more.
    pub(crate) fn release(&self, position: u64) {
        self.shared.files.release(position);
    }

    /// Why nothing can be appended any more.
    pub fn broken(&self) -> Option<Error> {
        self.shared.broken.get().cloned()
    }

    pub fn stats(&self) -> JournalStats {
        let counts = &self.shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (in_use, spare) = self.shared.files.counts();
        JournalStats {
            entries: get(&counts.entries),
            bytes: get(&counts.bytes),
            syncs: get(&counts.syncs),
            sync_nanos: get(&counts.sync_nanos),
            queued_bytes: self.shared.queue.lock().bytes as u64,
            files_in_use: in_use as u64,
            files_spare: spare as u64,
            is_full: self.shared.files.is_full(),
        }
    }

    /// Writes and syncs what waits, and ends the threads.
    pub fn stop(&self) {
        // Nobody may be left to open it.
        self.shared.gate.set_shut(false);
        self.shared.queue.lock().is_stopped = true;
        self.shared.has_work.notify_all();
        let mut threads = self.threads.lock();
        // The thread of the files ends last: the others may wait for a file.
        let files = threads.pop();
        for thread in threads.drain(..) {
            thread.join().unwrap_or_else(|_| tracing::error!("a thread of the journal panicked"));
        }
        self.shared.files.stop();
        if let Some(files) = files {
            files.join().unwrap_or_else(|_| tracing::error!("a thread of the journal panicked"));
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

fn origin(head: &FileHead, file: &JournalFile, at: u64) -> Origin {
    Origin { position: head.position + at, number: head.number, slot: file.slot }
}

/// The block that ends a file: its only entry says where the journal goes on.
fn next_block(head: &FileHead, position: u64, previous_end: u64, synced: u64, next: (u64, u32)) -> Vec<u8> {
    let (number, slot) = next;
    let body = slot.to_le_bytes();
    let row = Row { kind: EntryKind::Next, stream: number, bytes: body.len() as u32, crc: checksum(&body) };
    let block = BlockHead { file: head.number, position, previous_end, synced, rows: vec![row] };
    let mut buf = Vec::new();
    block.encode(&mut buf);
    buf.extend_from_slice(&body);
    buf.resize(PAGE_BYTES as usize, 0);
    buf
}

impl Shared {
    fn run(&self) {
        loop {
            let written = {
                let mut writer = self.writer.lock();
                self.gate.pass();
                let Some(entries) = self.gather(&mut writer) else {
                    return;
                };
                self.write(&mut writer, entries)
            };
            match written {
                Ok(written) => self.finish(written),
                Err((error, entries)) => {
                    self.give_up(error, entries);
                    return;
                }
            }
        }
    }

    /// What waits now, at most a block of it. Empty where the journal came to rest; `None` where it is over.
    fn gather(&self, writer: &mut Writer) -> Option<Vec<Entry>> {
        let mut queue = self.queue.lock();
        while queue.entries.is_empty() {
            if queue.is_stopped || self.is_broken.load(Ordering::Acquire) {
                // The last words are sealed as well.
                return (!writer.is_sealed && queue.is_stopped).then(Vec::new);
            }
            if writer.is_sealed {
                self.has_work.wait(&mut queue);
            } else if self.has_work.wait_for(&mut queue, REST).timed_out() && queue.entries.is_empty() {
                return Some(Vec::new());
            }
        }
        if self.is_broken.load(Ordering::Acquire) {
            return None;
        }
        let (mut count, mut bytes) = (0, 0);
        for entry in queue.entries.iter().take(ENTRIES_MAX) {
            if count > 0 && bytes + entry.body.len() > BODIES_BYTES_MAX.min(self.file_bytes as usize / 4) {
                break;
            }
            count += 1;
            bytes += entry.body.len();
        }
        queue.bytes -= bytes;
        let has_room = queue.is_missed && queue.bytes < self.queue_bytes_max / 2;
        queue.is_missed &= !has_room;
        let entries = queue.entries.drain(..count).collect();
        drop(queue);
        if let (true, Some(tell)) = (has_room, self.on_room.get()) {
            tell();
        }
        Some(entries)
    }

    /// Writes a block; it is not synced yet.
    fn write(&self, writer: &mut Writer, entries: Vec<Entry>) -> Result<Written, (Error, Vec<Entry>)> {
        let rows = entries.iter().map(|entry| Row {
            kind: entry.kind,
            stream: entry.stream,
            bytes: entry.body.len() as u32,
            crc: checksum(&entry.body),
        });
        let mut block = BlockHead {
            file: writer.head.number,
            position: writer.head.position + writer.at,
            previous_end: writer.previous_end,
            synced: self.synced(),
            rows: rows.collect(),
        };
        // A page stays free for the block that leads to the next file.
        if writer.at + block.block_bytes() + PAGE_BYTES > self.file_bytes {
            if let Err(error) = self.next_file(writer) {
                return Err((error, entries));
            }
            block.file = writer.head.number;
            block.position = writer.head.position + writer.at;
            block.previous_end = writer.previous_end;
        }
        let mut buf = std::mem::take(&mut writer.buf);
        block.encode(&mut buf);
        let zeros = [0; PAGE_BYTES as usize];
        let padding = block.block_bytes() - block.head_bytes() - block.bodies_bytes();
        let mut slices = Vec::with_capacity(entries.len() + 2);
        slices.push(IoSlice::new(&buf));
        slices.extend(entries.iter().map(|entry| IoSlice::new(&entry.body)));
        slices.push(IoSlice::new(&zeros[..padding as usize]));
        let written = writer.file.file.write_at(&mut slices, writer.at);
        drop(slices);
        writer.buf = buf;
        if let Err(error) = written.map_err(failed("write", &writer.file.path)) {
            return Err((error, entries));
        }
        writer.at += block.block_bytes();
        writer.previous_end = block.end();
        writer.is_sealed = entries.is_empty();
        let turn = writer.turn;
        writer.turn += 1;
        self.counts.entries.fetch_add(entries.len() as u64, Ordering::Relaxed);
        self.counts.bytes.fetch_add(block.block_bytes(), Ordering::Relaxed);
        let origin = origin(&writer.head, &writer.file, writer.at);
        Ok(Written { file: writer.file.clone(), entries, origin, turn })
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Ends the file with the way to the next one. Both are synced before anything in the next one counts.
    fn next_file(&self, writer: &mut Writer) -> Result<()> {
        let position = writer.head.position + self.file_bytes;
        let (file, head) = self.files.take(self.directory, position).ok_or_else(stopped)?;
        file.file.write_at(&mut [IoSlice::new(&head.encode())], 0).map_err(failed("write", &file.path))?;
        file.file.sync().map_err(failed("sync", &file.path))?;
        let here = writer.head.position + writer.at;
        let next = next_block(&writer.head, here, writer.previous_end, self.synced(), (head.number, file.slot));
        let last = &writer.file;
        last.file.write_at(&mut [IoSlice::new(&next)], writer.at).map_err(failed("write", &last.path))?;
        last.file.sync().map_err(failed("sync", &last.path))?;
        writer.previous_end = here + PAGE_BYTES;
        (writer.file, writer.head, writer.at) = (file, head, PAGE_BYTES);
        Ok(())
    }

    /// Syncs a block and, when all before it are finished, tells its owners.
    fn finish(&self, written: Written) {
        let begin = std::time::Instant::now();
        let synced = written.file.file.sync().map_err(failed("sync", &written.file.path));
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.counts.sync_nanos.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let mut finished = self.finished.lock();
        while finished.turn != written.turn {
            if self.is_broken.load(Ordering::Acquire) {
                drop(finished);
                return self.give_up(self.broken.get().cloned().unwrap_or_else(stopped), written.entries);
            }
            self.is_next.wait(&mut finished);
        }
        // After one failed sync nobody can know what of its pages is on the disk.
        if let Err(error) = synced {
            drop(finished);
            return self.give_up(error, written.entries);
        }
        self.synced.store(written.origin.position, Ordering::Release);
        tell(written.entries, |owner, mark| owner.committed(mark));
        finished.turn += 1;
        finished.origin = written.origin;
        self.is_next.notify_all();
    }

    /// Nothing is acknowledged from now on.
    fn give_up(&self, error: Error, entries: Vec<Entry>) {
        let error = self.broken.get_or_init(|| {
            let message = format!(
                "{}; the journal takes nothing more, so that nothing is acknowledged that may be lost. Restart the \
                 broker when the disk is well again",
                error.message
            );
            tracing::error!("{message}");
            Error::new(ErrorKind::Internal, message)
        });
        self.is_broken.store(true, Ordering::Release);
        let waiting: Vec<Entry> = {
            let mut queue = self.queue.lock();
            queue.bytes = 0;
            queue.entries.drain(..).collect()
        };
        self.has_work.notify_all();
        {
            let _finished = self.finished.lock();
            self.is_next.notify_all();
        }
        tell(entries, |owner, _| owner.failed(error));
        tell(waiting, |owner, _| owner.failed(error));
    }

    fn prepare_files(&self) {
        loop {
            match self.files.prepare_one() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the journal has no file ahead"),
            }
            if !self.files.wait(TRY_AGAIN) {
                return;
            }
        }
    }
}

/// Tells each owner once, with the highest of its marks.
fn tell(mut entries: Vec<Entry>, say: impl Fn(&Arc<dyn Owner>, u64)) {
    let key = |entry: &Entry| Arc::as_ptr(&entry.owner).cast::<()>() as usize;
    if entries.windows(2).any(|pair| key(&pair[0]) != key(&pair[1])) {
        entries.sort_unstable_by_key(key);
    }
    for of_one in entries.chunk_by(|a, b| key(a) == key(b)) {
        let mark = of_one.iter().map(|entry| entry.mark).max().unwrap_or_default();
        say(&of_one[0].owner, mark);
    }
}
