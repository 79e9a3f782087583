//! Members of classic groups, which assign partitions among themselves: their responses wait for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::groups::{
    Change, ClassicJoin, ClassicSync, Committer, Entry, Group, GroupError, GroupName, Identity, InstanceId, Joined,
    Leaver, MemberId, Now, Reason, Subscription, Synced, member_bytes,
};
use engine::limits::GROUPS_MEMBERS_BYTES_MIN;
use engine::{Error, Result, TopicPartition};

use super::{Cell, GroupTable, Outcome};
use crate::groups::Groups;
use crate::wakes::Wakes;

/// Offsets that are deleted before other tasks get their turn: each is compared with the topics of all members.
const DELETED_PER_TURN: usize = 64;
/// Members that leave before other tasks get their turn: more than a group has, so that most requests are one change.
const LEAVERS_PER_TURN: usize = 1024;

/// Result of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The member must join again under this id.
    Named(MemberId),
    Joined(Joined),
}

impl GroupTable {
    /// Updates the bytes that are counted for a group.
    pub(super) fn recount(&self, cell: &Cell) {
        let mut state = cell.state.lock();
        if !state.is_gone {
            let before = state.members_bytes;
            let after = state.group.members_bytes();
            self.members_bytes.fetch_add(after, Ordering::Relaxed);
            self.members_bytes.fetch_sub(before, Ordering::Relaxed);
            state.members_bytes = after;
        }
    }
}

impl Groups {
    /// Returns the bytes that the members of all groups may take together.
    pub(super) fn members_bytes_max(&self) -> usize {
        (self.core.log_budget().max() / 4).max(GROUPS_MEMBERS_BYTES_MIN)
    }

    /// Checks that a member may take `bytes` bytes. One that takes as many already is not refused.
    pub(super) fn check_member(
        &self,
        group: &GroupName,
        member: Option<&MemberId>,
        instance: Option<&InstanceId>,
        bytes: usize,
    ) -> Outcome {
        let taken = |cell: Arc<Cell>| cell.state.lock().group.bytes_of(member, instance);
        let taken = self.table.find_existing(group)?.map_or(0, taken);
        if bytes > taken {
            self.check_members_room(bytes - taken)?;
        }
        Ok(())
    }

    /// Checks that the members of all groups may take `bytes` more bytes.
    fn check_members_room(&self, bytes: usize) -> Result<()> {
        let taken = self.table.members_bytes.load(Ordering::Relaxed);
        let max = self.members_bytes_max();
        if taken + bytes > max {
            return Err(Error::busy(format!(
                "the members of all groups take {taken} bytes, at most {max} (a quarter of memory_max): close some \
                 consumers, or raise memory_max"
            )));
        }
        Ok(())
    }

    /// Returns a new id for a member whose client has this name.
    pub fn new_member_id(&self, client: &str) -> Result<MemberId> {
        self.table.member_ids.next(client)
    }

    /// Joins a member to a classic group. Completes when all members have joined, or when the longest rebalance timeout
    /// has elapsed.
    pub async fn join_classic(&self, name: &GroupName, mut join: ClassicJoin) -> Outcome<Entered> {
        // An invalid request must not create a group.
        join.check()?;
        let coordinator = self.restored().await?;
        let topics = join.subscription.as_ref().map_or(0, Subscription::topics_len);
        let protocols: usize = join.protocols.iter().map(|p| p.name.len() + p.metadata.len()).sum();
        self.check_member(name, join.member.as_ref(), join.instance.as_ref(), protocols + member_bytes(topics))?;
        let delay_ms = self.core.settings().group_initial_delay.as_millis() as u64;
        loop {
            let cell = match &join.member {
                Some(id) => {
                    coordinator.find_for(name, &Identity { member: id.clone(), instance: join.instance.clone() })?
                }
                None => coordinator.find_or_create(name, Some(self.core.peers()))?,
            };
            let now = coordinator.now();
            let entry =
                self.change(&cell, true, |group| group.join_classic(join.clone(), delay_ms, &self.topics(), now));
            let entry = match entry.await {
                // The group was deleted concurrently.
                Err(refused) if refused.reason == Reason::NoSuchGroup => continue,
                entry => entry?,
            };
            coordinator.recount(&cell);
            // The deadline of the member may be the next one.
            coordinator.changed.notify_one();
            if entry.is_ok() {
                // If this fails, it is made later.
                self.settle(&cell).await.unwrap_or_default();
            }
            return match entry? {
                Entry::Named(id) => Ok(Entered::Named(id)),
                Entry::Waits { who, ticket } => {
                    Ok(Entered::Joined(self.wait(&cell, |group, now| group.joined(&who, ticket, now)).await?))
                }
            };
        }
    }

