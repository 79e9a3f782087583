//! Reads a journal back: from a checkpoint to the last entry that was written whole.
//!
//! A write that the power cut short and damage to what was synced look alike in one place. They are told apart by
//! what comes later: each block says up to where all was synced when it was written.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use engine::{Error, ErrorKind, Result};

use super::block::{BlockHead, EntryKind, FileHead, NotAHead, PAGE_BYTES, Row, checksum, u32_at};
use super::files::{Files, InUse, JournalFile};
use crate::disk::{Disk, damaged, failed};

/// What is read of a file at once.
const WINDOW_BYTES: usize = 1 << 20;

/// Where reading begins: all before is in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub position: u64,
    pub number: u64,
    pub slot: u32,
}

/// Where the journal ends, and its files.
pub(crate) struct Tail {
    pub(crate) in_use: Vec<InUse>,
    pub(crate) spare: Vec<Arc<JournalFile>>,
    /// The highest number that any file ever had.
    pub(crate) number: u64,
    pub(crate) end: u64,
    /// The file that `end` is in; none in a new journal.
    pub(crate) last: Option<InUse>,
}

impl Tail {
    pub(crate) fn of_new() -> Self {
        Self { in_use: Vec::new(), spare: Vec::new(), number: 0, end: 0, last: None }
    }
}

/// An entry as it is read back.
pub struct Found {
    pub kind: EntryKind,
    pub stream: u64,
    /// What was appended, or why it cannot be had: then the entry's partition has a hole.
    pub body: Result<Bytes>,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub bytes: u64,
    /// All that there may be; less is found as a rule.
    pub bytes_max: u64,
}

/// What lies in the directory.
struct Slots {
    used: HashMap<u64, InUse>,
    blank: Vec<Arc<JournalFile>>,
    number: u64,
}

/// Hands every entry from the origin on to `each`, in order.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    directory: u64,
    origin: Origin,
    each: &mut dyn FnMut(Found) -> Result<()>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Tail> {
    let mut slots = Slots::open(disk, dir, directory, &origin)?;
    let first = slots.used.remove(&origin.number).ok_or_else(|| missing(&Files::path(dir, origin.slot)))?;
    let later = slots.used.values().filter(|used| used.head.number > origin.number);
    let bytes_max = later.count() as u64 * first.head.bytes + first.head.position + first.head.bytes - origin.position;
    let mut progress = |bytes| progress(Progress { bytes, bytes_max });
    let mut scan = Scan { slots: &slots.used, at: origin.position, previous_end: None, way_from: 0, read: 0 };
    let mut chain = vec![first];
    let end = loop {
        let here = chain.last().expect("invariant: a chain has a first file");
        let begin = scan.at;
        let way = scan.file(here, each, &mut progress)?;
        if scan.at == begin && chain.len() > 1 {
            // A way to a file in which nothing was written is no way yet.
            chain.pop();
            break scan.way_from;
        }
        let Some((number, slot)) = way else { break scan.at };
        let Some(next) = slots.used.get(&number) else {
            if slots.has_slot(slot) {
                break scan.way_from;
            }
            return Err(missing(&Files::path(dir, slot)));
        };
        scan.at = next.head.position + PAGE_BYTES;
        chain.push(InUse { file: next.file.clone(), head: next.head });
    };
    let numbers: Vec<u64> = chain.iter().map(|used| used.head.number).collect();
    let others = slots.used.into_values().filter(|used| !numbers.contains(&used.head.number));
    let spare = slots.blank.into_iter().chain(others.map(|used| used.file)).collect();
    let last = chain.last().map(|used| InUse { file: used.file.clone(), head: used.head });
    Ok(Tail { in_use: chain, spare, number: slots.number, end, last })
}

fn missing(path: &Path) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{} is missing or is not what it was. Put it back, or see what can be saved: thalweg inspect",
            path.display()
        ),
    )
}

