//! Deletion of records other than by retention: by compaction, and on request.

use std::collections::BTreeMap;

use client::{Acks, ErrorKind, Offset, Record, Start, Storage, TopicSettings};

use rustix::process::Signal;

use crate::support::command;
use crate::support::server::{Launch, Server, metric, until, within};

fn keeping(data: &tempfile::TempDir) -> Launch {
    Launch { set: vec![format!("data={}", data.path().display())], ..Launch::default() }
}

async fn read(client: &client::Client, topic: &str) -> Vec<Record> {
    let end = client.describe_topic(topic).await.expect("there").partitions[0].end;
    let opened = client.subscribe(topic).start(Start::Earliest).open();
    let mut subscription = within("subscribe", opened).await.expect("a subscription");
    let mut records = Vec::new();
    while records.last().is_none_or(|record: &Record| record.offset + 1 < end) {
        records.push(within("a record", subscription.next()).await.expect("a record").record);
    }
    records
}

/// State by key, read back as a table: the newest record of each key is kept, and the log does not grow with every
/// change.
#[tokio::test]
async fn a_compacted_topic_keeps_the_newest_record_of_each_key() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(keeping(&data));
    command::on(&server, ["topic", "create", "state", "--compact"]).ok();
    let client = server.client("tcp").await;
    let info = client.describe_topic("state").await.expect("there");
    assert!(info.settings.compact && info.settings.retention_ms == 0, "{:?}", info.settings);

    let publisher = within("open", client.publisher("state").acks(Acks::Committed).open()).await.expect("a publisher");
    let mut state = BTreeMap::new();
    for round in 0..8 {
        for key in 0..1000u32 {
            let record = Record::new(format!("{key} in round {round} ").repeat(20)).with_key(key.to_string());
            within("send", publisher.send(&record)).await.expect("sent");
            state.insert(record.key, record.value);
        }
    }
    // Marks the end for the reader.
    within("send", publisher.send(&Record::new("last").with_key("last"))).await.expect("sent");
    within("flush", publisher.flush()).await.expect("all are acknowledged");
    state.insert(Some("last".into()), Some("last".into()));
    // Pending records of the journal are written to segments now, and not at the next checkpoint.
    server.signal(Signal::TERM);
    assert!(server.ended().await.success());
    server.start_again();
    let client = server.client("tcp").await;
    until("it is compacted", async || metric(&client, "thalweg_compaction_records_removed_total").await == 7000).await;

    server.crash_and_restart();
    let client = server.client("tcp").await;
    let records = read(&client, "state").await;
    assert_eq!(records.len(), 1001);
    assert!(records.windows(2).all(|pair| pair[0].offset < pair[1].offset));
    let found: BTreeMap<_, _> = records.into_iter().map(|record| (record.key, record.value)).collect();
    assert!(found == state, "the newest of each key is there");
    // The log continues at its former end.
    assert_eq!(client.describe_topic("state").await.expect("there").partitions[0].end, 8001);
}

#[tokio::test]
async fn a_topic_in_memory_is_not_compacted() {
    let server = Server::start();
    let output = command::on(&server, ["topic", "create", "state", "--compact"]).failed(2);
    assert!(output.contains("--data DIR"), "{output}");
}

/// Altered settings are durable, and unnamed settings are kept.
#[tokio::test]
async fn a_topic_is_altered_while_it_is_in_use() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(keeping(&data));
    command::on(&server, ["topic", "create", "t", "--retention", "7d", "--batch-bytes-max", "1MiB"]).ok();
    let output = command::on(&server, ["topic", "alter", "t", "--compact", "yes", "--timestamps", "arrival"]).ok();
    assert!(output.contains("the newest record") && output.contains("1 MiB"), "{output}");
    assert!(command::on(&server, ["topic", "alter", "t"]).failed(2).contains("--retention 7d"));
    assert!(command::on(&server, ["topic", "alter", "none", "--compact", "no"]).failed(4).contains("no topic 'none'"));
    assert!(command::on(&server, ["topic", "alter", "t", "--batch-bytes-max", "1GiB"]).failed(2).contains("10485760"));
    let keyless = command::feed(&server, ["publish", "t"], "a record without a key\n").failed(2);
    assert!(keyless.contains("has no key"), "{keyless}");
    server.crash_and_restart();
    let altered = command::on(&server, ["topic", "alter", "t", "--retention", "default", "--json"]).json();
    assert_eq!((&altered["retention_ms"], &altered["compact"]), (&0.into(), &true.into()));
    let altered = command::on(&server, ["topic", "alter", "t", "--compact", "no", "--retention", "default", "--json"]);
    let altered = altered.json();
    assert_eq!((&altered["retention_ms"], &altered["batch_bytes_max"]), (&604_800_000.into(), &1_048_576.into()));
    assert_eq!(altered["arrival_times"], true);
}

