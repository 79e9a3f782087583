//! State of the cluster, for people and for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use consensus::{NodeId, Term};
use serde::{Deserialize, Serialize};

use super::Node;
use crate::roster::Member;
use crate::shard::Load;
use crate::transport::SILENCE;

/// State of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub node: NodeId,
    /// Address of its cluster port.
    pub address: String,
    pub program: String,
    /// Addresses of its doors, by the door's key.
    pub doors: BTreeMap<String, String>,
    pub is_leader: bool,
    pub is_voter: bool,
    /// `true` if it has been heard in the last second.
    pub is_alive: bool,
    /// `true` while it fetches the state.
    pub is_catching_up: bool,
    /// `true` if it was removed and is still a member of the shard.
    pub is_leaving: bool,
    /// Entries of the log that it does not have on disk yet, as the leader knows it.
    pub behind: u64,
    /// Time since it was heard, in ms.
    pub silent_ms: u64,
}

/// State of the cluster, as one of its nodes knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the cluster, in hexadecimal.
    pub cluster: String,
    /// Node that reports this.
    pub node: NodeId,
    pub leader: Option<NodeId>,
    pub term: Term,
    pub committed: u64,
    pub applied: u64,
    pub nodes: Vec<NodeStatus>,
    /// Number of times that this node was elected since it started.
    pub elections: u64,
    /// Sizes of everything that grows in the log.
    #[serde(skip)]
    pub load: Load,
    /// Offsets that the present or the last catch-up of this node lacked, those that it has fetched, and the bytes that
    /// all have fetched.
    pub catch_up: (u64, u64, u64),
    /// Number of answers that waited because the lease of this leader had lapsed.
    pub lease_waits: u64,
    /// `true` if the node leaves the cluster, or has left it.
    pub is_removed: bool,
    /// Number of times that this node fetched the state, and the bytes that it sent to others that did.
    pub catch_ups: u64,
    pub caught_up_bytes: u64,
    /// Version of the log's rows that every node can read.
    pub format: u32,
    /// Number of partitions in which this node has found damage, and has not replaced the records yet.
    pub damaged_partitions: u64,
    /// Number of times that this node has replaced damaged records by those of the leader.
    pub mended: u64,
    /// Bytes of segments that this node has read to find damage.
    pub verified_bytes: u64,
    /// Reason why this node takes no part, if it does not.
    pub failed: Option<String>,
}

impl Node {
    /// Returns the state of the cluster as this node knows it. Only the leader knows how far the others are.
    pub fn status(&self) -> Status {
        let status = self.shard.status();
        let peers: BTreeMap<_, _> = self.shard.peers().into_iter().map(|peer| (peer.node, peer)).collect();
        let roster = self.shard.roster();
        let leader = self.stance().leader;
        let heard = self.heard.lock().clone();
        let now = self.shard.now();
        let is_shown = |node: &NodeId, member: &Member| !member.is_removed || status.members.contains(*node);
        let nodes = roster.nodes.iter().filter(|(node, member)| is_shown(node, member)).map(|(node, member)| {
            let is_own = *node == self.own;
            let silent =
                heard.get(node).map_or(Duration::MAX, |heard| Duration::from_nanos(now.saturating_sub(*heard)));
            let silent = if is_own { Duration::ZERO } else { silent };
            let peer = peers.get(node).filter(|_| leader == Some(self.own));
            NodeStatus {
                node: *node,
                address: member.address.clone(),
                program: member.program.clone(),
                doors: member.doors.clone(),
                is_leader: leader == Some(*node),
                is_voter: status.members.is_voter(*node),
                is_alive: silent < SILENCE,
                is_catching_up: peer.is_some_and(|peer| peer.is_installing),
                is_leaving: member.is_removed,
                behind: peer.map_or(0, |peer| status.last.index.saturating_sub(peer.matched)),
                silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
            }
        });
        let load = self.shard.load();
        let progress = self.shard.progress();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let catch_up = (of(&progress.wanted), of(&progress.fetched), of(&progress.bytes));
        Status {
            cluster: format!("{:032x}", self.settings.identity.cluster()),
            node: self.own,
            leader,
            term: status.term,
            committed: status.committed,
            applied: status.applied,
            nodes: nodes.collect(),
            elections: self.elections.load(Ordering::Relaxed),
            load,
            catch_up,
            lease_waits: self.lease_waits.load(Ordering::Relaxed),
            is_removed: self.is_removed() || roster.nodes.get(&self.own).is_some_and(|member| member.is_removed),
            catch_ups: self.catch_ups.load(Ordering::Relaxed),
            caught_up_bytes: self.caught_up_bytes.load(Ordering::Relaxed),
            format: roster.format(),
            damaged_partitions: self.store.damages().len() as u64,
            mended: self.mending.mended.load(Ordering::Relaxed),
            verified_bytes: self.mending.verified_bytes.load(Ordering::Relaxed),
            failed: self.shard.failed().map(|error| error.message),
        }
    }
}
