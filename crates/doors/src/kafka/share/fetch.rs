//! ShareFetch: messages for a member of a share group, in batches whose bytes are shared by all readers.

use std::collections::BTreeMap;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use broker::{AcquireFrom, AcquireLimits, Acquired, Broker, Usage};
use bytes::BufMut;
use engine::queue::{Lease, QueueName};
use engine::security::Resource;
use engine::{RecordBatch, TopicId, TopicName};
use futures_util::FutureExt;
use futures_util::future::Either;
use net::service::Out;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_local;

use super::super::caller::{Caller, millis};
use super::super::cluster::node_id;
use super::super::errors::{self, Code};
use super::super::fetch::{Batches, FetchBudget};
use super::super::groups::GroupSettings;
use super::super::messages::share_fetch::{
    AcknowledgementBatch, AcquiredRecords, FetchPartition, FetchTopic, ShareFetchRequest,
};
use super::super::write::Write;
use super::acknowledge::{Batch, Member};
use super::sessions::{BEGINS, Change, ENDS, Key, Place};
use super::{SHARE_FETCH, topic_id, uuid};

/// Maximum bytes in the response to one request, beyond its first batch.
const BYTES_MAX: usize = 32 << 20;

/// Response to a member's fetch.
#[derive(Debug, Default)]
pub(in super::super) struct ShareFetched {
    code: Code,
    /// Duration of the leases on the messages.
    lease_ms: u64,
    partitions: BTreeMap<Place, PartitionShared>,
    /// Permit for the bytes of all batches.
    permit: Option<OwnedSemaphorePermit>,
    /// Time in ms for which the client is delayed.
    throttle_ms: i32,
    /// Leader of all partitions, and its epoch.
    leader: (i32, i32),
}

#[derive(Debug, Default)]
struct PartitionShared {
    code: Code,
    /// Outcome of the acknowledgements in the request.
    settled: Code,
    batches: Vec<RecordBatch>,
    /// Ranges of the messages in the batches that the member acquired.
    acquired: Vec<AcquiredRecords>,
}

impl From<AcknowledgementBatch> for Batch {
    fn from(batch: AcknowledgementBatch) -> Self {
        Self { first: batch.first_offset, last: batch.last_offset, kinds: batch.acknowledge_types }
    }
}

/// Fetch whose acknowledgements have been processed.
struct Settled {
    answer: ShareFetched,
    key: Key,
    settings: GroupSettings,
    /// Partitions from which the member acquires messages; `None` if it acquires none.
    takes: Option<(Vec<Place>, AcquireLimits)>,
}

/// Processes the acknowledgements of a member, then acquires messages for it. The acknowledgements are processed even
/// if the wait for messages is cancelled.
pub(in super::super) fn fetch(
    broker: Arc<Broker>,
    budget: FetchBudget,
    caller: Rc<Caller>,
    request: ShareFetchRequest,
) -> impl Future<Output = ShareFetched> {
    let has_acks = request.topics.iter().flat_map(|of| &of.partitions).any(|of| !of.acknowledgement_batches.is_empty());
    let is_settled_whatever_comes = has_acks || request.share_session_epoch == ENDS;
    let settling = {
        let broker = broker.clone();
        let caller = caller.clone();
        async move { settle(&broker, &caller, request).await }
    };
    let settling = if is_settled_whatever_comes {
        Either::Left(spawn_local(settling).map(|settled| {
            settled.unwrap_or_else(|error| {
                tracing::error!(%error, "the acknowledgements of a member failed");
                Err(Code::UNKNOWN_SERVER_ERROR)
            })
        }))
    } else {
        Either::Right(settling)
    };
    async move {
        match settling.await {
            Err(code) => ShareFetched { code, ..ShareFetched::default() },
            Ok(Settled { mut answer, key, settings, takes }) => {
                if let Some((places, limits)) = takes {
                    let member = Member { broker: &broker, caller: &caller, key, settings, api: SHARE_FETCH };
                    answer.take(&member, &budget, &places, &limits).await;
                }
                answer
            }
        }
    }
}

