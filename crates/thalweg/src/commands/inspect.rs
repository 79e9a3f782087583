//! `thalweg inspect`: a data directory while no broker uses it.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use engine::{Decision, Error, ErrorKind, RecordBatch};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use storage::RealDisk;
use storage::inspect::dump::{EntryContent, Item, dump};
use storage::inspect::repair::{Mend, Plan};
use storage::inspect::{Inspection, PartitionReport, Report, TopicReport};
use storage::journal::block::{FileHead, SegmentPart};
use thalweg::config::Config;

use crate::args::{Inspect, InspectCommand};
use crate::output::{DAMAGED, Failure, Result};

/// Reference to the guide that explains each kind of damage.
const GUIDE: &str = "docs/guides/data-directory.md explains what to do";

pub fn run(config: &Config, args: Inspect, is_json: bool) -> Result {
    match args {
        Inspect { command: Some(InspectCommand::Dump { file }), .. } => dump_file(&file, is_json),
        Inspect { command: Some(InspectCommand::Repair { dir, yes, drop_journal, .. }), .. } => {
            repair(config, &dir, yes, drop_journal, is_json)
        }
        Inspect { command: None, dir, verify } => report(&dir.unwrap_or_default(), verify, is_json),
    }
}

/// Converts an error. A corrupt directory has its own exit code, which scripts check.
fn failure(error: Error) -> Failure {
    match error.kind {
        ErrorKind::Corrupt => Failure::new(DAMAGED, error.to_string()),
        _ => error.into(),
    }
}

fn open(dir: &Path) -> Result<Inspection> {
    Inspection::open(Arc::new(RealDisk), dir).map_err(failure)
}

fn report(dir: &Path, verify: bool, is_json: bool) -> Result {
    let inspection = open(dir)?;
    let bar = if verify { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bytes}/{total_bytes} read, {bytes_per_sec}").unwrap_or_else(
        |error| {
            tracing::debug!(%error, "cannot set the style of the bar");
            ProgressStyle::default_bar()
        },
    ));
    let report = inspection.report(verify, &mut |now| {
        bar.set_length(now.bytes_max);
        bar.set_position(now.bytes);
    });
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    let mut out = std::io::stdout();
    if is_json {
        writeln!(out, "{}", report_json(&report))?;
    } else {
        print(&mut out, dir, &report)?;
    }
    match report.damages.len() {
        0 => Ok(()),
        1 => Err(Failure::new(DAMAGED, format!("1 damaged place; {GUIDE}"))),
        n => Err(Failure::new(DAMAGED, format!("{n} damaged places; {GUIDE}"))),
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    table
}

fn print(out: &mut impl Write, dir: &Path, report: &Report) -> Result {
    let origin = &report.origin;
    writeln!(out, "data directory {} with the id {:016x}", dir.display(), report.directory)?;
    writeln!(out, "the journal is read from position {} in its file {} on", origin.position, origin.number)?;
    if let Some(bytes) = report.node_bytes {
        writeln!(out, "it belongs to a node of a cluster, whose state has {bytes} bytes")?;
    }
    writeln!(out)?;
    if !report.topics.is_empty() {
        let mut topics = table(["TOPIC", "ID", "PARTITION", "START", "END", "SEGMENTS", "BYTES", "PUT ASIDE"]);
        let mut segments = table(["SEGMENT", "FROM", "TO", "BYTES", "LAST APPEND MS"]);
        for topic in &report.topics {
            for (i, partition) in topic.partitions.iter().enumerate() {
                let bytes: u64 = partition.segments.iter().map(|(_, info)| info.bytes).sum();
                let numbers = [i as u64, partition.start, partition.end, partition.segments.len() as u64, bytes];
                let numbers = numbers.iter().map(u64::to_string);
                let id = topic.id.to_string();
                let aside = partition.salvages.len().to_string();
                topics.add_row([topic.name.as_str().to_owned(), id].into_iter().chain(numbers).chain([aside]));
                for (path, info) in &partition.segments {
                    let path = path.strip_prefix(dir).unwrap_or(path).display().to_string();
                    let numbers = [info.base, info.end, info.bytes, info.appended_ms];
                    segments.add_row(std::iter::once(path).chain(numbers.iter().map(u64::to_string)));
                }
            }
        }
        writeln!(out, "{topics}\n")?;
        writeln!(out, "{segments}\n")?;
    }
    let mut journal = table(["JOURNAL", "NUMBER", "POSITION", "BYTES", "USE"]);
    for file in &report.journal {
        let path = file.path.strip_prefix(dir).unwrap_or(&file.path).display().to_string();
        let head = file
            .head
            .map_or(["-".to_owned(), "-".to_owned()], |head| [head.number.to_string(), head.position.to_string()]);
        let is_needed = file.head.is_some_and(|head| head.number >= origin.number);
        let role = if is_needed { "needed" } else { "spare" }.to_owned();
        journal.add_row([path].into_iter().chain(head).chain([file.bytes.to_string(), role]));
    }
    writeln!(out, "{journal}\n")?;
    for damage in &report.damages {
        let concerns = match &damage.concerns {
            Some((topic, partition)) => format!("{topic} partition {partition}"),
            None => "all".to_owned(),
        };
        writeln!(out, "damage ({concerns}): {}", damage.message)?;
    }
    match &report.verified {
        None => writeln!(
            out,
            "lengths are right; contents, and entries that only the journal has, were not read; --verify reads \
             everything"
        )?,
        Some(read) => writeln!(
            out,
            "read {} batches of {} bytes in {} segments, and {} entries of the journal",
            read.batches, read.batch_bytes, read.segments, read.journal_entries
        )?,
    }
    Ok(())
}

