//! Tests of the dialer against nodes that answer hellos and pings, over TCP.

use std::sync::atomic::AtomicUsize;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use wire::frame::BODY_BYTES_MAX;
use wire::{Assembler, Cluster, ClusterNode, Features, HelloOk, Request, Response, VERSION};

use super::*;
use crate::client::Client;
use crate::settings::LinkObserver;

/// Node that answers hellos and pings, and counts its connections.
struct Node {
    address: std::net::SocketAddr,
    connections: Arc<AtomicUsize>,
    cluster: Arc<Mutex<Option<Cluster>>>,
    /// Error with which pings are answered, if any.
    refusal: Arc<Mutex<Option<Error>>>,
    /// `true` if nothing is answered any more.
    is_silent: Arc<Mutex<bool>>,
}

impl Node {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let node = Self {
            address,
            connections: Arc::default(),
            cluster: Arc::default(),
            refusal: Arc::default(),
            is_silent: Arc::default(),
        };
        let (connections, cluster, refusal) = (node.connections.clone(), node.cluster.clone(), node.refusal.clone());
        let is_silent = node.is_silent.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(socket, cluster.clone(), refusal.clone(), is_silent.clone()));
            }
        });
        node
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Describes a cluster of nodes, of which the first one leads.
    fn lead(&self, term: u64, nodes: &[std::net::SocketAddr]) {
        let node = |(id, address): (u64, &std::net::SocketAddr)| ClusterNode {
            id,
            host: address.ip().to_string(),
            port: address.port(),
        };
        let nodes = (1..).zip(nodes).map(node).collect();
        *self.cluster.lock() = Some(Cluster { id: 9, term, leader: 1, nodes });
    }
}

async fn serve(
    mut socket: TcpStream,
    cluster: Arc<Mutex<Option<Cluster>>>,
    refusal: Arc<Mutex<Option<Error>>>,
    is_silent: Arc<Mutex<bool>>,
) {
    let mut assembler = Assembler::new(BODY_BYTES_MAX);
    let mut frames = Vec::new();
    let mut bytes = BytesMut::new();
    while socket.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        assembler.feed(&bytes.split(), &mut frames).expect("frames");
        if *is_silent.lock() {
            continue;
        }
        let mut answers = BytesMut::new();
        for frame in frames.drain(..) {
            let correlation = frame.correlation;
            let answer = match Request::decode(frame).expect("a request") {
                Request::Hello { offered, .. } => Response::Hello(HelloOk {
                    version: VERSION,
                    features: Features(offered.0 & Features::KNOWN.0),
                    body_bytes_max: BODY_BYTES_MAX as u32,
                    publishes_in_flight_max: 1,
                    instance: 1,
                    server: String::new(),
                    cluster: cluster.lock().clone(),
                }),
                _ => refusal.lock().clone().map_or(Response::Pong, Response::Error),
            };
            answer.encode(correlation, &mut answers);
        }
        socket.write_all(&answers).await.expect("written");
    }
}

/// Node that relays its connections to another one.
async fn relay(to: std::net::SocketAddr) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(to).await.expect("the leader is there");
                drop(copy_bidirectional(&mut near, &mut far).await);
            });
        }
    });
    address
}

/// Returns the address of a port that is not open.
async fn closed() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address")
}

fn tcp(addresses: &[std::net::SocketAddr]) -> Addresses {
    let all: Vec<String> = addresses.iter().map(|address| format!("tcp://{address}")).collect();
    Addresses::parse(&all.join(",")).expect("valid")
}

fn last(client: &Client) -> String {
    client.session.dialed().to_string()
}

#[tokio::test]
async fn an_address_that_refuses_is_skipped_at_once() {
    let node = Node::start().await;
    let begin = Instant::now();
    let addresses = tcp(&[closed().await, closed().await, node.address]);
    let client = Client::connect_with(addresses, ClientSettings::default()).await.expect("connected");
    client.ping().await.expect("answered");
    assert!(begin.elapsed() < HEAD_START, "took {:?}", begin.elapsed());
    assert_eq!(node.connections(), 1);
}

#[tokio::test]
async fn an_address_that_is_silent_costs_its_head_start_once() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let node = Node::start().await;
    let addresses = tcp(&[silent.local_addr().expect("an address"), node.address]);
    let begin = Instant::now();
    let client = Client::connect_with(addresses, ClientSettings::default()).await.expect("connected");
    let took = begin.elapsed();
    assert!((HEAD_START..HEAD_START * 3).contains(&took), "took {took:?}");
    client.session.caches.connection(0).await.expect("connected");
    assert!(begin.elapsed() - took < HEAD_START, "the silent address is tried last now");
}

#[tokio::test]
async fn the_error_of_several_addresses_names_each() {
    let (one, other) = (closed().await, closed().await);
    let settings = ClientSettings { connect_timeout: Duration::from_millis(200), ..ClientSettings::default() };
    let begin = Instant::now();
    let error = Client::connect_with(tcp(&[one, other]), settings).await.err().expect("refused");
    assert!(begin.elapsed() < Duration::from_secs(2), "took {:?}", begin.elapsed());
    assert_eq!(error.kind, ErrorKind::Disconnected);
    for address in [one, other] {
        assert!(error.message.contains(&format!("cannot reach a broker at tcp://{address}")), "{error}");
    }
}

