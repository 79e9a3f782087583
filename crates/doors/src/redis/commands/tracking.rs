//! `CLIENT TRACKING` and its relatives: the keys that a client reads are tracked, and it is told when they change.

use net::service::Reply;

use super::args::{is, parse_int};
use super::session::ok;
use super::sort;
use crate::redis::clients::TrackingInfo;
use crate::redis::codec::{Answer, Follow};
use crate::redis::command::{Command, Does, Named};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, SYNTAX, fixed};
use crate::redis::later::{Later, before};
use crate::redis::tracking::{Options, Replying, is_same_tenant};
use crate::redis::writer::Writer;

/// Maximum number of prefixes of one client.
const PREFIXES_MAX: usize = 1024;
/// Maximum number of bytes of all prefixes of one client.
const PREFIXES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes of one prefix. A changed key is looked up once for each length of prefixes.
const PREFIX_BYTES_MAX: usize = 1024;

const NO_BROADCAST: Fail = fixed("ERR PREFIX option requires BCAST mode to be enabled");
const OTHER_BROADCAST: Fail = fixed(
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const CHOSEN_BROADCAST: Fail = fixed("ERR OPTIN and OPTOUT are not compatible with BCAST");
const BOTH_CHOICES: Fail = fixed("ERR You can't specify both OPTIN mode and OPTOUT mode");
const OTHER_CHOICE: Fail = fixed(
    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const NOT_TRACKING: Fail = fixed(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
);
const NOT_OPTIN: Fail = fixed("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.");
const NOT_OPTOUT: Fail = fixed("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.");

/// Turns tracking on or off.
pub(super) fn track(door: &Door, session: &mut Session, how: &[u8], options: &[&[u8]]) -> Reply<Answer, Later> {
    match change(door, session, how, options) {
        Ok(()) => ok(),
        Err(fail) => session.fail(&fail),
    }
}

fn change(door: &Door, session: &mut Session, how: &[u8], options: &[&[u8]]) -> Done {
    let mut options = parse(door, session, options)?;
    if is(how, "OFF") {
        session.end_tracking();
        return Ok(());
    }
    if !is(how, "ON") {
        return Err(SYNTAX);
    }
    let before = session.tracked.as_ref().map(|tracked| tracked.options());
    check(&options, before.as_deref())?;
    if options.is_broadcast {
        if options.prefixes.is_empty() {
            options.prefixes.push(Vec::new());
        }
        options.prefixes.extend(before.iter().flat_map(|before| before.prefixes.iter().cloned()));
        options.prefixes.sort_unstable();
        options.prefixes.dedup();
    }
    door.notices.tracking.take_prefixes(before.as_deref(), &options)?;
    let (is_broadcast, redirect) = (options.is_broadcast, options.redirect);
    let tracked = match &session.tracked {
        // What is queued for the client remains queued.
        Some(tracked) => {
            door.notices.tracking.set(tracked, options);
            tracked.clone()
        }
        None => {
            let identity = session.identity.borrow().clone();
            door.notices.tracking.begin(&session.client, identity, session.tenant(), options)
        }
    };
    let is_broken = tracked.broken().clone();
    session.update_info(|about| about.tracking = Some(TrackingInfo { is_broadcast, redirect, is_broken }));
    session.tracked = Some(tracked);
    door.notices.update(&door.broker.caches);
    Ok(())
}

/// Prefixes that a client may still add.
struct Room {
    prefixes: usize,
    bytes: usize,
}

impl Room {
    fn new(before: &[Vec<u8>]) -> Self {
        let bytes: usize = before.iter().map(Vec::len).sum();
        Self { prefixes: PREFIXES_MAX.saturating_sub(before.len()), bytes: PREFIXES_BYTES_MAX.saturating_sub(bytes) }
    }

    fn take(&mut self, prefix: &[u8]) -> Done {
        match (self.prefixes.checked_sub(1), self.bytes.checked_sub(prefix.len())) {
            (Some(prefixes), Some(bytes)) => {
                *self = Self { prefixes, bytes };
                Ok(())
            }
            _ => Err(Fail::new(format!(
                "ERR a client tracks at most {PREFIXES_MAX} prefixes of {PREFIXES_BYTES_MAX} bytes together: use \
                 shorter ones"
            ))),
        }
    }
}

fn parse(door: &Door, session: &Session, words: &[&[u8]]) -> Done<Options> {
    let mut options = Options::default();
    // Prefixes are compared with each other, so they are counted before.
    let before = session.tracked.as_ref().map(|tracked| tracked.options());
    let before = before.as_ref().map_or(&[][..], |before| &before.prefixes);
    let mut room = Room::new(before);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            word if is(word, "REDIRECT") => {
                let id = words.next().ok_or(SYNTAX)?;
                if options.redirect != 0 {
                    return Err(Fail::new("ERR A client can only redirect to a single other client"));
                }
                let id = u64::try_from(parse_int(id)?).ok();
                let target = id.and_then(|id| door.clients.get(id)).filter(|it| is_same_tenant(it, session.tenant()));
                options.redirect = target.ok_or(Fail::new("ERR The client ID you want redirect to does not exist"))?.id;
            }
            word if is(word, "BCAST") => options.is_broadcast = true,
            word if is(word, "OPTIN") => options.opts_in = true,
            word if is(word, "OPTOUT") => options.opts_out = true,
            word if is(word, "NOLOOP") => options.skips_own = true,
            word if is(word, "PREFIX") => {
                let prefix = words.next().ok_or(SYNTAX)?;
                room.take(prefix)?;
                if prefix.len() > PREFIX_BYTES_MAX {
                    return Err(Fail::new(format!(
                        "ERR a prefix has at most {PREFIX_BYTES_MAX} bytes: use a shorter one"
                    )));
                }
                options.prefixes.push(prefix.to_vec());
            }
            _ => return Err(SYNTAX),
        }
    }
    Ok(options)
}

