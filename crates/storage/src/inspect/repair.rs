//! Repair of a damaged directory: a broker can then serve it, with all data that is still readable.
//!
//! Lost records keep their offsets: a batch without records replaces each range that cannot be read. Damaged files are
//! rewritten without the damage, and the originals are kept as `<name>.damaged`. The order of steps is such that after
//! a crash either the old checkpoint with the old files exists, or the new one with the new files.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use engine::catalog::Change;
use engine::producers::Producers;
use engine::record::BATCH_HEADER_BYTES;
use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Result};

use super::dump::{self, EntryContent, Item};
use super::{Inspection, cause, names};
use crate::apply::start_of;
use crate::checkpoint::{Catalog, Checkpoint, ends};
use crate::disk::{Disk, DiskFile, failed, make_partition_dir, replace};
use crate::info::{PartitionInfo, SegmentInfo};
use crate::journal::JournalSettings;
use crate::journal::block::{BlockHead, EntryKind, FileHead, PAGE_BYTES, Row, SegmentPart, checksum};
use crate::journal::recover::{self, Found, Origin, Recovery};
use crate::journal::salvage::{self, Salvage};
use crate::partition::scan::{self, Epochs, Spot, span_of};
use crate::partition::segments::{index_name, log_name};
use crate::shared::StoreSettings;
use crate::state::{State, partition_mut};
use crate::store::Store;

/// Steps of a repair, and the losses they cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Reason why the journal cannot be read as a whole. Its readable entries are kept; the rest has to be given up.
    pub journal: Option<String>,
    pub mends: Vec<Mend>,
    /// Indexes that do not match their segments: they are removed, and created again when they are needed.
    pub indexes: Vec<PathBuf>,
}

/// Partition to be reconstructed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mend {
    stream: u64,
    pub topic: String,
    pub partition: u32,
    /// Offsets of records that cannot be read, as ranges from the first to before the second.
    pub lost: Vec<(Offset, Offset)>,
    /// End offset after the repair.
    pub end: Offset,
    /// Number of entries after that end that cannot be read: the number of their records is unknown.
    pub lost_at_end: u64,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn records_lost(&self) -> u64 {
        self.mends.iter().flat_map(|mend| &mend.lost).map(|(from, to)| to - from).sum()
    }
}

/// Readable entries of a partition outside its segments, in the order in which they were appended.
#[derive(Clone, Debug, Default)]
struct Tail {
    spans: Vec<(Offset, Offset)>,
    start: Offset,
    /// Offset after the last record of the entries so far, for a broker that reads them in order.
    end: Offset,
    /// Number of entries since the last readable one.
    unread: u64,
    is_damaged: bool,
}

impl Tail {
    fn push(&mut self, kind: EntryKind, body: Option<&[u8]>) {
        match (kind, body) {
            (EntryKind::Batch, Some(body)) if let Ok(span) = span_of(body) => {
                self.spans.push(span);
                self.unread = 0;
                self.reach(span);
            }
            (EntryKind::Start, Some(body)) if let Ok(start) = start_of(body) => {
                self.start = self.start.max(start);
            }
            _ => {
                self.unread += 1;
                self.is_damaged = true;
            }
        }
    }

    /// Continues with records between two offsets. After a gap a broker refuses the partition, even if a later entry
    /// describes a segment with the missing records.
    fn reach(&mut self, (from, to): (Offset, Offset)) {
        self.is_damaged |= from > self.end;
        self.end = self.end.max(to);
    }
}

/// Part of a salvage file.
enum Put {
    Batch(RecordBatch),
    Start(Offset),
    /// Part of a segment, which contains the batches.
    Part(SegmentPart),
    Damage,
}

/// Topics, and their entries outside the segments.
#[derive(Clone, Debug)]
struct Known {
    catalog: Catalog,
    tails: HashMap<u64, Tail>,
}

