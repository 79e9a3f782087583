//! Operations of Kafka's tools on topics, partitions, settings and records.

use engine::Record;
use engine::codec::Codec;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as WholeResource, AlterableConfig as WholeConfig,
};
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_quorum_request::{PartitionData as QuorumPartition, TopicData as QuorumTopic};
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::describe_topic_partitions_response::DescribeTopicPartitionsResponsePartition;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, BrokerId,
    CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeClusterRequest, DescribeConfigsRequest, DescribeLogDirsRequest, DescribeQuorumRequest,
    DescribeTopicPartitionsRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest, ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
};

use super::raw::{Raw, batch, fetch, fetched, produce, produced, text, topic};
use crate::support::server::{Launch, Server};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;

fn wanted(name: &str, partitions: i32, replicas: i16, configs: &[(&str, &str)]) -> CreatableTopic {
    let config = |(name, value): &(&str, &str)| {
        CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
    };
    CreatableTopic::default()
        .with_name(topic(name))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas)
        .with_configs(configs.iter().map(config).collect())
}

async fn create(raw: &mut Raw, version: i16, topics: Vec<CreatableTopic>, is_dry_run: bool) -> CreateTopicsResponse {
    raw.call(version, CreateTopicsRequest::default().with_topics(topics).with_validate_only(is_dry_run)).await
}

fn codes(response: &CreateTopicsResponse) -> Vec<i16> {
    response.topics.iter().map(|topic| topic.error_code).collect()
}

/// Returns a setting of a topic, with its source.
async fn config(raw: &mut Raw, name: &str, key: &str) -> (String, i8) {
    let asked = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let response = raw.call(4, DescribeConfigsRequest::default().with_resources(vec![asked])).await;
    let found = &response.results[0];
    assert_eq!((found.error_code, found.configs.len()), (0, 1), "{name} {key}");
    (found.configs[0].value.as_ref().expect("a value").to_string(), found.configs[0].config_source)
}

/// Applies incremental changes: name, operation, value.
async fn alter(raw: &mut Raw, name: &str, steps: &[(&str, i8, Option<&str>)]) -> (i16, String) {
    let step = |(name, operation, value): &(&str, i8, Option<&str>)| {
        let value = value.map(text);
        AlterableConfig::default().with_name(text(name)).with_config_operation(*operation).with_value(value)
    };
    let asked = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(name))
        .with_configs(steps.iter().map(step).collect());
    let response = raw.call(1, IncrementalAlterConfigsRequest::default().with_resources(vec![asked])).await;
    let outcome = &response.responses[0];
    (outcome.error_code, outcome.error_message.as_ref().map(ToString::to_string).unwrap_or_default())
}

fn on_disk(data: &tempfile::TempDir) -> Launch {
    Launch { set: vec![format!("data={}", data.path().display())], ..Launch::default() }
}

#[tokio::test]
async fn topics_are_created_as_they_are_asked_for() {
    let server = Server::with(&["default_partitions=3"]);
    let mut raw = Raw::connect(&server).await;
    for version in 2..=7 {
        let name = format!("t{version}");
        let dry = create(&mut raw, version, vec![wanted(&name, 4, 1, &[])], true).await;
        assert_eq!(codes(&dry), [0]);
        let settings = [("retention.ms", "60000"), ("max.message.bytes", "2000"), ("segment.bytes", "1048576")];
        let topics = vec![wanted(&name, 4, 1, &settings), wanted(&format!("{name}.d"), -1, -1, &[])];
        let response = create(&mut raw, version, topics, false).await;
        assert_eq!(codes(&response), [0, 0], "{version}");
        if version >= 5 {
            let made = &response.topics[0];
            assert_eq!((made.num_partitions, made.replication_factor), (4, 1));
            assert_eq!(response.topics[1].num_partitions, 3);
            let configs = made.configs.as_ref().expect("configs");
            let retention = configs.iter().find(|config| config.name.as_str() == "retention.ms").expect("retention");
            assert_eq!((retention.value.as_deref(), retention.config_source), (Some("60000"), 1));
        }
        assert_eq!(config(&mut raw, &name, "max.message.bytes").await, ("2000".into(), 1));
        let again = create(&mut raw, version, vec![wanted(&name, 4, 1, &settings)], false).await;
        assert_eq!(codes(&again), [36]);
    }
    // A topic's limit on batches applies to Kafka's producers.
    let large = batch(Codec::None, &[Record::new(vec![7; 3000])]);
    assert_eq!(produced(&raw.call(9, produce("t7", 0, -1, large)).await).0, 10);
}

