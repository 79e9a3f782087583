//! Settings of topics and of the broker under Kafka's names: their values here, and the effect of setting each.

use std::collections::HashSet;
use std::sync::Arc;

use broker::{Broker, TopicOutline};
use engine::security::Resource;
use engine::{Codec, Error, ErrorKind, OwnSettings, SettingsChange, Storage, TopicSettings};

use super::caller::Caller;
use super::cluster::{check_node, majority};
use super::errors::{self, Code};
use super::groups;
use super::messages::alter_configs::{AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse};
use super::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use super::messages::incremental_alter_configs::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use super::outcome::{Failure, named_twice, outcome_code, twice};

mod dynamic;
mod listed;
mod of_broker;

pub(super) use dynamic::Levels;
pub use dynamic::restore as restore_settings;
pub(super) use listed::list_config_resources;
use of_broker::{alter_broker, of_broker, of_default_broker};

/// Types of resources that have settings.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;
/// Resource types without settings here: log levels of the broker, and client metrics.
const WITHOUT_SETTINGS: [i8; 2] = [8, 16];

/// Resources that are described before other tasks of the thread get their turn: each has up to 40 settings.
const RESOURCES_PER_TURN: usize = 16;

/// Returns `true` if resources of this type have names that their owners choose.
pub(super) fn has_name(kind: i8) -> bool {
    matches!(kind, TOPIC | GROUP)
}

/// Source of a value, as numbered by Kafka.
const SET_FOR_TOPIC: i8 = 1;
const SET_FOR_NODE: i8 = 2;
const SET_FOR_CLUSTER: i8 = 3;
const SET_FOR_GROUP: i8 = 8;
const STATIC: i8 = 4;
const DEFAULT: i8 = 5;

/// Operation of an incremental change, as numbered by Kafka.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

const COMPACT: &str = "compact";
const DELETES: &str = "delete";
const ARRIVAL: &str = "LogAppendTime";
const CREATION: &str = "CreateTime";
/// Kafka's largest number, which means no limit.
const FOREVER: &str = "9223372036854775807";
const AS_PRODUCED: &str = "producer";
const UNCOMPRESSED: &str = "uncompressed";
/// Segment size that is reported for topics in memory, which have no segments.
const SEGMENT_BYTES_MEMORY: u64 = 128 << 20;

/// Type of a value, as numbered by Kafka.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Bool = 1,
    Text = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// Handling of a setting of a topic.
