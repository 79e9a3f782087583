//! Quotas: what the clients of a user, of a role, of a tenant, with a client id or at an address may not exceed.
//!
//! A quota is a rate per second, or a count of what exists at one time. The rates of users and client ids are Kafka's
//! (KIP-13, KIP-55, KIP-546): of all that match a client, the most specific one is effective. Quotas of roles rank
//! between those of a user and those of all users. The quota of an address (KIP-612) is effective in addition, and so
//! is that of a tenant: it is shared by all users of the tenant, and a user with a quota must not escape it. A rate is
//! enforced by a token bucket, whose arithmetic is [`charged_until`].

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{RoleName, TenantName, UserName};
use crate::error::{Error, Result};
use crate::limits::{QUOTA_CLIENT_BYTES_MAX, QUOTAS_MAX};

/// Time in ns for which the tokens of an idle client are saved: it may send this much of its rate at once.
const BURST_NS: u64 = NS_PER_S;
/// Maximum time in ns for which one bucket is in debt. It bounds what a mistake in a quota can cost.
const DEBT_NS_MAX: u64 = 600 * NS_PER_S;
const NS_PER_S: u64 = 1_000_000_000;
/// Maximum fraction of a value that has to be a whole number; Kafka's (`ClientQuotaControlManager`).
const FRACTION_MAX: f64 = 1e-6;

/// Rate or count that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum QuotaKind {
    /// Bytes per second of requests with records and messages.
    BytesIn = 1,
    /// Bytes per second that clients read.
    BytesOut = 2,
    /// Requests per second.
    Requests = 3,
    /// New connections per second; of addresses only.
    Connections = 4,
    /// Connections that are open at one time; of users, roles and tenants.
    OpenConnections = 5,
    /// Subscriptions that are open at one time; of users, roles and tenants.
    Subscriptions = 6,
    /// Topics with names of a tenant, including those of its queues.
    Topics = 7,
    /// Queues with names of a tenant.
    Queues = 8,
    /// Caches with names of a tenant.
    Caches = 9,
    /// Bytes in the logs of the topics with names of a tenant.
    StoredBytes = 10,
}

/// Subjects that a quota of a kind can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Any clients.
    Clients,
    Addresses,
    /// Users, roles and tenants, without a client id.
    Holders,
    Tenants,
}

impl QuotaKind {
    pub const ALL: [Self; 10] = [
        Self::BytesIn,
        Self::BytesOut,
        Self::Requests,
        Self::Connections,
        Self::OpenConnections,
        Self::Subscriptions,
        Self::Topics,
        Self::Queues,
        Self::Caches,
        Self::StoredBytes,
    ];
    /// Rates with which clients are charged for their requests.
    pub const CHARGED: [Self; 3] = [Self::BytesIn, Self::BytesOut, Self::Requests];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::BytesIn => "bytes_in",
            Self::BytesOut => "bytes_out",
            Self::Requests => "requests",
            Self::Connections => "connections",
            Self::OpenConnections => "open_connections",
            Self::Subscriptions => "subscriptions",
            Self::Topics => "topics",
            Self::Queues => "queues",
            Self::Caches => "caches",
            Self::StoredBytes => "stored_bytes",
        }
    }

    /// Returns `true` for a rate per second, `false` for a count of what exists at one time.
    pub fn is_rate(self) -> bool {
        self.scope() == Scope::Clients || self == Self::Connections
    }

    /// Returns `true` if the value is a number of bytes, or of bytes per second.
    pub fn is_of_bytes(self) -> bool {
        matches!(self, Self::BytesIn | Self::BytesOut | Self::StoredBytes)
    }

    fn scope(self) -> Scope {
        match self {
            Self::BytesIn | Self::BytesOut | Self::Requests => Scope::Clients,
            Self::Connections => Scope::Addresses,
            Self::OpenConnections | Self::Subscriptions => Scope::Holders,
            Self::Topics | Self::Queues | Self::Caches | Self::StoredBytes => Scope::Tenants,
        }
    }

    /// Returns the maximum value if values are whole numbers, as those of Kafka's keys are.
    fn whole_max(self) -> Option<f64> {
        match self {
            Self::BytesIn | Self::BytesOut | Self::StoredBytes => Some(i64::MAX as f64),
            Self::Requests => None,
            _ => Some(f64::from(i32::MAX)),
        }
    }

    /// Checks a value, which is a rate per second or a count.
    pub fn validate(self, value: f64) -> Result<()> {
        let name = self.name();
        if !(value.is_finite() && value > 0.0) {
            return Err(Error::invalid(format!("quota {name}={value} must be greater than 0, and finite")));
        }
        match self.whole_max() {
            Some(max) if value > max => Err(Error::invalid(format!("quota {name}={value} must be at most {max}"))),
            Some(_) if value % 1.0 > FRACTION_MAX => {
                Err(Error::invalid(format!("quota {name}={value} cannot be a fractional value")))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for QuotaKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("there is no quota '{name}': choose one of {known}"))
        })
    }
}

