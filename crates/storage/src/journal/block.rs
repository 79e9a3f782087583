//! Format of the journal: blocks, and how a block is distinguished from the contents of an earlier use of its file.
//!
//! A journal is a sequence of files of equal size, except for the first one, which is smaller. Positions count the
//! bytes of all files since the data directory was created, so a position is never reused. All integers are
//! little-endian.
//!
//! A file begins with a page for its head:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `thalwegJ` |
//! | 8 | 4 | CRC-32C of bytes 12 to 48 |
//! | 12 | 4 | version: 2; files of version 1 have no entries of the kind segment |
//! | 16 | 8 | the data directory's id |
//! | 24 | 8 | number of the file, from 1 on and never reused |
//! | 32 | 8 | position of the file's first byte |
//! | 40 | 8 | bytes of the file |
//!
//! Blocks follow, each at a multiple of 4096, so that no write touches a sector that was synced before. One sync makes
//! one block durable. A block without entries only records the position up to which all was synced before it. It is
//! written when the journal becomes idle, so that damage to the last entries is never mistaken for a write that was cut
//! short:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TWJB` |
//! | 4 | 4 | CRC-32C of bytes 8 to the end of the table |
//! | 8 | 4 | number of entries |
//! | 12 | 4 | bytes of all bodies |
//! | 16 | 8 | number of the file: a block of an earlier use of the file has another number |
//! | 24 | 8 | position of this block |
//! | 32 | 8 | end of the previous block: nothing is missing in between |
//! | 40 | 8 | all before this position was synced when this block was written |
//! | 48 | 24 each | of each entry: kind (1), a zero, shard (2), CRC-32C and bytes of its body (4, 4), 4 zeros, |
//! | | | stream (8); a broker without replication has the shard 0 only |
//! | | | the bodies, one after the other, and zeros up to the next multiple of 4096 |
//!
//! The kinds 7 and 8 are only in the directory of a node of a cluster. The log in front of the journal gives the other
//! entries their meaning there: an entry that it does not regard as committed has no effect.

use bytes::{Buf, BufMut};
use engine::Error;
use engine::shard::ShardId;

/// Unit of a write: at least the sector size of any disk.
pub const PAGE_BYTES: u64 = 4096;
pub(crate) const FILE_VERSION: u32 = 2;
/// Oldest version that is read.
const FILE_VERSION_MIN: u32 = 1;
const FILE_MAGIC: &[u8; 8] = b"thalwegJ";
const FILE_HEAD_BYTES: usize = 48;
const BLOCK_MAGIC: &[u8; 4] = b"TWJB";
const BLOCK_HEAD_BYTES: usize = 48;
pub(crate) const ROW_BYTES: usize = 24;
/// Maximum number of entries of one block.
pub const ENTRIES_MAX: usize = 4096;
/// Maximum bytes of all bodies of one block, unless a single body is larger.
pub const BODIES_BYTES_MAX: usize = 4 << 20;

/// Head of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    pub directory: u64,
    pub number: u64,
    pub position: u64,
    pub bytes: u64,
}

/// Reason why a page is not a valid head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAHead {
    /// Other contents, or none.
    Other,
    /// File of another version of this format.
    Version(u32),
}

impl FileHead {
    pub fn encode(&self) -> [u8; PAGE_BYTES as usize] {
        let mut page = [0; PAGE_BYTES as usize];
        page[..8].copy_from_slice(FILE_MAGIC);
        page[12..16].copy_from_slice(&FILE_VERSION.to_le_bytes());
        page[16..24].copy_from_slice(&self.directory.to_le_bytes());
        page[24..32].copy_from_slice(&self.number.to_le_bytes());
        page[32..40].copy_from_slice(&self.position.to_le_bytes());
        page[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = checksum(&page[12..FILE_HEAD_BYTES]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
        page
    }

    pub fn decode(page: &[u8]) -> Result<Self, NotAHead> {
        if page.len() < FILE_HEAD_BYTES || page[..8] != *FILE_MAGIC {
            return Err(NotAHead::Other);
        }
        if u32_at(page, 8) != checksum(&page[12..FILE_HEAD_BYTES]) {
            return Err(NotAHead::Other);
        }
        if !(FILE_VERSION_MIN..=FILE_VERSION).contains(&u32_at(page, 12)) {
            return Err(NotAHead::Version(u32_at(page, 12)));
        }
        let field = |at| u64_at(page, at);
        Ok(Self { directory: field(16), number: field(24), position: field(32), bytes: field(40) })
    }

    /// Returns the position after the file, at which the next one begins.
    pub fn end(&self) -> u64 {
        self.position + self.bytes
    }
}

/// Kind of an entry. The files contain these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// Record batch, in its place in the partition that is its stream.
    Batch = 1,
    /// Change of the catalog.
    Catalog = 2,
    /// New, later start offset of a partition.
    Start = 3,
    /// State of a view, in the view's own format.
    View = 4,
    /// Last entry of a file: the journal continues in the file whose number is the stream; the body is its slot.
    Next = 5,
    /// Record batches that were written straight to a segment of the partition that is the stream; the body is a
    /// [`SegmentPart`].
    Segment = 6,
    /// State of the consensus of a shard after the entries before it, in the format of the log in front of the journal.
    Save = 7,
    /// Change of the nodes of a cluster, in the format of the log in front of the journal.
    Cluster = 8,
}

impl EntryKind {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Batch, Self::Catalog, Self::Start, Self::View, Self::Next, Self::Segment, Self::Save, Self::Cluster]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }

    /// Returns `true` for an entry that only the log in front of the journal understands.
    pub fn is_of_front(self) -> bool {
        matches!(self, Self::Save | Self::Cluster)
    }
}

