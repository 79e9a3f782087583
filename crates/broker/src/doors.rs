//! The addresses of the doors of this process: a door that receives the protocol of another one names its address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;

use engine::{Error, Result};

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

/// Facts about a door.
struct Row {
    door: Door,
    key: &'static str,
    name: &'static str,
    protocol: &'static str,
    family: Family,
    transports: &'static str,
    scheme: Option<&'static str>,
}

/// Form of the messages of a protocol. Doors of one family can answer each other's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Frames of the native protocol.
    Native,
    /// Frames of Kafka's protocol.
    Kafka,
    /// RESP, the protocol of Redis.
    Resp,
    /// HTTP requests, also of gRPC.
    Http,
}

const ROWS: [Row; 6] = [
    Row {
        door: Door::Native,
        key: "native",
        name: "native",
        protocol: "Thalweg's native protocol",
        family: Family::Native,
        transports: "QUIC and TCP",
        scheme: None,
    },
    Row {
        door: Door::Http,
        key: "http",
        name: "HTTP",
        protocol: "HTTP",
        family: Family::Http,
        transports: "HTTP",
        scheme: Some("http"),
    },
    Row {
        door: Door::Kafka,
        key: "kafka",
        name: "Kafka",
        protocol: "Kafka's protocol",
        family: Family::Kafka,
        transports: "TCP",
        scheme: None,
    },
    Row {
        door: Door::Pubsub,
        key: "pubsub",
        name: "Pub/Sub",
        protocol: "the protocol of Google Pub/Sub",
        family: Family::Http,
        transports: "gRPC and REST",
        scheme: None,
    },
    Row {
        door: Door::Redis,
        key: "redis",
        name: "Redis",
        protocol: "Redis's protocol",
        family: Family::Resp,
        transports: "TCP",
        scheme: Some("redis"),
    },
    Row {
        door: Door::Sqs,
        key: "sqs",
        name: "SQS",
        protocol: "the protocol of Amazon SQS",
        family: Family::Http,
        transports: "HTTP",
        scheme: Some("http"),
    },
];

impl Door {
    pub const ALL: [Self; ROWS.len()] = {
        let mut all = [Self::Native; ROWS.len()];
        let mut at = 0;
        while at < ROWS.len() {
            assert!(ROWS[at].door as usize == at, "the rows are in the order of the variants");
            all[at] = ROWS[at].door;
            at += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the configuration key of the door's address, which is also its option on the command line.
    pub fn key(self) -> &'static str {
        self.row().key
    }

    /// Returns the door with this key.
    pub fn of_key(key: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|door| door.key() == key);
        let known = || Self::ALL.map(Self::key).join(", ");
        found.ok_or_else(|| Error::invalid(format!("there is no door '{key}': choose one of {}", known())))
    }

    /// Returns the name of the protocol in a sentence.
    pub fn protocol(self) -> &'static str {
        self.row().protocol
    }

    pub fn family(self) -> Family {
        self.row().family
    }

    /// Returns the protocols below the door's own one, for people.
    pub fn transports(self) -> &'static str {
        self.row().transports
    }

    /// Returns the scheme of the URLs that its clients use; `None` if they use host and port.
    pub fn scheme(self) -> Option<&'static str> {
        self.row().scheme
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
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
    }
}
