//! Databases of a connection: caches with the names of the client's tenant.

use std::sync::Arc;

use broker::{Broker, Cache};
use engine::cache::CacheSettings;

use super::connection::{DATABASES, Session};
use super::errors::Done;
use super::names::{Tenant, cache_name};

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

    pub(super) fn tenant(&self) -> Tenant<'_> {
        self.tenant.as_ref()
    }

    /// Takes over the tenant of the identity. What the client has of another tenant ends, as its names mean other
    /// things now.
    pub(super) fn enter_tenant(&mut self, tenant: Tenant<'_>) {
        if self.tenant.as_ref() == tenant {
            return;
        }
        self.tenant = tenant.cloned();
        self.databases = [const { None }; DATABASES];
        self.forget_transaction();
        self.unsubscribe_all();
    }
}

fn open_database(broker: &Arc<Broker>, tenant: Tenant<'_>, number: usize, is_durable: bool) -> Done<Arc<Cache>> {
    let settings = CacheSettings { is_durable, ..CacheSettings::default() };
    Ok(broker.caches.open_with(&cache_name(tenant, number), settings)?)
}
