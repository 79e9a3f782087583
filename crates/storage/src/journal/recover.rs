//! Recovery of a journal: from a checkpoint to the last entry that was written completely.
//!
//! A write that a power cut interrupted and damage to synced bytes look the same locally. Later blocks tell them apart:
//! each block records the position up to which all was synced when it was written.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::catalog::Change;
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Offset, Result};

use super::block::{
    BlockHead, EntryKind, FILE_VERSION, FileHead, NotAHead, PAGE_BYTES, Row, SegmentPart, checksum, u32_at,
};
use super::files::{Files, Slot};
use super::parts::{InPart, PartRead, Parts};
use crate::disk::{Disk, DiskFile, damaged, failed, other_version};

/// Number of bytes that are read from a file together.
const WINDOW_BYTES: usize = 1 << 20;

/// Position at which reading begins: the checkpoint contains all entries before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub position: u64,
    pub number: u64,
    pub slot: u32,
}

/// Files of a journal after reading.
pub(crate) struct Tail {
    /// Files from the one in which reading began to the one in which it ended.
    pub(crate) in_use: Vec<(Slot, FileHead)>,
    /// Files without needed entries.
    pub(crate) others: Vec<Slot>,
    /// Highest number that any file ever had.
    pub(crate) number: u64,
    /// End of the last block, if an entry there has to lead to the file in which the journal continues.
    pub(crate) leads_from: Option<Lead>,
}

/// End of a journal, at which an entry can lead to another file.
#[derive(Clone, Copy)]
pub(crate) struct Lead {
    pub(crate) position: u64,
    pub(crate) previous_end: u64,
    pub(crate) synced: u64,
}

impl Tail {
    pub(crate) fn of_new() -> Self {
        Self { in_use: Vec::new(), others: Vec::new(), number: 0, leads_from: None }
    }
}

/// Entry as it was read.
pub struct Found<'j> {
    pub kind: EntryKind,
    pub shard: ShardId,
    pub stream: u64,
    /// Block of the entry, from which reading can begin; without a meaning in a salvage file.
    pub block: Origin,
    /// Appended body, or the reason why it cannot be read: then the entry's partition has a hole.
    pub body: Result<&'j [u8]>,
    /// Stored bytes, damaged or not, and the checksum of the appended body; empty if the body is in a segment.
    pub(crate) raw: (&'j [u8], u32),
    /// Source of the body in a segment; `None` if the journal contains it.
    pub(crate) in_part: Option<InPart<'j>>,
}

/// File of the journal with its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// Head of the file; `None` if it is not a file of a journal, or was created and never used.
    pub head: Option<FileHead>,
}

/// Returns the files of a journal in the order of their names.
pub(crate) fn files(disk: &dyn Disk, dir: &Path) -> Result<Vec<JournalFile>> {
    let file = |slot: Slot| {
        let file = disk.open(&slot.path).map_err(failed("open", &slot.path))?;
        let head = FileHead::decode(&read_page(&*file, &slot, 0)?).ok();
        Ok(JournalFile { path: slot.path, bytes: slot.len, head })
    };
    slots(disk, dir)?.into_iter().map(file).collect()
}

/// Progress of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub bytes: u64,
    /// Maximum number of bytes to read; usually the journal ends earlier.
    pub bytes_max: u64,
}

/// Journal as found in its directory. Reading changes nothing.
pub(crate) struct Recovery {
    dir: PathBuf,
    origin: Origin,
    /// Files by their numbers.
    files: HashMap<u64, Used>,
    /// Files that were never used, or whose number is no longer needed.
    blank: Vec<Slot>,
    number: u64,
    parts: Parts,
}

struct Used {
    slot: Slot,
    head: FileHead,
    file: Box<dyn DiskFile>,
}

impl Used {
    fn window(&self) -> Window<'_> {
        Window::new(&self.slot.path, &*self.file)
    }
}

