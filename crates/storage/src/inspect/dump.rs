//! Dump of one file of a data directory: the entries of a journal, the batches of a segment, or the rows of an index.
//! The file need not be in a data directory, and it is not changed.

use std::path::Path;

use bytes::Bytes;
use engine::catalog::Change;
use engine::{Error, Offset, RecordBatch, Result};

use crate::apply::start_of;
use crate::disk::{Disk, failed, other_version, read_whole};
use crate::journal::block::{
    BlockHead, EntryKind, FILE_VERSION, FileHead, NotAHead, PAGE_BYTES, SegmentPart, checksum, u32_at,
};
use crate::partition::index::{Index, IndexRow};
use crate::partition::scan::{self, Epochs, Spot};

/// Part of a file, in the order of its bytes.
#[derive(Clone, Debug)]
pub enum Item {
    /// Beginning of a file of the journal.
    File(FileHead),
    /// Entry of the journal, or of a salvage file.
    Entry {
        at: u64,
        block: u64,
        stream: u64,
        bytes: u32,
        content: EntryContent,
    },
    /// Block without entries: all before this position was synced.
    Seal {
        at: u64,
        block: u64,
        synced: u64,
    },
    Batch {
        at: u64,
        batch: RecordBatch,
    },
    Row(IndexRow),
    Damage {
        at: u64,
        what: String,
    },
}

/// Contents of an entry.
#[derive(Clone, Debug)]
pub enum EntryContent {
    Batch(RecordBatch),
    Catalog(Change),
    Start(Offset),
    View,
    /// Part of a segment: its batches are there.
    Segment(SegmentPart),
    /// Number and slot of the file in which the journal continues.
    Next(u64, u32),
    /// State of the consensus of a shard, in the directory of a node of a cluster.
    Save,
    /// Change of the nodes of a cluster.
    Cluster,
    Damaged(EntryKind, String),
}

/// Passes the items of a file to `each`. The name of a file determines its kind.
pub fn dump(disk: &dyn Disk, path: &Path, each: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
    let bytes = read_whole(disk, path).map_err(failed("read", path))?;
    let bytes = bytes.ok_or_else(|| Error::not_found(format!("there is no file {}", path.display())))?;
    let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    match extension.as_str() {
        "journal" => journal(path, &bytes, each),
        "salvage" => blocks(&bytes, 0, |block, at| block.file == 0 && block.position == at, each),
        "log" => segment(path, Bytes::from(bytes), each),
        "index" => match Index::rows_of(&bytes) {
            Some(rows) => rows.into_iter().try_for_each(|row| each(Item::Row(row))),
            None => each(Item::Damage { at: 0, what: "the index is incomplete; the broker rebuilds it".into() }),
        },
        _ => Err(Error::invalid(format!(
            "{}: a file to dump ends with .journal, .salvage, .log or .index; for the checkpoint, inspect its \
             directory",
            path.display()
        ))),
    }
}

fn journal(path: &Path, bytes: &[u8], each: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
    let head = match FileHead::decode(bytes) {
        Ok(head) => head,
        Err(NotAHead::Version(version)) => return Err(other_version(path, version, FILE_VERSION)),
        Err(NotAHead::Other) if bytes.iter().all(|byte| *byte == 0) => return Ok(()),
        Err(NotAHead::Other) => {
            return each(Item::Damage { at: 0, what: "its header does not match its checksum".into() });
        }
    };
    each(Item::File(head))?;
    let is_of_it = |block: &BlockHead, at: u64| block.file == head.number && block.position == head.position + at;
    blocks(bytes, PAGE_BYTES, is_of_it, each)
}

/// Dumps all blocks that are in their place. Pages between them are damaged if a block follows; otherwise they were not
/// written since the file was used before.
fn blocks(
    bytes: &[u8],
    from: u64,
    is_in_place: impl Fn(&BlockHead, u64) -> bool,
    each: &mut dyn FnMut(Item) -> Result<()>,
) -> Result<()> {
    let mut at = from;
    let mut gap = None;
    while at < bytes.len() as u64 {
        let Some(block) = BlockHead::decode(&bytes[at as usize..]).filter(|block| is_in_place(block, at)) else {
            gap.get_or_insert(at);
            at += PAGE_BYTES;
            continue;
        };
        if let Some(at) = gap.take() {
            each(Item::Damage { at, what: "a block of the journal is damaged".into() })?;
        }
        if block.rows.is_empty() {
            each(Item::Seal { at, block: block.position, synced: block.synced })?;
        }
        let mut body_at = at + block.head_bytes();
        for row in &block.rows {
            let body = bytes.get(body_at as usize..(body_at + u64::from(row.bytes)) as usize);
            let content = match body.filter(|body| checksum(body) == row.crc) {
                Some(body) => decode(row.kind, row.stream, body)
                    .unwrap_or_else(|error| EntryContent::Damaged(row.kind, error.message)),
                None => EntryContent::Damaged(row.kind, "an entry does not match its checksum".into()),
            };
            each(Item::Entry { at: body_at, block: block.position, stream: row.stream, bytes: row.bytes, content })?;
            body_at += u64::from(row.bytes);
        }
        at += block.block_bytes();
    }
    Ok(())
}

fn decode(kind: EntryKind, stream: u64, body: &[u8]) -> Result<EntryContent> {
    Ok(match kind {
        EntryKind::Batch => EntryContent::Batch(RecordBatch::parse(Bytes::copy_from_slice(body))?),
        EntryKind::Catalog => EntryContent::Catalog(Change::decode(body)?),
        EntryKind::Start => EntryContent::Start(start_of(body)?),
        EntryKind::View => EntryContent::View,
        EntryKind::Segment => EntryContent::Segment(SegmentPart::decode(body)?),
        EntryKind::Save => EntryContent::Save,
        EntryKind::Cluster => EntryContent::Cluster,
        EntryKind::Next if body.len() == 4 => EntryContent::Next(stream, u32_at(body, 0)),
        EntryKind::Next => return Err(Error::malformed(format!("a slot has 4 bytes, not {}", body.len()))),
    })
}

/// Dumps a segment, whose first offset is in its name. Bytes after the part that the checkpoint knows are shown as
/// well.
fn segment(path: &Path, bytes: Bytes, each: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let base = stem.split('-').next().and_then(|base| base.parse().ok());
    let base: Offset = base.ok_or_else(|| {
        Error::invalid(format!("{}: the name of a segment begins with its first offset", path.display()))
    })?;
    // A write of whole pages leaves zeros after its last batch.
    let is_rest_of_page = |at: u64| {
        let rest = &bytes[at as usize..];
        rest.len() < PAGE_BYTES as usize && rest.iter().all(|byte| *byte == 0)
    };
    for spot in scan::spots(&bytes, base, scan::UNKNOWN_END, Epochs::Terms) {
        if matches!(spot, Spot::Damage { at, .. } if is_rest_of_page(at)) {
            continue;
        }
        each(match spot {
            Spot::Batch { at, batch } => Item::Batch { at, batch },
            Spot::Damage { at, what, .. } => Item::Damage { at, what },
        })?;
    }
    Ok(())
}
