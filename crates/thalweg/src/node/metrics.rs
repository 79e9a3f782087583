//! Metrics of a node: its part in the cluster, its connections to other nodes, and the clients that it hands over.

use std::fmt;
use std::sync::atomic::Ordering;

use broker::metrics::Exposition;
use cluster::node::{Node, Status};
use cluster::shard::Load;
use cluster::transport::PeerStats;

use super::gateway::Gateway;

/// Metric of the connection to another node: its name, its help, and its value.
type OfPeer = (&'static str, &'static str, fn(&PeerStats) -> u64);

/// Writes the metrics that each node has, whether it leads or not.
pub(super) fn expose(node: &Node, gateway: &Gateway, out: &mut Exposition<'_>) -> fmt::Result {
    let status = node.status();
    expose_log(&status, out)?;
    expose_links(node, out)?;
    expose_gateway(gateway, out)?;
    let behind: Vec<_> = status.nodes.iter().map(|of| (of.node.to_string(), of.behind)).collect();
    out.gauges(
        "thalweg_cluster_node_behind",
        "Entries of the log that a node does not have on disk yet, as the leader knows it",
        "node",
        &behind,
    )
}

/// Writes the metrics that a leader has from its broker.
pub(super) fn expose_role(node: &Node, out: &mut Exposition<'_>) -> fmt::Result {
    let status = node.status();
    out.gauge("thalweg_cluster_term", "Term of the newest election", status.term)?;
    out.gauge("thalweg_cluster_node", "Number of this node", status.node)
}

fn expose_log(status: &Status, out: &mut Exposition<'_>) -> fmt::Result {
    out.gauge(
        "thalweg_cluster_leader",
        "Number of the node that leads; 0 if none is known",
        status.leader.unwrap_or(0),
    )?;
    out.gauge("thalweg_cluster_nodes", "Nodes of the cluster", status.nodes.len() as u64)?;
    let is_failed = status.failed.is_some();
    out.gauge("thalweg_cluster_failed", "1: this node takes no part until it is restarted", is_failed.into())?;
    out.gauge("thalweg_cluster_committed", "Last entry of the log that a majority has on disk", status.committed)?;
    out.gauge("thalweg_cluster_applied", "Last entry of the log that this node has applied", status.applied)?;
    out.counter("thalweg_cluster_elections", "Elections that this node has won", status.elections)?;
    expose_load(&status.load, out)?;
    let damaged = status.damaged_partitions;
    out.gauge("thalweg_cluster_damaged_partitions", "Partitions with damaged records on this node", damaged)?;
    out.counter("thalweg_cluster_mended", "Times that this node replaced damaged records", status.mended)?;
    let help = "Bytes of segments that this node has read to find damage";
    out.counter("thalweg_cluster_verified_bytes", help, status.verified_bytes)?;
    out.gauge("thalweg_cluster_removed", "1: the node leaves the cluster, or has left it", status.is_removed.into())?;
    out.gauge("thalweg_cluster_format", "Version of the rows that the log may have", status.format.into())?;
    let help = "Answers that waited because the lease of this leader had lapsed";
    out.counter("thalweg_cluster_lease_waits", help, status.lease_waits)?;
    out.counter("thalweg_cluster_catch_ups", "Times that this node fetched the state", status.catch_ups)?;
    let help = "Bytes of records that this node sent to nodes that fetched the state";
    out.counter("thalweg_cluster_caught_up_bytes", help, status.caught_up_bytes)?;
    let (wanted, fetched, bytes) = status.catch_up;
    let help = "Records that the present or last catch-up of this node lacked";
    out.gauge("thalweg_cluster_catch_up_wanted_records", help, wanted)?;
    let help = "Records that the present or last catch-up of this node has fetched";
    out.gauge("thalweg_cluster_catch_up_fetched_records", help, fetched)?;
    out.counter("thalweg_cluster_catch_up_fetched_bytes", "Bytes that catch-ups of this node have fetched", bytes)
}

