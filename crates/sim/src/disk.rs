//! Disk in memory that tracks synced data, so that its power can be cut at any operation.
//!
//! The disk is as hostile as the rules of a file system allow. Each sector that was not synced is on the disk or not,
//! independent of its neighbours; a file has its old length or its new one; the names of a directory include the
//! changes up to any of those since its last sync. A failed sync loses the data that it should have written, and
//! reports this once to each handle, as Linux does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use consensus::Random;
use parking_lot::Mutex;
use storage::{Disk, DiskFile};

/// Message of every error after the power went off.
pub const POWER_IS_OFF: &str = "the power is off";

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(u64),
}

/// Change of a directory that was not synced yet.
#[derive(Clone, Debug)]
enum DirChange {
    Put(String, Node),
    Remove(String),
    Rename(String, String),
}

#[derive(Clone, Default)]
struct Content {
    live: Vec<u8>,
    synced: Vec<u8>,
    /// Versions of each sector that was written since its last sync: all its contents, by the number of the write.
    versions: BTreeMap<usize, Vec<(u64, [u8; SECTOR_BYTES])>>,
    writes: u64,
    /// Sectors that a failed sync gave up: the next sync skips them, unless they are written again.
    given_up: BTreeSet<usize>,
    failed_syncs: u64,
}

/// Kind of operation that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Sync,
    Write,
    Read,
    SyncDir,
    Create,
    Rename,
    Open,
    Lock,
}

/// Fault: an operation on a path that contains `path` fails `times` times, after `after` successful ones.
#[derive(Clone, Debug)]
pub struct Fault {
    pub doing: Doing,
    pub path: &'static str,
    pub after: u64,
    pub times: u64,
    pub error: io::ErrorKind,
}

#[derive(Default)]
struct World {
    nodes: BTreeMap<PathBuf, Node>,
    synced_nodes: BTreeMap<PathBuf, Node>,
    changes: BTreeMap<PathBuf, Vec<DirChange>>,
    files: HashMap<u64, Content>,
    next_file: u64,
    locks: BTreeSet<PathBuf>,
    faults: Vec<Fault>,
    /// Number of faults that occurred.
    faulted: u64,
    bytes: u64,
    bytes_max: Option<u64>,
    operations: u64,
    /// Operation before which the power goes off.
    off_at: Option<u64>,
    /// Directory whose creation waits until it was removed, or half a second has passed.
    late: Option<PathBuf>,
    /// `true` while a thread creates the late directory.
    is_late: bool,
}

