//! Places of connections whose peers are not known yet.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum connections whose peers are not known yet: of all sources, and of one.
pub(crate) const HANDSHAKES_MAX: usize = 128;
pub(crate) const HANDSHAKES_OF_SOURCE_MAX: usize = 32;

/// Connections whose peers are not known yet, by their sources: addresses of IPv4, or networks of 64 bits of IPv6.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Place of a connection, until it is dropped.
pub(crate) struct Place {
    places: Places,
    source: IpAddr,
}

impl Places {
    /// Returns a place for a connection from an address; `None` if all places are taken, or those of its source.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let source = source_of(address);
        let mut places = self.0.lock();
        if places.values().sum::<usize>() >= HANDSHAKES_MAX {
            return None;
        }
        let taken = places.get(&source).copied().unwrap_or_default();
        if taken >= HANDSHAKES_OF_SOURCE_MAX {
            return None;
        }
        places.insert(source, taken + 1);
        Some(Place { places: self.clone(), source })
    }

    /// Returns the number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.0.lock().values().sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.places.0.lock();
        if let Some(taken) = places.get_mut(&self.source) {
            *taken -= 1;
            if *taken == 0 {
                places.remove(&self.source);
            }
        }
    }
}

fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> IpAddr {
        address.parse().expect("an address")
    }

    #[test]
    fn one_source_does_not_take_all_places() {
        let places = Places::default();
        let mut taken: Vec<Place> = Vec::new();
        let mut fill = |address: &dyn Fn(usize) -> IpAddr| {
            let before = taken.len();
            taken.extend((0..200).map_while(|number| places.take(address(number))));
            taken.len() - before
        };
        assert_eq!(fill(&|_| at("10.0.0.1")), HANDSHAKES_OF_SOURCE_MAX);
        assert_eq!(fill(&|_| at("::ffff:10.0.0.1")), 0, "it is the same address");
        assert_eq!(fill(&|number| at(&format!("2001:db8::{number:x}"))), HANDSHAKES_OF_SOURCE_MAX, "of one network");
        assert_eq!(fill(&|number| at(&format!("10.0.1.{number}"))), HANDSHAKES_MAX - 2 * HANDSHAKES_OF_SOURCE_MAX);
        assert_eq!(places.taken(), HANDSHAKES_MAX);
        drop(taken);
        assert_eq!(places.taken(), 0);
        assert!(places.0.lock().is_empty());
        assert!(places.take(at("10.0.0.1")).is_some());
    }
}
