//! Ids of topics and brokers, across deletions and restarts.

use broker::{Broker, Settings};
use engine::{ErrorKind, Storage, TopicSettings};

use crate::durable::open;
use crate::support::start;

async fn create(broker: &Broker, name: &str, storage: Storage) -> engine::TopicId {
    let settings = TopicSettings { storage, ..TopicSettings::of_broker() };
    broker.create_topic(name, settings).await.expect("created").id
}

#[tokio::test]
async fn a_recreated_topic_has_another_id_and_a_grown_topic_keeps_its_id() {
    let broker = start(Settings::default());
    let first = create(&broker, "a", Storage::Memory).await;
    assert_eq!(broker.grow_topic("a", 3).await.expect("grown").id, first);
    assert_eq!(broker.topic_by_id(first).expect("found").as_str(), "a");
    broker.delete_topic("a").await.expect("deleted");
    assert_eq!(broker.topic_by_id(first).expect_err("it is gone").kind, ErrorKind::NotFound);
    let second = create(&broker, "a", Storage::Memory).await;
    assert_ne!(first, second);
    assert_eq!(broker.topic_by_id(second).expect("found").as_str(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_on_disk_outlive_the_broker_and_those_in_memory_do_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    let gone = create(&broker, "gone", Storage::Disk).await;
    let disk = create(&broker, "d", Storage::Disk).await;
    let memory = create(&broker, "m", Storage::Memory).await;
    broker.delete_topic("gone").await.expect("deleted");
    let cluster = broker.cluster_id();
    drop(broker);

    let broker = open(dir.path());
    assert_eq!(broker.cluster_id(), cluster);
    assert_eq!(broker.describe_topic("d").expect("it is there").id, disk);
    assert_eq!(broker.topic_by_id(disk).expect("found").as_str(), "d");
    let again = [create(&broker, "gone", Storage::Disk).await, create(&broker, "m", Storage::Memory).await];
    assert!(!again.contains(&gone) && !again.contains(&memory) && !again.contains(&disk));
    assert_ne!(start(Settings::default()).cluster_id(), cluster);
}
