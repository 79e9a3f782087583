//! Commands that change the entries of a stream: adding, deleting and trimming.

use broker::{NewEntryId, TrimTo};
use engine::ErrorKind;
use engine::streams::{EntryId, parse_part};

use super::entries::parts_of;
use super::{Context, failed, ids};
use crate::redis::command::wrong_arity;
use crate::redis::commands::args::{is, parse_int};
use crate::redis::errors::{Done, Fail, NO_SUCH_KEY, SYNTAX};

/// Maximum number of entries that an approximate trim removes by default.
const ROUGH_MAX: u64 = 10_000;

/// Parameters of a trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trim {
    to: TrimTo,
    is_rough: bool,
    /// Maximum number of entries that are removed.
    limit: u64,
}

/// Options before the fields of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    trim: Option<Trim>,
    makes_none: bool,
    id: Option<NewEntryId>,
    /// Number of parsed arguments, including the command and its key.
    read: usize,
}

/// Parses the options up to the id, or to the end of the arguments if `has_id` is `false`.
fn options(args: &[&[u8]], has_id: bool) -> Done<Options> {
    let mut options = Options::default();
    let mut limit = None;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        let has_more = at + 1 < args.len();
        if has_more && (is(word, "MAXLEN") || is(word, "MINID")) {
            if options.trim.is_some() {
                let text = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible";
                return Err(Fail::new(text));
            }
            let sign = args.get(at + 1).filter(|sign| at + 2 < args.len() && matches!(**sign, b"~" | b"="));
            let value = args[at + 1 + usize::from(sign.is_some())];
            let to = if is(word, "MAXLEN") {
                let len = parse_int(value)?;
                TrimTo::Len(u64::try_from(len).or(Err(Fail::new("ERR The MAXLEN argument must be >= 0.")))?)
            } else {
                TrimTo::From(ids::parse(value, 0)?)
            };
            options.trim = Some(Trim { to, is_rough: sign.is_some_and(|sign| *sign == b"~"), limit: u64::MAX });
            at += 2 + usize::from(sign.is_some());
        } else if is(word, "LIMIT") && has_more {
            let most = parse_int(args[at + 1])?;
            limit = Some(u64::try_from(most).or(Err(Fail::new("ERR The LIMIT argument must be >= 0.")))?);
            at += 2;
        } else if has_id && is(word, "NOMKSTREAM") {
            options.makes_none = true;
            at += 1;
        } else if has_id {
            options.id = Some(new_id(word)?);
            at += 1;
            break;
        } else {
            return Err(SYNTAX);
        }
    }
    options.read = at;
    let Some(trim) = &mut options.trim else {
        return match (limit, has_id) {
            (Some(1..), _) => {
                Err(Fail::new("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"))
            }
            (_, false) => Err(Fail::new("ERR syntax error, XTRIM must be called with a trimming strategy")),
            _ => Ok(options),
        };
    };
    trim.limit = match limit {
        Some(_) if !trim.is_rough => {
            return Err(Fail::new("ERR syntax error, LIMIT cannot be used without the special ~ option"));
        }
        Some(0) => u64::MAX,
        Some(limit) => limit,
        None if trim.is_rough => ROUGH_MAX,
        None => u64::MAX,
    };
    Ok(options)
}

fn new_id(arg: &[u8]) -> Done<NewEntryId> {
    match arg {
        b"*" => Ok(NewEntryId::Now),
        [ms @ .., b'-', b'*'] if parse_part(ms).is_some() => {
            Ok(NewEntryId::Of(parse_part(ms).expect("invariant: it was read just now")))
        }
        arg => ids::parse(arg, 0).map(NewEntryId::Is),
    }
}

