//! Compression of the records of a batch: Kafka's codecs, each in the format that Kafka's clients write.

use std::io::{Read, Write};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::RECORDS_EXPANDED_BYTES_MAX;

mod size;

/// Codec that compresses the records of a batch. The number is that in the batch's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Codec {
    #[default]
    None = 0,
    Gzip = 1,
    /// Snappy blocks after xerial's header, as Kafka's clients write them; a bare block can be read too.
    Snappy = 2,
    /// LZ4 frame with independent blocks: Kafka's own reader accepts no other.
    Lz4 = 3,
    Zstd = 4,
}

/// Header of xerial's snappy format: magic, version and the oldest version that can read it.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
/// Length of the magic in the header, which alone identifies the format: some writers swap the byte order of the
/// versions.
const XERIAL_MAGIC_BYTES: usize = 8;
/// Uncompressed bytes per snappy block: xerial's default.
const XERIAL_BLOCK_BYTES: usize = 32 << 10;
/// Maximum ratio of a snappy block: 3 bytes expand to at most 64. A block that announces more is refused before memory
/// is reserved for it.
const SNAPPY_RATIO_MAX: usize = 22;
/// zstd's default level, which is also Kafka's.
const ZSTD_LEVEL: i32 = 3;
/// Maximum window of a zstd reader, as a power of two: the history that it keeps of its output.
const ZSTD_WINDOW_LOG_MAX: u32 = RECORDS_EXPANDED_BYTES_MAX.ilog2();

impl Codec {
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| *codec as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Appends the compressed form of `plain` to `out`. On an error `out` may hold a part of it.
    pub fn compress(self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let done = match self {
            Self::None => out.write_all(plain),
            Self::Gzip => gzip(plain, out),
            Self::Snappy => snappy(plain, out),
            Self::Lz4 => lz4(plain, out),
            Self::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL).and_then(|small| out.write_all(&small)),
        };
        done.map_err(|e| Error::new(ErrorKind::Internal, format!("cannot compress with {}: {e}", self.name())))
    }

    /// Returns the decompressed bytes. Fails if there would be more than [`RECORDS_EXPANDED_BYTES_MAX`] of them, before
    /// it allocates memory for more.
    pub fn decompress(self, small: &Bytes) -> Result<Bytes> {
        match self {
            Self::None => Ok(small.clone()),
            Self::Gzip => self.expand(flate2::bufread::MultiGzDecoder::new(&small[..]), small),
            Self::Snappy => unsnappy(small),
            Self::Lz4 => {
                let mut frame = lz4_flex::frame::FrameDecoder::new(&small[..]);
                let plain = self.expand(&mut frame, small)?;
                match frame.get_ref().len() {
                    0 => Ok(plain),
                    left => Err(self.damaged(format!("{left} bytes are left after its frame"))),
                }
            }
            Self::Zstd => self.expand(zstd_frames(small).map_err(|e| self.damaged(e))?, small),
        }
    }

    /// Reads to the end of the stream. Fails if it yields more bytes than the limit, or than the compressed bytes
    /// announce.
    fn expand(self, reader: impl Read, small: &[u8]) -> Result<Bytes> {
        let announced = self.size_bound(small).unwrap_or(RECORDS_EXPANDED_BYTES_MAX);
        let bytes_max = announced.min(RECORDS_EXPANDED_BYTES_MAX);
        // Typical size of text. Memory beyond it is reserved as it fills.
        let mut plain = Vec::with_capacity((small.len() * 4).min(bytes_max));
        let mut bounded = reader.take(bytes_max as u64 + 1);
        bounded.read_to_end(&mut plain).map_err(|e| self.damaged(e))?;
        match plain.len() {
            length if length <= bytes_max => {}
            _ if announced >= RECORDS_EXPANDED_BYTES_MAX => return Err(self.too_large(small.len())),
            _ => return Err(self.damaged(format!("they decompress to more than the announced {announced} bytes"))),
        }
        // Memory is accounted by length, so no spare capacity is kept.
        plain.shrink_to_fit();
        Ok(plain.into())
    }

    fn damaged(self, why: impl std::fmt::Display) -> Error {
        Error::malformed(format!("the records of the batch cannot be decompressed with {}: {why}", self.name()))
    }

    fn too_large(self, small_bytes: usize) -> Error {
        Error::too_large(format!(
            "{small_bytes} bytes of {} decompress to more than {RECORDS_EXPANDED_BYTES_MAX} bytes, the limit for the \
             records of a batch",
            self.name()
        ))
    }
}

