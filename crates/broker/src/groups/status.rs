//! Status of consumer groups: members, offsets, lag and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine::groups::{
    Assignor, ClassicPhase, Committed, Group, GroupName, GroupState, InstanceId, MemberId, MemberState,
};
use engine::{Offset, Pattern, TopicPartition};

use super::{Cell, Outcome};
use crate::groups::Groups;
use crate::metrics::Exposition;

/// Maximum groups whose lag is among the metrics, by name; more would make the metrics page too long.
const LAG_ROWS_MAX: usize = 1000;

#[derive(Clone, Debug)]
pub struct GroupSummary {
    pub name: GroupName,
    pub state: GroupState,
    pub classic: Option<ClassicInfo>,
    pub members: usize,
    /// Number of partitions with a committed offset.
    pub offsets: usize,
    /// Records after those offsets.
    pub lag: u64,
}

#[derive(Clone, Debug)]
pub struct GroupStatus {
    pub name: GroupName,
    pub state: GroupState,
    pub classic: Option<ClassicInfo>,
    pub epoch: u32,
    pub assignor: Assignor,
    pub members: Vec<GroupMember>,
    pub partitions: Vec<GroupPartition>,
}

/// Status of a classic group, whose members assign partitions among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicInfo {
    pub phase: ClassicPhase,
    pub protocol_type: String,
    /// Selected protocol; empty before the first generation.
    pub protocol: String,
}

#[derive(Clone, Debug)]
pub struct GroupMember {
    pub id: MemberId,
    pub instance: Option<InstanceId>,
    pub client: String,
    pub host: String,
    pub state: MemberState,
    pub epoch: u32,
    pub topics: Vec<Pattern>,
    /// Partitions that the member may read, and its target assignment. In classic groups, as far as they are known.
    pub assigned: Vec<TopicPartition>,
    pub target: Vec<TopicPartition>,
    /// Metadata for the leader of a classic group. Empty if the member has no classic protocol.
    pub metadata: Bytes,
    /// Assignment from the leader of a classic group, if it has one.
    pub assignment: Option<Bytes>,
}

/// A partition that the group assigns or has an offset of.
#[derive(Clone, Debug)]
pub struct GroupPartition {
    pub partition: TopicPartition,
    /// Member that may read the partition.
    pub owner: Option<MemberId>,
    pub committed: Option<Committed>,
    /// Bounds of the partition's log.
    pub start: Offset,
    pub end: Offset,
}

impl GroupPartition {
    /// Returns the number of records that the group has not read yet; `None` if it has committed no offset.
    pub fn lag(&self) -> Option<u64> {
        self.committed.as_ref().map(|committed| self.end.saturating_sub(committed.offset))
    }
}

fn classic_of(group: &Group) -> Option<ClassicInfo> {
    let status = group.classic_status()?;
    let protocol_type = status.protocol_type.to_owned();
    let protocol = status.protocol.to_owned();
    Some(ClassicInfo { phase: status.phase, protocol_type, protocol })
}

/// Returns the members, with their metadata for this protocol.
fn members_of(group: &Group, protocol: &str) -> Vec<GroupMember> {
    let members = group.members().map(|member| {
        let spoken = member.protocols.iter().find(|spoken| *spoken.name == *protocol).or(member.protocols.first());
        GroupMember {
            id: member.id.clone(),
            instance: member.instance.cloned(),
            client: member.client.to_owned(),
            host: member.host.to_owned(),
            state: member.state,
            epoch: member.epoch,
            topics: member.topics.to_vec(),
            assigned: member.assigned.iter().cloned().collect(),
            target: member.target.iter().cloned().collect(),
            metadata: spoken.map(|spoken| spoken.metadata.clone()).unwrap_or_default(),
            assignment: member.assignment.cloned(),
        }
    });
    members.collect()
}

