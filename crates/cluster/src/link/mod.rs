//! Protocol between two nodes of a cluster: one connection for each direction, encrypted by its transport.
//!
//! Bytes are frames. All integers are big-endian. A frame is a head of 8 bytes and a body:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | bytes of the body, at most [`FRAME_BYTES_MAX`] |
//! | 4 | 1 | kind: 1 hello, 2 refusal, 3 parts; on a connection for joining also 4 request, 5 admission, 6 elsewhere |
//! | 5 | 3 | 0; anything else is refused |
//!
//! The node that connects sends a hello, the other one answers with its own or with a refusal. A hello is the version
//! of the protocol (2), the cluster (16), the node (8), the random number of its process (8), the version of the
//! program as a text, and the purpose of the connection (1):
//!
//! | purpose | | after the hellos |
//! |---|---|---|
//! | 1 | beats | parts without entries, from the node that has connected |
//! | 2 | entries | parts with entries, and those that replace a log |
//! | 3 | bulk | bytes of a catch-up, in both directions |
//! | 4 | splice | bytes of a client; the hello continues with a door (1), the client's address, an owner (1) |
//! | 5 | join | one request to join, one answer; the program has no certificate, and cluster and node are 0 |
//!
//! A refusal is a text for people, and 1 (1) if the other node was removed from the cluster; otherwise nothing follows.
//! A text is the number of its bytes (2) and UTF-8. The owner is 1 if the client is a process of the broker's user,
//! else 0. A part is a message of the consensus of one shard: what a node has
//! to say to another at one time is one frame, whatever the number of shards. A frame without parts says that the node
//! is alive.
//!
//! Unknown kinds, codes and bytes after the last field are refused, so that two versions never misunderstand each other
//! silently. No memory is reserved for a length that is only announced.

pub(crate) mod fields;
mod frame;
pub(crate) mod part;

pub(crate) use fields::Fields;
pub use frame::{FRAME_BYTES_MAX, FRAME_HEAD_BYTES, Frame, Hello, Purpose, Refusal, Spliced, VERSION};
pub(crate) use frame::{REFUSAL, TEXT_BYTES_MAX, checked_length, head, put_text};
pub use part::{Block, Part, Row};
