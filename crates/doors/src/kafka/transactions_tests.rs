//! Responses about transactions to Kafka's clients, request by request.

use std::sync::{Arc, Weak};

use broker::Identity;
use engine::record::Producer;
use engine::{Acks, BatchBuilder, Codec, TopicSettings};
use tokio::runtime::Handle;

use super::super::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use super::super::messages::describe_producers::TopicRequest;
use super::super::messages::txn_offset_commit::TxnOffsetCommitRequestTopic;
use super::super::share::ShareConnection;
use super::*;

async fn broker() -> Arc<Broker> {
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    broker.create_topic("t", TopicSettings { partitions: 2, ..TopicSettings::of_broker() }).await.expect("created");
    broker
}

fn caller(version: i16) -> Caller {
    Caller {
        client: "test".into(),
        identity: Arc::new(Identity::anonymous("localhost")),
        advertised: ("localhost".into(), 9092),
        version,
        leaving: Default::default(),
        shares: ShareConnection::new(Arc::default(), Weak::new()).into(),
        mute: Default::default(),
        wait_ms: std::cell::Cell::new(0),
    }
}

async fn init(broker: &Arc<Broker>, id: Option<&str>, version: i16) -> (i16, ProducerEpoch) {
    let request = InitProducerIdRequest {
        transactional_id: id.map(str::to_owned),
        transaction_timeout_ms: 1000,
        producer_id: NONE,
        producer_epoch: NO_EPOCH,
    };
    let InitProducerIdResponse { error_code, producer_id: id, producer_epoch: epoch, .. } =
        init_producer(broker, &caller(version), request).await;
    (error_code, ProducerEpoch { id, epoch })
}

async fn add(broker: &Arc<Broker>, producer: ProducerEpoch, partitions: &[i32], version: i16) -> Vec<i16> {
    let topic = AddPartitionsToTxnTopic { name: "t".into(), partitions: partitions.to_vec() };
    let request = AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: "a".into(),
        v3_and_below_producer_id: producer.id,
        v3_and_below_producer_epoch: producer.epoch,
        v3_and_below_topics: vec![topic],
    };
    let answer = add_partitions(broker, &caller(version), request).await.results_by_topic_v3_and_below;
    answer[0].results_by_partition.iter().map(|result| result.partition_error_code).collect()
}

async fn end_with(broker: &Arc<Broker>, producer: ProducerEpoch, committed: bool, version: i16) -> i16 {
    let ProducerEpoch { id: producer_id, epoch: producer_epoch } = producer;
    let request = EndTxnRequest { transactional_id: "a".into(), producer_id, producer_epoch, committed };
    end(broker, &caller(version), request).await.error_code
}

