//! Commands that read entries: ranges, and the entries after an id, which may block.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use engine::streams::{Entry, EntryId};
use futures_util::FutureExt;
use net::service::{Reply, once};
use tokio::time::Instant;

use super::entries::{write, write_all};
use super::groups::{has_consumer, no_group, report_consumer};
use super::{Context, Owned, failed, ids, owned};
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Named};
use crate::redis::commands::args::{is, parse_int};
use crate::redis::connection::Session;
use crate::redis::databases::lock_or_busy;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, SYNTAX, WRONG_TYPE};
use crate::redis::later::Later;
use crate::redis::names::stream_topic;
use crate::redis::scripts::BUSY;
use crate::redis::wait::Wait;
use crate::redis::writer::Writer;

/// Maximum number of entries for a command that blocked and has no count: its id may be far back.
const WAITED_COUNT_MAX: usize = 1000;

pub(super) async fn range(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let from = ids::parse_start(args[2])?;
    let to = ids::parse_end(args[3])?;
    show_range(context, args, from, to, false).await
}

pub(super) async fn range_back(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let to = ids::parse_end(args[2])?;
    let from = ids::parse_start(args[3])?;
    show_range(context, args, from, to, true).await
}

async fn show_range(context: &mut Context<'_>, args: &[&[u8]], from: EntryId, to: EntryId, is_back: bool) -> Done {
    let mut count = None;
    for pair in args[4..].chunks(2) {
        match pair {
            [word, value] if is(word, "COUNT") => count = Some(parse_int(value)?.max(0) as usize),
            _ => return Err(SYNTAX),
        }
    }
    let Some(locked) = context.lock(args[1]).await? else {
        context.out.array(0);
        return Ok(());
    };
    if count == Some(0) {
        context.out.null_array();
        return Ok(());
    }
    let count = count.unwrap_or(usize::MAX);
    let entries = if !is_back { locked.range(from, to, count).await } else { locked.range_back(from, to, count).await };
    write_all(&mut context.out, &entries.map_err(failed)?);
    Ok(())
}

/// Position after which entries of a stream are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The current end of the stream.
    Now,
    /// The position of the group.
    Group,
    Id(EntryId),
}

/// Arguments of `XREAD` or `XREADGROUP`.
#[derive(Debug)]
struct Ask {
    keys: Owned,
    /// Invalid ids are reported after their stream and group were found, as in Redis.
    after: Vec<Done<After>>,
    count: Option<usize>,
    /// Timeout in ms if the command blocks; the inner `None` blocks forever.
    block: Option<Option<u64>>,
    reader: Option<Reader>,
    /// `true` for NOACK: delivered entries are not acknowledged.
    is_final: bool,
}

/// Consumer and its group.
#[derive(Debug)]
struct Reader {
    group: Box<[u8]>,
    consumer: Box<[u8]>,
}

/// Entries that are delivered from one stream.
struct Found {
    /// Index of the stream among the requested ones.
    number: usize,
    /// Ids and entries; a deleted entry is `None`.
    entries: Vec<(EntryId, Option<Entry>)>,
}

/// Runs `XREAD` inside a step, without blocking.
pub(super) async fn read(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    Ask::parse(args, false)?.answer_now(context).await
}

pub(super) async fn read_group(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    Ask::parse(args, true)?.answer_now(context).await
}

/// Runs a single `XREAD` or `XREADGROUP`.
pub(super) fn begin(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    let begun = Ask::parse(args, command.is_write).and_then(|ask| {
        Ok((ask, Context::alone(door, session, command, args)?, session.database(&door.broker)?.clone()))
    });
    let (ask, mut context, cache) = match begun {
        Ok(begun) => begun,
        Err(fail) => return session.fail(&fail),
    };
    let wait = ask.block.map(|_| {
        let keys: Vec<&[u8]> = ask.keys.iter().map(|key| &**key).collect();
        let locked = lock_or_busy(&cache, &Named::These(keys.iter().copied().collect()))?;
        // A change of the cache does not answer the wait.
        Ok(locked.wait(None, &keys, &[], Box::new(|_, _| None))?)
    });
    let wait = match wait.transpose() {
        Ok(waiting) => waiting.map(|waiting| {
            let recheck = Arc::new(door.recheck(session, command, args));
            session.begin_wait(cache.clone(), waiting, recheck)
        }),
        Err(fail) => return session.fail(&fail),
    };
    let is_blocked = wait.is_some();
    let work = async move {
        let done = match &wait {
            Some(wait) => ask.answer(&mut context, wait).await,
            None => ask.answer_now(&mut context).await,
        };
        context.answer(done).await
    };
    let later = once(work.boxed_local());
    if is_blocked { Reply::Blocked(later) } else { Reply::Alone(later) }
}

