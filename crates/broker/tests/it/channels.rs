//! Channels: listeners of names without a topic, which create nothing and miss nothing without a gap.

use std::sync::Arc;

use broker::{Attempt, Broker, Settings, Subscribe, Subscription, Wakes};
use engine::limits::CHANNELS_MAX;
use engine::{Delivery, ErrorKind, Missing, Result, TopicName, TopicSettings};
use futures_util::FutureExt;

use crate::support::{Follow, ask, batch, metric, publish, start, subscribe, within};

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

/// Publishes to a name. Returns the number of receivers; `None` if there is neither a topic nor a listener.
fn publish_bytes(broker: &Broker, to: &str, bytes: usize) -> Result<Option<u32>> {
    let attempt = broker.publish_to_channel(&name(to), batch(1, bytes), &mut Wakes::default())?;
    Ok(attempt.map(|attempt| match attempt {
        Attempt::Done(published) => published.receivers,
        Attempt::Waits(_) | Attempt::Commits(_) => panic!("a channel message waits for no topic"),
    }))
}

fn listen(broker: &Arc<Broker>, to: &str) -> Subscription {
    let request = Subscribe { missing: Missing::Wait, is_channel: true, ..ask(to) };
    subscribe(broker, request).expect("subscribed")
}

/// Returns the topics of the next deliveries.
async fn received(subscription: &mut Subscription, follow: &mut Follow) -> Vec<String> {
    let mut out = Vec::new();
    within("a delivery", subscription.next(&mut out)).await.expect("it goes on");
    out.iter().for_each(|delivery| follow.see(delivery));
    let source = |delivery: &Delivery| match delivery {
        Delivery::Batch { source, .. } | Delivery::Gap { source, .. } => *source,
    };
    out.iter().map(|delivery| subscription.handle().source(source(delivery)).0.to_string()).collect()
}

#[tokio::test]
async fn listeners_receive_messages_and_no_topic_is_created() {
    let broker = start(Settings { auto_create_topics: false, ..Settings::default() });
    assert_eq!(publish_bytes(&broker, "news", 10).expect("taken"), None);
    let mut one = listen(&broker, "news");
    let others = subscribe(&broker, ask("sport.*")).expect("subscribed");
    let mut every = subscribe(&broker, ask(">")).expect("subscribed");
    let waiting = subscribe(&broker, Subscribe { missing: Missing::Wait, ..ask("news") }).expect("subscribed");
    assert_eq!(
        publish_bytes(&broker, "news", 10).expect("taken"),
        Some(2),
        "a topic subscriber receives no channel messages"
    );
    let mut follow = Follow::default();
    let mut follow_every = Follow::default();
    assert_eq!(received(&mut one, &mut follow).await, ["news"]);
    assert_eq!(received(&mut every, &mut follow_every).await, ["news"]);
    // A later listener receives the following messages.
    let mut late = listen(&broker, "news");
    assert_eq!(publish_bytes(&broker, "news", 10).expect("taken"), Some(3));
    let mut out = Vec::new();
    within("a delivery", late.next(&mut out)).await.expect("it goes on");
    assert_eq!(out.len(), 1);
    assert!(broker.list_topics("", 10, |_| true).0.is_empty() && broker.find_topic("news").is_none());
    assert_eq!((metric(&broker, "thalweg_channels"), metric(&broker, "thalweg_topics")), (1, 0));

    // Messages published before the topic was created are delivered first.
    assert_eq!(received(&mut one, &mut follow).await, ["news"]);
    publish_bytes(&broker, "news", 10).expect("taken");
    broker.create_topic("news", TopicSettings { partitions: 2, ..TopicSettings::default() }).await.expect("created");
    publish(&broker, "news", 1).await.expect("published");
    let mut sources = Vec::new();
    while follow.records < 4 {
        sources.extend(received(&mut one, &mut follow).await);
    }
    assert_eq!((sources.len(), follow.next(0), follow.next(2)), (2, 3, 1));
    assert_eq!(metric(&broker, "thalweg_channels"), 0);
    drop((one, others, every, late, waiting));
    assert_eq!(metric(&broker, "thalweg_listened_names"), 0);
}

/// A slow subscriber reads the rest of a channel as long as the channel exists, and receives gaps for what it misses.
#[tokio::test]
async fn a_slow_listener_receives_gaps_for_missed_messages() {
    let broker = start(Settings::default());
    let request = Subscribe { queue_batches: Some(1), credit: 1, ..ask(">") };
    let mut slow = subscribe(&broker, request).expect("subscribed");
    for _ in 0..200 {
        assert_eq!(publish_bytes(&broker, "news", 1000).expect("taken"), Some(1));
    }
    broker.create_topic("news", TopicSettings::default()).await.expect("created");
    publish(&broker, "news", 0).await.expect("published");
    slow.handle().add_credit(u64::MAX / 4);
    let mut follow = Follow::default();
    while follow.records + follow.missed < 201 {
        received(&mut slow, &mut follow).await;
    }
    assert_eq!((follow.next(0), follow.next(1)), (200, 1));
    assert!(follow.missed > 0);
}

/// At the limit of channels, those that only patterns listen to make room, and then a publish is refused.
#[tokio::test]
async fn channels_have_a_limit() {
    let broker = start(Settings::default());
    let all = subscribe(&broker, ask("c.*")).expect("subscribed");
    for i in 0..=CHANNELS_MAX {
        assert_eq!(publish_bytes(&broker, &format!("c.{i}"), 10).expect("taken"), Some(1));
    }
    assert_eq!(metric(&broker, "thalweg_channels"), 1, "all others were closed to make room");
    let named: Vec<Subscription> = (0..CHANNELS_MAX).map(|i| listen(&broker, &format!("n.{i}"))).collect();
    for i in 0..CHANNELS_MAX {
        assert_eq!(publish_bytes(&broker, &format!("n.{i}"), 10).expect("taken"), Some(1));
    }
    let _more = listen(&broker, "one.more");
    assert_eq!(publish_bytes(&broker, "one.more", 10).map_err(|error| error.kind), Err(ErrorKind::Busy));
    assert_eq!(metric(&broker, "thalweg_channels_refused_total"), 1);
    assert_eq!((metric(&broker, "thalweg_channels"), metric(&broker, "thalweg_channels_max")), (16_384, 16_384));
    drop(named);
    assert_eq!(publish_bytes(&broker, "one.more", 10).expect("taken"), Some(1));
    drop(all);
    assert_eq!((metric(&broker, "thalweg_channels"), metric(&broker, "thalweg_listened_names")), (1, 1));
}

/// A listener of a pattern outlives any number of names.
#[tokio::test]
async fn names_that_come_and_go_use_up_nothing() {
    let broker = start(Settings::default());
    let request = Subscribe { is_channel: true, ..ask("c.*") };
    let mut all = subscribe(&broker, request).expect("subscribed");
    let mut out = Vec::new();
    for i in 0..3 * CHANNELS_MAX {
        let to = format!("c.{i}");
        assert_eq!(publish_bytes(&broker, &to, 10).expect("taken"), Some(1));
        within("a delivery", all.next(&mut out)).await.expect("it goes on");
        let [Delivery::Batch { source, .. }] = out[..] else { panic!("one message: {out:?}") };
        assert_eq!(all.handle().source(source).0.as_str(), to);
        assert!((source as usize) <= CHANNELS_MAX);
        // The drain tries to take more, and so has handed over this delivery.
        assert!(all.next(&mut out).now_or_never().is_none(), "there is no more");
    }
}