/// Checks that options are compatible with each other, and with those before (`clientCommand` in `networking.c` of
/// Redis).
fn check(options: &Options, before: Option<&Options>) -> Done {
    if !options.is_broadcast && !options.prefixes.is_empty() {
        return Err(NO_BROADCAST);
    }
    if before.is_some_and(|before| before.is_broadcast != options.is_broadcast) {
        return Err(OTHER_BROADCAST);
    }
    if options.is_broadcast && (options.opts_in || options.opts_out) {
        return Err(CHOSEN_BROADCAST);
    }
    if options.opts_in && options.opts_out {
        return Err(BOTH_CHOICES);
    }
    if before.is_some_and(|before| options.opts_in && before.opts_out || options.opts_out && before.opts_in) {
        return Err(OTHER_CHOICE);
    }
    let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let text = |prefix: &[u8]| String::from_utf8_lossy(prefix).into_owned();
    for (at, prefix) in options.prefixes.iter().enumerate() {
        let existing = before.into_iter().flat_map(|before| &before.prefixes);
        if let Some(existing) = existing.into_iter().find(|existing| overlap(existing, prefix)) {
            return Err(Fail::new(format!(
                "ERR Prefix '{}' overlaps with an existing prefix '{}'. Prefixes for a single client must not overlap.",
                text(prefix),
                text(existing)
            )));
        }
        if let Some(other) = options.prefixes[at + 1..].iter().find(|other| overlap(prefix, other)) {
            return Err(Fail::new(format!(
                "ERR Prefix '{}' overlaps with another provided prefix '{}'. Prefixes for a single client must not \
                 overlap.",
                text(prefix),
                text(other)
            )));
        }
    }
    Ok(())
}

/// Decides whether the next command is tracked.
pub(super) fn caching(session: &mut Session, how: &[u8]) -> Reply<Answer, Later> {
    let Some(tracked) = &session.tracked else {
        return session.fail(&NOT_TRACKING);
    };
    let fail = match how {
        how if is(how, "YES") => (!tracked.options().opts_in).then_some(NOT_OPTIN),
        how if is(how, "NO") => (!tracked.options().opts_out).then_some(NOT_OPTOUT),
        _ => Some(SYNTAX),
    };
    match fail {
        Some(fail) => session.fail(&fail),
        None => {
            session.has_caching = true;
            ok()
        }
    }
}

