//! A publisher over a connection that breaks: each record is in the log once and in order, and its outcome is true.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::{
    Acks, Client, ClientSettings, Codec, Delivered, Delivery, ErrorKind, Overflow, Partitioner, Publisher,
    PublisherBuilder, Record, RetryClass, Start, Storage, TopicSettings,
};
use engine::Producer;
use futures_util::FutureExt;
use rustix::process::Signal;

use super::producers::numbered;
use crate::support::proxy::Proxy;
use crate::support::raw::{self, Raw};
use crate::support::reading::{subscribe, take, text, values};
use crate::support::server::{Launch, PATIENCE, Server, connect, metric, until, within};

async fn open(builder: PublisherBuilder) -> Publisher {
    within("publisher", builder.open()).await.expect("open")
}

async fn send(publisher: &Publisher, value: impl ToString, key: &str) -> Delivery {
    let record = Record::new(value.to_string()).with_key(key.to_owned());
    within("send", publisher.send(&record)).await.expect("sent")
}

async fn flush(publisher: &Publisher) {
    within("flush", publisher.flush()).await.expect("acknowledged");
}

async fn create(client: &Client, partitions: u32) {
    let settings = TopicSettings { partitions, ..TopicSettings::default() };
    within("create", client.create_topic("t", settings)).await.expect("created");
}

/// Returns all records of a topic, by partition in the order of their offsets. It may include concurrent records.
async fn log(client: &Client) -> HashMap<u32, Vec<String>> {
    let info = within("describe", client.describe_topic("t")).await.expect("a topic");
    let mut log: HashMap<u32, Vec<String>> = HashMap::new();
    let mut all = subscribe(client, "t", Start::Earliest).await;
    let is_whole = |log: &HashMap<u32, Vec<String>>| {
        let count = |partition: u32| log.get(&partition).map_or(0, Vec::len) as u64;
        (0..).zip(&info.partitions).all(|(partition, info)| count(partition) >= info.end)
    };
    while !is_whole(&log) {
        let message = take(&mut all, 1).await.remove(0);
        let partition = log.entry(message.partition).or_default();
        assert_eq!(partition.len() as u64, message.record.offset);
        partition.push(text(message.record.value()));
    }
    log
}

/// Returns limits that suffice for opening a publisher, and then cut the connection after various responses.
fn cuts() -> Vec<usize> {
    (0..40).map(|i| 300 + i * 61 % 700).collect()
}

const RECORDS: usize = 4_000;
const KEYS: usize = 5;

/// Opens a publisher of many small batches, several of which are in flight when the connection breaks.
async fn hasty(proxy: &Proxy, is_idempotent: bool) -> Publisher {
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let publisher = client.publisher("t").batch_bytes(200).idempotent(is_idempotent);
    open(publisher.delivery_timeout(PATIENCE)).await
}

