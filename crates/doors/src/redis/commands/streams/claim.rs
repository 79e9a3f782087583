//! Claiming of entries from consumers that do not acknowledge them.

use std::collections::{BTreeSet, HashMap};

use engine::streams::{Entry, EntryId, Group};

use super::entries::{write, write_all};
use super::groups::{has_consumer, no_group, report_consumer};
use super::{Context, failed, ids, text};
use crate::redis::commands::args::{is, parse_int, parse_usize};
use crate::redis::errors::{Done, Fail, SYNTAX};

/// Number of pending entries that are visited for each requested entry.
const LOOKS_PER_ENTRY: usize = 10;
/// Number of pending entries that are read together.
const ENTRIES_AT_ONCE: usize = 256;
/// Number of entries that are claimed at a time by default.
const CLAIMED: usize = 100;

/// Parameters of a claim.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claim {
    ids: Vec<EntryId>,
    min_idle_ms: u64,
    /// Time that is recorded as the delivery of the entries, in ms since 1970.
    delivered_ms: Option<i64>,
    deliveries: Option<u64>,
    is_forced: bool,
    shows_ids: bool,
    last: Option<EntryId>,
}

impl Claim {
    fn parse(args: &[&[u8]], now_ms: u64) -> Done<Self> {
        let number = |arg: &[u8], what: &str| {
            parse_int(arg).or(Err(Fail::new(format!("ERR Invalid {what} argument for XCLAIM"))))
        };
        let min_idle_ms = u64::try_from(number(args[4], "min-idle-time")?).unwrap_or_default();
        let mut claim = Self { min_idle_ms, ..Self::default() };
        let mut at = 5;
        while let Some(id) = args.get(at).and_then(|arg| ids::parse(arg, 0).ok()) {
            claim.ids.push(id);
            at += 1;
        }
        while at < args.len() {
            match &args[at..] {
                [word, ..] if is(word, "FORCE") => claim.is_forced = true,
                [word, ..] if is(word, "JUSTID") => claim.shows_ids = true,
                [word, value, ..] if is(word, "IDLE") => {
                    let idle_ms = number(value, "IDLE option")?;
                    claim.delivered_ms = Some((now_ms as i64).saturating_sub(idle_ms));
                    at += 1;
                }
                [word, value, ..] if is(word, "TIME") => {
                    claim.delivered_ms = Some(number(value, "TIME option")?);
                    at += 1;
                }
                [word, value, ..] if is(word, "RETRYCOUNT") => {
                    claim.deliveries = u64::try_from(number(value, "RETRYCOUNT option")?).ok();
                    at += 1;
                }
                [word, value, ..] if is(word, "LASTID") => {
                    claim.last = Some(ids::parse(value, 0)?);
                    at += 1;
                }
                [word, ..] => {
                    return Err(Fail::new(format!("ERR Unrecognized XCLAIM option '{}'", text(word))));
                }
                [] => break,
            }
            at += 1;
        }
        Ok(claim)
    }
}

pub(super) async fn claim(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let key = args[1];
    let name = args[2];
    let consumer = args[3];
    let Some(mut locked) = context.lock(key).await?.filter(|locked| locked.group(name).is_some()) else {
        return Err(no_group(key, name));
    };
    let now = context.broker.now_ms();
    let claim = Claim::parse(args, now)?;
    let wanted: BTreeSet<EntryId> = claim.ids.iter().copied().collect();
    let wanted: Vec<EntryId> = wanted.into_iter().collect();
    let entries = locked.entries(&wanted).await.map_err(failed)?;
    let found: HashMap<EntryId, Option<Entry>> = wanted.into_iter().zip(entries).collect();
    // A time in the future is replaced by the present.
    let delivered_ms = claim.delivered_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms <= now).unwrap_or(now);
    let take = |group: &mut Group| {
        if let Some(last) = claim.last {
            group.come_by(last, group.read());
        }
        let mut claimed = Vec::new();
        for id in claim.ids.iter().copied() {
            let Some(entry) = found.get(&id).cloned().flatten() else {
                group.ack(id);
                continue;
            };
            let before = group.pending(id);
            let is_idle = before.is_none_or(|it| now.saturating_sub(it.delivered_ms) >= claim.min_idle_ms);
            if before.is_none() && (!claim.is_forced || group.room() == 0) || !is_idle {
                continue;
            }
            let more = before.map_or(1, |before| before.deliveries) + u64::from(!claim.shows_ids);
            group.see(consumer, now)?;
            group.give(id, consumer, delivered_ms, claim.deliveries.unwrap_or(more));
            claimed.push(entry);
        }
        Ok(claimed)
    };
    let is_known = has_consumer(&locked, name, consumer);
    // If the claim is lost, it is as if it had not been requested, so the reply does not wait until it is durable.
    let claimed = locked.change_group(name, take).map_err(failed)?;
    report_consumer(context, &locked, key, (name, consumer), is_known).await;
    write_claimed(context, &claimed.map(|(claimed, _)| claimed).unwrap_or_default(), claim.shows_ids);
    Ok(())
}