impl Ask {
    fn parse(args: &[&[u8]], has_group: bool) -> Done<Self> {
        let mut count = None;
        let mut block = None;
        let mut reader = None;
        let mut is_final = false;
        let mut at = 1;
        let only_group = |word: &str| {
            Fail::new(format!("ERR The {word} option is only supported by XREADGROUP. You called XREAD instead."))
        };
        let streams = loop {
            match args.get(at..).unwrap_or_default() {
                [word, value, ..] if is(word, "BLOCK") => {
                    block = Some(timeout(value)?);
                    at += 2;
                }
                [word, value, ..] if is(word, "COUNT") => {
                    count = usize::try_from(parse_int(value)?).ok().filter(|count| *count > 0);
                    at += 2;
                }
                [word, rest @ ..] if is(word, "STREAMS") && !rest.is_empty() => break rest,
                [word, name, consumer, ..] if is(word, "GROUP") => {
                    if !has_group {
                        return Err(only_group("GROUP"));
                    }
                    reader = Some(Reader { group: (*name).into(), consumer: (*consumer).into() });
                    at += 3;
                }
                [word, ..] if is(word, "NOACK") => {
                    if !has_group {
                        return Err(only_group("NOACK"));
                    }
                    is_final = true;
                    at += 1;
                }
                _ => return Err(SYNTAX),
            }
        };
        if streams.len() % 2 != 0 {
            let text = "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.";
            return Err(Fail::new(text));
        }
        if has_group && reader.is_none() {
            return Err(Fail::new("ERR Missing GROUP option for XREADGROUP"));
        }
        let (keys, after) = streams.split_at(streams.len() / 2);
        let after = after.iter().map(|arg| After::parse(arg, has_group)).collect();
        Ok(Self { keys: owned(keys), after, count, block, reader, is_final })
    }

    async fn answer_now(&self, context: &mut Context<'_>) -> Done {
        let after = self.resolve_all(context).await?;
        let found = self.find(context, &after, None).await?;
        self.write(&found, &mut context.out);
        Ok(())
    }

    async fn answer(&self, context: &mut Context<'_>, wait: &Wait) -> Done {
        let after = self.resolve_all(context).await?;
        let mut found = self.find(context, &after, None).await?;
        if found.is_empty() {
            let broker = context.broker.clone();
            let topic = |key| Ok(stream_topic(context.tenant.as_ref(), context.number, key)?.as_str().to_owned());
            let names = self.keys.iter().map(|key| topic(key)).collect::<Done<Vec<_>>>()?;
            let until = self.block.flatten().and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
            // A command that blocks does not fail, or miss its timeout, because a script holds its keys.
            context.waits_for_scripts = false;
            let is_held = Cell::new(false);
            found = loop {
                let is_over = Cell::new(false);
                let over = async {
                    match until {
                        // The timeout ends the wait in any case; the result is not needed.
                        Some(until) => drop(tokio::time::timeout_at(until, wait.over()).await),
                        None => wait.over().await,
                    }
                    is_over.set(true);
                };
                if is_held.take() {
                    tokio::select! {
                        () = over => {}
                        () = context.freed(&self.keys) => continue,
                    }
                    break Vec::new();
                }
                let context = &mut *context;
                let attempt = async || {
                    let found = match wait.recheck.check() {
                        Ok(()) => self.find(context, &after, Some(WAITED_COUNT_MAX)).await,
                        Err(fail) => Err(fail),
                    };
                    is_held.set(found.as_ref().err() == Some(&BUSY));
                    Ok(Some(found).filter(|found| !matches!(found, Ok(found) if found.is_empty())))
                };
                match broker.streams.wait_for(&names, over, attempt).await.map_err(failed)? {
                    Some(_) if is_held.get() && !is_over.get() => {}
                    Some(Err(fail)) if fail == BUSY => break Vec::new(),
                    Some(found) => break found?,
                    None => break Vec::new(),
                }
            };
            // Found entries were already delivered to the consumer of a group. It must receive them even if the wait is
            // ended now.
            if let Some((answer, _)) = wait.cache.stop_waiting(&wait.waiting)
                && found.is_empty()
            {
                context.out.put(&answer);
                return Ok(());
            }
        }
        self.write(&found, &mut context.out);
        Ok(())
    }

    async fn resolve_all(&self, context: &mut Context<'_>) -> Done<Vec<Option<EntryId>>> {
        let mut after = Vec::with_capacity(self.keys.len());
        for (key, from) in self.keys.iter().zip(&self.after) {
            after.push(self.resolve(context, key, from).await?);
        }
        Ok(after)
    }

