//! Dynamic settings of the broker: for all brokers, and for this one; the latter take precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::Broker;
use bytes::Bytes;
use engine::{Error, SettingsChange};

use super::super::cluster::node_id;
use super::super::errors::{self, Code};
use super::super::outcome::Failure;
use super::{Draft, Kind, Rule, SET_FOR_CLUSTER, SET_FOR_NODE, SETTINGS, Setting, Steps};

/// Kind of the documents that store the settings: a line `name=value` for each.
const DOCUMENT: &str = "kafka.broker";
/// Name of the document with the settings of all brokers. The other document is named after the node's number.
const CLUSTER: &str = "default";

const CONNECTIONS: &str = "max.connections";
const CONNECTIONS_PER_PEER: &str = "max.connections.per.ip";
const CONNECTIONS_MAX: u64 = 1_000_000;
/// Rate limit of compaction, a decimal number in Kafka, and retention of tombstones. Their bounds are those of the keys
/// `compaction_bytes_per_s` and `tombstone_retention_ms`.
pub(super) const CLEANER_BYTES: &str = "log.cleaner.io.max.bytes.per.second";
const TOMBSTONE_MS: &str = "log.cleaner.delete.retention.ms";
/// Rates that `kafka-reassign-partitions.sh --throttle` sets and removes. Without followers they have no effect: they
/// are only stored and shown.
pub(super) const THROTTLES: [&str; 3] = [
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
];
const CLEANER_BYTES_MIN: u64 = 1 << 10;
const CLEANER_BYTES_MAX: u64 = 1 << 40;
const TOMBSTONE_MS_MAX: u64 = 1 << 50;

/// Settings with units other than milliseconds, which Kafka accepts only in its file.
pub(super) const HOURS_AND_MINUTES: [&str; 3] = ["log.retention.hours", "log.retention.minutes", "log.roll.hours"];

pub(super) fn in_ms(name: &str) -> String {
    name.replace(".hours", ".ms").replace(".minutes", ".ms")
}

/// Dynamic settings by level.
#[derive(Default)]
pub(in super::super) struct Levels {
    node: BTreeMap<String, String>,
    pub(super) cluster: BTreeMap<String, String>,
}

impl Levels {
    /// Reads the dynamic settings. Unreadable settings are treated as unset; the broker logs the reason on startup.
    pub(in super::super) async fn of_broker(broker: &Broker) -> Self {
        Self::read(broker).await.unwrap_or_default()
    }

    /// Reads the dynamic settings of a node like [`Levels::of_broker`].
    pub(super) async fn of_node(broker: &Broker, node: &str) -> Self {
        Self::read_of(broker, node).await.unwrap_or_default()
    }

    /// Reads the settings of all brokers, and those of this node.
    async fn read(broker: &Broker) -> Result<Self, Error> {
        Self::read_of(broker, &node_id(broker).to_string()).await
    }

