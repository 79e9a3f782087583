//! Pages of lists of users, members, tokens and entries. A page begins after a key: what precedes it is not visited,
//! and only what it shows is copied.

use std::ops::Bound;

use engine::security::{Acl, AclFilter, KnownUser, RoleName, Token, TokenId, UserName};
use engine::{Error, Result};

use super::{Identity, Security};

/// Everything that the broker has of a user, in its tables or in its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSummary {
    pub name: UserName,
    pub known: KnownUser,
    pub is_configured: bool,
    pub is_super: bool,
}

impl UserSummary {
    /// Returns `true` if the broker has anything of the user. Others may log in with a certificate, or with a token of
    /// an issuer.
    pub fn is_known(&self) -> bool {
        self.is_super || self.known != KnownUser::default()
    }
}

/// Returns the first items, and `true` if no other follows.
fn page<T>(items: impl Iterator<Item = T>, count_max: usize) -> (Vec<T>, bool) {
    let mut found: Vec<T> = items.take(count_max.saturating_add(1)).collect();
    let is_last = found.len() <= count_max;
    found.truncate(count_max);
    (found, is_last)
}

impl Security {
    /// Returns the first `count_max` users with a name after this one that are wanted, in the order of their names, and
    /// `true` if no other follows. Users without a password are among them: those with a token, an access key, a role,
    /// a tenant, or an entry that names them.
    pub async fn known_users(
        &self,
        after: &str,
        count_max: usize,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<(Vec<UserSummary>, bool)> {
        self.open().await?;
        let tables = self.permissions.read();
        let next = |after: &str| {
            let of_configuration = self.super_users.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).next();
            tables.next_user(after).into_iter().chain(of_configuration).min()
        };
        let names = std::iter::successors(next(after), |name| next(name.as_str()));
        let wanted = names.filter(|name| is_wanted(name.as_str()));
        Ok(page(wanted.map(|name| self.summary(name, tables.user(name))), count_max))
    }

    /// Returns what the broker has of a user, which may be nothing.
    pub async fn known_user(&self, name: &UserName) -> Result<UserSummary> {
        self.open().await?;
        Ok(self.summary(name, self.permissions.read().user(name)))
    }

    fn summary(&self, name: &UserName, known: KnownUser) -> UserSummary {
        UserSummary {
            name: name.clone(),
            known,
            is_configured: self.configured.contains(name),
            is_super: self.super_users.contains(name),
        }
    }

    /// Returns the first `count_max` users with roles whose names are after this one, and `true` if no other follows.
    pub async fn members_after(&self, after: &str, count_max: usize) -> Result<(Vec<(UserName, Vec<RoleName>)>, bool)> {
        self.open().await?;
        let tables = self.permissions.read();
        let members = tables.members.after(after);
        Ok(page(members.map(|(user, roles)| (user.clone(), roles.iter().cloned().collect())), count_max))
    }

    /// Returns the first `count_max` tokens with an id after this one that a client [may see](Self::tokens) and that
    /// are wanted, in the order of their ids, and `true` if no other follows.
    pub async fn tokens_after(
        &self,
        identity: &Identity,
        after: Option<&TokenId>,
        count_max: usize,
        is_wanted: impl Fn(&TokenId, &Token) -> bool,
    ) -> Result<(Vec<(TokenId, Token)>, bool)> {
        self.open().await?;
        let sees_all = self.sees_all_tokens(identity);
        let tables = self.permissions.read();
        let seen = tables
            .tokens
            .after(after)
            .filter(|(id, token)| (sees_all || token.user == *identity.user()) && is_wanted(id, token));
        Ok(page(seen.map(|(id, token)| (*id, token.clone())), count_max))
    }

    /// Returns a token that a client [may see](Self::tokens).
    pub async fn token(&self, identity: &Identity, id: &TokenId) -> Result<Token> {
        self.open().await?;
        let sees_all = self.sees_all_tokens(identity);
        let tables = self.permissions.read();
        let found = tables.tokens.get(id).filter(|token| sees_all || token.user == *identity.user());
        found.cloned().ok_or_else(|| Error::not_found(format!("there is no token with the id {id}")))
    }

    /// Returns the first `count_max` entries after this one that match a filter and are wanted, in the order of a
    /// [page](engine::security::Acls::page), and `true` if no other follows.
    pub async fn acls_after(
        &self,
        filter: &AclFilter,
        after: Option<&Acl>,
        count_max: usize,
        is_wanted: impl Fn(&Acl) -> bool,
    ) -> Result<(Vec<Acl>, bool)> {
        self.open().await?;
        Ok(self.permissions.read().acls.page(filter, after, count_max, is_wanted))
    }
}
