//! Size of compressed data, computed from the block headers without decompressing.

use std::io::{self, Read};

use super::{Codec, SNAPPY_RATIO_MAX, XERIAL_HEADER, XERIAL_MAGIC_BYTES};
use crate::limits::RECORDS_EXPANDED_BYTES_MAX;

/// Maximum expansion of a byte of DEFLATE (RFC 1951: 258 bytes in two bits).
const DEFLATE_RATIO_MAX: usize = 1032;
/// First bytes of a gzip member: its magic and the only defined method (RFC 1952).
const GZIP_MEMBER: [u8; 3] = [0x1f, 0x8b, 8];
/// Reserved flags, in the byte after [`GZIP_MEMBER`] (RFC 1952, 2.3.1.2: a reader must refuse them).
const GZIP_FLAGS_RESERVED: u8 = 0xe0;
/// Maximum expansion of a byte of an LZ4 block.
const LZ4_RATIO_MAX: usize = 255;
const LZ4_MAGIC: u32 = 0x184d_2204;
const ZSTD_MAGIC: u32 = 0xfd2f_b528;
/// Magic of skippable zstd frames, which hold no data. Its lowest four bits are free (RFC 8878, 3.1.2).
const ZSTD_SKIPPABLE: u32 = 0x184d_2a50;
/// Maximum decompressed size of a compressed zstd block (RFC 8878, 3.1.1.2.4).
const ZSTD_BLOCK_BYTES_MAX: usize = 128 << 10;
/// Size of the buffer that counts decompressed bytes, if only decompressing determines their number.
const COUNTED_BYTES: usize = 32 << 10;

impl Codec {
    /// Returns an upper bound of the decompressed size, or `None` if only decompressing determines it.
    /// [`Codec::decompress`] refuses data that exceeds the bound.
    pub fn size_bound(self, small: &[u8]) -> Option<usize> {
        match self {
            Self::None => Some(small.len()),
            Self::Gzip => gzip(small),
            Self::Snappy => snappy(small),
            Self::Lz4 => lz4(small),
            Self::Zstd => zstd(small),
        }
    }

    /// Returns `true` if [`Codec::expands_within`] has to decompress.
    pub fn has_to_count(self, small: &[u8], bytes_max: usize) -> bool {
        !matches!(self, Self::None | Self::Snappy) && self.size_bound(small).is_none_or(|bound| bound > bytes_max)
    }

    /// Returns `true` if the decompressed size is at most `bytes_max`. Decompresses only if the bound does not decide
    /// that, and no further than `bytes_max`. Unreadable data counts as empty.
    pub fn expands_within(self, small: &[u8], bytes_max: usize) -> bool {
        if self.size_bound(small).is_some_and(|bound| bound <= bytes_max) {
            return true;
        }
        let counted = match self {
            Self::None => Ok(small.len()),
            // The bound of Snappy is the size that its blocks declare.
            Self::Snappy => Ok(snappy(small).unwrap_or(0)),
            Self::Gzip => count(flate2::bufread::MultiGzDecoder::new(small), bytes_max),
            Self::Lz4 => count(lz4_flex::frame::FrameDecoder::new(small), bytes_max),
            Self::Zstd => super::zstd_frames(small).and_then(|frames| count(frames, bytes_max)),
        };
        !counted.is_ok_and(|bytes| bytes > bytes_max)
    }
}

/// Counts the bytes of a reader, and stops after `bytes_max` is exceeded.
fn count(mut reader: impl Read, bytes_max: usize) -> io::Result<usize> {
    let mut scratch = vec![0; COUNTED_BYTES];
    let mut bytes = 0;
    while bytes <= bytes_max {
        match reader.read(&mut scratch)? {
            0 => break,
            read => bytes += read,
        }
    }
    Ok(bytes)
}

/// Returns the sum of the lengths at the ends of the members, or `None` if the sum is too large. Most streams are one
/// member. The beginnings of other members are searched for, not found by decompressing: bytes that only look like a
/// member increase the bound, unless no reader would accept them as one.
fn gzip(small: &[u8]) -> Option<usize> {
    let length_before = |end: usize| {
        let length = small.get(..end)?.last_chunk::<4>()?;
        Some(u32::from_le_bytes(*length) as usize).filter(|bytes| *bytes <= end.saturating_mul(DEFLATE_RATIO_MAX))
    };
    let by_ratio = small.len().saturating_mul(DEFLATE_RATIO_MAX);
    let last = length_before(small.len()).unwrap_or(by_ratio);
    let is_head = |at: &usize| small.get(at + GZIP_MEMBER.len()).is_some_and(|flags| flags & GZIP_FLAGS_RESERVED == 0);
    let heads = memchr::memmem::find_iter(small, &GZIP_MEMBER).filter(|at| *at > 0).filter(is_head);
    let bytes = heads.filter_map(length_before).fold(last, usize::saturating_add);
    Some(bytes.min(by_ratio)).filter(|bound| *bound <= RECORDS_EXPANDED_BYTES_MAX)
}

