//! Backups on the wire: a snapshot of a broker, and what is read from it.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Offset, RecordBatch, Result};

use crate::field::{Fields, get_code, get_option, put_option};

/// Action of a request about a backup: the first byte of its body, and of that of its answer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum BackupAction {
    Begin = 1,
    Manifest = 2,
    Read = 3,
    End = 4,
}

impl BackupAction {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Begin, Self::Manifest, Self::Read, Self::End].into_iter().find(|of| *of as u8 == code)
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        get_code(f, "action", Self::from_code)
    }
}

/// Request about a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRequest {
    /// Takes a snapshot of the broker. It ends with the connection, with [`BackupRequest::End`], or when nothing was
    /// read from it for a minute.
    Begin {
        /// `true` to leave out topics in SQLite; otherwise their existence is an error.
        skips_sqlite: bool,
    },
    /// Reads a part of the manifest of a snapshot: its topics and the extents of their partitions.
    Manifest {
        /// Number of the snapshot.
        backup: u64,
        /// Position of the part in the manifest, in bytes.
        at: u64,
    },
    /// Reads batches of a partition in a snapshot.
    Read {
        /// Number of the snapshot.
        backup: u64,
        /// Id of the topic (32 bits) and number of the partition (32 bits).
        stream: u64,
        /// Offset from which the batches are read.
        from: Offset,
        /// Maximum bytes of the batches together; the first one is returned whole even if it is larger.
        bytes_max: u32,
    },
    /// Ends a snapshot.
    End {
        /// Number of the snapshot.
        backup: u64,
    },
}

/// Key of the secrets in a broker's topics.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey(pub [u8; 32]);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// Snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupBegun {
    /// Number of the snapshot.
    pub backup: u64,
    /// Number of the broker's data, from which the ids of its topics are made. A broker that is restored from a backup
    /// has the number of the original one.
    pub source: u64,
    /// Time of the snapshot by the broker's clock, in ms since 1970.
    pub taken_ms: u64,
    /// Bytes of the manifest.
    pub manifest_bytes: u64,
    /// Bytes of the files with the records, approximately.
    pub bytes: u64,
    /// Key of the secrets in the broker's topics, if it has one.
    pub seal_key: Option<SealKey>,
}

/// Answer about a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupResponse {
    /// Answers [`BackupRequest::Begin`].
    Begun(BackupBegun),
    /// Answers [`BackupRequest::Manifest`]; empty at the end.
    Manifest(Bytes),
    /// Answers [`BackupRequest::Read`]; empty at the end of the partition.
    Batches(Vec<RecordBatch>),
    /// Answers [`BackupRequest::End`].
    Ended,
}

impl BackupRequest {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Begin { skips_sqlite } => {
                b.put_u8(BackupAction::Begin as u8);
                b.put_u8(u8::from(*skips_sqlite));
            }
            Self::Manifest { backup, at } => {
                b.put_u8(BackupAction::Manifest as u8);
                b.put_u64(*backup);
                b.put_u64(*at);
            }
            Self::Read { backup, stream, from, bytes_max } => {
                b.put_u8(BackupAction::Read as u8);
                b.put_u64(*backup);
                b.put_u64(*stream);
                b.put_u64(*from);
                b.put_u32(*bytes_max);
            }
            Self::End { backup } => {
                b.put_u8(BackupAction::End as u8);
                b.put_u64(*backup);
            }
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match BackupAction::get(f)? {
            BackupAction::Begin => Self::Begin { skips_sqlite: f.bool()? },
            BackupAction::Manifest => Self::Manifest { backup: f.u64()?, at: f.u64()? },
            BackupAction::Read => {
                Self::Read { backup: f.u64()?, stream: f.u64()?, from: f.u64()?, bytes_max: f.u32()? }
            }
            BackupAction::End => Self::End { backup: f.u64()? },
        })
    }
}

impl BackupResponse {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Begun(begun) => {
                b.put_u8(BackupAction::Begin as u8);
                b.put_u64(begun.backup);
                b.put_u64(begun.source);
                b.put_u64(begun.taken_ms);
                b.put_u64(begun.manifest_bytes);
                b.put_u64(begun.bytes);
                put_option(b, begun.seal_key.as_ref(), |b, key| b.put_slice(&key.0));
            }
            Self::Manifest(part) => {
                b.put_u8(BackupAction::Manifest as u8);
                b.put_u32(part.len() as u32);
                b.put_slice(part);
            }
            Self::Batches(batches) => {
                b.put_u8(BackupAction::Read as u8);
                b.put_u32(batches.len() as u32);
                for batch in batches {
                    b.put_u32(batch.len() as u32);
                    b.put_slice(batch.bytes());
                }
            }
            Self::Ended => b.put_u8(BackupAction::End as u8),
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match BackupAction::get(f)? {
            BackupAction::Begin => Self::Begun(BackupBegun {
                backup: f.u64()?,
                source: f.u64()?,
                taken_ms: f.u64()?,
                manifest_bytes: f.u64()?,
                bytes: f.u64()?,
                seal_key: get_option(f, |f| {
                    let mut key = [0; 32];
                    key.copy_from_slice(&f.bytes(32)?);
                    Ok(SealKey(key))
                })?,
            }),
            BackupAction::Manifest => {
                let length = f.u32()? as usize;
                Self::Manifest(f.bytes(length)?)
            }
            BackupAction::Read => Self::Batches(f.list(4, |f| {
                let length = f.u32()? as usize;
                RecordBatch::parse(f.bytes(length)?)
            })?),
            BackupAction::End => Self::Ended,
        })
    }
}
