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
    /// Turns that waited in line, because they were likely to take long.
    turns_waited,
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

/// Where the time of a turn of a connection goes.
#[cfg(feature = "phase-timing")]
#[derive(Default)]
pub struct Phases {
    pub read: Durations,
    /// Decoding, handling and encoding.
    pub handle: Durations,
    pub write: Durations,
}

#[cfg(feature = "phase-timing")]
impl Phases {
    fn new() -> Self {
        Self { read: Durations::new(), handle: Durations::new(), write: Durations::new() }
    }
}

/// A part of a turn, timed where the feature `phase-timing` is on; otherwise nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Read,
    Handle,
    Write,
}

/// When a phase began. Without the feature it is nothing and costs nothing.
#[cfg(feature = "phase-timing")]
pub(crate) struct Lap(std::time::Instant);
#[cfg(not(feature = "phase-timing"))]
pub(crate) struct Lap;

impl Lap {
    #[cfg(feature = "phase-timing")]
    pub(crate) fn begin() -> Self {
        Self(std::time::Instant::now())
    }

    #[cfg(not(feature = "phase-timing"))]
    pub(crate) fn begin() -> Self {
        Self
    }

    #[cfg(feature = "phase-timing")]
    pub(crate) fn end(self, phase: Phase, cells: &Cells) {
        let durations = match phase {
            Phase::Read => &cells.phases.read,
            Phase::Handle => &cells.phases.handle,
            Phase::Write => &cells.phases.write,
        };
        durations.record(self.0.elapsed(), 1);
    }

    #[cfg(not(feature = "phase-timing"))]
    pub(crate) fn end(self, _phase: Phase, _cells: &Cells) {}
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
        let cells = Arc::new(Cells {
            durations,
            #[cfg(feature = "phase-timing")]
            phases: Phases::new(),
            ..Cells::default()
        });
        self.shards.lock().push(cells.clone());
        cells
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.shards.lock().iter().for_each(|cells| totals.add(cells));
        totals
    }

    /// How long requests took.
    pub fn durations(&self) -> Distribution {
        Distribution::of(self.shards.lock().iter().map(|cells| &cells.durations))
    }

    /// How long the phases of turns took: reading, handling, writing.
    #[cfg(feature = "phase-timing")]
    pub fn phases(&self) -> [(&'static str, Distribution); 3] {
        let shards = self.shards.lock();
        [
            ("read", Distribution::of(shards.iter().map(|cells| &cells.phases.read))),
            ("handle", Distribution::of(shards.iter().map(|cells| &cells.phases.handle))),
            ("write", Distribution::of(shards.iter().map(|cells| &cells.phases.write))),
        ]
    }
}

/// Durations of all shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many were up to each bound in nanoseconds and above the one before; empty buckets are left out.
    pub buckets: Vec<(u64, u64)>,
    pub sum_ns: u64,
}

impl Distribution {
    fn of<'d>(shards: impl Iterator<Item = &'d Durations> + Clone) -> Self {
        let count = |bucket: usize| shards.clone().filter_map(|d| d.buckets.get(bucket)).map(Cell::get).sum::<u64>();
        let bound = |bucket: usize| {
            let (power, quarter) = (bucket / 4, bucket as u64 % 4);
            (1u64 << power) + ((quarter + 1) << power) / 4
        };
        let buckets = (0..BUCKETS).map(|bucket| (bound(bucket), count(bucket))).filter(|(_, n)| *n > 0).collect();
        Self { buckets, sum_ns: shards.map(|durations| durations.sum_ns.get()).sum() }
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The bound that this part of all durations, from 0 to 1, is not above.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (bound, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return *bound;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_and_quantiles_are_a_fifth_off_at_most() {
        let telemetry = Telemetry::new(TelemetrySettings { bytes: true, durations: true });
        let (one, other) = (telemetry.cells(), telemetry.cells());
        one.requests_started.add(3);
        other.requests_started.add(4);
        other.requests_completed.add(2);
        assert_eq!((telemetry.totals().requests_started, telemetry.totals().requests_in_flight()), (7, 5));
        for ns in 1..=1000 {
            one.durations.record(Duration::from_nanos(ns * 1000), 1);
        }
        other.durations.record(Duration::from_secs(1), 10);
        let durations = telemetry.durations();
        assert_eq!(durations.count(), 1010);
        assert!((500_000..=600_000).contains(&durations.quantile_ns(0.5)), "{}", durations.quantile_ns(0.5));
        assert!((1_000_000_000..=1_200_000_000).contains(&durations.quantile_ns(1.0)));
    }

    #[test]
    fn where_nobody_asked_for_durations_none_are_kept() {
        let telemetry = Telemetry::new(TelemetrySettings::default());
        telemetry.cells().durations.record(Duration::from_secs(1), 1);
        assert_eq!(telemetry.durations(), Distribution::default());
    }
}
