//! Mistakes that a program around the discovery of [`engine::mesh`] could make. The simulation has to find each.

/// Mistake in the simulated program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    NeverRenews,
    NeverSweeps,
    ForgetsWatches,
    UsesTimeOfSender,
    KeepsFirstOwners,
    IgnoresRestarts,
    QueriesForEachCaller,
    KeepsLostLookups,
    KeepsViews,
    IgnoresLaterAnswers,
    KeepsLostWithdrawals,
}

impl Bug {
    pub const ALL: [Self; 11] = [
        Self::NeverRenews,
        Self::NeverSweeps,
        Self::ForgetsWatches,
        Self::UsesTimeOfSender,
        Self::KeepsFirstOwners,
        Self::IgnoresRestarts,
        Self::QueriesForEachCaller,
        Self::KeepsLostLookups,
        Self::KeepsViews,
        Self::IgnoresLaterAnswers,
        Self::KeepsLostWithdrawals,
    ];

    /// Returns the mistake in words.
    pub fn about(self) -> &'static str {
        match self {
            Self::NeverRenews => "advertisements are not renewed",
            Self::NeverSweeps => "expired entries of the directory are not removed",
            Self::ForgetsWatches => "an owner answers a lookup without watching",
            Self::UsesTimeOfSender => "advertisements expire at a time of their sender's clock",
            Self::KeepsFirstOwners => "owners are those of the first list of sites",
            Self::IgnoresRestarts => "a restarted owner receives nothing again",
            Self::QueriesForEachCaller => "every caller of a miss queries the directory",
            Self::KeepsLostLookups => "lookups without an answer are kept",
            Self::KeepsViews => "answers about topics without publishers are kept",
            Self::IgnoresLaterAnswers => "only the first answer of a lookup is used",
            Self::KeepsLostWithdrawals => "withdrawals that were lost with a link wait for the time to live",
        }
    }
}
