//! Consumer of a run: checks every record, and times every attempt to read.

use std::time::{Duration, Instant};

use client::{Batch, Error, ErrorKind, Event, PartitionId, Result, Subscription};
use tokio::sync::Notify;

use super::Plan;
use super::record::{Records, Stamp};
use super::timeline::Timeline;
use crate::latency::Latencies;

/// Results of the consumer.
#[derive(Default)]
pub(super) struct Consumed {
    pub records: u64,
    pub bytes: u64,
    /// Latency from the beginning of an attempt to read to its success, which is a batch.
    pub latencies: Latencies,
    pub timeline: Timeline,
    /// Latency from the sending of a record (open loop: from its due time) to its receipt.
    pub e2e: Latencies,
    pub e2e_timeline: Timeline,
    /// Highest rate of an attempt: its bytes divided by its latency.
    pub bytes_per_s_max: f64,
    /// Time from the beginning to the last record.
    pub elapsed: Duration,
    pub faults: Faults,
}

/// Failures of delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Records that were not received.
    pub lost: u64,
    /// Records that were received with other bytes than they were sent with.
    pub damaged: u64,
    /// Records that were received more than once.
    pub repeated: u64,
    /// Records that were received after a later one of the same partition.
    pub disordered: u64,
}

/// Received records, and their order.
struct Seen {
    /// Bit set with one bit for each index.
    came: Vec<u64>,
    count: u64,
    /// Highest index of each partition.
    highest: Vec<Option<u64>>,
}

/// Reads until all records are received, or no more arrive. `failed` signals that the producer will send no more;
/// `begin` is the origin of the stamps, and `started` that of the consumer.
pub(super) async fn run(
    plan: &Plan,
    records: &Records,
    subscription: &mut Subscription,
    failed: &Notify,
    begin: Instant,
) -> Result<Consumed> {
    let started = Instant::now();
    let mut consumed = Consumed::default();
    let mut seen = Seen::new(plan.records, plan.topic_settings.partitions);
    let mut missing = 0;
    while seen.count + consumed.faults.damaged + missing < plan.records {
        let attempt = Instant::now();
        let event = tokio::select! {
            biased;
            event = tokio::time::timeout(plan.patience, subscription.next_event()) => event,
            () = failed.notified() => break,
        };
        let Ok(event) = event else {
            break;
        };
        match event? {
            Event::Batch(batch) => {
                let at = Instant::now();
                let bytes = check(&batch, records, &mut seen, &mut consumed, (at, begin))?;
                let latency = at - attempt;
                consumed.latencies.record(latency);
                consumed.timeline.record(at - begin, latency, 1, bytes);
                consumed.bytes += bytes;
                consumed.bytes_per_s_max = consumed.bytes_per_s_max.max(bytes as f64 / latency.as_secs_f64().max(1e-9));
                consumed.elapsed = at - started;
            }
            Event::Gap { from, to, .. } => missing += to - from,
            Event::Restarted | Event::Reconnected => {
                return Err(Error::new(ErrorKind::Disconnected, "the connection was lost"));
            }
            _ => {}
        }
    }
    consumed.records = seen.count;
    consumed.faults.lost = plan.records.saturating_sub(seen.count + consumed.faults.damaged);
    Ok(consumed)
}

/// Checks and times the records of a batch, and returns the total bytes of their values.
fn check(
    batch: &Batch,
    records: &Records,
    seen: &mut Seen,
    consumed: &mut Consumed,
    (at, begin): (Instant, Instant),
) -> Result<u64> {
    let since_begin = at.saturating_duration_since(begin);
    let mut bytes = 0;
    // Records that were sent together have the same time.
    let mut sent_ns = 0;
    let mut together = 0;
    let mut together_bytes = 0;
    let mut time = |sent_ns: u64, count: u64, bytes: u64| {
        let latency = since_begin.saturating_sub(Duration::from_nanos(sent_ns));
        consumed.e2e.record_many(latency, count);
        consumed.e2e_timeline.record(since_begin, latency, count, bytes);
    };
    for record in &batch.records()? {
        let value = record?.value.unwrap_or_default();
        bytes += value.len() as u64;
        let Some(stamp) = records.read(value) else {
            consumed.faults.damaged += 1;
            continue;
        };
        seen.take(stamp, batch.partition, &mut consumed.faults);
        if stamp.at_ns != sent_ns && together > 0 {
            time(sent_ns, together, together_bytes);
            together = 0;
            together_bytes = 0;
        }
        sent_ns = stamp.at_ns;
        together += 1;
        together_bytes += value.len() as u64;
    }
    if together > 0 {
        time(sent_ns, together, together_bytes);
    }
    Ok(bytes)
}

impl Seen {
    fn new(records: u64, partitions: u32) -> Self {
        let came = vec![0; records.div_ceil(64) as usize];
        Self { came, count: 0, highest: vec![None; partitions as usize] }
    }

    fn take(&mut self, stamp: Stamp, partition: PartitionId, faults: &mut Faults) {
        let bit = 1 << (stamp.index % 64);
        let Some(word) = self.came.get_mut((stamp.index / 64) as usize) else {
            // Stamp of this run with an index that was never sent.
            faults.damaged += 1;
            return;
        };
        if *word & bit != 0 {
            faults.repeated += 1;
            return;
        }
        *word |= bit;
        self.count += 1;
        let highest = &mut self.highest[partition as usize];
        if highest.is_some_and(|highest| stamp.index < highest) {
            faults.disordered += 1;
        }
        *highest = (*highest).max(Some(stamp.index));
    }
}

impl Faults {
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_late_and_damaged_records_are_counted() {
        let mut seen = Seen::new(128, 2);
        let mut faults = Faults::default();
        let order = [(0, 0), (0, 2), (0, 1), (1, 3), (1, 3), (0, 100), (1, 128)];
        for (partition, index) in order {
            seen.take(Stamp { index, at_ns: 0 }, partition, &mut faults);
        }
        assert_eq!(faults, Faults { lost: 0, damaged: 1, repeated: 1, disordered: 1 });
        assert_eq!(seen.count, 5);
    }
}
