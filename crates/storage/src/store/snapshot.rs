//! Snapshot of a store: its committed topics and records at one position of the log, to be read while the store
//! continues.
//!
//! A snapshot is a manifest with pinned files. What a node of a cluster fetches from the leader is the same manifest
//! with the same batches, and [`Store::begin_install`] takes both; but a node gets the log that follows as well, so
//! what is deleted in the meantime need not be sent to it. A snapshot has nothing that follows, so it keeps all files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::Mutex;

use super::Store;
use super::manifest::{Manifest, PartitionExtent};
use crate::disk::{Disk, damaged};
use crate::partition::segments::{CopiedSegment, View};
use crate::pins::Pin;

/// Maximum number of attempts: one fails if a topic was deleted or a partition compacted at the same moment.
const TRIES_MAX: usize = 20;

/// Committed records of a store at one position of its log.
pub struct Snapshot {
    manifest: Manifest,
    partitions: BTreeMap<u64, (PartitionExtent, Vec<CopiedSegment>)>,
    disk: Arc<dyn Disk>,
    /// Segment that was read last: usually the next read continues in it.
    open: Mutex<Option<(PathBuf, View)>>,
    pin: Pin,
}

impl Store {
    /// Takes a snapshot. Publishers wait for a moment, while the state of all partitions is noted. `skips_sqlite`:
    /// leaves out topics in SQLite, which have no order in common with the log; otherwise their existence is an error.
    pub fn snapshot(&self, skips_sqlite: bool) -> Result<Snapshot> {
        let sqlite_topics = self.sqlite.get().map_or(0, |sqlite| sqlite.topic_count());
        if sqlite_topics > 0 && !skips_sqlite {
            let message = format!(
                "{sqlite_topics} topics are in SQLite, which a backup does not include: back up the rest with \
                 --without-sqlite, and copy queues.sqlite with `sqlite3 queues.sqlite '.backup FILE'`"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let pin = self.shared.pins.hold()?;
        for _ in 0..TRIES_MAX {
            // Most of what is in no segment is written before the moment that counts.
            self.checkpoint()?;
            if let Some((manifest, partitions)) = self.cut()? {
                let disk = self.shared.disk.clone();
                pin.complete()?;
                return Ok(Snapshot { manifest, partitions, disk, open: Mutex::default(), pin });
            }
        }
        Err(Error::busy("topics are deleted or compacted all the time: try the backup again later"))
    }

    /// Notes the state of everything at one position of the log. Returns `None` if it changed before the segments were
    /// noted.
    #[expect(clippy::type_complexity, reason = "the two parts of a snapshot")]
    fn cut(&self) -> Result<Option<(Manifest, BTreeMap<u64, (PartitionExtent, Vec<CopiedSegment>)>)>> {
        let log = self.shared.log.get().ok_or_else(|| Error::busy("the journal is not open yet"))?;
        // A checkpoint drops segments before the start of their partition.
        let _checkpoint = self.checkpoint.lock();
        let mut noted = None;
        log.still(&mut || noted = Some((self.manifest(), self.all_partitions())));
        let Some((manifest, partitions)) = noted else {
            return Err(Error::new(ErrorKind::Internal, "the log did not show its state"));
        };
        let open: BTreeMap<_, _> = partitions.into_iter().collect();
        let mut copied = BTreeMap::new();
        for (stream, extent) in manifest.extents() {
            let Some(partition) = open.get(&stream) else { return Ok(None) };
            let Some(segments) = partition.copied(extent, (self.clock)())? else { return Ok(None) };
            copied.insert(stream, (extent.clone(), segments));
        }
        Ok(Some((manifest, copied)))
    }
}

impl Snapshot {
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the bytes of all segments, which are about those of the records.
    pub fn bytes(&self) -> u64 {
        self.partitions.values().flat_map(|(_, segments)| segments).map(|segment| segment.info.bytes).sum()
    }

    /// Returns `true` if the snapshot has ended: nothing was read for too long, or the disk is full.
    pub fn is_over(&self) -> bool {
        self.pin.is_over()
    }

    /// Reads batches of a partition from the one with the record at an offset on, up to `bytes_max` bytes but at least
    /// one; none at the end of the snapshot. Fails with `OutOfRange` if the snapshot has ended. May block on a file.
    pub fn read(&self, stream: u64, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        self.pin.keep()?;
        let (extent, segments) =
            self.partitions.get(&stream).ok_or_else(|| Error::not_found("the backup has no such partition"))?;
        if from < extent.start {
            let message = format!("the partition begins at {}, so it cannot be read from {from}", extent.start);
            return Err(Error::new(ErrorKind::OutOfRange, message));
        }
        if from >= extent.end {
            return Ok(Vec::new());
        }
        let at = segments.partition_point(|segment| segment.info.end <= from);
        let read = segments.get(at).filter(|segment| segment.info.base <= from).map(|segment| {
            let mut batches = self.read_segment(segment, from, bytes_max)?;
            batches.truncate(batches.partition_point(|batch| batch.base_offset() < extent.end));
            match batches.last() {
                Some(last) if last.next_offset() <= extent.end => Ok(batches),
                _ => Err(damaged(&segment.path, 0, format!("it has no batches from {from} to {}", extent.end))),
            }
        });
        match read {
            // A file may be missing because the snapshot ended in the meantime.
            Some(Err(error)) => self.pin.keep().and(Err(error)),
            Some(batches) => batches,
            None => Err(Error::new(ErrorKind::Corrupt, format!("records from {from} on are in no segment"))),
        }
    }

    fn read_segment(&self, segment: &CopiedSegment, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let mut open = self.open.lock();
        let mut view = match open.take() {
            Some((path, view)) if path == segment.path => view,
            _ => segment.view(&self.disk)?,
        };
        let batches = view.part(from)?.read(from, bytes_max)?;
        *open = Some((segment.path.clone(), view));
        Ok(batches)
    }
}
