//! Tenants at the Kafka door. The codec of the messages is not the broker's.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use doors::kafka::Settings;
use engine::{BatchBuilder, RecordBatch};
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::share_fetch_request::{FetchPartition as SharePartition, FetchTopic as ShareTopic};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, ConsumerProtocolAssignment, ConsumerProtocolSubscription, CreateAclsRequest,
    CreateTopicsRequest, DeleteAclsRequest, DeleteTopicsRequest, DescribeAclsRequest, DescribeClientQuotasRequest,
    DescribeGroupsRequest, DescribeLogDirsRequest, DescribeUserScramCredentialsRequest, EndTxnRequest, FetchRequest,
    FindCoordinatorRequest, GroupId, InitProducerIdRequest, JoinGroupRequest, ListGroupsRequest,
    ListTransactionsRequest, MetadataRequest, OffsetDeleteRequest, ProduceRequest, RequestHeader, ResponseHeader,
    SaslAuthenticateRequest, SaslHandshakeRequest, ShareFetchRequest, ShareGroupHeartbeatRequest, SyncGroupRequest,
    TopicName, TransactionalId,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Server;

/// Maximum time of a response, which only a failure takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Codes of Kafka (<https://kafka.apache.org/protocol#protocol_error_codes>).
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
const CLUSTER_AUTHORIZATION_FAILED: i16 = 31;
const INVALID_REGULAR_EXPRESSION: i16 = 128;
const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;
const UNKNOWN_TOPIC_ID: i16 = 100;

async fn start() -> Server {
    super::start(Settings {
        advertised: None,
        hello_timeout: Duration::from_secs(30),
        allow_plain: true,
        is_login_required: true,
    })
    .await
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

fn group(name: &str) -> GroupId {
    GroupId(text(name))
}

/// Connection that is logged in.
struct Raw {
    stream: TcpStream,
    correlation: i32,
}

impl Raw {
    /// Logs in with PLAIN, as a user whose password is its name.
    async fn log_in(server: &Server, user: &str) -> Self {
        let stream = TcpStream::connect(server.address).await.expect("the door is open");
        let mut raw = Self { stream, correlation: 0 };
        let shake = SaslHandshakeRequest::default().with_mechanism(text("PLAIN"));
        assert_eq!(raw.call(1, shake).await.error_code, 0);
        let bytes = Bytes::from(format!("\0{user}\0{user}"));
        assert_eq!(raw.call(2, SaslAuthenticateRequest::default().with_auth_bytes(bytes)).await.error_code, 0);
        raw
    }

    async fn call<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("raw")));
        let mut frame = BytesMut::zeroed(4);
        header.encode(&mut frame, R::header_version(version)).expect("a header");
        request.encode(&mut frame, version).expect("a request of this version");
        let length = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&frame).await.expect("sent");
        let answer = async {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length).await.expect("a response");
            let mut frame = vec![0; (&length[..]).get_i32() as usize];
            self.stream.read_exact(&mut frame).await.expect("a response");
            frame
        };
        let mut frame = Bytes::from(tokio::time::timeout(PATIENCE, answer).await.expect("a response in time"));
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("a header");
        let response = R::Response::decode(&mut frame, version).expect("a response of this version");
        assert!(frame.is_empty());
        response
    }

    async fn create(&mut self, name: &str, partitions: i32) {
        let wanted =
            CreatableTopic::default().with_name(topic(name)).with_num_partitions(partitions).with_replication_factor(1);
        let created = self.call(7, CreateTopicsRequest::default().with_topics(vec![wanted])).await;
        let created = &created.topics[0];
        assert_eq!((created.error_code, created.name.as_str()), (0, name), "{created:?}");
    }

    /// Returns the names of all topics that are not the broker's own, with their numbers of partitions.
    async fn topics(&mut self) -> Vec<(String, usize)> {
        let all = self.call(12, MetadataRequest::default().with_topics(None)).await;
        let shown = all.topics.iter().filter(|it| !it.is_internal);
        shown.map(|it| (it.name.as_deref().expect("a name").to_string(), it.partitions.len())).collect()
    }

    async fn produce(&mut self, name: &str, value: &str) -> (String, i16, Option<String>) {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a record");
        let batch = builder.finish().expect("a batch").into_bytes();
        let data = PartitionProduceData::default().with_records(Some(batch));
        let data = TopicProduceData::default().with_name(topic(name)).with_partition_data(vec![data]);
        let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(1000).with_topic_data(vec![data]);
        let response = self.call(9, request).await;
        let of = &response.responses[0];
        let partition = &of.partition_responses[0];
        (of.name.to_string(), partition.error_code, partition.error_message.as_deref().map(str::to_owned))
    }

    /// Returns the name in the response, the code and the values of all records of partition 0.
    async fn fetch(&mut self, name: &str) -> (String, i16, Vec<String>) {
        let partition = FetchPartition::default().with_partition_max_bytes(1 << 20).with_current_leader_epoch(-1);
        let wanted = FetchTopic::default().with_topic(topic(name)).with_partitions(vec![partition]);
        let request = FetchRequest::default().with_max_bytes(1 << 20).with_topics(vec![wanted]);
        let response = self.call(12, request).await;
        let of = &response.responses[0];
        let mut bytes = of.partitions[0].records.clone().unwrap_or_default();
        let mut values = Vec::new();
        while bytes.len() > 12 {
            let length = 12 + u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
            let batch = RecordBatch::parse(bytes.split_to(length)).expect("a batch");
            let records = batch.records().expect("readable");
            let value =
                |record: engine::RecordView<'_>| String::from_utf8_lossy(record.value.unwrap_or_default()).into();
            values.extend(records.iter().map(|record| value(record.expect("a record"))));
        }
        (of.topic.to_string(), of.partitions[0].error_code, values)
    }
}

