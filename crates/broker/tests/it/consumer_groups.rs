//! Consumer groups: members that wait, leave and join while topics change, and forbidden operations.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use broker::{Beat, Broker, OffsetCommit, ResetTo, Settings, ShareBeat, ShareStart};
use engine::groups::{
    Assignor, Committer, GroupName, GroupState, Identity, Join, MemberId, NO_LEADER_EPOCH, OFFSETS_TOPIC, Reason,
    ShareJoin, Turn,
};
use engine::{ErrorKind, Overflow, Pattern, Rule, Start, TopicName, TopicPartition, TopicSettings};

use crate::support::{Follow, ask, metric, publish, start, subscribe, within};

fn group() -> GroupName {
    GroupName::parse("g").expect("a name")
}

fn who(member: &str) -> Identity {
    Identity { member: MemberId::parse(member).expect("an id"), instance: None }
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: TopicName::parse(topic).expect("a topic"), partition }
}

/// A member that follows the protocol.
struct Member {
    broker: Arc<Broker>,
    who: Identity,
    epoch: u32,
    reads: BTreeSet<TopicPartition>,
}

impl Member {
    async fn join(broker: &Arc<Broker>, name: &str, topics: &str, session_timeout_ms: u32) -> Self {
        Self::join_slow(broker, name, topics, session_timeout_ms, 30_000).await
    }

    /// Joins a member with this timeout for the release of partitions.
    async fn join_slow(
        broker: &Arc<Broker>,
        name: &str,
        topics: &str,
        session_timeout_ms: u32,
        rebalance_timeout_ms: u32,
    ) -> Self {
        let join = Join {
            who: who(name),
            client: "test".into(),
            host: "here".into(),
            topics: topics.split(',').map(|topic| Pattern::parse(topic).expect("a topic")).collect(),
            assignor: Assignor::Uniform,
            session_timeout_ms,
            rebalance_timeout_ms,
            takes_over: true,
        };
        for pattern in &join.topics {
            // Joining creates no topic.
            if let Pattern::Topic(topic) = pattern
                && !broker.has_topic(topic.as_str())
            {
                broker.partitions_of(topic.as_str()).expect("created");
            }
        }
        let turn = within("joining", broker.groups.join(&group(), join)).await.expect("joined");
        let mut member = Self { broker: broker.clone(), who: who(name), epoch: 0, reads: BTreeSet::new() };
        member.apply(turn);
        member
    }

    fn apply(&mut self, turn: Turn) {
        assert!(turn.epoch >= self.epoch);
        self.epoch = turn.epoch;
        if let Some(assignment) = turn.assignment {
            self.reads = assignment.into_iter().collect();
        }
    }

    fn beat(&self, says_owned: bool, wait: Duration) -> Beat {
        let owned = says_owned.then(|| self.reads.clone());
        Beat { who: self.who.clone(), epoch: self.epoch, owned, topics: None, session_timeout_ms: None, wait }
    }

    /// Sends heartbeats, and reports its partitions when they change, until it has this number of partitions.
    async fn until(&mut self, partitions: usize) {
        let mut reported = None;
        while reported.as_ref() != Some(&self.reads) || self.reads.len() != partitions {
            let beat = self.beat(reported.as_ref() != Some(&self.reads), Duration::from_secs(600));
            reported = Some(self.reads.clone());
            let turn = within("a heartbeat", self.broker.groups.heartbeat(&group(), beat)).await.expect("a member");
            self.apply(turn);
        }
    }

    async fn commit(&self, topic: &str, partition: u32, offset: u64) -> Result<(), Reason> {
        let committer = Committer::Member { who: self.who.clone(), epoch: self.epoch };
        let offsets = vec![OffsetCommit {
            partition: at(topic, partition),
            offset,
            leader_epoch: NO_LEADER_EPOCH,
            metadata: String::new(),
        }];
        self.broker.groups.commit_offsets(&group(), &committer, offsets).await.map_err(|refused| refused.reason)
    }
}

async fn with_topic(broker: &Broker, name: &str, partitions: u32) {
    broker.create_topic(name, TopicSettings { partitions, ..TopicSettings::default() }).await.expect("created");
}

