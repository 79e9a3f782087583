//! Files that rot, are truncated, get lost or have another version. Served data is correct, data that cannot be served
//! is refused with the name of its file, everything else continues, and when the file is restored all data is available
//! again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, ErrorKind, RecordBatch};
use storage::journal::block::{BlockHead, FileHead, PAGE_BYTES};
use storage::{Disk, StoredTopic};

use crate::power::repeatable;
use crate::workload::{EventLog, Model, Opened, Work, open, read_at, small, wait_until};
use sim::{Random, SimDisk};

pub const DIR: &str = "/data";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Journal,
    Segment,
    Index,
    Checkpoint,
    Salvage,
    Lock,
}

impl Kind {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        match extension.as_deref() {
            Some("journal") => Some(Self::Journal),
            Some("log") => Some(Self::Segment),
            Some("index") => Some(Self::Index),
            Some("salvage") => Some(Self::Salvage),
            Some("lock") => Some(Self::Lock),
            None if path.ends_with("checkpoint") => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Harm {
    Flip(usize, u8),
    Cut(usize),
    Remove,
    /// Rewritten as an older release would have done.
    Version,
}

impl Harm {
    pub fn any(kind: Kind, bytes: &[u8], random: &mut Random) -> Self {
        let len = bytes.len().max(1) as u64;
        match random.below(8) {
            0 => Self::Remove,
            1 => Self::Cut(random.below(len) as usize),
            2 if !matches!(kind, Kind::Salvage | Kind::Lock) => Self::Version,
            _ => {
                // Most of a journal file was never written, and has no meaning.
                let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
                let end = if random.one_in(5) { len } else { written };
                Self::Flip(random.below(end) as usize, random.below(8) as u8)
            }
        }
    }

