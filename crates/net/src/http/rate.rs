//! Rate limit of requests per client, in memory that does not grow with the number of clients.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;

/// Number of sets of clients, and number of places per set.
const SETS: usize = 1024;
const PLACES: usize = 16;

/// Request rate of each client. A client may use up to one second's requests in a burst.
pub(super) struct Rates {
    /// Nanoseconds between two requests.
    pause: u64,
    /// Nanoseconds by which a client may be ahead of that rate.
    ahead_max: u64,
    hasher: RandomState,
    sets: Box<[Mutex<[Place; PLACES]>]>,
}

/// State of a client. A client that was silent for a second is as good as forgotten: its place may be used again.
#[derive(Clone, Copy, Default)]
struct Place {
    client: u128,
    /// Time in nanoseconds at which the client has waited for all requests that it made.
    even_at: u64,
}

impl Rates {
    pub fn new(per_second: NonZeroU32) -> Self {
        let pause = (1_000_000_000 / u64::from(per_second.get())).max(1);
        let sets = (0..SETS).map(|_| Mutex::default()).collect();
        Self { pause, ahead_max: 1_000_000_000 - pause, hasher: RandomState::new(), sets }
    }

    /// Returns `true` if this client may make a request now. `now` is the time since a fixed moment.
    pub fn allow(&self, client: IpAddr, now: Duration) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let client = key(client);
        let mut set = self.sets[self.hasher.hash_one(client) as usize % SETS].lock();
        let own = set.iter().position(|place| place.client == client && place.even_at > now);
        // Otherwise the place with the least debt: an additional new client displaces the state of another.
        let place = own.or_else(|| (0..PLACES).min_by_key(|i| set[*i].even_at)).unwrap_or_default();
        let place = &mut set[place];
        if own.is_none() {
            *place = Place { client, even_at: now };
        }
        if place.even_at - now > self.ahead_max {
            return false;
        }
        place.even_at += self.pause;
        true
    }
}

/// Returns the key of a client. An IPv6 client owns a whole /64 network, so it is identified by the first 64 bits.
fn key(client: IpAddr) -> u128 {
    match client.to_canonical() {
        IpAddr::V4(client) => client.to_ipv6_mapped().to_bits(),
        IpAddr::V6(client) => client.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(per_second: u32) -> Rates {
        Rates::new(NonZeroU32::new(per_second).expect("not zero"))
    }

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn a_second_is_saved_up_and_no_more() {
        let rates = rates(10);
        for at in [Duration::ZERO, Duration::from_secs(100)] {
            let allowed = (0..50).filter(|_| rates.allow(ip(1), at)).count();
            assert_eq!(allowed, 10);
            assert!(rates.allow(ip(2), at), "another client is not concerned");
            assert!(!rates.allow(ip(1), at + Duration::from_millis(99)));
            assert!(rates.allow(ip(1), at + Duration::from_millis(100)));
            assert!(!rates.allow(ip(1), at + Duration::from_millis(101)));
        }
        let one = self::rates(1);
        assert!(one.allow(ip(1), Duration::ZERO) && !one.allow(ip(1), Duration::from_millis(999)));
        assert!(one.allow(ip(1), Duration::from_secs(1)));
    }

    #[test]
    fn over_time_a_client_gets_its_rate() {
        let rates = rates(7);
        let allowed = (0..100_000).filter(|i| rates.allow(ip(1), Duration::from_millis(*i))).count();
        assert!((700..=707).contains(&allowed), "{allowed}");
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let rates = rates(1);
        let v6 = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(rates.allow(v6("2001:db8::1"), Duration::ZERO));
        assert!(!rates.allow(v6("2001:db8::2"), Duration::ZERO));
        assert!(rates.allow(v6("2001:db8:0:1::1"), Duration::ZERO));
        assert!(rates.allow(v6("::ffff:1.2.3.4"), Duration::ZERO));
        assert!(!rates.allow(v6("1.2.3.4"), Duration::ZERO));
    }

    #[test]
    fn clients_beyond_the_capacity_of_the_table_are_served() {
        let rates = rates(1);
        assert!((0..(SETS * PLACES * 4) as u32).all(|n| rates.allow(ip(n), Duration::ZERO)));
    }
}