/// One object by its name, or each object without a more specific quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Which<T> {
    One(T),
    Default,
}

/// Whose clients a quota limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaSubject {
    /// All clients of one user together.
    User(UserName),
    /// The clients of each user without a more specific quota; each user has this rate alone.
    EachUser,
    /// The clients of each user that has a role; each user has this rate alone.
    Role(RoleName),
    /// All clients of one tenant together, and what has its names.
    Tenant(TenantName),
}

/// Clients that a quota limits: those of a subject, those with a client id, those of a subject that have a client id,
/// or those at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuotaEntity {
    pub subject: Option<QuotaSubject>,
    /// Client id, which only Kafka's clients have.
    pub client: Option<Which<Box<str>>>,
    /// Address, which no other field may be combined with.
    pub address: Option<Which<IpAddr>>,
}

impl QuotaEntity {
    pub fn validate(&self) -> Result<()> {
        let Self { subject, client, address } = self;
        if let Some(Which::One(client)) = client
            && (client.is_empty() || client.len() > QUOTA_CLIENT_BYTES_MAX)
        {
            return Err(Error::invalid(format!("the client id of a quota has 1 to {QUOTA_CLIENT_BYTES_MAX} bytes")));
        }
        if matches!(subject, Some(QuotaSubject::Tenant(_))) && client.is_some() {
            return Err(Error::invalid("a quota of a tenant cannot be combined with a client id"));
        }
        match (subject.is_some() || client.is_some(), address) {
            (false, None) => Err(Error::invalid("a quota needs a user, a role, a tenant, a client id or an address")),
            (true, Some(_)) => {
                let message = "a quota of an address cannot be combined with a user, a role, a tenant or a client id";
                Err(Error::invalid(message))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the entity can have a quota of this kind with this value.
    pub fn validate_value(&self, kind: QuotaKind, value: f64) -> Result<()> {
        self.validate()?;
        let Self { subject, client, address } = self;
        let name = kind.name();
        match kind.scope() {
            Scope::Addresses if address.is_none() => Err(Error::invalid(format!(
                "a quota of {name} needs an address: clients connect before they log in. open_connections limits those \
                 of a user, a role or a tenant"
            ))),
            Scope::Holders if subject.is_none() || client.is_some() => {
                Err(Error::invalid(format!("a quota of {name} needs a user, a role or a tenant, and no client id")))
            }
            Scope::Tenants if !matches!(subject, Some(QuotaSubject::Tenant(_))) => Err(Error::invalid(format!(
                "a quota of {name} needs a tenant: what exists has no owner, but a name, whose prefix is the tenant's"
            ))),
            _ => kind.validate(value),
        }
    }
}

/// Writes `user ann, client app`.
impl fmt::Display for QuotaEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        match &self.subject {
            Some(QuotaSubject::User(user)) => write!(f, "user {user}")?,
            Some(QuotaSubject::EachUser) => f.write_str("each user")?,
            Some(QuotaSubject::Role(role)) => write!(f, "role {role}")?,
            Some(QuotaSubject::Tenant(tenant)) => write!(f, "tenant {tenant}")?,
            None => {}
        }
        if self.subject.is_some() {
            separator = ", ";
        }
        match &self.client {
            Some(Which::One(client)) => write!(f, "{separator}client {client}")?,
            Some(Which::Default) => write!(f, "{separator}each client")?,
            None => {}
        }
        match &self.address {
            Some(Which::One(address)) => write!(f, "address {address}"),
            Some(Which::Default) => f.write_str("each address"),
            None => Ok(()),
        }
    }
}

/// Bucket that a client shares with others: the quota that it is for, and the object that has this rate alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    pub entity: QuotaEntity,
    pub kind: QuotaKind,
    /// `None` if the bucket is not of one user.
    user: Option<UserName>,
    /// `None` if the bucket is not of one client id.
    client: Option<Box<str>>,
    /// `None` if the bucket is not of one address. For IPv6 the first 64 bits, which one client can choose from.
    address: Option<IpAddr>,
}

