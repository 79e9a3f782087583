//! The nodes of the broker's cluster, as a hello names them.

use broker::{Door, Leadership};
use wire::{Cluster, ClusterNode};

/// Describes the cluster to a client. Nodes without a native door have no address and are left out.
pub(super) fn describe(leadership: &Leadership) -> Cluster {
    let nodes = leadership.nodes.nodes().into_iter().filter_map(|node| {
        let (host, port) = node.door(Door::Native)?;
        Some(ClusterNode { id: node.id, host: host.to_owned(), port })
    });
    Cluster { id: leadership.ids, term: leadership.term, leader: leadership.node, nodes: nodes.collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use broker::{NodeInfo, Nodes};
    use engine::Result;

    use super::*;

    struct Two;

    impl Nodes for Two {
        fn nodes(&self) -> Vec<NodeInfo> {
            let doors =
                |port| vec![(Door::Kafka, "a.example".to_owned(), 9092), (Door::Native, "::1".to_owned(), port)];
            let silent = NodeInfo { id: 3, ..NodeInfo::default() };
            vec![NodeInfo { id: 2, doors: doors(7400), ..NodeInfo::default() }, silent]
        }

        fn transfer(&self, _to: u64) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nodes_with_a_native_door_are_named() {
        let described = describe(&Leadership { term: 7, node: 2, ids: 9, nodes: Arc::new(Two) });
        let node = ClusterNode { id: 2, host: "::1".to_owned(), port: 7400 };
        assert_eq!(described, Cluster { id: 9, term: 7, leader: 2, nodes: vec![node] });
    }
}
