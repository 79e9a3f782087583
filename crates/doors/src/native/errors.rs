//! Maps errors and faults. The errors of the native protocol are the broker's own; this module decides which of them
//! close the connection.

use engine::{Error, ErrorKind};
use net::service::{Fault, FaultKind};

/// Action on a connection after an error in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answers the request with the error; later requests may succeed.
    Answer,
    /// Sends the error and closes the stream.
    Close,
}

/// Returns the verdict for the error of a request whose frame was complete.
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
        | ErrorKind::NotLeader
        | ErrorKind::Internal => Verdict::Answer,
        ErrorKind::ShuttingDown | ErrorKind::Disconnected => Verdict::Close,
    }
}

/// Converts a fault that the runtime found into an error of the broker.
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

/// Converts the error of a frame into a fault, which ends the stream.
pub(super) fn to_fault(error: Error) -> Fault {
    let kind = match error.kind {
        ErrorKind::TooLarge => FaultKind::TooLarge,
        ErrorKind::Unsupported => FaultKind::Unsupported,
        _ => FaultKind::Malformed,
    };
    Fault::new(kind, error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_not_leader_error_is_answered_and_keeps_the_stream_open() {
        assert_eq!(of_request(&Error::not_leader("why", Some("b.example:7400"))), Verdict::Answer);
    }
}
