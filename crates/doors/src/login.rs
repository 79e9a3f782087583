//! Logins of HTTP requests, by HTTP Basic (RFC 7617) and bearer tokens (RFC 6750), and of clients by certificates.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use broker::{Broker, ClientCertificate, Door, Identity, LoginSource};
use engine::security::{Password, UserName, parse_basic};
use engine::{Error, ErrorKind, Result};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use net::UnixPeer;
use net::http::{Caller, is_forwarded};
use net::tls::PeerIdentity;

/// Returns the identity of a client that presented this certificate; `None` if it has none that names a user.
pub(crate) fn of_certificate(
    broker: &Broker,
    certificate: Option<&PeerIdentity>,
    source: LoginSource,
) -> Option<Identity> {
    let PeerIdentity { names, subject, common_name, expires_at, chain, accepted_in, .. } = certificate?;
    // It is valid for the whole of its last second.
    let since_1970 = expires_at.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(Duration::from_secs(1));
    let certificate = ClientCertificate {
        subject: subject.clone(),
        name: common_name.as_ref().or(names.first()).cloned(),
        expires_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
        chain: chain.clone(),
        accepted_in: accepted_in.clone(),
    };
    let identity = broker.security.log_in_with_certificate(certificate, source).ok();
    // A connection may be older than the revocation of its certificate.
    identity.filter(|identity| broker.security.is_valid(identity))
}

/// Returns `true` if a process of the broker's own user, or of root, has sent a request over a Unix socket. One that a
/// proxy of that user passes on has another sender.
fn is_of_owner(headers: &HeaderMap, caller: Option<&Caller>) -> bool {
    let process = caller.and_then(|caller| caller.connection.process);
    process.is_some_and(UnixPeer::is_owner) && !is_forwarded(headers)
}

/// Returns the certificate of the client of a request, if the client itself has connected.
pub(crate) fn certificate_of(caller: &Caller) -> Option<&PeerIdentity> {
    caller.connection.identity.as_ref().filter(|_| !caller.is_proxied)
}

/// Returns the identity of the sender of a request: of a user who has logged in, if a login is required and the request
/// has one; otherwise that of the connection's certificate; otherwise, over a Unix socket, the administrator if the
/// sender is of the broker's own user; otherwise, if no login is required, an anonymous one. A missing or wrong login
/// is `Denied`.
pub(crate) async fn identify(
    broker: &Broker,
    door: Door,
    headers: &HeaderMap,
    caller: Option<&Caller>,
    is_login_required: bool,
) -> Result<Identity> {
    let source = LoginSource { door, address: caller.map(|caller| caller.address) };
    let header = headers.get(AUTHORIZATION).filter(|_| is_login_required);
    if header.is_none()
        && let Some(identity) = of_certificate(broker, caller.and_then(certificate_of), source)
    {
        return Ok(identity);
    }
    if header.is_none() && is_of_owner(headers, caller) {
        return Ok(broker.security.log_in_owner(source));
    }
    if !is_login_required {
        return Ok(Identity::anonymous(&source.host()));
    }
    let Some(header) = header else {
        broker.security.missing_login(source);
        return Err(Error::new(
            ErrorKind::Denied,
            "this broker requires a login: send user and password, or a bearer token",
        ));
    };
    let header = header.to_str().unwrap_or_default();
    if let Some(token) = bearer(header) {
        return broker.security.log_in_with_token(token, None, source).await;
    }
    match basic(header) {
        Some((user, password)) => match UserName::parse(&user) {
            Ok(user) => broker.security.log_in(user, password, source).await,
            Err(error) => broker.security.end_login(source, &user, Err(error)).await,
        },
        None => {
            let error = "the header authorization is not: Basic base64(user:password), or Bearer TOKEN";
            broker.security.end_login(source, "", Err(Error::new(ErrorKind::Denied, error))).await
        }
    }
}

/// Returns the token of a header.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the user and the password of a header.
fn basic(header: &str) -> Option<(String, Password)> {
    let (_, credentials) = header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))?;
    BASE64.decode(credentials.trim()).ok().and_then(parse_basic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_a_user_and_a_password() {
        let header = |text: &str| basic(&format!("Basic {}", BASE64.encode(text)));
        assert_eq!(header("ann:pen:cil"), Some(("ann".into(), "pen:cil".into())));
        assert_eq!(header("ann:"), Some(("ann".into(), "".into())));
        assert_eq!(basic(&format!("bAsIc  {}", BASE64.encode("a:b"))), Some(("a".into(), "b".into())));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        for wrong in ["", "Basic", "Basic !", "Bearer YTpi", "Basic YQ=="] {
            assert_eq!(basic(wrong), None, "{wrong}");
        }
    }
}
