//! Protocol between two nodes of a cluster: one connection for each direction, encrypted by its transport.
//!
//! Bytes are frames. All integers are big-endian. A frame is a head of 8 bytes and a body:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | bytes of the body, at most [`FRAME_BYTES_MAX`] |
//! | 4 | 1 | kind: 1 hello, 2 refusal, 3 parts |
//! | 5 | 3 | 0; anything else is refused |
//!
//! The node that connects sends a hello, the other one answers with its own or with a refusal. After that the first one
//! sends parts, each a message of the consensus of one shard: what a node has to say to another at one time is one
//! frame, whatever the number of shards.
//!
//! Unknown kinds, codes and bytes after the last field are refused, so that two versions never misunderstand each other
//! silently. No memory is reserved for a length that is only announced.

mod fields;
mod frame;
mod part;

pub use frame::{FRAME_BYTES_MAX, FRAME_HEAD_BYTES, Frame, Hello, Refusal, VERSION};
pub use part::{Block, Part, Row};
