//! Frames: a short header and a body. An [`Assembler`] finds them in a stream of bytes.

use bytes::buf::Limit;
use bytes::{BufMut, BytesMut};
use engine::limits::BATCH_BYTES_MAX;
use engine::{Error, ErrorKind, Result};

/// Bytes of every frame before its body.
pub const HEADER_BYTES: usize = 12;
/// Maximum bytes of a body. They leave room for other fields in addition to a record batch.
pub const BODY_BYTES_MAX: usize = BATCH_BYTES_MAX + 4096;
/// Maximum bytes of a body before the hello is answered.
pub const BODY_BYTES_BEFORE_HELLO_MAX: usize = 4096;
/// Maximum bytes of a body after that, while the client still has to log in.
pub const BODY_BYTES_BEFORE_LOGIN_MAX: usize = 64 << 10;
/// Maximum bytes that are reserved for a body because of its header alone; more is reserved as the bytes arrive.
const RESERVE_BYTES_MAX: usize = 512 << 10;
/// Size from which the rest of a body is read directly into its buffer.
const LARGE_REST_BYTES: usize = 16 << 10;

/// Header of a frame, in 12 bytes:
///
/// | at | bytes | field |
/// |---|---|---|
/// | 0 | 4 | length of the body |
/// | 4 | 1 | kind |
/// | 5 | 1 | flags, 0 in this version; an unknown bit is refused |
/// | 6 | 2 | reserved, 0 |
/// | 8 | 4 | correlation id: an answer carries that of its request; 0 on pushes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body in bytes.
    pub length: u32,
    /// Kind of the body: see [`crate::kind`].
    pub kind: u8,
    /// Number that an answer repeats from its request; 0 on pushes.
    pub correlation: u32,
}

impl Header {
    /// Appends the 12 bytes of the header.
    pub fn put(self, buf: &mut BytesMut) {
        buf.put_u32(self.length);
        buf.put_u8(self.kind);
        buf.put_u8(0);
        buf.put_u16(0);
        buf.put_u32(self.correlation);
    }

    /// Reads a header. Flags and reserved bytes that this version does not know are `unsupported`.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self> {
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[5] != 0 || bytes[6] != 0 || bytes[7] != 0 {
            if bytes.starts_with(b"HTTP/") {
                return Err(Error::new(ErrorKind::Unsupported, "the server there speaks HTTP"));
            }
            if bytes.starts_with(b"-ERR ") {
                return Err(Error::new(ErrorKind::Unsupported, "the server there speaks Redis's protocol"));
            }
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "unknown flags {:#04x} or reserved bytes {:02x}{:02x} of a frame",
                    bytes[5], bytes[6], bytes[7]
                ),
            ));
        }
        Ok(Self { length: u32_at(0), kind: bytes[4], correlation: u32_at(8) })
    }
}

/// Frame whose body has arrived completely.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the body: see [`crate::kind`].
    pub kind: u8,
    /// Number that an answer repeats from its request; 0 on pushes.
    pub correlation: u32,
    /// Body without the header.
    pub body: BytesMut,
}

/// Assembler of frames from a stream of bytes. Between frames it owns no memory except for its few fields.
#[derive(Debug)]
pub struct Assembler {
    body_bytes_max: usize,
    head: [u8; HEADER_BYTES],
    head_filled: usize,
    /// Frame whose body is arriving.
    open: Option<(Header, BytesMut)>,
}

impl Assembler {
    /// Returns an assembler that refuses frames whose header announces a larger body than this.
    pub fn new(body_bytes_max: usize) -> Self {
        Self { body_bytes_max, head: [0; HEADER_BYTES], head_filled: 0, open: None }
    }

    /// Returns `true` if the stream could end here without cutting a frame.
    pub fn is_between_frames(&self) -> bool {
        self.head_filled == 0 && self.open.is_none()
    }

    /// Processes the next bytes of the stream, and appends the completed frames.
    pub fn feed(&mut self, mut input: &[u8], frames: &mut Vec<Frame>) -> Result<()> {
        while !input.is_empty() {
            if self.open.is_none() {
                let wanted = (HEADER_BYTES - self.head_filled).min(input.len());
                self.head[self.head_filled..self.head_filled + wanted].copy_from_slice(&input[..wanted]);
                self.head_filled += wanted;
                input = &input[wanted..];
                if self.head_filled < HEADER_BYTES {
                    return Ok(());
                }
                self.open_frame()?;
            }
            if let Some((header, body)) = &mut self.open {
                let wanted = (header.length as usize - body.len()).min(input.len());
                body.extend_from_slice(&input[..wanted]);
                input = &input[wanted..];
            }
            self.close_frame(frames);
        }
        Ok(())
    }

