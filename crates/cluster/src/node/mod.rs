//! A node of a cluster: its store, its part of the shard, its connections to the others, and what keeps them together.
//!
//! The node tells the rest of the process when it leads ([`Node::lead`]) and when that is over
//! ([`Node::until_deposed`]). The nodes that belong to the cluster are in the [`Roster`], which the log replicates; the
//! leader makes the members of the shard equal to it ([`mod@plan`]).

mod admission;
pub mod bulk;
pub mod catch_up;
mod mend;
pub mod plan;
mod status;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use consensus::{Change, Index, Members, NodeId, Point, Refused, Step, Term, Time};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};
use storage::{Owner, Store};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use zeroize::Zeroizing;

use crate::identity::Identity;
use crate::join::{Admits, Candidate, Deciding, TokenId, UsedTokens};
use crate::link::{Part, Purpose};
use crate::roster::{Member, Roster, RosterChange};
use crate::shard::{Clock, Observer, Opening, Shard, ShardPart, Stance};
use crate::transport::{self, Receiver, Stream, Transport};
use bulk::{Frame, Request, Secret};
use plan::{Act, View, plan, successor};

pub use crate::roster::FORMAT;
pub use status::{NodeStatus, Status};

/// Time between two ticks of the consensus.
pub const TICK: Duration = Duration::from_millis(50);
/// Time between two looks at the members.
const MANAGE_EVERY: Duration = Duration::from_millis(200);
/// Looks in a row at which a node has to be close to the end of the log before it gets its vote.
const CLOSE_LOOKS: u32 = 5;
/// Maximum time for a change of the nodes to be committed.
const COMMIT_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after a catch-up that failed.
const CATCH_UP_AGAIN: Duration = Duration::from_millis(500);
/// Maximum time for a node to hand its leadership over.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum time that a thread waits for a lease that has just lapsed.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Returns the settings of the consensus, equal on all nodes.
pub fn consensus_settings() -> consensus::Settings {
    consensus::Settings {
        heartbeat_ticks: 1,
        election_ticks: 20,
        lease: Duration::from_millis(200).as_nanos() as Time,
        // As much as the queue of a connection holds.
        appends_max: 16,
        ..consensus::Settings::default()
    }
}

/// Reads the clock of the consensus, which goes on while the machine sleeps or the process is stopped.
pub fn clock() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec as u64).saturating_mul(1_000_000_000) + now.tv_nsec as u64
}

/// Token of a leader with which programs administer the cluster; `None` if it needs none.
pub type AdminToken = Option<Zeroizing<String>>;

/// Settings of a node.
pub struct Settings {
    pub identity: Arc<Identity>,
    /// Address at which it listens for other nodes.
    pub address: SocketAddr,
    pub program: String,
    /// Maximum bytes that this node sends in a second to one that catches up.
    pub catch_up_bytes_per_s: u64,
    /// Bytes of segments that this node reads in a second to find damage; 0 for none.
    pub verify_bytes_per_s: u64,
    /// Clock of the store, in ms since 1970.
    pub wall_clock: fn() -> u64,
    /// Runtime of the tasks of this node.
    pub runtime: Handle,
    /// Receiver of clients that other nodes hand over.
    pub on_splice: Arc<dyn Fn(crate::link::Spliced, NodeId, Stream) + Send + Sync>,
}

/// Returns the reading of a node's directory, with which its store is opened.
pub fn opening(identity: &Identity, clock: Clock) -> Opening {
    let node = identity.node();
    // A founder that knows others has been part of a cluster: without its state it must not found another one.
    let is_founder = node == crate::identity::FOUNDER && identity.nodes().iter().all(|(known, _)| *known == node);
    let part = ShardPart { shard: ShardId::FIRST, node, is_founder };
    // Nodes that start at the same time must not ask for votes at the same time.
    Opening::new(part, consensus_settings(), node.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ clock(), clock)
}

