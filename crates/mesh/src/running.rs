//! State of a site that is in a mesh, and the tasks that keep its links.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::Broker;
use engine::mesh::{Member, Members, RouteStats, SiteKey, SiteName, SiteRole};
use engine::{Error, ErrorKind, Result, TopicName};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::copies::Mirror;
use crate::discovery::Discovery;
use crate::endpoints::Endpoints;
use crate::frame::Frame;
use crate::identity::{Identity, key_of_peer};
use crate::limit::Limit;
use crate::link::{Link, closed, code};
use crate::listening::Listening;
use crate::live::{Outgoing, SEARCHES_MAX};
use crate::places::Places;
use crate::receive::Incoming;
use crate::site::Settings;
use crate::store;

/// Interval at which links, interest and the directory are checked, if nothing changes before.
const KEEP_EVERY: Duration = Duration::from_millis(250);
/// Shortest interval between two checks, and its minimum as a multiple of the time that a check takes.
const KEEP_PAUSE: Duration = Duration::from_millis(2);
const KEEP_PAUSES: u32 = 10;
/// Number of connections whose peers are not known yet from which they have to prove their addresses.
pub(crate) const HANDSHAKES_UNPROVED_MAX: usize = 16;
/// Wait before a site is dialed again, after the first failure and at most.
const DIAL_AGAIN: Duration = Duration::from_millis(250);
const DIAL_AGAIN_MAX: Duration = Duration::from_secs(10);
/// Time without a link after which a site is also dialed by the one of the two that usually waits.
pub(crate) const DIAL_PATIENCE: Duration = Duration::from_secs(3);
/// Time without any path after which a site is no longer sent anything, and its part of the directory is forgotten.
pub(crate) const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);
/// Maximum entries in one frame.
pub(crate) const ENTRIES_PER_FRAME: usize = 500;

/// Site that is in a mesh.
pub(crate) struct Running {
    pub broker: Weak<Broker>,
    pub settings: Settings,
    pub identity: Identity,
    /// Run of this site: it grows with every start.
    pub instance: u64,
    /// Origin of the times of discovery.
    began: Instant,
    pub endpoints: Endpoints,
    pub members: Mutex<Members>,
    /// Link to each site, on which everything is sent.
    ///
    /// Locked before `draining`.
    pub links: Mutex<BTreeMap<SiteName, Arc<Link>>>,
    /// Links that another one has replaced and that have not ended, in the order in which they were replaced.
    pub draining: Mutex<Vec<Arc<Link>>>,
    pub paths: Mutex<HashMap<SiteName, PathState>>,
    pub traffic: Mutex<HashMap<SiteName, Arc<Traffic>>>,
    pub routes: Routes,
    pub discovery: Discovery,
    pub outgoing: Mutex<HashMap<TopicName, Arc<Outgoing>>>,
    pub incoming: Mutex<HashMap<(SiteName, TopicName), Arc<Incoming>>>,
    pub mirror: Mirror,
    pub listening: Mutex<Listening>,
    /// Inboxes and channels of this site that are advertised.
    pub channels: Mutex<HashSet<TopicName>>,
    /// Last known run of each site.
    pub runs: Mutex<HashMap<SiteName, u64>>,
    /// Time since which there is no link.
    pub isolated_since: Mutex<Option<Instant>>,
    /// `true` if the mesh has removed this site.
    pub is_removed: AtomicBool,
    pub changed: Notify,
    /// Held while a site joins, so that an invitation is used once.
    pub joining: tokio::sync::Mutex<()>,
    /// Permits of connections whose peers are not known yet.
    pub handshakes: Places,
    /// Permits of replies whose inboxes are looked for.
    pub searches: Semaphore,
    /// Number of connections that were refused because there was no permit.
    pub refused: AtomicU64,
    /// Number of runs of topics so far.
    runs_of_topics: AtomicU64,
    /// Number of links that were made so far, with those that were not established.
    links_made: AtomicU64,
    ended: watch::Sender<bool>,
}

/// Way to another site.
pub(crate) enum Path {
    Direct(Arc<Link>),
    /// Link to the hub that relays.
    Relayed(Arc<Link>),
}

impl Path {
    pub fn link(&self) -> &Arc<Link> {
        match self {
            Self::Direct(link) | Self::Relayed(link) => link,
        }
    }
}

