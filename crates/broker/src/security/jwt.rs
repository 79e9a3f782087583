//! JSON Web Tokens (RFC 7519) of an issuer outside of the broker, such as an OpenID provider.
//!
//! The issuer signs them with a private key, and publishes the public keys as a set (RFC 7517). Accepted are the
//! signatures of RSA, of the curves P-256 and P-384, and Ed25519: never a shared secret, and never none, whatever the
//! header of a token says.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use engine::security::{RoleName, TenantName, UserName};
use engine::{Error, ErrorKind, Result};
use jsonwebtoken::errors::ErrorKind as Wrong;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header};
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};
use tokio::sync::Notify;

use crate::settings::Issuer;

/// Maximum size of a token in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Maximum number of keys of an issuer. Further ones are ignored.
const KEYS_MAX: usize = 64;
/// Maximum number of tokens whose signature was verified and is not verified again. If there are more, all are
/// forgotten.
const VERIFIED_MAX: usize = 4096;

/// Beginning of the error of a login with a token that was valid, of the issuer or of the broker. Only a client that
/// has the token gets it.
pub const TOKEN_EXPIRED: &str = "the token has expired";

/// Claims of a valid token that the broker uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub user: UserName,
    pub roles: Vec<RoleName>,
    /// Tenant of the client, if the issuer's tokens name one.
    pub tenant: Option<TenantName>,
    /// Time in ms since 1970 from which the token is refused.
    pub expires_ms: u64,
}

/// Public key of an issuer.
struct Key {
    id: Option<String>,
    /// The only algorithm that the key is for, if its issuer names one.
    algorithm: Option<KeyAlgorithm>,
    decoding: DecodingKey,
}

/// Verifier of the tokens of an issuer.
pub(super) struct Jwts {
    issuer: Issuer,
    keys: RwLock<Arc<Vec<Key>>>,
    /// Claims by the SHA-256 hash of the token.
    verified: Mutex<HashMap<[u8; 32], Claims>>,
    /// Notified when a token names a key that is not there.
    pub(super) wanted: Arc<Notify>,
}

