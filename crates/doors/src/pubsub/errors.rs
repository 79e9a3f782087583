//! Mapping of error kinds to the codes of Google's API, and the format of failures in gRPC and in REST.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use engine::{Error, ErrorKind};
use hyper::StatusCode;
use prost::Message;
use prost_types::Any;

use super::proto::google::rpc;

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Codes of gRPC, with their names and their HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists | Self::Aborted => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Failure of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub code: Code,
    pub message: String,
    /// Details that clients act on: the reason for each acknowledgement id that failed.
    pub reasons: BTreeMap<String, String>,
    /// Reason of the whole failure, if it is not that of the first id.
    pub reason: Option<&'static str>,
    /// Time after which the client may try again, if it has to slow down.
    pub retry_after: Option<Duration>,
}

/// Maximum length of a message, which may repeat a client's input of any length. In gRPC it is sent in headers, and a
/// client that receives more than a few KiB of headers closes its connection, with all other calls on it.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum bytes of the reasons, of which there may be thousands. Ids beyond it are omitted, but the client still knows
/// that the call failed.
const REASONS_BYTES_MAX: usize = 4096;
/// Bytes of a reason in addition to its strings.
const REASON_BYTES: usize = 8;

/// Domain of the reasons.
const DOMAIN: &str = "pubsub.googleapis.com";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push_str("..");
        }
        Self { code, message, reasons: BTreeMap::new(), reason: None, retry_after: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub fn exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, message)
    }

    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    fn info(&self) -> Option<rpc::ErrorInfo> {
        let first = self.reasons.values().next()?;
        let reason = self.reason.unwrap_or(first).to_owned();
        Some(rpc::ErrorInfo { reason, domain: DOMAIN.into(), metadata: self.reasons.clone() })
    }

    /// Returns the details for the gRPC trailers, if the failure has more than a message.
    pub fn details(&self) -> Option<Vec<u8>> {
        let mut details = Vec::new();
        if let Some(mut info) = self.info() {
            let mut bytes = 0;
            info.metadata.retain(|name, value| {
                bytes += name.len() + value.len() + REASON_BYTES;
                bytes <= REASONS_BYTES_MAX
            });
            details.push(Any { type_url: ERROR_INFO.into(), value: info.encode_to_vec() });
        }
        if let Some(after) = self.retry_after {
            let delay = prost_types::Duration { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() as i32 };
            let value = rpc::RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
            details.push(Any { type_url: RETRY_INFO.into(), value });
        }
        if details.is_empty() {
            return None;
        }
        let status = rpc::Status { code: self.code as i32, message: self.message.clone(), details };
        Some(status.encode_to_vec())
    }

    pub fn json(&self) -> Vec<u8> {
        let mut error = serde_json::json!({
            "code": self.code.status().as_u16(), "message": self.message, "status": self.code.name(),
        });
        let mut details = Vec::new();
        if let Some(info) = self.info() {
            details.push(serde_json::json!({
                "@type": ERROR_INFO, "reason": info.reason, "domain": info.domain, "metadata": info.metadata,
            }));
        }
        if let Some(after) = self.retry_after {
            let delay = format!("{}.{:09}s", after.as_secs(), after.subsec_nanos());
            details.push(serde_json::json!({ "@type": RETRY_INFO, "retryDelay": delay }));
        }
        if !details.is_empty() {
            error["details"] = details.into();
        }
        serde_json::json!({ "error": error }).to_string().into_bytes()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            ErrorKind::Malformed | ErrorKind::Invalid | ErrorKind::TooLarge => Code::InvalidArgument,
            ErrorKind::Corrupt => Code::DataLoss,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::OutOfRange => Code::OutOfRange,
            ErrorKind::Busy => Code::ResourceExhausted,
            ErrorKind::Timeout => Code::DeadlineExceeded,
            ErrorKind::Denied => Code::PermissionDenied,
            ErrorKind::ShuttingDown | ErrorKind::NoResponders | ErrorKind::Disconnected => Code::Unavailable,
            // Google's libraries retry every call with this code, and not only publishes.
            ErrorKind::DiskFull | ErrorKind::NotLeader => Code::Unavailable,
            ErrorKind::SlowSubscriber | ErrorKind::Fenced => Code::Aborted,
            ErrorKind::OutOfSequence => Code::FailedPrecondition,
            ErrorKind::Internal => Code::Internal,
        };
        let retry_after = error.is_throttled().then(|| Duration::from_millis(error.retry_after_ms.into()));
        Self { retry_after, ..Self::new(code, error.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_unavailable_and_damage_is_lost_data() {
        assert_eq!(Failure::from(Error::new(ErrorKind::DiskFull, "why")).code, Code::Unavailable);
        assert_eq!(Failure::from(Error::new(ErrorKind::Corrupt, "why")).code.status(), 500);
    }

    #[test]
    fn a_not_leader_error_is_unavailable() {
        assert_eq!(Failure::from(Error::not_leader("why", Some("b.example:7400"))).code, Code::Unavailable);
    }

    /// AIP-194 and `google.rpc.RetryInfo`: the detail says when a client may try again.
    #[test]
    fn a_throttled_client_is_told_when_to_try_again() {
        let failure = Failure::from(Error::throttled("why", 1500));
        assert_eq!(failure.code, Code::ResourceExhausted);
        let status = rpc::Status::decode(failure.details().expect("details").as_slice()).expect("a status");
        assert_eq!((status.details.len(), status.details[0].type_url.as_str()), (1, RETRY_INFO));
        let info = rpc::RetryInfo::decode(status.details[0].value.as_slice()).expect("a time");
        assert_eq!(info.retry_delay, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
        let json: serde_json::Value = serde_json::from_slice(&failure.json()).expect("JSON");
        assert_eq!(json["error"]["details"][0]["retryDelay"], "1.500000000s");
        assert_eq!(Failure::from(Error::busy("why")).details(), None);
    }

    #[test]
    fn quoted_input_in_a_failure_is_bounded() {
        assert_eq!(Failure::invalid("x".repeat(1024)).message.len(), 1024);
        let long = Failure::not_found("\u{e4}".repeat(100_000)).message;
        assert_eq!((long.len(), long.ends_with("\u{e4}..")), (1026, true));
        let reasons: BTreeMap<String, String> =
            (0..5000).map(|i| (format!("an id that failed {i}"), "PERMANENT".to_owned())).collect();
        let failure = Failure { reasons, ..Failure::precondition("Some failed.") };
        let details = failure.details().expect("reasons");
        assert!(details.len() < REASONS_BYTES_MAX + 256, "{}", details.len());
        let status = rpc::Status::decode(details.as_slice()).expect("a status");
        let info = rpc::ErrorInfo::decode(status.details[0].value.as_slice()).expect("reasons");
        assert!(info.metadata.len() > 50 && info.metadata.iter().all(|(id, why)| failure.reasons[id] == *why));
    }
}
