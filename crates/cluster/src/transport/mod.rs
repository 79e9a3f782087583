//! Connections between the nodes of a cluster: one TCP port with TLS per node.
//!
//! A *link* to another node is four connections: in each direction one for beats and one for entries, so that no
//! heartbeat waits behind megabytes of entries. It is up when all four are, and ends as a whole: when one of them
//! breaks, or brings nothing for [`SILENCE`]. A node that has nothing to send says so every [`KEEP_ALIVE`]. A link that
//! has ended is dialed again by itself.
//!
//! Everything runs in one thread, `cluster-io`, except that a small part is written by the thread that sends it if
//! nothing waits before it. The receiver is called in that thread and must not block: while it does, this node neither
//! hears nor sends, and the others take it for lost after [`SILENCE`].
//!
//! Catch-ups and clients of other nodes have connections at the same port ([`Transport::open`]); their bytes are handed
//! over as they are. A program without a certificate can do nothing but ask to join ([`crate::join`]).

mod accept;
mod dial;
mod outgoing;
mod peer;
mod queue;
mod stats;
mod stream;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use consensus::NodeId;
use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, Semaphore};

use crate::identity::{Identity, check_address, random};
use crate::join::Admits;
use crate::link::{Hello, Part, Purpose};
use peer::Peer;
use queue::Lane;
use tls::Tls;

pub use queue::{BEATS_BYTES_MAX, QUEUE_BYTES_MAX};
pub use stats::{PeerStats, Stats};
pub use stream::{Duplex, Stream};
pub(crate) use stream::{closed, read_frame, write_frame};
pub(crate) use tls::joiner;

/// Time without a byte from a node after which its link ends.
pub const SILENCE: Duration = Duration::from_secs(1);
/// Time after which a node that has nothing to send says that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Maximum time until both sides of a new connection know each other.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of connections whose other side is not known yet. A new one ends the oldest: a node needs a few
/// milliseconds, so one that holds connections open keeps no node out.
pub const HANDSHAKES_MAX: usize = 256;
/// Maximum number of streams of catch-ups that other nodes have open here.
pub const BULK_STREAMS_MAX: usize = 64;
/// Maximum number of clients of other nodes that are connected here.
pub const SPLICES_MAX: usize = 65_536;
/// Maximum number of programs that ask to join at a time.
pub const JOINS_MAX: usize = 8;
/// Time between two looks at the certificate of this node.
const RENEWAL_CHECK: Duration = Duration::from_secs(3600);

/// Way to other nodes.
pub trait Links: Send + Sync {
    /// Queues a part for a node. It never blocks: a part for a node that is not connected, or whose queue is full, is
    /// dropped.
    fn send(&self, to: NodeId, part: Part);
}

/// Receiver of what other nodes send. It is called on the transport's thread, and must not block.
pub trait Receiver: Send + Sync {
    /// Called with the parts of a frame, while the node is connected. Those with entries come in the order in which
    /// they were sent, and so do the others; between the two kinds there is no order.
    fn received(&self, from: NodeId, parts: Vec<Part>);
    /// Called when parts can be sent to a node and it can send some.
    fn connected(&self, node: NodeId);
    /// Called as soon as a connection breaks, or when nothing was heard for [`SILENCE`].
    fn disconnected(&self, node: NodeId);
    /// Called when another node says that this one was removed from the cluster.
    fn removed(&self, by: NodeId);
}

/// Receiver of streams that other nodes open, on the transport's thread. The purpose is [`Purpose::Bulk`] or
/// [`Purpose::Splice`]. A stream may be read and written by a task of another runtime; its readiness still comes from
/// the transport's thread, so it fails after [`Transport::stop`].
pub type OnStream = Arc<dyn Fn(Purpose, NodeId, Stream) + Send + Sync>;

/// Settings of a transport.
pub struct Settings {
    pub identity: Arc<Identity>,
    /// Address at which it listens. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Version of the program, for people.
    pub program: String,
    pub receiver: Arc<dyn Receiver>,
    pub on_stream: OnStream,
    pub admits: Arc<dyn Admits>,
}

