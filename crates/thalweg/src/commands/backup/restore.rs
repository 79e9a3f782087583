//! Reading of a backup: its check, and a data directory that is written from it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use client::RecordBatch;
use engine::limits::BATCH_BYTES_MAX;
use engine::record::BATCH_HEADER_BYTES;
use indicatif::{ProgressBar, ProgressStyle};
use storage::{EntryKind, Manifest, RealDisk, Store, StoreSettings};

use super::folder::{Folder, Index, Partition, Records, above, damaged, failed, sync_dir};
use crate::output::{Failure, Result, USAGE};

/// Bytes of a batch before the part that its length counts.
const LENGTH_END: usize = 12;
/// Bytes of the leader epoch, after them. It is outside of the batch's checksum.
const EPOCH: std::ops::Range<usize> = 12..16;

/// Contents of a backup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents {
    pub topics: u64,
    pub partitions: u64,
    pub files: u64,
    pub batches: u64,
    pub records: u64,
    pub bytes: u64,
}

/// Checks all files of a backup. Returns what they contain, and what is wrong.
pub fn verify(folder: &Folder, index: &Index) -> Result<(Contents, Vec<Failure>)> {
    let bar = bar(index);
    let mut contents = Contents { bytes: index.bytes(), files: index.files().count() as u64, ..Contents::default() };
    let mut wrong = Vec::new();
    match manifest(folder, index) {
        Ok(manifest) => {
            contents.topics = manifest.catalog.topics.len() as u64;
            wrong.extend(check_extents(folder, index, &manifest).err());
        }
        Err(failure) => wrong.push(failure),
    }
    if let Some(key) = &index.key {
        wrong.extend(folder.read(key).err());
    }
    for partition in &index.partitions {
        contents.partitions += 1;
        for file in &partition.files {
            let read = each_batch(folder, file, &mut |batch| {
                contents.batches += 1;
                contents.records += u64::from(batch.count());
                Ok(())
            });
            wrong.extend(read.err());
            bar.inc(file.written.bytes);
        }
    }
    bar.finish_and_clear();
    Ok((contents, wrong))
}

/// Writes a data directory with the contents of a backup. It appears at its path when it is complete.
pub fn restore(folder: &Folder, index: &Index, data: &Path, settings: StoreSettings) -> Result<Contents> {
    check_empty(data)?;
    let name = data.file_name().ok_or_else(|| {
        Failure::new(USAGE, format!("{} is no name of a new directory: name one for --data", data.display()))
    })?;
    check_no_mount(data)?;
    let partial = data.with_file_name(format!("{}.restoring", name.to_string_lossy()));
    remove_partial(&partial)?;
    let restored = write(folder, index, &partial, settings);
    if restored.is_err() {
        remove_partial(&partial)?;
    }
    let contents = restored?;
    if let Err(error) = fs::rename(&partial, data) {
        remove_partial(&partial)?;
        return Err(match error.kind() {
            // Two mounts of one file system have the same device.
            ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => mounted(data),
            _ => failed("create", data, error),
        });
    }
    sync_dir(above(data))?;
    Ok(contents)
}

/// Fails if a directory is a mount point or a link: it cannot be replaced by the one that is written next to it.
fn check_no_mount(data: &Path) -> Result {
    let found = match fs::symlink_metadata(data) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| failed("read", data, error))?,
    };
    let parent = above(data);
    let parent = fs::metadata(parent).map_err(|error| failed("read", parent, error))?;
    if found.dev() == parent.dev() && !found.is_symlink() { Ok(()) } else { Err(mounted(data)) }
}

fn mounted(data: &Path) -> Failure {
    let path = data.display();
    let inside = data.join("data");
    let message =
        format!("{path} is a mount point or a link: name a directory inside it, such as {}", inside.display());
    Failure::new(USAGE, message)
}

/// Fails if a directory exists that has files.
fn check_empty(data: &Path) -> Result {
    match fs::read_dir(data) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("list", data, error)),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(());
            }
            let message = format!("{} has files: name a directory that is empty or does not exist", data.display());
            Err(Failure::new(USAGE, message))
        }
    }
}

fn remove_partial(partial: &Path) -> Result {
    match fs::remove_dir_all(partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", partial, error)),
        _ => Ok(()),
    }
}

