//! Limits of open connections, in total and per peer, and of the rate at which a peer may open them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::open::{OpenConnection, Table};
use super::peers::{Peer, Peers};

/// Limits of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections of all peers.
    pub connections_max: usize,
    /// Maximum number of open connections of one peer: an IPv4 address, or the first 64 bits of an IPv6 address.
    pub per_peer_max: usize,
    /// Maximum number of open connections of one remote peer, as long as `per_peer_max` is not changed.
    pub per_remote_peer_max: usize,
    /// Maximum number of connections that one peer opens per second, or in a burst after a pause. `None` means no
    /// limit.
    pub opens_per_second_per_peer_max: Option<NonZeroU32>,
    /// Maximum number of remembered peers: those with open connections, and those that opened one within the last
    /// second. The table is divided into parts that fill unevenly, so a new peer may be refused when nine tenths are
    /// used.
    pub peers_max: usize,
}

impl ConnectionLimits {
    /// Returns limits for this number of connections. One peer may have all of them, and each may come from another
    /// peer. A peer opens at most 20,000 per second. Twice as many peers as connections are remembered, but at least
    /// 16,384.
    pub fn up_to(connections_max: usize) -> Self {
        Self {
            connections_max,
            per_peer_max: connections_max,
            per_remote_peer_max: connections_max,
            opens_per_second_per_peer_max: NonZeroU32::new(20_000),
            peers_max: connections_max.saturating_mul(2).max(16_384),
        }
    }
}

/// The default is [`ConnectionLimits::up_to`] 16,384 connections.
impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::up_to(16_384)
    }
}

/// Open connections and their limits.
pub struct Connections {
    limits: ConnectionLimits,
    /// Maximum for all peers. It may have changed since the limits were set.
    max: AtomicUsize,
    peers: Peers,
    open: AtomicUsize,
    table: Table,
    /// Refusals by [`Refused::index`].
    refused: [AtomicU64; Refused::NAMES.len()],
}

impl Connections {
    /// Creates a table without open connections.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            max: AtomicUsize::new(limits.connections_max),
            peers: Peers::new(&limits),
            open: AtomicUsize::new(0),
            table: Table::default(),
            refused: Default::default(),
        })
    }

    /// Changes the maximum number of open connections, in total and per peer. Open connections stay open. The number of
    /// remembered peers does not change.
    pub fn set_max(&self, connections_max: usize, per_peer_max: usize) {
        self.max.store(connections_max, Ordering::Relaxed);
        self.peers.set_per_peer_max(per_peer_max);
    }

    /// Returns a permit for one connection. A connection without a peer, such as a pipe, counts only towards the total.
    pub fn admit(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<ConnectionPermit, Refused> {
        self.admit_from(peer, None)
    }

    /// Returns a permit for one connection from this address, which counts for `peer`.
    pub fn admit_from(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        address: Option<SocketAddr>,
    ) -> Result<ConnectionPermit, Refused> {
        let admitted = self.take(peer.map(Peer::from));
        if let Err(refused) = admitted {
            self.refused[refused.index()].fetch_add(1, Ordering::Relaxed);
        }
        let entry = |peer| ConnectionPermit { connections: self.clone(), peer, entry: self.table.add(address) };
        admitted.map(entry)
    }

    fn take(&self, peer: Option<Peer>) -> Result<Option<Peer>, Refused> {
        let max = self.max();
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < max).then_some(n + 1));
        if taken.is_err() {
            return Err(Refused::AtCapacity { connections_max: max });
        }
        if let Some(peer) = peer
            && let Err(refused) = self.peers.open(peer)
        {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(refused);
        }
        Ok(peer)
    }

    /// Returns the number of connections that hold a permit.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns an open connection by its number.
    pub fn get(&self, id: u64) -> Option<Arc<OpenConnection>> {
        self.table.get(id)
    }

    /// Returns the first `count_max` open connections with a number above `id`, in the order of their numbers.
    pub fn after(&self, id: u64, count_max: usize) -> Vec<Arc<OpenConnection>> {
        self.table.after(id, count_max)
    }

    /// Returns the maximum number of open connections.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the initial limits.
    pub fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// Returns the number of refused connections.
    pub fn refused(&self) -> u64 {
        self.refused_by_limit().iter().map(|(_, count)| count).sum()
    }

    /// Returns the number of refused connections by the name of the limit.
    pub fn refused_by_limit(&self) -> [(&'static str, u64); Refused::NAMES.len()] {
        std::array::from_fn(|i| (Refused::NAMES[i], self.refused[i].load(Ordering::Relaxed)))
    }
}

/// Permit for one open connection. Dropping it returns the permit.
#[must_use = "the permit is released when it is dropped"]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    peer: Option<Peer>,
    entry: Arc<OpenConnection>,
}

