//! Subscribers of the demonstration, each of which counts and checks the records that it receives.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::{Batch, Event, Subscription};
use tokio::sync::watch;

use super::digest::Digest;

/// Time that a reader waits for the next record, after all records are published, before it counts the rest as lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Number of records that are kept for the report.
const SAMPLES: usize = 2;

/// Record that is shown in the report.
#[derive(Clone)]
pub(super) struct Sample {
    pub offset: u64,
    pub value: Vec<u8>,
}

/// Result of one reader.
#[derive(Default)]
pub(super) struct Tally {
    pub digest: Digest,
    /// `true` if the offsets only increased.
    pub is_in_order: bool,
    pub latencies: Latencies,
    /// Arrival time of the last record.
    pub last_at: Option<Instant>,
    pub samples: Vec<Sample>,
    /// Last record of the newest batch.
    pub last: Option<Sample>,
    /// Offset after the last record.
    pub next_offset: u64,
}

/// Delivery latencies in whole milliseconds, the resolution of the timestamps of records.
#[derive(Clone, Default)]
pub(super) struct Latencies(Vec<u64>);

impl Latencies {
    /// Maximum latency that is recorded. Longer ones count as this one.
    const MS_MAX: usize = 60_000;

    fn add(&mut self, latency_ms: i64) {
        let at = usize::try_from(latency_ms).unwrap_or(0).min(Self::MS_MAX);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Returns the smallest latency that the given share of the records did not exceed.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let count: u64 = self.0.iter().sum();
        let wanted = ((count as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        self.0
            .iter()
            .position(|n| {
                below += n;
                below >= wanted
            })
            .map(|ms| ms as u64)
    }
}

/// Counts that the readers of one queue group share. A single reader is a group of one.
#[derive(Clone)]
pub(super) struct Seen(watch::Sender<Counts>);

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub records: u64,
    pub bytes: u64,
    /// Number of records that the broker reported as lost.
    gaps: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self(watch::Sender::new(Counts::default()))
    }
}

impl Seen {
    pub(super) fn counts(&self) -> Counts {
        *self.0.borrow()
    }
}

/// Reads until the readers of `seen` have received all published records, or know that the rest is lost. `published`
/// contains the number of records once it is known. Its sender is dropped if it will never be known.
pub(super) async fn read(
    mut subscription: Subscription,
    seen: Seen,
    mut published: watch::Receiver<Option<u64>>,
) -> client::Result<Tally> {
    let mut tally = Tally { is_in_order: true, ..Tally::default() };
    let mut others = seen.0.subscribe();
    loop {
        let counts = *others.borrow_and_update();
        let total = *published.borrow_and_update();
        if total.is_some_and(|total| counts.records + counts.gaps >= total) {
            return Ok(tally);
        }
        tokio::select! {
            event = subscription.next_event() => match event? {
                Event::Batch(batch) => {
                    let before = tally.digest;
                    tally.take(&batch)?;
                    seen.0.send_modify(|counts| {
                        counts.records += tally.digest.records - before.records;
                        counts.bytes += tally.digest.bytes - before.bytes;
                    });
                }
                Event::Gap { from, to, .. } => seen.0.send_modify(|counts| counts.gaps += to - from),
                Event::Restarted | Event::Reconnected => {
                    return Err(client::Error::new(client::ErrorKind::Disconnected, "the connection broke"));
                }
                _ => {}
            },
            Ok(()) = others.changed() => {}
            changed = published.changed() => if changed.is_err() {
                return Ok(tally);
            },
            () = tokio::time::sleep(PATIENCE), if total.is_some() => return Ok(tally),
        }
    }
}

impl Tally {
    fn take(&mut self, batch: &Batch) -> client::Result<()> {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let mut last = None;
        let records = batch.records()?;
        for record in &records {
            let record = record?;
            let value = record.value.unwrap_or_default();
            self.is_in_order &= record.offset >= self.next_offset;
            self.next_offset = record.offset + 1;
            self.digest.add(value);
            self.latencies.add(now_ms - record.timestamp_ms);
            if self.samples.len() < SAMPLES {
                self.samples.push(Sample { offset: record.offset, value: value.to_vec() });
            }
            last = Some((record.offset, value));
        }
        if let Some((offset, value)) = last {
            self.last = Some(Sample { offset, value: value.to_vec() });
            self.last_at = Some(Instant::now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_were_counted() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), None);
        (0..100).for_each(|ms| latencies.add(ms));
        let mut others = Latencies::default();
        others.add(-5);
        others.add(1_000_000);
        latencies.merge(&others);
        assert_eq!(latencies.quantile(0.0), Some(0));
        assert_eq!(latencies.quantile(0.5), Some(49));
        assert_eq!(latencies.quantile(0.99), Some(99));
        assert_eq!(latencies.quantile(1.0), Some(60_000));
    }
}
