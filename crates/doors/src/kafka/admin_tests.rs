//! Requests for many topics, and the service of other connections in the meantime.

use std::sync::Weak;

use broker::Identity;
use futures_util::FutureExt;
use tokio::runtime::Handle;

use super::super::configs::describe_configs;
use super::super::messages::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use super::super::messages::describe_log_dirs::DescribeLogDirsRequest;
use super::super::replicas::describe_log_dirs;
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
