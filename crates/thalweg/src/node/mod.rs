//! Server of a node of a cluster: while the node leads, a broker with open doors; otherwise a gateway to the node that
//! leads.

mod admin;
mod gateway;
mod metrics;
mod nodes;
mod own;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::metrics::{Collect, Exposition};
use broker::{Broker, Door, Leadership};
use cluster::identity::Identity;
use cluster::link::Spliced;
use cluster::node::{self, Node};
use cluster::transport::Stream;
use consensus::Term;
use net::{Forward, Forwarded, Gate, Shutdown};
use parking_lot::Mutex;
use storage::{RealDisk, Store};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::config::Config;
use crate::process::{Process, Starting};
use crate::restore::restore;
use crate::server::Server;
use gateway::Gateway;
use nodes::OfNode;
use own::Own;

/// Time after the end of a leadership in which everything of its broker has to be gone.
const BROKER_GONE_MAX: Duration = Duration::from_secs(10);
/// Interval at which this is checked.
const GONE_EVERY: Duration = Duration::from_millis(2);
/// Time that a connection of another node waits until this one serves.
const SERVE_WAIT: Duration = Duration::from_secs(1);
/// Pause before this node tries to lead again after its broker did not start.
const LEAD_AGAIN: Duration = Duration::from_secs(1);

/// Functions of the open doors that serve forwarded connections; empty while this node does not lead.
#[derive(Default)]
pub(crate) struct Forwards {
    open: Mutex<BTreeMap<u8, Forward>>,
    changed: Notify,
}

impl Forwards {
    fn set(&self, open: BTreeMap<u8, Forward>) {
        *self.open.lock() = open;
        self.changed.notify_waiters();
    }

    fn get(&self, door: u8) -> Option<Forward> {
        self.open.lock().get(&door).cloned()
    }

    /// Waits until a door is open at this node.
    async fn wait(&self, door: Door) -> Forward {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(forward) = self.get(door as u8) {
                return forward;
            }
            changed.await;
        }
    }
}

/// Permission to answer, for one leadership.
struct Lease {
    node: Weak<Node>,
    term: Term,
}

impl Gate for Lease {
    fn is_open(&self) -> bool {
        self.node.upgrade().is_some_and(|node| node.may_serve(self.term))
    }
}

/// Running node of a cluster.
pub struct NodeServer {
    node: Arc<Node>,
    process: Arc<Process>,
    gateway: Arc<Gateway>,
    serving: Arc<Mutex<Option<Server>>>,
    /// Address at which the node answers for itself, if it does.
    status_address: Option<SocketAddr>,
    shutdown: Shutdown,
    shutdown_timeout: Duration,
}

impl NodeServer {
    /// Starts the node in a data directory that has an identity. Returns once its doors accept connections; another
    /// node may serve them.
    pub async fn start(config: &Config, data: &Path, identity: Identity) -> io::Result<Self> {
        if identity.is_removed().map_err(io::Error::other)? {
            return Err(io::Error::other(removed(data, &identity)));
        }
        let identity = Arc::new(identity);
        let process = Arc::new(Starting::new(config)?.bind(config).await?);
        let address = match config.address("cluster").map_err(io::Error::other)? {
            Some(address) => address,
            None => own_address(&identity)?,
        };
        let forwards = Arc::new(Forwards::default());
        let node = {
            let (config, data, identity) = (config.clone(), data.to_owned(), identity.clone());
            let runtime = Handle::current();
            let on_splice = on_splice(forwards.clone(), runtime.clone());
            let open = move || open_node(&config, &data, identity, address, runtime, on_splice);
            tokio::task::spawn_blocking(open).await.map_err(io::Error::other)??
        };
        node.set_doors(doors_of(config, &process, &identity));
        let gateway = Gateway::new(node.clone(), forwards.clone());
        let mut server = Self {
            node: node.clone(),
            process: process.clone(),
            gateway: gateway.clone(),
            serving: Arc::default(),
            status_address: None,
            shutdown: Shutdown::default(),
            shutdown_timeout: config.server().shutdown_timeout,
        };
        if let Some(address) = config.address("cluster_status").map_err(io::Error::other)? {
            let (node, process, gateway) = (node.clone(), process.clone(), gateway.clone());
            let serving = server.serving.clone();
            let own = Own { node, process, gateway, serving, connections: own::connections() };
            server.status_address = Some(own.serve(address, server.shutdown.drain())?);
        }
        if let Some(native) = process.address(Door::Native) {
            let mut drain = server.shutdown.drain();
            let node = node.clone();
            tokio::spawn(async move { drain.or_begun(admin::keep_token(node, native)).await });
        }
        let first = server.accept()?;
        let serving = server.serving.clone();
        let config = config.clone();
        let mut drain = server.shutdown.drain();
        tokio::spawn(async move {
            let leading = Leading { config, node, process, gateway, forwards, serving };
            drain.or_begun(leading.run(first)).await;
        });
        Ok(server)
    }