impl Known {
    fn push(&mut self, found: &Found<'_>) {
        if let Some(in_part) = &found.in_part {
            return self.extend(found.stream, &in_part.part);
        }
        match (found.kind, &found.body) {
            (EntryKind::Segment, Ok(body)) if let Ok(part) = SegmentPart::decode(body) => {
                self.extend(found.stream, &part);
            }
            (EntryKind::Catalog, Ok(body)) => {
                if let Ok(change) = Change::decode(body) {
                    self.catalog.apply(&change);
                }
            }
            (EntryKind::Batch | EntryKind::Start | EntryKind::Segment, body) => {
                self.tail(found.stream).push(found.kind, body.as_ref().ok().copied());
            }
            _ => {}
        }
    }

    /// Extends the segments of a partition: their batches are read there.
    fn extend(&mut self, stream: u64, part: &SegmentPart) {
        self.tail(stream).reach((part.from_offset, part.to_offset));
        if let Some(info) = partition_mut(&mut self.catalog, stream) {
            info.extend(part);
        }
    }

    fn tail(&mut self, stream: u64) -> &mut Tail {
        let end = || partition_of(&self.catalog, stream).end();
        self.tails.entry(stream).or_insert_with(|| Tail { end: end(), ..Tail::default() })
    }
}

impl Inspection {
    /// Reads everything and returns the steps of a repair. Changes nothing.
    pub fn plan(&self) -> Result<Plan> {
        let Checkpoint { directory, origin, catalog, state } = &self.checkpoint;
        if state.is_some() {
            let message = "the directory belongs to a node of a cluster; the other nodes have all committed records: \
                           remove the node from the cluster, and replace it by one with an empty directory and a new \
                           number";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut state = State::new(self.disk.clone(), &self.dir, StoreSettings::default(), Epochs::Zero);
        state.adopt(catalog.clone());
        let mut plan = Plan::default();
        let mut known = Known { catalog: catalog.clone(), tails: HashMap::new() };
        for (stream, dir, info) in self.partitions() {
            self.each_put_aside(&dir, info, &mut |put| {
                match put {
                    Put::Part(part) => known.extend(stream, &part),
                    Put::Batch(batch) => {
                        known.tail(stream).push(EntryKind::Batch, Some(&batch.bytes()[..BATCH_HEADER_BYTES]))
                    }
                    Put::Start(start) => known.tail(stream).push(EntryKind::Start, Some(&start.to_le_bytes())),
                    Put::Damage => known.tail(stream).push(EntryKind::Batch, None),
                }
                Ok(())
            })?;
        }
        let mut with_journal = known.clone();
        let mut push = |found: &Found<'_>| {
            with_journal.push(found);
            Ok(true)
        };
        let read = Recovery::open(&self.disk, &self.dir, *directory, *origin, ends(catalog))
            .and_then(|journal| state.examine(&journal, None, &mut push, &mut |_| {}).1);
        match read {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::Unsupported => return Err(error),
            Err(error) => {
                plan.journal = Some(cause(&error.message).to_owned());
                with_journal = known;
                self.read_journal_anyhow(&mut |found| {
                    with_journal.push(&found);
                    Ok(())
                })?;
            }
        }
        let Known { catalog, mut tails } = with_journal;
        for (stream, name) in names(&catalog) {
            let info = partition_of(&catalog, stream);
            let tail = tails.remove(&stream).unwrap_or_default();
            plan.mends.extend(self.plan_one(stream, name, &info, tail, &mut plan.indexes));
        }
        Ok(plan)
    }

    fn dir_of(&self, stream: u64) -> PathBuf {
        self.partition_dir((stream >> 32) as u32, (stream & u64::from(u32::MAX)) as usize)
    }

