//! `thalweg status`: the version of a broker, its doors with what they require of clients, and counts of its topics,
//! queues and the like.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use client::{Client, TopicInfo};
use engine::ids::is_internal;
use serde_json::{Value, json};
use thalweg::config::Config;

use super::connect;
use super::top::{Sample, Samples};
use super::units::{bytes, count, elapsed, table};
use crate::block_on;
use crate::output::Result;

/// Answers of a broker.
struct Status {
    address: String,
    version: Option<String>,
    commit: Option<String>,
    uptime_ms: Option<u64>,
    resident_bytes: Option<u64>,
    is_stored: bool,
    cluster: Option<Cluster>,
    doors: Vec<Door>,
    topics: u64,
    records: u64,
    topic_bytes: u64,
    subscribers: u64,
    queues: u64,
    visible: u64,
    in_flight: u64,
    groups: u64,
    lag: u64,
    caches: u64,
    entries: u64,
}

/// Cluster that the broker leads.
struct Cluster {
    /// Number of the node that answers, which leads.
    node: u64,
    term: u64,
    nodes: Vec<Node>,
}

/// Node of a cluster.
struct Node {
    node: String,
    is_alive: bool,
    is_voter: bool,
    lag_bytes: u64,
}

impl Cluster {
    /// Returns the cluster of the broker that has these metrics; `None` if it is alone.
    fn of(samples: &Samples) -> Option<Self> {
        let whole = |name: &str| samples.value(name).map(|value| value as u64);
        let of = |name: &str, node: &str| {
            let sample = samples.named(name).find(|sample| sample.label("node") == node);
            sample.map_or(0, |sample| sample.value as u64)
        };
        let node = |sample: &Sample| {
            let node = sample.label("node").to_owned();
            Node {
                is_alive: sample.value > 0.0,
                is_voter: of("thalweg_cluster_node_voter", &node) > 0,
                lag_bytes: of("thalweg_cluster_node_lag_bytes", &node),
                node,
            }
        };
        Some(Self {
            node: whole("thalweg_cluster_node")?,
            term: whole("thalweg_cluster_term")?,
            nodes: samples.named("thalweg_cluster_node_alive").map(node).collect(),
        })
    }

    fn to_json(&self) -> Value {
        let node = |node: &Node| {
            json!({
                "node": node.node.parse::<u64>().ok(),
                "alive": node.is_alive,
                "voter": node.is_voter,
                "lag_bytes": node.lag_bytes,
            })
        };
        json!({ "node": self.node, "term": self.term, "nodes": self.nodes.iter().map(node).collect::<Vec<_>>() })
    }

    /// Returns one line per node.
    fn text(&self) -> String {
        let node = |node: &Node| {
            let role = if node.node == self.node.to_string() {
                format!("leads in term {}", self.term)
            } else if node.is_voter {
                format!("votes, {} behind", bytes(node.lag_bytes))
            } else {
                format!("follows, {} behind", bytes(node.lag_bytes))
            };
            let gone = if node.is_alive { "" } else { ", does not answer" };
            format!("node {} {role}{gone}", node.node)
        };
        self.nodes.iter().map(node).collect::<Vec<_>>().join("\n")
    }
}

/// Open door of a broker.
struct Door {
    name: String,
    address: String,
    connections: u64,
    /// Unix socket, if it has one.
    unix: String,
    /// Whether other machines need TLS, and how clients log in. Empty for a broker that does not expose it.
    tls: String,
    login: String,
    /// Reason why clients need no TLS or no login, if they need not have both.
    exempt: String,
}

impl Door {
    fn of(samples: &Samples, sample: &Sample) -> Self {
        let name = sample.label("door");
        let admission = samples.named("thalweg_door_admission").find(|sample| sample.label("door") == name);
        let of = |label: &str| admission.map(|sample| sample.label(label)).unwrap_or_default().to_owned();
        let connections = samples.value(&format!("thalweg_{name}_connections")).unwrap_or_default() as u64;
        Self {
            name: name.to_owned(),
            address: sample.label("address").to_owned(),
            connections,
            unix: of("unix"),
            tls: of("tls"),
            login: of("login"),
            exempt: of("exempt"),
        }
    }

    fn to_json(&self) -> Value {
        let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({
            "door": self.name,
            "address": self.address,
            "unix": known(&self.unix),
            "tls": known(&self.tls),
            "login": known(&self.login),
            "exempt": known(&self.exempt),
            "connections": self.connections,
        })
    }

    fn row(&self) -> [String; 6] {
        let address =
            if self.unix.is_empty() { self.address.clone() } else { format!("{}\nunix:{}", self.address, self.unix) };
        let [tls, login, exempt] = [&self.tls, &self.login, &self.exempt].map(String::clone);
        [self.name.clone(), address, tls, login, exempt, self.connections.to_string()]
    }
}

pub fn run(config: &Config, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let status = Status::ask(&client, config.server_address()).await?;
        let mut out = std::io::stdout();
        if is_json {
            writeln!(out, "{}", status.to_json())?
        } else {
            status.print(&mut out)?
        }
        client.close().await;
        Ok(())
    })
}

