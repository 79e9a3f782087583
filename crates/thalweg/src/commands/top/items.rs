//! Named items of a broker, as lists for the screen: topics, queues, consumer groups, caches, doors, nodes and sites.

use std::collections::HashMap;

use client::{CacheStatus, Client, GroupSummary, QueueInfo, TopicInfo, TopicName};
use console::brief::{count, per_s, seconds, size};
use console::figures::{Door, doors};
use console::samples::Samples;
use serde_json::{Value, json};

/// Maximum number of rows kept per list: more than any screen shows.
const ROWS_MAX: usize = 200;
/// Text of an empty cell.
const DASH: &str = "-";

/// Lists of the screen, in the order of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum List {
    #[default]
    Topics,
    Queues,
    Groups,
    Caches,
    Doors,
    Nodes,
    Sites,
    Lanes,
}

impl List {
    pub const ALL: [Self; 8] =
        [Self::Topics, Self::Queues, Self::Groups, Self::Caches, Self::Doors, Self::Nodes, Self::Sites, Self::Lanes];

    pub fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Queues => "queues",
            Self::Groups => "groups",
            Self::Caches => "caches",
            Self::Doors => "doors",
            Self::Nodes => "nodes",
            Self::Sites => "sites",
            Self::Lanes => "lanes",
        }
    }

    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    pub fn before(self) -> Self {
        Self::ALL[(self as usize + Self::ALL.len() - 1) % Self::ALL.len()]
    }
}

/// All named items of a broker, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Items {
    topics: Vec<TopicInfo>,
    queues: Vec<QueueInfo>,
    groups: Vec<GroupSummary>,
    caches: Vec<CacheStatus>,
    doors: Vec<Door>,
    nodes: Vec<Node>,
    sites: Vec<Site>,
    discovery: Option<Discovery>,
}

/// Node of the cluster that the broker leads.
#[derive(Clone, Debug, Default, PartialEq)]
struct Node {
    node: String,
    role: &'static str,
    is_alive: bool,
    /// Entries of the log that it does not have yet.
    behind: u64,
}

/// Other site of the mesh.
#[derive(Clone, Debug, Default, PartialEq)]
struct Site {
    site: String,
    link: &'static str,
    round_trip_s: f64,
    sent: f64,
    received: f64,
    lost: f64,
}

/// Counters of the discovery of a mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Discovery {
    lookups: f64,
    hits: f64,
    misses: f64,
    stores: f64,
    rate_limited: f64,
    /// Topics in the subscriber cache.
    topics: f64,
    isolated_s: f64,
}

/// List as it is shown, the busiest items first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub columns: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
    /// Number of all items, including those without a row.
    pub total: usize,
    /// Line about all of them; empty if there is none.
    pub note: String,
}

impl Items {
    pub async fn ask(client: &Client, samples: &Samples) -> client::Result<Self> {
        let mut topics = client.list_topics().await?;
        topics.retain(|topic| !TopicName::parse(&topic.topic).is_ok_and(|name| name.is_hidden()));
        Ok(Self {
            topics,
            queues: client.list_queues("").await?,
            groups: client.list_groups().await?,
            caches: client.list_caches().await?,
            doors: doors(samples),
            nodes: nodes(samples),
            sites: sites(samples),
            discovery: discovery(samples),
        })
    }

    /// Returns the rows of a list, with rates since `before`, which was sampled `elapsed_s` seconds ago.
    pub fn rows(&self, list: List, before: &Self, elapsed_s: f64, now_ms: u64) -> Rows {
        match list {
            List::Topics => self.topic_rows(before, elapsed_s),
            List::Queues => self.queue_rows(now_ms),
            List::Groups => self.group_rows(),
            List::Caches => self.cache_rows(),
            List::Doors => self.door_rows(before, elapsed_s),
            List::Nodes => self.node_rows(),
            List::Sites => self.site_rows(before, elapsed_s),
            List::Lanes => Rows::default(),
        }
    }

