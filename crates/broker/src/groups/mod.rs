//! The one coordinator of all consumer groups: their clock, their timers and what they have committed.
//!
//! The groups themselves are state machines (`engine::groups`). Here each has a lock, a place in the topic of
//! offsets, and members that wait for news.

mod classic;
mod log;
mod share;
mod status;
mod transactional;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::groups::{
    Catalog, Change, Committed, Committer, Group, GroupError, GroupName, Identity, Join, NO_LEADER_EPOCH, Now,
    OFFSETS_TOPIC, OffsetsRecord, Reason, Turn,
};
use engine::limits::{COMMITTED_OFFSETS_MAX, GROUPS_MAX};
use engine::{Error, ErrorKind, Offset, PartitionId, Pattern, Result, Start, TopicName, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OnceCell};

use crate::broker::Broker;
use crate::internal::Appended;
use crate::metrics::Counter;
use crate::peers::{Created, Peers};
use crate::publish::Wakes;
use crate::timers;

pub(crate) use transactional::StagedCommit;

pub use classic::Entered;
pub use share::{SHARE_IN_FLIGHT_MAX, ShareBeat, ShareGroupMember, ShareGroupStatus, ShareStart};
pub use status::{ClassicInfo, GroupMember, GroupPartition, GroupStatus, GroupSummary};

/// Timeouts are looked at no more often than this.
const TICK: Duration = Duration::from_millis(10);
/// How often groups without members are looked through for those whose offsets have to go.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// The time of a commit that has no place in the log yet.
const NOT_YET: u64 = 0;

type Outcome<T = ()> = Result<T, GroupError>;

/// All consumer groups of a broker.
pub(crate) struct Coordinator {
    groups: RwLock<HashMap<GroupName, Arc<Cell>>>,
    shares: share::ShareGroups,
    /// Set once the groups were read from the topic of offsets.
    is_restored: OnceCell<()>,
    /// Rises with every topic that comes or goes.
    topics_version: AtomicU64,
    /// A deadline may have come nearer, or the topics have changed.
    changed: Arc<Notify>,
    /// Committed offsets of all groups.
    offsets: Arc<AtomicUsize>,
    /// What members that share out among themselves made all groups hold.
    protocols_bytes: AtomicUsize,
    member_ids: classic::MemberIds,
    /// The zero of the clock that never steps back.
    begin: Instant,
    /// When the newest commit was, ms since 1970, also of before the broker was started.
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

/// One group at work.
struct Cell {
    name: GroupName,
    state: Mutex<State>,
    /// Members that wait look again.
    news: Notify,
    /// Held by whoever writes what the topic of offsets has to know of the group itself.
    saving: tokio::sync::Mutex<()>,
    /// Committed offsets of all groups.
    offsets: Arc<AtomicUsize>,
}

struct State {
    group: Group,
    /// Deleted: whoever still holds it looks for it anew.
    is_gone: bool,
    /// What of this group is counted in [`Coordinator::protocols_bytes`].
    protocols_bytes: usize,
}

/// A sign of life.
#[derive(Clone, Debug)]
pub struct Beat {
    pub who: Identity,
    pub epoch: u32,
    /// What the member reads, where it says so. Then the answer comes at once, with all that it may read.
    pub owned: Option<BTreeSet<TopicPartition>>,
    /// What it subscribes to from now on.
    pub topics: Option<Vec<Pattern>>,
    /// How long the member may be silent from now on; `None` leaves it as it is.
    pub session_timeout_ms: Option<u32>,
    /// How long the answer may wait for something to tell.
    pub wait: Duration,
}

/// How far a group has read in one partition.
#[derive(Clone, Debug)]
pub struct OffsetCommit {
    pub partition: TopicPartition,
    pub offset: Offset,
    /// [`NO_LEADER_EPOCH`] where none is known.
    pub leader_epoch: i32,
    pub metadata: String,
}

/// What becomes of the offsets of a group without members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// The end of each partition where it says live.
    Start(Start),
    /// As if the group had never read there.
    Forget,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            groups: RwLock::default(),
            shares: share::ShareGroups::default(),
            is_restored: OnceCell::new(),
            topics_version: AtomicU64::new(1),
            changed: Arc::default(),
            offsets: Arc::default(),
            protocols_bytes: AtomicUsize::new(0),
            member_ids: classic::MemberIds::default(),
            begin: Instant::now(),
            commit_ms: AtomicU64::new(0),
            counts: Counts::default(),
        }
    }
}