pub struct Node {
    me: Weak<Self>,
    own: NodeId,
    store: Arc<Store>,
    shard: Arc<Shard>,
    settings: Settings,
    /// Key with which secrets in topics are sealed: new nodes get it.
    seal_key: Zeroizing<[u8; 32]>,
    transport: OnceLock<Arc<Transport>>,
    stance: watch::Sender<Stance>,
    /// Token with which programs administer the broker that this node runs; `None` while it runs none.
    admin_token: watch::Sender<Option<AdminToken>>,
    /// `true` once the cluster has removed this node.
    removed: watch::Sender<bool>,
    /// Description that this node gives of itself.
    description: Mutex<Member>,
    /// Notified when the members or the nodes may have to change.
    changed: Notify,
    /// Time of the last frame of each node.
    heard: Mutex<BTreeMap<NodeId, Time>>,
    /// Wakes threads that wait for the lease.
    leased: (Mutex<()>, Condvar),
    caught_up_bytes: AtomicU64,
    catch_ups: AtomicU64,
    elections: AtomicU64,
    lease_waits: AtomicU64,
    mending: mend::Mending,
    is_stopped: Arc<AtomicBool>,
    clock_thread: Mutex<Option<JoinHandle<()>>>,
}

impl Node {
    /// Starts a node over its open store.
    pub fn start(store: Arc<Store>, shard: Arc<Shard>, settings: Settings) -> Result<Arc<Self>> {
        let own = settings.identity.node();
        let seal_key = shared_key(&store)?;
        let description = Member {
            address: settings.identity.advertise(),
            program: settings.program.clone(),
            format: FORMAT,
            ..Member::default()
        };
        let stance = watch::channel(shard.stance()).0;
        let node = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            own,
            store,
            shard,
            settings,
            seal_key,
            transport: OnceLock::new(),
            stance,
            admin_token: watch::channel(None).0,
            removed: watch::channel(false).0,
            description: Mutex::new(description),
            changed: Notify::new(),
            heard: Mutex::default(),
            leased: Default::default(),
            caught_up_bytes: AtomicU64::new(0),
            catch_ups: AtomicU64::new(0),
            elections: AtomicU64::new(0),
            lease_waits: AtomicU64::new(0),
            mending: mend::Mending::default(),
            is_stopped: Arc::default(),
            clock_thread: Mutex::default(),
        });
        let of_streams = Arc::downgrade(&node);
        let transport = Transport::start(transport::Settings {
            identity: node.settings.identity.clone(),
            address: node.settings.address,
            program: node.settings.program.clone(),
            receiver: Arc::new(Heard(node.me.clone())),
            on_stream: Arc::new(move |purpose, from, stream| {
                if let Some(node) = of_streams.upgrade() {
                    node.take_stream(purpose, from, stream);
                }
            }),
            admits: Arc::new(Heard(node.me.clone())),
        })?;
        node.shard.connect(&node.store, transport.clone(), node.me.clone());
        node.transport.get_or_init(|| transport);
        node.update_peers();
        node.start_clock()?;
        let managing = Arc::downgrade(&node);
        node.settings.runtime.spawn(async move {
            let mut close_looks = BTreeMap::new();
            while let Some(node) = managing.upgrade().filter(|node| !node.is_stopped.load(Ordering::Acquire)) {
                node.manage(&mut close_looks).await;
                let changed = node.changed.notified();
                tokio::time::timeout(MANAGE_EVERY, changed).await.unwrap_or_default();
            }
        });
        node.start_verifying();
        Ok(node)
    }

    fn start_clock(&self) -> Result<()> {
        let weak = self.me.clone();
        let is_stopped = self.is_stopped.clone();
        let thread = std::thread::Builder::new().name("cluster-clock".into()).spawn(move || {
            while !is_stopped.load(Ordering::Acquire) {
                std::thread::sleep(TICK);
                let Some(node) = weak.upgrade() else { return };
                node.shard.tick();
                node.leased.1.notify_all();
            }
        });
        *self.clock_thread.lock() = Some(thread.map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot start a thread for the cluster: {error}"))
        })?);
        Ok(())
    }

    /// Number of this node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    pub fn identity(&self) -> &Arc<Identity> {
        &self.settings.identity
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Returns the address at which it listens for other nodes.
    pub fn address(&self) -> Option<SocketAddr> {
        self.transport.get().map(|transport| transport.address())
    }

    /// Sets the addresses at which clients reach the doors of this node, by the door's key.
    pub fn set_doors(&self, doors: BTreeMap<String, String>) {
        self.description.lock().doors = doors;
        self.changed.notify_one();
    }

    pub fn stance(&self) -> Stance {
        *self.stance.borrow()
    }

    /// Returns the node that leads, if one is known and it is another.
    pub fn leader(&self) -> Option<NodeId> {
        self.stance().leader.filter(|leader| *leader != self.own)
    }

    /// Waits until this node knows another one that leads, at most for a time.
    pub async fn leader_within(&self, time: Duration) -> Option<NodeId> {
        let mut stance = self.stance.subscribe();
        let own = self.own;
        let is_known = |stance: &Stance| stance.leader.is_some_and(|leader| leader != own);
        let known = tokio::time::timeout(time, stance.wait_for(is_known)).await.ok()?.ok()?;
        known.leader
    }

    /// Waits until another node than this one leads, or none.
    pub async fn until_leader_changes(&self, leader: NodeId) {
        let mut stance = self.stance.subscribe();
        if stance.wait_for(|stance| stance.leader != Some(leader)).await.is_err() {
            tracing::debug!("the node is stopped");
        }
    }

    /// Waits until this node leads and may serve. From then on it takes records, until [`Node::until_deposed`] returns.
    pub async fn lead(&self) -> Term {
        let mut stance = self.stance.subscribe();
        loop {
            let Stance { term, serves_from, .. } = *stance.borrow_and_update();
            if let Some(from) = serves_from {
                let wait = Duration::from_nanos(from.saturating_sub(self.shard.now()));
                let has_changed = tokio::time::timeout(wait, stance.changed()).await.is_ok();
                if !has_changed && self.shard.open(term) {
                    self.elections.fetch_add(1, Ordering::Relaxed);
                    return term;
                }
                if !has_changed {
                    tokio::time::sleep(TICK).await;
                }
                continue;
            }
            if stance.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this node does not lead in a term any more.
    pub async fn until_deposed(&self, term: Term) {
        let own = self.own;
        let mut stance = self.stance.subscribe();
        let is_over = |stance: &Stance| stance.term != term || stance.leader != Some(own);
        if stance.wait_for(is_over).await.is_err() {
            tracing::debug!("the node is stopped");
        }
        self.shard.close(term);
    }

    /// Returns `true` if this node may answer clients in a term. If its lease has just lapsed, it waits until the lease
    /// is renewed or the leadership is over: nothing could be answered in the meantime.
    pub fn may_serve(&self, term: Term) -> bool {
        if self.shard.may_serve(term) {
            return true;
        }
        self.lease_waits.fetch_add(1, Ordering::Relaxed);
        let until = self.shard.now() + LEASE_WAIT_MAX.as_nanos() as u64;
        let mut waiting = self.leased.0.lock();
        while self.leads(term)
            && self.shard.failed().is_none()
            && self.shard.now() < until
            && !self.is_stopped.load(Ordering::Acquire)
        {
            if self.shard.may_serve(term) {
                return true;
            }
            self.leased.1.wait_for(&mut waiting, TICK / 5);
        }
        false
    }

    fn leads(&self, term: Term) -> bool {
        let stance = self.stance();
        stance.term == term && stance.leader == Some(self.own)
    }

    /// Sets the token with which programs administer the broker of this leader; `None` when that has ended. Other nodes
    /// get it.
    pub fn set_admin_token(&self, token: Option<AdminToken>) {
        self.admin_token.send_replace(token);
    }

    /// Returns the changes of this node's own token, and of its stance.
    pub fn watch(&self) -> (watch::Receiver<Option<AdminToken>>, watch::Receiver<Stance>) {
        (self.admin_token.subscribe(), self.stance.subscribe())
    }

    /// Returns the token with which programs administer the cluster, from the leader.
    pub async fn fetch_admin_token(&self, leader: NodeId) -> Result<AdminToken> {
        let mut stream = self.transport()?.open(leader, Purpose::Bulk).await?;
        bulk::write(&mut stream, &Frame::Request(Request::AdminToken)).await?;
        match bulk::read(&mut stream).await? {
            Frame::Secret(Secret(token)) => Ok(Some(token)),
            Frame::Done => Ok(None),
            Frame::Refused(reason) => Err(Error::busy(reason)),
            _ => Err(Error::malformed("the leader sent an unexpected frame")),
        }
    }

    /// Waits until the cluster has removed this node: it has no part in it any more, and its number is not used again.
    pub async fn until_removed(&self) {
        let mut removed = self.removed.subscribe();
        if removed.wait_for(|is_removed| *is_removed).await.is_err() {
            tracing::debug!("the node is stopped");
        }
    }

    /// Returns `true` if the cluster has removed this node.
    pub fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    fn note_removed(&self) {
        if self.removed.send_replace(true) {
            return;
        }
        tracing::warn!(node = self.own, "the cluster has removed this node");
        if let Err(error) = self.settings.identity.save_removed() {
            tracing::warn!(%error, "cannot write down that this node was removed");
        }
    }

    /// Opens a stream to another node, for a client of this one.
    pub async fn splice(&self, to: NodeId, spliced: crate::link::Spliced) -> Result<Stream> {
        self.transport()?.open(to, Purpose::Splice(spliced)).await
    }

    /// Returns the state and the counts of the connections to other nodes.
    pub fn transport_stats(&self) -> transport::Stats {
        self.transport.get().map(|transport| transport.stats()).unwrap_or_default()
    }

    fn transport(&self) -> Result<&Arc<Transport>> {
        self.transport.get().ok_or_else(|| Error::busy("the node is starting"))
    }

    /// Asks another node to lead. Returns once it has been asked.
    pub fn transfer(&self, to: NodeId) -> Result<()> {
        self.shard.transfer(to).map_err(explain)
    }

    /// Removes a node from the cluster, and waits until it is no member of the shard. Its number is never given again.
    pub async fn remove(&self, node: NodeId) -> Result<()> {
        let roster = self.shard.roster();
        let Some(member) = roster.nodes.get(&node).filter(|member| !member.is_removed) else {
            return Err(Error::not_found(format!("the cluster has no node {node}")));
        };
        let left = roster.nodes.values().filter(|member| !member.is_removed).count() - 1;
        if left == 0 {
            return Err(Error::invalid(format!("node {node} at {} is the only one of the cluster", member.address)));
        }
        self.change_roster(&RosterChange::Remove { node }).await?;
        self.changed.notify_one();
        if node == self.own {
            // The next leader does the rest.
            return Ok(());
        }
        let gone = async {
            while self.shard.status().members.contains(node) {
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::time::timeout(COMMIT_TIME_MAX, gone).await.map_err(|late| {
            let message = format!("node {node} was removed, and the others have not agreed on that yet ({late})");
            Error::new(ErrorKind::Timeout, message)
        })
    }

    /// Hands the leadership to another node, if this one leads and another can. Clients notice only that another node
    /// leads.
    pub async fn drain(&self) {
        let Stance { term, leader, .. } = self.stance();
        if leader != Some(self.own) {
            return;
        }
        let status = self.shard.status();
        let peers = self.shard.peers();
        let roster = self.shard.roster();
        let view =
            View { own: self.own, roster: &roster, members: &status.members, peers: &peers, last: status.last.index };
        let Some(to) = successor(view) else { return };
        if let Err(error) = self.transfer(to) {
            return tracing::warn!(%error, to, "cannot hand the leadership over");
        }
        let over = tokio::time::timeout(HAND_OVER_TIME_MAX, self.until_deposed(term)).await;
        if over.is_err() {
            tracing::warn!(to, "the other node does not take the leadership");
        }
    }

    /// Appends a change of the nodes, and waits until it is committed.
    pub async fn change_roster(&self, change: &RosterChange) -> Result<()> {
        let (told, outcome) = oneshot::channel();
        self.shard.change_roster(change, Arc::new(Told(Mutex::new(Some(told)))))?;
        match tokio::time::timeout(COMMIT_TIME_MAX, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Error::new(ErrorKind::Disconnected, "the node does not lead any more")),
            Err(_) => Err(Error::new(ErrorKind::Timeout, "no majority of the nodes has answered in time")),
        }
    }

    /// Sets the addresses of the other nodes from what is known of them.
    fn update_peers(&self) {
        let identity = &self.settings.identity;
        let mut peers: BTreeMap<NodeId, String> = identity.nodes().into_iter().collect();
        let roster = self.shard.roster();
        let gone = roster.gone(&self.shard.status().members);
        for (node, member) in &roster.nodes {
            peers.insert(*node, member.address.clone());
        }
        peers.retain(|node, _| !gone.contains(node));
        if gone.contains(&self.own) {
            self.note_removed();
        }
        let peers: Vec<_> = peers.into_iter().collect();
        if peers != identity.nodes()
            && let Err(error) = identity.save_nodes(&peers)
        {
            tracing::warn!(%error, "cannot write down the addresses of the nodes");
        }
        if let Some(transport) = self.transport.get() {
            transport.set_removed(gone);
            if let Err(error) = transport.set_peers(peers) {
                tracing::warn!(%error, "an address of a node cannot be used");
            }
        }
    }

    async fn manage(&self, close_looks: &mut BTreeMap<NodeId, u32>) {
        self.update_peers();
        let stance = self.stance();
        self.note_damage(stance).await;
        let roster = self.shard.roster();
        let own = self.description.lock().clone();
        let is_known = roster.nodes.get(&self.own).is_some_and(|member| *member == own || member.is_removed);
        if stance.leader != Some(self.own) {
            close_looks.clear();
            if let (false, Some(leader)) = (is_known, stance.leader)
                && let Err(error) = self.describe(leader, own).await
            {
                tracing::debug!(%error, leader, "cannot tell the leader about this node");
            }
            return;
        }
        if !is_known
            && stance.serves_from.is_some()
            && let Err(error) = self.change_roster(&RosterChange::Describe { node: self.own, member: own }).await
        {
            tracing::debug!(%error, "cannot write down what this node is");
        }
        let common = roster.common_format().min(FORMAT);
        if common > roster.format() && stance.serves_from.is_some() {
            match self.change_roster(&RosterChange::Raise { format: common }).await {
                Ok(()) => {
                    tracing::info!(format = common, "all nodes can read a newer format of the log, which it has now")
                }
                Err(error) => tracing::debug!(%error, "the format of the log is not raised yet"),
            }
        }
        self.arrange(&roster, close_looks);
    }

    /// Brings the members one step closer to the roster.
    fn arrange(&self, roster: &Roster, close_looks: &mut BTreeMap<NodeId, u32>) {
        let status = self.shard.status();
        let peers = self.shard.peers();
        let view = View { own: self.own, roster, members: &status.members, peers: &peers, last: status.last.index };
        let Some(act) = plan(view) else {
            return close_looks.clear();
        };
        let step = match act {
            Act::AddLearner(node) => Step::AddLearner(node),
            Act::Remove(node) => Step::Remove(node),
            Act::Promote(node) => {
                let looks = close_looks.entry(node).or_insert(0);
                *looks += 1;
                if *looks < CLOSE_LOOKS {
                    return;
                }
                Step::AddVoter(node)
            }
            Act::HandOver(to) => {
                if let Err(error) = self.transfer(to) {
                    tracing::debug!(%error, to, "cannot hand the leadership over yet");
                }
                return;
            }
        };
        match self.shard.change(Change { steps: vec![step] }) {
            Ok(_) => tracing::info!(?step, "the members change"),
            Err(refused) => tracing::debug!(?refused, ?step, "the members do not change yet"),
        }
    }

    async fn describe(&self, leader: NodeId, member: Member) -> Result<()> {
        let mut stream = self.transport()?.open(leader, Purpose::Bulk).await?;
        bulk::write(&mut stream, &Frame::Request(Request::Describe { node: self.own, member })).await?;
        match bulk::read(&mut stream).await? {
            Frame::Done => Ok(()),
            Frame::Refused(reason) => Err(Error::busy(reason)),
            _ => Err(Error::malformed("the leader sent an unexpected frame")),
        }
    }

    fn take_stream(&self, purpose: Purpose, from: NodeId, stream: Stream) {
        match purpose {
            Purpose::Splice(spliced) => (self.settings.on_splice)(spliced, from, stream),
            Purpose::Bulk => {
                let Some(node) = self.me.upgrade() else { return };
                self.settings.runtime.spawn(async move {
                    if let Err(error) = node.serve_bulk(from, stream).await {
                        tracing::warn!(%error, from, "cannot serve a request of a node");
                    }
                });
            }
            _ => {}
        }
    }

    async fn serve_bulk(&self, from: NodeId, mut stream: Stream) -> Result<()> {
        let refuse = |reason: &str| Frame::Refused(reason.to_owned());
        match bulk::read(&mut stream).await? {
            Frame::Request(Request::Describe { node, member }) if node == from => {
                if let Err(error) = self.shard.roster().check_format(member.format) {
                    return bulk::write(&mut stream, &refuse(&error.message)).await;
                }
                let answer = match self.change_roster(&RosterChange::Describe { node, member }).await {
                    Ok(()) => Frame::Done,
                    Err(error) => refuse(&error.message),
                };
                bulk::write(&mut stream, &answer).await
            }
            Frame::Request(Request::State { index }) => match self.shard.point() {
                Some((point, roster)) if point.position.index >= index => {
                    let state = (roster, point.position.index);
                    let per_s = self.settings.catch_up_bytes_per_s;
                    let bytes = catch_up::serve(&mut stream, &self.store, state, per_s).await?;
                    self.caught_up_bytes.fetch_add(bytes, Ordering::Relaxed);
                    Ok(())
                }
                _ => bulk::write(&mut stream, &refuse("this node does not have that much itself")).await,
            },
            Frame::Request(Request::AdminToken) => {
                let token = self.admin_token.borrow().clone();
                let answer = match token {
                    Some(Some(token)) => Frame::Secret(Secret(token)),
                    Some(None) => Frame::Done,
                    None => refuse("this node does not serve clients itself"),
                };
                bulk::write(&mut stream, &answer).await
            }
            _ => bulk::write(&mut stream, &refuse("the request is unknown")).await,
        }
    }

    async fn catch_up(&self, leader: NodeId, point: Point) -> Result<(Index, Roster)> {
        let _fetching = self.mending.fetching.lock().await;
        self.catch_ups.fetch_add(1, Ordering::Relaxed);
        let mut stream = self.transport()?.open(leader, Purpose::Bulk).await?;
        catch_up::fetch(&mut stream, &self.shard, point.position.index).await
    }

    /// Ends the node's threads and connections. The store stays open.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.leased.1.notify_all();
        if let Some(transport) = self.transport.get() {
            transport.stop();
        }
        self.shard.stop();
        if let Some(thread) = self.clock_thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the clock of the cluster ended with a panic");
        }
    }
}

