//! AWS Signature Version 4: finds the signer of a request, in a header or in its query, and verifies the signature.
//!
//! The functions are pure: credentials, other keys and the time are arguments. They read the request byte for byte as
//! it was sent, so they must be called before anything is decoded. A signature always covers the method, the path, the
//! query, the body, and the headers that it names, which include the host.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use aws_lc_rs::{constant_time, digest, hmac};
use broker::SigningKey;
use engine::security::Account;
use engine::{Error, Result};
use hyper::HeaderMap;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";
/// Service in the scope of the credentials.
const SERVICE: &str = "sqs";
/// Maximum difference in seconds between the clock of a signer and this one.
const SKEW_S: u64 = 15 * 60;
/// Maximum lifetime of a signed query, in seconds.
const EXPIRES_S_MAX: u64 = 7 * 24 * 3600;
/// Replacement for the hash in a signed header: the signature does not cover the body.
const UNSIGNED_PAYLOAD: &[u8] = b"UNSIGNED-PAYLOAD";
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// Header with the action of a request. It must be signed, so that it cannot be replaced.
const TARGET: &str = "x-amz-target";

/// Maximum number of credentials of one broker.
const CREDENTIALS_MAX: usize = 4096;
const ACCESS_KEY_BYTES_MAX: usize = 128;
const REGION_BYTES_MAX: usize = 64;

/// A request as it was sent, with the escapes of its path and query.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// Query, without the question mark.
    pub query: &'a str,
    /// Authority, for requests without a `host` header, as over HTTP/2.
    pub authority: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// Signer that a request names, and the scope of the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    pub access_key: &'a str,
    /// Day, as `YYYYMMDD`.
    pub date: &'a str,
    pub region: &'a str,
    pub service: &'a str,
}

impl<'a> Scope<'a> {
    /// Parses the scope of a request. Nothing is verified.
    pub fn parse(request: &Request<'a>) -> Option<Self> {
        let credential = match authorization(request.headers) {
            Some(header) => parameter(header.strip_prefix(ALGORITHM)?, "Credential"),
            None => query_value(request.query, "X-Amz-Credential"),
        };
        credential.and_then(split_credential).map(|(scope, _)| scope)
    }

    /// Returns the access key if it has twelve digits, which make it an account id.
    pub fn account(&self) -> Option<&'a str> {
        Some(self.access_key).filter(|key| Account::is_valid(key))
    }
}

/// Returns `true` if a request has a signature header, valid or not. Neither a link nor an image can send it.
pub(super) fn has_header(headers: &HeaderMap) -> bool {
    authorization(headers).is_some_and(|header| header.starts_with(ALGORITHM))
}

/// Identity of the sender of a request. A field is `None` if it is not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Signer, if the signature was verified.
    pub signer: Option<Signer<'a>>,
    pub account: Option<Cow<'a, str>>,
    pub region: Option<&'a str>,
}

/// Access key with which a request was signed.
#[derive(Debug, PartialEq, Eq)]
pub enum Signer<'a> {
    /// Key of the configuration, by its name.
    Configured(&'a str, &'a Credential),
    /// Key that the broker stores.
    Stored(SigningKey),
}

impl<'a> Signer<'a> {
    fn secret(&self) -> &str {
        match self {
            Self::Configured(_, credential) => &credential.secret,
            Self::Stored(key) => key.secret.reveal(),
        }
    }

    /// Returns the name of the user on whose behalf the client acts.
    pub fn user(&self) -> &str {
        match self {
            Self::Configured(key, _) => key,
            Self::Stored(key) => key.user.as_str(),
        }
    }

    fn account(&self) -> Option<Cow<'a, str>> {
        match self {
            Self::Configured(_, credential) => Some(Cow::Borrowed(&credential.account)),
            Self::Stored(key) => key.account.as_ref().map(|account| account.to_string().into()),
        }
    }
}

/// Authentication of requests.
#[derive(Debug)]
pub enum Auth {
    /// Requests are accepted without verification, for the account that they name.
    Off,
    /// Requests must be signed with one of these credentials, or with an access key of the broker.
    Verify(Credentials),
}

