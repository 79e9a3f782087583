//! Mapping of requests to calls of the broker.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use broker::{Attempt, Broker, FetchFrom, FetchLimits, Fetched, Usage, Wakes};
use engine::security::Resource;
use engine::{Acks, DraftBatch, ErrorKind, PartitionId, Result};
use tokio::task::yield_now;

use super::acls;
use super::admin;
use super::caller::{Caller, Refusal, millis};
use super::cluster::check_leader_epoch;
use super::codec::{self, FETCH, PRODUCE};
use super::configs;
use super::errors::{self, Code};
use super::fetch::{self, FetchAnswer, FetchBudget, FetchRequest};
use super::groups;
use super::log;
use super::messages::{Request, Response};
use super::produce::{PartitionProduced, ProduceRequest, ProduceTopic, Produced};
use super::quotas;
use super::replicas;
use super::security;
use super::share;
use super::topics;
use super::transactions;

/// Batches of a request that are appended before other tasks of the thread get their turn.
pub(super) const BATCHES_PER_TURN: usize = 256;

/// Outcomes of the batches of a request so far, in the order of the request.
pub(super) type Attempts = Vec<Tried>;

/// Outcome of a batch so far.
pub(super) struct Tried {
    pub topic: Arc<str>,
    pub partition: PartitionId,
    pub attempt: Result<Attempt, Refusal>,
    /// Batch as received, if it waits and its topic requires a key in each record.
    pub sent: Option<DraftBatch>,
}

/// Appends every batch of a request to its partition.
pub(super) fn publish(broker: &Broker, caller: &Caller, wakes: &mut Wakes, request: ProduceRequest) -> Attempts {
    let acks = request.acks.unwrap_or(Acks::Committed);
    let may_write = request.transactional_id.as_deref().map_or(Ok(()), |id| {
        let may = caller.may_use(broker, PRODUCE, &Resource::transaction(id));
        may.map_err(|code| Refusal::denied(code, &format!("transactional id '{id}'")))
    });
    // A client must not bypass the permission on a transactional id by omitting the id.
    let names_transaction = request.transactional_id.is_some();
    let mut attempts = Vec::new();
    for ProduceTopic { name, partitions } in request.topics {
        let name: Arc<str> = name.into();
        let may_publish = may_write.clone().and_then(|()| may_publish(broker, caller, &name));
        for (partition, batch) in partitions {
            let mut sent = None;
            let attempt = may_publish.clone().and_then(|is_compacted| {
                let batch = DraftBatch::parse(batch).inspect_err(|_| broker.metrics().publish_errors.add(1));
                let batch = batch.map_err(Refusal::of_batch)?;
                // No consumer could decompress it.
                batch.codec().map_err(Refusal::of_batch)?;
                if batch.is_transactional() && !names_transaction {
                    return Err(Refusal::denied(Code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "an unnamed transaction"));
                }
                sent = is_compacted.then(|| batch.clone());
                let attempt = broker.try_publish(&name, Some(partition), acks, batch, wakes);
                attempt.map_err(|error| {
                    let is_of_records = error.kind == ErrorKind::Invalid;
                    let refusal = Refusal::of_batch(error);
                    match sent.take().filter(|_| is_of_records) {
                        Some(sent) => refusal.for_want_of_keys(&name, &sent),
                        None => refusal,
                    }
                })
            });
            let sent = sent.filter(|_| matches!(attempt, Ok(Attempt::Waits(_))));
            attempts.push(Tried { topic: name.clone(), partition, attempt, sent });
        }
    }
    attempts
}

/// Appends the batches of a large request, and lets other tasks of the thread run in between.
pub(super) async fn publish_in_turns(broker: &Broker, caller: &Caller, request: ProduceRequest) -> Attempts {
    let mut attempts = Vec::new();
    for slice in request.slices(BATCHES_PER_TURN) {
        // Dropping it wakes the subscribers.
        let mut wakes = Wakes::default();
        attempts.append(&mut publish(broker, caller, &mut wakes, slice));
        drop(wakes);
        yield_now().await;
    }
    attempts
}

