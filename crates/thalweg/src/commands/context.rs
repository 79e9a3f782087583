//! `thalweg context`: adds, lists, selects, shows and deletes contexts.

use std::io::{self, Write};

use client::Address;
use serde_json::{Map, Value, json};
use thalweg::config::contexts::{Chosen, ChosenBy, Context, ContextName, Contexts, LoginSecret, StoredLogin};
use thalweg::config::keys::{KEYS, Kind};
use thalweg::config::{ConfigError, ENV_CONTEXT};

use super::time::{format_time, now_ms};
use super::user::say;
use super::{confirm, units};
use crate::args::{ContextAdd, ContextCommand, Global, Yes};
use crate::output::{FAILED, Failure, NOT_FOUND, Result, USAGE, remark};
use crate::set_flags;

/// Keys whose values are paths: a context has absolute ones, as commands run in any directory.
const PATHS: [&str; 5] = ["password_file", "token_file", "client_cert", "client_key", "ca_file"];

pub fn run(global: &Global, command: ContextCommand) -> Result {
    let contexts = Contexts::of_user()?;
    match command {
        ContextCommand::Add(args) => add(&contexts, global, args),
        ContextCommand::List => list(&contexts, global.json),
        ContextCommand::Use { name: Some(name), .. } => {
            let name = ContextName::parse(&name)?;
            // A context that does not exist, or is damaged, does not become the current one.
            let server = existing(&contexts, &name)?.server().to_owned();
            contexts.set_current(Some(&name))?;
            let text = format!("commands use context {name}, the broker at {server}");
            say(global.json, json!({ "current": name.as_str() }), &text)
        }
        ContextCommand::Use { name: None, .. } => {
            contexts.set_current(None)?;
            say(global.json, json!({ "current": null }), "commands use no context")
        }
        ContextCommand::Show { name } => {
            let context = match name {
                Some(name) => existing(&contexts, &ContextName::parse(&name)?)?,
                None => chosen(global)?.ok_or_else(no_context)?.context,
            };
            show(&contexts, &context, global.json)
        }
        ContextCommand::Delete { name, force, yes } => delete(&contexts, &name, force, yes, global.json),
    }
}

