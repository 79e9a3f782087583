//! Metadata of many topics, and the service of other connections in the meantime.

use std::sync::{Arc, Weak};

use broker::Identity;
use engine::TopicSettings;
use futures_util::FutureExt;
use tokio::runtime::Handle;

use super::super::share::ShareConnection;
use super::*;

const MANY: usize = 3 * TOPICS_AT_ONCE / 2;

async fn broker() -> Arc<Broker> {
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    for i in 0..MANY {
        broker.create_topic(&format!("t{i:04}"), TopicSettings::of_broker()).await.expect("created");
    }
    broker
}

fn caller() -> Caller {
    Caller {
        client: "test".into(),
        identity: Arc::new(Identity::anonymous("localhost")),
        advertised: ("localhost".into(), 9092),
        version: 12,
        leaving: Default::default(),
        shares: ShareConnection::new(Arc::default(), Weak::new()).into(),
        mute: Default::default(),
        wait_ms: std::cell::Cell::new(0),
    }
}

fn all() -> MetadataRequest {
    MetadataRequest { topics: None, ..Default::default() }
}

fn these(names: impl IntoIterator<Item = String>) -> MetadataRequest {
    let topic = |name| MetadataRequestTopic { name: Some(name), ..Default::default() };
    MetadataRequest { topics: Some(names.into_iter().map(topic).collect()), ..Default::default() }
}

fn names(response: &MetadataResponse) -> Vec<&str> {
    response.topics.iter().map(|topic| topic.name.as_deref().expect("named")).collect()
}

/// Whenever a list yields its thread, a short request of another connection is answered completely, and a second long
/// list waits for the first.
#[tokio::test]
async fn long_lists_are_made_in_slices_one_at_a_time() {
    let broker = broker().await;
    let caller = caller();
    let wanted: Vec<String> = (0..MANY).map(|i| format!("t{i:04}")).collect();
    let mut first = std::pin::pin!(metadata(&broker, &caller, all()));
    let mut second = std::pin::pin!(metadata(&broker, &caller, all()));
    let mut turns = 0;
    let listed = loop {
        if let Some(listed) = (&mut first).now_or_never() {
            break listed;
        }
        assert!((&mut second).now_or_never().is_none(), "it has its turn after the first");
        let short = metadata(&broker, &caller, these(["t0007".to_owned()])).now_or_never();
        assert_eq!(names(&short.expect("few topics are told at once")), ["t0007"]);
        turns += 1;
        tokio::task::yield_now().await;
    };
    assert!(turns >= MANY / TOPICS_PER_TURN, "{turns}");
    assert_eq!(names(&listed), wanted);
    assert_eq!(names(&second.await), wanted);
}

#[tokio::test]
async fn topics_that_are_named_are_told_of_in_slices_too() {
    let broker = broker().await;
    let caller = caller();
    let wanted: Vec<String> = (0..MANY).map(|i| format!("t{i:04}")).collect();
    let mut told = std::pin::pin!(metadata(&broker, &caller, these(wanted.clone())));
    let mut turns = 0;
    let told = loop {
        match (&mut told).now_or_never() {
            Some(told) => break told,
            None => turns += 1,
        }
    };
    assert_eq!((turns, names(&told)), (MANY / TOPICS_PER_TURN, wanted.iter().map(String::as_str).collect()));
}
