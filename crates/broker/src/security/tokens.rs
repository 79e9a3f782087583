//! Tokens: creation, deletion, and logins with them.

use std::sync::{Arc, Weak};

use engine::limits::OWN_TOKEN_LIFETIME_MS_MAX;
use engine::security::{Operation, Resource, SecurityRecord, Tables, Token, TokenHash, TokenId, TokenText, UserName};
use engine::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use super::expiry::Expiries;
use super::identity::Proof;
use super::jwt::{Claims, TOKEN_EXPIRED, is_jwt};
use super::{Identity, Security};
use crate::logins::LoginSource;

impl Security {
    /// Logs a client in with a token, as the user that the token has. Fails if the client names another user.
    pub async fn log_in_with_token(
        self: &Arc<Self>,
        token: &str,
        user: Option<&UserName>,
        source: LoginSource,
    ) -> Result<Identity> {
        self.open().await?;
        let outcome = self.check_token(token, user, source).unwrap_or_else(|| Err(wrong_token()));
        let name = match (&outcome, user) {
            (Ok(identity), _) => identity.user().as_str().to_owned(),
            (Err(_), user) => user.map_or_else(String::new, ToString::to_string),
        };
        self.end_login(source, &name, outcome).await
    }

    /// Returns the identity of a client that sent a token as the password of a user, or the error if the token has
    /// expired. Returns `None` if the text is no token that the broker has, or not one of this user.
    pub(super) fn check_token(
        self: &Arc<Self>,
        text: &str,
        user: Option<&UserName>,
        source: LoginSource,
    ) -> Option<Result<Identity>> {
        if let Some(jwts) = self.jwts.as_ref().filter(|_| is_jwt(text)) {
            let outcome = jwts.verify(text, self.core.now_ms()).and_then(|claims| {
                if user.is_some_and(|user| *user != claims.user) {
                    return Err(wrong_token());
                }
                self.identity_of_claims(claims, source)
            });
            return Some(outcome);
        }
        let text = TokenText::parse(text)?;
        let (token, is_accepted) = {
            let tables = self.permissions.read();
            let token = tables.tokens.find(&text)?;
            (token.clone(), tables.accept(token, self.core.now_ms()))
        };
        if user.is_some_and(|user| *user != token.user) {
            return None;
        }
        if token.is_expired(self.core.now_ms()) {
            return Some(Err(Error::new(ErrorKind::Denied, format!("{TOKEN_EXPIRED}: create another one"))));
        }
        if !is_accepted {
            return Some(Err(Error::new(ErrorKind::Denied, "the user who created the token has no password any more")));
        }
        if let Some(expires_ms) = token.expires_ms {
            self.outdate_at(expires_ms);
        }
        let identity = self.identity_of(token.user, token.roles, &source.host());
        Some(Ok(identity.proved_by(Proof::Token(text.id))))
    }

    /// Returns the identity of a client with a token of the issuer. Fails if the token names another tenant than the
    /// one that its user has here.
    fn identity_of_claims(self: &Arc<Self>, claims: Claims, source: LoginSource) -> Result<Identity> {
        let Claims { user, roles, tenant, expires_ms } = claims;
        let identity = self.identity_of(user, roles, &source.host());
        let proof = Proof::Issued { expires_ms, has_tenant: tenant.is_some() };
        let tenant = match (identity.tenant().cloned(), tenant) {
            (Some(assigned), Some(claimed)) if assigned != claimed => {
                let user = identity.user();
                let message = format!("the token is for the tenant {claimed}, but user {user} has another one here");
                return Err(Error::new(ErrorKind::Denied, message));
            }
            (assigned, claimed) => assigned.or(claimed),
        };
        self.outdate_at(expires_ms);
        Ok(identity.proved_by(proof).within(tenant))
    }

    /// Returns `true` if a text has the form of a token.
    pub fn is_token(&self, text: &str) -> bool {
        TokenText::parse(text).is_some() || self.jwts.is_some() && is_jwt(text)
    }

    /// Sets the public keys of the issuer of JSON Web Tokens, which are a set in JSON (RFC 7517). Returns their number.
    pub fn set_issuer_keys(&self, set: &[u8]) -> Result<usize> {
        let jwts = self.jwts.as_ref().ok_or_else(|| Error::invalid("no issuer of tokens is configured"))?;
        jwts.set_keys(set)
    }

    /// Returns what is notified when a token names a key of the issuer that is not known, so that the keys may have
    /// changed.
    pub fn issuer_keys_wanted(&self) -> Option<Arc<Notify>> {
        self.jwts.as_ref().map(|jwts| jwts.wanted.clone())
    }

    /// Returns the tokens that a client may see, in the order of their ids: those of its user, or all if it may
    /// describe the cluster.
    pub async fn tokens(&self, identity: &Identity) -> Result<Vec<(TokenId, Token)>> {
        self.open().await?;
        let sees_all = self.sees_all_tokens(identity);
        let tables = self.permissions.read();
        let seen = tables.tokens.iter().filter(|(_, token)| sees_all || token.user == *identity.user());
        Ok(seen.map(|(id, token)| (*id, token.clone())).collect())
    }

    pub(super) fn sees_all_tokens(&self, identity: &Identity) -> bool {
        self.allows(identity, Operation::Describe, &Resource::CLUSTER)
    }

