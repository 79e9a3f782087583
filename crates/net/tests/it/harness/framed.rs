//! Protocol of these tests: frames with a length, a kind and an id.
//!
//! | at | bytes | field, little-endian |
//! |---|---|---|
//! | 0 | 4 | length of the remaining bytes: 5 and the words |
//! | 4 | 1 | kind |
//! | 5 | 4 | id, repeated in the answer |
//! | 9 | | words |
//!
//! Peers send `C` (call), `K` (call whose words the handler keeps), `T` (one-way message), `O` (open, with 8 bytes of
//! declared length before the words, all ones if it is not declared), `P` and `L` (a piece and the last piece), and `D`
//! (open, with the declared length, followed by that many bytes of body without frames). Servers send `R` (answer), `F`
//! (fault, its kind as a byte before the message, id 0 if it concerns the whole stream) and `U` (push).

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use net::service::{Decoded, Fault, FaultKind, Input, Order, Out, Peer, Protocol};

pub const HEAD_BYTES: usize = 9;
const UNDECLARED: u64 = u64::MAX;

/// Protocol with answers in the order of requests, or in the order of completion.
#[derive(Clone)]
pub struct Framed<const IN_ORDER: bool>;

/// State of a body that follows without frames: the id of its request, and the number of bytes left.
#[derive(Default)]
pub struct Codec {
    raw: Option<(u32, u64)>,
}

pub struct Call<'a> {
    pub words: &'a [u8],
    /// Words of a call of kind `K`.
    pub kept: Option<Kept>,
}

pub struct Kept {
    pub words: BytesMut,
    /// `true` if they had to be copied out of the read buffer.
    pub is_copied: bool,
}

/// Pieces that are encoded one after the other.
pub type Response = Vec<Bytes>;

impl<const IN_ORDER: bool> Protocol for Framed<IN_ORDER> {
    type Codec = Codec;
    type Request<'a> = Call<'a>;
    type Message<'a> = &'a [u8];
    type Response = Response;
    type Tag = u32;

    const ORDER: Order = if IN_ORDER { Order::Request } else { Order::Completion };

    fn codec(&self, _peer: &Rc<Peer>) -> Codec {
        Codec::default()
    }

    fn decode<'a>(&self, codec: &mut Codec, input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        if let Some((tag, missing)) = codec.raw {
            if input.is_empty() && missing > 0 {
                return Ok(Decoded::More(1));
            }
            let bytes = input.take(usize::try_from(missing).unwrap_or(usize::MAX));
            let missing = missing - bytes.len() as u64;
            codec.raw = (missing > 0).then_some((tag, missing));
            return Ok(Decoded::Piece { tag, bytes, is_last: missing == 0 });
        }
        let Some(head) = input.bytes().first_chunk::<HEAD_BYTES>() else {
            return Ok(Decoded::More(HEAD_BYTES));
        };
        let kind = head[4];
        let id = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
        let whole = 4 + u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if whole < HEAD_BYTES {
            return Err(Fault::malformed("a frame counts at least 5 bytes"));
        }
        if input.len() < whole {
            return Ok(Decoded::More(whole));
        }
        if kind == b'K' {
            let from = input.bytes().as_ptr();
            let mut words = input.take_owned(whole);
            let is_copied = words.as_ptr() != from;
            let words = words.split_off(HEAD_BYTES);
            return Ok(Decoded::Request(id, Call { words: b"keep", kept: Some(Kept { words, is_copied }) }));
        }
        let words = &input.take(whole)[HEAD_BYTES..];
        let call = |words| Call { words, kept: None };
        Ok(match kind {
            b'C' => Decoded::Request(id, call(words)),
            b'T' => Decoded::Message(words),
            b'P' | b'L' => Decoded::Piece { tag: id, bytes: words, is_last: kind == b'L' },
            b'O' | b'D' => {
                let Some((length, words)) = words.split_first_chunk::<8>() else {
                    return Err(Fault::malformed("a body begins with its length"));
                };
                let length = u64::from_le_bytes(*length);
                if kind == b'D' {
                    codec.raw = Some((id, length));
                }
                Decoded::Open(id, call(words), (length != UNDECLARED).then_some(length))
            }
            _ => return Err(Fault::malformed(format!("there is no frame of kind {kind}"))),
        })
    }

    fn encode(&self, _codec: &mut Codec, id: u32, response: Response, out: &mut Out) {
        let len: usize = response.iter().map(Bytes::len).sum();
        out.put(&head(b'R', id, len));
        response.into_iter().for_each(|piece| out.put_bytes(piece));
    }

    fn encode_fault(&self, _codec: &mut Codec, id: Option<u32>, fault: &Fault, out: &mut Out) {
        out.put(&head(b'F', id.unwrap_or_default(), 1 + fault.message.len()));
        out.put(&[fault.kind as u8]);
        out.put(fault.message.as_bytes());
    }

    fn close_code(&self, kind: FaultKind) -> u32 {
        100 + kind as u32
    }
}