impl Slots {
    fn open(disk: &dyn Disk, dir: &Path, directory: u64, origin: &Origin) -> Result<Self> {
        let mut found = Self { used: HashMap::new(), blank: Vec::new(), number: origin.number };
        for name in disk.list(dir).map_err(failed("list", dir))? {
            let Some(slot) = name.strip_suffix(".journal").and_then(|slot| slot.parse().ok()) else {
                continue;
            };
            let path = dir.join(&name);
            let file = disk.open(&path).map_err(failed("open", &path))?;
            let len = file.size().map_err(failed("read", &path))?;
            let mut page = vec![0; PAGE_BYTES as usize];
            let read = file.read_at(&mut page, 0).map_err(failed("read", &path))?;
            page.truncate(read);
            let file = JournalFile { slot, path, file };
            match FileHead::decode(&page) {
                Ok(head) if head.directory != directory => {
                    return Err(damaged(&file.path, 16, "it is of another data directory"));
                }
                Ok(head) => {
                    found.number = found.number.max(head.number);
                    if head.number >= origin.number && len < head.bytes {
                        let what = format!("it has {len} of {} bytes", head.bytes);
                        return Err(damaged(&file.path, len, what));
                    }
                    found.used.insert(head.number, InUse { file: Arc::new(file), head });
                }
                Err(NotAHead::Version(version)) => {
                    let message = format!(
                        "{} has version {version}, this broker reads version {}; use the release that wrote it",
                        file.path.display(),
                        super::block::FILE_VERSION
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                // Made and never used, or not even made whole.
                Err(NotAHead::Other) if page.iter().all(|byte| *byte == 0) => {
                    found.blank.push(Arc::new(file));
                }
                Err(NotAHead::Other) => {
                    let mut block = vec![0; PAGE_BYTES as usize];
                    file.file.read_at(&mut block, PAGE_BYTES).map_err(failed("read", &file.path))?;
                    if BlockHead::decode(&block).is_none_or(|block| block.file >= origin.number) {
                        return Err(damaged(&file.path, 0, "its head does not match its checksum"));
                    }
                    found.blank.push(Arc::new(file));
                }
            }
        }
        Ok(found)
    }

    fn has_slot(&self, slot: u32) -> bool {
        self.used.values().map(|used| &used.file).chain(&self.blank).any(|file| file.slot == slot)
    }
}

/// Goes from block to block.
struct Scan<'s> {
    slots: &'s HashMap<u64, InUse>,
    /// The position of the next block.
    at: u64,
    /// Where the last block ended; unknown at the origin.
    previous_end: Option<u64>,
    /// Where the block was that leads to the next file.
    way_from: u64,
    read: u64,
}

impl Scan<'_> {
    /// Reads a file to its end. Returns the number and the slot of the next one, if it is left for one.
    fn file(
        &mut self,
        used: &InUse,
        each: &mut dyn FnMut(Found) -> Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<(u64, u32)>> {
        let mut window = Window::new(used);
        loop {
            let at = self.at - used.head.position;
            let Some(block) = self.block(used, &mut window, at)? else {
                return Ok(None);
            };
            let mut body_at = at + block.head_bytes();
            let mut way = None;
            for row in &block.rows {
                let body = window.get(body_at, row.bytes as usize)?;
                if row.kind == EntryKind::Next {
                    way = Some((row.stream, u32_at(body, 0)));
                } else {
                    let body = match check(row, body) {
                        true => Ok(Bytes::copy_from_slice(body)),
                        false => Err(damaged(&used.file.path, body_at, "an entry does not match its checksum")),
                    };
                    each(Found { kind: row.kind, stream: row.stream, body })?;
                }
                body_at += u64::from(row.bytes);
            }
            self.way_from = self.at;
            self.at = block.end();
            self.previous_end = Some(block.end());
            self.read += block.block_bytes();
            progress(self.read);
            if way.is_some() {
                return Ok(way);
            }
        }
    }

    /// The block that begins here; `None` at the end of the journal.
    fn block(&self, used: &InUse, window: &mut Window<'_>, at: u64) -> Result<Option<BlockHead>> {
        let Some(block) = window.head(at)?.filter(|block| self.is_next(used, block)) else {
            return match self.is_synced_behind(used, self.at)? {
                true => Err(damaged(&used.file.path, at, "a block of the journal is not what was written")),
                false => Ok(None),
            };
        };
        let mut body_at = at + block.head_bytes();
        for row in &block.rows {
            if !check(row, window.get(body_at, row.bytes as usize)?) {
                if !self.is_synced_behind(used, self.at)? {
                    return Ok(None);
                }
                if row.kind == EntryKind::Next {
                    return Err(damaged(&used.file.path, body_at, "the way to the next file is not what was written"));
                }
                // Where the head is whole it is known whom the damage is about.
            }
            body_at += u64::from(row.bytes);
        }
        Ok(Some(block))
    }

    fn is_next(&self, used: &InUse, block: &BlockHead) -> bool {
        block.file == used.head.number
            && block.position == self.at
            && self.previous_end.is_none_or(|end| block.previous_end == end)
            && block.end() <= used.head.position + used.head.bytes
    }

    /// Whether a later block says that what is at this position was synced.
    fn is_synced_behind(&self, used: &InUse, position: u64) -> Result<bool> {
        let later = self.slots.values().filter(|other| other.head.number > used.head.number);
        for used in std::iter::once(used).chain(later) {
            let mut window = Window::new(used);
            let mut at = position.saturating_sub(used.head.position);
            while at + 2 * PAGE_BYTES <= used.head.bytes {
                at += PAGE_BYTES;
                if let Some(block) = window.head(at)?
                    && block.file == used.head.number
                    && block.position == used.head.position + at
                    && block.synced > position
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn check(row: &Row, body: &[u8]) -> bool {
    body.len() == row.bytes as usize && checksum(body) == row.crc
}

/// A part of a file, read ahead.
struct Window<'f> {
    file: &'f JournalFile,
    bytes: Vec<u8>,
    from: u64,
}

impl<'f> Window<'f> {
    fn new(used: &'f InUse) -> Self {
        Self { file: &used.file, bytes: Vec::new(), from: 0 }
    }

    /// These bytes, or those of them that there are.
    fn get(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let is_there = at >= self.from && at + len as u64 <= self.from + self.bytes.len() as u64;
        if !is_there {
            self.bytes.resize(len.max(WINDOW_BYTES), 0);
            let read = self.file.file.read_at(&mut self.bytes, at).map_err(failed("read", &self.file.path))?;
            self.bytes.truncate(read);
            self.from = at;
        }
        let from = (at - self.from) as usize;
        Ok(&self.bytes[from..(from + len).min(self.bytes.len())])
    }

    fn head(&mut self, at: u64) -> Result<Option<BlockHead>> {
        let Some(bytes) = BlockHead::bytes_of(self.get(at, PAGE_BYTES as usize)?) else {
            return Ok(None);
        };
        Ok(BlockHead::decode(self.get(at, bytes)?))
    }
}