/// Part of a segment's file, with the batches in it. The body of an entry contains the fields in their order, 8 bytes
/// each, but the generation in 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPart {
    /// First offset of the segment, and how often it was rewritten: together they are the name of the file.
    pub base: u64,
    pub generation: u32,
    /// First byte of the part, and the offset of the batch there.
    pub from: u64,
    pub from_offset: u64,
    /// End of the part, and the offset there.
    pub to: u64,
    pub to_offset: u64,
    /// Time of the write, in ms since 1970.
    pub appended_ms: u64,
}

impl SegmentPart {
    const BYTES: usize = 52;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut rest = &mut bytes[..];
        rest.put_u64_le(self.base);
        rest.put_u32_le(self.generation);
        for field in [self.from, self.from_offset, self.to, self.to_offset, self.appended_ms] {
            rest.put_u64_le(field);
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() != Self::BYTES {
            let message = format!("a part of a segment has {} bytes, not {}", Self::BYTES, bytes.len());
            return Err(Error::malformed(message));
        }
        let mut rest = bytes;
        let base = rest.get_u64_le();
        let generation = rest.get_u32_le();
        let [from, from_offset, to, to_offset, appended_ms] = std::array::from_fn(|_| rest.get_u64_le());
        if from >= to || from_offset >= to_offset {
            return Err(Error::malformed(format!("a part of a segment from byte {from} to byte {to} is empty")));
        }
        Ok(Self { base, generation, from, from_offset, to, to_offset, appended_ms })
    }
}

/// Row of a block's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub kind: EntryKind,
    pub shard: ShardId,
    pub stream: u64,
    pub bytes: u32,
    pub crc: u32,
}

/// Head of a block, which precedes the bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockHead {
    pub file: u64,
    pub position: u64,
    pub previous_end: u64,
    pub synced: u64,
    pub rows: Vec<Row>,
}

impl BlockHead {
    /// Encodes the head into `buf`, replacing its contents.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        buf.clear();
        buf.resize(BLOCK_HEAD_BYTES, 0);
        buf[..4].copy_from_slice(BLOCK_MAGIC);
        buf[8..12].copy_from_slice(&(self.rows.len() as u32).to_le_bytes());
        buf[12..16].copy_from_slice(&(self.bodies_bytes() as u32).to_le_bytes());
        buf[16..24].copy_from_slice(&self.file.to_le_bytes());
        buf[24..32].copy_from_slice(&self.position.to_le_bytes());
        buf[32..40].copy_from_slice(&self.previous_end.to_le_bytes());
        buf[40..48].copy_from_slice(&self.synced.to_le_bytes());
        for row in &self.rows {
            buf.extend_from_slice(&[row.kind as u8, 0]);
            buf.extend_from_slice(&row.shard.number().to_le_bytes());
            buf.extend_from_slice(&row.crc.to_le_bytes());
            buf.extend_from_slice(&row.bytes.to_le_bytes());
            buf.extend_from_slice(&[0; 4]);
            buf.extend_from_slice(&row.stream.to_le_bytes());
        }
        let crc = checksum(&buf[8..]);
        buf[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns the number of bytes of a head that begins with `begin`, if it is one.
    pub fn bytes_of(begin: &[u8]) -> Option<usize> {
        let rows = (begin.len() >= BLOCK_HEAD_BYTES && begin[..4] == *BLOCK_MAGIC).then(|| u32_at(begin, 8))?;
        (rows as usize <= ENTRIES_MAX).then_some(BLOCK_HEAD_BYTES + rows as usize * ROW_BYTES)
    }

    /// Returns the number of the file that a block was written for, if `begin` looks like the beginning of a head.
    pub fn file_of(begin: &[u8]) -> Option<u64> {
        Self::bytes_of(begin).map(|_| u64_at(begin, 16))
    }

    /// Decodes a head. `None` unless it is complete with a valid checksum.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::bytes_of(bytes)?)?;
        if u32_at(bytes, 4) != checksum(&bytes[8..]) {
            return None;
        }
        let rows = bytes[BLOCK_HEAD_BYTES..].chunks_exact(ROW_BYTES).map(|row| {
            Some(Row {
                kind: EntryKind::from_code(row[0])?,
                shard: ShardId::new(u16::from_le_bytes([row[2], row[3]])),
                crc: u32_at(row, 4),
                bytes: u32_at(row, 8),
                stream: u64_at(row, 16),
            })
        });
        let head = Self {
            file: u64_at(bytes, 16),
            position: u64_at(bytes, 24),
            previous_end: u64_at(bytes, 32),
            synced: u64_at(bytes, 40),
            rows: rows.collect::<Option<_>>()?,
        };
        (head.bodies_bytes() == u64::from(u32_at(bytes, 12))).then_some(head)
    }