/// State of the way to another site.
pub(crate) struct PathState {
    failures: u32,
    /// Time from which the site may be dialed again.
    next: Instant,
    is_dialing: bool,
    /// Reason why the last connection failed or ended.
    pub error: Option<String>,
    /// Time since which there is a path, or none.
    pub since: Instant,
    pub is_reachable: bool,
    /// Number of the link that the path uses.
    link: Option<u64>,
    /// `true` if one of the two sites waits for the other to dial.
    pub takes_turns: bool,
    /// `true` once its interest was forgotten because it could not be reached.
    is_forgotten: bool,
    /// Held by the link to the site whose control frames are read. The next one waits for it.
    turns: Arc<tokio::sync::Mutex<()>>,
}

/// Counts of how records found their way. The direct route to a site is its link.
#[derive(Default)]
pub(crate) struct Routes {
    direct: AtomicU64,
    relayed: AtomicU64,
    /// Number of links that were established.
    pub links: AtomicU64,
}

impl Routes {
    /// Notes that records were sent to a site.
    pub fn note_use(&self, is_direct: bool) {
        let count = if is_direct { &self.direct } else { &self.relayed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts, for this number of links.
    pub fn stats(&self, links: u64) -> RouteStats {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        RouteStats {
            hits: count(&self.direct),
            misses: count(&self.relayed),
            stores: count(&self.links),
            table_size: links,
        }
    }
}

/// Counts of what travelled between two sites, and limits of what does.
pub(crate) struct Traffic {
    pub sends: Limit,
    pub receives: Limit,
    pub sent_records: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_records: AtomicU64,
    pub received_bytes: AtomicU64,
    pub lost_records: AtomicU64,
}

impl Traffic {
    fn new(settings: &Settings) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            sends: Limit::new(settings.sent_bytes_per_s),
            receives: Limit::new(settings.received_bytes_per_s),
            sent_records: zero(),
            sent_bytes: zero(),
            received_records: zero(),
            received_bytes: zero(),
            lost_records: zero(),
        }
    }
}

impl Running {
    /// Starts a site with its identity and the members that it knows.
    pub fn start(
        broker: &Arc<Broker>,
        settings: Settings,
        identity: Identity,
        instance: u64,
        members: Members,
    ) -> io::Result<Arc<Self>> {
        let endpoints = Endpoints::bind(&identity, settings.listen)?;
        let discovery = Discovery::new(&settings);
        let running = Arc::new(Self {
            broker: Arc::downgrade(broker),
            settings,
            identity,
            instance,
            began: Instant::now(),
            endpoints,
            members: Mutex::new(members),
            links: Mutex::default(),
            draining: Mutex::default(),
            paths: Mutex::default(),
            traffic: Mutex::default(),
            routes: Routes::default(),
            discovery,
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            mirror: Mirror::default(),
            listening: Mutex::default(),
            channels: Mutex::default(),
            runs: Mutex::default(),
            isolated_since: Mutex::new(Some(Instant::now())),
            is_removed: AtomicBool::new(false),
            changed: Notify::new(),
            joining: tokio::sync::Mutex::default(),
            handshakes: Places::default(),
            searches: Semaphore::new(SEARCHES_MAX),
            refused: AtomicU64::new(0),
            runs_of_topics: AtomicU64::new(0),
            links_made: AtomicU64::new(0),
            ended: watch::Sender::new(false),
        });
        running.spawn(running.clone().accept());
        running.spawn(running.clone().keep());
        Ok(running)
    }

