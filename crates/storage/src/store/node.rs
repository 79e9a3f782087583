//! Store of a node of a cluster: it applies what the log of the cluster committed, gives up what was not, and is
//! brought up to date with the topics of another node.
//!
//! The log in front of the journal calls all of this, one call at a time. The callers hold no lock that
//! [`ShardLog::append`](crate::ShardLog::append) or an owner takes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine::catalog::{Change, TopicEntry};
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};

use super::Store;
use super::manifest::{Manifest, PartitionExtent, Wanted};
use crate::apply::start_of;
use crate::info::stream;
use crate::journal::EntryKind;
use crate::log::{PartitionLog, Read};
use crate::partition::DiskPartition;
use crate::state::State;

/// Factor over `unflushed_bytes_max` at which a committed entry waits for segments to be written.
const WAIT_FACTOR: u64 = 2;

impl Store {
    /// Applies a committed entry of the log of the cluster. Entries of a partition come in their order, without a gap;
    /// one that is applied already has no effect. The batch is not copied. If too much is in no segment yet, it is
    /// written before; if that fails, the entry is not applied.
    pub fn apply(&self, kind: EntryKind, stream: u64, body: Bytes) -> Result<()> {
        match kind {
            EntryKind::Batch => {
                self.wait_for_segments()?;
                // A deleted topic has no partitions left.
                let Some(partition) = self.partition(stream) else { return Ok(()) };
                partition.take(RecordBatch::parse(body)?)
            }
            EntryKind::Start => {
                let start = start_of(&body)?;
                self.partition(stream).iter().for_each(|partition| partition.apply_start(start));
                Ok(())
            }
            // The files of a deleted topic are removed after the next checkpoint.
            EntryKind::Catalog => self.state.lock().apply_change(&Change::decode(&body)?),
            EntryKind::View | EntryKind::Next | EntryKind::Segment | EntryKind::Save | EntryKind::Cluster => Ok(()),
        }
    }

    fn partition(&self, stream: u64) -> Option<Arc<DiskPartition>> {
        self.state.lock().partitions.get(&stream).cloned()
    }

    /// Bounds the memory of committed batches that are in no segment.
    fn wait_for_segments(&self) -> Result<()> {
        let max = self.settings.unflushed_bytes_max;
        let unflushed = || self.shared.tails.unflushed.load(Ordering::Relaxed);
        if unflushed() <= WAIT_FACTOR * max {
            return Ok(());
        }
        while unflushed() > max {
            let (bytes, _) = self.flush();
            self.trim_tails();
            if bytes == 0 {
                break;
            }
        }
        if unflushed() <= WAIT_FACTOR * max {
            return Ok(());
        }
        let trouble = self.all_partitions().iter().find_map(|(_, partition)| partition.trouble());
        Err(trouble.unwrap_or_else(|| Error::busy("committed records cannot be written to segments fast enough")))
    }

    /// Gives up all that is appended and not committed, because this node no longer leads: topics whose creation is not
    /// committed do not exist any more, other changes are dropped, and every partition ends at its last committed
    /// record. Their owners are notified by the log in front; those of changes that it did not notify before fail here.
    pub fn depose(&self) -> Result<()> {
        let undone = self.changes.give_up();
        let ids: BTreeSet<u32> = undone.iter().map(|partition| (partition.stream() >> 32) as u32).collect();
        // Their ids are free again: another topic may get one, so nothing of them may stay. No segment has records that
        // are not committed, so usually there are no files.
        undone.iter().for_each(|partition| partition.close());
        ids.iter().try_for_each(|id| self.shared.remove_topic(*id))?;
        self.all_partitions().iter().try_for_each(|(_, partition)| partition.depose())
    }

    /// Returns the committed topics and the extents of their partitions.
    pub fn manifest(&self) -> Manifest {
        let state = self.state.lock();
        let created = self.changes.creations_due();
        let (next_id, next_producer) = state.next_committed;
        let mut catalog = engine::catalog::Catalog { next_id, next_producer, ..Default::default() };
        for (id, entry) in state.catalog.topics.iter().filter(|(id, _)| !created.contains(id)) {
            let partitions = (0..entry.settings.partitions).filter_map(|i| state.partitions.get(&stream(*id, i)));
            let partitions = partitions.map(|partition| partition.committed_extent()).collect();
            let entry = TopicEntry { name: entry.name.clone(), settings: entry.settings, partitions };
            catalog.topics.insert(*id, entry);
        }
        Manifest { catalog }
    }

