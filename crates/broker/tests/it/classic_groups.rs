//! Classic groups: the waits of their members, alone and together with members to which the broker assigns partitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use broker::{Beat, Broker, Entered, OffsetCommit, Settings};
use bytes::Bytes;
use engine::groups::{
    Assignor, ClassicJoin, ClassicPhase, ClassicSync, Committer, Given, GroupName, GroupState, Identity, Join, Joined,
    Leaver, MemberId, NO_LEADER_EPOCH, Protocol, Reason, Share, Subscription,
};
use engine::{ErrorKind, Pattern, TopicName, TopicPartition, TopicSettings};

use futures_util::FutureExt;

use crate::support::{metric, publish, start, within};

fn group() -> GroupName {
    GroupName::parse("g").expect("a name")
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: TopicName::parse(topic).expect("a topic"), partition }
}

/// A member that releases all its partitions before it joins.
#[derive(Clone)]
struct Member {
    broker: Arc<Broker>,
    who: Option<Identity>,
    generation: u32,
    session_timeout_ms: u32,
}

impl Member {
    fn new(broker: &Arc<Broker>, session_timeout_ms: u32) -> Self {
        Self { broker: broker.clone(), who: None, generation: 0, session_timeout_ms }
    }

    fn join_of(&self, comes_twice: bool) -> ClassicJoin {
        let topics = vec![Pattern::parse("t").expect("a topic")];
        ClassicJoin {
            member: self.who.as_ref().map(|who| who.member.clone()),
            fresh: self.broker.groups.new_member_id("a program\n").expect("an id"),
            instance: None,
            client: "a program".into(),
            host: "here".into(),
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: 60_000,
            protocol_type: "consumer".into(),
            protocols: vec![Protocol { name: "range".into(), metadata: Bytes::from_static(b"wants t") }],
            subscription: Some(Subscription::new(topics, BTreeSet::new()).expect("within limits")),
            comes_twice,
            may_skip: false,
        }
    }

    async fn join(&mut self) -> Result<Joined, Reason> {
        loop {
            let entered = within("joining", self.broker.groups.join_classic(&group(), self.join_of(true))).await;
            match entered.map_err(|refused| refused.reason)? {
                Entered::Named(id) => self.who = Some(Identity { member: id, instance: None }),
                Entered::Joined(joined) => {
                    self.who = Some(Identity { member: joined.member.clone(), instance: None });
                    self.generation = joined.generation;
                    return Ok(joined);
                }
            }
        }
    }

    fn id(&self) -> &MemberId {
        &self.who.as_ref().expect("it has joined").member
    }

    /// Returns the assignment of this member. A leader assigns a partition of `t` to each member in turn.
    async fn sync(&self, joined: &Joined) -> Result<Given, Reason> {
        let shares = joined.members.iter().zip(0..).map(|(member, number)| Share {
            member: member.member.clone(),
            bytes: Bytes::from(format!("{number}")),
            partitions: Some(vec![at("t", number)]),
        });
        let sync = ClassicSync {
            who: self.who.clone().expect("it has joined"),
            generation: joined.generation,
            protocol_type: None,
            protocol: None,
            shares: shares.collect(),
        };
        let synced = within("syncing", self.broker.groups.sync_classic(&group(), sync)).await;
        synced.map(|synced| synced.given).map_err(|refused| refused.reason)
    }

    async fn beat(&self) -> Result<(), Reason> {
        let who = self.who.as_ref().expect("it has joined");
        self.broker.groups.heartbeat_classic(&group(), who, self.generation).await.map_err(|refused| refused.reason)
    }

    /// Sends heartbeats until the member has to join again.
    async fn until_rebalance(&self) {
        let told = async {
            while let Ok(()) = self.beat().await {
                tokio::task::yield_now().await;
            }
        };
        within("a rebalance", told).await;
        assert_eq!(self.beat().await, Err(Reason::RebalanceInProgress));
    }

    async fn leave(&self) -> Result<MemberId, Reason> {
        let leaver = Leaver { member: Some(self.id().clone()), instance: None };
        let left = self.broker.groups.leave_classic(&group(), &[leaver]).await.map_err(|refused| refused.reason)?;
        left.into_iter().next().expect("one left").map_err(|refused| refused.reason)
    }
}

