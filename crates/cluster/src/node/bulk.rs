//! Streams between two nodes beside the messages of the consensus: requests of a node to the leader, and the state that
//! a node fetches when it is too far behind for the log.
//!
//! The node that opens a stream sends one request and reads the answers. Everything is a frame: its length (4,
//! big-endian), its kind (1), and its content:
//!
//! | kind | | content |
//! |---|---|---|
//! | 1 | request | JSON of [`Request`] |
//! | 2 | done | nothing |
//! | 3 | refused | a text |
//! | 4 | state | length of the nodes (4), the nodes, the included index of the log (8), a manifest of the store |
//! | 5 | wanted | partition (8), first offset (8), offset after the last (8) |
//! | 6 | batches | partition (8), record batches, one after the other, each after its length (4) |
//! | 7 | begins | partition (8), offset (8): the records before it were deleted in the meantime |
//! | 8 | secret | a text |

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Index, NodeId};
use engine::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

use crate::roster::Member;

/// Maximum bytes of a frame: a state has the manifest of all topics.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// Maximum time between two frames.
const SILENCE_MAX: Duration = Duration::from_secs(30);

const REQUEST: u8 = 1;
const DONE: u8 = 2;
const REFUSED: u8 = 3;
const STATE: u8 = 4;
const WANTED: u8 = 5;
const BATCHES: u8 = 6;
const BEGINS: u8 = 7;
const SECRET: u8 = 8;

/// Request of a node to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// The node says what it is.
    Describe { node: NodeId, member: Member },
    /// The node needs the state, at least up to this index of the log.
    State { index: Index },
    /// The node asks for the token with which programs of its user administer the cluster.
    AdminToken,
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Zeroizing<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Request(Request),
    Done,
    Refused(String),
    State { roster: Bytes, index: Index, manifest: Bytes },
    Wanted { stream: u64, from: u64, to: u64 },
    Batches { stream: u64, batches: Vec<Bytes> },
    Begins { stream: u64, start: u64 },
    Secret(Secret),
}

impl Frame {
    fn encode(&self) -> Result<Bytes> {
        let mut out = BytesMut::from(&[0; 5][..]);
        let kind = match self {
            Self::Request(request) => {
                let json = serde_json::to_vec(request)
                    .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write a request: {error}")))?;
                out.put_slice(&json);
                REQUEST
            }
            Self::Done => DONE,
            Self::Refused(reason) => {
                out.put_slice(reason.as_bytes());
                REFUSED
            }
            Self::State { roster, index, manifest } => {
                out.put_u32(roster.len() as u32);
                out.put_slice(roster);
                out.put_u64(*index);
                out.put_slice(manifest);
                STATE
            }
            Self::Wanted { stream, from, to } => {
                [stream, from, to].into_iter().for_each(|number| out.put_u64(*number));
                WANTED
            }
            Self::Batches { stream, batches } => {
                out.put_u64(*stream);
                for batch in batches {
                    out.put_u32(batch.len() as u32);
                    out.put_slice(batch);
                }
                BATCHES
            }
            Self::Begins { stream, start } => {
                [stream, start].into_iter().for_each(|number| out.put_u64(*number));
                BEGINS
            }
            Self::Secret(Secret(text)) => {
                out.put_slice(text.as_bytes());
                SECRET
            }
        };
        let length = out.len() - 5;
        if length > FRAME_BYTES_MAX {
            return Err(Error::too_large(format!("a frame has {length} bytes, at most {FRAME_BYTES_MAX}")));
        }
        out[..4].copy_from_slice(&(length as u32).to_be_bytes());
        out[4] = kind;
        Ok(out.freeze())
    }