/// Disk in memory, whose power can be cut.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<World>>);

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    pub fn new() -> Self {
        let root = BTreeMap::from([(PathBuf::from("/"), Node::Dir)]);
        Self(Arc::new(Mutex::new(World { nodes: root.clone(), synced_nodes: root, ..World::default() })))
    }

    /// Fails all operations after `operations` more.
    pub fn power_off_after(&self, operations: u64) {
        let mut world = self.0.lock();
        world.off_at = Some(world.operations + operations);
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// Takes back a power cut that has not happened yet.
    pub fn stay_on(&self) {
        let mut world = self.0.lock();
        let is_off = world.is_off();
        world.off_at.take_if(|_| !is_off);
    }

    pub fn is_off(&self) -> bool {
        self.0.lock().is_off()
    }

    /// Returns the disk that a reboot finds after a power cut at this moment.
    pub fn cut(&self, seed: u64) -> Self {
        let world = self.0.lock();
        let mut random = Random::new(seed);
        let mut nodes = world.synced_nodes.clone();
        for (dir, changes) in &world.changes {
            let durable = random.below(changes.len() as u64 + 1) as usize;
            changes[..durable].iter().for_each(|change| apply(&mut nodes, dir, change));
        }
        Self::of(without_orphans(nodes), &world, |content| content.cut(&mut random))
    }

    /// Returns the disk that the next process finds after the end of this one: nothing is lost, and nothing more was
    /// synced.
    pub fn kill(&self) -> Self {
        let world = self.0.lock();
        Self(Arc::new(Mutex::new(World {
            nodes: world.nodes.clone(),
            synced_nodes: world.synced_nodes.clone(),
            changes: world.changes.clone(),
            files: world.files.clone(),
            next_file: world.next_file,
            bytes: world.bytes,
            ..World::default()
        })))
    }

    fn of(nodes: BTreeMap<PathBuf, Node>, world: &World, mut bytes: impl FnMut(&Content) -> Vec<u8>) -> Self {
        let mut files = HashMap::new();
        for node in nodes.values() {
            if let Node::File(file) = node {
                let bytes = bytes(&world.files[file]);
                files.insert(*file, Content { live: bytes.clone(), synced: bytes, ..Content::default() });
            }
        }
        let bytes = files.values().map(|content: &Content| content.live.len() as u64).sum();
        let next_file = world.next_file;
        let synced_nodes = nodes.clone();
        Self(Arc::new(Mutex::new(World { nodes, synced_nodes, files, next_file, bytes, ..World::default() })))
    }

    /// Allows a removal of this directory to overtake its next creation, unless the removal waits.
    pub fn set_late(&self, path: &Path) {
        self.0.lock().late = Some(path.to_owned());
    }

    /// Returns `true` while a thread creates that directory.
    pub fn is_late(&self) -> bool {
        self.0.lock().is_late
    }

    fn let_removals_by(&self, path: &Path) {
        let is_late = |world: &World| world.late.as_ref().is_some_and(|late| late == path);
        let begin = Instant::now();
        while is_late(&self.0.lock()) && begin.elapsed() < Duration::from_millis(500) {
            self.0.lock().is_late = true;
            std::thread::yield_now();
        }
        self.0.lock().late.take_if(|late| late == path);
    }

    pub fn add_fault(&self, fault: Fault) {
        self.0.lock().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        self.0.lock().faults.clear();
    }

    pub fn faulted(&self) -> u64 {
        self.0.lock().faulted
    }

    pub fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Limits the total bytes of all files.
    pub fn set_bytes_max(&self, bytes: Option<u64>) {
        self.0.lock().bytes_max = bytes;
    }

    /// Returns all files with their lengths, in the order of their names.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let world = self.0.lock();
        let file = |(path, node): (&PathBuf, &Node)| match node {
            Node::Dir => None,
            Node::File(file) => Some((path.clone(), world.files[file].live.len() as u64)),
        };
        world.nodes.iter().filter_map(file).collect()
    }

    /// Returns the contents of some files, all as of one moment.
    pub fn contents_of(&self, is_wanted: impl Fn(&Path) -> bool) -> Vec<Vec<u8>> {
        let world = self.0.lock();
        let contents = |(path, node): (&PathBuf, &Node)| match node {
            Node::File(file) if is_wanted(path) => Some(world.files[file].live.clone()),
            Node::File(_) | Node::Dir => None,
        };
        world.nodes.iter().filter_map(contents).collect()
    }

    pub fn contents(&self, path: &Path) -> Vec<u8> {
        self.0.lock().content(path).expect("invariant: a file").live.clone()
    }

    /// Changes a file without the knowledge of its users.
    pub fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.0.lock();
        let content = world.content_mut(path).expect("invariant: a file");
        let before = content.live.len() as u64;
        edit(&mut content.live);
        content.synced = content.live.clone();
        let after = content.live.len() as u64;
        world.bytes = world.bytes + after - before;
    }

    pub fn add_file(&self, path: &Path, bytes: &[u8]) {
        self.create(path).expect("invariant: a new file");
        self.edit(path, |content| content.extend_from_slice(bytes));
    }
}

fn without_orphans(nodes: BTreeMap<PathBuf, Node>) -> BTreeMap<PathBuf, Node> {
    let is_dir = |path: &Path| nodes.get(path) == Some(&Node::Dir);
    let has_way = |path: &Path| path.ancestors().skip(1).all(is_dir);
    nodes.iter().filter(|(path, _)| has_way(path)).map(|(path, node)| (path.clone(), *node)).collect()
}

fn apply(nodes: &mut BTreeMap<PathBuf, Node>, dir: &Path, change: &DirChange) {
    match change {
        DirChange::Put(name, node) => drop(nodes.insert(dir.join(name), *node)),
        DirChange::Remove(name) => {
            let gone = dir.join(name);
            nodes.retain(|path, _| !path.starts_with(&gone));
        }
        DirChange::Rename(from, to) => {
            if let Some(node) = nodes.remove(&dir.join(from)) {
                nodes.insert(dir.join(to), node);
            }
        }
    }
}

fn split(path: &Path) -> (PathBuf, String) {
    let name = path.file_name().expect("invariant: a name").to_string_lossy().into_owned();
    (path.parent().expect("invariant: a directory").to_owned(), name)
}

impl Content {
    fn sector(&self, sector: usize) -> [u8; SECTOR_BYTES] {
        let mut bytes = [0; SECTOR_BYTES];
        let from = (sector * SECTOR_BYTES).min(self.live.len());
        let to = (from + SECTOR_BYTES).min(self.live.len());
        bytes[..to - from].copy_from_slice(&self.live[from..to]);
        bytes
    }

