//! Live topics: what is published at one site reaches the readers at the others.

use std::time::{Duration, Instant};

use engine::SettingsChange;
use engine::mesh::{CacheSettings, LinkState, MeshMode, SiteStatus};
use mesh::Settings;

use crate::support::{PATIENCE, TestSite, dials_out, reachable, until, values};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_record_of_a_topic_reaches_a_reader_at_another_site() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    // The reader is advertised within moments of its subscription.
    a.until_sends("news", &[&b]).await;
    a.publish("news", "first").await;
    assert_eq!(values(&mut reader, 1).await, ["first"]);
    for number in 0..100 {
        a.publish("news", &number.to_string()).await;
    }
    let wanted: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(values(&mut reader, 100).await, wanted);
    let stats = a.status().stats;
    assert!(stats.lookups <= 3, "{stats:?}");
    assert_eq!(b.status().sites[0].lost_records, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_of_three_sites_delivers_every_record_once() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &b).await;
    let sites = [&a, &b, &c];
    let mut readers = Vec::new();
    for site in sites {
        site.create("ring").await;
        readers.push(site.subscribe("ring").await);
    }
    b.until_linked(&c, LinkState::Direct).await;
    a.until_linked(&c, LinkState::Direct).await;
    for site in sites {
        // All sites are owners of the topic, so each has all readers in its part of the directory.
        until("the readers are advertised", || site.status().stats.directory_entries == 3).await;
    }
    for (at, site) in sites.iter().enumerate() {
        let others: Vec<&TestSite> = sites.iter().filter(|other| other.name != site.name).copied().collect();
        site.until_sends("ring", &others).await;
        site.publish("ring", &format!("begin {at}")).await;
    }
    for reader in &mut readers {
        let mut begun = values(reader, 3).await;
        begun.sort_unstable();
        assert_eq!(begun, ["begin 0", "begin 1", "begin 2"]);
    }
    for number in 0..50 {
        for (at, site) in sites.iter().enumerate() {
            site.publish("ring", &format!("{at} {number}")).await;
        }
    }
    for site in sites {
        site.publish("ring", "end").await;
    }
    for reader in &mut readers {
        let received = values(reader, 153).await;
        assert_eq!(received.len(), 153, "nothing comes twice");
        for at in 0..3 {
            let of_site: Vec<&String> = received.iter().filter(|value| value.starts_with(&format!("{at} "))).collect();
            assert_eq!(
                of_site,
                (0..50).map(|number| format!("{at} {number}")).collect::<Vec<_>>().iter().collect::<Vec<_>>()
            );
        }
    }
    for site in sites {
        assert!(site.status().sites.iter().all(|other| other.lost_records == 0), "{:?}", site.status());
    }
}

