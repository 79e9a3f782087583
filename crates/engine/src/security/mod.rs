//! Authentication and authorization: users with their credentials, tokens, access keys, roles
//! and tenants, and access control lists.
//!
//! Neither passwords nor tokens are stored. A password has a [`Credential`] for each [`Mechanism`], and a token has a
//! hash: both can verify it, and do not let anyone who reads them log in. The secret of an access key is stored sealed.
//! A broker changes its [`Tables`] by [`SecurityRecord`]s once those are in the topic [`SECURITY_TOPIC`].

mod access_key;
mod acl;
mod by_user;
mod certificate;
mod password;
mod quota;
mod record;
mod resource;
mod role;
mod scram;
mod tables;
mod tenant;
mod token;
mod users;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::USER_NAME_BYTES_MAX;

pub use access_key::{AccessKey, AccessKeyId, AccessKeys, AccessSecret, Account};
pub use acl::{Acl, AclFilter, Acls, Match, Principal, Rules};
pub use certificate::NameRules;
pub use password::{Password, parse_basic};
pub use quota::{BucketKey, QuotaEntity, QuotaKind, QuotaSubject, Quotas, Which, charged_until, debt_at_rate, is_full};
pub use record::SecurityRecord;
pub use resource::{Operation, Operations, Pattern, PatternKind, Resource, ResourceKind};
pub use role::{BuiltInRole, Members, RoleName};
pub use scram::{
    BrokerProof, ClientExchange, ClientFirst, Credential, Exchange, ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN,
    Mechanism, wrong_password,
};
pub use tables::{KnownUser, Secrets, Tables};
pub use tenant::{TenantName, Tenants};
pub use token::{Bearer, Token, TokenHash, TokenId, TokenText, Tokens};
pub use users::{Authenticated, User, Users, parse_plain};

/// Topic that persists users, access control lists and the broker's own secrets. Clients cannot read it: with its
/// contents anyone could test passwords offline, and sign in the broker's name.
pub const SECURITY_TOPIC: &str = "_security";

/// Name of clients that have not authenticated.
pub const ANONYMOUS: &str = "ANONYMOUS";

/// Name of programs that log in with the administrator's token.
pub const ADMINISTRATOR: &str = "ADMINISTRATOR";

/// Name of a user: 1 to 255 bytes without control characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserName(Arc<str>);

impl UserName {
    pub fn parse(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > USER_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "the name of a user has 1 to {USER_NAME_BYTES_MAX} bytes and no control characters"
            )));
        }
        Ok(Self(Arc::from(name)))
    }

    /// Returns the name of clients that have not authenticated.
    pub fn anonymous() -> Self {
        Self(Arc::from(ANONYMOUS))
    }

    /// Returns the name of programs of the broker's own user.
    pub fn administrator() -> Self {
        Self(Arc::from(ADMINISTRATOR))
    }

    /// Refuses the names that stand for clients without a login and for administrators of the broker's own user: no
    /// credential may log in as one of them.
    pub fn check_not_reserved(&self) -> Result<()> {
        if [ANONYMOUS, ADMINISTRATOR].contains(&self.as_str()) {
            return Err(Error::invalid(format!("{self} is not the name of a user who logs in: choose another name")));
        }
        Ok(())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl std::borrow::Borrow<str> for UserName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

fn denied(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Denied, message)
}
