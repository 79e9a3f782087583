//! The nodes of the cluster as Kafka's clients see them: brokers, leaders, replicas and epochs.
//!
//! One node leads every partition, coordinates every group and is the controller. Topics on disk have a replica on each
//! node that votes; topics in memory only have their leader.

use broker::{Broker, Door, NodeInfo};
use engine::Storage;

use super::errors::Code;
use super::outcome::Failure;

/// Id of the only node of a broker that is alone.
const ONLY_NODE: i32 = 1;
/// Id for no node.
const NO_NODE: i32 = -1;

/// Cluster at the time of one response.
pub(super) struct Cluster {
    /// Node that leads; -1 if it is not known.
    pub leader: i32,
    pub epoch: i32,
    /// All nodes, ordered by id.
    nodes: Vec<Node>,
}

/// A node, with the address for Kafka's clients if its door is open.
struct Node {
    id: i32,
    address: Option<(String, u16)>,
    is_alive: bool,
    info: Option<NodeInfo>,
}

impl Node {
    /// Returns the id with the address.
    fn at(&self) -> Option<(i32, &str, u16)> {
        self.address.as_ref().map(|(host, port)| (self.id, host.as_str(), *port))
    }
}

/// Converts the number of a node. Nodes are numbered from 1, and a cluster has few.
fn id_of(node: u64) -> i32 {
    i32::try_from(node).unwrap_or(i32::MAX)
}

/// Returns the id of this node.
pub(super) fn node_id(broker: &Broker) -> i32 {
    broker.leadership().map_or(ONLY_NODE, |leadership| id_of(leadership.node))
}

/// Returns the ids of all nodes.
pub(super) fn node_ids(broker: &Broker) -> Vec<i32> {
    match broker.leadership() {
        None => vec![ONLY_NODE],
        Some(leadership) => leadership.nodes.nodes().iter().map(|node| id_of(node.id)).collect(),
    }
}

/// Checks the name of a node: that of a node of the cluster, or the empty name, which means all nodes.
pub(super) fn check_node(broker: &Broker, name: &str) -> Result<(), Failure> {
    if name.is_empty() || node_ids(broker).iter().any(|node| node.to_string() == name) {
        return Ok(());
    }
    let message = match broker.leadership() {
        None => format!("there is no node {name}, only {}", node_id(broker)),
        Some(_) => format!("there is no node {name}; see thalweg status"),
    };
    Err((Code::INVALID_REQUEST, message))
}

/// Returns the number of replicas of a topic on disk.
pub(super) fn replication_factor(broker: &Broker) -> usize {
    match broker.leadership() {
        None => 1,
        Some(leadership) => leadership.nodes.nodes().iter().filter(|node| node.is_voter).count(),
    }
}

/// Returns the number of replicas that have every committed record.
pub(super) fn majority(broker: &Broker) -> usize {
    replication_factor(broker) / 2 + 1
}

/// Checks the leader epoch that a client names, as Kafka does (KIP-320): an older one means that the client's metadata
/// are outdated, and a newer one that this broker's are. A negative epoch is none.
pub(super) fn check_leader_epoch(broker: &Broker, epoch: i32) -> Result<(), Code> {
    match epoch.cmp(&broker.leader_epoch()) {
        _ if epoch < 0 => Ok(()),
        std::cmp::Ordering::Less => Err(Code::FENCED_LEADER_EPOCH),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Code::UNKNOWN_LEADER_EPOCH),
    }
}

impl Cluster {
    /// Returns the current cluster. `reached` is the address at which the client reaches it: that of a broker that is
    /// alone, and of a leader that knows none of its own.
    pub(super) fn of(broker: &Broker, reached: &(String, u16)) -> Self {
        let epoch = broker.leader_epoch();
        let Some(leadership) = broker.leadership() else {
            let only = Node { id: ONLY_NODE, address: Some(reached.clone()), is_alive: true, info: None };
            return Self { leader: ONLY_NODE, epoch, nodes: vec![only] };
        };
        let leads = broker.check_leads().is_ok();
        let leader = if leads { Some(leadership.node) } else { leadership.nodes.leader() };
        let leader = leader.map_or(NO_NODE, id_of);
        let node = |info: NodeInfo| {
            let id = id_of(info.id);
            let address = info.door(Door::Kafka).map(|(host, port)| (host.to_owned(), port));
            let address = address.or_else(|| (leads && id == leader).then(|| reached.clone()));
            Node { id, address, is_alive: info.is_alive || id == leader, info: Some(info) }
        };
        let mut nodes: Vec<Node> = leadership.nodes.nodes().into_iter().map(node).collect();
        nodes.sort_unstable_by_key(|node| node.id);
        Self { leader, epoch, nodes }
    }

