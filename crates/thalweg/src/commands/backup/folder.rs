//! Folder of a backup, as files.
//!
//! ```text
//! thalweg.lock                       locked by the commands that write or read the folder
//! backup.json                        the last complete backup: all files below, with their checksums
//! topics-<number>                    topics and extents of their partitions, as `storage::Manifest` encodes them
//! key-<number>                       the key of the secrets in topics, if the broker has one
//! records/<topic>-<partition>/<first offset>-<number>    record batches, one after the other
//! ```
//!
//! The last line of `backup.json` is the SHA-256 of all before it. A file is never changed after it was written, and
//! `backup.json` is replaced when all that it names is on the disk. So a backup that is interrupted leaves files that
//! nothing names, and the previous backup as it was.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::output::{DAMAGED, FAILED, Failure, NOT_FOUND, Result, USAGE};

/// Version of the folder that is written, and the newest that is read.
pub const FORMAT: u32 = 1;
const INDEX: &str = "backup.json";
const INDEX_NEW: &str = "backup.json.new";
const LOCK: &str = "thalweg.lock";
const RECORDS: &str = "records";
/// Bytes of a file that are read together.
const READ_BYTES: usize = 1 << 20;

/// The last complete backup in a folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Index {
    pub format: u32,
    /// Number of the backup in this folder, from 1.
    pub number: u64,
    /// Version of the program that wrote it.
    pub program: String,
    /// Number of the broker's data, in hexadecimal digits.
    pub source: String,
    /// Time of the snapshot by the broker's clock, in ms since 1970.
    pub taken_ms: u64,
    /// `true` if topics in SQLite were left out.
    pub without_sqlite: bool,
    pub topics: Written,
    pub key: Option<Written>,
    pub partitions: Vec<Partition>,
}

/// Partition with its records in the order of their offsets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partition {
    pub topic: u32,
    pub partition: u32,
    /// Offset after the last record.
    pub end: u64,
    /// Last batch, if there is one: the next backup continues after it only if the broker still has it.
    pub last: Option<LastBatch>,
    pub files: Vec<Records>,
}

/// Batch at the end of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBatch {
    pub from: u64,
    pub sha256: String,
}

/// File with the records of a partition from one offset to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Records {
    pub from: u64,
    pub to: u64,
    #[serde(flatten)]
    pub written: Written,
}

/// File, with what it has to contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Path in the folder.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Index {
    /// Returns all files of the backup.
    pub fn files(&self) -> impl Iterator<Item = &Written> {
        let records = self.partitions.iter().flat_map(|partition| &partition.files);
        [&self.topics].into_iter().chain(&self.key).chain(records.map(|records| &records.written))
    }

    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }
}

impl Partition {
    /// Returns the number of the partition in a manifest.
    pub fn stream(&self) -> u64 {
        u64::from(self.topic) << 32 | u64::from(self.partition)
    }
}

/// Hash of what is written or read.
pub struct Hash(Context);

impl Hash {
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// File that is being written.
pub struct Writing {
    file: File,
    path: PathBuf,
    name: String,
    bytes: u64,
    hash: Hash,
}

impl Writing {
    pub fn write(&mut self, bytes: &[u8]) -> Result {
        self.file.write_all(bytes).map_err(|error| failed("write", &self.path, error))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the file durable.
    pub fn finish(self) -> Result<Written> {
        self.file.sync_all().map_err(|error| failed("sync", &self.path, error))?;
        Ok(Written { file: self.name, bytes: self.bytes, sha256: self.hash.finish() })
    }
}

/// Folder of a backup.
pub struct Folder {
    dir: PathBuf,
    /// Held while a command writes the folder, and shared by those that read it.
    _lock: Option<File>,
}

impl Folder {
    /// Opens a folder to write a backup into it, and creates it if it does not exist.
    pub fn to_write(dir: &Path) -> Result<Self> {
        let missing: Vec<&Path> =
            dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
        make_dir(dir)?;
        // Otherwise a complete backup might disappear with its folder.
        for made in missing {
            sync_dir(above(made))?;
        }
        let folder = Self { dir: dir.to_owned(), _lock: None };
        if folder.index()?.is_none() {
            folder.check_is_own()?;
        }
        let path = dir.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(|error| failed("open", &path, error))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => {
                let dir = dir.display();
                let message = format!("another backup is being written to {dir}, or read from it: wait until it ended");
                Failure::new(FAILED, message)
            }
            error => failed("lock", &path, error.into()),
        })?;
        make_dir(&dir.join(RECORDS))?;
        Ok(Self { _lock: Some(lock), ..folder })
    }

