//! Scripts: the commands that run them, and those that manage them.

use engine::security::Operation;
use net::service::Reply;

use super::args::is;
use super::session::{ok, written};
use super::streams;
use super::transactions::{Queued, Watched};
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Keys, Scripted, own};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, fixed};
use crate::redis::later::Later;
use crate::redis::scripts::run::Call;
use crate::redis::scripts::running::Running;
use crate::redis::scripts::{BUSY, sha};
use crate::redis::writer::Writer;

pub(super) const fn runs(name: &'static str, kind: Scripted, about: (&'static str, &'static str)) -> Command {
    let (since, summary) = about;
    Command {
        name,
        arity: -3,
        keys: Keys::Counted { at: 2, is_first_too: false },
        is_write: false,
        group: "",
        since,
        summary,
        parts: &[],
        needs: Needs::Keys,
        does: Does::Script(kind),
        number: 0,
    }
}

pub(super) const COMMANDS: &[Command] = &[
    runs("EVAL", Scripted::Text, ("2.6.0", "Runs a Lua script on the given keys as one step")),
    runs("EVAL_RO", Scripted::Text, ("7.0.0", "Runs a Lua script that must not write")),
    runs("EVALSHA", Scripted::Sha, ("2.6.0", "Runs a Lua script that was sent before")),
    runs("EVALSHA_RO", Scripted::Sha, ("7.0.0", "Runs a Lua script that was sent before and must not write")),
    own("SCRIPT", -2, Needs::OfPart(of_script), script, ("2.6.0", "Manages Lua scripts")).of(&[
        ("DEBUG", 3),
        ("EXISTS", -3),
        ("FLUSH", -2),
        ("KILL", 2),
        ("LOAD", 3),
    ]),
];

/// Returns what the subcommands of SCRIPT require. Any client may load a script, as its commands are checked.
fn of_script(part: &[u8]) -> Needs {
    match part {
        b"FLUSH" => Needs::Cluster(Operation::Alter),
        b"KILL" => Needs::Kill,
        _ => Needs::Nothing,
    }
}

/// Maximum number of keys and arguments of a script that runs on the thread of its connection. Each becomes an object
/// of Lua, which takes about a microsecond.
const WORDS_HERE_MAX: usize = 4096;

/// Runs a script: here if it ends soon whatever its arguments are, otherwise on a thread for scripts, as one that
/// follows such a script.
pub(in crate::redis) fn serve(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    kind: Scripted,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    let call = match Call::of(door, session.tenant(), (command, kind), args) {
        Ok(call) => call,
        Err(fail) => return session.fail(&fail),
    };
    let has_few_words = call.keys.len() + call.args.len() <= WORDS_HERE_MAX;
    if call.script.is_straight && has_few_words && session.batch.is_empty() {
        match door.run_here(session, &call, &command.keys(args)) {
            Ok(Some((writer, commit))) => return session.settled(Answer::Written(writer.bytes), commit),
            Ok(None) => {}
            Err(fail) => return session.fail(&fail),
        }
    }
    let queued = Queued::new(command, session.database, args);
    streams::step::begin(door, session, vec![queued], Watched::default(), true)
}

/// Returns `true` for `SYNC`, `ASYNC` or no argument.
pub(super) fn is_mode(mode: &[&[u8]]) -> bool {
    match mode {
        [] => true,
        [mode] => is(mode, "SYNC") || is(mode, "ASYNC"),
        _ => false,
    }
}

/// Error for `SCRIPT KILL` while a function runs.
const BUSY_FUNCTION: Fail =
    fixed("BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.");
const NOTHING_RUNS: &str = "NOTBUSY No scripts in execution right now.";

fn script(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let cache = &door.scripts.cache;
    match args[1].to_ascii_uppercase().as_slice() {
        b"LOAD" => written(session, |writer| {
            let owner = match session.tenant() {
                Some(tenant) => tenant.prefix().to_owned(),
                None => session.identity.borrow().user().to_string(),
            };
            writer.bulk(&cache.load(&owner, args[2])?.name);
            Ok(())
        }),
        b"EXISTS" => written(session, |writer| {
            writer.array(args.len() - 2);
            args[2..].iter().for_each(|text| writer.flag(sha::parse(text).is_some_and(|sha| cache.contains(&sha))));
            Ok(())
        }),
        b"FLUSH" if is_mode(&args[2..]) => {
            cache.flush();
            door.broker.record_act("flush scripts", "redis", None);
            ok()
        }
        b"FLUSH" => session.fail(&Fail::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
        b"KILL" => written(session, |writer| kill(door, session, false, writer)),
        _ if is(args[2], "NO") => ok(),
        _ => session.fail(&Fail::new("ERR scripts cannot be debugged here: use redis.log, or a redis-server")),
    }
}

/// Ends the script, or the function, that has run for the longest time, of those that have not written if there are any
/// (`scriptKill` in `src/script.c` of Redis, where only one runs). A client of a tenant ends those of the tenant.
pub(super) fn kill(door: &Door, session: &Session, is_function: bool, writer: &mut Writer) -> Done {
    let may_end = |running: &Running| session.tenant().is_none_or(|tenant| running.tenant.as_ref() == Some(tenant));
    let is_wanted = |running: &Running| may_end(running) && running.is_function == is_function;
    let longest =
        |is_of: &dyn Fn(&Running) -> bool| door.scripts.longest(|running| is_wanted(running) && is_of(running));
    // One that was killed may still be about to end, and one that has written cannot be killed.
    let may_be_killed = longest(&|running| !running.is_killed() && !running.has_written());
    let alive = may_be_killed.or_else(|| longest(&|running| !running.is_killed()));
    let wanted = alive.or_else(|| longest(&|_| true));
    let running = match wanted.or_else(|| door.scripts.longest(may_end)) {
        None => return Err(Fail::new(NOTHING_RUNS)),
        Some(running) => running,
    };
    if running.is_function != is_function {
        return Err(if running.is_function { BUSY_FUNCTION } else { BUSY });
    }
    if !running.kill() {
        return Err(Fail::new(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
             script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        ));
    }
    writer.ok();
    Ok(())
}
