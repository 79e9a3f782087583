//! Error kinds: each tells the caller whether to retry and who has to act.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, coarse enough to act upon. The message has the details for people.
///
/// Not `#[non_exhaustive]`, on purpose: every door maps each kind, and the compiler finds the door that forgets a new
/// one. A program that matches kinds needs an arm for kinds of later versions; [`Error::retry_class`] tells it what to
/// do there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorKind {
    /// Bytes do not follow the protocol or the batch layout. The sender has a defect.
    Malformed = 1,
    /// Checksum mismatch: send the same bytes again.
    Corrupt = 2,
    /// Request exceeds a named limit. Send less per request.
    TooLarge = 3,
    /// Kind, feature, version or codec is unknown to this side.
    Unsupported = 4,
    /// Value can never be valid: a bad name or a bad setting.
    Invalid = 5,
    /// Topic, partition or subscription does not exist.
    NotFound = 6,
    /// Resource already exists with other settings.
    AlreadyExists = 7,
    /// Offset is not in the log, or no longer.
    OutOfRange = 8,
    /// Limit on work in progress is reached: retry later.
    Busy = 9,
    /// No response in time. The request may have been carried out.
    Timeout = 10,
    /// Operation is not allowed for this caller.
    Denied = 11,
    /// Broker is shutting down: reconnect.
    ShuttingDown = 12,
    /// No receiver could answer the request.
    NoResponders = 13,
    /// Connection is closed. The request may have been carried out.
    Disconnected = 14,
    /// Subscriber read too slowly and had chosen to be disconnected rather than to miss records.
    SlowSubscriber = 15,
    /// Defect of the broker. The request may have been carried out.
    Internal = 16,
    /// Earlier batches of this producer are missing. The batch was not appended.
    OutOfSequence = 17,
    /// Another instance has taken over; requests of this one have no effect any more.
    Fenced = 18,
    /// Disk of the broker is full: nothing was written. The request may succeed after an operator has freed space.
    DiskFull = 19,
    /// Another broker leads what the request is about. The request was not executed here.
    NotLeader = 20,
}

/// Action that a caller takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum RetryClass {
    /// Request may succeed if it is sent again immediately.
    Retry = 1,
    /// Request may succeed if it is sent again after the time that comes with the error.
    RetryAfter = 2,
    /// Request has to be sent to another broker.
    Redirect = 3,
    /// Request may have been carried out; a retry may carry it out twice.
    OutcomeUnknown = 4,
    /// Request fails again if it is sent again.
    Fatal = 5,
}

impl ErrorKind {
    pub const ALL: [Self; 20] = [
        Self::Malformed,
        Self::Corrupt,
        Self::TooLarge,
        Self::Unsupported,
        Self::Invalid,
        Self::NotFound,
        Self::AlreadyExists,
        Self::OutOfRange,
        Self::Busy,
        Self::Timeout,
        Self::Denied,
        Self::ShuttingDown,
        Self::NoResponders,
        Self::Disconnected,
        Self::SlowSubscriber,
        Self::Internal,
        Self::OutOfSequence,
        Self::Fenced,
        Self::DiskFull,
        Self::NotLeader,
    ];

    pub fn code(self) -> u16 {
        self as u16
    }

    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Corrupt => "corrupt",
            Self::TooLarge => "too_large",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::OutOfRange => "out_of_range",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Denied => "denied",
            Self::ShuttingDown => "shutting_down",
            Self::NoResponders => "no_responders",
            Self::Disconnected => "disconnected",
            Self::SlowSubscriber => "slow_subscriber",
            Self::Internal => "internal",
            Self::OutOfSequence => "out_of_sequence",
            Self::Fenced => "fenced",
            Self::DiskFull => "disk_full",
            Self::NotLeader => "not_leader",
        }
    }

    pub fn retry_class(self) -> RetryClass {
        match self {
            Self::Corrupt => RetryClass::Retry,
            Self::Busy | Self::ShuttingDown | Self::DiskFull => RetryClass::RetryAfter,
            Self::NotLeader => RetryClass::Redirect,
            Self::Timeout | Self::Disconnected | Self::Internal => RetryClass::OutcomeUnknown,
            Self::Malformed
            | Self::TooLarge
            | Self::Unsupported
            | Self::Invalid
            | Self::NotFound
            | Self::AlreadyExists
            | Self::OutOfRange
            | Self::Denied
            | Self::NoResponders
            | Self::SlowSubscriber
            | Self::OutOfSequence
            | Self::Fenced => RetryClass::Fatal,
        }
    }
}

impl RetryClass {
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Retry, Self::RetryAfter, Self::Redirect, Self::OutcomeUnknown, Self::Fatal]
            .into_iter()
            .find(|class| class.code() == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::RetryAfter => "retry_after",
            Self::Redirect => "redirect",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Fatal => "fatal",
        }
    }
}

