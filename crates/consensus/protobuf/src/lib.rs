//! The names of the crate `protobuf` 2 that the crate `raft` uses.
//!
//! `raft` asks a message for its size, and a change of members for its bytes. Nothing else of protocol buffers is used:
//! messages between nodes have the encoding of `cluster`. This crate replaces the published one (`[patch.crates-io]`),
//! which has a parser with a known vulnerability (RUSTSEC-2024-0437).

use std::fmt;

/// Value with an encoding.
pub trait Message {
    /// Returns the size by which the engine limits messages and entries that are not committed, in bytes.
    fn compute_size(&self) -> u32;

    /// Encodes the value.
    fn write_to_bytes(&self) -> ProtobufResult<Vec<u8>>;

    /// Replaces the value by the one that `bytes` encodes.
    fn merge_from_bytes(&mut self, bytes: &[u8]) -> ProtobufResult<()>;
}

/// Error of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufError {
    /// The bytes encode no value of the type.
    Malformed,
    /// The type has no encoding.
    NotEncoded,
}

pub type ProtobufResult<T> = Result<T, ProtobufError>;

impl fmt::Display for ProtobufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the bytes encode no value of this type",
            Self::NotEncoded => "this type has no encoding",
        })
    }
}

impl std::error::Error for ProtobufError {}
