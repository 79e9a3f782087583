//! Discovery: which sites read a topic.
//!
//! Every site advertises the topics that its clients read to the *owners* of each topic, up to three sites that all
//! compute alike from the topic's name and the list of sites. A site that publishes asks the owners, keeps their answer
//! in its subscriber cache, and watches the topic there: they send it every change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::mesh::{
    Advertised, Announcement, AnnouncementKind, Directory, Interest, Lookup, MeshStats, Owners, SiteName, Sites,
    SubscriberCache, owners,
};
use engine::{Error, ErrorKind, Result, TopicName};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::frame::Frame;
use crate::live::Outgoing;
use crate::running::Running;
use crate::site::Settings;

/// Time limit for an answer of the directory.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time in ms for which a site watches a topic after it has looked it up.
const WATCH_MS: u32 = 120_000;
/// Time after which a site looks a topic up again to go on watching it.
const WATCH_AGAIN_MS: u64 = WATCH_MS as u64 / 2;
/// Maximum topics that are looked up again at once.
const WATCHES_AT_ONCE: usize = 64;
/// Time in ms for which a topic stays advertised after the last fetch from it.
const LINGER_MS: u64 = 60_000;

/// Sites that read a topic. Several tasks find them, and may use what they have found in another order: of two, the one
/// with the higher number is newer.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub number: u64,
    pub sites: Sites,
}

/// Subscriber cache, with the number of its changes so far.
struct Cache {
    subscribers: SubscriberCache,
    changes: u64,
}

impl Cache {
    /// Notes a change.
    fn change(&mut self) -> &mut SubscriberCache {
        self.changes += 1;
        &mut self.subscribers
    }
}

/// Discovery of a site.
pub(crate) struct Discovery {
    /// Locked after `views`.
    cache: Mutex<Cache>,
    /// Part of the directory that this site has. Changes and answers are sent while it is locked, so that they arrive
    /// in their order.
    ///
    /// Locked before all others.
    directory: Mutex<Directory>,
    /// Topics that the clients of this site read.
    interest: Mutex<Wanted>,
    /// Lookups that wait for answers.
    pending: Mutex<HashMap<u64, Pending>>,
    /// Latest answer of each owner of a topic. Owners differ for a moment when sites come and go, so a site counts as a
    /// reader of the topic if any owner names it.
    ///
    /// Locked after `watched`, and before the live topics.
    views: Mutex<HashMap<TopicName, BTreeMap<SiteName, Vec<SiteName>>>>,
    /// Topics that this site watches, each with the time at which it was last looked up; `None` if that has to be done
    /// again, because its owners may be others or have restarted.
    watched: Mutex<HashMap<TopicName, Option<u64>>>,
    /// Sites that could be reached when that was last checked.
    reached: Mutex<Vec<SiteName>>,
    /// Topics with readers that this site has not heard of yet.
    doubtful: Mutex<HashSet<TopicName>>,
    lookups: AtomicU64,
    /// Notified when an answer was stored.
    answered: Notify,
}

/// Lookup that waits for the answers of the owners of its topic. There are at most three.
struct Pending {
    topic: TopicName,
    /// Owners that were asked and have not answered.
    awaited: Owners,
    answers: mpsc::UnboundedSender<Vec<SiteName>>,
}

struct Wanted {
    interest: Interest,
    /// Time of the last fetch from each topic.
    fetched_ms: HashMap<TopicName, u64>,
}

impl Discovery {
    pub fn new(settings: &Settings) -> Self {
        Self {
            cache: Mutex::new(Cache { subscribers: SubscriberCache::new(settings.cache), changes: 0 }),
            directory: Mutex::default(),
            interest: Mutex::new(Wanted { interest: Interest::new(), fetched_ms: HashMap::new() }),
            pending: Mutex::default(),
            views: Mutex::default(),
            watched: Mutex::default(),
            reached: Mutex::default(),
            doubtful: Mutex::default(),
            lookups: AtomicU64::new(0),
            answered: Notify::new(),
        }
    }
}

impl Running {
    pub(crate) fn stats(&self) -> MeshStats {
        // One lock after the other: within one expression all of them would be held to its end.
        let directory_entries = self.discovery.directory.lock().len() as u64;
        let links = self.links.lock().len() as u64;
        let cache = self.discovery.cache.lock().subscribers.stats();
        let lookups = self.discovery.lookups.load(Ordering::Relaxed);
        MeshStats { cache, routes: self.routes.stats(links), lookups, directory_entries }
    }

