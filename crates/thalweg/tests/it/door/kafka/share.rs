//! Share groups of Kafka's clients: each record is delivered to one member, as a message of a queue is.

use bytes::Bytes;
use engine::codec::Codec;
use engine::{BatchBuilder, Producer, Record};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch as ShareAcknowledgement,
};
use kafka_protocol::messages::share_fetch_request::{AcknowledgementBatch, FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::share_fetch_response::PartitionData;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse,
    ConsumerGroupHeartbeatRequest, CreateAclsRequest, DeleteGroupsRequest, DeleteShareGroupOffsetsRequest,
    DeleteTopicsRequest, DescribeShareGroupOffsetsRequest, EndTxnRequest, GroupId, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, ListGroupsRequest, MetadataRequest, ShareAcknowledgeRequest, ShareFetchRequest,
    ShareFetchResponse, ShareGroupDescribeRequest, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse,
    TransactionalId,
};

use super::raw::{Raw, batch, produce, produced, text, topic};
use super::security::{SET, log_in};
use crate::support::access::acls;
use crate::support::collector::{Collector, PARENT, TRACE};
use crate::support::server::{Launch, Server, metric, until};

const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const INVALID_REQUEST: i16 = 42;
const INVALID_STATE: i16 = 121;
const NO_SESSION: i16 = 122;
const WRONG_EPOCH: i16 = 123;
/// Timeout of a fetch that must return records.
const WAIT_MS: i32 = 20_000;

fn group() -> GroupId {
    GroupId(text("g"))
}

/// Member of the group `g` on the topic `t`.
struct Sharer {
    raw: Raw,
    id: &'static str,
    /// Epochs of its membership and of its session.
    epoch: i32,
    session: i32,
    /// Topic with only its id.
    topic: FetchTopic,
}

/// Acquired ranges: first offset, last offset, and delivery count.
type Given = Vec<(i64, i64, i16)>;

impl Sharer {
    /// Joins the group on an existing topic.
    async fn join(server: &Server, id: &'static str) -> Self {
        Self::join_with(Raw::connect(server).await, id).await
    }

    async fn join_with(mut raw: Raw, id: &'static str) -> Self {
        let topic = topic_id(&mut raw).await;
        let mut sharer = Self { raw, id, epoch: 0, session: 0, topic };
        let joined = sharer.beat(Some("t")).await;
        assert_eq!(joined.error_code, 0, "{joined:?}");
        sharer
    }

    async fn beat(&mut self, subscribes: Option<&str>) -> ShareGroupHeartbeatResponse {
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(group())
            .with_member_id(text(self.id))
            .with_member_epoch(self.epoch)
            .with_subscribed_topic_names(subscribes.map(|name| vec![topic(name)]));
        let response = self.raw.call(1, request).await;
        if response.error_code == 0 {
            self.epoch = response.member_epoch;
        }
        response
    }

    fn fetch_request(&self, settles: &[(i64, i64, i8)], wait_ms: i32) -> ShareFetchRequest {
        let batch = |(first, last, kind): &(i64, i64, i8)| {
            let batch = AcknowledgementBatch::default().with_first_offset(*first).with_last_offset(*last);
            batch.with_acknowledge_types(vec![*kind])
        };
        let partition = FetchPartition::default().with_acknowledgement_batches(settles.iter().map(batch).collect());
        let of = self.topic.clone().with_partitions(vec![partition]);
        ShareFetchRequest::default()
            .with_group_id(Some(group()))
            .with_member_id(Some(text(self.id)))
            .with_share_session_epoch(self.session)
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_records(500)
            .with_batch_size(500)
            .with_topics(vec![of])
    }

    async fn ask(&mut self, request: ShareFetchRequest) -> ShareFetchResponse {
        let response = self.raw.call(1, request).await;
        self.count_epoch(&response);
        response
    }

    fn count_epoch(&mut self, response: &ShareFetchResponse) {
        if response.error_code == 0 {
            self.session += 1;
        }
    }

    /// Acknowledges records, and returns the acquired ranges.
    async fn fetch(&mut self, settles: &[(i64, i64, i8)], wait_ms: i32) -> Given {
        let response = self.ask(self.fetch_request(settles, wait_ms)).await;
        assert_eq!(response.error_code, 0, "{response:?}");
        let Some(partition) = only(&response) else { return Vec::new() };
        assert_eq!((partition.error_code, partition.acknowledge_error_code), (0, 0), "{partition:?}");
        given(partition)
    }

