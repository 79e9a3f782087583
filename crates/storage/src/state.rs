//! Topics of a data directory, and their recovery after any kind of end.
//!
//! The journal is read twice. The first pass changes nothing: it checks that the journal is readable, and finds what is
//! missing in it. Then the segments are cut back to the state of the checkpoint, and the second pass appends the
//! entries of the journal.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::catalog::Change;
use engine::queue::QUEUES_TOPIC;
use engine::streams::STREAMS_TOPIC;
use engine::{Error, ErrorKind, Offset, PartitionId, Result, TopicName, TopicSettings};

use crate::apply::start_of;
use crate::checkpoint::{Catalog, ends};
use crate::disk::{Disk, failed, make_partition_dir};
use crate::info::{CompactionSettings, PartitionInfo, SegmentInfo, stream};
use crate::journal::EntryKind;
use crate::journal::block::SegmentPart;
use crate::journal::parts::{InPart, Parts};
use crate::journal::recover::{End, Found, Origin, Progress, Recovery};
use crate::journal::salvage::{self, Salvage};
use crate::log::PartitionLog;
use crate::partition::DiskPartition;
use crate::partition::scan::{Epochs, span_of};
use crate::partition::segments::Described;
use crate::shard_log::Front;
use crate::shared::{Shared, StoreSettings, StoredTopic};

/// Topics of a directory.
pub(crate) struct State {
    pub(crate) settings: StoreSettings,
    /// Compaction settings from the next turn on.
    pub(crate) compaction: CompactionSettings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalog: Catalog,
    pub(crate) partitions: BTreeMap<u64, Arc<DiskPartition>>,
    /// Deleted topics whose files are still to be removed: when the journal reports the deletion as durable, or a
    /// checkpoint without the topic is written.
    pub(crate) doomed: Vec<Doomed>,
    /// Topics that the journal deletes: none of their entries is recovered.
    pub(crate) deleted: BTreeSet<u32>,
    /// Partitions that cannot be served because entries are missing in the journal, with the reason. The journal may
    /// create such a partition only later.
    holes: HashMap<u64, Error>,
    /// Segments that the journal describes, of partitions that are not open yet: the journal creates them.
    described: HashMap<u64, Vec<Described>>,
    /// Ids of the next topic and the next producer according to committed changes only.
    pub(crate) next_committed: (u32, i64),
    /// `true` if nothing may be missing: the directory is that of a node of a cluster.
    must_be_whole: bool,
}

/// Log in front of the journal while the journal is read, if there is one.
struct Passing<'f> {
    front: Option<&'f mut dyn Front>,
}

impl Passing<'_> {
    /// Returns how often the journal is read.
    fn readings(&self) -> u64 {
        2 + u64::from(self.front.is_some())
    }

    /// Shows all entries to the log in front. Returns the end of the journal.
    fn note(&mut self, journal: &Recovery, readings: &mut Readings<'_>) -> Result<Option<End>> {
        let Some(front) = &mut self.front else { return Ok(None) };
        let note = &mut |found: Found<'_>| {
            if found.kind.is_of_front() {
                found.body.clone()?;
            }
            front.note(&found)
        };
        let end = journal.read(None, note, &mut |now| readings.go_on(now))?;
        readings.done += 1;
        Ok(Some(end))
    }

    fn rewind(&mut self) {
        self.front.iter_mut().for_each(|front| front.rewind());
    }

    fn passes(&mut self, found: &Found<'_>) -> Result<bool> {
        let Some(front) = &mut self.front else { return Ok(true) };
        let passes = front.passes(found)?;
        if passes {
            found.body.clone()?;
        }
        Ok(passes && !found.kind.is_of_front())
    }
}

/// Progress of several readings of the same bytes.
struct Readings<'p> {
    count: u64,
    done: u64,
    /// Bytes of one reading, as far as they are known.
    bytes: u64,
    progress: &'p mut dyn FnMut(Progress),
}