fn expose_load(load: &Load, out: &mut Exposition<'_>) -> fmt::Result {
    out.gauge("thalweg_cluster_waiting_bytes", "Bytes of records that wait for a majority", load.waiting_bytes)?;
    out.gauge("thalweg_cluster_queued_bytes", "Bytes of records that are in no entry yet", load.queued_bytes)?;
    let help = "Publishes refused because too much waits for other nodes";
    out.counter("thalweg_cluster_refused_publishes", help, load.refused)?;
    out.gauge("thalweg_cluster_held_bytes", "Bytes of the log in memory", load.held_bytes)?;
    out.gauge("thalweg_cluster_log_entries", "Entries of the log in memory", load.log_entries)?;
    out.gauge("thalweg_cluster_saving", "Writes of the log that are not synced yet", load.saving)?;
    let help = "Messages of the leader whose records this node did not take for want of room";
    out.counter("thalweg_cluster_put_off", help, load.put_off)
}

fn expose_links(node: &Node, out: &mut Exposition<'_>) -> fmt::Result {
    let stats = node.transport_stats();
    let rows = |value: fn(&PeerStats) -> u64| -> Vec<(String, u64)> {
        stats.peers.iter().map(|peer| (peer.node.to_string(), value(peer))).collect()
    };
    let gauges: [OfPeer; 3] = [
        ("connected", "1: the other node is connected", |peer| peer.is_connected.into()),
        ("queued_bytes", "Bytes with records that wait for the connection to the other node", |peer| peer.queued_bytes),
        ("queued_beats_bytes", "Bytes without records that wait for the connection to the other node", |peer| {
            peer.queued_beats_bytes
        }),
    ];
    for (what, help, value) in gauges {
        out.gauges(&format!("thalweg_cluster_peer_{what}"), help, "node", &rows(value))?;
    }
    let counters: [OfPeer; 6] = [
        ("sent_bytes", "Bytes sent to the other node", |peer| peer.sent_bytes),
        ("received_bytes", "Bytes received from the other node", |peer| peer.received_bytes),
        ("links", "Times that the other node was connected", |peer| peer.links),
        ("full_drops", "Messages dropped because the queue was full", |peer| peer.full_drops),
        ("too_large_drops", "Messages dropped because an entry was too large", |peer| peer.too_large_drops),
        ("disconnected_drops", "Messages dropped without a connection", |peer| peer.disconnected_drops),
    ];
    for (what, help, value) in counters {
        out.counters(&format!("thalweg_cluster_peer_{what}"), help, "node", &rows(value))?;
    }
    let help = "Connections of nodes that ended before both sides knew each other";
    out.counter("thalweg_cluster_failed_handshakes", help, stats.failed_handshakes)?;
    let help = "Connections at the cluster port whose other side is not known yet";
    out.gauge("thalweg_cluster_handshakes", help, stats.handshakes)?;
    out.gauge("thalweg_cluster_joins", "Programs that ask to join", stats.joins)?;
    out.counter("thalweg_cluster_join_refusals", "Programs that were not admitted", stats.join_refusals)?;
    let help = "Connections of nodes that were refused for what they are";
    out.counter("thalweg_cluster_refused_connections", help, stats.refused)?;
    out.gauge("thalweg_cluster_catch_up_streams", "Open streams of nodes that ask this one", stats.bulk_streams)?;
    out.gauge("thalweg_cluster_splices", "Open connections of clients of other nodes", stats.splices)
}

fn expose_gateway(gateway: &Gateway, out: &mut Exposition<'_>) -> fmt::Result {
    let counts = gateway.counts();
    let open = gateway.open() as u64;
    out.gauge("thalweg_cluster_gateway_connections", "Open connections of clients handed over to the leader", open)?;
    let counters = [
        ("handed_over", "Connections of clients handed over to the leader", &counts.handed_over),
        ("without_leader", "Connections of clients that found no leader", &counts.without_leader),
        ("refused", "Connections of clients refused at the limit", &counts.refused),
    ];
    for (what, help, count) in counters {
        out.counter(&format!("thalweg_cluster_gateway_{what}"), help, count.load(Ordering::Relaxed))?;
    }
    Ok(())
}
