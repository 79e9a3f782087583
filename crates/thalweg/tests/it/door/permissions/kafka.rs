//! The APIs of Kafka. A refusal has the code of the kind of its resource, as in Kafka
//! (<https://kafka.apache.org/protocol#protocol_error_codes>).

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use engine::Record;
use engine::codec::Codec;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::alter_user_scram_credentials_request::ScramCredentialDeletion;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest as ProducersOf;
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::describe_share_group_offsets_request::{
    DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource as ChangedResource;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::messages::share_acknowledge_request::{AcknowledgePartition, AcknowledgeTopic};
use kafka_protocol::messages::share_fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};

use super::super::kafka::raw::{Raw, batch, fetch, produce, text, topic};
use super::super::kafka::security::log_in;
use super::{Answer, Example, Site};

/// Codes of refusals: of a topic, a group, the cluster and a transactional id.
const REFUSED: [i16; 4] = [29, 30, 31, 53];
/// Kinds of resources in requests about settings.
const TOPICS: i8 = 2;
const BROKERS: i8 = 4;
const GROUPS: i8 = 32;

/// Requests that are sent one after the other; the response to the last one counts.
struct Sent(Vec<Frame>);

/// Encoded request.
struct Frame {
    key: i16,
    version: i16,
    header_version: i16,
    body: Bytes,
    /// Returns the response in words.
    shown: fn(i16, Bytes) -> String,
}

type Api = Example<Sent>;

fn frame<R: Request<Response: Debug>>(version: i16, request: &R) -> Frame {
    let mut body = BytesMut::new();
    request.encode(&mut body, version).expect("a request of this version");
    let shown = |version, mut frame: Bytes| {
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("a header");
        format!("{:?}", R::Response::decode(&mut frame, version).expect("an answer of this version"))
    };
    Frame { key: R::KEY, version, header_version: R::header_version(version), body: body.freeze(), shown }
}

fn api<R: Request<Response: Debug>>(name: &str, version: i16, request: &R) -> Api {
    Example::new(name, Sent(vec![frame(version, request)]))
}

fn group(name: &str) -> GroupId {
    GroupId(text(name))
}

fn transactional_id() -> TransactionalId {
    TransactionalId(text("x"))
}

fn named(name: &str) -> MetadataRequest {
    let wanted = MetadataRequestTopic::default().with_name(Some(topic(name)));
    MetadataRequest::default().with_topics(Some(vec![wanted])).with_allow_auto_topic_creation(true)
}

fn of_topics() -> Vec<Api> {
    let records = || batch(Codec::None, &[Record::new("v")]);
    let transactional = produce("t", 0, -1, records()).with_transactional_id(Some(transactional_id()));
    let offsets = ListOffsetsTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![ListOffsetsPartition::default().with_timestamp(-1)]);
    let epochs = OffsetForLeaderTopic::default()
        .with_topic(topic("t"))
        .with_partitions(vec![OffsetForLeaderPartition::default().with_current_leader_epoch(-1)]);
    let new = CreatableTopic::default().with_name(topic("fresh")).with_num_partitions(1).with_replication_factor(1);
    let deleted = DeleteTopicsRequest::default().with_topic_names(vec![topic("gone")]).with_timeout_ms(1000);
    let records_of =
        DeleteRecordsTopic::default().with_name(topic("t")).with_partitions(vec![DeleteRecordsPartition::default()]);
    let grown = CreatePartitionsTopic::default().with_name(topic("t")).with_count(2).with_assignments(None);
    let described = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![TopicRequest::default().with_name(topic("t"))])
        .with_response_partition_limit(10);
    let producers = ProducersOf::default().with_name(topic("t")).with_partition_indexes(vec![0]);
    vec![
        api("Produce", 9, &produce("t", 0, -1, records())),
        api("Produce", 9, &transactional).when("if the batch belongs to a transaction"),
        api("Fetch", 11, &fetch("t", 0, 0, 0)),
        api("ListOffsets", 5, &ListOffsetsRequest::default().with_topics(vec![offsets])),
        api("Metadata", 8, &named("t")),
        api("Metadata", 8, &named("fresh"))
            .when("if it does not exist and the client has it created")
            .on("each topic", "fresh"),
        api("CreateTopics", 5, &CreateTopicsRequest::default().with_topics(vec![new])).on("each topic", "fresh"),
        api("DeleteTopics", 4, &deleted).on("each topic", "gone"),
        api("DeleteRecords", 2, &DeleteRecordsRequest::default().with_topics(vec![records_of])),
        api("OffsetForLeaderEpoch", 4, &OffsetForLeaderEpochRequest::default().with_topics(vec![epochs])),
        api("CreatePartitions", 2, &CreatePartitionsRequest::default().with_topics(vec![grown])),
        api("DescribeTopicPartitions", 0, &described),
        api("DescribeProducers", 0, &DescribeProducersRequest::default().with_topics(vec![producers])),
    ]
}

