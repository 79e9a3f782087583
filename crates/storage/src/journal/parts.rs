//! Batches that entries of the kind segment refer to, as recovery, inspection and repair read them.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use engine::shard::ShardId;
use engine::{Offset, RecordBatch, Result};

use super::block::{EntryKind, SegmentPart};
use super::recover::{Found, Origin};
use crate::disk::{Disk, damaged};
use crate::partition::scan::{self, Epochs, Spot};
use crate::partition::segments::names::log_name;

/// Reader of parts of segments.
pub(crate) struct Parts {
    disk: Arc<dyn Disk>,
    topics: PathBuf,
    /// Offset up to which the checkpoint describes each partition.
    known: HashMap<u64, Offset>,
}

/// Part of a segment, with its bytes.
pub(crate) struct PartRead {
    part: SegmentPart,
    path: PathBuf,
    spots: Vec<Spot>,
    /// `true` if the file exists and the system cannot read it.
    is_unreadable: bool,
}

/// Source of an entry that is not in the journal but in a part of a segment.
#[derive(Clone, Copy, Debug)]
pub struct InPart<'j> {
    /// Batch; `None` if it is damaged.
    pub batch: Option<&'j RecordBatch>,
    pub part: SegmentPart,
    /// Position of the block that refers to the part.
    pub block: u64,
}

impl Parts {
    /// Creates a reader. `known`: offset up to which the checkpoint describes each partition.
    pub(crate) fn new(disk: &Arc<dyn Disk>, data_dir: &Path, known: HashMap<u64, Offset>) -> Self {
        Self { disk: disk.clone(), topics: data_dir.join("topics"), known }
    }

    /// Returns the topics in the checkpoint.
    pub(crate) fn topics(&self) -> BTreeSet<u32> {
        self.known.keys().map(|stream| (stream >> 32) as u32).collect()
    }

    /// Reads a part. `None` if the checkpoint describes all of it: its file may not exist any more.
    pub(crate) fn read(&self, stream: u64, part: SegmentPart) -> Result<Option<PartRead>> {
        if self.known.get(&stream).is_some_and(|known| part.to_offset <= *known) {
            return Ok(None);
        }
        let [topic, partition] = [stream >> 32, stream & u64::from(u32::MAX)].map(|number| number.to_string());
        let path = self.topics.join(topic).join(partition).join(log_name(part.base, part.generation));
        let read = self.disk.open(&path).and_then(|file| file.read((part.to - part.from) as usize, part.from));
        let (bytes, failed) = match read {
            Ok(bytes) => (Bytes::from(bytes), None),
            Err(error) => (Bytes::new(), Some(error)),
        };
        let is_missing = failed.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
        let is_unreadable = failed.is_some() && !is_missing;
        let mut spots = scan::spots(&bytes, part.from_offset, part.to_offset, Epochs::Zero);
        let what = match failed {
            Some(_) if is_missing => Some("the file is missing".to_owned()),
            Some(error) => Some(format!("it cannot be read: {error}")),
            None => ((bytes.len() as u64) < part.to - part.from).then(|| "the file ends too early".to_owned()),
        };
        if let Some(what) = what {
            // The scan may have noticed only that batches are missing.
            spots.pop_if(|spot| matches!(spot, Spot::Damage { bytes: 0, .. }));
            spots.push(Spot::Damage { at: bytes.len() as u64, bytes: 0, what });
        }
        Ok(Some(PartRead { part, path, spots, is_unreadable }))
    }
}

impl PartRead {
    /// Returns `true` if the part was not written completely, or was damaged or removed later. It is not known of a
    /// file that cannot be read.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.is_unreadable && self.spots.iter().any(|spot| matches!(spot, Spot::Damage { .. }))
    }

    /// Passes the batches of the part to `each`, as if they were entries of this block.
    pub(crate) fn each(
        &self,
        (shard, stream): (ShardId, u64),
        block: Origin,
        each: &mut dyn FnMut(Found<'_>) -> Result<()>,
    ) -> Result<()> {
        for spot in &self.spots {
            let (body, batch) = match spot {
                Spot::Batch { batch, .. } => (Ok(&batch.bytes()[..]), Some(batch)),
                Spot::Damage { at, what, .. } => (Err(damaged(&self.path, self.part.from + at, what)), None),
            };
            let in_part = Some(InPart { batch, part: self.part, block: block.position });
            each(Found { kind: EntryKind::Batch, shard, stream, block, body, raw: (&[], 0), in_part })?;
        }
        Ok(())
    }
}
