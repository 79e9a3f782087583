//! Tests of transactions as programs use them: across partitions and groups, against zombies, timeouts and restarts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use engine::groups::Committed;
use engine::{Acks, BatchBuilder, Codec, DraftBatch, Isolation, Offset, Producer, TopicName, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

use super::*;
use crate::Settings;
use crate::broker::Broker;
use crate::fetch::{FetchFrom, FetchLimits};

/// Only reached on failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Timeout of the transactions: shorter than the maximum wait of a fetch.
const TIMEOUT_MS: u32 = 30_000;

fn tid(id: &str) -> TransactionalId {
    TransactionalId::parse(id).expect("an id")
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: TopicName::parse(topic).expect("a name"), partition }
}

fn group() -> GroupName {
    GroupName::parse("g").expect("a name")
}

fn staged(offset: Offset) -> StagedOffsets {
    let committed = Committed { offset, leader_epoch: -1, metadata: "".into(), committed_ms: Clock::SYSTEM.now_ms() };
    [(at("t", 0), committed)].into()
}

fn batch(producer: ProducerEpoch, sequence: i32, value: &str) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    builder.push(1, Some(b"key"), Some(value.as_bytes()), &[]).expect("a small record");
    let producer = Producer { id: producer.id, epoch: producer.epoch, sequence };
    let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
    batch.set_transactional();
    batch
}

async fn in_memory() -> Arc<Broker> {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
    create(&broker).await;
    broker
}

async fn create(broker: &Broker) {
    broker.create_topic("t", TopicSettings { partitions: 3, ..TopicSettings::of_broker() }).await.expect("created");
}

fn on_disk(dir: &Path) -> Arc<Broker> {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = 1 << 20;
    let begin = Instant::now();
    let stored = loop {
        match Store::open(Arc::new(RealDisk), dir, settings, Clock::SYSTEM.read(), &mut |_| {}) {
            // A sweep that runs when a broker is dropped holds the directory until it has finished.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => break opened.expect("opened"),
        }
    };
    Broker::start_with(Settings::default(), &[Handle::current()], Some(stored)).expect("started")
}

