//! Names of a client with a tenant: the prefix is added to names in paths, parameters and bodies, and removed from
//! those in responses.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use broker::Identity;
use engine::TopicName;
use engine::security::TenantName;

use super::errors::{Failure, Result};

/// Names that the client of a request uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Option<TenantName>);

impl<S: Send + Sync> FromRequestParts<S> for Names {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(parts.extensions.get::<Arc<Identity>>().map(|identity| Self::of(identity)).unwrap_or_default())
    }
}

impl Names {
    pub fn of(identity: &Identity) -> Self {
        Self(identity.tenant().cloned())
    }

    /// Returns the name of a resource in the broker.
    pub fn inner(&self, name: &str) -> String {
        self.0.as_ref().map_or_else(|| name.to_owned(), |tenant| tenant.inner(name))
    }

    /// Returns the place in the broker's names at which a list begins, or the prefix of those that it shows. An empty
    /// one stands for all names of the client.
    pub fn beginning(&self, name: &str) -> String {
        format!("{}{name}", self.0.as_ref().map_or("", TenantName::prefix))
    }

    /// Returns the name that the client uses. A name that is not the tenant's, such as that of an inbox, is not
    /// changed.
    pub fn outer<'n>(&self, inner: &'n str) -> &'n str {
        self.0.as_ref().and_then(|tenant| tenant.outer(inner)).unwrap_or(inner)
    }

    /// Returns the name of a topic that the client uses.
    pub fn outer_topic(&self, inner: TopicName) -> TopicName {
        match &self.0 {
            Some(_) => TopicName::parse(self.outer(inner.as_str())).unwrap_or(inner),
            None => inner,
        }
    }
}
