//! Topics that get more partitions while clients publish and subscribe.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};

use broker::{Settings, Subscribe};
use engine::limits::{PARTITIONS_MAX, PARTITIONS_TOTAL_MAX};
use engine::{Delivery, ErrorKind, Start, TopicSettings};

use crate::support::{ask, metric, publish, start, subscribe, within};

fn of(partitions: u32) -> TopicSettings {
    TopicSettings { partitions, ..TopicSettings::default() }
}

/// Partitions are only added, within the limits; requesting the current number changes nothing.
#[tokio::test]
async fn a_topic_grows_and_does_not_shrink() {
    let broker = start(Settings::default());
    broker.create_topic("t", of(2)).await.expect("created");
    publish(&broker, "t", 1).await.expect("published");
    for _ in 0..2 {
        let status = broker.grow_topic("t", 5).await.expect("grown");
        assert_eq!((status.settings.partitions, status.partitions.len()), (5, 5));
        assert_eq!(status.partitions[1].end, 1, "records stay where they are");
    }
    assert_eq!(publish(&broker, "t", 4).await.expect("published").partitions, 5);
    let kind =
        async |name: &str, partitions| broker.grow_topic(name, partitions).await.map(drop).map_err(|error| error.kind);
    assert_eq!(kind("t", 4).await, Err(ErrorKind::Invalid));
    assert_eq!(kind("t", PARTITIONS_MAX + 1).await, Err(ErrorKind::Invalid));
    assert_eq!(kind("nothing", 2).await, Err(ErrorKind::NotFound));
    let _inbox = subscribe(&broker, ask("_inbox.1")).expect("subscribed");
    assert_eq!(kind("_inbox.1", 2).await, Err(ErrorKind::Invalid));
    for i in 0..PARTITIONS_TOTAL_MAX as u32 / PARTITIONS_MAX - 1 {
        broker.create_topic(&format!("wide-{i}"), of(PARTITIONS_MAX)).await.expect("created");
    }
    assert_eq!(kind("t", PARTITIONS_MAX).await, Err(ErrorKind::Busy), "the inbox has one");
    assert_eq!(kind("t", PARTITIONS_MAX - 1).await, Ok(()));
    broker.delete_topic("t").await.expect("deleted");
    assert_eq!(metric(&broker, "thalweg_log_bytes"), 0, "those that were added are deleted, too");
}

/// Subscribers of the whole topic, or of a pattern, receive the new partitions from their first record on; a queue
/// group shares them, and a subscriber of a single partition receives no other.
#[tokio::test]
async fn subscribers_of_a_whole_topic_get_the_new_partitions() {
    let broker = start(Settings::default());
    broker.create_topic("a.b", of(1)).await.expect("created");
    let member = || Subscribe { group: Some("g".into()), ..ask("a.b") };
    let asked = [
        ask("a.b"),
        Subscribe { start: Start::Earliest, ..ask("a.b") },
        ask("a.*"),
        Subscribe { partition: Some(0), ..ask("a.b") },
        member(),
        member(),
    ];
    let mut readers: Vec<_> = asked.into_iter().map(|ask| subscribe(&broker, ask).expect("subscribed")).collect();
    broker.grow_topic("a.b", 3).await.expect("grown");
    for partition in 0..3 {
        for _ in 0..10 {
            // Three plain readers and one of the group; the fourth reads only its own partition.
            let receivers = publish(&broker, "a.b", partition).await.expect("published").receivers;
            assert_eq!(receivers, if partition == 0 { 5 } else { 4 });
        }
    }
    let mut got: Vec<HashSet<(u32, u64)>> = Vec::new();
    for reader in &mut readers {
        reader.handle().end(engine::Error::invalid("enough"));
        let handle = reader.handle();
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        while within("a delivery", reader.next(&mut out)).await.is_ok() {
            for delivery in &out {
                let Delivery::Batch { source, batch } = delivery else {
                    panic!("nothing is dropped");
                };
                assert!(seen.insert((handle.source(*source).1, batch.base_offset())), "it comes once");
            }
        }
        got.push(seen);
    }
    let all: HashSet<(u32, u64)> =
        (0..3).flat_map(|partition| (0..10).map(move |offset| (partition, offset))).collect();
    assert!(got[..3].iter().all(|seen| *seen == all), "{got:?}");
    assert_eq!(got[3], (0..10).map(|offset| (0, offset)).collect());
    assert!(got[4].is_disjoint(&got[5]) && got[4].len() + got[5].len() == 30, "{got:?}");
}

/// A subscription that is opened while a topic grows misses no partition, in either order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn subscriptions_opened_during_growth_miss_no_partition() {
    let broker = start(Settings::default());
    broker.create_topic("t", of(300)).await.expect("created");
    for partitions in 301..400 {
        let together = Arc::new(Barrier::new(2));
        let growing = tokio::spawn({
            let broker = broker.clone();
            let together = together.clone();
            async move {
                together.wait();
                broker.grow_topic("t", partitions).await.map(drop)
            }
        });
        together.wait();
        let reader = subscribe(&broker, ask("t")).expect("subscribed");
        growing.await.expect("no panic").expect("grown");
        let receivers = publish(&broker, "t", partitions - 1).await.expect("published").receivers;
        assert_eq!(receivers, 1, "partition {}", partitions - 1);
        drop(reader);
    }
}
