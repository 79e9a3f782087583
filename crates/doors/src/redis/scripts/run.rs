//! The run of a script: where its client is served if it is straight, and on a thread for scripts otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Cache, Commit, Wakes};
use engine::Result;
use futures_util::future::LocalBoxFuture;

use super::host::{Caller, Host, Need, no_streams, release};
use super::lanes::lane;
use super::running::Running;
use super::sha;
use super::state;
use super::text::Script;
use crate::redis::command::{Command, Named, Scripted, bytes_in};
use crate::redis::commands::args::parse_int;
use crate::redis::commands::sets::Split;
use crate::redis::commands::streams::Shelf;
use crate::redis::commands::transactions::{Held, act_for, finish};
use crate::redis::connection::{SPARE_BYTES, Session};
use crate::redis::databases::lock_if_free;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, fixed};
use crate::redis::monitors::Lines;
use crate::redis::names::{Tenant, prefix};
use crate::redis::room::script_room;
use crate::redis::stats::Tally;
use crate::redis::writer::Writer;

const NO_SCRIPT: Fail = fixed("NOSCRIPT No matching script. Please use EVAL.");
/// First number of the counters of threads for scripts. Those of threads that serve connections are smaller.
const TALLIES_FROM: usize = 512;
/// Memory for writes that is freed before a script runs, in addition to the size of its arguments.
const ROOM_BYTES: usize = 16 * SPARE_BYTES;

/// A call of a script: the script, its keys and its arguments.
pub(in crate::redis) struct Call<'a> {
    pub(in crate::redis) script: Arc<Script>,
    pub(in crate::redis) keys: &'a [&'a [u8]],
    pub(in crate::redis) args: &'a [&'a [u8]],
    pub(in crate::redis) only_reads: bool,
}

/// Databases, streams and client of a run on locked keys.
pub(in crate::redis) struct On<'h, 'c> {
    pub(in crate::redis) caller: &'h Caller,
    pub(in crate::redis) caches: &'c BTreeMap<usize, Arc<Cache>>,
    pub(in crate::redis) database: usize,
    pub(in crate::redis) shelf: &'h Shelf,
    /// `true` on a thread that may wait.
    pub(in crate::redis) may_wait: bool,
    /// `true` if the run may end with a need, and is begun again with it.
    pub(in crate::redis) may_repeat: bool,
    pub(in crate::redis) running: Option<Arc<Running>>,
    /// Lines about the commands for monitoring clients, if the run is not begun again.
    pub(in crate::redis) lines: &'h mut Lines,
}

impl<'a> Call<'a> {
    /// Returns the call that a command makes.
    pub(in crate::redis) fn of(
        door: &Door,
        tenant: Tenant<'_>,
        (command, kind): (&Command, Scripted),
        args: &'a [&'a [u8]],
    ) -> Done<Self> {
        let scripts = &door.scripts;
        let (script, (keys, rest)) = match kind {
            Scripted::Function => {
                let function = scripts.functions.of(tenant)?.find(args[1]);
                let function = function.ok_or(Fail::new("ERR Function not found"))?;
                let count = parse_int(args[2]).or(Err(Fail::new("ERR Bad number of keys provided")))?;
                (function, split(count, args)?)
            }
            Scripted::Text | Scripted::Sha => {
                let split = split(parse_int(args[2])?, args)?;
                let script = match kind {
                    Scripted::Text => scripts.cache.sent(prefix(tenant), args[1])?,
                    _ => sha::parse(args[1]).and_then(|sha| scripts.cache.find(&sha)).ok_or(NO_SCRIPT)?,
                };
                (script, split)
            }
        };
        let is_read_command = command.name.ends_with("_RO");
        if is_read_command && script.flags.is_some() && !script.only_reads() {
            return Err(Fail::new("ERR Can not execute a script with write flag using *_ro command."));
        }
        let only_reads = is_read_command || script.only_reads();
        Ok(Self { script, keys, args: rest, only_reads })
    }
}