    /// Returns the losses of a partition, if it has any damage.
    fn plan_one(
        &self,
        stream: u64,
        (topic, partition): (String, u32),
        info: &PartitionInfo,
        tail: Tail,
        indexes: &mut Vec<PathBuf>,
    ) -> Option<Mend> {
        let dir = self.dir_of(stream);
        let mut spans = Vec::new();
        let mut is_damaged = tail.is_damaged;
        for segment in &info.segments {
            let spots = scan::segment(&*self.disk, &dir, segment, Epochs::Zero).ok();
            is_damaged |= !is_whole(spots.as_deref());
            let spots = spots.unwrap_or_default();
            let batches = spots.iter().filter_map(batch_of);
            spans.extend(batches.map(|batch| (batch.base_offset(), batch.next_offset())));
            if let Some(Err(_)) = scan::index(&*self.disk, &dir, segment, &spots) {
                indexes.push(dir.join(index_name(segment.base, segment.generation)));
            }
        }
        spans.extend(tail.spans);
        // Damage before the start does not concern readers, but the file has to be replaced.
        let (lost, end) = gaps(info.start.max(tail.start), spans, info.end());
        let mend = Mend { stream, topic, partition, lost, end, lost_at_end: tail.unread };
        (is_damaged || !mend.lost.is_empty()).then_some(mend)
    }

    /// Passes the salvaged entries of a partition to `each` in order, with a [`Put::Damage`] for each part that cannot
    /// be read.
    fn each_put_aside(&self, dir: &Path, info: &PartitionInfo, each: &mut dyn FnMut(Put) -> Result<()>) -> Result<()> {
        for position in &info.salvages {
            let path = salvage::path(dir, *position);
            let mut has_end = false;
            let read = dump::dump(&*self.disk, &path, &mut |item| {
                has_end = matches!(item, Item::Seal { .. });
                match item {
                    Item::Entry { content: EntryContent::Batch(batch), .. } => each(Put::Batch(batch)),
                    Item::Entry { content: EntryContent::Start(start), .. } => each(Put::Start(start)),
                    Item::Entry { content: EntryContent::Segment(part), .. } => each(Put::Part(part)),
                    Item::Entry { .. } | Item::Damage { .. } => each(Put::Damage),
                    _ => Ok(()),
                }
            });
            match read {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                read => read?,
            }
            if !has_end {
                each(Put::Damage)?;
            }
        }
        Ok(())
    }

