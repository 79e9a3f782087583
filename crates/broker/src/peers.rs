//! Limits per peer: on creations per minute by the clients of one address, and on subscriptions that make publishers
//! wait.
//!
//! Every creation is attributed to the client for whom the thread works ([`acting`]). The broker's own work has no such
//! limit.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::acting;
use crate::metrics::{Counter, Exposition};

/// Time window in which creations are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum addresses whose creations are counted. If this many are active within a minute, others are refused.
const PEERS_MAX: usize = 16_384;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Factor by which the default limits are higher for addresses of this machine: test suites create thousands of topics
/// per minute, and a client that reaches a loopback address is one of the machine's own users.
const LOCAL_FACTOR: u32 = 64;

/// A kind of object that peers create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    Topic,
    Group,
    Queue,
    Cache,
    Channel,
}

impl Created {
    const ALL: [Self; 5] = [Self::Topic, Self::Group, Self::Queue, Self::Cache, Self::Channel];

    fn name(self) -> &'static str {
        match self {
            Self::Topic => "topics",
            Self::Group => "groups",
            Self::Queue => "queues",
            Self::Cache => "caches",
            Self::Channel => "channels",
        }
    }

    /// Returns the default number that an address of another machine may create per minute.
    fn default_max(self) -> u32 {
        match self {
            Self::Topic | Self::Queue => 1000,
            Self::Group | Self::Channel => 250,
            Self::Cache => 15,
        }
    }
}

/// Limits of each peer.
#[derive(Clone, Debug)]
pub struct PeerLimits {
    /// Topics, groups, queues, caches and channels that one address may create per minute; 0 is the default, which is
    /// larger for addresses of this machine.
    pub topics_per_minute: u32,
    pub groups_per_minute: u32,
    pub queues_per_minute: u32,
    pub caches_per_minute: u32,
    pub channels_per_minute: u32,
    /// Networks whose subscriptions may make publishers wait.
    pub may_block: Networks,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            topics_per_minute: 0,
            groups_per_minute: 0,
            queues_per_minute: 0,
            caches_per_minute: 0,
            channels_per_minute: 0,
            may_block: Networks::local(),
        }
    }
}

impl PeerLimits {
    fn max(&self, kind: Created, address: IpAddr) -> u32 {
        let set = match kind {
            Created::Topic => self.topics_per_minute,
            Created::Group => self.groups_per_minute,
            Created::Queue => self.queues_per_minute,
            Created::Cache => self.caches_per_minute,
            Created::Channel => self.channels_per_minute,
        };
        match set {
            0 if address.to_canonical().is_loopback() => kind.default_max() * LOCAL_FACTOR,
            0 => kind.default_max(),
            set => set,
        }
    }
}

/// Networks, each an address with the number of its significant bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<(IpAddr, u32)>);

impl Networks {
    /// Returns the loopback networks.
    pub fn local() -> Self {
        Self(vec![([127, 0, 0, 0].into(), 8), ([0, 0, 0, 0, 0, 0, 0, 1].into(), 128)])
    }

    /// Parses a comma-separated list of addresses and networks, such as `192.0.2.7,10.0.0.0/8`.
    pub fn parse(text: &str) -> Result<Self> {
        let one = |written: &str| {
            let wrong = |why: String| Error::invalid(format!("'{written}': {why}; write an address or network/bits"));
            let (address, bits) = written.split_once('/').map_or((written, None), |(at, bits)| (at, Some(bits)));
            let address: IpAddr = address.trim().parse().map_err(|error| wrong(format!("{error}")))?;
            let all = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(all), |bits| bits.trim().parse().map_err(|error| wrong(format!("{error}"))))?;
            if bits > all { Err(wrong(format!("there are {all} bits"))) } else { Ok((address, bits)) }
        };
        text.split(',').map(str::trim).filter(|written| !written.is_empty()).map(one).collect::<Result<_>>().map(Self)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(network, bits)| match (network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()).checked_shr(32 - bits).unwrap_or_default() == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()).checked_shr(128 - bits).unwrap_or_default() == 0
            }
            _ => false,
        })
    }
}

