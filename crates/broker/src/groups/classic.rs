//! Members that share out among themselves: their answers wait for each other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::groups::{
    Change, ClassicJoin, ClassicSync, Committer, Entry, Group, GroupError, GroupName, Identity, Joined, Leaver,
    MemberId, Now, Reason, Synced,
};
use engine::limits::{GROUP_NAME_BYTES_MAX, GROUPS_PROTOCOLS_BYTES_MAX};
use engine::{Error, Result, TopicPartition};

use super::{Cell, Coordinator, Outcome, Topics};
use crate::broker::Broker;

/// Of an id of a member, at most, what its client is called.
const CLIENT_CHARS_MAX: usize = 100;

/// Ids of members that nobody had before and nobody can guess.
#[derive(Default)]
pub(super) struct MemberIds {
    /// Random for each broker.
    key: RandomState,
    given: AtomicU64,
}

impl MemberIds {
    fn next(&self, client: &str) -> Result<MemberId> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let client: String = client.chars().filter(|c| !c.is_control()).take(CLIENT_CHARS_MAX).collect();
        let client = &client[..client.floor_char_boundary(GROUP_NAME_BYTES_MAX - 64)];
        MemberId::parse(&format!("{client}-{:016x}-{number:x}", self.key.hash_one(number)))
    }
}

/// What becomes of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It has to join again, under this id.
    Named(MemberId),
    Joined(Joined),
}

impl Coordinator {
    /// Counts anew what a group holds.
    pub(super) fn recount(&self, cell: &Cell) {
        let mut state = cell.state.lock();
        if !state.is_gone {
            let (before, after) = (state.protocols_bytes, state.group.protocols_bytes());
            self.protocols_bytes.fetch_add(after, Ordering::Relaxed);
            self.protocols_bytes.fetch_sub(before, Ordering::Relaxed);
            state.protocols_bytes = after;
        }
    }

    fn check_bytes(&self, bytes: usize) -> Result<()> {
        if self.protocols_bytes.load(Ordering::Relaxed) + bytes > GROUPS_PROTOCOLS_BYTES_MAX {
            let max = GROUPS_PROTOCOLS_BYTES_MAX >> 20;
            return Err(Error::busy(format!("the protocol metadata and assignments of all groups exceed {max} MiB")));
        }
        Ok(())
    }
}

impl Broker {
    /// An id for a member of a program that is called like this.
    pub fn new_member_id(&self, client: &str) -> Result<MemberId> {
        self.groups().member_ids.next(client)
    }

    /// A member joins that shares out with the others. Returns when all are there, or at the end of the longest
    /// rebalance timeout.
    pub async fn join_classic(&self, name: &GroupName, mut join: ClassicJoin) -> Outcome<Entered> {
        // No group is made for what it would refuse.
        join.check()?;
        let coordinator = self.restored_groups().await?;
        coordinator.check_bytes(join.protocols.iter().map(|p| p.name.len() + p.metadata.len()).sum())?;
        let delay_ms = self.settings().group_initial_delay.as_millis() as u64;
        loop {
            let cell = match &join.member {
                Some(id) => {
                    coordinator.find_for(name, &Identity { member: id.clone(), instance: join.instance.clone() })?
                }
                None => coordinator.find_or_create(name, Some(self.peers()))?,
            };
            let now = coordinator.now();
            let entry =
                self.change(&cell, true, |group| group.join_classic(join.clone(), delay_ms, &Topics(self), now));
            let entry = match entry.await {
                // It was deleted just now.
                Err(refused) if refused.reason == Reason::NoSuchGroup => continue,
                entry => entry?,
            };
            coordinator.recount(&cell);
            // Its deadline may be the next one.
            coordinator.changed.notify_one();
            return match entry? {
                Entry::Named(id) => Ok(Entered::Named(id)),
                Entry::Waits { who, ticket } => {
                    let joined = self.wait(&cell, |group, now| group.joined(&who, ticket, now));
                    Ok(Entered::Joined(joined.await?))
                }
            };
        }
    }

    /// A member asks for its share; a leader says what all get. Returns when the leader has said so.
    pub async fn sync_classic(&self, name: &GroupName, sync: ClassicSync) -> Outcome<Synced> {
        let coordinator = self.restored_groups().await?;
        coordinator.check_bytes(sync.shares.iter().map(|share| share.bytes.len()).sum())?;
        let cell = coordinator.find_for(name, &sync.who)?;
        let (now, who) = (coordinator.now(), sync.who.clone());
        let ticket = self.change(&cell, false, |group| group.sync_classic(sync, now)).await??;
        coordinator.recount(&cell);
        coordinator.changed.notify_one();
        self.wait(&cell, |group, now| group.synced(&who, ticket, now)).await
    }

    /// The answer to a join or a sync, once it is there. The group sees to it that there is one in time.
    async fn wait<T>(&self, cell: &Cell, fetch: impl Fn(&mut Group, Now) -> Outcome<Option<T>>) -> Outcome<T> {
        loop {
            let news = cell.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let fetched = fetch(&mut cell.state.lock().group, self.groups().now());
            if let Some(answer) = fetched? {
                return Ok(answer);
            }
            news.await;
        }
    }

    /// A member is alive, and hears whether it has to join again.
    pub async fn heartbeat_classic(&self, name: &GroupName, who: &Identity, generation: u32) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let cell = coordinator.find_for(name, who)?;
        let now = coordinator.now();
        let beat =
            self.change(&cell, false, |group| group.heartbeat_classic(who, generation, &Topics(self), now)).await?;
        if beat.is_err() {
            // It has to join again by a deadline, which may be the next one.
            coordinator.changed.notify_one();
        }
        beat
    }

    /// Members go, or are made to. Says of each what became of it.
    pub async fn leave_classic(&self, name: &GroupName, leavers: &[Leaver]) -> Outcome<Vec<Outcome<MemberId>>> {
        let coordinator = self.restored_groups().await?;
        let cell = coordinator.find(name)?;
        let mut left = Vec::with_capacity(leavers.len());
        for leaver in leavers {
            let now = coordinator.now();
            left.push(self.change(&cell, false, |group| group.leave_classic(leaver, now)).await?);
        }
        coordinator.recount(&cell);
        coordinator.changed.notify_one();
        self.save(&cell, false).await?;
        Ok(left)
    }

    /// Forgets offsets of a group, of topics that no member subscribes to. Says of each partition what became of it.
    pub async fn delete_offsets(
        &self,
        name: &GroupName,
        partitions: Vec<TopicPartition>,
    ) -> Outcome<Vec<(TopicPartition, Outcome)>> {
        let cell = self.restored_groups().await?.find(name)?;
        let (mut changes, mut deleted) = (Vec::new(), Vec::new());
        for partition in partitions {
            let change = Change { partition: partition.clone(), committed: None };
            let may_go = self.check_offsets(std::slice::from_ref(&change)).map_err(GroupError::from).and_then(|()| {
                cell.state.lock().group.check_commit(&Committer::Cleaner, std::slice::from_ref(&change))
            });
            if may_go.is_ok() {
                changes.push(change);
            }
            deleted.push((partition, may_go));
        }
        self.commit(name, &Committer::Cleaner, changes).await?;
        Ok(deleted)
    }
}