#[tokio::test]
async fn topics_of_tenants_have_the_same_names_and_other_records() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut bob = Raw::log_in(&server, "bob").await;
    let mut root = Raw::log_in(&server, "root").await;
    ann.create("orders", 1).await;
    bob.create("orders", 3).await;
    bob.create("plans", 1).await;
    root.create("orders", 2).await;
    let own = |shown: &[(&str, usize)]| shown.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>();
    assert_eq!(ann.topics().await, own(&[("orders", 1)]));
    assert_eq!(bob.topics().await, own(&[("orders", 3), ("plans", 1)]));
    let all = [("acme.orders", 1), ("globex.orders", 3), ("globex.plans", 1), ("orders", 2)];
    assert_eq!(root.topics().await, own(&all));
    for (raw, value) in [(&mut ann, "a"), (&mut bob, "b"), (&mut root, "r")] {
        assert_eq!(raw.produce("orders", value).await, ("orders".to_owned(), 0, None));
        assert_eq!(raw.fetch("orders").await, ("orders".to_owned(), 0, vec![value.to_owned()]));
    }
    assert_eq!(root.fetch("acme.orders").await, ("acme.orders".to_owned(), 0, vec!["a".to_owned()]));
    // The other tenant's name is one of the tenant's own, and there is no such topic.
    for name in ["globex.orders", "plans", "acme.orders"] {
        let (named, code, why) = ann.produce(name, "x").await;
        assert_eq!((named.as_str(), code), (name, UNKNOWN_TOPIC_OR_PARTITION));
        assert_eq!(why.as_deref(), Some(&*format!("there is no topic '{name}'")));
        assert_eq!(ann.fetch(name).await, (name.to_owned(), UNKNOWN_TOPIC_OR_PARTITION, Vec::new()));
    }
    // A topic that the request for its metadata creates.
    let wanted = MetadataRequestTopic::default().with_name(Some(topic("globex.orders")));
    let request = MetadataRequest::default().with_topics(Some(vec![wanted])).with_allow_auto_topic_creation(true);
    let created = &ann.call(12, request).await.topics[0];
    assert_eq!((created.error_code, created.name.as_deref().map(|name| &**name)), (0, Some("globex.orders")));
    assert!(server.broker.has_topic("acme.globex.orders"));
}