/// A refused join creates no group.
#[tokio::test]
async fn a_join_that_is_refused_makes_no_group() {
    let broker = start(Settings::default());
    let join = Member::new(&broker, 1).join_of(true);
    let refused = broker.groups.join_classic(&group(), join).await.map_err(|refused| refused.reason);
    assert_eq!(refused, Err(Reason::InvalidTimeout));
    assert_eq!(broker.groups.list("", 9, |_| true).await.expect("groups").0.len(), 0);
}

async fn with_topic(broker: &Broker, name: &str) {
    broker.create_topic(name, TopicSettings { partitions: 2, ..TopicSettings::default() }).await.expect("created");
}

/// Joins wait for each other and syncs for the leader; they are answered by events, not by the clock.
#[tokio::test]
async fn members_wait_for_each_other() {
    let broker = start(Settings::default());
    with_topic(&broker, "t").await;
    let mut first = Member::new(&broker, 60_000);
    let joined = first.join().await.expect("joined");
    assert_eq!(joined.leader.as_ref(), Some(first.id()));
    assert_eq!(first.sync(&joined).await, Ok(Given::Bytes(Bytes::from_static(b"0"))));
    let mut second = Member::new(&broker, 60_000);
    let joining = tokio::spawn(async move {
        let joined = second.join().await;
        (second, joined)
    });
    first.until_rebalance().await;
    let leads = first.join().await.expect("joined");
    assert_eq!(leads.members.len(), 2);
    let (second, follows) = within("the second", joining).await.expect("no panic");
    let follows = follows.expect("joined");
    assert_eq!((follows.generation, &follows.leader, follows.members.len()), (2, &leads.leader, 0));
    let syncing = tokio::spawn(async move {
        let given = second.sync(&follows).await;
        (second, given)
    });
    let Ok(Given::Bytes(mine)) = first.sync(&leads).await else { panic!("no share") };
    let (second, given) = within("the second", syncing).await.expect("no panic");
    let Ok(Given::Bytes(theirs)) = given else { panic!("no share") };
    assert_eq!(BTreeSet::from([mine, theirs]), BTreeSet::from(["0".into(), "1".into()]));

    let status = broker.groups.describe(&group()).await.expect("a group");
    let classic = status.classic.expect("they share out");
    assert_eq!(
        (classic.phase, &*classic.protocol_type, &*classic.protocol),
        (ClassicPhase::Stable, "consumer", "range")
    );
    assert_eq!((status.state, status.epoch, status.members.len()), (GroupState::Stable, 2, 2));
    assert!(status.members.iter().all(|member| &*member.metadata == b"wants t" && member.host == "here"));
    assert!(status.partitions.iter().all(|partition| partition.owner.is_some()));
    assert_eq!(broker.groups.list("", 9, |_| true).await.expect("groups").0[0].members, 2);
    assert_eq!(second.leave().await, Ok(second.id().clone()));
    assert_eq!(second.leave().await, Err(Reason::UnknownMember));
    assert_eq!(first.beat().await, Err(Reason::RebalanceInProgress));
    first.leave().await.expect("left");
    assert_eq!(first.join().await.map(drop), Err(Reason::UnknownMember), "its id is void");
    broker.groups.delete(&group()).await.expect("no members");
}

/// A member whose session expires while others wait for it does not hold them up.
#[tokio::test]
async fn a_session_that_ends_during_a_rebalance_answers_those_that_wait() {
    let broker = start(Settings::default());
    with_topic(&broker, "t").await;
    let mut silent = Member::new(&broker, 200);
    let joined = silent.join().await.expect("joined");
    silent.sync(&joined).await.expect("synced");
    let mut other = Member::new(&broker, 60_000);
    let joined = other.join().await.expect("joined");
    assert_eq!((joined.generation, joined.members.len()), (2, 1));
    assert_eq!(silent.beat().await, Err(Reason::UnknownMember));
    other.sync(&joined).await.expect("synced");
    assert_eq!(metric(&broker, "thalweg_group_members_expired_total"), 1);

    // The leader sends no assignment: the members that wait for it must join again.
    other.leave().await.expect("left");
    let mut leader = Member::new(&broker, 500);
    let joined = leader.join().await.expect("joined");
    leader.sync(&joined).await.expect("synced");
    let joining = tokio::spawn(async move {
        other.who = None;
        let joined = other.join().await;
        (other, joined)
    });
    leader.until_rebalance().await;
    assert_eq!(leader.join().await.map(|joined| joined.members.len()), Ok(2));
    let (mut other, joined) = within("the other", joining).await.expect("no panic");
    assert_eq!(other.sync(&joined.expect("joined")).await, Err(Reason::RebalanceInProgress));
    let joined = other.join().await.expect("joined");
    assert_eq!(joined.members.len(), 1);
    other.sync(&joined).await.expect("synced");
}

