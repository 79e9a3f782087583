//! Consumer groups on the wire: members and their partitions, committed offsets, and descriptions of groups.

use bytes::{Buf, BufMut, BytesMut};
use engine::groups::{Assignor, GroupState, MemberState};
use engine::limits::PARTITIONS_MAX;
use engine::{Error, Offset, PartitionId, Result, Start};

use crate::field::{Fields, get_option, put_list, put_option, put_str};
use crate::kind::{request, response};
use crate::values::{get_start, put_start};

/// Value that means no offset, no owner or no time.
const NONE_U64: u64 = u64::MAX;
const NONE_U32: u32 = u32::MAX;
/// Code after those of a start: deletes the offsets, as if the group had never read.
const FORGET: u8 = 5;

/// Topics with an entry for each of their partitions.
pub type ByTopic<T> = Vec<(String, Vec<T>)>;

/// Request about consumer groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRequest {
    /// Message of a member to its group.
    Heartbeat(Heartbeat),
    /// Commits offsets.
    Commit(OffsetCommit),
    /// Requests committed offsets of partitions; of all partitions if the list is empty.
    Fetch {
        /// Name of the group.
        group: String,
        /// Partitions of each topic.
        partitions: ByTopic<PartitionId>,
    },
    /// Lists groups in the order of their names.
    List {
        /// Name after which the list begins; empty for the first page.
        after: String,
        /// Maximum number of groups in the answer.
        count_max: u32,
    },
    /// Requests the members and the progress of a group.
    Describe {
        /// Name of the group.
        group: String,
    },
    /// Deletes a group with its offsets.
    Delete {
        /// Name of the group.
        group: String,
    },
    /// Sets or deletes offsets of a group.
    Reset(OffsetReset),
}

/// Message of a member: it joins, stays alive or leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Name of the group.
    pub group: String,
    /// Id that the client generates on each start, unique in its group.
    pub member: String,
    /// Id of a static member; empty for other members.
    pub instance: String,
    /// The action of the member.
    pub step: Step,
}

/// The action of a member with its heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Joins the group.
    Join {
        /// Name of the client for display.
        client: String,
        /// Maximum time between two heartbeats of the member, in ms.
        session_timeout_ms: u32,
        /// Maximum time that the member takes to release a partition, in ms.
        rebalance_timeout_ms: u32,
        /// Assignor that the member requests.
        assignor: Assignor,
        /// Topics and patterns that the member subscribes to.
        topics: Vec<String>,
    },
    /// Keeps the membership and reports changes.
    Alive {
        /// Epoch that the member has.
        epoch: u32,
        /// Maximum time that the answer waits for a change, in ms.
        wait_ms: u32,
        /// All partitions that the member reads, if they have changed.
        owned: Option<ByTopic<PartitionId>>,
        /// Topics that the member subscribes to from now on, if they have changed.
        topics: Option<Vec<String>>,
    },
    /// Leaves the group.
    Leave,
    /// Leaves as a static member, which may return within its session timeout.
    Away,
}

/// Offsets to commit for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// Name of the group.
    pub group: String,
    /// Id of the member; empty for a client that is not a member, which may commit while the group has no members.
    pub member: String,
    /// Id of a static member; empty for other members.
    pub instance: String,
    /// Epoch that the member has.
    pub epoch: u32,
    /// Offsets of each topic.
    pub offsets: ByTopic<NewOffset>,
}

/// Offset to commit for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOffset {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Offset of the next record to read.
    pub offset: Offset,
    /// Note that is returned with the offset.
    pub metadata: String,
}

/// Offsets to set or delete for a group that has no members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetReset {
    /// Name of the group.
    pub group: String,
    /// Name of the topic.
    pub topic: String,
    /// Partitions of the topic; all if the list is empty.
    pub partitions: Vec<PartitionId>,
    /// Position at which the group continues; `None` deletes its offsets.
    pub to: Option<Start>,
    /// `true` if the answer only shows the result and nothing changes.
    pub is_dry_run: bool,
}

/// Answer about consumer groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupResponse {
    /// Answers a heartbeat.
    Turn {
        /// Epoch of the member from now on.
        epoch: u32,
        /// All partitions that the member may read, if they are new or the heartbeat contained `owned`.
        assignment: Option<ByTopic<PartitionId>>,
    },
    /// Answers [`GroupRequest::Commit`].
    Committed,
    /// Answers [`GroupRequest::Fetch`].
    Offsets(ByTopic<CommittedOffset>),
    /// Answers [`GroupRequest::List`].
    Groups {
        /// Groups in the order of their names.
        groups: Vec<GroupSummary>,
        /// `true` if no group follows the last one.
        is_last: bool,
    },
    /// Answers [`GroupRequest::Describe`].
    Described(GroupInfo),
    /// Answers [`GroupRequest::Delete`].
    Deleted,
    /// Answers [`GroupRequest::Reset`] with the offset of each partition; `None` if it has none.
    Reset(Vec<(PartitionId, Option<Offset>)>),
}

