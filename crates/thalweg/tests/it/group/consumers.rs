//! Consumer groups end to end: members join, leave, fail and return, and every record is read.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{
    Assignor, BatchBuilder, Client, ClientSettings, Consumer, ConsumerBuilder, ConsumerEvent, ErrorKind, GroupState,
    Record, Start, Storage, TopicPartition, TopicSettings,
};
use rustix::process::Signal;
use wire::groups::{Heartbeat, OffsetCommit, Step};
use wire::{GroupRequest, GroupResponse, Request, Response};

use crate::support::proxy::Proxy;
use crate::support::raw::Raw;
use crate::support::reading::text;
use crate::support::server::{Launch, Server, connect, metric, until, within};

async fn create(client: &Client, topic: &str, partitions: u32) {
    let settings = TopicSettings { partitions, ..TopicSettings::default() };
    within("create", client.create_topic(topic, settings)).await.expect("created");
}

/// Publishes values to all partitions in turn, one batch each.
async fn publish(client: &Client, topic: &str, values: std::ops::Range<u64>) {
    for value in values {
        within("publish", client.publish(topic, Record::new(value.to_string()))).await.expect("published");
    }
}

async fn open(builder: ConsumerBuilder) -> Consumer {
    within("join", builder.open()).await.expect("a consumer")
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: client::TopicName::parse(topic).expect("a name"), partition }
}

fn value_of(message: &client::Message) -> u64 {
    text(message.record.value()).parse().expect("a number")
}

/// Returns the values of the next records.
async fn take(consumer: &mut Consumer, count: usize) -> Vec<u64> {
    let mut values = Vec::new();
    while values.len() < count {
        let message = within("a record", consumer.next()).await.expect("a record");
        values.push(value_of(&message));
    }
    values
}

/// Polls until the assignment has `partitions` partitions. There are no records to read.
async fn until_owns(consumer: &mut Consumer, partitions: usize) {
    until("the assignment", async || {
        // Partitions are given up with the next call, without an event.
        let event = tokio::time::timeout(Duration::from_millis(10), consumer.next_event()).await;
        let event = event.map(|event| event.expect("an event"));
        assert!(!matches!(event, Ok(ConsumerEvent::Batch(_) | ConsumerEvent::Gap { .. })), "{event:?}");
        consumer.assignment().len() == partitions
    })
    .await;
}

async fn state(client: &Client, group: &str) -> GroupState {
    within("describe", client.describe_group(group)).await.expect("a group").state
}

async fn is_stable_with(client: &Client, group: &str, members: usize) -> bool {
    let info = within("describe", client.describe_group(group)).await.expect("a group");
    info.state == GroupState::Stable && info.members.len() == members
}

/// Values that several consumers read, with their number of deliveries.
#[derive(Default)]
struct Seen(BTreeMap<u64, usize>);

impl Seen {
    fn add(&mut self, values: impl IntoIterator<Item = u64>) {
        values.into_iter().for_each(|value| *self.0.entry(value).or_default() += 1);
    }

    /// Reads until `count` records were read in total.
    async fn add_until(&mut self, count: usize, one: &mut Consumer, other: &mut Consumer) {
        while self.0.values().sum::<usize>() < count {
            let either = async {
                tokio::select! { message = one.next() => message, message = other.next() => message }
            };
            self.add([value_of(&within("a record", either).await.expect("a record"))]);
        }
    }

    fn expect_each_once(&self, count: u64) {
        assert_eq!(self.0.len() as u64, count, "all of them");
        let twice: Vec<_> = self.0.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "read twice: {twice:?}");
    }
}

/// Members join and leave in an orderly way while records are published: each record is read once, and reading pauses
/// only for the partitions that are handed over.
async fn members_share(scheme: &str) {
    let server = Server::start();
    let client = server.client(scheme).await;
    create(&client, "t", 6).await;
    let publisher = tokio::spawn({
        let client = client.clone();
        async move { publish(&client, "t", 0..3000).await }
    });
    let mut seen = Seen::default();
    let mut first = open(client.consumer("g").topic("t")).await;
    seen.add(take(&mut first, 300).await);
    let mut second = open(client.consumer("g").topic("t")).await;
    // Both continue concurrently.
    let readers = tokio::join!(take(&mut first, 300), take(&mut second, 300));
    seen.add(readers.0);
    seen.add(readers.1);
    assert_eq!((first.assignment().len(), second.assignment().len()), (3, 3));
    let mut third = open(client.consumer("g").topic("t")).await;
    let readers = tokio::join!(take(&mut first, 150), take(&mut second, 150), take(&mut third, 150));
    for values in [readers.0, readers.1, readers.2] {
        seen.add(values);
    }
    within("close", second.close()).await.expect("closed");
    seen.add_until(3000, &mut first, &mut third).await;
    within("publisher", publisher).await.expect("no panic");
    within("close", first.close()).await.expect("closed");
    within("close", third.close()).await.expect("closed");
    seen.expect_each_once(3000);
    let group = within("describe", client.describe_group("g")).await.expect("a group");
    assert_eq!(group.state, GroupState::Empty);
    let lag: u64 = group.partitions[0].1.iter().map(|partition| partition.lag().expect("committed")).sum();
    assert_eq!(lag, 0, "all of it is committed");
}

