//! Tests of queues through crashes, restarts, abandoned calls, and waits that must not be forgotten.

use engine::{RecordBatch, RecordView};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::queue::{DEDUP_WINDOW_MS, DedupRule, MessageId, Order, QueueName, QueueRecord, QueueSettings};
use engine::{Acks, BatchBuilder, ErrorKind, Storage, TopicName, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::fetch::FETCH_WAIT_MAX;
use crate::view::Receipt;
use crate::view::Received;
use crate::{Settings, Wakes};

/// Only reached on failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn in_memory() -> Arc<Broker> {
    Broker::start(Settings::default(), &[Handle::current()]).expect("starts")
}

fn on_disk(dir: &Path) -> Arc<Broker> {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = 1 << 20;
    let begin = Instant::now();
    loop {
        match Store::open(Arc::new(RealDisk), dir, settings, crate::Clock::SYSTEM.read(), &mut |_| {}) {
            // A sweep that runs when a broker is dropped holds the directory until it has finished.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => {
                let opened = Some(opened.expect("opens"));
                return Broker::start_with(Settings::default(), &[Handle::current()], opened).expect("starts");
            }
        }
    }
}

/// Copies the directory in the state that a process leaves if it is killed now.
fn killed(dir: &Path) -> TempDir {
    let left = TempDir::new().expect("a folder");
    copy(dir, left.path());
    left
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

fn topic_name(name: &str) -> TopicName {
    TopicName::parse(name).expect("a name")
}

fn new_queue(name: &str, settings: QueueSettings) -> NewQueue {
    NewQueue { settings, ..NewQueue::new(QueueName::parse(name).expect("a name")) }
}

async fn create(broker: &Broker, name: &str, settings: QueueSettings) {
    broker.queues.create(new_queue(name, settings)).await.expect("created");
}

async fn create_over(broker: &Broker, name: &str, topic: &str, start: QueueStart) {
    let new = NewQueue { topic: Some(topic_name(topic)), start, ..new_queue(name, QueueSettings::default()) };
    broker.queues.create(new).await.expect("created");
}

async fn send(broker: &Broker, queue: &str, message: OutMessage<'_>) -> Sent {
    broker.queues.send(queue, &[message]).await.expect("sent").remove(0).expect("taken")
}

fn message(body: &str) -> OutMessage<'_> {
    OutMessage { body: body.as_bytes(), ..OutMessage::default() }
}

async fn publish(broker: &Broker, topic: &str, bodies: &[&str]) {
    for body in bodies {
        let mut builder = BatchBuilder::new();
        builder.push(crate::Clock::SYSTEM.now_ms() as i64, None, Some(body.as_bytes()), &[]).expect("small");
        let batch = builder.finish().expect("a record");
        broker.publish(topic, None, Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
    }
}

async fn receive(broker: &Arc<Broker>, queue: &str, max: usize) -> Vec<Received> {
    broker.queues.receive(queue, &Receive { max, ..Receive::default() }).await.expect("received")
}

/// Starts a receiver that waits for a message, with a lease longer than any test runs.
fn waiter(broker: &Arc<Broker>, queue: &'static str, wait: Duration) -> tokio::task::JoinHandle<Vec<Received>> {
    let broker = broker.clone();
    let wanted = Receive { wait, lease_ms: Some(600_000), ..Receive::default() };
    tokio::spawn(async move { broker.queues.receive(queue, &wanted).await.expect("received") })
}

async fn until_waiting(broker: &Broker, queue: &str, count: usize) {
    let (cell, _) = broker.queues.cell(queue).await.expect("there");
    while cell.waiting.load(Ordering::SeqCst) < count {
        tokio::task::yield_now().await;
    }
}

async fn in_time<T>(task: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, task).await.expect("in time")
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.message.body()).into_owned()).collect()
}

async fn all(broker: &Broker, queue: &str) -> BTreeSet<String> {
    let peeked = broker.queues.peek(queue, None, 1000).await.expect("seen");
    peeked.iter().map(|peeked| String::from_utf8_lossy(peeked.message.body()).into_owned()).collect()
}

async fn total(broker: &Broker, queue: &str) -> u64 {
    let counts = broker.queues.counts(queue).await.expect("counted");
    counts.visible + counts.in_flight + counts.delayed
}