#[tokio::test]
async fn a_relayed_connection_is_replaced_by_one_to_the_leader() {
    let leader = Node::start().await;
    let follower = relay(leader.address).await;
    leader.lead(3, &[leader.address, follower]);
    let client = Client::connect_with(tcp(&[follower]), ClientSettings::default()).await.expect("connected");
    client.ping().await.expect("answered");
    assert_eq!(last(&client), format!("tcp://{}", leader.address));
    assert_eq!(client.cluster().map(|cluster| (cluster.term, cluster.leader, cluster.nodes.len())), Some((3, 1, 2)));
    assert_eq!(leader.connections(), 2);
    client.session.caches.connection(0).await.expect("connected");
    assert_eq!(leader.connections(), 3, "the second connection is a direct one");
}

#[tokio::test]
async fn a_leader_that_cannot_be_reached_is_reached_through_the_others() {
    let leader = Node::start().await;
    let follower = relay(leader.address).await;
    leader.lead(3, &[closed().await, follower]);
    let client = Client::connect_with(tcp(&[follower]), ClientSettings::default()).await.expect("connected");
    client.ping().await.expect("answered");
    assert_eq!(last(&client), format!("tcp://{follower}"));
}

#[tokio::test]
async fn a_request_that_a_node_refuses_is_sent_to_the_next_leader() {
    let (old, new) = (Node::start().await, Node::start().await);
    old.lead(3, &[old.address, new.address]);
    let moves: Arc<Mutex<Vec<String>>> = Arc::default();
    let observer = LinkObserver::new({
        let moves = moves.clone();
        move |change| {
            if let LinkChange::Moved(address) = change {
                moves.lock().push(address.to_string());
            }
        }
    });
    let settings = ClientSettings { observer: Some(observer), ..ClientSettings::default() };
    let client = Client::connect_with(tcp(&[old.address]), settings).await.expect("connected");
    client.ping().await.expect("answered");
    *old.refusal.lock() = Some(Error::not_leader("elected", Some(&new.address.to_string())));
    new.lead(4, &[new.address, old.address]);
    let begin = Instant::now();
    client.ping().await.expect("answered by the new leader");
    assert!(begin.elapsed() < HEAD_START, "took {:?}", begin.elapsed());
    assert_eq!((last(&client), new.connections()), (format!("tcp://{}", new.address), 1));
    assert_eq!(*moves.lock(), [format!("tcp://{}", new.address)]);
}

/// If no node leads, a request ends with an error within its time.
#[tokio::test]
async fn a_cluster_without_a_leader_is_waited_for_no_longer_than_a_request_may_take() {
    let node = Node::start().await;
    node.lead(3, &[node.address]);
    let timeout = Duration::from_millis(500);
    let settings = ClientSettings { request_timeout: timeout, ..ClientSettings::default() };
    let client = Client::connect_with(tcp(&[node.address]), settings).await.expect("connected");
    *node.refusal.lock() = Some(Error::not_leader("in an election", None));
    let begin = Instant::now();
    let error = client.ping().await.expect_err("no node leads");
    assert_eq!(error.kind, ErrorKind::NotLeader);
    assert!(!error.is_outcome_unknown());
    assert!(begin.elapsed() < timeout * 4, "took {:?}", begin.elapsed());
    assert!(node.connections() > 2, "it was tried {} times", node.connections());
}

/// A process that hangs answers nothing, and its system still accepts connections.
#[tokio::test]
async fn a_node_that_falls_silent_is_left_when_another_one_leads() {
    let (old, new) = (Node::start().await, Node::start().await);
    old.lead(3, &[old.address, new.address]);
    new.lead(3, &[old.address, new.address]);
    let settings = ClientSettings { request_timeout: Duration::from_secs(60), ..ClientSettings::default() };
    let client = Client::connect_with(tcp(&[old.address]), settings).await.expect("connected");
    *old.is_silent.lock() = true;
    let waiting = client.clone();
    let answer = tokio::spawn(async move { waiting.ping().await });
    // While the other node names the same term, the first one is only slow.
    while new.connections() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!answer.is_finished());
    new.lead(4, &[new.address, old.address]);
    // A ping may be sent again: the new leader answers it, long before its time is over.
    tokio::time::timeout(Duration::from_secs(30), answer).await.expect("in time").expect("no panic").expect("answered");
    assert_eq!(last(&client), format!("tcp://{}", new.address));
}

/// If no other node is known to lead, the time of the request decides.
#[tokio::test]
async fn a_node_that_falls_silent_is_left_after_a_request_has_timed_out() {
    let (old, new) = (Node::start().await, Node::start().await);
    old.lead(3, &[old.address, new.address]);
    new.lead(3, &[new.address, old.address]);
    let settings = ClientSettings { request_timeout: Duration::from_secs(5), ..ClientSettings::default() };
    let client = Client::connect_with(tcp(&[old.address]), settings).await.expect("connected");
    *old.is_silent.lock() = true;
    let error = client.ping().await.expect_err("no answer");
    assert_eq!((error.kind, error.is_outcome_unknown()), (ErrorKind::Timeout, true));
    client.ping().await.expect("answered by the new leader");
    assert_eq!(last(&client), format!("tcp://{}", new.address));
}