/// Returns the key with which the cluster seals secrets; the founder creates it if its directory has none.
fn shared_key(store: &Store) -> Result<Zeroizing<[u8; 32]>> {
    if let Some(key) = store.seal_key()? {
        return Ok(Zeroizing::new(key));
    }
    let key = Zeroizing::new(crate::identity::random()?);
    store.put_seal_key(&key)?;
    Ok(key)
}

/// Receiver of the calls of the transport. It holds nothing of the node, which ends the transport.
struct Heard(Weak<Node>);

impl Receiver for Heard {
    fn received(&self, from: NodeId, parts: Vec<Part>) {
        let Some(node) = self.0.upgrade() else { return };
        node.heard.lock().insert(from, node.shard.now());
        parts.into_iter().for_each(|part| node.shard.receive(part));
        node.leased.1.notify_all();
    }

    fn connected(&self, other: NodeId) {
        if let Some(node) = self.0.upgrade() {
            node.heard.lock().insert(other, node.shard.now());
            node.changed.notify_one();
        }
    }

    fn disconnected(&self, other: NodeId) {
        if let Some(node) = self.0.upgrade() {
            node.shard.disconnected(other);
        }
    }

    fn removed(&self, by: NodeId) {
        if let Some(node) = self.0.upgrade() {
            tracing::debug!(by, "a node says that this one was removed");
            node.note_removed();
        }
    }
}

