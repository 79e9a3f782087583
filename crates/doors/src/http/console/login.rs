//! Logins of browsers: the form, what it sends, and the end of a session.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::Response;
use broker::{Door, Identity, LoginSource};
use console::pages::login::{self as page, Form, Notice};
use console::parts::encode;
use engine::security::{Password, UserName};
use engine::{Error, ErrorKind};
use net::http::Caller;

use super::super::Http;
use super::super::codec;
use super::super::errors::{Result, status_of};
use super::super::sessions::{self, Sender};
use super::{START, html};

pub(super) const LOGIN: &str = "/console/login";
pub(super) const LOGOUT: &str = "/console/logout";
/// Parameter and field with the path to which a login returns.
const TO: &str = "to";
/// Parameter that says that the browser has just logged out.
const OUT: &str = "out";
/// Maximum size of a path to which a login returns. A longer one leads to the first page.
const RETURN_BYTES_MAX: usize = 2048;
/// Maximum size of a form: a token of an issuer may have several KiB.
const FORM_BYTES_MAX: usize = 64 << 10;

/// Returns a path of the console, with its query, if a text is one and nothing else: a login returns only there. The
/// text comes from the address of the page, which anyone can have written.
fn return_path(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(START)?;
    let is_inside = rest.is_empty() || rest.starts_with(['/', '?']);
    // A browser reads `\` as `/`, ignores line ends and tabs, and encodes the others.
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>' | b'#'));
    let path = text.split('?').next().unwrap_or_default();
    // A browser resolves both, also if they are encoded (WHATWG URL, double-dot path segment).
    let is_dots = |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    let is_fit = is_inside && is_plain && text.len() <= RETURN_BYTES_MAX && !path.split('/').any(is_dots);
    (is_fit && path != LOGIN && path != LOGOUT).then_some(text)
}

/// Returns the response that leads a browser elsewhere at this door.
fn see_other(to: &str) -> Response {
    let mut response = html(StatusCode::SEE_OTHER, String::new());
    let to = HeaderValue::try_from(to).unwrap_or(HeaderValue::from_static(START));
    response.headers_mut().insert(LOCATION, to);
    response
}

/// Returns the response that leads a browser to the login, and from there back to the page that it requested.
///
/// A browser does not send a strict cookie if it follows a link of another site. So that a link needs no second login,
/// the first response opens the page again, this time from the console itself.
pub(super) fn lead(uri: &Uri, sender: Sender) -> Response {
    let requested = uri.path_and_query().map_or(START, |path| path.as_str());
    let to = return_path(requested);
    if let (Sender::OtherPage, Some(to)) = (sender, to) {
        return html(StatusCode::OK, page::again(to, env!("CARGO_PKG_VERSION")));
    }
    match to {
        Some(to) => see_other(&format!("{LOGIN}?{TO}={}", encode(to))),
        None => see_other(LOGIN),
    }
}

/// Fields of a form, or parameters of a query: unknown ones are ignored.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn of_query(uri: &Uri) -> Self {
        let given = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        Self(given.map(|axum::extract::Query(given)| given).unwrap_or_default())
    }

    /// Decodes a body of the type `application/x-www-form-urlencoded`, which has the form of a query.
    fn of_body(body: &[u8]) -> Result<Self> {
        let malformed = |why: String| Error::malformed(format!("the form of the login: {why}"));
        let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
        let uri = Uri::try_from(format!("/?{text}")).map_err(|error| malformed(error.to_string()))?;
        let given = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri);
        let axum::extract::Query(given) = given.map_err(|rejection| malformed(rejection.to_string()))?;
        Ok(Self(given))
    }

    fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    fn to(&self) -> &str {
        return_path(self.text(TO)).unwrap_or(START)
    }
}

fn is_secure(head: &Parts) -> bool {
    head.extensions.get::<Caller>().is_some_and(|caller| caller.is_secure)
}

/// Returns the page with the form.
fn form(status: StatusCode, notice: Notice<'_>, fields: &Fields) -> Response {
    let form = Form { to: fields.to(), user: fields.text("user"), has_token: !fields.text("token").is_empty() };
    html(status, page::form(&form, notice, env!("CARGO_PKG_VERSION")))
}

/// Serves the form. A browser that has a session needs none.
pub(super) async fn show(State(http): State<Arc<Http>>, request: Request) -> Response {
    let fields = Fields::of_query(request.uri());
    let is_logged_in = request.extensions().get::<Arc<Identity>>().is_some_and(|identity| identity.is_in_session());
    if !http.has_sessions() || is_logged_in {
        return see_other(fields.to());
    }
    let notice = if fields.text(OUT).is_empty() { Notice::None } else { Notice::LoggedOut };
    form(StatusCode::OK, notice, &fields)
}

/// Refuses a form that another page has sent: it would log its reader in as a user of its choice, or out.
fn expect_own_page(head: &Parts) -> Result<()> {
    match Sender::of(&head.headers, &head.uri, is_secure(head)) {
        Sender::OwnPage => Ok(()),
        Sender::OtherPage | Sender::Unknown => Err(sessions::not_of_console().into()),
    }
}

