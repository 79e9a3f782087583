//! Reads of rows: a small pool of connections, used outside of every lock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OptionalExtension};

use super::partition::SqlitePartition;
use super::schema::{failed, open_reader};
use crate::holes::Gathered;
use crate::log::ColdRead;

/// Maximum time that a read waits for a connection.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of rows that one check for retention reads.
const RETAIN_ROWS_MAX: i64 = 4096;

/// Read of batches that are in rows only.
pub struct RowsRead {
    pub(super) partition: Arc<SqlitePartition>,
    pub(super) from: Offset,
    /// Offset before which all was committed when the read began.
    pub(super) end: Offset,
    pub(super) bytes_max: usize,
}

impl ColdRead for RowsRead {
    fn run(self: Box<Self>) -> Result<Vec<RecordBatch>> {
        let Self { partition, from, end, bytes_max } = *self;
        let batches = partition.shared.readers.batches(partition.id, from, end, bytes_max);
        // Rows that retention or a deletion removed in the meantime are not a hole.
        partition.check_readable(from)?;
        batches.inspect_err(|error| tracing::error!(%error, "cannot read a batch"))
    }
}

/// Fields of a batch that retention needs.
pub(super) struct RetainedRow {
    pub(super) next: Offset,
    pub(super) bytes: u64,
    pub(super) appended_ms: u64,
}

pub(super) struct Readers {
    path: PathBuf,
    max: usize,
    pool: Mutex<Pool>,
    returned: Condvar,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    open: usize,
}

impl Readers {
    pub(super) fn new(path: PathBuf, max: usize) -> Self {
        Self { path, max, pool: Mutex::default(), returned: Condvar::new() }
    }

    /// Runs `work` with an unused connection. A connection that failed is closed.
    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let taken = {
            let mut pool = self.pool.lock();
            loop {
                if let Some(connection) = pool.idle.pop() {
                    break Some(connection);
                }
                if pool.open < self.max {
                    pool.open += 1;
                    break None;
                }
                if self.returned.wait_for(&mut pool, TURN_WAIT).timed_out() {
                    let path = self.path.display();
                    return Err(Error::busy(format!(
                        "{} reads of {path} are running already; try again later",
                        self.max
                    )));
                }
            }
        };
        let opened = taken.map_or_else(|| open_reader(&self.path), Ok);
        let (connection, result) = match opened {
            Ok(connection) => {
                let result = work(&connection);
                (Some(connection).filter(|_| result.is_ok()), result)
            }
            Err(error) => (None, Err(error)),
        };
        let mut pool = self.pool.lock();
        match connection {
            Some(connection) => pool.idle.push(connection),
            None => pool.open -= 1,
        }
        drop(pool);
        self.returned.notify_one();
        result.map_err(failed("read", &self.path))
    }

    /// Closes the unused connections.
    pub(super) fn close(&self) {
        let mut pool = self.pool.lock();
        pool.open -= pool.idle.len();
        pool.idle.clear();
    }

    fn batches(&self, partition: i64, from: Offset, end: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let mut gathered = Some(Gathered::new(from, bytes_max));
        let mut full = None;
        let mut damage = None;
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT bytes FROM batches INDEXED BY batches_by_offset WHERE partition = ?1 AND first_offset < ?3
                 AND first_offset >= coalesce((SELECT max(first_offset) FROM batches
                    WHERE partition = ?1 AND first_offset <= ?2), ?2)
                 ORDER BY first_offset",
            )?;
            let mut rows = statement.query((partition, from as i64, end as i64))?;
            while let Some(row) = rows.next()? {
                let bytes = Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?);
                match RecordBatch::parse(bytes) {
                    Ok(batch) if batch.next_offset() <= from => {}
                    Ok(batch) => {
                        if !gathered.as_mut().is_some_and(|gathered| gathered.push(batch)) {
                            full = gathered.take();
                            break;
                        }
                    }
                    Err(error) => {
                        damage = Some(error);
                        break;
                    }
                }
            }
            Ok(())
        })?;
        match (damage, full, gathered) {
            (_, Some(full), _) => Ok(full.batches()),
            (None, None, Some(gathered)) => Ok(gathered.reach(end)),
            // Batches before the damage are returned.
            (Some(_), None, Some(gathered)) if !gathered.is_empty() => Ok(gathered.batches()),
            (damage, ..) => Err(self.damaged(partition, from, damage)),
        }
    }

    fn damaged(&self, partition: i64, from: Offset, damage: Option<Error>) -> Error {
        let path = self.path.display();
        let why = damage.map_or_else(String::new, |damage| damage.message);
        let what = format!(
            "{path} is damaged: the batch at or after offset {from} in the rows of partition {partition} is invalid: \
             {why}. Put back a copy of it"
        );
        Error::new(ErrorKind::Corrupt, what)
    }

    /// Returns the offset of the first batch from `start` to `end` with a record of this time or later.
    pub(super) fn first_at(&self, partition: i64, start: Offset, end: Offset, time_ms: i64) -> Result<Option<Offset>> {
        self.with(|connection| {
            let mut probe = connection.prepare_cached(
                "SELECT first_offset, reached_ms FROM batches INDEXED BY batches_by_offset
                 WHERE partition = ?1 AND first_offset >= ?2 AND first_offset < ?3 ORDER BY first_offset LIMIT 1",
            )?;
            // No batch before the first one that reached the time qualifies. The first one may not qualify either, if
            // the record that reached the time was deleted: then the following ones are checked one by one.
            let mut from = 0;
            let mut to = end as i64;
            while from < to {
                let middle = from + (to - from) / 2;
                let found =
                    probe.query_row((partition, middle, to), |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                match found {
                    Some((at, reached)) if i64::lt(&reached, &time_ms) => from = i64::wrapping_add(at, 1),
                    _ => to = middle,
                }
            }
            let mut first = connection.prepare_cached(
                "SELECT first_offset FROM batches INDEXED BY batches_by_offset WHERE partition = ?1
                 AND first_offset >= ?2 AND first_offset < ?3 AND next_offset > ?4 AND time_ms_max >= ?5
                 ORDER BY first_offset LIMIT 1",
            )?;
            let found = first.query_row((partition, from, end as i64, start as i64, time_ms), |row| row.get(0));
            Ok(found.optional()?.map(|found: i64| found as Offset))
        })
    }

    /// Returns the offset of the first batch that may stay; `end` if none may.
    pub(super) fn first_to_stay(
        &self,
        partition: i64,
        start: Offset,
        end: Offset,
        mut may_stay: impl FnMut(&RetainedRow) -> bool,
    ) -> Result<Offset> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT first_offset, next_offset, size, appended_ms FROM batches INDEXED BY batches_by_offset
                 WHERE partition = ?1 AND first_offset < ?2 ORDER BY first_offset LIMIT ?3",
            )?;
            let mut rows = statement.query((partition, end as i64, RETAIN_ROWS_MAX))?;
            let mut looked_at = 0;
            let mut last = start;
            while let Some(row) = rows.next()? {
                let number = |at| row.get::<_, i64>(at).map(|number| number as u64);
                let first = number(0)?;
                let next = number(1)?;
                looked_at += 1;
                last = first;
                if may_stay(&RetainedRow { next, bytes: number(2)?, appended_ms: number(3)? }) {
                    return Ok(first);
                }
            }
            Ok(if looked_at < RETAIN_ROWS_MAX { end } else { last })
        })
    }
}
