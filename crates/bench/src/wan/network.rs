//! Links between sites: which packets arrive, and when. No clock and no socket.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Bytes that wait for a link of limited bandwidth, by default: 50 ms at 100 Mbit/s.
const QUEUE_BYTES: usize = 640 << 10;

/// One direction between two sites.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Time from the last bit of a packet on the link to its arrival.
    pub delay: Duration,
    /// Probability with which a packet is lost.
    pub loss: f64,
    /// Bandwidth; `None` if it is unlimited.
    pub bits_per_s: Option<u64>,
    /// Maximum bytes that wait for the bandwidth. A packet that finds no room is dropped.
    pub queue_bytes: usize,
    /// `true` if nothing arrives, including packets that were in flight when the link was cut.
    pub is_cut: bool,
}

impl Link {
    /// Returns a link that only delays.
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, loss: 0.0, bits_per_s: None, queue_bytes: QUEUE_BYTES, is_cut: false }
    }
}

/// Packets of a link since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub arrived: u64,
    pub lost: u64,
    /// Packets that found the queue of the link full.
    pub overflowed: u64,
    /// Packets that were on the link while it was cut.
    pub cut: u64,
}

/// Packet that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival {
    pub from: usize,
    pub to: usize,
    /// Time at which it was due.
    pub due: Duration,
    pub packet: Vec<u8>,
}

/// Links between all sites, and the packets on them. Times are since any fixed point, and never go back.
pub struct Network {
    sites: usize,
    /// Link from site `a` to site `b` at `a * sites + b`.
    links: Vec<Direction>,
    in_flight: BinaryHeap<Reverse<Flight>>,
    /// Number of packets that were sent, which orders those that are due at the same time.
    sent: u64,
}

struct Direction {
    link: Link,
    counts: Counts,
    /// State of the generator that decides which packets are lost.
    random: u64,
    /// Time at which all packets that were sent so far have left the queue.
    idle_from: Duration,
    /// Time at which the last packet is due. A later one is never due before it: links keep the order.
    last_due: Duration,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    due: Duration,
    number: u64,
    from: usize,
    to: usize,
    packet: Vec<u8>,
}

impl Network {
    /// Creates a network whose links are equal. The seed decides which packets are lost.
    pub fn new(sites: usize, link: &Link, seed: u64) -> Self {
        let direction = |at: usize| Direction {
            link: link.clone(),
            counts: Counts::default(),
            random: seed.wrapping_add((at as u64) << 32),
            idle_from: Duration::ZERO,
            last_due: Duration::ZERO,
        };
        Self { sites, links: (0..sites * sites).map(direction).collect(), in_flight: BinaryHeap::new(), sent: 0 }
    }

    pub fn sites(&self) -> usize {
        self.sites
    }

    /// Returns the link from one site to another one, to be read or changed. Packets in flight keep their times.
    ///
    /// # Panics
    ///
    /// Panics if there is no such site.
    pub fn link_mut(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.direction(from, to).link
    }

    pub fn counts(&self, from: usize, to: usize) -> Counts {
        self.links[from * self.sites + to].counts
    }

    fn direction(&mut self, from: usize, to: usize) -> &mut Direction {
        assert!(from < self.sites && to < self.sites, "no link from {from} to {to}: there are {} sites", self.sites);
        &mut self.links[from * self.sites + to]
    }

    /// Puts a packet on a link. Returns `false` if it was dropped.
    pub fn send(&mut self, now: Duration, from: usize, to: usize, packet: &[u8]) -> bool {
        let Some(due) = self.direction(from, to).admit(now, packet.len()) else { return false };
        self.in_flight.push(Reverse(Flight { due, number: self.sent, from, to, packet: packet.to_vec() }));
        self.sent += 1;
        true
    }

    /// Returns the time at which the next packet is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.in_flight.peek().map(|Reverse(flight)| flight.due)
    }

    /// Returns a packet that is due.
    pub fn arrive(&mut self, now: Duration) -> Option<Arrival> {
        while self.next_due().is_some_and(|due| due <= now) {
            let Reverse(Flight { due, from, to, packet, .. }) = self.in_flight.pop()?;
            let direction = self.direction(from, to);
            if direction.link.is_cut {
                direction.counts.cut += 1;
                continue;
            }
            direction.counts.arrived += 1;
            return Some(Arrival { from, to, due, packet });
        }
        None
    }
}

impl Direction {
    /// Returns the time at which a packet is due, or `None` if it is dropped.
    fn admit(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        if self.link.is_cut {
            self.counts.cut += 1;
            return None;
        }
        let mut sent = now;
        if let Some(bits_per_s) = self.link.bits_per_s {
            let bits_per_s = bits_per_s.max(1) as f64;
            let begin = self.idle_from.max(now);
            let waiting_bytes = (begin - now).as_secs_f64() * bits_per_s / 8.0;
            if waiting_bytes + bytes as f64 > self.link.queue_bytes as f64 {
                self.counts.overflowed += 1;
                return None;
            }
            sent = begin + Duration::from_secs_f64(bytes as f64 * 8.0 / bits_per_s);
            self.idle_from = sent;
        }
        // A packet that is lost has used the bandwidth.
        if self.next_random() < self.link.loss {
            self.counts.lost += 1;
            return None;
        }
        self.last_due = self.last_due.max(sent + self.link.delay);
        Some(self.last_due)
    }

    /// Returns a number from 0 to below 1, by SplitMix64.
    fn next_random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the destination of a packet. Packets other than those of IPv4 have none here.
pub fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let version = packet.first()? >> 4;
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (version == 4).then(|| Ipv4Addr::from(address))
}