#[tokio::test]
async fn topics_that_cannot_be_are_refused_one_by_one() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let assigned = |nodes: &[&[i32]]| {
        let assignment = |(partition, nodes): (i32, &&[i32])| {
            let nodes = nodes.iter().map(|node| BrokerId(*node)).collect();
            CreatableReplicaAssignment::default().with_partition_index(partition).with_broker_ids(nodes)
        };
        wanted("assigned", -1, -1, &[]).with_assignments((0..).zip(nodes).map(assignment).collect())
    };
    let cases = vec![
        (wanted("good", 1, 1, &[]), 0),
        (wanted("a b", 1, 1, &[]), 17),
        (wanted("_offsets", 1, 1, &[]), 17),
        (wanted("none", 0, 1, &[]), 37),
        (wanted("many", 1025, 1, &[]), 37),
        (wanted("replicas", 1, 3, &[]), 38),
        (assigned(&[&[1, 2]]), 39),
        (wanted("unknown", 1, 1, &[("no.such.setting", "1")]), 40),
        (wanted("policy", 1, 1, &[("cleanup.policy", "burn")]), 40),
        (wanted("compacted", 1, 1, &[("cleanup.policy", "compact")]), 40),
        (wanted("number", 1, 1, &[("retention.ms", "long")]), 40),
        (wanted("largest", 1, 1, &[("max.message.bytes", "100000000")]), 40),
        (wanted("insync", 1, 1, &[("min.insync.replicas", "2")]), 40),
        (wanted("codec", 1, 1, &[("compression.type", "brotli")]), 40),
        (wanted("lags", 1, 1, &[("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")]), 40),
        (wanted("segments", 1, 1, &[("segment.bytes", "1000")]), 40),
    ];
    let (topics, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let response = create(&mut raw, 7, topics, false).await;
    assert_eq!(codes(&response), expected, "{response:?}");
    assert!(response.topics.iter().skip(1).all(|topic| topic.error_message.as_ref().is_some_and(|m| !m.is_empty())));
    let twice = vec![wanted("twice", 1, 1, &[]), wanted("once", 1, 1, &[]), wanted("twice", 1, 1, &[])];
    assert_eq!(codes(&create(&mut raw, 7, twice, false).await), [42, 0]);
    assert_eq!(codes(&create(&mut raw, 7, vec![assigned(&[&[1], &[1]])], false).await), [0]);
}

/// Behavior of Kafka's brokers if `compression.type` of a topic differs from the producer's codec.
#[tokio::test]
async fn batches_are_compressed_as_their_topic_is_set() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    let sent = [Record { timestamp_ms: 5, ..Record::new("value ".repeat(100)).with_key("k") }];
    for (name, codec) in [("producer", Codec::Gzip), ("zstd", Codec::Zstd), ("uncompressed", Codec::None)] {
        let settings = [("compression.type", name)];
        assert_eq!(codes(&create(&mut raw, 7, vec![wanted(name, 1, 1, &settings)], false).await), [0], "{name}");
        assert_eq!(config(&mut raw, name, "compression.type").await.0, name);
        assert_eq!(produced(&raw.call(9, produce(name, 0, -1, batch(Codec::Gzip, &sent))).await).0, 0);
        let (_, _, batches) = fetched(&raw.call(12, fetch(name, 0, 0, 0)).await);
        assert_eq!(batches.iter().map(|batch| batch.codec()).collect::<Vec<_>>(), [Ok(codec)], "{name}");
        assert_eq!(super::raw::records(&batches), sent);
    }
    assert_eq!(alter(&mut raw, "zstd", &[("compression.type", 1, None)]).await.0, 0);
    assert_eq!(config(&mut raw, "zstd", "compression.type").await, ("producer".into(), 5));
}

/// Kafka's delete, compact and both, and the effect of retention with each.
#[tokio::test]
async fn all_cleanup_policies_are_supported() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    let cases = [
        ("plain", vec![], "delete", "604800000"),
        ("table", vec![("cleanup.policy", "compact")], "compact", "-1"),
        ("kept", vec![("cleanup.policy", "compact"), ("retention.ms", "5")], "compact", "-1"),
        ("both", vec![("cleanup.policy", "compact,delete")], "compact,delete", "604800000"),
        ("short", vec![("cleanup.policy", "delete,compact"), ("retention.ms", "5000")], "compact,delete", "5000"),
        ("log", vec![("cleanup.policy", "delete"), ("retention.ms", "-1")], "delete", "-1"),
    ];
    for (name, settings, policy, retention) in &cases {
        let response = create(&mut raw, 7, vec![wanted(name, 1, 1, settings)], false).await;
        assert_eq!(codes(&response), [0], "{name}: {response:?}");
        assert_eq!(config(&mut raw, name, "cleanup.policy").await.0, *policy, "{name}");
        assert_eq!(config(&mut raw, name, "retention.ms").await.0, *retention, "{name}");
    }
    let keyless = batch(Codec::Gzip, &[Record::new("v").with_key("k"), Record::new("v")]);
    assert_eq!(produced(&raw.call(9, produce("table", 0, -1, keyless.clone())).await).0, 87);
    assert_eq!(produced(&raw.call(9, produce("plain", 0, -1, keyless)).await).0, 0);

    // Incremental changes of the policy: no record is lost by a retention that had no effect before.
    assert_eq!(alter(&mut raw, "plain", &[("cleanup.policy", 2, Some("compact"))]).await.0, 0);
    assert_eq!(config(&mut raw, "plain", "cleanup.policy").await.0, "compact,delete");
    assert_eq!(alter(&mut raw, "plain", &[("cleanup.policy", 3, Some("delete"))]).await.0, 0);
    assert_eq!(config(&mut raw, "plain", "retention.ms").await.0, "-1");
    assert_eq!(alter(&mut raw, "plain", &[("retention.ms", 0, Some("1"))]).await.0, 0);
    assert_eq!(config(&mut raw, "plain", "cleanup.policy").await.0, "compact");
    assert_eq!(alter(&mut raw, "plain", &[("cleanup.policy", 1, None)]).await.0, 0);
    assert_eq!(config(&mut raw, "plain", "cleanup.policy").await, ("delete".into(), 5));
    assert_eq!(config(&mut raw, "plain", "retention.ms").await, ("604800000".into(), 5));
    assert_eq!(alter(&mut raw, "plain", &[("cleanup.policy", 3, Some("delete"))]).await.0, 40);
}

