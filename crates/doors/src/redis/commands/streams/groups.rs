//! Consumer groups: creation, changes and deletion, acknowledgements, and pending entries.

use engine::streams::{EntryId, Group, Pending};

use super::{Context, Lent, failed, ids, text};
use crate::redis::command::wrong_arity;
use crate::redis::commands::args::{is, parse_int};
use crate::redis::errors::{Done, Fail, SYNTAX};

const HELP: &[&str] = &[
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
    "HELP",
    "    Prints this help.",
];

/// Returns the error for an unknown subcommand, or one with too few arguments.
pub(super) fn check_subcommand(args: &[&[u8]], command: &str, arities: &[(&str, i8)]) -> Done {
    let Some((name, arity)) = arities.iter().find(|(name, _)| is(args[1], name)) else {
        let upper = command.to_ascii_uppercase();
        return Err(Fail::new(format!("ERR unknown subcommand '{}'. Try {upper} HELP.", text(args[1]))));
    };
    let count = args.len();
    let arity = (usize::from(arity.unsigned_abs()), *arity < 0);
    let is_right = if arity.1 { count >= arity.0 } else { count == arity.0 };
    if is_right { Ok(()) } else { Err(wrong_arity(&format!("{command}|{name}"))) }
}

/// Returns the error for a subcommand with arguments that it does not accept.
pub(super) fn wrong_subcommand(args: &[&[u8]], command: &str) -> Fail {
    let what = text(args[1]);
    Fail::new(format!("ERR unknown subcommand or wrong number of arguments for '{what}'. Try {command} HELP."))
}

pub(super) fn write_help(context: &mut Context<'_>, lines: &[&str]) {
    context.out.array(lines.len());
    lines.iter().for_each(|line| context.out.simple(line));
}

pub(super) async fn group(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let arities =
        [("CREATE", -5), ("SETID", -5), ("DESTROY", 4), ("CREATECONSUMER", 5), ("DELCONSUMER", 5), ("HELP", 2)];
    check_subcommand(args, "xgroup", &arities)?;
    let what = args[1].to_ascii_uppercase();
    if what == b"HELP" {
        write_help(context, HELP);
        return Ok(());
    }
    let key = args[2];
    let name = args[3];
    let mut makes_stream = false;
    let mut read = None;
    if matches!(&what[..], b"CREATE" | b"SETID") {
        let mut at = 5;
        while at < args.len() {
            match &args[at..] {
                [word, ..] if what == b"CREATE" && is(word, "MKSTREAM") => {
                    makes_stream = true;
                    at += 1;
                }
                [word, value, ..] if is(word, "ENTRIESREAD") => {
                    read = match parse_int(value)? {
                        -1 => None,
                        count => Some(
                            u64::try_from(count)
                                .or(Err(Fail::new("ERR value for ENTRIESREAD must be positive or -1")))?,
                        ),
                    };
                    at += 2;
                }
                _ => return Err(wrong_subcommand(args, "XGROUP")),
            }
        }
    }
    let locked = match context.lock(key).await? {
        Some(locked) => locked,
        None if makes_stream => {
            if args[4] != b"$" {
                ids::parse(args[4], 0)?;
            }
            context.lock_or_create(key).await?.0
        }
        None => {
            return Err(Fail::new(
                "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the \
                 MKSTREAM option to create an empty stream automatically.",
            ));
        }
    };
    let is_missing = locked.group(name).is_none() && !matches!(&what[..], b"CREATE" | b"DESTROY");
    if is_missing {
        return Err(no_group_of_key(key, name));
    }
    match &what[..] {
        b"CREATE" | b"SETID" => put(context, locked, args, read).await,
        b"DESTROY" => destroy(context, locked, key, name).await,
        b"CREATECONSUMER" => {
            let mut locked = locked;
            let (is_new, saved) = locked.see(name, args[4]).map_err(failed)?;
            if is_new {
                context.report(key, "xgroup-createconsumer").await;
            }
            context.settle(saved);
            context.out.flag(is_new);
            Ok(())
        }
        _ => {
            let mut locked = locked;
            let exists = has_consumer(&locked, name, args[4]);
            let removed = locked.change_group(name, |group| Ok(group.remove_consumer(args[4]))).map_err(failed)?;
            if exists {
                context.report(key, "xgroup-delconsumer").await;
            }
            if let Some((count, saved)) = removed {
                context.settle(saved);
                context.out.len(count);
            }
            Ok(())
        }
    }
}

/// Creates a group, or sets the position at which it continues.
async fn put(context: &mut Context<'_>, mut locked: Lent, args: &[&[u8]], read: Option<u64>) -> Done {
    let name = args[3];
    let last = match args[4] {
        b"$" => locked.last(),
        // Redis accepts the bounds `-` and `+` here, but in no other command about a group.
        id if is(args[1], "SETID") => ids::parse_bound(id, 0)?,
        id => ids::parse(id, 0)?,
    };
    let saved = if is(args[1], "CREATE") {
        let created = locked.create_group(name, last, read).map_err(failed)?;
        created.ok_or(Fail::new("BUSYGROUP Consumer Group name already exists"))?
    } else {
        let set = |group: &mut Group| {
            group.set(last, read);
            Ok(())
        };
        let changed = locked.change_group(name, set).map_err(failed)?;
        changed.map(|(_, saved)| saved).ok_or(SYNTAX)?
    };
    // There may be more entries for clients that block on the group.
    locked.note_change();
    context.report(args[2], if is(args[1], "CREATE") { "xgroup-create" } else { "xgroup-setid" }).await;
    context.settle(saved);
    context.out.ok();
    Ok(())
}

