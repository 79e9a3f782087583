//! Tokens: random passwords that a broker checks without hashing them for milliseconds, each with an expiry time.
//!
//! A token has the form `tw_ID_SECRET`, with 16 and 64 lower-case hexadecimal digits. The id names the token in lists.
//! A broker stores the SHA-256 hash of the secret, so nobody who reads its files can log in with it. The secret has 256
//! random bits, so a hash that takes long would not make it safer.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use aws_lc_rs::{constant_time, digest};
use zeroize::Zeroize;

use super::by_user::ByUser;
use super::{RoleName, UserName};
use crate::error::{Error, Result};
use crate::limits::{OWN_TOKENS_MAX, OWN_TOKENS_PER_USER_MAX, TOKEN_NAMES_BYTES_MAX, TOKEN_ROLES_MAX, TOKENS_MAX};

/// Beginning of every token: tools that search for leaked secrets can look for it.
const PREFIX: &str = "tw_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// Number that names a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId([u8; ID_BYTES]);

impl TokenId {
    pub fn of_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }
}

/// Writes 16 hexadecimal digits.
impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let id = bytes_of_hex(text).map(Self);
        id.ok_or_else(|| Error::invalid("the id of a token has 16 hexadecimal digits; see thalweg token list"))
    }
}

/// SHA-256 hash of the secret of a token.
pub type TokenHash = [u8; 32];

/// A whole token, which only its owner has. `Debug` does not print its secret, which is cleared from memory when it is
/// dropped.
pub struct TokenText {
    pub id: TokenId,
    secret: [u8; SECRET_BYTES],
}

impl TokenText {
    /// Number of random bytes of which a token is made.
    pub const RANDOM_BYTES: usize = ID_BYTES + SECRET_BYTES;

    /// Makes a token of bytes, which have to be random.
    pub fn of_random(random: &[u8; Self::RANDOM_BYTES]) -> Self {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        id.copy_from_slice(&random[..ID_BYTES]);
        secret.copy_from_slice(&random[ID_BYTES..]);
        Self { id: TokenId(id), secret }
    }

    /// Returns the token that a text is; `None` if it is something else, such as a password.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        Some(Self { id: TokenId(bytes_of_hex(id)?), secret: bytes_of_hex(secret)? })
    }

    /// Returns the text that clients send.
    pub fn reveal(&self) -> String {
        let mut text = format!("{PREFIX}{}_", self.id);
        self.secret.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text
    }

    pub fn hash(&self) -> TokenHash {
        let mut hash = TokenHash::default();
        hash.copy_from_slice(digest::digest(&digest::SHA256, &self.secret).as_ref());
        hash
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_...", self.id)
    }
}

impl Drop for TokenText {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

/// Returns the bytes of lower-case hexadecimal digits.
fn bytes_of_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Message of SASL's mechanism OAUTHBEARER (RFC 7628).
#[derive(Debug, PartialEq, Eq)]
pub struct Bearer<'a> {
    /// User whom the client wants to act for, if it names one.
    pub acts_for: Option<UserName>,
    pub token: &'a str,
}

impl<'a> Bearer<'a> {
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let text = std::str::from_utf8(message)
            .map_err(|error| Error::malformed(format!("the message of OAUTHBEARER is not UTF-8: {error}")))?;
        let (header, pairs) = text.split_once('\u{1}').ok_or_else(malformed)?;
        let acts_for = match header.strip_prefix("n,").and_then(|rest| rest.strip_suffix(',')) {
            Some("") => None,
            Some(rest) => {
                let name = rest.strip_prefix("a=").ok_or_else(malformed)?;
                Some(UserName::parse(&name.replace("=2C", ",").replace("=3D", "="))?)
            }
            None => return Err(malformed()),
        };
        let pairs = pairs.strip_suffix("\u{1}\u{1}").ok_or_else(malformed)?;
        let scheme = pairs.split('\u{1}').find_map(|pair| pair.strip_prefix("auth=")).ok_or_else(malformed)?;
        match scheme.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                Ok(Self { acts_for, token: token.trim() })
            }
            _ => Err(malformed()),
        }
    }
}

fn malformed() -> Error {
    Error::malformed("the message of OAUTHBEARER is not: n,,^Aauth=Bearer TOKEN^A^A, where ^A is a byte of value 1")
}