    fn topic_rows(&self, before: &Self, elapsed_s: f64) -> Rows {
        let ends = |topic: &TopicInfo| topic.partitions.iter().map(|p| p.end).sum::<u64>();
        let was: HashMap<&str, u64> = before.topics.iter().map(|topic| (topic.topic.as_str(), ends(topic))).collect();
        let row = |topic: &TopicInfo| {
            let records: u64 = topic.partitions.iter().map(|p| p.end - p.start).sum();
            let bytes: u64 = topic.partitions.iter().map(|p| p.bytes).sum();
            let subscribers = topic.partitions.iter().map(|p| p.subscribers).max().unwrap_or_default();
            // The records of a new topic count only from now on; a topic that was created again has a rate of 0, not a
            // negative one.
            let was = was.get(topic.topic.as_str()).copied().unwrap_or_else(|| ends(topic));
            let rate = ends(topic).saturating_sub(was) as f64 / elapsed_s;
            let shown = vec![
                topic.topic.clone(),
                per_s(count(rate)),
                count(records as f64),
                size(bytes as f64),
                topic.settings.partitions.to_string(),
                subscribers.to_string(),
            ];
            ((rate * 1000.0) as u64, records, shown)
        };
        let columns = &["topic", "in", "records", "bytes", "partitions", "subscribers"];
        Rows::sorted(columns, self.topics.iter().map(row))
    }

    fn queue_rows(&self, now_ms: u64) -> Rows {
        let row = |queue: &QueueInfo| {
            let Some(counts) = &queue.counts else {
                return (0, 0, [vec![queue.queue.clone()], vec![DASH.to_owned(); 4]].concat());
            };
            let age = |sent_ms: u64| seconds((now_ms.saturating_sub(sent_ms) / 1000) as f64);
            let shown = vec![
                queue.queue.clone(),
                count(counts.visible as f64),
                count(counts.in_flight as f64),
                count(counts.delayed as f64),
                counts.oldest_ms.map_or(DASH.to_owned(), age),
            ];
            (counts.visible, counts.in_flight, shown)
        };
        Rows::sorted(&["queue", "visible", "in flight", "delayed", "oldest"], self.queues.iter().map(row))
    }

    fn group_rows(&self) -> Rows {
        let row = |group: &GroupSummary| {
            let shown = vec![
                group.group.clone(),
                count(group.lag as f64),
                group.members.to_string(),
                group.state.name().to_owned(),
            ];
            (group.lag, u64::from(group.members), shown)
        };
        Rows::sorted(&["group", "lag", "members", "state"], self.groups.iter().map(row))
    }

    fn cache_rows(&self) -> Rows {
        let row = |cache: &CacheStatus| {
            let stats = &cache.stats;
            let asked = stats.hits + stats.misses;
            let hits = 100.0 * stats.hits as f64 / asked.max(1) as f64;
            let shown = vec![
                cache.name.to_string(),
                count(stats.entries as f64),
                size(stats.bytes as f64),
                size(cache.bytes_max as f64),
                if asked == 0 { DASH.to_owned() } else { format!("{hits:.0} %") },
            ];
            (stats.bytes, stats.entries, shown)
        };
        Rows::sorted(&["cache", "entries", "bytes", "of", "hits"], self.caches.iter().map(row))
    }

    fn door_rows(&self, before: &Self, elapsed_s: f64) -> Rows {
        let row = |door: &Door| {
            let was = before.doors.iter().find(|was| was.name == door.name).map_or(door.requests, |was| was.requests);
            let rate = door.requests.zip(was).map(|(is, was)| per_s(count((is - was).max(0.0) / elapsed_s)));
            let rate = rate.unwrap_or_else(|| DASH.to_owned());
            vec![door.name.clone(), door.address.clone(), count(door.connections), rate]
        };
        let columns = &["door", "address", "connections", "requests"];
        Rows { columns, rows: self.doors.iter().map(row).collect(), total: self.doors.len(), ..Rows::default() }
    }

    fn node_rows(&self) -> Rows {
        let row = |node: &Node| {
            let state = if node.is_alive { "answers" } else { "silent" };
            vec![node.node.clone(), node.role.to_owned(), state.to_owned(), count(node.behind as f64)]
        };
        let columns = &["node", "role", "state", "behind"];
        let rows = self.nodes.iter().take(ROWS_MAX).map(row).collect();
        Rows { columns, rows, total: self.nodes.len(), ..Rows::default() }
    }

    fn site_rows(&self, before: &Self, elapsed_s: f64) -> Rows {
        let row = |site: &Site| {
            let was = before.sites.iter().find(|was| was.site == site.site).unwrap_or(site);
            let rate = |was: f64, is: f64| (is - was).max(0.0) / elapsed_s;
            let (sent, received) = (rate(was.sent, site.sent), rate(was.received, site.received));
            let shown = vec![
                site.site.clone(),
                site.link.to_owned(),
                if site.round_trip_s > 0.0 { seconds(site.round_trip_s) } else { DASH.to_owned() },
                per_s(count(sent)),
                per_s(count(received)),
                count(site.lost),
            ];
            (((sent + received) * 1000.0) as u64, 0, shown)
        };
        let columns = &["site", "link", "rtt", "out", "in", "lost"];
        let rows = Rows::sorted(columns, self.sites.iter().map(row));
        let was = before.discovery.or(self.discovery);
        let note = self.discovery.zip(was).map(|(is, was)| is.note(was, elapsed_s));
        Rows { note: note.unwrap_or_default(), ..rows }
    }

