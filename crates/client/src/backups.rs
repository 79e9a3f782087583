//! Backups: a snapshot of a broker, and what is read from it.

use bytes::Bytes;
use engine::{Error, Offset, RecordBatch, Result};
use wire::backups::{BackupBegun, BackupRequest, BackupResponse};
use wire::{Request, Response};

use crate::client::Client;
use crate::link::unexpected;
use crate::settings::ClientSettings;

/// Factor over the usual time limit for the beginning of a backup, which writes pending records to their files.
const BEGIN_FACTOR: u32 = 10;

impl Client {
    /// Takes a snapshot of everything in the broker's data directory. It ends with the connection of this client, or
    /// with [`Client::end_backup`]. The connection has to be private, since the secrets of the broker are in it.
    /// `skips_sqlite`: leaves out topics in SQLite, whose existence is an error otherwise.
    pub async fn begin_backup(&self, skips_sqlite: bool) -> Result<BackupBegun> {
        if !self.session.publish.connection(0).await?.is_private {
            return Err(Error::invalid("a backup is sent to another machine only over TLS: use quic:// or tls://"));
        }
        let ClientSettings { request_timeout, .. } = self.session.settings();
        let request = Request::Backup(BackupRequest::Begin { skips_sqlite });
        match self.session.call_within(&request, *request_timeout * BEGIN_FACTOR).await? {
            Response::Backup(BackupResponse::Begun(begun)) => Ok(begun),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads a part of the manifest of a backup, from a position on; empty at its end.
    pub async fn read_backup_manifest(&self, backup: u64, at: u64) -> Result<Bytes> {
        match self.of_backup(BackupRequest::Manifest { backup, at }).await? {
            BackupResponse::Manifest(part) => Ok(part),
            other => Err(unexpected(&Response::Backup(other))),
        }
    }

    /// Reads batches of a partition of a backup, up to about `bytes_max` bytes; empty at its end.
    pub async fn read_backup(
        &self,
        backup: u64,
        stream: u64,
        from: Offset,
        bytes_max: u32,
    ) -> Result<Vec<RecordBatch>> {
        match self.of_backup(BackupRequest::Read { backup, stream, from, bytes_max }).await? {
            BackupResponse::Batches(batches) => Ok(batches),
            other => Err(unexpected(&Response::Backup(other))),
        }
    }

    /// Ends a backup: the broker need not keep its files any more.
    pub async fn end_backup(&self, backup: u64) -> Result<()> {
        match self.of_backup(BackupRequest::End { backup }).await? {
            BackupResponse::Ended => Ok(()),
            other => Err(unexpected(&Response::Backup(other))),
        }
    }

    async fn of_backup(&self, request: BackupRequest) -> Result<BackupResponse> {
        match self.session.call(&Request::Backup(request)).await? {
            Response::Backup(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}