/// A member of each kind in one group: both read, both commit, and each gets the partitions that the other releases.
#[tokio::test]
async fn members_of_both_kinds_share_a_group() {
    let broker = start(Settings::default());
    with_topic(&broker, "t").await;
    let mut classic = Member::new(&broker, 60_000);
    let joined = classic.join().await.expect("joined");
    classic.sync(&joined).await.expect("synced");
    let native = Identity { member: MemberId::parse("native").expect("an id"), instance: None };
    let join = Join {
        who: native.clone(),
        client: "test".into(),
        host: "here".into(),
        topics: vec![Pattern::parse("t").expect("a topic")],
        assignor: Assignor::Uniform,
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        takes_over: true,
    };
    let turn = broker.groups.join(&group(), join).await.expect("joined");
    // The classic member was assigned one partition only, so the other is free.
    assert_eq!(turn.assignment, Some(vec![at("t", 1)]));
    let beat = |epoch, owned: &[TopicPartition]| Beat {
        who: native.clone(),
        epoch,
        owned: Some(owned.iter().cloned().collect()),
        topics: None,
        session_timeout_ms: None,
        wait: Duration::ZERO,
    };
    assert_eq!(classic.beat().await, Ok(()), "it keeps what it has");
    let commit =
        |partition| OffsetCommit { partition: at("t", partition), offset: 0, leader_epoch: 7, metadata: "note".into() };
    let of_classic = Committer::Member { who: classic.who.clone().expect("joined"), epoch: classic.generation };
    broker.groups.commit_offsets(&group(), &of_classic, vec![commit(0)]).await.expect("committed");
    let refused = broker.groups.commit_offsets(&group(), &of_classic, vec![commit(1)]).await;
    assert_eq!(refused.map_err(|refused| refused.reason), Err(Reason::RebalanceInProgress));
    let of_native = Committer::Member { who: native.clone(), epoch: turn.epoch };
    broker.groups.commit_offsets(&group(), &of_native, vec![commit(1)]).await.expect("committed");
    let committed = broker.groups.committed_offsets(&group(), None).await.expect("offsets");
    assert!(committed.iter().all(|(_, committed)| committed.leader_epoch == 7 && &*committed.metadata == "note"));
    assert_eq!(committed.len(), 2);
    let status = broker.groups.describe(&group()).await.expect("a group");
    assert_eq!((status.classic, status.state, status.members.len()), (None, GroupState::Stable, 2));

    classic.leave().await.expect("left");
    let turn = broker.groups.heartbeat(&group(), beat(turn.epoch, &[at("t", 1)])).await.expect("a member");
    assert_eq!(turn.assignment, Some(vec![at("t", 0), at("t", 1)]));
    // In the other direction: the broker continues to assign the partitions.
    let joined = classic_again(&mut classic).await;
    assert_eq!((&joined.leader, joined.generation), (&None, 4));
    assert_eq!(classic.sync(&joined).await, Ok(Given::Partitions(Vec::new())));
    let turn = broker.groups.heartbeat(&group(), beat(turn.epoch, &[at("t", 0), at("t", 1)])).await.expect("a member");
    let kept = turn.assignment.expect("it gives one up");
    broker.groups.heartbeat(&group(), beat(turn.epoch, &kept)).await.expect("a member");
    classic.until_rebalance().await;
    let joined = classic.join().await.expect("joined");
    let Ok(Given::Partitions(given)) = classic.sync(&joined).await else { panic!("no share") };
    assert_eq!((given.len(), kept.len()), (1, 1));
    assert_ne!(given, kept);
    assert_eq!(classic.beat().await, Ok(()));
}