impl UsedTokens for Heard {
    fn is_used(&self, token: TokenId) -> bool {
        self.0.upgrade().is_none_or(|node| node.shard.roster().tokens.contains_key(&token.0))
    }
}

impl Admits for Heard {
    fn admit(&self, candidate: Candidate) -> Deciding<'_> {
        let node = self.0.upgrade();
        Box::pin(async move {
            match node {
                Some(node) => node.admit(candidate).await,
                None => Err(Error::new(ErrorKind::ShuttingDown, "the node is stopping")),
            }
        })
    }
}

impl Observer for Node {
    fn stance_changed(&self, stance: Stance) {
        let before = self.stance.send_replace(stance);
        if (before.term, before.leader) != (stance.term, stance.leader) {
            let Stance { term, leader, .. } = stance;
            tracing::info!(term, ?leader, node = self.own, "the leader of the cluster changed");
        }
        self.leased.1.notify_all();
        self.changed.notify_one();
    }

    fn members_changed(&self, members: Members) {
        tracing::info!(voters = ?members.voters, learners = ?members.learners, "the members of the cluster");
        self.changed.notify_one();
    }

    fn state_offered(&self, leader: NodeId, point: Point) {
        let Some(node) = self.me.upgrade() else { return };
        self.settings.runtime.spawn(async move {
            tracing::info!(leader, index = point.position.index, "this node is behind the log; it fetches the state");
            match node.catch_up(leader, point).await {
                Ok((index, roster)) => node.shard.installed(Some((index, roster))),
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    node.shard.installed(None);
                    node.shard.end_part(error);
                }
                Err(error) => {
                    tracing::warn!(%error, leader, "a catch-up has failed; it is tried again");
                    tokio::time::sleep(CATCH_UP_AGAIN).await;
                    node.shard.installed(None);
                }
            }
        });
    }
}

