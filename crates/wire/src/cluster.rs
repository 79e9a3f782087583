//! Nodes of a cluster, which a hello names to clients that ask for them.

use bytes::{Buf, BufMut, BytesMut};
use engine::{Error, Result};

use crate::field::{Fields, put_list, put_str};

/// Maximum number of nodes in a hello.
pub const NODES_MAX: usize = 64;
/// Minimum bytes of a node: its number, an empty host and a port.
const NODE_BYTES_MIN: usize = 12;

/// Cluster that the broker belongs to, as the node that leads it knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Id of the cluster, which no other cluster has.
    pub id: u64,
    /// Term of the leader. It grows with each election.
    pub term: u64,
    /// Number of the node that leads. It has answered the hello, even if another node has relayed the connection.
    pub leader: u64,
    /// All nodes with their native addresses, up to [`NODES_MAX`].
    pub nodes: Vec<ClusterNode>,
}

/// Node of a cluster, with the address of its native door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Number of the node.
    pub id: u64,
    /// Host name or IP address for clients, without brackets.
    pub host: String,
    /// Port of the native door, for TCP and for QUIC.
    pub port: u16,
}

impl Cluster {
    /// Returns the node that leads, if its address is known.
    pub fn leader_node(&self) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| node.id == self.leader)
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        b.put_u64(self.id);
        b.put_u64(self.term);
        b.put_u64(self.leader);
        put_list(b, &self.nodes[..self.nodes.len().min(NODES_MAX)], |b, node| {
            b.put_u64(node.id);
            put_str(b, &node.host);
            b.put_u16(node.port);
        });
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let (id, term, leader) = (f.u64()?, f.u64()?, f.u64()?);
        let nodes = f.list(NODE_BYTES_MIN, |f| Ok(ClusterNode { id: f.u64()?, host: f.str()?, port: f.u16()? }))?;
        if nodes.len() > NODES_MAX {
            return Err(Error::malformed(format!("a hello names at most {NODES_MAX} nodes, not {}", nodes.len())));
        }
        Ok(Self { id, term, leader, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_names_no_more_nodes_than_its_limit() {
        let node = |id| ClusterNode { id, host: "a.example".to_owned(), port: 7400 };
        let cluster = Cluster { nodes: (0..100).map(node).collect(), ..Cluster::default() };
        let mut body = BytesMut::new();
        cluster.put(&mut body);
        let read = Cluster::get(&mut Fields::new(body.clone())).expect("valid");
        assert_eq!(read.nodes, cluster.nodes[..NODES_MAX]);

        let mut body = BytesMut::new();
        (0..3).for_each(|_| body.put_u64(1));
        put_list(&mut body, &cluster.nodes[..NODES_MAX + 1], |b, _| b.put_bytes(0, NODE_BYTES_MIN));
        let error = Cluster::get(&mut Fields::new(body)).expect_err("one too many");
        assert_eq!(error.message, "a hello names at most 64 nodes, not 65");
    }
}