/// Returns a copy of the directory in the state that a killed process would leave.
fn killed(dir: &Path) -> tempfile::TempDir {
    let left = tempfile::tempdir().expect("a folder");
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

async fn send(
    broker: &Broker,
    producer: ProducerEpoch,
    partition: u32,
    sequence: i32,
    value: &str,
) -> Result<crate::Published> {
    let batch = batch(producer, sequence, value);
    broker.publish("t", Some(partition), Acks::Committed, batch, &mut Wakes::default()).await
}

/// Returns the committed values of a partition.
async fn committed(broker: &Broker, partition: u32) -> Vec<String> {
    let limits =
        FetchLimits { bytes_min: 0, bytes_max: 1 << 20, wait: Duration::ZERO, isolation: Isolation::Committed };
    let mut values = Vec::new();
    let mut offset = 0;
    loop {
        let from = FetchFrom { topic: "t", partition, offset, bytes_max: 1 << 20 };
        let fetched = broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
        let Some(last) = fetched.batches.last() else {
            return values;
        };
        offset = last.next_offset();
        // As Kafka's consumers do.
        let mut aborted = fetched.aborted.clone();
        aborted.sort_unstable_by_key(|aborted| aborted.first_offset);
        let mut aborted = aborted.into_iter().peekable();
        let mut void = HashSet::new();
        for batch in &fetched.batches {
            while let Some(next) = aborted.next_if(|next| next.first_offset < batch.next_offset()) {
                void.insert(next.producer_id);
            }
            let id = batch.producer().map_or(-1, |producer| producer.id);
            if batch.marker().expect("readable").is_some_and(|marker| marker.decision == Decision::Abort) {
                void.remove(&id);
            }
            if batch.is_transactional() && void.contains(&id) {
                continue;
            }
            for view in &batch.records().expect("readable") {
                values.push(String::from_utf8_lossy(view.expect("readable").value.unwrap_or_default()).into_owned());
            }
        }
    }
}

async fn group_offset(broker: &Broker) -> Option<Offset> {
    let offsets = broker.groups.committed_offsets(&group(), None).await.expect("readable");
    offsets.first().map(|(_, committed)| committed.offset)
}

fn reason<T: std::fmt::Debug>(outcome: Outcome<T>) -> TransactionReason {
    outcome.expect_err("refused").reason
}

#[tokio::test]
async fn all_of_a_transaction_counts_or_nothing() {
    let broker = in_memory().await;
    let id = tid("a");
    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    for (round, decision) in [Decision::Commit, Decision::Abort, Decision::Commit].into_iter().enumerate() {
        broker.transactions.add_partitions(&id, producer, &[at("t", 0), at("t", 1)]).await.expect("added");
        broker.transactions.add_offsets(&id, producer, &group()).await.expect("added");
        let before = (committed(&broker, 0).await, committed(&broker, 1).await, group_offset(&broker).await);
        for partition in 0..2 {
            send(&broker, producer, partition, round as i32, &format!("{round}")).await.expect("published");
        }
        broker
            .transactions
            .stage_offsets(&id, producer, &group(), None, staged(10 + round as u64))
            .await
            .expect("staged");
        assert_eq!(broker.transactions.unstable_offsets(&group()).await.expect("known"), [at("t", 0)].into());
        let meanwhile = (committed(&broker, 0).await, committed(&broker, 1).await, group_offset(&broker).await);
        assert_eq!(before, meanwhile, "nothing counts yet");
        broker.transactions.end(&id, producer, decision).await.expect("ended");
        // The response may have been lost.
        broker.transactions.end(&id, producer, decision).await.expect("ended");
        assert!(broker.transactions.unstable_offsets(&group()).await.expect("known").is_empty());
    }
    for partition in 0..2 {
        assert_eq!(committed(&broker, partition).await, ["0", "2"]);
    }
    assert_eq!((committed(&broker, 2).await, group_offset(&broker).await), (Vec::new(), Some(12)));
    // A partition without writes has no marker.
    assert_eq!(broker.describe_topic("t").expect("there").partitions[2].end, 0);
    let stats = broker.stats().expect("metrics");
    assert!(stats.contains("thalweg_transactions_committed_total 2"), "{stats}");
    assert!(stats.contains("thalweg_transactions_aborted_total 1"), "{stats}");
}

#[tokio::test]
async fn a_replaced_producer_writes_nothing_more() {
    let broker = in_memory().await;
    let id = tid("a");
    let zombie = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    broker.transactions.add_partitions(&id, zombie, &[at("t", 0)]).await.expect("added");
    send(&broker, zombie, 0, 0, "of the zombie").await.expect("published");

    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    assert!(producer.id == zombie.id && producer.epoch > zombie.epoch);
    let offsets = broker.transactions.stage_offsets(&id, zombie, &group(), None, staged(1)).await;
    assert_eq!(reason(offsets), TransactionReason::Fenced);
    assert_eq!(reason(broker.transactions.add_partitions(&id, zombie, &[at("t", 0)]).await), TransactionReason::Fenced);
    assert_eq!(reason(broker.transactions.add_offsets(&id, zombie, &group()).await), TransactionReason::Fenced);
    assert_eq!(reason(broker.transactions.end(&id, zombie, Decision::Commit).await), TransactionReason::Fenced);
    assert_eq!(reason(broker.transactions.init(&id, Some(zombie), TIMEOUT_MS).await), TransactionReason::Fenced);
    // Partitions that it never added refuse its writes, too.
    for partition in 0..2 {
        let refused = send(&broker, zombie, partition, 1, "late").await.expect_err("it is over");
        assert_eq!(refused.kind, ErrorKind::Fenced);
    }
    broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await.expect("added");
    assert_eq!(send(&broker, zombie, 0, 1, "late").await.expect_err("it is over").kind, ErrorKind::Fenced);
    send(&broker, producer, 0, 0, "of the new one").await.expect("published");
    broker.transactions.end(&id, producer, Decision::Commit).await.expect("committed");
    assert_eq!(committed(&broker, 0).await, ["of the new one"]);

    let stranger = ProducerEpoch { id: producer.id + 1, epoch: 0 };
    assert_eq!(
        reason(broker.transactions.add_partitions(&id, stranger, &[at("t", 0)]).await),
        TransactionReason::OtherProducer
    );
    let unknown = broker.transactions.end(&tid("nobody"), producer, Decision::Commit).await;
    assert_eq!(reason(unknown), TransactionReason::OtherProducer);
    assert_eq!(reason(broker.transactions.describe(&tid("nobody")).await), TransactionReason::NoSuchId);
}

#[tokio::test]
async fn a_batch_outside_of_a_transaction_is_refused() {
    let broker = in_memory().await;
    let id = tid("a");
    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    assert_eq!(send(&broker, producer, 0, 0, "early").await.expect_err("not added").kind, ErrorKind::Fenced);
    broker.transactions.add_partitions(&id, producer, &[at("t", 1)]).await.expect("added");
    assert_eq!(send(&broker, producer, 0, 0, "elsewhere").await.expect_err("not added").kind, ErrorKind::Fenced);
    send(&broker, producer, 1, 0, "here").await.expect("published");
    broker.transactions.end(&id, producer, Decision::Commit).await.expect("committed");
    assert_eq!(send(&broker, producer, 1, 1, "late").await.expect_err("it is over").kind, ErrorKind::Fenced);
    // If one partition cannot be added, none is.
    assert!(broker.transactions.add_partitions(&id, producer, &[at("t", 0), at("t", 9)]).await.is_err());
    assert!(send(&broker, producer, 0, 0, "early").await.is_err());
    assert!(broker.transactions.add_partitions(&id, producer, &[at("_offsets", 0)]).await.is_err());
    let none = broker.transactions.stage_offsets(&id, producer, &group(), None, staged(1)).await;
    assert_eq!(reason(none), TransactionReason::WrongPhase);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_takes_too_long_is_aborted_and_readers_go_on() {
    let broker = in_memory().await;
    let id = tid("a");
    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await.expect("added");
    send(&broker, producer, 0, 0, "void").await.expect("published");
    let plain = |value: &'static [u8]| {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(value), &[]).expect("a small record");
        builder.finish().expect("a record")
    };
    broker.publish("t", Some(0), Acks::Default, plain(b"of others"), &mut Wakes::default()).await.expect("published");
    assert!(committed(&broker, 0).await.is_empty(), "it comes behind what is open");

    // A waiting reader is notified when the transaction ends.
    let limits = FetchLimits {
        bytes_min: 1,
        bytes_max: 1 << 20,
        wait: crate::fetch::FETCH_WAIT_MAX,
        isolation: Isolation::Committed,
    };
    let from = FetchFrom { topic: "t", partition: 0, offset: 0, bytes_max: 1 << 20 };
    let begin = tokio::time::Instant::now();
    let fetched = broker.fetch_many(&[from], limits).await.pop().expect("one").expect("readable");
    assert!(begin.elapsed() >= Duration::from_millis(TIMEOUT_MS.into()), "{:?}", begin.elapsed());
    assert!(begin.elapsed() < crate::fetch::FETCH_WAIT_MAX, "{:?}", begin.elapsed());
    assert_eq!((fetched.batches.len(), fetched.aborted.len(), fetched.stable_end), (3, 1, 3));
    assert_eq!(committed(&broker, 0).await, ["of others"]);

    assert_eq!(reason(broker.transactions.end(&id, producer, Decision::Commit).await), TransactionReason::Fenced);
    assert_eq!(send(&broker, producer, 0, 1, "late").await.expect_err("it is over").kind, ErrorKind::Fenced);
    assert!(broker.stats().expect("metrics").contains("thalweg_transactions_timed_out_total 1"));
    // No other program has taken over: it continues with its next epoch.
    let again = broker.transactions.init(&id, Some(producer), TIMEOUT_MS).await.expect("it goes on");
    assert_eq!((again.id, again.epoch), (producer.id, producer.epoch + 1));
    broker.transactions.add_partitions(&id, again, &[at("t", 0)]).await.expect("added");
    send(&broker, again, 0, 0, "second try").await.expect("published");
    broker.transactions.end(&id, again, Decision::Commit).await.expect("committed");
    assert_eq!(committed(&broker, 0).await, ["of others", "second try"]);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_nobody_uses_is_forgotten() {
    // Each second of the default, a week, would be a sweep.
    let settings = Settings { transactional_id_expiration: Duration::from_secs(600), ..Settings::default() };
    let broker = Broker::start(settings, &[Handle::current()]).expect("starts");
    create(&broker).await;
    let id = tid("a");
    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    tokio::time::sleep(broker.settings().transactional_id_expiration - Duration::from_secs(60)).await;
    assert_eq!(broker.transactions.list().await.expect("known").len(), 1);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(broker.transactions.list().await.expect("known"), []);
    assert!(super::log::read_transactions(&broker).await.expect("readable").is_empty());
    assert_eq!(
        reason(broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await),
        TransactionReason::OtherProducer
    );
    let other = broker.transactions.init(&id, Some(producer), TIMEOUT_MS).await.expect("begun again");
    assert_ne!(other.id, producer.id);
}

/// An open transaction continues after a restart, an ended one stays ended, and each prepared state is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_every_transaction_where_it_was() {
    find_where_they_were(false).await;
}

#[tokio::test]
async fn forgotten_transactions_are_restored_where_they_were() {
    find_where_they_were(true).await;
}

async fn find_where_they_were(is_forgotten: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker).await;
    let mut producers = BTreeMap::new();
    for name in ["open", "aborts", "commits", "done"] {
        let id = tid(name);
        let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
        broker.transactions.add_partitions(&id, producer, &[at("t", 0), at("t", 1)]).await.expect("added");
        send(&broker, producer, 0, 0, name).await.expect("published");
        send(&broker, producer, 1, 0, name).await.expect("published");
        producers.insert(name, producer);
    }
    broker.transactions.end(&tid("done"), producers["done"], Decision::Commit).await.expect("ended");
    let commits = tid("commits");
    broker.transactions.add_offsets(&commits, producers["commits"], &group()).await.expect("added");
    broker.transactions.stage_offsets(&commits, producers["commits"], &group(), None, staged(7)).await.expect("staged");
    // The decision is recorded, and the process is killed before any response; one partition has its marker already.
    for (name, decision) in [("aborts", Decision::Abort), ("commits", Decision::Commit)] {
        let cell = broker.transactions.table.find(&tid(name)).expect("there");
        let prepared = {
            let state = cell.state.lock();
            let ended = state.transaction.end(producers[name], decision, Clock::SYSTEM.now_ms());
            let Ok(End::Prepares(prepared)) = ended else { panic!("not open: {ended:?}") };
            prepared
        };
        let appended =
            append_transaction(&broker, &tid(name), Some(&prepared), &mut Wakes::default()).expect("appended");
        assert!(
            broker
                .transactions
                .mark(&at("t", 1), producers[name], decision, &mut Wakes::default())
                .is_ok_and(|it| it.is_some())
        );
        appended.commit.wait().await.expect("durable");
    }
    // All earlier records are durable when this one is.
    let other = broker.transactions.init(&tid("other"), None, TIMEOUT_MS).await.expect("begun");
    assert!(producers.values().all(|producer| producer.id != other.id));
    let left = killed(dir.path());
    let broker = if is_forgotten {
        broker.forget_views().await.expect("restored");
        let refused = send(&broker, producers["open"], 0, 1, "too early").await.expect_err("not restored");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        broker
    } else {
        drop(broker);
        on_disk(left.path())
    };
    assert!(broker.transactions.list().await.is_ok(), "restored");
    for name in ["aborts", "commits"] {
        broker.transactions.table.find(&tid(name)).expect("there").wait_until_settled().await;
    }
    let phase = async |name| broker.transactions.describe(&tid(name)).await.expect("there").phase;
    assert_eq!(phase("open").await, Phase::Open);
    assert_eq!(phase("aborts").await, Phase::Complete(Decision::Abort));
    assert_eq!(phase("commits").await, Phase::Complete(Decision::Commit));
    assert_eq!(phase("done").await, Phase::Complete(Decision::Commit));
    // Each transaction has one marker in each partition, and nothing else.
    let open = producers["open"];
    send(&broker, open, 0, 1, "open too").await.expect("it goes on");
    assert_eq!(send(&broker, producers["commits"], 0, 1, "late").await.expect_err("over").kind, ErrorKind::Fenced);
    broker.transactions.end(&tid("open"), open, Decision::Commit).await.expect("ended");
    assert_eq!(committed(&broker, 0).await, ["open", "commits", "done", "open too"]);
    assert_eq!(committed(&broker, 1).await, ["open", "commits", "done"]);
    assert_eq!(broker.describe_topic("t").expect("there").partitions[1].end, 4 + 4);
    let offset = async {
        while group_offset(&broker).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        group_offset(&broker).await
    };
    let offset = tokio::time::timeout(Duration::from_secs(30), offset).await.expect("it is committed");
    assert_eq!(offset, Some(7));
    // The request is repeated after a lost response.
    broker.transactions.end(&commits, producers["commits"], Decision::Commit).await.expect("it was");
    let wrong = broker.transactions.end(&tid("aborts"), producers["aborts"], Decision::Commit).await;
    assert_eq!(reason(wrong), TransactionReason::WrongPhase);
}

