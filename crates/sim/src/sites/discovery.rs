//! Discovery of one site, driven as `crates/mesh/src/discovery.rs` does it, with events in place of tasks.

use std::rc::Rc;

use consensus::Time;
use engine::TopicName;
use engine::mesh::{ADVERTISE_TTL_MS, Advertised, Announcement, AnnouncementKind, Lookup, SiteName, Watchers};

use super::roster::{End, Id, Topic};
use super::site::{Cause, List, Pending, Reason, Record, Waiting, Watched};
use super::truth::Within;
use super::world::{Again, Event, KEEP_EVERY, KEEP_PAUSE, Message, Sample, UNREACHABLE_AFTER, World};
use super::{Bug, MS};
use crate::violation::{Outcome, check};

/// Times in ms, as in `crates/mesh`: for an answer of the directory, for which a site watches a topic, and after which
/// it looks the topic up again.
const LOOK_UP_TIMEOUT_MS: u64 = 2000;
pub(super) const WATCH_MS: u32 = 120_000;
const WATCH_AGAIN_MS: u64 = WATCH_MS as u64 / 2;
/// Pause in ms after a lookup that has failed.
const LOOK_UP_AGAIN_MS: u64 = 1000;
/// Maximum topics that are looked up again in one check.
const WATCHES_AT_ONCE: usize = 64;

impl World {
    /// Checks a site soon.
    pub fn keep_soon(&mut self, at: Id, reason: Reason) {
        self.keep_by(at, self.now + KEEP_PAUSE, reason);
    }

    /// Checks a site at a time, unless that is done before.
    fn keep_by(&mut self, at: Id, when: Time, reason: Reason) {
        let site = &mut self.sites[at as usize];
        if let Some((known, known_reason)) = &mut site.keep_at
            && *known <= when
        {
            // Of several reasons, that of a change is the more interesting one.
            if reason != Reason::Steady && *known == when {
                *known_reason = reason;
            }
            return;
        }
        site.keep_at = Some((when, reason));
        self.agenda.add(when, Event::Keep(at));
    }

    /// Announces what a site wants where it is due, watches topics, and removes what has expired.
    pub fn keep(&mut self, at: Id) -> Outcome {
        let Some((_, reason)) = self.sites[at as usize].keep_at.filter(|(when, _)| *when == self.now) else {
            return Ok(());
        };
        self.sites[at as usize].keep_at = None;
        if !self.roster.is_up(at) {
            return Ok(());
        }
        self.reason = reason;
        self.watch_due(at)?;
        let is_silent = self.has_bug(Bug::NeverRenews) && reason == Reason::Steady;
        if !is_silent {
            self.announce(at)?;
        }
        let now_ms = self.clock_ms(at);
        if !self.has_bug(Bug::NeverSweeps) {
            let expired = self.sites[at as usize].directory.sweep(now_ms);
            self.tell_all(at, expired)?;
        }
        self.sites[at as usize].cache.sweep(now_ms);
        self.keep_later(at);
        Ok(())
    }

    /// Schedules the next check that has something to do: checks are at multiples of an interval.
    fn keep_later(&mut self, at: Id) {
        let now_ms = self.clock_ms(at);
        let site = &self.sites[at as usize];
        let watched = site.watched.values().map(|one| one.at_ms.map_or(now_ms, |at_ms| at_ms + WATCH_AGAIN_MS)).min();
        let due = [watched, site.interest.next_due_ms(), site.directory.next_due_ms()].into_iter().flatten().min();
        if let Some(due_ms) = due {
            let phase = u64::from(at) * MS % KEEP_EVERY;
            let due = self.now + due_ms.saturating_sub(now_ms) * MS + 1;
            self.keep_by(at, (due - phase.min(due)).next_multiple_of(KEEP_EVERY) + phase, Reason::Steady);
        }
    }

