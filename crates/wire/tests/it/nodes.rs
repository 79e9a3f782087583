//! Test vectors of the nodes of a cluster.

use engine::cluster::{ClusterStatus, JoinToken, NodeStatus};
use wire::{ClusterRequest, ClusterResponse};

pub fn requests() -> Vec<(&'static str, ClusterRequest)> {
    vec![
        ("cluster_describe", ClusterRequest::Describe),
        ("cluster_issue_token", ClusterRequest::IssueToken { minutes: 60 }),
        ("cluster_transfer", ClusterRequest::Transfer { to: 2 }),
        ("cluster_remove", ClusterRequest::Remove { node: 3 }),
    ]
}

fn status() -> ClusterStatus {
    let doors = vec![("native".into(), "10.0.0.1:7400".into()), ("kafka".into(), "10.0.0.1:9092".into())];
    let leader = NodeStatus {
        node: 1,
        address: "10.0.0.1:7402".into(),
        program: "0.1.0".into(),
        doors,
        is_leader: true,
        is_voter: true,
        is_alive: true,
        is_catching_up: false,
        is_leaving: false,
        behind: 0,
        silent_ms: Some(0),
    };
    let silent = NodeStatus {
        node: 2,
        address: "10.0.0.2:7402".into(),
        doors: Vec::new(),
        is_leader: false,
        is_alive: false,
        is_catching_up: true,
        is_leaving: true,
        behind: 1 << 40,
        silent_ms: None,
        ..leader.clone()
    };
    ClusterStatus {
        cluster: "0123456789abcdef0123456789abcdef".into(),
        node: 1,
        leader: Some(1),
        term: 7,
        committed: 1000,
        applied: 999,
        elections: 2,
        waiting_bytes: 4096,
        catch_ups: 3,
        caught_up_bytes: 1 << 30,
        format: 1,
        nodes: vec![leader, silent],
    }
}

pub fn responses() -> Vec<(&'static str, ClusterResponse)> {
    let without_leader = ClusterStatus { leader: None, nodes: Vec::new(), ..status() };
    vec![
        ("cluster_described", ClusterResponse::Described(status())),
        ("cluster_described_without_leader", ClusterResponse::Described(without_leader)),
        ("cluster_token_issued", ClusterResponse::TokenIssued(JoinToken::new("thalweg-join-...".into()))),
        ("cluster_transferring", ClusterResponse::Transferring),
        ("cluster_removed", ClusterResponse::Removed),
    ]
}