#[tokio::test]
async fn members_share_partitions_over_tcp() {
    Box::pin(members_share("tcp")).await;
}

#[tokio::test]
async fn members_share_partitions_over_quic() {
    Box::pin(members_share("quic")).await;
}

/// A silent member is removed after its session timeout. Another member continues its partitions from its committed
/// offsets, and its late commit is refused.
#[tokio::test]
async fn the_partitions_of_a_silent_member_are_read_by_others() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    publish(&client, "t", 0..10).await;
    let mut raw = Raw::open(server.address).await;
    let step = Step::Join {
        client: "silent".into(),
        session_timeout_ms: 300,
        rebalance_timeout_ms: 60_000,
        assignor: Assignor::Uniform,
        topics: vec!["t".into()],
    };
    let joined = raw.call(&member("silent", step)).await;
    let Response::Group(GroupResponse::Turn { epoch, assignment: Some(assignment) }) = joined else {
        panic!("no assignment but {joined:?}");
    };
    assert_eq!(assignment, [("t".to_owned(), vec![0, 1])]);
    assert_eq!(raw.call(&commit("silent", epoch, 0, 2)).await, Response::Group(GroupResponse::Committed));
    let mut other = open(client.consumer("g").topic("t")).await;
    let mut values = take(&mut other, 8).await;
    values.sort_unstable();
    assert_eq!(other.assignment().len(), 2);
    // Partition 0 contains the even values, two of which were committed.
    assert_eq!(values, [1, 3, 4, 5, 6, 7, 8, 9]);
    let late = raw.call(&commit("silent", epoch, 0, 5)).await;
    assert!(matches!(&late, Response::Error(error) if error.kind == ErrorKind::Fenced), "{late:?}");
}

fn member(name: &str, step: Step) -> Request {
    let group = "g".to_owned();
    let member = name.to_owned();
    Request::Group(GroupRequest::Heartbeat(Heartbeat { group, member, instance: String::new(), step }))
}

fn commit(name: &str, epoch: u32, partition: u32, offset: u64) -> Request {
    let new = wire::groups::NewOffset { partition, offset, metadata: String::new() };
    Request::Group(GroupRequest::Commit(OffsetCommit {
        group: "g".into(),
        member: name.into(),
        instance: String::new(),
        epoch,
        offsets: vec![("t".into(), vec![new])],
    }))
}

/// A static member that returns in time, after an orderly stop or a kill, gets its former assignment; other members are
/// not notified.
#[tokio::test]
async fn a_static_member_comes_back_without_a_rebalance() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 4).await;
    let fixed = || client.consumer("g").topic("t").instance("one");
    let mut first = open(fixed()).await;
    let mut other = open(client.consumer("g").topic("t")).await;
    tokio::join!(until_owns(&mut first, 2), until_owns(&mut other, 2));
    let had = first.assignment();
    until("stable", async || is_stable_with(&client, "g", 2).await).await;
    let epoch = within("describe", client.describe_group("g")).await.expect("a group").epoch;
    within("close", first.close()).await.expect("closed");
    let group = within("describe", client.describe_group("g")).await.expect("a group");
    assert_eq!((group.state, group.members.len()), (GroupState::Stable, 2), "it is expected back");
    let mut second = open(fixed()).await;
    until_owns(&mut second, 2).await;
    assert_eq!(second.assignment(), had);
    // A killed member has not left: the next one takes over, and the earlier one receives an error.
    let mut third = open(fixed()).await;
    until_owns(&mut third, 2).await;
    assert_eq!(third.assignment(), had);
    let replaced = loop {
        match within("the replacement", second.next_event()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(replaced.kind, ErrorKind::AlreadyExists);
    let after = within("describe", client.describe_group("g")).await.expect("a group");
    assert_eq!((after.epoch, after.members.len()), (epoch, 2), "the group was not rebalanced");
    while let Ok(event) = tokio::time::timeout(Duration::ZERO, other.next_event()).await {
        assert!(matches!(event, Ok(ConsumerEvent::End { .. })), "the other received {event:?}");
    }
}

/// A program that commits manually continues after its last commit, with its metadata; later records are redelivered.
#[tokio::test]
async fn a_group_continues_after_its_committed_offset() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 1).await;
    publish(&client, "t", 0..20).await;
    let own = || client.consumer("g").topic("t").auto_commit(None);
    let mut consumer = open(own()).await;
    assert_eq!(take(&mut consumer, 5).await, [0, 1, 2, 3, 4]);
    assert_eq!(consumer.position("t", 0), Some(5));
    within("commit", consumer.commit()).await.expect("committed");
    assert_eq!(take(&mut consumer, 5).await, [5, 6, 7, 8, 9]);
    within("close", consumer.close()).await.expect("closed");
    let mut consumer = open(own()).await;
    assert_eq!(take(&mut consumer, 3).await, [5, 6, 7]);
    let note = [(at("t", 0), 6, "half of it".to_owned())];
    within("commit", consumer.commit_offsets(&note)).await.expect("committed");
    let foreign = within("commit", consumer.commit_offsets(&[(at("t", 1), 6, String::new())])).await;
    assert_eq!(foreign.map_err(|error| error.kind), Err(ErrorKind::NotFound), "there is no such partition");
    // A program that drops the consumer commits nothing.
    drop(consumer);
    until("it has left", async || state(&client, "g").await == GroupState::Empty).await;
    let committed = within("fetch", client.committed_offsets("g", &[])).await.expect("offsets");
    let (partition, offset) = &committed[0];
    assert_eq!((partition, offset.offset, offset.metadata.as_str()), (&at("t", 0), 6, "half of it"));
    let mut consumer = open(own()).await;
    assert_eq!(take(&mut consumer, 2).await, [6, 7]);
    // Another group has a separate position in the topic.
    let mut other = open(client.consumer("other").topic("t").start(Start::Offset(18))).await;
    assert_eq!(take(&mut other, 2).await, [18, 19]);
}

