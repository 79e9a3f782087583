//! Sessions of browsers: the cookie that continues a login, and the requests for which it counts.
//!
//! A browser sends a cookie with every request to the host, also with those that another page makes it send. So the
//! cookie is never enough for a change: the request also has to prove that a page of this door has sent it.

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use broker::{Door, Identity, LoginSource, SessionSecret};
use engine::security::ANONYMOUS;
use engine::{Error, ErrorKind};
use net::http::{Caller, is_own_origin};

use super::Http;

/// Name of the cookie over TLS. A browser accepts the prefix only for a secure cookie of exactly this host and of all
/// paths, so that neither another host of the domain nor a response without TLS can set it
/// (draft-ietf-httpbis-rfc6265bis, section 4.1.3.2).
const SECURE_NAME: &str = "__Host-thalweg";
/// Name of the cookie without TLS, where a browser does not accept the prefix.
const PLAIN_NAME: &str = "thalweg";
/// Attributes of both: scripts cannot read it, and no page of another site makes a browser send it.
const ATTRIBUTES: &str = "Path=/; HttpOnly; SameSite=Strict";

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Header that browsers send with navigations, also without TLS, where they send no `Sec-Fetch-Mode`.
const UPGRADE_INSECURE_REQUESTS: HeaderName = HeaderName::from_static("upgrade-insecure-requests");

fn name(is_secure: bool) -> &'static str {
    if is_secure { SECURE_NAME } else { PLAIN_NAME }
}

/// Returns the value of `Set-Cookie` for a session. The cookie has no date, so a browser forgets it when it is closed.
pub(super) fn set_cookie(secret: &SessionSecret, is_secure: bool) -> engine::Result<HeaderValue> {
    cookie(&format!("{}={}", name(is_secure), secret.reveal()), is_secure)
}

/// Returns the value of `Set-Cookie` that removes the cookie.
pub(super) fn remove_cookie(is_secure: bool) -> engine::Result<HeaderValue> {
    cookie(&format!("{}=; Max-Age=0", name(is_secure)), is_secure)
}

fn cookie(text: &str, is_secure: bool) -> engine::Result<HeaderValue> {
    let secure = if is_secure { "; Secure" } else { "" };
    let mut value = HeaderValue::try_from(format!("{text}; {ATTRIBUTES}{secure}"))
        .map_err(|error| Error::new(ErrorKind::Internal, format!("a cookie cannot be sent: {error}")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the secret in the cookie of a request. Two cookies with its name are none: another host of the domain may
/// have set one of them.
pub(super) fn secret(headers: &HeaderMap, is_secure: bool) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut found = pairs.filter(|(key, _)| *key == name(is_secure)).map(|(_, value)| value);
    found.next().filter(|_| found.next().is_none())
}

/// Sender of a request, as far as its headers prove it. No page can change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// A page of this door.
    OwnPage,
    /// A page of another origin.
    OtherPage,
    /// A program, the person in front of a browser, or a browser that sends neither header.
    Unknown,
}

impl Sender {
    pub fn of(headers: &HeaderMap, uri: &Uri, is_secure: bool) -> Self {
        // A page without TLS may be that of whoever answers on the network.
        let has_scheme = |origin: &HeaderValue| !is_secure || origin.as_bytes().starts_with(b"https://");
        let is_own = |origin: &HeaderValue| is_own_origin(origin, headers, uri) && has_scheme(origin);
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter().map(HeaderValue::as_bytes);
        let mut origins = headers.get_all(ORIGIN).iter();
        if origins.any(|origin| !is_own(origin)) || sites.any(|site| !matches!(site, b"same-origin" | b"none")) {
            return Self::OtherPage;
        }
        let is_of_page = headers.get_all(SEC_FETCH_SITE).iter().any(|site| site.as_bytes() == b"same-origin");
        if is_of_page || headers.contains_key(ORIGIN) { Self::OwnPage } else { Self::Unknown }
    }
}

/// Returns `true` if a browser opens a page in a window.
pub(super) fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let is_opening = match headers.get(SEC_FETCH_MODE) {
        Some(mode) => mode.as_bytes() == b"navigate",
        None => headers.contains_key(UPGRADE_INSECURE_REQUESTS),
    };
    method.is_safe() && is_opening
}

/// Returns `true` if a script of the console has sent a request, or may have: then a browser must not ask for a name
/// and a password of its own accord.
pub(super) fn is_of_console(headers: &HeaderMap, uri: &Uri, is_secure: bool) -> bool {
    !headers.contains_key(AUTHORIZATION)
        && (Sender::of(headers, uri, is_secure) == Sender::OwnPage || secret(headers, is_secure).is_some())
}

/// Session that the cookie of a request stands for, if it counts.
pub(super) enum Session {
    /// No session, or none that counts for this request.
    None,
    Open(Box<Identity>),
    /// A session, but for a change that no page of the console has provably sent. It does not count.
    Unproven,
}