/// The mode is durable on disk, and other changes keep it. Internal topics are not in the mesh.
#[tokio::test]
async fn a_topic_is_put_into_the_mesh_and_taken_out_of_it() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(keeping(&data));
    command::on(&server, ["topic", "create", "plain"]).ok();
    for storage in ["disk", "sqlite", "memory"] {
        let args = ["topic", "create", storage, "--storage", storage, "--mesh", "live", "--json"];
        assert_eq!(command::on(&server, args).json()["mesh"], "live");
    }
    server.crash_and_restart();
    let mesh_of = |topic: &str| command::on(&server, ["topic", "describe", topic, "--json"]).json()["mesh"].clone();
    for (topic, mesh) in [("disk", "live"), ("sqlite", "live"), ("plain", "off")] {
        assert_eq!(mesh_of(topic), mesh, "{topic}");
        let altered = command::on(&server, ["topic", "alter", topic, "--retention", "7d", "--json"]).json();
        assert_eq!(altered["mesh"], mesh, "{topic}");
    }
    assert!(command::on(&server, ["topic", "describe", "disk"]).ok().contains("live: other sites"));
    let would = command::on(&server, ["topic", "create", "n", "--mesh", "live", "--dry-run", "--json"]).json();
    assert_eq!(would["mesh"], "live");
    for (mesh, shown) in [("mirror", "mirror: other sites copy"), ("source", "source: other sites copy")] {
        let altered = command::on(&server, ["topic", "alter", "disk", "--mesh", mesh]).ok();
        assert!(altered.contains(shown), "{altered}");
        assert_eq!(mesh_of("disk"), mesh);
    }
    command::on(&server, ["topic", "alter", "disk", "--mesh", "off"]).ok();
    assert_eq!(mesh_of("disk"), "off");
    for args in [["alter", "disk", "--mesh", "copy", "--json"], ["create", "n", "--mesh", "copy", "--dry-run"]] {
        let refused = command::on(&server, ["topic"].into_iter().chain(args)).failed(2);
        assert!(refused.contains("set mesh of the topic to mirror at both sites"), "{refused}");
    }
    let refused = command::on(&server, ["topic", "alter", "disk", "--mesh", "on"]).failed(2);
    assert!(refused.contains("mesh is off, live, mirror or source, not 'on'"), "{refused}");
    command::on(&server, ["queue", "create", "jobs"]).ok();
    let refused = command::on(&server, ["topic", "alter", "_queues", "--mesh", "live"]).failed(2);
    assert!(refused.contains("_queues"), "{refused}");
    let listed = command::on(&server, ["topic", "list", "--all", "--json"]).json();
    for topic in listed.as_array().expect("topics") {
        let is_live = topic["topic"] == "sqlite";
        assert_eq!(topic["mesh"] == "live", is_live, "{topic}");
    }
}

/// On disk, deleted records remain deleted after a crash.
#[tokio::test]
async fn deleted_records_are_gone() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::launch(keeping(&data));
    for storage in [Storage::Disk, Storage::Memory] {
        let topic = storage.name();
        let client = server.client("tcp").await;
        let settings = TopicSettings { storage, ..TopicSettings::of_broker() };
        within("create", client.create_topic(topic, settings)).await.expect("created");
        let publisher = within("open", client.publisher(topic).open()).await.expect("a publisher");
        for value in 0..100 {
            within("send", publisher.send(&Record::new(value.to_string()))).await.expect("sent");
        }
        within("flush", publisher.flush()).await.expect("all are acknowledged");
        let output = command::on(&server, ["topic", "delete-records", topic, "--before", "37"]).ok();
        assert_eq!(output, format!("partition 0 of topic {topic} now begins at offset 37\n"));
        if storage == Storage::Disk {
            server.crash_and_restart();
        }
        let client = server.client("tcp").await;
        let offsets: Vec<Offset> = read(&client, topic).await.iter().map(|record| record.offset).collect();
        assert_eq!(offsets, (37..100).collect::<Vec<_>>(), "{topic}");
        // Deleted records remain deleted, and records that do not exist yet cannot be deleted.
        assert_eq!(within("delete", client.delete_records(topic, 0, 5)).await, Ok(37));
        let refused = within("delete", client.delete_records(topic, 0, 101)).await.expect_err("it ends before");
        assert_eq!(refused.kind, ErrorKind::OutOfRange);
        assert!(refused.message.contains("37 to 100"), "{refused}");
        assert_eq!(within("delete", client.delete_records(topic, 0, Offset::MAX)).await, Ok(100));
        let info = client.describe_topic(topic).await.expect("there");
        assert_eq!((info.partitions[0].start, info.partitions[0].end), (100, 100));
    }
}
