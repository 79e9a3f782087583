//! `thalweg config`: what is in force, and why.

use std::io::Write;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Map, Value, json};
use thalweg::config::Config;
use thalweg::config::keys::Scope;

use crate::args::ConfigCommand;
use crate::output::Result;

pub fn run(config: &Config, command: &ConfigCommand, is_json: bool) -> Result {
    let ConfigCommand::Show { help_keys } = command;
    let mut out = std::io::stdout();
    if is_json {
        let entries = config.entries().map(|(key, value, origin)| {
            let entry =
                json!({ "value": value, "origin": origin.to_string(), "scope": scope(key.scope), "help": key.help });
            (key.name.to_owned(), entry)
        });
        writeln!(out, "{}", Value::Object(entries.collect::<Map<_, _>>()))?;
        return Ok(());
    }
    for wanted in [Scope::Broker, Scope::Client] {
        let mut table = Table::new();
        table.load_style(NOTHING);
        for (key, value, origin) in config.entries().filter(|(key, ..)| key.scope == wanted) {
            let shown = if value.is_empty() { "\"\"" } else { value };
            let about = if *help_keys { key.help.to_owned() } else { origin.to_string() };
            table.add_row([key.name.to_owned(), format!("= {shown}"), format!("# {about}")]);
        }
        writeln!(out, "[{}]\n{table}\n", scope(wanted))?;
    }
    Ok(())
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Broker => "broker",
        Scope::Client => "client",
    }
}