#[tokio::test]
async fn settings_are_changed_one_by_one_or_all_at_once() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let changes = [("message.timestamp.type", 0, Some("LogAppendTime")), ("retention.bytes", 0, Some("5000"))];
    assert_eq!(alter(&mut raw, "t", &changes).await, (0, String::new()));
    assert_eq!(config(&mut raw, "t", "message.timestamp.type").await, ("LogAppendTime".into(), 1));
    let old = Record { timestamp_ms: 5, ..Record::new("v") };
    raw.call(9, produce("t", 0, -1, batch(Codec::None, &[old]))).await;
    let (_, _, batches) = fetched(&raw.call(12, fetch("t", 0, 0, 0)).await);
    assert!(super::raw::records(&batches)[0].timestamp_ms > 1_000_000_000_000, "the broker's clock");
    for (steps, code, text_part) in [
        (&[("retention.bytes", 2, Some("5"))][..], 40, "is not a list"),
        (&[("retention.bytes", 9, Some("5"))], 42, "9 is not an operation"),
        (&[("retention.bytes", 0, None)], 42, "a value is missing"),
        (&[("min.insync.replicas", 0, Some("2"))], 40, "a partition has one replica"),
        (&[("max.message.bytes", 0, Some("1"))], 40, "128"),
        (&[("segment.ms", 0, Some("soon"))], 40, "segment.ms"),
        (&[("such", 0, Some("1"))], 40, "'such' is not a setting"),
    ] {
        let (got, message) = alter(&mut raw, "t", steps).await;
        assert!(got == code && message.contains(text_part), "{steps:?}: {got} {message}");
    }
    assert_eq!(alter(&mut raw, "none", &changes).await.0, 3);
    for (name, code, text_part) in [
        (
            "num.partitions",
            42,
            "Cannot update these configs dynamically: Set(num.partitions): num.partitions is the key default_",
        ),
        ("such.a.thing", 42, "'such.a.thing' is not a setting of the broker"),
    ] {
        let config = AlterableConfig::default().with_name(text(name)).with_value(Some(text("5")));
        let asked = AlterConfigsResource::default().with_resource_type(BROKER).with_resource_name(text("1"));
        let resources = vec![asked.with_configs(vec![config])];
        let response = raw.call(1, IncrementalAlterConfigsRequest::default().with_resources(resources)).await;
        let outcome = &response.responses[0];
        let message = outcome.error_message.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(outcome.error_code == code && message.contains(text_part), "{message}");
    }
    // A refused change has no effect.
    let half = [("retention.bytes", 0, Some("1")), ("such", 0, Some("1"))];
    assert_eq!(alter(&mut raw, "t", &half).await.0, 40);
    assert_eq!(config(&mut raw, "t", "retention.bytes").await, ("5000".into(), 1));

    let whole = |is_dry_run| {
        let config = WholeConfig::default().with_name(text("retention.ms")).with_value(Some(text("777")));
        let asked = WholeResource::default().with_resource_type(TOPIC).with_resource_name(text("t"));
        let resources = vec![asked.with_configs(vec![config])];
        AlterConfigsRequest::default().with_resources(resources).with_validate_only(is_dry_run)
    };
    for version in 0..=2 {
        assert_eq!(raw.call(version, whole(true)).await.responses[0].error_code, 0);
    }
    assert_eq!(config(&mut raw, "t", "retention.bytes").await.0, "5000");
    assert_eq!(raw.call(2, whole(false)).await.responses[0].error_code, 0);
    assert_eq!(config(&mut raw, "t", "retention.bytes").await, ("67108864".into(), 5));
    assert_eq!(config(&mut raw, "t", "message.timestamp.type").await, ("CreateTime".into(), 5));
    assert_eq!(config(&mut raw, "t", "retention.ms").await, ("777".into(), 1));
}

