//! Copy of a running broker's data into a folder.
//!
//! It asks for what a node of a cluster asks that is behind: for each partition the records after the end of its own
//! copy, or all of them if some in between are deleted or compacted ([`PartitionExtent::is_beyond`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use client::{BackupBegun, Client, RecordBatch};
use indicatif::{ProgressBar, ProgressStyle};
use storage::{Manifest, PartitionExtent};

use super::folder::{Folder, Hash, Index, LastBatch, Partition, Records, Writing, records_name};
use crate::output::{FAILED, Failure, Result, USAGE};

/// Maximum bytes of the batches that are requested together; a single batch may be larger.
const READ_BYTES: u64 = 1 << 20;
/// Time for which the bytes of one request may suffice at the limit of the rate.
const READ_TIME_S: u64 = 10;
/// Time without a request after which the broker is told that the backup continues: it ends one that reads nothing for
/// a minute.
const QUIET: Duration = Duration::from_secs(20);
/// Minimum of the limit of the rate, in bytes per second.
pub const RATE_MIN: u64 = 64 << 10;
/// Bytes after which a partition continues in another file.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes below which the last file of a partition is copied into the next one, so that frequent backups do not leave
/// many small files.
const SMALL_BYTES: u64 = 8 << 20;

/// Results of a backup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copied {
    pub number: u64,
    pub taken_ms: u64,
    pub topics: u64,
    pub partitions: u64,
    /// Bytes that the broker has sent.
    pub received_bytes: u64,
    /// Bytes of records that were in the folder before.
    pub kept_bytes: u64,
    /// Bytes of the whole backup.
    pub bytes: u64,
}

struct Copy<'c> {
    client: &'c Client,
    folder: &'c Folder,
    begun: &'c BackupBegun,
    number: u64,
    pace: Pace,
    bar: ProgressBar,
}

/// Limit of the rate.
struct Pace {
    bytes_per_s: u64,
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Returns the maximum number of bytes of one request.
    fn read_bytes(&self) -> u32 {
        match self.bytes_per_s {
            0 => READ_BYTES as u32,
            rate => READ_BYTES.min(rate.saturating_mul(READ_TIME_S)) as u32,
        }
    }

    /// Returns the time to wait before the next request.
    fn wait(&self) -> Duration {
        if self.bytes_per_s == 0 {
            return Duration::ZERO;
        }
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        due.saturating_sub(self.since.elapsed())
    }
}

/// Copies a broker into a folder. `bytes_per_s`: limit of the rate; 0 for none.
pub async fn copy(client: &Client, folder: &Folder, bytes_per_s: u64, skips_sqlite: bool) -> Result<Copied> {
    let previous = folder.index()?;
    let begun = client.begin_backup(skips_sqlite).await?;
    let source = format!("{:016x}", begun.source);
    if let Some(previous) = previous.as_ref().filter(|previous| previous.source != source) {
        let message = format!(
            "the folder has a backup of another broker, with the id {}; this one has {source}: choose another folder",
            previous.source
        );
        return Err(Failure::new(USAGE, message));
    }
    // Only now is it certain that they are those of this broker.
    folder.remove(&folder.leftovers(previous.as_ref())?)?;
    let mut manifest = Manifest::decode(&read_manifest(client, &begun).await?)?;
    let wanted = plan((client, &begun), folder, previous.as_ref(), &mut manifest).await?;
    let mut copy = Copy {
        client,
        folder,
        begun: &begun,
        number: previous.as_ref().map_or(1, |previous| previous.number + 1),
        pace: Pace { bytes_per_s, since: Instant::now(), bytes: 0 },
        bar: bar(),
    };
    let partitions = copy.records(&manifest, wanted).await?;
    let index = copy.complete(partitions, &manifest.encode(), source, skips_sqlite)?;
    copy.bar.finish_and_clear();
    // Its files may be removed at the broker; if the broker does not get the request, it removes them later.
    client.end_backup(begun.backup).await.unwrap_or_default();
    let records = index.partitions.iter().flat_map(|partition| &partition.files);
    let record_bytes: u64 = records.map(|file| file.written.bytes).sum();
    let copied = Copied {
        number: index.number,
        taken_ms: index.taken_ms,
        topics: index.partitions.chunk_by(|a, b| a.topic == b.topic).count() as u64,
        partitions: index.partitions.len() as u64,
        received_bytes: copy.pace.bytes,
        kept_bytes: record_bytes.saturating_sub(copy.pace.bytes),
        bytes: index.bytes(),
    };
    folder.remove(&folder.leftovers(Some(&index))?)?;
    Ok(copied)
}

async fn read_manifest(client: &Client, begun: &BackupBegun) -> Result<Vec<u8>> {
    let mut manifest = Vec::new();
    loop {
        let part = client.read_backup_manifest(begun.backup, manifest.len() as u64).await?;
        if part.is_empty() {
            return Ok(manifest);
        }
        manifest.extend_from_slice(&part);
    }
}

