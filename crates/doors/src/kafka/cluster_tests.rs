//! Responses of a leader in a cluster of several nodes to Kafka's clients and tools.
//!
//! The expected values are those of Kafka's protocol (`clients/src/main/resources/common/message/*.json`), of KIP-320
//! (leader epochs), KIP-460 (ElectLeaders), KIP-595 and KIP-836 (DescribeQuorum) and KIP-112 (offline replicas).

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use broker::{Identity, Isolation, Leadership, Nodes, Wakes};
use engine::{Acks, BatchBuilder, Error, Result, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

use super::super::caller::Caller;
use super::super::fetch::{FetchBudget, FetchPartition, FetchRequest};
use super::super::map;
use super::super::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use super::super::messages::create_topics::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse,
};
use super::super::messages::describe_cluster::DescribeClusterRequest;
use super::super::messages::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use super::super::messages::describe_quorum::{DescribeQuorumRequest, PartitionData, TopicData};
use super::super::messages::elect_leaders::{ElectLeadersRequest, ElectLeadersResponse, TopicPartitions};
use super::super::messages::find_coordinator::{FindCoordinatorRequest, FindCoordinatorResponse};
use super::super::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use super::super::messages::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use super::super::messages::metadata::{MetadataRequest, MetadataResponse};
use super::super::messages::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use super::super::messages::{Request, Response};
use super::super::share::ShareConnection;
use super::*;

/// Term of the leadership in most tests.
const TERM: u64 = 7;
/// Node that leads.
const LEADER: u64 = 2;

/// Nodes 1 to 3, which vote, and node 4, which only follows.
struct Fake {
    nodes: Mutex<Vec<NodeInfo>>,
    leader: Mutex<Option<u64>>,
    transfers: Mutex<Vec<u64>>,
}

impl Fake {
    fn new() -> Arc<Self> {
        let node = |id: u64| NodeInfo {
            id,
            doors: vec![
                (Door::Native, format!("n{id}.example"), 7400),
                (Door::Kafka, format!("n{id}.example"), 9090 + id as u16),
            ],
            cluster_addresses: vec![(format!("n{id}.internal"), 7402)],
            is_alive: true,
            is_voter: id != 4,
            lag_bytes: 0,
            log_end: 100 - id,
            last_fetch_ms: Some(1000 + id),
            last_caught_up_ms: Some(900 + id),
        };
        let nodes = Mutex::new((1..=4).map(node).collect());
        Arc::new(Self { nodes, leader: Mutex::new(Some(LEADER)), transfers: Mutex::default() })
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut NodeInfo)) {
        let mut nodes = self.nodes.lock().expect("no panic");
        change(nodes.iter_mut().find(|node| node.id == id).expect("there"));
    }
}

impl Nodes for Fake {
    fn nodes(&self) -> Vec<NodeInfo> {
        self.nodes.lock().expect("no panic").clone()
    }

    fn leader(&self) -> Option<u64> {
        *self.leader.lock().expect("no panic")
    }

    fn transfer(&self, to: u64) -> Result<()> {
        if self.nodes().iter().all(|node| node.id != to) {
            return Err(Error::invalid("there is no such node"));
        }
        self.transfers.lock().expect("no panic").push(to);
        Ok(())
    }
}