/// The consumer automatically commits returned records when the next one is requested, and when it is closed.
#[tokio::test]
async fn a_consumer_commits_by_itself() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 1).await;
    publish(&client, "t", 0..10).await;
    let mut consumer = open(client.consumer("g").topic("t").auto_commit(Some(Duration::from_millis(20)))).await;
    assert_eq!(take(&mut consumer, 4).await, [0, 1, 2, 3]);
    let committed = async || {
        let committed = within("fetch", client.committed_offsets("g", &[])).await.expect("offsets");
        committed.first().map(|(_, committed)| committed.offset)
    };
    let mut returned = 4;
    until("the commit", async || {
        // A request for the next record marks the earlier ones as processed.
        returned += usize::from(tokio::time::timeout(Duration::from_millis(1), consumer.next()).await.is_ok());
        committed().await.is_some_and(|offset| offset >= 4)
    })
    .await;
    within("close", consumer.close()).await.expect("closed");
    assert_eq!(committed().await, Some(returned as u64));
}

/// Seeking to any position works, and a paused partition delivers nothing and stays assigned.
#[tokio::test]
async fn positions_can_be_moved_and_partitions_paused() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    publish(&client, "t", 0..20).await;
    let mut consumer = open(client.consumer("g").topic("t").auto_commit(None)).await;
    let all = take(&mut consumer, 20).await;
    assert_eq!(all.len(), 20);
    consumer.seek("t", 0, Start::Offset(8)).expect("it is ours");
    assert_eq!(take(&mut consumer, 2).await, [16, 18]);
    consumer.seek("t", 1, Start::Earliest).expect("it is ours");
    // Paused with records in its buffer: nothing is lost or delivered twice.
    assert_eq!(take(&mut consumer, 2).await, [1, 3]);
    consumer.pause("t", 1).expect("it is ours");
    assert_eq!(consumer.position("t", 1), Some(2));
    publish(&client, "t", 20..30).await;
    assert_eq!(take(&mut consumer, 5).await, [20, 22, 24, 26, 28], "only the other one");
    assert_eq!(consumer.assignment().len(), 2);
    consumer.resume("t", 1).expect("it is ours");
    assert_eq!(take(&mut consumer, 13).await, [5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29]);
    let refused = consumer.seek("t", 2, Start::Earliest).expect_err("there is no such partition");
    assert_eq!(refused.kind, ErrorKind::NotFound);
}

