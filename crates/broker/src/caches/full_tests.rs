//! Tests of durable caches on a disk that is full for a while, and on one that has damaged their log.

use std::io::{self, IoSlice};
use std::path::Path;
use std::time::Instant;

use storage::{Disk, DiskFile, RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::settings::Settings;
use engine::cache::{Condition, Found, Stripe, Ttl};
use std::sync::atomic::AtomicBool;

/// Only reached on failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// The disk of the machine, on which segments, checkpoints and new files find no room while it is full.
#[derive(Clone, Default)]
struct Narrow(Arc<AtomicBool>);

struct NarrowFile {
    file: Box<dyn DiskFile>,
    /// While this is `true`, only writes to allocated space succeed; `None` for a journal.
    is_full: Option<Arc<AtomicBool>>,
}

impl Narrow {
    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn narrow(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let is_journal = path.extension().is_some_and(|kind| kind == "journal");
        Box::new(NarrowFile { file, is_full: (!is_journal).then(|| self.0.clone()) })
    }
}

impl Disk for Narrow {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.check()?;
        Ok(self.narrow(path, RealDisk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.narrow(path, RealDisk.open(path)?))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        RealDisk.lock(path)
    }

    fn volume(&self, path: &Path) -> io::Result<(u64, u64)> {
        let (bytes, free) = RealDisk.volume(path)?;
        Ok((bytes, if self.check().is_err() { 0 } else { free }))
    }
}

impl DiskFile for NarrowFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buf, at)
    }

    fn write_at(&self, slices: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        match &self.is_full {
            Some(is_full) if is_full.load(Ordering::Relaxed) => Err(io::ErrorKind::StorageFull.into()),
            _ => self.file.write_at(slices, at),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
}

async fn open(disk: &Narrow, dir: &Path) -> Arc<Broker> {
    let mut settings =
        StoreSettings { reserve_bytes: 1 << 20, unflushed_bytes_max: 64 << 10, ..StoreSettings::default() };
    settings.journal.file_bytes = 8 << 20;
    let begin = Instant::now();
    let opened = loop {
        match Store::open(Arc::new(disk.clone()), dir, settings, crate::Clock::SYSTEM.read(), &mut |_| {}) {
            // The previous broker is still being dropped.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => {
                tokio::task::yield_now().await
            }
            opened => break opened.expect("it opens"),
        }
    };
    let broker = Broker::start_with(Settings::default(), &[Handle::current()], Some(opened)).expect("it starts");
    broker.caches.restore().await.expect("restored");
    broker
}

fn value_of(cache: &Cache, key: &[u8]) -> Option<String> {
    let text = |found: Found<'_>| {
        let mut value = Vec::new();
        Stripe::dump(found, &mut value);
        value.escape_ascii().to_string()
    };
    cache.get(key, |found| found.map(text)).expect("free")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_changes_of_durable_caches_before_they_are_made_and_takes_them_when_it_has_room() {
    let disk = Narrow::default();
    let dir = tempfile::TempDir::new().expect("a folder");
    let broker = open(&disk, dir.path()).await;
    let durable = CacheSettings { is_durable: true, ..CacheSettings::default() };
    let cache = broker.caches.create("c", durable).expect("it is made");
    let put = async |key: &[u8], value: &[u8]| -> Result<()> {
        cache.put(key, value, Ttl::Default, Condition::Always)?;
        cache.commit_of(key).wait().await
    };
    put(b"first", b"1").await.expect("room");
    disk.0.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    let mut number = 0;
    let mut acknowledged = value_of(&cache, b"first");
    let refused = loop {
        assert!(begin.elapsed() < PATIENCE, "a change is refused");
        number += 1;
        match put(b"first", format!("{number:08000}").as_bytes()).await {
            Ok(()) => acknowledged = value_of(&cache, b"first"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind, ErrorKind::DiskFull, "{refused}");
    // Refused changes are not visible, and existing entries can be read.
    assert_eq!(value_of(&cache, b"first"), acknowledged);
    cache.commit_of(b"first").wait().await.expect("reads go on");
    cache.settled().wait().await.expect("reads of all keys go on");
    assert_eq!(cache.add(b"count", 1, Ttl::Default).expect_err("refused").kind, ErrorKind::DiskFull);
    assert_eq!(value_of(&cache, b"count"), None);
    assert_eq!(broker.caches.delete("c").expect_err("refused").kind, ErrorKind::DiskFull);
    assert!(broker.store().and_then(Store::full).is_some(), "it is said why");
    disk.0.store(false, Ordering::Relaxed);
    while let Err(full) = cache.admit() {
        assert!(begin.elapsed() < 2 * PATIENCE, "changes are taken again: {full}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    put(b"second", b"2").await.expect("room");
    let before = (value_of(&cache, b"first"), value_of(&cache, b"second"));
    drop(cache);
    broker.stop().expect("it stops");
    drop(broker);
    let broker = open(&disk, dir.path()).await;
    let cache = broker.caches.find("c").expect("it is there");
    assert_eq!((value_of(&cache, b"first"), value_of(&cache, b"second")), before);
}

/// Returns the largest file of this kind in a directory.
fn largest(dir: &Path, kind: &str) -> Option<(u64, std::path::PathBuf)> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let found = entries.filter_map(|path| {
        if path.is_dir() {
            largest(&path, kind)
        } else {
            (path.extension()? == kind).then(|| (path.metadata().map_or(0, |about| about.len()), path))
        }
    });
    found.max()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_log_of_durable_caches_is_refused_by_name_and_all_else_is_served() {
    let disk = Narrow::default();
    let dir = tempfile::TempDir::new().expect("a folder");
    let broker = open(&disk, dir.path()).await;
    let durable = CacheSettings { is_durable: true, ..CacheSettings::default() };
    let cache = broker.caches.create("orders", durable).expect("it is made");
    for number in 0..20 {
        let key = format!("key {number}");
        cache.put(key.as_bytes(), &[7; 500], Ttl::Default, Condition::Always).expect("room");
    }
    cache.settled().wait().await.expect("durable");
    drop(cache);
    broker.stop().expect("it stops");
    drop(broker);
    let (bytes, path) = largest(&dir.path().join("topics"), "log").expect("a segment");
    let mut contents = std::fs::read(&path).expect("it is read");
    contents[bytes as usize / 2] ^= 4;
    std::fs::write(&path, contents).expect("it is written");
    let broker = open(&disk, dir.path()).await;
    for refused in [broker.caches.find("orders"), broker.caches.open("orders"), broker.caches.create("orders", durable)]
    {
        let refused = refused.map(drop).expect_err("it is not served");
        assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");
        assert!(refused.message.contains("cache 'orders' is not served"), "{refused}");
        assert!(refused.message.contains("is damaged at byte"), "{refused}");
    }
    broker.caches.create("others", CacheSettings::default()).expect("one in memory is served");
    broker.stop().expect("it stops");
}
