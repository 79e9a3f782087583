//! The coordinator of all consumer groups: their clock, their timers and their committed offsets.
//!
//! The groups themselves are state machines (`engine::groups`). Here each has a lock, its records in the topic of
//! offsets, and members that wait for news.

mod catalog;
mod classic;
mod log;
mod member_ids;
mod plan_turns;
mod planning;
mod recording;
mod restore;
mod share;
mod share_groups;
mod status;
mod timers;
mod transactional;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::groups::{
    Change, Committed, Committer, Group, GroupError, GroupName, Identity, Join, NO_LEADER_EPOCH, Now, OffsetsRecord,
    Reason, Turn, member_bytes,
};
use engine::limits::{COMMITTED_OFFSETS_MAX, GROUPS_MAX};
use engine::{Error, Offset, PartitionId, Pattern, Result, Start, TopicName, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::commit::{Appended, Commit};
use crate::core::{Core, TopicObserver};
use crate::documents::Documents;
use crate::fetch::aside;
use crate::metrics::Counter;
use crate::peers::{Created, Peers};
use crate::queues::Queues;
use crate::restored::Restored;
use crate::security::Security;
use crate::topic::Topic;
use crate::wakes::Wakes;

use log::{OFFSETS, append_offsets};

pub use classic::Entered;
pub(crate) use planning::keep_targets;
pub use share::{SHARE_IN_FLIGHT_MAX, ShareBeat, ShareGroupMember, ShareGroupStatus, ShareStart};
pub use status::{ClassicInfo, GroupMember, GroupPartition, GroupStatus, GroupSummary};
pub(crate) use timers::keep_time;

/// Timestamp of a commit that has no place in the log yet.
const NOT_YET: u64 = 0;

type Outcome<T = ()> = Result<T, GroupError>;

/// Consumer groups: their members, their offsets, and their clock.
pub struct Groups {
    core: Arc<Core>,
    queues: Arc<Queues>,
    documents: Arc<Documents>,
    security: Arc<Security>,
    table: Arc<GroupTable>,
}

/// All consumer groups of a broker.
pub(crate) struct GroupTable {
    groups: RwLock<HashMap<GroupName, Arc<Cell>>>,
    shares: share_groups::ShareGroups,
    planning: plan_turns::Planning,
    /// Done once the groups have been read from the topic of offsets.
    restored: Restored,
    /// A deadline may have come nearer.
    changed: Arc<Notify>,
    /// Number of committed offsets of all groups.
    offsets: Arc<AtomicUsize>,
    /// Bytes that the members of all groups take.
    members_bytes: AtomicUsize,
    member_ids: member_ids::MemberIds,
    clock: Clock,
    /// Start of the monotonic clock.
    begin: Instant,
    /// Time of the newest commit, in ms since 1970, including commits before startup.
    commit_ms: AtomicU64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rebalances: Counter,
    expired_members: Counter,
    commits: Counter,
    refused_commits: Counter,
}

/// A group with its lock and its waiting members.
struct Cell {
    name: GroupName,
    state: Mutex<State>,
    /// Notified when waiting members have to check the group again.
    news: Notify,
    /// Held while the group's own state is written to the topic of offsets.
    saving: tokio::sync::Mutex<()>,
    /// Held while a plan of the group runs.
    planning: tokio::sync::Mutex<()>,
    /// Number of committed offsets of all groups, shared with the coordinator.
    offsets: Arc<AtomicUsize>,
}

struct State {
    group: Group,
    /// `true` if the group was deleted or forgotten: a caller that still holds it must look it up again.
    is_gone: bool,
    /// `true` if the group was forgotten: it exists, and is being restored.
    is_forgotten: bool,
    /// Bytes of this group that are counted in [`GroupTable::members_bytes`].
    members_bytes: usize,
    /// Position of the newest record about members that may not be committed.
    unsettled: Option<Offset>,
}

/// Heartbeat of a member.
#[derive(Clone, Debug)]
pub struct Beat {
    pub who: Identity,
    pub epoch: u32,
    /// Partitions that the member reads, if it reports them. The response is then immediate and has all partitions that
    /// the member may read.
    pub owned: Option<BTreeSet<TopicPartition>>,
    /// Topics to which the member subscribes from now on; `None` leaves them unchanged.
    pub topics: Option<Vec<Pattern>>,
    /// New session timeout of the member; `None` leaves it unchanged.
    pub session_timeout_ms: Option<u32>,
    /// Maximum time that the response waits for a change.
    pub wait: Duration,
}

/// Offset up to which a group has read one partition.
#[derive(Clone, Debug)]
pub struct OffsetCommit {
    pub partition: TopicPartition,
    pub offset: Offset,
    /// Leader epoch of the offset; [`NO_LEADER_EPOCH`] if unknown.
    pub leader_epoch: i32,
    pub metadata: String,
}

/// Target of an offset reset of a group without members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// A start position in each partition; live is its end.
    Start(Start),
    /// No offset, as if the group had never read the partition.
    Forget,
}