impl ConnectionPermit {
    /// Returns the entry of the connection in the table of open ones.
    pub fn entry(&self) -> &Arc<OpenConnection> {
        &self.entry
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.table.remove(self.entry.id);
        if let Some(peer) = self.peer {
            self.connections.peers.close(peer);
        }
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Limit that a refused connection has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// All connections are in use.
    AtCapacity {
        /// Maximum number of open connections of all peers.
        connections_max: usize,
    },
    /// The peer has reached its number of connections.
    PeerAtCapacity {
        /// Maximum number of open connections of this peer.
        per_peer_max: usize,
    },
    /// The peer opens connections too fast.
    PeerTooFast {
        /// Maximum number of connections that a peer opens per second.
        opens_per_second_per_peer_max: u32,
    },
    /// The table of peers is full.
    TableFull {
        /// Maximum number of remembered peers.
        peers_max: usize,
    },
}

impl Refused {
    const NAMES: [&str; 4] = ["connections_max", "per_peer_max", "opens_per_second_per_peer_max", "peers_max"];

    fn index(self) -> usize {
        match self {
            Self::AtCapacity { .. } => 0,
            Self::PeerAtCapacity { .. } => 1,
            Self::PeerTooFast { .. } => 2,
            Self::TableFull { .. } => 3,
        }
    }

    /// Returns the name of the limit, as it is used in settings and metric labels.
    pub fn limit(self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtCapacity { connections_max: n } => write!(f, "all {n} connections are in use")?,
            Self::PeerAtCapacity { per_peer_max: n } => write!(f, "this peer has {n} connections open")?,
            Self::PeerTooFast { opens_per_second_per_peer_max: n } => {
                write!(f, "this peer opens more than {n} connections per second")?;
            }
            Self::TableFull { peers_max: n } => write!(f, "connections of {n} peers are open, which is the limit")?,
        }
        write!(f, " ({})", self.limit())
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn never_more_than_the_maximum_and_a_dropped_permit_comes_back() {
        let connections = Connections::new(ConnectionLimits::up_to(2));
        let first = connections.admit(None);
        let second = connections.admit(peer(1));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(connections.admit(peer(2)).err(), Some(Refused::AtCapacity { connections_max: 2 }));
        assert_eq!((connections.open(), connections.refused()), (2, 1));
        drop(first);
        assert!(connections.admit(peer(2)).is_ok());
        drop(second);
        assert_eq!(connections.open(), 0);
    }

    #[test]
    fn a_connection_that_its_peer_may_not_open_leaves_room_for_others() {
        let limits = ConnectionLimits { per_peer_max: 1, ..ConnectionLimits::up_to(2) };
        let connections = Connections::new(limits);
        let first = connections.admit(peer(1));
        assert_eq!(connections.admit(peer(1)).err(), Some(Refused::PeerAtCapacity { per_peer_max: 1 }));
        let second = connections.admit(peer(2));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(connections.refused_by_limit()[1], ("per_peer_max", 1));
    }

    #[test]
    fn limits_change_while_connections_are_open() {
        let connections = Connections::new(ConnectionLimits::up_to(1));
        let first = connections.admit(peer(1));
        assert_eq!(connections.admit(peer(2)).err(), Some(Refused::AtCapacity { connections_max: 1 }));
        connections.set_max(3, 1);
        let second = connections.admit(peer(2));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(connections.admit(peer(2)).err(), Some(Refused::PeerAtCapacity { per_peer_max: 1 }));
        connections.set_max(1, 1);
        assert_eq!(connections.admit(peer(3)).err(), Some(Refused::AtCapacity { connections_max: 1 }));
    }

    #[test]
    fn a_refusal_names_its_limit() {
        let all = [
            Refused::AtCapacity { connections_max: 7 },
            Refused::PeerAtCapacity { per_peer_max: 7 },
            Refused::PeerTooFast { opens_per_second_per_peer_max: 7 },
            Refused::TableFull { peers_max: 7 },
        ];
        for refused in all {
            let text = refused.to_string();
            assert!(text.contains('7') && text.ends_with(&format!("({})", refused.limit())), "{text}");
        }
    }

    #[test]
    fn threads_together_never_exceed_a_limit() {
        let limits =
            ConnectionLimits { per_peer_max: 3, opens_per_second_per_peer_max: None, ..ConnectionLimits::up_to(5) };
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let connections = Connections::new(limits);
        let held = [const { AtomicUsize::new(0) }; 3];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let connections = &connections;
                let held = &held;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let i = (thread + round) % 2;
                        let permit = connections.admit(peer(i as u8));
                        if permit.is_ok() {
                            assert!(held[i].fetch_add(1, Ordering::SeqCst) < 3);
                            assert!(held[2].fetch_add(1, Ordering::SeqCst) < 5);
                            held[2].fetch_sub(1, Ordering::SeqCst);
                            held[i].fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(connections.open(), 0);
    }
}
