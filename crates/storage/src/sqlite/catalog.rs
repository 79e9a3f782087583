//! Topics of the database, and their recovery.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use engine::catalog::encoding::decode_settings;
use engine::producers::Producers;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result, TopicName, TopicSettings};
use rusqlite::{Connection, OptionalExtension};

use super::partition::{Found, SqlitePartition};
use super::schema::failed;
use super::writer::{Sweep, Writer};
use super::{ID_BIT, Shared};
use crate::info::NOT_SERVED;
use crate::log::PartitionLog;
use crate::shared::StoredTopic;

struct Topic {
    name: TopicName,
    settings: TopicSettings,
    partitions: Vec<Arc<SqlitePartition>>,
    /// Settings once all pending changes are committed.
    due: TopicSettings,
}

/// Topics by their ids, without [`ID_BIT`]. Ids are never reused.
#[derive(Default)]
pub(super) struct Catalog {
    topics: BTreeMap<u32, Topic>,
    last_id: u32,
    /// Largest id in the table `partitions`, including those of pending changes.
    last_row: i64,
}

impl Catalog {
    pub(super) fn next_id(&self) -> u32 {
        self.last_id + 1
    }

    /// Reserves the ids of the next `count` rows.
    pub(super) fn take_rows(&mut self, count: u32) -> Vec<i64> {
        let first = self.last_row + 1;
        self.last_row += i64::from(count);
        (first..=self.last_row).collect()
    }

    pub(super) fn topics(&self) -> Vec<StoredTopic> {
        self.topics.iter().map(|(id, topic)| topic.stored(*id)).collect()
    }

    fn topic(&mut self, id: u32) -> Result<&mut Topic> {
        self.topics.get_mut(&id).ok_or_else(|| Error::not_found("the topic was deleted"))
    }

    /// Returns the settings that a topic has once all pending changes are committed.
    pub(super) fn settings_due(&mut self, id: u32) -> Result<TopicSettings> {
        self.topic(id).map(|topic| topic.due)
    }

    /// Notes the settings of a change that is pending now.
    pub(super) fn set_due(&mut self, id: u32, due: TopicSettings) {
        if let Some(topic) = self.topics.get_mut(&id) {
            topic.due = due;
        }
    }

    /// Returns the name of a topic, and the rows of its partitions.
    pub(super) fn place(&mut self, id: u32) -> Result<(TopicName, Vec<i64>)> {
        let topic = self.topic(id)?;
        Ok((topic.name.clone(), topic.partitions.iter().map(|partition| partition.id).collect()))
    }

    pub(super) fn add(
        &mut self,
        id: u32,
        name: TopicName,
        settings: TopicSettings,
        rows: Vec<i64>,
        shared: &Arc<Shared>,
    ) -> StoredTopic {
        let partitions = open_new(&rows, shared).collect();
        let topic = Topic { name, settings, partitions, due: settings };
        let stored = topic.stored(id);
        self.topics.insert(id, topic);
        self.last_id = id;
        stored
    }

    /// Replaces the settings of a topic, and adds the partitions with these rows. Does nothing if the topic was
    /// deleted.
    pub(super) fn change(&mut self, id: u32, settings: TopicSettings, rows: &[i64], shared: &Arc<Shared>) {
        if let Some(topic) = self.topics.get_mut(&id) {
            topic.settings = settings;
            topic.partitions.extend(open_new(rows, shared));
        }
    }

    pub(super) fn partitions(&mut self, id: u32) -> Result<Vec<Arc<dyn PartitionLog>>> {
        self.topic(id).map(|topic| topic.logs())
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(topic) = self.topics.remove(&id) {
            topic.partitions.iter().for_each(|partition| partition.delete());
        }
    }
}

fn open_new(rows: &[i64], shared: &Arc<Shared>) -> impl Iterator<Item = Arc<SqlitePartition>> {
    rows.iter().map(|row| SqlitePartition::new(*row, shared.clone(), Found::default()))
}

impl Topic {
    fn stored(&self, id: u32) -> StoredTopic {
        StoredTopic { id: id | ID_BIT, name: self.name.clone(), settings: self.settings, partitions: self.logs() }
    }

    fn logs(&self) -> Vec<Arc<dyn PartitionLog>> {
        self.partitions.iter().map(|partition| partition.clone() as Arc<dyn PartitionLog>).collect()
    }
}

