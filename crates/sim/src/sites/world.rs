//! Events, messages and the network of the simulated sites.

use std::collections::{BTreeMap, BTreeSet};

use consensus::{Random, Time};
use engine::mesh::{CacheSettings, SiteName};

use super::faults::{FOUND_WITHIN, Plan};
use super::roster::{CRASH_MAX, End, Id, LINK_MAX, Roster, Topic};
use super::site::{List, Reason, Record, Site};
use super::truth::{Truth, Within};
use super::wheel::Wheel;
use super::{Bug, MS};
use crate::violation::{Outcome, Violation, digest_after};

/// Time without any path after which the part of the directory of a site is forgotten, as in `crates/mesh`.
pub(super) const UNREACHABLE_AFTER: Time = 10_000 * MS;
/// Pause before a check that a change requires, as in `crates/mesh`.
pub(super) const KEEP_PAUSE: Time = 2 * MS;
/// Interval of the checks of a site, as in `crates/mesh`. One that has nothing to do is omitted.
pub(super) const KEEP_EVERY: Time = 250 * MS;
/// Interval at which a site that starts checks its new links.
const LINK_STEP: Time = 25 * MS;
/// Sites at the beginning of the ranks of a topic whose coming and going can change its owners.
const NEAR: usize = 12;

#[derive(Clone)]
pub(super) enum Message {
    Advertise { epoch: u64, topic: Topic, ttl_ms: u64 },
    Withdraw { epoch: u64, topic: Topic },
    Advertised { epoch: u64, topics: usize },
    LookUp { id: u64, topic: Topic, watch_ms: u32 },
    Found { id: u64, sites: List },
    Changed { topic: Topic, sites: List },
}

impl Message {
    fn kind(&self) -> usize {
        match self {
            Self::Advertise { .. } => 0,
            Self::Withdraw { .. } => 1,
            Self::LookUp { .. } => 2,
            Self::Found { .. } => 3,
            Self::Changed { .. } => 4,
            Self::Advertised { .. } => 5,
        }
    }
}

/// Message in flight.
pub(super) struct Flight {
    from: Id,
    to: Id,
    sent: Time,
    reason: Reason,
    message: Message,
}

pub(super) enum Event {
    /// A message arrives; its place is the one in `World::flights`.
    Deliver(u32),
    Keep(Id),
    /// Records of a topic look it up again.
    Retry(Id, Topic),
    /// A lookup has taken too long.
    Late(Id, u64),
    /// A site has a link to a started one.
    Linked(Id, Id),
    /// A site notices that another one has ended.
    Ended(Id, Id, End),
    /// A site has not been reached for long.
    Forget(Id, Id),
    /// A link that is cut times out.
    Unlink(Box<(Id, Id, Time)>),
    Relink(Id, Id),
    Start(Id),
    Crash(Id),
    /// A client publishes; publishers of the workload repeat it.
    Publish(Id, Topic, u32),
    Work,
    Fault,
}

impl Event {
    fn kind(&self) -> u64 {
        let of = |kind: u64, site: &Id| kind << 40 | u64::from(*site);
        match self {
            Self::Deliver(place) => of(1, place),
            Self::Keep(site) => of(6, site),
            Self::Retry(site, _) => of(7, site),
            Self::Late(site, _) => of(8, site),
            Self::Linked(site, _) => of(9, site),
            Self::Ended(site, ..) => of(10, site),
            Self::Forget(site, _) => of(11, site),
            Self::Unlink(cut) => of(12, &cut.0),
            Self::Relink(site, _) => of(13, site),
            Self::Start(site) => of(14, site),
            Self::Crash(site) => of(18, site),
            Self::Publish(site, ..) => of(15, site),
            Self::Work => 16 << 40,
            Self::Fault => 17 << 40,
        }
    }
}

/// Faults of the network: each happens to one in `n` messages, never for 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub lose: u64,
    pub double: u64,
    pub late: u64,
    pub late_max: Time,
}

/// Rule by which a site looks up its watched topics again when the list of sites changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// All of them at every change, as `crates/mesh` does.
    All,
    /// Topics whose owners have changed or restarted, and topics with a site that was not known.
    Changed,
}

/// Conditions of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    pub cache: CacheSettings,
    pub delay_ms: (u64, u64),
    pub again: Again,
    /// `true` if every site is given the whole list of sites, and every change of it; otherwise sites are given the
    /// part that can matter to them.
    pub is_whole: bool,
    pub bug: Option<Bug>,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub events: u64,
    /// Messages by kind and reason.
    pub messages: [[u64; 6]; 3],
    pub publishes: u64,
    /// Publishes for which the cache had the sites.
    pub warm: u64,
    pub missing: u64,
    /// Readers that were missing in the first answer to a lookup, soon after sites came or went.
    pub partial: u64,
    pub wrong: u64,
    pub ended: u64,
    pub ending: u64,
    /// Largest number of lookups of one topic in flight at one site, without those for watches.
    pub in_flight_max: usize,
    pub trace: u64,
}

