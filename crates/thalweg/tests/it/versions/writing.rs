//! Data directory that uses every view, written through the doors that its users have.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use client::{CacheSettings, MeshMode, NewQueue, OutMessage, Receive, Record, TopicSettings, Ttl};
use engine::codec::Codec;
use engine::{BatchBuilder, Producer};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProducerId, TransactionalId,
};
use rustix::process::Signal;

use crate::door::kafka::raw::{Raw, batch, produce, produced, text, topic};
use crate::door::redis::commands::Redis;
use crate::support::command::{feed, on};
use crate::support::server::{Server, within};

/// Writes a directory, kills the broker, so that it has to be recovered from its journal, and packs it. The archive has
/// the time at which it was made, in the file `made_ms`.
pub async fn write_directory(archive: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().join("data").display());
    let set = [data.as_str(), "redis=127.0.0.1:0", "redis_durable=true", "mesh=127.0.0.1:0"];
    let mut server = Server::with(&set);
    topics(&server).await;
    transactions(&server).await;
    // What is written until here is in segments, and the rest in the journal alone.
    server.signal(Signal::TERM);
    assert!(server.ended().await.success());
    server.start_again();
    queues(&server).await;
    tokio::task::block_in_place(|| {
        streams(&server);
        security(&server);
    });
    caches(&server).await;
    server.crash();
    let made_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    // Files of the journal are zeros for the most part, and holes take no space in the archive.
    let packed = folder.path().join("packed");
    std::fs::create_dir(&packed).expect("made");
    let mut copy = Command::new("cp");
    copy.args(["-a", "--sparse=always"]).arg(folder.path().join("data")).arg(&packed);
    assert!(copy.status().expect("cp").success());
    std::fs::write(packed.join("made_ms"), made_ms.to_string()).expect("written");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&packed).args(["--sparse", "--sort=name", "--owner=0", "--group=0", "-czf"]).arg(archive);
    // The reserve is disk space only.
    assert!(tar.args(["--exclude=data/reserve", "data", "made_ms"]).status().expect("tar").success());
}

async fn topics(server: &Server) {
    let client = server.client("tcp").await;
    let create = async |name: &str, settings| {
        within("a topic", client.create_topic(name, settings)).await.expect("created");
    };
    create("orders", TopicSettings { partitions: 2, ..TopicSettings::on_disk() }).await;
    create("codecs", TopicSettings::on_disk()).await;
    create("latest", TopicSettings { compact: true, ..TopicSettings::on_disk() }).await;
    create("rows", TopicSettings { storage: client::Storage::Sqlite, ..TopicSettings::default() }).await;
    create("volatile", TopicSettings { storage: client::Storage::Memory, ..TopicSettings::default() }).await;
    create("shared", TopicSettings { mesh: MeshMode::Live, ..TopicSettings::on_disk() }).await;
    create("deleted", TopicSettings::on_disk()).await;
    within("a growth", client.grow_topic("orders", 3)).await.expect("grown");
    within("a deletion", client.delete_topic("deleted")).await.expect("deleted");
    let mut raw = Raw::connect(server).await;
    let mut send = async |topic: &str, partition: i32, codec: Codec, record: Record| {
        let answer = raw.call(9, produce(topic, partition, -1, batch(codec, &[record]))).await;
        assert_eq!(produced(&answer).0, 0, "{topic}");
    };
    for i in 0..6 {
        let record = Record::new(format!("order {i}")).with_key(format!("key {i}"));
        send("orders", i % 3, Codec::None, record.with_header("n", i.to_string())).await;
    }
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        send("codecs", 0, codec, Record::new(codec.name().repeat(50))).await;
    }
    for i in 0..3 {
        send("latest", 0, Codec::None, Record::new(format!("value {i}")).with_key("key")).await;
    }
    send("rows", 0, Codec::None, Record::new("a row")).await;
    send("volatile", 0, Codec::None, Record::new("lost")).await;
    send("shared", 0, Codec::None, Record::new("for all sites")).await;
    within("a deletion", client.delete_records("orders", 0, 1)).await.expect("deleted");
    tokio::task::block_in_place(|| {
        on(server, ["group", "reset", "billing", "--topic", "orders", "--partition", "1", "--to", "1"]).ok();
        on(server, ["mesh", "init", "berlin"]).ok();
    });
}