async fn commit_plainly(broker: &Broker, offset: Offset) {
    let commit = crate::OffsetCommit { partition: at("t", 0), offset, leader_epoch: -1, metadata: String::new() };
    broker.groups.commit_offsets(&group(), &Committer::Outsider, vec![commit]).await.expect("committed");
}

/// Returns the decision to commit the open transaction, without applying it.
fn decided(broker: &Broker, id: &TransactionalId) -> Transaction {
    let cell = broker.transactions.table.find(id).expect("there");
    let state = cell.state.lock();
    let ended = state.transaction.end(state.transaction.producer, Decision::Commit, Clock::SYSTEM.now_ms());
    let Ok(End::Prepares(prepared)) = ended else { panic!("not open: {ended:?}") };
    prepared.decided_at(broker.groups.table().decision_ms())
}

/// Opens a transaction that would commit an offset.
async fn staging(broker: &Arc<Broker>, id: &TransactionalId, offset: Offset) -> ProducerEpoch {
    let producer = broker.transactions.init(id, None, TIMEOUT_MS).await.expect("begun");
    broker.transactions.add_offsets(id, producer, &group()).await.expect("added");
    broker.transactions.stage_offsets(id, producer, &group(), None, staged(offset)).await.expect("staged");
    producer
}

/// A decision that is carried out again keeps later commits and replaces earlier ones, even if the clock was set back
/// in between.
#[tokio::test]
async fn later_commits_are_not_reverted() {
    let broker = in_memory().await;
    let id = tid("a");
    broker.groups.table().note_commit_ms(Clock::SYSTEM.now_ms() + 3_600_000);
    commit_plainly(&broker, 9).await;
    let producer = staging(&broker, &id, 3).await;
    commit_plainly(&broker, 10).await;
    let decision = decided(&broker, &id);
    let offsets = &decision.offsets[&group()];
    let first =
        broker.groups.commit_staged(&group(), offsets, &mut Wakes::default()).expect("written").expect("an offset");
    assert!(broker.groups.commit_staged(&group(), offsets, &mut Wakes::default()).expect("nothing").is_none());
    first.wait().await.expect("committed");
    assert_eq!(group_offset(&broker).await, Some(3));
    commit_plainly(&broker, 12).await;
    assert!(broker.groups.commit_staged(&group(), offsets, &mut Wakes::default()).expect("nothing").is_none());
    broker.transactions.end(&id, producer, Decision::Commit).await.expect("committed");
    assert_eq!(group_offset(&broker).await, Some(3), "its own decision came later");
}

