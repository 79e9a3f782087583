//! Graceful shutdown: stop accepting new work, finish the work in progress, and cut it off at a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Time that connections have to end after they are cut off.
const ABORT_WAIT: Duration = Duration::from_millis(500);

/// Control of the shutdown. Cloning it is cheap.
#[derive(Clone)]
pub struct Shutdown {
    stage: Arc<watch::Sender<Stage>>,
    /// Sender without messages; each drain has a receiver of it.
    holders: Arc<watch::Sender<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// No new work begins.
    Draining,
    /// Remaining work is cut off.
    Aborting,
}

/// Observer of the shutdown's stages, which does not delay it.
#[derive(Clone)]
pub struct Stages(watch::Receiver<Stage>);

/// Guard that every connection and loop holds. While it exists, the shutdown waits for its holder.
#[derive(Clone)]
pub struct Drain {
    stages: Stages,
    _held: watch::Receiver<()>,
}

/// Outcome of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Number of connections and loops when it began.
    pub draining: usize,
    /// Number of those that were cut off at the deadline.
    pub aborted: usize,
    /// Number of those that did not end even then.
    pub stuck: usize,
    /// Duration of the shutdown.
    pub took: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: Arc::new(watch::Sender::new(Stage::Running)), holders: Arc::new(watch::Sender::new(())) }
    }
}

impl Shutdown {
    /// Creates a guard, which the shutdown waits for.
    pub fn drain(&self) -> Drain {
        Drain { stages: self.stages(), _held: self.holders.subscribe() }
    }

    /// Creates an observer, which the shutdown does not wait for.
    pub fn stages(&self) -> Stages {
        Stages(self.stage.subscribe())
    }

    /// Cuts off all work now. [`Shutdown::run`] then waits only until it has ended.
    pub fn abort(&self) {
        self.raise(Stage::Aborting);
    }

    fn raise(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let is_later = *stage < to;
            *stage = (*stage).max(to);
            is_later
        });
    }

    /// Starts the drain, waits until all guards are dropped or the deadline has passed, and then cuts off the rest.
    pub async fn run(&self, deadline: Duration) -> Ended {
        let began = Instant::now();
        let draining = self.holders.receiver_count();
        tracing::debug!(
            draining,
            deadline_ms = deadline.as_millis() as u64,
            "shutting down: no new connections are accepted"
        );
        self.raise(Stage::Draining);
        let is_drained = tokio::time::timeout(deadline, self.holders.closed()).await.is_ok();
        let aborted = if is_drained { 0 } else { self.holders.receiver_count() };
        if !is_drained {
            tracing::warn!(aborted, "shutting down: the deadline has passed, stopping unfinished work");
            self.raise(Stage::Aborting);
            if tokio::time::timeout(ABORT_WAIT, self.holders.closed()).await.is_err() {
                tracing::warn!(stuck = self.holders.receiver_count(), "shutting down: some work did not stop");
            }
        }
        let ended = Ended { draining, aborted, stuck: self.holders.receiver_count(), took: began.elapsed() };
        tracing::debug!(aborted, took_ms = ended.took.as_millis() as u64, "shut down");
        ended
    }
}

impl Ended {
    /// Returns `true` if all work was finished before the deadline.
    pub fn is_clean(&self) -> bool {
        self.aborted == 0
    }
}

impl Stages {
    /// Returns `true` if the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow() >= Stage::Draining
    }

    /// Waits until the shutdown has begun, or its owner is dropped.
    pub async fn begun(&mut self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until remaining work is to be cut off, or the owner of the shutdown is dropped.
    pub async fn aborted(&mut self) {
        self.reached(Stage::Aborting).await;
    }

    async fn reached(&mut self, stage: Stage) {
        if self.0.wait_for(|at| *at >= stage).await.is_err() {
            tracing::debug!("the owner of the shutdown was dropped");
        }
    }
}

impl Drain {
    /// Returns `true` if the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.stages.has_begun()
    }

    /// Waits until the shutdown has begun, or its owner is dropped.
    pub async fn begun(&mut self) {
        self.stages.begun().await;
    }

    /// Waits until remaining work is to be cut off, or the owner of the shutdown is dropped.
    pub async fn aborted(&mut self) {
        self.stages.aborted().await;
    }

    /// Waits until the shutdown has begun, or its owner is dropped; if `has_begun`, until remaining work is to be cut
    /// off, which the owner has to request.
    pub(crate) async fn next(&mut self, has_begun: bool) {
        if !has_begun {
            self.begun().await;
        } else if self.stages.0.wait_for(|at| *at == Stage::Aborting).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the result of `work`, or `None` if the shutdown begins first.
    pub async fn or_begun<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.begun() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_for_holders_but_not_past_the_deadline() {
        let shutdown = Shutdown::default();
        let mut done = shutdown.drain();
        let stuck = shutdown.drain();
        let task = tokio::spawn(async move { done.begun().await });
        let ended = shutdown.run(Duration::from_millis(20)).await;
        assert_eq!((ended.draining, ended.aborted, ended.stuck), (2, 1, 1));
        task.await.expect("no panic");
        drop(stuck);
        assert!(shutdown.run(Duration::from_secs(60)).await.is_clean());
    }
}
