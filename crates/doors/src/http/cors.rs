//! Cross-origin requests: browser pages of the door's own origin and of allowed origins may use the door.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use net::http::{foreign_page, is_followed_link, is_own_origin};

use super::console::is_page;

/// Entry of the list of origins that stands for all of them.
const WILDCARD: &str = "*";

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// Headers that requests of the door may have, and headers of its responses that pages may read.
const HEADERS: &str = "content-type, if-match, if-none-match, last-event-id, traceparent, tracestate";
const EXPOSED: &str = "etag, retry-after, thalweg-expires-ms";
/// Time for which a browser caches the response to a preflight request, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// Returns the origin of the page that sent the request, if that differs from the door's own origin. The runtime has
/// admitted only pages of allowed origins.
pub(super) fn foreign_origin(request: &Request) -> Option<HeaderValue> {
    let (headers, uri) = (request.headers(), request.uri());
    headers.get(ORIGIN).filter(|origin| !is_own_origin(origin, headers, uri)).cloned()
}

/// Returns the origin of the page that sent the request, if only the wildcard admits it. Such a page does not act for
/// its viewer, and does not administer the broker: see [`check`](super::access::check). Links to pages of the console
/// are followed.
pub(super) fn stranger(request: &Request, listed: &[String]) -> Option<String> {
    if !listed.iter().any(|origin| origin == WILDCARD) {
        return None;
    }
    let page = foreign_page(request.headers(), request.uri(), listed)?;
    let is_link = is_page(request.uri().path()) && is_followed_link(request.method(), request.headers());
    (!is_link).then_some(page)
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
