//! Backups of a broker that is in use, and brokers that are restored from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{CacheSettings, Client, NewQueue, OutMessage, Record, TopicPartition, TopicSettings};
use engine::codec::Codec;
use engine::{BatchBuilder, Producer, TopicName};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest, TransactionalId,
};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::door::kafka::raw::{Raw, batch, fetch, fetched, produce, produced, records, text, topic};
use crate::door::sqs::client::Sqs;
use crate::support::cluster::Cluster;
use crate::support::command::{Done, on, thalweg};
use crate::support::server::{Server, metric, program, until, within};

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;
const DAMAGED: i32 = 6;

fn serve(data: &Path) -> Server {
    Server::with(&[&format!("data={}", data.display())])
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Folder with everything of a test: data directories and backups.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn restore(backup: &Path, data: &Path) -> Done {
    thalweg(["restore", path(backup), "--data", path(data)])
}

/// Returns all files with records in a backup.
fn records_of(backup: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).expect("a folder");
        entries.map(|entry| entry.expect("readable").path()).collect()
    };
    let mut files: Vec<PathBuf> = list(&backup.join("records")).iter().flat_map(|dir| list(dir)).collect();
    files.sort();
    files
}

async fn publish(client: &Client, topic: &str, count: u64, bytes: usize) {
    let publisher = within("open", client.publisher(topic).open()).await.expect("a publisher");
    for i in 0..count {
        let value = format!("{i}/{}", "x".repeat(bytes));
        within("send", publisher.send(&Record::new(value))).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
}

/// Returns the values of a partition by their offsets.
async fn read(client: &Client, topic: &str) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let info = within("a description", client.describe_topic(topic)).await.expect("described");
    let mut at = info.partitions[0].start;
    loop {
        let fetched = within("a fetch", client.fetch(topic, 0, at, Duration::ZERO)).await.expect("readable");
        let (start, end, batches) = fetched;
        at = at.max(start);
        for batch in batches {
            for record in &batch.records_from(at).expect("whole") {
                let record = record.expect("whole");
                let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
                assert!(found.insert(record.offset, value).is_none(), "offset {} is there twice", record.offset);
            }
            at = batch.next_offset();
        }
        if at >= end {
            return found;
        }
    }
}

/// Keys that a broker acknowledged, with what belongs to them.
type Acknowledged = Arc<Mutex<BTreeMap<String, u64>>>;

/// Acknowledged writes of each kind.
#[derive(Default)]
struct Written {
    native: Acknowledged,
    kafka: Acknowledged,
    sqs: Acknowledged,
    cache: Acknowledged,
    groups: Acknowledged,
}

fn all(of: &Acknowledged) -> BTreeMap<String, u64> {
    of.lock().clone()
}

/// Starts clients that write until they are told to end.
fn write(server: &Server, written: &Written, has_ended: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    let url = server.url("tcp");
    let goes_on = |flag: &Arc<AtomicBool>| {
        let flag = flag.clone();
        move || !flag.load(Ordering::Acquire)
    };
    let native = {
        let (url, acked, goes_on) = (url.clone(), written.native.clone(), goes_on(has_ended));
        tokio::spawn(async move {
            let client = crate::support::server::connect(&url, client::ClientSettings::default()).await;
            for i in 0_u64.. {
                let value = format!("native-{i}");
                let record = Record::new(value.clone());
                let published = within("a publish", client.publish("native", record)).await.expect("acknowledged");
                acked.lock().insert(value, published.base_offset);
                if !goes_on() {
                    return;
                }
            }
        })
    };
    let kafka = {
        let (address, acked, goes_on) = (server.kafka, written.kafka.clone(), goes_on(has_ended));
        tokio::spawn(async move {
            let mut raw = Raw::connect_to(address).await;
            for i in 0_u64.. {
                let value = format!("kafka-{i}");
                let batch = batch(Codec::Lz4, &[Record::new(value.clone())]);
                let request: ProduceRequest = produce("kafka", 0, -1, batch);
                let (code, offset, _) = produced(&within("a produce", raw.call(9, request)).await);
                assert_eq!(code, 0);
                acked.lock().insert(value, offset as u64);
                if !goes_on() {
                    return;
                }
            }
        })
    };
    let sqs = {
        let (address, acked, goes_on) = (server.sqs, written.sqs.clone(), goes_on(has_ended));
        tokio::spawn(async move {
            let sqs = Sqs::at(address);
            let answer = sqs.call("GetQueueUrl", json!({ "QueueName": "jobs" })).await.ok();
            let url = answer["QueueUrl"].as_str().expect("a URL").to_owned();
            for i in 0_u64.. {
                let body = format!("sqs-{i}");
                within("a send", sqs.send_body(&url, &body)).await;
                acked.lock().insert(body, i);
                if !goes_on() {
                    return;
                }
            }
        })
    };
    let cache = {
        let (url, acked, goes_on) = (url.clone(), written.cache.clone(), goes_on(has_ended));
        tokio::spawn(async move {
            let client = crate::support::server::connect(&url, client::ClientSettings::default()).await;
            let cache = client.cache("sessions");
            for i in 0_u64.. {
                let key = format!("key-{}", i % 50);
                within("a put", cache.put(key.clone(), i.to_string())).await.expect("acknowledged");
                acked.lock().insert(key, i);
                if !goes_on() {
                    return;
                }
            }
        })
    };
    let groups = {
        let (acked, goes_on) = (written.groups.clone(), goes_on(has_ended));
        tokio::spawn(async move {
            let client = crate::support::server::connect(&url, client::ClientSettings::default()).await;
            let at = TopicPartition { topic: TopicName::parse("native").expect("a name"), partition: 0 };
            for i in 0_u64.. {
                let offsets = [(at.clone(), i)];
                within("a commit", client.commit_offsets("billing", &offsets)).await.expect("acknowledged");
                acked.lock().insert("billing".to_owned(), i);
                if !goes_on() {
                    return;
                }
            }
        })
    };
    vec![native, kafka, sqs, cache, groups]
}

