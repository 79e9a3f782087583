//! Figures of the last minutes, which are measured while pages of the console are open.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use console::figures::{Figures, History, SAMPLE_MS};
use console::samples::Samples;
use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;
use tokio::time::sleep;

use super::super::Http;
use super::super::errors::Result;

/// Time after the last visit at which the measurement ends, in ms.
const IDLE_MS: u64 = 10 * 60 * 1000;

/// Figures of the broker, and the time of the last visit.
#[derive(Default)]
pub(crate) struct Measured {
    history: Mutex<History>,
    visited_ms: AtomicU64,
    /// `true` while a task measures. It is held during the first measurement, so that visitors wait for that.
    is_measuring: Turn<bool>,
}

/// Calls `read` with the figures, and begins to measure if nothing does.
pub(super) async fn read<T>(http: &Arc<Http>, read: impl FnOnce(&History) -> T) -> Result<T> {
    let measured = &http.measured;
    measured.visited_ms.store(http.broker.now_ms(), Ordering::Relaxed);
    let mut is_measuring = measured.is_measuring.lock().await;
    if !*is_measuring {
        measure(http).await?;
        *is_measuring = true;
        begin(http);
    }
    drop(is_measuring);
    Ok(read(&measured.history.lock()))
}

async fn measure(http: &Http) -> Result<()> {
    let page = http.metrics.read(&http.broker, Ipv4Addr::LOCALHOST.into()).await?;
    let text = String::from_utf8_lossy(&page.text);
    let figures =
        http.broker.answers().work(text.len(), || Figures::read(&Samples::parse(&text), http.broker.now_ms()));
    let figures = figures.await;
    http.measured.history.lock().push(figures);
    Ok(())
}

/// Measures until no page was visited for a while. The task does not keep the door alive.
fn begin(http: &Arc<Http>) {
    let http = Arc::downgrade(http);
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(SAMPLE_MS)).await;
            let Some(http) = http.upgrade() else {
                return;
            };
            let visited_ms = http.measured.visited_ms.load(Ordering::Relaxed);
            if http.broker.now_ms().saturating_sub(visited_ms) > IDLE_MS {
                let mut is_measuring = http.measured.is_measuring.lock().await;
                http.measured.history.lock().clear();
                *is_measuring = false;
                return;
            }
            if let Err(failure) = measure(&http).await {
                tracing::debug!(error = %failure.error, "the console could not measure");
            }
        }
    });
}