/// Returns the sum of the lengths that the blocks declare.
fn snappy(small: &[u8]) -> Option<usize> {
    if small.len() < XERIAL_HEADER.len() || small[..XERIAL_MAGIC_BYTES] != XERIAL_HEADER[..XERIAL_MAGIC_BYTES] {
        return snappy_block(small);
    }
    let mut rest = &small[XERIAL_HEADER.len()..];
    let mut bytes = 0usize;
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (block, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        bytes = bytes.saturating_add(snappy_block(block)?);
        rest = tail;
    }
    Some(bytes)
}

/// Returns the declared length of a block, limited to what the block can hold. The reader has the same limit.
fn snappy_block(block: &[u8]) -> Option<usize> {
    let length = snap::raw::decompress_len(block).ok()?;
    Some(length.min(block.len().saturating_mul(SNAPPY_RATIO_MAX)))
}

/// The frame header declares the maximum size of a block; each block header tells if the block is compressed.
fn lz4(small: &[u8]) -> Option<usize> {
    let mut rest = Rest(small);
    if rest.u32()? != LZ4_MAGIC {
        return None;
    }
    let [flags, blocks] = *rest.take(2)? else {
        return None;
    };
    let block_max = match blocks >> 4 & 7 {
        size @ 4..=7 => 1usize << (2 * size + 8),
        _ => return None,
    };
    let has = |bit: u8| usize::from(flags >> bit & 1);
    // The length of the content, the number of a dictionary, and the checksum of the header.
    rest.take(8 * has(3) + 4 * has(0) + 1)?;
    let mut bytes = 0usize;
    while let Some(head) = rest.u32().filter(|head| *head != 0) {
        let length = (head & 0x7fff_ffff) as usize;
        let is_plain = head >> 31 == 1;
        bytes = bytes.saturating_add(if is_plain { length } else { block_max.min(length * LZ4_RATIO_MAX) });
        rest.take(length + 4 * has(4))?;
    }
    Some(bytes)
}

/// A frame may declare its length; a block is at most as long as the format allows.
fn zstd(small: &[u8]) -> Option<usize> {
    let mut rest = Rest(small);
    let mut bytes = 0usize;
    while !rest.0.is_empty() {
        let magic = rest.u32()?;
        if magic & !0xf == ZSTD_SKIPPABLE {
            let length = rest.u32()?;
            rest.take(length as usize)?;
            continue;
        }
        if magic != ZSTD_MAGIC {
            return None;
        }
        bytes = bytes.saturating_add(zstd_frame(&mut rest)?);
    }
    Some(bytes)
}

fn zstd_frame(rest: &mut Rest<'_>) -> Option<usize> {
    let [flags] = *rest.take(1)? else {
        return None;
    };
    let is_single = flags >> 5 & 1 == 1;
    // The size of the window, and the number of a dictionary.
    rest.take(usize::from(!is_single) + [0, 1, 2, 4][usize::from(flags & 3)])?;
    let announced = match (flags >> 6, is_single) {
        (0, false) => None,
        (0, true) => Some(rest.le(1)?),
        (1, _) => Some(rest.le(2)? + 256),
        (2, _) => Some(rest.le(4)?),
        (_, _) => Some(rest.le(8)?),
    };
    let mut blocks = 0usize;
    loop {
        let head = rest.le(3)?;
        let is_last = head & 1 == 1;
        let length = (head >> 3) as usize;
        let (stands_for, has) = match head >> 1 & 3 {
            0 => (length, length),
            1 => (length, 1),
            2 => (ZSTD_BLOCK_BYTES_MAX, length),
            _ => return None,
        };
        rest.take(has)?;
        blocks = blocks.saturating_add(stands_for);
        if is_last {
            break;
        }
    }
    // The checksum.
    rest.take(4 * usize::from(flags >> 2 & 1))?;
    Some(announced.map_or(blocks, |bytes| blocks.min(usize::try_from(bytes).unwrap_or(usize::MAX))))
}