/// Members that one request removes leave in one rebalance, and each has its own outcome.
#[tokio::test]
async fn members_that_leave_together_cause_one_rebalance() {
    let broker = start(Settings::default());
    with_topic(&broker, "t").await;
    let id = |number: usize| MemberId::parse(&format!("m{number}")).expect("an id");
    for number in 0..20 {
        let join = Join {
            who: Identity { member: id(number), instance: None },
            client: "test".into(),
            host: "here".into(),
            topics: vec![Pattern::parse("t").expect("a topic")],
            assignor: Assignor::Uniform,
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 60_000,
            takes_over: true,
        };
        broker.groups.join(&group(), join).await.expect("joined");
    }
    let rebalances = || metric(&broker, "thalweg_group_rebalances_total");
    let before = rebalances();
    let leave = |number| Leaver { member: Some(id(number)), instance: None };
    let leavers: Vec<Leaver> = [99].into_iter().chain(1..20).chain([1]).map(leave).collect();
    let left = broker.groups.leave_classic(&group(), &leavers).await.expect("left");
    let left: Vec<_> = left.into_iter().map(|left| left.map_err(|refused| refused.reason)).collect();
    let mut expected: Vec<_> = [99].into_iter().chain(1..20).chain([1]).map(|number| Ok(id(number))).collect();
    (expected[0], expected[20]) = (Err(Reason::UnknownMember), Err(Reason::UnknownMember));
    assert_eq!(left, expected);
    assert_eq!(rebalances() - before, 1);
    let status = broker.groups.describe(&group()).await.expect("a group");
    assert_eq!(status.members.len(), 1);
}

async fn classic_again(member: &mut Member) -> Joined {
    member.who = None;
    member.join().await.expect("joined")
}

/// Offsets of topics that no member reads can be deleted while the group has members.
#[tokio::test]
async fn offsets_that_nobody_needs_are_deleted() {
    let broker = start(Settings::default());
    with_topic(&broker, "t").await;
    with_topic(&broker, "old").await;
    let commit =
        |partition| OffsetCommit { partition, offset: 0, leader_epoch: NO_LEADER_EPOCH, metadata: String::new() };
    let offsets = vec![commit(at("t", 0)), commit(at("old", 0)), commit(at("old", 1))];
    broker.groups.commit_offsets(&group(), &Committer::Outsider, offsets).await.expect("committed");
    let mut member = Member::new(&broker, 60_000);
    let joined = member.join().await.expect("joined");
    member.sync(&joined).await.expect("synced");
    let asked = vec![at("t", 0), at("old", 1), at("gone", 0)];
    let deleted = broker.groups.delete_offsets(&group(), asked).await.expect("a group");
    let reasons: Vec<_> = deleted.into_iter().map(|(_, outcome)| outcome.map_err(|refused| refused.reason)).collect();
    assert_eq!(reasons, [Err(Reason::Subscribed), Ok(()), Err(Reason::Other)]);
    let left = broker.groups.committed_offsets(&group(), None).await.expect("offsets");
    assert_eq!(left.into_iter().map(|(at, _)| at).collect::<Vec<_>>(), [at("old", 0), at("t", 0)]);
}

/// Returns what a future completes with, and how often other tasks had their turn before.
fn in_turns<T>(work: impl Future<Output = T>) -> (T, usize) {
    let mut work = std::pin::pin!(work);
    let mut turns = 0;
    loop {
        match (&mut work).now_or_never() {
            Some(done) => return (done, turns),
            None => turns += 1,
        }
    }
}