pub(super) async fn add(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let options = options(args, true)?;
    let fields = args.get(options.read..).unwrap_or_default();
    let Some(id) = options.id.filter(|_| !fields.is_empty() && fields.len() % 2 == 0) else {
        return Err(wrong_arity("xadd"));
    };
    if id == NewEntryId::Is(EntryId::ZERO) {
        return Err(Fail::new("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let (mut locked, is_new) = if options.makes_none {
        match context.lock(args[1]).await? {
            Some(locked) => (locked, false),
            None => {
                context.out.null();
                return Ok(());
            }
        }
    } else {
        context.lock_or_create(args[1]).await?
    };
    let parts = parts_of(fields);
    let (id, saved) = match locked.add(id, parts.key, parts.value, &parts.headers, context.may_wait()).await {
        Err(error) => {
            let is_over = locked.last() == EntryId::MAX;
            drop(locked);
            if is_new {
                context.remove(args[1]).await;
            }
            return Err(match (error.kind, is_over) {
                (ErrorKind::OutOfRange, true) => {
                    Fail::new("ERR The stream has exhausted the last possible ID, unable to add more items")
                }
                (ErrorKind::OutOfRange, false) => {
                    Fail::new("ERR The ID specified in XADD is equal or smaller than the target stream top item")
                }
                _ => failed(error),
            });
        }
        Ok(added) => added,
    };
    match options.trim {
        // A trim must be able to read the new entry.
        Some(Trim { to, is_rough, limit }) => {
            saved.wait().await.map_err(failed)?;
            context.report(args[1], "xadd").await;
            if locked.trim(to, is_rough, limit).await.map_err(failed)? > 0 {
                context.report(args[1], "xtrim").await;
            }
        }
        None => context.report_saved(args[1], "xadd", saved).await?,
    }
    context.out.bulk(id.to_string().as_bytes());
    Ok(())
}

pub(super) async fn len(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let locked = context.lock(args[1]).await?;
    context.out.int(locked.map_or(0, |locked| locked.len() as i64));
    Ok(())
}

pub(super) async fn del(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let Some(mut locked) = context.lock(args[1]).await? else {
        context.out.int(0);
        return Ok(());
    };
    let ids = ids::parse_all(&args[2..])?;
    let (deleted, saved) = locked.delete(&ids).await.map_err(failed)?;
    if deleted > 0 {
        context.report_saved(args[1], "xdel", saved).await?;
    } else {
        context.settle(saved);
    }
    context.out.int(deleted as i64);
    Ok(())
}

pub(super) async fn trim(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let trim = options(args, false)?.trim.ok_or(SYNTAX)?;
    let removed = match context.lock(args[1]).await? {
        Some(mut locked) => {
            let removed = locked.trim(trim.to, trim.is_rough, trim.limit).await.map_err(failed)?;
            if removed > 0 {
                context.report(args[1], "xtrim").await;
            }
            removed
        }
        None => 0,
    };
    context.out.int(removed as i64);
    Ok(())
}

pub(super) async fn set_id(context: &mut Context<'_>, args: &[&[u8]]) -> Done {
    let last = ids::parse(args[2], 0)?;
    let mut added = None;
    let mut max_deleted = None;
    for pair in args[3..].chunks(2) {
        match pair {
            [word, value] if is(word, "ENTRIESADDED") => {
                let count = u64::try_from(parse_int(value)?);
                added = Some(count.or(Err(Fail::new("ERR entries_added must be positive")))?);
            }
            [word, value] if is(word, "MAXDELETEDID") => {
                let id = ids::parse(value, 0)?;
                if last < id {
                    let text = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id";
                    return Err(Fail::new(text));
                }
                max_deleted = Some(id).filter(|id| *id != EntryId::ZERO);
            }
            _ => return Err(SYNTAX),
        }
    }
    let mut locked = context.lock(args[1]).await?.ok_or(NO_SUCH_KEY)?;
    let extent = locked.extent().await.map_err(failed)?;
    if last < extent.max_deleted {
        return Err(Fail::new("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"));
    }
    // An id that is too low is refused below.
    if last >= locked.newest() && added.is_some_and(|added| extent.len > added) {
        return Err(Fail::new("ERR The entries_added specified in XSETID is smaller than the target stream length"));
    }
    let saved = match locked.set_last(last, added, max_deleted) {
        Err(error) if error.kind == ErrorKind::OutOfRange => {
            return Err(Fail::new("ERR The ID specified in XSETID is smaller than the target stream top item"));
        }
        saved => saved.map_err(failed)?,
    };
    context.report(args[1], "xsetid").await;
    context.settle(saved);
    context.out.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str, has_id: bool) -> Result<Options, String> {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        options(&args, has_id).map_err(|fail| String::from_utf8_lossy(&fail.text).into_owned())
    }

    #[test]
    fn options_stand_in_front_of_the_id() {
        let trim = Trim { to: TrimTo::Len(5), is_rough: false, limit: u64::MAX };
        let id = Some(NewEntryId::Now);
        let plain = Options { trim: Some(trim), makes_none: true, id, read: 6 };
        assert_eq!(read("XADD s nomkstream maxlen 5 * f v", true), Ok(plain));
        let exact = Options { trim: Some(trim), id, read: 6, ..Options::default() };
        assert_eq!(read("XADD s MAXLEN = 5 * f v", true), Ok(exact));
        let rough = Trim { to: TrimTo::From(EntryId::new(7, 0)), is_rough: true, limit: 9 };
        let rough = Options { trim: Some(rough), read: 7, ..Options::default() };
        assert_eq!(read("XTRIM s MINID ~ 7 LIMIT 9", false), Ok(rough));
        let limit = |words| read(words, false).expect("options").trim.expect("how").limit;
        assert_eq!((limit("XTRIM s MAXLEN ~ 7"), limit("XTRIM s MAXLEN ~ 7 LIMIT 0")), (ROUGH_MAX, u64::MAX));
    }

    #[test]
    fn ids_of_new_entries_may_be_whole_or_in_part() {
        let id = |word: &str| read(&format!("XADD s {word} f v"), true).map(|options| options.id);
        assert_eq!(id("5-*"), Ok(Some(NewEntryId::Of(5))));
        assert_eq!(id("5"), Ok(Some(NewEntryId::Is(EntryId::new(5, 0)))));
        assert_eq!(id("5-7"), Ok(Some(NewEntryId::Is(EntryId::new(5, 7)))));
        for bad in ["x-*", "-*", "*-*", "5-", "+"] {
            assert!(id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn conflicting_options_are_refused() {
        for (words, has_id) in [
            ("XADD s MAXLEN 5 MINID 7 * f v", true),
            ("XADD s MAXLEN -1 * f v", true),
            ("XADD s MAXLEN 5 LIMIT 5 * f v", true),
            ("XADD s LIMIT 5 * f v", true),
            ("XTRIM s LIMIT 5", false),
            ("XTRIM s MAXLEN ~ 5 LIMIT -5", false),
            ("XTRIM s MAXLEN 5 more", false),
        ] {
            assert!(read(words, has_id).is_err(), "{words}");
        }
    }
}