/// Until the offsets of a decision take effect, a reader of stable offsets must wait and does not receive earlier ones.
#[tokio::test]
async fn offsets_are_not_stable_before_they_count() {
    let broker = in_memory().await;
    let id = tid("a");
    let producer = staging(&broker, &id, 7).await;
    let cell = broker.transactions.table.find(&id).expect("there");
    let carried = {
        let mut state = cell.state.lock();
        let ended = state.transaction.end(producer, Decision::Commit, Clock::SYSTEM.now_ms());
        let Ok(End::Prepares(prepared)) = ended else { panic!("not open: {ended:?}") };
        broker.transactions.take_decision(&cell, &mut state, prepared, &mut Wakes::default()).expect("decided")
    };
    assert_eq!(group_offset(&broker).await, None);
    assert_eq!(broker.transactions.unstable_offsets(&group()).await.expect("known"), [at("t", 0)].into());
    carried.wait().await.expect("durable");
    assert_eq!(group_offset(&broker).await, Some(7));
    assert!(broker.transactions.unstable_offsets(&group()).await.expect("known").is_empty());
}

/// A crash may undo an end that is not on disk: no reader sees the records that it makes stable before.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_read_when_it_is_durable() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker).await;
    let id = tid("a");
    let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
    for round in 0..20 {
        broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await.expect("added");
        send(&broker, producer, 0, round, "record").await.expect("published");
        let partition = broker.transactions.partition_at(&at("t", 0)).expect("there");
        let begin = 2 * round as Offset;
        assert_eq!(partition.extent().stable_end, begin);
        let decision = if round % 2 == 0 { Decision::Commit } else { Decision::Abort };
        let marker = broker.transactions.mark(&at("t", 0), producer, decision, &mut Wakes::default()).expect("marked");
        let extent = partition.extent();
        let is_seen = extent.end == begin + 2;
        assert_eq!(extent.stable_end, if is_seen { begin + 2 } else { begin }, "round {round}");
        marker.expect("one that is needed").commit.wait().await.expect("durable");
        assert_eq!(partition.extent().stable_end, begin + 2);
        broker.transactions.end(&id, producer, decision).await.expect("ended");
    }
}