    /// Checks that a client may delete a token: one that its user has created, or the one with which it logged in. Any
    /// other needs the permission to alter the cluster.
    pub fn authorize_token_deletion(&self, identity: &Identity, id: &TokenId) -> Result<()> {
        let is_own = {
            let tables = self.permissions.read();
            let logged_in = identity.has_password() || identity.token().is_some();
            let of_user = tables.tokens.get(id).is_some_and(|token| token.is_own && token.user == *identity.user());
            logged_in && of_user || identity.token() == Some(*id)
        };
        if is_own { Ok(()) } else { self.authorize(identity, Operation::Alter, &Resource::CLUSTER) }
    }

    /// Stores a new token of a client's own user, who has logged in with a password, and returns that user. Its clients
    /// have no more rights than the user. Expired tokens of the user are deleted if there is no room.
    pub async fn put_own_token(
        self: &Arc<Self>,
        identity: &Identity,
        id: TokenId,
        hash: TokenHash,
        expires_ms: u64,
    ) -> Result<UserName> {
        // A token that is created with a token would outlive it, and with it the reason for its end.
        if !identity.has_password() {
            return Err(Error::new(
                ErrorKind::Denied,
                "a user creates tokens for themselves after a login with a password",
            ));
        }
        let now_ms = self.core.now_ms();
        if expires_ms <= now_ms || expires_ms - now_ms > OWN_TOKEN_LIFETIME_MS_MAX {
            let days = OWN_TOKEN_LIFETIME_MS_MAX / 86_400_000;
            return Err(Error::invalid(format!(
                "a token that a user creates for themselves expires within {days} days"
            )));
        }
        let user = identity.user().clone();
        let token = Token {
            user: user.clone(),
            roles: Vec::new(),
            created_ms: now_ms,
            expires_ms: Some(expires_ms),
            hash,
            is_own: true,
        };
        token.validate()?;
        let name = format!("{id} of {user}");
        let act = self.change(|tables, _| {
            check_new(tables, &id)?;
            let room = tables.tokens.check_own_room(&user);
            let mut records = room_of_expired(room, tables.own_tokens(&user), now_ms)?;
            records.push(SecurityRecord::Token { id, token: Some(token) });
            Ok((records, user))
        });
        self.core.audited("create token", &name, act).await
    }

    /// Stores a new token, whose time of creation becomes the current one. Expired tokens are deleted if there is no
    /// room.
    pub async fn put_token(self: &Arc<Self>, id: TokenId, token: Token) -> Result<()> {
        let name = format!("{id} of {}", token.user);
        let act = async {
            let now_ms = self.core.now_ms();
            token.user.check_not_reserved()?;
            token.validate()?;
            if token.is_expired(now_ms) {
                return Err(Error::invalid("the token would have expired already"));
            }
            self.change(|tables, _| {
                check_new(tables, &id)?;
                token.roles.iter().try_for_each(|role| tables.check_role(role))?;
                let all = tables.tokens.iter().map(|(id, token)| (*id, token));
                let mut records = room_of_expired(tables.tokens.check_room(), all, now_ms)?;
                records.push(SecurityRecord::Token { id, token: Some(Token { created_ms: now_ms, ..token }) });
                Ok((records, ()))
            })
            .await
        };
        self.core.audited("create token", &name, act).await
    }

    /// Deletes a token. Clients that have logged in with it may do nothing from then on.
    pub async fn delete_token(self: &Arc<Self>, id: TokenId) -> Result<()> {
        let act = async {
            self.change(|tables, _| {
                if tables.tokens.get(&id).is_none() {
                    return Err(Error::not_found(format!(
                        "there is no token with the id {id}; see thalweg token list"
                    )));
                }
                Ok((vec![SecurityRecord::Token { id, token: None }], ()))
            })
            .await
        };
        self.core.audited("delete token", &id.to_string(), act).await
    }

    /// Makes all decisions again at this time, in ms since 1970.
    pub(super) fn outdate_at(self: &Arc<Self>, at_ms: u64) {
        if self.expiries.add(at_ms) {
            tokio::spawn(outdate(Arc::downgrade(self), self.expiries.clone()));
        }
    }

    /// Returns until when the login of a client is valid, in ms since 1970; `None` if it has no such time.
    pub fn expires_ms(&self, identity: &Identity) -> Option<u64> {
        identity.expires_ms(&self.permissions.read())
    }
}

/// Makes decisions again whenever a login expires, while there are logins that expire.
async fn outdate(security: Weak<Security>, expiries: Arc<Expiries>) {
    loop {
        let wait = {
            let Some(security) = security.upgrade() else { return };
            let (is_due, wait) = expiries.take_due(security.core.now_ms());
            if is_due {
                security.outdate();
            }
            wait
        };
        match wait {
            Some(wait) => expiries.wait(wait).await,
            None => return,
        }
    }
}

fn check_new(tables: &Tables, id: &TokenId) -> Result<()> {
    match tables.tokens.get(id) {
        Some(_) => Err(Error::new(ErrorKind::AlreadyExists, format!("there is a token with the id {id}"))),
        None => Ok(()),
    }
}

/// Returns the records that delete the expired ones of these tokens, if there is no room otherwise. Fails if none has
/// expired.
fn room_of_expired<'t>(
    room: Result<()>,
    tokens: impl Iterator<Item = (TokenId, &'t Token)>,
    now_ms: u64,
) -> Result<Vec<SecurityRecord>> {
    let Err(full) = room else { return Ok(Vec::new()) };
    let expired = tokens.filter(|(_, token)| token.is_expired(now_ms));
    let gone: Vec<_> = expired.map(|(id, _)| SecurityRecord::Token { id, token: None }).collect();
    if gone.is_empty() { Err(full) } else { Ok(gone) }
}

fn wrong_token() -> Error {
    Error::new(ErrorKind::Denied, "the token is unknown: it is misspelled, was deleted, or belongs to another user")
}