/// End of a journal.
pub(crate) struct End {
    /// Numbers of the files from the origin to the end of reading.
    chain: Vec<u64>,
    /// Position after the last block.
    pub(crate) position: u64,
    /// End of the last block, unless none was read.
    previous_end: Option<u64>,
    /// Position before which all was synced, according to the blocks that were read.
    pub(crate) synced: u64,
}

impl Recovery {
    /// Opens the journal of a data directory. `known`: offset up to which the checkpoint describes each partition.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        directory: u64,
        origin: Origin,
        known: HashMap<u64, Offset>,
    ) -> Result<Self> {
        let dir = data_dir.join("journal");
        let number = origin.number;
        let parts = Parts::new(disk, data_dir, known);
        let disk = &**disk;
        let mut recovery = Self { dir, origin, files: HashMap::new(), blank: Vec::new(), number, parts };
        for slot in slots(disk, &recovery.dir)? {
            recovery.adopt(disk, directory, slot)?;
        }
        Ok(recovery)
    }

    fn adopt(&mut self, disk: &dyn Disk, directory: u64, slot: Slot) -> Result<()> {
        let file = disk.open(&slot.path).map_err(failed("open", &slot.path))?;
        let page = read_page(&*file, &slot, 0)?;
        let head = match FileHead::decode(&page) {
            Ok(head) => head,
            Err(NotAHead::Version(version)) => return Err(other_version(&slot.path, version, FILE_VERSION)),
            Err(NotAHead::Other) => {
                // A file without a valid head is known to be unneeded only if its first block is from an earlier use.
                let is_blank = page.iter().all(|byte| *byte == 0);
                let block = read_page(&*file, &slot, PAGE_BYTES)?;
                if is_blank || BlockHead::file_of(&block).is_some_and(|number| number < self.origin.number) {
                    self.blank.push(slot);
                    return Ok(());
                }
                return Err(damaged(&slot.path, 0, "its header does not match its checksum"));
            }
        };
        if head.directory != directory {
            return Err(damaged(&slot.path, 16, "it belongs to another data directory"));
        }
        self.number = self.number.max(head.number);
        if head.number < self.origin.number {
            self.blank.push(slot);
            return Ok(());
        }
        if slot.len < head.bytes {
            let what = format!("it has {} of {} bytes", slot.len, head.bytes);
            return Err(damaged(&slot.path, slot.len, what));
        }
        if let Some(twin) = self.files.get(&head.number) {
            let what = format!("it is the same file of the journal as {}", twin.slot.path.display());
            return Err(damaged(&slot.path, 24, what));
        }
        self.files.insert(head.number, Used { slot, head, file });
        Ok(())
    }

    /// Passes every entry from the origin on to `each`, in order. With `until`, the end that an earlier call returned,
    /// it ends there, even if the segments to which entries refer were changed in the meantime.
    pub(crate) fn read(
        &self,
        until: Option<&End>,
        each: &mut dyn FnMut(Found<'_>) -> Result<()>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<End> {
        let first = self.files.get(&self.origin.number);
        let mut used = first.ok_or_else(|| missing(&Files::path(&self.dir, self.origin.slot)))?;
        let bytes_max = self.files.values().map(|used| used.head.bytes).sum();
        let mut scan = Scan {
            files: &self.files,
            parts: &self.parts,
            at: self.origin.position,
            until: until.map(|end| end.position),
            topics: self.parts.topics(),
            previous_end: None,
            synced: 0,
            read: 0,
        };
        let mut chain = vec![self.origin.number];
        loop {
            let way = scan.file(used, each, &mut |bytes| progress(Progress { bytes, bytes_max }))?;
            let Some((number, slot)) = way else {
                if scan.until.is_some_and(|until| until != scan.at) {
                    return Err(damaged(&used.slot.path, scan.at - used.head.position, "it changed while it was read"));
                }
                let Scan { at: position, previous_end, synced, .. } = scan;
                return Ok(End { chain, position, previous_end, synced });
            };
            // The head of this file was synced before the entry that leads to it was written.
            used = self.files.get(&number).ok_or_else(|| missing(&Files::path(&self.dir, slot)))?;
            scan.at = used.head.position + PAGE_BYTES;
            chain.push(number);
        }
    }

    /// Removes files without needed entries to free disk space, except for one in which the journal can continue.
    pub(crate) fn give_up_blank(&mut self, disk: &dyn Disk, file_bytes: u64) {
        let kept = self.blank.iter().position(|slot| slot.len == file_bytes);
        let kept = kept.map(|at| self.blank.swap_remove(at));
        for slot in self.blank.drain(..) {
            if let Err(error) = disk.remove(&slot.path) {
                tracing::warn!(path = %slot.path.display(), %error, "cannot remove a spare journal file");
            }
        }
        self.blank.extend(kept);
    }

    /// Syncs the files that were read, so that their entries are durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.files.values().try_for_each(|used| used.file.sync().map_err(failed("sync", &used.slot.path)))
    }

    /// Returns the files after reading. `leads`: the file in which the journal continues has to be found from them.
    pub(crate) fn into_tail(mut self, end: End, leads: bool) -> Tail {
        let End { position, previous_end, synced, .. } = end;
        let leads_from = leads.then(|| Lead { position, previous_end: previous_end.unwrap_or(position), synced });
        let used = end.chain.iter().filter_map(|number| self.files.remove(number));
        let in_use = used.map(|used| (used.slot, used.head)).collect();
        let mut others = self.blank;
        others.extend(self.files.into_values().map(|used| used.slot));
        Tail { in_use, others, number: self.number, leads_from }
    }
}

