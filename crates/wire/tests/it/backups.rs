//! Test vectors of backups.

use bytes::Bytes;
use engine::RecordBatch;
use wire::backups::{BackupBegun, SealKey};
use wire::{BackupRequest, BackupResponse};

pub fn requests() -> Vec<(&'static str, BackupRequest)> {
    vec![
        ("backup_begin", BackupRequest::Begin { skips_sqlite: false }),
        ("backup_begin_without_sqlite", BackupRequest::Begin { skips_sqlite: true }),
        ("backup_manifest", BackupRequest::Manifest { backup: 7, at: 1 << 20 }),
        ("backup_read", BackupRequest::Read { backup: 7, stream: 5 << 32 | 3, from: 1 << 40, bytes_max: 1 << 20 }),
        ("backup_end", BackupRequest::End { backup: 7 }),
    ]
}

pub fn responses(batch: RecordBatch) -> Vec<(&'static str, BackupResponse)> {
    let begun = BackupBegun {
        backup: 7,
        source: 0x0123_4567_89ab_cdef,
        taken_ms: 1_700_000_000_000,
        manifest_bytes: 4096,
        bytes: 1 << 40,
        seal_key: Some(SealKey([0xab; 32])),
    };
    vec![
        ("backup_begun", BackupResponse::Begun(begun.clone())),
        ("backup_begun_without_a_key", BackupResponse::Begun(BackupBegun { seal_key: None, ..begun })),
        ("backup_manifest", BackupResponse::Manifest(Bytes::from_static(b"topics"))),
        ("backup_batches", BackupResponse::Batches(vec![batch])),
        ("backup_batches_at_the_end", BackupResponse::Batches(Vec::new())),
        ("backup_ended", BackupResponse::Ended),
    ]
}
