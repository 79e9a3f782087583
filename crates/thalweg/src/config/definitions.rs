//! Topics and queues that the broker creates on startup: `[[topics]]` and `[[queues]]` of the file.
//!
//! A queue has the settings that [`QueueSettings::named`] names, in addition to `name`, `topic`, `start` and `storage`.
//! All definitions are applied before the doors open. An existing topic or queue must match its definition.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;

use broker::{Broker, NewQueue, QueueStart};
use engine::queue::QueueName;
use engine::{TopicName, TopicSettings};

use super::units::{TimeUnit, parse_bytes, parse_time};
use super::{ConfigError, Result};

/// Maximum number of topics, and of queues, that a file may define.
const DEFINITIONS_MAX: usize = 10_000;

/// Definitions of a file, in their order.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    topics: Vec<Defined<(TopicName, TopicSettings)>>,
    queues: Vec<Defined<NewQueue>>,
    /// Tables as they were written, with the names of their lists.
    tables: Vec<(&'static str, toml::Table)>,
}

/// Definition with its place in the file.
#[derive(Clone, Debug)]
struct Defined<T> {
    place: String,
    what: T,
}

impl Definitions {
    /// Reads a list of the file. Returns `true` if it is a list of definitions.
    pub(super) fn read(&mut self, path: &Path, list: &str, value: &toml::Value) -> Result<bool> {
        let Some(list) = ["topics", "queues"].into_iter().find(|known| *known == list) else {
            return Ok(false);
        };
        let tables = value.as_array().and_then(|entries| entries.iter().map(toml::Value::as_table).collect());
        let tables: Vec<&toml::Table> = tables
            .ok_or_else(|| ConfigError(format!("{}: {list} is a list: begin each with [[{list}]]", path.display())))?;
        if tables.len() > DEFINITIONS_MAX {
            return Err(ConfigError(format!("{}: there are more than {DEFINITIONS_MAX} {list}", path.display())));
        }
        let mut names = HashSet::new();
        for (number, table) in (1..).zip(tables) {
            let Some(name) = table.get("name").and_then(toml::Value::as_str) else {
                return Err(ConfigError(format!("{}: [[{list}]] number {number}: name is missing", path.display())));
            };
            let place = format!("{}: [[{list}]] {name}", path.display());
            if !names.insert(name) {
                return Err(ConfigError(format!("{place}: it is defined twice")));
            }
            self.tables.push((list, table.clone()));
            match list {
                "topics" => {
                    let what = topic(table).map_err(|why| ConfigError(format!("{place}: {why}")))?;
                    self.topics.push(Defined { place, what });
                }
                _ => {
                    let what = queue(table).map_err(|why| ConfigError(format!("{place}: {why}")))?;
                    self.queues.push(Defined { place, what });
                }
            }
        }
        Ok(true)
    }

    /// Returns the definitions in the format of the file.
    pub(super) fn tables(&self) -> impl Iterator<Item = String> {
        self.tables.iter().map(|(list, table)| format!("[[{list}]]\n{table}"))
    }

    /// Creates the topics and queues that do not exist yet. Creates nothing if a queue names a topic that is missing.
    /// Fails if an existing topic or queue differs from its definition.
    pub async fn create(&self, broker: &Broker) -> Result<()> {
        self.check_topics(broker)?;
        for Defined { place, what: (name, settings) } in &self.topics {
            if let Ok(existing) = broker.describe_topic(name.as_str()) {
                check_same(place, "thalweg topic alter", &topic_differences(&existing.settings, settings))?;
                continue;
            }
            broker.create_topic(name.as_str(), *settings).await.map_err(|e| at(place, &e))?;
        }
        for Defined { place, what: new } in &self.queues {
            match broker.queues.get(new.name.as_str()).await {
                Ok(existing) => {
                    let mut differences = existing.settings.differences(&new.settings);
                    let topic = new.topic.as_ref().map_or(new.name.as_str(), TopicName::as_str);
                    if existing.topic.as_str() != topic {
                        differences.push(format!("topic is {}, not {topic}", existing.topic));
                    }
                    check_same(place, "thalweg queue alter", &differences)?;
                }
                Err(_) => drop(broker.queues.create(new.clone()).await.map_err(|e| at(place, &e))?),
            }
        }
        Ok(())
    }

    /// Checks that dead letter topics and the topics of queues are defined here or exist.
    fn check_topics(&self, broker: &Broker) -> Result<()> {
        let of_queues = self.queues.iter().filter(|queue| queue.what.topic.is_none());
        let defined: HashSet<&str> = self
            .topics
            .iter()
            .map(|topic| topic.what.0.as_str())
            .chain(of_queues.map(|queue| queue.what.name.as_str()))
            .collect();
        for Defined { place, what: new } in &self.queues {
            for (key, topic) in [("topic", &new.topic), ("dead_letter", &new.settings.dead_letter)] {
                let missing = topic.as_ref().map(TopicName::as_str).filter(|topic| !defined.contains(topic));
                if let Some(topic) = missing.filter(|topic| broker.describe_topic(topic).is_err()) {
                    let message = format!("{place}: {key}: there is no topic {topic}, and the file defines none");
                    return Err(ConfigError(message));
                }
            }
        }
        Ok(())
    }
}

