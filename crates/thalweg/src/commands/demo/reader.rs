//! The subscribers of the demonstration: each reads everything that is its own and keeps account.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::{Batch, Event, Subscription};
use tokio::sync::watch;

use super::digest::Digest;

/// How long a reader waits for the next record, once all are published, before the rest counts as lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Records that are kept to be shown.
const SAMPLES: usize = 2;

/// A record to be shown.
#[derive(Clone)]
pub(super) struct Sample {
    pub offset: u64,
    pub value: Vec<u8>,
}

/// What one reader got.
#[derive(Default)]
pub(super) struct Tally {
    pub digest: Digest,
    /// Offsets only ever rose.
    pub is_in_order: bool,
    pub latencies: Latencies,
    /// When the last record came.
    pub last_at: Option<Instant>,
    pub samples: Vec<Sample>,
    /// The last record of the batch that came last.
    pub last: Option<Sample>,
    /// The offset after the last record.
    pub next_offset: u64,
}

/// Delivery latencies in whole milliseconds, which is what records are stamped with.
#[derive(Clone, Default)]
pub(super) struct Latencies(Vec<u64>);

impl Latencies {
    /// Everything from here on is counted as this long.
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

    /// The smallest latency that this share of the records did not exceed.
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

/// What the readers of one queue group share; a reader by itself is a group of one.
#[derive(Clone)]
pub(super) struct Seen(watch::Sender<Counts>);

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub records: u64,
    pub bytes: u64,
    /// Records that the broker said do not come.
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

/// Reads until the readers of `seen` have all that was published, or know that the rest does not come.
/// `published` has the number once there is one; its sender is dropped where there will be none.
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