impl Copy<'_> {
    async fn records(&mut self, manifest: &Manifest, wanted: Vec<Wanted>) -> Result<Vec<Partition>> {
        self.bar
            .set_length(manifest.extents().zip(&wanted).map(|((_, extent), wanted)| extent.end - wanted.from).sum());
        let mut done = Vec::new();
        for ((stream, extent), wanted) in manifest.extents().zip(wanted) {
            let (files, last) = self.partition(stream, extent, wanted).await?;
            done.push(Partition {
                topic: (stream >> 32) as u32,
                partition: stream as u32,
                end: extent.end,
                last,
                files,
            });
        }
        Ok(done)
    }

    /// Copies the records of a partition from an offset on. Returns all its files, and its last batch.
    async fn partition(
        &mut self,
        stream: u64,
        extent: &PartitionExtent,
        wanted: Wanted,
    ) -> Result<(Vec<Records>, Option<LastBatch>)> {
        let Wanted { mut files, mut last, from } = wanted;
        if from >= extent.end {
            return Ok((files, last));
        }
        let mut open = None;
        let mut at = from;
        if let Some(small) = files.pop_if(|last| last.written.bytes < SMALL_BYTES) {
            let mut file = self.create(stream, small.from)?;
            self.folder.each(&small.written, &mut |part| file.write(part))?;
            open = Some((small.from, file));
        }
        while at < extent.end {
            let batches = self.client.read_backup(self.begun.backup, stream, at, self.pace.read_bytes()).await?;
            let first = batches.first().map_or(u64::MAX, RecordBatch::base_offset);
            let next = batches.last().map_or(at, RecordBatch::next_offset);
            // Only the first batch of the partition may begin before its start.
            if (first != at && !(first < at && at == extent.start)) || next <= at || next > extent.end {
                let message = format!("the broker did not send the records of partition {stream:#x} from {at} on");
                return Err(Failure::new(FAILED, message));
            }
            let mut bytes = 0;
            for batch in batches {
                if let Some((from, file)) = open.take_if(|(_, file): &mut (u64, Writing)| file.bytes() >= FILE_BYTES) {
                    files.push(Records { from, to: batch.base_offset(), written: file.finish()? });
                }
                let (_, file) = match &mut open {
                    Some(open) => open,
                    none => none.insert((batch.base_offset(), self.create(stream, batch.base_offset())?)),
                };
                file.write(batch.bytes())?;
                bytes += batch.len() as u64;
                if batch.next_offset() == extent.end {
                    last = Some(last_batch(&batch));
                }
            }
            self.bar.inc(next - at);
            self.bar.set_message(super::units::bytes(self.pace.bytes + bytes));
            at = next;
            self.pace.bytes += bytes;
            self.wait(stream, extent.end).await?;
        }
        if let Some((from, file)) = open {
            files.push(Records { from, to: extent.end, written: file.finish()? });
        }
        Ok((files, last))
    }

    /// Waits as long as the limit of the rate requires. A large batch may take longer than the broker waits for the
    /// next request, so it is asked for the records after the last one, of which there are none.
    async fn wait(&self, stream: u64, end: u64) -> Result {
        loop {
            let wait = self.pace.wait();
            if wait.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(wait.min(QUIET)).await;
            if wait <= QUIET {
                return Ok(());
            }
            self.client.read_backup(self.begun.backup, stream, end, 1).await?;
        }
    }

    fn create(&self, stream: u64, from: u64) -> Result<Writing> {
        self.folder.create(records_name((stream >> 32) as u32, stream as u32, from, self.number))
    }

    fn complete(
        &self,
        partitions: Vec<Partition>,
        manifest: &[u8],
        source: String,
        without_sqlite: bool,
    ) -> Result<Index> {
        let write = |name: &str, bytes: &[u8]| {
            let mut file = self.folder.create(format!("{name}-{}", self.number))?;
            file.write(bytes)?;
            file.finish()
        };
        let index = Index {
            format: super::folder::FORMAT,
            number: self.number,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            source,
            taken_ms: self.begun.taken_ms,
            without_sqlite,
            topics: write("topics", manifest)?,
            key: self.begun.seal_key.as_ref().map(|key| write("key", &key.0)).transpose()?,
            partitions,
        };
        self.folder.complete_with(&index)?;
        Ok(index)
    }
}

/// Part of a backup that is in the folder already, and the offset from which records are copied.
#[derive(Clone, Debug)]
struct Wanted {
    files: Vec<Records>,
    last: Option<LastBatch>,
    from: u64,
}