impl Auth {
    /// Returns `true` if an identity is that of the signer, and not only claimed.
    pub fn is_verifying(&self) -> bool {
        matches!(self, Self::Verify(_))
    }

    /// Returns the account of an access key of the configuration, if it is known.
    pub fn account_of(&self, access_key: &str) -> Option<&str> {
        match self {
            Self::Off => None,
            Self::Verify(credentials) => credentials.0.get(access_key).map(|credential| &*credential.account),
        }
    }

    /// Returns the identity of a request. `stored` finds the access keys of the broker; `now_s` is the time in seconds
    /// since 1970.
    pub fn identify<'a>(
        &'a self,
        request: &Request<'a>,
        stored: impl FnOnce(&str) -> Option<SigningKey>,
        now_s: u64,
    ) -> Result<Identity<'a>, AuthError> {
        match self {
            Self::Off => Ok(Scope::parse(request).map_or_else(Identity::default, |scope| Identity {
                signer: None,
                account: scope.account().map(Cow::Borrowed),
                region: Some(scope.region).filter(|region| is_region(region)),
            })),
            Self::Verify(credentials) => verify(request, credentials, stored, SERVICE, now_s),
        }
    }
}

/// Access keys with their secrets and accounts.
pub struct Credentials(HashMap<Box<str>, Credential>);

/// Secret and account of an access key of the configuration.
#[derive(PartialEq, Eq)]
pub struct Credential {
    secret: Box<str>,
    account: Box<str>,
}

impl fmt::Debug for Credential {
    /// Formats the account only, so that no secret is logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.account)
    }
}

impl fmt::Debug for Credentials {
    /// Formats the access keys only, so that no secret is logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Credentials {
    /// Parses `key:secret` and `key:secret:account`. Without an account it is the key if that has twelve digits,
    /// otherwise `default_account`.
    pub fn parse<'a>(written: impl Iterator<Item = &'a str>, default_account: &str) -> Result<Self> {
        let mut found = HashMap::new();
        for one in written {
            let mut parts = one.split(':');
            let (Some(key), Some(secret), account, None) = (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(Error::invalid("write key:secret or key:secret:account"));
            };
            let is_key = (1..=ACCESS_KEY_BYTES_MAX).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !is_key {
                return Err(Error::invalid(format!(
                    "an access key has 1 to {ACCESS_KEY_BYTES_MAX} letters, digits and underscores"
                )));
            }
            if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::invalid(format!(
                    "the secret of access key {key} must be printable ASCII without spaces"
                )));
            }
            let account = account.unwrap_or(if Account::is_valid(key) { key } else { default_account });
            if !Account::is_valid(account) {
                return Err(Error::invalid(format!("the account of access key {key} must have 12 digits")));
            }
            if found.len() == CREDENTIALS_MAX {
                return Err(Error::invalid(format!("at most {CREDENTIALS_MAX} access keys are allowed")));
            }
            if found.insert(key.into(), Credential { secret: secret.into(), account: account.into() }).is_some() {
                return Err(Error::invalid(format!("access key {key} is given twice")));
            }
        }
        Ok(Self(found))
    }

    fn find<'a>(&'a self, access_key: &'a str) -> Option<Signer<'a>> {
        self.0.get(access_key).map(|credential| Signer::Configured(access_key, credential))
    }
}

/// Reason why a request is refused, in the words of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthError {
    pub kind: AuthErrorKind,
    pub message: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthErrorKind {
    IncompleteSignature,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    RequestExpired,
    SignatureDoesNotMatch,
}

impl AuthErrorKind {
    pub fn code(self) -> &'static str {
        match self {
            Self::IncompleteSignature => "IncompleteSignature",
            Self::InvalidClientTokenId => "InvalidClientTokenId",
            Self::MissingAuthenticationToken => "MissingAuthenticationToken",
            Self::RequestExpired => "RequestExpired",
            Self::SignatureDoesNotMatch => "SignatureDoesNotMatch",
        }
    }

    /// Returns the HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::IncompleteSignature => 400,
            Self::InvalidClientTokenId
            | Self::MissingAuthenticationToken
            | Self::RequestExpired
            | Self::SignatureDoesNotMatch => 403,
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.code())
    }
}