    async fn settle(&mut self, settles: &[(i64, i64, &[i8])]) -> i16 {
        let batch = |(first, last, kinds): &(i64, i64, &[i8])| {
            let batch = ShareAcknowledgement::default().with_first_offset(*first).with_last_offset(*last);
            batch.with_acknowledge_types(kinds.to_vec())
        };
        let partition =
            AcknowledgePartition::default().with_acknowledgement_batches(settles.iter().map(batch).collect());
        let topic = AcknowledgeTopic::default().with_topic_id(self.topic.topic_id).with_partitions(vec![partition]);
        let request = ShareAcknowledgeRequest::default()
            .with_group_id(Some(group()))
            .with_member_id(Some(text(self.id)))
            .with_share_session_epoch(self.session)
            .with_topics(vec![topic]);
        let response = self.raw.call(1, request).await;
        if response.error_code != 0 {
            return response.error_code;
        }
        self.session += 1;
        response.responses[0].partitions[0].error_code
    }
}

fn only(response: &ShareFetchResponse) -> Option<&PartitionData> {
    Some(&response.responses.first()?.partitions[0])
}

fn given(partition: &PartitionData) -> Given {
    let ranges = partition.acquired_records.iter();
    ranges.map(|range| (range.first_offset, range.last_offset, range.delivery_count)).collect()
}

async fn topic_id(raw: &mut Raw) -> FetchTopic {
    id_of(raw, "t").await
}

async fn id_of(raw: &mut Raw, name: &str) -> FetchTopic {
    let wanted = MetadataRequestTopic::default().with_name(Some(topic(name)));
    let known = raw.call(12, MetadataRequest::default().with_topics(Some(vec![wanted]))).await;
    FetchTopic::default().with_topic_id(known.topics[0].topic_id)
}

async fn publish(raw: &mut Raw, values: std::ops::Range<u32>) {
    for value in values {
        let record = Record::new(Bytes::from(value.to_string()));
        let response = raw.call(9, produce("t", 0, -1, batch(Codec::None, &[record]))).await;
        assert_eq!(produced(&response).0, 0);
    }
}

async fn set_group(raw: &mut Raw, name: &str, value: &str) -> i16 {
    let config = AlterableConfig::default().with_name(text(name)).with_value(Some(text(value)));
    let of = AlterConfigsResource::default().with_resource_type(32).with_resource_name(text("g"));
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![of.with_configs(vec![config])]);
    raw.call(1, request).await.responses[0].error_code
}

/// Creates the topic `t` with `records` records, each in a separate batch, from whose start the group consumes.
async fn prepared(server: &Server, records: u32) -> Raw {
    let mut raw = Raw::connect(server).await;
    raw.create("t").await;
    assert_eq!(set_group(&mut raw, "share.auto.offset.reset", "earliest").await, 0);
    publish(&mut raw, 0..records).await;
    raw
}

/// Returns the first offset that the group has not settled, and the number of such records.
async fn position(raw: &mut Raw) -> (i16, i64) {
    let of = DescribeShareGroupOffsetsRequestGroup::default().with_group_id(group()).with_topics(None);
    let response = raw.call(0, DescribeShareGroupOffsetsRequest::default().with_groups(vec![of])).await;
    let described = &response.groups[0];
    (described.error_code, described.topics.first().map_or(-1, |of| of.partitions[0].start_offset))
}

