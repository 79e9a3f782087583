//! The mesh of a broker, as operators use it: begin one, join one, invite, remove, leave, and look at it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::{Broker, Mesh, Operating};
use engine::mesh::{
    CacheSettings, Invitation, LinkState, Member, Members, MeshStatus, MeshTopic, SiteName, SiteRole, SiteStatus,
    check_minutes,
};
use engine::{DraftBatch, Error, ErrorKind, Result, TopicName};
use parking_lot::Mutex;

use crate::endpoints::Endpoints;
use crate::frame::{Frame, VERSION};
use crate::handshake::{check_version, connect, unexpected};
use crate::identity::{Identity, random};
use crate::invitation::{self, hash_of};
use crate::link::{Control, code};
use crate::running::{Path, PathState, Running};
use crate::{metrics, store};

/// Pause before a mesh is resumed again that could not be.
const RESUME_AGAIN: Duration = Duration::from_secs(1);
/// Time for which an address may be in use by a mesh that this site has left, and the interval at which it is tried.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(5);
const ADDRESS_AGAIN: Duration = Duration::from_millis(100);
/// Time for the last frames of a site that leaves to be sent.
const FAREWELL: Duration = Duration::from_millis(250);

/// Settings of a site.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Address at which links are accepted; `None` for a site that only dials out.
    pub listen: Option<SocketAddr>,
    /// Addresses at which other sites reach this one, separated by commas; by default `listen`, if it names a host.
    pub advertise: Option<String>,
    pub role: SiteRole,
    pub cache: CacheSettings,
    /// Maximum bytes of records that are sent to another site per second; 0 for no limit.
    pub sent_bytes_per_s: u64,
    /// Maximum bytes of records that are taken from another site per second; 0 for no limit.
    pub received_bytes_per_s: u64,
}

/// Mesh of a broker. It is in none until [`Site::init`](Mesh::init) or [`Site::join`](Mesh::join).
pub struct Site {
    broker: Weak<Broker>,
    settings: Settings,
    running: Mutex<Option<Arc<Running>>>,
    /// Reason why the mesh that the broker was in is not resumed yet; `None` once it is, or if there was none.
    unresumed: Mutex<Option<Error>>,
    is_stopped: AtomicBool,
    /// Held by operations that begin or end a mesh.
    changing: tokio::sync::Mutex<()>,
}

impl Site {
    /// Returns the mesh of a broker. It has no links until [`Site::resume`].
    pub fn new(broker: &Arc<Broker>, settings: Settings) -> Arc<Self> {
        let site = Arc::new(Self {
            broker: Arc::downgrade(broker),
            settings,
            running: Mutex::default(),
            unresumed: Mutex::new(Some(Error::busy("the mesh of this broker is being restored: try again"))),
            is_stopped: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
        });
        metrics::register(&site);
        site
    }

    /// Links this site with the others, if the broker was in a mesh when it stopped. What fails is tried again until
    /// it succeeds.
    pub async fn resume(&self) {
        loop {
            let Err(error) = self.try_resume().await else { return };
            if self.unresumed.lock().replace(error.clone()) != Some(error.clone()) {
                tracing::error!(%error, "this site is not linked with its mesh, and tries again every second");
            }
            tokio::time::sleep(RESUME_AGAIN).await;
        }
    }

    async fn try_resume(&self) -> Result<()> {
        let _changing = self.changing.lock().await;
        let broker = self.broker()?;
        if let Some((identity, members)) = store::load(&broker).await? {
            self.run(&broker, identity, new_instance(&broker), members)?.renew_own();
        }
        *self.unresumed.lock() = None;
        Ok(())
    }

    fn run(&self, broker: &Arc<Broker>, identity: Identity, instance: u64, members: Members) -> Result<Arc<Running>> {
        let started = Running::start(broker, self.settings.clone(), identity, instance, members);
        let started = started
            .map_err(|error| Error::invalid(format!("{error}; stop the other program, or choose another address")))?;
        let mut running = self.running.lock();
        if self.is_stopped.load(Ordering::Relaxed) {
            started.end("the site is stopping");
            return Err(Error::new(ErrorKind::ShuttingDown, "the site is stopping"));
        }
        *running = Some(started.clone());
        Ok(started)
    }