#[tokio::test]
async fn the_id_of_a_topic_of_another_tenant_is_unknown() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut bob = Raw::log_in(&server, "bob").await;
    bob.create("plans", 1).await;
    ann.create("orders", 1).await;
    let ids = |all: kafka_protocol::messages::MetadataResponse| all.topics[0].topic_id;
    let foreign = ids(bob.call(12, MetadataRequest::default().with_topics(None)).await);
    let own = ids(ann.call(12, MetadataRequest::default().with_topics(None)).await);
    for (id, code, name) in [(foreign, UNKNOWN_TOPIC_ID, None), (own, 0, Some("orders"))] {
        let wanted = MetadataRequestTopic::default().with_topic_id(id).with_name(None);
        let found = ann.call(12, MetadataRequest::default().with_topics(Some(vec![wanted]))).await;
        let found = &found.topics[0];
        assert_eq!((found.error_code, found.name.as_deref().map(|name| &**name)), (code, name));
    }
    // A member of a share group.
    let joining = ShareGroupHeartbeatRequest::default()
        .with_group_id(group("sharers"))
        .with_member_id(text("member"))
        .with_subscribed_topic_names(Some(vec![topic("orders")]));
    assert_eq!(ann.call(1, joining).await.error_code, 0);
    let wanted = |id| ShareTopic::default().with_topic_id(id).with_partitions(vec![SharePartition::default()]);
    let request = ShareFetchRequest::default()
        .with_group_id(Some(group("sharers")))
        .with_member_id(Some(text("member")))
        .with_max_bytes(1 << 20)
        .with_max_records(10)
        .with_topics(vec![wanted(foreign)]);
    let fetched = ann.call(1, request).await;
    assert_eq!((fetched.error_code, fetched.responses[0].partitions[0].error_code), (0, UNKNOWN_TOPIC_ID));
    let deletes = |id| DeleteTopicState::default().with_topic_id(id).with_name(None);
    for (id, code, name) in [(foreign, UNKNOWN_TOPIC_ID, None), (own, 0, Some("orders"))] {
        let request = DeleteTopicsRequest::default().with_topics(vec![deletes(id)]);
        let deleted = ann.call(6, request).await;
        let deleted = &deleted.responses[0];
        assert_eq!((deleted.error_code, deleted.name.as_deref().map(|name| &**name)), (code, name));
    }
    assert!(server.broker.has_topic("globex.plans") && !server.broker.has_topic("acme.orders"));
}

/// Encodes a message that begins with its version.
fn embedded(message: &impl Encodable, version: i16) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(version);
    message.encode(&mut bytes, version).expect("a message of this version");
    bytes.freeze()
}