fn report_json(report: &Report) -> Value {
    let partition = |(i, partition): (usize, &PartitionReport)| {
        let segment = |(path, info): &(std::path::PathBuf, storage::SegmentInfo)| {
            json!({
                "file": path, "from": info.base, "to": info.end, "bytes": info.bytes,
                "timestamp_ms_max": info.timestamp_ms_max, "appended_ms": info.appended_ms,
                "generation": info.generation,
            })
        };
        json!({
            "partition": i, "dir": partition.dir, "start": partition.start, "end": partition.end,
            "segments": partition.segments.iter().map(segment).collect::<Vec<_>>(), "put_aside": partition.salvages,
        })
    };
    let topic = |topic: &TopicReport| {
        json!({
            "topic": topic.name.as_str(), "id": topic.id, "storage": topic.settings.storage.name(),
            "retention_bytes": topic.settings.retention_bytes, "retention_ms": topic.settings.retention_ms,
            "compact": topic.settings.compact,
            "partitions": topic.partitions.iter().enumerate().map(partition).collect::<Vec<_>>(),
        })
    };
    let file = |file: &storage::journal::recover::JournalFile| {
        json!({
            "file": file.path, "bytes": file.bytes, "number": file.head.map(|head| head.number),
            "position": file.head.map(|head| head.position),
            "is_needed": file.head.is_some_and(|head| head.number >= report.origin.number),
        })
    };
    let damage = |damage: &storage::inspect::Damage| {
        let (topic, partition) = damage.concerns.clone().unzip();
        json!({ "message": damage.message, "topic": topic, "partition": partition })
    };
    let verified = report.verified.map(|read| {
        json!({
            "segments": read.segments, "batches": read.batches, "batch_bytes": read.batch_bytes,
            "journal_entries": read.journal_entries, "journal_bytes": read.journal_bytes,
        })
    });
    json!({
        "directory": format!("{:016x}", report.directory),
        "journal_from": { "position": report.origin.position, "number": report.origin.number },
        "next_producer": report.next_producer, "node_bytes": report.node_bytes,
        "topics": report.topics.iter().map(topic).collect::<Vec<_>>(),
        "journal": report.journal.iter().map(file).collect::<Vec<_>>(),
        "damages": report.damages.iter().map(damage).collect::<Vec<_>>(),
        "verified": verified,
    })
}

fn dump_file(path: &Path, is_json: bool) -> Result {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut broken = None;
    let mut damages = 0;
    let dumped = dump(&RealDisk, path, &mut |item| {
        damages += u64::from(is_damage(&item));
        let line = if is_json { item_json(&item).to_string() } else { item_text(&item) };
        writeln!(out, "{line}").map_err(|error| {
            let message = error.to_string();
            broken = Some(error);
            Error::new(ErrorKind::Internal, message)
        })
    });
    match broken {
        Some(error) => return Err(error.into()),
        None => dumped.map_err(failure)?,
    }
    out.flush()?;
    match damages {
        0 => Ok(()),
        n => Err(Failure::new(DAMAGED, format!("damaged places in {}: {n}", path.display()))),
    }
}

