//! Small meshes with faults from a seed, and the rules that hold during and after them.

use consensus::{Random, Time};
use engine::mesh::{
    ADVERTISE_TTL_MS, ADVERTISEMENTS_MAX, CacheSettings, DiscoveryPreset, SiteName, WATCHES_MAX, owners,
};

use super::discovery::WATCH_MS;
use super::roster::{CRASH_MAX, End, Id, LEARN_MAX, LINK_MAX, Topic};
use super::truth::Within;
use super::world::{Again, Conditions, Counts, Event, KEEP_EVERY, Losses, UNREACHABLE_AFTER, World};
use super::{Bug, MS};
use crate::violation::{Outcome, Violation, check};

const SECOND: Time = 1000 * MS;
/// One-way delays in ms.
pub(super) const DELAY_MS: (u64, u64) = (10, 80);
/// Maximum time, without faults, after which a publisher knows of a change of readers: that of learning of a site, of
/// two checks, and of the messages of an advertisement and of a lookup.
pub(super) const FOUND_WITHIN: Time = LEARN_MAX + LINK_MAX + 2 * KEEP_EVERY + 4 * DELAY_MS.1 * MS;
/// Maximum times, without faults, after which a publisher knows of a change, and of a crash.
pub(super) const SETTLED: Within =
    Within { changed: FOUND_WITHIN, crashed: FOUND_WITHIN + CRASH_MAX + UNREACHABLE_AFTER };
/// Time without faults after which all sites agree: an advertisement of a run with a later epoch expires, the next
/// renewal is accepted, and a site that noticed a crash late forgets the other one.
const HEALING: Time = (ADVERTISE_TTL_MS + ADVERTISE_TTL_MS / 2) * MS + CRASH_MAX + 20 * SECOND;
/// Time after the last interest after which all tables are empty.
pub(super) const DRAINING: Time = (ADVERTISE_TTL_MS + WATCH_MS as u64) * MS + 10 * SECOND;
/// Time for which readers, publishers and sites change without faults.
const CALM: Time = 60 * SECOND;
/// Publishes of a storm, within a second.
const STORM: u32 = 100;

/// Faults of a seed: each happens once in `n` occasions, never for 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    crash: u64,
    /// Restarts with an epoch that is lower than that of the run before.
    older: u64,
    flap: u64,
    cut: u64,
    join: u64,
    leave: u64,
    /// `true` while clients begin and end to read and to publish.
    is_busy: bool,
    has_faults: bool,
    pub restarts: u64,
    pub joins: u64,
    pub cuts: u64,
}

impl Plan {
    fn new(random: &mut Random) -> Self {
        let mut rate = |often: u64| if random.one_in(4) { 0 } else { often * (1 + random.below(6)) };
        let (crash, older, flap, cut) = (rate(3), rate(1), rate(8), rate(3));
        Self {
            crash,
            older,
            flap,
            cut,
            join: rate(6),
            leave: rate(10),
            is_busy: true,
            has_faults: true,
            ..Self::default()
        }
    }
}

/// Creates the world of a seed.
fn begin(seed: u64, bug: Option<Bug>) -> World {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random);
    let mut rate = |often: u64| if random.one_in(4) { 0 } else { often * (1 + random.below(8)) };
    let (lose, double, late) = (rate(6), rate(8), rate(10));
    let losses = Losses { lose, double, late, late_max: random.below(4000) * MS };
    let preset = DiscoveryPreset::ALL[random.below(3) as usize];
    let entries_max = [2, 4, 64][random.below(3) as usize];
    let cache = CacheSettings { entries_max, is_adaptive: random.one_in(2), ..CacheSettings::preset(preset) };
    let again = if random.one_in(2) { Again::All } else { Again::Changed };
    let (live, topics) = (4 + random.below(12) as usize, 3 + random.below(8) as usize);
    let conditions = Conditions { cache, delay_ms: DELAY_MS, again, is_whole: true, bug };
    let mut world = World::new(random.number(), conditions, live + 6, live, topics);
    (world.losses, world.late_max, world.plan) = (losses, losses.late_max, plan);
    world.publish_every = 4 * SECOND;
    world.schedule(MS, Event::Work);
    world.schedule(SECOND, Event::Fault);
    world
}