impl Status {
    async fn ask(client: &Client, address: &str) -> client::Result<Self> {
        let samples = Samples::parse(&client.stats().await?);
        let topics = client.list_topics().await?;
        let queues = client.list_queues("").await?;
        let groups = client.list_groups().await?;
        let caches = client.list_caches().await?;
        let topics: Vec<&TopicInfo> = topics.iter().filter(|topic| !is_internal(&topic.topic)).collect();
        let partitions = || topics.iter().flat_map(|topic| &topic.partitions);
        let counts = || queues.iter().filter_map(|queue| queue.counts.as_ref());
        let whole = |name: &str| samples.value(name).map(|value| value as u64);
        let build = samples.named("thalweg_build").next();
        let label = |label: &str| {
            let (_, value) = build?.labels.iter().find(|(name, _)| name == label)?;
            Some(value.clone())
        };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let began_s = samples.value("process_start_time_seconds");
        Ok(Self {
            address: address.to_owned(),
            version: label("version"),
            commit: label("commit"),
            uptime_ms: began_s.map(|began_s| ((now_s - began_s).max(0.0) * 1000.0) as u64),
            resident_bytes: whole("process_resident_memory_bytes"),
            is_stored: samples.value("thalweg_journal_entries_total").is_some(),
            cluster: Cluster::of(&samples),
            doors: samples.named("thalweg_door").map(|sample| Door::of(&samples, sample)).collect(),
            records: partitions().map(|p| p.end - p.start).sum(),
            topic_bytes: partitions().map(|p| p.bytes).sum(),
            topics: topics.len() as u64,
            subscribers: whole("thalweg_subscribers").unwrap_or_default(),
            queues: queues.len() as u64,
            visible: counts().map(|counts| counts.visible).sum(),
            in_flight: counts().map(|counts| counts.in_flight).sum(),
            groups: groups.len() as u64,
            lag: groups.iter().map(|group| group.lag).sum(),
            caches: caches.len() as u64,
            entries: caches.iter().map(|cache| cache.stats.entries).sum(),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "address": self.address,
            "version": self.version,
            "commit": self.commit,
            "uptime_ms": self.uptime_ms,
            "resident_bytes": self.resident_bytes,
            "storage": self.storage(),
            "cluster": self.cluster.as_ref().map(Cluster::to_json),
            "doors": self.doors.iter().map(Door::to_json).collect::<Vec<_>>(),
            "topics": self.topics,
            "records": self.records,
            "topic_bytes": self.topic_bytes,
            "subscribers": self.subscribers,
            "queues": self.queues,
            "messages_visible": self.visible,
            "messages_in_flight": self.in_flight,
            "groups": self.groups,
            "groups_lag": self.lag,
            "caches": self.caches,
            "cache_entries": self.entries,
        })
    }

    fn storage(&self) -> &'static str {
        if self.is_stored { "disk" } else { "memory" }
    }

    fn print(&self, out: &mut impl Write) -> Result {
        let mut head = table();
        let build = [self.version.as_deref(), self.commit.as_deref()];
        let build: Vec<&str> = build.into_iter().flatten().collect();
        let rows = [
            ("broker", self.address.clone()),
            ("version", build.join(" ")),
            ("up", self.uptime_ms.map_or_else(String::new, elapsed)),
            ("memory", self.resident_bytes.map_or_else(String::new, bytes)),
            ("storage", self.storage().to_owned()),
            ("cluster", self.cluster.as_ref().map_or_else(String::new, Cluster::text)),
            ("topics", format!("{}, {}, {}", self.topics, count(self.records, "record"), bytes(self.topic_bytes))),
            ("subscribers", self.subscribers.to_string()),
            ("queues", format!("{}, {} visible, {} in flight", self.queues, self.visible, self.in_flight)),
            ("groups", format!("{}, {} behind", self.groups, count(self.lag, "record"))),
            ("caches", format!("{}, {}", self.caches, count(self.entries, "entry"))),
        ];
        for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
            head.add_row([name.to_owned(), value]);
        }
        writeln!(out, "{head}\n")?;
        let mut doors = table();
        doors.set_header(["DOOR", "ADDRESS", "TLS", "LOGIN", "EXEMPT", "CONNECTIONS"]);
        for door in &self.doors {
            doors.add_row(door.row());
        }
        Ok(writeln!(out, "{doors}")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_shown_with_its_nodes() {
        let text = "\
# TYPE thalweg_cluster_term gauge
thalweg_cluster_term 7
# TYPE thalweg_cluster_node gauge
thalweg_cluster_node 2
# TYPE thalweg_cluster_node_alive gauge
thalweg_cluster_node_alive{node=\"1\"} 0
thalweg_cluster_node_alive{node=\"2\"} 1
thalweg_cluster_node_alive{node=\"4\"} 1
# TYPE thalweg_cluster_node_voter gauge
thalweg_cluster_node_voter{node=\"1\"} 1
thalweg_cluster_node_voter{node=\"2\"} 1
thalweg_cluster_node_voter{node=\"4\"} 0
# TYPE thalweg_cluster_node_lag_bytes gauge
thalweg_cluster_node_lag_bytes{node=\"1\"} 2048
thalweg_cluster_node_lag_bytes{node=\"2\"} 0
thalweg_cluster_node_lag_bytes{node=\"4\"} 0
# EOF
";
        let cluster = Cluster::of(&Samples::parse(text)).expect("a cluster");
        let expected = json!({ "node": 2, "term": 7, "nodes": [
            { "node": 1, "alive": false, "voter": true, "lag_bytes": 2048 },
            { "node": 2, "alive": true, "voter": true, "lag_bytes": 0 },
            { "node": 4, "alive": true, "voter": false, "lag_bytes": 0 },
        ] });
        assert_eq!(cluster.to_json(), expected);
        let lines: Vec<String> = cluster.text().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("node 1 votes, ") && lines[0].ends_with(" behind, does not answer"), "{lines:?}");
        assert_eq!(lines[1], "node 2 leads in term 7");
        assert!(lines[2].starts_with("node 4 follows, "), "{lines:?}");
        assert!(Cluster::of(&Samples::parse("thalweg_topics 1\n")).is_none());
    }
}