impl std::error::Error for AuthError {}

fn incomplete(message: impl Into<Cow<'static, str>>) -> AuthError {
    AuthError { kind: AuthErrorKind::IncompleteSignature, message: message.into() }
}

fn no_match(message: impl Into<Cow<'static, str>>) -> AuthError {
    AuthError { kind: AuthErrorKind::SignatureDoesNotMatch, message: message.into() }
}

/// Verifies the signature of a request for a service. Returns the identity of the signer. A key that is not among the
/// credentials is found by `stored`.
pub fn verify<'a>(
    request: &Request<'a>,
    credentials: &'a Credentials,
    stored: impl FnOnce(&str) -> Option<SigningKey>,
    service: &str,
    now_s: u64,
) -> Result<Identity<'a>, AuthError> {
    let signed = Signed::parse(request)?;
    let scope = signed.scope;
    signed.check_scope(service)?;
    let Some(signer) = credentials.find(scope.access_key).or_else(|| stored(scope.access_key).map(Signer::Stored))
    else {
        let message = "The security token included in the request is invalid.".into();
        return Err(AuthError { kind: AuthErrorKind::InvalidClientTokenId, message });
    };
    signed.check_time(now_s)?;
    signed.check_headers(request.headers)?;
    let expected = signed.signature_of(request, signer.secret());
    if constant_time::verify_slices_are_equal(&expected, signed.signature.as_bytes()).is_err() {
        return Err(no_match(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method. Consult the service documentation for details.",
        ));
    }
    let account = signer.account();
    Ok(Identity { signer: Some(signer), account, region: Some(scope.region) })
}

/// Parameters of a signature.
struct Signed<'a> {
    scope: Scope<'a>,
    terminator: &'a str,
    /// Names of the signed headers in lower case, separated by semicolons.
    headers: Cow<'a, str>,
    /// Signature in hex.
    signature: &'a str,
    time: Time,
    /// Lifetime in seconds, if the signature is in the query.
    expires_s: Option<u64>,
}

impl<'a> Signed<'a> {
    fn parse(request: &Request<'a>) -> Result<Self, AuthError> {
        match authorization(request.headers) {
            Some(header) => Self::parse_header(header, request.headers),
            None if request.query.contains("X-Amz-") => Self::parse_query(request.query),
            None => Err(AuthError {
                kind: AuthErrorKind::MissingAuthenticationToken,
                message: "Request is missing Authentication Token".into(),
            }),
        }
    }

    fn parse_header(header: &'a str, headers: &'a HeaderMap) -> Result<Self, AuthError> {
        let (algorithm, parameters) = header.split_once(' ').unwrap_or((header, ""));
        if algorithm != ALGORITHM {
            return Err(incomplete(format!("Unsupported AWS 'algorithm': '{}'.", algorithm.escape_default())));
        }
        let [credential, signature, signed_headers] =
            ["Credential", "Signature", "SignedHeaders"].map(|name| parameter(parameters, name));
        let date = ["x-amz-date", "date"].into_iter().find_map(|name| headers.get(name));
        let date = date.map(|value| value.to_str().unwrap_or_default());
        let (Some(credential), Some(signature), Some(signed_headers), Some(date)) =
            (credential, signature, signed_headers, date)
        else {
            let missing = [("Credential", credential), ("Signature", signature), ("SignedHeaders", signed_headers)];
            let mut message = String::new();
            for (name, _) in missing.iter().filter(|(_, value)| value.is_none()) {
                message += &format!("Authorization header requires '{name}' parameter. ");
            }
            if date.is_none() {
                message += "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. ";
            }
            return Err(incomplete(message.trim_end().to_owned()));
        };
        let (scope, terminator) = split_credential(credential).ok_or_else(|| unscoped(credential))?;
        let time = Time::parse(date).or_else(|| Time::parse_http(date)).ok_or_else(|| undated(date))?;
        Ok(Self { scope, terminator, headers: signed_headers.into(), signature, time, expires_s: None })
    }