/// Accepted and rejected records are settled, and released ones are redelivered; an acknowledgement of a record that
/// the member does not hold invalidates the whole request.
#[tokio::test]
async fn records_are_settled_one_by_one() {
    let server = Server::start();
    let mut raw = prepared(&server, 6).await;
    let mut one = Sharer::join(&server, "one").await;
    let mut two = Sharer::join(&server, "two").await;
    assert_eq!(one.fetch(&[], 0).await, [(0, 5, 1)]);
    assert_eq!(two.fetch(&[], 0).await, [], "all of it is with the other");
    assert_eq!(one.settle(&[(0, 2, &[ACCEPT, RELEASE, REJECT])]).await, 0);
    assert_eq!(two.fetch(&[], WAIT_MS).await, [(1, 1, 2)]);
    for not_theirs in [(1, 1, ACCEPT), (0, 3, ACCEPT), (6, 6, ACCEPT), (3, 1 << 40, REJECT)] {
        let (first, last, kind) = not_theirs;
        assert_eq!(one.settle(&[(first, last, &[kind])]).await, INVALID_STATE, "{not_theirs:?}");
    }
    assert_eq!(one.settle(&[(3, 3, &[ACCEPT]), (1, 1, &[ACCEPT])]).await, INVALID_REQUEST, "not in their order");
    assert_eq!(one.settle(&[(1, 1, &[ACCEPT]), (3, 3, &[ACCEPT])]).await, INVALID_STATE, "one is not theirs");
    // Acknowledged with the next fetch.
    assert_eq!(one.fetch(&[(3, 3, ACCEPT), (4, 5, RELEASE)], WAIT_MS).await, [(4, 5, 2)]);
    assert_eq!(two.fetch(&[(1, 1, ACCEPT)], 0).await, []);
    assert_eq!(position(&mut raw).await, (0, 4));
    assert_eq!(one.settle(&[(4, 5, &[0])]).await, 0, "there is nothing at these offsets, its member says");
    assert_eq!(position(&mut raw).await, (0, 6));
}

/// A record that a producer traces has a span for each of its locks, and one of its acknowledgement.
#[tokio::test]
async fn locks_of_a_traced_record_are_spans() {
    let collector = Collector::start().await;
    let server = Server::with(&collector.settings(&[]));
    let mut raw = prepared(&server, 0).await;
    let mut one = Sharer::join(&server, "one").await;
    let records = [Record::new("x").with_header("traceparent", PARENT), Record::new("not traced")];
    let response = raw.call(9, produce("t", 0, -1, batch(Codec::Gzip, &records))).await;
    assert_eq!(produced(&response).0, 0);
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(0, 1, 1)]);
    assert_eq!(one.settle(&[(0, 0, &[RELEASE]), (1, 1, &[ACCEPT])]).await, 0);
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(0, 0, 2)]);
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, 0);
    collector.trace(TRACE, &["publish", "ack"]).await;
    let spans = collector.spans();
    let of = |operation: &str| spans.iter().filter(|span| span.operation() == operation).collect::<Vec<_>>();
    let ends: Vec<_> = of("lease").into_iter().map(|span| span.attribute("thalweg.lease.end")).collect();
    assert_eq!(ends, [Some("returned"), Some("acked")]);
    let (leases, delivers) = (of("lease"), of("deliver"));
    assert_eq!(delivers.len(), 2, "{spans:#?}");
    for (lease, deliver) in leases.iter().zip(&delivers) {
        assert_eq!(lease.parent(), Some(deliver.id()));
        assert_eq!(deliver.attribute("messaging.consumer.group.name"), Some("g"));
        assert_eq!(deliver.attribute("messaging.destination.subscription.name"), None, "it is no queue of a user");
    }
    assert_eq!(of("ack")[0].parent(), Some(leases[1].id()));
}

/// A fetch waits for new records and for released ones.
#[tokio::test]
async fn a_fetch_waits_for_new_and_for_released_records() {
    let server = Server::start();
    let mut raw = prepared(&server, 0).await;
    let mut one = Sharer::join(&server, "one").await;
    let mut two = Sharer::join(&server, "two").await;
    let waits = one.fetch_request(&[], WAIT_MS);
    one.raw.send(1, &waits).await;
    publish(&mut raw, 0..1).await;
    let response = one.raw.answer::<ShareFetchRequest>(1).await;
    one.count_epoch(&response);
    assert_eq!(only(&response).map(given), Some(vec![(0, 0, 1)]));
    let waits = two.fetch_request(&[], WAIT_MS);
    two.raw.send(1, &waits).await;
    assert_eq!(one.settle(&[(0, 0, &[RELEASE])]).await, 0);
    let response = two.raw.answer::<ShareFetchRequest>(1).await;
    two.count_epoch(&response);
    assert_eq!(only(&response).map(given), Some(vec![(0, 0, 2)]));
    // Its connection ends and its records are released, as if it had never received them.
    let waits = one.fetch_request(&[], WAIT_MS);
    one.raw.send(1, &waits).await;
    drop(two);
    let response = one.raw.answer::<ShareFetchRequest>(1).await;
    assert_eq!(only(&response).map(given), Some(vec![(0, 0, 2)]));
}

