//! Reference protocol of `bench rpc`: length-delimited frames, as in nacelle's own load generator, so that either
//! client can drive either server.
//!
//! | at | bytes | field, little-endian |
//! |---|---|---|
//! | 0 | 4 | length of the rest of the frame: 20 plus the body |
//! | 4 | 8 | request id, repeated in the response |
//! | 12 | 8 | opcode: 1 |
//! | 20 | 4 | flags: 1 start, 2 end, 4 error |
//! | 24 | | body |

use std::rc::Rc;

use bytes::Bytes;
use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};

/// Bytes of a frame before its body.
pub const HEAD_BYTES: usize = 24;
/// Bytes of a frame that its length includes in addition to the body.
const COUNTED_HEAD_BYTES: usize = HEAD_BYTES - 4;
/// Only valid opcode: requests a response of the length with which the server was started.
pub const OPCODE: u64 = 1;

pub const START: u32 = 1;
pub const END: u32 = 2;
pub const ERROR: u32 = 4;

/// Fields before the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub body_bytes: usize,
    pub id: u64,
    pub opcode: u64,
    pub flags: u32,
}

impl Head {
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&((self.body_bytes + COUNTED_HEAD_BYTES) as u32).to_le_bytes());
        bytes[4..12].copy_from_slice(&self.id.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.opcode.to_le_bytes());
        bytes[20..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// Parses the head at the beginning of `bytes`; `None` if it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let Some(body_bytes) = (u32_at(0) as usize).checked_sub(COUNTED_HEAD_BYTES) else {
            return Err(Fault::malformed(format!("the length of a frame is at least {COUNTED_HEAD_BYTES}")));
        };
        Ok(Some(Self { body_bytes, id: u64_at(4), opcode: u64_at(12), flags: u32_at(20) }))
    }
}

/// Protocol with requests of whole frames.
#[derive(Clone, Debug, Default)]
pub struct Rpc;

impl Protocol for Rpc {
    type Codec = ();
    type Request<'a> = &'a [u8];
    type Message<'a> = Never;
    type Response = Bytes;
    /// Id and opcode of the request.
    type Tag = (u64, u64);

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        let Some(head) = Head::parse(input.bytes())? else {
            return Ok(Decoded::More(HEAD_BYTES));
        };
        let whole = HEAD_BYTES + head.body_bytes;
        if input.len() < whole {
            return Ok(Decoded::More(whole));
        }
        Ok(Decoded::Request((head.id, head.opcode), &input.take(whole)[HEAD_BYTES..]))
    }

    fn encode(&self, _codec: &mut (), (id, opcode): (u64, u64), body: Bytes, out: &mut Out) {
        out.put(&Head { body_bytes: body.len(), id, opcode, flags: START | END }.encode());
        out.put_bytes(body);
    }

    fn encode_fault(&self, _codec: &mut (), tag: Option<(u64, u64)>, fault: &Fault, out: &mut Out) {
        let (id, opcode) = tag.unwrap_or_default();
        out.put(&Head { body_bytes: fault.message.len(), id, opcode, flags: START | END | ERROR }.encode());
        out.put(fault.message.as_bytes());
    }
}
