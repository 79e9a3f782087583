//! Transactions: mapping of requests to calls of the coordinator, and of its errors to Kafka's codes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use broker::Broker;
use engine::groups::{Committed, Committer, GroupName, Identity, InstanceId, MemberId, Reason};
use engine::limits::OFFSET_METADATA_BYTES_MAX;
use engine::producers::ProducerStatus;
use engine::security::Resource;
use engine::transactions::{
    Phase, ProducerEpoch, StagedOffsets, Transaction, TransactionError, TransactionReason, TransactionalId,
};
use engine::{Decision, Error, ErrorKind, TopicName, TopicPartition};
use tokio::task::yield_now;

use super::caller::Caller;
use super::errors::{self, Code};
use super::groups::{distinct, distinct_partitions};
use super::messages::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use super::messages::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
};
use super::messages::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use super::messages::describe_transactions::{
    self, DescribeTransactionsRequest, DescribeTransactionsResponse, TopicData,
};
use super::messages::end_txn::{EndTxnRequest, EndTxnResponse};
use super::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use super::messages::list_transactions::{self, ListTransactionsRequest, ListTransactionsResponse};
use super::messages::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
};

/// Keys of the APIs, which determine the required permissions.
const INIT_PRODUCER_ID: i16 = 22;
const ADD_PARTITIONS: i16 = 24;
const ADD_OFFSETS: i16 = 25;
const END: i16 = 26;
const COMMIT_OFFSETS: i16 = 28;
const DESCRIBE_PRODUCERS: i16 = 61;
const DESCRIBE: i16 = 65;
const LIST: i16 = 66;
/// Value for no producer, no epoch, no generation or no time.
const NONE: i64 = -1;
const NO_EPOCH: i16 = -1;

/// Initializes a producer, with or without a transactional id.
pub(super) async fn init_producer(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let begun = match &request.transactional_id {
        Some(id) => init_transactions(broker, caller, id, &request).await,
        None => number(broker, caller).await,
    };
    match begun {
        Ok(ProducerEpoch { id, epoch }) => {
            InitProducerIdResponse { producer_id: id, producer_epoch: epoch, ..Default::default() }
        }
        Err(code) => InitProducerIdResponse {
            // Older clients know this error by another code.
            error_code: fenced_before(4, caller, code).0,
            producer_id: NONE,
            producer_epoch: NO_EPOCH,
            ..Default::default()
        },
    }
}

/// Returns a new producer identity without transactions.
async fn number(broker: &Arc<Broker>, caller: &Caller) -> Result<ProducerEpoch, Code> {
    caller.may_number(broker)?;
    let (id, epoch) = broker.init_producer().await.map_err(|error| of_coordinator(&error))?;
    Ok(ProducerEpoch { id, epoch })
}

async fn init_transactions(
    broker: &Arc<Broker>,
    caller: &Caller,
    id: &str,
    request: &InitProducerIdRequest,
) -> Result<ProducerEpoch, Code> {
    let id = transactional_id(broker, caller, INIT_PRODUCER_ID, id)?;
    let timeout_ms = u32::try_from(request.transaction_timeout_ms);
    // tidy: an invalid timeout is refused with a code that names it
    let timeout_ms = timeout_ms.map_err(|_| Code::INVALID_TRANSACTION_TIMEOUT)?;
    let expected = ProducerEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let expected = match (expected.id >= 0, expected.epoch >= 0) {
        (true, true) => Some(expected),
        (false, false) => None,
        // An id and an epoch are only valid together.
        _ => return Err(Code::INVALID_REQUEST),
    };
    broker.transactions.init(&id, expected, timeout_ms).await.map_err(|refused| code(&refused))
}

/// Requested partition by its number, or the reason for its refusal.
type Found = (i32, Result<TopicPartition, Code>);