/// Members exchange their metadata and assignments as they send them, and the broker knows which topics they are about.
#[tokio::test]
async fn members_of_classic_groups_use_the_names_of_their_tenant() {
    let server = start().await;
    let subscription = ConsumerProtocolSubscription::default().with_topics(vec![text("orders")]);
    let metadata = embedded(&subscription, 0);
    let assigned = AssignedTopic::default().with_topic(topic("orders")).with_partitions(vec![0]);
    let assignment = embedded(&ConsumerProtocolAssignment::default().with_assigned_partitions(vec![assigned]), 0);
    for user in ["ann", "bob"] {
        let mut raw = Raw::log_in(&server, user).await;
        raw.create("orders", 1).await;
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(metadata.clone());
        let join = JoinGroupRequest::default()
            .with_group_id(group("readers"))
            .with_session_timeout_ms(30_000)
            .with_rebalance_timeout_ms(30_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        // In version 3, a member joins at once.
        let joined = raw.call(3, join).await;
        assert_eq!((joined.error_code, joined.members.len()), (0, 1), "{user}: {joined:?}");
        assert_eq!((&joined.members[0].metadata, &joined.leader), (&metadata, &joined.member_id));
        let given = SyncGroupRequestAssignment::default()
            .with_member_id(joined.member_id.clone())
            .with_assignment(assignment.clone());
        let sync = SyncGroupRequest::default()
            .with_group_id(group("readers"))
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone())
            .with_assignments(vec![given]);
        let synced = raw.call(3, sync).await;
        assert_eq!((synced.error_code, &synced.assignment), (0, &assignment));
        let described = raw.call(5, DescribeGroupsRequest::default().with_groups(vec![group("readers")])).await;
        let described = &described.groups[0];
        assert_eq!((described.error_code, described.group_id.as_str(), described.members.len()), (0, "readers", 1));
        assert_eq!(described.members[0].member_metadata, metadata);
        // The broker has read the subscription: the offsets of its topic are in use.
        let partitions = vec![OffsetDeleteRequestPartition::default()];
        let of = OffsetDeleteRequestTopic::default().with_name(topic("orders")).with_partitions(partitions);
        let delete = OffsetDeleteRequest::default().with_group_id(group("readers")).with_topics(vec![of]);
        let deleted = raw.call(0, delete).await;
        let deleted = &deleted.topics[0];
        assert_eq!((deleted.name.as_str(), deleted.partitions[0].error_code), ("orders", GROUP_SUBSCRIBED_TO_TOPIC));
        let listed = raw.call(4, ListGroupsRequest::default()).await;
        let listed: Vec<&str> = listed.groups.iter().map(|it| it.group_id.as_str()).collect();
        assert_eq!(listed, ["readers"]);
    }
    let mut root = Raw::log_in(&server, "root").await;
    let listed = root.call(4, ListGroupsRequest::default()).await;
    let listed: Vec<&str> = listed.groups.iter().map(|it| it.group_id.as_str()).collect();
    assert_eq!(listed, ["acme.readers", "globex.readers"]);
}

async fn beat(raw: &mut Raw, name: &str, regex: &str, epoch: i32) -> ConsumerGroupHeartbeatResponse {
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group(name))
        .with_member_id(text("member"))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(30_000)
        .with_subscribed_topic_regex(Some(text(regex)))
        .with_topic_partitions((epoch == 0).then(Vec::new));
    raw.call(1, request).await
}

/// From KIP-848: a member may subscribe to a regular expression, which the broker matches with the names of topics.
#[tokio::test]
async fn a_regular_expression_matches_the_names_as_the_client_sees_them() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut bob = Raw::log_in(&server, "bob").await;
    for name in ["orders", "bills"] {
        ann.create(name, 1).await;
    }
    bob.create("orders-plans", 1).await;
    for (at, (regex, topics)) in
        [(".*", 2), ("orders", 1), ("acme.*", 0), ("acme\\.orders", 0), ("orders.*|b.*", 2)].into_iter().enumerate()
    {
        let joined = beat(&mut ann, &format!("g{at}"), regex, 0).await;
        assert_eq!(joined.error_code, 0, "{joined:?}");
        let assigned = joined.assignment.map_or(0, |assignment| assignment.topic_partitions.len());
        assert_eq!(assigned, topics, "{regex}");
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group(&format!("g{at}"))]);
        let described = ann.call(1, request).await;
        let member = &described.groups[0].members[0];
        assert_eq!(member.subscribed_topic_regex.as_deref(), Some(regex));
        let shown = member.assignment.topic_partitions.iter().all(|of| ["orders", "bills"].contains(&&**of.topic_name));
        assert!(shown, "{member:?}");
    }
    let refused = beat(&mut ann, "wrong", "orders)|(?:.*", 0).await;
    assert_eq!(refused.error_code, INVALID_REGULAR_EXPRESSION, "{refused:?}");
}