/// A leader over a data directory, with topic `t` on disk and `m` in memory.
struct World {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    broker: Arc<Broker>,
    nodes: Arc<Fake>,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
        let clock = broker::Clock::SYSTEM.read();
        let (store, _) = Store::open(Arc::new(RealDisk), dir.path(), settings, clock, &mut |_| {}).expect("opened");
        let nodes = Fake::new();
        let broker = lead(&store, &nodes, TERM);
        let disk = TopicSettings { partitions: 2, ..TopicSettings::of_broker() };
        broker.create_topic("t", disk).await.expect("created");
        let memory = TopicSettings { storage: Storage::Memory, ..TopicSettings::of_broker() };
        broker.create_topic("m", memory).await.expect("created");
        Self { _dir: dir, store, broker, nodes }
    }

    /// Replaces the broker by that of the next leadership of this node.
    fn lead_again(&mut self, term: u64) {
        self.broker.stop().expect("stopped");
        self.broker = lead(&self.store, &self.nodes, term);
    }

    async fn ask(&self, request: Request) -> Response {
        map::answer(&self.broker, &caller(), request).await
    }

    async fn metadata(&self) -> MetadataResponse {
        match self.ask(Request::Metadata(MetadataRequest { topics: None, ..Default::default() })).await {
            Response::Metadata(response) => response,
            other => panic!("{other:?}"),
        }
    }

    async fn find_group(&self) -> FindCoordinatorResponse {
        let request =
            FindCoordinatorRequest { key: "g".into(), key_type: 0, coordinator_keys: vec!["g".into(), "h".into()] };
        match self.ask(Request::FindCoordinator(request)).await {
            Response::FindCoordinator(response) => response,
            other => panic!("{other:?}"),
        }
    }

    async fn elect(&self, election_type: i8, asked: Option<&[(&str, &[i32])]>) -> ElectLeadersResponse {
        let of = |(topic, partitions): &(&str, &[i32])| TopicPartitions {
            topic: (*topic).to_owned(),
            partitions: partitions.to_vec(),
        };
        let topic_partitions = asked.map(|asked| asked.iter().map(of).collect());
        let request = ElectLeadersRequest { election_type, topic_partitions, timeout_ms: 1000 };
        match self.ask(Request::ElectLeaders(request)).await {
            Response::ElectLeaders(response) => response,
            other => panic!("{other:?}"),
        }
    }

    async fn publish(&self, partition: u32, values: &[&str]) {
        let mut builder = BatchBuilder::new();
        for value in values {
            builder.push(1, None, Some(value.as_bytes()), &[]).expect("small");
        }
        let batch = builder.finish().expect("records");
        let mut wakes = Wakes::default();
        self.broker.publish("t", Some(partition), Acks::Committed, batch, &mut wakes).await.expect("published");
    }

    /// Returns the codes, epochs and end offsets for these pairs of the current and the wanted epoch.
    async fn ends(&self, asked: &[(i32, i32)]) -> Vec<(i16, i32, i64)> {
        let mut ends = Vec::new();
        for (current_leader_epoch, leader_epoch) in asked.iter().copied() {
            let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch, leader_epoch };
            let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] };
            let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
            let Response::OffsetForLeaderEpoch(response) = self.ask(Request::OffsetForLeaderEpoch(request)).await
            else {
                panic!("another response");
            };
            let end = &response.topics[0].partitions[0];
            ends.push((end.error_code, end.leader_epoch, end.end_offset));
        }
        ends
    }

    /// Returns the code, the offset and the epoch of the offset for a time.
    async fn list_offset(&self, current_leader_epoch: i32, timestamp: i64) -> (i16, i64, i32) {
        let partition = ListOffsetsPartition { partition_index: 0, current_leader_epoch, timestamp };
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let Response::ListOffsets(response) = self.ask(Request::ListOffsets(request)).await else {
            panic!("another response");
        };
        let found = &response.topics[0].partitions[0];
        (found.error_code, found.offset, found.leader_epoch)
    }

    async fn create(&self, topic: CreatableTopic) -> CreateTopicsResponse {
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, validate_only: false };
        match self.ask(Request::CreateTopics(request)).await {
            Response::CreateTopics(response) => response,
            other => panic!("{other:?}"),
        }
    }
}

fn lead(store: &Arc<Store>, nodes: &Arc<Fake>, term: u64) -> Arc<Broker> {
    let leadership = Leadership { term, node: LEADER, ids: 5, nodes: nodes.clone() };
    let stored = (store.clone(), store.topics());
    Broker::start_leading(broker::Settings::default(), &[Handle::current()], stored, leadership).expect("started")
}

fn caller() -> Caller {
    Caller {
        client: "test".into(),
        identity: Arc::new(Identity::anonymous("localhost")),
        // A client that another node has passed on.
        advertised: ("n3.example".into(), 9093),
        version: 2,
        leaving: Default::default(),
        shares: ShareConnection::new(Arc::default(), Weak::new()).into(),
        mute: Default::default(),
        wait_ms: Default::default(),
    }
}