#[tokio::test]
async fn settings_are_described_with_where_they_come_from() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let ask = |kind, name: &str| {
        let asked = DescribeConfigsResource::default().with_resource_type(kind).with_resource_name(text(name));
        DescribeConfigsRequest::default()
            .with_resources(vec![asked.with_configuration_keys(None)])
            .with_include_synonyms(true)
            .with_include_documentation(true)
    };
    for version in 1..=4 {
        let mut request = ask(TOPIC, "t");
        request.include_documentation = version >= 3;
        let response = raw.call(version, request).await;
        let configs = &response.results[0].configs;
        assert!(configs.len() > 30 && configs.windows(2).all(|pair| pair[0].name.as_str() < pair[1].name.as_str()));
        for config in configs {
            let last = config.synonyms.last().expect("where the default is");
            assert_eq!((last.value.as_ref(), last.source), (config.value.as_ref(), 5), "{}", config.name);
            assert_eq!(config.documentation.as_ref().is_some_and(|text| !text.is_empty()), version >= 3);
        }
    }
    let response = raw.call(4, ask(BROKER, "1")).await;
    let configs = &response.results[0].configs;
    let of = |name: &str| configs.iter().find(|config| config.name.as_str() == name).expect("it is there");
    assert_eq!(of("default.replication.factor").value.as_deref(), Some("1"));
    assert_eq!(of("log.retention.ms").value.as_deref(), Some("3600000"));
    assert!(of("num.partitions").read_only && !of("log.retention.ms").read_only);
    // The default broker has only its own settings (`ConfigHelper.describeConfigs` of Apache Kafka).
    assert!(raw.call(4, ask(BROKER, "")).await.results[0].configs.is_empty());
    for (kind, name, code) in [(TOPIC, "none", 3), (BROKER, "7", 42), (99, "x", 42), (16, "client", 0)] {
        let response = raw.call(4, ask(kind, name)).await;
        assert_eq!((response.results[0].error_code, response.results[0].configs.len()), (code, 0), "{kind} {name}");
    }
    for (value, source) in [("30000", 5), ("1000", 8)] {
        let response = raw.call(4, ask(GROUP, "g")).await;
        let configs = &response.results[0].configs;
        let of = configs.iter().find(|config| config.name.as_str() == "share.record.lock.duration.ms");
        let of = of.expect("it is there");
        assert_eq!((of.value.as_deref(), of.config_source, of.read_only), (Some(value), source, false));
        let lock = AlterableConfig::default().with_name(of.name.clone()).with_value(Some(text("1000")));
        let group = AlterConfigsResource::default().with_resource_type(GROUP).with_resource_name(text("g"));
        let set = IncrementalAlterConfigsRequest::default().with_resources(vec![group.with_configs(vec![lock])]);
        assert_eq!(raw.call(1, set).await.responses[0].error_code, 0);
    }
    let response = raw.call(1, ListConfigResourcesRequest::default()).await;
    let named: Vec<_> = response.config_resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())).collect();
    // Settings of groups are stored in the first one.
    assert_eq!(named, [(TOPIC, "_queues"), (TOPIC, "t"), (BROKER, "1"), (GROUP, "g")]);
    assert!(raw.call(0, ListConfigResourcesRequest::default()).await.config_resources.is_empty());
}

