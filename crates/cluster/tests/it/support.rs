//! Nodes for tests: real sockets on this machine, and receivers that note what they are called with.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cluster::identity::Identity;
use cluster::join::{Admission, Admits, Candidate, Deciding, Token, TokenId, UsedTokens};
use cluster::link::{Block, Part, Purpose, Row};
use cluster::transport::{Links, OnStream, PeerStats, Receiver, Settings, Stream, Transport};
use consensus::{Body, Entry, Kind, Message, NodeId, Position};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use storage::EntryKind;
use tempfile::TempDir;

/// Time after which a test fails.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Program of the nodes.
pub const PROGRAM: &str = "thalweg 1.2.3";
/// Number of the directories of a founder.
pub const IDS: u64 = 0xfedc_ba98_7654_3210;
/// Key that a cluster gives to new nodes.
pub const SEAL_KEY: [u8; 32] = [7; 32];

#[derive(Debug, PartialEq)]
pub enum Event {
    Received(NodeId, Vec<Part>),
    Connected(NodeId),
    Disconnected(NodeId),
    Removed(NodeId),
}

/// Receiver that notes its calls, and waits in `received` while the gate is locked.
pub struct Recorder {
    node: NodeId,
    events: Mutex<mpsc::Sender<Event>>,
    gate: Arc<Mutex<()>>,
    /// Sends a beat to each node that is connected, and answers beats.
    talks: Arc<OnceLock<Weak<Transport>>>,
}

impl Recorder {
    fn talk(&self, to: NodeId, kind: Kind) {
        if let Some(transport) = self.talks.get().and_then(Weak::upgrade) {
            transport.send(to, part(self.node, to, kind, Vec::new()));
        }
    }

    fn note(&self, event: Event) {
        // The test may be over.
        drop(self.events.lock().expect("no panic").send(event));
    }
}

impl Receiver for Recorder {
    fn received(&self, from: NodeId, parts: Vec<Part>) {
        for part in &parts {
            if let Kind::Beat { commit, sent, read } = part.message.kind {
                self.talk(from, Kind::BeatAnswer { commit, sent, read });
            }
        }
        self.note(Event::Received(from, parts));
        drop(self.gate.lock().expect("no panic"));
    }

    fn connected(&self, node: NodeId) {
        self.note(Event::Connected(node));
        self.talk(node, Kind::Beat { commit: 1, sent: 1, read: None });
    }

    fn disconnected(&self, node: NodeId) {
        self.note(Event::Disconnected(node));
    }

    fn removed(&self, by: NodeId) {
        self.note(Event::Removed(by));
    }
}

/// Cluster that admits every program with a token, unless another node leads.
#[derive(Default)]
pub struct Cluster {
    pub used: Mutex<HashSet<TokenId>>,
    pub nodes: Mutex<BTreeMap<NodeId, String>>,
    pub leader: Mutex<Option<String>>,
    pub candidates: Mutex<Vec<Candidate>>,
    pub decisions: AtomicU64,
}

impl UsedTokens for Cluster {
    fn is_used(&self, token: TokenId) -> bool {
        self.used.lock().expect("no panic").contains(&token)
    }
}

impl Admits for Cluster {
    fn admit(&self, candidate: Candidate) -> Deciding<'_> {
        Box::pin(async move {
            self.decisions.fetch_add(1, Ordering::Relaxed);
            if let Some(address) = self.leader.lock().expect("no panic").clone() {
                return Ok(Admission::NotLeader { address });
            }
            if candidate.program == "old" {
                return Err(Error::new(ErrorKind::Unsupported, "the program is too old: update it to 1.2"));
            }
            // Others ask while a decision is committed.
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.used.lock().expect("no panic").insert(candidate.token);
            let mut nodes = self.nodes.lock().expect("no panic");
            let node = nodes.keys().max().map_or(2, |node| node + 1);
            nodes.insert(node, candidate.advertise.clone());
            self.candidates.lock().expect("no panic").push(candidate);
            let nodes = nodes.iter().map(|(node, address)| (*node, address.clone())).collect();
            Ok(Admission::Admitted { node, nodes, seal_key: SEAL_KEY })
        })
    }
}

pub struct Node {
    pub transport: Arc<Transport>,
    pub identity: Arc<Identity>,
    pub events: mpsc::Receiver<Event>,
    pub gate: Arc<Mutex<()>>,
    pub streams: mpsc::Receiver<(Purpose, NodeId, Stream)>,
    pub cluster: Arc<Cluster>,
    talks: Arc<OnceLock<Weak<Transport>>>,
}

impl Node {
    /// Starts a node with the identity in a directory.
    pub fn start(data: &Path, cluster: Arc<Cluster>) -> Self {
        let identity = Identity::load(data).expect("it can be read").expect("an identity");
        Self::start_as(Arc::new(identity), cluster)
    }

    pub fn start_as(identity: Arc<Identity>, cluster: Arc<Cluster>) -> Self {
        let (events, of_test) = mpsc::channel();
        let (streams, streams_of_test) = mpsc::channel();
        let streams = Mutex::new(streams);
        let gate = Arc::new(Mutex::new(()));
        let on_stream: OnStream = Arc::new(move |purpose, node, stream| {
            drop(streams.lock().expect("no panic").send((purpose, node, stream)))
        });
        let talks = Arc::new(OnceLock::new());
        let recorder =
            Recorder { node: identity.node(), events: Mutex::new(events), gate: gate.clone(), talks: talks.clone() };
        let settings = Settings {
            identity: identity.clone(),
            address: "127.0.0.1:0".parse().expect("an address"),
            program: PROGRAM.to_owned(),
            receiver: Arc::new(recorder),
            on_stream,
            admits: cluster.clone(),
        };
        let transport = Transport::start(settings).expect("it starts");
        Self { transport, identity, events: of_test, gate, streams: streams_of_test, cluster, talks }
    }