    /// Returns `true` if a list is of use with this broker: only a cluster has nodes, and only a mesh sites.
    pub fn has(&self, list: List) -> bool {
        match list {
            List::Nodes => !self.nodes.is_empty(),
            List::Sites => self.discovery.is_some(),
            _ => true,
        }
    }

    /// Returns the lists as JSON, with unformatted numbers.
    pub fn to_json(&self) -> Value {
        let topic = |topic: &TopicInfo| {
            json!({
                "topic": topic.topic,
                "records": topic.partitions.iter().map(|p| p.end - p.start).sum::<u64>(),
                "bytes": topic.partitions.iter().map(|p| p.bytes).sum::<u64>(),
                "partitions": topic.settings.partitions,
                "subscribers": topic.partitions.iter().map(|p| p.subscribers).max().unwrap_or_default(),
            })
        };
        let queue = |queue: &QueueInfo| {
            let counts = queue.counts.as_ref();
            json!({
                "queue": queue.queue,
                "visible": counts.map(|counts| counts.visible),
                "in_flight": counts.map(|counts| counts.in_flight),
                "delayed": counts.map(|counts| counts.delayed),
                "oldest_ms": counts.and_then(|counts| counts.oldest_ms),
            })
        };
        let group = |group: &GroupSummary| {
            json!({
                "group": group.group,
                "lag": group.lag,
                "members": group.members,
                "state": group.state.name(),
            })
        };
        let cache = |cache: &CacheStatus| {
            json!({
                "cache": cache.name.as_str(),
                "entries": cache.stats.entries,
                "bytes": cache.stats.bytes,
                "bytes_max": cache.bytes_max,
                "hits": cache.stats.hits,
                "misses": cache.stats.misses,
            })
        };
        let door = |door: &Door| {
            json!({
                "door": door.name,
                "address": door.address,
                "connections": door.connections as u64,
                "requests": door.requests.map(|requests| requests as u64),
            })
        };
        let node = |node: &Node| {
            json!({
                "node": node.node.parse::<u64>().ok(),
                "role": node.role,
                "is_alive": node.is_alive,
                "behind": node.behind,
            })
        };
        let site = |site: &Site| {
            json!({
                "site": site.site,
                "link": site.link,
                "round_trip_us": (site.round_trip_s * 1e6) as u64,
                "sent_records": site.sent as u64,
                "received_records": site.received as u64,
                "lost_records": site.lost as u64,
            })
        };
        json!({
            "sites": self.sites.iter().map(site).collect::<Vec<_>>(),
            "discovery": self.discovery.map(Discovery::to_json),
            "topics": self.topics.iter().map(topic).collect::<Vec<_>>(),
            "queues": self.queues.iter().map(queue).collect::<Vec<_>>(),
            "groups": self.groups.iter().map(group).collect::<Vec<_>>(),
            "caches": self.caches.iter().map(cache).collect::<Vec<_>>(),
            "doors": self.doors.iter().map(door).collect::<Vec<_>>(),
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    }
}

impl Rows {
    /// Sorts the rows by the first number, then the second (largest first), then by name.
    fn sorted(columns: &'static [&'static str], rows: impl Iterator<Item = (u64, u64, Vec<String>)>) -> Self {
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then_with(|| a.2.cmp(&b.2)));
        let total = rows.len();
        rows.truncate(ROWS_MAX);
        Self { columns, rows: rows.into_iter().map(|(_, _, row)| row).collect(), total, ..Self::default() }
    }
}

impl Discovery {
    fn hit_rate(self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0.0).then(|| self.hits / asked)
    }

    /// Returns a line with the lookups per second since `was`, and the totals.
    fn note(self, was: Self, elapsed_s: f64) -> String {
        if self.isolated_s > 0.0 {
            return format!("isolated for {}", seconds(self.isolated_s));
        }
        let lookups = (self.lookups - was.lookups).max(0.0) / elapsed_s;
        let hits = self.hit_rate().map_or(DASH.to_owned(), |rate| format!("{:.0} %", 100.0 * rate));
        format!(
            "{} lookups/s, {hits} hits, {} stored, {} put off, {} cached",
            count(lookups),
            count(self.stores),
            count(self.rate_limited),
            count(self.topics)
        )
    }

    fn to_json(self) -> Value {
        json!({
            "lookups": self.lookups as u64,
            "hits": self.hits as u64,
            "misses": self.misses as u64,
            "hit_rate": self.hit_rate(),
            "stores": self.stores as u64,
            "rate_limited": self.rate_limited as u64,
            "table_size": self.topics as u64,
            "isolated_s": self.isolated_s as u64,
        })
    }
}

