//! Pages about topics.

use std::collections::HashMap;

use broker::GroupSummary;
use console::pages::{tail, topic, topics};
use console::shell::Page;
use engine::security::ResourceKind;
use engine::{Error, TopicName};

use super::super::errors::Result;
use super::{LIST_MAX, Visit};

/// Maximum number of partitions of a topic in its page.
const PARTITIONS_MAX: usize = 256;
/// Maximum number of queues of a topic in its page.
const QUEUES_MAX: usize = 20;
/// Number of consumer groups that are searched for those of a topic.
const GROUPS_MAX: usize = 100;

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let shows = visit.shows(ResourceKind::Topic, text);
    let from = visit.names.beginning(after);
    let (found, is_last) = visit.http.broker.page_of_topics(&from, LIST_MAX, shows).await?;
    let ends = |topic: &broker::TopicStatus| topic.partitions.iter().map(|of| of.end).sum();
    let ends: HashMap<String, u64> = found.iter().map(|topic| (topic.name.as_str().to_owned(), ends(topic))).collect();
    let rates = visit.before.lock().advance(ends);
    let row = |topic: &broker::TopicStatus| topics::Row {
        name: visit.names.outer(topic.name.as_str()).to_owned(),
        rate: rates.get(topic.name.as_str()).copied(),
        records: topic.partitions.iter().map(|of| of.end - of.start).sum(),
        bytes: topic.partitions.iter().map(|of| of.bytes).sum(),
        partitions: topic.settings.partitions,
        subscribers: topic.partitions.iter().map(|of| of.subscribers).max().unwrap_or_default(),
        storage: topic.settings.storage.name(),
        retention_ms: topic.settings.retention_ms,
        retention_bytes: topic.settings.retention_bytes,
    };
    let rows = found.iter().map(row).collect();
    Ok(topics::page(&topics::Topics { rows, query: text.to_owned(), after: after.to_owned(), is_last }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let broker = &visit.http.broker;
    let status = broker.describe_topic(&visit.inner())?;
    let settings = &status.settings;
    let shows = visit.shows(ResourceKind::Queue, "");
    let mut over = broker.queues.over(status.name.as_str()).await?;
    over.retain(|definition| shows(definition.name.as_str()));
    let (groups, groups_searched) =
        if visit.is_live { Default::default() } else { groups_of(&visit, &status.name).await? };
    let outer = |name: &str| visit.names.outer(name).to_owned();
    let partition = |of: &broker::PartitionStatus| topic::Partition {
        start: of.start,
        end: of.end,
        bytes: of.bytes,
        subscribers: of.subscribers,
    };
    Ok(topic::page(&topic::Topic {
        name: outer(status.name.as_str()),
        id: status.id.to_string(),
        storage: settings.storage.name(),
        retention_ms: settings.retention_ms,
        retention_bytes: settings.retention_bytes,
        is_compacted: settings.compact,
        batch_bytes_max: settings.batch_bytes_max,
        mesh: settings.mesh.name(),
        owner: status.owner.as_ref().map(|owner| outer(owner.as_str())),
        partition_count: status.partitions.len(),
        records: status.partitions.iter().map(|of| of.end - of.start).sum(),
        bytes: status.partitions.iter().map(|of| of.bytes).sum(),
        partitions: status.partitions.iter().take(PARTITIONS_MAX).map(partition).collect(),
        queues: over.iter().take(QUEUES_MAX).map(|definition| outer(definition.name.as_str())).collect(),
        groups,
        groups_searched,
    }))
}

/// Returns the consumer groups that read the topic, and how many groups were searched if there are more.
async fn groups_of(visit: &Visit, topic: &TopicName) -> Result<(Vec<topic::Group>, Option<usize>)> {
    let groups = &visit.http.broker.groups;
    let over = groups.over(topic, GROUPS_MAX, visit.shows(ResourceKind::Group, "")).await;
    let (over, is_last) = over.map_err(Error::from)?;
    let group = |group: &GroupSummary| topic::Group {
        name: visit.names.outer(group.name.as_str()).to_owned(),
        state: group.state.name(),
        members: group.members,
        lag: group.lag,
    };
    Ok((over.iter().map(group).collect(), (!is_last).then_some(GROUPS_MAX)))
}

pub(super) async fn tail(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    visit.http.broker.describe_topic(&visit.inner())?;
    Ok(tail::page(visit.param(0)))
}
