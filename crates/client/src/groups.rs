//! Administration of consumer groups: their members and committed offsets, and resetting those offsets.

use std::time::Duration;

use engine::{Error, Offset, PartitionId, Result, TopicName, TopicPartition};
use wire::groups::{ByTopic, CommittedOffset, GroupInfo, GroupSummary, NewOffset, OffsetCommit, OffsetReset};
use wire::{GroupRequest, GroupResponse, Request, Response};

use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;

/// Groups per list request.
const LIST_COUNT: u32 = 500;

impl Client {
    /// Returns all consumer groups in the order of their names.
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

    /// Returns the members of a group with their partitions, and the group's progress in each partition.
    pub async fn describe_group(&self, group: &str) -> Result<GroupInfo> {
        match call(&self.session, GroupRequest::Describe { group: group.to_owned() }).await? {
            GroupResponse::Described(info) => Ok(info),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// Deletes a group with its offsets. A group that has members is refused with `busy`.
    pub async fn delete_group(&self, group: &str) -> Result<()> {
        match call(&self.session, GroupRequest::Delete { group: group.to_owned() }).await? {
            GroupResponse::Deleted => Ok(()),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// Sets or deletes the offsets of a group without members. Returns the new offsets; a dry run returns them without
    /// a change.
    pub async fn reset_offsets(&self, reset: OffsetReset) -> Result<Vec<(PartitionId, Option<Offset>)>> {
        match call(&self.session, GroupRequest::Reset(reset)).await? {
            GroupResponse::Reset(offsets) => Ok(offsets),
            other => Err(unexpected(&Response::Group(other))),
        }
    }

    /// Returns the committed offsets of a group: in these partitions, or in all if `partitions` is empty. Omits
    /// partitions without a committed offset.
    pub async fn committed_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<(TopicPartition, CommittedOffset)>> {
        committed_offsets(&self.session, group, partitions).await
    }

    /// Commits offsets for a group without members, such as a group whose program chooses its partitions itself.
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

/// Calls the broker with a request whose answer may be delayed, such as a heartbeat.
pub(crate) async fn call_within(session: &Session, request: GroupRequest, timeout: Duration) -> Result<GroupResponse> {
    match session.call_within(&Request::Group(request), timeout).await? {
        Response::Group(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn new_offset(at: &TopicPartition, offset: Offset, metadata: &str) -> NewOffset {
    NewOffset { partition: at.partition, offset, metadata: metadata.to_owned() }
}

/// Groups consecutive entries of the same topic.
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

/// Returns the partitions of an assignment.
pub(crate) fn partitions_of(topics: ByTopic<PartitionId>) -> Result<Vec<TopicPartition>, Error> {
    let mut found = Vec::new();
    for (topic, partitions) in topics {
        let topic = TopicName::parse(&topic)?;
        let of_topic = partitions.into_iter().map(|partition| TopicPartition { topic: topic.clone(), partition });
        found.extend(of_topic);
    }
    Ok(found)
}