impl GroupTable {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            groups: RwLock::default(),
            shares: share_groups::ShareGroups::default(),
            planning: plan_turns::Planning::default(),
            restored: Restored::default(),
            changed: Arc::default(),
            offsets: Arc::default(),
            members_bytes: AtomicUsize::new(0),
            member_ids: member_ids::MemberIds::default(),
            begin: Instant::now(),
            commit_ms: AtomicU64::new(0),
            counts: Counts::default(),
        }
    }

    /// Returns the time of a commit: no earlier than any previous commit, even if the system clock was set back.
    fn commit_ms(&self) -> u64 {
        let now_ms = self.clock.now_ms();
        self.commit_ms.fetch_max(now_ms, Ordering::AcqRel).max(now_ms)
    }

    /// Returns the time of a decision that commits offsets: later than all previous commits. If the decision is carried
    /// out again, later commits can thereby be distinguished from earlier ones.
    pub(crate) fn decision_ms(&self) -> u64 {
        let now_ms = self.clock.now_ms();
        let next = |last: u64| last.saturating_add(1).max(now_ms);
        let before = self.commit_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
        next(before.unwrap_or_else(|last| last))
    }

    /// Notes the time of a commit or a decision that was made before startup.
    pub(crate) fn note_commit_ms(&self, commit_ms: u64) {
        self.commit_ms.fetch_max(commit_ms, Ordering::AcqRel);
    }

    fn now(&self) -> Now {
        Now { steady_ms: self.begin.elapsed().as_millis() as u64, unix_ms: self.clock.now_ms() }
    }

    fn find(&self, name: &GroupName) -> Outcome<Arc<Cell>> {
        let groups = self.groups.read();
        match groups.get(name) {
            Some(cell) => Ok(cell.clone()),
            // The groups were forgotten since the caller waited for them.
            None if !self.restored.is_done() => Err(still_restoring(name)),
            None => Err(no_such_group(name)),
        }
    }

    /// Returns the group of a name, or `None` if it does not exist.
    fn find_existing(&self, name: &GroupName) -> Outcome<Option<Arc<Cell>>> {
        match self.find(name) {
            Err(missing) if missing.reason == Reason::NoSuchGroup => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the group of a member. A group that does not exist has no members: after a restart of a broker without a
    /// data directory, its members must join again.
    fn find_for(&self, name: &GroupName, who: &Identity) -> Outcome<Arc<Cell>> {
        let unknown = || format!("{} is not a member of group {name}: join again", who.member);
        self.find_existing(name)?.ok_or_else(|| GroupError::new(Reason::UnknownMember, unknown()))
    }

    fn find_or_create(&self, name: &GroupName, peers: Option<&Peers>) -> Outcome<Arc<Cell>> {
        if let Ok(cell) = self.find(name) {
            return Ok(cell);
        }
        let mut groups = self.groups.write();
        if !self.restored.is_done() {
            return Err(Error::busy("the broker is restoring its consumer groups: try again").into());
        }
        if groups.len() >= GROUPS_MAX && !groups.contains_key(name) {
            return Err(Error::busy(format!("this broker has {GROUPS_MAX} consumer groups; delete some first")).into());
        }
        if self.shares.has(name) {
            return Err(GroupError::new(Reason::InconsistentProtocol, format!("group '{name}' is a share group")));
        }
        if let Some(peers) = peers.filter(|_| !groups.contains_key(name)) {
            peers.admit(Created::Group)?;
        }
        let new = || Arc::new(Cell::new(Group::new(name.clone(), self.now()), &self.offsets));
        Ok(groups.entry(name.clone()).or_insert_with(new).clone())
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        self.groups.read().values().cloned().collect()
    }

    /// Deletes the offsets of a topic from a group and from the log. Does not wait for the log: on restart, offsets of
    /// deleted topics are ignored.
    fn forget_offsets(&self, core: &Core, group: &mut Group, topic: &TopicName, wakes: &mut Wakes) {
        let name = group.name();
        let tombstones = group.tombstones(Some(topic));
        if !tombstones.is_empty() {
            let records = tombstones.into_iter().map(|change| OffsetsRecord::Offset { group: name.clone(), change });
            if let Err(error) = append_offsets(core, name, records, wakes) {
                tracing::warn!(group = %name, %topic, %error, "offsets of a deleted topic stay in the log");
            }
        }
        group.forget_topic(topic, self.now());
    }

    /// Marks a group that leaves the table, and no longer counts what it has.
    fn mark_gone(&self, state: &mut State) {
        state.is_gone = true;
        self.offsets.fetch_sub(state.group.committed().len(), Ordering::Relaxed);
        self.members_bytes.fetch_sub(std::mem::take(&mut state.members_bytes), Ordering::Relaxed);
    }

    fn check_room(&self, group: &Group, changes: &[Change]) -> Result<()> {
        let is_fresh = |change: &&Change| !group.committed().contains_key(&change.partition);
        let fresh = changes.iter().filter(is_fresh).count();
        let offsets = self.offsets.load(Ordering::Relaxed);
        if fresh > 0 && offsets + fresh > COMMITTED_OFFSETS_MAX {
            return Err(Error::busy(format!(
                "this broker has {offsets} committed offsets, which is the limit; delete groups first"
            )));
        }
        Ok(())
    }
}

impl State {
    /// Fails if the group is not in the table any more.
    fn check(&self, name: &GroupName) -> Outcome {
        match (self.is_gone, self.is_forgotten) {
            (false, _) => Ok(()),
            (true, true) => Err(still_restoring(name)),
            (true, false) => Err(no_such_group(name)),
        }
    }

    /// Returns the group of a member that waits, unless the group is gone.
    fn kept(&mut self, name: &GroupName) -> Outcome<&mut Group> {
        if self.is_forgotten {
            return Err(still_restoring(name));
        }
        if self.is_gone {
            return Err(GroupError::new(Reason::UnknownMember, format!("group {name} was deleted: join again")));
        }
        Ok(&mut self.group)
    }
}

impl Cell {
    fn new(group: Group, offsets: &Arc<AtomicUsize>) -> Self {
        Self {
            name: group.name().clone(),
            offsets: offsets.clone(),
            state: Mutex::new(State { group, is_gone: false, is_forgotten: false, members_bytes: 0, unsettled: None }),
            news: Notify::new(),
            saving: tokio::sync::Mutex::default(),
            planning: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until a commit and all commits before it are durable, and then makes them take effect.
    async fn commit_through(&self, appended: Appended) -> Result<()> {
        let Appended { position, commit } = appended;
        commit.wait().await?;
        self.count_offsets(|group| group.committed_through(position));
        Ok(())
    }

    /// Runs work that may change the number of committed offsets, and counts them again.
    fn count_offsets(&self, work: impl FnOnce(&mut Group)) {
        let mut state = self.state.lock();
        if state.is_gone {
            return;
        }
        let before = state.group.committed().len();
        work(&mut state.group);
        let after = state.group.committed().len();
        self.offsets.fetch_add(after, Ordering::Relaxed);
        self.offsets.fetch_sub(before, Ordering::Relaxed);
    }
}

fn still_restoring(name: &GroupName) -> GroupError {
    GroupError::from(Error::busy(format!("consumer group '{name}' is being restored: try again")))
}

fn no_such_group(name: &GroupName) -> GroupError {
    GroupError::new(Reason::NoSuchGroup, format!("there is no consumer group '{name}'"))
}

impl TopicObserver for GroupTable {
    fn topic_removed(&self, core: &Core, topic: &Topic) {
        for cell in self.cells() {
            let mut wakes = Wakes::default();
            cell.count_offsets(|group| self.forget_offsets(core, group, &topic.name, &mut wakes));
            // Before a new topic can have its name.
            cell.state.lock().record(core, &mut wakes);
            cell.news.notify_waiters();
        }
        if self.shares.forget_topic(&topic.name) {
            self.planning.due.notify_one();
        }
    }
}

impl Groups {
    pub(crate) fn new(
        core: Arc<Core>,
        queues: Arc<Queues>,
        documents: Arc<Documents>,
        security: Arc<Security>,
        table: Arc<GroupTable>,
    ) -> Self {
        Self { core, queues, documents, security, table }
    }

    pub(crate) fn table(&self) -> &GroupTable {
        &self.table
    }

    /// Adds a member to a group, or lets a member rejoin. If it subscribes to a topic that does not exist, it is
    /// assigned partitions once the topic is created: reading creates no topic.
    pub async fn join(&self, name: &GroupName, join: Join) -> Outcome<Turn> {
        join.check()?;
        let coordinator = self.restored().await?;
        let Identity { member, instance } = &join.who;
        self.check_member(name, Some(member), instance.as_ref(), member_bytes(join.topics.len()))?;
        loop {
            let cell = coordinator.find_or_create(name, Some(self.core.peers()))?;
            let now = coordinator.now();
            let who = join.who.clone();
            let joined = self.change(&cell, true, |group| {
                let beat = group.join(join.clone(), &self.topics(), now)?;
                group.reconcile(&who, now).map(|_| beat)
            });
            match joined.await {
                // The group was deleted concurrently.
                Err(refused) if refused.reason == Reason::NoSuchGroup => {}
                joined => {
                    let beat = joined??;
                    coordinator.recount(&cell);
                    // The deadline of the member may be the next one.
                    coordinator.changed.notify_one();
                    // If this fails, it is made later.
                    self.settle(&cell).await.unwrap_or_default();
                    return self.answer(&cell, &who, (beat, 0), true, Duration::ZERO).await;
                }
            }
        }
    }

    /// Processes a heartbeat: records the partitions that the member reads, and returns those that it may read.
    pub async fn heartbeat(&self, name: &GroupName, beat: Beat) -> Outcome<Turn> {
        let coordinator = self.restored().await?;
        let cell = coordinator.find_for(name, &beat.who)?;
        let now = coordinator.now();
        let is_resubscribing = beat.topics.is_some();
        if let Some(topics) = &beat.topics {
            let Identity { member, instance } = &beat.who;
            self.check_member(name, Some(member), instance.as_ref(), member_bytes(topics.len()))?;
        }
        let number = self.change(&cell, false, |group| {
            if let Some(topics) = beat.topics {
                group.resubscribe(&beat.who, beat.epoch, topics, &self.topics())?;
            }
            if let Some(timeout_ms) = beat.session_timeout_ms
                && group.set_session_timeout(&beat.who, beat.epoch, timeout_ms)?
            {
                // The deadline of the member may be the next one.
                coordinator.changed.notify_one();
            }
            let number = group.beat(&beat.who, beat.epoch, beat.owned.as_ref(), &self.topics(), now)?;
            group.reconcile(&beat.who, now).map(|_| number)
        });
        let number = number.await?;
        if is_resubscribing {
            // Also if the heartbeat failed after it.
            coordinator.recount(&cell);
        }
        let number = number?;
        if is_resubscribing {
            self.settle(&cell).await.unwrap_or_default();
        }
        self.answer(&cell, &beat.who, (number, beat.epoch), beat.owned.is_some(), beat.wait).await
    }

    /// Returns the response to a heartbeat: immediately if there is a change, or else when there is one, when `wait`
    /// elapses, or when the member sends another heartbeat. A response that tells the member anything new is recorded
    /// before. `epoch` is the one that the member has sent.
    async fn answer(
        &self,
        cell: &Cell,
        who: &Identity,
        (beat, epoch): (u64, u32),
        in_full: bool,
        wait: Duration,
    ) -> Outcome<Turn> {
        let deadline = Instant::now() + wait;
        loop {
            let news = cell.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let turn = {
                let mut wakes = Wakes::default();
                let mut state = cell.state.lock();
                let group = state.kept(&cell.name)?;
                let is_last = group.is_last_beat(&who.member, beat);
                let has_news = group.reconcile(who, self.table.now())?;
                if has_news {
                    // The member must release partitions by a deadline, which may be the next one.
                    self.table.changed.notify_one();
                }
                let is_due = has_news || in_full || !is_last || Instant::now() >= deadline;
                let turn = is_due.then(|| group.answer(who, beat, in_full)).transpose()?;
                state.record(&self.core, &mut wakes);
                turn
            };
            if let Some(turn) = turn {
                if turn.assignment.is_some() || turn.epoch != epoch {
                    self.recorded(cell).await?;
                    // It may have been removed in the meantime, and another member may have its partitions.
                    cell.state.lock().kept(&cell.name)?.confirm(who, self.table.now())?;
                }
                return Ok(turn);
            }
            // The elapsed wait is detected above.
            tokio::time::timeout_at(deadline, news).await.unwrap_or_default();
        }
    }

    /// Removes a member from its group. A static member that is only away keeps its partitions until its session
    /// expires.
    pub async fn leave(&self, name: &GroupName, who: &Identity, is_away: bool) -> Outcome {
        let coordinator = self.restored().await?;
        let cell = coordinator.find(name)?;
        self.refresh(&cell).await?;
        let now = coordinator.now();
        self.change(&cell, false, |group| group.leave(who, is_away, now)).await??;
        coordinator.recount(&cell);
        self.save(&cell, false).await?;
        self.recorded(&cell).await
    }

    /// Changes a group after its state has been written to the topic of offsets, if that is required. Wakes waiting
    /// members if the group has changed.
    async fn change<T>(&self, cell: &Cell, is_joining: bool, work: impl FnOnce(&mut Group) -> T) -> Outcome<T> {
        loop {
            {
                // Readers are woken without the lock.
                let mut wakes = Wakes::default();
                let mut state = cell.state.lock();
                state.check(&cell.name)?;
                if state.group.to_save(is_joining).is_none() {
                    let version = state.group.version();
                    let epoch = state.group.epoch();
                    let was_due = state.group.is_due();
                    let done = work(&mut state.group);
                    self.table.counts.rebalances.add((state.group.epoch() - epoch).into());
                    if state.group.version() != version {
                        cell.news.notify_waiters();
                    }
                    if state.group.is_due() && !was_due {
                        self.table.planning.due.notify_one();
                    }
                    state.record(&self.core, &mut wakes);
                    return Ok(done);
                }
            }
            self.save(cell, is_joining).await?;
        }
    }

    /// Writes the group's own state to the topic of offsets, and waits until it is committed.
    async fn save(&self, cell: &Cell, is_joining: bool) -> Outcome {
        OFFSETS.create(&self.core)?;
        let _turn = cell.saving.lock().await;
        let mut wakes = Wakes::default();
        let (saved, appended) = {
            let state = cell.state.lock();
            let Some(saved) = state.group.to_save(is_joining).filter(|_| !state.is_gone) else {
                return Ok(());
            };
            let record = OffsetsRecord::Group { group: cell.name.clone(), saved: Some(saved) };
            (saved, append_offsets(&self.core, &cell.name, [record], &mut wakes)?)
        };
        drop(wakes);
        appended.commit.wait().await?;
        cell.state.lock().group.saved(saved);
        Ok(())
    }

    /// Commits offsets. They take effect, and this completes, when their records are committed.
    pub async fn commit_offsets(&self, name: &GroupName, committer: &Committer, offsets: Vec<OffsetCommit>) -> Outcome {
        let changes = offsets.into_iter().map(|commit| Change {
            partition: commit.partition,
            committed: Some(Committed {
                offset: commit.offset,
                leader_epoch: commit.leader_epoch,
                metadata: commit.metadata.into(),
                committed_ms: NOT_YET,
            }),
        });
        let committed = self.commit(name, committer, changes.collect()).await;
        let counts = &self.table.counts;
        if committed.is_ok() { &counts.commits } else { &counts.refused_commits }.add(1);
        committed
    }

    /// Commits offsets. Their time is the time of their append.
    async fn commit(&self, name: &GroupName, committer: &Committer, mut changes: Vec<Change>) -> Outcome {
        if changes.is_empty() {
            return Ok(());
        }
        let coordinator = self.restored().await?;
        self.check_offsets(&changes)?;
        OFFSETS.create(&self.core)?;
        let cell = match committer {
            Committer::Member { who, .. } => coordinator.find_for(name, who)?,
            Committer::Cleaner => coordinator.find(name)?,
            Committer::Outsider => coordinator.find_or_create(name, Some(self.core.peers()))?,
        };
        self.refresh(&cell).await?;
        let mut wakes = Wakes::default();
        let appended = self.change(&cell, false, |group| {
            group.check_commit(committer, &changes)?;
            coordinator.check_room(group, &changes)?;
            let committed_ms = coordinator.commit_ms();
            let committed = changes.iter_mut().filter_map(|change| change.committed.as_mut());
            committed.for_each(|committed| committed.committed_ms = committed_ms);
            let record = |change: &Change| OffsetsRecord::Offset { group: name.clone(), change: change.clone() };
            let appended = append_offsets(&self.core, name, changes.iter().map(record), &mut wakes)?;
            group.stage(appended.position, changes);
            Outcome::Ok(appended)
        });
        let appended = appended.await??;
        drop(wakes);
        if appended.commit.is_done() {
            return Ok(cell.commit_through(appended).await?);
        }
        // A committer may disconnect before the log is durable; the commit takes effect regardless.
        let committed = Commit::later(async move { cell.commit_through(appended).await });
        Ok(committed.wait_to_the_end().await?)
    }

    fn check_offsets(&self, changes: &[Change]) -> Result<()> {
        for change in changes {
            self.core.topic(change.partition.topic.as_str())?.partition(change.partition.partition)?;
            if change.committed.as_ref().is_some_and(|committed| committed.offset > i64::MAX as u64) {
                return Err(Error::invalid(format!("the offset for {} is too large", change.partition)));
            }
        }
        Ok(())
    }

    /// Checks that a member may read the group's committed offsets, or has to join again first.
    pub async fn check_fetch(&self, name: &GroupName, who: &Identity, epoch: u32) -> Outcome {
        let coordinator = self.restored().await?;
        let Some(cell) = coordinator.find_existing(name)? else {
            return Ok(());
        };
        cell.state.lock().group.check_fetch(who, epoch)
    }

    /// Returns the committed offsets of a group: those of the given partitions, or all.
    pub async fn committed_offsets(
        &self,
        name: &GroupName,
        partitions: Option<&[TopicPartition]>,
    ) -> Outcome<Vec<(TopicPartition, Committed)>> {
        let coordinator = self.restored().await?;
        let Some(cell) = coordinator.find_existing(name)? else {
            return Ok(Vec::new());
        };
        let state = cell.state.lock();
        let committed = state.group.committed();
        Ok(match partitions {
            Some(partitions) => {
                let of = |partition: &TopicPartition| Some((partition.clone(), committed.get(partition)?.clone()));
                partitions.iter().filter_map(of).collect()
            }
            None => committed.iter().map(|(partition, committed)| (partition.clone(), committed.clone())).collect(),
        })
    }

    /// Sets or deletes the offsets of a group that has no members, in the given partitions of a topic, or in all if
    /// none are given. Returns the new offsets; with `is_dry_run`, changes nothing.
    pub async fn reset_offsets(
        &self,
        name: &GroupName,
        topic: &str,
        partitions: &[PartitionId],
        to: &ResetTo,
        is_dry_run: bool,
    ) -> Outcome<Vec<(PartitionId, Option<Offset>)>> {
        let act = async {
            let coordinator = self.restored().await?;
            if let Some(cell) = coordinator.find_existing(name)? {
                cell.state.lock().group.check_empty("its offsets can be set")?;
            } else if *to == ResetTo::Forget {
                return Err(no_such_group(name));
            }
            let found = self.core.topic(topic)?;
            let all: Vec<PartitionId> = found.partitions().iter().map(|cell| cell.id).collect();
            let named = if partitions.is_empty() { &all } else { partitions };
            let partitions: BTreeSet<PartitionId> = named.iter().copied().collect();
            let mut reset = Vec::new();
            for partition in &partitions {
                tokio::task::yield_now().await;
                let cell = found.partition(*partition)?;
                let extent = cell.extent();
                let offset = match to {
                    ResetTo::Forget => None,
                    ResetTo::Start(Start::Live) => Some(extent.end),
                    ResetTo::Start(Start::Earliest) => Some(extent.start),
                    ResetTo::Start(Start::Offset(offset)) => Some((*offset).clamp(extent.start, extent.end)),
                    ResetTo::Start(Start::Time(timestamp_ms)) => {
                        let (cell, timestamp_ms) = (cell.clone(), *timestamp_ms);
                        Some(aside(move || cell.offset_for_time(timestamp_ms)).await?)
                    }
                    ResetTo::Start(Start::Offsets(offsets)) => {
                        let Some((_, offset)) = offsets.iter().find(|(id, _)| id == partition) else {
                            continue;
                        };
                        Some((*offset).clamp(extent.start, extent.end))
                    }
                };
                reset.push((*partition, offset));
            }
            if !is_dry_run {
                let changes = reset.iter().map(|(partition, offset)| Change {
                    partition: TopicPartition { topic: found.name.clone(), partition: *partition },
                    committed: offset.map(|offset| Committed {
                        offset,
                        leader_epoch: NO_LEADER_EPOCH,
                        metadata: "".into(),
                        committed_ms: NOT_YET,
                    }),
                });
                self.commit(name, &Committer::Outsider, changes.collect()).await?;
            }
            Ok(reset)
        };
        if is_dry_run { act.await } else { self.core.audited("reset offsets of group", name.as_str(), act).await }
    }

    /// Deletes a group that has no members, with its offsets.
    pub async fn delete(&self, name: &GroupName) -> Outcome {
        let act = async {
            let coordinator = self.restored().await?;
            let cell = coordinator.find(name)?;
            self.remove(&cell, |group| group.check_empty("it can be deleted")).await
        };
        self.core.audited("delete group", name.as_str(), act).await
    }

    /// Deletes a group if `may_go` permits it. The deletion is visible to all clients immediately; this completes when
    /// it is committed.
    async fn remove(&self, cell: &Cell, may_go: impl FnOnce(&Group) -> Outcome) -> Outcome {
        OFFSETS.create(&self.core)?;
        let mut wakes = Wakes::default();
        let appended = {
            let mut state = cell.state.lock();
            state.check(&cell.name)?;
            may_go(&state.group)?;
            let name = &cell.name;
            let offsets = state.group.tombstones(None).into_iter();
            let offsets = offsets.map(|change| OffsetsRecord::Offset { group: name.clone(), change });
            let members = state.group.to_records().into_iter();
            let group = OffsetsRecord::Group { group: name.clone(), saved: None };
            let appended = append_offsets(&self.core, name, offsets.chain(members).chain([group]), &mut wakes)?;
            self.table.mark_gone(&mut state);
            appended
        };
        self.table.groups.write().remove(&cell.name);
        drop(wakes);
        appended.commit.wait().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
