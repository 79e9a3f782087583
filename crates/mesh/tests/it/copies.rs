//! Mirrored topics: each record is copied once, at its offset, whatever interrupts the copying.

use std::time::Duration;

use broker::{FetchFrom, FetchLimits, Wakes};
use engine::mesh::{CopyStatus, LinkState, MeshMode, MeshTopic};
use engine::record::{Decision, Producer};
use engine::transactions::TransactionalId;
use engine::{
    Acks, BatchBuilder, Codec, ErrorKind, Isolation, Offset, PartitionId, SettingsChange, TopicName, TopicPartition,
    TopicSettings,
};
use tempfile::TempDir;

use crate::support::{TestSite, dials_out, reachable, until};

/// Record of a partition: offset, time, key and value.
type Row = (Offset, i64, String, String);

fn dirs<const N: usize>() -> [TempDir; N] {
    std::array::from_fn(|_| tempfile::tempdir().expect("a folder"))
}

async fn two(dirs: &[TempDir; 2]) -> (TestSite, TestSite) {
    let a = TestSite::on_disk("a", reachable(), dirs[0].path()).await;
    a.mesh_init().await;
    let b = TestSite::on_disk("b", reachable(), dirs[1].path()).await;
    b.enter(&a).await.expect("joined");
    a.until_linked(&b, LinkState::Direct).await;
    (a, b)
}

impl TestSite {
    async fn mesh_init(&self) {
        broker::Mesh::init(&*self.mesh, self.name.clone()).await.expect("begun");
    }

    async fn mirror(&self, topic: &str, mode: MeshMode, partitions: u32) {
        let settings = TopicSettings { mesh: mode, partitions, ..TopicSettings::of_broker() };
        self.broker.create_topic(topic, settings).await.expect("created");
    }

    async fn put(&self, topic: &str, partition: PartitionId, value: &str) {
        let mut builder = BatchBuilder::new();
        let time = 1_000_000 + value.len() as i64;
        builder.push(time, Some(b"key"), Some(value.as_bytes()), &[]).expect("a small record");
        let batch = builder.finish().expect("a record");
        let mut wakes = Wakes::default();
        let published = self.broker.publish(topic, Some(partition), Acks::Committed, batch, &mut wakes).await;
        published.expect("published");
    }

    /// Returns the committed records of a partition, as a consumer reads them; none if there is no such topic.
    async fn rows(&self, topic: &str, partition: PartitionId) -> Vec<Row> {
        let limits =
            FetchLimits { bytes_min: 0, bytes_max: 1 << 20, wait: Duration::ZERO, isolation: Isolation::Committed };
        let mut rows = Vec::new();
        let Ok(extent) = self.broker.describe_partition(topic, partition) else { return rows };
        let mut offset = extent.start;
        loop {
            let from = FetchFrom { topic, partition, offset, bytes_max: 1 << 20 };
            let fetched = self.broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
            let Some(last) = fetched.batches.last() else { return rows };
            offset = last.next_offset();
            assert!(fetched.aborted.is_empty(), "tests that abort read the values of the copy only");
            for batch in fetched.batches.iter().filter(|batch| !batch.is_control()) {
                for record in &batch.records().expect("records") {
                    let record = record.expect("a record");
                    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
                    rows.push((record.offset, record.timestamp_ms, text(record.key), text(record.value)));
                }
            }
        }
    }

    fn end(&self, topic: &str, partition: PartitionId) -> Offset {
        self.broker.describe_partition(topic, partition).map_or(0, |extent| extent.end)
    }

    async fn until_copied(&self, copy: &str, partition: PartitionId, end: Offset) {
        let what = format!("{} has {copy}/{partition} up to {end}", self.name);
        until(&what, || self.end(copy, partition) == end).await;
    }

    fn row_of(&self, topic: &str) -> Option<MeshTopic> {
        let topics = broker::Mesh::topics(&*self.mesh).expect("in a mesh");
        topics.into_iter().find(|of| of.topic.as_str() == topic)
    }

