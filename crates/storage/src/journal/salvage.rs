//! Salvage files: entries of a partition that cannot be served, put aside so that the journal can continue without
//! them.
//!
//! The file `<position>.salvage` is next to the partition's segments; its name is the position from which the journal
//! was read. It contains journal blocks without gaps from byte 0 on: their file number is 0, and positions count the
//! bytes of this file. A block without entries marks the end. Bodies are copied from the journal, damaged or not; their
//! checksums are those of the appended bodies. Batches in a part of a segment stay there; the entry is the part.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use engine::Result;

use super::block::{BlockHead, ENTRIES_MAX, EntryKind, Row, SegmentPart, checksum};
use super::parts::Parts;
use super::recover::{Found, Origin, Window};
use crate::disk::{Disk, DiskFile, damaged, failed};

/// Maximum bytes of one block, unless a single entry is larger.
const BLOCK_BYTES: usize = 256 << 10;

/// Salvage file that is being written.
pub(crate) struct Salvage {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    at: u64,
    rows: Vec<Row>,
    bodies: Vec<u8>,
    /// Last part of a segment that was added.
    last_part: Option<SegmentPart>,
}

/// Returns the path of a partition's salvage file for entries that were read from this position on.
pub(crate) fn path(dir: &Path, position: u64) -> PathBuf {
    dir.join(format!("{position:020}.salvage"))
}

impl Salvage {
    /// Creates a salvage file. An existing file of this name is left from an earlier recovery of the same entries, and
    /// is replaced.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, position: u64) -> Result<Self> {
        let path = path(dir, position);
        let create = || match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => disk.create(&path),
        };
        let file = create().map_err(failed("make", &path))?;
        Ok(Self { path, file, at: 0, rows: Vec::new(), bodies: Vec::new(), last_part: None })
    }

    pub(crate) fn push(&mut self, found: &Found<'_>) -> Result<()> {
        let Found { shard, stream, .. } = *found;
        match found.in_part.map(|in_part| in_part.part) {
            // Each of its batches is an entry.
            Some(part) if self.last_part == Some(part) => return Ok(()),
            Some(part) => {
                let body = part.encode();
                let bytes = body.len() as u32;
                let crc = checksum(&body);
                self.rows.push(Row { kind: EntryKind::Segment, shard, stream, bytes, crc });
                self.bodies.extend_from_slice(&body);
                self.last_part = Some(part);
            }
            None => {
                let (raw, crc) = found.raw;
                self.rows.push(Row { kind: found.kind, shard, stream, bytes: raw.len() as u32, crc });
                self.bodies.extend_from_slice(raw);
            }
        }
        if self.bodies.len() > BLOCK_BYTES || self.rows.len() == ENTRIES_MAX { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let block = BlockHead { file: 0, position: self.at, previous_end: self.at, synced: 0, rows };
        let mut bytes = Vec::new();
        block.encode(&mut bytes);
        bytes.append(&mut self.bodies);
        bytes.resize(block.block_bytes() as usize, 0);
        self.file.write_at(&mut [IoSlice::new(&bytes)], self.at).map_err(failed("write", &self.path))?;
        self.at = block.end();
        Ok(())
    }

    /// Completes the file and makes it durable.
    pub(crate) fn finish(mut self, disk: &dyn Disk) -> Result<()> {
        if !self.rows.is_empty() {
            self.write()?;
        }
        self.write()?;
        self.file.sync().map_err(failed("sync", &self.path))?;
        let dir = self.path.parent().unwrap_or(&self.path);
        disk.sync_dir(dir).map_err(failed("sync", dir))
    }
}

/// Passes every entry of a file to `each`, in order.
pub(crate) fn read(
    disk: &dyn Disk,
    path: &Path,
    parts: &Parts,
    each: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    let file = disk.open(path).map_err(failed("open", path))?;
    let mut window = Window::new(path, &*file);
    let mut at = 0;
    loop {
        let block = window.head(at)?.filter(|block| block.file == 0 && block.position == at);
        let block = block.ok_or_else(|| damaged(path, at, "a block is damaged"))?;
        let mut body_at = at + block.head_bytes();
        for row in &block.rows {
            let found = window.found(row, body_at)?;
            match &found.body {
                Ok(body) if row.kind == EntryKind::Segment => {
                    if let Some(part) = parts.read(row.stream, SegmentPart::decode(body)?)? {
                        // It is not known whether the part is durable.
                        let block = Origin { position: u64::MAX, ..Origin::default() };
                        part.each((row.shard, row.stream), block, each)?;
                    }
                }
                _ => each(found)?,
            }
            body_at += u64::from(row.bytes);
        }
        if block.rows.is_empty() {
            return Ok(());
        }
        at = block.end();
    }
}