impl Counts {
    pub fn all_messages(&self) -> u64 {
        self.messages.iter().flatten().sum()
    }

    pub fn of_reason(&self, reason: Reason) -> u64 {
        self.messages[reason as usize].iter().sum()
    }
}

/// Record whose way is measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Time at which the sites of its topic were known.
    pub found_at: Time,
    /// Time since it was published.
    pub latency: Time,
    /// Time from its publication to its arrival at the first reader; `None` without another reader.
    pub first_message: Option<Time>,
    pub trips: u32,
    /// `true` if exactly the readers were used.
    pub is_right: bool,
}

/// New reader, until the publishers of its topic know it.
#[derive(Clone, Debug, Default)]
pub(super) struct NewReader {
    pub begun: Time,
    /// Publishers that do not know it.
    pub unaware: BTreeSet<Id>,
    /// Times after which publishers knew it, in the order in which they did.
    pub found_after: Vec<Time>,
    /// Times after which a record that a publisher sends then arrives.
    pub first_messages: Vec<Time>,
}

pub(super) struct World {
    pub random: Random,
    pub conditions: Conditions,
    pub now: Time,
    pub agenda: Wheel<Event>,
    /// Messages in flight, apart from their events, which are moved often.
    flights: Vec<Option<Flight>>,
    free_flights: Vec<u32>,
    pub roster: Roster,
    pub sites: Vec<Site>,
    pub truth: Truth,
    pub losses: Losses,
    /// Maximum delay that losses of this world ever add to a message.
    pub late_max: Time,
    /// Sites that have left for good.
    pub has_left: BTreeSet<Id>,
    /// One-way cuts, with the times at which they end.
    pub cuts: BTreeMap<(Id, Id), Time>,
    pub counts: Counts,
    /// Reason of what happens now.
    pub reason: Reason,
    pub lookups: u64,
    /// Times after which a difference between used and reading sites is an error; `None` if it never is.
    pub settled: Option<Within>,
    /// Time until which sites may differ about the owners of topics, since sites came or went.
    pub unsettled_until: Time,
    /// Time between two publishes of a client; 0 for none.
    pub publish_every: Time,
    /// Samples by number, which begins with 1.
    pub samples: BTreeMap<u32, Vec<Sample>>,
    /// New readers whose way is measured, by topic and site.
    pub new_readers: BTreeMap<(Topic, Id), NewReader>,
    /// Sites that have read or published to each topic, to find those that a change concerns.
    pub concerned: Vec<Vec<Id>>,
    /// Topics of which each site may come to be an owner.
    near: Vec<Vec<Topic>>,
    /// Sites that live at first.
    pub first_sites: Vec<SiteName>,
    /// `true` if a difference is a violation, and not just counted.
    pub is_strict: bool,
    /// Things to do in a run with faults.
    pub plan: Plan,
}

impl World {
    pub fn new(seed: u64, conditions: Conditions, sites: usize, live: usize, topics: usize) -> Self {
        let mut random = Random::new(seed);
        let roster = Roster::new(random.number(), sites, live, topics);
        let new = |_| Site::new(conditions.cache, 1, random.below(10_000));
        let all = (0..sites).map(new).collect();
        let mut near = vec![Vec::new(); sites];
        for topic in 0..topics as Topic {
            roster.first(topic, NEAR).iter().for_each(|site| near[*site as usize].push(topic));
        }
        Self {
            conditions,
            now: 0,
            agenda: Wheel::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            first_sites: (0..live as Id).map(|site| roster.name(site).clone()).collect(),
            roster,
            sites: all,
            truth: Truth::new(topics),
            losses: Losses::default(),
            late_max: 0,
            has_left: BTreeSet::new(),
            cuts: BTreeMap::new(),
            counts: Counts::default(),
            reason: Reason::default(),
            lookups: 0,
            settled: None,
            unsettled_until: 0,
            publish_every: 0,
            samples: BTreeMap::new(),
            new_readers: BTreeMap::new(),
            concerned: vec![Vec::new(); topics],
            near,
            is_strict: false,
            plan: Plan::default(),
            random,
        }
    }

    pub fn has_bug(&self, bug: Bug) -> bool {
        self.conditions.bug == Some(bug)
    }

    pub fn schedule(&mut self, after: Time, event: Event) {
        self.agenda.add(self.now + after, event);
    }

    /// Returns the time in ms by the clock of a site.
    pub fn clock_ms(&self, site: Id) -> u64 {
        self.now / MS + self.sites[site as usize].clock_ms
    }

