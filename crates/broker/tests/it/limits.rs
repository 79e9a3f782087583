//! Limits of the broker, and its behavior when they are reached.

use std::sync::Arc;
use std::time::Duration;

use broker::{Attempt, Settings, Wakes};
use engine::limits::{PARTITIONS_MAX, PARTITIONS_TOTAL_MAX};
use engine::{Acks, BatchBuilder, Codec, DraftBatch, ErrorKind, FeedLimits, Overflow, Storage, TopicSettings};
use futures_util::FutureExt;

use crate::durable::open;
use crate::support::{Follow, ask, batch, metric, publish, read_to, start, subscribe, within};

/// However many topics fill up concurrently, all logs together never exceed their limit, and deleting topics releases
/// every byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_logs_stay_within_their_budget() {
    let max = 1 << 20;
    let broker = start(Settings { log_bytes_max: max, ..Settings::default() });
    let settings = TopicSettings { partitions: 2, retention_bytes: 0, ..TopicSettings::default() };
    let tasks: Vec<_> = (0..8u32)
        .map(|i| {
            let broker = broker.clone();
            tokio::spawn(async move {
                let topic = format!("topic-{i}");
                let mut taken = 0;
                let mut refused = 0;
                for round in 0..400u32 {
                    broker.create_topic(&topic, settings).await.expect("created");
                    let draft = batch(3, 1 + (round as usize * 37) % 5_000);
                    match broker.publish(&topic, Some(round % 2), Acks::Default, draft, &mut Wakes::default()).await {
                        Ok(_) => taken += 1,
                        Err(error) if error.kind == ErrorKind::Busy => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                    assert!(metric(&broker, "thalweg_log_bytes") <= max as u64);
                    if round % 100 == 99 {
                        broker.delete_topic(&topic).await.expect("deleted");
                    }
                }
                (taken, refused)
            })
        })
        .collect();
    for task in tasks {
        let (taken, _) = within("a publisher", task).await.expect("no panic");
        assert!(taken > 100, "{taken}");
    }
    assert_eq!(metric(&broker, "thalweg_topics"), 0);
    assert_eq!(metric(&broker, "thalweg_log_bytes"), 0, "all is given back");
}

/// A batch that is refused for its sequence, or is a duplicate, takes no memory.
#[tokio::test]
async fn refused_numbers_take_nothing_of_the_budget() {
    let broker = start(Settings { log_bytes_max: 100_000, ..Settings::default() });
    let send = async |sequence: i32| {
        let mut draft = batch(1, 10_000);
        draft.set_producer(engine::Producer { id: 0, epoch: 0, sequence });
        broker.publish("t", Some(0), Acks::Default, draft, &mut Wakes::default()).await.map_err(|error| error.kind)
    };
    send(0).await.expect("the first");
    let held = metric(&broker, "thalweg_log_bytes");
    for _ in 0..50 {
        assert_eq!(send(7).await.map(drop), Err(ErrorKind::OutOfSequence));
        send(0).await.expect("a duplicate");
    }
    assert_eq!(metric(&broker, "thalweg_log_bytes"), held);
    send(1).await.expect("the second");
}

/// A batch larger than the limit is refused and takes no memory from others.
#[tokio::test]
async fn a_batch_beyond_the_budget_is_refused() {
    let broker = start(Settings { log_bytes_max: 10_000, ..Settings::default() });
    publish(&broker, "small", 0).await.expect("published");
    let refused = broker.publish("large", None, Acks::Default, batch(1, 20_000), &mut Wakes::default()).await;
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Busy));
    let refused = broker.publish("small", None, Acks::Default, batch(1, 20_000), &mut Wakes::default()).await;
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Busy));
    assert_eq!(broker.describe_topic("small").expect("a topic").partitions[0].start, 0, "its history stays");
}

/// A full lane makes publishers of blocking subscribers wait and lets them continue when it empties, even if the
/// subscriber itself had room all along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_makes_publishers_wait() {
    let broker = start(Settings {
        writer_lanes: 1,
        lane_queue_depth: 10,
        publish_wait: Duration::from_secs(600),
        subscriber_queue: FeedLimits { batches_max: 100, bytes_max: 1 << 20 },
        ..Settings::default()
    });
    let mut stuck = subscribe(&broker, ask("busy")).expect("subscribed");
    let mut request = ask("t");
    request.overflow = Overflow::Block;
    let mut idle = subscribe(&broker, request).expect("subscribed");
    for _ in 0..10 {
        publish(&broker, "busy", 0).await.expect("published");
    }
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { publish(&broker, "t", 0).await }
    });
    while metric(&broker, "thalweg_publish_waits_total") == 0 {
        tokio::task::yield_now().await;
    }
    let mut follow = Follow::of(&stuck);
    read_to(&mut stuck, &mut follow, 1, 10).await;
    within("the publisher", waiting).await.expect("no panic").expect("published");
    let mut follow = Follow::of(&idle);
    read_to(&mut idle, &mut follow, 1, 1).await;
}