    /// Returns the error of a partition without a leader.
    pub(super) fn leader_error(&self) -> Code {
        if self.leader == NO_NODE { Code::LEADER_NOT_AVAILABLE } else { Code::NONE }
    }

    /// Returns all nodes for metadata, with their addresses. Unlike Kafka, nodes that are not alive are listed until
    /// they are removed: librdkafka discards what is not listed, and a transaction whose cached coordinator was
    /// discarded waits until another connection changes its state (librdkafka issue 5511). Other clients try the next
    /// node.
    pub(super) fn members(&self) -> impl Iterator<Item = (i32, &str, u16)> {
        self.nodes.iter().filter_map(Node::at)
    }

    /// Returns the nodes that clients can reach, with their addresses. As in Kafka, nodes that are not alive are not
    /// listed.
    pub(super) fn brokers(&self) -> impl Iterator<Item = (i32, &str, u16)> {
        self.nodes.iter().filter(|node| node.is_alive).filter_map(Node::at)
    }

    /// Returns the nodes that are not alive, with their addresses.
    pub(super) fn fenced(&self) -> impl Iterator<Item = (i32, &str, u16)> {
        self.nodes.iter().filter(|node| !node.is_alive).filter_map(Node::at)
    }

    /// Returns the address of the leader, if it is known.
    pub(super) fn leader_address(&self) -> Option<(&str, u16)> {
        let leader = self.brokers().find(|(id, ..)| *id == self.leader);
        leader.map(|(_, host, port)| (host, port))
    }

    fn is_voter(node: &Node) -> bool {
        node.info.as_ref().is_none_or(|info| info.is_voter)
    }

    fn in_sync(&self, node: &Node) -> bool {
        node.id == self.leader || node.info.as_ref().is_some_and(NodeInfo::is_in_sync)
    }

    /// Returns the nodes that have a replica of a topic with this storage. The first is the preferred leader.
    pub(super) fn replicas(&self, storage: Storage) -> Vec<i32> {
        match storage {
            Storage::Memory => Vec::from_iter((self.leader != NO_NODE).then_some(self.leader)),
            _ => self.nodes.iter().filter(|node| Self::is_voter(node)).map(|node| node.id).collect(),
        }
    }

    /// Returns the replicas that are alive and have nearly all records.
    pub(super) fn in_sync_replicas(&self, storage: Storage) -> Vec<i32> {
        let mut replicas = self.replicas(storage);
        replicas.retain(|id| self.nodes.iter().any(|node| node.id == *id && self.in_sync(node)));
        replicas
    }

    /// Returns the replicas on nodes that are not alive.
    pub(super) fn offline_replicas(&self, storage: Storage) -> Vec<i32> {
        let mut replicas = self.replicas(storage);
        replicas.retain(|id| self.nodes.iter().any(|node| node.id == *id && !node.is_alive));
        replicas
    }

    /// Checks an assignment of replicas. The replicas of a topic cannot be chosen, so it names all nodes that vote.
    pub(super) fn check_replicas(&self, nodes: &[i32]) -> Result<(), Failure> {
        let wanted = self.replicas(Storage::Disk);
        let mut named = nodes.to_vec();
        named.sort_unstable();
        if named == wanted {
            return Ok(());
        }
        let message = match wanted.as_slice() {
            [only] => format!("replicas on {nodes:?}: the only node is {only}"),
            all => format!("replicas on {nodes:?}: a topic has one on each node that votes, which are {all:?}"),
        };
        Err((Code::INVALID_REPLICA_ASSIGNMENT, message))
    }

    /// Returns the facts about the nodes of a cluster that vote (`true`) or only follow (`false`), by id; none if the
    /// broker is alone.
    pub(super) fn infos(&self, votes: bool) -> impl Iterator<Item = (i32, &NodeInfo)> {
        let infos = self.nodes.iter().filter_map(|node| node.info.as_ref().map(|info| (node.id, info)));
        infos.filter(move |(_, info)| info.is_voter == votes)
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
