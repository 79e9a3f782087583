//! Comparison of the nodes after the last fault: each leads once, and all have the same records.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use client::Client;
use tokio::task::block_in_place;

use crate::network::Outcome;
use crate::nodes::Nodes;

/// Time in which all nodes have the whole log.
const CAUGHT_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// Restarts of the leader until a certain node leads.
const TRIES: usize = 24;
/// Bytes that a node which follows may lack while clients work.
pub const LAG_UNDER_LOAD: u64 = 4 << 20;
const VOTER: &str = "thalweg_cluster_node_voter";
const LAG: &str = "thalweg_cluster_node_lag_bytes";
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(100);
const READ_WAIT: Duration = Duration::from_millis(50);

/// Contents of a partition: its number of records, and a hash of all values with their offsets.
type Digest = (String, u32, u64, u64);

/// Waits until all nodes vote and have the whole log, or all but a few bytes while it grows.
pub async fn until_caught_up(client: &Client, nodes: usize, lag_max: u64) -> Outcome {
    let begin = Instant::now();
    let mut shown = String::new();
    while begin.elapsed() < CAUGHT_UP_TIMEOUT {
        if let Ok(metrics) = client.stats().await {
            let voters = values(&metrics, VOTER).filter(|(_, value)| *value == 1).count();
            let caught_up = values(&metrics, LAG).filter(|(_, value)| *value <= lag_max).count();
            if voters == nodes && caught_up == nodes {
                return Ok(());
            }
            let is_shown = |line: &&str| line.starts_with("thalweg_cluster_node");
            shown = metrics.lines().filter(is_shown).collect::<Vec<_>>().join(", ");
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    Err(format!("the nodes are not equal {} s after the last fault: {shown}", CAUGHT_UP_TIMEOUT.as_secs()))
}

/// Returns `true` if these metrics say that a node votes and has the log that grows.
pub fn follows(metrics: &str, node: u64) -> bool {
    let of = |name| values(metrics, name).find(|(labels, _)| labels.contains(&format!("\"{node}\"")));
    of(VOTER).is_some_and(|(_, value)| value == 1) && of(LAG).is_some_and(|(_, value)| value <= LAG_UNDER_LOAD)
}

/// Returns the labels and the values of a metric.
fn values<'m>(metrics: &'m str, name: &'static str) -> impl Iterator<Item = (&'m str, u64)> {
    metrics.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().ok()?))
    })
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
pub async fn compare(nodes: &mut Nodes, client: &Client, topics: &[&str]) -> Outcome<Vec<String>> {
    let mut first: Option<(u64, Vec<Digest>)> = None;
    let mut differences = Vec::new();
    for place in nodes.places() {
        let node = nodes.number(place);
        make_leader(nodes, client, node).await?;
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
async fn make_leader(nodes: &mut Nodes, client: &Client, node: u64) -> Outcome {
    let all = nodes.places().count();
    for _ in 0..TRIES {
        until_caught_up(client, all, 0).await?;
        let now = leader(client).await?;
        if now == node {
            return Ok(());
        }
        let transferred = block_in_place(|| nodes.operate(&["cluster", "transfer", &node.to_string()]));
        if transferred.is_err() {
            // A node that stops passes its leadership to another one, of several.
            let place = nodes.place(now).ok_or_else(|| format!("node {now} leads, and has left"))?;
            block_in_place(|| {
                nodes.stop(place)?;
                Ok::<_, String>(nodes.start(place)?)
            })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_follows_if_it_votes_and_lacks_little() {
        let metrics = "# TYPE thalweg_cluster_node_voter gauge\nthalweg_cluster_node_voter{node=\"1\"} 1\n\
                       thalweg_cluster_node_voter{node=\"12\"} 1\nthalweg_cluster_node_voter{node=\"3\"} 0\n\
                       thalweg_cluster_node_lag_bytes{node=\"1\"} 65536\n\
                       thalweg_cluster_node_lag_bytes{node=\"12\"} 2331508736\n\
                       thalweg_cluster_node_lag_bytes{node=\"3\"} 0\n";
        assert_eq!([1, 2, 3, 12].map(|node| follows(metrics, node)), [true, false, false, false]);
    }
}