/// Groups with many partitions are described in slices, and those of a topic without the partitions of others.
#[tokio::test]
async fn other_tasks_have_their_turn_while_groups_are_described() {
    const PARTITIONS: u32 = 1000;
    let broker = start(Settings::default());
    for name in ["t", "u", "v", "w"] {
        let settings = TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() };
        broker.create_topic(name, settings).await.expect("created");
    }
    let commit = |partition| OffsetCommit { partition, offset: 0, leader_epoch: NO_LEADER_EPOCH, metadata: "".into() };
    for topic in ["t", "u", "v"] {
        let commits = (0..PARTITIONS).map(|partition| commit(at(topic, partition))).collect();
        broker.groups.commit_offsets(&group(), &Committer::Outsider, commits).await.expect("committed");
    }
    let other = GroupName::parse("other").expect("a name");
    broker.groups.commit_offsets(&other, &Committer::Outsider, vec![commit(at("u", 7))]).await.expect("committed");
    publish(&broker, "t", 0).await.expect("published");

    let (status, turns) = in_turns(broker.groups.describe(&group()));
    let status = status.expect("a group");
    assert!(status.partitions.is_sorted_by(|a, b| a.partition < b.partition));
    assert_eq!(status.partitions.len(), 3000);
    assert_eq!(status.partitions.iter().filter_map(|of| of.lag()).sum::<u64>(), 1);
    assert!(turns >= 5, "{turns}");

    let (listed, turns) = in_turns(broker.groups.list("", 10, |_| true));
    let (listed, is_last) = listed.expect("groups");
    let shown: Vec<_> = listed.iter().map(|group| (group.name.as_str(), group.offsets, group.lag)).collect();
    assert_eq!((shown, is_last), (vec![("g", 3000, 1), ("other", 1, 0)], true));
    assert!(turns >= 2, "{turns}");
    let (listed, is_last) = broker.groups.list("", 1, |_| true).await.expect("groups");
    assert_eq!((listed.len(), listed[0].name.as_str(), is_last), (1, "g", false));

    let over = async |topic: &str| {
        let topic = TopicName::parse(topic).expect("a name");
        let (over, is_last) = broker.groups.over(&topic, 10, |_| true).await.expect("groups");
        assert!(is_last);
        over.into_iter().map(|group| (group.name.to_string(), group.offsets, group.lag)).collect::<Vec<_>>()
    };
    assert_eq!(over("t").await, [("g".to_owned(), 1000, 1)]);
    assert_eq!(over("u").await, [("g".to_owned(), 1000, 0), ("other".to_owned(), 1, 0)]);
    assert_eq!(over("w").await, []);
    let join = Join {
        who: Identity { member: MemberId::parse("m").expect("an id"), instance: None },
        client: "test".into(),
        host: "here".into(),
        topics: vec![Pattern::parse("w").expect("a topic")],
        assignor: Assignor::Uniform,
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        takes_over: true,
    };
    broker.groups.join(&other, join).await.expect("joined");
    assert_eq!(over("w").await, [("other".to_owned(), 0, 0)], "it has a member that reads the topic");
}

/// Members with long subscriptions are refused beyond the memory for all groups; those that are in a group stay.
#[tokio::test]
async fn the_members_of_all_groups_share_a_budget_of_memory() {
    let broker = start(Settings { log_bytes_max: 1 << 20, ..Settings::default() });
    let join = |number: usize, topics: usize| {
        let topic = |topic| Pattern::parse(&format!("topic-{number}-{topic}")).expect("a topic");
        Join {
            who: Identity { member: MemberId::parse(&format!("m{number}")).expect("an id"), instance: None },
            client: "test".into(),
            host: "here".into(),
            topics: (0..topics).map(topic).collect(),
            assignor: Assignor::Uniform,
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 60_000,
            takes_over: true,
        }
    };
    // Few in each group, so that the test does not take long.
    let of = |number: usize| GroupName::parse(&format!("g{}", number / 8)).expect("a name");
    let mut joined = 0;
    let refused = loop {
        match broker.groups.join(&of(joined), join(joined, 256)).await {
            Ok(_) => joined += 1,
            Err(refused) => break refused,
        }
        assert!(joined < 1000, "they take more than the budget");
    };
    assert_eq!(refused.error.kind, ErrorKind::Busy, "{refused:?}");
    assert_eq!(joined, (16 << 20) / (1024 + 256 * 64 + 4096));
    let taken = || metric(&broker, "thalweg_group_members_bytes");
    assert_eq!((taken(), metric(&broker, "thalweg_group_members_bytes_max")), (joined as u64 * 21_504, 16 << 20));
    // A member that joins again, or subscribes to fewer topics, takes no more.
    broker.groups.join(&of(0), join(0, 256)).await.expect("it is a member");
    let beat = |topics: usize| Beat {
        who: join(0, 0).who,
        epoch: 0,
        owned: None,
        topics: Some(join(0, topics).topics),
        session_timeout_ms: None,
        wait: Duration::ZERO,
    };
    let status = broker.groups.describe(&of(0)).await.expect("a group");
    let epoch = status.members.iter().find(|member| member.id.as_str() == "m0").expect("a member").epoch;
    broker.groups.heartbeat(&of(0), Beat { epoch, ..beat(1) }).await.expect("it takes less");
    assert_eq!(taken(), joined as u64 * 21_504 - 21_504 + 1024 + 64 + 249);
    broker.groups.join(&of(joined), join(joined, 128)).await.expect("there is room again");
    let more = broker.groups.heartbeat(&of(0), Beat { epoch, ..beat(256) }).await.expect_err("no room");
    assert_eq!(more.error.kind, ErrorKind::Busy);
}