/// Owner of a change of the nodes.
struct Told(Mutex<Option<oneshot::Sender<Result<()>>>>);

impl Told {
    fn tell(&self, outcome: Result<()>) {
        if let Some(told) = self.0.lock().take() {
            // A caller that waits no longer need not know.
            told.send(outcome).unwrap_or_default();
        }
    }
}

impl Owner for Told {
    fn committed(&self, _mark: u64) {
        self.tell(Ok(()));
    }

    fn failed(&self, error: &Error) {
        self.tell(Err(error.clone()));
    }
}

/// Returns the error of a call that the consensus refused.
fn explain(refused: Refused) -> Error {
    match refused {
        Refused::NotLeader { leader: Some(leader) } => {
            Error::new(ErrorKind::NotLeader, format!("node {leader} leads the cluster"))
        }
        Refused::NotLeader { leader: None } => Error::busy("the cluster has no leader at the moment; try again"),
        Refused::Busy => Error::busy("the node has just begun to lead, or hands its leadership over; try again"),
        Refused::ChangePending => Error::busy("another change of the members is not complete; try again"),
        Refused::ImpossibleChange(why) => Error::invalid(why),
        Refused::Inconsistent(why) => Error::malformed(why),
        Refused::Lost { has, committed } => {
            Error::new(ErrorKind::Corrupt, format!("the node has {has} of {committed} entries"))
        }
        Refused::Stopped(why) => Error::new(ErrorKind::Internal, format!("the consensus has stopped: {why}")),
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}
