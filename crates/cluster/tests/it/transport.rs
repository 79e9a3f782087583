//! Connections between nodes: real sockets, and others that do what they should not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use cluster::identity::Identity;
use cluster::link::{FRAME_BYTES_MAX, FRAME_HEAD_BYTES, Frame, Hello, Purpose, Refusal, Spliced};
use cluster::transport::Links;
use cluster::transport::{BEATS_BYTES_MAX, HANDSHAKES_MAX, QUEUE_BYTES_MAX};
use consensus::{Kind, NodeId};
use engine::ErrorKind;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Event, LIMIT, Node, Nodes, PROGRAM, append, beat, runtime, wait_for};

#[test]
fn two_nodes_exchange_parts_in_both_directions() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let sent = append(1, 2, 4, &[10, 2000]);
    one.transport.send(2, sent.clone());
    assert_eq!(two.received(), [sent]);
    two.transport.send(1, beat(2, 1, 77));
    assert_eq!(one.received(), [beat(2, 1, 77)]);
    let peer = one.wait_peer(2, |peer| peer.queued_bytes == 0);
    assert!(peer.is_connected && peer.sent_bytes > 2000 && peer.received_bytes > 0, "{peer:?}");
    assert_eq!((peer.links, peer.full_drops, peer.last_error), (1, 0, None));
}

#[test]
fn three_nodes_exchange_parts_and_keep_their_order() {
    let all = Nodes::connected(3);
    for from in &all.nodes {
        for to in all.nodes.iter().filter(|to| to.id() != from.id()) {
            (0..200).for_each(|prev| from.transport.send(to.id(), append(from.id(), to.id(), prev, &[100])));
        }
    }
    for to in &all.nodes {
        let mut next = [0_u64; 4];
        while next.iter().sum::<u64>() < 400 {
            for part in to.received() {
                let Kind::Append { prev, .. } = part.message.kind else { unreachable!("an append") };
                let next = &mut next[part.message.from as usize];
                assert_eq!((prev.index, part.message.to), (*next, to.id()));
                *next += 1;
            }
        }
    }
}

/// Small parts are written by their sender, large ones by another thread.
#[test]
fn small_parts_do_not_overtake_large_ones() {
    const PARTS: u64 = 600;
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let sizes = [100, 70_000, 1000, 9000, 300_000, 10, 17_000];
    let of = |prev| append(1, 2, prev, &[sizes[prev as usize % sizes.len()]]);
    let mut next = 0;
    for prev in 0..PARTS {
        one.transport.send(2, of(prev));
        if prev % 50 == 49 {
            // The queue is empty again, and the next small part is written at once.
            while next <= prev {
                for part in two.received() {
                    assert_eq!(part, of(next));
                    next += 1;
                }
            }
        }
    }
    let peer = one.wait_peer(2, |peer| peer.queued_bytes == 0);
    assert_eq!((next, peer.full_drops), (PARTS, 0));
}

#[test]
fn a_part_for_a_node_that_is_not_connected_is_dropped_and_counted() {
    let all = Nodes::strangers(1);
    let node = &all.nodes[0];
    node.transport.send(2, beat(1, 2, 1));
    node.transport.set_peers(vec![(2, "127.0.0.1:1".to_owned())]).expect("an address");
    node.transport.send(2, beat(1, 2, 1));
    let peer = node.wait_peer(2, |peer| peer.last_error.is_some());
    assert_eq!((peer.disconnected_drops, peer.queued_bytes, peer.is_connected), (1, 0, false));
    assert!(peer.last_error.is_some_and(|why| why.contains("node 2 at 127.0.0.1:1")));
}

#[test]
fn a_part_that_is_larger_than_a_frame_is_dropped_and_counted() {
    let all = Nodes::connected(2);
    let too_large = append(1, 2, 4, &[8 << 20, 8 << 20, 8 << 20, 100]);
    assert!(too_large.encoded_bytes() > FRAME_BYTES_MAX);
    all.nodes[0].transport.send(2, too_large);
    assert_eq!(all.nodes[0].peer(2).too_large_drops, 1);
    // The connection stays.
    all.nodes[0].transport.send(2, append(1, 2, 4, &[100]));
    assert_eq!(all.nodes[1].received(), [append(1, 2, 4, &[100])]);
}