/// Returns the parts of the previous backup that stay. For partitions whose files stay, the manifest gets the extent of
/// the compaction that these have ([`continue_copy`]).
async fn plan(
    at: (&Client, &BackupBegun),
    folder: &Folder,
    previous: Option<&Index>,
    manifest: &mut Manifest,
) -> Result<Vec<Wanted>> {
    let mut extents = HashMap::new();
    let before = previous.map(|previous| folder.read(&previous.topics)).transpose()?;
    let before = before.map(|bytes| Manifest::decode(&bytes)).transpose()?.unwrap_or_default();
    extents.extend(before.extents());
    let partitions = previous.iter().flat_map(|previous| &previous.partitions);
    let known: HashMap<u64, &Partition> = partitions.map(|known| (known.stream(), known)).collect();
    let mut all = Vec::new();
    for (id, topic) in &mut manifest.catalog.topics {
        for (i, extent) in (0..).zip(&mut topic.partitions) {
            let stream = u64::from(*id) << 32 | i;
            let mut wanted = match known.get(&stream) {
                Some(known) => kept(at, known, extent).await?,
                None => None,
            };
            if let Some(before) = extents.get(&stream).filter(|_| wanted.is_some())
                && !continue_copy(extent, before)
            {
                wanted = None;
            }
            all.push(wanted.unwrap_or_else(|| Wanted { files: Vec::new(), last: None, from: extent.start }));
        }
    }
    Ok(all)
}

/// Gives an extent the compaction and the producers of the previous backup if the broker has compacted the partition
/// since: the files that stay still have the records that were removed. The broker has forgotten the aborted
/// transactions among these, so its producers do not fit to the files; those of the previous backup do, and a restore
/// adds the batches after them, all of which are as they were published. Returns `false` if such batches were deleted,
/// so that the copy cannot be continued.
fn continue_copy(extent: &mut PartitionExtent, before: &PartitionExtent) -> bool {
    if extent.compacted == before.compacted {
        return true;
    }
    if extent.start > before.producers_end {
        return false;
    }
    extent.compacted = before.compacted;
    extent.producers = before.producers.clone();
    extent.producers_end = before.producers_end;
    true
}

/// Returns what stays of a partition, if anything does: the broker continues where the previous backup ends, and has
/// its last batch.
async fn kept(
    (client, begun): (&Client, &BackupBegun),
    previous: &Partition,
    extent: &PartitionExtent,
) -> Result<Option<Wanted>> {
    let files: Vec<Records> = previous.files.iter().filter(|file| file.to > extent.start).cloned().collect();
    let Some(last) = previous.last.clone().filter(|_| !files.is_empty()) else { return Ok(None) };
    if extent.is_beyond(previous.end) || previous.end > extent.end {
        return Ok(None);
    }
    let at = last.from.max(extent.start);
    let found = client.read_backup(begun.backup, previous.stream(), at, 1).await?;
    let is_same = found.first().is_some_and(|found| last_batch(found) == last);
    Ok(is_same.then_some(Wanted { files, last: Some(last), from: previous.end }))
}

fn last_batch(batch: &RecordBatch) -> LastBatch {
    let mut hash = Hash::new();
    hash.update(batch.bytes());
    LastBatch { from: batch.base_offset(), sha256: hash.finish() }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} records, {msg} received").unwrap_or_else(
            |error| {
                tracing::debug!(%error, "cannot set the style of the bar");
                ProgressStyle::default_bar()
            },
        ),
    );
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Returns an extent that is compacted up to an offset, with producers up to its end.
    fn extent(start: u64, end: u64, compacted_to: u64, producers: &'static [u8]) -> PartitionExtent {
        let mut extent = PartitionExtent {
            start,
            end,
            compacted: Default::default(),
            producers: Bytes::from_static(producers),
            producers_end: end,
        };
        extent.compacted.to = compacted_to;
        extent
    }

    #[test]
    fn files_of_a_compacted_partition_keep_the_producers_that_know_their_aborted_transactions() {
        let first = extent(0, 100, 0, b"with aborted");
        let mut second = extent(0, 150, 90, b"forgotten");
        assert!(continue_copy(&mut second, &first));
        let expected = PartitionExtent { end: 150, ..first.clone() };
        assert_eq!(second, expected, "the replay begins where the first backup ended");
        // So do the backups after it.
        let mut third = extent(0, 200, 140, b"forgotten, too");
        assert!(continue_copy(&mut third, &second));
        assert_eq!(third, PartitionExtent { end: 200, ..first });
    }

    #[test]
    fn files_of_a_partition_that_was_not_compacted_get_the_latest_producers() {
        let first = extent(0, 100, 50, b"old");
        let latest = extent(120, 150, 50, b"latest");
        let mut second = latest.clone();
        assert!(continue_copy(&mut second, &first));
        assert_eq!(second, latest);
    }

    #[test]
    fn a_copy_is_not_continued_if_batches_after_its_producers_are_deleted() {
        let first = extent(0, 100, 0, b"old");
        let mut second = extent(101, 150, 90, b"latest");
        assert!(!continue_copy(&mut second, &first));
        let mut at_the_end = extent(100, 150, 90, b"latest");
        assert!(continue_copy(&mut at_the_end, &first));
    }

    #[test]
    fn a_request_suffices_for_seconds_at_any_rate() {
        let of = |bytes_per_s| Pace { bytes_per_s, since: Instant::now(), bytes: 0 }.read_bytes();
        assert_eq!([of(0), of(u64::MAX), of(RATE_MIN)], [1 << 20, 1 << 20, 640 << 10]);
    }
}
