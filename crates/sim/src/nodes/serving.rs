//! Service of a leader: partitions with their publishers, and what they were told.

use std::collections::VecDeque;
use std::sync::Arc;

use consensus::Term;
use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Result, Storage, TopicName, TopicSettings};
use parking_lot::Mutex;
use storage::{Owner, PartitionLog, Read, Store, StoredTopic};

use super::ledger::{Partition, Value};
use super::node::wall_clock;
use super::views::Views;
use super::{Event, MS, NODES, World, number};
use crate::violation::{Outcome, Violation, check};

/// Topics that exist at a time.
const TOPICS_MAX: usize = 3;
const PARTITIONS: u32 = 2;
/// Maximum bytes of a record beside its number.
const PADDING_BYTES_MAX: u64 = 3000;
const READ_BYTES: usize = 16 << 10;

/// Leadership of a node.
pub struct Leading {
    pub term: Term,
    /// Broker over the store, if the run has one. Otherwise clients use the partitions themselves.
    pub views: Option<Views>,
    cells: Vec<Arc<Cell>>,
    told: Arc<Mutex<VecDeque<Told>>>,
}

/// Message to a client.
pub enum Told {
    Created(u32),
    Deleted(u32),
    Committed(Partition, Vec<(Offset, Value)>),
}

/// Owner of changes whose outcome does not matter.
pub struct Ignored;

impl Owner for Ignored {
    fn committed(&self, _mark: u64) {}

    fn failed(&self, _error: &Error) {}
}

/// Owner of one change.
struct Tells {
    told: Arc<Mutex<VecDeque<Told>>>,
    what: Mutex<Option<Told>>,
}

impl Owner for Tells {
    fn committed(&self, _mark: u64) {
        self.told.lock().extend(self.what.lock().take());
    }

    fn failed(&self, _error: &Error) {}
}

/// Partition of a leader, with the records that are not committed yet.
pub struct Cell {
    partition: Partition,
    log: Arc<dyn PartitionLog>,
    waiting: Mutex<VecDeque<(Offset, Value)>>,
    told: Arc<Mutex<VecDeque<Told>>>,
}

impl Owner for Cell {
    fn committed(&self, mark: u64) {
        self.log.commit(mark);
        let mut waiting = self.waiting.lock();
        let count = waiting.partition_point(|(offset, _)| *offset < mark);
        let committed = waiting.drain(..count).collect();
        self.told.lock().push_back(Told::Committed(self.partition, committed));
    }

    fn failed(&self, _error: &Error) {
        self.waiting.lock().clear();
    }
}

impl Leading {
    fn new(term: Term, store: &Store) -> Self {
        let mut leading = Self { term, views: None, cells: Vec::new(), told: Arc::default() };
        let mut topics = store.topics();
        topics.sort_by_key(|topic| topic.id);
        topics.iter().for_each(|topic| leading.add(topic));
        leading
    }

    fn add(&mut self, topic: &StoredTopic) {
        let cell = |(number, log): (u32, &Arc<dyn PartitionLog>)| {
            let (partition, told) = ((topic.id, number), self.told.clone());
            Arc::new(Cell { partition, log: log.clone(), waiting: Mutex::default(), told })
        };
        let cells: Vec<_> = (0..).zip(&topic.partitions).map(cell).collect();
        self.cells.extend(cells);
    }
}

/// Returns the committed batches of a partition from an offset on.
pub fn batches(log: &Arc<dyn PartitionLog>, from: Offset) -> Result<Vec<RecordBatch>> {
    let mut at = from;
    let mut all = Vec::new();
    let end = log.extent().end;
    while at < end {
        let batches = match log.clone().read(at, READ_BYTES)? {
            Read::Batches(batches) => batches,
            Read::Cold(cold) => cold.run()?,
        };
        let Some(last) = batches.last() else {
            return Err(Error::new(ErrorKind::Corrupt, format!("there is nothing at offset {at} of {end}")));
        };
        at = last.next_offset();
        all.extend(batches);
    }
    Ok(all)
}

