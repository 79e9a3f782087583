//! Consumer groups from outside: what they are, how far they have read, and setting that.

use std::time::Duration;

use engine::{Error, Offset, PartitionId, Result, TopicName, TopicPartition};
use wire::groups::{ByTopic, CommittedOffset, GroupInfo, GroupSummary, NewOffset, OffsetCommit, OffsetReset};
use wire::{GroupRequest, GroupResponse, Request, Response};

use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;

/// Groups in one answer.
const LIST_COUNT: u32 = 500;

impl Client {
    /// All consumer groups in the order of their names.
    pub async fn list_groups(&self) -> Result<Vec<GroupSummary>> {
        let mut found: Vec<GroupSummary> = Vec::new();
        loop {
            let after = found.last().map_or(String::new(), |group| group.group.clone());
            match call(&self.session, GroupRequest::List { after, count_max: LIST_COUNT }).await? {
                GroupResponse::Groups { groups, is_last } => {
                    found.extend(groups);
                    if is_last {
                        return Ok(found);
                    }
                }
                other => return Err(unexpected(&Response::Group(other))),
            }
        }
    }

    /// The members of a group, who of them reads what, and how far the group is in each partition.
    pub async fn describe_group(&self, group: &str) -> Result<GroupInfo> {
        match call(&self.session, GroupRequest::Describe { group: group.to_owned() }).await? {
            GroupResponse::Described(info) => Ok(info),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// Deletes a group with its offsets. One that has members is `busy`.
    pub async fn delete_group(&self, group: &str) -> Result<()> {
        match call(&self.session, GroupRequest::Delete { group: group.to_owned() }).await? {
            GroupResponse::Deleted => Ok(()),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// Sets or forgets the offsets of a group without members, and returns what they are then, or would be.
    pub async fn reset_offsets(&self, reset: OffsetReset) -> Result<Vec<(PartitionId, Option<Offset>)>> {
        match call(&self.session, GroupRequest::Reset(reset)).await? {
            GroupResponse::Reset(offsets) => Ok(offsets),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// How far a group has committed: in these partitions, or in all where none is named. Partitions without a
    /// committed offset are left out.
    pub async fn committed_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<(TopicPartition, CommittedOffset)>> {
        committed_offsets(&self.session, group, partitions).await
    }

    /// Commits offsets for a group that has no members, such as one whose partitions a program chooses itself.
    pub async fn commit_offsets(&self, group: &str, offsets: &[(TopicPartition, Offset)]) -> Result<()> {
        let new = OffsetCommit {
            group: group.to_owned(),
            member: String::new(),
            instance: String::new(),
            epoch: 0,
            offsets: by_topic(offsets.iter().map(|(at, offset)| (at, new_offset(at, *offset, "")))),
        };
        commit(&self.session, new).await
    }
}

pub(crate) async fn committed_offsets(
    session: &Session,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<Vec<(TopicPartition, CommittedOffset)>> {
    let partitions = by_topic(partitions.iter().map(|at| (at, at.partition)));
    match call(session, GroupRequest::Fetch { group: group.to_owned(), partitions }).await? {
        GroupResponse::Offsets(topics) => {
            let mut found = Vec::new();
            for (topic, offsets) in topics {
                let topic = TopicName::parse(&topic)?;
                let of = |offset: CommittedOffset| {
                    (TopicPartition { topic: topic.clone(), partition: offset.partition }, offset)
                };
                found.extend(offsets.into_iter().map(of));
            }
            Ok(found)
        }
        other => Err(unexpected(&Response::Group(other))),
    }
}

pub(crate) async fn commit(session: &Session, commit: OffsetCommit) -> Result<()> {
    match call(session, GroupRequest::Commit(commit)).await? {
        GroupResponse::Committed => Ok(()),
        other => Err(unexpected(&Response::Group(other))),
    }
}

async fn call(session: &Session, request: GroupRequest) -> Result<GroupResponse> {
    call_within(session, request, session.settings().request_timeout).await
}

/// Calls with a request whose answer the broker may keep back, such as a heartbeat.
pub(crate) async fn call_within(session: &Session, request: GroupRequest, timeout: Duration) -> Result<GroupResponse> {
    match session.call_within(&Request::Group(request), timeout).await? {
        Response::Group(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn new_offset(at: &TopicPartition, offset: Offset, metadata: &str) -> NewOffset {
    NewOffset { partition: at.partition, offset, metadata: metadata.to_owned() }
}

/// Neighbours of the same topic together.
pub(crate) fn by_topic<'a, T>(entries: impl Iterator<Item = (&'a TopicPartition, T)>) -> ByTopic<T> {
    let mut topics: ByTopic<T> = Vec::new();
    for (at, entry) in entries {
        match topics.last_mut() {
            Some((last, entries)) if last == at.topic.as_str() => entries.push(entry),
            _ => topics.push((at.topic.to_string(), vec![entry])),
        }
    }
    topics
}

/// The partitions of an assignment.
pub(crate) fn partitions_of(topics: ByTopic<PartitionId>) -> Result<Vec<TopicPartition>, Error> {
    let mut found = Vec::new();
    for (topic, partitions) in topics {
        let topic = TopicName::parse(&topic)?;
        let of_topic = partitions.into_iter().map(|partition| TopicPartition { topic: topic.clone(), partition });
        found.extend(of_topic);
    }
    Ok(found)
}
