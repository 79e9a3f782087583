//! Native clients of a cluster whose leader moves. The nodes are in this process: the one that leads has a broker over
//! the store, and the others relay TCP connections to it byte for byte.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::{Broker, Door, Leadership, NodeInfo, Nodes};
use client::{
    Addresses, Client, ClientSettings, ErrorKind, Level, LinkChange, LinkObserver, NewQueue, OutMessage, Receive,
    Record, Start, Storage, TopicSettings,
};
use doors::native::{Native, Settings as NativeSettings};
use net::quic::Windows;
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Ports, Shutdown, Sockets, Workers};
use storage::{RealDisk, Store, StoreSettings};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::reading::{Contiguous, text};
use crate::support::server::{until, within};

/// Number from which the ids of the cluster are made.
const FOUNDER: u64 = 77;
const NODES: u64 = 3;
/// Time for which a node without a leader holds a connection.
const HOLD: Duration = Duration::from_millis(300);

/// Addresses of the nodes, as the leader describes them.
struct Table(Vec<SocketAddr>);

impl Nodes for Table {
    fn nodes(&self) -> Vec<NodeInfo> {
        let info = |(id, at): (u64, &SocketAddr)| NodeInfo {
            id,
            doors: vec![(Door::Native, at.ip().to_string(), at.port())],
            ..NodeInfo::default()
        };
        (1..).zip(&self.0).map(info).collect()
    }

    fn transfer(&self, _to: u64) -> engine::Result<()> {
        Ok(())
    }
}

/// Cluster of nodes in this process.
struct Cluster {
    store: Arc<Store>,
    table: Arc<Table>,
    tls: Arc<Tls>,
    term: u64,
    leader: Option<Leader>,
    /// Relays of the nodes that do not lead, with the address that they relay to.
    relays: HashMap<u64, JoinHandle<()>>,
    leads: Arc<Mutex<Option<SocketAddr>>>,
    _folder: tempfile::TempDir,
}

/// Listens at an address, as soon as the door that did so before has closed it.
async fn listen(at: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(at).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            bound => return bound.expect("its port"),
        }
    }
}

/// Broker of one leadership, with its native door.
struct Leader {
    broker: Arc<Broker>,
    native: Native,
    shutdown: Shutdown,
    workers: Arc<Workers>,
}

impl Cluster {
    /// Starts the nodes, of which the first one leads.
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = StoreSettings::default();
        let now = broker::Clock::SYSTEM.read();
        let opened = Store::open(Arc::new(RealDisk), folder.path(), settings, now, &mut |_| {});
        let (store, _) = opened.expect("an empty store");
        let mut addresses = Vec::new();
        for node in 1..=NODES {
            // No connection of a client takes a port there before the node has bound it again.
            let free = TcpListener::bind(format!("127.0.0.{}:0", node + 1)).await.expect("a port");
            addresses.push(free.local_addr().expect("an address"));
        }
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let identity = Identity::self_signed(names).expect("a certificate");
        let mut cluster = Self {
            store,
            table: Arc::new(Table(addresses)),
            tls: Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS"),
            term: 0,
            leader: None,
            relays: HashMap::new(),
            leads: Arc::default(),
            _folder: folder,
        };
        cluster.elect(1).await;
        cluster
    }

    fn address(&self, node: u64) -> SocketAddr {
        self.table.0[node as usize - 1]
    }

    /// Returns the addresses of these nodes as a client writes them.
    fn addresses(&self, scheme: &str, nodes: &[u64]) -> Addresses {
        let all: Vec<String> = nodes.iter().map(|node| self.address(*node).to_string()).collect();
        Addresses::parse(&format!("{scheme}://{}", all.join(","))).expect("valid")
    }

    /// Ends the leadership: the broker takes nothing more, and all connections to it are cut.
    async fn depose(&mut self) {
        let Some(Leader { broker, native, shutdown, workers }) = self.leader.take() else {
            return;
        };
        *self.leads.lock().expect("no panic") = None;
        for (_, relay) in self.relays.drain() {
            relay.abort();
            // Its port is free then.
            drop(relay.await);
        }
        let stopping = broker.clone();
        tokio::task::spawn_blocking(move || stopping.stop()).await.expect("no panic").expect("stopped");
        shutdown.run(Duration::ZERO).await;
        let dropped = tokio::task::spawn_blocking(move || drop((native, broker, workers)));
        within("the end of the broker", dropped).await.expect("no panic");
    }

    /// Makes a node lead. The others relay to it.
    async fn elect(&mut self, node: u64) {
        self.depose().await;
        self.term += 1;
        for other in (1..=NODES).filter(|other| *other != node) {
            let listener = within("its port", listen(self.address(other))).await;
            self.relays.insert(other, tokio::spawn(relay(listener, self.leads.clone())));
        }
        // An election takes a while, in which connections are held.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let leader = Leader::start(&self.store, self.term, node, &self.table, &self.tls).await;
        self.leader = Some(leader);
        *self.leads.lock().expect("no panic") = Some(self.address(node));
    }

    async fn stop(mut self) {
        self.depose().await;
        self.store.stop().expect("stopped");
    }
}