    /// Accepts connections for the leader. Returns the shutdown that ends it.
    fn accept(&self) -> io::Result<Shutdown> {
        accept(&self.gateway, &self.process)
    }

    /// Returns the node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the address at which the node answers for itself; `None` if it does not.
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status_address
    }

    /// Waits until the cluster has removed this node. It serves nobody any more then, and has to be shut down.
    pub async fn until_removed(&self) {
        self.node.until_removed().await;
    }

    /// Returns the bound address of a door; `None` if it is off.
    pub fn address(&self, door: Door) -> Option<SocketAddr> {
        self.process.address(door)
    }

    /// Reads the certificate files again, even if they are unchanged.
    pub fn reload_certificates(&self) {
        self.process.reload_certificates();
    }

    /// Hands the leadership over, finishes requests in flight within the deadline, and stops. Returns `false` if some
    /// were cut off, or if the store did not stop cleanly.
    pub async fn shut_down(self) -> bool {
        self.node.drain().await;
        self.process.close_sockets();
        let is_finished = self.gateway.finish(self.shutdown_timeout).await;
        let ended = self.shutdown.run(self.shutdown_timeout).await;
        let serving = self.serving.lock().take();
        if let Some(serving) = serving {
            cut(serving).await;
        }
        let node = self.node.clone();
        let stopped = tokio::task::spawn_blocking(move || {
            node.stop();
            node.store().stop()
        });
        let is_safe = stopped.await.map_err(io::Error::other).and_then(|stopped| stopped.map_err(io::Error::other));
        if let Err(error) = &is_safe {
            tracing::error!(%error, "the data directory was not closed cleanly; the journal has all data");
        }
        is_finished && ended.is_clean() && is_safe.is_ok()
    }
}

fn accept(gateway: &Arc<Gateway>, process: &Process) -> io::Result<Shutdown> {
    let shutdown = Shutdown::default();
    for (door, sockets) in process.sockets() {
        gateway.accept(door, &sockets, shutdown.drain())?;
    }
    Ok(shutdown)
}

/// Parts with which this node leads.
struct Leading {
    config: Config,
    node: Arc<Node>,
    process: Arc<Process>,
    gateway: Arc<Gateway>,
    forwards: Arc<Forwards>,
    serving: Arc<Mutex<Option<Server>>>,
}

impl Leading {
    /// Serves in every leadership of this node, and hands connections over in between.
    async fn run(self, mut accepting: Shutdown) {
        loop {
            let term = self.node.lead().await;
            let began = Instant::now();
            match self.serve(term, &accepting).await {
                Ok(()) => {
                    let took_ms = began.elapsed().as_millis() as u64;
                    tracing::info!(term, took_ms, "this node leads and serves");
                    self.node.until_deposed(term).await;
                    tracing::info!(term, "this node does not lead any more");
                }
                Err(error) => {
                    tracing::error!(%error, term, "this node was elected and cannot serve; another one has to");
                    self.node.drain().await;
                    tokio::time::sleep(LEAD_AGAIN).await;
                }
            }
            self.forwards.set(BTreeMap::new());
            self.node.set_admin_token(None);
            let served = self.serving.lock().take();
            if let Some(served) = served {
                cut(served).await;
            }
            match accept(&self.gateway, &self.process) {
                Ok(shutdown) => accepting = shutdown,
                Err(error) => tracing::error!(%error, "connections cannot be handed to the leader"),
            }
        }
    }

    /// Starts a broker over the store, and opens the doors.
    async fn serve(&self, term: Term, accepting: &Shutdown) -> io::Result<()> {
        let leadership = Leadership {
            term,
            node: self.node.own(),
            ids: self.node.identity().ids(),
            nodes: Arc::new(OfNode(Arc::downgrade(&self.node))),
        };
        let store = self.node.store().clone();
        let topics = store.topics();
        let handles = self.process.workers().handles();
        let broker = Broker::start_leading(self.config.broker(), &handles, (store, topics), leadership);
        let broker = broker.map_err(io::Error::other)?;
        restore(&self.config, &broker).await?;
        accepting.run(Duration::ZERO).await;
        let gate = Arc::new(Lease { node: Arc::downgrade(&self.node), term });
        let server = Server::open(&self.config, self.process.clone(), broker, Some(gate)).await?;
        server.register_process_metrics();
        let (node, gateway) = (self.node.clone(), self.gateway.clone());
        let collect = move |out: &mut Exposition<'_>| metrics::expose(&node, &gateway, out);
        server.broker.register(Box::new(Collect(collect)));
        let token = server.admin_token(&self.config)?.map(|token| Zeroizing::new(token.to_owned()));
        self.node.set_admin_token(Some(token));
        self.forwards.set(server.forwards().clone());
        *self.serving.lock() = Some(server);
        Ok(())
    }
}