    /// Spawns a task that ends with the site.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut ended = self.ended.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        });
    }

    /// Ends all tasks and links.
    pub fn end(&self, reason: &str) {
        self.ended.send_replace(true);
        for link in std::mem::take(&mut *self.links.lock()).into_values() {
            link.connection.close(code::STOPPED.into(), reason.as_bytes());
        }
        self.endpoints.close(code::STOPPED, reason);
    }

    pub fn broker(&self) -> Result<Arc<Broker>> {
        self.broker.upgrade().ok_or_else(|| Error::new(ErrorKind::ShuttingDown, "the broker is stopping"))
    }

    pub fn now_ms(&self) -> u64 {
        self.broker.upgrade().map_or(0, |broker| broker.now_ms())
    }

    /// Returns the time in ms since this run began, by a clock that never goes back.
    pub fn clock_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the number of the next run of a topic, which grows over restarts of this site, too.
    pub fn next_run(&self) -> u64 {
        self.number_of_run(self.runs_of_topics.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a number that grows with `number`, and over restarts of this site, too.
    pub fn number_of_run(&self, number: u64) -> u64 {
        (self.instance << 20).wrapping_add(number)
    }

    /// Returns the number of the next link.
    pub fn next_link(&self) -> u64 {
        self.links_made.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn site(&self) -> &SiteName {
        &self.identity.site
    }

    /// Returns the entry about this site as its settings are now, with a version.
    pub fn own_entry(&self, version: u64) -> Member {
        Member {
            site: self.identity.site.clone(),
            key: self.identity.key,
            role: self.settings.role,
            address: self.address(),
            version,
            is_removed: false,
        }
    }

    /// Returns the address at which other sites reach this one.
    pub fn address(&self) -> Option<String> {
        let bound = self.endpoints.address()?;
        let is_named = !bound.ip().is_unspecified();
        self.settings.advertise.clone().or_else(|| is_named.then(|| bound.to_string()))
    }

    /// Returns the counts and the limits of another site.
    pub fn traffic_of(&self, site: &SiteName) -> Arc<Traffic> {
        let new = || Arc::new(Traffic::new(&self.settings));
        self.traffic.lock().entry(site.clone()).or_insert_with(new).clone()
    }

    /// Returns the way to another site.
    pub fn path(&self, site: &SiteName) -> Option<Path> {
        let links = self.links.lock();
        if let Some(link) = links.get(site) {
            return Some(Path::Direct(link.clone()));
        }
        let relays = |link: &&Arc<Link>| link.role == SiteRole::Hub && link.relays_to.lock().contains(site);
        links.values().find(relays).map(|link| Path::Relayed(link.clone()))
    }

    /// Sends a control frame to another site, if there is a way to it.
    pub fn send_to(&self, site: &SiteName, frame: Frame) {
        // A link that was replaced since has not taken it.
        while !match self.path(site) {
            Some(Path::Direct(link)) => link.send(&frame),
            Some(Path::Relayed(hub)) => {
                let frame = Box::new(frame.clone());
                hub.send(&Frame::Relayed { from: self.site().clone(), to: site.clone(), frame })
            }
            None => true,
        } {}
    }

    /// Returns all sites that can be reached, with this one, in the order of their names.
    pub fn reachable(&self) -> Vec<SiteName> {
        let names: Vec<SiteName> = self.members.lock().iter().map(|member| member.site.clone()).collect();
        names.into_iter().filter(|name| name == self.site() || self.path(name).is_some()).collect()
    }

    /// Returns all sites that can be reached or could be a moment ago, with this one, in the order of their names.
    pub fn remembered(&self) -> Vec<SiteName> {
        let names: Vec<SiteName> = self.members.lock().iter().map(|member| member.site.clone()).collect();
        let paths = self.paths.lock();
        let is_forgotten = |name: &SiteName| paths.get(name).is_none_or(|path| path.is_forgotten);
        names.into_iter().filter(|name| name == self.site() || !is_forgotten(name)).collect()
    }

    /// Takes entries of other sites over, stores them and passes them on.
    pub fn learn(self: &Arc<Self>, entries: Vec<Member>, from: Option<&SiteName>) {
        let mut news = Vec::new();
        for entry in entries {
            let is_own = entry.key == self.identity.key;
            if is_own && !entry.is_removed {
                // Another site cannot know better where this one is reached.
                self.outdo(entry.version);
                continue;
            }
            match self.members.lock().merge(entry.clone()) {
                Ok(false) => continue,
                Ok(true) => self.take_turns_with(&entry.site, Duration::ZERO),
                Err(error) => {
                    tracing::error!(site = %entry.site, %error, "a site of the mesh is not known here");
                    continue;
                }
            }
            if is_own {
                if !self.is_removed.swap(true, Ordering::Relaxed) {
                    tracing::error!("this site was removed from the mesh: run `thalweg mesh leave` to join again");
                }
            } else if entry.is_removed {
                self.drop_site(&entry.site, entry.key);
            }
            news.push(entry);
        }
        self.check_own_name();
        if news.is_empty() {
            return;
        }
        self.spread(&news, from);
        if let Ok(broker) = self.broker() {
            self.spawn(async move {
                for entry in news {
                    if let Err(error) = store::put_member(&broker, &entry).await {
                        tracing::error!(site = %entry.site, %error, "a site of the mesh could not be stored");
                    }
                }
            });
        }
        self.changed.notify_one();
    }

    /// Returns the turns of the links to a site.
    pub fn turns_of(&self, site: &SiteName) -> Arc<tokio::sync::Mutex<()>> {
        let now = Instant::now();
        self.paths.lock().entry(site.clone()).or_insert_with(|| PathState::new(now)).turns.clone()
    }

    /// Lets one of this site and a new one wait for the other to dial, and this one not dial for some time.
    pub fn take_turns_with(&self, site: &SiteName, wait: Duration) {
        let now = Instant::now();
        let mut paths = self.paths.lock();
        let path = paths.entry(site.clone()).or_insert_with(|| PathState::new(now + wait));
        path.takes_turns = true;
    }

    /// Spreads the entry about this site with a higher version than one that another site has.
    fn outdo(self: &Arc<Self>, version: u64) {
        let own = {
            let mut members = self.members.lock();
            let Some(known) = members.of_key(self.identity.key) else { return };
            let wanted = self.own_entry(known.version);
            if known.version > version || (known.version == version && *known == wanted) {
                return;
            }
            let own = self.own_entry(version.saturating_add(1));
            if !members.merge(own.clone()).unwrap_or_default() {
                return;
            }
            own
        };
        self.publish_own(own);
    }

    /// Stores and spreads the entry about this site.
    pub fn publish_own(self: &Arc<Self>, own: Member) {
        self.spread(std::slice::from_ref(&own), None);
        if let Ok(broker) = self.broker() {
            self.spawn(async move {
                if let Err(error) = store::put_member(&broker, &own).await {
                    tracing::error!(%error, "the entry about this site could not be stored");
                }
            });
        }
    }

    /// Notes that another site has joined with the name of this one at the same time, and has it.
    fn check_own_name(&self) {
        let members = self.members.lock();
        let own = self.identity.key;
        let is_lost =
            members.entries().any(|member| member.key == own && !member.is_removed) && members.of_key(own).is_none();
        if is_lost && !self.is_removed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                site = %self.site(),
                "another site has joined with the name of this one at the same time: run `thalweg mesh leave`, and \
                 join again with another name"
            );
        }
    }

    /// Sends entries to all linked sites except the one that they are from.
    pub fn spread(&self, entries: &[Member], from: Option<&SiteName>) {
        let links: Vec<Arc<Link>> = self.links.lock().values().cloned().collect();
        for link in links.iter().filter(|link| Some(&link.site) != from) {
            for some in entries.chunks(ENTRIES_PER_FRAME) {
                link.send(&Frame::Sites(some.to_vec()));
            }
        }
    }

    /// Disconnects a site that was removed, and forgets its interest.
    pub fn drop_site(self: &Arc<Self>, site: &SiteName, key: SiteKey) {
        let current = self.links.lock().get(site).cloned();
        let draining = self.draining.lock().iter().find(|link| link.site == *site).cloned();
        let is_of_key = |link: &Arc<Link>| key_of_peer(&link.connection) == Some(key);
        for link in current.into_iter().chain(draining).filter(is_of_key) {
            // The frame that tells it may not arrive any more.
            link.connection.close(code::REFUSED.into(), b"this site was removed from the mesh");
            self.lose_link(&link, Some("it was removed from the mesh, or has left it".to_owned()));
        }
        self.forget_interest_of(site);
        self.end_copies_to(site);
        self.incoming.lock().retain(|(from, _), _| from != site);
        self.traffic.lock().remove(site);
        self.runs.lock().remove(site);
    }

    /// Notes that a link has ended.
    pub fn lose_link(&self, link: &Arc<Link>, error: Option<String>) {
        let mut links = self.links.lock();
        if !links.get(&link.site).is_some_and(|current| Arc::ptr_eq(current, link)) {
            return;
        }
        links.remove(&link.site);
        if links.is_empty() {
            *self.isolated_since.lock() = Some(Instant::now());
        }
        drop(links);
        let error = error.unwrap_or_else(|| {
            link.connection.close_reason().map_or_else(|| "the link ended".to_owned(), |reason| closed(reason).message)
        });
        tracing::info!(site = %link.site, %error, "the link with a site ended");
        if let Some(path) = self.paths.lock().get_mut(&link.site) {
            path.error = Some(error);
            path.next = Instant::now();
        }
        self.changed.notify_one();
    }

    /// Keeps links, interest and the directory as they should be.
    async fn keep(self: Arc<Self>) {
        let mut told: Vec<SiteName> = Vec::new();
        loop {
            let begin = Instant::now();
            if let Ok(broker) = self.broker() {
                self.follow_paths();
                self.dial_due();
                self.tell_relays(&mut told);
                self.follow_channels(&broker);
                self.follow_readers(&broker);
                self.keep_directory();
                self.follow_copies(&broker);
            }
            let pause = KEEP_PAUSE.max(begin.elapsed() * KEEP_PAUSES);
            tokio::select! {
                () = tokio::time::sleep(KEEP_EVERY) => {}
                () = self.changed.notified() => {}
                () = self.readers_changed() => {}
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until live topics or their readers may have changed.
    async fn readers_changed(&self) {
        match self.broker.upgrade() {
            Some(broker) => broker.readers_changed().await,
            None => std::future::pending().await,
        }
    }

    /// Notes which sites can be reached and on which links, and forgets the interest of those that could not for long.
    fn follow_paths(self: &Arc<Self>) {
        let now = Instant::now();
        let sites: Vec<SiteName> = self.members.lock().iter().map(|member| member.site.clone()).collect();
        let mut lost = Vec::new();
        let mut moved = Vec::new();
        let mut has_changed = false;
        {
            let mut paths = self.paths.lock();
            paths.retain(|site, _| sites.contains(site));
            for site in sites.iter().filter(|site| *site != self.site()) {
                let link = self.path(site).map(|path| path.link().number);
                let is_reachable = link.is_some();
                let path = paths.entry(site.clone()).or_insert_with(|| PathState::new(now));
                if is_reachable && (path.link != link || !path.is_reachable) {
                    path.link = link;
                    moved.push(site.clone());
                }
                has_changed |= path.is_reachable != is_reachable;
                if path.is_reachable != is_reachable {
                    path.is_reachable = is_reachable;
                    path.since = now;
                    path.is_forgotten = false;
                }
                if is_reachable {
                    path.failures = 0;
                    path.error = None;
                } else if !path.is_forgotten && now.duration_since(path.since) >= UNREACHABLE_AFTER {
                    path.is_forgotten = true;
                    lost.push(site.clone());
                }
            }
        }
        lost.iter().for_each(|site| self.forget_interest_of(site));
        // Frames on the link before may be lost, as when both sites have dialed and one of the two links ends.
        for site in &moved {
            self.advertise_again(site);
            self.tell_listeners(site);
            self.ask_again(site);
        }
        if !moved.is_empty() {
            self.watch_again_at(&moved);
        }
        if has_changed || !moved.is_empty() {
            self.paths_have_changed();
        }
    }

    /// Dials the sites to which there should be a link.
    fn dial_due(self: &Arc<Self>) {
        if self.is_removed.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let is_reached = self.address().is_some();
        let members: Vec<Member> = self.members.lock().iter().cloned().collect();
        for member in members {
            if member.site == *self.site() || member.address.is_none() || self.links.lock().contains_key(&member.site) {
                continue;
            }
            let mut paths = self.paths.lock();
            let path = paths.entry(member.site.clone()).or_insert_with(|| PathState::new(now));
            // One of two sites that reach each other dials, so that there are not two links. After a start both do: the
            // other one may not have noticed yet that a link of the run before has ended.
            let waits = path.takes_turns
                && is_reached
                && *self.site() > member.site
                && now.duration_since(path.since) < DIAL_PATIENCE;
            if path.is_dialing || path.next > now || waits {
                continue;
            }
            path.is_dialing = true;
            drop(paths);
            let running = self.clone();
            self.spawn(async move {
                let dialed = running.dial(&member).await;
                running.note_dial(&member.site, dialed);
            });
        }
    }

    fn note_dial(&self, site: &SiteName, dialed: Result<()>) {
        if let Some(path) = self.paths.lock().get_mut(site) {
            path.is_dialing = false;
            match dialed {
                Ok(()) => path.failures = 0,
                Err(error) => {
                    tracing::debug!(%site, %error, "a site could not be dialed");
                    let wait = DIAL_AGAIN.saturating_mul(1 << path.failures.min(8)).min(DIAL_AGAIN_MAX);
                    // Sites that lost a hub at the same time do not dial it at the same time.
                    let jitter = wait.mul_f64(f64::from(self.identity.key.to_bytes()[0]) / 1024.0);
                    path.failures += 1;
                    path.next = Instant::now() + wait + jitter;
                    path.error = Some(error.message);
                }
            }
        }
        self.changed.notify_one();
    }

    /// Tells all linked sites to which ones this site relays, if it is a hub and they have changed.
    fn tell_relays(&self, told: &mut Vec<SiteName>) {
        if self.settings.role != SiteRole::Hub {
            return;
        }
        let links: Vec<Arc<Link>> = self.links.lock().values().cloned().collect();
        let linked: Vec<SiteName> = links.iter().map(|link| link.site.clone()).collect();
        if linked != *told {
            for link in links {
                link.send(&Frame::Linked(linked.clone()));
            }
            *told = linked;
        }
    }
}

impl PathState {
    pub fn new(now: Instant) -> Self {
        Self {
            failures: 0,
            next: now,
            is_dialing: false,
            error: None,
            since: now,
            is_reachable: false,
            link: None,
            takes_turns: false,
            is_forgotten: false,
            turns: Arc::default(),
        }
    }
}