/// Changes settings of a broker, in one request.
async fn alter_broker(raw: &mut Raw, node: &str, steps: &[(&str, Option<&str>)]) -> (i16, String) {
    let step = |(name, value): &(&str, Option<&str>)| {
        let operation = if value.is_some() { 0 } else { 1 };
        AlterableConfig::default().with_name(text(name)).with_config_operation(operation).with_value(value.map(text))
    };
    let asked = AlterConfigsResource::default().with_resource_type(BROKER).with_resource_name(text(node));
    let asked = asked.with_configs(steps.iter().map(step).collect());
    let response = raw.call(1, IncrementalAlterConfigsRequest::default().with_resources(vec![asked])).await;
    let outcome = &response.responses[0];
    (outcome.error_code, outcome.error_message.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// Returns the synonyms of a setting: value and source of each, the effective one first.
async fn synonyms(raw: &mut Raw, kind: i8, name: &str, key: &str) -> Vec<(String, i8)> {
    let asked = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![asked]).with_include_synonyms(true);
    let response = raw.call(4, request).await;
    let Some(config) = response.results[0].configs.first() else { return Vec::new() };
    let value = |value: &Option<kafka_protocol::protocol::StrBytes>| value.as_ref().expect("a value").to_string();
    assert_eq!(
        (value(&config.value), config.config_source),
        (value(&config.synonyms[0].value), config.synonyms[0].source)
    );
    config.synonyms.iter().map(|synonym| (value(&synonym.value), synonym.source)).collect()
}

/// "Updating Broker Configs" of Kafka's documentation: a value for one broker overrides one for all, which overrides
/// the configuration. The numbers of sources are those of `DescribeConfigsResponse.ConfigSource` of its client.
#[tokio::test]
async fn settings_of_the_broker_change_while_it_runs_and_survive_a_restart() {
    let data = tempfile::tempdir().expect("a directory");
    let mut server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    let own = [("retention.ms", "604800000")];
    let topics = vec![wanted("follows", 1, 1, &[]), wanted("own", 1, 1, &own)];
    assert_eq!(codes(&create(&mut raw, 7, topics, false).await), [0, 0]);
    let cluster = [
        ("log.retention.ms", Some("7200000")),
        ("message.max.bytes", Some("5000")),
        ("compression.type", Some("zstd")),
    ];
    assert_eq!(alter_broker(&mut raw, "", &cluster).await.0, 0);
    assert_eq!(
        alter_broker(&mut raw, "1", &[("log.retention.ms", Some("3000000")), ("max.connections.per.ip", Some("50"))])
            .await
            .0,
        0
    );
    let large = batch(Codec::None, &[Record::new(vec![7; 6000])]);
    assert_eq!(produced(&raw.call(9, produce("follows", 0, -1, large)).await).0, 10);

    drop(raw);
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    let week = || "604800000".to_owned();
    let levels = [("3000000".to_owned(), 2), ("7200000".to_owned(), 3)];
    let expected: Vec<_> = levels.iter().cloned().chain([(week(), 5)]).collect();
    assert_eq!(synonyms(&mut raw, TOPIC, "follows", "retention.ms").await, expected);
    let expected: Vec<_> = levels.iter().cloned().chain([(week(), 4)]).collect();
    assert_eq!(synonyms(&mut raw, BROKER, "1", "log.retention.ms").await, expected);
    assert_eq!(synonyms(&mut raw, BROKER, "", "log.retention.ms").await, levels[1..]);
    // A topic that sets the same value itself keeps it.
    assert_eq!(synonyms(&mut raw, TOPIC, "own", "retention.ms").await[0], (week(), 1));
    assert_eq!(synonyms(&mut raw, TOPIC, "own", "compression.type").await[0], ("zstd".into(), 3));
    assert_eq!(synonyms(&mut raw, BROKER, "1", "max.connections.per.ip").await[0], ("50".into(), 2));

    // An invalid value refuses the whole resource.
    for (name, value) in [("log.retention.ms", "soon"), ("message.max.bytes", "1"), ("max.connections", "0")] {
        let (code, message) =
            alter_broker(&mut raw, "", &[("log.segment.bytes", Some("2097152")), (name, Some(value))]).await;
        assert!(code == 42 && !message.is_empty(), "{name}: {code} {message}");
    }
    assert_eq!(config(&mut raw, "follows", "segment.bytes").await.1, 5);
    assert_eq!(alter_broker(&mut raw, "1", &[("log.retention.ms", None)]).await.0, 0);
    assert_eq!(config(&mut raw, "follows", "retention.ms").await, ("7200000".into(), 3));
    // All of them are replaced with none.
    let none = WholeResource::default().with_resource_type(BROKER).with_resource_name(text(""));
    assert_eq!(raw.call(2, AlterConfigsRequest::default().with_resources(vec![none])).await.responses[0].error_code, 0);
    assert_eq!(config(&mut raw, "follows", "retention.ms").await, (week(), 5));
    assert_eq!(config(&mut raw, "follows", "compression.type").await, ("producer".into(), 5));
}

/// Dynamic settings of Kafka's cleaner (`Cleaner.RECONFIGURABLE_CONFIGS` and `DynamicLogConfig` in its source) that are
/// also keys here, and those that `ReassignPartitionsCommand` sets for `--throttle`.
#[tokio::test]
async fn compaction_changes_while_the_broker_runs() {
    let data = tempfile::tempdir().expect("a directory");
    let mut server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    let names = ["log.cleaner.delete.retention.ms", "log.cleaner.io.max.bytes.per.second"];
    let compacts = wanted("t", 1, 1, &[("cleanup.policy", "compact")]);
    assert_eq!(codes(&create(&mut raw, 7, vec![compacts], false).await), [0]);
    let day = || "86400000".to_owned();
    assert_eq!(synonyms(&mut raw, BROKER, "1", names[0]).await, [(day(), 4)]);
    assert_eq!(synonyms(&mut raw, BROKER, "1", names[1]).await, [("67108864".to_owned(), 4)]);
    // Kafka's rate is a decimal number, whose largest value means no limit.
    assert_eq!(alter_broker(&mut raw, "", &[(names[0], Some("5000")), (names[1], Some("2.5E6"))]).await.0, 0);
    assert_eq!(
        alter_broker(&mut raw, "1", &[(names[0], Some("0")), (names[1], Some("1.7976931348623157E308"))]).await.0,
        0
    );
    for wrong in [(names[0], "-1"), (names[0], "soon"), (names[1], "10"), (names[1], "NaN"), (names[1], "fast")] {
        let (code, message) = alter_broker(&mut raw, "1", &[(wrong.0, Some(wrong.1))]).await;
        assert!(code == 42 && message.contains(wrong.0), "{wrong:?}: {code} {message}");
    }
    drop(raw);
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    let levels = [("0".to_owned(), 2), ("5000".to_owned(), 3)];
    let expected: Vec<_> = levels.iter().cloned().chain([(day(), 4)]).collect();
    assert_eq!(synonyms(&mut raw, BROKER, "1", names[0]).await, expected);
    let expected: Vec<_> = levels.iter().cloned().chain([(day(), 5)]).collect();
    assert_eq!(synonyms(&mut raw, TOPIC, "t", "delete.retention.ms").await, expected);

    // A topic may request up to the broker's value.
    assert_eq!(alter_topic(&mut raw, "t", "delete.retention.ms", "5000").await, 40);
    assert_eq!(alter_broker(&mut raw, "1", &[(names[0], None), (names[1], None)]).await.0, 0);
    assert_eq!(config(&mut raw, "t", "delete.retention.ms").await, ("5000".into(), 3));
    assert_eq!(alter_topic(&mut raw, "t", "delete.retention.ms", "5000").await, 0);

    let rates = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"];
    let set = [(rates[0], Some("1000000")), (rates[1], Some("1000000"))];
    assert_eq!(alter_broker(&mut raw, "1", &set).await, (0, String::new()));
    assert_eq!(synonyms(&mut raw, BROKER, "1", rates[0]).await[0], ("1000000".to_owned(), 2));
    assert_eq!(alter_broker(&mut raw, "1", &[(rates[0], Some("-1"))]).await.0, 42);
    assert_eq!(alter_broker(&mut raw, "1", &[(rates[0], None), (rates[1], None)]).await.0, 0);
}

async fn alter_topic(raw: &mut Raw, name: &str, key: &str, value: &str) -> i16 {
    let config = AlterableConfig::default().with_name(text(key)).with_value(Some(text(value)));
    let asked = AlterConfigsResource::default().with_resource_type(TOPIC).with_resource_name(text(name));
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![asked.with_configs(vec![config])]);
    raw.call(1, request).await.responses[0].error_code
}