/// Committed offset of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Offset of the next record to read.
    pub offset: Offset,
    /// Time of the commit in ms since 1970.
    pub committed_ms: u64,
    /// Note that was committed with it.
    pub metadata: String,
}

/// Group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Name of the group.
    pub group: String,
    /// State of the group.
    pub state: GroupState,
    /// Number of members.
    pub members: u32,
    /// Number of partitions with a committed offset.
    pub offsets: u32,
    /// Number of records after the committed offsets, over all partitions.
    pub lag: u64,
}

/// Description of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Name of the group.
    pub group: String,
    /// State of the group.
    pub state: GroupState,
    /// Epoch of the group.
    pub epoch: u32,
    /// Assignor that the group uses.
    pub assignor: Assignor,
    /// Members of the group.
    pub members: Vec<MemberInfo>,
    /// Partitions of each topic that are assigned or have a committed offset.
    pub partitions: ByTopic<GroupPartition>,
}

/// Member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Id that the client generated.
    pub member: String,
    /// Id of a static member; empty for other members.
    pub instance: String,
    /// Name of the client.
    pub client: String,
    /// State of the member.
    pub state: MemberState,
    /// Epoch of the member.
    pub epoch: u32,
    /// Topics and patterns that the member subscribes to.
    pub topics: Vec<String>,
}

/// Partition that is assigned to a member or has a committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPartition {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Index of the member that may read it in [`GroupInfo::members`].
    pub owner: Option<u32>,
    /// Committed offset, if there is one.
    pub committed: Option<Offset>,
    /// Time of the commit in ms since 1970.
    pub committed_ms: u64,
    /// Offset of the oldest record.
    pub start: Offset,
    /// Offset after the newest record.
    pub end: Offset,
}

impl GroupPartition {
    /// Returns the number of records after the committed offset, if there is one.
    pub fn lag(&self) -> Option<u64> {
        self.committed.map(|committed| self.end.saturating_sub(committed))
    }
}

impl GroupRequest {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Heartbeat(_) => request::GROUP_HEARTBEAT,
            Self::Commit(_) => request::OFFSET_COMMIT,
            Self::Fetch { .. } => request::OFFSET_FETCH,
            Self::List { .. } => request::GROUP_LIST,
            Self::Describe { .. } => request::GROUP_DESCRIBE,
            Self::Delete { .. } => request::GROUP_DELETE,
            Self::Reset(_) => request::OFFSET_RESET,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Heartbeat(heartbeat) => heartbeat.put(b),
            Self::Commit(commit) => commit.put(b),
            Self::Fetch { group, partitions } => {
                put_str(b, group);
                put_partitions(b, partitions);
            }
            Self::List { after, count_max } => {
                put_str(b, after);
                b.put_u32(*count_max);
            }
            Self::Describe { group } | Self::Delete { group } => put_str(b, group),
            Self::Reset(reset) => reset.put(b),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            request::GROUP_HEARTBEAT => Self::Heartbeat(Heartbeat::get(f)?),
            request::OFFSET_COMMIT => Self::Commit(OffsetCommit::get(f)?),
            request::OFFSET_FETCH => Self::Fetch { group: f.str()?, partitions: get_partitions(f)? },
            request::GROUP_LIST => Self::List { after: f.str()?, count_max: f.u32()? },
            request::GROUP_DESCRIBE => Self::Describe { group: f.str()? },
            request::GROUP_DELETE => Self::Delete { group: f.str()? },
            _ => Self::Reset(OffsetReset::get(f)?),
        })
    }
}

