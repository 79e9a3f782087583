//! Configuration in the format of the file, which `thalweg config show` prints and `--config` reads.

use std::fmt::Write;

use super::keys::{Key, Kind, Scope};
use super::{Config, ContextUse, Origin};

/// Comment after each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Source of the value.
    Origin,
    /// Help text of the key.
    Help,
}

impl Config {
    /// Returns all keys and definitions as TOML. Comments replace the values of secrets, and one names the context.
    pub fn to_toml(&self, remark: Remark) -> String {
        let mut text = self.context_line();
        text.push_str(&self.keys_to_toml(Scope::Broker, remark));
        text.push_str("\n[client]\n");
        text.push_str(&self.keys_to_toml(Scope::Client, remark));
        for table in self.definitions().tables() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{table}");
        }
        text
    }

    /// Returns a comment about the context, if there is one.
    fn context_line(&self) -> String {
        match self.context() {
            ContextUse::None => String::new(),
            ContextUse::Used { name, by, .. } => format!("# context {name}, chosen by {by}\n"),
            ContextUse::Unused { name, server } => {
                format!("# context {name} is not used: {server} names another broker\n")
            }
        }
    }

    fn keys_to_toml(&self, scope: Scope, remark: Remark) -> String {
        let rows: Vec<_> = self.entries().filter(|(key, ..)| key.scope == scope).collect();
        lines(&rows, remark)
    }

    /// Returns only these keys as TOML, in the order of the table.
    pub fn some_to_toml(&self, names: &[&str], remark: Remark) -> String {
        let rows: Vec<_> = self.entries().filter(|(key, ..)| names.contains(&key.name)).collect();
        lines(&rows, remark)
    }
}

fn lines(rows: &[(&'static Key, &str, &Origin)], remark: Remark) -> String {
    let settings = rows.iter().map(|(key, value, _)| match key.kind {
        Kind::Secret if !value.is_empty() => format!("# {} = {value}", key.name),
        kind => format!("{} = {}", key.name, kind.show_toml(value)),
    });
    let settings: Vec<String> = settings.collect();
    // A long value does not move all comments to the right.
    let width = settings.iter().map(String::len).filter(|width| *width <= WIDTH_MAX).max().unwrap_or_default();
    let mut text = String::new();
    for (setting, (key, _, origin)) in settings.iter().zip(rows) {
        let remark = match remark {
            Remark::Origin => origin.to_string(),
            Remark::Help => key.help.to_owned(),
        };
        let _ = writeln!(text, "{setting:width$}  # {remark}");
    }
    text
}

/// Maximum width of a setting for which the comments are aligned.
const WIDTH_MAX: usize = 48;