/// Creations of each address in its last minute.
pub(crate) struct Peers {
    limits: PeerLimits,
    windows: Mutex<Windows>,
    refused: [Counter; Created::ALL.len()],
    refused_blocking: Counter,
}

/// A peer as it is counted: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Peer {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

#[derive(Default)]
struct Windows {
    all: HashMap<Peer, Window, foldhash::fast::RandomState>,
    /// Time of the last removal of expired windows, which visits all of them.
    swept: Option<Instant>,
}

/// Creations since the window began. It ends after a minute.
struct Window {
    began: Instant,
    created: [u32; Created::ALL.len()],
}

impl Peers {
    pub(crate) fn new(limits: PeerLimits) -> Self {
        Self { limits, windows: Mutex::default(), refused: Default::default(), refused_blocking: Counter::default() }
    }

    /// Counts an object that is about to be created for the peer of this thread. Refuses it above the peer's limit.
    pub(crate) fn admit(&self, kind: Created) -> Result<()> {
        match acting::address() {
            Some(address) => self.admit_at(kind, address, Instant::now()),
            None => Ok(()),
        }
    }

    fn admit_at(&self, kind: Created, address: IpAddr, now: Instant) -> Result<()> {
        let max = self.limits.max(kind, address);
        let refused = |left: Duration, message: String| {
            self.refused[kind as usize].add(1);
            Err(Error::throttled(message, u32::try_from(left.as_millis()).unwrap_or(u32::MAX)))
        };
        let peer = Peer::from(address);
        let mut windows = self.windows.lock();
        if windows.all.len() >= PEERS_MAX && !windows.all.contains_key(&peer) {
            if windows.swept.is_none_or(|swept| now.duration_since(swept) >= SWEEP_EVERY) {
                windows.swept = Some(now);
                windows.all.retain(|_, window| now.duration_since(window.began) < WINDOW);
            }
            if windows.all.len() >= PEERS_MAX {
                let message = format!("{PEERS_MAX} addresses have created something within a minute: try again later");
                return refused(WINDOW, message);
            }
        }
        let window = windows.all.entry(peer).or_insert(Window { began: now, created: Default::default() });
        let age = now.duration_since(window.began);
        if age >= WINDOW {
            *window = Window { began: now, created: Default::default() };
        }
        let created = &mut window.created[kind as usize];
        if *created >= max {
            let what = kind.name();
            let left = WINDOW.saturating_sub(age);
            let message = format!(
                "{address} has created {max} {what} within a minute, which is the limit of one address: wait {} s, or \
                 raise peer_{what}_per_minute",
                left.as_secs().max(1)
            );
            return refused(left, message);
        }
        *created += 1;
        Ok(())
    }

