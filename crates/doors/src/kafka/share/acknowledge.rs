//! ShareAcknowledge, and the acknowledgements within a fetch: outcomes of messages that a member holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{AcquireFrom, Broker, Settlement};
use engine::Offset;
use engine::security::Resource;

use super::super::caller::Caller;
use super::super::cluster::node_id;
use super::super::errors::{self, Code};
use super::super::groups::{GroupSettings, group_for, member_id};
use super::super::messages::share_acknowledge::{
    AcknowledgePartition, AcknowledgementBatch, LeaderIdAndEpoch, PartitionData, ShareAcknowledgeRequest,
    ShareAcknowledgeResponse, ShareAcknowledgeTopicResponse,
};
use super::sessions::{BEGINS, Change, ENDS, Key, Place, Taken};
use super::{SHARE_ACKNOWLEDGE, topic_id, uuid};

/// Types of acknowledgements. `GAP` stands for an offset in an acquired range at which there is no message.
const GAP: i8 = 0;
const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const RENEW: i8 = 4;

/// Member that acknowledges, with the context of its request.
pub(super) struct Member<'a> {
    pub broker: &'a Arc<Broker>,
    pub caller: &'a Caller,
    pub key: Key,
    pub settings: GroupSettings,
    /// Key of the API in use.
    pub api: i16,
}

pub(in super::super) async fn acknowledge(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ShareAcknowledgeRequest,
) -> ShareAcknowledgeResponse {
    match try_acknowledge(broker, caller, request).await {
        Ok(response) => response,
        Err(code) => ShareAcknowledgeResponse { error_code: code.0, ..Default::default() },
    }
}

async fn try_acknowledge(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ShareAcknowledgeRequest,
) -> Result<ShareAcknowledgeResponse, Code> {
    let group = request.group_id.as_deref();
    let id = request.member_id.as_deref();
    let member = Member::of(broker, caller, SHARE_ACKNOWLEDGE, group, id).await?;
    let epoch = request.share_session_epoch;
    if epoch == BEGINS {
        return Err(Code::INVALID_SHARE_SESSION_EPOCH);
    }
    caller.shares.sessions.step(&member.key, caller.shares.id, epoch, Change::default())?;
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for AcknowledgePartition { partition_index, acknowledgement_batches } in topic.partitions {
            let place = (topic_id(topic.topic_id), partition_index as u32);
            let batches: Vec<Batch> = acknowledgement_batches.into_iter().map(Batch::from).collect();
            let code = member.settle(&place, &batches, request.is_renew_ack).await.err().unwrap_or(Code::NONE);
            let current_leader = LeaderIdAndEpoch { leader_id: node_id(broker), leader_epoch: broker.leader_epoch() };
            partitions.push(PartitionData {
                partition_index,
                error_code: code.0,
                current_leader,
                ..Default::default()
            });
        }
        responses.push(ShareAcknowledgeTopicResponse { topic_id: topic.topic_id, partitions });
    }
    if epoch == ENDS {
        caller.shares.sessions.end(broker, &member.key).await;
    }
    let acquisition_lock_timeout_ms = member.settings.lease_ms as i32;
    Ok(ShareAcknowledgeResponse { responses, acquisition_lock_timeout_ms, ..Default::default() })
}

/// Acknowledgement of a range of messages, with one type for all or one for each.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub first: i64,
    pub last: i64,
    pub kinds: Vec<i8>,
}

impl From<AcknowledgementBatch> for Batch {
    fn from(batch: AcknowledgementBatch) -> Self {
        Self { first: batch.first_offset, last: batch.last_offset, kinds: batch.acknowledge_types }
    }
}

impl<'a> Member<'a> {
    pub(super) async fn of(
        broker: &'a Arc<Broker>,
        caller: &'a Caller,
        api: i16,
        group: Option<&str>,
        member: Option<&str>,
    ) -> Result<Self, Code> {
        let group = group_for(broker, caller, api, group.unwrap_or_default()).map_err(|refused| refused.code)?;
        let member = member_id(member.unwrap_or_default()).map_err(|refused| refused.code)?;
        let settings = GroupSettings::of(broker, &group).await.map_err(|error| errors::code(&error))?;
        Ok(Self { broker, caller, key: Key { group, member }, settings, api })
    }

