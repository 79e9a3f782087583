//! Quotas: their changes, and what clients are charged.
//!
//! A client that exceeds a quota is in debt until its rate has paid for what it did. A debt for reading does not delay
//! writing. A door of a protocol with back-pressure charges first and then does not read the connection for the time
//! that a charge returns, or in steps ([`Security::repaid`]). A door without it checks first ([`Security::admit`]) and
//! refuses a client in debt.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::security::{QuotaEntity, QuotaKind, SecurityRecord};
use engine::{Error, Result};
use tokio::time::Instant;

use super::unwelcome::{REFUSED_MAX, Unwelcome};
use super::{Identity, Security, listed};
use crate::doors::Door;
use crate::holdings::{Hold, Holding};
use crate::quotas::Usage;

/// Maximum time for which a client is delayed once. Clients of Kafka and others give up on a request after 30 s.
const DELAY_MAX: Duration = Duration::from_secs(30);
/// Minimum debt for which a request is refused: a client is told to wait for a second or more.
const REFUSED_DEBT_MIN: Duration = Duration::from_millis(1);
/// Time after which a delayed client is checked again: its quota may have been raised or deleted.
const DELAY_STEP: Duration = Duration::from_millis(250);

/// Change of one quota; `None` deletes it.
pub type QuotaChange = (QuotaEntity, QuotaKind, Option<f64>);

impl Security {
    /// Returns all entities that have quotas, in their order.
    pub async fn quotas(&self) -> Result<Vec<(QuotaEntity, Vec<(QuotaKind, f64)>)>> {
        self.open().await?;
        let tables = self.permissions.read();
        Ok(tables.quotas.iter().map(|(entity, values)| (entity.clone(), values)).collect())
    }

    /// Sets and deletes quotas. The change is atomic, and durable when this completes. A quota that does not exist is
    /// deleted without an error.
    pub async fn change_quotas(self: &Arc<Self>, changes: Vec<QuotaChange>) -> Result<()> {
        let names = listed(changes.iter().map(|(entity, kind, value)| match value {
            Some(value) => format!("{entity} {} {value}", kind.name()),
            None => format!("{entity} {} deleted", kind.name()),
        }));
        let act = self.change(|tables, _| {
            let mut fresh = BTreeSet::new();
            for (entity, kind, value) in &changes {
                match value {
                    Some(value) => entity.validate_value(*kind, *value)?,
                    None => entity.validate()?,
                }
                if value.is_some() && tables.quotas.get(entity, *kind).is_none() {
                    fresh.insert((entity, *kind));
                }
            }
            tables.quotas.check_room(fresh.len())?;
            let is_change = |(entity, kind, value): &QuotaChange| tables.quotas.get(entity, *kind) != *value;
            let changes: Vec<QuotaChange> = changes.iter().filter(|change| is_change(change)).cloned().collect();
            let record = |(entity, kind, value)| SecurityRecord::Quota { entity, kind, value };
            Ok((changes.into_iter().map(record).collect(), ()))
        });
        self.core.audited("change quotas", &names, act).await
    }

    /// Returns `true` if there are quotas. Without any, nothing is charged.
    #[inline]
    pub fn has_quotas(&self) -> bool {
        self.permissions.has_quotas()
    }

    /// Charges a client. Returns the time for which it should be delayed, which is counted as a delay at this door.
    /// `client` is the client id, which only Kafka's clients have.
    #[inline]
    pub fn charge(&self, door: Door, identity: &Identity, client: Option<&str>, usage: Usage) -> Duration {
        if !self.has_quotas() || usage.is_none() {
            return Duration::ZERO;
        }
        self.charge_buckets(door, identity, client, usage)
    }

    fn charge_buckets(&self, door: Door, identity: &Identity, client: Option<&str>, usage: Usage) -> Duration {
        let delay = self.charge_all(identity, client, usage);
        self.count_delay(door, delay)
    }

    /// Charges all quotas of a client. Returns the longest debt of those that this use is charged to.
    fn charge_all(&self, identity: &Identity, client: Option<&str>, usage: Usage) -> Duration {
        let mut delay = Duration::ZERO;
        self.permissions.each_bucket(&self.buckets, identity, client, |kind, bucket| {
            let amount = usage.amount(kind);
            if amount > 0 {
                delay = delay.max(self.buckets.charge(bucket, amount));
            }
        });
        delay
    }

    /// Charges a client that will be refused if it is still in debt with its next request.
    pub fn charge_later(&self, identity: &Identity, usage: Usage) {
        if self.has_quotas() && !usage.is_none() {
            self.charge_all(identity, None, usage);
        }
    }

    fn count_delay(&self, door: Door, delay: Duration) -> Duration {
        let delay = delay.min(DELAY_MAX);
        if !delay.is_zero() {
            self.buckets.count(door, delay);
        }
        delay
    }

