//! Token buckets of quotas, and the counts of clients that were delayed or refused.
//!
//! A bucket is one number, the time until which its tokens are used, so a charge is one compare-and-swap. Clients keep
//! the buckets that are theirs: the table is only read when their permissions change.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::security::{BucketKey, QuotaKind, charged_until, debt_at_rate, is_full};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::doors::Door;
use crate::metrics::{Counter, Exposition};

/// Maximum number of buckets of single users, client ids and addresses. Those beyond share the bucket of their quota.
const BUCKETS_MAX: usize = 16_384;
/// Time at which a table begins, so that a bucket can be full at its beginning.
const BEGIN_NS: u64 = 10_000_000_000;
/// Number of buckets from which full ones are removed when the table has doubled.
const SWEEP_MIN: usize = 64;
/// Minimum time between two removals of full buckets, which visit all of them.
const SWEEP_EVERY_NS: u64 = 100_000_000;

/// Use of the broker by a client, which is charged to its quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Usage {
    /// Returns the use of one request of this size.
    pub fn request(bytes_in: usize) -> Self {
        Self { requests: 1, bytes_in: bytes_in as u64, bytes_out: 0 }
    }

    /// Returns the use of a response or delivery of this size.
    pub fn response(bytes_out: usize) -> Self {
        Self { bytes_out: bytes_out as u64, ..Self::default() }
    }

    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the use of this and of another together.
    pub fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }

    /// Returns what is charged to a quota of this kind. Connections are charged when they begin, and counts are not
    /// charged.
    pub(crate) fn amount(&self, kind: QuotaKind) -> u64 {
        match kind {
            QuotaKind::BytesIn => self.bytes_in,
            QuotaKind::BytesOut => self.bytes_out,
            QuotaKind::Requests => self.requests,
            _ => 0,
        }
    }
}

/// Bucket of a quota. Times are in ns since the table was created.
#[derive(Debug)]
pub(crate) struct Bucket {
    until_ns: AtomicU64,
    /// Bits of the rate per second.
    rate: AtomicU64,
}

impl Bucket {
    fn new(rate: f64) -> Self {
        Self { until_ns: AtomicU64::new(0), rate: AtomicU64::new(rate.to_bits()) }
    }

    pub(crate) fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed))
    }

    /// Charges an amount. Returns the debt in ns.
    fn charge(&self, now_ns: u64, amount: u64) -> u64 {
        let rate = self.rate();
        let next = |until_ns| charged_until(until_ns, now_ns, amount, rate);
        let mut until_ns = self.until_ns.load(Ordering::Relaxed);
        loop {
            let charged = next(until_ns);
            match self.until_ns.compare_exchange_weak(until_ns, charged, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return charged.saturating_sub(now_ns),
                Err(other) => until_ns = other,
            }
        }
    }

    fn debt_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.load(Ordering::Relaxed).saturating_sub(now_ns)
    }

    /// Sets the rate, once for each change: the table is locked.
    fn set_rate(&self, now_ns: u64, rate: f64) {
        let previous = f64::from_bits(self.rate.swap(rate.to_bits(), Ordering::Relaxed));
        if previous != rate {
            let until_ns = self.until_ns.load(Ordering::Relaxed);
            // A charge that is made meanwhile is lost, which is less than one request.
            self.until_ns.store(debt_at_rate(until_ns, now_ns, previous, rate), Ordering::Relaxed);
        }
    }
}

/// All buckets, and what was delayed or refused.
pub(crate) struct Buckets {
    began: Instant,
    table: Mutex<Table>,
    shared: Counter,
    throttled: [Throttled; Door::ALL.len()],
}

struct Table {
    all: HashMap<BucketKey, Arc<Bucket>, foldhash::fast::RandomState>,
    /// Number of buckets at which full ones are removed.
    sweep_at: usize,
    /// Time of the last removal of full buckets.
    swept_ns: u64,
}

#[derive(Default)]
struct Throttled {
    requests: Counter,
    ms: Counter,
}

