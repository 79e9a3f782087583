//! Transactions of Kafka's clients on a broker that is killed during them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use client::{NewQueue, Receive, TopicSettings};
use engine::codec::Codec;
use engine::{BatchBuilder, Decision, Producer};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, GroupId, InitProducerIdRequest,
    OffsetFetchRequest, ProducerId, TransactionalId, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::Request;

use super::raw::{Raw, fetch, fetched, produce, produced, records, text, topic};
use crate::support::server::{PATIENCE, Server, until, within};

const PARTITIONS: i32 = 3;
const PROGRAMS: u64 = 3;
const KILLS: u64 = 6;
/// Codes after which a client retries: the coordinator is loading or unavailable, the previous step is in progress, a
/// timeout.
const TRY_AGAIN: [i16; 4] = [7, 14, 15, 51];
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Reaction of a program that loses the broker: it repeats the request until it is answered, or starts again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Insists,
    StartsAnew,
}

/// Program that writes one transaction after the other, each to all partitions and with an offset.
struct Program {
    id: u64,
    address: SocketAddr,
    raw: Option<Raw>,
    /// Id and epoch of the producer.
    producer: (i64, i16),
    /// Next sequence number, the same in all partitions.
    sequence: i32,
    /// Number of responses that all programs received.
    answers: Arc<AtomicU64>,
    /// Transactions whose commit was acknowledged, and those without a known outcome.
    committed: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
}

impl Program {
    fn new(id: u64, address: SocketAddr, answers: Arc<AtomicU64>) -> Self {
        let committed = BTreeSet::new();
        let unknown = BTreeSet::new();
        Self { id, address, raw: None, producer: (-1, -1), sequence: 0, answers, committed, unknown }
    }

    fn name(&self) -> TransactionalId {
        TransactionalId(text(&format!("program-{}", self.id)))
    }

    fn group(&self) -> GroupId {
        GroupId(text(&format!("group-{}", self.id)))
    }

    /// Returns the response to an idempotent request; `None` if the broker was lost and the program starts again.
    async fn call<R: Request>(
        &mut self,
        version: i16,
        request: R,
        loss: Loss,
        code: impl Fn(&R::Response) -> i16,
    ) -> Option<R::Response> {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "program {}: no answer that is final", self.id);
            if self.raw.is_none() {
                self.raw = Raw::try_connect(self.address).await;
            }
            if let Some(raw) = &mut self.raw {
                let Some(answer) = raw.try_call(version, &request).await else {
                    self.raw = None;
                    match loss {
                        Loss::Insists => continue,
                        Loss::StartsAnew => return None,
                    }
                };
                self.answers.fetch_add(1, Ordering::Relaxed);
                let code = code(&answer);
                if !TRY_AGAIN.contains(&code) {
                    assert_eq!(code, 0, "program {}, {}", self.id, std::any::type_name::<R>());
                    return Some(answer);
                }
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Takes over its transactional id: an open transaction is aborted.
    async fn begin(&mut self) {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.name()))
            .with_transaction_timeout_ms(600_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let begun = self.call(3, request, Loss::Insists, |answer| answer.error_code).await.expect("it insists");
        self.producer = (begun.producer_id.0, begun.producer_epoch);
        self.sequence = 0;
    }