fn nodes(samples: &Samples) -> Vec<Node> {
    let of = |name: &str, node: &str| {
        let sample = samples.named(name).find(|sample| sample.label("node") == node);
        sample.map_or(0, |sample| sample.value as u64)
    };
    let leader = samples.value("thalweg_cluster_node").map(|node| (node as u64).to_string());
    let alive = samples.named("thalweg_cluster_node_alive").map(|sample| {
        let node = sample.label("node").to_owned();
        let role = match of("thalweg_cluster_node_voter", &node) {
            _ if Some(&node) == leader.as_ref() => "leader",
            0 => "learner",
            _ => "voter",
        };
        let behind = of("thalweg_cluster_node_behind", &node);
        Node { node, role, is_alive: sample.value > 0.0, behind }
    });
    alive.collect()
}

fn sites(samples: &Samples) -> Vec<Site> {
    let of = |name: &str, site: &str| {
        let sample = samples.named(name).find(|sample| sample.label("site") == site);
        sample.map_or(0.0, |sample| sample.value)
    };
    let reachable = samples.named("thalweg_mesh_site_reachable").map(|sample| {
        let site = sample.label("site");
        let link = match (sample.value > 0.0, of("thalweg_mesh_link_direct", site) > 0.0) {
            (false, _) => "down",
            (true, true) => "direct",
            (true, false) => "relayed",
        };
        Site {
            site: site.to_owned(),
            link,
            round_trip_s: of("thalweg_mesh_round_trip_microseconds", site) / 1e6,
            sent: of("thalweg_mesh_sent_records_total", site),
            received: of("thalweg_mesh_received_records_total", site),
            lost: of("thalweg_mesh_lost_records_total", site),
        }
    });
    reachable.collect()
}

fn discovery(samples: &Samples) -> Option<Discovery> {
    let value = |name: &str| samples.value(&format!("thalweg_mesh_{name}"));
    let of = |name: &str| value(name).unwrap_or_default();
    Some(Discovery {
        lookups: value("lookups_total")?,
        hits: of("cache_hits_total"),
        misses: of("cache_misses_total"),
        stores: of("cache_stores_total"),
        rate_limited: of("cache_rate_limited_total"),
        topics: of("cache_topics"),
        isolated_s: of("isolated_seconds"),
    })
}

#[cfg(test)]
pub mod tests {
    use client::{PartitionInfo, TopicSettings};

    use super::*;

    /// Returns a broker with two topics, one of which has `records` records, and two doors.
    pub fn items(records: u64) -> Items {
        let topic = |name: &str, end: u64| TopicInfo {
            topic: name.to_owned(),
            owner: String::new(),
            settings: TopicSettings { partitions: 1, ..TopicSettings::default() },
            partitions: vec![PartitionInfo { start: 0, end, bytes: end * 100, subscribers: 2 }],
        };
        let text = format!(
            "thalweg_door{{door=\"http\",address=\"127.0.0.1:7401\"}} 1\nthalweg_http_connections 3\n\
             thalweg_http_requests_total{{status=\"2xx\"}} {records}\nthalweg_http_requests_total{{status=\"4xx\"}} 5\n\
             thalweg_door{{door=\"kafka\",address=\"127.0.0.1:9092\"}} 1\n"
        );
        Items {
            topics: vec![topic("quiet", 7), topic("busy", records)],
            doors: doors(&Samples::parse(&text)),
            ..Items::default()
        }
    }

    #[test]
    fn the_busiest_topic_comes_first_with_its_rate() {
        let rows = items(3000).rows(List::Topics, &items(1000), 2.0, 0);
        assert_eq!(rows.rows[0], ["busy", "1000/s", "3000", "293.0 KiB", "1", "2"]);
        assert_eq!(rows.rows[1][..2], ["quiet", "0/s"]);
        assert_eq!(rows.total, 2);
        let new = items(3000).rows(List::Topics, &Items::default(), 1.0, 0);
        assert_eq!(new.rows[0][1], "0/s", "what was there before the first look is no rate");
    }