impl Readings<'_> {
    fn go_on(&mut self, now: Progress) {
        let bytes_max = if self.done == 0 { now.bytes_max } else { self.bytes };
        if self.done == 0 {
            self.bytes = now.bytes;
        }
        (self.progress)(Progress { bytes: self.done * self.bytes + now.bytes, bytes_max: self.count * bytes_max });
    }
}

/// Deleted topic whose files are still to be removed.
pub(crate) struct Doomed {
    pub(crate) id: u32,
    pub(crate) partitions: Vec<Arc<DiskPartition>>,
}

pub(crate) fn partition_mut(catalog: &mut Catalog, stream: u64) -> Option<&mut PartitionInfo> {
    let entry = catalog.topics.get_mut(&((stream >> 32) as u32))?;
    entry.partitions.get_mut((stream & u64::from(u32::MAX)) as usize)
}

/// Contents of the journal for each partition, found without changing any partition.
#[derive(Default)]
pub(crate) struct Exam {
    /// End of each partition after the entries that were read so far.
    ends: HashMap<u64, Offset>,
    /// Partitions with a hole, and the reason.
    pub(crate) holes: HashMap<u64, Error>,
    /// Topics that are deleted somewhere in the journal. An id is never reused.
    deleted: BTreeSet<u32>,
    /// Segments of each partition that the journal describes, in their order.
    segments: HashMap<u64, Vec<Seen>>,
}

/// Segment as far as the journal describes it.
struct Seen {
    info: SegmentInfo,
    /// Ends of the parts that each block refers to: the position of the block, the byte and the offset.
    ends: Vec<(u64, u64, Offset)>,
}