async fn settle(broker: &Arc<Broker>, caller: &Caller, request: ShareFetchRequest) -> Result<Settled, Code> {
    let group = request.group_id.as_deref();
    let id = request.member_id.as_deref();
    let member = Member::of(broker, caller, SHARE_FETCH, group, id).await?;
    let epoch = request.share_session_epoch;
    let limits = AcquireLimits {
        records_max: request.max_records.max(0) as usize,
        bytes_max: (request.max_bytes.max(0) as usize).min(BYTES_MAX),
        wait: Duration::from_millis(request.max_wait_ms.max(0) as u64),
        ..member.settings.limits()
    };
    let (named, settles) = named(request.topics);
    if epoch == BEGINS && !settles.is_empty() {
        return Err(Code::INVALID_REQUEST);
    }
    let forgotten = request.forgotten_topics_data.iter().flat_map(|of| {
        let id = topic_id(of.topic_id);
        of.partitions.iter().map(move |partition| (id, *partition as u32))
    });
    let change = Change { added: named, forgotten: forgotten.collect() };
    let places = caller.shares.sessions.step(&member.key, caller.shares.id, epoch, change)?;
    let leader = (node_id(broker), broker.leader_epoch());
    let mut answer = ShareFetched { lease_ms: member.settings.lease_ms, leader, ..ShareFetched::default() };
    for (place, batches) in &settles {
        let settled = member.settle(place, batches, request.is_renew_ack).await.err().unwrap_or(Code::NONE);
        answer.partitions.entry(*place).or_default().settled = settled;
    }
    if epoch == ENDS {
        caller.shares.sessions.end(broker, &member.key).await;
    }
    let takes = (epoch != ENDS && !request.is_renew_ack).then_some((places, limits));
    Ok(Settled { answer, key: member.key, settings: member.settings, takes })
}

/// Returns the partitions that a request names, and its acknowledgements.
fn named(topics: Vec<FetchTopic>) -> (Vec<Place>, Vec<(Place, Vec<Batch>)>) {
    let mut named = Vec::new();
    let mut settles = Vec::new();
    for FetchTopic { topic_id: id, partitions } in topics {
        for FetchPartition { partition_index, acknowledgement_batches } in partitions {
            let place = (topic_id(id), partition_index as u32);
            named.push(place);
            if !acknowledgement_batches.is_empty() {
                settles.push((place, acknowledgement_batches.into_iter().map(Batch::from).collect()));
            }
        }
    }
    (named, settles)
}

impl Member<'_> {
    /// Returns the queue that a member consumes from, if it may. Every existing topic has a queue for its group.
    async fn queue(&self, topic: TopicId) -> Result<QueueName, Code> {
        let topic = self.topic(topic)?;
        let queue = self.broker.groups.share_queue(&self.key.group, &topic, self.settings.start).await;
        queue.map_err(|error| errors::code(&error))
    }

    /// Returns a topic that the member may read.
    fn topic(&self, topic: TopicId) -> Result<TopicName, Code> {
        let topic = self.caller.topic_by_id(self.broker, uuid(topic)).ok_or(Code::UNKNOWN_TOPIC_ID)?;
        self.caller.may_use(self.broker, self.api, &Resource::topic(topic.as_str()))?;
        Ok(topic)
    }

    /// Acquires messages. During a shutdown, a waiting request is answered with the messages that are available. Fails
    /// as soon as the member may no longer read one of the topics.
    async fn acquire(
        &self,
        of: &[Place],
        from: &[AcquireFrom],
        limits: &AcquireLimits,
    ) -> Result<Vec<engine::Result<Acquired>>, Code> {
        let check = || ready(of.iter().try_for_each(|(topic, _)| self.topic(*topic).map(drop)));
        tokio::select! {
            found = self.broker.security.while_permitted(check, self.broker.queues.acquire(from, limits)) => found,
            () = self.caller.leaving.begun() => {
                Ok(self.broker.queues.acquire(from, &AcquireLimits { wait: Duration::ZERO, ..*limits }).await)
            }
        }
    }
}

