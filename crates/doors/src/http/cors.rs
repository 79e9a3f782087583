//! Which pages of browsers may use the door: those of its own origin, and those that are allowed.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use engine::{Error, ErrorKind};

use super::errors::Result;

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// Headers that requests of the door may have, and those of its answers that pages may read.
const HEADERS: &str = "content-type, if-match, if-none-match, last-event-id";
const EXPOSED: &str = "etag, retry-after, thalweg-expires-ms";
/// How long a browser keeps the answer to a preflight request, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// The origin of the page that sent a request, if it is another one than the door's and is allowed.
///
/// Any other is refused: a page must not publish or listen here just because its browser can reach the broker.
pub(super) fn origin_of(request: &Request, allowed: &[String]) -> Result<Option<HeaderValue>> {
    let Some(origin) = request.headers().get(ORIGIN) else {
        return Ok(None);
    };
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str().as_bytes()));
    let text = origin.as_bytes();
    let site = text.windows(3).position(|part| part == b"://").map(|at| &text[at + 3..]);
    if let (Some(site), Some(host)) = (site, host)
        && site.eq_ignore_ascii_case(host)
    {
        return Ok(None);
    }
    if allowed.iter().any(|allowed| allowed == "*" || allowed.as_bytes().eq_ignore_ascii_case(text)) {
        return Ok(Some(origin.clone()));
    }
    let message = format!(
        "a page of {} may not use this broker: allow it with http_cors_origins; behind a proxy, pass on \
         the header Host",
        String::from_utf8_lossy(text)
    );
    Err(Error::new(ErrorKind::Denied, message).into())
}

/// The answer to a browser that asks what a page of an allowed origin may send, if the request is that question.
pub(super) fn preflight(request: &Request, origin: &HeaderValue) -> Option<Response> {
    let is_question =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !is_question {
        return None;
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
    Some(allow(answer, origin.clone()))
}

/// Lets the page that asked read the answer.
pub(super) fn allow(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}