impl Leader {
    async fn start(store: &Arc<Store>, term: u64, node: u64, table: &Arc<Table>, tls: &Tls) -> Self {
        let address = table.0[node as usize - 1];
        let workers = Arc::new(Workers::start(1).expect("threads"));
        let leadership = Leadership { term, node, ids: FOUNDER, nodes: table.clone() };
        let stored = (store.clone(), store.topics());
        let settings = broker::Settings::default();
        let broker = Broker::start_leading(settings, &workers.handles(), stored, leadership).expect("started");
        broker.security.open().await.expect("restored");
        broker.caches.restore().await.expect("restored");
        let connections = Connections::new(ConnectionLimits::up_to(1000));
        let shutdown = Shutdown::default();
        let timeout = Duration::from_secs(5);
        let native = Native::start(broker.clone(), timeout, false, &workers, connections, &shutdown, None);
        let settings = NativeSettings {
            hello_timeout: timeout,
            allow_plain: false,
            is_login_required: false,
            windows: Windows {
                connection_receive: 16 << 20,
                stream_receive: 8 << 20,
                send: 16 << 20,
                bidirectional_streams: 16,
                unidirectional_streams: 0,
            },
        };
        let sockets = Sockets::bind(&Ports { address, unix: None, quic_sockets: 1 }).expect("its port");
        native.listen(&settings, &sockets, tls, &workers).expect("listening");
        Self { broker, native, shutdown, workers }
    }
}