    /// Reads every entry of every block that is in its place, ignoring anything between them.
    fn read_journal_anyhow(&self, each: &mut dyn FnMut(Found<'_>) -> Result<()>) -> Result<()> {
        let mut files = BTreeMap::new();
        for file in recover::files(&*self.disk, &self.journal_dir())? {
            let bytes = crate::disk::read_whole(&*self.disk, &file.path).map_err(failed("read", &file.path))?;
            let bytes = bytes.unwrap_or_default();
            // A file whose head is lost is identified by its blocks.
            let head = file.head.or_else(|| head_by_blocks(self.checkpoint.directory, &bytes));
            if let Some(head) = head.filter(|head| {
                head.number >= self.checkpoint.origin.number && head.directory == self.checkpoint.directory
            }) {
                files.insert(head.number, (head, bytes));
            }
        }
        for (head, bytes) in files.values() {
            let mut at = PAGE_BYTES;
            while at < bytes.len() as u64 {
                let is_in_place = |block: &BlockHead| {
                    block.file == head.number
                        && block.position == head.position + at
                        && block.position >= self.checkpoint.origin.position
                };
                let Some(block) = BlockHead::decode(&bytes[at as usize..]).filter(is_in_place) else {
                    at += PAGE_BYTES;
                    continue;
                };
                let mut body_at = (at + block.head_bytes()) as usize;
                for Row { kind, shard, stream, bytes: len, crc } in &block.rows {
                    let raw = bytes.get(body_at..body_at + *len as usize).unwrap_or_default();
                    let body = if checksum(raw) == *crc { Ok(raw) } else { Err(checksum_mismatch()) };
                    let raw = (raw, *crc);
                    let block = Origin::default();
                    each(Found { kind: *kind, shard: *shard, stream: *stream, block, body, raw, in_part: None })?;
                    body_at += *len as usize;
                }
                at += block.block_bytes();
            }
        }
        Ok(())
    }

    /// Passes the salvaged batches between two offsets to `each`.
    fn each_batch_aside(
        &self,
        dir: &Path,
        info: &PartitionInfo,
        (from, to): (Offset, Offset),
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<()> {
        self.each_put_aside(dir, info, &mut |put| match put {
            Put::Batch(batch) if from <= batch.base_offset() && batch.next_offset() <= to => each(batch),
            _ => Ok(()),
        })
    }

    /// Executes the steps of [`Inspection::plan`]. The journal is given up only if `drops_journal` is set.
    pub fn repair(mut self, drops_journal: bool, settings: StoreSettings, clock: fn() -> u64) -> Result<Self> {
        let plan = self.plan()?;
        if let Some(why) = &plan.journal {
            if !drops_journal {
                return Err(Error::new(ErrorKind::Corrupt, why.clone()));
            }
            self.drop_journal()?;
        }
        for path in &plan.indexes {
            self.disk.remove(path).map_err(failed("remove", path))?;
        }
        // The directory is opened as by a broker: entries of the journal go to their place, or are put aside, and a new
        // journal begins.
        let disk = self.disk.clone();
        let dir = self.dir.clone();
        drop(self);
        let damaged: Vec<(u64, Error)> = plan.mends.iter().map(|mend| (mend.stream, checksum_mismatch())).collect();
        let (store, _) = Store::open_except(disk.clone(), &dir, settings, clock, &damaged, None, &mut |_| {})?;
        store.stop()?;
        drop(store);
        self = Self::open(disk, &dir)?;
        self.mend(&plan.mends, clock())?;
        Ok(self)
    }

    /// Saves all readable entries of the journal to salvage files of their partitions, and begins a new journal.
    fn drop_journal(&mut self) -> Result<()> {
        let mut catalog = self.checkpoint.catalog.clone();
        let mut salvages = BTreeMap::new();
        let position = self.checkpoint.origin.position;
        self.read_journal_anyhow(&mut |found| {
            match (found.kind, &found.body) {
                (EntryKind::Catalog, Ok(body)) => catalog.apply(&Change::decode(body)?),
                (EntryKind::Batch | EntryKind::Start | EntryKind::Segment, _)
                    if partition_mut(&mut catalog, found.stream).is_some() =>
                {
                    let salvage = match salvages.entry(found.stream) {
                        Entry::Occupied(salvage) => salvage.into_mut(),
                        Entry::Vacant(none) => {
                            let dir = self.dir_of(found.stream);
                            make_partition_dir(&*self.disk, &dir).map_err(failed("make", &dir))?;
                            none.insert(Salvage::create(&*self.disk, &dir, position)?)
                        }
                    };
                    salvage.push(&found)?;
                }
                _ => {}
            }
            Ok(())
        })?;
        for (stream, salvage) in salvages {
            if let Some(info) = partition_mut(&mut catalog, stream) {
                salvage.finish(&*self.disk)?;
                info.salvages.push(position);
            }
        }
        let old = recover::files(&*self.disk, &self.journal_dir())?;
        let origin = self.begin_journal(&old)?;
        self.write_checkpoint(Checkpoint { origin, catalog, ..self.checkpoint.clone() })?;
        for file in old {
            put_aside(&*self.disk, &file.path)?;
        }
        self.disk.sync_dir(&self.journal_dir()).map_err(failed("sync", &self.journal_dir()))
    }

    /// Creates a journal file that comes after all others.
    fn begin_journal(&self, old: &[recover::JournalFile]) -> Result<Origin> {
        let heads = || old.iter().filter_map(|file| file.head);
        let Origin { number, position, slot } = self.checkpoint.origin;
        let bytes = heads().map(|head| head.bytes).max().unwrap_or(JournalSettings::default().file_bytes);
        let number = heads().map(|head| head.number).fold(number, u64::max) + old.len() as u64 + 1;
        let position = heads().map(|head| head.position).fold(position, u64::max);
        // A file with an unknown position may come after the last known one, and be larger than it.
        let largest = old.iter().map(|file| file.bytes).fold(bytes, u64::max);
        let position = (position + largest * (old.len() as u64 + 1)).next_multiple_of(bytes);
        let slots = old.iter().filter_map(|file| file.path.file_stem()?.to_str()?.parse().ok());
        let slot = slots.fold(slot, u32::max) + 1;
        let path = self.journal_dir().join(format!("{slot:06}.journal"));
        let head = FileHead { directory: self.checkpoint.directory, number, position, bytes };
        let make = || {
            let file = self.disk.create(&path)?;
            file.set_len(bytes)?;
            file.write_at(&mut [IoSlice::new(&head.encode())], 0)?;
            file.sync()?;
            self.disk.sync_dir(&self.journal_dir())
        };
        make().map_err(failed("make", &path))?;
        Ok(Origin { position: position + PAGE_BYTES, number, slot })
    }

    fn write_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let path = self.dir.join("checkpoint");
        replace(&*self.disk, &path, &checkpoint.encode()).map_err(failed("write", &path))?;
        self.checkpoint = checkpoint;
        Ok(())
    }

    /// Rewrites the damaged files of partitions.
    fn mend(&mut self, mends: &[Mend], now_ms: u64) -> Result<()> {
        let mut checkpoint = self.checkpoint.clone();
        let mut old = Vec::new();
        for Mend { stream, .. } in mends {
            if let Some(info) = partition_mut(&mut checkpoint.catalog, *stream) {
                *info = self.mend_one(&self.dir_of(*stream), info, now_ms, &mut old)?;
            }
        }
        self.write_checkpoint(checkpoint)?;
        old.iter().try_for_each(|path| put_aside(&*self.disk, path))?;
        let dirs: BTreeSet<&Path> = old.iter().filter_map(|path| path.parent()).collect();
        dirs.into_iter().try_for_each(|dir| self.disk.sync_dir(dir).map_err(failed("sync", dir)))
    }

    fn mend_one(&self, dir: &Path, info: &PartitionInfo, now_ms: u64, old: &mut Vec<PathBuf>) -> Result<PartitionInfo> {
        make_partition_dir(&*self.disk, dir).map_err(failed("make", dir))?;
        let mut info = info.clone();
        self.each_put_aside(dir, &info.clone(), &mut |put| {
            if let Put::Part(part) = put {
                info.extend(&part);
            }
            Ok(())
        })?;
        let info = &info;
        let mut mended = PartitionInfo { segments: Vec::new(), salvages: Vec::new(), ..info.clone() };
        let mut producers =
            if info.producers.is_empty() { Producers::default() } else { Producers::decode(info.producers.clone())? };
        let mut note = |batch: &RecordBatch, mended: &mut PartitionInfo| {
            if batch.base_offset() >= mended.producers_end {
                producers.replay(batch);
                mended.producers_end = batch.next_offset();
            }
        };
        for segment in &info.segments {
            let end = mended.segments.last().map_or(info.start.min(segment.base), |last| last.end);
            if end < segment.base {
                // The entry that describes the segment there cannot be read. The journal may have some of its batches.
                old.push(dir.join(log_name(end, 0)));
                let made = SegmentInfo { base: end, generation: segment.generation + 1, ..*segment };
                let mut writer = Writer::create(&*self.disk, dir, made)?;
                self.each_batch_aside(dir, info, (end, segment.base), &mut |batch| {
                    note(&batch, &mut mended);
                    writer.push(&batch)
                })?;
                mended.segments.push(writer.finish(segment.base)?);
            }
            let spots = scan::segment(&*self.disk, dir, segment, Epochs::Zero).ok();
            let batches = || spots.iter().flatten().filter_map(batch_of);
            if is_whole(spots.as_deref()) {
                batches().for_each(|batch| note(batch, &mut mended));
                let latest = batches().map(RecordBatch::max_timestamp_ms).max();
                let timestamp_ms_max = segment.timestamp_ms_max.max(latest.unwrap_or(i64::MIN));
                // Its last part may be in the system's memory only.
                let path = dir.join(log_name(segment.base, segment.generation));
                self.disk.open(&path).and_then(|file| file.sync()).map_err(failed("sync", &path))?;
                mended.segments.push(SegmentInfo { timestamp_ms_max, ..*segment });
                continue;
            }
            old.push(dir.join(log_name(segment.base, segment.generation)));
            let made = SegmentInfo { generation: segment.generation + 1, ..*segment };
            let mut writer = Writer::create(&*self.disk, dir, made)?;
            let mut all: BTreeMap<Offset, RecordBatch> =
                batches().map(|batch| (batch.base_offset(), batch.clone())).collect();
            // Batches in the segment since the last checkpoint were in the journal as well.
            self.each_batch_aside(dir, info, (segment.base, segment.end), &mut |batch| {
                all.entry(batch.base_offset()).or_insert(batch);
                Ok(())
            })?;
            for batch in all.values() {
                note(batch, &mut mended);
                writer.push(batch)?;
            }
            mended.segments.push(writer.finish(segment.end)?);
        }
        if !info.salvages.is_empty() {
            self.append_salvages(dir, info, now_ms, &mut note, &mut mended)?;
            old.extend(info.salvages.iter().map(|position| salvage::path(dir, *position)));
        }
        if !producers.is_empty() {
            let mut bytes = BytesMut::new();
            producers.encode(&mut bytes);
            mended.producers = bytes.freeze();
        }
        self.disk.sync_dir(dir).map_err(failed("sync", dir))?;
        Ok(mended)
    }

    /// Appends the salvaged entries as a segment after the others.
    fn append_salvages(
        &self,
        dir: &Path,
        info: &PartitionInfo,
        now_ms: u64,
        note: &mut dyn FnMut(&RecordBatch, &mut PartitionInfo),
        mended: &mut PartitionInfo,
    ) -> Result<()> {
        let end = info.end();
        mended.segments.retain(|segment| segment.bytes > 0);
        let made = SegmentInfo {
            base: end,
            end,
            bytes: 0,
            timestamp_ms_max: i64::MIN,
            // The append time is unknown: retention starts from now.
            appended_ms: now_ms,
            generation: 0,
        };
        let mut writer = Writer::create(&*self.disk, dir, made)?;
        self.each_put_aside(dir, info, &mut |item| match item {
            Put::Batch(batch) => {
                note(&batch, mended);
                writer.push(&batch)
            }
            Put::Start(start) => {
                mended.start = mended.start.max(start);
                Ok(())
            }
            Put::Part(_) | Put::Damage => Ok(()),
        })?;
        let end = writer.info.end;
        let segment = writer.finish(end)?;
        mended.start = mended.start.min(segment.end);
        if segment.bytes > 0 {
            mended.segments.push(segment);
        }
        Ok(())
    }
}

/// Segment that is rewritten.
struct Writer {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    info: SegmentInfo,
}

impl Writer {
    fn create(disk: &dyn Disk, dir: &Path, info: SegmentInfo) -> Result<Self> {
        let path = dir.join(log_name(info.base, info.generation));
        let create = || match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => disk.create(&path),
        };
        let file = create().map_err(failed("make", &path))?;
        let info = SegmentInfo { end: info.base, bytes: 0, timestamp_ms_max: i64::MIN, ..info };
        Ok(Self { path, file, info })
    }