/// Adds all partitions or none. The response has a code for each.
pub(super) async fn add_partitions(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let id = request.v3_and_below_transactional_id;
    let topics = request.v3_and_below_topics;
    let producer = ProducerEpoch { id: request.v3_and_below_producer_id, epoch: request.v3_and_below_producer_epoch };
    let found: Vec<(String, Vec<Found>)> = topics
        .into_iter()
        .map(|topic| {
            let partitions = topic.partitions.iter();
            let partitions =
                partitions.map(|index| (*index, find(broker, caller, ADD_PARTITIONS, &topic.name, *index)));
            let partitions = partitions.collect();
            (topic.name, partitions)
        })
        .collect();
    let all = || found.iter().flat_map(|(_, partitions)| partitions);
    let outcome = if all().any(|(_, found)| found.is_err()) {
        Code::OPERATION_NOT_ATTEMPTED
    } else {
        let partitions: Vec<TopicPartition> = all().filter_map(|(_, found)| found.clone().ok()).collect();
        match transactional_id(broker, caller, ADD_PARTITIONS, &id) {
            Ok(id) => of(broker.transactions.add_partitions(&id, producer, &partitions).await),
            Err(code) => code,
        }
    };
    let outcome = fenced_before(2, caller, outcome);
    let result = |(partition_index, found): Found| AddPartitionsToTxnPartitionResult {
        partition_index,
        partition_error_code: found.err().unwrap_or(outcome).0,
    };
    let results = found.into_iter().map(|(name, partitions)| AddPartitionsToTxnTopicResult {
        name,
        results_by_partition: partitions.into_iter().map(result).collect(),
    });
    AddPartitionsToTxnResponse { results_by_topic_v3_and_below: results.collect(), ..Default::default() }
}

pub(super) async fn add_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let producer = ProducerEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let id = transactional_id(broker, caller, ADD_OFFSETS, &request.transactional_id);
    let code = match (id, group(broker, caller, ADD_OFFSETS, &request.group_id)) {
        (Ok(id), Ok(group)) => of(broker.transactions.add_offsets(&id, producer, &group).await),
        (Err(code), _) | (_, Err(code)) => code,
    };
    AddOffsetsToTxnResponse { error_code: fenced_before(2, caller, code).0, ..Default::default() }
}

pub(super) async fn end(broker: &Arc<Broker>, caller: &Caller, request: EndTxnRequest) -> EndTxnResponse {
    let producer = ProducerEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let decision = if request.committed { Decision::Commit } else { Decision::Abort };
    let code = match transactional_id(broker, caller, END, &request.transactional_id) {
        Ok(id) => of(broker.transactions.end(&id, producer, decision).await),
        Err(code) => code,
    };
    EndTxnResponse { error_code: fenced_before(2, caller, code).0, ..Default::default() }
}

/// Stages offsets that take effect when the transaction is committed.
pub(super) async fn commit_offsets(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let mut staged = StagedOffsets::new();
    let found: Vec<(String, Vec<(i32, Code)>)> = request
        .topics
        .iter()
        .map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let code = match committed(broker, caller, &topic.name, partition) {
                    Ok((at, committed)) => {
                        staged.insert(at, committed);
                        Code::NONE
                    }
                    Err(code) => code,
                };
                (partition.partition_index, code)
            });
            (topic.name.clone(), partitions.collect())
        })
        .collect();
    let outcome = match stage(broker, caller, &request, staged).await {
        Ok(()) => Code::NONE,
        // The group coordinator has no other code for it.
        Err(Code::PRODUCER_FENCED) => Code::INVALID_PRODUCER_EPOCH,
        Err(code) => code,
    };
    let result = |(partition_index, code): (i32, Code)| TxnOffsetCommitResponsePartition {
        partition_index,
        error_code: if code == Code::NONE { outcome.0 } else { code.0 },
    };
    let topics = found.into_iter().map(|(name, partitions)| TxnOffsetCommitResponseTopic {
        name,
        partitions: partitions.into_iter().map(result).collect(),
    });
    TxnOffsetCommitResponse { topics: topics.collect(), ..Default::default() }
}

