//! Writer: the single thread that writes all queued operations in one transaction.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use engine::catalog::encoding::encode_settings;
use engine::{Error, Offset, RecordBatch, TopicSettings};
use rusqlite::{Connection, OptionalExtension};

use super::partition::{Removed, SqlitePartition};
use super::positions::Shown;
use super::schema::{failed, is_passing};
use super::{Op, OpKind, Shared, Turn};

/// Maximum number of batches that one transaction removes because they are before a start, or of a deleted topic.
const SWEEP_BATCHES: usize = 512;
/// Delay before a retry after a full disk or a lock.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of cached statements.
const STATEMENTS_MAX: usize = 64;

/// Rows that are removed gradually.
pub(super) struct Sweep {
    pub(super) row: i64,
    pub(super) partition: Weak<SqlitePartition>,
    /// Offset; batches that end at or before it are removed. `None`: all batches, and the row of the partition.
    pub(super) to: Option<Offset>,
}

pub(super) struct Writer {
    connection: Connection,
    shared: Arc<Shared>,
    sweeps: VecDeque<Sweep>,
    /// Largest timestamp of each partition to which something was appended.
    reached_ms: HashMap<i64, i64>,
}

/// Partition with forgotten records.
struct Dirty {
    partition: Arc<SqlitePartition>,
    forgotten: Vec<Offset>,
}

/// Effects of a transaction other than added rows.
#[derive(Default)]
struct Done {
    removed: BTreeMap<i64, (Arc<SqlitePartition>, Removed)>,
    /// Number of sweeps that have nothing left to remove.
    swept: usize,
    forgotten: u64,
}

impl Done {
    fn note(&mut self, partition: &Arc<SqlitePartition>, bytes: u64) {
        let entry = self.removed.entry(partition.id).or_insert_with(|| (partition.clone(), Removed::default()));
        entry.1.bytes += bytes;
    }
}

impl Writer {
    pub(super) fn new(connection: Connection, shared: Arc<Shared>, sweeps: Vec<Sweep>) -> Self {
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Self { connection, shared, sweeps: sweeps.into(), reached_ms: HashMap::new() }
    }

    pub(super) fn run(mut self) {
        while let Some(Turn { ops, dirty }) = self.shared.gather(self.sweeps.is_empty()) {
            let dirty = dirty.into_iter().map(|partition| {
                let mut state = partition.state.lock();
                state.is_dirty = false;
                let forgotten = std::mem::take(&mut state.forgotten);
                drop(state);
                Dirty { partition, forgotten }
            });
            let dirty: Vec<Dirty> = dirty.collect();
            match self.commit(&ops, &dirty) {
                Ok(done) => self.notify_owners(ops, &done),
                Err(error) => return self.shared.break_off(&error, ops),
            }
        }
        // Closing the last connection merges everything into the one file.
        self.shared.readers.close();
    }