fn write_claimed(context: &mut Context<'_>, claimed: &[Entry], shows_ids: bool) {
    if !shows_ids {
        return write_all(&mut context.out, claimed);
    }
    context.out.array(claimed.len());
    claimed.iter().for_each(|entry| context.out.bulk(entry.id.to_string().as_bytes()));
}

pub(super) async fn claim_idle(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let key = args[1];
    let name = args[2];
    let consumer = args[3];
    context.look_up(key).await?;
    let min_idle = parse_int(args[4]).or(Err(Fail::new("ERR Invalid min-idle-time argument for XAUTOCLAIM")))?;
    let min_idle_ms = u64::try_from(min_idle).unwrap_or_default();
    let from = ids::parse_start(args[5])?;
    let mut count = CLAIMED;
    let mut shows_ids = false;
    let mut at = 6;
    while at < args.len() {
        match &args[at..] {
            [word, value, ..] if is(word, "COUNT") => {
                let wanted = parse_usize(value).filter(|count| (1..=usize::MAX >> 5).contains(count));
                count = wanted.ok_or(Fail::new("ERR COUNT must be > 0"))?;
                at += 2;
            }
            [word, ..] if is(word, "JUSTID") => {
                shows_ids = true;
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
    }
    let locked = context.lock(key).await?;
    let Some(mut locked) = locked.filter(|locked| locked.group(name).is_some()) else {
        return Err(no_group(key, name));
    };
    let now = context.broker.now_ms();
    let looks = count.saturating_mul(LOOKS_PER_ENTRY);
    let pending = locked.group(name).into_iter().flat_map(|group| group.all_pending(from, EntryId::MAX));
    let pending: Vec<(EntryId, u64)> =
        pending.take(looks.saturating_add(1)).map(|(id, pending)| (id, pending.delivered_ms)).collect();
    let mut claimed = Vec::new();
    let mut gone = Vec::new();
    let mut next = None;
    let mut looked = 0;
    'pending: for pending in pending.chunks(ENTRIES_AT_ONCE) {
        let ids: Vec<EntryId> = pending.iter().map(|(id, _)| *id).collect();
        let entries = locked.entries(&ids).await.map_err(failed)?;
        for ((id, delivered_ms), entry) in pending.iter().zip(entries) {
            if looked == looks || claimed.len() + gone.len() == count {
                next = Some(*id);
                break 'pending;
            }
            looked += 1;
            match entry {
                None => gone.push(*id),
                Some(entry) if now.saturating_sub(*delivered_ms) >= min_idle_ms => claimed.push(entry),
                Some(_) => {}
            }
        }
    }
    let take = |group: &mut Group| {
        for id in &gone {
            group.ack(*id);
        }
        for entry in &claimed {
            group.see(consumer, now)?;
            let deliveries = group.pending(entry.id).map_or(1, |pending| pending.deliveries);
            group.give(entry.id, consumer, now, deliveries + u64::from(!shows_ids));
        }
        Ok(())
    };
    let is_known = has_consumer(&locked, name, consumer);
    drop(locked.change_group(name, take).map_err(failed)?);
    report_consumer(context, &locked, key, (name, consumer), is_known).await;
    context.out.array(3);
    context.out.bulk(next.unwrap_or(EntryId::ZERO).to_string().as_bytes());
    if shows_ids {
        write_claimed(context, &claimed, true);
    } else {
        context.out.array(claimed.len());
        claimed.iter().for_each(|entry| write(&mut context.out, entry));
    }
    context.out.array(gone.len());
    gone.iter().for_each(|id| context.out.bulk(id.to_string().as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Claim, String> {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        Claim::parse(&args, 1000).map_err(|fail| String::from_utf8_lossy(&fail.text).into_owned())
    }

    #[test]
    fn options_follow_the_ids() {
        let claim = read("XCLAIM s g c -5 1 2-3 IDLE 10 RETRYCOUNT 4 FORCE JUSTID LASTID 9").expect("options");
        let ids = vec![EntryId::new(1, 0), EntryId::new(2, 3)];
        let last = Some(EntryId::new(9, 0));
        let delivered_ms = Some(990);
        let deliveries = Some(4);
        let wanted =
            Claim { ids, delivered_ms, deliveries, is_forced: true, shows_ids: true, last, ..Claim::default() };
        assert_eq!(claim, wanted);
        assert_eq!(read("XCLAIM s g c 5 1 x"), Err("ERR Unrecognized XCLAIM option 'x'".into()));
        assert_eq!(read("XCLAIM s g c x 1"), Err("ERR Invalid min-idle-time argument for XCLAIM".into()));
    }
}
