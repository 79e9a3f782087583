//! `thalweg topic`: create, list, describe, alter and delete topics, add partitions, and delete records.

use std::io::Write;

use client::{Client, Error, ErrorKind, MeshMode, Offset, SettingsChange, Storage, TopicInfo, TopicSettings};
use comfy_table::Table;
use engine::TopicName;
use serde_json::{Value, json};
use thalweg::config::Config;

use super::{confirm, connect, units};
use crate::args::Topic;
use crate::block_on;
use crate::output::{FAILED, Failure, Result, USAGE};

pub fn run(config: &Config, command: Topic, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let mut out = std::io::stdout();
        match command {
            Topic::Create { topic, partitions, options, storage, compact, dry_run } => {
                // Omitted settings follow the defaults of the broker.
                let defaults = TopicSettings::of_broker();
                let partitions = partitions.unwrap_or(defaults.partitions);
                let settings = options.change()?.of(&TopicSettings { partitions, storage, compact, ..defaults });
                if dry_run {
                    let exists = would_create(&client, &topic, settings).await?;
                    print_dry_run(&mut out, &topic, settings, exists, is_json)?;
                    client.close().await;
                    return Ok(());
                }
                let info = client.create_topic(&topic, settings).await?;
                if is_json {
                    writeln!(out, "{}", to_json(&info))?;
                } else {
                    writeln!(out, "created topic {topic} with {}", partitions_of(&info))?;
                }
            }
            Topic::List { all } => {
                let mut topics = client.list_topics().await?;
                // An inbox belongs to its requester only.
                let is_hidden = |topic: &TopicInfo| TopicName::parse(&topic.topic).is_ok_and(|name| name.is_hidden());
                topics.retain(|topic| all || !is_hidden(topic));
                if is_json {
                    writeln!(out, "{}", Value::Array(topics.iter().map(to_json).collect()))?;
                } else {
                    list(&mut out, &topics)?;
                }
            }
            Topic::Describe { topic } => {
                let info = client.describe_topic(&topic).await?;
                if is_json {
                    writeln!(out, "{}", to_json(&info))?;
                } else {
                    describe(&mut out, &info)?;
                }
            }
            Topic::Alter { topic, options, compact } => {
                let change = SettingsChange { compact, ..options.change()? };
                if change.is_empty() {
                    return Err(Failure::new(
                        USAGE,
                        "name at least one setting to change, such as --retention 7d; see --help",
                    ));
                }
                let info = client.alter_topic(&topic, change).await?;
                if is_json {
                    writeln!(out, "{}", to_json(&info))?;
                } else {
                    writeln!(out, "altered topic {topic}:\n{}", settings_table(info.settings))?;
                }
            }
            Topic::AddPartitions { topic, count } => {
                let has = client.describe_topic(&topic).await?.settings.partitions;
                let info = client.grow_topic(&topic, has.saturating_add(count)).await?;
                if is_json {
                    writeln!(out, "{}", to_json(&info))?;
                } else {
                    writeln!(out, "topic {topic} has {} now, {has} before", partitions_of(&info))?;
                }
            }
            Topic::Delete { topic, yes } => {
                confirm::ask(yes, &format!("Delete topic {topic} with all its records?"))?;
                client.delete_topic(&topic).await?;
                if is_json {
                    writeln!(out, "{}", json!({ "deleted": topic }))?;
                } else {
                    writeln!(out, "deleted topic {topic}")?;
                }
            }
            Topic::DeleteRecords { topic, partition, before, yes } => {
                let before = match before.as_str() {
                    "end" => Offset::MAX,
                    number => number.parse().ok().ok_or_else(|| {
                        Failure::new(USAGE, format!("--before is an offset or `end`, not '{before}'"))
                    })?,
                };
                if before == Offset::MAX {
                    confirm::ask(yes, &format!("Delete all records of partition {partition} of topic {topic}?"))?;
                }
                let start = client.delete_records(&topic, partition, before).await?;
                if is_json {
                    writeln!(out, "{}", json!({ "topic": topic, "partition": partition, "start": start }))?;
                } else {
                    writeln!(out, "partition {partition} of topic {topic} now begins at offset {start}")?;
                }
            }
        }
        client.close().await;
        Ok(())
    })
}