/// With a connection that breaks repeatedly, the membership is kept, and nothing is lost or delivered twice.
#[tokio::test]
async fn a_broken_wire_is_no_rebalance() {
    let server = Server::start();
    let limits: Vec<usize> = (0..20).map(|i| 300 + i * 397).collect();
    let proxy = Proxy::start(server.address, limits).await;
    let watcher = server.client("tcp").await;
    create(&watcher, "t", 3).await;
    publish(&watcher, "t", 0..500).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let mut consumer = None;
    // Joining is a request like any other: it may be interrupted.
    until("joined", async || {
        consumer = client.consumer("g").topic("t").open().await.ok();
        consumer.is_some()
    })
    .await;
    let mut consumer = consumer.expect("joined");
    let mut seen = Seen::default();
    seen.add(take(&mut consumer, 500).await);
    let epoch = within("describe", watcher.describe_group("g")).await.expect("a group").epoch;
    for round in 0..5 {
        proxy.cut();
        publish(&watcher, "t", 500 + round * 20..520 + round * 20).await;
        seen.add(take(&mut consumer, 20).await);
    }
    seen.expect_each_once(600);
    assert_eq!(within("describe", watcher.describe_group("g")).await.expect("a group").epoch, epoch);
    // Commits work as well.
    until("the commit", async || consumer.commit().await.is_ok()).await;
    let summary = &within("list", watcher.list_groups()).await.expect("groups")[0];
    assert_eq!((summary.lag, summary.offsets), (0, 3));
}

/// When a broker on disk is killed or stopped and starts again, members are still in their group and read on.
#[tokio::test]
async fn members_and_committed_offsets_survive_the_broker() {
    let data = tempfile::tempdir().expect("a folder");
    let set = vec![format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    let memory = TopicSettings { storage: Storage::Memory, ..TopicSettings::default() };
    within("create", client.create_topic("memory", memory)).await.expect("created");
    within("commit", client.commit_offsets("m", &[(at("memory", 0), 5)])).await.expect("committed");
    publish(&client, "t", 0..100).await;
    let mut consumer = open(client.consumer("g").topic("t").auto_commit(None)).await;
    take(&mut consumer, 100).await;
    within("commit", consumer.commit()).await.expect("committed");
    let mut epoch = within("describe", client.describe_group("g")).await.expect("a group").epoch;
    for (round, is_crash) in [true, false].into_iter().enumerate() {
        // These records are not committed before the end.
        publish(&client, "t", 1000..1002).await;
        take(&mut consumer, 2).await;
        if is_crash {
            server.crash();
        } else {
            server.signal(Signal::TERM);
            assert!(server.ended().await.success());
        }
        server.start_again();
        let watcher = server.client("tcp").await;
        let committed = within("fetch", watcher.committed_offsets("g", &[])).await.expect("offsets");
        let expected = 50 + 5 * round as u64;
        assert_eq!(committed.iter().map(|(_, committed)| committed.offset).collect::<Vec<_>>(), [expected; 2]);
        // The consumer is still a member, with its partitions: it goes on after what it has read.
        publish(&watcher, "t", 100..108).await;
        let mut values = take(&mut consumer, 8).await;
        values.sort_unstable();
        assert_eq!(values, (100..108).collect::<Vec<_>>());
        within("commit", consumer.commit()).await.expect("committed");
        let group = within("describe", watcher.describe_group("g")).await.expect("a group");
        assert_eq!(group.members.len(), 1, "{group:?}");
        let after = within("describe", watcher.describe_group("g")).await.expect("a group").epoch;
        assert!(after > epoch, "epochs do not go backwards: {after} after {epoch}");
        epoch = after;
        until("the old client is connected again", async || client.ping().await.is_ok()).await;
    }
    // The topic in memory and its offsets are lost, even if the topic is created again.
    within("create", client.create_topic("memory", memory)).await.expect("created");
    assert_eq!(within("fetch", client.committed_offsets("m", &[])).await.expect("offsets").len(), 0);
}

/// A broker in memory that is killed keeps nothing: the group starts again with the new records.
#[tokio::test]
async fn a_broker_in_memory_begins_anew() {
    let mut server = Server::start();
    let client = server.client("tcp").await;
    publish(&client, "t", 0..5).await;
    let mut consumer = open(client.consumer("g").topic("t")).await;
    assert_eq!(take(&mut consumer, 5).await, [0, 1, 2, 3, 4]);
    server.crash_and_restart();
    let watcher = server.client("tcp").await;
    publish(&watcher, "t", 10..13).await;
    assert_eq!(take(&mut consumer, 3).await, [10, 11, 12]);
    assert_eq!(consumer.position("t", 0), Some(3));
}

/// The group follows a topic that grows, is deleted and created again, and topics that begin to match a pattern.
#[tokio::test]
async fn the_group_follows_its_topics() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "a.x", 1).await;
    let mut consumer = open(client.consumer("g").topic("a.*")).await;
    until_owns(&mut consumer, 1).await;
    create(&client, "a.y", 2).await;
    until_owns(&mut consumer, 3).await;
    within("grow", client.grow_topic("a.x", 3)).await.expect("grown");
    publish(&client, "a.x", 0..6).await;
    let mut values = take(&mut consumer, 6).await;
    values.sort_unstable();
    assert_eq!(values, [0, 1, 2, 3, 4, 5], "from the first record of each");
    within("delete", client.delete_topic("a.x")).await.expect("deleted");
    until_owns(&mut consumer, 2).await;
    create(&client, "a.x", 1).await;
    publish(&client, "a.x", 10..12).await;
    assert_eq!(take(&mut consumer, 2).await, [10, 11], "it is another one");
    // Deleted and created again between two checks.
    within("delete", client.delete_topic("a.x")).await.expect("deleted");
    create(&client, "a.x", 1).await;
    publish(&client, "a.x", 20..22).await;
    assert_eq!(take(&mut consumer, 2).await, [20, 21]);
    let topics = within("topics", client.list_topics()).await.expect("topics");
    assert_eq!(topics.len(), 3, "two of them, and that of the offsets");
}