/// Fixed sequence of random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

/// State that was acknowledged so far.
#[derive(Default)]
struct Promised {
    undone: BTreeSet<String>,
    done: BTreeSet<String>,
    /// Deduplication ids, with the ids of their messages.
    known: BTreeMap<String, MessageId>,
}

/// Checks that the state that a process leaves if it is killed now contains everything that was acknowledged.
async fn check_left(dir: &Path, promised: &Promised, step: usize) {
    let left = killed(dir);
    let broker = on_disk(left.path());
    assert_eq!(all(&broker, "jobs").await, promised.undone, "step {step}");
    assert_eq!(total(&broker, "jobs").await, promised.undone.len() as u64, "step {step}");
    for (id, sent) in &promised.known {
        let again = OutMessage { group: Some(b"x"), dedup: Some(id), ..message("again") };
        let again = send(&broker, "jobs", again).await;
        assert_eq!((again.is_duplicate, again.id), (true, *sent), "step {step}: {id} is known");
    }
    let mut last: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    loop {
        let got = receive(&broker, "jobs", 3).await;
        if got.is_empty() {
            break;
        }
        for one in &got {
            let group = one.message.group().expect("a group").to_vec();
            let body = String::from_utf8_lossy(one.message.body()).into_owned();
            assert!(!promised.done.contains(&body), "step {step}: {body} was done with");
            let before = last.insert(group, body.clone());
            assert!(before.as_ref().is_none_or(|before| *before < body), "step {step}: {before:?} before {body}");
        }
        let receipts: Vec<Receipt> = got.iter().map(|one| one.receipt).collect();
        broker.queues.ack("jobs", &receipts).await.expect("answered");
    }
}