    fn touch(&mut self, from: usize, to: usize) {
        self.writes += 1;
        for sector in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            let bytes = self.sector(sector);
            self.versions.entry(sector).or_default().push((self.writes, bytes));
            self.given_up.remove(&sector);
        }
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        if self.live.len() < at + bytes.len() {
            self.live.resize(at + bytes.len(), 0);
        }
        self.live[at..at + bytes.len()].copy_from_slice(bytes);
        self.touch(at, at + bytes.len());
    }

    fn set_len(&mut self, len: usize) {
        let before = self.live.len();
        self.live.resize(len, 0);
        if len < before {
            self.touch(len, before);
        }
    }

    fn cut(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let len = if random.one_in(2) { self.synced.len() } else { self.live.len() };
        bytes.resize(len, 0);
        // Usually a write survives completely or not at all, sometimes each sector separately.
        let rule = random.below(4);
        for (sector, versions) in &self.versions {
            let durable = match rule {
                0 => 0,
                1 => versions.len(),
                _ => random.below(versions.len() as u64 + 1) as usize,
            };
            let from = sector * SECTOR_BYTES;
            if durable > 0 && from < len {
                let to = (from + SECTOR_BYTES).min(len);
                bytes[from..to].copy_from_slice(&versions[durable - 1].1[..to - from]);
            }
        }
        bytes
    }
}

impl World {
    fn is_off(&self) -> bool {
        self.off_at.is_some_and(|at| self.operations >= at)
    }

