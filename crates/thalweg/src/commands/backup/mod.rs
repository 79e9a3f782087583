//! `thalweg backup` and `thalweg restore`: a copy of a running broker's data in a folder, and a data directory that is
//! written from it.

mod copy;
mod folder;
mod restore;

use std::path::Path;

use serde_json::json;
use thalweg::config::Config;
use thalweg::config::units::parse_bytes;

use super::{connect, time, units, user};
use crate::args::{Backup, BackupCommand, Restore};
use crate::block_on;
use crate::output::{DAMAGED, Failure, Result, USAGE, remark};
use folder::Folder;
use restore::Contents;

pub fn run(config: &Config, args: &Backup, is_json: bool) -> Result {
    if let Some(BackupCommand::Verify { dir }) = &args.command {
        return verify(dir, is_json);
    }
    let rate = parse_bytes(&args.rate).map_err(|why| Failure::new(USAGE, format!("--rate: {why}")))?;
    if (1..copy::RATE_MIN).contains(&rate) {
        let (rate, least) = (units::bytes(rate), units::bytes(copy::RATE_MIN));
        let message = format!("--rate: {rate} per second is too low: use at least {least}, or 0 for no limit");
        return Err(Failure::new(USAGE, message));
    }
    let dir = args.dir.clone().unwrap_or_default();
    let folder = Folder::to_write(&dir)?;
    let copied = block_on(async {
        let client = connect(config).await?;
        let copied = copy::copy(&client, &folder, rate, args.without_sqlite).await;
        client.close().await;
        copied
    })?;
    let copy::Copied { number, taken_ms, topics, partitions, received_bytes, kept_bytes, bytes } = copied;
    let json = json!({
        "dir": dir, "number": number, "taken_ms": taken_ms, "topics": topics, "partitions": partitions,
        "received_bytes": received_bytes, "kept_bytes": kept_bytes, "bytes": bytes,
    });
    let text = format!(
        "backup {number} in {}: {} with {}, {} of {} received, {} unchanged",
        dir.display(),
        units::count(topics, "topic"),
        units::count(partitions, "partition"),
        units::bytes(received_bytes),
        units::bytes(bytes),
        units::bytes(kept_bytes)
    );
    user::say(is_json, json, &text)
}

fn verify(dir: &Path, is_json: bool) -> Result {
    let folder = Folder::to_read(dir)?;
    let index = folder.complete()?;
    let left = folder.leftovers(Some(&index))?.len() as u64;
    let (contents, wrong) = restore::verify(&folder, &index)?;
    if let [first, ..] = wrong.as_slice() {
        if wrong.iter().any(|failure| failure.code != DAMAGED) {
            return Err(Failure::new(first.code, first.message.clone()));
        }
        let text: Vec<&str> = wrong.iter().map(|failure| failure.message.as_str()).collect();
        return Err(Failure::new(DAMAGED, text.join("\n")));
    }
    if left > 0 {
        remark(&format!("{} of an interrupted backup; the next backup removes them", units::count(left, "file")));
    }
    let mut json = contents_json(&contents);
    json["number"] = index.number.into();
    json["taken_ms"] = index.taken_ms.into();
    json["leftover_files"] = left.into();
    let taken = time::format_time(i64::try_from(index.taken_ms).unwrap_or(i64::MAX));
    let text = format!("backup {} of {taken} is whole: {}", index.number, contents_text(&contents));
    user::say(is_json, json, &text)
}

pub fn restore(config: &Config, args: &Restore, is_json: bool) -> Result {
    let folder = Folder::to_read(&args.dir)?;
    let index = folder.complete()?;
    let contents = restore::restore(&folder, &index, &args.data, config.store())?;
    if index.without_sqlite {
        remark("the backup has no topics in SQLite: it was taken with --without-sqlite");
    }
    let mut json = contents_json(&contents);
    json["data"] = json!(args.data);
    let data = args.data.display();
    let text = format!("restored {} to {data}: thalweg serve --data {data}", contents_text(&contents));
    user::say(is_json, json, &text)
}

fn contents_json(contents: &Contents) -> serde_json::Value {
    let Contents { topics, partitions, files, batches, records, bytes } = contents;
    json!({
        "topics": topics, "partitions": partitions, "files": files, "batches": batches, "records": records,
        "bytes": bytes,
    })
}

fn contents_text(contents: &Contents) -> String {
    format!(
        "{} with {}, {} in {}, {}",
        units::count(contents.topics, "topic"),
        units::count(contents.partitions, "partition"),
        units::count(contents.records, "record"),
        units::count(contents.files, "file"),
        units::bytes(contents.bytes)
    )
}
