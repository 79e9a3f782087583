//! Scan of a whole segment that skips damage: for inspection and repair, not for readers.

use std::path::Path;

use bytes::Bytes;
use engine::limits::BATCH_BYTES_MAX;
use engine::record::BATCH_HEADER_BYTES;
use engine::{Error, Offset, RecordBatch, Result};

use super::index::Index;
use super::segments::names::{index_name, log_name};
use crate::disk::{Disk, damaged, failed, read_whole};
use crate::info::SegmentInfo;

/// End offset of a segment if it is unknown.
pub(crate) const UNKNOWN_END: Offset = Offset::MAX;

/// Part of a segment: a batch or damage.
#[derive(Clone, Debug)]
pub enum Spot {
    Batch {
        at: u64,
        batch: RecordBatch,
    },
    /// Bytes that are not a valid batch, up to the beginning of the next one.
    Damage {
        at: u64,
        bytes: u64,
        what: String,
    },
}

/// Leader epochs of the batches of a directory. The field is outside of a batch's checksum, so damage is noticed only
/// if few values are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// A single broker: all batches have the epoch 0.
    Zero,
    /// A node of a cluster: the epoch is the term of the node that led.
    Terms,
}

impl Epochs {
    /// Returns `true` if a batch with this header may be in the directory.
    pub(crate) fn allow(self, head: &[u8]) -> bool {
        match self {
            Self::Zero => head[12..16] == [0; 4],
            // Not negative.
            Self::Terms => head[12] < 0x80,
        }
    }
}

/// Returns the first offset of a batch whose checksum is valid, and the offset after its last record.
pub(crate) fn span_of(body: &[u8]) -> Result<(Offset, Offset)> {
    if body.len() < BATCH_HEADER_BYTES {
        return Err(Error::malformed(format!("a batch of {} bytes is shorter than its header", body.len())));
    }
    let base = u64::from_be_bytes(body[..8].try_into().expect("invariant: eight bytes"));
    let last = u32::from_be_bytes(body[23..27].try_into().expect("invariant: four bytes"));
    Ok((base, base + u64::from(last) + 1))
}

/// Returns all parts of a segment in their order. `from` is the offset of its first record, `end` the offset after its
/// last one.
pub fn spots(bytes: &Bytes, from: Offset, end: Offset, epochs: Epochs) -> Vec<Spot> {
    let mut spots = Vec::new();
    let mut at = 0;
    let mut expected = from;
    while at < bytes.len() {
        let found = batch_at(bytes, at, expected, end, epochs);
        let is_next = found.as_ref().is_ok_and(|batch| batch.base_offset() == expected);
        let (next_at, what) = match found {
            Ok(batch) if is_next || matches!(spots.last(), Some(Spot::Damage { .. })) => {
                at += batch.len();
                expected = batch.next_offset();
                spots.push(Spot::Batch { at: (at - batch.len()) as u64, batch });
                continue;
            }
            // The offset is outside of the batch's checksum: usually the offset is damaged.
            Ok(batch) => {
                (at + batch.len(), format!("a batch from offset {} instead of offset {expected}", batch.base_offset()))
            }
            Err(what) => (next_batch(bytes, at, expected, end, epochs), what),
        };
        spots.push(Spot::Damage { at: at as u64, bytes: (next_at - at) as u64, what });
        at = next_at;
    }
    if expected < end && end != UNKNOWN_END && !matches!(spots.last(), Some(Spot::Damage { .. })) {
        let what = format!("the last batch ends at offset {expected}, not at {end}");
        spots.push(Spot::Damage { at: at as u64, bytes: 0, what });
    }
    spots
}

/// Returns the valid batch at this position, if it begins at `expected` or later, and ends at `end` or before.
fn batch_at(bytes: &Bytes, at: usize, expected: Offset, end: Offset, epochs: Epochs) -> Result<RecordBatch, String> {
    let rest = &bytes[at..];
    if rest.len() < BATCH_HEADER_BYTES {
        return Err("a batch is cut short".into());
    }
    let base = u64::from_be_bytes(rest[..8].try_into().expect("invariant: eight bytes"));
    let len = u32::from_be_bytes(rest[8..12].try_into().expect("invariant: four bytes")) as usize + 12;
    if base < expected || base >= end || len > BATCH_BYTES_MAX || len > rest.len() || !epochs.allow(rest) {
        return Err(format!("a batch of {len} bytes from offset {base} instead of offset {expected}"));
    }
    let batch = RecordBatch::parse(bytes.slice(at..at + len)).map_err(|error| error.message)?;
    let next = batch.next_offset();
    if next > end {
        return Err(format!("a batch up to offset {next}, beyond the end {end}"));
    }
    Ok(batch)
}