#[tokio::test]
async fn a_recreated_topic_has_no_staged_offsets() {
    let broker = in_memory().await;
    let id = tid("a");
    let producer = staging(&broker, &id, 7).await;
    broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await.expect("added");
    broker.delete_topic("t").await.expect("deleted");
    create(&broker).await;
    broker.transactions.add_partitions(&id, producer, &[at("t", 0)]).await.expect("added");
    send(&broker, producer, 0, 0, "new").await.expect("published");
    broker.transactions.end(&id, producer, Decision::Commit).await.expect("committed");
    assert_eq!((group_offset(&broker).await, committed(&broker, 0).await), (None, vec!["new".to_owned()]));
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), looks).await.is_ok(), "{what}");
}

/// All other partitions get their markers; one that is not served gets its marker once it is repaired, or is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_waits_for_a_partition_that_is_not_served() {
    for is_repaired in [true, false] {
        let dir = tempfile::tempdir().expect("a folder");
        let aside = tempfile::tempdir().expect("a folder");
        let broker = on_disk(dir.path());
        create(&broker).await;
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(b"first"), &[]).expect("a small record");
        let first = builder.finish().expect("a record");
        broker.publish("t", Some(0), Acks::Committed, first, &mut Wakes::default()).await.expect("published");
        broker.stop().expect("stopped");
        drop(broker);
        // Later records are only in the journal: they are moved aside with the partition that is not served.
        let broker = on_disk(dir.path());
        let id = tid("a");
        let producer = staging(&broker, &id, 7).await;
        broker.transactions.add_partitions(&id, producer, &[at("t", 0), at("t", 1)]).await.expect("added");
        for partition in 0..2 {
            send(&broker, producer, partition, 0, "both").await.expect("published");
        }
        let decision = decided(&broker, &id);
        let appended = append_transaction(&broker, &id, Some(&decision), &mut Wakes::default()).expect("appended");
        appended.commit.wait().await.expect("durable");
        let stored_as = broker.topic("t").expect("there").stored_as.expect("on disk");
        let dir = killed(dir.path());
        let segments = dir.path().join("topics").join(stored_as.to_string()).join("0");
        drop(broker);
        let files: Vec<_> = std::fs::read_dir(&segments).expect("a folder").map(|file| file.expect("a file")).collect();
        let move_files = |from: &Path, to: &Path| {
            for file in &files {
                std::fs::rename(from.join(file.file_name()), to.join(file.file_name())).expect("moved");
            }
        };
        move_files(&segments, aside.path());

        let mut broker = on_disk(dir.path());
        let phase = async |broker: &Broker| broker.transactions.describe(&tid("a")).await.expect("there");
        until("the others are told", async || group_offset(&broker).await == Some(7)).await;
        until("it is noted", async || phase(&broker).await.partitions.len() == 1).await;
        let left = phase(&broker).await;
        assert_eq!((left.phase, left.partitions), (Phase::Prepared(Decision::Commit), [at("t", 0)].into()));
        assert!(left.offsets.is_empty());
        assert_eq!(committed(&broker, 1).await, ["both"]);
        let other = tid("other");
        let at_0 = [at("t", 0)];
        let stranger = broker.transactions.init(&other, None, TIMEOUT_MS).await.expect("begun");
        let refused = broker.transactions.add_partitions(&other, stranger, &at_0).await.expect_err("not served");
        assert_eq!(refused.error.kind, ErrorKind::Corrupt);
        commit_plainly(&broker, 9).await;

        if is_repaired {
            broker.stop().expect("stopped");
            drop(broker);
            move_files(aside.path(), &segments);
            broker = on_disk(dir.path());
        } else {
            broker.delete_topic("t").await.expect("deleted");
        }
        until("it is over", async || phase(&broker).await.phase == Phase::Complete(Decision::Commit)).await;
        if is_repaired {
            until("its marker is durable", async || committed(&broker, 0).await == ["first", "both"]).await;
            assert_eq!(group_offset(&broker).await, Some(9));
        }
        broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("it goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_nobody_knows_of_is_aborted_at_the_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = on_disk(dir.path());
    create(&broker).await;
    let producer = ProducerEpoch { id: 77, epoch: 0 };
    broker.transactions.restored().await.expect("restored");
    // As a repair may leave it after the loss of the topic of transactions.
    let partition = broker.transactions.partition_at(&at("t", 0)).expect("there");
    partition.begin(producer.id, producer.epoch).expect("begun");
    send(&broker, producer, 0, 0, "orphaned").await.expect("published");
    assert_eq!(partition.extent().stable_end, 0);
    broker.stop().expect("stopped");
    drop((partition, broker));
    let broker = on_disk(dir.path());
    broker.transactions.restored().await.expect("restored");
    let extent = broker.describe_topic("t").expect("there").partitions[0];
    assert_eq!(committed(&broker, 0).await, Vec::<String>::new());
    assert!(extent.end >= 1);
    let partition = broker.transactions.partition_at(&at("t", 0)).expect("there");
    assert!(partition.producers().iter().all(|producer| producer.open.is_none()));
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// State of a transactional id as a program knows it.
#[derive(Default)]
struct Program {
    producer: Option<ProducerEpoch>,
    /// Next sequence number of each partition.
    sequences: [i32; 3],
    /// Values written in the open transaction, each with its partition.
    open: Vec<(u32, String)>,
}

/// Whatever is open when the broker is killed: committed values are present once and in order, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn each_transaction_counts_whole_and_once_across_kills() {
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut dir = tempfile::tempdir().expect("a folder");
        let mut broker = on_disk(dir.path());
        create(&broker).await;
        let mut programs: [Program; 4] = Default::default();
        let mut expected: [Vec<String>; 3] = Default::default();
        for step in 0..150 {
            let at_program = random.below(4);
            let id = tid(&at_program.to_string());
            let program = &mut programs[at_program as usize];
            let Some(producer) = program.producer.filter(|_| random.below(12) > 0) else {
                // It starts again, whatever its state.
                let producer = broker.transactions.init(&id, None, TIMEOUT_MS).await.expect("begun");
                *program = Program { producer: Some(producer), ..Program::default() };
                continue;
            };
            match random.below(10) {
                0..6 => {
                    let partition = random.below(3) as u32;
                    broker.transactions.add_partitions(&id, producer, &[at("t", partition)]).await.expect("added");
                    let sequence = &mut program.sequences[partition as usize];
                    let value = format!("{id} {step}");
                    send(&broker, producer, partition, *sequence, &value).await.expect("published");
                    *sequence += 1;
                    program.open.push((partition, value));
                }
                6..9 if !program.open.is_empty() => {
                    let decision = if random.below(3) == 0 { Decision::Abort } else { Decision::Commit };
                    broker.transactions.end(&id, producer, decision).await.expect("ended");
                    for (partition, value) in program.open.drain(..) {
                        if decision == Decision::Commit {
                            expected[partition as usize].push(value);
                        }
                    }
                }
                9 => {
                    let left = killed(dir.path());
                    drop(std::mem::replace(&mut broker, on_disk(left.path())));
                    dir = left;
                    broker.transactions.restored().await.expect("restored");
                }
                _ => {}
            }
        }
        for (at, program) in programs.iter().enumerate().filter(|(_, program)| !program.open.is_empty()) {
            let producer = program.producer.expect("it has begun");
            broker.transactions.end(&tid(&at.to_string()), producer, Decision::Abort).await.expect("ended");
        }
        for (partition, expected) in (0..).zip(&mut expected) {
            let mut found = committed(&broker, partition).await;
            let of = |values: &[String], id: &str| -> Vec<String> {
                values.iter().filter(|value| value.starts_with(id)).cloned().collect()
            };
            for id in ["0", "1", "2", "3"] {
                assert_eq!(of(&found, id), of(expected, id), "seed {seed}, partition {partition}, of {id}");
            }
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, *expected, "seed {seed}, partition {partition}");
        }
    }
}
