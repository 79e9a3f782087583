//! Compaction: only the newest record of each key is kept.
//!
//! A turn makes two passes over sealed segments. The first pass collects the newest offset of each key in records
//! appended since the last turn; the second pass rewrites all batches without the records that have a newer one.
//! Offsets do not change: batches keep their places, and an empty batch is merged into the batch before it. A record
//! without a value, a tombstone, marks its key as deleted. It stays for a while, so that clients that read from the
//! start receive it, and is then removed.
//!
//! Records of aborted transactions are void: they never count as newest, and all of them are removed. The markers that
//! ended transactions stay as long as tombstones do. Records that an open transaction may still change are not touched.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::producers::AbortedIndex;
use engine::{Error, ErrorKind, Offset, RecordBatch, Records, Result};

use super::index::Index;
use super::segments::{READ_BYTES, Segment, View, index_name, leave_index, log_name, remove_quietly};
use crate::disk::{Disk, DiskFile, failed};
use crate::info::{Compacted, CompactionSettings, CompactionStats, SegmentInfo};

impl std::ops::AddAssign for CompactionStats {
    fn add_assign(&mut self, other: Self) {
        self.turns += other.turns;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.records_removed += other.records_removed;
    }
}

/// Limits the rate at which a turn uses the disk, and ends the turn when the store stops.
pub(crate) struct Pace<'p> {
    bytes_per_s: u64,
    begin: Instant,
    bytes: u64,
    /// Waits for the given time; returns `false` if the turn has to end.
    wait: &'p dyn Fn(Duration) -> bool,
}

impl<'p> Pace<'p> {
    pub(crate) fn new(bytes_per_s: u64, wait: &'p dyn Fn(Duration) -> bool) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), begin: Instant::now(), bytes: 0, wait }
    }

    fn spend(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        if !(self.wait)(due.saturating_sub(self.begin.elapsed())) {
            return Err(Error::new(ErrorKind::ShuttingDown, "the store stops before the compaction is finished"));
        }
        Ok(())
    }
}

/// Newest offset of each key. Keys are represented by 128-bit hashes that a client cannot predict.
struct Newest {
    hashers: [RandomState; 2],
    offsets: HashMap<(u64, u64), Offset>,
}

impl Newest {
    fn id(&self, key: &[u8]) -> (u64, u64) {
        (self.hashers[0].hash_one(key), self.hashers[1].hash_one(key))
    }

    fn note(&mut self, key: &[u8], offset: Offset) {
        let id = self.id(key);
        self.offsets.insert(id, offset);
    }

    fn of(&self, key: &[u8]) -> Option<Offset> {
        self.offsets.get(&self.id(key)).copied()
    }
}

/// Turn of compaction: its source segments, as they were when it began, and their replacement.
pub(crate) struct Turn<'t, 'p> {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) segment_bytes: u64,
    /// Source segments. All of them are stable: they contain no open transaction.
    pub(crate) sources: Vec<SegmentInfo>,
    pub(crate) aborted: AbortedIndex,
    /// Returns a segment's view for readers.
    pub(crate) view: &'t dyn Fn(&SegmentInfo) -> Result<View>,
    pub(crate) pace: Pace<'p>,
}

/// Segments that replace the sources.
pub(crate) struct Outcome {
    pub(crate) sources: Vec<SegmentInfo>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) compacted: Compacted,
    pub(crate) stats: CompactionStats,
}