/// Checks a creation as the broker would. Returns `true` if the topic already exists with these settings. Fails if it
/// exists with others.
async fn would_create(client: &Client, topic: &str, settings: TopicSettings) -> Result<bool> {
    let name = TopicName::parse(topic)?;
    settings.or(&TopicSettings::default()).validate()?;
    settings.mesh.check_chosen()?;
    if name.is_inbox() {
        return Err(Error::invalid(format!("{name}: an inbox is created by subscribing to it")).into());
    }
    match client.describe_topic(topic).await {
        Ok(info) if fits(&info.settings, settings) => Ok(true),
        Ok(_) => Err(Failure::new(FAILED, format!("topic {topic} exists with other settings"))),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn print_dry_run(out: &mut impl Write, topic: &str, settings: TopicSettings, exists: bool, is_json: bool) -> Result {
    if is_json {
        // Omitted settings are null: the defaults of the broker apply.
        let unless_default = |n: u64, default: u64| (n != default).then_some(n);
        let default = TopicSettings::DEFAULT;
        let would = json!({
            "topic": topic,
            "would_create": !exists,
            "partitions": unless_default(settings.partitions.into(), TopicSettings::DEFAULT_PARTITIONS.into()),
            "retention_bytes": unless_default(settings.retention_bytes, default),
            "retention_ms": unless_default(settings.retention_ms, default),
            "storage": settings.storage.name(),
            "compact": settings.compact,
            "batch_bytes_max": settings.batch_bytes_max,
            "arrival_times": settings.arrival_times,
            "mesh": settings.mesh.name(),
        });
        return Ok(writeln!(out, "{would}")?);
    }
    if exists {
        writeln!(out, "topic {topic} exists already, with these settings:")?
    } else {
        writeln!(out, "topic {topic} would be created:")?
    }
    Ok(writeln!(out, "{}", settings_table(settings))?)
}

fn partitions_of(info: &TopicInfo) -> String {
    units::count(info.settings.partitions.into(), "partition")
}

fn settings_table(settings: TopicSettings) -> Table {
    let as_set = || "the broker's default".to_owned();
    let limit = |n: u64, shown: fn(u64) -> String| match n {
        0 => "no limit".to_owned(),
        TopicSettings::DEFAULT => as_set(),
        _ => shown(n),
    };
    let partitions = match settings.partitions {
        TopicSettings::DEFAULT_PARTITIONS => as_set(),
        partitions => partitions.to_string(),
    };
    let mut table = units::table();
    table.add_row(["partitions".to_owned(), partitions]);
    table.add_row(["records are kept".to_owned(), place(settings.storage).to_owned()]);
    table.add_row(["retention of a partition".to_owned(), limit(settings.retention_bytes, units::bytes)]);
    table.add_row(["retention of a batch".to_owned(), limit(settings.retention_ms, units::millis)]);
    let of_key = if settings.compact { "the newest record" } else { "all records" };
    table.add_row(["of each key".to_owned(), of_key.to_owned()]);
    table.add_row(["the largest batch".to_owned(), units::bytes(settings.batch_bytes_max.into())]);
    let whose = if settings.arrival_times { "the broker's clock, on arrival" } else { "their publisher's clock" };
    table.add_row(["record times".to_owned(), whose.to_owned()]);
    table.add_row(["mesh".to_owned(), reach(settings.mesh).to_owned()]);
    if let Some(codec) = settings.compression {
        table.add_row(["compressed with".to_owned(), codec.name().to_owned()]);
    }
    let (least, most) = settings.compaction_lag_ms;
    for (label, value) in [
        ("a segment ends after", is_set(settings.segment_bytes).map(units::bytes)),
        ("a segment ends at the age of", is_set(settings.segment_ms).map(units::millis)),
        ("compacted at the earliest after", is_set(least).map(units::millis)),
        ("compacted at the latest after", is_set(most).map(units::millis)),
    ] {
        table.add_rows(value.map(|value| [label.to_owned(), value]));
    }
    table
}

fn list(out: &mut impl Write, topics: &[TopicInfo]) -> Result {
    if topics.is_empty() {
        let advice = "publishing to one creates it (those of the broker itself: --all)";
        return Ok(writeln!(out, "{}", units::nothing("topics", advice))?);
    }
    let mut table = units::table();
    table.set_header(["TOPIC", "STORAGE", "PARTITIONS", "RECORDS", "BYTES", "SUBSCRIBERS"]);
    for topic in topics {
        let records: u64 = topic.partitions.iter().map(|p| p.end - p.start).sum();
        let bytes: u64 = topic.partitions.iter().map(|p| p.bytes).sum();
        let subscribers = topic.partitions.iter().map(|p| p.subscribers).max().unwrap_or(0);
        table.add_row([
            topic.topic.clone(),
            topic.settings.storage.name().to_owned(),
            topic.settings.partitions.to_string(),
            records.to_string(),
            units::bytes(bytes),
            subscribers.to_string(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn describe(out: &mut impl Write, info: &TopicInfo) -> Result {
    let mut settings = settings_table(info.settings);
    settings.add_row(["records are deleted".to_owned(), removal(&info.settings).to_owned()]);
    settings.add_row(["retention is set by".to_owned(), retention_owner(info)]);
    writeln!(out, "topic {}\n{settings}\n", info.topic)?;
    let mut table = units::table();
    table.set_header(["PARTITION", "START", "END", "RECORDS", "BYTES", "SUBSCRIBERS"]);
    for (id, p) in info.partitions.iter().enumerate() {
        table.add_row([
            id.to_string(),
            p.start.to_string(),
            p.end.to_string(),
            (p.end - p.start).to_string(),
            units::bytes(p.bytes),
            p.subscribers.to_string(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

/// Describes in one sentence which records the broker deletes.
fn removal(settings: &TopicSettings) -> &'static str {
    let has_retention = settings.retention_bytes != 0 || settings.retention_ms != 0;
    match (settings.drop_consumed, settings.keeps_unacked, has_retention) {
        (true, ..) if settings.retention_ms != 0 => "when every queue has acknowledged them, or when retention is over",
        (true, ..) => "when every queue has acknowledged them",
        (false, true, true) => "when retention is over and every queue has acknowledged them",
        (false, false, true) => "when retention is over, acknowledged or not",
        (false, _, false) => "never by retention",
    }
}

fn retention_owner(info: &TopicInfo) -> String {
    match info.owner.as_str() {
        "" => "the topic: change it with `thalweg topic alter`".to_owned(),
        queue => format!("the queue {queue}, which owns this topic: both are deleted together"),
    }
}

fn to_json(info: &TopicInfo) -> Value {
    let partition = |(id, p): (usize, &client::PartitionInfo)| {
        let start = p.start;
        let end = p.end;
        let bytes = p.bytes;
        json!({ "partition": id, "start": start, "end": end, "bytes": bytes, "subscribers": p.subscribers })
    };
    json!({
        "topic": info.topic,
        "storage": info.settings.storage.name(),
        "retention_bytes": info.settings.retention_bytes,
        "retention_ms": info.settings.retention_ms,
        "compact": info.settings.compact,
        "batch_bytes_max": info.settings.batch_bytes_max,
        "arrival_times": info.settings.arrival_times,
        "mesh": info.settings.mesh.name(),
        "compression": info.settings.compression.map(client::Codec::name),
        "segment_bytes": is_set(info.settings.segment_bytes),
        "segment_ms": is_set(info.settings.segment_ms),
        "compaction_lag_ms_min": is_set(info.settings.compaction_lag_ms.0),
        "compaction_lag_ms_max": is_set(info.settings.compaction_lag_ms.1),
        "drop_acknowledged": info.settings.drop_consumed,
        "keep_unacknowledged": info.settings.keeps_unacked,
        "owner": Some(&info.owner).filter(|owner| !owner.is_empty()),
        "partitions": info.partitions.iter().enumerate().map(partition).collect::<Vec<_>>(),
    })
}

/// Returns `None` for 0, which stands for the default of the broker or for no limit.
fn is_set(value: u64) -> Option<u64> {
    Some(value).filter(|value| *value != 0)
}

fn place(storage: Storage) -> &'static str {
    match storage {
        Storage::Disk => "on disk",
        Storage::Sqlite => "in SQLite",
        Storage::Memory => "in memory",
        Storage::Auto => "on disk if the broker has a data directory",
    }
}

fn reach(mesh: MeshMode) -> &'static str {
    match mesh {
        MeshMode::Off => "off",
        MeshMode::Live => "live: other sites with subscribers or queues of the topic receive its records",
        MeshMode::Mirror => "mirror: other sites copy the topic, and this site copies the topics of this name there",
        MeshMode::Source => "source: other sites copy the topic, and this site copies none",
        MeshMode::Copy => "copy of a topic of another site: clients only read it, until mesh is off",
    }
}

/// Returns `true` if a topic has the requested settings. Omitted settings match any value.
fn fits(current: &TopicSettings, asked: TopicSettings) -> bool {
    let storage = if asked.storage == Storage::Auto { current.storage } else { asked.storage };
    current.is_as(&TopicSettings { storage, ..asked.or(current) })
}