#[derive(Clone, Copy)]
enum Rule {
    CleanupPolicy,
    RetentionMs,
    RetentionBytes,
    BatchBytesMax,
    TimestampType,
    /// Retention of tombstones, which is the same for all topics: a topic may request that value or less.
    TombstoneMs,
    Compression,
    SegmentBytes,
    SegmentMs,
    LagMsMin,
    LagMsMax,
    /// Number of replicas that have a committed record: a majority of them. A topic may request that or less.
    InSync,
    /// Setting with this fixed value; any other value is refused.
    Only(&'static str),
    /// Setting with this fixed value; any other value is accepted and has no visible effect.
    Harmless(&'static str),
}

struct Setting {
    name: &'static str,
    /// Name of the broker's setting that is the default for all topics.
    of_broker: &'static str,
    kind: Kind,
    rule: Rule,
    help: &'static str,
}

const fn setting(name: &'static str, of_broker: &'static str, kind: Kind, rule: Rule, help: &'static str) -> Setting {
    Setting { name, of_broker, kind, rule, help }
}

use Kind::{Bool, Double, Int, List, Long, Text};
use Rule::{Harmless, Only};

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    setting("cleanup.policy", "log.cleanup.policy", List, Rule::CleanupPolicy, "delete: retention deletes records; compact: the newest record of each key is kept"),
    setting("compression.gzip.level", "compression.gzip.level", Int, Harmless("-1"), "The broker uses the default level of gzip"),
    setting("compression.lz4.level", "compression.lz4.level", Int, Harmless("9"), "The broker uses the default level of lz4"),
    setting("compression.type", "compression.type", Text, Rule::Compression, "producer: batches are stored as they were sent; otherwise the codec for all batches"),
    setting("compression.zstd.level", "compression.zstd.level", Int, Harmless("3"), "The broker uses the default level of zstd"),
    setting("delete.retention.ms", "log.cleaner.delete.retention.ms", Long, Rule::TombstoneMs, "How long tombstones are kept: tombstone_retention_ms of the broker"),
    setting("file.delete.delay.ms", "log.segment.delete.delay.ms", Long, Harmless("0"), "Files are deleted at the next checkpoint"),
    setting("flush.messages", "log.flush.interval.messages", Long, Harmless("1"), "Every batch is synced before it is acknowledged"),
    setting("flush.ms", "log.flush.interval.ms", Long, Harmless("0"), "Every batch is synced before it is acknowledged"),
    setting("follower.replication.throttled.replicas", "follower.replication.throttled.replicas", List, Harmless(""), "There are no followers"),
    setting("index.interval.bytes", "log.index.interval.bytes", Int, Harmless("4096"), "The broker has its own format of indexes"),
    setting("leader.replication.throttled.replicas", "leader.replication.throttled.replicas", List, Harmless(""), "There are no followers"),
    setting("local.retention.bytes", "log.local.retention.bytes", Long, Only("-2"), "There is no remote storage"),
    setting("local.retention.ms", "log.local.retention.ms", Long, Only("-2"), "There is no remote storage"),
    setting("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", Long, Rule::LagMsMax, "The age at which a record must be compacted"),
    setting("max.message.bytes", "message.max.bytes", Int, Rule::BatchBytesMax, "Maximum size of a batch as the producer sends it"),
    setting("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", Long, Only(FOREVER), "Timestamps of producers are not checked"),
    setting("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", Long, Only(FOREVER), "Timestamps of producers are not checked"),
    setting("message.timestamp.type", "log.message.timestamp.type", Text, Rule::TimestampType, "CreateTime: the clock of the producer; LogAppendTime: that of the broker"),
    setting("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", Double, Harmless("0.5"), "Compaction runs when as many bytes were added as were left by the last one"),
    setting("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", Long, Rule::LagMsMin, "The age at which a record may be compacted"),
    setting("min.insync.replicas", "min.insync.replicas", Int, Rule::InSync, "A majority of the replicas has every committed record"),
    setting("preallocate", "log.preallocate", Bool, Harmless("false"), "The journal is preallocated, segments are not"),
    setting("remote.log.copy.disable", "remote.log.copy.disable", Bool, Only("false"), "There is no remote storage"),
    setting("remote.log.delete.on.disable", "remote.log.delete.on.disable", Bool, Only("false"), "There is no remote storage"),
    setting("remote.storage.enable", "log.remote.storage.enable", Bool, Only("false"), "There is no remote storage"),
    setting("retention.bytes", "log.retention.bytes", Long, Rule::RetentionBytes, "Bytes that a partition retains; -1: no limit"),
    setting("retention.ms", "log.retention.ms", Long, Rule::RetentionMs, "How long records are retained; -1: no limit"),
    setting("segment.bytes", "log.segment.bytes", Int, Rule::SegmentBytes, "Maximum size of a segment of the log on disk"),
    setting("segment.index.bytes", "log.index.size.max.bytes", Int, Harmless("10485760"), "The broker has its own format of indexes"),
    setting("segment.jitter.ms", "log.roll.jitter.ms", Long, Harmless("0"), "Segments are closed by their size"),
    setting("segment.ms", "log.roll.ms", Long, Rule::SegmentMs, "Maximum time between the first and the last batch of a segment"),
    setting("unclean.leader.election.enable", "unclean.leader.election.enable", Bool, Harmless("false"), "A partition has one replica, which is its leader"),
];

impl Setting {
    /// Returns the value for a topic with these settings.
    fn value(&self, broker: &Broker, settings: &TopicSettings) -> String {
        let limit = |value: u64| if value == 0 { "-1".to_owned() } else { value.min(i64::MAX as u64).to_string() };
        match self.rule {
            Rule::CleanupPolicy => Policy::of(settings).name().to_owned(),
            Rule::RetentionMs => limit(settings.retention_ms),
            Rule::RetentionBytes => limit(settings.retention_bytes),
            Rule::BatchBytesMax => settings.batch_bytes_max.to_string(),
            Rule::TimestampType => (if settings.arrival_times { ARRIVAL } else { CREATION }).to_owned(),
            Rule::TombstoneMs => tombstone_ms(broker).to_string(),
            Rule::Compression => match settings.compression {
                None => AS_PRODUCED,
                Some(Codec::None) => UNCOMPRESSED,
                Some(codec) => codec.name(),
            }
            .to_owned(),
            Rule::SegmentBytes => match settings.segment_bytes {
                0 => broker.store().map_or(SEGMENT_BYTES_MEMORY, |store| store.settings().segment_bytes),
                bytes => bytes,
            }
            .to_string(),
            Rule::SegmentMs => unless_forever(settings.segment_ms),
            Rule::LagMsMin => settings.compaction_lag_ms.0.to_string(),
            Rule::LagMsMax => unless_forever(settings.compaction_lag_ms.1),
            Rule::InSync => majority(broker).to_string(),
            Rule::Only(value) | Rule::Harmless(value) => value.to_owned(),
        }
    }

