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