/// Returns the keys and the arguments (`evalGenericCommand` in `src/eval.c` of Redis).
fn split<'a>(count: i64, args: &'a [&'a [u8]]) -> Done<Split<'a, 'a>> {
    let rest = &args[3..];
    match usize::try_from(count) {
        Ok(count) if count <= rest.len() => Ok(rest.split_at(count)),
        Ok(_) => Err(Fail::new("ERR Number of keys can't be greater than number of args")),
        Err(_) => Err(Fail::new("ERR Number of keys can't be negative")),
    }
}

impl Door {
    /// Returns the caller of the scripts of a connection.
    pub(in crate::redis) fn caller(&self, session: &mut Session) -> Caller {
        let is_unlimited = self.reach(session).is_unlimited();
        Caller {
            door: self.clone(),
            identity: session.identity.borrow().clone(),
            client: session.client.clone(),
            tenant: session.tenant.clone(),
            is_unlimited,
        }
    }

    /// Runs a straight script on this thread. Returns `None` if it needs another one.
    pub(in crate::redis) fn run_here(
        &self,
        session: &mut Session,
        call: &Call<'_>,
        named: &Named<'_>,
    ) -> Done<Option<(Writer, Commit)>> {
        let number = session.database;
        let caches = BTreeMap::from([(number, session.database(&self.broker)?.clone())]);
        let cache = &caches[&number];
        if !call.only_reads {
            cache.make_room((bytes_in(call.args) + bytes_in(call.keys) + ROOM_BYTES) as u64);
        }
        let caller = self.caller(session);
        let shelf = no_streams();
        let mut locks_all = call.script.may_use_any_key();
        loop {
            let mut held = Held::new();
            let Some(locked) = lock_if_free(cache, if locks_all { &Named::All } else { named }) else {
                return Ok(None);
            };
            held.insert(number, locked);
            act_for(&mut held, caller.client.id);
            let mut out = session.writer();
            out.bytes_max = script_room(session.room());
            let mut later = Vec::new();
            let mut lines = Lines::new(&self.monitors);
            let on = On {
                caller: &caller,
                caches: &caches,
                database: number,
                shelf: &shelf,
                may_wait: false,
                may_repeat: true,
                running: None,
                lines: &mut lines,
            };
            let done = run(call, on, (&mut held, &mut later), &session.tally, &mut out);
            let fail = match done {
                Ok(()) => None,
                Err(Stop::Fail(fail)) => Some(fail),
                Err(Stop::Need(Need::AllKeys)) if !locks_all => {
                    release(held);
                    locks_all = true;
                    continue;
                }
                Err(Stop::Need(_)) => {
                    release(held);
                    return Ok(None);
                }
            };
            if let Some(fail) = fail {
                out.bytes.clear();
                out.error(&fail);
            }
            let commit = finish(held, &caches);
            lines.write();
            return Ok(Some((out, commit)));
        }
    }
}

/// Why a script has no reply.
pub(in crate::redis) enum Stop {
    Fail(Fail),
    /// Need with which it is begun again, as it has changed nothing.
    Need(Need),
}

/// Runs a script on locked keys, and writes its reply.
pub(in crate::redis) fn run<'c>(
    call: &Call<'_>,
    on: On<'_, 'c>,
    (held, later): (&mut Held<'c>, &mut Vec<LocalBoxFuture<'static, Result<()>>>),
    tally: &Tally,
    out: &mut Writer,
) -> std::result::Result<(), Stop> {
    let mut host = Host {
        caller: on.caller,
        caches: on.caches,
        held,
        shelf: on.shelf,
        later,
        tally,
        database: on.database,
        is_resp3: false,
        only_reads: call.only_reads,
        may_wait: on.may_wait,
        may_repeat: on.may_repeat,
        need: None,
        has_written: false,
        has_used_others: false,
        declared: call.keys,
        running: on.running,
        lines: on.lines,
        wakes: Wakes::default(),
        looked: 0,
    };
    let done = state::with(|state| state.run(&call.script, (call.keys, call.args), &mut host, out));
    host.wakes.flush();
    if let Some(need) = host.need {
        return Err(Stop::Need(need));
    }
    call.script.note_reach(host.has_used_others);
    done.and_then(|done| done).map_err(Stop::Fail)
}

/// Returns the counters of this thread for scripts.
pub(in crate::redis) fn tally_of_lane(door: &Door) -> Arc<Tally> {
    door.stats.tally(TALLIES_FROM + lane())
}