impl BucketKey {
    /// Returns the key of the bucket that all clients of the quota share: for those that no bucket is left for.
    pub fn shared(self) -> Self {
        Self { user: None, client: None, address: None, ..self }
    }
}

/// Quotas of one entity, by kind.
type Values = [Option<f64>; QuotaKind::ALL.len()];

/// Table of all quotas.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    by_entity: BTreeMap<QuotaEntity, Values>,
    count: usize,
}

impl Quotas {
    /// Checks that there is room for `more` quotas.
    pub fn check_room(&self, more: usize) -> Result<()> {
        if self.count + more > QUOTAS_MAX {
            return Err(Error::busy(format!("quota limit reached ({QUOTAS_MAX}): delete one first")));
        }
        Ok(())
    }

    pub fn get(&self, entity: &QuotaEntity, kind: QuotaKind) -> Option<f64> {
        self.by_entity.get(entity)?[kind as usize - 1]
    }

    pub fn set(&mut self, entity: QuotaEntity, kind: QuotaKind, value: f64) {
        let previous = self.by_entity.entry(entity).or_default()[kind as usize - 1].replace(value);
        self.count += usize::from(previous.is_none());
    }

    pub fn remove(&mut self, entity: &QuotaEntity, kind: QuotaKind) {
        let Some(values) = self.by_entity.get_mut(entity) else { return };
        self.count -= usize::from(values[kind as usize - 1].take().is_some());
        if values.iter().all(Option::is_none) {
            self.by_entity.remove(entity);
        }
    }

    /// Returns all entities in their order, each with its quotas.
    pub fn iter(&self) -> impl Iterator<Item = (&QuotaEntity, Vec<(QuotaKind, f64)>)> {
        let set = |values: &Values| {
            let all = QuotaKind::ALL.into_iter().zip(values);
            all.filter_map(|(kind, value)| Some((kind, (*value)?))).collect()
        };
        self.by_entity.iter().map(move |(entity, values)| (entity, set(values)))
    }

    /// Returns the roles that have quotas; one of them several times if it has quotas of client ids.
    pub fn roles(&self) -> impl Iterator<Item = &RoleName> {
        self.by_entity.keys().filter_map(|entity| match &entity.subject {
            Some(QuotaSubject::Role(role)) => Some(role),
            _ => None,
        })
    }

