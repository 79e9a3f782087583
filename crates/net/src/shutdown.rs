//! Going away in order: stop taking new work, finish what is begun, and not for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long those who are told to stop at once may take to be gone.
const ABORT_WAIT: Duration = Duration::from_millis(500);

/// The one who decides that it is over. Cheap to clone.
#[derive(Clone)]
pub struct Shutdown {
    stage: Arc<watch::Sender<Stage>>,
    /// Has a receiver in each drain.
    holders: Arc<watch::Sender<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// Nothing new is begun.
    Draining,
    /// What is left is cut off.
    Aborting,
}

/// A way to learn that it is over.
#[derive(Clone)]
pub struct Stages(watch::Receiver<Stage>);

/// What every connection and loop holds. While it is held, the shutdown waits for its holder.
#[derive(Clone)]
pub struct Drain {
    stages: Stages,
    _held: watch::Receiver<()>,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Connections and loops that there were when it began.
    pub draining: usize,
    /// Those that were cut off at the deadline.
    pub aborted: usize,
    /// Those that did not even end then.
    pub stuck: usize,
    pub took: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: Arc::new(watch::Sender::new(Stage::Running)), holders: Arc::new(watch::Sender::new(())) }
    }
}

impl Shutdown {
    pub fn drain(&self) -> Drain {
        Drain { stages: self.stages(), _held: self.holders.subscribe() }
    }

    pub fn stages(&self) -> Stages {
        Stages(self.stage.subscribe())
    }

    /// Tells everyone, waits until all are done or the deadline has passed, and then cuts off who is left.
    pub async fn run(&self, deadline: Duration) -> Ended {
        let began = Instant::now();
        let draining = self.holders.receiver_count();
        tracing::debug!(draining, deadline_ms = deadline.as_millis() as u64, "shutting down: nothing new is accepted");
        self.stage.send_replace(Stage::Draining);
        let is_drained = tokio::time::timeout(deadline, self.holders.closed()).await.is_ok();
        let aborted = if is_drained { 0 } else { self.holders.receiver_count() };
        if !is_drained {
            tracing::warn!(aborted, "shutting down: the deadline has passed, cutting off what is left");
            self.stage.send_replace(Stage::Aborting);
            if tokio::time::timeout(ABORT_WAIT, self.holders.closed()).await.is_err() {
                tracing::warn!(stuck = self.holders.receiver_count(), "shutting down: some did not even stop then");
            }
        }
        let ended = Ended { draining, aborted, stuck: self.holders.receiver_count(), took: began.elapsed() };
        tracing::debug!(aborted, took_ms = ended.took.as_millis() as u64, "shut down");
        ended
    }
}

impl Ended {
    /// Whether everything was finished.
    pub fn is_clean(&self) -> bool {
        self.aborted == 0
    }
}

impl Stages {
    pub fn has_begun(&self) -> bool {
        *self.0.borrow() >= Stage::Draining
    }

    /// Returns once the shutdown has begun, or its owner is gone.
    pub async fn begun(&mut self) {
        self.reached(Stage::Draining).await;
    }

    /// Returns once what is left is to be cut off, or the owner of the shutdown is gone.
    pub async fn aborted(&mut self) {
        self.reached(Stage::Aborting).await;
    }

    async fn reached(&mut self, stage: Stage) {
        if self.0.wait_for(|at| *at >= stage).await.is_err() {
            tracing::debug!("the owner of the shutdown is gone");
        }
    }
}

impl Drain {
    pub fn has_begun(&self) -> bool {
        self.stages.has_begun()
    }

    /// Returns once the shutdown has begun, or its owner is gone.
    pub async fn begun(&mut self) {
        self.stages.begun().await;
    }

    /// Returns once what is left is to be cut off, or the owner of the shutdown is gone.
    pub async fn aborted(&mut self) {
        self.stages.aborted().await;
    }

    /// What the work comes to, or `None` where the shutdown begins first.
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