/// A member that subscribes to a topic by name receives an error once when it is deleted, with or without a partition.
/// If it continues, it receives the records of a later topic with this name.
#[tokio::test]
async fn a_member_is_told_that_its_topic_was_deleted() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 1).await;
    publish(&client, "t", 0..2).await;
    let mut reader = open(client.consumer("g").topic("t")).await;
    assert_eq!(take(&mut reader, 2).await, [0, 1]);
    let mut idle = open(client.consumer("g").topic("t")).await;
    let mut by_pattern = open(client.consumer("other").topic("*")).await;
    assert_eq!(take(&mut by_pattern, 2).await, [0, 1]);
    within("delete", client.delete_topic("t")).await.expect("deleted");
    for member in [&mut reader, &mut idle] {
        let error = within("the error", member.next()).await.map(drop).expect_err("deleted");
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::NotFound, "topic t was deleted"));
    }
    within("close", idle.close()).await.expect("left");
    create(&client, "t", 1).await;
    publish(&client, "t", 10..12).await;
    assert_eq!(take(&mut reader, 2).await, [10, 11]);
    assert_eq!(take(&mut by_pattern, 2).await, [10, 11]);
    within("delete", client.delete_topic("t")).await.expect("deleted");
    assert_eq!(within("the error", reader.next()).await.map(drop).expect_err("deleted").kind, ErrorKind::NotFound);
}

/// Two programs on one connection, and a program with many partitions.
#[tokio::test]
async fn many_partitions_are_read_at_once() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 200).await;
    publish(&client, "t", 0..400).await;
    let mut first = open(client.consumer("g").topic("t").assignor(Assignor::Range)).await;
    let mut seen = Seen::default();
    seen.add(take(&mut first, 400).await);
    let mut second = open(client.consumer("g").topic("t").assignor(Assignor::Range)).await;
    tokio::join!(until_owns(&mut first, 100), until_owns(&mut second, 100));
    let of = |consumer: &Consumer| consumer.assignment().iter().map(|at| at.partition).collect::<Vec<_>>();
    let mut halves = [of(&first), of(&second)];
    halves.sort_unstable();
    assert_eq!(halves.concat(), (0..200).collect::<Vec<_>>(), "runs, by the order of the members");
    publish(&client, "t", 400..600).await;
    let readers = tokio::join!(take(&mut first, 100), take(&mut second, 100));
    seen.add(readers.0);
    seen.add(readers.1);
    seen.expect_each_once(600);
}

/// Errors are reported immediately, and only to the affected call.
#[tokio::test]
async fn bad_values_are_refused() {
    let server = Server::with(&["auto_create_topics=false"]);
    let client = server.client("tcp").await;
    create(&client, "t", 1).await;
    let refused = async |builder: ConsumerBuilder| within("join", builder.open()).await.map(drop).map_err(|e| e.kind);
    assert_eq!(refused(client.consumer("").topic("t")).await, Err(ErrorKind::Invalid));
    assert_eq!(refused(client.consumer("g")).await, Err(ErrorKind::Invalid), "no topic");
    assert_eq!(refused(client.consumer("g").topic("_offsets")).await, Err(ErrorKind::Invalid));
    assert_eq!(refused(client.consumer("g").topic("nowhere")).await, Err(ErrorKind::NotFound));
    let short = client.consumer("g").topic("t").session_timeout(Duration::from_millis(1));
    assert_eq!(refused(short).await, Err(ErrorKind::Invalid));
    assert_eq!(within("list", client.list_groups()).await.expect("groups").len(), 0, "none was made");
    let missing = within("describe", client.describe_group("g")).await;
    assert_eq!(missing.map(drop).map_err(|e| e.kind), Err(ErrorKind::NotFound));
    // Offsets of a group without members, set by a client that is not a member.
    within("commit", client.commit_offsets("g", &[(at("t", 0), 7)])).await.expect("committed");
    let nowhere = within("commit", client.commit_offsets("g", &[(at("nowhere", 0), 7)])).await;
    assert_eq!(nowhere.map_err(|e| e.kind), Err(ErrorKind::NotFound));
    let committed = within("fetch", client.committed_offsets("g", &[at("t", 0), at("t", 1)])).await.expect("offsets");
    assert_eq!(committed.iter().map(|(_, c)| c.offset).collect::<Vec<_>>(), [7]);
    let _consumer = open(client.consumer("g").topic("t")).await;
    let active = within("commit", client.commit_offsets("g", &[(at("t", 0), 8)])).await;
    assert_eq!(active.map_err(|e| e.kind), Err(ErrorKind::Busy));
    let deleted = within("delete", client.delete_group("g")).await;
    assert_eq!(deleted.map_err(|e| e.kind), Err(ErrorKind::Busy));
    for name in ["a", "b", "c"] {
        within("commit", client.commit_offsets(name, &[(at("t", 0), 1)])).await.expect("committed");
    }
    let listed = within("list", client.list_groups()).await.expect("groups");
    assert_eq!(listed.iter().map(|group| group.group.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "g"]);
}