    /// Starts a site that was in no mesh. The address may still be in use for a moment, by a mesh that it has left.
    async fn run_new(&self, broker: &Arc<Broker>, site: SiteName) -> Result<Arc<Running>> {
        let begin = Instant::now();
        loop {
            match self.run(broker, Identity::generate(site.clone())?, new_instance(broker), Members::default()) {
                Err(error) if error.kind == ErrorKind::Invalid && begin.elapsed() < ADDRESS_PATIENCE => {
                    tokio::time::sleep(ADDRESS_AGAIN).await;
                }
                started => return started,
            }
        }
    }

    /// Ends all links. The site stays in its mesh.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end("the site is stopping");
    }

    /// Ends all links until the site is resumed.
    pub fn suspend(&self) {
        *self.unresumed.lock() = Some(Error::busy("the mesh is suspended: resume it"));
        self.end("the site is suspended");
    }

    fn end(&self, reason: &str) {
        if let Some(running) = self.running.lock().take() {
            running.end(reason);
        }
    }

    /// Returns the bound address at which links are accepted.
    pub fn address(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref().and_then(|running| running.endpoints.address())
    }

    /// Returns the connection with another site, for tests that misuse it.
    #[doc(hidden)]
    pub fn connection_to(&self, site: &SiteName) -> Option<quinn::Connection> {
        let running = self.running().ok()?;
        let link = running.links.lock().get(site).cloned();
        link.map(|link| link.connection.clone())
    }

    pub(crate) fn running(&self) -> Result<Arc<Running>> {
        self.running.lock().clone().ok_or_else(|| {
            if let Some(error) = &*self.unresumed.lock() {
                return error.clone();
            }
            let text =
                "this broker is in no mesh: begin one with `thalweg mesh init`, or join one with `thalweg mesh join`";
            Error::new(ErrorKind::NotFound, text)
        })
    }

    pub(crate) fn broker(&self) -> Result<Arc<Broker>> {
        self.broker.upgrade().ok_or_else(|| Error::new(ErrorKind::ShuttingDown, "the broker is stopping"))
    }

    /// Returns the number of patterns and queue groups of clients of other sites that this one knows.
    pub fn listeners(&self) -> u64 {
        self.running.lock().as_ref().map_or(0, |running| running.listeners())
    }

    /// Returns the number of replies whose inboxes are being looked for.
    pub(crate) fn searches(&self) -> u64 {
        self.running.lock().as_ref().map_or(0, |running| running.searches())
    }

    /// Returns the number of connections that were refused because too many peers were not known yet.
    pub(crate) fn refused(&self) -> u64 {
        self.running.lock().as_ref().map_or(0, |running| running.refused.load(Ordering::Relaxed))
    }

    /// Returns the state of the mesh.
    pub(crate) fn state(&self) -> Result<MeshStatus> {
        Ok(self.running()?.status())
    }

    /// Returns each other site with the time in ms for which records have waited for a limit, to it and from it.
    pub(crate) fn waited_ms(&self) -> Vec<(String, u64, u64)> {
        let Ok(running) = self.running() else { return Vec::new() };
        let traffic = running.traffic.lock();
        let rows = traffic.iter().map(|(site, of)| (site.to_string(), of.sends.waited_ms(), of.receives.waited_ms()));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable();
        rows
    }

    /// Returns the copies of this site, and the topics that other sites copy.
    pub(crate) fn copies(&self) -> Vec<MeshTopic> {
        self.running().map(|running| running.mirrored()).unwrap_or_default()
    }

    fn expect_none(&self) -> Result<()> {
        if let Some(error) = &*self.unresumed.lock() {
            return Err(error.clone());
        }
        match &*self.running.lock() {
            None => Ok(()),
            Some(running) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "this broker is the site {} of a mesh already: leave it with `thalweg mesh leave`",
                    running.site()
                ),
            )),
        }
    }

    /// Begins a mesh with this site.
    async fn begin(&self, name: SiteName) -> Result<MeshStatus> {
        let _changing = self.changing.lock().await;
        self.expect_none()?;
        let broker = self.broker()?;
        let running = self.run_new(&broker, name).await?;
        let kept = async {
            let own = running.own_entry(broker.now_ms());
            store::put_member(&broker, &own).await?;
            store::put_identity(&broker, &running.identity).await?;
            running.members.lock().merge(own)
        };
        if let Err(error) = kept.await {
            self.end("the site did not join");
            return Err(error);
        }
        Ok(running.status())
    }

    /// Joins the mesh of the site that issued an invitation.
    async fn enter(&self, name: SiteName, invitation: &Invitation) -> Result<MeshStatus> {
        let invitation = invitation::Invitation::parse(invitation.reveal())?;
        let _changing = self.changing.lock().await;
        self.expect_none()?;
        let broker = self.broker()?;
        let running = self.run_new(&broker, name).await?;
        let own = running.own_entry(broker.now_ms());
        let joined = async {
            let (connection, control, instance, inviter) = ask(&running, &invitation, own.clone()).await?;
            store::put_member(&broker, &own).await?;
            store::put_member(&broker, &inviter).await?;
            store::put_identity(&broker, &running.identity).await?;
            {
                let mut members = running.members.lock();
                members.merge(own)?;
                members.merge(inviter.clone())?;
            }
            running.establish((instance, inviter), true, connection, control, None)
        };
        if let Err(error) = joined.await {
            self.end("the site did not join");
            return Err(error);
        }
        Ok(running.status())
    }

    async fn issue(&self, minutes: u32) -> Result<Invitation> {
        check_minutes(minutes)?;
        let running = self.running()?;
        let Some(address) = running.address() else {
            return Err(Error::invalid(
                "other sites cannot reach this one, so they cannot join through it: set mesh to an address, and \
                 mesh_advertise to the one at which they reach it, or invite from a hub",
            ));
        };
        let broker = self.broker()?;
        let now_s = broker.now_ms() / 1000;
        let expires_s = now_s + 60 * u64::from(minutes);
        let invitation = invitation::Invitation { key: running.identity.key, secret: random()?, expires_s, address };
        store::put_invitation(&broker, &hash_of(&invitation.secret), expires_s, now_s).await?;
        Ok(Invitation::new(invitation.reveal().to_string()))
    }

    async fn drop_site(&self, name: &SiteName) -> Result<()> {
        let running = self.running()?;
        if name == running.site() {
            return Err(Error::invalid(
                "a site removes others: to take this one out of the mesh, use `thalweg mesh leave`",
            ));
        }
        let broker = self.broker()?;
        let entry = running.members.lock().removal(name, broker.now_ms())?;
        store::put_member(&broker, &entry).await?;
        running.learn(vec![entry], None);
        Ok(())
    }

    async fn depart(&self) -> Result<()> {
        let _changing = self.changing.lock().await;
        let broker = self.broker()?;
        // One that could not be resumed can be left as well.
        let running = match self.running() {
            Err(error) if self.unresumed.lock().is_none() => return Err(error),
            running => running.ok(),
        };
        if let Some(running) = &running {
            let removal = running.members.lock().removal(running.site(), broker.now_ms());
            if let Ok(entry) = removal
                && entry.key == running.identity.key
            {
                // It will hear of its own removal.
                running.is_removed.store(true, Ordering::Relaxed);
                running.spread(&[entry], None);
                // The others learn it from any site that is linked now.
                tokio::time::sleep(FAREWELL).await;
            }
        }
        store::forget(&broker).await?;
        *self.unresumed.lock() = None;
        self.end("the site has left the mesh");
        Ok(())
    }
}