/// Minimum time in ms that a throttled client waits. Other busy errors specify less.
const THROTTLED_MS_MIN: u32 = 1000;

/// Error with its kind and a message for the person who has to act.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    pub kind: ErrorKind,
    /// Time in ms to wait before a retry if the kind is retried after a delay; 0 otherwise.
    pub retry_after_ms: u32,
    pub message: String,
    /// Address of the broker that answers the request, if the class is [`RetryClass::Redirect`] and it is known. It is
    /// an address of the native protocol.
    pub redirect: Option<Box<str>>,
}

/// Constructors are cold: the compiler moves them out of the path of success.
impl Error {
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let retry_after_ms = match kind.retry_class() {
            // An operator has to free disk space first.
            RetryClass::RetryAfter if kind == ErrorKind::DiskFull => 1000,
            RetryClass::RetryAfter => 100,
            _ => 0,
        };
        Self { kind, retry_after_ms, message: message.into(), redirect: None }
    }

    #[cold]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    #[cold]
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooLarge, message)
    }

    /// Returns the error for a partition that a topic with `partitions` partitions does not have.
    #[cold]
    pub fn no_partition(topic: &str, partitions: usize, asked: i64) -> Self {
        Self::not_found(match partitions {
            1 => format!("topic {topic} has only partition 0, not {asked}"),
            _ => format!("topic {topic} has partitions 0 to {}, not {asked}", partitions.saturating_sub(1)),
        })
    }

    #[cold]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    #[cold]
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Busy, message)
    }

    /// Returns the error for a request that the broker at `leader` has to answer, if it is known which one that is.
    #[cold]
    pub fn not_leader(message: impl Into<String>, leader: Option<&str>) -> Self {
        Self { redirect: leader.map(Box::from), ..Self::new(ErrorKind::NotLeader, message) }
    }

    /// Returns the error for a change that was appended under a leadership which ended before the change was committed.
    /// The next leader may have it.
    #[cold]
    pub fn leadership_ended() -> Self {
        let message = "the leader changed before this was committed, and it may have been carried out: send it again \
                       only if it may happen twice, or if it has a number by which the next leader recognizes it";
        Self::new(ErrorKind::Disconnected, message)
    }

    /// Returns the error for a client that has reached a rate limit and has to wait `retry_after_ms`, at least 1 s.
    #[cold]
    pub fn throttled(message: impl Into<String>, retry_after_ms: u32) -> Self {
        Self { retry_after_ms: retry_after_ms.max(THROTTLED_MS_MIN), ..Self::busy(message) }
    }

    /// Returns `true` if the client has to slow down, `false` if the broker is busy or for any other error.
    pub fn is_throttled(&self) -> bool {
        self.kind == ErrorKind::Busy && self.retry_after_ms >= THROTTLED_MS_MIN
    }

    /// Returns `true` if the request may have been carried out: its answer was lost, or never came.
    pub fn is_outcome_unknown(&self) -> bool {
        self.retry_class() == RetryClass::OutcomeUnknown
    }

    /// Returns the same error with a message that is made of its message.
    #[cold]
    pub fn map_message(mut self, change: impl FnOnce(String) -> String) -> Self {
        self.message = change(self.message);
        self
    }

    pub fn retry_class(&self) -> RetryClass {
        self.kind.retry_class()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.redirect {
            Some(address) => write!(f, "{}; send the request to {address} ({})", self.message, self.kind.name()),
            None => write!(f, "{} ({})", self.message, self.kind.name()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_client_waits_longer_than_for_a_busy_broker() {
        let throttled = Error::throttled("why", 7);
        assert!(throttled.is_throttled() && throttled.retry_after_ms >= 1000);
        assert_eq!((throttled.kind, throttled.retry_class()), (ErrorKind::Busy, RetryClass::RetryAfter));
        assert!(ErrorKind::ALL.into_iter().all(|kind| !Error::new(kind, "why").is_throttled()));
    }

    #[test]
    fn a_not_leader_error_names_the_leader() {
        let error = Error::not_leader("orders 3 is led elsewhere", Some("b.example:7400"));
        assert_eq!((error.retry_class(), error.retry_after_ms), (RetryClass::Redirect, 0));
        assert_eq!(error.to_string(), "orders 3 is led elsewhere; send the request to b.example:7400 (not_leader)");
        assert_eq!(Error::not_leader("why", None).to_string(), "why (not_leader)");
        let redirects = |kind: ErrorKind| kind.retry_class() == RetryClass::Redirect;
        assert_eq!(ErrorKind::ALL.into_iter().filter(|kind| redirects(*kind)).count(), 1);
    }

    #[test]
    fn codes_and_names_are_unique_and_lead_back() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
            assert_eq!(ErrorKind::ALL.iter().filter(|other| other.name() == kind.name()).count(), 1);
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(21), None);
    }
}