    fn decode(kind: u8, body: Bytes) -> Result<Self> {
        use crate::link::fields::Fields;
        let text = |body: &Bytes| String::from_utf8_lossy(body).into_owned();
        let mut fields = Fields(body.clone());
        let frame = match kind {
            REQUEST => {
                let request = serde_json::from_slice(&body);
                return request.map(Self::Request).map_err(|error| Error::malformed(format!("a request: {error}")));
            }
            REFUSED => return Ok(Self::Refused(text(&body))),
            SECRET => return Ok(Self::Secret(Secret(Zeroizing::new(text(&body))))),
            DONE => Self::Done,
            STATE => {
                let length = fields.u32()? as usize;
                let roster = fields.bytes(length)?;
                let index = fields.u64()?;
                return Ok(Self::State { roster, index, manifest: fields.0 });
            }
            WANTED => Self::Wanted { stream: fields.u64()?, from: fields.u64()?, to: fields.u64()? },
            BEGINS => Self::Begins { stream: fields.u64()?, start: fields.u64()? },
            BATCHES => {
                let stream = fields.u64()?;
                let mut batches = Vec::new();
                while !fields.is_empty() {
                    let length = fields.u32()? as usize;
                    batches.push(fields.bytes(length)?);
                }
                Self::Batches { stream, batches }
            }
            kind => return Err(Error::malformed(format!("the kind {kind} of a frame is unknown"))),
        };
        fields.end()?;
        Ok(frame)
    }
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Disconnected, format!("the connection to the other node broke: {error}"))
}

async fn within<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T> {
    match tokio::time::timeout(SILENCE_MAX, work).await {
        Ok(done) => done.map_err(broken),
        Err(late) => Err(Error::new(ErrorKind::Timeout, format!("the other node does not answer: {late}"))),
    }
}

/// Writes a frame.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> Result<()> {
    let bytes = frame.encode()?;
    within(stream.write_all(&bytes)).await?;
    within(stream.flush()).await
}

/// Reads a frame. Its memory grows with the bytes that arrive.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame> {
    let mut head = [0; 5];
    within(stream.read_exact(&mut head)).await?;
    let [a, b, c, d, kind] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::too_large(format!("a frame of {length} bytes was announced, at most {FRAME_BYTES_MAX}")));
    }
    let mut body = BytesMut::with_capacity(length.min(1 << 20));
    while body.len() < length {
        let left = length - body.len();
        body.reserve(left.min(1 << 20));
        if within((&mut *stream).take(left as u64).read_buf(&mut body)).await? == 0 {
            return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Frame::decode(kind, body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let batches = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
        vec![
            Frame::Request(Request::Describe { node: 3, member: Member::default() }),
            Frame::Request(Request::State { index: 9 }),
            Frame::Done,
            Frame::Refused("no".into()),
            Frame::State { roster: Bytes::from_static(b"nodes"), index: 7, manifest: Bytes::from_static(b"topics") },
            Frame::Wanted { stream: 1, from: 2, to: 3 },
            Frame::Batches { stream: 5, batches },
            Frame::Begins { stream: 5, start: 6 },
            Frame::Request(Request::AdminToken),
            Frame::Secret(Secret(Zeroizing::new("token".to_owned()))),
        ]
    }

    #[tokio::test]
    async fn a_frame_is_read_as_it_was_written() {
        let (mut a, mut b) = tokio::io::duplex(1 << 16);
        for frame in frames() {
            write(&mut a, &frame).await.expect("written");
            assert_eq!(read(&mut b).await.expect("read"), frame);
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", Frame::Secret(Secret(Zeroizing::new("token".to_owned()))));
        assert!(!shown.contains("token"), "{shown}");
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        for (kind, body) in
            [(9, &b""[..]), (DONE, b"x"), (STATE, b"\0\0\0\x09x"), (WANTED, b"12"), (BEGINS, b"1"), (REQUEST, b"{")]
        {
            assert!(Frame::decode(kind, Bytes::copy_from_slice(body)).is_err(), "{kind}");
        }
        let mut announced = &[0xff, 0xff, 0xff, 0xff, DONE][..];
        assert_eq!(read(&mut announced).await.expect_err("too large").kind, ErrorKind::TooLarge);
        let mut cut = &[0, 0, 0, 9, DONE, 1][..];
        assert_eq!(read(&mut cut).await.expect_err("cut").kind, ErrorKind::Disconnected);
    }
}