/// MetadataResponse.json: `Brokers`, `ControllerId`, `LeaderEpoch`, `ReplicaNodes`, `IsrNodes`, `OfflineReplicas`.
/// Kafka lists the brokers that are alive (`MetadataCache.getAliveBrokerNodes`). This door also lists node 3, which is
/// not: librdkafka would discard it, and with it the coordinator of a transaction that waits for it.
#[tokio::test]
async fn metadata_name_the_leader_and_the_replicas_on_all_voters() {
    let world = World::new().await;
    world.nodes.change(3, |node| node.is_alive = false);
    world.nodes.change(1, |node| node.lag_bytes = broker::IN_SYNC_BYTES);
    let metadata = world.metadata().await;
    let brokers: Vec<_> = metadata.brokers.iter().map(|node| (node.node_id, node.host.as_str(), node.port)).collect();
    let hosts = ["n1.example", "n2.example", "n3.example", "n4.example"];
    assert_eq!(brokers, [1, 2, 3, 4].map(|id| (id, hosts[id as usize - 1], 9090 + id)));
    assert_eq!(metadata.controller_id, 2);
    let [memory, disk] = &metadata.topics[..] else { panic!("{metadata:?}") };
    assert_eq!(disk.partitions.len(), 2);
    for partition in &disk.partitions {
        assert_eq!((partition.error_code, partition.leader_id, partition.leader_epoch), (0, 2, TERM as i32));
        assert_eq!(partition.replica_nodes, [1, 2, 3]);
        assert_eq!((&partition.isr_nodes[..], &partition.offline_replicas[..]), (&[1, 2][..], &[3][..]));
    }
    let partition = &memory.partitions[0];
    assert_eq!((&partition.replica_nodes[..], &partition.isr_nodes[..]), (&[2][..], &[2][..]));
    // A node that lags far behind is not in sync.
    world.nodes.change(1, |node| node.lag_bytes = broker::IN_SYNC_BYTES + 1);
    assert_eq!(world.metadata().await.topics[1].partitions[0].isr_nodes, [2]);
}

/// LEADER_NOT_AVAILABLE (5) and COORDINATOR_NOT_AVAILABLE (15) are retriable: clients request the metadata again.
#[tokio::test]
async fn the_coordinator_is_the_leader_and_after_its_leadership_the_next_one() {
    let world = World::new().await;
    let found = world.find_group().await;
    assert_eq!((found.error_code, found.node_id, found.host.as_str(), found.port), (0, 2, "n2.example", 9092));
    assert_eq!(found.coordinators.len(), 2);
    for found in &found.coordinators {
        assert_eq!((found.error_code, found.node_id, found.host.as_str(), found.port), (0, 2, "n2.example", 9092));
    }
    *world.nodes.leader.lock().expect("no panic") = None;
    world.broker.stop().expect("stopped");
    let found = world.find_group().await;
    assert_eq!((found.error_code, found.node_id, found.port), (15, -1, -1));
    let metadata = world.metadata().await;
    assert_eq!((metadata.controller_id, metadata.topics[1].partitions[0].error_code), (-1, 5));
    *world.nodes.leader.lock().expect("no panic") = Some(1);
    let found = world.find_group().await;
    assert_eq!((found.error_code, found.node_id, found.host.as_str(), found.port), (0, 1, "n1.example", 9091));
    assert_eq!(world.metadata().await.topics[1].partitions[0].leader_id, 1);
}

/// KIP-1073: fenced brokers are listed if they are requested.
#[tokio::test]
async fn the_cluster_is_described_with_its_nodes() {
    let world = World::new().await;
    world.nodes.change(3, |node| node.is_alive = false);
    for (include_fenced_brokers, expected) in
        [(false, vec![(1, false), (2, false), (4, false)]), (true, vec![(1, false), (2, false), (4, false), (3, true)])]
    {
        let request = DescribeClusterRequest { endpoint_type: 1, include_fenced_brokers, ..Default::default() };
        let Response::DescribeCluster(response) = world.ask(Request::DescribeCluster(request)).await else {
            panic!("another response");
        };
        let nodes: Vec<_> = response.brokers.iter().map(|node| (node.broker_id, node.is_fenced)).collect();
        assert_eq!((response.controller_id, nodes), (2, expected));
    }
}