/// A member is notified before a partition is revoked, and may still commit; then another member continues.
#[tokio::test]
async fn a_partition_can_be_committed_before_it_is_revoked() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    publish(&client, "t", 0..20).await;
    let own = || client.consumer("g").topic("t").auto_commit(None);
    let mut first = open(own()).await;
    let mut seen = Seen::default();
    seen.add(take(&mut first, 7).await);
    let mut second = open(own()).await;
    let revoked = loop {
        match within("the revocation", first.next_event()).await.expect("an event") {
            ConsumerEvent::Revoked(revoked) => break revoked,
            ConsumerEvent::Batch(batch) => {
                let records = batch.records().expect("readable");
                let value = |record: client::Result<client::RecordView<'_>>| {
                    text(record.expect("a record").value.expect("a value")).parse::<u64>().expect("a number")
                };
                seen.add(records.iter().map(value));
            }
            _ => {}
        }
    };
    assert_eq!((revoked.len(), first.assignment().len()), (1, 2), "it is still its own");
    within("commit", first.commit()).await.expect("committed");
    let told = tokio::time::timeout(Duration::ZERO, second.next_event()).await;
    assert!(!matches!(told, Ok(Ok(ConsumerEvent::Batch(_)))), "no other member holds it yet: {told:?}");
    publish(&client, "t", 20..22).await;
    seen.add_until(22, &mut first, &mut second).await;
    seen.expect_each_once(22);
    assert_eq!((first.assignment().len(), second.assignment()), (1, revoked));
}

/// Buffered records of a paused partition are not delivered after it is revoked, even if the program resumes it.
#[tokio::test]
async fn a_paused_partition_that_is_revoked_stays_silent() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    for partition in 0..2 {
        let mut builder = BatchBuilder::new();
        for value in 0..10 {
            builder.push(1, None, Some((partition * 10 + value).to_string().as_bytes()), &[]).expect("a small record");
        }
        within("send", publisher.send_batch(Some(partition), builder.finish().expect("records"))).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
    let own = || client.consumer("g").topic("t").auto_commit(None);
    let mut first = open(own()).await;
    let mut seen = Seen::default();
    for _ in 0..2 {
        let message = within("a record", first.next()).await.expect("a record");
        seen.add([value_of(&message)]);
        // The rest of its batch stays in the buffer.
        first.pause("t", message.partition).expect("its own");
    }
    let mut second = open(own()).await;
    let revoked = loop {
        match within("the revocation", first.next_event()).await.expect("an event") {
            ConsumerEvent::Revoked(revoked) => break revoked,
            event => assert!(!matches!(event, ConsumerEvent::Batch(_)), "both are paused: {event:?}"),
        }
    };
    let [gone] = &revoked[..] else { panic!("one of two moves: {revoked:?}") };
    within("commit", first.commit()).await.expect("committed");
    let refused = [
        first.resume("t", gone.partition),
        first.seek("t", gone.partition, Start::Earliest),
        first.pause("t", gone.partition),
    ];
    assert!(
        refused.iter().all(|refused| refused.as_ref().is_err_and(|e| e.kind == ErrorKind::NotFound)),
        "{refused:?}"
    );
    first.resume("t", 1 - gone.partition).expect("its own");
    seen.add_until(20, &mut first, &mut second).await;
    seen.expect_each_once(20);
}

