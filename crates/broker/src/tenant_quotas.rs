//! Quotas of what has the names of a tenant: topics, queues, caches and stored bytes.
//!
//! These objects have no owner: they count for the tenant whose prefix their names have, and it does not matter which
//! client creates or fills them. Creations are checked when they happen. The stored bytes are measured every second.
//! Publishes to the topics of a tenant that has too many are refused until a later measurement finds fewer. The
//! broker's own work has no such limit.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::security::{QuotaEntity, QuotaKind, QuotaSubject, Quotas, TenantName};
use engine::{Error, Result};
use parking_lot::RwLock;

use crate::acting;
use crate::metrics::{Counter, Exposition};

/// Time after which a client may try again: the interval of the measurements of stored bytes.
const RETRY_MS: u32 = 1000;
/// Kinds of objects whose creation is refused.
const CREATED: [QuotaKind; 3] = [QuotaKind::Topics, QuotaKind::Queues, QuotaKind::Caches];

/// Numbers of objects by the tenant of their names.
#[derive(Default)]
pub(crate) struct ByTenant(HashMap<TenantName, usize, foldhash::fast::RandomState>);

impl ByTenant {
    pub(crate) fn add(&mut self, name: &str) {
        if let Some(tenant) = TenantName::of_inner(name) {
            *self.0.entry(tenant).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some(tenant) = TenantName::of_inner(name) else { return };
        if let Some(count) = self.0.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&tenant);
            }
        }
    }

    pub(crate) fn get(&self, tenant: &TenantName) -> usize {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

/// Quotas of one tenant, by kind.
type Limits = [Option<f64>; QuotaKind::ALL.len()];

/// Quotas of all tenants, as the core knows them, and what they have refused.
#[derive(Default)]
pub(crate) struct TenantQuotas {
    /// `false` if no tenant has a quota.
    is_any: AtomicBool,
    limits: RwLock<HashMap<TenantName, Limits, foldhash::fast::RandomState>>,
    /// Stored bytes of the tenants that have a quota of them, when they were last measured.
    stored: RwLock<HashMap<TenantName, u64, foldhash::fast::RandomState>>,
    refused: [Counter; CREATED.len()],
    publishes_refused: Counter,
}

impl TenantQuotas {
    /// Replaces the quotas of all tenants.
    pub(crate) fn set(&self, quotas: &Quotas) {
        let mut limits = HashMap::<_, Limits, _>::default();
        for (entity, values) in quotas.iter() {
            if let QuotaEntity { subject: Some(QuotaSubject::Tenant(tenant)), .. } = entity {
                let of_tenant = limits.entry(tenant.clone()).or_default();
                values.into_iter().for_each(|(kind, value)| of_tenant[kind as usize - 1] = Some(value));
            }
        }
        self.is_any.store(!limits.is_empty(), Ordering::Relaxed);
        *self.limits.write() = limits;
    }

    fn get(&self, tenant: &TenantName, kind: QuotaKind) -> Option<f64> {
        self.limits.read().get(tenant)?[kind as usize - 1]
    }

    /// Refuses to create another object for a client, if the tenant of its name has as many as its quota allows.
    /// `count` returns their number.
    pub(crate) fn admit(&self, kind: QuotaKind, name: &str, count: impl FnOnce(&TenantName) -> usize) -> Result<()> {
        if !self.is_any.load(Ordering::Relaxed) || acting::current().is_none() {
            return Ok(());
        }
        let Some(tenant) = TenantName::of_inner(name) else { return Ok(()) };
        let Some(max) = self.get(&tenant, kind) else { return Ok(()) };
        let count = count(&tenant);
        if (count as f64) < max {
            return Ok(());
        }
        if let Some(at) = CREATED.iter().position(|created| *created == kind) {
            self.refused[at].add(1);
        }
        let what = kind.name();
        let message = format!(
            "tenant {tenant} has {count} {what}, and its quota is {max}: delete one first, or have the quota raised \
             (thalweg quota)"
        );
        Err(Error::throttled(message, RETRY_MS))
    }

    /// Returns the tenants that have a quota of stored bytes.
    pub(crate) fn measured(&self) -> Vec<TenantName> {
        if !self.is_any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let limits = self.limits.read();
        let is_limited = |limits: &Limits| limits[QuotaKind::StoredBytes as usize - 1].is_some();
        limits.iter().filter(|(_, limits)| is_limited(limits)).map(|(tenant, _)| tenant.clone()).collect()
    }

    /// Returns `true` if stored bytes of tenants were measured the last time, so that some may be refused publishes.
    pub(crate) fn has_measured(&self) -> bool {
        !self.stored.read().is_empty()
    }

    /// Notes the stored bytes of all tenants of [`measured`](Self::measured). Returns those that have too many.
    pub(crate) fn note_stored(&self, stored: HashMap<TenantName, u64, foldhash::fast::RandomState>) -> Vec<TenantName> {
        let is_full = |(tenant, bytes): &(&TenantName, &u64)| {
            self.get(tenant, QuotaKind::StoredBytes).is_some_and(|max| **bytes as f64 >= max)
        };
        let full = stored.iter().filter(is_full).map(|(tenant, _)| tenant.clone()).collect();
        *self.stored.write() = stored;
        full
    }

    /// Returns the error for a publish to a topic whose tenant stores too many bytes, and counts it.
    #[cold]
    pub(crate) fn refuse_publish(&self, topic: &str) -> Error {
        self.publishes_refused.add(1);
        let tenant = TenantName::of_inner(topic);
        let of = |tenant: &TenantName| {
            let bytes = self.stored.read().get(tenant).copied().unwrap_or_default();
            let max = self.get(tenant, QuotaKind::StoredBytes).unwrap_or_default();
            format!("tenant {tenant} stores {bytes} bytes, and its quota stored_bytes is {max}")
        };
        let why = tenant.as_ref().map_or_else(|| "a quota of stored_bytes is exceeded".to_owned(), of);
        let message = format!(
            "{topic}: {why}: delete records or topics, wait until retention does, or have the quota raised (thalweg \
             quota)"
        );
        Error::throttled(message, RETRY_MS)
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let rows: Vec<_> =
            CREATED.iter().zip(&self.refused).map(|(kind, count)| (kind.name().to_owned(), count.get())).collect();
        let help = "Creations refused because of a quota of their tenant";
        out.counters("thalweg_quota_creations_refused", help, "quota", &rows)?;
        let help = "Publishes refused because of a quota of stored bytes";
        out.counter("thalweg_quota_publishes_refused", help, self.publishes_refused.get())?;
        let rows: Vec<_> = {
            let stored = self.stored.read();
            stored.iter().map(|(tenant, bytes)| (tenant.to_string(), *bytes)).collect()
        };
        let help = "Stored bytes of tenants that have a quota of them";
        out.gauges("thalweg_tenant_stored_bytes", help, "tenant", &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acting::{Acting, act_for};
    use crate::doors::Door;

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect("a name")
    }

    fn with(kind: QuotaKind, value: f64) -> TenantQuotas {
        let mut quotas = Quotas::default();
        let subject = Some(QuotaSubject::Tenant(tenant("acme")));
        quotas.set(QuotaEntity { subject, ..QuotaEntity::default() }, kind, value);
        let limits = TenantQuotas::default();
        limits.set(&quotas);
        limits
    }

    #[test]
    fn names_are_counted_by_their_tenant() {
        let mut counts = ByTenant::default();
        ["acme.a", "acme.b", "acmes.a", "a", "_project.acme.a"].iter().for_each(|name| counts.add(name));
        assert_eq!((counts.get(&tenant("acme")), counts.get(&tenant("project:acme"))), (2, 1));
        ["acme.a", "acme.b", "a"].iter().for_each(|name| counts.remove(name));
        assert_eq!((counts.get(&tenant("acme")), counts.0.len()), (0, 2));
    }

    #[test]
    fn clients_create_as_much_as_a_quota_allows_and_the_broker_more() {
        let quotas = with(QuotaKind::Topics, 2.0);
        let admit = |name, count| quotas.admit(QuotaKind::Topics, name, |_| count);
        assert!(admit("acme.t", 2).is_ok(), "the broker itself");
        act_for(Some(Acting::anonymous(Door::Http, None)));
        assert!(admit("acme.t", 1).is_ok() && admit("other.t", 9).is_ok() && admit("t", 9).is_ok());
        assert!(quotas.admit(QuotaKind::Queues, "acme.q", |_| 9).is_ok(), "each kind has its own quota");
        let refused = admit("acme.t", 2).expect_err("too many");
        act_for(None);
        assert!(refused.is_throttled() && refused.message.contains("acme has 2 topics"), "{refused}");
        assert_eq!(quotas.refused[0].get(), 1);
    }

    #[test]
    fn a_tenant_is_full_until_it_stores_less() {
        let quotas = with(QuotaKind::StoredBytes, 100.0);
        assert_eq!(quotas.measured(), [tenant("acme")]);
        let stored = |bytes| HashMap::from_iter([(tenant("acme"), bytes)]);
        assert_eq!(quotas.note_stored(stored(100)), [tenant("acme")]);
        assert!(
            quotas.refuse_publish("acme.t").message.contains("stores 100 bytes, and its quota stored_bytes is 100")
        );
        assert!(quotas.note_stored(stored(99)).is_empty());
        quotas.set(&Quotas::default());
        assert!(quotas.measured().is_empty());
    }
}