#[tokio::test]
async fn transactional_ids_of_tenants_do_not_fence_each_other() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut bob = Raw::log_in(&server, "bob").await;
    let id = || TransactionalId(text("tx"));
    let init = || {
        InitProducerIdRequest::default()
            .with_transactional_id(Some(id()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1)
    };
    let first = ann.call(4, init()).await;
    let other = bob.call(4, init()).await;
    assert_eq!((first.error_code, other.error_code, other.producer_epoch), (0, 0, 0));
    assert_ne!(first.producer_id, other.producer_id);
    let again = ann.call(4, init()).await;
    assert_eq!((again.producer_id, again.producer_epoch), (first.producer_id, 1));
    let end = EndTxnRequest::default().with_transactional_id(id()).with_producer_id(other.producer_id);
    // The producer of the other tenant has another id: that of ann's transaction is not its own.
    assert_ne!(ann.call(3, end).await.error_code, 0);
    for raw in [&mut ann, &mut bob] {
        let listed = raw.call(1, ListTransactionsRequest::default().with_duration_filter(-1)).await;
        let listed: Vec<&str> = listed.transaction_states.iter().map(|it| it.transactional_id.as_str()).collect();
        assert_eq!(listed, ["tx"]);
    }
    let keys = vec![text("tx")];
    let found = ann.call(4, FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(keys)).await;
    assert_eq!((found.coordinators[0].error_code, found.coordinators[0].key.as_str()), (0, "tx"));
}

/// Name, type of the pattern and principal of each entry that a client sees.
async fn entries(raw: &mut Raw, name: Option<&str>, pattern_type: i8) -> Vec<(String, i8, String)> {
    let request = DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(name.map(text))
        .with_pattern_type_filter(pattern_type)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let described = raw.call(3, request).await;
    assert_eq!(described.error_code, 0, "{described:?}");
    let of = |it: &kafka_protocol::messages::describe_acls_response::DescribeAclsResource| {
        (it.resource_name.to_string(), it.pattern_type, it.acls[0].principal.to_string())
    };
    described.resources.iter().map(of).collect()
}

/// Types of patterns: any, the ones that cover a name, literal, prefixed.
const ANY: i8 = 1;
const COVERING: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;

#[tokio::test]
async fn entries_about_all_names_are_about_those_of_the_tenant() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut bob = Raw::log_in(&server, "bob").await;
    let mut root = Raw::log_in(&server, "root").await;
    let creation = |kind: i8, name: &str, pattern_type: i8, principal: &str| {
        AclCreation::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_resource_pattern_type(pattern_type)
            .with_principal(text(principal))
            .with_host(text("*"))
            .with_operation(3)
            .with_permission_type(3)
    };
    for (raw, principal) in [(&mut ann, "User:a"), (&mut bob, "User:b"), (&mut root, "User:r")] {
        let creations = [("*", LITERAL), ("orders", LITERAL), ("ord", PREFIXED)]
            .map(|(name, pattern_type)| creation(2, name, pattern_type, principal));
        let created = raw.call(3, CreateAclsRequest::default().with_creations(creations.to_vec())).await;
        assert!(created.results.iter().all(|result| result.error_code == 0), "{created:?}");
    }
    let named = |principal: &str, entries: &[(&str, i8)]| {
        let of = |(name, pattern_type): &(&str, i8)| ((*name).to_owned(), *pattern_type, principal.to_owned());
        entries.iter().map(of).collect::<Vec<_>>()
    };
    for (raw, principal) in [(&mut ann, "User:a"), (&mut bob, "User:b")] {
        let mut all = entries(raw, None, ANY).await;
        all.sort();
        assert_eq!(all, named(principal, &[("*", LITERAL), ("ord", PREFIXED), ("orders", LITERAL)]));
        let mut literal = entries(raw, None, LITERAL).await;
        literal.sort();
        assert_eq!(literal, named(principal, &[("*", LITERAL), ("orders", LITERAL)]));
        assert_eq!(entries(raw, None, PREFIXED).await, named(principal, &[("ord", PREFIXED)]));
        assert_eq!(entries(raw, Some("*"), LITERAL).await, named(principal, &[("*", LITERAL)]));
        let mut covering = entries(raw, Some("orders"), COVERING).await;
        covering.sort();
        assert_eq!(covering, named(principal, &[("*", LITERAL), ("ord", PREFIXED), ("orders", LITERAL)]));
    }
    let mut all = entries(&mut root, None, ANY).await;
    all.sort();
    let of_acme = named("User:a", &[("acme.", PREFIXED), ("acme.ord", PREFIXED), ("acme.orders", LITERAL)]);
    assert!(of_acme.iter().all(|entry| all.contains(entry)) && all.len() == 9, "{all:?}");
    // The cluster is no tenant's.
    let creations = vec![creation(4, "kafka-cluster", LITERAL, "User:a")];
    let refused = ann.call(3, CreateAclsRequest::default().with_creations(creations)).await;
    assert_eq!(refused.results[0].error_code, CLUSTER_AUTHORIZATION_FAILED);
    // A filter that matches all entries deletes those of the tenant.
    let filter = DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(ANY)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let deleted = ann.call(3, DeleteAclsRequest::default().with_filters(vec![filter])).await;
    let deleted: Vec<&str> = deleted.filter_results[0].matching_acls.iter().map(|it| &*it.resource_name).collect();
    assert_eq!(deleted.len(), 3, "{deleted:?}");
    assert!(["*", "ord", "orders"].iter().all(|name| deleted.contains(name)), "{deleted:?}");
    assert!(entries(&mut ann, None, ANY).await.is_empty());
    assert_eq!(entries(&mut bob, None, ANY).await.len(), 3);
    assert_eq!(entries(&mut root, None, ANY).await.len(), 6);
}