/// An expired lock makes the record available to another member, up to the delivery limit; then it is dropped.
#[tokio::test]
async fn a_lock_ends_and_a_record_is_given_out_so_often() {
    let server = Server::start();
    let mut raw = prepared(&server, 1).await;
    for (name, value) in [("share.record.lock.duration.ms", "100"), ("share.delivery.count.limit", "2")] {
        assert_eq!(set_group(&mut raw, name, value).await, 0, "{name}");
    }
    assert_eq!(set_group(&mut raw, "share.record.lock.duration.ms", "soon").await, 40);
    assert_eq!(set_group(&mut raw, "retention.ms", "1").await, 40);
    let mut one = Sharer::join(&server, "one").await;
    let mut two = Sharer::join(&server, "two").await;
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(0, 0, 1)]);
    assert_eq!(two.fetch(&[], WAIT_MS).await, [(0, 0, 2)]);
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, INVALID_STATE, "another has it");
    publish(&mut raw, 1..2).await;
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(1, 1, 1)]);
    until("the first is dropped", async || {
        drop(one.fetch(&[], 0).await);
        position(&mut raw).await.1 >= 1
    })
    .await;
    assert_eq!(two.settle(&[(0, 0, &[ACCEPT])]).await, INVALID_STATE, "its time is over");
}

/// A session is identified by its epoch, and ends when its member ends it; its records are then released.
#[tokio::test]
async fn sessions_are_told_by_their_epochs() {
    let server = Server::start();
    drop(prepared(&server, 2).await);
    let mut one = Sharer::join(&server, "one").await;
    let mut two = Sharer::join(&server, "two").await;
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, WRONG_EPOCH, "a session does not begin so");
    one.session = 1;
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, NO_SESSION);
    assert_eq!(one.ask(one.fetch_request(&[], 0)).await.error_code, NO_SESSION);
    one.session = -1;
    assert_eq!(one.ask(one.fetch_request(&[], 0)).await.error_code, NO_SESSION);
    one.session = 0;
    assert_eq!(one.ask(one.fetch_request(&[(0, 0, ACCEPT)], 0)).await.error_code, INVALID_REQUEST);
    assert_eq!(one.fetch(&[], 0).await, [(0, 1, 1)]);
    one.session = 5;
    assert_eq!(one.ask(one.fetch_request(&[], 0)).await.error_code, WRONG_EPOCH);
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, WRONG_EPOCH);
    // The session starts again, and its member keeps its records.
    one.session = 0;
    assert_eq!(one.fetch(&[], 0).await, []);
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, 0);
    // No records of a forgotten partition.
    let forgotten = ForgottenTopic::default().with_topic_id(one.topic.topic_id).with_partitions(vec![0]);
    let request = one.fetch_request(&[(1, 1, RELEASE)], 0).with_forgotten_topics_data(vec![forgotten]);
    assert_eq!(only(&one.ask(request).await).map(given), Some(vec![]));
    assert_eq!(one.fetch(&[], 0).await, [(1, 1, 2)], "it is back");
    one.session = -1;
    let ended = one.ask(one.fetch_request(&[], WAIT_MS)).await;
    assert_eq!((ended.error_code, ended.responses.len()), (0, 0));
    assert_eq!(two.fetch(&[], WAIT_MS).await, [(1, 1, 2)], "as if the other had never had it");
    one.session = 1;
    assert_eq!(one.ask(one.fetch_request(&[], 0)).await.error_code, NO_SESSION);
}

