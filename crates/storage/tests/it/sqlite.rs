//! Database of topics in SQLite as users and other programs see it, and its error messages.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{BatchBuilder, Codec, Error, ErrorKind, Storage, TopicSettings};
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use storage::{Owner, PartitionLog, RealDisk, SqliteSettings, SqliteStore, Store, StoredTopic};

use crate::workload::{
    NoOwner, PATIENCE, clock, commit, kept_in, on_disk, open, read_all, small, topic_name, wait_until,
};

/// Result of one operation.
#[derive(Default)]
struct Outcome(Mutex<Option<Result<u64, Error>>>, Condvar);

impl Outcome {
    fn wait(&self) -> Result<u64, Error> {
        let mut outcome = self.0.lock();
        while outcome.is_none() {
            assert!(!self.1.wait_for(&mut outcome, PATIENCE).timed_out(), "the operation has no outcome");
        }
        outcome.clone().expect("an outcome")
    }

    fn set(&self, outcome: Result<u64, Error>) {
        *self.0.lock() = Some(outcome);
        self.1.notify_all();
    }
}

/// Owner that commits to a log and reports the outcome.
struct Reporting(Arc<dyn PartitionLog>, Arc<Outcome>);

impl Owner for Reporting {
    fn committed(&self, mark: u64) {
        self.0.commit(mark);
        self.1.set(Ok(mark));
    }

    fn failed(&self, error: &Error) {
        self.1.set(Err(error.clone()));
    }
}

struct Database {
    _temp: tempfile::TempDir,
    path: PathBuf,
    store: Arc<SqliteStore>,
    topic: StoredTopic,
}

impl Database {
    fn new(settings: SqliteSettings) -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("queues.sqlite");
        let (store, topics) = SqliteStore::open(&path, settings, clock).expect("a new database");
        assert!(topics.is_empty());
        let settings = TopicSettings { retention_ms: 5000, ..kept_in(Storage::Sqlite, 2) };
        let topic = store.create_topic(topic_name("orders"), settings, Arc::new(NoOwner)).expect("a topic");
        Self { _temp: temp, path, store, topic }
    }

    fn log(&self) -> &Arc<dyn PartitionLog> {
        &self.topic.partitions[1]
    }

    /// Appends a batch without waiting.
    fn begin(&self, values: &[&[u8]], codec: Codec) -> Result<Arc<Outcome>, Error> {
        let mut builder = BatchBuilder::new();
        for (i, value) in values.iter().enumerate() {
            builder.push(7000 + i as i64, Some(b"k"), Some(value), &[(b"a", Some(b"b"))]).expect("a record");
        }
        let batch = builder.finish_with(codec, None).expect("records").stamp(self.log().end());
        let outcome = Arc::new(Outcome::default());
        self.log().append(batch, clock(), Arc::new(Reporting(self.log().clone(), outcome.clone())))?;
        Ok(outcome)
    }

    fn append(&self, values: &[&[u8]], codec: Codec) -> Result<u64, Error> {
        self.begin(values, codec)?.wait()
    }

    /// Opens a connection as another program does.
    fn connect(&self) -> Connection {
        Connection::open(&self.path).expect("it is there")
    }
}

fn impatient() -> SqliteSettings {
    SqliteSettings { lock_patience: Duration::from_millis(1), ..SqliteSettings::default() }
}

type Row = (String, u32, u64, i64, rusqlite::types::Value, rusqlite::types::Value, String);

fn shown(connection: &Connection) -> Vec<Row> {
    let mut statement = connection.prepare("SELECT * FROM records ORDER BY topic, partition, offset").expect("a view");
    let row = |row: &rusqlite::Row<'_>| {
        let parts = (row.get(0)?, row.get(1)?, row.get::<_, i64>(2)? as u64, row.get(3)?);
        Ok((parts.0, parts.1, parts.2, parts.3, row.get(4)?, row.get(5)?, row.get(6)?))
    };
    statement.query_map((), row).expect("rows").collect::<Result<_, _>>().expect("rows")
}