impl State {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, settings: StoreSettings, epochs: Epochs) -> Self {
        let shared = Arc::new(Shared::new(disk, dir, &settings, epochs));
        Self {
            settings,
            compaction: settings.compaction,
            shared,
            catalog: Catalog::default(),
            partitions: BTreeMap::new(),
            doomed: Vec::new(),
            deleted: BTreeSet::new(),
            holes: HashMap::new(),
            described: HashMap::new(),
            next_committed: (0, 0),
            must_be_whole: false,
        }
    }

    pub(crate) fn adopt(&mut self, catalog: Catalog) {
        self.next_committed = (catalog.next_id, catalog.next_producer);
        self.catalog = catalog;
        let ids: Vec<u32> = self.catalog.topics.keys().copied().collect();
        ids.into_iter().for_each(|id| drop(self.open_partitions(id)));
    }

    /// Opens those partitions of a topic that are not open yet, and returns them.
    pub(crate) fn open_partitions(&mut self, id: u32) -> Vec<Arc<DiskPartition>> {
        let Some(entry) = self.catalog.topics.get(&id) else {
            return Vec::new();
        };
        let mut opened = Vec::new();
        for (i, info) in entry.partitions.iter().enumerate() {
            let stream = stream(id, i as PartitionId);
            if self.partitions.contains_key(&stream) {
                continue;
            }
            let dir = self.shared.topic_dir(id).join(i.to_string());
            let partition = DiskPartition::open(self.shared.clone(), dir, stream, self.settings.segment_bytes, info);
            let described = self.described.remove(&stream);
            if let Some(hole) = self.holes.get(&stream) {
                partition.refuse(hole);
            } else if let Some(described) = described {
                partition.adopt(&described);
            }
            let partition = Arc::new(partition);
            self.shared.streams.add(&partition);
            self.partitions.insert(stream, partition.clone());
            opened.push(partition);
        }
        self.set_segment_limits(id);
        opened
    }

    /// Applies a topic's segment limits to its partitions.
    pub(crate) fn set_segment_limits(&self, id: u32) {
        let Some(settings) = self.catalog.topics.get(&id).map(|entry| entry.settings) else {
            return;
        };
        let bytes = if settings.segment_bytes == 0 { self.settings.segment_bytes } else { settings.segment_bytes };
        for partition in (0..settings.partitions).filter_map(|i| self.partitions.get(&stream(id, i))) {
            partition.set_segment_limits(bytes, settings.segment_ms);
        }
    }

    pub(crate) fn topic(&self, id: u32, name: TopicName, settings: TopicSettings) -> StoredTopic {
        StoredTopic { id, name, settings, partitions: self.logs_of(id, settings.partitions) }
    }

    /// Returns the partitions of a topic in their order.
    pub(crate) fn logs(&self, id: u32) -> Result<Vec<Arc<dyn PartitionLog>>> {
        match self.catalog.topics.get(&id) {
            Some(entry) => Ok(self.logs_of(id, entry.settings.partitions)),
            None => Err(Error::not_found("the topic was deleted")),
        }
    }

    fn logs_of(&self, id: u32, count: u32) -> Vec<Arc<dyn PartitionLog>> {
        let partition =
            |i| self.partitions.get(&stream(id, i)).map(|partition| partition.clone() as Arc<dyn PartitionLog>);
        (0..count).filter_map(partition).collect()
    }

    pub(crate) fn topics(&self) -> Vec<StoredTopic> {
        let topics = self.catalog.topics.iter();
        topics.map(|(id, entry)| self.topic(*id, entry.name.clone(), entry.settings)).collect()
    }

    /// Returns the partitions of compacted topics, with their compaction settings.
    pub(crate) fn compacted(&self) -> Vec<(Arc<DiskPartition>, CompactionSettings)> {
        let settings = self.compaction;
        let topics = self.catalog.topics.iter().filter(|(_, entry)| entry.settings.compact);
        let streams = topics.flat_map(|(id, entry)| {
            // These topics are always read whole from the start, so their readers need no tombstones: the next turn
            // removes them.
            let is_read_whole = [QUEUES_TOPIC, STREAMS_TOPIC].contains(&entry.name.as_str());
            let tombstone_retention_ms = if is_read_whole { 0 } else { settings.tombstone_retention_ms };
            let lag_ms = entry.settings.compaction_lag_ms;
            let settings = CompactionSettings { tombstone_retention_ms, lag_ms, ..settings };
            (0..entry.settings.partitions).map(move |i| (stream(*id, i), settings))
        });
        streams.filter_map(|(stream, settings)| Some((self.partitions.get(&stream)?.clone(), settings))).collect()
    }

    pub(crate) fn forget(&mut self, id: u32) {
        let partitions = 0..self.catalog.topics.get(&id).map_or(0, |entry| entry.settings.partitions);
        let partitions: Vec<_> = partitions.filter_map(|i| self.partitions.remove(&stream(id, i))).collect();
        partitions.iter().for_each(|partition| self.shared.streams.remove(partition.stream()));
        partitions.iter().for_each(|partition| partition.delete());
        self.doomed.push(Doomed { id, partitions });
    }

    /// Drops topics that the journal deletes before anything is recovered: their records are not written to a disk that
    /// may have no space for them, and files that are already removed are not missed. Their files are removed with the
    /// next checkpoint, or immediately if there is no space for a checkpoint. In that case the journal is synced first,
    /// since the data that was read may be in the system's memory only.
    fn forget_deleted(&mut self, deleted: BTreeSet<u32>, journal: &Recovery, is_full: bool) -> Result<()> {
        for id in &deleted {
            self.forget(*id);
            self.catalog.apply(&Change::Delete { id: *id });
        }
        if is_full && !deleted.is_empty() {
            journal.sync()?;
            deleted.iter().try_for_each(|id| self.shared.remove_topic(*id))?;
        }
        self.deleted = deleted;
        Ok(())
    }

    /// Records the ids that a committed change uses.
    pub(crate) fn note_ids(&mut self, change: &Change) {
        let (topic, producer) = &mut self.next_committed;
        match change {
            Change::Create { id, .. } => *topic = (*topic).max(id + 1),
            Change::Producers { next } => *producer = (*producer).max(*next),
            Change::Delete { .. } | Change::Grow { .. } | Change::Alter { .. } => {}
        }
    }

    /// Drops topics whose creation will not be committed, and the ids that changes use which will not be either.
    /// Returns the partitions of the topics.
    pub(crate) fn undo(&mut self, created: &BTreeSet<u32>) -> Vec<Arc<DiskPartition>> {
        let mut undone = Vec::new();
        for id in created {
            let partitions = self.catalog.topics.remove(id).map_or(0, |entry| entry.settings.partitions);
            undone.extend((0..partitions).filter_map(|i| self.partitions.remove(&stream(*id, i))));
        }
        undone.iter().for_each(|partition| self.shared.streams.remove(partition.stream()));
        undone.iter().for_each(|partition| partition.delete());
        (self.catalog.next_id, self.catalog.next_producer) = self.next_committed;
        undone
    }

    pub(crate) fn set_info(&mut self, stream: u64, info: &PartitionInfo) {
        if let Some(known) = partition_mut(&mut self.catalog, stream) {
            *known = info.clone();
        }
    }

    /// Refuses to serve these partitions, including those that the journal creates only later.
    pub(crate) fn refuse(&mut self, refused: &[(u64, Error)]) {
        for (stream, error) in refused {
            if let Some(partition) = self.partitions.get(stream) {
                partition.refuse(error);
            }
            self.holes.insert(*stream, error.clone());
        }
    }

    /// Replays the operations that the journal recorded after the checkpoint: all of them, or those that a log in front
    /// of it lets pass.
    pub(crate) fn bring_back(
        &mut self,
        journal: &Recovery,
        origin: Origin,
        front: Option<&mut dyn Front>,
        clock: fn() -> u64,
        is_full: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<End> {
        self.must_be_whole = front.is_some();
        let mut gate = Passing { front };
        let mut readings = Readings { count: gate.readings(), done: 0, bytes: 0, progress };
        let noted = gate.note(journal, &mut readings)?;
        gate.rewind();
        let mut passes = |found: &Found<'_>| gate.passes(found);
        let (mut exam, end) = self.examine(journal, noted.as_ref(), &mut passes, &mut |now| readings.go_on(now));
        let end = end?;
        readings.done += 1;
        let described = exam.described(end.synced);
        self.forget_deleted(exam.deleted, journal, is_full)?;
        self.refuse(&exam.holes.into_iter().collect::<Vec<_>>());
        self.partitions.values().try_for_each(|partition| self.check_whole(partition))?;
        self.described = described;
        for partition in self.served() {
            if let Some(described) = self.described.remove(&partition.stream()) {
                partition.adopt(&described);
            }
            partition.settle()?;
        }
        self.replay_salvages(clock)?;
        let mut salvages = HashMap::new();
        gate.rewind();
        let mut replay = |found: Found<'_>| {
            if gate.passes(&found)? { self.replay(found, &mut salvages, origin, clock) } else { Ok(()) }
        };
        journal.read(Some(&end), &mut replay, &mut |now| readings.go_on(now))?;
        for (stream, salvage) in salvages {
            if self.partitions.contains_key(&stream) {
                salvage.finish(&*self.shared.disk)?;
                self.note_salvage(stream, origin.position);
            }
        }
        self.remove_leftovers()?;
        Ok(end)
    }

    /// Fails if a partition cannot be served and the directory is that of a node: its entries would be lost for it.
    fn check_whole(&self, partition: &DiskPartition) -> Result<()> {
        match partition.refused() {
            Some(refused) if self.must_be_whole => Err(refused),
            _ => Ok(()),
        }
    }

    /// Adds a salvage file to the catalog, so that the next checkpoint lists it.
    fn note_salvage(&mut self, stream: u64, position: u64) {
        if let Some(info) = partition_mut(&mut self.catalog, stream)
            && !info.salvages.contains(&position)
        {
            info.salvages.push(position);
        }
    }

    /// Reads the journal, up to its end if that is known, and finds what is missing in those entries that pass. Changes
    /// nothing.
    pub(crate) fn examine(
        &self,
        journal: &Recovery,
        until: Option<&End>,
        passes: &mut dyn FnMut(&Found<'_>) -> Result<bool>,
        progress: &mut dyn FnMut(Progress),
    ) -> (Exam, Result<End>) {
        let mut exam = self.examine_salvages();
        let look = &mut |found: Found<'_>| {
            if passes(&found)? { exam.look(&self.partitions, &found) } else { Ok(()) }
        };
        let end = journal.read(until, look, progress);
        (exam, end)
    }

    fn served(&self) -> Vec<Arc<DiskPartition>> {
        self.partitions.values().filter(|partition| partition.refused().is_none()).cloned().collect()
    }

    /// Examines the salvage files of partitions that can be served again; their entries precede those of the journal.
    fn examine_salvages(&self) -> Exam {
        let mut exam = Exam::default();
        let parts = self.parts();
        for (stream, partition) in self.partitions.iter().filter(|(_, partition)| partition.refused().is_none()) {
            for path in partition.salvages() {
                let each = &mut |found: Found<'_>| exam.look(&self.partitions, &found);
                let read = salvage::read(&*self.shared.disk, &path, &parts, each);
                if let Err(error) = read {
                    exam.holes.insert(*stream, error);
                }
            }
        }
        exam
    }

    fn replay(
        &mut self,
        found: Found<'_>,
        salvages: &mut HashMap<u64, Salvage>,
        origin: Origin,
        clock: fn() -> u64,
    ) -> Result<()> {
        match found.kind {
            EntryKind::Batch | EntryKind::Start | EntryKind::Segment => {
                // A deleted topic has no partitions left.
                let Some(partition) = self.partitions.get(&found.stream).cloned() else {
                    return Ok(());
                };
                self.check_whole(&partition)?;
                if partition.refused().is_none() {
                    return self.apply_found(&partition, found, clock);
                }
                let salvage = match salvages.entry(found.stream) {
                    Entry::Occupied(salvage) => salvage.into_mut(),
                    Entry::Vacant(none) => {
                        let disk = &*self.shared.disk;
                        let dir = partition.dir();
                        make_partition_dir(disk, &dir).map_err(failed("make", &dir))?;
                        none.insert(Salvage::create(disk, &dir, origin.position)?)
                    }
                };
                salvage.push(&found)
            }
            EntryKind::Catalog => self.apply_change(&Change::decode(found.body?)?),
            EntryKind::View | EntryKind::Next => Ok(()),
            EntryKind::Save | EntryKind::Cluster => Err(of_a_node()),
        }
    }

    fn parts(&self) -> Parts {
        Parts::new(&self.shared.disk, &self.shared.dir, ends(&self.catalog))
    }

    /// Applies an entry that was read to its partition, which is served.
    fn apply_found(&self, partition: &DiskPartition, found: Found<'_>, clock: fn() -> u64) -> Result<()> {
        match found.in_part.and_then(|in_part| in_part.batch) {
            Some(batch) => {
                partition.replay(batch.clone());
                Ok(())
            }
            None => self.apply_to(partition, found.kind, found.body?, clock),
        }
    }

    fn replay_salvages(&mut self, clock: fn() -> u64) -> Result<()> {
        let parts = self.parts();
        for partition in self.served() {
            let paths = partition.salvages();
            for path in &paths {
                salvage::read(&*self.shared.disk, path, &parts, &mut |found| {
                    self.apply_found(&partition, found, clock)
                })?;
            }
            if !paths.is_empty() {
                partition.end_salvage();
            }
        }
        Ok(())
    }

    /// Removes directories of topics that are not in the catalog: they were deleted, or never became durable.
    fn remove_leftovers(&self) -> Result<()> {
        let topics: PathBuf = self.shared.dir.join("topics");
        let names = match self.shared.disk.list(&topics) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(failed("list", &topics))?,
        };
        for id in names.iter().filter_map(|name| name.parse().ok()) {
            if !self.catalog.topics.contains_key(&id)
                && !self.deleted.contains(&id)
                && let Err(error) = self.shared.remove_topic(id)
            {
                tracing::warn!(%error, "cannot remove a directory that is no longer needed");
            }
        }
        Ok(())
    }
}