/// Returns the context of a command: that of `--context`, else of the variable, else the current one.
pub fn chosen(global: &Global) -> Result<Option<Chosen>> {
    let variable = std::env::var_os(ENV_CONTEXT).map(|name| name.to_string_lossy().into_owned());
    let of_flag = global.context.as_deref().map(|name| (name, ChosenBy::Flag));
    let named = of_flag.or_else(|| variable.as_deref().map(|name| (name, ChosenBy::Env)));
    match Contexts::of_user() {
        Ok(contexts) => Ok(contexts.choose(named)?),
        // A user without a home directory has no contexts.
        Err(_) if named.is_none_or(|(name, _)| name.is_empty()) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn no_context() -> Failure {
    let message =
        "no context is in use: thalweg context use NAME, or thalweg context add NAME --server HOST:PORT --use";
    Failure::new(USAGE, message)
}

/// Reads a context. One that does not exist has its own exit code.
fn existing(contexts: &Contexts, name: &ContextName) -> Result<Context> {
    contexts.read(name).map_err(|error| missing_or(contexts, name, error))
}

fn missing_or(contexts: &Contexts, name: &ContextName, error: ConfigError) -> Failure {
    let code = if contexts.has(name) { USAGE } else { NOT_FOUND };
    Failure::new(code, error.to_string())
}

fn add(contexts: &Contexts, global: &Global, args: ContextAdd) -> Result {
    let name = ContextName::parse(&args.name)?;
    if contexts.has(&name) {
        if !args.replace {
            return Err(Failure::new(
                FAILED,
                format!("there is a context {name} already: pass --replace to replace it"),
            ));
        }
        check_logged_out(contexts, &name)?;
    }
    if global.server.is_none() {
        let message = "--server is missing: a context is for one broker, such as --server broker.lan:7400";
        return Err(Failure::new(USAGE, message));
    }
    if args.user.as_deref() == Some("") {
        return Err(Failure::new(USAGE, "--user is empty: write the name of a user, or omit it"));
    }
    let is_secret = |name: &str| KEYS.iter().any(|key| key.name == name && matches!(key.kind, Kind::Secret));
    let mut keys = set_flags(global)?;
    if let Some((secret, _)) = keys.iter().find(|(name, _)| is_secret(name)) {
        let message =
            format!("--set {secret}: others can see a command line; use --{secret}-file, or thalweg login, which asks");
        return Err(Failure::new(USAGE, message));
    }
    for (key, value) in [
        ("server", &global.server),
        ("user", &args.user),
        ("password_file", &args.password_file),
        ("token_file", &global.token_file),
        ("client_cert", &args.client_cert),
        ("client_key", &args.client_key),
        ("ca_file", &global.ca_file),
    ] {
        keys.extend(value.clone().map(|value| (key, value)));
    }
    for (key, value) in keys.iter_mut().filter(|(_, value)| !value.is_empty()) {
        if PATHS.contains(key) {
            *value = readable(key, value)?;
        } else if *key == "server"
            && let Ok(Address::Unix { path }) = Address::parse(value)
        {
            *value = Address::Unix { path: std::path::absolute(path)? }.to_string();
        }
    }
    contexts.put(&Context::new(name.clone(), &keys)?)?;
    if args.is_current {
        contexts.set_current(Some(&name))?;
    } else {
        remark(&format!("thalweg context use {name} makes it the current context"));
    }
    let json = json!({ "context": name.as_str(), "path": contexts.path(&name), "is_current": args.is_current });
    say(global.json, json, &format!("added context {name}"))
}

/// Returns the absolute path of a file that this user can read.
fn readable(key: &str, path: &str) -> Result<String> {
    let absolute = std::path::absolute(path)?.display().to_string();
    match std::fs::File::open(&absolute) {
        Ok(_) => Ok(absolute),
        Err(error) => {
            let option = key.replace('_', "-");
            let message = format!("--{option}: cannot read {absolute}: {error}; write the path of an existing file");
            Err(Failure::new(USAGE, message))
        }
    }
}

/// Refuses to lose the only copy of a token that is still valid.
fn check_logged_out(contexts: &Contexts, name: &ContextName) -> Result {
    match contexts.read(name) {
        Ok(Context { login: Some(StoredLogin { secret: LoginSecret::Token(..), .. }), .. }) => {
            let advice = format!("log out first: thalweg logout --context {name}");
            Err(Failure::new(FAILED, format!("context {name} is logged in; {advice}")))
        }
        // A damaged context can be replaced and deleted.
        _ => Ok(()),
    }
}

fn delete(contexts: &Contexts, name: &str, is_forced: bool, yes: Yes, is_json: bool) -> Result {
    let name = ContextName::parse(name)?;
    if contexts.has(&name) {
        if !is_forced {
            check_logged_out(contexts, &name)?;
        }
        confirm::ask(yes, &format!("Delete context {name}?"))?;
    }
    contexts.delete(&name).map_err(|error| missing_or(contexts, &name, error))?;
    say(is_json, json!({ "deleted": name.as_str() }), &format!("deleted context {name}"))
}

fn list(contexts: &Contexts, is_json: bool) -> Result {
    let current = contexts.current()?;
    let names = contexts.names()?;
    let is_current = |name: &ContextName| current.as_ref() == Some(name);
    let mut out = io::stdout();
    if is_json {
        let row = |name: &ContextName| match contexts.read(name) {
            Ok(context) => to_json(contexts, &context, is_current(name)),
            Err(error) => {
                json!({ "context": name.as_str(), "is_current": is_current(name), "error": error.to_string() })
            }
        };
        return Ok(writeln!(out, "{}", Value::Array(names.iter().map(row).collect()))?);
    }
    if names.is_empty() {
        return Ok(writeln!(out, "no contexts yet; `thalweg context add NAME --server HOST:PORT` adds one")?);
    }
    let mut table = units::table();
    table.set_header(["", "CONTEXT", "SERVER", "USER", "LOGIN"]);
    for name in &names {
        let mark = if is_current(name) { "*" } else { "" };
        match contexts.read(name) {
            Ok(context) => {
                let user = context.user().unwrap_or_default();
                table.add_row([mark, name.as_str(), context.server(), user, &login_of(&context)]);
            }
            Err(_) => {
                table.add_row([mark, name.as_str(), "cannot be read: thalweg context show", "", ""]);
            }
        }
    }
    Ok(writeln!(out, "{table}")?)
}

/// Describes how the clients of a context log in, without secrets.
fn login_of(context: &Context) -> String {
    let has = |name: &str| context.value(name).is_some_and(|value| !value.is_empty());
    match &context.login {
        Some(StoredLogin { secret: LoginSecret::Token(_, expires_ms), .. }) => {
            let is_expired = *expires_ms <= now_ms();
            let when = if is_expired { "expired" } else { "until" };
            format!("token {when} {}", format_time(*expires_ms as i64))
        }
        Some(StoredLogin { secret: LoginSecret::Password(_), .. }) => "stored password".to_owned(),
        None if has("token_file") || has("token") => "token".to_owned(),
        None if has("password_file") || has("password") => "password".to_owned(),
        None if has("client_cert") => "certificate".to_owned(),
        None => String::new(),
    }
}

fn to_json(contexts: &Contexts, context: &Context, is_current: bool) -> Value {
    let keys: Map<String, Value> = context.shown().map(|(key, value)| (key.name.to_owned(), json!(value))).collect();
    let login = context.login.as_ref().map(|StoredLogin { user, secret }| match secret {
        LoginSecret::Token(_, expires_ms) => json!({ "user": user, "with": "token", "expires_ms": expires_ms }),
        LoginSecret::Password(_) => json!({ "user": user, "with": "password" }),
    });
    json!({
        "context": context.name.as_str(),
        "is_current": is_current,
        "path": contexts.path(&context.name),
        "keys": keys,
        "login": login,
    })
}

fn show(contexts: &Contexts, context: &Context, is_json: bool) -> Result {
    let is_current = contexts.current()?.as_ref() == Some(&context.name);
    let mut out = io::stdout();
    if is_json {
        return Ok(writeln!(out, "{}", to_json(contexts, context, is_current))?);
    }
    let current = if is_current { ", the current one" } else { "" };
    writeln!(out, "# context {}{current}: {}", context.name, contexts.path(&context.name).display())?;
    if let Some(StoredLogin { user, .. }) = &context.login {
        writeln!(out, "# logged in as {user}: {}", login_of(context))?;
    }
    for (key, value) in context.shown() {
        match key.kind {
            Kind::Secret if !value.is_empty() => writeln!(out, "# {} = {value}", key.name)?,
            kind => writeln!(out, "{} = {}", key.name, kind.show_toml(value))?,
        }
    }
    Ok(())
}
