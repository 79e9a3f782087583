//! Context between the file and the variables: which of its keys have an effect.
//!
//! A context is for one broker, so its secrets are sent to no other: if a variable or a flag names another broker, the
//! context is not used. Keys about the connection belong together, so those of the file do not mix with a context.

use client::Addresses;

use super::contexts::{Chosen, ChosenBy};
use super::keys::Key;
use super::{ConfigError, ENV_CONTEXT, LOGIN_KEYS, Origin, Result};

/// Keys of the file that a context replaces together, in addition to [`LOGIN_KEYS`].
const CONNECTION_KEYS: [&str; 4] = ["server", "ca_file", "client_cert", "client_key"];

/// Whether there is a context, and whether it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextUse {
    /// There is none.
    None,
    /// The context of this name is used.
    Used {
        /// Name of the context.
        name: String,
        /// Source of its name.
        by: ChosenBy,
        /// `true` if the clients log in with what `thalweg login` has stored.
        is_logged_in: bool,
    },
    /// The context of this name is not used.
    Unused {
        /// Name of the context.
        name: String,
        /// Source of the address of another broker.
        server: String,
    },
}

type Entry = (&'static Key, String, Origin);

/// Adds the keys of a context to those of the file. `above` has those of variables and flags.
pub(super) fn insert_context(written: &mut Vec<Entry>, chosen: Option<&Chosen>, above: &[Entry]) -> Result<ContextUse> {
    let Some(Chosen { context, by }) = chosen else { return Ok(ContextUse::None) };
    let name = context.name.to_string();
    if let Some((_, server, origin)) = above.iter().rev().find(|(key, ..)| key.name == "server")
        && !is_same_broker(server, context.server())
    {
        let is_as_near = match by {
            ChosenBy::Flag => true,
            ChosenBy::Env => matches!(origin, Origin::Env(_)),
            ChosenBy::Current => false,
        };
        if is_as_near {
            let named = if *by == ChosenBy::Flag { "--context".to_owned() } else { format!("${ENV_CONTEXT}") };
            return Err(ConfigError(format!(
                "{named} {name} is for the broker at {}, and {origin} names {server}: remove one of them, or add a \
                 context for {server}",
                context.server()
            )));
        }
        return Ok(ContextUse::Unused { name, server: origin.to_string() });
    }
    written.retain(|(key, ..)| !CONNECTION_KEYS.contains(&key.name) && !LOGIN_KEYS.contains(&key.name));
    let mut entries = context.entries();
    let replaced = replaced_by(above);
    entries.retain(|(key, _)| !replaced.contains(&key.name));
    let has_token = entries.iter().any(|(key, value)| ["token", "token_file"].contains(&key.name) && !value.is_empty());
    if has_token {
        // The token says who its user is; without the token, a password from above needs the name.
        entries.retain(|(key, _)| !["user", "password", "password_file"].contains(&key.name));
    }
    let is_secret = |name: &str| ["token", "password"].contains(&name);
    let is_logged_in = context.login.is_some() && entries.iter().any(|(key, _)| is_secret(key.name));
    let origin = Origin::Context(name.clone());
    written.extend(entries.into_iter().map(|(key, value)| (key, value, origin.clone())));
    Ok(ContextUse::Used { name, by: *by, is_logged_in })
}

/// Returns the keys of a context that have no effect, as variables and flags set others for the same purpose.
fn replaced_by(above: &[Entry]) -> Vec<&'static str> {
    let has = |names: &[&str]| above.iter().any(|(key, ..)| names.contains(&key.name));
    let mut replaced = Vec::new();
    if has(&["user", "token", "token_file"]) {
        replaced.extend(LOGIN_KEYS);
    } else if has(&["password", "password_file"]) {
        replaced.extend(LOGIN_KEYS.into_iter().filter(|key| *key != "user"));
    }
    if has(&["client_cert", "client_key"]) {
        replaced.extend(["client_cert", "client_key"]);
    }
    replaced
}

/// Returns `true` if the addresses are of the broker that a context has: each of a host and a port of it, whatever the
/// transport.
fn is_same_broker(one: &str, other: &str) -> bool {
    match (Addresses::parse(one), Addresses::parse(other)) {
        (Ok(one), Ok(other)) => one.is_part_of(&other),
        _ => one == other,
    }
}