    pub fn head_bytes(&self) -> u64 {
        (BLOCK_HEAD_BYTES + self.rows.len() * ROW_BYTES) as u64
    }

    pub fn bodies_bytes(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.bytes)).sum()
    }

    /// Returns the bytes of the block, including the zeros at its end.
    pub fn block_bytes(&self) -> u64 {
        (self.head_bytes() + self.bodies_bytes()).next_multiple_of(PAGE_BYTES)
    }

    pub fn end(&self) -> u64 {
        self.position + self.block_bytes()
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> BlockHead {
        let row = |kind, shard, stream, bytes| {
            let shard = ShardId::new(shard);
            Row { kind, shard, stream, bytes, crc: bytes ^ 0xabcd }
        };
        let rows = vec![
            row(EntryKind::Batch, 0, 7, 100),
            row(EntryKind::Catalog, 0x1234, 0, 5000),
            row(EntryKind::View, u16::MAX, u64::MAX, 0),
            row(EntryKind::Save, 0, 1, 17),
            row(EntryKind::Cluster, 0, 2, 9),
        ];
        BlockHead { file: 3, position: 8192, previous_end: 4096, synced: 4096, rows }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_other_bytes_are_one() {
        let head = block();
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        assert_eq!(bytes.len() as u64, head.head_bytes());
        assert_eq!((head.block_bytes(), head.end()), (8192, 16384));
        assert_eq!(BlockHead::decode(&bytes), Some(head));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_eq!(BlockHead::decode(&bytes), None, "byte {at}, bit {bit}");
                bytes[at] ^= 1 << bit;
            }
            assert_eq!(BlockHead::decode(&bytes[..at]), None, "cut at {at}");
        }
    }

    /// Journals of versions without shards have zeros there.
    #[test]
    fn the_first_shard_is_two_zeros() {
        let mut head = block();
        let mut bytes = Vec::new();
        head.rows.iter_mut().for_each(|row| row.shard = ShardId::FIRST);
        head.encode(&mut bytes);
        for row in bytes[BLOCK_HEAD_BYTES..].chunks_exact(ROW_BYTES) {
            assert_eq!(row[1..4], [0; 3]);
        }
    }

    #[test]
    fn a_part_of_a_segment_is_read_as_it_was_written() {
        let part =
            SegmentPart { base: 7, generation: 1, from: 100, from_offset: 9, to: 300, to_offset: 12, appended_ms: 5 };
        let bytes = part.encode();
        assert_eq!(SegmentPart::decode(&bytes), Ok(part));
        assert!(SegmentPart::decode(&bytes[1..]).is_err());
        assert!(SegmentPart::decode(&SegmentPart { to: 100, ..part }.encode()).is_err());
        assert!(SegmentPart::decode(&SegmentPart { to_offset: 9, ..part }.encode()).is_err());
    }

    #[test]
    fn a_file_is_identified_by_its_head() {
        let head = FileHead { directory: 0xfeed, number: 9, position: 64 << 20, bytes: 64 << 20 };
        let mut page = head.encode();
        assert_eq!(FileHead::decode(&page), Ok(head));
        for at in 0..48 {
            page[at] ^= 1;
            assert_eq!(FileHead::decode(&page), Err(NotAHead::Other), "byte {at}");
            page[at] ^= 1;
        }
        for (version, read) in [(0, Err(NotAHead::Version(0))), (1, Ok(head)), (3, Err(NotAHead::Version(3)))] {
            page[12] = version;
            let crc = checksum(&page[12..48]);
            page[8..12].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(FileHead::decode(&page), read);
        }
        assert_eq!(FileHead::decode(&[0; 4096]), Err(NotAHead::Other));
    }
}
