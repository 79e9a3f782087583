//! Inspection of a data directory while no broker uses it: its contents, its damage, and the recoverable data.
//!
//! Only [`repair`] changes anything; its plan lists the changes first.

pub mod dump;
pub mod repair;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::catalog::{Change, TopicEntry};
use engine::{Error, ErrorKind, Offset, Result, TopicName, TopicSettings};

use crate::checkpoint::{Catalog, Checkpoint, ends};
use crate::disk::{Disk, damaged, failed};
use crate::info::stream;
use crate::info::{NOT_SERVED, PartitionInfo, SegmentInfo};
use crate::journal::block::EntryKind;
use crate::journal::recover::{self, JournalFile, Origin, Progress, Recovery};
use crate::journal::salvage;
use crate::log::PartitionLog;
use crate::partition::scan::{self, Epochs, Spot};
use crate::partition::segments::log_name;
use crate::shared::StoreSettings;
use crate::state::State;
use crate::store::{read_checkpoint, refuse_leftovers, take_lock};

/// Data directory that is locked against brokers.
pub struct Inspection {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    checkpoint: Checkpoint,
    _lock: Box<dyn Send + Sync>,
}

/// Contents of a data directory.
#[derive(Clone, Debug)]
pub struct Report {
    pub directory: u64,
    /// Position from which the journal has to be read.
    pub origin: Origin,
    pub next_producer: i64,
    /// Bytes of the state of a node of a cluster; `None` for a single broker.
    pub node_bytes: Option<u64>,
    pub topics: Vec<TopicReport>,
    pub journal: Vec<JournalFile>,
    pub damages: Vec<Damage>,
    /// Counts of what was read and checked; `None` if only the names and lengths of files were checked.
    pub verified: Option<Verified>,
}

/// Topic as in the checkpoint.
#[derive(Clone, Debug)]
pub struct TopicReport {
    pub id: u32,
    pub name: TopicName,
    pub settings: TopicSettings,
    pub partitions: Vec<PartitionReport>,
}

#[derive(Clone, Debug)]
pub struct PartitionReport {
    pub dir: PathBuf,
    pub start: Offset,
    /// Offset after the last record in a segment.
    pub end: Offset,
    pub segments: Vec<(PathBuf, SegmentInfo)>,
    /// Salvage files with entries of the journal.
    pub salvages: Vec<PathBuf>,
}

/// Data that differs from the written data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// File, byte, and problem.
    pub message: String,
    /// Topic and partition that are not served because of it; `None` if it concerns the whole directory.
    pub concerns: Option<(String, u32)>,
}

/// Amount of data that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub segments: u64,
    pub batches: u64,
    pub batch_bytes: u64,
    pub journal_entries: u64,
    pub journal_bytes: u64,
}