    /// Runs one transaction; `None` if the program has to start again.
    async fn run(&mut self, n: u64, decision: Decision, loss: Loss) -> Option<()> {
        let id = ProducerId(self.producer.0);
        let epoch = self.producer.1;
        let all = AddPartitionsToTxnTopic::default().with_name(topic("k")).with_partitions((0..PARTITIONS).collect());
        let add = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.name())
            .with_v3_and_below_producer_id(id)
            .with_v3_and_below_producer_epoch(epoch)
            .with_v3_and_below_topics(vec![all]);
        self.call(1, add, loss, |answer| {
            let results = answer.results_by_topic_v3_and_below.iter().flat_map(|of| &of.results_by_partition);
            results.map(|result| result.partition_error_code).find(|code| *code != 0).unwrap_or_default()
        })
        .await?;
        for partition in 0..PARTITIONS {
            let batch = self.batch(format!("{} {n}", self.id));
            let request = produce("k", partition, -1, batch).with_transactional_id(Some(self.name()));
            self.call(9, request, loss, |answer| answer.responses[0].partition_responses[0].error_code).await?;
        }
        self.sequence += 1;
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(self.name())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_group_id(self.group());
        self.call(1, request, loss, |answer| answer.error_code).await?;
        let offset = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(0)
            .with_committed_offset(n as i64)
            .with_committed_leader_epoch(-1);
        let offset = TxnOffsetCommitRequestTopic::default().with_name(topic("k")).with_partitions(vec![offset]);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(self.name())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_group_id(self.group())
            .with_generation_id(-1)
            .with_topics(vec![offset]);
        self.call(3, request, loss, |answer| answer.topics[0].partitions[0].error_code).await?;
        let request = EndTxnRequest::default()
            .with_transactional_id(self.name())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_committed(decision == Decision::Commit);
        if decision == Decision::Commit {
            self.unknown.insert(n);
        }
        self.call(1, request, loss, |answer| answer.error_code).await?;
        if self.unknown.remove(&n) {
            self.committed.insert(n);
        }
        Some(())
    }

    /// Returns a batch with one record, the next of this producer in each partition.
    fn batch(&self, value: String) -> Bytes {
        let mut builder = BatchBuilder::new();
        // A queue drops records that are older than its retention.
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
        builder.push(now_ms, None, Some(value.as_bytes()), &[]).expect("a record");
        let producer = Producer { id: self.producer.0, epoch: self.producer.1, sequence: self.sequence };
        let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
        batch.set_transactional();
        batch.into_bytes()
    }

    async fn work(mut self, is_over: Arc<AtomicBool>) -> Self {
        self.begin().await;
        let mut n = 0;
        while !is_over.load(Ordering::Relaxed) {
            n += 1;
            let decision = if n % 5 == 3 { Decision::Abort } else { Decision::Commit };
            let loss = if n % 2 == 0 { Loss::Insists } else { Loss::StartsAnew };
            if self.run(n, decision, loss).await.is_none() {
                self.begin().await;
            }
        }
        self
    }

    /// Returns the committed offset of the group, once no transaction on it is open.
    async fn offset(&mut self) -> i64 {
        let of = OffsetFetchRequestTopic::default().with_name(topic("k")).with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(self.group())
            .with_topics(Some(vec![of]))
            .with_require_stable(true);
        let answer = self.call(7, request, Loss::Insists, |answer| answer.error_code).await.expect("it insists");
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
        answer.topics[0].partitions[0].committed_offset
    }
}

/// Returns the committed values of a partition, read as by Kafka's consumers.
async fn committed(raw: &mut Raw, partition: i32) -> Vec<String> {
    let mut values = Vec::new();
    let mut offset = 0;
    loop {
        let answer = raw.call(11, fetch("k", partition, offset, 0).with_isolation_level(1)).await;
        let (code, end, batches) = fetched(&answer);
        assert_eq!(code, 0);
        let found = &answer.responses[0].partitions[0];
        let Some(last) = batches.last() else {
            assert_eq!((found.last_stable_offset, offset as u64), (end, end as u64), "something is undecided");
            return values;
        };
        offset = last.next_offset() as i64;
        let mut aborted = found.aborted_transactions.clone().unwrap_or_default();
        aborted.sort_unstable_by_key(|aborted| aborted.first_offset);
        let mut aborted = aborted.into_iter().peekable();
        let mut void = HashSet::new();
        for batch in &batches {
            while let Some(next) = aborted.next_if(|next| next.first_offset < batch.next_offset() as i64) {
                void.insert(next.producer_id.0);
            }
            let id = batch.producer().map_or(-1, |producer| producer.id);
            if batch.marker().expect("readable").is_some_and(|marker| marker.decision == Decision::Abort) {
                void.remove(&id);
            }
            if !void.contains(&id) {
                let found = records(std::slice::from_ref(batch));
                values.extend(found.iter().map(|record| String::from_utf8_lossy(record.value()).into_owned()));
            }
        }
    }
}

