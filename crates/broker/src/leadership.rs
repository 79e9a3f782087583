//! The leadership of a broker in a cluster: a broker exists on the node that leads, for as long as it leads.
//!
//! The store outlives the broker then, and so do the ids of topics: both belong to the cluster. A broker without a
//! leadership is alone, owns its store and stops it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::cluster::{ClusterStatus, JoinToken};
use engine::{Error, ErrorKind, ONLY_EPOCH, Result, Storage};
use storage::StoredTopic;

use crate::clock::Clock;
use crate::doors::Door;

/// Lag in bytes up to which a node that is alive counts as in sync.
pub const IN_SYNC_BYTES: u64 = 1 << 20;
/// Number of topics in an error that lists them.
const NAMED_MAX: usize = 5;

/// Leadership of this node, under which a broker serves.
#[derive(Clone)]
pub struct Leadership {
    /// Term of the election. Batches have it as their leader epoch.
    pub term: u64,
    /// Number of this node, which leads.
    pub node: u64,
    /// Number from which the ids of topics and of the cluster are made: that of the founder's data directory.
    pub ids: u64,
    pub nodes: Arc<dyn Nodes>,
}

/// Removal of a node.
pub type Removing<'n> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'n>>;

/// Nodes of the cluster, as this node knows them.
pub trait Nodes: Send + Sync {
    /// Returns all nodes, the leader among them, ordered by number.
    fn nodes(&self) -> Vec<NodeInfo>;

    /// Returns the node that leads now, if it is known. After the end of a leadership it may be another one.
    fn leader(&self) -> Option<u64> {
        None
    }

    /// Passes the leadership to another node. Returns once that has begun; the leadership of this node ends soon after.
    fn transfer(&self, to: u64) -> Result<()>;

    /// Returns the state of the cluster. By default, nodes are not operated through the broker: this and the operations
    /// below fail with `unsupported`.
    fn status(&self) -> Result<ClusterStatus> {
        Err(not_operated())
    }

    /// Removes a node, whose number is never given again. Returns once the removal is durable.
    fn remove(&self, _node: u64) -> Removing<'_> {
        Box::pin(async { Err(not_operated()) })
    }

    /// Issues a token with which one node can join within a number of minutes.
    fn issue_token(&self, _minutes: u32) -> Result<JoinToken> {
        Err(not_operated())
    }
}

fn not_operated() -> Error {
    Error::new(ErrorKind::Unsupported, "the nodes of this cluster are not operated through its broker")
}

/// Facts about a node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    pub id: u64,
    /// Doors of the node, each with the host name and the port for its clients.
    pub doors: Vec<(Door, String, u16)>,
    /// Addresses at which the other nodes reach this one.
    pub cluster_addresses: Vec<(String, u16)>,
    /// `true` if the node has answered recently; always `true` for the leader.
    pub is_alive: bool,
    /// `true` if the node votes; otherwise it only follows.
    pub is_voter: bool,
    /// Bytes of the log that the node does not have yet.
    pub lag_bytes: u64,
    /// Index after the last entry that the node has on its disk.
    pub log_end: u64,
    /// Time of the last answer of the node, in milliseconds since 1970, if it has answered.
    pub last_fetch_ms: Option<u64>,
    /// Time at which the node last had all entries of that time, in milliseconds since 1970, if it ever had.
    pub last_caught_up_ms: Option<u64>,
}

impl NodeInfo {
    /// Returns the address of one of the node's doors for its clients.
    pub fn door(&self, door: Door) -> Option<(&str, u16)> {
        self.doors.iter().find(|(own, _, _)| *own == door).map(|(_, host, port)| (host.as_str(), *port))
    }

    /// Returns `true` if the node is alive and has nearly all of the log.
    pub fn is_in_sync(&self) -> bool {
        self.is_alive && self.lag_bytes <= IN_SYNC_BYTES
    }
}

impl Leadership {
    /// Refuses topics that a cluster cannot have, because their records are not in its log.
    pub fn check_topics(topics: &[StoredTopic]) -> Result<()> {
        let in_database = |topic: &&StoredTopic| topic.settings.storage == Storage::Sqlite;
        let names: Vec<&str> = topics.iter().filter(in_database).map(|topic| topic.name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let count = names.len();
        let shown = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = if count > NAMED_MAX { ", .." } else { "" };
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the data directory has {count} topics with storage sqlite ({shown}{more}), which a cluster does not \
                 replicate: start the directory alone, copy their records to topics with storage disk, and delete them"
            ),
        ))
    }

    /// Returns the leader epoch of this term.
    pub(crate) fn epoch(&self) -> Result<i32> {
        i32::try_from(self.term).map_err(|error| {
            let message = format!("term {} is no leader epoch ({error}): at most {}", self.term, i32::MAX);
            Error::new(ErrorKind::Unsupported, message)
        })
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("term", &self.term).field("node", &self.node).finish_non_exhaustive()
    }
}

/// Facts that all partitions of a broker share: their clock, and the leader epoch of their batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    pub clock: Clock,
    pub epoch: i32,
}

/// The role of a core: alone, or leader until the leadership ends.
pub(crate) struct Role {
    leadership: Option<Leadership>,
    epoch: i32,
    has_ended: AtomicBool,
}

impl Role {
    pub(crate) fn new(leadership: Option<Leadership>) -> Result<Self> {
        let epoch = leadership.as_ref().map_or(Ok(ONLY_EPOCH), Leadership::epoch)?;
        Ok(Self { leadership, epoch, has_ended: AtomicBool::new(false) })
    }

    pub(crate) fn epoch(&self, clock: Clock) -> Epoch {
        Epoch { clock, epoch: self.epoch }
    }

    pub(crate) fn leadership(&self) -> Option<&Leadership> {
        self.leadership.as_ref()
    }

    /// Notes the end of the leadership. Returns `false` if it had ended before.
    pub(crate) fn end(&self) -> bool {
        !self.has_ended.swap(true, Ordering::AcqRel)
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Leadership {
    /// Returns the error of a request that only the leader executes, after the end of this leadership.
    pub(crate) fn not_leader(&self) -> Error {
        let Self { term, node, nodes, .. } = self;
        let leader = nodes.leader().filter(|leader| leader != node);
        let Some(leader) = leader else {
            let message = format!("node {node} no longer leads (term {term} ended), and the next leader is not known");
            return Error::not_leader(message, None);
        };
        let address = nodes.nodes().into_iter().find(|info| info.id == leader);
        let address = address.and_then(|info| info.door(Door::Native).map(|(host, port)| format!("{host}:{port}")));
        let message = format!("node {node} no longer leads (term {term} ended): node {leader} does");
        Error::not_leader(message, address.as_deref())
    }
}