impl Inspection {
    /// Opens and locks the directory. Fails while a broker uses it, and if it contains no data.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self> {
        let names = disk.list(dir).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(format!("there is no directory {}", dir.display())),
            _ => failed("list", dir)(error),
        })?;
        let empty = || Error::not_found(format!("{} is not a data directory: it has no checkpoint", dir.display()));
        if !names.iter().any(|name| ["checkpoint", "journal", "topics"].contains(&name.as_str())) {
            return Err(empty());
        }
        let lock = take_lock(&*disk, dir)?;
        let Some(checkpoint) = read_checkpoint(&*disk, &dir.join("checkpoint"))? else {
            refuse_leftovers(&*disk, dir, &dir.join("journal"))?;
            return Err(empty());
        };
        Ok(Self { disk, dir: dir.to_owned(), checkpoint, _lock: lock })
    }

    /// Reports the contents of the checkpoint and the names and lengths of files; with `verify` everything is read and
    /// checked.
    pub fn report(&self, verify: bool, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        let Checkpoint { directory, origin, catalog, state: of_node } = &self.checkpoint;
        let mut report = Report {
            directory: *directory,
            origin: *origin,
            next_producer: catalog.next_producer,
            node_bytes: of_node.as_ref().map(|state| state.len() as u64),
            topics: self.topics(catalog),
            journal: recover::files(&*self.disk, &self.journal_dir())?,
            damages: Vec::new(),
            verified: None,
        };
        let mut findings = Findings { names: names(catalog), damages: Vec::new(), verified: Verified::default() };
        let mut state = State::new(self.disk.clone(), &self.dir, StoreSettings::default(), self.epochs());
        state.adopt(catalog.clone());
        let journal = Recovery::open(&self.disk, &self.dir, *directory, *origin, ends(catalog));
        match (&journal, verify) {
            (Err(error), _) if error.kind == ErrorKind::Unsupported => return Err(error.clone()),
            (Err(error), _) => findings.damage(None, &error.message),
            // The journal may have more topics than the checkpoint.
            (Ok(journal), true) => {
                let found = findings.read_journal(&state, journal, of_node.is_some(), progress);
                report.topics = self.topics(&found);
            }
            // The missing data may be of a topic that the journal deletes.
            (Ok(journal), false)
                if of_node.is_none() && state.partitions.values().any(|partition| partition.refused().is_some()) =>
            {
                let (exam, _) = state.examine(journal, None, &mut |_| Ok(true), progress);
                findings.names.retain(|stream, _| !exam.deleted().contains(&((*stream >> 32) as u32)));
            }
            (Ok(_), false) => {}
        }
        for (stream, partition) in &state.partitions {
            if let Some(refused) = partition.refused() {
                findings.damage(Some(*stream), refused.message.trim_start_matches(NOT_SERVED));
            }
        }
        if verify {
            self.read_segments(&mut findings, progress);
            report.verified = Some(findings.verified);
        }
        findings.damages.sort_by(|a, b| (&a.concerns, &a.message).cmp(&(&b.concerns, &b.message)));
        findings.damages.dedup();
        report.damages = findings.damages;
        Ok(report)
    }

    fn journal_dir(&self) -> PathBuf {
        self.dir.join("journal")
    }

    fn partition_dir(&self, id: u32, partition: usize) -> PathBuf {
        self.dir.join("topics").join(id.to_string()).join(partition.to_string())
    }

    fn topics(&self, catalog: &Catalog) -> Vec<TopicReport> {
        let partition = |id: u32, (i, info): (usize, &PartitionInfo)| {
            let dir = self.partition_dir(id, i);
            let segment = |info: &SegmentInfo| (dir.join(log_name(info.base, info.generation)), *info);
            let segments = info.segments.iter().map(segment).collect();
            let salvages = info.salvages.iter().map(|position| salvage::path(&dir, *position)).collect();
            PartitionReport { start: info.start, end: info.end(), segments, salvages, dir }
        };
        let topic = |(id, entry): (&u32, &TopicEntry<PartitionInfo>)| TopicReport {
            id: *id,
            name: entry.name.clone(),
            settings: entry.settings,
            partitions: entry.partitions.iter().enumerate().map(|info| partition(*id, info)).collect(),
        };
        catalog.topics.iter().map(topic).collect()
    }

    /// Returns all partitions with their streams.
    fn partitions(&self) -> impl Iterator<Item = (u64, PathBuf, &PartitionInfo)> {
        self.checkpoint.catalog.topics.iter().flat_map(move |(id, entry)| {
            let infos = entry.partitions.iter().enumerate();
            infos.map(move |(i, info)| (stream(*id, i as u32), self.partition_dir(*id, i), info))
        })
    }

    fn epochs(&self) -> Epochs {
        if self.checkpoint.state.is_some() { Epochs::Terms } else { Epochs::Zero }
    }

    fn read_segments(&self, findings: &mut Findings, progress: &mut dyn FnMut(Progress)) {
        let all = || self.partitions().flat_map(|(_, _, info)| &info.segments).map(|info| info.bytes);
        let before = findings.verified.journal_bytes;
        let mut now = Progress { bytes: before, bytes_max: before + all().sum::<u64>() };
        for (stream, dir, info) in self.partitions() {
            for info in &info.segments {
                match scan::segment(&*self.disk, &dir, info, self.epochs()) {
                    Ok(spots) => findings.look(&*self.disk, stream, (&dir, info), &spots),
                    Err(error) => findings.damage(Some(stream), &error.message),
                }
                now.bytes += info.bytes;
                progress(now);
            }
        }
    }
}