fn is_damage(item: &Item) -> bool {
    matches!(item, Item::Damage { .. } | Item::Entry { content: EntryContent::Damaged(..), .. })
}

fn batch_json(batch: &RecordBatch) -> Value {
    json!({
        "from": batch.base_offset(), "to": batch.next_offset(), "records": batch.count(), "bytes": batch.len(),
        "timestamp_ms_max": batch.max_timestamp_ms(),
        "codec": batch.codec().map_or("unknown", |codec| codec.name()),
        "producer": batch.producer().map(|producer| producer.id),
        "transactional": batch.is_transactional(),
        "marker": marker_name(batch),
    })
}

/// Returns the outcome of a transaction, if the batch is its marker.
fn marker_name(batch: &RecordBatch) -> Option<&'static str> {
    batch.marker().ok().flatten().map(|marker| match marker.decision {
        Decision::Commit => "commit",
        Decision::Abort => "abort",
    })
}

fn item_json(item: &Item) -> Value {
    match item {
        Item::File(head) => json!({
            "kind": "file", "at": 0, "directory": format!("{:016x}", head.directory), "number": head.number,
            "position": head.position, "bytes": head.bytes,
        }),
        Item::Seal { at, block, synced } => json!({ "kind": "seal", "at": at, "block": block, "synced": synced }),
        Item::Batch { at, batch } => json!({ "kind": "batch", "at": at, "batch": batch_json(batch) }),
        Item::Row(row) => json!({
            "kind": "row", "offset": row.offset, "at": row.at, "timestamp_ms_max": row.timestamp_ms_max,
        }),
        Item::Damage { at, what } => json!({ "kind": "damage", "at": at, "what": what }),
        Item::Entry { at, block, stream, bytes, content } => {
            let (kind, says) = match content {
                EntryContent::Batch(batch) => ("batch", batch_json(batch)),
                EntryContent::Catalog(change) => ("catalog", json!(format!("{change:?}"))),
                EntryContent::Start(start) => ("start", json!(start)),
                EntryContent::View => ("view", Value::Null),
                EntryContent::Segment(part) => (
                    "segment",
                    json!({
                        "base": part.base, "from": part.from, "to": part.to, "from_offset": part.from_offset,
                        "to_offset": part.to_offset,
                    }),
                ),
                EntryContent::Next(number, slot) => ("next", json!({ "number": number, "slot": slot })),
                EntryContent::Save => ("save", Value::Null),
                EntryContent::Cluster => ("cluster", Value::Null),
                EntryContent::Damaged(_, why) => ("damage", json!(why)),
            };
            json!({
                "kind": kind, "at": at, "block": block, "topic_id": stream >> 32,
                "partition": stream & u64::from(u32::MAX), "bytes": bytes, "says": says,
            })
        }
    }
}

fn batch_text(batch: &RecordBatch) -> String {
    let codec = batch.codec().map_or("unknown", |codec| codec.name());
    let marker = marker_name(batch).map(|decision| format!(", the {decision} of a transaction")).unwrap_or_default();
    format!(
        "offsets {} to {}, {} records, {} bytes, {codec}, up to {} ms{marker}",
        batch.base_offset(),
        batch.next_offset(),
        batch.count(),
        batch.len(),
        batch.max_timestamp_ms()
    )
}

