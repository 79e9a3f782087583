//! Topics on disk: acknowledged records survive any end of the broker.

use client::{Acks, ErrorKind, Event, Missing, Record, Start, Storage, TopicSettings};

use rustix::process::Signal;

use crate::support::command::thalweg;
use crate::support::server::{Launch, Server, within};

fn on(data: &tempfile::TempDir) -> Launch {
    Launch { set: vec![format!("data={}", data.path().display())], ..Launch::default() }
}

async fn publish(client: &client::Client, topic: &str, values: std::ops::Range<u32>) {
    let publisher = within("open", client.publisher(topic).acks(Acks::Committed).open()).await.expect("a publisher");
    for value in values {
        within("send", publisher.send(&Record::new(value.to_string()))).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("all are acknowledged");
}

async fn read(client: &client::Client, topic: &str, from: Start, count: usize) -> Vec<String> {
    // A broker that was killed early may not have created the topic.
    let opened = client.subscribe(topic).start(from).missing(Missing::Create).open();
    let mut subscription = within("subscribe", opened).await.expect("a subscription");
    let mut values = Vec::new();
    while values.len() < count {
        let message = within("a record", subscription.next()).await.expect("a record");
        values.push(String::from_utf8_lossy(message.record.value()).into_owned());
    }
    values
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|value| value.to_string()).collect()
}

/// After a kill or a stop, with records only in the journal or also in segments, they are restored in order, and more
/// follow.
#[tokio::test]
async fn acknowledged_records_survive_the_broker() {
    let data = tempfile::tempdir().expect("a folder");
    for round in 0..6 {
        let mut server = Server::launch(on(&data));
        let client = server.client("tcp").await;
        let known = round * 500;
        assert_eq!(read(&client, "kept", Start::Earliest, known as usize).await, numbers(0..known), "round {round}");
        publish(&client, "kept", known..known + 500).await;
        let info = within("describe", client.describe_topic("kept")).await.expect("there");
        assert_eq!((info.settings.storage, info.partitions[0].end), (Storage::Disk, u64::from(known) + 500));
        match round % 2 {
            0 => server.crash(),
            _ => {
                server.signal(Signal::TERM);
                assert!(server.ended().await.success());
            }
        }
    }
}