/// Returns `true` if a group has a consumer of this name.
pub(super) fn has_consumer(locked: &Lent, group: &[u8], name: &[u8]) -> bool {
    locked.group(group).is_some_and(|group| group.consumers().any(|(consumer, ..)| **consumer == *name))
}

/// Reports that a command has created a consumer, unless the group had it before.
pub(super) async fn report_consumer(
    context: &mut Context<'_>,
    locked: &Lent,
    key: &[u8],
    (group, name): (&[u8], &[u8]),
    is_known: bool,
) {
    if !is_known && has_consumer(locked, group, name) {
        context.report(key, "xgroup-createconsumer").await;
    }
}

async fn destroy(context: &mut Context<'_>, mut locked: Lent, key: &[u8], name: &[u8]) -> Done {
    let deleted = locked.delete_group(name).map_err(failed)?;
    context.out.flag(deleted.is_some());
    if let Some(saved) = deleted {
        context.report(key, "xgroup-destroy").await;
        context.settle(saved);
    }
    Ok(())
}

pub(super) async fn ack(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let Some(mut locked) = context.lock(args[1]).await?.filter(|locked| locked.group(args[2]).is_some()) else {
        context.out.int(0);
        return Ok(());
    };
    let ids = ids::parse_all(&args[3..])?;
    let ack = |group: &mut Group| Ok(ids.iter().filter(|id| group.ack(**id)).count());
    let acked = locked.change_group(args[2], ack).map_err(failed)?;
    if let Some((count, saved)) = acked {
        context.settle(saved);
        context.out.len(count);
    }
    Ok(())
}

/// Filter of the pending entries that are shown.
struct Shown<'a> {
    from: EntryId,
    to: EntryId,
    count: usize,
    idle_ms: u64,
    consumer: Option<&'a [u8]>,
}

impl<'a> Shown<'a> {
    fn parse(args: &[&'a [u8]]) -> Done<Option<Self>> {
        let (idle, rest) = match args {
            [] => return Ok(None),
            _ if !(3..=6).contains(&args.len()) => return Err(SYNTAX),
            [word, idle, rest @ ..] if is(word, "IDLE") => (parse_int(idle)?, rest),
            rest => (0, rest),
        };
        // Redis ignores arguments after the consumer.
        let (from, to, count, consumer) = match rest {
            [from, to, count, more @ ..] => (*from, *to, *count, more.first().copied()),
            _ => return Err(SYNTAX),
        };
        let count = usize::try_from(parse_int(count)?).unwrap_or_default();
        let from = ids::parse_start(from)?;
        let to = ids::parse_end(to)?;
        Ok(Some(Self { from, to, count, idle_ms: u64::try_from(idle).unwrap_or_default(), consumer }))
    }
}

pub(super) async fn pending(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let shown = Shown::parse(&args[3..])?;
    let locked = context.lock(args[1]).await?;
    let group = locked.as_ref().and_then(|locked| locked.group(args[2])).ok_or_else(|| no_group(args[1], args[2]))?;
    let Some(shown) = shown else {
        write_summary(context, group);
        return Ok(());
    };
    let now = context.broker.now_ms();
    let is_idle = |(_, pending): &(EntryId, &Pending)| now.saturating_sub(pending.delivered_ms) >= shown.idle_ms;
    let found: Vec<_> = match shown.consumer {
        Some(name) => group.pending_of(name, shown.from, shown.to).filter(is_idle).take(shown.count).collect(),
        None => group.all_pending(shown.from, shown.to).filter(is_idle).take(shown.count).collect(),
    };
    context.out.array(found.len());
    for (id, pending) in found {
        context.out.array(4);
        context.out.bulk(id.to_string().as_bytes());
        context.out.bulk(&pending.consumer);
        context.out.int(now.saturating_sub(pending.delivered_ms) as i64);
        context.out.int(pending.deliveries as i64);
    }
    Ok(())
}

fn write_summary(context: &mut Context<'_>, group: &Group) {
    let out = &mut context.out;
    out.array(4);
    out.len(group.pending_count());
    let Some((first, last)) = group.pending_extent() else {
        out.null();
        out.null();
        return out.null_array();
    };
    out.bulk(first.to_string().as_bytes());
    out.bulk(last.to_string().as_bytes());
    let holders: Vec<_> = group.consumers().filter(|(_, _, pending)| *pending > 0).collect();
    out.array(holders.len());
    for (name, _, pending) in holders {
        out.array(2);
        out.bulk(name);
        out.bulk(pending.to_string().as_bytes());
    }
}

pub(super) fn no_group(key: &[u8], group: &[u8]) -> Fail {
    Fail::of_bytes([b"NOGROUP No such key '", key, b"' or consumer group '", group, b"'"].concat())
}

pub(super) fn no_group_of_key(key: &[u8], group: &[u8]) -> Fail {
    Fail::of_bytes([b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"].concat())
}
