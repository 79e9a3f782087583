//! Changing the settings of topics that are in use, and their effect on batches.

use std::time::Duration;

use broker::{Broker, Settings, Wakes};
use engine::mesh::MeshMode;
use engine::{
    Acks, BatchBuilder, Codec, DraftBatch, ErrorKind, RecordBatch, Result, SettingsChange, Storage, TopicSettings,
};

use crate::durable::open;
use crate::support::{batch, start, within};

async fn send(broker: &Broker, batch: DraftBatch) -> Result<u64> {
    let mut wakes = Wakes::default();
    let published = broker.publish("t", Some(0), Acks::Committed, batch, &mut wakes);
    within("a publish", published).await.map(|published| published.base_offset)
}

/// Returns a batch of records with these keys, in this codec.
fn keyed(codec: Codec, keys: &[Option<&str>]) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for key in keys {
        builder.push(1, key.map(str::as_bytes), Some(&[b'v'; 100]), &[]).expect("a small record");
    }
    builder.finish_with(codec, None).expect("records")
}

async fn read(broker: &Broker) -> Vec<RecordBatch> {
    broker.fetch("t", 0, 0, 1 << 20, Duration::ZERO).await.expect("read").batches
}

#[tokio::test]
async fn a_topic_takes_batches_by_the_settings_that_it_has_now() {
    let broker = start(Settings::default());
    broker.create_topic("t", TopicSettings::of_broker()).await.expect("created");
    send(&broker, batch(1, 1000)).await.expect("it is small");
    let change = SettingsChange { batch_bytes_max: Some(1000), ..SettingsChange::default() };
    let status = broker.alter_topic("t", change).await.expect("altered");
    assert_eq!(status.settings.batch_bytes_max, 1000);
    assert_eq!(send(&broker, batch(1, 1000)).await.expect_err("too large").kind, ErrorKind::TooLarge);
    send(&broker, batch(1, 900)).await.expect("it is small");
    // Settings that are not named are unchanged, and earlier records stay in the log.
    let change = SettingsChange { retention_ms: Some(77), ..SettingsChange::default() };
    let settings = broker.alter_topic("t", change).await.expect("altered").settings;
    assert_eq!((settings.retention_ms, settings.batch_bytes_max), (77, 1000));
    let change = SettingsChange { retention_ms: Some(TopicSettings::DEFAULT), ..SettingsChange::default() };
    let settings = broker.alter_topic("t", change).await.expect("altered").settings;
    assert_eq!(settings.retention_ms, Settings::default().topic_defaults.retention_ms);
    assert_eq!(read(&broker).await.len(), 2);
}

#[tokio::test]
async fn a_reduced_retention_removes_the_records_beyond_it() {
    let broker = start(Settings::default());
    broker.create_topic("t", TopicSettings::of_broker()).await.expect("created");
    for _ in 0..10 {
        send(&broker, batch(1, 1000)).await.expect("published");
    }
    let change = SettingsChange { retention_bytes: Some(3000), ..SettingsChange::default() };
    broker.alter_topic("t", change).await.expect("altered");
    send(&broker, batch(1, 1000)).await.expect("published");
    let extent = broker.describe_topic("t").expect("there").partitions[0];
    assert!(extent.start > 7 && extent.end == 11, "{extent:?}");
}

#[tokio::test]
async fn records_carry_the_time_at_which_they_arrived_where_the_topic_says_so() {
    let broker = start(Settings::default());
    broker.create_topic("t", TopicSettings::of_broker()).await.expect("created");
    send(&broker, keyed(Codec::Lz4, &[Some("a"); 30])).await.expect("published");
    let change = SettingsChange { arrival_times: Some(true), ..SettingsChange::default() };
    broker.alter_topic("t", change).await.expect("altered");
    let before = broker::Clock::SYSTEM.now_ms() as i64;
    send(&broker, keyed(Codec::Lz4, &[Some("a"); 30])).await.expect("published");
    let batches = read(&broker).await;
    let [first, second] = &batches[..] else {
        panic!("two batches: {batches:?}");
    };
    assert!(first.records().expect("records").iter().all(|record| record.expect("it decodes").timestamp_ms == 1));
    // Parsed again, as a reader does: the checksum is correct.
    let second = RecordBatch::parse(second.bytes().clone()).expect("a batch");
    let arrival = second.max_timestamp_ms();
    assert!(arrival >= before);
    assert!(second.records().expect("records").iter().all(|r| r.expect("it decodes").timestamp_ms == arrival));
    assert_eq!(broker.offset_for_time("t", 0, before).expect("found"), 30);
    // The times are also kept when compaction removes records.
    let thin = second.thinned(|record| record.offset > 40).expect("thinned");
    assert!(thin.records().expect("records").iter().all(|r| r.expect("it decodes").timestamp_ms == arrival));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_survive_a_restart_and_a_compacted_topic_refuses_records_without_a_key() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    let disk = TopicSettings { storage: Storage::Disk, ..TopicSettings::of_broker() };
    broker.create_topic("t", disk).await.expect("created");
    send(&broker, keyed(Codec::None, &[None])).await.expect("no key is needed");
    let change = SettingsChange {
        compact: Some(true),
        retention_bytes: Some(1 << 30),
        batch_bytes_max: Some(9000),
        arrival_times: Some(true),
        mesh: Some(MeshMode::Live),
        ..SettingsChange::default()
    };
    let altered = broker.alter_topic("t", change).await.expect("altered").settings;
    assert_eq!(altered.mesh, MeshMode::Live);
    broker.grow_topic("t", 3).await.expect("grown");
    drop(broker);

    // Twice: from the journal, and from the checkpoint that the first start took.
    for _ in 0..2 {
        let broker = open(dir.path());
        assert_eq!(broker.describe_topic("t").expect("there").settings, TopicSettings { partitions: 3, ..altered });
        for codec in Codec::ALL {
            let keyless = keyed(codec, &[Some("a"), Some("b"), None]);
            assert_eq!(send(&broker, keyless).await.expect_err("no key").kind, ErrorKind::Invalid, "{codec:?}");
            send(&broker, keyed(codec, &[Some("a"), Some("")])).await.expect("an empty key is one");
        }
    }
}

#[tokio::test]
async fn impossible_settings_are_refused_and_change_nothing() {
    let broker = start(Settings::default());
    let before = broker.create_topic("t", TopicSettings::of_broker()).await.expect("created").settings;
    let none = SettingsChange::default();
    for change in [
        SettingsChange { compact: Some(true), ..none },
        SettingsChange { batch_bytes_max: Some(0), ..none },
        SettingsChange { batch_bytes_max: Some(u32::MAX), ..none },
    ] {
        assert_eq!(broker.alter_topic("t", change).await.expect_err("refused").kind, ErrorKind::Invalid);
    }
    assert_eq!(broker.describe_topic("t").expect("there").settings, before);
    assert_eq!(broker.alter_topic("none", none).await.expect_err("refused").kind, ErrorKind::NotFound);
    assert_eq!(broker.alter_topic("_offsets", none).await.expect_err("refused").kind, ErrorKind::Invalid);
}