#[test]
fn users_query_records_while_the_broker_runs() {
    let database = Database::new(SqliteSettings::default());
    database.append(&[b"one"], Codec::None).expect("it is taken");
    let long = b"compressed ".repeat(50);
    database.append(&[b"\xff", &long], Codec::Zstd).expect("it is taken");
    let connection = database.connect();
    let rows = shown(&connection);
    use rusqlite::types::Value::{Blob, Text};
    let values: Vec<_> = rows.iter().map(|row| row.5.clone()).collect();
    let text = String::from_utf8(long).expect("a text");
    assert_eq!(values, [Text("one".into()), Blob(vec![0xff]), Text(text)]);
    let places: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1, row.2, row.3)).collect();
    assert_eq!(places, [("orders", 1, 0, 7000), ("orders", 1, 1, 7000), ("orders", 1, 2, 7001)]);
    assert!(rows.iter().all(|row| row.4 == Text("k".into()) && row.6 == r#"{"a":"b"}"#));
    let count = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i64>(0)).expect("a number");
    assert_eq!(count("SELECT count(*) FROM records WHERE topic = 'orders' AND headers ->> 'a' = 'b'"), 3);
    assert_eq!(count("SELECT offset FROM records WHERE value = 'one'"), 0);
    assert_eq!(count("SELECT retention_ms FROM topics WHERE name = 'orders' AND partitions = 2"), 5000);

    // A start within a batch hides its first records; forgotten records are deleted.
    database.log().clone().set_start(2, Arc::new(NoOwner)).expect("it is taken");
    database.append(&[b"four"], Codec::None).expect("it is taken");
    assert_eq!(shown(&connection).iter().map(|row| row.2).collect::<Vec<_>>(), [2, 3]);
    database.log().forget(2);
    wait_until("it is forgotten", || shown(&connection).len() == 1);
    assert_eq!(count("SELECT count(*) FROM positions"), 1);
    database.store.delete_topic(database.topic.id, Arc::new(NoOwner)).expect("it is taken");
    wait_until("all rows are gone", || count("SELECT (SELECT count(*) FROM batches) + count(*) FROM partitions") == 0);
    assert_eq!(database.append(&[b"x"], Codec::None).map_err(|error| error.kind), Err(ErrorKind::NotFound));
}

#[test]
fn a_database_locked_by_another_process_is_waited_for_and_reported() {
    let database = Database::new(impatient());
    database.append(&[b"before"], Codec::None).expect("it is taken");
    let other = database.connect();
    other.execute_batch("BEGIN IMMEDIATE").expect("it takes the lock");
    let waits = database.begin(&[b"meanwhile"], Codec::None).expect("it has its place");
    let mut refused = None;
    wait_until("publishers are notified", || {
        refused = database.log().admit().err();
        refused.is_some()
    });
    let refused = refused.expect("an error");
    assert_eq!(refused.kind, ErrorKind::Busy);
    let expected = format!("cannot write {}: another process locks it (database is locked)", database.path.display());
    assert_eq!(refused.message, expected);
    assert!(database.store.stats().is_held_up);
    assert_eq!((database.log().extent().end, read_all(database.log(), 0, 1, 100).expect("it is read").len()), (1, 1));
    let room = Arc::new(Outcome::default());
    let waiting = room.clone();
    database.store.on_room(Box::new(move || waiting.set(Ok(0))));
    other.execute_batch("ROLLBACK").expect("it lets go");
    assert_eq!(waits.wait(), Ok(2));
    room.wait().expect("the refused publisher is notified of room");
    assert_eq!((database.log().admit(), database.store.stats().is_held_up), (Ok(()), false));

    other.execute_batch("BEGIN IMMEDIATE").expect("it takes the lock");
    let lost = database.begin(&[b"too late"], Codec::None).expect("it has its place");
    let stopped = database.store.stop().expect_err("it could not be written");
    assert!(
        stopped.message.contains("another process locks it") && stopped.message.contains("accepts no more records")
    );
    assert_eq!(lost.wait(), Err(stopped));
}