/// Checks that the caller may publish to a topic and that it exists (clients create a topic by requesting its
/// metadata). Returns `true` if the topic is compacted.
fn may_publish(broker: &Broker, caller: &Caller, topic: &str) -> Result<bool, Refusal> {
    let may = caller.may_use(broker, PRODUCE, &Resource::topic(topic));
    may.map_err(|code| Refusal::denied(code, &format!("topic '{topic}'")))?;
    let Some(is_compacted) = broker.is_compacted(topic) else {
        let error = engine::TopicName::parse(topic).err();
        let code = if error.is_some() { Code::INVALID_TOPIC_EXCEPTION } else { Code::UNKNOWN_TOPIC_OR_PARTITION };
        let message = error.map_or_else(|| format!("there is no topic '{topic}'"), |error| error.message);
        return Err(Refusal::new(code, message));
    };
    if engine::ids::is_internal(topic) {
        let message = format!("'{topic}' is a topic of the broker itself; clients can only read it");
        return Err(Refusal::new(Code::INVALID_TOPIC_EXCEPTION, message));
    }
    if engine::ids::is_inbox(topic) {
        let message = format!("'{topic}' is the inbox of a client, and only replies can be sent to it");
        return Err(Refusal::new(Code::INVALID_TOPIC_EXCEPTION, message));
    }
    Ok(is_compacted)
}

/// Counts a failed publish for which no acknowledgement was requested.
pub(super) fn publish_lost(broker: &Broker, topic: &str, why: &str) {
    broker.metrics().publish_lost.add(1);
    tracing::debug!(topic, why, "a publish without acknowledgement failed");
}

pub(super) fn produced(partition: PartitionId, published: Result<broker::Published, Refusal>) -> PartitionProduced {
    match published {
        Ok(published) => PartitionProduced {
            partition,
            code: Code::NONE,
            base_offset: published.base_offset as i64,
            arrival_ms: published.arrival_ms.unwrap_or(-1),
            message: None,
            records: Vec::new(),
        },
        Err(Refusal { code, message, records, .. }) => {
            PartitionProduced { message: Some(message), records, ..PartitionProduced::refused(partition, code) }
        }
    }
}

/// Refuses every batch of a request with the same code.
pub(super) fn refuse_all(request: ProduceRequest, code: Code) -> Produced {
    let refused = |(partition, _)| PartitionProduced::refused(partition, code);
    let topics = request.topics.into_iter();
    Produced {
        topics: topics.map(|topic| (topic.name.into(), topic.partitions.into_iter().map(refused).collect())).collect(),
        throttle_ms: 0,
    }
}

pub(super) async fn fetch(
    broker: &Broker,
    budget: &FetchBudget,
    caller: &Caller,
    request: &FetchRequest,
) -> FetchAnswer {
    if request.has_session {
        return FetchAnswer::refused(Code::FETCH_SESSION_ID_NOT_FOUND);
    }
    let FetchRequest { mut wait, bytes_min, isolation, .. } = *request;
    let throttle = caller.charge(broker, Usage { requests: 1, ..Usage::default() });
    let throttle = throttle.max(caller.debt(broker, Usage::response(1)));
    let bytes_max = request.batches_bytes_max(caller.version).min(caller.fetch_bytes_max(broker));
    // A permission that ends while the fetch waits is answered immediately.
    let (from, limits, refused, mut found) = loop {
        let (from, refused) = readable(broker, caller, request);
        let is_answered_now = refused.iter().any(Option::is_some) || !throttle.is_zero();
        wait = if is_answered_now { Duration::ZERO } else { wait };
        let limits = FetchLimits { bytes_min, bytes_max, wait, isolation };
        let check = || ready(if readable(broker, caller, request).1 == refused { Ok(()) } else { Err(()) });
        // During a shutdown, a waiting fetch is answered with the records that are available.
        let found = tokio::select! {
            found = broker.security.while_permitted(check, broker.fetch_many(&from, limits)) => found,
            () = caller.leaving.begun() => {
                Ok(broker.fetch_many(&from, FetchLimits { wait: Duration::ZERO, ..limits }).await)
            }
        };
        if let Ok(found) = found {
            break (from, limits, refused, found);
        }
    };
    let mut permit = budget.acquire(&found);
    if permit.is_none() {
        budget.wait(found).await;
        found = broker.fetch_many(&from, FetchLimits { wait: Duration::ZERO, ..limits }).await;
        permit = budget.acquire(&found);
    }
    if permit.is_none() {
        budget.withhold(&mut found);
    }
    // A client that is to slow down gets no records, as in Kafka.
    if !throttle.is_zero() {
        found.iter_mut().flatten().for_each(Fetched::withhold);
    }
    let fetched_bytes = fetch::bytes(&found);
    let throttle = throttle.max(caller.charge(broker, Usage::response(fetched_bytes)));
    let mut found = found.into_iter();
    let mut refused = refused.into_iter();
    let topics = request.topics.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().zip(&mut refused).map(|(wanted, refusal)| {
            let found = match refusal {
                Some(code) => Err(code),
                None => {
                    found.next().map_or(Err(Code::UNKNOWN_SERVER_ERROR), |found| found.map_err(|e| errors::code(&e)))
                }
            };
            (wanted.partition, found)
        });
        (topic.clone(), partitions.collect())
    });
    FetchAnswer { code: None, topics: topics.collect(), permit, throttle_ms: millis(throttle) }
}

