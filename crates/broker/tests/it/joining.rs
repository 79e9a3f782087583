//! The seam between history and what is live.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{Broker, Settings};
use engine::{Start, TopicSettings};

use crate::support::{Follow, ask, publish, read_to, start, within};

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

/// Subscribers that join at any moment, from any place, with queues of one batch or many, get every record
/// exactly once and in order, while several threads publish.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_repeated_at_the_seam() {
    let broker = start(Settings::default());
    let settings = TopicSettings { partitions: PARTITIONS, retention_bytes: 0, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let (each, publishers) = (3_000u64, 2u64);
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
        // They join all along the way.
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
        let mut subscription = broker.subscribe(request).expect("subscribed");
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

/// The same where retention removes history under the readers: what they miss they are told, offset by
/// offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_retention_takes_from_a_reader_is_told() {
    let broker = start(Settings::default());
    let settings = TopicSettings { retention_bytes: 20_000, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let end = 20_000;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut request = ask("t");
        request.queue_batches = Some(2);
        let mut subscription = broker.subscribe(request).expect("subscribed");
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
