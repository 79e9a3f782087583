//! Tables of `queues.sqlite`, the setup of a connection, and the user-visible meaning of its errors.
//!
//! `batches.bytes` is authoritative, as it was published. `positions` locates each record in it, so that the view
//! `records` shows records without a second copy of them; for a compressed batch `plain` contains its decompressed
//! records. A text is shown as text and all else as a blob. Headers are a JSON object; a value that is not text is
//! shown as `x'..'`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use engine::limits::{SQLITE_READER_CACHE_BYTES, SQLITE_WRITER_CACHE_BYTES};
use engine::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::disk::{FILE_MODE, other_version};

/// Version of the tables below.
const VERSION: u32 = 1;
/// Application id of the database, `queu`, which the program `file` shows.
const APPLICATION: u32 = 0x7175_6575;
/// Time that SQLite waits for a lock of another process; the call is retried after it.
const LOCK_STEP: Duration = Duration::from_millis(100);
/// Number of pages in the write-ahead log that trigger a checkpoint by SQLite.
const WAL_PAGES: u32 = 4000;

const TABLES: &str = "
CREATE TABLE topics(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    retention_bytes INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    settings BLOB NOT NULL);
CREATE TABLE partitions(
    id INTEGER PRIMARY KEY,
    topic INTEGER,                      -- NULL: deleted, its rows are removed gradually
    number INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,      -- records before it are deleted
    next_offset INTEGER NOT NULL,       -- as of the last deletion; later batches are not included
    producers BLOB,
    producers_end INTEGER NOT NULL,     -- offset up to which producers is complete
    UNIQUE(topic, number));
CREATE TABLE batches(
    id INTEGER PRIMARY KEY,
    partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL,
    time_ms_max INTEGER NOT NULL,
    reached_ms INTEGER NOT NULL,        -- the largest time_ms_max of this batch and all before it
    records INTEGER NOT NULL,
    producer INTEGER,
    bytes BLOB NOT NULL,
    plain BLOB);
CREATE INDEX batches_by_offset ON batches(partition, first_offset, size, appended_ms);
CREATE INDEX batches_by_producer ON batches(partition, first_offset) WHERE producer IS NOT NULL;
CREATE TABLE positions(
    batch INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    key_at INTEGER,                     -- NULL: the record has no key
    key_bytes INTEGER NOT NULL,
    value_at INTEGER,
    value_bytes INTEGER NOT NULL,
    texts INTEGER NOT NULL,             -- bits: 1: the key is text, 2: the value is text
    headers TEXT NOT NULL,
    PRIMARY KEY(batch, offset)) WITHOUT ROWID;
CREATE VIEW records AS SELECT
    topics.name AS topic, partitions.number AS partition, positions.offset AS offset, positions.time_ms AS time_ms,
    CASE positions.texts & 1
        WHEN 0 THEN substr(coalesce(plain, bytes), key_at + 1, key_bytes)
        ELSE CAST(substr(coalesce(plain, bytes), key_at + 1, key_bytes) AS TEXT) END AS key,
    CASE positions.texts & 2
        WHEN 0 THEN substr(coalesce(plain, bytes), value_at + 1, value_bytes)
        ELSE CAST(substr(coalesce(plain, bytes), value_at + 1, value_bytes) AS TEXT) END AS value,
    positions.headers AS headers
    FROM topics
    JOIN partitions ON partitions.topic = topics.id
    JOIN batches ON batches.partition = partitions.id
    JOIN positions ON positions.batch = batches.id
    WHERE positions.offset >= partitions.first_offset;
";

/// Opens the connection that writes. Creates the tables if they do not exist.
pub(super) fn open_writer(path: &Path, pages_max: u32) -> Result<Connection> {
    let connect = || -> rusqlite::Result<Connection> {
        // SQLite gives its other files the mode of this one. If it cannot be created, the next line reports the reason.
        drop(OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path));
        let connection = Connection::open(path)?;
        connection.busy_timeout(LOCK_STEP)?;
        connection.pragma_update(None, "cache_size", -((SQLITE_WRITER_CACHE_BYTES >> 10) as i64))?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        // Each commit is synced before its owners are notified.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        if pages_max > 0 {
            connection.pragma_update_and_check(None, "max_page_count", pages_max, |_| Ok(()))?;
        }
        Ok(connection)
    };
    let connection = connect().map_err(failed("open", path))?;
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
    let version = number("user_version").map_err(failed("read", path))?;
    let application = number("application_id").map_err(failed("read", path))?;
    match (application, version) {
        (0, 0) => create(&connection).map_err(failed("create tables in", path))?,
        (APPLICATION, VERSION) => {}
        (APPLICATION, version) => return Err(other_version(path, version, VERSION)),
        _ => {
            let path = path.display();
            return Err(Error::invalid(format!("{path} is the database of another program; move it elsewhere")));
        }
    }
    Ok(connection)
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    // A file with tables of another program is not modified.
    let tables: u32 = transaction.query_row("SELECT count(*) FROM sqlite_master", (), |row| row.get(0))?;
    if tables > 0 {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_MISUSE),
            Some("it has tables of another program".into()),
        ));
    }
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(LOCK_STEP)?;
    connection.pragma_update(None, "cache_size", -((SQLITE_READER_CACHE_BYTES >> 10) as i64))?;
    Ok(connection)
}

/// Returns `true` if a retry may succeed, and nothing was done yet.
pub(super) fn is_passing(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull))
}

/// Converts an error into one with the kind of the same error of a topic on disk, with a message that names the file.
pub(super) fn failed(doing: &str, path: &Path) -> impl Fn(rusqlite::Error) -> Error {
    let what = format!("cannot {doing} {}", path.display());
    move |error| {
        let (kind, why) = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (ErrorKind::Busy, "another process locks it"),
            Some(ErrorCode::DiskFull) => (ErrorKind::DiskFull, "the disk is full"),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
                ErrorKind::Corrupt,
                "it is damaged. Put back a copy of it, or see what can be saved: sqlite3 queues.sqlite .recover",
            ),
            Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::CannotOpen) => {
                (ErrorKind::Denied, "it is not writable")
            }
            _ => (ErrorKind::Internal, "SQLite reports an error"),
        };
        Error::new(kind, format!("{what}: {why} ({error})"))
    }
}
