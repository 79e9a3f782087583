//! Tests that the coordinator's state is identical to the state restored after a restart.

use std::collections::BTreeMap;

use engine::groups::{MemberId, OFFSETS_TOPIC};
use engine::{ErrorKind, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

use super::*;
use crate::Settings;
use crate::broker::Broker;

fn group(name: &str) -> GroupName {
    GroupName::parse(name).expect("a name")
}

fn at(topic: &str, partition: PartitionId) -> TopicPartition {
    TopicPartition { topic: TopicName::parse(topic).expect("a topic"), partition }
}

fn commit(topic: &str, partition: PartitionId, offset: Offset) -> OffsetCommit {
    OffsetCommit {
        partition: at(topic, partition),
        offset,
        leader_epoch: NO_LEADER_EPOCH,
        metadata: format!("note {offset}"),
    }
}

fn join(member: &str, topic: &str) -> Join {
    Join {
        who: Identity { member: MemberId::parse(member).expect("an id"), instance: None },
        client: "test".into(),
        host: "here".into(),
        topics: vec![Pattern::parse(topic).expect("a topic")],
        assignor: Default::default(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        takes_over: true,
    }
}

type Kept = BTreeMap<GroupName, BTreeMap<TopicPartition, Committed>>;

/// Returns the state of each group in memory, and the state restored from its records.
async fn kept_and_found(broker: &Broker) -> (Kept, Kept) {
    let now = broker.groups.table().now();
    let cells = broker.groups.table().cells();
    let kept = cells.iter().map(|cell| (cell.name.clone(), cell.state.lock().group.committed().clone()));
    let found = super::log::read_groups(broker, || now).await.expect("readable");
    let found = found.into_iter().map(|(name, group)| (name, group.committed().clone()));
    (kept.collect(), found.collect())
}

#[tokio::test]
async fn stored_offsets_are_restored() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
    for topic in ["a", "b"] {
        broker.create_topic(topic, TopicSettings { partitions: 3, ..TopicSettings::default() }).await.expect("created");
    }
    for (name, topic, offset) in [("g1", "a", 1), ("g1", "b", 2), ("g2", "a", 3), ("g3", "b", 4), ("g1", "a", 5)] {
        let offsets = (0..3).map(|partition| commit(topic, partition, offset)).collect();
        broker.groups.commit_offsets(&group(name), &Committer::Outsider, offsets).await.expect("committed");
    }
    broker.groups.reset_offsets(&group("g2"), "a", &[1], &ResetTo::Forget, false).await.expect("forgotten");
    broker.groups.delete(&group("g3")).await.expect("deleted");
    let (kept, found) = kept_and_found(&broker).await;
    assert_eq!(kept, found);
    assert_eq!(kept.keys().map(GroupName::as_str).collect::<Vec<_>>(), ["g1", "g2"]);
    assert_eq!(kept[&group("g2")].len(), 2);
    assert_eq!(kept[&group("g1")][&at("a", 0)].offset, 5);

    broker.delete_topic("a").await.expect("deleted");
    let (kept, found) = kept_and_found(&broker).await;
    assert_eq!(kept, found);
    assert_eq!((kept[&group("g1")].len(), kept[&group("g2")].len()), (3, 0));
    assert_eq!(broker.groups.table().offsets.load(Ordering::Relaxed), 3);
    // A group that was deleted and created again has no earlier state.
    broker.groups.commit_offsets(&group("g3"), &Committer::Outsider, vec![commit("b", 0, 1)]).await.expect("committed");
    let (kept, found) = kept_and_found(&broker).await;
    assert_eq!(kept, found);
    assert_eq!(kept[&group("g3")].len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_commits_are_restored_whenever_groups_are_forgotten() {
    let dir = tempfile::tempdir().expect("a folder");
    let stored =
        Store::open(Arc::new(RealDisk), dir.path(), StoreSettings::default(), Clock::SYSTEM.read(), &mut |_| {});
    let threads = [Handle::current()];
    let broker = Broker::start_with(Settings::default(), &threads, Some(stored.expect("opened"))).expect("started");
    broker.create_topic("t", TopicSettings { partitions: 4, ..TopicSettings::on_disk() }).await.expect("created");
    let tasks: Vec<_> = (0..4)
        .map(|partition| {
            let broker = broker.clone();
            tokio::spawn(async move {
                let name = group(&format!("g{}", partition % 2));
                for offset in 1..=50 {
                    // What is refused was not committed.
                    let commit = || vec![commit("t", partition, offset)];
                    while broker.groups.commit_offsets(&name, &Committer::Outsider, commit()).await.is_err() {}
                    let at = [at("t", partition)];
                    let found = loop {
                        match broker.groups.committed_offsets(&name, Some(&at)).await {
                            Ok(found) => break found,
                            Err(refused) => assert_eq!(refused.error.kind, ErrorKind::Busy, "{refused:?}"),
                        }
                    };
                    assert!(found.iter().all(|(_, committed)| committed.offset == offset));
                }
            })
        })
        .collect();
    while tasks.iter().any(|task| !task.is_finished()) {
        broker.forget_views().await.expect("restored");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    broker.forget_views().await.expect("restored");
    for partition in 0..4 {
        let name = group(&format!("g{}", partition % 2));
        let at = at("t", partition);
        let found = broker.groups.committed_offsets(&name, Some(std::slice::from_ref(&at)));
        assert_eq!(found.await.expect("readable")[0].1.offset, 50);
    }
    assert_eq!(broker.groups.table().offsets.load(Ordering::Relaxed), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_member_of_a_forgotten_group_is_told_to_try_again_and_stays_in_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let stored =
        Store::open(Arc::new(RealDisk), dir.path(), StoreSettings::default(), Clock::SYSTEM.read(), &mut |_| {});
    let threads = [Handle::current()];
    let broker = Broker::start_with(Settings::default(), &threads, Some(stored.expect("opened"))).expect("started");
    broker.create_topic("t", TopicSettings::on_disk()).await.expect("created");
    let turn = broker.groups.join(&group("g"), join("m", "t")).await.expect("joined");
    let beat = Beat {
        who: join("m", "t").who,
        epoch: turn.epoch,
        owned: None,
        topics: None,
        session_timeout_ms: None,
        wait: Duration::from_secs(600),
    };
    let waiting = broker.clone();
    let first = beat.clone();
    let waits = tokio::spawn(async move { waiting.groups.heartbeat(&group("g"), first).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    broker.forget_views().await.expect("restored");
    let outcome = tokio::time::timeout(Duration::from_secs(60), waits).await.expect("in time").expect("no panic");
    assert_eq!(outcome.expect_err("it is being restored").error.kind, ErrorKind::Busy);
    // Its epoch is still valid, and its partition still its own.
    let who = join("m", "t").who;
    let committer = Committer::Member { who: who.clone(), epoch: turn.epoch };
    let offsets = || vec![commit("t", 0, 1)];
    broker.groups.commit_offsets(&group("g"), &committer, offsets()).await.expect("committed");
    let beat = |epoch| Beat { who: who.clone(), epoch, wait: Duration::ZERO, ..beat.clone() };
    let next = broker.groups.heartbeat(&group("g"), beat(turn.epoch)).await.expect("a member");
    assert!(next.epoch > turn.epoch, "{next:?}");
    assert_eq!(next.assignment, turn.assignment);
    let committer = Committer::Member { who: who.clone(), epoch: next.epoch };
    broker.groups.commit_offsets(&group("g"), &committer, offsets()).await.expect("committed");
    // A member that has left is forgotten.
    broker.groups.leave(&group("g"), &who, false).await.expect("left");
    broker.forget_views().await.expect("restored");
    let gone = broker.groups.heartbeat(&group("g"), beat(next.epoch)).await.expect_err("it has left");
    assert_eq!(gone.reason, Reason::UnknownMember);
}

#[tokio::test]
async fn epochs_found_again_are_above_all_that_were_given_out() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
    let mut last = 0;
    for i in 0..1500 {
        let turn = broker.groups.join(&group("g"), join(&format!("m{i}"), "t")).await.expect("joined");
        last = last.max(turn.epoch);
        let who = join(&format!("m{i}"), "t").who;
        broker.groups.leave(&group("g"), &who, false).await.expect("left");
        if i % 100 == 0 {
            let found = super::log::read_groups(&broker, || broker.groups.table().now()).await.expect("readable");
            assert!(found[&group("g")].epoch() >= last);
            assert!(found[&group("g")].is_expired(0, broker.groups.table().now()), "it is known to have no members");
        }
    }
    assert!(last > 1500);
    // A few records hold this state.
    let topic = broker.topic(OFFSETS_TOPIC).expect("a topic");
    let records: u64 = topic.partitions().iter().map(|cell| cell.extent().end).sum();
    assert!(records < 6100, "{records}");
}

/// Concurrent commits: the effective offset in the end is the last one in the log, and it was never lower.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_at_once_count_in_the_order_of_the_log() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
    broker.create_topic("t", TopicSettings { partitions: 2, ..TopicSettings::default() }).await.expect("created");
    let tasks: Vec<_> = (0..8u64)
        .map(|task| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for i in 0..200 {
                    let offsets = vec![commit("t", (i % 2) as u32, task * 1000 + i)];
                    broker.groups.commit_offsets(&group("g"), &Committer::Outsider, offsets).await.expect("committed");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let (kept, found) = kept_and_found(&broker).await;
    assert_eq!(kept, found);
}