/// Two sites that learn of each other from a third one may dial at the same time, and one of their two links ends. What
/// the hub relays on its way may be lost with a link, as always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sites_that_dial_each_other_keep_the_order_and_repeat_nothing() {
    for _ in 0..8 {
        let hub = TestSite::first("hub", reachable()).await;
        let a = TestSite::join("a", reachable(), &hub).await;
        a.create("news").await;
        a.publish("news", "begins to watch the topic").await;
        until("a has looked the topic up", || a.status().stats.lookups > 0).await;
        let b = TestSite::join("b", reachable(), &hub).await;
        b.create("news").await;
        let mut reader = b.subscribe("news").await;
        let publish = async {
            for number in 0.. {
                a.publish("news", &number.to_string()).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let read = async {
            let mut received: Vec<u32> = Vec::new();
            while received.last().is_none_or(|last| *last < 300) {
                received
                    .extend(values(&mut reader, 1).await.iter().map(|value| value.parse::<u32>().expect("a number")));
            }
            received
        };
        let received = tokio::select! {
            received = read => received,
            () = publish => panic!("it ends with the reader"),
        };
        assert!(received.is_sorted_by(|one, next| one < next), "{received:?}");
        // It begins with what was published when `a` learned of the reader. What is missing after that is counted, and
        // so is what was sent before and lost.
        let count = |at: &TestSite, of: &TestSite, count: fn(&SiteStatus) -> u64| {
            at.status().sites.iter().filter(|site| site.site == of.name).map(count).sum::<u64>()
        };
        let lost = || count(&b, &a, |of| of.lost_records);
        let missing = u64::from(received[received.len() - 1] - received[0]) + 1 - received.len() as u64;
        assert!((missing..=missing + u64::from(received[0])).contains(&lost()), "{} lost: {received:?}", lost());
        let begin = Instant::now();
        while count(&a, &b, |of| of.sent_records) != count(&b, &a, |of| of.received_records) + lost() {
            assert!(begin.elapsed() < PATIENCE, "what was sent has arrived, or is lost");
            // The next record shows that the last one is lost.
            a.publish("news", "more").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sites_that_only_dial_out_talk_through_a_hub() {
    let hub = TestSite::first("hub", reachable()).await;
    let a = TestSite::join("a", dials_out(), &hub).await;
    let b = TestSite::join("b", dials_out(), &hub).await;
    a.until_linked(&b, LinkState::Relayed).await;
    b.until_linked(&a, LinkState::Relayed).await;
    assert_eq!(a.status().sites.iter().find(|site| site.site == b.name).expect("a member").via, Some(hub.name.clone()));
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    // The hub may know of the reader before `a` does, which sends nothing until then.
    a.until_sends("news", &[&b]).await;
    for number in 0..10 {
        a.publish("news", &number.to_string()).await;
    }
    let wanted: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(values(&mut reader, 10).await, wanted);
    assert_eq!(hub.mesh_topics(), 0, "the hub has no such topic, and relays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_without_readers_receives_nothing_and_a_new_reader_receives_what_follows() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    a.publish("news", "unread").await;
    until("a has looked the topic up", || a.status().stats.lookups > 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(b.status().sites[0].received_records, 0);
    // An owner of the topic tells the site of the new reader, although its answer is still fresh.
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    a.publish("news", "read").await;
    assert_eq!(values(&mut reader, 1).await, ["read"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_deleted_and_created_again_travels_again() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    for number in 0..20 {
        a.publish("news", &number.to_string()).await;
    }
    assert_eq!(values(&mut reader, 20).await.len(), 20);

    // At the site that reads: its interest ends with the topic, and begins again with the next one.
    b.broker.delete_topic("news").await.expect("deleted");
    a.until_sends("news", &[]).await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    a.until_sends("news", &[&b]).await;
    a.publish("news", "after b").await;
    assert_eq!(values(&mut reader, 1).await, ["after b"]);

    // At the site that publishes: its records are numbered from the beginning, and are not those of before.
    a.broker.delete_topic("news").await.expect("deleted");
    until("a does not route it", || a.mesh_topics() == 0).await;
    a.create("news").await;
    for number in 0..20 {
        a.publish("news", &format!("again {number}")).await;
    }
    let wanted: Vec<String> = (0..20).map(|number| format!("again {number}")).collect();
    assert_eq!(values(&mut reader, 20).await, wanted);
    assert_eq!(b.status().sites[0].lost_records, 0);

    // Off, and live again.
    let change = |mesh| SettingsChange { mesh: Some(mesh), ..SettingsChange::default() };
    a.broker.alter_topic("news", change(MeshMode::Off)).await.expect("altered");
    until("a does not send it", || a.mesh_topics() == 0).await;
    // Its tasks end a moment later.
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.publish("news", "local").await;
    a.broker.alter_topic("news", change(MeshMode::Live)).await.expect("altered");
    until("a routes it", || a.mesh_topics() == 1).await;
    a.publish("news", "live").await;
    assert_eq!(values(&mut reader, 1).await, ["live"]);
}

/// Without a subscriber cache each publish is looked up before it is sent, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_cache_every_record_waits_for_its_lookup() {
    let cache = CacheSettings { ttl_ms: 0, ..CacheSettings::default() };
    let a = TestSite::first("a", Settings { cache, ..reachable() }).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    b.create("news").await;
    let mut reader = b.subscribe("news").await;
    until("b has advertised", || a.status().stats.directory_entries > 0).await;
    let mut wanted = Vec::new();
    for number in 0..20 {
        a.publish("news", &number.to_string()).await;
        wanted.push(number.to_string());
        assert_eq!(values(&mut reader, 1).await, wanted[number..]);
    }
    let stats = a.status().stats;
    assert!(stats.lookups >= 20, "{stats:?}");
    assert_eq!((stats.cache.hits, stats.cache.table_size), (0, 0), "{stats:?}");
}

impl TestSite {
    /// Returns the number of live topics.
    fn mesh_topics(&self) -> usize {
        self.broker.mesh_topics().expect("in a mesh").len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_above_a_limit_wait_and_none_is_lost() {
    let a = TestSite::first("a", Settings { sent_bytes_per_s: 100_000, ..reachable() }).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", Settings { received_bytes_per_s: 80_000, ..reachable() }, &a).await;
    for site in [&a, &b, &c] {
        site.create("news").await;
    }
    let mut readers = [b.subscribe("news").await, c.subscribe("news").await];
    a.until_sends("news", &[&b, &c]).await;
    a.publish("news", "begin").await;
    let value = "x".repeat(2000);
    for _ in 0..100 {
        a.publish("news", &value).await;
    }
    for reader in &mut readers {
        assert_eq!(values(reader, 101).await.len(), 101);
    }
    let waited = |site: &TestSite, name: &str, of: &TestSite| {
        let metrics = site.broker.stats().expect("text");
        let row = format!("{name}{{site=\"{}\"}} ", of.name);
        let line = metrics.lines().find(|line| line.starts_with(&row)).expect("a row");
        line[row.len()..].parse::<u64>().expect("a number")
    };
    assert!(waited(&a, "thalweg_mesh_send_wait_milliseconds_total", &b) > 0);
    assert!(waited(&c, "thalweg_mesh_receive_wait_milliseconds_total", &a) > 0);
    assert_eq!(waited(&b, "thalweg_mesh_receive_wait_milliseconds_total", &a), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_reaches_the_inbox_at_another_site_and_requests_know_of_readers_there() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &b).await;
    a.until_linked(&c, LinkState::Direct).await;
    for site in [&a, &b, &c] {
        site.create("prices").await;
    }
    assert_eq!(a.publish("prices", "nobody reads").await.receivers, 0);
    let mut requests = c.subscribe("prices").await;
    a.until_sends("prices", &[&c]).await;
    let mut inbox = a.subscribe("_inbox.7").await;
    assert_eq!(a.publish("prices", "how much?").await.receivers, 1);
    assert_eq!(values(&mut requests, 1).await, ["how much?"]);
    for number in 0..3 {
        assert_eq!(c.publish("_inbox.7", &number.to_string()).await.receivers, 1);
        assert_eq!(values(&mut inbox, 1).await, [number.to_string()]);
    }
    drop(inbox);
    let gone = || c.try_publish("_inbox.7", "too late");
    let begin = Instant::now();
    while gone().await.is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the inbox is gone");
    }
    let unknown = c.try_publish("_inbox.8", "to nobody").await;
    assert!(unknown.is_err_and(|error| error.message.contains("no client is waiting for an answer")));
}