    fn announce(&mut self, at: Id) -> Outcome {
        let now_ms = self.clock_ms(at);
        let list = self.list_for(at, now_ms);
        let due = self.sites[at as usize].interest.due(&list, now_ms);
        // In a part of the sites, one arrives when it begins to matter, which it does not with all of them.
        let mut advertised = self.sites[at as usize].interest.advertised();
        advertised.retain(|_| self.conditions.is_whole);
        let run = self.sites[at as usize].epoch << 20;
        for Announcement { to, arrival, topic, kind } in due {
            let epoch = run + arrival;
            let (to, topic) = (self.roster.id(&to), self.roster.topic_id(&topic));
            match kind {
                AnnouncementKind::Advertise { ttl_ms } => {
                    self.sites[at as usize].told.insert(to, now_ms + ADVERTISE_TTL_MS);
                    if to == at {
                        self.on_advertise(at, at, epoch, topic, ttl_ms)?;
                    } else {
                        self.send(at, to, Message::Advertise { epoch, topic, ttl_ms });
                    }
                }
                AnnouncementKind::Withdraw if to == at => self.on_withdraw(at, at, epoch, topic)?,
                AnnouncementKind::Withdraw => self.send(at, to, Message::Withdraw { epoch, topic }),
            }
        }
        for Advertised { to, arrival, topics } in advertised {
            let to = self.roster.id(&to);
            self.send(at, to, Message::Advertised { epoch: run + arrival, topics });
        }
        Ok(())
    }

    /// Returns the sites that a site can reach, or the part of them that can matter to its interest: the owners of its
    /// topics, and those to which it has advertised. Of rendezvous hashing, the owners among all sites are those among
    /// any part that has them, so the announcements are equal.
    fn list_for(&mut self, at: Id, now_ms: u64) -> Vec<SiteName> {
        if self.has_bug(Bug::KeepsFirstOwners) {
            return self.first_sites.clone();
        }
        if self.conditions.is_whole {
            return self.roster.reachable(at, self.now);
        }
        self.sites[at as usize].told.retain(|_, until_ms| *until_ms > now_ms);
        let wanted: Vec<Topic> = self.sites[at as usize].wanted.iter().copied().collect();
        let mut part: Vec<Id> = wanted.iter().flat_map(|topic| self.roster.owners(at, *topic, self.now)).collect();
        let told = self.sites[at as usize].told.keys().copied();
        part.extend(told.filter(|of| self.roster.sees(at, *of, self.now)));
        part.sort_unstable();
        part.dedup();
        part.into_iter().map(|of| self.roster.name(of).clone()).collect()
    }

