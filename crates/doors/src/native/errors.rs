//! The native protocol's errors are the broker's own; what is decided here is who must hang up.

use engine::{Error, ErrorKind};
use net::service::{Fault, FaultKind};

/// What to do with a connection after an error in what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is answered with the error; the next one may be fine.
    Answer,
    /// The stream of bytes cannot be trusted any more: say why and close it.
    Close,
}

/// Errors of one request, whose frame was whole.
pub(super) fn of_request(error: &Error) -> Verdict {
    match error.kind {
        ErrorKind::Malformed
        | ErrorKind::Corrupt
        | ErrorKind::TooLarge
        | ErrorKind::Unsupported
        | ErrorKind::Invalid
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::OutOfRange
        | ErrorKind::Busy
        | ErrorKind::DiskFull
        | ErrorKind::Timeout
        | ErrorKind::NoResponders
        | ErrorKind::SlowSubscriber
        | ErrorKind::OutOfSequence
        | ErrorKind::Fenced
        | ErrorKind::Denied
        | ErrorKind::Internal => Verdict::Answer,
        ErrorKind::ShuttingDown | ErrorKind::Disconnected => Verdict::Close,
    }
}

/// What the runtime found wrong, in the broker's words.
pub(super) fn of_fault(fault: &Fault) -> Error {
    Error::new(kind_of(fault.kind), fault.message.to_string())
}

pub(super) fn kind_of(kind: FaultKind) -> ErrorKind {
    match kind {
        FaultKind::Malformed => ErrorKind::Malformed,
        FaultKind::Unsupported => ErrorKind::Unsupported,
        FaultKind::TooLarge => ErrorKind::TooLarge,
        FaultKind::Busy => ErrorKind::Busy,
        FaultKind::Timeout => ErrorKind::Timeout,
        FaultKind::Internal => ErrorKind::Internal,
        FaultKind::ShuttingDown => ErrorKind::ShuttingDown,
    }
}

/// A frame that ends its stream.
pub(super) fn to_fault(error: Error) -> Fault {
    let kind = match error.kind {
        ErrorKind::TooLarge => FaultKind::TooLarge,
        ErrorKind::Unsupported => FaultKind::Unsupported,
        _ => FaultKind::Malformed,
    };
    Fault::new(kind, error.message)
}