    /// Returns the value that applies if neither the topic nor the running broker overrides it.
    fn configured(&self, broker: &Broker, storage: Storage) -> String {
        match self.rule {
            Rule::TombstoneMs => dynamic::configured_compaction(broker).1.to_string(),
            _ => self.value(broker, &broker.configured_topic_defaults(storage)),
        }
    }

    /// Returns the corresponding flag among the settings that a topic may inherit from the broker.
    fn own(&self) -> Option<OwnSettings> {
        match self.rule {
            Rule::RetentionMs => Some(OwnSettings::RETENTION_MS),
            Rule::RetentionBytes => Some(OwnSettings::RETENTION_BYTES),
            Rule::BatchBytesMax => Some(OwnSettings::BATCH_BYTES_MAX),
            Rule::TimestampType => Some(OwnSettings::ARRIVAL_TIMES),
            Rule::Compression => Some(OwnSettings::COMPRESSION),
            Rule::SegmentBytes => Some(OwnSettings::SEGMENT_BYTES),
            Rule::SegmentMs => Some(OwnSettings::SEGMENT_MS),
            Rule::LagMsMin => Some(OwnSettings::LAG_MS_MIN),
            Rule::LagMsMax => Some(OwnSettings::LAG_MS_MAX),
            Rule::CleanupPolicy | Rule::TombstoneMs | Rule::InSync | Rule::Only(_) | Rule::Harmless(_) => None,
        }
    }

    fn is_settable(&self) -> bool {
        !matches!(self.rule, Rule::Only(_) | Rule::Harmless(_) | Rule::TombstoneMs | Rule::InSync)
    }

    fn describe(
        &self,
        broker: &Broker,
        levels: &Levels,
        settings: &TopicSettings,
        wanted: Wanted,
    ) -> DescribeConfigsResourceResult {
        let configured = self.configured(broker, settings.storage);
        let default = self.value(broker, &broker.topic_defaults(settings.storage));
        let value = self.value(broker, settings);
        let has_own = self.own().zip(settings.own).is_some_and(|(setting, own)| own.has(setting));
        let is_set = has_own || value != default;
        let of_broker = levels.of(self.of_broker);
        let source = if is_set { SET_FOR_TOPIC } else { of_broker.first().map_or(DEFAULT, |(_, source)| *source) };
        let synonym = |name: &str, value: &str, source| DescribeConfigsSynonym {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            source,
        };
        let mut synonyms = Vec::new();
        if wanted.synonyms {
            synonyms.extend(is_set.then(|| synonym(self.name, &value, source)));
            synonyms.extend(of_broker.iter().map(|(value, source)| synonym(self.of_broker, value, *source)));
            synonyms.push(synonym(self.of_broker, &configured, DEFAULT));
        }
        DescribeConfigsResourceResult {
            name: self.name.to_owned(),
            value: Some(value),
            read_only: !self.is_settable(),
            config_source: source,
            is_sensitive: false,
            synonyms,
            config_type: self.kind as i8,
            documentation: wanted.documentation.then(|| self.help.to_owned()),
        }
    }
}

fn unless_forever(ms: u64) -> String {
    if ms == 0 { FOREVER.to_owned() } else { ms.to_string() }
}

/// Parses a number with a minimum; Kafka's largest number is returned as 0, no limit.
fn at_least(name: &str, value: &str, least: i64) -> Result<u64, Failure> {
    match number(name, value)? {
        i64::MAX => Ok(0),
        number if number < least => Err(wrong(format!("{name} is at least {least}, not {number}"))),
        number => Ok(number as u64),
    }
}

fn tombstone_ms(broker: &Broker) -> u64 {
    broker.store().map_or(0, |store| store.compaction().tombstone_retention_ms)
}

/// Cleanup policy of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    deletes: bool,
    compacts: bool,
}

