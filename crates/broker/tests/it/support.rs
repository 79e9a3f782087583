//! A broker on the test's own threads, and followers that check their deliveries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Direct, Origin, Permit, Published, Settings, Subscribe, Subscription, Wakes};
use engine::{Acks, BatchBuilder, Delivery, DraftBatch, Error, Missing, Overflow, Pattern, Result, SourceId, Start};
use futures_util::FutureExt;
use tokio::runtime::Handle;

/// Timeout for any operation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the size of a test, unless the environment variable sets another number.
pub fn size(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

pub fn start(settings: Settings) -> Arc<Broker> {
    Broker::start(settings, &[Handle::current()]).expect("started")
}

/// Returns a batch of `records` records of `bytes` bytes.
pub fn batch(records: usize, bytes: usize) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(1, None, Some(&vec![7; bytes]), &[]).expect("a small record");
    }
    builder.finish().expect("records")
}

/// Publishes a record to a partition and delivers it immediately.
pub async fn publish(broker: &Broker, topic: &str, partition: u32) -> Result<Published> {
    broker.publish(topic, Some(partition), Acks::Default, batch(1, 10), &mut Wakes::default()).await
}

/// Returns a request for a live subscription to a pattern with the maximum credit; a missing topic is created.
pub fn ask(pattern: &str) -> Subscribe {
    Subscribe {
        pattern: Pattern::parse(pattern).expect("a pattern"),
        partition: None,
        start: Start::Live,
        overflow: Overflow::Replay,
        queue_batches: None,
        group: None,
        credit: u64::MAX,
        missing: Missing::Create,
        is_channel: false,
        permit: Permit::ALL,
        origin: Origin::default(),
        hold: None,
        direct: None,
    }
}

/// Opens a subscription that never has to wait, because the broker is small.
pub fn subscribe(broker: &Arc<Broker>, request: Subscribe) -> Result<Subscription> {
    broker.subscribe(request).now_or_never().expect("few partitions are joined at once")
}

pub fn with_direct(mut request: Subscribe, direct: impl Direct + 'static) -> Subscribe {
    request.direct = Some(Box::new(direct));
    request
}

/// Checker of deliveries: fails if records are missing, repeated or out of order; reported gaps are accepted.
#[derive(Default)]
pub struct Follow {
    next: HashMap<SourceId, u64>,
    pub records: u64,
    pub missed: u64,
}

impl Follow {
    /// Expects each source to begin at the offset that the subscription reports.
    pub fn of(subscription: &Subscription) -> Self {
        let starts = subscription.starts.iter().enumerate();
        Self { next: starts.map(|(i, start)| (i as SourceId, start.start)).collect(), ..Self::default() }
    }

    pub fn see(&mut self, delivery: &Delivery) {
        let (source, from, to) = match delivery {
            Delivery::Batch { source, batch } => {
                self.records += u64::from(batch.count());
                (*source, batch.base_offset(), batch.next_offset())
            }
            Delivery::Gap { source, from, to } => {
                self.missed += to - from;
                (*source, *from, *to)
            }
        };
        let next = self.next.entry(source).or_insert(0);
        assert_eq!(from, *next, "source {source} goes on where it was");
        assert!(to > from, "a delivery tells of something");
        *next = to;
    }

    pub fn next(&self, source: SourceId) -> u64 {
        self.next.get(&source).copied().unwrap_or_default()
    }
}

/// Reads until each of `sources` sources is at `end`.
pub async fn read_to(subscription: &mut Subscription, follow: &mut Follow, sources: u32, end: u64) {
    let mut out = Vec::new();
    while (0..sources).any(|source| follow.next(source) < end) {
        within("a delivery", subscription.next(&mut out)).await.expect("it goes on");
        out.iter().for_each(|delivery| follow.see(delivery));
    }
}

/// Returns the end of a subscription, after all remaining deliveries.
pub async fn read_to_end(subscription: &mut Subscription, follow: &mut Follow) -> Error {
    let mut out = Vec::new();
    loop {
        match within("the end", subscription.next(&mut out)).await {
            Ok(()) => out.iter().for_each(|delivery| follow.see(delivery)),
            Err(error) => return error,
        }
    }
}

/// Returns the value of a metric without labels.
pub fn metric(broker: &Broker, name: &str) -> u64 {
    let text = broker.stats().expect("metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no metric {name}")).parse().expect("a whole number")
}
