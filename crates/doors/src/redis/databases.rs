//! Databases of a connection: caches with the names of the client's tenant.

use std::sync::Arc;

use broker::{Broker, Cache, LockedCache};
use engine::cache::CacheSettings;

use super::command::Named;
use super::connection::{DATABASES, Session};
use super::errors::Done;
use super::names::{Tenant, cache_name};
use super::scripts::BUSY;

impl Session {
    /// Returns the cache of the selected database.
    pub(super) fn database(&mut self, broker: &Arc<Broker>) -> Done<&Arc<Cache>> {
        let number = self.database;
        let slot = &mut self.databases[number];
        if slot.as_ref().is_none_or(|cache| cache.is_deleted()) {
            *slot = Some(open_database(broker, self.tenant.as_ref(), number, self.is_durable)?);
        }
        Ok(slot.as_ref().expect("invariant: it was put there"))
    }

    pub(super) fn database_of(&mut self, broker: &Arc<Broker>, number: usize) -> Done<Arc<Cache>> {
        open_database(broker, self.tenant(), number, self.is_durable)
    }

    /// Returns `true` if a cache is the selected database, or any of the tenant's in a transaction.
    pub(super) fn is_in(&self, cache: &Cache) -> bool {
        let is = |number: usize| cache.name().as_str() == cache_name(self.tenant(), number);
        if self.transaction.is_some() { (0..DATABASES).any(is) } else { is(self.database) }
    }

    pub(super) fn tenant(&self) -> Tenant<'_> {
        self.tenant.as_ref()
    }

    /// Takes over the tenant of the identity. What the client has of another tenant ends, as its names mean other
    /// things now.
    pub(super) fn enter_tenant(&mut self, tenant: Tenant<'_>) {
        if self.tenant.as_ref() == tenant {
            return;
        }
        self.end_tracking();
        self.tenant = tenant.cloned();
        self.update_info(|about| about.tenant = tenant.cloned());
        self.databases = [const { None }; DATABASES];
        self.forget_transaction();
        self.unsubscribe_all();
    }
}

/// Opens the cache of a database.
pub(super) fn open_database(
    broker: &Arc<Broker>,
    tenant: Tenant<'_>,
    number: usize,
    is_durable: bool,
) -> Done<Arc<Cache>> {
    let settings = CacheSettings { is_durable, ..CacheSettings::default() };
    Ok(broker.caches.open_with(&cache_name(tenant, number), settings)?)
}

/// Locks the stripes that a command may touch, unless a script holds one of them for long.
pub(super) fn lock_if_free<'c>(cache: &'c Cache, named: &Named<'_>) -> Option<LockedCache<'c>> {
    match named {
        Named::These(keys) => cache.lock_if_free(Some(keys.iter().copied())),
        Named::All => cache.lock_if_free(None::<std::iter::Empty<&[u8]>>),
    }
}

/// Returns `true` if a script holds a stripe that a command may touch.
pub(super) fn is_held(cache: &Cache, named: &Named<'_>) -> bool {
    match named {
        Named::These(keys) => keys.iter().any(|key| cache.is_held(key)),
        Named::All => cache.is_any_held(),
    }
}

/// Locks the stripes that a command may touch. Fails if a script holds one of them for long, as this thread must not
/// wait for it.
pub(super) fn lock_or_busy<'c>(cache: &'c Cache, named: &Named<'_>) -> Done<LockedCache<'c>> {
    let locked = match named {
        Named::These(keys) => cache.lock_unless_held(Some(keys.iter().copied())),
        Named::All => cache.lock_unless_held(None::<std::iter::Empty<&[u8]>>),
    };
    locked.ok_or(BUSY)
}
