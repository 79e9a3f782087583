//! Comparison of the nodes after the last fault: each leads once, and all have the same records.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::{Duration, Instant};

use client::Client;

use crate::network::Outcome;
use crate::nodes::Nodes;

/// Time in which all nodes have the whole log.
const CAUGHT_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// Restarts of the leader until a certain node leads.
const TRIES: usize = 24;
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(100);
const READ_WAIT: Duration = Duration::from_millis(50);

/// Contents of a partition: its number of records, and a hash of all values with their offsets.
type Digest = (String, u32, u64, u64);

/// Waits until all nodes vote and have the whole log.
pub async fn until_caught_up(client: &Client, nodes: usize) -> Outcome {
    let begin = Instant::now();
    let mut shown = String::new();
    while begin.elapsed() < CAUGHT_UP_TIMEOUT {
        if let Ok(metrics) = client.stats().await {
            let of = |name: &str, end: &str| {
                metrics.lines().filter(|line| line.starts_with(name) && line.ends_with(end)).count()
            };
            let voters = of("thalweg_cluster_node_voter{", " 1");
            if voters == nodes && of("thalweg_cluster_node_lag_bytes{", " 0") == nodes {
                return Ok(());
            }
            let is_shown = |line: &&str| line.starts_with("thalweg_cluster_node");
            shown = metrics.lines().filter(is_shown).collect::<Vec<_>>().join(", ");
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    Err(format!("the nodes are not equal {} s after the last fault: {shown}", CAUGHT_UP_TIMEOUT.as_secs()))
}

/// Returns the node that leads.
pub async fn leader(client: &Client) -> Outcome<u64> {
    let begin = Instant::now();
    loop {
        if client.ping().await.is_ok()
            && let Some(cluster) = client.cluster().filter(|cluster| cluster.leader > 0)
        {
            return Ok(cluster.leader);
        }
        if begin.elapsed() > LEADER_TIMEOUT {
            return Err(format!("no node leads for {} s", LEADER_TIMEOUT.as_secs()));
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Lets each node lead and reads all topics there. Returns the differences.
pub async fn compare(nodes: &mut Nodes, client: &Client, topics: &[&str], program: &str) -> Outcome<Vec<String>> {
    let mut first: Option<(u64, Vec<Digest>)> = None;
    let mut differences = Vec::new();
    for node in nodes.numbers() {
        make_leader(nodes, client, node, program).await?;
        let mut read = Vec::new();
        for topic in topics {
            read.extend(digest(client, topic).await?);
        }
        if leader(client).await? != node {
            return Err(format!("node {node} lost the leadership without a fault"));
        }
        match &first {
            None => first = Some((node, read)),
            Some((other, expected)) => {
                for (one, two) in expected.iter().zip(&read).filter(|(one, two)| one != two) {
                    differences.push(format!("node {other} has {one:?}, node {node} has {two:?}"));
                }
            }
        }
    }
    Ok(differences)
}

/// Passes the leadership to a node.
async fn make_leader(nodes: &mut Nodes, client: &Client, node: u64, program: &str) -> Outcome {
    let all = nodes.numbers().count();
    for _ in 0..TRIES {
        until_caught_up(client, all).await?;
        let now = leader(client).await?;
        if now == node {
            return Ok(());
        }
        let servers = format!("tcp://{}", nodes.addresses("native"));
        let transfer = ["--server", &servers, "cluster", "transfer", &node.to_string()];
        let transferred = Command::new(program).args(transfer).output();
        if !transferred.is_ok_and(|output| output.status.success()) {
            // A node that stops passes its leadership to another one, of several.
            nodes.stop(now)?;
            nodes.start(now)?;
        }
    }
    Err(format!("node {node} does not lead after {TRIES} attempts"))
}

async fn digest(client: &Client, topic: &str) -> Outcome<Vec<Digest>> {
    let failed = |error: client::Error| format!("{topic}: {error}");
    let mut digests = Vec::new();
    for partition in 0..client.describe_topic(topic).await.map_err(failed)?.settings.partitions {
        let (mut next, mut count, mut hasher) = (0, 0, DefaultHasher::new());
        loop {
            let (_, end, batches) = client.fetch(topic, partition, next, READ_WAIT).await.map_err(failed)?;
            for batch in &batches {
                for record in &batch.records().map_err(failed)? {
                    let record = record.map_err(failed)?;
                    (record.offset, record.key, record.value, record.timestamp_ms).hash(&mut hasher);
                    count += 1;
                }
                next = batch.next_offset();
            }
            if next >= end {
                break;
            }
        }
        digests.push((topic.to_owned(), partition, count, hasher.finish()));
    }
    Ok(digests)
}
