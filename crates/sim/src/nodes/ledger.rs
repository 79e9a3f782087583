//! Ledger of what clients were told, with checks of every node that leads.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use consensus::NodeId;
use engine::Offset;
use storage::Store;

use super::serving::{Told, batches, values};
use crate::violation::{Outcome, Violation, check};

/// Id of a topic, and number of a partition in it.
pub type Partition = (u32, u32);
/// Number that one record has.
pub type Value = u64;

/// History of all partitions.
#[derive(Default)]
pub struct Ledger {
    next: Value,
    /// Partition for which each record was made.
    issued: BTreeMap<Value, Partition>,
    /// Records that clients were told to be committed.
    acknowledged: BTreeMap<Partition, BTreeMap<Offset, Value>>,
    /// Offsets before which records may be deleted.
    starts: BTreeMap<Partition, Offset>,
    /// Topics that clients were told to exist.
    created: BTreeSet<u32>,
    /// Topics that may be deleted.
    deleting: BTreeSet<u32>,
    /// Topics that clients were told not to exist any more.
    deleted: BTreeSet<u32>,
}

impl Ledger {
    pub fn next_value(&mut self) -> Value {
        self.next += 1;
        self.next
    }

    /// Returns the number for a record of a partition.
    pub fn issue(&mut self, partition: Partition) -> Value {
        let value = self.next_value();
        self.issued.insert(value, partition);
        value
    }

    /// Notes that a leader has given this id to a new topic, which may never be committed.
    pub fn attempted(&mut self, id: u32) {
        // A leader that is not one any more may have given the id before.
        if !self.created.contains(&id) {
            self.deleting.remove(&id);
        }
    }

    pub fn deleting(&mut self, id: u32) {
        self.deleting.insert(id);
    }

    pub fn trimming(&mut self, partition: Partition, start: Offset) {
        let known = self.starts.entry(partition).or_default();
        *known = start.max(*known);
    }

    /// Notes what a client was told. Returns the number of records that were acknowledged.
    pub fn note(&mut self, told: Told) -> Result<u64, Violation> {
        match told {
            Told::Created(id) => {
                check(self.created.insert(id), || format!("the topic {id} was created twice"))?;
                Ok(0)
            }
            Told::Deleted(id) => {
                self.deleted.insert(id);
                Ok(0)
            }
            Told::Committed(partition, records) => {
                let count = records.len() as u64;
                let known = self.acknowledged.entry(partition).or_default();
                for (offset, value) in records {
                    let before = known.insert(offset, value);
                    check(before.is_none_or(|before| before == value), || {
                        format!("offset {offset} of {partition:?} was acknowledged for {before:?} and {value}")
                    })?;
                }
                Ok(count)
            }
        }
    }

    /// Checks that a store has all topics and ends at or after every acknowledged record.
    pub fn check(&self, store: &Store, node: NodeId) -> Outcome {
        let topics: BTreeMap<u32, _> = store.topics().into_iter().map(|topic| (topic.id, topic)).collect();
        for id in &self.created {
            check(topics.contains_key(id) || self.deleting.contains(id), || {
                format!("node {node} leads without the topic {id}")
            })?;
        }
        for id in &self.deleted {
            check(!topics.contains_key(id), || format!("node {node} leads with the deleted topic {id}"))?;
        }
        for ((id, number), records) in &self.acknowledged {
            let Some(topic) = topics.get(id) else { continue };
            let (Some(log), Some((last, _))) = (topic.partitions.get(*number as usize), records.last_key_value())
            else {
                continue;
            };
            let end = log.extent().end;
            check(end > *last, || {
                format!("node {node} leads with partition {id}/{number} up to {end}, and {last} was acknowledged")
            })?;
        }
        Ok(())
    }

    /// Checks committed values of a partition from an offset up to its end, as a node that leads has them.
    pub fn check_values(
        &self,
        partition: Partition,
        from: Offset,
        end: Offset,
        values: &[(Offset, Value)],
        node: NodeId,
    ) -> Outcome {
        let found: BTreeMap<Offset, Value> = values.iter().copied().collect();
        let at = || format!("{partition:?} of node {node}");
        check(found.len() as u64 == end.saturating_sub(from), || {
            format!("{} has {} records from {from} to {end}", at(), found.len())
        })?;
        let mut seen = BTreeSet::new();
        for (offset, value) in &found {
            check(self.issued.get(value) == Some(&partition), || {
                format!("{} has {value} at {offset}, which belongs elsewhere", at())
            })?;
            check(seen.insert(value), || format!("{} has {value} twice, the second time at {offset}", at()))?;
        }
        let none = BTreeMap::new();
        let start = self.starts.get(&partition).copied().unwrap_or_default().max(from);
        let acknowledged = self.acknowledged.get(&partition).unwrap_or(&none);
        check(acknowledged.last_key_value().is_none_or(|(last, _)| *last < end), || {
            format!("{} ends at {end}, before an acknowledged record", at())
        })?;
        for (offset, value) in acknowledged.range(start..) {
            let has = found.get(offset);
            check(has == Some(value), || format!("{} has {has:?} at {offset}, and {value} was acknowledged", at()))?;
        }
        Ok(())
    }

    /// Checks everything that a store has.
    pub fn check_all(&self, store: &Store, node: NodeId) -> Outcome {
        self.check(store, node)?;
        for topic in store.topics() {
            for (number, log) in (0..).zip(&topic.partitions) {
                let partition = (topic.id, number);
                let extent = log.extent();
                let found = values(log, extent.start);
                let found =
                    found.map_err(|error| Violation(format!("node {node} cannot read {partition:?}: {error}")))?;
                self.check_values(partition, extent.start, extent.end, &found, node)?;
            }
        }
        Ok(())
    }
}

/// Returns the committed batches of all partitions of a store.
pub fn contents(store: &Store, node: NodeId) -> Result<BTreeMap<Partition, Vec<Bytes>>, Violation> {
    let mut all = BTreeMap::new();
    for topic in store.topics() {
        for (number, log) in (0..).zip(&topic.partitions) {
            let partition = (topic.id, number);
            let found = batches(log, log.extent().start);
            let found = found.map_err(|error| Violation(format!("node {node} cannot read {partition:?}: {error}")))?;
            all.insert(partition, found.iter().map(|batch| batch.bytes().clone()).collect());
        }
    }
    Ok(all)
}