fn of_groups() -> Vec<Api> {
    let commit = OffsetCommitRequestTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![OffsetCommitRequestPartition::default()]);
    let fetched =
        OffsetFetchRequestGroup::default().with_group_id(group("g")).with_member_epoch(-1).with_topics(Some(vec![
            OffsetFetchRequestTopics::default().with_name(topic("t")).with_partition_indexes(vec![0]),
        ]));
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
    let join = JoinGroupRequest::default()
        .with_group_id(group("classic"))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(1000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    let member = MemberIdentity::default().with_member_id(text("nobody"));
    let leave = LeaveGroupRequest::default().with_group_id(group("g")).with_members(vec![member]);
    let deleted = OffsetDeleteRequestTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
    let beat = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group("new"))
        .with_member_id(text("m"))
        .with_rebalance_timeout_ms(10_000)
        .with_subscribed_topic_names(Some(vec![topic("t")]))
        .with_topic_partitions(Some(Vec::new()));
    let commit = |generation| {
        OffsetCommitRequest::default()
            .with_group_id(group("g"))
            .with_generation_id_or_member_epoch(generation)
            .with_topics(vec![commit.clone()])
    };
    let of = |name: &str| FindCoordinatorRequest::default().with_key(text(name));
    let described = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group("consumers")]);
    vec![
        api("OffsetCommit", 7, &commit(-1)),
        api("OffsetFetch", 8, &OffsetFetchRequest::default().with_groups(vec![fetched])),
        api("FindCoordinator", 3, &of("g").with_key_type(0)).when("for a group"),
        api("FindCoordinator", 3, &of("x").with_key_type(1)).when("for a transactional id"),
        api("JoinGroup", 5, &join).on("the group", "classic"),
        api("Heartbeat", 4, &HeartbeatRequest::default().with_group_id(group("g")).with_member_id(text("m"))),
        api("LeaveGroup", 4, &leave),
        api("SyncGroup", 3, &SyncGroupRequest::default().with_group_id(group("g")).with_member_id(text("m"))),
        api("DescribeGroups", 5, &DescribeGroupsRequest::default().with_groups(vec![group("g")])),
        api("ListGroups", 4, &ListGroupsRequest::default()).showing("\"g\""),
        api("DeleteGroups", 2, &DeleteGroupsRequest::default().with_groups_names(vec![group("gone")]))
            .on("each group", "gone"),
        api("OffsetDelete", 0, &OffsetDeleteRequest::default().with_group_id(group("g")).with_topics(vec![deleted])),
        api("ConsumerGroupHeartbeat", 1, &beat).on("the group", "new"),
        api("ConsumerGroupDescribe", 0, &described).on("each group", "consumers"),
    ]
}

