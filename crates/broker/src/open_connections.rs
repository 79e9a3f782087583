//! Open connections of clients at all doors, which operators list and close.
//!
//! The doors keep the connections; here are only the ways to their tables. A connection has a number that is unique in
//! the process, and numbers grow with time.

use std::net::SocketAddr;
use std::sync::Arc;

use engine::{Error, Result};
use parking_lot::Mutex;

use crate::doors::Door;

/// Maximum number of connections that are read from a table at a time, during which no client of the door can connect.
const TOGETHER_MAX: usize = 1024;

/// Open connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConnection {
    pub id: u64,
    pub door: Door,
    /// User as whom the client has logged in; `None` before its first request or login.
    pub user: Option<Arc<str>>,
    /// Address of the client; `None` for one on this machine without one.
    pub address: Option<SocketAddr>,
    /// Time since it was accepted.
    pub age_ms: u64,
    /// Number of requests that have begun.
    pub requests: u64,
}

/// Connections of one door.
pub trait ConnectionTable: Send + Sync {
    /// Returns the first `count_max` connections with a number above `id`, in the order of their numbers.
    fn after(&self, id: u64, count_max: usize) -> Vec<ClientConnection>;
    fn get(&self, id: u64) -> Option<ClientConnection>;
    /// Closes a connection without waiting for its requests.
    fn cut(&self, id: u64);
}

/// Tables of all doors.
#[derive(Default)]
pub struct OpenConnections {
    doors: Mutex<Vec<Arc<dyn ConnectionTable>>>,
}

impl OpenConnections {
    /// Adds the connections of a door.
    pub fn open(&self, table: Arc<dyn ConnectionTable>) {
        self.doors.lock().push(table);
    }

    /// Closes a connection without waiting for its requests.
    pub(crate) fn cut(&self, id: u64) {
        self.doors().iter().for_each(|table| table.cut(id));
    }

    fn doors(&self) -> Vec<Arc<dyn ConnectionTable>> {
        self.doors.lock().clone()
    }

    /// Returns the first `count_max` connections with a number above `after` that are wanted, in the order of their
    /// numbers, and `true` if no other follows.
    pub fn list(
        &self,
        after: u64,
        count_max: usize,
        is_wanted: impl Fn(&ClientConnection) -> bool,
    ) -> (Vec<ClientConnection>, bool) {
        let mut all = Vec::new();
        for table in self.doors() {
            // One more tells whether it is the last page.
            all.extend(wanted_of(&*table, after, count_max.saturating_add(1), &is_wanted));
        }
        all.sort_unstable_by_key(|connection| connection.id);
        let is_last = all.len() <= count_max;
        all.truncate(count_max);
        (all, is_last)
    }

    /// Returns a connection by its number.
    pub fn get(&self, id: u64) -> Result<ClientConnection> {
        let found = self.doors().iter().find_map(|table| table.get(id));
        found.ok_or_else(|| Error::not_found(format!("there is no open connection {id}: it has ended")))
    }
}

fn wanted_of(
    table: &dyn ConnectionTable,
    mut after: u64,
    count_max: usize,
    is_wanted: &impl Fn(&ClientConnection) -> bool,
) -> Vec<ClientConnection> {
    let mut wanted = Vec::new();
    while wanted.len() < count_max {
        // A list without a filter reads no more than it shows.
        let page = table.after(after, count_max.min(TOGETHER_MAX));
        let Some(last) = page.last() else {
            break;
        };
        after = last.id;
        wanted.extend(page.into_iter().filter(|connection| is_wanted(connection)));
    }
    wanted.truncate(count_max);
    wanted
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of connections that were read from tables.
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    /// Table with each `step`th number from `first` to 5000.
    struct Every {
        first: u64,
        step: usize,
    }

    fn connection(id: u64) -> ClientConnection {
        ClientConnection { id, door: Door::Kafka, user: None, address: None, age_ms: 0, requests: id }
    }

    impl ConnectionTable for Every {
        fn after(&self, id: u64, count_max: usize) -> Vec<ClientConnection> {
            let all = (self.first..=5000).step_by(self.step);
            let found: Vec<_> = all.filter(|of| *of > id).take(count_max).map(connection).collect();
            READ.set(READ.get() + found.len());
            found
        }

        fn get(&self, id: u64) -> Option<ClientConnection> {
            self.after(id - 1, 1).into_iter().find(|of| of.id == id)
        }

        fn cut(&self, _id: u64) {}
    }

    #[test]
    fn pages_have_the_connections_of_all_doors_in_order_and_pass_over_others() {
        let open = OpenConnections::default();
        open.open(Arc::new(Every { first: 2, step: 2 }));
        open.open(Arc::new(Every { first: 1, step: 2 }));
        let is_rare = |of: &ClientConnection| of.requests.is_multiple_of(1600);
        let ids =
            |(page, is_last): (Vec<ClientConnection>, bool)| (page.iter().map(|of| of.id).collect::<Vec<_>>(), is_last);
        assert_eq!(ids(open.list(0, 3, |_| true)), (vec![1, 2, 3], false));
        assert_eq!(READ.take(), 8, "no more than the page and the next one of each door is read");
        assert_eq!(ids(open.list(4998, 3, |_| true)), (vec![4999, 5000], true));
        assert_eq!(ids(open.list(0, 2, is_rare)), (vec![1600, 3200], false));
        assert_eq!(ids(open.list(3200, 2, is_rare)), (vec![4800], true));
        assert_eq!(open.get(77).map(|of| of.id).ok(), Some(77));
        assert!(open.get(5001).is_err());
    }
}
