//! Maps errors to those of Redis. Clients check the first word of an error.

use std::borrow::Cow;

use engine::{Error, ErrorKind};

/// Line of an error, without the leading sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fail {
    pub(super) text: Cow<'static, [u8]>,
    /// `true` if memory is full: the command may succeed once entries are evicted or deleted.
    pub(super) is_full: bool,
}

pub(super) type Done<T = ()> = Result<T, Fail>;

pub(super) const LOGGED_OUT: Fail = fixed("NOAUTH Authentication required.");
pub(super) const WRONG_TYPE: Fail = fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(super) const SYNTAX: Fail = fixed("ERR syntax error");
pub(super) const NOT_INTEGER: Fail = fixed("ERR value is not an integer or out of range");
pub(super) const NOT_FLOAT: Fail = fixed("ERR value is not a valid float");
pub(super) const NO_SUCH_KEY: Fail = fixed("ERR no such key");
pub(super) const OUT_OF_RANGE: Fail = fixed("ERR index out of range");
pub(super) const TOO_LONG: Fail = fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

pub(super) const fn fixed(text: &'static str) -> Fail {
    Fail { text: Cow::Borrowed(text.as_bytes()), is_full: false }
}

impl Fail {
    pub(super) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = match text.into() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        Self { text, is_full: false }
    }

    /// Creates an error that repeats bytes which need not be UTF-8.
    pub(super) fn of_bytes(text: Vec<u8>) -> Self {
        Self { text: Cow::Owned(text), is_full: false }
    }
}

impl From<&'static str> for Fail {
    fn from(text: &'static str) -> Self {
        Self::new(text)
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let word = match error.kind {
            ErrorKind::Busy if error.is_throttled() => "ERR",
            ErrorKind::Busy => "OOM command not allowed when used memory > 'maxmemory':",
            ErrorKind::Denied => "NOPERM",
            // The word for which go-redis repeats a command (`shouldRetry` in its error.go), as do cluster clients.
            ErrorKind::DiskFull => "TRYAGAIN",
            // Not `MOVED`: its address would have to be one of this protocol, and its slot one of a cluster. Nor
            // `CLUSTERDOWN`, which only go-redis repeats: for this word redis-py also connects again and repeats.
            ErrorKind::NotLeader => "LOADING",
            ErrorKind::Timeout | ErrorKind::ShuttingDown => "TRYAGAIN",
            ErrorKind::NotFound => "ERR no such key:",
            ErrorKind::Malformed
            | ErrorKind::Corrupt
            | ErrorKind::TooLarge
            | ErrorKind::Unsupported
            | ErrorKind::Invalid
            | ErrorKind::AlreadyExists
            | ErrorKind::OutOfRange
            | ErrorKind::NoResponders
            | ErrorKind::SlowSubscriber
            // The command may have been executed: clients must not repeat it on their own.
            | ErrorKind::Disconnected
            | ErrorKind::Internal
            | ErrorKind::OutOfSequence
            | ErrorKind::Fenced => "ERR",
        };
        let is_full = error.kind == ErrorKind::Busy && !error.is_throttled();
        Self { is_full, ..Self::new(format!("{word} {}", error.message)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_by_a_word_that_clients_repeat_a_command_for() {
        let fail = Fail::from(Error::new(ErrorKind::DiskFull, "why"));
        assert_eq!((&*fail.text, fail.is_full), (&b"TRYAGAIN why"[..], false));
    }

    #[test]
    fn a_change_of_the_leader_asks_for_a_retry_unless_the_command_may_have_been_executed() {
        let fail = Fail::from(Error::not_leader("why", Some("b.example:7400")));
        assert_eq!((&*fail.text, fail.is_full), (&b"LOADING why"[..], false));
        let unknown = Fail::from(Error::leadership_ended());
        assert!(unknown.text.starts_with(b"ERR the leader changed"), "{:?}", unknown.text.escape_ascii());
    }
}