/// Receives and acknowledges all messages of the queue over the topic.
async fn queued(server: &Server) -> Vec<String> {
    let queue = server.client("tcp").await.queue("q");
    let mut values = Vec::new();
    loop {
        let receive = Receive { count_max: 100, ..Receive::default() };
        let received = within("messages", queue.receive(&receive)).await.expect("received").messages;
        if received.is_empty() {
            let counts = within("counts", queue.describe()).await.expect("described").counts.expect("it has a topic");
            assert_eq!((counts.visible, counts.in_flight), (0, 0), "nothing that is void is counted");
            return values;
        }
        let receipts: Vec<String> = received.iter().map(|one| one.receipt.clone()).collect();
        within("acknowledged", queue.ack(&receipts)).await.expect("acknowledged");
        values.extend(received.iter().map(|one| String::from_utf8_lossy(&one.message.body).into_owned()));
    }
}

/// A client that omits the transactional id cannot write to its transactions, even if it knows the producer.
#[tokio::test]
async fn a_batch_of_a_transaction_needs_its_name() {
    let server = Server::start();
    let mut program = Program::new(0, server.kafka, Arc::default());
    let mut raw = Raw::connect(&server).await;
    raw.create("k").await;
    program.begin().await;
    let response = raw.call(9, produce("k", 0, -1, program.batch("unnamed".to_owned()))).await;
    assert_eq!(produced(&response).0, 53);
}

/// Acknowledged transactions are in the log once and completely, with their offsets; those with an unknown outcome are
/// there completely or not at all; and none stays open. A queue over the topic delivers the same records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_count_whole_and_once_on_a_broker_that_is_killed() {
    let mut server = Server::with(&["data=data"]);
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: PARTITIONS as u32, ..TopicSettings::default() };
    within("create", client.create_topic("k", settings)).await.expect("created");
    let over = NewQueue { topic: "k".into(), ..NewQueue::new("q") };
    within("create", client.create_queue(over)).await.expect("created");
    drop(client);
    let answers = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|id| tokio::spawn(Program::new(id, server.kafka, answers.clone()).work(is_over.clone())))
        .collect();
    for kill in 0..KILLS {
        // Each kill hits another step: a transaction takes seven responses.
        let goal = answers.load(Ordering::Relaxed) + 7 * 3 * PROGRAMS + 5 * kill;
        until("some transactions", async || answers.load(Ordering::Relaxed) >= goal).await;
        server.crash_and_restart();
    }
    is_over.store(true, Ordering::Relaxed);
    let mut found: BTreeMap<u64, BTreeMap<u64, usize>> = BTreeMap::new();
    let mut ended = Vec::new();
    for program in programs {
        let mut program = within("the end of a program", program).await.expect("it did not fail");
        program.begin().await;
        ended.push(program);
    }
    let mut raw = Raw::connect(&server).await;
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for value in committed(&mut raw, partition).await {
            all.push(value.clone());
            let (id, n) = value.split_once(' ').expect("a program and a number");
            let id: u64 = id.parse().expect("a number");
            let n: u64 = n.parse().expect("a number");
            *found.entry(id).or_default().entry(n).or_default() += 1;
            assert!(last.insert(id, n).is_none_or(|last| last < n), "partition {partition}: {value} is twice there");
        }
    }
    let mut queued = queued(&server).await;
    all.sort_unstable();
    queued.sort_unstable();
    assert_eq!(queued, all);
    for mut program in ended {
        let found = found.remove(&program.id).unwrap_or_default();
        assert!(found.values().all(|count| *count == PARTITIONS as usize), "half a transaction: {found:?}");
        let found: BTreeSet<u64> = found.into_keys().collect();
        let committed = &program.committed;
        let unknown = &program.unknown;
        assert!(found.is_superset(committed), "lost: {:?}", committed - &found);
        assert!((committed | unknown).is_superset(&found), "of no transaction: {:?}", &(&found - committed) - unknown);
        assert_eq!(found.last().map_or(-1, |last| *last as i64), program.offset().await);
    }
}
