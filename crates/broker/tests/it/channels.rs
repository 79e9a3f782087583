//! Channels: listeners of names without a topic, which create nothing and miss nothing without a gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker::{Attempt, Broker, Direct, Settings, Subscribe, Subscription, Wakes};
use engine::limits::CHANNELS_MAX;
use engine::{Delivery, ErrorKind, Missing, PartitionId, Pattern, Result, Rule, SourceId, TopicName, TopicSettings};
use futures_util::FutureExt;

use crate::support::{Follow, ask, batch, metric, publish, start, subscribe, with_direct, within};

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

/// Subscribes to the names that begin with a text, and counts the names with which the pattern is compared.
fn listen_to_all_of(broker: &Arc<Broker>, start: &str, compared: &Arc<AtomicUsize>) -> Subscription {
    let (text, compared) = (start.to_owned(), compared.clone());
    let takes = move |topic: &TopicName| {
        compared.fetch_add(1, Ordering::Relaxed);
        topic.as_str().starts_with(&text)
    };
    let rule = Rule::new(start, "test", takes).with_glob(&format!("{start}*"));
    let request = Subscribe { pattern: Pattern::Rule(rule), is_channel: true, ..ask(">") };
    subscribe(broker, request).expect("subscribed")
}

/// A name is compared with the patterns whose literal start is its own, and a pattern with the channels that begin with
/// its literal start, however many others there are.
#[tokio::test]
async fn names_are_compared_with_patterns_of_the_same_start_only() {
    const MANY: usize = 2000;
    let broker = start(Settings::default());
    let compared: Arc<AtomicUsize> = Arc::default();
    let taken = || compared.swap(0, Ordering::Relaxed);
    let everything: Vec<Subscription> = (0..3).map(|_| listen_to_all_of(&broker, "", &compared)).collect();
    for i in 0..MANY {
        assert_eq!(publish_bytes(&broker, &format!("channel-{i}"), 10).expect("taken"), Some(3));
    }
    taken();
    let mut all: Vec<Subscription> =
        (0..MANY).map(|i| listen_to_all_of(&broker, &format!("own-{i}-"), &compared)).collect();
    assert_eq!(taken(), 0, "there is no channel with such a name");
    all.push(listen_to_all_of(&broker, "channel-77", &compared));
    assert_eq!(taken(), 11, "channel-77 and channel-770 to channel-779");
    assert_eq!(metric(&broker, "thalweg_channels"), MANY as u64);

    // A new channel and a new topic.
    assert_eq!(publish_bytes(&broker, "own-7-a", 10).expect("taken"), Some(4));
    let for_channel = taken();
    broker.create_topic("own-8-a", TopicSettings::default()).await.expect("created");
    let for_topic = taken();
    assert!(for_channel <= 2 * 4 && for_topic == 4, "{for_channel} {for_topic}");
    assert_eq!(publish(&broker, "own-8-a", 0).await.expect("published").receivers, 4);

    // Patterns that have ended are not found any more, and the others are.
    drop(all.drain(..MANY / 2).collect::<Vec<_>>());
    drop(everything);
    taken();
    assert_eq!(publish_bytes(&broker, "own-7-b", 10).expect("taken"), None);
    assert_eq!((taken(), publish_bytes(&broker, &format!("own-{}-b", MANY - 1), 10).expect("taken")), (0, Some(1)));
    drop(all);
    assert_eq!(publish_bytes(&broker, &format!("own-{}-c", MANY - 1), 10).expect("taken"), None);
    let left = async {
        // Those that joined many channels leave them in slices.
        while metric(&broker, "thalweg_subscribers") + metric(&broker, "thalweg_channels") > 0 {
            tokio::task::yield_now().await;
        }
    };
    within("their end", left).await;
}

/// Takes the number of its subscription down when it delivers.
struct Numbered(usize, Arc<parking_lot::Mutex<Vec<usize>>>);

impl Direct for Numbered {
    fn has_room(&self) -> bool {
        true
    }

    fn deliver(&self, deliveries: &mut Vec<Delivery>, _: &dyn Fn(SourceId) -> (TopicName, PartitionId)) {
        self.1.lock().extend(deliveries.drain(..).map(|_| self.0));
    }

    fn flush(&self) {}
}

/// Listeners of a name receive a message before those of patterns, each in the order in which they came.
#[tokio::test]
async fn listeners_receive_a_message_in_the_order_in_which_they_came() {
    let broker = start(Settings::default());
    let order: Arc<parking_lot::Mutex<Vec<usize>>> = Arc::default();
    let patterns = [">", "a.b.*", "a.>", "*.b.c", "a.b.c", "a.b.>", "a.*.c", "a.b.c"];
    let listening = patterns.iter().enumerate().map(|(number, pattern)| {
        let request = Subscribe { missing: Missing::Wait, is_channel: true, ..ask(pattern) };
        subscribe(&broker, with_direct(request, Numbered(number, Arc::clone(&order)))).expect("subscribed")
    });
    let mut listening: Vec<Subscription> = listening.collect();
    assert_eq!(publish_bytes(&broker, "a.b.c", 10).expect("taken"), Some(8));
    assert_eq!(std::mem::take(&mut *order.lock()), [4, 7, 0, 1, 2, 3, 5, 6]);
    drop((listening.remove(4), listening.remove(2)));
    broker.create_topic("a.b.c", TopicSettings::default()).await.expect("created");
    publish(&broker, "a.b.c", 0).await.expect("published");
    assert_eq!(*order.lock(), [7, 0, 1, 3, 5, 6]);
}
