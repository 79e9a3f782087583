//! Frames, and the hello with which two nodes recognise each other.

use bytes::{BufMut, Bytes, BytesMut};
use consensus::NodeId;
use engine::limits::BATCH_BYTES_MAX;
use engine::{Error, ErrorKind, Result};

use super::fields::Fields;
use super::part::{self, Part};

/// Version of this protocol. Nodes with different versions refuse each other.
pub const VERSION: u16 = 1;
/// Bytes of a frame before its body.
pub const FRAME_HEAD_BYTES: usize = 8;
/// Maximum bytes of a frame's body: the largest batch, and the blocks that the messages of all shards bring with it.
pub const FRAME_BYTES_MAX: usize = BATCH_BYTES_MAX + (8 << 20);
/// Maximum bytes of a frame before both nodes know each other.
const HELLO_BYTES_MAX: usize = 1024;
/// Maximum bytes of a text in a hello or a refusal.
pub(crate) const TEXT_BYTES_MAX: usize = 200;

const HELLO: u8 = 1;
pub(crate) const REFUSAL: u8 = 2;
const PARTS: u8 = 3;

/// Code after the reason of a refusal; most have none.
const REMOVED: u8 = 1;

const BEATS: u8 = 1;
const ENTRIES: u8 = 2;
const BULK: u8 = 3;
const SPLICE: u8 = 4;
const JOIN: u8 = 5;

/// Use of a connection, chosen by the node that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Messages of the consensus that bring no entries. They have a separate connection, so that no heartbeat waits
    /// behind megabytes of entries.
    Beats,
    /// Messages of the consensus with entries, and those that replace a log: their order matters.
    Entries,
    /// Bytes of a catch-up.
    Bulk,
    /// Bytes of a client's connection that another node has accepted.
    Splice(Spliced),
    /// Request of a program that is no node of the cluster yet. It has no certificate.
    Join,
}

/// Connection of a client, as the node that accepted it describes it to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// Number of the door at which the client has connected.
    pub door: u8,
    /// Address of the client.
    pub peer: String,
    /// `true` if the client is a process of the user that runs the broker.
    pub is_owner: bool,
}

/// Identity of a node, which both nodes send before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of the cluster; 0 in the hello of a program that wants to join.
    pub cluster: u128,
    /// Number of the node; 0 in the hello of a program that wants to join.
    pub node: NodeId,
    /// Random number of the node's process: two processes with one node's number are told apart by it.
    pub process: u64,
    /// Version of the program, for people.
    pub program: String,
    /// Use of the connection; the answer repeats it.
    pub purpose: Purpose,
}

/// Reason why a node ends a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// `true` if the other node was removed from the cluster: it cannot come back under its number.
    pub is_removed: bool,
}

impl Refusal {
    /// Creates a refusal of a connection that may be possible later.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_removed: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello(Hello),
    Refusal(Refusal),
    Parts(Vec<Part>),
}

impl Frame {
    /// Encodes the frame. The bodies of rows are not copied; the chunks are to be written one after the other.
    pub fn encode(&self) -> Vec<Bytes> {
        let (kind, mut chunks) = match self {
            Self::Hello(hello) => (HELLO, vec![encode_hello(hello)]),
            Self::Refusal(Refusal { reason, is_removed }) => {
                let mut body = BytesMut::new();
                put_text(&mut body, reason);
                if *is_removed {
                    body.put_u8(REMOVED);
                }
                (REFUSAL, vec![body.freeze()])
            }
            Self::Parts(parts) => (PARTS, part::encode(parts)),
        };
        let length: usize = chunks.iter().map(Bytes::len).sum();
        chunks.insert(0, Bytes::copy_from_slice(&head(length, kind)));
        chunks
    }

    /// Reads a head; returns the bytes of the body. `is_known` is `true` once both nodes have said who they are.
    pub fn body_bytes(head: [u8; FRAME_HEAD_BYTES], is_known: bool) -> Result<usize> {
        let max = if is_known { FRAME_BYTES_MAX } else { HELLO_BYTES_MAX };
        checked_length(head, max, |kind| matches!((kind, is_known), (REFUSAL, _) | (HELLO, false) | (PARTS, true)))
    }