impl Coordinator {
    /// The time of a commit: no earlier than any before it, though the clock of the machine was set back.
    fn commit_ms(&self) -> u64 {
        let now_ms = timers::now_ms();
        self.commit_ms.fetch_max(now_ms, Ordering::AcqRel).max(now_ms)
    }

    /// The time of a decision that commits offsets: later than all commits before it. So what was committed since can
    /// be told from what was there before, where the decision is carried out again.
    pub(crate) fn decision_ms(&self) -> u64 {
        let now_ms = timers::now_ms();
        let next = |last: u64| last.saturating_add(1).max(now_ms);
        let before = self.commit_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
        next(before.unwrap_or_else(|last| last))
    }

    /// There was such a commit, or decision, before the broker was started.
    pub(crate) fn note_commit_ms(&self, commit_ms: u64) {
        self.commit_ms.fetch_max(commit_ms, Ordering::AcqRel);
    }

    fn now(&self) -> Now {
        Now { steady_ms: self.begin.elapsed().as_millis() as u64, unix_ms: timers::now_ms() }
    }

    /// A topic has come or gone.
    pub(crate) fn topics_changed(&self) {
        self.topics_version.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    fn find(&self, name: &GroupName) -> Outcome<Arc<Cell>> {
        self.groups.read().get(name).cloned().ok_or_else(|| no_such_group(name))
    }

    /// A group that is not there has no members: after a restart of a broker in memory they join again.
    fn find_for(&self, name: &GroupName, who: &Identity) -> Outcome<Arc<Cell>> {
        let unknown = format!("{} is not a member of group {name}: join again", who.member);
        self.groups.read().get(name).cloned().ok_or_else(|| GroupError::new(Reason::UnknownMember, unknown))
    }

    fn find_or_create(&self, name: &GroupName, peers: Option<&Peers>) -> Outcome<Arc<Cell>> {
        if let Ok(cell) = self.find(name) {
            return Ok(cell);
        }
        let mut groups = self.groups.write();
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

    fn check_room(&self, group: &Group, changes: &[Change]) -> Result<()> {
        let is_fresh = |change: &&Change| !group.committed().contains_key(&change.partition);
        let (fresh, offsets) = (changes.iter().filter(is_fresh).count(), self.offsets.load(Ordering::Relaxed));
        if fresh > 0 && offsets + fresh > COMMITTED_OFFSETS_MAX {
            return Err(Error::busy(format!("this broker keeps {offsets} committed offsets; delete groups first")));
        }
        Ok(())
    }
}

impl Cell {
    fn new(group: Group, offsets: &Arc<AtomicUsize>) -> Self {
        Self {
            name: group.name().clone(),
            offsets: offsets.clone(),
            state: Mutex::new(State { group, is_gone: false, protocols_bytes: 0 }),
            news: Notify::new(),
            saving: tokio::sync::Mutex::default(),
        }
    }

    /// Lets a commit take effect, and those before it, once the log is safe for it.
    async fn commit_through(&self, appended: Appended) -> Result<()> {
        let position = appended.lasts().await?;
        self.count_offsets(|group| group.committed_through(position));
        Ok(())
    }

    /// Does what may change how many offsets there are.
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

fn no_such_group(name: &GroupName) -> GroupError {
    GroupError::new(Reason::NoSuchGroup, format!("there is no consumer group '{name}'"))
}

/// The topics of a broker as groups see them.
struct Topics<'a>(&'a Broker);

impl Catalog for Topics<'_> {
    fn version(&self) -> u64 {
        self.0.catalog_version()
    }

    fn matching(&self, pattern: &Pattern) -> Vec<(TopicName, u32)> {
        match pattern {
            Pattern::Topic(name) => {
                let found = self.0.topic(name.as_str()).ok();
                found.map(|topic| (name.clone(), topic.partitions().len() as u32)).into_iter().collect()
            }
            Pattern::Wildcard(_) | Pattern::Rule(_) => {
                let found = self.0.topics_matching(pattern).into_iter();
                found.map(|topic| (topic.name.clone(), topic.partitions().len() as u32)).collect()
            }
        }
    }
}

impl Broker {
    /// Rises with every topic that comes, goes or grows, from 1 when the broker starts.
    pub fn catalog_version(&self) -> u64 {
        self.groups().topics_version.load(Ordering::Acquire)
    }

