//! Open connections of each peer and the rate at which it opens them: a table of bounded size, divided into parts with
//! separate locks.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::connections::{ConnectionLimits, Refused};
use super::sync::Padded;

/// Number of peers up to which the table is not divided, and the maximum number of parts.
const UNDIVIDED_PEERS: usize = 1024;
const PARTS_MAX: usize = 16;

const SECOND_NS: u64 = 1_000_000_000;

/// Identity of a peer. An IPv6 network of 64 bits usually belongs to one customer, so it is one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    V4(u32),
    V6(u64),
}

impl Peer {
    /// Returns `true` if the peer is this machine.
    fn is_local(self) -> bool {
        match self {
            Self::V4(address) => address >> 24 == 127,
            // The loopback address is the only source address in this network.
            Self::V6(network) => network == 0,
        }
    }
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

pub struct Peers {
    /// Parts of the table; their number is a power of two.
    parts: Box<[Padded<Mutex<Part>>]>,
    hasher: RandomState,
    limits: ConnectionLimits,
    per_peer_max: AtomicUsize,
    per_remote_peer_max: AtomicUsize,
    part_peers_max: usize,
    /// Nanoseconds of a peer's second that one connection uses.
    open_ns: u64,
}

#[derive(Default)]
struct Part {
    peers: HashMap<Peer, Usage, RandomState>,
    /// Time before which a sweep would find too few idle peers to be worthwhile.
    next_sweep_ns: u64,
}

/// Usage of a peer. A peer without open connections and with a full second left can be forgotten.
#[derive(Clone, Copy, Default)]
struct Usage {
    open: usize,
    /// Time at which the peer has its full second again. Each connection moves it on by `open_ns`, and if it would be
    /// more than a second away, the peer is too fast: a token bucket in one number.
    whole_at_ns: u64,
}

impl Usage {
    fn is_idle(&self, now_ns: u64) -> bool {
        self.open == 0 && self.whole_at_ns <= now_ns
    }
}

impl Peers {
    pub fn new(limits: &ConnectionLimits) -> Self {
        let parts = (limits.peers_max / UNDIVIDED_PEERS).clamp(1, PARTS_MAX).next_power_of_two();
        Self {
            parts: (0..parts).map(|_| Padded::default()).collect(),
            hasher: RandomState::default(),
            limits: *limits,
            per_peer_max: AtomicUsize::new(limits.per_peer_max),
            per_remote_peer_max: AtomicUsize::new(limits.per_remote_peer_max.min(limits.per_peer_max)),
            part_peers_max: limits.peers_max / parts,
            open_ns: limits.opens_per_second_per_peer_max.map_or(0, |max| SECOND_NS / u64::from(max.get())),
        }
    }

    pub fn set_per_peer_max(&self, max: usize) {
        self.per_peer_max.store(max, Ordering::Relaxed);
        let is_first = max == self.limits.per_peer_max;
        let remote_max = if is_first { self.limits.per_remote_peer_max.min(max) } else { max };
        self.per_remote_peer_max.store(remote_max, Ordering::Relaxed);
    }

    /// Counts one more connection of the peer.
    pub fn open(&self, peer: Peer) -> Result<(), Refused> {
        self.open_at(peer, now_ns())
    }

    fn open_at(&self, peer: Peer, now_ns: u64) -> Result<(), Refused> {
        let mut part = self.part(peer).lock();
        if part.peers.len() >= self.part_peers_max && !part.peers.contains_key(&peer) {
            part.sweep(now_ns);
            if part.peers.len() >= self.part_peers_max {
                return Err(Refused::TableFull { peers_max: self.limits.peers_max });
            }
        }
        let usage = part.peers.entry(peer).or_default();
        let per_peer_max = if peer.is_local() {
            self.per_peer_max.load(Ordering::Relaxed)
        } else {
            self.per_remote_peer_max.load(Ordering::Relaxed)
        };
        if usage.open >= per_peer_max {
            return Err(Refused::PeerAtCapacity { per_peer_max });
        }
        let whole_at_ns = usage.whole_at_ns.max(now_ns) + self.open_ns;
        if let Some(max) = self.limits.opens_per_second_per_peer_max
            && whole_at_ns > now_ns + SECOND_NS
        {
            return Err(Refused::PeerTooFast { opens_per_second_per_peer_max: max.get() });
        }
        *usage = Usage { open: usage.open + 1, whole_at_ns };
        Ok(())
    }

    /// Counts one connection less. The peer is forgotten only when its place is needed.
    pub fn close(&self, peer: Peer) {
        if let Some(usage) = self.part(peer).lock().peers.get_mut(&peer) {
            usage.open -= 1;
        }
    }