#[test]
fn a_beat_does_not_wait_behind_entries() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    (0..15).for_each(|prev| one.transport.send(2, append(1, 2, prev, &[1 << 20])));
    one.transport.send(2, beat(1, 2, 5));
    let mut entries = 0;
    loop {
        let parts = two.received();
        if parts == [beat(1, 2, 5)] {
            break;
        }
        entries += parts.len();
    }
    assert!(entries < 15, "all {entries} entries arrived before the beat");
}

#[test]
fn a_full_queue_drops_what_comes_and_keeps_what_it_has() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let closed = two.gate.lock().expect("no panic");
    let total = (QUEUE_BYTES_MAX >> 20) as u64 + 20;
    (0..total).for_each(|prev| one.transport.send(2, append(1, 2, prev, &[1 << 20])));
    let peer = one.peer(2);
    assert!(peer.full_drops > 0 && peer.queued_bytes <= (QUEUE_BYTES_MAX + BEATS_BYTES_MAX) as u64, "{peer:?}");
    drop(closed);
    // The first ones arrive, without a gap.
    let arrived = total - peer.full_drops;
    let mut next = 0;
    while next < arrived {
        for part in two.received() {
            let Kind::Append { prev, .. } = part.message.kind else { unreachable!("an append") };
            assert_eq!(prev.index, next);
            next += 1;
        }
    }
    one.wait_peer(2, |peer| peer.queued_bytes == 0);
}

#[test]
fn a_node_that_stops_is_missed_within_100_ms_and_found_again() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let begin = Instant::now();
    two.transport.stop();
    one.wait(|event| *event == Event::Disconnected(2));
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    one.transport.send(2, beat(1, 2, 1));
    assert_eq!(one.peer(2).disconnected_drops, 1);
    // It comes back at another address, as another process.
    let again = Node::start(all.dirs[1].path(), two.cluster.clone());
    again.know(&[one]);
    one.know(&[&again]);
    one.wait_connected(2);
    again.wait_connected(1);
    one.transport.send(2, beat(1, 2, 9));
    assert_eq!(again.received(), [beat(1, 2, 9)]);
    assert_eq!(one.peer(2).links, 2);
}

/// Relay between two nodes that can be cut.
struct Relay {
    address: SocketAddr,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let sockets: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let all = sockets.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    std::thread::spawn(move || {
                        drop(std::io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                    });
                }
                all.lock().expect("no panic").extend([near, far]);
            }
        });
        Self { address, sockets }
    }

    fn cut(&self) {
        let sockets = std::mem::take(&mut *self.sockets.lock().expect("no panic"));
        sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
    }
}