    /// Returns the time for which a client should be delayed because it is in debt for the quotas that this use is
    /// charged to.
    pub fn debt(&self, identity: &Identity, client: Option<&str>, usage: Usage) -> Duration {
        let mut debt = Duration::ZERO;
        if self.has_quotas() {
            self.permissions.each_bucket(&self.buckets, identity, client, |kind, bucket| {
                if usage.amount(kind) > 0 {
                    debt = debt.max(self.buckets.debt(bucket));
                }
            });
        }
        debt.min(DELAY_MAX)
    }

    /// Returns the bytes that a client may read at once without a delay, at least 1, if it has not read any lately.
    pub fn bytes_out_saved(&self, identity: &Identity, client: Option<&str>) -> usize {
        let mut saved = usize::MAX;
        if self.has_quotas() {
            self.permissions.each_bucket(&self.buckets, identity, client, |kind, bucket| {
                if kind == QuotaKind::BytesOut {
                    // A bucket saves a second of its rate. The conversion saturates.
                    saved = saved.min((bucket.rate() as usize).max(1));
                }
            });
        }
        saved
    }

    /// Refuses a client that is in debt for a quota that this use is charged to, with the time to wait. Charges the use
    /// otherwise, which may exceed the quota: later requests pay for it. `reads` is `true` if the response has data,
    /// whose size is charged once it is known.
    #[inline]
    pub fn admit(&self, door: Door, identity: &Identity, usage: Usage, reads: bool) -> Result<()> {
        if !self.has_quotas() {
            return Ok(());
        }
        let debt = self.debt(identity, None, usage.and(Usage::response(usize::from(reads))));
        if debt < REFUSED_DEBT_MIN {
            self.charge_all(identity, None, usage);
            return Ok(());
        }
        Err(exceeded(identity, self.count_delay(door, debt)))
    }

    /// Charges a new connection from an address. Returns the refusal if there were too many: the door does not serve
    /// the connection, and closes it after a while, as Kafka does (KIP-612).
    pub fn connected(&self, door: Door, address: Option<IpAddr>) -> Option<Unwelcome> {
        let address = address.filter(|_| self.has_quotas())?;
        let (key, rate) = self.permissions.read().quotas.of_address(address, QuotaKind::Connections)?;
        let bucket = self.buckets.get(key, rate);
        let debt = self.buckets.debt(&bucket);
        if debt.is_zero() {
            self.buckets.charge(&bucket, 1);
            return None;
        }
        let closes_after = debt.min(REFUSED_MAX);
        self.buckets.count(door, closes_after);
        if self.unwelcome.add(door, self.core.now_ms()) {
            tracing::info!(%door, %address, rate, "refused a connection: its address opens more than its quota allows");
        }
        let message = format!(
            "{address} opens more connections than its quota connections allows ({rate} per second): wait {} ms, or \
             have the quota raised (thalweg quota)",
            closes_after.as_millis().max(1)
        );
        let error = Error::throttled(message, u32::try_from(closes_after.as_millis()).unwrap_or(u32::MAX));
        Some(Unwelcome { closes_after, error })
    }

    /// Counts a connection or a subscription of a client, until what this returns is dropped. Refuses it if the user or
    /// the tenant of the client has as many as a quota allows.
    pub fn hold(&self, door: Door, identity: &Identity, kind: Holding) -> Result<Hold> {
        let max = self.permissions.holdings_max(identity, kind.quota());
        self.holdings.take(door, kind, identity.user(), identity.tenant(), max)
    }

    /// Counts a connection for the client that has logged in on it, instead of for the one before, which `held` counts.
    pub fn hold_connection(&self, door: Door, identity: &Identity, held: &mut Option<Hold>) -> Result<()> {
        if held.as_ref().is_none_or(|held| !held.is_of(identity.user(), identity.tenant())) {
            *held = Some(self.hold(door, identity, Holding::Connection)?);
        }
        Ok(())
    }

    /// Waits until a client is no longer in debt for this use, but not longer than clients wait for an answer.
    pub async fn repaid(self: Arc<Self>, identity: Arc<Identity>, usage: Usage) {
        self.repaid_within(identity, None, usage, DELAY_MAX).await;
    }

    /// Waits until a client is no longer in debt for this use, at most for this time.
    pub async fn repaid_within(
        self: Arc<Self>,
        identity: Arc<Identity>,
        client: Option<Box<str>>,
        usage: Usage,
        max: Duration,
    ) {
        let until = Instant::now() + max;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = self.debt(&identity, client.as_deref(), usage).min(left).min(DELAY_STEP);
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }
}

#[cold]
fn exceeded(identity: &Identity, delay: Duration) -> Error {
    let wait_ms = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX).max(1);
    // Whole seconds, as in the header Retry-After.
    let message = format!(
        "User:{} at {} has exceeded a quota: send less, wait {} s, or have the quota raised (thalweg quota)",
        identity.user(),
        identity.host(),
        wait_ms.div_ceil(1000)
    );
    Error::throttled(message, wait_ms)
}
