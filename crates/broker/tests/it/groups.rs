//! Queue groups with many concurrent members and publishers.

use std::collections::HashSet;
use std::sync::Arc;

use broker::Settings;
use engine::{Delivery, ErrorKind, Overflow, TopicSettings};
use std::sync::Mutex;

use crate::support::{ask, publish, start, subscribe, within};

/// Each record is delivered to exactly one member of each group, regardless of the publisher and of slow members.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_record_goes_to_one_member() {
    let broker = start(Settings::default());
    let settings = TopicSettings { partitions: 4, ..TopicSettings::default() };
    broker.create_topic("jobs", settings).await.expect("created");
    let each = 1_500u64;
    let members = 5;
    type Seen = Arc<Mutex<HashSet<(u32, u64)>>>;
    let seen: Vec<Seen> = (0..2).map(|_| Arc::default()).collect();
    let mut readers = Vec::new();
    for (group, seen) in seen.iter().enumerate() {
        for member in 0..members {
            let mut request = ask("jobs");
            request.group = Some(format!("group-{group}"));
            request.overflow = Overflow::Block;
            request.queue_batches = Some(4);
            let mut subscription = subscribe(&broker, request).expect("subscribed");
            let seen = seen.clone();
            readers.push(tokio::spawn(async move {
                let mut out = Vec::new();
                while subscription.next(&mut out).await.is_ok() {
                    for delivery in &out {
                        let Delivery::Batch { source, batch } = delivery else {
                            panic!("a share has no gaps");
                        };
                        let is_new = seen.lock().expect("no panic").insert((*source, batch.base_offset()));
                        assert!(is_new, "{source} {} came twice", batch.base_offset());
                    }
                    for _ in 0..member {
                        tokio::task::yield_now().await;
                    }
                }
            }));
        }
    }
    let publishing: Vec<_> = (0..4)
        .map(|partition| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    let published = publish(&broker, "jobs", partition).await.expect("published");
                    assert_eq!(published.receivers, 2);
                }
            })
        })
        .collect();
    for publisher in publishing {
        within("a publisher", publisher).await.expect("no panic");
    }
    // The end of the topic is delivered after the queued records.
    broker.delete_topic("jobs").await.expect("deleted");
    for reader in readers {
        within("a reader", reader).await.expect("no panic");
    }
    for seen in seen {
        assert_eq!(seen.lock().expect("no panic").len() as u64, 4 * each);
    }
}

/// A member that has ended gets no more of the group's records, even while it still hands over queued ones.
#[tokio::test]
async fn a_member_that_has_ended_gets_nothing_more() {
    let broker = start(Settings::default());
    let join = || {
        let mut request = ask("jobs");
        request.group = Some("g".to_owned());
        subscribe(&broker, request).expect("subscribed")
    };
    let mut first = join();
    let mut second = join();
    for _ in 0..2 {
        publish(&broker, "jobs", 0).await.expect("published");
    }
    first.handle().end(engine::Error::new(ErrorKind::ShuttingDown, "over"));
    for _ in 0..10 {
        assert_eq!(publish(&broker, "jobs", 0).await.expect("published").receivers, 1);
    }
    let mut out = Vec::new();
    let mut got = Vec::new();
    while got.len() < 11 {
        within("a delivery", second.next(&mut out)).await.expect("it goes on");
        got.extend(out.iter().map(|delivery| match delivery {
            Delivery::Batch { batch, .. } => batch.base_offset(),
            Delivery::Gap { .. } => panic!("a share has no gaps"),
        }));
    }
    assert_eq!(got, (1..12).collect::<Vec<_>>(), "the first record was the other's");
    within("a delivery", first.next(&mut out)).await.expect("what it had");
    assert!(within("the end", first.next(&mut out)).await.is_err());
    second.handle().end(engine::Error::new(ErrorKind::ShuttingDown, "over"));
    assert_eq!(publish(&broker, "jobs", 0).await.expect("published").receivers, 0, "no subscriber exists");
}