/// DescribeQuorumResponse.json. The high watermark is what a majority of the voters has (KIP-595), and the times are
/// those of KIP-836: -1 for a node that has not fetched yet.
#[tokio::test]
async fn the_quorum_has_voters_observers_and_a_high_watermark() {
    let world = World::new().await;
    world.nodes.change(3, |node| {
        node.log_end = 40;
        node.last_caught_up_ms = None;
    });
    let partition = PartitionData { partition_index: 0 };
    let topic = TopicData { topic_name: "__cluster_metadata".into(), partitions: vec![partition] };
    let request = DescribeQuorumRequest { topics: vec![topic] };
    let Response::DescribeQuorum(response) = world.ask(Request::DescribeQuorum(request)).await else {
        panic!("another response");
    };
    let quorum = &response.topics[0].partitions[0];
    assert_eq!((quorum.error_code, quorum.leader_id, quorum.leader_epoch), (0, 2, TERM as i32));
    assert_eq!(quorum.high_watermark, 98);
    let voters: Vec<_> = quorum.current_voters.iter().map(|voter| (voter.replica_id, voter.log_end_offset)).collect();
    assert_eq!(voters, [(1, 99), (2, 98), (3, 40)]);
    let times: Vec<_> =
        quorum.current_voters.iter().map(|at| (at.last_fetch_timestamp, at.last_caught_up_timestamp)).collect();
    assert_eq!((times[0], times[2]), ((1001, 901), (1003, -1)));
    assert!(times[1].0 > 1_600_000_000_000 && times[1].0 == times[1].1, "the leader is always current: {times:?}");
    let observers: Vec<_> = quorum.observers.iter().map(|observer| observer.replica_id).collect();
    assert_eq!(observers, [4]);
    let addresses: Vec<_> = response.nodes.iter().map(|node| (node.node_id, node.listeners[0].host.as_str())).collect();
    assert_eq!(addresses, [(1, "n1.internal"), (2, "n2.internal"), (3, "n3.internal")]);
}

/// KIP-460. Codes: ELECTION_NOT_NEEDED 84, PREFERRED_LEADER_NOT_AVAILABLE 80, UNKNOWN_TOPIC_OR_PARTITION 3.
#[tokio::test]
async fn an_election_passes_the_leadership_to_the_preferred_replica() {
    let world = World::new().await;
    let codes = |response: &ElectLeadersResponse| -> Vec<(String, Vec<(i32, i16)>)> {
        let of = response.replica_election_results.iter();
        of.map(|topic| {
            let results = topic.partition_result.iter();
            (topic.topic.clone(), results.map(|result| (result.partition_id, result.error_code)).collect())
        })
        .collect()
    };
    let asked: &[(&str, &[i32])] = &[("t", &[0, 1, 9]), ("m", &[0])];
    let unclean = world.elect(1, Some(asked)).await;
    assert_eq!(codes(&unclean), [("t".into(), vec![(0, 84), (1, 84), (9, 3)]), ("m".into(), vec![(0, 84)])]);
    world.nodes.change(1, |node| node.is_alive = false);
    let away = world.elect(0, Some(asked)).await;
    assert_eq!(codes(&away)[0].1, [(0, 80), (1, 80), (9, 3)]);
    assert_eq!(*world.nodes.transfers.lock().expect("no panic"), Vec::<u64>::new());

    world.nodes.change(1, |node| node.is_alive = true);
    let elected = world.elect(0, Some(asked)).await;
    assert_eq!(codes(&elected), [("t".into(), vec![(0, 0), (1, 0), (9, 3)]), ("m".into(), vec![(0, 84)])]);
    assert_eq!(elected.replica_election_results[0].partition_result[0].error_message, None);
    assert_eq!(*world.nodes.transfers.lock().expect("no panic"), [1], "once for all partitions");
    // All partitions: those that need no election are not listed.
    assert_eq!(codes(&world.elect(0, None).await), [("t".into(), vec![(0, 0), (1, 0)])]);
    world.nodes.change(1, |node| node.is_voter = false);
    assert_eq!(codes(&world.elect(0, Some(&[("t", &[0])])).await), [("t".into(), vec![(0, 84)])]);
    assert_eq!(world.elect(7, None).await.error_code, 42, "an unknown type of election");
}