/// Formats an item in columns of fixed width: a file may be too long for a table that is built as a whole.
fn item_text(item: &Item) -> String {
    let line = |at: &dyn std::fmt::Display, kind: &str, text: String| format!("{at:>12}  {kind:<8} {text}");
    match item {
        Item::File(head) => {
            let FileHead { number, position, bytes, .. } = head;
            line(&0, "file", format!("number {number}, position {position}, {bytes} bytes"))
        }
        Item::Seal { at, synced, .. } => line(at, "seal", format!("all data before position {synced} was synced")),
        Item::Batch { at, batch } => line(at, "batch", batch_text(batch)),
        Item::Row(row) => line(&row.at, "row", format!("offset {}, up to {} ms", row.offset, row.timestamp_ms_max)),
        Item::Damage { at, what } => line(at, "DAMAGE", what.clone()),
        Item::Entry { at, stream, bytes, content, .. } => {
            let place = format!("topic {} partition {}: ", stream >> 32, stream & u64::from(u32::MAX));
            match content {
                EntryContent::Batch(batch) => line(at, "batch", place + &batch_text(batch)),
                EntryContent::Catalog(change) => line(at, "catalog", format!("{change:?}")),
                EntryContent::Start(start) => line(at, "start", format!("{place}begins at offset {start}")),
                EntryContent::View => line(at, "view", place),
                EntryContent::Segment(part) => {
                    let SegmentPart { base, from, to, from_offset, to_offset, .. } = part;
                    let text = format!("offsets {from_offset} to {to_offset} are in {base:020}.log at {from} to {to}");
                    line(at, "segment", place + &text)
                }
                EntryContent::Next(number, slot) => {
                    line(at, "next", format!("continues in file {number}, {slot:06}.journal"))
                }
                EntryContent::Save => line(at, "save", format!("state of the consensus, {bytes} bytes")),
                EntryContent::Cluster => line(at, "cluster", format!("change of the nodes, {bytes} bytes")),
                EntryContent::Damaged(kind, why) => line(at, "DAMAGE", format!("{place}{kind:?}: {why}")),
            }
        }
    }
}

fn repair(config: &Config, dir: &Path, yes: bool, drop_journal: bool, is_json: bool) -> Result {
    let inspection = open(dir)?;
    let plan = inspection.plan().map_err(failure)?;
    let mut out = std::io::stdout();
    let is_done = yes && !plan.is_empty() && (plan.journal.is_none() || drop_journal);
    if is_done {
        inspection.repair(drop_journal, config.store(), broker::Clock::SYSTEM.read()).map_err(failure)?;
    }
    if is_json {
        writeln!(out, "{}", plan_json(&plan, is_done))?;
    } else {
        print_plan(&mut out, &plan, is_done)?;
    }
    if plan.is_empty() || is_done {
        return Ok(());
    }
    Err(Failure::new(
        DAMAGED,
        match (plan.journal.is_some() && !drop_journal, yes) {
            (true, _) => "nothing was changed; --yes --drop-journal discards the unreadable part of the journal",
            (false, _) => "nothing was changed; --yes repairs the directory",
        },
    ))
}

fn plan_json(plan: &Plan, is_done: bool) -> Value {
    let mend = |mend: &Mend| {
        let lost: Vec<_> = mend.lost.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
        json!({
            "topic": mend.topic, "partition": mend.partition, "lost": lost, "end": mend.end,
            "entries_lost_at_end": mend.lost_at_end,
        })
    };
    json!({
        "is_done": is_done, "journal": plan.journal, "records_lost": plan.records_lost(),
        "partitions": plan.mends.iter().map(mend).collect::<Vec<_>>(), "indexes": plan.indexes,
    })
}

fn print_plan(out: &mut impl Write, plan: &Plan, is_done: bool) -> Result {
    if plan.is_empty() {
        return Ok(writeln!(out, "nothing is damaged; there is nothing to repair")?);
    }
    let (is, are) = if is_done { ("was", "were") } else { ("would be", "would be") };
    if let Some(why) = &plan.journal {
        writeln!(out, "a new journal {is} started, with all readable entries: {why}")?;
        writeln!(out, "  the contents of its unreadable blocks are lost, and their topics are unknown")?;
    }
    for mend in &plan.mends {
        writeln!(out, "{} partition {} {is} written again; it ends at {}", mend.topic, mend.partition, mend.end)?;
        for (from, to) in &mend.lost {
            writeln!(out, "  lost: {} records, offsets {from} to {}", to - from, to - 1)?;
        }
        if mend.lost_at_end > 0 {
            writeln!(out, "  lost: {} entries of the journal after offset {}", mend.lost_at_end, mend.end)?;
        }
        if mend.lost.is_empty() && mend.lost_at_end == 0 {
            writeln!(out, "  no record is lost")?;
        }
    }
    for path in &plan.indexes {
        writeln!(out, "{} {is} removed; the broker creates it again", path.display())?;
    }
    Ok(writeln!(out, "{} records {are} lost in all", plan.records_lost())?)
}
