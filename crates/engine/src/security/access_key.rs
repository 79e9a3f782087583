//! Access keys: names with secrets, with which clients sign requests as Amazon's clients do.
//!
//! The verifier of a signature needs the secret itself, not only its hash. So a broker stores each secret sealed with a
//! key that is in none of its topics.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::UserName;
use super::by_user::ByUser;
use crate::error::{Error, Result};
use crate::limits::{ACCESS_KEY_ID_BYTES_MAX, ACCESS_KEYS_MAX, ACCESS_SECRET_BYTES_MAX};

const ACCOUNT_DIGITS: usize = 12;

/// Name of an access key: letters, digits and underscores. Requests contain it in clear text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessKeyId(Arc<str>);

impl AccessKeyId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AccessKeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !(1..=ACCESS_KEY_ID_BYTES_MAX).contains(&text.len()) || !text.bytes().all(is_char) {
            return Err(Error::invalid(format!(
                "an access key has 1 to {ACCESS_KEY_ID_BYTES_MAX} letters, digits and underscores"
            )));
        }
        Ok(Self(text.into()))
    }
}

impl Borrow<str> for AccessKeyId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccessKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccessKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Secret of an access key. `Debug` does not print it, and it is cleared from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessSecret(Zeroizing<String>);

impl AccessSecret {
    pub fn parse(text: &str) -> Result<Self> {
        let is_valid = (1..=ACCESS_SECRET_BYTES_MAX).contains(&text.len());
        if !is_valid || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid(format!(
                "the secret of an access key has 1 to {ACCESS_SECRET_BYTES_MAX} printable ASCII characters, without \
                 spaces"
            )));
        }
        Ok(Self(Zeroizing::new(text.to_owned())))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// Account of queues at the SQS door: 12 digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Account(Box<str>);

impl Account {
    /// Returns `true` if a text is an account.
    pub fn is_valid(text: &str) -> bool {
        text.len() == ACCOUNT_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Account {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if !Self::is_valid(text) {
            return Err(Error::invalid(format!("an account has {ACCOUNT_DIGITS} digits")));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Access key as a broker stores it.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// User on whose behalf its clients act. The user does not need a password.
    pub user: UserName,
    /// Account whose queues its clients use; `None` for the default of the SQS door.
    pub account: Option<Account>,
    /// Time of creation in ms since 1970.
    pub created_ms: u64,
    /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
    pub expires_ms: Option<u64>,
    /// The secret, sealed.
    pub sealed: Box<[u8]>,
}

impl AccessKey {
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }
}

/// Writes all but the secret.
impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, account, created_ms, expires_ms, sealed: _ } = self;
        f.debug_struct("AccessKey")
            .field("user", user)
            .field("account", account)
            .field("created_ms", created_ms)
            .field("expires_ms", expires_ms)
            .finish_non_exhaustive()
    }
}

/// Table of all access keys.
#[derive(Clone, Debug, Default)]
pub struct AccessKeys {
    by_id: BTreeMap<AccessKeyId, AccessKey>,
    by_user: ByUser<AccessKeyId>,
}

impl AccessKeys {
    /// Checks that there is room for one more access key.
    pub fn check_room(&self) -> Result<()> {
        if self.by_id.len() >= ACCESS_KEYS_MAX {
            return Err(Error::busy(format!("access key limit reached ({ACCESS_KEYS_MAX}): delete one first")));
        }
        Ok(())
    }

    pub fn get(&self, id: &str) -> Option<&AccessKey> {
        self.by_id.get(id)
    }

    /// Returns all access keys in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (&AccessKeyId, &AccessKey)> {
        self.by_id.iter()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn put(&mut self, id: AccessKeyId, key: AccessKey) {
        self.remove(&id);
        self.by_user.insert(key.user.clone(), id.clone());
        self.by_id.insert(id, key);
    }

    pub(super) fn remove(&mut self, id: &AccessKeyId) {
        if let Some(key) = self.by_id.remove(id) {
            self.by_user.remove(&key.user, id);
        }
    }

    pub(super) fn count_of(&self, user: &str) -> usize {
        self.by_user.count_of(user)
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        self.by_user.next_user(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn ids_secrets_and_accounts_have_their_characters() {
        for right in ["a", "AKIAIOSFODNN7EXAMPLE", "my_key", &"k".repeat(ACCESS_KEY_ID_BYTES_MAX)] {
            assert_eq!(right.parse::<AccessKeyId>().expect(right).as_str(), right);
        }
        for wrong in ["", "a b", "a/b", "a:b", "Ａ", &"k".repeat(ACCESS_KEY_ID_BYTES_MAX + 1)] {
            assert!(wrong.parse::<AccessKeyId>().is_err(), "{wrong}");
        }
        for wrong in ["", "with space", "tab\t", "ümlaut", &"k".repeat(ACCESS_SECRET_BYTES_MAX + 1)] {
            assert!(AccessSecret::parse(wrong).is_err(), "{wrong}");
        }
        let secret = AccessSecret::parse("wJalr/XUtn+FEMI").expect("a secret");
        assert_eq!((secret.reveal(), format!("{secret:?}")), ("wJalr/XUtn+FEMI", "...".to_owned()));
        assert_eq!("111122223333".parse::<Account>().expect("an account").as_str(), "111122223333");
        for wrong in ["", "11112222333", "1111222233334", "11112222333a", "１１１１２２２２３３３３"] {
            assert!(wrong.parse::<Account>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut keys = AccessKeys::default();
        let user = UserName::parse("ann").expect("a name");
        let key = AccessKey { user, account: None, created_ms: 0, expires_ms: Some(5), sealed: Box::new([7]) };
        assert!(!key.is_expired(4) && key.is_expired(5));
        assert!(!format!("{key:?}").contains('7'));
        for number in 0..ACCESS_KEYS_MAX {
            assert!(keys.check_room().is_ok());
            keys.put(format!("k{number}").parse().expect("an id"), key.clone());
        }
        assert_eq!(keys.check_room().expect_err("full").kind, ErrorKind::Busy);
        keys.remove(&"k0".parse().expect("an id"));
        assert!(keys.check_room().is_ok() && keys.get("k0").is_none() && keys.get("k1").is_some());
    }
}