/// Logs a browser in: a user with a password, or a token. The new session has a new secret, and replaces the one that
/// the browser had.
pub(super) async fn log_in(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    let (head, body) = request.into_parts();
    if !http.has_sessions() {
        return Ok(see_other(START));
    }
    expect_own_page(&head)?;
    codec::expect_form(&head.headers)?;
    let body = codec::read_body(body, &http.bodies).await?;
    if body.bytes.len() > FORM_BYTES_MAX {
        return Err(Error::too_large(format!("the form of the login has at most {FORM_BYTES_MAX} bytes")).into());
    }
    let fields = Fields::of_body(&body.bytes)?;
    let source = LoginSource { door: Door::Http, address: head.extensions.get::<Caller>().map(|of| of.address) };
    let Some(outcome) = authenticate(&http, &fields, source).await else {
        return Ok(form(StatusCode::BAD_REQUEST, Notice::Empty, &fields));
    };
    let identity = match outcome {
        Ok(identity) => identity,
        Err(error) if error.kind == ErrorKind::Denied => {
            return Ok(form(StatusCode::FORBIDDEN, Notice::Refused, &fields));
        }
        Err(error) => return Ok(form(status_of(error.kind), Notice::Failed(&error.message), &fields)),
    };
    let is_secure = is_secure(&head);
    if let Some(before) = sessions::secret(&head.headers, is_secure) {
        http.broker.security.replace_session(before);
    }
    let secret = http.broker.security.open_session(&identity)?;
    let mut response = see_other(fields.to());
    response.headers_mut().insert(SET_COOKIE, sessions::set_cookie(&secret, is_secure)?);
    Ok(response)
}

/// Returns the outcome of the login that a form has; `None` if it has none. A wrong one is counted, recorded and
/// answered after a pause, as at every door.
async fn authenticate(http: &Http, fields: &Fields, source: LoginSource) -> Option<engine::Result<Identity>> {
    let security = &http.broker.security;
    let token = fields.text("token").trim();
    if !token.is_empty() {
        return Some(security.log_in_with_token(token, None, source).await);
    }
    let (user, password) = (fields.text("user"), fields.text("password"));
    if user.is_empty() || password.is_empty() {
        return None;
    }
    Some(match UserName::parse(user) {
        Ok(user) => security.log_in(user, Password::from(password.to_owned()), source).await,
        Err(error) => {
            let denied = Error::new(ErrorKind::Denied, error.message);
            security.end_login(source, user, Err(denied)).await
        }
    })
}

/// Ends the session of a browser, and removes its cookie.
pub(super) async fn log_out(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    let (head, _) = request.into_parts();
    if !http.has_sessions() {
        return Ok(see_other(START));
    }
    expect_own_page(&head)?;
    let is_secure = is_secure(&head);
    if let Some(secret) = sessions::secret(&head.headers, is_secure) {
        http.broker.security.end_session(secret);
    }
    let mut response = see_other(&format!("{LOGIN}?{OUT}=1"));
    response.headers_mut().insert(SET_COOKIE, sessions::remove_cookie(is_secure)?);
    Ok(response)
}

/// Serves the answer to a browser that opens the address of the logout, such as after a step back.
pub(super) async fn leave(State(_): State<Arc<Http>>) -> Response {
    see_other(START)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_returns_only_to_a_page_of_the_console() {
        for path in [
            "/console",
            "/console/",
            "/console?x=1",
            "/console/topics/orders/records?partition=2&key=a%2Fb",
            "/console/topics/..orders",
            "/console/topics?q=..",
            "/console//evil.example",
            "/console/logins",
        ] {
            assert_eq!(return_path(path), Some(path));
        }
        let long = format!("/console/{}", "a".repeat(RETURN_BYTES_MAX));
        for path in [
            "",
            "/",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "https://evil.example/console",
            "https:evil.example",
            "javascript:alert(1)",
            "/console.evil.example",
            "/consoles",
            "console",
            " /console",
            "/console/\\evil",
            "/console/\r\nSet-Cookie: a=b",
            "/console/\tx",
            "/console/ü",
            "/console/../v1/topics",
            "/console/./x",
            "/console/%2e%2E/v1/topics",
            "/console/.%2e/v1/topics",
            "/console/..",
            "/console#//evil",
            "/%2fevil.example",
            "%2F%2Fevil.example",
            "/v1/topics",
            "/console/login",
            "/console/login?to=/console",
            "/console/logout",
            &long,
        ] {
            assert_eq!(return_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_form_is_decoded_once() {
        let fields =
            Fields::of_body(b"user=ann+b&password=p%26%3D%2520&to=%2Fconsole%3Fq%3D%252F&more=1").expect("a form");
        let of = |name: &str| fields.text(name);
        assert_eq!((of("user"), of("password"), fields.to()), ("ann b", "p&=%20", "/console?q=%2F"));
        assert_eq!(of("token"), "");
        assert!(Fields::of_body(b"\xff").is_err() && Fields::of_body(b"a b").is_err());
        let twice = Fields::of_query(&Uri::from_static("/console/login?to=%252F%252Fevil.example"));
        assert_eq!(twice.to(), START);
    }

    #[test]
    fn a_link_of_another_site_opens_the_page_again_and_other_requests_the_form() {
        let uri = Uri::from_static("/console/topics?q=a&after=%22");
        let led = lead(&uri, Sender::Unknown);
        assert_eq!(led.status(), StatusCode::SEE_OTHER);
        let to = led.headers().get(LOCATION).and_then(|to| to.to_str().ok());
        assert_eq!(to, Some("/console/login?to=%2Fconsole%2Ftopics%3Fq%3Da%26after%3D%2522"));
        assert_eq!(lead(&uri, Sender::OwnPage).status(), StatusCode::SEE_OTHER);
        assert_eq!(lead(&uri, Sender::OtherPage).status(), StatusCode::OK);
    }
}