    /// Waits until the groups are as they were when the broker stopped.
    async fn restored_groups(&self) -> Result<&Coordinator> {
        let coordinator = self.groups();
        coordinator.is_restored.get_or_try_init(|| self.restore_groups()).await?;
        Ok(coordinator)
    }

    async fn restore_groups(&self) -> Result<()> {
        let coordinator = self.groups();
        let groups = self.read_groups(coordinator.now()).await?;
        let mut offsets = 0;
        let mut cells = HashMap::new();
        for (name, mut group) in groups {
            self.forget_lost_topics(&mut group);
            offsets += group.committed().len();
            group.committed().values().for_each(|committed| coordinator.note_commit_ms(committed.committed_ms));
            cells.insert(name, Arc::new(Cell::new(group, &coordinator.offsets)));
        }
        if !cells.is_empty() {
            tracing::info!(groups = cells.len(), offsets, "consumer groups restored");
        }
        coordinator.offsets.store(offsets, Ordering::Relaxed);
        *coordinator.groups.write() = cells;
        Ok(())
    }

    /// Topics in memory begin anew with the broker, so offsets of before mean nothing in them.
    fn forget_lost_topics(&self, group: &mut Group) {
        let topics: BTreeSet<TopicName> = group.committed().keys().map(|partition| partition.topic.clone()).collect();
        let lasts = |topic: &TopicName| self.topic(topic.as_str()).is_ok_and(|topic| topic.stored_as.is_some());
        for topic in topics.into_iter().filter(|topic| !lasts(topic)) {
            self.forget_offsets(group, &topic, &mut Wakes::default());
        }
    }

    /// Takes the offsets of a topic out of a group and out of the log. Nobody waits for the log: after a restart
    /// the offsets of topics that are gone are left out.
    fn forget_offsets(&self, group: &mut Group, topic: &TopicName, wakes: &mut Wakes) {
        let (name, tombstones) = (group.name(), group.tombstones(Some(topic)));
        if !tombstones.is_empty() {
            let records = tombstones.into_iter().map(|change| OffsetsRecord::Offset { group: name.clone(), change });
            let log = self.topic(OFFSETS_TOPIC);
            if let Err(error) = log.and_then(|log| self.append_offsets(&log, name, records, wakes)) {
                tracing::warn!(group = %name, %topic, %error, "offsets of a deleted topic stay in the log");
            }
        }
        group.forget_topic(topic, self.groups().now());
    }

    /// Adds a member to a group, or lets one begin again. It gets partitions of a topic that does not exist once that
    /// is created: reading creates nothing.
    pub async fn join_group(&self, name: &GroupName, join: Join) -> Outcome<Turn> {
        join.check()?;
        let coordinator = self.restored_groups().await?;
        loop {
            let cell = coordinator.find_or_create(name, Some(self.peers()))?;
            let (now, who) = (coordinator.now(), join.who.clone());
            let joined = self.change(&cell, true, |group| group.join(join.clone(), &Topics(self), now)).await;
            match joined {
                // It was deleted just now.
                Err(refused) if refused.reason == Reason::NoSuchGroup => {}
                joined => {
                    let beat = joined??;
                    coordinator.recount(&cell);
                    // Its deadline may be the next one.
                    coordinator.changed.notify_one();
                    return self.answer(&cell, &who, beat, true, Duration::ZERO).await;
                }
            }
        }
    }

    /// A member is alive, says what it reads, and hears what it may read.
    pub async fn group_heartbeat(&self, name: &GroupName, beat: Beat) -> Outcome<Turn> {
        let coordinator = self.restored_groups().await?;
        let cell = coordinator.find_for(name, &beat.who)?;
        let now = coordinator.now();
        let number = self.change(&cell, false, |group| {
            if let Some(topics) = beat.topics {
                group.resubscribe(&beat.who, beat.epoch, topics, &Topics(self))?;
            }
            if let Some(timeout_ms) = beat.session_timeout_ms
                && group.set_session_timeout(&beat.who, beat.epoch, timeout_ms)?
            {
                // Its deadline may be the next one.
                coordinator.changed.notify_one();
            }
            group.beat(&beat.who, beat.epoch, beat.owned.as_ref(), &Topics(self), now)
        });
        let number = number.await??;
        self.answer(&cell, &beat.who, number, beat.owned.is_some(), beat.wait).await
    }