    /// Lets the next event happen. Returns `false`, with the time set, if that is after `end`.
    pub fn turn(&mut self, end: Time) -> Result<bool, Violation> {
        let Some((at, event)) = self.agenda.next_until(end) else {
            self.now = end;
            return Ok(false);
        };
        self.now = at;
        self.counts.events += 1;
        self.counts.trace = digest_after(self.counts.trace, [at, self.agenda.added(), event.kind()]);
        self.reason = Reason::Steady;
        self.handle(event)?;
        Ok(true)
    }

    /// Lets everything happen until a time.
    pub fn run_until(&mut self, end: Time) -> Outcome {
        while self.turn(end)? {}
        Ok(())
    }

    /// Notes that a publisher knows the sites that read a topic.
    pub fn note_found(&mut self, at: Id, topic: Topic, sites: &[SiteName]) {
        let of_topic = self.new_readers.range_mut((topic, Id::MIN)..=(topic, Id::MAX));
        for ((_, reader), of) in of_topic {
            if of.unaware.contains(&at) && sites.binary_search(self.roster.name(*reader)).is_ok() {
                of.unaware.remove(&at);
                let after = self.now - of.begun;
                of.found_after.push(after);
                of.first_messages.push(after + self.roster.delay(at, *reader, self.conditions.delay_ms));
            }
        }
    }

    fn handle(&mut self, event: Event) -> Outcome {
        match event {
            Event::Deliver(place) => {
                let Some(Flight { from, to, sent, reason, message }) = self.flights[place as usize].take() else {
                    return Ok(());
                };
                self.free_flights.push(place);
                self.reason = reason;
                return self.deliver((from, to), sent, message);
            }
            Event::Keep(at) => return self.keep(at),
            Event::Retry(at, topic) => return self.retry(at, topic),
            Event::Late(at, id) => self.give_up(at, id),
            Event::Linked(at, of) => self.on_linked(at, of)?,
            Event::Ended(at, of, end) => self.on_ended(at, of, end)?,
            Event::Forget(at, of) => {
                if self.roster.is_up(at) && !self.roster.sees(at, of, self.now) {
                    self.reason = Reason::Sites;
                    return self.forget(at, of);
                }
            }
            Event::Unlink(cut) => {
                let (from, to, until) = *cut;
                if self.cuts.get(&(from, to)) == Some(&until) {
                    self.roster.set_unlinked((from, to), true);
                    for (at, of) in [(from, to), (to, from)] {
                        self.on_ended(at, of, End::Crashed)?;
                    }
                }
            }
            Event::Relink(from, to) => return self.relink(from, to),
            Event::Start(at) => {
                if !self.has_left.contains(&at) {
                    self.start(at);
                }
            }
            Event::Crash(at) => {
                if self.roster.is_up(at) {
                    self.end(at, End::Crashed);
                    self.plan.restarts += 1;
                }
            }
            Event::Publish(at, topic, sample) => {
                let is_repeated = sample == 0;
                if is_repeated && self.publish_every > 0 && self.sites[at as usize].published.contains(&topic) {
                    let next = self.publish_every / 2 + self.random.below(self.publish_every);
                    self.schedule(next, Event::Publish(at, topic, 0));
                }
                if self.roster.is_up(at) {
                    self.counts.publishes += 1;
                    return self.publish(at, topic, Record { published: self.now, trips: 0, sample });
                }
            }
            Event::Work => return self.work(),
            Event::Fault => return self.fault(),
        }
        Ok(())
    }

    /// Links two sites again whose link has timed out.
    pub fn relink(&mut self, from: Id, to: Id) -> Outcome {
        if !self.roster.unlinked().contains(&(from.min(to), from.max(to))) {
            return Ok(());
        }
        self.roster.set_unlinked((from, to), false);
        self.on_linked(from, to)?;
        self.on_linked(to, from)
    }

    /// Sends a message, if the sender has a path to the receiver.
    pub fn send(&mut self, from: Id, to: Id, message: Message) {
        if !self.roster.sees(from, to, self.now) {
            return;
        }
        self.counts.messages[self.reason as usize][message.kind()] += 1;
        let Losses { lose, double, late, late_max } = self.losses;
        let is_cut = !self.cuts.is_empty() && self.cuts.get(&(from, to)).is_some_and(|until| *until > self.now);
        if is_cut || self.random.one_in(lose) {
            return;
        }
        let delay = self.roster.delay(from, to, self.conditions.delay_ms);
        let again = self.random.one_in(double).then(|| message.clone());
        for message in [Some(message), again].into_iter().flatten() {
            let more = if self.random.one_in(late) { self.random.below(late_max) } else { 0 };
            let flight = Some(Flight { from, to, sent: self.now, reason: self.reason, message });
            let place = self.free_flights.pop().unwrap_or(self.flights.len() as u32);
            match self.flights.get_mut(place as usize) {
                Some(free) => *free = flight,
                None => self.flights.push(flight),
            }
            self.schedule(delay + more, Event::Deliver(place));
        }
    }

