//! Open connections as an operator sees them: where each comes from, as whom, and how to end it.
//!
//! An entry is created with the permit of its connection and removed with it, so the table has no more entries than
//! connections may be open. A request touches only the counter in the entry of its own connection.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Phase of the life of a connection. Another task may serve each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Until its protocol is known.
    Opening,
    /// The requests of its protocol.
    Serving,
    /// Another protocol, to which it was upgraded.
    Upgraded,
}

/// Function that ends the work of a connection.
type Stop = Box<dyn FnOnce() + Send>;

/// Number of the next connection. The first follows from the time, so that a number from before a restart or of another
/// node names no connection. Numbers stay below 2^53.
static IDS: LazyLock<AtomicU64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AtomicU64::new(since.as_millis() as u64 * CONNECTIONS_PER_MS)
});
/// Numbers for each millisecond before the start: no process opens connections faster for long.
const CONNECTIONS_PER_MS: u64 = 1000;

/// Open connection, in the table of its service.
pub struct OpenConnection {
    /// Number of the connection, unique in the process and, unless the clock was set back, among all that ran before.
    pub id: u64,
    /// Address of the peer; `None` for a Unix socket or a pipe, which come from this machine.
    pub address: Option<SocketAddr>,
    /// Time at which the connection was accepted.
    pub opened: Instant,
    requests: AtomicU64,
    user: Mutex<Option<Arc<str>>>,
    stop: Mutex<Stopping>,
}

#[derive(Default)]
enum Stopping {
    /// Nothing serves the connection yet.
    #[default]
    Unset,
    By(Phase, Stop),
    Done,
}

impl OpenConnection {
    /// Creates an entry that is in no table.
    pub fn new(address: Option<SocketAddr>) -> Self {
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            address,
            opened: Instant::now(),
            requests: AtomicU64::new(0),
            user: Mutex::default(),
            stop: Mutex::default(),
        }
    }

    /// Returns the number of requests that have begun, including messages without an answer.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    #[cfg(feature = "http")]
    pub(crate) fn add_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds requests of a connection whose tasks all run on one thread, which saves an atomic addition.
    #[inline]
    pub(crate) fn add_requests_on_one_thread(&self, count: u64) {
        self.requests.store(self.requests() + count, Ordering::Relaxed);
    }

    /// Returns the user as whom the peer has logged in; `None` before that.
    pub fn user(&self) -> Option<Arc<str>> {
        self.user.lock().clone()
    }

    /// Sets the user as whom the peer has logged in.
    pub fn set_user(&self, name: &str) {
        let mut user = self.user.lock();
        if user.as_deref() != Some(name) {
            *user = Some(name.into());
        }
    }

    /// Sets the function that ends the work of the connection in this phase, in place of the one of the phase before.
    /// If the connection was already cut off, the function is called immediately.
    pub fn stop_by(&self, phase: Phase, stop: impl FnOnce() + Send + 'static) {
        let mut current = self.stop.lock();
        match &*current {
            Stopping::Done => {
                drop(current);
                stop();
            }
            // The next phase may begin in another thread before this one is registered.
            Stopping::By(later, _) if *later > phase => {}
            Stopping::By(..) | Stopping::Unset => {
                let before = mem::replace(&mut *current, Stopping::By(phase, Box::new(stop)));
                drop(current);
                drop(before);
            }
        }
    }

    /// Ends the connection without waiting for requests in progress: their answers are lost, as if the peer had
    /// disconnected.
    pub fn cut(&self) {
        let stop = mem::replace(&mut *self.stop.lock(), Stopping::Done);
        if let Stopping::By(_, stop) = stop {
            stop();
        }
    }
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenConnection({} from {:?})", self.id, self.address)
    }
}

/// Table of the open connections of one service.
#[derive(Default)]
pub(super) struct Table(Mutex<BTreeMap<u64, Arc<OpenConnection>>>);

impl Table {
    pub fn add(&self, address: Option<SocketAddr>) -> Arc<OpenConnection> {
        let entry = Arc::new(OpenConnection::new(address));
        self.0.lock().insert(entry.id, entry.clone());
        entry
    }

    pub fn remove(&self, id: u64) {
        // The entry is dropped without the lock.
        let removed = self.0.lock().remove(&id);
        drop(removed);
    }

    pub fn get(&self, id: u64) -> Option<Arc<OpenConnection>> {
        self.0.lock().get(&id).cloned()
    }

    pub fn after(&self, id: u64, count_max: usize) -> Vec<Arc<OpenConnection>> {
        let table = self.0.lock();
        table.range((Bound::Excluded(id), Bound::Unbounded)).take(count_max).map(|(_, entry)| entry.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn numbers_are_in_order_exact_in_json_and_not_those_of_an_earlier_start() {
        let [first, second] = [(); 2].map(|()| OpenConnection::new(None).id);
        assert!(first < second && second < 1 << 53, "{first} {second}");
        // A start at this time of 2020.
        assert!(first > 1_577_836_800_000 * CONNECTIONS_PER_MS, "{first}");
    }

    #[test]
    fn a_connection_is_cut_once_by_whatever_serves_it_now_or_later() {
        let entry = OpenConnection::new(None);
        let stops = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let stop = |i: usize| {
            let stops = stops.clone();
            move || {
                stops[i].fetch_add(1, Ordering::Relaxed);
            }
        };
        entry.stop_by(Phase::Serving, stop(1));
        entry.stop_by(Phase::Opening, stop(0));
        entry.cut();
        entry.cut();
        entry.stop_by(Phase::Upgraded, stop(2));
        assert_eq!([0, 1, 2].map(|i: usize| stops[i].load(Ordering::Relaxed)), [0, 1, 1]);
    }

    #[test]
    fn a_table_is_read_in_pages_in_the_order_of_arrival() {
        let table = Table::default();
        let all: Vec<u64> = (0..5).map(|_| table.add(None).id).collect();
        table.remove(all[1]);
        let ids = |page: Vec<Arc<OpenConnection>>| page.iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!(ids(table.after(0, 2)), [all[0], all[2]]);
        assert_eq!(ids(table.after(all[2], 10)), all[3..]);
        assert!(table.get(all[1]).is_none() && table.get(all[4]).is_some());
    }
}
