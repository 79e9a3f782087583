//! Functions of libraries: the commands that call them, and those that manage the libraries.

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::service::{Reply, once};

use super::args::{is, matcher};
use super::scripting::{is_mode, kill, runs};
use super::session::{ok, written};
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Scripted, own, wrong_part};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::later::Later;
use crate::redis::scripts::functions::{Function, Policy};
use crate::redis::scripts::text::FLAGS;
use crate::redis::writer::Writer;

pub(super) const COMMANDS: &[Command] = &[
    runs("FCALL", Scripted::Function, ("7.0.0", "Calls a function of a library on the given keys as one step")),
    runs("FCALL_RO", Scripted::Function, ("7.0.0", "Calls a function that must not write")),
    own("FUNCTION", -2, Needs::OfPart(of_function), function, ("7.0.0", "Manages libraries of functions")).of(&[
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

/// Returns what the subcommands of FUNCTION require. Who changes a function decides what others do that call it.
fn of_function(part: &[u8]) -> Needs {
    match part {
        b"DELETE" | b"FLUSH" | b"LOAD" | b"RESTORE" => Needs::Functions,
        b"KILL" => Needs::Kill,
        b"HELP" => Needs::Nothing,
        _ => Needs::View,
    }
}

fn function(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match args[1].to_ascii_uppercase().as_slice() {
        b"LOAD" => load(door, session, &args[2..]),
        b"DELETE" if is_missing(door, session, args[2]) => session.fail(&Fail::new("ERR Library not found")),
        b"DELETE" => {
            let name = args[2].to_vec();
            change(door, session, |door, tenant| {
                async move { door.scripts.functions.delete(&door.broker, tenant.as_ref(), &name).await.map(|()| None) }
                    .boxed_local()
            })
        }
        b"FLUSH" if args.len() > 3 => session.fail(&wrong_part("FUNCTION", args[1])),
        // Also in a transaction, which waits for no change.
        b"FLUSH" if is_mode(&args[2..]) && has_none(door, session) => ok(),
        b"FLUSH" if is_mode(&args[2..]) => change(door, session, |door, tenant| {
            async move { door.scripts.functions.flush(&door.broker, tenant.as_ref()).await.map(|()| None) }
                .boxed_local()
        }),
        b"FLUSH" => session.fail(&Fail::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")),
        b"RESTORE" => restore(door, session, args),
        b"DUMP" => written(session, |writer| {
            writer.bulk(&door.scripts.functions.of(session.tenant())?.payload());
            Ok(())
        }),
        b"LIST" => written(session, |writer| write_libraries(door, session, &args[2..], writer)),
        b"KILL" => written(session, |writer| kill(door, session, true, writer)),
        _ => written(session, |writer| write_statistics(door, session, writer)),
    }
}

fn has_none(door: &Door, session: &Session) -> bool {
    door.scripts.functions.of(session.tenant()).is_ok_and(|all| all.all().len() == 0)
}

fn is_missing(door: &Door, session: &Session, library: &[u8]) -> bool {
    let is_it = |name: &str| name.as_bytes() == library;
    door.scripts.functions.of(session.tenant()).is_ok_and(|all| !all.all().any(|library| is_it(&library.name)))
}

type Changed = LocalBoxFuture<'static, Done<Option<Box<str>>>>;

/// Returns the reply of a change of libraries: `OK`, or the name that the change returns.
fn change(
    door: &Door,
    session: &Session,
    change: impl FnOnce(Door, Option<engine::security::TenantName>) -> Changed,
) -> Reply<Answer, Later> {
    let changed = change(door.clone(), session.tenant.clone());
    let mut writer = session.writer();
    let answer = async move {
        match changed.await {
            Ok(Some(name)) => writer.bulk(name.as_bytes()),
            Ok(None) => writer.ok(),
            Err(fail) => writer.error(&fail),
        }
        Answer::Written(writer.bytes)
    };
    Reply::Alone(once(answer.boxed_local()))
}

fn load(door: &Door, session: &Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let Some((text, options)) = args.split_last() else {
        return session.fail(&Fail::new("ERR Function code is missing"));
    };
    if let Some(option) = options.iter().find(|option| !is(option, "REPLACE")) {
        return session.fail(&Fail::of_bytes([b"ERR Unknown option given: ", *option].concat()));
    }
    let (text, is_replacement) = (text.to_vec(), !options.is_empty());
    change(door, session, move |door, tenant| {
        async move {
            let on = (&*door.broker, &door.scripts.lanes);
            door.scripts.functions.load(on, tenant, &text, is_replacement).await.map(Some)
        }
        .boxed_local()
    })
}

fn restore(door: &Door, session: &Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let policy = match &args[3..] {
        [] => Policy::Append,
        [policy] if is(policy, "APPEND") => Policy::Append,
        [policy] if is(policy, "REPLACE") => Policy::Replace,
        [policy] if is(policy, "FLUSH") => Policy::Flush,
        [_] => {
            return session
                .fail(&Fail::new("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE."));
        }
        _ => return session.fail(&wrong_part("FUNCTION", args[1])),
    };
    let payload = args[2].to_vec();
    change(door, session, move |door, tenant| {
        async move {
            let on = (&*door.broker, &door.scripts.lanes);
            door.scripts.functions.restore(on, tenant, &payload, policy).await.map(|()| None)
        }
        .boxed_local()
    })
}

fn write_libraries(door: &Door, session: &Session, args: &[&[u8]], writer: &mut Writer) -> Done {
    let mut args = args.iter();
    let mut pattern = None;
    let mut has_code = false;
    while let Some(arg) = args.next() {
        match arg {
            arg if !has_code && is(arg, "WITHCODE") => has_code = true,
            arg if pattern.is_none() && is(arg, "LIBRARYNAME") => {
                let given = args.next().ok_or(Fail::new("ERR library name argument was not given"))?;
                pattern = Some(matcher(&given.to_ascii_lowercase())?);
            }
            arg => return Err(Fail::of_bytes([b"ERR Unknown argument ", *arg].concat())),
        }
    }
    let all = door.scripts.functions.of(session.tenant())?;
    let mut is_shown =
        |name: &str| pattern.as_mut().is_none_or(|pattern| pattern.matches(name.to_ascii_lowercase().as_bytes()));
    let shown: Vec<_> = all.all().filter(|library| is_shown(&library.name)).collect();
    writer.array(shown.len());
    for library in shown {
        writer.map(if has_code { 4 } else { 3 });
        writer.bulk(b"library_name");
        writer.bulk(library.name.as_bytes());
        writer.bulk(b"engine");
        writer.bulk(b"LUA");
        writer.bulk(b"functions");
        writer.array(library.functions.len());
        library.functions.iter().for_each(|(name, function)| write_function(name, function, writer));
        if has_code {
            writer.bulk(b"library_code");
            writer.bulk(library.code.text());
        }
    }
    writer.check()
}

fn write_function(name: &[u8], function: &Function, writer: &mut Writer) {
    writer.map(3);
    writer.bulk(b"name");
    writer.bulk(name);
    writer.bulk(b"description");
    match &function.description {
        Some(description) => writer.bulk(description),
        None => writer.null(),
    }
    writer.bulk(b"flags");
    let flags = function.script.flags.unwrap_or_default();
    let set: Vec<&str> = FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(name, _)| *name).collect();
    writer.set(set.len());
    set.iter().for_each(|name| writer.simple(name));
}

fn write_statistics(door: &Door, session: &Session, writer: &mut Writer) -> Done {
    let all = door.scripts.functions.of(session.tenant())?;
    writer.map(2);
    writer.bulk(b"running_script");
    // A client of a tenant sees the scripts of the tenant alone.
    let is_shown = |of: &Option<_>| session.tenant().is_none_or(|tenant| of.as_ref() == Some(tenant));
    match door.scripts.longest(|running| is_shown(&running.tenant)) {
        None => writer.null(),
        Some(running) => {
            writer.map(3);
            writer.bulk(b"name");
            writer.bulk(&running.name);
            writer.bulk(b"command");
            writer.array(running.command.len());
            running.command.iter().for_each(|word| writer.bulk(word));
            writer.bulk(b"duration_ms");
            writer.int(running.began.elapsed().as_millis() as i64);
        }
    }
    writer.bulk(b"engines");
    writer.map(1);
    writer.bulk(b"LUA");
    writer.map(2);
    writer.bulk(b"libraries_count");
    writer.len(all.all().len());
    writer.bulk(b"functions_count");
    writer.len(all.function_count());
    writer.check()
}