/// A subscription continues after its last record when the broker returns with the topic, and receives no restart
/// event: the offsets are the same as before. A topic in memory starts again.
#[tokio::test]
async fn a_subscription_continues_after_its_last_record_when_the_broker_comes_back() {
    for storage in [Storage::Disk, Storage::Sqlite, Storage::Memory] {
        let data = tempfile::tempdir().expect("a folder");
        let mut server = Server::launch(on(&data));
        let client = server.client("tcp").await;
        let settings = TopicSettings { storage, ..TopicSettings::default() };
        within("create", client.create_topic("kept", settings)).await.expect("created");
        publish(&client, "kept", 0..5).await;
        let opened = client.subscribe("kept").start(Start::Earliest).open();
        let mut subscription = within("subscribe", opened).await.expect("a subscription");
        for _ in 0..5 {
            within("a record", subscription.next()).await.expect("a record");
        }
        server.crash_and_restart();
        let publisher = server.client("tcp").await;
        if storage == Storage::Memory {
            within("create", publisher.create_topic("kept", settings)).await.expect("created");
        }
        publish(&publisher, "kept", 5..7).await;
        let mut after = Vec::new();
        while after.len() < 2 {
            match within("an event", subscription.next_event()).await.expect("an event") {
                Event::Batch(batch) => {
                    let records = batch.records().expect("records");
                    after.extend(records.iter().map(|record| record.expect("a record").offset));
                }
                Event::Restarted => assert_eq!(storage, Storage::Memory, "it is the same log"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(after, if storage == Storage::Memory { [0, 1] } else { [5, 6] }, "{storage:?}");
    }
}

/// Subscribers read only committed records, live and from the log, and the acknowledgement contains its level.
#[tokio::test]
async fn subscribers_get_only_records_on_the_disk() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(on(&data));
    let client = server.client("tcp").await;
    let mut live =
        within("subscribe", client.subscribe("t").missing(Missing::Create).open()).await.expect("a subscription");
    publish(&client, "t", 0..100).await;
    for value in 0..100 {
        let message = within("a record", live.next()).await.expect("a record");
        assert_eq!((message.record.offset, message.record.value()), (value, value.to_string().as_bytes()));
    }
    assert_eq!(read(&client, "t", Start::Offset(60), 40).await, numbers(60..100));
}

/// Deleted topics stay deleted, those in memory return empty, and a name may be reused.
#[tokio::test]
async fn topics_come_back_as_they_were() {
    come_back(Storage::Disk).await;
    come_back(Storage::Sqlite).await;
}

async fn come_back(storage: Storage) {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(on(&data));
    let client = server.client("tcp").await;
    let settings = TopicSettings {
        partitions: 3,
        retention_bytes: 1 << 30,
        retention_ms: 5_000_000,
        storage,
        ..TopicSettings::default()
    };
    for topic in ["a", "b", "c"] {
        within("create", client.create_topic(topic, settings)).await.expect("created");
    }
    let volatile = TopicSettings { storage: Storage::Memory, ..settings };
    within("create", client.create_topic("volatile", volatile)).await.expect("created");
    publish(&client, "b", 0..10).await;
    within("delete", client.delete_topic("b")).await.expect("deleted");
    within("create", client.create_topic("b", settings)).await.expect("created again");
    within("delete", client.delete_topic("c")).await.expect("deleted");
    server.crash();
    let server = Server::launch(on(&data));
    let client = server.client("tcp").await;
    let topics = within("list", client.list_topics()).await.expect("a list");
    let names: Vec<&str> = topics.iter().map(|info| info.topic.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    for info in topics {
        assert_eq!(info.settings, settings);
        assert!(info.partitions.iter().all(|partition| partition.end == 0), "{}", info.topic);
    }
}

/// A live subscriber and one that reads from the start receive the same records, and a killed broker restores all of
/// them.
#[tokio::test]
async fn records_acknowledged_in_a_database_survive_a_kill() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(on(&data));
    let client = server.client("tcp").await;
    let settings = TopicSettings { storage: Storage::Sqlite, ..TopicSettings::of_broker() };
    within("create", client.create_topic("t", settings)).await.expect("created");
    let mut live = within("subscribe", client.subscribe("t").open()).await.expect("a subscription");
    publish(&client, "t", 0..100).await;
    for value in 0..100 {
        let message = within("a record", live.next()).await.expect("a record");
        assert_eq!((message.record.offset, message.record.value()), (value, value.to_string().as_bytes()));
    }
    assert!(data.path().join("queues.sqlite").exists());
    server.crash();
    let server = Server::launch(on(&data));
    let client = server.client("tcp").await;
    assert_eq!(read(&client, "t", Start::Earliest, 100).await, numbers(0..100));
    publish(&client, "t", 100..110).await;
    assert_eq!(read(&client, "t", Start::Offset(95), 15).await, numbers(95..110));
    let metrics = within("metrics", client.stats()).await.expect("metrics");
    assert!(metrics.contains("thalweg_sqlite_commits_total"), "{metrics}");
    assert!(metrics.contains("thalweg_sqlite_is_held_up 0"), "{metrics}");
}

/// A topic on disk requires a data directory.
#[tokio::test]
async fn a_broker_without_a_directory_names_the_missing_option() {
    let server = Server::start();
    let client = server.client("tcp").await;
    for storage in [Storage::Disk, Storage::Sqlite] {
        let settings = TopicSettings { storage, ..TopicSettings::default() };
        let refused = within("create", client.create_topic("t", settings)).await.expect_err("refused");
        assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("--data"), "{refused}");
    }
}

/// Two brokers would overwrite each other's data: the second one does not start.
#[tokio::test]
async fn a_directory_has_one_broker() {
    let data = tempfile::tempdir().expect("a folder");
    let _server = Server::launch(on(&data));
    let path = data.path().to_str().expect("a path");
    let message = thalweg([
        "serve",
        "--data",
        path,
        "--native",
        "127.0.0.1:0",
        "--http",
        "off",
        "--kafka",
        "off",
        "--sqs",
        "off",
    ])
    .failed(1);
    assert!(message.contains("in use by another process"), "{message}");
}