impl Policy {
    fn of(settings: &TopicSettings) -> Self {
        let has_retention = settings.retention_ms > 0 || settings.retention_bytes > 0;
        Self { deletes: !settings.compact || has_retention, compacts: settings.compact }
    }

    fn name(self) -> &'static str {
        match (self.deletes, self.compacts) {
            (true, true) => "compact,delete",
            (false, true) => COMPACT,
            // With neither, all records are kept, which is deletion without a limit of retention.
            (_, false) => DELETES,
        }
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let mut policy = Self { deletes: false, compacts: false };
        for part in list(text) {
            match part {
                DELETES => policy.deletes = true,
                COMPACT => policy.compacts = true,
                _ => return Err(wrong(format!("cleanup.policy is delete, compact or both, not '{text}'"))),
            }
        }
        if policy.deletes || policy.compacts {
            Ok(policy)
        } else {
            Err(wrong("cleanup.policy is delete, compact or both; to keep all records, set retention.ms=-1".into()))
        }
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

pub(super) fn wrong(message: String) -> Failure {
    (Code::INVALID_CONFIG, message)
}

/// Settings of a topic that are being composed from Kafka's settings.
pub(super) struct Draft<'b> {
    broker: &'b Broker,
    settings: TopicSettings,
    policy: Policy,
    /// Requested retention: a limit, or [`TopicSettings::DEFAULT`]; `None` if it is not changed.
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    own: OwnSettings,
}

impl<'b> Draft<'b> {
    /// Returns a draft that begins with the settings of an existing topic.
    fn of(broker: &'b Broker, settings: TopicSettings) -> Self {
        let defaults = broker.topic_defaults(settings.storage);
        let own = settings.own.unwrap_or_else(|| settings.differences(&defaults));
        Self { broker, settings, policy: Policy::of(&settings), retention_ms: None, retention_bytes: None, own }
    }

    /// Returns the draft of a new topic, with default settings.
    pub(super) fn new(broker: &'b Broker, partitions: u32) -> Self {
        let settings = TopicSettings { partitions, ..TopicSettings::of_broker() };
        let policy = Policy { deletes: true, compacts: false };
        Self {
            broker,
            settings,
            policy,
            retention_ms: Some(TopicSettings::DEFAULT),
            retention_bytes: Some(TopicSettings::DEFAULT),
            own: OwnSettings::NONE,
        }
    }