/// Returns the requests about share groups; `t` has the id of that topic.
fn of_share_groups(t: &FetchTopic) -> Vec<Api> {
    let beat = ShareGroupHeartbeatRequest::default()
        .with_group_id(group("new-share"))
        .with_member_id(text("m"))
        .with_subscribed_topic_names(Some(vec![topic("t")]));
    let share_fetch = ShareFetchRequest::default()
        .with_group_id(Some(group("g")))
        .with_member_id(Some(text("m")))
        .with_max_bytes(1 << 20)
        .with_max_records(1)
        .with_batch_size(1)
        .with_topics(vec![t.clone().with_partitions(vec![FetchPartition::default()])]);
    let acknowledged =
        AcknowledgeTopic::default().with_topic_id(t.topic_id).with_partitions(vec![AcknowledgePartition::default()]);
    let acknowledge = ShareAcknowledgeRequest::default()
        .with_group_id(Some(group("g")))
        .with_member_id(Some(text("m")))
        .with_share_session_epoch(1)
        .with_topics(vec![acknowledged]);
    let offsets = DescribeShareGroupOffsetsRequestTopic::default().with_topic_name(topic("t")).with_partitions(vec![0]);
    let offsets =
        DescribeShareGroupOffsetsRequestGroup::default().with_group_id(group("share")).with_topics(Some(vec![offsets]));
    let altered = AlterShareGroupOffsetsRequestTopic::default()
        .with_topic_name(topic("t"))
        .with_partitions(vec![AlterShareGroupOffsetsRequestPartition::default()]);
    let deleted = DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(topic("t"));
    let described = ShareGroupDescribeRequest::default().with_group_ids(vec![group("share")]);
    vec![
        api("ShareGroupHeartbeat", 1, &beat).on("the group", "new-share"),
        api("ShareGroupDescribe", 1, &described).on("each group", "share"),
        api("ShareFetch", 1, &share_fetch),
        // The acknowledgement is one of a session, which the fetch opens.
        Example::new("ShareAcknowledge", Sent(vec![frame(1, &share_fetch), frame(1, &acknowledge)])),
        api("DescribeShareGroupOffsets", 0, &DescribeShareGroupOffsetsRequest::default().with_groups(vec![offsets]))
            .on("each group", "share"),
        api(
            "AlterShareGroupOffsets",
            0,
            &AlterShareGroupOffsetsRequest::default().with_group_id(group("empty")).with_topics(vec![altered]),
        )
        .on("the group", "empty"),
        api(
            "DeleteShareGroupOffsets",
            0,
            &DeleteShareGroupOffsetsRequest::default().with_group_id(group("empty")).with_topics(vec![deleted]),
        )
        .on("the group", "empty"),
    ]
}

fn of_transactions() -> Vec<Api> {
    let at = AddPartitionsToTxnTopic::default().with_name(topic("t")).with_partitions(vec![0]);
    let partitions = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(transactional_id())
        .with_v3_and_below_topics(vec![at]);
    let offsets = AddOffsetsToTxnRequest::default().with_transactional_id(transactional_id()).with_group_id(group("g"));
    let commit = TxnOffsetCommitRequestTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![TxnOffsetCommitRequestPartition::default()]);
    let commit = TxnOffsetCommitRequest::default()
        .with_transactional_id(transactional_id())
        .with_group_id(group("g"))
        .with_generation_id(-1)
        .with_topics(vec![commit]);
    let other = || Some(TransactionalId(text("y")));
    let init = InitProducerIdRequest::default().with_transaction_timeout_ms(60_000);
    let described = DescribeTransactionsRequest::default().with_transactional_ids(vec![transactional_id()]);
    vec![
        api("InitProducerId", 4, &init.clone().with_transactional_id(other()))
            .when("for a transactional id")
            .on("the transactional id", "y"),
        api("InitProducerId", 4, &init.with_transactional_id(None)).when("without a transactional id"),
        api("AddPartitionsToTxn", 3, &partitions),
        api("AddOffsetsToTxn", 3, &offsets),
        api("EndTxn", 3, &EndTxnRequest::default().with_transactional_id(transactional_id())),
        api("TxnOffsetCommit", 3, &commit),
        api("DescribeTransactions", 0, &described).showing("\"t\""),
        api("ListTransactions", 1, &ListTransactionsRequest::default().with_duration_filter(-1)).showing("\"x\""),
    ]
}

