//! The nodes of the cluster, as the broker of the leader sees them.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::{Door, NodeInfo, Nodes, Removing};
use cluster::node::{Node, NodeStatus, Status};
use engine::cluster::{ClusterStatus, JoinToken};
use engine::{Error, ErrorKind, Result};

/// Bytes that stand for one entry of the log, of which only the number is known.
const ENTRY_BYTES: u64 = 64 << 10;

/// Nodes of a cluster. It holds nothing of the node: the broker ends before.
pub(super) struct OfNode(pub(super) Weak<Node>);

impl OfNode {
    fn node(&self) -> Result<Arc<Node>> {
        self.0.upgrade().ok_or_else(|| Error::new(ErrorKind::ShuttingDown, "the node is stopping"))
    }
}

impl Nodes for OfNode {
    fn nodes(&self) -> Vec<NodeInfo> {
        let Ok(node) = self.node() else { return Vec::new() };
        let status = node.status();
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        status.nodes.iter().map(|of| info(of, status.committed, now_ms)).collect()
    }

    fn leader(&self) -> Option<u64> {
        self.node().ok()?.stance().leader
    }

    fn transfer(&self, to: u64) -> Result<()> {
        self.node()?.transfer(to)
    }

    fn status(&self) -> Result<ClusterStatus> {
        Ok(shown(self.node()?.status()))
    }

    fn remove(&self, node: u64) -> Removing<'_> {
        Box::pin(async move { self.node()?.remove(node).await })
    }

    fn issue_token(&self, minutes: u32) -> Result<JoinToken> {
        let expires = SystemTime::now() + Duration::from_secs(60 * u64::from(minutes));
        Ok(JoinToken::new(self.node()?.issue_token(expires)?.reveal()))
    }
}

/// Returns the state of the cluster for operators.
pub(super) fn shown(status: Status) -> ClusterStatus {
    let node = |of: NodeStatus| engine::cluster::NodeStatus {
        node: of.node,
        address: of.address,
        program: of.program,
        doors: of.doors.into_iter().collect(),
        is_leader: of.is_leader,
        is_voter: of.is_voter,
        is_alive: of.is_alive,
        is_catching_up: of.is_catching_up,
        is_leaving: of.is_leaving,
        behind: of.behind,
        silent_ms: (of.silent_ms < u64::MAX).then_some(of.silent_ms),
    };
    ClusterStatus {
        cluster: status.cluster,
        node: status.node,
        leader: status.leader,
        term: status.term,
        committed: status.committed,
        applied: status.applied,
        elections: status.elections,
        waiting_bytes: status.load.waiting_bytes,
        catch_ups: status.catch_ups,
        caught_up_bytes: status.caught_up_bytes,
        format: status.format,
        nodes: status.nodes.into_iter().map(node).collect(),
    }
}

fn info(of: &NodeStatus, committed: u64, now_ms: u64) -> NodeInfo {
    let split = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
    };
    let doors = of.doors.iter().filter_map(|(key, address)| {
        let door = Door::ALL.into_iter().find(|door| door.key() == key)?;
        let (host, port) = split(address)?;
        Some((door, host, port))
    });
    let heard_ms = now_ms.saturating_sub(of.silent_ms);
    NodeInfo {
        id: of.node,
        doors: doors.collect(),
        cluster_addresses: split(&of.address).into_iter().collect(),
        is_alive: of.is_alive,
        is_voter: of.is_voter,
        lag_bytes: of.behind.saturating_mul(ENTRY_BYTES),
        log_end: committed.saturating_sub(of.behind) + 1,
        last_fetch_ms: (of.silent_ms < u64::MAX).then_some(heard_ms),
        last_caught_up_ms: (of.silent_ms < u64::MAX && of.behind == 0).then_some(heard_ms),
    }
}