/// Sends numbers with keys, and breaks the connection from time to time.
async fn send_all(publisher: &Publisher, proxy: &Proxy) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for i in 0..RECORDS {
        deliveries.push(send(publisher, i, &format!("key-{}", i % KEYS)).await);
        if i % 500 == 250 {
            proxy.cut();
        }
        if i % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    deliveries
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_stored_once_and_in_order() {
    let server = Server::start();
    let near = server.client("tcp").await;
    create(&near, 3).await;
    let proxy = Proxy::start(server.address, cuts()).await;
    let publisher = hasty(&proxy, true).await;
    let deliveries = send_all(&publisher, &proxy).await;
    flush(&publisher).await;
    assert!(proxy.connections() > 10, "it was cut {} times", proxy.connections());
    assert!(metric(&near, "thalweg_publish_duplicates_total").await > 0, "nothing was sent again");
    check_all_stored_once(&near, &deliveries).await;
}

/// Checks that the log contains exactly the records of these deliveries, in the order of their numbers.
async fn check_all_stored_once(near: &Client, deliveries: &[Delivery]) {
    let log = log(near).await;
    assert_eq!(log.values().map(Vec::len).sum::<usize>(), deliveries.len());
    for (i, delivery) in deliveries.iter().enumerate() {
        let Delivered { partition, offset, .. } = within("an outcome", delivery.delivered()).await.expect("delivered");
        assert_eq!(log[&partition][offset as usize], i.to_string());
    }
    for (partition, values) in &log {
        assert!(values.is_sorted_by_key(|value| value.parse::<usize>().expect("a number")), "partition {partition}");
    }
}

/// The broker is killed repeatedly during publishes to its disk over a connection that breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_takes_no_record_twice() {
    let data = tempfile::tempdir().expect("a folder");
    let set = vec![format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let near = server.client("tcp").await;
    let settings = TopicSettings { partitions: 3, storage: Storage::Disk, ..TopicSettings::default() };
    within("create", near.create_topic("t", settings)).await.expect("created");
    near.close().await;
    let proxy = Proxy::start(server.address, cuts()).await;
    let publisher = hasty(&proxy, true).await;
    let mut deliveries = Vec::new();
    let mut duplicates = 0;
    for i in 0..RECORDS {
        deliveries.push(send(&publisher, i, &format!("key-{}", i % KEYS)).await);
        if i % 10 == 0 {
            tokio::task::yield_now().await;
        }
        if i % 600 == 300 {
            let near = server.client("tcp").await;
            duplicates += metric(&near, "thalweg_publish_duplicates_total").await;
            near.close().await;
            server.crash_and_restart();
        }
    }
    flush(&publisher).await;
    let near = server.client("tcp").await;
    duplicates += metric(&near, "thalweg_publish_duplicates_total").await;
    assert!(duplicates > 0, "nothing was sent again");
    check_all_stored_once(&near, &deliveries).await;
}

/// Without sequence numbers, a batch that may be in the log is not sent again, and its sender receives an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_idempotence_no_record_is_stored_twice() {
    let server = Server::start();
    let near = server.client("tcp").await;
    create(&near, 3).await;
    let proxy = Proxy::start(server.address, cuts()).await;
    let publisher = hasty(&proxy, false).await;
    let deliveries = send_all(&publisher, &proxy).await;
    let error = within("flush", publisher.flush()).await.expect_err("some were lost");
    assert_eq!(error.kind, ErrorKind::Disconnected, "{error}");

    let log = log(&near).await;
    let mut seen = HashMap::new();
    for (partition, values) in &log {
        for (offset, value) in values.iter().enumerate() {
            assert_eq!(seen.insert(value.clone(), (*partition, offset)), None, "{value} is there twice");
        }
    }
    let mut lost = 0;
    for (i, delivery) in deliveries.iter().enumerate() {
        match within("an outcome", delivery.delivered()).await {
            Ok(delivered) => assert_eq!(seen[&i.to_string()], (delivered.partition, delivered.offset as usize)),
            Err(error) => {
                assert_eq!(error.retry_class(), RetryClass::OutcomeUnknown, "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0, "no answer was lost");
    assert_eq!(metric(&near, "thalweg_publish_duplicates_total").await, 0);
    send(&publisher, "after", "key").await;
    flush(&publisher).await;
}

/// A write fails before the reader notices: with only one thread, the publisher yields to the reader.
#[test]
fn a_write_that_fails_does_not_keep_the_thread() {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut server = Server::start();
            let client = server.client("tcp").await;
            let publisher = client.publisher("t").idempotent(false).batch_bytes(1);
            let publisher = open(publisher.delivery_timeout(Duration::from_millis(300))).await;
            send(&publisher, "before", "key").await;
            flush(&publisher).await;
            server.crash();
            for i in 0..10 {
                send(&publisher, i, "key").await;
            }
            let error = within("flush", publisher.flush()).await.expect_err("no server runs");
            assert_eq!(error.retry_class(), RetryClass::OutcomeUnknown, "{error}");
        });
        ended.send(()).expect("the test waits");
    });
    end.recv_timeout(PATIENCE).expect("the thread goes on");
}

/// Each codec over the same connection: the received records are the sent ones, and the log is smaller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_batches_survive_the_wire_too() {
    for codec in Codec::ALL {
        let server = Server::start();
        let near = server.client("tcp").await;
        let proxy = Proxy::start(server.address, vec![330, 400, 470]).await;
        let client = connect(&proxy.url(), ClientSettings::default()).await;
        let publisher = open(client.publisher("t").compression(codec).batch_bytes(2_000)).await;
        let mut plain_bytes = 0;
        let sent: Vec<String> = (0..1_000).map(|i| format!("{i}: a value like all the others")).collect();
        for value in &sent {
            plain_bytes += value.len();
            send(&publisher, value, "key").await;
        }
        flush(&publisher).await;
        assert_eq!(log(&near).await[&0], sent, "{}", codec.name());
        let bytes = metric(&near, "thalweg_published_bytes_total").await as usize;
        assert_eq!(bytes < plain_bytes, codec != Codec::None, "{}: {bytes} of {plain_bytes}", codec.name());
    }
}

