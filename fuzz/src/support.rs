//! Helpers of the fuzz targets: batches with valid checksums, and frames of values.

use bytes::BytesMut;
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};
use wire::{Assembler, Frame};

const AT_LENGTH: usize = 8;
const AT_MAGIC: usize = 16;
const AT_CRC: usize = 17;
const AT_ATTRIBUTES: usize = 21;
const AT_LAST_OFFSET_DELTA: usize = 23;
const AT_RECORD_COUNT: usize = 57;
const BATCH_HEADER_BYTES: usize = 61;

/// Sets length, magic, last offset and checksum of a batch to match the rest of its bytes, so that any error is in its
/// records. Ignores less than a header.
pub fn seal(batch: &mut [u8]) {
    if batch.len() < BATCH_HEADER_BYTES {
        return;
    }
    let length = (batch.len() - AT_LENGTH - 4) as u32;
    batch[AT_LENGTH..AT_LENGTH + 4].copy_from_slice(&length.to_be_bytes());
    batch[AT_MAGIC] = 2;
    let last = u32_at(batch, AT_RECORD_COUNT).wrapping_sub(1);
    batch[AT_LAST_OFFSET_DELTA..AT_LAST_OFFSET_DELTA + 4].copy_from_slice(&last.to_be_bytes());
    let crc = crc_fast::crc32_iscsi(&batch[AT_ATTRIBUTES..]);
    batch[AT_CRC..AT_CRC + 4].copy_from_slice(&crc.to_be_bytes());
}

/// Seals the batches of a fetch response: start, end, count, and for each batch its length and its bytes.
pub fn seal_fetched(body: &mut [u8]) {
    let mut at = 20;
    while at + 4 <= body.len() {
        let length = u32_at(body, at) as usize;
        at += 4;
        if length > body.len() - at {
            return;
        }
        seal(&mut body[at..at + length]);
        at += length;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Parses an input as a frame: its first byte is the kind, the rest the body.
pub fn frame_of(input: &[u8]) -> Option<Frame> {
    let (kind, body) = input.split_first()?;
    Some(Frame { kind: *kind, correlation: 7, body: BytesMut::from(body) })
}

/// Returns the single frame that an encoder wrote.
pub fn read_one(encoded: &[u8]) -> Frame {
    let mut frames = Vec::new();
    let mut assembler = Assembler::new(BODY_BYTES_MAX);
    assembler.feed(encoded, &mut frames).expect("what is encoded is valid");
    assert!(assembler.is_between_frames(), "a frame is whole");
    assert_eq!(frames.len(), 1, "a value is one frame");
    assert_eq!(frames[0].body.len() + HEADER_BYTES, encoded.len());
    frames.remove(0)
}
