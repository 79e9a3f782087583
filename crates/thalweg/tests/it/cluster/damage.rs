//! Nodes whose files are damaged while the others have the records.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::command::thalweg;
use crate::support::server::until;

/// Records of the test.
const RECORDS: usize = 50;

/// Returns the files of a folder and of all folders in it that end like this and are not empty.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_string_lossy().ends_with(end) && path.metadata().expect("its size").len() > 0 {
            found.push(path);
        }
    }
    found
}

/// Changes one byte in the middle of the largest segment of a node that does not run.
fn damage(cluster: &Cluster, node: u64) {
    let segments = files(&cluster.data(node).join("topics"), ".log");
    let largest = segments.iter().max_by_key(|path| path.metadata().expect("its size").len()).expect("a segment");
    let mut bytes = std::fs::read(largest).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(largest, bytes).expect("writable");
}

/// Returns a metric of a node itself.
async fn metric(cluster: &Cluster, node: u64, name: &str) -> Option<u64> {
    let (_, text) = cluster.own(node, "/metrics").await;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

async fn expect_all(cluster: &Cluster, node: u64) {
    let path = "/v1/topics/orders/records?offset=earliest&max_records=1000";
    let (status, answer) = cluster.http(node, "GET", path, &Value::Null).await;
    assert_eq!((status, answer["records"].as_array().map(Vec::len)), (200, Some(RECORDS)), "{answer}");
}

#[tokio::test]
async fn damaged_records_are_fetched_from_the_leader() {
    let mut cluster = Cluster::with(3, &["cluster_verify_bytes_per_s=64MiB"]).await;
    let leader = cluster.leader().await;
    let (status, answer) = cluster.http(leader, "PUT", "/v1/topics/orders", &json!({})).await;
    assert_eq!(status, 201, "{answer}");
    let value = "x".repeat(1000);
    for _ in 0..RECORDS {
        let body = json!({ "records": [{ "value": value }] });
        let (status, answer) = cluster.http(leader, "POST", "/v1/topics/orders/records", &body).await;
        assert_eq!(status, 200, "{answer}");
    }
    let follower = cluster.followers().await[0];
    for node in [follower, leader] {
        cluster.stop(node).await;
        damage(&cluster, node);
        cluster.restart(node);
        // A leader finds it as well, and hands over first.
        if node == leader {
            until("the leadership of a damaged node", async || {
                cluster.on(node, &["cluster", "transfer", &node.to_string()]).code == Some(0)
                    || metric(&cluster, node, "thalweg_cluster_mended_total").await == Some(1)
            })
            .await;
        }
        until("the damaged records", async || metric(&cluster, node, "thalweg_cluster_mended_total").await == Some(1))
            .await;
        assert_eq!(metric(&cluster, node, "thalweg_cluster_damaged_partitions").await, Some(0));
        until("the node", async || cluster.own(node, "/readyz").await.0 == 200).await;
        assert!(cluster.log(node).contains("the damaged records were replaced"), "{}", cluster.log(node));
        // It has all records, also as the leader.
        until("its leadership", async || cluster.on(node, &["cluster", "transfer", &node.to_string()]).code == Some(0))
            .await;
        assert_eq!(cluster.leader().await, node);
        expect_all(&cluster, node).await;
    }
    for node in cluster.running() {
        cluster.stop(node).await;
        let data = cluster.data(node);
        let report = thalweg(["inspect", data.to_str().expect("UTF-8"), "--verify"]);
        assert_eq!(report.code, Some(0), "node {node}: {report:?}");
    }
}
