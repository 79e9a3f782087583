//! Tests of streams inside the broker: added at one door, published at others, and found again.

use std::time::Duration;

use engine::streams::{Entry, EntryId, Extent};
use engine::transactions::TransactionalId;
use engine::{Acks, BatchBuilder, Codec, Decision, ErrorKind, Producer, TopicName, TopicPartition, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::{Settings, Wakes};

fn in_memory() -> Arc<Broker> {
    Broker::start(Settings::default(), &[Handle::current()]).expect("starts")
}

fn on_disk(dir: &TempDir) -> Arc<Broker> {
    let settings = StoreSettings::default();
    let opened =
        Store::open(Arc::new(RealDisk), dir.path(), settings, crate::Clock::SYSTEM.read(), &mut |_| {}).expect("opens");
    Broker::start_with(Settings::default(), &[Handle::current()], Some(opened)).expect("starts")
}

/// Creates a stream, which is a key of the cache `db0`.
fn made(broker: &Arc<Broker>, name: &str) -> Stream {
    let cache = broker.caches.open("db0").expect("a cache");
    let mut locked = cache.lock_one(name.as_bytes());
    let made = locked.add_stream(name.as_bytes(), name).expect("made");
    drop(made);
    drop(locked);
    broker.streams.get(name).expect("known").expect("there")
}

/// Deletes the key of a stream. Returns `true` if it existed.
async fn delete(broker: &Arc<Broker>, name: &str) -> bool {
    let cache = broker.caches.open("db0").expect("a cache");
    let mut locked = cache.lock_one(name.as_bytes());
    let existed = locked.delete(name.as_bytes());
    let commit = locked.finish().commit;
    commit.wait().await.expect("deleted");
    existed
}

fn is_listed(broker: &Arc<Broker>, name: &str) -> bool {
    let cache = broker.caches.open("db0").expect("a cache");
    cache.lock_one(name.as_bytes()).stream_id(name.as_bytes()).is_some()
}

async fn restored(dir: &TempDir) -> Arc<Broker> {
    let broker = on_disk(dir);
    broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
    broker
}

fn id(ms: u64, seq: u64) -> EntryId {
    EntryId::new(ms, seq)
}

/// Publishes a value with a time, like a client without knowledge of streams.
async fn publish(broker: &Broker, topic: &str, timestamp_ms: i64, value: &str) {
    let mut builder = BatchBuilder::new();
    builder.push(timestamp_ms, None, Some(value.as_bytes()), &[]).expect("it fits");
    let batch = builder.finish().expect("a record");
    broker.publish(topic, None, Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
}

async fn add(stream: &Stream, at: NewEntryId, value: &str) -> Result<EntryId> {
    stream.add(at, None, Some(value.as_bytes()), &[]).await
}

async fn all(stream: &Stream) -> Vec<Entry> {
    let locked = stream.lock().await.expect("locked");
    locked.range(EntryId::ZERO, EntryId::MAX, usize::MAX).await.expect("read")
}

fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

fn values(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(entry.record.value()).into_owned()).collect()
}

#[tokio::test]
async fn records_of_other_publishers_are_entries_with_their_own_ids() {
    let broker = in_memory();
    let stream = made(&broker, "s");
    add(&stream, NewEntryId::Is(id(5, 3)), "a").await.expect("added");
    publish(&broker, "s", 7, "b").await;
    publish(&broker, "s", 6, "c").await;
    // An entry after those of others has an id above theirs.
    let late = add(&stream, NewEntryId::Is(id(7, 1)), "d").await.expect_err("it is not above");
    assert_eq!(late.kind, ErrorKind::OutOfRange);
    assert_eq!(add(&stream, NewEntryId::Of(7), "d").await, Ok(id(7, 3)));
    let found = all(&stream).await;
    assert_eq!(values(&found), ["a", "b", "c", "d"]);
    assert_eq!(ids(&found), [id(5, 3), id(7, 1), id(7, 2), id(7, 3)]);
    assert_eq!(found.iter().map(Entry::is_own).collect::<Vec<_>>(), [true, false, false, true]);
}

/// Each entry has the id that was returned to its client, however many others publish concurrently.
#[tokio::test]
async fn ids_match_the_responses_under_concurrent_publishing() {
    for directory in [None, Some(TempDir::new().expect("a folder"))] {
        let broker = directory.as_ref().map_or_else(in_memory, on_disk);
        broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
        let stream = made(&broker, "s");
        let adding = async {
            let mut added = Vec::new();
            for number in 0..200 {
                added.push(add(&stream, NewEntryId::Now, &format!("own {number}")).await.expect("added"));
            }
            added
        };
        let publishing = async {
            for number in 0..200 {
                publish(&broker, "s", 1_000 + number, "other").await;
                tokio::task::yield_now().await;
            }
        };
        let (added, ()) = tokio::join!(adding, publishing);
        let found = all(&stream).await;
        assert_eq!(found.len(), 400);
        assert!(found.is_sorted_by(|one, next| one.id < next.id));
        let own: Vec<EntryId> = found.iter().filter(|entry| entry.is_own()).map(|entry| entry.id).collect();
        assert_eq!(own, added);
        assert_eq!(stream.lock().await.expect("locked").len(), 400);
    }
}

#[tokio::test]
async fn entries_removed_by_retention_are_not_counted_and_the_rest_keeps_its_ids() {
    let broker = in_memory();
    let stream = made(&broker, "s");
    for number in 0..1000 {
        publish(&broker, "s", 10, &number.to_string()).await;
    }
    let before = all(&stream).await;
    for start in [1, 100, 640, 641, 999, 1000] {
        broker.delete_records("s", 0, start).await.expect("removed");
        let locked = stream.lock().await.expect("locked");
        assert_eq!(locked.len(), 1000 - start);
        let left = locked.range(EntryId::ZERO, EntryId::MAX, usize::MAX).await.expect("read");
        assert_eq!(left, before[start as usize..]);
        let back = locked.range_back(EntryId::ZERO, EntryId::MAX, 5).await.expect("read");
        assert!(back.iter().eq(left.iter().rev().take(5)));
    }
    assert_eq!(add(&stream, NewEntryId::Of(10), "more").await, Ok(before[999].id.next().expect("one")));
}

/// Deletions, deliveries, acknowledgements and settings survive a restart, and that their view is forgotten; a deleted
/// topic leaves no records.
#[tokio::test]
async fn all_that_is_known_of_a_stream_is_known_after_a_restart() {
    for is_restarted in [true, false] {
        let dir = TempDir::new().expect("a folder");
        let broker = restored(&dir).await;
        let before = use_a_stream(&broker).await;
        let broker = if is_restarted {
            broker.stop().expect("stops");
            drop(broker);
            restored(&dir).await
        } else {
            broker.forget_views().await.expect("restored");
            broker
        };
        check_the_stream(&broker, before).await;
    }
}

/// Uses the stream `s` in every way, and returns its entries and its extent.
async fn use_a_stream(broker: &Arc<Broker>) -> (Vec<Entry>, Extent) {
    let stream = made(broker, "s");
    for seq in 1..=9 {
        add(&stream, NewEntryId::Is(id(1, seq)), "v").await.expect("added");
    }
    made(broker, "gone");
    let other = broker.streams.get("gone").expect("known").expect("there");
    let made = other.lock().await.expect("locked").create_group(b"g", EntryId::ZERO, None).expect("made");
    made.expect("it is new").wait().await.expect("saved");
    assert!(delete(broker, "gone").await);
    let mut locked = stream.lock().await.expect("locked");
    let made = locked.create_group(b"g", EntryId::ZERO, Some(0)).expect("made").expect("it is new");
    made.wait().await.expect("saved");
    assert_eq!(locked.take(b"g", b"c", 4, true).await.expect("taken").len(), 4);
    let ack = |group: &mut Group| Ok(group.ack(id(1, 2)));
    let (is_acked, saved) = locked.change_group(b"g", ack).expect("changed").expect("there");
    assert!(is_acked);
    saved.wait().await.expect("saved");
    let (count, saved) = locked.delete(&[id(1, 1), id(1, 4), id(1, 9), id(7, 7)]).await.expect("deleted");
    saved.wait().await.expect("saved");
    assert_eq!(count, 3);
    locked.set_last(id(2, 0), None, None).expect("set").wait().await.expect("saved");
    drop(locked);
    add(&stream, NewEntryId::Is(id(2, 1)), "v").await.expect("added");
    publish(broker, "s", 1, "other").await;
    let entries = all(&stream).await;
    let locked = stream.lock().await.expect("locked");
    let extent = locked.extent().await.expect("known");
    drop(locked);
    (entries, extent)
}

async fn check_the_stream(broker: &Arc<Broker>, before: (Vec<Entry>, Extent)) {
    assert_eq!((is_listed(broker, "s"), is_listed(broker, "gone")), (true, false));
    let stream = broker.streams.get("s").expect("known").expect("there");
    assert_eq!(all(&stream).await, before.0);
    let locked = stream.lock().await.expect("locked");
    assert_eq!(locked.extent().await, Ok(before.1));
    let group = locked.group(b"g").expect("there");
    let pending: Vec<_> = group.all_pending(EntryId::ZERO, EntryId::MAX).map(|(id, _)| id).collect();
    assert_eq!(pending, [id(1, 1), id(1, 3), id(1, 4)]);
    assert_eq!((group.last(), group.read()), (id(1, 4), Some(4)));
    assert!(group.all_pending(EntryId::ZERO, EntryId::MAX).all(|(_, it)| &*it.consumer == b"c" && it.deliveries == 1));
}

/// Clients add entries and read them in a group while the streams are forgotten again and again.
#[tokio::test(flavor = "multi_thread")]
async fn streams_are_forgotten_while_others_use_them_and_nothing_is_lost() {
    let dir = TempDir::new().expect("a folder");
    let broker = restored(&dir).await;
    let stream = made(&broker, "s");
    let group = stream.lock().await.expect("locked").create_group(b"g", EntryId::ZERO, None).expect("made");
    group.expect("it is new").wait().await.expect("saved");
    let is_over = Arc::new(AtomicBool::new(false));
    let work = async |what: &str| {
        let mut done = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let Ok(Some(stream)) = broker.streams.get("s") else {
                tokio::task::yield_now().await;
                continue;
            };
            if what == "add" {
                done.extend(add(&stream, NewEntryId::Now, "v").await);
            } else if let Ok(mut locked) = stream.lock().await
                && let Ok(taken) = locked.take(b"g", b"c", 3, true).await
            {
                done.extend(taken.iter().map(|entry| entry.id));
            }
            tokio::task::yield_now().await;
        }
        done
    };
    let forgetting = async {
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(3)).await;
            broker.forget_views().await.expect("restored");
            assert!(is_listed(&broker, "s"));
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (added, taken, ()) = tokio::join!(work("add"), work("take"), forgetting);
    let stream = broker.streams.get("s").expect("known").expect("there");
    let found = ids(&all(&stream).await);
    assert!(!added.is_empty() && added.iter().all(|id| found.contains(id)), "an entry that was added is there");
    assert!(found.is_sorted());
    let locked = stream.lock().await.expect("locked");
    let group = locked.group(b"g").expect("there");
    let pending: Vec<_> = group.all_pending(EntryId::ZERO, EntryId::MAX).map(|(id, _)| id).collect();
    assert!(!taken.is_empty() && taken.iter().all(|id| pending.contains(id)), "what was taken is pending");
}