/// Members send the epoch that they received; those that left or are unknown join again.
#[tokio::test]
async fn members_receive_their_partitions() {
    let server = Server::start();
    drop(prepared(&server, 0).await);
    let mut one = Sharer::join(&server, "one").await;
    assert_eq!((one.epoch, one.beat(None).await.assignment), (1, None));
    let two = Sharer::join(&server, "two").await;
    let told = one.beat(None).await.assignment.expect("a share").topic_partitions;
    assert_eq!((one.epoch, told[0].topic_id, &told[0].partitions), (2, one.topic.topic_id, &vec![0]), "both have it");
    one.epoch = 7;
    assert_eq!(one.beat(None).await.error_code, 110);
    one.epoch = 0;
    assert_eq!(one.beat(None).await.error_code, INVALID_REQUEST, "it names no topics to subscribe to");
    let describe = || ShareGroupDescribeRequest::default().with_group_ids(vec![group()]);
    let described = one.raw.call(1, describe()).await.groups.remove(0);
    assert_eq!((&*described.group_state, &*described.assignor_name), ("Stable", "simple"));
    let members: Vec<_> = described.members.iter().map(|member| (&*member.member_id, member.member_epoch)).collect();
    assert_eq!(members, [("one", 2), ("two", 2)]);
    one.epoch = -1;
    assert_eq!((one.beat(None).await.error_code, one.epoch), (0, -1));
    one.epoch = 2;
    assert_eq!(one.beat(None).await.error_code, 25);
    // A group has one type.
    let consumer = ConsumerGroupHeartbeatRequest::default().with_group_id(group()).with_member_id(text("c"));
    let consumer = consumer.with_rebalance_timeout_ms(30_000).with_subscribed_topic_names(Some(vec![topic("t")]));
    assert_eq!(one.raw.call(1, consumer.clone()).await.error_code, 23);
    let consumer = consumer.with_group_id(GroupId(text("consumers")));
    assert_eq!(one.raw.call(1, consumer).await.error_code, 0);
    let sharer = ShareGroupHeartbeatRequest::default().with_group_id(GroupId(text("consumers")));
    let sharer = sharer.with_member_id(text("s")).with_subscribed_topic_names(Some(vec![topic("t")]));
    assert_eq!(one.raw.call(1, sharer).await.error_code, 69);
    let list = |kind| ListGroupsRequest::default().with_types_filter(vec![text(kind)]);
    let listed = one.raw.call(5, list("share")).await.groups;
    assert_eq!(listed.iter().map(|group| &*group.group_id.0).collect::<Vec<_>>(), ["g"]);
    assert_eq!((&*listed[0].group_type, &*listed[0].protocol_type), ("Share", "share"));
    drop(two);
}

/// Accepted records stay settled after a crash, and acquired ones are redelivered when their locks expire.
#[tokio::test]
async fn settled_records_of_a_share_group_stay_settled_after_a_crash() {
    let data = tempfile::tempdir().expect("a folder");
    let set = vec![format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let mut raw = prepared(&server, 4).await;
    // Short enough for the test; on a busy machine it may be too short, and is retried.
    for (name, value) in [("share.record.lock.duration.ms", "100"), ("share.delivery.count.limit", "1000")] {
        assert_eq!(set_group(&mut raw, name, value).await, 0, "{name}");
    }
    let mut one = Sharer::join(&server, "one").await;
    until("the first three are settled in time", async || {
        drop(one.fetch(&[], 0).await);
        one.settle(&[(0, 2, &[ACCEPT, REJECT, ACCEPT])]).await == 0
    })
    .await;
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(position(&mut raw).await, (0, 3));
    let mut one = Sharer::join(&server, "one").await;
    let again = one.fetch(&[], WAIT_MS).await;
    assert_eq!((again[0].0, again[0].1, again.len()), (3, 3, 1));
    assert!(again[0].2 > 1, "{again:?}");

    // Without members it can be moved to an offset, reset, and deleted.
    let alter = |offset| {
        let partition = AlterShareGroupOffsetsRequestPartition::default().with_start_offset(offset);
        let of =
            AlterShareGroupOffsetsRequestTopic::default().with_topic_name(topic("t")).with_partitions(vec![partition]);
        AlterShareGroupOffsetsRequest::default().with_group_id(group()).with_topics(vec![of])
    };
    let forget = || {
        let of = DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(topic("t"));
        DeleteShareGroupOffsetsRequest::default().with_group_id(group()).with_topics(vec![of])
    };
    let delete = || DeleteGroupsRequest::default().with_groups_names(vec![group()]);
    assert_eq!(raw.call(0, alter(1)).await.error_code, 68);
    assert_eq!(raw.call(0, forget()).await.error_code, 68);
    assert_eq!(raw.call(2, delete()).await.results[0].error_code, 68);
    one.epoch = -1;
    assert_eq!(one.beat(None).await.error_code, 0);
    assert_eq!(raw.call(0, alter(1)).await.responses[0].partitions[0].error_code, 0);
    assert_eq!(position(&mut raw).await, (0, 1));
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(position(&mut raw).await, (0, 1));
    assert_eq!(raw.call(0, forget()).await.responses[0].error_code, 0);
    assert_eq!(raw.call(0, forget()).await.responses[0].error_code, 3);
    assert_eq!(position(&mut raw).await, (0, -1), "the group is there without a topic");
    assert_eq!(raw.call(2, delete()).await.results[0].error_code, 0);
    assert_eq!(raw.call(2, delete()).await.results[0].error_code, 69);
    assert_eq!(position(&mut raw).await.0, 69);
}

/// Kafka creates a share group whose offsets are set (`GroupMetadataManager.alterShareGroupOffsets`: "Get or create the
/// share group"), and refuses a partition that a topic does not have on its own.
#[tokio::test]
async fn a_share_group_is_created_by_setting_its_offsets() {
    let data = tempfile::tempdir().expect("a folder");
    let set = vec![format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    publish(&mut raw, 0..4).await;
    assert_eq!(position(&mut raw).await.0, 69, "there is no such group");
    let partition = |index, offset| {
        AlterShareGroupOffsetsRequestPartition::default().with_partition_index(index).with_start_offset(offset)
    };
    let alter = |name: &str, partitions| {
        let of = AlterShareGroupOffsetsRequestTopic::default().with_topic_name(topic(name)).with_partitions(partitions);
        AlterShareGroupOffsetsRequest::default().with_group_id(group()).with_topics(vec![of])
    };
    let codes = |response: &AlterShareGroupOffsetsResponse| {
        assert_eq!(response.error_code, 0, "{response:?}");
        response.responses[0].partitions.iter().map(|partition| partition.error_code).collect::<Vec<_>>()
    };
    let response = raw.call(0, alter("t", vec![partition(7, 1), partition(0, 2), partition(-1, 0)])).await;
    assert_eq!(codes(&response), [3, 0, 3]);
    assert_eq!(codes(&raw.call(0, alter("none", vec![partition(0, 1)])).await), [3]);
    assert_eq!(position(&mut raw).await, (0, 2));
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(position(&mut raw).await, (0, 2));
    let mut one = Sharer::join(&server, "one").await;
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(2, 3, 1)], "it begins where it was told to");
    // With members the whole request is refused, and so is the name of a group of another type.
    assert_eq!(raw.call(0, alter("t", vec![partition(0, 0)])).await.error_code, 68);
    let join = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text("readers")))
        .with_member_id(text("m"))
        .with_rebalance_timeout_ms(30_000)
        .with_subscribed_topic_names(Some(vec![topic("t")]))
        .with_topic_partitions(Some(Vec::new()));
    assert_eq!(raw.call(1, join).await.error_code, 0);
    let of_readers = alter("t", vec![partition(0, 0)]).with_group_id(GroupId(text("readers")));
    assert_eq!(raw.call(0, of_readers).await.error_code, 69);
}

