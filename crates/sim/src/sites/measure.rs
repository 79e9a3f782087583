//! Large meshes without faults of the network, whose messages and latencies are counted.

use std::collections::BTreeSet;
use std::time::Instant;

use consensus::Time;
use engine::mesh::{CacheSettings, Interest, SiteHashes, SiteName, owners};

use super::MS;
use super::faults::{DELAY_MS, SETTLED};
use super::roster::{End, Id, Roster, Topic};
use super::site::Reason;
use super::world::{Again, Conditions, Counts, Event, NewReader, Sample, World};
use crate::violation::Violation;

const SECOND: Time = 1000 * MS;
/// Sites per topic, topics that a site reads, and topics to which it publishes.
const SITES_PER_TOPIC: usize = 5;
const READS: usize = 2;
const PUBLISHES: usize = 2;
/// Mean time between two records of a publisher.
pub(super) const PUBLISH_EVERY: Time = 10 * SECOND;
/// Simulated times of meshes up to [`LARGE`] sites, and of larger ones.
const STEADY: [Time; 2] = [60 * SECOND, 15 * SECOND];
const CHURN: [Time; 2] = [60 * SECOND, 15 * SECOND];
/// Largest number of sites for which churn is measured with [`Again::All`], whose messages grow with the square.
const LARGE: usize = 20_000;
const COLD_LOOKUPS: usize = 2000;
const WARM_LOOKUPS: usize = 2000;
const STORMS: usize = 20;
pub(super) const STORM: usize = 100;
const NEW_READERS: usize = 100;
/// Sites that join with each rule of looking up again.
const JOINS: usize = 3;
/// Time for what was begun to end.
const REST: Time = 3 * SECOND;
/// Interval at which a new site publishes until its first record reaches exactly the readers.
const JOIN_STEP: Time = 10 * MS;
/// Sites that come or go per minute, in parts of all sites.
const CHURN_PARTS: usize = 100;
/// Numbers of samples.
const WARM: u32 = 1;
const COLD: u32 = 2;
const STALE_STORM: u32 = 3;
const COLD_STORM: u32 = 4;
const JOINED: u32 = 5;
const CHURNED: u32 = 6;
const UNSAMPLED: u32 = 7;

/// Values in the order of their size.
#[derive(Clone, Debug, Default)]
pub struct Spread(Vec<u64>);

impl Spread {
    pub(super) fn new(values: impl IntoIterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.into_iter().collect();
        values.sort_unstable();
        Self(values)
    }

    /// Returns the value that `percent` of the values do not exceed.
    pub fn percentile(&self, percent: usize) -> u64 {
        let at = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Returns the values of both.
    pub(super) fn with(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Lookups of a kind.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    pub latency: Spread,
    pub trips: Spread,
    pub first_message: Spread,
    /// Records that were not sent to exactly the readers.
    pub wrong: usize,
}

impl Lookups {
    fn new(samples: &[Sample]) -> Self {
        Self {
            latency: Spread::new(samples.iter().map(|sample| sample.latency)),
            trips: Spread::new(samples.iter().map(|sample| sample.trips.into())),
            first_message: Spread::new(samples.iter().filter_map(|sample| sample.first_message)),
            wrong: samples.iter().filter(|sample| !sample.is_right).count(),
        }
    }
}

/// Storms of publishes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storms {
    pub published: usize,
    pub in_flight_max: usize,
    /// Records that did not reach exactly the readers.
    pub lost: usize,
}

/// New sites.
#[derive(Clone, Debug, Default)]
pub struct Joins {
    /// Messages of the discovery that a join causes.
    pub messages: f64,
    /// Time until the first record of the new site is sent to exactly the readers.
    pub first_right: Spread,
    /// Records of new sites before that which were sent to other sites than the readers.
    pub wrong_before: usize,
    /// Time until a publisher elsewhere knows the new reader.
    pub found_after: Spread,
    /// Publishers that did not get to know it.
    pub unaware: usize,
}

/// Messages and records in a span of simulated time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Messages per site and second: all, and those that the coming and going of sites causes.
    pub per_site: f64,
    pub for_sites: f64,
    pub publishes: u64,
    pub warm_percent: f64,
    pub missing: u64,
    pub partial: u64,
    pub wrong: u64,
    pub ended: u64,
    pub ending: u64,
    pub changes: usize,
    pub seconds: f64,
}