    /// Opens a folder to read a backup. Fails while one is being written to it: that removes files of the previous one.
    /// A copy of a folder may have no lock file.
    pub fn to_read(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { dir: dir.to_owned(), _lock: None });
            }
            Err(error) => return Err(failed("open", &path, error)),
        };
        flock(&lock, FlockOperation::NonBlockingLockShared).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => {
                let message = format!("a backup is being written to {}: wait until it ended", dir.display());
                Failure::new(FAILED, message)
            }
            error => failed("lock", &path, error.into()),
        })?;
        Ok(Self { dir: dir.to_owned(), _lock: Some(lock) })
    }

    /// Fails if the folder has files of another program: they would be regarded as those of an interrupted backup.
    fn check_is_own(&self) -> Result {
        for (entry, name) in list(&self.dir)? {
            let foreign = match name.as_str() {
                LOCK | INDEX_NEW => None,
                RECORDS => self.foreign_records(&entry)?,
                name if is_numbered(name) => None,
                _ => Some(name),
            };
            if let Some(name) = foreign {
                let message = format!(
                    "{} has {name}, and no backup: choose an empty folder, or one with a backup",
                    self.dir.display()
                );
                return Err(Failure::new(USAGE, message));
            }
        }
        Ok(())
    }

    /// Returns the path in the folder of an entry below `records` that no backup writes, if there is one.
    fn foreign_records(&self, records: &fs::DirEntry) -> Result<Option<String>> {
        let is_dir = |entry: &fs::DirEntry| {
            entry.file_type().map(|kind| kind.is_dir()).map_err(|error| failed("list", &entry.path(), error))
        };
        if !is_dir(records)? {
            return Ok(Some(RECORDS.to_owned()));
        }
        for (dir, partition) in list(&records.path())? {
            if !is_partition(&partition) || !is_dir(&dir)? {
                return Ok(Some(format!("{RECORDS}/{partition}")));
            }
            for (file, name) in list(&dir.path())? {
                if !is_records(&name) || is_dir(&file)? {
                    return Ok(Some(format!("{RECORDS}/{partition}/{name}")));
                }
            }
        }
        Ok(None)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Returns the last complete backup, if there is one.
    pub fn index(&self) -> Result<Option<Index>> {
        let path = self.path(INDEX);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(damaged(&path, "it is not text")),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let (json, sum) = text.trim_end_matches('\n').rsplit_once('\n').unwrap_or((&text, ""));
        let mut hash = Hash::new();
        hash.update(json.as_bytes());
        if hash.finish() != sum {
            return Err(damaged(&path, "it does not match its checksum, which is its last line"));
        }
        let format = serde_json::from_str::<serde_json::Value>(json).ok().and_then(|value| value["format"].as_u64());
        if format.is_some_and(|format| format > u64::from(FORMAT)) {
            let message = format!(
                "{} has format {}, and this program reads {FORMAT}: use the version that wrote it, or a later one",
                path.display(),
                format.unwrap_or_default()
            );
            return Err(Failure::new(FAILED, message));
        }
        serde_json::from_str(json).map(Some).map_err(|error| damaged(&path, &error.to_string()))
    }

    /// Returns the last complete backup. Fails if there is none.
    pub fn complete(&self) -> Result<Index> {
        match self.index()? {
            Some(index) => Ok(index),
            None if self.dir.join(RECORDS).is_dir() => {
                let message = format!(
                    "{} has no complete backup: the only one was interrupted. Run `thalweg backup` again",
                    self.dir.display()
                );
                Err(Failure::new(NOT_FOUND, message))
            }
            None => Err(Failure::new(NOT_FOUND, format!("{} has no backup", self.dir.display()))),
        }
    }

    /// Creates a file.
    pub fn create(&self, name: String) -> Result<Writing> {
        let path = self.path(&name);
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path);
        let file = file.map_err(|error| failed("create", &path, error))?;
        Ok(Writing { file, path, name, bytes: 0, hash: Hash::new() })
    }

    /// Reads a file that is small, or is needed as a whole, and checks it.
    pub fn read(&self, written: &Written) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.each(written, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Reads a file in parts. Fails at its end if it is not what was written.
    pub fn each(&self, written: &Written, each: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        let path = self.path(&written.file);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(&path, "it is missing")),
            Err(error) => return Err(failed("open", &path, error)),
        };
        let mut hash = Hash::new();
        let mut length = 0;
        let mut buf = vec![0; READ_BYTES];
        loop {
            let read = file.read(&mut buf).map_err(|error| failed("read", &path, error))?;
            length += read as u64;
            if read == 0 || length > written.bytes {
                break;
            }
            hash.update(&buf[..read]);
            each(&buf[..read])?;
        }
        if length != written.bytes {
            let length = file.metadata().map_or(length, |metadata| metadata.len());
            return Err(damaged(&path, &format!("it has {length} of {} bytes", written.bytes)));
        }
        if hash.finish() != written.sha256 {
            return Err(damaged(&path, "its contents do not match its checksum"));
        }
        Ok(())
    }

    /// Makes a backup the last complete one: from here on it is the one that is restored.
    pub fn complete_with(&self, index: &Index) -> Result {
        let dirs: BTreeSet<PathBuf> =
            index.files().filter_map(|file| self.path(&file.file).parent().map(Path::to_owned)).collect();
        for dir in dirs.iter().chain([&self.dir.join(RECORDS), &self.dir]) {
            sync_dir(dir)?;
        }
        let json = serde_json::to_string_pretty(index)?;
        let mut hash = Hash::new();
        hash.update(json.as_bytes());
        let mut new = self.create(INDEX_NEW.to_owned())?;
        new.write(format!("{json}\n{}\n", hash.finish()).as_bytes())?;
        new.finish()?;
        let path = self.path(INDEX);
        fs::rename(self.path(INDEX_NEW), &path).map_err(|error| failed("replace", &path, error))?;
        sync_dir(&self.dir)
    }

    /// Returns the files that no complete backup names: those of interrupted backups, and of earlier ones. Files with
    /// names that no backup writes are not among them.
    pub fn leftovers(&self, index: Option<&Index>) -> Result<Vec<PathBuf>> {
        let named: BTreeSet<PathBuf> =
            index.iter().flat_map(|index| index.files()).map(|file| self.path(&file.file)).collect();
        let mut left = Vec::new();
        let records = self.dir.join(RECORDS);
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            for (entry, name) in list(&dir)? {
                let path = entry.path();
                let is_dir = entry.file_type().map_err(|error| failed("list", &dir, error))?.is_dir();
                let is_own = match () {
                    () if dir == self.dir && is_dir => name == RECORDS,
                    () if dir == self.dir => name == INDEX_NEW || is_numbered(&name),
                    () if dir == records => is_dir && is_partition(&name),
                    () => !is_dir && is_records(&name),
                };
                if is_own && is_dir {
                    dirs.push(path);
                } else if is_own && !named.contains(&path) {
                    left.push(path);
                }
            }
        }
        left.sort();
        Ok(left)
    }

    /// Removes files, and folders of records that are empty then.
    pub fn remove(&self, files: &[PathBuf]) -> Result {
        for path in files {
            fs::remove_file(path).map_err(|error| failed("remove", path, error))?;
            if let Some(dir) = path.parent().filter(|dir| *dir != self.dir && *dir != self.dir.join(RECORDS)) {
                match fs::remove_dir(dir) {
                    Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                        return Err(failed("remove", dir, error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns `true` for the name of a file in the folder itself that belongs to one backup.
fn is_numbered(name: &str) -> bool {
    let number = name.strip_prefix("topics-").or_else(|| name.strip_prefix("key-"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Returns `true` for the name of a folder in `records`, as [`records_name`] returns it.
fn is_partition(name: &str) -> bool {
    let parsed = name
        .split_once('-')
        .and_then(|(topic, partition)| Some((topic.parse::<u32>().ok()?, partition.parse::<u32>().ok()?)));
    parsed.is_some_and(|(topic, partition)| format!("{topic}-{partition}") == name)
}

/// Returns `true` for the name of a file in such a folder, as [`records_name`] returns it.
fn is_records(name: &str) -> bool {
    let parsed =
        name.split_once('-').and_then(|(from, number)| Some((from.parse::<u64>().ok()?, number.parse::<u64>().ok()?)));
    parsed.is_some_and(|(from, number)| format!("{from:020}-{number}") == name)
}

/// Returns the entries of a folder with their names.
fn list(dir: &Path) -> Result<Vec<(fs::DirEntry, String)>> {
    let entries = fs::read_dir(dir).map_err(|error| failed("list", dir, error))?;
    let named = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (entry, name)
    };
    entries.map(|entry| entry.map(named).map_err(|error| failed("list", dir, error))).collect()
}

/// Returns the folder in which a path is.
pub fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Returns the name of a file with records.
pub fn records_name(topic: u32, partition: u32, from: u64, number: u64) -> String {
    format!("{RECORDS}/{topic}-{partition}/{from:020}-{number}")
}

pub fn sync_dir(dir: &Path) -> Result {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| failed("sync", dir, error))
}

/// Creates a folder that only this user can read.
fn make_dir(dir: &Path) -> Result {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| failed("make", dir, error))
}

pub fn damaged(path: &Path, what: &str) -> Failure {
    Failure::new(DAMAGED, format!("{} is damaged: {what}", path.display()))
}

pub fn failed(doing: &str, path: &Path, error: io::Error) -> Failure {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failure::new(
            FAILED,
            format!(
                "the disk of {path} is full: free space there and run the command again, or choose another folder. A \
                 complete backup that was there before is unchanged"
            ),
        ),
        _ => Failure::new(FAILED, format!("cannot {doing} {path}: {error}")),
    }
}