/// An invalid topic name assigns nothing, as in consumer groups.
#[tokio::test]
async fn a_name_that_no_topic_can_have_shares_nothing() {
    let server = Server::start();
    prepared(&server, 1).await;
    let mut one = Sharer::join(&server, "one").await;
    for (name, expected) in [("not a name", 0), ("t", 1), ("..", 0)] {
        let told = one.beat(Some(name)).await;
        assert_eq!(told.error_code, 0, "{told:?}");
        assert_eq!(told.assignment.expect("all of it").topic_partitions.len(), expected, "{name}");
    }
}

/// Each settlement of a record of the topic that stores settlements would have to be stored there as well, without end.
#[tokio::test]
async fn internal_topics_are_not_shared() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(Launch { set: vec![format!("data={}", data.path().display())], ..Launch::default() });
    let mut raw = prepared(&server, 1).await;
    let mut one = Sharer::join(&server, "one").await;
    one.topic = id_of(&mut raw, "_queues").await;
    let refused = one.ask(one.fetch_request(&[], 0)).await;
    assert_eq!(only(&refused).map(|partition| partition.error_code), Some(INVALID_REQUEST));
    one.epoch = -1;
    assert_eq!(one.beat(None).await.error_code, 0);
    let partitions = vec![AlterShareGroupOffsetsRequestPartition::default().with_start_offset(1)];
    let of =
        AlterShareGroupOffsetsRequestTopic::default().with_topic_name(topic("_queues")).with_partitions(partitions);
    let alter = AlterShareGroupOffsetsRequest::default().with_group_id(group()).with_topics(vec![of]);
    assert_eq!(raw.call(0, alter).await.responses[0].partitions[0].error_code, INVALID_REQUEST);
    let mut two = Sharer::join(&server, "two").await;
    assert_eq!(two.fetch(&[], WAIT_MS).await, [(0, 0, 1)], "others are served as ever");
}

