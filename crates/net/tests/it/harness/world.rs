//! State that a test shares with the handlers on all workers: gates to wait at, and a log of events.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use net::Outbox;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::within;

#[derive(Default)]
pub struct World {
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
    log: watch::Sender<Vec<String>>,
    outboxes: Mutex<Vec<Arc<Outbox>>>,
    /// Open connections of the handler, and their maximum.
    connections: AtomicUsize,
    connections_max: AtomicUsize,
}

impl World {
    fn gate(&self, name: &str) -> Arc<Semaphore> {
        self.gates.lock().entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    /// Opens the gate for `count` waiters.
    pub fn open(&self, gate: &str, count: usize) {
        self.gate(gate).add_permits(count);
    }

    /// Waits to pass the gate.
    pub async fn pass(&self, gate: &str) {
        self.gate(gate).acquire().await.expect("a gate stays").forget();
    }

    pub fn note(&self, what: impl Into<String>) {
        self.log.send_modify(|log| log.push(what.into()));
    }

    /// Returns how often this was noted.
    pub fn noted(&self, what: &str) -> usize {
        self.log.borrow().iter().filter(|noted| *noted == what).count()
    }

    pub fn notes(&self) -> Vec<String> {
        self.log.borrow().clone()
    }

    /// Waits until this was noted.
    pub async fn until(&self, what: &str) {
        self.until_times(what, 1).await;
    }

    pub async fn until_times(&self, what: &str, times: usize) {
        let mut log = self.log.subscribe();
        let noted = log.wait_for(|log| log.iter().filter(|noted| *noted == what).count() >= times);
        within(what, noted).await.expect("the log stays");
    }

    pub fn keep_outbox(&self, outbox: &Arc<Outbox>) {
        self.outboxes.lock().push(outbox.clone());
    }

    /// Returns the outboxes of all streams, in the order in which they opened.
    pub fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.outboxes.lock().clone()
    }

    pub fn connection_opened(&self) {
        let now = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        self.connections_max.fetch_max(now, Ordering::SeqCst);
    }

    pub fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::SeqCst)
    }
}
