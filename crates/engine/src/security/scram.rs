//! SCRAM (RFC 5802, RFC 7677): a user proves knowledge of a password, and the broker proves knowledge of its
//! credential. Neither the password nor anything equivalent to it crosses the wire.
//!
//! The broker's side is [`ClientFirst::parse`], [`ClientFirst::challenge`] and [`Exchange::finish`], in this order; the
//! client's side is [`ClientExchange::begin`], [`ClientExchange::prove`] and [`BrokerProof::check`].
//! Randomness comes in as an argument. An unknown user gets a challenge like any other, and fails at the same step.

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{UserName, denied};
use crate::error::{Error, Result};
use crate::limits::PASSWORD_BYTES_MAX;

/// Minimum number of iterations of the hash of a password. Each guess of a password costs as many.
pub const ITERATIONS_MIN: u32 = 4096;
/// Maximum number of iterations of the hash of a password.
pub const ITERATIONS_MAX: u32 = 16_384;
/// Default number of iterations of the hash of a password.
pub const ITERATIONS_DEFAULT: u32 = 4096;
/// Maximum length of a salt in bytes. Kafka accepts the salts of its clients without a minimum.
const SALT_BYTES_MAX: usize = 255;
/// Maximum length of a client's message in bytes: an escaped character of the user name takes three bytes.
const MESSAGE_BYTES_MAX: usize = 2048;
const KEY_BYTES_MAX: usize = 64;

/// Hash function of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mechanism {
    Sha256 = 1,
    Sha512 = 2,
}

impl Mechanism {
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| *mechanism as u8 == code)
    }

    /// Returns the name that is registered for SASL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Key {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        parts.iter().for_each(|part| context.update(part));
        Key::of(context.sign().as_ref())
    }

    fn hash(self, bytes: &[u8]) -> Key {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        };
        Key::of(digest::digest(algorithm, bytes).as_ref())
    }

    /// Returns the password, salted and hashed with this number of iterations.
    fn salted(self, password: &str, salt: &[u8], iterations: u32) -> Key {
        let algorithm = match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut salted = Key { bytes: [0; KEY_BYTES_MAX], len: self.key_bytes() };
        let iterations = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        pbkdf2::derive(algorithm, iterations, salt, password.as_bytes(), &mut salted.bytes[..salted.len]);
        salted
    }
}

/// Hash value, stored inline.
#[derive(Clone, Copy)]
struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl Key {
    fn of(hash: &[u8]) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..hash.len()].copy_from_slice(hash);
        Self { bytes, len: hash.len() }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Combines two keys of the same length.
    fn xor(mut self, other: &Self) -> Self {
        self.bytes.iter_mut().zip(other.bytes).for_each(|(a, b)| *a ^= b);
        self
    }
}

/// Stored form of a password for one mechanism.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    mechanism: Mechanism,
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Formats the credential without its keys, which must not be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} iterations", self.mechanism.name(), self.iterations)
    }
}

impl Credential {
    /// Derives a credential from a password. The salt has to be random.
    pub fn of_password(mechanism: Mechanism, password: &str, salt: Vec<u8>, iterations: u32) -> Result<Self> {
        check(&salt, iterations)?;
        if password.is_empty() {
            return Err(Error::invalid("a password must not be empty"));
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a password has at most {PASSWORD_BYTES_MAX} bytes, not {}",
                password.len()
            )));
        }
        Self::of_salted(mechanism, mechanism.salted(password, &salt, iterations).get(), salt, iterations)
    }

    /// Derives a credential from a password that was salted and hashed elsewhere.
    pub fn of_salted(mechanism: Mechanism, salted: &[u8], salt: Vec<u8>, iterations: u32) -> Result<Self> {
        if salted.len() != mechanism.key_bytes() {
            return Err(Error::invalid(format!(
                "a salted password of {} has {} bytes, not {}",
                mechanism.name(),
                mechanism.key_bytes(),
                salted.len()
            )));
        }
        let client_key = mechanism.hmac(salted, &[b"Client Key"]);
        let stored = mechanism.hash(client_key.get());
        let server = mechanism.hmac(salted, &[b"Server Key"]);
        Self::of_keys(mechanism, iterations, salt, stored.get().to_vec(), server.get().to_vec())
    }

    /// Returns a credential from its stored parts.
    pub fn of_keys(
        mechanism: Mechanism,
        iterations: u32,
        salt: Vec<u8>,
        stored_key: Vec<u8>,
        server_key: Vec<u8>,
    ) -> Result<Self> {
        check(&salt, iterations)?;
        if stored_key.len() != mechanism.key_bytes() || server_key.len() != mechanism.key_bytes() {
            return Err(Error::invalid(format!(
                "{} needs keys of {} bytes, got {} and {}",
                mechanism.name(),
                mechanism.key_bytes(),
                stored_key.len(),
                server_key.len()
            )));
        }
        Ok(Self { mechanism, iterations, salt, stored_key, server_key })
    }

    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    pub fn stored_key(&self) -> &[u8] {
        &self.stored_key
    }

    pub fn server_key(&self) -> &[u8] {
        &self.server_key
    }

    /// Returns `true` if this is the password. Takes the same time for a wrong one.
    pub fn fits(&self, password: &str) -> bool {
        let salted = self.mechanism.salted(password, &self.salt, self.iterations);
        self.is_client_key(&self.mechanism.hmac(salted.get(), &[b"Client Key"]))
    }

    fn is_client_key(&self, key: &Key) -> bool {
        constant_time::verify_slices_are_equal(self.mechanism.hash(key.get()).get(), &self.stored_key).is_ok()
    }

    /// Returns a credential for an unknown user. It stays the same as long as the secret does, and no password matches
    /// it.
    pub(super) fn decoy(mechanism: Mechanism, user: &str, secret: &[u8]) -> Self {
        let part = |what: &[u8]| mechanism.hmac(secret, &[what, user.as_bytes()]).get().to_vec();
        let mut salt = part(b"salt");
        salt.truncate(16);
        let stored_key = part(b"stored");
        let server_key = part(b"server");
        Self { mechanism, iterations: ITERATIONS_DEFAULT, salt, stored_key, server_key }
    }
}