/// A handle and a callback receive the same outcome for each record, in any partition.
#[tokio::test]
async fn the_outcome_of_each_record_is_told() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, 2).await;
    let publisher = open(client.publisher("t").acks(Acks::Accepted)).await;
    let (told, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    let mut deliveries = Vec::new();
    for i in 0..100 {
        let record = Record::new(i.to_string()).with_key(format!("key-{}", i % 7));
        deliveries.push(within("send", publisher.send(&record)).await.expect("sent"));
        let told = told.clone();
        let tell = move |outcome: client::Result<Delivered>| drop(told.send((i, outcome)));
        within("send", publisher.send_then(&record, tell)).await.expect("sent");
    }
    flush(&publisher).await;
    let log = log(&client).await;
    for (i, delivery) in deliveries.iter().enumerate() {
        let delivered = within("an outcome", delivery.delivered()).await.expect("delivered");
        assert_eq!(log[&delivered.partition][delivered.offset as usize], i.to_string());
        assert_eq!(delivery.delivered().now_or_never(), Some(Ok(delivered)), "as often as it is asked");
    }
    for _ in 0..100 {
        let (i, outcome) = within("an outcome", outcomes.recv()).await.expect("told");
        let delivered = outcome.expect("delivered");
        assert_eq!(log[&delivered.partition][delivered.offset as usize], i.to_string());
    }
    // A record without a requested acknowledgement has no known position.
    let silent = open(client.publisher("t").acks(Acks::None)).await;
    let delivery = send(&silent, "silent", "key").await;
    assert_eq!(within("an outcome", delivery.delivered()).await.map_err(|e| e.kind), Err(ErrorKind::Invalid));
}

/// Records that cannot be sent fail after their timeout, and are not in the log.
#[tokio::test]
async fn records_are_given_up_in_time() {
    let server = Server::start();
    let near = server.client("tcp").await;
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let publisher = open(client.publisher("t").delivery_timeout(Duration::from_millis(300))).await;
    send(&publisher, "before", "key").await;
    flush(&publisher).await;
    proxy.go_down();
    let given_up = send(&publisher, "given up", "key").await;
    let error = within("an outcome", given_up.delivered()).await.expect_err("no server runs");
    assert!(matches!(error.kind, ErrorKind::Timeout | ErrorKind::Disconnected), "{error}");
    assert!(within("flush", publisher.flush()).await.is_err());
    proxy.go_up();
    until("it is back", async || {
        send(&publisher, "after", "key").await;
        within("flush", publisher.flush()).await.is_ok()
    })
    .await;
    let log = log(&near).await;
    assert_eq!((log[&0][0].as_str(), log[&0][1].as_str()), ("before", "after"));
    assert!(!log[&0].contains(&"given up".to_owned()), "{log:?}");
}

/// The buffer is limited: if the broker accepts nothing, the publisher waits, and later continues.
#[tokio::test]
async fn a_full_buffer_holds_the_program_back() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let publisher = open(client.publisher("t").buffer_bytes(100_000)).await;
    server.freeze();
    let record = Record::new(vec![b'x'; 1_000]);
    let mut sent = 0;
    while publisher.send(&record).now_or_never().is_some() {
        sent += 1;
        assert!(sent < 200, "nothing holds it back");
        tokio::task::yield_now().await;
    }
    assert!(sent >= 90, "it was held back after {sent}");
    let waiting = publisher.send(&record);
    server.signal(Signal::CONT);
    within("room", waiting).await.expect("sent");
    flush(&publisher).await;
    assert_eq!(log(&client).await[&0].len(), sent + 1);
    // A record larger than the buffer is sent nevertheless.
    within("publish", publisher.publish(&Record::new(vec![b'x'; 300_000]))).await.expect("published");
}