/// Token as a broker stores it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// User as whom its clients log in. The user does not need a password.
    pub user: UserName,
    /// Roles that its clients have, in addition to those of the user.
    pub roles: Vec<RoleName>,
    /// Time of creation in ms since 1970.
    pub created_ms: u64,
    /// Time in ms since 1970 from which it is not accepted; `None` if it does not expire.
    pub expires_ms: Option<u64>,
    pub hash: TokenHash,
    /// `true` if its user created it with a password. Then it is valid only while that user has a password, and ends
    /// when the password changes.
    pub is_own: bool,
}

impl Token {
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    pub fn validate(&self) -> Result<()> {
        let names_bytes = self.roles.iter().fold(self.user.as_str().len(), |bytes, role| bytes + role.as_str().len());
        if self.roles.len() > TOKEN_ROLES_MAX || names_bytes > TOKEN_NAMES_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a token has at most {TOKEN_ROLES_MAX} roles, and {TOKEN_NAMES_BYTES_MAX} bytes of names"
            )));
        }
        if self.is_own && !self.roles.is_empty() {
            return Err(Error::invalid("a token that a user creates for themselves has no roles of its own"));
        }
        Ok(())
    }
}

/// Writes all but the hash.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, roles, created_ms, expires_ms, hash: _, is_own } = self;
        f.debug_struct("Token")
            .field("user", user)
            .field("roles", roles)
            .field("created_ms", created_ms)
            .field("expires_ms", expires_ms)
            .field("is_own", is_own)
            .finish_non_exhaustive()
    }
}

/// Table of all tokens.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    by_id: BTreeMap<TokenId, Token>,
    by_user: ByUser<TokenId>,
}

impl Tokens {
    /// Checks that there is room for one more token.
    pub fn check_room(&self) -> Result<()> {
        if self.by_id.len() >= TOKENS_MAX {
            return Err(Error::busy(format!("this broker has {TOKENS_MAX} tokens; delete some first")));
        }
        Ok(())
    }

    /// Checks that there is room for one more token that a user creates for themselves.
    pub fn check_own_room(&self, user: &UserName) -> Result<()> {
        self.check_room()?;
        if self.of_user(user).filter(|(_, token)| token.is_own).count() >= OWN_TOKENS_PER_USER_MAX {
            return Err(Error::busy(format!(
                "user {user} has {OWN_TOKENS_PER_USER_MAX} tokens of their own; delete some first: thalweg token list, \
                 thalweg token delete ID"
            )));
        }
        if self.by_id.values().filter(|token| token.is_own).count() >= OWN_TOKENS_MAX {
            return Err(Error::busy(format!(
                "the users of this broker have created {OWN_TOKENS_MAX} tokens for themselves; an administrator can \
                 still create one: thalweg token create {user}"
            )));
        }
        Ok(())
    }

    /// Returns the stored token if the secret is correct, whether or not it has expired.
    pub fn find(&self, text: &TokenText) -> Option<&Token> {
        let token = self.by_id.get(&text.id)?;
        constant_time::verify_slices_are_equal(&token.hash, &text.hash()).ok().map(|()| token)
    }

    pub fn get(&self, id: &TokenId) -> Option<&Token> {
        self.by_id.get(id)
    }

    pub fn put(&mut self, id: TokenId, token: Token) {
        self.remove(&id);
        self.by_user.insert(token.user.clone(), id);
        self.by_id.insert(id, token);
    }

    pub fn remove(&mut self, id: &TokenId) {
        if let Some(token) = self.by_id.remove(id) {
            self.by_user.remove(&token.user, id);
        }
    }

    /// Returns the tokens with ids after this one, in their order.
    pub fn after(&self, id: Option<&TokenId>) -> impl Iterator<Item = (&TokenId, &Token)> {
        let start = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range::<TokenId, _>((start, Bound::Unbounded))
    }

    /// Returns the tokens of a user, in the order of their ids.
    pub fn of_user(&self, user: &UserName) -> impl Iterator<Item = (&TokenId, &Token)> {
        self.by_user.of(user.as_str()).filter_map(|id| self.by_id.get_key_value(id))
    }

    pub(super) fn count_of(&self, user: &str) -> usize {
        self.by_user.count_of(user)
    }

    pub(super) fn next_user(&self, after: &str) -> Option<&UserName> {
        self.by_user.next_user(after)
    }

