//! `thalweg connections` and `thalweg disconnect`: open connections of clients at all doors, and the end of one.

use std::io::{self, Write};

use client::{ConnectionInfo, ConnectionPage};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::units;
use super::user::{on, say};
use crate::args::{Connections, Disconnect};
use crate::output::Result;

/// Number of connections that one request returns.
const PAGE: u32 = 1000;

pub fn list(config: &Config, args: &Connections, is_json: bool) -> Result {
    let (door, user) = (args.door.as_deref(), args.user.as_deref());
    let all = on(config, async |client| {
        let mut all: Vec<ConnectionInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.connection);
            let ConnectionPage { connections, is_last } = client.list_connections(after, PAGE, door, user).await?;
            let is_over = is_last || connections.is_empty();
            all.extend(connections);
            if is_over {
                return Ok(all);
            }
        }
    })?;
    let mut out = io::stdout();
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(all.iter().map(shown).collect()))?);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "no client is connected that matches; leave --door and --user out to list all")?);
    }
    let mut table = units::table();
    table.set_header(["CONNECTION", "DOOR", "USER", "ADDRESS", "OPEN FOR", "REQUESTS"]);
    for ConnectionInfo { connection, door, user, address, age_ms, requests } in all {
        let [user, address] = [user, address].map(|text| text.unwrap_or_else(|| "-".to_owned()));
        let [connection, requests] = [connection, requests].map(|number| number.to_string());
        table.add_row([connection, door, user, address, units::elapsed(age_ms), requests]);
    }
    Ok(writeln!(out, "{table}")?)
}

pub fn disconnect(config: &Config, args: &Disconnect, is_json: bool) -> Result {
    let of = on(config, async |client| client.disconnect_client(args.connection).await)?;
    let user = of.user.as_deref().map_or_else(String::new, |user| format!(" of user {user}"));
    let from = of.address.as_deref().map_or_else(String::new, |address| format!(" from {address}"));
    let closed =
        format!("closed connection {}{user}{from} at {}; its client may connect again", of.connection, of.door);
    say(is_json, json!({ "disconnected": shown(&of) }), &closed)
}

fn shown(of: &ConnectionInfo) -> Value {
    json!({
        "connection": of.connection,
        "door": of.door,
        "user": of.user,
        "address": of.address,
        "age_ms": of.age_ms,
        "requests": of.requests,
    })
}
