//! The few kinds of error, each saying whether to try again and who has to act.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, coarse enough to act upon. Detail for people is in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorKind {
    /// Bytes that do not follow the protocol or the batch layout. The sender has a defect.
    Malformed = 1,
    /// A checksum does not match: send the same again.
    Corrupt = 2,
    /// Larger than a named limit. Send less at once.
    TooLarge = 3,
    /// A kind, feature, version or codec that this side does not know.
    Unsupported = 4,
    /// A value that can never be right: a bad name, a bad setting.
    Invalid = 5,
    /// No such topic, partition or subscription.
    NotFound = 6,
    /// It is there already, with other settings.
    AlreadyExists = 7,
    /// The offset is not, or no longer, in the log.
    OutOfRange = 8,
    /// A limit on work in progress is reached: come back later.
    Busy = 9,
    /// No answer in time. The request may have been carried out.
    Timeout = 10,
    /// Not allowed for this caller.
    Denied = 11,
    /// The broker is going away: reconnect.
    ShuttingDown = 12,
    /// A request reached nobody who could answer.
    NoResponders = 13,
    /// The connection is gone. The request may have been carried out.
    Disconnected = 14,
    /// The subscriber read too slowly and asked to be cut off rather than to miss records.
    SlowSubscriber = 15,
    /// A defect of the broker. The request may have been carried out.
    Internal = 16,
    /// Batches of this producer are missing before this one. It was not taken.
    OutOfSequence = 17,
    /// Another has taken over: what this one does no longer counts.
    Fenced = 18,
    /// The broker's disk is full: nothing was written. The same may succeed when somebody has made room.
    DiskFull = 19,
}

/// What a caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RetryClass {
    /// The same request may succeed at once.
    Retry = 1,
    /// The same request may succeed after the time that comes with the error.
    RetryAfter = 2,
    /// Another broker answers this.
    Redirect = 3,
    /// It may have been carried out; a retry may do it twice.
    OutcomeUnknown = 4,
    /// The same request fails again.
    Fatal = 5,
}

impl ErrorKind {
    pub const ALL: [Self; 19] = [
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
        }
    }

    pub fn retry_class(self) -> RetryClass {
        match self {
            Self::Corrupt => RetryClass::Retry,
            Self::Busy | Self::ShuttingDown | Self::DiskFull => RetryClass::RetryAfter,
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

/// The time that a client waits at least that is to slow down. Whatever else is busy asks for less.
const THROTTLED_MS_MIN: u32 = 1000;

/// An error with its kind and a sentence for the person who has to act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    /// How long to wait before trying again, where the kind asks for that; 0 otherwise.
    pub retry_after_ms: u32,
    pub message: String,
}

/// All that make one are cold: the compiler keeps them out of the way of what goes well.
impl Error {
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let retry_after_ms = match kind.retry_class() {
            // Somebody has to delete something first.
            RetryClass::RetryAfter if kind == ErrorKind::DiskFull => 1000,
            RetryClass::RetryAfter => 100,
            _ => 0,
        };
        Self { kind, retry_after_ms, message: message.into() }
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

    /// The error of a partition that a topic with so many has not.
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

    /// A limit of one client on how often is reached: it is to slow down, for `retry_after_ms`.
    #[cold]
    pub fn throttled(message: impl Into<String>, retry_after_ms: u32) -> Self {
        Self { retry_after_ms: retry_after_ms.max(THROTTLED_MS_MIN), ..Self::busy(message) }
    }

    /// Whether it is the client that is to slow down, rather than the broker that has much to do.
    pub fn is_throttled(&self) -> bool {
        self.kind == ErrorKind::Busy && self.retry_after_ms >= THROTTLED_MS_MIN
    }

    pub fn retry_class(&self) -> RetryClass {
        self.kind.retry_class()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.name())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_slow_down_waits_longer_than_for_what_is_busy() {
        let throttled = Error::throttled("why", 7);
        assert!(throttled.is_throttled() && throttled.retry_after_ms >= 1000);
        assert_eq!((throttled.kind, throttled.retry_class()), (ErrorKind::Busy, RetryClass::RetryAfter));
        assert!(ErrorKind::ALL.into_iter().all(|kind| !Error::new(kind, "why").is_throttled()));
    }

    #[test]
    fn codes_and_names_are_unique_and_lead_back() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
            assert_eq!(ErrorKind::ALL.iter().filter(|other| other.name() == kind.name()).count(), 1);
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(20), None);
    }
}