    /// Decodes a body of which the head has been read. `from` and `to` are the nodes of the connection.
    pub fn decode(kind: u8, body: Bytes, from: NodeId, to: NodeId) -> Result<Self> {
        match kind {
            HELLO => decode_hello(Fields(body)).map(Self::Hello),
            REFUSAL => {
                let mut fields = Fields(body);
                let reason = fields.text(TEXT_BYTES_MAX)?;
                let is_removed = !fields.is_empty();
                if is_removed {
                    match fields.u8()? {
                        REMOVED => {}
                        code => return Err(Error::malformed(format!("the code {code} of a refusal is unknown"))),
                    }
                }
                fields.end()?;
                Ok(Self::Refusal(Refusal { reason, is_removed }))
            }
            PARTS => part::decode(Fields(body), from, to).map(Self::Parts),
            kind => Err(Error::malformed(format!("the kind {kind} of a frame is unknown"))),
        }
    }
}

/// Returns the head of a frame whose body has this length.
pub(crate) fn head(length: usize, kind: u8) -> [u8; FRAME_HEAD_BYTES] {
    let [a, b, c, d] = (length as u32).to_be_bytes();
    [a, b, c, d, kind, 0, 0, 0]
}

/// Reads a head; returns the bytes of the body, at most `max`, of a kind that is expected at this point.
pub(crate) fn checked_length(
    head: [u8; FRAME_HEAD_BYTES],
    max: usize,
    is_expected: impl Fn(u8) -> bool,
) -> Result<usize> {
    let [a, b, c, d, kind, reserved @ ..] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if reserved != [0; 3] || !is_expected(kind) {
        return Err(Error::malformed("the other side is no node of a cluster, or one of another version"));
    }
    if length > max {
        return Err(Error::too_large(format!("a frame of {length} bytes was announced, at most {max} are possible")));
    }
    Ok(length)
}

fn encode_hello(hello: &Hello) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u16(VERSION);
    body.put_u128(hello.cluster);
    body.put_u64(hello.node);
    body.put_u64(hello.process);
    put_text(&mut body, &hello.program);
    match &hello.purpose {
        Purpose::Beats => body.put_u8(BEATS),
        Purpose::Entries => body.put_u8(ENTRIES),
        Purpose::Bulk => body.put_u8(BULK),
        Purpose::Splice(Spliced { door, peer, is_owner }) => {
            body.put_u8(SPLICE);
            body.put_u8(*door);
            put_text(&mut body, peer);
            body.put_u8(u8::from(*is_owner));
        }
        Purpose::Join => body.put_u8(JOIN),
    }
    body.freeze()
}

fn decode_hello(mut fields: Fields) -> Result<Hello> {
    let version = fields.u16()?;
    if version != VERSION {
        let message = format!("the node speaks version {version} of the cluster's protocol, this one {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let hello = Hello {
        cluster: fields.u128()?,
        node: fields.u64()?,
        process: fields.u64()?,
        program: fields.text(TEXT_BYTES_MAX)?,
        purpose: purpose(&mut fields)?,
    };
    if hello.node == 0 && hello.purpose != Purpose::Join {
        return Err(Error::malformed("no node has the number 0"));
    }
    fields.end()?;
    Ok(hello)
}

fn purpose(fields: &mut Fields) -> Result<Purpose> {
    Ok(match fields.u8()? {
        BEATS => Purpose::Beats,
        ENTRIES => Purpose::Entries,
        BULK => Purpose::Bulk,
        SPLICE => {
            let (door, peer) = (fields.u8()?, fields.text(TEXT_BYTES_MAX)?);
            Purpose::Splice(Spliced { door, peer, is_owner: fields.flags(1)? == 1 })
        }
        JOIN => Purpose::Join,
        code => return Err(Error::malformed(format!("the purpose {code} of a connection is unknown"))),
    })
}

/// Writes a text; one that is too long is cut.
pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.put_u16(text.len() as u16);
    out.put_slice(text.as_bytes());
}