fn head(kind: u8, id: u32, len: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&(len as u32 + 5).to_le_bytes());
    head[4] = kind;
    head[5..].copy_from_slice(&id.to_le_bytes());
    head
}

pub fn frame(kind: u8, id: u32, words: &[u8]) -> Vec<u8> {
    [&head(kind, id, words.len()), words].concat()
}

pub fn call(id: u32, words: &str) -> Vec<u8> {
    frame(b'C', id, words.as_bytes())
}

pub fn one_way(words: &str) -> Vec<u8> {
    frame(b'T', 0, words.as_bytes())
}

pub fn open(id: u32, length: Option<u64>, words: &str) -> Vec<u8> {
    frame(b'O', id, &[&length.unwrap_or(UNDECLARED).to_le_bytes(), words.as_bytes()].concat())
}

/// Returns an open request whose body follows without frames.
pub fn open_raw(id: u32, length: u64, words: &str) -> Vec<u8> {
    frame(b'D', id, &[&length.to_le_bytes(), words.as_bytes()].concat())
}

pub fn piece(id: u32, bytes: &[u8], is_last: bool) -> Vec<u8> {
    frame(if is_last { b'L' } else { b'P' }, id, bytes)
}

pub fn push(id: u32, words: &[u8]) -> Bytes {
    frame(b'U', id, words).into()
}

/// Frame that a server sent.
#[derive(Clone, PartialEq, Eq)]
pub enum ServerFrame {
    Answer(u32, Vec<u8>),
    /// Fault with the id, the kind as a number, and the message.
    Fault(u32, u8, String),
    Push(u32, Vec<u8>),
}

impl ServerFrame {
    /// Takes the first frame, if it is complete.
    pub fn take(bytes: &mut BytesMut) -> Option<Self> {
        let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
        if bytes.len() < 4 + length {
            return None;
        }
        let frame = bytes.split_to(4 + length);
        let id = u32::from_le_bytes([frame[5], frame[6], frame[7], frame[8]]);
        let words = &frame[HEAD_BYTES..];
        Some(match frame[4] {
            b'R' => Self::Answer(id, words.to_vec()),
            b'F' => Self::Fault(id, words[0], String::from_utf8(words[1..].to_vec()).expect("a text")),
            b'U' => Self::Push(id, words.to_vec()),
            kind => panic!("a server sends no frame of kind {kind}: a frame was split"),
        })
    }

    /// Returns the length of its whole frame.
    pub fn frame_bytes(&self) -> usize {
        HEAD_BYTES
            + match self {
                Self::Answer(_, words) | Self::Push(_, words) => words.len(),
                Self::Fault(.., message) => 1 + message.len(),
            }
    }

    pub fn id(&self) -> u32 {
        match self {
            Self::Answer(id, _) | Self::Fault(id, ..) | Self::Push(id, _) => *id,
        }
    }

    /// Returns `true` if it is a fault of this kind about this request or, with 0, about the stream.
    pub fn is_fault(&self, request: u32, expected: FaultKind) -> bool {
        matches!(self, Self::Fault(id, kind, _) if *id == request && *kind == expected as u8)
    }
}

impl std::fmt::Debug for ServerFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |words: &[u8]| match words.len() {
            0..100 => String::from_utf8_lossy(words).into_owned(),
            len => format!("({len} bytes)"),
        };
        match self {
            Self::Answer(id, words) => write!(f, "answer {id}: {}", shown(words)),
            Self::Fault(id, kind, message) => write!(f, "fault {id} of kind {kind}: {message}"),
            Self::Push(id, words) => write!(f, "push {id}: {}", shown(words)),
        }
    }
}