impl ShareFetched {
    /// Charges the request and its response to the client's quotas, and sets the time for which the client is delayed.
    /// The messages are leased, so they are delivered all the same.
    pub(in super::super) fn throttle(&mut self, broker: &Broker, caller: &Caller) {
        let batches = self.partitions.values().flat_map(|partition| &partition.batches);
        let bytes_out: usize = batches.map(RecordBatch::len).sum();
        self.throttle_ms = millis(caller.charge(broker, Usage { requests: 1, ..Usage::response(bytes_out) }));
    }

    /// Acquires messages for a member. Partitions with neither an error nor messages are left out of the response.
    async fn take(&mut self, member: &Member<'_>, budget: &FetchBudget, places: &[Place], limits: &AcquireLimits) {
        let mut from = Vec::new();
        let mut of = Vec::new();
        let mut limits = *limits;
        for of_topic in places.chunk_by(|a, b| a.0 == b.0) {
            let queue = member.queue(of_topic[0].0).await;
            for place in of_topic {
                match &queue {
                    Ok(queue) => {
                        from.push(AcquireFrom { queue: queue.clone(), partition: place.1 });
                        of.push(*place);
                    }
                    Err(code) => {
                        self.partitions.entry(*place).or_default().code = *code;
                        limits.wait = Duration::ZERO;
                    }
                }
            }
        }
        if from.is_empty() || limits.records_max == 0 {
            return;
        }
        let Ok(mut found) = member.acquire(&of, &from, &limits).await else {
            for place in of {
                self.partitions.entry(place).or_default().code = member.topic(place.0).err().unwrap_or(Code::NONE);
            }
            return;
        };
        let batches = found.iter().flatten().flat_map(|acquired| &acquired.batches);
        let bytes = batches.map(RecordBatch::len).sum();
        self.permit = budget.acquire_bytes(bytes);
        if self.permit.is_none() {
            // The acquired messages are released before the wait for room in the budget: the member fetches again.
            found.clear();
            budget.wait_bytes(bytes).await;
            return;
        }
        for ((place, from), acquired) in of.iter().zip(&from).zip(found) {
            match acquired {
                Err(error) => self.partitions.entry(*place).or_default().code = errors::code(&error),
                Ok(acquired) if acquired.leases().is_empty() => {}
                Ok(mut acquired) => {
                    let sessions = &member.caller.shares.sessions;
                    if !sessions.take(&member.key, *place, &from.queue, acquired.leases()) {
                        continue;
                    }
                    let leases = acquired.keep();
                    let partition = self.partitions.entry(*place).or_default();
                    partition.acquired = ranges(&leases);
                    partition.batches = std::mem::take(&mut acquired.batches);
                    sessions.tidy(member.broker, &member.key, place).await;
                }
            }
        }
    }

    pub(in super::super) fn encode(self, out: &mut Out) {
        let count = self.partitions.values().map(|partition| partition.batches.len()).sum();
        let mut batches = Batches::new(count, self.permit);
        let partitions: Vec<(Place, PartitionShared)> = self.partitions.into_iter().collect();
        let topics = || partitions.chunk_by(|((a, _), _), ((b, _), _)| a == b);
        {
            let mut head = Write::new(out.buf(), true);
            head.put_i32(self.throttle_ms);
            head.put_i16(self.code.0);
            head.nullable_string(None);
            head.put_i32(self.lease_ms as i32);
            head.count(topics().count());
        }
        for of_topic in topics() {
            let mut head = Write::new(out.buf(), true);
            head.put_slice(&of_topic[0].0.0.to_bytes());
            head.count(of_topic.len());
            for ((_, number), partition) in of_topic {
                partition.encode(*number as i32, self.leader, &mut batches, out);
            }
            Write::new(out.buf(), true).tags();
        }
        let mut end = Write::new(out.buf(), true);
        // No endpoints of other nodes.
        end.count(0);
        end.tags();
    }
}