fn check(salt: &[u8], iterations: u32) -> Result<()> {
    if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
        return Err(Error::invalid(format!("iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}")));
    }
    if salt.len() > SALT_BYTES_MAX {
        return Err(Error::invalid(format!("a salt has at most {SALT_BYTES_MAX} bytes, not {}", salt.len())));
    }
    Ok(())
}

/// First message of a client, which names the user.
#[derive(Clone, Debug)]
pub struct ClientFirst {
    pub user: UserName,
    /// Part of the message before the bare message, which the last message repeats.
    gs2_header: String,
    bare: String,
    nonce: String,
}

impl ClientFirst {
    pub fn parse(message: &[u8]) -> Result<Self> {
        let text = text_of(message)?;
        let (binding, rest) = text.split_once(',').ok_or_else(cut_short)?;
        match binding {
            "n" | "y" => {}
            _ => return Err(Error::malformed("channel binding is not supported: begin with 'n,'")),
        }
        let (authzid, bare) = rest.split_once(',').ok_or_else(cut_short)?;
        let mut fields = bare.split(',');
        let user = name_of(field(&mut fields, 'n')?)?;
        let nonce = field(&mut fields, 'r')?.to_owned();
        if nonce.is_empty() || !is_printable(&nonce) {
            return Err(Error::malformed("a nonce must not be empty and must contain only printable ASCII characters"));
        }
        if !authzid.is_empty() && authzid.strip_prefix("a=").map(name_of).transpose()?.as_ref() != Some(&user) {
            return Err(denied("logging in for another user is not supported"));
        }
        let gs2_header = text[..text.len() - bare.len()].to_owned();
        Ok(Self { user, gs2_header, bare: bare.to_owned(), nonce })
    }

    /// Returns the exchange and the challenge for the client. The nonce has to be random, of printable characters
    /// without commas.
    pub fn challenge(self, credential: Credential, is_known: bool, server_nonce: &str) -> (Exchange, Vec<u8>) {
        let nonce = format!("{}{server_nonce}", self.nonce);
        let challenge = format!("r={nonce},s={},i={}", BASE64.encode(&credential.salt), credential.iterations);
        let so_far = format!("{},{challenge}", self.bare);
        let exchange = Exchange { user: self.user, gs2_header: self.gs2_header, nonce, so_far, credential, is_known };
        (exchange, challenge.into_bytes())
    }
}

/// Exchange that waits for the client's proof.
pub struct Exchange {
    user: UserName,
    gs2_header: String,
    nonce: String,
    so_far: String,
    credential: Credential,
    is_known: bool,
}

impl Exchange {
    /// Returns the name of the user that the client claims to be.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// Returns the credential with which the client's proof is verified.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Returns the user and the broker's own proof if the client's proof is right.
    pub fn finish(self, message: &[u8]) -> Result<(UserName, Vec<u8>)> {
        let text = text_of(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(cut_short)?;
        let mut fields = without_proof.split(',');
        let binding = decode(field(&mut fields, 'c')?)?;
        if binding != self.gs2_header.as_bytes() {
            return Err(Error::malformed("the last message belongs to another exchange: its header differs"));
        }
        if field(&mut fields, 'r')? != self.nonce {
            return Err(Error::malformed(
                "the last message belongs to another exchange: its nonce differs (librdkafka before 2.6 sends a wrong \
                 nonce: use a newer client, or PLAIN over TLS)",
            ));
        }
        let proof = decode(proof)?;
        let mechanism = self.credential.mechanism;
        if proof.len() != mechanism.key_bytes() {
            return Err(Error::malformed(format!(
                "{} needs a proof of {} bytes, got {}",
                mechanism.name(),
                mechanism.key_bytes(),
                proof.len()
            )));
        }
        let all = [self.so_far.as_bytes(), b",", without_proof.as_bytes()];
        let signature = mechanism.hmac(&self.credential.stored_key, &all);
        let is_right = self.credential.is_client_key(&Key::of(&proof).xor(&signature));
        if !is_right || !self.is_known {
            return Err(wrong_password());
        }
        let signature = mechanism.hmac(&self.credential.server_key, &all);
        Ok((self.user, format!("v={}", BASE64.encode(signature.get())).into_bytes()))
    }
}

/// Client's side of an exchange, which waits for the challenge.
pub struct ClientExchange {
    mechanism: Mechanism,
    password: String,
    bare: String,
    nonce: String,
}

impl ClientExchange {
    /// Header of the messages: no channel binding, and no other name to act for.
    const GS2_HEADER: &str = "n,,";

