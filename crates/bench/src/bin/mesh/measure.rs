//! Measurement of the configurations, one after the other, each with its own sites.

use std::time::{Duration, Instant};

use bench::wan::Outcome;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::load::{self, Phase, Received};
use crate::plan::{Configuration, Settings};
use crate::report::{Measured, PhaseReport, Report};
use crate::sites::{LOCAL_TOPIC, PUBLISHER, Sites, TOPICS};

/// Maximum time for which the way within one broker is measured.
const LOCAL_TIME: Duration = Duration::from_secs(20);
/// Interval in a storm: 100 publishes in a second.
const STORM_INTERVAL: Duration = Duration::from_millis(10);
const STORM_COUNT: u64 = 100;
/// Pause after which what the cache knows of a topic has expired: its time to live grows to six times 5 s.
const EXPIRY: Duration = Duration::from_secs(32);

/// Runs all configurations. Returns `true` if each counts, and has lost, duplicated and reordered nothing.
pub async fn run(settings: &Settings) -> Outcome<bool> {
    let of_folder = |error| format!("{}: {error}", settings.folder.display());
    std::fs::create_dir_all(&settings.folder).map_err(of_folder)?;
    let mut report = Report::begin(settings)?;
    for configuration in settings.configurations.iter().copied() {
        report.note(&format!("{}: {:?}", configuration.title(), configuration.keys()));
        let measured = measure(settings, configuration).await?;
        measured.phases.iter().for_each(|phase| report.note(&phase.summary()));
        report.add(measured);
        // An interrupted run keeps what is complete.
        report.write(settings)?;
    }
    report.print()?;
    Ok(report.is_good())
}

async fn measure(settings: &Settings, configuration: Configuration) -> Outcome<Measured> {
    let (sender, mut queue) = unbounded_channel();
    let sites = Sites::start(settings, configuration).await?;
    load::subscribe(&sites, &sender).await?;
    sites.until_ready(configuration).await?;
    let mut run = Run { settings, configuration, sites, phases: Vec::new() };
    let interval = settings.interval;
    let count = |time: Duration| (time.as_secs_f64() / interval.as_secs_f64()).round().max(1.0) as u64;
    let phase = |name, topic, time| Phase { name, topic, count: count(time), interval };
    run.phase(phase("local", LOCAL_TOPIC, settings.time.min(LOCAL_TIME)), &mut queue).await?;
    run.phase(phase("warm-up", TOPICS[0], settings.warm_up), &mut queue).await?;
    run.phase(phase("steady", TOPICS[0], settings.time), &mut queue).await?;
    if settings.has_storms {
        if configuration.has_cache() {
            tokio::time::sleep(EXPIRY).await;
        }
        let storm = |name, topic| Phase { name, topic, count: STORM_COUNT, interval: STORM_INTERVAL };
        run.phase(storm("expired", TOPICS[0]), &mut queue).await?;
        run.phase(storm("unknown", TOPICS[1]), &mut queue).await?;
    }
    Ok(Measured { configuration, phases: run.phases })
}

struct Run<'a> {
    settings: &'a Settings,
    configuration: Configuration,
    sites: Sites,
    phases: Vec<PhaseReport>,
}

impl Run<'_> {
    async fn phase(&mut self, phase: Phase, queue: &mut UnboundedReceiver<Outcome<Received>>) -> Outcome {
        let before = self.sites.stats(PUBLISHER).await?;
        let begin = Instant::now();
        let lateness = || self.sites.wan.as_ref().map(|wan| wan.take_lateness());
        // What came before the phase does not count.
        lateness();
        let samples = load::run(phase, &self.sites, queue).await?;
        let lateness = lateness();
        if self.sites.wan.as_ref().is_some_and(|wan| !wan.is_running()) {
            return Err("the emulated network has ended".to_owned());
        }
        let seconds = begin.elapsed().as_secs_f64();
        let after = self.sites.stats(PUBLISHER).await?;
        let is_local = phase.topic == LOCAL_TOPIC;
        let wire = if is_local { Duration::ZERO } else { self.settings.wire(self.configuration) };
        let mut report = PhaseReport::new(&phase, wire, &samples);
        report.lookups = after.lookups - before.lookups;
        report.lookups_per_s = report.lookups as f64 / seconds;
        report.direct_sends = after.routes.hits - before.routes.hits;
        report.relayed_sends = after.routes.misses - before.routes.misses;
        report.lateness = lateness;
        report.is_realtime = self.sites.wan.as_ref().map(|wan| wan.is_realtime());
        report.write_samples(self.settings, self.configuration, &samples)?;
        self.phases.push(report);
        Ok(())
    }
}