/// A consumer is notified when it reaches the end that a partition had when it was assigned; records beyond it are lag.
#[tokio::test]
async fn ends_and_lag_are_told() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    publish(&client, "t", 0..6).await;
    let mut consumer = open(client.consumer("g").topic("t").auto_commit(None)).await;
    let lags = async |consumer: &Consumer| {
        let lags = within("lag", consumer.lag()).await.expect("known");
        lags.into_iter().map(|(at, lag)| (at.partition, lag)).collect::<BTreeMap<_, _>>()
    };
    let mut ends = BTreeMap::new();
    while ends.len() < 2 {
        match within("an event", consumer.next_event()).await.expect("an event") {
            ConsumerEvent::End { partition, end, .. } => {
                assert_eq!(consumer.position("t", partition), Some(end), "all before it was returned");
                assert_eq!(ends.insert(partition, end), None, "once");
            }
            ConsumerEvent::Lost(_) | ConsumerEvent::Revoked(_) => panic!("it is alone"),
            _ => {}
        }
    }
    assert_eq!(ends, BTreeMap::from([(0, 3), (1, 3)]));
    assert_eq!(lags(&consumer).await, BTreeMap::from([(0, 0), (1, 0)]));
    publish(&client, "t", 6..9).await;
    let by_partition = lags(&consumer).await;
    assert_eq!(by_partition.values().sum::<u64>(), 3, "{by_partition:?}");
    let partitions = |info: client::GroupInfo| info.partitions[0].1.clone();
    let info = within("describe", client.describe_group("g")).await.expect("a group");
    assert!(partitions(info).iter().all(|partition| partition.lag().is_none()), "nothing is committed");
    take(&mut consumer, 2).await;
    within("commit", consumer.commit()).await.expect("committed");
    assert_eq!(lags(&consumer).await.values().sum::<u64>(), 1);
    let info = within("describe", client.describe_group("g")).await.expect("a group");
    assert_eq!(partitions(info).iter().map(|partition| partition.lag().expect("committed")).sum::<u64>(), 1);
}

/// A consumer that does not read is sent only as much as its buffer can hold, and later continues without a loss.
#[tokio::test]
async fn an_idle_consumer_is_sent_as_much_as_its_buffer_holds() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    let mut consumer = open(client.consumer("g").topic("t").buffer_bytes(256 << 10)).await;
    until_owns(&mut consumer, 2).await;
    let value = vec![b'x'; 16 << 10];
    for _ in 0..200 {
        within("publish", client.publish("t", Record::new(value.clone()))).await.expect("published");
    }
    let sent = metric(&client, "thalweg_delivered_bytes_total").await;
    // Each partition may receive one batch more than its half.
    assert!(sent < (256 << 10) + 2 * (17 << 10), "{sent}");
    let mut lag = 200;
    while lag > 0 {
        within("a record", consumer.next()).await.expect("a record");
        lag -= 1;
    }
    let left = within("lag", consumer.lag()).await.expect("known");
    assert_eq!(left.iter().map(|(_, lag)| lag).sum::<u64>(), 0);
}

/// A slow program gives up a partition with its next call, and not only at the end of the current batch.
#[tokio::test]
async fn a_partition_is_given_up_in_the_midst_of_a_batch() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    let publisher = within("publisher", client.publisher("t").open()).await.expect("open");
    let mut values = 0..2000u64;
    for partition in 0..2 {
        let mut builder = BatchBuilder::new();
        for value in values.by_ref().take(1000) {
            builder.push(1, None, Some(value.to_string().as_bytes()), &[]).expect("a small record");
        }
        let batch = builder.finish().expect("records");
        within("send", publisher.send_batch(Some(partition), batch)).await.expect("sent");
    }
    within("flush", publisher.flush()).await.expect("acknowledged");
    let mut first = open(client.consumer("g").topic("t")).await;
    let mut seen = Seen::default();
    seen.add(take(&mut first, 1).await);
    let mut second = open(client.consumer("g").topic("t")).await;
    let mut calls = 0;
    until("the hand-over", async || {
        calls += 1;
        seen.add(take(&mut first, 1).await);
        first.assignment().len() == 1
    })
    .await;
    assert!(calls < 999, "it was still in its first batch");
    seen.add_until(2000, &mut first, &mut second).await;
    seen.expect_each_once(2000);
}

/// A member that was disconnected for too long has its commit refused, is notified of the loss, and rejoins
/// automatically.
#[tokio::test]
async fn a_member_that_was_cut_off_is_fenced_and_joins_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let watcher = server.client("tcp").await;
    create(&watcher, "t", 1).await;
    publish(&watcher, "t", 0..10).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let short = client.consumer("g").topic("t").auto_commit(None).session_timeout(Duration::from_millis(300));
    let mut cut_off = open(short).await;
    assert_eq!(take(&mut cut_off, 5).await, [0, 1, 2, 3, 4]);
    proxy.go_down();
    let mut other = open(watcher.consumer("g").topic("t").auto_commit(None)).await;
    assert_eq!(take(&mut other, 10).await, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "nothing was committed");
    proxy.go_up();
    until("the refusal", async || {
        let refused = cut_off.commit().await.expect_err("it is with another").kind;
        assert!(matches!(refused, ErrorKind::Fenced | ErrorKind::Disconnected | ErrorKind::Timeout), "{refused:?}");
        refused == ErrorKind::Fenced
    })
    .await;
    let lost = loop {
        match within("the loss", cut_off.next_event()).await.expect("it goes on") {
            ConsumerEvent::Lost(lost) => break lost,
            ConsumerEvent::Batch(_) => {}
            event => panic!("{event:?}"),
        }
    };
    assert_eq!((lost, cut_off.assignment()), (vec![at("t", 0)], vec![]));
    within("commit", other.commit()).await.expect("committed");
    within("close", other.close()).await.expect("closed");
    publish(&watcher, "t", 10..12).await;
    assert_eq!(take(&mut cut_off, 2).await, [10, 11], "it is a member again, and goes on after the other");
}

