//! Messages of a connection for joining. They are frames ([`crate::link`]), one in each direction after the hellos:
//!
//! | kind | | fields |
//! |---|---|---|
//! | 4 | request | token, advertised address, version of the program: texts; format of the log (4) if not 1 |
//! | 5 | admission | cluster (16), node (8), ids (8), certificate and key of the authority, seal key (32), nodes |
//! | 6 | elsewhere | address of the leader |
//! | 2 | refusal | reason |
//!
//! A certificate or key is the number of its bytes (2) and the bytes. Nodes are a list of numbers (8) and addresses, in
//! ascending order.

use bytes::{BufMut, Bytes, BytesMut};
use engine::{Error, Result};
use zeroize::Zeroizing;

use super::token::TOKEN_BYTES_MAX;
use crate::identity::{ADDRESS_BYTES_MAX, Addresses, NODES_MAX};
use crate::link::{FRAME_HEAD_BYTES, Fields, Frame, REFUSAL, Refusal, TEXT_BYTES_MAX, checked_length, head, put_text};
use consensus::NodeId;

/// Maximum bytes of a message.
pub const JOIN_BYTES_MAX: usize = 96 << 10;

const REQUEST: u8 = 4;
const GRANTED: u8 = 5;
const NOT_LEADER: u8 = 6;

/// Request to join.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// Token, as it was printed.
    pub token: String,
    pub advertise: String,
    pub program: String,
    /// Version of the log's rows that the program reads.
    pub format: u32,
}

/// Answer to a program that may join or has to go elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    Granted(Granted),
    NotLeader { address: String },
}

/// Everything that makes a program a node of the cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Granted {
    pub cluster: u128,
    pub node: NodeId,
    pub ids: u64,
    /// Certificate of the authority.
    pub certificate: Vec<u8>,
    /// Private key of the authority, in PKCS 8.
    pub key: Zeroizing<Vec<u8>>,
    pub seal_key: Zeroizing<[u8; 32]>,
    pub nodes: Addresses,
}

/// Reads the head of a request; returns the bytes of its body.
pub(super) fn request_bytes(head: [u8; FRAME_HEAD_BYTES]) -> Result<usize> {
    checked_length(head, JOIN_BYTES_MAX, |kind| kind == REQUEST)
}

/// Reads the head of an answer; returns the bytes of its body.
pub(super) fn answer_bytes(head: [u8; FRAME_HEAD_BYTES]) -> Result<usize> {
    checked_length(head, JOIN_BYTES_MAX, |kind| matches!(kind, GRANTED | NOT_LEADER | REFUSAL))
}

impl Request {
    pub fn encode(&self) -> Vec<Bytes> {
        let mut body = BytesMut::new();
        put_bytes(&mut body, self.token.as_bytes());
        put_bytes(&mut body, self.advertise.as_bytes());
        put_text(&mut body, &self.program);
        if self.format != 1 {
            body.put_u32(self.format);
        }
        frame(REQUEST, body)
    }

    pub fn decode(kind: u8, body: Bytes) -> Result<Self> {
        if kind != REQUEST {
            return Err(Error::malformed(format!("the kind {kind} of a request is unknown")));
        }
        let mut fields = Fields(body);
        let request = Self {
            token: fields.text(TOKEN_BYTES_MAX)?,
            advertise: fields.text(ADDRESS_BYTES_MAX)?,
            program: fields.text(TEXT_BYTES_MAX)?,
            format: if fields.is_empty() { 1 } else { later_format(fields.u32()?)? },
        };
        fields.end()?;
        Ok(request)
    }
}

/// Checks a format that a request names: format 1 is that of a request without one.
fn later_format(format: u32) -> Result<u32> {
    if format < 2 {
        return Err(Error::malformed(format!("a request names no format {format}")));
    }
    Ok(format)
}

impl Answer {
    pub fn encode(&self) -> Vec<Bytes> {
        let mut body = BytesMut::new();
        let kind = match self {
            Self::Granted(granted) => {
                let Granted { cluster, node, ids, certificate, key, seal_key, nodes } = granted;
                body.put_u128(*cluster);
                body.put_u64(*node);
                body.put_u64(*ids);
                put_bytes(&mut body, certificate);
                put_bytes(&mut body, key);
                body.put_slice(&seal_key[..]);
                body.put_u16(nodes.len() as u16);
                for (node, address) in nodes {
                    body.put_u64(*node);
                    put_bytes(&mut body, address.as_bytes());
                }
                GRANTED
            }
            Self::NotLeader { address } => {
                put_bytes(&mut body, address.as_bytes());
                NOT_LEADER
            }
        };
        frame(kind, body)
    }

    /// Decodes an answer, or the refusal that came in its place.
    pub fn decode(kind: u8, body: Bytes) -> Result<Result<Self, Refusal>> {
        let mut fields = Fields(body);
        let answer = match kind {
            GRANTED => Self::Granted(granted(&mut fields)?),
            NOT_LEADER => Self::NotLeader { address: fields.text(ADDRESS_BYTES_MAX)? },
            REFUSAL => {
                return match Frame::decode(REFUSAL, fields.0, 0, 0)? {
                    Frame::Refusal(refusal) => Ok(Err(refusal)),
                    Frame::Hello(_) | Frame::Parts(_) => Err(Error::malformed("it is no refusal")),
                };
            }
            kind => return Err(Error::malformed(format!("the kind {kind} of an answer is unknown"))),
        };
        fields.end()?;
        Ok(Ok(answer))
    }
}

fn granted(fields: &mut Fields) -> Result<Granted> {
    let (cluster, node, ids) = (fields.u128()?, fields.u64()?, fields.u64()?);
    let certificate = bytes(fields)?.to_vec();
    let key = Zeroizing::new(bytes(fields)?.to_vec());
    let mut seal_key = Zeroizing::new([0; 32]);
    seal_key.copy_from_slice(&fields.bytes(32)?);
    let nodes = fields.list(|fields| Ok((fields.u64()?, fields.text(ADDRESS_BYTES_MAX)?)))?;
    if node == 0 || nodes.len() > NODES_MAX || !nodes.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Err(Error::malformed("the nodes of an admission are not in order, or too many"));
    }
    Ok(Granted { cluster, node, ids, certificate, key, seal_key, nodes })
}

fn bytes(fields: &mut Fields) -> Result<Bytes> {
    let length = usize::from(fields.u16()?);
    fields.bytes(length)
}

/// Writes bytes of less than 64 KiB, with their number.
fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

fn frame(kind: u8, body: BytesMut) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(&head(body.len(), kind)), body.freeze()]
}
