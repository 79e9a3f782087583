//! The transition from history to live records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{Broker, Settings, Subscribe};
use engine::{Start, TopicSettings};
use futures_util::FutureExt;

use crate::support::{Follow, ask, metric, publish, read_to, size, start, subscribe, within};

const PARTITIONS: u32 = 2;

async fn publish_many(broker: Arc<Broker>, partition: u32, count: u64, progress: Arc<AtomicU64>) {
    for _ in 0..count {
        publish(&broker, "t", partition).await.expect("published");
        progress.fetch_add(1, Ordering::Relaxed);
        if progress.load(Ordering::Relaxed).is_multiple_of(16) {
            tokio::task::yield_now().await;
        }
    }
}

/// Subscribers that join at any moment, at any offset, with queues of one batch or many, get every record exactly once
/// and in order, while several threads publish.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_repeated_at_the_seam() {
    let broker = start(Settings::default());
    let settings = TopicSettings { partitions: PARTITIONS, retention_bytes: 0, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let each = 3_000u64;
    let publishers = 2u64;
    let progress = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for partition in 0..PARTITIONS {
        for _ in 0..publishers {
            tasks.push(tokio::spawn(publish_many(broker.clone(), partition, each, progress.clone())));
        }
    }
    let end = each * publishers;
    let mut readers = Vec::new();
    for i in 0..40u64 {
        // They join throughout the whole run.
        while progress.load(Ordering::Relaxed) < i * end * u64::from(PARTITIONS) / 50 {
            tokio::task::yield_now().await;
        }
        let mut request = ask("t");
        request.start = match i % 4 {
            0 => Start::Earliest,
            1 => Start::Live,
            2 => Start::Offset(i * 7),
            _ => Start::Offsets(vec![(1, i)]),
        };
        request.queue_batches = [None, Some(1), Some(3)][i as usize % 3];
        let mut subscription = subscribe(&broker, request).expect("subscribed");
        readers.push(tokio::spawn(async move {
            let mut follow = Follow::of(&subscription);
            read_to(&mut subscription, &mut follow, PARTITIONS, end).await;
            assert_eq!(follow.missed, 0);
        }));
    }
    for task in tasks.into_iter().chain(readers) {
        within("a task", task).await.expect("no panic");
    }
}

/// If retention removes history while subscribers read, they receive gaps for exactly the offsets that they miss.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_receive_gaps_for_records_removed_by_retention() {
    let broker = start(Settings::default());
    let settings = TopicSettings { retention_bytes: 20_000, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let end = 20_000;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut request = ask("t");
        request.queue_batches = Some(2);
        let mut subscription = subscribe(&broker, request).expect("subscribed");
        readers.push(tokio::spawn(async move {
            let mut follow = Follow::of(&subscription);
            read_to(&mut subscription, &mut follow, 1, end).await;
            (follow.records, follow.missed)
        }));
    }
    let publishing = tokio::spawn(publish_many(broker.clone(), 0, end, Arc::default()));
    within("the publisher", publishing).await.expect("no panic");
    let mut missed = 0;
    for reader in readers {
        let (records, gone) = within("a reader", reader).await.expect("no panic");
        assert_eq!(records + gone, end);
        missed += gone;
    }
    assert_eq!(crate::support::metric(&broker, "thalweg_dropped_records_total"), missed);
}

/// Returns a number of topics that takes more than a few slices to join.
fn many() -> usize {
    size("HARDENING_TOPICS", 3_000)
}

/// Starts a broker with many topics, some of them with more partitions than one slice joins.
async fn with_many_topics() -> Arc<Broker> {
    let broker = start(Settings::default());
    for i in 0..many() {
        let partitions = if i % 1000 == 0 { 150 } else { 1 };
        let settings = TopicSettings { partitions, ..TopicSettings::default() };
        broker.create_topic(&format!("many.{i}"), settings).await.expect("created");
    }
    broker
}

/// Other tasks run while a pattern joins thousands of topics, and topics that they create, grow and delete in the
/// meantime are neither missed nor read twice.
#[tokio::test]
async fn a_pattern_joins_many_topics_in_slices_and_each_of_them_once() {
    let broker = with_many_topics().await;
    let request = Subscribe { start: Start::Earliest, ..ask("many.*") };
    let joining = tokio::spawn({
        let broker = broker.clone();
        async move { broker.subscribe(request).await }
    });
    let mut turns = 0;
    while !joining.is_finished() {
        tokio::task::yield_now().await;
        turns += 1;
        if metric(&broker, "thalweg_subscriptions_joining") == 1 && turns % 4 == 0 && turns < many() / 2 {
            // One new topic, and one of the existing ones, whatever the progress of the subscription.
            publish(&broker, &format!("many.new{turns}"), 0).await.expect("published");
            publish(&broker, &format!("many.{}", turns % many()), 0).await.expect("published");
            let grown = broker.describe_topic("many.1").expect("there").settings.partitions + 1;
            broker.grow_topic("many.1", grown).await.expect("grown");
            broker.delete_topic(&format!("many.{}", many() - turns)).await.expect("deleted");
        }
    }
    assert!(turns > many() / 64, "{turns} turns");
    let mut subscription = within("the end", joining).await.expect("no panic").expect("subscribed");
    let topics = broker.list_topics("", usize::MAX, |_| true).0;
    for topic in &topics {
        for partition in 0..topic.partitions.len() as u32 {
            let published = publish(&broker, topic.name.as_str(), partition).await.expect("published");
            assert_eq!(published.receivers, 1, "{} {partition}", topic.name);
        }
    }
    let wanted: u64 = topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.end).sum();
    let mut follow = Follow::default();
    let mut out = Vec::new();
    while follow.records < wanted {
        within("a delivery", subscription.next(&mut out)).await.expect("it goes on");
        out.iter().for_each(|delivery| follow.see(delivery));
    }
    assert_eq!(follow.missed, 0);
    // It leaves them in slices, too.
    drop(subscription);
    let receivers = async || publish(&broker, "many.2", 0).await.expect("published").receivers;
    let left = async {
        while receivers().await + publish(&broker, "many.1", 0).await.expect("published").receivers > 0 {
            tokio::task::yield_now().await;
        }
    };
    within("its end", left).await;
}

/// A subscription that is dropped while it waits or joins leaves nothing behind, and the next one gets its turn.
#[tokio::test]
async fn subscriptions_to_many_topics_take_turns_and_may_be_given_up() {
    let broker = with_many_topics().await;
    let mut all: Vec<_> = (0..4).map(|_| Box::pin(broker.subscribe(ask("many.>")))).collect();
    for subscribing in &mut all {
        assert!(subscribing.now_or_never().is_none(), "it takes more than a turn");
    }
    let joining = async || metric(&broker, "thalweg_subscriptions_joining");
    let all_begun = async {
        while joining().await < 4 {
            tokio::task::yield_now().await;
        }
    };
    within("all", all_begun).await;
    // The first one is joining, the second one waits.
    drop(all.drain(..2));
    for subscribing in all {
        let subscription = within("its turn", subscribing).await.expect("subscribed");
        assert!(subscription.starts.len() >= many());
        drop(subscription);
    }
    let all_over = async {
        while joining().await + metric(&broker, "thalweg_subscribers") > 0 {
            tokio::task::yield_now().await;
        }
    };
    within("the end", all_over).await;
    assert_eq!(publish(&broker, "many.2", 0).await.expect("published").receivers, 0);
}