    /// Sets the setting with this name. `None` resets it to the default: the broker's value, which the topic inherits.
    pub(super) fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        let setting = find(name)?;
        if let Some(own) = setting.own() {
            self.own = self.own.with(own, value.is_some());
        }
        let default = || TopicSettings::default();
        match setting.rule {
            Rule::CleanupPolicy => {
                self.policy = value.map_or(Ok(Policy { deletes: true, compacts: false }), Policy::parse)?;
            }
            Rule::RetentionMs => self.retention_ms = Some(limit(name, value)?),
            Rule::RetentionBytes => self.retention_bytes = Some(limit(name, value)?),
            Rule::BatchBytesMax => {
                let bytes = value.map(|value| number(name, value)).transpose()?;
                let bytes = bytes.map_or(default().batch_bytes_max.into(), |bytes| bytes.max(0) as u64);
                self.settings.batch_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
            }
            Rule::TimestampType => {
                self.settings.arrival_times = match value {
                    None | Some(CREATION) => false,
                    Some(ARRIVAL) => true,
                    Some(other) => return Err(wrong(format!("{name} is {CREATION} or {ARRIVAL}, not '{other}'"))),
                };
            }
            Rule::TombstoneMs => {
                let most = tombstone_ms(self.broker);
                if let Some(value) = value
                    && (number(name, value)?.max(0) as u64) > most
                    && self.broker.store().is_some()
                {
                    return Err(wrong(format!(
                        "{name} = {value}: tombstones of all topics are kept for {most} ms; raise \
                         tombstone_retention_ms of the broker, or its {} while it runs",
                        setting.of_broker
                    )));
                }
            }
            Rule::Compression => {
                self.settings.compression = match value {
                    None | Some(AS_PRODUCED) => None,
                    Some(UNCOMPRESSED) => Some(Codec::None),
                    Some(other) => {
                        Some(Codec::ALL.into_iter().skip(1).find(|codec| codec.name() == other).ok_or_else(|| {
                            wrong(format!(
                                "{name} is {AS_PRODUCED}, {UNCOMPRESSED}, gzip, snappy, lz4 or zstd, not '{other}'"
                            ))
                        })?)
                    }
                };
            }
            Rule::SegmentBytes => {
                self.settings.segment_bytes = value.map_or(Ok(0), |value| at_least(name, value, 1))?
            }
            Rule::SegmentMs => self.settings.segment_ms = value.map_or(Ok(0), |value| at_least(name, value, 1))?,
            Rule::LagMsMin => {
                self.settings.compaction_lag_ms.0 = value.map_or(Ok(0), |value| at_least(name, value, 0))?;
            }
            Rule::LagMsMax => {
                self.settings.compaction_lag_ms.1 = value.map_or(Ok(0), |value| at_least(name, value, 1))?;
            }
            Rule::InSync => {
                let most = majority(self.broker);
                if let Some(value) = value
                    && !usize::try_from(number(name, value)?).is_ok_and(|value| (1..=most).contains(&value))
                {
                    return Err(wrong(match most {
                        1 => format!("{name} must be 1, not {value}: a partition has one replica"),
                        _ => format!("{name} is 1 to {most}, not {value}: a majority of the replicas"),
                    }));
                }
            }
            Rule::Only(only) => {
                if let Some(value) = value.filter(|value| *value != only) {
                    let shown = if only == FOREVER { "no limit" } else { only };
                    return Err(wrong(format!("{name} must be {shown}, not {value}: {}", in_words(setting.help))));
                }
            }
            Rule::Harmless(_) => check_kind(setting, value)?,
        }
        Ok(())
    }

    /// Applies an incremental change to the setting with this name.
    fn step(&mut self, name: &str, operation: i8, value: Option<&str>) -> Result<(), Failure> {
        match operation {
            SET => match value {
                Some(value) => self.set(name, Some(value)),
                None => Err((Code::INVALID_REQUEST, format!("{name}: a value is missing"))),
            },
            DELETE => self.set(name, None),
            APPEND | SUBTRACT => {
                let setting = find(name)?;
                if !matches!(setting.kind, Kind::List) {
                    return Err(wrong(format!("{name} is not a list: use the operation SET or DELETE")));
                }
                let Rule::CleanupPolicy = setting.rule else {
                    return Ok(());
                };
                let change = Policy::parse(value.unwrap_or_default())?;
                let with = |has: bool, named: bool| if named { operation == APPEND } else { has };
                let policy = Policy {
                    deletes: with(self.policy.deletes, change.deletes),
                    compacts: with(self.policy.compacts, change.compacts),
                };
                if !policy.deletes && !policy.compacts {
                    return Err(wrong("cleanup.policy is delete, compact or both, and would be neither".into()));
                }
                self.policy = policy;
                Ok(())
            }
            other => Err((Code::INVALID_REQUEST, format!("{other} is not an operation on settings"))),
        }
    }

    /// Returns the resulting settings. Retention applies only if the policy deletes records.
    pub(super) fn settings(&self) -> TopicSettings {
        let before = Policy::of(&self.settings);
        let storage = self.broker.resolve(self.settings).map_or(self.settings.storage, |resolved| resolved.storage);
        let defaults = self.broker.topic_defaults(storage);
        let kept = |said: Option<u64>, has: u64, default: u64| match said {
            _ if !self.policy.deletes => 0,
            Some(TopicSettings::DEFAULT) => default,
            Some(limit) => limit,
            // The former value had no effect, because the topic did not delete.
            None if !before.deletes => default,
            None => has,
        };
        let own = if self.policy.deletes {
            self.own
        } else {
            self.own.with(OwnSettings::RETENTION_MS, false).with(OwnSettings::RETENTION_BYTES, false)
        };
        TopicSettings {
            own: Some(own),
            compact: self.policy.compacts,
            retention_ms: kept(self.retention_ms, self.settings.retention_ms, defaults.retention_ms),
            retention_bytes: kept(self.retention_bytes, self.settings.retention_bytes, defaults.retention_bytes),
            ..self.settings
        }
    }

    fn change(&self) -> SettingsChange {
        let TopicSettings { retention_bytes, retention_ms, compact, batch_bytes_max, arrival_times, own, .. } =
            self.settings();
        let TopicSettings { compression, segment_bytes, segment_ms, compaction_lag_ms, .. } = self.settings;
        SettingsChange {
            retention_bytes: Some(retention_bytes),
            retention_ms: Some(retention_ms),
            compact: Some(compact),
            batch_bytes_max: Some(batch_bytes_max),
            arrival_times: Some(arrival_times),
            compression: Some(compression),
            segment_bytes: Some(segment_bytes),
            segment_ms: Some(segment_ms),
            compaction_lag_ms: Some(compaction_lag_ms),
            own,
            ..SettingsChange::default()
        }
    }
}