/// Ends a broker and its doors at once, and waits until nothing of it is left: the next one works on the same store.
async fn cut(server: Server) {
    let broker = Arc::downgrade(&server.broker);
    server.cut().await;
    let until = Instant::now() + BROKER_GONE_MAX;
    while broker.strong_count() > 0 {
        if Instant::now() > until {
            let left = broker.strong_count();
            tracing::error!(left, "something still holds the broker of a leadership that is over");
            return;
        }
        tokio::time::sleep(GONE_EVERY).await;
    }
}

/// Returns the receiver of connections that other nodes hand over. They wait while this node begins to lead.
fn on_splice(forwards: Arc<Forwards>, runtime: Handle) -> Arc<dyn Fn(Spliced, u64, Stream) + Send + Sync> {
    Arc::new(move |spliced, from, stream| {
        let door = Door::ALL.into_iter().find(|door| *door as u8 == spliced.door);
        let (Some(door), Ok(peer)) = (door, spliced.peer.parse()) else {
            return tracing::debug!(from, door = spliced.door, "a connection of another node is for no door");
        };
        let forwards = forwards.clone();
        runtime.spawn(async move {
            if let Ok(forward) = tokio::time::timeout(SERVE_WAIT, forwards.wait(door)).await {
                forward(Forwarded { stream: Box::new(stream), peer, local: None, owner: spliced.is_owner });
            }
        });
    })
}

/// Returns the text about a node that its cluster has removed: how its machine takes part again.
pub fn removed(data: &Path, identity: &Identity) -> String {
    let (node, cluster, data) = (identity.node(), identity.cluster(), data.display());
    format!(
        "node {node} was removed from the cluster {cluster:032x}, and its number is not used again. Delete {data}: the \
         other nodes have all data. To add this machine again, run `thalweg cluster token` at another node, and \
         `thalweg cluster join` here with an empty directory"
    )
}

/// Returns the address at which the node listens unless it is configured: the one at which others reach it.
fn own_address(identity: &Identity) -> io::Result<SocketAddr> {
    let advertised = identity.advertise();
    let found = advertised.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        io::Error::other(format!(
            "other nodes reach this one at {advertised}, which does not resolve to an address here: set cluster to the \
             address at which it listens"
        ))
    })
}

/// Returns the addresses at which clients reach the doors of this node.
fn doors_of(config: &Config, process: &Process, identity: &Identity) -> BTreeMap<String, String> {
    let advertised = identity.advertise();
    let host = advertised.rsplit_once(':').map_or(advertised.as_str(), |(host, _)| host);
    let shown = |(door, address): (Door, SocketAddr)| {
        let own = if door == Door::Kafka { config.text("kafka_advertised") } else { "" };
        let address = match own {
            "" if address.ip().is_unspecified() => format!("{host}:{}", address.port()),
            "" => address.to_string(),
            own => own.to_owned(),
        };
        (door.key().to_owned(), address)
    };
    let open = Door::ALL.into_iter().filter_map(|door| Some((door, process.address(door)?)));
    open.map(shown).collect()
}

fn open_node(
    config: &Config,
    data: &Path,
    identity: Arc<Identity>,
    address: SocketAddr,
    runtime: Handle,
    on_splice: Arc<dyn Fn(Spliced, u64, Stream) + Send + Sync>,
) -> io::Result<Arc<Node>> {
    let wall_clock = config.broker().clock.read();
    let mut settings = config.store();
    // A batch that is not committed must be in no segment.
    settings.journal.through_bytes_min = usize::MAX;
    let mut opening = node::opening(&identity, node::clock);
    let opened = crate::server::opened(data, |progress| {
        Store::open_front(Arc::new(RealDisk), data, settings, wall_clock, &mut opening, progress)
    });
    let (store, topics) = opened.map_err(io::Error::other)?;
    Leadership::check_topics(&topics).map_err(io::Error::other)?;
    let shard = opening.shard().ok_or_else(|| io::Error::other("the log of the cluster was not started"))?;
    let settings = node::Settings {
        identity,
        address,
        program: crate::VERSION.to_owned(),
        catch_up_bytes_per_s: config.bytes("cluster_catch_up_bytes_per_s"),
        verify_bytes_per_s: config.bytes("cluster_verify_bytes_per_s"),
        wall_clock,
        runtime,
        on_splice,
    };
    Node::start(store, shard, settings).map_err(io::Error::other)
}