/// Asks the site that issued an invitation to join. Returns the connection, and what that site says of itself.
async fn ask(
    running: &Running,
    invitation: &invitation::Invitation,
    own: Member,
) -> Result<(quinn::Connection, Control, u64, Member)> {
    let mut last = Error::invalid("the invitation has no address");
    for address in invitation.address.split(',') {
        match ask_at(running, &running.endpoints, address, invitation, own.clone()).await {
            Ok(answered) => return Ok(answered),
            // That site has answered; the next address is of the same one.
            Err(error) if error.kind == ErrorKind::Denied => return Err(error),
            Err(error) => last = error.map_message(|why| format!("{address}: {why}")),
        }
    }
    Err(last)
}

async fn ask_at(
    running: &Running,
    endpoints: &Endpoints,
    address: &str,
    invitation: &invitation::Invitation,
    member: Member,
) -> Result<(quinn::Connection, Control, u64, Member)> {
    let connection = connect(endpoints, address, invitation.key).await?;
    let mut control = Control::open(&connection).await?;
    let secret = invitation.secret;
    control.write(&Frame::Join { version: VERSION, secret, instance: running.instance, member }).await?;
    let (version, instance, member) = match control.read(&connection).await? {
        Frame::Hello { version, instance, member } => (version, instance, member),
        other => return Err(unexpected(&other)),
    };
    check_version(version)?;
    if member.key != invitation.key {
        connection.close(code::PROTOCOL.into(), b"the key is not that of the connection");
        return Err(Error::new(ErrorKind::Denied, "the site has sent another key than its own"));
    }
    Ok((connection, control, instance, member))
}