    /// Refuses a subscription that would make publishers wait, unless the peer is permitted to do so.
    pub(crate) fn admit_blocking(&self) -> Result<()> {
        match acting::address() {
            Some(address) if !self.limits.may_block.contains(address) => {
                self.refused_blocking.add(1);
                Err(Error::new(
                    ErrorKind::Denied,
                    format!(
                        "{address} may not subscribe with the overflow policy block, which makes publishers wait: \
                         choose replay, drop_new, drop_old or disconnect_slow, or add it to overflow_block_allow"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let rows: Vec<_> =
            Created::ALL.iter().map(|kind| (kind.name().to_owned(), self.refused[*kind as usize].get())).collect();
        let help = "Creations refused by a limit per address and minute";
        out.counters("thalweg_peer_creations_refused", help, "kind", &rows)?;
        let help = "Subscriptions with overflow = block refused because their address is not in overflow_block_allow";
        out.counter("thalweg_peer_blocking_refused", help, self.refused_blocking.get())?;
        let peers = self.windows.lock().all.len() as u64;
        out.gauge("thalweg_peers_counted", "Addresses whose creations in the last minute are counted", peers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acting::{Acting, for_client};
    use crate::doors::Door;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_creates_so_much_in_a_minute_and_others_are_not_held_to_it() {
        let peers = Peers::new(PeerLimits { caches_per_minute: 2, ..PeerLimits::default() });
        let begin = Instant::now();
        let create = |kind, from: &str, after: Duration| peers.admit_at(kind, address(from), begin + after);
        let soon = Duration::from_secs(20);
        assert!(create(Created::Cache, "192.0.2.1", Duration::ZERO).is_ok());
        assert!(create(Created::Cache, "::ffff:192.0.2.1", soon).is_ok());
        let refused = create(Created::Cache, "192.0.2.1", soon).expect_err("too many");
        assert!(refused.is_throttled() && refused.retry_after_ms == 40_000, "{refused:?}");
        assert!(refused.message.contains("peer_caches_per_minute") && refused.message.contains("wait 40 s"));
        assert!(create(Created::Cache, "192.0.2.2", soon).is_ok() && create(Created::Topic, "192.0.2.1", soon).is_ok());
        assert!(create(Created::Cache, "192.0.2.1", WINDOW).is_ok());
    }

    #[test]
    fn addresses_of_this_machine_create_more_where_nothing_is_set() {
        let limits = PeerLimits { topics_per_minute: 7, ..PeerLimits::default() };
        let of = |kind, from: &str| limits.max(kind, address(from));
        assert_eq!((of(Created::Topic, "127.0.0.1"), of(Created::Topic, "192.0.2.1")), (7, 7));
        assert_eq!((of(Created::Queue, "127.0.0.1"), of(Created::Queue, "::1")), (64_000, 64_000));
        assert_eq!((of(Created::Queue, "192.0.2.1"), of(Created::Queue, "::ffff:127.0.0.2")), (1000, 64_000));
        assert_eq!((of(Created::Cache, "127.0.0.1"), of(Created::Group, "2001:db8::1")), (960, 250));
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let peers = Peers::new(PeerLimits::default());
        let begin = Instant::now();
        let create =
            |n: u32, after| peers.admit_at(Created::Topic, std::net::Ipv4Addr::from_bits(n).into(), begin + after);
        (0..PEERS_MAX as u32).for_each(|n| create(n, Duration::ZERO).expect("room"));
        assert!(create(PEERS_MAX as u32, Duration::ZERO).expect_err("full").is_throttled());
        assert!(create(0, Duration::ZERO).is_ok(), "who is known");
        assert!(create(PEERS_MAX as u32, WINDOW).is_ok());
        assert_eq!(peers.windows.lock().all.len(), 1);
    }

    #[test]
    fn networks_are_read_and_contain_their_addresses() {
        let networks = Networks::parse("10.0.0.0/8, 192.0.2.7,2001:db8::/32").expect("networks");
        for (written, is_in) in [
            ("10.200.3.4", true),
            ("11.0.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8:5::1", true),
            ("::1", false),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(networks.contains(address(written)), is_in, "{written}");
        }
        assert!(Networks::parse("0.0.0.0/0").expect("all").contains(address("203.0.113.9")));
        assert!(Networks::local().contains(address("::1")) && !Networks::local().contains(address("::2")));
        assert!(!Networks::parse("").expect("none").contains(address("127.0.0.1")));
        for wrong in ["10.0.0.0/33", "localhost", "10.0.0.0/x"] {
            assert!(Networks::parse(wrong).expect_err("wrong").message.contains(wrong));
        }
    }

    fn client(from: &str) -> Acting {
        Acting::anonymous(Door::Http, Some(address(from)))
    }

    #[tokio::test]
    async fn work_for_a_peer_is_counted_for_it_and_nothing_else_is() {
        let peers = Peers::new(PeerLimits { groups_per_minute: 1, ..PeerLimits::default() });
        let create = async || {
            tokio::task::yield_now().await;
            peers.admit(Created::Group)
        };
        let of = |from: &str| for_client(client(from), create());
        let (first, other, second) = tokio::join!(of("192.0.2.1"), of("192.0.2.2"), of("192.0.2.1"));
        let refused: Vec<Error> = [first, second].into_iter().filter_map(Result::err).collect();
        assert!(other.is_ok() && refused.len() == 1 && refused[0].is_throttled(), "{refused:?}");
        assert!(create().await.is_ok() && create().await.is_ok(), "the broker itself");
        let blocking = for_client(client("192.0.2.1"), async { peers.admit_blocking() }).await;
        assert_eq!(blocking.expect_err("another machine").kind, ErrorKind::Denied);
        assert!(peers.admit_blocking().is_ok());
    }
}
