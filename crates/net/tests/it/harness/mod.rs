//! Test protocol, a handler that executes scripted requests, and a server for them on every kind of listener.

pub mod framed;
pub mod handler;
pub mod peer;
pub mod stand;
pub mod world;

use std::time::Duration;

pub use framed::{Framed, ServerFrame};
pub use peer::Peer;
pub use stand::{Fixture, Way};
pub use world::World;

/// Time limit that only a hanging test reaches.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("this hangs: {what}"),
    }
}

/// Waits until the condition is true, by polling it.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(what, wait).await;
}

/// Returns the same bytes for the same seed and length, without a pattern that a lost or duplicated piece could
/// preserve.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next());
    }
    bytes.truncate(len);
    bytes
}

/// Runs each test once for every kind of listener, in a module with the name of the listener.
macro_rules! over_every_transport {
    ($($name:ident),* $(,)?) => {
        over_every_transport!(@ tcp Tcp $($name)*);
        over_every_transport!(@ tls Tls $($name)*);
        over_every_transport!(@ unix Unix $($name)*);
        over_every_transport!(@ quic Quic $($name)*);
        over_every_transport!(@ pipe Pipe $($name)*);
    };
    (@ $module:ident $way:ident $($name:ident)*) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::harness::Way::$way).await;
                }
            )*
        }
    };
}

pub(crate) use over_every_transport;