    /// Returns the exchange and the first message. The nonce has to be random, of printable characters without commas.
    pub fn begin(mechanism: Mechanism, user: &UserName, password: &str, nonce: &str) -> (Self, Vec<u8>) {
        let name = user.as_str().replace('=', "=3D").replace(',', "=2C");
        let bare = format!("n={name},r={nonce}");
        let message = format!("{}{bare}", Self::GS2_HEADER).into_bytes();
        (Self { mechanism, password: password.to_owned(), bare, nonce: nonce.to_owned() }, message)
    }

    /// Returns the last message, and the proof that the broker has to send for it. Hashes the password, which takes
    /// milliseconds.
    pub fn prove(self, challenge: &[u8]) -> Result<(BrokerProof, Vec<u8>)> {
        let challenge = text_of(challenge)?;
        let mut fields = challenge.split(',');
        let nonce = field(&mut fields, 'r')?;
        let salt = decode(field(&mut fields, 's')?)?;
        let iterations = field(&mut fields, 'i')?;
        let iterations = iterations.parse().map_err(|error| {
            Error::malformed(format!("the number of iterations '{iterations}' is invalid: {error}"))
        })?;
        check(&salt, iterations)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(Error::malformed("the challenge belongs to another exchange: its nonce differs"));
        }
        let mechanism = self.mechanism;
        let without_proof = format!("c={},r={nonce}", BASE64.encode(Self::GS2_HEADER));
        let all = [self.bare.as_bytes(), b",", challenge.as_bytes(), b",", without_proof.as_bytes()];
        let salted = mechanism.salted(&self.password, &salt, iterations);
        let client_key = mechanism.hmac(salted.get(), &[b"Client Key"]);
        let signature = mechanism.hmac(mechanism.hash(client_key.get()).get(), &all);
        let proof = BASE64.encode(client_key.xor(&signature).get());
        let server_key = mechanism.hmac(salted.get(), &[b"Server Key"]);
        let wanted = BrokerProof(mechanism.hmac(server_key.get(), &all));
        Ok((wanted, format!("{without_proof},p={proof}").into_bytes()))
    }
}

/// Proof of a broker that it knows the credential of the user.
pub struct BrokerProof(Key);

impl BrokerProof {
    /// Checks the broker's last message.
    pub fn check(self, message: &[u8]) -> Result<()> {
        let proof = decode(field(&mut text_of(message)?.split(','), 'v')?)?;
        match constant_time::verify_slices_are_equal(&proof, self.0.get()) {
            Ok(()) => Ok(()),
            // The cause only says that the slices differ.
            Err(_) => Err(denied("the server does not know the password: it may be another server than the user's")),
        }
    }
}

/// Returns the error of a failed login. It does not reveal whether the user or the password is wrong.
pub fn wrong_password() -> Error {
    denied("the name of the user or the password is wrong")
}

fn text_of(message: &[u8]) -> Result<&str> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::too_large(format!("a SCRAM message has at most {MESSAGE_BYTES_MAX} bytes")));
    }
    std::str::from_utf8(message).map_err(|error| Error::malformed(format!("a SCRAM message is not UTF-8: {error}")))
}

/// Returns the value of the next field, which has to have this name.
fn field<'a>(fields: &mut impl Iterator<Item = &'a str>, name: char) -> Result<&'a str> {
    let field = fields.next().and_then(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.ok_or_else(|| Error::malformed(format!("a SCRAM message lacks the field '{name}=' at its position")))
}

/// Decodes a user name, in which commas and equals signs are escaped.
fn name_of(written: &str) -> Result<UserName> {
    let mut name = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('=') {
        name.push_str(before);
        let (sign, left) = match after.as_bytes() {
            [b'2', b'C', ..] => (',', &after[2..]),
            [b'3', b'D', ..] => ('=', &after[2..]),
            _ => return Err(Error::malformed("a '=' in a user's name is not followed by 2C or 3D")),
        };
        name.push(sign);
        rest = left;
    }
    name.push_str(rest);
    UserName::parse(&name)
}

fn decode(text: &str) -> Result<Vec<u8>> {
    BASE64.decode(text).map_err(|error| Error::malformed(format!("a field of a SCRAM message is not base64: {error}")))
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

fn cut_short() -> Error {
    Error::malformed("a SCRAM message ends before its last field")
}

#[cfg(test)]
#[path = "scram_tests.rs"]
mod tests;