    /// Returns the number of quotas.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bucket and the value of the quota of this kind that is effective for a client, apart from those of
    /// its address and its tenant. The order is Kafka's (`ClientQuotaManager`), with roles after their user: a user
    /// before its roles before each user before client ids alone; and within each of these, one client id before each
    /// client id before none. Of the quotas of several roles with the same rank, the highest is effective.
    pub fn of_client<'a>(
        &self,
        user: &UserName,
        roles: impl IntoIterator<Item = &'a RoleName>,
        client: Option<&str>,
        kind: QuotaKind,
    ) -> Option<(BucketKey, f64)> {
        let client = client.map(bounded);
        let clients = [client.map(|id| Which::One(id.into())), client.map(|_| Which::Default), None];
        let ranked = |subject: Option<QuotaSubject>| {
            // The last choice of client ids is none, for which a client needs no id.
            let mut choices = clients.iter().enumerate().filter(|(at, choice)| choice.is_some() || *at == 2);
            choices.find_map(|(rank, client)| {
                let entity = QuotaEntity { subject: subject.clone(), client: client.clone(), address: None };
                self.get(&entity, kind).map(|value| (rank, value, entity))
            })
        };
        let of_user = || ranked(Some(QuotaSubject::User(user.clone())));
        let of_roles = || {
            let all = roles.into_iter().filter_map(|role| ranked(Some(QuotaSubject::Role(role.clone()))));
            all.min_by(|(rank, value, _), (other_rank, other, _)| rank.cmp(other_rank).then(other.total_cmp(value)))
        };
        let of_each = || ranked(Some(QuotaSubject::EachUser));
        let (_, value, entity) = of_user().or_else(of_roles).or_else(of_each).or_else(|| ranked(None))?;
        let user = entity.subject.as_ref().map(|_| user.clone());
        let client = entity.client.as_ref().and(client).map(Box::from);
        Some((BucketKey { entity, kind, user, client, address: None }, value))
    }

    /// Returns the bucket and the value of the quota of this kind of a tenant.
    pub fn of_tenant(&self, tenant: &TenantName, kind: QuotaKind) -> Option<(BucketKey, f64)> {
        let subject = Some(QuotaSubject::Tenant(tenant.clone()));
        let entity = QuotaEntity { subject, ..QuotaEntity::default() };
        let value = self.get(&entity, kind)?;
        Some((BucketKey { entity, kind, user: None, client: None, address: None }, value))
    }

    /// Returns the bucket and the rate per second of the quota of this kind that is effective for an address.
    pub fn of_address(&self, address: IpAddr, kind: QuotaKind) -> Option<(BucketKey, f64)> {
        let address = address.to_canonical();
        [(Which::One(address), address), (Which::Default, network(address))].into_iter().find_map(|(which, alone)| {
            let entity = QuotaEntity { address: Some(which), ..QuotaEntity::default() };
            let value = self.get(&entity, kind)?;
            Some((BucketKey { entity, kind, user: None, client: None, address: Some(alone) }, value))
        })
    }
}

/// Returns the part of a client id that quotas distinguish, which bounds the memory for it.
fn bounded(client: &str) -> &str {
    &client[..client.floor_char_boundary(QUOTA_CLIENT_BYTES_MAX)]
}

/// Returns the address of the network that one client can choose its address from.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Returns the time in ns until which a bucket is in debt after a charge, if it was until `until_ns`. A bucket whose
/// time has passed has tokens, for at most a second of its rate. Each charge is made in full, so a large one delays
/// those after it.
pub fn charged_until(until_ns: u64, now_ns: u64, amount: u64, rate: f64) -> u64 {
    // The conversion saturates.
    let cost_ns = (amount as f64 / rate * NS_PER_S as f64) as u64;
    until_ns.max(now_ns.saturating_sub(BURST_NS)).saturating_add(cost_ns).min(now_ns.saturating_add(DEBT_NS_MAX))
}

/// Returns the time in ns until which a bucket is in debt once it has another rate: its debt stays the same amount.
pub fn debt_at_rate(until_ns: u64, now_ns: u64, previous: f64, rate: f64) -> u64 {
    match until_ns.checked_sub(now_ns) {
        Some(debt_ns) => now_ns.saturating_add(((debt_ns as f64 * previous / rate) as u64).min(DEBT_NS_MAX)),
        None => until_ns,
    }
}

/// Returns `true` if a bucket is full, so that a new one in its place would make no difference.
pub fn is_full(until_ns: u64, now_ns: u64) -> bool {
    until_ns.saturating_add(BURST_NS) <= now_ns
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