/// The topic of streams and the topic of the copy are notified of one write to the disk at different times.
#[tokio::test]
async fn a_copy_can_be_read_as_soon_as_it_is_durable() {
    let dir = TempDir::new().expect("a folder");
    let broker = restored(&dir).await;
    let stream = made(&broker, "s");
    for seq in 1..=3 {
        add(&stream, NewEntryId::Is(id(1, seq)), "v").await.expect("added");
    }
    let source = stream.lock().await.expect("locked");
    for round in 0..50 {
        let copy = made(&broker, &format!("copy{round}"));
        let mut locked = copy.lock().await.expect("locked");
        let saved = locked.copy_from(&source).await.expect("copied");
        drop(locked);
        saved.wait().await.expect("durable");
        assert_eq!(ids(&all(&copy).await), [id(1, 1), id(1, 2), id(1, 3)], "in round {round}");
    }
}

/// The client that added the entry is not told that the key was deleted immediately afterwards, as in Redis.
#[tokio::test]
async fn an_entry_whose_stream_is_deleted_before_it_is_durable_was_added() {
    let dir = TempDir::new().expect("a folder");
    let broker = restored(&dir).await;
    for _ in 0..10 {
        let stream = made(&broker, "s");
        let mut locked = stream.lock().await.expect("locked");
        let (_, added) = locked.add(NewEntryId::Now, None, Some(b"v"), &[], true).await.expect("added");
        drop(locked);
        assert!(delete(&broker, "s").await);
        added.wait().await.expect("it was added, and deleted");
        assert!(!broker.has_topic("s"));
    }
}