/// Returns the files of a journal in the order of their slots.
fn slots(disk: &dyn Disk, dir: &Path) -> Result<Vec<Slot>> {
    let mut slots = Vec::new();
    for name in disk.list(dir).map_err(failed("list", dir))? {
        if let Some(slot) = name.strip_suffix(".journal").and_then(|slot| slot.parse().ok()) {
            let path = dir.join(&name);
            let len = disk.open(&path).and_then(|file| file.size()).map_err(failed("open", &path))?;
            slots.push(Slot { slot, path, len });
        }
    }
    slots.sort_by_key(|slot| slot.slot);
    Ok(slots)
}

/// Returns a file of the journal that contains a write, if one exists.
pub(crate) fn any_written(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>> {
    for slot in slots(disk, dir)? {
        let file = disk.open(&slot.path).map_err(failed("open", &slot.path))?;
        if read_page(&*file, &slot, PAGE_BYTES)?.iter().any(|byte| *byte != 0) {
            return Ok(Some(slot.path));
        }
    }
    Ok(None)
}

/// Reads a page of a file, or less at its end.
fn read_page(file: &dyn DiskFile, slot: &Slot, at: u64) -> Result<Vec<u8>> {
    let mut page = vec![0; PAGE_BYTES as usize];
    let read = file.read_at(&mut page, at).map_err(failed("read", &slot.path))?;
    page.truncate(read);
    Ok(page)
}

fn missing(path: &Path) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{} is missing or was replaced. Put it back, or see what can be saved: thalweg inspect",
            path.display()
        ),
    )
}

/// Parts of segments, each with the index of the row that refers to it.
type ReadParts = Vec<(usize, PartRead)>;

/// State of reading from block to block.
struct Scan<'r> {
    files: &'r HashMap<u64, Used>,
    parts: &'r Parts,
    /// Position of the next block.
    at: u64,
    /// Position at which an earlier reading ended.
    until: Option<u64>,
    /// Topics that exist at this position. Segments of deleted topics are not read: they may no longer exist.
    topics: BTreeSet<u32>,
    /// End of the last block; unknown at the origin.
    previous_end: Option<u64>,
    /// Position before which all was synced, according to the blocks read so far.
    synced: u64,
    /// Number of bytes that were read so far.
    read: u64,
}