#[test]
fn a_full_disk_is_waited_for_and_nothing_is_lost() {
    let database = Database::new(SqliteSettings { pages_max: 64, ..impatient() });
    let value = vec![b'x'; 10_000];
    let waits = loop {
        let outcome = database.begin(&[&value], Codec::None).expect("it has its place");
        wait_until("it is written, or not", || outcome.0.lock().is_some() || database.store.stats().is_held_up);
        if outcome.0.lock().is_none() {
            break outcome;
        }
    };
    let full = database.log().admit().expect_err("there is no room");
    assert!(full.kind == ErrorKind::DiskFull && full.message.contains("the disk is full"), "{full}");
    assert_eq!(database.store.broken(), None);
    let end = database.log().extent().end;
    assert_eq!(read_all(database.log(), 0, end, 100_000).expect("it is read").len() as u64, end);
    // Space is freed by another program: rows that this store does not know of.
    let other = database.connect();
    other.execute_batch("DELETE FROM batches WHERE first_offset < 10").expect("it is free");
    assert_eq!(waits.wait(), Ok(end + 1));
}

#[test]
fn after_a_failed_commit_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    let database = Database::new(SqliteSettings::default());
    database.append(&[b"one"], Codec::None).expect("it is taken");
    database.connect().execute_batch("ALTER TABLE positions RENAME TO stolen").expect("it is gone");
    let failed = database.append(&[b"two"], Codec::None).expect_err("it cannot be written");
    assert_eq!(failed.kind, ErrorKind::Internal);
    let path = database.path.display().to_string();
    assert!(failed.message.contains(&path) && failed.message.contains("Restart the broker"), "{failed}");
    assert_eq!(database.store.broken().as_ref(), Some(&failed));
    assert_eq!(database.append(&[b"three"], Codec::None), Err(failed));
    assert_eq!(database.log().extent().end, 1);
    database.store.stop().expect_err("it is broken");
    database.connect().execute_batch("ALTER TABLE stolen RENAME TO positions").expect("it is back");
    let (store, topics) = SqliteStore::open(&database.path, SqliteSettings::default(), clock).expect("it opens");
    assert_eq!((topics[0].partitions[1].extent().end, shown(&database.connect()).len()), (1, 1));
    store.stop().expect("it stops");
}

#[test]
fn a_damaged_batch_is_reported_and_those_before_and_after_it_are_read() {
    let database = Database::new(SqliteSettings { recent_bytes_max: 0, ..SqliteSettings::default() });
    for value in [b"a", b"b", b"c"] {
        database.append(&[value], Codec::None).expect("it is taken");
    }
    wait_until("it has left the memory", || database.store.stats().recent_bytes == 0);
    let damage = "UPDATE batches SET bytes = zeroblob(size) WHERE first_offset = 1";
    database.connect().execute_batch(damage).expect("it is written");
    let read = |from| crate::workload::read_at(database.log(), from, 1000);
    assert_eq!(read(0).expect("what is before it").len(), 1);
    let damaged = read(1).expect_err("it is damaged");
    assert_eq!(damaged.kind, ErrorKind::Corrupt);
    assert!(damaged.message.contains(&format!("{} is damaged", database.path.display())), "{damaged}");
    assert_eq!(read(2).expect("what is behind it").len(), 1);
}

#[test]
fn a_foreign_database_is_refused_and_left_unchanged() {
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().join("queues.sqlite");
    let refused = || SqliteStore::open(&path, SqliteSettings::default(), clock).map(drop).expect_err("it is refused");
    Connection::open(&path).expect("a database").execute_batch("CREATE TABLE mine(a)").expect("a table");
    assert!(refused().message.contains("tables of another program"));
    Connection::open(&path).expect("it").execute_batch("DROP TABLE mine; PRAGMA user_version = 9").expect("it");
    assert_eq!(refused().kind, ErrorKind::Invalid);
    std::fs::write(&path, b"this is no database at all, but some text that is long enough".repeat(90)).expect("a file");
    let error = refused();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains(&path.display().to_string()), "{error}");
    std::fs::remove_file(&path).expect("a file");
    let (store, _) = SqliteStore::open(&path, SqliteSettings::default(), clock).expect("a new database");
    store.stop().expect("it stops");
    Connection::open(&path).expect("it").execute_batch("PRAGMA user_version = 9").expect("it");
    assert_eq!(refused().kind, ErrorKind::Unsupported);
}