/// Bytes that have not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    /// Reads an integer of up to 8 bytes in little-endian order.
    fn le(&mut self, length: usize) -> Option<u64> {
        let bytes = self.take(length)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn u32(&mut self) -> Option<u32> {
        self.le(4).map(|number| number as u32)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn compressed(codec: Codec, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        codec.compress(plain, &mut out).expect("compressed");
        out
    }

    fn noise(length: usize) -> Vec<u8> {
        let step = |state: &u64| Some(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        std::iter::successors(Some(1), step).map(|state| (state >> 56) as u8).take(length).collect()
    }

    #[test]
    fn the_bound_is_never_below_the_size_and_near_it() {
        let text: Vec<u8> = (0..50_000).flat_map(|i| format!("line {i} of a text\n").into_bytes()).collect();
        for codec in Codec::ALL {
            for plain in [vec![], vec![7], text.clone(), vec![0; 3 << 20], noise(700_000), noise(5)] {
                let small = compressed(codec, &plain);
                let bound = codec.size_bound(&small).expect("whole");
                assert!(bound >= plain.len(), "{}: {bound} of {}", codec.name(), plain.len());
                assert!(bound <= plain.len() + (128 << 10), "{}: {bound} of {}", codec.name(), plain.len());
                assert!(codec.expands_within(&small, plain.len()), "{} {}", codec.name(), plain.len());
                assert!(plain.is_empty() || !codec.expands_within(&small, plain.len() - 1), "{}", codec.name());
            }
        }
    }

    /// Streams of other writers do not declare their length at the beginning.
    #[test]
    fn a_stream_of_zstd_is_bounded_by_its_blocks() {
        let plain = vec![1; 80 << 20];
        let small = zstd::stream::encode_all(&plain[..], 3).expect("compressed");
        let bound = Codec::Zstd.size_bound(&small).expect("whole");
        assert!((plain.len()..plain.len() + (128 << 10)).contains(&bound), "{bound}");
        assert!(!Codec::Zstd.expands_within(&small, 10 << 20));
        assert!(Codec::Zstd.expands_within(&small, 81 << 20));
        // Two frames, and a skippable one between them.
        let skippable = [&ZSTD_SKIPPABLE.to_le_bytes()[..], &3u32.to_le_bytes(), b"abc"].concat();
        let one = compressed(Codec::Zstd, &[7; 1000]);
        assert_eq!(Codec::Zstd.size_bound(&[&one[..], &skippable, &one].concat()), Some(2000));
    }

    #[test]
    fn members_of_gzip_are_counted_together() {
        let large = compressed(Codec::Gzip, &vec![1; 20 << 20]);
        let small = compressed(Codec::Gzip, b"x");
        let both = [&large[..], &small].concat();
        assert!(!Codec::Gzip.expands_within(&both, 10 << 20), "its last member says 1");
        assert!(Codec::Gzip.expands_within(&both, (20 << 20) + 1));
        assert_eq!(Codec::Gzip.size_bound(&both), Some((20 << 20) + 1));
        assert_eq!(Codec::Gzip.decompress(&Bytes::from(both)).map(|plain| plain.len()), Ok((20 << 20) + 1));
    }

    /// Uncompressed bytes may contain the magic of a member by chance.
    #[test]
    fn invalid_gzip_member_headers_add_no_size() {
        let stored = |plain: &[u8]| {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
            std::io::Write::write_all(&mut out, plain).expect("written");
            out.finish().expect("written")
        };
        let too_long = [&[0xff; 4][..], &GZIP_MEMBER, &[0; 4]].concat();
        let reserved = [&[0; 4][..], &GZIP_MEMBER, &[0x20; 4]].concat();
        for part in [too_long, reserved] {
            let plain = part.repeat(1000);
            assert_eq!(Codec::Gzip.size_bound(&stored(&plain)), Some(plain.len()));
        }
        // Bytes that might be a member are counted, and the data is decompressed if the bound does not decide.
        let plausible = [&[0, 1, 0, 0][..], &GZIP_MEMBER, &[0; 4]].concat().repeat(1000);
        let small = stored(&plausible);
        assert!(Codec::Gzip.size_bound(&small).is_some_and(|bound| bound > plausible.len()));
        assert!(Codec::Gzip.expands_within(&small, plausible.len()));
        assert!(!Codec::Gzip.expands_within(&small, plausible.len() - 1));
    }

    /// Data that declares a wrong length is refused before all of it is decompressed.
    #[test]
    fn data_longer_than_its_declared_size_is_refused() {
        let mut lies = compressed(Codec::Gzip, &vec![1; 20 << 20]);
        let at = lies.len() - 4;
        lies[at..].copy_from_slice(&10u32.to_le_bytes());
        assert!(Codec::Gzip.expands_within(&lies, 10));
        let read = Codec::Gzip.decompress(&Bytes::from(lies)).map_err(|e| e.kind);
        assert_eq!(read, Err(crate::ErrorKind::Malformed));
    }

    #[test]
    fn truncated_data_and_data_of_another_codec_do_not_panic() {
        for codec in Codec::ALL {
            let whole = compressed(codec, &noise(3000));
            for length in 0..whole.len() {
                codec.size_bound(&whole[..length]);
                assert!(codec.expands_within(&whole[..length], 3000));
            }
            for other in Codec::ALL {
                other.size_bound(&whole);
            }
        }
    }
}