/// A topic with the name of a deleted one is a new topic: its records have no state.
#[tokio::test]
async fn a_topic_of_the_same_name_begins_anew() {
    let server = Server::start();
    let mut raw = prepared(&server, 3).await;
    let mut one = Sharer::join(&server, "one").await;
    assert_eq!(one.fetch(&[], 0).await, [(0, 2, 1)]);
    assert_eq!(one.settle(&[(0, 0, &[ACCEPT])]).await, 0);
    let delete = DeleteTopicsRequest::default().with_topic_names(vec![topic("t")]).with_timeout_ms(1000);
    assert_eq!(raw.call(5, delete).await.responses[0].error_code, 0);
    let response = one.ask(one.fetch_request(&[(1, 1, ACCEPT)], WAIT_MS)).await;
    let partition = only(&response).expect("what is wrong");
    assert_eq!((partition.error_code, partition.acknowledge_error_code), (100, 100), "nothing has this id");
    raw.create("t").await;
    publish(&mut raw, 0..2).await;
    let told = one.beat(None).await.assignment.expect("another share").topic_partitions;
    one.topic = topic_id(&mut raw).await;
    assert_eq!(told[0].topic_id, one.topic.topic_id);
    one.session = 0;
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(0, 1, 1)]);
}

/// Members need the permissions to read both the group and the topic.
#[tokio::test]
async fn share_groups_require_permissions() {
    let server = Server::with(&SET);
    let mut root = log_in(&server, "root", "r00t").await.expect("it is right");
    root.create("t").await;
    assert_eq!(set_group(&mut root, "share.auto.offset.reset", "earliest").await, 0);
    publish(&mut root, 0..1).await;
    let topic_id = topic_id(&mut root).await;
    let raw = log_in(&server, "app", "secret").await.expect("it is right");
    let mut app = Sharer { raw, id: "app", epoch: 0, session: 0, topic: topic_id };
    assert_eq!(set_group(&mut app.raw, "share.auto.offset.reset", "latest").await, 30);
    assert_eq!(app.beat(Some("t")).await.error_code, 30);
    assert_eq!(app.ask(app.fetch_request(&[], 0)).await.error_code, 30);
    assert_eq!(app.settle(&[(0, 0, &[ACCEPT])]).await, 30);
    assert_eq!(position(&mut app.raw).await.0, 30);
    let may_read = |kind, name: &str| {
        let rule = AclCreation::default().with_resource_type(kind).with_resource_name(text(name));
        let rule = rule.with_resource_pattern_type(3).with_principal(text("User:app")).with_host(text("*"));
        CreateAclsRequest::default().with_creations(vec![rule.with_operation(3).with_permission_type(3)])
    };
    root.call(3, may_read(3, "g")).await;
    assert_eq!(app.beat(Some("t")).await.error_code, 29);
    let response = app.ask(app.fetch_request(&[], WAIT_MS)).await;
    assert_eq!(only(&response).map(|partition| partition.error_code), Some(29));
    root.call(3, may_read(2, "t")).await;
    assert_eq!(app.beat(Some("t")).await.error_code, 0);
    assert_eq!(app.fetch(&[], WAIT_MS).await, [(0, 0, 1)]);
    assert_eq!(app.settle(&[(0, 0, &[ACCEPT])]).await, 0);
}

/// A share fetch that waits ends with the permission of its member, and leases nothing that comes later.
#[tokio::test]
async fn a_waiting_share_fetch_ends_with_its_permission() {
    let server = Server::with(&SET);
    let admin = server.client("tcp").await;
    let mut root = log_in(&server, "root", "r00t").await.expect("it is right");
    root.create("t").await;
    assert_eq!(set_group(&mut root, "share.auto.offset.reset", "earliest").await, 0);
    for entry in ["read group g", "read topic t"] {
        admin.create_acls(acls("User:app", entry, true)).await.expect("added");
    }
    let mut app = Sharer::join_with(log_in(&server, "app", "secret").await.expect("it is right"), "app").await;
    let request = app.fetch_request(&[], WAIT_MS);
    app.raw.send(1, &request).await;
    until("it waits", async || {
        let begun = metric(&admin, "thalweg_kafka_requests_total").await;
        begun == metric(&admin, "thalweg_kafka_requests_completed_total").await + 1
    })
    .await;
    admin.delete_acls(client::security::AclFilter::default()).await.expect("deleted");
    publish(&mut root, 0..1).await;
    let response = app.raw.answer::<ShareFetchRequest>(1).await;
    let partition = only(&response).expect("a refused partition");
    assert_eq!((partition.error_code, given(partition)), (29, Vec::new()));
    assert!(partition.records.as_ref().is_none_or(Bytes::is_empty), "{partition:?}");
    let mut other = Sharer::join_with(root, "other").await;
    assert_eq!(other.fetch(&[], WAIT_MS).await, [(0, 0, 1)], "it is delivered for the first time");
}