    /// Reads the settings of all brokers, and those of a node.
    async fn read_of(broker: &Broker, node: &str) -> Result<Self, Error> {
        let read = async |name: &str| {
            let kept = broker.documents.get(DOCUMENT, name).await?;
            let text = kept.as_deref().map(|kept| String::from_utf8_lossy(kept)).unwrap_or_default();
            let lines = text.lines().filter_map(|line| line.split_once('='));
            Ok::<_, Error>(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        };
        Ok(Self { node: read(node).await?, cluster: read(CLUSTER).await? })
    }

    /// Returns the values of a setting with their sources, the effective one first.
    pub(super) fn of(&self, name: &str) -> Vec<(&str, i8)> {
        let levels = [(&self.node, SET_FOR_NODE), (&self.cluster, SET_FOR_CLUSTER)];
        levels.into_iter().filter_map(|(level, source)| Some((level.get(name)?.as_str(), source))).collect()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.of(name).first().map(|(value, _)| *value)
    }

    /// Returns the value of a connection limit, if it is set.
    fn limit(&self, name: &str) -> Result<Option<u64>, Failure> {
        self.value(name).map(|value| connections(name, value)).transpose()
    }

    /// Returns the rate limit of compaction in bytes per second, and the retention of tombstones in ms.
    fn compaction(&self, broker: &Broker) -> Result<(u64, u64), Failure> {
        let (bytes_per_s, tombstone_ms) = configured_compaction(broker);
        let bytes_per_s = self.value(CLEANER_BYTES).map(cleaner_bytes).transpose()?.unwrap_or(bytes_per_s);
        let tombstone_ms = self
            .value(TOMBSTONE_MS)
            .map(|value| whole(TOMBSTONE_MS, value, TOMBSTONE_MS_MAX))
            .transpose()?
            .unwrap_or(tombstone_ms);
        Ok((bytes_per_s, tombstone_ms))
    }

    /// Returns the resulting defaults for topics without their own settings.
    fn change(&self, broker: &Broker) -> Result<SettingsChange, Failure> {
        let mut draft = Draft::new(broker, 1);
        let mut change = SettingsChange::default();
        for setting in SETTINGS.iter().filter(|setting| is_of_topics(setting)) {
            let Some(value) = self.value(setting.of_broker) else { continue };
            let why = draft.set(setting.name, Some(value));
            why.map_err(|(_, message)| (Code::INVALID_REQUEST, format!("{}: {message}", setting.of_broker)))?;
            let settings = &draft.settings;
            match setting.rule {
                Rule::RetentionMs => change.retention_ms = draft.retention_ms,
                Rule::RetentionBytes => change.retention_bytes = draft.retention_bytes,
                Rule::BatchBytesMax => change.batch_bytes_max = Some(settings.batch_bytes_max),
                Rule::TimestampType => change.arrival_times = Some(settings.arrival_times),
                Rule::Compression => change.compression = Some(settings.compression),
                Rule::SegmentBytes => change.segment_bytes = Some(settings.segment_bytes),
                Rule::SegmentMs => change.segment_ms = Some(settings.segment_ms),
                Rule::LagMsMin | Rule::LagMsMax => change.compaction_lag_ms = Some(settings.compaction_lag_ms),
                Rule::CleanupPolicy | Rule::TombstoneMs | Rule::InSync | Rule::Only(_) | Rule::Harmless(_) => {}
            }
        }
        Ok(change)
    }

    fn check(&self, broker: &Broker) -> Result<(), Failure> {
        let change = self.change(broker)?;
        broker.check_topic_defaults(&change).map_err(|error| (Code::INVALID_REQUEST, error.message))?;
        self.compaction(broker)?;
        for (name, value) in THROTTLES.into_iter().filter_map(|name| Some((name, self.value(name)?))) {
            whole(name, value, i64::MAX as u64)?;
        }
        self.limit(CONNECTIONS)?;
        self.limit(CONNECTIONS_PER_PEER).map(drop)
    }

    /// Applies the settings to topics, connections and compaction.
    async fn apply(&self, broker: &Broker) -> Result<(), Failure> {
        let change = self.change(broker)?;
        let (bytes_per_s, tombstone_ms) = self.compaction(broker)?;
        if let Some(store) = broker.store() {
            store.set_compaction(bytes_per_s, tombstone_ms);
        }
        broker.connection_limits().set(self.limit(CONNECTIONS)?, self.limit(CONNECTIONS_PER_PEER)?);
        broker.set_topic_defaults(&change).await.map_err(failed)
    }
}

fn connections(name: &str, value: &str) -> Result<u64, Failure> {
    let wrong =
        || (Code::INVALID_REQUEST, format!("{name} = '{value}' is not a whole number from 1 to {CONNECTIONS_MAX}"));
    let parsed = value.trim().parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
    parsed.ok_or_else(wrong)
}

/// Parses a rate of compaction. Kafka's default is the largest number, which means no limit.
fn cleaner_bytes(value: &str) -> Result<u64, Failure> {
    let wrong = || {
        let message = format!("{CLEANER_BYTES} = '{value}' is not a number of at least {CLEANER_BYTES_MIN}");
        (Code::INVALID_REQUEST, message)
    };
    let parsed = value.trim().parse::<f64>().ok().filter(|bytes| *bytes >= CLEANER_BYTES_MIN as f64);
    Ok((parsed.ok_or_else(wrong)? as u64).min(CLEANER_BYTES_MAX))
}

/// Parses a whole number with a maximum.
fn whole(name: &str, value: &str, most: u64) -> Result<u64, Failure> {
    let wrong = || (Code::INVALID_REQUEST, format!("{name} = '{value}' is not a whole number from 0 to {most}"));
    value.trim().parse().ok().filter(|number| *number <= most).ok_or_else(wrong)
}

/// Returns the rate limit of compaction in bytes per second and the retention of tombstones in ms from the
/// configuration. Both are 0 without topics on disk, because then no topic is compacted.
pub(super) fn configured_compaction(broker: &Broker) -> (u64, u64) {
    let compaction = broker.store().map(|store| store.settings().compaction);
    compaction.map_or((0, 0), |compaction| (compaction.bytes_per_s, compaction.tombstone_retention_ms))
}

/// Returns `true` if it is a setting of topics whose default can change for all of them.
fn is_of_topics(setting: &Setting) -> bool {
    setting.own().is_some() || matches!(setting.rule, Rule::Only(_) | Rule::InSync)
}

fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.of_broker == name && is_of_topics(setting))
}