    fn copy(&self, topic: &str) -> Option<CopyStatus> {
        self.row_of(topic)?.copy
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_has_each_record_of_its_origin_at_its_offset_and_clients_only_read_it() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Mirror, 3).await;
    for number in 0..50 {
        a.put("orders", number % 3, &format!("of a {number}")).await;
    }
    b.mirror("orders", MeshMode::Mirror, 1).await;
    b.put("orders", 0, "of b").await;
    for partition in 0..3 {
        b.until_copied("a.orders", partition, a.end("orders", partition)).await;
        assert_eq!(b.rows("a.orders", partition).await, a.rows("orders", partition).await);
    }
    a.until_copied("b.orders", 0, 1).await;
    assert_eq!(a.rows("b.orders", 0).await, b.rows("orders", 0).await);
    for number in 50..60 {
        a.put("orders", number % 3, &format!("of a {number}")).await;
    }
    b.until_copied("a.orders", 0, a.end("orders", 0)).await;
    assert_eq!(b.rows("a.orders", 0).await, a.rows("orders", 0).await);

    // The origin has grown.
    a.broker.grow_topic("orders", 4).await.expect("grown");
    a.put("orders", 3, "in a new partition").await;
    b.until_copied("a.orders", 3, 1).await;
    assert_eq!(b.rows("a.orders", 3).await, a.rows("orders", 3).await);

    let copy = b.row_of("a.orders").expect("shown");
    assert_eq!((copy.mode, copy.received_records), (MeshMode::Copy, 61));
    until("nothing is behind", || b.copy("a.orders").is_some_and(|copy| copy.behind == Some(0))).await;
    let origin = a.row_of("orders").expect("shown");
    assert_eq!((origin.mode, origin.sites, origin.sent_records), (MeshMode::Mirror, vec![b.name.clone()], 61));
    assert!(a.row_of("b.b.orders").is_none() && b.row_of("a.b.orders").is_none(), "copies are not copied");

