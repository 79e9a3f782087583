//! Pages with the records of a partition.

use std::ops::ControlFlow;
use std::time::Duration;

use broker::Fetched;
use console::decode::{Cut, Form, SHOWN_BYTES_MAX};
use console::pages::{record, records};
use console::parts::CELL_BYTES_MAX;
use console::shell::Page;
use engine::{Error, Offset, PartitionId, RecordView};

use super::super::codec;
use super::super::errors::{Failure, Result};
use super::super::map::{FETCH_BYTES_MAX, ROOM_WAIT};
use super::super::page::{LARGE_BATCH_BYTES, size_of};
use super::Visit;

/// Number of records in a page.
const PAGE_RECORDS: u64 = 50;
/// Maximum number of reads for one page. A search for a key continues on the next page.
const FETCHES_MAX: usize = 16;
/// Maximum number of headers of a record that are read.
const HEADERS_MAX: usize = 101;
/// Maximum size of a header that is shown.
const HEADER_BYTES_MAX: usize = 1 << 10;

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["partition", "offset", "timestamp_ms", "key"])?;
    let broker = &visit.http.broker;
    let topic = visit.inner();
    let partition: PartitionId = query.get("partition")?.unwrap_or_default();
    let partition_count = broker.partitions_of(&topic)?;
    let extent = broker.describe_partition(&topic, partition)?;
    let key = query.text("key").unwrap_or_default();
    let asked: Option<Offset> = query.get("offset")?;
    let wanted = match (asked, query.get("timestamp_ms")?) {
        (Some(offset), _) => offset,
        (None, Some(timestamp_ms)) => broker.offset_for_time(&topic, partition, timestamp_ms)?,
        // A search begins with the oldest record, a look with the newest ones.
        (None, None) if !key.is_empty() => extent.start,
        (None, None) => extent.end.saturating_sub(PAGE_RECORDS),
    };
    let from = wanted.clamp(extent.start, extent.end);
    let mut rows = Vec::new();
    let place = Place { topic: &topic, partition, from };
    let read = read(&visit, &place, |view| {
        if key.is_empty() || view.key == Some(key.as_bytes()) {
            rows.push(row(view));
        }
        if rows.len() as u64 == PAGE_RECORDS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let (next, trouble) = read.await;
    Ok(records::page(&records::Records {
        topic: visit.param(0).to_owned(),
        partition,
        partition_count,
        asked,
        start: extent.start,
        end: extent.end,
        rows,
        from,
        next,
        page_max: PAGE_RECORDS,
        key: key.to_owned(),
        trouble: trouble.map(|failure| failure.error.message),
    }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    let query = visit.query(&["as"])?;
    let form = Form::parse(query.text("as").unwrap_or_default());
    let partition: PartitionId = codec::parse("the partition in the path", visit.param(1))?;
    let offset: Offset = codec::parse("the offset in the path", visit.param(2))?;
    let topic = visit.inner();
    let extent = visit.http.broker.describe_partition(&topic, partition)?;
    let mut found = None;
    if (extent.start..extent.end).contains(&offset) {
        let (_, trouble) = read(&visit, &Place { topic: &topic, partition, from: offset }, |view| {
            if view.offset == offset {
                found = Some(whole(view));
            }
            ControlFlow::Break(())
        })
        .await;
        if let (None, Some(failure)) = (&found, trouble) {
            return Err(failure);
        }
    }
    let place = record::Place { topic: visit.param(0).to_owned(), partition, offset, form };
    Ok(record::page(&place, found.as_ref()))
}

/// Beginning of a read.
struct Place<'a> {
    topic: &'a str,
    partition: PartitionId,
    from: Offset,
}

/// Calls `each` with the records from a place on, until it breaks, the log ends, or enough was read. Returns the offset
/// after the last record, and the error that ended it.
async fn read(
    visit: &Visit,
    place: &Place<'_>,
    mut each: impl FnMut(&RecordView<'_>) -> ControlFlow<()>,
) -> (Offset, Option<Failure>) {
    let Place { topic, partition, from } = *place;
    let broker = &visit.http.broker;
    let answers = broker.answers();
    let mut next = from;
    for _ in 0..FETCHES_MAX {
        let batches = match broker.fetch(topic, partition, next, FETCH_BYTES_MAX, Duration::ZERO).await {
            Ok(Fetched { batches, .. }) if batches.is_empty() => break,
            Ok(Fetched { batches, .. }) => batches,
            Err(error) => return (next, Some(error.into())),
        };
        for batch in &batches {
            let bytes = size_of(batch);
            // The batch is held in the form of the log and, if it is compressed, as plain records.
            let mut held = match answers.take(Some(visit.peer.address), 2 * bytes, ROOM_WAIT).await {
                Ok(held) => held,
                Err(error) => return (next, Some(error.into())),
            };
            let expansion = batch.expansion_bytes_max();
            let plain = if expansion > LARGE_BATCH_BYTES {
                answers.expand(batch, held.split(expansion)).await
            } else {
                batch.expand()
            };
            let read = answers.work(bytes, || {
                for view in &batch.records_in(plain?, next) {
                    let view = view?;
                    next = view.offset + 1;
                    if each(&view).is_break() {
                        return Ok::<_, Error>(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            });
            match read.await {
                Ok(ControlFlow::Break(())) => return (next, None),
                // The batch may end with records that compaction removed.
                Ok(ControlFlow::Continue(())) => next = next.max(batch.next_offset()),
                Err(error) => return (batch.next_offset(), Some(error.into())),
            }
        }
    }
    (next, None)
}

fn row(view: &RecordView<'_>) -> records::Row {
    let cut = |bytes: &[u8]| Cut::new(bytes, CELL_BYTES_MAX);
    records::Row {
        offset: view.offset,
        timestamp_ms: view.timestamp_ms,
        key: view.key.map(cut),
        value: view.value.map(cut),
        headers: view.headers().count(),
    }
}

fn whole(view: &RecordView<'_>) -> record::Record {
    let cut = |bytes: &[u8]| Cut::new(bytes, SHOWN_BYTES_MAX);
    let header = |(name, value): (&[u8], Option<&[u8]>)| {
        let name = name[..name.len().min(CELL_BYTES_MAX)].to_vec();
        (name, value.map(|value| Cut::new(value, HEADER_BYTES_MAX)))
    };
    record::Record {
        offset: view.offset,
        timestamp_ms: view.timestamp_ms,
        key: view.key.map(cut),
        value: view.value.map(cut),
        header_count: view.headers().count(),
        headers: view.headers().take(HEADERS_MAX).map(header).collect(),
    }
}