/// A client of a tenant without permissions gives none.
#[tokio::test]
async fn a_client_of_a_tenant_gives_no_more_than_it_may_do() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let mut eve = Raw::log_in(&server, "eve").await;
    ann.create("orders", 1).await;
    assert!(eve.topics().await.is_empty());
    assert_eq!(eve.fetch("orders").await.1, TOPIC_AUTHORIZATION_FAILED);
    let creation = |operation: i8| {
        let creation = AclCreation::default()
            .with_resource_type(2)
            .with_resource_name(text("orders"))
            .with_resource_pattern_type(LITERAL)
            .with_principal(text("User:eve"))
            .with_host(text("*"))
            .with_operation(operation)
            .with_permission_type(3);
        CreateAclsRequest::default().with_creations(vec![creation])
    };
    let read = 3;
    let alter = 7;
    assert_eq!(eve.call(3, creation(read)).await.results[0].error_code, CLUSTER_AUTHORIZATION_FAILED);
    assert_eq!(ann.call(3, creation(alter)).await.results[0].error_code, 0);
    assert_eq!(eve.call(3, creation(read)).await.results[0].error_code, CLUSTER_AUTHORIZATION_FAILED);
    assert_eq!(entries(&mut eve, None, ANY).await.len(), 1);
    assert_eq!(ann.call(3, creation(read)).await.results[0].error_code, 0);
    assert_eq!(eve.fetch("orders").await, ("orders".to_owned(), 0, Vec::new()));
}

#[tokio::test]
async fn requests_about_the_cluster_are_not_for_clients_of_a_tenant() {
    let server = start().await;
    let mut ann = Raw::log_in(&server, "ann").await;
    let users = ann.call(0, DescribeUserScramCredentialsRequest::default().with_users(None)).await;
    assert_eq!((users.error_code, users.results.len()), (CLUSTER_AUTHORIZATION_FAILED, 0));
    let quotas = ann.call(1, DescribeClientQuotasRequest::default()).await;
    assert_eq!(quotas.error_code, CLUSTER_AUTHORIZATION_FAILED);
    let dirs = ann.call(4, DescribeLogDirsRequest::default().with_topics(None)).await;
    assert_eq!((dirs.error_code, dirs.results.len()), (CLUSTER_AUTHORIZATION_FAILED, 0));
    let alter = AlterUserScramCredentialsRequest::default().with_deletions(vec![
        kafka_protocol::messages::alter_user_scram_credentials_request::ScramCredentialDeletion::default()
            .with_name(text("bob"))
            .with_mechanism(2),
    ]);
    let refused = ann.call(0, alter).await;
    assert_eq!(refused.results[0].error_code, CLUSTER_AUTHORIZATION_FAILED);
}