#[test]
fn a_broken_connection_is_noticed_by_both_within_100_ms_and_mended() {
    let all = Nodes::strangers(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let relay = Relay::to(two.address());
    one.transport.set_peers(vec![(2, relay.address.to_string())]).expect("an address");
    two.know(&[one]);
    for round in 1..=3 {
        one.wait_connected(2);
        two.wait_connected(1);
        let begin = Instant::now();
        relay.cut();
        one.wait(|event| *event == Event::Disconnected(2));
        two.wait(|event| *event == Event::Disconnected(1));
        assert!(begin.elapsed() < Duration::from_millis(100), "round {round}: {:?}", begin.elapsed());
    }
    one.wait_connected(2);
    two.wait_connected(1);
}

/// Both sides may send as soon as they are called, though one of them is called earlier.
#[test]
fn what_is_sent_to_a_connected_node_is_received_and_answered() {
    let all = Nodes::strangers(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    all.nodes.iter().for_each(Node::talk);
    let relay = Relay::to(two.address());
    one.transport.set_peers(vec![(2, relay.address.to_string())]).expect("an address");
    two.know(&[one]);
    for round in 0..25 {
        for (node, other) in [(one, 2), (two, 1)] {
            node.wait_connected(other);
            let (mut beats, mut answers) = (0, 0);
            while (beats, answers) != (1, 1) {
                match node.events.recv_timeout(LIMIT).expect("an event in time") {
                    Event::Received(_, parts) => parts.iter().for_each(|part| match &part.message.kind {
                        Kind::Beat { .. } => beats += 1,
                        _answer => answers += 1,
                    }),
                    event => panic!("{event:?} in round {round}"),
                }
            }
        }
        relay.cut();
        // Nothing is received between the end of a link and the next one.
        for (node, other) in [(one, 2), (two, 1)] {
            assert_eq!(node.events.recv_timeout(LIMIT), Ok(Event::Disconnected(other)), "round {round}");
        }
    }
    assert!(one.peer(2).links >= 25);
}

#[test]
fn a_silent_node_is_missed_within_a_second_and_a_half() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let frozen = two.gate.lock().expect("no panic");
    one.transport.send(2, beat(1, 2, 1));
    two.received();
    let begin = Instant::now();
    one.wait(|event| *event == Event::Disconnected(2));
    let after = begin.elapsed();
    assert!((Duration::from_millis(700)..Duration::from_millis(1500)).contains(&after), "{after:?}");
    assert!(one.peer(2).last_error.is_some_and(|why| why.contains("nothing was received for 1000 ms")));
    drop(frozen);
    two.wait(|event| *event == Event::Disconnected(1));
    one.wait_connected(2);
    two.wait_connected(1);
}

#[test]
fn an_idle_link_stays() {
    let all = Nodes::connected(2);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(all.nodes.iter().all(|node| node.events.try_recv().is_err()));
    assert_eq!(all.nodes[0].peer(2).links, 1);
}

#[test]
fn a_removed_node_is_disconnected_refused_and_told() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    one.transport.set_peers(Vec::new()).expect("no address");
    one.wait(|event| *event == Event::Disconnected(2));
    two.wait(|event| *event == Event::Disconnected(1));
    let refused = |peer: &cluster::transport::PeerStats| {
        peer.last_error.as_ref().is_some_and(|why| why.contains("node 1 does not know node 2"))
    };
    two.wait_peer(1, refused);
    // Back again.
    one.know(&[two]);
    one.wait_connected(2);
    two.wait_connected(1);

    // Removed for good: it is told so.
    one.transport.set_removed([2].into());
    one.transport.set_peers(Vec::new()).expect("no address");
    two.wait(|event| *event == Event::Removed(1));
    two.wait_peer(1, |peer| peer.last_error.as_ref().is_some_and(|why| why.contains("node 2 was removed")));
}

#[test]
fn a_second_process_with_the_number_of_a_node_is_refused_by_name() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let second = Node::start(all.dirs[1].path(), two.cluster.clone());
    second.know(&[one]);
    let is_named = |peer: &cluster::transport::PeerStats| {
        peer.last_error
            .as_ref()
            .is_some_and(|why| why.contains("another process with the number of node 2 is connected"))
    };
    second.wait_peer(1, is_named);
    assert!(one.transport.stats().refused > 0);
    // The first one is not disturbed.
    one.transport.send(2, beat(1, 2, 3));
    assert_eq!(two.received(), [beat(1, 2, 3)]);
    assert_eq!(one.peer(2).links, 1);
    // And it takes over as soon as the first one has ended.
    two.transport.stop();
    one.know(&[&second]);
    second.wait_connected(1);
}