fn offsets(producer: ProducerEpoch, partitions: &[(i32, i64)]) -> TxnOffsetCommitRequest {
    let partition = |(partition_index, committed_offset): &(i32, i64)| TxnOffsetCommitRequestPartition {
        partition_index: *partition_index,
        committed_offset: *committed_offset,
        committed_leader_epoch: -1,
        committed_metadata: Some("note".into()),
    };
    let topic =
        TxnOffsetCommitRequestTopic { name: "t".into(), partitions: partitions.iter().map(partition).collect() };
    TxnOffsetCommitRequest {
        transactional_id: "a".into(),
        group_id: "g".into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        generation_id: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

async fn commit(broker: &Arc<Broker>, request: TxnOffsetCommitRequest) -> Vec<i16> {
    let answer = commit_offsets(broker, &caller(3), request).await;
    answer.topics[0].partitions.iter().map(|partition| partition.error_code).collect()
}

#[tokio::test]
async fn a_transaction_from_its_first_to_its_last_request() {
    let broker = broker().await;
    let (code, producer) = init(&broker, Some("a"), 4).await;
    assert_eq!((code, producer.epoch), (0, 0));
    assert_eq!(end_with(&broker, producer, true, 3).await, Code::INVALID_TXN_STATE.0);
    assert_eq!(add(&broker, producer, &[0, 1], 3).await, [0, 0]);
    let request = AddOffsetsToTxnRequest {
        transactional_id: "a".into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        group_id: "g".into(),
    };
    assert_eq!(add_offsets(&broker, &caller(3), request).await.error_code, 0);
    assert_eq!(commit(&broker, offsets(producer, &[(0, 7), (9, 1), (1, -5)])).await, [0, 3, 1]);
    let mut builder = BatchBuilder::new();
    builder.push(5, None, Some(b"v"), &[]).expect("a small record");
    let numbered = Producer { id: producer.id, epoch: producer.epoch, sequence: 0 };
    let mut batch = builder.finish_with(Codec::None, Some(numbered)).expect("a record");
    batch.set_transactional();
    let published = broker.publish("t", Some(1), Acks::Committed, batch, &mut broker::Wakes::default()).await;
    assert!(published.is_ok());

    let transactional_ids = ["a", "nobody", "a", "a"].map(Into::into).into();
    let request = DescribeTransactionsRequest { transactional_ids };
    let seen = describe(&broker, &caller(0), request).await;
    let [open, none] = &seen.transaction_states[..] else { panic!("two distinct ones were asked for") };
    assert_eq!((open.error_code, open.transaction_state.as_str(), open.producer_id), (0, "Ongoing", producer.id));
    assert_eq!((open.topics.len(), &open.topics[0].partitions[..]), (1, &[0, 1][..]));
    assert!(open.transaction_start_time_ms > 0);
    assert_eq!(none.error_code, Code::TRANSACTIONAL_ID_NOT_FOUND.0);
    let asked = |partition_indexes| TopicRequest { name: "t".into(), partition_indexes };
    let topics = vec![asked(vec![1, 5, 1, 1]), asked(vec![5, 1])];
    let known = describe_producers(&broker, &caller(0), DescribeProducersRequest { topics }).await;
    assert_eq!(known.topics.len(), 1);
    let [present, missing] = &known.topics[0].partitions[..] else { panic!("two were asked for") };
    let state = &present.active_producers[0];
    assert_eq!((state.producer_id, state.last_sequence, state.last_timestamp), (producer.id, 0, 5));
    assert_eq!((state.current_txn_start_offset, missing.error_code), (0, 3));

    assert_eq!(end_with(&broker, producer, true, 3).await, 0);
    assert_eq!(end_with(&broker, producer, true, 3).await, 0, "its answer may have been lost");
    let group = GroupName::parse("g").expect("a name");
    let committed = broker.groups.committed_offsets(&group, None).await.expect("readable");
    let committed: Vec<_> = committed.iter().map(|(at, it)| (at.partition, it.offset, &*it.metadata)).collect();
    assert_eq!(committed, [(0, 7, "note")]);
}

#[tokio::test]
async fn refusals_have_the_codes_that_each_version_knows() {
    let broker = broker().await;
    assert_eq!(init(&broker, Some(""), 4).await.0, Code::INVALID_REQUEST.0);
    let (code, plain) = init(&broker, None, 4).await;
    assert_eq!((code, plain.epoch), (0, 0));
    let request = |timeout_ms, id, epoch| InitProducerIdRequest {
        transactional_id: Some("a".into()),
        transaction_timeout_ms: timeout_ms,
        producer_id: id,
        producer_epoch: epoch,
    };
    for timeout_ms in [-1, 0, i32::MAX] {
        let refused = init_producer(&broker, &caller(4), request(timeout_ms, NONE, NO_EPOCH)).await;
        assert_eq!((refused.error_code, refused.producer_id), (Code::INVALID_TRANSACTION_TIMEOUT.0, NONE));
    }
    let half = init_producer(&broker, &caller(4), request(1000, 5, NO_EPOCH)).await;
    assert_eq!(half.error_code, Code::INVALID_REQUEST.0);

    let (_, zombie) = init(&broker, Some("a"), 4).await;
    let (_, producer) = init(&broker, Some("a"), 4).await;
    for (version, code) in [(0, Code::INVALID_PRODUCER_EPOCH.0), (2, Code::PRODUCER_FENCED.0)] {
        assert_eq!(add(&broker, zombie, &[0], version).await, [code]);
        assert_eq!(end_with(&broker, zombie, true, version).await, code);
    }
    for (version, code) in [(3, Code::INVALID_PRODUCER_EPOCH.0), (4, Code::PRODUCER_FENCED.0)] {
        let refused = init_producer(&broker, &caller(version), request(1000, zombie.id, zombie.epoch)).await;
        assert_eq!(refused.error_code, code);
    }
    assert_eq!(commit(&broker, offsets(zombie, &[(0, 1)])).await, [Code::INVALID_PRODUCER_EPOCH.0]);
    let stranger = ProducerEpoch { id: producer.id + 1, ..producer };
    assert_eq!(add(&broker, stranger, &[0], 3).await, [Code::INVALID_PRODUCER_ID_MAPPING.0]);
    // A nonexistent partition prevents the addition of the others.
    assert_eq!(add(&broker, producer, &[0, 7], 3).await, [Code::OPERATION_NOT_ATTEMPTED.0, 3]);
    assert_eq!(commit(&broker, offsets(producer, &[(0, 1)])).await, [Code::INVALID_TXN_STATE.0]);
    let member = TxnOffsetCommitRequest { generation_id: 3, member_id: "m".into(), ..offsets(producer, &[(0, 1)]) };
    assert_eq!(add(&broker, producer, &[0], 3).await, [0]);
    assert_eq!(commit(&broker, member).await, [Code::UNKNOWN_MEMBER_ID.0]);

    let list_of = async |states: &[&str], duration_filter| {
        let state_filters = states.iter().map(|state| (*state).to_owned()).collect();
        let request = ListTransactionsRequest { state_filters, duration_filter, ..Default::default() };
        let listed = list(&broker, &caller(1), request).await;
        (listed.transaction_states.len(), listed.unknown_state_filters)
    };
    assert_eq!(list_of(&[], -1).await, (1, Vec::new()));
    assert_eq!(list_of(&["Ongoing"], -1).await, (1, Vec::new()));
    assert_eq!(list_of(&["Empty", "Lost"], -1).await, (0, vec!["Lost".to_owned()]));
    assert_eq!(list_of(&[], 3_600_000).await, (0, Vec::new()));
}