    /// Notes whether clients of this site read a topic, by subscriptions and queues or by fetches. Returns `true` if
    /// this site wants it: a consumer that fetches may pause.
    pub(crate) fn set_interest(&self, topic: &TopicName, is_read: bool, is_fetched: bool) -> bool {
        let now_ms = self.clock_ms();
        let mut wanted = self.discovery.interest.lock();
        let Wanted { interest, fetched_ms } = &mut *wanted;
        if is_fetched {
            fetched_ms.insert(topic.clone(), now_ms);
        }
        let lingers = fetched_ms.get(topic).is_some_and(|at_ms| now_ms.saturating_sub(*at_ms) < LINGER_MS);
        if !lingers {
            fetched_ms.remove(topic);
        }
        interest.set(topic, is_read || lingers, now_ms);
        is_read || lingers
    }

    /// Ends the interest in a topic or a channel that this site does not take.
    pub(crate) fn retract(&self, topic: &TopicName) {
        let mut wanted = self.discovery.interest.lock();
        wanted.fetched_ms.remove(topic);
        wanted.interest.set(topic, false, self.clock_ms());
    }

    /// Announces what this site wants where it is due, and forgets what has expired in its part of the directory.
    pub(crate) fn keep_directory(self: &Arc<Self>) {
        let now_ms = self.clock_ms();
        let sites = self.reachable();
        let before = std::mem::replace(&mut *self.discovery.reached.lock(), sites.clone());
        if before != sites {
            let doubtful = std::mem::take(&mut *self.discovery.doubtful.lock());
            self.watch_again(|topic| {
                doubtful.contains(topic) || owners(topic, before.iter()) != owners(topic, sites.iter())
            });
        }
        self.watch_due(now_ms);
        let (due, advertised) = {
            let interest = &mut self.discovery.interest.lock().interest;
            (interest.due(&sites, now_ms), interest.advertised())
        };
        for Announcement { to, arrival, topic, kind } in due {
            let epoch = self.number_of_run(arrival);
            let is_here = to == *self.site();
            match kind {
                AnnouncementKind::Advertise { ttl_ms } if is_here => self.on_advertise(&to, epoch, &topic, ttl_ms),
                AnnouncementKind::Withdraw if is_here => self.on_withdraw(&to, epoch, &topic),
                AnnouncementKind::Advertise { ttl_ms } => self.send_to(&to, Frame::Advertise { epoch, topic, ttl_ms }),
                AnnouncementKind::Withdraw => self.send_to(&to, Frame::Withdraw { epoch, topic }),
            }
        }
        for Advertised { to, arrival, topics } in advertised {
            let (epoch, topics) = (self.number_of_run(arrival), topics as u32);
            self.send_to(&to, Frame::Advertised { epoch, topics });
        }
        let expired = self.discovery.directory.lock().sweep(now_ms);
        expired.into_iter().for_each(|(topic, watchers)| self.tell(&topic, watchers));
        self.discovery.cache.lock().subscribers.sweep(now_ms);
    }

    /// Has the topics looked up again that one of these sites owns, which may have forgotten that they are watched.
    pub(crate) fn watch_again_at(&self, sites: &[SiteName]) {
        let reached = self.reachable();
        self.watch_again(|topic| owners(topic, reached.iter()).iter().any(|owner| sites.contains(owner)));
    }

    /// Has watched topics looked up again.
    fn watch_again(&self, is_due: impl Fn(&TopicName) -> bool) {
        let mut watched = self.discovery.watched.lock();
        let due = watched.iter_mut().filter(|(topic, _)| is_due(topic));
        due.for_each(|(_, looked_up_ms)| *looked_up_ms = None);
    }

