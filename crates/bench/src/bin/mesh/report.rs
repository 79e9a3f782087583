//! Figures of a run: a table, a JSON file, and the raw samples of each phase.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use bench::wan::{Lateness, Outcome};
use bench::{Host, LoadAverage, Table};
use serde::Serialize;

use crate::load::{Phase, Samples};
use crate::plan::{Configuration, Settings};
use crate::sites::SITES;

/// Report of a run.
#[derive(Serialize)]
pub struct Report {
    program: String,
    command: String,
    host: Host,
    load_average_before: LoadAverage,
    load_average_after: LoadAverage,
    network: String,
    one_way_ms: Option<f64>,
    loss: f64,
    bits_per_s: Option<u64>,
    seconds: f64,
    warm_up_seconds: f64,
    interval_ms: f64,
    measured: Vec<Measured>,
    #[serde(skip)]
    is_json: bool,
}

/// Phases of a configuration.
#[derive(Serialize)]
pub struct Measured {
    pub configuration: Configuration,
    pub phases: Vec<PhaseReport>,
}

/// Figures of a phase. Latencies are measured from when a record was due until a subscriber had it.
#[derive(Default, Serialize)]
pub struct PhaseReport {
    name: String,
    sent: u64,
    deliveries: u64,
    lost: u64,
    twice: u64,
    reordered: u64,
    /// One-way delay of the wire between the publisher and a subscriber.
    wire_ms: f64,
    latency_ms: Option<Quantiles>,
    /// Latency without the delay of the wire.
    added_ms: Option<Quantiles>,
    /// Time from when records were due until they were given to the client.
    sent_late_ms: Option<Quantiles>,
    /// Latency of the first record at the last of the subscribers.
    first_ms: Option<f64>,
    pub lookups: u64,
    pub lookups_per_s: f64,
    /// Sends of the publisher's site on a link to the reader, and through a hub.
    pub direct_sends: u64,
    pub relayed_sends: u64,
    pub lateness: Option<Lateness>,
    pub is_realtime: Option<bool>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Quantiles {
    /// Returns exact quantiles, by nearest rank.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        let at = |quantile: f64| values[((quantile * values.len() as f64).ceil() as usize).max(1) - 1];
        Some(Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max })
    }

    fn without(self, ms: f64) -> Self {
        Self { p50: self.p50 - ms, p90: self.p90 - ms, p99: self.p99 - ms, max: self.max - ms }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl PhaseReport {
    pub fn new(phase: &Phase, wire: Duration, samples: &Samples) -> Self {
        let sent = samples.sent.len() as u64;
        let mut report = Self { name: phase.name.to_owned(), sent, wire_ms: ms(wire), ..Self::default() };
        let mut latencies = Vec::new();
        for reader in phase.readers() {
            let mut counts = vec![0u64; samples.sent.len()];
            let mut last = None;
            for received in samples.received.iter().filter(|received| received.reader == *reader) {
                let number = received.number as usize;
                let Some(count) = counts.get_mut(number) else { continue };
                *count += 1;
                report.deliveries += 1;
                report.reordered += u64::from(last.is_some_and(|last| last > number));
                last = Some(number);
                if *count == 1 {
                    let latency = ms(received.at.saturating_duration_since(samples.sent[number].due));
                    latencies.push(latency);
                    if number == 0 {
                        report.first_ms = Some(report.first_ms.unwrap_or_default().max(latency));
                    }
                }
            }
            report.lost += counts.iter().filter(|count| **count == 0).count() as u64;
            report.twice += counts.iter().map(|count| count.saturating_sub(1)).sum::<u64>();
        }
        report.latency_ms = Quantiles::of(latencies);
        report.added_ms = report.latency_ms.map(|of| of.without(report.wire_ms));
        let late = samples.sent.iter().map(|sent| ms(sent.sent.saturating_duration_since(sent.due)));
        report.sent_late_ms = Quantiles::of(late.collect());
        report
    }

    /// Returns `true` if the emulator was on time.
    fn is_valid(&self) -> bool {
        self.lateness.is_none_or(|lateness| lateness.is_valid())
    }

    fn is_whole(&self) -> bool {
        self.lost + self.twice + self.reordered == 0
    }

    pub fn summary(&self) -> String {
        let of = |found: Option<Quantiles>| {
            found.map_or("-".to_owned(), |of| format!("{:.2} / {:.2} / {:.2} ms", of.p50, of.p99, of.max))
        };
        let late = self.lateness.map(|late| {
            let verdict = if late.is_valid() { "" } else { ": VOID" };
            format!(", emulator late {:.0} / {:.0} / {:.0} us{verdict}", late.p50_us, late.p99_us, late.max_us)
        });
        format!(
            "  {}: {} sent, {} lost, {} twice, {} reordered, added {}, sent late {}, first {:.1} ms, {} lookups{}",
            self.name,
            self.sent,
            self.lost,
            self.twice,
            self.reordered,
            of(self.added_ms),
            of(self.sent_late_ms),
            self.first_ms.unwrap_or_default(),
            self.lookups,
            late.unwrap_or_default()
        )
    }

    /// Writes a line per delivery. Times are in microseconds; those of a record are since the first was due.
    pub fn write_samples(&self, settings: &Settings, configuration: Configuration, samples: &Samples) -> Outcome {
        let network = network(settings);
        let path = settings.folder.join(format!("{network}-{}-{}.csv", configuration.name(), self.name));
        let mut text = "number,reader,due_us,sent_late_us,latency_us\n".to_owned();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        for received in &samples.received {
            let (Some(first), Some(sent)) = (samples.sent.first(), samples.sent.get(received.number as usize)) else {
                continue;
            };
            let due = us(sent.due.saturating_duration_since(first.due));
            let late = us(sent.sent.saturating_duration_since(sent.due));
            let latency = us(received.at.saturating_duration_since(sent.due));
            // Writing to a string cannot fail.
            writeln!(text, "{},{},{due:.0},{late:.1},{latency:.1}", received.number, SITES[received.reader])
                .unwrap_or_default();
        }
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn network(settings: &Settings) -> &'static str {
    if settings.is_loopback { "loopback" } else { "wan" }
}

impl Measured {
    fn phase(&self, name: &str) -> Option<&PhaseReport> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Returns the maxima that were missed, as sentences.
    fn misses(&self) -> Vec<String> {
        let (Some([p50, p99, lookups]), Some(steady)) = (self.configuration.targets(), self.phase("steady")) else {
            return Vec::new();
        };
        let Some(added) = steady.added_ms else { return Vec::new() };
        let all = [
            ("added p50", added.p50, p50, "ms"),
            ("added p99", added.p99, p99, "ms"),
            ("lookups", steady.lookups_per_s, lookups, "per second"),
        ];
        let missed = all.into_iter().filter(|(_, found, target, _)| found > target);
        let title = self.configuration.title();
        missed.map(|(what, found, target, unit)| format!("{title}: {what} {found:.3}, aim {target} {unit}")).collect()
    }
}

impl Report {
    pub fn begin(settings: &Settings) -> Outcome<Self> {
        let version = Command::new(&settings.program).arg("--version").output();
        let version = version.map_err(|error| {
            format!("{}: {error}; build it with `cargo build --release -p thalweg`", settings.program.display())
        })?;
        Ok(Self {
            program: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            host: Host::here(),
            load_average_before: LoadAverage::now(),
            load_average_after: LoadAverage::default(),
            network: network(settings).to_owned(),
            one_way_ms: (!settings.is_loopback).then(|| ms(settings.link.delay)),
            loss: settings.link.loss,
            bits_per_s: settings.link.bits_per_s,
            seconds: settings.time.as_secs_f64(),
            warm_up_seconds: settings.warm_up.as_secs_f64(),
            interval_ms: ms(settings.interval),
            measured: Vec::new(),
            is_json: settings.is_json,
        })
    }

    /// Prints progress, apart from the result.
    pub fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    pub fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
        self.load_average_after = LoadAverage::now();
    }

    /// Returns `true` if every phase counts and is whole.
    pub fn is_good(&self) -> bool {
        self.measured.iter().flat_map(|of| &of.phases).all(|phase| phase.is_valid() && phase.is_whole())
    }

    fn json(&self) -> Outcome<String> {
        serde_json::to_string_pretty(self).map_err(|error| error.to_string())
    }

    pub fn write(&self, settings: &Settings) -> Outcome {
        let path = settings.folder.join(format!("{}.json", network(settings)));
        fs::write(&path, self.json()?).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub fn print(&self) -> Outcome {
        let mut out = std::io::stdout();
        let text = if self.is_json { format!("{}\n", self.json()?) } else { self.text() };
        out.write_all(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn text(&self) -> String {
        let Self { host, load_average_before: LoadAverage(before), load_average_after: LoadAverage(after), .. } = self;
        let mut text = format!("{}, {} cores, Linux {}; load {:.1}", host.cpu, host.cores, host.kernel, before[0]);
        text += &format!(" before, {:.1} after; {}\n\n{}", after[0], self.program, self.table());
        if self.measured.iter().flat_map(|of| &of.phases).any(|phase| phase.is_realtime == Some(false)) {
            text += "the emulator has no real-time priority: `chrt` is missing, or is not allowed\n";
        }
        for missed in self.measured.iter().flat_map(Measured::misses) {
            text += &format!("missed: {missed}\n");
        }
        for phase in self.measured.iter().flat_map(|of| &of.phases).filter(|phase| !phase.is_valid()) {
            text += &format!("VOID: the emulator was late in a phase '{}'\n", phase.name);
        }
        text
    }

    fn table(&self) -> Table {
        let row = |name, phase: &'static str, cell: fn(&PhaseReport) -> String| {
            (name, self.measured.iter().map(|of| of.phase(phase).map_or("-".to_owned(), cell)).collect())
        };
        let (steady, expired, unknown) = ("steady", "expired", "unknown");
        Table {
            title: self.network_title(),
            columns: self.measured.iter().map(|of| of.configuration.title()).collect(),
            rows: vec![
                row("wire, one way, ms", steady, |of| format!("{:.1}", of.wire_ms)),
                row("published", steady, |of| of.sent.to_string()),
                row("lost, twice, out of order", steady, errors),
                row("latency p50, p99, max, ms", steady, |of| quantiles(of.latency_ms)),
                row("added p50, p99, max, ms", steady, |of| quantiles(of.added_ms)),
                row("of which sent late, ms", steady, |of| quantiles(of.sent_late_ms)),
                row("one broker, no mesh, p50, p99, max, ms", "local", |of| quantiles(of.latency_ms)),
                row("lookups/s", steady, |of| format!("{:.3}", of.lookups_per_s)),
                row("emulator late p50, p99, max, us", steady, late),
                row("first record ever, ms", "warm-up", |of| format!("{:.1}", of.first_ms.unwrap_or_default())),
                row("storm, expired: lookups", expired, |of| of.lookups.to_string()),
                row("  lost, twice, out of order", expired, errors),
                row("  first record, ms", expired, |of| format!("{:.1}", of.first_ms.unwrap_or_default())),
                row("  latency p50, p99, max, ms", expired, |of| quantiles(of.latency_ms)),
                row("storm, unknown: lookups", unknown, |of| of.lookups.to_string()),
                row("  lost, twice, out of order", unknown, errors),
                row("  first record, ms", unknown, |of| format!("{:.1}", of.first_ms.unwrap_or_default())),
                row("  latency p50, p99, max, ms", unknown, |of| quantiles(of.latency_ms)),
            ],
        }
    }

    fn network_title(&self) -> &'static str {
        if self.one_way_ms.is_some() { "emulated wide-area network" } else { "loopback" }
    }
}

fn quantiles(of: Option<Quantiles>) -> String {
    of.map_or("-".to_owned(), |of| format!("{:.2}, {:.2}, {:.2}", of.p50, of.p99, of.max))
}

fn errors(of: &PhaseReport) -> String {
    format!("{}, {}, {}", of.lost, of.twice, of.reordered)
}

fn late(of: &PhaseReport) -> String {
    of.lateness.map_or("-".to_owned(), |of| format!("{:.0}, {:.0}, {:.0}", of.p50_us, of.p99_us, of.max_us))
}