/// Ids that are neighbours, far apart, deleted, removed, or of no entry.
#[tokio::test]
async fn entries_that_are_read_together_are_those_that_are_read_one_by_one() {
    let broker = in_memory();
    let stream = made(&broker, "s");
    for number in 1..=1500 {
        add(&stream, NewEntryId::Is(id(2 * number, number % 3)), &number.to_string()).await.expect("added");
    }
    publish(&broker, "s", 1, "of another publisher").await;
    broker.delete_records("s", 0, 20).await.expect("removed");
    let mut locked = stream.lock().await.expect("locked");
    let deleted: Vec<EntryId> = (100..300).rev().step_by(3).map(|number| id(2 * number, number % 3)).collect();
    // Those without an entry are not counted, nor is one that is named twice.
    let named = [&deleted[..], &[id(3, 0), deleted[0], id(9999, 0)]].concat();
    assert_eq!(locked.delete(&named).await.expect("deleted").0, deleted.len() as u64);
    let some_numbers = [30, 31, 32, 900, 1490, 1491];
    let with_entry = |number: u64| id(2 * number, number % 3);
    let all: Vec<EntryId> = (0..=3010).map(|ms| id(ms, ms / 2 % 3)).collect();
    for ids in [
        all.clone(),
        all.iter().copied().step_by(7).collect(),
        all.iter().copied().step_by(997).collect(),
        some_numbers.map(with_entry).to_vec(),
        vec![id(1, 0), id(3, 9), id(2999, 1), EntryId::MAX],
        vec![id(5000, 0)],
        Vec::new(),
    ] {
        let mut expected = Vec::new();
        for id in &ids {
            expected.push(locked.range(*id, *id, 1).await.expect("read").pop());
        }
        assert_eq!(locked.entries(&ids).await.expect("read"), expected);
    }
    let found = locked.entries(&all).await.expect("read").into_iter().flatten().count();
    assert_eq!(found, 1500 - 20 - deleted.len());
}

