//! Logins of HTTP requests, by HTTP Basic (RFC 7617) and bearer tokens (RFC 6750).

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use broker::{Broker, Door, Identity, LoginSource};
use engine::security::UserName;
use engine::{Error, ErrorKind, Result};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// Returns the identity of the sender of a request: of a user who has logged in, if a login is required, and otherwise
/// an anonymous one. A missing or wrong login is `Denied`.
pub(crate) async fn identify(
    broker: &Broker,
    door: Door,
    headers: &HeaderMap,
    address: Option<IpAddr>,
    is_login_required: bool,
) -> Result<Identity> {
    let source = LoginSource { door, address };
    if !is_login_required {
        return Ok(Identity::anonymous(&source.host()));
    }
    let Some(header) = headers.get(AUTHORIZATION) else {
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
fn basic(header: &str) -> Option<(String, String)> {
    let (scheme, credentials) = header.split_once(' ')?;
    let bytes = BASE64.decode(credentials.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_a_user_and_a_password() {
        let header = |text: &str| basic(&format!("Basic {}", BASE64.encode(text)));
        assert_eq!(header("ann:pen:cil"), Some(("ann".into(), "pen:cil".into())));
        assert_eq!(header("ann:"), Some(("ann".into(), String::new())));
        assert_eq!(basic(&format!("bAsIc  {}", BASE64.encode("a:b"))), Some(("a".into(), "b".into())));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        for wrong in ["", "Basic", "Basic !", "Bearer YTpi", "Basic YQ=="] {
            assert_eq!(basic(wrong), None, "{wrong}");
        }
    }
}
