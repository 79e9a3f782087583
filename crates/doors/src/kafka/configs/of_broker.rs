//! Settings of the broker under Kafka's names: their values and their changes.

use std::sync::Arc;

use broker::Broker;
use engine::Storage;
use engine::security::Resource;

use super::super::caller::Caller;
use super::super::cluster::{check_node, replication_factor};
use super::super::errors::Code;
use super::super::messages::describe_configs::{DescribeConfigsResourceResult, DescribeConfigsSynonym};
use super::super::outcome::{Failure, outcome_code};
use super::dynamic::{self, Levels};
use super::{Kind, SET_FOR_CLUSTER, SETTINGS, STATIC, Steps, Wanted};

fn synonym(name: &str, value: &str, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym { name: name.to_owned(), value: Some(value.to_owned()), source }
}

/// Describes the settings of all brokers. Kafka shows nothing else for its default broker.
pub(super) fn of_default_broker(levels: &Levels, wanted: Wanted) -> Vec<DescribeConfigsResourceResult> {
    let describe = |(name, value): (&String, &String)| DescribeConfigsResourceResult {
        name: name.clone(),
        value: Some(value.clone()),
        read_only: false,
        config_source: SET_FOR_CLUSTER,
        is_sensitive: false,
        synonyms: if wanted.synonyms { vec![synonym(name, value, SET_FOR_CLUSTER)] } else { Vec::new() },
        config_type: dynamic::kind(name) as i8,
        documentation: wanted.documentation.then(|| dynamic::help(name).to_owned()),
    };
    levels.cluster.iter().map(describe).collect()
}

/// Describes the settings of the broker under Kafka's names, from the configuration and from dynamic changes.
pub(super) fn of_broker(
    broker: &Broker,
    node: &str,
    levels: &Levels,
    wanted: Wanted,
) -> Vec<DescribeConfigsResourceResult> {
    let settings = broker.settings();
    let storage = if broker.store().is_some() { Storage::Disk } else { Storage::Memory };
    let defaults = broker.configured_topic_defaults(storage);
    let mut rows: Vec<(String, String, Kind, &str)> = SETTINGS
        .iter()
        .map(|setting| (setting.of_broker.to_owned(), setting.configured(broker, storage), setting.kind, setting.help))
        .collect();
    let mut row = |name: &str, value: String, kind, help| rows.push((name.to_owned(), value, kind, help));
    let offsets_minutes = settings.offsets_retention.as_secs() / 60;
    row("auto.create.topics.enable", settings.auto_create_topics.to_string(), Kind::Bool, "Key auto_create_topics");
    let (of_node, of_replicas) = match broker.leadership() {
        None => ("The only node", "A partition has one replica"),
        Some(_) => ("The number of the node", "A partition has a replica on each node that votes"),
    };
    let replicas = replication_factor(broker).to_string();
    row("broker.id", node.to_owned(), Kind::Int, of_node);
    let (bytes_per_s, _) = dynamic::configured_compaction(broker);
    row(dynamic::CLEANER_BYTES, bytes_per_s.to_string(), Kind::Double, dynamic::help(dynamic::CLEANER_BYTES));
    for name in dynamic::THROTTLES {
        row(name, i64::MAX.to_string(), dynamic::kind(name), dynamic::help(name));
    }
    row("node.id", node.to_owned(), Kind::Int, of_node);
    row("default.replication.factor", replicas.clone(), Kind::Int, of_replicas);
    row("delete.topic.enable", "true".to_owned(), Kind::Bool, "Topics can be deleted");
    row("num.partitions", defaults.partitions.to_string(), Kind::Int, "Key default_partitions");
    row("offsets.retention.minutes", offsets_minutes.to_string(), Kind::Int, "Key offsets_retention_ms");
    row("offsets.topic.replication.factor", replicas.clone(), Kind::Int, of_replicas);
    row("transaction.state.log.replication.factor", replicas.clone(), Kind::Int, of_replicas);
    let (connections, per_peer) = broker.connection_limits().configured();
    row("max.connections", connections.to_string(), Kind::Int, "Key connections_max, per door");
    row("max.connections.per.ip", per_peer.to_string(), Kind::Int, "Key connections_per_peer_max, per door");
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let describe = |(name, value, kind, help): (String, String, Kind, &str)| {
        let mut set = levels.of(&name);
        set.push((&value, STATIC));
        DescribeConfigsResourceResult {
            synonyms: if wanted.synonyms {
                set.iter().map(|(value, source)| synonym(&name, value, *source)).collect()
            } else {
                Vec::new()
            },
            value: Some(set[0].0.to_owned()),
            read_only: !dynamic::is_known(&name),
            config_source: set[0].1,
            is_sensitive: false,
            config_type: kind as i8,
            documentation: wanted.documentation.then(|| help.to_owned()),
            name,
        }
    };
    rows.into_iter().map(describe).collect()
}

/// Keys of the configuration by Kafka's name; several keys are alternatives.
const BROKER_KEYS: &[(&str, &[&str])] = &[
    ("auto.create.topics.enable", &["auto_create_topics"]),
    ("group.initial.rebalance.delay.ms", &["group_initial_delay_ms"]),
    ("num.partitions", &["default_partitions"]),
    ("offsets.retention.minutes", &["offsets_retention_ms"]),
    ("transactional.id.expiration.ms", &["transactional_id_expiration_ms"]),
];

/// Changes the settings of the node, or of all brokers, and returns the outcome.
pub(super) async fn alter_broker(
    broker: &Arc<Broker>,
    caller: &Caller,
    key: i16,
    node: &str,
    is_dry_run: bool,
    steps: Result<Steps<'_>, Failure>,
) -> (Code, Option<String>) {
    let decide = async || -> Result<(), Failure> {
        caller.may_use(broker, key, &Resource::CLUSTER).map_err(|code| (code, String::new()))?;
        check_node(broker, node)?;
        let steps = steps?;
        let fixed = steps.settings.iter().filter(|(name, value)| value.is_some() && !dynamic::is_known(name));
        let fixed: Vec<&str> = fixed.map(|(name, _)| *name).collect();
        if !fixed.is_empty() {
            let reasons: Vec<String> = fixed.iter().map(|name| why_fixed(broker, name)).collect();
            return Err((
                Code::INVALID_REQUEST,
                format!("Cannot update these configs dynamically: Set({}): {}", fixed.join(", "), reasons.join("; ")),
            ));
        }
        dynamic::change(broker, node, steps, is_dry_run).await
    };
    outcome_code(decide().await)
}

pub(super) fn why_fixed(broker: &Broker, name: &str) -> String {
    if let Some((_, keys)) = BROKER_KEYS.iter().find(|(known, _)| *known == name) {
        return format!(
            "{name} is the key {} of thalweg.toml: change it there, and restart the broker",
            keys.join(" or ")
        );
    }
    if dynamic::HOURS_AND_MINUTES.contains(&name) {
        return format!("{name} is read-only, as in Kafka: set {}", dynamic::in_ms(name));
    }
    if name == "log.cleanup.policy" {
        return "log.cleanup.policy cannot be changed for all topics, because topics of other protocols have records \
                without keys: set cleanup.policy of a topic"
            .to_owned();
    }
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.of_broker == name) {
        return format!("{name} cannot be changed for all topics: set {} of a topic", setting.name);
    }
    if of_broker(broker, "", &Levels::default(), Wanted::default()).iter().any(|row| row.name == name) {
        format!("{name} cannot be changed")
    } else {
        format!("'{name}' is not a setting of the broker")
    }
}
