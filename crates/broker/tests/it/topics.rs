//! Topics that are created and deleted while clients publish, subscribe and wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use broker::Settings;
use engine::{Delivery, ErrorKind, TopicSettings};

use crate::support::{ask, metric, publish, start, subscribe, within};

/// Many clients create one topic concurrently, some with other settings: all agree on one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn creators_at_once_agree() {
    let broker = start(Settings::default());
    for round in 0..200 {
        let name = format!("topic-{round}");
        let tasks: Vec<_> = (0..8u32)
            .map(|i| {
                let broker = broker.clone();
                let name = name.clone();
                tokio::spawn(async move {
                    let settings = TopicSettings { partitions: 1 + i % 2, ..TopicSettings::default() };
                    broker
                        .create_topic(&name, settings)
                        .await
                        .map(|status| (settings.partitions, status.partitions.len()))
                })
            })
            .collect();
        let mut won = None;
        for task in tasks {
            match within("a creator", task).await.expect("no panic") {
                Ok((asked, got)) => {
                    assert_eq!(asked as usize, got);
                    assert_eq!(*won.get_or_insert(asked), asked);
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::AlreadyExists, "{error}"),
            }
        }
        assert!(won.is_some());
    }
}

/// A subscription to a pattern gets each record of each topic created after it, from the first one on, even if that
/// publish itself creates the topic.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pattern_gets_new_topics_whole() {
    let broker = start(Settings::default());
    let publishers = 4u64;
    let topics = 150u64;
    let each = 3u64;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut subscription = subscribe(&broker, ask("new.>")).expect("subscribed");
        readers.push(tokio::spawn(async move {
            let mut next: HashMap<String, u64> = HashMap::new();
            let mut out = Vec::new();
            let mut records = 0;
            let handle = subscription.handle();
            while records < publishers * topics * each {
                within("a delivery", subscription.next(&mut out)).await.expect("it goes on");
                for delivery in &out {
                    let Delivery::Batch { source, batch } = delivery else {
                        panic!("nothing is dropped");
                    };
                    let (topic, partition) = handle.source(*source);
                    assert_eq!(partition, 0);
                    let next = next.entry(topic.to_string()).or_default();
                    assert_eq!(batch.base_offset(), *next, "{topic}");
                    *next = batch.next_offset();
                    records += 1;
                }
            }
        }));
    }
    let tasks: Vec<_> = (0..publishers)
        .map(|publisher| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for i in 0..topics * each {
                    // Each topic is created by two concurrent publishers.
                    publish(&broker, &format!("new.{}.{}", publisher / 2, i % topics), 0).await.expect("published");
                }
            })
        })
        .collect();
    for task in tasks.into_iter().chain(readers) {
        within("a task", task).await.expect("no panic");
    }
}

/// Publishing, subscribing and deleting the same names from many threads leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn churn_leaves_nothing_behind() {
    let broker = start(Settings::default());
    let tasks: Vec<_> = (0..8u64)
        .map(|i| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for round in 0..300u64 {
                    let name = format!("churn.{}", (i + round) % 3);
                    let subscription = match subscribe(&broker, ask(if round % 2 == 0 { &name } else { "churn.*" })) {
                        Ok(subscription) => Some(subscription),
                        Err(error) => {
                            assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
                            None
                        }
                    };
                    for result in [publish(&broker, &name, 0).await.map(drop), broker.delete_topic(&name).await] {
                        // Another thread may have deleted it by now.
                        let kind = result.map_err(|error| error.kind);
                        assert!(matches!(kind, Ok(()) | Err(ErrorKind::NotFound)), "{kind:?}");
                    }
                    drop(subscription);
                }
            })
        })
        .collect();
    for task in tasks {
        within("a task", task).await.expect("no panic");
    }
    for i in 0..3 {
        // It may have been deleted already.
        broker.delete_topic(&format!("churn.{i}")).await.unwrap_or_default();
    }
    for name in ["thalweg_topics", "thalweg_log_bytes", "thalweg_subscribers"] {
        assert_eq!(metric(&broker, name), 0, "{name}");
    }
    let queued: Vec<String> = broker
        .stats()
        .expect("metrics")
        .lines()
        .filter(|line| line.starts_with("thalweg_lane_queued{") || line.starts_with("thalweg_lane_subscribers{"))
        .map(str::to_owned)
        .collect();
    assert!(queued.iter().all(|line| line.ends_with(" 0")), "{queued:?}");
}

/// An inbox lives as long as its subscription and cannot be created in any other way.
#[tokio::test]
async fn an_inbox_lives_as_long_as_its_subscription() {
    let broker = start(Settings { auto_create_topics: false, ..Settings::default() });
    let refused = publish(&broker, "_inbox.1", 0).await;
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::NotFound));
    let refused = broker.create_topic("_inbox.1", TopicSettings::default()).await;
    assert_eq!(refused.map(drop).map_err(|error| error.kind), Err(ErrorKind::Invalid));
    let version = broker.catalog_version();
    let subscription = subscribe(&broker, ask("_inbox.1")).expect("subscribed");
    let _everything = subscribe(&broker, ask(">")).expect("subscribed");
    assert_eq!(publish(&broker, "_inbox.1", 0).await.expect("published").receivers, 1, "no pattern listens in");
    assert_eq!(broker.list_topics("", 10, |_| true).0.len(), 0);
    drop(subscription);
    assert_eq!(broker.catalog_version(), version, "groups have nothing to resolve");
    assert_eq!(metric(&broker, "thalweg_topics"), 0);
    assert_eq!(metric(&broker, "thalweg_log_bytes"), 0);
}

/// A single publish wakes all fetches that wait at the end of the log; a deletion wakes them too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_publish_wakes_every_waiting_fetch() {
    let broker = start(Settings::default());
    publish(&broker, "t", 0).await.expect("published");
    for round in 1..50u64 {
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let broker = Arc::clone(&broker);
                tokio::spawn(async move { broker.fetch("t", 0, round, 1 << 20, Duration::from_secs(600)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        publish(&broker, "t", 0).await.expect("published");
        for fetch in waiting {
            let fetched = within("a fetch", fetch).await.expect("no panic").expect("records");
            assert_eq!(fetched.batches[0].base_offset(), round);
        }
    }
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { broker.fetch("t", 0, 50, 1, Duration::from_secs(600)).await }
    });
    tokio::task::yield_now().await;
    broker.delete_topic("t").await.expect("deleted");
    let gone = within("the fetch", waiting).await.expect("no panic");
    assert_eq!(gone.map(drop).map_err(|error| error.kind), Err(ErrorKind::NotFound));
}

/// A page of topics is sought in their order: it looks only at the topics that it has, and at the next.
#[tokio::test]
async fn a_page_looks_at_few_of_many_topics() {
    let broker = start(Settings::default());
    for number in (0..500).rev() {
        broker.create_topic(&format!("t{number:04}"), TopicSettings::default()).await.expect("created");
    }
    let looked_at = std::cell::Cell::new(0);
    let shows = |_: &str| {
        looked_at.set(looked_at.get() + 1);
        true
    };
    let (page, is_last) = broker.list_topics("t0100", 10, shows);
    let listed: Vec<_> = page.iter().map(|topic| topic.name.to_string()).collect();
    assert_eq!(listed, (101..111).map(|number| format!("t{number:04}")).collect::<Vec<_>>());
    assert_eq!((looked_at.get(), is_last), (11, false));
    let (page, is_last) = broker.list_topics("t0489", 10, shows);
    assert_eq!((page.len(), is_last), (10, true));
    assert!(broker.outline_topics().is_sorted_by_key(|topic| topic.name.to_string()));
}