impl Heartbeat {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.group);
        put_str(b, &self.member);
        put_str(b, &self.instance);
        match &self.step {
            Step::Join { client, session_timeout_ms, rebalance_timeout_ms, assignor, topics } => {
                b.put_u8(0);
                put_str(b, client);
                b.put_u32(*session_timeout_ms);
                b.put_u32(*rebalance_timeout_ms);
                b.put_u8(*assignor as u8);
                put_strings(b, topics);
            }
            Step::Alive { epoch, wait_ms, owned, topics } => {
                b.put_u8(1);
                b.put_u32(*epoch);
                b.put_u32(*wait_ms);
                put_option(b, owned.as_ref(), put_partitions);
                put_option(b, topics.as_ref(), |b, topics| put_strings(b, topics));
            }
            Step::Leave => b.put_u8(2),
            Step::Away => b.put_u8(3),
        }
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let group = f.str()?;
        let member = f.str()?;
        let instance = f.str()?;
        let step = match f.u8()? {
            0 => Step::Join {
                client: f.str()?,
                session_timeout_ms: f.u32()?,
                rebalance_timeout_ms: f.u32()?,
                assignor: get_assignor(f)?,
                topics: get_strings(f)?,
            },
            1 => Step::Alive {
                epoch: f.u32()?,
                wait_ms: f.u32()?,
                owned: get_option(f, get_partitions)?,
                topics: get_option(f, get_strings)?,
            },
            2 => Step::Leave,
            3 => Step::Away,
            other => return Err(Error::malformed(format!("a step of a member is 0 to 3, not {other}"))),
        };
        Ok(Self { group, member, instance, step })
    }
}

impl OffsetCommit {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.group);
        put_str(b, &self.member);
        put_str(b, &self.instance);
        b.put_u32(self.epoch);
        put_by_topic(b, &self.offsets, |b, new| {
            b.put_u32(new.partition);
            b.put_u64(new.offset);
            put_str(b, &new.metadata);
        });
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let group = f.str()?;
        let member = f.str()?;
        let instance = f.str()?;
        let epoch = f.u32()?;
        let new = |f: &mut Fields<B>| Ok(NewOffset { partition: f.u32()?, offset: f.u64()?, metadata: f.str()? });
        Ok(Self { group, member, instance, epoch, offsets: get_by_topic(f, 14, new)? })
    }
}

impl OffsetReset {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.group);
        put_str(b, &self.topic);
        put_list(b, &self.partitions, |b, partition| b.put_u32(*partition));
        b.put_u8(u8::from(self.is_dry_run));
        match &self.to {
            Some(start) => put_start(b, start),
            None => b.put_u8(FORGET),
        }
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let group = f.str()?;
        let topic = f.str()?;
        let partitions = f.list(4, Fields::u32)?;
        if partitions.len() > PARTITIONS_MAX as usize {
            let count = partitions.len();
            return Err(Error::too_large(format!("a reset names at most {PARTITIONS_MAX} partitions, not {count}")));
        }
        let is_dry_run = f.bool()?;
        let to = match f.u8()? {
            FORGET => None,
            start => Some(get_start(start, f)?),
        };
        Ok(Self { group, topic, partitions, to, is_dry_run })
    }
}

impl GroupResponse {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Turn { .. } => response::GROUP_TURN,
            Self::Committed => response::OFFSETS_COMMITTED,
            Self::Offsets(_) => response::OFFSETS,
            Self::Groups { .. } => response::GROUPS,
            Self::Described(_) => response::GROUP_DESCRIBED,
            Self::Deleted => response::GROUP_DELETED,
            Self::Reset(_) => response::OFFSETS_RESET,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Turn { epoch, assignment } => {
                b.put_u32(*epoch);
                put_option(b, assignment.as_ref(), put_partitions);
            }
            Self::Committed | Self::Deleted => {}
            Self::Offsets(offsets) => put_by_topic(b, offsets, |b, committed| {
                b.put_u32(committed.partition);
                b.put_u64(committed.offset);
                b.put_u64(committed.committed_ms);
                put_str(b, &committed.metadata);
            }),
            Self::Groups { groups, is_last } => {
                b.put_u8(u8::from(*is_last));
                put_list(b, groups, |b, summary| {
                    put_str(b, &summary.group);
                    b.put_u8(summary.state as u8);
                    b.put_u32(summary.members);
                    b.put_u32(summary.offsets);
                    b.put_u64(summary.lag);
                });
            }
            Self::Described(info) => info.put(b),
            Self::Reset(offsets) => put_list(b, offsets, |b, (partition, offset)| {
                b.put_u32(*partition);
                b.put_u64(offset.unwrap_or(NONE_U64));
            }),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            response::GROUP_TURN => Self::Turn { epoch: f.u32()?, assignment: get_option(f, get_partitions)? },
            response::OFFSETS_COMMITTED => Self::Committed,
            response::OFFSETS => Self::Offsets(get_by_topic(f, 22, |f| {
                Ok(CommittedOffset {
                    partition: f.u32()?,
                    offset: f.u64()?,
                    committed_ms: f.u64()?,
                    metadata: f.str()?,
                })
            })?),
            response::GROUPS => {
                let is_last = f.bool()?;
                let groups = f.list(19, |f| {
                    Ok(GroupSummary {
                        group: f.str()?,
                        state: get_group_state(f)?,
                        members: f.u32()?,
                        offsets: f.u32()?,
                        lag: f.u64()?,
                    })
                })?;
                Self::Groups { groups, is_last }
            }
            response::GROUP_DESCRIBED => Self::Described(GroupInfo::get(f)?),
            response::GROUP_DELETED => Self::Deleted,
            _ => Self::Reset(f.list(12, |f| Ok((f.u32()?, Some(f.u64()?).filter(|offset| *offset != NONE_U64))))?),
        })
    }
}

