//! Groups of Kafka's clients, alone and together with native clients.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use client::{Client, ConsumerEvent, TopicPartition, TopicSettings};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition as Assigned;
use kafka_protocol::messages::consumer_protocol_subscription::TopicPartition as Owned;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, CreateAclsRequest, DeleteGroupsRequest,
    DescribeConfigsRequest, DescribeGroupsRequest, GroupId, HeartbeatRequest, IncrementalAlterConfigsRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable};
use rustix::process::Signal;

use super::raw::{Raw, text, topic};
use super::security::{SET, log_in};
use crate::support::server::{Server, until, within};

const UNKNOWN_MEMBER: i16 = 25;
const REBALANCES: i16 = 27;
const FENCED_INSTANCE: i16 = 82;

fn group() -> GroupId {
    GroupId(text("g"))
}

fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: client::TopicName::parse(topic).expect("a name"), partition }
}

/// Encodes a message that begins with its version.
fn embedded(message: &impl Encodable, version: i16) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(version);
    message.encode(&mut bytes, version).expect("a message of this version");
    bytes.freeze()
}

/// Returns the partitions of `t` in an assignment.
fn share_of(mut bytes: Bytes) -> Vec<i32> {
    let version = bytes.get_i16();
    let share = ConsumerProtocolAssignment::decode(&mut bytes, version).expect("a share");
    assert!(bytes.is_empty());
    share.assigned_partitions.into_iter().flat_map(|of| of.partitions).collect()
}

/// Consumer with the classic protocol, as clients implement it. If it leads, it assigns all partitions in turn.
struct Member {
    raw: Raw,
    version: i16,
    id: String,
    instance: Option<&'static str>,
    session_timeout_ms: i32,
    /// `true` if it continues to read the partitions that it keeps.
    is_cooperative: bool,
    generation: i32,
    reads: Vec<i32>,
}

impl Member {
    async fn new(server: &Server, session_timeout_ms: i32) -> Self {
        Self {
            raw: Raw::connect(server).await,
            version: 9,
            id: String::new(),
            instance: None,
            session_timeout_ms,
            is_cooperative: false,
            generation: -1,
            reads: Vec::new(),
        }
    }

    fn instance(&self) -> Option<kafka_protocol::protocol::StrBytes> {
        self.instance.map(text)
    }

    fn join_request(&self) -> JoinGroupRequest {
        let owned = if self.is_cooperative && !self.reads.is_empty() {
            vec![Owned::default().with_topic(topic("t")).with_partitions(self.reads.clone())]
        } else {
            Vec::new()
        };
        let wants = ConsumerProtocolSubscription::default().with_topics(vec![text("t")]).with_owned_partitions(owned);
        let range = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(embedded(&wants, 1));
        let mut request = JoinGroupRequest::default()
            .with_group_id(group())
            .with_session_timeout_ms(self.session_timeout_ms)
            .with_member_id(text(&self.id))
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![range]);
        if self.version >= 1 {
            request = request.with_rebalance_timeout_ms(30_000);
        }
        if self.version >= 5 {
            request = request.with_group_instance_id(self.instance());
        }
        request
    }

    async fn send_join(&mut self) {
        let request = self.join_request();
        self.raw.send(self.version, &request).await;
    }

    /// Joins again with the generated id if the broker requires one.
    async fn joined(&mut self) -> JoinGroupResponse {
        let mut response = self.raw.answer::<JoinGroupRequest>(self.version).await;
        if response.error_code == 79 {
            assert!(self.version >= 4 && self.instance.is_none());
            self.id = response.member_id.to_string();
            self.send_join().await;
            response = self.raw.answer::<JoinGroupRequest>(self.version).await;
        }
        if response.error_code == 0 {
            self.id = response.member_id.to_string();
            self.generation = response.generation_id;
        }
        response
    }

    async fn send_sync(&mut self, joined: &JoinGroupResponse) {
        let members = &joined.members;
        let shares = members.iter().enumerate().map(|(number, member)| {
            let partitions = (0..4).filter(|partition| *partition as usize % members.len() == number).collect();
            let of = Assigned::default().with_topic(topic("t")).with_partitions(partitions);
            let share = ConsumerProtocolAssignment::default().with_assigned_partitions(vec![of]);
            SyncGroupRequestAssignment::default()
                .with_member_id(member.member_id.clone())
                .with_assignment(embedded(&share, 1))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(group())
            .with_generation_id(joined.generation_id)
            .with_member_id(text(&self.id))
            .with_assignments(shares.collect());
        let request = if self.version >= 5 { request.with_group_instance_id(self.instance()) } else { request };
        self.raw.send(self.sync_version(), &request).await;
    }

    fn sync_version(&self) -> i16 {
        self.version.min(5)
    }

    async fn synced(&mut self) -> Result<(), i16> {
        let response = self.raw.answer::<SyncGroupRequest>(self.sync_version()).await;
        if response.error_code != 0 {
            return Err(response.error_code);
        }
        let reads = share_of(response.assignment);
        let has_lost = self.reads.iter().any(|partition| !reads.contains(partition));
        self.reads = reads;
        if self.is_cooperative && has_lost {
            // Other members may have the partitions that it gave up.
            Box::pin(self.enter()).await;
        }
        Ok(())
    }

    /// Joins and gets its assignment, as the only member or if the broker assigns the partitions.
    async fn enter(&mut self) -> JoinGroupResponse {
        if !self.is_cooperative {
            self.reads.clear();
        }
        self.send_join().await;
        let joined = self.joined().await;
        assert_eq!(joined.error_code, 0);
        self.send_sync(&joined).await;
        self.synced().await.expect("synced");
        joined
    }

    async fn beat(&mut self) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(self.generation)
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance());
        self.raw.call(4, request).await.error_code
    }

    async fn until_rebalance(&mut self) {
        until("a rebalance", async || match self.beat().await {
            0 => false,
            code => {
                assert_eq!(code, REBALANCES);
                true
            }
        })
        .await;
    }

    async fn commit(&mut self, partition: i32, offset: i64) -> i16 {
        let request = commit_request(partition, offset)
            .with_generation_id_or_member_epoch(self.generation)
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance());
        self.raw.call(9, request).await.topics[0].partitions[0].error_code
    }

    async fn leave(&mut self) -> i16 {
        let member = MemberIdentity::default().with_member_id(text(&self.id)).with_group_instance_id(self.instance());
        let request = LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member]);
        let response = self.raw.call(5, request).await;
        assert_eq!(response.error_code, 0);
        response.members[0].error_code
    }
}