/// Returns what the cookie of a request stands for. A header `Authorization` goes before it: a program sends that
/// deliberately.
pub(super) fn of_request(http: &Http, request: &Request, is_change: bool) -> Session {
    let headers = request.headers();
    let Some(caller) = request.extensions().get::<Caller>() else { return Session::None };
    if !http.has_sessions() || headers.contains_key(AUTHORIZATION) {
        return Session::None;
    }
    let Some(secret) = secret(headers, caller.is_secure) else { return Session::None };
    let sender = Sender::of(headers, request.uri(), caller.is_secure);
    if sender == Sender::OtherPage && !is_change {
        return Session::None;
    }
    let source = LoginSource { door: Door::Http, address: Some(caller.address) };
    match http.broker.security.log_in_with_session(secret, source) {
        None => Session::None,
        Some(identity) if sender == Sender::OwnPage || !is_change => Session::Open(Box::new(identity)),
        Some(_) => Session::Unproven,
    }
}

/// Returns the error for a change that no page of the console has sent.
pub(super) fn not_of_console() -> Error {
    let message = "the login of the console is for changes by its own pages: open the console and repeat the change \
                   there, or send a user and password, or a bearer token";
    Error::new(ErrorKind::Denied, message)
}

/// User of a request, in the extensions of its response, for the frame of a page.
#[derive(Clone, Debug)]
pub(super) struct Viewer {
    pub user: String,
    /// `true` if the user can log out.
    pub has_session: bool,
}

impl Viewer {
    /// Returns the user of a client that has logged in.
    pub fn of(identity: &Identity) -> Option<Self> {
        let user = identity.user().as_str();
        (user != ANONYMOUS).then(|| Self { user: user.to_owned(), has_session: identity.is_in_session() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).fold(
            HeaderMap::new(),
            |mut all, (name, value)| {
                all.append(name, value);
                all
            },
        )
    }

    #[test]
    fn a_cookie_is_read_by_its_exact_name_and_two_are_none() {
        let secret_of =
            |of: &[(&'static str, &'static str)], is_secure| secret(&headers(of), is_secure).map(str::to_owned);
        let both = [("cookie", "a=1; thalweg=plain;__Host-thalweg=tls; b=2")];
        assert_eq!(secret_of(&both, false).as_deref(), Some("plain"));
        assert_eq!(secret_of(&both, true).as_deref(), Some("tls"));
        assert_eq!(secret_of(&[("cookie", "a=1"), ("cookie", "thalweg=x")], false).as_deref(), Some("x"));
        for wrong in ["thalweg=x; thalweg=y", "thalweg", "xthalweg=x", "Thalweg=x", "__host-thalweg=x", ""] {
            assert_eq!(secret_of(&[("cookie", wrong)], false), None, "{wrong}");
        }
        assert_eq!(secret_of(&[("cookie", "thalweg=x"), ("cookie", "thalweg=y")], false), None);
        assert_eq!(secret_of(&[("cookie", "thalweg=x")], true), None, "a cookie without TLS is none over TLS");
    }

    #[test]
    fn only_headers_of_a_browser_prove_the_page() {
        let uri = Uri::from_static("/v1/topics");
        let (own, other, secure) = ("http://a.example:1", "http://b.example", "https://a.example:1");
        for (of, plain, tls) in [
            (&[][..], Sender::Unknown, Sender::Unknown),
            (&[("sec-fetch-site", "none")], Sender::Unknown, Sender::Unknown),
            (&[("sec-fetch-site", "same-origin")], Sender::OwnPage, Sender::OwnPage),
            (&[("sec-fetch-site", "same-site")], Sender::OtherPage, Sender::OtherPage),
            (&[("sec-fetch-site", "cross-site")], Sender::OtherPage, Sender::OtherPage),
            (&[("origin", own)], Sender::OwnPage, Sender::OtherPage),
            (&[("origin", secure)], Sender::OwnPage, Sender::OwnPage),
            (&[("origin", other)], Sender::OtherPage, Sender::OtherPage),
            (&[("origin", "null")], Sender::OtherPage, Sender::OtherPage),
            (&[("origin", own), ("sec-fetch-site", "cross-site")], Sender::OtherPage, Sender::OtherPage),
            (&[("origin", other), ("sec-fetch-site", "same-origin")], Sender::OtherPage, Sender::OtherPage),
            (
                &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
                Sender::OtherPage,
                Sender::OtherPage,
            ),
        ] {
            let mut sent = headers(of);
            sent.insert("host", HeaderValue::from_static("a.example:1"));
            let seen = [false, true].map(|is_secure| Sender::of(&sent, &uri, is_secure));
            assert_eq!(seen, [plain, tls], "{of:?}");
        }
    }
}