/// Deletions are not recorded forever: they are forgotten when the records themselves are removed.
#[tokio::test]
async fn deleted_entries_are_forgotten_once_retention_removed_them() {
    let dir = TempDir::new().expect("a folder");
    let broker = restored(&dir).await;
    let stream = made(&broker, "s");
    for seq in 1..=9 {
        add(&stream, NewEntryId::Is(id(1, seq)), "v").await.expect("added");
    }
    let mut locked = stream.lock().await.expect("locked");
    let (_, saved) = locked.delete(&[id(1, 3), id(1, 5), id(1, 8)]).await.expect("deleted");
    drop(locked);
    saved.wait().await.expect("saved");
    broker.delete_records("s", 0, 6).await.expect("removed");
    let left = all(&stream).await;
    assert_eq!(ids(&left), [id(1, 7), id(1, 9)]);
    // A later record of the same stream is durable after the earlier one.
    let made = stream.lock().await.expect("locked").create_group(b"g", EntryId::ZERO, None).expect("made");
    made.expect("it is new").wait().await.expect("saved");
    let mut known = BTreeSet::new();
    let each = |record, _| {
        if let engine::streams::StreamRecord::Deleted { offset, is_deleted, .. } = record {
            if is_deleted {
                known.insert(offset)
            } else {
                known.remove(&offset)
            };
        }
        Ok(())
    };
    super::log::STREAMS.fold(&broker, each).await.expect("read");
    assert_eq!(known, BTreeSet::from([7]));
}