/// Returns a commit of group `g` for a partition of topic `t`.
pub fn commit_request(partition: i32, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(0)
        .with_committed_metadata(Some(text("note")));
    let of = OffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![partition]);
    OffsetCommitRequest::default().with_group_id(group()).with_topics(vec![of])
}

/// Returns the committed offset and metadata of a partition, in this version.
pub async fn committed(raw: &mut Raw, version: i16, partition: i32) -> (i64, String) {
    if version < 8 {
        let of = OffsetFetchRequestTopic::default().with_name(topic("t")).with_partition_indexes(vec![partition]);
        let request = OffsetFetchRequest::default().with_group_id(group()).with_topics(Some(vec![of]));
        let found = raw.call(version, request).await.topics[0].partitions[0].clone();
        assert_eq!(found.error_code, 0);
        return (found.committed_offset, found.metadata.map_or(String::new(), |note| note.to_string()));
    }
    let of = OffsetFetchRequestTopics::default().with_name(topic("t")).with_partition_indexes(vec![partition]);
    let of_group = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(Some(vec![of]));
    let response = raw.call(version, OffsetFetchRequest::default().with_groups(vec![of_group])).await;
    let found = response.groups[0].topics[0].partitions[0].clone();
    assert_eq!((response.groups[0].error_code, found.error_code), (0, 0));
    (found.committed_offset, found.metadata.map_or(String::new(), |note| note.to_string()))
}

async fn with_topic(server: &Server) -> Client {
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 4, ..TopicSettings::default() };
    within("create", client.create_topic("t", settings)).await.expect("created");
    client
}

/// Returns two members that share four partitions.
async fn pair(server: &Server, session_timeout_ms: i32) -> (Member, Member) {
    let mut first = Member::new(server, 30_000).await;
    first.enter().await;
    assert_eq!(first.reads, [0, 1, 2, 3]);
    let mut second = Member::new(server, session_timeout_ms).await;
    second.send_join().await;
    // It receives an id, and joins again with it.
    let named = second.raw.answer::<JoinGroupRequest>(9).await;
    assert_eq!(named.error_code, 79);
    second.id = named.member_id.to_string();
    second.send_join().await;
    first.until_rebalance().await;
    both(&mut first, &mut second).await;
    (first, second)
}

/// The first member joins, for which the second waits; then both get their assignments.
async fn both(first: &mut Member, second: &mut Member) {
    first.send_join().await;
    let leads = first.joined().await;
    let follows = second.joined().await;
    assert_eq!((leads.error_code, follows.error_code), (0, 0));
    assert_eq!((leads.generation_id, &leads.leader), (follows.generation_id, &follows.leader));
    assert_eq!(leads.members.len() + follows.members.len(), 2);
    second.send_sync(&follows).await;
    first.send_sync(&leads).await;
    first.synced().await.expect("synced");
    second.synced().await.expect("synced");
    let mut all = [first.reads.clone(), second.reads.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
}

/// Members wait for each other, in every version of the protocol.
#[tokio::test]
async fn members_share_out_in_every_version() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    for version in 0..=9 {
        let mut member = Member::new(&server, 30_000).await;
        member.version = version;
        let joined = member.enter().await;
        assert_eq!(joined.leader, joined.member_id, "{version}");
        assert_eq!(joined.protocol_name.expect("a protocol").as_str(), "range");
        assert_eq!(member.reads, [0, 1, 2, 3]);
        let beat = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(member.generation)
            .with_member_id(text(&member.id));
        assert_eq!(member.raw.call(version.min(4), beat).await.error_code, 0);
        let leave = LeaveGroupRequest::default().with_group_id(group());
        let leave = match version {
            0..=2 => leave.with_member_id(text(&member.id)),
            _ => leave.with_members(vec![MemberIdentity::default().with_member_id(text(&member.id))]),
        };
        let left = member.raw.call(version.min(5), leave).await;
        assert_eq!((left.error_code, left.members.iter().map(|member| member.error_code).sum::<i16>()), (0, 0));
        assert_eq!(member.beat().await, UNKNOWN_MEMBER);
    }
}