/// KIP-320: FENCED_LEADER_EPOCH 74 for an older epoch, UNKNOWN_LEADER_EPOCH 75 for a newer one; -1 is none.
#[tokio::test]
async fn requests_with_another_leader_epoch_are_refused() {
    let world = World::new().await;
    world.publish(0, &["a", "b"]).await;
    let term = TERM as i32;
    let budget = FetchBudget::new(1 << 20);
    for (epoch, code) in [(-1, 0), (0, 74), (term - 1, 74), (term, 0), (term + 1, 75)] {
        assert_eq!(world.list_offset(epoch, -1).await.0, code, "{epoch}");
        assert_eq!(world.ends(&[(epoch, term)]).await[0].0, code, "{epoch}");
        let partition = FetchPartition { partition: 0, leader_epoch: epoch, offset: 0, bytes_max: 1 << 20 };
        let request = FetchRequest {
            wait: Duration::ZERO,
            bytes_min: 0,
            bytes_max: 1 << 20,
            isolation: Isolation::Uncommitted,
            has_session: false,
            topics: vec![("t".into(), vec![partition])],
        };
        let fetched = map::fetch(&world.broker, &budget, &caller(), &request).await;
        let fetched = &fetched.topics[0].1[0].1;
        assert_eq!(fetched.as_ref().err().map_or(0, |code| code.0), code, "{epoch}");
        if let Ok(found) = fetched {
            assert_eq!(found.batches[0].leader_epoch(), term, "consumers validate the epochs of batches");
        }
    }
}

/// OffsetForLeaderEpochResponse.json: the largest epoch up to the wanted one, and its end offset; -1 and -1 for a
/// future epoch (`LeaderEpochFileCache.endOffsetFor`).
#[tokio::test]
async fn the_end_of_an_epoch_is_found_in_the_log() {
    let mut world = World::new().await;
    assert_eq!(world.ends(&[(7, 7), (7, 3)]).await, [(0, 7, 0), (0, 3, 0)], "an empty log");
    for (term, count) in [(7, 5), (9, 1), (12, 8), (13, 0), (20, 2)] {
        if term > 7 {
            world.lead_again(term);
        }
        for _ in 0..count {
            world.publish(0, &["a", "b", "c"]).await;
        }
    }
    let asked: Vec<(i32, i32)> = [3, 7, 8, 9, 10, 12, 13, 19, 20, 21].into_iter().map(|epoch| (20, epoch)).collect();
    let ends = world.ends(&asked).await;
    let expected = [
        (0, 3, 0),
        (0, 7, 15),
        (0, 7, 15),
        (0, 9, 18),
        (0, 9, 18),
        (0, 12, 42),
        (0, 12, 42),
        (0, 12, 42),
        (0, 20, 48),
        (0, -1, -1),
    ];
    assert_eq!(ends, expected);
    // Without records of the current term, the last epoch ends at the end of the log.
    world.lead_again(21);
    assert_eq!(world.ends(&[(21, 20), (21, 21), (21, 12)]).await, [(0, 20, 48), (0, 21, 48), (0, 12, 42)]);
    // ListOffsets: the epoch of the record, and the current one at the end.
    assert_eq!(world.list_offset(21, -2).await, (0, 0, 7));
    assert_eq!(world.list_offset(21, -1).await, (0, 48, 21));
    world.broker.delete_records("t", 0, 16).await.expect("deleted");
    assert_eq!(world.list_offset(21, -2).await, (0, 16, 9));
    assert_eq!(world.ends(&[(21, 7), (21, 9)]).await, [(0, 7, 16), (0, 9, 18)]);
}