    /// Settles messages of one partition, either all of them or none.
    pub(super) async fn settle(&self, place: &Place, batches: &[Batch], renews: bool) -> Result<(), Code> {
        let topic = self.caller.topic_by_id(self.broker, uuid(place.0)).ok_or(Code::UNKNOWN_TOPIC_ID)?;
        self.caller.may_use(self.broker, self.api, &Resource::topic(topic.as_str()))?;
        check(batches, renews && self.settings.renews)?;
        if batches.is_empty() {
            return Ok(());
        }
        let sessions = &self.caller.shares.sessions;
        let look = |taken: &Taken| {
            let settlements = settlements(batches, &taken.leases, self.settings.lease_ms)?;
            Some((taken.queue.clone(), settlements))
        };
        let found = sessions.taken(&self.key, place, look).flatten();
        let (queue, settlements) = found.ok_or(Code::INVALID_RECORD_STATE)?;
        let from = AcquireFrom { queue, partition: place.1 };
        let settled = self.broker.queues.settle(&from, &settlements, self.settings.attempts_max).await;
        if settled.map_err(|error| errors::code(&error))?.is_err() {
            return Err(Code::INVALID_RECORD_STATE);
        }
        let is_over = |how: &Settlement| !matches!(how, Settlement::Held(_));
        let over = settlements.into_iter().filter(|(.., how)| is_over(how)).map(|(offset, lease, _)| (offset, lease));
        sessions.forget(&self.key, place, &over.collect::<Vec<_>>());
        Ok(())
    }
}

/// Checks that the batches are in order without overlaps, and have one type or one type per message.
fn check(batches: &[Batch], may_renew: bool) -> Result<(), Code> {
    let mut after = -1;
    for Batch { first, last, kinds } in batches {
        let count = last.checked_sub(*first).and_then(|count| count.checked_add(1)).filter(|count| *count > 0);
        let says_each = kinds.len() == 1 || count == Some(kinds.len() as i64);
        let is_known = |kind: &i8| (GAP..=REJECT).contains(kind) || (*kind == RENEW && may_renew);
        if *first <= after || count.is_none() || kinds.is_empty() || !says_each || !kinds.iter().all(is_known) {
            return Err(Code::INVALID_REQUEST);
        }
        after = *last;
    }
    Ok(())
}

/// Returns the outcome of each message; `None` if the member does not hold one of them.
fn settlements(
    batches: &[Batch],
    leases: &BTreeMap<Offset, u64>,
    lease_ms: u64,
) -> Option<Vec<(Offset, u64, Settlement)>> {
    let mut settlements = Vec::new();
    for Batch { first, last, kinds } in batches {
        let first = *first as Offset;
        let last = *last as Offset;
        // Only messages that the member holds are visited, however long the range is.
        let before = settlements.len();
        for (offset, lease) in leases.range(first..=last) {
            let kind = if kinds.len() == 1 { kinds[0] } else { kinds[(offset - first) as usize] };
            let how = match kind {
                RELEASE => Settlement::Back,
                RENEW => Settlement::Held(lease_ms),
                GAP | ACCEPT | REJECT => Settlement::Done,
                _ => return None,
            };
            settlements.push((*offset, *lease, how));
        }
        if (settlements.len() - before) as u64 != last - first + 1 {
            return None;
        }
    }
    Some(settlements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: i64, last: i64, kinds: &[i8]) -> Batch {
        Batch { first, last, kinds: kinds.to_vec() }
    }

    #[test]
    fn batches_say_something_of_each_of_their_messages() {
        let cases: [(&[Batch], Result<(), Code>); 10] = [
            (&[], Ok(())),
            (&[batch(0, 0, &[ACCEPT]), batch(1, 3, &[GAP, RELEASE, REJECT]), batch(9, 20, &[ACCEPT])], Ok(())),
            (&[batch(3, 2, &[ACCEPT])], Err(Code::INVALID_REQUEST)),
            (&[batch(-1, 2, &[ACCEPT])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, i64::MAX, &[ACCEPT, ACCEPT])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, 2, &[ACCEPT, ACCEPT])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, 2, &[])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, 2, &[5])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, 2, &[RENEW])], Err(Code::INVALID_REQUEST)),
            (&[batch(0, 2, &[ACCEPT]), batch(2, 3, &[ACCEPT])], Err(Code::INVALID_REQUEST)),
        ];
        for (batches, expected) in cases {
            assert_eq!(check(batches, false), expected, "{batches:?}");
        }
        assert_eq!(check(&[batch(0, 2, &[RENEW])], true), Ok(()));
    }

    #[test]
    fn only_records_that_a_member_has_acquired_are_settled() {
        let leases: BTreeMap<Offset, u64> = [(3, 30), (4, 40), (5, 50), (7, 70)].into();
        let done = Settlement::Done;
        let back = Settlement::Back;
        let held = Settlement::Held(9);
        let found = settlements(&[batch(3, 5, &[ACCEPT, RELEASE, GAP]), batch(7, 7, &[RENEW])], &leases, 9);
        assert_eq!(found, Some(vec![(3, 30, done), (4, 40, back), (5, 50, done), (7, 70, held)]));
        for lacking in [batch(5, 7, &[ACCEPT]), batch(0, 3, &[ACCEPT]), batch(0, i64::MAX, &[REJECT])] {
            assert_eq!(settlements(std::slice::from_ref(&lacking), &leases, 9), None, "{lacking:?}");
        }
    }
}