    /// Lets the node send a beat to each node that is connected, and answer beats, in its calls.
    pub fn talk(&self) {
        self.talks.set(Arc::downgrade(&self.transport)).expect("once");
    }

    pub fn id(&self) -> NodeId {
        self.identity.node()
    }

    pub fn address(&self) -> SocketAddr {
        self.transport.address()
    }

    pub fn token(&self) -> String {
        self.token_for(Duration::from_secs(60))
    }

    pub fn token_for(&self, time: Duration) -> String {
        let address = self.address().to_string();
        Token::issue(&self.identity, &address, SystemTime::now() + time).expect("a token").reveal()
    }

    pub fn know(&self, others: &[&Node]) {
        let peers = others.iter().map(|other| (other.id(), other.address().to_string())).collect();
        self.transport.set_peers(peers).expect("addresses");
    }

    /// Returns the next event for which `is_wanted` returns `true`.
    pub fn wait(&self, is_wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.events.recv_timeout(LIMIT).expect("an event in time");
            if is_wanted(&event) {
                return event;
            }
        }
    }

    pub fn wait_connected(&self, node: NodeId) {
        self.wait(|event| *event == Event::Connected(node));
    }

    /// Returns the next parts that are received.
    pub fn received(&self) -> Vec<Part> {
        match self.wait(|event| matches!(event, Event::Received(..))) {
            Event::Received(_, parts) => parts,
            other => unreachable!("{other:?}"),
        }
    }

    pub fn peer(&self, node: NodeId) -> PeerStats {
        let stats = self.transport.stats();
        stats.peers.into_iter().find(|peer| peer.node == node).expect("a peer")
    }

    /// Waits until the state of a peer is as wanted.
    pub fn wait_peer(&self, node: NodeId, is_wanted: impl Fn(&PeerStats) -> bool) -> PeerStats {
        wait_for(|| Some(self.peer(node)).filter(&is_wanted))
    }
}

/// Waits until there is a value.
pub fn wait_for<T>(value: impl Fn() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(begin.elapsed() < LIMIT, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Directories of the nodes of one cluster; the first is the founder.
pub struct Nodes {
    pub dirs: Vec<TempDir>,
    pub nodes: Vec<Node>,
}

impl Nodes {
    /// Founds a cluster, and lets the other nodes join. They do not know each other yet.
    pub fn strangers(count: usize) -> Self {
        let cluster = Arc::new(Cluster::default());
        let first = tempfile::tempdir().expect("a directory");
        Identity::found(first.path(), IDS, "127.0.0.1:1").expect("founded");
        let founder = Node::start(first.path(), cluster.clone());
        let (mut dirs, mut nodes) = (vec![first], vec![founder]);
        for _ in 1..count {
            let dir = tempfile::tempdir().expect("a directory");
            join(&nodes[0].token(), dir.path()).expect("admitted");
            nodes.push(Node::start(dir.path(), cluster.clone()));
            dirs.push(dir);
        }
        Self { dirs, nodes }
    }

    /// Nodes that are all connected with each other.
    pub fn connected(count: usize) -> Self {
        let nodes = Self::strangers(count);
        for node in &nodes.nodes {
            node.know(&nodes.nodes.iter().collect::<Vec<_>>());
        }
        for node in &nodes.nodes {
            let mut others: HashSet<_> = nodes.nodes.iter().map(Node::id).filter(|id| *id != node.id()).collect();
            while !others.is_empty() {
                if let Event::Connected(other) = node.wait(|event| matches!(event, Event::Connected(_))) {
                    others.remove(&other);
                }
            }
        }
        nodes
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub fn join(token: &str, data: &Path) -> Result<Identity> {
    join_as(token, data, PROGRAM)
}

pub fn join_as(token: &str, data: &Path, program: &str) -> Result<Identity> {
    runtime().block_on(cluster::join::join(token, "127.0.0.1:1", data, program))
}

pub fn part(from: NodeId, to: NodeId, kind: Kind, blocks: Vec<Block>) -> Part {
    Part { shard: ShardId::FIRST, message: Message { from, to, term: 3, kind }, blocks }
}

pub fn beat(from: NodeId, to: NodeId, sent: u64) -> Part {
    part(from, to, Kind::Beat { commit: 1, sent, read: None }, Vec::new())
}

/// An append of entries with rows of these sizes, after the entry `prev`.
pub fn append(from: NodeId, to: NodeId, prev: u64, sizes: &[usize]) -> Part {
    let blocks: Vec<_> = sizes
        .iter()
        .map(|size| Block::new(vec![Row::new(EntryKind::Batch, 7, Bytes::from(vec![9; *size]))]).expect("a row"))
        .collect();
    let entries = (prev + 1..)
        .zip(&blocks)
        .map(|(index, block)| Entry { position: Position { term: 3, index }, body: Body::Block(block.size()) });
    let kind = Kind::Append { prev: Position { term: 3, index: prev }, commit: 1, entries: entries.collect() };
    part(from, to, kind, blocks)
}