/// Returns the connection that receives the invalidations: 0 for the client's own, -1 without tracking.
pub(super) fn redirect(session: &Session) -> i64 {
    session.tracked.as_ref().map_or(-1, |tracked| tracked.options().redirect as i64)
}

/// Writes the state of tracking.
pub(super) fn info(session: &Session, writer: &mut Writer) {
    let mut flags = Vec::new();
    let options = session.tracked.as_ref().map(|tracked| tracked.options()).unwrap_or_default();
    let prefixes = &options.prefixes;
    match &session.tracked {
        None => flags.push("off"),
        Some(tracked) => {
            let all = [
                ("on", true),
                ("bcast", options.is_broadcast),
                ("optin", options.opts_in),
                ("caching-yes", options.opts_in && session.has_caching),
                ("optout", options.opts_out),
                ("caching-no", options.opts_out && session.has_caching),
                ("noloop", options.skips_own),
                ("broken_redirect", tracked.broken().load(std::sync::atomic::Ordering::Relaxed)),
            ];
            flags.extend(all.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| *flag));
        }
    }
    writer.map(3);
    writer.bulk(b"flags");
    writer.set(flags.len());
    flags.iter().for_each(|flag| writer.bulk(flag.as_bytes()));
    writer.bulk(b"redirect");
    writer.int(redirect(session));
    writer.bulk(b"prefixes");
    writer.array(prefixes.len());
    prefixes.iter().for_each(|prefix| writer.bulk(prefix));
}

/// Holds invalidations back until a reply is written. A blocked client may wait for any time, so it receives them in
/// the meantime.
pub(in crate::redis) fn followed(
    replying: Replying,
    reply: Reply<Answer, Later>,
    is_sliced: bool,
) -> Reply<Answer, Later> {
    match reply {
        // It has read its data already if it is sliced.
        Reply::Blocked(later) if !is_sliced => Reply::Blocked(later),
        reply => before(reply, Follow::Invalidations(replying)),
    }
}

impl Session {
    /// Remembers the keys that a command is about to read, if the client tracks them. Until the result is dropped, the
    /// client receives no invalidations.
    #[inline]
    pub(in crate::redis) fn track(&self, command: &'static Command, args: &[&[u8]]) -> Option<Replying> {
        self.tracked.as_ref()?;
        self.track_command(command, args)
    }

    #[cold]
    fn track_command(&self, command: &'static Command, args: &[&[u8]]) -> Option<Replying> {
        let tracked = self.tracked.as_ref()?;
        let replying = tracked.reply();
        let options = tracked.options();
        let is_wanted = if options.opts_in { self.has_caching } else { !(options.opts_out && self.has_caching) };
        if options.is_broadcast || !is_wanted {
            return Some(replying);
        }
        let remember = |command: &'static Command, args: &[&[u8]]| {
            // A script may read any of its keys.
            let reads = match command.does {
                Does::Data(_) | Does::Stream(_) => !command.is_write,
                Does::Script(_) => true,
                Does::Own(_) => false,
            };
            match command.keys(args) {
                Named::These(keys) if reads => self.notices.tracking.remember(tracked, keys),
                Named::All if reads && command.name == "SORT_RO" => {
                    self.notices.tracking.remember(tracked, sort::keys(args));
                }
                _ => {}
            }
            Ok(())
        };
        let done = match &self.transaction {
            Some(transaction) if command.name == "EXEC" => transaction.each(|_, command, args| remember(command, args)),
            _ => remember(command, args),
        };
        debug_assert!(done.is_ok(), "remembering does not fail");
        Some(replying)
    }

    pub(in crate::redis) fn end_tracking(&mut self) {
        let Some(tracked) = self.tracked.take() else {
            return;
        };
        self.has_caching = false;
        self.update_info(|about| about.tracking = None);
        self.notices.tracking.end(&tracked);
        if !self.notices.tracking.is_on() {
            self.notices.update(&self.caches);
        }
    }
}
