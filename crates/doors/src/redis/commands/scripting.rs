//! Scripts: the commands that run them, and those that manage them.

use engine::security::Operation;
use net::service::Reply;

use super::args::is;
use super::session::{ok, written};
use super::streams;
use super::transactions::{Queued, Watched};
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Keys, Scripted, own, wrong_part};
use crate::redis::connection::{Door, Later, Session};
use crate::redis::errors::{Done, Fail};
use crate::redis::scripts::run::Call;
use crate::redis::scripts::sha;
use crate::redis::writer::Writer;

const fn runs(name: &'static str, kind: Scripted, about: (&'static str, &'static str)) -> Command {
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
    own(
        "FUNCTION",
        -2,
        Needs::Cluster(Operation::Describe),
        function,
        ("7.0.0", "Returns the running script; there are no functions"),
    )
    .of(&[
        ("DELETE", 3),
        ("DUMP", 2),
        ("FLUSH", -2),
        ("KILL", 2),
        ("LIST", -2),
        ("LOAD", -3),
        ("RESTORE", -3),
        ("STATS", 2),
    ]),
];

/// Returns what the subcommands of SCRIPT require. Any client may load a script, as its commands are checked.
fn of_script(part: &[u8]) -> Needs {
    match part {
        b"FLUSH" | b"KILL" => Needs::Cluster(Operation::Alter),
        _ => Needs::Nothing,
    }
}

/// Runs a script: here if it ends soon whatever its arguments are, otherwise on a thread for scripts.
pub(in crate::redis) fn serve(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    kind: Scripted,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    let call = match Call::of(door, command, kind, args) {
        Ok(call) => call,
        Err(fail) => return session.fail(&fail),
    };
    if call.script.is_straight {
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
fn is_mode(mode: &[&[u8]]) -> bool {
    match mode {
        [] => true,
        [mode] => is(mode, "SYNC") || is(mode, "ASYNC"),
        _ => false,
    }
}

const NOTHING_RUNS: &str = "NOTBUSY No scripts in execution right now.";

fn script(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let cache = &door.scripts.cache;
    match args[1].to_ascii_uppercase().as_slice() {
        b"LOAD" => written(session, |writer| {
            writer.bulk(&cache.load(args[2])?.name);
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
        b"KILL" => written(session, |writer| kill(door, false, writer)),
        _ if is(args[2], "NO") => ok(),
        _ => session.fail(&Fail::new("ERR scripts cannot be debugged here: use redis.log, or a redis-server")),
    }
}

/// Ends the script, or the function, that has run for the longest time (`scriptKill` in `src/script.c` of Redis).
fn kill(door: &Door, is_function: bool, writer: &mut Writer) -> Done {
    let running = door.scripts.longest().ok_or(Fail::new(NOTHING_RUNS))?;
    if running.is_function != is_function {
        let command = if running.is_function { "FUNCTION KILL" } else { "SCRIPT KILL" };
        return Err(Fail::new(format!(
            "BUSY Redis is busy running a script. You can only call {command} or SHUTDOWN NOSAVE."
        )));
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

fn function(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        match args[1].to_ascii_uppercase().as_slice() {
            b"FLUSH" if args.len() > 3 => return Err(wrong_part("FUNCTION", args[1])),
            b"FLUSH" if is_mode(&args[2..]) => writer.ok(),
            b"FLUSH" => return Err(Fail::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")),
            b"LIST" => return list_functions(&args[2..], writer),
            b"STATS" => {
                writer.map(2);
                writer.bulk(b"running_script");
                write_running(door, writer);
                writer.bulk(b"engines");
                writer.map(0);
            }
            b"KILL" => return kill(door, true, writer),
            b"DELETE" => return Err(Fail::new("ERR Library not found")),
            _ => return Err(Fail::new("ERR FUNCTION: functions are not supported: use EVAL")),
        }
        Ok(())
    })
}

/// Writes the script that has run for the longest time.
fn write_running(door: &Door, writer: &mut Writer) {
    let Some(running) = door.scripts.longest() else {
        return writer.null();
    };
    writer.map(3);
    writer.bulk(b"name");
    writer.bulk(&running.name);
    writer.bulk(b"command");
    writer.array(running.command.len());
    running.command.iter().for_each(|word| writer.bulk(word));
    writer.bulk(b"duration_ms");
    writer.int(running.began.elapsed().as_millis() as i64);
}

fn list_functions(args: &[&[u8]], writer: &mut Writer) -> Done {
    let mut args = args.iter();
    let mut has_name = false;
    let mut has_code = false;
    while let Some(arg) = args.next() {
        match arg {
            arg if !has_code && is(arg, "WITHCODE") => has_code = true,
            arg if !has_name && is(arg, "LIBRARYNAME") => {
                has_name = args.next().is_some();
                if !has_name {
                    return Err(Fail::new("ERR library name argument was not given"));
                }
            }
            arg => return Err(Fail::of_bytes([b"ERR Unknown argument ", *arg].concat())),
        }
    }
    writer.array(0);
    Ok(())
}
