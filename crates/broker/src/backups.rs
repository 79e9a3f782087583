//! Backups: a snapshot of the data directory, from which a client copies while the broker goes on.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use engine::{Error, ErrorKind, Offset, RecordBatch, Result};
use storage::{Snapshot, Store};

use crate::core::Core;

/// Maximum bytes of one part of a manifest.
const MANIFEST_PART_BYTES: usize = 1 << 20;
/// Maximum bytes of the batches of one read, unless the first one is larger.
const READ_BYTES_MAX: usize = 1 << 20;

/// Backup that has begun.
pub struct BegunBackup {
    /// Number of the backup, which differs from that of every other one.
    pub number: u64,
    /// Number from which the ids of topics are made.
    pub source: u64,
    /// Time of the snapshot, in ms since 1970.
    pub taken_ms: u64,
    /// Bytes of its manifest.
    pub manifest_bytes: u64,
    /// Bytes of the files with its records, approximately.
    pub bytes: u64,
    /// Key of the secrets in topics, if there is one.
    pub seal_key: Option<[u8; 32]>,
}

impl Core {
    /// Takes a snapshot of everything in the data directory, at one position of its log. `skips_sqlite`: leaves out
    /// topics in SQLite, which otherwise are an error.
    pub async fn begin_backup(&self, skips_sqlite: bool) -> Result<BegunBackup> {
        let begin = async {
            self.check_leads()?;
            let store = self.shared_store().ok_or_else(|| {
                let message = "this broker has no data directory, so there is nothing to back up: start it with --data";
                Error::new(ErrorKind::Unsupported, message)
            })?;
            self.backups().end_idle();
            let of_store = store.clone();
            let (snapshot, seal_key) = aside(move || take(&of_store, skips_sqlite)).await?;
            let taken_ms = self.now_ms();
            // A new hasher has a random key.
            let number = RandomState::new().hash_one(taken_ms);
            let bytes = snapshot.bytes();
            self.backups().add(number, snapshot);
            let manifest_bytes = self.backups().get(number)?.manifest.len() as u64;
            Ok(BegunBackup { number, source: self.ids(), taken_ms, manifest_bytes, bytes, seal_key })
        };
        self.audited("begin backup", "", begin).await
    }

    /// Returns a part of the manifest of a backup from a position on; nothing at its end.
    pub fn read_backup_manifest(&self, number: u64, at: u64) -> Result<Bytes> {
        let manifest = self.backups().get(number)?.manifest.clone();
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(manifest.len());
        Ok(manifest.slice(from..manifest.len().min(from + MANIFEST_PART_BYTES)))
    }

    /// Reads batches of a partition of a backup: see [`Snapshot::read`].
    pub async fn read_backup(
        &self,
        number: u64,
        stream: u64,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Vec<RecordBatch>> {
        self.check_leads()?;
        let copy = self.backups().get(number)?;
        let bytes_max = bytes_max.clamp(1, READ_BYTES_MAX);
        let batches = aside(move || copy.snapshot.read(stream, from, bytes_max)).await?;
        self.backups().bytes.add(batches.iter().map(|batch| batch.len() as u64).sum());
        Ok(batches)
    }

    /// Ends a backup, if it has not ended yet.
    pub fn end_backup(&self, number: u64) {
        self.backups().end(number);
    }
}

fn take(store: &Arc<Store>, skips_sqlite: bool) -> Result<(Snapshot, Option<[u8; 32]>)> {
    let snapshot = store.snapshot(skips_sqlite)?;
    // A key that is created later is not needed by what the snapshot has.
    let seal_key = store.seal_key()?;
    Ok((snapshot, seal_key))
}

/// Runs work that may block on another thread.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, format!("the backup was interrupted: {e}"))))
}
