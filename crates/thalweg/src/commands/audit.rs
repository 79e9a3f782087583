//! `thalweg audit`: show and follow the audit, one record per line.

use std::io::{self, Write};

use client::{Client, ErrorKind, Event, Start};
use engine::ids::AUDIT_TOPIC;
use serde_json::Value;
use thalweg::config::Config;

use super::connect;
use super::time::{format_time, parse_start};
use crate::args::Audit;
use crate::block_on;
use crate::output::{Failure, Result, remark};

pub fn run(config: &Config, args: &Audit, is_json: bool) -> Result {
    let start = parse_start("--from", &args.from)?;
    block_on(async {
        let client = connect(config).await?;
        let shown = show(&client, args, start, is_json).await;
        client.close().await;
        shown
    })
}

async fn show(client: &Client, args: &Audit, start: Start, is_json: bool) -> Result {
    let opened = client.subscribe(AUDIT_TOPIC).start(start).open().await;
    let mut subscription = opened.map_err(|error| match error.kind {
        ErrorKind::NotFound => Failure {
            message: "the audit has no record: it is on if the broker has audit = on, auth = required or \
                      authorization = true"
                .into(),
            ..Failure::from(error)
        },
        _ => error.into(),
    })?;
    let end = subscription.sources().first().map_or(0, |source| source.end);
    let is_over = |next: u64| args.until_end && next >= end;
    let mut next = subscription.sources().first().map_or(0, |source| source.start);
    let mut out = io::stdout();
    while !is_over(next) {
        match subscription.next_event().await? {
            Event::Batch(batch) => {
                next = batch.batch.next_offset();
                for view in &batch.batch.records()? {
                    let record: Value = serde_json::from_slice(view?.value.unwrap_or_default()).unwrap_or_default();
                    if is_wanted(args, &record) {
                        write(&mut out, &record, is_json)?;
                    }
                }
            }
            Event::Gap { from, to, .. } => {
                next = to;
                remark(&format!("records {from} to {} were deleted by retention", to.saturating_sub(1)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_wanted(args: &Audit, record: &Value) -> bool {
    let is = |field: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| record[field].as_str() == Some(wanted.as_str()))
    };
    is("user", &args.user) && is("action", &args.action) && (!args.refused || record["outcome"] != "ok")
}

fn write(out: &mut impl Write, record: &Value, is_json: bool) -> io::Result<()> {
    if is_json {
        return writeln!(out, "{record}");
    }
    let text = |field: &str| printable(record[field].as_str().unwrap_or("-"));
    let time = format_time(record["time_ms"].as_i64().unwrap_or_default());
    let (outcome, user, address, door) = (text("outcome"), text("user"), text("address"), text("door"));
    write!(out, "{time}  {outcome:<6}  {user}  {address}  {door}  {}  {}", text("action"), text("name"))?;
    if let Some(error) = record["error"].as_str() {
        write!(out, ": {}", printable(error))?;
    }
    for (field, what) in [("lost_before", "records before this one were lost"), ("refusals_before", "more refusals")] {
        if let Some(count) = record[field].as_u64() {
            write!(out, " ({count} {what})")?;
        }
    }
    writeln!(out)
}

/// Escapes control characters: clients choose names, and a name must not look like a record of its own.
fn printable(text: &str) -> String {
    let escaped =
        |char: char| -> String { if char.is_control() { char.escape_default().collect() } else { char.into() } };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_cannot_look_like_a_record() {
        let name = "read k\n\u{1b}[2J2026";
        let record = json!({ "time_ms": 0, "user": "eve", "action": "request", "name": name, "outcome": "denied" });
        let mut line = Vec::new();
        write(&mut line, &record, false).expect("written");
        let line = String::from_utf8(line).expect("text");
        assert!(line.ends_with("read k\\n\\u{1b}[2J2026\n") && line.lines().count() == 1, "{line}");
    }
}