fn open_dir(dir: &Path) -> (Arc<Store>, Vec<StoredTopic>) {
    open(&RealDisk, dir, small(1)).expect("it opens")
}

#[test]
fn one_name_is_one_topic_whichever_way_it_is_kept() {
    let temp = tempfile::tempdir().expect("a directory");
    let name = || topic_name("t");
    let (store, _) = open_dir(temp.path());
    assert!(!temp.path().join("queues.sqlite").exists(), "no topic uses the database");
    let first = store.create_topic(name(), kept_in(Storage::Sqlite, 1), Arc::new(NoOwner)).expect("a topic");
    let lock = Connection::open(temp.path().join("queues.sqlite")).expect("a database");
    wait_until("it is locked", || lock.execute_batch("BEGIN IMMEDIATE").is_ok());
    store.delete_topic(first.id, Arc::new(NoOwner)).expect("it is taken");
    for settings in [on_disk(1), kept_in(Storage::Sqlite, 1)] {
        let busy = store.create_topic(name(), settings, Arc::new(NoOwner)).map(drop).expect_err("it may be back");
        assert_eq!(busy.kind, ErrorKind::Busy);
    }
    lock.execute_batch("ROLLBACK").expect("it lets go");
    wait_until("it is gone", || store.create_topic(name(), on_disk(1), Arc::new(NoOwner)).is_ok());
    // Simulates a power cut after the creation of one and before the deletion of the other was durable.
    store.create_topic(name(), kept_in(Storage::Sqlite, 2), Arc::new(NoOwner)).expect("a topic");
    store.stop().expect("it stops");
    drop(store);
    for _ in 0..2 {
        let (store, topics) = open_dir(temp.path());
        let found: Vec<_> = topics.iter().map(|topic| (topic.name.as_str(), topic.settings.storage)).collect();
        assert_eq!(found, [("t", Storage::Sqlite)]);
        assert_eq!(topics[0].partitions.len(), 2);
        store.stop().expect("it stops");
    }
}

#[test]
fn topics_grow_change_and_never_get_an_id_twice() {
    let temp = tempfile::tempdir().expect("a directory");
    let (store, _) = open_dir(temp.path());
    let settings = kept_in(Storage::Sqlite, 1);
    let gone = store.create_topic(topic_name("gone"), settings, Arc::new(NoOwner)).expect("a topic");
    let topic = store.create_topic(topic_name("t"), settings, Arc::new(NoOwner)).expect("a topic");
    store.grow_topic(topic.id, 2, Arc::new(NoOwner)).expect("it grows");
    commit(|owner| store.grow_topic(topic.id, 3, owner));
    assert_eq!(store.partitions(topic.id).expect("a topic").len(), 3);
    // Each change builds on those before it, committed or not.
    let first = TopicSettings { retention_ms: 99, ..settings };
    store.alter_topic(topic.id, first, Arc::new(NoOwner)).expect("it changes");
    commit(|owner| store.grow_topic(topic.id, 3, owner));
    let rows = rusqlite::Connection::open(temp.path().join("queues.sqlite")).expect("a database");
    let kept: (u32, i64) = rows
        .query_row("SELECT partitions, retention_ms FROM topics WHERE name = 't'", (), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("a row");
    assert_eq!(kept, (3, 99));
    drop(rows);
    let altered = TopicSettings { retention_bytes: 77, arrival_times: true, ..settings };
    store.alter_topic(topic.id, altered, Arc::new(NoOwner)).expect("it changes");
    let last = store.create_topic(topic_name("last"), settings, Arc::new(NoOwner)).expect("a topic");
    store.delete_topic(last.id, Arc::new(NoOwner)).expect("it is taken");
    store.delete_topic(gone.id, Arc::new(NoOwner)).expect("it is taken");
    store.stop().expect("it stops");
    drop(store);
    let (store, topics) = open_dir(temp.path());
    assert_eq!(topics.len(), 1);
    assert_eq!((topics[0].id, topics[0].settings), (topic.id, TopicSettings { partitions: 3, ..altered }));
    let next = store.create_topic(topic_name("next"), settings, Arc::new(NoOwner)).expect("a topic");
    assert!(![gone.id, topic.id, last.id].contains(&next.id));
    store.stop().expect("it stops");
}