/// A waiting heartbeat is answered by the action of another member, not by the clock.
#[tokio::test]
async fn members_that_wait_hear_of_each_other_at_once() {
    let broker = start(Settings::default());
    with_topic(&broker, "t", 6).await;
    let mut first = Member::join(&broker, "first", "t", 600_000).await;
    assert_eq!(first.reads.len(), 6);
    let waiting = tokio::spawn(async move {
        first.until(2).await;
        first
    });
    let mut second = Member::join(&broker, "second", "t", 600_000).await;
    let mut third = Member::join(&broker, "third", "t", 600_000).await;
    let waiting_too = tokio::spawn(async move {
        second.until(2).await;
        second
    });
    third.until(2).await;
    let mut first = within("first", waiting).await.expect("no panic");
    let second = within("second", waiting_too).await.expect("no panic");
    let all: BTreeSet<_> = first.reads.iter().chain(&second.reads).chain(&third.reads).collect();
    assert_eq!(all.len(), 6);
    for gone in [second, third] {
        broker.groups.leave(&group(), &gone.who, false).await.expect("left");
    }
    first.until(6).await;
    assert_eq!(metric(&broker, "thalweg_group_members"), 1);
    assert_eq!(metric(&broker, "thalweg_group_rebalances_total"), 5);
}

/// A member that does not release partitions in time is removed, however long its session timeout.
#[tokio::test]
async fn a_member_that_keeps_revoked_partitions_is_removed() {
    let broker = start(Settings::default());
    with_topic(&broker, "t", 4).await;
    let mut first = Member::join_slow(&broker, "first", "t", 600_000, 100).await;
    let mut other = Member::join(&broker, "other", "t", 600_000).await;
    // Once a third member is removed, the coordinator has checked its deadlines: the next one is that of a session.
    Member::join(&broker, "third", "t", 100).await;
    let mut epoch = other.epoch;
    while metric(&broker, "thalweg_group_members_expired_total") == 0 {
        let beat = other.beat(false, Duration::from_secs(600));
        other.apply(within("news", broker.groups.heartbeat(&group(), beat)).await.expect("a member"));
        assert!(other.epoch > epoch);
        epoch = other.epoch;
    }
    let turn = broker.groups.heartbeat(&group(), first.beat(false, Duration::ZERO)).await.expect("a member");
    first.apply(turn);
    assert_eq!(first.reads.len(), 2);
    other.until(4).await;
    assert_eq!(metric(&broker, "thalweg_group_members_expired_total"), 2);
}

/// Silence ends a session; the member's partitions are assigned to a waiting member, and its commits are refused.
#[tokio::test]
async fn a_silent_member_is_put_out() {
    let broker = start(Settings::default());
    with_topic(&broker, "t", 4).await;
    let mut silent = Member::join(&broker, "silent", "t", 100).await;
    let mut other = Member::join(&broker, "other", "t", 600_000).await;
    other.until(4).await;
    assert_eq!(silent.commit("t", 0, 1).await, Err(Reason::UnknownMember));
    let refused = broker.groups.heartbeat(&group(), silent.beat(true, Duration::ZERO)).await;
    assert_eq!(refused.map_err(|refused| refused.reason).map(drop), Err(Reason::UnknownMember));
    assert_eq!(metric(&broker, "thalweg_group_members_expired_total"), 1);
    silent.epoch = 0;
    other.commit("t", 0, 1).await.expect("committed");
}

/// Members are notified of created and deleted topics before their next heartbeat is due; a deleted topic loses its
/// offsets.
#[tokio::test]
async fn topics_that_come_and_go_are_heard_of() {
    let broker = start(Settings::default());
    with_topic(&broker, "orders.eu", 2).await;
    let mut member = Member::join(&broker, "m", "orders.*", 600_000).await;
    assert_eq!(member.reads.len(), 2);
    member.commit("orders.eu", 1, 0).await.expect("committed");
    let waiting = tokio::spawn(async move {
        member.until(5).await;
        member
    });
    with_topic(&broker, "orders.us", 3).await;
    let mut member = within("the new topic", waiting).await.expect("no panic");
    member.commit("orders.us", 2, 0).await.expect("committed");
    broker.grow_topic("orders.us", 4).await.expect("grown");
    member.until(6).await;
    broker.delete_topic("orders.us").await.expect("deleted");
    member.until(2).await;
    let committed = broker.groups.committed_offsets(&group(), None).await.expect("offsets");
    assert_eq!(committed.into_iter().map(|(at, _)| at).collect::<Vec<_>>(), [at("orders.eu", 1)]);
    assert_eq!(member.commit("orders.us", 2, 0).await, Err(Reason::Other), "there is no such topic");
}

