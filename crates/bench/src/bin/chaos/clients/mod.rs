//! Clients that work during the faults, each with a history of what it did and saw.

pub mod groups;
pub mod kafka;
pub mod native;
pub mod queue;
pub mod redis;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::{Addresses, Client, ClientSettings, Error};
use tokio::sync::watch;

use crate::history::{Micros, Outcome, now};
use crate::network::Outcome as Step;

/// Time after which a client gives a request up. Its outcome is unknown then.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause of a client after an error.
pub const AGAIN: Duration = Duration::from_millis(50);

/// Returns what an error says about its request.
pub fn outcome_of(error: &Error) -> Outcome {
    if error.is_outcome_unknown() { Outcome::Unknown } else { Outcome::Refused }
}

/// Connects to all nodes; any one of them may answer. There may be no leader yet.
pub async fn connect(addresses: &str) -> Step<Client> {
    let addresses = Addresses::parse(&format!("tcp://{addresses}")).map_err(|error| error.to_string())?;
    let settings = ClientSettings {
        request_timeout: REQUEST_TIMEOUT,
        pub_conn_pool: 1,
        event_conn_pool: 1,
        cache_conn_pool: 1,
        ..ClientSettings::default()
    };
    let begin = Instant::now();
    loop {
        match Client::connect_with(addresses.clone(), settings.clone()).await {
            Ok(client) => return Ok(client),
            Err(_) if begin.elapsed() < REQUEST_TIMEOUT => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(format!("cannot connect: {error}")),
        }
    }
}

/// Order to end, which clients follow after their request in flight.
#[derive(Clone)]
pub struct Ending(watch::Receiver<bool>);

impl Ending {
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (end, ending) = watch::channel(false);
        (end, Self(ending))
    }

    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for a time, or until the end.
    pub async fn pause(&mut self, time: Duration) {
        tokio::time::timeout(time, self.0.wait_for(|is_over| *is_over)).await.map(drop).unwrap_or_default();
    }
}

/// Progress of the native publishers, by which stalls are measured.
#[derive(Default)]
pub struct Progress {
    sent: AtomicU64,
    acknowledged: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    last: Micros,
    longest: Micros,
    /// Begin of the newest request that was acknowledged.
    newest_begin: Micros,
}

impl Progress {
    pub fn sends(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes an acknowledgement of a record that was sent at a time.
    pub fn acknowledged(&self, begin: Micros) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        let now = now();
        let mut window = self.lock();
        window.longest = window.longest.max(now.saturating_sub(window.last));
        window.last = now;
        window.newest_begin = window.newest_begin.max(begin);
    }

    /// Begins to measure the longest time without an acknowledgement.
    pub fn begin(&self) {
        let mut window = self.lock();
        window.longest = 0;
        window.last = now();
    }

    /// Returns the longest time without an acknowledgement since the beginning.
    pub fn longest(&self) -> Micros {
        self.lock().longest
    }

    /// Returns `true` if a record that was sent after a time has been acknowledged.
    pub fn has_acknowledged_after(&self, time: Micros) -> bool {
        self.lock().newest_begin > time
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.acknowledged.load(Ordering::Relaxed))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress that several clients share.
pub type SharedProgress = Arc<Progress>;