#[test]
fn a_node_of_another_cluster_is_trusted_in_neither_direction() {
    let (all, others) = (Nodes::strangers(1), Nodes::strangers(2));
    let (one, other) = (&all.nodes[0], &others.nodes[1]);
    one.transport.set_peers(vec![(2, other.address().to_string())]).expect("an address");
    other.transport.set_peers(vec![(1, one.address().to_string())]).expect("an address");
    for (node, peer) in [(one, 2), (other, 1)] {
        let why = node.wait_peer(peer, |peer| peer.last_error.is_some()).last_error.expect("an error");
        assert!(why.contains("UnknownIssuer") && why.contains("of this cluster"), "{why}");
    }
    // A client that does not check the server is not let in either.
    let config = client(&[all.dirs[0].path()], Some(identity_of(others.dirs[1].path())));
    let refused = greet(config, one, &hello(one, 2, Purpose::Beats)).expect_err("another authority");
    assert!(refused.to_string().contains("UnknownCA") || refused.to_string().contains("DecryptError"), "{refused}");
    wait_for(|| (one.transport.stats().failed_handshakes > 0).then_some(()));
    assert!(one.events.try_recv().is_err() && other.events.try_recv().is_err());
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read(data: &Path, name: &str) -> Vec<u8> {
    std::fs::read(data.join("cluster").join(name)).expect("a file")
}

fn identity_of(data: &Path) -> Shown {
    let certificate = CertificateDer::from_pem_slice(&read(data, "node.pem")).expect("a certificate");
    (vec![certificate], PrivateKeyDer::from_pem_slice(&read(data, "node.key")).expect("a key"))
}

/// TLS of a client that trusts the authorities of these nodes, and shows a certificate.
fn client(trusted: &[&Path], shown: Option<Shown>) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for data in trusted {
        roots.add(CertificateDer::from_pem_slice(&read(data, "ca.pem")).expect("a certificate")).expect("a root");
    }
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots);
    match shown {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("a key"),
        None => builder.with_no_client_auth(),
    }
}

fn hello(to: &Node, node: NodeId, purpose: Purpose) -> Frame {
    Frame::Hello(Hello { cluster: to.identity.cluster(), node, process: 1, program: PROGRAM.to_owned(), purpose })
}

fn connect(config: ClientConfig, to: &Node) -> StreamOwned<ClientConnection, TcpStream> {
    let name = format!("node-{}.{:032x}.thalweg", to.id(), to.identity.cluster());
    let name = ServerName::try_from(name).expect("a name");
    let socket = TcpStream::connect(to.address()).expect("connected");
    socket.set_read_timeout(Some(LIMIT)).expect("a socket");
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), socket)
}

/// Sends a hello, and returns the answer.
fn greet(config: ClientConfig, to: &Node, hello: &Frame) -> std::io::Result<Frame> {
    let mut stream = connect(config, to);
    stream.write_all(&hello.encode().concat())?;
    read_frame(&mut stream, false)
}

fn read_frame(stream: &mut impl Read, is_known: bool) -> std::io::Result<Frame> {
    let mut head = [0; FRAME_HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; Frame::body_bytes(head, is_known).map_err(std::io::Error::other)?];
    stream.read_exact(&mut body)?;
    Frame::decode(head[4], Bytes::from(body), 1, 2).map_err(std::io::Error::other)
}

