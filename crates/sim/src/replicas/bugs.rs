//! Mistakes that a caller of [`consensus::Replica`] could make. The simulation has to find each of them.

/// Mistake in the simulated program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    AnswersBeforeSync,
    CountsLaterSaves,
    ForgetsVote,
    ForgetsTerm,
    ForgetsCommit,
    LosesLastEntry,
    WritesBackwards,
    KeepsReplacedEntries,
    CommitsWhatItHas,
    ForgetsMembers,
    InstallsWithoutState,
    ForgetsStateOfInstall,
    TakesContentByIndex,
    ChecksPointBeforeState,
    StartsWithoutDisk,
    ServesAtOnce,
    LeasesFromAnswer,
    KeepsLease,
    ReadsWithoutLease,
    ReadsWithoutMajority,
    AcknowledgesAtOnce,
    AcknowledgesOwnDisk,
}

impl Bug {
    pub const ALL: [Self; 22] = [
        Self::AnswersBeforeSync,
        Self::CountsLaterSaves,
        Self::ForgetsVote,
        Self::ForgetsTerm,
        Self::ForgetsCommit,
        Self::LosesLastEntry,
        Self::WritesBackwards,
        Self::KeepsReplacedEntries,
        Self::CommitsWhatItHas,
        Self::ForgetsMembers,
        Self::InstallsWithoutState,
        Self::ForgetsStateOfInstall,
        Self::TakesContentByIndex,
        Self::ChecksPointBeforeState,
        Self::StartsWithoutDisk,
        Self::ServesAtOnce,
        Self::LeasesFromAnswer,
        Self::KeepsLease,
        Self::ReadsWithoutLease,
        Self::ReadsWithoutMajority,
        Self::AcknowledgesAtOnce,
        Self::AcknowledgesOwnDisk,
    ];

    /// Returns the mistake in words.
    pub fn about(self) -> &'static str {
        match self {
            Self::AnswersBeforeSync => "messages leave before their save is on disk",
            Self::CountsLaterSaves => "one sync counts for saves that were written after it",
            Self::ForgetsVote => "votes are not written",
            Self::ForgetsTerm => "terms are not written",
            Self::ForgetsCommit => "what is known to be committed is not written",
            Self::LosesLastEntry => "the last of several entries is not written",
            Self::WritesBackwards => "the rows of a save are written in reverse order",
            Self::KeepsReplacedEntries => "a restart keeps entries that were replaced",
            Self::CommitsWhatItHas => "a restart takes all entries as committed",
            Self::ForgetsMembers => "a restart begins with the first members",
            Self::InstallsWithoutState => "the log is replaced without the state",
            Self::ForgetsStateOfInstall => "the state of an installed point is not written",
            Self::TakesContentByIndex => "contents are found by index without the term",
            Self::ChecksPointBeforeState => "a checkpoint has the state of the entry before",
            Self::StartsWithoutDisk => "a node with an empty disk keeps its number",
            Self::ServesAtOnce => "a new leader does not wait for the lease before",
            Self::LeasesFromAnswer => "a lease counts from the answer to a heartbeat",
            Self::KeepsLease => "a lease is kept after the leadership was handed on",
            Self::ReadsWithoutLease => "a leader reads after its lease",
            Self::ReadsWithoutMajority => "a leader reads without asking a majority",
            Self::AcknowledgesAtOnce => "a write is acknowledged when it is appended",
            Self::AcknowledgesOwnDisk => "a write is acknowledged when it is on the leader's disk",
        }
    }
}
