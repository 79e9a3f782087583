//! Records of a partition, read one after another within the memory for responses.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use broker::{Broker, Fetched};
use engine::{Error, Offset, PartitionId, RecordView};

use super::errors::Failure;
use super::map::{FETCH_BYTES_MAX, ROOM_WAIT};
use super::page::{LARGE_BATCH_BYTES, size_of};

/// Maximum number of fetches of one read.
const FETCHES_MAX: usize = 16;

/// Beginning of a read.
pub(super) struct Place<'a> {
    pub topic: &'a str,
    pub partition: PartitionId,
    pub from: Offset,
}

/// Calls `each` with the records from a place on, until it breaks, the log ends, or enough was read. Returns the offset
/// after the last record, and the error that ended it.
pub(super) async fn read(
    broker: &Broker,
    address: IpAddr,
    place: &Place<'_>,
    mut each: impl FnMut(&RecordView<'_>) -> ControlFlow<()>,
) -> (Offset, Option<Failure>) {
    let Place { topic, partition, from } = *place;
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
            let mut held = match answers.take(Some(address), 2 * bytes, ROOM_WAIT).await {
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