fn write(folder: &Folder, index: &Index, dir: &Path, settings: StoreSettings) -> Result<Contents> {
    let manifest = manifest(folder, index)?;
    check_extents(folder, index, &manifest)?;
    let key = index.key.as_ref().map(|key| Ok::<_, Failure>((key, folder.read(key)?))).transpose()?;
    let bar = bar(index);
    let clock = broker::Clock::SYSTEM.read();
    let source = u64::from_str_radix(&index.source, 16);
    let source = source.map_err(|error| damaged(&folder.path("backup.json"), &format!("its source: {error}")))?;
    let settings = StoreSettings { directory: Some(source), ..settings };
    let (store, _) = Store::open(Arc::new(RealDisk), dir, settings, clock, &mut |_| {})?;
    // A new directory lacks everything that the manifest has.
    store.begin_install(&manifest)?;
    let topics = manifest.catalog.topics.len() as u64;
    let (files, bytes) = (index.files().count() as u64, index.bytes());
    let mut contents = Contents { topics, files, bytes, ..Contents::default() };
    for partition in &index.partitions {
        contents.partitions += 1;
        let start = start_of(&manifest, partition);
        for file in &partition.files {
            each_batch(folder, file, &mut |batch| {
                if batch.next_offset() > start {
                    contents.batches += 1;
                    contents.records += u64::from(batch.count());
                    store.apply(EntryKind::Batch, partition.stream(), batch.bytes().clone())?;
                }
                Ok(())
            })?;
            bar.inc(file.written.bytes);
        }
    }
    store.end_install(&manifest)?;
    if let Some((written, key)) = key {
        let key = <&[u8; 32]>::try_from(key.as_slice());
        store.put_seal_key(key.map_err(|error| damaged(&folder.path(&written.file), &error.to_string()))?)?;
    }
    store.stop()?;
    bar.finish_and_clear();
    Ok(contents)
}

fn manifest(folder: &Folder, index: &Index) -> Result<Manifest> {
    let bytes = folder.read(&index.topics)?;
    Ok(Manifest::decode(&bytes)?)
}

fn start_of(manifest: &Manifest, partition: &Partition) -> u64 {
    manifest.extents().find(|(stream, _)| *stream == partition.stream()).map_or(0, |(_, extent)| extent.start)
}

/// Checks that the files of all partitions have the records of the manifest, without reading them.
fn check_extents(folder: &Folder, index: &Index, manifest: &Manifest) -> Result {
    let mut partitions = index.partitions.iter();
    for (stream, extent) in manifest.extents() {
        let partition = partitions.next().filter(|partition| partition.stream() == stream);
        let is_whole = partition.is_some_and(|partition| {
            let (Some(first), Some(last)) = (partition.files.first(), partition.files.last()) else {
                return extent.start == extent.end;
            };
            let is_contiguous = partition.files.windows(2).all(|pair| pair[0].to == pair[1].from);
            first.from <= extent.start && last.to == extent.end && is_contiguous
        });
        if !is_whole {
            let what = format!("it does not have the records of partition {stream:#x} from {} on", extent.start);
            return Err(damaged(&folder.path("backup.json"), &what));
        }
    }
    Ok(())
}

/// Reads the batches of a file, which are those of a single broker afterwards. Checks their order and their checksums,
/// and at the end the checksum of the file.
fn each_batch(folder: &Folder, file: &Records, each: &mut dyn FnMut(RecordBatch) -> Result) -> Result {
    let path = folder.path(&file.written.file);
    let mut rest = BytesMut::new();
    let mut at = file.from;
    let mut wrong = None;
    let read = folder.each(&file.written, &mut |part| {
        rest.extend_from_slice(part);
        // After damage, only the checksum of the file is of interest.
        while wrong.is_none() && rest.len() >= EPOCH.end {
            let length = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize + LENGTH_END;
            if !(BATCH_HEADER_BYTES..=BATCH_BYTES_MAX).contains(&length) {
                wrong = Some(format!(
                    "after offset {at}: a batch has {BATCH_HEADER_BYTES} to {BATCH_BYTES_MAX} bytes, not {length}"
                ));
                break;
            }
            if rest.len() < length {
                break;
            }
            let mut bytes = rest.split_to(length);
            // A single broker has no terms.
            bytes[EPOCH].fill(0);
            match RecordBatch::parse(bytes.freeze()) {
                Ok(batch) if batch.base_offset() == at => {
                    at = batch.next_offset();
                    each(batch)?;
                }
                Ok(batch) => wrong = Some(format!("it has a batch from {} instead of {at}", batch.base_offset())),
                Err(error) => wrong = Some(format!("after offset {at}: {error}")),
            }
        }
        if wrong.is_some() {
            rest.clear();
        }
        Ok(())
    });
    read?;
    match wrong {
        Some(what) => Err(damaged(&path, &what)),
        None if at != file.to || !rest.is_empty() => {
            Err(damaged(&path, &format!("its records end at {at}, not at {}", file.to)))
        }
        None => Ok(()),
    }
}

fn bar(index: &Index) -> ProgressBar {
    let bar = ProgressBar::new(index.bytes());
    bar.set_style(ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}").unwrap_or_else(
        |error| {
            tracing::debug!(%error, "cannot set the style of the bar");
            ProgressStyle::default_bar()
        },
    ));
    bar
}