/// Costs of calls with the whole list of sites, in nanoseconds of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub owners_ns: u64,
    pub ranked_ns: u64,
    /// Time of a call for 100 topics after the list has changed.
    pub due_ns: u64,
    pub due_same_list_ns: u64,
}

/// Measurements of a mesh of one size.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub sites: usize,
    pub topics: usize,
    pub warm: Lookups,
    pub cold: Lookups,
    pub steady: Traffic,
    pub stale_storms: Storms,
    pub cold_storms: Storms,
    pub new_readers: NewReaders,
    pub joins_all: Joins,
    pub joins_changed: Joins,
    pub churn: Traffic,
    pub churn_lookups: Lookups,
    /// Churn with [`Again::All`]; `None` if it was not measured.
    pub churn_all: Option<Traffic>,
    pub costs: Costs,
    pub bytes_per_site: u64,
    pub peak_bytes: u64,
    pub events: u64,
    pub full_rankings: u64,
    pub simulated_s: f64,
    pub wall_s: f64,
    /// Processor time of this process so far.
    pub processor_s: f64,
}

/// New readers at sites that are in the mesh.
#[derive(Clone, Debug, Default)]
pub struct NewReaders {
    pub messages: f64,
    pub found_after: Spread,
    pub first_messages: Spread,
    pub unaware: usize,
}

impl Measured {
    /// Returns the messages per site and second of churn with [`Again::All`]: those without changes, and those of a
    /// join for each change of a site.
    pub(super) fn computed_churn(&self) -> f64 {
        let changes_per_second = (self.sites / CHURN_PARTS) as f64 / 60.0;
        self.steady.per_site + self.joins_all.messages * changes_per_second / self.sites as f64
    }
}

/// Measures a mesh of `sites` sites.
pub fn measure(sites: usize, seed: u64) -> Result<Measured, Violation> {
    let begun = Instant::now();
    let before = memory("VmRSS:");
    let costs = costs(sites);
    let topics = (sites / SITES_PER_TOPIC).max(10);
    let conditions = Conditions {
        cache: CacheSettings::default(),
        delay_ms: DELAY_MS,
        again: Again::Changed,
        is_whole: false,
        bug: None,
    };
    let spare = 50 + sites / 50;
    let mut world = World::new(seed, conditions, sites + spare, sites, topics);
    let mut measured = Measured { sites, topics, costs, ..Measured::default() };
    let note = |what: &str, world: &World| {
        let (wall, events) = (begun.elapsed().as_secs_f64(), world.counts.events);
        eprintln!("{sites} sites, {what}: {events} events, {wall:.0} s of wall time");
    };
    note("created", &world);
    world.populate(sites)?;
    note("populated", &world);
    world.settled = Some(SETTLED);
    let is_large = sites > LARGE;
    let span = usize::from(is_large);
    measured.steady = world.traffic(STEADY[span], sites, |_| Ok(()))?;
    measured.bytes_per_site = memory("VmRSS:").saturating_sub(before) / sites as u64;
    note("steady", &world);
    world.look_up_often(sites, &mut measured)?;
    note("lookups and storms", &world);
    measured.new_readers = world.add_readers(sites)?;
    measured.joins_changed = world.joins()?;
    world.conditions.again = Again::All;
    measured.joins_all = world.joins()?;
    note("joins", &world);
    world.conditions.again = Again::Changed;
    measured.churn = world.churn(CHURN[span], sites, true)?;
    measured.churn_lookups = Lookups::new(&world.samples.remove(&CHURNED).unwrap_or_default());
    note("churn", &world);
    if !is_large {
        world.conditions.again = Again::All;
        measured.churn_all = Some(world.churn(CHURN[span], sites, false)?);
        note("churn with all watches looked up again", &world);
    }
    measured.peak_bytes = memory("VmHWM:");
    (measured.events, measured.full_rankings) = (world.counts.events, world.roster.full_rankings);
    measured.simulated_s = world.now as f64 / SECOND as f64;
    measured.wall_s = begun.elapsed().as_secs_f64();
    measured.processor_s = processor_s();
    Ok(measured)
}

