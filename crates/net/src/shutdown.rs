//! Going away in order: stop taking new work, finish what is begun, and not for ever.

use std::time::Duration;

use tokio::sync::watch;

/// The one who decides that it is over.
pub struct Shutdown {
    phase: watch::Sender<bool>,
}

/// What every connection and loop holds: a way to learn that it is over. While it is held, the
/// shutdown waits for its holder.
#[derive(Clone)]
pub struct Drain {
    phase: watch::Receiver<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { phase: watch::Sender::new(false) }
    }
}

impl Shutdown {
    pub fn drain(&self) -> Drain {
        Drain { phase: self.phase.subscribe() }
    }

    /// Tells everyone, and waits until all are done or the deadline has passed. `true` if all were done.
    pub async fn run(&self, deadline: Duration) -> bool {
        self.phase.send_replace(true);
        tokio::time::timeout(deadline, self.phase.closed()).await.is_ok()
    }
}

impl Drain {
    pub fn has_begun(&self) -> bool {
        *self.phase.borrow()
    }

    /// Returns once the shutdown has begun, or its owner is gone.
    pub async fn begun(&mut self) {
        if self.phase.wait_for(|is_over| *is_over).await.is_err() {
            tracing::debug!("the owner of the shutdown is gone");
        }
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
        assert!(!shutdown.run(Duration::from_millis(20)).await);
        task.await.expect("no panic");
        drop(stuck);
        assert!(shutdown.run(Duration::from_secs(60)).await);
    }
}
