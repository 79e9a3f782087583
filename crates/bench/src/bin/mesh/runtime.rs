//! Runtime whose threads are in the network namespace of a site, so that the sockets of its tasks are, too.

use std::sync::{Arc, Mutex, PoisonError};

use bench::wan::{Entrance, Outcome};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Runtime of the clients of a site. Dropping it cancels its tasks without waiting for them.
pub struct SiteRuntime(Option<Runtime>);

impl SiteRuntime {
    /// Starts a runtime with one thread, in a namespace if there is one.
    pub async fn start(entrance: Option<Entrance>) -> Outcome<Self> {
        let failed = Arc::new(Mutex::new(None));
        let of_threads = failed.clone();
        let enter = move || {
            if let Some(Err(error)) = entrance.as_ref().map(Entrance::enter) {
                *of_threads.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let built = Builder::new_multi_thread().worker_threads(1).enable_all().on_thread_start(enter).build();
        let runtime = Self(Some(built.map_err(|error| format!("no runtime can be started: {error}"))?));
        // The thread runs once a task has run.
        ended(runtime.spawn(async { Ok(()) })).await?;
        let error = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(runtime), |error| Err(format!("a thread cannot enter a network namespace: {error}")))
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Outcome<T>> + Send + 'static,
    ) -> JoinHandle<Outcome<T>> {
        match &self.0 {
            Some(runtime) => runtime.spawn(work),
            None => unreachable!("invariant: the runtime is taken only when it is dropped"),
        }
    }
}

impl Drop for SiteRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits for a task.
pub async fn ended<T>(task: JoinHandle<Outcome<T>>) -> Outcome<T> {
    task.await.unwrap_or_else(|error| Err(format!("a task of the benchmark failed: {error}")))
}