impl GroupInfo {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.group);
        b.put_u8(self.state as u8);
        b.put_u32(self.epoch);
        b.put_u8(self.assignor as u8);
        put_list(b, &self.members, |b, member| {
            put_str(b, &member.member);
            put_str(b, &member.instance);
            put_str(b, &member.client);
            b.put_u8(member.state as u8);
            b.put_u32(member.epoch);
            put_strings(b, &member.topics);
        });
        put_by_topic(b, &self.partitions, |b, partition| {
            b.put_u32(partition.partition);
            b.put_u32(partition.owner.unwrap_or(NONE_U32));
            b.put_u64(partition.committed.unwrap_or(NONE_U64));
            b.put_u64(partition.committed_ms);
            b.put_u64(partition.start);
            b.put_u64(partition.end);
        });
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let group = f.str()?;
        let state = get_group_state(f)?;
        let epoch = f.u32()?;
        let assignor = get_assignor(f)?;
        let members = f.list(15, |f| {
            Ok(MemberInfo {
                member: f.str()?,
                instance: f.str()?,
                client: f.str()?,
                state: get_member_state(f)?,
                epoch: f.u32()?,
                topics: get_strings(f)?,
            })
        })?;
        let partitions = get_by_topic(f, 40, |f| {
            Ok(GroupPartition {
                partition: f.u32()?,
                owner: Some(f.u32()?).filter(|owner| *owner != NONE_U32),
                committed: Some(f.u64()?).filter(|offset| *offset != NONE_U64),
                committed_ms: f.u64()?,
                start: f.u64()?,
                end: f.u64()?,
            })
        })?;
        Ok(Self { group, state, epoch, assignor, members, partitions })
    }
}

fn put_strings(b: &mut BytesMut, strings: &[String]) {
    put_list(b, strings, |b, text| put_str(b, text));
}

fn get_strings<B: Buf>(f: &mut Fields<B>) -> Result<Vec<String>> {
    f.list(2, Fields::str)
}

fn put_by_topic<T>(b: &mut BytesMut, topics: &[(String, Vec<T>)], put: impl Fn(&mut BytesMut, &T)) {
    put_list(b, topics, |b, (topic, partitions)| {
        put_str(b, topic);
        put_list(b, partitions, &put);
    });
}

fn get_by_topic<B: Buf, T>(
    f: &mut Fields<B>,
    entry_bytes_min: usize,
    get: impl Fn(&mut Fields<B>) -> Result<T>,
) -> Result<ByTopic<T>> {
    f.list(6, |f| Ok((f.str()?, f.list(entry_bytes_min, &get)?)))
}

fn put_partitions(b: &mut BytesMut, partitions: &ByTopic<PartitionId>) {
    put_by_topic(b, partitions, |b, partition| b.put_u32(*partition));
}

fn get_partitions<B: Buf>(f: &mut Fields<B>) -> Result<ByTopic<PartitionId>> {
    get_by_topic(f, 4, Fields::u32)
}

fn get_assignor<B: Buf>(f: &mut Fields<B>) -> Result<Assignor> {
    let code = f.u8()?;
    Assignor::from_code(code).ok_or_else(|| Error::malformed(format!("an assignor is 0 or 1, not {code}")))
}

fn get_group_state<B: Buf>(f: &mut Fields<B>) -> Result<GroupState> {
    let code = f.u8()?;
    GroupState::from_code(code).ok_or_else(|| Error::malformed(format!("the state of a group is 0 to 2, not {code}")))
}

fn get_member_state<B: Buf>(f: &mut Fields<B>) -> Result<MemberState> {
    let code = f.u8()?;
    MemberState::from_code(code).ok_or_else(|| Error::malformed(format!("the state of a member is 0 to 3, not {code}")))
}
