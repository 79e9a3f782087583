//! Catch-up of a node that is too far behind for the log: it fetches from the leader what its partitions miss.
//!
//! The leader sends the list of its topics and the extent of their partitions. The node asks for each partition from
//! the end of its own copy on, so that one that was away for an hour gets an hour. Batches are applied like committed
//! entries, which have no effect a second time: the log that follows may overlap with what was fetched. A catch-up that
//! breaks off has only added committed records.
//!
//! The leader goes on meanwhile. Records that it appends after its list are not sent: they come with the log. It says
//! which records it has deleted, and the node begins after them: the deletion is in the log that follows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use consensus::Index;
use engine::{Error, ErrorKind, Offset, Result};
use storage::{EntryKind, Manifest, Store};
use tokio::io::{AsyncRead, AsyncWrite};

use super::bulk::{Frame, Request, read, write};
use crate::roster::{FORMAT, Roster};
use crate::shard::Shard;

/// Bytes of the batches in one frame.
const BATCHES_BYTES: usize = 1 << 20;

/// Fetches the state up to an index of the log or later. The store includes it durably afterwards. Returns the index,
/// and the nodes there.
pub async fn fetch<S>(stream: &mut S, shard: &Arc<Shard>, index: Index) -> Result<(Index, Roster)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    write(stream, &Frame::Request(Request::State { index })).await?;
    let (roster, index, manifest) = match read(stream).await? {
        Frame::State { roster, index, manifest } => (Roster::decode(roster)?, index, Manifest::decode(&manifest)?),
        frame => return Err(unexpected(frame)),
    };
    roster.check_format(FORMAT)?;
    let manifest = Arc::new(manifest);
    let wanted = on_disk(shard, &manifest, Store::begin_install).await?;
    let progress = shard.progress();
    progress.fetched.store(0, Ordering::Relaxed);
    progress.wanted.store(wanted.iter().map(|part| part.to - part.from).sum(), Ordering::Relaxed);
    let mut bytes = 0;
    for part in &wanted {
        let mut at = part.from;
        write(stream, &Frame::Wanted { stream: part.stream, from: part.from, to: part.to }).await?;
        while at < part.to {
            let batches = match read(stream).await? {
                Frame::Batches { stream, batches } if stream == part.stream && !batches.is_empty() => batches,
                Frame::Begins { stream, start } if stream == part.stream && (at + 1..=part.to).contains(&start) => {
                    begin_after(shard, &manifest, stream, start).await?;
                    at = start;
                    continue;
                }
                frame => return Err(unexpected(frame)),
            };
            let fetched: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
            bytes += fetched;
            progress.bytes.fetch_add(fetched, Ordering::Relaxed);
            let before = at;
            at = apply(shard, part.stream, batches).await?;
            progress.fetched.fetch_add(at.saturating_sub(before), Ordering::Relaxed);
        }
    }
    write(stream, &Frame::Done).await?;
    on_disk(shard, &manifest, Store::end_install).await?;
    tracing::info!(partitions = wanted.len(), bytes, index, "caught up with the leader");
    Ok((index, roster))
}

async fn on_disk<T: Send + 'static>(
    shard: &Arc<Shard>,
    manifest: &Arc<Manifest>,
    work: fn(&Store, &Manifest) -> Result<T>,
) -> Result<T> {
    let (shard, manifest) = (shard.clone(), manifest.clone());
    aside(move || shard.with_store(|store| work(store, &manifest))).await
}

/// Gives up the records of a partition before an offset, which the leader has deleted.
async fn begin_after(shard: &Arc<Shard>, manifest: &Arc<Manifest>, stream: u64, start: Offset) -> Result<()> {
    let (shard, manifest) = (shard.clone(), manifest.clone());
    aside(move || shard.with_store(|store| store.begin_after(&manifest, stream, start))).await
}

/// Applies batches of a partition; returns the offset after them.
async fn apply(shard: &Arc<Shard>, stream: u64, batches: Vec<bytes::Bytes>) -> Result<u64> {
    let shard = shard.clone();
    aside(move || {
        shard.with_store(|store| {
            let mut end = 0;
            for batch in batches {
                end = engine::RecordBatch::parse(batch.clone())?.next_offset();
                store.apply(EntryKind::Batch, stream, batch)?;
            }
            Ok(end)
        })
    })
    .await
}

async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|gone| Err(Error::new(ErrorKind::Internal, format!("a catch-up was given up: {gone}"))))
}

fn unexpected(frame: Frame) -> Error {
    match frame {
        Frame::Refused(reason) => Error::busy(format!("the leader refused a catch-up: {reason}")),
        frame => Error::malformed(format!("the other node sent an unexpected frame: {}", name(&frame))),
    }
}

fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Request(_) => "request",
        Frame::Done => "done",
        Frame::Refused(_) => "refused",
        Frame::State { .. } => "state",
        Frame::Wanted { .. } => "wanted",
        Frame::Batches { .. } => "batches",
        Frame::Begins { .. } => "begins",
        Frame::Secret(_) => "secret",
    }
}

/// Sends the state of a store that includes the log up to an index, at most this many bytes in a second. Returns the
/// bytes of the batches.
pub async fn serve<S>(
    stream: &mut S,
    store: &Arc<Store>,
    (roster, index): (Roster, Index),
    bytes_per_s: u64,
) -> Result<u64>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let of_store = store.clone();
    let manifest = aside(move || Ok(of_store.manifest().encode())).await?;
    write(stream, &Frame::State { roster: roster.encode(), index, manifest }).await?;
    let began = Instant::now();
    let mut sent = 0;
    loop {
        let (partition, mut at, to) = match read(stream).await? {
            Frame::Wanted { stream, from, to } => (stream, from, to),
            Frame::Done => return Ok(sent),
            frame => return Err(unexpected(frame)),
        };
        while at < to {
            let of_store = store.clone();
            let batches = aside(move || of_store.read_rows(partition, at..to, BATCHES_BYTES)).await;
            let batches = match batches {
                Ok(batches) if !batches.is_empty() => batches,
                outcome => {
                    let start = store.first_of_rows(partition).map_or(at, |start| start.min(to));
                    if start > at {
                        write(stream, &Frame::Begins { stream: partition, start }).await?;
                        at = start;
                        continue;
                    }
                    let why = outcome.err().map_or_else(|| "its records are gone".to_owned(), |error| error.message);
                    write(stream, &Frame::Refused(format!("partition {partition} cannot be read: {why}"))).await?;
                    return Ok(sent);
                }
            };
            at = batches.last().map_or(to, engine::RecordBatch::next_offset);
            let batches: Vec<_> = batches.iter().map(|batch| batch.bytes().clone()).collect();
            sent += batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
            write(stream, &Frame::Batches { stream: partition, batches }).await?;
            let due = Duration::from_secs_f64(sent as f64 / bytes_per_s.max(1) as f64);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
    }
}