/// Relays connections to the leader. Without a leader they are held for a while, and then closed.
async fn relay(listener: TcpListener, leads: Arc<Mutex<Option<SocketAddr>>>) {
    let mut relayed = tokio::task::JoinSet::new();
    while let Ok((mut near, _)) = listener.accept().await {
        let leads = leads.clone();
        relayed.spawn(async move {
            let begin = Instant::now();
            let leader = loop {
                let leader = *leads.lock().expect("no panic");
                match leader {
                    Some(leader) => break leader,
                    None if begin.elapsed() > HOLD => return,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            if let Ok(mut far) = TcpStream::connect(leader).await {
                drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
            }
        });
    }
}

async fn connect(addresses: Addresses) -> Client {
    connect_with(addresses, ClientSettings::default()).await
}

async fn connect_with(addresses: Addresses, settings: ClientSettings) -> Client {
    within("a connection", Client::connect_with(addresses, settings)).await.expect("connected")
}

async fn create(client: &Client, topic: &str, partitions: u32) {
    let settings = TopicSettings { partitions, storage: Storage::Disk, ..TopicSettings::default() };
    within("create", client.create_topic(topic, settings)).await.expect("created");
}

const RECORDS: u64 = 10_000;
const MESSAGES: u64 = 300;
const PARTITIONS: u32 = 3;

/// Sends numbered records, and returns the log of each partition as their outcomes tell it.
async fn publish_all(client: Client, sent: Arc<AtomicU64>) -> BTreeMap<u32, BTreeMap<u64, u64>> {
    let publisher = client.publisher("t").batch_bytes(400).open();
    let publisher = within("a publisher", publisher).await.expect("open");
    let mut deliveries = Vec::new();
    for number in 0..RECORDS {
        let record = Record::new(number.to_string()).with_key(format!("key-{}", number % 7));
        deliveries.push(within("room", publisher.send(&record)).await.expect("sent"));
        sent.store(number, Ordering::Relaxed);
        if number % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    within("flush", publisher.flush()).await.expect("all acknowledged");
    let mut log: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    for (number, delivery) in (0..).zip(deliveries) {
        let delivered = within("an outcome", delivery.delivered()).await.expect("delivered");
        assert_eq!(delivered.level, Level::Committed);
        let before = log.entry(delivered.partition).or_default().insert(delivered.offset, number);
        assert_eq!(before, None, "two records at one offset");
    }
    log
}

/// Reads all records once and in order, by partition.
async fn subscribe_to_all(client: Client) -> BTreeMap<u32, BTreeMap<u64, u64>> {
    let subscription = client.subscribe("t").start(Start::Earliest).open();
    let mut subscription = within("a subscription", subscription).await.expect("open");
    let mut contiguous = Contiguous::default();
    let mut log: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    for _ in 0..RECORDS {
        let message = within("a record", subscription.next()).await.expect("a record");
        contiguous.see(&message);
        let number = text(message.record.value()).parse().expect("a number");
        log.entry(message.partition).or_default().insert(message.record.offset, number);
    }
    log
}

/// Reads all records once and in order as the member of a group: it stays in the group when the leader moves.
async fn consume_all(client: Client) -> BTreeMap<u32, BTreeMap<u64, u64>> {
    let consumer = client.consumer("g").topic("t").auto_commit(Some(Duration::from_millis(20))).open();
    let mut consumer = within("a member", consumer).await.expect("joined");
    let mut log: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    while log.values().map(BTreeMap::len).sum::<usize>() < RECORDS as usize {
        let message = within("a record", consumer.next()).await.expect("a record");
        let partition = log.entry(message.partition).or_default();
        let end = partition.last_key_value().map_or(0, |(offset, _)| offset + 1);
        assert_eq!(message.record.offset, end, "a record was skipped, or comes again");
        partition.insert(message.record.offset, text(message.record.value()).parse().expect("a number"));
    }
    within("the end", consumer.close()).await.expect("left");
    log
}

/// Sends messages one by one, and returns those whose acknowledgement arrived. No other error than an unknown outcome
/// is possible.
async fn send_messages(client: Client) -> BTreeSet<u64> {
    let jobs = client.queue("jobs");
    let mut sent = BTreeSet::new();
    for number in 0..MESSAGES {
        match within("a send", jobs.send(OutMessage::new(number.to_string()))).await {
            Ok(_) => drop(sent.insert(number)),
            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sent
}

/// Receives messages until `is_done` and every lease has ended, and returns all of them. A lease whose answer was lost
/// when the leader moved keeps its message for the whole of its time.
async fn receive_messages(client: Client, is_done: Arc<AtomicBool>) -> BTreeSet<u64> {
    let jobs = client.queue("jobs");
    let mut received = BTreeSet::new();
    let lease = Duration::from_secs(1);
    let receive = Receive { wait: lease * 2, lease: Some(lease), ..Receive::default() };
    loop {
        let was_done = is_done.load(Ordering::Relaxed);
        let messages = within("a receive", jobs.receive(&receive)).await.expect("received").messages;
        if messages.is_empty() && was_done {
            return received;
        }
        for message in messages {
            received.insert(text(&message.message.body).parse().expect("a number"));
            match within("an ack", jobs.ack(&[message.receipt])).await {
                Ok(_) => {}
                Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
            }
        }
    }
}

/// The leader moves four times during publishes, subscriptions, a group and a queue. Nothing that was acknowledged is
/// lost, nothing that is numbered is stored twice, and the order is kept.
async fn nothing_is_lost_when_the_leader_moves(scheme: &str) {
    let mut cluster = Cluster::start().await;
    let near = connect(cluster.addresses(scheme, &[2, 3, 1])).await;
    create(&near, "t", PARTITIONS).await;
    let jobs = NewQueue { storage: Storage::Disk, ..NewQueue::new("jobs") };
    within("create", near.create_queue(jobs)).await.expect("created");
    let sent = Arc::new(AtomicU64::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    // Each program has its own connections, and another node first.
    let publishing = tokio::spawn(publish_all(connect(cluster.addresses(scheme, &[1, 2])).await, sent.clone()));
    let subscribing = tokio::spawn(subscribe_to_all(connect(cluster.addresses(scheme, &[2])).await));
    let consuming = tokio::spawn(consume_all(connect(cluster.addresses(scheme, &[3, 2, 1])).await));
    let sending = tokio::spawn(send_messages(connect(cluster.addresses(scheme, &[3])).await));
    let receiving = tokio::spawn(receive_messages(connect(cluster.addresses(scheme, &[1])).await, is_done.clone()));
    for (round, node) in (1..).zip([2, 3, 1, 3]) {
        until("records of this leader", async || sent.load(Ordering::Relaxed) >= round * RECORDS / 5).await;
        cluster.elect(node).await;
    }
    let told = publishing.await.expect("all are acknowledged");
    assert_eq!(told.values().map(BTreeMap::len).sum::<usize>(), RECORDS as usize);
    for (partition, log) in &told {
        assert!(log.keys().copied().eq(0..log.len() as u64), "partition {partition} has a record twice");
        assert!(log.values().is_sorted(), "partition {partition} is out of order");
    }
    assert!(subscribing.await.expect("each record once") == told, "the log and the outcomes are the same");
    assert!(consuming.await.expect("no record is skipped") == told, "the group has read the whole log");
    let acknowledged = sending.await.expect("nothing else fails");
    is_done.store(true, Ordering::Relaxed);
    let received = receiving.await.expect("nothing else fails");
    assert!(acknowledged.len() as u64 > MESSAGES / 2, "{} were acknowledged", acknowledged.len());
    assert!(acknowledged.is_subset(&received), "lost: {:?}", acknowledged.difference(&received));
    // All clients went to the leader itself in the end.
    within("a ping", near.ping()).await.expect("answered");
    let known = near.cluster().expect("a cluster");
    assert_eq!((known.term, known.leader, known.nodes.len()), (5, 3, 3));
    near.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_over_tcp_when_the_leader_moves() {
    nothing_is_lost_when_the_leader_moves("tcp").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_over_quic_when_the_leader_moves() {
    nothing_is_lost_when_the_leader_moves("quic").await;
}

/// A node that does not lead answers nothing over QUIC: it relays TLS, which leads to the QUIC door of the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_quic_finds_the_leader_through_another_node() {
    let mut cluster = Cluster::start().await;
    let moves: Arc<Mutex<Vec<String>>> = Arc::default();
    let observer = LinkObserver::new({
        let moves = moves.clone();
        move |change| {
            if let LinkChange::Moved(address) = change {
                moves.lock().expect("no panic").push(address.to_string());
            }
        }
    });
    let settings = ClientSettings { observer: Some(observer), ..ClientSettings::default() };
    let begin = Instant::now();
    let client = connect_with(cluster.addresses("quic", &[2]), settings).await;
    within("a ping", client.ping()).await.expect("answered");
    assert!(begin.elapsed() < Duration::from_secs(3), "took {:?}", begin.elapsed());
    assert_eq!(client.cluster().map(|known| (known.term, known.leader)), Some((1, 1)));
    cluster.elect(3).await;
    within("a ping", client.ping()).await.expect("answered by the next leader");
    assert_eq!(client.cluster().map(|known| (known.term, known.leader)), Some((2, 3)));
    assert_eq!(*moves.lock().expect("no panic"), [format!("quic://{}", cluster.address(3))]);
    // QUIC streams of the leader itself, not the one stream of a relay.
    create(&client, "t", 1).await;
    within("a publish", client.publish("t", Record::new("x"))).await.expect("published");
    client.close().await;
    cluster.stop().await;
}

/// While no node leads, a publisher waits up to its limit and then says that the outcome is unknown; then it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_everything_ends_within_its_time() {
    let mut cluster = Cluster::start().await;
    let timeout = Duration::from_millis(700);
    let settings = ClientSettings { request_timeout: timeout, ..ClientSettings::default() };
    let client = connect_with(cluster.addresses("tcp", &[1, 2, 3]), settings).await;
    create(&client, "t", 1).await;
    let publisher = within("a publisher", client.publisher("t").open()).await.expect("open");
    within("a publish", publisher.publish(&Record::new("before"))).await.expect("published");
    let mut subscription = within("open", client.subscribe("t").start(Start::Earliest).open()).await.expect("open");
    assert_eq!(within("a record", subscription.next()).await.expect("a record").record.value(), b"before");
    cluster.depose().await;
    let begin = Instant::now();
    let error = within("an outcome", publisher.publish(&Record::new("lost"))).await.expect_err("no node leads");
    assert!(error.is_outcome_unknown(), "{error}");
    let error = within("an outcome", client.ping()).await.expect_err("no node leads");
    assert_eq!(error.kind, ErrorKind::Disconnected, "{error}");
    let error = within("an outcome", subscription.next()).await.expect_err("no node leads");
    assert_eq!(error.kind, ErrorKind::Disconnected, "{error}");
    assert!(begin.elapsed() < timeout * 10, "took {:?}", begin.elapsed());
    cluster.elect(2).await;
    until("a publish", async || publisher.publish(&Record::new("after")).await.is_ok()).await;
    let mut values = Vec::new();
    until("the record", async || {
        values.extend(subscription.next().await.ok().map(|message| text(message.record.value())));
        values.contains(&"after".to_owned())
    })
    .await;
    assert!(values.is_sorted_by_key(|value| value == "after"), "{values:?}");
    client.close().await;
    cluster.stop().await;
}