fn find(name: &str) -> Result<&'static Setting, Failure> {
    let found = SETTINGS.iter().find(|setting| setting.name == name);
    found.ok_or_else(|| wrong(format!("'{name}' is not a setting of a topic")))
}

/// Returns a sentence with a lower-case first letter, for use within another sentence.
fn in_words(help: &str) -> String {
    let mut letters = help.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

fn number(name: &str, value: &str) -> Result<i64, Failure> {
    value.trim().parse().map_err(|error| wrong(format!("{name} = '{value}' is not a whole number: {error}")))
}

/// Parses a limit. Kafka's -1 (no limit) becomes 0, and its 0 becomes 1, the smallest limit.
fn limit(name: &str, value: Option<&str>) -> Result<u64, Failure> {
    match value.map(|value| number(name, value)).transpose()? {
        None => Ok(TopicSettings::DEFAULT),
        Some(-1) => Ok(0),
        Some(0) => Ok(1),
        Some(limit) => u64::try_from(limit).map_err(|error| wrong(format!("{name} = {limit}: -1 or more ({error})"))),
    }
}

fn check_kind(setting: &Setting, value: Option<&str>) -> Result<(), Failure> {
    let Some(value) = value else {
        return Ok(());
    };
    let is_right = match setting.kind {
        Kind::Bool => matches!(value.to_ascii_lowercase().as_str(), "true" | "false"),
        Kind::Int | Kind::Long => value.trim().parse::<i64>().is_ok(),
        Kind::Double => value.trim().parse::<f64>().is_ok(),
        Kind::Text | Kind::List => true,
    };
    if is_right { Ok(()) } else { Err(wrong(format!("{} cannot be '{value}'", setting.name))) }
}

/// Optional parts of a description.
#[derive(Clone, Copy, Default)]
struct Wanted {
    synonyms: bool,
    documentation: bool,
}

/// Describes all settings of a topic, for the response to its creation.
pub(super) fn of_topic(
    broker: &Broker,
    levels: &Levels,
    settings: &TopicSettings,
) -> Vec<DescribeConfigsResourceResult> {
    SETTINGS.iter().map(|setting| setting.describe(broker, levels, settings, Wanted::default())).collect()
}

/// Describes the settings of a group.
async fn of_group(broker: &Broker, name: &str, wanted: Wanted) -> Result<Vec<DescribeConfigsResourceResult>, Failure> {
    let settings = groups::describe_settings(broker, name).await?;
    let describe = |setting: groups::Shown| {
        let source = if setting.value == setting.default { DEFAULT } else { SET_FOR_GROUP };
        let synonym =
            DescribeConfigsSynonym { name: setting.name.to_owned(), value: Some(setting.value.clone()), source };
        DescribeConfigsResourceResult {
            name: setting.name.to_owned(),
            value: Some(setting.value),
            read_only: false,
            config_source: source,
            is_sensitive: false,
            synonyms: if wanted.synonyms { vec![synonym] } else { Vec::new() },
            config_type: setting.kind as i8,
            documentation: wanted.documentation.then(|| setting.help.to_owned()),
        }
    };
    Ok(settings.into_iter().map(describe).collect())
}

/// Returns the resource of access control that the settings belong to.
fn resource(kind: i8, name: &str) -> Resource<'_> {
    match kind {
        TOPIC => Resource::topic(name),
        GROUP => Resource::group(name),
        _ => Resource::CLUSTER,
    }
}

