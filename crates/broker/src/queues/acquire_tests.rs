//! Tests of messages that are delivered in their batches.

use engine::groups::GroupName;
use engine::queue::{LeaseError, QueueName};
use engine::{Acks, BatchBuilder, ErrorKind, RecordBatch, Storage, TopicName, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::{Isolation, Settings, ShareStart, Wakes};

fn start(dir: Option<&TempDir>) -> Arc<Broker> {
    let opened = dir.map(|dir| {
        let settings = StoreSettings::default();
        Store::open(Arc::new(RealDisk), dir.path(), settings, crate::Clock::SYSTEM.read(), &mut |_| {}).expect("opens")
    });
    Broker::start_with(Settings::default(), &[Handle::current()], opened).expect("starts")
}

fn group() -> GroupName {
    GroupName::parse("g").expect("a name")
}

/// Publishes batches with the given numbers of records, and creates the queue of the group over them.
async fn prepared(broker: &Arc<Broker>, storage: Storage, batches: &[u32]) -> AcquireFrom {
    broker.create_topic("t", TopicSettings { storage, ..TopicSettings::of_broker() }).await.expect("created");
    for records in batches {
        let mut batch = BatchBuilder::new();
        (0..*records).for_each(|n| batch.push(1, None, Some(&[n as u8; 100]), &[]).expect("a record"));
        let batch = batch.finish().expect("records");
        broker.publish("t", Some(0), Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
    }
    let topic = TopicName::parse("t").expect("a name");
    let queue = broker.groups.share_queue(&group(), &topic, ShareStart::Earliest).await.expect("made");
    AcquireFrom { queue, partition: 0 }
}

const LIMITS: AcquireLimits = AcquireLimits {
    records_max: 100,
    bytes_max: 1 << 20,
    wait: std::time::Duration::ZERO,
    lease_ms: 600_000,
    attempts_max: 5,
    in_flight_max: 2000,
    isolation: Isolation::Uncommitted,
};

async fn acquire(broker: &Arc<Broker>, from: &AcquireFrom, limits: &AcquireLimits) -> Acquired {
    broker.queues.acquire(std::slice::from_ref(from), limits).await.remove(0).expect("acquired")
}

/// Returns offsets with their attempts, and the base offsets of the batches that contain them.
fn shown(acquired: &Acquired) -> (Vec<(u64, u32)>, Vec<u64>) {
    let leases = acquired.leases().iter().map(|lease| (lease.offset, lease.attempts)).collect();
    (leases, acquired.batches.iter().map(|batch| batch.base_offset()).collect())
}

fn settle(acquired: &[engine::queue::Lease], how: Settlement) -> Vec<(u64, u64, Settlement)> {
    acquired.iter().map(|lease| (lease.offset, lease.lease, how)).collect()
}

#[tokio::test]
async fn acquired_messages_are_limited_and_return_unless_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    for storage in [Storage::Memory, Storage::Disk] {
        let broker = start((storage == Storage::Disk).then_some(&dir));
        let from = prepared(&broker, storage, &[3, 3, 3]).await;
        let some = AcquireLimits { records_max: 4, ..LIMITS };
        for _ in 0..2 {
            // The first is not kept: it returns to the queue as if it had not been delivered.
            let first = acquire(&broker, &from, &some).await;
            assert_eq!(shown(&first), (vec![(0, 1), (1, 1), (2, 1), (3, 1)], vec![0, 3]));
        }
        let first = acquire(&broker, &from, &some).await.keep();
        // One batch is always delivered, and no other if there is no room for it.
        let small = AcquireLimits { bytes_max: 1, ..LIMITS };
        let second = acquire(&broker, &from, &small).await.keep();
        assert_eq!(second.iter().map(|lease| lease.offset).collect::<Vec<_>>(), [4, 5]);
        let full = AcquireLimits { in_flight_max: 7, ..LIMITS };
        let third = acquire(&broker, &from, &full).await;
        assert_eq!(shown(&third), (vec![(6, 1)], vec![6]));
        drop(third);
        broker.queues.settle(&from, &settle(&first, Settlement::Back), 5).await.expect("asked").expect("held");
        broker
            .queues
            .settle(&from, &settle(&first, Settlement::Done), 5)
            .await
            .expect("asked")
            .expect_err("not theirs");
        broker
            .queues
            .release_acquired(&from, &[(4, second[0].lease), (5, second[1].lease + 1)])
            .await
            .expect("released");
        let again = acquire(&broker, &from, &LIMITS).await;
        let offsets = vec![(0, 2), (1, 2), (2, 2), (3, 2), (4, 1), (6, 1), (7, 1), (8, 1)];
        assert_eq!(shown(&again), (offsets, vec![0, 3, 6]), "all but the one whose lease runs");
        let positions = broker.queues.positions(&from.queue).await.expect("known");
        assert_eq!(positions, [QueuePosition { partition: 0, start: 0, undone: 9 }]);
    }
}

/// `ShareFetch` reads through the same `ReplicaManager.readFromLog` of Apache Kafka as `Fetch`: only the first batch of
/// the whole answer may exceed the limit.
#[tokio::test]
async fn only_the_first_batch_of_all_partitions_may_exceed_the_limit() {
    let dir = tempfile::tempdir().expect("a folder");
    for storage in [Storage::Memory, Storage::Disk] {
        let broker = start((storage == Storage::Disk).then_some(&dir));
        let settings = TopicSettings { storage, partitions: 3, ..TopicSettings::of_broker() };
        broker.create_topic("t", settings).await.expect("created");
        let mut size = 0;
        for partition in 0..3 {
            for _ in 0..4 {
                let mut batch = BatchBuilder::new();
                batch.push(1, None, Some(&[7; 1000]), &[]).expect("a record");
                let batch = batch.finish().expect("records");
                size = batch.len();
                broker
                    .publish("t", Some(partition), Acks::Committed, batch, &mut Wakes::default())
                    .await
                    .expect("taken");
            }
        }
        let topic = TopicName::parse("t").expect("a name");
        let queue = broker.groups.share_queue(&group(), &topic, ShareStart::Earliest).await.expect("made");
        let from: Vec<_> = (0..3).map(|partition| AcquireFrom { queue: queue.clone(), partition }).collect();
        for (bytes_max, expected) in [
            (1, [1, 0, 0]),
            (size - 1, [1, 0, 0]),
            (3 * size, [3, 0, 0]),
            (4 * size + 1, [4, 0, 0]),
            (6 * size, [4, 2, 0]),
            (9 * size + size / 2, [4, 4, 1]),
            (1 << 20, [4, 4, 4]),
        ] {
            // Messages that are not kept return to the queue: each round finds all of them.
            let found = broker.queues.acquire(&from, &AcquireLimits { bytes_max, ..LIMITS }).await;
            let found: Vec<_> = found.into_iter().map(|found| found.expect("acquired")).collect();
            assert_eq!(found.iter().map(|found| found.leases().len()).collect::<Vec<_>>(), expected, "{bytes_max}");
            let bytes: usize = found.iter().flat_map(|found| &found.batches).map(RecordBatch::len).sum();
            assert!(bytes <= bytes_max.max(size), "{bytes} of {bytes_max}");
            assert!(found.iter().flat_map(Acquired::leases).all(|lease| lease.attempts == 1));
        }
    }
}

#[tokio::test]
async fn a_message_that_was_given_out_too_often_is_dropped() {
    let broker = start(None);
    let from = prepared(&broker, Storage::Memory, &[1, 1]).await;
    let limits = AcquireLimits { records_max: 1, attempts_max: 2, ..LIMITS };
    for attempt in 1..=2 {
        let given = acquire(&broker, &from, &limits).await.keep();
        assert_eq!((given[0].offset, given[0].attempts), (0, attempt));
        broker.queues.settle(&from, &settle(&given, Settlement::Back), 2).await.expect("asked").expect("held");
    }
    let next = acquire(&broker, &from, &limits).await;
    assert_eq!(shown(&next).0, [(1, 1)]);
    // An expired lease counts as an attempt, too. It expires without a notification: the next access to the queue
    // detects it.
    drop(next);
    let short = AcquireLimits { lease_ms: 1, attempts_max: 1, wait: std::time::Duration::from_secs(20), ..limits };
    assert_eq!(acquire(&broker, &from, &short).await.keep().len(), 1);
    let position = async || broker.queues.positions(&from.queue).await.expect("known")[0].start;
    while position().await < 2 {
        drop(acquire(&broker, &from, &AcquireLimits { wait: std::time::Duration::ZERO, ..short }).await);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn queues_of_share_groups_are_nobody_elses() {
    let broker = start(None);
    let from = prepared(&broker, Storage::Memory, &[1]).await;
    let name = from.queue.as_str();
    assert_eq!(broker.queues.list("", "", 10, |_| true).await.expect("listed").0, []);
    assert_eq!(broker.queues.over("t").await.expect("listed"), []);
    let missing = Some(ErrorKind::NotFound);
    assert_eq!(broker.queues.get(name).await.map_err(|error| error.kind).err(), missing);
    assert_eq!(broker.queues.receive(name, &Receive::default()).await.map_err(|error| error.kind).err(), missing);
    assert_eq!(broker.queues.delete(name).await.map_err(|error| error.kind).err(), missing);
    assert_eq!(broker.queues.alter(name, |_| Ok(())).await.map_err(|error| error.kind).err(), missing);
    assert_eq!(broker.queues.seek(name, SeekTo::End).await.map_err(|error| error.kind).err(), missing);
    QueueName::parse(name).expect_err("no name of a user's");
    // The queue does not outlive its topic.
    broker.delete_topic("t").await.expect("deleted");
    assert!(!broker.queues.has(&from.queue).await.expect("asked"));
    assert_eq!(broker.groups.share_topics(&group()).await.expect("known").len(), 0);
}

#[tokio::test]
async fn members_that_join_concurrently_share_one_queue() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = start(Some(&dir));
    let on_disk = TopicSettings { storage: Storage::Disk, ..TopicSettings::of_broker() };
    broker.create_topic("t", on_disk).await.expect("created");
    // Only the queue still has to be created, and the first call that creates one waits for the disk.
    broker.documents.put("share.group", "g", Some(bytes::Bytes::new())).await.expect("kept");
    let group = group();
    let topic = TopicName::parse("t").expect("a name");
    let mut first = Box::pin(broker.groups.share_queue(&group, &topic, ShareStart::Earliest));
    let mut second = Box::pin(broker.groups.share_queue(&group, &topic, ShareStart::Earliest));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    first.await.expect("made");
    let made = broker.queues.of_share_groups().await.expect("known")[0].1.id;
    second.await.expect("there");
    assert_eq!(broker.queues.of_share_groups().await.expect("known")[0].1.id, made);
}

#[tokio::test]
async fn records_removed_from_the_log_are_settled_regardless_of_the_settlement() {
    let dir = tempfile::tempdir().expect("a folder");
    for storage in [Storage::Memory, Storage::Disk] {
        let broker = start((storage == Storage::Disk).then_some(&dir));
        let from = prepared(&broker, storage, &[1, 1, 1, 1]).await;
        let given = acquire(&broker, &from, &AcquireLimits { records_max: 3, ..LIMITS }).await.keep();
        broker.delete_records("t", 0, 2).await.expect("deleted");
        // Another receiver accesses the queue in the meantime, and finds that the records were deleted.
        drop(acquire(&broker, &from, &LIMITS).await);
        broker.queues.settle(&from, &settle(&given, Settlement::Done), 5).await.expect("asked").expect("held");
        let positions = broker.queues.positions(&from.queue).await.expect("known");
        assert_eq!(positions, [QueuePosition { partition: 0, start: 3, undone: 1 }]);
    }
}

#[tokio::test]
async fn messages_are_settled_all_or_none_also_where_one_would_be_held_too_long() {
    let broker = start(None);
    let from = prepared(&broker, Storage::Memory, &[1, 1]).await;
    let given = acquire(&broker, &from, &LIMITS).await.keep();
    let mut settlements = settle(&given, Settlement::Done);
    settlements[1].2 = Settlement::Held(engine::queue::LEASE_TOTAL_MS_MAX + 600_000);
    let settled = broker.queues.settle(&from, &settlements, 5).await.expect("asked");
    assert_eq!(settled, Err(LeaseError::TooLong));
    settlements[1].2 = Settlement::Held(600_000);
    broker.queues.settle(&from, &settlements, 5).await.expect("asked").expect("both are still held");
    let positions = broker.queues.positions(&from.queue).await.expect("known");
    assert_eq!(positions, [QueuePosition { partition: 0, start: 1, undone: 1 }]);
}