#[tokio::test]
async fn topics_are_deleted_by_name_or_by_id() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    for version in 1..=5 {
        raw.create("t").await;
        let names = || vec![topic("t"), topic("none"), topic("_offsets")];
        let response = raw.call(version, DeleteTopicsRequest::default().with_topic_names(names())).await;
        let codes: Vec<i16> = response.responses.iter().map(|topic| topic.error_code).collect();
        assert_eq!(codes, [0, 3, 17], "{version}");
    }
    let made = create(&mut raw, 7, vec![wanted("t", 1, 1, &[])], false).await.topics[0].topic_id;
    let by_id = || DeleteTopicState::default().with_name(None).with_topic_id(made);
    let response = raw.call(6, DeleteTopicsRequest::default().with_topics(vec![by_id()])).await;
    let gone = &response.responses[0];
    assert_eq!((gone.error_code, gone.name.as_ref().map(|name| name.as_str())), (0, Some("t")));
    let response = raw.call(6, DeleteTopicsRequest::default().with_topics(vec![by_id()])).await;
    assert_eq!(response.responses[0].error_code, 100);
}

#[tokio::test]
async fn partitions_and_records_are_added_and_deleted() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    let grow = |count, nodes: Option<Vec<i32>>, is_dry_run| {
        let assigned = nodes.map(|nodes| {
            let one = |node| CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(node)]);
            nodes.into_iter().map(one).collect::<Vec<_>>()
        });
        let wanted = CreatePartitionsTopic::default().with_name(topic("t")).with_count(count);
        let topics = vec![wanted.with_assignments(assigned)];
        CreatePartitionsRequest::default().with_topics(topics).with_validate_only(is_dry_run)
    };
    for (count, nodes, is_dry_run, code) in [
        (1, None, false, 37),
        (1025, None, false, 37),
        (3, Some(vec![1]), false, 39),
        (3, Some(vec![1, 2]), false, 39),
        (9, None, true, 0),
        (3, Some(vec![1, 1]), false, 0),
        (4, None, false, 0),
    ] {
        let response = raw.call(3, grow(count, nodes.clone(), is_dry_run)).await;
        assert_eq!(response.results[0].error_code, code, "{count} {nodes:?} {is_dry_run}");
    }
    for _ in 0..4 {
        raw.call(9, produce("t", 3, -1, batch(Codec::None, &[Record::new("v")]))).await;
    }
    let delete = |partition, offset| {
        let one = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
        let of = DeleteRecordsTopic::default().with_name(topic("t")).with_partitions(vec![one]);
        DeleteRecordsRequest::default().with_topics(vec![of])
    };
    for (partition, offset, wanted) in [
        (3, 2, (2, 0)),
        (3, 1, (2, 0)),
        (3, 5, (-1, 1)),
        (3, -2, (-1, 1)),
        (3, -1, (4, 0)),
        (4, 0, (-1, 3)),
        (-1, 0, (-1, 3)),
    ] {
        for version in 0..=2 {
            let response = raw.call(version, delete(partition, offset)).await;
            let found = &response.topics[0].partitions[0];
            assert_eq!((found.low_watermark, found.error_code), wanted, "{partition} {offset}");
        }
    }
}