    /// The answer to a heartbeat: at once where there is something to tell, else when there is, or at the end of
    /// the wait, or when the member was heard again.
    async fn answer(&self, cell: &Cell, who: &Identity, beat: u64, in_full: bool, wait: Duration) -> Outcome<Turn> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let news = cell.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            {
                let group = &mut cell.state.lock().group;
                let is_last = group.is_last_beat(&who.member, beat);
                let has_news = group.reconcile(who, self.groups().now())?;
                if has_news {
                    // What it shall give up has a deadline, which may be the next one.
                    self.groups().changed.notify_one();
                }
                if has_news || in_full || !is_last || tokio::time::Instant::now() >= deadline {
                    return group.answer(who, beat, in_full);
                }
            }
            // That the wait is over is seen above.
            tokio::time::timeout_at(deadline, news).await.unwrap_or_default();
        }
    }

    /// A member goes. A static one that is only away keeps its partitions until its session is over.
    pub async fn leave_group(&self, name: &GroupName, who: &Identity, is_away: bool) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let cell = coordinator.find(name)?;
        let now = coordinator.now();
        self.change(&cell, false, |group| group.leave(who, is_away, now)).await??;
        coordinator.recount(&cell);
        self.save(&cell, false).await?;
        Ok(())
    }

    /// Changes a group once the topic of offsets has what it must have before. Members who may have something new
    /// look again.
    async fn change<T>(&self, cell: &Cell, is_joining: bool, work: impl FnOnce(&mut Group) -> T) -> Outcome<T> {
        loop {
            {
                let mut state = cell.state.lock();
                if state.is_gone {
                    return Err(no_such_group(&cell.name));
                }
                if state.group.to_save(is_joining).is_none() {
                    let (version, epoch) = (state.group.version(), state.group.epoch());
                    let done = work(&mut state.group);
                    self.groups().counts.rebalances.add((state.group.epoch() - epoch).into());
                    if state.group.version() != version {
                        cell.news.notify_waiters();
                    }
                    return Ok(done);
                }
            }
            self.save(cell, is_joining).await?;
        }
    }

    /// Writes what the topic of offsets has to know of the group itself, and waits until it is committed.
    async fn save(&self, cell: &Cell, is_joining: bool) -> Outcome {
        let topic = self.internal_topic(OFFSETS_TOPIC)?;
        let _turn = cell.saving.lock().await;
        let mut wakes = Wakes::default();
        let (saved, appended) = {
            let state = cell.state.lock();
            let Some(saved) = state.group.to_save(is_joining).filter(|_| !state.is_gone) else {
                return Ok(());
            };
            let record = OffsetsRecord::Group { group: cell.name.clone(), saved: Some(saved) };
            (saved, self.append_offsets(&topic, &cell.name, [record], &mut wakes)?)
        };
        drop(wakes);
        appended.lasts().await?;
        cell.state.lock().group.saved(saved);
        Ok(())
    }

    /// Commits offsets. They count, and this returns, when their records are committed.
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
        let counts = &self.groups().counts;
        if committed.is_ok() { &counts.commits } else { &counts.refused_commits }.add(1);
        committed
    }

    /// Commits offsets, whose time is when they get their place.
    async fn commit(&self, name: &GroupName, committer: &Committer, mut changes: Vec<Change>) -> Outcome {
        if changes.is_empty() {
            return Ok(());
        }
        let coordinator = self.restored_groups().await?;
        self.check_offsets(&changes)?;
        let topic = self.internal_topic(OFFSETS_TOPIC)?;
        let cell = match committer {
            Committer::Member { who, .. } => coordinator.find_for(name, who)?,
            Committer::Cleaner => coordinator.find(name)?,
            Committer::Outsider => coordinator.find_or_create(name, Some(self.peers()))?,
        };
        let mut wakes = Wakes::default();
        let appended = self.change(&cell, false, |group| {
            group.check_commit(committer, &changes)?;
            coordinator.check_room(group, &changes)?;
            let committed_ms = coordinator.commit_ms();
            let committed = changes.iter_mut().filter_map(|change| change.committed.as_mut());
            committed.for_each(|committed| committed.committed_ms = committed_ms);
            let record = |change: &Change| OffsetsRecord::Offset { group: name.clone(), change: change.clone() };
            let appended = self.append_offsets(&topic, name, changes.iter().map(record), &mut wakes)?;
            group.stage(appended.position, changes);
            Outcome::Ok(appended)
        });
        let appended = appended.await??;
        drop(wakes);
        if appended.is_reached() {
            return Ok(cell.commit_through(appended).await?);
        }
        // Whoever commits may go before the log is safe, and then it counts all the same.
        let committed = tokio::spawn(async move { cell.commit_through(appended).await });
        Ok(committed.await.unwrap_or_else(|gone| {
            Err(Error::new(ErrorKind::Internal, format!("the broker stopped before the commit was durable: {gone}")))
        })?)
    }

    fn check_offsets(&self, changes: &[Change]) -> Result<()> {
        for change in changes {
            self.topic(change.partition.topic.as_str())?.partition(change.partition.partition)?;
            if change.committed.as_ref().is_some_and(|committed| committed.offset > i64::MAX as u64) {
                return Err(Error::invalid(format!("the offset for {} is beyond any log", change.partition)));
            }
        }
        Ok(())
    }

    /// Whether a member of a group is told its committed offsets, or only has to join again.
    pub async fn check_fetch(&self, name: &GroupName, who: &Identity, epoch: u32) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let Ok(cell) = coordinator.find(name) else {
            return Ok(());
        };
        cell.state.lock().group.check_fetch(who, epoch)
    }

    /// The committed offsets of a group: of these partitions, as far as there are any, or all.
    pub async fn committed_offsets(
        &self,
        name: &GroupName,
        partitions: Option<&[TopicPartition]>,
    ) -> Outcome<Vec<(TopicPartition, Committed)>> {
        let coordinator = self.restored_groups().await?;
        let Ok(cell) = coordinator.find(name) else {
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

    /// Sets or forgets the offsets of a group that has no members, in these partitions of a topic or in all.
    /// Returns what they are then; with `is_dry_run` what they would be.
    pub async fn reset_offsets(
        &self,
        name: &GroupName,
        topic: &str,
        partitions: &[PartitionId],
        to: &ResetTo,
        is_dry_run: bool,
    ) -> Outcome<Vec<(PartitionId, Option<Offset>)>> {
        let coordinator = self.restored_groups().await?;
        if let Ok(cell) = coordinator.find(name) {
            cell.state.lock().group.check_empty("its offsets can be set")?;
        } else if *to == ResetTo::Forget {
            return Err(no_such_group(name));
        }
        let found = self.topic(topic)?;
        let all: Vec<PartitionId> = found.partitions().iter().map(|cell| cell.id).collect();
        let partitions = if partitions.is_empty() { &all } else { partitions };
        let mut reset = Vec::new();
        for partition in partitions {
            let cell = found.partition(*partition)?;
            let extent = cell.extent();
            let offset = match to {
                ResetTo::Forget => None,
                ResetTo::Start(Start::Live) => Some(extent.end),
                ResetTo::Start(Start::Earliest) => Some(extent.start),
                ResetTo::Start(Start::Offset(offset)) => Some((*offset).clamp(extent.start, extent.end)),
                ResetTo::Start(Start::Time(timestamp_ms)) => Some(cell.offset_for_time(*timestamp_ms)?),
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
    }

    /// Removes a group that has no members, with its offsets.
    pub async fn delete_group(&self, name: &GroupName) -> Outcome {
        let coordinator = self.restored_groups().await?;
        let cell = coordinator.find(name)?;
        self.remove_group(&cell, |group| group.check_empty("it can be deleted")).await
    }

    /// Removes a group if it may go. It is gone for everyone at once; this returns when that is committed.
    async fn remove_group(&self, cell: &Cell, may_go: impl FnOnce(&Group) -> Outcome) -> Outcome {
        let topic = self.internal_topic(OFFSETS_TOPIC)?;
        let mut wakes = Wakes::default();
        let appended = {
            let mut state = cell.state.lock();
            if state.is_gone {
                return Err(no_such_group(&cell.name));
            }
            may_go(&state.group)?;
            let name = &cell.name;
            let offsets = state.group.tombstones(None).into_iter();
            let offsets = offsets.map(|change| OffsetsRecord::Offset { group: name.clone(), change });
            let group = OffsetsRecord::Group { group: name.clone(), saved: None };
            let appended = self.append_offsets(&topic, name, offsets.chain([group]), &mut wakes)?;
            state.is_gone = true;
            self.groups().offsets.fetch_sub(state.group.committed().len(), Ordering::Relaxed);
            self.groups().protocols_bytes.fetch_sub(std::mem::take(&mut state.protocols_bytes), Ordering::Relaxed);
            appended
        };
        self.groups().groups.write().remove(&cell.name);
        drop(wakes);
        appended.lasts().await?;
        Ok(())
    }

    /// A topic was deleted: so are its offsets.
    pub(crate) fn forget_topic(&self, topic: &TopicName) {
        let coordinator = self.groups();
        for cell in coordinator.cells() {
            let mut wakes = Wakes::default();
            cell.count_offsets(|group| self.forget_offsets(group, topic, &mut wakes));
            cell.news.notify_waiters();
        }
        coordinator.shares.forget_topic(topic);
        // Members may have a deadline now by which they have to give up what they had.
        coordinator.topics_changed();
    }

    /// Puts out members that are silent or do not give up what they have to, and tells groups of new topics.
    async fn tick_groups(&self) {
        let coordinator = self.groups();
        coordinator.counts.expired_members.add(coordinator.shares.expire(self, coordinator.now()));
        for cell in coordinator.cells() {
            let now = coordinator.now();
            let is_due = {
                let group = &cell.state.lock().group;
                group.is_outdated(&Topics(self)) || group.next_deadline_ms().is_some_and(|at| at <= now.steady_ms)
            };
            if !is_due {
                continue;
            }
            let changed = self.change(&cell, false, |group| {
                group.refresh(&Topics(self));
                group.expire(now)
            });
            let result = match changed.await {
                Ok(expired) => {
                    for member in &expired {
                        tracing::info!(group = %cell.name, %member, "a member was removed from its consumer group");
                    }
                    coordinator.counts.expired_members.add(expired.len() as u64);
                    coordinator.recount(&cell);
                    self.save(&cell, false).await
                }
                Err(refused) => Err(refused),
            };
            note_failure(&cell, result);
        }
    }

    /// Removes groups that had no members for too long.
    async fn expire_groups(&self) {
        let coordinator = self.groups();
        let retention_ms = match self.settings().offsets_retention.as_millis() as u64 {
            0 => u64::MAX,
            retention_ms => retention_ms,
        };
        for cell in coordinator.cells() {
            let now = coordinator.now();
            let is_expired = |group: &Group| group.is_expired(retention_ms, now);
            if !is_expired(&cell.state.lock().group) {
                continue;
            }
            let removed = self
                .remove_group(&cell, |group| if is_expired(group) { Ok(()) } else { Err(no_such_group(&cell.name)) });
            let removed = removed.await;
            if removed.is_ok() {
                tracing::info!(group = %cell.name, "a consumer group without members was removed with its offsets");
            }
            note_failure(&cell, removed);
        }
    }

    fn next_group_deadline(&self) -> Option<Duration> {
        let now = self.groups().now().steady_ms;
        let deadlines = self.groups().cells();
        let deadlines = deadlines.iter().filter_map(|cell| cell.state.lock().group.next_deadline_ms());
        let next = deadlines.chain(self.groups().shares.next_deadline_ms()).min()?;
        Some(Duration::from_millis(next.saturating_sub(now)))
    }
}

/// What a timer could not do it tries again. That a group is gone is fine.
fn note_failure(cell: &Cell, result: Outcome) {
    if let Err(refused) = result
        && refused.reason != Reason::NoSuchGroup
    {
        tracing::warn!(group = %cell.name, error = %refused.error, "a consumer group could not be saved");
    }
}

/// The timer of all groups, for as long as the broker lives.
pub(crate) async fn keep_time(broker: Weak<Broker>) {
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
    let mut is_expiry_due = false;
    while let Some(broker) = broker.upgrade() {
        let changed = broker.groups().changed.clone();
        let wait = match broker.restored_groups().await {
            Ok(_) => {
                if is_expiry_due {
                    broker.expire_groups().await;
                }
                broker.tick_groups().await;
                broker.next_group_deadline().unwrap_or(EXPIRY_INTERVAL).min(EXPIRY_INTERVAL)
            }
            Err(error) => {
                tracing::error!(%error, "consumer groups cannot be restored");
                EXPIRY_INTERVAL
            }
        };
        // The broker may end meanwhile.
        drop(broker);
        tokio::time::sleep(TICK).await;
        is_expiry_due = tokio::select! {
            () = tokio::time::sleep(wait) => false,
            () = changed.notified() => false,
            _ = expiry.tick() => true,
        };
    }
}

#[cfg(test)]
mod tests;