    /// Returns the id after which entries of a stream are requested; `None` if the position of its group decides.
    async fn resolve(&self, context: &mut Context<'_>, key: &[u8], after: &Done<After>) -> Done<Option<EntryId>> {
        let locked = context.lock(key).await?;
        if let Some(Reader { group, .. }) = &self.reader
            && locked.as_ref().is_none_or(|locked| locked.group(group).is_none())
        {
            let Fail { text, .. } = no_group(key, group);
            return Err(Fail::of_bytes([&text, &b" in XREADGROUP with GROUP option"[..]].concat()));
        }
        Ok(match after.clone()? {
            After::Group => None,
            After::Id(id) => Some(id),
            After::Now => Some(locked.map_or(EntryId::ZERO, |locked| locked.last())),
        })
    }

    /// Returns the entries that exist now. `waited` is the default count if the command has blocked before.
    async fn find(
        &self,
        context: &mut Context<'_>,
        after: &[Option<EntryId>],
        waited: Option<usize>,
    ) -> Done<Vec<Found>> {
        if waited.is_some() {
            // A key that is still missing is no news.
            context.cause.operation = "";
        }
        let count = self.count.or(waited).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        for (number, (key, after)) in self.keys.iter().zip(after).enumerate() {
            let locked = match context.lock(key).await {
                // For a command that blocked before, the stream counts as deleted.
                Err(fail) if fail == WRONG_TYPE && waited.is_some() => None,
                // Entries that were delivered to a group must be returned.
                Err(fail) if fail == BUSY && !all.is_empty() => break,
                locked => locked?,
            };
            let Some(mut locked) = locked else {
                if self.reader.is_some() && waited.is_some() {
                    return Err(Fail::new("UNBLOCKED the stream key no longer exists"));
                }
                continue;
            };
            let shown = |entries: Vec<Entry>| entries.into_iter().map(|entry| (entry.id, Some(entry))).collect();
            let entries = match (&self.reader, after.map(EntryId::next)) {
                (None, Some(Some(from))) => shown(locked.range(from, EntryId::MAX, count).await.map_err(failed)?),
                (Some(Reader { group, consumer }), after) => {
                    if locked.group(group).is_none() {
                        let text = "NOGROUP the consumer group this client was blocked on no longer exists";
                        return Err(Fail::new(text));
                    }
                    let is_known = has_consumer(&locked, group, consumer);
                    match after {
                        None => {
                            let is_kept = !self.is_final;
                            let taken = locked.take(group, consumer, count, is_kept).await;
                            let taken = taken.map_err(failed)?;
                            report_consumer(context, &locked, key, (group, consumer), is_known).await;
                            shown(taken)
                        }
                        Some(from) => {
                            let from = from.unwrap_or(EntryId::MAX);
                            let entries = locked.take_again(group, consumer, from, count).await.map_err(failed)?;
                            report_consumer(context, &locked, key, (group, consumer), is_known).await;
                            all.push(Found { number, entries });
                            continue;
                        }
                    }
                }
                (None, _) => Vec::new(),
            };
            if !entries.is_empty() {
                all.push(Found { number, entries });
                if waited.is_some() {
                    // A command that blocked before is served by the first stream that has entries, as in Redis.
                    break;
                }
            }
        }
        Ok(all)
    }

    fn write(&self, found: &[Found], out: &mut Writer) {
        if found.is_empty() {
            return out.null_array();
        }
        if out.is_resp3 {
            out.map(found.len());
        } else {
            out.array(found.len());
        }
        for Found { number, entries } in found {
            if !out.is_resp3 {
                out.array(2);
            }
            out.bulk(&self.keys[*number]);
            out.array(entries.len());
            for (id, entry) in entries {
                match entry {
                    Some(entry) => write(out, entry),
                    None => {
                        out.array(2);
                        out.bulk(id.to_string().as_bytes());
                        out.null_array();
                    }
                }
            }
        }
    }
}

impl After {
    fn parse(arg: &[u8], has_group: bool) -> Done<Self> {
        match arg {
            b"$" if has_group => Err(Fail::new(
                "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this \
                 consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just \
                 return an empty result set.",
            )),
            b"$" => Ok(Self::Now),
            b">" if has_group => Ok(Self::Group),
            b">" => Err(Fail::new(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            )),
            id => ids::parse(id, 0).map(Self::Id),
        }
    }
}

/// Parses a timeout in ms; 0 means forever.
fn timeout(arg: &[u8]) -> Done<Option<u64>> {
    let ms = parse_int(arg).or(Err(Fail::new("ERR timeout is not an integer or out of range")))?;
    let ms = u64::try_from(ms).or(Err(Fail::new("ERR timeout is negative")))?;
    Ok((ms > 0).then_some(ms))
}