    /// Returns all tokens in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (&TokenId, &Token)> {
        self.by_id.iter()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fill: u8) -> TokenText {
        TokenText::of_random(&std::array::from_fn(|at| fill.wrapping_add(at as u8)))
    }

    fn token(of: &TokenText) -> Token {
        let user = UserName::parse("ann").expect("a name");
        Token { user, roles: Vec::new(), created_ms: 1, expires_ms: Some(10), hash: of.hash(), is_own: false }
    }

    #[test]
    fn a_token_is_read_as_it_is_written() {
        let token = text(0xf0);
        let written = token.reveal();
        assert_eq!(written.len(), 84);
        let read = TokenText::parse(&written).expect("a token");
        assert_eq!((read.id, read.hash()), (token.id, token.hash()));
        assert_eq!(token.id.to_string().parse(), Ok(token.id));
        assert_eq!(format!("{token:?}"), format!("tw_{}_...", token.id));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let token = text(7).reveal();
        let changed =
            [token.to_uppercase(), token.replace("tw_", "TW_"), token.replacen('_', "", 2), format!("{token}0")];
        let cut = (0..token.len()).map(|length| token[..length].to_owned());
        for wrong in changed.into_iter().chain(cut).chain(["password".into(), "tw_ü_ü".into()]) {
            assert!(TokenText::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_message_of_oauthbearer_has_a_token() {
        let read = |text: &'static str| Bearer::parse(text.as_bytes());
        let with = |acts_for: Option<&str>, token| {
            Ok(Bearer { acts_for: acts_for.map(|name| UserName::parse(name).expect("a name")), token })
        };
        // The example of RFC 7628, section 4.1.
        let example = "n,a=user@example.com,\x01host=server.example.com\x01port=143\x01\
                       auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01";
        assert_eq!(read(example), with(Some("user@example.com"), "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="));
        assert_eq!(read("n,,\x01auth=bearer t\x01\x01"), with(None, "t"));
        assert_eq!(read("n,a=a=2Cb=3D,\x01auth=Bearer t\x01traceparent=x\x01\x01"), with(Some("a,b="), "t"));
        let wrong = ["", "n,,", "n,,\x01auth=Bearer t", "n,,\x01auth=Bearer t\x01", "n,,\x01auth=Basic t\x01\x01"];
        for wrong in wrong.into_iter().chain([
            "y,,\x01auth=Bearer t\x01\x01",
            "n,,\x01port=1\x01\x01",
            "\x01\x01\x01",
            "n,a=,\x01auth=Bearer t\x01\x01",
        ]) {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_the_right_secret_finds_a_token() {
        let [own, other] = [text(1), text(2)];
        let mut tokens = Tokens::default();
        tokens.put(own.id, token(&own));
        assert_eq!(tokens.find(&own), Some(&token(&own)));
        assert_eq!(tokens.find(&other), None);
        let forged = TokenText { id: own.id, secret: other.secret };
        assert_eq!(tokens.find(&forged), None);
        assert!(!token(&own).is_expired(9) && token(&own).is_expired(10));
        tokens.remove(&own.id);
        assert!(tokens.is_empty() && tokens.find(&own).is_none());
    }
    #[test]
    fn the_tokens_of_one_user_and_of_all_users_are_bounded() {
        let mut tokens = Tokens::default();
        let mut put = |user: &str, at: usize, is_own| {
            let user = UserName::parse(user).expect("a name");
            let own = Token { user, is_own, ..token(&text(1)) };
            tokens.put(TokenId::of_bytes((at as u64).to_be_bytes()), own);
        };
        (0..OWN_TOKENS_PER_USER_MAX).for_each(|at| put("ann", at, true));
        (100..200).for_each(|at| put("bob", at, false));
        let [ann, bob] = ["ann", "bob"].map(|name| UserName::parse(name).expect("a name"));
        let full = tokens.check_own_room(&ann).expect_err("full");
        assert!(full.message.contains("user ann has 16 tokens of their own"), "{full}");
        assert!(tokens.check_own_room(&bob).is_ok(), "an administrator created those of bob");
        let mut put = |at: usize| {
            let user = UserName::parse(&format!("u{at}")).expect("a name");
            tokens.put(TokenId::of_bytes((at as u64).to_be_bytes()), Token { user, is_own: true, ..token(&text(1)) });
        };
        (1000..1000 + OWN_TOKENS_MAX - OWN_TOKENS_PER_USER_MAX).for_each(&mut put);
        assert!(tokens.check_own_room(&bob).is_err_and(|error| error.message.contains("created 8192")));
        assert!(tokens.check_room().is_ok(), "an administrator has the rest");
    }
}