impl Exam {
    /// Returns the topics that are deleted somewhere in the journal.
    pub(crate) fn deleted(&self) -> &BTreeSet<u32> {
        &self.deleted
    }

    fn look(&mut self, partitions: &BTreeMap<u64, Arc<DiskPartition>>, found: &Found<'_>) -> Result<()> {
        let stream = found.stream;
        let body = found.body.clone();
        match found.kind {
            EntryKind::Catalog => {
                if let Change::Delete { id } = Change::decode(body?)? {
                    self.deleted.insert(id);
                }
            }
            EntryKind::View | EntryKind::Next => drop(body?),
            EntryKind::Save | EntryKind::Cluster => return Err(of_a_node()),
            EntryKind::Batch => match body.and_then(span_of) {
                Err(error) => drop(self.holes.entry(stream).or_insert(error)),
                Ok((base, next)) => {
                    // A topic that the journal creates later begins at 0.
                    let known = || partitions.get(&stream).map_or(0, |partition| partition.end());
                    let end = self.ends.entry(stream).or_insert_with(known);
                    if let Some(in_part) = &found.in_part {
                        see(self.segments.entry(stream).or_default(), in_part);
                    }
                    if base == *end {
                        *end = next;
                    } else if next > *end {
                        let end = *end;
                        self.holes.entry(stream).or_insert_with(|| hole(partitions.get(&stream), end, base));
                    }
                }
            },
            EntryKind::Start => {
                if let Err(error) = body.and_then(start_of) {
                    self.holes.entry(stream).or_insert(error);
                }
            }
            EntryKind::Segment => {
                if let Err(error) = body {
                    self.holes.entry(stream).or_insert(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the segments that the journal describes. `synced`: position before which all was synced.
    fn described(&mut self, synced: u64) -> HashMap<u64, Vec<Described>> {
        let described = |Seen { info, ends }: Seen| {
            let durable = ends.iter().rfind(|(block, ..)| *block < synced).map(|(_, bytes, end)| (*bytes, *end));
            Described { info, synced: durable.unwrap_or((0, info.base)) }
        };
        let of_one = |(stream, seen): (u64, Vec<Seen>)| (stream, seen.into_iter().map(described).collect());
        std::mem::take(&mut self.segments).into_iter().map(of_one).collect()
    }
}

/// Adds a batch, which is in a part of a segment, to the known segments of its partition.
fn see(segments: &mut Vec<Seen>, InPart { batch, part, block }: &InPart<'_>) {
    let SegmentPart { base, generation, to, to_offset, appended_ms, .. } = *part;
    if segments.last().is_none_or(|last| last.info.base != base) {
        let info = SegmentInfo { base, end: base, bytes: 0, timestamp_ms_max: i64::MIN, appended_ms, generation };
        segments.push(Seen { info, ends: Vec::new() });
    }
    let Some(Seen { info, ends }) = segments.last_mut() else { return };
    if ends.last() != Some(&(*block, to, to_offset)) {
        ends.push((*block, to, to_offset));
    }
    info.end = to_offset;
    info.bytes = to;
    info.appended_ms = info.appended_ms.max(appended_ms);
    if let Some(batch) = batch {
        info.timestamp_ms_max = info.timestamp_ms_max.max(batch.max_timestamp_ms());
    }
}

/// Error of a directory that is opened as the one of a single broker.
pub(crate) fn of_a_node() -> Error {
    Error::new(
        ErrorKind::Denied,
        "the data directory belongs to a node of a cluster, whose identity is missing; restore its folder cluster, or \
         use another directory",
    )
}

fn hole(partition: Option<&Arc<DiskPartition>>, end: Offset, base: Offset) -> Error {
    let dir = partition.map(|partition| partition.dir().display().to_string()).unwrap_or_default();
    let what = format!(
        "{dir} is damaged: records {end} to {base} are in no segment and not in the journal. Put back a copy of it, or \
         see what can be saved: thalweg inspect"
    );
    Error::new(ErrorKind::Corrupt, what)
}
