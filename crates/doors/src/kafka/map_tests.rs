//! Requests with many batches or partitions, and the service of other connections in the meantime.

use broker::{Broker, Isolation};
use engine::{BatchBuilder, TopicSettings};
use tokio::runtime::Handle;

use super::super::admin::tests::{caller, in_turns};
use super::super::fetch::FetchPartition;
use super::*;

/// Partitions of the topic, each with one batch in a request: more than three turns of them.
const MANY: usize = 3 * BATCHES_PER_TURN + 1;

#[tokio::test]
async fn other_tasks_have_their_turn_between_batches_and_partitions_of_a_request() {
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let settings = TopicSettings { partitions: MANY as u32, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let batch = |number: usize| {
        let mut builder = BatchBuilder::new();
        builder.push(0, None, Some(number.to_string().as_bytes()), &[]).expect("a record");
        let batch = builder.finish().expect("a batch").stamp(0);
        (number as PartitionId, bytes::BytesMut::from(&batch.bytes()[..]))
    };
    let topics = vec![ProduceTopic { name: "t".into(), partitions: (0..MANY).map(batch).collect() }];
    let request = ProduceRequest { transactional_id: None, acks: Some(Acks::Accepted), topics, bytes: 0 };
    assert!(request.has_more_than(BATCHES_PER_TURN));
    let caller = caller();
    let (attempts, turns) = in_turns(publish_in_turns(&broker, &caller, request));
    let tried = attempts.iter().map(|tried| (&*tried.topic, tried.partition as usize, tried.attempt.is_ok()));
    assert!(tried.eq((0..MANY).map(|number| ("t", number, true))));
    assert_eq!(turns, 4);

    let position = |partition| FetchPartition { partition, leader_epoch: -1, offset: 0, bytes_max: 1 << 20 };
    let request = FetchRequest {
        wait: Duration::ZERO,
        bytes_min: 1,
        bytes_max: 1 << 30,
        isolation: Isolation::Uncommitted,
        has_session: false,
        topics: vec![("t".into(), (0..MANY as u32).map(position).collect())],
    };
    let budget = FetchBudget::new(1 << 30);
    let (fetched, turns) = in_turns(fetch(&broker, &budget, &caller, &request));
    let (_, partitions) = &fetched.topics[0];
    let ends: Vec<_> = partitions.iter().map(|(_, found)| found.as_ref().map(|found| found.end)).collect();
    assert_eq!(ends, vec![Ok(1); MANY]);
    // Three when the partitions are looked up, of which the first is not a turn of the thread, and three when they are
    // read.
    assert_eq!(turns, 5);
}
