//! Responses to clients about topics, about this broker, and about offsets.

use engine::codec::Codec;
use engine::{Record, TopicSettings};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiVersionsRequest, FindCoordinatorRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest,
};

use super::raw::{Raw, batch, produce, text, topic};
use crate::support::server::Server;

fn ask(name: &str) -> MetadataRequest {
    let wanted = MetadataRequestTopic::default().with_name(Some(topic(name)));
    MetadataRequest::default().with_topics(Some(vec![wanted]))
}

/// Metadata contains the address that the client connected to, or the configured one.
#[tokio::test]
async fn clients_are_told_where_they_are() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    for version in 1..=12 {
        let response = raw.call(version, ask("new")).await;
        let broker = &response.brokers[0];
        assert_eq!((broker.host.as_str(), broker.port), ("127.0.0.1", i32::from(server.kafka.port())), "{version}");
        assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 1), "{version}");
        let partition = &response.topics[0].partitions[0];
        assert_eq!((partition.leader_id, partition.isr_nodes.len()), (response.controller_id, 1));
    }
    let coordinator = FindCoordinatorRequest::default().with_coordinator_keys(vec![text("a"), text("b")]);
    let response = raw.call(4, coordinator).await;
    let ports: Vec<i32> = response.coordinators.iter().map(|coordinator| coordinator.port).collect();
    assert_eq!(ports, [i32::from(server.kafka.port()); 2]);

    let server = Server::with(&["kafka_advertised=broker.example:19092"]);
    let mut raw = Raw::connect(&server).await;
    let response = raw.call(5, ask("new")).await;
    assert_eq!((response.brokers[0].host.as_str(), response.brokers[0].port), ("broker.example", 19092));
}

/// A metadata request creates a topic, unless the client or the broker disables that. The id of a topic differs from
/// that of an earlier topic with the same name.
#[tokio::test]
async fn topics_are_created_by_asking() {
    let server = Server::with(&["default_partitions=3"]);
    let mut raw = Raw::connect(&server).await;
    let response = raw.call(9, ask("t").with_allow_auto_topic_creation(false)).await;
    assert_eq!(response.topics[0].error_code, 3);
    let response = raw.call(12, ask("t")).await;
    assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 3));
    let id = response.topics[0].topic_id;
    let response = raw.call(12, ask("not a name")).await;
    assert_eq!(response.topics[0].error_code, 17);
    let client = server.client("tcp").await;
    client.delete_topic("t").await.expect("deleted");
    client.create_topic("t", TopicSettings::default()).await.expect("created");
    let response = raw.call(12, ask("t")).await;
    assert_ne!(response.topics[0].topic_id, id);
    // Kafka's own client sends an empty name with an id, others none.
    for name in [None, Some(topic(""))] {
        let by_id = |id| MetadataRequestTopic::default().with_name(name.clone()).with_topic_id(id);
        let ids = vec![by_id(id), by_id(response.topics[0].topic_id)];
        let by_id = raw.call(12, MetadataRequest::default().with_topics(Some(ids))).await;
        let found: Vec<_> = by_id.topics.into_iter().map(|found| (found.error_code, found.name)).collect();
        assert_eq!(found, [(100, None), (0, Some(topic("t")))]);
    }

    let server = Server::with(&["auto_create_topics=false"]);
    let response = Raw::connect(&server).await.call(4, ask("t")).await;
    assert_eq!(response.topics[0].error_code, 3);
}

/// Every API reports its versions; a client with a future version receives the current ones.
#[tokio::test]
async fn versions_are_negotiated() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let of = |key: i16, keys: &[kafka_protocol::messages::api_versions_response::ApiVersion]| {
        keys.iter().find(|api| api.api_key == key).map(|api| (api.min_version, api.max_version))
    };
    for version in 0..=4 {
        let response = raw.call(version, ApiVersionsRequest::default()).await;
        assert_eq!(response.error_code, 0);
        assert_eq!((of(0, &response.api_keys), of(18, &response.api_keys)), (Some((3, 12)), Some((0, 4))));
    }
    raw.send_body(18, 77, 2, b"whatever it says").await;
    let response = raw.answer::<ApiVersionsRequest>(0).await;
    assert_eq!((response.error_code, of(18, &response.api_keys)), (35, Some((0, 4))));
}

/// Offsets of the start and the end of a log, and of the first record at or after a time.
#[tokio::test]
async fn times_have_offsets() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let at = |timestamp_ms| Record { timestamp_ms, ..Record::new("v") };
    raw.create("times").await;
    // Times need not be in order.
    for times in [&[100, 200, 150][..], &[50], &[300, 250]] {
        let records: Vec<Record> = times.iter().copied().map(at).collect();
        raw.call(9, produce("times", 0, -1, batch(Codec::Lz4, &records))).await;
    }
    let cases = [
        (-2, (0, -1)),
        (-1, (6, -1)),
        (0, (0, 100)),
        (101, (1, 200)),
        (201, (4, 300)),
        (301, (-1, -1)),
        (-3, (4, 300)),
    ];
    for (timestamp, wanted) in cases {
        let partition = ListOffsetsPartition::default().with_timestamp(timestamp).with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default().with_name(topic("times")).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_topics(vec![topic]);
        for version in 1..=7 {
            let response = raw.call(version, request.clone()).await;
            let found = &response.topics[0].partitions[0];
            assert_eq!((found.error_code, (found.offset, found.timestamp)), (0, wanted), "{timestamp} {version}");
        }
    }
}

/// Producers get unique ids.
#[tokio::test]
async fn producers_get_ids() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let mut ids = Vec::new();
    for version in 0..=4 {
        let response = raw
            .call(
                version,
                InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1000),
            )
            .await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        ids.push(response.producer_id.0);
    }
    ids.dedup();
    assert_eq!(ids.len(), 5);
}
