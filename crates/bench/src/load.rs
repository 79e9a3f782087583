//! Both ends of a load: publishers that stamp their records, and subscribers that check them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Addresses, BatchBuilder, Client, Error, Event, Publisher, Record, Result, Subscription};

use crate::latency::Latencies;

/// Bytes of the stamp at the beginning of a payload: publisher, sequence of the publisher, time of sending.
const STAMP_BYTES: usize = 20;

/// Identification of a record within its payload.
struct Stamp {
    publisher: u32,
    sequence: u64,
    /// Nanoseconds since the beginning of the run.
    at_ns: u64,
}

impl Stamp {
    fn put(&self, payload: &mut [u8]) {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..4].copy_from_slice(&self.publisher.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[12..].copy_from_slice(&self.at_ns.to_be_bytes());
        let n = payload.len().min(STAMP_BYTES);
        payload[..n].copy_from_slice(&bytes[..n]);
    }

    /// Reads the stamp; `None` if the payload is too small for one.
    fn get(payload: &[u8]) -> Option<Self> {
        Some(Self {
            publisher: u32::from_be_bytes(payload.get(..4)?.try_into().ok()?),
            sequence: u64::from_be_bytes(payload.get(4..12)?.try_into().ok()?),
            at_ns: u64::from_be_bytes(payload.get(12..20)?.try_into().ok()?),
        })
    }
}

/// Records of one publisher.
pub(crate) struct Source {
    publisher: u32,
    sequence: u64,
    payload: Vec<u8>,
    builder: BatchBuilder,
    begin: Instant,
}

impl Source {
    pub(crate) fn new(publisher: usize, payload_bytes: usize, begin: Instant) -> Self {
        // Text-like filler, so that compression in transit does not gain more than with real data.
        let payload = (0..payload_bytes).map(|i| b' ' + (i * 31 % 95) as u8).collect();
        Self { publisher: publisher as u32, sequence: 0, payload, builder: BatchBuilder::new(), begin }
    }

    /// Publishes the next records one by one; the publisher combines them into batches.
    pub(crate) async fn send_each(&mut self, publisher: &Publisher, records: usize, due: Instant) -> Result<()> {
        let at_ns = due.saturating_duration_since(self.begin).as_nanos() as u64;
        for _ in 0..records {
            Stamp { publisher: self.publisher, sequence: self.sequence, at_ns }.put(&mut self.payload);
            self.sequence += 1;
            publisher.send(&Record::new(Bytes::copy_from_slice(&self.payload))).await?;
        }
        Ok(())
    }

    /// Publishes a batch of the next records. `due` is the time at which it should have been sent.
    pub(crate) async fn send(&mut self, publisher: &Publisher, records: usize, due: Instant) -> Result<()> {
        let at_ns = due.saturating_duration_since(self.begin).as_nanos() as u64;
        for _ in 0..records {
            Stamp { publisher: self.publisher, sequence: self.sequence, at_ns }.put(&mut self.payload);
            self.sequence += 1;
            self.builder.push(1, None, Some(&self.payload), &[])?;
        }
        match self.builder.finish() {
            Some(batch) => publisher.send_batch(None, batch).await,
            None => Ok(()),
        }
    }
}

/// Results of one subscriber.
#[derive(Default)]
pub(crate) struct Sink {
    pub records: u64,
    /// Records that were missing or out of order.
    pub lost: u64,
    pub latencies: Latencies,
    /// Next sequence of each publisher.
    next: Vec<u64>,
}

impl Sink {
    pub(crate) fn new(publishers: usize) -> Self {
        Self { next: vec![0; publishers], ..Self::default() }
    }

    /// Reads until `records` records were received or are known to be lost. `patience` bounds the wait for each.
    pub(crate) async fn read(
        &mut self,
        subscription: &mut Subscription,
        records: u64,
        begin: Instant,
        patience: Duration,
    ) -> Result<()> {
        while self.records + self.lost < records {
            let event = match tokio::time::timeout(patience, subscription.next_event()).await {
                Ok(event) => event?,
                Err(_) => {
                    self.lost = records - self.records;
                    return Ok(());
                }
            };
            match event {
                Event::Batch(batch) => {
                    let elapsed = begin.elapsed();
                    let mut is_first = true;
                    for record in &batch.records()? {
                        let record = record?;
                        let stamp = record.value.and_then(Stamp::get);
                        if let Some(stamp) = stamp {
                            if is_first {
                                self.latencies.record(elapsed.saturating_sub(Duration::from_nanos(stamp.at_ns)));
                                is_first = false;
                            }
                            self.check(&stamp)?;
                        }
                        self.records += 1;
                    }
                }
                Event::Gap { from, to, .. } => self.lost += to - from,
                Event::Restarted | Event::Reconnected => {
                    return Err(Error::new(client::ErrorKind::Disconnected, "the connection was lost"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&mut self, stamp: &Stamp) -> Result<()> {
        let next = self.next.get_mut(stamp.publisher as usize).ok_or_else(|| {
            Error::malformed(format!("a record names publisher {}, which does not exist", stamp.publisher))
        })?;
        if stamp.sequence < *next {
            return Err(Error::malformed(format!(
                "record {} of publisher {} was received again or late",
                stamp.sequence, stamp.publisher
            )));
        }
        *next = stamp.sequence + 1;
        Ok(())
    }
}

/// Returns the CPU time that this process has used, user and system, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9
}

/// Returns the scheme of the first address: `quic`, `tcp`..
pub(crate) fn transport(addresses: &Addresses) -> String {
    let text = addresses.to_string();
    text.split("://").next().unwrap_or_default().to_owned()
}

/// Returns a value of the broker's metrics.
pub(crate) async fn server_metric(client: &Client, name: &str) -> Option<f64> {
    let stats = client.stats().await.ok()?;
    stats.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