#[tokio::test]
async fn the_cluster_is_one_node_with_its_directories() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, batch(Codec::None, &[Record::new("v")]))).await;
    for version in 0..=2 {
        let response = raw.call(version, DescribeClusterRequest::default()).await;
        assert_eq!((response.error_code, response.brokers.len(), response.cluster_id.len()), (0, 1, 22));
        assert_eq!(response.brokers[0].port, i32::from(server.kafka.port()));
        assert_eq!(response.cluster_authorized_operations, i32::MIN);
    }
    let all = DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
    assert_eq!(raw.call(0, all).await.cluster_authorized_operations, 0b1_1111_1010_0000);
    let controllers = DescribeClusterRequest::default().with_endpoint_type(2);
    assert_eq!(raw.call(1, controllers).await.error_code, 114);
    for version in 1..=4 {
        let response = raw.call(version, DescribeLogDirsRequest::default().with_topics(None)).await;
        let dir = &response.results[0];
        assert_eq!((response.results.len(), dir.log_dir.as_str()), (1, data.path().to_str().expect("a path")));
        assert!(dir.topics.len() == 1 && dir.topics[0].partitions[0].partition_size > 60, "{dir:?}");
        if version == 4 {
            assert!(dir.usable_bytes > 0 && dir.total_bytes >= dir.usable_bytes, "{dir:?}");
        }
    }
    let response = raw.call(0, ListPartitionReassignmentsRequest::default().with_topics(None)).await;
    assert_eq!((response.error_code, response.topics.len()), (0, 0));
}

/// Requests of tools about leaders, replicas and their directories are answered as by a Kafka cluster of one node:
/// requests for the current state succeed, and impossible ones are refused (`ReplicationControlManager`,
/// `KafkaRaftClient`, `ReplicaManager.alterReplicaLogDirs`).
#[tokio::test]
async fn leaders_and_replicas_are_where_they_can_be() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::launch(on_disk(&data));
    let mut raw = Raw::connect(&server).await;
    assert_eq!(codes(&create(&mut raw, 7, vec![wanted("t", 2, 1, &[])], false).await), [0]);

    let elect = |partitions: Option<Vec<(&str, Vec<i32>)>>, kind| {
        let of = |(name, partitions)| TopicPartitions::default().with_topic(topic(name)).with_partitions(partitions);
        let partitions = partitions.map(|partitions| partitions.into_iter().map(of).collect());
        ElectLeadersRequest::default().with_election_type(kind).with_topic_partitions(partitions)
    };
    for version in 0..=2 {
        let kinds: &[i8] = if version == 0 { &[0] } else { &[0, 1] };
        for kind in kinds {
            let asked = Some(vec![("t", vec![0, 1, 2]), ("none", vec![0])]);
            let elected = raw.call(version, elect(asked, *kind)).await;
            let results = elected.replica_election_results.iter().flat_map(|of| &of.partition_result);
            let results: Vec<_> = results.map(|result| (result.partition_id, result.error_code)).collect();
            assert_eq!((elected.error_code, results), (0, vec![(0, 84), (1, 84), (2, 3), (0, 3)]));
            let all = raw.call(version, elect(None, *kind)).await;
            assert_eq!((all.error_code, all.replica_election_results.len()), (0, 0), "none needs an election");
        }
    }
    let refused = raw.call(2, elect(Some(vec![("t", vec![0])]), 7)).await;
    assert_eq!((refused.error_code, refused.replica_election_results[0].partition_result[0].error_code), (42, 42));

    for version in 0..=2 {
        let partitions = |numbers: &[i32]| {
            numbers.iter().map(|number| QuorumPartition::default().with_partition_index(*number)).collect()
        };
        let of = |name, numbers: &[i32]| {
            QuorumTopic::default().with_topic_name(topic(name)).with_partitions(partitions(numbers))
        };
        let topics = vec![of("__cluster_metadata", &[0, 1]), of("t", &[0])];
        let quorum = raw.call(version, DescribeQuorumRequest::default().with_topics(topics)).await;
        let described = &quorum.topics[0].partitions[0];
        assert_eq!((quorum.error_code, described.error_code, described.leader_id), (0, 0, BrokerId(1)));
        let [voter] = &described.current_voters[..] else { panic!("one voter: {described:?}") };
        assert_eq!((voter.replica_id, voter.log_end_offset), (BrokerId(1), described.high_watermark));
        assert!(described.high_watermark > 0 && described.observers.is_empty());
        assert_eq!((quorum.topics[0].partitions[1].error_code, quorum.topics[1].partitions[0].error_code), (3, 3));
        if version == 2 {
            let listener = &quorum.nodes[0].listeners[0];
            assert_eq!(
                (quorum.nodes.len(), quorum.nodes[0].node_id, listener.port),
                (1, BrokerId(1), server.kafka.port())
            );
        }
    }

    let partition = |index, replicas: Option<&[i32]>| {
        let replicas = replicas.map(|nodes| nodes.iter().map(|node| BrokerId(*node)).collect());
        ReassignablePartition::default().with_partition_index(index).with_replicas(replicas)
    };
    let cases: [(i32, Option<&[i32]>, bool, i16); 8] = [
        (0, Some(&[1]), true, 0),
        (1, Some(&[1]), false, 0),
        (0, None, true, 85),
        (0, Some(&[2]), true, 39),
        (0, Some(&[]), true, 39),
        (0, Some(&[1, 1]), true, 39),
        (0, Some(&[1, 2]), false, 38),
        (2, Some(&[1]), true, 3),
    ];
    for (index, replicas, may_grow, expected) in cases {
        for version in 0..=1 {
            if !may_grow && version == 0 {
                continue;
            }
            let of = ReassignableTopic::default().with_name(topic("t"));
            let request = AlterPartitionReassignmentsRequest::default()
                .with_allow_replication_factor_change(may_grow)
                .with_topics(vec![of.with_partitions(vec![partition(index, replicas)])]);
            let altered = raw.call(version, request).await;
            let outcome = altered.responses[0].partitions[0].error_code;
            assert_eq!((altered.error_code, outcome), (0, expected), "{index} {replicas:?}");
            assert_eq!(altered.allow_replication_factor_change, may_grow);
        }
    }

    let dirs = raw.call(4, DescribeLogDirsRequest::default().with_topics(None)).await;
    let dir = dirs.results[0].log_dir.to_string();
    assert!(std::path::Path::new(&dir).is_absolute(), "{dir}");
    let move_to = |path: &str, name: &str, partition| {
        let of = AlterReplicaLogDirTopic::default().with_name(topic(name)).with_partitions(vec![partition]);
        let dir = AlterReplicaLogDir::default().with_path(text(path)).with_topics(vec![of]);
        AlterReplicaLogDirsRequest::default().with_dirs(vec![dir])
    };
    for (path, name, partition, expected) in [
        (&*dir, "t", 1, 0),
        ("/elsewhere", "t", 0, 57),
        (&*dir, "t", 2, 9),
        (&*dir, "none", 0, 9),
        ("memory", "t", 0, 42),
    ] {
        for version in 1..=2 {
            let moved = raw.call(version, move_to(path, name, partition)).await;
            let result = &moved.results[0];
            assert_eq!((result.topic_name.as_str(), result.partitions[0].partition_index), (name, partition));
            assert_eq!(result.partitions[0].error_code, expected, "{path} {name} {partition}");
        }
    }
}