/// INVALID_REPLICATION_FACTOR 38, INVALID_REPLICA_ASSIGNMENT 39, INVALID_CONFIG 40.
#[tokio::test]
async fn topics_are_created_with_up_to_as_many_replicas_as_nodes_vote() {
    let world = World::new().await;
    let topic = |name: &str, replication_factor| CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor,
        ..Default::default()
    };
    for (name, factor, code, replicas) in
        [("one", 1, 0, 3), ("three", 3, 0, 3), ("default", -1, 0, 3), ("four", 4, 38, -1), ("none", 0, 38, -1)]
    {
        let created = &world.create(topic(name, factor)).await.topics[0];
        assert_eq!((created.error_code, created.replication_factor), (code, replicas), "{name}");
    }
    for (name, value, code) in [("majority", "2", 0), ("less", "1", 0), ("all", "3", 40), ("zero", "0", 40)] {
        let config = CreatableTopicConfig { name: "min.insync.replicas".into(), value: Some(value.into()) };
        let created = world.create(CreatableTopic { configs: vec![config], ..topic(name, 3) }).await;
        assert_eq!(created.topics[0].error_code, code, "{name}: {:?}", created.topics[0].error_message);
    }
    for (nodes, code) in [(vec![3, 1, 2], 0), (vec![1, 2], 39), (vec![1, 2, 4], 39)] {
        let partition = ReassignablePartition { partition_index: 0, replicas: Some(nodes.clone()) };
        let topic = ReassignableTopic { name: "t".into(), partitions: vec![partition] };
        let request = AlterPartitionReassignmentsRequest {
            allow_replication_factor_change: true,
            topics: vec![topic],
            ..Default::default()
        };
        let Response::AlterPartitionReassignments(response) =
            world.ask(Request::AlterPartitionReassignments(request)).await
        else {
            panic!("another response");
        };
        assert_eq!(response.responses[0].partitions[0].error_code, code, "{nodes:?}");
    }
}

/// Kafka's tools request the settings of a node from that node, whose connections the leader serves.
#[tokio::test]
async fn every_node_has_its_settings() {
    let world = World::new().await;
    let alter = async |node: &str, bytes: &str| {
        let config =
            AlterableConfig { name: "log.retention.ms".into(), value: Some(bytes.into()), ..Default::default() };
        let resource = AlterConfigsResource { resource_type: 4, resource_name: node.into(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        match world.ask(Request::IncrementalAlterConfigs(request)).await {
            Response::IncrementalAlterConfigs(response) => response.responses[0].error_code,
            other => panic!("{other:?}"),
        }
    };
    let values = async |node: &str| {
        let resource = DescribeConfigsResource {
            resource_type: 4,
            resource_name: node.into(),
            configuration_keys: Some(vec!["node.id".into(), "log.retention.ms".into()]),
        };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let Response::DescribeConfigs(response) = world.ask(Request::DescribeConfigs(request)).await else {
            panic!("another response");
        };
        let result = &response.results[0];
        let value = |name: &str| {
            let found = result.configs.iter().find(|config| config.name == name);
            found.and_then(|config| config.value.clone()).unwrap_or_default()
        };
        (result.error_code, value("node.id"), value("log.retention.ms"))
    };
    assert_eq!(alter("3", "33000").await, 0);
    let retention_ms = |broker: &Broker| broker.outline_topic("t").expect("there").settings.retention_ms;
    let before = retention_ms(&world.broker);
    assert_ne!(before, 33000, "the settings of a node take effect when it leads");
    assert_eq!(alter("2", "22000").await, 0);
    assert_eq!(retention_ms(&world.broker), 22000);
    assert_eq!(values("2").await, (0, "2".into(), "22000".into()));
    assert_eq!(values("3").await, (0, "3".into(), "33000".into()));
    assert_eq!((alter("9", "1").await, values("9").await.0), (42, 42));
}

#[tokio::test]
async fn a_broker_that_is_alone_is_node_1_in_epoch_0() {
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    broker.create_topic("t", TopicSettings::of_broker()).await.expect("created");
    let cluster = Cluster::of(&broker, &("localhost".into(), 9092));
    assert_eq!((cluster.leader, cluster.epoch), (1, 0));
    assert_eq!(cluster.brokers().collect::<Vec<_>>(), [(1, "localhost", 9092)]);
    assert_eq!(cluster.fenced().count(), 0);
    for storage in [Storage::Memory, Storage::Disk, Storage::Sqlite] {
        assert_eq!((cluster.replicas(storage), cluster.in_sync_replicas(storage)), (vec![1], vec![1]));
        assert!(cluster.offline_replicas(storage).is_empty());
    }
    assert_eq!(broker.end_of_epoch("t", 0, 0).await, Ok(Some((0, 0))));
    assert_eq!(broker.end_of_epoch("t", 0, 1).await, Ok(None));
    let codes = [-1, 0, 1].map(|epoch| check_leader_epoch(&broker, epoch));
    assert_eq!(codes, [Ok(()), Ok(()), Err(Code::UNKNOWN_LEADER_EPOCH)]);
}