/// The group rebalances when a member joins, leaves, falls silent, or is silent while others wait for it.
#[tokio::test]
async fn partitions_are_assigned_to_the_current_members() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let (mut first, mut second) = pair(&server, 30_000).await;
    assert_eq!(second.leave().await, 0);
    first.until_rebalance().await;
    first.enter().await;
    assert_eq!(first.reads, [0, 1, 2, 3]);
    assert_eq!(first.leave().await, 0);

    // Without heartbeats, and without a rebalance that would reveal it.
    let (mut first, mut silent) = pair(&server, 500).await;
    first.until_rebalance().await;
    first.enter().await;
    assert_eq!(first.reads, [0, 1, 2, 3]);
    assert_eq!(silent.beat().await, UNKNOWN_MEMBER);
    assert_eq!(silent.commit(0, 0).await, UNKNOWN_MEMBER);
    assert_eq!(first.leave().await, 0);

    // Its session expires while another member has joined and waits for it.
    let (mut first, mut silent) = pair(&server, 500).await;
    first.send_join().await;
    let joined = first.joined().await;
    assert_eq!((joined.error_code, joined.members.len()), (0, 1));
    first.send_sync(&joined).await;
    first.synced().await.expect("synced");
    assert_eq!(first.reads, [0, 1, 2, 3]);
    assert_eq!(silent.beat().await, UNKNOWN_MEMBER);
    // Its generation is stale.
    first.generation -= 1;
    assert_eq!((first.beat().await, first.commit(0, 0).await), (22, 22));
}

/// A static member that restarts gets its assignment again without a rebalance, and its predecessor is fenced.
#[tokio::test]
async fn static_members_come_back() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let mut first = Member::new(&server, 30_000).await;
    first.instance = Some("i1");
    first.enter().await;
    let mut second = Member::new(&server, 30_000).await;
    second.instance = Some("i2");
    second.send_join().await;
    first.until_rebalance().await;
    both(&mut first, &mut second).await;
    let mut again = Member::new(&server, 30_000).await;
    again.instance = Some("i2");
    let joined = again.enter().await;
    assert_eq!((joined.generation_id, &again.reads), (second.generation, &second.reads));
    assert_ne!(again.id, second.id);
    assert_eq!((first.beat().await, again.beat().await), (0, 0));
    assert_eq!((second.beat().await, second.commit(0, 0).await), (FENCED_INSTANCE, FENCED_INSTANCE));
    assert_eq!(second.leave().await, FENCED_INSTANCE);
    // The leader returns: the response tells it to skip the assignment.
    let mut leader = Member::new(&server, 30_000).await;
    leader.instance = Some("i1");
    leader.send_join().await;
    let joined = leader.joined().await;
    assert!(joined.skip_assignment && joined.members.len() == 2 && joined.leader == joined.member_id);
    assert_eq!(again.beat().await, 0);
    // An administrator removes a member by its instance id.
    let gone = MemberIdentity::default().with_group_instance_id(Some(text("i2")));
    let request = LeaveGroupRequest::default().with_group_id(group()).with_members(vec![gone]);
    assert_eq!(leader.raw.call(5, request).await.members[0].error_code, 0);
    assert_eq!(again.beat().await, UNKNOWN_MEMBER);
}

/// An offset that one door commits is readable through another, with its metadata.
#[tokio::test]
async fn offsets_are_the_same_through_every_door() {
    let server = Server::start();
    let client = with_topic(&server).await;
    let mut member = Member::new(&server, 30_000).await;
    member.enter().await;
    assert_eq!(member.commit(1, 7).await, 0);
    let found = within("offsets", client.committed_offsets("g", &[])).await.expect("offsets");
    let found: Vec<_> =
        found.iter().map(|(at, committed)| (at.clone(), committed.offset, &*committed.metadata)).collect();
    assert_eq!(found, [(at("t", 1), 7, "note")]);
    let outsider = client.commit_offsets("g", &[(at("t", 2), 9)]).await;
    assert_eq!(outsider.map_err(|error| error.kind), Err(client::ErrorKind::Busy), "the group has a member");
    // A client that is not a member commits nothing, and no client commits for a nonexistent partition.
    let commit = |partition| commit_request(partition, 1);
    for version in 2..=9 {
        let code = member.raw.call(version, commit(1)).await.topics[0].partitions[0].error_code;
        assert_eq!(code, UNKNOWN_MEMBER, "{version}");
    }
    assert_eq!(member.commit(4, 7).await, 3);
    assert_eq!(member.leave().await, 0);
    for version in 2..=9 {
        let code = member.raw.call(version, commit_request(0, version.into())).await.topics[0].partitions[0].error_code;
        assert_eq!(code, 0, "{version}");
    }
    client.commit_offsets("g", &[(at("t", 2), 9)]).await.expect("committed");
    for version in 1..=9 {
        assert_eq!(committed(&mut member.raw, version, 0).await, (9, "note".into()), "{version}");
        assert_eq!(committed(&mut member.raw, version, 2).await, (9, String::new()), "{version}");
        assert_eq!(committed(&mut member.raw, version, 3).await, (-1, String::new()), "{version}");
    }
    let all = OffsetFetchRequest::default().with_group_id(group()).with_topics(None);
    assert_eq!(member.raw.call(7, all).await.topics[0].partitions.len(), 3);
    let nobody = OffsetFetchRequest::default().with_group_id(GroupId(text("nobody"))).with_topics(None);
    let nobody = member.raw.call(7, nobody).await;
    assert_eq!((nobody.error_code, nobody.topics.len()), (0, 0));
}