/// Returns the position of the next batch after damage; the end if there is none.
fn next_batch(bytes: &Bytes, at: usize, expected: Offset, end: Offset, epochs: Epochs) -> usize {
    let is_one = |at: &usize| batch_at(bytes, *at, expected, end, epochs).is_ok();
    // Usually the length is correct, and only the bytes after it are damaged.
    let by_length = bytes
        .get(at + 8..at + 12)
        .map(|len| at + 12 + u32::from_be_bytes(len.try_into().expect("invariant: four bytes")) as usize);
    let by_length = by_length.filter(|next| *next == bytes.len() || (*next < bytes.len() && is_one(next)));
    by_length.or_else(|| (at + 1..bytes.len()).find(is_one)).unwrap_or(bytes.len())
}

/// Scans the file of a segment, up to the length in the checkpoint; an error if it cannot be read at all.
pub(crate) fn segment(disk: &dyn Disk, dir: &Path, info: &SegmentInfo, epochs: Epochs) -> Result<Vec<Spot>> {
    let path = dir.join(log_name(info.base, info.generation));
    let bytes = read_whole(disk, &path).map_err(failed("read", &path))?;
    let mut bytes = Bytes::from(bytes.ok_or_else(|| damaged(&path, 0, "the file is missing"))?);
    let len = bytes.len() as u64;
    bytes.truncate(usize::try_from(info.bytes).unwrap_or(usize::MAX));
    let mut spots = spots(&bytes, info.base, info.end, epochs);
    if len < info.bytes {
        let what = format!("it has {len} of {} bytes", info.bytes);
        spots.push(Spot::Damage { at: len, bytes: 0, what });
    }
    Ok(spots)
}

/// Checks the index of a sealed segment; `None` if there is no index that a broker would use.
pub(crate) fn index(disk: &dyn Disk, dir: &Path, info: &SegmentInfo, spots: &[Spot]) -> Option<Result<(), Error>> {
    let path = dir.join(index_name(info.base, info.generation));
    let bytes = read_whole(disk, &path).ok()??;
    Index::decode(&bytes, info.bytes, info.end)?;
    let mut expected = Index::new(info.base);
    for spot in spots {
        match spot {
            Spot::Batch { batch, .. } => expected.push(batch),
            // The contents of the damaged bytes are unknown.
            Spot::Damage { .. } => return Some(Ok(())),
        }
    }
    let is_right = expected.encode() == bytes;
    Some(if is_right { Ok(()) } else { Err(damaged(&path, 24, "it is not the index of its segment")) })
}

#[cfg(test)]
mod tests {
    use engine::BatchBuilder;

    use super::*;

    fn log(batches: u64) -> (Vec<u8>, Vec<RecordBatch>) {
        let mut bytes = Vec::new();
        let mut all = Vec::new();
        for i in 0..batches {
            let mut builder = BatchBuilder::new();
            for _ in 0..3 {
                builder.push(i as i64, None, Some(&[i as u8; 50]), &[]).expect("a record");
            }
            let batch = builder.finish().expect("records").stamp(100 + 3 * i);
            bytes.extend_from_slice(batch.bytes());
            all.push(batch);
        }
        (bytes, all)
    }

    fn good(spots: &[Spot]) -> Vec<RecordBatch> {
        let batch = |spot: &Spot| match spot {
            Spot::Batch { batch, .. } => Some(batch.clone()),
            Spot::Damage { .. } => None,
        };
        spots.iter().filter_map(batch).collect()
    }

    #[test]
    fn one_damaged_byte_loses_only_its_batch() {
        let (bytes, batches) = log(5);
        assert_eq!(good(&spots(&Bytes::from(bytes.clone()), 100, 115, Epochs::Zero)), batches);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            let spots = spots(&Bytes::from(wrong), 100, 115, Epochs::Zero);
            let hit = at / batches[0].len();
            let rest: Vec<_> = batches.iter().enumerate().filter(|(i, _)| *i != hit).map(|(_, b)| b.clone()).collect();
            assert_eq!(good(&spots), rest, "byte {at}");
            let damages: Vec<_> = spots.iter().filter(|spot| matches!(spot, Spot::Damage { .. })).collect();
            let [Spot::Damage { at: found_at, bytes: len, .. }] = damages[..] else { panic!("byte {at}: {damages:?}") };
            assert_eq!((*found_at, *len), ((hit * batches[0].len()) as u64, batches[0].len() as u64), "byte {at}");
        }
    }

    #[test]
    fn batches_of_a_cluster_have_the_term_of_their_leader() {
        let (mut bytes, batches) = log(2);
        bytes[15] = 7;
        let bytes = Bytes::from(bytes);
        assert_eq!(good(&spots(&bytes, 100, 106, Epochs::Zero)), batches[1..]);
        let found = good(&spots(&bytes, 100, 106, Epochs::Terms));
        assert_eq!(found.iter().map(RecordBatch::leader_epoch).collect::<Vec<_>>(), [7, 0]);
    }

    #[test]
    fn a_segment_that_is_cut_says_where() {
        let (bytes, batches) = log(3);
        for len in 0..bytes.len() {
            let spots = spots(&Bytes::from(bytes[..len].to_vec()), 100, 109, Epochs::Zero);
            assert_eq!(good(&spots), batches[..len / batches[0].len()], "{len} bytes");
            assert!(matches!(spots.last(), Some(Spot::Damage { .. })), "{len} bytes");
        }
    }
}