/// With `read_committed`, records of open or aborted transactions are not delivered.
#[tokio::test]
async fn only_committed_records_are_given_out_where_the_group_says_so() {
    let server = Server::start();
    let mut raw = prepared(&server, 0).await;
    assert_eq!(set_group(&mut raw, "share.isolation.level", "read_committed").await, 0);
    let mut one = Sharer::join(&server, "one").await;
    let name = || TransactionalId(text("id"));
    let begin =
        InitProducerIdRequest::default().with_transactional_id(Some(name())).with_transaction_timeout_ms(60_000);
    let mut begun = raw.call(3, begin.clone()).await;
    until("there is a coordinator", async || {
        begun = raw.call(3, begin.clone()).await;
        begun.error_code == 0
    })
    .await;
    for (sequence, commits) in [(0, false), (1, true)] {
        let of = AddPartitionsToTxnTopic::default().with_name(topic("t")).with_partitions(vec![0]);
        let add = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(name())
            .with_v3_and_below_producer_id(begun.producer_id)
            .with_v3_and_below_producer_epoch(begun.producer_epoch)
            .with_v3_and_below_topics(vec![of]);
        until("the transaction has begun", async || {
            let added = raw.call(1, add.clone()).await;
            added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        })
        .await;
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(b"value"), &[]).expect("a record");
        let producer = Producer { id: begun.producer_id.0, epoch: begun.producer_epoch, sequence };
        let mut batch = builder.finish_with(Codec::None, Some(producer)).expect("a record");
        batch.set_transactional();
        let request = produce("t", 0, -1, batch.into_bytes()).with_transactional_id(Some(name()));
        assert_eq!(produced(&raw.call(9, request).await).0, 0);
        assert_eq!(one.fetch(&[], 0).await, [], "it is open");
        let end = EndTxnRequest::default()
            .with_transactional_id(name())
            .with_producer_id(begun.producer_id)
            .with_producer_epoch(begun.producer_epoch)
            .with_committed(commits);
        assert_eq!(raw.call(1, end).await.error_code, 0);
    }
    // Offset 1 is the marker of the aborted transaction.
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(2, 2, 1)]);
    assert_eq!(one.settle(&[(2, 2, &[ACCEPT])]).await, 0);
    publish(&mut raw, 0..1).await;
    assert_eq!(one.fetch(&[], WAIT_MS).await, [(4, 4, 1)], "a marker is not delivered");
    assert_eq!(position(&mut raw).await, (0, 4));
}

/// A share fetch whose client has disconnected releases the connection and its descriptor, as any other fetch does. The
/// acknowledgements in the request are processed nevertheless, and the records that its member still held are
/// redelivered to others.
#[tokio::test]
async fn a_waiting_share_fetch_ends_with_its_connection_and_keeps_its_acknowledgements() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut raw = prepared(&server, 3).await;
    let mut sharer = Sharer::join(&server, "one").await;
    let got = sharer.fetch(&[], 5_000).await;
    assert_eq!(got.iter().map(|(first, last, _)| last - first + 1).sum::<i64>(), 3, "{got:?}");
    let open = metric(&client, "thalweg_kafka_connections").await;
    let request = sharer.fetch_request(&[(0, 1, 1)], 300_000);
    sharer.raw.send(1, &request).await;
    drop(sharer);
    let begin = std::time::Instant::now();
    until("it is closed", async || metric(&client, "thalweg_kafka_connections").await == open - 1).await;
    assert!(begin.elapsed() < std::time::Duration::from_secs(100), "{:?}", begin.elapsed());
    let mut other = Sharer::join(&server, "two").await;
    let given = other.fetch(&[], 60_000).await;
    assert_eq!(given.iter().map(|(first, last, _)| (*first, *last)).collect::<Vec<_>>(), [(2, 2)]);
    assert_eq!(position(&mut raw).await, (0, 2));
}