/// Changes of a group's settings by name; `None` unsets a setting.
pub(super) struct Steps<'a> {
    /// `true` if settings that are not named are unset.
    pub begin_anew: bool,
    pub settings: Vec<(&'a str, Option<&'a str>)>,
}

/// Changes the settings of a group and returns the outcome.
async fn alter_group(
    broker: &Arc<Broker>,
    caller: &Caller,
    key: i16,
    name: &str,
    is_dry_run: bool,
    steps: Result<Steps<'_>, Failure>,
) -> (Code, Option<String>) {
    let outcome = match caller.may_use(broker, key, &Resource::group(name)) {
        Ok(()) => match steps {
            Ok(steps) => groups::change(broker, name, steps, is_dry_run).await,
            Err(failure) => Err(failure),
        },
        Err(code) => Err((code, String::new())),
    };
    outcome_code(outcome)
}

fn topic(broker: &Broker, name: &str) -> Result<TopicOutline, Failure> {
    broker.outline_topic(name).map_err(|error| (errors::code(&error), error.message))
}

fn no_settings(kind: i8) -> Failure {
    (Code::INVALID_REQUEST, format!("resources of type {kind} have no settings"))
}

pub(super) async fn describe_configs(
    broker: &Broker,
    caller: &Caller,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let wanted = Wanted { synonyms: request.include_synonyms, documentation: request.include_documentation };
    let levels = Levels::of_broker(broker).await;
    let found = async |kind, name: &str| {
        caller.may_use(broker, 32, &resource(kind, name)).map_err(|code| (code, String::new()))?;
        match kind {
            TOPIC => {
                let settings = topic(broker, name)?.settings;
                Ok(SETTINGS.iter().map(|setting| setting.describe(broker, &levels, &settings, wanted)).collect())
            }
            BROKER if name.is_empty() => Ok(of_default_broker(&levels, wanted)),
            BROKER => {
                check_node(broker, name)?;
                // Tools request the settings of a node from that node, whose connections this one serves.
                let levels = Levels::of_node(broker, name).await;
                Ok(of_broker(broker, name, &levels, wanted))
            }
            GROUP => of_group(broker, name, wanted).await,
            other if WITHOUT_SETTINGS.contains(&other) => Ok(Vec::new()),
            other => Err(no_settings(other)),
        }
    };
    let describe = async |asked: DescribeConfigsResource| {
        let DescribeConfigsResource { resource_type, resource_name, configuration_keys } = asked;
        let found = found(resource_type, &resource_name).await;
        let (error_code, error_message, mut configs) = match found {
            Ok(configs) => (Code::NONE.0, None, configs),
            Err((code, message)) => (code.0, Some(message), Vec::new()),
        };
        if let Some(keys) = configuration_keys.filter(|keys| !keys.is_empty()) {
            configs.retain(|config| keys.contains(&config.name));
        }
        DescribeConfigsResult { error_code, error_message, resource_type, resource_name, configs }
    };
    // A resource is described only once, even if it is named several times.
    let mut named = HashSet::new();
    let is_new = |asked: &DescribeConfigsResource| named.insert((asked.resource_type, asked.resource_name.clone()));
    let mut results = Vec::with_capacity(request.resources.len());
    for asked in request.resources.into_iter().filter(is_new) {
        results.push(describe(asked).await);
        if results.len().is_multiple_of(RESOURCES_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    DescribeConfigsResponse { results, ..Default::default() }
}

/// Replaces all settings of a topic: those that are not named are reset to their defaults.
pub(super) async fn alter_configs(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let twice = twice(request.resources.iter().map(|asked| (asked.resource_type, asked.resource_name.as_str())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for asked in &request.resources {
        let draft = |settings: TopicSettings| {
            let mut draft = Draft::of(broker, settings);
            SETTINGS.iter().try_for_each(|setting| draft.set(setting.name, None))?;
            asked.configs.iter().try_for_each(|config| draft.set(&config.name, config.value.as_deref()))?;
            Ok(draft.change())
        };
        let what = (asked.resource_type, asked.resource_name.as_str());
        let (Code(error_code), error_message) = match asked.resource_type {
            _ if twice.contains(&what) => outcome_code(Err(named_twice(what.1))),
            GROUP => {
                let settings = asked.configs.iter().map(|config| (config.name.as_str(), config.value.as_deref()));
                let steps = Steps { begin_anew: true, settings: settings.collect() };
                alter_group(broker, caller, 33, what.1, request.validate_only, Ok(steps)).await
            }
            BROKER => {
                let set = asked.configs.iter().filter(|config| config.value.is_some());
                let settings = set.map(|config| (config.name.as_str(), config.value.as_deref())).collect();
                let steps = Steps { begin_anew: true, settings };
                alter_broker(broker, caller, 33, what.1, request.validate_only, Ok(steps)).await
            }
            _ => alter(broker, caller, 33, what, request.validate_only, draft).await,
        };
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: asked.resource_type,
            resource_name: asked.resource_name.clone(),
        });
    }
    AlterConfigsResponse { responses, ..Default::default() }
}

/// Changes single settings incrementally.
pub(super) async fn incremental_alter_configs(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let twice = twice(request.resources.iter().map(|asked| (asked.resource_type, asked.resource_name.as_str())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for asked in &request.resources {
        let draft = |settings: TopicSettings| {
            let mut draft = Draft::of(broker, settings);
            for config in &asked.configs {
                draft.step(&config.name, config.config_operation, config.value.as_deref())?;
            }
            Ok(draft.change())
        };
        let what = (asked.resource_type, asked.resource_name.as_str());
        let (Code(error_code), error_message) = match asked.resource_type {
            _ if twice.contains(&what) => outcome_code(Err(named_twice(what.1))),
            GROUP | BROKER => {
                let settings = asked.configs.iter().map(|config| {
                    let name = config.name.as_str();
                    match (config.config_operation, &config.value) {
                        (SET, Some(value)) => Ok((name, Some(value.as_str()))),
                        (DELETE, _) => Ok((name, None)),
                        (SET, None) => Err((Code::INVALID_REQUEST, format!("{name}: a value is missing"))),
                        _ => Err(wrong(format!("{name} is not a list: use the operation SET or DELETE"))),
                    }
                });
                let steps = settings.collect::<Result<_, _>>();
                let steps = steps.map(|settings| Steps { begin_anew: false, settings });
                match asked.resource_type {
                    GROUP => alter_group(broker, caller, 44, what.1, request.validate_only, steps).await,
                    _ => alter_broker(broker, caller, 44, what.1, request.validate_only, steps).await,
                }
            }
            _ => alter(broker, caller, 44, what, request.validate_only, draft).await,
        };
        responses.push(IncrementalResourceResponse {
            error_code,
            error_message,
            resource_type: asked.resource_type,
            resource_name: asked.resource_name.clone(),
        });
    }
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}

/// Changes one resource and returns the outcome.
async fn alter(
    broker: &Arc<Broker>,
    caller: &Caller,
    key: i16,
    (kind, name): (i8, &str),
    is_dry_run: bool,
    draft: impl FnOnce(TopicSettings) -> Result<SettingsChange, Failure>,
) -> (Code, Option<String>) {
    let decide = || {
        caller.may_use(broker, key, &resource(kind, name)).map_err(|code| (code, String::new()))?;
        match kind {
            TOPIC => draft(topic(broker, name)?.settings),
            other => Err(no_settings(other)),
        }
    };
    let refused = |error: Error| match error.kind {
        ErrorKind::Invalid => wrong(error.message),
        _ => (errors::code(&error), error.message),
    };
    outcome_code(match decide() {
        Err(failure) => Err(failure),
        Ok(change) if is_dry_run => broker.check_alteration(name, change).map(drop).map_err(refused),
        Ok(change) => broker.alter_topic(name, change).await.map(drop).map_err(refused),
    })
}

#[cfg(test)]
mod tests;