impl Turn<'_, '_> {
    /// Runs the turn. The new files are durable when it returns. After an error no new file is left.
    pub(crate) fn run(mut self, before: Compacted, settings: &CompactionSettings, now_ms: u64) -> Result<Outcome> {
        let (newest, to) = self.learn(before.to, settings.keys_max)?;
        // Sources that the first pass did not reach stay as they are.
        self.sources.retain(|source| source.base < to);
        let is_past = before.horizon_ms.saturating_add(settings.tombstone_retention_ms) <= now_ms;
        let tombstones_to = if is_past { before.horizon } else { 0 };
        let (horizon, horizon_ms) =
            if is_past || before.horizon == 0 { (to, now_ms) } else { (before.horizon, before.horizon_ms) };
        let mut output = Output::new(&self);
        let rewritten = self.rewrite(&newest, tombstones_to, &mut output).and_then(|()| output.finish());
        match rewritten {
            Ok((segments, stats)) => {
                let compacted = Compacted { to, horizon, horizon_ms };
                Ok(Outcome { sources: self.sources, segments, compacted, stats })
            }
            Err(error) => {
                output.discard();
                Err(error)
            }
        }
    }

    /// Collects the newest offset of each key from an offset on. Returns also the offset up to which it read.
    fn learn(&mut self, from: Offset, keys_max: usize) -> Result<(Newest, Offset)> {
        let mut newest = Newest { hashers: Default::default(), offsets: HashMap::new() };
        let mut to = from;
        for source in self.sources.iter().filter(|source| source.end > from) {
            (self.view)(source)?.each(&mut |batches| {
                self.pace.spend(bytes_of(batches))?;
                for batch in batches.iter().filter(|batch| batch.next_offset() > from) {
                    // If a producer sent a batch that does not decode, all its records stay.
                    let records = batch.records().ok().filter(|_| !self.aborted.has(batch));
                    for record in records.iter().flat_map(Records::iter).map_while(Result::ok) {
                        if let Some(key) = record.key {
                            newest.note(key, record.offset);
                        }
                    }
                    to = to.max(batch.next_offset());
                    if newest.offsets.len() >= keys_max {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            if newest.offsets.len() >= keys_max {
                break;
            }
        }
        Ok((newest, to))
    }

    fn rewrite(&mut self, newest: &Newest, tombstones_to: Offset, output: &mut Output) -> Result<()> {
        let aborted = &self.aborted;
        for source in &self.sources {
            output.appended_ms = output.appended_ms.max(source.appended_ms);
            (self.view)(source)?.each(&mut |batches| {
                let written_before = output.stats.written_bytes;
                for batch in batches {
                    let thin = match thinned(batch, aborted, newest, tombstones_to) {
                        Err(error) if error.kind != ErrorKind::TooLarge => {
                            tracing::debug!(
                                offset = batch.base_offset(),
                                %error,
                                "compaction leaves a batch unchanged"
                            );
                            batch.clone()
                        }
                        thin => thin?,
                    };
                    output.stats.records_removed += u64::from(batch.count() - thin.count());
                    output.push(thin)?;
                }
                output.stats.read_bytes += bytes_of(batches);
                self.pace.spend(bytes_of(batches) + output.stats.written_bytes - written_before)?;
                Ok(true)
            })?;
        }
        Ok(())
    }
}

fn thinned(batch: &RecordBatch, aborted: &AbortedIndex, newest: &Newest, tombstones_to: Offset) -> Result<RecordBatch> {
    if batch.is_control() {
        // Records of the aborted transaction were removed when the horizon was set or before, so its marker is not
        // needed any more.
        return Ok(if batch.base_offset() < tombstones_to { batch.emptied() } else { batch.clone() });
    }
    if aborted.has(batch) {
        return Ok(batch.emptied());
    }
    batch.thinned(|record| {
        let is_newest = record.key.and_then(|key| newest.of(key)).is_none_or(|at| at <= record.offset);
        let is_gone = record.key.is_some() && record.value.is_none() && record.offset < tombstones_to;
        is_newest && !is_gone
    })
}

fn bytes_of(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.len() as u64).sum()
}

/// Segments that are being written.
struct Output {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    generation: u32,
    appended_ms: u64,
    made: Vec<Made>,
    /// Last batch, and the offset up to which it will reach.
    last: Option<(RecordBatch, Offset)>,
    stats: CompactionStats,
}

struct Made {
    info: SegmentInfo,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    index: Index,
    /// Batches that are not written yet; the info includes them.
    batches: Vec<RecordBatch>,
    unwritten: u64,
}

impl Output {
    fn new(turn: &Turn<'_, '_>) -> Self {
        let generation = turn.sources.iter().map(|source| source.generation).max().unwrap_or_default() + 1;
        let disk = turn.disk.clone();
        let dir = turn.dir.clone();
        let segment_bytes = turn.segment_bytes;
        let stats = CompactionStats { turns: 1, ..CompactionStats::default() };
        Self { disk, dir, segment_bytes, generation, appended_ms: 0, made: Vec::new(), last: None, stats }
    }

    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.count() == 0
            && let Some((last, end)) = &mut self.last
            && last.can_reach(batch.next_offset())
        {
            *end = batch.next_offset();
            return Ok(());
        }
        let end = batch.next_offset();
        self.close_last()?;
        self.last = Some((batch, end));
        Ok(())
    }

    fn close_last(&mut self) -> Result<()> {
        let Some((batch, end)) = self.last.take() else {
            return Ok(());
        };
        let batch = batch.reaching(end).expect("invariant: it was seen that it reaches so far");
        let has_room = |made: &Made| made.info.bytes + batch.len() as u64 <= self.segment_bytes;
        if !self.made.last().is_some_and(has_room) {
            self.begin(batch.base_offset())?;
        }
        let made = self.made.last_mut().expect("invariant: one was begun");
        made.index.push(&batch);
        made.info.bytes += batch.len() as u64;
        made.info.end = batch.next_offset();
        made.info.timestamp_ms_max = made.info.timestamp_ms_max.max(batch.max_timestamp_ms());
        made.info.appended_ms = self.appended_ms;
        made.unwritten += batch.len() as u64;
        made.batches.push(batch);
        if made.unwritten >= READ_BYTES as u64 { self.write() } else { Ok(()) }
    }

    fn begin(&mut self, base: Offset) -> Result<()> {
        self.write()?;
        let path = self.dir.join(log_name(base, self.generation));
        let create = || match self.disk.remove(&path) {
            // An earlier attempt may have left this file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.disk.create(&path),
        };
        let file = create().map_err(failed("make", &path))?;
        let info = SegmentInfo {
            base,
            end: base,
            bytes: 0,
            timestamp_ms_max: i64::MIN,
            appended_ms: self.appended_ms,
            generation: self.generation,
        };
        self.made.push(Made { info, path, file, index: Index::new(base), batches: Vec::new(), unwritten: 0 });
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let Some(made) = self.made.last_mut() else {
            return Ok(());
        };
        let mut slices: Vec<IoSlice<'_>> = made.batches.iter().map(|batch| IoSlice::new(batch.bytes())).collect();
        made.file.write_at(&mut slices, made.info.bytes - made.unwritten).map_err(failed("write", &made.path))?;
        self.stats.written_bytes += std::mem::take(&mut made.unwritten);
        made.batches.clear();
        Ok(())
    }

    fn finish(&mut self) -> Result<(Vec<Segment>, CompactionStats)> {
        self.close_last()?;
        self.write()?;
        for made in &self.made {
            made.file.sync().map_err(failed("sync", &made.path))?;
            let path = self.dir.join(index_name(made.info.base, made.info.generation));
            leave_index(&*self.disk, &path, &made.index);
        }
        self.disk.sync_dir(&self.dir).map_err(failed("sync", &self.dir))?;
        Ok((self.made.iter().map(|made| Segment::sealed(&made.info)).collect(), self.stats))
    }

    fn discard(&self) {
        for made in &self.made {
            remove_quietly(&*self.disk, &made.path);
            remove_quietly(&*self.disk, &self.dir.join(index_name(made.info.base, made.info.generation)));
        }
    }
}