/// Member to which the broker assigns partitions, with the newer consumer protocol.
struct Consumer {
    raw: Raw,
    id: String,
    epoch: i32,
    reads: Vec<i32>,
}

impl Consumer {
    async fn join(server: &Server) -> Self {
        let mut consumer = Self { raw: Raw::connect(server).await, id: "newer".into(), epoch: 0, reads: Vec::new() };
        let request = consumer
            .request()
            .with_rebalance_timeout_ms(30_000)
            .with_subscribed_topic_names(Some(vec![topic("t")]))
            .with_topic_partitions(Some(Vec::new()));
        let response = consumer.raw.call(1, request).await;
        consumer.apply(&response);
        consumer
    }

    fn request(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group())
            .with_member_id(text(&self.id))
            .with_member_epoch(self.epoch)
            .with_rebalance_timeout_ms(-1)
    }

    fn apply(&mut self, response: &ConsumerGroupHeartbeatResponse) {
        assert_eq!(response.error_code, 0, "{response:?}");
        assert!(response.heartbeat_interval_ms > 0);
        self.epoch = response.member_epoch;
        if let Some(assignment) = &response.assignment {
            self.reads = assignment.topic_partitions.iter().flat_map(|of| of.partitions.clone()).collect();
        }
    }

    /// Sends a heartbeat with its partitions of this topic.
    async fn beat(&mut self, of: &TopicPartitions) {
        let owned = of.clone().with_partitions(self.reads.clone());
        let owned = if self.reads.is_empty() { Vec::new() } else { vec![owned] };
        let request = self.request().with_topic_partitions(Some(owned));
        let response = self.raw.call(1, request).await;
        self.apply(&response);
    }
}

/// Members of all kinds in one group: native ones, and both kinds of Kafka's. Each partition has one reader, and
/// another member gets the partitions that one gives up.
#[tokio::test]
async fn members_of_every_kind_share_a_group() {
    for is_cooperative in [false, true] {
        let server = Server::start();
        let client = with_topic(&server).await;
        let mut older = Member::new(&server, 30_000).await;
        older.is_cooperative = is_cooperative;
        older.enter().await;
        assert_eq!(older.reads, [0, 1, 2, 3]);
        assert_eq!(older.commit(0, 5).await, 0);
        let mut ours = within("join", client.consumer("g").topic("t").open()).await.expect("a consumer");
        assert_eq!(ours.assignment(), [], "all of it is still with the other");
        older.until_rebalance().await;
        let joined = older.enter().await;
        assert_eq!((joined.leader.as_str(), joined.members.len()), ("", 0), "the group has no leader");
        assert_eq!(older.reads.len(), 2);
        until("its share", async || {
            let event = tokio::time::timeout(Duration::from_millis(10), ours.next_event()).await;
            assert!(!matches!(event, Ok(Ok(ConsumerEvent::Batch(_)))));
            ours.assignment().len() == 2
        })
        .await;
        assert!(ours.assignment().iter().all(|at| !older.reads.contains(&(at.partition as i32))));
        // It may use the generation of its last join.
        assert_eq!((older.beat().await, older.commit(older.reads[0], 6).await), (0, 0));

        let mut newer = Consumer::join(&server).await;
        let wanted =
            kafka_protocol::messages::metadata_request::MetadataRequestTopic::default().with_name(Some(topic("t")));
        let metadata = kafka_protocol::messages::MetadataRequest::default().with_topics(Some(vec![wanted]));
        let id = newer.raw.call(12, metadata).await.topics[0].topic_id;
        let of = TopicPartitions::default().with_topic_id(id);
        until("a share for all", async || {
            let event = tokio::time::timeout(Duration::from_millis(10), ours.next_event()).await;
            assert!(!matches!(event, Ok(Ok(ConsumerEvent::Batch(_)))));
            if older.beat().await == REBALANCES {
                older.enter().await;
            }
            newer.beat(&of).await;
            !newer.reads.is_empty() && ours.assignment().len() + older.reads.len() + newer.reads.len() == 4
        })
        .await;
        let mut all = [older.reads.clone(), newer.reads.clone()].concat();
        all.extend(ours.assignment().iter().map(|at| at.partition as i32));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        let described = newer.raw.call(1, ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()])).await;
        let described = &described.groups[0];
        assert_eq!((described.error_code, described.members.len()), (0, 3));
        let mut kinds: Vec<i8> = described.members.iter().map(|member| member.member_type).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [0, 1, 1]);

        // The others leave, and the older one gets all partitions again.
        within("close", ours.close()).await.expect("closed");
        newer.epoch = -1;
        let left = newer.raw.call(1, newer.request()).await;
        assert_eq!((left.error_code, left.member_epoch), (0, -1));
        older.until_rebalance().await;
        older.enter().await;
        assert_eq!(older.reads, [0, 1, 2, 3]);
        assert_eq!(older.leave().await, 0);
    }
}

