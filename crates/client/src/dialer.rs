//! Dialer: connects to one of the addresses of a broker, and prefers the node that leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::address::Address;
use crate::addresses::Addresses;
use crate::attempt::Attempt;
use crate::book::Book;
use crate::connection::{Connection, Shape};
use crate::link::disconnected;
use crate::settings::{ClientSettings, LinkChange};

/// Time that an address has to answer before the next one is tried at the same time.
const HEAD_START: Duration = Duration::from_secs(1);
/// Maximum time for a connection to the leader itself if another node relays to it already.
const DIRECT_TIMEOUT: Duration = Duration::from_secs(1);

/// State that the connections of one client share.
pub(crate) struct Dialer {
    pub settings: ClientSettings,
    pub book: Arc<Book>,
    /// `true` if the observer was notified of a loss.
    is_lost: AtomicBool,
}

/// Attempt that has not ended yet, with the time of its start.
type Running<'a> = BoxFuture<'a, (&'a Address, Instant, Result<Connection>)>;

impl Dialer {
    pub(crate) fn new(addresses: Addresses, settings: ClientSettings) -> Self {
        Self { settings, book: Arc::new(Book::new(addresses)), is_lost: AtomicBool::new(false) }
    }

    /// Records that a connection that was open could not be restored immediately.
    pub(crate) fn lost(&self, error: &Error) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.observe(LinkChange::Lost(error));
        }
    }

    /// Records that a connection is open.
    fn restored(&self, connection: &Connection) {
        if self.book.connected(&connection.address) {
            self.observe(LinkChange::Moved(&connection.address));
        }
        if self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::Relaxed) {
            self.observe(LinkChange::Restored);
        }
    }

    fn observe(&self, change: LinkChange<'_>) {
        if let Some(observer) = &self.settings.observer {
            observer.call(change);
        }
    }

    /// Returns the time for which a failing connection is tried again. A first connection to the only known address is
    /// tried once, as the address is most likely wrong.
    pub(crate) fn patience(&self, was_connected: bool) -> Duration {
        match () {
            () if was_connected || self.book.is_cluster_known() => self.settings.request_timeout,
            () if self.book.is_of_cluster() => self.settings.connect_timeout,
            () => Duration::ZERO,
        }
    }

    /// Connects to the first address that answers, and exchanges the hello. Each address has the connect timeout.
    pub(crate) async fn connect(&self, shape: Shape) -> Result<Connection> {
        let candidates = self.book.candidates(Instant::now());
        let connection = match &candidates[..] {
            [address] => self.attempt(address).connect(shape).await?,
            several => Box::pin(self.connect_to_first(several, shape)).await?,
        };
        let connection = match self.book.leader_beyond(&connection.address, Instant::now()) {
            Some(leader) => Box::pin(self.connect_directly(connection, &leader, shape)).await,
            None => connection,
        };
        self.restored(&connection);
        Ok(connection)
    }

    fn attempt<'a>(&'a self, address: &'a Address) -> Attempt<'a> {
        Attempt { address, settings: &self.settings, book: &self.book }
    }

    /// Tries the addresses in turn: the next one when the one before has failed, or has not answered for a while.
    async fn connect_to_first(&self, candidates: &[Address], shape: Shape) -> Result<Connection> {
        let mut waiting = candidates.iter();
        let mut running: FuturesUnordered<Running<'_>> = FuturesUnordered::new();
        let mut started: Vec<(&Address, Instant)> = Vec::new();
        let mut errors = Vec::new();
        let head_start = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(head_start);
        loop {
            let has_more = waiting.len() > 0;
            if running.is_empty() && !has_more {
                return Err(no_answer(errors));
            }
            tokio::select! {
                biased;
                Some((address, begun, result)) = running.next() => {
                    started.retain(|(other, _)| !other.is_same(address));
                    match result {
                        Ok(connection) => {
                            // The others had more time, and did not answer.
                            let late = started.iter().filter(|(_, other)| begun >= *other + HEAD_START);
                            late.for_each(|(address, _)| self.book.failed(address, Instant::now()));
                            return Ok(connection);
                        }
                        // All nodes check the same credentials.
                        Err(error) if error.kind == ErrorKind::Denied => return Err(error),
                        Err(error) => {
                            self.book.failed(address, Instant::now());
                            errors.push(error);
                            head_start.as_mut().reset(tokio::time::Instant::now());
                        }
                    }
                }
                () = &mut head_start, if has_more => {
                    if let Some(address) = waiting.next() {
                        let begun = Instant::now();
                        started.push((address, begun));
                        let attempt = self.attempt(address);
                        running.push(Box::pin(async move { (address, begun, attempt.connect(shape).await) }));
                    }
                    head_start.as_mut().reset(tokio::time::Instant::now() + HEAD_START);
                }
            }
        }
    }

    /// Replaces a relayed connection with one to the leader, if the leader can be reached.
    async fn connect_directly(&self, relayed: Connection, leader: &Address, shape: Shape) -> Connection {
        match tokio::time::timeout(DIRECT_TIMEOUT, self.attempt(leader).connect(shape)).await {
            Ok(Ok(connection)) => {
                relayed.close().await;
                connection
            }
            failed => {
                let error = failed.map(Result::err);
                tracing::debug!(%leader, ?error, "the leader cannot be reached directly; another node relays to it");
                self.book.failed(leader, Instant::now());
                relayed
            }
        }
    }
}

/// Returns the error of several addresses none of which has answered.
fn no_answer(errors: Vec<Error>) -> Error {
    let mut messages: Vec<String> = Vec::new();
    for Error { message, .. } in errors {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    disconnected(&format!("none of the addresses answers: {}", messages.join("; ")))
}

#[cfg(test)]
#[path = "dialer_tests.rs"]
mod tests;