/// Returns a number of bytes from the state of this process; 0 where the system does not tell it.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|text| text.trim().strip_suffix(" kB")).and_then(|text| text.trim().parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns the seconds of processor time that this process has used; 0 where the system does not tell it.
fn processor_s() -> f64 {
    /// Ticks per second in which Linux counts.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name of the program, which ends with a parenthesis, the times are the fields 12 and 13.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Measures calls that take the whole list of sites.
fn costs(sites: usize) -> Costs {
    const CALLS: u64 = 20;
    const TOPICS: usize = 100;
    let roster = Roster::new(0, sites, sites, TOPICS);
    let names: Vec<SiteName> = (0..sites as Id).map(|site| roster.name(site).clone()).collect();
    let hashes = SiteHashes::new(names.iter().cloned());
    let time = |call: &mut dyn FnMut(Topic)| {
        let begun = Instant::now();
        (0..CALLS as Topic).for_each(&mut *call);
        begun.elapsed().as_nanos() as u64 / CALLS
    };
    let mut found = 0;
    let owners_ns = time(&mut |topic| found += owners(roster.topic(topic), &names).len());
    let ranked_ns = time(&mut |topic| found += hashes.ranked(roster.topic(topic), 3).len());
    let mut interest = Interest::new();
    let mut now_ms = 0;
    (0..TOPICS as Topic).for_each(|topic| interest.set(roster.topic(topic), true, now_ms));
    found += interest.due(&names, now_ms).len();
    // Every site leaves the list and returns in turn, so that all topics are due.
    let due_ns = time(&mut |_| {
        now_ms += 1;
        let but_one = &names[(now_ms % 2) as usize..];
        found += interest.due(but_one, now_ms).len();
    });
    let list = names[(now_ms % 2) as usize..].to_vec();
    let due_same_list_ns = time(&mut |_| found += interest.due(&list, now_ms).len());
    std::hint::black_box(found);
    Costs { owners_ns, ranked_ns, due_ns, due_same_list_ns }
}

impl World {
    fn some_site(&mut self, sites: usize) -> Id {
        loop {
            let at = self.random.below(sites as u64) as Id;
            if self.roster.is_up(at) {
                return at;
            }
        }
    }

    fn some_topic(&mut self) -> Topic {
        self.random.below(self.roster.topic_count() as u64) as Topic
    }

    /// Gives a site readers and publishers; those of a site that is not up begin when it starts.
    fn settle(&mut self, at: Id) {
        for _ in 0..READS {
            let topic = self.some_topic();
            if self.roster.is_up(at) {
                self.set_wanted(at, topic, true);
            } else {
                self.sites[at as usize].wanted.insert(topic);
            }
        }
        for _ in 0..PUBLISHES {
            let topic = self.some_topic();
            self.set_published(at, topic, true);
            let first = self.random.below(PUBLISH_EVERY);
            self.schedule(first, Event::Publish(at, topic, 0));
        }
    }

    /// Gives all sites readers and publishers within 5 seconds, and waits until they are known.
    fn populate(&mut self, sites: usize) -> Result<(), Violation> {
        self.publish_every = PUBLISH_EVERY;
        let step = 5 * SECOND / sites as u64;
        for at in 0..sites as Id {
            self.settle(at);
            self.run_until(self.now + step)?;
        }
        self.run_until(self.now + PUBLISH_EVERY)
    }

    /// Runs for a span, in which `work` may do something every second, and returns what happened.
    fn traffic(
        &mut self,
        span: Time,
        sites: usize,
        mut work: impl FnMut(&mut Self) -> Result<(), Violation>,
    ) -> Result<Traffic, Violation> {
        let before = self.counts;
        let end = self.now + span;
        while self.now < end {
            work(self)?;
            self.run_until(end.min(self.now + SECOND / 4))?;
        }
        let Counts { publishes, warm, missing, partial, wrong, ended, ending, .. } = self.counts;
        let seconds = span as f64 / SECOND as f64;
        let per_site = |messages: u64| messages as f64 / seconds / sites as f64;
        let all = per_site(self.counts.all_messages() - before.all_messages());
        let for_sites = per_site(self.counts.of_reason(Reason::Sites) - before.of_reason(Reason::Sites));
        let publishes = publishes - before.publishes;
        Ok(Traffic {
            per_site: all,
            for_sites,
            publishes,
            warm_percent: 100.0 * (warm - before.warm) as f64 / publishes.max(1) as f64,
            missing: missing - before.missing,
            partial: partial - before.partial,
            wrong: wrong - before.wrong,
            ended: ended - before.ended,
            ending: ending - before.ending,
            changes: 0,
            seconds,
        })
    }

    /// Returns a site with a topic that others read, and to which it has not published.
    fn fresh_publisher(&mut self, sites: usize) -> (Id, Topic) {
        loop {
            let (at, topic) = (self.some_site(sites), self.some_topic());
            let has_readers = self.truth.readers(topic).any(|(reader, _)| reader != at);
            // A site that has published before may still have the topic in its cache.
            if has_readers && !self.concerned[topic as usize].contains(&at) {
                self.set_published(at, topic, true);
                return (at, topic);
            }
        }
    }

    /// Publishes single records, where the topic was published to before and where it was not; then many within a
    /// second, where the entry of the topic has expired and where there is none.
    fn look_up_often(&mut self, sites: usize, measured: &mut Measured) -> Result<(), Violation> {
        for _ in 0..WARM_LOOKUPS {
            let at = self.some_site(sites);
            if let Some(topic) = self.sites[at as usize].published.first().copied() {
                let after = self.random.below(SECOND);
                self.schedule(after, Event::Publish(at, topic, WARM));
            }
        }
        let mut used = Vec::new();
        for _ in 0..COLD_LOOKUPS.min(2 * sites) {
            let (at, topic) = self.fresh_publisher(sites);
            let after = self.random.below(SECOND);
            self.schedule(after, Event::Publish(at, topic, COLD));
            used.push((at, topic));
        }
        let storms = |world: &mut Self| (0..STORMS).map(|_| world.fresh_publisher(sites)).collect::<Vec<_>>();
        let (stale, cold) = (storms(self), storms(self));
        stale.iter().for_each(|(at, topic)| self.schedule(0, Event::Publish(*at, *topic, UNSAMPLED)));
        self.run_until(self.now + self.conditions.cache.ttl_ms * MS + 2 * SECOND)?;
        measured.warm = Lookups::new(&self.samples.remove(&WARM).unwrap_or_default());
        measured.cold = Lookups::new(&self.samples.remove(&COLD).unwrap_or_default());
        self.counts.in_flight_max = 0;
        for (of, sample) in [(&stale, STALE_STORM), (&cold, COLD_STORM)] {
            for (at, topic) in of.iter().flat_map(|one| std::iter::repeat_n(*one, STORM)) {
                let after = self.random.below(SECOND);
                self.schedule(after, Event::Publish(at, topic, sample));
            }
        }
        self.run_until(self.now + REST)?;
        measured.stale_storms = self.storms_of(STALE_STORM);
        measured.cold_storms = self.storms_of(COLD_STORM);
        let all = used.into_iter().chain(stale).chain(cold);
        all.for_each(|(at, topic)| self.set_published(at, topic, false));
        Ok(())
    }

    fn storms_of(&mut self, sample: u32) -> Storms {
        let samples = self.samples.remove(&sample).unwrap_or_default();
        let right = samples.iter().filter(|sample| sample.is_right).count();
        let published = STORMS * STORM;
        Storms { published, in_flight_max: self.counts.in_flight_max, lost: published - right }
    }

    fn track(&mut self, reader: Id, topic: Topic) {
        let publishers = self.concerned[topic as usize].iter().copied();
        let watches = |at: &Id| self.roster.is_up(*at) && self.sites[*at as usize].watched.contains_key(&topic);
        let unaware: BTreeSet<Id> = publishers.filter(|at| *at != reader && watches(at)).collect();
        self.new_readers.insert((topic, reader), NewReader { begun: self.now, unaware, ..NewReader::default() });
    }

    /// Lets clients at sites of the mesh read topics, one after the other.
    fn add_readers(&mut self, sites: usize) -> Result<NewReaders, Violation> {
        let before = self.counts.of_reason(Reason::Readers);
        for _ in 0..NEW_READERS {
            let (at, topic) = (self.some_site(sites), self.some_topic());
            if !self.sites[at as usize].wanted.contains(&topic) {
                self.track(at, topic);
                self.set_wanted(at, topic, true);
            }
            self.run_until(self.now + SECOND / 50)?;
        }
        self.run_until(self.now + REST)?;
        let readers = std::mem::take(&mut self.new_readers);
        let messages = self.counts.of_reason(Reason::Readers) - before;
        Ok(NewReaders {
            messages: messages as f64 / readers.len().max(1) as f64,
            found_after: Spread::new(readers.values().flat_map(|of| of.found_after.iter().copied())),
            first_messages: Spread::new(readers.values().flat_map(|of| of.first_messages.iter().copied())),
            unaware: readers.values().map(|of| of.unaware.len()).sum(),
        })
    }

    /// Returns a site that was never in the mesh.
    fn fresh_site(&self) -> Option<Id> {
        let is_fresh =
            |at: &Id| !self.roster.is_up(*at) && !self.roster.is_founder(*at) && self.roster.start_of(*at) == 0;
        (0..self.roster.len() as Id).rev().find(is_fresh)
    }

    /// Lets sites join one after the other. Each publishes at once, and clients there read at once.
    fn joins(&mut self) -> Result<Joins, Violation> {
        let mut joins = Joins::default();
        let (mut first_right, mut messages) = (Vec::new(), 0);
        for _ in 0..JOINS {
            let Some(at) = self.fresh_site() else { break };
            let counts = self.counts;
            for _ in 0..READS {
                let topic = self.some_topic();
                self.track(at, topic);
                self.sites[at as usize].wanted.insert(topic);
            }
            self.start(at);
            let topic = self.some_topic();
            self.set_published(at, topic, true);
            for step in 0..(2 * SECOND / JOIN_STEP) {
                self.schedule(step * JOIN_STEP, Event::Publish(at, topic, JOINED));
            }
            let begun = self.now;
            self.run_until(self.now + REST)?;
            let samples = self.samples.remove(&JOINED).unwrap_or_default();
            let last_wrong = samples.iter().rposition(|sample| !sample.is_right);
            let from = last_wrong.map_or(0, |at| at + 1);
            first_right.extend(samples.get(from).map(|sample| sample.found_at - begun));
            joins.wrong_before += samples.iter().filter(|sample| !sample.is_right).count();
            let of = |reason| self.counts.of_reason(reason) - counts.of_reason(reason);
            messages += of(Reason::Sites) + of(Reason::Readers);
        }
        let readers = std::mem::take(&mut self.new_readers);
        joins.messages = messages as f64 / JOINS as f64;
        joins.first_right = Spread::new(first_right);
        joins.found_after = Spread::new(readers.values().flat_map(|of| of.found_after.iter().copied()));
        joins.unaware = readers.values().map(|of| of.unaware.len()).sum();
        Ok(joins)
    }

    /// Lets sites come and go, and returns the traffic.
    fn churn(&mut self, span: Time, sites: usize, has_lookups: bool) -> Result<Traffic, Violation> {
        let (begun, mut changes) = (self.now, 0);
        let mut traffic = self.traffic(span, sites, |world| {
            let due = (world.now - begun) * (sites / CHURN_PARTS) as u64 / (60 * SECOND);
            while (changes as u64) < due {
                changes += 1;
                match (changes % 4, world.fresh_site()) {
                    (0, _) => {
                        let at = world.some_site(sites);
                        world.end(at, End::Left);
                    }
                    (1, _) => {
                        let at = world.some_site(sites);
                        world.end(at, End::Crashed);
                    }
                    (_, Some(at)) => {
                        world.settle(at);
                        world.start(at);
                    }
                    (_, None) => {}
                }
            }
            if has_lookups {
                for _ in 0..5 {
                    let (at, topic) = world.fresh_publisher(sites);
                    world.schedule(0, Event::Publish(at, topic, CHURNED));
                }
            }
            Ok(())
        })?;
        traffic.changes = changes;
        Ok(traffic)
    }
}