    /// Begins to bring this store up to date with another node's: topics are created, deleted and altered to match its
    /// manifest. Returns the records that are missing, to be fetched with [`Store::read_rows`] there, and to be applied
    /// here as batches, in their order for each partition; then [`Store::end_install`] follows. It can be called again
    /// with a newer manifest at any time.
    ///
    /// A partition is replaced by the other node's if records between may be missing there: they are deleted, or
    /// compaction has removed records without a value that this partition would need. Its old records stay on the disk,
    /// and return after a crash, until [`Store::end_install`]. Nothing else is ever removed: a topic or a record that
    /// only this node has is an error, and then nothing is changed.
    pub fn begin_install(&self, manifest: &Manifest) -> Result<Vec<Wanted>> {
        self.depose()?;
        let replaced = self.state.lock().compare(manifest)?;
        if replaced {
            // What is not in segments yet would be lost with the journal.
            self.checkpoint()?;
        }
        let mut state = self.state.lock();
        state.compare(manifest)?;
        state.adopt_catalog(manifest)?;
        let mut wanted = Vec::new();
        for (stream, extent) in manifest.extents() {
            let Some(partition) = state.partitions.get(&stream) else { continue };
            if partition.lacks(extent).1 {
                partition.begin_replacing(extent)?;
            } else {
                partition.apply_start(extent.start);
            }
            let (from, to) = (partition.end(), extent.end);
            wanted.extend((from < to).then_some(Wanted { stream, from, to }));
        }
        Ok(wanted)
    }

    /// Continues what [`Store::begin_install`] began, if the other node has deleted the records of a partition before
    /// `start` in the meantime: this node gives up those that it has, and fetches the following ones. The other node's
    /// log says later that they are deleted.
    pub fn begin_after(&self, manifest: &Manifest, stream: u64, start: Offset) -> Result<()> {
        let extent = manifest.extents().find(|(known, _)| *known == stream).map(|(_, extent)| extent);
        let extent = extent.ok_or_else(|| Error::not_found("the partition is not in the manifest"))?;
        let Some(partition) = self.partition(stream) else { return Ok(()) };
        if !(partition.end()..=extent.end).contains(&start) {
            let (from, to) = (partition.end(), extent.end);
            return Err(Error::invalid(format!(
                "a partition cannot begin at {start}: its rest is from {from} to {to}"
            )));
        }
        // What is not in segments yet would be lost with the journal.
        self.checkpoint()?;
        partition.begin_replacing(&PartitionExtent { start, ..extent.clone() })
    }

    /// Reads committed batches of a partition for another node, from the one at the beginning of a range on, up to its
    /// end and `bytes_max` bytes but at least one; empty at the end. The first one may begin earlier only at the start
    /// of the log. Fails with `OutOfRange` if the records are deleted, or compaction has changed their batches: then
    /// the other node begins after them ([`Store::first_of_rows`]), or needs a new manifest. May block on a file.
    pub fn read_rows(&self, stream: u64, range: Range<Offset>, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let partition = self.partition(stream).ok_or_else(|| Error::not_found("the topic was deleted"))?;
        let start = partition.extent().start;
        let from = range.start;
        let mut batches = match partition.read(from, bytes_max)? {
            Read::Batches(batches) => batches,
            Read::Cold(read) => read.run()?,
        };
        // More may have been committed since the manifest.
        let is_there = !batches.is_empty();
        let beyond = batches.iter().position(|batch| batch.next_offset() > range.end);
        batches.truncate(beyond.unwrap_or(batches.len()));
        match batches.first() {
            None if is_there => {
                let message = format!("a batch at {from} ends after {} now: begin again", range.end);
                Err(Error::new(ErrorKind::OutOfRange, message))
            }
            Some(first) if first.base_offset() != from && from != start => {
                let message = format!("offset {from} is not the beginning of a batch any more: begin again");
                Err(Error::new(ErrorKind::OutOfRange, message))
            }
            _ => Ok(batches),
        }
    }

    /// Returns the first offset of a partition that is not deleted.
    pub fn first_of_rows(&self, stream: u64) -> Option<Offset> {
        self.partition(stream).map(|partition| partition.extent().start)
    }

    /// Returns the damage that reads of segments have found, by the partitions. [`Store::begin_install`] replaces them.
    pub fn damages(&self) -> Vec<(u64, Error)> {
        let damage = |(stream, partition): (u64, Arc<DiskPartition>)| Some((stream, partition.damage()?));
        self.all_partitions().into_iter().filter_map(damage).collect()
    }