    fn parse_query(query: &'a str) -> Result<Self, AuthError> {
        let value = |name: &'static str| {
            query_value(query, name).ok_or_else(|| {
                incomplete(format!(
                    "AWS query-string parameters must include '{name}'. Re-examine the query-string parameters."
                ))
            })
        };
        let algorithm = value("X-Amz-Algorithm")?;
        if algorithm != ALGORITHM {
            return Err(incomplete(format!("Unsupported AWS 'algorithm': '{}'.", algorithm.escape_default())));
        }
        let credential = value("X-Amz-Credential")?;
        let signature = value("X-Amz-Signature")?;
        let date = value("X-Amz-Date")?;
        let headers = value("X-Amz-SignedHeaders")?;
        let (scope, terminator) = split_credential(credential).ok_or_else(|| unscoped(credential))?;
        let expires_s = match query_value(query, "X-Amz-Expires") {
            None => SKEW_S,
            Some(written) => written.parse().ok().filter(|s| (1..=EXPIRES_S_MAX).contains(s)).ok_or_else(|| {
                incomplete(format!("X-Amz-Expires must be a number from 1 to {EXPIRES_S_MAX}, in seconds."))
            })?,
        };
        let decoded = String::from_utf8(decode(headers.as_bytes()).collect());
        let headers = Cow::Owned(decoded.map_err(|e| incomplete(format!("X-Amz-SignedHeaders: {e}")))?);
        let time = Time::parse(date).ok_or_else(|| undated(date))?;
        Ok(Self { scope, terminator, headers, signature, time, expires_s: Some(expires_s) })
    }

    fn check_scope(&self, service: &str) -> Result<(), AuthError> {
        let Scope { date, region, service: scoped, .. } = self.scope;
        if self.terminator != TERMINATOR {
            return Err(no_match(format!(
                "Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{}'.",
                self.terminator.escape_default()
            )));
        }
        if scoped != service {
            return Err(no_match(format!("Credential should be scoped to correct service: '{service}'.")));
        }
        if !is_region(region) {
            return Err(no_match("Credential should be scoped to a valid region."));
        }
        if date != &self.time.text[..8] {
            return Err(no_match(format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '{}' != \
                 '{}', from '{}'.",
                date.escape_default(),
                &self.time.text[..8],
                self.time.text
            )));
        }
        Ok(())
    }

    fn check_time(&self, now_s: u64) -> Result<(), AuthError> {
        let signed = &self.time;
        if signed.unix_s > now_s + SKEW_S {
            let latest = Time::of(now_s + SKEW_S);
            let now = Time::of(now_s);
            return Err(no_match(format!(
                "Signature not yet current: {} is still later than {} ({} + 15 min.)",
                signed.text, latest.text, now.text
            )));
        }
        match self.expires_s {
            Some(expires_s) if signed.unix_s + expires_s < now_s => Err(AuthError {
                kind: AuthErrorKind::RequestExpired,
                message: format!(
                    "Request has expired: {} is now earlier than {}.",
                    Time::of(signed.unix_s + expires_s).text,
                    Time::of(now_s).text
                )
                .into(),
            }),
            None if signed.unix_s + SKEW_S < now_s => {
                let earliest = Time::of(now_s - SKEW_S);
                let now = Time::of(now_s);
                Err(no_match(format!(
                    "Signature expired: {} is now earlier than {} ({} - 15 min.)",
                    signed.text, earliest.text, now.text
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks the names of the signed headers. They are unique and sorted, so that never more bytes are hashed than
    /// were sent.
    fn check_headers(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let names = || self.headers.split(';');
        if !names().is_sorted_by(|a, b| a < b) {
            return Err(no_match("The names in 'SignedHeaders' must be sorted, and each be there once."));
        }
        if !names().any(|name| name == "host") {
            return Err(no_match("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."));
        }
        if headers.contains_key(TARGET) && !names().any(|name| name == TARGET) {
            return Err(no_match("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization."));
        }
        Ok(())
    }

    /// Computes the signature in hex, as the holder of the secret would.
    fn signature_of(&self, request: &Request<'_>, secret: &str) -> [u8; 64] {
        let Scope { date, region, service, .. } = self.scope;
        let to_sign = format!(
            "{ALGORITHM}\n{}\n{date}/{region}/{service}/{TERMINATOR}\n{}",
            self.time.text,
            Text(&hex(self.canonical_hash(request).as_ref()))
        );
        let first = hmac::sign(&hmac_key(format!("AWS4{secret}").as_bytes()), date.as_bytes());
        let key = [region, service, TERMINATOR]
            .into_iter()
            .fold(first, |key, part| hmac::sign(&hmac_key(key.as_ref()), part.as_bytes()));
        hex(hmac::sign(&hmac_key(key.as_ref()), to_sign.as_bytes()).as_ref())
    }

    /// Returns the hash of the request in its canonical form.
    fn canonical_hash(&self, request: &Request<'_>) -> digest::Digest {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(request.method.as_bytes());
        hash.update(b"\n");
        hash.update(canonical_path(request.path).as_bytes());
        hash.update(b"\n");
        hash.update(canonical_query(request.query).as_bytes());
        hash.update(b"\n");
        for name in self.headers.split(';') {
            hash.update(name.as_bytes());
            hash.update(b":");
            let authority = request.authority.filter(|_| name == "host" && !request.headers.contains_key("host"));
            let values = request.headers.get_all(name).iter().map(|value| value.as_bytes());
            for (i, value) in authority.map(str::as_bytes).into_iter().chain(values).enumerate() {
                hash.update(if i > 0 { b"," } else { b"" });
                let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                for (j, word) in words.enumerate() {
                    hash.update(if j > 0 { b" " } else { b"" });
                    hash.update(word);
                }
            }
            hash.update(b"\n");
        }
        hash.update(b"\n");
        hash.update(self.headers.as_bytes());
        hash.update(b"\n");
        let says_unsigned = request.headers.get(CONTENT_HASH).is_some_and(|value| value == UNSIGNED_PAYLOAD);
        if says_unsigned && self.headers.split(';').any(|name| name == CONTENT_HASH) {
            hash.update(UNSIGNED_PAYLOAD);
        } else {
            hash.update(&hex(digest::digest(&digest::SHA256, request.body).as_ref()));
        }
        hash.finish()
    }
}

fn unscoped(credential: &str) -> AuthError {
    incomplete(format!(
        "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got '{}'",
        credential.escape_default()
    ))
}

fn undated(date: &str) -> AuthError {
    incomplete(format!("Date must be in ISO-8601 'basic format'. Got '{}'.", date.escape_default()))
}

/// Returns the header that contains the signature.
fn authorization(headers: &HeaderMap) -> Option<&str> {
    headers.get(hyper::header::AUTHORIZATION).map(|value| value.to_str().unwrap_or_default())
}

/// Returns the value of `name=value` in a list that is separated by commas.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut found = parameters.split(',').filter_map(|part| part.trim().split_once('='));
    found.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
}

/// Returns the value of a parameter of the query, with its escapes.
fn query_value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut found = query.split('&').filter_map(|pair| pair.split_once('='));
    found.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
}

/// Splits a credential into its scope and its terminator. In a query its slashes are escaped; nothing else needs to be.
fn split_credential(credential: &str) -> Option<(Scope<'_>, &str)> {
    let mut parts = credential.split('/').flat_map(|part| part.split("%2F")).flat_map(|part| part.split("%2f"));
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let scope = Scope { access_key: next()?, date: next()?, region: next()?, service: next()? };
    let terminator = next()?;
    parts.next().is_none().then_some((scope, terminator))
}

fn is_region(text: &str) -> bool {
    (1..=REGION_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns the path without empty segments, `.` and `..`, and with its escapes escaped again.
fn canonical_path(path: &str) -> Cow<'_, str> {
    if path == "/" || path.is_empty() {
        return "/".into();
    }
    let mut kept = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    let mut canonical = String::with_capacity(path.len());
    for part in &kept {
        canonical.push('/');
        encode(part.bytes(), &mut canonical);
    }
    if kept.is_empty() || path.ends_with('/') {
        canonical.push('/');
    }
    canonical.into()
}

/// Returns the query sorted, with the fewest escapes, and without the signature itself.
fn canonical_query(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut pairs: Vec<(String, String)> = pairs
        .filter(|(name, _)| *name != "X-Amz-Signature")
        .map(|(name, value)| {
            let mut canonical_name = String::new();
            let mut canonical_value = String::new();
            encode(decode(name.as_bytes()), &mut canonical_name);
            encode(decode(value.as_bytes()), &mut canonical_value);
            (canonical_name, canonical_value)
        })
        .collect();
    pairs.sort_unstable();
    let mut canonical = String::with_capacity(query.len());
    for (name, value) in &pairs {
        let separator = if canonical.is_empty() { "" } else { "&" };
        canonical.extend([separator, name, "=", value]);
    }
    canonical
}

/// Escapes all bytes that are not unreserved (RFC 3986).
fn encode(bytes: impl Iterator<Item = u8>, out: &mut String) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                let [high, low] = hex_byte(byte);
                out.push('%');
                out.extend([high, low].map(|digit| char::from(digit.to_ascii_uppercase())));
            }
        }
    }
}