    /// Executes all operations in one transaction. Waits for temporary obstacles.
    fn commit(&mut self, ops: &[Op], dirty: &[Dirty]) -> Result<Done, Error> {
        let begin = Instant::now();
        loop {
            let error = match self.attempt(ops, dirty) {
                Ok(done) => {
                    let nanos = begin.elapsed().as_nanos() as u64;
                    self.shared.counts.commit_nanos.fetch_add(nanos, Ordering::Relaxed);
                    self.shared.counts.commits.fetch_add(1, Ordering::Relaxed);
                    if self.shared.trouble.lock().take().is_some() {
                        tracing::info!(path = %self.shared.path.display(), "the database accepts writes again");
                        self.shared.notify_room(self.shared.queue.lock());
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            if !self.connection.is_autocommit() {
                self.connection.execute_batch("ROLLBACK").map_err(failed("write", &self.shared.path))?;
            }
            let is_passing = is_passing(&error);
            let error = failed("write", &self.shared.path)(error);
            let mut queue = self.shared.queue.lock();
            let is_late = begin.elapsed() > self.shared.settings.lock_patience;
            if !is_passing || (queue.is_stopped && is_late) {
                return Err(error);
            }
            if is_late && self.shared.trouble.lock().replace(error.clone()).is_none() {
                tracing::warn!(%error, "writes to the database wait until the cause is fixed");
            }
            if !queue.is_stopped {
                self.shared.has_work.wait_for(&mut queue, TRY_AGAIN);
            }
        }
    }

    fn attempt(&mut self, ops: &[Op], dirty: &[Dirty]) -> rusqlite::Result<Done> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let now_ms = (self.shared.clock)() as i64;
        let mut done = Done::default();
        for op in ops {
            match &op.kind {
                OpKind::Batch { partition, batch } => self.insert(partition.id, batch, now_ms)?,
                OpKind::Start { partition, start } => {
                    self.connection
                        .prepare_cached("UPDATE partitions SET first_offset = max(first_offset, ?2) WHERE id = ?1")?
                        .execute((partition.id, *start as i64))?;
                }
                OpKind::Create { id, name, settings, partitions } => {
                    self.insert_topic(*id, name.as_str(), settings)?;
                    self.insert_partitions(*id, settings, partitions)?;
                }
                OpKind::Alter { id, settings, partitions } => {
                    self.update_topic(*id, settings)?;
                    self.insert_partitions(*id, settings, partitions)?;
                }
                OpKind::Delete { id, .. } => {
                    self.connection.execute("DELETE FROM topics WHERE id = ?1", [id])?;
                    self.connection.execute("UPDATE partitions SET topic = NULL WHERE topic = ?1", [id])?;
                }
                OpKind::Nothing => {}
            }
        }
        for Dirty { partition, forgotten } in dirty {
            done.note(partition, 0);
            self.forget(partition, forgotten, &mut done)?;
        }
        self.sweep(&mut done)?;
        for (partition, removed) in done.removed.values_mut() {
            self.settle(partition, removed)?;
        }
        self.connection.execute_batch("COMMIT")?;
        Ok(done)
    }

    fn insert(&mut self, partition: i64, batch: &RecordBatch, now_ms: i64) -> rusqlite::Result<()> {
        let shown = Shown::of(batch);
        let reached_ms = self.reached(partition)?.max(batch.max_timestamp_ms());
        self.reached_ms.insert(partition, reached_ms);
        self.connection
            .prepare_cached(
                "INSERT INTO batches(partition, first_offset, next_offset, size, appended_ms, time_ms_max, reached_ms,
                 records, producer, bytes, plain) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute((
                partition,
                batch.base_offset() as i64,
                batch.next_offset() as i64,
                batch.len() as i64,
                now_ms,
                batch.max_timestamp_ms(),
                reached_ms,
                batch.count(),
                batch.producer().map(|producer| producer.id),
                &batch.bytes()[..],
                shown.plain.as_deref(),
            ))?;
        self.insert_positions(self.connection.last_insert_rowid(), &shown)
    }

    fn insert_positions(&self, batch: i64, shown: &Shown) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "INSERT INTO positions(batch, offset, time_ms, key_at, key_bytes, value_at, value_bytes, texts, headers)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for of in &shown.positions {
            let (key_at, key_bytes) = of.key;
            let (value_at, value_bytes) = of.value;
            let place = (key_at, key_bytes, value_at, value_bytes);
            statement.execute((
                batch,
                of.offset,
                of.time_ms,
                place.0,
                place.1,
                place.2,
                place.3,
                of.texts,
                of.headers.as_str(),
            ))?;
        }
        Ok(())
    }

    /// Returns the largest timestamp that a partition has reached.
    fn reached(&self, partition: i64) -> rusqlite::Result<i64> {
        if let Some(reached_ms) = self.reached_ms.get(&partition) {
            return Ok(*reached_ms);
        }
        let mut last = self.connection.prepare_cached(
            "SELECT reached_ms FROM batches INDEXED BY batches_by_offset WHERE partition = ?1
             ORDER BY first_offset DESC LIMIT 1",
        )?;
        Ok(last.query_row([partition], |row| row.get(0)).optional()?.unwrap_or(i64::MIN))
    }