    #[test]
    fn doors_have_addresses_and_rates() {
        let rows = items(3000).rows(List::Doors, &items(1000), 2.0, 0);
        assert_eq!(rows.rows, [["http", "127.0.0.1:7401", "3", "1000/s"], ["kafka", "127.0.0.1:9092", "0", "-"]]);
    }

    #[test]
    fn nodes_have_roles() {
        let text = "thalweg_cluster_node 2\n\
                    thalweg_cluster_node_alive{node=\"1\"} 0\nthalweg_cluster_node_voter{node=\"1\"} 1\n\
                    thalweg_cluster_node_behind{node=\"1\"} 1500\n\
                    thalweg_cluster_node_alive{node=\"2\"} 1\nthalweg_cluster_node_voter{node=\"2\"} 1\n\
                    thalweg_cluster_node_alive{node=\"3\"} 1\nthalweg_cluster_node_voter{node=\"3\"} 0\n";
        let items = Items { nodes: nodes(&Samples::parse(text)), ..Items::default() };
        let rows = items.rows(List::Nodes, &Items::default(), 1.0, 0).rows;
        assert_eq!(rows[0], ["1", "voter", "silent", "1500"]);
        assert_eq!(rows[1], ["2", "leader", "answers", "0"]);
        assert_eq!(rows[2], ["3", "learner", "answers", "0"]);
        assert!(items.has(List::Nodes) && !Items::default().has(List::Nodes));
        assert_eq!(
            items.to_json()["nodes"][0],
            json!({ "node": 1, "role": "voter", "is_alive": false, "behind": 1500 })
        );
    }

    /// Returns a broker of a mesh of three sites, to one of which it has sent `sent` records.
    pub fn in_a_mesh(sent: u64) -> Items {
        let text = format!(
            "thalweg_mesh_isolated_seconds 0\nthalweg_mesh_lookups_total {sent}\n\
             thalweg_mesh_cache_hits_total 99\nthalweg_mesh_cache_misses_total 1\nthalweg_mesh_cache_topics 7\n\
             thalweg_mesh_cache_stores_total 3\nthalweg_mesh_cache_rate_limited_total 2\n\
             thalweg_mesh_site_reachable{{site=\"oslo\"}} 1\nthalweg_mesh_link_direct{{site=\"oslo\"}} 1\n\
             thalweg_mesh_round_trip_microseconds{{site=\"oslo\"}} 2500\n\
             thalweg_mesh_sent_records_total{{site=\"oslo\"}} {sent}\n\
             thalweg_mesh_lost_records_total{{site=\"oslo\"}} 4\n\
             thalweg_mesh_site_reachable{{site=\"rome\"}} 1\nthalweg_mesh_site_reachable{{site=\"paris\"}} 0\n"
        );
        let samples = Samples::parse(&text);
        Items { sites: sites(&samples), discovery: discovery(&samples), ..items(0) }
    }

    #[test]
    fn sites_have_links_and_rates_and_discovery_a_line() {
        let rows = in_a_mesh(3000).rows(List::Sites, &in_a_mesh(1000), 2.0, 0);
        assert_eq!(rows.rows[0], ["oslo", "direct", "2.5 ms", "1000/s", "0/s", "4"]);
        assert_eq!(rows.rows[1][..3], ["paris", "down", "-"]);
        assert_eq!(rows.rows[2][..3], ["rome", "relayed", "-"]);
        assert_eq!(rows.note, "1000 lookups/s, 99 % hits, 3 stored, 2 put off, 7 cached");
        let json = in_a_mesh(3000).to_json();
        assert_eq!((&json["sites"][0]["sent_records"], &json["discovery"]["hit_rate"]), (&json!(3000), &json!(0.99)));
        assert!(in_a_mesh(0).has(List::Sites) && !items(0).has(List::Sites));
        assert_eq!(items(0).to_json()["discovery"], Value::Null);
        let cut_off = Items {
            discovery: discovery(&Samples::parse("thalweg_mesh_lookups_total 0\nthalweg_mesh_isolated_seconds 90\n")),
            ..Items::default()
        };
        assert_eq!(cut_off.rows(List::Sites, &cut_off, 1.0, 0).note, "isolated for 90 s");
    }

    #[test]
    fn lists_follow_one_another() {
        let mut list = List::default();
        for next in List::ALL.into_iter().skip(1).chain([List::Topics]) {
            assert_eq!(list.next().before(), list);
            list = list.next();
            assert_eq!(list, next);
        }
    }
}