fn of_settings() -> Vec<Api> {
    let kinds = [(TOPICS, "t", "for topics"), (GROUPS, "g", "for groups"), (BROKERS, "1", "for the broker")];
    let mut all = Vec::new();
    for (kind, name, when) in kinds {
        let described = DescribeConfigsResource::default().with_resource_type(kind).with_resource_name(text(name));
        let described = described.with_configuration_keys(None);
        let altered = AlterConfigsResource::default().with_resource_type(kind).with_resource_name(text(name));
        let changed = ChangedResource::default().with_resource_type(kind).with_resource_name(text(name));
        all.extend([
            api("DescribeConfigs", 4, &DescribeConfigsRequest::default().with_resources(vec![described])).when(when),
            api("AlterConfigs", 2, &AlterConfigsRequest::default().with_resources(vec![altered])).when(when),
            api("IncrementalAlterConfigs", 1, &IncrementalAlterConfigsRequest::default().with_resources(vec![changed]))
                .when(when),
        ]);
    }
    all
}

fn of_the_cluster() -> Vec<Api> {
    let filter = DeleteAclsFilter::default()
        .with_resource_type_filter(2)
        .with_resource_name_filter(Some(text("none")))
        .with_pattern_type_filter(3)
        .with_operation(1)
        .with_permission_type(1);
    let any = DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_pattern_type_filter(1)
        .with_operation(1)
        .with_permission_type(1);
    let acl = AclCreation::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_resource_pattern_type(3)
        .with_principal(text("User:ann"))
        .with_host(text("*"))
        .with_operation(3)
        .with_permission_type(3);
    let gone = ScramCredentialDeletion::default().with_name(text("ann")).with_mechanism(1);
    let users = AlterUserScramCredentialsRequest::default().with_deletions(vec![gone]);
    let quorum = TopicData::default()
        .with_topic_name(topic("__cluster_metadata"))
        .with_partitions(vec![PartitionData::default()]);
    vec![
        api("SaslHandshake", 1, &SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))),
        api("ApiVersions", 3, &ApiVersionsRequest::default()),
        Example::new(
            "SaslAuthenticate",
            Sent(vec![
                frame(1, &SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))),
                frame(2, &SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from_static(b"\0bob\0secret"))),
            ]),
        ),
        api("DescribeCluster", 0, &DescribeClusterRequest::default()),
        api("DescribeAcls", 3, &any),
        api("CreateAcls", 3, &CreateAclsRequest::default().with_creations(vec![acl])),
        api("DeleteAcls", 3, &DeleteAclsRequest::default().with_filters(vec![filter])),
        api("AlterReplicaLogDirs", 2, &AlterReplicaLogDirsRequest::default().with_dirs(vec![moved()])),
        api("DescribeLogDirs", 4, &DescribeLogDirsRequest::default().with_topics(None)),
        api("ElectLeaders", 2, &ElectLeadersRequest::default().with_topic_partitions(None).with_timeout_ms(1000)),
        api("AlterPartitionReassignments", 0, &AlterPartitionReassignmentsRequest::default().with_timeout_ms(1000)),
        api("ListPartitionReassignments", 0, &ListPartitionReassignmentsRequest::default().with_topics(None)),
        api("DescribeClientQuotas", 1, &DescribeClientQuotasRequest::default()),
        api("AlterClientQuotas", 1, &AlterClientQuotasRequest::default().with_entries(vec![quota()])),
        api("DescribeUserScramCredentials", 0, &DescribeUserScramCredentialsRequest::default().with_users(None)),
        api("AlterUserScramCredentials", 0, &users),
        api("DescribeQuorum", 0, &DescribeQuorumRequest::default().with_topics(vec![quorum])),
        api("ListConfigResources", 1, &ListConfigResourcesRequest::default()),
    ]
}