/// Returns the topic and the partition of each stream of the journal.
pub(crate) fn names(catalog: &Catalog) -> BTreeMap<u64, (String, u32)> {
    let topics = catalog.topics.iter();
    let name = |id: u32, name: &TopicName, i: u32| (stream(id, i), (name.as_str().to_owned(), i));
    topics.flat_map(|(id, entry)| (0..entry.settings.partitions).map(move |i| name(*id, &entry.name, i))).collect()
}

/// Returns the part of a message that states the problem, without the remedy.
fn cause(message: &str) -> &str {
    message.split(". Put ").next().unwrap_or(message)
}

/// Results that are collected during an inspection.
struct Findings {
    names: BTreeMap<u64, (String, u32)>,
    damages: Vec<Damage>,
    verified: Verified,
}

impl Findings {
    fn damage(&mut self, stream: Option<u64>, message: &str) {
        // The remedy is printed once, after all damages.
        let concerns = stream.map(|stream| self.names.get(&stream).cloned());
        // Nothing of a deleted topic is missing.
        if concerns != Some(None) {
            self.damages.push(Damage { message: cause(message).to_owned(), concerns: concerns.flatten() });
        }
    }

    /// Returns the topics as the journal leaves them. `is_of_node`: it is not known which of its entries are committed,
    /// so they only have to be readable.
    fn read_journal(
        &mut self,
        state: &State,
        journal: &Recovery,
        is_of_node: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Catalog {
        let mut entries = 0;
        let mut bytes = 0;
        let mut wrong = Vec::new();
        let mut catalog = state.catalog.clone();
        let (exam, end) = state.examine(
            journal,
            None,
            &mut |found| {
                entries += 1;
                if found.kind == EntryKind::Catalog
                    && !is_of_node
                    && let Ok(Ok(change)) = found.body.as_ref().map(|body| Change::decode(body))
                {
                    catalog.apply(&change);
                }
                if let Err(error) = &found.body {
                    let is_of_partition =
                        matches!(found.kind, EntryKind::Batch | EntryKind::Start | EntryKind::Segment);
                    let is_in_segment = found.in_part.is_some();
                    wrong.push((is_of_partition.then_some(found.stream), error.message.clone(), is_in_segment));
                }
                Ok(!is_of_node)
            },
            &mut |now| {
                bytes = now.bytes;
                progress(now);
            },
        );
        self.names = names(&catalog);
        self.verified.journal_entries = entries;
        self.verified.journal_bytes = bytes;
        // A journal that cannot be read to its end may lack the deletion of a topic whose segments are missing.
        let is_whole = end.is_ok();
        let wrong = wrong.iter().filter(|(.., is_in_segment)| is_whole || !is_in_segment);
        wrong.for_each(|(stream, message, _)| self.damage(*stream, message));
        match end {
            Ok(_) => exam.holes.iter().for_each(|(stream, error)| self.damage(Some(*stream), &error.message)),
            Err(error) => self.damage(None, &error.message),
        }
        catalog
    }

    fn look(&mut self, disk: &dyn Disk, stream: u64, (dir, info): (&Path, &SegmentInfo), spots: &[Spot]) {
        self.verified.segments += 1;
        let path = dir.join(log_name(info.base, info.generation));
        for spot in spots {
            match spot {
                Spot::Batch { batch, .. } => {
                    self.verified.batches += 1;
                    self.verified.batch_bytes += batch.len() as u64;
                }
                Spot::Damage { at, what, .. } => self.damage(Some(stream), &damaged(&path, *at, what).message),
            }
        }
        if let Some(Err(error)) = scan::index(disk, dir, info, spots) {
            self.damage(Some(stream), &error.message);
        }
    }
}