    /// Appends a batch. A batch that is already present is skipped.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.base_offset() < self.info.end {
            return Ok(());
        }
        self.reach(batch.base_offset())?;
        self.write(batch)
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut slices = [IoSlice::new(batch.bytes())];
        self.file.write_at(&mut slices, self.info.bytes).map_err(failed("write", &self.path))?;
        self.info.bytes += batch.len() as u64;
        self.info.end = batch.next_offset();
        self.info.timestamp_ms_max = self.info.timestamp_ms_max.max(batch.max_timestamp_ms());
        Ok(())
    }

    /// Appends batches without records for lost offsets.
    fn reach(&mut self, to: Offset) -> Result<()> {
        while self.info.end < to {
            let next = to.min(self.info.end + i32::MAX as u64);
            let timestamp_ms = if self.info.bytes == 0 { 0 } else { self.info.timestamp_ms_max };
            self.write(&nothing(self.info.end, next, timestamp_ms)?)?;
        }
        Ok(())
    }

    fn finish(mut self, end: Offset) -> Result<SegmentInfo> {
        self.reach(end)?;
        self.file.sync().map_err(failed("sync", &self.path))?;
        Ok(self.info)
    }
}

/// Returns a batch without records for the offsets from one up to another.
fn nothing(from: Offset, to: Offset, timestamp_ms: i64) -> Result<RecordBatch> {
    let mut builder = BatchBuilder::new();
    builder.push(timestamp_ms, None, None, &[])?;
    let one = builder.finish().ok_or_else(|| Error::malformed("a batch of one record is empty"))?.stamp(from);
    let none = one.thinned(|_| false)?.reaching(to);
    none.ok_or_else(|| Error::too_large(format!("no batch reaches from offset {from} to {to}")))
}

