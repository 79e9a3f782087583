//! Maps requests about backups to calls of the broker.

use std::sync::Arc;

use broker::{Broker, FREE_BYTES};
use engine::{RecordBatch, Result};
use wire::backups::{BackupBegun, SealKey};
use wire::{BackupRequest, BackupResponse, Response};

use super::codec::Answer;
use super::connection::Shared;
use super::room::Room;

/// Answers a request. The caller has checked that the client may copy everything.
pub(super) async fn answer(
    broker: &Arc<Broker>,
    room: &Room,
    shared: &Shared,
    request: BackupRequest,
) -> Result<Answer> {
    let answer = match request {
        BackupRequest::Begin { skips_sqlite } => {
            let begun = broker.begin_backup(skips_sqlite).await?;
            shared.backups.lock().push(begun.number);
            BackupResponse::Begun(BackupBegun {
                backup: begun.number,
                source: begun.source,
                taken_ms: begun.taken_ms,
                manifest_bytes: begun.manifest_bytes,
                bytes: begun.bytes,
                seal_key: begun.seal_key.map(SealKey),
            })
        }
        BackupRequest::Manifest { backup, at } => BackupResponse::Manifest(broker.read_backup_manifest(backup, at)?),
        BackupRequest::Read { backup, stream, from, bytes_max } => {
            let read = || broker.read_backup(backup, stream, from, bytes_max as usize);
            // Batches in a file are held from the read on.
            let turn = room.read_turn().await;
            let mut batches = read().await?;
            let bytes: usize = batches.iter().map(RecordBatch::len).sum();
            if bytes <= FREE_BYTES {
                return Ok(of(BackupResponse::Batches(batches)));
            }
            let held = match room.try_take(bytes) {
                Some(held) => Some(held),
                // While it waits for memory it holds no batches; they are the same when they are read again.
                None => {
                    drop((batches, turn));
                    let held = room.take(bytes).await?;
                    batches = read().await?;
                    held
                }
            };
            let response = Response::Backup(BackupResponse::Batches(batches));
            return Ok(match held {
                Some(held) => Answer::Charged(response, held),
                None => Answer::Response(response),
            });
        }
        BackupRequest::End { backup } => {
            broker.end_backup(backup);
            shared.backups.lock().retain(|number| *number != backup);
            BackupResponse::Ended
        }
    };
    Ok(of(answer))
}

fn of(response: BackupResponse) -> Answer {
    Answer::Response(Response::Backup(response))
}