/// A join that is cancelled leaves no member behind, however far it got.
#[tokio::test]
async fn a_join_that_is_given_up_is_no_member() {
    let server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 2).await;
    let long = || client.consumer("g").topic("t").session_timeout(Duration::from_secs(180));
    for polls in 1..20 {
        let pause = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            opened = long().open() => drop(opened.expect("a consumer")),
            () = pause => {}
        }
    }
    let mut consumer = open(long()).await;
    until_owns(&mut consumer, 2).await;
    until("the others are gone", async || is_stable_with(&client, "g", 1).await).await;
}

/// A consumer that was removed and got its partition back does not commit records from before: another member owned the
/// partition in the meantime and committed a later offset.
#[tokio::test]
async fn records_read_before_a_loss_are_not_committed_after_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let watcher = server.client("tcp").await;
    create(&watcher, "t", 1).await;
    publish(&watcher, "t", 0..10).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let short = client.consumer("g").topic("t").auto_commit(None).session_timeout(Duration::from_millis(300));
    let mut cut_off = open(short).await;
    assert_eq!(take(&mut cut_off, 5).await, [0, 1, 2, 3, 4]);
    proxy.go_down();
    let mut other = open(watcher.consumer("g").topic("t").auto_commit(None)).await;
    take(&mut other, 10).await;
    within("commit", other.commit()).await.expect("committed");
    within("close", other.close()).await.expect("closed");
    proxy.go_up();
    until("it is back", async || is_stable_with(&watcher, "g", 1).await).await;
    let mut refusals = 0;
    while refusals < 20 {
        // It may still use the connection that was cut.
        let refused = within("commit", cut_off.commit()).await.expect_err("it is of before the loss").kind;
        assert!(matches!(refused, ErrorKind::Fenced | ErrorKind::Disconnected), "{refused:?}");
        refusals += usize::from(refused == ErrorKind::Fenced);
    }
    let committed = within("committed", watcher.committed_offsets("g", &[])).await.expect("offsets");
    assert_eq!(committed.iter().map(|(_, committed)| committed.offset).collect::<Vec<_>>(), [10]);
    publish(&watcher, "t", 10..12).await;
    assert_eq!(take(&mut cut_off, 2).await, [10, 11]);
    within("commit", cut_off.commit()).await.expect("it is a member");
}

/// A broker that stops immediately answers waiting requests, and does not wait for their clients.
#[tokio::test]
async fn waiting_requests_do_not_delay_a_stop() {
    let mut server = Server::start();
    let client = server.client("tcp").await;
    create(&client, "t", 1).await;
    let mut raw = Raw::open(server.address).await;
    let step = Step::Join {
        client: "waits".into(),
        session_timeout_ms: 180_000,
        rebalance_timeout_ms: 60_000,
        assignor: Assignor::Uniform,
        topics: vec!["t".into()],
    };
    let Response::Group(GroupResponse::Turn { epoch, .. }) = raw.call(&member("waits", step)).await else {
        panic!("it is no member");
    };
    let step = Step::Alive { epoch, wait_ms: 60_000, owned: None, topics: None };
    let beat = raw.send(&member("waits", step)).await;
    assert_eq!(raw.call(&Request::Ping).await, Response::Pong);
    // Their responses have no order, so each has a connection.
    let mut other = Raw::open(server.address).await;
    let request = Request::Fetch { topic: "t".into(), partition: 0, offset: 0, bytes_max: 1, wait_ms: 60_000 };
    let fetch = other.send(&request).await;
    assert_eq!(other.call(&Request::Ping).await, Response::Pong);
    server.signal(Signal::TERM);
    for (raw, waiting) in [(&mut raw, beat), (&mut other, fetch)] {
        let answer = raw.answer(waiting).await;
        assert!(matches!(&answer, Response::Error(error) if error.kind == ErrorKind::ShuttingDown), "{answer:?}");
    }
    drop((raw, other, client));
    assert!(server.ended().await.success(), "all was finished in time");
}
