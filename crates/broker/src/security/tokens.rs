//! Tokens: creation, deletion, and logins with them.

use std::sync::{Arc, Weak};

use engine::security::{SecurityRecord, Token, TokenId, TokenText, UserName};
use engine::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use super::expiry::Expiries;
use super::identity::Proof;
use super::jwt::is_jwt;
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
        self.end_login(source, user.map_or("", UserName::as_str), outcome).await
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
                self.outdate_at(claims.expires_ms);
                let proof = Proof::Issued(claims.expires_ms);
                Ok(Identity::with_proof(claims.user, claims.roles, &source.host(), proof))
            });
            return Some(outcome);
        }
        let text = TokenText::parse(text)?;
        let token = self.permissions.read().tokens.find(&text).cloned()?;
        if user.is_some_and(|user| *user != token.user) {
            return None;
        }
        if token.is_expired(self.core.now_ms()) {
            return Some(Err(Error::new(ErrorKind::Denied, "the token has expired: create another one")));
        }
        if let Some(expires_ms) = token.expires_ms {
            self.outdate_at(expires_ms);
        }
        Some(Ok(Identity::with_proof(token.user, token.roles, &source.host(), Proof::Token(text.id))))
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

    /// Returns all tokens in the order of their ids.
    pub async fn tokens(&self) -> Result<Vec<(TokenId, Token)>> {
        self.open().await?;
        Ok(self.permissions.read().tokens.iter().map(|(id, token)| (*id, token.clone())).collect())
    }

    /// Stores a new token, whose time of creation becomes the current one. Expired tokens are deleted if there is no
    /// room.
    pub async fn put_token(self: &Arc<Self>, id: TokenId, token: Token) -> Result<()> {
        let name = format!("{id} of {}", token.user);
        let act = async {
            let now_ms = self.core.now_ms();
            token.validate()?;
            if token.is_expired(now_ms) {
                return Err(Error::invalid("the token would have expired already"));
            }
            self.change(|tables, _| {
                if tables.tokens.get(&id).is_some() {
                    return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a token with the id {id}")));
                }
                let mut records = Vec::new();
                if let Err(error) = tables.tokens.check_room() {
                    let expired = tables.tokens.iter().filter(|(_, token)| token.is_expired(now_ms));
                    records.extend(expired.map(|(id, _)| SecurityRecord::Token { id: *id, token: None }));
                    if records.is_empty() {
                        return Err(error);
                    }
                }
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

fn wrong_token() -> Error {
    Error::new(ErrorKind::Denied, "the token is unknown: it is misspelled, was deleted, or belongs to another user")
}