impl PartitionShared {
    fn encode(&self, number: i32, (leader, leader_epoch): (i32, i32), batches: &mut Batches, out: &mut Out) {
        let mut head = Write::new(out.buf(), true);
        head.put_i32(number);
        head.put_i16(self.code.0);
        head.nullable_string(None);
        head.put_i16(self.settled.0);
        head.nullable_string(None);
        head.put_i32(leader);
        head.put_i32(leader_epoch);
        head.tags();
        head.count(self.batches.iter().map(RecordBatch::len).sum());
        for batch in &self.batches {
            batches.put(batch.bytes().clone(), out);
        }
        let mut end = Write::new(out.buf(), true);
        end.count(self.acquired.len());
        for acquired in &self.acquired {
            end.put_i64(acquired.first_offset);
            end.put_i64(acquired.last_offset);
            end.put_i16(acquired.delivery_count);
            end.tags();
        }
        end.tags();
    }
}

/// Combines adjacent messages with the same delivery count into ranges.
fn ranges(leases: &[Lease]) -> Vec<AcquiredRecords> {
    let is_next = |a: &Lease, b: &Lease| a.offset + 1 == b.offset && a.attempts == b.attempts;
    let range = |run: &[Lease]| AcquiredRecords {
        first_offset: run[0].offset as i64,
        last_offset: run[run.len() - 1].offset as i64,
        delivery_count: i16::try_from(run[0].attempts).unwrap_or(i16::MAX),
    };
    leases.chunk_by(is_next).map(range).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use engine::{BatchBuilder, DraftBatch};

    use super::super::super::messages::share_fetch::ShareFetchResponse;
    use super::super::super::messages::{Message, Reader};
    use super::*;

    #[test]
    fn a_response_decodes_with_its_acquired_records_and_codes() {
        let mut builder = BatchBuilder::new();
        builder.push(0, None, Some(b"value"), &[]).expect("a record");
        let batch = builder.finish().map(|draft: DraftBatch| draft.stamp(7)).expect("a batch");
        let lease = |offset, attempts| Lease { offset, lease: 1, attempts, first_ms: 0 };
        let acquired = ranges(&[lease(3, 1), lease(4, 1), lease(5, 2), lease(7, 2), lease(8, 2)]);
        let shown: Vec<_> =
            acquired.iter().map(|run| (run.first_offset, run.last_offset, run.delivery_count)).collect();
        assert_eq!(shown, [(3, 4, 1), (5, 5, 2), (7, 8, 2)]);
        let topic = TopicId::new(3, 4);
        let batches = vec![batch.clone(), batch.clone()];
        let partition = PartitionShared { batches, acquired: acquired.clone(), ..Default::default() };
        let code = Code::UNKNOWN_TOPIC_ID;
        let settled = Code::INVALID_RECORD_STATE;
        let refused = PartitionShared { code, settled, ..Default::default() };
        let partitions = [((topic, 2), partition), ((topic, 5), refused)].into();
        let mut out = Out::default();
        ShareFetched { code: Code::NONE, lease_ms: 30_000, partitions, permit: None, throttle_ms: 0, leader: (1, 0) }
            .encode(&mut out);
        let bytes: Bytes = out.buf().split().freeze();
        for version in [1, 2] {
            let mut reader = Reader::new(bytes.clone());
            let response = ShareFetchResponse::decode(version, &mut reader).expect("an answer");
            assert_eq!((response.acquisition_lock_timeout_ms, reader.remaining()), (30_000, 0));
            let of = &response.responses[0];
            assert_eq!((of.topic_id, of.partitions.len()), (uuid(topic), 2));
            let [first, second] = &of.partitions[..] else { panic!("two partitions") };
            assert_eq!((first.partition_index, &first.acquired_records), (2, &acquired));
            assert_eq!(first.records, [&batch.bytes()[..], &batch.bytes()[..]].concat());
            assert_eq!((second.error_code, second.acknowledge_error_code), (code.0, settled.0));
        }
    }
}