    fn part(&self, peer: Peer) -> &Mutex<Part> {
        let i = self.hasher.hash_one(peer) as usize & (self.parts.len() - 1);
        &self.parts[i].0
    }
}

impl Part {
    /// Forgets idle peers. It visits all peers, so it runs at most once per second.
    fn sweep(&mut self, now_ns: u64) {
        if now_ns >= self.next_sweep_ns {
            self.next_sweep_ns = now_ns + SECOND_NS;
            self.peers.retain(|_, usage| !usage.is_idle(now_ns));
        }
    }
}

/// Returns the time since a fixed moment, as coarse as a tick of the kernel, at a fifth of the cost of a precise clock.
#[cfg(target_os = "linux")]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * SECOND_NS + now.tv_nsec as u64
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn now_ns() -> u64 {
    static BEGIN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    BEGIN.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn limits(per_peer_max: usize, opens_per_second_max: u32, peers_max: usize) -> ConnectionLimits {
        let opens_per_second_per_peer_max = NonZeroU32::new(opens_per_second_max);
        let per_remote_peer_max = per_peer_max;
        ConnectionLimits {
            connections_max: 100,
            per_peer_max,
            per_remote_peer_max,
            opens_per_second_per_peer_max,
            peers_max,
        }
    }

    fn peer(address: &str) -> Peer {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn one_customer_is_one_peer_however_the_address_is_written() {
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_ne!(peer("::1"), peer("0.0.0.0"));
    }

    #[test]
    fn other_machines_have_a_limit_of_their_own_until_one_is_set_for_all() {
        let peers = Peers::new(&ConnectionLimits { per_remote_peer_max: 1, ..limits(3, 100, 10) });
        let open = |from: &str| peers.open_at(peer(from), 5 * SECOND_NS).is_ok();
        assert_eq!((0..5).filter(|_| open("127.0.0.1")).count(), 3);
        assert_eq!((0..5).filter(|_| open("::1")).count(), 3);
        assert_eq!((0..5).filter(|_| open("192.0.2.1")).count(), 1);
        peers.set_per_peer_max(2);
        assert_eq!((0..5).filter(|_| open("192.0.2.1")).count(), 1);
        peers.set_per_peer_max(3);
        assert!(!open("192.0.2.1"), "as it was");
    }

    #[test]
    fn a_peer_opens_a_seconds_worth_at_once_and_then_as_time_passes() {
        let peers = Peers::new(&limits(100, 4, 10));
        let open = |at_ms: u64| peers.open_at(Peer::V4(1), at_ms * 1_000_000).is_ok();
        assert!((0..4).all(|_| open(5_000)));
        assert!(!open(5_000) && !open(5_249));
        assert!(open(5_250) && !open(5_250));
        assert_eq!((0..9).filter(|_| open(60_000)).count(), 4, "a long pause gives no more than a second's worth");
        assert!(peers.open_at(Peer::V4(2), 60_000_000_000).is_ok(), "another peer");
    }

    #[test]
    fn a_full_table_forgets_idle_peers_and_refuses_new_ones() {
        let peers = Peers::new(&limits(100, 10, 2));
        let open = |peer, at_s: u64| peers.open_at(Peer::V4(peer), at_s * SECOND_NS);
        let full = Err(Refused::TableFull { peers_max: 2 });
        assert_eq!((open(1, 5), open(2, 5)), (Ok(()), Ok(())));
        peers.close(Peer::V4(1));
        assert_eq!(open(3, 5), full, "the first was there a moment ago");
        assert_eq!(open(2, 5), Ok(()), "who is known");
        assert_eq!(open(3, 6), Ok(()));
        assert_eq!(open(1, 7), full, "two have connections open");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open { peer: u32 },
        Close { peer: u32 },
        Wait { ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..6u32).prop_map(|peer| Step::Open { peer }),
            2 => (0..6u32).prop_map(|peer| Step::Close { peer }),
            1 => (0..1500u64).prop_map(|ms| Step::Wait { ms }),
        ]
    }

    fn config() -> ProptestConfig {
        let cases = if cfg!(miri) { 4 } else { 256 };
        ProptestConfig { cases, failure_persistence: None, ..Default::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Reference implementation of a peer's bucket: tokens that return with time.
        #[test]
        fn agrees_with_counts_and_buckets_of_every_peer(steps in prop::collection::vec(step(), 1..200)) {
            const PER_PEER_MAX: usize = 3;
            const PER_SECOND_MAX: u64 = 5;
            const PEERS_MAX: usize = 4;
            let peers = Peers::new(&limits(PER_PEER_MAX, PER_SECOND_MAX as u32, PEERS_MAX));
            let mut now_ns = SECOND_NS;
            let mut open = [0; 6];
            let mut tokens_ns = [SECOND_NS; 6];
            for step in steps {
                match step {
                    Step::Open { peer } => {
                        let i = peer as usize;
                        let is_new = open[i] == 0 && tokens_ns[i] == SECOND_NS;
                        let known = (0..6).filter(|i| open[*i] > 0 || tokens_ns[*i] < SECOND_NS).count();
                        let opened = peers.open_at(Peer::V4(peer), now_ns);
                        match opened {
                            Ok(()) => {
                                prop_assert!(open[i] < PER_PEER_MAX && tokens_ns[i] >= SECOND_NS / PER_SECOND_MAX);
                                prop_assert!(!is_new || known < PEERS_MAX);
                                open[i] += 1;
                                tokens_ns[i] -= SECOND_NS / PER_SECOND_MAX;
                            }
                            Err(Refused::PeerAtCapacity { .. }) => prop_assert_eq!(open[i], PER_PEER_MAX),
                            Err(Refused::PeerTooFast { .. }) => {
                                prop_assert!(tokens_ns[i] < SECOND_NS / PER_SECOND_MAX);
                            }
                            // The table may remember a peer for up to a second longer than necessary.
                            Err(refused) => prop_assert!(is_new, "{refused}"),
                        }
                    }
                    Step::Close { peer } if open[peer as usize] > 0 => {
                        peers.close(Peer::V4(peer));
                        open[peer as usize] -= 1;
                    }
                    Step::Close { .. } => {}
                    Step::Wait { ms } => {
                        now_ns += ms * 1_000_000;
                        tokens_ns = tokens_ns.map(|tokens| (tokens + ms * 1_000_000).min(SECOND_NS));
                    }
                }
                prop_assert!(peers.parts.iter().map(|part| part.0.lock().peers.len()).sum::<usize>() <= PEERS_MAX);
            }
        }
    }
}