/// Connections of this node to the others.
pub struct Transport {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the tasks of a transport share.
pub(crate) struct Shared {
    pub identity: Arc<Identity>,
    process: u64,
    program: String,
    receiver: Arc<dyn Receiver>,
    on_stream: OnStream,
    pub admits: Arc<dyn Admits>,
    tls: Mutex<Arc<Tls>>,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    /// Nodes that were removed from the cluster.
    removed: Mutex<BTreeSet<NodeId>>,
    runtime: Handle,
    stop: Notify,
    handshakes: AtomicU64,
    pub join_refusals: AtomicU64,
    failed_handshakes: AtomicU64,
    refused: AtomicU64,
    last_refusal: Mutex<String>,
    bulk: Arc<Semaphore>,
    splices: Arc<Semaphore>,
    joins: Arc<Semaphore>,
    /// Held while a node is admitted: two requests with one token must not pass the check of used tokens together.
    pub admission: tokio::sync::Mutex<()>,
}

impl Transport {
    /// Binds the address and starts the thread. Nodes are dialed once [`Self::set_peers`] has named them.
    pub fn start(settings: Settings) -> Result<Arc<Self>> {
        let Settings { identity, address, program, receiver, on_stream, admits } = settings;
        let cannot = |error: std::io::Error| {
            Error::new(ErrorKind::Internal, format!("the cluster's address {address} cannot be used: {error}"))
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(2).build().map_err(cannot)?;
        let shared = Arc::new(Shared {
            tls: Mutex::new(Arc::new(Tls::new(&identity)?)),
            process: u64::from_be_bytes(random()?),
            identity,
            program,
            receiver,
            on_stream,
            admits,
            peers: Mutex::default(),
            removed: Mutex::default(),
            runtime: runtime.handle().clone(),
            stop: Notify::new(),
            handshakes: AtomicU64::new(0),
            join_refusals: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_refusal: Mutex::default(),
            bulk: Arc::new(Semaphore::new(BULK_STREAMS_MAX)),
            splices: Arc::new(Semaphore::new(SPLICES_MAX)),
            joins: Arc::new(Semaphore::new(JOINS_MAX)),
            admission: tokio::sync::Mutex::new(()),
        });
        let of_thread = shared.clone();
        let run = move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "the cluster's address cannot be listened at"),
                };
                tokio::select! {
                    () = of_thread.stop.notified() => {}
                    () = accept::run(&of_thread, listener) => {}
                    () = renew(&of_thread) => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("cluster-io".to_owned()).spawn(run).map_err(cannot)?;
        Ok(Arc::new(Self { shared, address, thread: Mutex::new(Some(thread)) }))
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the other nodes, with their addresses. New ones are dialed; a node that is missing is disconnected and
    /// refused from now on, and one with another address is dialed there. The node itself is ignored.
    pub fn set_peers(&self, peers: Vec<(NodeId, String)>) -> Result<()> {
        peers.iter().try_for_each(|(_, address)| check_address(address))?;
        let wanted: BTreeMap<_, _> =
            peers.into_iter().filter(|(node, _)| *node != self.shared.identity.node()).collect();
        let mut known = self.shared.peers.lock();
        let removed: Vec<_> = known.keys().filter(|node| !wanted.contains_key(node)).copied().collect();
        for peer in removed.into_iter().filter_map(|node| known.remove(&node)) {
            peer.tasks.lock().drain(..).for_each(|task| task.abort());
            self.reset(peer, "the node is none of the cluster any more", true);
        }
        for (node, address) in wanted {
            match known.get(&node) {
                Some(peer) => {
                    let is_other = std::mem::replace(&mut *peer.address.lock(), address.clone()) != address;
                    if is_other {
                        self.reset(peer.clone(), "the node has another address", false);
                    }
                }
                None => {
                    let peer = Arc::new(Peer::new(node, address));
                    let dial = |lane| self.shared.runtime.spawn(dial::keep(self.shared.clone(), peer.clone(), lane));
                    let tasks = Lane::ALL.map(|lane| dial(lane).abort_handle());
                    peer.tasks.lock().extend(tasks);
                    known.insert(node, peer);
                }
            }
        }
        Ok(())
    }

    /// Sets the nodes that were removed from the cluster for good, which are told so when they connect.
    pub fn set_removed(&self, removed: BTreeSet<NodeId>) {
        *self.shared.removed.lock() = removed;
    }

    /// Ends the present link to a node, on the transport's thread.
    fn reset(&self, peer: Arc<Peer>, why: &'static str, is_removed: bool) {
        let shared = self.shared.clone();
        self.shared.runtime.spawn(async move { peer.reset(why, is_removed, &*shared.receiver) });
    }

    /// Opens a stream to another node, for [`Purpose::Bulk`] or [`Purpose::Splice`]. The caller's runtime drives it.
    pub fn open(&self, to: NodeId, purpose: Purpose) -> impl Future<Output = Result<Stream>> + Send + use<> {
        dial::open(self.shared.clone(), to, purpose)
    }

    /// Returns the state of all links, and counts.
    pub fn stats(&self) -> Stats {
        let Shared { peers, bulk, splices, joins, handshakes, failed_handshakes, refused, .. } = &*self.shared;
        Stats {
            peers: peers.lock().values().map(|peer| peer.stats()).collect(),
            handshakes: handshakes.load(Ordering::Relaxed),
            joins: (JOINS_MAX - joins.available_permits()) as u64,
            join_refusals: self.shared.join_refusals.load(Ordering::Relaxed),
            failed_handshakes: failed_handshakes.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
            bulk_streams: (BULK_STREAMS_MAX - bulk.available_permits()) as u64,
            splices: (SPLICES_MAX - splices.available_permits()) as u64,
        }
    }

    /// Closes all connections and ends the thread. The receiver is not called any more after this returns, so do not
    /// hold a lock that it needs. Called by the receiver itself, it returns at once.
    pub fn stop(&self) {
        self.shared.stop.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A receiver that has panicked ends the thread; the panic was printed then.
            drop(thread.join());
        }
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Links for Transport {
    fn send(&self, to: NodeId, part: Part) {
        let peer = self.shared.peers.lock().get(&to).cloned();
        if let Some(peer) = peer {
            peer.send(part);
        }
    }
}

impl Shared {
    /// Returns the hello of this node, for a connection with this purpose.
    pub fn hello(&self, purpose: Purpose) -> Hello {
        Hello {
            cluster: self.identity.cluster(),
            node: self.identity.node(),
            process: self.process,
            program: self.program.clone(),
            purpose,
        }
    }

    fn tls(&self) -> Arc<Tls> {
        self.tls.lock().clone()
    }

    fn peer(&self, node: NodeId) -> Option<Arc<Peer>> {
        self.peers.lock().get(&node).cloned()
    }
}

/// Renews the certificate of this node before it expires. Links that are up keep theirs.
async fn renew(shared: &Shared) {
    loop {
        tokio::time::sleep(RENEWAL_CHECK).await;
        let renewed = shared.identity.renew(SystemTime::now()).and_then(|is_new| {
            if is_new {
                *shared.tls.lock() = Arc::new(Tls::new(&shared.identity)?);
            }
            Ok(())
        });
        if let Err(error) = renewed {
            tracing::error!(%error, "the certificate of this node was not renewed; trying again in an hour");
        }
    }
}
