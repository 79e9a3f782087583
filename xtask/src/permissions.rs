//! Page of the permissions that each call of each door requires, from the tables of the program.

use std::fmt::Write as _;

use serde_json::Value;

use crate::docs::Program;
use crate::run::Outcome;

/// Doors by their keys, with the titles of their sections, a name for their calls, and the guide for their clients.
const DOORS: [(&str, &str, &str, &str); 6] = [
    ("native", "Native", "Request", "[the native protocol](protocol.md)"),
    ("http", "HTTP", "Route", "[HTTP](../guides/http.md)"),
    ("kafka", "Kafka", "API", "[Kafka APIs and versions](kafka.md)"),
    ("pubsub", "Pub/Sub", "Call", "[Pub/Sub](pubsub.md)"),
    ("redis", "Redis", "Command", "[Redis commands](redis.md)"),
    ("sqs", "SQS", "Action", "[SQS](sqs.md)"),
];

pub fn page(program: &Program) -> Outcome<String> {
    let tables: Value =
        serde_json::from_str(&program.output(&["--json", "acl", "calls"])?).map_err(|e| format!("acl calls: {e}"))?;
    let tables = tables.as_array().ok_or("acl calls prints no list")?;
    let mut page = String::new();
    open_calls(&mut page, tables)?;
    for table in tables {
        let key = text(&table["door"]);
        let (_, title, what, guide) = row_of(key)?;
        write!(page, "\n## {title}\n\n").map_err(failed)?;
        paragraph(&mut page, &format!("{} See also {guide}.", text(&table["about"])))?;
        calls(&mut page, what, &table["calls"])?;
    }
    Ok(page)
}

fn row_of(key: &str) -> Outcome<&'static (&'static str, &'static str, &'static str, &'static str)> {
    DOORS.iter().find(|(door, ..)| *door == key).ok_or_else(|| format!("xtask/src/permissions.rs has no door {key}"))
}

fn failed(error: std::fmt::Error) -> String {
    error.to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Writes the section of the calls that need no login.
fn open_calls(page: &mut String, tables: &[Value]) -> Outcome {
    page.push_str("## Calls without a login\n\n");
    page.push_str("| Door | Calls |\n|---|---|\n");
    for table in tables {
        let (_, title, ..) = row_of(text(&table["door"]))?;
        let open = each(&table["calls"]).iter().filter(|call| call["needs_login"] == false);
        let names: Vec<String> = open.map(|call| format!("`{}`", text(&call["call"]))).collect();
        let names = if names.is_empty() { "none: each request is signed".to_owned() } else { names.join(", ") };
        writeln!(page, "| {title} | {names} |").map_err(failed)?;
    }
    Ok(())
}

/// Writes a paragraph in lines of at most 100 characters.
fn paragraph(page: &mut String, text: &str) -> Outcome {
    const COLUMNS: usize = 100;
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            writeln!(page, "{line}").map_err(failed)?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(page, "{line}\n").map_err(failed)
}

/// Writes the table of the calls of a door, and the notes on them.
fn calls(page: &mut String, what: &str, calls: &Value) -> Outcome {
    writeln!(page, "| {what} | Operation | Kind | Resource | When |\n|---|---|---|---|---|").map_err(failed)?;
    for call in each(calls) {
        let needs = each(&call["needs"]);
        let name = text(&call["call"]);
        if needs.is_empty() {
            let login = if call["needs_login"] == true { "" } else { "not even a login" };
            writeln!(page, "| `{name}` | none | | | {login} |").map_err(failed)?;
        }
        for (at, need) in needs.iter().enumerate() {
            let name = if at == 0 { format!("`{name}`") } else { String::new() };
            writeln!(page, "| {name} | {} |", cells(need)).map_err(failed)?;
        }
    }
    let noted: Vec<&Value> = each(calls).iter().filter(|call| !text(&call["note"]).is_empty()).collect();
    let mut notes: Vec<(&str, Vec<String>)> = Vec::new();
    for call in noted {
        let name = format!("`{}`", text(&call["call"]));
        match notes.iter_mut().find(|(note, _)| *note == text(&call["note"])) {
            Some((_, names)) => names.push(name),
            None => notes.push((text(&call["note"]), vec![name])),
        }
    }
    if !notes.is_empty() {
        page.push('\n');
    }
    for (note, names) in notes {
        writeln!(page, "- {}: {note}", names.join(", ")).map_err(failed)?;
    }
    Ok(())
}

/// Returns the cells of one permission.
fn cells(need: &Value) -> String {
    let operation = match &need["or"] {
        Value::Null => format!("`{}`", text(&need["operation"])),
        or => {
            let on = if text(&or["of"]).is_empty() { "the cluster" } else { text(&or["of"]) };
            format!("`{}`, or `{}` on {on}", text(&need["operation"]), text(&or["operation"]))
        }
    };
    let when = match (need["is_filter"] == true, text(&need["when"])) {
        (false, when) => when.to_owned(),
        (true, "") => "otherwise omitted".to_owned(),
        (true, when) => format!("{when}; otherwise omitted"),
    };
    [operation.as_str(), text(&need["kind"]), text(&need["of"]), &when].join(" | ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_shows_conditions_and_alternatives() {
        let need = json!({
            "operation": "create", "kind": "topic", "of": "the topic", "when": "if it does not exist",
            "or": { "operation": "create", "kind": "cluster", "of": "" }, "is_filter": false,
        });
        let row = "`create`, or `create` on the cluster | topic | the topic | if it does not exist";
        assert_eq!(cells(&need), row);
        let listed =
            json!({ "operation": "describe", "kind": "topic", "of": "each topic", "when": "", "is_filter": true });
        assert_eq!(cells(&listed), "`describe` | topic | each topic | otherwise omitted");
    }

    #[test]
    fn a_paragraph_has_short_lines_and_all_words() {
        let mut page = String::new();
        let text = "word ".repeat(50).trim_end().to_owned();
        assert_eq!(paragraph(&mut page, &text), Ok(()));
        assert!(page.lines().all(|line| line.len() <= 100) && page.lines().count() > 2, "{page}");
        assert_eq!(page.split_whitespace().count(), 50);
    }
}
