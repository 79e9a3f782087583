//! Requests for many topics, and the service of other connections in the meantime.

use std::sync::Weak;

use broker::Identity;
use futures_util::FutureExt;
use tokio::runtime::Handle;

use super::super::configs::{describe_configs, list_config_resources};
use super::super::messages::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use super::super::messages::describe_log_dirs::DescribeLogDirsRequest;
use super::super::messages::describe_topic_partitions::TopicRequest;
use super::super::messages::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use super::super::messages::list_config_resources::ListConfigResourcesRequest;
use super::super::replicas::{describe_log_dirs, elect_leaders};
use super::super::share::ShareConnection;
use super::*;

pub(in crate::kafka) fn caller() -> Caller {
    Caller {
        client: "test".into(),
        identity: Arc::new(Identity::anonymous("localhost")),
        advertised: ("localhost".into(), 9092),
        version: 3,
        leaving: Default::default(),
        shares: ShareConnection::new(Arc::default(), Weak::new()).into(),
        mute: Default::default(),
        wait_ms: std::cell::Cell::new(0),
    }
}

/// Returns the response, and how often other tasks had their turn before it.
pub(in crate::kafka) fn in_turns<T>(work: impl Future<Output = T>) -> (T, usize) {
    let mut work = std::pin::pin!(work);
    let mut turns = 0;
    loop {
        match (&mut work).now_or_never() {
            Some(response) => return (response, turns),
            None => turns += 1,
        }
    }
}

/// Each new topic is compared with the patterns of subscriptions, which are as many as clients want.
#[tokio::test]
async fn other_tasks_have_their_turn_after_each_topic_of_a_request() {
    const MANY: usize = 40;
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let caller = caller();
    let names = || (0..MANY).map(|i| format!("t{i:04}"));

    let topic = |name| CreatableTopic { name, num_partitions: 1, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: names().map(topic).collect(), ..Default::default() };
    let (response, turns) = in_turns(create_topics(&broker, &caller, request));
    assert!(response.topics.iter().all(|topic| topic.error_code == 0), "{response:?}");
    assert_eq!((response.topics.len(), broker.topic_count(), turns), (MANY, MANY, MANY));

    let topic = |name| CreatePartitionsTopic { name, count: 2, ..Default::default() };
    let request = CreatePartitionsRequest { topics: names().map(topic).collect(), ..Default::default() };
    let (response, turns) = in_turns(create_partitions(&broker, &caller, request));
    assert!(response.results.iter().all(|topic| topic.error_code == 0), "{response:?}");
    assert_eq!((response.results.len(), turns), (MANY, MANY));

    let request = DeleteTopicsRequest { topic_names: names().collect(), ..Default::default() };
    let (response, turns) = in_turns(delete_topics(&broker, &caller, request));
    assert!(response.responses.iter().all(|topic| topic.error_code == 0), "{response:?}");
    assert_eq!((response.responses.len(), broker.topic_count(), turns), (MANY, 0, MANY));
}

/// Descriptions of all topics let other tasks run in between.
#[tokio::test]
async fn other_tasks_have_their_turn_between_slices_of_descriptions() {
    const MANY: usize = 200;
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let caller = caller();
    let names = || (0..MANY).map(|i| format!("t{i:04}"));
    for name in names() {
        broker.create_topic(&name, engine::TopicSettings::default()).await.expect("created");
    }

    let request = DescribeLogDirsRequest { topics: None };
    let (response, turns) = in_turns(describe_log_dirs(&broker, &caller, request));
    let described = response.results[0].topics.iter().map(|topic| topic.name.clone());
    assert!(described.eq(names()), "{response:?}");
    assert_eq!(turns, 4, "after each 64");

    let resource = |resource_name| DescribeConfigsResource { resource_type: 2, resource_name, ..Default::default() };
    let request = DescribeConfigsRequest { resources: names().map(resource).collect(), ..Default::default() };
    let (response, turns) = in_turns(describe_configs(&broker, &caller, request));
    assert_eq!((response.results.len(), turns), (MANY, 12), "after each 16");
}

/// Elections and lists of all topics let other tasks run in between.
#[tokio::test]
async fn other_tasks_have_their_turn_between_slices_of_elections_and_resources() {
    const MANY: usize = 600;
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let caller = caller();
    let names = || (0..MANY).map(|i| format!("t{i:04}"));
    for name in names() {
        broker.create_topic(&name, TopicSettings::default()).await.expect("created");
        let settings = Some(bytes::Bytes::from_static(b"consumer.session.timeout.ms=50000"));
        broker.documents.put("kafka.group", &name, settings).await.expect("stored");
    }

    let topic = |topic| TopicPartitions { topic, partitions: vec![0, 1] };
    let topic_partitions = Some(names().map(topic).collect());
    let request = ElectLeadersRequest { topic_partitions, ..Default::default() };
    let (response, turns) = in_turns(elect_leaders(&broker, &caller, request));
    let elected = response.replica_election_results.into_iter();
    let elected = elected.map(|of| (of.topic, of.partition_result.iter().map(|of| of.error_code).collect::<Vec<_>>()));
    let codes = vec![Code::ELECTION_NOT_NEEDED.0, Code::UNKNOWN_TOPIC_OR_PARTITION.0];
    assert!(elected.eq(names().map(|name| (name, codes.clone()))));
    assert_eq!(turns, 4, "after each 256 of 1200");

    let (response, turns) = in_turns(list_config_resources(&broker, &caller, ListConfigResourcesRequest::default()));
    let listed = response.config_resources.into_iter().map(|of| (of.resource_name, of.resource_type));
    let topics = broker.outline_topics().into_iter().map(|topic| (topic.name.to_string(), 2));
    let expected = topics.chain([("1".to_owned(), 4)]).chain(names().map(|name| (name, 32)));
    assert!(listed.eq(expected));
    assert_eq!(turns, 6, "after each 256, topics and groups");
}

/// Pages together describe all topics, and each looks only at its topics and the next slice.
#[tokio::test]
async fn pages_of_partitions_look_at_few_of_many_topics() {
    const MANY: usize = 400;
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let caller = caller();
    let names: Vec<String> = (0..MANY).map(|i| format!("t{i:04}")).collect();
    for name in &names {
        let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
        broker.create_topic(name, settings).await.expect("created");
    }
    let topic = |name: &String| TopicRequest { name: name.clone() };
    let named: Vec<TopicRequest> = names.iter().rev().chain(&names).map(topic).collect();
    for (topics, turns_max) in [(Vec::new(), 4), (named, 2 * MANY / TOPICS_PER_TURN + 5)] {
        let mut described = Vec::new();
        let mut cursor = None;
        let mut pages = 0;
        loop {
            let request =
                DescribeTopicPartitionsRequest { topics: topics.clone(), response_partition_limit: 301, cursor };
            let (response, turns) = in_turns(describe_topic_partitions(&broker, &caller, request));
            // 151 topics in slices of 64, however many there are, if they are not named.
            assert!((2..=turns_max).contains(&turns), "{turns}");
            pages += 1;
            for topic in response.topics {
                let name = topic.name.expect("named");
                described.extend(topic.partitions.iter().map(|of| (name.clone(), of.partition_index)));
            }
            cursor = response.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages, 3);
        assert!(described.into_iter().eq(names.iter().flat_map(|name| [(name.clone(), 0), (name.clone(), 1)])));
    }
}
