//! Peers that are not what they say, links that end, and hubs that fail.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use engine::mesh::{Groups, LinkState, Member, SiteKey, SiteRole, owners};
use engine::{BatchBuilder, TopicName};
use mesh::Settings;
use mesh::frame::{ALPN, BatchHead, Frame, Head, VERSION};
use net::tls::trust::{Trust, client_config};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};

use crate::support::{PATIENCE, TestSite, dials_out, name, reachable, until, values};

/// Peer with a new key, which sends what a test wants.
struct Stranger {
    connection: Connection,
    _endpoint: Endpoint,
}

impl Stranger {
    async fn dial(to: &TestSite) -> Self {
        let identity = net::tls::Identity::self_signed(vec!["stranger".to_owned()]).expect("a key");
        let tls = client_config(Trust::Anyone, &[ALPN], Some(identity)).expect("usable");
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("usable")));
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
        let address = to.mesh.address().expect("it listens");
        let connection = endpoint.connect_with(config, address, "site").expect("valid").await.expect("connected");
        Self { connection, _endpoint: endpoint }
    }

    /// Sends bytes on the control stream. Returns the reason with which the site closes the connection.
    async fn refusal_of(&self, bytes: &[u8]) -> String {
        let (mut send, _receive) = self.connection.open_bi().await.expect("open");
        send.write_all(bytes).await.expect("written");
        match tokio::time::timeout(PATIENCE, self.connection.closed()).await.expect("closed in time") {
            ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => panic!("{other}"),
        }
    }
}

fn bytes_of(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame.put(&mut bytes);
    bytes
}