    /// Looks topics up again before their owners forget that this site watches them.
    fn watch_due(&mut self, at: Id) -> Outcome {
        let now_ms = self.clock_ms(at);
        let keeps_views = self.has_bug(Bug::KeepsViews);
        let site = &mut self.sites[at as usize];
        site.watched.retain(|topic, _| site.published.contains(topic));
        if !keeps_views {
            site.views.retain(|topic, _| site.published.contains(topic));
        }
        let is_due = |at_ms: Option<u64>| at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= WATCH_AGAIN_MS);
        let due = site.watched.iter().filter(|(_, one)| is_due(one.at_ms)).map(|(topic, _)| *topic);
        let due: Vec<Topic> = due.take(WATCHES_AT_ONCE).collect();
        due.into_iter().try_for_each(|topic| self.look_up(at, topic, Cause::Watch))
    }

    pub fn on_advertise(&mut self, at: Id, from: Id, epoch: u64, topic: Topic, ttl_ms: u64) -> Outcome {
        let now_ms = self.clock_ms(at);
        let ttl_ms = if self.has_bug(Bug::UsesTimeOfSender) {
            (self.clock_ms(from) + ttl_ms).saturating_sub(now_ms)
        } else {
            ttl_ms
        };
        let (topic_name, name) = (self.roster.topic(topic), self.roster.name(from));
        // A limit of the directory is an answer as well: the caller advertises again later.
        let advertised = self.sites[at as usize].directory.advertise(topic_name, name, epoch, ttl_ms, now_ms);
        self.keep_later(at);
        self.tell(at, topic, advertised.unwrap_or_default())
    }

    pub fn on_withdraw(&mut self, at: Id, from: Id, epoch: u64, topic: Topic) -> Outcome {
        let (topic_name, name) = (self.roster.topic(topic), self.roster.name(from));
        let watchers = self.sites[at as usize].directory.withdraw(topic_name, name, epoch);
        self.tell(at, topic, watchers)
    }

    /// Forgets what a site has advertised before, and not again on another link.
    pub fn on_advertised(&mut self, at: Id, from: Id, epoch: u64, topics: usize) -> Outcome {
        if self.has_bug(Bug::KeepsLostWithdrawals) {
            return Ok(());
        }
        let changes = self.sites[at as usize].directory.complete(self.roster.name(from), epoch, topics);
        self.tell_all(at, changes)
    }

    fn tell_all(&mut self, at: Id, changes: Vec<(TopicName, Watchers)>) -> Outcome {
        for (topic, watchers) in changes {
            let topic = self.roster.topic_id(&topic);
            self.tell(at, topic, watchers)?;
        }
        Ok(())
    }

    /// Sends the sites that read a topic to its watchers.
    fn tell(&mut self, at: Id, topic: Topic, watchers: Vec<SiteName>) -> Outcome {
        if watchers.is_empty() {
            return Ok(());
        }
        let now_ms = self.clock_ms(at);
        let sites: List = self.sites[at as usize].directory.lookup(self.roster.topic(topic), now_ms).into();
        for watcher in watchers {
            let to = self.roster.id(&watcher);
            if to == at {
                self.on_changed(at, at, topic, sites.clone())?;
            } else {
                self.send(at, to, Message::Changed { topic, sites: sites.clone() });
            }
        }
        Ok(())
    }

    /// Answers a lookup from a site's part of the directory.
    pub fn answer(&mut self, at: Id, from: Id, topic: Topic, watch_ms: u32) -> List {
        let now_ms = self.clock_ms(at);
        let is_watched = !self.has_bug(Bug::ForgetsWatches);
        let (topic_name, name) = (self.roster.topic(topic), self.roster.name(from));
        let directory = &mut self.sites[at as usize].directory;
        if is_watched {
            let until_ms = now_ms + u64::from(watch_ms.min(WATCH_MS));
            // Without a watch, the site asks again.
            directory.watch(topic_name, name, until_ms).unwrap_or_default();
        }
        let sites = directory.lookup(topic_name, now_ms).into();
        self.keep_later(at);
        sites
    }

    /// Takes the answer of an owner over. The first ones are those that a lookup waits for; any other one is a change.
    pub fn on_found(&mut self, at: Id, id: u64, from: Id, sites: List) -> Outcome {
        let Some(pending) = self.sites[at as usize].pending.get_mut(&id) else { return Ok(()) };
        pending.left = pending.left.saturating_sub(1);
        let Pending { topic, left, is_done, .. } = *pending;
        if left == 0 {
            self.sites[at as usize].pending.remove(&id);
        }
        if is_done && self.has_bug(Bug::IgnoresLaterAnswers) {
            return Ok(());
        }
        let all = self.note_view(at, topic, from, sites);
        if !all.is_empty() || is_done {
            self.take_over(at, topic, all.clone())?;
        }
        if !is_done && (!all.is_empty() || left == 0) {
            if let Some(pending) = self.sites[at as usize].pending.get_mut(&id) {
                pending.is_done = true;
            }
            let now_ms = self.clock_ms(at);
            self.note_found(at, topic, &all);
            self.sites[at as usize].cache.store(self.roster.topic(topic), all, now_ms);
            return self.wake(at, topic);
        }
        Ok(())
    }

    /// Takes a change over that an owner of a topic has sent.
    pub fn on_changed(&mut self, at: Id, from: Id, topic: Topic, sites: List) -> Outcome {
        let all = self.note_view(at, topic, from, sites);
        self.take_over(at, topic, all)
    }

    fn take_over(&mut self, at: Id, topic: Topic, sites: Vec<SiteName>) -> Outcome {
        let now_ms = self.clock_ms(at);
        self.note_found(at, topic, &sites);
        self.sites[at as usize].cache.changed(self.roster.topic(topic), sites, now_ms);
        self.wake(at, topic)
    }

    /// Notes the answer of an owner. Returns the sites that read the topic, by all owners.
    fn note_view(&mut self, at: Id, topic: Topic, from: Id, sites: List) -> Vec<SiteName> {
        let is_known = |name: &SiteName| self.roster.knows(at, self.roster.id(name), self.now);
        let are_known = sites.iter().all(is_known);
        let known: List = if are_known { sites } else { sites.iter().filter(|name| is_known(name)).cloned().collect() };
        let owners = self.roster.owners(at, topic, self.now);
        let site = &mut self.sites[at as usize];
        if let Some(watched) = site.watched.get_mut(&topic) {
            watched.has_unknown |= !are_known;
        }
        if !site.published.contains(&topic) {
            site.views.remove(&topic);
            return known.to_vec();
        }
        let views = site.views.entry(topic).or_default();
        views.retain(|(owner, _)| *owner != from && owners.contains(owner));
        // Equal lists share memory.
        let equal = views.iter().find(|(_, list)| **list == *known).map(|(_, list)| list.clone());
        if owners.contains(&from) {
            views.push((from, equal.unwrap_or(known)));
        }
        let Some((_, first)) = views.first() else { return Vec::new() };
        if views.iter().all(|(_, list)| Rc::ptr_eq(list, first)) {
            return first.to_vec();
        }
        let mut all: Vec<SiteName> = views.iter().flat_map(|(_, list)| list.iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Asks all owners of a topic which sites read it.
    pub fn look_up(&mut self, at: Id, topic: Topic, cause: Cause) -> Outcome {
        let now_ms = self.clock_ms(at);
        self.lookups += 1;
        let id = self.lookups;
        let owners = self.roster.owners(at, topic, self.now);
        let site = &mut self.sites[at as usize];
        let watched = Watched { at_ms: Some(now_ms), owners: owners.clone(), has_unknown: false };
        site.watched.insert(topic, watched);
        site.pending.insert(id, Pending { topic, left: owners.len(), is_done: false, cause });
        let is_same = |of: &&Pending| of.topic == topic && of.cause == Cause::Cache && !of.is_done;
        let in_flight = site.pending.values().filter(is_same).count();
        self.counts.in_flight_max = self.counts.in_flight_max.max(in_flight);
        self.schedule(LOOK_UP_TIMEOUT_MS * MS, Event::Late(at, id));
        self.keep_later(at);
        for owner in owners {
            if owner == at {
                let sites = self.answer(at, at, topic, WATCH_MS);
                self.on_found(at, id, at, sites)?;
            } else {
                self.send(at, owner, Message::LookUp { id, topic, watch_ms: WATCH_MS });
            }
        }
        Ok(())
    }

    /// Ends a lookup that has taken too long.
    pub fn give_up(&mut self, at: Id, id: u64) {
        if self.has_bug(Bug::KeepsLostLookups) {
            return;
        }
        let Some(pending) = self.sites[at as usize].pending.remove(&id) else { return };
        if !pending.is_done {
            let topic = pending.topic;
            self.sites[at as usize].cache.fail(self.roster.topic(topic));
            self.retry_by(at, topic, self.now + LOOK_UP_AGAIN_MS * MS);
        }
    }

    fn retry_by(&mut self, at: Id, topic: Topic, when: Time) {
        if let Some(waiting) = self.sites[at as usize].waiting.get_mut(&topic)
            && (waiting.retry_at <= self.now || waiting.retry_at > when)
        {
            waiting.retry_at = when;
            self.agenda.add(when, Event::Retry(at, topic));
        }
    }

    pub fn retry(&mut self, at: Id, topic: Topic) -> Outcome {
        let is_due = self.sites[at as usize].waiting.get(&topic).is_some_and(|one| one.retry_at == self.now);
        if is_due { self.wake(at, topic) } else { Ok(()) }
    }

    /// Has the records that wait for the sites of a topic look it up again.
    fn wake(&mut self, at: Id, topic: Topic) -> Outcome {
        let Some(Waiting { records, .. }) = self.sites[at as usize].waiting.remove(&topic) else { return Ok(()) };
        records.into_iter().try_for_each(|record| self.publish(at, topic, record))
    }

    /// Publishes a record at a site: looks its topic up, and sends the record to the sites that read it.
    pub fn publish(&mut self, at: Id, topic: Topic, mut record: Record) -> Outcome {
        let now_ms = self.clock_ms(at);
        let found = self.sites[at as usize].cache.lookup(self.roster.topic(topic), now_ms);
        match found {
            Lookup::Hit(sites) | Lookup::Stale { sites, is_refresh_due: false } => {
                self.use_sites(at, topic, record, &sites)
            }
            Lookup::Stale { sites, is_refresh_due: true } => {
                self.look_up(at, topic, Cause::Cache)?;
                self.use_sites(at, topic, record, &sites)
            }
            Lookup::Miss { is_query_due, retry_at_ms } => {
                record.trips += 1;
                self.sites[at as usize].waiting.entry(topic).or_default().records.push(record);
                self.retry_by(at, topic, self.now + (retry_at_ms.saturating_sub(now_ms) + 1) * MS);
                if is_query_due || self.has_bug(Bug::QueriesForEachCaller) {
                    return self.look_up(at, topic, Cause::Cache);
                }
                Ok(())
            }
        }
    }

    /// Compares the sites to which a record is sent with those that read its topic.
    fn use_sites(&mut self, at: Id, topic: Topic, record: Record, sites: &[SiteName]) -> Outcome {
        self.counts.warm += u64::from(record.trips == 0);
        let (of, now) = ((at, topic), self.now);
        if record.sample > 0 {
            let differences = self.truth.compare(&self.roster, of, sites, Within::default(), now);
            let latency = now - record.published;
            let reader = sites.iter().map(|name| self.roster.id(name)).find(|reader| *reader != at);
            let sample = Sample {
                found_at: now,
                latency,
                first_message: reader.map(|reader| latency + self.roster.delay(at, reader, self.conditions.delay_ms)),
                trips: if latency == 0 { 0 } else { record.trips },
                is_right: differences.example.is_none(),
            };
            self.samples.entry(record.sample).or_default().push(sample);
        }
        let Some(settled) = self.settled else { return Ok(()) };
        let started = self.roster.started(at);
        if started > 0 && now - started <= settled.changed {
            return Ok(());
        }
        let mut found = self.truth.compare(&self.roster, of, sites, settled, now);
        if found.missing > 0 && self.is_partial(at, topic) {
            self.counts.partial += std::mem::take(&mut found.missing);
        }
        self.counts.missing += found.missing;
        self.counts.wrong += found.wrong;
        self.counts.ended += found.ended;
        self.counts.ending += found.ending;
        check(!self.is_strict || (found.missing == 0 && found.wrong == 0), || {
            format!(
                "site {at} does not send topic {topic} to the right sites: {} are missing, {} have withdrawn, such as \
                 site {}",
                found.missing,
                found.wrong,
                found.example.unwrap_or_default()
            )
        })
    }

    /// Returns `true` if a site has not received the answers of all owners of a topic, soon after sites came or went: a
    /// new owner may have answered first, before all readers have advertised to it.
    fn is_partial(&self, at: Id, topic: Topic) -> bool {
        let mut pending = self.sites[at as usize].pending.values();
        self.now <= self.unsettled_until && pending.any(|of| of.topic == topic && of.left > 0)
    }

    /// Sets whether clients of a live site read a topic.
    pub fn set_wanted(&mut self, at: Id, topic: Topic, is_wanted: bool) {
        let now_ms = self.clock_ms(at);
        let site = &mut self.sites[at as usize];
        site.interest.set(self.roster.topic(topic), is_wanted, now_ms);
        if is_wanted {
            site.wanted.insert(topic);
            self.truth.begin(topic, at, self.now);
            self.note_concerned(at, topic);
        } else {
            site.wanted.remove(&topic);
            self.truth.end(topic, at, None, self.now);
        }
        self.keep_soon(at, Reason::Readers);
    }

    /// Sets whether clients of a site publish to a topic.
    pub fn set_published(&mut self, at: Id, topic: Topic, is_published: bool) {
        if is_published {
            self.sites[at as usize].published.insert(topic);
            self.note_concerned(at, topic);
        } else {
            self.sites[at as usize].published.remove(&topic);
            self.keep_soon(at, Reason::Steady);
        }
    }

    fn note_concerned(&mut self, at: Id, topic: Topic) {
        let concerned = &mut self.concerned[topic as usize];
        if !concerned.contains(&at) {
            concerned.push(at);
        }
    }

    /// A site has a link to one that has started, or has all links of its own start checked.
    pub fn on_linked(&mut self, at: Id, of: Id) -> Outcome {
        if !self.roster.is_up(at) || !self.roster.sees(at, of, self.now) {
            return Ok(());
        }
        self.reason = Reason::Sites;
        let now_ms = self.clock_ms(at);
        if at != of && !self.has_bug(Bug::IgnoresRestarts) {
            let start = self.roster.start_of(of);
            let first = if self.roster.is_founder(of) { 0 } else { start };
            if self.sites[at as usize].runs.insert(of, start).unwrap_or(first) != start {
                self.forget(at, of)?;
            }
            let name = self.roster.name(of);
            self.sites[at as usize].interest.reset_site(name, now_ms);
        }
        self.watch_again(at, of);
        self.keep_soon(at, Reason::Sites);
        Ok(())
    }

    /// A site notices that another one has ended, or that its link is cut.
    pub fn on_ended(&mut self, at: Id, of: Id, end: End) -> Outcome {
        if !self.roster.is_up(at) || self.roster.sees(at, of, self.now) {
            return Ok(());
        }
        self.reason = Reason::Sites;
        match end {
            End::Left => self.forget(at, of)?,
            End::Crashed => self.schedule(UNREACHABLE_AFTER, Event::Forget(at, of)),
        }
        self.watch_again(at, of);
        self.keep_soon(at, Reason::Sites);
        Ok(())
    }

    /// Forgets that a site reads topics.
    pub fn forget(&mut self, at: Id, of: Id) -> Outcome {
        let changes = self.sites[at as usize].directory.forget_site(self.roster.name(of));
        self.tell_all(at, changes)
    }

    /// Has watched topics looked up again, since the list of sites has changed.
    fn watch_again(&mut self, at: Id, of: Id) {
        let topics: Vec<Topic> = self.sites[at as usize].watched.keys().copied().collect();
        for topic in topics {
            let is_all = self.conditions.again == Again::All;
            let owners = if is_all { Vec::new() } else { self.roster.owners(at, topic, self.now) };
            if let Some(watched) = self.sites[at as usize].watched.get_mut(&topic)
                && (is_all || watched.has_unknown || watched.owners != owners || owners.contains(&of))
            {
                watched.at_ms = None;
            }
        }
    }
}
