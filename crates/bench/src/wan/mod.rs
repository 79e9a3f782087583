//! Emulator of a wide-area network on one machine, for kernels without `netem`.
//!
//! Each site has its own network namespace, and a TUN device as the only way out of it. One thread reads the packets of
//! all devices, and writes each to the device of its destination when it is due. [`Network`] decides when that is, and
//! has neither clock nor socket. Links may be changed while the emulator runs.
//!
//! The emulator shares the processors with what it connects, so it measures itself: the *lateness* of a packet is the
//! time from when it was due until it was written. [`Lateness::is_valid`] says whether a measurement counts.

mod network;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod emulator;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod space;

use serde::Serialize;

#[cfg(all(target_os = "linux", not(target_env = "musl")))]
pub use emulator::Wan;
pub use network::{Arrival, Counts, Link, Network, destination};
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
pub use space::{Entrance, Space};

/// Maximum 99th percentile of lateness, in microseconds, for which a measurement counts.
pub const LATENESS_P99_US_MAX: f64 = 1000.0;

/// Outcome of a step. An error is a sentence for the person who runs the emulator.
pub type Outcome<T = ()> = Result<T, String>;

/// Time from when packets were due until they were written, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lateness {
    pub packets: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Lateness {
    /// Returns `true` if the emulator was fast enough for the measurement to count.
    pub fn is_valid(&self) -> bool {
        self.p99_us < LATENESS_P99_US_MAX
    }
}