fn member(site: &str, key: SiteKey) -> Member {
    Member { site: name(site), key, role: SiteRole::Hub, address: None, version: 1, is_removed: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_with_a_reason_and_harm_no_other_link() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let hello = |key, version| bytes_of(&Frame::Hello { version, instance: 1, member: member("b", key) });
    let of_b = b.status().key;
    let cases = [
        (hello(of_b, VERSION), "another key than its own"),
        (bytes_of(&Frame::Linked(vec![name("b")])), "was not expected here"),
        (BytesMut::from(&[0, 0, 0, 3, 99, 1, 2][..]), "unknown kind 99"),
        (BytesMut::from(&[0xff; 64][..]), "a control frame has 4294967295 bytes"),
        (BytesMut::from(&[0, 0, 0, 1, 1][..]), "it ends before its last field"),
    ];
    for (bytes, reason) in cases {
        let refusal = Stranger::dial(&a).await.refusal_of(&bytes).await;
        assert!(refusal.contains(reason), "{refusal}: {reason}");
    }
    // A join with a secret that was not issued, or by another version.
    for (version, reason) in [(VERSION, "another key than its own"), (VERSION + 1, "speaks version 6 of the mesh")] {
        let secret = [7; 16];
        let join = Frame::Join { version, secret, instance: 1, member: member("c", SiteKey::new([1; 32])) };
        let refusal = Stranger::dial(&a).await.refusal_of(&bytes_of(&join)).await;
        assert!(refusal.contains(reason), "{refusal}: {reason}");
    }
    assert_eq!(a.link_to(&b), Some(LinkState::Direct));
    assert_eq!(a.status().sites.len(), 1, "nobody else joined");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sites_with_one_name_do_not_both_stay() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    // The two cannot know of each other: their hosts have no link yet when they join.
    b.mesh.suspend();
    let first = TestSite::join("twin", dials_out(), &a).await;
    b.mesh.resume().await;
    let second = TestSite::start("twin", dials_out()).await;
    let refused = second.enter(&b).await;
    a.until_linked(&b, LinkState::Direct).await;
    let key = |site: &TestSite| site.status().sites.iter().find(|of| of.site == first.name).map(|of| of.key);
    until("both know the same one", || key(&a).is_some() && key(&a) == key(&b)).await;
    let winner = if refused.is_err() || key(&a) == Some(first.status().key) { &first } else { &second };
    assert_eq!(key(&a), Some(winner.status().key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_ends_under_load_loses_no_order_and_counts_what_is_lost() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    a.publish("news", "0").await;
    for number in 1..1000 {
        a.publish("news", &number.to_string()).await;
        if number % 200 == 0 {
            // As after a restart of a NAT device: both ends lose the connection.
            let link = a.mesh.connection_to(&b.name);
            link.inspect(|link| link.close(0_u32.into(), b"a test"));
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    a.until_linked(&b, LinkState::Direct).await;
    a.publish("news", "end").await;
    let mut received: Vec<u64> = Vec::new();
    loop {
        let some = values(&mut reader, 1).await;
        let ended = some.iter().any(|value| value == "end");
        received.extend(some.iter().filter_map(|value| value.parse::<u64>().ok()));
        if ended {
            break;
        }
    }
    assert!(received.is_sorted_by(|a, b| a < b), "in order, and none twice: {received:?}");
    let lost = b.status().sites[0].lost_records;
    assert_eq!(1000 - received.len() as u64, lost, "every lost record is counted");
}

/// The stream with the first records of a topic may end with its link before it has arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_records_of_a_topic_are_counted_if_they_are_lost() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    let mut reader = a.subscribe("news").await;
    let link = b.mesh.connection_to(&a.name).expect("linked");
    for (run, is_confirmed, value, lost) in [(1, false, "after three", 3), (2, true, "after a restart of a", 3)] {
        let (from, to, topic) = (b.name.clone(), a.name.clone(), TopicName::parse("news").expect("a name"));
        let head = Head { from, run, to, topic, origin: None, is_confirmed, groups: Groups::All };
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
        let batch = builder.finish().expect("a record").into_bytes();
        let mut bytes = BytesMut::new();
        head.put(&mut bytes);
        BatchHead { length: batch.len(), number: 3, partition: 0 }.put(&mut bytes);
        bytes.extend_from_slice(&batch);
        let mut stream = link.open_uni().await.expect("open");
        stream.write_all(&bytes).await.expect("written");
        stream.finish().expect("open");
        assert_eq!(values(&mut reader, 1).await, [value]);
        assert_eq!(a.status().sites[0].lost_records, lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_for_a_link_that_has_too_many_streams_and_none_is_lost() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    let link = a.mesh.connection_to(&b.name).expect("linked");
    let mut streams = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(500), link.open_uni()).await {
        streams.push(stream);
    }
    a.publish("news", "0").await;
    // Longer than the forward waits for one stream.
    tokio::time::sleep(Duration::from_secs(11)).await;
    for number in 1..10 {
        a.publish("news", &number.to_string()).await;
    }
    drop(streams);
    let wanted: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(values(&mut reader, 10).await, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_hub_relays_when_one_fails() {
    let first = TestSite::first("hub-1", reachable()).await;
    let second = TestSite::join("hub-2", reachable(), &first).await;
    let a = TestSite::join("a", dials_out(), &first).await;
    let b = TestSite::join("b", dials_out(), &second).await;
    for (leaf, hub) in [(&a, &first), (&a, &second), (&b, &first), (&b, &second)] {
        leaf.until_linked(hub, LinkState::Direct).await;
    }
    a.until_linked(&b, LinkState::Relayed).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    a.publish("news", "0").await;
    assert_eq!(values(&mut reader, 1).await, ["0"]);
    first.mesh.suspend();
    until("a has lost the first hub", || a.link_to(&first) == Some(LinkState::Down)).await;
    a.until_linked(&b, LinkState::Relayed).await;
    // Records that were written to the hub that failed may be lost, later ones are not.
    let mut received = Vec::new();
    for number in 1..1000 {
        a.publish("news", &number.to_string()).await;
        if let Ok(some) = tokio::time::timeout(Duration::from_millis(100), values(&mut reader, 1)).await {
            received = some;
            break;
        }
    }
    assert!(!received.is_empty(), "the second hub relays");
}

/// A site that has lost all owners of a topic for a moment still knows who reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_for_a_hub_that_is_away_for_a_moment() {
    // It is reached at the same port again.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let hub = TestSite::first("hub", Settings { listen: Some(free), ..reachable() }).await;
    let a = TestSite::join("a", dials_out(), &hub).await;
    let mut others = Vec::new();
    for text in ["b", "c", "d"] {
        let other = TestSite::join(text, dials_out(), &hub).await;
        a.until_linked(&other, LinkState::Relayed).await;
        others.push(other);
    }
    let b = &others[0];
    let sites = [&hub, &a].into_iter().chain(&others).map(|site| site.name.clone()).collect::<Vec<_>>();
    let is_elsewhere = |topic: &TopicName| !owners(topic, &sites).contains(&a.name);
    let mut topics = (0..).map(|number| TopicName::parse(&format!("news{number}")).expect("a name"));
    let topic = topics.find(is_elsewhere).expect("there are enough");
    a.create(topic.as_str()).await;
    b.create(topic.as_str()).await;
    let mut reader = b.subscribe(topic.as_str()).await;
    a.until_sends(topic.as_str(), &[b]).await;
    let lookups = a.status().stats.lookups;
    hub.mesh.suspend();
    until("a is alone", || a.link_to(&hub) == Some(LinkState::Down)).await;
    until("a has looked the topic up", || a.status().stats.lookups > lookups).await;
    // An answer is used at once.
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.publish(topic.as_str(), "while the hub is away").await;
    hub.mesh.resume().await;
    assert_eq!(values(&mut reader, 1).await, ["while the hub is away"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_hub_may_relay() {
    let a = TestSite::first("a", reachable()).await;
    let leaf = TestSite::join("leaf", dials_out(), &a).await;
    a.create("news").await;
    // A leaf that sends records of another site is disconnected, and they are not published.
    let mut reader = a.subscribe("news").await;
    let connection = leaf.mesh.connection_to(&a.name).expect("linked");
    let mut stream = connection.open_uni().await.expect("open");
    let mut bytes = BytesMut::new();
    let head = Head {
        from: name("other"),
        run: 1,
        to: a.name.clone(),
        topic: TopicName::parse("news").expect("a name"),
        origin: None,
        is_confirmed: false,
        groups: Groups::All,
    };
    head.put(&mut bytes);
    stream.write_all(&bytes).await.expect("written");
    let closed = tokio::time::timeout(PATIENCE, connection.closed()).await.expect("closed in time");
    assert!(closed.to_string().contains("only a hub relays"), "{closed}");
    until("it is linked again", || a.link_to(&leaf) == Some(LinkState::Direct)).await;
    a.publish("news", "own").await;
    assert_eq!(values(&mut reader, 1).await, ["own"]);
}