    /// Reads a part of the segments, about `bytes_max` bytes, to find damage that no client has met yet: from a
    /// partition and an offset on. Returns where the next call continues, and the bytes; it begins again after the
    /// last partition.
    pub fn verify(&self, at: (u64, Offset), bytes_max: usize) -> ((u64, Offset), u64) {
        let next = {
            let state = self.state.lock();
            let following = state.partitions.iter().filter(|(stream, _)| **stream >= at.0);
            following.min_by_key(|(stream, _)| **stream).map(|(stream, of)| (*stream, of.clone()))
        };
        let Some((stream, partition)) = next else { return ((0, 0), 0) };
        let from = if stream == at.0 { at.1 } else { 0 };
        match partition.verify(from, bytes_max) {
            Ok(Some((next, bytes))) => ((stream, next), bytes),
            Ok(None) => ((stream + 1, 0), 0),
            Err(error) => {
                tracing::error!(%error, stream, "a segment is damaged");
                ((stream + 1, 0), 0)
            }
        }
    }

    /// Ends what [`Store::begin_install`] began: checks that every partition has the records of the manifest, and takes
    /// a checkpoint. The log in front is asked for its state: it has to be the one that belongs to the manifest.
    pub fn end_install(&self, manifest: &Manifest) -> Result<()> {
        {
            let state = self.state.lock();
            for (stream, extent) in manifest.extents() {
                let end = state.partitions.get(&stream).map(|partition| partition.extent().end);
                if end != Some(extent.end) {
                    let end = end.map_or_else(|| "is missing".to_owned(), |end| format!("ends at {end}"));
                    let message = format!(
                        "partition {} of the topic with the id {} {end}, and has to end at {}",
                        stream & u64::from(u32::MAX),
                        stream >> 32,
                        extent.end
                    );
                    return Err(Error::invalid(message));
                }
            }
            state.partitions.values().for_each(|partition| partition.end_replacing());
        }
        self.checkpoint()
    }
}

impl State {
    /// Fails if this node has a topic or records that the node of the manifest does not have. Returns `true` if
    /// partitions have to be replaced.
    fn compare(&self, manifest: &Manifest) -> Result<bool> {
        let ahead = |what: String| {
            let message = format!("{what}, which the leader does not have: this node has the log of another cluster");
            Error::new(ErrorKind::Corrupt, message)
        };
        let theirs = &manifest.catalog;
        for (id, topic) in &self.catalog.topics {
            let name = &topic.name;
            let Some(their) = theirs.topics.get(id) else {
                if *id < theirs.next_id {
                    // It was deleted.
                    continue;
                }
                return Err(ahead(format!("this node has the topic {name} with the id {id}")));
            };
            if their.name != *name || their.settings.partitions < topic.settings.partitions {
                let partitions = topic.settings.partitions;
                return Err(ahead(format!("the topic with the id {id} is {name} with {partitions} partitions here")));
            }
        }
        let mut is_any_replaced = false;
        for (stream, extent) in manifest.extents() {
            let Some(partition) = self.partitions.get(&stream) else { continue };
            let (end, lacks) = partition.lacks(extent);
            if end > extent.end {
                let name = &theirs.topics[&((stream >> 32) as u32)].name;
                let number = stream & u64::from(u32::MAX);
                return Err(ahead(format!("this node has the records {} to {end} of {name}/{number}", extent.end)));
            }
            extent.decode_producers()?;
            is_any_replaced |= lacks;
        }
        Ok(is_any_replaced)
    }

    /// Creates, deletes and alters topics as a manifest says.
    fn adopt_catalog(&mut self, manifest: &Manifest) -> Result<()> {
        let theirs = &manifest.catalog;
        let gone = self.catalog.topics.keys().filter(|id| !theirs.topics.contains_key(id));
        let deleted: Vec<Change> = gone.map(|id| Change::Delete { id: *id }).collect();
        deleted.iter().try_for_each(|change| self.apply_change(change))?;
        for (id, topic) in &theirs.topics {
            let TopicEntry { name, settings, .. } = topic;
            let (id, settings) = (*id, *settings);
            self.apply_change(&Change::Create { id, name: name.clone(), settings })?;
            self.apply_change(&Change::Grow { id, partitions: settings.partitions })?;
            if self.catalog.topics.get(&id).is_some_and(|own| own.settings != settings) {
                self.apply_change(&Change::Alter { id, settings })?;
            }
        }
        self.next_committed =
            (self.next_committed.0.max(theirs.next_id), self.next_committed.1.max(theirs.next_producer));
        (self.catalog.next_id, self.catalog.next_producer) = self.next_committed;
        Ok(())
    }
}

impl Manifest {
    /// Returns the partitions by their streams.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &PartitionExtent)> {
        self.catalog
            .topics
            .iter()
            .flat_map(|(id, entry)| (0..).zip(&entry.partitions).map(move |(i, extent)| (stream(*id, i), extent)))
    }
}