/// Returns `true` if a setting can change while the broker runs. Kafka calls all of these cluster-wide: they may be set
/// for all brokers and for one.
pub(super) fn is_known(name: &str) -> bool {
    let is_own = [CONNECTIONS, CONNECTIONS_PER_PEER, CLEANER_BYTES, TOMBSTONE_MS].contains(&name);
    is_own || THROTTLES.contains(&name) || find(name).is_some()
}

pub(super) fn kind(name: &str) -> Kind {
    match name {
        CLEANER_BYTES => Kind::Double,
        TOMBSTONE_MS => Kind::Long,
        name if THROTTLES.contains(&name) => Kind::Long,
        _ => find(name).map_or(Kind::Int, |setting| setting.kind),
    }
}

pub(super) fn help(name: &str) -> &'static str {
    match name {
        CLEANER_BYTES => "Maximum number of bytes that compaction reads and writes per second",
        TOMBSTONE_MS => "How long tombstones are kept",
        name if THROTTLES.contains(&name) => "There are no followers",
        _ => find(name).map_or("Maximum number of open connections per door", |setting| setting.help),
    }
}

fn failed(error: Error) -> Failure {
    (errors::code(&error), error.message)
}

/// Changes the settings of a node, or of all brokers if the name is empty. Those of another node take effect when it
/// leads.
pub(super) async fn change(
    broker: &Arc<Broker>,
    node: &str,
    steps: Steps<'_>,
    is_dry_run: bool,
) -> Result<(), Failure> {
    let _turn = broker.defaults_turn().await;
    let own = node_id(broker).to_string();
    let is_own = node.is_empty() || node == own;
    let mut levels = Levels::read_of(broker, if is_own { &own } else { node }).await.map_err(failed)?;
    let (level, document) = match node {
        "" => (&mut levels.cluster, CLUSTER),
        node => (&mut levels.node, node),
    };
    if steps.begin_anew {
        level.clear();
    }
    for (name, value) in steps.settings {
        match value {
            Some(value) => drop(level.insert(name.to_owned(), value.trim().to_owned())),
            None => drop(level.remove(name)),
        }
    }
    let lines: String = level.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    if lines.lines().count() != level.len() {
        return Err((Code::INVALID_REQUEST, "a value must not contain a line break".to_owned()));
    }
    // A value for all brokers must be valid even if one for the node overrides it.
    let cluster = Levels { node: BTreeMap::new(), cluster: levels.cluster.clone() };
    cluster.check(broker)?;
    levels.check(broker)?;
    if is_dry_run {
        return Ok(());
    }
    let kept = Some(Bytes::from(lines)).filter(|lines| !lines.is_empty());
    broker.documents.put(DOCUMENT, document, kept).await.map_err(failed)?;
    if is_own { levels.apply(broker).await } else { Ok(()) }
}

/// Restores the dynamic settings on startup, and updates the topics that inherit the configuration's values.
pub async fn restore(broker: &Broker) -> engine::Result<()> {
    let _turn = broker.defaults_turn().await;
    let levels = Levels::read(broker).await?;
    levels.apply(broker).await.map_err(|(_, message)| Error::invalid(message))
}