/// Returns the committed values of a partition from an offset on, with their offsets.
pub fn values(log: &Arc<dyn PartitionLog>, from: Offset) -> Result<Vec<(Offset, Value)>> {
    let mut values = Vec::new();
    for batch in batches(log, from)? {
        for record in batch.records()?.iter() {
            let record = record?;
            let text = record.value.unwrap_or_default();
            let value = text.get(..8).and_then(|bytes| bytes.try_into().ok()).map(Value::from_be_bytes);
            let value = value.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a record without a number"))?;
            if record.offset >= from {
                values.push((record.offset, value));
            }
        }
    }
    Ok(values)
}

impl World {
    /// Notes what the clients of a node were told, and begins or ends its leadership.
    pub(super) fn serve(&mut self, at: usize) -> Outcome {
        let Some(process) = self.process(at) else { return Ok(()) };
        let stance = process.shard.stance();
        if let Some(leading) = &process.leading {
            let is_over = stance.term != leading.term || stance.leader != Some(number(at));
            if is_over {
                process.shard.close(leading.term);
            }
            let told: Vec<Told> = leading.told.lock().drain(..).collect();
            for told in told {
                self.run.acknowledged += self.ledger.note(told)?;
            }
            if is_over {
                self.drop_calls(at);
                if let Some(process) = &mut self.nodes[at].process {
                    process.leading = None;
                }
            }
        }
        let Some(process) = self.process(at) else { return Ok(()) };
        let may_lead = process.leading.is_none() && stance.serves_from.is_some();
        if may_lead && process.shard.open(stance.term) {
            let mut leading = Leading::new(stance.term, &process.store);
            if self.has_views {
                leading.views = match Views::start(stance.term, number(at), &process.store, self.now) {
                    Ok(views) => Some(views),
                    Err(_) if self.nodes[at].disk.is_off() => None,
                    Err(violation) => return Err(violation),
                };
            }
            self.ledger.check(&process.store, number(at))?;
            self.run.elections += 1;
            if let Some(process) = &mut self.nodes[at].process {
                process.leading = Some(leading);
            }
        }
        Ok(())
    }

    /// One client does something at a node that leads, or thinks so.
    pub(super) fn client(&mut self) -> Outcome {
        let pause = MS / 2 + self.random.below(6 * MS);
        self.schedule(pause, Event::Client);
        self.check_leases()?;
        let first = self.random.below(NODES as u64) as usize;
        let leads = |at: &usize| self.nodes[*at].process.as_ref().is_some_and(|process| process.leading.is_some());
        let Some(at) = (0..NODES).map(|i| (first + i) % NODES).find(leads) else { return Ok(()) };
        if self.pause(at).is_some() {
            return Ok(());
        }
        match self.random.below(40) {
            _ if self.has_views => self.call_views(at)?,
            _ if self.is_quiet => self.read(at)?,
            0 => self.create_topic(at)?,
            1 => self.delete_topic(at)?,
            2 => self.trim(at)?,
            3..10 => self.read(at)?,
            _ => self.append(at)?,
        }
        self.collect(at)
    }

    /// At no time may two nodes answer clients.
    fn check_leases(&mut self) -> Outcome {
        let may_serve = |at: &usize| {
            self.pause(*at).is_none()
                && self.process(*at).is_some_and(|process| {
                    process.leading.as_ref().is_some_and(|leading| process.shard.may_serve(leading.term))
                })
        };
        let serving: Vec<usize> = (0..NODES).filter(may_serve).map(|at| at + 1).collect();
        check(serving.len() < 2, || format!("nodes {serving:?} serve at the same time"))
    }

    fn create_topic(&mut self, at: usize) -> Outcome {
        let name = format!("topic-{}", self.ledger.next_value());
        let Some(process) = self.process(at) else { return Ok(()) };
        if process.store.topics().len() >= TOPICS_MAX {
            return Ok(());
        }
        let Some(leading) = &process.leading else { return Ok(()) };
        let settings = TopicSettings { partitions: PARTITIONS, storage: Storage::Disk, ..TopicSettings::default() };
        let name = TopicName::parse(&name).map_err(|error| Violation(error.to_string()))?;
        let owner = Arc::new(Tells { told: leading.told.clone(), what: Mutex::default() });
        let created = process.store.create_topic(name, settings, owner.clone());
        if let Ok(topic) = created {
            // It is not committed before the next call of the node.
            *owner.what.lock() = Some(Told::Created(topic.id));
            self.ledger.attempted(topic.id);
            if let Some(leading) = self.nodes[at].process.as_mut().and_then(|process| process.leading.as_mut()) {
                leading.add(&topic);
            }
        }
        Ok(())
    }