/// State of the group: the readers, their positions, and the lag.
#[tokio::test]
async fn lag_is_the_end_minus_the_committed_offset() {
    let broker = start(Settings::default());
    with_topic(&broker, "t", 3).await;
    for partition in [0, 0, 0, 1] {
        publish(&broker, "t", partition).await.expect("published");
    }
    let member = Member::join(&broker, "m", "t", 600_000).await;
    member.commit("t", 0, 1).await.expect("committed");
    member.commit("t", 1, 1).await.expect("committed");
    let status = broker.groups.describe(&group()).await.expect("a group");
    assert_eq!((status.state, status.members.len(), status.assignor), (GroupState::Stable, 1, Assignor::Uniform));
    assert_eq!(status.partitions.iter().map(|p| p.lag()).collect::<Vec<_>>(), [Some(2), Some(0), None]);
    assert!(status.partitions.iter().all(|p| p.owner.as_ref() == Some(&member.who.member)));
    let (listed, is_last) = broker.groups.list("", 10, |_| true).await.expect("groups");
    assert!(is_last);
    assert_eq!((listed[0].lag, listed[0].members, listed[0].offsets), (2, 1, 2));
    assert!(broker.stats().expect("metrics").contains("thalweg_group_lag{group=\"g\"} 2"));
    // A group without members keeps its offsets, which can then be reset.
    let reset = broker.groups.reset_offsets(&group(), "t", &[], &ResetTo::Start(Start::Live), false).await;
    assert_eq!(reset.map_err(|refused| refused.reason), Err(Reason::HasMembers));
    let deleted = broker.groups.delete(&group()).await;
    assert_eq!(deleted.map_err(|refused| refused.reason), Err(Reason::HasMembers));
    broker.groups.leave(&group(), &member.who, false).await.expect("left");
    let to = |to| broker.groups.reset_offsets(&GROUP, "t", &[], to, true);
    static GROUP: std::sync::LazyLock<GroupName> = std::sync::LazyLock::new(group);
    assert_eq!(to(&ResetTo::Start(Start::Live)).await.expect("offsets"), [(0, Some(3)), (1, Some(1)), (2, Some(0))]);
    assert_eq!(
        to(&ResetTo::Start(Start::Offset(2))).await.expect("offsets"),
        [(0, Some(2)), (1, Some(1)), (2, Some(0))]
    );
    assert_eq!(to(&ResetTo::Start(Start::Time(2))).await.expect("offsets"), [(0, Some(3)), (1, Some(1)), (2, Some(0))]);
    assert_eq!(broker.groups.list("", 10, |_| true).await.expect("groups").0[0].lag, 2, "a dry run changes nothing");
    let earliest = ResetTo::Start(Start::Earliest);
    broker.groups.reset_offsets(&group(), "t", &[0], &earliest, false).await.expect("reset");
    assert_eq!(broker.groups.list("", 10, |_| true).await.expect("groups").0[0].lag, 3);
    broker.groups.delete(&group()).await.expect("deleted");
    assert_eq!(broker.groups.describe(&group()).await.map(drop).map_err(|r| r.reason), Err(Reason::NoSuchGroup));
}

/// Internal topics can only be read by clients. Other names that begin with `_` are ordinary names.
#[tokio::test]
async fn internal_topics_are_read_only() {
    let broker = start(Settings::default());
    let member = Member::join(&broker, "m", "t", 600_000).await;
    let invalid = Err(ErrorKind::Invalid);
    for name in [OFFSETS_TOPIC, "_transactions"] {
        assert_eq!(publish(&broker, name, 0).await.map(drop).map_err(|e| e.kind), invalid, "{name}");
        assert_eq!(broker.create_topic(name, TopicSettings::default()).await.map(drop).map_err(|e| e.kind), invalid);
        assert_eq!(broker.grow_topic(name, 100).await.map(drop).map_err(|e| e.kind), invalid);
        assert_eq!(broker.delete_topic(name).await.map_err(|e| e.kind), invalid);
    }
    let missing = subscribe(&broker, ask("_transactions"));
    assert_eq!(missing.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound), "it is not created");
    let mut blocking = ask(OFFSETS_TOPIC);
    blocking.overflow = Overflow::Block;
    assert_eq!(subscribe(&broker, blocking).map(drop).map_err(|e| e.kind), invalid, "a blocking subscriber is refused");
    publish(&broker, "_mine", 0).await.expect("published");
    broker.delete_topic("_mine").await.expect("deleted");
    // A pattern does not match it.
    let everything = subscribe(&broker, ask(">")).expect("subscribed");
    assert_eq!(everything.starts.iter().map(|start| start.topic.as_str()).collect::<Vec<_>>(), ["t"]);
    // Reading it is allowed.
    let mut request = ask(OFFSETS_TOPIC);
    request.start = Start::Earliest;
    let mut subscription = subscribe(&broker, request).expect("subscribed");
    let mut follow = Follow::of(&subscription);
    member.commit("t", 0, 0).await.expect("committed");
    let extents = broker.describe_topic(OFFSETS_TOPIC).expect("a topic").partitions;
    let (source, end) =
        extents.iter().enumerate().find_map(|(i, e)| (e.end > 0).then_some((i as u32, e.end))).expect("records");
    assert_eq!(end, 3, "the group, its member and its offset");
    let mut out = Vec::new();
    while follow.next(source) < end {
        within("a record", subscription.next(&mut out)).await.expect("it goes on");
        out.iter().for_each(|delivery| follow.see(delivery));
    }
}