fn at(place: &str, why: &dyn Display) -> ConfigError {
    ConfigError(format!("{place}: {why}"))
}

fn check_same(place: &str, command: &str, differences: &[String]) -> Result<()> {
    if differences.is_empty() {
        Ok(())
    } else {
        Err(ConfigError(format!(
            "{place}: it already exists with other settings: {}; write the existing settings, or change them with \
         `{command}`",
            differences.join(", ")
        )))
    }
}

fn text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(count) => Some(count.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns the keys of a table except its name, as plain text: times in milliseconds, sizes in bytes.
fn entries(table: &toml::Table) -> impl Iterator<Item = std::result::Result<(&str, String), String>> {
    table.iter().filter(|(key, _)| *key != "name").map(|(key, value)| {
        let text = text(value).ok_or_else(|| format!("{key} is a text, a number or a bool, not {value}"))?;
        Ok((key.as_str(), plain(key, text).map_err(|why| format!("{key}: {why}"))?))
    })
}

/// Converts a text to the unit in the name of its setting. The text may name another unit, as in `lease_ms = "90s"`.
fn plain(key: &str, text: String) -> std::result::Result<String, String> {
    let has_unit = text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_alphabetic());
    if has_unit && key.ends_with("_ms") {
        parse_time(&text, TimeUnit::Millis).map(|ms| ms.to_string())
    } else if has_unit && key.contains("bytes") {
        parse_bytes(&text).map(|bytes| bytes.to_string())
    } else {
        Ok(text)
    }
}

fn name_of(table: &toml::Table) -> &str {
    table.get("name").and_then(toml::Value::as_str).unwrap_or_default()
}

fn queue(table: &toml::Table) -> std::result::Result<NewQueue, String> {
    let mut new = NewQueue::new(QueueName::parse(name_of(table)).map_err(|e| format!("name: {}", e.message))?);
    for entry in entries(table) {
        let (key, value) = entry?;
        let wrong = |e: engine::Error| format!("{key}: {}", e.message);
        match key {
            "topic" => new.topic = Some(TopicName::parse(&value).map_err(wrong)?),
            "storage" => new.storage = value.parse().map_err(wrong)?,
            "start" => {
                new.start = match value.as_str() {
                    "earliest" => QueueStart::Earliest,
                    "live" => QueueStart::Live,
                    other => return Err(format!("start is earliest or live, not '{other}'")),
                }
            }
            setting => new.settings.set(setting, &value).map_err(|e| e.message)?,
        }
    }
    new.settings.validate().map_err(|e| e.message)?;
    Ok(new)
}

fn topic(table: &toml::Table) -> std::result::Result<(TopicName, TopicSettings), String> {
    fn parse<T: std::str::FromStr<Err: Display>>(key: &str, value: &str) -> std::result::Result<T, String> {
        value.parse().map_err(|why| format!("{key}: '{value}' is not valid here: {why}"))
    }
    let name = TopicName::parse(name_of(table)).map_err(|e| format!("name: {}", e.message))?;
    let mut settings = TopicSettings::of_broker();
    for entry in entries(table) {
        let (key, value) = entry?;
        match key {
            "partitions" => settings.partitions = parse(key, &value)?,
            "retention_bytes" => settings.retention_bytes = parse(key, &value)?,
            "retention_ms" => settings.retention_ms = parse(key, &value)?,
            "storage" => settings.storage = parse(key, &value)?,
            "compact" => settings.compact = parse(key, &value)?,
            "batch_bytes_max" => settings.batch_bytes_max = parse(key, &value)?,
            "arrival_times" => settings.arrival_times = parse(key, &value)?,
            "mesh" => {
                settings.mesh = parse(key, &value)?;
                settings.mesh.check_chosen().map_err(|e| format!("{key}: {}", e.message))?;
            }
            unknown => {
                return Err(format!(
                    "a topic has no setting '{unknown}'; it has partitions, retention_bytes, retention_ms, storage, \
                     compact, batch_bytes_max, arrival_times, mesh"
                ));
            }
        }
    }
    settings.or(&TopicSettings::default()).validate().map_err(|e| e.message)?;
    Ok((name, settings))
}

/// Lists the differences from an existing topic, in the settings that the definition sets.
fn topic_differences(current: &TopicSettings, asked: &TopicSettings) -> Vec<String> {
    let wanted = asked.or(current);
    let storage = if asked.storage == engine::Storage::Auto { current.storage } else { asked.storage };
    let shown = |settings: &TopicSettings, storage: engine::Storage| {
        [
            ("partitions", settings.partitions.to_string()),
            ("retention_bytes", settings.retention_bytes.to_string()),
            ("retention_ms", settings.retention_ms.to_string()),
            ("storage", storage.name().to_owned()),
            ("compact", settings.compact.to_string()),
            ("batch_bytes_max", settings.batch_bytes_max.to_string()),
            ("arrival_times", settings.arrival_times.to_string()),
            ("mesh", settings.mesh.name().to_owned()),
        ]
    };
    let pairs = shown(current, current.storage).into_iter().zip(shown(&wanted, storage));
    let differ = pairs.filter(|((_, current), (_, wanted))| current != wanted);
    differ.map(|((name, current), (_, wanted))| format!("{name} is {current}, not {wanted}")).collect()
}