/// An invalid topic name counts as a nonexistent topic: the member is assigned none of it, and continues
/// (`KafkaApis.handleConsumerGroupHeartbeat` of Apache Kafka checks permissions, but no names).
#[tokio::test]
async fn a_name_that_no_topic_can_have_assigns_nothing() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let mut consumer = Consumer::join(&server).await;
    let names = vec!["not a name", "..", "", "a..b", "t", "_offsets", "_inbox.x"];
    for (names, expected) in [(names, 4), (vec!["not a name"], 0), (vec!["_offsets"], 0), (vec!["t"], 4)] {
        let names = Some(names.into_iter().map(topic).collect());
        let request = consumer.request().with_subscribed_topic_names(names).with_topic_partitions(Some(Vec::new()));
        let response = consumer.raw.call(1, request).await;
        consumer.apply(&response);
        assert_eq!(consumer.reads.len(), expected);
    }
    let mut other = Consumer { raw: Raw::connect(&server).await, id: "o".into(), epoch: 0, reads: vec![] };
    let names = Some(vec![topic(&"x".repeat(300))]);
    let request = other.request().with_rebalance_timeout_ms(30_000).with_subscribed_topic_names(names);
    let response = other.raw.call(1, request.with_topic_partitions(Some(Vec::new()))).await;
    other.apply(&response);
    assert!(response.assignment.is_some() && other.reads.is_empty(), "it has joined, and has nothing");
}

/// Older members in a group to which the broker assigns partitions may have invalid names as well: an invalid name
/// among others does not exclude them from the group.
#[tokio::test]
async fn a_name_that_no_topic_can_have_does_not_keep_an_older_member_out() {
    for (names, code) in [(&["not a name", "t", ".."][..], 0), (&["not a name"], 0)] {
        let server = Server::start();
        let _client = with_topic(&server).await;
        let newer = Consumer::join(&server).await;
        assert_eq!(newer.reads, [0, 1, 2, 3]);
        let mut older = Member::new(&server, 30_000).await;
        let wants = ConsumerProtocolSubscription::default().with_topics(names.iter().map(|name| text(name)).collect());
        let range = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(embedded(&wants, 1));
        // Version 3 joins without getting an id first.
        older.version = 3;
        let request = older.join_request().with_protocols(vec![range]);
        assert_eq!(older.raw.call(3, request).await.error_code, code, "{names:?}");
    }
}

/// `consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms` of a group (`GroupConfig` of Apache Kafka).
#[tokio::test]
async fn a_session_of_newer_members_lasts_as_long_as_their_group_says() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let mut consumer = Consumer::join(&server).await;
    let set = |settings: &[(&'static str, &'static str)]| {
        let config = |(name, value): &(&'static str, &'static str)| {
            AlterableConfig::default().with_name(text(name)).with_value(Some(text(value)))
        };
        let of = AlterConfigsResource::default().with_resource_type(32).with_resource_name(text("g"));
        let of = of.with_configs(settings.iter().map(config).collect());
        IncrementalAlterConfigsRequest::default().with_resources(vec![of])
    };
    let session = "consumer.session.timeout.ms";
    let heartbeat = "consumer.heartbeat.interval.ms";
    for refused in [&[(session, "1000")][..], &[(heartbeat, "45000")], &[(session, "soon")], &[(session, "0")]] {
        assert_eq!(consumer.raw.call(1, set(refused)).await.responses[0].error_code, 40, "{refused:?}");
    }
    let response = consumer.raw.call(1, set(&[(session, "300"), (heartbeat, "100")])).await;
    assert_eq!(response.responses[0].error_code, 0, "{response:?}");
    let asked = DescribeConfigsResource::default().with_resource_type(32).with_resource_name(text("g"));
    let asked = asked.with_configuration_keys(Some(vec![text(session)]));
    let described = consumer.raw.call(4, DescribeConfigsRequest::default().with_resources(vec![asked])).await;
    assert_eq!(described.results[0].configs[0].value.as_deref(), Some("300"));
    // It takes effect with the next heartbeat: the member is then silent, and removed from the group.
    let request = consumer.request();
    let response = consumer.raw.call(1, request).await;
    assert_eq!((response.error_code, response.heartbeat_interval_ms), (0, 100));
    let mut observer = Raw::connect(&server).await;
    until("it is put out", async || {
        let describe = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
        observer.call(1, describe).await.groups[0].members.is_empty()
    })
    .await;
    let request = consumer.request();
    assert_eq!(consumer.raw.call(1, request).await.error_code, UNKNOWN_MEMBER);
}

