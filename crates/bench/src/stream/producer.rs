//! Producer of a run: batches in flight within a window, each timed until it is acknowledged.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use client::{Error, ErrorKind, Publisher, Record, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Plan;
use super::record::{Records, Stamp};
use super::timeline::Timeline;
use crate::alarm::Alarm;
use crate::latency::Latencies;

/// Records that are passed to the client one by one between two checks of the clock.
const BURST: u64 = 64;

/// Results of the producer.
#[derive(Default)]
pub(super) struct Produced {
    pub records: u64,
    pub bytes: u64,
    /// Latency from the sending of a batch (open loop: from the due time of its first record) to its acknowledgement.
    pub latencies: Latencies,
    pub timeline: Timeline,
    /// Highest rate of a batch: its bytes divided by its latency.
    pub bytes_per_s_max: f64,
    /// Time from the beginning of the run to the last acknowledgement.
    pub elapsed: Duration,
}

/// Batch that was acknowledged.
struct Acked {
    sent: Instant,
    at: Instant,
    records: u64,
    bytes: u64,
}

pub(super) async fn run(plan: &Plan, records: &Records, publisher: &Publisher, begin: Instant) -> Result<Produced> {
    let mut produced = match plan.batch {
        0 => one_by_one(plan, records, publisher, begin).await?,
        _ => in_batches(plan, records, publisher, begin).await?,
    };
    produced.elapsed = begin.elapsed();
    Ok(produced)
}

async fn in_batches(plan: &Plan, records: &Records, publisher: &Publisher, begin: Instant) -> Result<Produced> {
    let mut produced = Produced::default();
    let mut alarm = Alarm::new().map_err(no_alarm)?;
    let mut on_way = FuturesUnordered::new();
    let mut next = 0;
    while next < plan.records || !on_way.is_empty() {
        let may_send = next < plan.records && on_way.len() < plan.in_flight;
        let due = plan.due(next, begin);
        let now = Instant::now();
        if may_send && due <= now {
            let left = plan.records - next;
            // In an open loop only records that are due by now; otherwise every record is.
            let is_due = |i: &u64| plan.due(next + i, begin) <= now;
            let count = (0..left.min(plan.batch as u64)).take_while(is_due).count() as u64;
            let (sent, batch) = make(plan, records, begin, next..next + count);
            next += count;
            let bytes = batch.iter().map(|record| record.value().len() as u64).sum();
            let mut call = Box::pin(async move {
                publisher.publish_batch(&batch).await?;
                Ok::<_, Error>(Acked { sent, at: Instant::now(), records: count, bytes })
            });
            // The first poll sends the batch before the next one is created: that keeps the order.
            match begin_call(&mut call).await {
                Poll::Ready(acked) => produced.take(&acked?, begin),
                Poll::Pending => on_way.push(call),
            }
            continue;
        }
        tokio::select! {
            Some(acked) = on_way.next(), if !on_way.is_empty() => produced.take(&acked?, begin),
            rung = alarm.wait(due), if may_send => rung.map_err(no_alarm)?,
        }
    }
    Ok(produced)
}

async fn begin_call<T>(call: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await
}

/// Creates the records of these indices, with the time of the first: one allocation for all.
fn make(plan: &Plan, records: &Records, begin: Instant, indices: std::ops::Range<u64>) -> (Instant, Vec<Record>) {
    let now = Instant::now();
    let sent = if plan.rate.is_some() { plan.due(indices.start, begin) } else { now };
    let mut bytes = BytesMut::with_capacity(indices.clone().map(|index| records.length(index)).sum());
    let batch = indices.map(|index| {
        let at = if plan.rate.is_some() { plan.due(index, begin) } else { now };
        let at_ns = at.saturating_duration_since(begin).as_nanos() as u64;
        records.write(Stamp { index, at_ns }, &mut bytes);
        Record::new(bytes.split().freeze())
    });
    (sent, batch.collect())
}

/// Leaves batches to the client, which does not report when it receives acknowledgements: latencies are unknown.
async fn one_by_one(plan: &Plan, records: &Records, publisher: &Publisher, begin: Instant) -> Result<Produced> {
    let mut produced = Produced::default();
    let mut alarm = Alarm::new().map_err(no_alarm)?;
    let mut next = 0;
    while next < plan.records {
        let due = plan.due(next, begin);
        if due > Instant::now() {
            alarm.wait(due).await.map_err(no_alarm)?;
        }
        let count = if plan.rate.is_some() { 1 } else { BURST.min(plan.records - next) };
        let (_, batch) = make(plan, records, begin, next..next + count);
        for record in &batch {
            publisher.send(record).await?;
            produced.bytes += record.value().len() as u64;
        }
        next += count;
        produced.records = next;
        // A producer that never waits would prevent the connection of its thread from being read.
        tokio::task::consume_budget().await;
    }
    publisher.flush().await?;
    Ok(produced)
}

impl Produced {
    fn take(&mut self, acked: &Acked, begin: Instant) {
        let latency = acked.at.saturating_duration_since(acked.sent);
        self.records += acked.records;
        self.bytes += acked.bytes;
        self.latencies.record(latency);
        self.timeline.record(acked.at.saturating_duration_since(begin), latency, 1, acked.bytes);
        self.bytes_per_s_max = self.bytes_per_s_max.max(acked.bytes as f64 / latency.as_secs_f64().max(1e-9));
    }
}

fn no_alarm(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot wait until a record is due: {error}"))
}