    fn deliver(&mut self, (from, to): (Id, Id), sent: Time, message: Message) -> Outcome {
        let what = u64::from(to) << 8 | message.kind() as u64;
        self.counts.trace = digest_after(self.counts.trace, [sent, from.into(), what]);
        // What was sent to a run before, or on its links, is lost. What a run before has sent may still arrive.
        let roster = &self.roster;
        let is_later = roster.started(to) > 0 && roster.started(to) >= roster.started(from);
        if !roster.is_up(to) || roster.started(to) > sent || (is_later && roster.links_at(from, to) > sent) {
            return Ok(());
        }
        match message {
            Message::Advertise { epoch, topic, ttl_ms } => self.on_advertise(to, from, epoch, topic, ttl_ms),
            Message::Withdraw { epoch, topic } => self.on_withdraw(to, from, epoch, topic),
            Message::Advertised { epoch, topics } => self.on_advertised(to, from, epoch, topics),
            Message::LookUp { id, topic, watch_ms } => {
                let sites = self.answer(to, from, topic, watch_ms);
                self.send(to, from, Message::Found { id, sites });
                Ok(())
            }
            Message::Found { id, sites } => self.on_found(to, id, from, sites),
            Message::Changed { topic, sites } => self.on_changed(to, from, topic, sites),
        }
    }

    /// Starts a site, or starts it again.
    pub fn start(&mut self, at: Id) {
        if self.roster.is_up(at) {
            return;
        }
        let epoch = self.sites[at as usize].epoch + 1;
        self.start_with(at, epoch);
    }

    pub fn start_with(&mut self, at: Id, epoch: u64) {
        self.roster.note_start(at, self.now);
        self.unsettled_until = self.unsettled_until.max(self.now + FOUND_WITHIN);
        let site = &mut self.sites[at as usize];
        site.restart(self.conditions.cache, epoch);
        let wanted: Vec<Topic> = site.wanted.iter().copied().collect();
        for topic in wanted {
            self.set_wanted(at, topic, true);
        }
        if self.conditions.is_whole {
            for of in self.others(at) {
                self.tell_link(at, of);
                self.tell_link(of, at);
            }
            return;
        }
        // A site with new links checks them often, until it has them all.
        for step in 1..=(LINK_MAX / LINK_STEP) {
            self.schedule(step * LINK_STEP, Event::Linked(at, at));
        }
        for of in self.concerned_by(at) {
            self.tell_link(of, at);
        }
    }

    fn tell_link(&mut self, at: Id, of: Id) {
        self.agenda.add(self.roster.links_at(at, of), Event::Linked(at, of));
    }

    /// Ends a site.
    pub fn end(&mut self, at: Id, end: End) {
        if !self.roster.is_up(at) {
            return;
        }
        self.roster.note_end(at, end, self.now);
        let noticed = if end == End::Crashed { CRASH_MAX } else { 0 };
        self.unsettled_until = self.unsettled_until.max(self.now + noticed + FOUND_WITHIN);
        let site = &mut self.sites[at as usize];
        site.waiting.clear();
        site.pending.clear();
        for topic in &site.wanted {
            self.truth.end(*topic, at, Some(end), self.now);
        }
        let others = if self.conditions.is_whole { self.others(at) } else { self.concerned_by(at) };
        for other in others {
            if let Some(when) = self.roster.notices_at(other, at) {
                self.agenda.add(when, Event::Ended(other, at, end));
            }
        }
    }

    /// Returns the other sites that are up.
    fn others(&self, at: Id) -> Vec<Id> {
        (0..self.roster.len() as Id).filter(|of| *of != at && self.roster.is_up(*of)).collect()
    }

    /// Returns the sites that a start or an end of a site can concern: those that read or publish to topics that it may
    /// own, those that publish to what it reads, and the owners of that. With [`Again::All`], these are all sites.
    fn concerned_by(&self, at: Id) -> Vec<Id> {
        if self.conditions.again == Again::All {
            return self.others(at);
        }
        let near = self.near[at as usize].iter().copied();
        let wanted = &self.sites[at as usize].wanted;
        let topics = near.chain(wanted.iter().copied());
        let mut sites: Vec<Id> = topics.flat_map(|topic| self.concerned[topic as usize].iter().copied()).collect();
        sites.extend(wanted.iter().flat_map(|topic| self.roster.first(*topic, NEAR)));
        sites.sort_unstable();
        sites.dedup();
        sites.retain(|of| *of != at && self.roster.is_up(*of));
        sites
    }
}