/// Returns the partitions of a request that the caller may read, and for each partition of the request the refusal, if
/// there is one.
fn readable<'r>(
    broker: &Broker,
    caller: &Caller,
    request: &'r FetchRequest,
) -> (Vec<FetchFrom<'r>>, Vec<Option<Code>>) {
    let mut refused = Vec::new();
    let mut from = Vec::new();
    for (topic, partitions) in &request.topics {
        let may_read = caller.may_use(broker, FETCH, &Resource::topic(topic));
        for partition in partitions {
            let refusal = may_read.and_then(|()| check_leader_epoch(broker, partition.leader_epoch)).err();
            refused.push(refusal);
            from.extend(refusal.is_none().then(|| partition.from(topic)));
        }
    }
    (from, refused)
}

/// Answers any request that carries no records.
pub(super) async fn answer(broker: &Arc<Broker>, who: &Caller, request: Request) -> Response {
    use Request as Q;
    use Response as A;
    match request {
        Q::ApiVersions(_) => A::ApiVersions(codec::versions(Code::NONE)),
        Q::Metadata(r) => A::Metadata(topics::metadata(broker, who, r).await),
        Q::FindCoordinator(r) => A::FindCoordinator(topics::find_coordinator(broker, who, r)),
        Q::ListOffsets(r) => A::ListOffsets(log::list_offsets(broker, who, r).await),
        Q::OffsetForLeaderEpoch(r) => A::OffsetForLeaderEpoch(log::offset_for_leader_epoch(broker, who, r).await),
        Q::JoinGroup(r) => A::JoinGroup(groups::join(broker, who, r).await),
        Q::SyncGroup(r) => A::SyncGroup(groups::sync(broker, who, r).await),
        Q::Heartbeat(r) => A::Heartbeat(groups::heartbeat(broker, who, r).await),
        Q::LeaveGroup(r) => A::LeaveGroup(groups::leave(broker, who, r).await),
        Q::ConsumerGroupHeartbeat(r) => A::ConsumerGroupHeartbeat(groups::consumer_heartbeat(broker, who, r).await),
        Q::OffsetCommit(r) => A::OffsetCommit(groups::commit(broker, who, r).await),
        Q::OffsetFetch(r) => A::OffsetFetch(groups::fetch(broker, who, r).await),
        Q::OffsetDelete(r) => A::OffsetDelete(groups::delete_offsets(broker, who, r).await),
        Q::ListGroups(r) => A::ListGroups(groups::list(broker, who, r).await),
        Q::DescribeGroups(r) => A::DescribeGroups(groups::describe(broker, who, r).await),
        Q::ConsumerGroupDescribe(r) => A::ConsumerGroupDescribe(groups::describe_consumer(broker, who, r).await),
        Q::DeleteGroups(r) => A::DeleteGroups(groups::delete(broker, who, r).await),
        Q::ShareGroupHeartbeat(r) => A::ShareGroupHeartbeat(share::heartbeat(broker, who, r).await),
        Q::ShareGroupDescribe(r) => A::ShareGroupDescribe(share::describe(broker, who, r).await),
        Q::ShareAcknowledge(r) => A::ShareAcknowledge(share::acknowledge(broker, who, r).await),
        Q::DescribeShareGroupOffsets(r) => A::DescribeShareGroupOffsets(share::describe_offsets(broker, who, r).await),
        Q::AlterShareGroupOffsets(r) => A::AlterShareGroupOffsets(share::alter_offsets(broker, who, r).await),
        Q::DeleteShareGroupOffsets(r) => A::DeleteShareGroupOffsets(share::delete_offsets(broker, who, r).await),
        Q::InitProducerId(r) => A::InitProducerId(transactions::init_producer(broker, who, r).await),
        Q::AddPartitionsToTxn(r) => A::AddPartitionsToTxn(transactions::add_partitions(broker, who, r).await),
        Q::AddOffsetsToTxn(r) => A::AddOffsetsToTxn(transactions::add_offsets(broker, who, r).await),
        Q::EndTxn(r) => A::EndTxn(transactions::end(broker, who, r).await),
        Q::TxnOffsetCommit(r) => A::TxnOffsetCommit(transactions::commit_offsets(broker, who, r).await),
        Q::DescribeTransactions(r) => A::DescribeTransactions(transactions::describe(broker, who, r).await),
        Q::ListTransactions(r) => A::ListTransactions(transactions::list(broker, who, r).await),
        Q::DescribeProducers(r) => A::DescribeProducers(transactions::describe_producers(broker, who, r).await),
        Q::CreateTopics(r) => A::CreateTopics(admin::create_topics(broker, who, r).await),
        Q::DeleteTopics(r) => A::DeleteTopics(admin::delete_topics(broker, who, r).await),
        Q::DeleteRecords(r) => A::DeleteRecords(admin::delete_records(broker, who, r).await),
        Q::CreatePartitions(r) => A::CreatePartitions(admin::create_partitions(broker, who, r).await),
        Q::DescribeCluster(r) => A::DescribeCluster(admin::describe_cluster(broker, who, r)),
        Q::DescribeLogDirs(r) => A::DescribeLogDirs(replicas::describe_log_dirs(broker, who, r).await),
        Q::AlterReplicaLogDirs(r) => A::AlterReplicaLogDirs(replicas::alter_replica_log_dirs(broker, who, r)),
        Q::ElectLeaders(r) => A::ElectLeaders(replicas::elect_leaders(broker, who, r).await),
        Q::DescribeQuorum(r) => A::DescribeQuorum(replicas::describe_quorum(broker, who, r)),
        Q::AlterPartitionReassignments(r) => {
            A::AlterPartitionReassignments(replicas::alter_partition_reassignments(broker, who, r))
        }
        Q::DescribeTopicPartitions(r) => {
            A::DescribeTopicPartitions(admin::describe_topic_partitions(broker, who, r).await)
        }
        Q::ListPartitionReassignments(r) => {
            A::ListPartitionReassignments(replicas::list_partition_reassignments(broker, who, r))
        }
        Q::DescribeConfigs(r) => A::DescribeConfigs(configs::describe_configs(broker, who, r).await),
        Q::AlterConfigs(r) => A::AlterConfigs(configs::alter_configs(broker, who, r).await),
        Q::IncrementalAlterConfigs(r) => {
            A::IncrementalAlterConfigs(configs::incremental_alter_configs(broker, who, r).await)
        }
        Q::DescribeClientQuotas(r) => A::DescribeClientQuotas(quotas::describe(broker, who, r).await),
        Q::AlterClientQuotas(r) => A::AlterClientQuotas(quotas::alter(broker, who, r).await),
        Q::ListConfigResources(r) => A::ListConfigResources(configs::list_config_resources(broker, who, r).await),
        Q::DescribeAcls(r) => A::DescribeAcls(acls::describe_acls(broker, who, r).await),
        Q::CreateAcls(r) => A::CreateAcls(acls::create_acls(broker, who, r).await),
        Q::DeleteAcls(r) => A::DeleteAcls(acls::delete_acls(broker, who, r).await),
        Q::DescribeUserScramCredentials(r) => {
            A::DescribeUserScramCredentials(security::describe_user_scram_credentials(broker, who, r).await)
        }
        Q::AlterUserScramCredentials(r) => {
            A::AlterUserScramCredentials(security::alter_user_scram_credentials(broker, who, r).await)
        }
        Q::SaslHandshake(_) | Q::SaslAuthenticate(_) | Q::ShareFetch(_) => {
            unreachable!("invariant: the connection answers them itself")
        }
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