/// Runs a seed: `events` events with faults, then without, and at last until nothing is left.
pub(super) fn run(seed: u64, events: usize, bug: Option<Bug>) -> Result<(Counts, Plan), Violation> {
    let mut world = begin(seed, bug);
    for _ in 0..events {
        world.turn(Time::MAX)?;
    }
    world.heal()?;
    world.stay_calm()?;
    world.lose_links()?;
    world.storm()?;
    world.drain()?;
    Ok((world.counts, world.plan))
}

impl World {
    fn any_site(&mut self) -> Id {
        self.random.below(self.roster.len() as u64) as Id
    }

    fn any_topic(&mut self) -> Topic {
        self.random.below(self.roster.topic_count() as u64) as Topic
    }

    /// Lets clients begin or end to read or to publish.
    pub(super) fn work(&mut self) -> Outcome {
        if !self.plan.is_busy {
            return Ok(());
        }
        let next = 20 + self.random.below(400);
        self.schedule(next * MS, Event::Work);
        let (at, topic) = (self.any_site(), self.any_topic());
        if !self.roster.is_up(at) {
            return Ok(());
        }
        if self.random.one_in(2) {
            let is_wanted = !self.sites[at as usize].wanted.contains(&topic);
            self.set_wanted(at, topic, is_wanted);
        } else if !self.sites[at as usize].published.contains(&topic) {
            self.set_published(at, topic, true);
            self.schedule(0, Event::Publish(at, topic, 0));
        } else if self.plan.has_faults && self.random.one_in(3) {
            self.set_published(at, topic, false);
        }
        Ok(())
    }

    /// Lets something fail, and checks what holds at any time.
    pub(super) fn fault(&mut self) -> Outcome {
        if !self.plan.has_faults {
            return Ok(());
        }
        let next = 200 + self.random.below(3000);
        self.schedule(next * MS, Event::Fault);
        let at = self.any_site();
        let is_up = self.roster.is_up(at);
        if self.random.one_in(self.plan.crash) && is_up {
            self.crash(at, 20_000);
        }
        if self.random.one_in(self.plan.flap) && is_up {
            for turn in 1..6 {
                self.schedule(turn * 700 * MS, Event::Start(at));
                self.schedule(turn * 700 * MS + 300 * MS, Event::Crash(at));
            }
        }
        if self.random.one_in(self.plan.cut) {
            self.cut();
        }
        if self.random.one_in(self.plan.join) {
            self.join();
        }
        if self.random.one_in(self.plan.leave) && is_up {
            self.leave(at);
        }
        self.check_limits()?;
        self.check_expiry()
    }

    /// Ends a site without notice, and starts it again after at most `down_ms`.
    pub(super) fn crash(&mut self, at: Id, down_ms: u64) {
        if self.random.one_in(self.plan.older) {
            // The clock from which epochs are taken was set back.
            let site = &mut self.sites[at as usize];
            site.epoch = site.epoch.saturating_sub(2);
        }
        self.end(at, End::Crashed);
        self.plan.restarts += 1;
        let down = 1 + self.random.below(down_ms);
        self.schedule(down * MS, Event::Start(at));
    }

    fn join(&mut self) {
        let fresh = |at: &Id| !self.roster.is_up(*at) && !self.roster.is_founder(*at) && self.roster.start_of(*at) == 0;
        if let Some(at) = (0..self.roster.len() as Id).find(fresh) {
            self.plan.joins += 1;
            self.start(at);
        }
    }

    fn leave(&mut self, at: Id) {
        let live = (0..self.roster.len() as Id).filter(|of| self.roster.is_up(*of)).count();
        if live > 3 {
            self.end(at, End::Left);
            let site = &mut self.sites[at as usize];
            site.wanted.clear();
            site.published.clear();
            self.has_left.insert(at);
        }
    }

    /// Cuts a link in one direction. If that takes long, both sites notice it.
    fn cut(&mut self) {
        let (from, to) = (self.any_site(), self.any_site());
        let until = self.now + self.random.below(30_000) * MS;
        self.plan.cuts += 1;
        self.cuts.insert((from, to), until);
        let noticed = self.now + 5 * SECOND + self.random.below(7000) * MS;
        if from != to && noticed < until {
            self.agenda.add(noticed, Event::Unlink(Box::new((from, to, until))));
            let again = self.random.below(2000) * MS;
            self.agenda.add(until + again, Event::Relink(from, to));
        }
    }