/// Errors of the newer protocol, each with its code.
#[tokio::test]
async fn members_of_the_newer_protocol_receive_specific_errors() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let mut consumer = Consumer::join(&server).await;
    assert_eq!(consumer.reads, [0, 1, 2, 3]);
    let request = consumer.request();
    for (request, code) in [
        (request.clone().with_member_epoch(consumer.epoch + 1), 110),
        (request.clone().with_member_id(text("nobody")), 25),
        (request.clone().with_group_id(GroupId(text(""))), 24),
        (request.clone().with_member_epoch(0).with_server_assignor(Some(text("mine"))), 112),
        (request.clone().with_subscribed_topic_regex(Some(text("t[0-9"))), 128),
        (request.clone().with_subscribed_topic_regex(Some(text(&"t|".repeat(5_000)))), 128),
        (request.clone(), 0),
    ] {
        let response = consumer.raw.call(1, request).await;
        assert_eq!(response.error_code, code, "{response:?}");
        assert_eq!(response.error_message.is_some(), code != 0);
    }
    let commit = |epoch, partition| {
        commit_request(partition, 1).with_member_id(text("newer")).with_generation_id_or_member_epoch(epoch)
    };
    for (request, code) in [(commit(consumer.epoch, 0), 0), (commit(consumer.epoch - 1, 0), 113)] {
        assert_eq!(consumer.raw.call(9, request).await.topics[0].partitions[0].error_code, code);
    }
    // An older member with unreadable metadata cannot be in a group with it.
    let mut connect = Member::new(&server, 30_000).await;
    let protocol =
        JoinGroupRequestProtocol::default().with_name(text("sessioned")).with_metadata(Bytes::from_static(b"x"));
    let request = connect.join_request().with_protocol_type(text("connect")).with_protocols(vec![protocol]);
    assert_eq!(connect.raw.call(9, request).await.error_code, 23);
    // Offsets are readable for members with this epoch, and for clients that are not members.
    let fetch = |id: Option<&'static str>, epoch| {
        let of = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
        let of = of.with_member_id(id.map(text)).with_member_epoch(epoch);
        OffsetFetchRequest::default().with_groups(vec![of])
    };
    for (request, code) in [
        (fetch(Some("newer"), consumer.epoch), 0),
        (fetch(Some("newer"), consumer.epoch + 1), 113),
        (fetch(Some("nobody"), consumer.epoch), UNKNOWN_MEMBER),
        (fetch(None, -1), 0),
    ] {
        assert_eq!(consumer.raw.call(9, request).await.groups[0].error_code, code);
    }
    // Subscribed with a regular expression, which matches whole names.
    let topics = |regex| consumer.request().with_subscribed_topic_names(None).with_subscribed_topic_regex(Some(regex));
    let requests = [topics(text("[a-s]|t+x")), topics(text("x|[s-u]"))];
    for (request, count) in requests.into_iter().zip([0, 4]) {
        let response = consumer.raw.call(1, request.with_topic_partitions(Some(Vec::new()))).await;
        consumer.apply(&response);
        assert_eq!(consumer.reads.len(), count);
    }
    let describe = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    let described = consumer.raw.call(1, describe).await.groups.remove(0).members.remove(0);
    assert_eq!(described.subscribed_topic_regex.as_deref(), Some("x|[s-u]"));
    assert_eq!(described.subscribed_topic_names.len(), 0);
}

/// A live static member of the newer protocol is not replaced; one that left temporarily is.
#[tokio::test]
async fn newer_static_members_do_not_replace_each_other() {
    let server = Server::start();
    let _client = with_topic(&server).await;
    let mut first = Consumer::join(&server).await;
    let of = |consumer: &Consumer, epoch| {
        let request = consumer.request().with_member_epoch(epoch).with_instance_id(Some(text("i")));
        let topics = Some(vec![topic("t")]);
        let request = request.with_rebalance_timeout_ms(30_000).with_subscribed_topic_names(topics);
        request.with_topic_partitions(Some(Vec::new()))
    };
    first.id = "first".into();
    let joined = first.raw.call(1, of(&first, 0)).await;
    first.apply(&joined);
    let again = of(&first, 0).with_member_id(text("second"));
    assert_eq!(first.raw.call(1, again.clone()).await.error_code, 111);
    let away = of(&first, -2).with_topic_partitions(None);
    assert_eq!(first.raw.call(1, away).await.error_code, 0);
    assert_eq!(first.raw.call(1, again).await.error_code, 0);
    let beat = of(&first, first.epoch);
    assert_eq!(first.raw.call(1, beat).await.error_code, FENCED_INSTANCE);
}