/// Returns `true` if a text has the form of a JSON Web Token: three parts, of which the first is a JSON object.
pub(super) fn is_jwt(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl Jwts {
    pub(super) fn new(issuer: Issuer) -> Self {
        Self { issuer, keys: RwLock::default(), verified: Mutex::default(), wanted: Arc::default() }
    }

    /// Replaces the keys of the issuer by those of a set in JSON. Keys that cannot verify a signature are ignored.
    /// Returns the number of keys; fails, and keeps the keys, if there would be none.
    pub(super) fn set_keys(&self, set: &[u8]) -> Result<usize> {
        let set: Value = serde_json::from_slice(set)
            .map_err(|error| Error::malformed(format!("the key set is not JSON: {error}")))?;
        let listed = set.get("keys").and_then(Value::as_array);
        let listed = listed.ok_or_else(|| Error::malformed("the key set has no list 'keys'"))?;
        let keys: Vec<Key> = listed.iter().filter_map(Key::of).take(KEYS_MAX).collect();
        if keys.is_empty() {
            return Err(Error::invalid("the key set has no key of RSA, P-256, P-384 or Ed25519 for signatures"));
        }
        let count = keys.len();
        *self.keys.write() = Arc::new(keys);
        self.verified.lock().clear();
        Ok(count)
    }

    /// Returns the claims of a token whose signature and times are right.
    pub(super) fn verify(&self, token: &str, now_ms: u64) -> Result<Claims> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(denied(format!("the token is longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
        let known = self.verified.lock().get(&hash).cloned();
        if let Some(claims) = known.filter(|claims| claims.expires_ms > now_ms) {
            return Ok(claims);
        }
        let keys = self.keys.read().clone();
        let claims = self.verify_with(&keys, token)?;
        if claims.expires_ms <= now_ms {
            return Err(denied(TOKEN_EXPIRED));
        }
        let mut verified = self.verified.lock();
        // If the keys were replaced meanwhile, this token is verified with them the next time.
        if Arc::ptr_eq(&keys, &self.keys.read()) {
            if verified.len() >= VERIFIED_MAX {
                verified.clear();
            }
            verified.insert(hash, claims.clone());
        }
        Ok(claims)
    }

    fn verify_with(&self, keys: &[Key], token: &str) -> Result<Claims> {
        let header = decode_header(token).map_err(|error| self.explain(&error))?;
        if header.crit.is_some() {
            return Err(denied("the token has an extension that this broker does not know (crit)"));
        }
        if header.alg.family() == AlgorithmFamily::Hmac {
            return Err(denied("the token is signed with a shared secret, which is not accepted"));
        }
        let Some(key) = find(keys, &header) else {
            self.wanted.notify_one();
            return Err(denied(format!(
                "the issuer {} has no key with which this token can be verified",
                self.issuer.name
            )));
        };
        let mut validation = Validation::new(header.alg);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer.name]);
        validation.set_audience(&self.issuer.audiences);
        validation.validate_nbf = true;
        validation.leeway = self.issuer.clock_skew.as_secs();
        let verified = decode::<Map<String, Value>>(token, &key.decoding, &validation);
        self.read(&verified.map_err(|error| self.explain(&error))?.claims)
    }

    fn read(&self, claims: &Map<String, Value>) -> Result<Claims> {
        let Issuer { user_claim, roles_claim, roles, tenant_claim, clock_skew, .. } = &self.issuer;
        let user = claims.get(user_claim).and_then(Value::as_str);
        let user =
            user.ok_or_else(|| denied(format!("the token has no claim {user_claim} with the name of a user")))?;
        let listed: Vec<&str> = match claims.get(roles_claim) {
            Some(Value::String(text)) => text.split_whitespace().collect(),
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let mut given: Vec<RoleName> = listed.into_iter().filter_map(|name| roles.get(name).cloned()).collect();
        given.sort_unstable();
        given.dedup();
        let tenant = tenant_claim.as_deref().map_or(Ok(None), |claim| tenant(claims, claim))?;
        // The signature covers it, and it was checked.
        let expires_s = claims.get("exp").and_then(Value::as_f64).unwrap_or_default().max(0.0);
        let expires_ms = (expires_s * 1000.0) as u64;
        let user = UserName::parse(user)?;
        user.check_not_reserved()?;
        let expires_ms = expires_ms.saturating_add(clock_skew.as_millis() as u64);
        Ok(Claims { user, roles: given, tenant, expires_ms })
    }

    fn explain(&self, error: &jsonwebtoken::errors::Error) -> Error {
        denied(match error.kind() {
            Wrong::ExpiredSignature => TOKEN_EXPIRED.to_owned(),
            Wrong::ImmatureSignature => "the token is not valid yet: compare the clocks".to_owned(),
            Wrong::InvalidIssuer => format!("the token is not one of the issuer {}", self.issuer.name),
            Wrong::InvalidAudience => {
                format!(
                    "the token is not for this broker: its audience is none of {}",
                    self.issuer.audiences.join(", ")
                )
            }
            Wrong::MissingRequiredClaim(claim) => format!("the token has no claim {claim}"),
            Wrong::InvalidSignature => "the signature of the token is wrong".to_owned(),
            Wrong::InvalidToken | Wrong::Base64(_) | Wrong::Json(_) | Wrong::Utf8(_) => {
                "the token is damaged, or not signed in a way that is accepted".to_owned()
            }
            other => format!("the token cannot be verified: {other:?}"),
        })
    }
}

impl Key {
    /// Reads a key of a set; `None` if it cannot verify a signature.
    fn of(key: &Value) -> Option<Self> {
        let key: Jwk = serde_json::from_value(key.clone()).ok()?;
        let is_public = !matches!(key.algorithm, AlgorithmParameters::OctetKey(_));
        let is_for_signatures = !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
        let decoding = DecodingKey::from_jwk(&key).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        (is_public && is_for_signatures).then_some(Self {
            id: key.common.key_id,
            algorithm: key.common.key_algorithm,
            decoding,
        })
    }

    fn is_for(&self, header: &Header) -> bool {
        let is_named = match (&self.id, &header.kid) {
            (_, None) => true,
            (id, wanted) => id == wanted,
        };
        is_named
            && self.decoding.family() == header.alg.family()
            && self.algorithm.is_none_or(|only| only.to_string().parse() == Ok(header.alg))
    }
}

/// Returns the tenant that a claim names; `None` if the token does not have the claim. Any other value is refused, so
/// that a token for a tenant never logs in without one.
fn tenant(claims: &Map<String, Value>, claim: &str) -> Result<Option<TenantName>> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let name = value.as_str().ok_or_else(|| denied(format!("the claim {claim} of the token is not a text")))?;
    let tenant = TenantName::parse(name);
    tenant.map(Some).map_err(|error| denied(format!("the claim {claim} of the token names no tenant: {error}")))
}

/// Returns the only key that a token can be signed with.
fn find<'k>(keys: &'k [Key], header: &Header) -> Option<&'k Key> {
    let mut found = keys.iter().filter(|key| key.is_for(header));
    let key = found.next()?;
    // Without the id of a key, it has to be clear which one is meant.
    (header.kid.is_some() || found.next().is_none()).then_some(key)
}

fn denied(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Denied, message)
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
