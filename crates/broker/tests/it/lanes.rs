//! Assignment of subscriptions to lanes, by policy.

use std::collections::HashSet;

use broker::{Broker, LanePolicy, Origin, Settings, Subscription};
use tokio::runtime::Handle;

use crate::support::{Follow, ask, metric, publish, read_to, subscribe};

const LANES: usize = 8;

/// Returns the lanes of `each` subscriptions on each of `connections` connections; a connection's number is its thread.
fn lanes(policy: LanePolicy, connections: u64, each: usize) -> Vec<Vec<usize>> {
    let settings = Settings { writer_lanes: LANES, lane_policy: policy, ..Settings::default() };
    // Four nominal threads: lanes are spread over them.
    let threads = vec![Handle::current(); 4];
    let broker = Broker::start(settings, &threads).expect("started");
    let mut held: Vec<Subscription> = Vec::new();
    (0..connections)
        .map(|connection| {
            (0..each)
                .map(|_| {
                    let mut request = ask("t");
                    request.origin = Origin { connection, thread: Some(connection as usize), ..Origin::default() };
                    let subscription = subscribe(&broker, request).expect("subscribed");
                    let lane = subscription.lane;
                    held.push(subscription);
                    lane
                })
                .collect()
        })
        .collect()
}

/// `auto` stays on the connection's thread and takes the less busy lane there; the hashes keep subscriptions together
/// or spread them, as their names say; `round_robin_pin` takes turns.
#[tokio::test]
async fn each_policy_pins_as_it_says() {
    for (connection, lanes) in lanes(LanePolicy::Auto, 4, 6).into_iter().enumerate() {
        assert!(lanes.iter().all(|lane| lane % 4 == connection), "{lanes:?}");
        let distinct: HashSet<_> = lanes.iter().collect();
        assert_eq!(distinct.len(), LANES / 4, "both lanes of the thread are used");
    }
    let by_connection = lanes(LanePolicy::ConnectionIdHash, 32, 3);
    assert!(by_connection.iter().all(|lanes| lanes.iter().all(|lane| *lane == lanes[0])));
    assert!(by_connection.iter().map(|lanes| lanes[0]).collect::<HashSet<_>>().len() > LANES / 2);
    let by_subscriber = lanes(LanePolicy::SubscriberIdHash, 1, 64).remove(0);
    assert!(by_subscriber.into_iter().collect::<HashSet<_>>().len() > LANES / 2);
    let in_turn = lanes(LanePolicy::RoundRobinPin, 2, LANES).concat();
    assert_eq!(in_turn, (0..2 * LANES).map(|i| i % LANES).collect::<Vec<_>>());
}

/// Whatever the policy, every subscriber gets every record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_delivers() {
    for (_, policy) in LanePolicy::ALL {
        let broker = crate::support::start(Settings { lane_policy: policy, ..Settings::default() });
        let mut subscriptions: Vec<Subscription> = (0..8)
            .map(|connection| {
                let mut request = ask("t");
                request.origin = Origin { connection, ..Origin::default() };
                subscribe(&broker, request).expect("subscribed")
            })
            .collect();
        for _ in 0..300 {
            publish(&broker, "t", 0).await.expect("published");
        }
        for subscription in &mut subscriptions {
            let mut follow = Follow::of(subscription);
            read_to(subscription, &mut follow, 1, 300).await;
        }
        assert_eq!(metric(&broker, "thalweg_delivered_records_total"), 8 * 300);
    }
}