    fn insert_topic(&self, id: u32, name: &str, settings: &TopicSettings) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "INSERT INTO topics(id, name, partitions, retention_bytes, retention_ms, settings)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        let (bytes, ms) = retention(settings);
        statement.execute((id, name, settings.partitions, bytes, ms, encode_settings(settings))).map(drop)
    }

    fn update_topic(&self, id: u32, settings: &TopicSettings) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "UPDATE topics SET partitions = ?2, retention_bytes = ?3, retention_ms = ?4, settings = ?5 WHERE id = ?1",
        )?;
        let (bytes, ms) = retention(settings);
        statement.execute((id, settings.partitions, bytes, ms, encode_settings(settings))).map(drop)
    }

    /// Inserts rows for the last partitions of a topic.
    fn insert_partitions(&self, topic: u32, settings: &TopicSettings, rows: &[i64]) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "INSERT INTO partitions(id, topic, number, first_offset, next_offset, producers_end)
             VALUES(?1, ?2, ?3, 0, 0, 0)",
        )?;
        let first = settings.partitions - rows.len() as u32;
        for (number, row) in (first..).zip(rows) {
            statement.execute((row, topic, number))?;
        }
        Ok(())
    }

    /// Removes records, and each batch with its last record. A batch is rewritten when half of its records are deleted.
    fn forget(&self, of: &Arc<SqlitePartition>, offsets: &[Offset], done: &mut Done) -> rusqlite::Result<()> {
        let mut find = self.connection.prepare_cached(
            "SELECT id, first_offset, next_offset, size, records FROM batches INDEXED BY batches_by_offset
             WHERE partition = ?1 AND first_offset <= ?2 ORDER BY first_offset DESC LIMIT 1",
        )?;
        let start = of.state.lock().start();
        let mut offsets = offsets.to_vec();
        offsets.sort_unstable();
        offsets.dedup();
        let mut rest = &offsets[..];
        while let [first, ..] = rest {
            let found = find.query_row((of.id, *first as i64), |row| {
                Ok((row.get(0)?, (row.get::<_, i64>(1)?, row.get::<_, i64>(2)?), row.get::<_, i64>(3)?, row.get(4)?))
            });
            let found: Option<(i64, (i64, i64), i64, u32)> = found.optional()?;
            let Some((batch, (begin, next), size, records)) = found.filter(|found| found.1.1 > *first as i64) else {
                rest = &rest[1..];
                continue;
            };
            let count = rest.partition_point(|offset| *offset < next as u64);
            let (of_batch, others) = rest.split_at(count);
            rest = others;
            if next - begin == 1 {
                self.remove(batch)?;
                done.note(of, size as u64);
            } else {
                let smaller = self.forget_among(batch, (records, size), of_batch, start)?;
                done.note(of, smaller);
            }
            done.forgotten += count as u64;
        }
        Ok(())
    }

    /// Removes some of the records of a batch. Returns the number of bytes by which the batch shrank.
    fn forget_among(
        &self,
        batch: i64,
        (records, size): (u32, i64),
        offsets: &[Offset],
        start: Offset,
    ) -> rusqlite::Result<u64> {
        let mut statement = self.connection.prepare_cached("DELETE FROM positions WHERE batch = ?1 AND offset = ?2")?;
        let mut removed = 0;
        for offset in offsets {
            removed += statement.execute((batch, *offset as i64))?;
        }
        // Records before the start are deleted in any case.
        let mut before = self.connection.prepare_cached("DELETE FROM positions WHERE batch = ?1 AND offset < ?2")?;
        removed += before.execute((batch, start as i64))?;
        let mut count = self.connection.prepare_cached("SELECT count(*) FROM positions WHERE batch = ?1")?;
        let left: u32 = count.query_row([batch], |row| row.get(0))?;
        if removed == 0 || left > records / 2 {
            return Ok(0);
        }
        if left == 0 {
            self.remove(batch)?;
            return Ok(size as u64);
        }
        self.thin(batch, size)
    }

    /// Rewrites a batch with its remaining records.
    fn thin(&self, batch: i64, size: i64) -> rusqlite::Result<u64> {
        let mut bytes = self.connection.prepare_cached("SELECT bytes FROM batches WHERE id = ?1")?;
        let bytes: Vec<u8> = bytes.query_row([batch], |row| row.get(0))?;
        let mut left =
            self.connection.prepare_cached("SELECT offset FROM positions WHERE batch = ?1 ORDER BY offset")?;
        let left = left.query_map([batch], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let is_left = |offset: Offset| left.binary_search(&(offset as i64)).is_ok();
        let whole = RecordBatch::parse(bytes.into());
        let thinned = match whole.and_then(|whole| whole.thinned(|record| is_left(record.offset))) {
            Ok(thinned) => thinned,
            Err(error) => {
                tracing::debug!(%error, "cannot shorten a batch; it is kept until its last record is deleted");
                return Ok(0);
            }
        };
        let shown = Shown::of(&thinned);
        self.connection
            .prepare_cached("UPDATE batches SET bytes = ?2, plain = ?3, size = ?4, records = ?5 WHERE id = ?1")?
            .execute((batch, &thinned.bytes()[..], shown.plain.as_deref(), thinned.len() as i64, thinned.count()))?;
        self.connection.prepare_cached("DELETE FROM positions WHERE batch = ?1")?.execute([batch])?;
        self.insert_positions(batch, &shown)?;
        Ok((size as u64).saturating_sub(thinned.len() as u64))
    }

    fn remove(&self, batch: i64) -> rusqlite::Result<()> {
        self.connection.prepare_cached("DELETE FROM positions WHERE batch = ?1")?.execute([batch])?;
        self.connection.prepare_cached("DELETE FROM batches WHERE id = ?1")?.execute([batch]).map(drop)
    }

    /// Removes some of the rows that are to be removed.
    fn sweep(&self, done: &mut Done) -> rusqlite::Result<()> {
        let mut room = SWEEP_BATCHES;
        for sweep in &self.sweeps {
            let mut rows = self.connection.prepare_cached(
                "SELECT id, size FROM batches INDEXED BY batches_by_offset
                 WHERE partition = ?1 AND first_offset < ?2 AND next_offset <= ?2 ORDER BY first_offset LIMIT ?3",
            )?;
            let to = sweep.to.map_or(i64::MAX, |to| to as i64);
            let found = rows.query_map((sweep.row, to, room as i64), |row| Ok((row.get(0)?, row.get(1)?)))?;
            let found = found.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
            for (batch, size) in &found {
                self.remove(*batch)?;
                if let Some(partition) = sweep.partition.upgrade() {
                    done.note(&partition, *size as u64);
                }
            }
            room -= found.len();
            if room == 0 {
                break;
            }
            if sweep.to.is_none() {
                self.connection.execute("DELETE FROM partitions WHERE id = ?1", [sweep.row])?;
            }
            done.swept += 1;
        }
        Ok(())
    }

    /// Stores data that can no longer be derived from the remaining rows.
    fn settle(&self, partition: &Arc<SqlitePartition>, removed: &mut Removed) -> rusqlite::Result<()> {
        let (start, committed, producers) = {
            let state = partition.state.lock();
            removed.saved = state.unsaved;
            let producers = (state.unsaved > 0).then(|| {
                let mut bytes = BytesMut::new();
                state.producers.encode(&mut bytes);
                bytes
            });
            (state.start(), state.committed, producers)
        };
        self.connection
            .prepare_cached("UPDATE partitions SET next_offset = max(next_offset, ?2) WHERE id = ?1")?
            .execute((partition.id, committed as i64))?;
        if let Some(producers) = producers {
            self.connection
                .prepare_cached("UPDATE partitions SET producers = ?2, producers_end = ?3 WHERE id = ?1")?
                .execute((partition.id, &producers[..], committed as i64))?;
        }
        let mut first = self.connection.prepare_cached(
            "SELECT first_offset, appended_ms FROM batches INDEXED BY batches_by_offset
             WHERE partition = ?1 AND next_offset > ?2 AND first_offset >= coalesce((SELECT max(first_offset)
                FROM batches WHERE partition = ?1 AND first_offset <= ?2), ?2)
             ORDER BY first_offset LIMIT 1",
        )?;
        let row = first.query_row((partition.id, start as i64), |row| Ok((row.get(0)?, row.get(1)?)));
        let row: Option<(i64, i64)> = row.optional()?;
        removed.first = row.map(|(first, appended_ms)| (first as Offset, appended_ms as u64));
        Ok(())
    }

    /// Notifies the owners of committed operations, in order.
    fn notify_owners(&mut self, ops: Vec<Op>, done: &Done) {
        self.shared.counts.operations.fetch_add(ops.len() as u64, Ordering::Relaxed);
        self.shared.counts.forgotten_records.fetch_add(done.forgotten, Ordering::Relaxed);
        self.sweeps.drain(..done.swept);
        let mut ops_left = ops.iter().peekable();
        while let Some(op) = ops_left.next() {
            match &op.kind {
                OpKind::Start { partition, start } => {
                    partition.apply_start(*start);
                    let to = Some(*start);
                    self.sweeps.push_back(Sweep { row: partition.id, partition: Arc::downgrade(partition), to });
                }
                OpKind::Delete { name, partitions, .. } => {
                    for row in partitions {
                        self.sweeps.push_back(Sweep { row: *row, partition: Weak::new(), to: None });
                        self.reached_ms.remove(row);
                    }
                    self.shared.deleting.lock().remove(name);
                }
                _ => {}
            }
            // An owner with several operations is notified of the last one only.
            if ops_left.peek().is_none_or(|next| !Arc::ptr_eq(&next.owner, &op.owner)) {
                op.owner.committed(op.mark);
            }
        }
        for (partition, removed) in done.removed.values() {
            partition.note_removed(removed);
        }
        self.shared.keep_recent(&ops);
    }
}

/// Returns the two retention limits as numbers of the database.
fn retention(settings: &TopicSettings) -> (i64, i64) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    (number(settings.retention_bytes), number(settings.retention_ms))
}