    /// Returns a buffer to read the next bytes into without another copy, if the open frame misses many. Call
    /// [`Assembler::close_frame`] after each read into it.
    pub fn large_rest(&mut self) -> Option<Limit<&mut BytesMut>> {
        let (header, body) = self.open.as_mut()?;
        let missing = header.length as usize - body.len();
        if missing < LARGE_REST_BYTES {
            return None;
        }
        if body.len() == body.capacity() {
            body.reserve(missing);
        }
        let room = body.capacity() - body.len();
        Some(body.limit(missing.min(room)))
    }

    /// Appends the open frame to `frames` if it is complete.
    pub fn close_frame(&mut self, frames: &mut Vec<Frame>) {
        if self.open.as_ref().is_some_and(|(header, body)| body.len() == header.length as usize)
            && let Some((header, body)) = self.open.take()
        {
            frames.push(Frame { kind: header.kind, correlation: header.correlation, body });
        }
    }

    fn open_frame(&mut self) -> Result<()> {
        let header = Header::parse(self.head)?;
        self.head_filled = 0;
        let length = header.length as usize;
        if length > self.body_bytes_max {
            return Err(Error::too_large(format!(
                "a frame has at most {} bytes, this one announces {length}",
                self.body_bytes_max
            )));
        }
        self.open = Some((header, BytesMut::with_capacity(length.min(RESERVE_BYTES_MAX))));
        Ok(())
    }
}

/// Writes a frame whose body `fill` appends.
pub fn put_frame(buf: &mut BytesMut, kind: u8, correlation: u32, fill: impl FnOnce(&mut BytesMut)) {
    put_frame_before(buf, kind, correlation, 0, fill);
}

/// Writes a frame up to its last `tail` bytes, which the caller sends after it.
pub fn put_frame_before(buf: &mut BytesMut, kind: u8, correlation: u32, tail: usize, fill: impl FnOnce(&mut BytesMut)) {
    let at = buf.len();
    Header { length: 0, kind, correlation }.put(buf);
    fill(buf);
    let length = (buf.len() - at - HEADER_BYTES + tail) as u32;
    buf[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> (BytesMut, usize) {
        let mut buf = BytesMut::new();
        for (i, length) in [0usize, 1, 40_000, 3].into_iter().enumerate() {
            put_frame(&mut buf, i as u8 + 1, i as u32, |body| body.put_bytes(i as u8, length));
        }
        (buf, 4)
    }

    #[test]
    fn finds_the_same_frames_however_the_stream_is_cut() {
        let (stream, count) = stream();
        let mut whole = Vec::new();
        Assembler::new(BODY_BYTES_MAX).feed(&stream, &mut whole).expect("valid");
        assert_eq!(whole.len(), count);
        for step in [1, 2, 5, 11, 12, 13, 1000, 39_999] {
            let mut frames = Vec::new();
            let mut assembler = Assembler::new(BODY_BYTES_MAX);
            for part in stream.chunks(step) {
                assembler.feed(part, &mut frames).expect("valid");
            }
            assert!(assembler.is_between_frames());
            assert_eq!(frames, whole, "step {step}");
        }
    }

    #[test]
    fn a_large_rest_is_read_in_place_and_never_past_its_frame() {
        let (stream, count) = stream();
        let mut frames = Vec::new();
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let mut rest = &stream[..];
        while !rest.is_empty() {
            if let Some(mut place) = assembler.large_rest() {
                let n = rest.len().min(place.remaining_mut()).min(7000);
                place.put_slice(&rest[..n]);
                rest = &rest[n..];
                assembler.close_frame(&mut frames);
            } else {
                let n = rest.len().min(20);
                assembler.feed(&rest[..n], &mut frames).expect("valid");
                rest = &rest[n..];
            }
        }
        assert_eq!(frames.len(), count);
        assert_eq!(frames[2].body.len(), 40_000);
    }

    #[test]
    fn an_oversized_or_unknown_header_is_refused_before_its_body() {
        let mut frames = Vec::new();
        let mut buf = BytesMut::new();
        put_frame(&mut buf, 1, 1, |body| body.put_bytes(0, 100));
        let refused = Assembler::new(99).feed(&buf, &mut frames);
        assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::TooLarge));
        buf[5] = 1;
        let refused = Assembler::new(100).feed(&buf, &mut frames);
        assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::Unsupported));
        assert!(frames.is_empty());
    }
}
