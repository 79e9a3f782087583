//! Settings of the broker under Kafka's names: what they are, and what changes them.

use broker::Broker;
use engine::Storage;
use engine::security::Resource;

use super::super::errors::Code;
use super::super::map::{Caller, NODE_ID};
use super::super::messages::describe_configs::{DescribeConfigsResourceResult, DescribeConfigsSynonym};
use super::{Failure, Kind, SETTINGS, STATIC, Wanted, check_node};

/// What the broker is set to, under Kafka's names. Its own configuration changes it, and a restart.
pub(super) fn of_broker(broker: &Broker, wanted: Wanted) -> Vec<DescribeConfigsResourceResult> {
    let settings = broker.settings();
    let storage = if broker.store().is_some() { Storage::Disk } else { Storage::Memory };
    let defaults = broker.topic_defaults(storage);
    let mut rows: Vec<(String, String, Kind, &str)> = SETTINGS
        .iter()
        .map(|setting| (setting.of_broker.to_owned(), setting.value(broker, defaults), setting.kind, setting.help))
        .collect();
    let mut row = |name: &str, value: String, kind, help| rows.push((name.to_owned(), value, kind, help));
    let offsets_minutes = settings.offsets_retention.as_secs() / 60;
    row("auto.create.topics.enable", settings.auto_create_topics.to_string(), Kind::Bool, "Key auto_create_topics");
    row("broker.id", NODE_ID.to_string(), Kind::Int, "The only node");
    row("node.id", NODE_ID.to_string(), Kind::Int, "The only node");
    row("default.replication.factor", "1".to_owned(), Kind::Int, "There is one replica");
    row("delete.topic.enable", "true".to_owned(), Kind::Bool, "Topics can be deleted");
    row("num.partitions", defaults.partitions.to_string(), Kind::Int, "Key default_partitions");
    row("offsets.retention.minutes", offsets_minutes.to_string(), Kind::Int, "Key offsets_retention_ms");
    row("offsets.topic.replication.factor", "1".to_owned(), Kind::Int, "There is one replica");
    row("transaction.state.log.replication.factor", "1".to_owned(), Kind::Int, "There is one replica");
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let describe = |(name, value, kind, help): (String, String, Kind, &str)| DescribeConfigsResourceResult {
        synonyms: match wanted.synonyms {
            true => {
                vec![DescribeConfigsSynonym { name: name.clone(), value: Some(value.clone()), source: STATIC }]
            }
            false => Vec::new(),
        },
        name,
        value: Some(value),
        read_only: true,
        config_source: STATIC,
        is_sensitive: false,
        config_type: kind as i8,
        documentation: wanted.documentation.then(|| help.to_owned()),
    };
    rows.into_iter().map(describe).collect()
}

/// Keys of the configuration, by what Kafka calls them. The first of two is that of topics in memory.
const BROKER_KEYS: &[(&str, &[&str])] = &[
    ("auto.create.topics.enable", &["auto_create_topics"]),
    ("group.initial.rebalance.delay.ms", &["group_initial_delay_ms"]),
    ("log.cleaner.delete.retention.ms", &["tombstone_retention_ms"]),
    ("log.cleaner.io.max.bytes.per.second", &["compaction_bytes_per_s"]),
    ("log.retention.bytes", &["retention_bytes", "disk_retention_bytes"]),
    ("log.retention.ms", &["retention_ms", "disk_retention_ms"]),
    ("max.connections", &["connections_max"]),
    ("max.connections.per.ip", &["connections_per_peer_max"]),
    ("num.partitions", &["default_partitions"]),
    ("offsets.retention.minutes", &["offsets_retention_ms"]),
    ("transactional.id.expiration.ms", &["transactional_id_expiration_ms"]),
];

/// Refuses to change settings of the broker while it runs, each by its name and with what changes it.
pub(super) fn alter_broker<'a>(
    broker: &Broker,
    caller: &Caller,
    key: i16,
    node: &str,
    names: impl Iterator<Item = &'a str>,
) -> (i16, Option<String>) {
    let decide = || -> Result<(), Failure> {
        caller.may_use(broker, key, &Resource::CLUSTER).map_err(|code| (code, String::new()))?;
        check_node(node)?;
        let refusals: Vec<String> = names.map(|name| why_fixed(broker, name)).collect();
        if refusals.is_empty() { Ok(()) } else { Err((Code::INVALID_REQUEST, refusals.join("; "))) }
    };
    decide().map_or_else(|(code, message)| (code.0, Some(message)), |()| (Code::NONE.0, None))
}

pub(super) fn why_fixed(broker: &Broker, name: &str) -> String {
    if let Some((_, keys)) = BROKER_KEYS.iter().find(|(known, _)| *known == name) {
        return format!("{name} is {} in thalweg.toml here, and changes with a restart", keys.join(" or "));
    }
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.of_broker == name) {
        return format!("{name} does not change for all topics: set {} of a topic", setting.name);
    }
    match of_broker(broker, Wanted::default()).iter().any(|row| row.name == name) {
        true => format!("{name} does not change here"),
        false => format!("the broker has no setting '{name}'"),
    }
}
