//! Commit of something that was appended: of records, of a change of the catalog, or of several of them.
//!
//! The log of its shard ([`storage::ShardLog`]) decides when an entry is committed; for topics in SQLite, the
//! transaction in the database decides. [`Commit`] is how the broker waits for that decision.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Error, ErrorKind, Offset, Result};
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use storage::Owner;
use tokio::sync::oneshot;

/// Commit of something that has its place in a log. It is done once all of it is committed. Appends to memory, and
/// appends for which no caller waits, are done immediately.
///
/// The log of a shard commits entries in the order in which they were appended. A later append to it is therefore
/// committed only if this one is: an append that follows from a decision need not wait for it.
#[derive(Default)]
#[must_use = "what was appended may not be durable yet"]
pub struct Commit {
    pending: Option<Pending>,
    later: Vec<BoxFuture<'static, Result<()>>>,
}

/// Part of a log whose commit is awaited.
struct Pending {
    log: LogNumber,
    /// Everything in the log before this offset is committed then.
    until: Offset,
    synced: oneshot::Receiver<Result<()>>,
}

/// Number that tells the logs of this process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogNumber(u64);

impl LogNumber {
    /// Returns a number that no other log has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Records that have their offsets in a partition.
#[must_use]
pub(crate) struct Appended {
    /// Offset of the last record.
    pub position: Offset,
    pub commit: Commit,
}

impl Commit {
    /// Returns a commit with nothing to wait for.
    pub fn done() -> Self {
        Self::default()
    }

    /// Returns a commit that ends with this error.
    pub(crate) fn failed(error: Error) -> Self {
        Self::later(std::future::ready(Err(error)))
    }

    /// Returns a commit that ends as this future does.
    pub(crate) fn later(future: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self { pending: None, later: vec![future.boxed()] }
    }

    /// Returns the commit of everything that a log has before an offset, and the sender of its outcome, for the caller.
    pub(crate) fn sync(log: LogNumber, until: Offset) -> (oneshot::Sender<Result<()>>, Self) {
        let (sender, synced) = oneshot::channel();
        (sender, Self { pending: Some(Pending { log, until, synced }), later: Vec::new() })
    }

    /// Returns the commit of one entry of the log, and the owner with which the entry is appended.
    pub(crate) fn of_entry() -> (Arc<dyn Owner>, Self) {
        let (sender, commit) = Self::sync(LogNumber::next(), Offset::MAX);
        (Arc::new(EntryOwner(Mutex::new(Some(sender)))), commit)
    }

    /// Returns the commit of all of these.
    pub(crate) fn all(commits: impl IntoIterator<Item = Self>) -> Self {
        commits.into_iter().fold(Self::done(), Self::and)
    }

    /// Returns the commit of both. Of two appends to one log it waits for the later one only.
    pub fn and(mut self, other: Self) -> Self {
        let (first, last) = match (self.pending, other.pending) {
            (Some(a), Some(b)) if a.log == b.log => (None, Some(if a.until >= b.until { a } else { b })),
            (Some(a), Some(b)) => (Some(a), Some(b)),
            (a, b) => (None, a.or(b)),
        };
        self.later.extend(other.later);
        self.later.extend(first.map(|first| first.wait().boxed()));
        Self { pending: last, later: self.later }
    }

    /// Returns a commit that ends as `after` makes of the outcome of this one.
    pub(crate) fn then<F>(self, after: impl FnOnce(Result<()>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self::later(async move { after(self.wait().await).await })
    }

    /// Returns `true` if [`Commit::wait`] has nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.pending.is_none() && self.later.is_empty()
    }

    /// Waits until all of it is committed, and returns the first error. An error of one part does not end the wait for
    /// the others.
    pub async fn wait(self) -> Result<()> {
        let mut outcome = match self.pending {
            Some(pending) => pending.wait().await,
            None => Ok(()),
        };
        for later in self.later {
            outcome = outcome.and(later.await);
        }
        outcome
    }

    /// Waits like [`Commit::wait`], and completes what follows from the commit even if the caller stops waiting.
    pub(crate) async fn wait_to_the_end(self) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        tokio::spawn(self.wait()).await.unwrap_or_else(|gone| {
            Err(Error::new(ErrorKind::Internal, format!("the broker stopped before this was durable: {gone}")))
        })
    }
}

impl Pending {
    async fn wait(self) -> Result<()> {
        self.synced.await.unwrap_or_else(|gone| {
            Err(Error::new(ErrorKind::Internal, format!("the log was closed before this was durable: {gone}")))
        })
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// Owner of one entry of the log that has no other owner, such as a change of the catalog.
struct EntryOwner(Mutex<Option<oneshot::Sender<Result<()>>>>);

impl EntryOwner {
    fn notify(&self, outcome: Result<()>) {
        if let Some(sender) = self.0.lock().take() {
            // A caller that waits no longer need not know.
            sender.send(outcome).unwrap_or_default();
        }
    }
}

impl Owner for EntryOwner {
    fn committed(&self, _mark: u64) {
        self.notify(Ok(()));
    }

    fn failed(&self, error: &Error) {
        self.notify(Err(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(message: &str) -> Result<()> {
        Err(Error::invalid(message))
    }

    #[tokio::test]
    async fn of_two_appends_to_one_log_only_the_later_is_awaited() {
        let log = LogNumber::next();
        let (first, before) = Commit::sync(log, 3);
        let (last, after) = Commit::sync(log, 7);
        let both = after.and(before);
        assert!(!both.is_done() && first.send(failure("not awaited")).is_err());
        last.send(Ok(())).expect("awaited");
        both.wait().await.expect("durable");
    }

    #[tokio::test]
    async fn appends_to_two_logs_are_both_awaited() {
        let (one, of_one) = Commit::sync(LogNumber::next(), 7);
        let (other, of_other) = Commit::sync(LogNumber::next(), 3);
        let both = Commit::all([of_one, of_other, Commit::done()]);
        one.send(Ok(())).expect("awaited");
        other.send(failure("the disk is full")).expect("awaited");
        assert!(both.wait().await.is_err_and(|error| error.message == "the disk is full"));
    }

    #[tokio::test]
    async fn a_failed_part_does_not_end_the_wait_for_the_others() {
        let (sender, slow) = Commit::sync(LogNumber::next(), 1);
        let mut waits = tokio::spawn(Commit::failed(Error::invalid("first")).and(slow).wait());
        assert!(tokio::time::timeout(std::time::Duration::from_millis(20), &mut waits).await.is_err());
        sender.send(Ok(())).expect("awaited");
        assert!(waits.await.expect("no panic").is_err_and(|error| error.message == "first"));
    }

    #[tokio::test]
    async fn a_log_that_is_closed_fails_its_commits() {
        let (sender, commit) = Commit::sync(LogNumber::next(), 1);
        let seen = Arc::new(Mutex::new(None));
        let outcome = seen.clone();
        let commit = commit.then(move |result| async move {
            *outcome.lock() = Some(result.clone());
            result
        });
        drop(sender);
        assert!(commit.wait_to_the_end().await.is_err_and(|error| error.kind == ErrorKind::Internal));
        assert!(seen.lock().take().is_some_and(|result| result.is_err()));
    }
}
