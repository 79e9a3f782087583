//! Numbers of records at a site that restarts.

use broker::Wakes;
use engine::{Acks, BatchBuilder};

use super::*;
use crate::test_site::{TestSite, until};

async fn publish(site: &TestSite, topic: &str) {
    let mut builder = BatchBuilder::new();
    builder.push(1, None, Some(b"a value"), &[]).expect("a small record");
    let batch = builder.finish().expect("a record");
    let published = site.broker.publish(topic, Some(0), Acks::Accepted, batch, &mut Wakes::default()).await;
    published.expect("published");
}

/// Subscribes as a client does.
async fn subscribe(site: &TestSite, topic: &TopicName) -> Subscription {
    let request = Subscribe {
        pattern: Pattern::Topic(topic.clone()),
        partition: None,
        start: Start::Live,
        overflow: Overflow::Replay,
        queue_batches: None,
        group: None,
        credit: CREDIT,
        missing: Missing::Refuse,
        is_channel: false,
        permit: Permit::ALL,
        origin: Origin::default(),
        hold: None,
        direct: None,
    };
    site.broker.subscribe(request).await.expect("subscribed")
}

/// The frame that confirms the records of a run is lost if its link ends first, as when its site stops.
#[tokio::test]
async fn what_a_site_had_before_it_restarted_is_not_lost_if_its_confirmation_was() {
    let (a, b) = ("a", SiteName::parse("b").expect("a name"));
    let first = TestSite::first(a).await;
    let second = TestSite::join(b.as_str(), &first).await;
    let topic = TopicName::parse("news").expect("a name");
    first.create(topic.as_str()).await;
    second.create(topic.as_str()).await;
    let _reader = subscribe(&second, &topic).await;
    let sending = first.running();
    let outgoing = || sending.outgoing.lock().get(&topic).cloned();
    let sends = || outgoing().is_some_and(|of| of.status(0).sites == [b.clone()]);
    until("it is sent to b", sends).await;
    let outgoing = outgoing().expect("it is sent");
    publish(&first, topic.as_str()).await;
    let is_confirmed = || outgoing.receivers.lock().get(&b).is_some_and(|of| of.is_confirmed);
    until("b has the record", is_confirmed).await;
    outgoing.receivers.lock().get_mut(&b).expect("it is known").is_confirmed = false;
    second.mesh.suspend();
    until("the link has ended", || sending.links.lock().is_empty()).await;
    second.mesh.resume().await;
    until("there is another one", || !sending.links.lock().is_empty()).await;
    publish(&first, topic.as_str()).await;
    let traffic = second.running().traffic_of(&SiteName::parse(a).expect("a name"));
    until("b has the other record", || traffic.received_records.load(Ordering::Relaxed) == 1).await;
    assert_eq!(traffic.lost_records.load(Ordering::Relaxed), 0);
}