    /// Returns the assignment of a member; the leader passes the assignments of all members. Completes when the leader
    /// has done so.
    pub async fn sync_classic(&self, name: &GroupName, sync: ClassicSync) -> Outcome<Synced> {
        let coordinator = self.restored().await?;
        let cell = coordinator.find_for(name, &sync.who)?;
        let bytes = sync.shares.iter().map(|share| share.bytes.len()).sum::<usize>();
        // They replace those that the members have. A group that needs no more is not refused.
        let freed = cell.state.lock().group.assigned_bytes();
        if bytes > freed {
            self.check_members_room(bytes - freed)?;
        }
        let now = coordinator.now();
        let who = sync.who.clone();
        let ticket = self.change(&cell, false, |group| group.sync_classic(sync, now)).await??;
        coordinator.recount(&cell);
        coordinator.changed.notify_one();
        self.wait(&cell, |group, now| group.synced(&who, ticket, now)).await
    }

    /// Waits for the response to a join or a sync, and until the members that it follows from are recorded: the record
    /// may have the member in place of another, whose instance id it took over. The group ensures that there is a
    /// response in time.
    async fn wait<T>(&self, cell: &Cell, fetch: impl Fn(&mut Group, Now) -> Outcome<Option<T>>) -> Outcome<T> {
        loop {
            let news = cell.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let fetched = {
                let mut wakes = Wakes::default();
                let mut state = cell.state.lock();
                let fetched = fetch(state.kept(&cell.name)?, self.table.now());
                state.record(&self.core, &mut wakes);
                fetched
            };
            if let Some(answer) = fetched? {
                self.recorded(cell).await?;
                return Ok(answer);
            }
            news.await;
        }
    }

    /// Processes a heartbeat of a classic member. Returns an error if the member has to join again.
    pub async fn heartbeat_classic(&self, name: &GroupName, who: &Identity, generation: u32) -> Outcome {
        let coordinator = self.restored().await?;
        let cell = coordinator.find_for(name, who)?;
        let now = coordinator.now();
        let beat =
            self.change(&cell, false, |group| group.heartbeat_classic(who, generation, &self.topics(), now)).await?;
        if beat.is_err() {
            // The member must join again by a deadline, which may be the next one.
            coordinator.changed.notify_one();
        }
        beat
    }

    /// Removes members that leave, or that are removed by an administrator. Returns the outcome for each.
    pub async fn leave_classic(&self, name: &GroupName, leavers: &[Leaver]) -> Outcome<Vec<Outcome<MemberId>>> {
        let coordinator = self.restored().await?;
        let cell = coordinator.find(name)?;
        self.refresh(&cell).await?;
        let mut left = Vec::with_capacity(leavers.len());
        for leavers in leavers.chunks(LEAVERS_PER_TURN) {
            let now = coordinator.now();
            left.append(&mut self.change(&cell, false, |group| group.leave_classic(leavers, now)).await?);
            tokio::task::yield_now().await;
        }
        coordinator.recount(&cell);
        coordinator.changed.notify_one();
        self.save(&cell, false).await?;
        self.recorded(&cell).await?;
        Ok(left)
    }

    /// Deletes offsets of a group, of topics to which no member subscribes. Returns the outcome for each partition.
    pub async fn delete_offsets(
        &self,
        name: &GroupName,
        partitions: Vec<TopicPartition>,
    ) -> Outcome<Vec<(TopicPartition, Outcome)>> {
        let act = async {
            let cell = self.restored().await?.find(name)?;
            let mut deleted = Vec::new();
            for partitions in partitions.chunks(DELETED_PER_TURN) {
                let mut changes = Vec::new();
                for partition in partitions {
                    let change = Change { partition: partition.clone(), committed: None };
                    let may_go =
                        self.check_offsets(std::slice::from_ref(&change)).map_err(GroupError::from).and_then(|()| {
                            cell.state.lock().group.check_commit(&Committer::Cleaner, std::slice::from_ref(&change))
                        });
                    if may_go.is_ok() {
                        changes.push(change);
                    }
                    deleted.push((partition.clone(), may_go));
                }
                tokio::task::yield_now().await;
                self.commit(name, &Committer::Cleaner, changes).await?;
            }
            Ok(deleted)
        };
        self.core.audited("delete offsets of group", name.as_str(), act).await
    }
}