/// Writes one transaction that is committed, one that is aborted, and one that stays open.
async fn transactions(server: &Server) {
    let client = server.client("tcp").await;
    within("a topic", client.create_topic("accounts", TopicSettings::on_disk())).await.expect("created");
    let mut raw = Raw::connect(server).await;
    for (name, outcome) in [("committed", Some(true)), ("aborted", Some(false)), ("open", None)] {
        let id = TransactionalId(text(name));
        let begin = InitProducerIdRequest::default()
            .with_transactional_id(Some(id.clone()))
            .with_transaction_timeout_ms(600_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let mut begun = raw.call(3, begin.clone()).await;
        while begun.error_code != 0 {
            // The coordinator loads its state when it is first needed.
            begun = within("a producer", raw.call(3, begin.clone())).await;
        }
        let of = AddPartitionsToTxnTopic::default().with_name(topic("accounts")).with_partitions(vec![0]);
        let add = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(id.clone())
            .with_v3_and_below_producer_id(begun.producer_id)
            .with_v3_and_below_producer_epoch(begun.producer_epoch)
            .with_v3_and_below_topics(vec![of]);
        let added = raw.call(1, add).await;
        assert_eq!(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, 0);
        let producer = Producer { id: begun.producer_id.0, epoch: begun.producer_epoch, sequence: 0 };
        let request = produce("accounts", 0, -1, of_transaction(name, producer));
        assert_eq!(produced(&raw.call(9, request.with_transactional_id(Some(id.clone()))).await).0, 0);
        if let Some(is_committed) = outcome {
            let end = EndTxnRequest::default()
                .with_transactional_id(id)
                .with_producer_id(begun.producer_id)
                .with_producer_epoch(begun.producer_epoch)
                .with_committed(is_committed);
            assert_eq!(raw.call(1, end).await.error_code, 0);
        }
    }
}

fn of_transaction(value: &str, producer: Producer) -> Bytes {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
    let mut builder = BatchBuilder::new();
    builder.push(now_ms, None, Some(value.as_bytes()), &[]).expect("a record");
    let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
    batch.set_transactional();
    batch.into_bytes()
}

/// Writes a message that is acknowledged, one that is leased, one that waits, and one that is delayed.
async fn queues(server: &Server) {
    let client = server.client("tcp").await;
    let settings = vec![("lease_ms".to_owned(), "3600000".to_owned())];
    within("a queue", client.create_queue(NewQueue { settings, ..NewQueue::new("jobs") })).await.expect("created");
    let queue = client.queue("jobs");
    for body in ["done", "leased", "waiting"] {
        let message = OutMessage { body: body.into(), ..OutMessage::default() };
        within("a send", queue.send(message)).await.expect("sent");
    }
    let message = OutMessage { body: "delayed".into(), delay_ms: Some(600_000), ..OutMessage::default() };
    within("a send", queue.send(message)).await.expect("sent");
    let receive = Receive { count_max: 1, outlives_connection: true, ..Receive::default() };
    let received = within("a message", queue.receive(&receive)).await.expect("received").messages;
    within("an acknowledgement", queue.ack(&[received[0].receipt.clone()])).await.expect("acknowledged");
    let received = within("a message", queue.receive(&receive)).await.expect("received").messages;
    assert_eq!(received[0].message.body, "leased");
}

fn streams(server: &Server) {
    let mut redis = Redis::open(server);
    for command in [
        "XADD visits 1-1 page a",
        "XADD visits 1-2 page b",
        "XGROUP CREATE visits readers 0",
        "XREADGROUP GROUP readers one COUNT 1 STREAMS visits >",
        "SET plain value",
    ] {
        let answer = redis.call(command);
        assert!(!answer.starts_with('-'), "{command}: {answer}");
    }
}

fn security(server: &Server) {
    feed(server, ["user", "add", "ann", "--mechanism", "SCRAM-SHA-256"], "secret\n").ok();
    on(server, ["acl", "add", "User:ann", "read", "topic", "orders"]).ok();
    on(server, ["role", "add", "publisher", "ann"]).ok();
    on(server, ["token", "create", "ci", "--role", "publisher"]).ok();
    on(server, ["key", "create", "sam"]).ok();
    on(server, ["tenant", "assign", "acme", "kim"]).ok();
}

async fn caches(server: &Server) {
    let client = server.client("tcp").await;
    let durable = CacheSettings { is_durable: true, ..CacheSettings::default() };
    within("a cache", client.create_cache("sessions", durable)).await.expect("created");
    let cache = client.cache("sessions");
    for (key, value) in [("alice", "one coffee"), ("bob", "one tea")] {
        within("a put", cache.put(key, value)).await.expect("stored");
    }
    within("a deletion", cache.delete("bob")).await.expect("deleted");
    within("a counter", cache.add("visits", 7, Ttl::Never)).await.expect("added");
}