fn moved() -> alter_replica_log_dirs_request::AlterReplicaLogDir {
    let of = alter_replica_log_dirs_request::AlterReplicaLogDirTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![0]);
    alter_replica_log_dirs_request::AlterReplicaLogDir::default().with_path(text("/")).with_topics(vec![of])
}

fn quota() -> alter_client_quotas_request::EntryData {
    let entity = alter_client_quotas_request::EntityData::default()
        .with_entity_type(text("user"))
        .with_entity_name(Some(text("ann")));
    let set = alter_client_quotas_request::OpData::default().with_key(text("producer_byte_rate")).with_remove(true);
    alter_client_quotas_request::EntryData::default().with_entity(vec![entity]).with_ops(vec![set])
}

/// Joins the groups that are described, and opens a transaction.
async fn prepare(root: &mut Raw) {
    let consumer = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group("consumers"))
        .with_member_id(text("member"))
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(vec![topic("t")]))
        .with_topic_partitions(Some(Vec::new()));
    assert_eq!(root.call(1, consumer).await.error_code, 0);
    let sharer = ShareGroupHeartbeatRequest::default()
        .with_group_id(group("share"))
        .with_member_id(text("member"))
        .with_subscribed_topic_names(Some(vec![topic("t")]));
    assert_eq!(root.call(1, sharer).await.error_code, 0);
    let init = InitProducerIdRequest::default()
        .with_transactional_id(Some(transactional_id()))
        .with_transaction_timeout_ms(600_000);
    let begun = root.call(4, init).await;
    assert_eq!(begun.error_code, 0);
    let at = AddPartitionsToTxnTopic::default().with_name(topic("t")).with_partitions(vec![0]);
    let add = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(transactional_id())
        .with_v3_and_below_producer_id(begun.producer_id)
        .with_v3_and_below_producer_epoch(begun.producer_epoch)
        .with_v3_and_below_topics(vec![at]);
    let added = root.call(3, add).await;
    assert_eq!(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, 0);
}

async fn send(site: &Site, has_login: bool, sent: &Sent) -> Answer {
    // The login is a part of the requests that make it.
    let logs_in = |frame: &Frame| [SaslHandshakeRequest::KEY, SaslAuthenticateRequest::KEY].contains(&frame.key);
    let mut raw = if has_login && !sent.0.iter().any(logs_in) {
        log_in(&site.server, "bob", "secret").await.expect("it is right")
    } else {
        Raw::connect(&site.server).await
    };
    let mut shown = String::new();
    for Frame { key, version, header_version, body, shown: words } in &sent.0 {
        raw.send_body(*key, *version, *header_version, body).await;
        let Some(frame) = raw.frame().await else {
            return Answer::NoLogin("the connection is closed".to_owned());
        };
        shown = words(*version, frame);
    }
    // A new topic is not refused for want of the permission to see its settings.
    let codes = shown.replace("topic_config_error_code", "");
    let has_code = |code: &i16| [",", " "].iter().any(|end| codes.contains(&format!("error_code: {code}{end}")));
    if REFUSED.iter().any(has_code) { Answer::Refused(shown) } else { Answer::Passed(shown) }
}

#[tokio::test]
async fn every_api_of_kafka_requires_what_its_row_says() {
    let site = Site::open(&[]).await;
    let mut root = log_in(&site.server, "root", "r00t").await.expect("it is right");
    prepare(&mut root).await;
    let t = FetchTopic::default().with_topic_id(root.call(12, named("t")).await.topics[0].topic_id);
    let examples: Vec<Api> =
        [of_topics(), of_groups(), of_share_groups(&t), of_transactions(), of_settings(), of_the_cluster()]
            .into_iter()
            .flatten()
            .collect();
    site.walk("kafka", &examples, async || {}, async |has_login, sent| send(&site, has_login, sent).await).await;
}
