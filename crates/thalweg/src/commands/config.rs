//! `thalweg config`: the active values and their sources.

use std::io::Write;

use serde_json::{Map, Value, json};
use thalweg::config::Config;
use thalweg::config::keys::{Key, Scope};
use thalweg::config::{Remark, key_name};

use crate::args::ConfigCommand;
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: &ConfigCommand, is_json: bool) -> Result {
    let ConfigCommand::Show { keys, help_keys } = command;
    let names = keys.iter().map(|name| key_name(name, "config show"));
    let names: Vec<&str> = names.collect::<std::result::Result<_, _>>().map_err(|e| Failure::new(USAGE, e.0))?;
    let mut out = std::io::stdout();
    if is_json {
        let is_wanted = |key: &Key| names.is_empty() || names.contains(&key.name);
        let entries = config.entries().filter(|(key, ..)| is_wanted(key)).map(|(key, value, origin)| {
            let entry =
                json!({ "value": value, "origin": origin.to_string(), "scope": scope(key.scope), "help": key.help });
            (key.name.to_owned(), entry)
        });
        writeln!(out, "{}", Value::Object(entries.collect::<Map<_, _>>()))?;
        return Ok(());
    }
    let remark = if *help_keys { Remark::Help } else { Remark::Origin };
    let text = if names.is_empty() { config.to_toml(remark) } else { config.some_to_toml(&names, remark) };
    Ok(write!(out, "{text}")?)
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Broker => "broker",
        Scope::Client => "client",
    }
}