/// All partitions are listed once, with any page size.
#[tokio::test]
async fn topics_are_described_page_by_page() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let topics = vec![wanted("a", 3, 1, &[]), wanted("b", 1, 1, &[]), wanted("c", 5, 1, &[])];
    create(&mut raw, 7, topics, false).await;
    for limit in 1..=10 {
        let mut cursor = None;
        let mut seen = Vec::new();
        loop {
            let request =
                DescribeTopicPartitionsRequest::default().with_response_partition_limit(limit).with_cursor(cursor);
            let response = raw.call(0, request).await;
            let partitions: usize = response.topics.iter().map(|topic| topic.partitions.len()).sum();
            assert!(partitions as i32 <= limit && partitions > 0, "{limit}");
            for topic in &response.topics {
                let name = topic.name.as_ref().expect("a name").to_string();
                // Kafka's own client iterates over these lists without checking for null.
                let lists = |partition: &DescribeTopicPartitionsResponsePartition| {
                    [&partition.eligible_leader_replicas, &partition.last_known_elr].iter().all(|list| list.is_some())
                };
                assert!(topic.partitions.iter().all(lists), "{name}");
                seen.extend(topic.partitions.iter().map(|partition| (name.clone(), partition.partition_index)));
            }
            match response.next_cursor {
                Some(next) => {
                    let name = next.topic_name;
                    let partition = next.partition_index;
                    cursor = Some(Cursor::default().with_topic_name(name).with_partition_index(partition));
                }
                None => break,
            }
        }
        let of = |name: &str, count| (0..count).map(|i| (name.to_owned(), i)).collect::<Vec<_>>();
        assert_eq!(seen, [of("a", 3), of("b", 1), of("c", 5)].concat(), "{limit}");
    }
    let named = ["none", "b"].map(|name| TopicRequest::default().with_name(topic(name)));
    let response = raw.call(0, DescribeTopicPartitionsRequest::default().with_topics(named.to_vec())).await;
    let codes: Vec<i16> = response.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [0, 3]);
}
