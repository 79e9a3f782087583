//! Maps kinds of errors to HTTP status codes, and defines the form of an error in a body.

use axum::extract::ws::{CloseCode, close_code};
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::{Error, ErrorKind, RetryClass};
use serde::Serialize;

use super::codec;

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Header with the address of the broker that answers the request, in errors with the class redirect.
const LEADER: HeaderName = HeaderName::from_static("thalweg-leader");

/// Time in ms after which a cluster has a new leader, unless no majority of its nodes is alive.
const LEADER_AFTER_MS: u32 = 1000;

/// Logins that a request without a valid one may have (RFC 7617, RFC 6750).
const CHALLENGE: HeaderValue =
    HeaderValue::from_static("Basic realm=\"thalweg\", charset=\"UTF-8\", Bearer realm=\"thalweg\"");

/// Logins that a script of the console is told of: none for which a browser asks its user.
pub(super) const CHALLENGE_OF_CONSOLE: HeaderValue = HeaderValue::from_static("Bearer realm=\"thalweg\"");

pub(super) fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Malformed | ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        // A slow subscriber receives the error inside its stream, after the status was sent.
        ErrorKind::AlreadyExists | ErrorKind::SlowSubscriber => StatusCode::CONFLICT,
        ErrorKind::OutOfSequence | ErrorKind::Fenced => StatusCode::CONFLICT,
        ErrorKind::OutOfRange => StatusCode::RANGE_NOT_SATISFIABLE,
        ErrorKind::Busy
        | ErrorKind::DiskFull
        | ErrorKind::ShuttingDown
        | ErrorKind::NoResponders
        | ErrorKind::NotLeader => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Disconnected => StatusCode::BAD_GATEWAY,
        // Checksums cover data that the broker stored: no client sends one over HTTP.
        ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the close code of a WebSocket whose subscription has ended with this kind of error.
pub(super) fn close_code_of(kind: ErrorKind) -> CloseCode {
    if kind == ErrorKind::ShuttingDown {
        close_code::AWAY
    } else if status_of(kind).is_server_error() {
        close_code::ERROR
    } else {
        close_code::POLICY
    }
}

/// Error that is returned to the client.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: Error,
    /// Status that is more specific than that of the kind.
    status: Option<StatusCode>,
    /// Retry class that is more specific than that of the kind.
    retry: Option<RetryClass>,
}

impl Failure {
    pub fn with_status(error: Error, status: StatusCode) -> Self {
        Self { error, status: Some(status), retry: None }
    }

    /// Returns the failure of a request that was partly executed. Repeating it would execute that part twice.
    pub fn half_done(mut error: Error) -> Self {
        error.retry_after_ms = 0;
        Self { error, status: None, retry: Some(RetryClass::OutcomeUnknown) }
    }

    pub fn body(&self) -> ErrorBody<'_> {
        let retry = self.retry.unwrap_or(self.error.retry_class());
        ErrorBody {
            error: ErrorOut {
                kind: self.error.kind.name(),
                message: &self.error.message,
                // As a value of `retry`, `no` is clearer than the name of the class.
                retry: if retry == RetryClass::Fatal { "no" } else { retry.name() },
                retry_after_ms: self.error.retry_after_ms,
                leader: self.error.redirect.as_deref(),
            },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, status: None, retry: None }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.status {
            Some(status) => status,
            None if self.error.is_throttled() => StatusCode::TOO_MANY_REQUESTS,
            None => status_of(self.error.kind),
        };
        let mut response = codec::json(status, &self.body());
        // A client that cannot follow the leader finds the next one by another attempt.
        let retry_after_ms = match self.error.kind {
            ErrorKind::NotLeader => LEADER_AFTER_MS,
            _ => self.error.retry_after_ms,
        };
        if retry_after_ms > 0 {
            let seconds = HeaderValue::from(retry_after_ms.div_ceil(1000));
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
        }
        let leader = self.error.redirect.and_then(|address| HeaderValue::from_str(&address).ok());
        if let Some(leader) = leader {
            response.headers_mut().insert(LEADER, leader);
        }
        response.extensions_mut().insert(Sentence(self.error.message));
        response
    }
}

/// Message of an error, in the extensions of its response.
#[derive(Clone, Debug)]
pub(super) struct Sentence(pub String);

/// Form of every error in responses, events and frames: `{"error":{..}}`.
#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    error: ErrorOut<'a>,
}

#[derive(Serialize)]
struct ErrorOut<'a> {
    kind: &'static str,
    message: &'a str,
    retry: &'static str,
    retry_after_ms: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_for_later_and_damage_is_a_fault_of_the_server() {
        let response = Failure::from(Error::new(ErrorKind::DiskFull, "why")).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers().get(RETRY_AFTER), Some(&HeaderValue::from(1)));
        assert_eq!(status_of(ErrorKind::Corrupt), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn a_not_leader_error_contains_the_address_of_the_leader() {
        let failure = Failure::from(Error::not_leader("why", Some("b.example:7400")));
        let body: serde_json::Value = serde_json::from_slice(&codec::to_json(&failure.body())).expect("JSON");
        let error = &body["error"];
        assert_eq!((&error["kind"], &error["retry"]), (&"not_leader".into(), &"redirect".into()));
        assert_eq!(error["leader"], "b.example:7400");
        let response = failure.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers().get(LEADER), Some(&HeaderValue::from_static("b.example:7400")));
        assert_eq!(response.headers().get(RETRY_AFTER), Some(&HeaderValue::from(1)));
        let unknown = Failure::from(Error::not_leader("why", None)).into_response();
        assert!(!unknown.headers().contains_key(LEADER));
    }

    #[test]
    fn retryable_errors_have_a_retry_after() {
        for kind in ErrorKind::ALL {
            let response = Failure::from(Error::new(kind, "why")).into_response();
            assert!(response.status().is_client_error() || response.status().is_server_error(), "{kind:?}");
            let is_later = matches!(kind.retry_class(), RetryClass::RetryAfter | RetryClass::Redirect);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), is_later, "{kind:?}");
        }
        let half_done = Failure::half_done(Error::busy("why"));
        let body = codec::to_json(&half_done.body());
        assert_eq!(
            String::from_utf8_lossy(&body),
            r#"{"error":{"kind":"busy","message":"why","retry":"outcome_unknown","retry_after_ms":0}}"#
        );
        assert!(!half_done.into_response().headers().contains_key(RETRY_AFTER));
    }
}