/// Keeps a damaged file under another name, if it exists.
fn put_aside(disk: &dyn Disk, path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    match disk.rename(path, Path::new(&aside)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.map_err(failed("rename", path)),
    }
}

fn is_whole(spots: Option<&[Spot]>) -> bool {
    spots.is_some_and(|spots| spots.iter().all(|spot| matches!(spot, Spot::Batch { .. })))
}

fn batch_of(spot: &Spot) -> Option<&RecordBatch> {
    match spot {
        Spot::Batch { batch, .. } => Some(batch),
        Spot::Damage { .. } => None,
    }
}

/// Returns the gaps between spans from a start up to a known end, and the end of the spans.
fn gaps(start: Offset, mut spans: Vec<(Offset, Offset)>, end: Offset) -> (Vec<(Offset, Offset)>, Offset) {
    spans.sort_unstable();
    spans.push((end, end));
    let mut at = start;
    let mut gaps = Vec::new();
    for (base, next) in spans {
        if base > at {
            gaps.push((at, base));
        }
        at = at.max(next).max(base);
    }
    (gaps, at)
}

fn partition_of(catalog: &Catalog, wanted: u64) -> PartitionInfo {
    let topic = catalog.topics.get(&((wanted >> 32) as u32));
    let found = topic.and_then(|topic| topic.partitions.get((wanted & u64::from(u32::MAX)) as usize));
    found.cloned().unwrap_or_default()
}

fn checksum_mismatch() -> Error {
    Error::new(ErrorKind::Corrupt, "an entry does not match its checksum")
}

fn head_by_blocks(directory: u64, bytes: &[u8]) -> Option<FileHead> {
    let pages = (PAGE_BYTES as usize..bytes.len()).step_by(PAGE_BYTES as usize);
    let mut found = pages.filter_map(|at| Some((at as u64, BlockHead::decode(&bytes[at..])?)));
    let (at, block) = found.next()?;
    let position = block.position.checked_sub(at)?;
    Some(FileHead { directory, number: block.file, position, bytes: bytes.len() as u64 })
}