    // Clients only read a copy, until it is none.
    let mut builder = BatchBuilder::new();
    builder.push(1, None, Some(b"no"), &[]).expect("a small record");
    let batch = builder.finish().expect("a record");
    let refused = b.broker.publish("a.orders", Some(0), Acks::Accepted, batch, &mut Wakes::default()).await;
    assert!(refused.is_err_and(|error| error.kind == ErrorKind::Invalid && error.message.contains("is a copy")));
    let change = |mesh| SettingsChange { mesh: Some(mesh), ..SettingsChange::default() };
    assert!(b.broker.alter_topic("orders", change(MeshMode::Copy)).await.is_err());
    b.broker.alter_topic("a.orders", change(MeshMode::Off)).await.expect("altered");
    b.put("a.orders", 0, "after a failover").await;
    until("the copying has ended", || {
        b.copy("a.orders").and_then(|copy| copy.error).is_some_and(|error| error.contains("is not a copy"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_copies_nothing_and_topics_that_are_offered_later_are_copied_at_once() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    b.mirror("orders", MeshMode::Mirror, 1).await;
    b.put("orders", 0, "of b").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(b.row_of("a.orders"), None, "it was asked for and refused");
    a.mirror("orders", MeshMode::Source, 1).await;
    a.put("orders", 0, "of a").await;
    b.until_copied("a.orders", 0, 1).await;
    a.mirror("more", MeshMode::Mirror, 1).await;
    assert!(!a.broker.has_topic("b.orders"));
    let memory =
        TopicSettings { mesh: MeshMode::Mirror, storage: engine::Storage::Memory, ..TopicSettings::of_broker() };
    assert!(a.broker.create_topic("gone", memory).await.is_err_and(|error| error.message.contains("in memory")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_end_and_sites_that_restart_neither_lose_nor_repeat_a_record() {
    let dirs: [TempDir; 2] = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Source, 2).await;
    b.mirror("orders", MeshMode::Mirror, 1).await;
    for number in 0..600 {
        a.put("orders", number % 2, &format!("{number}")).await;
        if number % 50 == 0 {
            let link = a.mesh.connection_to(&b.name);
            link.inspect(|link| link.close(0_u32.into(), b"a test"));
        }
        match number {
            200 => b.mesh.suspend(),
            400 => b.mesh.resume().await,
            _ => {}
        }
    }
    for partition in 0..2 {
        b.until_copied("a.orders", partition, 300).await;
        assert_eq!(b.rows("a.orders", partition).await, a.rows("orders", partition).await);
    }
    // The site of the copy restarts, and more is published in the meantime.
    b.mesh.stop();
    drop(b);
    a.put("orders", 0, "during the restart").await;
    let b = TestSite::on_disk("b", reachable(), dirs[1].path()).await;
    b.until_copied("a.orders", 0, 301).await;
    assert_eq!(b.rows("a.orders", 0).await, a.rows("orders", 0).await);
    // The site of the origin restarts.
    a.mesh.stop();
    drop(a);
    let a = TestSite::on_disk("a", reachable(), dirs[0].path()).await;
    a.put("orders", 1, "after the restart").await;
    b.until_copied("a.orders", 1, 301).await;
    assert_eq!(b.rows("a.orders", 1).await, a.rows("orders", 1).await);
    assert_eq!(b.copy("a.orders").map(|copy| copy.lost_records), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_retention_deletes_before_it_is_copied_is_counted_and_leaves_its_offsets() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Source, 1).await;
    for number in 0..20 {
        a.put("orders", 0, &number.to_string()).await;
    }
    // Deleted before the first copy: nobody misses it.
    a.broker.delete_records("orders", 0, 5).await.expect("deleted");
    b.mirror("orders", MeshMode::Mirror, 1).await;
    b.until_copied("a.orders", 0, 20).await;
    assert_eq!(b.copy("a.orders").map(|copy| copy.lost_records), Some(0));
    b.mesh.suspend();
    for number in 20..40 {
        a.put("orders", 0, &number.to_string()).await;
    }
    a.broker.delete_records("orders", 0, 33).await.expect("deleted");
    b.mesh.resume().await;
    b.until_copied("a.orders", 0, 40).await;
    let offsets: Vec<Offset> = b.rows("a.orders", 0).await.into_iter().map(|(offset, ..)| offset).collect();
    assert_eq!(offsets, (5..20).chain(33..40).collect::<Vec<Offset>>());
    assert_eq!(b.copy("a.orders").map(|copy| copy.lost_records), Some(13));
    // The copy is as readable after a restart.
    b.mesh.stop();
    drop(b);
    let b = TestSite::on_disk("b", reachable(), dirs[1].path()).await;
    assert_eq!(b.rows("a.orders", 0).await.len(), 22);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_created_again_does_not_continue_the_copy_of_the_former_one() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Source, 1).await;
    a.put("orders", 0, "former").await;
    b.mirror("orders", MeshMode::Mirror, 1).await;
    b.until_copied("a.orders", 0, 1).await;
    a.broker.delete_topic("orders").await.expect("deleted");
    a.mirror("orders", MeshMode::Source, 1).await;
    for number in 0..3 {
        a.put("orders", 0, &number.to_string()).await;
    }
    let error = || b.copy("a.orders").and_then(|copy| copy.error).unwrap_or_default();
    until("b notices", || error().contains("was deleted and created again")).await;
    // Also after a restart.
    b.mesh.stop();
    drop(b);
    let b = TestSite::on_disk("b", reachable(), dirs[1].path()).await;
    let error = || b.copy("a.orders").and_then(|copy| copy.error).unwrap_or_default();
    until("b remembers", || error().contains("delete a.orders")).await;
    assert_eq!(b.rows("a.orders", 0).await.len(), 1);
    // A copy that is deleted begins again, however often.
    for _ in 0..5 {
        b.broker.delete_topic("a.orders").await.expect("deleted");
        b.until_copied("a.orders", 0, 3).await;
        assert_eq!(b.rows("a.orders", 0).await, a.rows("orders", 0).await);
    }
    assert_eq!(b.rows("a.orders", 0).await, a.rows("orders", 0).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_behind_nat_copy_through_a_hub() {
    let dirs: [TempDir; 2] = dirs();
    let hub = TestSite::first("hub", reachable()).await;
    let a = TestSite::on_disk("a", dials_out(), dirs[0].path()).await;
    a.enter(&hub).await.expect("joined");
    let b = TestSite::on_disk("b", dials_out(), dirs[1].path()).await;
    b.enter(&hub).await.expect("joined");
    b.until_linked(&a, LinkState::Relayed).await;
    a.mirror("orders", MeshMode::Source, 1).await;
    b.mirror("orders", MeshMode::Mirror, 1).await;
    for number in 0..100 {
        a.put("orders", 0, &number.to_string()).await;
    }
    b.until_copied("a.orders", 0, 100).await;
    assert_eq!(b.rows("a.orders", 0).await, a.rows("orders", 0).await);
    assert!(!hub.broker.has_topic("a.orders"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_committed_transactions_are_copied() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Source, 1).await;
    b.mirror("orders", MeshMode::Mirror, 1).await;
    let id = TransactionalId::parse("shop").expect("an id");
    let partition = TopicPartition { topic: TopicName::parse("orders").expect("a name"), partition: 0 };
    let mut sequence = 0;
    let producer = a.broker.transactions.init(&id, None, 60_000).await.expect("a producer");
    for (value, decision) in [("first", Decision::Commit), ("void", Decision::Abort), ("third", Decision::Commit)] {
        a.broker.transactions.add_partitions(&id, producer, std::slice::from_ref(&partition)).await.expect("added");
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
        let numbered = Producer { id: producer.id, epoch: producer.epoch, sequence };
        let mut batch = builder.finish_with(Codec::None, Some(numbered)).expect("a record");
        batch.set_transactional();
        a.broker.publish("orders", Some(0), Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
        sequence += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let ends: Vec<Offset> = b.rows("a.orders", 0).await.iter().map(|(offset, ..)| *offset).collect();
        assert!(!ends.contains(&(a.end("orders", 0) - 1)), "nothing is copied before it is committed: {ends:?}");
        a.broker.transactions.end(&id, producer, decision).await.expect("ended");
    }
    // Each transaction has a marker after its record.
    b.until_copied("a.orders", 0, a.end("orders", 0)).await;
    let copied: Vec<(Offset, String)> =
        b.rows("a.orders", 0).await.into_iter().map(|(offset, _, _, value)| (offset, value)).collect();
    assert_eq!(copied, [(0, "first".to_owned()), (4, "third".to_owned())]);
    assert_eq!(a.end("orders", 0), 6);
    assert_eq!(b.copy("a.orders").map(|copy| copy.lost_records), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_begins_inside_a_batch_is_copied_from_there() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    a.mirror("orders", MeshMode::Source, 1).await;
    let batch = |codec| {
        let mut builder = BatchBuilder::new();
        for number in 0..10 {
            builder.push(number, Some(b"key"), Some(b"a value"), &[]).expect("a small record");
        }
        builder.finish_with(codec, None).expect("records")
    };
    let publish = async |codec| {
        let mut wakes = Wakes::default();
        let published = a.broker.publish("orders", Some(0), Acks::Committed, batch(codec), &mut wakes).await;
        published.expect("published");
    };
    publish(Codec::None).await;
    a.broker.delete_records("orders", 0, 4).await.expect("deleted");
    b.mirror("orders", MeshMode::Mirror, 1).await;
    b.until_copied("a.orders", 0, 10).await;
    b.mesh.suspend();
    publish(Codec::Zstd).await;
    publish(Codec::Lz4).await;
    a.broker.delete_records("orders", 0, 25).await.expect("deleted");
    b.mesh.resume().await;
    b.until_copied("a.orders", 0, 30).await;
    let copied = b.rows("a.orders", 0).await;
    let offsets: Vec<Offset> = copied.iter().map(|(offset, ..)| *offset).collect();
    assert_eq!(offsets, (4..10).chain(25..30).collect::<Vec<Offset>>());
    // A reader of the origin receives the whole batch in which its log begins.
    let of_origin = a.rows("orders", 0).await;
    assert!(copied[6..].iter().all(|row| of_origin.contains(row)), "{copied:?}");
    assert_eq!(b.copy("a.orders").map(|copy| copy.lost_records), Some(15));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_leaves_and_joins_again_continues_only_what_it_has_copied() {
    let dirs = dirs();
    let (a, b) = two(&dirs).await;
    for topic in ["same", "other"] {
        a.mirror(topic, MeshMode::Source, 1).await;
        a.put(topic, 0, "before").await;
        b.mirror(topic, MeshMode::Mirror, 1).await;
        b.until_copied(&format!("a.{topic}"), 0, 1).await;
    }
    broker::Mesh::leave(&*b.mesh).await.expect("left");
    a.broker.delete_topic("other").await.expect("deleted");
    a.mirror("other", MeshMode::Source, 1).await;
    for topic in ["same", "other"] {
        a.put(topic, 0, "after").await;
        a.put(topic, 0, "after").await;
    }
    b.enter(&a).await.expect("joined");
    b.until_copied("a.same", 0, 3).await;
    assert_eq!(b.rows("a.same", 0).await, a.rows("same", 0).await);
    let error = || b.copy("a.other").and_then(|copy| copy.error).unwrap_or_default();
    until("b notices", || error().contains("was deleted and created again")).await;
    assert_eq!(b.rows("a.other", 0).await.len(), 1);
}
