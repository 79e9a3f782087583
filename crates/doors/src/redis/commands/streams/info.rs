//! Information about a stream, its groups and their consumers.

use broker::LockedStream;
use engine::streams::{EntryId, Extent, Group};

use super::entries::{write, write_all};
use super::groups::{check_subcommand, no_group_of_key, write_help, wrong_subcommand};
use super::{Context, failed};
use crate::redis::commands::args::{is, parse_int};
use crate::redis::errors::{Done, NO_SUCH_KEY};
use crate::redis::writer::Writer;

/// Number of entries that are shown of each list by default.
const SHOWN: usize = 10;

const HELP: &[&str] = &[
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
    "HELP",
    "    Prints this help.",
];

pub(super) async fn info(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    check_subcommand(args, "xinfo", &[("STREAM", -3), ("GROUPS", 3), ("CONSUMERS", 4), ("HELP", 2)])?;
    if is(args[1], "HELP") {
        write_help(context, HELP);
        return Ok(());
    }
    let locked = context.lock(args[2]).await?.ok_or(NO_SUCH_KEY)?;
    if is(args[1], "GROUPS") {
        let extent = locked.extent().await.map_err(failed)?;
        write_groups(&mut context.out, &locked, &extent);
        return Ok(());
    }
    if is(args[1], "CONSUMERS") {
        let group = locked.group(args[3]).ok_or_else(|| no_group_of_key(args[2], args[3]))?;
        write_consumers(&mut context.out, group, context.broker.now_ms());
        return Ok(());
    }
    let full = match &args[3..] {
        [] => None,
        [word] if is(word, "FULL") => Some(SHOWN),
        [word, what, count] if is(word, "FULL") && is(what, "COUNT") => {
            Some(usize::try_from(parse_int(count)?).unwrap_or(SHOWN))
        }
        _ => return Err(wrong_subcommand(args, "XINFO")),
    };
    match full {
        None => write_stream(&mut context.out, &locked).await,
        Some(0) => write_full(&mut context.out, &locked, usize::MAX).await,
        Some(count) => write_full(&mut context.out, &locked, count).await,
    }
}

fn id(out: &mut Writer, id: EntryId) {
    out.bulk(id.to_string().as_bytes());
}

fn write_head(out: &mut Writer, locked: &LockedStream, extent: &Extent) {
    out.bulk(b"length");
    out.int(extent.len as i64);
    // Size of the index of positions, which takes the place of a radix tree here.
    let marks = locked.marks();
    out.bulk(b"radix-tree-keys");
    out.len(marks);
    out.bulk(b"radix-tree-nodes");
    out.len(marks + 1);
    out.bulk(b"last-generated-id");
    id(out, extent.last);
    out.bulk(b"max-deleted-entry-id");
    id(out, extent.max_deleted);
    out.bulk(b"entries-added");
    out.int(extent.added as i64);
    out.bulk(b"recorded-first-entry-id");
    id(out, extent.first);
}

async fn write_stream(out: &mut Writer, locked: &LockedStream) -> Done {
    let extent = locked.extent().await.map_err(failed)?;
    let first = locked.range(EntryId::ZERO, EntryId::MAX, 1).await.map_err(failed)?;
    let last = locked.range_back(EntryId::ZERO, EntryId::MAX, 1).await.map_err(failed)?;
    out.map(10);
    write_head(out, locked, &extent);
    out.bulk(b"groups");
    out.len(locked.groups().len());
    for (name, found) in [("first-entry", first), ("last-entry", last)] {
        out.bulk(name.as_bytes());
        match found.first() {
            Some(entry) => write(out, entry),
            None => out.null(),
        }
    }
    Ok(())
}

async fn write_full(out: &mut Writer, locked: &LockedStream, count: usize) -> Done {
    let extent = locked.extent().await.map_err(failed)?;
    let entries = locked.range(EntryId::ZERO, EntryId::MAX, count).await.map_err(failed)?;
    out.map(9);
    write_head(out, locked, &extent);
    out.bulk(b"entries");
    write_all(out, &entries);
    out.bulk(b"groups");
    out.array(locked.groups().len());
    for (name, group) in locked.groups() {
        out.map(7);
        out.bulk(b"name");
        out.bulk(name);
        write_progress(out, group, &extent);
        out.bulk(b"pel-count");
        out.len(group.pending_count());
        out.bulk(b"pending");
        out.array(group.pending_count().min(count));
        for (of, pending) in group.all_pending(EntryId::ZERO, EntryId::MAX).take(count) {
            out.array(4);
            id(out, of);
            out.bulk(&pending.consumer);
            out.int(pending.delivered_ms as i64);
            out.int(pending.deliveries as i64);
        }
        out.bulk(b"consumers");
        out.array(group.consumers().len());
        for (name, seen_ms, pending) in group.consumers() {
            out.map(4);
            out.bulk(b"name");
            out.bulk(name);
            out.bulk(b"seen-time");
            out.int(seen_ms as i64);
            out.bulk(b"pel-count");
            out.len(pending);
            out.bulk(b"pending");
            out.array(pending.min(count));
            for (of, pending) in group.pending_of(name, EntryId::ZERO, EntryId::MAX).take(count) {
                out.array(3);
                id(out, of);
                out.int(pending.delivered_ms as i64);
                out.int(pending.deliveries as i64);
            }
        }
    }
    Ok(())
}

/// Writes the progress of a group.
fn write_progress(out: &mut Writer, group: &Group, extent: &Extent) {
    let number = |out: &mut Writer, number: Option<i64>| match number {
        Some(number) => out.int(number),
        None => out.null(),
    };
    out.bulk(b"last-delivered-id");
    id(out, group.last());
    out.bulk(b"entries-read");
    number(out, group.read().map(|read| read as i64));
    out.bulk(b"lag");
    let known = group.read().filter(|_| !extent.has_gap_from(group.last()));
    let read = if extent.added == 0 { Some(0) } else { known.or_else(|| extent.count_up_to(group.last())) };
    // The lag is below 0 if `ENTRIESREAD` was set to more entries than were ever added, as in Redis.
    number(out, read.map(|read| (extent.added as i64).wrapping_sub(read as i64)));
}

fn write_groups(out: &mut Writer, locked: &LockedStream, extent: &Extent) {
    out.array(locked.groups().len());
    for (name, group) in locked.groups() {
        out.map(6);
        out.bulk(b"name");
        out.bulk(name);
        out.bulk(b"consumers");
        out.len(group.consumers().len());
        out.bulk(b"pending");
        out.len(group.pending_count());
        write_progress(out, group, extent);
    }
}

fn write_consumers(out: &mut Writer, group: &Group, now_ms: u64) {
    out.array(group.consumers().len());
    for (name, seen_ms, pending) in group.consumers() {
        out.map(3);
        out.bulk(b"name");
        out.bulk(name);
        out.bulk(b"pending");
        out.len(pending);
        out.bulk(b"idle");
        out.int(now_ms.saturating_sub(seen_ms) as i64);
    }
}
