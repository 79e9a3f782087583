//! A data directory of an older version opens with all that it holds.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::{Broker, Clock, LoginSource, Settings};
use engine::cache::Found;
use engine::groups::GroupName;
use engine::mesh::MeshMode;
use engine::queue::Phase;
use engine::security::{AclFilter, UserName};
use engine::streams::EntryId;
use engine::{RecordBatch, TopicName, TopicPartition};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::support::within;

/// Directory that `tests/testdata/make.sh` made with the program of commit 52058d0, and killed.
const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testdata/made-by-52058d0.tar.gz");

/// Time at which the directory was made, in ms since 1970. The leases in it end an hour later.
const MADE_MS: u64 = 1_795_716_616_390;

fn open(dir: &Path, now_ms: fn() -> u64) -> Arc<Broker> {
    let clock = Clock::reading(now_ms);
    let stored = Store::open(Arc::new(RealDisk), dir, StoreSettings::default(), clock.read(), &mut |_| {});
    let settings = Settings { clock, ..Settings::default() };
    Broker::start_with(settings, &[Handle::current()], Some(stored.expect("opened"))).expect("started")
}

/// Returns the keys and values of a partition.
async fn records(broker: &Broker, topic: &str, partition: u32) -> Vec<(String, String)> {
    let fetched = broker.fetch(topic, partition, 0, 1 << 20, Duration::ZERO);
    let fetched = within("a fetch", fetched).await.expect("readable");
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).expect("UTF-8");
    let of_batch = |batch: &RecordBatch| {
        let records = batch.records().expect("whole");
        records.iter().map(|record| record.expect("whole")).map(|r| (text(r.key), text(r.value))).collect::<Vec<_>>()
    };
    fetched.batches.iter().filter(|batch| !batch.is_control()).flat_map(of_batch).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn check(broker: &Arc<Broker>) {
    assert_eq!(records(broker, "orders", 0).await, pairs(&[("key 2", "order 2"), ("key 4", "order 4")]));
    assert_eq!(records(broker, "orders", 1).await, pairs(&[("key 1", "order 1"), ("key 3", "order 3")]));
    assert_eq!(records(broker, "orders", 2).await, pairs(&[("key 5", "order 5")]));
    assert_eq!(records(broker, "latest", 0).await.last(), pairs(&[("key", "value 3")]).last());
    assert_eq!(records(broker, "table", 0).await, pairs(&[("", "a row")]));
    assert_eq!(records(broker, "committed", 0).await, pairs(&[("", "in a transaction")]));
    assert!(broker.describe_topic("deleted").is_err());

    let peeked = broker.queues.peek("jobs", None, 10).await.expect("readable");
    let states: Vec<_> =
        peeked.iter().map(|one| (String::from_utf8_lossy(one.message.body()).into_owned(), one.phase)).collect();
    assert_eq!(states, [("second".to_owned(), Phase::Leased), ("third".to_owned(), Phase::Waiting)]);

    let at = TopicPartition { topic: TopicName::parse("orders").expect("a name"), partition: 1 };
    let billing = GroupName::parse("billing").expect("a name");
    let offsets = broker.groups.committed_offsets(&billing, Some(std::slice::from_ref(&at))).await.expect("readable");
    assert_eq!(offsets.iter().map(|(at, committed)| (at, committed.offset)).collect::<Vec<_>>(), [(&at, 1)]);

    let ann = UserName::parse("ann").expect("a name");
    let source = LoginSource { door: broker::Door::Kafka, address: None };
    broker.security.log_in(ann, "secret".into(), source).await.expect("the password");
    assert_eq!(broker.security.acls(&AclFilter::default()).await.expect("readable").len(), 1);

    let sessions = broker.caches.open("sessions").expect("a cache");
    let value = |key: &str| {
        let bytes = |found: Found<'_>| found.value.bytes().expect("bytes").to_vec();
        sessions.get(key.as_bytes(), |found| found.map(bytes)).expect("free")
    };
    assert_eq!((value("alice"), value("bob")), (Some(b"one coffee".to_vec()), None));

    let visits = broker.streams.get("visits").expect("known").expect("a stream");
    let visits = visits.lock().await.expect("restored");
    let ids = [1, 2].map(|seq| EntryId::new(1, seq));
    let entries = visits.range(EntryId::ZERO, EntryId::MAX, 10).await.expect("readable");
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    let group = visits.group(b"readers").expect("a group");
    assert_eq!((group.last(), group.pending_count()), (ids[0], 1));
    assert!(group.pending(ids[0]).is_some_and(|pending| *pending.consumer == *b"one"));
}

fn unpack(archive: &str) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let unpacked = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status();
    assert!(unpacked.expect("tar").success());
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_an_older_version_opens_with_all_that_it_holds() {
    let dir = unpack(ARCHIVE);
    // Opened again, it has what this version wrote.
    for _ in 0..2 {
        let broker = open(&dir.path().join("data"), || MADE_MS);
        broker.security.open().await.expect("read");
        broker.caches.restore().await.expect("restored");
        broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
        check(&broker).await;
        broker.stop().expect("stopped");
    }
}

/// Directory that `cargo xtask fixtures 0.1.0` made, and the time at which it was made.
const OF_0_1_0: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testdata/made-by-0.1.0.tar.gz");
static OF_0_1_0_MS: AtomicU64 = AtomicU64::new(0);