    pub fn apply(self, disk: &SimDisk, path: &Path, kind: Kind) {
        match self {
            Self::Flip(at, bit) => disk.edit(path, |bytes| bytes.get_mut(at).into_iter().for_each(|b| *b ^= 1 << bit)),
            Self::Cut(len) => disk.edit(path, |bytes| bytes.truncate(len)),
            Self::Remove => disk.remove(path).expect("it was there"),
            Self::Version => disk.edit(path, |bytes| make_older(bytes, kind)),
        }
    }
}

/// Makes a file of version 0 with valid checksums; a batch has Kafka's version, of which 1 existed.
fn make_older(bytes: &mut [u8], kind: Kind) {
    match kind {
        Kind::Segment => bytes.get_mut(16).into_iter().for_each(|magic| *magic = 1),
        _ => {
            bytes[12..16].fill(0);
            let end = if kind == Kind::Journal { 48 } else { bytes.len() };
            let crc = crc_fast::crc32_iscsi(&bytes[12..end]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// Directory that is not open, and its contents.
pub struct Site {
    pub disk: SimDisk,
    pub model: Model,
    incarnation: u64,
}

impl Site {
    /// Creates a directory by some work that a stop or a kill ends.
    pub fn worked(seed: u64, is_killed: bool) -> Self {
        let disk = SimDisk::new();
        let mut model = Model::default();
        let events = EventLog::default();
        let opened = open(&disk, Path::new(DIR), small(1)).expect("a new directory");
        let work = Work::new(opened, &model, 1, events.reporter());
        work.create(2).expect("a topic");
        work.run(seed, 2, 120);
        let disk = end(work, disk, is_killed);
        events.apply_to(&mut model);
        let (store, topics) = open(&disk.kill(), Path::new(DIR), small(1)).expect("it opens");
        model.check(&topics, 1).expect("it is all there");
        store.stop().expect("it stops");
        Self { disk, model, incarnation: 1 }
    }

    pub fn paths(&self, kind: Kind) -> Vec<PathBuf> {
        let paths = self.disk.files().into_iter().map(|(path, _)| path);
        paths.filter(|path| Kind::of(path) == Some(kind)).collect()
    }

    /// Returns a copy with salvaged entries of a partition, whose segment was missing for a while.
    pub fn with_salvage(&self) -> Option<Self> {
        self.paths(Kind::Segment).into_iter().find_map(|path| {
            let disk = self.disk.kill();
            let bytes = disk.contents(&path);
            disk.remove(&path).expect("it was there");
            let (store, _) = open(&disk, Path::new(DIR), small(1)).expect("one partition is refused");
            store.stop().expect("it stops");
            let site = Self { disk, model: self.model.clone(), incarnation: self.incarnation };
            site.paths(Kind::Salvage).first()?;
            put_back(&site.disk, &path, &bytes);
            Some(site)
        })
    }

    /// Damages a copy, checks the served and refused partitions, continues, undoes the damage, and checks again.
    fn suffer(&self, path: &Path, kind: Kind, random: &mut Random) {
        let disk = self.disk.kill();
        let mut model = self.model.clone();
        let before = disk.contents(path);
        let harm = Harm::any(kind, &before, random);
        harm.apply(&disk, path, kind);
        let damaged = (!matches!(harm, Harm::Remove)).then(|| disk.contents(path));
        let place = format!("{} {harm:?}", path.display());
        let incarnation = self.incarnation + 1;
        let disk = match open(&disk, Path::new(DIR), small(1)) {
            Err(error) => {
                assert!(matches!(kind, Kind::Journal | Kind::Checkpoint), "{place}: {error}");
                check_words(&error, path, &place);
                for (other, _) in
                    disk.files().iter().filter(|(other, _)| other != path && !other.ends_with("thalweg.lock"))
                {
                    assert!(
                        disk.contents(other) == self.disk.contents(other),
                        "{place}: {} was changed",
                        other.display()
                    );
                }
                put_back(&disk, path, &before);
                disk
            }
            Ok((store, topics)) => {
                let failed = self.check(&topics, path, random, &place);
                assert!(
                    failed <= usize::from(!matches!(kind, Kind::Index | Kind::Lock)),
                    "{place}: {failed} are refused"
                );
                let events = EventLog::default();
                let next = go_on((store, topics), disk, &model, (incarnation, random), &events);
                events.apply_to(&mut model);
                match damaged {
                    // A byte before the partition's start is not relevant at first.
                    Some(damaged) if damaged.len() == before.len() && (failed > 0 || kind == Kind::Segment) => {
                        undo(&next, path, kind, &before, &damaged)
                    }
                    _ if failed == 0 => {}
                    _ => put_back(&next, path, &before),
                }
                next
            }
        };
        let (store, topics) =
            open(&disk, Path::new(DIR), small(1)).unwrap_or_else(|error| panic!("{place}, put back: {error}"));
        model.check(&topics, incarnation).unwrap_or_else(|error| panic!("{place}, put back: {error}"));
        store.stop().expect("it stops");
    }

    /// Checks that each partition is either read as it was appended, or refused with a reason. Returns the number of
    /// refused partitions.
    fn check(&self, topics: &[StoredTopic], path: &Path, random: &mut Random, place: &str) -> usize {
        let mut failed = 0;
        for topic in topics {
            for (i, log) in topic.partitions.iter().enumerate() {
                let place = format!("{place}: {}/{i}", topic.name.as_str());
                let (start, known, end) = self.model.known(topic.name.as_str(), i);
                let is_concerned = path.starts_with(format!("{DIR}/topics/{}/{i}", topic.id))
                    || !path.starts_with(format!("{DIR}/topics"));
                let fail = |error: &Error| {
                    assert!(is_concerned, "{place} is not concerned: {error}");
                    check_words(error, path, &place);
                };
                if let Some(error) = log.refused() {
                    fail(&error);
                    assert!(read_at(log, start, 1000).is_err() && log.offset_for_time(0).is_err(), "{place}");
                    failed += 1;
                    continue;
                }
                assert_eq!((log.extent().start, log.extent().end), (start, end), "{place}");
                let mut wrong = None;
                // From the start to the end, and from an arbitrary offset.
                for from in [start, start + random.below(end - start + 1)] {
                    let mut at = from;
                    while at < end && wrong.is_none() {
                        match read_at(log, at, random.below(30_000) as usize) {
                            Ok(batches) => {
                                let first = known.partition_point(|batch| batch.next_offset() <= at);
                                assert!(!batches.is_empty() && known[first..].starts_with(&batches), "{place}: {at}");
                                at = batches.last().map_or(at, RecordBatch::next_offset);
                            }
                            Err(error) => wrong = Some(error),
                        }
                    }
                }
                let timestamp_ms = ((start + random.below(end - start + 1)) * 10) as i64;
                match log.offset_for_time(timestamp_ms) {
                    Err(error) => wrong = Some(error),
                    Ok(found) => {
                        let first = known.iter().find(|batch| batch.max_timestamp_ms() >= timestamp_ms);
                        assert_eq!(found, first.map_or(end, |batch| batch.base_offset().max(start)), "{place}");
                    }
                }
                wrong.iter().for_each(fail);
                failed += usize::from(wrong.is_some());
            }
        }
        failed
    }
}

/// Checks that the error names the file, the byte or the other problem, and the remedy.
fn check_words(error: &Error, path: &Path, place: &str) {
    let message = &error.message;
    assert!(matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported), "{place}: {error:?}");
    assert!(message.contains(&path.display().to_string()), "{place}: which file? {message}");
    let contains_any = |words: &[&str]| words.iter().any(|word| message.contains(word));
    assert!(contains_any(&["at byte", "is missing", "has version"]), "{place}: what is wrong? {message}");
    assert!(contains_any(&["thalweg inspect", "use the release that wrote it"]), "{place}: what to do? {message}");
}

/// Checks that served partitions take records as before. Ends with a stop or a kill.
fn go_on(
    opened: Opened,
    disk: SimDisk,
    model: &Model,
    (incarnation, random): (u64, &mut Random),
    events: &EventLog,
) -> SimDisk {
    let work = Work::new(opened, model, incarnation, events.reporter());
    for writer in work.writers() {
        for _ in 0..1 + random.below(4) {
            match (writer.log.refused(), writer.append()) {
                (None, appended) => assert!(writer.wait(appended.expect("it is served")), "it is acknowledged"),
                (Some(refused), appended) => assert_eq!(appended.map_err(|error| error.message), Err(refused.message)),
            }
        }
    }
    if random.one_in(2) {
        work.store.checkpoint().expect("a checkpoint of what is served");
    }
    end(work, disk, random.one_in(2))
}

/// Returns the directory after a stop, or after a kill of a broker with an idle journal.
fn end(work: Arc<Work>, disk: SimDisk, is_killed: bool) -> SimDisk {
    if !is_killed {
        work.end().expect("it stops");
        return disk;
    }
    for writer in work.writers() {
        writer.wait(writer.log.end());
    }
    wait_until("the journal comes to rest", || is_at_rest(&disk));
    let after = disk.kill();
    disk.power_off_after(0);
    work.end().unwrap_or_default();
    after
}

/// Returns `true` if the newest block of the journal has no entries: it records that all before it was synced.
fn is_at_rest(disk: &SimDisk) -> bool {
    let mut newest = (0, true);
    // Files may be removed in the meantime.
    for bytes in disk.contents_of(|path| Kind::of(path) == Some(Kind::Journal)) {
        if let Ok(head) = FileHead::decode(&bytes) {
            let blocks = bytes.chunks(PAGE_BYTES as usize).enumerate().filter_map(|(page, begin)| {
                BlockHead::file_of(begin).filter(|file| *file == head.number)?;
                BlockHead::decode(&bytes[page * PAGE_BYTES as usize..])
            });
            newest = blocks.map(|block| (block.position, block.rows.is_empty())).fold(newest, Ord::max);
        }
    }
    newest.1
}

fn put_back(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    disk.remove(path).unwrap_or_default();
    disk.add_file(path, bytes);
    disk.sync_dir(path.parent().expect("a directory")).expect("its name is durable");
}

/// Restores the damaged bytes, wherever they are now.
fn undo(disk: &SimDisk, path: &Path, kind: Kind, before: &[u8], damaged: &[u8]) {
    if kind != Kind::Journal {
        let Some(at) = before.iter().zip(damaged).position(|(before, damaged)| before != damaged) else { return };
        let around = at.saturating_sub(16)..(at + 16).min(before.len());
        let exists = disk.files().iter().any(|(file, len)| file == path && *len >= around.end as u64);
        // Unneeded bytes may have been overwritten.
        if exists && disk.contents(path)[around.clone()] == damaged[around] {
            disk.edit(path, |bytes| bytes[at] = before[at]);
        }
        return;
    }
    // The entry was put aside unchanged.
    let at = before.iter().zip(damaged).position(|(before, damaged)| before != damaged).expect("a byte");
    let entry = entry_at(before, at);
    let salvages = disk.files().into_iter().map(|(path, _)| path).filter(|path| Kind::of(path) == Some(Kind::Salvage));
    let mended = salvages.filter(|path| {
        let contents = disk.contents(path);
        let found = contents.windows(entry.len()).position(|bytes| *bytes == damaged[entry.clone()]);
        let mend =
            |at: usize| disk.edit(path, |bytes| bytes[at..][..entry.len()].copy_from_slice(&before[entry.clone()]));
        found.map(mend).is_some()
    });
    assert_eq!(mended.count(), 1, "the entry was put aside");
}

/// Returns the range of the body of the journal entry that contains this byte.
fn entry_at(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let pages = (1..=at / PAGE_BYTES as usize).rev().map(|page| page * PAGE_BYTES as usize);
    let found = pages.filter_map(|begin| {
        let block = BlockHead::decode(&bytes[begin..])?;
        let mut body = begin + block.head_bytes() as usize;
        let mut bodies = block.rows.iter().map(|row| {
            body += row.bytes as usize;
            body - row.bytes as usize..body
        });
        bodies.find(|body| body.contains(&at))
    });
    found.into_iter().next().expect("an entry")
}

/// Runs `sites` directories with damage to files of a kind.
fn harm(kind: Kind, sites: u64) {
    repeatable(sites, |seed| {
        let mut random = Random::new(seed);
        let site = Site::worked(seed, kind == Kind::Salvage || random.one_in(2));
        let site = if kind == Kind::Salvage { site.with_salvage().unwrap_or(site) } else { site };
        let paths = site.paths(kind);
        for _ in 0..if paths.is_empty() { 0 } else { 8 } {
            site.suffer(&paths[random.below(paths.len() as u64) as usize], kind, &mut random);
        }
    });
}

#[test]
fn a_harmed_journal_is_refused_or_makes_no_difference() {
    harm(Kind::Journal, 10);
}

#[test]
fn a_harmed_segment_concerns_its_partition_only() {
    harm(Kind::Segment, 8);
}

#[test]
fn a_harmed_index_is_made_again() {
    harm(Kind::Index, 4);
}

#[test]
fn a_harmed_checkpoint_is_refused() {
    harm(Kind::Checkpoint, 4);
}

#[test]
fn harmed_entries_that_were_put_aside_are_missed() {
    harm(Kind::Salvage, 8);
}

#[test]
fn the_content_of_the_lock_file_is_ignored() {
    harm(Kind::Lock, 2);
}

#[test]
fn a_directory_of_an_older_version_is_refused_as_unsupported() {
    let site = Site::worked(1, true);
    for (kind, version) in [(Kind::Journal, 2), (Kind::Checkpoint, 2)] {
        // A file of the journal that was never used has no version.
        let is_used = |path: &PathBuf| kind != Kind::Journal || FileHead::decode(&site.disk.contents(path)).is_ok();
        let path = site.paths(kind).into_iter().find(is_used).expect("a file");
        let disk = site.disk.kill();
        Harm::Version.apply(&disk, &path, kind);
        let refused = open(&disk, Path::new(DIR), small(1)).map(drop).expect_err("it is older");
        assert_eq!(refused.kind, ErrorKind::Unsupported);
        let expected = format!("{} has version 0, this broker reads version {version}", path.display());
        assert!(refused.message.starts_with(&expected), "{refused}");
    }
}