/// A temporarily refused batch is sent again in order.
#[tokio::test]
async fn temporarily_refused_batches_are_stored_in_order() {
    let server = Server::with(&["publish_queue_wait_timeout_ms=1"]);
    let client = server.client("tcp").await;
    let mut slow = Raw::open(server.address).await;
    slow.subscribe(raw::subscribe("t", Overflow::Block, 1, 1)).await;
    let publisher = open(client.publisher("t").batch_bytes(1)).await;
    for i in 0..20 {
        send(&publisher, i, "key").await;
    }
    until("the broker is busy", async || metric(&client, "thalweg_publish_errors_total").await > 0).await;
    slow.grant(1, 1 << 20).await;
    flush(&publisher).await;
    assert_eq!(log(&client).await[&0], (0..20).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// If a partition no longer knows the publisher, it continues with a new identity, invisibly to the program.
#[tokio::test]
async fn a_publisher_that_was_forgotten_goes_on() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let publisher = open(client.publisher("t")).await;
    within("publish", publisher.publish(&Record::new("first"))).await.expect("published");
    // The topic is a new one.
    within("delete", client.delete_topic("t")).await.expect("deleted");
    for value in ["a", "b"] {
        within("publish", publisher.publish(&Record::new(value))).await.expect("published");
    }
    // Enough other producers to evict the one that was idle the longest.
    let mut crowd = Raw::open(server.address).await;
    for id in 0..engine::limits::PRODUCERS_MAX as i64 {
        crowd.send(&numbered("t", Some(0), Producer { id, epoch: 0, sequence: 0 }, &["crowd"])).await;
    }
    crowd.answer_all().await;
    for value in ["c", "d"] {
        within("publish", publisher.publish(&Record::new(value))).await.expect("published");
    }
    let all = &log(&client).await[&0];
    let ours: Vec<&String> = all.iter().filter(|value| *value != "crowd").collect();
    assert_eq!(ours, ["a", "b", "c", "d"]);
}

/// A batch that is permanently refused fails alone; later batches arrive.
#[tokio::test]
async fn a_refused_batch_does_not_hold_up_the_rest() {
    let server = Server::with(&["auto_create_topics=false"]);
    let client = server.client("tcp").await;
    let publisher = open(client.publisher("t").batch_bytes(1)).await;
    let mut failed = Vec::new();
    for i in 0..10 {
        failed.push(send(&publisher, i, "key").await);
    }
    for delivery in failed {
        let outcome = within("an outcome", delivery.delivered()).await;
        assert_eq!(outcome.map_err(|e| e.kind), Err(ErrorKind::NotFound));
    }
    create(&client, 1).await;
    for i in 10..20 {
        send(&publisher, i, "key").await;
    }
    let error = within("flush", publisher.flush()).await.expect_err("ten were refused");
    assert!(error.message.starts_with("10 batches failed"), "{error}");
    assert_eq!(log(&client).await[&0], (10..20).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// A publisher with a linger time gathers records while more arrive, and does not delay a lone record.
#[tokio::test]
async fn lingering_gathers_and_delays_nobody() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let publisher = open(client.publisher("t").linger(Duration::from_secs(3_600))).await;
    let lone = send(&publisher, "lone", "key").await;
    within("an outcome", lone.delivered()).await.expect("delivered");
    let before = metric(&client, "thalweg_published_batches_total").await;
    server.freeze();
    assert!(publisher.publish(&Record::new("on the way")).now_or_never().is_none(), "no server answers");
    let mut last = send(&publisher, 0, "key").await;
    for i in 1..299 {
        last = send(&publisher, i, "key").await;
        tokio::task::yield_now().await;
    }
    server.signal(Signal::CONT);
    within("an outcome", last.delivered()).await.expect("delivered");
    // Earlier records arrived together, so these wait for more.
    for i in 0..10 {
        send(&publisher, i, "key").await;
        tokio::task::yield_now().await;
    }
    flush(&publisher).await;
    assert_eq!(metric(&client, "thalweg_published_batches_total").await - before, 3);
    assert_eq!(log(&client).await[&0].len(), 311);
}

/// Records go to the requested partitions.
#[tokio::test]
async fn records_go_where_they_are_sent() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, 4).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let by_length = move |record: &Record, partitions: u32| {
        counted.fetch_add(1, Ordering::Relaxed);
        record.value().len() as u32 % partitions
    };
    let custom = open(client.publisher("t").partitioner(Partitioner::Custom(Arc::new(by_length)))).await;
    for (value, partition) in [("", 0), ("a", 1), ("abc", 3), ("abcde", 1)] {
        let delivered = within("an outcome", send(&custom, value, "key").await.delivered()).await;
        assert_eq!(delivered.map(|delivered| delivered.partition), Ok(partition), "{value}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    let wrong =
        open(client.publisher("t").partitioner(Partitioner::Custom(Arc::new(|_, partitions| partitions)))).await;
    let refused = within("send", wrong.send(&Record::new("x"))).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    // Keys are ignored; after each batch of records the next partition is used, however slowly they arrive.
    let sticky = open(client.publisher("t").partitioner(Partitioner::Sticky).batch_bytes(500)).await;
    let mut seen = HashMap::new();
    for i in 0..200 {
        let delivered = within("an outcome", send(&sticky, i, "key").await.delivered()).await.expect("delivered");
        *seen.entry(delivered.partition).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// A publisher that is dropped settles its unsent records.
#[tokio::test]
async fn a_dropped_publisher_fails_its_unsent_records() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let publisher = open(client.publisher("t")).await;
    let record = Record::new("never sent");
    let delivery = publisher.send(&record).now_or_never().expect("there is room").expect("gathered");
    drop(publisher);
    let outcome = within("an outcome", delivery.delivered()).await;
    assert_eq!(outcome.map_err(|e| e.kind), Err(ErrorKind::Disconnected));
    let again = open(client.publisher("t")).await;
    within("publish", again.publish(&Record::new("sent"))).await.expect("published");
    assert_eq!(values(&mut subscribe(&client, "t", Start::Earliest).await, 1).await, ["sent"]);
}