async fn stage(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: &TxnOffsetCommitRequest,
    staged: StagedOffsets,
) -> Result<(), Code> {
    let id = transactional_id(broker, caller, COMMIT_OFFSETS, &request.transactional_id)?;
    let group = group(broker, caller, COMMIT_OFFSETS, &request.group_id)?;
    let producer = ProducerEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let committer = committer(request)?;
    let done = broker.transactions.stage_offsets(&id, producer, &group, committer.as_ref(), staged).await;
    done.map_err(|refused| code(&refused))
}

/// Returns the member that commits, if the client names it; older clients do not.
fn committer(request: &TxnOffsetCommitRequest) -> Result<Option<Committer>, Code> {
    let TxnOffsetCommitRequest { generation_id, member_id, group_instance_id, .. } = request;
    if *generation_id < 0 && member_id.is_empty() && group_instance_id.is_none() {
        return Ok(None);
    }
    // tidy: an invalid name or number cannot belong to a member
    let member = MemberId::parse(member_id).map_err(|_| Code::UNKNOWN_MEMBER_ID)?;
    let instance = group_instance_id.as_deref().map(InstanceId::parse).transpose();
    // tidy: as above
    let instance = instance.map_err(|_| Code::UNKNOWN_MEMBER_ID)?;
    // tidy: as above
    let epoch = u32::try_from(*generation_id).map_err(|_| Code::ILLEGAL_GENERATION)?;
    Ok(Some(Committer::Member { who: Identity { member, instance }, epoch }))
}

fn committed(
    broker: &Broker,
    caller: &Caller,
    topic: &str,
    partition: &TxnOffsetCommitRequestPartition,
) -> Result<(TopicPartition, Committed), Code> {
    let at = find(broker, caller, COMMIT_OFFSETS, topic, partition.partition_index)?;
    let metadata = partition.committed_metadata.clone().unwrap_or_default();
    if metadata.len() > OFFSET_METADATA_BYTES_MAX {
        return Err(Code::OFFSET_METADATA_TOO_LARGE);
    }
    // tidy: no log contains it
    let offset = u64::try_from(partition.committed_offset).map_err(|_| Code::OFFSET_OUT_OF_RANGE)?;
    let leader_epoch = partition.committed_leader_epoch;
    Ok((at, Committed { offset, leader_epoch, metadata: metadata.into(), committed_ms: broker.now_ms() }))
}

pub(super) async fn describe(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    // As in Kafka (`handleDescribeTransactionsRequest` in `KafkaApis.scala`), which takes the other topics away.
    let may_see = |topic: &TopicName| caller.may_use(broker, DESCRIBE, &Resource::topic(topic.as_str())).is_ok();
    let mut transaction_states = Vec::new();
    for id in distinct(request.transactional_ids) {
        yield_now().await;
        let found = match transactional_id(broker, caller, DESCRIBE, &id) {
            Ok(id) => broker.transactions.describe(&id).await.map_err(|refused| code(&refused)),
            Err(code) => Err(code),
        };
        transaction_states.push(found.map_or_else(
            |code| describe_transactions::TransactionState {
                error_code: code.0,
                transactional_id: id.clone(),
                ..Default::default()
            },
            |transaction| described(id.clone(), transaction, may_see),
        ));
    }
    DescribeTransactionsResponse { transaction_states, ..Default::default() }
}

/// Returns a transaction without the topics that the caller may not see.
fn described(
    transactional_id: String,
    transaction: Transaction,
    may_see: impl Fn(&TopicName) -> bool,
) -> describe_transactions::TransactionState {
    let mut topics: BTreeMap<TopicName, Vec<i32>> = BTreeMap::new();
    for at in transaction.partitions {
        topics.entry(at.topic).or_default().push(at.partition as i32);
    }
    topics.retain(|topic, _| may_see(topic));
    let topic = |(topic, partitions): (TopicName, _)| TopicData { topic: topic.to_string(), partitions };
    describe_transactions::TransactionState {
        transactional_id,
        transaction_state: name_of(transaction.phase).to_owned(),
        transaction_timeout_ms: transaction.timeout_ms as i32,
        transaction_start_time_ms: transaction.opened_ms.map_or(NONE, |opened_ms| opened_ms as i64),
        producer_id: transaction.producer.id,
        producer_epoch: transaction.producer.epoch,
        topics: topics.into_iter().map(topic).collect(),
        ..Default::default()
    }
}