fn reason(answer: std::io::Result<Frame>) -> String {
    match answer.expect("an answer") {
        Frame::Refusal(Refusal { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_says_another_number_than_its_certificate_is_refused() {
    let all = Nodes::strangers(3);
    let one = &all.nodes[0];
    one.know(&all.nodes.iter().collect::<Vec<_>>());
    let as_two = || client(&[all.dirs[0].path()], Some(identity_of(all.dirs[1].path())));
    for purpose in [Purpose::Beats, Purpose::Entries, Purpose::Bulk] {
        let why = reason(greet(as_two(), one, &hello(one, 3, purpose)));
        assert!(why.contains("not that of node 3"), "{why}");
    }
    let why = reason(greet(as_two(), one, &hello(one, 1, Purpose::Beats)));
    assert!(why.contains("not that of node 1"), "{why}");
    let Frame::Hello(mut other) = hello(one, 2, Purpose::Beats) else { unreachable!("a hello") };
    other.cluster += 1;
    let why = reason(greet(as_two(), one, &Frame::Hello(other)));
    assert!(why.contains("another cluster"), "{why}");
    // With its own number it is let in.
    assert!(matches!(greet(as_two(), one, &hello(one, 2, Purpose::Bulk)), Ok(Frame::Hello(_))));
}

/// A node whose data directory was copied dials the others, among them the one it was copied from.
#[test]
fn a_process_with_the_own_number_is_told_so() {
    let all = Nodes::strangers(1);
    let one = &all.nodes[0];
    let config = client(&[all.dirs[0].path()], Some(identity_of(all.dirs[0].path())));
    let why = reason(greet(config, one, &hello(one, 1, Purpose::Beats)));
    assert!(why.contains("this is node 1 itself"), "{why}");
}

#[test]
fn an_expired_certificate_is_refused() {
    let all = Nodes::strangers(2);
    let (one, data) = (&all.nodes[0], all.dirs[0].path());
    one.know(&[&all.nodes[1]]);
    let authority = KeyPair::from_pem(&String::from_utf8(read(data, "ca.key")).expect("text")).expect("a key");
    let name = format!("node-2.{:032x}.thalweg", one.identity.cluster());
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = rcgen::DistinguishedName::new();
    let common = format!("Thalweg cluster {:032x}", one.identity.cluster());
    issuer.distinguished_name.push(rcgen::DnType::CommonName, common);
    let issuer = Issuer::from_params(&issuer, &authority);
    let issued = |year| {
        let mut params = CertificateParams::new(vec![name.clone()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").der().clone();
        client(&[data], Some((vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))))
    };
    let refused = greet(issued(2021), one, &hello(one, 2, Purpose::Bulk)).expect_err("expired");
    assert!(refused.to_string().contains("CertificateExpired"), "{refused}");
    // The date is all that was wrong with it.
    assert!(matches!(greet(issued(2999), one, &hello(one, 2, Purpose::Bulk)), Ok(Frame::Hello(_))));
}

#[test]
fn without_a_certificate_only_joining_is_possible() {
    let all = Nodes::strangers(2);
    let (one, data) = (&all.nodes[0], all.dirs[0].path());
    one.know(&[&all.nodes[1]]);
    let splice = Purpose::Splice(Spliced { door: 1, peer: "10.0.0.1:4000".to_owned(), is_owner: true });
    for purpose in [Purpose::Beats, Purpose::Entries, Purpose::Bulk, splice] {
        let why = reason(greet(client(&[data], None), one, &hello(one, 2, purpose)));
        assert!(why.contains("has no certificate"), "{why}");
    }
    assert!(one.streams.try_recv().is_err());
    let mut stream = connect(client(&[data], None), one);
    stream.write_all(&hello(one, 0, Purpose::Join).encode().concat()).expect("sent");
    assert!(matches!(read_frame(&mut stream, false), Ok(Frame::Hello(_))));
    // Parts in the place of a request are no request.
    stream.write_all(&Frame::Parts(vec![beat(2, 1, 7)]).encode().concat()).expect("sent");
    assert!(stream.read(&mut [0]).is_err() || one.cluster.candidates.lock().expect("no panic").is_empty());
    assert!(one.events.try_recv().is_err());
}

#[test]
fn garbage_and_held_connections_harm_no_link() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let data = all.dirs[0].path();
    // More than may be unknown at a time, and more than that.
    let held: Vec<_> =
        (0..HANDSHAKES_MAX + 44).map(|_| TcpStream::connect(one.address()).expect("connected")).collect();
    // The oldest are closed for those beyond the limit, and do not wait for their time to pass.
    for mut socket in &held[..40] {
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
        let read = socket.read(&mut [0]);
        let is_open = read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open && !matches!(read, Ok(1..)), "{read:?}");
    }
    let mut http = TcpStream::connect(one.address()).expect("connected");
    http.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    drop(http.read_to_end(&mut answer));
    assert!(!answer.starts_with(b"HTTP"));
    let long = [&[0xff; 4][..], &[1, 0, 0, 0], &[7; 100]].concat();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &long] {
        let mut stream = connect(client(&[data], None), one);
        stream.write_all(garbage).expect("sent");
        assert!(!reason(read_frame(&mut stream, false)).is_empty());
    }
    // A hello of another version is answered in words.
    let mut hello = hello(one, 2, Purpose::Beats).encode().concat();
    hello[FRAME_HEAD_BYTES + 1] = 9;
    let mut stream = connect(client(&[data], None), one);
    stream.write_all(&hello).expect("sent");
    assert!(reason(read_frame(&mut stream, false)).contains("version 9"));

    // The link is there, and a new one is possible.
    one.transport.send(2, beat(1, 2, 8));
    assert_eq!(two.received(), [beat(1, 2, 8)]);
    let begin = Instant::now();
    two.transport.set_peers(Vec::new()).expect("no address");
    one.wait(|event| *event == Event::Disconnected(2));
    two.know(&[one]);
    one.wait_connected(2);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    // The silent ones are closed: those beyond the limit first, all of them in the end.
    for mut socket in held {
        socket.set_read_timeout(Some(LIMIT)).expect("a socket");
        assert!(!matches!(socket.read(&mut [0]), Ok(1..)), "it sent something");
    }
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert!(one.transport.stats().failed_handshakes >= HANDSHAKES_MAX as u64 + 44);
}

/// A node that is taken over can send what it likes on a lane, and harms only its own link.
#[test]
fn garbage_of_a_node_ends_its_connection() {
    let all = Nodes::strangers(2);
    let (one, data) = (&all.nodes[0], all.dirs[0].path());
    one.know(&[&all.nodes[1]]);
    let as_two = || client(&[data], Some(identity_of(all.dirs[1].path())));
    let damaged = {
        let mut bytes = Frame::Parts(vec![append(2, 1, 1, &[50])]).encode().concat();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        bytes
    };
    let announced = [&(FRAME_BYTES_MAX as u32 + 1).to_be_bytes()[..], &[3, 0, 0, 0]].concat();
    for garbage in [&damaged[..], &announced, b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = connect(as_two(), one);
        stream.write_all(&hello(one, 2, Purpose::Entries).encode().concat()).expect("sent");
        assert!(matches!(read_frame(&mut stream, false), Ok(Frame::Hello(_))));
        stream.write_all(garbage).expect("sent");
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "it was answered");
    }
    assert!(one.events.try_recv().is_err());
}

#[test]
fn streams_are_handed_over_as_they_are() {
    let all = Nodes::connected(2);
    let [one, two] = &all.nodes[..] else { unreachable!("two nodes") };
    let spliced = Spliced { door: 3, peer: "[2001:db8::1]:40000".to_owned(), is_owner: true };
    for purpose in [Purpose::Bulk, Purpose::Splice(spliced)] {
        let sent = vec![5; 3 << 20];
        runtime().block_on(async {
            let mut stream = two.transport.open(1, purpose.clone()).await.expect("opened");
            let (of, from, mut served) = one.streams.recv_timeout(LIMIT).expect("a stream");
            assert_eq!((of, from), (purpose.clone(), 2));
            let stats = one.transport.stats();
            assert_eq!(stats.bulk_streams + stats.splices, 1);
            let echo = async {
                let mut bytes = Vec::new();
                served.read_to_end(&mut bytes).await.expect("read");
                served.write_all(&bytes).await.expect("written");
                served.shutdown().await.expect("ended");
            };
            let call = async {
                stream.write_all(&sent).await.expect("written");
                stream.shutdown().await.expect("half closed");
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await.expect("read");
                bytes
            };
            let ((), answer) = tokio::join!(echo, call);
            assert!(answer == sent);
            drop(served);
        });
        let stats = one.transport.stats();
        assert_eq!((stats.bulk_streams, stats.splices), (0, 0));
    }
    // They are not part of the link.
    assert_eq!(one.peer(2).links, 1);
    let refused = |to, purpose| runtime().block_on(two.transport.open(to, purpose)).err().map(|error| error.kind);
    assert_eq!(refused(1, Purpose::Beats), Some(ErrorKind::Invalid));
    assert_eq!(refused(7, Purpose::Bulk), Some(ErrorKind::NotFound));
    one.transport.stop();
    assert_eq!(refused(1, Purpose::Bulk), Some(ErrorKind::Disconnected));
}

#[test]
fn an_address_that_cannot_be_used_is_named() {
    let all = Nodes::strangers(1);
    let node = &all.nodes[0];
    let refused = node.transport.set_peers(vec![(2, "nowhere".to_owned())]).expect_err("no address");
    assert!(refused.message.contains("write HOST:PORT"), "{refused}");
    let identity = Identity::load(all.dirs[0].path()).expect("readable").expect("an identity");
    assert!(identity.expires_at() > SystemTime::now());
}
