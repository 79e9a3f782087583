//! Status of consumer groups: members, offsets, lag and metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine::groups::{
    Assignor, ClassicPhase, Committed, Group, GroupName, GroupState, InstanceId, MemberId, MemberState,
};
use engine::{Offset, Pattern, TopicName, TopicPartition};

use super::{Cell, Outcome};
use crate::groups::Groups;
use crate::metrics::Exposition;

/// Maximum groups whose lag is among the metrics, by name; more would make the metrics page too long.
const LAG_ROWS_MAX: usize = 1000;

/// Partitions of groups that are described before other tasks of the thread get their turn.
const PARTITIONS_PER_TURN: usize = 1024;

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

/// Returns the summary of a group without its lag, and its offsets, in one topic or in all.
fn parts(cell: &Cell, topic: Option<&TopicName>) -> (GroupSummary, Vec<(TopicPartition, Offset)>) {
    let group = &cell.state.lock().group;
    let copy = |(at, committed): (&TopicPartition, &Committed)| (at.clone(), committed.offset);
    let committed: Vec<_> = match topic {
        Some(topic) => group.committed().range(all_of(topic)).map(copy).collect(),
        None => group.committed().iter().map(copy).collect(),
    };
    let summary = GroupSummary {
        name: cell.name.clone(),
        state: group.state(),
        classic: classic_of(group),
        members: group.members_len(),
        offsets: committed.len(),
        lag: 0,
    };
    (summary, committed)
}

/// Returns the range of all partitions of a topic.
fn all_of(topic: &TopicName) -> RangeInclusive<TopicPartition> {
    let at = |partition| TopicPartition { topic: topic.clone(), partition };
    at(0)..=at(u32::MAX)
}

/// Counts partitions, and lets other tasks of the thread run after each [`PARTITIONS_PER_TURN`].
#[derive(Default)]
struct Turns {
    taken: usize,
}

impl Turns {
    async fn take(&mut self, partitions: usize) {
        self.taken += partitions;
        if self.taken >= PARTITIONS_PER_TURN {
            self.taken = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Groups {
    /// Returns at most `count_max` groups after this name, ordered by name, and `true` if they are the last ones. Other
    /// tasks of the thread run in between.
    pub async fn list(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Outcome<(Vec<GroupSummary>, bool)> {
        let (cells, is_last) = self.cells_after(after, count_max, is_shown).await?;
        let mut found = Vec::with_capacity(cells.len());
        let mut turns = Turns::default();
        for cell in &cells {
            found.push(self.summary_in_turns(cell, None, &mut turns).await);
        }
        Ok((found, is_last))
    }

    /// Returns those of the first `count_max` groups that assign partitions of a topic or have offsets of it, each with
    /// its offsets and its lag in this topic only, and `true` if no other group follows these.
    pub async fn over(
        &self,
        topic: &TopicName,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Outcome<(Vec<GroupSummary>, bool)> {
        let (cells, is_last) = self.cells_after("", count_max, is_shown).await?;
        let mut found = Vec::new();
        let mut turns = Turns::default();
        for cell in &cells {
            turns.take(1).await;
            let reads = {
                let group = &cell.state.lock().group;
                group.assigns(topic) || group.committed().range(all_of(topic)).next().is_some()
            };
            if reads {
                found.push(self.summary_in_turns(cell, Some(topic), &mut turns).await);
            }
        }
        Ok((found, is_last))
    }

    /// Returns at most `count_max` groups after this name, ordered by name, and `true` if no other follows.
    async fn cells_after(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Outcome<(Vec<Arc<Cell>>, bool)> {
        let mut cells = self.restored().await?.cells();
        cells.retain(|cell| cell.name.as_str() > after && is_shown(cell.name.as_str()));
        let is_last = cells.len() <= count_max;
        if !is_last {
            // Only the groups that are returned have to be sorted.
            cells.select_nth_unstable_by(count_max, |a, b| a.name.cmp(&b.name));
            cells.truncate(count_max);
        }
        cells.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok((cells, is_last))
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
        // Copied under the lock, and put together without it.
        let (mut status, assigned, readers, committed) = {
            let group = &cell.state.lock().group;
            let classic = classic_of(group);
            let protocol = classic.as_ref().map_or("", |classic| &classic.protocol);
            let status = GroupStatus {
                name: name.clone(),
                state: group.state(),
                epoch: group.epoch(),
                assignor: group.assignor(),
                members: members_of(group, protocol),
                classic,
                partitions: Vec::new(),
            };
            let readers = group.members().flat_map(|m| m.assigned.iter().chain(m.revoking).map(move |at| (at, m.id)));
            let readers: Vec<_> = readers.map(|(at, id)| (at.clone(), id.clone())).collect();
            let committed = group.committed().iter().map(|(at, committed)| (at.clone(), committed.clone()));
            (status, group.partitions().collect::<Vec<_>>(), readers, committed.collect::<Vec<_>>())
        };
        let mut turns = Turns::default();
        let mut all: BTreeMap<TopicPartition, (Option<MemberId>, Option<Committed>)> = BTreeMap::new();
        for at in assigned {
            turns.take(1).await;
            all.entry(at).or_default();
        }
        for (at, reader) in readers {
            turns.take(1).await;
            all.entry(at).or_default().0 = Some(reader);
        }
        for (at, committed) in committed {
            turns.take(1).await;
            all.entry(at).or_default().1 = Some(committed);
        }
        for (partition, (owner, committed)) in all {
            turns.take(1).await;
            // A partition of a topic that was deleted concurrently is not shown.
            if let Some((start, end)) = self.bounds(&partition) {
                status.partitions.push(GroupPartition { partition, owner, committed, start, end });
            }
        }
        Ok(status)
    }

    fn bounds(&self, at: &TopicPartition) -> Option<(Offset, Offset)> {
        let extent = self.core.existing_topic(at.topic.as_str())?.partition(at.partition).ok()?.extent();
        Some((extent.start, extent.end))
    }

    /// Summarizes a group: its offsets and its lag in one topic, or in all.
    async fn summary_in_turns(&self, cell: &Cell, topic: Option<&TopicName>, turns: &mut Turns) -> GroupSummary {
        let (mut summary, committed) = parts(cell, topic);
        turns.take(committed.len() / 8).await;
        for (at, offset) in &committed {
            turns.take(1).await;
            summary.lag += self.lag(at, *offset);
        }
        summary
    }

    fn summary(&self, cell: &Cell) -> GroupSummary {
        let (summary, committed) = parts(cell, None);
        let lag = committed.iter().map(|(at, offset)| self.lag(at, *offset)).sum();
        GroupSummary { lag, ..summary }
    }

    fn lag(&self, at: &TopicPartition, offset: Offset) -> u64 {
        self.bounds(at).map_or(0, |(_, end)| end.saturating_sub(offset))
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
        let members_bytes = coordinator.members_bytes.load(Ordering::Relaxed) as u64;
        out.gauge("thalweg_group_members_bytes", "Bytes that members of consumer groups take", members_bytes)?;
        out.gauge(
            "thalweg_group_members_bytes_max",
            "Maximum of thalweg_group_members_bytes",
            self.members_bytes_max() as u64,
        )?;
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