/// Groups are listed, described and deleted, and so are unused offsets.
#[tokio::test]
async fn groups_are_shown_and_deleted() {
    let server = Server::start();
    let client = with_topic(&server).await;
    client.create_topic("old", TopicSettings::default()).await.expect("created");
    client.commit_offsets("g", &[(at("old", 0), 0), (at("t", 0), 0)]).await.expect("committed");
    let (mut first, second) = pair(&server, 30_000).await;
    let mut raw = Raw::connect(&server).await;
    for version in 0..=5 {
        let listed = raw.call(version, ListGroupsRequest::default()).await.groups;
        assert_eq!((listed.len(), listed[0].group_id.as_str(), listed[0].protocol_type.as_str()), (1, "g", "consumer"));
        if version == 5 {
            assert_eq!((listed[0].group_state.as_str(), listed[0].group_type.as_str()), ("Stable", "Classic"));
        }
    }
    let empty = ListGroupsRequest::default().with_states_filter(vec![text("Empty")]);
    assert_eq!(raw.call(5, empty).await.groups.len(), 0);
    // Kafka compares the names without their case. Many of them are no work for each group.
    let many = (0..100_000).map(|number| text(&format!("x{number}"))).chain([text("sTABLE")]);
    let stable = ListGroupsRequest::default().with_states_filter(many.collect());
    assert_eq!(raw.call(5, stable).await.groups.len(), 1);
    let consumer = ListGroupsRequest::default().with_types_filter(vec![text("consumer")]);
    assert_eq!(raw.call(5, consumer).await.groups.len(), 0);
    for version in 0..=6 {
        let ask = DescribeGroupsRequest::default().with_groups(vec![group(), GroupId(text("nobody"))]);
        let described = raw.call(version, ask).await.groups;
        assert_eq!(described[0].error_code, 0);
        assert_eq!((described[0].group_state.as_str(), described[0].protocol_data.as_str()), ("Stable", "range"));
        assert_eq!(described[0].members.len(), 2);
        for member in &described[0].members {
            let reads = if *member.member_id == *first.id { &first.reads } else { &second.reads };
            assert_eq!(&share_of(member.member_assignment.clone()), reads);
            assert_eq!((member.client_id.as_str(), member.client_host.as_str()), ("raw", "/127.0.0.1"));
        }
        let expected = if version < 6 { 0 } else { 69 };
        assert_eq!((described[1].error_code, described[1].group_state.as_str()), (expected, "Dead"));
    }
    let ask = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    assert_eq!(raw.call(1, ask).await.groups[0].error_code, 69, "tools then ask the older way");
    let info = client.describe_group("g").await.expect("a group");
    assert_eq!((info.members.len(), info.members[0].client.as_str()), (2, "raw at 127.0.0.1"));

    let of = |name, partitions: &[i32]| {
        let partition = |index: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*index);
        OffsetDeleteRequestTopic::default()
            .with_name(topic(name))
            .with_partitions(partitions.iter().map(partition).collect())
    };
    let request =
        OffsetDeleteRequest::default().with_group_id(group()).with_topics(vec![of("old", &[0, 1]), of("t", &[0])]);
    let deleted = raw.call(0, request).await;
    let codes = deleted.topics.iter().flat_map(|of| &of.partitions).map(|partition| partition.error_code);
    assert_eq!((deleted.error_code, codes.collect::<Vec<_>>()), (0, vec![0, 3, 86]));
    let left = client.committed_offsets("g", &[]).await.expect("offsets");
    assert_eq!(left.into_iter().map(|(at, _)| at).collect::<Vec<_>>(), [at("t", 0)]);

    let delete = || DeleteGroupsRequest::default().with_groups_names(vec![group(), GroupId(text("nobody"))]);
    let codes = |results: Vec<kafka_protocol::messages::delete_groups_response::DeletableGroupResult>| {
        results.into_iter().map(|result| result.error_code).collect::<Vec<_>>()
    };
    assert_eq!(codes(raw.call(2, delete()).await.results), [68, 69]);
    let members = [&first.id, &second.id].map(|id| MemberIdentity::default().with_member_id(text(id)));
    let leave = LeaveGroupRequest::default().with_group_id(group()).with_members(members.to_vec());
    assert_eq!(first.raw.call(4, leave).await.members.len(), 2);
    let ask = DescribeGroupsRequest::default().with_groups(vec![group()]);
    assert_eq!(raw.call(6, ask).await.groups[0].group_state.as_str(), "Empty");
    assert_eq!(codes(raw.call(2, delete()).await.results), [0, 69]);
    assert_eq!(raw.call(5, ListGroupsRequest::default()).await.groups.len(), 0);
}

/// A broker on disk restores offsets, members and generations after a crash, as Kafka's coordinator does when it
/// loads a group (`GroupMetadataManager.loadGroup`).
#[tokio::test]
async fn a_restart_keeps_offsets_members_and_generations() {
    let data = tempfile::tempdir().expect("a folder");
    let mut server = Server::with(&[&format!("data={}", data.path().display())]);
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 4, storage: client::Storage::Disk, ..TopicSettings::default() };
    client.create_topic("t", settings).await.expect("created");
    let mut member = Member::new(&server, 30_000).await;
    member.enter().await;
    assert_eq!(member.commit(2, 3).await, 0);
    server.crash_and_restart();
    member.raw = Raw::connect(&server).await;
    assert_eq!(committed(&mut member.raw, 9, 2).await, (3, "note".into()));
    // The member did not notice.
    assert_eq!((member.beat().await, member.commit(2, 4).await), (0, 0));
    assert_eq!(committed(&mut member.raw, 9, 2).await, (4, "note".into()));
    let before = member.generation;
    member.enter().await;
    assert!(member.generation > before);
    // A group that all have left has no members after a restart.
    assert_eq!(member.leave().await, 0);
    server.crash_and_restart();
    member.raw = Raw::connect(&server).await;
    assert_eq!(member.beat().await, UNKNOWN_MEMBER);
    assert_eq!(committed(&mut member.raw, 9, 2).await, (4, "note".into()));
}