impl<'r> Scan<'r> {
    /// Reads a file to its end. Returns the number and the slot of the next file, if the journal continues in one.
    fn file(
        &mut self,
        used: &Used,
        each: &mut dyn FnMut(Found<'_>) -> Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<(u64, u32)>> {
        let mut window = used.window();
        loop {
            if self.until.is_some_and(|until| self.at >= until) {
                return Ok(None);
            }
            let at = self.at - used.head.position;
            let Some((block, parts)) = self.block(used, &mut window, at)? else {
                return Ok(None);
            };
            let mut body_at = at + block.head_bytes();
            let mut way = None;
            let here = Origin { position: block.position, number: used.head.number, slot: used.slot.slot };
            for (i, row) in block.rows.iter().enumerate() {
                let found = Found { block: here, ..window.found(row, body_at)? };
                match (row.kind, &found.body) {
                    (EntryKind::Next, _) => way = Some((row.stream, u32_at(found.body?, 0))),
                    (EntryKind::Segment, Ok(_)) => {
                        for (_, part) in parts.iter().filter(|(at, _)| *at == i) {
                            part.each((row.shard, row.stream), here, each)?;
                        }
                    }
                    _ => each(found)?,
                }
                body_at += u64::from(row.bytes);
            }
            self.synced = self.synced.max(block.synced);
            self.at = block.end();
            self.previous_end = Some(block.end());
            self.read += block.block_bytes();
            progress(self.read);
            if way.is_some() {
                return Ok(way);
            }
        }
    }

    /// Returns the block that begins here, and the parts of segments that its rows refer to; `None` at the end of the
    /// journal.
    fn block(&mut self, used: &Used, window: &mut Window<'_>, at: u64) -> Result<Option<(BlockHead, ReadParts)>> {
        let Some(block) = window.head(at)?.filter(|block| is_next(used, block, self.at, self.previous_end)) else {
            return if self.is_synced_behind(used)? {
                Err(damaged(&used.slot.path, at, "a block of the journal is damaged"))
            } else {
                Ok(None)
            };
        };
        let bytes = window.get(at, block.block_bytes() as usize)?;
        let mut body_at = block.head_bytes() as usize;
        let mut parts = Vec::new();
        for (i, row) in block.rows.iter().enumerate() {
            let body = bytes.get(body_at..body_at + row.bytes as usize).filter(|body| checksum(body) == row.crc);
            let part = match (row.kind, body) {
                (EntryKind::Segment, Some(body)) if self.topics.contains(&((row.stream >> 32) as u32)) => {
                    self.parts.read(row.stream, SegmentPart::decode(body)?)?
                }
                (EntryKind::Catalog, Some(body)) => {
                    match Change::decode(body)? {
                        Change::Create { id, .. } => drop(self.topics.insert(id)),
                        Change::Delete { id } => drop(self.topics.remove(&id)),
                        _ => {}
                    }
                    None
                }
                _ => None,
            };
            let is_incomplete = part.as_ref().is_some_and(PartRead::is_incomplete);
            if self.until.is_none()
                && (body.is_none() || (is_incomplete && !self.deletes_later(used, row.stream)?))
                && !self.is_synced_behind(used)?
            {
                return Ok(None);
            }
            // If the head is valid, it is known which partitions the damage concerns.
            body_at += row.bytes as usize;
            parts.extend(part.map(|part| (i, part)));
        }
        Ok(Some((block, parts)))
    }

    /// Returns `true` if the topic of a partition is deleted in this block or in one that follows it without a gap: its
    /// segments may have been removed.
    fn deletes_later<'u>(&self, mut used: &'u Used, stream: u64) -> Result<bool>
    where
        'r: 'u,
    {
        let mut at = self.at;
        let mut previous_end = self.previous_end;
        loop {
            let mut window = used.window();
            let mut next = None;
            while next.is_none()
                && let Some(block) = window.head(at - used.head.position)?
                && is_next(used, &block, at, previous_end)
            {
                let mut body_at = at - used.head.position + block.head_bytes();
                for row in &block.rows {
                    if [EntryKind::Catalog, EntryKind::Next].contains(&row.kind)
                        && let Ok(body) = window.found(row, body_at)?.body
                    {
                        match row.kind {
                            EntryKind::Next => next = Some(row.stream),
                            _ if Change::decode(body)? == (Change::Delete { id: (stream >> 32) as u32 }) => {
                                return Ok(true);
                            }
                            _ => {}
                        }
                    }
                    body_at += u64::from(row.bytes);
                }
                at = block.end();
                previous_end = Some(at);
            }
            let Some(following) = next.and_then(|number| self.files.get(&number)) else {
                return Ok(false);
            };
            used = following;
            at = used.head.position + PAGE_BYTES;
        }
    }