/// Everything that was acknowledged before a backup began is in a broker that is restored from it, once and at the same
/// offset, and nothing is there that was not sent before the backup ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_has_all_that_was_acknowledged_before() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    let settings = TopicSettings { segment_bytes: 1 << 20, ..TopicSettings::on_disk() };
    for topic in ["native", "kafka", "bulk"] {
        within("a topic", client.create_topic(topic, settings)).await.expect("created");
    }
    within("a queue", client.create_queue(NewQueue::new("jobs"))).await.expect("created");
    let durable = CacheSettings { is_durable: true, ..CacheSettings::default() };
    within("a cache", client.create_cache("sessions", durable)).await.expect("created");
    publish(&client, "bulk", 2000, 4000).await;

    let written = Written::default();
    let has_ended = Arc::new(AtomicBool::new(false));
    let writers = write(&server, &written, &has_ended);
    let kinds = [&written.native, &written.kafka, &written.sqs, &written.cache, &written.groups];
    until("writes of every kind", async || kinds.iter().all(|kind| !kind.lock().is_empty())).await;
    tokio::time::sleep(Duration::from_millis(300)).await;

    let before = kinds.map(all);
    let backup = folder.path("backup");
    // Slow enough that much is written in the meantime.
    let first =
        tokio::task::block_in_place(|| on(&server, ["--json", "backup", path(&backup), "--rate", "6MiB"]).json());
    let after = kinds.map(all);
    assert!(first["received_bytes"].as_u64() > Some(7 << 20), "{first}");
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "nothing was written during the backup");
    let second = tokio::task::block_in_place(|| on(&server, ["--json", "backup", path(&backup)]).json());
    assert!(second["received_bytes"].as_u64() < Some(4 << 20), "the second one has copied all again: {second}");
    assert!(second["kept_bytes"].as_u64() > Some(7 << 20), "{second}");
    let last = kinds.map(all);
    has_ended.store(true, Ordering::Release);
    for writer in writers {
        writer.await.expect("no panic");
    }
    assert_eq!(metric(&client, "thalweg_backups").await, 0, "both have ended");
    let bulk = read(&client, "bulk").await;
    drop(server);

    thalweg(["backup", "verify", path(&backup)]).ok();
    restore(&backup, &folder.path("restored")).ok();
    let server = serve(&folder.path("restored"));
    let client = server.client("tcp").await;
    // The second backup began after `after`, and ended before `last`.
    for (kind, topic) in [(0, "native"), (1, "kafka")] {
        let found: BTreeMap<String, u64> =
            read(&client, topic).await.into_iter().map(|(at, value)| (value, at)).collect();
        for (value, offset) in &after[kind] {
            assert_eq!(found.get(value), Some(offset), "{value} of {topic}");
        }
        let extra = found.keys().filter(|value| !last[kind].contains_key(*value)).count();
        assert!(extra <= 1, "{topic} has {extra} records that were sent after the backup");
    }
    assert_eq!(read(&client, "bulk").await, bulk);
    let cache = client.cache("sessions");
    for (key, least) in &after[3] {
        let value = within("a get", cache.get(key.clone())).await.expect("readable").expect("there");
        let value: u64 = String::from_utf8_lossy(&value.value).parse().expect("a number");
        assert!(value >= *least && value <= last[3][key] + 50, "{key} is {value}, at least {least}");
    }
    let at = TopicPartition { topic: TopicName::parse("native").expect("a name"), partition: 0 };
    let committed = within("offsets", client.committed_offsets("billing", &[at])).await.expect("readable");
    assert!(committed[0].1.offset >= after[4]["billing"], "{committed:?}");
    let mut found = BTreeMap::new();
    let mut position = None;
    loop {
        let peeked = within("messages", client.queue("jobs").peek(position, 1000)).await.expect("readable");
        let Some(one) = peeked.last() else { break };
        position = Some((one.message.partition, one.message.offset));
        for one in &peeked {
            let body = String::from_utf8_lossy(&one.message.body).into_owned();
            assert!(found.insert(body, ()).is_none(), "a message is there twice");
        }
    }
    let lost: Vec<&String> = after[2].keys().filter(|body| !found.contains_key(*body)).collect();
    assert!(lost.is_empty(), "messages are lost: {lost:?}");
    // It goes on: new records follow the restored ones.
    let published = within("a publish", client.publish("bulk", Record::new("next"))).await.expect("acknowledged");
    assert_eq!(published.base_offset, 2000);
    let message = OutMessage { body: "next".into(), ..OutMessage::default() };
    within("a send", client.queue("jobs").send(message)).await.expect("acknowledged");
}

