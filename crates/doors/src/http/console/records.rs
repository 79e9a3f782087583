//! Pages with the records of a partition.

use std::ops::ControlFlow;

use console::decode::{Cut, Form, SHOWN_BYTES_MAX};
use console::pages::{record, records};
use console::parts::CELL_BYTES_MAX;
use console::shell::Page;
use engine::{Offset, PartitionId, RecordView};

use super::super::codec;
use super::super::errors::Result;
use super::super::reading::{Place, read};
use super::Visit;

/// Number of records in a page.
const PAGE_RECORDS: u64 = 50;
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
    let read = read(broker, visit.peer.address, &place, |view| {
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
        let place = Place { topic: &topic, partition, from: offset };
        let (_, trouble) = read(&visit.http.broker, visit.peer.address, &place, |view| {
            if view.offset == offset {
                found = Some((whole(view), named(view)));
            }
            ControlFlow::Break(())
        })
        .await;
        if let (None, Some(failure)) = (&found, trouble) {
            return Err(failure);
        }
    }
    let found = match found {
        Some((record, Some(named))) => {
            Some(record::Record { by_schema: by_schema(&visit, &record, named).await, ..record })
        }
        Some((record, None)) => Some(record),
        None => None,
    };
    let place = record::Place { topic: visit.param(0).to_owned(), partition, offset, form };
    Ok(record::page(&place, found.as_ref()))
}

/// Returns the schema that a record names.
#[cfg(feature = "pubsub")]
fn named(view: &RecordView<'_>) -> Option<crate::pubsub::Named> {
    crate::pubsub::Named::of(view.headers())
}

/// Returns the value of a record by the schema that it names.
#[cfg(feature = "pubsub")]
async fn by_schema(visit: &Visit, record: &record::Record, named: crate::pubsub::Named) -> Option<record::BySchema> {
    let http = &visit.http;
    let text = match record.value.as_ref()?.whole() {
        Some(value) => {
            let reader = (&http.broker, http.pubsub_project.as_str(), &**visit.identity());
            named.text_of(reader, value, SHOWN_BYTES_MAX).await
        }
        None => Err(format!("it has more than {SHOWN_BYTES_MAX} bytes")),
    };
    Some(record::BySchema { schema: named.name(), text })
}

#[cfg(not(feature = "pubsub"))]
fn named(_: &RecordView<'_>) -> Option<std::convert::Infallible> {
    None
}

#[cfg(not(feature = "pubsub"))]
async fn by_schema(_: &Visit, _: &record::Record, named: std::convert::Infallible) -> Option<record::BySchema> {
    match named {}
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
        by_schema: None,
        header_count: view.headers().count(),
        headers: view.headers().take(HEADERS_MAX).map(header).collect(),
    }
}