impl std::str::FromStr for Codec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.name() == text)
            .ok_or_else(|| Error::invalid(format!("compression is none, gzip, snappy, lz4 or zstd, not '{text}'")))
    }
}

fn zstd_frames(small: &[u8]) -> std::io::Result<zstd::stream::read::Decoder<'static, &[u8]>> {
    let mut frames = zstd::stream::read::Decoder::with_buffer(small)?;
    frames.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(frames)
}

fn gzip(plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::default());
    encoder.write_all(plain)?;
    encoder.finish().map(drop)
}

fn lz4(plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let info = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    encoder.write_all(plain)?;
    Ok(encoder.finish().map(drop)?)
}

fn snappy(plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    out.extend_from_slice(&XERIAL_HEADER);
    let mut encoder = snap::raw::Encoder::new();
    for block in plain.chunks(XERIAL_BLOCK_BYTES) {
        let at = out.len();
        out.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
        let length = encoder.compress(block, &mut out[at + 4..])?;
        out[at..at + 4].copy_from_slice(&(length as u32).to_be_bytes());
        out.truncate(at + 4 + length);
    }
    Ok(())
}

fn unsnappy(small: &Bytes) -> Result<Bytes> {
    let mut plain = Vec::new();
    if small.len() < XERIAL_HEADER.len() || small[..XERIAL_MAGIC_BYTES] != XERIAL_HEADER[..XERIAL_MAGIC_BYTES] {
        unsnappy_block(small, small.len(), &mut plain)?;
        return Ok(plain.into());
    }
    let mut rest = &small[XERIAL_HEADER.len()..];
    while !rest.is_empty() {
        let (length, tail) =
            rest.split_first_chunk::<4>().ok_or_else(|| Codec::Snappy.damaged("the length of a block is cut short"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, tail) =
            tail.split_at_checked(length).ok_or_else(|| Codec::Snappy.damaged("a block is cut short"))?;
        unsnappy_block(block, small.len(), &mut plain)?;
        rest = tail;
    }
    Ok(plain.into())
}

fn unsnappy_block(block: &[u8], small_bytes: usize, plain: &mut Vec<u8>) -> Result<()> {
    let codec = Codec::Snappy;
    let length = snap::raw::decompress_len(block).map_err(|e| codec.damaged(e))?;
    if length > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(codec.damaged(format!("{} bytes cannot decompress to {length}", block.len())));
    }
    let at = plain.len();
    if at + length > RECORDS_EXPANDED_BYTES_MAX {
        return Err(codec.too_large(small_bytes));
    }
    plain.resize(at + length, 0);
    snap::raw::Decoder::new().decompress(block, &mut plain[at..]).map(drop).map_err(|e| codec.damaged(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns text, noise, empty and constant bytes, and lengths around the borders of the blocks.
    fn samples() -> Vec<Vec<u8>> {
        let mut state = 7u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let text: Vec<u8> = (0..5_000).flat_map(|i| format!("line {i} of a text\n").into_bytes()).collect();
        let mut samples = vec![vec![], vec![7], text, vec![0; 1 << 20]];
        for length in [10, XERIAL_BLOCK_BYTES - 1, XERIAL_BLOCK_BYTES, XERIAL_BLOCK_BYTES + 1, 200_000] {
            samples.push((0..length).map(|_| noise()).collect());
        }
        samples
    }

    fn compressed(codec: Codec, plain: &[u8]) -> Bytes {
        let mut out = Vec::new();
        codec.compress(plain, &mut out).expect("compressed");
        out.into()
    }

    #[test]
    fn compressed_data_decompresses_to_the_original() {
        for codec in Codec::ALL {
            for plain in samples() {
                let small = compressed(codec, &plain);
                assert_eq!(codec.decompress(&small).as_deref(), Ok(&plain[..]), "{} {}", codec.name(), plain.len());
            }
            let zeros = compressed(codec, &[0; 1 << 20]);
            assert!(codec == Codec::None || zeros.len() < 60_000, "{}: {}", codec.name(), zeros.len());
        }
    }

    #[test]
    fn names_and_numbers_lead_back() {
        for codec in Codec::ALL {
            assert_eq!((codec.name().parse(), Codec::from_code(codec as u8)), (Ok(codec), Some(codec)));
        }
        assert_eq!("brotli".parse::<Codec>().map_err(|e| e.kind), Err(ErrorKind::Invalid));
        assert_eq!([5, 6, 7, 255].map(Codec::from_code), [None; 4]);
    }

    #[test]
    fn bytes_of_no_codec_are_refused() {
        let text = &samples()[2];
        for codec in &Codec::ALL[1..] {
            for other in Codec::ALL.iter().filter(|other| *other != codec) {
                let read = codec.decompress(&compressed(*other, text));
                assert_eq!(read.map_err(|e| e.kind), Err(ErrorKind::Malformed), "{} as {}", other.name(), codec.name());
            }
        }
    }

    /// Cut or extended bytes are refused, or at least do not decompress to the whole text. A cut LZ4 frame may only
    /// lack its end mark, and framed snappy may lack whole blocks; the reader of the records detects that.
    #[test]
    fn truncated_data_is_not_accepted_as_complete() {
        let text = &samples()[2];
        for codec in &Codec::ALL[1..] {
            let whole = compressed(*codec, text);
            for length in (0..whole.len()).step_by(97).chain([whole.len() - 5, whole.len() - 1]) {
                let read = codec.decompress(&whole.slice(..length));
                let is_whole = read.as_deref().is_ok_and(|plain| plain == text);
                assert!(!is_whole || *codec == Codec::Lz4, "{}: {length} of {}", codec.name(), whole.len());
            }
            let longer = Bytes::from([&whole[..], &[1, 2, 3]].concat());
            assert_eq!(codec.decompress(&longer).map_err(|e| e.kind), Err(ErrorKind::Malformed), "{}", codec.name());
        }
    }

    #[test]
    fn a_small_batch_does_not_expand_without_bound() {
        let largest = vec![0; RECORDS_EXPANDED_BYTES_MAX];
        let larger = vec![0; RECORDS_EXPANDED_BYTES_MAX + 1];
        for codec in &Codec::ALL[1..] {
            let read = codec.decompress(&compressed(*codec, &largest));
            assert_eq!(read.map(|plain| plain.len()), Ok(largest.len()), "{}", codec.name());
            let refused = codec.decompress(&compressed(*codec, &larger)).expect_err("too large");
            assert_eq!(refused.kind, ErrorKind::TooLarge, "{refused}");
            assert!(refused.message.contains(codec.name()), "{refused}");
        }
    }

    #[test]
    fn snappy_is_read_with_and_without_a_frame() {
        let text = &samples()[2];
        let bare = snap::raw::Encoder::new().compress_vec(text).expect("compressed");
        assert_eq!(Codec::Snappy.decompress(&bare.into()).as_deref(), Ok(&text[..]));
        // The versions in the other byte order.
        let mut swapped = compressed(Codec::Snappy, text).to_vec();
        swapped[8..16].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Codec::Snappy.decompress(&swapped.into()).as_deref(), Ok(&text[..]));
        // A block that announces 60 MB in six bytes.
        let promise = Bytes::from_static(&[0x80, 0x87, 0xa7, 0x1c, 0, 0]);
        assert_eq!(Codec::Snappy.decompress(&promise).map_err(|e| e.kind), Err(ErrorKind::Malformed));
    }

    /// Requirements of Kafka's LZ4 reader: version 1, independent blocks, no dictionary.
    #[test]
    fn lz4_frames_meet_the_requirements_of_kafka() {
        let frame = compressed(Codec::Lz4, &[7; 300_000]);
        assert_eq!(frame[..4], [0x04, 0x22, 0x4d, 0x18]);
        let flags = frame[4];
        let descriptor = frame[5];
        assert_eq!((flags >> 6, flags >> 5 & 1, flags & 1), (1, 1, 0), "{flags:#b}");
        assert_eq!(descriptor >> 4, 4, "blocks of 64 KiB");
    }
}
