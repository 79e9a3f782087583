//! `thalweg topic`: create, list, describe, delete.

use std::io::Write;

use client::{Storage, TopicInfo, TopicSettings};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use thalweg::config::{Config, parse_bytes};

use super::connect;
use crate::args::Topic;
use crate::block_on;
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: Topic, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let mut out = std::io::stdout();
        match command {
            Topic::Create { topic, partitions, retention_bytes, retention_ms, storage } => {
                // What is not said is as the broker is set.
                let defaults = TopicSettings::of_broker();
                let bytes = retention_bytes.map(|text| parse_bytes(&text)).transpose();
                let settings = TopicSettings {
                    partitions: partitions.unwrap_or(defaults.partitions),
                    retention_bytes: bytes
                        .map_err(|e| Failure::new(USAGE, format!("--retention-bytes: {e}")))?
                        .unwrap_or(defaults.retention_bytes),
                    retention_ms: retention_ms.unwrap_or(defaults.retention_ms),
                    storage,
                };
                let info = client.create_topic(&topic, settings).await?;
                if is_json {
                    writeln!(out, "{}", to_json(&info))?;
                } else {
                    writeln!(out, "topic {topic} has {} partitions", info.settings.partitions)?;
                }
            }
            Topic::List => {
                let topics = client.list_topics().await?;
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
            Topic::Delete { topic } => {
                client.delete_topic(&topic).await?;
                if is_json {
                    writeln!(out, "{}", json!({ "deleted": topic }))?;
                } else {
                    writeln!(out, "topic {topic} is deleted")?;
                }
            }
        }
        client.close().await;
        Ok(())
    })
}

fn list(out: &mut impl Write, topics: &[TopicInfo]) -> Result {
    if topics.is_empty() {
        writeln!(out, "no topics yet; publishing to one creates it")?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["TOPIC", "STORAGE", "PARTITIONS", "RECORDS", "BYTES", "SUBSCRIBERS"]);
    for topic in topics {
        let records: u64 = topic.partitions.iter().map(|p| p.end - p.start).sum();
        let bytes: u64 = topic.partitions.iter().map(|p| p.bytes).sum();
        let subscribers = topic.partitions.iter().map(|p| p.subscribers).max().unwrap_or(0);
        table.add_row([
            topic.topic.clone(),
            topic.settings.storage.name().to_owned(),
            topic.settings.partitions.to_string(),
            records.to_string(),
            bytes.to_string(),
            subscribers.to_string(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn describe(out: &mut impl Write, info: &TopicInfo) -> Result {
    writeln!(
        out,
        "topic {}: {} partitions {}, keeps {} bytes a partition and batches for {} ms",
        info.topic,
        info.settings.partitions,
        place(info.settings.storage),
        info.settings.retention_bytes,
        info.settings.retention_ms
    )?;
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["PARTITION", "START", "END", "BYTES", "SUBSCRIBERS"]);
    for (id, p) in info.partitions.iter().enumerate() {
        table.add_row([id as u64, p.start, p.end, p.bytes, u64::from(p.subscribers)]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn to_json(info: &TopicInfo) -> Value {
    let partition = |(id, p): (usize, &client::PartitionInfo)| {
        let (start, end, bytes) = (p.start, p.end, p.bytes);
        json!({ "partition": id, "start": start, "end": end, "bytes": bytes, "subscribers": p.subscribers })
    };
    json!({
        "topic": info.topic,
        "storage": info.settings.storage.name(),
        "retention_bytes": info.settings.retention_bytes,
        "retention_ms": info.settings.retention_ms,
        "partitions": info.partitions.iter().enumerate().map(partition).collect::<Vec<_>>(),
    })
}

fn place(storage: Storage) -> &'static str {
    match storage {
        Storage::Disk => "on disk",
        Storage::Memory | Storage::Auto => "in memory",
    }
}