impl Buckets {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            table: Mutex::new(Table { all: HashMap::default(), sweep_at: SWEEP_MIN, swept_ns: 0 }),
            shared: Counter::default(),
            throttled: Default::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(BEGIN_NS)
    }

    /// Returns the bucket of a quota with this rate.
    pub(crate) fn get(&self, key: BucketKey, rate: f64) -> Arc<Bucket> {
        let now_ns = self.now_ns();
        let mut table = self.table.lock();
        let mut key = key;
        if !table.all.contains_key(&key) && table.all.len() >= table.sweep_at {
            table.sweep(now_ns);
            if table.all.len() >= BUCKETS_MAX {
                self.shared.add(1);
                key = key.shared();
            }
        }
        let bucket = table.all.entry(key).or_insert_with(|| Arc::new(Bucket::new(rate))).clone();
        bucket.set_rate(now_ns, rate);
        bucket
    }

    pub(crate) fn charge(&self, bucket: &Bucket, amount: u64) -> Duration {
        Duration::from_nanos(bucket.charge(self.now_ns(), amount))
    }

    pub(crate) fn debt(&self, bucket: &Bucket) -> Duration {
        Duration::from_nanos(bucket.debt_ns(self.now_ns()))
    }

    /// Counts a client that is delayed, or refused for this time.
    pub(crate) fn count(&self, door: Door, delay: Duration) {
        let throttled = &self.throttled[door as usize];
        throttled.requests.add(1);
        throttled.ms.add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let buckets = self.table.lock().all.len();
        out.gauge(
            "thalweg_quota_buckets",
            "Users, client ids and addresses whose use of quotas is tracked",
            buckets as u64,
        )?;
        out.counter(
            "thalweg_quota_buckets_shared",
            "Clients that share a bucket because the limit of buckets is reached",
            self.shared.get(),
        )?;
        let rows = |value: fn(&Throttled) -> u64| -> Vec<(String, u64)> {
            Door::ALL.iter().zip(&self.throttled).map(|(door, it)| (door.key().to_owned(), value(it))).collect()
        };
        let help = "Times that clients were delayed or refused by a quota";
        out.counters("thalweg_quota_throttled", help, "door", &rows(|it| it.requests.get()))?;
        let help = "Milliseconds by which clients were delayed or told to wait by a quota";
        out.counters("thalweg_quota_delay_milliseconds", help, "door", &rows(|it| it.ms.get()))
    }
}

impl Table {
    /// Removes the buckets that are full and that no client has: new ones in their place would make no difference. Does
    /// nothing soon after the last time.
    fn sweep(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns) < SWEEP_EVERY_NS {
            return;
        }
        self.swept_ns = now_ns;
        self.all.retain(|_, bucket| {
            Arc::strong_count(bucket) > 1 || !is_full(bucket.until_ns.load(Ordering::Relaxed), now_ns)
        });
        self.sweep_at = (2 * self.all.len()).clamp(SWEEP_MIN, BUCKETS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::security::{QuotaEntity, QuotaSubject, Quotas, UserName};

    /// Returns the key of a user's bucket, under a quota of each user.
    fn key(user: usize) -> BucketKey {
        let mut quotas = Quotas::default();
        let entity = QuotaEntity { subject: Some(QuotaSubject::EachUser), ..QuotaEntity::default() };
        quotas.set(entity, QuotaKind::Requests, 10.0);
        let user = UserName::parse(&format!("u{user}")).expect("a name");
        quotas.of_client(&user, [], None, QuotaKind::Requests).expect("a quota").0
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_is_in_debt_until_its_rate_has_paid() {
        let buckets = Buckets::new();
        let bucket = buckets.get(key(1), 10.0);
        assert_eq!(buckets.charge(&bucket, 10), Duration::ZERO, "a second of the rate is free");
        assert_eq!(buckets.charge(&bucket, 5), Duration::from_millis(500));
        tokio::time::advance(Duration::from_millis(300)).await;
        assert_eq!(buckets.debt(&bucket), Duration::from_millis(200));
        assert!(Arc::ptr_eq(&bucket, &buckets.get(key(1), 20.0)), "another rate is that of the same bucket");
        assert_eq!(buckets.debt(&bucket), Duration::from_millis(100));
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(buckets.debt(&bucket), Duration::ZERO);
        assert_eq!(buckets.debt(&buckets.get(key(2), 10.0)), Duration::ZERO, "others have their own");
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_forgets_only_full_buckets() {
        let buckets = Buckets::new();
        for user in 0..BUCKETS_MAX {
            buckets.charge(&buckets.get(key(user), 10.0), 20);
        }
        let shared = [BUCKETS_MAX, BUCKETS_MAX + 1].map(|user| buckets.get(key(user), 10.0));
        assert!(Arc::ptr_eq(&shared[0], &shared[1]), "there is no room, so both share one");
        assert_eq!(buckets.shared.get(), 2);
        assert_eq!(buckets.charge(&buckets.get(key(0), 10.0), 0), Duration::from_secs(1), "its debt is not forgotten");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!Arc::ptr_eq(&shared[0], &buckets.get(key(BUCKETS_MAX), 10.0)));
        assert_eq!(buckets.table.lock().all.len(), 2, "the shared one is held");
    }

    #[test]
    fn charges_of_many_threads_add_up() {
        let buckets = Buckets::new();
        let bucket = buckets.get(key(1), 1.0);
        let charge = || (0..1000).for_each(|_| assert!(bucket.charge(BEGIN_NS, 0) == 0));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(charge))));
        let charge = || (0..10).for_each(|_| assert!(bucket.charge(BEGIN_NS, 1) < 40_000_000_000));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(charge))));
        assert_eq!(bucket.debt_ns(BEGIN_NS), 39_000_000_000, "one of forty seconds was saved");
    }
}