    /// Returns `true` if a later block records that this position was synced.
    fn is_synced_behind(&self, used: &Used) -> Result<bool> {
        let later = self.files.values().filter(|other| other.head.number > used.head.number);
        for used in std::iter::once(used).chain(later) {
            let mut window = used.window();
            let mut at = self.at.saturating_sub(used.head.position);
            while at + 2 * PAGE_BYTES <= used.head.bytes {
                at += PAGE_BYTES;
                if let Some(block) = window.head(at)?
                    && block.file == used.head.number
                    && block.position == used.head.position + at
                    && block.synced > self.at
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Returns `true` if this block of a file is the next one at a position, after a block with this end, if it is known.
fn is_next(used: &Used, block: &BlockHead, at: u64, previous_end: Option<u64>) -> bool {
    block.file == used.head.number
        && block.position == at
        && previous_end.is_none_or(|end| block.previous_end == end)
        && block.end() <= used.head.end()
}

/// Part of a file, read ahead.
pub(super) struct Window<'r> {
    path: &'r Path,
    file: &'r dyn DiskFile,
    bytes: Vec<u8>,
    from: u64,
}

impl<'r> Window<'r> {
    pub(super) fn new(path: &'r Path, file: &'r dyn DiskFile) -> Self {
        Self { path, file, bytes: Vec::new(), from: 0 }
    }

    /// Returns these bytes, or fewer at the end of the file.
    pub(super) fn get(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let is_buffered = at >= self.from && at + len as u64 <= self.from + self.bytes.len() as u64;
        if !is_buffered {
            self.bytes.resize(len.max(WINDOW_BYTES), 0);
            let read = self.file.read_at(&mut self.bytes, at).map_err(failed("read", self.path))?;
            self.bytes.truncate(read);
            self.from = at;
        }
        let from = (at - self.from) as usize;
        Ok(&self.bytes[from..(from + len).min(self.bytes.len())])
    }

    /// Returns the entry of this row, whose body begins at `at`.
    pub(super) fn found(&mut self, row: &Row, at: u64) -> Result<Found<'_>> {
        let path = self.path;
        let raw = self.get(at, row.bytes as usize)?;
        let is_right = raw.len() == row.bytes as usize && checksum(raw) == row.crc;
        let body = if is_right { Ok(raw) } else { Err(damaged(path, at, "an entry does not match its checksum")) };
        let Row { kind, shard, stream, crc, .. } = *row;
        Ok(Found { kind, shard, stream, block: Origin::default(), body, raw: (raw, crc), in_part: None })
    }

    pub(super) fn head(&mut self, at: u64) -> Result<Option<BlockHead>> {
        let Some(bytes) = BlockHead::bytes_of(self.get(at, PAGE_BYTES as usize)?) else {
            return Ok(None);
        };
        Ok(BlockHead::decode(self.get(at, bytes)?))
    }
}