    /// Looks topics up again before their owners forget that this site watches them.
    fn watch_due(self: &Arc<Self>, now_ms: u64) {
        let mut watched = self.discovery.watched.lock();
        {
            let mut views = self.discovery.views.lock();
            let live = self.outgoing.lock();
            watched.retain(|topic, _| live.contains_key(topic));
            views.retain(|topic, _| live.contains_key(topic));
        }
        let is_due = |at_ms: &Option<u64>| at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= WATCH_AGAIN_MS);
        for (topic, at_ms) in watched.iter_mut().filter(|(_, at_ms)| is_due(at_ms)).take(WATCHES_AT_ONCE) {
            *at_ms = Some(now_ms);
            let (running, topic) = (self.clone(), topic.clone());
            self.spawn(async move {
                if let Ok(found) = running.refresh(&topic).await {
                    running.follow(&topic, &found);
                }
            });
        }
    }

    pub(crate) fn on_advertise(self: &Arc<Self>, from: &SiteName, epoch: u64, topic: &TopicName, ttl_ms: u64) {
        let now_ms = self.clock_ms();
        let advertised = self.discovery.directory.lock().advertise(topic, from, epoch, ttl_ms, now_ms);
        match advertised {
            Ok(watchers) => self.tell(topic, watchers),
            Err(error) => tracing::warn!(site = %from, %topic, %error, "an advertised topic is not in the directory"),
        }
    }

    pub(crate) fn on_withdraw(self: &Arc<Self>, from: &SiteName, epoch: u64, topic: &TopicName) {
        let watchers = self.discovery.directory.lock().withdraw(topic, from, epoch);
        self.tell(topic, watchers);
    }

    /// Forgets what a site has advertised before, and not again on another path to this one: a withdrawal was lost.
    pub(crate) fn on_advertised(self: &Arc<Self>, from: &SiteName, epoch: u64, topics: u32) {
        let changes = self.discovery.directory.lock().complete(from, epoch, topics as usize);
        changes.into_iter().for_each(|(topic, watchers)| self.tell(&topic, watchers));
    }

    /// Forgets that a site reads topics: it was removed, has restarted, or could not be reached for long.
    pub(crate) fn forget_interest_of(self: &Arc<Self>, site: &SiteName) {
        let changes = self.discovery.directory.lock().forget_site(site);
        changes.into_iter().for_each(|(topic, watchers)| self.tell(&topic, watchers));
        self.forget_listeners_of(site);
    }

    /// Advertises everything to a site again: its part of the directory is empty after a restart, or frames on the path
    /// before were lost.
    pub(crate) fn advertise_again(&self, site: &SiteName) {
        self.discovery.interest.lock().interest.reset_site(site, self.clock_ms());
    }

    /// Tells the watchers of a topic which sites read it now.
    fn tell(self: &Arc<Self>, topic: &TopicName, watchers: Vec<SiteName>) {
        if watchers.is_empty() {
            return;
        }
        let mut own = None;
        {
            let directory = self.discovery.directory.lock();
            let sites = directory.lookup(topic, self.clock_ms());
            for watcher in watchers {
                if watcher == *self.site() {
                    own = self.note_change(&watcher, topic, sites.clone());
                } else {
                    self.send_to(&watcher, Frame::Changed { topic: topic.clone(), sites: sites.clone() });
                }
            }
        }
        if let Some(sites) = own {
            self.take_over(topic, sites);
        }
    }

    pub(crate) fn on_look_up(self: &Arc<Self>, from: &SiteName, id: u64, topic: TopicName, watch_ms: u32) {
        self.answer(from, &topic, watch_ms, |sites| self.send_to(from, Frame::Found { id, sites }));
    }

    /// Answers a lookup from this site's part of the directory.
    fn answer<R>(&self, from: &SiteName, topic: &TopicName, watch_ms: u32, send: impl FnOnce(Vec<SiteName>) -> R) -> R {
        let now_ms = self.clock_ms();
        let mut directory = self.discovery.directory.lock();
        if let Err(error) = directory.watch(topic, from, now_ms + u64::from(watch_ms.min(WATCH_MS))) {
            tracing::debug!(site = %from, %topic, %error, "a site does not watch a topic, and asks again");
        }
        send(directory.lookup(topic, now_ms))
    }

    /// Takes the answer of an owner over. The first ones are those that a lookup waits for; any other one is a change.
    /// Ignores a site that was not asked, or has answered.
    pub(crate) fn on_found(self: &Arc<Self>, id: u64, from: &SiteName, sites: Vec<SiteName>) {
        let topic = {
            let pending = self.discovery.pending.lock();
            let Some(of) = pending.get(&id).filter(|of| of.awaited.contains(from)) else { return };
            of.topic.clone()
        };
        let all = self.note_view(&topic, from, sites);
        self.on_noted_answer(id, from, &topic, all);
    }

    fn on_noted_answer(self: &Arc<Self>, id: u64, from: &SiteName, topic: &TopicName, all: Vec<SiteName>) {
        let answers = {
            let mut pending = self.discovery.pending.lock();
            let Some(of) = pending.get_mut(&id) else { return };
            of.awaited.retain(|owner| owner != from);
            let answers = of.answers.clone();
            if of.awaited.is_empty() {
                pending.remove(&id);
            }
            answers
        };
        let is_awaited = answers.send(all.clone()).is_ok();
        // That there is none is known only when all owners have answered.
        if !all.is_empty() || !is_awaited {
            self.take_over(topic, all);
        }
    }

    /// Takes a change over that an owner of a topic has sent.
    pub(crate) fn on_changed(self: &Arc<Self>, from: &SiteName, topic: &TopicName, sites: Vec<SiteName>) {
        if let Some(all) = self.note_change(from, topic, sites) {
            self.take_over(topic, all);
        }
    }

    /// Notes a change. Returns the sites that read the topic, by all owners; `None` if it is not live here.
    fn note_change(&self, from: &SiteName, topic: &TopicName, sites: Vec<SiteName>) -> Option<Vec<SiteName>> {
        if !self.outgoing.lock().contains_key(topic) {
            // What one owner says is not all, and nobody keeps what the others say.
            self.discovery.cache.lock().change().invalidate(topic);
            return None;
        }
        Some(self.note_view(topic, from, sites))
    }

    fn take_over(self: &Arc<Self>, topic: &TopicName, sites: Vec<SiteName>) {
        let now_ms = self.clock_ms();
        let found = self.find(topic, sites, |cache, sites| {
            cache.changed(topic, sites.clone(), now_ms);
            sites.into()
        });
        self.discovery.answered.notify_waiters();
        self.follow(topic, &found);
    }

    /// Stores the sites that read a topic, by what its owners have said until now. What one of them has said after
    /// `sites` were gathered is not overwritten. For a topic that is not live here nobody keeps what they say.
    fn find(
        &self,
        topic: &TopicName,
        sites: Vec<SiteName>,
        store: impl FnOnce(&mut SubscriberCache, Vec<SiteName>) -> Sites,
    ) -> Found {
        let views = self.discovery.views.lock();
        let sites = views.get(topic).map_or(sites, all_of);
        let mut cache = self.discovery.cache.lock();
        let sites = store(cache.change(), sites);
        Found { number: cache.changes, sites }
    }

    /// Notes what a site says of a topic. Returns the sites that read it, by all owners.
    fn note_view(&self, topic: &TopicName, from: &SiteName, mut sites: Vec<SiteName>) -> Vec<SiteName> {
        {
            // An owner may know of a site that this one has not heard of yet, or may lie.
            let members = self.members.lock();
            let count = sites.len();
            sites.retain(|site| members.get(site).is_some());
            if sites.len() < count {
                self.discovery.doubtful.lock().insert(topic.clone());
            }
        }
        // What an owner has said that cannot be reached for a moment counts: the sites that it named are not forgotten.
        let asked = owners(topic, self.reachable().iter());
        let remembered = owners(topic, self.remembered().iter());
        let mut views = self.discovery.views.lock();
        if !self.outgoing.lock().contains_key(topic) {
            views.remove(topic);
            return sites;
        }
        let of_topic = views.entry(topic.clone()).or_default();
        of_topic.insert(from.clone(), sites);
        of_topic.retain(|owner, _| asked.contains(owner) || remembered.contains(owner));
        all_of(of_topic)
    }

    /// Sends a topic to these sites from now on.
    fn follow(self: &Arc<Self>, topic: &TopicName, found: &Found) {
        let outgoing: Option<Arc<Outgoing>> = self.outgoing.lock().get(topic).cloned();
        if let Some(outgoing) = outgoing {
            self.follow_sites(&outgoing, found);
        }
    }

    /// Returns the sites that read a topic: from the subscriber cache, or else from the directory.
    pub(crate) async fn sites_of(self: &Arc<Self>, topic: &TopicName) -> Found {
        loop {
            let answered = self.discovery.answered.notified();
            let now_ms = self.clock_ms();
            let (number, lookup) = {
                let mut cache = self.discovery.cache.lock();
                (cache.changes, cache.subscribers.lookup(topic, now_ms))
            };
            match lookup {
                Lookup::Hit(sites) | Lookup::Stale { sites, is_refresh_due: false } => return Found { number, sites },
                Lookup::Stale { sites, is_refresh_due: true } => {
                    let (running, topic) = (self.clone(), topic.clone());
                    self.spawn(async move {
                        if let Ok(found) = running.refresh(&topic).await {
                            running.follow(&topic, &found);
                        }
                    });
                    return Found { number, sites };
                }
                Lookup::Miss { is_query_due: true, retry_at_ms } => {
                    if let Ok(found) = self.refresh(topic).await {
                        return found;
                    }
                    let wait = Duration::from_millis(retry_at_ms.saturating_sub(self.clock_ms()).min(1000));
                    tokio::time::sleep(wait).await;
                }
                Lookup::Miss { is_query_due: false, retry_at_ms } => {
                    let wait = Duration::from_millis(retry_at_ms.saturating_sub(now_ms));
                    // An answer is stored, or it is time to ask again.
                    drop(tokio::time::timeout(wait, answered).await);
                }
            }
        }
    }

    /// Returns the sites that read a topic: from the subscriber cache if it knows some, or else from the directory.
    pub(crate) async fn readers_now(self: &Arc<Self>, topic: &TopicName) -> Result<Sites> {
        let known = self.discovery.cache.lock().subscribers.lookup(topic, self.clock_ms());
        match known {
            Lookup::Hit(sites) if !sites.is_empty() => Ok(sites),
            _ => Ok(self.refresh(topic).await?.sites),
        }
    }

    /// Asks the directory, and stores its answer.
    async fn refresh(self: &Arc<Self>, topic: &TopicName) -> Result<Found> {
        let looked_up = self.look_up(topic).await;
        let now_ms = self.clock_ms();
        let found = match looked_up {
            Ok(sites) => Ok(self.find(topic, sites, |cache, sites| cache.store(topic, sites, now_ms))),
            Err(error) => {
                tracing::debug!(%topic, %error, "a lookup failed");
                self.discovery.cache.lock().subscribers.fail(topic);
                Err(error)
            }
        };
        self.discovery.answered.notify_waiters();
        found
    }

    /// Asks all owners of a topic which sites read it. The first answer that names some is used, and later ones as
    /// changes; it takes all answers to find that there is none.
    async fn look_up(self: &Arc<Self>, topic: &TopicName) -> Result<Vec<SiteName>> {
        // A hub may relay an answer to a run of this site before, whose ids were others.
        let id = self.number_of_run(self.discovery.lookups.fetch_add(1, Ordering::Relaxed));
        self.discovery.watched.lock().insert(topic.clone(), Some(self.clock_ms()));
        let (sender, mut answers) = mpsc::unbounded_channel();
        let owners = owners(topic, self.reachable().iter());
        let pending = Pending { topic: topic.clone(), awaited: owners.clone(), answers: sender };
        self.discovery.pending.lock().insert(id, pending);
        for owner in &owners {
            if owner == self.site() {
                let all = self.answer(owner, topic, WATCH_MS, |sites| self.note_view(topic, owner, sites));
                self.on_noted_answer(id, owner, topic, all);
            } else {
                self.send_to(owner, Frame::LookUp { id, topic: topic.clone(), watch_ms: WATCH_MS });
            }
        }
        let deadline = Instant::now() + LOOK_UP_TIMEOUT;
        let gather = async {
            for _ in &owners {
                match answers.recv().await {
                    Some(sites) if sites.is_empty() => {}
                    Some(sites) => return sites,
                    None => break,
                }
            }
            Vec::new()
        };
        let found = tokio::time::timeout_at(deadline, gather).await;
        if self.discovery.pending.lock().contains_key(&id) {
            // The other owners may still answer.
            let running = self.clone();
            self.spawn(async move {
                tokio::time::sleep_until(deadline).await;
                running.discovery.pending.lock().remove(&id);
            });
        }
        found
            .map_err(|late| Error::new(ErrorKind::Timeout, format!("the directory did not answer for {topic}: {late}")))
    }
}

/// Returns the sites that read a topic, by any of its owners.
fn all_of(views: &BTreeMap<SiteName, Vec<SiteName>>) -> Vec<SiteName> {
    let all: BTreeSet<&SiteName> = views.values().flatten().collect();
    all.into_iter().cloned().collect()
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