/// Access control lists apply to groups, and a refusal does not reveal what exists.
#[tokio::test]
async fn groups_are_for_those_that_lists_allow() {
    let server = Server::with(&SET);
    let mut root = log_in(&server, "root", "r00t").await.expect("it is right");
    root.create("t").await;
    let mut app = Member {
        raw: log_in(&server, "app", "secret").await.expect("it is right"),
        ..Member::new(&server, 30_000).await
    };
    app.send_join().await;
    assert_eq!(app.raw.answer::<JoinGroupRequest>(9).await.error_code, 30);
    assert_eq!((app.beat().await, app.commit(0, 1).await), (30, 30));
    // The oldest version has room for the code only in each partition.
    let of = OffsetFetchRequestTopic::default().with_name(topic("t")).with_partition_indexes(vec![0]);
    let oldest = OffsetFetchRequest::default().with_group_id(group()).with_topics(Some(vec![of]));
    assert_eq!(app.raw.call(1, oldest).await.topics[0].partitions[0].error_code, 30);
    let sync = SyncGroupRequest::default().with_group_id(group());
    assert_eq!(app.raw.call(5, sync).await.error_code, 30);
    assert_eq!(app.raw.call(5, LeaveGroupRequest::default().with_group_id(group())).await.error_code, 30);
    let all = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
    let all = || OffsetFetchRequest::default().with_groups(vec![all.clone()]);
    assert_eq!(app.raw.call(9, all()).await.groups[0].error_code, 30);
    let beat = ConsumerGroupHeartbeatRequest::default().with_group_id(group()).with_member_id(text("m"));
    assert_eq!(app.raw.call(1, beat).await.error_code, 30);
    let describe = || DescribeGroupsRequest::default().with_groups(vec![group()]);
    assert_eq!(app.raw.call(6, describe()).await.groups[0].error_code, 30);
    let describe_newer = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    assert_eq!(app.raw.call(1, describe_newer).await.groups[0].error_code, 30);
    let delete = || DeleteGroupsRequest::default().with_groups_names(vec![group()]);
    assert_eq!(app.raw.call(2, delete()).await.results[0].error_code, 30);
    assert_eq!(app.raw.call(0, OffsetDeleteRequest::default().with_group_id(group())).await.error_code, 30);

    let may_read = |kind, name: &str| {
        AclCreation::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_resource_pattern_type(3)
            .with_principal(text("User:app"))
            .with_host(text("*"))
            .with_operation(3)
            .with_permission_type(3)
    };
    root.call(3, CreateAclsRequest::default().with_creations(vec![may_read(3, "g")])).await;
    app.enter().await;
    assert_eq!(app.commit(0, 1).await, 29, "it may not read the topic");
    root.call(3, CreateAclsRequest::default().with_creations(vec![may_read(2, "t")])).await;
    assert_eq!((app.commit(0, 1).await, app.beat().await), (0, 0));
    assert_eq!(app.raw.call(9, all()).await.groups[0].topics[0].partitions.len(), 1);
    let described = app.raw.call(6, describe().with_include_authorized_operations(true)).await.groups;
    // The permission to read includes the one to describe.
    assert_eq!((described[0].error_code, described[0].authorized_operations), (0, 1 << 3 | 1 << 8));
    assert_eq!(app.raw.call(5, ListGroupsRequest::default()).await.groups.len(), 1);
    assert_eq!(app.raw.call(2, delete()).await.results[0].error_code, 30, "it may not delete");

    // A regular expression matches only topics that its member may see, and members with other topics are hidden from
    // it.
    assert_eq!(app.leave().await, 0);
    root.create("hidden").await;
    let describe = || ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    let join = |member| {
        let request = ConsumerGroupHeartbeatRequest::default().with_group_id(group()).with_member_id(text(member));
        request.with_rebalance_timeout_ms(30_000).with_subscribed_topic_regex(Some(text(".*")))
    };
    let joined = app.raw.call(1, join("m")).await;
    assert_eq!(joined.assignment.expect("a share").topic_partitions.len(), 1);
    assert_eq!(app.raw.call(1, describe()).await.groups[0].error_code, 0);
    assert_eq!(root.call(1, join("r")).await.error_code, 0);
    let described = app.raw.call(1, describe()).await.groups.remove(0);
    assert_eq!((described.error_code, described.members.len()), (29, 0));
    assert_eq!(root.call(1, describe()).await.groups[0].members.len(), 2);

    // A user that may describe the cluster sees all groups.
    let other = join("r").with_group_id(GroupId(text("other")));
    assert_eq!(root.call(1, other).await.error_code, 0);
    assert_eq!(app.raw.call(5, ListGroupsRequest::default()).await.groups.len(), 1);
    let may_see_cluster = may_read(4, "kafka-cluster").with_operation(8);
    root.call(3, CreateAclsRequest::default().with_creations(vec![may_see_cluster])).await;
    assert_eq!(app.raw.call(5, ListGroupsRequest::default()).await.groups.len(), 2);
}

/// A broker that shuts down does not wait for members that wait for each other.
#[tokio::test]
async fn members_that_wait_do_not_hold_up_the_end() {
    let mut server = Server::with(&["shutdown_timeout_ms=600000"]);
    drop(with_topic(&server).await);
    let mut first = Member::new(&server, 30_000).await;
    first.enter().await;
    let mut second = Member::new(&server, 30_000).await;
    second.version = 3;
    second.send_join().await;
    first.until_rebalance().await;
    server.signal(Signal::TERM);
    assert_eq!(second.joined().await.error_code, 15);
    assert!(server.ended().await.success());
}
