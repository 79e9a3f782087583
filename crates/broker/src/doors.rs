//! The addresses of the doors of this process: a door that receives the protocol of another one names its address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;

use crate::metrics::Exposition;

/// A protocol on a port of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Native,
    Http,
    Kafka,
    Pubsub,
    Redis,
    Sqs,
}

impl Door {
    pub const ALL: [Self; 6] = [Self::Native, Self::Http, Self::Kafka, Self::Pubsub, Self::Redis, Self::Sqs];

    /// Returns the configuration key of the door's address.
    pub fn key(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Http => "http",
            Self::Kafka => "kafka",
            Self::Pubsub => "pubsub",
            Self::Redis => "redis",
            Self::Sqs => "sqs",
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Http => "HTTP",
            Self::Kafka => "Kafka",
            Self::Pubsub => "Pub/Sub",
            Self::Redis => "Redis",
            Self::Sqs => "SQS",
        })
    }
}

/// Bound addresses of the open doors. Each is set once, when its door opens.
#[derive(Debug, Default)]
pub struct Doors([OnceLock<SocketAddr>; Door::ALL.len()]);

impl Doors {
    /// Records the address of a door. Later calls for the same door have no effect.
    pub fn opened(&self, door: Door, address: SocketAddr) {
        self.0[door as usize].get_or_init(|| address);
    }

    /// Returns the address to which a door is bound; `None` if the door is closed.
    pub fn address(&self, door: Door) -> Option<SocketAddr> {
        self.0[door as usize].get().copied()
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let open = Door::ALL.into_iter().filter_map(|door| Some((door, self.address(door)?)));
        let rows: Vec<[String; 2]> = open.map(|(door, at)| [door.key().to_owned(), at.to_string()]).collect();
        out.facts("thalweg_door", "Open doors with their listening addresses", ["door", "address"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_has_the_address_that_it_was_opened_with() {
        let doors = Doors::default();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        doors.opened(Door::Kafka, address(9092));
        doors.opened(Door::Kafka, address(1));
        assert_eq!(doors.address(Door::Kafka), Some(address(9092)));
        assert_eq!(doors.address(Door::Http), None);
        for (at, door) in Door::ALL.into_iter().enumerate() {
            assert_eq!(door as usize, at);
        }
    }
}