/// Returns a number that grows with every start, unless the clock was set back.
fn new_instance(broker: &Arc<Broker>) -> u64 {
    broker.now_ms().max(1)
}

impl Running {
    /// Spreads the entry about this site again if its settings have changed.
    fn renew_own(self: &Arc<Self>) {
        let own = {
            let mut members = self.members.lock();
            let Some(known) = members.get(self.site()).cloned() else { return };
            if self.own_entry(known.version) == known {
                return;
            }
            let own = self.own_entry(self.now_ms().max(known.version + 1));
            if !members.merge(own.clone()).unwrap_or_default() {
                return;
            }
            own
        };
        self.publish_own(own);
    }

    fn status(&self) -> MeshStatus {
        let members: Vec<Member> = self.members.lock().iter().cloned().collect();
        let others: Vec<SiteStatus> = members
            .into_iter()
            .filter(|member| member.site != *self.site())
            .map(|member| self.status_of(member))
            .collect();
        let isolated = self.isolated_since.lock().filter(|_| !others.is_empty());
        MeshStatus {
            site: self.site().clone(),
            key: self.identity.key,
            role: self.settings.role,
            address: self.address(),
            isolated_ms: isolated.map(|since| millis(since.elapsed())),
            sites: others,
            stats: self.stats(),
        }
    }

    fn status_of(&self, member: Member) -> SiteStatus {
        let Member { site, key, role, address, .. } = member;
        let (link, via, round_trip) = match self.path(&site) {
            Some(Path::Direct(link)) => (LinkState::Direct, None, Some(link.connection.rtt())),
            Some(Path::Relayed(hub)) => (LinkState::Relayed, Some(hub.site.clone()), None),
            None => (LinkState::Down, None, None),
        };
        let (since, error) = {
            let paths = self.paths.lock();
            let path: Option<&PathState> = paths.get(&site);
            (path.map_or_else(Instant::now, |path| path.since), path.and_then(|path| path.error.clone()))
        };
        let no_address = || (address.is_none()).then(|| "it dials out, and no hub relays to it".to_owned());
        let traffic = self.traffic_of(&site);
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        SiteStatus {
            error: (link == LinkState::Down).then(|| error.or_else(no_address)).flatten(),
            site,
            key,
            role,
            address,
            link,
            via,
            since_ms: millis(since.elapsed()),
            round_trip_us: round_trip.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            sent_records: count(&traffic.sent_records),
            sent_bytes: count(&traffic.sent_bytes),
            received_records: count(&traffic.received_records),
            received_bytes: count(&traffic.received_bytes),
            lost_records: count(&traffic.lost_records),
        }
    }

    fn topics(&self) -> Vec<MeshTopic> {
        let mut received: std::collections::BTreeMap<engine::TopicName, u64> = std::collections::BTreeMap::new();
        for ((_, topic), incoming) in &*self.incoming.lock() {
            *received.entry(topic.clone()).or_default() += incoming.records.load(Ordering::Relaxed);
        }
        let routed = self.outgoing.lock();
        let mut topics: Vec<MeshTopic> = routed
            .values()
            .filter(|outgoing| outgoing.is_routed.load(Ordering::Relaxed))
            .map(|outgoing| outgoing.status(received.get(&outgoing.topic).copied().unwrap_or_default()))
            .collect();
        drop(routed);
        topics.extend(self.mirrored());
        topics.sort_unstable_by(|a, b| a.topic.cmp(&b.topic));
        topics
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Mesh for Site {
    fn init(&self, site: SiteName) -> Operating<'_, MeshStatus> {
        Box::pin(self.begin(site))
    }

    fn join<'m>(&'m self, site: SiteName, invitation: &'m Invitation) -> Operating<'m, MeshStatus> {
        Box::pin(self.enter(site, invitation))
    }

    fn invite(&self, minutes: u32) -> Operating<'_, Invitation> {
        Box::pin(self.issue(minutes))
    }

    fn remove<'m>(&'m self, site: &'m SiteName) -> Operating<'m, ()> {
        Box::pin(self.drop_site(site))
    }

    fn leave(&self) -> Operating<'_, ()> {
        Box::pin(self.depart())
    }

    fn deliver(&self, inbox: TopicName, batch: DraftBatch) -> Operating<'_, ()> {
        Box::pin(async move { self.running()?.deliver(inbox, batch).await })
    }

    fn status(&self) -> Result<MeshStatus> {
        self.state()
    }

    fn topics(&self) -> Result<Vec<MeshTopic>> {
        Ok(self.running()?.topics())
    }
}