    fn begin(&mut self, doing: Doing, path: &Path) -> io::Result<()> {
        if self.is_off() {
            return Err(io::Error::other(POWER_IS_OFF));
        }
        self.operations += 1;
        let text = path.to_string_lossy();
        for fault in self.faults.iter_mut().filter(|fault| fault.doing == doing && text.contains(fault.path)) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                self.faulted += 1;
                return Err(fault.error.into());
            }
        }
        Ok(())
    }

    fn content(&self, path: &Path) -> io::Result<&Content> {
        match self.nodes.get(path) {
            Some(Node::File(file)) => Ok(&self.files[file]),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn content_mut(&mut self, path: &Path) -> io::Result<&mut Content> {
        match self.nodes.get(path) {
            Some(Node::File(file)) => Ok(self.files.get_mut(file).expect("invariant: a file")),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, dir: &Path, change: DirChange) {
        apply(&mut self.nodes, dir, &change);
        self.changes.entry(dir.to_owned()).or_default().push(change);
    }

    fn make_dir(&mut self, path: &Path) -> io::Result<()> {
        match self.nodes.get(path) {
            Some(Node::Dir) => return Ok(()),
            Some(Node::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            None => {}
        }
        let (dir, name) = split(path);
        if !self.nodes.contains_key(&dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(&dir, DirChange::Put(name, Node::Dir));
        Ok(())
    }

    /// Returns the length up to which the file may grow.
    fn room(&mut self, from: u64, to: u64) -> u64 {
        let to = match self.bytes_max {
            Some(max) => to.min(from + max.saturating_sub(self.bytes)),
            None => to,
        };
        self.bytes += to.saturating_sub(from);
        to
    }

    fn free(&mut self, path: &Path) {
        if let Ok(content) = self.content(path) {
            self.bytes -= content.live.len() as u64;
        }
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.0.lock();
        world.begin(Doing::Create, path)?;
        let (dir, name) = split(path);
        if world.nodes.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if world.nodes.get(&dir) != Some(&Node::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = world.next_file;
        world.next_file += 1;
        world.files.insert(file, Content::default());
        world.change(&dir, DirChange::Put(name, Node::File(file)));
        Ok(Box::new(SimFile { disk: self.clone(), path: path.to_owned(), file, seen: AtomicU64::new(0) }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.0.lock();
        world.begin(Doing::Open, path)?;
        let Some(Node::File(file)) = world.nodes.get(path).copied() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let seen = AtomicU64::new(world.files[&file].failed_syncs);
        Ok(Box::new(SimFile { disk: self.clone(), path: path.to_owned(), file, seen }))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut world = self.0.lock();
        world.begin(Doing::Read, path)?;
        if world.nodes.get(path) != Some(&Node::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = world.nodes.keys().filter(|node| node.parent() == Some(path));
        Ok(inside.map(|node| split(node).1).collect())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.let_removals_by(path);
        let mut world = self.0.lock();
        world.begin(Doing::Create, path)?;
        world.make_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.begin(Doing::Rename, to)?;
        world.content(from)?;
        world.free(to);
        let (dir, from) = split(from);
        let (same, to) = split(to);
        assert_eq!(dir, same, "from one directory to another is not atomic");
        world.change(&dir, DirChange::Rename(from, to));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.begin(Doing::Create, path)?;
        world.content(path)?;
        world.free(path);
        let (dir, name) = split(path);
        world.change(&dir, DirChange::Remove(name));
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.begin(Doing::Create, path)?;
        world.late.take_if(|late| late == path);
        if world.nodes.get(path) != Some(&Node::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside: Vec<PathBuf> = world.nodes.keys().filter(|node| node.starts_with(path)).cloned().collect();
        for node in inside.iter().rev() {
            world.free(node);
            let (dir, name) = split(node);
            world.change(&dir, DirChange::Remove(name));
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.begin(Doing::SyncDir, path)?;
        if world.nodes.get(path) != Some(&Node::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        for change in world.changes.remove(path).unwrap_or_default() {
            apply(&mut world.synced_nodes, path, &change);
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let mut world = self.0.lock();
        world.begin(Doing::Lock, path)?;
        let is_free = world.locks.insert(path.to_owned());
        Ok(is_free.then(|| Box::new(Held { disk: self.clone(), path: path.to_owned() }) as Box<dyn Send + Sync>))
    }

    fn volume(&self, _: &Path) -> io::Result<(u64, u64)> {
        let world = self.0.lock();
        Ok(world.bytes_max.map_or((u64::MAX, u64::MAX), |max| (max, max.saturating_sub(world.bytes))))
    }
}

struct Held {
    disk: SimDisk,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.disk.0.lock().locks.remove(&self.path);
    }
}

struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    file: u64,
    /// Number of failed syncs of the file that were reported to this handle.
    seen: AtomicU64,
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut world = self.disk.0.lock();
        world.begin(Doing::Read, &self.path)?;
        let live = &world.files[&self.file].live;
        let from = (at as usize).min(live.len());
        let to = (from + buf.len()).min(live.len());
        buf[..to - from].copy_from_slice(&live[from..to]);
        Ok(to - from)
    }

    fn write_at(&self, slices: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        let mut world = self.disk.0.lock();
        let begun = world.begin(Doing::Write, &self.path);
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        if let Err(error) = begun {
            // Half of it may have been written, unless the power is off.
            if !world.is_off() {
                bytes.truncate(bytes.len() / 2);
                let len = world.files[&self.file].live.len() as u64;
                let to = world.room(len, len.max(at + bytes.len() as u64));
                bytes.truncate(to.saturating_sub(at) as usize);
                world.files.get_mut(&self.file).expect("invariant: a file").write(&bytes, at as usize);
            }
            return Err(error);
        }
        let len = world.files[&self.file].live.len() as u64;
        let end = at + bytes.len() as u64;
        let to = world.room(len, len.max(end));
        bytes.truncate(to.saturating_sub(at) as usize);
        world.files.get_mut(&self.file).expect("invariant: a file").write(&bytes, at as usize);
        if to < end { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Makes all data written before its beginning durable. Other threads may write concurrently.
    fn sync(&self) -> io::Result<()> {
        let (written, len, turns) = {
            let mut world = self.disk.0.lock();
            let begun = world.begin(Doing::Sync, &self.path);
            let is_off = world.is_off();
            let turns = world.operations.wrapping_mul(0x9e37_79b9) >> 7 & 3;
            let content = world.files.get_mut(&self.file).expect("invariant: a file");
            if let Err(error) = begun {
                if !is_off {
                    content.given_up = content.versions.keys().copied().collect();
                    content.failed_syncs += 1;
                    self.seen.store(content.failed_syncs, Ordering::Relaxed);
                }
                return Err(error);
            }
            (content.writes, content.live.len(), turns)
        };
        (0..turns).for_each(|_| std::thread::yield_now());
        let mut world = self.disk.0.lock();
        if world.is_off() {
            return Err(io::Error::other(POWER_IS_OFF));
        }
        let content = world.files.get_mut(&self.file).expect("invariant: a file");
        if self.seen.swap(content.failed_syncs, Ordering::Relaxed) != content.failed_syncs {
            return Err(io::Error::other("an earlier write failed"));
        }
        // A concurrent sync may have made a greater length durable.
        let synced_len = content.synced.len().min(content.live.len()).max(len);
        content.synced.resize(synced_len, 0);
        let Content { synced, versions, given_up, .. } = content;
        versions.retain(|sector, versions| {
            let count = versions.partition_point(|(write, _)| *write <= written);
            if count > 0 && !given_up.contains(sector) {
                let from = (sector * SECTOR_BYTES).min(len);
                let to = ((sector + 1) * SECTOR_BYTES).min(len);
                synced[from..to].copy_from_slice(&versions[count - 1].1[..to - from]);
                versions.drain(..count);
            }
            !versions.is_empty()
        });
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let mut world = self.disk.0.lock();
        world.begin(Doing::Read, &self.path)?;
        Ok(world.files[&self.file].live.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.0.lock();
        world.begin(Doing::Write, &self.path)?;
        let before = world.files[&self.file].live.len() as u64;
        world.bytes = world.bytes + len - before;
        world.files.get_mut(&self.file).expect("invariant: a file").set_len(len as usize);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        {
            let world = self.disk.0.lock();
            if world.bytes_max.is_some_and(|max| world.bytes + len > max) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.set_len(len)
    }
}
