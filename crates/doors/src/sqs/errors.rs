//! Maps errors to those of SQS. Each error has two names, because the two protocols use different ones.

use std::borrow::Cow;

use engine::{Error, ErrorKind};

use super::sigv4::{AuthError, AuthErrorKind};

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Error code of SQS.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// Namespace of the name in AWS JSON. The name itself is `shape`.
    pub namespace: &'static str,
    pub shape: &'static str,
    /// Name in the Query protocol, which SDKs show for both protocols.
    pub name: &'static str,
    pub status: u16,
    /// `true` if the client caused the error.
    pub is_sender: bool,
}

const SQS: &str = "com.amazonaws.sqs#";
const CORAL: &str = "com.amazon.coral.service#";

const fn sqs(shape: &'static str, name: &'static str, status: u16) -> Code {
    Code { namespace: SQS, shape, name, status, is_sender: true }
}

const fn coral(shape: &'static str, name: &'static str, status: u16) -> Code {
    Code { namespace: CORAL, shape, name, status, is_sender: status < 500 }
}

#[rustfmt::skip]
mod codes {
    use super::{Code, coral, sqs};

    pub static QUEUE_DOES_NOT_EXIST: Code = sqs("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400);
    pub static NO_QUEUE_TO_PEEK: Code = sqs("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 404);
    pub static QUEUE_NAME_EXISTS: Code = sqs("QueueNameExists", "QueueAlreadyExists", 400);
    pub static QUEUE_DELETED_RECENTLY: Code = sqs("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400);
    pub static PURGE_IN_PROGRESS: Code = sqs("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403);
    pub static BATCH_TOO_LONG: Code = sqs("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400);
    pub static INVALID_ENTRY_ID: Code = sqs("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400);
    pub static TOO_MANY_ENTRIES: Code = sqs("TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400);
    pub static EMPTY_BATCH: Code = sqs("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400);
    pub static IDS_NOT_DISTINCT: Code = sqs("BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400);
    pub static UNSUPPORTED: Code = sqs("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400);
    pub static NOT_IN_FLIGHT: Code = sqs("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400);
    pub static INVALID_CONTENTS: Code = sqs("InvalidMessageContents", "InvalidMessageContents", 400);
    pub static INVALID_ATTRIBUTE_NAME: Code = sqs("InvalidAttributeName", "InvalidAttributeName", 400);
    pub static INVALID_ATTRIBUTE_VALUE: Code = sqs("InvalidAttributeValue", "InvalidAttributeValue", 400);
    pub static INVALID_ADDRESS: Code = sqs("InvalidAddress", "InvalidAddress", 404);
    pub static INVALID_RECEIPT: Code = sqs("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404);
    pub static RESOURCE_NOT_FOUND: Code = sqs("ResourceNotFoundException", "ResourceNotFoundException", 404);
    pub static OVER_LIMIT: Code = sqs("OverLimit", "OverLimit", 403);
    pub static THROTTLED: Code = sqs("RequestThrottled", "RequestThrottled", 403);
    pub static INVALID_PARAMETER: Code = coral("InvalidParameterValueException", "InvalidParameterValue", 400);
    pub static MISSING_PARAMETER: Code = coral("MissingRequiredParameterException", "MissingParameter", 400);
    pub static INVALID_ACTION: Code = coral("InvalidAction", "InvalidAction", 400);
    pub static INVALID_REQUEST: Code = coral("InvalidRequest", "InvalidRequest", 400);
    pub static MISSING_ACTION: Code = coral("MissingAction", "MissingAction", 400);
    pub static UNKNOWN_OPERATION: Code = coral("UnknownOperationException", "UnknownOperationException", 404);
    pub static SERIALIZATION: Code = coral("SerializationException", "MalformedInput", 400);
    pub static ACCESS_DENIED: Code = coral("AccessDeniedException", "AccessDenied", 403);
    pub static INCOMPLETE_SIGNATURE: Code = coral("IncompleteSignatureException", "IncompleteSignature", 400);
    pub static INVALID_TOKEN_ID: Code = coral("UnrecognizedClientException", "InvalidClientTokenId", 403);
    pub static MISSING_TOKEN: Code = coral("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403);
    pub static REQUEST_EXPIRED: Code = coral("RequestExpired", "RequestExpired", 403);
    pub static NO_MATCH: Code = coral("InvalidSignatureException", "SignatureDoesNotMatch", 403);
    pub static INTERNAL: Code = coral("InternalFailure", "InternalError", 500);
    pub static UNAVAILABLE: Code = coral("ServiceUnavailable", "ServiceUnavailable", 503);
}
pub(super) use codes::*;

/// Error that is returned to the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub code: &'static Code,
    pub message: Cow<'static, str>,
    /// Time in ms after which a client that has exceeded a limit may try again; 0 for any other error.
    pub retry_after_ms: u32,
}

impl Failure {
    pub fn new(code: &'static Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), retry_after_ms: 0 }
    }

    pub fn no_queue() -> Self {
        Self::new(&QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")
    }

    pub fn missing(parameter: &str) -> Self {
        Self::new(&MISSING_PARAMETER, format!("The request must contain the parameter {parameter}."))
    }

    pub fn parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(&INVALID_PARAMETER, message)
    }

    /// Returns the error for an invalid value of a parameter.
    pub fn value(parameter: &str, value: impl std::fmt::Display, reason: &str) -> Self {
        Self::parameter(format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}"))
    }

    /// Returns the error for an invalid value of an attribute of a queue.
    pub fn attribute(name: &str, reason: &str) -> Self {
        let message = match reason {
            "" => format!("Invalid value for the parameter {name}."),
            reason => format!("Invalid value for the parameter {name}. Reason: {reason}"),
        };
        Self::new(&INVALID_ATTRIBUTE_VALUE, message)
    }

    pub fn unknown_attribute(name: &str) -> Self {
        Self::new(&INVALID_ATTRIBUTE_NAME, format!("Unknown Attribute {name}."))
    }

    /// Returns the message for the Query protocol.
    pub fn query_message(&self) -> &str {
        if self.code == &QUEUE_DOES_NOT_EXIST {
            "The specified queue does not exist for this wsdl version."
        } else {
            &self.message
        }
    }
}

impl From<AuthError> for Failure {
    fn from(error: AuthError) -> Self {
        let code = match error.kind {
            AuthErrorKind::IncompleteSignature => &INCOMPLETE_SIGNATURE,
            AuthErrorKind::InvalidClientTokenId => &INVALID_TOKEN_ID,
            AuthErrorKind::MissingAuthenticationToken => &MISSING_TOKEN,
            AuthErrorKind::RequestExpired => &REQUEST_EXPIRED,
            AuthErrorKind::SignatureDoesNotMatch => &NO_MATCH,
        };
        Self::new(code, error.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            ErrorKind::NotFound => return Self::no_queue(),
            ErrorKind::AlreadyExists => &QUEUE_NAME_EXISTS,
            ErrorKind::Malformed | ErrorKind::Invalid | ErrorKind::OutOfRange | ErrorKind::TooLarge => {
                &INVALID_PARAMETER
            }
            ErrorKind::Unsupported => &UNSUPPORTED,
            ErrorKind::Busy => &THROTTLED,
            ErrorKind::Denied => &ACCESS_DENIED,
            ErrorKind::ShuttingDown
            | ErrorKind::Timeout
            | ErrorKind::Disconnected
            | ErrorKind::DiskFull
            | ErrorKind::NotLeader => &UNAVAILABLE,
            ErrorKind::NoResponders
            | ErrorKind::SlowSubscriber
            | ErrorKind::Internal
            // No client of this door sends a checksum, so the damaged data is a file of the broker.
            | ErrorKind::Corrupt
            | ErrorKind::OutOfSequence
            | ErrorKind::Fenced => &INTERNAL,
        };
        let retry_after_ms = if error.is_throttled() { error.retry_after_ms } else { 0 };
        Self { retry_after_ms, ..Self::new(code, error.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retryable_errors_do_not_blame_the_request() {
        for kind in ErrorKind::ALL {
            let failure = Failure::from(Error::new(kind, "why"));
            let is_for_later = kind.retry_class() != engine::RetryClass::Fatal;
            let is_server = failure.code.status >= 500 || failure.code == &THROTTLED;
            assert!(is_server || !is_for_later, "{kind:?} is {failure:?}");
        }
    }

    /// AWS has 500 and `InternalFailure` for an "unknown error, exception or failure" of the service (Common errors).
    #[test]
    fn a_damaged_file_is_a_fault_of_the_server() {
        let failure = Failure::from(Error::new(ErrorKind::Corrupt, "a segment is damaged"));
        assert_eq!((failure.code.status, failure.code.shape, failure.code.is_sender), (500, "InternalFailure", false));
    }

    /// AWS SDKs retry after 5xx, and treat 4xx as an error of their caller.
    #[test]
    fn a_full_disk_is_a_fault_of_the_server() {
        let failure = Failure::from(Error::new(ErrorKind::DiskFull, "no room"));
        assert_eq!(failure.code, &UNAVAILABLE);
    }

    #[test]
    fn a_not_leader_error_is_unavailable() {
        let failure = Failure::from(Error::not_leader("why", Some("b.example:7400")));
        assert_eq!((failure.code, failure.code.status, failure.code.shape), (&UNAVAILABLE, 503, "ServiceUnavailable"));
    }

    #[test]
    fn a_missing_queue_has_a_text_for_each_protocol() {
        let failure = Failure::no_queue();
        assert_eq!(failure.message, "The specified queue does not exist.");
        assert_eq!(failure.query_message(), "The specified queue does not exist for this wsdl version.");
        assert_eq!(Failure::missing("QueueUrl").query_message(), "The request must contain the parameter QueueUrl.");
    }
}
