//! What a service counts: plain cells that one shard writes and whoever exports them sums.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// What is counted beside requests that began and ended, which always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// Bytes read and written.
    pub bytes: bool,
    /// How long requests take, which costs two looks at the clock a read.
    pub durations: bool,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self { bytes: true, durations: false }
    }
}

/// A count with one writer: adding is a load and a store, and shares no cache line with another shard.
#[derive(Default)]
pub struct Cell(AtomicU64);

impl Cell {
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counts of one shard. Only its own thread adds to them.
        #[derive(Default)]
        #[repr(align(128))]
        pub struct Cells {
            $($(#[$doc])* pub $name: Cell,)*
            pub durations: Durations,
            /// Where the time of a read goes, batch by batch.
            #[cfg(feature = "phase-timing")]
            pub phases: Phases,
        }

        /// The sum over all shards at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            fn add(&mut self, cells: &Cells) {
                $(self.$name += cells.$name.get();)*
            }
        }
    };
}

counts! {
    connections_opened,
    connections_closed,
    /// Connections that ended because their handler panicked.
    panics,
    /// Peers that took too long and were cut, and requests whose handler did.
    timeouts,
    /// Streams of bytes that were not of the protocol, or over its limits.
    faults,
    requests_started,
    /// Requests that are over: answered, or given up with their connection.
    requests_completed,
    /// Requests that were answered with `busy` at a limit, and frames that found no memory.
    requests_refused,
    messages,
    bytes_read,
    bytes_written,
}

impl Totals {
    pub fn connections(&self) -> u64 {
        self.connections_opened.saturating_sub(self.connections_closed)
    }

    pub fn requests_in_flight(&self) -> u64 {
        self.requests_started.saturating_sub(self.requests_completed)
    }
}

/// Powers of two from 1 ns, four buckets each.
const BUCKETS: usize = 4 * 40;

/// Durations in buckets of relative width: at most 19 % off.
pub struct Durations {
    buckets: Box<[Cell]>,
    sum_ns: Cell,
}

impl Default for Durations {
    fn default() -> Self {
        Self { buckets: Vec::new().into_boxed_slice(), sum_ns: Cell::default() }
    }
}

impl Durations {
    fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Cell::default()).collect(), ..Self::default() }
    }

    /// Adds the same duration so many times.
    pub fn record(&self, duration: Duration, count: u64) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(4);
        let power = ns.ilog2();
        let quarter = (ns >> (power - 2)) & 3;
        if let Some(bucket) = self.buckets.get(((power as usize) * 4 + quarter as usize).min(BUCKETS - 1)) {
            bucket.add(count);
            self.sum_ns.add(ns.saturating_mul(count));
        }
    }
}

/// Where the time of one read goes.
#[cfg(feature = "phase-timing")]
pub struct Phases {
    pub read: Durations,
    pub handle: Durations,
    pub write: Durations,
}

#[cfg(feature = "phase-timing")]
impl Default for Phases {
    fn default() -> Self {
        Self { read: Durations::new(), handle: Durations::new(), write: Durations::new() }
    }
}

/// The counts of one service over all of its shards.
#[derive(Default)]
pub struct Telemetry {
    pub settings: TelemetrySettings,
    shards: Mutex<Vec<Arc<Cells>>>,
}

impl Telemetry {
    pub fn new(settings: TelemetrySettings) -> Arc<Self> {
        Arc::new(Self { settings, shards: Mutex::default() })
    }

    /// The cells of one more shard.
    pub fn cells(&self) -> Arc<Cells> {
        let durations = if self.settings.durations { Durations::new() } else { Durations::default() };
        let cells = Arc::new(Cells { durations, ..Cells::default() });
        self.shards.lock().push(cells.clone());
        cells
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.shards.lock().iter().for_each(|cells| totals.add(cells));
        totals
    }

    /// How long requests took: how many up to each bound in nanoseconds (not added up), and the sum.
    pub fn durations(&self) -> (Vec<(u64, u64)>, u64) {
        let shards = self.shards.lock();
        let bound = |bucket: usize| {
            let (power, quarter) = (bucket / 4, bucket as u64 % 4);
            (1u64 << power) + ((quarter + 1) << power) / 4
        };
        let count = |bucket: usize| {
            shards.iter().filter_map(|cells| cells.durations.buckets.get(bucket)).map(Cell::get).sum::<u64>()
        };
        let buckets = (0..BUCKETS).map(|bucket| (bound(bucket), count(bucket))).filter(|(_, n)| *n > 0).collect();
        (buckets, shards.iter().map(|cells| cells.durations.sum_ns.get()).sum())
    }
}