/// Deleted records and topics, whose files would be removed, stay readable for a backup that has begun.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_during_a_backup_is_still_in_it() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    let settings = TopicSettings { segment_bytes: 1 << 20, ..TopicSettings::on_disk() };
    for topic in ["cut", "deleted"] {
        within("a topic", client.create_topic(topic, settings)).await.expect("created");
        publish(&client, topic, 3000, 1000).await;
    }
    let whole = read(&client, "cut").await;
    let backup = folder.path("backup");
    let mut command = program();
    let url = server.url("tcp");
    // Both topics have 3 MB: it takes seconds.
    command.args(["--server", &url, "backup", path(&backup), "--rate", "1MiB"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    until("the backup", async || metric(&client, "thalweg_backup_bytes_total").await > 0).await;
    within("a deletion", client.delete_records("cut", 0, 2999)).await.expect("deleted");
    within("a deletion", client.delete_topic("deleted")).await.expect("deleted");
    assert_eq!(read(&client, "cut").await.len(), 1, "readers do not see it any more");
    let mut status = None;
    until("the end of the backup", async || {
        status = running.try_wait().expect("its status");
        status.is_some()
    })
    .await;
    assert!(status.is_some_and(|status| status.success()));
    drop(server);
    restore(&backup, &folder.path("restored")).ok();
    let restored = serve(&folder.path("restored"));
    let client = restored.client("tcp").await;
    assert_eq!(read(&client, "cut").await, whole);
    assert_eq!(read(&client, "deleted").await, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_killed_leaves_the_previous_one() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    publish(&client, "orders", 100, 1000).await;
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();
    publish(&client, "orders", 3000, 1000).await;
    let url = server.url("tcp");
    let kill = async |backup: &Path| {
        let before = metric(&client, "thalweg_backup_bytes_total").await;
        let mut command: Command = program();
        command.args(["--server", &url, "backup", path(backup), "--rate", "128KiB"]);
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        until("the backup", async || metric(&client, "thalweg_backup_bytes_total").await > before).await;
        running.kill().expect("killed");
        running.wait().expect("ended");
        until("its end", async || metric(&client, "thalweg_backups").await == 0).await;
    };
    kill(&backup).await;
    let verified = thalweg(["--json", "backup", "verify", path(&backup)]).json();
    assert_eq!((verified["number"].as_u64(), verified["leftover_files"].as_u64() > Some(0)), (Some(1), true));
    restore(&backup, &folder.path("first")).ok();

    on(&server, ["backup", path(&backup)]).ok();
    let verified = thalweg(["--json", "backup", "verify", path(&backup)]).json();
    assert_eq!((verified["number"].as_u64(), verified["leftover_files"].as_u64()), (Some(2), Some(0)));

    let only = folder.path("only");
    kill(&only).await;
    let refused = restore(&only, &folder.path("second")).failed(NOT_FOUND);
    assert!(refused.contains("no complete backup"), "{refused}");
    assert!(!folder.path("second").exists());
    // What is left of it is known as that of a backup.
    on(&server, ["backup", path(&only)]).ok();
    thalweg(["backup", "verify", path(&only)]).ok();
    drop(server);
    let restored = serve(&folder.path("first"));
    assert_eq!(read(&restored.client("tcp").await, "orders").await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_found_by_verify_and_by_restore() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    publish(&server.client("tcp").await, "orders", 100, 1000).await;
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();
    let mut files = records_of(&backup);
    files.extend([backup.join("topics-1"), backup.join("backup.json")]);
    for file in files {
        let whole = std::fs::read(&file).expect("a file");
        let at = whole.len() / 2;
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        // A disk may return zeros for a part of a file, also where a batch begins.
        let mut zeroed = whole.clone();
        zeroed[at..].fill(0);
        let mut without_start = whole.clone();
        without_start[..at.min(4096)].fill(0);
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        for damaged in [flipped, zeroed, without_start] {
            std::fs::write(&file, &damaged).expect("written");
            for failure in [
                thalweg(["backup", "verify", path(&backup)]).failed(DAMAGED),
                restore(&backup, &folder.path("restored")).failed(DAMAGED),
            ] {
                assert!(failure.contains(name), "{name}: {failure}");
            }
            assert!(!folder.path("restored").exists() && !folder.path("restored.restoring").exists());
        }
        std::fs::write(&file, &whole).expect("written");
    }
    thalweg(["backup", "verify", path(&backup)]).ok();
    // A cut and a missing file are damage, too.
    let file = records_of(&backup).pop().expect("a file");
    let whole = std::fs::read(&file).expect("a file");
    std::fs::write(&file, &whole[..whole.len() - 1]).expect("written");
    assert!(thalweg(["backup", "verify", path(&backup)]).failed(DAMAGED).contains("bytes"));
    std::fs::remove_file(&file).expect("removed");
    assert!(thalweg(["backup", "verify", path(&backup)]).failed(DAMAGED).contains("missing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_goes_only_where_it_belongs() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    publish(&server.client("tcp").await, "orders", 10, 10).await;
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();
    // A directory with other files is neither a place for a backup nor for what is restored.
    let home = folder.path("home");
    std::fs::create_dir(&home).expect("made");
    std::fs::write(home.join("letter.txt"), "dear").expect("written");
    assert!(on(&server, ["backup", path(&home)]).failed(USAGE).contains("letter.txt"));
    assert!(restore(&backup, &home).failed(USAGE).contains("has files"));
    assert_eq!(std::fs::read_dir(&home).expect("a folder").count(), 1, "nothing was added");
    // Nor is one with the records of a business, or with a folder that only resembles one of a backup.
    for foreign in ["records/letter.txt", "records/1-0/letter.txt", "records/1-0/1-1", "records/01-0/letter.txt"] {
        let office = tempfile::tempdir().expect("a folder");
        let file = office.path().join(foreign);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(&file, "dear").expect("written");
        let refused = on(&server, ["backup", path(office.path())]).failed(USAGE);
        assert!(refused.contains("records/"), "{foreign}: {refused}");
        assert_eq!(std::fs::read(&file).expect("it is still there"), b"dear");
    }
    // A backup removes no file whose name it would not write.
    let note = backup.join("records").join("note.txt");
    std::fs::write(&note, "mine").expect("written");
    on(&server, ["backup", path(&backup)]).ok();
    assert!(note.exists());
    let slow = on(&server, ["backup", path(&backup), "--rate", "63KiB"]).failed(USAGE);
    assert!(slow.contains("64 KiB"), "{slow}");
    // A restored broker continues the backup that it was restored from.
    restore(&backup, &folder.path("restored")).ok();
    let restored = serve(&folder.path("restored"));
    publish(&restored.client("tcp").await, "orders", 5, 10).await;
    let continued = on(&restored, ["--json", "backup", path(&backup)]).json();
    assert!(continued["kept_bytes"].as_u64() > Some(0), "{continued}");
    // The original has other records at these offsets: nothing of both is mixed.
    publish(&server.client("tcp").await, "orders", 7, 20).await;
    on(&server, ["backup", path(&backup)]).ok();
    let original = read(&server.client("tcp").await, "orders").await;
    restore(&backup, &folder.path("again")).ok();
    let again = serve(&folder.path("again"));
    assert_eq!(read(&again.client("tcp").await, "orders").await, original);
    // Another broker's backup is not continued.
    let other = serve(&folder.path("other"));
    assert!(on(&other, ["backup", path(&backup)]).failed(USAGE).contains("another broker"));
    thalweg(["backup", "verify", path(&backup)]).ok();
    // A broker in memory has nothing to copy.
    let memory = Server::start();
    assert!(on(&memory, ["backup", path(&folder.path("none"))]).failed(FAILED).contains("no data directory"));
}

/// A backup that is being written is not read: it removes files of the previous one.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_not_read_while_a_backup_is_written() {
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    publish(&client, "orders", 100, 1000).await;
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();
    publish(&client, "orders", 3000, 1000).await;
    let before = metric(&client, "thalweg_backup_bytes_total").await;
    let mut command = program();
    command.args(["--server", &server.url("tcp"), "backup", path(&backup), "--rate", "128KiB"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    until("the backup", async || metric(&client, "thalweg_backup_bytes_total").await > before).await;
    let refused = thalweg(["backup", "verify", path(&backup)]).failed(FAILED);
    assert!(refused.contains("is being written"), "{refused}");
    let refused = restore(&backup, &folder.path("restored")).failed(FAILED);
    assert!(refused.contains("is being written"), "{refused}");
    running.kill().expect("killed");
    running.wait().expect("ended");
    thalweg(["backup", "verify", path(&backup)]).ok();
    // A copy may lack the file that is locked.
    std::fs::remove_file(backup.join("thalweg.lock")).expect("removed");
    restore(&backup, &folder.path("restored")).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_point_is_refused_before_anything_is_written() {
    let Some(disk) = super::full_disk::SmallDisk::new() else { return };
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    publish(&server.client("tcp").await, "orders", 10, 10).await;
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();
    let refused = restore(&backup, &disk.path()).failed(USAGE);
    assert!(refused.contains("mount point"), "{refused}");
    restore(&backup, &disk.path().join("data")).ok();
}

/// Publishes a record with a key in a transaction that is aborted, as Kafka's clients do.
async fn abort(raw: &mut Raw, name: &str) {
    let id = || TransactionalId(text("aborting"));
    let begin = InitProducerIdRequest::default().with_transactional_id(Some(id())).with_transaction_timeout_ms(60_000);
    let mut begun = raw.call(3, begin.clone()).await;
    until("a coordinator", async || {
        begun = raw.call(3, begin.clone()).await;
        begun.error_code == 0
    })
    .await;
    let partitions = AddPartitionsToTxnTopic::default().with_name(topic(name)).with_partitions(vec![0]);
    let add = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id())
        .with_v3_and_below_producer_id(begun.producer_id)
        .with_v3_and_below_producer_epoch(begun.producer_epoch)
        .with_v3_and_below_topics(vec![partitions]);
    until("the transaction has begun", async || {
        let added = raw.call(1, add.clone()).await;
        added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    })
    .await;
    let mut builder = BatchBuilder::new();
    builder.push(1, Some(b"key"), Some(b"aborted"), &[]).expect("a record");
    let producer = Producer { id: begun.producer_id.0, epoch: begun.producer_epoch, sequence: 0 };
    let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
    batch.set_transactional();
    let request = produce(name, 0, -1, batch.into_bytes()).with_transactional_id(Some(id()));
    assert_eq!(produced(&raw.call(9, request).await).0, 0);
    let end = EndTxnRequest::default()
        .with_transactional_id(id())
        .with_producer_id(begun.producer_id)
        .with_producer_epoch(begun.producer_epoch)
        .with_committed(false);
    assert_eq!(raw.call(1, end).await.error_code, 0);
}

/// Returns the first offsets of the aborted transactions that a reader of committed records learns of at the beginning
/// of a topic, and whether it gets the record of one.
async fn aborted(raw: &mut Raw, name: &str) -> (Vec<i64>, bool) {
    let answer = raw.call(11, fetch(name, 0, 0, 0).with_isolation_level(1)).await;
    let (code, _, batches) = fetched(&answer);
    assert_eq!(code, 0);
    let found = answer.responses[0].partitions[0].aborted_transactions.clone().unwrap_or_default();
    let has_record = records(&batches).iter().any(|record| record.value.as_deref() == Some(&b"aborted"[..]));
    (found.iter().map(|aborted| aborted.first_offset).collect(), has_record)
}

/// The broker forgets aborted transactions when it has compacted their records. The files of a backup still have these
/// records, and so a restored broker still has to know the transactions.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_record_stays_aborted_if_it_is_compacted_between_two_backups() {
    let folder = Folder::new();
    let mut server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    let settings = TopicSettings { segment_bytes: 1 << 20, ..TopicSettings::on_disk() };
    within("a topic", client.create_topic("state", settings)).await.expect("created");
    abort(&mut Raw::connect(&server).await, "state").await;
    let publisher = within("open", client.publisher("state").open()).await.expect("a publisher");
    for i in 0..8000 {
        let record = Record::new("x".repeat(400)).with_key((i % 1000).to_string());
        within("send", publisher.send(&record)).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
    // Compaction changes nothing in the last batch, so the copy of it stays.
    let record = Record::new("last").with_key("last");
    within("a publish", client.publish("state", record)).await.expect("acknowledged");
    let backup = folder.path("backup");
    on(&server, ["backup", path(&backup)]).ok();

    on(&server, ["topic", "alter", "state", "--compact", "yes"]).ok();
    // Pending records of the journal are written to segments now, and not at the next checkpoint.
    server.signal(Signal::TERM);
    assert!(server.ended().await.success());
    server.start_again();
    let mut raw = Raw::connect(&server).await;
    until("the aborted record is compacted", async || aborted(&mut raw, "state").await == (Vec::new(), false)).await;
    let client = server.client("tcp").await;
    let record = Record::new("new").with_key("new");
    within("a publish", client.publish("state", record)).await.expect("acknowledged");
    // Twice: the last one continues what the one before has kept.
    for _ in 0..2 {
        let continued = on(&server, ["--json", "backup", path(&backup)]).json();
        assert!(continued["kept_bytes"].as_u64() > Some(1 << 20), "nothing is kept: {continued}");
    }
    drop(server);
    restore(&backup, &folder.path("restored")).ok();
    let restored = serve(&folder.path("restored"));
    let mut raw = Raw::connect(&restored).await;
    let (transactions, has_record) = aborted(&mut raw, "state").await;
    // It may have compacted the record by now.
    assert!(transactions == [0] || !has_record, "an aborted record is committed: {transactions:?}");
}

/// The backup of a cluster is that of one broker: its batches lose the terms of the leaders.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_is_restored_from_the_backup_of_a_cluster() {
    let mut cluster = Cluster::start(3).await;
    let folder = Folder::new();
    let backup = folder.path("backup");
    let first = cluster.leader().await;
    publish(&cluster.client(first).await, "orders", 100, 1000).await;
    tokio::task::block_in_place(|| cluster.on(first, &["backup", path(&backup)]).ok());
    // Another leader continues it, through the door of a node that does not lead.
    cluster.kill(first);
    until("another leader", async || cluster.leader().await != first).await;
    let leader = cluster.leader().await;
    publish(&cluster.client(leader).await, "orders", 50, 1000).await;
    let other = cluster.followers().await.into_iter().find(|node| *node != first).expect("a follower");
    let second = tokio::task::block_in_place(|| cluster.on(other, &["--json", "backup", path(&backup)]).json());
    let received = second["received_bytes"].as_u64().expect("a number");
    assert!(received < 80_000 && second["kept_bytes"].as_u64() > Some(100_000), "{second}");
    let records = read(&cluster.client(leader).await, "orders").await;
    assert_eq!(records.len(), 150);
    thalweg(["backup", "verify", path(&backup)]).ok();
    restore(&backup, &folder.path("restored")).ok();
    let restored = serve(&folder.path("restored"));
    assert_eq!(read(&restored.client("tcp").await, "orders").await, records);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_the_previous_backup_stays() {
    let Some(disk) = super::full_disk::SmallDisk::new() else { return };
    let folder = Folder::new();
    let server = serve(&folder.path("data"));
    let client = server.client("tcp").await;
    publish(&client, "orders", 100, 1000).await;
    let backup = disk.path().join("backup");
    on(&server, ["backup", path(&backup)]).ok();
    let free = disk.free_bytes().saturating_sub(1 << 20);
    std::fs::write(disk.path().join("filler"), vec![1; free as usize]).expect("written");
    publish(&client, "orders", 4000, 1000).await;
    let failure = on(&server, ["backup", path(&backup)]).failed(FAILED);
    assert!(failure.contains("is full"), "{failure}");
    thalweg(["backup", "verify", path(&backup)]).ok();
    std::fs::remove_file(disk.path().join("filler")).expect("removed");
    on(&server, ["backup", path(&backup)]).ok();
    thalweg(["backup", "verify", path(&backup)]).ok();
}
