//! Pages about consumer groups.

use broker::{GroupMember, GroupPartition, GroupSummary};
use console::pages::{group, groups};
use console::shell::Page;
use engine::Error;
use engine::groups::GroupName;
use engine::security::ResourceKind;

use super::super::errors::Result;
use super::{LIST_MAX, Visit};

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let shows = visit.shows(ResourceKind::Group, text);
    let listed = visit.http.broker.groups.list(&visit.names.beginning(after), LIST_MAX, shows).await;
    let (found, is_last) = listed.map_err(Error::from)?;
    let row = |group: &GroupSummary| groups::Row {
        name: visit.names.outer(group.name.as_str()).to_owned(),
        state: group.state.name(),
        members: group.members,
        partitions: group.offsets,
        lag: group.lag,
    };
    let rows = found.iter().map(row).collect();
    Ok(groups::page(&groups::Groups { rows, query: text.to_owned(), after: after.to_owned(), is_last }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let found = visit.http.broker.groups.describe(&GroupName::parse(&visit.inner())?).await.map_err(Error::from)?;
    let outer = |name: &str| visit.names.outer(name).to_owned();
    let member = |member: &GroupMember| group::Member {
        id: member.id.as_str().to_owned(),
        client: member.client.clone(),
        host: member.host.clone(),
        state: member.state.name(),
        assigned: member.assigned.len(),
    };
    let partition = |of: &GroupPartition| group::Partition {
        topic: outer(of.partition.topic.as_str()),
        partition: of.partition.partition,
        owner: of.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        committed: of.committed.as_ref().map(|committed| committed.offset),
        end: of.end,
        lag: of.lag(),
    };
    Ok(group::page(&group::Group {
        name: outer(found.name.as_str()),
        state: found.state.name(),
        members: found.members.iter().take(group::ROWS_MAX).map(member).collect(),
        partitions: found.partitions.iter().take(group::ROWS_MAX).map(partition).collect(),
        member_count: found.members.len(),
        partition_count: found.partitions.len(),
        lag: found.partitions.iter().filter_map(GroupPartition::lag).sum(),
    }))
}