#[tokio::test]
async fn topics_of_other_kinds_are_no_streams() {
    let broker = in_memory();
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    broker.create_topic("two", settings).await.expect("made");
    let settings = TopicSettings { drop_consumed: true, ..TopicSettings::default() };
    broker.create_topic("consumed", settings).await.expect("made");
    for (name, why) in [("two", "2 partitions"), ("consumed", "a queue"), ("_queues", "broker itself")] {
        let refused = broker.streams.get(name).map(drop).expect_err("it is none");
        assert!(refused.kind == ErrorKind::Invalid && refused.message.contains(why), "{refused}");
    }
    assert!(!broker.streams.is_other("two") && !delete(&broker, "two").await);
    // A stream created by another door can only be deleted there.
    publish(&broker, "theirs", 1, "v").await;
    assert!(!delete(&broker, "theirs").await);
    assert!(broker.has_topic("theirs") && broker.streams.is_other("theirs"));
}

/// An entry cannot be above the records that an open transaction may still commit; aborted records are not entries.
#[tokio::test]
async fn nothing_is_added_behind_an_open_transaction() {
    let settings = Settings { publish_wait: Duration::from_millis(1), ..Settings::default() };
    let broker = Broker::start(settings, &[Handle::current()]).expect("starts");
    let stream = made(&broker, "s");
    let id = TransactionalId::parse("t").expect("an id");
    for (round, decision) in [Decision::Abort, Decision::Commit].into_iter().enumerate() {
        let owner = broker.transactions.init(&id, None, 60_000).await.expect("begun");
        let at = TopicPartition { topic: TopicName::parse("s").expect("a name"), partition: 0 };
        broker.transactions.add_partitions(&id, owner, &[at]).await.expect("added");
        let mut builder = BatchBuilder::new();
        builder.push(5, None, Some(b"of it"), &[]).expect("it fits");
        let producer = Producer { id: owner.id, epoch: owner.epoch, sequence: 0 };
        let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
        batch.set_transactional();
        broker.publish("s", Some(0), Acks::Accepted, batch, &mut Wakes::default()).await.expect("published");
        let refused = add(&stream, NewEntryId::Now, "v").await.expect_err("it has to wait");
        assert!(refused.kind == ErrorKind::Busy && refused.message.contains("transactions open"), "{refused}");
        broker.transactions.end(&id, owner, decision).await.expect("ended");
        add(&stream, NewEntryId::Is(EntryId::new(10 + round as u64, 1)), "own").await.expect("added");
    }
    assert_eq!(values(&all(&stream).await), ["own", "of it", "own"]);
}

#[tokio::test]
async fn waiters_are_woken_by_new_entries_and_by_deletions() {
    let broker = in_memory();
    let names = ["s".to_owned()];
    let count = async |wanted: Option<u64>| {
        let attempt = async || {
            let stream = broker.streams.get("s")?;
            let len = match &stream {
                Some(stream) => Some(stream.lock().await?.len()),
                None => None,
            };
            Ok((len == wanted).then_some(()))
        };
        let waited = broker.streams.wait_for(&names, std::future::pending(), attempt);
        tokio::time::timeout(Duration::from_secs(60), waited).await.expect("woken").expect("answered")
    };
    let work = async {
        tokio::task::yield_now().await;
        let stream = made(&broker, "s");
        tokio::task::yield_now().await;
        add(&stream, NewEntryId::Now, "v").await.expect("added");
        tokio::task::yield_now().await;
        publish(&broker, "s", 1, "v").await;
    };
    let (two, one, ()) = tokio::join!(count(Some(2)), count(Some(2)), work);
    assert_eq!((two, one), (Some(()), Some(())));
    let (none, deleted) = tokio::join!(count(None), delete(&broker, "s"));
    assert_eq!((none, deleted), (Some(()), true));
    let stopped = broker.streams.wait_for(&names, std::future::ready(()), async || Ok(None::<()>)).await;
    assert_eq!(stopped, Ok(None));
}

#[tokio::test]
async fn entries_from_before_the_stop_are_found() {
    let broker = in_memory();
    let mut attempts = 0;
    let names = ["s".to_owned()];
    let found = broker.streams.wait_for(&names, std::future::ready(()), async || {
        attempts += 1;
        Ok((attempts == 2).then_some("entries"))
    });
    assert_eq!(found.await, Ok(Some("entries")));
}
