//! Pool of connections that are opened when they are needed, kept, and restored when they break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::backoff::Backoff;
use crate::connection::{Connection, Shape};
use crate::dialer::Dialer;
use crate::link::Link;

pub(crate) struct Pool {
    dialer: Arc<Dialer>,
    slots: Vec<Slot>,
    shape: Shape,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    connection: Mutex<Option<Arc<Connection>>>,
    /// Held while a connection is being established.
    connecting: tokio::sync::Mutex<()>,
}

impl Slot {
    /// Returns the connection if it is open.
    fn open(&self) -> Option<Arc<Connection>> {
        self.connection.lock().as_ref().filter(|connection| !connection.is_closed()).cloned()
    }
}

impl Pool {
    pub(crate) fn new(dialer: Arc<Dialer>, size: usize, shape: Shape) -> Self {
        Self { dialer, slots: (0..size.max(1)).map(|_| Slot::default()).collect(), shape, turn: AtomicUsize::new(0) }
    }

    /// Returns the turn for a new user of the pool; slots take turns.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the connection of a turn. A broken connection is restored: several attempts, with growing pauses, for as
    /// long as a request may take. In a cluster, a first connection is tried repeatedly, too.
    pub(crate) async fn connection(&self, turn: usize) -> Result<Arc<Connection>> {
        let slot = &self.slots[turn % self.slots.len()];
        if let Some(connection) = slot.open() {
            return Ok(connection);
        }
        let _connecting = slot.connecting.lock().await;
        // Another task may have established it in the meantime.
        if let Some(connection) = slot.open() {
            return Ok(connection);
        }
        let was_connected = slot.connection.lock().take().is_some();
        let begin = tokio::time::Instant::now();
        let mut backoff = Backoff::new();
        loop {
            match self.dialer.connect(self.shape).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    *slot.connection.lock() = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => {
                    if was_connected {
                        self.dialer.lost(&error);
                    }
                    let wait = backoff.next();
                    if begin.elapsed() + wait >= self.dialer.patience(was_connected) {
                        return Err(error);
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Returns the connection of a turn, if it is open.
    #[cfg(test)]
    pub(crate) fn opened(&self, turn: usize) -> Option<Arc<Connection>> {
        self.slots[turn % self.slots.len()].open()
    }

    /// Closes the open connections.
    pub(crate) async fn close(&self) {
        for slot in &self.slots {
            let _connecting = slot.connecting.lock().await;
            let connection = slot.connection.lock().take();
            if let Some(connection) = connection {
                connection.close().await;
            }
        }
    }

    /// Returns the publish stream of a turn.
    pub(crate) async fn link(&self, turn: usize) -> Result<Arc<Link>> {
        let connection = self.connection(turn).await?;
        let stream = turn / self.slots.len() % connection.publish.len().max(1);
        Ok(connection.publish.get(stream).unwrap_or(&connection.control).clone())
    }
}

/// Returns `true` if a new connection may help.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Disconnected
            | ErrorKind::ShuttingDown
            | ErrorKind::Timeout
            | ErrorKind::Busy
            | ErrorKind::DiskFull
            | ErrorKind::NotLeader
    )
}
