//! The nodes of the cluster, as the broker of the leader sees them.

use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use broker::{Door, NodeInfo, Nodes};
use cluster::node::{Node, NodeStatus};
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
