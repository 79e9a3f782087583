//! Answers of owners that come in another order than they are used in.

use std::pin::pin;
use std::task::{Context, Waker};

use broker::Wakes;
use engine::{Acks, BatchBuilder};

use super::*;
use crate::test_site::{TestSite, until};

/// Site `a`, which routes a topic that nobody reads, and its link to `b`.
struct Pair {
    a: Arc<Running>,
    b: SiteName,
    topic: TopicName,
    outgoing: Arc<Outgoing>,
    sites: [TestSite; 2],
}

impl Pair {
    async fn start() -> Self {
        let first = TestSite::first("a").await;
        let sites = [TestSite::join("b", &first).await, first];
        let [_, site] = &sites;
        let topic = TopicName::parse("news").expect("a name");
        site.create(topic.as_str()).await;
        let a = site.running();
        let is_routed = || a.outgoing.lock().get(&topic).is_some_and(|of| of.is_routed.load(Ordering::Relaxed));
        until("the topic is routed", is_routed).await;
        assert_eq!(a.sites_of(&topic).await.sites[..], []);
        until("all owners have answered", || a.discovery.pending.lock().is_empty()).await;
        let outgoing = a.outgoing.lock()[&topic].clone();
        Self { a, b: SiteName::parse("b").expect("a name"), topic, outgoing, sites }
    }

    async fn until_sent_to_b(&self) {
        until("it is sent to b", || self.outgoing.status(0).sites == [self.b.clone()]).await;
    }
}

#[tokio::test]
async fn a_change_that_follows_the_last_answer_of_a_lookup_is_not_overwritten_by_it() {
    let Pair { a, b, topic, .. } = &Pair::start().await;
    let mut lookup = pin!(a.refresh(topic));
    assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "b has not answered");
    let id = a.number_of_run(a.discovery.lookups.load(Ordering::Relaxed) - 1);
    a.on_found(id, b, Vec::new());
    a.on_changed(b, topic, vec![b.clone()]);
    let found = lookup.await.expect("answered");
    a.follow(topic, &found);
    assert_eq!(*found.sites, *std::slice::from_ref(b));
    assert_eq!(*a.sites_of(topic).await.sites, *std::slice::from_ref(b));
}

#[tokio::test]
async fn a_router_that_has_read_the_cache_before_a_change_does_not_undo_it() {
    let pair = Pair::start().await;
    let Pair { a, b, topic, outgoing, .. } = &pair;
    let before = a.sites_of(topic).await;
    a.on_changed(b, topic, vec![b.clone()]);
    a.follow_sites(outgoing, &before);
    pair.until_sent_to_b().await;
    let now = a.sites_of(topic).await;
    a.on_changed(b, topic, Vec::new());
    a.follow_sites(outgoing, &now);
    until("it is sent to nobody", || outgoing.status(0).sites.is_empty()).await;
}

#[tokio::test]
async fn a_site_is_listed_for_a_topic_once_a_publish_counts_it_as_a_receiver() {
    let pair = Pair::start().await;
    let Pair { a, b, topic, outgoing, sites } = &pair;
    a.on_changed(b, topic, vec![b.clone()]);
    assert_eq!(outgoing.status(0).sites, [], "the forward has not begun");
    pair.until_sent_to_b().await;
    let mut builder = BatchBuilder::new();
    builder.push(1, None, Some(b"a request"), &[]).expect("a small record");
    let batch = builder.finish().expect("a record");
    let wakes = &mut Wakes::default();
    let published = sites[1].broker.publish(topic.as_str(), Some(0), Acks::Accepted, batch, wakes).await;
    assert_eq!(published.expect("published").receivers, 1);
}

/// A hub may relay an answer that a site was sent before it restarted.
#[tokio::test]
async fn an_answer_to_the_run_before_is_not_taken_for_one_to_another_lookup() {
    let Pair { a, b, topic, .. } = &Pair::start().await;
    let mut lookup = pin!(a.refresh(topic));
    assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "b has not answered");
    let number = a.discovery.lookups.load(Ordering::Relaxed) - 1;
    let of_run = |instance: u64| (instance << 20) + number;
    for id in [number, of_run(a.instance - 1)] {
        a.on_found(id, b, vec![b.clone()]);
    }
    assert_eq!(*lookup.await.expect("answered").sites, []);
}

/// An answer of no reader is one of those that a lookup counts.
#[tokio::test]
async fn an_answer_of_a_site_that_is_not_awaited_is_not_taken_for_that_of_an_owner() {
    let Pair { a, b, topic, .. } = &Pair::start().await;
    let mut lookup = pin!(a.refresh(topic));
    assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "b has not answered");
    let id = a.number_of_run(a.discovery.lookups.load(Ordering::Relaxed) - 1);
    for other in ["a", "c"] {
        a.on_found(id, &SiteName::parse(other).expect("a name"), Vec::new());
    }
    a.on_found(id, b, vec![b.clone()]);
    assert_eq!(*lookup.await.expect("answered").sites, *std::slice::from_ref(b));
}
