//! Counters of a service: plain cells that one worker writes and that an exporter sums up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Optional counters. Requests that began and ended are always counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// `true` to count the bytes read and written; on by default.
    pub bytes: bool,
    /// `true` to measure the durations of requests, which costs two clock reads per socket read; off by default.
    pub durations: bool,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self { bytes: true, durations: false }
    }
}

/// Counter with one writer: adding is a load and a store, and shares no cache line with another worker.
#[derive(Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds `n`. Only the owning thread may call it.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Returns the current count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one worker. Only its own thread adds to them.
        #[derive(Default)]
        #[repr(align(128))]
        pub struct Cells {
            $($(#[$doc])* pub $name: Cell,)*
            /// Durations of requests; empty unless they are measured.
            pub durations: Durations,
            /// Durations of the phases of a turn.
            #[cfg(feature = "phase-timing")]
            pub phases: Phases,
        }

        /// Sum over all workers at one moment.
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
    /// Connections that were opened.
    connections_opened,
    /// Connections that were closed.
    connections_closed,
    /// Connections that ended because their handler panicked.
    panics,
    /// Peers that were cut because they took too long, and requests whose handler took too long.
    timeouts,
    /// Streams whose bytes did not belong to the protocol, or exceeded its limits.
    faults,
    /// Requests that were received.
    requests_started,
    /// Requests that ended: answered, or abandoned with their connection.
    requests_completed,
    /// Requests that were answered with `busy` because of a limit, and frames for which there was no memory.
    requests_refused,
    /// Turns that waited in line, because they were likely to take long.
    turns_waited,
    /// Messages that expect no answer.
    messages,
    /// Bytes that were read, if they are counted.
    bytes_read,
    /// Bytes that were written, if they are counted.
    bytes_written,
}

impl Totals {
    /// Returns the number of open connections.
    pub fn connections(&self) -> u64 {
        self.connections_opened.saturating_sub(self.connections_closed)
    }

    /// Returns the number of requests in flight.
    pub fn requests_in_flight(&self) -> u64 {
        self.requests_started.saturating_sub(self.requests_completed)
    }
}

/// Number of buckets: four for each power of two from 1 ns on.
const BUCKETS: usize = 4 * 40;

/// Histogram of durations with buckets of relative width: at most 19 % off.
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

    /// Adds `count` requests with this duration.
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

/// Durations of the phases of a connection's turn.
#[cfg(feature = "phase-timing")]
#[derive(Default)]
pub struct Phases {
    /// Reading from the socket.
    pub read: Durations,
    /// Decoding, handling and encoding.
    pub handle: Durations,
    /// Writing to the socket.
    pub write: Durations,
}

#[cfg(feature = "phase-timing")]
impl Phases {
    fn new() -> Self {
        Self { read: Durations::new(), handle: Durations::new(), write: Durations::new() }
    }
}

/// Phase of a turn, which is timed if the feature `phase-timing` is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Read,
    Handle,
    Write,
}

/// Start of a phase. Without the feature it is empty and costs nothing.
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

/// Counters of one service over all of its workers.
#[derive(Default)]
pub struct Telemetry {
    /// Switches of the optional counters.
    pub settings: TelemetrySettings,
    workers: Mutex<Vec<Arc<Cells>>>,
}

impl Telemetry {
    /// Creates the counters, which have no workers yet.
    pub fn new(settings: TelemetrySettings) -> Arc<Self> {
        Arc::new(Self { settings, workers: Mutex::default() })
    }

    /// Creates the counters of one more worker.
    pub fn cells(&self) -> Arc<Cells> {
        let durations = if self.settings.durations { Durations::new() } else { Durations::default() };
        let cells = Arc::new(Cells {
            durations,
            #[cfg(feature = "phase-timing")]
            phases: Phases::new(),
            ..Cells::default()
        });
        self.workers.lock().push(cells.clone());
        cells
    }

    /// Returns the sum over all workers.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.workers.lock().iter().for_each(|cells| totals.add(cells));
        totals
    }

    /// Returns the durations of requests, if they are measured.
    pub fn durations(&self) -> Distribution {
        Distribution::of(self.workers.lock().iter().map(|cells| &cells.durations))
    }

    /// Returns the durations of the phases of turns: reading, handling, writing.
    #[cfg(feature = "phase-timing")]
    pub fn phases(&self) -> [(&'static str, Distribution); 3] {
        let workers = self.workers.lock();
        [
            ("read", Distribution::of(workers.iter().map(|cells| &cells.phases.read))),
            ("handle", Distribution::of(workers.iter().map(|cells| &cells.phases.handle))),
            ("write", Distribution::of(workers.iter().map(|cells| &cells.phases.write))),
        ]
    }
}

/// Durations of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distribution {
    /// Upper bound of each bucket in nanoseconds, with the number of durations up to it and above the previous bound;
    /// empty buckets are omitted.
    pub buckets: Vec<(u64, u64)>,
    /// Sum of all durations in nanoseconds.
    pub sum_ns: u64,
}

impl Distribution {
    fn of<'d>(workers: impl Iterator<Item = &'d Durations> + Clone) -> Self {
        let count = |bucket: usize| workers.clone().filter_map(|d| d.buckets.get(bucket)).map(Cell::get).sum::<u64>();
        let bound = |bucket: usize| {
            let power = bucket / 4;
            let quarter = bucket as u64 % 4;
            (1u64 << power) + ((quarter + 1) << power) / 4
        };
        let buckets = (0..BUCKETS).map(|bucket| (bound(bucket), count(bucket))).filter(|(_, n)| *n > 0).collect();
        Self { buckets, sum_ns: workers.map(|durations| durations.sum_ns.get()).sum() }
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Returns the bound in nanoseconds that this part of all durations, from 0 to 1, does not exceed; 0 without
    /// durations.
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
    fn workers_add_up_and_quantiles_are_a_fifth_off_at_most() {
        let telemetry = Telemetry::new(TelemetrySettings { bytes: true, durations: true });
        let one = telemetry.cells();
        let other = telemetry.cells();
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