/// Decodes escapes. Invalid escapes are unchanged.
fn decode(escaped: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut rest = escaped;
    std::iter::from_fn(move || {
        let (byte, behind) = rest.split_first()?;
        rest = behind;
        if *byte == b'%'
            && let [high, low, behind @ ..] = rest
            && let (Some(high), Some(low)) = (digit(high), digit(low))
        {
            rest = behind;
            return Some((high * 16 + low) as u8);
        }
        Some(*byte)
    })
}

fn hmac_key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn hex_byte(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// Returns a hash in hex.
fn hex(bytes: &[u8]) -> [u8; 64] {
    let mut out = [0; 64];
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = hex_byte(*byte);
    }
    out
}

/// ASCII text.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

/// Time with a precision of a second, and its form in signatures: `20150830T123600Z`.
struct Time {
    unix_s: u64,
    text: String,
}

impl Time {
    fn of(unix_s: u64) -> Self {
        let (year, month, day) = date_of(unix_s / DAY_S);
        let hour = unix_s % DAY_S / 3600;
        let minute = unix_s % 3600 / 60;
        let second = unix_s % 60;
        Self { unix_s, text: format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z") }
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = |from: usize, to: usize| number(text.get(from..to)?);
        if text.len() != 16 || text.as_bytes()[8] != b'T' || text.as_bytes()[15] != b'Z' {
            return None;
        }
        let clock = [digits(9, 11)?, digits(11, 13)?, digits(13, 15)?];
        Self::at(digits(0, 4)?, digits(4, 6)?, digits(6, 8)?, clock)
    }

    /// Parses the form of the header `date`: `Sun, 30 Aug 2015 12:36:00 GMT`.
    fn parse_http(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().skip(1);
        let day = number(words.next()?)?;
        let month = words.next()?;
        let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
        let year = number(words.next()?)?;
        let mut clock = words.next()?.split(':').map(number);
        let clock = [clock.next()??, clock.next()??, clock.next()??];
        let is_utc = matches!(words.next(), Some("GMT" | "UTC" | "+0000" | "-0000"));
        if is_utc { Self::at(year, month, day, clock) } else { None }
    }

    fn at(year: u64, month: u64, day: u64, [hour, minute, second]: [u64; 3]) -> Option<Self> {
        let is_valid = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !is_valid {
            return None;
        }
        let days = day_of(year, month, day);
        let time = Self::of(days * DAY_S + hour * 3600 + minute * 60 + second);
        (date_of(days) == (year, month, day)).then_some(time)
    }
}

const DAY_S: u64 = 86_400;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days from 1 March of the year 0 to 1 January 1970. Years that begin in March have their leap day at the end.
const EPOCH_DAYS: u64 = 719_468;
const ERA_DAYS: u64 = 146_097;

fn number(digits: &str) -> Option<u64> {
    let is_number = (1..=4).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Returns the number of days since 1 January 1970.
fn day_of(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let of_era = year % 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
}

/// Returns the year, month and day for a number of days since 1 January 1970.
fn date_of(day: u64) -> (u64, u64, u64) {
    let day = day + EPOCH_DAYS;
    let era = day / ERA_DAYS;
    let of_era = day % ERA_DAYS;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
#[path = "sigv4_tests.rs"]
mod tests;