pub(super) async fn list(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    let ListTransactionsRequest { state_filters, producer_id_filters, duration_filter, .. } = request;
    let all = match broker.transactions.list().await {
        Ok(all) => all,
        Err(error) => {
            return ListTransactionsResponse { error_code: of_coordinator(&error).0, ..Default::default() };
        }
    };
    let may_see =
        |summary: &broker::TransactionSummary| caller.sees(broker, LIST, &Resource::transaction(summary.id.as_str()));
    let states: HashSet<&str> = state_filters.iter().map(String::as_str).collect();
    let producers: HashSet<_> = producer_id_filters.into_iter().collect();
    let is_meant = |summary: &broker::TransactionSummary| {
        let is_state = states.is_empty() || states.contains(name_of(summary.phase));
        let is_producer = producers.is_empty() || producers.contains(&summary.producer.id);
        let is_long = duration_filter < 0 || summary.open_ms.is_some_and(|open_ms| open_ms as i64 > duration_filter);
        is_state && is_producer && is_long && may_see(summary)
    };
    let state = |summary: broker::TransactionSummary| list_transactions::TransactionState {
        transactional_id: summary.id.to_string(),
        producer_id: summary.producer.id,
        transaction_state: name_of(summary.phase).to_owned(),
    };
    let is_unknown = |name: &&String| !Phase::ALL.into_iter().any(|phase| name_of(phase) == name.as_str());
    ListTransactionsResponse {
        unknown_state_filters: state_filters.iter().filter(is_unknown).cloned().collect(),
        transaction_states: all.into_iter().filter(is_meant).map(state).collect(),
        ..Default::default()
    }
}

pub(super) async fn describe_producers(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let partition = |topic: &str, partition_index: i32| {
        let found = find(broker, caller, DESCRIBE_PRODUCERS, topic, partition_index).and_then(|at| {
            broker.transactions.describe_producers(topic, at.partition).map_err(|error| errors::code(&error))
        });
        match found {
            Ok(producers) => PartitionResponse {
                partition_index,
                active_producers: producers.iter().map(producer_state).collect(),
                ..Default::default()
            },
            Err(code) => PartitionResponse { partition_index, error_code: code.0, ..Default::default() },
        }
    };
    let mut topics = Vec::new();
    for (name, indexes) in distinct_partitions(request.topics.into_iter().map(|of| (of.name, of.partition_indexes))) {
        let mut partitions = Vec::with_capacity(indexes.len());
        for index in indexes {
            // A partition may have thousands of producers.
            yield_now().await;
            partitions.push(partition(&name, index));
        }
        topics.push(TopicResponse { name, partitions });
    }
    DescribeProducersResponse { topics, ..Default::default() }
}

fn producer_state(status: &ProducerStatus) -> ProducerState {
    ProducerState {
        producer_id: status.id,
        producer_epoch: status.epoch.into(),
        last_sequence: status.last_sequence.unwrap_or(-1),
        last_timestamp: status.timestamp_ms.unwrap_or(NONE),
        current_txn_start_offset: status.open.map_or(NONE, |open| open as i64),
        ..Default::default()
    }
}

fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Empty => "Empty",
        Phase::Open => "Ongoing",
        Phase::Prepared(Decision::Commit) => "PrepareCommit",
        Phase::Prepared(Decision::Abort) => "PrepareAbort",
        Phase::Complete(Decision::Commit) => "CompleteCommit",
        Phase::Complete(Decision::Abort) => "CompleteAbort",
    }
}