/// Loads the topics of the database. Returns the catalog and the writer that modifies the database from now on.
pub(super) fn load(connection: Connection, shared: &Arc<Shared>) -> Result<(Catalog, Writer)> {
    let mut sweeps = Vec::new();
    let read = |connection: &Connection, sweeps: &mut Vec<Sweep>| -> rusqlite::Result<Vec<(u32, String, Vec<u8>)>> {
        let mut deleted = connection.prepare("SELECT id FROM partitions WHERE topic IS NULL")?;
        let ids = deleted.query_map((), |row| row.get(0))?;
        for id in ids {
            sweeps.push(Sweep { row: id?, partition: Weak::new(), to: None });
        }
        let mut topics = connection.prepare("SELECT id, name, settings FROM topics ORDER BY id")?;
        topics.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
    };
    let rows = read(&connection, &mut sweeps).map_err(failed("read", &shared.path))?;
    let mut catalog = Catalog::default();
    for (id, name, settings) in rows {
        let name = TopicName::parse(&name)?;
        let settings = decode_settings(&settings)?;
        let partitions = load_partitions(&connection, shared, id, &mut sweeps)?;
        if partitions.len() != settings.partitions as usize {
            let path = shared.path.display();
            let has = partitions.len();
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{path} is damaged: topic {name} has {} partitions, and rows for {has}", settings.partitions),
            ));
        }
        catalog.topics.insert(id, Topic { name, settings, partitions, due: settings });
    }
    let last = |connection: &Connection| -> rusqlite::Result<(u32, i64)> {
        let id = connection.query_row("SELECT seq FROM sqlite_sequence WHERE name = 'topics'", (), |row| row.get(0));
        let row = connection.query_row("SELECT coalesce(max(id), 0) FROM partitions", (), |row| row.get(0))?;
        Ok((id.optional()?.unwrap_or(0), row))
    };
    (catalog.last_id, catalog.last_row) = last(&connection).map_err(failed("read", &shared.path))?;
    Ok((catalog, Writer::new(connection, shared.clone(), sweeps)))
}

fn load_partitions(
    connection: &Connection,
    shared: &Arc<Shared>,
    topic: u32,
    sweeps: &mut Vec<Sweep>,
) -> Result<Vec<Arc<SqlitePartition>>> {
    let read = || -> rusqlite::Result<Vec<(i64, Result<Found>)>> {
        let mut partitions = connection.prepare_cached(
            "SELECT id, first_offset, next_offset, producers, producers_end FROM partitions WHERE topic = ?1
             ORDER BY number",
        )?;
        let mut rows = partitions.query([topic])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            let start: i64 = row.get(1)?;
            let end: i64 = row.get(2)?;
            let producers: Option<Vec<u8>> = row.get(3)?;
            let producers_end: i64 = row.get(4)?;
            let extent = read_extent(connection, id, start as Offset, end as Offset)?;
            found.push((id, read_producers(connection, id, producers, producers_end, extent)?));
        }
        Ok(found)
    };
    let found = read().map_err(failed("read", &shared.path))?;
    let open = |(id, found): (i64, Result<Found>)| {
        let found = found.unwrap_or_else(|error| {
            let refused = Error::new(ErrorKind::Corrupt, format!("{NOT_SERVED}{}", error.message));
            Found { refused: Some(refused), ..Found::default() }
        });
        let start = found.start;
        let partition = SqlitePartition::new(id, shared.clone(), found);
        // A deletion may not have removed all of these rows yet.
        sweeps.push(Sweep { row: id, partition: Arc::downgrade(&partition), to: Some(start) });
        partition
    };
    Ok(found.into_iter().map(open).collect())
}

fn read_extent(connection: &Connection, id: i64, start: Offset, end: Offset) -> rusqlite::Result<Found> {
    let mut totals = connection.prepare_cached(
        "SELECT coalesce(sum(size), 0) FROM batches INDEXED BY batches_by_offset WHERE partition = ?1",
    )?;
    let mut first = connection.prepare_cached(
        "SELECT first_offset, appended_ms FROM batches INDEXED BY batches_by_offset
         WHERE partition = ?1 AND next_offset > ?2 ORDER BY first_offset LIMIT 1",
    )?;
    let mut last = connection.prepare_cached(
        "SELECT next_offset FROM batches INDEXED BY batches_by_offset WHERE partition = ?1
         ORDER BY first_offset DESC LIMIT 1",
    )?;
    let bytes: i64 = totals.query_row([id], |row| row.get(0))?;
    let first: Option<(i64, i64)> =
        first.query_row((id, start as i64), |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let last: Option<i64> = last.query_row([id], |row| row.get(0)).optional()?;
    let end = last.map_or(end, |last| end.max(last as Offset));
    Ok(Found {
        start: first.map_or(end, |(first, _)| start.max(first as Offset)),
        end,
        bytes: bytes as u64,
        oldest_ms: first.map(|(_, appended_ms)| appended_ms as u64),
        ..Found::default()
    })
}

/// Applies the batches appended since the producers were saved to the saved producer state.
fn read_producers(
    connection: &Connection,
    id: i64,
    saved: Option<Vec<u8>>,
    saved_end: i64,
    mut found: Found,
) -> rusqlite::Result<Result<Found>> {
    let mut producers = match saved.map(|saved| Producers::decode(Bytes::from(saved))).transpose() {
        Ok(producers) => producers.unwrap_or_default(),
        Err(error) => return Ok(Err(error)),
    };
    let mut statement = connection.prepare_cached(
        "SELECT bytes FROM batches INDEXED BY batches_by_producer
         WHERE partition = ?1 AND first_offset >= ?2 AND producer IS NOT NULL ORDER BY first_offset",
    )?;
    let mut rows = statement.query((id, saved_end))?;
    while let Some(row) = rows.next()? {
        match RecordBatch::parse(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?)) {
            Ok(batch) => producers.replay(&batch),
            Err(error) => return Ok(Err(error)),
        }
        found.unsaved += 1;
    }
    found.producers = producers;
    Ok(Ok(found))
}