    /// Tables do not exceed their limits.
    pub(super) fn check_limits(&self) -> Outcome {
        for (at, site) in self.sites.iter().enumerate() {
            let cached = site.cache.len();
            check(cached <= self.conditions.cache.entries_max, || format!("site {at} caches {cached} topics"))?;
            check(site.directory.len() <= ADVERTISEMENTS_MAX, || format!("the directory of site {at} is too large"))?;
            check(site.directory.watch_count() <= WATCHES_MAX, || format!("site {at} is watched too often"))?;
        }
        Ok(())
    }

    /// No directory has a site that withdrew or ended before the time to live of an advertisement.
    fn check_expiry(&self) -> Outcome {
        let slowest = self.late_max + DELAY_MS.1 * MS;
        let longest = ADVERTISE_TTL_MS * MS + slowest + 2 * MS;
        let within = Within { changed: longest, crashed: longest };
        for topic in 0..self.roster.topic_count() as Topic {
            for at in (0..self.roster.len() as Id).filter(|at| self.roster.is_up(*at)) {
                let found = self.sites[at as usize].directory.lookup(self.roster.topic(topic), self.clock_ms(at));
                let differences = self.truth.compare(&self.roster, (at, topic), &found, within, self.now);
                check(differences.wrong + differences.ended == 0, || {
                    format!(
                        "site {} is advertised for topic {topic} at site {at}, longer than its time to live allows",
                        differences.example.unwrap_or_default()
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Ends all faults. After some time, every publisher has to send to all readers, and to no other site.
    fn heal(&mut self) -> Outcome {
        self.plan = Plan { has_faults: false, is_busy: false, older: 0, ..self.plan };
        self.losses = Losses::default();
        self.cuts.clear();
        for (from, to) in self.roster.unlinked() {
            self.relink(from, to)?;
        }
        for at in 0..self.roster.len() as Id {
            let has_run = self.roster.is_founder(at) || self.roster.start_of(at) > 0;
            if has_run && !self.has_left.contains(&at) {
                self.start(at);
            }
        }
        let end = self.now + HEALING;
        while self.now < end {
            self.run_until(end.min(self.now + 10 * SECOND))?;
            self.check_limits()?;
            self.check_expiry()?;
        }
        self.check_all_found()
    }

    /// Every publisher uses exactly the readers, and every owner has exactly these.
    fn check_all_found(&mut self) -> Outcome {
        let live: Vec<Id> = (0..self.roster.len() as Id).filter(|at| self.roster.is_up(*at)).collect();
        let names: Vec<SiteName> = live.iter().map(|at| self.roster.name(*at).clone()).collect();
        for topic in 0..self.roster.topic_count() as Topic {
            let readers: Vec<SiteName> =
                self.truth.readers(topic).map(|(at, _)| self.roster.name(at).clone()).collect();
            let name = self.roster.topic(topic).clone();
            for owner in owners(&name, &names) {
                let at = self.roster.id(&owner);
                let found = self.sites[at as usize].directory.lookup(&name, self.clock_ms(at));
                check(found == readers, || {
                    format!("owner {owner} of {name} has {found:?} after the faults, and {readers:?} read it")
                })?;
            }
        }
        for at in live {
            for topic in self.sites[at as usize].published.clone() {
                self.schedule(0, Event::Publish(at, topic, 1));
            }
        }
        self.samples.clear();
        self.run_until(self.now + 10 * SECOND)?;
        self.check_samples("after the faults")
    }

    /// All samples used exactly the readers.
    fn check_samples(&mut self, when: &str) -> Outcome {
        let samples: Vec<_> = std::mem::take(&mut self.samples).into_values().flatten().collect();
        let wrong = samples.iter().filter(|sample| !sample.is_right).count();
        check(wrong == 0, || {
            format!("{wrong} of {} records were not sent to exactly the readers {when}", samples.len())
        })
    }

    /// Readers, publishers and sites change without faults: every change is known within the bounds of the delays.
    fn stay_calm(&mut self) -> Outcome {
        self.settled = Some(SETTLED);
        self.is_strict = true;
        self.plan.is_busy = true;
        self.publish_every = SECOND;
        self.schedule(0, Event::Work);
        let end = self.now + CALM;
        self.join();
        // Sites restart one after the other, as for an upgrade.
        for at in 0..self.roster.len() as Id {
            self.run_until(self.now + 3 * SECOND / 2)?;
            if self.roster.is_up(at) {
                self.crash(at, 300);
            }
            if at == 4 {
                let leaver = self.any_site();
                if self.roster.is_up(leaver) {
                    self.leave(leaver);
                }
            }
        }
        self.run_until(end.max(self.now))?;
        self.plan.is_busy = false;
        self.publish_every = 0;
        self.run_until(self.now + 15 * SECOND)
    }

    /// A site loses all its links while clients stop reading a topic, and has others soon: its withdrawals are lost,
    /// and what it tells on the new links replaces what it had told.
    fn lose_links(&mut self) -> Outcome {
        self.settled = None;
        let live: Vec<Id> = (0..self.roster.len() as Id).filter(|at| self.roster.is_up(*at)).collect();
        let at = live[self.random.below(live.len() as u64) as usize];
        let topic = self.any_topic();
        if !self.sites[at as usize].wanted.contains(&topic) {
            self.set_wanted(at, topic, true);
        }
        self.run_until(self.now + FOUND_WITHIN)?;
        let others: Vec<Id> = live.into_iter().filter(|of| *of != at).collect();
        for pair in others.iter().flat_map(|of| [(at, *of), (*of, at)]) {
            self.cuts.insert(pair, Time::MAX);
        }
        self.set_wanted(at, topic, false);
        self.run_until(self.now + 2 * SECOND)?;
        for of in &others {
            self.roster.set_unlinked((at, *of), true);
            self.on_ended(at, *of, End::Crashed)?;
            self.on_ended(*of, at, End::Crashed)?;
        }
        self.cuts.clear();
        self.run_until(self.now + SECOND)?;
        for of in &others {
            self.relink(at, *of)?;
        }
        self.run_until(self.now + 2 * FOUND_WITHIN)?;
        self.settled = Some(SETTLED);
        self.check_all_found()
    }

    /// Many publishes at one site within a second: of a topic that is not cached, and of one that has expired.
    fn storm(&mut self) -> Outcome {
        let idle = self.conditions.cache.ttl_ms * 6 + 1000;
        self.run_until(self.now + idle * MS)?;
        self.counts.in_flight_max = 0;
        let live: Vec<Id> = (0..self.roster.len() as Id).filter(|at| self.roster.is_up(*at)).collect();
        for topic in 0..self.roster.topic_count() as Topic {
            let at = live[self.random.below(live.len() as u64) as usize];
            self.set_published(at, topic, true);
            for sample in 0..STORM {
                let after = self.random.below(1000) * MS;
                self.schedule(after, Event::Publish(at, topic, 1 + sample));
            }
        }
        let storms = self.roster.topic_count() * STORM as usize;
        self.run_until(self.now + 20 * SECOND)?;
        // With an evicted entry, the cache also forgets its lookup.
        let is_evicting = self.conditions.cache.entries_max < self.roster.topic_count();
        let in_flight = self.counts.in_flight_max;
        check(is_evicting || in_flight <= 1, || {
            format!("{in_flight} lookups of one topic were in flight at one site")
        })?;
        let sent: usize = self.samples.values().map(Vec::len).sum();
        check(sent == storms, || format!("{} of {storms} records of storms were lost", storms - sent))?;
        self.check_samples("of storms")
    }

    /// Clients stop reading and publishing: all tables have to become empty.
    fn drain(&mut self) -> Outcome {
        for at in 0..self.roster.len() as Id {
            for topic in self.sites[at as usize].wanted.clone() {
                self.set_wanted(at, topic, false);
            }
            for topic in self.sites[at as usize].published.clone() {
                self.set_published(at, topic, false);
            }
        }
        self.run_until(self.now + DRAINING)?;
        self.check_empty()
    }

    /// No live site has any entry.
    pub(super) fn check_empty(&mut self) -> Outcome {
        for at in (0..self.roster.len() as Id).filter(|at| self.roster.is_up(*at)) {
            let now_ms = self.clock_ms(at);
            let site = &mut self.sites[at as usize];
            site.cache.sweep(now_ms);
            for (table, entries) in site.tables() {
                check(entries == 0, || {
                    format!("site {at} keeps {entries} {table} though nothing is read or published")
                })?;
            }
            check(site.interest.next_due_ms().is_none(), || format!("site {at} still has something to announce"))?;
        }
        Ok(())
    }
}