/// Parses a transactional id, if the caller has the permission that the API with this key requires.
fn transactional_id(broker: &Broker, caller: &Caller, key: i16, id: &str) -> Result<TransactionalId, Code> {
    caller.may_use(broker, key, &Resource::transaction(id))?;
    TransactionalId::parse(id).map_err(|error| errors::code(&error))
}

fn group(broker: &Broker, caller: &Caller, key: i16, name: &str) -> Result<GroupName, Code> {
    caller.may_use(broker, key, &Resource::group(name))?;
    // tidy: the code is sufficient
    GroupName::parse(name).map_err(|_| Code::INVALID_GROUP_ID)
}

/// Finds a partition that clients may write to, if the caller has the permission on its topic that the API with this
/// key requires.
fn find(broker: &Broker, caller: &Caller, key: i16, topic: &str, index: i32) -> Result<TopicPartition, Code> {
    caller.may_use(broker, key, &Resource::topic(topic))?;
    // tidy: an invalid name or number means that the partition does not exist
    let topic = TopicName::parse(topic).map_err(|_| Code::UNKNOWN_TOPIC_OR_PARTITION)?;
    if topic.is_internal() {
        return Err(Code::INVALID_TOPIC_EXCEPTION);
    }
    let (_, partitions) = broker.find_topic(topic.as_str()).ok_or(Code::UNKNOWN_TOPIC_OR_PARTITION)?;
    match u32::try_from(index) {
        Ok(partition) if partition < partitions => Ok(TopicPartition { topic, partition }),
        _ => Err(Code::UNKNOWN_TOPIC_OR_PARTITION),
    }
}

fn of(outcome: Result<(), TransactionError>) -> Code {
    outcome.map_or_else(|refused| code(&refused), |()| Code::NONE)
}

fn code(refused: &TransactionError) -> Code {
    match refused.reason {
        TransactionReason::NoSuchId => Code::TRANSACTIONAL_ID_NOT_FOUND,
        TransactionReason::OtherProducer => Code::INVALID_PRODUCER_ID_MAPPING,
        TransactionReason::Fenced => Code::PRODUCER_FENCED,
        TransactionReason::Concurrent => Code::CONCURRENT_TRANSACTIONS,
        TransactionReason::WrongPhase => Code::INVALID_TXN_STATE,
        TransactionReason::InvalidTimeout => Code::INVALID_TRANSACTION_TIMEOUT,
        TransactionReason::Group(reason) => of_group(reason, &refused.error),
        TransactionReason::Other => of_coordinator(&refused.error),
    }
}

/// Returns the code for a group's refusal of offsets of a transaction.
fn of_group(reason: Reason, error: &Error) -> Code {
    match reason {
        Reason::UnknownMember => Code::UNKNOWN_MEMBER_ID,
        Reason::StaleEpoch | Reason::StaleGeneration | Reason::NotOwner => Code::ILLEGAL_GENERATION,
        Reason::ReplacedInstance => Code::FENCED_INSTANCE_ID,
        Reason::RebalanceInProgress => Code::REBALANCE_IN_PROGRESS,
        _ => of_coordinator(error),
    }
}

/// Returns the code for an error of the coordinator. Retriable codes make the client retry at the same coordinator.
fn of_coordinator(error: &Error) -> Code {
    match error.kind {
        ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::DiskFull => Code::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorKind::ShuttingDown | ErrorKind::Disconnected => Code::COORDINATOR_NOT_AVAILABLE,
        ErrorKind::NotLeader => Code::NOT_COORDINATOR,
        ErrorKind::Fenced => Code::PRODUCER_FENCED,
        _ => errors::code(error),
    }
}

/// Returns the older code for a fenced producer if the client's version is lower than `version`.
fn fenced_before(version: i16, caller: &Caller, code: Code) -> Code {
    if code == Code::PRODUCER_FENCED && caller.version < version { Code::INVALID_PRODUCER_EPOCH } else { code }
}

#[cfg(test)]
#[path = "transactions_tests.rs"]
mod tests;