async fn check_0_1_0(broker: &Arc<Broker>) {
    let of = |i: u32| (format!("key {i}"), format!("order {i}"));
    // The first record was deleted.
    assert_eq!(broker.describe_topic("orders").expect("there").partitions[0].start, 1);
    let fetched = within("a fetch", broker.fetch("orders", 0, 1, 1 << 20, Duration::ZERO)).await.expect("readable");
    assert_eq!(fetched.batches.iter().map(|batch| batch.count()).sum::<u32>(), 1);
    assert_eq!(records(broker, "orders", 1).await, [of(1), of(4)]);
    assert_eq!(records(broker, "orders", 2).await, [of(2), of(5)]);
    let codecs = records(broker, "codecs", 0).await;
    let names = ["none", "gzip", "snappy", "lz4", "zstd"].map(|name| (String::new(), name.repeat(50)));
    assert_eq!(codecs, names);
    assert_eq!(records(broker, "latest", 0).await.last(), pairs(&[("key", "value 2")]).last());
    assert_eq!(records(broker, "rows", 0).await, pairs(&[("", "a row")]));
    assert_eq!(records(broker, "shared", 0).await, pairs(&[("", "for all sites")]));
    assert_eq!(broker.describe_topic("shared").expect("there").settings.mesh, MeshMode::Live);
    assert!(broker.describe_topic("deleted").is_err() && broker.describe_topic("volatile").is_err());
    // Whole transactions, and the open one that holds up readers of committed records.
    let accounts = records(broker, "accounts", 0).await;
    assert_eq!(accounts, pairs(&[("", "committed"), ("", "aborted"), ("", "open")]));
    let extent = &broker.describe_topic("accounts").expect("there").partitions[0];
    assert!(extent.end > 4, "markers follow the records: {}", extent.end);

    let peeked = broker.queues.peek("jobs", None, 10).await.expect("readable");
    let states: Vec<_> =
        peeked.iter().map(|one| (String::from_utf8_lossy(one.message.body()).into_owned(), one.phase)).collect();
    let phases = [("leased", Phase::Leased), ("waiting", Phase::Waiting), ("delayed", Phase::Delayed)];
    assert_eq!(states, phases.map(|(body, phase)| (body.to_owned(), phase)));

    let at = TopicPartition { topic: TopicName::parse("orders").expect("a name"), partition: 1 };
    let billing = GroupName::parse("billing").expect("a name");
    let offsets = broker.groups.committed_offsets(&billing, Some(std::slice::from_ref(&at))).await.expect("readable");
    assert_eq!(offsets.iter().map(|(at, committed)| (at, committed.offset)).collect::<Vec<_>>(), [(&at, 1)]);

    let ann = UserName::parse("ann").expect("a name");
    let source = LoginSource { door: broker::Door::Kafka, address: None };
    broker.security.log_in(ann.clone(), "secret".into(), source).await.expect("the password");
    assert_eq!(broker.security.acls(&AclFilter::default()).await.expect("readable").len(), 1);
    let members = broker.security.members().await.expect("readable");
    assert_eq!(members.iter().map(|(user, roles)| (user, roles.len())).collect::<Vec<_>>(), [(&ann, 1)]);
    assert_eq!(broker.security.access_keys().await.expect("readable").len(), 1);
    let tenants = broker.security.tenants().await.expect("readable");
    let tenants: Vec<_> = tenants.iter().map(|(user, tenant)| (user.as_str(), tenant.as_str())).collect();
    assert_eq!(tenants, [("kim", "acme")]);
    assert!(broker.documents.get("mesh", "identity").await.expect("readable").is_some());

    let sessions = broker.caches.open("sessions").expect("a cache");
    let value = |key: &str| {
        let bytes = |found: Found<'_>| found.value.bytes().expect("bytes").to_vec();
        sessions.get(key.as_bytes(), |found| found.map(bytes)).expect("free")
    };
    assert_eq!((value("alice"), value("bob")), (Some(b"one coffee".to_vec()), None));
    assert_eq!(sessions.get(b"visits", |found| found.is_some()), Ok(true));

    let visits = broker.streams.get("visits").expect("known").expect("a stream");
    let visits = visits.lock().await.expect("restored");
    let ids = [1, 2].map(|seq| EntryId::new(1, seq));
    let entries = visits.range(EntryId::ZERO, EntryId::MAX, 10).await.expect("readable");
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    let group = visits.group(b"readers").expect("a group");
    assert_eq!((group.last(), group.pending_count()), (ids[0], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_version_0_1_0_opens_with_all_that_it_holds() {
    let dir = unpack(OF_0_1_0);
    let made_ms = std::fs::read_to_string(dir.path().join("made_ms")).expect("a file").parse().expect("a number");
    OF_0_1_0_MS.store(made_ms, Ordering::Relaxed);
    // Opened again, it has what this version wrote.
    for _ in 0..2 {
        let broker = open(&dir.path().join("data"), || OF_0_1_0_MS.load(Ordering::Relaxed));
        broker.security.open().await.expect("read");
        broker.caches.restore().await.expect("restored");
        broker.restore_streams(|name| ("db0".to_owned(), name.into())).await.expect("restored");
        check_0_1_0(&broker).await;
        broker.stop().expect("stopped");
    }
}
