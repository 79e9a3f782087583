//! Counts of what clients hold at one time: open connections and subscriptions, of each user and of each tenant.
//!
//! A count changes when something begins and when it ends, never while it is used. It changes without a quota, too, so
//! that a quota that is set later counts what exists. An entry of the table exists as long as its user or tenant holds
//! something, so the limits of connections and subscriptions bound the table.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use engine::security::{QuotaKind, TenantName, UserName};
use engine::{Error, Result};
use parking_lot::Mutex;

use crate::doors::Door;
use crate::metrics::{Counter, Exposition};

/// Time after which a client may try again. When another client releases what it holds is not known.
const RETRY_MS: u32 = 1000;

/// Kind of what a client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    Connection,
    Subscription,
}

impl Holding {
    const ALL: [Self; 2] = [Self::Connection, Self::Subscription];

    pub(crate) fn quota(self) -> QuotaKind {
        match self {
            Self::Connection => QuotaKind::OpenConnections,
            Self::Subscription => QuotaKind::Subscriptions,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Connection => "open connections",
            Self::Subscription => "subscriptions",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    User(UserName),
    Tenant(TenantName),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "User:{user}"),
            Self::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// Quotas that are effective for a client: of its user, and of its tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldingsMax {
    pub of_user: Option<f64>,
    pub of_tenant: Option<f64>,
}

/// Table of what all clients hold.
#[derive(Default)]
pub(crate) struct Holdings {
    table: Mutex<HashMap<Holder, [u64; Holding::ALL.len()], foldhash::fast::RandomState>>,
    refused: [[Counter; Door::ALL.len()]; Holding::ALL.len()],
}

/// Connection or subscription that is counted until this is dropped.
#[must_use = "it is counted as long as this exists"]
pub struct Hold {
    holdings: Arc<Holdings>,
    kind: Holding,
    user: UserName,
    tenant: Option<TenantName>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({:?} of {})", self.kind, self.user)
    }
}

impl Hold {
    /// Returns `true` if it is counted for this user and tenant.
    pub(crate) fn is_of(&self, user: &UserName, tenant: Option<&TenantName>) -> bool {
        self.user == *user && self.tenant.as_ref() == tenant
    }

    fn holders(&self) -> impl Iterator<Item = Holder> + use<> {
        holders(&self.user, self.tenant.as_ref())
    }
}

fn holders(user: &UserName, tenant: Option<&TenantName>) -> impl Iterator<Item = Holder> + use<> {
    [Holder::User(user.clone())].into_iter().chain(tenant.cloned().map(Holder::Tenant))
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.holdings.table.lock();
        for holder in self.holders() {
            if let Some(counts) = table.get_mut(&holder) {
                counts[self.kind as usize] -= 1;
                if *counts == [0; Holding::ALL.len()] {
                    table.remove(&holder);
                }
            }
        }
    }
}

impl Holdings {
    /// Counts another connection or subscription of a client, unless its user or its tenant holds as many as its quota
    /// allows.
    pub(crate) fn take(
        self: &Arc<Self>,
        door: Door,
        kind: Holding,
        user: &UserName,
        tenant: Option<&TenantName>,
        max: HoldingsMax,
    ) -> Result<Hold> {
        let mut table = self.table.lock();
        for (holder, max) in holders(user, tenant).zip([max.of_user, max.of_tenant]) {
            let count = table.get(&holder).map_or(0, |counts| counts[kind as usize]);
            if let Some(max) = max.filter(|max| count as f64 >= *max) {
                drop(table);
                self.refused[kind as usize][door as usize].add(1);
                return Err(too_many(&holder, kind, max));
            }
        }
        holders(user, tenant).for_each(|holder| table.entry(holder).or_default()[kind as usize] += 1);
        drop(table);
        Ok(Hold { holdings: self.clone(), kind, user: user.clone(), tenant: tenant.cloned() })
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let holders = self.table.lock().len() as u64;
        let help = "Users and tenants whose open connections and subscriptions are counted";
        out.gauge("thalweg_quota_holders", help, holders)?;
        let rows = |kind: Holding| -> Vec<(String, u64)> {
            let refused = Door::ALL.iter().zip(&self.refused[kind as usize]);
            refused.map(|(door, count)| (door.key().to_owned(), count.get())).collect()
        };
        let help = "Connections and requests refused because of a quota of open connections";
        out.counters("thalweg_quota_open_connections_refused", help, "door", &rows(Holding::Connection))?;
        let help = "Subscriptions refused because of a quota of subscriptions";
        out.counters("thalweg_quota_subscriptions_refused", help, "door", &rows(Holding::Subscription))
    }
}

#[cold]
fn too_many(holder: &Holder, kind: Holding, max: f64) -> Error {
    let words = kind.words();
    let message = format!(
        "{holder} has {max} {words}, which is the quota: close one first, or have the quota {} raised (thalweg quota)",
        kind.quota().name()
    );
    Error::throttled(message, RETRY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        UserName::parse(name).expect("a name")
    }

    fn max(of_user: Option<f64>, of_tenant: Option<f64>) -> HoldingsMax {
        HoldingsMax { of_user, of_tenant }
    }

    #[test]
    fn a_user_and_a_tenant_hold_as_many_as_their_quotas_allow() {
        let holdings = Arc::new(Holdings::default());
        let acme = TenantName::parse("acme").expect("a name");
        let take = |kind, name: &str, max| holdings.take(Door::Native, kind, &user(name), Some(&acme), max);
        let first = take(Holding::Connection, "ann", max(Some(1.0), Some(2.0))).expect("room");
        let refused = take(Holding::Connection, "ann", max(Some(1.0), Some(2.0))).expect_err("her quota");
        assert!(refused.is_throttled() && refused.message.contains("User:ann has 1 open connections"), "{refused}");
        let second = take(Holding::Connection, "bob", max(Some(1.0), Some(2.0))).expect("room");
        let refused = take(Holding::Connection, "carl", max(None, Some(2.0))).expect_err("that of the tenant");
        assert!(refused.message.contains("tenant acme has 2"), "{refused}");
        let other = take(Holding::Subscription, "ann", max(Some(1.0), Some(1.0))).expect("each kind has a count");
        drop(first);
        let again = take(Holding::Connection, "ann", max(Some(1.0), Some(2.0))).expect("room again");
        assert_eq!(holdings.table.lock().len(), 3, "two users and a tenant");
        drop((second, other, again));
        assert!(holdings.table.lock().is_empty(), "nobody holds anything");
        assert_eq!(holdings.refused[Holding::Connection as usize][Door::Native as usize].get(), 2);
    }

    #[test]
    fn what_exists_before_a_quota_counts_for_it() {
        let holdings = Arc::new(Holdings::default());
        let take = |max| holdings.take(Door::Http, Holding::Subscription, &user("ann"), None, max);
        let before = [take(HoldingsMax::default()), take(HoldingsMax::default())].map(|hold| hold.expect("no quota"));
        assert!(take(max(Some(2.0), None)).is_err() && take(max(Some(3.0), None)).is_ok());
        drop(before);
        assert!(take(max(Some(1.0), None)).is_ok());
    }
}
