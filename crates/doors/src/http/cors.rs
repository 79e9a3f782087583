//! Which pages of browsers may use the door: those of its own origin, and those that are allowed.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use net::http::is_own_origin;

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// Headers that requests of the door may have, and those of its answers that pages may read.
const HEADERS: &str = "content-type, if-match, if-none-match, last-event-id";
const EXPOSED: &str = "etag, retry-after, thalweg-expires-ms";
/// How long a browser keeps the answer to a preflight request, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// The request, and the origin of the page that sent it if that is another one than the door's. The runtime has let in
/// only pages that are allowed.
pub(super) fn foreign_origin(request: Request) -> (Request, Option<HeaderValue>) {
    let (head, body) = request.into_parts();
    let origin = head.headers.get(ORIGIN).filter(|origin| !is_own_origin(origin, &head)).cloned();
    (Request::from_parts(head, body), origin)
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