async fn crash_everywhere(seed: u64, storage: Storage) {
    let dir = TempDir::new().expect("a folder");
    let mut dice = Dice(seed);
    let settings =
        QueueSettings { order: Order::Groups, dedup: DedupRule::Queue, is_strict: true, ..QueueSettings::default() };
    let mut broker = on_disk(dir.path());
    broker.queues.create(NewQueue { storage, ..new_queue("jobs", settings) }).await.expect("created");
    let (mut promised, mut held): (Promised, Vec<Received>) = Default::default();
    for step in 0..48 {
        match dice.roll(13) {
            0..=3 => {
                let body = format!("{step:04}");
                let group = ["x", "y", "z"][dice.roll(3)];
                let out = OutMessage { group: Some(group.as_bytes()), dedup: Some(&body), ..message(&body) };
                let sent = send(&broker, "jobs", out).await;
                promised.known.insert(body.clone(), sent.id);
                promised.undone.insert(body);
            }
            4..=6 => held.extend(receive(&broker, "jobs", 1 + dice.roll(3)).await),
            7 | 8 if !held.is_empty() => {
                let one = held.remove(dice.roll(held.len()));
                if broker.queues.ack("jobs", &[one.receipt]).await.expect("answered")[0].is_ok() {
                    let body = String::from_utf8_lossy(one.message.body()).into_owned();
                    promised.undone.remove(&body);
                    promised.done.insert(body);
                }
            }
            9 if !held.is_empty() => {
                let one = held.remove(dice.roll(held.len()));
                broker.queues.nack("jobs", &[(one.receipt, None)]).await.expect("answered");
            }
            10 if step > 20 => {
                broker.queues.purge("jobs").await.expect("purged");
                promised.done.append(&mut promised.undone);
                // All messages may be sent again.
                promised.known.clear();
            }
            11 => {
                broker.stop().expect("stops");
                drop(broker);
                broker = on_disk(dir.path());
            }
            12 => {
                broker.forget_views().await.expect("restored");
                broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
            }
            _ => broker.queues.trim_all(crate::Clock::SYSTEM.now_ms()),
        }
        check_left(dir.path(), &promised, step).await;
    }
    assert!(!promised.done.is_empty() && !promised.known.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_it_is_killed_a_queue_keeps_its_promises() {
    for seed in 0..3 {
        crash_everywhere(seed, Storage::Disk).await;
    }
}

/// A node that stops leading forgets its queues, and restores them when it leads again.
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_queues_are_restored_with_their_leases_and_keep_their_messages() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker, "jobs", QueueSettings::default()).await;
    for body in ["a", "b", "c", "d"] {
        send(&broker, "jobs", message(body)).await;
    }
    let leased = Receive { max: 2, lease_ms: Some(600_000), ..Receive::default() };
    let got = broker.queues.receive("jobs", &leased).await.expect("received");
    broker.queues.ack("jobs", &[got[0].receipt]).await.expect("answered")[0].expect("done with");
    for _ in 0..3 {
        broker.forget_views().await.expect("restored");
        // Nothing is known about the queues now, and nothing is removed for them.
        broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
        assert_eq!(all(&broker, "jobs").await, ["b", "c", "d"].map(str::to_owned).into());
        let counts = broker.queues.counts("jobs").await.expect("counted");
        assert_eq!((counts.visible, counts.in_flight), (2, 1));
    }
    broker.queues.ack("jobs", &[got[1].receipt]).await.expect("answered")[0].expect("its receipt still counts");
    assert_eq!(bodies(&receive(&broker, "jobs", 10).await), ["c", "d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_and_senders_go_on_while_queues_are_forgotten() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker, "jobs", QueueSettings::default()).await;
    let sender = broker.clone();
    let sends = tokio::spawn(async move {
        for i in 0..200 {
            let body = format!("{i:03}");
            // A refused message was not sent.
            while let Err(error) = sender.queues.send("jobs", &[message(&body)]).await {
                assert_eq!(error.kind, ErrorKind::Busy, "{error}");
            }
        }
    });
    let receiver = broker.clone();
    let receives = tokio::spawn(async move {
        let mut done = BTreeSet::new();
        while done.len() < 200 {
            let wanted =
                Receive { wait: Duration::from_millis(100), lease_ms: Some(1000), max: 10, ..Receive::default() };
            match receiver.queues.receive("jobs", &wanted).await {
                Ok(got) => {
                    let receipts: Vec<Receipt> = got.iter().map(|one| one.receipt).collect();
                    let Ok(acked) = receiver.queues.ack("jobs", &receipts).await else { continue };
                    for (body, acked) in bodies(&got).into_iter().zip(acked) {
                        assert!(acked.is_err() || done.insert(body.clone()), "{body} was done with");
                    }
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
            }
        }
    });
    while !receives.is_finished() {
        broker.forget_views().await.expect("restored");
        broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    receives.await.expect("all of them, each once");
    sends.await.expect("sent");
    assert_eq!(total(&broker, "jobs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_of_a_queue_and_its_purges_survive_a_kill() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    broker.create_topic("log", TopicSettings::on_disk()).await.expect("created");
    publish(&broker, "log", &["a", "b"]).await;
    create_over(&broker, "live", "log", QueueStart::Live).await;
    create_over(&broker, "purged", "log", QueueStart::Earliest).await;
    create_over(&broker, "all", "log", QueueStart::Earliest).await;
    broker.queues.purge("purged").await.expect("purged");
    let left = killed(dir.path());
    let broker = on_disk(left.path());
    assert_eq!(total(&broker, "live").await, 0);
    assert_eq!(total(&broker, "purged").await, 0);
    assert_eq!(total(&broker, "all").await, 2);
    publish(&broker, "log", &["c"]).await;
    assert_eq!(bodies(&receive(&broker, "live", 10).await), ["c"]);
    broker.queues.seek("purged", SeekTo::Earliest).await.expect("sought");
    let left = killed(left.path());
    let broker = on_disk(left.path());
    assert_eq!(bodies(&receive(&broker, "purged", 10).await), ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_messages_are_remembered_for_deduplication() {
    for storage in [Storage::Disk, Storage::Sqlite] {
        let dir = TempDir::new().expect("a folder");
        let broker = on_disk(dir.path());
        let settings = QueueSettings { dedup: DedupRule::Queue, ..QueueSettings::default() };
        broker.queues.create(NewQueue { storage, ..new_queue("jobs", settings) }).await.expect("created");
        let first = send(&broker, "jobs", OutMessage { dedup: Some("1"), ..message("a") }).await;
        let got = receive(&broker, "jobs", 1).await;
        broker.queues.ack("jobs", &[got[0].receipt]).await.expect("answered")[0].expect("done with");
        broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
        broker.stop().expect("stops");
        drop(broker);
        let broker = on_disk(dir.path());
        let again = send(&broker, "jobs", OutMessage { dedup: Some("1"), ..message("a") }).await;
        assert_eq!((again.is_duplicate, again.id), (true, first.id), "{storage:?}");
        assert_eq!(total(&broker, "jobs").await, 0);
        let (_, topic) = broker.queues.cell("jobs").await.expect("there");
        let kept = topic.partitions()[0].extent();
        assert!(kept.end > kept.start, "{DEDUP_WINDOW_MS} ms are not over");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_in_memory_exists_after_a_restart_and_is_empty() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    let new = || NewQueue { storage: Storage::Memory, ..new_queue("quick", QueueSettings::default()) };
    broker.queues.create(new()).await.expect("created");
    send(&broker, "quick", message("a")).await;
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(dir.path());
    broker.queues.create(new()).await.expect("there");
    assert_eq!(total(&broker, "quick").await, 0);
    send(&broker, "quick", message("b")).await;
    assert_eq!(bodies(&receive(&broker, "quick", 10).await), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_about_queues_of_topics_that_are_gone() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    broker.create_topic("log", TopicSettings::on_disk()).await.expect("created");
    create_over(&broker, "view", "log", QueueStart::Earliest).await;
    publish(&broker, "log", &["a", "b"]).await;
    assert_eq!(receive(&broker, "view", 2).await.len(), 2);
    broker.delete_topic("log").await.expect("deleted");
    broker.queues.delete("view").await.expect("deleted");
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(dir.path());
    broker.queues.restored().await.expect("read");
    let kept = broker.topic(engine::queue::QUEUES_TOPIC).expect("there");
    // The change is persisted in the background.
    let forgotten = async {
        loop {
            let mut newest: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
            let each = |_, view: &RecordView<'_>, _: &RecordBatch| {
                let key = view.key.unwrap_or_default();
                let value = view.value;
                if matches!(QueueRecord::decode(key, value)?, QueueRecord::Entry { .. } | QueueRecord::Cursor { .. }) {
                    newest.insert(key.to_vec(), value.is_some());
                }
                Ok(())
            };
            broker.read_records(&kept, each).await.expect("read");
            assert_eq!(newest.len(), 3);
            if newest.values().all(|exists| !exists) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    in_time(forgotten).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_begins_anew_with_a_topic_of_the_name_of_its_own() {
    let dir = TempDir::new().expect("a folder");
    let mut broker = on_disk(dir.path());
    broker.create_topic("log", TopicSettings::on_disk()).await.expect("created");
    create_over(&broker, "view", "log", QueueStart::Earliest).await;
    publish(&broker, "log", &["a", "b"]).await;
    let of_before = broker.queues.get("view").await.expect("there");
    let held = receive(&broker, "view", 1).await;
    let receipt = broker.queues.seal(&of_before, &held[0].receipt).expect("sealed");
    broker.delete_topic("log").await.expect("deleted");
    let sent = broker.queues.send("view", &[message("nowhere")]).await.map(|_| ()).map_err(|error| error.kind);
    assert_eq!(sent, Err(ErrorKind::NotFound));
    broker.create_topic("log", TopicSettings::on_disk()).await.expect("created");
    publish(&broker, "log", &["c", "d"]).await;
    send(&broker, "view", message("e")).await;
    assert_eq!(bodies(&receive(&broker, "view", 1).await), ["c"]);
    for _ in 0..2 {
        let counted = broker.queues.counts("view").await.expect("counted");
        assert_eq!((counted.visible, counted.in_flight), (2, 1));
        let now = broker.queues.get("view").await.expect("there");
        broker.queues.unseal(&now, &receipt).expect_err("it is of a message that is gone");
        broker.stop().expect("stops");
        drop(broker);
        broker = on_disk(dir.path());
    }
    assert_eq!(bodies(&receive(&broker, "view", 10).await), ["d", "e"]);
}

#[tokio::test]
async fn a_topic_that_comes_again_by_itself_has_its_queues() {
    let broker = in_memory();
    publish(&broker, "log", &["a"]).await;
    create_over(&broker, "view", "log", QueueStart::Earliest).await;
    for round in 0..2 {
        broker.delete_topic("log").await.expect("deleted");
        publish(&broker, "log", &["b"]).await;
        if round == 0 {
            create_over(&broker, "view", "log", QueueStart::Earliest).await;
        }
        send(&broker, "view", message("c")).await;
        assert_eq!(bodies(&receive(&broker, "view", 10).await), ["b", "c"]);
        broker.grow_topic("log", 2).await.expect("grown");
        assert_eq!(total(&broker, "view").await, 2);
    }
    broker.delete_topic("log").await.expect("deleted");
    let over = NewQueue { topic: Some(topic_name("log")), ..new_queue("view", QueueSettings::default()) };
    let created = broker.queues.create(over).await.map(drop).map_err(|error| error.kind);
    assert_eq!(created, Err(ErrorKind::NotFound), "there is nothing that it is over");
}

/// Records that one queue has acknowledged are deleted from the topic that it owns once the other queue has
/// acknowledged them, too.
#[tokio::test]
async fn another_queue_over_a_topic_that_came_again_misses_nothing() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    create_over(&broker, "audit", "jobs", QueueStart::Earliest).await;
    broker.queues.delete("jobs").await.expect("deleted");
    create(&broker, "jobs", QueueSettings::default()).await;
    send(&broker, "jobs", message("a")).await;
    let got = receive(&broker, "jobs", 1).await;
    broker.queues.ack("jobs", &[got[0].receipt]).await.expect("answered")[0].expect("acknowledged");
    assert_eq!(bodies(&receive(&broker, "audit", 1).await), ["a"]);
}

#[tokio::test]
async fn a_queue_over_a_topic_in_memory_returns_with_its_topic() {
    let dir = TempDir::new().expect("a folder");
    let in_memory = || TopicSettings { storage: Storage::Memory, ..TopicSettings::default() };
    let broker = on_disk(dir.path());
    broker.create_topic("quick", in_memory()).await.expect("created");
    create_over(&broker, "view", "quick", QueueStart::Earliest).await;
    send(&broker, "view", message("a")).await;
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(dir.path());
    assert_eq!(broker.queues.get("view").await.expect("there").topic.as_str(), "quick");
    let sent = broker.queues.send("view", &[message("nowhere")]).await.map(|_| ()).map_err(|error| error.kind);
    assert_eq!(sent, Err(ErrorKind::NotFound));
    broker.create_topic("quick", in_memory()).await.expect("created");
    send(&broker, "view", message("b")).await;
    assert_eq!(bodies(&receive(&broker, "view", 10).await), ["b"]);
}

#[tokio::test]
async fn no_queue_is_over_a_topic_of_the_broker_itself() {
    let dir = TempDir::new().expect("a folder");
    for broker in [in_memory(), on_disk(dir.path())] {
        create(&broker, "jobs", QueueSettings::default()).await;
        let group = engine::groups::GroupName::parse("g").expect("a name");
        for topic in engine::ids::INTERNAL_TOPICS.map(topic_name) {
            let over = NewQueue { topic: Some(topic.clone()), ..new_queue("own", QueueSettings::default()) };
            let outcome = broker.queues.create(over).await.map(drop).map_err(|error| error.kind);
            assert_eq!(outcome, Err(ErrorKind::Invalid), "{topic}");
            let shared = broker.groups.share_queue(&group, &topic, crate::ShareStart::Earliest).await;
            assert_eq!(shared.map_err(|error| error.kind), Err(ErrorKind::Invalid), "{topic}");
            let dead = QueueSettings { attempts_max: 1, dead_letter: Some(topic.clone()), ..QueueSettings::default() };
            let outcome = broker.queues.create(new_queue("own", dead)).await.map(drop).map_err(|error| error.kind);
            assert_eq!(outcome, Err(ErrorKind::Invalid), "{topic}");
        }
    }
}

#[tokio::test]
async fn messages_removed_by_retention_do_not_block_the_remaining_ones() {
    let broker = in_memory();
    let settings = TopicSettings { retention_bytes: 2000, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("log", settings).await.expect("created");
    create_over(&broker, "view", "log", QueueStart::Earliest).await;
    let bodies_sent: Vec<String> = (0..100).map(|i| format!("{i:03}")).collect();
    publish(&broker, "log", &bodies_sent.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let left = all(&broker, "view").await;
    assert!(left.len() > 1 && left.len() < 50, "{left:?}");
    let first = receive(&broker, "view", 1).await;
    assert_eq!(bodies(&first), left.iter().take(1).cloned().collect::<Vec<_>>());
    assert_eq!(total(&broker, "view").await, left.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_goes_away_takes_nothing_with_it() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    let new = NewQueue { storage: Storage::Sqlite, ..new_queue("jobs", QueueSettings::default()) };
    broker.queues.create(new).await.expect("created");
    send(&broker, "jobs", message("a")).await;
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(dir.path());
    let id = broker.queues.get("jobs").await.expect("there").id;
    let partition = broker.queues.cell("jobs").await.expect("there").1.partitions()[0].clone();
    let leased = || partition.with_view(id, |view, _| view.queue.counts_kept().leased).expect("there");
    let wanted = Receive { lease_ms: Some(600_000), ..Receive::default() };
    let mut given_up = 0;
    let mut attempts = 1;
    while given_up < 20 {
        let mut call = Box::pin(broker.queues.receive("jobs", &wanted));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match call.as_mut().poll(&mut context) {
            // The file was faster this time.
            std::task::Poll::Ready(got) => {
                let receipt = got.expect("received")[0].receipt;
                broker.queues.nack("jobs", &[(receipt, None)]).await.expect("answered")[0].expect("returned");
                attempts += 1;
            }
            // The call waits for the file, with the message leased.
            std::task::Poll::Pending => given_up += u32::from(leased() == 1),
        }
        drop(call);
        assert_eq!(leased(), 0);
    }
    let got = receive(&broker, "jobs", 1).await;
    assert_eq!((bodies(&got), got[0].attempts), (vec!["a".to_owned()], attempts));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_a_file_has_no_more_are_passed() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(dir.path());
    let settings = QueueSettings { order: Order::Groups, ..QueueSettings::default() };
    broker.queues.create(NewQueue { storage: Storage::Sqlite, ..new_queue("jobs", settings) }).await.expect("created");
    for body in ["a", "b", "c", "d"] {
        send(&broker, "jobs", OutMessage { group: Some(body.as_bytes()), ..message(body) }).await;
    }
    let got = receive(&broker, "jobs", 10).await;
    assert_eq!(bodies(&got), ["a", "b", "c", "d"]);
    broker.queues.ack("jobs", &[got[1].receipt, got[3].receipt]).await.expect("answered");
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(dir.path());
    broker.queues.seek("jobs", SeekTo::Earliest).await.expect("sought");
    let again = bodies(&in_time(receive(&broker, "jobs", 10)).await);
    assert!(again.contains(&"a".to_owned()) && again.contains(&"c".to_owned()), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_keeps_the_time_when_those_before_it_have_gone() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    send(&broker, "jobs", message("a")).await;
    let held = Receive { lease_ms: Some(3000), ..Receive::default() };
    assert_eq!(broker.queues.receive("jobs", &held).await.expect("received").len(), 1);
    let short: Vec<_> = (0..5).map(|_| waiter(&broker, "jobs", Duration::from_millis(200))).collect();
    until_waiting(&broker, "jobs", 5).await;
    let long = waiter(&broker, "jobs", FETCH_WAIT_MAX);
    for one in short {
        one.await.expect("ends");
    }
    let got = tokio::time::timeout(FETCH_WAIT_MAX / 2, long).await.expect("not at its own end");
    assert_eq!(bodies(&got.expect("ends")), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_finds_nothing_wakes_no_other() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let waiting: Vec<_> = (0..2).map(|_| waiter(&broker, "jobs", Duration::from_millis(400))).collect();
    until_waiting(&broker, "jobs", 2).await;
    let (cell, _) = broker.queues.cell("jobs").await.expect("there");
    for _ in 0..3 {
        cell.wake_for_change();
    }
    for one in waiting {
        assert!(one.await.expect("ends").is_empty());
    }
    let looks = cell.turn.load(Ordering::SeqCst);
    assert!(looks < 60, "{looks} looks");
}

/// A receiver whose connection accepts no more answers waits, and its task does not check whether it has been woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_wakeup_that_a_receiver_ignores_passes_to_another() {
    for is_keeper in [false, true] {
        let broker = in_memory();
        create(&broker, "jobs", QueueSettings::default()).await;
        if is_keeper {
            send(&broker, "jobs", message("a")).await;
            let held = Receive { lease_ms: Some(2000), ..Receive::default() };
            assert_eq!(broker.queues.receive("jobs", &held).await.expect("received").len(), 1);
        }
        let wanted = Receive { wait: FETCH_WAIT_MAX, lease_ms: Some(600_000), ..Receive::default() };
        let mut idle = Box::pin(broker.queues.receive("jobs", &wanted));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(idle.as_mut().poll(&mut context).is_pending());
        let other = waiter(&broker, "jobs", FETCH_WAIT_MAX);
        until_waiting(&broker, "jobs", 2).await;
        if !is_keeper {
            send(&broker, "jobs", message("a")).await;
        }
        let got = tokio::time::timeout(FETCH_WAIT_MAX / 2, other).await.expect("not at its own end");
        assert_eq!(bodies(&got.expect("ends")), ["a"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wake_as_many_receivers() {
    const COUNT: usize = 3000;
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let waiting: Vec<_> = (0..COUNT).map(|_| waiter(&broker, "jobs", FETCH_WAIT_MAX)).collect();
    until_waiting(&broker, "jobs", COUNT).await;
    // Some receivers disconnect, some of them when they are woken.
    waiting.iter().step_by(3).for_each(tokio::task::JoinHandle::abort);
    let names: Vec<String> = (0..COUNT).map(|i| i.to_string()).collect();
    for part in names.chunks(1000) {
        let messages: Vec<OutMessage<'_>> = part.iter().map(|body| message(body)).collect();
        broker.queues.send("jobs", &messages).await.expect("sent");
    }
    let mut got = BTreeSet::new();
    for one in waiting {
        if let Ok(messages) = in_time(one).await {
            assert_eq!(messages.len(), 1);
            assert!(got.insert(bodies(&messages).remove(0)), "nobody else has it");
        }
    }
    assert!(got.len() >= COUNT * 2 / 3 - 1, "{} woken", got.len());
    let counts = broker.queues.counts("jobs").await.expect("counted");
    assert!(counts.visible + counts.in_flight == COUNT as u64);
    let stats = broker.stats().expect("metrics");
    assert!(stats.contains(&format!("thalweg_queue_visible {}", counts.visible)), "{stats}");
    assert!(stats.contains("thalweg_queue_waiting_receivers 0"), "{stats}");
}

#[tokio::test]
async fn settings_that_a_queue_cannot_guarantee_are_refused() {
    let broker = in_memory();
    let settings = QueueSettings { dedup: DedupRule::Queue, ..QueueSettings::default() };
    let topic = TopicSettings { partitions: 3, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("wide", topic).await.expect("created");
    let over_wide = NewQueue { topic: Some(topic_name("wide")), ..new_queue("q", settings.clone()) };
    assert_eq!(broker.queues.create(over_wide).await.map_err(|error| error.kind), Err(ErrorKind::Invalid));
    create(&broker, "jobs", settings).await;
    let grown = broker.grow_topic("jobs", 2).await.map(|status| status.partitions.len());
    assert_eq!(grown.map_err(|error| error.kind), Err(ErrorKind::Invalid));
    let late = OutMessage { delay_ms: Some(u64::MAX), ..message("late") };
    assert_eq!(broker.queues.send("jobs", &[late]).await.map_err(|error| error.kind), Err(ErrorKind::Invalid));
    // The topic of a queue whose creation was interrupted is owned by the queue when it is created.
    let left = TopicSettings { drop_consumed: true, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("half", left).await.expect("created");
    assert!(broker.queues.create(new_queue("half", QueueSettings::default())).await.expect("created").owns_topic);
}