/// Rules whose comparisons wait until the gate is open.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Notified when a comparison has begun.
    begun: tokio::sync::Notify,
}

impl Gate {
    /// Returns 40 rules: more than are compared with 600 topics at once.
    fn rules(self: &Arc<Self>) -> Vec<Pattern> {
        let rule = |number| {
            let gate = self.clone();
            Rule::new(&format!("rule {number}"), "", move |topic| {
                gate.begun.notify_one();
                let is_open = gate.is_open.lock().expect("no panic");
                let waited = gate.opened.wait_timeout_while(is_open, Duration::from_secs(20), |is_open| !*is_open);
                // After a failure no comparison waits any more.
                *waited.expect("no panic").0 = true;
                topic.as_str().starts_with("wide-00")
            })
        };
        (0..40).map(|number| Pattern::Rule(rule(number))).collect()
    }

    fn open(&self) {
        *self.is_open.lock().expect("no panic") = true;
        self.opened.notify_all();
    }
}

async fn with_many_topics() -> Arc<Broker> {
    let broker = start(Settings::default());
    for number in 0..600 {
        with_topic(&broker, &format!("wide-{number:03}"), 1).await;
    }
    with_topic(&broker, "t", 2).await;
    broker
}

/// The test has one thread: a comparison on it would wait for the gate, which only the test opens.
#[tokio::test]
async fn members_are_served_while_the_patterns_of_another_are_compared() {
    let broker = with_many_topics().await;
    let first = Member::join(&broker, "first", "t", 600_000).await;
    let gate = Arc::new(Gate::default());
    let join = Join {
        who: who("second"),
        client: "test".into(),
        host: "here".into(),
        topics: gate.rules(),
        assignor: Assignor::Uniform,
        session_timeout_ms: 600_000,
        rebalance_timeout_ms: 30_000,
        takes_over: true,
    };
    let to_join = broker.clone();
    let joining = tokio::spawn(async move { to_join.groups.join(&group(), join).await });
    within("the first comparison", gate.begun.notified()).await;
    let beat = first.beat(true, Duration::ZERO);
    let turn = within("a heartbeat", broker.groups.heartbeat(&group(), beat)).await.expect("a member");
    assert_eq!(turn.assignment.map(|partitions| partitions.len()), Some(2));
    within("a commit", first.commit("t", 0, 0)).await.expect("its partition");
    with_topic(&broker, "wide-00more", 1).await;
    assert!(!joining.is_finished());
    gate.open();
    let turn = within("joining", joining).await.expect("no panic").expect("joined");
    let mut second = Member { broker: broker.clone(), who: who("second"), epoch: 0, reads: BTreeSet::new() };
    second.apply(turn);
    assert!(second.reads.len() >= 10, "{:?}", second.reads);
    second.until(11).await;
}

#[tokio::test]
async fn share_groups_are_served_while_the_patterns_of_a_member_are_compared() {
    let broker = with_many_topics().await;
    let gate = Arc::new(Gate::default());
    let group = group();
    let member = |name: &str| MemberId::parse(name).expect("an id");
    let join = |name: &str, topics| ShareJoin {
        member: member(name),
        client: "test".into(),
        host: "here".into(),
        topics,
        session_timeout_ms: 600_000,
    };
    let named = vec![Pattern::parse("t").expect("a topic")];
    let joined = broker.groups.join_share_group(&group, join("first", named), ShareStart::Earliest);
    let first = within("joining", joined).await.expect("joined");
    assert_eq!(first.assignment.map(|partitions| partitions.len()), Some(2));
    let join = join("second", gate.rules());
    let (to_join, name) = (broker.clone(), group.clone());
    let joining = tokio::spawn(async move { to_join.groups.join_share_group(&name, join, ShareStart::Earliest).await });
    within("the first comparison", gate.begun.notified()).await;
    let beat = |name: &str, epoch| {
        let beat = ShareBeat { member: member(name), epoch, topics: None, session_timeout_ms: 600_000 };
        broker.groups.share_group_heartbeat(&group, beat, ShareStart::Earliest)
    };
    let turn = within("a heartbeat", beat("first", first.epoch)).await.expect("a member");
    assert_eq!(turn.epoch, first.epoch);
    with_topic(&broker, "wide-00more", 1).await;
    assert!(!joining.is_finished());
    gate.open();
    let second = within("joining", joining).await.expect("no panic").expect("joined");
    let joined_with = second.assignment.expect("partitions");
    assert!(joined_with.len() >= 10, "{joined_with:?}");
    if joined_with.len() == 10 {
        let turn = within("a heartbeat", beat("second", second.epoch)).await.expect("a member");
        assert_eq!(turn.assignment.map(|partitions| partitions.len()), Some(11));
    }
}