impl Groups {
    /// Returns at most `count_max` groups after this name, ordered by name, and `true` if they are the last ones.
    pub async fn list(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Outcome<(Vec<GroupSummary>, bool)> {
        let coordinator = self.restored().await?;
        let mut cells = coordinator.cells();
        cells.retain(|cell| cell.name.as_str() > after && is_shown(cell.name.as_str()));
        cells.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let is_last = cells.len() <= count_max;
        Ok((cells.iter().take(count_max).map(|cell| self.summary(cell)).collect(), is_last))
    }

    /// Returns all groups without their offsets, in no particular order.
    pub async fn states(&self) -> Outcome<Vec<(GroupName, GroupState, Option<ClassicInfo>)>> {
        let state = |cell: &Arc<Cell>| {
            let group = &cell.state.lock().group;
            (cell.name.clone(), group.state(), classic_of(group))
        };
        Ok(self.restored().await?.cells().iter().map(state).collect())
    }

    pub async fn describe(&self, name: &GroupName) -> Outcome<GroupStatus> {
        let cell = self.restored().await?.find(name)?;
        let state = cell.state.lock();
        let group = &state.group;
        let classic = classic_of(group);
        let protocol = classic.as_ref().map_or("", |classic| &classic.protocol);
        let mut status = GroupStatus {
            name: name.clone(),
            state: group.state(),
            epoch: group.epoch(),
            assignor: group.assignor(),
            members: members_of(group, protocol),
            classic,
            partitions: Vec::new(),
        };
        let readers = group.members().flat_map(|m| m.assigned.iter().chain(m.revoking).map(move |at| (at, m.id)));
        let readers: BTreeMap<&TopicPartition, &MemberId> = readers.collect();
        let all: BTreeSet<TopicPartition> = group.partitions().chain(group.committed().keys().cloned()).collect();
        let all = all.into_iter().chain(readers.keys().map(|at| (*at).clone())).collect::<BTreeSet<_>>();
        let of = |at: &TopicPartition| (readers.get(at).map(|id| (*id).clone()), group.committed().get(at).cloned());
        let known: Vec<_> = all.into_iter().map(|at| (of(&at), at)).collect();
        drop(state);
        // A partition of a topic that was deleted concurrently is not shown.
        let partitions = known.into_iter().filter_map(|((owner, committed), partition)| {
            let (start, end) = self.bounds(&partition)?;
            Some(GroupPartition { partition, owner, committed, start, end })
        });
        status.partitions = partitions.collect();
        Ok(status)
    }

    fn bounds(&self, at: &TopicPartition) -> Option<(Offset, Offset)> {
        let extent = self.core.existing_topic(at.topic.as_str())?.partition(at.partition).ok()?.extent();
        Some((extent.start, extent.end))
    }

    fn summary(&self, cell: &Arc<Cell>) -> GroupSummary {
        let (state, classic, members, committed): (_, _, _, BTreeMap<TopicPartition, Offset>) = {
            let group = &cell.state.lock().group;
            let committed = group.committed().iter().map(|(at, committed)| (at.clone(), committed.offset));
            (group.state(), classic_of(group), group.members_len(), committed.collect())
        };
        let lag = |(at, offset): (&TopicPartition, &Offset)| Some(self.bounds(at)?.1.saturating_sub(*offset));
        let lag = committed.iter().filter_map(lag).sum();
        GroupSummary { name: cell.name.clone(), state, classic, members, offsets: committed.len(), lag }
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let coordinator = &self.table;
        let mut cells = coordinator.cells();
        let mut members = 0;
        let mut left_out = 0;
        for cell in &cells {
            let group = &cell.state.lock().group;
            members += group.members_len() as u64;
            left_out += group.left_out() as u64;
        }
        out.gauge("thalweg_groups", "Consumer groups", cells.len() as u64)?;
        out.gauge("thalweg_group_members", "Members of all consumer groups", members)?;
        let (shares, sharers) = coordinator.shares.counts();
        out.gauge("thalweg_share_groups", "Share groups with members", shares as u64)?;
        out.gauge("thalweg_share_group_members", "Members of all share groups", sharers as u64)?;
        out.gauge(
            "thalweg_group_partitions_left_out",
            "Partitions assigned to no member because their group subscribes to too many",
            left_out,
        )?;
        cells.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        cells.truncate(LAG_ROWS_MAX);
        let lag: Vec<(String, u64)> =
            cells.iter().map(|cell| (cell.name.to_string(), self.summary(cell).lag)).collect();
        out.gauges(
            "thalweg_group_lag",
            "Records between the committed offsets of a group and the ends of its partitions",
            "group",
            &lag,
        )?;
        let offsets = coordinator.offsets.load(Ordering::Relaxed) as u64;
        out.gauge("thalweg_committed_offsets", "Committed offsets of all groups", offsets)?;
        let counts = &coordinator.counts;
        out.counter("thalweg_group_rebalances", "Rebalances of groups", counts.rebalances.get())?;
        out.counter(
            "thalweg_group_members_expired",
            "Members removed because they were silent, or did not release a partition",
            counts.expired_members.get(),
        )?;
        out.counter("thalweg_offset_commits", "Offset commits", counts.commits.get())?;
        out.counter("thalweg_offset_commit_errors", "Refused offset commits", counts.refused_commits.get())
    }
}
