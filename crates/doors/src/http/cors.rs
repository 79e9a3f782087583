//! Cross-origin requests: browser pages of the door's own origin and of allowed origins may use the door.

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
/// Headers that requests of the door may have, and headers of its responses that pages may read.
const HEADERS: &str = "content-type, if-match, if-none-match, last-event-id, traceparent, tracestate";
const EXPOSED: &str = "etag, retry-after, thalweg-expires-ms";
/// Time for which a browser caches the response to a preflight request, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// Returns the request, and the origin of the page that sent it if that differs from the door's own origin. The runtime
/// has admitted only pages of allowed origins.
pub(super) fn foreign_origin(request: Request) -> (Request, Option<HeaderValue>) {
    let (head, body) = request.into_parts();
    let origin = head.headers.get(ORIGIN).filter(|origin| !is_own_origin(origin, &head)).cloned();
    (Request::from_parts(head, body), origin)
}

/// Returns the response to a preflight request from a page of an allowed origin; `None` for other requests.
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

/// Adds headers that let the page read the response.
pub(super) fn allow(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}