    fn delete_topic(&mut self, at: usize) -> Outcome {
        if !self.random.one_in(3) {
            return Ok(());
        }
        let chosen = self.random.number() as usize;
        let Some(process) = self.process(at) else { return Ok(()) };
        let Some(leading) = &process.leading else { return Ok(()) };
        let Some(cell) = leading.cells.get(chosen % leading.cells.len().max(1)) else { return Ok(()) };
        let id = cell.partition.0;
        let what = Mutex::new(Some(Told::Deleted(id)));
        let deleted = process.store.delete_topic(id, Arc::new(Tells { told: leading.told.clone(), what }));
        if deleted.is_ok() {
            self.ledger.deleting(id);
            if let Some(leading) = self.nodes[at].process.as_mut().and_then(|process| process.leading.as_mut()) {
                leading.cells.retain(|cell| cell.partition.0 != id);
            }
        }
        Ok(())
    }

    fn cell(&mut self, at: usize) -> Option<Arc<Cell>> {
        let chosen = self.random.number() as usize;
        let leading = self.process(at)?.leading.as_ref()?;
        leading.cells.get(chosen % leading.cells.len().max(1)).cloned()
    }

    fn append(&mut self, at: usize) -> Outcome {
        let Some(cell) = self.cell(at) else { return Ok(()) };
        let count = 1 + self.random.below(3);
        let base = cell.log.end();
        let mut builder = BatchBuilder::new();
        let mut records = Vec::new();
        for offset in base..base + count {
            let value = self.ledger.issue(cell.partition);
            let padding = if self.random.one_in(4) { self.random.below(PADDING_BYTES_MAX) } else { 0 };
            let mut body = value.to_be_bytes().to_vec();
            body.resize(8 + padding as usize, b'.');
            let pushed = builder.push(wall_clock() as i64, None, Some(&body), &[]);
            pushed.map_err(|error| Violation(format!("a record is refused: {error}")))?;
            records.push((offset, value));
        }
        let Some(batch) = builder.finish() else { return Ok(()) };
        self.publish(at, &cell, batch.stamp(base), records)
    }

    fn publish(&mut self, at: usize, cell: &Arc<Cell>, batch: RecordBatch, records: Vec<(Offset, Value)>) -> Outcome {
        if self.process(at).is_none() || cell.log.admit().is_err() {
            return Ok(());
        }
        cell.waiting.lock().extend(records.iter().copied());
        if cell.log.append(batch, wall_clock(), cell.clone()).is_err() {
            let mut waiting = cell.waiting.lock();
            let left = waiting.len().saturating_sub(records.len());
            waiting.truncate(left);
        }
        Ok(())
    }

    fn trim(&mut self, at: usize) -> Outcome {
        let Some(cell) = self.cell(at) else { return Ok(()) };
        let extent = cell.log.extent();
        let start = extent.start + self.random.below((extent.end - extent.start) / 2 + 1);
        if start == extent.start || self.process(at).is_none() {
            return Ok(());
        }
        self.ledger.trimming(cell.partition, start);
        cell.log.clone().set_start(start, Arc::new(Ignored)).map_or_else(drop, drop);
        Ok(())
    }

    /// Reads a partition at a node that may answer: it has everything that was acknowledged.
    fn read(&mut self, at: usize) -> Outcome {
        let Some(cell) = self.cell(at) else { return Ok(()) };
        let Some(process) = self.process(at) else { return Ok(()) };
        if !process.leading.as_ref().is_some_and(|leading| process.shard.may_serve(leading.term)) {
            return Ok(());
        }
        self.run.reads += 1;
        let extent = cell.log.extent();
        let from = extent.start + self.random.below(extent.end - extent.start + 1);
        let values = match values(&cell.log, from) {
            Ok(values) => values,
            Err(_) if self.nodes[at].disk.is_off() => return Ok(()),
            Err(error) => return Err(Violation(format!("node {} cannot read {:?}: {error}", at + 1, cell.partition))),
        };
        self.ledger.check_values(cell.partition, from, extent.end, &values, number(at))
    }
}