/// Returns a batch of one record that compresses to almost nothing.
fn bomb(key: Option<&[u8]>, bytes: usize) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    builder.push(1, key, Some(&vec![7; bytes]), &[]).expect("a record");
    builder.finish_with(Codec::Zstd, None).expect("a record")
}

/// The publishing thread checks no compressed batch: others publish in the meantime, and waiting batches are counted
/// and checked in order.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_batches_are_looked_into_elsewhere_one_at_a_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    let compact = TopicSettings { compact: true, storage: Storage::Disk, ..TopicSettings::of_broker() };
    broker.create_topic("compact", compact).await.expect("created");
    let gzip = TopicSettings { compression: Some(Codec::Gzip), ..TopicSettings::of_broker() };
    broker.create_topic("recompressed", gzip).await.expect("created");
    let begin = |topic: &str, batch| {
        let attempt = broker.try_publish(topic, Some(0), Acks::Default, batch, &mut Wakes::default());
        match attempt.expect("it may be taken") {
            Attempt::Waits(waiting) => Some(waiting),
            Attempt::Done(_) | Attempt::Commits(_) => None,
        }
    };
    let mut waiting = Vec::new();
    for topic in ["compact", "recompressed", "compact"] {
        let attempt = begin(topic, bomb(Some(b"k"), 4 << 20)).expect("it is looked into elsewhere");
        let broker = broker.clone();
        waiting.push(tokio::spawn(async move { attempt.finish(&broker, &mut Wakes::default()).await }));
    }
    let all_wait = async {
        while metric(&broker, "thalweg_batches_checking") < 3 {
            tokio::task::yield_now().await;
            // The checks may have been faster.
            if waiting.iter().all(|waiting| waiting.is_finished()) {
                break;
            }
        }
    };
    within("their turn", all_wait).await;
    // Batches that need no check pass.
    let mut plain = BatchBuilder::new();
    plain.push(1, Some(b"k"), Some(b"v"), &[]).expect("a record");
    assert!(begin("compact", plain.finish().expect("a record")).is_none());
    let mut offsets = Vec::new();
    for waiting in waiting {
        offsets.push(within("a batch", waiting).await.expect("no panic").expect("published").base_offset);
    }
    assert!(offsets[1] == 0 && offsets[0] < offsets[2] && offsets[2] <= 2, "{offsets:?}");
    assert_eq!(metric(&broker, "thalweg_batches_checking"), 0);
    // Such batches are validated as well.
    let no_key = begin("compact", bomb(None, 1 << 20)).expect("it is looked into elsewhere");
    let refused = within("a batch", no_key.finish(&broker, &mut Wakes::default())).await;
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Invalid));
    assert!(begin("recompressed", batch(1, 100)).is_none(), "few bytes are compressed at once");
    assert!(begin("recompressed", batch(1, 100_000)).is_some());
}

/// A reader that waits learns that its subscription of a pattern has read from as many partitions as one may.
#[tokio::test]
async fn a_waiting_reader_is_told_that_its_subscription_has_read_from_too_many_partitions() {
    let broker = start(Settings::default());
    let mut reader = subscribe(&broker, ask("wide.*")).expect("subscribed");
    let mut out = Vec::new();
    let mut delivery = Box::pin(reader.next(&mut out));
    let settings = TopicSettings { partitions: PARTITIONS_MAX, ..TopicSettings::default() };
    for i in 0..=PARTITIONS_TOTAL_MAX as u32 / PARTITIONS_MAX {
        assert!((&mut delivery).now_or_never().is_none(), "the subscription goes on after {i} topics");
        let name = format!("wide.{i}");
        broker.create_topic(&name, settings).await.expect("created");
        broker.delete_topic(&name).await.expect("deleted");
    }
    let ended = within("the end", delivery).await.map(drop).map_err(|error| error.kind);
    assert_eq!(ended, Err(ErrorKind::Busy));
}
