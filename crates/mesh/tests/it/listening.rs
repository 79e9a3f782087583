//! Patterns, channels and queue groups whose members are at several sites.

use std::time::{Duration, Instant};

use broker::{Mesh, Permit, Subscription};
use engine::mesh::{LISTENERS_PER_SITE_MAX, LinkState, MeshMode};
use engine::{Pattern, Rule, Storage, TopicSettings};

use crate::support::{PATIENCE, TestSite, dials_out, reachable, until, values};

/// Time in which nothing must arrive.
const SILENCE: Duration = Duration::from_millis(300);

/// Returns the values of the records that arrive until there are none for a while.
async fn rest(subscription: &mut Subscription) -> Vec<String> {
    let mut rest = Vec::new();
    while let Ok(next) = tokio::time::timeout(SILENCE, values(subscription, 1)).await {
        rest.extend(next);
    }
    rest
}

/// Waits until a site has been told this number of listeners of others.
async fn until_told(site: &TestSite, listeners: u64) {
    until(&format!("{} knows {listeners} listeners", site.name), || site.mesh.listeners() == listeners).await;
}

/// Publishes until this number of members gets a record. While members come and go, one may reach none of them, or one
/// at each of two sites.
async fn until_reached(publisher: &TestSite, count: usize, mut members: [&mut Subscription; 2]) {
    let end = Instant::now() + PATIENCE;
    loop {
        publisher.publish("jobs", "probe").await;
        let mut reached = 0;
        for member in &mut members {
            reached += rest(member).await.len();
        }
        if reached == count {
            return;
        }
        assert!(Instant::now() < end, "{reached} members get a record, not {count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pattern_gets_topics_that_its_site_does_not_have() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let mut reader = b.subscribe("orders.*").await;
    until_told(&a, 1).await;
    for topic in ["orders.eu", "orders.us", "orders.eu.west", "prices"] {
        a.create(topic).await;
    }
    a.until_sends("orders.eu", &[&b]).await;
    a.until_sends("orders.us", &[&b]).await;
    for number in 0..50 {
        for topic in ["orders.eu", "orders.eu.west", "prices", "orders.us"] {
            a.publish(topic, &format!("{topic} {number}")).await;
        }
    }
    let all = values(&mut reader, 100).await;
    for topic in ["orders.eu", "orders.us"] {
        let of_topic: Vec<&String> = all.iter().filter(|value| value.starts_with(&format!("{topic} "))).collect();
        assert_eq!(of_topic.len(), 50);
        assert!(of_topic.iter().enumerate().all(|(at, value)| **value == format!("{topic} {at}")), "{of_topic:?}");
    }
    assert_eq!(rest(&mut reader).await, [""; 0]);
    // The other site creates no topic for it.
    assert!(b.broker.describe_topic("orders.eu").is_err());
    // Without listeners, nothing is sent any more.
    drop(reader);
    a.until_sends("orders.eu", &[]).await;
    assert_eq!(b.status().sites[0].lost_records, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_created_where_it_is_listened_to_takes_its_listeners() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("orders.eu").await;
    let mut reader = b.subscribe("orders.>").await;
    a.until_sends("orders.eu", &[&b]).await;
    a.publish("orders.eu", "1").await;
    assert_eq!(values(&mut reader, 1).await, ["1"]);
    b.create("orders.eu").await;
    for number in 2..40 {
        a.publish("orders.eu", &number.to_string()).await;
        b.publish("orders.eu", "own").await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let all = values(&mut reader, 76).await;
    let of_a: Vec<&String> = all.iter().filter(|value| *value != "own").collect();
    assert_eq!(of_a, (2..40).map(|number| number.to_string()).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    let owned = all.len() - of_a.len();
    assert_eq!(owned, 38);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_does_not_share_a_topic_is_sent_nothing_of_it() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let own = TopicSettings { mesh: MeshMode::Off, storage: Storage::Memory, ..TopicSettings::of_broker() };
    b.broker.create_topic("orders.eu", own).await.expect("created");
    a.create("orders.eu").await;
    a.create("orders.us").await;
    let mut reader = b.subscribe("orders.*").await;
    a.until_sends("orders.eu", &[&b]).await;
    a.publish("orders.eu", "for b's topic of this name, which is its own").await;
    a.until_sends("orders.eu", &[]).await;
    assert_eq!(rest(&mut reader).await, [""; 0]);
    // It stays so, and costs nothing but the first record.
    for _ in 0..20 {
        a.publish("orders.eu", "x").await;
    }
    let sent = || a.status().sites[0].sent_records;
    assert!(sent() <= 2, "{}", sent());
    a.publish("orders.us", "shared").await;
    assert_eq!(values(&mut reader, 1).await, ["shared"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_gets_a_live_topic_of_another_site() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    a.create("news_x3a_eu").await;
    let mut channel = b.listen("news").await;
    // A pattern of a door is known elsewhere by the glob pattern of its topics.
    let rule = Rule::new("news:*", "test", |topic| topic.as_str().starts_with("news_x3a_")).with_glob("news*");
    let mut pattern = b.subscribe_to(Pattern::Rule(rule), None).await;
    a.until_sends("news", &[&b]).await;
    a.until_sends("news_x3a_eu", &[&b]).await;
    a.publish("news", "1").await;
    a.publish("news_x3a_eu", "2").await;
    assert_eq!(values(&mut channel, 1).await, ["1"]);
    assert_eq!(values(&mut pattern, 1).await, ["2"]);
    assert_eq!((rest(&mut channel).await, rest(&mut pattern).await), (vec![], vec![]));
    drop((channel, pattern));
    a.until_sends("news", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_group_at_three_sites_gets_each_record_once_and_near_first() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &a).await;
    c.until_linked(&b, LinkState::Direct).await;
    let sites = [&a, &b, &c];
    for site in sites {
        site.create("jobs").await;
    }
    let mut at_b = b.join_group("jobs", "workers").await;
    let mut at_c = c.join_group("jobs", "workers").await;
    let mut audit = c.join_group("jobs", "audit").await;
    let mut plain = b.subscribe("jobs").await;
    until_told(&a, 3).await;
    a.until_sends("jobs", &[&b, &c]).await;
    until_reached(&a, 1, [&mut at_b, &mut at_c]).await;
    for reader in [&mut plain, &mut audit] {
        rest(reader).await;
    }
    for number in 0..100 {
        a.publish("jobs", &number.to_string()).await;
    }
    let wanted: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(values(&mut plain, 100).await, wanted);
    assert_eq!(values(&mut audit, 100).await, wanted);
    let mut shares = [rest(&mut at_b).await, rest(&mut at_c).await];
    shares.sort_unstable();
    assert_eq!(shares, [vec![], wanted]);
    // A member at the site of the publisher comes first.
    let mut own = a.join_group("jobs", "workers").await;
    until_reached(&a, 0, [&mut at_b, &mut at_c]).await;
    for reader in [&mut own, &mut plain, &mut audit] {
        rest(reader).await;
    }
    a.publish("jobs", "near").await;
    assert_eq!(values(&mut own, 1).await, ["near"]);
    assert_eq!(values(&mut plain, 1).await, ["near"]);
    assert_eq!(values(&mut audit, 1).await, ["near"]);
    assert_eq!([rest(&mut at_b).await, rest(&mut at_c).await], [vec![], Vec::<String>::new()]);
    // When it has left, another site gets its share again.
    drop(own);
    until_reached(&a, 1, [&mut at_b, &mut at_c]).await;
    a.publish("jobs", "far").await;
    let mut shares = [rest(&mut at_b).await, rest(&mut at_c).await];
    shares.sort_unstable();
    assert_eq!(shares, [vec![], vec!["far".to_owned()]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_moves_to_another_site_while_records_are_published() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &a).await;
    for site in [&a, &b, &c] {
        site.create("jobs").await;
    }
    // Members by a pattern, at a site that has the topic and by name at the other one.
    let first = b.join_group("jobs", "workers").await;
    let second = c.join_group("*", "workers").await;
    until_told(&a, 2).await;
    let mut members = [Some(first), Some(second)];
    a.publish("jobs", "which").await;
    let chosen = usize::from(rest(members[0].as_mut().expect("there")).await.is_empty());
    // The chosen one leaves: the other site's members get what follows.
    members[chosen] = None;
    let (left, gone) = if chosen == 0 { (&c, &b) } else { (&b, &c) };
    a.until_sends("jobs", &[left]).await;
    for number in 0..50 {
        a.publish("jobs", &number.to_string()).await;
    }
    let other = members[1 - chosen].as_mut().expect("there");
    let got: Vec<String> = values(other, 50).await.into_iter().filter(|value| value != "which").collect();
    assert_eq!(got, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(gone.status().sites[0].lost_records, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_are_known_through_a_hub_and_forgotten_with_their_site() {
    let hub = TestSite::first("hub", reachable()).await;
    let a = TestSite::join("a", dials_out(), &hub).await;
    let b = TestSite::join("b", dials_out(), &hub).await;
    a.until_linked(&b, LinkState::Relayed).await;
    a.create("orders.eu").await;
    a.create("orders.us").await;
    let mut reader = b.subscribe("orders.*").await;
    a.until_sends("orders.eu", &[&b]).await;
    a.publish("orders.eu", "1").await;
    assert_eq!(values(&mut reader, 1).await, ["1"]);
    // A refusal reaches the publisher through the hub.
    let own = TopicSettings { mesh: MeshMode::Off, storage: Storage::Memory, ..TopicSettings::of_broker() };
    b.broker.create_topic("orders.us", own).await.expect("created");
    a.publish("orders.us", "refused").await;
    until("the refusal arrives", || {
        let topics = a.mesh.topics().expect("in a mesh");
        topics.iter().any(|of| of.topic.as_str() == "orders.us" && of.sites.is_empty())
    })
    .await;
    hub.mesh.remove(&b.name).await.expect("removed");
    a.until_sends("orders.eu", &[]).await;
    until_told(&a, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_and_a_topic_that_were_refused_are_heard_again() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    a.create("news").await;
    a.create("orders.eu").await;
    let own = TopicSettings { mesh: MeshMode::Off, storage: Storage::Memory, ..TopicSettings::of_broker() };
    b.broker.create_topic("orders.eu", own).await.expect("created");
    let mut pattern = b.subscribe("orders.*").await;
    a.until_sends("orders.eu", &[&b]).await;
    a.publish("orders.eu", "refused").await;
    a.until_sends("orders.eu", &[]).await;
    // Nothing changes at b but the topic: b tells that it takes the records now.
    b.broker.delete_topic("orders.eu").await.expect("deleted");
    a.until_sends("orders.eu", &[&b]).await;
    a.publish("orders.eu", "taken").await;
    assert_eq!(values(&mut pattern, 1).await, ["taken"]);
    for round in 0..20 {
        let mut channel = b.listen("news").await;
        let begin = Instant::now();
        let mut heard: Vec<String> = Vec::new();
        while !heard.contains(&format!("{round}")) {
            assert!(begin.elapsed() < PATIENCE, "the channel is not heard again: {heard:?}");
            a.publish("news", &format!("{round}")).await;
            let next = tokio::time::timeout(Duration::from_millis(10), values(&mut channel, 1)).await;
            heard.extend(next.unwrap_or_default());
        }
        drop(channel);
        // Records may be refused before a knows that the channel is closed, or arrive at the next one.
        for _ in 0..3 {
            a.publish("news", "for nobody").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_of_a_group_stays_at_its_site_when_a_nearer_member_joins() {
    let limited = mesh::Settings { sent_bytes_per_s: 60_000, ..reachable() };
    let a = TestSite::first("a", limited).await;
    let b = TestSite::join("b", reachable(), &a).await;
    for site in [&a, &b] {
        site.create("jobs").await;
    }
    let mut far = b.join_group("jobs", "workers").await;
    until_told(&a, 1).await;
    a.until_sends("jobs", &[&b]).await;
    // More than the limit lets through at once.
    let job = |number: usize| format!("{number} {}", "x".repeat(1000));
    for number in 0..200 {
        a.publish("jobs", &job(number)).await;
    }
    let mut near = a.join_group("jobs", "workers").await;
    a.until_sends("jobs", &[]).await;
    for number in 200..220 {
        a.publish("jobs", &job(number)).await;
    }
    let all = |range: std::ops::Range<usize>| range.map(job).collect::<Vec<_>>();
    assert_eq!(values(&mut near, 20).await, all(200..220));
    // The far member is chosen again while its backlog is still sent.
    assert_eq!(rest(&mut near).await, Vec::<String>::new());
    drop(near);
    a.until_sends("jobs", &[&b]).await;
    for number in 220..240 {
        a.publish("jobs", &job(number)).await;
    }
    assert_eq!(values(&mut far, 220).await, [all(0..200), all(220..240)].concat());
    assert_eq!(rest(&mut far).await, Vec::<String>::new());
    assert_eq!(b.status().sites[0].lost_records, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_may_not_read_a_topic_takes_it_from_nobody() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &a).await;
    for site in [&a, &c] {
        site.create("orders.eu").await;
    }
    let nothing = Permit::new(|_topic, _is_channel| false);
    let mut members = Vec::new();
    for site in [&a, &b] {
        members.push(site.join_with("orders.*", "workers", nothing.clone()).await);
    }
    let mut allowed = c.join_group("orders.*", "workers").await;
    until_told(&a, 2).await;
    // Site b may have been chosen first. It refuses the topic, and the records of that moment are lost.
    let mut got = Vec::new();
    for number in 0.. {
        a.publish("orders.eu", &number.to_string()).await;
        let next = tokio::time::timeout(Duration::from_millis(10), values(&mut allowed, 1)).await;
        got.extend(next.unwrap_or_default());
        if got.len() >= 20 {
            break;
        }
        assert!(number < 2000, "{got:?}");
    }
    let numbers: Vec<usize> = got.iter().map(|value| value.parse().expect("a number")).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_with_too_many_listeners_gets_every_topic() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    for site in [&a, &b] {
        site.create("jobs").await;
    }
    let mut all = Vec::new();
    for number in 0..LISTENERS_PER_SITE_MAX {
        all.push(b.subscribe(&format!("t{number}.*")).await);
    }
    until_told(&a, LISTENERS_PER_SITE_MAX as u64).await;
    let mut worker = b.join_group("jobs", "workers").await;
    let mut last = b.subscribe("news.*").await;
    until_told(&a, 1).await;
    a.create("news.eu").await;
    a.until_sends("news.eu", &[&b]).await;
    a.until_sends("jobs", &[&b]).await;
    a.publish("news.eu", "1").await;
    a.publish("jobs", "2").await;
    assert_eq!(values(&mut last, 1).await, ["1"]);
    assert_eq!(values(&mut worker, 1).await, ["2"]);
    all.clear();
    until_told(&a, 2).await;
    a.publish("jobs", "3").await;
    assert_eq!(values(&mut worker, 1).await, ["3"]);
}
